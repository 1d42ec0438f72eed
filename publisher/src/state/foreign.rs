//! Foreign packets of a live source, by destination and sender.

use std::net::SocketAddrV4;

use serde_json::{Value, json};
use tickcast_feeds::source::PacketOrigin;

/// Rows of one source; a flood of senders takes no more memory.
const ROWS_MAX: usize = 64;

/// Packets that are of no feed that is followed.
#[derive(Debug, Default)]
pub(crate) struct ForeignTable {
    /// The address of each line.
    destinations: Vec<SocketAddrV4>,
    /// Packets of each line and sender, in the order of their first packets.
    rows: Vec<(PacketOrigin, u64)>,
    /// Packets of further senders.
    others: u64,
    /// Packets of all rows and senders.
    packets: u64,
}

impl ForeignTable {
    /// Creates the table of lines with these addresses.
    pub(crate) fn new(destinations: Vec<SocketAddrV4>) -> Self {
        Self {
            destinations,
            rows: Vec::with_capacity(ROWS_MAX),
            ..Self::default()
        }
    }

    /// Copies another table, without an allocation once this one has as many rows.
    pub(crate) fn copy(&mut self, from: &Self) {
        self.destinations.clone_from(&from.destinations);
        self.rows.clone_from(&from.rows);
        (self.others, self.packets) = (from.others, from.packets);
    }

    /// Counts a packet.
    pub(crate) fn add(&mut self, origin: PacketOrigin) {
        self.packets += 1;
        match self.rows.iter().position(|(of, _)| *of == origin) {
            Some(at) => self.rows[at].1 += 1,
            None if self.rows.len() < ROWS_MAX => self.rows.push((origin, 1)),
            None => self.others += 1,
        }
    }

    /// Returns the number of packets.
    pub(crate) const fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns a row for each destination and sender. Further senders share a last row without either.
    pub(crate) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(origin, packets)| {
            let destination = self.destinations.get(usize::from(origin.line));
            json!({
                "destination": destination.map(ToString::to_string),
                "sender": origin.sender.map(|sender| sender.to_string()),
                "packets": packets,
            })
        });
        let others = (self.others > 0)
            .then(|| json!({ "destination": null, "sender": null, "packets": self.others }));
        rows.chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn origin(line: u8, sender: u32) -> PacketOrigin {
        let sender = Some(Ipv4Addr::from_bits(sender));
        PacketOrigin { line, sender }
    }

    #[test]
    fn foreign_packets_are_counted_by_destination_and_sender() {
        let destinations =
            ["239.1.1.1:5", "239.1.1.2:5"].map(|it| it.parse::<SocketAddrV4>().unwrap());
        let mut table = ForeignTable::new(destinations.into());
        for (line, sender) in [(0, 7), (1, 7), (0, 7), (0, 8)] {
            table.add(origin(line, sender));
        }
        let expected = json!([
            { "destination": "239.1.1.1:5", "sender": "0.0.0.7", "packets": 2 },
            { "destination": "239.1.1.2:5", "sender": "0.0.0.7", "packets": 1 },
            { "destination": "239.1.1.1:5", "sender": "0.0.0.8", "packets": 1 },
        ]);
        assert_eq!(table.json(), expected);
        assert_eq!(table.packets(), 4);
        let mut copy = ForeignTable::default();
        copy.copy(&table);
        assert_eq!((copy.json(), copy.packets()), (expected, 4));
    }

    #[test]
    fn further_senders_share_the_last_row() {
        let mut table = ForeignTable::new(vec!["239.1.1.1:5".parse().unwrap()]);
        for sender in (0..100).chain(0..100) {
            table.add(origin(0, sender));
        }
        let json = table.json();
        let rows = json.as_array().unwrap();
        assert_eq!(rows.len(), ROWS_MAX + 1);
        let last = json!({ "destination": null, "sender": null, "packets": 2 * (100 - ROWS_MAX) });
        assert_eq!(rows.last(), Some(&last));
        let packets = rows.iter().map(|row| row["packets"].as_u64().unwrap());
        assert_eq!(packets.sum::<u64>(), table.packets());
    }
}
