//! A live input: packets of a venue from a socket. It also tracks the packets that the kernel
//! dropped before they were read: such a loss is of this host, and no gap of the venue.

use tickcast_feeds::source::{
    Decoder, FeedSession, Incident, Packet, PacketOrigin, ResumePoint, Sink,
};
use tickcast_feeds::venues::{Format, Settings};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, Now, SourcePosition};
use tickcast_transport::ReceiveStats;
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{FeedDatagram, UdpError};

use super::auto_format::{AutoFormat, CONFIRMING};
use super::live_line::{BATCH, Drops, LiveLine};
use super::read_clock::ReadClock;
use super::silence::SilenceJudge;
use super::unrecognised::{Refused, Seen, Unrecognised};
use super::{Counting, Polled};
use crate::config::UdpInputConfig;
use crate::error::PublisherError;
use crate::ingest::queue::Intake;
use crate::state::SourceShared;
use crate::state::foreign::ForeignTable;
use crate::state::hearing::Silence;
use crate::state::source_loss::SourceLoss;
use crate::state::thread;

/// The open sockets of a venue's lines.
pub(super) struct Live {
    pub(super) lines: Vec<LiveLine>,
    pub(super) decoder: Option<Box<dyn Decoder>>,
    /// The format of the decoder.
    format: Option<Format>,
    auto_format: AutoFormat,
    clock: ReadClock,
    /// Heartbeats before the format was known.
    heartbeats: u64,
    /// The session that was remembered last.
    session: Option<FeedSession>,
    settings: Settings,
    config: UdpInputConfig,
    unrecognised: Unrecognised,
    refused: Refused,
    /// Packets of no feed that is followed.
    pub(super) foreign: ForeignTable,
    judge: SilenceJudge,
    /// Whether the venue has ended its session, so that silence is right.
    is_session_over: bool,
}

impl Live {
    /// Opens a socket for each line.
    pub(super) fn open(
        input: &UdpInputConfig,
        interface: &Interface,
        settings: Settings,
    ) -> Result<Self, PublisherError> {
        let settings = Settings {
            lines: input.lines.len(),
            ..settings
        };
        let open = |line| LiveLine::open(input, line, interface);
        let (lines, opened): (Vec<_>, Vec<_>) = input.lines.iter().map(open).unzip();
        let mut failed: Vec<UdpError> = opened.into_iter().filter_map(Result::err).collect();
        // The others carry the feed.
        if failed.len() == lines.len() && !failed.is_empty() {
            return Err(PublisherError::Listening {
                source_id: input.source.0,
                source: failed.swap_remove(0),
            });
        }
        for error in failed {
            tracing::error!(
                source = input.source.0,
                "a line can't be opened, and is tried again every few seconds; the others carry the feed: {error}"
            );
        }
        let destinations = input.lines.iter().zip(&lines).map(|(config, line)| {
            // The system may have chosen the port.
            line.socket.local_address().unwrap_or(config.listen)
        });
        Ok(Self {
            foreign: ForeignTable::new(destinations.collect()),
            lines,
            decoder: (input.format.of_packets()).map(|format| decoder(format, input, &settings)),
            format: input.format.of_packets(),
            auto_format: AutoFormat::new(input.format.of_packets().is_none()),
            clock: ReadClock::default(),
            heartbeats: 0,
            session: None,
            settings,
            config: input.clone(),
            unrecognised: Unrecognised::default(),
            refused: Refused::default(),
            judge: SilenceJudge::new(input.format.of_packets(), thread::now()),
            is_session_over: false,
        })
    }

    /// Continues in place of an earlier decoder. A format that is not configured may turn out to be another
    /// one; the source then goes on in another session.
    pub(super) fn resume(&mut self, format: Format, at: &ResumePoint) {
        let mut decoder = decoder(format, &self.config, &self.settings);
        decoder.resume(at);
        self.decoder = Some(decoder);
        self.auto_format.resume();
        self.is_session_over = at.is_over();
        self.format = Some(format);
        self.judge.set_format(format);
        self.judge.resume();
    }

    /// Remembers a new session for a later publisher, and how far its venue's time has come.
    fn remember(&mut self, shared: &SourceShared) {
        let session = self.decoder.as_ref().and_then(|it| it.session());
        if let (Some(memory), Some(decoder)) = (shared.memory.get(), &self.decoder) {
            memory.send(decoder.newest_sent_at());
        }
        if session != self.session {
            self.session = session;
            if let (Some(memory), Some(format)) = (shared.memory.get(), self.format) {
                memory.follow(format, session);
            }
        }
    }

    /// Returns the sum of a count of the sockets of all lines.
    pub(super) fn count(&self, of: fn(&ReceiveStats) -> u64) -> u64 {
        self.lines.iter().map(|line| line.socket.count(of)).sum()
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
        let (refused, auto_format) = (&mut self.refused, &mut self.auto_format);
        let decoded = || counters.source_messages.get() + counters.source_duplicates.get();
        let heartbeats = &mut self.heartbeats;
        let foreign = &mut self.foreign;
        let (judge, is_session_over) = (&mut self.judge, &mut self.is_session_over);
        let mut all = u64::MAX;
        let mut polled = Polled::Idle;
        let at = self.clock.begin(now.monotonic);
        let mut is_behind = false;
        for (index, line) in self.lines.iter_mut().enumerate() {
            let LiveLine {
                socket,
                sender,
                drops,
                log,
            } = line;
            drops.read(now.monotonic);
            let on_datagram = &mut |datagram: FeedDatagram<'_>| {
                counters.source_packets.increment();
                counters.source_bytes.add(datagram.bytes.len() as u64);
                drops.packet(datagram.dropped, || thread::now().monotonic);
                if found.is_none()
                    && let Some(format) = Format::detect(datagram.bytes)
                {
                    *known = Some(format);
                    *found = Some(decoder(format, config, settings));
                    judge.set_format(format);
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
                match found {
                    Some(found) => {
                        if *sender != Some(datagram.from) {
                            *sender = Some(datagram.from);
                            found.set_sender(index, datagram.from);
                        }
                        let is_open = auto_format.is_open();
                        if is_open && auto_format.takes(*known, index, datagram.bytes) {
                            let Some((format, packets)) = auto_format.change() else {
                                return;
                            };
                            tracing::warn!(
                                source = shared.source.0,
                                "{CONFIRMING} packets in a row are of the format {format}: the input \
                                 follows it from now on"
                            );
                            let mut other = decoder(format, config, settings);
                            if let Some(place) = found.place() {
                                other.resume(&place);
                            }
                            (*found, *known) = (other, Some(format));
                            found.set_sender(index, datagram.from);
                            for (line, bytes) in packets {
                                found.line_packet(line, at, packet(now.utc, &bytes), &mut sink);
                            }
                            judge.set_format(format);
                            return;
                        }
                        let (before, own) = (decoded(), if is_open { found.packets() } else { 0 });
                        found.line_packet(index, at, packet(now.utc, datagram.bytes), &mut sink);
                        if is_open && found.packets() != own {
                            let strange =
                                auto_format.confirm(found.packets(), found.counts().total());
                            for (line, bytes) in strange {
                                found.line_packet(line, at, packet(now.utc, &bytes), &mut sink);
                            }
                        }
                        if decoded() != before {
                            return;
                        }
                        let seen = Seen {
                            at: now.monotonic,
                            on: &log.line,
                            payload: datagram.bytes,
                        };
                        if let Some(report) = refused.packet(before, *known, seen) {
                            tracing::warn!(source = shared.source.0, "{report}");
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
            };
            let received = match socket.receiver() {
                Some(receiver) => receiver.poll(on_datagram),
                None => Ok(0),
            };
            let received = received.map_err(|source| PublisherError::Receive {
                source_id: shared.source.0,
                source,
            })?;
            is_behind |= received >= BATCH;
            if received > 0 {
                polled = Polled::Worked;
                if let Some(hearing) = shared.hearing() {
                    hearing.line_heard(index, now.monotonic);
                }
            }
            if let Some(report) = log.poll(now.monotonic, received > 0) {
                tracing::warn!(source = shared.source.0, "{report}");
            }
            if log.is_reported()
                && let Some(report) = socket.check(now.monotonic, &log.line)
            {
                tracing::warn!(source = shared.source.0, "{report}");
            }
        }
        let unheard = match &self.decoder {
            None => self.unrecognised.poll(now.monotonic),
            Some(_) if decoded() == 0 => self.refused.poll(now.monotonic),
            Some(_) => None,
        };
        if let Some(report) = unheard {
            tracing::warn!(source = shared.source.0, "{report}");
        }
        let at = self.clock.end(polled == Polled::Worked, is_behind);
        self.settle(now.monotonic, shared, sink, |decoder, sink| {
            decoder.poll(at, sink);
        });
        self.remember(shared);
        self.judge(now, shared, sink);
        Ok(polled)
    }

    /// Judges whether the source is silent, once every packet that has arrived is read.
    #[inline]
    fn judge(&mut self, now: Now, shared: &SourceShared, sink: &mut dyn Intake) {
        let decoded = self.decoder.as_ref().map_or(0, |it| it.packets());
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
        // They were too few to change the format.
        let strange = self.auto_format.give_up();
        let at = self.clock.end(true, true);
        self.settle(now, shared, sink, |decoder, sink| {
            for (line, payload) in &strange {
                let received_at = thread::now().utc;
                decoder.line_packet(
                    *line,
                    at,
                    Packet {
                        received_at,
                        payload,
                    },
                    sink,
                );
            }
            decoder.finish(sink);
        });
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

const fn packet(received_at: Nanos, payload: &[u8]) -> Packet<'_> {
    Packet {
        received_at,
        payload,
    }
}

/// Creates the decoder of a live input.
fn decoder(format: Format, input: &UdpInputConfig, settings: &Settings) -> Box<dyn Decoder> {
    format.decoder(Settings {
        holding: Some(input.holding(format)),
        ..settings.clone()
    })
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

#[cfg(test)]
mod tests {
    use tickcast_reliability::types::SourceId;

    use super::*;

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
            Self::with(serde_json::json!([{ "listen": "127.0.0.1:0" }]))
        }

        fn with(lines: serde_json::Value) -> Self {
            let input = serde_json::json!({ "source": 1, "lines": lines });
            let input: UdpInputConfig = serde_json::from_value(input).unwrap();
            let live = Live::open(&input, &"lo".parse().unwrap(), Settings::default()).unwrap();
            let to = live.lines[0].socket.local_address().unwrap();
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
            next_id: 7,
            ..ResumePoint::default()
        };
        let mut fed = Fed::new();
        fed.live.resume(Format::IexTp, &at);
        assert_eq!(fed.take(1, &event(1)), [""; 0], "a stranger's, perhaps");
        assert_eq!(fed.take(1, &event(2)), [""; 0]);
        let expected = ["over", "lost", "incident", "message", "message", "message"];
        assert_eq!(fed.take(1, &event(3)), expected);
        let next = [1, 2, 3].map(|sequence| SourcePosition::new(3, sequence));
        assert_eq!(fed.notes.at, [&[at.next], &next[..]].concat());
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

    /// Returns a message of DEEP with a sequence.
    fn deep_message(sequence: u8) -> Vec<u8> {
        let mut packet = deep().to_vec();
        packet[12] = 12;
        packet[14] = 1;
        packet[24] = sequence;
        packet.extend(b"\x0a\0SO\0\0\0\0\0\0\0\0");
        assert_eq!(Format::detect(&packet), Some(Format::IexTp));
        packet
    }

    #[test]
    fn strays_never_move_a_resumed_source() {
        let resumed = || {
            let at = ResumePoint {
                session: Some(u128::from_le_bytes(*b"SESSION001\0\0\0\0\0\0")),
                next: SourcePosition::new(0, 21),
                ..ResumePoint::default()
            };
            let mut fed = Fed::new();
            fed.live.resume(Format::MoldUdp64Itch50, &at);
            fed
        };
        let ended = |fed: &mut Fed| {
            fed.take(100, &event(31));
            assert_eq!(fed.live.format, Some(Format::MoldUdp64Itch50));
            fed.take(100, &event(32));
            fed.live.finish(&fed.shared, &mut fed.notes);
            let at = [21, 31, 32].map(|sequence| SourcePosition::new(0, sequence));
            assert_eq!(fed.notes.at, at, "the loss is exact");
            let counters = &fed.shared.counters;
            assert_eq!(counters.source_missing_messages.get(), 10);
            counters.source_foreign.get()
        };
        let mut fed = resumed();
        for ms in 1..9 {
            fed.take(ms, &deep());
        }
        ended(&mut fed);
        // Two messages of another format, the venue's heartbeat, and two more.
        let mut fed = resumed();
        let heartbeat = b"SESSION001\0\0\0\0\0\0\0\x15\0\0";
        for packet in [
            deep_message(1),
            deep_message(2),
            heartbeat.to_vec(),
            deep_message(3),
            deep_message(4),
        ] {
            fed.take(1, &packet);
        }
        ended(&mut fed);
    }

    #[test]
    fn quiet_source_keeps_its_format_between_strays() {
        let mut fed = Fed::new();
        assert_eq!(fed.take(1, &event(1)), ["message"]);
        for ms in [2, 4, 6] {
            fed.take(ms, &deep_message(ms as u8));
            fed.take(ms + 1, b"SESSION001\0\0\0\0\0\0\0\x02\0\0");
        }
        assert_eq!(fed.live.format, Some(Format::MoldUdp64Itch50));
        assert_eq!(fed.take(8, &event(2)), ["message"]);
        let counters = &fed.shared.counters;
        assert_eq!(
            (counters.source_gaps.get(), fed.live.foreign.packets()),
            (0, 3)
        );
    }

    #[test]
    fn change_of_format_forgets_neither_place_nor_count() {
        let mut fed = Fed::new();
        assert_eq!(fed.take(1, &event(1)), ["message"]);
        for sequence in 1..=2 {
            assert_eq!(fed.take(2, &deep_message(sequence)), [""; 0]);
        }
        let expected = ["lost", "incident", "message", "message", "message"];
        assert_eq!(fed.take(3, &deep_message(3)), expected);
        let next = [1, 2, 3].map(|sequence| SourcePosition::new(1, sequence));
        let (first, lost) = (SourcePosition::new(0, 1), SourcePosition::new(0, 2));
        assert_eq!(fed.notes.at, [&[first, lost], &next[..]].concat());
        assert_eq!(
            fed.shared.counters.source_foreign.get(),
            0,
            "each counts once"
        );
    }

    #[test]
    fn source_that_ended_its_session_is_not_silent_after_restart() {
        let at = ResumePoint {
            session: Some(u128::from_le_bytes(*b"SESSION001\0\0\0\0\0\0")),
            next: SourcePosition::new(0, 21),
            end_at: Some(21),
            ..ResumePoint::default()
        };
        let mut fed = Fed::new();
        fed.live.resume(Format::MoldUdp64Itch50, &at);
        let now = |ms| Now {
            monotonic: fed.began.monotonic.after(Nanos::from_ms(ms)),
            utc: fed.began.utc.after(Nanos::from_ms(ms)),
        };
        for at in [now(1), now(10_000)] {
            fed.live.poll(at, &fed.shared, &mut fed.notes).unwrap();
        }
        assert_eq!(fed.notes.all, [""; 0]);
        // The next day's session follows without a loss.
        let mut next = event(1);
        next[9] = b'2';
        fed.take(10_001, &next);
        next[17] = 2;
        fed.take(10_002, &next);
        fed.live.finish(&fed.shared, &mut fed.notes);
        let counters = &fed.shared.counters;
        assert_eq!(
            (counters.source_gaps.get(), counters.source_messages.get()),
            (0, 2)
        );
    }

    #[test]
    fn line_that_cannot_be_opened_leaves_the_feed_to_others() {
        let missing = serde_json::json!({ "listen": "127.0.0.1:0", "interface": "nosuch0" });
        let present = serde_json::json!({ "listen": "127.0.0.1:0" });
        let mut fed = Fed::with(serde_json::json!([present, missing]));
        assert_eq!(fed.live.lines[1].socket.local_address(), None);
        assert_eq!(fed.take(1, &event(1)), ["message"]);
        let input = serde_json::json!({ "source": 1, "lines": [missing, missing] });
        let input: UdpInputConfig = serde_json::from_value(input).unwrap();
        let opened = Live::open(&input, &"lo".parse().unwrap(), Settings::default());
        assert!(matches!(
            opened.err(),
            Some(PublisherError::Listening { .. })
        ));
    }

    #[test]
    fn pause_of_the_thread_ends_no_wait_for_a_line() {
        let lines = serde_json::json!([{ "listen": "127.0.0.1:0" }, { "listen": "127.0.0.1:0" }]);
        let mut fed = Fed::with(lines);
        let to = [0, 1].map(|line| fed.live.lines[line].socket.local_address().unwrap());
        let send = |fed: &Fed, line: usize, sequence| {
            fed.feed.send_to(&event(sequence), to[line]).unwrap()
        };
        let turn = |fed: &mut Fed, ms| {
            let now = Now {
                monotonic: fed.began.monotonic.after(Nanos::from_ms(ms)),
                utc: fed.began.utc.after(Nanos::from_ms(ms)),
            };
            fed.live.poll(now, &fed.shared, &mut fed.notes).unwrap();
        };
        let poll = |fed: &mut Fed, ms, packets| {
            let before = fed.shared.counters.source_packets.get();
            while fed.shared.counters.source_packets.get() < before + packets {
                turn(fed, ms);
            }
        };
        for line in [0, 1] {
            send(&fed, line, 1);
        }
        poll(&mut fed, 1, 2);
        // Line A lacks message 2, and the thread pauses before it reads line B.
        send(&fed, 0, 3);
        poll(&mut fed, 2, 1);
        for sequence in 4..90 {
            send(&fed, 0, sequence);
        }
        for sequence in 2..90 {
            send(&fed, 1, sequence);
        }
        poll(&mut fed, 500, 174);
        let counters = &fed.shared.counters;
        assert_eq!(
            (counters.source_gaps.get(), counters.source_messages.get()),
            (0, 89)
        );
        // A message that no line brings is lost after its wait.
        for line in [0, 1] {
            send(&fed, line, 91);
        }
        poll(&mut fed, 502, 2);
        turn(&mut fed, 600);
        assert_eq!(fed.shared.counters.source_missing_messages.get(), 1);
    }

    #[test]
    fn stray_packet_does_not_hold_an_auto_input() {
        let mut fed = Fed::new();
        fed.take(1, &deep());
        assert_eq!(fed.live.format, Some(Format::IexTp));
        assert_eq!(fed.take(2, &event(1)), [""; 0]);
        assert_eq!(fed.take(3, &event(2)), [""; 0]);
        let expected = ["message", "message", "message"];
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
            fed.take(ms, &deep_message(ms as u8));
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
            fed.take(ms, &deep_message(ms as u8));
        }
        assert_eq!(fed.live.format, Some(Format::MoldUdp64Itch50));
        assert_eq!(fed.take(10, &event(4)), ["message"]);
    }
}
