//! Checks a publisher's refusals against the NACKs that it received, the content of its ring at
//! that time, and its load (docs/PROTOCOL.md §6.3). [`crate::checks::loss_reason`] checks windows
//! as well: nothing is refused that the ring still holds.
//!
//! Conditions that follow from the NACK alone are computed again. Conditions that depend on the
//! core's own state are bounded: one peer may have as many sequences waiting as all together. The
//! live stream is as fast as the fastest interval between two ticks, in datagrams of the greatest
//! length. All connected peers may be replaying.

use std::collections::BTreeMap;

use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_SUBSCRIBER, FRAME_HEAD_LEN, Message, NackClass, RefusalReason, Refused,
};
use tickcast_reliability::serve::{PeerId, RepairConfig};
use tickcast_reliability::session::Path;
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};

use crate::feed::Feed;

type Checked = Result<(), String>;

/// Retry delays in microseconds: for a sequence that is not sent yet or belongs on another
/// connection, for a replay that is too slow, and the maximum for a budget.
const AHEAD_RETRY_US: u64 = 100;
const TOO_SLOW_RETRY_US: u64 = 1_000_000;
const REPLAY_RETRY_US: u64 = 100_000;
const BUDGET_RETRY_US_MAX: u64 = 1_000_000;
/// Interval at which the rate of the live stream is measured.
const TICK: Nanos = Nanos::from_ms(100);

/// The sender of a NACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The connection.
    pub peer: PeerId,
    /// Kind of the connection.
    pub path: Path,
    /// Whether the subscriber has a replay connection.
    pub replays: bool,
    /// Whether the subscriber has another connection on which it requests repair.
    pub asks_elsewhere: bool,
    /// Number of connections of the publisher.
    pub peers: u64,
}

/// A permitted refusal: its reason, its range, and the bounds of its retry delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct May {
    reason: RefusalReason,
    range: SequenceRange,
    retry_us: (u64, u64),
}

/// The highest rate of a channel's live stream.
#[derive(Clone, Copy, Debug)]
struct Live {
    tick_at: Nanos,
    measured: (Nanos, Sequence),
    bytes_per_s_most: u128,
}

/// Check on a publisher's refusals.
#[derive(Debug)]
pub struct RefusalCheck {
    config: RepairConfig,
    may: BTreeMap<(PeerId, ChannelId), Vec<May>>,
    live: BTreeMap<ChannelId, Live>,
    /// Number of refusals checked.
    pub seen: u64,
}

impl RefusalCheck {
    /// Returns a check for a publisher with these feeds, without requests.
    #[must_use]
    pub fn new(config: RepairConfig, feeds: &[Feed], now: Nanos) -> Self {
        let live = feeds.iter().map(|feed| {
            let live = Live {
                tick_at: Nanos::ZERO,
                measured: (now, feed.core.sealed()),
                bytes_per_s_most: 0,
            };
            (feed.channel, live)
        });
        Self {
            config,
            may: BTreeMap::new(),
            live: live.collect(),
            seen: 0,
        }
    }

    /// Measures the live rates when the publisher receives the time.
    pub fn ticks(&mut self, feeds: &[Feed], now: Nanos) {
        for feed in feeds {
            let Some(live) = self.live.get_mut(&feed.channel) else {
                continue;
            };
            let (at, before) = live.measured;
            if now < live.tick_at {
                continue;
            }
            live.tick_at = now.after(TICK);
            let elapsed = now.since(at);
            if elapsed > Nanos::ZERO {
                let sealed = feed.core.sealed();
                let bytes = u128::from(sealed.since(before)) * u128::from(datagram_len(feed));
                let rate = bytes * 1_000_000_000 / u128::from(elapsed.0);
                live.bytes_per_s_most = live.bytes_per_s_most.max(rate);
                live.measured = (now, sealed);
            }
        }
    }

    /// Records a NACK for this channel that was passed to the core.
    pub fn asked(
        &mut self,
        asker: &Asker,
        feed: &Feed,
        (epoch, class): (Epoch, NackClass),
        ranges: &[SequenceRange],
    ) {
        let ours = feed.reader.identity().epoch;
        let class = match asker.path {
            Path::Nack => NackClass::Repair,
            Path::Replay => NackClass::Replay,
            _ => class,
        };
        let elsewhere = asker.path == Path::Repair && class == NackClass::Replay && asker.replays;
        let mut may = Vec::new();
        for &range in ranges {
            let mut add = |reason, range, retry_us| {
                let retry_us = (retry_us, retry_us);
                may.push(May {
                    reason,
                    range,
                    retry_us,
                });
            };
            if epoch != ours {
                add(RefusalReason::Epoch, range, 0);
                continue;
            }
            if range.first == Sequence::NONE {
                add(RefusalReason::Malformed, range, 0);
                continue;
            }
            if elsewhere {
                add(RefusalReason::Budget, range, AHEAD_RETRY_US);
            }
            let sent = feed.reader.sent_by_any().max(floor(feed).previous());
            if let Some(above) = SequenceRange::new(range.first.max(sent.next()), range.last) {
                add(RefusalReason::Ahead, above, AHEAD_RETRY_US);
            }
            let held = SequenceRange::new(range.first.max(floor(feed)), range.last.min(sent));
            if let Some(held) = held {
                may.extend(self.too_slow(asker, feed, class, held));
                may.extend(self.budget(asker, feed, class, held));
            }
        }
        let of = self.may.entry((asker.peer, feed.channel)).or_default();
        of.append(&mut may);
    }

    /// Returns the permitted refusals of held sequences: for ever if the replay would not reach them in time
    /// with its share, and for a while if it is one too many.
    fn too_slow(
        &self,
        asker: &Asker,
        feed: &Feed,
        class: NackClass,
        held: SequenceRange,
    ) -> Vec<May> {
        if class != NackClass::Replay {
            return Vec::new();
        }
        let live = (self.live.get(&feed.channel)).map_or(0, |live| live.bytes_per_s_most);
        let wanted = feed.repair.pending.get().saturating_add(held.len());
        let room = held.last.plus(safe(feed)).since(feed.core.sealed());
        let is_slow_at =
            |rate: u64| live * 3 * u128::from(wanted) > 2 * u128::from(rate) * u128::from(room);
        let may = |reason, retry_us| May {
            reason,
            range: held,
            retry_us: (retry_us, retry_us),
        };
        let share = self.config.joiner_bytes_per_s / asker.peers.max(1);
        let is_crowded = asker.peers > self.config.replays_per_address_max as u64;
        let never = is_slow_at(share).then(|| may(RefusalReason::TooSlow, TOO_SLOW_RETRY_US));
        let later = is_crowded.then(|| may(RefusalReason::Budget, REPLAY_RETRY_US));
        never.into_iter().chain(later).collect()
    }

    /// Returns the permitted refusal of held sequences because too many are queued already, if any.
    fn budget(
        &self,
        asker: &Asker,
        feed: &Feed,
        class: NackClass,
        held: SequenceRange,
    ) -> Option<May> {
        let bound = self.config.pending_ranges_max as u64;
        let pending = feed.repair.pending.get();
        let (fastest, slowest) = match class {
            NackClass::Repair => {
                let rate = self.config.subscriber_bytes_per_s;
                (rate, rate)
            }
            NackClass::Replay => {
                let rate = self.config.joiner_bytes_per_s;
                (rate, rate / asker.peers.max(1))
            }
        };
        let takes = |sequences: u64, rate: u64| {
            let bytes = sequences.saturating_mul(feed.reader.geometry().slot_len() as u64);
            let us = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
            let us = u64::try_from(us).unwrap_or(u64::MAX);
            us.clamp(AHEAD_RETRY_US, BUDGET_RETRY_US_MAX)
        };
        // The subscriber's other connection may have used up the bound alone.
        let least = match class {
            NackClass::Repair if asker.asks_elsewhere => 0,
            _ => bound,
        };
        (pending >= bound).then_some(May {
            reason: RefusalReason::Budget,
            range: held,
            retry_us: (takes(least, fastest), takes(pending, slowest)),
        })
    }

    /// Checks the refusals in frames for a peer.
    ///
    /// # Errors
    /// A refusal without a reason.
    pub fn given(&mut self, peer: PeerId, feeds: &[Feed], mut frames: &[u8]) -> Checked {
        while let Some((channel, message, taken)) =
            Message::read(frames, BODY_LEN_MAX_TO_SUBSCRIBER).map_err(|e| e.to_string())?
        {
            frames = &frames[taken..];
            if let Message::Refused(refused) = message
                && let Some(feed) = feeds.iter().find(|feed| feed.channel == channel)
            {
                self.refused(peer, feed, &refused)?;
                self.seen += 1;
            }
        }
        Ok(())
    }

    fn refused(&self, peer: PeerId, feed: &Feed, refused: &Refused) -> Checked {
        let ours = feed.reader.identity().epoch;
        if refused.epoch != ours {
            return Err(format!("{refused:?} in epoch {ours}"));
        }
        let retry_us = u64::from(refused.retry_after_us);
        if refused.reason == RefusalReason::Window {
            // With planted bugs, copies are torn on purpose, and are refused although the slot is
            // held.
            let torn = cfg!(feature = "planted-bugs");
            return match refused.range.last < floor(feed) || torn {
                true if retry_us == 0 => Ok(()),
                _ => Err(format!("{refused:?}, the ring holds it")),
            };
        }
        let may = self.may.get(&(peer, feed.channel));
        let mut may = may.into_iter().flatten();
        // A refusal does not include the first sequences of a request when they are already in
        // flight.
        let answered = matches!(
            refused.reason,
            RefusalReason::TooSlow | RefusalReason::Budget
        );
        let fits = |may: &May| {
            let (of, it) = (may.range, refused.range);
            may.reason == refused.reason
                && of.last == it.last
                && (of.first == it.first || answered && of.first < it.first)
                && (may.retry_us.0..=may.retry_us.1).contains(&retry_us)
        };
        if may.any(fits) {
            return Ok(());
        }
        let (pending, sent) = (feed.repair.pending.get(), feed.reader.sent_by_any());
        Err(format!(
            "{peer:?} is refused without a reason: {refused:?}; {pending} wait, sent is {sent}"
        ))
    }

    /// Forgets permitted refusals at the end of a turn, because all refusals have been sent.
    pub fn settled(&mut self) {
        self.may.clear();
    }
}

/// Returns the length of the longest datagram in its frame, in bytes.
fn datagram_len(feed: &Feed) -> u64 {
    (feed.reader.geometry().slot_len() + FRAME_HEAD_LEN) as u64
}

/// Returns the oldest sequence that is served. Slots at the old end might be overwritten meanwhile.
fn floor(feed: &Feed) -> Sequence {
    let from = feed.core.sealed().next().minus(safe(feed));
    feed.reader.oldest().max(from)
}

fn safe(feed: &Feed) -> u64 {
    let slots = feed.reader.geometry().slots();
    slots - (slots / 64).max(16).min(slots / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::plan::CHANNEL;
    use crate::faults::plan::Plan;
    use tickcast_reliability::publish::Transmit;
    use tickcast_reliability::types::{FanOutId, Now, RecordNumber};

    const EPOCH: Epoch = Epoch(5);
    const PEER: PeerId = PeerId(3);

    /// Returns a ring that is sent completely, and its last sequence.
    fn feed() -> (Feed, u64) {
        let now = Now {
            monotonic: Nanos::ZERO,
            utc: Nanos::ZERO,
        };
        let plan = Plan::of(0, Some("calm"), None);
        let mut feed = Feed::open(&plan, (CHANNEL, EPOCH, 0), (1, 1), now).unwrap();
        (0..8).for_each(|_| feed.burst(now).unwrap());
        for fan_out in (0..plan.fan_outs).map(FanOutId) {
            while let Some(transmit) = feed.core.poll_transmit(fan_out) {
                if let Transmit::Slots(range) = transmit {
                    feed.core.handle_posted(fan_out, range.last);
                }
            }
        }
        let sent = feed.reader.sent_by_any().0;
        assert!(sent > 4);
        (feed, sent)
    }

    fn range(first: u64, last: u64) -> SequenceRange {
        SequenceRange {
            first: Sequence(first),
            last: Sequence(last),
        }
    }

    /// Returns whether this refusal of a request of this class and epoch passes the check.
    fn passes(
        (epoch, class, asked): (Epoch, NackClass, SequenceRange),
        (reason, refused, retry_after_us): (RefusalReason, SequenceRange, u32),
    ) -> bool {
        let (feed, _) = feed();
        let feeds = [feed];
        let mut of = RefusalCheck::new(RepairConfig::default(), &feeds, Nanos::ZERO);
        let asker = Asker {
            peer: PEER,
            path: Path::Repair,
            replays: true,
            asks_elsewhere: false,
            peers: 2,
        };
        of.asked(&asker, &feeds[0], (epoch, class), &[asked]);
        let refused = Message::Refused(Refused {
            epoch: EPOCH,
            range: refused,
            reason,
            retry_after_us,
            oldest: Sequence(1),
            oldest_record: RecordNumber(1),
        });
        let mut frames = Vec::new();
        refused.write(CHANNEL, &mut frames);
        of.given(PEER, &feeds, &frames).is_ok()
    }

    #[test]
    fn unreasoned_refusal_or_wrong_wait_is_detected() {
        let (_, sent) = feed();
        let (repair, replay) = (NackClass::Repair, NackClass::Replay);
        let (held, above) = (range(2, 4), range(sent + 1, sent + 3));
        let all = (EPOCH, repair, range(2, sent + 3));
        assert!(passes(all, (RefusalReason::Ahead, above, 100)));
        assert!(!passes(all, (RefusalReason::Ahead, above, 101)));
        assert!(!passes(
            all,
            (RefusalReason::Ahead, range(2, sent + 3), 100)
        ));
        for reason in [
            RefusalReason::Window,
            RefusalReason::Ahead,
            RefusalReason::Budget,
            RefusalReason::TooSlow,
            RefusalReason::Epoch,
            RefusalReason::Malformed,
        ] {
            for retry_us in [0, 100, 1_000_000] {
                let refused = (reason, held, retry_us);
                assert!(!passes((EPOCH, repair, held), refused), "{refused:?}");
            }
        }
        let other = (Epoch(4), repair, held);
        assert!(passes(other, (RefusalReason::Epoch, held, 0)));
        let none = (EPOCH, repair, range(0, 4));
        assert!(passes(none, (RefusalReason::Malformed, range(0, 4), 0)));
        // A subscriber with a replay connection must use it for replay.
        let elsewhere = (EPOCH, replay, held);
        assert!(passes(elsewhere, (RefusalReason::Budget, held, 100)));
        assert!(!passes(
            elsewhere,
            (RefusalReason::TooSlow, held, 1_000_000)
        ));
    }

    #[test]
    fn stream_too_fast_for_replay_justifies_refusal() {
        let (feed, sent) = feed();
        let feeds = [feed];
        let mut of = RefusalCheck::new(RepairConfig::default(), &feeds, Nanos::ZERO);
        let live = of.live.get_mut(&CHANNEL).unwrap();
        live.bytes_per_s_most = 10_000_000_000;
        let asker = Asker {
            peer: PEER,
            path: Path::Replay,
            replays: true,
            asks_elsewhere: false,
            peers: 2,
        };
        let held = range(2, sent);
        of.asked(&asker, &feeds[0], (EPOCH, NackClass::Repair), &[held]);
        let may = &of.may[&(PEER, CHANNEL)];
        assert_eq!(may.len(), 1);
        assert_eq!(
            (may[0].reason, may[0].range),
            (RefusalReason::TooSlow, held)
        );
    }
}
