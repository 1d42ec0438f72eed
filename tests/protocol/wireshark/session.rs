//! A recorded session: datagrams of the product's own publisher and its control messages, then damaged ones.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tickcast_reliability::control::{
    Announced, ChannelName, ChannelOffer, FanOutOffer, Grant, HeartbeatLimits, History, Instrument,
    Join, JoinChannel, LatencyReport, Message, MirrorRefusal, MirrorRefused, Mirroring, NackClass,
    Progress, Purpose, RefusalReason, Refused, RejectCode, Rejected, RemoteAccess, RepairOffer,
    Start, Status, UdpLine, VerbsLine, Welcome,
};
use tickcast_reliability::publish::{PublisherConfig, PublisherCore, Transmit};
use tickcast_reliability::ring::{Geometry, HeapMemory, RingIdentity, RingWriter};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Continued, Epoch, FanOutId, Lineage, Nanos, Now, RecordNumber, Sequence,
    SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::authentication::{Key, NumberedKey};
use tickcast_reliability::wire::{
    CrcVerdict, Datagram, Header, Heartbeat, Kind, PublisherState, RELAY_OFFSET, datagram_flags,
    relay_flags,
};

use super::datagram;
use super::sealed::{encoded, sealed};
use super::shown::Expected;
use super::{names, records};

pub(super) const EPOCH: Epoch = Epoch(0x0102_0304_0506_0708);
const CHANNEL: ChannelId = ChannelId(0x0304);
const CONNECTION: ChannelId = ChannelId(0);
const SOURCE: SourceId = SourceId(7);
const UTC: u64 = 1_700_000_000_123_456_789;
const LINE: FanOutId = FanOutId(0);

/// Returns the datagrams of a publisher: records and events of each kind, heartbeats in between, and END.
pub(super) fn datagrams() -> Vec<Vec<u8>> {
    let mut publisher = Published::new();
    for event in names::each_event() {
        publisher
            .core
            .event(&event, publisher.now)
            .expect("an event is sealed");
        publisher.send();
    }
    for (position, sample) in records::samples().iter().enumerate() {
        let position = SourcePosition::new(2, 100 + position as u64);
        let now = publisher.now;
        let published = publisher.core.publish(sample, SOURCE, position, now);
        published.expect("the message fits");
        // Some datagrams hold records of several types.
        if !position.sequence().is_multiple_of(3) {
            publisher
                .core
                .flush(now, position.sequence().is_multiple_of(2));
        }
        publisher.send();
    }
    publisher.core.set_group(65, 250);
    publisher.core.end(publisher.now).expect("it ends once");
    for _ in 0..3 {
        publisher.send();
    }
    publisher.sent
}

/// A publisher's core, and the datagrams that it sent.
struct Published {
    core: PublisherCore,
    now: Now,
    sent: Vec<Vec<u8>>,
}

impl Published {
    fn new() -> Self {
        let geometry = Geometry::new(1_472, 256).expect("a possible shape");
        let identity = RingIdentity {
            channel: CHANNEL,
            epoch: EPOCH,
            config_hash: ConfigHash(0x1122_3344_5566_7788),
            boot_id: [1; 16],
            fan_outs: 1,
            first_sequence: Sequence::FIRST,
            first_record: RecordNumber::FIRST,
        };
        let memory = Arc::new(HeapMemory::new(geometry));
        let ring = RingWriter::create(memory, geometry, identity).expect("the memory is enough");
        let config = PublisherConfig::default();
        let now = Now {
            monotonic: Nanos(1),
            utc: Nanos(UTC),
        };
        Self {
            core: PublisherCore::new(config, ring, Arc::default(), now.monotonic),
            now,
            sent: Vec::new(),
        }
    }

    /// Lets time pass to the next heartbeat, and sends everything that is due.
    fn send(&mut self) {
        let due = self.core.poll_timeout().expect("it has not stopped");
        let passed = due.since(self.now.monotonic);
        self.now = Now {
            monotonic: due,
            utc: self.now.utc.after(passed),
        };
        self.core.handle_timeout(self.now);
        while let Some(transmit) = self.core.poll_transmit(LINE) {
            match transmit {
                Transmit::Slots(range) => {
                    for sequence in range.iter() {
                        let slot = self.core.slot(sequence).expect("it is sealed");
                        let datagram = Datagram::parse(slot).expect("a datagram");
                        self.sent.push(datagram.bytes().to_vec());
                    }
                    self.core.handle_posted(LINE, range.last);
                    self.core.handle_completed(LINE, range.last);
                }
                Transmit::Heartbeat(bytes) => self.sent.push(bytes.to_vec()),
            }
        }
    }
}

/// Returns datagrams that a receiver drops, repairs, or reads in part.
pub(super) fn unusual_datagrams() -> Vec<Vec<u8>> {
    let good = datagrams();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good[good.len() / 2].clone();
        change(&mut bytes);
        bytes
    };
    let trade = records::samples()[0].bytes().to_vec();
    let base = *Datagram::parse(&sealed(1, &trade))
        .expect("a datagram")
        .header();
    let of_kind = |kind, payload: &[u8]| {
        let header = Header {
            kind,
            count: 0,
            ..base
        };
        encoded(&header, &[], payload)
    };
    let heartbeat = Heartbeat {
        next_interval_us: 10_000,
        hold_off_us: 250,
        subscribers: 65,
        state: PublisherState::Standby,
        config_hash: ConfigHash(u64::MAX - 1),
    };
    let body = heartbeat.to_bytes();
    let heartbeat = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut body = body.to_vec();
        change(&mut body);
        of_kind(Kind::Heartbeat, &body)
    };
    let event = |of: [u16; 4], len: usize| {
        let mut body = of.map(u16::to_le_bytes).concat();
        body.resize(len, 0xab);
        of_kind(Kind::Event, &body)
    };
    let tagged = |extensions: &[u8]| {
        let flags = datagram_flags::TAGGED;
        encoded(&Header { flags, ..base }, extensions, &trade)
    };
    vec![
        // Sent again by a relay, with padding, with an extension, and sent again beyond a gap.
        with(&|bytes| bytes[RELAY_OFFSET] |= relay_flags::RETRANSMITTED | 5),
        with(&|bytes| bytes.extend([0; 20])),
        encoded(
            &Header {
                flags: datagram_flags::SNAPSHOT,
                ..base
            },
            &[0xcc; 24],
            &trade,
        ),
        // With a tag, one with a further extension, and with the flag alone.
        tagged(&[0xdd; 16]),
        tagged(&[0xdd; 24]),
        tagged(&[0xdd; 8]),
        encoded(
            &Header {
                relay: relay_flags::RETRANSMITTED,
                sequence: Sequence(2_000),
                ..base
            },
            &[],
            &trade,
        ),
        encoded(
            &Header {
                flags: 0xffff,
                sequence: Sequence(u64::MAX - 1),
                ..base
            },
            &[],
            &trade,
        ),
        encoded(
            &Header {
                retained: 0,
                count: 0,
                ..base
            },
            &[],
            &[],
        ),
        encoded(
            &Header {
                retained: u32::MAX,
                ..base
            },
            &[],
            &trade,
        ),
        // No datagrams.
        with(&|bytes| bytes.truncate(63)),
        with(&|bytes| bytes.truncate(90)),
        with(&|bytes| bytes[0] = b'X'),
        with(&|bytes| bytes[2] = 2),
        with(&|bytes| bytes[3] = 5),
        with(&|bytes| bytes[58] = 7),
        with(&|bytes| bytes[8..16].fill(0)),
        with(&|bytes| bytes[16..24].fill(0)),
        // A wrong CRC, and unreadable records.
        with(&|bytes| bytes[40] ^= 1),
        with(&|bytes| bytes[60] ^= 1),
        sealed(2, &trade),
        sealed(1, &trade[..40]),
        sealed(1, &trade[..8]),
        sealed(2, &[&trade[..], &[0xee; 64]].concat()),
        // Bodies that end early, are longer than known, or have unknown numbers.
        heartbeat(&|body| body.truncate(23)),
        heartbeat(&|body| body[12] = 9),
        heartbeat(&|body| body.extend([1, 2, 3])),
        of_kind(Kind::Heartbeat, &[]),
        of_kind(Kind::End, &[1, 2]),
        of_kind(Kind::Event, &[]),
        event([99, 0, 0, 0], 24),
        event([1, 9, 0, 0], 24),
        event([1, 1, 3, 2], 30),
        event([2, 2, 200, 0], 24),
        event([3, 1, 3, 0], 24),
        event([4, 0, 3, 1], 28),
        event([2, 1, 0, 0], 20),
    ]
}

/// Follows the lines of a capture, and expects a note on each gap.
#[derive(Default)]
pub(super) struct Gaps(BTreeMap<(ChannelId, Epoch), Sequence>);

impl Gaps {
    /// Returns what `tshark` must show of the next datagram of the line.
    pub(super) fn expected(&mut self, bytes: &[u8]) -> Expected {
        let mut expected = datagram::expected(bytes, bytes.len());
        let Ok(datagram) = Datagram::parse(bytes) else {
            return expected;
        };
        let header = datagram.header();
        let is_again = header.relay & relay_flags::RETRANSMITTED != 0;
        if datagram.verdict() == CrcVerdict::Bad || is_again {
            return expected;
        }
        let next = self.0.entry((header.channel, header.epoch));
        let next = next.or_insert(Sequence::NONE);
        let before = match header.kind {
            Kind::Heartbeat => header.sequence,
            Kind::Data | Kind::Event | Kind::End => header.sequence.previous(),
        };
        if *next != Sequence::NONE && *next <= before {
            let gap = SequenceRange {
                first: *next,
                last: before,
            };
            let gap = format!("Missing on this line: {gap}");
            match expected.then.is_empty() {
                true => expected.text("tickcast.gap", gap),
                false => expected.then.push("tickcast.gap".to_owned()),
            }
        }
        *next = (*next).max(header.sequence.next());
        expected
    }
}

/// Returns all messages of a subscriber.
pub(super) fn to_publisher() -> Vec<u8> {
    let wanted = |channel, start, confirmed_epoch| JoinChannel {
        channel,
        start,
        confirmed_epoch: Epoch(confirmed_epoch),
    };
    let join = |purpose, channels| {
        Message::Join(Join {
            authentication: true,
            name: "risk-1".into(),
            wire_versions: vec![1],
            purpose,
            channels,
        })
    };
    let range = |first, last| SequenceRange {
        first: Sequence(first),
        last: Sequence(last),
    };
    let nack = |class, ranges| Message::Nack {
        epoch: EPOCH,
        class,
        ranges,
    };
    let channels = vec![
        wanted(ChannelName::Name("equities".into()), Start::Live, 0),
        wanted(ChannelName::Id(CHANNEL), Start::Oldest, 3),
        wanted(
            ChannelName::Id(ChannelId(6)),
            Start::At(Epoch(9), Sequence(1_001)),
            u64::MAX,
        ),
    ];
    let progress = Progress {
        epoch: EPOCH,
        sequence: Sequence(989),
        lost_records: 12,
        heard: Sequence(1_000),
        sent_at: Nanos(123_456_789),
        read_bytes: 14_720,
    };
    let mirroring = Mirroring {
        epoch: EPOCH,
        attempt: 2,
        inbox: RemoteAccess {
            address: 0x7f00_3234_6000,
            len: 1024 * 1472,
            key: 0x0012_36ab,
        },
    };
    let latency = LatencyReport::from_words(&std::array::from_fn(|at| 7_000 + at as u64));
    let many = (1..=256).map(|n| range(3 * n, 3 * n + 1)).collect();
    frames(&[
        (CONNECTION, join(Purpose::Repair, channels)),
        (
            CONNECTION,
            join(Purpose::Replay { session: u64::MAX }, vec![]),
        ),
        (CONNECTION, join(Purpose::Nack { session: 77 }, vec![])),
        (
            CONNECTION,
            join(
                Purpose::Read {
                    session: 77,
                    attempt: 2,
                },
                vec![],
            ),
        ),
        (
            CHANNEL,
            nack(
                NackClass::Repair,
                vec![range(990, 990), range(992, u64::MAX)],
            ),
        ),
        (CHANNEL, nack(NackClass::Replay, many)),
        (CHANNEL, nack(NackClass::Repair, vec![])),
        (CHANNEL, Message::Progress(progress)),
        (CHANNEL, Message::Mirror(mirroring)),
        (CHANNEL, Message::Latency(Box::new(latency))),
        (CHANNEL, Message::Latency(Box::default())),
        (CONNECTION, Message::Leave),
    ])
}

/// Returns all messages of a publisher, with each reason.
pub(super) fn to_subscriber() -> Vec<u8> {
    let sent = datagrams();
    let again = |at: usize| {
        let mut bytes = sent[at].clone();
        bytes[RELAY_OFFSET] |= relay_flags::RETRANSMITTED;
        bytes
    };
    let (event, data) = (again(0), again(sent.len() / 2));
    let status = |ended| {
        Message::Status(Status {
            epoch: EPOCH,
            newest: Sequence(1_002),
            oldest: Sequence(103),
            next_record: RecordNumber(5_004),
            echo: Nanos(123_456_789),
            answered_at: Nanos(UTC),
            ended,
        })
    };
    let refused = |reason, oldest_record| {
        Message::Refused(Refused {
            epoch: EPOCH,
            range: SequenceRange {
                first: Sequence(90),
                last: Sequence(100),
            },
            reason,
            retry_after_us: 100,
            oldest: Sequence(101),
            oldest_record: RecordNumber(oldest_record),
        })
    };
    let grant = |cursor| {
        Message::Grant(Grant {
            epoch: EPOCH,
            attempt: 2,
            ring: RemoteAccess {
                address: 0x7f00_1234_5000,
                len: 4096 + 1024 * 1472,
                key: 0x0012_34ab,
            },
            tokens: 65_536,
            cursor,
        })
    };
    let cursor = RemoteAccess {
        address: 0x7f00_2234_5040,
        len: 64,
        key: 0x0012_35ab,
    };
    let rejected = Message::Rejected(Rejected {
        code: RejectCode::UnknownChannel,
        text: "there is no channel bonds; ask for one of these".into(),
        retry_after_ms: 250,
    });
    let mut messages = vec![
        (CONNECTION, Message::Welcome(welcome())),
        (CHANNEL, Message::Datagram(&event)),
        (CHANNEL, Message::Datagram(&data)),
        (CHANNEL, status(false)),
        (CHANNEL, status(true)),
        (CHANNEL, grant(None)),
        (CHANNEL, grant(Some(cursor))),
        (CONNECTION, rejected),
    ];
    for (oldest_record, reason) in [
        RefusalReason::Window,
        RefusalReason::Ahead,
        RefusalReason::Budget,
        RefusalReason::TooSlow,
        RefusalReason::Epoch,
        RefusalReason::Malformed,
    ]
    .into_iter()
    .enumerate()
    {
        messages.push((CHANNEL, refused(reason, oldest_record as u64)));
    }
    for reason in [
        MirrorRefusal::NotAllowed,
        MirrorRefusal::Epoch,
        MirrorRefusal::Attempt,
        MirrorRefusal::Shape,
        MirrorRefusal::Impossible,
        MirrorRefusal::Denied,
    ] {
        let refused = MirrorRefused {
            epoch: EPOCH,
            attempt: 2,
            reason,
        };
        messages.push((CHANNEL, Message::MirrorRefused(refused)));
    }
    let of = NumberedKey {
        number: 7,
        key: Key::new([0xab; 32]),
    };
    messages.push((CHANNEL, Message::Key(Announced { epoch: EPOCH, of })));
    frames(&messages)
}

fn welcome() -> Welcome {
    let (sender, group) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(239, 1, 2, 3));
    let udp = UdpLine {
        group: "239.1.2.3:7500".parse().expect("an address"),
        sender,
    };
    let verbs = VerbsLine {
        group,
        sender,
        gid: sender.to_ipv6_mapped(),
    };
    Welcome {
        latency: false,
        wire_version: 1,
        publisher: "nyc-1".into(),
        session: u64::MAX,
        channels: vec![ChannelOffer {
            authentication: None,
            channel: CHANNEL,
            name: "equities".into(),
            epoch: EPOCH,
            newest: Sequence(1_000),
            oldest: Sequence(901),
            oldest_record: RecordNumber(4_500),
            next_record: RecordNumber(5_003),
            slot_len: 1_472,
            slots: 1_024,
            config_hash: ConfigHash(0x1122_3344_5566_7788),
            ended: false,
            fan_outs: vec![
                FanOutOffer::Udp { lines: vec![udp] },
                FanOutOffer::Verbs {
                    lines: vec![verbs],
                    q_key: 1_953_063_787,
                },
                FanOutOffer::Shm {
                    path: "/dev/shm/tickcast-equities".into(),
                    fan_out: 2,
                    boot_id: "0123456789abcdef0123456789abcdef".into(),
                },
            ],
            directory: vec![Instrument {
                id: 77,
                symbol: "BRK.A".into(),
            }],
            continues: Lineage::from(vec![Continued {
                epoch: Epoch(7),
                last: Sequence(900),
                next_record: RecordNumber(4_500),
                complete: false,
            }]),
            history: Some(History {
                oldest: Sequence(101),
                oldest_record: RecordNumber(401),
            }),
            heartbeats: HeartbeatLimits::default(),
        }],
        repairs: vec![RepairOffer::Verbs {
            address: "10.0.0.1:7410".parse().expect("an address"),
            read: true,
            mirror: true,
        }],
    }
}

fn frames(messages: &[(ChannelId, Message<'_>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (channel, message) in messages {
        message.write(*channel, &mut bytes);
    }
    bytes
}

/// Returns a frame of any type and body.
pub(super) fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend([kind, 0, 4, 0]);
    frame.extend(body);
    frame
}

/// Returns messages that end a connection. The dissector notes each.
pub(super) fn bad_frames() -> Vec<Vec<u8>> {
    let with = |len: usize, at: usize, byte: u8| {
        let mut body = vec![0; len];
        body[at] = byte;
        body
    };
    let nack = |n: u16, ranges: &[u64]| {
        let mut body = EPOCH.0.to_le_bytes().to_vec();
        body.extend([1, 0]);
        body.extend(n.to_le_bytes());
        body.extend([0; 4]);
        body.extend(ranges.iter().flat_map(|end| end.to_le_bytes()));
        body
    };
    let mut too_long = frame(1, &[]);
    too_long[..4].copy_from_slice(&(64 * 1024 + 1_u32).to_le_bytes());
    let mut far_too_long = frame(2, &[]);
    far_too_long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    vec![
        frame(0, &[]),
        frame(13, &[1, 2, 3]),
        too_long,
        far_too_long,
        frame(1, &[]),
        frame(2, b"[]"),
        frame(3, b"none"),
        frame(4, &[0; 15]),
        frame(4, &with(16, 8, 3)),
        frame(4, &nack(1, &[5])),
        frame(4, &nack(1, &[0, 5])),
        frame(4, &nack(1, &[6, 5])),
        frame(4, &nack(257, &[1; 514])),
        frame(6, &[0; 47]),
        frame(6, &with(48, 44, 7)),
        frame(6, &with(48, 8, 1)),
        frame(7, &[0; 39]),
        frame(8, &[0; 55]),
        frame(10, &[0; 47]),
        frame(11, &[0; 39]),
        frame(12, &[0; 23]),
        frame(12, &with(24, 16, 9)),
    ]
}
