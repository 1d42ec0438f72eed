//! The service's rounds, driven one at a time, with peers on loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::AtomicBool;

use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_SUBSCRIBER, ChannelName, Join, JoinChannel, NackClass, Purpose, Start,
};
use tickcast_reliability::types::{Epoch, Sequence, SequenceRange};
use tickcast_reliability::wire::Datagram;

use super::*;
use crate::config::Config;
use crate::plan::Plan;
use crate::publish::PublishStage;
use crate::run::Opened;

const CHANNEL: ChannelId = ChannelId(1);
/// Maximum number of rounds until an event must have happened that needs only loopback.
const ROUNDS_MAX: usize = 1_000_000;

/// A publisher that has sent one datagram, the event of its epoch. The test drives its rounds.
struct Bench {
    service: RepairService,
    shared: Arc<Shared>,
    address: SocketAddr,
    _publishing: PublishStage,
}

impl Bench {
    fn new(repair: serde_json::Value) -> Self {
        let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = probe.local_addr().unwrap().port();
        let config = serde_json::json!({
            "name": "rounds", "control": "127.0.0.1:0", "inputs": [], "repair": repair,
            "channels": [{
                "id": CHANNEL.0, "name": "all", "slots": 1024,
                "fan_out": [{ "transport": "udp", "lines": [{ "group": format!("239.255.90.4:{port}") }] }],
            }],
        });
        let plan = Plan::for_handlers(Config::parse(&config.to_string()).unwrap()).unwrap();
        let opened = Opened::open(plan, Arc::new(AtomicBool::new(false))).unwrap();
        let (shared, address) = (opened.shared().clone(), opened.control_address());
        let (publishing, service) = opened.inline().unwrap();
        Self {
            service,
            shared,
            address,
            _publishing: publishing,
        }
    }

    /// Runs rounds until the condition holds.
    fn until(&mut self, mut done: impl FnMut(&Self) -> bool) {
        for _ in 0..ROUNDS_MAX {
            if done(self) {
                return;
            }
            self.service.round(Duration::ZERO).unwrap();
        }
        panic!("it never happened");
    }

    /// Returns a connection that has joined.
    fn join(&mut self) -> TcpStream {
        let peer = TcpStream::connect(self.address).unwrap();
        self.join_over(peer)
    }

    fn join_over(&mut self, mut peer: TcpStream) -> TcpStream {
        let before = self.shared.channels[0].repair.joins.get();
        let join = Join {
            authentication: true,
            name: "peer".into(),
            wire_versions: vec![1],
            purpose: Purpose::Repair,
            channels: vec![JoinChannel {
                channel: ChannelName::Id(CHANNEL),
                start: Start::Live,
                confirmed_epoch: Epoch::NONE,
            }],
        };
        peer.write_all(&frame(&Message::Join(join))).unwrap();
        self.until(|it| it.shared.channels[0].repair.joins.get() > before);
        peer
    }

    /// Returns a NACK with this many ranges.
    fn nack(&self, first: u64, ranges: usize) -> Vec<u8> {
        let range = SequenceRange::new(Sequence(first), Sequence(first)).unwrap();
        frame(&Message::Nack {
            epoch: self.shared.epoch,
            class: NackClass::Repair,
            ranges: vec![range; ranges],
        })
    }
}

/// Returns the sequence of the first datagram received.
fn datagram(to: &mut TcpStream) -> u64 {
    let mut bytes = Vec::new();
    loop {
        let read = Message::read(&bytes, BODY_LEN_MAX_TO_SUBSCRIBER).unwrap();
        let len = match read {
            Some((_, Message::Datagram(datagram), _)) => {
                return Datagram::parse(datagram).unwrap().header().sequence.0;
            }
            Some((_, _, len)) => len,
            None => {
                let mut more = [0; 4096];
                let read = to.read(&mut more).unwrap();
                assert!(read > 0, "the connection is over");
                bytes.extend_from_slice(&more[..read]);
                0
            }
        };
        bytes.drain(..len);
    }
}

fn frame(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.write(CHANNEL, &mut bytes);
    bytes
}

#[test]
fn request_is_answered_before_flooders_second_turn() {
    for (ranges, each) in [(1, 1_200), (256, 12)] {
        let mut bench = Bench::new(serde_json::json!({}));
        // The flooding peers connect first, so their turn comes first.
        let mut flooding: Vec<TcpStream> = (0..20).map(|_| bench.join()).collect();
        let mut modest = bench.join();
        let backlog_hint = bench.service.server.backlog_hint().unwrap();
        bench.until(|_| !backlog_hint.has_backlog());
        modest.write_all(&bench.nack(1, 1)).unwrap();
        while !backlog_hint.has_backlog() {}
        let ahead = bench.nack(1_000, ranges);
        let turn = (ServerConfig::default().turn_bytes_max).div_ceil(ahead.len()) as u64;
        for peer in &mut flooding {
            peer.write_all(&ahead.repeat(each)).unwrap();
        }
        let counters = bench.shared.channels[0].repair.clone();
        bench.until(|_| counters.answered.get() == 1);
        let heard = counters.nack_messages.get();
        assert!(heard <= 20 * turn + 1, "{heard} were heard before");
        assert_eq!(datagram(&mut modest), 1);
        // All their requests are answered too, in their turn.
        let asked = 20 * each as u64;
        bench.until(|_| counters.nack_messages.get() == asked + 1);
        assert_eq!(counters.refused_ahead.get(), asked * ranges as u64);
        assert_eq!(counters.nacked.get(), asked * ranges as u64 + 1);
    }
}

/// Connects from an address of loopback.
fn connect_from(host: u8, to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let from = SocketAddr::from(([127, 0, 0, host], 0));
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

#[test]
fn messages_are_read_again_after_64_turns_of_output() {
    let mut bench = Bench::new(serde_json::json!({ "multicast_repair": false }));
    let mut peers = Vec::new();
    for n in 0..160 {
        let peer = connect_from(2 + n % 20, bench.address);
        peers.push(bench.join_over(peer));
    }
    let nack = bench.nack(1, 1);
    for peer in &mut peers {
        peer.write_all(&nack).unwrap();
    }
    let counters = bench.shared.channels[0].repair.clone();
    let mut most = 0;
    while counters.answered.get() < 160 {
        let before = counters.answered.get();
        bench.service.round(Duration::ZERO).unwrap();
        most = most.max(counters.answered.get() - before);
    }
    assert!(most <= TURNS_MAX as u64, "{most} in one round");
}

#[test]
fn address_is_bounded_and_others_join() {
    let mut bench = Bench::new(serde_json::json!({ "peers_max": 8 }));
    let _greedy: Vec<TcpStream> = (0..30)
        .map(|_| TcpStream::connect(bench.address).unwrap())
        .collect();
    let service = bench.shared.service.clone();
    bench.until(|_| service.connections_per_address_refused.get() == 26);
    assert_eq!(service.connections.get(), 4, "half of all places");
    assert_eq!(service.connections_refused.get(), 0, "counted once");
    let before = service.connections.get();
    let _other = connect_from(2, bench.address);
    bench.until(|_| service.connections.get() > before);
    assert_eq!(service.joins_rejected.get(), 0);
}
