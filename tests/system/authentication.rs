//! An authenticated channel: forged datagrams with right CRCs are counted and never delivered.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tickcast_reliability::control::{
    ChannelName, Join, JoinChannel, Message, Purpose, RejectCode, Start,
};
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::types::{
    ConfigHash, Epoch, RecordNumber, Sequence, SourceId, SourcePosition,
};
use tickcast_reliability::wire::authentication::{Key, TAGGED_HEADER_LEN};
use tickcast_reliability::wire::{
    Datagram, Header, Heartbeat, Kind, PublisherState, SourceLossReason, StreamEvent, crc_of,
    datagram_flags,
};
use tickcast_test_support::{
    Follower, Publisher, channel, drive, end, endless, free_group, one_channel,
};

use crate::hostile::{Peer, send_from};
use crate::impostor::forge;

/// Datagrams of each kind in one attack. A receive buffer holds an attack.
const RUN: u64 = 16;
const ATTACKS: u64 = 20;
/// A key serves this many datagrams, so that several are used in a test.
const PER_KEY: u64 = 2_048;

/// Returns the config with its channel authenticated.
pub(crate) fn authenticated(mut config: Value) -> Value {
    config["channels"][0]["authentication"] = true.into();
    config["channels"][0]["datagrams_per_key"] = json!(PER_KEY);
    config
}

/// Returns the forged datagram with the tag of a key that the impostor made up.
fn tagged(bytes: &[u8]) -> Vec<u8> {
    let datagram = Datagram::parse(bytes).expect("a datagram");
    let header = Header {
        flags: datagram_flags::TAGGED,
        header_len: TAGGED_HEADER_LEN as u16,
        ..*datagram.header()
    };
    let own = Key::new([0x5a; 32]);
    let mut rest = own.tag(&header.to_bytes(0), datagram.payload()).to_vec();
    rest.extend(datagram.payload());
    let mut bytes = header.to_bytes(crc_of(&header.to_bytes(0), &rest)).to_vec();
    bytes.extend(rest);
    bytes
}

/// Returns the bodies of each kind, with the number of records.
fn bodies() -> [(Kind, u16, Vec<u8>); 4] {
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg::default());
    let mut event = Vec::new();
    let lost = StreamEvent::SourceLost {
        source: SourceId(1),
        reason: SourceLossReason::Overflow,
        from: SourcePosition(1),
        messages: 1,
        instruments: Vec::new(),
    };
    lost.write(&mut event);
    let beat = Heartbeat {
        next_interval_us: 100,
        hold_off_us: 0,
        subscribers: 1,
        state: PublisherState::Ended,
        config_hash: ConfigHash(1),
    };
    [
        (Kind::Data, 1, batch.bytes().to_vec()),
        (Kind::Event, 0, event),
        (Kind::Heartbeat, 0, beat.to_bytes().to_vec()),
        (Kind::End, 0, Vec::new()),
    ]
}

/// Returns one attack behind the newest sequence: each kind, without a tag and with a wrong one.
fn attack((epoch, heard): (Epoch, Sequence), record: RecordNumber) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (kind, count, body) in bodies() {
        for n in 1..=RUN {
            let at = (epoch, heard.plus(n), record.plus(n));
            let plain = forge(kind, at, count, &body);
            all.push(match n % 2 {
                0 => tagged(&plain),
                _ => plain,
            });
        }
    }
    all
}

#[test]
fn forged_datagrams_are_counted_and_none_is_delivered() {
    let group = free_group();
    let publisher = Publisher::start(&authenticated(one_channel(&[group], endless(5_000, 1))));
    let builder = publisher.subscriber().channel("all");
    let mut followers = [Follower::new(builder.source_specific(false))];
    for _ in 0..ATTACKS {
        let dropped = followers[0].counters(0).unauthenticated_dropped.get();
        let before: u64 = followers[0].records.values().sum();
        drive(&mut followers, |all| {
            all[0].records.values().sum::<u64>() > before + 500
        });
        let report = &followers[0].subscriber.channels()[0];
        let last = followers[0].last(1).expect("a record");
        let forged = attack((report.epoch, report.heard), last.record);
        send_from(Ipv4Addr::LOCALHOST, group, &forged);
        drive(&mut followers, |all| {
            all[0].counters(0).unauthenticated_dropped.get() >= dropped + RUN
        });
    }
    let last = followers[0].last(1).expect("a record");
    drive(&mut followers, |all| {
        let at = all[0].last(1).map_or(Sequence(0), |at| at.sequence);
        at.0 > last.sequence.0.max(3 * PER_KEY)
    });
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    let follower = &followers[0];
    assert_eq!(channel(&summary)["digest"], json!(follower.digest(1)));
    assert!(follower.losses.is_empty(), "{:?}", follower.losses);
    let c = follower.counters(0);
    let untouched = [
        &c.impostors,
        &c.fencing_violations,
        &c.fenced_records,
        &c.sequence_jump_dropped,
        &c.source_messages_lost,
    ];
    assert!(untouched.iter().all(|it| it.get() == 0), "{c:?}");
    assert_eq!(
        c.delivered_records.get(),
        follower.records.values().sum::<u64>()
    );
    follower.assert_balanced();
}

#[test]
fn join_without_authentication_is_rejected() {
    let config = authenticated(one_channel(&[free_group()], endless(1_000, 0)));
    let publisher = Publisher::start(&config);
    let mut peer = Peer::connect_from(Ipv4Addr::new(127, 0, 0, 3), &publisher);
    let join = Join {
        name: "old".into(),
        wire_versions: vec![1],
        purpose: Purpose::Repair,
        channels: vec![JoinChannel {
            channel: ChannelName::Name("all".into()),
            start: Start::Live,
            confirmed_epoch: Epoch(0),
        }],
        authentication: false,
    };
    peer.say(0, &Message::Join(join));
    let rejected = peer.hear(|message| match message {
        Message::Rejected(rejected) => Some(rejected.clone()),
        _ => None,
    });
    let rejected = rejected.flatten().expect("REJECTED");
    assert_eq!(rejected.code, RejectCode::Authentication);
    assert!(
        rejected.text.contains("channel all is authenticated"),
        "{}",
        rejected.text
    );
    assert!(peer.is_closed());
}
