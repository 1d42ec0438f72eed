//! A live input: packets of a venue from a socket. It also tracks the packets that the kernel
//! dropped before they were read: such a loss is of this host, and no gap of the venue.

use std::net::Ipv4Addr;

use tickcast_feeds::capture::guess::Guess;
use tickcast_feeds::source::{
    Decoder, FeedSession, Incident, Packet, PacketOrigin, ResumePoint, Sink,
};
use tickcast_feeds::venues::{Format, Settings};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, Now, SourcePosition};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{FeedReceiver, FeedReceiverConfig};

use super::silence::SilenceJudge;
use super::{Counting, Polled};
use crate::config::{InputLineConfig, UdpInputConfig};
use crate::error::PublisherError;
use crate::ingest::queue::Intake;
use crate::state::SourceShared;
use crate::state::foreign::ForeignTable;
use crate::state::hearing::Silence;
use crate::state::source_loss::{SourceLoss, Unread};
use crate::state::thread;

/// A gap is reported within this time after the drops that caused it.
const EXPLAINS: Nanos = Nanos::from_ms(100);
/// A line that hears nothing for this long is reported.
const SILENT: Nanos = Nanos::from_ms(5_000);
/// Number of packets that are not recognised until they are reported at once, and the bytes shown of the
/// last. Fewer are reported after [`SILENT`].
const UNRECOGNISED: u64 = 100;
const HEAD_LEN: usize = 24;
/// Packets in a row of another format, while none is decoded, after which an input of format `auto`
/// follows it. An input that decoded as many messages keeps its format.
const OTHER_FORMAT_PACKETS: usize = 3;
/// A read pause of at least this length is reported when packets were dropped.
const PAUSE: Nanos = Nanos::from_ms(1);

/// The open sockets of a venue's lines.
pub(super) struct Live {
    pub(super) lines: Vec<LiveLine>,
    pub(super) decoder: Option<Box<dyn Decoder>>,
    /// The format of the decoder.
    format: Option<Format>,
    /// The place of an earlier decoder of that format, until a packet shows that the source still has it.
    unconfirmed: Option<ResumePoint>,
    /// Heartbeats before the format was known.
    heartbeats: u64,
    /// The session that was remembered last.
    session: Option<FeedSession>,
    settings: Settings,
    config: UdpInputConfig,
    unrecognised: Unrecognised,
    other_format: OtherFormat,
    /// Packets of no feed that is followed.
    pub(super) foreign: ForeignTable,
    judge: SilenceJudge,
    /// Whether the venue has ended its session, so that silence is right.
    is_session_over: bool,
}

/// One line of a live input.
pub(super) struct LiveLine {
    pub(super) receiver: FeedReceiver,
    /// The sender that the decoder knows.
    sender: Option<Ipv4Addr>,
    drops: Drops,
    log: LineLog,
}

impl Live {
    /// Opens a socket for each line.
    pub(super) fn open(
        input: &UdpInputConfig,
        interface: &Interface,
        settings: Settings,
    ) -> Result<Self, PublisherError> {
        let open = |line: &InputLineConfig| -> Result<LiveLine, PublisherError> {
            let receiver = FeedReceiver::open(&receiver_config(input, line, interface));
            let receiver = receiver.map_err(|source| PublisherError::Listening {
                source_id: input.source.0,
                source,
            })?;
            let on = line.interface.as_ref().unwrap_or(interface);
            Ok(LiveLine {
                receiver,
                sender: None,
                drops: Drops::default(),
                log: LineLog::new(format!("{} on interface {on}", line.listen)),
            })
        };
        let settings = Settings {
            lines: input.lines.len(),
            ..settings
        };
        let lines: Vec<_> = input.lines.iter().map(open).collect::<Result<_, _>>()?;
        let destinations = input.lines.iter().zip(&lines).map(|(config, line)| {
            // The system may have chosen the port.
            line.receiver.local_address().unwrap_or(config.listen)
        });
        Ok(Self {
            foreign: ForeignTable::new(destinations.collect()),
            lines,
            decoder: (input.format.of_packets()).map(|format| decoder(format, input, &settings)),
            format: input.format.of_packets(),
            unconfirmed: None,
            heartbeats: 0,
            session: None,
            settings,
            config: input.clone(),
            unrecognised: Unrecognised::default(),
            other_format: OtherFormat::default(),
            judge: SilenceJudge::new(input.format.of_packets(), thread::now()),
            is_session_over: false,
        })
    }

    /// Continues in place of an earlier decoder. A format that is not configured is detected anew; where it
    /// is another one, the source goes on in another session.
    pub(super) fn resume(&mut self, format: Format, at: &ResumePoint) {
        let mut decoder = decoder(format, &self.config, &self.settings);
        decoder.resume(at);
        self.decoder = Some(decoder);
        let is_configured = self.format == Some(format);
        self.unconfirmed = (!is_configured).then(|| at.clone());
        self.format = Some(format);
        self.judge.set_format(format);
        self.judge.resume();
    }

    /// Remembers a new session for a later publisher.
    fn remember(&mut self, shared: &SourceShared) {
        let session = self.decoder.as_ref().and_then(|it| it.session());
        if session != self.session {
            self.session = session;
            if let (Some(memory), Some(format)) = (shared.memory.get(), self.format) {
                memory.follow(format, session);
            }
        }
    }

    /// Polls the sockets; the contract is that of [`Input::poll`](super::Input::poll).
    pub(super) fn poll(
        &mut self,
        now: Now,
        shared: &SourceShared,
        sink: &mut dyn Intake,
    ) -> Result<Polled, PublisherError> {
        let counters = &shared.counters;
        let (found, settings, config) = (&mut self.decoder, &self.settings, &self.config);
        let (unrecognised, known) = (&mut self.unrecognised, &mut self.format);
        let (other_format, is_auto) =
            (&mut self.other_format, config.format.of_packets().is_none());
        let decoded = || counters.source_messages.get() + counters.source_duplicates.get();
        let (unconfirmed, heartbeats) = (&mut self.unconfirmed, &mut self.heartbeats);
        let foreign = &mut self.foreign;
        let (judge, is_session_over) = (&mut self.judge, &mut self.is_session_over);
        let mut all = u64::MAX;
        let mut polled = Polled::Idle;
        for (index, line) in self.lines.iter_mut().enumerate() {
            let LiveLine {
                receiver,
                sender,
                drops,
                log,
            } = line;
            drops.read(now.monotonic);
            let received = receiver.poll(&mut |datagram| {
                counters.source_packets.increment();
                counters.source_bytes.add(datagram.bytes.len() as u64);
                drops.packet(datagram.dropped, || thread::now().monotonic);
                if (found.is_none() || unconfirmed.is_some())
                    && let Some(format) = Format::detect(datagram.bytes)
                {
                    let earlier = unconfirmed.take();
                    if *known != Some(format) {
                        let mut other = decoder(format, config, settings);
                        if let Some(at) = earlier {
                            let session = None;
                            other.resume(&ResumePoint { session, ..at });
                        }
                        *known = Some(format);
                        *found = Some(other);
                        judge.set_format(format);
                    }
                }
                let mut returning;
                let out: &mut dyn Intake = if judge.may_end() {
                    returning = Returning {
                        judge: &mut *judge,
                        now: now.monotonic,
                        shared,
                        out: &mut *sink,
                    };
                    &mut returning
                } else {
                    &mut *sink
                };
                let mut attributing = Attributing {
                    drops: Some(drops),
                    foreign: &mut *foreign,
                    is_session_over: &mut *is_session_over,
                    out,
                };
                let mut sink = Counting {
                    counters,
                    records_left: &mut all,
                    refused: None,
                    out: &mut attributing,
                };
                let packet = Packet {
                    received_at: now.utc,
                    payload: datagram.bytes,
                };
                match found {
                    Some(found) => {
                        if *sender != Some(datagram.from) {
                            *sender = Some(datagram.from);
                            found.set_sender(index, datagram.from);
                        }
                        let before = decoded();
                        found.line_packet(index, now.monotonic, packet, &mut sink);
                        if decoded() != before {
                            return;
                        }
                        let seen = Seen {
                            at: now.monotonic,
                            on: &log.line,
                            payload: datagram.bytes,
                        };
                        if let Some(report) = other_format.packet(before, *known, index, seen) {
                            tracing::warn!(source = shared.source.0, "{report}");
                        }
                        // Strangers must not change the format of a feed that is established.
                        let is_new = found.counts().total() < OTHER_FORMAT_PACKETS as u64;
                        if is_auto && is_new && let Some((format, packets)) = other_format.change() {
                            tracing::warn!(
                                source = shared.source.0,
                                "{OTHER_FORMAT_PACKETS} packets in a row are of the format {format}: the input \
                                 follows it from now on"
                            );
                            let mut other = decoder(format, config, settings);
                            if let Some(at) = behind(&**found) {
                                other.resume(&at);
                            }
                            *found = other;
                            *known = Some(format);
                            *unconfirmed = None;
                            found.set_sender(index, datagram.from);
                            for (line, bytes) in packets {
                                let packet = Packet {
                                    received_at: now.utc,
                                    payload: &bytes,
                                };
                                found.line_packet(line, now.monotonic, packet, &mut sink);
                            }
                            judge.set_format(format);
                        }
                    }
                    // It shows no format, but is no packet of another feed either.
                    None if Format::is_heartbeat(datagram.bytes) => *heartbeats += 1,
                    None => {
                        counters.source_unrecognised_packets.increment();
                        foreign.add(PacketOrigin {
                            line: index as u8,
                            sender: Some(datagram.from),
                        });
                        let seen = Seen {
                            at: now.monotonic,
                            on: &log.line,
                            payload: datagram.bytes,
                        };
                        if let Some(report) = unrecognised.packet(seen) {
                            tracing::warn!(source = shared.source.0, "{report}");
                        }
                    }
                }
            });
            let received = received.map_err(|source| PublisherError::Receive {
                source_id: shared.source.0,
                source,
            })?;
            if received > 0 {
                polled = Polled::Worked;
                if let Some(hearing) = shared.hearing() {
                    hearing.line_heard(index, now.monotonic);
                }
            }
            if let Some(report) = log.poll(now.monotonic, received > 0) {
                tracing::warn!(source = shared.source.0, "{report}");
            }
        }
        let unheard = match &self.decoder {
            None => self.unrecognised.poll(now.monotonic),
            Some(_) if decoded() == 0 => self.other_format.unrecognised.poll(now.monotonic),
            Some(_) => None,
        };
        if let Some(report) = unheard {
            tracing::warn!(source = shared.source.0, "{report}");
        }
        self.settle(now.monotonic, shared, sink, |decoder, sink| {
            decoder.poll(now.monotonic, sink);
        });
        self.remember(shared);
        self.judge(now, shared, sink);
        Ok(polled)
    }

    /// Judges whether the source is silent, once every packet that has arrived is read.
    #[inline]
    fn judge(&mut self, now: Now, shared: &SourceShared, sink: &mut dyn Intake) {
        let decoded = self.decoder.as_ref().map_or(0, |it| it.packets());
        if decoded > 0 {
            self.unconfirmed = None;
        }
        if self.judge.hear(now, self.heartbeats + decoded)
            && let Some(hearing) = shared.hearing()
        {
            hearing.heard(now.monotonic);
        }
        if let Some(change) = self.judge.change(now.monotonic, self.is_session_over) {
            report(change, now.monotonic, &mut self.judge, shared, sink);
        }
    }

    /// Decodes what still waits for packets that will not come, and reports what is missing.
    pub(super) fn finish(&mut self, shared: &SourceShared, sink: &mut dyn Intake) {
        let now = thread::now().monotonic;
        self.settle(now, shared, sink, |decoder, sink| decoder.finish(sink));
        shared.set_foreign(&self.foreign);
    }

    /// Lets the decoder release packets, without a new one.
    fn settle(
        &mut self,
        now: Nanos,
        shared: &SourceShared,
        sink: &mut dyn Intake,
        release: impl FnOnce(&mut dyn Decoder, &mut dyn Sink),
    ) {
        let Some(decoder) = &mut self.decoder else {
            return;
        };
        let mut returning;
        let out: &mut dyn Intake = if self.judge.is_reported() {
            returning = Returning {
                judge: &mut self.judge,
                now,
                shared,
                out: sink,
            };
            &mut returning
        } else {
            sink
        };
        let mut all = u64::MAX;
        let drops = self.lines.iter_mut().map(|line| &mut line.drops);
        let mut attributing = Attributing {
            drops: drops.max_by_key(|drops| drops.last_at()),
            foreign: &mut self.foreign,
            is_session_over: &mut self.is_session_over,
            out,
        };
        let mut sink = Counting {
            counters: &shared.counters,
            records_left: &mut all,
            refused: None,
            out: &mut attributing,
        };
        release(&mut **decoder, &mut sink);
    }
}

/// Detects that a line hears nothing, for the log.
#[derive(Debug)]
struct LineLog {
    /// Address and interface of the line, for the log.
    line: String,
    heard_at: Option<Nanos>,
    is_reported: bool,
}

impl LineLog {
    const fn new(line: String) -> Self {
        Self {
            line,
            heard_at: None,
            is_reported: false,
        }
    }

    /// Returns a report when the silence has lasted for [`SILENT`], and when it is over. `heard` says whether
    /// a packet has arrived since the last call.
    #[inline]
    fn poll(&mut self, now: Nanos, heard: bool) -> Option<String> {
        let silent_for = now.since(*self.heard_at.get_or_insert(now));
        if heard {
            self.heard_at = Some(now);
            return std::mem::take(&mut self.is_reported).then(|| self.over(silent_for));
        }
        if silent_for < SILENT || self.is_reported {
            return None;
        }
        self.is_reported = true;
        Some(self.begun())
    }

    #[cold]
    fn begun(&self) -> String {
        format!(
            "no packet has arrived from {} for {} s. Check the address, that the interface is on the venue's \
             network, and that its switch has an IGMP querier",
            self.line,
            SILENT.0 / 1_000_000_000
        )
    }

    #[cold]
    fn over(&self, silent_for: Nanos) -> String {
        format!(
            "packets arrive again from {}, after {} s",
            self.line,
            silent_for.0 / 1_000_000_000
        )
    }
}

/// Returns where another decoder continues: in a session of its own behind everything of this one.
fn behind(decoder: &dyn Decoder) -> Option<ResumePoint> {
    let ordinal = decoder.session()?.ordinal.saturating_add(1);
    (decoder.counts().total() > 0).then(|| ResumePoint {
        session: None,
        next: SourcePosition::new(ordinal, 1),
        instruments: Vec::new(),
        next_id: 0,
    })
}

/// A packet, and the number of its line.
type LinePacket = (usize, Vec<u8>);

/// The packets in a row of which the decoder took nothing: its format may be that of a stray packet.
#[derive(Debug, Default)]
struct OtherFormat {
    /// The messages that were decoded before them.
    decoded: u64,
    unrecognised: Unrecognised,
    format: Option<Format>,
    /// The first packets of that format, with their lines.
    packets: Vec<LinePacket>,
}

impl OtherFormat {
    /// Takes a packet without a message for the decoder; returns a report if many came in a row.
    #[cold]
    fn packet(
        &mut self,
        decoded: u64,
        known: Option<Format>,
        line: usize,
        seen: Seen<'_>,
    ) -> Option<String> {
        if decoded != std::mem::replace(&mut self.decoded, decoded) {
            self.packets.clear();
            self.unrecognised = Unrecognised::default();
        }
        let bytes = seen.payload;
        let format = Format::detect(bytes);
        if format.is_some() && format == known {
            return None;
        }
        if format.is_some() {
            if format != self.format {
                self.packets.clear();
            }
            self.format = format;
            if self.packets.len() < OTHER_FORMAT_PACKETS {
                self.packets.push((line, bytes.to_vec()));
            }
        } else if Format::is_heartbeat(bytes) {
            return None;
        }
        self.unrecognised.packet(seen)
    }

    /// Takes the other format and its packets, if they are enough to believe it.
    fn change(&mut self) -> Option<(Format, Vec<LinePacket>)> {
        let format = self.format?;
        let is_believed = self.packets.len() >= OTHER_FORMAT_PACKETS;
        is_believed.then(|| (format, std::mem::take(&mut self.packets)))
    }
}

/// A packet that no decoder recognises.
#[derive(Clone, Copy)]
struct Seen<'a> {
    at: Nanos,
    /// Address and interface of its line.
    on: &'a str,
    payload: &'a [u8],
}

/// Counts packets that no decoder recognises.
#[derive(Debug, Default)]
struct Unrecognised {
    packets: u64,
    /// When the first of them came; `None` before, and once they are reported.
    since: Option<Nanos>,
    /// Line and bytes of the last one.
    on: String,
    payload: Vec<u8>,
}

impl Unrecognised {
    /// Takes a packet. Returns a report of its contents after [`UNRECOGNISED`] packets, unless there was one.
    #[cold]
    fn packet(&mut self, seen: Seen<'_>) -> Option<String> {
        self.packets += 1;
        if self.packets == 1 {
            self.since = Some(seen.at);
        }
        // They were reported.
        self.since?;
        seen.on.clone_into(&mut self.on);
        seen.payload.clone_into(&mut self.payload);
        match self.packets >= UNRECOGNISED {
            true => self.report(),
            false => None,
        }
    }

    /// Returns a report of the packets, [`SILENT`] after the first one, unless there was one.
    #[inline]
    fn poll(&mut self, now: Nanos) -> Option<String> {
        if now < self.since?.after(SILENT) {
            return None;
        }
        self.report()
    }

    #[cold]
    fn report(&mut self) -> Option<String> {
        self.since = None;
        let payload = &self.payload[..];
        let guess = match (Format::detect(payload), Guess::of_payload(payload)) {
            (Some(format), _) => format!("it is of the format {format}"),
            (None, Some(guess)) => format!("it {guess}"),
            (None, None) => "it looks like no protocol that we know".into(),
        };
        let head = payload.iter().take(HEAD_LEN);
        let head: String = head.map(|byte| format!("{byte:02x}")).collect();
        Some(format!(
            "none of the first {} packets is of a feed that is decoded; the last came from {}, has {} bytes, \
             which begin with {head}, and {guess}. Check the address, or set `format`",
            self.packets,
            self.on,
            payload.len()
        ))
    }
}

/// Creates the decoder of a live input.
fn decoder(format: Format, input: &UdpInputConfig, settings: &Settings) -> Box<dyn Decoder> {
    format.decoder(Settings {
        holding: Some(input.holding(format)),
        ..settings.clone()
    })
}

/// Tracks the packets that the kernel dropped before they were read.
#[derive(Debug, Default)]
struct Drops {
    /// Total drops when the current packet arrived.
    counted: u64,
    /// The drops that no gap has been attributed to yet, and when the last of them was seen.
    fresh: u64,
    seen_at: Nanos,
    now: Nanos,
    /// End and length of the longest pause, until a packet arrives that was received after it.
    pause: Option<(Nanos, Nanos)>,
}

impl Drops {
    /// Records a read of the socket.
    fn read(&mut self, now: Nanos) {
        let away = now.since(self.now);
        let longest = self.pause.map_or(PAUSE, |(_, span)| span);
        if away >= longest && self.now > Nanos::ZERO {
            self.pause = Some((now, away));
        }
        self.now = now;
    }

    /// Records a packet and the drops before it. After a drop, the clock is read again, because a
    /// pause during the read would otherwise go unseen.
    #[inline]
    fn packet(&mut self, dropped: u64, clock: impl FnOnce() -> Nanos) {
        let fresh = dropped - std::mem::replace(&mut self.counted, dropped);
        if fresh > 0 {
            self.fresh += fresh;
            self.read(clock());
            self.seen_at = self.now;
            return;
        }
        if self.fresh > 0 && self.now > self.seen_at.after(EXPLAINS) {
            self.fresh = 0;
        }
        // Packets that queued in the socket are read faster than they arrived.
        if self
            .pause
            .is_some_and(|(over, span)| self.now > over.after(span))
        {
            self.pause = None;
        }
    }

    /// Returns when the last drops were seen.
    const fn last_at(&self) -> Nanos {
        self.seen_at
    }

    /// Takes the drops that explain a gap.
    fn of_gap(&mut self) -> Option<Unread> {
        let packets = std::mem::take(&mut self.fresh);
        (packets > 0).then_some(Unread {
            packets,
            paused: self.pause.map_or(Nanos::ZERO, |(_, span)| span),
        })
    }
}

/// Reports a change between silence and hearing, or repeats it.
#[cold]
fn report(
    change: Silence,
    now: Nanos,
    judge: &mut SilenceJudge,
    shared: &SourceShared,
    out: &mut dyn Intake,
) {
    // First, because a standby drops what is queued and reads this when it is promoted.
    if let Some(hearing) = shared.hearing() {
        hearing.set(change);
    }
    out.silence(change);
    let source = shared.source.0;
    match change {
        Silence::Begun { .. } if judge.is_reported() => {}
        Silence::Begun { .. } => {
            shared.counters.source_silences.increment();
            tracing::warn!(
                source,
                "the source is silent: not even its heartbeats arrive, and subscribers are told so; check \
                 the venue, its network, and the lines of the input"
            );
        }
        Silence::Over { .. } if !judge.may_end() => {}
        Silence::Over { .. } => tracing::info!(source, "the source is heard again"),
    }
    judge.set_reported(change, now);
}

/// Reports the end of a silence before the first message or loss that follows it.
struct Returning<'a> {
    judge: &'a mut SilenceJudge,
    now: Nanos,
    shared: &'a SourceShared,
    out: &'a mut dyn Intake,
}

impl Returning<'_> {
    fn is_heard(&mut self) {
        if let Some(end) = self.judge.end() {
            report(end, self.now, self.judge, self.shared, self.out);
        }
    }
}

impl Intake for Returning<'_> {
    fn lost(&mut self, loss: SourceLoss) {
        self.is_heard();
        self.out.lost(loss);
    }

    fn silence(&mut self, silence: Silence) {
        self.out.silence(silence);
    }
}

impl Sink for Returning<'_> {
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        self.is_heard();
        self.out.message(position, records);
    }

    fn incident(&mut self, incident: Incident) {
        self.out.incident(incident);
    }
}

/// Attributes gaps to the kernel's drops and foreign packets to their senders, and notes the end of the
/// venue's session.
struct Attributing<'a> {
    drops: Option<&'a mut Drops>,
    foreign: &'a mut ForeignTable,
    is_session_over: &'a mut bool,
    out: &'a mut dyn Intake,
}

impl Intake for Attributing<'_> {
    fn lost(&mut self, loss: SourceLoss) {
        self.out.lost(loss);
    }

    fn silence(&mut self, silence: Silence) {
        self.out.silence(silence);
    }
}

impl Sink for Attributing<'_> {
    #[inline]
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        // A damaged packet can look like the end of the session.
        *self.is_session_over = false;
        self.out.message(position, records);
    }

    fn incident(&mut self, incident: Incident) {
        match incident {
            Incident::Gap { from, missing } => {
                let unread = self.drops.as_mut().and_then(|drops| drops.of_gap());
                self.out.lost(SourceLoss::gap(from, missing).unread(unread));
                return;
            }
            Incident::Foreign { origin, .. } => self.foreign.add(origin),
            Incident::EndOfSession => *self.is_session_over = true,
            Incident::SessionChange { .. } | Incident::SequenceReset { .. } => {
                *self.is_session_over = false;
            }
            _ => {}
        }
        self.out.incident(incident);
    }
}

/// Returns the settings of a line's socket; `interface` is the publisher's.
fn receiver_config(
    input: &UdpInputConfig,
    line: &InputLineConfig,
    interface: &Interface,
) -> FeedReceiverConfig {
    FeedReceiverConfig {
        listen: line.listen,
        interface: line.interface.as_ref().unwrap_or(interface).clone(),
        source: line.from,
        datagram_len_max: 9_000,
        receive_buffer_bytes: input.receive_buffer_bytes,
        batch: 64,
        busy_poll_us: input.busy_poll_us,
    }
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::types::SourceId;

    use super::*;

    #[test]
    fn silent_line_is_reported_once_and_when_it_is_over() {
        let s = |seconds: u64| Nanos::from_ms(seconds * 1_000);
        let mut silence = LineLog::new("239.1.1.1:26400 on interface eth7".into());
        assert_eq!(silence.poll(s(100), false), None);
        assert_eq!(silence.poll(s(104), false), None);
        let report = silence.poll(s(105), false).expect("silent for 5 s");
        assert!(
            report.contains("239.1.1.1:26400 on interface eth7"),
            "{report}"
        );
        assert_eq!(silence.poll(s(120), false), None, "reported once");
        let report = silence.poll(s(130), true).expect("it is over");
        assert!(report.contains("after 30 s"), "{report}");
        assert_eq!(silence.poll(s(131), true), None);
        assert_eq!(silence.poll(s(135), false), None);
        assert!(silence.poll(s(136), false).is_some(), "silent again");
    }

    /// Notes what is reported.
    #[derive(Default)]
    struct Notes {
        all: Vec<&'static str>,
        /// Positions of messages, and first positions of losses.
        at: Vec<SourcePosition>,
    }

    impl Intake for Notes {
        fn lost(&mut self, loss: SourceLoss) {
            self.all.push("lost");
            self.at.push(loss.from);
        }

        fn silence(&mut self, silence: Silence) {
            self.all.push(match silence {
                Silence::Begun { .. } => "begun",
                Silence::Over { .. } => "over",
            });
        }
    }

    impl Sink for Notes {
        fn message(&mut self, position: SourcePosition, _: &RecordBatch) {
            self.all.push("message");
            self.at.push(position);
        }

        fn incident(&mut self, _: Incident) {
            self.all.push("incident");
        }
    }

    #[test]
    fn end_of_silence_precedes_the_first_message_or_loss() {
        let since = Nanos(7);
        let shared = SourceShared::new(SourceId(1), 1).heard_since(Nanos::ZERO);
        let at = SourcePosition::new(0, 1);
        let silent = || {
            let mut judge = SilenceJudge::new(None, Now::default());
            let mut notes = Notes::default();
            let begun = Silence::Begun { since };
            report(begun, Nanos::ZERO, &mut judge, &shared, &mut notes);
            assert_eq!(shared.hearing().unwrap().silent_since(), Some(since));
            (judge, notes)
        };
        let run = |then: fn(&mut Returning<'_>, SourcePosition)| {
            let (mut judge, mut notes) = silent();
            let mut returning = Returning {
                judge: &mut judge,
                now: Nanos::ZERO,
                shared: &shared,
                out: &mut notes,
            };
            then(&mut returning, at);
            (notes.all, judge.is_reported())
        };
        let message = |to: &mut Returning<'_>, at| {
            let origin = PacketOrigin::default();
            to.incident(Incident::Foreign {
                reason: "another",
                origin,
                received_at: Nanos::ZERO,
            });
            to.message(at, &RecordBatch::default());
            to.message(at, &RecordBatch::default());
        };
        let expected = vec!["begun", "incident", "over", "message", "message"];
        assert_eq!(run(message), (expected, false));
        assert_eq!(shared.hearing().unwrap().silent_since(), None);
        let lost = |to: &mut Returning<'_>, at| to.lost(SourceLoss::gap(at, 3));
        assert_eq!(run(lost), (vec!["begun", "over", "lost"], false));
        assert_eq!(shared.counters.source_silences.get(), 2);
    }

    #[test]
    fn gap_that_ends_a_silence_follows_its_end() {
        let shared = SourceShared::new(SourceId(1), 1);
        let (mut judge, mut notes) = (SilenceJudge::new(None, Now::default()), Notes::default());
        judge.set_reported(Silence::Begun { since: Nanos(7) }, Nanos::ZERO);
        let mut returning = Returning {
            judge: &mut judge,
            now: Nanos::ZERO,
            shared: &shared,
            out: &mut notes,
        };
        let mut is_session_over = false;
        let mut attributing = Attributing {
            drops: None,
            foreign: &mut ForeignTable::default(),
            is_session_over: &mut is_session_over,
            out: &mut returning,
        };
        attributing.incident(Incident::Gap {
            from: SourcePosition::new(0, 1),
            missing: 2,
        });
        attributing.incident(Incident::EndOfSession);
        assert_eq!(notes.all, ["over", "lost", "incident"]);
    }

    #[test]
    fn message_after_the_end_of_session_reopens_it() {
        let mut is_session_over = false;
        let mut notes = Notes::default();
        let mut is_over_after = |act: fn(&mut Attributing<'_>)| {
            act(&mut Attributing {
                drops: None,
                foreign: &mut ForeignTable::default(),
                is_session_over: &mut is_session_over,
                out: &mut notes,
            });
            is_session_over
        };
        assert!(is_over_after(|to| to.incident(Incident::EndOfSession)));
        assert!(is_over_after(
            |to| to.incident(Incident::Late { messages: 1 })
        ));
        assert!(!is_over_after(
            |to| to.message(SourcePosition::new(0, 1), &RecordBatch::default())
        ));
    }

    /// A live input of format `auto`, and a socket that sends to it.
    struct Fed {
        live: Live,
        shared: SourceShared,
        feed: std::net::UdpSocket,
        to: std::net::SocketAddrV4,
        began: Now,
        notes: Notes,
    }

    impl Fed {
        fn new() -> Self {
            let lines = serde_json::json!([{ "listen": "127.0.0.1:0" }]);
            let input = serde_json::json!({ "source": 1, "lines": lines });
            let input: UdpInputConfig = serde_json::from_value(input).unwrap();
            let live = Live::open(&input, &"lo".parse().unwrap(), Settings::default()).unwrap();
            let to = live.lines[0].receiver.local_address().unwrap();
            Self {
                live,
                shared: SourceShared::new(SourceId(1), 1).heard_since(Nanos::ZERO),
                feed: std::net::UdpSocket::bind("127.0.0.1:0").unwrap(),
                to,
                began: thread::now(),
                notes: Notes::default(),
            }
        }

        /// Lets the input read a packet, so long after the beginning; returns what it reports.
        fn take(&mut self, ms: u64, packet: &[u8]) -> Vec<&'static str> {
            self.feed.send_to(packet, self.to).unwrap();
            let now = Now {
                monotonic: self.began.monotonic.after(Nanos::from_ms(ms)),
                utc: self.began.utc.after(Nanos::from_ms(ms)),
            };
            let before = self.shared.counters.source_packets.get();
            while self.shared.counters.source_packets.get() == before {
                self.live.poll(now, &self.shared, &mut self.notes).unwrap();
            }
            std::mem::take(&mut self.notes.all)
        }
    }

    const SYSTEM_EVENT: &[u8] = b"SESSION001\0\0\0\0\0\0\0\x01\0\x01\0\x0cS\0\0\0\0\0\0\0\0\0\0O";

    #[test]
    fn socket_settings_of_an_input_reach_its_lines() {
        let input = serde_json::json!({
            "source": 1, "busy_poll_us": 50, "receive_buffer_bytes": 9_000,
            "lines": [{ "listen": "127.0.0.1:0" }, { "listen": "127.0.0.1:0", "interface": "eth7" }],
        });
        let input: UdpInputConfig = serde_json::from_value(input).unwrap();
        let lo = "lo".parse().unwrap();
        for (line, interface) in input.lines.iter().zip(["lo", "eth7"]) {
            let config = receiver_config(&input, line, &lo);
            assert_eq!(config.busy_poll_us, Some(50));
            assert_eq!(config.receive_buffer_bytes, Some(9_000));
            assert_eq!(config.interface.to_string(), interface);
        }
    }

    #[test]
    fn junk_before_format_is_known_is_no_sign_of_source() {
        let mut fed = Fed::new();
        let query = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01";
        let heartbeat = b"SESSION001\0\0\0\0\0\0\0\x01\0\0";
        assert_eq!(fed.take(3_000, heartbeat), [""; 0]);
        assert_eq!(fed.shared.counters.source_unrecognised_packets.get(), 0);
        assert_eq!(fed.take(6_000, query), [""; 0]);
        assert_eq!(fed.take(9_000, query), ["begun"]);
        assert_eq!(fed.take(9_001, query), [""; 0], "it does not end it");
        assert_eq!(fed.take(9_002, heartbeat), ["over"]);
        assert_eq!(fed.take(9_003, SYSTEM_EVENT), ["message"]);
        assert_eq!(fed.shared.counters.source_unrecognised_packets.get(), 3);
    }

    #[test]
    fn restart_with_auto_follows_another_format_in_a_new_session() {
        let at = ResumePoint {
            session: Some(1 << 64 | 1),
            next: SourcePosition::new(2, 10),
            instruments: Vec::new(),
            next_id: 7,
        };
        let mut fed = Fed::new();
        fed.live.resume(Format::IexTp, &at);
        let expected = ["over", "lost", "incident", "message"];
        assert_eq!(fed.take(1, SYSTEM_EVENT), expected);
        assert_eq!(fed.notes.at, [at.next, SourcePosition::new(3, 1)]);
        assert_eq!(fed.live.format, Some(Format::MoldUdp64Itch50));
        // A format that was seen stays.
        let mut heartbeat = [0; 40];
        heartbeat[..4].copy_from_slice(&[1, 0, 4, 0x80]);
        heartbeat[24] = 1;
        assert_eq!(Format::detect(&heartbeat), Some(Format::IexTp));
        fed.take(2, &heartbeat);
        assert_eq!(fed.live.format, Some(Format::MoldUdp64Itch50));
        let mut fed = Fed::new();
        fed.live.resume(Format::IexTp, &at);
        let mut of_session = heartbeat;
        (of_session[8], of_session[24]) = (1, 10);
        assert_eq!(fed.take(1, &of_session), ["over"]);
        assert_eq!(fed.take(2, SYSTEM_EVENT), ["incident"], "a foreign feed");
        assert_eq!(fed.live.format, Some(Format::IexTp));
    }

    /// Returns an event of ITCH with a sequence.
    fn event(sequence: u8) -> Vec<u8> {
        let mut packet = SYSTEM_EVENT.to_vec();
        packet[17] = sequence;
        packet
    }

    /// Returns a heartbeat of DEEP.
    fn deep() -> [u8; 40] {
        let mut heartbeat = [0; 40];
        heartbeat[..4].copy_from_slice(&[1, 0, 4, 0x80]);
        heartbeat[24] = 1;
        heartbeat
    }

    #[test]
    fn short_live_message_is_a_loss_of_its_number() {
        let mut fed = Fed::new();
        fed.take(1, &event(1));
        let mut short = event(2);
        short[21] -= 1;
        short.pop();
        assert_eq!(fed.take(2, &short), ["lost"]);
        assert_eq!(fed.take(3, &event(3)), ["message"]);
        let at = [1, 2, 3].map(|sequence| SourcePosition::new(0, sequence));
        assert_eq!(fed.notes.at, at);
        let counters = &fed.shared.counters;
        assert_eq!(counters.source_malformed.get(), 1);
        assert_eq!(counters.source_gaps.get(), 0);
    }

    #[test]
    fn stray_packet_does_not_hold_an_auto_input() {
        let mut fed = Fed::new();
        fed.take(1, &deep());
        assert_eq!(fed.live.format, Some(Format::IexTp));
        assert_eq!(fed.take(2, &event(1)), ["incident"]);
        assert_eq!(fed.take(3, &event(2)), ["incident"]);
        let expected = ["incident", "message", "message", "message"];
        assert_eq!(fed.take(4, &event(3)), expected, "nothing is lost");
        assert_eq!(fed.live.format, Some(Format::MoldUdp64Itch50));
        assert_eq!(fed.take(5, &event(4)), ["message"]);
        for ms in [6, 8, 10, 12] {
            fed.take(ms, &deep());
            let next = event(4 + (ms / 2 - 2) as u8);
            assert_eq!(fed.take(ms + 1, &next), ["message"], "never in a row");
        }
        assert_eq!(fed.live.format, Some(Format::MoldUdp64Itch50));
    }

    #[test]
    fn stray_message_does_not_hold_an_auto_input() {
        let mut fed = Fed::new();
        assert_eq!(fed.take(1, &event(1)), ["message"]);
        for ms in [2, 3, 4] {
            assert_eq!(fed.live.format, Some(Format::MoldUdp64Itch50));
            fed.take(ms, &deep());
        }
        assert_eq!(fed.live.format, Some(Format::IexTp));
    }

    #[test]
    fn strangers_do_not_change_format_of_established_input() {
        let mut fed = Fed::new();
        for n in 1..=3 {
            assert_eq!(fed.take(n.into(), &event(n)), ["message"]);
        }
        for ms in 4..10 {
            fed.take(ms, &deep());
        }
        assert_eq!(fed.live.format, Some(Format::MoldUdp64Itch50));
        assert_eq!(fed.take(10, &event(4)), ["message"]);
    }

    #[test]
    fn refused_packets_in_a_row_are_reported_with_what_they_are() {
        let mut other_format = OtherFormat::default();
        let known = Some(Format::IexTp);
        let mut reports = |decoded: u64, packets: u64| -> Vec<String> {
            let packets = (0..packets)
                .filter_map(|_| other_format.packet(decoded, known, 0, seen(0, &event(1))));
            packets.collect()
        };
        assert!(reports(0, UNRECOGNISED - 1).is_empty());
        assert!(reports(1, UNRECOGNISED - 1).is_empty(), "one was decoded");
        let [report] = &reports(1, UNRECOGNISED)[..] else {
            panic!("one report");
        };
        assert!(
            report.contains("of the format moldudp64-itch50"),
            "{report}"
        );
    }

    fn seen(at: u64, payload: &[u8]) -> Seen<'_> {
        Seen {
            at: Nanos(at),
            on: "239.1.1.1:5 on interface lo",
            payload,
        }
    }

    #[test]
    fn unrecognised_packets_are_reported_with_line_and_head() {
        let mut unrecognised = Unrecognised::default();
        let reports: Vec<_> = (0..2 * UNRECOGNISED)
            .filter_map(|at| unrecognised.packet(seen(at, b"\x16\x03no feed")))
            .collect();
        assert_eq!(reports.len(), 1, "{reports:?}");
        for part in [
            "first 100 packets",
            "from 239.1.1.1:5 on interface lo",
            "9 bytes",
            "16036e6f2066656564",
        ] {
            assert!(reports[0].contains(part), "{part}: {reports:?}");
        }
        assert_eq!(unrecognised.poll(Nanos(u64::MAX)), None, "once");
    }

    #[test]
    fn few_unrecognised_packets_are_reported_after_some_seconds() {
        let mut unrecognised = Unrecognised::default();
        assert_eq!(unrecognised.poll(Nanos(u64::MAX)), None, "there is none");
        assert_eq!(unrecognised.packet(seen(7, b"one")), None);
        assert_eq!(unrecognised.packet(seen(9, b"two")), None);
        assert_eq!(unrecognised.poll(Nanos(SILENT.0 + 6)), None);
        let report = unrecognised.poll(Nanos(SILENT.0 + 7)).unwrap();
        assert!(report.contains("first 2 packets"), "{report}");
        assert!(
            report.contains("3 bytes, which begin with 74776f"),
            "{report}"
        );
        assert_eq!(unrecognised.packet(seen(SILENT.0 + 8, b"three")), None);
        assert_eq!(unrecognised.poll(Nanos(u64::MAX)), None, "once");
    }

    #[test]
    fn pause_between_clock_read_and_drop_is_counted() {
        let ms = Nanos::from_ms;
        let paused = |stopped: u64| {
            let mut drops = Drops::default();
            drops.read(ms(100));
            drops.read(ms(101));
            drops.packet(0, || panic!("nothing was dropped"));
            // The pause happens before the next reading of the clock.
            drops.packet(9, || ms(101 + stopped));
            drops.of_gap().map(|it| (it.packets, it.paused))
        };
        assert_eq!(paused(145), Some((9, ms(145))));
        assert_eq!(paused(0), Some((9, ms(1))), "what there was before");
    }
}
