//! `tickcast replay`: sends all packets of a recording in order: at the recorded speed, a multiple
//! of it, a fixed rate, or as fast as possible.

use std::io;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;
use tickcast_feeds::capture::PacketTime;
use tickcast_feeds::recording::{FeedDestination, Selection, Timeline};
use tickcast_reliability::types::Nanos;
use tickcast_transport::host::interface::Interface;

use tickcast_tools::exit::{Exit, ToolError};
use tickcast_tools::support::args::positive;
use tickcast_tools::support::files::{check_writable, write_json};
use tickcast_tools::support::output::Output;
use tickcast_tools::support::packets::{Merged, PassedOver};
use tickcast_tools::support::progress::ProgressReport;
use tickcast_tools::support::send::Sender;
use tickcast_tools::support::signals::Stop;
use tickcast_tools::support::table::{rate, span, thousands};

/// The recording, its destination, and its speed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The recordings, merged by time: pcap, pcapng, BinaryFILE or SoupBinTCP, gzip, zstd or neither;
    /// - for standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Address of the publisher's live input: HOST:PORT or GROUP:PORT.
    #[arg(long, value_name = "ADDRESS")]
    to: String,
    /// Multiple of the recorded speed, or max.
    #[arg(long, value_name = "N|max", default_value = "1", value_parser = speed, allow_negative_numbers = true)]
    speed: Speed,
    /// Send this many packets per second instead, evenly.
    #[arg(long, value_name = "N", conflicts_with = "speed", value_parser = positive)]
    rate: Option<f64>,
    /// The interface to send from, if the destination is a group.
    #[arg(long, value_name = "NAME|ADDRESS", default_value_t)]
    interface: Interface,
    /// Number of routers that a packet to a group may pass; 0 keeps it on this host.
    #[arg(long, value_name = "N", default_value_t = 0)]
    ttl: u8,
    /// Send only a capture's packets to these original destinations: one line of several, or one
    /// channel of IEX as GROUP:PORT#CHANNEL.
    #[arg(long, value_name = "DESTINATION", value_delimiter = ',')]
    only: Vec<FeedDestination>,
    /// Take the times of captured packets from: capture (its records), arista, metamako or exablaze.
    #[arg(long, value_name = "STAMP", default_value_t)]
    time: PacketTime,
    /// Wait at most this many seconds for a packet.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = positive)]
    gap_max: f64,
    /// Stop after this many packets.
    #[arg(long, value_name = "N")]
    packets_max: Option<u64>,
    /// Send the file this many times. A BinaryFILE is a new session each time; a capture's packets
    /// are identical each time, so decoders treat the repeats as old.
    #[arg(long = "loop", value_name = "N", default_value_t = 1)]
    rounds: u64,
    /// Also write the summary to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
    /// Show no progress.
    #[arg(long)]
    quiet: bool,
}

/// The speed of the replay.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Speed {
    Times(f64),
    Max,
}

fn speed(text: &str) -> Result<Speed, String> {
    if text == "max" {
        return Ok(Speed::Max);
    }
    let times =
        positive(text).map_err(|error| format!("{error} (1 is the recorded speed), or max"))?;
    Ok(Speed::Times(times))
}

/// The results of a replay.
#[derive(Debug, Serialize)]
struct Summary {
    packets: u64,
    bytes: u64,
    /// Packets that the network refused: no listener, or no route.
    refused: u64,
    passed_over: PassedOver,
    seconds: f64,
    packets_per_s: f64,
    /// Duration of the recording, summed over all rounds.
    recorded_seconds: f64,
    /// Achieved multiple of the recorded speed.
    achieved_speed: f64,
    /// Delay of packets behind their due time, in microseconds; null if no packet had a due time.
    late_p50_us: Option<u64>,
    late_p99_us: Option<u64>,
    late_max_us: Option<u64>,
    /// Waits that were longer than the bound, and cut to it.
    capped_waits: u64,
    /// Packets without the stamp that was asked for, sent by the time of their record.
    unstamped: u64,
    /// Reasons why a file is not whole, one line each.
    faults: Vec<String>,
    /// Findings that leave the file whole, such as times that can't be right, one line each.
    notes: Vec<String>,
    /// Whether the file was sent to its end, as often as requested.
    whole: bool,
}

/// Sends the recording.
///
/// # Errors
/// Returns [`ToolError`] if the file can't be read, the address can't be used, or nothing
/// listens there.
pub(crate) fn run(args: &Args) -> Result<Exit, ToolError> {
    args.summary.as_deref().map_or(Ok(()), check_writable)?;
    let selection = Selection {
        only: args.only.clone(),
        all_feeds: false,
        time: args.time,
    };
    let mut packets = Merged::open(&args.files, &selection)?;
    // From here on, signals end the replay in order. Before, they end the wait for the writer of a pipe.
    let stop = Stop::on_signals()?;
    let mut sender = Sender::to(&args.to, &args.interface, args.ttl)?;
    let size = packets
        .progress()
        .1
        .map(|size| size.saturating_mul(args.rounds));
    let mut progress = ProgressReport::new("replay", size, args.quiet);
    let mut pacer = Pacer::new(args)?;
    let (mut count, mut bytes, mut round, mut whole) = (0, 0, 1, false);
    let mut damage = None;
    let packets_max = args.packets_max.unwrap_or(u64::MAX);
    while count < packets_max && !stop.asked() {
        let packet = match packets.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) if round >= args.rounds => {
                whole = true;
                break;
            }
            Ok(None) => {
                round += 1;
                packets.rewind()?;
                pacer.rewind();
                continue;
            }
            // The packets before the damage were sent, so report them.
            Err(ToolError::Capture(source)) => {
                damage = Some(source);
                break;
            }
            Err(error) => return Err(error),
        };
        if !pacer.wait(packet.at, &stop) {
            break;
        }
        sender.send(packet.payload)?;
        count += 1;
        bytes += packet.payload.len() as u64;
        let (position, size) = packets.progress();
        progress.show(position + (round - 1) * size.unwrap_or(0), || {
            let rate = rate(count, pacer.started_at.elapsed()) as u64;
            format!("{} packets, {} a second", thousands(count), thousands(rate))
        });
    }
    progress.finish();
    let mut faults = if whole { packets.faults() } else { Vec::new() };
    if whole && count == 0 {
        let text =
            "no packet of the recording could be sent: `tickcast inspect` says what it holds";
        faults.push(text.into());
    }
    let whole = whole && faults.is_empty();
    let mut summary = pacer.summary(count, bytes, sender.refused(), packets.passed_over(), whole);
    summary.faults = faults;
    summary.notes = packets.notes();
    summary.unstamped = packets.unstamped();
    print(&summary, args.json)?;
    if let Some(path) = &args.summary {
        write_json(path, &summary)?;
    }
    if let Some(source) = damage {
        let sent = count;
        return Err(ToolError::Damaged { source, sent });
    }
    if summary.refused > 0 && summary.refused + 1 >= count {
        let text = format!(
            "no process listens at {}; start the publisher first",
            args.to
        );
        return Err(ToolError::Unreachable(text));
    }
    Ok(Exit::whole_if(
        summary.refused == 0 && summary.faults.is_empty(),
    ))
}

fn print(summary: &Summary, json: bool) -> Result<(), ToolError> {
    let mut output = Output::stdout();
    if json {
        output.json(serde_json::json!(summary))?;
        return output.flush();
    }
    output.line(format_args!(
        "{} packets, {} bytes in {:.3} s: {} a second, {:.2} times as recorded",
        thousands(summary.packets),
        thousands(summary.bytes),
        summary.seconds,
        thousands(summary.packets_per_s as u64),
        summary.achieved_speed,
    ))?;
    if let (Some(p50), Some(p99), Some(max)) = (
        summary.late_p50_us,
        summary.late_p99_us,
        summary.late_max_us,
    ) {
        let [p50, p99, max] = [p50, p99, max].map(|us| span(us.saturating_mul(1_000)));
        output.line(format_args!("late by p50 {p50}, p99 {p99}, max {max}"))?;
    }
    if summary.capped_waits > 0 {
        output.line(format_args!(
            "{} waits were cut to --gap-max",
            thousands(summary.capped_waits)
        ))?;
    }
    for note in &summary.notes {
        output.line(format_args!("note: {note}"))?;
    }
    for fault in &summary.faults {
        output.line(format_args!("not whole: {fault}"))?;
    }
    let passed = &summary.passed_over;
    for (count, what) in [
        (summary.refused, "packets refused by the network"),
        (passed.truncated, "record cut off at the end of the file"),
        (passed.snapped, "truncated packets, not sent"),
        (passed.frames, "frames that are not UDP datagrams, not sent"),
        (
            passed.other_destination,
            "packets to other destinations, not sent",
        ),
        (
            summary.unstamped,
            "packets without the time stamp of --time, sent by the capture's time",
        ),
    ] {
        if count > 0 {
            output.line(format_args!("{} {what}", thousands(count)))?;
        }
    }
    output.flush()
}

/// Computes when each packet is due.
struct Pacer {
    speed: Speed,
    rate: Option<f64>,
    started_at: Instant,
    count: u64,
    /// The longest wait, in the recording's time.
    wait_max: Nanos,
    /// The recording's time, in this round.
    timeline: Timeline,
    /// Waits cut in earlier rounds.
    capped_earlier: u64,
    /// Duration of all earlier rounds.
    earlier: Nanos,
    /// Delays of packets behind their due time, in microseconds.
    late_us: Histogram<u64>,
}

impl Pacer {
    fn new(args: &Args) -> Result<Self, ToolError> {
        let late_us = Histogram::new(3).map_err(|error| ToolError::Host {
            what: "make a histogram",
            source: io::Error::other(error),
        })?;
        Ok(Self {
            speed: args.speed,
            rate: args.rate,
            started_at: Instant::now(),
            count: 0,
            wait_max: match args.speed {
                Speed::Times(times) if args.rate.is_none() => {
                    Nanos((args.gap_max * 1e9 * times) as u64)
                }
                _ => Nanos(u64::MAX),
            },
            timeline: Timeline::default(),
            capped_earlier: 0,
            earlier: Nanos::ZERO,
            late_us,
        })
    }

    fn rewind(&mut self) {
        self.earlier = self.recorded();
        self.capped_earlier += self.timeline.capped();
        self.timeline = Timeline::default();
    }

    const fn recorded(&self) -> Nanos {
        self.earlier.after(self.timeline.elapsed())
    }

    /// Returns when a packet recorded at `at` is due, since the first one; `None`: at once.
    fn due_after(&mut self, at: Nanos) -> Option<Duration> {
        self.timeline.advance(at, self.wait_max);
        let offset = match (self.rate, self.speed) {
            (Some(rate), _) => Some(self.count as f64 / rate),
            (None, Speed::Times(times)) => Some(self.recorded().0 as f64 / 1e9 / times),
            (None, Speed::Max) => None,
        };
        self.count += 1;
        Duration::try_from_secs_f64(offset?).ok()
    }

    /// Waits until a packet recorded at `at` is due. Returns `false` if a signal arrives first.
    fn wait(&mut self, at: Nanos, stop: &Stop) -> bool {
        if self.count == 0 {
            self.started_at = Instant::now();
        }
        let due = self.due_after(at);
        let Some(due) = due.and_then(|offset| self.started_at.checked_add(offset)) else {
            return true;
        };
        loop {
            let now = Instant::now();
            if now >= due {
                self.late_us
                    .saturating_record((now - due).as_micros() as u64);
                return true;
            }
            if stop.asked() {
                return false;
            }
            wait_a_little(due - now);
        }
    }

    fn summary(
        &self,
        packets: u64,
        bytes: u64,
        refused: u64,
        passed_over: PassedOver,
        whole: bool,
    ) -> Summary {
        let elapsed = self.started_at.elapsed();
        // A quantile is the upper bound of its bucket, which may exceed the longest delay.
        let late = |us: u64| (!self.late_us.is_empty()).then_some(us.min(self.late_us.max()));
        let recorded_seconds = self.recorded().0 as f64 / 1e9;
        Summary {
            packets,
            bytes,
            refused,
            passed_over,
            seconds: elapsed.as_secs_f64(),
            packets_per_s: rate(packets, elapsed),
            recorded_seconds,
            achieved_speed: recorded_seconds / elapsed.as_secs_f64().max(1e-9),
            late_p50_us: late(self.late_us.value_at_quantile(0.5)),
            late_p99_us: late(self.late_us.value_at_quantile(0.99)),
            late_max_us: late(self.late_us.max()),
            capped_waits: self.capped_earlier + self.timeline.capped(),
            unstamped: 0,
            faults: Vec::new(),
            notes: Vec::new(),
            whole,
        }
    }
}

/// Sleeps in short steps, so that a signal is noticed. Yields near the end of the wait, because a
/// sleep ends late.
fn wait_a_little(left: Duration) {
    const WAKES_LATE: Duration = Duration::from_micros(150);
    const PIECE: Duration = Duration::from_millis(50);
    match left.checked_sub(WAKES_LATE) {
        Some(long) => sleep(long.min(PIECE)),
        None => std::thread::yield_now(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        args: Args,
    }

    /// Returns when packets with these stamps, in seconds, are due, and the number of cut waits.
    fn due(options: &[&str], stamps: &[u64]) -> (Vec<Option<f64>>, u64) {
        let line = [&["replay", "day.pcap", "--to", "127.0.0.1:1"], options].concat();
        let mut pacer = Pacer::new(&CommandLine::parse_from(line).args).unwrap();
        let due = stamps.iter().map(|stamp| {
            let due = pacer.due_after(Nanos::from_secs(*stamp));
            due.map(|it| it.as_secs_f64())
        });
        (due.collect(), pacer.timeline.capped())
    }

    #[test]
    fn waits_of_a_paced_replay_are_cut_to_gap_max() {
        let stamps = [100, 102, 31_536_000, 103, 104, 115];
        let paced = |all: [f64; 6]| all.map(Some).to_vec();
        for (options, expected, capped) in [
            (&[][..], [0.0, 2.0, 12.0, 12.0, 13.0, 23.0], 2),
            (&["--gap-max", "20"], [0.0, 2.0, 22.0, 22.0, 23.0, 34.0], 1),
            // The bound is on the wait itself, at any speed.
            (
                &["--gap-max", "0.5", "--speed", "4"],
                [0.0, 0.5, 1.0, 1.0, 1.25, 1.75],
                2,
            ),
            (&["--rate", "2"], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5], 0),
        ] {
            assert_eq!(
                due(options, &stamps),
                (paced(expected), capped),
                "{options:?}"
            );
        }
        assert_eq!(due(&["--speed", "max"], &stamps), (vec![None; 6], 0));
    }

    #[test]
    fn speeds_are_positive_numbers_or_max() {
        assert_eq!(speed("max"), Ok(Speed::Max));
        assert_eq!(speed("2.5"), Ok(Speed::Times(2.5)));
        for wrong in ["0", "-1", "inf", "NaN", "fast"] {
            assert!(speed(wrong).is_err(), "{wrong}");
        }
    }
}
