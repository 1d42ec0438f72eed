//! The fault injector follows its config, reports its faults, and repeats them for the same seed.

use std::collections::BTreeSet;

use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{CrcVerdict, Datagram, Header, Kind, crc_of, relay_flags};
use tickcast_transport::faults::{
    Burst, Delay, FaultConfig, FaultConfigError, FaultInjector, FaultKind, Reorder, Scripted,
};

const EPOCH: Epoch = Epoch(5);
const CHANNEL: ChannelId = ChannelId(3);

fn datagram(kind: Kind, sequence: u64, relay: u8) -> Vec<u8> {
    let header = Header {
        kind,
        channel: CHANNEL,
        count: 0,
        epoch: EPOCH,
        sequence: Sequence(sequence),
        first_record: RecordNumber(1),
        source_position: SourcePosition(0),
        sent_at: Nanos(0),
        retained: 1,
        source: SourceId(0),
        payload_len: 16,
        flags: 0,
        header_len: 64,
        relay,
    };
    let payload = [sequence as u8; 16];
    let mut bytes = header
        .to_bytes(crc_of(&header.to_bytes(0), &payload))
        .to_vec();
    bytes.extend(payload);
    bytes
}

/// Passes `count` datagrams through, one per microsecond. Returns the sequences of the undamaged ones, in
/// order of emission, and the injector.
fn run(config: FaultConfig, count: u64) -> (Vec<u64>, FaultInjector<u64>) {
    let mut injector = FaultInjector::new(config).unwrap();
    let mut out = Vec::new();
    for sequence in 1..=count {
        let bytes = datagram(Kind::Data, sequence, 0);
        injector.apply(Nanos::from_us(sequence), sequence, &bytes, |tag, bytes| {
            note(&mut out, tag, bytes);
        });
        let counts = injector.counts();
        assert_eq!(
            counts.passed_in + counts.duplicated,
            counts.passed_out + counts.dropped_all() + injector.held() as u64
        );
    }
    injector.flush(|tag, bytes| note(&mut out, tag, bytes));
    assert_eq!(injector.held(), 0);
    (out, injector)
}

fn note(out: &mut Vec<u64>, tag: u64, bytes: &[u8]) {
    match Datagram::parse(bytes) {
        Ok(datagram) if datagram.verdict() == CrcVerdict::Good => {
            assert_eq!(datagram.header().sequence, Sequence(tag));
            out.push(tag);
        }
        _ => {}
    }
}

fn numbers(ranges: &[SequenceRange]) -> BTreeSet<u64> {
    ranges.iter().flat_map(|r| r.iter()).map(|s| s.0).collect()
}

fn everything() -> FaultConfig {
    FaultConfig {
        seed: 11,
        drop: 0.02,
        burst: Some(Burst {
            loss: 0.02,
            mean_len: 4.0,
        }),
        duplicate: 0.03,
        reorder: Some(Reorder {
            probability: 0.05,
            depth: 7,
            hold: Nanos::from_ms(1),
        }),
        delay: Some(Delay {
            probability: 0.05,
            min: Nanos::from_us(3),
            max: Nanos::from_us(40),
        }),
        corrupt: 0.03,
        truncate: 0.03,
        script: Vec::new(),
    }
}

#[test]
fn injector_without_faults_passes_all_unchanged() {
    let (out, injector) = run(FaultConfig::default(), 1000);
    assert_eq!(out, (1..=1000).collect::<Vec<_>>());
    assert!(injector.log().entries().is_empty());
}

#[test]
fn fault_sequence_is_determined_by_seed() {
    let (first, one) = run(everything(), 5000);
    let (second, two) = run(everything(), 5000);
    assert_eq!(first, second);
    assert_eq!(
        (one.counts(), one.log().entries()),
        (two.counts(), two.log().entries())
    );
    let other = FaultConfig {
        seed: 12,
        ..everything()
    };
    assert_ne!(run(other, 5000).0, first);
}

#[test]
fn drop_decisions_are_independent_of_other_faults() {
    let base = FaultConfig {
        drop: 0.1,
        ..FaultConfig::default()
    };
    let (_, alone) = run(base.clone(), 5000);
    let beside = FaultConfig {
        drop: 0.1,
        ..everything()
    };
    let beside = FaultConfig {
        seed: 0,
        burst: None,
        ..beside
    };
    let (_, together) = run(beside, 5000);
    assert_eq!(
        alone.log().dropped(EPOCH, CHANNEL),
        together.log().dropped(EPOCH, CHANNEL)
    );
}

#[test]
fn missing_datagrams_match_fault_log() {
    let (out, injector) = run(everything(), 20_000);
    let arrived: BTreeSet<u64> = out.iter().copied().collect();
    let missing: BTreeSet<u64> = (1..=20_000).filter(|n| !arrived.contains(n)).collect();
    assert_eq!(injector.counts().unlisted, 0);
    assert_eq!(numbers(&injector.log().missed(EPOCH, CHANNEL)), missing);
    let dropped = numbers(&injector.log().dropped(EPOCH, CHANNEL));
    assert_eq!(dropped.len() as u64, injector.counts().dropped_all());
    assert!(injector.counts().corrupted > 300 && injector.counts().truncated > 300);
}

#[test]
fn fault_rates_match_configured_probabilities() {
    // Five standard deviations: sqrt(n p (1 - p)) each.
    let n = 100_000u64;
    let within = |count: u64, p: f64| {
        let (expected, count) = (n as f64 * p, count as f64);
        let deviation = (expected * (1.0 - p)).sqrt();
        assert!(
            (count - expected).abs() < 5.0 * deviation,
            "{count} instead of {expected}"
        );
    };
    for p in [0.001, 0.01, 0.3] {
        let config = FaultConfig {
            seed: 99,
            drop: p,
            ..FaultConfig::default()
        };
        within(run(config, n).1.counts().dropped, p);
    }
    let config = FaultConfig {
        seed: 7,
        duplicate: 0.05,
        corrupt: 0.01,
        truncate: 0.02,
        ..FaultConfig::default()
    };
    let (_, injector) = run(config, n);
    within(injector.counts().duplicated, 0.05);
    within(injector.counts().corrupted, 0.01);
    within(injector.counts().truncated, 0.02);
}

#[test]
fn bursts_have_requested_mean_and_share() {
    for (loss, mean_len) in [(0.01, 10.0), (0.05, 3.0), (0.2, 1.0)] {
        let config = FaultConfig {
            seed: 1,
            burst: Some(Burst { loss, mean_len }),
            ..FaultConfig::default()
        };
        let n = 400_000;
        let (_, injector) = run(config, n);
        let counts = injector.counts();
        let bursts = counts.bursts as f64;
        let mean = counts.burst_dropped as f64 / bursts;
        let share = counts.burst_dropped as f64 / counts.passed_in as f64;
        // Four standard deviations of a geometric length, and of a chain whose neighbours are
        // correlated by `again`.
        let of_mean = mean_len * (1.0 - 1.0 / mean_len).sqrt() / bursts.sqrt();
        let again = 1.0 - 1.0 / mean_len - loss / (1.0 - loss) / mean_len;
        let of_share = (loss * (1.0 - loss) * (1.0 + again) / (1.0 - again) / n as f64).sqrt();
        assert!(
            (mean - mean_len).abs() <= 4.0 * of_mean,
            "length {mean} of {mean_len}"
        );
        assert!(
            (share - loss).abs() <= 4.0 * of_share,
            "share {share} of {loss}"
        );
    }
}

#[test]
fn reordering_is_bounded_and_loses_nothing() {
    let depth = 5;
    let config = FaultConfig {
        seed: 4,
        reorder: Some(Reorder {
            probability: 0.2,
            depth,
            hold: Nanos::from_secs(1),
        }),
        ..FaultConfig::default()
    };
    let (out, injector) = run(config, 20_000);
    let mut sorted = out.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=20_000).collect::<Vec<_>>());
    let mut newest = 0;
    let mut most = 0;
    for number in out {
        most = most.max(newest - number.min(newest));
        newest = newest.max(number);
    }
    assert_eq!(
        most,
        u64::from(depth),
        "overtaken by as many as allowed, and no more"
    );
    assert!(injector.counts().reordered > 3500);
}

#[test]
fn reordered_datagram_is_released_after_hold_time() {
    let config = FaultConfig {
        reorder: Some(Reorder {
            probability: 1.0,
            depth: 1,
            hold: Nanos::from_us(50),
        }),
        ..FaultConfig::default()
    };
    let mut injector = FaultInjector::new(config).unwrap();
    let bytes = datagram(Kind::Data, 1, 0);
    injector.apply(Nanos(1_000), (), &bytes, |(), _| panic!("it waits"));
    assert_eq!(injector.next_due(), Some(Nanos(51_000)));
    injector.due(Nanos(50_999), |(), _| panic!("not yet"));
    let mut out = Vec::new();
    injector.due(Nanos(51_000), |(), bytes| out.push(bytes.to_vec()));
    assert_eq!(out, [bytes]);
}

#[test]
fn delayed_datagram_is_released_within_delay_range() {
    let config = FaultConfig {
        delay: Some(Delay {
            probability: 1.0,
            min: Nanos(100),
            max: Nanos(200),
        }),
        ..FaultConfig::default()
    };
    let mut injector = FaultInjector::new(config).unwrap();
    for sequence in 1..=50 {
        let bytes = datagram(Kind::Data, sequence, 0);
        injector.apply(Nanos(1_000), sequence, &bytes, |_, _| panic!("too early"));
    }
    injector.due(Nanos(1_099), |_, _| panic!("too early"));
    let mut count = 0;
    while let Some(due) = injector.next_due() {
        assert!((1_100..=1_200).contains(&due.0));
        injector.due(due, |_, _| count += 1);
    }
    assert_eq!((count, injector.held()), (50, 0));
}

#[test]
fn fault_script_drops_exactly_listed_datagrams() {
    let config = FaultConfig {
        script: vec![
            Scripted::DropSequences {
                channel: Some(CHANNEL),
                ranges: vec![
                    SequenceRange::one(Sequence(3)),
                    SequenceRange {
                        first: Sequence(7),
                        last: Sequence(9),
                    },
                ],
                retransmitted: false,
            },
            Scripted::DropSequences {
                channel: Some(ChannelId(99)),
                ranges: vec![SequenceRange::one(Sequence(1))],
                retransmitted: false,
            },
            Scripted::DropBurst { from: 14, count: 2 },
        ],
        ..FaultConfig::default()
    };
    let (out, mut injector) = run(config, 20);
    assert_eq!(out, [1, 2, 4, 5, 6, 10, 11, 12, 13, 14, 17, 18, 19, 20]);
    assert_eq!(injector.counts().scripted_dropped, 6);
    assert!(
        injector
            .log()
            .entries()
            .iter()
            .all(|e| e.kind == FaultKind::ScriptedDrop)
    );
    // A repair passes, and so does a heartbeat that reports the sequence.
    for bytes in [
        datagram(Kind::Data, 3, relay_flags::RETRANSMITTED),
        datagram(Kind::Heartbeat, 3, 0),
    ] {
        let mut passed = 0;
        injector.apply(Nanos(0), 3, &bytes, |_, _| passed += 1);
        assert_eq!(passed, 1);
    }
}

#[test]
fn scripted_partition_starts_and_ends_on_time() {
    let config = FaultConfig {
        script: vec![
            Scripted::Partition {
                at: Nanos::from_us(10),
                lasts: Nanos::from_us(5),
            },
            Scripted::DropEnd { channel: None },
        ],
        ..FaultConfig::default()
    };
    // Datagram n arrives n - 1 microseconds after the first.
    let (out, mut injector) = run(config, 20);
    assert_eq!(out, (1..=10).chain(16..=20).collect::<Vec<_>>());
    assert_eq!(injector.counts().partition_dropped, 5);
    let end = datagram(Kind::End, 21, 0);
    injector.apply(Nanos::from_us(30), 21, &end, |_, _| {
        panic!("END is dropped")
    });
    let again = datagram(Kind::End, 21, relay_flags::RETRANSMITTED);
    let mut passed = 0;
    injector.apply(Nanos::from_us(30), 21, &again, |_, _| passed += 1);
    assert_eq!(passed, 1);
}

#[test]
fn unsequenced_datagram_drops_are_counted_separately() {
    let config = FaultConfig {
        drop: 1.0,
        ..FaultConfig::default()
    };
    let mut injector = FaultInjector::new(config).unwrap();
    for bytes in [&[][..], &[1, 2, 3], &datagram(Kind::Heartbeat, 8, 0)] {
        injector.apply(Nanos(0), (), bytes, |(), _| panic!("all is dropped"));
    }
    assert_eq!(
        (
            injector.counts().dropped,
            injector.counts().dropped_unsequenced
        ),
        (3, 3)
    );
    let damage = FaultConfig {
        corrupt: 1.0,
        truncate: 1.0,
        ..FaultConfig::default()
    };
    let mut injector = FaultInjector::new(damage).unwrap();
    let mut lens = Vec::new();
    for bytes in [&[][..], &[1], &[1, 2, 3]] {
        injector.apply(Nanos(0), (), bytes, |(), out| {
            lens.push((bytes.len(), out.len()));
        });
    }
    assert!(
        lens.iter()
            .all(|(before, after)| after < before || *before == 0),
        "{lens:?}"
    );
}

#[test]
fn numbers_that_make_no_sense_are_refused_by_name() {
    let refused = |config: FaultConfig| FaultInjector::<()>::new(config).err().unwrap();
    for value in [-0.1, 1.1, f64::NAN] {
        let error = refused(FaultConfig {
            corrupt: value,
            ..FaultConfig::default()
        });
        assert!(matches!(
            error,
            FaultConfigError::Probability {
                field: "corrupt",
                ..
            }
        ));
    }
    for (loss, mean_len) in [(0.5, 0.5), (1.0, 5.0), (0.9, 2.0), (0.1, f64::INFINITY)] {
        let error = refused(FaultConfig {
            burst: Some(Burst { loss, mean_len }),
            ..FaultConfig::default()
        });
        assert!(matches!(error, FaultConfigError::Burst { .. }));
    }
    let error = refused(FaultConfig {
        script: vec![Scripted::DropSequences {
            channel: None,
            ranges: vec![SequenceRange::one(Sequence(0))],
            retransmitted: false,
        }],
        ..FaultConfig::default()
    });
    assert!(matches!(error, FaultConfigError::Range { .. }));
}
