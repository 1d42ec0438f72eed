//! Strangers from a few addresses cost an honest subscriber no more than the shares of their addresses,
//! whatever the number of their connections.

use super::*;

const HONEST: u64 = 10_000;

fn origin(number: u64) -> PeerOrigin {
    PeerOrigin::V4([10, 0, 0, number as u8].into())
}

fn unicast() -> RepairConfig {
    RepairConfig {
        multicast_repair: false,
        ..RepairConfig::default()
    }
}

impl Bench {
    fn connect_from(&mut self, from: PeerOrigin, peer: u64, join: Join) -> Vec<Got> {
        self.input(RepairInput::Connected(PeerId(peer), Carrier::Tcp, from));
        self.deliver(peer, Message::Join(join));
        self.take(peer)
    }

    /// Lets `count` strangers from these origins join, and an honest subscriber from its own.
    fn beside_strangers(config: RepairConfig, slots: u64, count: u64, origins: u64) -> Self {
        let mut bench = Self::new(config, slots, 1);
        for peer in 0..count {
            bench.connect_from(origin(peer % origins), peer, join("equities"));
        }
        bench.connect_from(origin(99), HONEST, join("equities"));
        bench
    }

    /// Returns the number of turns until the honest subscriber gets a datagram.
    fn turns_until_repaired(&mut self) -> usize {
        let mut out = Vec::new();
        for turn in 1.. {
            let to = self.core.poll_transmit(self.now, &mut out).unwrap();
            if to == Destination::Peer(PeerId(HONEST)) {
                return turn;
            }
        }
        unreachable!()
    }
}

fn progress(sequence: u64) -> Message<'static> {
    Message::Progress(Progress {
        epoch: EPOCH,
        sequence: Sequence(sequence),
        lost_records: 0,
        heard: Sequence(sequence),
        sent_at: Nanos(5),
        read_bytes: 0,
    })
}

#[test]
fn honest_nack_waits_for_origins_not_for_connections() {
    for strangers in [8, 80, 800] {
        let mut bench = Bench::beside_strangers(unicast(), 1_024, strangers, 8);
        bench.publish(500);
        for peer in 0..strangers {
            bench.deliver(peer, progress(1));
            bench.repair(peer, 1, 100 + peer % 7);
            bench.nack(peer, NackClass::Replay, &[(1, 400)]);
        }
        bench.repair(HONEST, 450, 450);
        let turns = bench.turns_until_repaired();
        // One turn of each kind of output for each of eight origins and its own.
        assert!(turns <= 3 * 9, "{turns} turns beside {strangers}");
    }
}

#[test]
fn reader_keeps_its_share_of_tokens_beside_strangers() {
    let rate = 1_000_000;
    let config = RepairConfig {
        repair_bytes_per_s: rate,
        repair_burst_bytes: rate,
        subscriber_bytes_per_s: rate,
        subscriber_burst_bytes: rate,
        ..RepairConfig::default()
    };
    let mut bench = Bench::new(config, 64, 1);
    let strangers: Vec<(u64, u64)> = (0..40).map(|peer| (peer, peer % 2)).collect();
    for (peer, number) in strangers.iter().copied().chain([(HONEST, 99)]) {
        let from = origin(number);
        let Got::Welcome(welcome) = bench.connect_from(from, peer, join("equities")).remove(0)
        else {
            panic!("no WELCOME");
        };
        let over_verbs = PeerId(peer + 1_000);
        bench.input(RepairInput::Connected(over_verbs, Carrier::Verbs, from));
        let join = read_grant::reader(welcome.session, 1);
        bench.deliver(over_verbs.0, Message::Join(join));
        assert!(bench.grant(over_verbs.0));
    }
    // The peer claims that it has READ all of its tokens, as long as that brings it more.
    let drain = |bench: &mut Bench, peer: u64| {
        let before = bench.counters.read_tokens_bytes.get();
        loop {
            let granted = bench.counters.read_tokens_bytes.get();
            let Message::Progress(progress) = progress(0) else {
                unreachable!()
            };
            let read_bytes = u64::MAX;
            bench.deliver(
                peer,
                Message::Progress(Progress {
                    read_bytes,
                    ..progress
                }),
            );
            if bench.counters.read_tokens_bytes.get() == granted {
                return granted - before;
            }
        }
    };
    let mut got = 0;
    for _ in 0..100 {
        bench.pass(100_000);
        for (peer, _) in &strangers {
            drain(&mut bench, *peer);
        }
        got += drain(&mut bench, HONEST);
        bench.drain();
    }
    let third = rate * 10 / 3;
    assert!(got >= third * 9 / 10, "{got} of {third}");
    // Alone, it has all of the rate.
    for (peer, _) in &strangers {
        bench.input(RepairInput::Disconnected(PeerId(*peer)));
    }
    bench.pass(1_000_000);
    drain(&mut bench, HONEST);
    bench.pass(200_000);
    assert!(drain(&mut bench, HONEST) >= rate / 5);
}

#[test]
fn joiner_keeps_its_history_beside_replaying_strangers() {
    let config = RepairConfig {
        joiner_bytes_per_s: 3_000_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::beside_strangers(config, 1 << 14, 400, 2);
    for _ in 0..40 {
        bench.publish(200);
        bench.pass(100_000);
        bench.input(RepairInput::Timeout);
    }
    let floor = bench.core.channels[0].floor().0;
    for peer in 0..400 {
        bench.nack(peer, NackClass::Replay, &[(floor, 8_000)]);
    }
    bench.drain();
    let refused = |bench: &Bench| {
        let counters = &bench.counters;
        (
            counters.refused_budget.get(),
            counters.refused_too_slow.get(),
        )
    };
    // The strangers of one address cost each other their shares, and the honest joiner keeps its own.
    let before = refused(&bench);
    assert!(before.1 > 0);
    bench.nack(HONEST, NackClass::Replay, &[(floor, 8_000)]);
    assert_eq!(refused(&bench), before);
    // The budget is divided by origin: a third of each second's datagrams is its own.
    let mut got = 0;
    for _ in 0..10 {
        bench.pass(100_000);
        let to = |(to, _): &(Option<u64>, Got)| *to == Some(HONEST);
        got += bench.drain().iter().filter(|it| to(it)).count() as u64;
    }
    let third = 3_000_000 / FRAME / 3;
    assert!(
        got >= third * 9 / 10 || got == 8_001 - floor,
        "{got} of {third}"
    );
}

#[test]
fn replay_that_waits_for_others_may_be_repeated() {
    let config = RepairConfig {
        replays_per_address_max: 2,
        joiner_burst_bytes: BURST_BYTES_MIN,
        joiner_bytes_per_s: 1,
        ..RepairConfig::default()
    };
    let mut bench = Bench::beside_strangers(config, 1_024, 3, 1);
    bench.publish(500);
    for peer in 0..3 {
        bench.nack(peer, NackClass::Replay, &[(1, 500)]);
    }
    let refused = refusals(&bench.take(2));
    assert_eq!(refused, [(RefusalReason::Budget, run(1, 500))]);
    // Its address has a place again when another replay ends, or when its peer does not read it.
    bench.input(RepairInput::Disconnected(PeerId(0)));
    bench.nack(2, NackClass::Replay, &[(1, 500)]);
    assert_eq!(refusals(&bench.take(2)), []);
    assert_eq!(bench.counters.refused_budget.get(), 500);
    bench.connect_from(origin(0), 3, join("equities"));
    bench.input(RepairInput::Backlog(PeerId(1), config.backlog_pause_bytes));
    bench.deliver(1, progress(1));
    assert_eq!(bench.take(1), []);
    bench.nack(1, NackClass::Replay, &[(1, 500)]);
    bench.nack(3, NackClass::Replay, &[(1, 500)]);
    assert_eq!(refusals(&bench.take(3)), []);
    // A peer that reads again goes on.
    bench.input(RepairInput::Backlog(PeerId(1), 0));
    assert_eq!(
        bench.core.origins.replay_share(300, origin(0), PeerId(1)),
        100
    );
}

#[test]
fn full_publisher_closes_a_connection_of_the_largest_origin() {
    let config = RepairConfig {
        peers_max: 10,
        ..RepairConfig::default()
    };
    let mut bench = Bench::beside_strangers(config, 64, 9, 1);
    bench.events();
    // The newest of the origin with the most connections gives way.
    bench.connect_from(origin(50), 500, join("equities"));
    assert_eq!(bench.core.group(CHANNEL).0, 10);
    let got = bench.take(8);
    assert_eq!(got, []);
    let closed: Vec<_> = (bench.events().into_iter())
        .filter_map(|event| match event {
            RepairEvent::Close { peer, reason } => Some((peer.0, reason?.code)),
            _ => None,
        })
        .collect();
    assert_eq!(closed, [(8, RejectCode::TooMany)]);
    // The largest origin itself gains nothing.
    let got = bench.connect_from(origin(0), 600, join("equities"));
    assert_eq!(rejection(&mut bench, 600, &got).code, RejectCode::TooMany);
}

#[test]
fn unread_bytes_of_one_origin_are_bounded_in_all() {
    let config = RepairConfig {
        backlog_pause_bytes: 10_000,
        ..unicast()
    };
    let mut bench = Bench::beside_strangers(config, 64, 21, 1);
    bench.publish(20);
    // Each has less unread than a connection may have, and all together have more than their origin may.
    for peer in 0..20 {
        bench.input(RepairInput::Backlog(PeerId(peer), 9_000));
        bench.repair(peer, 1, 2);
        bench.deliver(peer, progress(1));
    }
    assert_eq!(bench.drain(), []);
    // The connection that reads everything is served, of the same origin and of another.
    for reader in [20, HONEST] {
        bench.repair(reader, 1, 2);
        assert_eq!(sequences(&bench.take(reader)), [1, 2]);
    }
    for peer in 0..3 {
        bench.input(RepairInput::Backlog(PeerId(peer), 0));
    }
    let served = bench.drain();
    let peers: std::collections::BTreeSet<_> = served.iter().map(|(to, _)| *to).collect();
    assert_eq!(peers, [Some(0), Some(1), Some(2)].into());
    assert_eq!(served.len(), 9);
    // A closed connection takes its unread bytes with it.
    for peer in 3..6 {
        bench.input(RepairInput::Disconnected(PeerId(peer)));
    }
    bench.input(RepairInput::Backlog(PeerId(6), 8_999));
    assert_eq!(sequences(&bench.take(6)), [1, 2]);
}

#[test]
fn ended_connections_leave_nothing_in_the_order_of_turns() {
    let mut bench = Bench::beside_strangers(unicast(), 64, 64, 4);
    bench.publish(30);
    for peer in 0..64 {
        bench.repair(peer, 1, 30);
        bench.deliver(peer, progress(1));
    }
    for peer in 0..64 {
        bench.input(RepairInput::Disconnected(PeerId(peer)));
    }
    bench.repair(HONEST, 5, 5);
    assert_eq!(bench.turns_until_repaired(), 1);
    assert_eq!(bench.drain(), []);
    bench.input(RepairInput::Disconnected(PeerId(HONEST)));
    assert_eq!(bench.drain(), []);
    assert!(!bench.core.lanes.is_waiting());
    assert_eq!(bench.counters.pending.get(), 0);
}

impl Bench {
    /// Connects without JOIN.
    fn arrive_from(&mut self, from: PeerOrigin, peer: u64) {
        self.input(RepairInput::Connected(PeerId(peer), Carrier::Tcp, from));
    }

    /// Returns the connections that were closed, each with the code of its REJECTED.
    fn closed(&mut self) -> Vec<(u64, RejectCode)> {
        let closed = |event| match event {
            RepairEvent::Close { peer, reason } => Some((peer.0, reason?.code)),
            _ => None,
        };
        self.events().into_iter().filter_map(closed).collect()
    }
}

#[test]
fn origin_with_fewer_connections_keeps_its_sessions() {
    let config = RepairConfig {
        peers_max: 24,
        ..RepairConfig::default()
    };
    let mut bench = Bench::new(config, 64, 1);
    // An honest host has eight subscribers with one connection each.
    for peer in 0..8 {
        bench.connect_from(origin(99), 1_000 + peer, join("equities"));
    }
    // Two strangers have as many connections, but fewer sessions.
    let mut sessions = Vec::new();
    for peer in 0..8 {
        let got = bench.connect_from(origin(peer % 2), 10 * peer, join("equities"));
        let Got::Welcome(welcome) = &got[0] else {
            panic!("{got:?}");
        };
        sessions.push(welcome.session);
        bench.connect_from(origin(peer % 2), 10 * peer + 1, replay(welcome.session));
    }
    assert_eq!(bench.closed(), []);
    for again in 200..220 {
        let got = bench.connect_from(origin(again % 2), again, join("equities"));
        assert!(matches!(&got[..], [Got::Rejected(_)]), "{got:?}");
    }
    assert!(
        bench
            .closed()
            .iter()
            .all(|(peer, _)| *peer >= 200 && *peer < 220)
    );
    assert_eq!(bench.core.group(CHANNEL).0, 16);
    // A further connection gives way, and its session goes on.
    bench.input(RepairInput::Disconnected(PeerId(1_000)));
    bench.connect_from(origin(0), 300, further(sessions[0]));
    assert_eq!(bench.core.group(CHANNEL).0, 15);
    bench.connect_from(origin(99), 1_008, join("equities"));
    assert_eq!(bench.closed(), [(300, RejectCode::TooMany)]);
    assert_eq!(bench.core.group(CHANNEL).0, 16);
}

#[test]
fn idle_connections_displace_no_session() {
    let config = RepairConfig {
        peers_max: 5,
        ..RepairConfig::default()
    };
    let mut bench = Bench::new(config, 64, 1);
    for peer in 0..4 {
        bench.connect_from(origin(99), 1_000 + peer, join("equities"));
    }
    for peer in 0..500 {
        bench.arrive_from(origin(peer % 17), peer);
        bench.drain();
        assert!(bench.core.peers.len() <= config.connections_max());
    }
    assert_eq!(bench.core.group(CHANNEL).0, 4);
    let closed = bench.closed();
    assert_eq!(closed.len(), 500 + 4 - config.connections_max());
    assert!(closed.iter().all(|(peer, _)| *peer < 500));
    // A newcomer is not kept out by those who wait.
    let got = bench.connect_from(origin(50), 2_000, join("equities"));
    assert!(matches!(&got[..], [Got::Welcome(_)]), "{got:?}");
    assert_eq!(bench.core.group(CHANNEL).0, 5);
}

#[test]
fn idle_connections_of_many_addresses_give_way_to_newcomer() {
    let config = RepairConfig {
        peers_max: 100,
        ..RepairConfig::default()
    };
    let mut bench = Bench::new(config, 64, 1);
    bench.connect_from(origin(99), HONEST, join("equities"));
    // Each has one connection, and all places are taken for ever by new ones.
    let max = config.connections_max() as u64;
    for peer in 0..3 * max {
        let address = [10, 1, (peer >> 8) as u8, peer as u8].into();
        bench.arrive_from(PeerOrigin::V4(address), peer);
        bench.drain();
    }
    let oldest = 3 * max - (max - 1);
    let expected: Vec<_> = (0..oldest).map(|it| (it, RejectCode::TooMany)).collect();
    assert_eq!(bench.closed(), expected, "the oldest give way, no session");
    let got = bench.connect_from(origin(50), HONEST + 1, join("equities"));
    assert!(matches!(&got[..], [Got::Welcome(_)]), "{got:?}");
    assert_eq!(bench.core.group(CHANNEL).0, 2);
}

#[test]
fn newcomers_displace_different_connections() {
    let config = RepairConfig {
        peers_max: 8,
        ..RepairConfig::default()
    };
    let mut bench = Bench::new(config, 64, 1);
    for peer in 0..8 {
        bench.connect_from(origin(1), peer, join("equities"));
    }
    // They join before anything is sent.
    for peer in 0..3 {
        bench.arrive_from(origin(10 + peer as u64), 100 + peer as u64);
        bench.deliver(100 + peer as u64, Message::Join(join("equities")));
    }
    let rejected: Vec<_> = (bench.drain().into_iter())
        .filter(|(_, got)| matches!(got, Got::Rejected(_)))
        .map(|(to, _)| to)
        .collect();
    assert_eq!(rejected, [Some(7), Some(6), Some(5)]);
    let closed: Vec<u64> = bench.closed().iter().map(|(peer, _)| *peer).collect();
    assert_eq!(closed, [7, 6, 5]);
    assert_eq!(
        (bench.core.group(CHANNEL).0, bench.core.peers.len()),
        (8, 8)
    );
}

#[test]
fn nack_is_charged_by_the_sequences_that_it_logs() {
    let mut bench = Bench::beside_strangers(RepairConfig::default(), 1 << 13, 2, 1);
    bench.publish(6_000);
    let nack = |bench: &mut Bench, peer, class, first, last| {
        let nack = Message::Nack {
            epoch: EPOCH,
            class,
            ranges: vec![run(first, last)],
        };
        bench.input(RepairInput::Message(PeerId(peer), CHANNEL, &nack))
    };
    let small = nack(&mut bench, 0, NackClass::Repair, 1, 1);
    let large = nack(&mut bench, 0, NackClass::Repair, 2, 4_001);
    assert_eq!(large, 4_000 * small);
    assert_eq!(
        nack(&mut bench, 0, NackClass::Repair, 1, 4_001),
        0,
        "it waits"
    );
    assert_eq!(nack(&mut bench, 0, NackClass::Replay, 1, 4_001), 0);
    // Answers are work too, and so is the comparison with what was multicast meanwhile.
    let refused = nack(&mut bench, 0, NackClass::Repair, 7_000, 7_000);
    assert!(refused > 0);
    bench.input(RepairInput::Backlog(PeerId(0), usize::MAX));
    for peer in [1, HONEST] {
        bench.repair(peer, 1, 100);
    }
    let sent = bench.drain();
    assert_eq!(sent.iter().filter(|(to, _)| to.is_none()).count(), 100);
    let again = nack(&mut bench, 0, NackClass::Repair, 4_001, 4_001);
    assert_eq!(again, 100 * small);
    assert_eq!(nack(&mut bench, 0, NackClass::Repair, 4_001, 4_001), 0);
    // A directory is work of its JOIN.
    let welcomed = |bench: &mut Bench, peer| {
        bench.arrive_from(origin(7), peer);
        let join = Message::Join(join("equities"));
        bench.input(RepairInput::Message(PeerId(peer), CHANNEL, &join))
    };
    let before = welcomed(&mut bench, 500);
    let instrument = Instrument {
        id: 1,
        symbol: "A".repeat(100),
    };
    bench.core.set_directory(CHANNEL, vec![instrument; 1_000]);
    assert!(welcomed(&mut bench, 501) > before + 10_000);
}

#[test]
fn multicast_visits_no_waiting_connection() {
    let mut bench = Bench::beside_strangers(RepairConfig::default(), 64, 500, 1);
    bench.publish(20);
    for peer in 0..500 {
        bench.repair(peer, 5, 5);
    }
    bench.repair(HONEST, 7, 7);
    let mut out = Vec::new();
    let sent = bench.core.poll_transmit(bench.now, &mut out);
    assert_eq!(sent, Some(Destination::Multicast(CHANNEL)));
    // Only the connection whose turn it was is answered so far, and the other origin is next.
    assert_eq!(bench.counters.pending.get(), 500);
    assert_eq!(bench.turns_until_repaired(), 1);
    assert!(
        bench.counters.pending.get() >= 497,
        "one or two were passed"
    );
    // The others are answered in their turns, without a copy of their own.
    assert_eq!(bench.drain(), []);
    assert_eq!(bench.counters.pending.get(), 0);
    assert_eq!(bench.counters.answered_by_multicast.get(), 500);
    // A request after the multicast counts anew, though the earlier one had no turn since.
    bench.input(RepairInput::Backlog(PeerId(0), usize::MAX));
    for peer in 0..3 {
        bench.repair(peer, 9, 9);
    }
    assert_eq!(bench.drain().len(), 1);
    bench.pass(100);
    bench.repair(0, 9, 9);
    bench.input(RepairInput::Backlog(PeerId(0), 0));
    assert_eq!(sequences(&bench.take(0)), [9]);
}

#[test]
fn turns_without_output_are_bounded_in_each_call() {
    let mut bench = Bench::beside_strangers(RepairConfig::default(), 256, 83, 1);
    bench.publish(200);
    for peer in 0..80 {
        bench.input(RepairInput::Backlog(PeerId(peer), usize::MAX));
    }
    for peer in 0..83 {
        bench.repair(peer, 1, 128);
    }
    assert_eq!(bench.drain().len(), 128);
    assert_eq!(bench.counters.pending.get(), 80 * 128);
    for peer in 0..80 {
        bench.input(RepairInput::Backlog(PeerId(peer), 0));
    }
    assert_eq!(bench.drain(), []);
    assert_eq!(bench.counters.pending.get(), 80 * 128 - 64 * 64);
    let next = bench.core.poll_timeout();
    assert!(next.is_some_and(|at| at <= bench.now.monotonic));
    assert_eq!(bench.drain(), []);
    assert_eq!(bench.counters.pending.get(), 0);
    bench.check();
}

#[test]
fn requests_of_closed_connection_count_as_cancelled() {
    let mut bench = Bench::beside_strangers(RepairConfig::default(), 64, 80, 1);
    bench.publish(20);
    bench.input(RepairInput::Backlog(PeerId(0), usize::MAX));
    for peer in 0..3 {
        bench.repair(peer, 5, 6);
    }
    bench.repair(0, 8, 8);
    assert_eq!(bench.drain().len(), 2);
    assert_eq!(bench.counters.pending.get(), 3);
    bench.input(RepairInput::Disconnected(PeerId(0)));
    // Peer 0 had no turn since the multicasts that answer two of its three requests.
    assert_eq!(bench.counters.answered_by_multicast.get(), 4);
    assert_eq!(bench.counters.repairs_cancelled.get(), 3);
    bench.check();
}

#[test]
fn turn_of_answers_is_about_a_datagram_long() {
    let mut bench = Bench::beside_strangers(unicast(), 64, 1, 1);
    bench.publish(20);
    let ahead: Vec<_> = (0..200).map(|n| (100 + 2 * n, 100 + 2 * n)).collect();
    bench.nack(0, NackClass::Repair, &ahead);
    bench.repair(HONEST, 1, 1);
    let mut turns = Vec::new();
    let mut out = Vec::new();
    while let Some(to) = bench.core.poll_transmit(bench.now, &mut out) {
        turns.push(to);
        assert!(out.len() <= 1_500, "{}", out.len());
        out.clear();
    }
    let honest = turns
        .iter()
        .position(|it| *it == Destination::Peer(PeerId(HONEST)));
    assert!(honest.unwrap() <= 1, "{turns:?}");
    assert_eq!(
        turns.len(),
        1 + 200_usize.div_ceil(1_500 / (FRAME_HEAD + 48))
    );
}

#[test]
fn unread_answers_of_one_origin_are_bounded_in_all() {
    let config = RepairConfig {
        backlog_pause_bytes: 10_000,
        backlog_close_bytes: 200_000,
        ..unicast()
    };
    let mut bench = Bench::beside_strangers(config, 64, 12, 1);
    let instrument = Instrument {
        id: 1,
        symbol: "A".repeat(1_000),
    };
    bench.core.set_directory(CHANNEL, vec![instrument; 100]);
    for peer in 0..10 {
        bench.input(RepairInput::Backlog(PeerId(peer), 63_900));
    }
    // The origin may have 640,000 unread bytes. Its tenth and eleventh connection have read everything.
    bench.input(RepairInput::Backlog(PeerId(9), 66_000));
    for peer in [0, 11, HONEST] {
        bench.repair(peer, 90, 90);
    }
    assert_eq!(bench.closed(), []);
    bench.repair(9, 90, 90);
    assert_eq!(bench.drain().len(), 4);
    assert_eq!(bench.closed(), [(9, RejectCode::Overflow)]);
    // A WELCOME that would exceed it is rejected and may be tried again. Other origins get theirs.
    bench.input(RepairInput::Backlog(PeerId(8), 64_000));
    let got = bench.connect_from(origin(0), 100, join("equities"));
    let rejected = rejection(&mut bench, 100, &got);
    assert_eq!(rejected.code, RejectCode::Overflow);
    assert!(rejected.retry_after_ms > 0);
    let got = bench.connect_from(origin(1), 101, join("equities"));
    assert!(matches!(&got[..], [Got::Welcome(_)]), "{got:?}");
    // A connection that closes takes its unread bytes with it.
    for peer in 0..3 {
        bench.input(RepairInput::Disconnected(PeerId(peer)));
    }
    let got = bench.connect_from(origin(0), 102, join("equities"));
    assert!(matches!(&got[..], [Got::Welcome(_)]), "{got:?}");
}
