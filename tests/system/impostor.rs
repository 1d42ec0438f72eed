//! An impostor multicasts datagrams with right CRCs from the publisher's address, ahead of the publisher. A
//! witness reads the publisher's ring by memory, where no impostor can write.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use serde_json::{Value, json};
use tickcast_publisher::Config;
use tickcast_publisher::record::TradeMsg;
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{Header, Kind, SourceLossReason, StreamEvent, crc_of};
use tickcast_subscriber::{
    Event, Item, LossCause, Position, ReceiverCounters, Subscriber, Transport,
};
use tickcast_test_support::{
    Follower, PATIENCE, Publisher, channel, drive, endless, free_group, number, one_channel,
};
use xxhash_rust::xxh3::Xxh3;

use crate::hostile::send_from;

/// Datagrams of one attack.
const RUN: u64 = 400;
const ATTACKS: u64 = 20;
/// Datagrams of an attack on a silent publisher: more than a receive window holds.
const LONG_RUN: u64 = 10_000;
/// Datagrams that are sent before the subscriber reads them. Every receive buffer holds them.
const PART: u64 = 100;

/// Everything that an application holds: delivered, and neither void nor declared lost later.
#[derive(Default)]
struct Held {
    /// Each record with its sequence and number, because forged ones may repeat a number.
    records: BTreeMap<(Sequence, RecordNumber), Vec<u8>>,
    lost: Vec<SequenceRange>,
    rollbacks: u64,
    /// The last record delivered.
    last: Option<Position>,
    /// Events of the stream, forged ones among them.
    stream_events: Vec<StreamEvent>,
}

impl Held {
    /// Returns the digest of the records, as a publisher computes it.
    fn digest(&self) -> String {
        let mut digest = Xxh3::new();
        self.records.values().for_each(|bytes| digest.update(bytes));
        format!("{:032x}", digest.digest128())
    }

    fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Record(position, record) => {
                let at = (position.sequence, position.record);
                let before = self.records.insert(at, record.as_ref().to_vec());
                assert_eq!(before, None, "{at:?} twice");
                self.last = Some(**position);
            }
            Item::Event(_, Event::Lost(loss)) => {
                let is_of = |sequence: &Sequence| loss.sequences.contains(*sequence);
                let held = self.records.len();
                self.records.retain(|(sequence, _), _| !is_of(sequence));
                let was_held = self.records.len() < held;
                assert!(!was_held || loss.cause == LossCause::Fenced, "{loss}");
                self.lost.push(loss.sequences);
            }
            Item::Event(_, Event::RolledBack { after, records }) => {
                let held = self.records.len();
                self.records.retain(|(sequence, _), _| sequence <= after);
                assert_eq!((held - self.records.len()) as u64, *records);
                self.lost.retain(|range| range.last <= *after);
                self.rollbacks += 1;
            }
            Item::Event(_, Event::Stream(event)) => self.stream_events.push(event.clone()),
            Item::Event(..) => {}
        }
    }
}

/// The next datagram that the impostor forges, of this kind and with this body.
pub(crate) fn forge(
    kind: Kind,
    at: (Epoch, Sequence, RecordNumber),
    count: u16,
    body: &[u8],
) -> Vec<u8> {
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

/// Returns the config of a publisher that multicasts to this group, and whose ring can be mapped.
fn by_network_and_memory(name: &str, group: SocketAddrV4, input: Value) -> Value {
    let ring = format!("/dev/shm/tickcast-test-{}-{name}", std::process::id());
    let mut config = one_channel(&[group], input);
    config["channels"][0]["fan_out"] = json!([
        { "transport": "udp", "lines": [{ "group": group }] },
        { "transport": "shm", "path": ring },
    ]);
    config
}

/// The outcome of a session with attacks.
struct Attacked {
    counters: Arc<ReceiverCounters>,
    held: Held,
    witness: Held,
    summary: Value,
}

/// Runs a session whose multicast an impostor joins: each attack is a run of datagrams of this kind from
/// the newest one on.
fn attacked(name: &str, kind: Kind, count: u16, body: &[u8]) -> Attacked {
    let group = free_group();
    let config = by_network_and_memory(name, group, endless(5_000, 2));
    let publisher = Publisher::start(&config);
    let follow = |name: &str, transport| {
        let builder = publisher.subscriber().name(name).channel("all");
        let builder = builder.source_specific(false).transport(transport);
        builder.build().expect("the subscriber is built")
    };
    let mut attacked = follow("attacked", Transport::Udp);
    let mut witness = follow("witness", Transport::Shm);
    let (mut held, mut seen) = (Held::default(), Held::default());
    let (mut attacks, mut at) = (0, 0);
    drive(&mut [], |_| {
        attacked.poll(|item| held.take(&item));
        witness.poll(|item| seen.take(&item));
        let report = &attacked.channels()[0];
        // Each attack begins once the stream went on behind the one before.
        let went_on = seen.records.len() - at;
        if went_on > 200
            && attacks < ATTACKS
            && let Some(last) = held.last
            && last.sequence == report.heard
        {
            let run = (1..=RUN).map(|n| {
                let (sequence, record) = (report.heard.plus(n), last.record.plus(n));
                forge(kind, (report.epoch, sequence, record), count, body)
            });
            send_from(Ipv4Addr::LOCALHOST, group, &run.collect::<Vec<_>>());
            (at, attacks) = (seen.records.len(), attacks + 1);
        }
        // By then the publisher's copies have decided what is contested.
        attacks == ATTACKS && went_on > 2_000
    });
    publisher.terminate();
    drive(&mut [], |_| {
        attacked.poll(|item| held.take(&item));
        witness.poll(|item| seen.take(&item));
        attacked.ended() && witness.ended()
    });
    let counters = attacked.channels()[0].counters.clone();
    drop((attacked, witness));
    let (_, summary) = publisher.finish();
    Attacked {
        counters,
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
        for (at, bytes) in &self.held.records {
            assert_eq!(Some(bytes), self.witness.records.get(at), "{at:?}");
        }
        for at in self.witness.records.keys() {
            let is_told = self.held.lost.iter().any(|it| it.contains(at.0));
            let is_held = self.held.records.contains_key(at);
            assert!(is_held != is_told, "{at:?}: held {is_held}, lost {is_told}");
        }
        let c = &self.counters;
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
    // Where genuine datagrams overtake the forged run, its record numbers follow no more.
    let c = &attacked.counters;
    let is_proven = attacked.held.rollbacks > 0 && c.impostors.get() > 0;
    assert!(is_proven || c.malformed_dropped.get() > 0);
}

#[test]
fn forged_unreadable_datagrams_displace_no_genuine_one() {
    let attacked = attacked("unreadable", Kind::Data, 1, &[0xa5; 56]);
    let c = &attacked.counters;
    assert!(c.malformed_dropped.get() > 0);
    assert!(attacked.held.lost.is_empty());
    assert_eq!(attacked.held.records, attacked.witness.records);
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
    assert!(
        attacked.held.stream_events.contains(&lost),
        "one came first"
    );
    let c = &attacked.counters;
    assert_eq!(c.source_messages_lost.get(), 0);
}

/// Multicasts datagrams of this kind behind the newest one that the follower heard, until it has received
/// `count` of them. After a rollback it begins again behind the publisher's newest one.
fn forge_run(
    (kind, count): (Kind, u64),
    body: &[u8],
    group: SocketAddrV4,
    (follower, held): (&mut Follower, &mut Held),
) {
    let records = u16::from(!body.is_empty());
    let mut sent = 0;
    while sent < count {
        let report = &follower.subscriber.channels()[0];
        let (&(_, last), _) = held.records.last_key_value().expect("a record");
        let part = PART.min(count - sent);
        let run = (1..=part).map(|n| {
            let at = (report.epoch, report.heard.plus(n), last.plus(n));
            forge(kind, at, records, body)
        });
        let received = report.counters.received_datagrams.get();
        send_from(Ipv4Addr::LOCALHOST, group, &run.collect::<Vec<_>>());
        drive(&mut [], |_| {
            follower.poll_with(&mut |item| held.take(item));
            follower.counters(0).received_datagrams.get() >= received + part
        });
        sent += part;
    }
}

#[test]
fn forged_run_and_end_beyond_silent_publisher_cost_nothing() {
    const BATCH: u64 = 400;
    let group = free_group();
    let own = json!({ "source": 3, "kind": "own" });
    let config = by_network_and_memory("silent", group, own).to_string();
    let config = Config::parse(&config).expect("a config");
    let mut publisher = tickcast_publisher::Publisher::open(config).expect("a publisher");
    let address = publisher.control_address().to_string();
    let follow = |name: &str, transport| {
        let builder = Subscriber::builder(&*address).name(name).channel("all");
        Follower::new(builder.source_specific(false).transport(transport))
    };
    let mut attacked = follow("attacked", Transport::Udp);
    let mut witness = [follow("witness", Transport::Shm)];
    let monitor = publisher.monitor();
    drive(&mut witness, |_| {
        attacked.poll();
        monitor.subscribers().iter().filter(|it| it.follows).count() == 2
    });
    let mut writer = publisher.channel("all").expect("the channel");
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg::default());
    let mut held = Held::default();
    let mut published = 0;
    for attack in 0..3 {
        // The queue has room for a part of the batch on a machine of any speed.
        for _ in 0..BATCH / PART {
            for _ in 0..PART {
                published += 1;
                let trade = TradeMsg {
                    size: published as u32,
                    ..TradeMsg::default()
                };
                let at = SourcePosition::new(0, published);
                writer.publish(&trade, at).expect("there is room");
                writer.flush();
            }
            drive(&mut witness, |all| {
                attacked.poll_with(&mut |item| held.take(item));
                let seen: u64 = all[0].records.values().sum();
                seen == published && held.records.len() as u64 == published
            });
        }
        // The publisher is silent from here on, so no datagram of its own contradicts the forged ones.
        let rollbacks = held.rollbacks;
        let follower = (&mut attacked, &mut held);
        forge_run((Kind::Data, LONG_RUN), batch.bytes(), group, follower);
        let follower = (&mut attacked, &mut held);
        forge_run((Kind::End, 1), &[], group, follower);
        drive(&mut witness, |all| {
            attacked.poll_with(&mut |item| held.take(item));
            let heard = |it: &Follower| it.subscriber.channels()[0].heard;
            held.rollbacks > rollbacks && heard(&attacked) == heard(&all[0])
        });
        assert_eq!(held.records.len() as u64, published);
        assert!(!attacked.subscriber.ended(), "attack {attack}");
    }
    drop(writer);
    let ended = std::thread::spawn(move || publisher.end_session(PATIENCE));
    drive(&mut witness, |all| {
        attacked.poll_with(&mut |item| held.take(item));
        attacked.subscriber.ended() && all[0].subscriber.ended() && ended.is_finished()
    });
    let summary = ended.join().expect("no panic").expect("a whole session");
    let digest = &channel(summary.json())["digest"];
    assert_eq!(&json!(witness[0].digest(1)), digest);
    assert_eq!(&json!(held.digest()), digest);
    assert!(held.lost.is_empty(), "{:?}", held.lost);
    attacked.assert_balanced();
    let c = attacked.counters(0);
    assert_eq!((c.missing_open.get(), c.missing_lost.get()), (0, 0));
    assert!(c.impostors.get() >= 3, "each attack is proven");
    let fenced = c.fenced_records.get();
    assert!(fenced >= 3 * PART, "{fenced} forged records were delivered");
    assert_eq!(c.delivered_records.get() - fenced, published);
}
