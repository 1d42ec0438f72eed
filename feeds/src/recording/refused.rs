//! The last packets of a recording's feeds, because a decoder may refuse them some time later.

use std::collections::VecDeque;

use tickcast_reliability::types::Nanos;

use crate::capture::account::Row;

/// Packets that are remembered.
const RECENT_MAX: usize = 4_096;

/// A packet's part of the account: none where others of its datagram have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketRecord {
    pub(super) file: usize,
    pub(super) row: Row,
}

/// The line of a packet: its feed, and the index in that.
type Place = (usize, usize);

/// The records of the last packets, by line and receive time.
#[derive(Debug, Default)]
pub(super) struct Recent {
    packets: VecDeque<(u64, Place, Nanos, PacketRecord)>,
    /// Packets so far, the number of the last one.
    count: u64,
}

impl Recent {
    /// Adds the packet that was read last.
    pub(super) fn push(&mut self, place: Place, received_at: Nanos, record: PacketRecord) {
        if self.packets.len() == RECENT_MAX {
            self.packets.pop_front();
        }
        self.count += 1;
        self.packets
            .push_back((self.count, place, received_at, record));
    }

    /// Takes the record of the packet that was read last, unless it was taken before.
    pub(super) fn take_last(&mut self) -> Option<PacketRecord> {
        let count = self.count;
        let last = self.packets.pop_back_if(|(number, ..)| *number == count);
        last.map(|(.., record)| record)
    }

    /// Takes the record of the latest packet of a line and time.
    pub(super) fn take(&mut self, place: Place, received_at: Nanos) -> Option<PacketRecord> {
        let mut all = self.packets.iter();
        let at = all.rposition(|(_, of, at, _)| (*of, *at) == (place, received_at))?;
        self.packets.remove(at).map(|(.., record)| record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn record(file: usize) -> PacketRecord {
        PacketRecord {
            file,
            row: Row {
                frames: 1,
                bytes: 60,
            },
        }
    }

    #[test]
    fn refused_packets_are_found_by_line_and_time_once() {
        let mut recent = Recent::default();
        for (file, place, at) in [
            (0, (0, 0), 5),
            (1, (0, 1), 5),
            (2, (0, 0), 5),
            (3, (1, 0), 5),
        ] {
            recent.push(place, Nanos(at), record(file));
        }
        let mut take = |place, at| recent.take(place, Nanos(at)).map(|it| it.file);
        assert_eq!(take((0, 0), 5), Some(2), "the latest");
        assert_eq!(take((0, 0), 5), Some(0));
        assert_eq!(take((0, 0), 5), None);
        assert_eq!(take((0, 1), 4), None, "another time");
        assert_eq!(take((0, 1), 5), Some(1));
        assert_eq!(take((1, 1), 5), None, "another line");
    }

    #[test]
    fn last_packet_is_taken_once_and_no_earlier_one() {
        let mut recent = Recent::default();
        recent.push((0, 0), Nanos(1), record(0));
        recent.push((0, 0), Nanos(2), record(1));
        assert_eq!(recent.take((0, 0), Nanos(2)), Some(record(1)));
        assert_eq!(recent.take_last(), None, "it was taken");
        recent.push((0, 0), Nanos(3), record(2));
        assert_eq!(recent.take_last(), Some(record(2)));
        assert_eq!(recent.take_last(), None);
    }

    #[test]
    fn oldest_packets_are_forgotten_beyond_the_bound() {
        let mut recent = Recent::default();
        for at in 0..=RECENT_MAX as u64 {
            recent.push((0, 0), Nanos(at), record(0));
        }
        assert_eq!(recent.take((0, 0), Nanos(0)), None);
        assert_eq!(recent.take((0, 0), Nanos(1)), Some(record(0)));
    }
}
