//! The problems that prevent a driver from working as configured. Each kind has its own field, so that a
//! recovery clears only its own problem.

use std::collections::BTreeMap;

use tickcast_reliability::types::ChannelId;

use crate::error::SubscribeError;

#[derive(Debug, Default)]
pub(crate) struct Problems {
    /// The publisher rejected us, or none welcomed us in time. Cleared by WELCOME.
    pub(crate) joining: Option<SubscribeError>,
    /// Channels whose groups can't be joined. Cleared when they are joined.
    pub(crate) listening: BTreeMap<ChannelId, SubscribeError>,
    /// Channels whose sockets fail. Cleared when datagrams arrive again.
    pub(crate) receiving: BTreeMap<ChannelId, SubscribeError>,
    /// This host can't make a connection. Cleared when it makes one.
    pub(crate) connecting: Option<SubscribeError>,
    /// The descriptor that a thread waits on does not work.
    pub(crate) descriptor: Option<SubscribeError>,
}

impl Problems {
    /// Returns the most severe problem.
    #[inline]
    pub(crate) fn first(&self) -> Option<&SubscribeError> {
        let channels = self.listening.values().chain(self.receiving.values());
        let all = self.joining.iter().chain(channels);
        all.chain(&self.connecting).chain(&self.descriptor).next()
    }

    /// Clears the problem of joining, and those of channels that are not followed any more.
    pub(crate) fn welcomed(&mut self, is_followed: impl Fn(ChannelId) -> bool) {
        self.joining = None;
        self.listening.retain(|channel, _| is_followed(*channel));
        self.receiving.retain(|channel, _| is_followed(*channel));
    }

    /// Clears the problems of a channel whose groups were joined with new sockets.
    pub(crate) fn listens(&mut self, channel: ChannelId) {
        self.listening.remove(&channel);
        self.receiving.remove(&channel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::control::RejectCode;

    fn wrong(channel: ChannelId) -> SubscribeError {
        let channel = channel.to_string();
        SubscribeError::NoTransport { channel }
    }

    #[test]
    fn resolved_problem_clears_only_its_own_entry() {
        let (one, two) = (ChannelId(1), ChannelId(2));
        let mut problems = Problems::default();
        assert!(problems.first().is_none());
        problems.listening.insert(one, wrong(one));
        problems.receiving.insert(two, wrong(two));
        problems.joining = Some(SubscribeError::Rejected {
            code: RejectCode::ShuttingDown,
            text: "later".into(),
        });
        let first = |problems: &Problems| problems.first().map(ToString::to_string);
        assert!(matches!(
            problems.first(),
            Some(SubscribeError::Rejected { .. })
        ));
        problems.welcomed(|_| true);
        assert_eq!(first(&problems), Some(wrong(one).to_string()));
        problems.listens(one);
        assert_eq!(first(&problems), Some(wrong(two).to_string()));
        problems.listens(one);
        assert!(problems.first().is_some(), "the other channel's stays");
        // Another publisher uses another number for the channel.
        problems.welcomed(|channel| channel == one);
        assert!(problems.first().is_none());
    }
}
