//! The state of a channel after its events. A reader that missed some events gets the state instead of
//! each event.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::delivery::{Event, LineId};

/// State of a channel after all events up to a place in its stream.
///
/// ```
/// use tickcast_reliability::delivery::Event;
/// use tickcast_reliability::delivery::StreamState;
///
/// let mut state = StreamState::default();
/// state.follow(&Event::Stale);
/// assert!(state.stale);
/// state.follow(&Event::Recovered);
/// assert_eq!(state, StreamState::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamState {
    /// A publisher accepted the JOIN.
    pub joined: bool,
    /// All older datagrams are delivered; the stream is live.
    pub live: bool,
    /// The session has ended; nothing follows in this epoch.
    pub ended: bool,
    /// No multicast of the publisher arrives.
    pub stale: bool,
    /// The publisher was silent on every path for so long that it counts as dead.
    pub publisher_dead: bool,
    /// Multicast does not arrive although the publisher is alive.
    pub multicast_lost: bool,
    /// The repair connection is established.
    pub repair_link_up: bool,
    /// The lines that are silent while the stream arrives elsewhere; line A is the first.
    pub lines_down: [bool; LineId::MAX],
}

impl StreamState {
    /// Applies an event. Momentary events (a loss, a recovered gap) change nothing.
    pub fn follow(&mut self, event: &Event) {
        match event {
            Event::Joined { .. } => {
                (self.joined, self.publisher_dead) = (true, false);
                (self.live, self.ended) = (false, false);
                // A WELCOME arrives over the repair connection, so that is up. It says nothing about silence.
                self.repair_link_up = true;
            }
            Event::Live => self.live = true,
            Event::EpochChanged { .. } => {
                (self.live, self.ended, self.publisher_dead) = (false, false, false);
            }
            Event::EpochContinued { .. } => self.ended = false,
            Event::EndOfSession => self.ended = true,
            Event::Stale => self.stale = true,
            Event::Recovered => (self.stale, self.publisher_dead) = (false, false),
            Event::PublisherDead => self.publisher_dead = true,
            Event::MulticastLost => (self.multicast_lost, self.publisher_dead) = (true, false),
            Event::MulticastRestored => {
                (self.multicast_lost, self.stale, self.publisher_dead) = (false, false, false);
            }
            Event::RepairLinkUp => (self.repair_link_up, self.publisher_dead) = (true, false),
            Event::RepairLinkDown(_) => self.repair_link_up = false,
            Event::LineDown(line) => self.set_line(*line, true),
            Event::LineUp(line) => self.set_line(*line, false),
            // A reader that was overrun gets the whole state.
            Event::Overrun(overrun) => *self = overrun.state,
            _ => {}
        }
    }

    fn set_line(&mut self, line: LineId, is_down: bool) {
        if let Some(it) = self.lines_down.get_mut(usize::from(line.0)) {
            *it = is_down;
        }
    }

    /// Returns the state as bits, from the lowest: joined, live, ended, stale, publisher dead, multicast
    /// lost, repair link up, line A down, line B down.
    ///
    /// ```
    /// # use tickcast_reliability::delivery::StreamState;
    /// let ended = StreamState { ended: true, ..StreamState::default() };
    /// assert_eq!(ended.bits(), 1 << 2);
    /// assert_eq!(StreamState::from_bits(1 << 2), ended);
    /// ```
    #[must_use]
    pub fn bits(self) -> u32 {
        let mut it = self;
        let bits = it.flags().into_iter().enumerate();
        bits.map(|(at, flag)| u32::from(*flag) << at).sum()
    }

    /// Returns the state with these bits. Unknown bits are ignored.
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        let mut it = Self::default();
        for (at, flag) in it.flags().into_iter().enumerate() {
            *flag = bits >> at & 1 != 0;
        }
        it
    }

    fn flags(&mut self) -> [&mut bool; 7 + LineId::MAX] {
        let [a, b] = &mut self.lines_down;
        [
            &mut self.joined,
            &mut self.live,
            &mut self.ended,
            &mut self.stale,
            &mut self.publisher_dead,
            &mut self.multicast_lost,
            &mut self.repair_link_up,
            a,
            b,
        ]
    }
}

impl fmt::Display for StreamState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = self.lines_down;
        f.write_str(if !self.joined {
            "not joined"
        } else if self.live {
            "live"
        } else {
            "joined"
        })?;
        let others = [
            (self.ended, "ended"),
            (self.stale, "stale"),
            (self.publisher_dead, "publisher dead"),
            (self.multicast_lost, "multicast lost"),
            (self.joined && !self.repair_link_up, "no repair link"),
            (a, "line A down"),
            (b, "line B down"),
        ];
        let others = others.into_iter().filter(|(is_so, _)| *is_so);
        others
            .map(|(_, words)| words)
            .try_for_each(|words| write!(f, ", {words}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::LinkDownReason;
    use crate::types::{Epoch, Sequence};

    fn after(events: &[Event]) -> String {
        let mut state = StreamState::default();
        events.iter().for_each(|event| state.follow(event));
        assert_eq!(StreamState::from_bits(state.bits()), state);
        state.to_string()
    }

    #[test]
    fn stream_state_reflects_latest_events() {
        let joined = Event::Joined { after: Sequence(0) };
        let changed = Event::EpochChanged {
            from: Epoch(1),
            to: Epoch(2),
        };
        let continued = Event::EpochContinued {
            from: Epoch(1),
            to: Epoch(2),
            last: Sequence(9),
            repeated: 0,
        };
        let (link, down) = (Event::RepairLinkUp, LinkDownReason::Closed);
        let mut all = vec![joined.clone(), Event::Live];
        assert_eq!(after(&all), "live");
        all.extend([
            Event::RepairLinkDown(down),
            Event::Stale,
            Event::PublisherDead,
        ]);
        assert_eq!(after(&all), "live, stale, publisher dead, no repair link");
        all.extend([link.clone(), Event::MulticastLost]);
        assert_eq!(after(&all), "live, stale, multicast lost");
        all.push(Event::MulticastRestored);
        assert_eq!(after(&all), "live");
        all.extend([Event::LineDown(LineId(1)), Event::EndOfSession]);
        assert_eq!(after(&all), "live, ended, line B down");
        all.extend([continued, Event::EndOfSession]);
        assert_eq!(after(&all[..all.len() - 1]), "live, line B down");
        all.push(changed);
        assert_eq!(after(&all), "joined, line B down");
        all.extend([Event::LineUp(LineId(1)), Event::Live, Event::EndOfSession]);
        all.extend([Event::Stale, Event::RepairLinkDown(down), joined]);
        assert_eq!(after(&all), "joined, stale");
        all.extend([Event::Recovered, Event::LineDown(LineId(7))]);
        assert_eq!(after(&all), "joined");
    }

    #[test]
    fn overrun_sets_state_whatever_was_heard() {
        let place = |sequence| crate::delivery::Place {
            epoch: Epoch(1),
            sequence: Sequence(sequence),
            record: crate::types::RecordNumber(sequence),
        };
        let stands = StreamState::from_bits(0b1_0000_1011);
        let overrun = crate::delivery::Overrun {
            from: place(1),
            to: place(9),
            records: 8,
            events: 0,
            lost_records: 0,
            losses_of_unknown_size: 0,
            epoch_changes: 0,
            source_losses: 0,
            fencing_violations: 0,
            state: stands,
        };
        let mut state = StreamState::from_bits(0b0_1110_0001);
        state.follow(&Event::Overrun(overrun));
        assert_eq!(state, stands);
    }

    #[test]
    fn flags_have_own_bits_and_unknown_are_ignored() {
        for bit in 0..9 {
            let state = StreamState::from_bits(1 << bit);
            assert_ne!(state, StreamState::default());
            assert_eq!(state.bits(), 1 << bit);
        }
        assert_eq!(StreamState::from_bits(1 << 9), StreamState::default());
    }
}
