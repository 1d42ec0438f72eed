//! Arrival times and sums of recent packets, for the skew between lines and to compare contents.

use tickcast_reliability::types::Nanos;

/// Packets remembered; a power of two.
const LEN: usize = 4096;

/// The packets delivered last, in order of their messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    ring: Vec<(u64, Nanos, u64)>,
    pushed: usize,
}

impl Recent {
    /// Remembers that the messages from `first` on arrived at `at`, and the sum of the first one.
    #[inline]
    pub(super) fn push(&mut self, first: u64, at: Nanos, sum: u64) {
        if self.ring.is_empty() {
            self.ring.resize(LEN, (0, Nanos::ZERO, 0));
        }
        let slot = self.pushed % LEN;
        self.ring[slot] = (first, at, sum);
        self.pushed += 1;
    }

    pub(super) const fn clear(&mut self) {
        self.pushed = 0;
    }

    /// Returns when the message arrived, if it is remembered.
    pub(super) fn find(&self, sequence: u64) -> Option<Nanos> {
        self.packet_of(sequence).map(|(_, at, _)| at)
    }

    /// Returns the sum of a message that began a packet, if it is remembered.
    pub(super) fn sum_of(&self, sequence: u64) -> Option<u64> {
        let (first, _, sum) = self.packet_of(sequence)?;
        (first == sequence).then_some(sum)
    }

    fn packet_of(&self, sequence: u64) -> Option<(u64, Nanos, u64)> {
        let (mut low, mut high) = (self.pushed.saturating_sub(LEN), self.pushed);
        let oldest = low;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.ring[middle % LEN].0 <= sequence {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low > oldest).then(|| self.ring[(low - 1) % LEN])
    }
}

/// Returns a sum of a message's bytes: equal messages have equal sums.
#[inline]
pub(super) fn sum(message: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |sum: u64, word: u64| (sum.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let mut words = message.chunks_exact(8);
    let all = words.by_ref().fold(message.len() as u64, |sum, word| {
        mix(
            sum,
            word.first_chunk().map_or(0, |it| u64::from_le_bytes(*it)),
        )
    });
    let rest = words.remainder().iter();
    rest.fold(all, |sum, byte| mix(sum, u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_messages_differ_by_any_bit_and_length() {
        let message: Vec<u8> = (0..21).collect();
        for at in 0..message.len() * 8 {
            let mut other = message.clone();
            other[at / 8] ^= 1 << (at % 8);
            assert_ne!(sum(&message), sum(&other), "bit {at}");
        }
        assert_ne!(sum(&[0; 8]), sum(&[0; 9]));
    }

    #[test]
    fn sum_is_of_the_message_that_began_a_packet() {
        let mut recent = Recent::default();
        recent.push(10, Nanos(1), 77);
        assert_eq!((recent.sum_of(10), recent.sum_of(11)), (Some(77), None));
    }

    #[test]
    fn message_is_found_among_the_last_packets() {
        let mut recent = Recent::default();
        assert_eq!(recent.find(1), None);
        let packets = LEN as u64 + 10;
        for n in 1..=packets {
            recent.push(n * 10, Nanos(n), n);
        }
        for n in 11..=packets {
            assert_eq!(recent.find(n * 10), Some(Nanos(n)), "first of packet {n}");
            assert_eq!(
                recent.find(n * 10 + 9),
                Some(Nanos(n)),
                "last of packet {n}"
            );
        }
        assert_eq!(recent.find(109), None, "forgotten");
        assert_eq!(recent.find(u64::MAX), Some(Nanos(packets)));
        recent.clear();
        assert_eq!(recent.find(packets * 10), None);
        recent.push(7, Nanos(1), 0);
        assert_eq!((recent.find(6), recent.find(7)), (None, Some(Nanos(1))));
    }
}
