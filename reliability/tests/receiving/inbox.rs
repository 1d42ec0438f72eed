//! WRITEs of the publisher to a standby's inbox (docs/PROTOCOL.md §6.8).

use std::sync::Arc;

use tickcast_reliability::control::{
    MirrorRefusal, MirrorRefused, RemoteAccess, RepairOffer, Start,
};
use tickcast_reliability::delivery::{Event, LinkDownReason};
use tickcast_reliability::receive::{InboxState, ReceiverConfig, RepairOrder};
use tickcast_reliability::ring::{Geometry, HeapMemory, RingMemory, WrittenSlots};
use tickcast_reliability::session::{Path, SubscriberInput};
use tickcast_reliability::types::{Epoch, Nanos, Sequence};
use tickcast_reliability::wire::{CrcVerdict, Datagram};

use crate::world::*;

/// A standby with a granted inbox, and the slots that the publisher writes.
struct Written {
    world: World,
    slots: WrittenSlots,
}

fn world_of(config: ReceiverConfig, mirror: bool) -> World {
    let mut world = World::new(config, Start::Live, 1);
    world.repairs = vec![RepairOffer::Verbs {
        address: "10.0.0.1:7410".parse().unwrap(),
        read: true,
        mirror,
    }];
    world.give(SubscriberInput::UseReadPath(true));
    world.give(SubscriberInput::UseInboxes(true));
    world
}

fn begun(publisher: &Publisher) -> Written {
    let config = ReceiverConfig {
        ladder: RepairOrder::Read,
        ..quiet()
    };
    let mut world = world_of(config, true);
    world.settle(publisher);
    assert_eq!(world.inboxes.len(), 1);
    let memory = Arc::new(HeapMemory::new(world.inboxes[0].geometry));
    grant(&mut world, memory.clone());
    world.settle(publisher);
    let geometry = Geometry::new(SLOT_LEN as u32, SLOTS).unwrap();
    let slots = WrittenSlots::new(memory, geometry).unwrap();
    Written { world, slots }
}

/// Grants the memory, in the requested size.
fn grant(world: &mut World, memory: Arc<dyn RingMemory>) {
    let wanted = world.inboxes[0];
    let access = RemoteAccess {
        address: 0x7100_0000_1000,
        len: wanted.part().len() as u64,
        key: 5,
    };
    world.give(SubscriberInput::Inbox {
        channel: CHANNEL,
        wanted,
        memory: &memory,
        access,
    });
}

impl Written {
    /// Writes those words of a datagram that `is_written` selects.
    fn write(&mut self, bytes: &[u8], is_written: impl FnMut(usize) -> bool) {
        let sequence = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
        self.slots.place(Sequence(sequence), bytes, is_written);
    }

    /// Takes all complete datagrams as the driver does, and returns their number.
    fn poll(&mut self) -> usize {
        let mut count = 0;
        while let Some(channel) = self.world.core.poll_written() {
            let datagram = Datagram::parse(self.world.core.written(channel)).unwrap();
            assert_eq!(datagram.verdict(), CrcVerdict::Good);
            self.world.give(SubscriberInput::Written(channel));
            count += 1;
        }
        count
    }
}

#[test]
fn standby_requests_writes_and_takes_them_in_order() {
    let mut publisher = Publisher::new(5, 1);
    let mut of = begun(&publisher);
    let wish = of.world.wishes[0];
    let wanted = of.world.inboxes[0];
    assert_eq!((wish.epoch, wish.attempt), (Epoch(5), 1));
    assert_eq!(wish.inbox.len, SLOTS * SLOT_LEN as u64);
    assert_eq!(wanted.part().start, 4096);
    let view = |of: &Written| of.world.core.receiver(CHANNEL).unwrap().inbox().unwrap();
    assert_eq!(view(&of).state, InboxState::Asked);
    assert_eq!(of.poll(), 0);
    for _ in 0..3 {
        let bytes = publisher.publish(1);
        of.write(&bytes, |_| true);
    }
    assert_eq!(of.poll(), 3);
    assert_eq!(of.world.records, numbers(1..=3));
    let (state, newest) = (view(&of).state, view(&of).newest);
    assert_eq!((state, newest), (InboxState::Written, Sequence(3)));
    let c = of.world.counters();
    let counted = [&c.inbox_received, &c.inbox_first, &c.repairs_received];
    assert_eq!(counted.map(|it| it.get()), [3, 3, 0]);
    // A datagram that multicast brings as well is a duplicate, whichever comes first.
    let bytes = publisher.publish(1);
    of.world.hear(A, &bytes);
    of.write(&bytes, |_| true);
    assert_eq!(of.poll(), 1);
    let c = of.world.counters();
    let counted = [&c.inbox_received, &c.inbox_first, &c.duplicates];
    assert_eq!(counted.map(|it| it.get()), [4, 3, 1]);
    assert_eq!(of.world.records, numbers(1..=4));
}

#[test]
fn partly_written_inbox_slot_is_not_taken() {
    let mut publisher = Publisher::new(5, 1);
    let mut of = begun(&publisher);
    let bytes = publisher.publish(2);
    // The words of the header are written, and some of the records.
    of.write(&bytes, |word| word < 12);
    assert_eq!((of.poll(), of.poll()), (0, 0));
    assert_eq!(of.world.counters().inbox_torn.get(), 1);
    of.write(&bytes, |_| true);
    assert_eq!(of.poll(), 1);
    assert_eq!(of.world.records, numbers(1..=2));
}

#[test]
fn inbox_slot_of_another_epoch_is_not_taken() {
    let mut publisher = Publisher::new(5, 1);
    let mut of = begun(&publisher);
    let mut other = Publisher::new(6, 1);
    let bytes = other.publish(1);
    of.write(&bytes, |_| true);
    assert_eq!(of.poll(), 0);
    let bytes = publisher.publish(1);
    of.write(&bytes, |_| true);
    assert_eq!(of.poll(), 1);
}

#[test]
fn skipped_inbox_slots_are_passed_over_and_repaired() {
    let mut publisher = Publisher::new(5, 1);
    let mut of = begun(&publisher);
    let all: Vec<_> = (0..9).map(|_| publisher.publish(1)).collect();
    of.write(&all[0], |_| true);
    assert_eq!(of.poll(), 1);
    // 2 to 4 are skipped, which is detected after three more.
    for bytes in &all[4..] {
        of.write(bytes, |_| true);
    }
    assert_eq!(of.poll(), 5);
    assert_eq!(of.world.counters().inbox_skipped.get(), 3);
    of.world.settle(&publisher);
    assert_eq!(of.world.records, numbers(1..=9));
    let c = of.world.counters();
    assert_eq!(
        (c.missing_datagrams.get(), c.missing_recovered.get()),
        (3, 3)
    );
    assert_eq!(c.read_repairs_received.get(), 3);
}

#[test]
fn lapped_inbox_is_read_from_its_oldest_slot() {
    let mut publisher = Publisher::new(5, 1);
    let mut of = begun(&publisher);
    for _ in 0..SLOTS + 10 {
        let bytes = publisher.publish(1);
        of.write(&bytes, |_| true);
    }
    // Sequence 1 is overwritten by the next round; 11 is the oldest.
    assert_eq!(of.poll(), SLOTS as usize);
    let c = of.world.counters();
    assert_eq!(c.inbox_skipped.get(), 10);
    assert_eq!(c.missing_datagrams.get(), 10);
}

#[test]
fn inbox_writes_do_not_prevent_staleness() {
    let mut publisher = Publisher::new(5, 1);
    let config = ReceiverConfig {
        ladder: RepairOrder::Read,
        stale_us: 30_000,
        ..quiet()
    };
    let mut of = begun(&publisher);
    let mut world = world_of(config, true);
    std::mem::swap(&mut of.world, &mut world);
    of.world.settle(&publisher);
    let memory = Arc::new(HeapMemory::new(of.world.inboxes[0].geometry));
    grant(&mut of.world, memory.clone());
    of.slots = WrittenSlots::new(memory, of.world.inboxes[0].geometry).unwrap();
    for _ in 0..40 {
        let bytes = publisher.publish(1);
        of.write(&bytes, |_| true);
        of.poll();
        of.world.pass(Nanos::from_ms(1), &publisher);
    }
    assert!(of.world.saw(&Event::Stale));
    assert_eq!(of.world.records, numbers(1..=40));
}

#[test]
fn inbox_ends_on_refusal_or_disconnect() {
    let publisher = Publisher::new(5, 1);
    let mut of = begun(&publisher);
    let view = |of: &Written| of.world.core.receiver(CHANNEL).unwrap().inbox();
    let refused = |attempt| {
        tickcast_reliability::control::Message::MirrorRefused(MirrorRefused {
            epoch: Epoch(5),
            attempt,
            reason: MirrorRefusal::NotAllowed,
        })
    };
    of.world.tell(Path::Repair, &refused(7));
    assert_eq!(view(&of).map(|it| it.state), Some(InboxState::Asked));
    of.world.tell(Path::Repair, &refused(1));
    let state = InboxState::Refused(MirrorRefusal::NotAllowed);
    assert_eq!(view(&of).map(|it| it.state), Some(state));
    assert_eq!(of.world.counters().inboxes_refused.get(), 1);
    let wanted = of.world.inboxes[0];
    let closed = LinkDownReason::Closed;
    (of.world).give(SubscriberInput::Disconnected(Path::Read, closed));
    assert_eq!(view(&of), None);
    of.world.pass(Nanos::from_secs(1), &publisher);
    assert_eq!(of.world.inboxes.len(), 2, "a new attempt, another inbox");
    assert_ne!(of.world.inboxes[1].attempt, wanted.attempt);
    // An inbox made for the previous connection is ignored.
    grant(&mut of.world, Arc::new(HeapMemory::new(wanted.geometry)));
    assert_eq!((view(&of), of.world.wishes.len()), (None, 1));
}

#[test]
fn inbox_is_not_requested_without_an_offer() {
    let publisher = Publisher::new(5, 1);
    let mut world = world_of(quiet(), false);
    world.settle(&publisher);
    assert!(world.inboxes.is_empty());
}
