//! Arrival times of recent messages, for the skew between lines.

use tickcast_reliability::types::Nanos;

/// Packets remembered; a power of two.
const LEN: usize = 4096;

/// The packets delivered last, in order of their messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    ring: Vec<(u64, Nanos)>,
    pushed: usize,
}

impl Recent {
    /// Remembers that the messages from `first` on arrived at `at`.
    #[inline]
    pub(super) fn push(&mut self, first: u64, at: Nanos) {
        if self.ring.is_empty() {
            self.ring.resize(LEN, (0, Nanos::ZERO));
        }
        let slot = self.pushed % LEN;
        self.ring[slot] = (first, at);
        self.pushed += 1;
    }

    pub(super) const fn clear(&mut self) {
        self.pushed = 0;
    }

    /// Returns when the message arrived, if it is remembered.
    pub(super) fn find(&self, sequence: u64) -> Option<Nanos> {
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
        (low > oldest).then(|| self.ring[(low - 1) % LEN].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_found_among_the_last_packets() {
        let mut recent = Recent::default();
        assert_eq!(recent.find(1), None);
        let packets = LEN as u64 + 10;
        for n in 1..=packets {
            recent.push(n * 10, Nanos(n));
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
        recent.push(7, Nanos(1));
        assert_eq!((recent.find(6), recent.find(7)), (None, Some(Nanos(1))));
    }
}
