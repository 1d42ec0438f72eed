//! Replay of a publisher's journal through its core. The replay must seal the same datagrams, except that
//! their records are made up, with equal numbers and lengths. It must send and report the same.
//!
//! A journal holds the header of a datagram and not its messages. So a replay publishes the whole content
//! as one message when the first of them came. The core decides by whether a datagram is open and whether
//! more fits into it, and both are equal in the replay.

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

/// Replays a publisher's journal from its first snapshot on.
#[must_use]
pub fn replay_publisher(journal: &Journal) -> Replayed<PublisherCore> {
    let is_it = journal.side() == JournalSide::Publisher;
    let mut segments = journal.segments().iter().enumerate().filter(|_| is_it);
    let begin = segments.find_map(|(nth, segment)| {
        let taken = PublisherCore::take_up(journal.snapshot(segment))?;
        Some((nth, segment, taken))
    });
    let Some((nth, segment, (core, is_open))) = begin else {
        return Replayed::nothing();
    };
    let entries = journal.entries_from(nth).filter_map(Result::ok);
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
    let walked = Replayed::walk(journal, nth, |entry| {
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
    /// The last sequence whose datagram was compared with the journal.
    compared: Sequence,
    /// The headers of all data datagrams; `next` is the index of the next one to seal.
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

    /// Gives the input of an entry to the core, or compares an output with the core's.
    fn entry(&mut self, what: &EntryBody<'_>) -> Result<(), &'static str> {
        if let EntryBody::Sealed(by, header) = what {
            return self.sealed(*by, header);
        }
        if matches!(what, EntryBody::Note(_)) {
            return Ok(());
        }
        if self.core.sealed() != self.compared {
            return Err("a datagram that the recorded core did not seal");
        }
        match what {
            EntryBody::Begun(true) => self.open(Nanos::ZERO),
            EntryBody::Begun(false) => self.begin_nothing(Nanos::ZERO),
            EntryBody::Due(utc) => self.core.handle_timeout(self.now(*utc)),
            EntryBody::Posted(fan_out, up_to) => {
                if *up_to > self.core.posted(*fan_out) {
                    match self.core.poll_transmit(*fan_out) {
                        Some(Transmit::Slots(range)) if range.last >= *up_to => {}
                        _ => return Err("the datagrams to send"),
                    }
                }
                self.core.handle_posted(*fan_out, *up_to);
            }
            EntryBody::Completed(fan_out, up_to) => self.core.handle_completed(*fan_out, *up_to),
            EntryBody::Beat(fan_out, bytes) => match self.core.poll_transmit(*fan_out) {
                Some(Transmit::Heartbeat(again)) if again.plain() == **bytes => {}
                _ => return Err("the heartbeat to send"),
            },
            EntryBody::Published(published) => self.published(published)?,
            EntryBody::Happened(event) => {
                if self.core.poll().as_ref() != Some(event) {
                    return Err("an event for the driver");
                }
            }
            _ => return Err("an entry of another core"),
        }
        Ok(())
    }

    fn sealed(&mut self, by: SealedBy, header: &[u8; HEADER_LEN]) -> Result<(), &'static str> {
        let then = header_of(header).ok_or("a header that can't be decoded")?;
        let utc = then.sent_at;
        if then.kind == Kind::Data {
            self.next += 1;
        }
        if by != SealedBy::Input && self.core.sealed() != self.compared {
            return Err("a datagram that the recorded core did not seal");
        }
        match by {
            SealedBy::Input => {}
            SealedBy::Flush => self.core.flush(self.now(utc), false),
            SealedBy::FlushLast => self.core.flush(self.now(utc), true),
            SealedBy::Message => self.open(utc),
            SealedBy::MessageAlone => self.begin_nothing(utc),
        }
        self.compared = self.compared.next();
        let again = self.core.slot(self.compared);
        let again = again.and_then(|slot| header_of(slot.first_chunk()?));
        match again {
            // The CRC is not compared, because it covers other records.
            Some(again) if again == then => Ok(()),
            _ => Err("the sealed datagram"),
        }
    }

    /// Publishes one message with the whole content of the next datagram, which it begins.
    fn open(&mut self, utc: Nanos) {
        let now = self.now(utc);
        let Some(next) = self.ahead.get(self.next) else {
            // The journal ends before this datagram was sealed, so its content is unknown.
            let source = self.other_source();
            fill(&mut self.batch, (1, 56), &[]);
            let _ = (self.core).publish(&self.batch, source, SourcePosition(0), now);
            return;
        };
        let (count, len) = (usize::from(next.count), usize::from(next.payload_len));
        if (self.batch.len(), self.batch.bytes().len()) != (count, len) {
            fill(&mut self.batch, (count, len), &[]);
        }
        // The result is compared when the datagram is sealed.
        let _ = (self.core).publish(&self.batch, next.source, next.source_position, now);
    }

    /// Publishes an empty message, which seals the open datagram and begins none.
    fn begin_nothing(&mut self, utc: Nanos) {
        let (now, source) = (self.now(utc), self.other_source());
        self.batch.clear();
        let _ = (self.core).publish(&self.batch, source, SourcePosition(0), now);
    }

    /// Returns a source other than that of the open datagram, so that the core adds nothing to it.
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
                    return Err("a message that can't be rebuilt");
                }
                let now = self.now(*utc);
                let _ = (self.core).publish(&self.batch, *source, *position, now);
            }
        }
        Ok(())
    }
}

/// Fills the batch with `count` records of `bytes` bytes in total, whose instruments repeat in turn. Returns
/// `false` when no mix of record kinds has that length.
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
