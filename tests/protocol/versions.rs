//! Rolling upgrades. Today's publisher serves a subscriber of wire version 1, and today's subscriber
//! follows a publisher of version 1, both as they were when version 1 was frozen. Both also accept a
//! newer peer. tests/golden/version-1.talk is the transcript of that time, and never changes
//! (docs/PROTOCOL.md §13).

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;

use serde_json::{Value, json};
use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_SUBSCRIBER, ChannelName, ControlError, FRAME_HEAD_LEN, FanOutOffer, Instrument,
    Message, RejectCode, Start, UdpLine,
};
use tickcast_reliability::delivery::{Event, Item, LineId, LinkDownReason};
use tickcast_reliability::publish::{HeartbeatConfig, PublisherConfig, PublisherCore, Transmit};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::record::{
    Action, FlagSet, MboMsg, RType, RecordBatch, RecordHeader, Side, TradeMsg, flags,
    words_as_bytes,
};
use tickcast_reliability::ring::{Geometry, HeapMemory, RingIdentity, RingWriter};
use tickcast_reliability::serve::{
    Carrier, ChannelInfo, Destination, PeerId, RepairConfig, RepairCore, RepairEvent, RepairInput,
};
use tickcast_reliability::session::{
    ChannelWanted, LinkTimers, Path, SubscriberCore, SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, FanOutId, Nanos, Now, PeerOrigin, RecordNumber,
    RepairServiceCounters, Sequence, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{
    Datagram, EpochReason, Header, Kind, SourceLossReason, StreamEvent, WireVersions, crc_of,
};
use xxhash_rust::xxh3::xxh3_64;

const TALK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/version-1.talk");
/// Hash of the transcript's bytes. A change of the transcript would redefine version 1.
const TALK_HASH: u64 = 0xbbc1_0314_8782_29df;
const EPOCH: Epoch = Epoch(0x0102_0304_0506_0708);
const CHANNEL: ChannelId = ChannelId(4);
const FAN_OUT: FanOutId = FanOutId(0);
const PEER: PeerId = PeerId(1);

/// One line of the transcript.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    /// The subscriber sends a frame.
    Says(Vec<u8>),
    /// The publisher answers with a frame.
    Answers(Vec<u8>),
    /// The publisher multicasts a datagram; the flag says whether it arrives.
    Multicast(Vec<u8>, bool),
    /// The application receives a record: number and bytes.
    Record(u64, Vec<u8>),
    /// The application receives the end of the session.
    End,
}

impl Line {
    fn read(text: &str) -> Option<Self> {
        let text = text.split('#').next().unwrap_or("").trim();
        let (what, rest) = text.split_once(' ').unwrap_or((text, ""));
        let bytes = |hex: &str| {
            let pairs = (0..hex.len() / 2).map(|n| u8::from_str_radix(&hex[n * 2..n * 2 + 2], 16));
            pairs.map(|byte| byte.expect("hexadecimal")).collect()
        };
        Some(match what {
            "" => return None,
            "says" => Self::Says(bytes(rest)),
            "answers" => Self::Answers(bytes(rest)),
            "multicasts" => Self::Multicast(bytes(rest), true),
            "loses" => Self::Multicast(bytes(rest), false),
            "record" => {
                let (number, hex) = rest.split_once(' ').expect("number and bytes");
                Self::Record(number.parse().expect("a number"), bytes(hex))
            }
            "end" => Self::End,
            _ => panic!("{text}"),
        })
    }

    fn write(&self) -> String {
        let (what, bytes) = match self {
            Self::Says(bytes) => ("says".to_owned(), bytes),
            Self::Answers(bytes) => ("answers".to_owned(), bytes),
            Self::Multicast(bytes, true) => ("multicasts".to_owned(), bytes),
            Self::Multicast(bytes, false) => ("loses".to_owned(), bytes),
            Self::Record(number, bytes) => (format!("record {number}"), bytes),
            Self::End => return "end".to_owned(),
        };
        format!("{what} {}", hex(bytes))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}

fn talk() -> Vec<Line> {
    let text = std::fs::read_to_string(TALK).expect("the talk is there");
    text.lines().filter_map(Line::read).collect()
}

fn speaks(oldest: u8, newest: u8) -> WireVersions {
    WireVersions::new(oldest, newest).expect("versions")
}

const fn at(us: u64) -> Now {
    Now {
        monotonic: Nanos::from_us(us),
        utc: Nanos(1_700_000_000_000_000_000 + us * 1_000),
    }
}

/// Today's publisher, as seen from outside.
struct Publisher {
    core: PublisherCore,
    repair: RepairCore,
    counters: Arc<RepairServiceCounters>,
    us: u64,
    /// Frames for the subscriber.
    said: Vec<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

impl Publisher {
    fn new(versions: WireVersions) -> Self {
        let geometry = Geometry::new(1024, 64).expect("a ring");
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
        let ring = RingWriter::create(memory, geometry, identity).expect("a ring");
        let info = ChannelInfo {
            name: "equities".into(),
            fan_outs: vec![FanOutOffer::Udp {
                lines: vec![UdpLine {
                    group: "239.1.2.3:7500".parse().expect("an address"),
                    sender: Ipv4Addr::new(10, 0, 0, 1),
                }],
            }],
            directory: vec![Instrument {
                id: 77,
                symbol: "ABC".into(),
            }],
            heartbeat: HeartbeatConfig::default(),
        };
        let served = vec![(info, ring.reader(), Arc::default())];
        let config = RepairConfig::default();
        let counters = Arc::<RepairServiceCounters>::default();
        let mut repair = RepairCore::new(
            config,
            "nyc-1".into(),
            served,
            counters.clone(),
            [7; 32],
            at(0),
        );
        repair.set_wire_versions(versions);
        let config = PublisherConfig {
            heartbeat: HeartbeatConfig::default(),
            fan_out_margin_slots: 0,
        };
        let core = PublisherCore::new(config, ring, Arc::default(), at(0).monotonic);
        let mut publisher = Self {
            core,
            repair,
            counters,
            us: 0,
            said: Vec::new(),
            sent: Vec::new(),
        };
        for step in 0..3 {
            publisher.publishes(step);
        }
        publisher.sent.clear();
        publisher.repair.handle(
            at(0),
            RepairInput::Connected(PEER, Carrier::Tcp, PeerOrigin::V4(Ipv4Addr::LOCALHOST)),
        );
        publisher
    }

    fn now(&mut self) -> Now {
        self.us += 10;
        at(self.us)
    }

    /// Publishes and sends the next message of the transcript.
    fn publishes(&mut self, step: u64) {
        let now = self.now();
        let position = SourcePosition::new(3, 100 + step);
        let mut batch = RecordBatch::default();
        let publish = |core: &mut PublisherCore, batch: &RecordBatch| {
            core.publish(batch, SourceId(7), position, now)
                .expect("published");
            core.flush(now, true);
        };
        match step {
            0 => {
                let opened = StreamEvent::EpochOpened {
                    reason: EpochReason::Restart,
                    previous: Epoch(EPOCH.0 - 1),
                    previous_last: Sequence::NONE,
                };
                self.core.event(&opened, now).expect("told");
            }
            1 => {
                batch.put(&trade(1));
                batch.put(&order(2));
                publish(&mut self.core, &batch);
            }
            3 => {
                let lost = StreamEvent::SourceLost {
                    source: SourceId(7),
                    reason: SourceLossReason::Gap,
                    from: position,
                    messages: 2,
                    instruments: vec![77],
                };
                self.core.event(&lost, now).expect("told");
            }
            2 | 4 => {
                batch.put(&order(step + 1));
                publish(&mut self.core, &batch);
            }
            5 => {
                batch.put(&trade(6));
                publish(&mut self.core, &batch);
            }
            6 => {
                self.us += 1_000;
                let now = self.now();
                self.core.handle_timeout(now);
            }
            _ => {
                self.core.end(now).expect("ended");
            }
        }
        while let Some(transmit) = self.core.poll_transmit(FAN_OUT) {
            match transmit {
                Transmit::Slots(range) => {
                    for sequence in range.iter() {
                        let slot = self.core.slot(sequence).expect("a slot");
                        self.sent.push(slot.to_vec());
                    }
                    self.core.handle_posted(FAN_OUT, range.last);
                    self.core.handle_completed(FAN_OUT, range.last);
                }
                Transmit::Heartbeat(bytes) => self.sent.push(bytes.to_vec()),
            }
        }
    }

    /// Handles a frame.
    fn hears(&mut self, frame: &[u8]) -> Result<(), ControlError> {
        let now = self.now();
        let (channel, message, len) = Message::read(frame, 1 << 16)?.expect("a whole frame");
        assert_eq!(len, frame.len());
        self.repair
            .handle(now, RepairInput::Message(PEER, channel, &message));
        self.says(now);
        self.us += 1_000;
        let now = self.now();
        self.repair.handle(now, RepairInput::Timeout);
        self.says(now);
        Ok(())
    }

    fn says(&mut self, now: Now) {
        let mut out = Vec::new();
        while let Some(destination) = self.repair.poll_transmit(now, &mut out) {
            assert_eq!(destination, Destination::Peer(PEER));
            let mut rest = &out[..];
            while !rest.is_empty() {
                let len = u32::from_le_bytes(rest[..4].try_into().expect("4 bytes")) as usize;
                let (frame, more) = rest.split_at(FRAME_HEAD_LEN + len);
                self.said.push(frame.to_vec());
                rest = more;
            }
            out.clear();
        }
    }

    /// Returns why it closes the connection, if it does.
    fn closes(&mut self) -> Option<RejectCode> {
        std::iter::from_fn(|| self.repair.poll()).find_map(|event| match event {
            RepairEvent::Close { reason, .. } => Some(reason.expect("a reason").code),
            _ => None,
        })
    }
}

fn trade(number: u64) -> TradeMsg {
    TradeMsg {
        hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 2, 77, 1_700_000_000_000_000_000),
        price: 101_500_000_000,
        size: number as u32,
        action: Action::Trade as _,
        side: Side::Bid as _,
        flags: FlagSet::new(flags::LAST),
        depth: 0,
        ts_recv: 1_700_000_000_000_000_002,
        ts_in_delta: -5,
        sequence: 9,
    }
}

fn order(number: u64) -> MboMsg {
    MboMsg {
        hd: RecordHeader::new::<MboMsg>(RType::Mbo as u8, 2, 77, 1_700_000_000_000_000_003),
        order_id: number,
        price: -250_000_000,
        size: 100,
        flags: FlagSet::new(flags::LAST),
        channel_id: 0,
        action: Action::Add as _,
        side: Side::Ask as _,
        ts_recv: 1_700_000_000_000_000_004,
        ts_in_delta: 6,
        sequence: 10,
    }
}

/// Returns whether a reader of `then` reads the same from `now`: fields may only have been added.
fn has_grown_from(then: &[u8], now: &[u8]) -> bool {
    const JSON: [u8; 3] = [1, 2, 3];
    const DATAGRAM: u8 = 5;
    let (head, body) = then.split_at(FRAME_HEAD_LEN);
    let (head_now, body_now) = now.split_at(FRAME_HEAD_LEN);
    if head[4..] != head_now[4..] {
        return false;
    }
    if JSON.contains(&head[4]) {
        let parse = |body| serde_json::from_slice::<Value>(body).expect("JSON");
        return has(&parse(body_now), &parse(body));
    }
    body_now == body || head[4] != DATAGRAM && body_now.starts_with(body)
}

/// Returns whether `now` contains all of `then`.
fn has(now: &Value, then: &Value) -> bool {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => then
            .iter()
            .all(|(key, then)| now.get(key).is_some_and(|now| has(now, then))),
        (Value::Array(now), Value::Array(then)) => {
            now.len() == then.len() && now.iter().zip(then).all(|(now, then)| has(now, then))
        }
        _ => now == then,
    }
}

/// Compares a publisher that speaks these versions with the publisher of the transcript.
fn serves(versions: WireVersions, talk: &[Line], then: &[Line]) {
    let mut publisher = Publisher::new(versions);
    let mut step = 3;
    for (line, then) in talk.iter().zip(then) {
        match (line, then) {
            (Line::Says(frame), _) => {
                assert!(publisher.said.is_empty(), "{:?}", publisher.said);
                publisher.hears(frame).expect("a message");
            }
            (_, Line::Answers(then)) => {
                assert!(!publisher.said.is_empty(), "no answer: {}", hex(then));
                let now = publisher.said.remove(0);
                assert!(has_grown_from(then, &now), "{}\n{}", hex(then), hex(&now));
            }
            (_, Line::Multicast(then, _)) => {
                publisher.publishes(step);
                step += 1;
                assert_eq!(hex(&publisher.sent.remove(0)), hex(then), "as it was then");
            }
            _ => {}
        }
    }
    assert!(publisher.said.is_empty() && publisher.sent.is_empty());
}

/// Today's subscriber.
struct Subscriber {
    core: SubscriberCore,
    us: u64,
    /// Its JOIN.
    join: Vec<u8>,
    given: Vec<Line>,
    down: Option<LinkDownReason>,
}

impl Subscriber {
    fn new(versions: WireVersions) -> Self {
        let settings = SubscriberSettings {
            name: "risk-1".into(),
            channels: vec![ChannelWanted {
                channel: ChannelName::Name("equities".into()),
                start: Start::Oldest,
                config: ReceiverConfig::default(),
                lines: None,
            }],
            link: LinkTimers::default(),
            seed: 1,
        };
        let mut core = SubscriberCore::new(settings, Nanos::ZERO);
        core.set_wire_versions(versions);
        let mut subscriber = Self {
            core,
            us: 0,
            join: Vec::new(),
            given: Vec::new(),
            down: None,
        };
        subscriber.turn(|_, _, _| {});
        let mut said = subscriber.turn(|core, now, _| {
            core.handle(
                now,
                SubscriberInput::Connected(Path::Repair),
                &mut |_: Item<'_>| (),
            );
        });
        subscriber.join = said.remove(0);
        subscriber
    }

    /// Handles a multicast datagram.
    fn hears(&mut self, bytes: &[u8]) {
        let mut words = vec![0_u64; bytes.len().div_ceil(8)];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let aligned = &words_as_bytes(&words)[..bytes.len()];
        self.turn(|core, now, mut on| {
            core.handle_bytes(now, (CHANNEL, LineId(0)), aligned, false, &mut on);
        });
    }

    /// Gives the core an input, and returns its frames.
    fn turn(
        &mut self,
        input: impl FnOnce(&mut SubscriberCore, Nanos, &mut dyn FnMut(Item<'_>)),
    ) -> Vec<Vec<u8>> {
        self.us += 10;
        let (now, given, down) = (Nanos::from_us(self.us), &mut self.given, &mut self.down);
        let mut on = |item: Item<'_>| match item {
            Item::Record(position, record) => {
                given.push(Line::Record(position.record.0, record.as_ref().to_vec()));
            }
            Item::Event(_, Event::EndOfSession) => given.push(Line::End),
            Item::Event(_, Event::RepairLinkDown(reason)) => *down = Some(*reason),
            Item::Event(_, Event::Lost(loss)) => panic!("{loss}"),
            Item::Event(..) => {}
        };
        let core = &mut self.core;
        input(core, now, &mut on);
        core.handle(now, SubscriberInput::Timeout, &mut |item: Item<'_>| {
            on(item);
        });
        let (mut out, mut said) = (Vec::new(), Vec::new());
        loop {
            core.handle(now, SubscriberInput::Poll, &mut |item: Item<'_>| on(item));
            let Some(path) = core.poll_transmit(&mut out) else {
                break;
            };
            assert_eq!(path, Path::Repair);
            said.push(std::mem::take(&mut out));
        }
        while core.poll_action().is_some() {}
        said
    }
}

/// Compares the output of a subscriber that speaks these versions with the transcript.
fn follows(versions: WireVersions, talk: &[Line]) {
    let mut subscriber = Subscriber::new(versions);
    for line in talk {
        match line {
            Line::Answers(frame) => {
                let read = Message::read(frame, BODY_LEN_MAX_TO_SUBSCRIBER).expect("a message");
                let (channel, message, _) = read.expect("a whole frame");
                subscriber.turn(|core, now, mut on| {
                    core.handle(
                        now,
                        SubscriberInput::message(Path::Repair, channel, &message),
                        &mut on,
                    );
                });
            }
            Line::Multicast(bytes, true) => {
                subscriber.hears(bytes);
            }
            _ => {}
        }
    }
    let is_given = |line: &&Line| matches!(line, Line::Record(..) | Line::End);
    let then: Vec<Line> = talk.iter().filter(is_given).cloned().collect();
    assert_eq!(subscriber.given, then);
    assert_eq!(subscriber.down, None);
}

/// Returns a frame as a peer of a later version may send it, with unknown additions.
fn grown(frame: &[u8]) -> Vec<u8> {
    const DATAGRAM: u8 = 5;
    let (head, body) = frame.split_at(FRAME_HEAD_LEN);
    let body = match head[4] {
        1..=3 => {
            let mut json: Value = serde_json::from_slice(body).expect("JSON");
            let more = json!({ "of a later version": [1, { "x": null }] });
            json["later"] = more.clone();
            if head[4] == 1 {
                json["wire_versions"] = json!([9, 2, 1]);
            }
            for channel in json["channels"].as_array_mut().into_iter().flatten() {
                channel["later"] = more.clone();
                for fan_out in channel["fan_outs"].as_array_mut().into_iter().flatten() {
                    fan_out["later"] = more.clone();
                }
                if let Some(fan_outs) = channel["fan_outs"].as_array_mut() {
                    fan_outs.insert(0, json!({ "transport": "later", "lines": 7 }));
                }
            }
            if head[4] == 2 {
                json["repairs"] = json!([{ "transport": "later", "address": "moon" }]);
            }
            json.to_string().into_bytes()
        }
        DATAGRAM => body.to_vec(),
        _ => [body, &[0xee; 12]].concat(),
    };
    let len = u32::try_from(body.len()).expect("a short body");
    [&len.to_le_bytes(), &head[4..], &body].concat()
}

/// Returns a datagram as a publisher of a later version may send it to subscribers of version 1: with an
/// extension, unknown flags, a longer heartbeat, and padding.
fn extended(bytes: &[u8]) -> Vec<u8> {
    let datagram = Datagram::parse(bytes).expect("a datagram");
    let (mut header, mut payload): (Header, _) = (*datagram.header(), datagram.payload().to_vec());
    let extension = [0xab; 16];
    if header.kind == Kind::Heartbeat {
        payload.extend([0xcd; 16]);
    }
    header.flags |= 0xff00;
    header.header_len += extension.len() as u16;
    header.payload_len = payload.len() as u16;
    let rest = [&extension[..], &payload].concat();
    let crc = crc_of(&header.to_bytes(0), &rest);
    [&header.to_bytes(crc)[..], &rest, &[0; 24]].concat()
}

fn changed(
    talk: &[Line],
    frame: fn(&[u8]) -> Vec<u8>,
    datagram: fn(&[u8]) -> Vec<u8>,
) -> Vec<Line> {
    let change = |line: &Line| match line {
        Line::Says(bytes) => Line::Says(frame(bytes)),
        Line::Answers(bytes) => Line::Answers(frame(bytes)),
        Line::Multicast(bytes, comes) => Line::Multicast(datagram(bytes), *comes),
        other => other.clone(),
    };
    talk.iter().map(change).collect()
}

#[test]
fn version_1_conversation_is_frozen() {
    let text = std::fs::read_to_string(TALK).expect("the talk is there");
    let lines = talk()
        .iter()
        .map(Line::write)
        .collect::<Vec<_>>()
        .join("\n");
    assert!(text.starts_with("# "), "it says what it is");
    let hash = xxh3_64(lines.as_bytes());
    assert_eq!(hash, TALK_HASH, "it is history: {hash:#x}");
    let count = |is: fn(&Line) -> bool| talk().iter().filter(|line| is(line)).count();
    assert_eq!(count(|line| matches!(line, Line::Says(_))), 7);
    assert_eq!(count(|line| matches!(line, Line::Multicast(..))), 5);
    assert_eq!(count(|line| matches!(line, Line::Record(..))), 5);
}

#[test]
fn subscriber_version_1_is_served_by_current_and_next() {
    let then = talk();
    serves(WireVersions::default(), &then, &then);
    serves(speaks(1, 2), &then, &then);
}

#[test]
fn publisher_version_1_serves_current_and_next() {
    let then = talk();
    follows(WireVersions::default(), &then);
    follows(speaks(1, 2), &then);
    // Its JOIN contains all of the old JOIN, and offers version 1 among others.
    let join = |subscriber: &Subscriber| match Message::read(&subscriber.join, 1 << 16) {
        Ok(Some((_, Message::Join(join), _))) => join.wire_versions,
        other => panic!("{other:?}"),
    };
    let today = Subscriber::new(WireVersions::default());
    assert!(matches!(&then[0], Line::Says(join) if has_grown_from(join, &today.join)));
    assert_eq!(join(&Subscriber::new(speaks(1, 2))), [2, 1]);
}

#[test]
fn later_version_additions_are_ignored_by_both_sides() {
    let then = talk();
    let newer = changed(&then, grown, extended);
    assert_ne!(newer, then);
    serves(WireVersions::default(), &newer, &then);
    follows(WireVersions::default(), &newer);
}

#[test]
fn join_without_common_version_is_rejected() {
    let then = talk();
    let frame = |nth: usize| match &then[nth] {
        Line::Says(frame) | Line::Answers(frame) => &frame[..],
        other => panic!("{other:?}"),
    };
    let mut publisher = Publisher::new(speaks(2, 3));
    publisher.hears(frame(0)).expect("a message");
    let said = publisher.said.remove(0);
    let read = Message::read(&said, BODY_LEN_MAX_TO_SUBSCRIBER).expect("a message");
    let Some((_, Message::Rejected(rejected), _)) = read else {
        panic!("{read:?}");
    };
    assert_eq!(rejected.code, RejectCode::WireVersion);
    assert!(
        rejected.text.contains("speaks wire version 2 to 3"),
        "{}",
        rejected.text
    );
    assert_eq!(publisher.closes(), Some(RejectCode::WireVersion));
    assert_eq!(publisher.counters.joins_rejected.get(), 1);
    // The publisher sends a WELCOME of a version that was not offered, which violates the protocol.
    let mut subscriber = Subscriber::new(speaks(2, 2));
    let read = Message::read(frame(1), BODY_LEN_MAX_TO_SUBSCRIBER).expect("a message");
    let (channel, message, _) = read.expect("a whole frame");
    subscriber.turn(|core, now, mut on| {
        core.handle(
            now,
            SubscriberInput::message(Path::Repair, channel, &message),
            &mut on,
        );
    });
    assert!(!subscriber.core.is_joined());
    assert_eq!(subscriber.given, []);
    let counted = subscriber.core.counters().next().expect("one channel");
    assert_eq!(counted.welcomes_invalid.get(), 1);
}

#[test]
fn newest_common_version_is_agreed() {
    let mut publisher = Publisher::new(speaks(1, 2));
    let subscriber = Subscriber::new(speaks(1, 2));
    publisher.hears(&subscriber.join).expect("a message");
    let read = Message::read(&publisher.said[0], BODY_LEN_MAX_TO_SUBSCRIBER).expect("a message");
    let Some((_, Message::Welcome(welcome), _)) = read else {
        panic!("{read:?}");
    };
    assert_eq!(welcome.wire_version, 2);
}

#[test]
fn unknown_message_ends_connection_so_none_is_sent() {
    let frame = [4, 0, 0, 0, 200, 0, 4, 0, 1, 2, 3, 4];
    let read = Message::read(&frame, BODY_LEN_MAX_TO_SUBSCRIBER);
    assert_eq!(read, Err(ControlError::Type { kind: 200 }));
    let mut publisher = Publisher::new(WireVersions::default());
    assert!(publisher.hears(&frame).is_err());
}
