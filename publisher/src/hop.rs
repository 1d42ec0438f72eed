//! From a feed thread to the publish thread: batches of messages that are used again, in order,
//! through a bounded channel. A live input is never held up: what finds no room is lost, and the
//! loss takes its place in the order; a file waits.

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use tickcast_feeds::source::{Incident, Sink};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::units::SourcePosition;
use tickcast_reliability::wire::StreamEvent;

/// Messages and incidents in a batch at most.
const BATCH_LEN: usize = 64;

/// Messages that never reached the publish thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Position of the first.
    pub from: SourcePosition,
    /// How many.
    pub messages: u64,
    /// Their instruments; empty: too many to name.
    pub instruments: Vec<u32>,
    too_many: bool,
}

impl Overflow {
    fn add(&mut self, position: SourcePosition, records: &RecordBatch) {
        if self.messages == 0 {
            self.from = position;
        }
        self.messages += 1;
        let Some(first) = records.records().next() else {
            return;
        };
        let id = first.header().instrument_id;
        if !self.too_many && !self.instruments.contains(&id) {
            self.instruments.push(id);
        }
        // Instrument 0 concerns the whole venue, as no instrument at all does.
        if id == 0 || self.instruments.len() > StreamEvent::INSTRUMENTS_MAX {
            self.too_many = true;
            self.instruments.clear();
        }
    }
}

/// One thing that a source told.
#[derive(Debug)]
pub enum Item<'a> {
    /// A venue message.
    Message(SourcePosition, &'a RecordBatch),
    /// Something about the source itself.
    Incident(Incident),
    /// Messages were lost in the hop.
    Overflow(&'a Overflow),
}

#[derive(Debug, Default)]
enum What {
    #[default]
    Message,
    Incident(Incident),
    Overflow(Overflow),
}

#[derive(Debug, Default)]
struct Cell {
    what: What,
    position: SourcePosition,
    records: RecordBatch,
}

/// Some items, in order. Its memory is used again.
#[derive(Debug, Default)]
pub struct Batch {
    cells: Vec<Cell>,
    len: usize,
}

impl Batch {
    fn next(&mut self) -> &mut Cell {
        if self.len == self.cells.len() {
            self.cells.push(Cell::default());
        }
        self.len += 1;
        &mut self.cells[self.len - 1]
    }

    /// The items.
    pub fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.cells[..self.len].iter().map(|cell| match &cell.what {
            What::Message => Item::Message(cell.position, &cell.records),
            What::Incident(incident) => Item::Incident(*incident),
            What::Overflow(overflow) => Item::Overflow(overflow),
        })
    }
}

/// Makes a hop of so many batches. `is_live`: lose rather than wait.
#[must_use]
pub fn hop(batches: usize, is_live: bool) -> (HopSender, HopReceiver) {
    let (full, taken) = bounded(batches);
    // One more than can be under way: giving a batch back never waits.
    let (back, empty) = bounded(batches + 2);
    let sender = HopSender {
        full,
        empty,
        batch: Batch::default(),
        overflow: Overflow::default(),
        incidents: Vec::new(),
        lost: 0,
        is_live,
        is_closed: false,
    };
    (sender, HopReceiver { taken, back })
}

/// The feed's end.
pub struct HopSender {
    full: Sender<Batch>,
    empty: Receiver<Batch>,
    batch: Batch,
    overflow: Overflow,
    /// Incidents of batches that found no room; they stay in order behind the overflow.
    incidents: Vec<Incident>,
    lost: u64,
    is_live: bool,
    is_closed: bool,
}

impl HopSender {
    /// Sends what there is.
    pub fn flush(&mut self) {
        if self.batch.len == 0 && self.overflow.messages == 0 && self.incidents.is_empty() {
            return;
        }
        if self.overflow.messages > 0 || !self.incidents.is_empty() {
            return self.after_overflow();
        }
        let fresh = self.empty.try_recv().unwrap_or_default();
        let batch = std::mem::replace(&mut self.batch, fresh);
        self.batch.len = 0;
        if let Err(batch) = self.send(batch) {
            self.lose(batch);
        }
    }

    /// Sends what there is, unless the publish thread is busy anyway.
    pub fn offer(&mut self) {
        if self.full.is_empty() {
            self.flush();
        }
    }

    /// Sends what is left, and waits for it: the source has ended.
    pub fn finish(mut self) -> u64 {
        self.is_live = false;
        self.flush();
        self.lost
    }

    /// Messages lost in this hop so far.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether nobody takes anything any more.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn send(&mut self, batch: Batch) -> Result<(), Batch> {
        if !self.is_live {
            self.is_closed |= self.full.send(batch).is_err();
            return Ok(());
        }
        match self.full.try_send(batch) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(batch)) => Err(batch),
            Err(TrySendError::Disconnected(_)) => {
                self.is_closed = true;
                Ok(())
            }
        }
    }

    /// First tells what was lost, then sends the rest; or loses it too.
    #[cold]
    fn after_overflow(&mut self) {
        let mut report = self.empty.try_recv().unwrap_or_default();
        report.len = 0;
        if self.overflow.messages > 0 {
            report.next().what = What::Overflow(std::mem::take(&mut self.overflow));
        }
        for incident in self.incidents.drain(..) {
            report.next().what = What::Incident(incident);
        }
        match self.send(report) {
            Ok(()) => self.flush(),
            Err(mut report) => {
                for cell in &mut report.cells[..report.len] {
                    match std::mem::take(&mut cell.what) {
                        What::Overflow(overflow) => self.overflow = overflow,
                        What::Incident(incident) => self.incidents.push(incident),
                        What::Message => {}
                    }
                }
                let batch = std::mem::take(&mut self.batch);
                self.lose(batch);
            }
        }
    }

    #[cold]
    fn lose(&mut self, mut batch: Batch) {
        for cell in &mut batch.cells[..batch.len] {
            match std::mem::take(&mut cell.what) {
                What::Message => {
                    self.overflow.add(cell.position, &cell.records);
                    self.lost += 1;
                }
                // Gaps add up; the rest is only counted, and was, where it happened.
                What::Incident(Incident::Gap { from, missing }) => self.lose_gap(from, missing),
                What::Incident(_) | What::Overflow(_) => {}
            }
        }
        batch.len = 0;
        self.batch = batch;
    }

    fn lose_gap(&mut self, from: SourcePosition, missing: u64) {
        if let Some(Incident::Gap { missing: all, .. }) = self.incidents.first_mut() {
            *all = all.saturating_add(missing);
        } else {
            self.incidents.push(Incident::Gap { from, missing });
        }
    }
}

impl Sink for HopSender {
    #[inline]
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        let cell = self.batch.next();
        cell.what = What::Message;
        cell.position = position;
        cell.records.copy_from(records);
        if self.batch.len >= BATCH_LEN {
            self.flush();
        }
    }

    fn incident(&mut self, incident: Incident) {
        self.batch.next().what = What::Incident(incident);
        if self.batch.len >= BATCH_LEN {
            self.flush();
        }
    }
}

/// What there is to take.
pub enum Taken {
    /// A batch; give it back.
    Batch(Batch),
    /// Nothing now.
    Nothing,
    /// Nothing any more.
    Ended,
}

/// The publish thread's end.
pub struct HopReceiver {
    taken: Receiver<Batch>,
    back: Sender<Batch>,
}

impl HopReceiver {
    /// Takes the next batch, without waiting.
    #[inline]
    #[must_use]
    pub fn take(&self) -> Taken {
        match self.taken.try_recv() {
            Ok(batch) => Taken::Batch(batch),
            Err(crossbeam_channel::TryRecvError::Empty) => Taken::Nothing,
            Err(crossbeam_channel::TryRecvError::Disconnected) => Taken::Ended,
        }
    }

    /// Gives a batch back, to be used again.
    #[inline]
    pub fn give_back(&self, batch: Batch) {
        // One too many, or nobody there to use it: it is freed.
        let _ = self.back.try_send(batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::record::{MboMsg, RType, RecordHeader};

    fn message(instrument: u32) -> RecordBatch {
        let mut batch = RecordBatch::default();
        batch.push(&MboMsg {
            hd: RecordHeader::new::<MboMsg>(RType::Mbo as u8, 2, instrument, 0),
            ..MboMsg::default()
        });
        batch
    }

    fn at(sequence: u64) -> SourcePosition {
        SourcePosition::new(0, sequence)
    }

    fn drain(receiver: &HopReceiver) -> Vec<String> {
        let mut told = Vec::new();
        while let Taken::Batch(batch) = receiver.take() {
            told.extend(batch.items().map(|item| match item {
                Item::Message(position, _) => format!("m{}", position.sequence()),
                Item::Incident(incident) => format!("{incident:?}"),
                Item::Overflow(o) => {
                    format!(
                        "lost {} from {} of {:?}",
                        o.messages,
                        o.from.sequence(),
                        o.instruments
                    )
                }
            }));
            receiver.give_back(batch);
        }
        told
    }

    #[test]
    fn what_a_live_input_loses_is_told_in_its_place() {
        let (mut sender, receiver) = hop(1, true);
        for n in 1..=4 {
            sender.message(at(n), &message(n as u32));
            sender.flush();
        }
        assert_eq!(sender.lost(), 3);
        assert_eq!(drain(&receiver), ["m1"]);
        sender.message(at(5), &message(5));
        sender.flush();
        // The report takes the one place there is; 5 is lost behind it.
        assert_eq!(drain(&receiver), ["lost 3 from 2 of [2, 3, 4]"]);
        sender.flush();
        assert_eq!(drain(&receiver), ["lost 1 from 5 of [5]"]);
        sender.message(at(6), &message(6));
        sender.flush();
        assert_eq!(drain(&receiver), ["m6"]);
        assert_eq!(sender.lost(), 4);
    }

    #[test]
    fn a_gap_in_a_batch_that_is_lost_is_still_told() {
        let (mut sender, receiver) = hop(1, true);
        sender.message(at(1), &message(1));
        sender.flush();
        sender.incident(Incident::Gap {
            from: at(2),
            missing: 3,
        });
        sender.message(at(5), &message(1));
        sender.flush();
        drain(&receiver);
        sender.flush();
        let told = drain(&receiver);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("lost 1 from 5") && told[1].contains("missing: 3"));
    }

    #[test]
    fn batches_are_used_again_and_the_order_is_kept() {
        let (mut sender, receiver) = hop(4, false);
        let mut expected = Vec::new();
        let mut told = Vec::new();
        for n in 1..=300 {
            sender.message(at(n), &message(1));
            expected.push(format!("m{n}"));
            if n % 7 == 0 {
                sender.flush();
                told.extend(drain(&receiver));
            }
        }
        sender.flush();
        told.extend(drain(&receiver));
        assert_eq!(told, expected);
    }

    #[test]
    fn a_feed_notices_that_nobody_takes_its_messages() {
        let (mut sender, receiver) = hop(2, false);
        drop(receiver);
        sender.message(at(1), &message(1));
        sender.flush();
        assert!(sender.is_closed());
    }
}
