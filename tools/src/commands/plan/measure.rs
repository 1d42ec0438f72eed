//! The load of a recording: its feed is decoded and packed as a publisher does, at the recorded times.

use std::path::PathBuf;

use tickcast_feeds::itch::ItchDecoder;
use tickcast_feeds::recording::{Feed, Recorded, RecordingError, Selection};
use tickcast_feeds::source::{Incident, Packet, Sink};
use tickcast_feeds::venues::{Format, Settings};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, SourcePosition};
use tickcast_reliability::wire::HEADER_LEN;

use super::peaks::{Load, Peak};
use tickcast_tools::exit::ToolError;
use tickcast_tools::support::packets::stamp;

/// The lengths of the windows: those of bursts, the longest pause of a thread, and a second.
pub(super) const WINDOWS: [Nanos; 4] = [
    Nanos::from_us(100),
    Nanos::from_ms(1),
    Nanos::from_ms(10),
    Nanos::from_secs(1),
];

/// The load of a recording.
#[derive(Debug)]
pub(super) struct Measured {
    /// The feed, and the format of its packets if it has any.
    pub name: String,
    pub format: Option<Format>,
    /// The feed in a capture; `None` for a file of messages.
    pub feed: Option<Feed>,
    /// Everything.
    pub total: Load,
    /// From the first arrival to the last.
    pub length: Nanos,
    /// The peaks over each of [`WINDOWS`], then over the stall.
    pub peaks: Vec<Peak>,
    /// Messages longer than a datagram, which no publisher sends.
    pub oversize: u64,
    /// Messages that the recording lacks.
    pub missing: u64,
    /// Reasons why the recording is not whole.
    pub faults: Vec<String>,
}

/// Measures files at `rate` times their speed, in slots of `slot_len` bytes.
///
/// # Errors
/// Returns [`ToolError`] if a file can't be read, or the files hold several feeds and none is chosen.
pub(super) fn measure(
    files: &[PathBuf],
    selection: &Selection,
    format: Option<Format>,
    rate: f64,
    stall: Nanos,
    slot_len: u32,
) -> Result<Measured, ToolError> {
    let recorded = Recorded::open(files, selection, format).map_err(|error| match error {
        RecordingError::Capture(source) => ToolError::Capture(source),
        RecordingError::Choice { .. } => ToolError::Usage(format!("{error}: --only DESTINATION")),
        RecordingError::NotThere { .. } | RecordingError::NoPackets { .. } => {
            ToolError::Usage(error.to_string())
        }
        other => ToolError::Problem(other.to_string()),
    })?;
    let mut meter = Meter::new(rate, stall, slot_len);
    match recorded {
        Recorded::Packets(mut recording) => {
            let feed = recording.feeds().first().cloned();
            let mut decoder = feed.as_ref().map(|feed| {
                feed.format.decoder(Settings {
                    lines: feed.lines.len(),
                    holding: Some(tickcast_feeds::arbiter::Holding::RECORDED),
                    ..Settings::default()
                })
            });
            let mut failed = Vec::new();
            loop {
                let packet = match recording.next() {
                    Ok(Some(packet)) => packet,
                    Ok(None) => break,
                    Err(error) => {
                        failed.push(error.to_string());
                        continue;
                    }
                };
                let (at, len) = (packet.at, packet.payload.len());
                if let Some(decoder) = &mut decoder {
                    let of_feed = Packet {
                        received_at: packet.received_at,
                        payload: packet.payload,
                    };
                    decoder.line_packet(packet.line, at, of_feed, &mut meter);
                }
                meter.arrived(at, len);
            }
            if let Some(decoder) = &mut decoder {
                decoder.finish(&mut meter);
            }
            let mut faults = recording.faults();
            faults.append(&mut failed);
            let name = feed
                .as_ref()
                .map_or_else(|| "no feed".into(), ToString::to_string);
            Ok(meter.finish(name, feed, faults))
        }
        Recorded::Messages(mut file) => {
            let mut decoder = ItchDecoder::new(Settings::default().itch);
            let mut failed = None;
            loop {
                let message = match file.next() {
                    Ok(Some(message)) => message.to_vec(),
                    Ok(None) => break,
                    Err(error) => {
                        failed = Some(error.to_string());
                        break;
                    }
                };
                let position = SourcePosition::new(file.session(), file.sequence());
                decoder.message(position, Nanos::ZERO, &message, &mut meter);
                meter.arrived(stamp(&message), message.len());
            }
            let mut faults = file.faults();
            faults.extend(failed);
            Ok(meter.finish("a file of ITCH 5.0".into(), None, faults))
        }
    }
}

/// Packs messages into datagrams like a publisher: whole messages share one until nothing more waits, which
/// is so after each packet.
struct Meter {
    rate: f64,
    payload_max: usize,
    /// Bytes in the open datagram; 0 for none.
    open: usize,
    arriving: Load,
    total: Load,
    first: Option<Nanos>,
    last: Nanos,
    peaks: Vec<Peak>,
    oversize: u64,
    missing: u64,
}

impl Meter {
    fn new(rate: f64, stall: Nanos, slot_len: u32) -> Self {
        let windows = WINDOWS.into_iter().chain([stall]);
        Self {
            rate,
            payload_max: slot_len as usize - HEADER_LEN,
            open: 0,
            arriving: Load::default(),
            total: Load::default(),
            first: None,
            last: Nanos::ZERO,
            peaks: windows.map(Peak::over).collect(),
            oversize: 0,
            missing: 0,
        }
    }

    /// Ends an arrival of `len` bytes. Its records leave at once, so its last datagram is closed.
    fn arrived(&mut self, at: Nanos, len: usize) {
        self.open = 0;
        let mut load = std::mem::take(&mut self.arriving);
        load.packets += 1;
        load.packet_bytes += len as u64;
        self.total += load;
        let first = *self.first.get_or_insert(at);
        // A file of messages may step back a little, and a faster replay has shorter steps.
        let at = Nanos((at.since(first).0 as f64 / self.rate) as u64).max(self.last);
        self.last = at;
        self.peaks.iter_mut().for_each(|peak| peak.add(at, load));
    }

    fn finish(self, name: String, feed: Option<Feed>, faults: Vec<String>) -> Measured {
        Measured {
            name,
            format: feed.as_ref().map(|feed| feed.format),
            feed,
            total: self.total,
            length: self.last,
            peaks: self.peaks,
            oversize: self.oversize,
            missing: self.missing,
            faults,
        }
    }
}

impl Sink for Meter {
    fn message(&mut self, _: SourcePosition, records: &RecordBatch) {
        let len = records.bytes().len();
        if len > self.payload_max {
            self.oversize += 1;
            return;
        }
        if self.open == 0 || self.open + len > self.payload_max {
            self.arriving.datagrams += 1;
            self.arriving.datagram_bytes += HEADER_LEN as u64;
            self.open = 0;
        }
        self.open += len;
        self.arriving.datagram_bytes += len as u64;
        self.arriving.messages += 1;
        self.arriving.records += records.records().count() as u64;
    }

    fn incident(&mut self, incident: Incident) {
        if let Incident::Gap { missing, .. } = incident {
            self.missing = self.missing.saturating_add(missing);
        }
    }
}
