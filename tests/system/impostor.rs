//! An impostor multicasts datagrams with right CRCs from the publisher's address, ahead of the publisher. A
//! witness reads the publisher's ring by memory, where no impostor can write.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{Header, Kind, SourceLossReason, StreamEvent, crc_of};
use tickcast_subscriber::{Event, Item, LossCause, Transport};
use tickcast_test_support::{
    Follower, Publisher, channel, drive, drive_to_end, endless, free_group, number, one_channel,
};

use crate::hostile::send_from;

/// Datagrams of one attack.
const RUN: u64 = 400;
const ATTACKS: u64 = 20;

/// Everything that an application holds: delivered, and neither void nor declared lost later.
#[derive(Default)]
struct Held {
    records: BTreeMap<u64, (Sequence, Vec<u8>)>,
    lost: Vec<SequenceRange>,
    rollbacks: u64,
}

impl Held {
    fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Record(position, record) => {
                let bytes = record.as_ref().to_vec();
                let record = (position.sequence, bytes);
                let before = self.records.insert(position.record.0, record);
                assert_eq!(before, None, "record {} twice", position.record);
            }
            Item::Event(_, Event::Lost(loss)) => {
                let is_of = |sequence: &Sequence| loss.sequences.contains(*sequence);
                let held = self.records.len();
                self.records.retain(|_, (sequence, _)| !is_of(sequence));
                let was_held = self.records.len() < held;
                assert!(!was_held || loss.cause == LossCause::Fenced, "{loss}");
                self.lost.push(loss.sequences);
            }
            Item::Event(_, Event::RolledBack { after, records }) => {
                let held = self.records.len();
                self.records.retain(|_, (sequence, _)| *sequence <= *after);
                assert_eq!((held - self.records.len()) as u64, *records);
                self.lost.retain(|range| range.last <= *after);
                self.rollbacks += 1;
            }
            Item::Event(..) => {}
        }
    }
}

/// The next datagram that the impostor forges, of this kind and with this body.
fn forge(kind: Kind, at: (Epoch, Sequence, RecordNumber), count: u16, body: &[u8]) -> Vec<u8> {
    let header = Header {
        kind,
        channel: ChannelId(1),
        count,
        epoch: at.0,
        sequence: at.1,
        first_record: at.2,
        source_position: SourcePosition(1),
        sent_at: Nanos(0),
        retained: 1,
        source: SourceId(1),
        payload_len: body.len() as u16,
        flags: 0,
        header_len: 64,
        relay: 0,
    };
    let mut bytes = header.to_bytes(crc_of(&header.to_bytes(0), body)).to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// The outcome of a session with attacks.
struct Attacked {
    follower: Follower,
    held: Held,
    witness: Held,
    summary: Value,
}

/// Runs a session whose multicast an impostor joins: each attack is a run of datagrams of this kind from
/// the newest one on.
fn attacked(name: &str, kind: Kind, count: u16, body: &[u8]) -> Attacked {
    let group = free_group();
    let ring = format!("/dev/shm/tickcast-test-{}-{name}", std::process::id());
    let mut config = one_channel(&[group], endless(5_000, 2));
    config["channels"][0]["fan_out"] = json!([
        { "transport": "udp", "lines": [{ "group": group }] },
        { "transport": "shm", "path": ring },
    ]);
    let publisher = Publisher::start(&config);
    let follow = |name: &str, transport| {
        let builder = publisher.subscriber().name(name).channel("all");
        Follower::new(builder.source_specific(false).transport(transport))
    };
    let mut attacked = [follow("attacked", Transport::Udp)];
    let mut witness = [follow("witness", Transport::Shm)];
    let (mut held, mut seen) = (Held::default(), Held::default());
    let mut attacks = 0;
    let mut at = 0;
    drive(&mut [], |_| {
        attacked[0].poll_with(|item| held.take(item));
        witness[0].poll_with(|item| seen.take(item));
        let report = &attacked[0].subscriber.channels()[0];
        // Each attack begins once the stream went on behind the one before.
        if seen.records.len() as u64 > at + 200
            && let Some(last) = attacked[0].last(1)
            && last.sequence == report.heard
        {
            let run = (1..=RUN).map(|n| {
                let (sequence, record) = (report.heard.plus(n), last.record.plus(n));
                forge(kind, (report.epoch, sequence, record), count, body)
            });
            send_from(Ipv4Addr::LOCALHOST, group, &run.collect::<Vec<_>>());
            (at, attacks) = (seen.records.len() as u64, attacks + 1);
        }
        attacks == ATTACKS
    });
    publisher.terminate();
    drive(&mut [], |_| {
        attacked[0].poll_with(|item| held.take(item));
        witness[0].poll_with(|item| seen.take(item));
        attacked[0].subscriber.ended() && witness[0].subscriber.ended()
    });
    drive_to_end(&mut attacked);
    drive_to_end(&mut witness);
    let (_, summary) = publisher.finish();
    let [follower] = attacked;
    Attacked {
        follower,
        held,
        witness: seen,
        summary,
    }
}

impl Attacked {
    /// Asserts that the application holds each record of the publisher or was told of its loss, and
    /// nothing else.
    fn assert_got_or_told(&self) {
        assert!(self.witness.lost.is_empty());
        let published = number(&self.summary, "published_records");
        assert_eq!(self.witness.records.len() as u64, published);
        for (number, (sequence, bytes)) in &self.held.records {
            let genuine = self.witness.records.get(number).map(|it| &it.1);
            assert_eq!(Some(bytes), genuine, "record {number} of {sequence}");
        }
        for (number, (sequence, _)) in &self.witness.records {
            let is_told = self.held.lost.iter().any(|it| it.contains(*sequence));
            let is_held = self.held.records.contains_key(number);
            assert!(is_held != is_told, "record {number} of {sequence}");
        }
        let c = self.follower.counters(0);
        let (delivered, lost) = (c.delivered_records.get(), c.lost_records.get());
        assert_eq!(delivered + lost - c.fenced_records.get(), published);
    }
}

#[test]
fn forged_run_ahead_of_publisher_is_rolled_back() {
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg::default());
    let attacked = attacked("ahead", Kind::Data, 1, batch.bytes());
    attacked.assert_got_or_told();
    assert!(attacked.held.rollbacks > 0);
    assert!(attacked.follower.counters(0).impostors.get() > 0);
}

#[test]
fn forged_unreadable_datagrams_displace_no_genuine_one() {
    let attacked = attacked("unreadable", Kind::Data, 1, &[0xa5; 56]);
    let c = attacked.follower.counters(0);
    assert!(c.malformed_dropped.get() > 0);
    assert!(attacked.held.lost.is_empty());
    assert_eq!(attacked.held.records, attacked.witness.records);
    assert_eq!(
        attacked.follower.digest(1),
        channel(&attacked.summary)["digest"]
    );
}

#[test]
fn forged_source_loss_does_not_stay_in_counters() {
    let mut body = Vec::new();
    let lost = StreamEvent::SourceLost {
        source: SourceId(1),
        reason: SourceLossReason::Overflow,
        from: SourcePosition(1),
        messages: u64::MAX - 1,
        instruments: Vec::new(),
    };
    lost.write(&mut body);
    let attacked = attacked("events", Kind::Event, 0, &body);
    attacked.assert_got_or_told();
    let forged = |event: &Event| matches!(event, Event::Stream(it) if *it == lost);
    assert!(attacked.follower.saw(forged), "one came first");
    let c = attacked.follower.counters(0);
    assert_eq!(c.source_messages_lost.get(), 0);
}
