//! The last report of each subscriber on each channel.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use serde::Serialize;
use tickcast_reliability::control::LatencyReport;
use tickcast_reliability::types::{ChannelId, Nanos, PeerOrigin};

use crate::state::hand_over::SessionNumber;
use crate::state::subscriber_latency::SubscriberLatency;

/// Maximum number of reports kept of subscribers that have left.
const LEFT_MAX: usize = 128;
/// Maximum number of reports on a page. Strangers decide how many there are, and a reader takes 4 MiB.
const LISTED_MAX: usize = 2_048;

/// The last report of a subscriber on one channel.
///
/// ```
/// # use tickcast_publisher::{PublisherMonitor, SubscriberStatus};
/// # fn f(monitor: &PublisherMonitor) {
/// let slowest: Option<SubscriberStatus> = monitor.subscribers().into_iter().max_by_key(|it| it.lag);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SubscriberStatus {
    /// Name of the subscriber.
    pub name: String,
    /// Channel of the report.
    pub channel: ChannelId,
    /// Whether it is joined now.
    pub joined: bool,
    /// The last sequence delivered or declared lost.
    pub sequence: u64,
    /// The highest sequence it knows of.
    pub heard: u64,
    /// Sequences that it is behind the last sealed one.
    pub lag: u64,
    /// Records it declared lost.
    pub lost_records: u64,
    /// Whether it follows the channel's epoch; `false` before its first report.
    pub follows: bool,
    /// Its latency in the last interval; `None` before its first report of it.
    pub latency: Option<SubscriberLatency>,
    /// Its connection; not shown to users.
    #[serde(skip)]
    pub peer: u64,
}

/// A connection that has joined.
#[derive(Debug)]
pub(crate) struct Joined {
    /// Name of the subscriber.
    pub(crate) name: String,
    origin: PeerOrigin,
    /// Its session, which nobody else knows.
    session: Option<SessionNumber>,
    channels: usize,
    /// Number of channels that it does not follow yet.
    awaited: usize,
}

impl Joined {
    /// Returns the number of channels that it has joined.
    pub(crate) const fn channels(&self) -> usize {
        self.channels
    }

    /// Returns whether it follows all of them.
    pub(crate) const fn follows_all(&self) -> bool {
        self.awaited == 0
    }
}

/// The reports of subscribers that a page lists.
#[derive(Debug)]
pub(crate) struct Listed {
    /// Reports of joined subscribers, then of those that have left.
    pub(crate) reports: Vec<SubscriberStatus>,
    /// Number of reports for which the page has no room.
    pub(crate) not_listed: usize,
    /// Whether any subscriber reports a loss, listed or not.
    pub(crate) report_loss: bool,
}

/// The reports of all subscribers. A report is found by connection and channel, and a connection by its
/// session, so that the work for one does not grow with the number of the others.
#[derive(Debug, Default)]
pub(crate) struct Subscribers {
    joined: BTreeMap<(u64, ChannelId), SubscriberStatus>,
    /// The reports of subscribers that have left, oldest first.
    left: VecDeque<SubscriberStatus>,
    /// The joined connections.
    connections: BTreeMap<u64, Joined>,
    /// The connection of each session.
    sessions: BTreeMap<SessionNumber, u64>,
    /// Number of joined connections that follow all their channels.
    following: u32,
}

impl Subscribers {
    /// Records that a subscriber joined these channels. It replaces what is kept of an earlier one with its
    /// name.
    pub(crate) fn join(
        &mut self,
        (peer, origin): (u64, PeerOrigin),
        session: Option<SessionNumber>,
        name: &str,
        channels: &[ChannelId],
    ) {
        (self.left).retain(|it| it.name != name || !channels.contains(&it.channel));
        for channel in channels {
            let status = SubscriberStatus {
                name: name.into(),
                channel: *channel,
                joined: true,
                sequence: 0,
                heard: 0,
                lag: 0,
                lost_records: 0,
                follows: false,
                latency: None,
                peer,
            };
            self.joined.insert((peer, *channel), status);
        }
        self.following += u32::from(channels.is_empty());
        (self.sessions).extend(session.map(|session| (session, peer)));
        let joined = Joined {
            name: name.into(),
            origin,
            session,
            channels: channels.len(),
            awaited: channels.len(),
        };
        self.connections.insert(peer, joined);
    }

    /// Changes the report of a joined subscriber on a channel.
    pub(crate) fn report(
        &mut self,
        peer: u64,
        channel: ChannelId,
        change: impl FnOnce(&mut SubscriberStatus),
    ) {
        let status = self.joined.get_mut(&(peer, channel));
        let (Some(status), Some(joined)) = (status, self.connections.get_mut(&peer)) else {
            return;
        };
        let (followed, followed_all) = (status.follows, joined.follows_all());
        change(status);
        match (followed, status.follows) {
            (false, true) => joined.awaited -= 1,
            (true, false) => joined.awaited += 1,
            _ => {}
        }
        match (followed_all, joined.follows_all()) {
            (false, true) => self.following += 1,
            (true, false) => self.following -= 1,
            _ => {}
        }
    }

    /// Takes the latency that a subscriber reports on a channel. Returns whether it was refused: it is
    /// impossible, or comes too soon after the last one.
    pub(crate) fn report_latency(
        &mut self,
        peer: u64,
        channel: ChannelId,
        now: Nanos,
        report: &LatencyReport,
    ) -> bool {
        let Some(status) = self.joined.get_mut(&(peer, channel)) else {
            return false;
        };
        let is_due = (status.latency.as_ref()).is_none_or(|last| last.is_over(now));
        let is_taken = is_due && report.is_possible();
        if is_taken {
            status.latency = Some(SubscriberLatency::new(now, report));
        }
        !is_taken
    }

    /// Records that a subscriber left. Its last reports are kept for a while.
    pub(crate) fn leave(&mut self, peer: u64) {
        let Some(joined) = self.connections.remove(&peer) else {
            return;
        };
        if let Some(session) = joined.session {
            self.sessions.remove(&session);
        }
        self.following -= u32::from(joined.follows_all());
        for (_, mut status) in self.joined.extract_if(places_of(peer), |_, _| true) {
            status.joined = false;
            self.left.push_back(status);
        }
        while self.left.len() > LEFT_MAX {
            self.left.pop_front();
        }
    }

    /// Returns the number of joined subscribers that follow all their channels. A subscriber that has sent no
    /// report on a channel may not be receiving it yet.
    pub(crate) const fn following(&self) -> u32 {
        self.following
    }

    /// Returns whether a joined subscriber of each of these names follows all its channels.
    pub(crate) fn follow(&self, names: &[String]) -> bool {
        let follows = |name: &String| {
            let mut joined = self.connections.values();
            joined.any(|it| it.name == *name && it.follows_all())
        };
        names.iter().all(follows)
    }

    /// Returns the joined connection of a session.
    pub(crate) fn of_session(&self, session: SessionNumber) -> Option<&Joined> {
        self.connections.get(self.sessions.get(&session)?)
    }

    /// Returns all reports: those of joined subscribers, then those of subscribers that have left.
    pub(crate) fn all(&self) -> Vec<SubscriberStatus> {
        let joined = self.joined.values();
        joined.chain(&self.left).cloned().collect()
    }

    /// Returns the reports for a page. When there are too many, each address has as many of its subscribers
    /// listed as any other, oldest first.
    pub(crate) fn listed(&self) -> Listed {
        let all = self.joined.len() + self.left.len();
        let mut reports = match all <= LISTED_MAX {
            true => self.all(),
            false => self.shared_out(LISTED_MAX),
        };
        reports.truncate(LISTED_MAX);
        let mut each = self.joined.values().chain(&self.left);
        Listed {
            not_listed: all - reports.len(),
            report_loss: each.any(|it| it.lost_records > 0),
            reports,
        }
    }

    /// Returns at least `most` reports of joined subscribers, or all, in rounds of one subscriber for each
    /// address.
    fn shared_out(&self, most: usize) -> Vec<SubscriberStatus> {
        let mut waiting: BTreeMap<PeerOrigin, VecDeque<u64>> = BTreeMap::new();
        for (peer, joined) in &self.connections {
            waiting.entry(joined.origin).or_default().push_back(*peer);
        }
        let mut reports = Vec::new();
        while reports.len() < most && !waiting.is_empty() {
            for peers in waiting.values_mut() {
                let of_peer = places_of(peers.pop_front().unwrap_or_default());
                reports.extend(self.joined.range(of_peer).map(|(_, it)| it.clone()));
            }
            waiting.retain(|_, peers| !peers.is_empty());
        }
        reports
    }
}

/// Returns where the reports of a connection are.
const fn places_of(peer: u64) -> RangeInclusive<(u64, ChannelId)> {
    (peer, ChannelId(0))..=(peer, ChannelId(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ChannelId = ChannelId(1);
    const B: ChannelId = ChannelId(2);
    const ORIGIN: PeerOrigin = PeerOrigin::V4(std::net::Ipv4Addr::LOCALHOST);

    fn follow(all: &mut Subscribers, peer: u64, channel: ChannelId, follows: bool) {
        all.report(peer, channel, |it| it.follows = follows);
    }

    #[test]
    fn subscriber_follows_once_it_reports_on_every_channel() {
        let mut all = Subscribers::default();
        all.join((1, ORIGIN), None, "risk-1", &[A, B]);
        all.join((2, ORIGIN), None, "risk-2", &[A]);
        assert_eq!(all.following(), 0);
        follow(&mut all, 1, A, true);
        follow(&mut all, 1, A, true);
        assert_eq!(all.following(), 0);
        follow(&mut all, 1, B, true);
        follow(&mut all, 2, A, true);
        // A report on a channel that it did not join, or of a connection that did not join, changes nothing.
        follow(&mut all, 2, B, true);
        follow(&mut all, 3, A, true);
        assert_eq!(all.following(), 2);
        follow(&mut all, 1, A, false);
        assert_eq!(all.following(), 1);
        all.leave(1);
        all.leave(1);
        assert_eq!(all.following(), 1);
        all.leave(2);
        assert_eq!(all.following(), 0);
    }

    #[test]
    fn latency_report_is_refused_if_impossible_or_too_soon() {
        let mut all = Subscribers::default();
        all.join((1, ORIGIN), None, "risk-1", &[A]);
        let mut report = LatencyReport::default();
        report.stages[2].samples = 4;
        let mut impossible = report;
        impossible.stages[2].p50 = Nanos(9);
        let ms = |ms| Nanos::from_secs(9).after(Nanos::from_ms(ms));
        let mut is_refused = |peer, channel, at, report: &LatencyReport| {
            all.report_latency(peer, channel, ms(at), report)
        };
        assert!(is_refused(1, A, 0, &impossible));
        assert!(!is_refused(1, A, 0, &report));
        assert!(is_refused(1, A, 499, &report), "too soon");
        assert!(!is_refused(1, A, 500, &report));
        assert!(is_refused(1, A, 1_500, &impossible));
        // The core ends a connection that names a channel it did not join.
        assert!(!is_refused(1, B, 2_000, &report) && !is_refused(2, A, 2_000, &report));
        let list = all.all();
        let latency = list[0].latency.as_ref().unwrap();
        assert_eq!((list.len(), latency.stages[0].samples), (1, 4));
    }

    #[test]
    fn reports_of_left_subscribers_are_kept_and_bounded() {
        let mut all = Subscribers::default();
        for peer in 0..200 {
            all.join((peer, ORIGIN), None, &format!("risk-{peer}"), &[A]);
            all.report(peer, A, |it| it.sequence = peer);
            all.leave(peer);
        }
        let left = all.all();
        assert_eq!((left.len(), left[0].sequence), (LEFT_MAX, 72));
        assert!(left.iter().all(|it| !it.joined));
        // A subscriber that returns replaces its own.
        all.join((900, ORIGIN), None, "risk-199", &[A]);
        let names: Vec<_> = all
            .all()
            .into_iter()
            .filter(|it| it.name == "risk-199")
            .collect();
        assert_eq!(
            (names.len(), names[0].joined, names[0].peer),
            (1, true, 900)
        );
    }

    #[test]
    fn page_lists_each_address_alike() {
        let mut all = Subscribers::default();
        let channels: Vec<_> = (1..=64).map(ChannelId).collect();
        let strangers = PeerOrigin::V4([10, 0, 0, 1].into());
        for peer in 0..1_000 {
            all.join((peer, strangers), None, "stranger", &channels);
        }
        for peer in 1_000..1_008 {
            all.join((peer, ORIGIN), None, "risk", &channels);
        }
        all.report(1_007, A, |it| it.lost_records = 1);
        all.report(999, B, |it| it.lost_records = 1);
        let listed = all.listed();
        assert_eq!(listed.reports.len(), LISTED_MAX);
        assert_eq!(listed.not_listed, 1_008 * 64 - LISTED_MAX);
        let honest = listed.reports.iter().filter(|it| it.name == "risk");
        assert_eq!(honest.count(), 8 * 64, "all of them");
        for peer in 0..1_000 {
            all.leave(peer);
        }
        let listed = all.listed();
        assert_eq!((listed.reports.len(), listed.not_listed), (640, 0));
        assert!(listed.report_loss);
    }
}
