//! The publisher core as bytes, and back: points at which its recorded run can be resumed (the crate
//! `tickcast-journal`). Of the ring it keeps only the numbers and the headers of unsent datagrams.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{FanOut, PublisherCore, PublisherEvent};
use crate::publish::heartbeat::HeartbeatSchedule;
use crate::publish::sequencer::Sequencer;
use crate::ring::{RingState, RingWriter};
use crate::types::{SenderCounters, Sequence, State};

#[derive(Serialize, Deserialize)]
struct Snapshot {
    ring: RingState,
    completed: Sequence,
    is_open: bool,
    is_ended: bool,
    fan_outs: Vec<FanOut>,
    margin: u64,
    heartbeats: HeartbeatSchedule,
    subscribers: u32,
    hold_off_us: u32,
    stopped: bool,
    events: Vec<PublisherEvent>,
    /// The counters in declaration order.
    counters: Vec<u64>,
}

impl State for PublisherCore {
    /// The core with no slot open, and whether one was open when it was written down.
    type Restored = (Self, bool);

    fn take_down(&self, into: &mut [u8]) -> Option<usize> {
        let mut counters = Vec::new();
        self.counters.each(|_, _, value| counters.push(value));
        let posted = self.fan_outs.iter().map(|fan_out| fan_out.posted);
        let unsent = posted.min().unwrap_or_else(|| self.sealed());
        // Check the count before the headers are collected.
        let count = self.sealed().since(unsent);
        if usize::try_from(count)
            .ok()?
            .checked_mul(crate::wire::HEADER_LEN)?
            > into.len()
        {
            return None;
        }
        let snapshot = Snapshot {
            ring: self.ring().state(unsent),
            completed: self.sequencer.completed(),
            is_open: self.is_open(),
            is_ended: self.is_ended(),
            fan_outs: self.fan_outs.clone(),
            margin: self.margin,
            heartbeats: self.heartbeats.clone(),
            subscribers: self.subscribers,
            hold_off_us: self.hold_off_us,
            stopped: self.stopped,
            events: self.events.iter().cloned().collect(),
            counters,
        };
        Some(postcard::to_slice(&snapshot, into).ok()?.len())
    }

    fn take_up(bytes: &[u8]) -> Option<(Self, bool)> {
        let snapshot: Snapshot = postcard::from_bytes(bytes).ok()?;
        let mut ring = RingWriter::rebuild(&snapshot.ring)?;
        let slots = ring.geometry().slots();
        let fan_outs = usize::from(ring.identity().fan_outs);
        if snapshot.fan_outs.len() != fan_outs || !(2..=slots - 2).contains(&snapshot.margin) {
            return None;
        }
        for (index, fan_out) in snapshot.fan_outs.iter().enumerate() {
            ring.set_sent(crate::types::FanOutId(index as u8), fan_out.posted);
        }
        let counters = Arc::new(SenderCounters::default());
        counters.set_all(snapshot.counters);
        let progress = (snapshot.completed, snapshot.is_ended);
        let completed_by_all = snapshot.fan_outs.iter().map(|it| it.completed).min();
        let core = Self {
            sequencer: Sequencer::taken_up(ring, progress, counters.clone()),
            completed_by_all: completed_by_all.unwrap_or_default(),
            fan_outs: snapshot.fan_outs,
            margin: snapshot.margin,
            heartbeats: snapshot.heartbeats,
            subscribers: snapshot.subscribers,
            hold_off_us: snapshot.hold_off_us,
            stopped: snapshot.stopped,
            events: snapshot.events.into(),
            counters,
        };
        Some((core, snapshot.is_open))
    }
}
