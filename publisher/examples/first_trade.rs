//! Publishes one trade.

use std::time::Duration;

use tickcast_publisher::record::{RType, RecordHeader, TradeMsg};
use tickcast_publisher::{Config, Publisher, SourcePosition};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = std::env::args()
        .nth(1)
        .ok_or("usage: first_trade CONFIG.json")?;
    let mut publisher = Publisher::open(Config::read(config.as_ref())?)?;
    let mut channel = publisher.channel("all")?;
    let trade = TradeMsg {
        hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 1, 7, 0),
        price: 101_500_000_000, // 101.50: prices count in 1e-9
        size: 200,
        ..TradeMsg::default()
    };
    channel.publish(&trade, SourcePosition::new(0, 1))?;
    println!("{}", publisher.end_session(Duration::from_secs(2))?.json());
    Ok(())
}
