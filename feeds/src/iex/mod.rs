//! IEX: a segment of TOPS 1.5/1.6 or DEEP 1.0 in, DBN records and incidents out.
//!
//! Every message of a known type becomes at least one record, with exactly one position. Messages
//! are walked by their lengths: one that cannot be read costs only itself.

pub mod messages;
pub mod normalise;
pub(crate) mod packets;
pub mod transport;

use std::net::Ipv4Addr;

use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, SourcePosition};

use self::{
    messages::{IexMessage, MessageError},
    normalise::{PUBLISHER_ID, Stamp},
    transport::{IexTp, SegmentNote},
};
use crate::arbiter::{Arbiter, Lines, Listen};
use crate::instruments::{self, Instruments, Symbol};
use crate::source::{
    Decoder, FeedSession, Incident, LineStats, MessageCounts, Packet, ResumePoint, Sink,
};

/// Event code of the last message of a day.
const END_OF_MESSAGES: u8 = b'C';

/// Decodes one IEX feed: all lines of a channel of TOPS or of DEEP. The segment
/// with which the source begins decides which.
#[derive(Clone, Debug)]
pub struct IexDecoder {
    arbiter: Arbiter<IexTp>,
    normaliser: Normaliser,
}

/// Makes records of messages.
#[derive(Clone, Debug, Default)]
struct Normaliser {
    instruments: Instruments,
    counts: MessageCounts,
    batch: RecordBatch,
    /// The place behind the message with which the venue ended a session last.
    end: Option<SourcePosition>,
}

impl Default for IexDecoder {
    fn default() -> Self {
        Self::new(Instruments::default(), Lines::default())
    }
}

impl IexDecoder {
    /// A decoder that has seen nothing, and takes ids for its symbols from `instruments`.
    #[must_use]
    pub fn new(instruments: Instruments, lines: Lines) -> Self {
        Self {
            arbiter: Arbiter::new(IexTp::default(), lines, false),
            normaliser: Normaliser {
                instruments,
                ..Normaliser::default()
            },
        }
    }

    /// The symbols seen so far, with their ids.
    #[must_use]
    pub const fn instruments(&self) -> &Instruments {
        &self.normaliser.instruments
    }

    /// Returns the arbiter, and a listener that makes records of its messages.
    #[inline(always)]
    fn split<'a>(
        &'a mut self,
        sink: &'a mut dyn Sink,
    ) -> (&'a mut Arbiter<IexTp>, Normalising<'a>) {
        let listener = Normalising {
            normaliser: &mut self.normaliser,
            received_at: Nanos::ZERO,
            note: None,
            sink,
        };
        (&mut self.arbiter, listener)
    }
}

impl Normaliser {
    #[inline]
    fn message(&mut self, bytes: &[u8], place: &Place, sink: &mut dyn Sink) {
        // The kinds that make up nearly all of a day are told apart once: each has its own copy of
        // what follows, in which the compiler knows what it has.
        macro_rules! often {
            ($($kind:literal => $variant:ident($layout:ident),)+) => {
                match bytes.first() {
                    $(Some($kind) => if let Some(read) = messages::$layout::read(bytes) {
                        return self.tell($kind, &IexMessage::$variant(read), place, sink);
                    })+
                    _ => {}
                }
            };
        }
        often!(
            b'8' => Buy(PriceLevel),
            b'5' => Sell(PriceLevel),
            b'Q' => Quote(Quote),
            b'T' => Trade(Trade),
        );
        self.decode_rare(bytes, place, sink);
    }

    #[inline(never)]
    fn decode_rare(&mut self, bytes: &[u8], place: &Place, sink: &mut dyn Sink) {
        let message = match IexMessage::read(bytes) {
            Ok(message) => message,
            Err(MessageError::Unknown { kind }) => {
                self.counts.add(kind);
                sink.incident(Incident::UnknownMessage { kind });
                return;
            }
            Err(MessageError::Short { .. }) => {
                let reason = "an IEX message is shorter than its type";
                return unreadable(reason, place, sink);
            }
            Err(MessageError::Empty) => {
                let reason = "an IEX message is empty";
                return unreadable(reason, place, sink);
            }
        };
        self.tell(bytes[0], &message, place, sink);
    }

    #[inline(always)]
    fn tell(&mut self, kind: u8, message: &IexMessage, place: &Place, sink: &mut dyn Sink) {
        self.counts.add(kind);
        self.batch.clear();
        let (time, symbol) = message.about();
        let instrument = match symbol {
            None => 0,
            Some(symbol) => match self.instruments.id(symbol) {
                Some(id) => id,
                None => match self.first_seen(symbol, time) {
                    Some(id) => id,
                    None => {
                        let reason = "the instrument table is full, the message is dropped";
                        sink.incident(Incident::Malformed { reason });
                        return;
                    }
                },
            },
        };
        let stamp = Stamp::new(
            instrument,
            time,
            place.received_at,
            place.note.sent_at,
            place.position.sequence(),
        );
        let is_exact = normalise::push(message, place.note.feed, &stamp, &mut self.batch);
        if !is_exact {
            let reason = "an IEX price does not fit 1e-9 fixed point, it is given as undefined";
            sink.incident(Incident::Malformed { reason });
        }
        sink.message(place.position, &self.batch);
        if matches!(message, IexMessage::SystemEvent(event) if event.event == END_OF_MESSAGES) {
            self.end = Some(place.position.plus(1));
            sink.incident(Incident::EndOfSession);
        }
    }

    #[cold]
    fn first_seen(&mut self, symbol: Symbol, time: u64) -> Option<u32> {
        let found = self.instruments.resolve(symbol)?;
        let mapping = instruments::mapping(symbol, found.id, PUBLISHER_ID, time);
        self.batch.put(&mapping);
        Some(found.id)
    }
}

fn unreadable(reason: &'static str, place: &Place, sink: &mut dyn Sink) {
    let position = place.position;
    sink.incident(Incident::UnreadableMessage { position, reason });
}

impl Decoder for IexDecoder {
    fn line_packet(&mut self, line: usize, now: Nanos, packet: Packet<'_>, sink: &mut dyn Sink) {
        let (arbiter, mut listener) = self.split(sink);
        arbiter.packet(line, now, packet, &mut listener);
    }

    fn set_sender(&mut self, line: usize, sender: Ipv4Addr) {
        self.arbiter.set_sender(line, sender);
    }

    fn poll(&mut self, now: Nanos, sink: &mut dyn Sink) {
        let (arbiter, mut listener) = self.split(sink);
        arbiter.poll(now, &mut listener);
    }

    fn finish(&mut self, sink: &mut dyn Sink) {
        let (arbiter, mut listener) = self.split(sink);
        arbiter.finish(&mut listener);
    }

    fn unreadable(&mut self, sink: &mut dyn Sink) {
        let from = self.arbiter.next_position();
        sink.incident(Incident::Unreadable { from });
    }

    fn resume(&mut self, at: &ResumePoint) {
        let session = at.session.map(transport::from_session_id);
        self.arbiter.resume(session, at);
        (self.normaliser.instruments).resume(&at.instruments, at.next_id);
        let end = at
            .end_at
            .map(|end| SourcePosition::new(at.next.ordinal(), end));
        self.normaliser.end = end;
    }

    fn session(&self) -> Option<FeedSession> {
        let ordinal = self.arbiter.next_position().ordinal();
        let id = (self.arbiter.protocol()).session_id(self.arbiter.session()?)?;
        let end = self.normaliser.end.filter(|at| at.ordinal() == ordinal);
        let end_at = end.map(SourcePosition::sequence);
        Some(FeedSession {
            id,
            ordinal,
            end_at,
        })
    }

    fn place(&self) -> Option<ResumePoint> {
        let (instruments, next_id) = self.normaliser.instruments.known();
        Some(ResumePoint {
            instruments,
            next_id,
            ..self.arbiter.place()?
        })
    }

    fn newest_sent_at(&self) -> u64 {
        self.arbiter.newest_sent_at()
    }

    fn packets(&self) -> u64 {
        self.arbiter.packets()
    }

    fn line(&self, line: usize) -> LineStats {
        self.arbiter.line(line)
    }

    fn counts(&self) -> &MessageCounts {
        &self.normaliser.counts
    }
}

/// Makes records of the messages of a packet.
struct Normalising<'a> {
    normaliser: &'a mut Normaliser,
    received_at: Nanos,
    note: Option<SegmentNote>,
    sink: &'a mut dyn Sink,
}

impl Listen<IexTp> for Normalising<'_> {
    #[inline(always)]
    fn packet(&mut self, received_at: Nanos, note: &SegmentNote) {
        self.received_at = received_at;
        self.note = Some(*note);
    }

    #[inline(always)]
    fn message(&mut self, position: SourcePosition, message: &[u8]) {
        if let Some(note) = self.note {
            let place = Place {
                note,
                position,
                received_at: self.received_at.0,
            };
            self.normaliser.message(message, &place, self.sink);
        }
    }

    fn incident(&mut self, incident: Incident) {
        self.sink.incident(incident);
    }
}

/// Where and when a message came.
#[derive(Clone, Copy)]
struct Place {
    note: SegmentNote,
    position: SourcePosition,
    received_at: u64,
}
