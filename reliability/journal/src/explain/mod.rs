//! Why datagrams were missing: turns the entries of a journal into findings. A finding says where the
//! datagrams were lost, on which evidence, and what became of them. A pure function; no clock, no I/O.
//!
//! - `evidence.rs` walks the journal once and collects the gaps and everything that may explain them.
//!   Found gaps, repairs and datagrams without room in the window come from a replay of the core, as far
//!   as the journal can be replayed.
//! - `verdict.rs` combines the two.
//!
//! Several journals of one channel locate a loss better than one. Datagrams that all of them missed were
//! lost before their paths part. A publisher's journal (`publisher_view.rs`) shows what was sent, so it
//! separates losses before the network from losses in it.

mod evidence;
mod publisher_view;
mod verdict;

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

pub use self::publisher_view::Serving;
pub use self::verdict::explain;
use serde::Serialize;

use crate::Served;
use tickcast_reliability::control::RefusalReason;
use tickcast_reliability::delivery::{LineId, LossCause};
use tickcast_reliability::types::{ChannelId, Epoch, FanOutId, Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::SourceLossReason;

/// Where datagrams, or their content, were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Origin {
    /// Before the publisher: the venue's line had a gap that nobody filled.
    SourceLine,
    /// Before the publisher or in its host. Only the publisher's journal, which was not given, shows whether
    /// the missing packets arrived at its socket.
    SourceLineOrInput,
    /// Perhaps in the publisher's host: the socket of an input dropped packets at that moment for lack of a
    /// buffer, although it was being read. The drops may also be unrelated packets during a venue gap.
    InputBuffer,
    /// Perhaps in the publisher's host: the socket of an input dropped packets because it was not read.
    InputStall,
    /// In the publisher: between its feed and its publish thread.
    FeedQueue,
    /// Before the publisher: messages were unreadable.
    SourceUnreadable,
    /// In the publisher: a message was larger than a datagram.
    Oversize,
    /// In the publisher's send queue: this fan-out held up the ring and was torn down before it sent the
    /// datagrams.
    TornDown(FanOutId),
    /// In the publisher's host: the network refused datagrams on this line at that moment, because the send
    /// buffer was full or there was no route.
    SendRefused(LineId),
    /// In the publisher: the datagrams were sealed but not sent when its journal ends.
    Unsent,
    /// Behind the publisher's network stack and before the paths of its lines or subscribers part: its
    /// interface or its uplink.
    Uplink,
    /// Between the publisher's ring and the point where the paths of its subscribers part: its send queue,
    /// its interface or its uplink. All lines, or all journals, missed the same datagrams.
    SendQueue,
    /// On the network path of this line: another line, or another host, received the datagrams.
    Wire(LineId),
    /// On the network path, or in the publisher's interface or uplink. One line and one subscriber's journal
    /// beside the publisher's cannot separate these.
    WireOrUplink,
    /// Not lost: the datagrams arrived on this line after their absence was detected, or before a trusted
    /// message confirmed them. See [`Finding::late`].
    Late(LineId),
    /// On the network path or in the publisher's send queue. One line and one journal cannot separate these.
    WireOrSendQueue,
    /// In this host, for lack of a buffer, although the application polled.
    SocketBuffer,
    /// In this host, for lack of a buffer, because the application did not poll.
    PollStall,
    /// In this host's RDMA device: the receive queue was restarted, or the Q_Key was wrong.
    Device,
    /// The datagrams arrived with altered bytes.
    Damaged(LineId),
    /// The datagrams arrived truncated.
    CutOff(LineId),
    /// The datagrams arrived but were longer than a slot.
    TooLong,
    /// A fault injected in this host dropped the datagrams.
    Injected(LineId),
    /// The publisher's ring in this host was overwritten before the datagrams were copied.
    RingOverrun,
    /// The datagrams arrived, but the window was full behind an earlier gap.
    WindowFull,
    /// The items were delivered to the local ring and overwritten before the application took them.
    LocalRing,
    /// No datagram of the channel reached this host for a while: group membership, a switch or a cable.
    Silence,
    /// The publisher died, and its last datagrams were lost with it.
    PublisherGone,
    /// The publisher's epoch changed, and the open gaps of the previous epoch were lost with it.
    EpochChange,
    /// The datagrams were sent before the subscriber joined.
    BeforeJoining,
    /// The datagrams were sent between the publisher's WELCOME and the first datagram received: joining the
    /// multicast group took that long.
    Joining,
    /// The datagrams arrived before a WELCOME confirmed their epoch, when any sender could have forged them.
    BeforeWelcome,
    /// The datagrams have a valid CRC but unreadable records.
    Unreadable,
    /// Another publisher sent different datagrams with the same sequences.
    Impostor,
    /// The journal does not reach back far enough.
    BeforeRecord,
}

/// The fate of a missing datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fate {
    /// It arrived after all.
    Came(How),
    /// It was declared lost.
    Lost(LossCause),
    /// It was still missing when the journal ends.
    Open,
    /// No repair was possible here: it was never in a datagram, or was already delivered.
    Unrepairable,
}

/// How a missing datagram arrived after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum How {
    /// On another line.
    OtherLine(LineId),
    /// On a line, after a later sequence.
    Late(LineId),
    /// As a multicast repair.
    Multicast,
    /// Over the repair connection.
    Repair,
    /// Over the replay connection.
    Replay,
    /// Over the NACK connection.
    Nack,
    /// By READ.
    Read,
}

/// Why a datagram was late on its line, as far as the journals show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DelayCause {
    /// A fault injected in this host held it back.
    Injected,
    /// A datagram sent later arrived before it on the same line.
    Overtaken,
    /// The application had not polled for this long, so it waited in this host.
    PollStall(Nanos),
    /// The publish thread had stalled for this long before it sent it, according to the publisher's journal.
    PublisherStall(Nanos),
    /// Nothing of the channel had arrived on any line for this long: the publisher or the network stalled.
    Silence(Nanos),
    /// The line stayed in order, but another path was faster.
    Behind,
}

/// Missing datagrams with one origin and one fate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Index of the journal, in the order given.
    pub journal: usize,
    /// Number of the gap within the journal, from 1 on. Parts of one gap with different origins or fates have
    /// the same number.
    pub gap: usize,
    /// Channel of the datagrams.
    pub channel: ChannelId,
    /// Epoch of the datagrams.
    pub epoch: Epoch,
    /// Sequences of the datagrams.
    pub sequences: SequenceRange,
    /// When the gap was found, in protocol time of the journal.
    pub found_at: Nanos,
    /// When the last datagram before that arrived.
    pub heard_before: Nanos,
    /// Where the datagrams were lost.
    pub origin: Origin,
    /// The fate of the datagrams.
    pub fate: Fate,
    /// When the fate was settled.
    pub settled_at: Nanos,
    /// Number of NACKs for them before that, as far as the journal holds them.
    pub asked: u32,
    /// Whether there may have been more NACKs, because the journal lacks some of the sent frames.
    pub asked_more: bool,
    /// How long the application had not polled just before; `None` when it had.
    pub stalled_for: Option<Nanos>,
    /// When the last of the datagrams arrived on its line, and why late. `None` when they were lost.
    pub late: Option<(Nanos, DelayCause)>,
    /// Datagrams that the kernel or the device dropped at that moment, of any sender.
    pub buffer_drops: u64,
    /// For losses of a source: the reason, and the number of messages.
    pub source: Option<(SourceLossReason, u64)>,
    /// Number of lost records according to a loss event, when known.
    pub records: Option<u64>,
    /// The publisher's last reason to refuse a repair, and the number of refusals.
    pub refused: Option<(RefusalReason, u32)>,
}

/// Sums over all findings of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Intact datagrams of all channels received on a line.
    pub received: u64,
    /// Of those on line A and line B.
    pub on_lines: [u64; LineId::MAX],
    /// Datagrams that each line missed of those received on the other.
    pub missed_by_lines: [u64; LineId::MAX],
    /// Sequences found missing after joining.
    pub missing: u64,
    /// Of those, sequences that arrived after all.
    pub came: u64,
    /// Of those, sequences declared lost.
    pub lost: u64,
    /// Of those, sequences still missing when the journal ends.
    pub open: u64,
    /// Other sequences declared lost: sent before the subscriber joined, or of unknown number.
    pub lost_otherwise: u64,
    /// Loss events emitted to the application.
    pub loss_events: u64,
    /// Datagrams that a publisher sealed.
    pub sealed: u64,
    /// Datagrams that a publisher posted to a fan-out.
    pub handed: u64,
}

/// The result for one journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The findings, in the order in which they were found.
    pub findings: Vec<Finding>,
    /// Sums over the findings.
    pub totals: Totals,
    /// Time of the first entry.
    pub from: Nanos,
    /// Time of the last entry.
    pub to: Nanos,
    /// Why the journal is not readable to its end; `None` when it is.
    pub damaged: Option<String>,
    /// NACKs and repairs of a repair service; `None` for journals of other cores.
    pub serving: Option<Serving>,
    /// Other observations, in order.
    pub timeline: Vec<(Nanos, Happening)>,
}

/// An observation beside the findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Happening {
    /// The application did not poll, or the publish thread stalled, for this long.
    Stall(Nanos),
    /// The kernel or the device dropped this many datagrams of a channel for lack of a buffer.
    BufferDrops(ChannelId, u64),
    /// The core emitted an event to the application.
    Event(ChannelId, String),
    /// A WELCOME with this many channels arrived.
    Welcomed(usize),
    /// A connection event of a repair service.
    Served(Served),
}

/// A set of sequences, as runs from first to last.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn insert(&mut self, range: SequenceRange) {
        let (mut first, mut last) = (range.first.0, range.last.0);
        if let Some((&from, to)) = self.0.range_mut(..=first).next_back()
            && *to >= first.saturating_sub(1)
        {
            if *to >= last {
                return;
            }
            // Fast path for the most frequent case: the next sequence.
            if self
                .0
                .range((Excluded(first), Included(last.saturating_add(1))))
                .next()
                .is_none()
            {
                if let Some(to) = self.0.get_mut(&from) {
                    *to = last;
                }
                return;
            }
            first = from;
        }
        let touched = self.0.range(first..=last.saturating_add(1));
        let touched: Vec<(u64, u64)> = touched.map(|(from, to)| (*from, *to)).collect();
        for (from, to) in touched {
            last = last.max(to);
            self.0.remove(&from);
        }
        self.0.insert(first, last);
    }

    fn has(&self, sequence: Sequence) -> bool {
        let below = self.0.range(..=sequence.0).next_back();
        below.is_some_and(|(_, last)| *last >= sequence.0)
    }

    /// Returns the number of sequences of the set within `range`.
    fn count_within(&self, range: SequenceRange) -> u64 {
        let (first, last) = (range.first.0, range.last.0);
        let from = self
            .0
            .range(..=first)
            .next_back()
            .map_or(first, |(from, _)| *from);
        let overlaps = self.0.range(from..=last).filter_map(|(from, to)| {
            SequenceRange::new(Sequence((*from).max(first)), Sequence((*to).min(last)))
        });
        overlaps.fold(0, |sum, range| sum.saturating_add(range.len()))
    }

    fn highest(&self) -> Option<Sequence> {
        Some(Sequence(*self.0.last_key_value()?.1))
    }

    fn lowest(&self) -> Option<Sequence> {
        Some(Sequence(*self.0.first_key_value()?.0))
    }

    /// Returns the number of sequences in the set.
    fn len(&self) -> u64 {
        let lens = self
            .0
            .iter()
            .map(|(first, last)| last.saturating_sub(*first));
        lens.fold(0, |sum, len| sum.saturating_add(len).saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_what_was_put_in_whatever_the_order() {
        let mut random = 1u64;
        let (mut ranges, mut model) = (Ranges::default(), std::collections::BTreeSet::new());
        for _ in 0..500 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let first = (random >> 33) % 300 + 1;
            let last = first + (random >> 50) % 5;
            ranges.insert(SequenceRange::new(Sequence(first), Sequence(last)).unwrap());
            model.extend(first..=last);
            assert_eq!(ranges.len(), model.len() as u64);
            for sequence in 0..310 {
                assert_eq!(ranges.has(Sequence(sequence)), model.contains(&sequence));
            }
            let (within, to) = (random >> 40 & 0xff, random >> 20 & 0x3f);
            let within = within..=within + to;
            let range = SequenceRange::new(Sequence(*within.start()), Sequence(*within.end()));
            let count = range.map(|range| ranges.count_within(range));
            assert_eq!(count, Some(model.range(within).count() as u64));
        }
        let pairs: Vec<_> = ranges.0.iter().collect();
        assert!(pairs.windows(2).all(|pair| pair[0].1 + 1 < *pair[1].0));
    }
}
