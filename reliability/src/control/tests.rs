//! Encoding and parsing of control messages, and rejected input.

use super::*;
use crate::types::{Continued, SourceId, SourcePosition};
use crate::wire::authentication::{Key, NumberedKey};
use crate::wire::{HEADER_LEN, Header, Kind};
use proptest::prelude::*;

fn range(first: u64, last: u64) -> SequenceRange {
    SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
}

fn samples() -> Vec<Message<'static>> {
    vec![
        Message::Join(Join {
            authentication: true,
            name: "risk-1".into(),
            wire_versions: vec![1],
            purpose: Purpose::Replay { session: u64::MAX },
            channels: vec![JoinChannel {
                channel: ChannelName::Name("equities".into()),
                start: Start::At(Epoch(u64::MAX), Sequence(9)),
                confirmed_epoch: Epoch(3),
            }],
        }),
        Message::Welcome(Welcome {
            wire_version: 1,
            publisher: "p".into(),
            session: 77,
            channels: vec![ChannelOffer {
                authentication: None,
                channel: ChannelId(4),
                name: "equities".into(),
                epoch: Epoch(u64::MAX - 1),
                newest: Sequence(10),
                oldest: Sequence(2),
                oldest_record: RecordNumber(20),
                next_record: RecordNumber(99),
                slot_len: 1472,
                slots: 1024,
                config_hash: ConfigHash(5),
                ended: false,
                fan_outs: vec![FanOutOffer::Udp {
                    lines: vec![UdpLine {
                        group: SocketAddrV4::new(Ipv4Addr::new(239, 1, 2, 3), 4000),
                        sender: Ipv4Addr::LOCALHOST,
                    }],
                }],
                directory: vec![Instrument {
                    id: 1,
                    symbol: "ABC".into(),
                }],
                continues: Lineage::default(),
                history: None,
                heartbeats: HeartbeatLimits::default(),
            }],
            repairs: vec![RepairOffer::Verbs {
                address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7),
                read: true,
                mirror: true,
            }],
            latency: true,
        }),
        Message::Join(Join {
            authentication: true,
            name: String::new(),
            wire_versions: vec![1],
            purpose: Purpose::Nack { session: 77 },
            channels: vec![],
        }),
        Message::Rejected(Rejected {
            code: RejectCode::UnknownChannel,
            text: "no".into(),
            retry_after_ms: 0,
        }),
        Message::Nack {
            epoch: Epoch(8),
            class: NackClass::Replay,
            ranges: vec![range(1, 1), range(5, u64::MAX)],
        },
        Message::Datagram(&[1, 2, 3]),
        Message::Refused(Refused {
            epoch: Epoch(8),
            range: range(3, 4),
            reason: RefusalReason::Budget,
            retry_after_us: u32::MAX,
            oldest: Sequence(7),
            oldest_record: RecordNumber(70),
        }),
        Message::Progress(Progress {
            epoch: Epoch(1),
            sequence: Sequence(2),
            lost_records: 3,
            heard: Sequence(4),
            sent_at: Nanos(5),
            read_bytes: 6,
        }),
        Message::Status(Status {
            epoch: Epoch(1),
            newest: Sequence(2),
            oldest: Sequence(3),
            next_record: RecordNumber(4),
            echo: Nanos(5),
            answered_at: Nanos(6),
            ended: true,
        }),
        Message::Leave,
        Message::Join(Join {
            authentication: true,
            name: "r".into(),
            wire_versions: vec![1],
            purpose: Purpose::Read {
                session: 77,
                attempt: 3,
            },
            channels: vec![],
        }),
        Message::Grant(Grant {
            epoch: Epoch(1),
            attempt: 2,
            ring: RemoteAccess {
                address: u64::MAX - 1,
                len: 3,
                key: u32::MAX,
            },
            tokens: 4,
            cursor: Some(RemoteAccess {
                address: u64::MAX - 63,
                len: 64,
                key: 5,
            }),
        }),
        Message::Mirror(Mirroring {
            epoch: Epoch(1),
            attempt: 2,
            inbox: RemoteAccess {
                address: u64::MAX - 1,
                len: 3,
                key: u32::MAX,
            },
        }),
        Message::MirrorRefused(MirrorRefused {
            epoch: Epoch(1),
            attempt: u64::MAX,
            reason: MirrorRefusal::Impossible,
        }),
        Message::Key(Announced {
            epoch: Epoch(1),
            of: NumberedKey {
                number: u64::MAX,
                key: Key::new(std::array::from_fn(|n| n as u8)),
            },
        }),
        Message::Latency(Box::new(LatencyReport::from_words(&std::array::from_fn(
            |n| u64::MAX - n as u64 - 1,
        )))),
    ]
}

#[test]
fn control_message_round_trips_and_partial_is_awaited() {
    for message in samples() {
        let mut frame = Vec::new();
        message.write(ChannelId(513), &mut frame);
        let whole = frame.len();
        frame.extend([0xff; 3]);
        let read = Message::read(&frame, BODY_LEN_MAX_TO_SUBSCRIBER);
        assert_eq!(read, Ok(Some((ChannelId(513), message, whole))));
        for cut in 0..whole {
            assert_eq!(
                Message::read(&frame[..cut], BODY_LEN_MAX_TO_SUBSCRIBER),
                Ok(None)
            );
        }
    }
}

#[test]
fn control_body_beyond_limit_is_refused_from_head_alone() {
    let head = [0xff, 0xff, 0xff, 0x7f, JOIN, 0, 0, 0];
    let read = Message::read(&head, BODY_LEN_MAX_TO_PUBLISHER);
    assert!(matches!(
        read,
        Err(ControlError::TooLong {
            max: BODY_LEN_MAX_TO_PUBLISHER,
            ..
        })
    ));
}

#[test]
fn nack_with_empty_range_or_bad_count_is_refused() {
    let nack = |first: u64, last: u64, count: u16| {
        let mut frame = vec![0; FRAME_HEAD_LEN];
        frame[0..4].copy_from_slice(&32u32.to_le_bytes());
        frame[4] = NACK;
        frame.extend(1u64.to_le_bytes());
        frame.extend([1, 0]);
        frame.extend(count.to_le_bytes());
        frame.extend([0; 4]);
        frame.extend(first.to_le_bytes());
        frame.extend(last.to_le_bytes());
        Message::read(&frame, BODY_LEN_MAX_TO_PUBLISHER).map(|_| ())
    };
    assert_eq!(nack(5, 5, 1), Ok(()));
    for (first, last, count) in [(6, 5, 1), (0, 5, 1), (5, 5, 2), (5, 5, 257)] {
        assert!(matches!(
            nack(first, last, count),
            Err(ControlError::Body { .. })
        ));
    }
}

#[test]
fn long_rejection_is_truncated_between_characters() {
    for (text, len) in [
        ("x".repeat(Rejected::TEXT_LEN_MAX), Rejected::TEXT_LEN_MAX),
        ("x".repeat(100_000), Rejected::TEXT_LEN_MAX),
        (
            "x".to_owned() + &"ü".repeat(50_000),
            Rejected::TEXT_LEN_MAX - 1,
        ),
    ] {
        let mut bytes = Vec::new();
        let rejected = Rejected {
            code: RejectCode::Protocol,
            text: text.clone(),
            retry_after_ms: 0,
        };
        Message::Rejected(rejected).write(ChannelId(0), &mut bytes);
        let frame = Message::read(&bytes, BODY_LEN_MAX_TO_SUBSCRIBER)
            .unwrap()
            .unwrap();
        let Message::Rejected(rejected) = frame.1 else {
            panic!("another message");
        };
        assert_eq!(rejected.text, text[..len]);
    }
}

#[test]
fn verbs_fan_out_offer_round_trips_as_json() {
    let text = r#"{"transport":"verbs","lines":[{"group":"239.9.2.3","sender":"10.0.0.1","gid":"::ffff:10.0.0.1"}],"q_key":1953063787}"#;
    let sender = Ipv4Addr::new(10, 0, 0, 1);
    let offer = FanOutOffer::Verbs {
        lines: vec![VerbsLine {
            group: Ipv4Addr::new(239, 9, 2, 3),
            sender,
            gid: sender.to_ipv6_mapped(),
        }],
        q_key: 1_953_063_787,
    };
    assert_eq!(serde_json::to_string(&offer).unwrap(), text);
    assert_eq!(serde_json::from_str::<FanOutOffer>(text).unwrap(), offer);
}

#[test]
fn repair_offer_omits_read_when_unavailable() {
    for (read, text) in [
        (false, r#"{"transport":"verbs","address":"10.0.0.1:7410"}"#),
        (
            true,
            r#"{"transport":"verbs","address":"10.0.0.1:7410","read":true}"#,
        ),
    ] {
        let address = "10.0.0.1:7410".parse().unwrap();
        let offer = RepairOffer::Verbs {
            address,
            read,
            mirror: false,
        };
        assert_eq!(serde_json::to_string(&offer).unwrap(), text);
        assert_eq!(serde_json::from_str::<RepairOffer>(text).unwrap(), offer);
    }
}

#[test]
fn offer_of_unknown_transport_parses_as_unknown() {
    let offer = r#"{"transport":"carrier_pigeon","loft":3}"#;
    assert_eq!(
        serde_json::from_str::<FanOutOffer>(offer).unwrap(),
        FanOutOffer::Unknown
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
        kind in 0u8..15,
    ) {
        let _ = Message::read(&bytes, 4096);
        if bytes.len() >= FRAME_HEAD_LEN {
            let len = (bytes.len() - FRAME_HEAD_LEN) as u32;
            bytes[..4].copy_from_slice(&len.to_le_bytes());
            bytes[4] = kind;
            let _ = Message::read(&bytes, 4096);
        }
    }
}

#[test]
fn limits_themselves_are_allowed_and_one_beyond_is_not() {
    let mut frame = Vec::new();
    Message::Datagram(&[7; 100]).write(ChannelId(1), &mut frame);
    assert!(matches!(
        Message::read(&frame, 100),
        Ok(Some((_, Message::Datagram(_), 108)))
    ));
    let too_long = ControlError::TooLong { len: 100, max: 99 };
    assert_eq!(Message::read(&frame, 99), Err(too_long));
    let nack = |count| {
        let mut frame = Vec::new();
        let ranges = vec![range(5, 6); count];
        let (epoch, class) = (Epoch(1), NackClass::Repair);
        Message::Nack {
            epoch,
            class,
            ranges,
        }
        .write(ChannelId(1), &mut frame);
        Message::read(&frame, BODY_LEN_MAX_TO_PUBLISHER).is_ok()
    };
    assert!(nack(NACK_RANGES_MAX) && !nack(NACK_RANGES_MAX + 1));
    assert!(nack(0), "a NACK of nothing says nothing");
}

#[test]
fn short_or_unknown_bodies_are_refused_longer_read() {
    let read = |frame: &[u8]| {
        let read = Message::read(frame, BODY_LEN_MAX_TO_SUBSCRIBER);
        read.map(|read| read.map(|(_, _, len)| len))
    };
    for (message, fixed) in samples().into_iter().zip([
        None,
        None,
        None,
        None,
        Some((48, 48)),
        None,
        Some((48, 48)),
        // A frame of an older version ends before `read_bytes`.
        Some((48, 40)),
        Some((56, 56)),
        Some((0, 0)),
        None,
        // A frame of an older version has no cursor.
        Some((72, 48)),
        Some((40, 40)),
        Some((24, 24)),
        Some((48, 48)),
        Some((216, 216)),
    ]) {
        let mut frame = Vec::new();
        message.write(ChannelId(513), &mut frame);
        let Some((len, needed)) = fixed else {
            continue;
        };
        assert_eq!(frame.len(), FRAME_HEAD_LEN + len, "{message:?}");
        frame.extend([0; 8]);
        frame[0] += 8;
        assert_eq!(read(&frame), Ok(Some(frame.len())), "a later version's");
        if needed > 0 {
            frame.truncate(FRAME_HEAD_LEN + needed);
            frame[0] = needed as u8;
            assert_eq!(read(&frame), Ok(Some(frame.len())), "all that is needed");
            frame.truncate(FRAME_HEAD_LEN + needed - 1);
            frame[0] = (needed - 1) as u8;
            assert!(matches!(read(&frame), Err(ControlError::Body { .. })));
        }
    }
    for kind in [0, 15, 255] {
        let unknown = Err(ControlError::Type { kind });
        assert_eq!(read(&[0, 0, 0, 0, kind, 0, 0, 0]), unknown);
    }
    let mut samples = samples().into_iter();
    let nack = samples.find(|sample| matches!(sample, Message::Nack { .. }));
    let mut frame = Vec::new();
    nack.unwrap().write(ChannelId(1), &mut frame);
    let mut cut = frame.clone();
    frame[FRAME_HEAD_LEN + 8] = 3;
    let error = read(&frame).unwrap_err().to_string();
    assert!(error.contains("neither repair nor replay"), "{error}");
    // Cut within the last range.
    cut.truncate(cut.len() - 8);
    cut[0] -= 8;
    let error = read(&cut).unwrap_err().to_string();
    assert!(error.contains("it is truncated"), "{error}");
}

#[test]
fn refusals_and_end_status_round_trip() {
    let through = |message: Message<'_>| {
        let mut frame = Vec::new();
        message.write(ChannelId(1), &mut frame);
        let read = Message::read(&frame, 1_000).unwrap().unwrap().1;
        assert_eq!(read, message);
        frame
    };
    for (byte, reason) in [
        (1, RefusalReason::Window),
        (2, RefusalReason::Ahead),
        (3, RefusalReason::Budget),
        (4, RefusalReason::TooSlow),
        (5, RefusalReason::Epoch),
        (6, RefusalReason::Malformed),
    ] {
        let mut frame = through(Message::Refused(Refused {
            epoch: Epoch(8),
            range: range(3, 4),
            reason,
            retry_after_us: 5,
            oldest: Sequence(7),
            oldest_record: RecordNumber(70),
        }));
        assert_eq!(frame[FRAME_HEAD_LEN + 44], byte);
        frame[FRAME_HEAD_LEN + 44] = 7;
        assert!(Message::read(&frame, 1_000).is_err());
    }
    for (byte, ended) in [(0, false), (1, true)] {
        let frame = through(Message::Status(Status {
            epoch: Epoch(1),
            newest: Sequence(2),
            oldest: Sequence(3),
            next_record: RecordNumber(4),
            echo: Nanos(5),
            answered_at: Nanos(6),
            ended,
        }));
        assert_eq!(frame[FRAME_HEAD_LEN + 48], byte);
    }
}

#[test]
fn control_body_limits_match_protocol() {
    assert_eq!(BODY_LEN_MAX_TO_PUBLISHER, 65_536);
    assert_eq!(BODY_LEN_MAX_TO_SUBSCRIBER, 16_777_216);
}

#[test]
fn offer_oldest_includes_history_of_earlier_epochs() {
    let Message::Welcome(mut welcome) = samples().swap_remove(1) else {
        panic!("the second sample is a WELCOME");
    };
    let mut offer = welcome.channels.remove(0);
    let own = (Sequence(2), RecordNumber(20));
    assert_eq!(offer.oldest_of_all(), own, "there is no history");
    for (oldest, oldest_record, expected) in [
        (1, 18, (Sequence(1), RecordNumber(18))),
        (2, 19, own),
        (3, 21, own),
    ] {
        offer.history = Some(History {
            oldest: Sequence(oldest),
            oldest_record: RecordNumber(oldest_record),
        });
        assert_eq!(offer.oldest_of_all(), expected, "history from {oldest} on");
    }
}

#[test]
fn offer_omits_lineage_and_history_when_absent() {
    let Message::Welcome(mut welcome) = samples().swap_remove(1) else {
        panic!("the second sample is a WELCOME");
    };
    let mut offer = welcome.channels.remove(0);
    let json = serde_json::to_value(&offer).unwrap();
    assert_eq!((json.get("continues"), json.get("history")), (None, None));
    offer.continues = Lineage::from(vec![Continued {
        epoch: Epoch(3),
        last: Sequence(1),
        next_record: RecordNumber(19),
        complete: false,
    }]);
    offer.history = Some(History {
        oldest: Sequence(1),
        oldest_record: RecordNumber(18),
    });
    let json = serde_json::to_value(&offer).unwrap();
    assert_eq!(
        json["continues"],
        serde_json::json!([{"epoch": 3, "last": 1, "next_record": 19}])
    );
    assert_eq!(
        json["history"],
        serde_json::json!({"oldest": 1, "oldest_record": 18})
    );
    assert_eq!(serde_json::from_value::<ChannelOffer>(json).unwrap(), offer);
}

#[test]
fn answers_to_nacks_are_found_among_written_frames() {
    let header = Header {
        kind: Kind::Data,
        channel: ChannelId(3),
        count: 1,
        epoch: Epoch(7),
        sequence: Sequence(41),
        first_record: RecordNumber(5),
        source_position: SourcePosition::default(),
        sent_at: Nanos(1),
        retained: 1,
        source: SourceId(1),
        payload_len: 100,
        flags: 0,
        header_len: HEADER_LEN as u16,
        relay: 0,
    };
    let mut out = Vec::new();
    for message in samples() {
        message.write(ChannelId(3), &mut out);
    }
    let refused = |(_, answer): &(ChannelId, NackAnswer)| matches!(answer, NackAnswer::Refused(_));
    assert_eq!(nack_answers(&out).filter(refused).count(), 1);
    let before = nack_answers(&out).count();
    Message::Datagram(&header.to_bytes(0)).write(ChannelId(3), &mut out);
    let last = nack_answers(&out).nth(before);
    let expected = NackAnswer::Sent(Epoch(7), Sequence(41));
    assert_eq!(last, Some((ChannelId(3), expected)));
    // A frame without its end is none.
    assert_eq!(nack_answers(&out[..out.len() - 1]).count(), before);
}
