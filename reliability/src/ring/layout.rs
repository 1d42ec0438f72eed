//! The layout of a ring: one control page, then equal slots. It is the same for every process that maps
//! the ring and every NIC that READs it (docs/PROTOCOL.md §9).
//!
//! All fields are 64-bit little-endian words at fixed offsets, each written by the publisher
//! alone. This file holds numbers and checks only; [`crate::ring`] accesses the memory.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::control::RemoteAccess;
use crate::types::{
    ChannelId, ConfigHash, Epoch, RecordNumber, Sequence, SourceId, SourcePosition,
};

/// Length of the control page in bytes. The first slot starts behind it.
pub const CONTROL_PAGE_LEN: usize = 4096;
/// Alignment of a ring's memory and of every slot: one cache line.
pub const RING_ALIGN: usize = 64;
/// First word of a ring, "TKRING" when read as text. It is written last when a ring is created.
pub const RING_MAGIC: u64 = u64::from_le_bytes(*b"TKRING\0\0");
/// Version of this layout.
pub const LAYOUT_VERSION: u64 = 1;
/// Maximum number of fan-outs of a ring.
pub const FAN_OUTS_MAX: usize = 8;
/// Maximum number of sources with a checkpoint in a ring.
pub const CHECKPOINTS_MAX: usize = 16;

/// Byte offsets of the control page's words.
pub mod offset {
    /// [`super::RING_MAGIC`].
    pub const MAGIC: usize = 0;
    /// [`super::LAYOUT_VERSION`].
    pub const LAYOUT: usize = 8;
    /// Length of a slot in bytes.
    pub const SLOT_LEN: usize = 16;
    /// Number of slots.
    pub const SLOTS: usize = 24;
    /// Channel number.
    pub const CHANNEL: usize = 32;
    /// Config hash.
    pub const CONFIG_HASH: usize = 40;
    /// Epoch.
    pub const EPOCH: usize = 48;
    /// Boot id of the host that created the ring, 16 bytes.
    pub const BOOT_ID: usize = 56;
    /// Number of fan-outs in use.
    pub const FAN_OUTS: usize = 72;
    /// First sequence that this ring ever held.
    pub const FIRST_SEQUENCE: usize = 80;
    /// Number of the first record in that sequence.
    pub const FIRST_RECORD: usize = 88;
    /// Last sequence sealed; `first sequence − 1` before the first.
    pub const SEALED: usize = 128;
    /// Oldest sequence held. It advances before the slot is overwritten.
    pub const OLDEST: usize = 136;
    /// Number of the record after the last one sealed.
    pub const NEXT_RECORD: usize = 144;
    /// A [`crate::wire::PublisherState`].
    pub const STATE: usize = 152;
    /// Time of the publisher's last heartbeat, UTC nanoseconds.
    pub const HEARTBEAT_AT: usize = 192;
    /// Last sequence sent, one word for each fan-out.
    pub const SENT: usize = 256;
    /// Checkpoints: [`super::CHECKPOINTS_MAX`] entries of 64 bytes.
    pub const CHECKPOINTS: usize = 1024;
    /// The epochs that this one continues, newest first: [`crate::types::Lineage::MAX`] entries.
    pub const LINEAGE: usize = 2048;
    /// Length of a lineage entry: epoch (0: none), last sequence, number of the record after it, flags (bit
    /// 0: complete).
    pub const LINEAGE_LEN: usize = 32;
}

/// Length of a checkpoint in bytes. Its words: version (odd while it is being written), source + 1
/// (0: unused), position, session (16 bytes), check. The check is the complement of the exclusive or of the
/// four words between version and check. The rest is reserved. The position and the check may change
/// without a new version.
pub(super) const CHECKPOINT_LEN: usize = 64;

/// Checked size and number of a ring's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    slot_len: u32,
    slots: u64,
}

/// An impossible geometry of a ring. The config is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// An invalid length of a slot.
    #[error(
        "slot_len is {slot_len}; it must be a multiple of 64 from 1024 to 8960: 1024 (RoCE on a 1500 MTU), 1472 (UDP), 4096 or 8960"
    )]
    SlotLen {
        /// The configured length.
        slot_len: u32,
    },
    /// An invalid number of slots.
    #[error("slots is {slots}; it must be a power of two from 16 to 2147483648")]
    Slots {
        /// The configured number.
        slots: u64,
    },
    /// More bytes than this machine can address.
    #[error("{slots} slots of {slot_len} bytes are more than this machine can address")]
    TooLarge {
        /// The configured number of slots.
        slots: u64,
        /// The configured length of a slot.
        slot_len: u32,
    },
}

impl Geometry {
    /// Minimum length of a slot.
    pub const SLOT_LEN_MIN: u32 = 1024;
    /// Maximum length of a slot.
    pub const SLOT_LEN_MAX: u32 = 8960;
    /// Minimum number of slots.
    pub const SLOTS_MIN: u64 = 16;
    /// Maximum number of slots, so that the number held fits the 32-bit `retained` of the header.
    pub const SLOTS_MAX: u64 = 1 << 31;

    /// Returns the geometry of a ring with `slots` slots of `slot_len` bytes.
    ///
    /// # Errors
    /// [`GeometryError`] names the invalid number and the valid range.
    pub fn new(slot_len: u32, slots: u64) -> Result<Self, GeometryError> {
        if !(Self::SLOT_LEN_MIN..=Self::SLOT_LEN_MAX).contains(&slot_len)
            || !(slot_len as usize).is_multiple_of(RING_ALIGN)
        {
            return Err(GeometryError::SlotLen { slot_len });
        }
        if !(Self::SLOTS_MIN..=Self::SLOTS_MAX).contains(&slots) || !slots.is_power_of_two() {
            return Err(GeometryError::Slots { slots });
        }
        let bytes = u128::from(slots) * u128::from(slot_len) + CONTROL_PAGE_LEN as u128;
        if bytes > isize::MAX as u128 {
            return Err(GeometryError::TooLarge { slots, slot_len });
        }
        Ok(Self { slot_len, slots })
    }

    /// Returns the length of a slot in bytes, the maximum length of a datagram.
    #[must_use]
    pub const fn slot_len(self) -> usize {
        self.slot_len as usize
    }

    /// Returns the number of slots, a power of two.
    #[must_use]
    pub const fn slots(self) -> u64 {
        self.slots
    }

    /// Returns the size of the whole ring in bytes, including the control page.
    #[must_use]
    pub const fn bytes(self) -> usize {
        CONTROL_PAGE_LEN + self.slots as usize * self.slot_len as usize
    }

    /// Returns how many slots at the old end of a full ring are about to be overwritten. No reader
    /// starts a copy there, because it may not finish in time.
    #[must_use]
    pub const fn guard(self) -> u64 {
        let (part, most) = (self.slots / 64, self.slots / 4);
        let least = if part > 16 { part } else { 16 };
        if least < most { least } else { most }
    }

    /// Returns the offset of the slot of `sequence`, in bytes.
    #[must_use]
    pub const fn slot_offset(self, sequence: Sequence) -> usize {
        CONTROL_PAGE_LEN + (sequence.0 & (self.slots - 1)) as usize * self.slot_len as usize
    }
}

/// A ring's identity, fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingIdentity {
    /// The channel of the sequence space.
    pub channel: ChannelId,
    /// The publisher's incarnation.
    pub epoch: Epoch,
    /// Hash of the channel's config.
    pub config_hash: ConfigHash,
    /// Boot id of the host.
    pub boot_id: [u8; 16],
    /// Number of fan-outs, at most [`FAN_OUTS_MAX`].
    pub fan_outs: u8,
    /// First sequence of the ring, at least 1.
    pub first_sequence: Sequence,
    /// Number of the first record.
    pub first_record: RecordNumber,
}

/// A source's sealed position: where a restarted publisher resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The source.
    pub source: SourceId,
    /// Position of the last message sealed.
    pub position: SourcePosition,
    /// The venue's session name, padded with zeros; all zeros when it has none. It is informational:
    /// a restart compares message content, not this name.
    pub session: [u8; 16],
}

/// The reason why memory is not a usable ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RingError {
    /// The memory is too small.
    #[error("a ring of this geometry needs {needed} bytes but the memory has {len}")]
    TooSmall {
        /// Bytes needed.
        needed: usize,
        /// Bytes available.
        len: usize,
    },
    /// The memory is shared, but a ring has one writer.
    #[error(
        "the ring's memory has another owner; pass memory that has no other owner, and get readers from the writer"
    )]
    Shared,
    /// The memory is not aligned to [`RING_ALIGN`].
    #[error("a ring's memory must be aligned to 64 bytes; map it, or use HeapMemory")]
    Misaligned,
    /// There is no ring in the memory, or it is still being created.
    #[error("the memory starts with {magic:#018x}, not with the magic of a ring")]
    Magic {
        /// The first word.
        magic: u64,
    },
    /// The ring has another layout version.
    #[error("the ring has layout {layout}; this build reads layout 1, upgrade the older side")]
    Layout {
        /// Layout version of the ring.
        layout: u64,
    },
    /// The ring has an impossible geometry.
    #[error("the ring's control page is damaged: {0}")]
    Geometry(#[from] GeometryError),
    /// The ring has an impossible identity.
    #[error(
        "a ring can't have epoch {epoch}, first sequence {first_sequence} and {fan_outs} fan-outs"
    )]
    Identity {
        /// Its epoch; 0 is invalid.
        epoch: u64,
        /// Its first sequence; 0 and the last two are invalid.
        first_sequence: u64,
        /// Its number of fan-outs, at most 8.
        fan_outs: u64,
    },
    /// The ring was created under another config.
    #[error("the ring was created with config {found:#018x}, this process has {expected:#018x}")]
    Config {
        /// The hash in the ring.
        found: u64,
        /// The expected hash.
        expected: u64,
    },
    /// A word of the control page has a value that its writer cannot have stored.
    #[error("the ring's control page is damaged: {word} is {value}; the ring can't be continued")]
    Control {
        /// Name of the word.
        word: &'static str,
        /// Its value.
        value: u64,
    },
    /// A sealed slot does not hold the sealed datagram.
    #[error("the slot of sequence {sequence} does not verify; the ring can't be continued")]
    Slot {
        /// The sequence of the slot.
        sequence: u64,
    },
    /// The last sequence is used up.
    #[error("the channel has used up its sequences; a new epoch is needed")]
    Exhausted,
    /// The bytes do not fit in the open slot.
    #[error("{len} bytes do not fit the {room} bytes left in the open slot")]
    SlotFull {
        /// Length of the bytes.
        len: usize,
        /// Bytes free in the slot.
        room: usize,
    },
    /// No slot is open.
    #[error("no slot is open")]
    NotOpen,
}

/// The reason why a slot could not be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The sequence has not been sealed yet.
    #[error("the sequence is not sealed yet; the last one sealed is {sealed}")]
    NotSealed {
        /// The last sealed sequence.
        sealed: Sequence,
    },
    /// The ring no longer holds the sequence, or it was overwritten during the copy.
    #[error("the ring no longer holds the sequence; the oldest it holds is {oldest}")]
    Lapped {
        /// The oldest sequence held.
        oldest: Sequence,
    },
    /// The buffer is shorter than a slot.
    #[error("the buffer has {len} bytes, a slot needs {needed}")]
    Buffer {
        /// Length of the buffer in bytes.
        len: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// The slot's header has an impossible length: the memory is damaged.
    #[error("the slot holds the length {len}, which is impossible for a datagram of this ring")]
    Damaged {
        /// The length.
        len: usize,
    },
}

/// Returns the number of slots if memory of this length at this address can be an inbox for a ring.
pub(crate) fn slots_of(inbox: RemoteAccess, ring: Geometry) -> Option<u64> {
    let slot_len = ring.slot_len() as u64;
    let slots = inbox.len / slot_len;
    let fits = inbox.len.is_multiple_of(slot_len)
        && slots.is_power_of_two()
        && (Geometry::SLOTS_MIN..=ring.slots()).contains(&slots)
        && inbox.address.checked_add(inbox.len).is_some();
    fits.then_some(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_with_bad_slot_len_or_count_is_refused() {
        for slot_len in [0, 64, 960, 1025, 1480, 9024, u32::MAX] {
            assert_eq!(
                Geometry::new(slot_len, 16),
                Err(GeometryError::SlotLen { slot_len })
            );
        }
        for slots in [0, 1, 8, 17, 1 << 32, u64::MAX] {
            assert_eq!(
                Geometry::new(1024, slots),
                Err(GeometryError::Slots { slots })
            );
        }
        for slot_len in [1024, 1472, 4096, 8960] {
            let geometry = Geometry::new(slot_len, 16).unwrap();
            assert_eq!(geometry.bytes(), 4096 + 16 * slot_len as usize);
            assert_eq!(geometry.slot_offset(Sequence(17)), 4096 + slot_len as usize);
        }
    }

    #[test]
    fn control_page_fields_do_not_overlap() {
        const {
            assert!(offset::FIRST_RECORD + 8 <= offset::SEALED);
            assert!(offset::STATE + 8 <= offset::HEARTBEAT_AT);
            assert!(offset::HEARTBEAT_AT + 8 <= offset::SENT);
            assert!(offset::SENT + FAN_OUTS_MAX * 8 <= offset::CHECKPOINTS);
            assert!(offset::CHECKPOINTS + CHECKPOINTS_MAX * CHECKPOINT_LEN <= offset::LINEAGE);
            let lineage_len = crate::types::Lineage::MAX * offset::LINEAGE_LEN;
            assert!(offset::LINEAGE + lineage_len <= CONTROL_PAGE_LEN);
        }
    }

    #[test]
    fn geometry_accepts_smallest_and_largest_ring() {
        let bounds = [(1024, 16), (8960, 16), (1024, 1 << 31), (8960, 1 << 31)];
        assert!(
            bounds
                .map(|(len, slots)| Geometry::new(len, slots))
                .iter()
                .all(Result::is_ok)
        );
        let geometry = Geometry::new(1472, 32).unwrap();
        assert_eq!((geometry.slot_len(), geometry.slots()), (1472, 32));
        assert_eq!(geometry.bytes(), 4096 + 32 * 1472);
        assert_eq!(geometry.slot_offset(Sequence(u64::MAX)), 4096 + 31 * 1472);
        assert_eq!(geometry.slot_offset(Sequence(64)), 4096);
        assert_eq!(crate::types::SEQUENCE_LAST, Sequence(u64::MAX - 1));
    }
}
