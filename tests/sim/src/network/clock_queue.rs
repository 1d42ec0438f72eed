//! What will happen, in order of time; what is due at the same time, in the order in which it was
//! scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tickcast_reliability::session::{Path, RemoteRequest};
use tickcast_reliability::types::Nanos;

use crate::faults::kill::Who;
use crate::network::inboxes::HalfWrite;
use crate::network::packet::Packet;
use crate::network::reads::HalfRead;

/// Something that will happen.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A publisher's feed has something, for this one of its channels.
    Feed(usize, usize),
    /// A publisher's timer.
    PublisherTimer(usize),
    /// A subscriber's timer, in this life.
    SubscriberTimer(usize, u64),
    /// A datagram arrives on a line.
    Datagram(usize, u8, Packet),
    /// A direction of a connection moves on.
    Move(usize, bool),
    /// Bytes arrive.
    Bytes(usize, bool, Vec<u8>),
    /// An attempt to connect is answered, or not.
    Dial(usize, Path, u64),
    /// One side (`true`: the publisher's) learns that a connection is over.
    Closed(usize, bool),
    /// READs of a connection come to the publisher's device.
    Reads(usize),
    /// One is copied as a whole.
    ReadRest(HalfRead),
    /// It comes back.
    ReadDone(usize, RemoteRequest, Vec<u8>),
    /// What came back is looked at again, where it could not be handed over.
    ReadAgain(usize),
    /// A slot that is written to a standby is copied as a whole.
    WriteRest(HalfWrite),
    /// It comes to the standby.
    WriteArrives(HalfWrite),
    /// What was held on the way is tried again.
    WritesAgain(usize),
    /// The publisher's device says that one is done.
    WriteDone(usize),
    /// Whether a standby has everything of the publisher that hands over to it; tried until then.
    HandOver(usize, usize, Nanos),
    /// A publisher that has handed over ends.
    Ends(usize),
    /// A subscriber that floods says something again.
    Flood(usize),
    /// The next incident of the plan.
    Incident(usize),
    /// What was killed at its moment is there again.
    Revive(Who),
    /// The faults stop.
    Heal,
    /// The feed ends.
    Finish,
    /// Everyone has joined.
    Joined,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Queue {
    /// When, in which order it was scheduled, and where in `events` it is: small, since they are moved
    /// about a lot.
    heap: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    scheduled: u64,
}

impl Queue {
    /// Something will happen; never, where `at` is the end of time.
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

    /// What happens next, and when.
    pub(crate) fn pop(&mut self) -> Option<(Nanos, Event)> {
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.free.push(place);
        Some((at, self.events.get_mut(place)?.take()?))
    }

    /// How much is on its way.
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}
