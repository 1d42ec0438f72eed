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
        self.core
            .handle_connected(self.now, PeerId(peer), Carrier::Tcp, from);
        self.tell(peer, Message::Join(join));
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
            bench.tell(peer, progress(1));
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
fn joiner_keeps_its_history_beside_replaying_strangers() {
    let config = RepairConfig {
        joiner_bytes_per_s: 3_000_000,
        ..RepairConfig::default()
    };
    let mut bench = Bench::beside_strangers(config, 1 << 14, 400, 2);
    for _ in 0..40 {
        bench.publish(200);
        bench.pass(100_000);
        bench.core.handle_timeout(bench.now);
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
    bench.core.handle_disconnected(PeerId(0));
    bench.nack(2, NackClass::Replay, &[(1, 500)]);
    assert_eq!(refusals(&bench.take(2)), []);
    assert_eq!(bench.counters.refused_budget.get(), 500);
    bench.connect_from(origin(0), 3, join("equities"));
    bench
        .core
        .handle_backlog(PeerId(1), config.backlog_pause_bytes);
    bench.tell(1, progress(1));
    assert_eq!(bench.take(1), []);
    bench.nack(3, NackClass::Replay, &[(1, 500)]);
    assert_eq!(refusals(&bench.take(3)), []);
    // A peer that reads again goes on.
    bench.core.handle_backlog(PeerId(1), 0);
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
        bench.core.handle_backlog(PeerId(peer), 9_000);
        bench.repair(peer, 1, 2);
        bench.tell(peer, progress(1));
    }
    assert_eq!(bench.drain(), []);
    // The connection that reads everything is served, of the same origin and of another.
    for reader in [20, HONEST] {
        bench.repair(reader, 1, 2);
        assert_eq!(sequences(&bench.take(reader)), [1, 2]);
    }
    for peer in 0..3 {
        bench.core.handle_backlog(PeerId(peer), 0);
    }
    let served = bench.drain();
    let peers: std::collections::BTreeSet<_> = served.iter().map(|(to, _)| *to).collect();
    assert_eq!(peers, [Some(0), Some(1), Some(2)].into());
    assert_eq!(served.len(), 9);
    // A closed connection takes its unread bytes with it.
    for peer in 3..6 {
        bench.core.handle_disconnected(PeerId(peer));
    }
    bench.core.handle_backlog(PeerId(6), 8_999);
    assert_eq!(sequences(&bench.take(6)), [1, 2]);
}

#[test]
fn ended_connections_leave_nothing_in_the_order_of_turns() {
    let mut bench = Bench::beside_strangers(unicast(), 64, 64, 4);
    bench.publish(30);
    for peer in 0..64 {
        bench.repair(peer, 1, 30);
        bench.tell(peer, progress(1));
    }
    for peer in 0..64 {
        bench.core.handle_disconnected(PeerId(peer));
    }
    bench.repair(HONEST, 5, 5);
    assert_eq!(bench.turns_until_repaired(), 1);
    assert_eq!(bench.drain(), []);
    bench.core.handle_disconnected(PeerId(HONEST));
    assert_eq!(bench.drain(), []);
    assert!(bench.core.turns.iter().all(|it| !it.is_waiting()));
    assert_eq!(bench.counters.pending.get(), 0);
}
