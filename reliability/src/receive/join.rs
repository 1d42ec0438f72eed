//! The state of the join: which epoch is followed and where delivery begins, what the publisher
//! offered, and whether its repair connection is up (docs/PROTOCOL.md §5.1, §6.1).

use serde::{Deserialize, Serialize};

use crate::control::{ChannelOffer, Start};
use crate::ring::Geometry;
use crate::types::{Epoch, Lineage, RecordNumber, Sequence};
use crate::wire::{Header, Kind};

/// The effect of a WELCOME.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Welcomed {
    /// The stream begins here.
    Began,
    /// The stream goes on where it was interrupted.
    Resumed,
    /// The stream goes on in an epoch that continues the one followed.
    Continued,
    /// Another epoch is followed from now on.
    EpochChanged,
    /// The offer is of an epoch older than ours, from a publisher that was replaced. Nothing changed.
    Zombie,
}

/// Where delivery begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// The first sequence to deliver.
    pub next: Sequence,
    /// The number of its first record, where known.
    pub next_record: Option<RecordNumber>,
    /// The epoch and sequence where the application wanted to start, if that epoch is over and the
    /// publisher does not continue it.
    pub over: Option<(Epoch, Sequence)>,
}

impl Beginning {
    /// Returns where `start` begins in what the publisher offers.
    #[must_use]
    pub(crate) fn of(offer: &ChannelOffer, start: Start) -> Self {
        let (oldest, oldest_record) = offer.oldest_of_all();
        let at = |next, next_record| Self {
            next,
            next_record,
            over: None,
        };
        let at_oldest = at(oldest, Some(oldest_record));
        match start {
            Start::Live => at(offer.newest.next(), Some(offer.next_record)),
            Start::Oldest => at_oldest,
            Start::At(epoch, sequence) => match end_of(offer, epoch) {
                Some((end, record)) => {
                    let next = sequence.max(Sequence::FIRST).min(end);
                    match next == oldest {
                        true => at_oldest,
                        false => at(next, (next == end).then_some(record)),
                    }
                }
                None => Self {
                    over: Some((epoch, sequence)),
                    ..at_oldest
                },
            },
        }
    }
}

/// Returns the sequence and record behind `epoch`, if it is the epoch on offer or one that this
/// continues.
fn end_of(offer: &ChannelOffer, epoch: Epoch) -> Option<(Sequence, RecordNumber)> {
    match offer.continues.of(epoch) {
        Some(it) => Some((it.last.next(), it.next_record)),
        None if epoch == offer.epoch => Some((offer.newest.next(), offer.next_record)),
        None => None,
    }
}

/// The state of the join.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct JoinState {
    epoch: Epoch,
    /// The earlier epochs that `epoch` continues.
    lineage: Lineage,
    /// Slots of the publisher's ring.
    slots: u64,
    /// The shape of that ring, where a ring can have it.
    geometry: Option<Geometry>,
    /// Delivery is live beyond this sequence; `None` once that was reported.
    live_after: Option<Sequence>,
    /// The oldest sequence, where delivery begins there and nothing was delivered yet.
    beginning: Option<Sequence>,
    link_up: bool,
    /// Whether the application was told that the repair connection is down.
    link_down_reported: bool,
}

impl JoinState {
    /// A channel that was not welcomed yet, of a ring of `slots` slots of `slot_len` bytes.
    #[must_use]
    pub(crate) fn new((slots, slot_len): (u64, usize)) -> Self {
        Self {
            epoch: Epoch::NONE,
            lineage: Lineage::default(),
            slots,
            geometry: geometry_of(slots, slot_len),
            live_after: None,
            beginning: None,
            link_up: false,
            link_down_reported: false,
        }
    }

    /// The epoch that is followed; [`Epoch::NONE`] before the first WELCOME.
    #[must_use]
    #[inline]
    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The earlier epochs that the one followed continues.
    #[must_use]
    pub(crate) const fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// The number of slots of the publisher's ring. An honest datagram jumps no further.
    #[must_use]
    pub(crate) const fn slots(&self) -> u64 {
        self.slots
    }

    /// The shape of the publisher's ring, where a ring can have it.
    #[must_use]
    pub(crate) const fn geometry(&self) -> Option<Geometry> {
        self.geometry
    }

    /// Returns whether a datagram is of the epoch that is followed, or was sealed under one that this
    /// epoch continues, where the sequence belongs to that one.
    #[must_use]
    #[inline]
    pub(crate) fn is_of_lineage(&self, header: &Header) -> bool {
        header.epoch
            == match header.kind {
                Kind::Heartbeat => self.epoch,
                _ => self.lineage.epoch_of(self.epoch, header.sequence),
            }
    }

    /// Follows the epoch on offer.
    pub(crate) fn set_epoch(&mut self, epoch: Epoch, lineage: Lineage) {
        (self.epoch, self.lineage) = (epoch, lineage);
    }

    /// Everything up to this sequence counts as history; delivery beyond it is live.
    pub(crate) const fn set_live_after(&mut self, newest: Sequence) {
        self.live_after = Some(newest);
    }

    /// Moves the end of history to this sequence, unless delivery is live already.
    pub(crate) fn move_live_after(&mut self, newest: Sequence) {
        self.live_after = self.live_after.map(|_| newest);
    }

    /// Returns whether all history was delivered or declared lost.
    #[must_use]
    pub(crate) const fn is_live(&self) -> bool {
        self.epoch.0 != 0 && self.live_after.is_none()
    }

    /// Returns `true` once, when delivery has passed the end of history.
    #[inline]
    pub(crate) fn take_live(&mut self, next: Sequence) -> bool {
        let is_live = self.live_after.is_some_and(|after| next > after);
        if is_live {
            self.live_after = None;
        }
        is_live
    }

    /// Delivery begins with the oldest sequence, which is this one; or does not.
    pub(crate) const fn set_beginning(&mut self, oldest: Option<Sequence>) {
        self.beginning = oldest;
    }

    /// Moves the beginning to `next`, if nothing was delivered yet.
    pub(crate) fn move_beginning(&mut self, next: Sequence) {
        self.beginning = self.beginning.map(|_| next);
    }

    /// Moves the beginning to `oldest`, because the ring moved on. Delivery is not live, even where
    /// the ring was empty and that was reported already.
    pub(crate) fn begin_later(&mut self, oldest: Sequence, highest_seen: Sequence) {
        self.beginning = Some(oldest);
        self.live_after.get_or_insert(highest_seen);
    }

    /// The oldest sequence, where delivery begins there and nothing was delivered yet.
    #[must_use]
    #[inline]
    pub(crate) const fn beginning(&self) -> Option<Sequence> {
        self.beginning
    }

    /// Returns whether the repair connection is up.
    #[must_use]
    pub(crate) const fn is_link_up(&self) -> bool {
        self.link_up
    }

    /// Returns whether the application was told that the repair connection is down.
    #[must_use]
    pub(crate) const fn is_link_down_reported(&self) -> bool {
        self.link_down_reported
    }

    /// The repair connection of another receiver was reported as down, or was not.
    pub(crate) const fn set_link_down_reported(&mut self, reported: bool) {
        self.link_down_reported = reported;
    }

    /// The repair connection is up, and the publisher has the ring on offer. Returns whether to report
    /// the connection: it was reported as down.
    pub(crate) fn link_is_up(&mut self, offer: &ChannelOffer) -> bool {
        self.link_up = true;
        self.slots = offer.slots;
        self.geometry = geometry_of(offer.slots, offer.slot_len as usize);
        std::mem::take(&mut self.link_down_reported)
    }

    /// The repair connection is down. Returns whether it was up.
    pub(crate) const fn link_is_down(&mut self) -> bool {
        std::mem::replace(&mut self.link_up, false)
    }
}

/// Returns the shape of a ring; `None` where no publisher can make such a ring, which is never READ.
fn geometry_of(slots: u64, slot_len: usize) -> Option<Geometry> {
    let slot_len = u32::try_from(slot_len).ok()?;
    Geometry::new(slot_len, slots).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::HeartbeatLimits;
    use crate::types::{ChannelId, ConfigHash, Continued};

    /// An offer of epoch 5 with the sequences 31 to 40; epoch 4 ended with 20.
    fn offer() -> ChannelOffer {
        let before = Continued {
            epoch: Epoch(4),
            last: Sequence(20),
            next_record: RecordNumber(201),
            complete: false,
        };
        ChannelOffer {
            authentication: None,
            channel: ChannelId(1),
            name: String::new(),
            epoch: Epoch(5),
            newest: Sequence(40),
            oldest: Sequence(31),
            oldest_record: RecordNumber(301),
            next_record: RecordNumber(401),
            slot_len: 1024,
            slots: 64,
            config_hash: ConfigHash(0),
            ended: false,
            fan_outs: Vec::new(),
            directory: Vec::new(),
            continues: Lineage::from(vec![before]),
            history: None,
            heartbeats: HeartbeatLimits::default(),
        }
    }

    fn beginning(start: Start) -> (u64, Option<u64>, Option<(u64, u64)>) {
        let it = Beginning::of(&offer(), start);
        let record = it.next_record.map(|record| record.0);
        let over = it.over.map(|(epoch, sequence)| (epoch.0, sequence.0));
        (it.next.0, record, over)
    }

    fn header(kind: Kind, epoch: u64, sequence: u64) -> Header {
        Header {
            kind,
            channel: ChannelId(1),
            count: 0,
            epoch: Epoch(epoch),
            sequence: Sequence(sequence),
            first_record: RecordNumber(1),
            source_position: crate::types::SourcePosition(0),
            sent_at: crate::types::Nanos(1),
            retained: 1,
            source: crate::types::SourceId(1),
            payload_len: 0,
            flags: 0,
            header_len: 64,
            relay: 0,
        }
    }

    #[test]
    fn delivery_begins_where_start_says() {
        assert_eq!(beginning(Start::Live), (41, Some(401), None));
        assert_eq!(beginning(Start::Oldest), (31, Some(301), None));
        let at = |epoch, sequence| beginning(Start::At(Epoch(epoch), Sequence(sequence)));
        assert_eq!(at(5, 35), (35, None, None));
        assert_eq!(at(5, 31), (31, Some(301), None));
        assert_eq!(at(5, 0), (1, None, None), "no sequence is below the first");
        assert_eq!(at(5, 99), (41, Some(401), None), "it was never sent");
    }

    #[test]
    fn continued_epoch_begins_no_later_than_it_ended() {
        let at = |epoch, sequence| beginning(Start::At(Epoch(epoch), Sequence(sequence)));
        assert_eq!(at(4, 12), (12, None, None));
        assert_eq!(at(4, 30), (21, Some(201), None));
        assert_eq!(
            at(3, 12),
            (31, Some(301), Some((3, 12))),
            "that one is over"
        );
    }

    #[test]
    fn datagrams_of_continued_epochs_are_of_line() {
        let mut join = JoinState::new((64, 256));
        join.set_epoch(Epoch(5), offer().continues);
        let is_of_lineage =
            |kind, epoch, sequence| join.is_of_lineage(&header(kind, epoch, sequence));
        assert!(is_of_lineage(Kind::Data, 5, 21) && is_of_lineage(Kind::Data, 4, 20));
        assert!(!is_of_lineage(Kind::Data, 4, 21) && !is_of_lineage(Kind::Data, 5, 20));
        assert!(!is_of_lineage(Kind::Heartbeat, 4, 20) && is_of_lineage(Kind::Heartbeat, 5, 20));
    }

    #[test]
    fn join_becomes_live_once_after_history() {
        let mut join = JoinState::new((64, 256));
        assert!(!join.is_live(), "not welcomed yet");
        join.set_epoch(Epoch(5), Lineage::default());
        join.set_live_after(Sequence(40));
        assert!(!join.is_live() && !join.take_live(Sequence(40)));
        join.move_live_after(Sequence(45));
        assert!(!join.take_live(Sequence(45)));
        assert!(join.take_live(Sequence(46)) && join.is_live());
        assert!(!join.take_live(Sequence(47)));
        join.move_live_after(Sequence(60));
        assert!(join.is_live(), "nothing is history any more");
    }

    #[test]
    fn later_beginning_is_history_again() {
        let mut join = JoinState::new((64, 256));
        join.set_epoch(Epoch(5), Lineage::default());
        join.move_beginning(Sequence(9));
        assert_eq!(join.beginning(), None, "delivery has begun");
        join.set_beginning(Some(Sequence(1)));
        join.begin_later(Sequence(10), Sequence(12));
        assert_eq!(join.beginning(), Some(Sequence(10)));
        assert!(!join.take_live(Sequence(12)) && join.take_live(Sequence(13)));
        join.move_beginning(Sequence(11));
        assert_eq!(join.beginning(), Some(Sequence(11)));
    }

    #[test]
    fn link_up_is_reported_only_after_reported_down() {
        let mut join = JoinState::new((3, 1));
        assert!(join.geometry().is_none() && !join.link_is_down());
        assert!(!join.link_is_up(&offer()));
        assert_eq!(join.slots(), 64);
        assert!(join.geometry().is_some() && join.is_link_up());
        assert!(join.link_is_down() && !join.link_is_down());
        join.set_link_down_reported(true);
        assert!(join.link_is_up(&offer()) && !join.is_link_down_reported());
    }
}
