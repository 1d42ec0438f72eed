//! The facts that an arbiter shows: they are read, and never change it.

use tickcast_reliability::types::SourcePosition;

use super::Arbiter;
use super::protocol::Protocol;
use crate::source::{LineStats, ResumePoint};

impl<P: Protocol> Arbiter<P> {
    /// Returns the message before which the session ends, if the venue has said so.
    #[must_use]
    pub const fn end_at(&self) -> Option<u64> {
        self.end_at
    }

    /// Returns the latest time at which the venue sent a packet of the session; 0 if it stamps none.
    #[must_use]
    pub const fn newest_sent_at(&self) -> u64 {
        self.newest_sent_at
    }

    /// Returns the session that is being followed.
    #[must_use]
    pub const fn session(&self) -> Option<u128> {
        self.session
    }

    /// Returns whether the packets of the session have numbers of the venue.
    #[must_use]
    pub const fn is_numbered(&self) -> bool {
        !self.is_unnumbered
    }

    /// Returns the rules of the packets.
    #[must_use]
    pub const fn protocol(&self) -> &P {
        &self.protocol
    }

    /// Returns the position of the next new message.
    #[must_use]
    pub const fn next_position(&self) -> SourcePosition {
        SourcePosition::new(self.ordinal, self.next)
    }

    /// Returns whether packets wait, so that [`poll`](Self::poll) may release them.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        !self.is_plain && self.session.is_some()
    }

    /// Returns the number of packets that wait for those before them.
    #[must_use]
    pub fn held_packets(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of lines.
    #[must_use]
    pub const fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Returns the number of packets of the source's sessions so far, on all lines. Heartbeats of a
    /// session that has not begun are among them, unless another one is open.
    #[must_use]
    pub fn packets(&self) -> u64 {
        let of_lines: u64 = self.lines.iter().map(|line| line.stats.packets).sum();
        of_lines + self.other_heartbeats
    }

    /// Returns the counts of a line; zeros for a line that does not exist.
    #[must_use]
    pub fn line(&self, line: usize) -> LineStats {
        self.lines
            .get(line)
            .map_or_else(LineStats::default, |it| LineStats {
                missing: it.missing(),
                ..it.stats
            })
    }

    /// Returns the place of this source, for a decoder of another format: its next session goes on behind
    /// it. `None` if there is none yet. Instruments are for the caller to add.
    #[must_use]
    pub(crate) fn place(&self) -> Option<ResumePoint> {
        let is_begun = self.is_resuming || self.has_ended || self.ordinal > 0;
        let has_delivered = self.lines.iter().any(|line| line.stats.first > 0);
        (is_begun || has_delivered).then(|| ResumePoint {
            next: self.next_position(),
            ..ResumePoint::default()
        })
    }
}
