//! Grants for READ.

use super::*;
use crate::control::RemoteAccess;

const RING: RemoteAccess = RemoteAccess {
    address: 0x1000,
    len: 69_632,
    key: 7,
};
/// A small burst, with a negligible refill.
const BURST: u64 = 160_000;
/// Bytes of one grant.
const SPAN: u64 = BURST / 8;

pub(super) fn poor() -> RepairConfig {
    RepairConfig {
        subscriber_bytes_per_s: 1_000,
        subscriber_burst_bytes: BURST,
        ..RepairConfig::default()
    }
}

pub(super) fn reader(session: u64, attempt: u64) -> Join {
    Join {
        authentication: true,
        purpose: Purpose::Read { session, attempt },
        ..replay(session)
    }
}

impl Bench {
    /// Returns a subscriber (peer 0) whose READ connection (peer 1) has joined.
    pub(super) fn reading(config: RepairConfig) -> (Self, u64) {
        let mut bench = Self::new(config, 64, 1);
        let session = bench.join(0).session;
        bench.events();
        let got = bench.connect(1, reader(session, 5));
        assert!(matches!(&got[..], [Got::Welcome(welcome)] if welcome.channels.is_empty()));
        (bench, session)
    }

    pub(super) fn grant(&mut self, peer: u64) -> bool {
        self.core.grant(self.now, PeerId(peer), CHANNEL, RING)
    }

    /// Returns the new grant on the repair connection after `read_bytes` were READ.
    fn read(&mut self, read_bytes: u64) -> Option<u64> {
        let progress = Progress {
            read_bytes,
            ..progress(0)
        };
        self.deliver(0, Message::Progress(progress));
        self.tokens()
    }

    pub(super) fn tokens(&mut self) -> Option<u64> {
        let got = self.take(0);
        got.iter().find_map(|got| match got {
            Got::Grant(grant) => Some(grant.tokens),
            _ => None,
        })
    }
}

#[test]
fn read_joiner_is_granted_each_ring() {
    let (mut bench, session) = Bench::reading(RepairConfig::default());
    let events = bench.events();
    let expected = RepairEvent::ReadJoined {
        peer: PeerId(1),
        name: "risk".into(),
        session,
        attempt: 5,
        channels: vec![CHANNEL],
    };
    let joined = RepairEvent::FurtherJoined {
        peer: PeerId(1),
        further: Further::Read,
        instead_of: None,
    };
    assert_eq!(events, [joined, expected]);
    let c = &bench.core.counters;
    let joins = (
        c.read_joins.get(),
        c.replay_joins.get(),
        c.nack_link_joins.get(),
    );
    assert_eq!(joins, (1, 0, 0));
    let awaits = |bench: &Bench| [0, 1, 9].map(|peer| bench.core.awaits_grant(PeerId(peer)));
    assert_eq!(awaits(&bench), [false, true, false]);
    assert!(bench.grant(1));
    assert_eq!(awaits(&bench), [false; 3]);
    let got = bench.drain();
    let grant = Grant {
        epoch: EPOCH,
        attempt: 5,
        ring: RING,
        tokens: (512 << 10) / 8,
        cursor: None,
    };
    assert_eq!(got, [(Some(0), Got::Grant(grant))]);
    assert_eq!(bench.counters.read_tokens_bytes.get(), grant.tokens);
}

#[test]
fn ring_grant_needs_read_connection_and_joined_channel() {
    let (mut bench, session) = Bench::reading(RepairConfig::default());
    assert!(!bench.grant(0), "no connection for READ");
    assert!(!bench.grant(9), "nobody");
    bench.connect(2, further(session));
    assert!(!bench.grant(2), "a connection for NACKs");
    let other = ChannelId(CHANNEL.0 + 1);
    assert!(!bench.core.grant(bench.now, PeerId(1), other, RING));
    assert_eq!(bench.tokens(), None);
    let got = bench.connect(3, reader(session ^ 1, 1));
    assert!(matches!(&got[..], [Got::Rejected(rejected)]
        if rejected.code == RejectCode::UnknownSession));
}

#[test]
fn tokens_renew_with_use_within_budget() {
    let (mut bench, _) = Bench::reading(poor());
    bench.grant(1);
    assert_eq!(bench.tokens(), Some(SPAN));
    assert_eq!(bench.read(SPAN / 2), None, "half is left");
    assert_eq!(bench.read(SPAN / 2 + 1), Some(SPAN + SPAN / 2 + 1));
    // A subscriber that claims more than its grant gets no more for it.
    assert_eq!(bench.read(u64::MAX), Some(2 * SPAN + SPAN / 2 + 1));
    while bench.read(u64::MAX).is_some() {}
    assert_eq!(bench.counters.read_tokens_bytes.get(), BURST);
    bench.pass(500_000);
    assert_eq!(bench.read(BURST), Some(BURST + 500));
}

#[test]
fn read_grants_and_repair_share_one_budget() {
    let (mut bench, _) = Bench::reading(poor());
    bench.publish(40);
    bench.repair(0, 1, 40);
    let answers = bench.take(0).len() as u64;
    assert_eq!(answers, 40);
    bench.grant(1);
    while bench.read(u64::MAX).is_some() {}
    let left = BURST - 40 * FRAME;
    assert_eq!(bench.counters.read_tokens_bytes.get(), left);
    bench.repair(0, 1, 40);
    assert_eq!(bench.take(0).len(), 0, "the budget is used up");
}

#[test]
fn shared_read_budget_is_granted_only_once() {
    let config = RepairConfig {
        repair_bytes_per_s: SPAN,
        repair_burst_bytes: 4 * SPAN,
        ..poor()
    };
    let (mut bench, _) = Bench::reading(config);
    bench.publish(40);
    let second = bench.join(10).session;
    bench.connect(11, reader(second, 1));
    let third = bench.join(20).session;
    bench.connect(12, reader(third, 1));
    let granted = |bench: &Bench| bench.counters.read_tokens_bytes.get();
    assert!(bench.grant(1) && bench.grant(11));
    assert_eq!(granted(&bench), SPAN, "the second has nothing");
    // Within a second, the quarter for everybody is full again, and so is the share of the only origin.
    bench.pass(1_000_000);
    bench.grant(1);
    bench.grant(11);
    assert_eq!(granted(&bench), 3 * SPAN);
    bench.grant(12);
    assert_eq!(granted(&bench), 3 * SPAN, "the third has nothing");
    let mut theirs = bench.core.sessions.bucket_mut(third).unwrap().clone();
    assert!(
        theirs.take(bench.now.monotonic, BURST as usize),
        "nothing was charged"
    );
    // Half of the shared burst is reserved for NACKs.
    bench.take(20);
    bench.repair(20, 1, 4);
    assert_eq!(bench.take(20).len(), 4);
}

#[test]
fn read_connection_ends_grant_and_next_has_own() {
    let (mut bench, session) = Bench::reading(poor());
    bench.grant(1);
    bench.drain();
    bench.input(RepairInput::Disconnected(PeerId(1)));
    assert_eq!(bench.read(BURST), None);
    assert!(!bench.grant(1));
    bench.connect(2, reader(session, 6));
    bench.grant(2);
    let got = bench.take(0);
    assert!(matches!(&got[..], [Got::Grant(grant)] if grant.attempt == 6));
    // A new connection replaces it, and a half-open one is closed.
    bench.events();
    bench.connect(3, reader(session, 7));
    let close = RepairEvent::Close {
        peer: PeerId(2),
        reason: None,
    };
    assert!(bench.events().contains(&close));
    assert_eq!(bench.read(BURST), None, "not granted yet");
}

#[test]
fn read_connection_may_be_silent_without_requests() {
    let (mut bench, _) = Bench::reading(RepairConfig::default());
    for _ in 0..80 {
        bench.pass(1_000_000);
        bench.deliver(0, Message::Progress(progress(0)));
        bench.input(RepairInput::Timeout);
    }
    assert!(bench.core.peers.contains_key(&PeerId(1)));
    bench.publish(1);
    bench.repair(1, 1, 1);
    let got = bench.take(1);
    assert!(matches!(&got[..], [Got::Rejected(rejected)] if rejected.code == RejectCode::Protocol));
    assert_eq!(bench.counters.nacked.get(), 0);
}

#[test]
fn rings_of_a_session_have_separate_grants_and_counts() {
    let (mut core, _rings) = core_of(2);
    let now = Now::default();
    let granted = |core: &mut RepairCore| {
        let (mut grants, mut session, mut out) = (Vec::new(), 0, Vec::new());
        while core.poll_transmit(now, &mut out).is_some() {}
        let mut frames = &out[..];
        while !frames.is_empty() {
            let read = Message::read(frames, BODY_LEN_MAX_TO_SUBSCRIBER).unwrap();
            let (channel, message, len) = read.unwrap();
            frames = &frames[len..];
            match message {
                Message::Grant(grant) => {
                    grants.push((channel.0, grant.ring.address, grant.tokens));
                }
                Message::Welcome(welcome) => session = welcome.session,
                _ => {}
            }
        }
        (grants, session)
    };
    // Another order than the publisher's.
    core.handle(
        now,
        RepairInput::Connected(PeerId(0), Carrier::Verbs, ORIGIN),
    );
    let join = Message::Join(join_all([1, 0].into_iter()));
    core.handle(now, RepairInput::Message(PeerId(0), ChannelId(0), &join));
    let (_, session) = granted(&mut core);
    core.handle(
        now,
        RepairInput::Connected(PeerId(1), Carrier::Verbs, ORIGIN),
    );
    let join = Message::Join(reader(session, 1));
    core.handle(now, RepairInput::Message(PeerId(1), ChannelId(0), &join));
    granted(&mut core);
    const EACH: u64 = (512 << 10) / 8;
    for channel in [0_u16, 1] {
        let address = 0x1000 * (1 + u64::from(channel));
        let ring = RemoteAccess { address, ..RING };
        assert!(core.grant(now, PeerId(1), ChannelId(channel), ring));
        let (grants, _) = granted(&mut core);
        assert_eq!(grants, [(channel, address, EACH)]);
    }
    for channel in [0_u16, 1] {
        let used = Progress {
            read_bytes: EACH,
            ..progress(0)
        };
        core.handle(
            now,
            RepairInput::Message(PeerId(0), ChannelId(channel), &Message::Progress(used)),
        );
        let (grants, _) = granted(&mut core);
        let address = 0x1000 * (1 + u64::from(channel));
        assert_eq!(grants, [(channel, address, 2 * EACH)]);
    }
}
