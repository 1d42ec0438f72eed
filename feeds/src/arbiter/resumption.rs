//! The resumption of a source that an earlier arbiter followed.

use super::Arbiter;
use super::protocol::{Listen, Protocol};
use crate::source::{Incident, ResumePoint};

impl<P: Protocol> Arbiter<P> {
    /// Continues at `next`, before which everything was delivered, in a session with this note. Messages
    /// from there to the first packet are a gap, of unknown size where the session is over by then.
    /// Without a session, the first packet begins another one.
    pub fn resume(&mut self, session: Option<(u128, P::Note)>, at: &ResumePoint) {
        if let Some((session, note)) = session {
            self.protocol.follow(&note);
            self.session = Some(session);
        }
        (self.ordinal, self.next) = (at.next.ordinal(), at.next.sequence());
        (self.end_at, self.newest_sent_at) = (at.end_at, at.sent_at);
        // The venue's own end leaves nothing to be heard of the session.
        self.has_ended = at.is_over();
        self.is_resuming = at.end_at.is_none();
        self.announced = at.end_at.unwrap_or(0);
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

    /// Reports that a run which was resumed went on unheard, up to an unknown message.
    pub(super) fn report_unknown_end(&mut self, out: &mut impl Listen<P>) {
        if std::mem::take(&mut self.is_resuming) {
            let (from, missing) = (self.next_position(), u64::MAX);
            out.incident(Incident::Gap { from, missing });
        }
    }
}
