//! Encoding and parsing of datagrams and their bodies, and rejected input.

use super::*;
use proptest::prelude::*;

fn header() -> Header {
    Header {
        kind: Kind::Data,
        channel: ChannelId(0x0102),
        count: 0,
        epoch: Epoch(0x1112_1314_1516_1718),
        sequence: Sequence(0x2122_2324_2526_2728),
        first_record: RecordNumber(0x3132_3334_3536_3738),
        source_position: SourcePosition(0x4142_4344_4546_4748),
        sent_at: Nanos(0x5152_5354_5556_5758),
        retained: 0x6162_6364,
        source: SourceId(0x7172),
        payload_len: 0,
        flags: 0x0003,
        header_len: 64,
        relay: 0x81,
    }
}

fn sealed(header: &Header, payload: &[u8]) -> Vec<u8> {
    let bytes = header.to_bytes(0);
    let mut all = header.to_bytes(crc_of(&bytes, payload)).to_vec();
    all.extend(payload);
    all
}

#[test]
fn header_fields_are_at_their_offsets() {
    let bytes = header().to_bytes(0x9192_9394);
    let expected: [u8; HEADER_LEN] = [
        b'T', b'K', 1, 1, 0x02, 0x01, 0, 0, // magic, version, kind, channel, count
        0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, // epoch
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, // sequence
        0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, // first_record
        0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41, // source_position
        0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51, // sent_at
        0x64, 0x63, 0x62, 0x61, 0x72, 0x71, 0, 0, // retained, source, payload_len
        3, 0, 8, 0x81, 0x94, 0x93, 0x92, 0x91, // flags, header_len, relay, crc
    ];
    assert_eq!(bytes, expected);
    let read = Datagram::parse(&bytes).unwrap();
    assert_eq!((read.header(), read.crc()), (&header(), 0x9192_9394));
}

#[test]
fn relay_byte_alone_is_outside_the_crc() {
    let good = sealed(
        &Header {
            payload_len: 16,
            ..header()
        },
        &[7; 16],
    );
    assert_eq!(Datagram::parse(&good).unwrap().verdict(), CrcVerdict::Good);
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let verdict = Datagram::parse(&bad).map(|d| d.verdict());
        if at == RELAY_OFFSET {
            assert_eq!(verdict, Ok(CrcVerdict::Good));
        } else {
            assert_ne!(verdict, Ok(CrcVerdict::Good), "byte {at} changed unseen");
        }
    }
}

#[test]
fn padding_is_ignored_and_a_cut_datagram_is_refused() {
    let mut padded = sealed(
        &Header {
            payload_len: 8,
            ..header()
        },
        &[9; 8],
    );
    padded.extend([0xee; 100]);
    let read = Datagram::parse(&padded).unwrap();
    assert_eq!((read.verdict(), read.bytes().len()), (CrcVerdict::Good, 72));
    assert!(matches!(
        Datagram::parse(&padded[..71]),
        Err(WireError::Length { .. })
    ));
    assert_eq!(
        Datagram::parse(&padded[..63]).err(),
        Some(WireError::Short { len: 63 })
    );
}

#[test]
fn header_extension_is_skipped_and_covered_by_the_crc() {
    let long = Header {
        header_len: 80,
        payload_len: 8,
        ..header()
    };
    let mut rest = vec![0xaa; 16];
    rest.extend([5; 8]);
    let mut bytes = sealed(&long, &rest);
    assert_eq!(Datagram::parse(&bytes).unwrap().payload(), &[5; 8]);
    assert_eq!(Datagram::parse(&bytes).unwrap().verdict(), CrcVerdict::Good);
    bytes[70] ^= 1;
    assert_eq!(Datagram::parse(&bytes).unwrap().verdict(), CrcVerdict::Bad);
}

#[test]
fn oldest_held_follows_retained_at_both_ends() {
    let oldest = |sequence, retained| {
        Header {
            sequence: Sequence(sequence),
            retained,
            ..header()
        }
        .oldest()
    };
    assert_eq!(oldest(10, 0), None);
    assert_eq!(oldest(10, 1), Some(Sequence(10)));
    assert_eq!(oldest(10, 10), Some(Sequence(1)));
    assert_eq!(oldest(u64::MAX, 1), Some(Sequence(u64::MAX)));
    assert_eq!(oldest((1 << 32) + 3, 5), Some(Sequence((1 << 32) - 1)));
}

#[test]
fn bodies_come_back_as_they_were_written() {
    let heartbeat = Heartbeat {
        next_interval_us: 40,
        hold_off_us: 7,
        subscribers: 3,
        state: PublisherState::Ended,
        config_hash: ConfigHash(0x0102_0304_0506_0708),
    };
    assert_eq!(Heartbeat::parse(&heartbeat.to_bytes()), Some(heartbeat));
    assert_eq!(Heartbeat::parse(&heartbeat.to_bytes()[..23]), None);
    for event in [
        StreamEvent::SourceLost {
            source: SourceId(3),
            reason: SourceLossReason::Overflow,
            from: SourcePosition::new(2, 99),
            messages: 17,
            instruments: vec![1, 2, 300_000],
        },
        StreamEvent::SourceSilent {
            source: SourceId(3),
            since: Nanos(u64::MAX - 1),
            instruments: vec![1, 2, 300_000],
        },
        StreamEvent::SourceBack {
            source: SourceId(3),
            since: Nanos(17),
            instruments: Vec::new(),
        },
        StreamEvent::EpochOpened {
            reason: EpochReason::Restart,
            previous: Epoch(6),
            previous_last: Sequence(u64::MAX),
        },
    ] {
        let mut body = Vec::new();
        event.write(&mut body);
        assert_eq!(body.len() % 8, 0);
        assert_eq!(StreamEvent::parse(&body).as_ref(), Some(&event));
        assert_eq!(StreamEvent::parse(&body[..20]), None);
    }
}

#[test]
fn event_with_too_many_instruments_applies_to_all() {
    let mut body = Vec::new();
    StreamEvent::SourceLost {
        source: SourceId(1),
        reason: SourceLossReason::Gap,
        from: SourcePosition(1),
        messages: 1,
        instruments: (0..200).collect(),
    }
    .write(&mut body);
    let Some(StreamEvent::SourceLost { instruments, .. }) = StreamEvent::parse(&body) else {
        panic!("a source loss")
    };
    assert!(instruments.is_empty());
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(datagram) = Datagram::parse(&bytes) {
            let _ = (datagram.verdict(), datagram.payload(), datagram.records());
        }
        let _ = (Heartbeat::parse(&bytes), StreamEvent::parse(&bytes));
    }

    #[test]
    fn header_with_arbitrary_lengths_never_panics(
        lens in any::<(u8, u16)>(),
        rest in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = header().to_bytes(0).to_vec();
        bytes[58] = lens.0;
        bytes[54..56].copy_from_slice(&lens.1.to_le_bytes());
        bytes.extend(rest);
        if let Ok(datagram) = Datagram::parse(&bytes) {
            let _ = (datagram.verdict(), datagram.payload(), datagram.records());
        }
    }
}

#[test]
fn kinds_states_and_reasons_have_fixed_numbers() {
    for (byte, kind) in [
        (1, Kind::Data),
        (2, Kind::Event),
        (3, Kind::Heartbeat),
        (4, Kind::End),
    ] {
        assert_eq!((kind as u8, Kind::from_byte(byte)), (byte, Some(kind)));
        assert_eq!(kind.is_sequenced(), kind != Kind::Heartbeat);
    }
    assert_eq!((Kind::from_byte(0), Kind::from_byte(5)), (None, None));
    for state in [
        PublisherState::Live,
        PublisherState::Ended,
        PublisherState::Standby,
    ] {
        let heartbeat = Heartbeat {
            next_interval_us: 1,
            hold_off_us: 2,
            subscribers: 3,
            state,
            config_hash: ConfigHash(u64::MAX - 1),
        };
        let mut bytes = heartbeat.to_bytes();
        assert_eq!(Heartbeat::parse(&bytes), Some(heartbeat));
        bytes[12] = 4;
        assert_eq!(Heartbeat::parse(&bytes), None);
    }
    let reported = |event: &StreamEvent| {
        let mut body = Vec::new();
        event.write(&mut body);
        assert_eq!(StreamEvent::parse(&body).as_ref(), Some(event));
        body
    };
    for (byte, reason) in [
        (1, SourceLossReason::Gap),
        (2, SourceLossReason::Overflow),
        (3, SourceLossReason::Malformed),
    ] {
        let body = reported(&StreamEvent::SourceLost {
            source: SourceId(3),
            reason,
            from: SourcePosition::new(2, 99),
            messages: 17,
            instruments: (0..StreamEvent::INSTRUMENTS_MAX as u32).collect(),
        });
        assert_eq!((body[0], body[2]), (1, byte));
    }
    for (byte, reason) in [
        (1, EpochReason::Fresh),
        (2, EpochReason::Restart),
        (3, EpochReason::Promotion),
    ] {
        let mut body = reported(&StreamEvent::EpochOpened {
            reason,
            previous: Epoch(6),
            previous_last: Sequence(u64::MAX),
        });
        assert_eq!((body[0], body[2], body.len()), (2, byte, 24));
        body[0] = 5;
        assert_eq!(StreamEvent::parse(&body), None, "an unknown event");
    }
}

#[test]
fn silence_events_have_fixed_bytes() {
    let (source, since) = (SourceId(0x0102), Nanos(0x0807_0605_0403_0201));
    let body = |event: &StreamEvent| {
        let mut body = Vec::new();
        event.write(&mut body);
        body
    };
    let mut silent = vec![3, 0, 0, 0, 2, 1, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    silent.extend([0; 8]);
    silent.extend([9, 0, 0, 0, 0, 0, 0, 0]);
    let named = StreamEvent::SourceSilent {
        source,
        since,
        instruments: vec![9],
    };
    assert_eq!(body(&named), silent);
    assert_eq!(named.source_messages_lost(), 0);
    assert_eq!(StreamEvent::parse(&silent[..24]), None, "it names one");
    let back = |instruments| StreamEvent::SourceBack {
        source,
        since,
        instruments,
    };
    silent.truncate(24);
    (silent[0], silent[6]) = (4, 0);
    assert_eq!(body(&back(Vec::new())), silent);
    let too_many = (0..=StreamEvent::INSTRUMENTS_MAX as u32).collect();
    assert_eq!(body(&back(too_many)), silent, "too many are all");
}

#[test]
fn malformed_header_is_refused_with_a_specific_error() {
    let good = sealed(&header(), &[]);
    let refused = |change: fn(&mut [u8])| {
        let mut bytes = good.clone();
        change(&mut bytes);
        Datagram::parse(&bytes).err()
    };
    assert_eq!(
        refused(|b| b[0] = b'X'),
        Some(WireError::Magic { magic: 0x4b58 })
    );
    assert_eq!(
        refused(|b| b[2] = 2),
        Some(WireError::Version { version: 2 })
    );
    assert_eq!(refused(|b| b[3] = 9), Some(WireError::Kind { kind: 9 }));
    assert!(matches!(
        refused(|b| b[58] = 7),
        Some(WireError::Length { header_len: 56, .. })
    ));
    assert!(matches!(
        refused(|b| b[8..16].fill(0)),
        Some(WireError::Zero { epoch: 0, .. })
    ));
    assert!(matches!(
        refused(|b| b[16..24].fill(0)),
        Some(WireError::Zero { sequence: 0, .. })
    ));
    let mut heartbeat = header().to_bytes(0);
    heartbeat[3] = 3;
    heartbeat[16..24].fill(0);
    assert!(
        Datagram::parse(&heartbeat).is_ok(),
        "before the first datagram a heartbeat says zero"
    );
    heartbeat[8..16].fill(0);
    assert!(Datagram::parse(&heartbeat).is_err());
}

#[test]
fn records_are_read_from_data_datagrams_only() {
    let payload = [0; 8];
    let of = |kind| Header {
        kind,
        payload_len: 8,
        ..header()
    };
    let words: Vec<u64> = sealed(&of(Kind::Event), &payload)
        .chunks(8)
        .map(|w| u64::from_ne_bytes(w.try_into().unwrap()))
        .collect();
    let bytes = crate::record::words_as_bytes(&words);
    let event = Datagram::parse(bytes).unwrap();
    assert_eq!(event.records().map(Iterator::count), Ok(0));
    let words: Vec<u64> = sealed(&of(Kind::Data), &payload)
        .chunks(8)
        .map(|w| u64::from_ne_bytes(w.try_into().unwrap()))
        .collect();
    let bytes = crate::record::words_as_bytes(&words);
    let data = Datagram::parse(bytes).unwrap();
    assert_eq!(
        (data.payload(), data.header().datagram_len()),
        (&payload[..], 72)
    );
    assert!(data.records().is_err());
}

#[test]
fn unknown_epoch_reason_reads_as_restart() {
    for reason in EpochReason::ALL {
        let mut bytes = Vec::new();
        let opened = StreamEvent::EpochOpened {
            reason,
            previous: Epoch(7),
            previous_last: Sequence(99),
        };
        opened.write(&mut bytes);
        assert_eq!(StreamEvent::parse(&bytes), Some(opened));
        // A version that knows only three reasons can read these.
        assert!((1..=3).contains(&bytes[2]), "{reason:?}");
        bytes[4] = 200;
        let of = |event| match event {
            Some(StreamEvent::EpochOpened { reason, .. }) => Some(reason),
            _ => None,
        };
        let plain = [
            EpochReason::Fresh,
            EpochReason::Restart,
            EpochReason::Promotion,
        ];
        assert_eq!(
            of(StreamEvent::parse(&bytes)),
            Some(plain[usize::from(bytes[2]) - 1])
        );
        bytes[2] = 11;
        assert_eq!(StreamEvent::parse(&bytes), None);
    }
}
