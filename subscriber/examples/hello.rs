//! Prints every tick of a channel, and everything that happens to the stream.
use tickcast_subscriber::{Idle, Item, SubscribeError, Subscriber};

fn main() -> Result<(), SubscribeError> {
    let argument = |n, or: &str| std::env::args().nth(n).unwrap_or_else(|| or.into());
    let (publisher, channel) = (argument(1, "127.0.0.1:7400"), argument(2, "equities"));
    let mut subscriber = Subscriber::builder(publisher).channel(channel).build()?;
    let mut was_problem = false;
    while !subscriber.ended() {
        let polled = subscriber.poll(|item| match item {
            Item::Record(position, record) => println!("{} {record:?}", position.record),
            Item::Event(_, event) => println!("{event}"),
        });
        if let Some(problem) = subscriber.problem().filter(|_| !was_problem) {
            eprintln!("{problem}");
        }
        was_problem = polled.problem;
        Idle::Sleep { us: 50 }.idle(polled.worked());
    }
    Ok(())
}
