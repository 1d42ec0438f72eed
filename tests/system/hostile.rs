//! Foreign and broken peers: the publisher counts them, and they harm nobody but themselves.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};

use socket2::{Domain, Socket, Type};
use tickcast_reliability::control::{
    ChannelName, Join, JoinChannel, Message, NackClass, Purpose, RefusalReason,
};
use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{Datagram, Header, Kind, crc_of};
use tickcast_subscriber::{Loss, LossCause, Start};
use tickcast_test_support::{
    Follower, PATIENCE, Publisher, channel, drive, end, endless, free_group, one_channel,
};

/// Returns a forged datagram with a correct CRC.
fn forged(epoch: u64, sequence: u64) -> Vec<u8> {
    forged_of(Kind::Data, epoch, sequence)
}

fn forged_of(kind: Kind, epoch: u64, sequence: u64) -> Vec<u8> {
    let header = Header {
        kind,
        channel: ChannelId(1),
        count: 0,
        epoch: Epoch(epoch),
        sequence: Sequence(sequence),
        first_record: RecordNumber(1),
        source_position: SourcePosition(0),
        sent_at: Nanos(0),
        retained: 0,
        source: SourceId(1),
        payload_len: 0,
        flags: 0,
        header_len: 64,
        relay: 0,
    };
    header.to_bytes(crc_of(&header.to_bytes(0), &[])).to_vec()
}

/// Sends datagrams to a group from this loopback address.
pub(crate) fn send_from(source: Ipv4Addr, to: SocketAddrV4, datagrams: &[Vec<u8>]) {
    let socket = UdpSocket::bind((source, 0)).expect("a socket");
    socket.set_multicast_loop_v4(true).expect("loop");
    socket.set_multicast_ttl_v4(0).expect("TTL 0");
    let socket = Socket::from(socket);
    socket
        .set_multicast_if_v4(&Ipv4Addr::LOCALHOST)
        .expect("loopback");
    for datagram in datagrams {
        socket
            .send_to(datagram, &SocketAddr::from(to).into())
            .expect("sent");
    }
}

/// Starts a publisher, and a subscriber that has followed it for a while.
fn under_way() -> (Publisher, [Follower; 1]) {
    let publisher = Publisher::start(&one_channel(&[free_group()], endless(5_000, 1)));
    let mut followers = [Follower::new(publisher.subscriber().channel("all"))];
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 1_000
    });
    (publisher, followers)
}

#[test]
fn foreign_epochs_and_jumps_are_counted_only() {
    let group = free_group();
    let publisher = Publisher::start(&one_channel(&[group], endless(5_000, 1)));
    let builder = publisher.subscriber().channel("all").source_specific(false);
    let mut followers = [Follower::new(builder)];
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 2_000
    });
    let epoch = followers[0].subscriber.channels()[0].epoch.0;
    send_from(
        Ipv4Addr::new(127, 0, 0, 2),
        group,
        &[forged(epoch, 1_000_000), forged(1, 1)],
    );
    let attacks = [
        forged(u64::MAX, 1),
        forged(u64::MAX, u64::MAX),
        forged(epoch - 1, 5),
        forged(epoch, u64::MAX - 1),
        forged(epoch, u64::MAX),
        b"not a datagram".to_vec(),
        Vec::new(),
    ];
    send_from(Ipv4Addr::LOCALHOST, group, &attacks);
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    followers[0].assert_balanced();
    let c = followers[0].counters(0);
    assert_eq!(c.unknown_sender_dropped.get(), 2);
    assert_eq!(c.unknown_epoch_dropped.get(), 2);
    assert_eq!(c.old_epoch_dropped.get(), 1);
    assert_eq!(c.sequence_jump_dropped.get(), 2);
    assert!(c.malformed_dropped.get() >= 1);
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
    assert!(followers[0].losses.is_empty());
    assert!(!followers[0].saw(|e| matches!(e, tickcast_subscriber::Event::EpochChanged { .. })));
}

/// A bare control connection.
pub(crate) struct Peer(pub(crate) TcpStream, Vec<u8>);

impl Peer {
    fn connect(publisher: &Publisher) -> Self {
        let stream = TcpStream::connect(publisher.control).expect("the control port answers");
        stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
        Self(stream, Vec::new())
    }

    /// Connects from another loopback address, which the publisher takes for another host.
    pub(crate) fn connect_from(address: Ipv4Addr, publisher: &Publisher) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let from = SocketAddr::from((address, 0));
        socket.bind(&from.into()).expect("loopback has it");
        let to: SocketAddr = publisher.control.to_string().parse().expect("an address");
        socket
            .connect(&to.into())
            .expect("the control port answers");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
        Self(stream, Vec::new())
    }

    pub(crate) fn send(&mut self, channel: u16, message: &Message<'_>) {
        let mut frame = Vec::new();
        message.write(ChannelId(channel), &mut frame);
        self.0.write_all(&frame).expect("written");
    }

    fn join(&mut self, confirmed_epoch: u64, versions: &[u8], channel: &str) {
        let join = Join {
            authentication: true,
            name: "peer".into(),
            wire_versions: versions.to_vec(),
            purpose: Purpose::Repair,
            channels: vec![JoinChannel {
                channel: ChannelName::Name(channel.into()),
                start: Start::Live,
                confirmed_epoch: Epoch(confirmed_epoch),
            }],
        };
        self.send(0, &Message::Join(join));
    }

    /// Calls `on` with the next message. Returns `None` if the publisher closed the connection.
    pub(crate) fn hear<T>(&mut self, on: impl FnOnce(&Message<'_>) -> T) -> Option<T> {
        loop {
            if let Some((_, message, len)) = Message::read(&self.1, 1 << 24).expect("a message") {
                let answer = on(&message);
                self.1.drain(..len);
                return Some(answer);
            }
            let mut bytes = [0; 4096];
            match self.0.read(&mut bytes) {
                Ok(0) => return None,
                Ok(len) => self.1.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing was heard: {error}"),
            }
        }
    }

    pub(crate) fn is_closed(&mut self) -> bool {
        while let Some(()) = self.hear(|_| ()) {}
        true
    }
}

#[test]
fn join_claiming_higher_epoch_is_only_counted() {
    let (publisher, mut followers) = under_way();
    let mut peer = Peer::connect(&publisher);
    peer.join(u64::MAX, &[1], "all");
    let welcomed = peer.hear(|message| matches!(message, Message::Welcome(_)));
    assert_eq!(welcomed, Some(true), "a claim is no reason to refuse");
    peer.send(0, &Message::Leave);
    drop(peer);
    assert_eq!(publisher.metric_now("higher_epoch_claims_total"), 1);
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
}

#[test]
fn bad_join_is_rejected_and_garbage_closes_itself() {
    let (publisher, mut followers) = under_way();

    let rejection = |join: &dyn Fn(&mut Peer)| {
        let mut peer = Peer::connect(&publisher);
        join(&mut peer);
        let text = peer.hear(|message| match message {
            Message::Rejected(rejected) => rejected.text.clone(),
            other => panic!("{other:?}"),
        });
        assert!(peer.is_closed());
        text.expect("a rejection")
    };
    assert!(rejection(&|peer| peer.join(0, &[1], "no-such-channel")).contains("no-such-channel"));
    assert!(rejection(&|peer| peer.join(0, &[200], "all")).contains("version"));
    let stray_replay = rejection(&|peer| {
        let join = Join {
            authentication: true,
            name: "peer".into(),
            wire_versions: vec![1],
            purpose: Purpose::Replay { session: 12_345 },
            channels: vec![],
        };
        peer.send(0, &Message::Join(join));
    });
    assert!(!stray_replay.is_empty());

    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xff; 64],
        &[4, 0, 0, 0, 1, 0, 0, 0, b'{', b'}', b'}', b'}'],
        &[0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0],
    ];
    for bytes in garbage {
        let mut peer = Peer::connect(&publisher);
        peer.0.write_all(bytes).expect("written");
        assert!(peer.is_closed(), "{bytes:?}");
    }
    assert_eq!(publisher.metric_now("joins_rejected_total"), 3);
    assert_eq!(publisher.metric_now("unknown_sessions_total"), 1);
    assert_eq!(
        publisher
            .metric_now("connections_closed_total{endpoint=\"control\",reason=\"protocol_error\"}"),
        garbage.len() as u64
    );
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
}

#[test]
fn nack_of_any_range_or_epoch_is_answered() {
    let (publisher, mut followers) = under_way();
    let epoch = followers[0].subscriber.channels()[0].epoch;
    let mut peer = Peer::connect(&publisher);
    peer.join(0, &[1], "all");
    assert_eq!(
        peer.hear(|message| matches!(message, Message::Welcome(_))),
        Some(true)
    );
    let nack = |epoch, first, last| Message::Nack {
        epoch,
        class: NackClass::Repair,
        ranges: vec![SequenceRange::new(Sequence(first), Sequence(last)).expect("a range")],
    };
    // Returns the answer's range, and its reason if it is a refusal.
    let answer = |peer: &mut Peer| {
        peer.hear(|message| match message {
            Message::Refused(refused) => (refused.range, Some(refused.reason)),
            Message::Datagram(bytes) => {
                let datagram = Datagram::parse(bytes).expect("a datagram");
                (SequenceRange::one(datagram.header().sequence), None)
            }
            other => panic!("{other:?}"),
        })
        .expect("an answer")
    };
    let run = |first, last| SequenceRange::new(Sequence(first), Sequence(last)).expect("a range");
    peer.send(1, &nack(epoch, 1, 1));
    assert_eq!(answer(&mut peer), (run(1, 1), None), "the datagram itself");
    peer.send(1, &nack(Epoch(epoch.0 - 1), 1, 1));
    assert_eq!(answer(&mut peer), (run(1, 1), Some(RefusalReason::Epoch)));
    let ahead = run(u64::MAX - 5, u64::MAX);
    peer.send(1, &nack(epoch, ahead.first.0, ahead.last.0));
    assert_eq!(answer(&mut peer), (ahead, Some(RefusalReason::Ahead)));
    // A NACK for all sequences takes bounded work, and each part of it is answered once.
    peer.send(1, &nack(epoch, 1, u64::MAX));
    let (mut answers, mut answered) = (Vec::new(), 0);
    while answered < u64::MAX {
        let (range, why) = answer(&mut peer);
        answered += range.len();
        answers.push((range, why));
    }
    answers.sort_unstable_by_key(|(range, _)| range.first);
    let mut next = Sequence(1);
    for (range, why) in &answers {
        assert_eq!(
            range.first, next,
            "no part is missing, and none comes twice"
        );
        next = range.last.next();
        let is_right = match why {
            None => true,
            Some(RefusalReason::Window) => range.first.0 == 1,
            Some(why) => *why == RefusalReason::Ahead && range.last.0 == u64::MAX,
        };
        assert!(is_right, "what is held is not refused: {range} {why:?}");
    }
    let had = answers.iter().filter(|(_, why)| why.is_none()).count() as u64;
    assert!(had > 1, "what was sent is repaired");
    peer.send(0, &Message::Leave);
    // The follower may have sent NACKs as well.
    assert_eq!(
        publisher.metric_now("repair_unanswered_sequences_total{reason=\"epoch\"}"),
        1
    );
    assert!(
        publisher.metric_now("repair_unanswered_sequences_total{reason=\"ahead\"}") > ahead.len()
    );
    assert!(publisher.metric_now("repair_answered_sequences_total{path=\"unicast\"}") > had);
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
}

#[test]
fn nack_flood_by_non_reading_peer_is_disconnected() {
    let (publisher, mut followers) = under_way();
    let epoch = followers[0].subscriber.channels()[0].epoch;
    let mut peer = Peer::connect(&publisher);
    peer.join(0, &[1], "all");
    let everything = SequenceRange::new(Sequence(1), Sequence(u64::MAX)).expect("a range");
    let nack = Message::Nack {
        epoch,
        class: NackClass::Repair,
        ranges: vec![everything; 256],
    };
    let mut flood = Vec::new();
    for _ in 0..16 {
        nack.write(ChannelId(1), &mut flood);
    }
    peer.0.set_nonblocking(true).expect("it can be");
    // Write until the publisher closes the connection: later writes fail.
    let mut rest = &flood[..];
    let mut is_closed = false;
    drive(&mut followers, |_| {
        while !is_closed {
            match peer.0.write(rest) {
                // Continue with the rest of this copy, or with the next.
                Ok(len) if len < rest.len() => rest = &rest[len..],
                Ok(_) => rest = &flood,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => is_closed = true,
            }
        }
        is_closed
    });
    assert_eq!(
        publisher
            .metric_now("connections_closed_total{endpoint=\"control\",reason=\"answers_unread\"}"),
        1
    );
    peer.0.set_nonblocking(false).expect("it can be");
    assert!(peer.is_closed());
    // Unread answers to the closed connection are no longer counted as pending.
    drive(&mut followers, |_| {
        publisher.metric("repair_pending_sequences") == 0
    });
    assert_eq!(publisher.metric_now("subscribers"), 1);
    nobody_else_noticed(publisher, followers);
}

#[test]
fn forged_end_ends_no_session_and_loss_is_exact() {
    let group = free_group();
    let publisher = Publisher::start(&one_channel(&[group], endless(5_000, 1)));
    let builder = publisher.subscriber().channel("all").source_specific(false);
    let mut followers = [Follower::new(builder)];
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 2_000
    });
    let report = followers[0].subscriber.channels().remove(0);
    let ends: Vec<_> = (1..200)
        .map(|ahead| forged_of(Kind::End, report.epoch.0, report.heard.0 + ahead))
        .collect();
    send_from(Ipv4Addr::LOCALHOST, group, &ends);
    drive(&mut followers, |all| {
        all[0].subscriber.channels()[0].delivered.0 > report.heard.0 + 200
    });
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    let follower = &followers[0];
    follower.assert_balanced();
    // Either the genuine datagrams contradict the forged ones, or a STATUS comes before them.
    let c = follower.counters(0);
    assert!(c.fencing_violations.get() + c.impostors.get() > 0);
    let fenced = |loss: &Loss| loss.cause == LossCause::Fenced;
    assert!(follower.losses.iter().all(fenced));
    let lost: u64 = follower.losses.iter().filter_map(|loss| loss.records).sum();
    assert_eq!(follower.counters(0).lost_records.get(), lost);
    // A rollback delivers void records again.
    let delivered = c.delivered_records.get() - c.fenced_records.get();
    let published = tickcast_test_support::number(&summary, "published_records");
    assert_eq!(
        delivered + lost,
        published,
        "exact, and nothing ended early"
    );
    assert_eq!(
        status.code(),
        Some(0),
        "a claim is no fact of the publisher"
    );
    assert_eq!(summary["subscribers_report_loss"], lost > 0);
}

/// Starts a publisher that accepts few connections and waits briefly for a JOIN, with one subscriber.
fn narrow(peers_max: usize, join_timeout_us: u64) -> (Publisher, [Follower; 1]) {
    let mut config = one_channel(&[free_group()], endless(5_000, 1));
    config["repair"] = serde_json::json!({
        "peers_max": peers_max, "join_timeout_us": join_timeout_us,
    });
    let publisher = Publisher::start(&config);
    let mut followers = [Follower::new(publisher.subscriber().channel("all"))];
    drive(&mut followers, |all| {
        all[0].records.values().sum::<u64>() > 1_000
    });
    (publisher, followers)
}

/// Asserts that the first subscriber has all records, and that a new one is served.
fn nobody_else_noticed(publisher: Publisher, followers: [Follower; 1]) {
    let [first] = followers;
    let last = Follower::new(publisher.subscriber().channel("all"));
    let mut followers = [first, last];
    drive(&mut followers, |all| {
        all[1].records.values().sum::<u64>() > 500
    });
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
    for follower in &followers {
        follower.assert_balanced();
        assert!(follower.losses.is_empty(), "{:?}", follower.losses);
    }
}

pub(crate) fn join_frame(name: &str) -> Vec<u8> {
    join_frame_of(name, "all")
}

/// Returns a JOIN of a channel.
pub(crate) fn join_frame_of(name: &str, channel: &str) -> Vec<u8> {
    let join = Join {
        authentication: true,
        name: name.into(),
        wire_versions: vec![1],
        purpose: Purpose::Repair,
        channels: vec![JoinChannel {
            channel: ChannelName::Name(channel.into()),
            start: Start::Live,
            confirmed_epoch: Epoch(0),
        }],
    };
    let mut frame = Vec::new();
    Message::Join(join).write(ChannelId(0), &mut frame);
    frame
}

#[test]
fn trickled_join_is_disconnected_others_undisturbed() {
    let (publisher, mut followers) = narrow(32, 200_000);
    // A head that announces the maximum length, and a body that arrives byte by byte.
    let head = [&(64 * 1024_u32).to_le_bytes()[..], &[1, 0, 0, 0]].concat();
    let silent = "connections_closed_total{endpoint=\"control\",reason=\"silent\"}";
    // On a slow host, the follower's own first connection may count.
    let before = publisher.metric_now(silent);
    let mut slow: Vec<(Peer, usize)> = (0..12).map(|_| (Peer::connect(&publisher), 0)).collect();
    let cut_off = before + slow.len() as u64;
    while !slow.is_empty() {
        slow.retain_mut(|(peer, said)| {
            let byte = head.get(*said).copied().unwrap_or(b' ');
            *said += 1;
            peer.0.write_all(&[byte]).is_ok()
        });
        let had = followers[0].records.values().sum::<u64>();
        drive(&mut followers, |all| {
            all[0].records.values().sum::<u64>() > had
        });
    }
    drive(&mut followers, |_| publisher.metric(silent) >= cut_off);
    assert_eq!(publisher.metric_now(silent), cut_off);
    nobody_else_noticed(publisher, followers);
}

#[test]
fn connection_flood_is_bounded_follower_undisturbed() {
    let (publisher, mut followers) = narrow(8, 60_000_000);
    let open = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", publisher.id()));
        open.expect("it is there").count()
    };
    let before = open();
    // Each connection sends JOIN, as a subscriber would.
    let mut flood = Vec::new();
    let mut most = 0;
    for n in 0..400 {
        // The connections come from a hundred hosts, because a single host may open fewer.
        let mut peer = Peer::connect_from(Ipv4Addr::new(127, 0, 1, n as u8 % 100), &publisher);
        let _ = peer.0.write_all(&join_frame("flood"));
        flood.push(peer);
        followers[0].poll();
        most = most.max(open());
    }
    let mut welcomed = 0;
    let mut rejected = 0;
    for peer in &mut flood {
        match peer.hear(|message| matches!(message, Message::Welcome(_))) {
            Some(true) => welcomed += 1,
            _ => rejected += 1,
        }
        followers[0].poll();
    }
    assert!(welcomed <= 8, "{welcomed} were welcomed");
    assert_eq!(welcomed + rejected, 400);
    assert!(publisher.metric_now("joins_rejected_total") > 0);
    let of_address = publisher
        .metric_now("connections_closed_total{endpoint=\"control\",reason=\"address_limit\"}");
    assert_eq!(of_address, 0, "no host had more than its share");
    // The allowed connections, those that may still join or be refused by the core, and those that are being
    // closed, but not one for each of the flood.
    assert!(
        most <= before + 8 + 64 + 64 + 64 + 1,
        "{before} descriptors became {most}"
    );
    drop(flood);
    drive(&mut followers, |_| open() <= before + 2);
    nobody_else_noticed(publisher, followers);
}

#[test]
fn repeated_join_ends_connection_or_opens_session() {
    let (publisher, mut followers) = narrow(8, 60_000_000);
    let open = || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", publisher.id()));
        open.expect("it is there").count()
    };
    let before = open();
    let frame = join_frame("peer");
    let session = |peer: &mut Peer| {
        peer.hear(|message| match message {
            Message::Welcome(welcome) => Some(welcome.session),
            _ => None,
        })
    };
    // The JOIN again on its own connection.
    let mut twice = Peer::connect(&publisher);
    twice.0.write_all(&frame).expect("written");
    assert!(matches!(session(&mut twice), Some(Some(_))));
    twice.0.write_all(&frame).expect("written");
    assert!(twice.is_closed());
    assert_eq!(
        publisher
            .metric_now("connections_closed_total{endpoint=\"control\",reason=\"protocol_error\"}"),
        1
    );
    // A replayed JOIN on other connections: each is another session, and there are no more than allowed.
    let hosts = (1..=20).map(|n| Ipv4Addr::new(127, 0, 1, n));
    let mut again: Vec<Peer> = (hosts.map(|host| Peer::connect_from(host, &publisher))).collect();
    let sessions = again.iter_mut().filter_map(|peer| {
        let _ = peer.0.write_all(&frame);
        session(peer).flatten()
    });
    let mut sessions: Vec<u64> = sessions.collect();
    let count = sessions.len();
    assert!((1..=8).contains(&count), "{count} sessions");
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!(sessions.len(), count, "no two have one session");
    let rejected = 20 - count as u64;
    drive(&mut followers, |_| {
        publisher.metric("joins_rejected_total") >= rejected
    });
    assert_eq!(publisher.metric_now("joins_rejected_total"), rejected);
    drop(again);
    drive(&mut followers, |_| open() <= before);
    // A second replay connection of a session replaces the first, and the session goes on.
    let mut owner = Peer::connect(&publisher);
    owner.0.write_all(&frame).expect("written");
    let of = session(&mut owner).flatten().expect("a session");
    let replay = |session| {
        let mut peer = Peer::connect(&publisher);
        let join = Join {
            authentication: true,
            name: "peer".into(),
            wire_versions: vec![1],
            purpose: Purpose::Replay { session },
            channels: vec![],
        };
        peer.send(0, &Message::Join(join));
        assert_eq!(peer.hear(|m| matches!(m, Message::Welcome(_))), Some(true));
        peer
    };
    let mut first = replay(of);
    let mut second = replay(of);
    assert!(first.is_closed(), "the later one takes its place");
    second.send(0, &Message::Leave);
    owner.send(0, &Message::Leave);
    drop((first, second, owner));
    nobody_else_noticed(publisher, followers);
}
