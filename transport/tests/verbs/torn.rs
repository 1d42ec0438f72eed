//! A ring that is sealed and overwritten while it is READ, on a real device. Slots are torn and lapped,
//! and the shipped cores of publisher and subscriber still deliver every datagram byte for byte as it was
//! sealed. The tests need a device: see `main.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tickcast_reliability::control::{
    ChannelName, FanOutOffer, Message, RemoteAccess, RepairOffer, Start, UdpLine,
};
use tickcast_reliability::delivery::{Item, LineId, LinkDownReason};
use tickcast_reliability::publish::HeartbeatConfig;
use tickcast_reliability::receive::{ReceiverConfig, RemoteOp, RepairOrder};
use tickcast_reliability::record::AlignedCopy;
use tickcast_reliability::ring::{Geometry, RingIdentity, RingReader, RingWriter, Seal};
use tickcast_reliability::serve::{
    Carrier, ChannelInfo, Destination, PeerId, RepairConfig, RepairCore, RepairEvent, RepairInput,
};
use tickcast_reliability::session::{
    Action, ChannelWanted, LinkTimers, Path, ReadLimits, SubscriberCore, SubscriberInput,
    SubscriberSettings,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, FanOutId, Nanos, Now, PeerOrigin, ReceiverCounters, RecordNumber,
    Sequence, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{HEADER_LEN, Header, Heartbeat, Kind, PublisherState, crc_of};
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::verbs::{Completed, ReadableMemory, RemoteMemory};

use crate::device::sides::{Sides, reading};
use crate::device::until;

const CHANNEL: ChannelId = ChannelId(7);
const EPOCH: Epoch = Epoch(5);
/// Words of a record. The first marks it as one of these.
const RECORD_WORDS: usize = 7;
const MBO: u64 = 0xa0;
/// READs in flight.
const READS: u8 = 16;
/// Limit of READs, which should never be reached.
const READS_MAX: u64 = 400_000;
/// Slots of the ring.
const SLOTS: u64 = 64;
/// Required number of occurrences of each event.
const ENOUGH: u64 = 100;

/// Published data: as many records in each slot as fit.
#[derive(Clone, Copy)]
struct Feed {
    geometry: Geometry,
}

impl Feed {
    fn records(self) -> usize {
        (self.geometry.slot_len() - HEADER_LEN) / (RECORD_WORDS * 8)
    }

    /// Returns the records of a sequence. Each word identifies its record and its place, so that no mixture
    /// of two records equals either.
    fn payload(self, sequence: Sequence) -> Vec<u8> {
        let of = sequence.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let words = (0..self.records() * RECORD_WORDS).map(|at| {
            let word = of ^ (at as u64).wrapping_mul(0x0101_0101_0101_0101);
            match at % RECORD_WORDS {
                0 => (word & !0xffff) | (MBO << 8) | (RECORD_WORDS as u64 * 2),
                _ => word,
            }
        });
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn seal(self, sequence: Sequence) -> Seal {
        Seal {
            kind: Kind::Data,
            count: self.records() as u16,
            source: SourceId(3),
            source_position: SourcePosition(sequence.0),
            sent_at: Nanos(sequence.0 * 1_000),
            flags: 0,
        }
    }

    fn header(self, kind: Kind, sequence: Sequence, first: u64, payload_len: usize) -> Header {
        let seal = self.seal(sequence);
        Header {
            kind,
            channel: CHANNEL,
            count: if kind == Kind::Data { seal.count } else { 0 },
            epoch: EPOCH,
            sequence,
            first_record: RecordNumber(first * self.records() as u64 + 1),
            source_position: seal.source_position,
            sent_at: seal.sent_at,
            retained: sequence.0.min(self.geometry.slots()) as u32,
            source: seal.source,
            payload_len: payload_len as u16,
            flags: 0,
            header_len: HEADER_LEN as u16,
            relay: 0,
        }
    }

    /// Returns the datagram of a sequence, as it must stand in its slot.
    fn datagram(self, sequence: Sequence) -> Vec<u8> {
        let payload = self.payload(sequence);
        let header = self.header(Kind::Data, sequence, sequence.0 - 1, payload.len());
        whole(&header, &payload)
    }

    /// Returns the heartbeat that reports this sequence as sent.
    fn heartbeat(self, sequence: Sequence) -> Vec<u8> {
        let body = Heartbeat {
            next_interval_us: 100_000,
            hold_off_us: 0,
            subscribers: 1,
            state: PublisherState::Live,
            config_hash: ConfigHash(0),
        };
        let header = self.header(Kind::Heartbeat, sequence, sequence.0, Heartbeat::LEN);
        whole(&header, &body.to_bytes())
    }

    /// Seals datagrams until `stop` is set and returns their number. It waits until the reader has no more
    /// than half a ring to READ. Then it seals half to one and a half rings without pause, and so overtakes
    /// the place that is READ.
    fn run(self, mut ring: RingWriter, read: &AtomicU64, stop: &AtomicBool) -> u64 {
        let half = self.geometry.slots() / 2;
        let mut pause_at = 0;
        while !stop.load(Ordering::Relaxed) {
            let next = ring.sealed().next();
            if next.0 > pause_at {
                if next.0 > read.load(Ordering::Relaxed) + half {
                    std::hint::spin_loop();
                    continue;
                }
                pause_at = next.0 + half + next.0 * 7 % (2 * half);
            }
            let payload = self.payload(next);
            let sequence = ring.open().unwrap();
            ring.append(&payload).unwrap();
            ring.seal(self.seal(sequence)).unwrap();
            ring.set_sent(FanOutId(0), sequence);
        }
        ring.sealed().0
    }
}

fn whole(header: &Header, payload: &[u8]) -> Vec<u8> {
    let crc = crc_of(&header.to_bytes(0), payload);
    [&header.to_bytes(crc), payload].concat()
}

/// Events of the application, each record compared with the published one of its number.
struct Heard {
    feed: Feed,
    next: u64,
    payload: (Sequence, Vec<u8>),
}

impl Heard {
    fn item(&mut self, item: Item<'_>) {
        let Item::Record(position, record) = item else {
            return;
        };
        let number = position.record.0;
        assert!(number >= self.next, "record {number} again, or too late");
        self.next = number + 1;
        let records = self.feed.records() as u64;
        let (sequence, at) = (Sequence((number - 1) / records + 1), (number - 1) % records);
        let seal = self.feed.seal(sequence);
        assert_eq!(position.sequence, sequence, "of record {number}");
        assert_eq!(position.source_position, seal.source_position);
        assert_eq!(
            (position.source, position.sent_at),
            (seal.source, seal.sent_at)
        );
        if self.payload.0 != sequence {
            self.payload = (sequence, self.feed.payload(sequence));
        }
        let len = RECORD_WORDS * 8;
        let sealed = &self.payload.1[at as usize * len..][..len];
        assert!(record.as_ref() == sealed, "record {number} is a mixture");
    }
}

/// Results of READs.
#[derive(Debug, Default)]
struct Brought {
    reads: u64,
    /// Slots whose bytes were the sealed datagram.
    whole: u64,
    /// Slots whose header had the wanted sequence, but whose bytes differed from the sealed ones.
    mixed: u64,
}

/// A subscriber's core, a publisher's, and the connection over which one READs the other's ring. Other
/// messages are passed directly.
struct World {
    subscriber: SubscriberCore,
    repair: RepairCore,
    ring: RingReader,
    sides: Sides,
    remote: RemoteMemory,
    heard: Heard,
    heard_of: Sequence,
    /// READs in flight: tag, and the sequence of the slot.
    begun: VecDeque<(u64, Option<Sequence>)>,
    brought: Brought,
    /// The newest sequence that was READ.
    read: Arc<AtomicU64>,
    peers: BTreeMap<PeerId, Path>,
    last_peer: u64,
    frames: Vec<u8>,
    since: Instant,
}

impl World {
    fn now(&self) -> Now {
        let passed = Nanos(self.since.elapsed().as_nanos() as u64);
        Now {
            monotonic: Nanos::from_secs(1).after(passed),
            utc: Nanos::from_secs(1_000_000).after(passed),
        }
    }

    fn new(feed: Feed, ring: &RingWriter, sides: Sides, remote: RemoteMemory) -> Self {
        let start = Nanos::from_secs(1);
        let settings = SubscriberSettings {
            name: "reader".into(),
            channels: vec![ChannelWanted {
                channel: ChannelName::Id(CHANNEL),
                start: Start::Live,
                config: ReceiverConfig {
                    ladder: RepairOrder::Read,
                    // Long, because the device may be slow.
                    nack_retry_us: 10_000_000,
                    ..ReceiverConfig::default()
                },
                lines: None,
            }],
            link: LinkTimers::default(),
            seed: 1,
        };
        let mut subscriber = SubscriberCore::new(settings, start);
        let mut ignore = |_: Item<'_>| ();
        subscriber.handle(start, SubscriberInput::UseReadPath(true), &mut ignore);
        let line = UdpLine {
            group: SocketAddrV4::new(Ipv4Addr::new(239, 0, 0, 1), 4000),
            sender: Ipv4Addr::LOCALHOST,
        };
        let info = ChannelInfo {
            name: "torn".into(),
            fan_outs: vec![FanOutOffer::Udp { lines: vec![line] }],
            directory: Vec::new(),
            heartbeat: HeartbeatConfig::default(),
        };
        let config = RepairConfig {
            repair_bytes_per_s: 1 << 40,
            repair_burst_bytes: 1 << 30,
            subscriber_bytes_per_s: 1 << 40,
            subscriber_burst_bytes: 1 << 30,
            multicast_repair: false,
            ..RepairConfig::default()
        };
        let channels = vec![(info, ring.reader(), Arc::default())];
        let now = Now {
            monotonic: start,
            utc: start,
        };
        let mut repair =
            RepairCore::new(config, "p".into(), channels, Arc::default(), [1; 32], now);
        let offer = RepairOffer::Verbs {
            address: SocketAddrV4::new(crate::device::address(), 1),
            read: true,
            mirror: false,
        };
        repair.set_repair_offers(vec![offer]);
        Self {
            subscriber,
            repair,
            ring: ring.reader(),
            sides,
            remote,
            heard: Heard {
                feed,
                next: 1,
                payload: (Sequence::NONE, Vec::new()),
            },
            heard_of: Sequence::NONE,
            begun: VecDeque::new(),
            brought: Brought::default(),
            read: Arc::default(),
            peers: BTreeMap::new(),
            last_peer: 0,
            frames: Vec::new(),
            since: Instant::now(),
        }
    }

    fn counters(&self) -> &ReceiverCounters {
        self.subscriber.counters().next().unwrap()
    }

    /// Runs one round of both cores.
    fn round(&mut self) {
        self.take_reads();
        self.beat();
        let (now, heard) = (self.now(), &mut self.heard);
        let on = &mut |item: Item<'_>| heard.item(item);
        self.subscriber
            .handle(now.monotonic, SubscriberInput::Timeout, on);
        self.repair.handle(now, RepairInput::Timeout);
        self.act(now);
        self.converse(now);
        self.act(now);
        self.begin_reads();
    }

    /// Sends the subscriber a heartbeat and no datagrams, so that it has to READ all of them.
    fn beat(&mut self) {
        let sealed = self.ring.sealed();
        if sealed == self.heard_of || !self.subscriber.is_joined() {
            return;
        }
        self.heard_of = sealed;
        let (now, heard) = (self.now().monotonic, &mut self.heard);
        let mut aligned = AlignedCopy::default();
        let beat = heard.feed.heartbeat(sealed);
        let beat = aligned.of(&beat);
        let on = &mut |item: Item<'_>| heard.item(item);
        (self.subscriber).handle_bytes(now, (CHANNEL, LineId(0)), beat, false, on);
    }

    fn act(&mut self, now: Now) {
        let heard = &mut self.heard;
        while let Some(action) = self.subscriber.poll_action() {
            match action {
                Action::Connect(path) => {
                    self.last_peer += 1;
                    let peer = PeerId(self.last_peer);
                    self.peers.insert(peer, path);
                    self.repair.handle(
                        now,
                        RepairInput::Connected(
                            peer,
                            Carrier::Verbs,
                            PeerOrigin::V4(Ipv4Addr::LOCALHOST),
                        ),
                    );
                    let limits = ReadLimits {
                        reads: self.sides.reader.reads_depth(),
                        len_max: heard.feed.geometry.slot_len() as u32,
                        writes: 0,
                    };
                    self.subscriber.handle(
                        now.monotonic,
                        SubscriberInput::Limits(limits),
                        &mut |_: Item<'_>| (),
                    );
                    self.subscriber.handle(
                        now.monotonic,
                        SubscriberInput::Connected(path),
                        &mut |_: Item<'_>| (),
                    );
                }
                Action::Disconnect(path) => {
                    let gone = self.peers.iter().find(|(_, it)| **it == path);
                    if let Some(peer) = gone.map(|(peer, _)| *peer) {
                        self.peers.remove(&peer);
                        self.repair.handle(now, RepairInput::Disconnected(peer));
                    }
                }
                Action::Listen(_) => {
                    (self.subscriber).handle(
                        now.monotonic,
                        SubscriberInput::Listening {
                            channel: CHANNEL,
                            lines: 1,
                        },
                        &mut |_: Item<'_>| (),
                    );
                }
                Action::Rejoin(_) => {}
                Action::Rejected(_) | Action::Inbox(..) => panic!("{action:?}"),
            }
        }
        while let Some(event) = self.repair.poll() {
            match event {
                RepairEvent::ReadJoined { peer, .. } => {
                    let ring = RemoteAccess {
                        address: self.remote.address,
                        len: self.remote.len as u64,
                        key: self.remote.key,
                    };
                    assert!(self.repair.grant(now, peer, CHANNEL, ring));
                }
                RepairEvent::Close { peer, .. } => {
                    if let Some(path) = self.peers.remove(&peer) {
                        let (at, why) = (now.monotonic, LinkDownReason::Closed);
                        let on = &mut |item: Item<'_>| heard.item(item);
                        self.subscriber
                            .handle(at, SubscriberInput::Disconnected(path, why), on);
                    }
                }
                _ => {}
            }
        }
    }

    /// Passes the messages between the two cores.
    fn converse(&mut self, now: Now) {
        let heard = &mut self.heard;
        let mut said = std::mem::take(&mut self.frames);
        loop {
            said.clear();
            let on = &mut |item: Item<'_>| heard.item(item);
            self.subscriber
                .handle(now.monotonic, SubscriberInput::Poll, on);
            let Some(path) = self.subscriber.poll_transmit(&mut said) else {
                break;
            };
            let by = self.peers.iter().find(|(_, it)| **it == path);
            let by = by.map(|(peer, _)| *peer).unwrap();
            let mut rest = &said[..];
            while let Some((channel, message, len)) = Message::read(rest, 1 << 20).unwrap() {
                self.repair
                    .handle(now, RepairInput::Message(by, channel, &message));
                rest = &rest[len..];
            }
        }
        loop {
            said.clear();
            let Some(to) = self.repair.poll_transmit(now, &mut said) else {
                break;
            };
            let Destination::Peer(to) = to else {
                panic!("{to:?}");
            };
            let Some(path) = self.peers.get(&to).copied() else {
                continue;
            };
            let mut rest = &said[..];
            while let Some((channel, message, len)) = Message::read(rest, 1 << 20).unwrap() {
                let on = &mut |item: Item<'_>| heard.item(item);
                (self.subscriber).handle(
                    now.monotonic,
                    SubscriberInput::message(path, channel, &message),
                    on,
                );
                rest = &rest[len..];
            }
        }
        self.frames = said;
    }

    fn begin_reads(&mut self) {
        while let Some(request) = self.subscriber.poll_remote() {
            let slot = match request.what {
                RemoteOp::Slots(range) => {
                    assert_eq!(range.len(), 1, "{range} is more than a slot");
                    Some(range.first)
                }
                RemoteOp::Page => None,
                RemoteOp::Claim(_) | RemoteOp::Report(_) => panic!("there is no cursor"),
            };
            let at = RemoteMemory {
                address: request.address,
                key: request.key,
                len: request.len as usize,
            };
            let reader = &mut self.sides.reader;
            reader.read_remote(at, 0, at.len, request.tag).unwrap();
            self.begun.push_back((request.tag, slot));
        }
    }

    fn take_reads(&mut self) {
        let now = self.now().monotonic;
        while let Some(completed) = self.sides.reader.take_completed() {
            let Completed::Read { tag, bytes } = completed else {
                panic!("{completed:?}");
            };
            let (begun, slot) = self.begun.pop_front().unwrap();
            assert_eq!(tag, begun);
            let counters = self.subscriber.counters().next().unwrap();
            let before = counters.read_repairs_received.get();
            let heard = &mut self.heard;
            let on = &mut |item: Item<'_>| heard.item(item);
            self.subscriber
                .handle(now, SubscriberInput::Read { tag, bytes }, on);
            let Some(sequence) = slot else { continue };
            self.read.fetch_max(sequence.0, Ordering::Relaxed);
            let counters = self.subscriber.counters().next().unwrap();
            let taken = counters.read_repairs_received.get() > before;
            let sealed = self.heard.feed.datagram(sequence);
            let is_whole = bytes[..sealed.len()] == sealed;
            let names_it = bytes[16..24] == sequence.0.to_le_bytes();
            assert!(!taken || is_whole, "{sequence} was taken, and is a mixture");
            self.brought.reads += 1;
            self.brought.whole += u64::from(taken);
            self.brought.mixed += u64::from(names_it && !is_whole);
        }
        assert!(self.sides.reader.advance(), "{:?}", self.sides.reader.end());
    }
}

/// Stops a thread when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// READs a whole ring while it is sealed, until enough slots were lapped, `torn_min` torn, and `mixed_min`
/// held parts of two datagrams; then READs the rest. All published datagrams are delivered or reported lost.
fn read_while_it_is_sealed(slot_len: u32, torn_min: u64, mixed_min: u64) {
    let geometry = Geometry::new(slot_len, SLOTS).unwrap();
    let feed = Feed { geometry };
    let identity = RingIdentity {
        channel: CHANNEL,
        epoch: EPOCH,
        config_hash: ConfigHash(1),
        boot_id: [1; 16],
        fan_outs: 1,
        first_sequence: Sequence(1),
        first_record: RecordNumber(1),
    };
    let memory = SharedMapping::memfd("torn", geometry.bytes()).unwrap();
    let ring = RingWriter::create(Arc::new(memory), geometry, identity).unwrap();
    let (device, mut listener) = Sides::listener_of(READS);
    let memory = ReadableMemory::register(listener.device(), ring.memory()).unwrap();
    let mut sides = Sides::with(&device, &mut listener, &reading(READS));
    let (_, remote) = sides.grant(&memory, 0, geometry.bytes());
    let mut world = World::new(feed, &ring, sides, remote);
    until("it never may READ", || {
        world.round();
        world.counters().read_links_up.get() > 0
    });
    let (read, stop) = (Arc::clone(&world.read), AtomicBool::new(false));
    let published = std::thread::scope(|scope| {
        // Stops the writer even if an assertion fails.
        let stops = Stop(&stop);
        let feeding = scope.spawn(|| feed.run(ring, &read, &stop));
        let enough = |world: &World| {
            let c = world.counters();
            let (torn, lapped) = (c.reads_torn.get(), c.reads_lapped.get());
            let Brought { whole, mixed, .. } = world.brought;
            torn >= torn_min && lapped >= ENOUGH && whole >= ENOUGH && mixed >= mixed_min
        };
        while !enough(&world) {
            world.round();
            let (c, brought) = (world.counters(), &world.brought);
            assert!(brought.reads < READS_MAX, "{brought:?} {c:?}");
        }
        drop(stops);
        feeding.join().unwrap()
    });
    let records = published * feed.records() as u64;
    until("the rest never came", || {
        world.round();
        let c = world.counters();
        world.heard_of.0 == published
            && c.missing_open.get() == 0
            && c.delivered_records.get() + c.lost_records.get() >= records
    });
    let (c, brought) = (world.counters(), &world.brought);
    println!(
        "slots of {slot_len}: {published} sealed, {brought:?}; torn {}, lapped {}, records delivered {}, lost {}, NACKed {}",
        c.reads_torn.get(),
        c.reads_lapped.get(),
        c.delivered_records.get(),
        c.lost_records.get(),
        c.nacked_sequences.get(),
    );
    assert_eq!(c.delivered_records.get() + c.lost_records.get(), records);
    assert_eq!(
        c.missing_datagrams.get(),
        c.missing_recovered.get() + c.missing_lost.get()
    );
    assert_eq!(c.losses_of_unknown_size.get(), 0);
    assert!(c.delivered_records.get() >= brought.whole);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn torn_slots_of_many_packets_are_detected() {
    // The device sends each slot in three packets, and the writer may write between them.
    read_while_it_is_sealed(8960, 30, 3);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn torn_slots_of_one_packet_are_detected() {
    // Here most torn slots show in the header; a mixture under the right header is rare.
    read_while_it_is_sealed(1024, 20, 0);
}
