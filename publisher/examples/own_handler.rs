//! A firm's own handler becomes a publisher. Its packets are lines on standard input: `T,id,price,size`
//! is a trade, `Q,id,bid,bid size,ask,ask size` a quote, prices in cents.

use std::time::Duration;

use tickcast_publisher::record::{BidAskPair, Mbp1Msg, RType, RecordHeader, TradeMsg};
use tickcast_publisher::{
    ChannelWriter, Config, Instrument, Publisher, SourceLoss, SourcePosition, WriteError,
};

/// Publishes what a packet says; `None`: it can't be read.
fn on_packet(
    packet: &str,
    at: SourcePosition,
    channel: &mut ChannelWriter,
) -> Option<Result<(), WriteError>> {
    let fields: Vec<&str> = packet.split(',').collect();
    let id = fields.get(1)?.parse().ok()?;
    // Prices count in units of 1e-9.
    let price = |i: usize| fields.get(i)?.parse::<i64>().ok()?.checked_mul(10_000_000);
    let size = |i: usize| fields.get(i)?.parse::<u32>().ok();
    match fields[0] {
        "T" => {
            let trade = TradeMsg {
                hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 1, id, 0),
                price: price(2)?,
                size: size(3)?,
                ..TradeMsg::default()
            };
            Some(channel.publish(&trade, at))
        }
        "Q" => {
            let top = BidAskPair {
                bid_px: price(2)?,
                bid_sz: size(3)?,
                ask_px: price(4)?,
                ask_sz: size(5)?,
                ..BidAskPair::default()
            };
            let quote = Mbp1Msg {
                hd: RecordHeader::new::<Mbp1Msg>(RType::Mbp1 as u8, 1, id, 0),
                levels: [top],
                ..Mbp1Msg::default()
            };
            Some(channel.publish(&quote, at))
        }
        _ => None,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = (std::env::args().nth(1)).ok_or("usage: own_handler CONFIG.json < PACKETS")?;
    let mut publisher = Publisher::open(Config::read(config.as_ref())?)?;
    eprintln!("subscribers connect to {}", publisher.control_address());
    let mut channel = publisher.channel("all")?;
    let symbol = String::from("AAPL");
    channel.set_directory(&[Instrument { id: 1, symbol }])?;
    for (packet, sequence) in std::io::stdin().lines().zip(1..) {
        let at = SourcePosition::new(0, sequence);
        match on_packet(&packet?, at, &mut channel) {
            Some(Ok(())) => {}
            // Counted, and subscribers are told: the handler goes on with the next one.
            Some(Err(error)) => eprintln!("packet {sequence}: {error}"),
            None => channel.source_lost(SourceLoss::malformed(at, 1))?,
        }
    }
    println!("{}", publisher.end_session(Duration::from_secs(5))?.json());
    Ok(())
}
