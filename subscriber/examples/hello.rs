//! Prints every tick of a channel, and everything that happens to the stream.
use tickcast_subscriber::{Idle, Item, SubscribeError, Subscriber};

fn main() -> Result<(), SubscribeError> {
    let publisher = std::env::args().nth(1).unwrap_or("127.0.0.1:7400".into());
    let mut subscriber = Subscriber::builder(publisher).channel("all").build()?;
    while !subscriber.ended() {
        let polled = subscriber.poll(|item| match item {
            Item::Record(position, record) => println!("{} {record:?}", position.record),
            Item::Event(_, event) => println!("{event}"),
        });
        Idle::Sleep { us: 50 }.idle(polled.worked());
    }
    Ok(())
}
