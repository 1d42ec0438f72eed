//! What keeps a driver from working as configured, each kind in a place of its own: what goes well
//! again takes back its own problem and no other.

use std::collections::BTreeMap;

use tickcast_reliability::types::ChannelId;

use crate::error::SubscribeError;

#[derive(Debug, Default)]
pub(crate) struct Problems {
    /// The publisher rejected us, or none welcomed us in time; over with WELCOME.
    pub(crate) joining: Option<SubscribeError>,
    /// Groups that can't be joined; over when they are.
    pub(crate) listening: BTreeMap<ChannelId, SubscribeError>,
    /// Channels whose sockets fail; over when datagrams come again.
    pub(crate) receiving: BTreeMap<ChannelId, SubscribeError>,
    /// No connection can be made from here; over when one is.
    pub(crate) connecting: Option<SubscribeError>,
    /// Nobody could wait for us.
    pub(crate) descriptor: Option<SubscribeError>,
}

impl Problems {
    /// The gravest one.
    #[inline]
    pub(crate) fn first(&self) -> Option<&SubscribeError> {
        let channels = self.listening.values().chain(self.receiving.values());
        let all = self.joining.iter().chain(channels);
        all.chain(&self.connecting).chain(&self.descriptor).next()
    }

    /// A publisher welcomed us, to these channels and no others.
    pub(crate) fn welcomed(&mut self, is_followed: impl Fn(ChannelId) -> bool) {
        self.joining = None;
        self.listening.retain(|channel, _| is_followed(*channel));
        self.receiving.retain(|channel, _| is_followed(*channel));
    }

    /// The groups of a channel were joined, by sockets of which no failure is known yet.
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
    fn what_goes_well_again_takes_back_its_own_problem_and_no_other() {
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
        // Another publisher knows the channel by another number.
        problems.welcomed(|channel| channel == one);
        assert!(problems.first().is_none());
    }
}
