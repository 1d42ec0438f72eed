//! The queue of future events, in order of time. Events due at the same time keep the order in
//! which they were scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tickcast_reliability::session::{Path, RemoteRequest};
use tickcast_reliability::types::Nanos;

use crate::faults::kill::KillVictim;
use crate::network::inboxes::HalfWrite;
use crate::network::packet::Packet;
use crate::network::reads::HalfRead;

/// A scheduled event.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The feed of a publisher publishes on this channel index.
    Feed(usize, usize),
    /// A publisher's timer fires.
    PublisherTimer(usize),
    /// A subscriber's timer fires, valid only for this incarnation.
    SubscriberTimer(usize, u64),
    /// A datagram arrives at a subscriber on a line.
    Datagram(usize, u8, Packet),
    /// One direction of a connection makes progress; `true`: from subscriber to publisher.
    Move(usize, bool),
    /// Bytes arrive over one direction of a connection.
    Bytes(usize, bool, Vec<u8>),
    /// An attempt to connect completes or fails.
    Dial(usize, Path, u64),
    /// One side of a connection is notified that it closed; `true`: the publisher's side.
    Closed(usize, bool),
    /// READs of a connection arrive at the publisher's device.
    Reads(usize),
    /// The publisher's device copies the rest of a READ.
    ReadRest(HalfRead),
    /// The result of a READ arrives at the subscriber.
    ReadDone(usize, RemoteRequest, Vec<u8>),
    /// READ results that could not be delivered are retried.
    ReadAgain(usize),
    /// The publisher's device copies the rest of a slot that it writes to a standby.
    WriteRest(HalfWrite),
    /// The written slot arrives at the standby.
    WriteArrives(HalfWrite),
    /// Delayed WRITEs of a connection are retried.
    WritesAgain(usize),
    /// The publisher's device completes a WRITE.
    WriteDone(usize),
    /// Checks whether a standby has everything of the publisher that hands over; repeated until
    /// this deadline.
    HandOver(usize, usize, Nanos),
    /// A publisher that has handed over ends.
    Ends(usize),
    /// A flooding subscriber sends its next NACK.
    Flood(usize),
    /// The next incident of the plan happens.
    Incident(usize),
    /// The process that was killed at a protocol moment restarts.
    Revive(KillVictim),
    /// The faults stop.
    Heal,
    /// The feed ends.
    Finish,
    /// All subscribers have joined.
    Joined,
}

/// A queue of events, ordered by time and then by the order of scheduling.
#[derive(Default)]
pub(crate) struct Queue {
    /// Time, scheduling order, and index into `events`. Events are stored apart, because heap
    /// entries are moved often and should be small.
    heap: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    scheduled: u64,
}

impl Queue {
    /// Schedules an event; ignored when `at` is the end of time.
    pub(crate) fn push(&mut self, at: Nanos, event: Event) {
        if at == Nanos::MAX {
            return;
        }
        self.scheduled += 1;
        let place = self.free.pop().unwrap_or(self.events.len());
        match self.events.get_mut(place) {
            Some(free) => *free = Some(event),
            None => self.events.push(Some(event)),
        }
        self.heap.push(Reverse((at, self.scheduled, place)));
    }

    /// Removes and returns the next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(Nanos, Event)> {
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.free.push(place);
        Some((at, self.events.get_mut(place)?.take()?))
    }

    /// Returns the number of scheduled events.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}
