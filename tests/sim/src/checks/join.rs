//! Checks the start of a subscriber, and the time at which it is live, against its WELCOME
//! (docs/PROTOCOL.md §5.1).

use tickcast_reliability::control::{ChannelOffer, Message, RefusalReason, Start};
use tickcast_reliability::delivery::{Event, Position};
use tickcast_reliability::types::{ChannelId, Epoch, RecordNumber, Sequence};

type Checked = Result<(), String>;

/// A sequence, and the number of its first record; 0 when unknown.
type Place = (Sequence, RecordNumber);

/// Check on the start of one subscriber on one channel.
#[derive(Debug)]
pub struct JoinCheck {
    start: Start,
    /// The epoch that is followed, if any.
    epoch: Epoch,
    /// The start that follows from the WELCOME.
    begins: Option<Place>,
    joined: bool,
    /// Last sequence that must be settled before *Live* is emitted.
    live_to: Option<Sequence>,
    leaves: bool,
    /// Last known sequence.
    heard: Sequence,
    /// Start of the ring according to a refusal during the current input.
    moved_on: Option<Place>,
    /// Number of *Joined* and *Live* events.
    pub seen: (u64, u64),
}

impl JoinCheck {
    /// Returns the check of a subscriber with this start, before any WELCOME.
    #[must_use]
    pub const fn new(start: Start) -> Self {
        Self {
            start,
            epoch: Epoch::NONE,
            begins: None,
            joined: false,
            live_to: None,
            leaves: false,
            heard: Sequence::NONE,
            moved_on: None,
            seen: (0, 0),
        }
    }

    /// Records the offer of a WELCOME.
    pub fn welcomed(&mut self, offer: &ChannelOffer) {
        let ahead = match self.start {
            Start::At(epoch, _) if self.epoch == Epoch::NONE => epoch,
            _ => self.epoch,
        };
        if offer.epoch < ahead {
            // The WELCOME of a zombie publisher.
            return;
        }
        if self.epoch == Epoch::NONE {
            self.begins = Some(place(self.start, offer));
            self.live_to = Some(offer.newest);
        } else if offer.continues.of(self.epoch).is_some() {
            self.live_to = self.live_to.map(|_| offer.newest);
        } else if offer.epoch > self.epoch {
            self.live_to = Some(offer.newest);
        }
        self.epoch = offer.epoch;
    }

    /// Records another control message that is about to be passed to the core.
    pub fn message(&mut self, message: &Message<'_>) {
        if let Message::Refused(refused) = message
            && (refused.reason, refused.epoch) == (RefusalReason::Window, self.epoch)
        {
            self.moved_on = Some((refused.oldest, refused.oldest_record));
        }
    }

    /// Records that the application leaves: open gaps are given up, and *Live* need not be emitted.
    pub const fn leaves(&mut self) {
        self.leaves = true;
    }

    /// Checks an event that the application received.
    ///
    /// # Errors
    /// An event with a wrong start, or at a wrong time.
    pub fn reported(&mut self, channel: ChannelId, position: &Position, event: &Event) -> Checked {
        match event {
            Event::Joined { after } => {
                self.seen.0 += 1;
                let again = std::mem::replace(&mut self.joined, true);
                let due = match again {
                    true if self.start == Start::Oldest => self.moved_on,
                    true => None,
                    false => self.begins,
                };
                if again {
                    let heard = self.heard.max(*after);
                    self.live_to.get_or_insert(heard);
                }
                let place = (after.next(), position.record);
                if due != Some(place) {
                    let start = self.start;
                    return Err(format!(
                        "channel {channel} with {start:?} begins at {place:?}, due is {due:?}"
                    ));
                }
            }
            Event::Live => {
                self.seen.1 += 1;
                let (to, settled) = (self.live_to.take(), position.sequence);
                if to.is_none_or(|to| settled < to) {
                    return Err(format!(
                        "channel {channel} is live, settled is {settled}, due after {to:?}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks the state after an input. `next` is the next sequence to deliver, `heard` the last
    /// known one.
    ///
    /// # Errors
    /// A *Live* that was due and not emitted.
    pub fn settled(&mut self, next: Sequence, heard: Sequence) -> Checked {
        self.moved_on = None;
        self.heard = heard;
        let is_due = |to: &Sequence| self.joined && !self.leaves && next > *to;
        match self.live_to.filter(is_due) {
            Some(to) => Err(format!("is not live, {next} is due, the newest was {to}")),
            None => Ok(()),
        }
    }
}

/// Returns the place at which a subscriber with this start and offer begins.
fn place(start: Start, offer: &ChannelOffer) -> Place {
    let newest = (offer.newest.next(), offer.next_record);
    let oldest = offer.oldest_of_all();
    let (epoch, sequence) = match start {
        Start::Live => return newest,
        Start::Oldest => return oldest,
        Start::At(epoch, sequence) => (epoch, sequence.max(Sequence::FIRST)),
    };
    let end = match offer.continues.of(epoch) {
        Some(it) => (it.last.next(), it.next_record),
        None if epoch == offer.epoch => newest,
        // The named epoch has ended.
        None => return oldest,
    };
    match sequence {
        _ if sequence.min(end.0) == oldest.0 => oldest,
        _ if sequence >= end.0 => end,
        _ => (sequence, RecordNumber(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::control::History;

    fn offer() -> ChannelOffer {
        serde_json::from_value(serde_json::json!({
            "channel": 7, "name": "sim", "epoch": 3, "newest": 20, "oldest": 5,
            "oldest_record": 50, "next_record": 210, "slot_len": 1024, "slots": 64,
            "config_hash": 1, "ended": false, "fan_outs": [], "directory": [],
        }))
        .unwrap()
    }

    #[test]
    fn join_start_resolves_to_its_position() {
        let at = |epoch, sequence| Start::At(Epoch(epoch), Sequence(sequence));
        for (start, first, record) in [
            (Start::Live, 21, 210),
            (Start::Oldest, 5, 50),
            (at(3, 9), 9, 0),
            (at(3, 5), 5, 50),
            (at(3, 40), 21, 210),
            (at(3, 0), 1, 0),
            (at(2, 9), 5, 50),
        ] {
            let due = (Sequence(first), RecordNumber(record));
            assert_eq!(place(start, &offer()), due, "{start:?}");
        }
        let history = Some(History {
            oldest: Sequence(2),
            oldest_record: RecordNumber(20),
        });
        let older = ChannelOffer { history, ..offer() };
        let due = (Sequence(2), RecordNumber(20));
        assert_eq!(place(Start::Oldest, &older), due);
    }

    #[test]
    fn live_is_due_when_welcomes_newest_is_resolved() {
        let mut of = JoinCheck::new(Start::Oldest);
        of.welcomed(&offer());
        of.joined = true;
        assert_eq!(of.settled(Sequence(20), Sequence(25)), Ok(()));
        assert!(of.settled(Sequence(21), Sequence(25)).is_err());
        of.live_to = None;
        assert_eq!(of.settled(Sequence(21), Sequence(25)), Ok(()));
    }
}
