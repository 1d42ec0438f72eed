//! The relay's report: exact to the sequence, or marked as inexact.

use std::net::SocketAddrV4;

use serde::Serialize;
use tickcast_reliability::types::{ChannelId, Epoch, Sequence, SequenceRange};
use tickcast_reliability::wire::{Header, Kind};
use tickcast_transport::Receive;
use tickcast_transport::faults::{FaultConfig, FaultCounts, FaultKind, FaultLog};

use super::{Args, Relay};

/// The reason why the relay stopped.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EndedBy {
    Signal,
    Duration,
    EndOfSession,
}

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    from: SocketAddrV4,
    to: SocketAddrV4,
    seed: u64,
    /// The fault plan in effect, including options. The same file injects the same faults again.
    plan: FaultConfig,
    ended_by: EndedBy,
    seconds: f64,
    /// Whether the lists below name every affected datagram: none was lost before the relay or refused
    /// by the network, and the lists had room.
    pub(super) exact: bool,
    counts: FaultCounts,
    received: Received,
    /// Datagrams that the network refused to send.
    refused: u64,
    channels: Vec<ChannelDone>,
    /// Datagrams of channels and epochs beyond the list's maximum; they have no list.
    unlisted_channels: u64,
}

#[derive(Debug, Serialize)]
struct Received {
    datagrams: u64,
    bytes: u64,
    /// Datagrams lost in the relay's socket buffer; their sequences are unknown.
    kernel_dropped: u64,
    /// Errors of the network, and datagrams too long for UDP over IPv4.
    errors: u64,
}

/// The faults injected on one channel in one epoch.
#[derive(Debug, Serialize)]
struct ChannelDone {
    #[serde(flatten)]
    seen: ChannelSeen,
    /// Dropped datagrams, for any reason.
    dropped: Vec<SequenceRange>,
    dropped_sequences: u64,
    /// Datagrams dropped, damaged or truncated: the losses of a subscriber without repair.
    missed: Vec<SequenceRange>,
    missed_sequences: u64,
    /// All faults, in the order of injection.
    done: Vec<Done>,
}

#[derive(Debug, Serialize)]
struct Done {
    kind: FaultKind,
    sequences: SequenceRange,
}

/// The datagrams of one channel in one epoch, as received.
#[derive(Clone, Copy, Debug, Serialize)]
struct ChannelSeen {
    channel: ChannelId,
    epoch: Epoch,
    datagrams: u64,
    lowest: Sequence,
    highest: Sequence,
    ended: bool,
}

/// The channels and epochs received.
#[derive(Debug, Default)]
pub(super) struct Seen {
    channels: Vec<ChannelSeen>,
    unlisted: u64,
}

impl Seen {
    /// Maximum number of entries: more than any publisher has. It bounds the memory, because an attacker
    /// could name any number of channels.
    const CHANNELS_MAX: usize = 256;

    /// Counts a sequenced datagram.
    pub(super) fn note(&mut self, header: &Header) {
        if !header.kind.is_sequenced() {
            return;
        }
        let known = |c: &&mut ChannelSeen| (c.channel, c.epoch) == (header.channel, header.epoch);
        let ended = header.kind == Kind::End;
        if let Some(channel) = self.channels.iter_mut().find(known) {
            channel.datagrams += 1;
            channel.lowest = channel.lowest.min(header.sequence);
            channel.highest = channel.highest.max(header.sequence);
            channel.ended |= ended;
        } else if self.channels.len() < Self::CHANNELS_MAX {
            self.channels.push(ChannelSeen {
                channel: header.channel,
                epoch: header.epoch,
                datagrams: 1,
                lowest: header.sequence,
                highest: header.sequence,
                ended,
            });
        } else {
            self.unlisted += 1;
        }
    }

    /// Returns whether there is a channel, and each channel's newest epoch has ended.
    pub(super) fn all_ended(&self) -> bool {
        let newer = |a: &ChannelSeen, b: &ChannelSeen| a.channel == b.channel && a.epoch < b.epoch;
        let newest = |a: &&ChannelSeen| !self.channels.iter().any(|b| newer(a, b));
        !self.channels.is_empty() && self.channels.iter().filter(newest).all(|c| c.ended)
    }
}

impl Report {
    pub(super) fn new(relay: &Relay, args: &Args, plan: FaultConfig, ended_by: EndedBy) -> Self {
        let counts = *relay.plan.counts();
        let stats = relay.receiver.stats().first().copied().unwrap_or_default();
        let received = Received {
            datagrams: stats.datagrams,
            bytes: stats.bytes,
            kernel_dropped: stats.buffer_drops,
            errors: stats.oversize + stats.transient_errors,
        };
        let refused = relay.sender.refused();
        let seen = &relay.seen;
        Self {
            from: args.from,
            to: args.to,
            seed: plan.seed,
            plan,
            ended_by,
            seconds: relay.started_at.elapsed().as_secs_f64(),
            exact: refused + received.kernel_dropped + received.errors == 0
                && counts.unlisted + seen.unlisted == 0,
            counts,
            received,
            refused,
            channels: seen
                .channels
                .iter()
                .map(|seen| done(*seen, relay.plan.log()))
                .collect(),
            unlisted_channels: seen.unlisted,
        }
    }
}

fn done(seen: ChannelSeen, log: &FaultLog) -> ChannelDone {
    let of_channel = log
        .entries()
        .iter()
        .filter(|entry| (entry.channel, entry.epoch) == (seen.channel, seen.epoch));
    let (dropped, missed) = (
        log.dropped(seen.epoch, seen.channel),
        log.missed(seen.epoch, seen.channel),
    );
    let count = |ranges: &[SequenceRange]| ranges.iter().map(|range| range.len()).sum();
    ChannelDone {
        seen,
        dropped_sequences: count(&dropped),
        dropped,
        missed_sequences: count(&missed),
        missed,
        done: of_channel
            .map(|entry| Done {
                kind: entry.kind,
                sequences: entry.sequences,
            })
            .collect(),
    }
}
