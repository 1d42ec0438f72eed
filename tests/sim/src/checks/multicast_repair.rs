//! Checks a publisher's multicast repairs and STATUS messages against the NACKs and PROGRESS
//! messages that it received (docs/PROTOCOL.md §6.2, §6.3).
//!
//! - A request counts as repaired by multicast only after a multicast is sent that it waited for, or
//!   that was sent just before it arrived. The core counts it when its connection has a turn.
//! - A multicast needs enough requesters.
//! - STATUS responds to the last PROGRESS and describes the ring. When the ring is written
//!   meanwhile, it describes a state since then.
//!
//! The check derives the waiting requests from NACKs and repairs alone. It does not subtract
//! requests that the core refuses for lack of room, so that it may count more waiting requests and
//! requesters than there are. The core's log of requesters holds a window. With larger rings the
//! core may have forgotten requests, and the check ignores the number of requesters.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_SUBSCRIBER, Message, NackClass, Progress, Status,
};
use tickcast_reliability::serve::{Destination, PeerId, RepairConfig};
use tickcast_reliability::types::{ChannelId, Nanos, Now, Sequence, SequenceRange};
use tickcast_reliability::wire::{Datagram, PublisherState};

use crate::feed::Feed;

type Checked = Result<(), String>;

/// Number of sequences in the core's log of requesters.
const LOG: u64 = 4_096;

/// The requests for one sequence.
#[derive(Debug, Default)]
struct Wanted {
    /// Connections with a NACK that has no response yet.
    waits: BTreeSet<PeerId>,
    /// Subscribers that may have sent a NACK in this round.
    askers: BTreeSet<PeerId>,
    /// The earliest start of the round, and the latest. They differ, because an earlier request may
    /// have been refused.
    began: Nanos,
    asked_at: Nanos,
    /// Whether a repair was certainly sent in this round.
    answered: bool,
    multicast_at: Option<Nanos>,
}

/// Check on a publisher's multicast repairs and STATUS messages.
#[derive(Debug)]
pub struct MulticastRepairCheck {
    config: RepairConfig,
    wanted: BTreeMap<(ChannelId, u64), Wanted>,
    /// Requests that a multicast has repaired and the core has not counted yet.
    uncounted: BTreeMap<ChannelId, u64>,
    /// Counters so far: requests repaired by multicast, and bytes of repair.
    counted: BTreeMap<ChannelId, (u64, u64)>,
    /// The STATUS that was correct when the last PROGRESS arrived, while its response is due.
    statuses: BTreeMap<(PeerId, ChannelId), Status>,
    /// Number of STATUS messages checked.
    pub statuses_seen: u64,
    /// Number of requests that a multicast repaired.
    pub answered_seen: u64,
}

impl MulticastRepairCheck {
    /// Returns a check without requests.
    #[must_use]
    pub const fn new(config: RepairConfig) -> Self {
        Self {
            config,
            wanted: BTreeMap::new(),
            uncounted: BTreeMap::new(),
            counted: BTreeMap::new(),
            statuses: BTreeMap::new(),
            statuses_seen: 0,
            answered_seen: 0,
        }
    }

    /// Checks a NACK that was passed to the core, on a connection of the subscriber `asker`.
    ///
    /// # Errors
    /// Requests that count as repaired by a multicast that was not sent.
    pub fn asked(
        &mut self,
        (peer, asker): (PeerId, PeerId),
        feed: &Feed,
        class: NackClass,
        ranges: &[SequenceRange],
        now: Nanos,
    ) -> Checked {
        let answered = self.newly(feed).0;
        if class == NackClass::Replay {
            return self.explained(feed.channel, answered, 0);
        }
        let ignore = Nanos::from_us(self.config.sender_ignore_us);
        let coalesce = Nanos::from_us(self.config.repair_coalesce_us);
        let sent = feed.reader.sent_by_any();
        let forgets = is_forgetful(feed);
        // Without room, the core may have refused a part, which is then no request.
        let has_room = feed.repair.pending.get() < self.config.pending_ranges_max as u64;
        let mut may = 0;
        for range in ranges {
            let first = range.first.max(feed.reader.oldest()).max(Sequence::FIRST);
            let held = SequenceRange::new(first, range.last.min(sent));
            for sequence in held.into_iter().flat_map(SequenceRange::iter) {
                let of = self.wanted.entry((feed.channel, sequence.0)).or_default();
                let just = of.multicast_at.is_some_and(|at| now.since(at) <= ignore);
                may += u64::from(just);
                if just && !forgets {
                    continue;
                }
                let is_new = of.waits.insert(peer);
                // A request that seems to wait may be over, so that this one may start a round.
                let surely_new = is_new && has_room;
                if surely_new && of.answered && now.since(of.asked_at) > coalesce {
                    of.askers.clear();
                }
                if of.askers.is_empty() {
                    (of.began, of.answered) = (now, false);
                } else if now.since(of.began) > coalesce {
                    // If a repair was sent, this may be another round.
                    of.answered = false;
                }
                of.askers.insert(asker);
                of.asked_at = now;
            }
        }
        self.forget(feed);
        self.explained(feed.channel, answered, may)
    }

    /// Returns the increase of a channel's counters since the last call.
    fn newly(&mut self, feed: &Feed) -> (u64, u64) {
        let c = &feed.repair;
        let counted = (c.answered_by_multicast.get(), c.repair_bytes.get());
        let before = self.counted.insert(feed.channel, counted);
        let before = before.unwrap_or_default();
        (counted.0 - before.0, counted.1 - before.1)
    }

    /// Forgets sequences that the ring no longer holds, because no request can wait for them.
    fn forget(&mut self, feed: &Feed) {
        let most = 4 * feed.reader.geometry().slots();
        if self.wanted.len() as u64 > most {
            let oldest = feed.reader.oldest().0;
            (self.wanted).retain(|(channel, s), _| *channel != feed.channel || *s >= oldest);
        }
    }

    /// Records a PROGRESS that was passed to the core.
    pub fn reported(&mut self, peer: PeerId, feed: &Feed, progress: Progress, now: Now) {
        let status = status_of(feed, progress.sent_at, now);
        self.statuses.insert((peer, feed.channel), status);
    }

    /// Checks that so many requests have been repaired by multicast: those that waited for one, and
    /// those that may have arrived just after one.
    fn explained(&mut self, channel: ChannelId, answered: u64, may: u64) -> Checked {
        self.answered_seen += answered;
        let waited = self.uncounted.entry(channel).or_default();
        if answered > *waited + may {
            return Err(format!(
                "{answered} questions were answered by a multicast: {waited} waited for one, {may} came \
                 just after one"
            ));
        }
        *waited -= answered.saturating_sub(may);
        Ok(())
    }

    /// Checks bytes that are sent.
    ///
    /// # Errors
    /// A repair or a STATUS that no request explains.
    pub fn given(
        &mut self,
        destination: Destination,
        out: &[u8],
        (feeds, subscribers): (&[Feed], &dyn Fn(ChannelId) -> u32),
        now: Now,
    ) -> Checked {
        let newly: Vec<_> = feeds.iter().map(|feed| self.newly(feed)).collect();
        let counted = |it: &mut Self| {
            let mut all = feeds.iter().zip(&newly);
            all.try_for_each(|(feed, (answered, _))| it.explained(feed.channel, *answered, 0))
        };
        let peer = match destination {
            Destination::Multicast(channel) => {
                let at = feeds.iter().position(|feed| feed.channel == channel);
                let at = at.ok_or("a multicast of no channel")?;
                let datagram = Datagram::parse(out).map_err(|e| e.to_string())?;
                let key = (channel, datagram.header().sequence.0);
                let askers = self.multicast(key, now.monotonic);
                counted(self)?;
                return match is_forgetful(&feeds[at]) {
                    true => Ok(()),
                    false => self.enough(key.1, askers, subscribers(channel)),
                };
            }
            Destination::Peer(peer) => peer,
        };
        counted(self)?;
        let mut frames = out;
        while let Some((channel, message, taken)) =
            Message::read(frames, BODY_LEN_MAX_TO_SUBSCRIBER).map_err(|e| e.to_string())?
        {
            frames = &frames[taken..];
            let Some(at) = feeds.iter().position(|feed| feed.channel == channel) else {
                continue;
            };
            match message {
                Message::Datagram(bytes) if newly[at].1 > 0 => {
                    let datagram = Datagram::parse(bytes).map_err(|e| e.to_string())?;
                    let sequence = datagram.header().sequence;
                    let of = self.wanted.entry((channel, sequence.0)).or_default();
                    of.answered = true;
                    let forgets = is_forgetful(&feeds[at]);
                    if !of.waits.remove(&peer) && !forgets {
                        return Err(format!("{peer:?} gets {sequence}, and has its answer"));
                    }
                }
                Message::Status(status) => {
                    let then = self.statuses.remove(&(peer, channel));
                    let then =
                        then.ok_or_else(|| format!("{status:?} for {peer:?}, who waits for none"))?;
                    is_between(
                        &then,
                        &status,
                        &status_of(&feeds[at], then.echo, now),
                        &feeds[at],
                    )?;
                    self.statuses_seen += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Records a multicast, and returns the number of its requesters.
    fn multicast(&mut self, key: (ChannelId, u64), now: Nanos) -> usize {
        let of = self.wanted.entry(key).or_default();
        let (waited, askers) = (of.waits.len() as u64, of.askers.len());
        of.waits.clear();
        of.askers.clear();
        (of.answered, of.multicast_at) = (true, Some(now));
        *self.uncounted.entry(key.0).or_default() += waited;
        askers
    }

    fn enough(&self, sequence: u64, askers: usize, subscribers: u32) -> Checked {
        let enough = match subscribers >= self.config.large_group {
            true => 3,
            false => (subscribers.div_ceil(8) as usize).clamp(2, 16),
        };
        match askers < enough {
            true => Err(format!(
                "{sequence} is multicast because {askers} of {subscribers} asked, {enough} are needed"
            )),
            false => Ok(()),
        }
    }
}

/// Returns the STATUS that describes the ring at present.
fn status_of(feed: &Feed, echo: Nanos, now: Now) -> Status {
    let reader = &feed.reader;
    let slots = reader.geometry().slots();
    let safe = slots - (slots / 64).max(16).min(slots / 4);
    let sealed = reader.sealed();
    let floor = reader.oldest().max(sealed.next().minus(safe));
    let newest = reader.sent_by_all().max(floor.previous());
    Status {
        epoch: reader.identity().epoch,
        newest,
        oldest: floor.min(newest.next()),
        next_record: reader.next_record_after(newest).unwrap_or_default(),
        echo,
        answered_at: now.utc,
        ended: reader.state() == Some(PublisherState::Ended) && newest == sealed,
    }
}

/// Checks that a STATUS lies between two correct ones. It may also name sealed datagrams that the
/// subscriber has heard.
fn is_between(before: &Status, status: &Status, after: &Status, feed: &Feed) -> Checked {
    let between = Status {
        newest: status
            .newest
            .clamp(before.newest, after.newest.max(feed.reader.sealed())),
        oldest: status.oldest.clamp(before.oldest, after.oldest),
        next_record: (feed.reader.next_record_after(status.newest)).unwrap_or(status.next_record),
        ended: after.ended && (before.ended || status.ended),
        ..*after
    };
    match *status == between {
        true => Ok(()),
        false => Err(format!(
            "{status:?} is not between {before:?} and {after:?}"
        )),
    }
}

/// Returns whether the core may have forgotten requests that this check knows.
fn is_forgetful(feed: &Feed) -> bool {
    feed.reader.geometry().slots() > LOG
}
