//! Cursors in virtual time: a subscriber's device places the words of a report in any order, and
//! the publisher may poll in between. Every report that the publisher accepts must have been
//! written.

use rand::RngExt;
use tickcast_reliability::control::Grant;
use tickcast_reliability::serve::PeerId;
use tickcast_reliability::session::RemoteRequest;
use tickcast_reliability::types::ChannelId;

use crate::network::cursors::{Entry, cursor_at};
use crate::world::{World, now_of};

impl World {
    /// Leases a cursor for a connection with a granted ring, as the publisher's driver does. Every
    /// fourth connection gets none.
    pub(crate) fn lease(&mut self, index: usize, peer: PeerId, channel: ChannelId) {
        let publisher = &mut self.publishers[index];
        let Some(&connection) = publisher.peers.get(&peer) else {
            return;
        };
        if connection % 4 == 3 {
            return;
        }
        let at = cursor_at(connection, channel);
        publisher.repair.grant_cursor(peer, channel, at);
        let entries = &mut publisher.cursors.0;
        entries.insert((connection, channel), Entry::default());
    }

    /// Polls all cursors, as the publisher's driver does, and checks that each accepted report was
    /// written.
    pub(crate) fn check_cursors(&mut self, index: usize) -> Result<(), String> {
        let now = now_of(self.now, self.utc);
        let publisher = &mut self.publishers[index];
        let mut believed = 0;
        for (peer, connection) in &publisher.peers {
            let all = &publisher.cursors.0;
            let theirs =
                all.range((*connection, ChannelId(0))..=(*connection, ChannelId(u16::MAX)));
            for (&(_, channel), entry) in theirs {
                let words = &entry.words;
                let reported = publisher.repair.handle_cursor(now, *peer, channel, words);
                let Some((_, reported)) = reported else {
                    continue;
                };
                believed += 1;
                let made = entry.made.iter().any(|report| {
                    (report.epoch, report.sequence, report.heard)
                        == (reported.epoch, reported.sequence, reported.heard)
                        && (report.lost_records, report.read_bytes)
                            == (reported.lost_records, reported.read_bytes)
                });
                if !made {
                    return Err(format!(
                        "publisher {index} believes {reported:?}, which nobody reported"
                    ));
                }
            }
        }
        *self.faults.entry("cursor_reports").or_default() += believed;
        Ok(())
    }

    /// Begins a cursor request that arrived at the publisher's device. Returns the old session
    /// word.
    pub(crate) fn cursor_begins(
        &mut self,
        connection: usize,
        grant: &Grant,
        request: &RemoteRequest,
    ) -> Result<Vec<u8>, String> {
        let of = &self.connections[connection];
        let (number, index) = (of.subscriber, of.publisher);
        let mut places: u8 = self.subscribers[number].rng.random();
        let back = (self.publishers[index].cursors).begin(connection, grant, request, || {
            places = places.rotate_left(1);
            places & 1 == 1
        })?;
        // The publisher may poll at this moment.
        self.serve(index)?;
        Ok(back)
    }
}
