//! Publishes one trade.

use std::time::Duration;

use tickcast_publisher::{Config, Publisher, SourcePosition, trade};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = std::env::args()
        .nth(1)
        .ok_or("usage: first_trade CONFIG.json")?;
    let mut publisher = Publisher::open(Config::read(config.as_ref())?)?;
    let mut channel = publisher.channel("all")?;
    // 101.50, because prices are in units of 1e-9.
    channel.publish(&trade(7, 101_500_000_000, 200), SourcePosition::new(0, 1))?;
    println!("{}", publisher.end_session(Duration::from_secs(2))?.json());
    Ok(())
}
