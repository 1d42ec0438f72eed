//! The log of a fault injector: it counts every fault, and lists faults while the list has room.

use serde::Serialize;
use tickcast_reliability::types::{ChannelId, Epoch, Sequence, SequenceRange};

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Dropped at random, independently of others.
    Drop,
    /// Dropped in a burst.
    BurstDrop,
    /// Dropped by the script.
    ScriptedDrop,
    /// Dropped by a partition of the script.
    PartitionDrop,
    /// Duplicated.
    Duplicate,
    /// Overtaken by later datagrams.
    Reorder,
    /// Delayed.
    Delay,
    /// Bits flipped.
    Corrupt,
    /// Truncated.
    Truncate,
}

impl FaultKind {
    /// Every kind, for tables and metrics.
    pub const ALL: [Self; 9] = [
        Self::Drop,
        Self::BurstDrop,
        Self::ScriptedDrop,
        Self::PartitionDrop,
        Self::Duplicate,
        Self::Reorder,
        Self::Delay,
        Self::Corrupt,
        Self::Truncate,
    ];

    /// Returns whether the datagram is never emitted.
    #[must_use]
    pub const fn is_drop(self) -> bool {
        matches!(
            self,
            Self::Drop | Self::BurstDrop | Self::ScriptedDrop | Self::PartitionDrop
        )
    }

    /// Returns whether the datagram is not emitted at once.
    #[must_use]
    pub const fn withholds(self) -> bool {
        self.is_drop() || matches!(self, Self::Reorder | Self::Delay)
    }
}

/// Counts of datagrams. Invariant: passed in + duplicated = passed out + dropped + held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    /// Datagrams taken in.
    pub passed_in: u64,
    /// Datagrams emitted, second copies included.
    pub passed_out: u64,
    /// Dropped at random, independently of others.
    pub dropped: u64,
    /// Dropped in bursts.
    pub burst_dropped: u64,
    /// Bursts begun.
    pub bursts: u64,
    /// Dropped by the script.
    pub scripted_dropped: u64,
    /// Dropped by partitions.
    pub partition_dropped: u64,
    /// Dropped datagrams without a sequence of their own (heartbeats, and datagrams of other protocols). The
    /// list leaves them out.
    pub dropped_unsequenced: u64,
    /// Second copies made.
    pub duplicated: u64,
    /// Overtaken.
    pub reordered: u64,
    /// Delayed.
    pub delayed: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Truncated.
    pub truncated: u64,
    /// Passed at once although they should have been held, because too many were held.
    pub held_overflow: u64,
    /// Faults that the list had no room for.
    pub unlisted: u64,
}

impl FaultCounts {
    /// Returns the number of all dropped datagrams, for any reason.
    #[must_use]
    pub const fn dropped_all(&self) -> u64 {
        self.dropped + self.burst_dropped + self.scripted_dropped + self.partition_dropped
    }
}

/// A run of sequences with one kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The affected channel.
    pub channel: ChannelId,
    /// The affected epoch.
    pub epoch: Epoch,
    /// The affected datagrams.
    pub sequences: SequenceRange,
}

/// The faults, in order, with adjacent sequences joined, and the counts.
#[derive(Clone, Debug, Default)]
pub struct FaultLog {
    pub(super) counts: FaultCounts,
    entries: Vec<Entry>,
    /// Index of the last entry of each kind.
    last: [Option<usize>; FaultKind::ALL.len()],
}

impl FaultLog {
    /// Maximum number of entries kept; later faults are only counted (`unlisted`).
    pub const ENTRIES_MAX: usize = 1 << 18;

    /// Returns the counts.
    #[must_use]
    pub const fn counts(&self) -> &FaultCounts {
        &self.counts
    }

    /// Returns the listed faults, exact if `unlisted` is 0.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the sequences dropped on a channel, for any reason, ascending and joined.
    #[must_use]
    pub fn dropped(&self, epoch: Epoch, channel: ChannelId) -> Vec<SequenceRange> {
        self.joined(epoch, channel, FaultKind::is_drop)
    }

    /// Returns the sequences that a subscriber without NACKs misses: those dropped, and those damaged or
    /// truncated, which the subscriber must drop.
    #[must_use]
    pub fn missed(&self, epoch: Epoch, channel: ChannelId) -> Vec<SequenceRange> {
        let damaged = |kind| matches!(kind, FaultKind::Corrupt | FaultKind::Truncate);
        self.joined(epoch, channel, |kind| kind.is_drop() || damaged(kind))
    }

    fn joined(
        &self,
        epoch: Epoch,
        channel: ChannelId,
        wanted: impl Fn(FaultKind) -> bool,
    ) -> Vec<SequenceRange> {
        let mut ranges: Vec<_> = self
            .entries
            .iter()
            .filter(|e| wanted(e.kind) && e.epoch == epoch && e.channel == channel)
            .map(|e| e.sequences)
            .collect();
        ranges.sort_by_key(|range| range.first);
        let mut joined: Vec<SequenceRange> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if range.first <= last.last.next() => {
                    last.last = last.last.max(range.last);
                }
                _ => joined.push(range),
            }
        }
        joined
    }

    pub(super) fn note(&mut self, kind: FaultKind, what: Option<(ChannelId, Epoch, Sequence)>) {
        let counts = &mut self.counts;
        let counter = match kind {
            FaultKind::Drop => &mut counts.dropped,
            FaultKind::BurstDrop => &mut counts.burst_dropped,
            FaultKind::ScriptedDrop => &mut counts.scripted_dropped,
            FaultKind::PartitionDrop => &mut counts.partition_dropped,
            FaultKind::Duplicate => &mut counts.duplicated,
            FaultKind::Reorder => &mut counts.reordered,
            FaultKind::Delay => &mut counts.delayed,
            FaultKind::Corrupt => &mut counts.corrupted,
            FaultKind::Truncate => &mut counts.truncated,
        };
        *counter += 1;
        let Some((channel, epoch, sequence)) = what else {
            counts.dropped_unsequenced += u64::from(kind.is_drop());
            return;
        };
        let last = &mut self.last[kind as usize];
        if let Some(entry) = last.and_then(|at| self.entries.get_mut(at))
            && (entry.channel, entry.epoch) == (channel, epoch)
            && entry.sequences.last.next() == sequence
        {
            entry.sequences.last = sequence;
        } else if self.entries.len() < Self::ENTRIES_MAX {
            *last = Some(self.entries.len());
            self.entries.push(Entry {
                kind,
                channel,
                epoch,
                sequences: SequenceRange::one(sequence),
            });
        } else {
            counts.unlisted += 1;
        }
    }
}
