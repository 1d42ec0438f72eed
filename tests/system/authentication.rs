//! An authenticated channel: forged datagrams with right CRCs are counted and never delivered.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use serde_json::json;
use socket2::{Domain, Protocol, Socket, Type};
use tickcast_reliability::control::{
    ChannelName, Join, JoinChannel, Message, Purpose, RejectCode, Start,
};
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, RecordNumber, Sequence, SourceId, SourcePosition,
};
use tickcast_reliability::wire::authentication::{Key, TAGGED_HEADER_LEN};
use tickcast_reliability::wire::{
    Datagram, Header, Heartbeat, Kind, PublisherState, RELAY_OFFSET, SourceLossReason, StreamEvent,
    crc_of, datagram_flags, relay_flags,
};
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{ChannelBuilder, Transport};
use tickcast_test_support::{
    Follower, PATIENCE, Publisher, channel, drive, end, endless, free_group, one_channel,
};

use crate::hostile::{Peer, send_from};
use crate::impostor::forge;
use crate::restart::kept::{Kept, PER_KEY, authenticated};
use crate::shared_memory::Place;

/// Datagrams of each kind in one attack. A receive buffer holds an attack.
const RUN: u64 = 16;
const ATTACKS: u64 = 20;
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

/// Connects a bare peer that joins channel "all".
fn joining(publisher: &Publisher, authentication: bool) -> Peer {
    let mut peer = Peer::connect_from(Ipv4Addr::new(127, 0, 0, 3), publisher);
    let join = Join {
        name: "bare".into(),
        wire_versions: vec![1],
        purpose: Purpose::Repair,
        channels: vec![JoinChannel {
            channel: ChannelName::Name("all".into()),
            start: Start::Live,
            confirmed_epoch: Epoch(0),
        }],
        authentication,
    };
    peer.send(0, &Message::Join(join));
    peer
}

/// Returns the keys that a WELCOME lists.
fn keys_of(publisher: &Publisher) -> Vec<Key> {
    let mut peer = joining(publisher, true);
    let welcome = peer.hear(|message| match message {
        Message::Welcome(welcome) => welcome.channels[0].authentication.clone(),
        _ => None,
    });
    let keys = welcome.flatten().expect("an authenticated channel").keys;
    peer.send(0, &Message::Leave);
    keys.into_iter().map(|of| of.key).collect()
}

#[test]
fn restarted_publisher_draws_other_keys_and_shows_none() {
    let mut kept = Kept::new(1_000, 0);
    kept.config = authenticated(kept.config);
    let mut publisher = kept.start();
    let before = keys_of(&publisher);
    publisher.kill();
    publisher = kept.start();
    assert!(publisher.log().contains("continues the previous epoch"));
    let after = keys_of(&publisher);
    assert!(before.iter().all(|key| !after.contains(key)));
    let pages = ["/metrics", "/status", "/health"].map(|page| publisher.get(page).1);
    let shown = format!("{}{}", pages.concat(), publisher.log());
    for key in &after {
        let digits: String = key.bytes().iter().map(|it| format!("{it:02x}")).collect();
        assert!(!shown.contains(&digits[..16]), "{shown}");
    }
}

#[test]
fn join_without_authentication_is_rejected() {
    let config = authenticated(one_channel(&[free_group()], endless(1_000, 0)));
    let publisher = Publisher::start(&config);
    let mut peer = joining(&publisher, false);
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

/// Receives datagrams of a group until there are this many with sequences of their own, and a heartbeat.
fn captured(group: SocketAddrV4, sequenced: usize) -> Vec<Vec<u8>> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).expect("a socket");
    socket.set_reuse_address(true).expect("shared");
    socket.bind(&group.into()).expect("bound");
    (socket.join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST)).expect("joined");
    socket.set_read_timeout(Some(PATIENCE)).expect("a bound");
    let socket = UdpSocket::from(socket);
    let (mut all, mut heartbeats) = (Vec::new(), 0);
    let mut buffer = [0; 4_096];
    while all.len() < sequenced + heartbeats || heartbeats == 0 {
        let len = socket.recv(&mut buffer).expect("it multicasts");
        let datagram = Datagram::parse(&buffer[..len]).expect("a datagram");
        match datagram.header().kind.is_sequenced() {
            false => heartbeats += 1,
            true if all.len() >= sequenced + heartbeats => continue,
            true => {}
        }
        all.push(buffer[..len].to_vec());
    }
    all
}

/// Returns the datagram with a changed header and the CRC to it. Its tag is the old one.
fn changed(bytes: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = *Datagram::parse(bytes).expect("a datagram").header();
    change(&mut header);
    let rest = &bytes[64..];
    let mut changed = header.to_bytes(crc_of(&header.to_bytes(0), rest)).to_vec();
    changed.extend(rest);
    changed
}

/// Polls until the follower counted one datagram more as not authenticated.
fn assert_dropped(
    followers: &mut [Follower],
    group: SocketAddrV4,
    name: &str,
    forged: Vec<Vec<u8>>,
) {
    assert!(!forged.is_empty(), "{name}");
    let count = |of: &Follower| of.counters(0).unauthenticated_dropped.get();
    let before = count(&followers[0]);
    send_from(Ipv4Addr::LOCALHOST, group, &forged);
    drive(followers, |all| count(&all[0]) > before);
}

#[test]
fn captured_tags_open_nothing_but_duplicates() {
    let [group, others] = [free_group(), free_group()];
    // At this rate the copies come before their key is dropped, two keys later.
    let publisher = Publisher::start(&authenticated(one_channel(&[group], endless(500, 1))));
    let other = Publisher::start(&authenticated(one_channel(&[others], endless(500, 0))));
    let builder = publisher.subscriber().channel("all");
    let mut followers = [Follower::new(builder.source_specific(false))];
    drive(&mut followers, |all| all[0].last(1).is_some());
    let genuine = captured(group, 8);
    let foreign = captured(others, 8);
    drop(other);
    let of_kind = |all: &[Vec<u8>], sequenced: bool| -> Vec<Vec<u8>> {
        let is_of =
            |it: &&Vec<u8>| Datagram::parse(it).unwrap().header().kind.is_sequenced() == sequenced;
        all.iter().filter(is_of).cloned().collect()
    };
    // Sent again they are duplicates, also as if a relay had sent them again.
    let copies = of_kind(&genuine, true);
    let duplicates = |of: &Follower| of.counters(0).duplicates.get();
    let last = Datagram::parse(&copies[7]).unwrap().header().sequence;
    drive(&mut followers, |all| {
        all[0].last(1).is_some_and(|at| at.sequence > last)
    });
    for relay in [0, relay_flags::RETRANSMITTED | 3] {
        let before = duplicates(&followers[0]);
        let mut again = copies.clone();
        again.iter_mut().for_each(|it| it[RELAY_OFFSET] = relay);
        send_from(Ipv4Addr::LOCALHOST, group, &again);
        drive(&mut followers, |all| duplicates(&all[0]) > before);
    }
    // Any change of what the tag covers is noticed.
    let newest = followers[0].last(1).expect("a record");
    type Change<'a> = (&'a str, &'a dyn Fn(&mut Header));
    let changes: [Change<'_>; 9] = [
        ("sequence", &|it| it.sequence = newest.sequence.plus(9)),
        ("next", &|it| it.sequence = it.sequence.next()),
        ("epoch", &|it| it.epoch.0 += 1),
        ("old epoch", &|it| it.epoch.0 -= 1),
        ("channel", &|it| it.channel = ChannelId(2)),
        ("record", &|it| it.first_record = it.first_record.plus(1)),
        ("time", &|it| it.sent_at.0 += 1),
        ("retained", &|it| it.retained += 1),
        ("no flag", &|it| it.flags &= !datagram_flags::TAGGED),
    ];
    for (name, change) in changes {
        let forged = genuine.iter().map(|it| changed(it, change)).collect();
        assert_dropped(&mut followers, group, name, forged);
    }
    let beats = of_kind(&genuine, false);
    let beat = |change: &dyn Fn(&mut Header)| beats.iter().map(|it| changed(it, change)).collect();
    let ahead = beat(&|it| it.sequence = it.sequence.plus(100));
    assert_dropped(&mut followers, group, "heartbeat ahead", ahead);
    let untagged = of_kind(&genuine, true);
    let untagged = untagged.iter().map(|it| {
        let datagram = Datagram::parse(it).unwrap();
        let header = *datagram.header();
        let at = (header.epoch, newest.sequence.plus(1), newest.record.plus(1));
        forge(Kind::Data, at, header.count, datagram.payload())
    });
    assert_dropped(&mut followers, group, "downgraded", untagged.collect());
    // Another publisher's keys have the same numbers, and open nothing.
    assert_dropped(&mut followers, group, "foreign", foreign.clone());
    let moved = |it: &mut Header| it.epoch = newest.epoch;
    let moved = foreign.iter().map(|it| changed(it, moved)).collect();
    assert_dropped(&mut followers, group, "foreign, of this epoch", moved);
    // A key that rolled over long ago is forgotten.
    drive(&mut followers, |all| {
        let at = all[0].last(1).map_or(Sequence(0), |at| at.sequence);
        at.0 > last.0 + 5 * PER_KEY
    });
    assert_dropped(&mut followers, group, "forgotten key", copies);
    assert_eq!(followers[0].counters(0).impostors.get(), 0);
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    assert_eq!(channel(&summary)["digest"], json!(followers[0].digest(1)));
    assert!(followers[0].losses.is_empty(), "{:?}", followers[0].losses);
    followers[0].assert_balanced();
}

#[test]
fn tagged_datagrams_come_by_repair_replay_and_memory() {
    let (group, place) = (free_group(), Place::new("tagged"));
    let mut config = authenticated(one_channel(&[group], endless(5_000, 2)));
    config["channels"][0]["fan_out"] = json!([
        { "transport": "udp", "lines": [{ "group": group }] },
        { "transport": "shm", "path": place.0 },
    ]);
    let publisher = Publisher::start(&config);
    let follow = |name: &str, channel: ChannelBuilder, transport| {
        let faults = FaultConfig {
            seed: 5,
            drop: 0.05,
            ..FaultConfig::default()
        };
        let builder = publisher.subscriber().name(name).channel(channel);
        Follower::new(match transport {
            Transport::Udp => builder.transport(transport).faults(faults),
            _ => builder.transport(transport),
        })
    };
    let mut followers = vec![
        follow("lossy", ChannelBuilder::new("all"), Transport::Udp),
        follow("memory", ChannelBuilder::new("all"), Transport::Shm),
    ];
    let at_least = |all: &mut [Follower], last: u64| {
        drive(all, |all| {
            let reached = |of: &Follower| of.last(1).is_some_and(|at| at.sequence.0 > last);
            all.iter().all(reached)
        });
    };
    at_least(&mut followers, PER_KEY + 100);
    let late = ChannelBuilder::new("all").start(Start::Oldest);
    followers.push(follow("late", late, Transport::Udp));
    at_least(&mut followers, 4 * PER_KEY);
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    for follower in &followers {
        assert_eq!(channel(&summary)["digest"], json!(follower.digest(1)));
        assert!(follower.losses.is_empty(), "{:?}", follower.losses);
        follower.assert_balanced();
        assert!(follower.counters(0).heartbeats.get() > 0);
    }
    assert!(followers[0].counters(0).missing_recovered.get() > 0);
    assert!(followers[2].counters(0).replay_received.get() > 0);
}
