//! Cursors of a publisher, written by a device that places the words of a report in any order.

use std::collections::BTreeMap;

use tickcast_reliability::control::{
    CURSOR_LEN, CURSOR_WORDS, CursorState, REPORT_OFFSET, REPORT_WORDS, Report,
};
use tickcast_reliability::control::{Grant, RemoteAccess};
use tickcast_reliability::receive::RemoteOp;
use tickcast_reliability::session::RemoteRequest;
use tickcast_reliability::types::ChannelId;

/// The cursors of a publisher, by the connection and channel that each was granted to.
#[derive(Debug, Default)]
pub struct Cursors(pub(crate) BTreeMap<(usize, ChannelId), Entry>);

#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) words: [u64; CURSOR_WORDS],
    /// Reports that were written, oldest first.
    pub(crate) made: Vec<Report>,
}

/// Returns the access to a cursor, at an address far from all rings.
pub(crate) const fn cursor_at(connection: usize, channel: ChannelId) -> RemoteAccess {
    RemoteAccess {
        address: (1 << 60) | (connection as u64) << 24 | (channel.0 as u64) << 8,
        len: CURSOR_LEN as u64,
        key: connection as u32,
    }
}

impl Cursors {
    pub(crate) fn of(
        &mut self,
        connection: usize,
        request: &RemoteRequest,
    ) -> Result<&mut Entry, String> {
        let entry = self.0.get_mut(&(connection, request.channel));
        entry.ok_or_else(|| format!("{request:?} over a connection without a cursor"))
    }

    /// Begins a request: a swap completes at once; of a report only the words that `is_placed`
    /// selects are placed. Returns the old session word.
    ///
    /// # Errors
    /// A request that is not granted, a report that can't be parsed, or one whose number does not
    /// follow the last.
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

    /// Places all words of a report.
    ///
    /// # Errors
    /// A request over a connection without a cursor.
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
