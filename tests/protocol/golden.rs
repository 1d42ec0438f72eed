//! Golden datagrams and control messages (tests/golden), written from docs/PROTOCOL.md field by field. Our
//! encoder makes exactly these bytes. Our decoder and the independent one in Python read the same values.

use std::collections::BTreeSet;
use std::ffi::c_char;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tickcast_reliability::control::{
    Announced, BODY_LEN_MAX_TO_SUBSCRIBER, ChannelName, ChannelOffer, FanOutOffer, Grant,
    HeartbeatLimits, History, Instrument, Join, JoinChannel, LatencyReport, Message, MirrorRefusal,
    MirrorRefused, Mirroring, NackClass, Progress, Purpose, RefusalReason, Refused, RejectCode,
    Rejected, RemoteAccess, RepairOffer, Start, Status, UdpLine, Welcome,
};
use tickcast_reliability::record::{
    Action, FlagSet, MboMsg, RType, RecordHeader, Side, TradeMsg, flags,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Continued, Epoch, Lineage, Nanos, RecordNumber, Sequence, SequenceRange,
    SourceId, SourcePosition,
};
use tickcast_reliability::wire::authentication::{
    Authentication, Key, NumberedKey, TAGGED_HEADER_LEN,
};
use tickcast_reliability::wire::{
    CrcVerdict, Datagram, EpochReason, Header, Heartbeat, Kind, PublisherState, SourceLossReason,
    StreamEvent, crc_of, datagram_flags, relay_flags,
};

use tickcast_subscriber::Stage;

use crate::python::stranger;

const EPOCH: Epoch = Epoch(0x0102_0304_0506_0708);
const CHANNEL: ChannelId = ChannelId(4);
const CONNECTION: ChannelId = ChannelId(0);
const UTC: Nanos = Nanos(1_700_000_000_123_456_789);

/// Bytes at an address that is aligned for records.
#[repr(C, align(8))]
struct Aligned([u8; 512]);

impl Aligned {
    fn of(bytes: &[u8]) -> Self {
        let mut aligned = Self([0; 512]);
        aligned.0[..bytes.len()].copy_from_slice(bytes);
        aligned
    }
}

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(file)
}

/// Returns the bytes of a golden file: hexadecimal, with comments from `#` to the end of the line.
fn bytes_of(file: &str) -> Vec<u8> {
    let text = std::fs::read_to_string(golden(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    text.lines()
        .flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace())
        .map(|byte| u8::from_str_radix(byte, 16).unwrap_or_else(|e| panic!("{file}: {byte}: {e}")))
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}

/// Returns the header that all golden datagrams share, before each one's own fields.
fn header(kind: Kind, sequence: u64, first_record: u64) -> Header {
    Header {
        kind,
        channel: CHANNEL,
        count: 0,
        epoch: EPOCH,
        sequence: Sequence(sequence),
        first_record: RecordNumber(first_record),
        source_position: SourcePosition::new(3, 123_456),
        sent_at: UTC,
        retained: (sequence - 100) as u32,
        source: SourceId(7),
        payload_len: 0,
        flags: 0,
        header_len: 64,
        relay: 0,
    }
}

fn end() -> Header {
    header(Kind::End, 1002, 5004)
}

/// Encodes a datagram. `header_len` and `payload_len` are those of `extensions` and `payload`.
fn datagram(header: &Header, extensions: &[u8], payload: &[u8]) -> (Header, Vec<u8>) {
    let header = Header {
        header_len: 64 + extensions.len() as u16,
        payload_len: payload.len() as u16,
        ..*header
    };
    let rest = [extensions, payload].concat();
    let crc = crc_of(&header.to_bytes(0), &rest);
    let bytes = [&header.to_bytes(crc)[..], &rest].concat();
    (header, bytes)
}

/// Returns the expected output of the independent decoder for a datagram.
fn read_by_stranger(header: &Header, bytes: &[u8], body: Option<(&str, Value)>) -> Value {
    let mut value = json!({
        "magic": 0x4b54,
        "version": 1,
        "kind": match header.kind {
            Kind::Data => "data",
            Kind::Event => "event",
            Kind::Heartbeat => "heartbeat",
            Kind::End => "end",
        },
        "channel": header.channel,
        "count": header.count,
        "epoch": header.epoch,
        "sequence": header.sequence,
        "first_record": header.first_record,
        "source_position": header.source_position,
        "sent_at": header.sent_at,
        "retained": header.retained,
        "source": header.source,
        "payload_len": header.payload_len,
        "flags": header.flags,
        "header_len": header.header_len / 8,
        "relay": header.relay,
        "crc": u32::from_le_bytes(bytes[60..64].try_into().expect("4 bytes")),
    });
    if let Some((name, body)) = body {
        value[name] = body;
    }
    value
}

/// Compares a datagram with its golden file: encoded, decoded, and read by the independent decoder.
fn check(
    file: &str,
    header: &Header,
    extensions: &[u8],
    payload: &[u8],
    body: Option<(&str, Value)>,
) {
    let (header, encoded) = datagram(header, extensions, payload);
    let written = bytes_of(file);
    assert_eq!(hex(&encoded), hex(&written), "{file}: encoded");
    let aligned = Aligned::of(&written);
    let read = Datagram::parse(&aligned.0).unwrap_or_else(|e| panic!("{file}: {e}"));
    assert_eq!(*read.header(), header, "{file}: decoded");
    assert_eq!(read.verdict(), CrcVerdict::Good, "{file}");
    assert_eq!(read.payload(), payload, "{file}");
    assert_eq!(read.bytes(), written, "{file}: what follows is padding");
    let records = read.records().unwrap_or_else(|e| panic!("{file}: {e}"));
    assert_eq!(records.count(), usize::from(header.count), "{file}");
    stranger_reads(file, &read_by_stranger(&header, &written, body));
}

fn stranger_reads(file: &str, expected: &Value) {
    let path = golden(file);
    let Some(mut stranger) = stranger(["--parse".as_ref(), path.as_os_str()]) else {
        return;
    };
    let output = stranger.output().expect("python3 runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{file}: {errors}");
    let read: Value = serde_json::from_slice(&output.stdout).expect("it prints JSON");
    assert_eq!(read, *expected, "{file}: read by the stranger");
}

fn trade() -> TradeMsg {
    TradeMsg {
        hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 2, 77, 1_700_000_000_000_000_001),
        price: 101_500_000_000,
        size: 300,
        action: Action::Trade as c_char,
        side: Side::Bid as c_char,
        flags: FlagSet::new(flags::LAST),
        depth: 0,
        ts_recv: 1_700_000_000_000_000_002,
        ts_in_delta: -5,
        sequence: 9,
    }
}

fn order() -> MboMsg {
    MboMsg {
        hd: RecordHeader::new::<MboMsg>(RType::Mbo as u8, 2, 78, 1_700_000_000_000_000_003),
        order_id: 4711,
        price: -250_000_000,
        size: 100,
        flags: FlagSet::new(flags::LAST),
        channel_id: 0,
        action: Action::Add as c_char,
        side: Side::Ask as c_char,
        ts_recv: 1_700_000_000_000_000_004,
        ts_in_delta: 6,
        sequence: 10,
    }
}

#[test]
fn data_datagram_matches_protocol_page() {
    let header = Header {
        count: 2,
        flags: datagram_flags::LAST_OF_BURST,
        ..header(Kind::Data, 1000, 5001)
    };
    let (trade, order) = (trade(), order());
    let payload = [trade.as_ref(), order.as_ref()].concat();
    let records = json!([hex(trade.as_ref()), hex(order.as_ref())]);
    let body = Some(("records", records));
    check("datagram-data.hex", &header, &[], &payload, body);
}

/// The key of the bytes 0 to 31.
fn key() -> Key {
    Key::new(std::array::from_fn(|n| n as u8))
}

#[test]
fn tagged_datagram_matches_protocol_page() {
    let trade = trade();
    let header = Header {
        count: 1,
        flags: datagram_flags::TAGGED,
        header_len: TAGGED_HEADER_LEN as u16,
        payload_len: trade.as_ref().len() as u16,
        ..header(Kind::Data, 1002, 5004)
    };
    let tag = key().tag(&header.to_bytes(0), trade.as_ref());
    let body = Some(("records", json!([hex(trade.as_ref())])));
    let file = "datagram-data-tagged.hex";
    check(file, &header, &tag, trade.as_ref(), body);
    let bytes = bytes_of(file);
    let aligned = Aligned::of(&bytes);
    let read = Datagram::parse(&aligned.0).expect("its structure is whole");
    assert!(key().made(&read));
    // The example of the page: a header of zeros, and nothing behind the tag.
    let page = include_str!("../../docs/PROTOCOL.md");
    let example = format!("`{}`", hex(&key().tag(&[0; 64], &[])));
    assert!(page.contains(&example), "the tag of the page is {example}");
}

#[test]
fn unknown_extensions_are_skipped_under_the_crc() {
    let header = Header {
        count: 1,
        flags: datagram_flags::SNAPSHOT,
        ..header(Kind::Data, 1001, 5003)
    };
    let trade = trade();
    let body = Some(("records", json!([hex(trade.as_ref())])));
    let extensions = [1, 2, 3, 4, 5, 6, 7, 8];
    let file = "datagram-data-extended.hex";
    check(file, &header, &extensions, trade.as_ref(), body);
    let mut bytes = bytes_of(file);
    bytes[64] ^= 1;
    let aligned = Aligned::of(&bytes);
    let read = Datagram::parse(&aligned.0).expect("its structure is whole");
    assert_eq!(read.verdict(), CrcVerdict::Bad);
}

#[test]
fn heartbeat_datagram_matches_protocol_page() {
    let heartbeat = Heartbeat {
        next_interval_us: 10_000,
        hold_off_us: 250,
        subscribers: 65,
        state: PublisherState::Ended,
        config_hash: ConfigHash(0x1122_3344_5566_7788),
    };
    let body = json!({
        "next_interval_us": 10_000,
        "hold_off_us": 250,
        "subscribers": 65,
        "state": 2,
        "config_hash": 0x1122_3344_5566_7788_u64,
    });
    let payload = heartbeat.to_bytes();
    let header = header(Kind::Heartbeat, 1002, 5004);
    let body = Some(("body", body));
    check("datagram-heartbeat.hex", &header, &[], &payload, body);
    assert_eq!(Heartbeat::parse(&payload), Some(heartbeat));
}

#[test]
fn stream_event_datagrams_match_protocol_page() {
    let lost = StreamEvent::SourceLost {
        source: SourceId(7),
        reason: SourceLossReason::Overflow,
        from: SourcePosition::new(3, 123_456),
        messages: 42,
        instruments: vec![77, 78, 79],
    };
    let body = json!({
        "type": "source_lost",
        "reason": "overflow",
        "source": 7,
        "position": SourcePosition::new(3, 123_456),
        "messages": 42,
        "instruments": [77, 78, 79],
    });
    event(
        "datagram-event-source-lost.hex",
        &header(Kind::Event, 1000, 5001),
        &lost,
        body,
    );
    let opened = StreamEvent::EpochOpened {
        reason: EpochReason::Restart,
        previous: Epoch(EPOCH.0 - 1),
        previous_last: Sequence::NONE,
    };
    let body = json!({
        "type": "epoch_opened",
        "reason": "restart",
        "previous": EPOCH.0 - 1,
        "last": 0,
    });
    let first = Header {
        sequence: Sequence(1),
        first_record: RecordNumber(1),
        source_position: SourcePosition(0),
        retained: 1,
        source: SourceId(0),
        ..header(Kind::Event, 1000, 5001)
    };
    event("datagram-event-epoch-opened.hex", &first, &opened, body);
}

#[test]
fn silence_event_datagrams_match_protocol_page() {
    let (source, since) = (SourceId(7), Nanos(1_700_000_000_000_000_000));
    let silent = StreamEvent::SourceSilent {
        source,
        since,
        instruments: vec![77, 78, 79],
    };
    let back = StreamEvent::SourceBack {
        source,
        since,
        instruments: Vec::new(),
    };
    let body = |kind: &str, named: &[u32]| {
        json!({
            "type": kind,
            "source": 7,
            "since": since,
            "instruments": named,
        })
    };
    let header = |sequence| Header {
        source_position: SourcePosition(0),
        ..header(Kind::Event, sequence, 5001)
    };
    event(
        "datagram-event-source-silent.hex",
        &header(1000),
        &silent,
        body("source_silent", &[77, 78, 79]),
    );
    event(
        "datagram-event-source-back.hex",
        &header(1001),
        &back,
        body("source_back", &[]),
    );
}

fn event(file: &str, header: &Header, event: &StreamEvent, body: Value) {
    let mut payload = Vec::new();
    event.write(&mut payload);
    check(file, header, &[], &payload, Some(("body", body)));
    assert_eq!(StreamEvent::parse(&payload).as_ref(), Some(event));
}

#[test]
fn end_is_as_the_page_says() {
    check("datagram-end.hex", &end(), &[], &[], None);
}

/// Compares a control message with its golden file.
fn check_control(file: &str, channel: ChannelId, message: &Message<'_>, name: &str, body: Value) {
    let mut encoded = Vec::new();
    message.write(channel, &mut encoded);
    let written = bytes_of(file);
    assert_eq!(hex(&encoded), hex(&written), "{file}: encoded");
    let read = Message::read(&written, BODY_LEN_MAX_TO_SUBSCRIBER);
    let expected = Ok(Some((channel, message.clone(), written.len())));
    assert_eq!(read, expected, "{file}: decoded");
    let expected = json!({ "message": name, "channel": channel, "body": body });
    stranger_reads(file, &expected);
}

#[test]
fn join_messages_match_protocol_page() {
    let wanted = |channel, start, confirmed_epoch| JoinChannel {
        channel,
        start,
        confirmed_epoch: Epoch(confirmed_epoch),
    };
    let join = Join {
        authentication: false,
        name: "risk-1".into(),
        wire_versions: vec![1],
        purpose: Purpose::Repair,
        channels: vec![
            wanted(ChannelName::Name("equities".into()), Start::Live, 0),
            wanted(ChannelName::Id(ChannelId(5)), Start::Oldest, 3),
            wanted(
                ChannelName::Id(ChannelId(6)),
                Start::At(Epoch(9), Sequence(1001)),
                9,
            ),
        ],
    };
    let body = json!({
        "name": "risk-1",
        "wire_versions": [1],
        "purpose": "repair",
        "channels": [
            { "channel": "equities", "start": "live", "confirmed_epoch": 0 },
            { "channel": 5, "start": "oldest", "confirmed_epoch": 3 },
            { "channel": 6, "start": { "at": [9, 1001] }, "confirmed_epoch": 9 },
        ],
    });
    let checking = Message::Join(Join {
        authentication: true,
        ..join.clone()
    });
    let mut checks = body.clone();
    checks["authentication"] = true.into();
    let file = "control-join-authentication.hex";
    check_control(file, CONNECTION, &checking, "JOIN", checks);
    let join = Message::Join(join);
    check_control("control-join.hex", CONNECTION, &join, "JOIN", body);
    let replay = Message::Join(Join {
        authentication: false,
        name: "risk-1".into(),
        wire_versions: vec![1],
        purpose: Purpose::Replay { session: 77 },
        channels: vec![],
    });
    let body = json!({
        "name": "risk-1",
        "wire_versions": [1],
        "purpose": { "replay": { "session": 77 } },
        "channels": [],
    });
    check_control("control-join-replay.hex", CONNECTION, &replay, "JOIN", body);
    let nack = Message::Join(Join {
        authentication: false,
        name: "risk-1".into(),
        wire_versions: vec![1],
        purpose: Purpose::Nack { session: 77 },
        channels: vec![],
    });
    let body = json!({
        "name": "risk-1",
        "wire_versions": [1],
        "purpose": { "nack": { "session": 77 } },
        "channels": [],
    });
    check_control("control-join-nack.hex", CONNECTION, &nack, "JOIN", body);
    let read = Message::Join(Join {
        authentication: false,
        name: "risk-1".into(),
        wire_versions: vec![1],
        purpose: Purpose::Read {
            session: 77,
            attempt: 2,
        },
        channels: vec![],
    });
    let body = json!({
        "name": "risk-1",
        "wire_versions": [1],
        "purpose": { "read": { "session": 77, "attempt": 2 } },
        "channels": [],
    });
    check_control("control-join-read.hex", CONNECTION, &read, "JOIN", body);
}

#[test]
fn welcome_and_rejected_match_protocol_page() {
    let line = |group: &str, sender| UdpLine {
        group: group.parse().expect("an address"),
        sender,
    };
    let mut welcome = Welcome {
        latency: false,
        wire_version: 1,
        publisher: "nyc-1".into(),
        session: 77,
        channels: vec![ChannelOffer {
            authentication: None,
            channel: CHANNEL,
            name: "equities".into(),
            epoch: EPOCH,
            newest: Sequence(1000),
            oldest: Sequence(101),
            oldest_record: RecordNumber(401),
            next_record: RecordNumber(5003),
            slot_len: 1472,
            slots: 1024,
            config_hash: ConfigHash(0x1122_3344_5566_7788),
            ended: false,
            fan_outs: vec![FanOutOffer::Udp {
                lines: vec![
                    line("239.1.2.3:7500", Ipv4Addr::new(10, 0, 0, 1)),
                    line("239.1.2.4:7500", Ipv4Addr::new(10, 0, 1, 1)),
                ],
            }],
            directory: vec![Instrument {
                id: 77,
                symbol: "ABC".into(),
            }],
            continues: Lineage::default(),
            history: None,
            heartbeats: HeartbeatLimits::default(),
        }],
        repairs: vec![],
    };
    let mut body = json!({
        "wire_version": 1,
        "publisher": "nyc-1",
        "session": 77,
        "channels": [{
            "channel": 4,
            "name": "equities",
            "epoch": EPOCH,
            "newest": 1000,
            "oldest": 101,
            "oldest_record": 401,
            "next_record": 5003,
            "slot_len": 1472,
            "slots": 1024,
            "config_hash": 0x1122_3344_5566_7788_u64,
            "ended": false,
            "fan_outs": [{ "transport": "udp", "lines": [
                { "group": "239.1.2.3:7500", "sender": "10.0.0.1" },
                { "group": "239.1.2.4:7500", "sender": "10.0.1.1" },
            ] }],
            "directory": [{ "id": 77, "symbol": "ABC" }],
        }],
    });
    let message = Message::Welcome(welcome.clone());
    let file = "control-welcome.hex";
    check_control(file, CONNECTION, &message, "WELCOME", body.clone());
    let mut continuing = welcome.clone();
    let offer = &mut continuing.channels[0];
    (offer.oldest, offer.oldest_record) = (Sequence(901), RecordNumber(4500));
    offer.continues = Lineage::from(vec![Continued {
        epoch: Epoch(7),
        last: Sequence(900),
        next_record: RecordNumber(4500),
        complete: false,
    }]);
    offer.history = Some(History {
        oldest: Sequence(101),
        oldest_record: RecordNumber(401),
    });
    let mut continued = body.clone();
    let offer = &mut continued["channels"][0];
    (offer["oldest"], offer["oldest_record"]) = (json!(901), json!(4500));
    offer["continues"] = json!([{ "epoch": 7, "last": 900, "next_record": 4500 }]);
    offer["history"] = json!({ "oldest": 101, "oldest_record": 401 });
    let message = Message::Welcome(continuing);
    let file = "control-welcome-continues.hex";
    check_control(file, CONNECTION, &message, "WELCOME", continued);
    let mut authenticated = welcome.clone();
    let numbered = |number, key| NumberedKey { number, key };
    authenticated.channels[0].authentication = Some(Authentication {
        datagrams_per_key: 4_096,
        keys: vec![numbered(0, key()), numbered(1, Key::new([0xab; 32]))],
    });
    let mut with_keys = body.clone();
    with_keys["channels"][0]["authentication"] = json!({
        "datagrams_per_key": 4_096,
        "keys": [
            { "number": 0, "key": hex(key().bytes()) },
            { "number": 1, "key": "ab".repeat(32) },
        ],
    });
    let message = Message::Welcome(authenticated);
    let file = "control-welcome-keys.hex";
    check_control(file, CONNECTION, &message, "WELCOME", with_keys);
    let mut limited = welcome.clone();
    limited.channels[0].heartbeats = HeartbeatLimits {
        interval_max_us: 100_000,
        hold_off_max_us: 400,
    };
    let mut with_limits = body.clone();
    with_limits["channels"][0]["heartbeats"] =
        json!({ "interval_max_us": 100_000, "hold_off_max_us": 400 });
    let message = Message::Welcome(limited);
    let file = "control-welcome-heartbeats.hex";
    check_control(file, CONNECTION, &message, "WELCOME", with_limits);
    let taking = Welcome {
        latency: true,
        ..welcome.clone()
    };
    let mut with_latency = body.clone();
    with_latency["latency"] = json!(true);
    let message = Message::Welcome(taking);
    let file = "control-welcome-latency.hex";
    check_control(file, CONNECTION, &message, "WELCOME", with_latency);
    welcome.repairs = vec![RepairOffer::Verbs {
        read: true,
        mirror: false,
        address: "10.0.0.1:7410".parse().expect("an address"),
    }];
    body["repairs"] = json!([
        { "transport": "verbs", "address": "10.0.0.1:7410", "read": true }
    ]);
    let message = Message::Welcome(welcome);
    let file = "control-welcome-repairs.hex";
    check_control(file, CONNECTION, &message, "WELCOME", body);
    let rejected = Message::Rejected(Rejected {
        code: RejectCode::UnknownChannel,
        text: "there is no channel bonds".into(),
        retry_after_ms: 0,
    });
    let body = json!({
        "code": "unknown_channel",
        "text": "there is no channel bonds",
        "retry_after_ms": 0,
    });
    check_control(
        "control-rejected.hex",
        CONNECTION,
        &rejected,
        "REJECTED",
        body,
    );
}

#[test]
fn nack_and_its_answers_match_protocol_page() {
    let range = |first, last| {
        SequenceRange::new(Sequence(first), Sequence(last)).expect("a range is not empty")
    };
    let nack = Message::Nack {
        epoch: EPOCH,
        class: NackClass::Repair,
        ranges: vec![range(990, 990), range(992, 996)],
    };
    let body = json!({ "epoch": EPOCH, "class": 1, "ranges": [[990, 990], [992, 996]] });
    check_control("control-nack.hex", CHANNEL, &nack, "NACK", body);
    let again = Header {
        relay: relay_flags::RETRANSMITTED,
        ..end()
    };
    let (_, bytes) = datagram(&again, &[], &[]);
    let body = read_by_stranger(&again, &bytes, None);
    let repair = Message::Datagram(&bytes);
    check_control("control-datagram.hex", CHANNEL, &repair, "DATAGRAM", body);
    let (_, first) = datagram(&end(), &[], &[]);
    assert_eq!(first[60..], bytes[60..], "sent again, it keeps its CRC");
    let refused = Message::Refused(Refused {
        epoch: EPOCH,
        range: range(90, 100),
        reason: RefusalReason::Window,
        retry_after_us: 100,
        oldest: Sequence(101),
        oldest_record: RecordNumber(401),
    });
    let body = json!({
        "epoch": EPOCH,
        "first": 90,
        "last": 100,
        "oldest": 101,
        "oldest_record": 401,
        "retry_after_us": 100,
        "reason": 1,
    });
    check_control("control-refused.hex", CHANNEL, &refused, "REFUSED", body);
}

#[test]
fn progress_status_and_grant_match_protocol_page() {
    let progress = Message::Progress(Progress {
        epoch: EPOCH,
        sequence: Sequence(989),
        lost_records: 12,
        heard: Sequence(1000),
        sent_at: Nanos(123_456_789),
        read_bytes: 14_720,
    });
    let body = json!({
        "epoch": EPOCH,
        "settled": 989,
        "lost_records": 12,
        "heard": 1000,
        "clock": 123_456_789,
        "read_bytes": 14_720,
    });
    check_control("control-progress.hex", CHANNEL, &progress, "PROGRESS", body);
    let status = Message::Status(Status {
        epoch: EPOCH,
        newest: Sequence(1002),
        oldest: Sequence(103),
        next_record: RecordNumber(5004),
        echo: Nanos(123_456_789),
        answered_at: UTC,
        ended: true,
    });
    let body = json!({
        "epoch": EPOCH,
        "newest": 1002,
        "oldest": 103,
        "next_record": 5004,
        "clock": 123_456_789,
        "utc": UTC,
        "ended": 1,
    });
    check_control("control-status.hex", CHANNEL, &status, "STATUS", body);
    let grant = Message::Grant(Grant {
        epoch: EPOCH,
        attempt: 2,
        ring: RemoteAccess {
            address: 0x7f00_1234_5000,
            len: 4096 + 1024 * 1472,
            key: 0x0012_34ab,
        },
        tokens: 65_536,
        cursor: Some(RemoteAccess {
            address: 0x7f00_2234_5040,
            len: 64,
            key: 0x0012_35ab,
        }),
    });
    let body = json!({
        "epoch": EPOCH,
        "attempt": 2,
        "address": 0x7f00_1234_5000_u64,
        "length": 4096 + 1024 * 1472,
        "tokens": 65_536,
        "rkey": 0x0012_34ab,
        "cursor_address": 0x7f00_2234_5040_u64,
        "cursor_length": 64,
        "cursor_rkey": 0x0012_35ab,
    });
    check_control("control-grant.hex", CHANNEL, &grant, "GRANT", body);
    let mirror = Message::Mirror(Mirroring {
        epoch: EPOCH,
        attempt: 2,
        inbox: RemoteAccess {
            address: 0x7f00_3234_6000,
            len: 1024 * 1472,
            key: 0x0012_36ab,
        },
    });
    let body = json!({
        "epoch": EPOCH,
        "attempt": 2,
        "address": 0x7f00_3234_6000_u64,
        "length": 1024 * 1472,
        "rkey": 0x0012_36ab,
    });
    check_control("control-mirror.hex", CHANNEL, &mirror, "MIRROR", body);
    let refused = Message::MirrorRefused(MirrorRefused {
        epoch: EPOCH,
        attempt: 2,
        reason: MirrorRefusal::NotAllowed,
    });
    let body = json!({ "epoch": EPOCH, "attempt": 2, "reason": 1 });
    check_control(
        "control-mirror-refused.hex",
        CHANNEL,
        &refused,
        "MIRROR_REFUSED",
        body,
    );
    let announced = Message::Key(Announced {
        epoch: EPOCH,
        of: NumberedKey {
            number: 3,
            key: key(),
        },
    });
    let of = key();
    let words: Vec<u64> = (of.bytes().as_chunks().0.iter())
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    let body = json!({
        "epoch": EPOCH,
        "number": 3,
        "key_0": words[0],
        "key_1": words[1],
        "key_2": words[2],
        "key_3": words[3],
    });
    check_control("control-key.hex", CHANNEL, &announced, "KEY", body);
    let report = LatencyReport::from_words(&std::array::from_fn(|at| match at {
        0 => 1_000_000_000,
        1 => 25_000,
        _ => 1_000 * at as u64,
    }));
    let mut body = json!({ "interval": 1_000_000_000, "clock_limit": 25_000 });
    let numbers = ["samples", "p50", "p99", "p999", "max"];
    for (nth, stage) in Stage::ALL.iter().enumerate() {
        for (at, number) in numbers.iter().enumerate() {
            body[format!("{}_{number}", stage.name())] = json!(1_000 * (2 + 5 * nth + at));
        }
    }
    let latency = Message::Latency(Box::new(report));
    check_control("control-latency.hex", CHANNEL, &latency, "LATENCY", body);
    check_control(
        "control-leave.hex",
        CONNECTION,
        &Message::Leave,
        "LEAVE",
        json!({}),
    );
}

#[test]
fn golden_files_are_all_checked() {
    let me = include_str!("golden.rs");
    let files: BTreeSet<_> = std::fs::read_dir(golden(""))
        .expect("the folder of golden files")
        .map(|entry| entry.expect("an entry").file_name())
        // The table beside them is the grid's (tests/protocol/grid.rs).
        .filter(|name| name.to_string_lossy().ends_with(".hex"))
        .collect();
    assert!(files.len() >= 16);
    for file in files {
        let quoted = format!("\"{}\"", file.to_string_lossy());
        assert!(me.contains(&quoted), "{quoted} is not checked");
    }
}
