//! The packets delivered last: when they arrived, for the skew between lines, and their bytes, to
//! compare contents.

use std::ops::Range;

use tickcast_reliability::types::Nanos;

/// Packets remembered; a power of two.
const LEN: usize = 4096;
/// Bytes remembered; a power of two.
const BYTES: usize = 1 << 21;

/// A packet that was delivered.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The first message that the packet brought first.
    from: u64,
    /// The packet's first message.
    first: u64,
    at: Nanos,
    /// The place of its bytes, counted from the beginning of all.
    begin: u64,
    len: usize,
}

/// The packets delivered last, in order of their messages.
#[derive(Clone, Debug, Default)]
pub(super) struct Recent {
    ring: Vec<Entry>,
    pushed: usize,
    bytes: Vec<u8>,
    /// The end of the newest packet's bytes, counted from the beginning of all.
    written: u64,
    /// The messages that the first packet brought, its first one, and its bytes: they show for ever whether
    /// the count began anew.
    first: (Range<u64>, u64, Vec<u8>),
}

impl Recent {
    /// Remembers a packet of the messages from `first` on, which brings those from `from` on first.
    #[inline(never)]
    pub(super) fn push(&mut self, from: u64, first: u64, at: Nanos, packet: &[u8]) {
        if self.ring.is_empty() {
            self.ring.resize(LEN, Entry::default());
            self.bytes.resize(BYTES, 0);
        }
        match self.pushed {
            0 => {
                (self.first.0, self.first.1) = (from..u64::MAX, first);
                packet.clone_into(&mut self.first.2);
            }
            1 => self.first.0.end = from,
            _ => {}
        }
        // A packet lies in one piece.
        let mut start = self.written as usize % BYTES;
        if start + packet.len() > BYTES {
            self.written += (BYTES - start) as u64;
            start = 0;
        }
        let len = packet.len().min(BYTES);
        self.bytes[start..start + len].copy_from_slice(&packet[..len]);
        self.ring[self.pushed % LEN] = Entry {
            from,
            first,
            at,
            begin: self.written,
            len,
        };
        self.written += len as u64;
        self.pushed += 1;
    }

    pub(super) const fn clear(&mut self) {
        self.pushed = 0;
    }

    /// Returns when the message arrived, if it is remembered.
    pub(super) fn find(&self, sequence: u64) -> Option<Nanos> {
        self.entry_of(sequence).map(|it| it.at)
    }

    /// Returns the packet that would hold the message, and its first message, if its bytes are remembered.
    pub(super) fn packet_of(&self, sequence: u64) -> Option<(u64, &[u8])> {
        let entry = self.entry_of(sequence);
        let Some(entry) = entry.filter(|entry| self.written - entry.begin <= BYTES as u64) else {
            let (brought, first, packet) = &self.first;
            let is_there = self.pushed > 0 && brought.contains(&sequence);
            return is_there.then_some((*first, &packet[..]));
        };
        let start = entry.begin as usize % BYTES;
        Some((entry.first, &self.bytes[start..start + entry.len]))
    }

    /// Returns arrival, first message and bytes of the only packet since the beginning or
    /// [`clear`](Self::clear), if there was one.
    pub(super) fn only(&self) -> Option<(Nanos, u64, &[u8])> {
        let entry = self.ring.first().filter(|_| self.pushed == 1)?;
        Some((entry.at, entry.first, &self.first.2[..]))
    }

    fn entry_of(&self, sequence: u64) -> Option<&Entry> {
        let (mut low, mut high) = (self.pushed.saturating_sub(LEN), self.pushed);
        let oldest = low;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.ring[middle % LEN].from <= sequence {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low > oldest).then(|| &self.ring[(low - 1) % LEN])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_packet_are_kept_until_others_need_the_room() {
        let mut recent = Recent::default();
        assert_eq!((recent.packet_of(1), recent.only()), (None, None));
        let len = BYTES / 8 + 1;
        for n in 1..=7_u8 {
            recent.push(
                10 * u64::from(n),
                10 * u64::from(n) - 1,
                Nanos(1),
                &vec![n; len],
            );
            let newest = recent.packet_of(10 * u64::from(n)).expect("the newest one");
            assert_eq!(newest, (10 * u64::from(n) - 1, &vec![n; len][..]));
        }
        assert_eq!(recent.packet_of(9), None, "before the first one");
        assert_eq!(recent.packet_of(19), Some((9, &vec![1; len][..])));
        assert_eq!(recent.only(), None);
        // The eighth one does not fit behind the seventh, and takes the room of the first.
        recent.push(80, 80, Nanos(1), &vec![8; len]);
        assert_eq!(
            recent.packet_of(19),
            Some((9, &vec![1; len][..])),
            "the first packet stays"
        );
        assert_eq!(recent.packet_of(80), Some((80, &vec![8; len][..])));
        assert_eq!(recent.packet_of(29), Some((19, &vec![2; len][..])));
        assert_eq!(recent.find(19), Some(Nanos(1)), "its time is known longer");
        recent.push(90, 90, Nanos(1), &vec![9; len]);
        assert_eq!(recent.packet_of(29), None);
        assert_eq!(recent.packet_of(95), Some((90, &vec![9; len][..])));
        recent.clear();
        assert_eq!(recent.packet_of(19), None);
    }

    #[test]
    fn message_is_found_among_the_last_packets() {
        let mut recent = Recent::default();
        assert_eq!(recent.find(1), None);
        let packets = LEN as u64 + 10;
        for n in 1..=packets {
            recent.push(n * 10, n * 10, Nanos(n), b"packet");
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
        recent.push(7, 7, Nanos(1), b"packet");
        assert_eq!((recent.find(6), recent.find(7)), (None, Some(Nanos(1))));
        assert_eq!(recent.only(), Some((Nanos(1), 7, &b"packet"[..])));
    }
}
