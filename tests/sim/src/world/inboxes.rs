//! WRITEs to standbys in virtual time. The publisher's device copies a slot while its process may
//! seal it again. It places the bytes in the standby's inbox in any order, while the standby polls.
//! A torn WRITE must never be accepted, and a missing one must be repaired.

use std::sync::Arc;

use rand::RngExt;
use tickcast_reliability::control::RemoteAccess;
use tickcast_reliability::delivery::Item;
use tickcast_reliability::receive::InboxWanted;
use tickcast_reliability::ring::{
    CONTROL_PAGE_LEN, Geometry, HeapMemory, RingMemory, WrittenSlots,
};
use tickcast_reliability::serve::{MirrorWrite, RepairInput};
use tickcast_reliability::session::{Path, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Nanos, Sequence};

use crate::network::clock_queue::Event;
use crate::network::inboxes::HalfWrite;
use crate::network::stream::index_of;
use crate::world::drive_subscriber::Came;
use crate::world::{World, now_of};

/// Interval at which a delayed transfer is retried.
const RETRANSMIT: Nanos = Nanos::from_ms(1);
/// Longest time in nanoseconds that a device takes to copy a slot, usually and occasionally.
const COPYING: u64 = 20_000;
const COPYING_SLOWLY: u64 = 3_000_000;

impl World {
    /// Creates an inbox and binds a window of it to the READ connection, as a standby's driver
    /// does.
    pub(crate) fn make_inbox(
        &mut self,
        number: usize,
        channel: ChannelId,
        wanted: &InboxWanted,
    ) -> Result<(), String> {
        let Some(connection) = self.subscribers[number].connections[index_of(Path::Read)] else {
            return Ok(());
        };
        let memory: Arc<dyn RingMemory> = Arc::new(HeapMemory::new(wanted.geometry));
        let slots = WrittenSlots::new(memory.clone(), wanted.geometry);
        let slots = slots.map_err(|e| e.to_string())?;
        let access = RemoteAccess {
            address: (1 << 61) | (connection as u64) << 32,
            len: wanted.part().len() as u64,
            key: connection as u32,
        };
        self.inboxes
            .0
            .insert((connection, channel), (access, slots));
        let core = &mut self.subscribers[number].core;
        let inbox = SubscriberInput::Inbox {
            channel,
            wanted: *wanted,
            memory: &memory,
            access,
        };
        core.handle(self.now, inbox, &mut |_: Item<'_>| ());
        self.count("inboxes");
        Ok(())
    }

    /// Posts the requested WRITEs, as the publisher's driver does.
    pub(crate) fn begin_writes(&mut self, index: usize) -> Result<(), String> {
        while let Some((peer, write)) = self.publishers[index].repair.poll_write() {
            let publisher = &self.publishers[index];
            let Some(&connection) = publisher.peers.get(&peer) else {
                continue;
            };
            let feed = publisher.feed(write.channel).ok_or("no such ring")?;
            let geometry = feed.reader.geometry();
            if write.len > geometry.slot_len() || write.offset < CONTROL_PAGE_LEN {
                return Err(format!("{write:?} is of no slot"));
            }
            let mut bytes = vec![0; write.len.next_multiple_of(8)];
            feed.reader.raw(write.offset, &mut bytes);
            let number = self.connections[connection].subscriber;
            let rng = &mut self.subscribers[number].rng;
            let takes = match rng.random_bool(0.03) {
                true => rng.random_range(0..COPYING_SLOWLY),
                false => rng.random_range(0..COPYING),
            };
            // WRITEs complete one after the other, in the order in which they began.
            let of = &mut self.connections[connection];
            of.write_at = self.now.max(of.write_at).after(Nanos(takes));
            let at = of.write_at;
            let half = HalfWrite {
                connection,
                write,
                bytes,
            };
            self.schedule(at, Event::WriteRest(half));
            self.count("mirror_writes");
        }
        Ok(())
    }

    /// Copies the rest of a WRITE and puts the bytes in flight.
    pub(crate) fn write_rest(&mut self, mut half: HalfWrite) -> Result<(), String> {
        let of = &self.connections[half.connection];
        let (number, publisher) = (of.subscriber, &self.publishers[of.publisher]);
        if !(of.near && of.far && publisher.alive) {
            return Ok(());
        }
        let Some(feed) = publisher.feed(half.write.channel) else {
            return Ok(());
        };
        let words = half.bytes.len() / 8;
        let rng = &mut self.subscribers[number].rng;
        let split = rng.random_range(0..=words) * 8;
        let rest = match rng.random_bool(0.5) {
            true => split..half.bytes.len(),
            false => 0..split,
        };
        let from = half.write.offset + rest.start;
        feed.reader.raw(from, &mut half.bytes[rest]);
        let delay = self.plan.delay.0;
        self.schedule(self.now.after(delay), Event::WriteArrives(half));
        Ok(())
    }

    /// Delivers a WRITE to the standby's device. While the device is unreachable, this WRITE and
    /// all later ones wait.
    pub(crate) fn write_arrives(&mut self, half: HalfWrite) -> Result<(), String> {
        let connection = half.connection;
        self.connections[connection].writes.push_back(half);
        self.writes_arrive(connection)
    }

    pub(crate) fn writes_arrive(&mut self, connection: usize) -> Result<(), String> {
        let number = self.connections[connection].subscriber;
        if self.is_closed(number, Path::Read, 2) {
            if !self.connections[connection].writes.is_empty() {
                self.count("down_held");
                let again = self.now.after(RETRANSMIT);
                self.schedule(again, Event::WritesAgain(connection));
            }
            return Ok(());
        }
        while self.connections[connection].near
            && let Some(half) = self.connections[connection].writes.pop_front()
        {
            let HalfWrite { write, bytes, .. } = half;
            let mut places: u64 = self.subscribers[number].rng.random();
            self.place(connection, &write, &bytes, |_| {
                places = places.rotate_left(1);
                places & 1 == 1
            })?;
            // The standby may poll at this moment.
            self.pump(number)?;
            self.place(connection, &write, &bytes, |_| true)?;
            self.pump(number)?;
            let done = self.now.after(self.plan.delay.0);
            self.schedule(done, Event::WriteDone(connection));
        }
        Ok(())
    }

    /// Places the words of a WRITE that `is_written` selects, after checking that the access was
    /// granted.
    fn place(
        &self,
        connection: usize,
        write: &MirrorWrite,
        bytes: &[u8],
        is_written: impl FnMut(usize) -> bool,
    ) -> Result<(), String> {
        let granted = self.inboxes.0.get(&(connection, write.channel));
        let (access, slots) = granted.ok_or_else(|| format!("{write:?} without a grant"))?;
        let geometry: Geometry = slots.geometry();
        let within = write.at + write.len <= access.len as usize;
        if !within || *access != write.inbox || !write.at.is_multiple_of(geometry.slot_len()) {
            return Err(format!("{write:?} is not within {access:?}"));
        }
        let place = Sequence((write.at / geometry.slot_len()) as u64);
        slots.place(place, &bytes[..write.len], is_written);
        Ok(())
    }

    /// Reports a completed WRITE to the publisher, or retries later while it is paused.
    pub(crate) fn write_done(&mut self, connection: usize) -> Result<(), String> {
        let of = &self.connections[connection];
        let (index, peer, far) = (of.publisher, of.peer, of.far);
        let publisher = &mut self.publishers[index];
        if !far || !publisher.alive {
            return Ok(());
        }
        if publisher.paused {
            let again = self.now.after(RETRANSMIT);
            self.schedule(again, Event::WriteDone(connection));
            return Ok(());
        }
        let now = now_of(self.now, self.utc);
        publisher.repair.handle(now, RepairInput::Written(peer, 1));
        self.serve(index)
    }

    /// Takes written datagrams, as a standby's driver does. Returns whether there were any.
    pub(crate) fn take_written(&mut self, number: usize) -> Result<bool, String> {
        let mut found = false;
        while let Some(channel) = self.subscribers[number].core.poll_written() {
            found = true;
            self.count("written");
            let bytes = self.subscribers[number].core.written(channel).to_vec();
            self.with_datagram(number, (&bytes, Came::Written), |core, now, mut on| {
                core.handle(now, SubscriberInput::Written(channel), &mut on);
            })?;
        }
        Ok(found)
    }
}
