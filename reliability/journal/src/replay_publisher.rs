//! A publisher's record run through its core again: the same datagrams must be sealed, with records of
//! the same number and length in place of those of then, the same sent, and the same told.
//!
//! Of a datagram a record has the header that came of it, not its messages. So a replay publishes all
//! of it as one message where the first of them came: what the core decides then, it decides by whether
//! something is open and whether more fits, which is the same.

use super::layout::{JournalSide, Published, SealedBy};
use super::reader::{EntryBody, Journal};
use super::replay::Replayed;
use tickcast_reliability::publish::{PublisherCore, Transmit};
use tickcast_reliability::record::{
    RecordBatch, RecordHeader, record_len, words_as_bytes, words_as_bytes_mut,
};
use tickcast_reliability::types::{Nanos, Now, Sequence, SourceId, SourcePosition, State};
use tickcast_reliability::wire::headers_only::{header_of, records_of};
use tickcast_reliability::wire::{HEADER_LEN, Header, Kind};

/// Runs what can be run of a publisher's record: from its first snapshot on.
#[must_use]
pub fn replay_publisher(recording: &Journal) -> Replayed<PublisherCore> {
    let is_it = recording.side() == JournalSide::Publisher;
    let mut segments = recording.segments().iter().enumerate().filter(|_| is_it);
    let begin = segments.find_map(|(nth, segment)| {
        let taken = PublisherCore::take_up(recording.snapshot(segment))?;
        Some((nth, segment, taken))
    });
    let Some((nth, segment, (core, is_open))) = begin else {
        return Replayed::nothing();
    };
    let entries = recording.entries_from(nth).filter_map(Result::ok);
    let headers = entries.filter_map(|entry| match entry.what {
        EntryBody::Sealed(_, header) => header_of(header).filter(|it| it.kind == Kind::Data),
        _ => None,
    });
    let mut run = Run {
        compared: core.sealed(),
        core,
        at: segment.first_at,
        ahead: headers.collect(),
        next: 0,
        batch: RecordBatch::default(),
    };
    if is_open {
        run.open(Nanos::ZERO);
    }
    let walked = Replayed::walk(recording, nth, |entry| {
        run.at = entry.at;
        run.entry(&entry.what)
    });
    Replayed {
        core: Some(run.core),
        ..walked
    }
}

struct Run {
    core: PublisherCore,
    at: Nanos,
    /// What was sealed up to here is what was sealed then.
    compared: Sequence,
    /// The headers of all datagrams of records, and which of them is sealed next.
    ahead: Vec<Header>,
    next: usize,
    batch: RecordBatch,
}

impl Run {
    const fn now(&self, utc: Nanos) -> Now {
        Now {
            monotonic: self.at,
            utc,
        }
    }

    /// Gives the core what an entry says it was given, and compares what it says came out.
    fn entry(&mut self, what: &EntryBody<'_>) -> Result<(), &'static str> {
        if let EntryBody::Sealed(by, header) = what {
            return self.sealed(*by, header);
        }
        if matches!(what, EntryBody::Note(_)) {
            return Ok(());
        }
        if self.core.sealed() != self.compared {
            return Err("a datagram that was not sealed then");
        }
        match what {
            EntryBody::Begun(true) => self.open(Nanos::ZERO),
            EntryBody::Begun(false) => self.begin_nothing(Nanos::ZERO),
            EntryBody::Due(utc) => self.core.handle_timeout(self.now(*utc)),
            EntryBody::Posted(fan_out, up_to) => {
                if *up_to > self.core.posted(*fan_out) {
                    match self.core.poll_transmit(*fan_out) {
                        Some(Transmit::Slots(range)) if range.last >= *up_to => {}
                        _ => return Err("what was to be sent"),
                    }
                }
                self.core.handle_posted(*fan_out, *up_to);
            }
            EntryBody::Completed(fan_out, up_to) => self.core.handle_completed(*fan_out, *up_to),
            EntryBody::Beat(fan_out, bytes) => match self.core.poll_transmit(*fan_out) {
                Some(Transmit::Heartbeat(again)) if again == **bytes => {}
                _ => return Err("the heartbeat that was to be sent"),
            },
            EntryBody::Published(published) => self.published(published)?,
            EntryBody::Happened(event) => {
                if self.core.poll().as_ref() != Some(event) {
                    return Err("what the core told its driver");
                }
            }
            _ => return Err("an entry of another core"),
        }
        Ok(())
    }

    fn sealed(&mut self, by: SealedBy, header: &[u8; HEADER_LEN]) -> Result<(), &'static str> {
        let then = header_of(header).ok_or("a header that can't be read")?;
        let utc = then.sent_at;
        if then.kind == Kind::Data {
            self.next += 1;
        }
        if by != SealedBy::Told && self.core.sealed() != self.compared {
            return Err("a datagram that was not sealed then");
        }
        match by {
            SealedBy::Told => {}
            SealedBy::Flush => self.core.flush(self.now(utc), false),
            SealedBy::FlushLast => self.core.flush(self.now(utc), true),
            SealedBy::Message => self.open(utc),
            SealedBy::MessageAlone => self.begin_nothing(utc),
        }
        self.compared = self.compared.next();
        let again = self.core.slot(self.compared);
        let again = again.and_then(|slot| header_of(slot.first_chunk()?));
        match again {
            // All but its CRC, which is that of other records.
            Some(again) if again == then => Ok(()),
            _ => Err("the datagram that was sealed"),
        }
    }

    /// A message comes that begins the next datagram: all of that.
    fn open(&mut self, utc: Nanos) {
        let now = self.now(utc);
        let Some(next) = self.ahead.get(self.next) else {
            // It was not sealed any more when the record ended: what was in it nobody knows.
            let source = self.other_source();
            fill(&mut self.batch, (1, 56), &[]);
            let _ = (self.core).publish(&self.batch, source, SourcePosition(0), now);
            return;
        };
        let (count, len) = (usize::from(next.count), usize::from(next.payload_len));
        if (self.batch.len(), self.batch.bytes().len()) != (count, len) {
            fill(&mut self.batch, (count, len), &[]);
        }
        // What comes of it is compared when it is sealed.
        let _ = (self.core).publish(&self.batch, next.source, next.source_position, now);
    }

    /// A message comes that seals what is open, and begins nothing.
    fn begin_nothing(&mut self, utc: Nanos) {
        let (now, source) = (self.now(utc), self.other_source());
        self.batch.clear();
        let _ = (self.core).publish(&self.batch, source, SourcePosition(0), now);
    }

    /// One that what is open is not of, so that nothing is added to it.
    fn other_source(&self) -> SourceId {
        let last = self.next.checked_sub(1).and_then(|it| self.ahead.get(it));
        SourceId(last.map_or(1, |it| it.source.0 ^ 1))
    }

    fn published(&mut self, what: &Published) -> Result<(), &'static str> {
        match what {
            Published::Event(event, utc) => {
                let _ = self.core.event(event, self.now(*utc));
            }
            Published::End(utc) => {
                let _ = self.core.end(self.now(*utc));
            }
            Published::Stop => self.core.stop(),
            Published::Group(subscribers, hold_off_us) => {
                self.core.set_group(*subscribers, *hold_off_us);
            }
            Published::TooLarge {
                source,
                position,
                records,
                bytes,
                instruments,
                utc,
            } => {
                let (count, len) = (*records as usize, *bytes as usize);
                let possible = count <= 1 << 16 && len <= 1 << 24;
                if !possible || !fill(&mut self.batch, (count, len), instruments) {
                    return Err("a message that can't be made up");
                }
                let now = self.now(*utc);
                let _ = (self.core).publish(&self.batch, *source, *position, now);
            }
        }
        Ok(())
    }
}

/// Records of any kind, so many of so many bytes, of these instruments in turn; `false`, and none, where
/// there are no such.
fn fill(batch: &mut RecordBatch, (count, bytes): (usize, usize), instruments: &[u32]) -> bool {
    batch.clear();
    let Some(kinds) = records_of(count, bytes) else {
        return false;
    };
    let mut instruments = instruments.iter().cycle();
    for rtype in kinds {
        let len = record_len(rtype).unwrap_or_default();
        let instrument = instruments.next().copied().unwrap_or_default();
        let mut words = vec![0; len / size_of::<u64>()];
        let head = words_as_bytes_mut(&mut words);
        head[0] = (len / RecordHeader::LENGTH_MULTIPLIER) as u8;
        head[1] = rtype;
        head[4..8].copy_from_slice(&instrument.to_le_bytes());
        if batch.push_bytes(words_as_bytes(&words)).is_err() {
            return false;
        }
    }
    true
}
