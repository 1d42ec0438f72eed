//! `tickcast simulate`: writes a capture of a simulated market, for `demo --capture` and `replay` on
//! hosts without captures of a venue.

use std::io::{self, BufWriter, Write};
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use jiff::civil::Date;
use tickcast_feeds::itch::TradeDate;
use tickcast_feeds::itch::clock::SessionClock;
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};
use tickcast_reliability::types::Nanos;
use tickcast_transport::host::files::{OutputTarget, Readers};

use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::table::thousands;

/// The contents of the capture.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The capture to write: pcap, MoldUDP64 packets of ITCH 5.0.
    file: PathBuf,
    /// The same seed and options give the same file.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Trading ends once this many messages were sent.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Number of symbols that trade.
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    symbols: u16,
    /// Destination address of the packets in the capture.
    #[arg(long, value_name = "GROUP:PORT", default_value = "239.255.1.1:26400")]
    to: SocketAddrV4,
    /// The simulated day.
    #[arg(long, value_name = "DATE", default_value = "2026-01-02")]
    trade_date: Date,
}

/// Writes the capture.
///
/// # Errors
/// Returns [`ToolError::Write`] if the file can't be written.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    let config = SimulatorConfig {
        symbols: args.symbols,
        messages: args.messages,
        ..SimulatorConfig::default()
    };
    let mut simulator =
        Simulator::new(&config, args.seed).map_err(|error| ToolError::Usage(error.to_string()))?;
    let clock = SessionClock::new(TradeDate::Fixed(args.trade_date), Nanos::ZERO);
    let began_at = Nanos(clock.utc(u64::from(config.begins_at_s) * 1_000_000_000));
    let packets = write(&args.file, &mut simulator, began_at, args.to).map_err(|source| {
        ToolError::Write {
            path: args.file.clone(),
            source,
        }
    })?;
    let mut output = Output::stdout();
    output.line(format_args!(
        "{} messages of {} symbols in {} packets",
        thousands(simulator.messages()),
        args.symbols,
        thousands(packets)
    ))?;
    output.flush()?;
    Ok(Exit::Whole)
}

/// Writes all packets. Returns their number.
fn write(
    path: &Path,
    simulator: &mut Simulator,
    began_at: Nanos,
    to: SocketAddrV4,
) -> io::Result<u64> {
    let entry = match OutputTarget::find(path)? {
        OutputTarget::File(entry) => entry,
        OutputTarget::Stream(entry) => {
            let stream = BufWriter::new(entry.open_in_place()?);
            return write_packets(stream, simulator, began_at, to);
        }
    };
    let new = entry.create(Readers::Group)?;
    let packets = write_packets(BufWriter::new(new.file()), simulator, began_at, to)?;
    new.replace()?;
    Ok(packets)
}

fn write_packets(
    mut output: impl Write,
    simulator: &mut Simulator,
    began_at: Nanos,
    to: SocketAddrV4,
) -> io::Result<u64> {
    output.write_all(&HEADER)?;
    let mut packets = 0;
    while let Some(packet) = simulator.next_packet() {
        write_packet(&mut output, began_at.after(packet.at), to, packet.payload)?;
        packets += 1;
    }
    output.flush()?;
    Ok(packets)
}

/// Header of a little-endian pcap 2.4 with nanosecond stamps and Ethernet frames (pcap-savefile(5)).
const HEADER: [u8; 24] = [
    0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0,
];
const ETHERNET_LEN: usize = 14;
const IPV4_LEN: usize = 20;
const UDP_LEN: usize = 8;

/// Writes a record: the payload in an Ethernet, an IPv4 and a UDP header.
fn write_packet(
    file: &mut impl Write,
    at: Nanos,
    to: SocketAddrV4,
    payload: &[u8],
) -> io::Result<()> {
    // The simulator's longest payload fits a datagram, and its stamps fit pcap's 32-bit seconds.
    let udp_len = (UDP_LEN + payload.len()) as u16;
    let frame_len = (ETHERNET_LEN + IPV4_LEN + UDP_LEN + payload.len()) as u32;
    let (seconds, ns) = (at.0 / 1_000_000_000, at.0 % 1_000_000_000);
    for word in [seconds as u32, ns as u32, frame_len, frame_len] {
        file.write_all(&word.to_le_bytes())?;
    }
    let [_, a, b, c] = to.ip().octets();
    // The group's MAC address (RFC 1112), and one of the locally administered range.
    file.write_all(&[1, 0, 0x5e, a & 0x7f, b, c, 2, 0, 0, 0, 0, 1, 8, 0])?;
    let mut ip = [0; IPV4_LEN];
    ip[..2].copy_from_slice(&[0x45, 0]);
    ip[2..4].copy_from_slice(&(IPV4_LEN as u16 + udp_len).to_be_bytes());
    ip[8..10].copy_from_slice(&[1, 17]);
    ip[12..16].copy_from_slice(&[10, 0, 0, 1]);
    ip[16..].copy_from_slice(&to.ip().octets());
    let checksum = checksum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    file.write_all(&ip)?;
    // A UDP checksum of 0 means that the sender computed none.
    for field in [to.port(), to.port(), udp_len, 0] {
        file.write_all(&field.to_be_bytes())?;
    }
    file.write_all(payload)
}

/// The Internet checksum of a header (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2);
    let sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A well-known example of RFC 1071: a header whose checksum is known.
    #[test]
    fn checksum_of_a_known_header_is_its_own() {
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(checksum(&header), 0xb861);
    }
}
