//! `tickcast plan`: measures the peaks of a recording, and sizes a publisher and its subscribers for them.

mod measure;
mod peaks;
mod sizing;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tickcast_feeds::capture::PacketTime;
use tickcast_feeds::recording::{FeedDestination, Selection};
use tickcast_feeds::venues::Format;
use tickcast_publisher::Config;
use tickcast_publisher::internal::Plan;
use tickcast_reliability::ring::Geometry;
use tickcast_reliability::types::Nanos;

use self::measure::{Measured, WINDOWS, measure};
use self::sizing::{Demand, Sizing, slot_len_of};
use super::tree::Tree;
use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::args::positive;
use tickcast_tools::support::files::{check_writable, write_json};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::table::{span, table, thousands};

/// The recording, and what it is planned for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The recording: captures of one feed, which are merged by time, or one BinaryFILE or SoupBinTCP;
    /// gzip, zstd or neither; - for standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Plan for this multiple of the recorded speed, as 2 or x2.
    #[arg(long, value_name = "TIMES", default_value = "1", value_parser = multiple)]
    rate: f64,
    /// Number of subscribers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000))]
    subscribers: u64,
    /// The longest standstill of a subscriber that must cost no record, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 1_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=600_000))]
    stall_ms: u64,
    /// MTU of the network; gives the length of a slot.
    #[arg(long, value_name = "BYTES", default_value_t = 1_500)]
    #[arg(value_parser = clap::value_parser!(u32).range(1_052..=9_216))]
    mtu: u32,
    /// Speed of the slowest link, in Gbit/s.
    #[arg(long, value_name = "GBIT", default_value = "10", value_parser = positive)]
    link_gbit: f64,
    /// Lines of the fan-out.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
    lines: u8,
    /// Cores of the feed, publish and repair threads, which then spin. By default, a feed with bursts gets
    /// the first three isolated cores of this host.
    #[arg(long, value_name = "FEED,PUBLISH,REPAIR", value_parser = three_cores)]
    cores: Option<[u16; 3]>,
    /// Plan for the feed at these destinations, one for each line: GROUP:PORT, or GROUP:PORT#CHANNEL
    /// for one channel of IEX.
    #[arg(long, value_name = "DESTINATION", value_delimiter = ',')]
    only: Vec<FeedDestination>,
    /// Take the packets for this format; otherwise it is recognised.
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Take the times of captured packets from: capture (its records), arista, metamako or exablaze.
    #[arg(long, value_name = "STAMP", default_value_t)]
    time: PacketTime,
    /// Write a publisher's config to this file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Parses a multiple above 0, with or without an x before it.
fn multiple(text: &str) -> Result<f64, String> {
    positive(text.strip_prefix('x').unwrap_or(text))
}

/// Parses the cores of the three threads.
fn three_cores(text: &str) -> Result<[u16; 3], String> {
    let cores: Result<Vec<u16>, _> = text.split(',').map(str::parse).collect();
    let three = cores.ok().and_then(|it| it.try_into().ok());
    three.ok_or_else(|| "give three cores with commas between them, as 2,3,4".to_owned())
}

/// Returns the isolated cores of a host, in order.
fn isolated_cores(tree: &Tree) -> Vec<u16> {
    let cores = tree.cores("/sys/devices/system/cpu/isolated");
    let cores = cores.unwrap_or_default().into_iter();
    cores.filter_map(|core| core.try_into().ok()).collect()
}

/// Plans for the files.
///
/// # Errors
/// Returns [`ToolError`] if a file can't be read or written, or several feeds are there and none is chosen.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    args.config.as_deref().map_or(Ok(()), check_writable)?;
    let demand = Demand {
        files: args.files.clone(),
        rate: args.rate,
        subscribers: args.subscribers,
        stall: Nanos::from_ms(args.stall_ms),
        slot_len: slot_len_of(args.mtu),
        // The value fits: it is finite and above 0, and the conversion saturates.
        link_bytes_per_s: ((args.link_gbit * 125e6) as u64).max(1),
        lines: args.lines,
        cores: args.cores,
        isolated: isolated_cores(&Tree::of_this_host()),
    };
    let selection = Selection {
        only: args.only.clone(),
        all_feeds: false,
        time: args.time,
    };
    let (rate, stall) = (demand.rate, demand.stall);
    let measured = measure(
        &args.files,
        &selection,
        args.format,
        rate,
        stall,
        demand.slot_len,
    )?;
    if measured.total.messages == 0 {
        return Err(ToolError::Problem(format!(
            "{} has no messages, so nothing can be planned; `tickcast inspect` shows why",
            measured.name
        )));
    }
    let sizing = Sizing::of(&measured, &demand);
    let config = sizing.config(&measured, &demand);
    // A plan that its own publisher refuses is a defect of this program.
    Config::parse(&config.to_string())
        .and_then(Plan::new)
        .map_err(|error| ToolError::Problem(format!("the planned config is not valid: {error}")))?;
    if let Some(path) = &args.config {
        write_json(path, &config)?;
    }
    let mut output = Output::stdout();
    if args.json {
        output.json(summary(&measured, &sizing, &demand, &config))?;
    } else {
        print(&measured, &sizing, &demand, &mut output)?;
    }
    output.flush()?;
    Ok(Exit::whole_if(
        measured.faults.is_empty() && measured.missing == 0 && sizing.findings.is_empty(),
    ))
}

/// Returns the windows of the peaks, the stall last.
fn windows(demand: &Demand) -> impl Iterator<Item = Nanos> {
    WINDOWS.into_iter().chain([demand.stall])
}

fn print(
    measured: &Measured,
    sizing: &Sizing,
    demand: &Demand,
    output: &mut Output,
) -> Result<(), ToolError> {
    let total = measured.total;
    output.line(format_args!(
        "{}: {} messages in {} packets, {} at {} times the recorded speed",
        measured.name,
        thousands(total.messages),
        thousands(total.packets),
        span(measured.length.0),
        demand.rate,
    ))?;
    let mut rows = table(&[
        "fullest",
        "packets",
        "messages",
        "records",
        "datagrams",
        "bytes",
        "messages/s",
    ]);
    for (window, peak) in windows(demand).zip(&measured.peaks) {
        let most = peak.most();
        let seconds = Duration::from_nanos(window.0).as_secs_f64();
        let counts = [
            most.packets,
            most.messages,
            most.records,
            most.datagrams,
            most.datagram_bytes,
            (most.messages as f64 / seconds) as u64,
        ];
        let counts = counts.map(thousands);
        rows.add_row(std::iter::once(span(window.0)).chain(counts));
    }
    output.line(rows)?;
    let mut rows = comfy_table::Table::new();
    rows.load_style(comfy_table::presets::ASCII_MARKDOWN);
    rows.set_header(["setting", "value", "reason"]);
    for size in &sizing.sizes {
        rows.add_row([
            size.setting.to_owned(),
            size.value.to_string(),
            size.reason.clone(),
        ]);
    }
    output.line(rows)?;
    let ring = Geometry::new(demand.slot_len, sizing.value("channels[0].slots"));
    if let Ok(ring) = ring {
        let bytes = thousands(ring.bytes() as u64);
        output.line(format_args!("The ring takes {bytes} bytes of memory."))?;
    }
    for finding in &sizing.findings {
        output.line(format_args!("finding: {finding}"))?;
    }
    if measured.missing > 0 {
        output.line(format_args!(
            "not whole: {} messages are missing in the recording, so its peaks may be too low",
            thousands(measured.missing)
        ))?;
    }
    for fault in &measured.faults {
        output.line(format_args!("not whole: {fault}"))?;
    }
    Ok(())
}

fn summary(measured: &Measured, sizing: &Sizing, demand: &Demand, config: &Value) -> Value {
    let peaks = windows(demand).zip(&measured.peaks).map(|(window, peak)| {
        json!({ "window_us": window.as_us(), "most": peak.most(), "at_us": peak.at().as_us() })
    });
    let sizes = sizing
        .sizes
        .iter()
        .map(|size| json!({ "setting": size.setting, "value": size.value, "reason": size.reason }));
    json!({
        "feed": measured.name,
        "rate": demand.rate,
        "length_us": measured.length.as_us(),
        "total": measured.total,
        "oversize": measured.oversize,
        "missing": measured.missing,
        "peaks": peaks.collect::<Vec<_>>(),
        "sizes": sizes.collect::<Vec<_>>(),
        "findings": sizing.findings,
        "faults": measured.faults,
        "config": config,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tree::FakedTree;
    use super::*;

    #[test]
    fn three_cores_are_read_from_one_argument() {
        assert_eq!(three_cores("2,4,6"), Ok([2, 4, 6]));
        for wrong in ["2,4", "2,4,6,8", "2 4 6", "a,b,c", ""] {
            assert!(three_cores(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn isolated_cores_are_those_the_kernel_lists() {
        let of = |text: &str| {
            let faked = FakedTree::of(&[("/sys/devices/system/cpu/isolated", text)]);
            isolated_cores(&faked.tree())
        };
        assert_eq!(of("2-3,6\n"), [2, 3, 6]);
        assert_eq!(of("\n"), [0; 0]);
    }
}
