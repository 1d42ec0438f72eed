//! A firm's own handler becomes a publisher. Its packets are lines on standard input: `T,id,price,size`
//! is a trade, `Q,id,bid,bid size,ask,ask size` a quote, prices in cents.

use std::{error::Error, time::Duration};

use tickcast_publisher::{Config, Publisher, SourceLoss, SourcePosition, quote, trade};

/// One cent, in price units of 1e-9.
const CENT: i64 = 10_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let config = (std::env::args().nth(1)).ok_or("usage: own_handler CONFIG.json < PACKETS")?;
    let mut publisher = Publisher::open(Config::read(config.as_ref())?)?;
    let mut channel = publisher.channel("all")?;
    channel.name_instrument(1, "AAPL")?;
    for (packet, sequence) in std::io::stdin().lines().zip(1..) {
        let (packet, at) = (packet?, SourcePosition::new(0, sequence));
        let fields = packet.split(',').skip(1).map(str::parse);
        let published = match (
            packet.get(..2),
            &*fields.collect::<Result<Vec<u32>, _>>().unwrap_or_default(),
        ) {
            (Some("T,"), &[id, price, size]) => {
                channel.publish(&trade(id, i64::from(price) * CENT, size), at)
            }
            (Some("Q,"), &[id, bid, bids, ask, asks]) => {
                let (bid, ask) = (i64::from(bid) * CENT, i64::from(ask) * CENT);
                channel.publish(&quote(id, (bid, bids), (ask, asks)), at)
            }
            _ => channel.source_lost(SourceLoss::malformed(at, 1)),
        };
        // The loss is counted and reported to subscribers, so continue with the next packet.
        published.unwrap_or_else(|error| eprintln!("packet {sequence}: {error}"));
    }
    println!("{}", publisher.end_session(Duration::from_secs(5))?.json());
    Ok(())
}
