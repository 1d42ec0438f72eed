//! WRITEs to the inboxes of a standby, over one connection: each sent datagram in sequence order, from
//! the newest on, with a bounded number outstanding (docs/PROTOCOL.md §6.8).
//!
//! WRITEs pin nothing: a slot may be sealed anew while the device reads it, and the standby detects that.
//! A standby that falls so far behind that this is likely skips to the newest.

use crate::control::{MirrorRefusal, RemoteAccess};
use crate::ring::{Geometry, slots_of};
use crate::serve::peer_id::PeerId;
use crate::types::{ChannelId, Sequence, SequenceRange};

/// Maximum WRITEs outstanding on one connection.
pub const MIRROR_WRITES_MAX: u32 = 32;

/// A WRITE to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorWrite {
    /// The channel of the ring.
    pub channel: ChannelId,
    /// The datagram's offset in the memory of the ring.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
    /// The standby's inbox.
    pub inbox: RemoteAccess,
    /// The offset in the inbox.
    pub at: usize,
}

/// The inbox of one channel.
#[derive(Clone, Copy, Debug)]
struct Written {
    /// The core's index of the channel.
    channel: usize,
    inbox: RemoteAccess,
    slots: u64,
    /// The next sequence to write.
    next: Sequence,
}

/// The part of a channel that may be written now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writable {
    /// The held sequences up to the last one sent, without those about to be overwritten; `None` when empty.
    pub(crate) held: Option<SequenceRange>,
    pub(crate) geometry: Geometry,
    pub(crate) id: ChannelId,
}

/// The datagram to write next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// The core's index of the channel.
    pub(crate) channel: usize,
    /// The sequence.
    pub(crate) sequence: Sequence,
    /// Number of skipped sequences before it.
    pub(crate) skipped: u64,
}

/// The WRITEs over one connection.
#[derive(Debug, Default)]
pub(crate) struct MirrorWriter {
    channels: Vec<Written>,
    under_way: u32,
    /// The next channel to serve.
    turn: usize,
    is_denied: bool,
}

impl MirrorWriter {
    /// Starts to write this channel from its newest sequence, `from`; replaces an earlier inbox.
    ///
    /// # Errors
    /// [`MirrorRefusal::Denied`] when WRITEs are denied, and [`MirrorRefusal::Shape`] when the inbox does not
    /// fit a ring of this geometry.
    pub(crate) fn begin(
        &mut self,
        channel: usize,
        inbox: RemoteAccess,
        ring: Geometry,
        from: Sequence,
    ) -> Result<(), MirrorRefusal> {
        if self.is_denied {
            return Err(MirrorRefusal::Denied);
        }
        let slots = slots_of(inbox, ring).ok_or(MirrorRefusal::Shape)?;
        self.channels.retain(|it| it.channel != channel);
        self.channels.push(Written {
            channel,
            inbox,
            slots,
            next: from.max(Sequence::FIRST),
        });
        Ok(())
    }

    /// Chooses the next channel and sequence to write: channels take turns while there is room. The chosen
    /// sequence counts as done, whether it is written or not.
    pub(crate) fn choose(&mut self, writable: impl Fn(usize) -> Writable) -> Option<Chosen> {
        if self.under_way >= MIRROR_WRITES_MAX {
            return None;
        }
        let count = self.channels.len();
        for _ in 0..count {
            let written = &mut self.channels[self.turn % count];
            self.turn = (self.turn + 1) % count;
            let Some(held) = writable(written.channel).held else {
                continue;
            };
            if written.next > held.last {
                continue;
            }
            let due = match written.next < held.first {
                // The oldest slots would soon be overwritten as well. Only the newest is sure to stay.
                true => held.last,
                false => written.next,
            };
            let before = std::mem::replace(&mut written.next, due.next());
            return Some(Chosen {
                channel: written.channel,
                sequence: due,
                skipped: due.since(before),
            });
        }
        None
    }

    /// Returns the WRITE of the chosen sequence with this length. It is outstanding from now on.
    pub(crate) fn write(
        &mut self,
        chosen: Chosen,
        len: usize,
        of: Writable,
    ) -> Option<MirrorWrite> {
        let mut channels = self.channels.iter();
        let written = channels.find(|it| it.channel == chosen.channel)?;
        let sequence = chosen.sequence;
        self.under_way += 1;
        let place = (sequence.0 & (written.slots - 1)) as usize;
        Some(MirrorWrite {
            channel: of.id,
            offset: of.geometry.slot_offset(sequence),
            len,
            inbox: written.inbox,
            at: place * of.geometry.slot_len(),
        })
    }

    /// Sets whether WRITEs are denied.
    pub(crate) const fn deny(&mut self, is_denied: bool) {
        self.is_denied = is_denied;
    }

    /// Ends all WRITEs, and returns the channels that were written.
    pub(crate) fn end(&mut self) -> impl Iterator<Item = usize> + use<> {
        let after = Self {
            is_denied: self.is_denied,
            ..Self::default()
        };
        let ended = std::mem::replace(self, after);
        ended.channels.into_iter().map(|it| it.channel)
    }

    /// Records that this many WRITEs are complete.
    pub(crate) const fn done(&mut self, count: u32) {
        self.under_way = self.under_way.saturating_sub(count);
    }
}

/// The standbys that may be written to, and those that are.
#[derive(Debug, Default)]
pub(super) struct Standbys {
    /// Names of the standbys whose mirror requests are accepted.
    names: Vec<String>,
    /// READ connections over which sealed datagrams are written.
    written: Vec<PeerId>,
}

impl Standbys {
    /// Sets the names of the standbys whose mirror requests are accepted.
    pub(super) fn set_names(&mut self, names: Vec<String>) {
        self.names = names;
    }

    pub(super) fn accepts(&self, name: &str) -> bool {
        self.names.iter().any(|it| it == name)
    }

    /// Returns the connections over which sealed datagrams are written.
    pub(super) const fn written(&self) -> &[PeerId] {
        self.written.as_slice()
    }

    /// Adds a connection, unless it is written to already.
    pub(super) fn begin(&mut self, peer: PeerId) {
        if !self.written.contains(&peer) {
            self.written.push(peer);
        }
    }

    /// Removes a connection.
    pub(super) fn end(&mut self, peer: PeerId) {
        self.written.retain(|it| *it != peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u64 = 32;

    fn geometry() -> Geometry {
        Geometry::new(1024, SLOTS).unwrap()
    }

    fn inbox(slots: u64) -> RemoteAccess {
        RemoteAccess {
            address: 0x1000,
            len: slots * 1024,
            key: 9,
        }
    }

    fn held(first: u64, last: u64) -> Writable {
        Writable {
            held: SequenceRange::new(Sequence(first), Sequence(last)),
            geometry: geometry(),
            id: ChannelId(4),
        }
    }

    fn writer(from: u64) -> MirrorWriter {
        let mut writer = MirrorWriter::default();
        let begun = writer.begin(0, inbox(16), geometry(), Sequence(from));
        begun.unwrap();
        writer
    }

    #[test]
    fn datagrams_are_written_once_in_order_to_place() {
        let mut writer = writer(15);
        let chosen: Vec<_> =
            std::iter::from_fn(|| Some(writer.choose(|_| held(1, 17))?.sequence.0)).collect();
        assert_eq!(chosen, [15, 16, 17]);
        assert_eq!(writer.choose(|_| held(1, 17)), None);
        let chosen = writer.choose(|_| held(33, 33)).unwrap();
        let write = writer.write(chosen, 200, held(33, 33)).unwrap();
        let place = (write.offset, write.len, write.at, write.inbox);
        assert_eq!(place, (4096 + 1024, 200, 1024, inbox(16)));
        assert_eq!(write.channel, ChannelId(4));
    }

    #[test]
    fn mirror_writes_in_flight_are_bounded() {
        let mut writer = writer(1);
        let mut begun = 0;
        while let Some(chosen) = writer.choose(|_| held(1, 1_000)) {
            writer.write(chosen, 64, held(1, 1_000)).unwrap();
            begun += 1;
        }
        assert_eq!(begun, MIRROR_WRITES_MAX);
        writer.done(2);
        let next = |writer: &mut MirrorWriter| writer.choose(|_| held(1, 1_000));
        let at = next(&mut writer).unwrap().sequence;
        assert_eq!(at, Sequence(u64::from(MIRROR_WRITES_MAX) + 1));
        writer.done(1_000);
        assert_eq!(writer.under_way, 0);
    }

    #[test]
    fn ring_laggard_skips_to_newest_and_channels_alternate() {
        let mut writer = writer(5);
        let chosen = writer.choose(|_| held(9, 40)).unwrap();
        assert_eq!((chosen.sequence, chosen.skipped), (Sequence(40), 35));
        writer
            .begin(1, inbox(32), geometry(), Sequence::NONE)
            .unwrap();
        let of = |channel: usize| [held(9, 42), held(1, 2)][channel];
        let turns: Vec<_> = std::iter::from_fn(|| writer.choose(of)).collect();
        let turns: Vec<_> = turns.iter().map(|it| (it.channel, it.sequence.0)).collect();
        assert_eq!(turns, [(0, 41), (1, 1), (0, 42), (1, 2)]);
        let nothing = Writable {
            held: None,
            ..held(1, 1)
        };
        assert_eq!(writer.choose(|_| nothing), None);
    }

    #[test]
    fn inbox_with_wrong_shape_is_refused() {
        for slots in [0, 8, 24, 64] {
            let begun = MirrorWriter::default().begin(0, inbox(slots), geometry(), Sequence(1));
            assert_eq!(begun, Err(MirrorRefusal::Shape), "{slots}");
        }
        let odd = RemoteAccess {
            len: 16 * 1024 + 64,
            ..inbox(16)
        };
        let at_the_end = RemoteAccess {
            address: u64::MAX - 1024,
            ..inbox(16)
        };
        for wrong in [odd, at_the_end] {
            let begun = MirrorWriter::default().begin(0, wrong, geometry(), Sequence(1));
            assert_eq!(begun, Err(MirrorRefusal::Shape));
        }
    }
}
