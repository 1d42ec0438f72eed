//! An open input: packets come from a file, a simulation or a socket when they are due. They are
//! decoded, and the results are counted.

pub(crate) mod announced;
mod auto_format;
mod awaited;
mod live;
mod live_line;
pub(crate) mod queue;
mod read_clock;
pub(crate) mod record_socket;
mod silence;
mod unrecognised;

use std::net::SocketAddrV4;
use std::sync::Arc;

use tickcast_feeds::arbiter::Holding;
use tickcast_feeds::capture::account::{Account, Class};
use tickcast_feeds::capture::binary_file::BinaryFile;
use tickcast_feeds::instruments::Instruments;
use tickcast_feeds::itch::clock::SessionClock;
use tickcast_feeds::itch::{ItchDecoder, ItchSettings};
use tickcast_feeds::recording::{LATE, Recorded, Recording, RecordingError, Selection, Timeline};
use tickcast_feeds::simulator::Simulator;
use tickcast_feeds::source::{Decoder, Incident, Packet, ResumePoint, Sink};
use tickcast_feeds::venues::{Format, Settings};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, Now, SourcePosition};
use tickcast_transport::host::interface::Interface;

use self::awaited::Awaited;
use self::live::Live;
use crate::config::{CaptureConfig, InputConfig, InputFormat, Pace, SimulatorInputConfig};
use crate::error::PublisherError;
use crate::ingest::queue::Intake;
use crate::ingest::record_socket::RecordsInput;
use crate::plan::trade_date;
use crate::state::hearing::Silence;
use crate::state::source_loss::{SourceLoss, SourceLossReason};
use crate::state::{Shared, SourceCounters, SourceShared, thread};

/// Packets between two polls of the decoder's counts.
const TYPES_EVERY: u32 = 1024;
/// The longest wait for a packet of a paced file.
const WAIT_MAX: Nanos = Nanos::from_secs(10);
/// Index of the only feed that an input takes of its files.
const FEED: usize = 0;
/// First instrument id that is assigned; each input has its own range.
pub(crate) const INSTRUMENTS_PER_INPUT: u32 = 1 << 20;

/// The result of polling an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// A packet was taken in.
    Worked,
    /// Nothing is there or due.
    Idle,
    /// The input has ended.
    Ended,
}

/// An open input.
pub(crate) struct Input {
    shared: Arc<SourceShared>,
    packets: Packets,
    pacer: Pacer,
    /// `None` once the input has begun.
    awaited: Option<Awaited>,
    records_left: u64,
    since_types: u32,
    held: Held,
    is_held: bool,
    /// Last position that was sealed before; `None` once the input has passed it.
    behind: Option<SourcePosition>,
    /// Line and receive time of a file's packets that are not of its feed, until they are accounted for.
    refused: Vec<(usize, Nanos)>,
}

/// A packet that waits until it is due.
#[derive(Default)]
struct Held {
    bytes: Vec<u8>,
    received_at: Nanos,
    /// Time of the recording or simulation, since its first packet once the pacer has seen it.
    at: Nanos,
    /// For messages of a file: their number, and the ordinal of their session.
    sequence: u64,
    session: u16,
    /// The line of the packet.
    line: usize,
    /// Whether bytes before it were lost, and no number tells what they held.
    follows_damage: bool,
}

enum Packets {
    Capture(Box<Recording>, Box<dyn Decoder>),
    BinaryFile(Box<BinaryFile>, Box<ItchDecoder>),
    Simulator(Box<Simulator>, Box<dyn Decoder>, Nanos),
    Udp(Box<Live>),
    Records(Box<RecordsInput>),
}

impl Packets {
    /// Returns the number of lines; 0 for a kind that has none.
    fn lines(&self) -> usize {
        match self {
            Self::Capture(recording, _) => recording.lines(),
            Self::Udp(live) => live.lines.len(),
            Self::BinaryFile(..) | Self::Simulator(..) | Self::Records(_) => 0,
        }
    }
}

impl Input {
    /// Opens an input, the `index`-th of the config. Returns `None` for a kind that has nothing to
    /// open.
    ///
    /// # Errors
    /// Returns [`PublisherError`] with the source and the cause, if its file, socket or settings
    /// are wrong.
    pub(crate) fn open(
        config: &InputConfig,
        index: usize,
        interface: &Interface,
    ) -> Result<Option<Self>, PublisherError> {
        let at = format!("inputs[{index}]");
        let settings = |date: Option<&str>| -> Result<Settings, PublisherError> {
            let first_id = instrument_base(index);
            Ok(Settings {
                instruments: Instruments::new(first_id, Instruments::DEFAULT_LIMIT),
                itch: ItchSettings {
                    trade_date: trade_date(date, &at)?,
                    ..ItchSettings::default()
                },
                lines: 1,
                holding: Some(Holding::NONE),
            })
        };
        let (packets, pace, records_max) = match config {
            InputConfig::Capture(input) => {
                let packets = open_file(input, settings(input.trade_date.as_deref())?)?;
                (packets, input.pace, input.records_max)
            }
            InputConfig::Simulator(input) => {
                let packets = open_simulator(input, settings(Some(&input.trade_date))?)?;
                (packets, input.pace, input.records_max)
            }
            InputConfig::Udp(input) => {
                let live = Live::open(input, interface, settings(input.trade_date.as_deref())?)?;
                (Packets::Udp(Box::new(live)), Pace::Max, None)
            }
            InputConfig::Records(input) => {
                let opened = RecordsInput::open(&input.socket);
                let opened = opened.map_err(|source| PublisherError::Socket {
                    source_id: input.source.0,
                    path: input.socket.clone(),
                    source,
                })?;
                (Packets::Records(Box::new(opened)), Pace::Max, None)
            }
            InputConfig::Own(_) => return Ok(None),
        };
        let shared = SourceShared::new(config.source(), packets.lines());
        let shared = match &packets {
            Packets::Udp(_) => shared.heard_since(thread::now().monotonic),
            _ => shared,
        };
        Ok(Some(Self {
            shared: Arc::new(shared),
            packets,
            pacer: Pacer::new(pace),
            awaited: config.wait_for_subscribers().cloned().map(Awaited::new),
            records_left: records_max.unwrap_or(u64::MAX),
            since_types: 0,
            held: Held::default(),
            is_held: false,
            behind: None,
            refused: Vec::new(),
        }))
    }

    /// Marks everything up to this position as sealed before: it is read without pacing and without
    /// waiting for subscribers.
    pub(crate) fn go_on_behind(&mut self, last: SourcePosition) {
        self.awaited = None;
        self.behind = Some(last);
    }

    /// Continues a live source of an earlier publisher. Call it before the first poll.
    pub(crate) fn resume(&mut self, format: Format, at: &ResumePoint) {
        if let Packets::Udp(live) = &mut self.packets {
            live.resume(format, at);
        }
    }

    /// Begins at once, without waiting for subscribers.
    pub(crate) fn wait_for_nobody(&mut self) {
        self.awaited = None;
    }

    /// Returns the source's shared state.
    #[must_use]
    pub(crate) const fn shared(&self) -> &Arc<SourceShared> {
        &self.shared
    }

    /// Returns whether the input must never block.
    #[must_use]
    pub(crate) const fn is_live(&self) -> bool {
        matches!(self.packets, Packets::Udp(_) | Packets::Records(_))
    }

    /// Returns the addresses of a live input's lines, with the ports that the system chose.
    #[must_use]
    pub(crate) fn listen_addresses(&self) -> Vec<SocketAddrV4> {
        match &self.packets {
            Packets::Udp(live) => {
                let lines = live.lines.iter();
                lines
                    .filter_map(|line| line.socket.local_address())
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns the settings that could not be applied as configured, for the log.
    #[must_use]
    pub(crate) fn warnings(&self) -> Vec<String> {
        match &self.packets {
            Packets::Udp(live) => {
                let lines = live.lines.iter();
                lines.flat_map(|line| line.socket.warnings()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Takes the next packet that is due (of a socket: the packets that have arrived). Never waits.
    ///
    /// # Errors
    /// Returns [`PublisherError::Capture`] or [`PublisherError::Receive`] if reading fails; the
    /// input has then ended.
    pub(crate) fn poll(
        &mut self,
        now: Now,
        shared: &Shared,
        sink: &mut dyn Intake,
    ) -> Result<Polled, PublisherError> {
        if let Some(awaited) = &mut self.awaited {
            if !awaited.are_here(now.monotonic, shared) {
                return Ok(Polled::Idle);
            }
            self.awaited = None;
        }
        let polled = match &mut self.packets {
            Packets::Udp(live) => live.poll(now, &self.shared, sink),
            Packets::Records(records) => {
                let counters = &self.shared.counters;
                let mut all = u64::MAX;
                let mut sink = Counting {
                    counters,
                    records_left: &mut all,
                    refused: None,
                    out: sink,
                };
                let polled = records.poll(counters, &mut sink);
                polled.map_err(|source| PublisherError::Accept {
                    source_id: self.shared.source.0,
                    source,
                })
            }
            _ => self.recorded(now, sink),
        };
        self.since_types += 1;
        if self.since_types >= TYPES_EVERY || !matches!(polled, Ok(Polled::Worked)) {
            self.since_types = 0;
            self.show();
        }
        match &polled {
            Ok(Polled::Ended) => {
                self.shared.counters.source_ended.set(1);
                self.report_faults();
            }
            Err(_) => {
                self.shared.counters.source_errors.increment();
                self.shared.counters.source_ended.set(1);
                self.finish(true, sink);
                self.report_faults();
            }
            Ok(_) => {}
        }
        polled
    }

    fn recorded(&mut self, now: Now, sink: &mut dyn Intake) -> Result<Polled, PublisherError> {
        if self.records_left == 0 {
            return Ok(Polled::Ended);
        }
        if !self.is_held {
            if !self.next_packet()? {
                self.finish(false, sink);
                return Ok(Polled::Ended);
            }
            self.held.at = self.pacer.advance(self.held.at);
            let capped = self.pacer.timeline.capped();
            self.shared.counters.source_capped_waits.set(capped);
        }
        self.is_held = true;
        let counters = &self.shared.counters;
        let is_behind = self.behind.is_some();
        if !is_behind
            && !self
                .pacer
                .is_due(now.monotonic, self.held.at, counters.source_messages.get())
        {
            return Ok(Polled::Idle);
        }
        self.is_held = false;
        let mut passing = Passing {
            behind: &mut self.behind,
            out: sink,
        };
        let out: &mut dyn Intake = if is_behind { &mut passing } else { passing.out };
        let mut sink = Counting {
            counters,
            records_left: &mut self.records_left,
            refused: Some(&mut self.refused),
            out,
        };
        let before = (taken(counters), counters.source_malformed.get());
        counters.source_packets.increment();
        counters.source_bytes.add(self.held.bytes.len() as u64);
        let packet = Packet {
            received_at: self.held.received_at,
            payload: &self.held.bytes,
        };
        match &mut self.packets {
            Packets::Capture(_, decoder) | Packets::Simulator(_, decoder, _) => {
                if self.held.follows_damage {
                    decoder.unreadable(&mut sink);
                }
                decoder.line_packet(self.held.line, self.held.at, packet, &mut sink);
            }
            Packets::BinaryFile(_, decoder) => {
                let held = &self.held;
                if held.follows_damage {
                    decoder.unreadable(&mut sink);
                }
                let position = SourcePosition::new(held.session, held.sequence);
                decoder.message(position, held.received_at, packet.payload, &mut sink);
            }
            Packets::Udp(_) | Packets::Records(_) => {}
        }
        let is_malformed = counters.source_malformed.get() > before.1;
        if !self.refused.is_empty() || is_malformed {
            let is_unread = is_malformed && taken(counters) == before.0;
            account_for_refused(&mut self.packets, &mut self.refused, is_unread);
        }
        if is_behind && self.behind.is_none() {
            self.pacer
                .begin(now.monotonic, self.held.at, counters.source_messages.get());
        }
        Ok(Polled::Worked)
    }

    /// Ends an input that is stopped before its end. A live input decodes what still waits, because it would
    /// be lost. A file is read again from its last sealed message.
    pub(crate) fn stop(&mut self, sink: &mut dyn Intake) {
        if self.is_live() {
            self.finish(false, sink);
        }
    }

    /// Decodes what still waits for packets that will not come, and reports the rest of a file that could
    /// not be read.
    fn finish(&mut self, has_failed: bool, sink: &mut dyn Intake) {
        if let Packets::Udp(live) = &mut self.packets {
            return live.finish(&self.shared, sink);
        }
        let (decoder, is_damaged): (&mut dyn Decoder, bool) = match &mut self.packets {
            Packets::Capture(recording, decoder) => (&mut **decoder, recording.ends_in_damage()),
            Packets::BinaryFile(file, decoder) => (&mut **decoder, file.follows_damage()),
            Packets::Simulator(_, decoder, _) => (&mut **decoder, false),
            Packets::Udp(_) | Packets::Records(_) => return,
        };
        let is_cut = self.records_left == 0;
        let mut passing = Passing {
            behind: &mut self.behind,
            out: sink,
        };
        let mut sink = Counting {
            counters: &self.shared.counters,
            records_left: &mut self.records_left,
            refused: Some(&mut self.refused),
            out: &mut passing,
        };
        decoder.finish(&mut sink);
        if (is_damaged || has_failed) && !is_cut {
            decoder.unreadable(&mut sink);
        }
        account_for_refused(&mut self.packets, &mut self.refused, false);
    }

    /// Replaces a simulator's decoder, to test the effect of decoder bugs.
    #[cfg(test)]
    pub(crate) fn decode_with(&mut self, other: Box<dyn Decoder>) {
        if let Packets::Simulator(_, decoder, _) = &mut self.packets {
            *decoder = other;
        }
    }

    /// Reads the next packet into `held`; `false` at the end.
    fn next_packet(&mut self) -> Result<bool, PublisherError> {
        let held = &mut self.held;
        let failed = |source| PublisherError::Capture {
            source_id: self.shared.source.0,
            source,
        };
        held.bytes.clear();
        match &mut self.packets {
            Packets::Capture(recording, _) => {
                let Some(packet) = recording.next().map_err(failed)? else {
                    return Ok(false);
                };
                held.bytes.extend_from_slice(packet.payload);
                (held.received_at, held.at) = (packet.received_at, packet.at);
                held.line = packet.line;
                held.follows_damage = packet.follows_damage;
            }
            Packets::BinaryFile(file, _) => {
                let Some(message) = file.next().map_err(failed)? else {
                    return Ok(false);
                };
                held.bytes.extend_from_slice(message);
                held.at = Nanos(itch_time(message));
                held.sequence = file.sequence();
                held.session = file.session();
                held.follows_damage = file.follows_damage();
            }
            Packets::Simulator(simulator, _, begins_at) => {
                let Some(packet) = simulator.next_packet() else {
                    return Ok(false);
                };
                held.bytes.extend_from_slice(packet.payload);
                held.received_at = begins_at.after(packet.at);
                // Never 0, which would mean "unknown".
                held.at = Nanos(packet.at.0 + 1);
            }
            Packets::Udp(_) | Packets::Records(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Logs and counts the reasons why a file that was read to its end is not whole.
    /// Logs what leaves the file whole too: times that can't be right, and further files within it.
    fn report_faults(&self) {
        let counters = &self.shared.counters;
        let malformed = counters.source_malformed.get();
        let (mut faults, notes, malformed) = match &self.packets {
            _ if self.records_left == 0 => return,
            Packets::Capture(recording, _) => (recording.faults(), recording.notes(), malformed),
            // It names its damage itself.
            Packets::BinaryFile(file, _) => (file.faults(), file.notes(), 0),
            _ => return,
        };
        for (count, what) in [
            (
                counters.source_conflicting.get(),
                "messages differ from earlier ones under the same numbers",
            ),
            (
                counters.source_unknown_messages.get(),
                "messages of unknown types are left out",
            ),
            (
                counters.source_foreign.get(),
                "packets to the feed's destinations are not of the feed",
            ),
            (counters.source_late.get(), LATE),
            (malformed, "packets or messages can't be read"),
        ] {
            if count > 0 {
                faults.push(format!("{count} {what}"));
            }
        }
        for note in notes {
            tracing::info!(source = self.shared.source.0, "{note}");
        }
        counters.source_faults.set(faults.len() as u64);
        for fault in faults {
            tracing::warn!(source = self.shared.source.0, "{fault}");
        }
    }

    /// Publishes the counts of reader and decoder.
    fn show(&self) {
        let counters = &self.shared.counters;
        match &self.packets {
            Packets::Capture(recording, decoder) => {
                self.shared.set_types(decoder.counts());
                self.shared.set_lines(&**decoder);
                let stats = recording.stats();
                counters.source_truncated.set(stats.truncated);
                counters.source_snapped.set(stats.snapped);
                counters.source_unstamped.set(stats.unstamped);
                counters.source_skipped_frames.set(stats.skipped());
                show_account(counters, &stats.account);
            }
            Packets::BinaryFile(file, decoder) => {
                self.shared.set_types(decoder.counts());
                let stats = file.stats();
                counters.source_truncated.set(stats.truncated);
                counters.source_duplicates.set(stats.repeated);
                show_account(counters, &stats.account);
            }
            Packets::Simulator(_, decoder, _) => self.shared.set_types(decoder.counts()),
            Packets::Udp(live) => {
                if let Some(decoder) = &live.decoder {
                    self.shared.set_types(decoder.counts());
                    self.shared.set_lines(&**decoder);
                }
                let (dropped, strangers) = (
                    live.count(|it| it.buffer_drops),
                    live.count(|it| it.unknown_senders),
                );
                counters.source_kernel_dropped.set(dropped);
                counters.source_oversize.set(live.count(|it| it.oversize));
                counters.source_unknown_senders.set(strangers);
                self.shared.set_foreign(&live.foreign);
            }
            Packets::Records(_) => {}
        }
    }
}

/// Accounts for the packets of a file that are not of its feed, and for the last one if its decoder could
/// read nothing of it.
#[cold]
fn account_for_refused(
    packets: &mut Packets,
    refused: &mut Vec<(usize, Nanos)>,
    is_last_unread: bool,
) {
    let refused = refused.drain(..);
    if let Packets::Capture(recording, _) = packets {
        for (line, received_at) in refused {
            recording.refuse(FEED, line, received_at);
        }
        if is_last_unread {
            recording.refuse_last();
        }
    }
}

/// Returns the messages that packets brought, new or not.
fn taken(counters: &SourceCounters) -> u64 {
    let new = counters.source_messages.get() + counters.source_unknown_messages.get();
    new + counters.source_duplicates.get() + counters.source_late.get()
}

fn show_account(counters: &SourceCounters, account: &Account) {
    let frames = |class| account.class(class).frames;
    counters.source_used_frames.set(frames(Class::Used));
    counters.source_harmless_frames.set(frames(Class::Harmless));
    counters.source_foreign_frames.set(frames(Class::Foreign));
    counters.source_damaged_frames.set(frames(Class::Damaged));
    let damaged = account.class(Class::Damaged).bytes;
    counters.source_damaged_bytes.set(damaged);
}

/// Returns the first instrument id of the `index`-th input.
#[must_use]
pub(crate) const fn instrument_base(index: usize) -> u32 {
    index as u32 * INSTRUMENTS_PER_INPUT + 1
}

/// Returns ITCH's nanoseconds since midnight, from bytes 5 to 10 of every message; 0 if it is
/// shorter.
fn itch_time(message: &[u8]) -> u64 {
    let stamp = message.get(5..11).unwrap_or_default();
    stamp
        .iter()
        .fold(0, |time, byte| time << 8 | u64::from(*byte))
}

fn open_file(input: &CaptureConfig, settings: Settings) -> Result<Packets, PublisherError> {
    let source_id = input.source.0;
    let failed = |error: RecordingError| match error {
        RecordingError::Capture(source) => PublisherError::Capture { source_id, source },
        source => PublisherError::Recording { source_id, source },
    };
    let selection = Selection {
        only: input.only.clone(),
        all_feeds: input.all_feeds,
        time: input.time,
    };
    let recorded = match (input.format, &input.files[..]) {
        (InputFormat::BinaryFile, [file]) => Recorded::messages(file, &selection),
        (format, files) => Recorded::open(files, &selection, format.of_packets()),
    };
    Ok(match recorded.map_err(failed)? {
        Recorded::Messages(file) => {
            let decoder = ItchDecoder::new(settings.itch);
            Packets::BinaryFile(file, Box::new(decoder))
        }
        Recorded::Packets(recording) => {
            let decoder = recording.format().decoder(Settings {
                lines: recording.lines(),
                holding: Some(input.holding()),
                ..settings
            });
            Packets::Capture(recording, decoder)
        }
    })
}

fn open_simulator(
    input: &SimulatorInputConfig,
    settings: Settings,
) -> Result<Packets, PublisherError> {
    let simulator = Simulator::new(&input.market, input.seed);
    let simulator = simulator.map_err(|source| PublisherError::Simulator {
        source_id: input.source.0,
        source,
    })?;
    let begins_at_ns = u64::from(input.market.begins_at_s) * 1_000_000_000;
    let clock = SessionClock::new(settings.itch.trade_date, Nanos::ZERO);
    let begins_at = Nanos(clock.utc(begins_at_ns));
    let decoder = Format::MoldUdp64Itch50.decoder(settings);
    Ok(Packets::Simulator(Box::new(simulator), decoder, begins_at))
}

/// Detects when the input passes the last message that was sealed before.
struct Passing<'a> {
    behind: &'a mut Option<SourcePosition>,
    out: &'a mut dyn Intake,
}

impl Passing<'_> {
    fn pass(&mut self, position: SourcePosition) {
        if self.behind.is_some_and(|last| position >= last) {
            *self.behind = None;
        }
    }
}

impl Intake for Passing<'_> {
    fn lost(&mut self, loss: SourceLoss) {
        self.pass(loss.last());
        self.out.lost(loss);
    }

    fn silence(&mut self, silence: Silence) {
        self.out.silence(silence);
    }
}

impl Sink for Passing<'_> {
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        self.pass(position);
        self.out.message(position, records);
    }

    fn incident(&mut self, incident: Incident) {
        self.out.incident(incident);
    }
}

/// Counts records, and stops at the configured maximum.
struct Counting<'a> {
    counters: &'a SourceCounters,
    records_left: &'a mut u64,
    /// Takes line and receive time of a file's packets that are not of the feed.
    refused: Option<&'a mut Vec<(usize, Nanos)>>,
    out: &'a mut dyn Intake,
}

impl Intake for Counting<'_> {
    fn lost(&mut self, loss: SourceLoss) {
        match loss.reason {
            SourceLossReason::Gap => {
                self.counters.source_gaps.increment();
                (self.counters.source_missing_messages).add(loss.known_messages());
            }
            _ => self.counters.source_malformed.increment(),
        }
        self.out.lost(loss);
    }

    fn silence(&mut self, silence: Silence) {
        self.out.silence(silence);
    }
}

impl Sink for Counting<'_> {
    #[inline]
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        if *self.records_left == 0 {
            return;
        }
        *self.records_left = self.records_left.saturating_sub(records.len() as u64);
        self.counters.source_messages.increment();
        self.counters.source_records.add(records.len() as u64);
        self.out.message(position, records);
    }

    fn incident(&mut self, incident: Incident) {
        let c = self.counters;
        match incident {
            Incident::Gap { from, missing } => {
                c.source_gaps.increment();
                let known = SourceLoss::gap(from, missing).known_messages();
                c.source_missing_messages.add(known);
            }
            Incident::Unreadable { from } => {
                return self.lost(SourceLoss::malformed(from, u64::MAX));
            }
            Incident::UnreadableMessage { position, .. } => {
                return self.lost(SourceLoss::malformed(position, 1));
            }
            Incident::SequenceReset { .. } => c.source_resets.increment(),
            Incident::SessionChange { .. } => c.source_session_changes.increment(),
            Incident::EndOfSession => c.source_session_ends.increment(),
            Incident::Duplicate { messages } => c.source_duplicates.add(messages),
            Incident::Late { messages } => c.source_late.add(messages),
            Incident::Conflicting { messages } => c.source_conflicting.add(messages),
            Incident::Foreign {
                origin,
                received_at,
                ..
            } => {
                c.source_foreign.increment();
                if let Some(refused) = &mut self.refused {
                    refused.push((origin.line.into(), received_at));
                }
            }
            Incident::LineStopped { .. } => c.source_line_stops.increment(),
            Incident::Malformed { .. } => c.source_malformed.increment(),
            Incident::UnknownMessage { .. } => c.source_unknown_messages.increment(),
            Incident::UnknownOrder => c.source_unknown_orders.increment(),
            Incident::Saturated => c.source_saturated.increment(),
            _ => {}
        }
        self.out.incident(incident);
    }
}

/// Computes when a recorded packet is due.
struct Pacer {
    pace: Pace,
    /// The current time, the recording's time and the message count when the first packet was
    /// requested.
    began: Option<(Nanos, Nanos, u64)>,
    timeline: Timeline,
}

impl Pacer {
    fn new(pace: Pace) -> Self {
        Self {
            pace,
            began: None,
            timeline: Timeline::default(),
        }
    }

    /// Returns the recording's time of a packet that was just read.
    fn advance(&mut self, at: Nanos) -> Nanos {
        let wait_max = match self.pace {
            Pace::Times(times) => Nanos((WAIT_MAX.0 as f64 * times) as u64),
            Pace::Max | Pace::MessagesPerS(_) => Nanos(u64::MAX),
        };
        self.timeline.advance(at, wait_max)
    }

    /// Starts the schedule here.
    const fn begin(&mut self, now: Nanos, at: Nanos, messages: u64) {
        self.began = Some((now, at, messages));
    }

    fn is_due(&mut self, now: Nanos, at: Nanos, messages: u64) -> bool {
        let (began, first, before) = *self.began.get_or_insert((now, at, 0));
        let wait = match self.pace {
            Pace::Max => return true,
            Pace::Times(times) if at > first => (at.since(first).0 as f64 / times) as u64,
            Pace::Times(_) => 0,
            Pace::MessagesPerS(rate) => {
                let messages = u128::from(messages.saturating_sub(before));
                let wait = messages * 1_000_000_000 / u128::from(rate.max(1));
                u64::try_from(wait).unwrap_or(u64::MAX)
            }
        };
        now >= began.after(Nanos(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_is_paced_by_its_timestamps() {
        let mut pacer = Pacer::new(Pace::Times(2.0));
        let s = Nanos::from_secs;
        assert!(pacer.is_due(s(100), s(5), 0));
        assert!(!pacer.is_due(s(100), s(9), 1));
        assert!(!pacer.is_due(Nanos(s(102).0 - 1), s(9), 1));
        assert!(pacer.is_due(s(102), s(9), 1));
        assert!(pacer.is_due(s(102), s(4), 2), "a time that steps back");
    }

    #[test]
    fn message_rate_pace_holds_on_average() {
        let mut pacer = Pacer::new(Pace::MessagesPerS(1000));
        let mut messages = 0;
        for ms in 0..500 {
            while pacer.is_due(Nanos::from_ms(ms), Nanos(1), messages) {
                messages += 1;
            }
        }
        assert_eq!(messages, 500);
    }
}
