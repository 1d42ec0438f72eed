//! Cursors in virtual time: a subscriber's device places the words of a report in any order, and the
//! publisher may look in between. What it believes must be a report that was made.

use std::collections::BTreeMap;

use rand::RngExt;
use tickcast_reliability::control::{
    CURSOR_LEN, CURSOR_WORDS, CursorState, Grant, REPORT_OFFSET, REPORT_WORDS, RemoteAccess, Report,
};
use tickcast_reliability::receive::RemoteOp;
use tickcast_reliability::serve::PeerId;
use tickcast_reliability::session::RemoteRequest;
use tickcast_reliability::types::ChannelId;

use crate::world::{World, now_of};

/// The cursors of a publisher, by the connection that each was granted to.
#[derive(Debug, Default)]
pub struct Cursors(BTreeMap<(usize, ChannelId), Entry>);

#[derive(Debug, Default)]
struct Entry {
    words: [u64; CURSOR_WORDS],
    /// Reports that were made, the last one at the end.
    made: Vec<Report>,
}

/// Where cursors stand: far from all rings.
const fn cursor_at(connection: usize, channel: ChannelId) -> RemoteAccess {
    RemoteAccess {
        address: (1 << 60) | (connection as u64) << 24 | (channel.0 as u64) << 8,
        len: CURSOR_LEN as u64,
        key: connection as u32,
    }
}

impl Cursors {
    fn of(&mut self, connection: usize, request: &RemoteRequest) -> Result<&mut Entry, String> {
        let entry = self.0.get_mut(&(connection, request.channel));
        entry.ok_or_else(|| format!("{request:?} over a connection without a cursor"))
    }

    /// The device begins: a swap is done at once, of a report some words are placed. The old word.
    ///
    /// # Errors
    /// What is not granted.
    pub fn begin(
        &mut self,
        connection: usize,
        grant: &Grant,
        request: &RemoteRequest,
        mut is_placed: impl FnMut() -> bool,
    ) -> Result<Vec<u8>, String> {
        let granted = (grant.cursor).ok_or_else(|| format!("{request:?}, granted is {grant:?}"))?;
        let (offset, len) = match request.what {
            RemoteOp::Claim(_) => (0, 8),
            _ => (REPORT_OFFSET, CURSOR_LEN as u32 - 8),
        };
        let wanted = (request.address, request.len, request.key);
        if wanted != (granted.address + offset, len, granted.key) {
            return Err(format!("{request:?} is not in {granted:?}"));
        }
        let entry = self.of(connection, request)?;
        let old = entry.words[0];
        match request.what {
            RemoteOp::Claim(session) if old == 0 => entry.words[0] = session,
            RemoteOp::Report(words) => {
                let mut whole = [old; CURSOR_WORDS];
                whole[1..].copy_from_slice(&words);
                let CursorState::Reported(_, report) = CursorState::of(&whole) else {
                    return Err(format!("{request:?} writes no report"));
                };
                let before = entry.made.last().map_or(0, |last| last.number);
                if report.number != before + 1 {
                    return Err(format!("{report:?} follows report {before}"));
                }
                entry.made.push(report);
                for (word, new) in entry.words[1..].iter_mut().zip(words) {
                    if is_placed() {
                        *word = new;
                    }
                }
            }
            _ => {}
        }
        Ok(old.to_le_bytes().to_vec())
    }

    /// The device places the rest.
    ///
    /// # Errors
    /// Where there is no such cursor.
    pub fn finish(
        &mut self,
        connection: usize,
        request: &RemoteRequest,
        words: &[u64; REPORT_WORDS],
    ) -> Result<(), String> {
        self.of(connection, request)?.words[1..].copy_from_slice(words);
        Ok(())
    }
}

impl World {
    /// The publisher's driver leases a cursor for a connection whose ring was granted; not for each.
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

    /// The publisher's driver looks at all cursors.
    pub(crate) fn look_at_cursors(&mut self, index: usize) -> Result<(), String> {
        let now = now_of(self.now, self.utc);
        let publisher = &mut self.publishers[index];
        let mut believed = 0;
        for (peer, connection) in &publisher.peers {
            let all = &publisher.cursors.0;
            let theirs =
                all.range((*connection, ChannelId(0))..=(*connection, ChannelId(u16::MAX)));
            for (&(_, channel), entry) in theirs {
                let words = &entry.words;
                let told = publisher.repair.handle_cursor(now, *peer, channel, words);
                let Some((_, told)) = told else { continue };
                believed += 1;
                let made = entry.made.iter().any(|report| {
                    (report.epoch, report.sequence, report.heard)
                        == (told.epoch, told.sequence, told.heard)
                        && (report.lost_records, report.read_bytes)
                            == (told.lost_records, told.read_bytes)
                });
                if !made {
                    return Err(format!(
                        "publisher {index} believes {told:?}, which nobody reported"
                    ));
                }
            }
        }
        *self.faults.entry("cursor_reports").or_default() += believed;
        Ok(())
    }

    /// What is done with a cursor comes to the publisher's device. The word that goes back.
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
        // The publisher may look just now.
        self.serve(index)?;
        Ok(back)
    }
}
