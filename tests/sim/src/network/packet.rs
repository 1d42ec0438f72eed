//! A datagram in flight, whole or damaged.

use std::rc::Rc;

use tickcast_reliability::record::{words_as_bytes, words_as_bytes_mut};
use tickcast_reliability::types::ChannelId;

use crate::faults::weather::Damage;

/// A datagram in flight.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Channel whose group the datagram is sent to.
    pub channel: ChannelId,
    /// The bytes, at an aligned address.
    pub words: Rc<[u64]>,
    /// Length in bytes.
    pub len: usize,
}

/// Returns a datagram for the group of a channel.
pub(crate) fn packet(channel: ChannelId, bytes: &[u8]) -> Packet {
    let mut words = vec![0u64; bytes.len().div_ceil(8)];
    words_as_bytes_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    Packet {
        channel,
        words: Rc::from(words),
        len: bytes.len(),
    }
}

/// Returns the datagram with this damage applied.
pub(crate) fn damaged(packet: &Packet, damage: Damage) -> Packet {
    let bytes = &words_as_bytes(&packet.words)[..packet.len];
    match damage {
        Damage::None => packet.clone(),
        Damage::Cut(len) => Packet {
            len,
            ..packet.clone()
        },
        Damage::Flip { first, bits } => {
            let mut bytes = bytes.to_vec();
            for bit in (first..bytes.len() * 8).take(bits) {
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            self::packet(packet.channel, &bytes)
        }
    }
}
