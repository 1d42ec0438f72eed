//! MIRROR: a standby asks the publisher to write its datagrams to the standby's memory. The publisher
//! refuses with a reason (docs/PROTOCOL.md §6.8).

use super::{ControlError, Fields, RemoteAccess, bad};
use crate::types::Epoch;

/// MIRROR: asks the publisher to WRITE each datagram of a channel to the standby's memory, over the READ
/// connection of this attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirroring {
    /// The mirrored epoch.
    pub epoch: Epoch,
    /// The attempt of the connection that can access the memory.
    pub attempt: u64,
    /// The inbox, whose slots hold the newest mirrored datagrams.
    pub inbox: RemoteAccess,
}

/// The reason why nothing is written to a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MirrorRefusal {
    /// The standby's name is not one of those that may take over from this publisher.
    NotAllowed = 1,
    /// The channel is in another epoch.
    Epoch = 2,
    /// The subscriber has no READ connection of that attempt.
    Attempt = 3,
    /// The inbox has an impossible address, or its size is wrong: it must be a power of two of slots, from
    /// 16 up to the number of the ring.
    Shape = 4,
    /// A WRITE failed, or this publisher cannot WRITE.
    Impossible = 5,
    /// The publisher denies READs, and so WRITEs, to this peer.
    Denied = 6,
}

impl MirrorRefusal {
    /// Returns a text for people: the error and the remedy.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotAllowed => {
                "the publisher allows no standby of this name to take over; add the name to its hand_over_to"
            }
            Self::Epoch => "the publisher is in another epoch",
            Self::Attempt => {
                "the publisher does not have the connection for READ that the MIRROR names"
            }
            Self::Shape => {
                "the ring's slots can't be written to memory of the offered size or geometry"
            }
            Self::Impossible => "the publisher can't WRITE over this connection",
            Self::Denied => {
                "the publisher denies READ and WRITE to this peer; remove it from the file that \
                 repair_verbs.denied names"
            }
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::NotAllowed),
            2 => Some(Self::Epoch),
            3 => Some(Self::Attempt),
            4 => Some(Self::Shape),
            5 => Some(Self::Impossible),
            6 => Some(Self::Denied),
            _ => None,
        }
    }
}

/// MIRROR_REFUSED: the publisher does not WRITE, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorRefused {
    /// The channel's epoch.
    pub epoch: Epoch,
    /// The attempt of the MIRROR.
    pub attempt: u64,
    /// The reason.
    pub reason: MirrorRefusal,
}

impl Mirroring {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.epoch.0.to_le_bytes());
        out.extend(self.attempt.to_le_bytes());
        out.extend(self.inbox.address.to_le_bytes());
        out.extend(self.inbox.len.to_le_bytes());
        out.extend(self.inbox.key.to_le_bytes());
        out.extend([0; 4]);
    }

    pub(super) fn read(body: &[u8]) -> Result<Self, ControlError> {
        let mut fields = Fields::new("MIRROR", body, 40)?;
        let (epoch, attempt) = (Epoch(fields.u64()), fields.u64());
        let (address, len) = (fields.u64(), fields.u64());
        let key = fields.u64() as u32;
        let inbox = RemoteAccess { address, len, key };
        Ok(Self {
            epoch,
            attempt,
            inbox,
        })
    }
}

impl MirrorRefused {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.epoch.0.to_le_bytes());
        out.extend(self.attempt.to_le_bytes());
        out.extend([self.reason as u8, 0, 0, 0, 0, 0, 0, 0]);
    }

    pub(super) fn read(body: &[u8]) -> Result<Self, ControlError> {
        let mut fields = Fields::new("MIRROR_REFUSED", body, 24)?;
        Ok(Self {
            epoch: Epoch(fields.u64()),
            attempt: fields.u64(),
            reason: MirrorRefusal::from_byte(fields.u64() as u8)
                .ok_or_else(|| bad("MIRROR_REFUSED", "its reason is unknown"))?,
        })
    }
}
