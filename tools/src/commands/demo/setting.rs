//! The publisher's config for the demo: two channels on loopback only, with groups and ports that
//! nothing else uses.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, UdpSocket};

use serde_json::{Value, json};

use super::Args;
use tickcast_tools::exit::ToolError;

/// The channels, and the symbols of each.
pub(super) const CHANNELS: [(&str, &[&str]); 2] = [("a-l", &["A-L"]), ("m-z", &["*"])];

/// Symbols of the simulated market, the busiest first, alternating between the two channels.
#[rustfmt::skip]
const SYMBOLS: &[&str] = &[
    "AAPL", "NVDA", "AMD", "TSLA", "AMZN", "MSFT", "INTC", "META", "BAC", "NFLX", "GOOG", "PFE",
    "CSCO", "MU", "JPM", "T", "AVGO", "ORCL", "C", "QCOM", "DIS", "XOM", "GE", "UNH", "BA", "V",
    "CAT", "TXN", "COST", "NKE", "CRM", "MA", "CVX", "PEP", "HD", "PG", "IBM", "SBUX", "JNJ",
    "MRK",
];

/// Returns the config for `tickcast-publisher`.
pub(super) fn publisher_config(args: &Args) -> Result<Value, ToolError> {
    let groups = free_groups()?;
    let channels = CHANNELS
        .iter()
        .zip(groups)
        .zip(1..)
        .map(|(((name, symbols), group), id)| {
            json!({
                "id": id,
                "name": name,
                "symbols": symbols,
                "slot_len": 1472,
                "slots": 16_384,
                "peak_datagrams_per_s": 10_000,
                "fan_out": [{"transport": "udp", "lines": [{"group": group}]}],
            })
        });
    Ok(json!({
        "name": "demo",
        "control": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "interface": "127.0.0.1",
        "channels": channels.collect::<Vec<_>>(),
        "inputs": [input(args)?],
        "digest": true,
        "end_when_inputs_end": true,
        "linger_ms": 10_000,
    }))
}

fn input(args: &Args) -> Result<Value, ToolError> {
    let mut input = json!({
        "source": 1,
        "pace": {"messages_per_s": args.rate},
        "wait_for_subscribers": args.subscribers,
        "records_max": args.records_max(),
    });
    let own = match &args.capture {
        Some(file) => {
            // The publisher may run in another working directory, so make the path absolute.
            let file = std::path::absolute(file).map_err(|source| ToolError::Read {
                path: file.clone(),
                source,
            })?;
            json!({"kind": "capture", "file": file, "format": "auto"})
        }
        None => json!({
            "kind": "simulator",
            "seed": args.faults.seed.unwrap_or(1),
            "symbols": SYMBOLS.len(),
            "names": SYMBOLS,
            // More than enough, because most messages carry at least one record; `records_max` ends the run.
            "messages": args.records_max().unwrap_or(0).saturating_mul(4),
            "duration_ms": 0,
        }),
    };
    if let (Value::Object(all), Value::Object(own)) = (&mut input, own) {
        all.extend(own);
    }
    Ok(input)
}

/// Returns groups that were most probably never used on this host, with free ports.
fn free_groups() -> Result<[String; 2], ToolError> {
    let random = RandomState::new().hash_one(std::process::id());
    let [high, low, ..] = random.to_le_bytes();
    let host = |source| ToolError::Host {
        what: "find a free port",
        source,
    };
    let mut groups = [String::new(), String::new()];
    for (group, n) in groups.iter_mut().zip(0_u8..) {
        let socket = UdpSocket::bind("127.0.0.1:0").map_err(host)?;
        let port = socket.local_addr().map_err(host)?.port();
        // 239.255.0.0/16 is for use within one site; the last byte avoids both ends of its range.
        let address = Ipv4Addr::new(239, 255, high, (low % 120) * 2 + 1 + n);
        *group = format!("{address}:{port}");
    }
    Ok(groups)
}
