//! IEX: a segment of TOPS 1.5/1.6 or DEEP 1.0 in, DBN records and incidents out.
//!
//! Every message of a known type becomes at least one record, with exactly one position. Messages
//! are walked by their lengths: one that cannot be read costs only itself.

pub mod messages;
pub mod normalise;
pub mod transport;

use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::SourcePosition;

use self::{
    messages::{Message, MessageError},
    normalise::{PUBLISHER_ID, Stamp},
    transport::{Feed, Segment, Tracker},
};
use crate::instruments::{self, Instruments, Symbol};
use crate::source::{Decoder, Incident, MessageCounts, Packet, Sink};

/// Decodes one IEX feed: both lines of TOPS or both of DEEP, not a mix, since each feed counts
/// its messages on its own. The first segment decides which.
#[derive(Clone, Debug, Default)]
pub struct IexDecoder {
    feed: Option<Feed>,
    tracker: Tracker,
    instruments: Instruments,
    counts: MessageCounts,
    batch: RecordBatch,
}

impl IexDecoder {
    /// A decoder that has seen nothing, and takes ids for its symbols from `instruments`.
    #[must_use]
    pub fn new(instruments: Instruments) -> Self {
        Self {
            instruments,
            ..Self::default()
        }
    }

    /// The symbols seen so far, with their ids.
    #[must_use]
    pub const fn instruments(&self) -> &Instruments {
        &self.instruments
    }

    #[inline]
    fn message(&mut self, bytes: &[u8], place: &Place, sink: &mut dyn Sink) {
        // The kinds that make up nearly all of a day are told apart once: each has its own copy of
        // what follows, in which the compiler knows what it has.
        macro_rules! often {
            ($($kind:literal => $variant:ident($layout:ident),)+) => {
                match bytes.first() {
                    $(Some($kind) => if let Some(read) = messages::$layout::read(bytes) {
                        return self.tell($kind, &Message::$variant(read), place, sink);
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
        self.seldom(bytes, place, sink);
    }

    #[inline(never)]
    fn seldom(&mut self, bytes: &[u8], place: &Place, sink: &mut dyn Sink) {
        let message = match Message::read(bytes) {
            Ok(message) => message,
            Err(MessageError::Unknown { kind }) => {
                self.counts.add(kind);
                sink.incident(Incident::UnknownMessage { kind });
                return;
            }
            Err(MessageError::Short { .. }) => {
                let reason = "an IEX message is shorter than its type";
                sink.incident(Incident::Malformed { reason });
                return;
            }
            Err(MessageError::Empty) => {
                let reason = "an IEX message is empty";
                sink.incident(Incident::Malformed { reason });
                return;
            }
        };
        self.tell(bytes[0], &message, place, sink);
    }

    #[inline(always)]
    fn tell(&mut self, kind: u8, message: &Message, place: &Place, sink: &mut dyn Sink) {
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
            place.sent_at,
            place.sequence,
        );
        let is_exact = normalise::push(message, place.feed, &stamp, &mut self.batch);
        if !is_exact {
            let reason = "an IEX price does not fit 1e-9 fixed point, it is given as undefined";
            sink.incident(Incident::Malformed { reason });
        }
        let position = SourcePosition::new(place.ordinal, place.sequence);
        sink.message(position, &self.batch);
    }

    #[cold]
    fn first_seen(&mut self, symbol: Symbol, time: u64) -> Option<u32> {
        let found = self.instruments.resolve(symbol)?;
        let mapping = instruments::mapping(symbol, found.id, PUBLISHER_ID, time);
        self.batch.put(&mapping);
        Some(found.id)
    }
}

impl Decoder for IexDecoder {
    fn packet(&mut self, packet: Packet<'_>, sink: &mut dyn Sink) {
        let segment = match Segment::read(packet.payload) {
            Ok(segment) => segment,
            Err(reason) => {
                sink.incident(Incident::Malformed { reason });
                return;
            }
        };
        if *self.feed.get_or_insert(segment.feed) != segment.feed {
            let reason = "TOPS and DEEP are mixed in one source, give each a source of its own";
            sink.incident(Incident::Malformed { reason });
            return;
        }
        let fresh = self.tracker.segment(&segment, |i| sink.incident(i));
        let Some(fresh) = fresh else {
            return;
        };
        let mut messages = segment.messages();
        let mut walked = 0;
        for bytes in messages.by_ref() {
            if walked >= fresh.skip {
                let place = Place {
                    feed: segment.feed,
                    ordinal: fresh.ordinal,
                    sequence: segment.first + walked,
                    received_at: packet.received_at.0,
                    sent_at: segment.sent_at,
                };
                self.message(bytes, &place, sink);
            }
            walked += 1;
        }
        self.tracker.walked(&segment, walked);
        if let Some(reason) = messages.fault() {
            sink.incident(Incident::Malformed { reason });
        }
    }

    fn counts(&self) -> &MessageCounts {
        &self.counts
    }
}

/// Where and when a message came.
#[derive(Clone, Copy)]
struct Place {
    feed: Feed,
    ordinal: u16,
    sequence: u64,
    received_at: u64,
    sent_at: u64,
}
