//! Why something was missing: from the entries of a record to findings, each with where the datagrams
//! were lost, what shows it, and what became of them. A pure function; no clock, no I/O.
//!
//! `evidence.rs` walks the record once and notes what was missing and what else happened; what was found
//! missing, what filled that and what the window had no room for it has from a replay: the core itself says
//! it, as far as the record can be run.
//! `verdict.rs` puts the two together. Several records of one channel know more than one: what all
//! of them missed at once was lost before their ways part. A publisher's record knows what was sent
//! (`publisher_view.rs`), and so tells what lies before the network from what lies in it.

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

/// Where datagrams, or what should have been in them, were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Origin {
    /// Before the publisher: the venue's line had a gap that nothing filled.
    SourceLine,
    /// Before the publisher or in its host: its record was not given, which tells whether the packets that
    /// are missing came to its socket.
    SourceLineOrInput,
    /// Perhaps in the publisher's host: the socket of an input dropped packets just then for want of a
    /// buffer, although it was read. They may have been these, or a stranger's while the venue had a gap.
    InputBuffer,
    /// The same, because the socket was not read.
    InputStall,
    /// In the publisher: between its feed and its publish thread.
    FeedHop,
    /// Before the publisher: messages that could not be read.
    SourceUnreadable,
    /// In the publisher: a message was larger than a datagram.
    Oversize,
    /// In the publisher's send queue: this fan-out held the ring, and was torn down before it had sent
    /// them.
    TornDown(FanOutId),
    /// In the publisher's host: the network refused datagrams on this line just then, for want of room in
    /// the send buffer or of a way out.
    SendRefused(LineId),
    /// In the publisher: it had sealed them, and not sent them yet when its record ends.
    Unsent,
    /// Behind the publisher's network stack, before the ways of its lines or subscribers part: its
    /// interface, its uplink.
    Uplink,
    /// Between the publisher's ring and where the ways of its subscribers part: its send queue, its
    /// interface, its uplink. All lines, or all records, missed the same datagrams.
    SendQueue,
    /// On the way here, on this line: another line, or another host, had them.
    Wire(LineId),
    /// On the way here, or behind the publisher's network stack in its own interface or uplink: with one
    /// line, and the record of one host beside the publisher's, nobody knows.
    WireOrUplink,
    /// Nowhere: they came on this line, later than something told of them, or before anything did that is
    /// believed. See [`Finding::late`].
    Late(LineId),
    /// On the way here or in the publisher's send queue: with one line and one record nobody knows.
    WireOrSendQueue,
    /// In this host, for want of a buffer, although the application polled.
    SocketBuffer,
    /// In this host, for want of a buffer, because the application did not poll.
    PollStall,
    /// In this host's RDMA device: the receive queue broke, or the Q_Key was another.
    Device,
    /// They came, but with bytes altered.
    Damaged(LineId),
    /// They came, but cut off.
    CutOff(LineId),
    /// They came, but were longer than a slot.
    TooLong,
    /// A fault dropped them that was injected in this host.
    Injected(LineId),
    /// The publisher's ring in this host was overwritten before they were copied.
    RingOverrun,
    /// They came, but the window was full behind an earlier gap.
    WindowFull,
    /// They were delivered to the local ring, and overwritten there before the application took them.
    LocalRing,
    /// No datagram of the channel reached this host for a while: the group, a switch, a cable.
    Silence,
    /// The publisher went, and what it had sent last with it.
    PublisherGone,
    /// The publisher's epoch changed, and what was open of the one before went with it.
    EpochChange,
    /// They were sent before we joined.
    BeforeJoining,
    /// They were sent between the publisher's welcome and the first datagram that came: our joining its
    /// group took so long.
    Joining,
    /// They came, but before a WELCOME had confirmed their epoch: anyone can send such.
    BeforeWelcome,
    /// Their CRC fits, and their records can't be read.
    Unreadable,
    /// Another publisher sent something else under the same numbers.
    Impostor,
    /// The record does not reach back so far.
    BeforeRecord,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fate {
    /// It came after all.
    Came(How),
    /// It was declared lost.
    Lost(LossCause),
    /// It had not come when the record ends.
    Open,
    /// Nothing could be done about it here: it never was in a datagram, or was delivered already.
    Told,
}

/// How something came after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum How {
    /// On another line.
    OtherLine(LineId),
    /// On a line, later than what follows it.
    Late(LineId),
    /// Sent again by multicast.
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

/// Why datagrams came late on their line, as far as the records show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DelayCause {
    /// A fault held them back that was injected in this host.
    Injected,
    /// What was sent after them came before them on the same line.
    Overtaken,
    /// The application had not polled for so long: they waited in this host.
    PollStall(Nanos),
    /// The publish thread had not come back for so long before it sent them, by the publisher's record.
    PublisherStall(Nanos),
    /// Nothing of the channel had come for so long, on any line: the publisher or the network stood still.
    Silence(Nanos),
    /// The line went on in order: something else was faster.
    Behind,
}

/// Something that was missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Which record, in the order given.
    pub record: usize,
    /// Which gap of that record, from 1 on; the parts of a gap that were lost in different places, or
    /// fared differently, have the same.
    pub gap: usize,
    /// Of which channel.
    pub channel: ChannelId,
    /// Of which epoch.
    pub epoch: Epoch,
    /// Which datagrams.
    pub sequences: SequenceRange,
    /// When it was found, protocol time of that record.
    pub found_at: Nanos,
    /// When a datagram had come last before that.
    pub heard_before: Nanos,
    /// Where it was lost.
    pub origin: Origin,
    /// What became of it.
    pub fate: Fate,
    /// When that was settled.
    pub settled_at: Nanos,
    /// How often it was asked for before, as far as the record holds it.
    pub asked: u32,
    /// Whether it may have been asked for more often: more was sent meanwhile than the record holds.
    pub asked_more: bool,
    /// How long the application had not polled just before, where it had not.
    pub stalled_for: Option<Nanos>,
    /// When the last of it came on its line after all, and why only then, where it was late and not lost.
    pub late: Option<(Nanos, DelayCause)>,
    /// How many datagrams the kernel or the device dropped just then, whosever they were.
    pub buffer_drops: u64,
    /// Of what the publisher lost of a source: why, and how many messages.
    pub source: Option<(SourceLossReason, u64)>,
    /// Records that a loss event said it cost, where it is known.
    pub records: Option<u64>,
    /// Why the publisher refused to send it again, the last time, and how often it did.
    pub refused: Option<(RefusalReason, u32)>,
}

/// What all findings of a record come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Datagrams of all channels that came on a line, and were whole.
    pub received: u64,
    /// Of those on line A and line B.
    pub on_lines: [u64; LineId::MAX],
    /// What each line missed of what came on the other.
    pub missed_by_lines: [u64; LineId::MAX],
    /// Sequences found missing while we listened.
    pub missing: u64,
    /// Of those, sequences that came after all.
    pub came: u64,
    /// Of those, sequences declared lost.
    pub lost: u64,
    /// Of those, sequences that were open when the record ends.
    pub open: u64,
    /// Sequences declared lost beside those: of what was sent before we joined, or whose number nobody
    /// knows.
    pub lost_otherwise: u64,
    /// Loss events told to the application.
    pub loss_events: u64,
    /// Datagrams that a publisher sealed, and those it handed to a fan-out.
    pub sealed: u64,
    /// See `sealed`.
    pub handed: u64,
}

/// What a record says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What was missing, in the order in which it was found.
    pub findings: Vec<Finding>,
    /// What that comes to.
    pub totals: Totals,
    /// When the first entry was made, and the last.
    pub from: Nanos,
    /// See `from`.
    pub to: Nanos,
    /// Why the record could not be read to its end, where it could not.
    pub damaged: Option<String>,
    /// What a repair service was asked for, and gave, where the record is one's.
    pub serving: Option<Serving>,
    /// What else happened, in order.
    pub timeline: Vec<(Nanos, Happening)>,
}

/// Something worth a line of its own beside the findings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Happening {
    /// The application had not polled for so long, or the publish thread not come back.
    Stall(Nanos),
    /// The kernel or the device dropped so many datagrams of a channel, for want of a buffer.
    BufferDrops(ChannelId, u64),
    /// The core told the application.
    Told(ChannelId, String),
    /// The publisher welcomed us: so many channels.
    Welcomed(usize),
    /// Something happened to the connections of a repair service.
    Served(Served),
}

/// Sequences.
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
            // By far the most often: the next one.
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

    /// How many sequences of this run.
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

    /// How many sequences.
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
