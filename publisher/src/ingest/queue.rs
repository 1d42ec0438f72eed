//! The queue from a feed or handler thread to the publish thread: batches in order through a
//! bounded channel, with reused memory. Live inputs never block: when the queue is full, the
//! message is dropped and the loss is queued in its place. File inputs block.
//!
//! The batch returned last is reused first, so few batches circulate while the publish thread keeps
//! up, and these stay in the caches. The others have their memory from the start, so a publish
//! thread that falls behind causes no page faults in the feed.
//!
//! Losses, and silences without room, are stored where both ends see them, so they are reported even
//! if the sender sends nothing more. The sender reports them before its next message, or the receiver
//! does once it has drained the queue.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use tickcast_feeds::source::{Incident, Sink};
use tickcast_reliability::record::{RecordBatch, RecordBatches, RecordSlice};
use tickcast_reliability::types::SourcePosition;
use tickcast_reliability::wire::{SourceLossReason, StreamEvent};

use crate::state::hearing::Silence;
use crate::state::source_loss::SourceLoss;

/// Approximate number of messages and incidents in a batch.
pub(crate) const BATCH_LEN: usize = 64;
/// Initial capacity of a batch: two of the largest usual records per message.
const ROOM_WORDS: usize = BATCH_LEN * 2 * 8;
/// Interval between two checks for room, while a sender waits.
const ROOM_EVERY: Duration = Duration::from_micros(50);

/// Takes the items of a source, including losses of any reason.
pub(crate) trait Intake: Sink {
    /// Reports messages of the source that will never come.
    fn lost(&mut self, loss: SourceLoss);

    /// Reports that the source fell silent, or is heard again.
    fn silence(&mut self, silence: Silence);
}

/// One item of a source.
#[derive(Debug)]
pub(crate) enum SourceItem<'a> {
    /// A venue message.
    Message(SourcePosition, RecordSlice<'a>),
    /// An event of the source itself.
    Incident(Incident),
    /// Messages were lost, at the source or in the queue.
    Lost(&'a SourceLoss),
    /// The source fell silent, or is heard again.
    Silence(Silence),
    /// Send everything so far now.
    Flush,
}

#[derive(Debug, Default)]
enum EntryKind {
    #[default]
    /// The next of the batch's messages.
    Message,
    Incident(Incident),
    Lost(SourceLoss),
    Silence(Silence),
    Flush,
}

#[derive(Debug, Default)]
struct Entry {
    kind: EntryKind,
    position: SourcePosition,
}

/// Items in order. The memory of a batch is reused.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    entries: Vec<Entry>,
    /// One piece of memory: with separate memory, each cell would grow whenever larger messages
    /// arrive in it.
    messages: RecordBatches,
}

impl Batch {
    /// Returns a batch whose memory is resident, because every page was written.
    fn with_room() -> Self {
        let mut entries: Vec<Entry> = std::iter::repeat_with(Entry::default)
            .take(BATCH_LEN)
            .collect();
        entries.clear();
        let messages = RecordBatches::with_room(BATCH_LEN, ROOM_WORDS);
        Self { entries, messages }
    }

    #[inline]
    fn message(&mut self, position: SourcePosition, records: RecordSlice<'_>) {
        self.messages.push(records);
        let kind = EntryKind::Message;
        self.entries.push(Entry { kind, position });
    }

    fn other(&mut self, kind: EntryKind) {
        let position = SourcePosition::default();
        self.entries.push(Entry { kind, position });
    }

    #[inline]
    fn clear(&mut self) {
        self.entries.clear();
        self.messages.clear();
    }

    const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the items.
    pub(crate) fn items(&self) -> impl Iterator<Item = SourceItem<'_>> {
        let mut messages = self.messages.messages();
        self.entries.iter().map(move |entry| match &entry.kind {
            // Each such cell has one message.
            EntryKind::Message => {
                SourceItem::Message(entry.position, messages.next().unwrap_or_default())
            }
            EntryKind::Incident(incident) => SourceItem::Incident(*incident),
            EntryKind::Lost(loss) => SourceItem::Lost(loss),
            EntryKind::Silence(silence) => SourceItem::Silence(*silence),
            EntryKind::Flush => SourceItem::Flush,
        })
    }
}

/// State that both ends share.
#[derive(Debug, Default)]
struct Ends {
    /// Items that had no room, in order: the last silence, and before and after it one loss of each
    /// reason, and one of datagrams dropped unread on this host. While there is any, the sender sends
    /// it before anything else.
    deferred: Mutex<Vec<EntryKind>>,
    has_deferred: AtomicBool,
    /// Set by the receiver: nothing more is taken.
    closed: AtomicBool,
    /// Whether the sender is between its check of `closed` and the end of the work that follows.
    inside: AtomicBool,
}

impl Ends {
    fn deferred(&self) -> MutexGuard<'_, Vec<EntryKind>> {
        // locks: only when there was no room, here and below.
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, loss: SourceLoss) {
        // locks: only when something was lost.
        defer_loss(&mut self.deferred(), loss);
        self.has_deferred.store(true, Release);
    }

    /// Defers a silence. It replaces an earlier one, so that few are stored.
    #[cold]
    fn silence(&self, silence: Silence) {
        // locks: only when there was no room.
        let mut all = self.deferred();
        for earlier in std::mem::take(&mut *all) {
            if let EntryKind::Lost(loss) = earlier {
                defer_loss(&mut all, loss);
            }
        }
        all.push(EntryKind::Silence(silence));
        self.has_deferred.store(true, Release);
    }
}

/// Adds a loss to a like one that no silence follows.
fn defer_loss(all: &mut Vec<EntryKind>, loss: SourceLoss) {
    let mut since_silence = all.iter_mut().rev().map_while(|it| match it {
        EntryKind::Lost(loss) => Some(loss),
        _ => None,
    });
    match since_silence.find(|it| it.is_like(&loss)) {
        Some(it) => it.add(&loss),
        None => all.push(EntryKind::Lost(loss)),
    }
}

/// Creates a queue of `batches` batches, of which `ready` have their memory from the start. With
/// `is_live`, a full queue drops messages instead of blocking.
#[must_use]
pub(crate) fn ingest_queue(
    batches: usize,
    ready: usize,
    is_live: bool,
) -> (QueueSender, QueueReceiver) {
    let (full, taken) = bounded(batches);
    // One more than can be in flight, so returning a batch never blocks.
    let (back, empty) = bounded(batches + 2);
    let ends: Arc<Ends> = Arc::default();
    let mut spare = Vec::with_capacity(batches + 2);
    spare.extend(std::iter::repeat_with(Batch::with_room).take(ready));
    let sender = QueueSender {
        full,
        empty,
        batch: spare.pop().unwrap_or_default(),
        spare,
        ends: ends.clone(),
        is_deferring: false,
        lost: 0,
        is_live,
        is_closed: false,
    };
    (sender, QueueReceiver { taken, back, ends })
}

/// The sending end.
pub(crate) struct QueueSender {
    full: Sender<Batch>,
    empty: Receiver<Batch>,
    /// Holds a place in `full` as soon as it holds an item.
    batch: Batch,
    /// Batches to use next; the one returned last is on top.
    spare: Vec<Batch>,
    ends: Arc<Ends>,
    /// Whether something may be in `ends.deferred`.
    is_deferring: bool,
    lost: u64,
    is_live: bool,
    is_closed: bool,
}

impl QueueSender {
    /// Takes a message. Returns `false` if there was no room; the message is then dropped and
    /// reported lost.
    #[inline]
    pub(crate) fn push(&mut self, position: SourcePosition, records: &RecordBatch) -> bool {
        if !self.has_place() {
            self.lose(position, records);
            return false;
        }
        self.batch.message(position, records.into());
        self.flush_when_long();
        true
    }

    /// Asks the publish thread to seal its messages. Does nothing without room, because the queued
    /// messages go out as soon as they are taken.
    pub(crate) fn push_flush(&mut self) {
        if self.has_place() {
            self.batch.other(EntryKind::Flush);
        }
        self.flush();
    }

    /// Sends the current batch.
    pub(crate) fn flush(&mut self) {
        if self.is_deferring {
            // Reports what was deferred, if there is room again.
            self.has_place();
        }
        if self.batch.is_empty() {
            return;
        }
        self.reclaim();
        let fresh = self.spare.pop().unwrap_or_default();
        let batch = std::mem::replace(&mut self.batch, fresh);
        self.batch.clear();
        // Never waits for a live input: only this end fills the queue, and the batch had a place.
        self.is_closed |= self.full.send(batch).is_err();
    }

    /// Sends the current batch, unless the publish thread is busy.
    pub(crate) fn offer(&mut self) {
        if self.full.is_empty() {
            self.flush();
        }
    }

    /// Sends the rest when the source has ended. Returns the number of messages lost in this queue.
    #[must_use]
    pub(crate) fn finish(mut self) -> u64 {
        self.flush();
        self.lost
    }

    /// Returns the number of messages lost in this queue so far.
    #[must_use]
    pub(crate) const fn lost_messages(&self) -> u64 {
        self.lost
    }

    /// Returns whether the receiver has closed the queue.
    #[must_use]
    pub(crate) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Runs `run` unless the receiver has closed the queue; the receiver takes everything that
    /// `run` sends. Returns `None` if the queue is closed.
    #[inline]
    pub(crate) fn while_open<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> Option<T> {
        // SeqCst orders this store with the receiver's store to `closed` and its load of `inside`.
        self.ends.inside.store(true, SeqCst);
        let done = (!self.ends.closed.load(SeqCst)).then(|| run(self));
        self.ends.inside.store(false, Release);
        done
    }

    /// Waits, outside any hot path, until part of the queue, at least one batch, is free. Returns
    /// `false` if `until` passes first. Also returns `true` when the queue is closed.
    pub(crate) fn wait_for_room(&mut self, until: Instant) -> bool {
        let capacity = self.full.capacity().unwrap_or(usize::MAX);
        let enough = (capacity / 2).min(BATCH_LEN);
        while self.full.len() > enough || self.full.is_full() {
            if self.is_closed || self.ends.closed.load(SeqCst) || !self.reclaim() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(ROOM_EVERY);
        }
        true
    }

    /// Takes the returned batches. Returns `false` if the receiver is gone.
    #[inline]
    fn reclaim(&mut self) -> bool {
        loop {
            match self.empty.try_recv() {
                // The receiver sometimes creates a batch to report a loss; keep no more batches
                // than before.
                Ok(batch) if self.spare.len() < self.spare.capacity() => self.spare.push(batch),
                Ok(_) => {}
                Err(why) => return why == TryRecvError::Empty,
            }
        }
    }

    /// Returns whether an item can be added. Deferred items take their place first.
    #[inline]
    fn has_place(&mut self) -> bool {
        if !self.batch.is_empty() {
            return true;
        }
        if self.is_live && self.full.is_full() {
            return false;
        }
        if self.is_deferring {
            self.enqueue_deferred();
        }
        true
    }

    #[cold]
    fn enqueue_deferred(&mut self) {
        // locks: only when there was no room.
        let mut all = self.ends.deferred();
        all.drain(..).for_each(|kind| self.batch.other(kind));
        self.ends.has_deferred.store(false, Release);
        self.is_deferring = false;
    }

    #[cold]
    fn lose(&mut self, position: SourcePosition, records: &RecordBatch) {
        let mut ids = Vec::new();
        for record in records.records() {
            let id = record.header().instrument_id;
            if !ids.contains(&id) {
                ids.push(id);
            }
            if ids.len() > StreamEvent::INSTRUMENTS_MAX {
                break; // told as all
            }
        }
        let loss = SourceLoss::of(SourceLossReason::Overflow, position, 1, &ids);
        self.ends.lose(loss);
        self.is_deferring = true;
        self.lost += 1;
    }

    #[inline]
    fn flush_when_long(&mut self) {
        if self.batch.entries.len() >= BATCH_LEN {
            self.flush();
        }
    }
}

impl Intake for QueueSender {
    fn lost(&mut self, loss: SourceLoss) {
        if self.has_place() {
            self.batch.other(EntryKind::Lost(loss));
            return self.flush_when_long();
        }
        let whole = SourceLoss::of(loss.reason, loss.from, loss.messages, &loss.instruments);
        self.ends.lose(whole.unread(loss.unread));
        self.is_deferring = true;
    }

    fn silence(&mut self, silence: Silence) {
        if self.has_place() {
            self.batch.other(EntryKind::Silence(silence));
            return self.flush_when_long();
        }
        self.ends.silence(silence);
        self.is_deferring = true;
    }
}

impl Sink for QueueSender {
    #[inline]
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        self.push(position, records);
    }

    fn incident(&mut self, incident: Incident) {
        if let Incident::Gap { from, missing } = incident {
            return self.lost(SourceLoss::gap(from, missing));
        }
        // The other losses were counted where they happened, and appear only in the log.
        if self.has_place() {
            self.batch.other(EntryKind::Incident(incident));
            self.flush_when_long();
        }
    }
}

/// The result of a take.
pub(crate) enum Taken {
    /// A batch; give it back.
    Batch(Batch),
    /// Nothing is available now.
    Nothing,
    /// The sender is gone and the queue is empty.
    Ended,
}

/// The publish thread's end.
pub(crate) struct QueueReceiver {
    taken: Receiver<Batch>,
    back: Sender<Batch>,
    ends: Arc<Ends>,
}

impl QueueReceiver {
    /// Takes the next batch, without waiting.
    #[inline]
    #[must_use]
    pub(crate) fn take(&self) -> Taken {
        let ended = match self.taken.try_recv() {
            Ok(batch) => return Taken::Batch(batch),
            Err(TryRecvError::Empty) => self.ends.closed.load(SeqCst),
            Err(TryRecvError::Disconnected) => true,
        };
        match self.deferred() {
            Some(batch) => Taken::Batch(batch),
            None if ended => Taken::Ended,
            None => Taken::Nothing,
        }
    }

    /// Gives a batch back, to be used again.
    #[inline]
    pub(crate) fn give_back(&self, batch: Batch) {
        // The batch is surplus, or the sender is gone: free it.
        let _ = self.back.try_send(batch);
    }

    /// Closes the queue for a sender that checks ([`QueueSender::while_open`]). The messages sent
    /// before can still be taken; then the queue has ended.
    pub(crate) fn close(&self) {
        self.ends.closed.store(true, SeqCst);
        while self.ends.inside.load(SeqCst) {
            std::thread::yield_now();
        }
    }

    /// Returns the deferred items after everything sent, if the sender has not reported them.
    #[inline]
    fn deferred(&self) -> Option<Batch> {
        if !self.ends.has_deferred.load(Acquire) {
            return None;
        }
        // locks: only when there was no room.
        let mut all = self.ends.deferred();
        // While an item is stored here nothing follows it, so a batch that arrived meanwhile is
        // older.
        if !self.taken.is_empty() {
            return None;
        }
        self.ends.has_deferred.store(false, Release);
        let mut batch = Batch::default();
        all.drain(..).for_each(|kind| batch.other(kind));
        (!batch.is_empty()).then_some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::source_loss::Unread;
    use tickcast_reliability::record::{MboMsg, RType, RecordHeader};
    use tickcast_reliability::types::Nanos;

    fn message(instrument: u32) -> RecordBatch {
        let mut batch = RecordBatch::default();
        batch.put(&MboMsg {
            hd: RecordHeader::new::<MboMsg>(RType::Mbo as u8, 2, instrument, 0),
            ..MboMsg::default()
        });
        batch
    }

    fn at(sequence: u64) -> SourcePosition {
        SourcePosition::new(0, sequence)
    }

    fn drain(receiver: &QueueReceiver) -> Vec<String> {
        let mut reported = Vec::new();
        while let Taken::Batch(batch) = receiver.take() {
            reported.extend(batch.items().map(|item| match item {
                SourceItem::Message(position, _) => format!("m{}", position.sequence()),
                SourceItem::Incident(incident) => format!("{incident:?}"),
                SourceItem::Lost(loss) => format!(
                    "{:?} {} from {} of {:?}",
                    loss.reason,
                    loss.messages,
                    loss.from.sequence(),
                    loss.instruments
                ),
                SourceItem::Silence(silence) => format!("{silence:?}"),
                SourceItem::Flush => "flush".into(),
            }));
            receiver.give_back(batch);
        }
        reported
    }

    #[test]
    fn live_input_loss_is_reported_in_stream_order() {
        let (mut sender, receiver) = ingest_queue(1, 0, true);
        for n in 1..=4 {
            assert_eq!(sender.push(at(n), &message(n as u32)), n == 1);
            sender.flush();
        }
        assert_eq!(sender.lost_messages(), 3);
        // The waiting messages come first, then the loss, although the sender sends nothing more.
        assert_eq!(drain(&receiver), ["m1", "Overflow 3 from 2 of [2, 3, 4]"]);
        for n in 5..=6 {
            sender.push(at(n), &message(n as u32));
            sender.flush();
        }
        assert!(matches!(receiver.take(), Taken::Batch(_)));
        sender.push(at(7), &message(7));
        sender.flush();
        assert_eq!(drain(&receiver), ["Overflow 1 from 6 of [6]", "m7"]);
        assert_eq!(sender.lost_messages(), 4);
    }

    #[test]
    fn silence_without_room_is_reported_in_its_place() {
        let (mut sender, receiver) = ingest_queue(1, 0, true);
        let since = Nanos(7);
        sender.push(at(1), &message(1));
        sender.silence(Silence::Begun { since });
        sender.flush();
        sender.push(at(2), &message(2));
        sender.silence(Silence::Over { since });
        // The publish thread makes room just before the message that ends the silence.
        let Taken::Batch(first) = receiver.take() else {
            panic!("there is a batch")
        };
        assert_eq!(first.items().count(), 2);
        receiver.give_back(first);
        sender.push(at(3), &message(3));
        sender.flush();
        let lost = "Overflow 1 from 2 of [2]";
        let (begun, over) = ("Begun { since: Nanos(7) }", "Over { since: Nanos(7) }");
        assert_eq!(drain(&receiver), [lost, over, "m3"]);
        // A loss before a silence and one after it stay apart, and silences do not pile up.
        sender.push(at(4), &message(4));
        sender.flush();
        for n in 5..=7 {
            sender.silence(Silence::Over { since });
            sender.push(at(n), &message(n as u32));
            sender.silence(Silence::Begun { since });
        }
        sender.silence(Silence::Over { since });
        sender.push(at(8), &message(8));
        let reported = drain(&receiver);
        let last = [
            "Overflow 3 from 5 of [5, 6, 7]",
            over,
            "Overflow 1 from 8 of [8]",
        ];
        assert_eq!(
            reported[..],
            [&["m4"], &last[..]].concat(),
            "without {begun}"
        );
    }

    #[test]
    fn unread_drops_differ_from_gaps_with_full_queue() {
        let (mut sender, receiver) = ingest_queue(1, 0, true);
        sender.push(at(1), &message(1));
        sender.flush();
        let unread = |packets, ms| {
            let paused = Nanos::from_ms(ms);
            Some(Unread { packets, paused })
        };
        // After a long pause, the sender finds dropped packets, and then no room for the packets that
        // waited.
        sender.lost(SourceLoss::gap(at(2), 3).unread(unread(5, 30)));
        sender.lost(SourceLoss::gap(at(9), 1));
        sender.lost(SourceLoss::gap(at(12), 2).unread(unread(4, 0)));
        let mut reported = Vec::new();
        while let Taken::Batch(batch) = receiver.take() {
            for item in batch.items() {
                if let SourceItem::Lost(loss) = item {
                    reported.push((loss.from, loss.messages, loss.unread));
                }
            }
            receiver.give_back(batch);
        }
        assert_eq!(reported, [(at(2), 5, unread(9, 30)), (at(9), 1, None)]);
    }

    #[test]
    fn queue_allocates_nothing_when_large_message_moves() {
        let (small, mut large) = (message(1), RecordBatch::default());
        (0..40).for_each(|id| large.extend(message(id).records()));
        let (mut sender, receiver) = ingest_queue(4, 0, true);
        let mut round = |large_at: usize| {
            for n in 0..BATCH_LEN {
                let records = if n == large_at { &large } else { &small };
                assert!(sender.push(at(n as u64), records));
            }
            let Taken::Batch(batch) = receiver.take() else {
                panic!("a full batch was sent");
            };
            receiver.give_back(batch);
        };
        // Enough rounds to bring every batch into circulation.
        (0..8).for_each(|_| round(0));
        let counted = allocation_counter::measure(|| (1..BATCH_LEN).for_each(&mut round));
        assert_eq!(counted.count_total, 0, "{counted:?}");
    }

    #[test]
    fn lost_message_names_its_instruments_or_all() {
        let of = |ids: std::ops::RangeInclusive<u32>| {
            let mut all = RecordBatch::default();
            ids.for_each(|id| all.extend(message(id).records()));
            all
        };
        for (ids, named) in [
            (7..=9, vec![7, 8, 9]),
            (1..=128, (1..=128).collect()),
            (1..=129, vec![]),
        ] {
            let (mut sender, receiver) = ingest_queue(1, 0, true);
            sender.push(at(1), &message(1));
            sender.flush();
            let mut twice = of(ids.clone());
            twice.extend(of(ids).records());
            assert!(!sender.push(at(2), &twice));
            let reported = format!("Overflow 1 from 2 of {named:?}");
            assert_eq!(drain(&receiver), ["m1", &reported]);
        }
    }

    #[test]
    fn room_waiter_continues_or_gives_up_in_time() {
        let long = || Instant::now() + Duration::from_secs(3600);
        let (mut sender, receiver) = ingest_queue(2, 0, true);
        assert!(sender.wait_for_room(Instant::now()), "it is empty");
        for n in 1..=2 {
            assert!(sender.push(at(n), &message(1)));
            sender.flush();
        }
        assert!(!sender.wait_for_room(Instant::now()), "it is full");
        assert_eq!(sender.lost_messages(), 0);
        let mut sender = std::thread::scope(|scope| {
            let waiting = scope.spawn(move || sender.wait_for_room(long()).then_some(sender));
            assert_eq!(drain(&receiver), ["m1", "m2"]);
            waiting.join().unwrap().unwrap()
        });
        for n in 3..=4 {
            assert!(sender.push(at(n), &message(1)));
            sender.flush();
        }
        receiver.close();
        assert!(sender.wait_for_room(long()), "closed");
        let (mut sender, receiver) = ingest_queue(1, 0, true);
        sender.push(at(1), &message(1));
        sender.flush();
        drop(receiver);
        assert!(sender.wait_for_room(long()), "nobody is left");
    }

    #[test]
    fn gap_without_room_is_reported_before_successors() {
        let (mut sender, receiver) = ingest_queue(1, 0, true);
        sender.message(at(1), &message(1));
        sender.flush();
        for from in [2, 7] {
            sender.incident(Incident::Gap {
                from: at(from),
                missing: 3,
            });
        }
        sender.message(at(10), &message(1));
        assert!(matches!(receiver.take(), Taken::Batch(_)));
        sender.message(at(11), &message(1));
        sender.flush();
        let reported = ["Gap 6 from 2 of []", "Overflow 1 from 10 of [1]", "m11"];
        assert_eq!(drain(&receiver), reported);
    }

    #[test]
    fn queued_message_arrives_or_is_lost_in_order() {
        let (mut sender, receiver) = ingest_queue(4, 0, true);
        const MESSAGES: u64 = 200_000;
        let feed = std::thread::spawn(move || {
            let mut accepted = 0;
            for n in 1..=MESSAGES {
                accepted += u64::from(sender.push(at(n), &message(1)));
                sender.flush();
            }
            (accepted, sender.finish())
        });
        let (mut next, mut taken, mut lost) = (1, 0, 0);
        loop {
            match receiver.take() {
                Taken::Batch(batch) => {
                    for item in batch.items() {
                        let (position, count) = match item {
                            SourceItem::Message(position, _) => (position, 1),
                            SourceItem::Lost(loss) => (loss.from, loss.messages),
                            other => panic!("nobody sent {other:?}"),
                        };
                        assert_eq!(position.sequence(), next, "in order, and nothing left out");
                        next += count;
                        match item {
                            SourceItem::Message(..) => taken += 1,
                            _ => lost += count,
                        }
                    }
                    receiver.give_back(batch);
                }
                Taken::Nothing => std::thread::yield_now(),
                Taken::Ended => break,
            }
        }
        assert_eq!(next, MESSAGES + 1);
        assert_eq!(feed.join().unwrap(), (taken, lost), "both ends agree");
    }

    #[test]
    fn queue_close_delivers_exactly_accepted_messages() {
        for round in 0..200 {
            let (mut sender, receiver) = ingest_queue(1024, 0, true);
            let feed = std::thread::spawn(move || {
                let mut accepted = 0;
                while let Some(taken) = sender.while_open(|queue| {
                    let taken = queue.push(at(accepted + 1), &message(1));
                    queue.flush();
                    taken
                }) {
                    accepted += u64::from(taken);
                }
                accepted
            });
            let mut taken = 0;
            let mut turns = 0;
            loop {
                turns += 1;
                if turns == 10 * (round % 20) + 1 {
                    receiver.close();
                }
                match receiver.take() {
                    Taken::Batch(batch) => {
                        let is_message =
                            |item: &SourceItem<'_>| matches!(item, SourceItem::Message(..));
                        taken += batch.items().filter(is_message).count() as u64;
                    }
                    Taken::Nothing => {}
                    Taken::Ended => break,
                }
            }
            assert_eq!(feed.join().unwrap(), taken, "round {round}");
        }
    }

    #[test]
    fn feed_with_slow_publish_thread_allocates_nothing() {
        let (mut sender, receiver) = ingest_queue(8, 9, true);
        let message = message(1);
        let all = 8 * BATCH_LEN as u64;
        let counted = allocation_counter::measure(|| {
            assert!((1..=all).all(|n| sender.push(at(n), &message)));
        });
        assert_eq!(counted.count_total, 0, "from its first moment: {counted:?}");
        assert!(!sender.push(at(all + 1), &message), "that was all of it");
        for _ in 0..20 {
            while let Taken::Batch(batch) = receiver.take() {
                receiver.give_back(batch);
            }
            sender.push(at(1), &message);
            sender.flush();
        }
        assert!(
            sender.spare.len() <= 10,
            "those that told losses are not kept"
        );
    }

    #[test]
    fn few_batches_circulate_while_the_publish_thread_keeps_up() {
        let (mut sender, receiver) = ingest_queue(64, 65, true);
        let mut used = std::collections::HashSet::new();
        for n in 1..=1_000 {
            // One long backlog brings all batches into circulation.
            let behind = if n == 100 { 64 } else { 1 };
            for _ in 0..behind {
                sender.push(at(n), &message(1));
                sender.flush();
            }
            while let Taken::Batch(batch) = receiver.take() {
                if n > 101 {
                    used.insert(batch.entries.as_ptr());
                }
                receiver.give_back(batch);
            }
        }
        assert!(used.len() <= 2, "{} of 65", used.len());
    }

    #[test]
    fn batches_are_used_again_and_the_order_is_kept() {
        let (mut sender, receiver) = ingest_queue(4, 0, false);
        let mut expected = Vec::new();
        let mut reported = Vec::new();
        for n in 1..=300 {
            sender.message(at(n), &message(1));
            expected.push(format!("m{n}"));
            if n % 7 == 0 {
                sender.flush();
                reported.extend(drain(&receiver));
            }
        }
        sender.flush();
        reported.extend(drain(&receiver));
        assert_eq!(reported, expected);
    }

    #[test]
    fn feed_detects_dropped_queue_receiver() {
        let (mut sender, receiver) = ingest_queue(2, 0, false);
        drop(receiver);
        sender.message(at(1), &message(1));
        sender.flush();
        assert!(sender.is_closed());
    }
}
