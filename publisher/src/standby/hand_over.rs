//! Ends a publisher in favour of its standby. The publisher stops sealing, learns when the mirror
//! has everything, and ends without END. If the hand-over fails before that, it resumes sealing.
//!
//! The standby repeats its request (`POST /hand-over`) with the mirror's position and its session. Only the
//! subscriber that follows every channel in that session, under the standby's name, is heard. Sealing rests
//! while requests arrive, but at most [`REST_TOTAL`]. Once this publisher decides to end, it seals
//! nothing more. It ends once that answer is written, or can't be. A standby that never receives
//! the answer finds no publisher, and its mirror is complete.
//!
//! A standby that has opened a higher epoch by force ends this publisher at once.

use std::time::{Duration, Instant};

use tickcast_reliability::control::NAME_LEN_MAX;

use crate::repair::audit;
use crate::state::Shared;
use crate::state::hand_over::{Answer, PublishPosition, Request, not_allowed};

/// Time that sealing rests after each request of the standby.
const REST_MAX: Duration = Duration::from_secs(2);
/// Maximum duration of one rest, and minimum time of publishing after a rest of this duration.
const REST_TOTAL: Duration = Duration::from_secs(10);

/// Minimum interval between reported refusals.
const REFUSED_EVERY: Duration = Duration::from_secs(1);

/// The publish thread's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Continue publishing.
    GoOn,
    /// Seal nothing, but send what is sealed, and heartbeats.
    Rest,
    /// End without END.
    End,
}

#[derive(Debug)]
enum Phase {
    Publishing {
        /// Refuses to rest until this time, because the last rest reached its maximum.
        at_least: Option<Instant>,
    },
    Resting {
        /// Name of the requesting standby.
        standby: String,
        /// End of the rest unless another request arrives; `at_latest` is its end in any case.
        until: Instant,
        at_latest: Instant,
        /// Positions of the channels, once final.
        channels: Vec<PublishPosition>,
    },
    /// The answer that this publisher ends is being written. Nothing is sealed any more.
    Ending {
        standby: String,
    },
    Ended {
        standby: String,
    },
}

/// The decisions of a hand-over. The publish thread owns them.
#[derive(Debug)]
pub(crate) struct HandOver {
    /// The standbys that may take over, by name.
    allowed: Vec<String>,
    /// Whether sealing can rest. A publisher on its handler's thread can't, because it must not block
    /// the handler.
    can_rest: bool,
    phase: Phase,
    /// Time of the last reported refusal.
    refused_at: Option<Instant>,
}

impl HandOver {
    /// Allows standbys of these names to take over.
    pub(crate) const fn to(allowed: Vec<String>) -> Self {
        Self {
            allowed,
            can_rest: true,
            phase: Phase::Publishing { at_least: None },
            refused_at: None,
        }
    }

    /// Never stops sealing for a standby. Standbys of these names can end this publisher only by force,
    /// with a higher epoch.
    pub(crate) const fn without_rest(allowed: Vec<String>) -> Self {
        let mut it = Self::to(allowed);
        it.can_rest = false;
        it
    }

    /// Returns whether a hand-over is in progress or complete.
    #[inline]
    pub(crate) const fn is_asked(&self) -> bool {
        !matches!(self.phase, Phase::Publishing { .. })
    }

    /// Returns the next step. `position` returns the channels' positions once all sealed datagrams
    /// were sent.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        is_stopping: bool,
        position: impl FnOnce() -> Option<Vec<PublishPosition>>,
    ) -> Step {
        match &mut self.phase {
            Phase::Publishing { .. } => Step::GoOn,
            Phase::Ending { .. } => Step::Rest,
            Phase::Ended { .. } => Step::End,
            Phase::Resting {
                standby,
                until,
                at_latest,
                ..
            } if is_stopping || now >= *until || now >= *at_latest => {
                tracing::warn!(
                    standby,
                    "the standby has not taken over; this publisher continues"
                );
                let at_least = (now >= *at_latest).then_some(now + REST_TOTAL);
                self.phase = Phase::Publishing { at_least };
                Step::GoOn
            }
            Phase::Resting { channels, .. } => {
                if channels.is_empty()
                    && let Some(all) = position()
                {
                    *channels = all;
                }
                Step::Rest
            }
        }
    }

    /// Answers a standby. After [`Answer::Ends`], the caller must call [`HandOver::end`] once the answer
    /// is written, or can't be.
    pub(crate) fn ask(&mut self, request: &Request, shared: &Shared, now: Instant) -> Answer {
        let refused = |why: String| Answer::Refused { why };
        let name = &request.standby;
        if name.len() > NAME_LEN_MAX {
            return refused(format!("a name of {} bytes is too long", name.len()));
        }
        if !self.allowed.contains(name) {
            return refused(not_allowed(name));
        }
        if let Some(epoch) = request.superseded_by {
            if epoch <= shared.epoch {
                return refused(format!("epoch {epoch} is not above {}", shared.epoch));
            }
            let channels = Vec::new();
            return Answer::Ends { channels };
        }
        if request.epoch != shared.epoch {
            return refused(format!(
                "this publisher has epoch {}, not {}; let the mirror catch up",
                shared.epoch, request.epoch
            ));
        }
        if !self.can_rest {
            return refused(
                "this publisher seals on its handler's thread, which can't be paused: end its \
                 session, or promote by force"
                    .into(),
            );
        }
        if let Phase::Ending { standby } | Phase::Ended { standby } = &self.phase {
            // Its first answer may have been lost. Only one standby takes over.
            return match standby == name {
                true => Answer::Ends {
                    channels: Vec::new(),
                },
                false => refused(format!("{standby:?} has taken over")),
            };
        }
        if let Err(why) = check_mirror(shared, request) {
            return refused(why);
        }
        if shared.is_stopping() || shared.is_ended() {
            return refused("this publisher is ending its session".into());
        }
        match &mut self.phase {
            Phase::Resting { standby, until, .. } if standby != name && now < *until => {
                refused(format!("{standby:?} is taking over already"))
            }
            Phase::Publishing {
                at_least: Some(at_least),
            } if now < *at_least => refused(format!(
                "sealing was paused for {} s, and the mirrors are still behind; check their lag, \
                 and try again in {} s",
                REST_TOTAL.as_secs(),
                at_least.duration_since(now).as_secs() + 1
            )),
            Phase::Resting {
                standby,
                until,
                channels,
                ..
            } if standby == name => {
                *until = now + REST_MAX;
                let channels = channels.clone();
                if channels.is_empty() || !are_alike(&channels, &request.mirrored) {
                    return Answer::Resting { channels };
                }
                let standby = standby.clone();
                self.phase = Phase::Ending { standby };
                Answer::Ends { channels }
            }
            _ => {
                tracing::info!(
                    standby = name,
                    "a standby takes over, and sealing is paused"
                );
                self.phase = Phase::Resting {
                    standby: name.clone(),
                    until: now + REST_MAX,
                    at_latest: now + REST_TOTAL,
                    channels: Vec::new(),
                };
                let channels = Vec::new();
                Answer::Resting { channels }
            }
        }
    }

    /// Reports a refusal in the log and the audit trail, at most once a second, because clients may repeat
    /// their requests at any rate. Returns whether it was reported.
    pub(crate) fn refused(
        &mut self,
        request: &Request,
        client: &str,
        why: &str,
        now: Instant,
    ) -> bool {
        if self.refused_at.is_some_and(|at| now < at + REFUSED_EVERY) {
            return false;
        }
        self.refused_at = Some(now);
        tracing::warn!(client, "hand-over refused: {why}");
        let name = Some(&*request.standby).filter(|name| name.len() <= NAME_LEN_MAX);
        audit::write_entry(
            "hand_over_refused",
            audit::Of {
                subscriber: name,
                client: Some(client),
                why: Some(why),
                ..audit::Of::default()
            },
        );
        true
    }

    /// Ends this publisher without END, after the standby was notified. A second call changes
    /// nothing.
    pub(crate) fn end(&mut self, request: &Request, shared: &Shared) {
        if matches!(self.phase, Phase::Ended { .. }) {
            return;
        }
        let standby = &request.standby;
        // Only this sets it, and only once.
        let _ = shared.handed_over_to.set(standby.clone());
        shared.abandon();
        self.phase = Phase::Ended {
            standby: standby.clone(),
        };
        match request.superseded_by {
            None => tracing::info!(
                standby,
                "handed over; this publisher stops without sending END"
            ),
            Some(epoch) => tracing::error!(
                standby,
                %epoch,
                "superseded: a standby was promoted by force with a higher epoch; this publisher \
                 stops without sending END"
            ),
        }
        let what = match request.superseded_by {
            None => "handed_over",
            Some(_) => "superseded",
        };
        audit::write_entry(
            what,
            audit::Of {
                subscriber: Some(standby),
                ..audit::Of::default()
            },
        );
    }
}

/// Returns whether both have equal positions, in any order of channels.
fn are_alike(ours: &[PublishPosition], theirs: &[PublishPosition]) -> bool {
    ours.len() == theirs.len() && ours.iter().all(|it| theirs.contains(it))
}

/// Checks that the request comes from a subscriber of the standby's name that follows every channel in the
/// current epoch. Nobody else knows its session, by which it is found: other subscribers cost nothing.
fn check_mirror(shared: &Shared, request: &Request) -> Result<(), String> {
    let name = &request.standby;
    {
        let subscribers = shared.subscribers();
        let session = request.session.and_then(|it| subscribers.of_session(it));
        let Some(mirror) = session.filter(|it| it.name == *name) else {
            return Err(format!(
                "the request does not come from a subscriber named {name:?}, so no standby can take \
                 over; start the standby, let it join, and promote it again if it has reconnected"
            ));
        };
        if !mirror.follows_all() || mirror.channels() < shared.channels.len() {
            return Err(format!(
                "the standby {name:?} does not follow every channel yet; wait until it mirrors"
            ));
        }
    }
    let is_sealed = |of: &PublishPosition| {
        let channel = shared.channels.iter().find(|it| it.plan.id == of.channel);
        channel.is_none_or(|it| of.last <= it.ring.sealed())
    };
    match request.mirrored.iter().find(|of| !is_sealed(of)) {
        None => Ok(()),
        Some(of) => Err(format!(
            "the standby {name:?} claims sequence {} of channel {}, which this publisher has not \
             sealed",
            of.last, of.channel.0
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tickcast_reliability::types::{
        ChannelId, Epoch, Nanos, PeerOrigin, RecordNumber, Sequence,
    };

    use super::*;
    use crate::state::hand_over::SessionNumber;

    const AT: PublishPosition = PublishPosition {
        channel: ChannelId(1),
        last: Sequence(70),
        next_record: RecordNumber(900),
    };

    fn shared() -> Shared {
        let none = (Vec::new(), Vec::new());
        let stop = Default::default();
        let shared = Shared::new("a".into(), Epoch(5), none.0, none.1, stop, Nanos::ZERO);
        for name in ["b", "c"] {
            follow(&shared, name, session(name));
        }
        shared
    }

    /// Returns the connection of the subscriber of this name.
    fn peer(name: &str) -> u64 {
        name.bytes().map(u64::from).sum()
    }

    /// Returns the session of the subscriber of this name.
    fn session(name: &str) -> Option<SessionNumber> {
        Some(SessionNumber(1_000 + peer(name)))
    }

    fn follow(shared: &Shared, name: &str, session: Option<SessionNumber>) {
        let mut subscribers = shared.subscribers();
        let origin = PeerOrigin::V4(Ipv4Addr::LOCALHOST);
        subscribers.join((peer(name), origin), session, name, &[AT.channel]);
        subscribers.report(peer(name), AT.channel, |it| it.follows = true);
    }

    fn request(standby: &str, mirrored: &[PublishPosition]) -> Request {
        Request {
            standby: standby.into(),
            session: session(standby),
            epoch: Epoch(5),
            mirrored: mirrored.to_vec(),
            superseded_by: None,
        }
    }

    fn resting(channels: &[PublishPosition]) -> Answer {
        let channels = channels.to_vec();
        Answer::Resting { channels }
    }

    fn why(answer: Answer) -> String {
        match answer {
            Answer::Refused { why } => why,
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn hand_over_ends_when_mirror_has_all_sealed() {
        let (mut it, shared, now) = (HandOver::to(vec!["b".into()]), shared(), Instant::now());
        assert!(!it.is_asked());
        assert_eq!(it.ask(&request("b", &[]), &shared, now), resting(&[]));
        assert!(it.is_asked());
        // Some sealed datagrams are not sent yet, so the position is not final.
        assert_eq!(it.step(now, false, || None), Step::Rest);
        assert_eq!(it.ask(&request("b", &[AT]), &shared, now), resting(&[]));
        assert_eq!(it.step(now, false, || Some(vec![AT])), Step::Rest);
        let behind = PublishPosition {
            last: Sequence(69),
            ..AT
        };
        let asked = it.ask(&request("b", &[behind]), &shared, now);
        assert_eq!(asked, resting(&[AT]));
        let last = request("b", &[AT]);
        let ends = Answer::Ends { channels: vec![AT] };
        assert_eq!(it.ask(&last, &shared, now), ends);
        // The publisher rests, whatever the delay of the answer and requests to stop: the mirror is complete.
        for (later, is_stopping) in [
            (Duration::ZERO, false),
            (REST_TOTAL, false),
            (REST_MAX, true),
        ] {
            let step = it.step(now + later, is_stopping, || None);
            assert_eq!(step, Step::Rest, "nobody was told yet");
        }
        assert!(it.is_asked() && shared.handed_over_to.get().is_none());
        it.end(&last, &shared);
        assert_eq!(it.step(now, false, || None), Step::End);
        assert_eq!(shared.handed_over_to.get().map(|it| &**it), Some("b"));
        assert!(shared.is_stopping() && shared.is_abandoned());
    }

    #[test]
    fn takeover_confirmation_repeats_for_one_standby_only() {
        let names = ["b", "c"].map(String::from).to_vec();
        let (mut it, shared, now) = (HandOver::to(names), shared(), Instant::now());
        it.ask(&request("b", &[]), &shared, now);
        it.step(now, false, || Some(vec![AT]));
        let last = request("b", &[AT]);
        assert!(matches!(it.ask(&last, &shared, now), Answer::Ends { .. }));
        for is_over in [false, true] {
            if is_over {
                it.end(&last, &shared);
            }
            assert!(matches!(it.ask(&last, &shared, now), Answer::Ends { .. }));
            let second = why(it.ask(&request("c", &[AT]), &shared, now));
            assert!(second.contains("\"b\" has taken over"), "{second}");
        }
    }

    #[test]
    fn sealing_continues_after_silent_standby_or_session() {
        for (later, is_stopping) in [(REST_MAX, false), (Duration::ZERO, true)] {
            let (mut it, shared, now) = (HandOver::to(vec!["b".into()]), shared(), Instant::now());
            it.ask(&request("b", &[]), &shared, now);
            assert_eq!(it.step(now, false, || Some(vec![AT])), Step::Rest);
            assert_eq!(it.step(now + later, is_stopping, || None), Step::GoOn);
            assert!(!it.is_asked() && shared.handed_over_to.get().is_none());
            // A repeated request starts over, because messages sealed meanwhile are not mirrored.
            let again = it.ask(&request("b", &[AT]), &shared, now + later);
            assert_eq!(again, resting(&[]));
        }
    }

    #[test]
    fn endlessly_asking_standby_does_not_stop_sealing() {
        let (mut it, shared, began) = (HandOver::to(vec!["b".into()]), shared(), Instant::now());
        let mut now = began;
        while now < began + REST_TOTAL {
            assert!(matches!(
                it.ask(&request("b", &[]), &shared, now),
                Answer::Resting { .. }
            ));
            assert_eq!(it.step(now, false, || Some(vec![AT])), Step::Rest);
            now += REST_MAX / 2;
        }
        assert!(matches!(
            it.ask(&request("b", &[]), &shared, now),
            Answer::Resting { .. }
        ));
        assert_eq!(it.step(now, false, || None), Step::GoOn);
        let refused = why(it.ask(&request("b", &[]), &shared, now + REST_TOTAL / 2));
        assert!(refused.contains("again in 6 s"), "{refused}");
        assert!(!it.is_asked());
        let again = it.ask(&request("b", &[]), &shared, now + REST_TOTAL);
        assert_eq!(again, resting(&[]));
    }

    #[test]
    fn request_outside_the_mirrors_session_is_refused() {
        let (mut it, shared, now) = (HandOver::to(vec!["b".into()]), shared(), Instant::now());
        let mut forged = request("b", &[AT]);
        for session in [None, session("c"), Some(SessionNumber(0))] {
            forged.session = session;
            let refused = why(it.ask(&forged, &shared, now));
            assert!(refused.contains("does not come from"), "{refused}");
            assert!(!it.is_asked());
        }
        it.ask(&request("b", &[]), &shared, now);
        it.step(now, false, || Some(vec![AT]));
        // Neither ends the rest of the genuine standby, nor the publisher.
        assert!(matches!(
            it.ask(&forged, &shared, now),
            Answer::Refused { .. }
        ));
        assert!(matches!(
            it.ask(&request("b", &[AT]), &shared, now),
            Answer::Ends { .. }
        ));
    }

    #[test]
    fn subscriber_that_left_or_has_no_session_takes_nothing_over() {
        let (mut it, shared, now) = (HandOver::to(vec!["b".into()]), shared(), Instant::now());
        let mut asked = request("b", &[AT]);
        shared.subscribers().leave(peer("b"));
        let left = why(it.ask(&asked, &shared, now));
        assert!(left.contains("does not come from"), "{left}");
        follow(&shared, "b", None);
        asked.session = None;
        let refused = why(it.ask(&asked, &shared, now));
        assert!(refused.contains("does not come from"), "{refused}");
    }

    #[test]
    fn mirror_is_found_by_session_among_namesakes() {
        let (mut it, shared, now) = (HandOver::to(vec!["b".into()]), shared(), Instant::now());
        // Strangers join under its name, before and after it, and report progress on every channel.
        for stranger in (0..50).chain(1_000..1_050) {
            let mut subscribers = shared.subscribers();
            let session = Some(SessionNumber(stranger));
            let origin = PeerOrigin::V4(Ipv4Addr::LOCALHOST);
            subscribers.join((stranger, origin), session, "b", &[AT.channel]);
            subscribers.report(stranger, AT.channel, |it| it.follows = true);
        }
        assert_eq!(it.ask(&request("b", &[]), &shared, now), resting(&[]));
        shared
            .subscribers()
            .report(peer("b"), AT.channel, |it| it.follows = false);
        let behind = why(it.ask(&request("b", &[]), &shared, now));
        assert!(behind.contains("does not follow every channel"), "{behind}");
        shared.subscribers().leave(peer("b"));
        let left = why(it.ask(&request("b", &[]), &shared, now));
        assert!(left.contains("does not come from"), "{left}");
    }

    #[test]
    fn refusals_are_reported_once_a_second() {
        let (mut it, began) = (HandOver::to(vec![]), Instant::now());
        let reported = (0..1_000).filter(|ms| {
            let now = began + Duration::from_millis(3 * ms);
            it.refused(&request("d", &[]), "user 7", "so", now)
        });
        assert_eq!(reported.count(), 3);
    }

    #[test]
    fn takeover_needs_named_standby_and_current_epoch() {
        let names = ["b", "c"].map(String::from).to_vec();
        let (mut it, shared, now) = (HandOver::to(names), shared(), Instant::now());
        let stranger = why(it.ask(&request("d", &[]), &shared, now));
        assert!(stranger.contains("hand_over_to"), "{stranger}");
        let mut other = request("b", &[]);
        other.epoch = Epoch(4);
        assert!(why(it.ask(&other, &shared, now)).contains("epoch 5"));
        assert!(!it.is_asked());
        it.ask(&request("b", &[]), &shared, now);
        let second = why(it.ask(&request("c", &[]), &shared, now));
        assert!(second.contains("\"b\" is taking over"), "{second}");
        other.superseded_by = Some(Epoch(5));
        assert!(why(it.ask(&other, &shared, now)).contains("not above"));
        other.superseded_by = Some(Epoch(6));
        let ends = Answer::Ends { channels: vec![] };
        assert_eq!(it.ask(&other, &shared, now), ends);
        shared.stop();
        let late = why(it.ask(&request("b", &[]), &shared, now));
        assert!(late.contains("ending"), "{late}");
    }
}
