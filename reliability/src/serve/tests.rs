//! The repair service as its peers see it, over a ring that the test writes.

mod cursors;
mod epochs;
mod fairness;
mod keys;
mod read_grant;
mod standby;

use rand::{RngExt, SeedableRng};
use rand_chacha::rand_core::Rng as _;
use rand_chacha::{ChaCha8Rng, ChaCha20Rng};

use super::*;
use crate::control::{
    Announced, BODY_LEN_MAX_TO_SUBSCRIBER, ChannelName, FanOutOffer, Grant, Join, JoinChannel,
    MirrorRefused, NackClass, Progress, Purpose, RefusalReason, Refused, Start, Status, Welcome,
};
use crate::publish::HeartbeatConfig;
use crate::record::{MboMsg, RecordBatch};
use crate::ring::{Geometry, HeapMemory, RingIdentity, RingWriter, Seal};
use crate::serve::coalesce::LOGGED_MAX;
use crate::serve::events::NEWS_MAX;
use crate::types::{
    ConfigHash, Epoch, FanOutId, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use crate::wire::{CrcVerdict, Datagram, HEADER_LEN, Header, Kind, PublisherState};

/// The secret for session numbers.
const SECRET: [u8; 32] = [42; 32];
/// The origin of connections, where it does not matter.
const ORIGIN: PeerOrigin = PeerOrigin::V4(std::net::Ipv4Addr::LOCALHOST);
const CHANNEL: ChannelId = ChannelId(4);
const EPOCH: Epoch = Epoch(9);
/// Length of a test datagram in its frame, in bytes.
const FRAME: u64 = (FRAME_HEAD + HEADER_LEN + 56) as u64;
const FRAME_HEAD: usize = FRAME_HEAD_LEN;

/// An owned message to a peer.
#[derive(Clone, Debug, PartialEq)]
enum Got {
    Welcome(Welcome),
    Rejected(Rejected),
    Datagram(Header),
    Refused(Refused),
    Status(Status),
    Grant(Grant),
    MirrorRefused(MirrorRefused),
    Key(Announced),
}

struct Bench {
    core: RepairCore,
    ring: RingWriter,
    counters: Arc<RepairCounters>,
    now: Now,
}

/// Returns an empty ring with slots of 1024 bytes.
fn ring_of(channel: ChannelId, fan_outs: u8, slots: u64, first: u64) -> RingWriter {
    let geometry = Geometry::new(1024, slots).unwrap();
    let identity = RingIdentity {
        channel,
        epoch: EPOCH,
        config_hash: ConfigHash(3),
        boot_id: [0; 16],
        fan_outs,
        first_sequence: Sequence(first),
        first_record: RecordNumber(1),
    };
    let memory = Arc::new(HeapMemory::new(geometry));
    RingWriter::create(memory, geometry, identity).unwrap()
}

impl Bench {
    fn new(config: RepairConfig, slots: u64, first: u64) -> Self {
        let ring = ring_of(CHANNEL, 1, slots, first);
        let counters = Arc::new(RepairCounters::default());
        let info = ChannelInfo {
            name: "equities".into(),
            fan_outs: vec![FanOutOffer::Udp { lines: Vec::new() }],
            directory: vec![Instrument {
                id: 1,
                symbol: "AAPL".into(),
            }],
            heartbeat: HeartbeatConfig::default(),
        };
        let now = Now {
            monotonic: Nanos::from_secs(100),
            utc: Nanos::from_secs(1_700_000_000),
        };
        assert_eq!(config.check(), Ok(()));
        let core = RepairCore::new(
            config,
            "pub".into(),
            vec![(info, ring.reader(), counters.clone())],
            Arc::default(),
            SECRET,
            now,
        );
        Self {
            core,
            ring,
            counters,
            now,
        }
    }

    fn with_peers(config: RepairConfig, slots: u64, peers: u64) -> Self {
        let mut bench = Self::new(config, slots, 1);
        for peer in 0..peers {
            bench.join(peer);
        }
        bench
    }

    fn pass(&mut self, us: u64) {
        self.now.monotonic = self.now.monotonic.after(Nanos::from_us(us));
        self.now.utc = self.now.utc.after(Nanos::from_us(us));
    }

    /// Seals and sends this many datagrams of one record.
    fn publish(&mut self, count: u64) {
        let mut batch = RecordBatch::default();
        batch.put(&MboMsg::default());
        for _ in 0..count {
            self.ring.open().unwrap();
            self.ring.append(batch.bytes()).unwrap();
            self.seal(Kind::Data, 1);
        }
    }

    fn seal(&mut self, kind: Kind, count: u16) {
        let sequence = self.seal_unsent(kind, count);
        self.ring.set_sent(FanOutId(0), sequence);
    }

    fn seal_unsent(&mut self, kind: Kind, count: u16) -> Sequence {
        let seal = Seal {
            kind,
            count,
            source: SourceId(1),
            source_position: SourcePosition(0),
            sent_at: self.now.utc,
            flags: 0,
        };
        self.ring.seal(seal).unwrap()
    }

    fn connect(&mut self, peer: u64, join: Join) -> Vec<Got> {
        self.input(RepairInput::Connected(PeerId(peer), Carrier::Verbs, ORIGIN));
        self.deliver(peer, Message::Join(join));
        self.take(peer)
    }

    fn join(&mut self, peer: u64) -> Welcome {
        match self.connect(peer, join("equities")).remove(0) {
            Got::Welcome(welcome) => welcome,
            got => panic!("{got:?}"),
        }
    }

    fn input(&mut self, input: RepairInput<'_>) -> usize {
        self.core.handle(self.now, input)
    }

    fn deliver(&mut self, peer: u64, message: Message<'_>) {
        self.input(RepairInput::Message(PeerId(peer), CHANNEL, &message));
    }

    fn nack(&mut self, peer: u64, class: NackClass, ranges: &[(u64, u64)]) {
        let ranges = ranges.iter().map(|(first, last)| run(*first, *last));
        let nack = Message::Nack {
            epoch: EPOCH,
            class,
            ranges: ranges.collect(),
        };
        self.deliver(peer, nack);
    }

    fn repair(&mut self, peer: u64, first: u64, last: u64) {
        self.nack(peer, NackClass::Repair, &[(first, last)]);
    }

    /// Returns all output available now; `None` is the group.
    fn drain(&mut self) -> Vec<(Option<u64>, Got)> {
        let mut got = Vec::new();
        let mut out = Vec::new();
        while let Some(destination) = self.core.poll_transmit(self.now, &mut out) {
            let to = match destination {
                Destination::Peer(peer) => Some(peer.0),
                Destination::Multicast(channel) => {
                    assert_eq!(channel, CHANNEL);
                    None
                }
            };
            let mut bytes = &out[..];
            if to.is_none() {
                got.push((None, Got::Datagram(retransmitted(bytes))));
                bytes = &[];
            }
            while !bytes.is_empty() {
                let (_, message, len) = Message::read(bytes, BODY_LEN_MAX_TO_SUBSCRIBER)
                    .unwrap()
                    .expect("frames are whole");
                bytes = &bytes[len..];
                got.push((
                    to,
                    match message {
                        Message::Welcome(welcome) => Got::Welcome(welcome),
                        Message::Rejected(rejected) => Got::Rejected(rejected),
                        Message::Datagram(bytes) => Got::Datagram(retransmitted(bytes)),
                        Message::Refused(refused) => Got::Refused(refused),
                        Message::Status(status) => Got::Status(status),
                        Message::Grant(grant) => Got::Grant(grant),
                        Message::MirrorRefused(refused) => Got::MirrorRefused(refused),
                        Message::Key(announced) => Got::Key(announced),
                        message => panic!("{message:?}"),
                    },
                ));
            }
            out.clear();
        }
        self.check();
        got
    }

    fn take(&mut self, peer: u64) -> Vec<Got> {
        let all = self.drain().into_iter();
        all.filter(|(to, _)| *to == Some(peer))
            .map(|(_, got)| got)
            .collect()
    }

    fn events(&mut self) -> Vec<RepairEvent> {
        std::iter::from_fn(|| self.core.poll()).collect()
    }

    fn check(&self) {
        let c = &self.counters;
        let refused = [
            &c.refused_window,
            &c.refused_ahead,
            &c.refused_budget,
            &c.refused_too_slow,
            &c.refused_epoch,
            &c.refused_malformed,
        ];
        let refused: u64 = refused.iter().map(|c| c.get()).sum();
        let sum = c.answered.get()
            + c.answered_by_multicast.get()
            + refused
            + c.repairs_cancelled.get()
            + c.pending.get();
        assert_eq!(c.nacked.get(), sum, "the counters balance");
    }
}

fn run(first: u64, last: u64) -> SequenceRange {
    SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
}

fn join(channel: &str) -> Join {
    Join {
        authentication: true,
        name: "risk".into(),
        wire_versions: vec![1, 2],
        purpose: Purpose::Repair,
        channels: vec![JoinChannel {
            channel: ChannelName::Name(channel.into()),
            start: Start::Live,
            confirmed_epoch: Epoch::NONE,
        }],
    }
}

fn further(session: u64) -> Join {
    Join {
        authentication: true,
        purpose: Purpose::Nack { session },
        ..replay(session)
    }
}

fn replay(session: u64) -> Join {
    Join {
        authentication: true,
        purpose: Purpose::Replay { session },
        channels: Vec::new(),
        ..join("")
    }
}

fn retransmitted(bytes: &[u8]) -> Header {
    let datagram = Datagram::parse(bytes).unwrap();
    assert_eq!(datagram.verdict(), CrcVerdict::Good);
    let relay = crate::wire::relay_flags::RETRANSMITTED;
    assert_eq!(datagram.header().relay, relay);
    *datagram.header()
}

fn sequences(got: &[Got]) -> Vec<u64> {
    let of = |got: &Got| match got {
        Got::Datagram(header) => Some(header.sequence.0),
        _ => None,
    };
    got.iter().filter_map(of).collect()
}

fn refusals(got: &[Got]) -> Vec<(RefusalReason, SequenceRange)> {
    let of = |got: &Got| match got {
        Got::Refused(refused) => Some((refused.reason, refused.range)),
        _ => None,
    };
    got.iter().filter_map(of).collect()
}

/// Returns the rejection that the peer received before its connection was closed.
fn rejection(bench: &mut Bench, peer: u64, got: &[Got]) -> Rejected {
    let Some(Got::Rejected(rejected)) = got.last() else {
        panic!("{got:?}");
    };
    let closed = bench.events().into_iter().any(|event| {
        event
            == RepairEvent::Close {
                peer: PeerId(peer),
                reason: Some(rejected.clone()),
            }
    });
    assert!(closed, "told first, then closed");
    rejected.clone()
}

#[test]
fn join_offer_describes_ring_contents() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    let offer = bench.join(0).channels.remove(0);
    assert_eq!((offer.newest, offer.oldest), (Sequence(0), Sequence(1)));
    assert_eq!(
        (offer.next_record, offer.oldest_record),
        (RecordNumber(1), RecordNumber(1))
    );
    bench.publish(10);
    let offer = bench.join(1).channels.remove(0);
    assert_eq!((offer.newest, offer.oldest), (Sequence(10), Sequence(1)));
    assert_eq!(
        (offer.next_record, offer.oldest_record),
        (RecordNumber(11), RecordNumber(1))
    );
    assert_eq!(
        (offer.epoch, offer.slot_len, offer.slots),
        (EPOCH, 1024, 64)
    );
    assert_eq!(
        (offer.config_hash, offer.directory.len()),
        (ConfigHash(3), 1)
    );
    // A full ring reserves a guard of 16 slots before those that are overwritten next.
    bench.publish(190);
    bench.core.set_directory(CHANNEL, Vec::new());
    let offer = bench.join(2).channels.remove(0);
    assert_eq!((offer.newest, offer.oldest), (Sequence(200), Sequence(153)));
    assert_eq!(
        (offer.oldest_record, offer.directory.len()),
        (RecordNumber(153), 0)
    );
    assert_eq!(bench.core.group(CHANNEL), (3, 0));
    assert_eq!(bench.counters.joins.get(), 3);
    bench.repair(2, 153, 153);
    assert_eq!(
        sequences(&bench.take(2)),
        [153],
        "what is offered can be had"
    );
}

#[test]
fn newest_is_what_was_sent_and_not_what_is_sealed() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    bench.publish(10);
    bench.ring.set_sent(FanOutId(0), Sequence(7));
    let offer = bench.join(0).channels.remove(0);
    assert_eq!(
        (offer.newest, offer.next_record),
        (Sequence(7), RecordNumber(8))
    );
    bench.repair(0, 7, 10);
    let got = bench.take(0);
    assert_eq!(sequences(&got), [7]);
    assert_eq!(refusals(&got), [(RefusalReason::Ahead, run(8, 10))]);
}

#[test]
fn impossible_join_is_rejected_with_remedy() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    type Change = fn(&mut Join);
    let cases: [(RejectCode, &str, Change); 8] = [
        (RejectCode::WireVersion, "version 1", |j| {
            j.wire_versions = vec![7];
        }),
        (RejectCode::WireVersion, "[]", |j| j.wire_versions.clear()),
        (RejectCode::UnknownChannel, "equities (4)", |j| {
            j.channels[0].channel = ChannelName::Id(ChannelId(77));
        }),
        (RejectCode::Protocol, "65 bytes", |j| {
            j.name = "x".repeat(65);
        }),
        (RejectCode::Protocol, "no channel", |j| j.channels.clear()),
        (RejectCode::Protocol, "twice", |j| {
            let mut again = j.channels[0].clone();
            again.channel = ChannelName::Id(CHANNEL);
            j.channels.push(again);
        }),
        (RejectCode::Protocol, "at most 256", |j| {
            j.channels = vec![j.channels[0].clone(); 257];
        }),
        (RejectCode::UnknownSession, "JOIN", |j| *j = replay(1)),
    ];
    for (peer, (code, text, change)) in (0..).zip(cases) {
        let mut wrong = join("equities");
        change(&mut wrong);
        let got = bench.connect(peer, wrong);
        let told = rejection(&mut bench, peer, &got);
        assert_eq!(told.code, code);
        assert!(told.text.contains(text), "{}", told.text);
    }
    assert_eq!(bench.core.counters.joins_rejected.get(), 8);
    assert_eq!(bench.core.counters.connected.get(), 0);
    assert_eq!(bench.core.group(CHANNEL).0, 0);
}

#[test]
fn connection_beyond_limit_is_rejected_as_too_many() {
    let config = RepairConfig {
        peers_max: 2,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 64, 2);
    let got = bench.connect(9, join("equities"));
    let told = rejection(&mut bench, 9, &got);
    assert_eq!(told.code, RejectCode::TooMany);
    assert!(told.retry_after_ms > 0);
    assert_eq!(bench.core.counters.joins_rejected.get(), 1);
    bench.input(RepairInput::Disconnected(PeerId(0)));
    bench.join(10);
}

#[test]
fn protocol_breaker_is_closed_and_queue_cancelled() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 5);
    bench.publish(20);
    bench.input(RepairInput::Connected(PeerId(9), Carrier::Verbs, ORIGIN));
    bench.repair(9, 1, 2);
    bench.repair(0, 1, 20);
    bench.deliver(0, Message::Join(join("equities")));
    bench.deliver(1, Message::Datagram(&[]));
    bench.input(RepairInput::Malformed(PeerId(2), "a body of 4 GB"));
    bench.input(RepairInput::Message(
        PeerId(3),
        ChannelId(99),
        &Message::Nack {
            epoch: EPOCH,
            class: NackClass::Repair,
            ranges: vec![run(1, 1)],
        },
    ));
    let got = bench.drain();
    assert_eq!(got.len(), 5, "each is told, nothing else: {got:?}");
    for (_, got) in got {
        assert!(matches!(got, Got::Rejected(r) if r.code == RejectCode::Protocol));
    }
    assert_eq!(bench.counters.repairs_cancelled.get(), 20);
    assert_eq!(bench.core.counters.protocol_errors.get(), 5);
    assert_eq!(bench.core.group(CHANNEL).0, 1);
    bench.repair(0, 1, 1);
    assert_eq!(bench.drain(), [], "who is gone is not heard");
}

#[test]
fn nack_is_answered_and_slot_unchanged() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(20);
    let before = bench.ring.slot(Sequence(5)).unwrap().to_vec();
    bench.nack(0, NackClass::Repair, &[(5, 6), (9, 9)]);
    assert_eq!(bench.counters.pending.get(), 3);
    let got = bench.take(0);
    assert_eq!(sequences(&got), [5, 6, 9]);
    assert_eq!(bench.ring.slot(Sequence(5)).unwrap(), before);
    assert_eq!(Datagram::parse(&before).unwrap().header().relay, 0);
    assert_eq!(bench.counters.answered.get(), 3);
    assert_eq!(bench.counters.repair_bytes.get(), 3 * FRAME);
}

#[test]
fn unavailable_range_is_refused_with_reason_and_oldest() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(200);
    bench.repair(0, 100, 210);
    let got = bench.take(0);
    assert_eq!(
        refusals(&got),
        [
            (RefusalReason::Window, run(100, 152)),
            (RefusalReason::Ahead, run(201, 210))
        ]
    );
    assert_eq!(bench.counters.refused_window.get(), 53);
    assert_eq!(bench.counters.refused_ahead.get(), 10);
    assert_eq!(sequences(&got), (153..=200).collect::<Vec<_>>());
    let Got::Refused(refused) = &got[0] else {
        panic!("{got:?}");
    };
    assert_eq!(
        (refused.oldest, refused.oldest_record),
        (Sequence(153), RecordNumber(153))
    );
    for (epoch, first, reason) in [
        (Epoch(8), 160, RefusalReason::Epoch),
        (Epoch(u64::MAX), 160, RefusalReason::Epoch),
        (EPOCH, 0, RefusalReason::Malformed),
    ] {
        let nack = Message::Nack {
            epoch,
            class: NackClass::Repair,
            ranges: vec![run(first, 170)],
        };
        bench.deliver(0, nack);
        let got = bench.take(0);
        assert_eq!(refusals(&got), [(reason, run(first, 170))]);
        assert_eq!(got.len(), 1);
    }
}

#[test]
fn end_datagram_is_repaired_like_data() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(3);
    bench.ring.open().unwrap();
    bench.seal(Kind::End, 0);
    bench.ring.set_state(PublisherState::Ended);
    bench.repair(0, 3, 5);
    let got = bench.take(0);
    assert_eq!(refusals(&got), [(RefusalReason::Ahead, run(5, 5))]);
    let kinds = got.iter().filter_map(|got| match got {
        Got::Datagram(header) => Some((header.sequence.0, header.kind)),
        _ => None,
    });
    assert_eq!(kinds.collect::<Vec<_>>(), [(3, Kind::Data), (4, Kind::End)]);
}

#[test]
fn nacked_slots_overwritten_in_queue_are_refused() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(64);
    bench.repair(0, 30, 50);
    bench.publish(40);
    let got = bench.take(0);
    assert_eq!(refusals(&got), [(RefusalReason::Window, run(30, 50))]);
    bench.publish(10);
    bench.repair(0, 100, 114);
    bench.publish(42);
    let got = bench.take(0);
    assert_eq!(refusals(&got), [(RefusalReason::Window, run(100, 108))]);
    assert_eq!(sequences(&got), (109..=114).collect::<Vec<_>>());
}

#[test]
fn giant_ranges_and_nack_storms_are_bounded() {
    let config = RepairConfig {
        pending_ranges_max: 8,
        repair_bytes_per_s: 1,
        subscriber_bytes_per_s: 1,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 1 << 16, 1);
    bench.publish(1 << 16);
    bench.nack(0, NackClass::Repair, &[(1, u64::MAX)]);
    let oldest = bench.core.channels[0].floor().0;
    let held = (1 << 16) - oldest + 1;
    assert_eq!(bench.counters.pending.get(), held);
    for _ in 0..10 {
        bench.nack(0, NackClass::Repair, &[(oldest, 1 << 16); 256]);
    }
    assert_eq!(bench.counters.nacks_duplicate.get(), 2_560 * held);
    assert_eq!(
        bench.counters.pending.get(),
        held,
        "asked for twice is answered once"
    );
    bench.check();
    assert_eq!(
        bench.core.peers[&PeerId(0)].output.unread(),
        2 * (FRAME_HEAD + 48)
    );
    // Disjoint runs beyond the bound.
    let mut other = Bench::with_peers(config, 1 << 16, 1);
    other.publish(1 << 16);
    let every_other: Vec<(u64, u64)> = (0..200).map(|n| (50_000 + 2 * n, 50_000 + 2 * n)).collect();
    other.nack(0, NackClass::Repair, &every_other);
    assert_eq!(other.counters.pending.get(), 8);
    assert_eq!(other.counters.refused_budget.get(), 192);
    let got = other.take(0);
    let told = got.iter().find_map(|got| match got {
        Got::Refused(refused) => Some(refused.retry_after_us),
        _ => None,
    });
    assert_eq!(
        told,
        Some(1_000_000),
        "at one byte a second, try again late"
    );
    assert_eq!(sequences(&got).len(), 8);
}

#[test]
fn false_claim_counts_at_most_ring_slots() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(64);
    for _ in 0..1_000 {
        // Sequences ahead of the stream, the same in an invalid epoch, and an invalid range.
        bench.nack(0, NackClass::Repair, &[(65, u64::MAX); 256]);
        let nack = |epoch, first| Message::Nack {
            epoch,
            class: NackClass::Replay,
            ranges: vec![run(first, u64::MAX); 2],
        };
        bench.deliver(0, nack(Epoch(8), 1));
        bench.deliver(0, nack(EPOCH, 0));
        bench.drain();
    }
    assert_eq!(bench.counters.refused_ahead.get(), 1_000 * 256 * 64);
    assert_eq!(bench.counters.refused_epoch.get(), 1_000 * 2 * 64);
    assert_eq!(bench.counters.refused_malformed.get(), 1_000 * 2 * 64);
    assert_eq!(bench.counters.nacked.get(), 1_000 * 260 * 64);
    // A valid request is counted exactly.
    bench.repair(0, 60, 70);
    bench.drain();
    assert_eq!(bench.counters.refused_ahead.get(), 1_000 * 256 * 64 + 6);
    // A counter at its maximum stays there.
    bench.counters.refused_ahead.set(u64::MAX - 1);
    bench.nack(0, NackClass::Repair, &[(65, u64::MAX); 256]);
    assert_eq!(bench.counters.refused_ahead.get(), u64::MAX);
}

#[test]
fn greedy_peer_does_not_starve_another() {
    let config = RepairConfig {
        repair_bytes_per_s: 1_000_000,
        repair_burst_bytes: 10_000,
        subscriber_bytes_per_s: 1_000_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 1 << 14, 2);
    bench.publish(10_000);
    bench.repair(0, 1, 9_000);
    let (mut greedy, mut modest) = (0, 0);
    for _ in 0..100 {
        bench.repair(1, 9_900, 9_902);
        bench.pass(1_000);
        for (to, _) in bench.drain() {
            match to {
                Some(0) => greedy += 1,
                _ => modest += 1,
            }
        }
    }
    assert_eq!(modest, 300, "it got all it asked for, each time");
    assert!(greedy > 300, "and the rest went to the other: {greedy}");
    let bytes = bench.counters.repair_bytes.get();
    assert!(bytes <= 1_000_000 / 10 + 10_000, "{bytes} bytes in 100 ms");
}

#[test]
fn greedy_requester_is_refused_by_budget_alone() {
    let config = RepairConfig {
        pending_ranges_max: 8,
        subscriber_bytes_per_s: 1,
        subscriber_burst_bytes: BURST_BYTES_MIN,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 1 << 14, 2);
    bench.publish(10_000);
    bench.repair(0, 1, 1_000);
    bench.drain();
    assert!(bench.counters.pending.get() > 0, "its budget is used up");
    for round in 1..=10 {
        let ever_more: Vec<(u64, u64)> = (0..100)
            .map(|n| 1_000 + round * 300 + 2 * n)
            .map(|sequence| (sequence, sequence))
            .collect();
        bench.nack(0, NackClass::Repair, &ever_more);
        let refused = refusals(&bench.take(0));
        let expected = if round == 1 { 93 } else { 100 };
        assert_eq!(refused.len(), expected, "seven runs wait beside the first");
        assert!(refused.iter().all(|(why, _)| *why == RefusalReason::Budget));
    }
    assert_eq!(bench.counters.refused_budget.get(), 993);
    bench.repair(1, 9_900, 9_902);
    assert_eq!(sequences(&bench.take(1)), [9_900, 9_901, 9_902]);
}

#[test]
fn subscriber_repairs_stay_within_its_own_budget() {
    let config = RepairConfig {
        subscriber_bytes_per_s: 100_000,
        subscriber_burst_bytes: 10_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 1 << 14, 2);
    bench.publish(10_000);
    bench.repair(0, 1, 9_000);
    let start = bench.now.monotonic;
    let mut frames = 0;
    while bench.now.monotonic.since(start) < Nanos::from_secs(1) {
        frames += bench.take(0).len() as u64;
        let next = bench.core.poll_timeout().unwrap();
        assert!(next > bench.now.monotonic, "it never asks to spin");
        bench.pass(next.since(bench.now.monotonic).0.div_ceil(1_000));
        bench.input(RepairInput::Timeout);
    }
    let most = 110_000 / FRAME;
    // Each send requires credit for a whole slot, so the budget may not be used up entirely.
    assert!((most - 9..=most).contains(&frames), "{frames} of {most}");
    bench.repair(1, 1, 100);
    let burst = (10_000 - (FRAME_HEAD as u64 + 1024)) / FRAME + 1;
    assert_eq!(bench.take(1).len() as u64, burst, "the other has its own");
}

#[test]
fn changed_budgets_hold_for_old_and_new_sessions() {
    let config = RepairConfig {
        subscriber_bytes_per_s: 1_000,
        subscriber_burst_bytes: 10_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 1 << 14, 1);
    bench.publish(10_000);
    let burst = (10_000 - (FRAME_HEAD as u64 + 1024)) / FRAME + 1;
    bench.repair(0, 1, 9_000);
    assert_eq!(bench.take(0).len() as u64, burst);
    let faster = RepairConfig {
        subscriber_bytes_per_s: 1_000_000,
        subscriber_burst_bytes: 20_000,
        peers_max: 1,
        ..config
    };
    bench.core.set_budgets(bench.now, &faster);
    bench.pass(10_000);
    bench.input(RepairInput::Timeout);
    let most = 10_000 / FRAME;
    let frames = bench.take(0).len() as u64;
    assert!((most - 9..=most).contains(&frames), "{frames} of {most}");
    // Another setting stays: a second subscriber may still join.
    bench.join(1);
    bench.repair(1, 1, 9_000);
    let burst = (20_000 - (FRAME_HEAD as u64 + 1024)) / FRAME + 1;
    assert_eq!(bench.take(1).len() as u64, burst, "a session of its own");
}

#[test]
fn repair_wanted_by_many_is_multicast_once() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 16);
    bench.publish(20);
    for peer in 0..16 {
        bench.repair(peer, 5, 6);
    }
    let got = bench.drain();
    let to: Vec<Option<u64>> = got.iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [None, None], "one of each for all");
    assert_eq!(bench.counters.answered_by_multicast.get(), 32);
    assert_eq!(
        bench.counters.multicast_repair_bytes.get(),
        2 * (FRAME - FRAME_HEAD as u64)
    );
    // A peer that did not receive it asks again.
    bench.pass(5);
    bench.repair(3, 5, 5);
    assert_eq!(bench.drain(), [], "it may still be on its way");
    bench.pass(20);
    bench.repair(3, 5, 5);
    assert_eq!(sequences(&bench.take(3)), [5]);
}

#[test]
fn multicast_repair_is_charged_to_no_subscriber() {
    let config = RepairConfig {
        subscriber_bytes_per_s: 1,
        subscriber_burst_bytes: BURST_BYTES_MIN,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 1 << 12, 2);
    bench.publish(3_000);
    // Both budgets are used up. The second peer's last request is what the first one waits for.
    bench.repair(1, 2_001, 3_000);
    bench.repair(0, 1, 1_000);
    let sent = sequences(&bench.take(0));
    assert!(sent.len() < 1_000, "{}", sent.len());
    let next = sent.len() as u64 + 1;
    bench.repair(1, next, next + 1);
    let multicast: Vec<_> = (bench.drain().into_iter())
        .map(|(to, got)| (to, sequences(&[got])))
        .collect();
    assert_eq!(multicast, [(None, vec![next]), (None, vec![next + 1])]);
    assert_eq!(bench.drain(), [], "as before");
}

#[test]
fn long_run_wanted_by_many_is_multicast_once_per_sequence() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 1_024, 80);
    bench.publish(300);
    let mut sent = Vec::new();
    for peer in 0..80 {
        // Request it in parts, as the gaps were found.
        bench.nack(
            peer,
            NackClass::Repair,
            &[(51, 90), (92, 210), (212, 250), (252, 253)],
        );
        sent.extend(bench.drain());
    }
    let to_all = sent.iter().filter(|(to, _)| to.is_none()).count();
    assert_eq!(to_all, 200);
    assert_eq!(sent.len(), 200 * 3, "and to the two who asked before");
    let more = 200 * 80 - 600 + 200;
    assert_eq!(bench.counters.answered_by_multicast.get(), more);
}

/// A multicast answers all waiting peers, however long the budget delays it: a later unicast is useless.
#[test]
fn multicast_repair_answers_waiting_and_late_requests() {
    let config = RepairConfig {
        repair_bytes_per_s: 1_000_000,
        repair_burst_bytes: 10_000,
        subscriber_bytes_per_s: 1_000_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 1_024, 10);
    bench.publish(300);
    for peer in 0..9 {
        bench.repair(peer, 51, 250);
    }
    let mut sent = Vec::new();
    let mut late = Vec::new();
    for _ in 0..10_000 {
        let got = bench.drain();
        for (to, datagram) in got {
            let Got::Datagram(datagram) = datagram else {
                panic!("{datagram:?}")
            };
            // Peer 9, which missed nothing so far, asks just after the multicast.
            let datagram = datagram.sequence.0;
            if to.is_none() && datagram == 60 {
                bench.pass(10);
                bench.repair(9, 60, 60);
                late.push(datagram);
            }
            sent.push((to, datagram));
        }
        bench.pass(20);
    }
    let expected: Vec<_> = (51..=250).map(|sequence| (None, sequence)).collect();
    sent.sort_unstable();
    assert_eq!((sent, late), (expected, vec![60]));
    assert_eq!(bench.counters.pending.get(), 0);
    assert_eq!(bench.counters.answered_by_multicast.get(), 200 * 9 + 1);
}

#[test]
fn repeated_queued_request_is_free() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 8_192, 4);
    bench.publish(6_000);
    // The peer does not read, so its NACK waits. The log has one place for both sequences.
    bench.input(RepairInput::Backlog(PeerId(0), usize::MAX));
    bench.repair(0, 5, 5);
    bench.repair(1, 5 + LOGGED_MAX, 5 + LOGGED_MAX);
    assert_eq!(sequences(&bench.take(1)), [5 + LOGGED_MAX]);
    bench.repair(0, 5, 5);
    bench.repair(2, 5 + LOGGED_MAX, 5 + LOGGED_MAX);
    let got = bench.drain();
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].0, None, "two of four asked for it");
}

#[test]
fn huge_nack_keeps_its_own_beginning() {
    let (first, last) = (1_000, 1_000 + LOGGED_MAX + 999);
    let middle = first + LOGGED_MAX - 500;
    for runs in [&[(first, last)][..], &[(first, middle), (middle + 1, last)]] {
        let mut bench = Bench::with_peers(RepairConfig::default(), 8_192, 80);
        bench.publish(7_000);
        for peer in 0..3 {
            bench.nack(peer, NackClass::Repair, runs);
        }
        let sent = bench.drain();
        let to_all = sent.iter().filter(|(to, _)| to.is_none()).count() as u64;
        assert_eq!(to_all, LOGGED_MAX, "{runs:?}");
    }
}

#[test]
fn repeated_nack_counts_only_new_part() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 80);
    bench.publish(30);
    // The peer does not read, so its requests wait.
    bench.input(RepairInput::Backlog(PeerId(0), usize::MAX));
    bench.repair(0, 4, 6);
    bench.repair(0, 3, 10);
    bench.repair(1, 7, 10);
    assert_eq!(sequences(&bench.take(1)), [7, 8, 9, 10]);
    bench.repair(2, 7, 10);
    let to: Vec<Option<u64>> = bench.drain().iter().map(|(to, _)| *to).collect();
    assert_eq!(to, [None; 4], "three asked for each");
}

#[test]
fn distant_missed_runs_are_each_multicast_once() {
    for apart in [64, 1_024, 2_048, 4_032] {
        let mut bench = Bench::with_peers(RepairConfig::default(), 8_192, 80);
        bench.publish(6_000);
        for peer in 0..20 {
            let runs = [(100, 163), (100 + apart, 163 + apart)];
            bench.nack(peer, NackClass::Repair, &runs);
        }
        let sent = bench.drain();
        assert_eq!(sent.len(), 128, "{apart} apart");
        assert!(sent.iter().all(|(to, _)| to.is_none()), "{apart} apart");
    }
}

#[test]
fn lone_loss_is_answered_at_once_third_makes_multicast() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 80);
    bench.publish(20);
    assert_eq!(bench.core.group(CHANNEL), (80, 25));
    bench.repair(0, 5, 5);
    assert_eq!(sequences(&bench.take(0)), [5]);
    bench.repair(1, 6, 8);
    assert_eq!(sequences(&bench.take(1)), [6, 7, 8]);
    bench.repair(2, 6, 7);
    assert_eq!(sequences(&bench.take(2)), [6, 7]);
    bench.repair(3, 6, 6);
    bench.repair(4, 6, 6);
    let got = bench.drain();
    assert_eq!(got.len(), 1, "one answer for both");
    assert_eq!(got[0].0, None);
}

#[test]
fn crowd_holds_off_longer_until_quiet() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 80);
    bench.publish(20);
    bench.pass(2_000);
    for peer in 0..40 {
        bench.repair(peer, 5, 5);
    }
    assert_eq!(bench.core.group(CHANNEL), (80, 50));
    bench.pass(1_000_000);
    bench.input(RepairInput::Timeout);
    assert_eq!(bench.core.group(CHANNEL), (80, 25));
}

#[test]
fn unread_peer_gets_no_more_and_is_closed() {
    let config = RepairConfig {
        backlog_pause_bytes: 10_000,
        backlog_close_bytes: 20_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 64, 2);
    bench.publish(20);
    bench.input(RepairInput::Backlog(PeerId(0), 10_000));
    bench.repair(0, 1, 3);
    bench.repair(1, 4, 6);
    assert_eq!(sequences(&bench.take(1)), [4, 5, 6]);
    assert_eq!(bench.counters.pending.get(), 3);
    bench.input(RepairInput::Backlog(PeerId(0), 9_999));
    assert_eq!(sequences(&bench.take(0)), [1, 2, 3]);
    bench.input(RepairInput::Backlog(PeerId(0), 19_900));
    bench.repair(0, 50, 60);
    bench.repair(0, 50, 60);
    let got = bench.take(0);
    assert_eq!(rejection(&mut bench, 0, &got).code, RejectCode::Overflow);
    assert_eq!(bench.core.counters.overflow_disconnects.get(), 1);
    bench.repair(1, 7, 7);
    assert_eq!(sequences(&bench.take(1)), [7]);
}

#[test]
fn in_flight_repair_is_not_sent_again() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 2);
    bench.publish(40);
    let left = |bench: &mut Bench, bytes| bench.input(RepairInput::InFlight(PeerId(0), bytes));
    left(&mut bench, 0);
    bench.repair(0, 1, 3);
    assert_eq!(sequences(&bench.take(0)), [1, 2, 3]);
    // No answer has arrived.
    for again in 1..=4 {
        left(&mut bench, usize::MAX);
        bench.repair(0, 1, 3);
        assert!(sequences(&bench.take(0)).is_empty());
        assert_eq!(bench.counters.nacks_duplicate.get(), 3 * again);
    }
    bench.nack(0, NackClass::Replay, &[(2, 5)]);
    assert_eq!(sequences(&bench.take(0)), [4, 5]);
    assert_eq!(bench.counters.nacks_duplicate.get(), 14);
    // The answers went to another connection.
    bench.pass(1_000);
    bench.repair(1, 1, 3);
    assert_eq!(sequences(&bench.take(1)), [1, 2, 3]);
    // The answers have arrived, so a peer that still asks did not get them.
    bench.pass(1_000);
    left(&mut bench, 0);
    bench.repair(0, 2, 4);
    assert_eq!(sequences(&bench.take(0)), [2, 3, 4]);
    assert_eq!(bench.counters.nacked.get(), 11);
    bench.check();
}

#[test]
fn progress_is_answered_by_status_and_counts_towards_the_end() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 2);
    bench.publish(20);
    let progress = |sequence| {
        Message::Progress(Progress {
            epoch: EPOCH,
            sequence: Sequence(sequence),
            lost_records: 0,
            heard: Sequence(sequence),
            sent_at: Nanos(777),
            read_bytes: 0,
        })
    };
    bench.deliver(0, progress(20));
    let got = bench.take(0);
    let [Got::Status(status)] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!(
        (status.newest, status.next_record),
        (Sequence(20), RecordNumber(21))
    );
    assert_eq!(
        (status.echo, status.answered_at),
        (Nanos(777), bench.now.utc)
    );
    assert!(!status.ended && !bench.core.all_reached_end());
    bench.ring.open().unwrap();
    bench.seal(Kind::End, 0);
    bench.ring.set_state(PublisherState::Ended);
    assert!(!bench.core.all_reached_end());
    bench.deliver(0, progress(21));
    assert!(matches!(&bench.take(0)[..], [Got::Status(s)] if s.ended));
    assert!(!bench.core.all_reached_end(), "the other has not");
    bench.deliver(1, progress(20));
    assert!(!bench.core.all_reached_end());
    bench.deliver(1, progress(21));
    assert!(!bench.core.all_reached_end(), "no STATUS has told it");
    bench.take(1);
    assert!(bench.core.all_reached_end());
    bench.join(5);
    assert!(!bench.core.all_reached_end(), "one that has just come");
    bench.deliver(5, Message::Leave);
    assert!(bench.core.all_reached_end());
    // A peer whose connection breaks before END is expected back until it has reached END.
    let named = |name: &str| Join {
        authentication: true,
        name: name.into(),
        ..join("equities")
    };
    bench.connect(6, named("six"));
    bench.input(RepairInput::Disconnected(PeerId(6)));
    let waits = |bench: &Bench| (bench.core.short_of_end(), bench.core.all_reached_end());
    assert_eq!(waits(&bench), (1, false));
    bench.connect(7, named("seven"));
    assert_eq!(waits(&bench), (2, false), "that is somebody else");
    bench.input(RepairInput::Disconnected(PeerId(7)));
    bench.connect(8, named("six"));
    bench.deliver(8, progress(21));
    bench.take(8);
    assert_eq!(waits(&bench), (1, false));
    // A peer that reached END is not awaited. A peer that does not return is given up.
    bench.input(RepairInput::Disconnected(PeerId(8)));
    bench.input(RepairInput::Disconnected(PeerId(0)));
    assert_eq!(waits(&bench), (1, false));
    bench.pass(4_800_000);
    bench.input(RepairInput::Timeout);
    assert_eq!(waits(&bench), (1, false), "it may come yet");
    bench.pass(400_000);
    bench.input(RepairInput::Timeout);
    assert_eq!(waits(&bench), (0, true));
    // A peer that reconnected before the end of its first connection was noticed is not awaited twice.
    bench.connect(9, named("nine"));
    bench.connect(10, named("nine"));
    bench.input(RepairInput::Disconnected(PeerId(9)));
    assert_eq!(waits(&bench), (1, false));
    bench.deliver(10, progress(21));
    bench.take(10);
    assert_eq!(waits(&bench), (0, true));
    let left = bench.events().into_iter().any(|e| {
        matches!(
            e,
            RepairEvent::Left {
                peer: PeerId(5),
                on_purpose: true,
                ..
            }
        )
    });
    assert!(left);
}

#[test]
fn full_link_answers_all_requests_with_one_status() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(20);
    let progress = |sent_at| {
        Message::Progress(Progress {
            epoch: EPOCH,
            sequence: Sequence(1),
            lost_records: 0,
            heard: Sequence(1),
            sent_at: Nanos(sent_at),
            read_bytes: 0,
        })
    };
    let pause = RepairConfig::default().backlog_pause_bytes;
    bench.input(RepairInput::Backlog(PeerId(0), pause));
    // Answers to each would exceed the unsent bytes allowed.
    for sent_at in 0..100_000 {
        bench.deliver(0, progress(sent_at));
        assert_eq!(bench.take(0), []);
    }
    bench.nack(0, NackClass::Repair, &[(2, 3)]);
    bench.input(RepairInput::Backlog(PeerId(0), pause - 1));
    let got = bench.take(0);
    assert_eq!(sequences(&got), [2, 3]);
    let status = got.iter().filter_map(|got| match got {
        Got::Status(status) => Some(status),
        _ => None,
    });
    let [status] = status.collect::<Vec<_>>()[..] else {
        panic!("{got:?}");
    };
    assert_eq!(status.echo, Nanos(99_999));
    bench.deliver(0, progress(7));
    assert!(matches!(&bench.take(0)[..], [Got::Status(s)] if s.echo == Nanos(7)));
}

#[test]
fn end_is_not_reached_before_a_status_confirms_it() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(20);
    bench.ring.open().unwrap();
    bench.seal(Kind::End, 0);
    let reached = || {
        Message::Progress(Progress {
            epoch: EPOCH,
            sequence: Sequence(21),
            lost_records: 0,
            heard: Sequence(21),
            sent_at: Nanos(1),
            read_bytes: 0,
        })
    };
    // END is sent, received and settled before the control page has the ended state.
    bench.deliver(0, reached());
    assert!(matches!(&bench.take(0)[..], [Got::Status(s)] if !s.ended));
    bench.ring.set_state(PublisherState::Ended);
    assert!(!bench.core.all_reached_end(), "it would wait for us");
    bench.deliver(0, reached());
    assert!(matches!(&bench.take(0)[..], [Got::Status(s)] if s.ended));
    assert!(bench.core.all_reached_end());
}

#[test]
fn slow_subscriber_is_reported_once() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(40);
    bench.events();
    for sequence in [1, 2, 3] {
        bench.deliver(
            0,
            Message::Progress(Progress {
                epoch: EPOCH,
                sequence: Sequence(sequence),
                lost_records: 0,
                heard: Sequence(40),
                sent_at: Nanos(0),
                read_bytes: 0,
            }),
        );
    }
    let events = bench.events();
    assert!(
        matches!(
            &events[..],
            [RepairEvent::SlowSubscriber { behind: 39, .. }]
        ),
        "{events:?}"
    );
}

#[test]
fn higher_epoch_claim_is_counted_and_ignored() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    let mut claim = join("equities");
    claim.channels[0].confirmed_epoch = Epoch(u64::MAX);
    let got = bench.connect(0, claim);
    assert!(matches!(&got[0], Got::Welcome(w) if w.channels[0].epoch == EPOCH));
    assert_eq!(bench.counters.higher_epoch_claims.get(), 1);
    assert!(matches!(
        bench.events()[0],
        RepairEvent::HigherEpochClaimed { .. }
    ));
}

#[test]
fn replay_runs_on_its_own_connection_and_ends_with_the_session() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    bench.publish(20);
    let session = bench.join(0).session;
    bench.nack(0, NackClass::Replay, &[(1, 2)]);
    assert_eq!(sequences(&bench.take(0)), [1, 2], "there is no other yet");
    let got = bench.connect(1, replay(session));
    assert!(matches!(&got[..], [Got::Welcome(w)] if w.session == session));
    bench.nack(1, NackClass::Replay, &[(3, 4)]);
    bench.nack(1, NackClass::Repair, &[(5, 5)]);
    assert_eq!(sequences(&bench.take(1)), [3, 4, 5]);
    assert_eq!(
        bench.counters.replay_bytes.get(),
        5 * FRAME,
        "all of it is replay"
    );
    assert_eq!(bench.counters.repair_bytes.get(), 0);
    bench.nack(0, NackClass::Replay, &[(6, 6)]);
    assert_eq!(
        refusals(&bench.take(0)),
        [(RefusalReason::Budget, run(6, 6))]
    );
    let got = bench.connect(2, replay(session));
    assert!(
        matches!(&got[..], [Got::Welcome(_)]),
        "a later one takes the place of one that may be half open"
    );
    let gone =
        |event: &RepairEvent| matches!(event, RepairEvent::Close { peer, .. } if peer.0 == 1);
    assert!(bench.events().iter().any(gone));
    bench.nack(2, NackClass::Replay, &[(7, 7)]);
    assert_eq!(sequences(&bench.take(2)), [7]);
    assert_eq!(
        bench.core.group(CHANNEL).0,
        1,
        "a replay connection is no subscriber"
    );
    bench.input(RepairInput::Disconnected(PeerId(1)));
    bench.connect(3, replay(session));
    bench.input(RepairInput::Disconnected(PeerId(0)));
    let got = bench.take(3);
    let told = rejection(&mut bench, 3, &got);
    assert_eq!(told.code, RejectCode::UnknownSession);
    assert_eq!(bench.core.group(CHANNEL).0, 0);
}

#[test]
fn replay_that_cannot_catch_up_is_refused() {
    let config = RepairConfig {
        joiner_bytes_per_s: 1_000_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 1 << 14, 1);
    // 128 bytes each, 800 in 100 ms: 1,024,000 bytes/s.
    for _ in 0..40 {
        bench.publish(800);
        bench.pass(100_000);
        bench.input(RepairInput::Timeout);
    }
    let floor = bench.core.channels[0].floor().0;
    bench.nack(0, NackClass::Replay, &[(floor, 32_000)]);
    let got = bench.take(0);
    assert_eq!(
        refusals(&got),
        [(RefusalReason::TooSlow, run(floor, 32_000))]
    );
    // The newer part is held long enough.
    bench.nack(0, NackClass::Replay, &[(30_000, 32_000)]);
    assert_eq!(refusals(&bench.take(0)), []);
    assert_eq!(bench.counters.refused_too_slow.get(), 32_000 - floor + 1);
}

#[test]
fn repair_works_beyond_32_bits_and_at_the_end_of_sequences() {
    for first in [(1 << 32) - 10, u64::MAX - 20] {
        let mut bench = Bench::new(RepairConfig::default(), 16, first);
        bench.join(0);
        bench.publish(18);
        let newest = first + 17;
        bench.repair(0, first, u64::MAX);
        let got = bench.take(0);
        assert_eq!(sequences(&got), (newest - 11..=newest).collect::<Vec<_>>());
        assert_eq!(
            refusals(&got),
            [
                (RefusalReason::Window, run(first, newest - 12)),
                (RefusalReason::Ahead, run(newest + 1, u64::MAX))
            ]
        );
    }
}

#[test]
fn silent_connections_are_closed_in_time() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.input(RepairInput::Connected(PeerId(7), Carrier::Verbs, ORIGIN));
    bench.pass(2_000_000);
    bench.input(RepairInput::Timeout);
    let got = bench.take(7);
    assert_eq!(rejection(&mut bench, 7, &got).code, RejectCode::Protocol);
    bench.pass(58_000_000);
    bench.input(RepairInput::Timeout);
    let got = bench.take(0);
    rejection(&mut bench, 0, &got);
    assert_eq!(bench.core.counters.silent_disconnects.get(), 2);
}

#[test]
fn publisher_shutdown_rejects_all_connections() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 3);
    bench.core.shut_down();
    let got = bench.drain();
    assert_eq!(got.len(), 3);
    for (_, got) in got {
        assert!(matches!(got, Got::Rejected(r) if r.code == RejectCode::ShuttingDown));
    }
    assert_eq!(bench.core.counters.connected.get(), 0);
}

#[test]
fn flood_of_latency_reports_ends_its_connection() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 2);
    let report = || Message::Latency(Box::default());
    for us in [0, 1_000_000, 1_000_000] {
        bench.pass(us);
        (0..64).for_each(|_| bench.deliver(0, report()));
    }
    assert_eq!(bench.core.counters.protocol_errors.get(), 0);
    bench.deliver(0, report());
    bench.deliver(1, report());
    let got = bench.drain();
    assert!(
        matches!(&got[..], [(Some(0), Got::Rejected(r))] if r.code == RejectCode::Protocol),
        "{got:?}"
    );
}

#[test]
fn publisher_hand_over_asks_all_peers_to_rejoin() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 3);
    bench.core.hand_over();
    let got = bench.drain();
    assert_eq!(got.len(), 3);
    for (_, got) in got {
        let Got::Rejected(told) = got else {
            panic!("{got:?}");
        };
        let code = (told.code, told.retry_after_ms);
        assert_eq!(code, (RejectCode::ShuttingDown, 1));
        assert!(told.text.contains("continues this stream"), "{}", told.text);
    }
    assert_eq!(bench.core.counters.connected.get(), 0);
}

#[test]
fn requested_sequences_are_all_accounted_for_in_random_runs() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let config = RepairConfig {
            repair_bytes_per_s: 2_000_000,
            repair_burst_bytes: 20_000,
            subscriber_bytes_per_s: 1_000_000,
            subscriber_burst_bytes: 10_000,
            joiner_bytes_per_s: 1_000_000,
            pending_ranges_max: 4,
            large_group: if seed % 2 == 0 { 3 } else { 64 },
            ..RepairConfig::default()
        };
        let mut bench = Bench::new(config, 64, 1);
        for peer in 0..400 {
            let at = rng.random_range(0..6);
            match rng.random_range(0..10) {
                0 => drop(bench.connect(peer % 6, join("equities"))),
                1 => drop(bench.input(RepairInput::Disconnected(PeerId(at)))),
                2..=3 => bench.publish(rng.random_range(1..40)),
                4..=7 => {
                    let class = [NackClass::Repair, NackClass::Replay][rng.random_range(0..2)];
                    let newest = bench.ring.sealed().0;
                    let from = newest.saturating_sub(rng.random_range(0..80));
                    bench.nack(at, class, &[(from, from + rng.random_range(0..20))]);
                }
                8 => {
                    let bytes = rng.random_range(0..2_000_000);
                    bench.input(RepairInput::Backlog(PeerId(at), bytes));
                }
                _ => drop(bench.input(RepairInput::Timeout)),
            }
            bench.pass(rng.random_range(0..300));
            bench.check();
            if rng.random_bool(0.7) {
                drop(bench.drain());
            }
        }
        for peer in 0..6 {
            bench.input(RepairInput::Backlog(PeerId(peer), 0));
        }
        for _ in 0..2_000 {
            drop(bench.drain());
            let next = bench.core.poll_timeout().unwrap();
            bench.pass(next.since(bench.now.monotonic).0.div_ceil(1_000));
            bench.input(RepairInput::Timeout);
        }
        assert_eq!(
            bench.counters.pending.get(),
            0,
            "all is answered, seed {seed}"
        );
        assert!(!bench.core.lanes.is_waiting(), "seed {seed}");
    }
}

#[test]
fn connection_not_starting_with_join_is_rejected() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    for (peer, first) in [
        (1, Message::Progress(progress(1))),
        (2, Message::Datagram(&[])),
        (
            3,
            Message::Nack {
                epoch: EPOCH,
                class: NackClass::Repair,
                ranges: vec![run(1, 1)],
            },
        ),
    ] {
        bench.input(RepairInput::Connected(PeerId(peer), Carrier::Verbs, ORIGIN));
        bench.deliver(peer, first);
        let got = bench.take(peer);
        let told = rejection(&mut bench, peer, &got);
        assert!(told.text.contains("must be JOIN"), "{}", told.text);
        assert_eq!(told.retry_after_ms, 0, "it does not help to try again");
    }
    bench.input(RepairInput::Connected(PeerId(4), Carrier::Verbs, ORIGIN));
    bench.deliver(4, Message::Leave);
    assert_eq!(bench.drain(), [], "one that only came to go");
    assert_eq!(bench.core.counters.protocol_errors.get(), 3);
    assert_eq!(bench.core.counters.connections.get(), 4);
    assert_eq!(bench.core.counters.connected.get(), 0);
}

fn progress(sequence: u64) -> Progress {
    Progress {
        epoch: EPOCH,
        sequence: Sequence(sequence),
        lost_records: 0,
        heard: Sequence(sequence),
        sent_at: Nanos(0),
        read_bytes: 0,
    }
}

#[test]
fn subscriber_is_slow_from_half_to_quarter_ring() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(40);
    bench.events();
    let mut reported = |sequence| {
        bench.pass(1_000_000);
        bench.deliver(0, Message::Progress(progress(sequence)));
        bench.events().len()
    };
    let told: Vec<usize> = [8, 7, 23, 7, 24, 8, 7].map(&mut reported).to_vec();
    assert_eq!(told, [0, 1, 0, 0, 0, 0, 1]);
    let other_epoch = Progress {
        epoch: Epoch(8),
        ..progress(40)
    };
    bench.deliver(0, Message::Progress(other_epoch));
    bench.deliver(0, Message::Progress(progress(7)));
    assert_eq!(
        bench.events(),
        [],
        "what is said of another epoch is no progress"
    );
}

#[test]
fn banned_peer_is_rejected_and_its_connections_close() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    let session = bench.join(0).session;
    bench.connect(1, further(session));
    bench.join(5);
    bench.publish(20);
    bench.events();
    bench.drain();
    bench.repair(1, 1, 10);
    bench.core.ban(PeerId(0), "left the desk");
    bench.core.ban(PeerId(0), "once is enough");
    let got = bench.take(0);
    assert!(
        matches!(&got[..], [Got::Rejected(rejected)]
            if rejected.code == RejectCode::Banned
                && rejected.text == "the publisher banned this peer: left the desk"),
        "{got:?}"
    );
    let events = bench.events();
    for peer in [0, 1].map(PeerId) {
        let is_close =
            |it: &RepairEvent| matches!(it, RepairEvent::Close { peer: of, .. } if *of == peer);
        assert!(events.iter().any(is_close), "{peer:?}: {events:?}");
    }
    assert_eq!(bench.core.counters.banned.get(), 1);
    assert_eq!(bench.counters.subscribers.get(), 1, "the other stays");
    bench.repair(5, 18, 20);
    assert_eq!(bench.take(5).len(), 3);
}

#[test]
fn refusal_carries_its_retry_delay() {
    let config = RepairConfig {
        pending_ranges_max: 1,
        subscriber_bytes_per_s: 1_000_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 64, 1);
    bench.publish(100);
    let mut waits = |epoch, class, ranges: &[(u64, u64)]| {
        let ranges = ranges.iter().map(|(first, last)| run(*first, *last));
        let ranges = ranges.collect();
        bench.deliver(
            0,
            Message::Nack {
                epoch,
                class,
                ranges,
            },
        );
        let refused = bench.take(0).into_iter().filter_map(|got| match got {
            Got::Refused(refused) => Some((refused.reason, refused.retry_after_us)),
            _ => None,
        });
        refused.collect::<Vec<_>>()
    };
    let repair = NackClass::Repair;
    assert_eq!(
        waits(Epoch(8), repair, &[(80, 80)]),
        [(RefusalReason::Epoch, 0)]
    );
    assert_eq!(
        waits(EPOCH, repair, &[(1, 2)]),
        [(RefusalReason::Window, 0)]
    );
    assert_eq!(
        waits(EPOCH, repair, &[(101, 101)]),
        [(RefusalReason::Ahead, 100)]
    );
    assert_eq!(
        waits(EPOCH, repair, &[(0, 80)]),
        [(RefusalReason::Malformed, 0)]
    );
    assert_eq!(
        waits(EPOCH, repair, &[(80, 89), (95, 95)]),
        [(RefusalReason::Budget, 10_240)],
        "ten slots at a million bytes a second"
    );
    assert_eq!(bench.counters.nack_messages.get(), 5);
}

#[test]
fn joiners_share_budget_without_double_promise() {
    let config = RepairConfig {
        joiner_bytes_per_s: 3_000_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 1 << 14, 3);
    for _ in 0..40 {
        bench.publish(800);
        bench.pass(100_000);
        bench.input(RepairInput::Timeout);
    }
    let floor = bench.core.channels[0].floor().0;
    bench.nack(0, NackClass::Repair, &[(31_990, 31_999)]);
    bench.nack(1, NackClass::Replay, &[(floor, 32_000)]);
    assert_eq!(
        bench.counters.refused_too_slow.get(),
        0,
        "alone it can catch up"
    );
    bench.nack(1, NackClass::Replay, &[(floor, 32_000)]);
    assert_eq!(
        bench.counters.refused_too_slow.get(),
        32_001 - floor,
        "not twice that"
    );
    bench.nack(2, NackClass::Replay, &[(floor, 32_000)]);
    assert_eq!(bench.counters.refused_too_slow.get(), 2 * (32_001 - floor));
    let got = bench.take(2);
    let Got::Refused(refused) = &got[..][0] else {
        panic!("{got:?}");
    };
    assert_eq!(
        (refused.reason, refused.retry_after_us),
        (RefusalReason::TooSlow, 1_000_000)
    );
}

#[test]
fn joiners_share_one_replay_budget() {
    let config = RepairConfig {
        joiner_bytes_per_s: 1,
        joiner_burst_bytes: 10_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 1 << 12, 2);
    bench.publish(1_000);
    bench.nack(0, NackClass::Replay, &[(1, 1_000)]);
    bench.nack(1, NackClass::Replay, &[(1, 1_000)]);
    let burst = (10_000 - (FRAME_HEAD as u64 + 1024)) / FRAME + 1;
    assert_eq!(bench.drain().len() as u64, burst);
    assert_eq!(bench.counters.replay_bytes.get(), burst * FRAME);
    bench.repair(1, 500, 500);
    assert_eq!(sequences(&bench.take(1)), [500], "repair is not theirs");
}

#[test]
fn ring_guard_is_bounded_quarter_of_slots() {
    for (slots, guard) in [(16, 4), (32, 8), (64, 16), (1024, 16), (2048, 32)] {
        let mut bench = Bench::new(RepairConfig::default(), slots, 1);
        bench.publish(slots + 5);
        let offer = bench.join(0).channels.remove(0);
        let held = offer.newest.next().since(offer.oldest);
        assert_eq!(held, slots - guard, "{slots}");
    }
}

#[test]
fn undrained_claim_events_are_bounded_but_closes_are_kept() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    let mut claims = join("equities");
    claims.channels[0].confirmed_epoch = Epoch(EPOCH.0 + 1);
    for round in 1..3 {
        for peer in 0..5_000 {
            bench.connect(peer, claims.clone());
            bench.deliver(peer, Message::Leave);
        }
        let (mut told, mut news) = ([0; 3], 0);
        for event in bench.events() {
            match event {
                RepairEvent::Joined { .. } => told[0] += 1,
                RepairEvent::Left { .. } => told[1] += 1,
                RepairEvent::Close { .. } => told[2] += 1,
                RepairEvent::HigherEpochClaimed { .. } => news += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((told, news), ([5_000; 3], NEWS_MAX));
        let dropped = bench.core.counters.events_dropped.get();
        assert_eq!(dropped, round * (5_000 - NEWS_MAX as u64));
    }
    assert_eq!(bench.counters.joins.get(), 10_000);
    assert_eq!(bench.counters.subscribers.get(), 0);
}

#[test]
fn slow_subscriber_is_reported_once_a_second() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(40);
    bench.events();
    for _ in 0..1_000 {
        bench.deliver(0, Message::Progress(progress(0)));
        bench.deliver(0, Message::Progress(progress(40)));
        bench.pass(10_000);
        bench.take(0);
    }
    assert_eq!(bench.events().len(), 10, "in ten seconds");
    assert_eq!(bench.core.counters.events_dropped.get(), 0);
    // A subscriber that could not be reported at once is reported at its next message.
    bench.deliver(0, Message::Progress(progress(0)));
    bench.deliver(0, Message::Progress(progress(40)));
    bench.events();
    bench.deliver(0, Message::Progress(progress(0)));
    assert_eq!(bench.events(), []);
    bench.pass(1_000_000);
    bench.deliver(0, Message::Progress(progress(0)));
    assert_eq!(bench.events().len(), 1);
}

#[test]
fn clock_is_needed_each_tick_for_silence() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    let session = bench.join(9).session;
    bench.connect(1, replay(session));
    let start = bench.now.monotonic;
    assert_eq!(bench.core.poll_timeout(), Some(start.after(TICK)));
    bench.pass(99_999);
    bench.input(RepairInput::Timeout);
    assert_eq!(bench.core.poll_timeout(), Some(start.after(TICK)));
    bench.pass(1);
    bench.input(RepairInput::Timeout);
    assert_eq!(
        bench.core.poll_timeout(),
        Some(start.after(TICK).after(TICK))
    );
    bench.pass(59_800_000);
    bench.input(RepairInput::Timeout);
    assert_eq!(bench.core.counters.silent_disconnects.get(), 0);
    bench.deliver(9, Message::Progress(progress(0)));
    bench.drain();
    bench.pass(100_000);
    bench.input(RepairInput::Timeout);
    assert_eq!(bench.core.counters.silent_disconnects.get(), 1, "a minute");
    let got = bench.take(0);
    rejection(&mut bench, 0, &got);
    // The replay connection is silent too, and may be.
    assert_eq!(bench.core.counters.connected.get(), 2);
    bench.input(RepairInput::Connected(PeerId(20), Carrier::Verbs, ORIGIN));
    bench.pass(1_900_000);
    bench.input(RepairInput::Timeout);
    assert_eq!(bench.core.counters.silent_disconnects.get(), 1);
    bench.pass(100_000);
    bench.input(RepairInput::Timeout);
    assert_eq!(
        bench.core.counters.silent_disconnects.get(),
        2,
        "two seconds to JOIN"
    );
    // The peer does not even read its rejection, but the connection is closed all the same.
    bench.pass(60_000_000);
    bench.input(RepairInput::Timeout);
    let closed = |event: &RepairEvent| match event {
        RepairEvent::Close { peer, reason } => *peer == PeerId(20) && reason.is_some(),
        _ => false,
    };
    assert!(bench.events().iter().any(closed));
}

#[test]
fn full_or_ending_server_rejects_with_retry_delay() {
    let config = RepairConfig {
        peers_max: 1,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 64, 1);
    let got = bench.connect(9, join("equities"));
    let told = rejection(&mut bench, 9, &got);
    assert_eq!(
        (told.code, told.retry_after_ms),
        (RejectCode::TooMany, 1_000)
    );
    bench.core.shut_down();
    let got = bench.take(0);
    let told = rejection(&mut bench, 0, &got);
    assert_eq!(
        (told.code, told.retry_after_ms),
        (RejectCode::ShuttingDown, 1_000)
    );
    assert_eq!(bench.core.counters.joins_rejected.get(), 1);
}

#[test]
fn sessions_are_numbered_unpredictably_and_never_twice() {
    let of = |secret: [u8; 32]| {
        let mut bench = Bench::new(RepairConfig::default(), 64, 1);
        bench.core.sessions = Sessions::new(secret);
        let sessions = (0..100).map(|peer| bench.join(peer).session);
        sessions.collect::<Vec<u64>>()
    };
    let first = of(SECRET);
    // The key stream of ChaCha20, 64 bits at a time: predicting the next number takes its key.
    let mut stream = ChaCha20Rng::from_seed(SECRET);
    assert!(first.iter().all(|it| *it == stream.next_u64()));
    assert_eq!(of(SECRET), first, "a run can be repeated");
    // A change of any bit of the secret changes all numbers.
    for bit in 0..256 {
        let mut other = SECRET;
        other[bit / 8] ^= 1 << (bit % 8);
        let other = of(other);
        assert!(other.iter().all(|it| !first.contains(it)), "bit {bit}");
    }
    let distinct: std::collections::BTreeSet<u64> = first.iter().copied().collect();
    assert_eq!(distinct.len(), 100);
    // A number does not follow from the one before as with SplitMix64.
    let follows = |pair: &[u64]| {
        let mut state = unmixed(pair[0]);
        crate::types::split_mix(&mut state) == pair[1]
    };
    let mut state = 42;
    let mixed: Vec<u64> = (0..100)
        .map(|_| crate::types::split_mix(&mut state))
        .collect();
    assert!(mixed.windows(2).all(follows) && !first.windows(2).any(follows));
}

/// Returns the state of a SplitMix64 that produced this number.
fn unmixed(z: u64) -> u64 {
    // Invert a product with an odd factor, and an xor with a shift.
    let inverse = |of: u64| {
        (0..6).fold(of, |x, _| {
            x.wrapping_mul(2_u64.wrapping_sub(of.wrapping_mul(x)))
        })
    };
    let unshift = |z: u64, by: u32| (0..64 / by).fold(z, |x, _| z ^ (x >> by));
    let z = unshift(z, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    let z = unshift(z, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    unshift(z, 30)
}

#[test]
fn read_needs_verbs_and_every_connection_learns_it() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    let session = bench.join(0).session;
    bench.connect(1, read_grant::reader(session, 5));
    bench.connect(2, further(session));
    bench.events();
    // A peer that knows the session replaces nothing on a transport without READ.
    bench.input(RepairInput::Connected(PeerId(3), Carrier::Tcp, ORIGIN));
    bench.deliver(3, Message::Join(read_grant::reader(session, 7)));
    let got = bench.take(3);
    assert!(
        matches!(&got[..], [Got::Rejected(told)] if told.code == RejectCode::Protocol),
        "{got:?}"
    );
    assert_eq!(bench.core.peers[&PeerId(1)].reads(), Some((session, 5)));
    let told = bench.events();
    assert!(
        matches!(
            &told[..],
            [RepairEvent::Close {
                peer: PeerId(3),
                reason: Some(_)
            }]
        ),
        "{told:?}"
    );
    // An unknown session is counted, and its connection is closed with the reason.
    bench.connect(4, further(session.wrapping_add(1)));
    bench.connect(5, read_grant::reader(session.wrapping_add(1), 5));
    let counters = &bench.core.counters;
    assert_eq!(
        (
            counters.unknown_sessions.get(),
            counters.joins_rejected.get()
        ),
        (2, 3)
    );
    for event in bench.events() {
        assert!(
            matches!(
                event,
                RepairEvent::Close {
                    reason: Some(_),
                    ..
                }
            ),
            "{event:?}"
        );
    }
    // The event of a replacing connection names the replaced one.
    bench.connect(6, further(session));
    bench.connect(7, replay(session));
    bench.connect(8, read_grant::reader(session, 6));
    let told: Vec<_> = (bench.events().iter())
        .filter_map(|event| match event {
            RepairEvent::FurtherJoined {
                peer,
                further,
                instead_of,
            } => Some((peer.0, *further, instead_of.map(|it| it.0))),
            _ => None,
        })
        .collect();
    let expected = [
        (6, Further::Nack, Some(2)),
        (7, Further::Replay, None),
        (8, Further::Read, Some(1)),
    ];
    assert_eq!(told, expected);
}

#[test]
fn channels_of_one_publisher_are_kept_apart() {
    let ring = |channel: u16, fan_outs| {
        let identity = RingIdentity {
            channel: ChannelId(channel),
            epoch: EPOCH,
            config_hash: ConfigHash(3),
            boot_id: [0; 16],
            fan_outs,
            first_sequence: Sequence(1),
            first_record: RecordNumber(1),
        };
        let geometry = Geometry::new(1024, 64).unwrap();
        let memory = Arc::new(HeapMemory::new(geometry));
        RingWriter::create(memory, geometry, identity).unwrap()
    };
    let mut rings = [ring(4, 1), ring(5, 2), ring(6, 1)];
    let counters: Vec<Arc<RepairCounters>> = (0..3).map(|_| Arc::default()).collect();
    let channels = (rings.iter().zip(&counters))
        .map(|(ring, counters)| {
            let info = ChannelInfo {
                name: format!("channel {}", ring.identity().channel),
                fan_outs: vec![],
                directory: vec![],
                heartbeat: HeartbeatConfig::default(),
            };
            (info, ring.reader(), counters.clone())
        })
        .collect();
    let now = Now::default();
    let config = RepairConfig::default();
    let core = RepairCore::new(config, "p".into(), channels, Arc::default(), SECRET, now);
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg::default());
    for ring in &mut rings {
        for _ in 0..20 {
            ring.open().unwrap();
            ring.append(batch.bytes()).unwrap();
            let seal = Seal {
                kind: Kind::Data,
                count: 1,
                source: SourceId(1),
                source_position: SourcePosition(0),
                sent_at: Nanos(0),
                flags: 0,
            };
            let sequence = ring.seal(seal).unwrap();
            ring.set_sent(FanOutId(0), sequence);
        }
    }
    // The second fan-out of channel 5 is at 15.
    rings[1].set_sent(FanOutId(1), Sequence(15));
    let ring = ring(9, 1);
    let mut bench = Bench {
        core,
        ring,
        counters: counters[1].clone(),
        now,
    };
    let wanted = |channel: ChannelName| JoinChannel {
        channel,
        start: Start::Live,
        confirmed_epoch: EPOCH,
    };
    let both = Join {
        authentication: true,
        channels: vec![
            wanted(ChannelName::Name("channel 5".into())),
            wanted(ChannelName::Id(ChannelId(6))),
        ],
        ..join("")
    };
    let instrument = Instrument {
        id: 7,
        symbol: "X".into(),
    };
    bench.core.set_directory(ChannelId(6), vec![instrument]);
    let got = bench.connect(0, both);
    let [Got::Welcome(welcome)] = &got[..] else {
        panic!("{got:?}");
    };
    let offers: Vec<_> = (welcome.channels.iter())
        .map(|c| (c.channel.0, c.newest.0, c.directory.len()))
        .collect();
    assert_eq!(
        offers,
        [(5, 15, 0), (6, 20, 1)],
        "sent by all of its fan-outs"
    );
    let groups = [4, 5, 6, 7].map(|channel| bench.core.group(ChannelId(channel)).0);
    assert_eq!(groups, [0, 1, 1, 0]);
    assert_eq!(
        counters[1].higher_epoch_claims.get(),
        0,
        "ours is not higher"
    );
    let ask = |bench: &mut Bench, channel, first, last| {
        let nack = Message::Nack {
            epoch: EPOCH,
            class: NackClass::Repair,
            ranges: vec![run(first, last)],
        };
        bench.input(RepairInput::Message(PeerId(0), ChannelId(channel), &nack));
    };
    ask(&mut bench, 6, 1, 3);
    ask(&mut bench, 5, 16, 22);
    let got = bench.take(0);
    let of = |channel| {
        let of = got.iter().filter_map(move |got| match got {
            Got::Datagram(h) if h.channel == ChannelId(channel) => Some(h.sequence.0),
            _ => None,
        });
        of.collect::<Vec<_>>()
    };
    assert_eq!(of(6), [1, 2, 3]);
    assert_eq!(
        of(5),
        [16, 17, 18, 19, 20],
        "what any fan-out has sent may be missed"
    );
    assert_eq!(refusals(&got), [(RefusalReason::Ahead, run(21, 22))]);
    let order: Vec<u16> = (got.iter())
        .filter_map(|got| match got {
            Got::Datagram(header) => Some(header.channel.0),
            _ => None,
        })
        .collect();
    assert_eq!(order[..6], [6, 5, 6, 5, 6, 5], "in turn");
    let answered: Vec<_> = counters.iter().map(|c| c.answered.get()).collect();
    assert_eq!(answered, [0, 5, 3]);
    // The end of one channel is not the end of all.
    rings[2].set_state(PublisherState::Ended);
    assert!(!bench.core.all_reached_end());
}

#[test]
fn replay_connection_is_replaced_only_by_its_own_session() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(9);
    let (a, b) = (bench.join(1).session, bench.join(2).session);
    bench.connect(11, replay(a));
    bench.connect(12, replay(b));
    assert_eq!(bench.core.counters.replay_joins.get(), 2);
    bench.events();
    bench.connect(13, replay(a));
    let closed: Vec<u64> = (bench.events().iter())
        .filter_map(|event| match event {
            RepairEvent::Close { peer, reason: None } => Some(peer.0),
            _ => None,
        })
        .collect();
    assert_eq!(closed, [11]);
    // Its end frees the place: replay can be requested on the repair connection again.
    bench.nack(1, NackClass::Replay, &[(1, 1)]);
    assert_eq!(
        refusals(&bench.take(1)),
        [(RefusalReason::Budget, run(1, 1))]
    );
    bench.input(RepairInput::Disconnected(PeerId(13)));
    bench.nack(1, NackClass::Replay, &[(1, 1)]);
    assert_eq!(sequences(&bench.take(1)), [1]);
    bench.deliver(12, Message::Progress(progress(5)));
    assert!(matches!(bench.take(12)[..], [Got::Status(_)]));
    let peer = &bench.core.peers[&PeerId(12)];
    assert_eq!(peer.channels[0].progress, None, "a replay is no progress");
}

#[test]
fn resumed_peer_is_served_when_backlog_is_gone() {
    let config = RepairConfig {
        backlog_pause_bytes: 10_000,
        backlog_close_bytes: 20_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::with_peers(config, 64, 1);
    bench.publish(20);
    bench.repair(0, 1, 2);
    bench.input(RepairInput::Backlog(PeerId(0), 10_000));
    assert_eq!(bench.drain(), []);
    bench.input(RepairInput::Backlog(PeerId(0), 10_000));
    bench.input(RepairInput::Backlog(PeerId(0), 12_000));
    assert!(!bench.core.lanes.is_waiting(), "it is not even looked at");
    bench.input(RepairInput::Backlog(PeerId(0), 9_999));
    assert_eq!(sequences(&bench.take(0)), [1, 2]);
    // Answers of exactly the bound are allowed, and a WELCOME of any length.
    let frame = FRAME_HEAD + 48;
    bench.input(RepairInput::Backlog(PeerId(0), 20_000 - frame));
    bench.repair(0, 90, 90);
    assert_eq!(bench.core.counters.overflow_disconnects.get(), 0);
    bench.repair(0, 91, 91);
    assert_eq!(bench.core.counters.overflow_disconnects.get(), 1);
}

#[test]
fn nack_connection_is_answered_and_no_subscriber() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    let session = bench.join(0).session;
    bench.publish(20);
    let got = bench.connect(1, further(session));
    let [Got::Welcome(welcome)] = &got[..] else {
        panic!("{got:?}")
    };
    assert_eq!((welcome.session, welcome.channels.len()), (session, 0));
    assert_eq!(bench.core.counters.nack_link_joins.get(), 1);
    // On a NACK connection everything is repair, whatever its class.
    bench.nack(1, NackClass::Replay, &[(3, 4)]);
    let to: Vec<Option<u64>> = bench.drain().into_iter().map(|(to, _)| to).collect();
    assert_eq!(to, [Some(1), Some(1)]);
    assert_eq!(bench.counters.replay_bytes.get(), 0);
    assert_eq!(bench.counters.nack_link_messages.get(), 1);
    assert_eq!(bench.core.group(CHANNEL).0, 1, "one subscriber");
    // The next repair path stays available meanwhile.
    bench.repair(0, 3, 3);
    assert_eq!(bench.drain().len(), 1);
    assert_eq!(bench.counters.nack_link_messages.get(), 1);
}

#[test]
fn session_connections_share_one_budget() {
    let config = RepairConfig {
        subscriber_bytes_per_s: 1_000,
        subscriber_burst_bytes: BURST_BYTES_MIN,
        // Sequences that both want would be multicast without a charge to either.
        multicast_repair: false,
        ..RepairConfig::default()
    };
    let mut bench = Bench::new(config, 1024, 1);
    let session = bench.join(0).session;
    bench.connect(1, further(session));
    bench.join(7);
    bench.publish(400);
    // The smallest burst lets this many pass, on whichever connection they are requested.
    bench.repair(1, 1, 390);
    let alone = bench.take(1).len();
    assert!((1..390).contains(&alone), "{alone}");
    bench.repair(0, 1, 390);
    assert_eq!(bench.take(0).len(), 0, "the budget is used up");
    bench.repair(7, 1, 390);
    assert_eq!(bench.take(7).len(), alone, "another has its own");
}

#[test]
fn nack_connection_shares_requesters_bound() {
    let config = RepairConfig {
        pending_ranges_max: 4,
        ..RepairConfig::default()
    };
    let mut bench = Bench::new(config, 64, 1);
    let session = bench.join(0).session;
    bench.connect(1, further(session));
    bench.publish(30);
    // Both connections ask at once, but are one subscriber, so there is no reason to multicast.
    bench.repair(1, 9, 9);
    bench.repair(0, 9, 9);
    assert!(bench.drain().iter().all(|(to, _)| to.is_some()));
    assert_eq!(bench.counters.answered_by_multicast.get(), 0);
    bench.nack(1, NackClass::Repair, &[(1, 1), (3, 3), (5, 5)]);
    bench.nack(0, NackClass::Repair, &[(11, 11), (13, 13)]);
    assert_eq!(bench.counters.refused_budget.get(), 1, "3 + 1 is the bound");
    bench.nack(1, NackClass::Repair, &[(20, 20)]);
    assert_eq!(bench.counters.refused_budget.get(), 2);
    bench.drain();
}

#[test]
fn nack_connection_needs_known_session_and_ends_with_it() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    let session = bench.join(0).session;
    let got = bench.connect(5, further(session ^ 1));
    let [Got::Rejected(rejected)] = &got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(rejected.code, RejectCode::UnknownSession);
    assert_eq!(bench.core.counters.unknown_sessions.get(), 1);
    bench.publish(4);
    // Only this connection ends. Its requests are abandoned, and its session continues.
    bench.connect(1, further(session));
    bench.repair(1, 1, 2);
    bench.input(RepairInput::Disconnected(PeerId(1)));
    assert_eq!(bench.counters.repairs_cancelled.get(), 2);
    assert_eq!(bench.core.group(CHANNEL).0, 1);
    // A new connection replaces it, even a half-open one.
    bench.connect(2, further(session));
    bench.connect(3, further(session));
    bench.events();
    assert!(bench.core.peers.contains_key(&PeerId(3)));
    assert!(!bench.core.peers.contains_key(&PeerId(2)));
    // It ends with its session and gets the reason.
    bench.input(RepairInput::Disconnected(PeerId(0)));
    let got = bench.take(3);
    let [Got::Rejected(rejected)] = &got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(rejected.code, RejectCode::UnknownSession);
    assert!(bench.core.sessions.is_empty() && bench.core.peers.is_empty());
}

#[test]
fn nack_connection_may_be_idle_and_is_offered_in_welcome() {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    let address = "10.0.0.1:7410".parse().unwrap();
    let offers = vec![RepairOffer::Verbs {
        address,
        read: false,
        mirror: false,
    }];
    bench.core.set_repair_offers(offers.clone());
    let welcome = bench.join(0);
    assert_eq!(welcome.repairs, offers);
    bench.connect(1, further(welcome.session));
    for _ in 0..80 {
        bench.pass(1_000_000);
        bench.deliver(0, Message::Progress(progress(0)));
        bench.input(RepairInput::Timeout);
        bench.drain();
    }
    assert!(bench.core.peers.contains_key(&PeerId(1)));
}

#[test]
fn repair_queue_takes_no_replay_place() {
    let config = RepairConfig {
        pending_ranges_max: 2,
        ..RepairConfig::default()
    };
    let mut bench = Bench::new(config, 64, 1);
    let session = bench.join(0).session;
    bench.connect(1, replay(session));
    bench.publish(30);
    bench.repair(0, 1, 1);
    bench.repair(0, 3, 3);
    bench.nack(1, NackClass::Replay, &[(11, 11), (13, 13)]);
    assert_eq!(bench.counters.refused_budget.get(), 0);
    let got = bench.drain();
    let on = |peer| got.iter().filter(|(to, _)| *to == Some(peer)).count();
    assert_eq!((on(0), on(1)), (2, 2));
}

#[test]
fn credit_below_slot_sends_nothing() {
    // 17 records fill a slot up to 8 bytes.
    let mut batch = RecordBatch::default();
    (0..17).for_each(|_| batch.put(&MboMsg::default()));
    let frame = (FRAME_HEAD + HEADER_LEN + 17 * 56) as u64;
    let whole = (FRAME_HEAD + 1024) as u64;
    assert_eq!((frame, whole), (1_024, 1_032));
    for (rest, sent) in [(frame - 4, 64), (whole - 1, 64), (whole, 65)] {
        let config = RepairConfig {
            subscriber_bytes_per_s: 1,
            subscriber_burst_bytes: 64 * frame + rest,
            ..RepairConfig::default()
        };
        let mut bench = Bench::with_peers(config, 256, 1);
        for _ in 0..100 {
            bench.ring.open().unwrap();
            bench.ring.append(batch.bytes()).unwrap();
            bench.seal(Kind::Data, 17);
        }
        bench.repair(0, 1, 100);
        assert_eq!(bench.take(0).len(), sent, "of {rest} bytes more");
    }
}

/// Returns a service with this many channels, numbered from 0, each with one datagram to repair.
fn core_of(channels: u16) -> (RepairCore, Vec<RingWriter>) {
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg::default());
    let ring = |channel: u16| {
        let mut ring = ring_of(ChannelId(channel), 0, 64, 1);
        ring.open().unwrap();
        ring.append(batch.bytes()).unwrap();
        let seal = Seal {
            kind: Kind::Data,
            count: 1,
            source: SourceId(1),
            source_position: SourcePosition(0),
            sent_at: Nanos(0),
            flags: 0,
        };
        ring.seal(seal).unwrap();
        ring
    };
    let rings: Vec<RingWriter> = (0..channels).map(ring).collect();
    let channels = rings.iter().map(|ring| {
        let info = ChannelInfo {
            name: format!("channel {}", ring.identity().channel),
            fan_outs: vec![],
            directory: vec![],
            heartbeat: HeartbeatConfig::default(),
        };
        (info, ring.reader(), Arc::default())
    });
    let (config, now) = (RepairConfig::default(), Now::default());
    let channels = channels.collect();
    let core = RepairCore::new(config, "p".into(), channels, Arc::default(), SECRET, now);
    (core, rings)
}

/// Returns a JOIN for these channels, in this order.
fn join_all(channels: impl Iterator<Item = u16>) -> Join {
    let wanted = channels.map(|channel| JoinChannel {
        channel: ChannelName::Id(ChannelId(channel)),
        start: Start::Live,
        confirmed_epoch: Epoch::NONE,
    });
    Join {
        authentication: true,
        channels: wanted.collect(),
        ..join("")
    }
}

#[test]
fn nacks_on_many_channels_are_all_served() {
    const CHANNELS: u16 = 5;
    let (mut core, _rings) = core_of(CHANNELS);
    let (now, mut out) = (Now::default(), Vec::new());
    core.handle(
        now,
        RepairInput::Connected(PeerId(0), Carrier::Verbs, ORIGIN),
    );
    let all = Message::Join(join_all(0..CHANNELS));
    core.handle(now, RepairInput::Message(PeerId(0), ChannelId(0), &all));
    assert!(core.poll_transmit(now, &mut out).is_some());
    // Any order of the requests, whichever channel was served last.
    for channel in (0..CHANNELS).chain((0..CHANNELS).rev()) {
        out.clear();
        let nack = Message::Nack {
            epoch: EPOCH,
            class: NackClass::Repair,
            ranges: vec![run(1, 1)],
        };
        core.handle(
            now,
            RepairInput::Message(PeerId(0), ChannelId(channel), &nack),
        );
        let served = core.poll_transmit(now, &mut out);
        assert_eq!(served, Some(Destination::Peer(PeerId(0))), "{channel}");
        let read = Message::read(&out, BODY_LEN_MAX_TO_SUBSCRIBER).unwrap();
        let (of, message, _) = read.unwrap();
        assert_eq!(of, ChannelId(channel));
        assert!(matches!(message, Message::Datagram(_)), "{message:?}");
    }
}

#[test]
fn append_counts_whatever_stood_there() {
    let mut bench = Bench::with_peers(RepairConfig::default(), 64, 1);
    bench.publish(2);
    bench.repair(0, 1, 2);
    let mut out = vec![0; 1_000];
    while bench.core.poll_transmit(bench.now, &mut out).is_some() {}
    assert_eq!(out.len() as u64, 1_000 + 2 * FRAME);
    assert_eq!(bench.counters.repair_bytes.get(), 2 * FRAME);
}
