//! The server shares its work by address, then by connection. The tests count turns, not time.

use super::*;
use tickcast_reliability::control::Progress;
use tickcast_transport::control::BacklogHint;

/// Messages of one flood. The server's system has room for all of them before the server reads.
const FLOOD: u64 = 800;

fn progress() -> Message<'static> {
    Message::Progress(Progress {
        epoch: Epoch(1),
        sequence: Sequence(1),
        lost_records: 0,
        heard: Sequence(1),
        sent_at: Nanos(0),
        read_bytes: 0,
    })
}

/// Returns a NACK of one range.
fn nack() -> Vec<u8> {
    frame(&Message::Nack {
        epoch: Epoch(1),
        class: NackClass::Repair,
        ranges: vec![SequenceRange::one(Sequence(1))],
    })
}

/// A server and its events.
struct Crowd {
    server: ControlServer,
    address: SocketAddr,
    backlog_hint: BacklogHint,
    connected: Vec<ConnectionId>,
    /// Each message's peer, and whether it is a NACK.
    heard: Vec<(ConnectionId, bool)>,
}

impl Crowd {
    fn new(config: ServerConfig) -> Self {
        let (mut server, address) = server(config);
        let backlog_hint = server.backlog_hint().unwrap();
        Self {
            server,
            address,
            backlog_hint,
            connected: Vec::new(),
            heard: Vec::new(),
        }
    }

    fn poll(&mut self) {
        let polled = self.server.poll(Some(Duration::ZERO), |event| match event {
            ServerEvent::Connected(peer, ..) => self.connected.push(peer),
            ServerEvent::Frame(peer, _, message) => {
                let is_nack = matches!(message, Message::Nack { .. });
                self.heard.push((peer, is_nack));
            }
            ServerEvent::JoinOverdue(_) | ServerEvent::Unconfirmed(..) => {}
            event => panic!("{event:?}"),
        });
        polled.unwrap();
    }

    /// Connects from an address of loopback.
    fn connect(&mut self, host: u8) -> (TcpStream, ConnectionId) {
        let before = self.connected.len();
        let stream = connect_from([127, 0, 0, host], self.address);
        until(|| {
            self.poll();
            self.connected.len() > before
        });
        (stream, self.connected[before])
    }

    fn connect_all(&mut self, host: u8, count: usize) -> Vec<(TcpStream, ConnectionId)> {
        (0..count).map(|_| self.connect(host)).collect()
    }

    /// Polls until the system has reported everything. Messages may still wait for their turns.
    fn settle(&mut self) {
        until(|| {
            self.poll();
            !self.backlog_hint.has_backlog()
        });
    }

    fn turns_of(&self, peer: ConnectionId) -> u64 {
        self.server.peer(peer).unwrap().turns
    }
}

fn flood(stream: &mut TcpStream) {
    let all = frame(&progress()).repeat(FLOOD as usize);
    stream.write_all(&all).unwrap();
}

#[test]
fn nack_waits_for_addresses_not_for_connections() {
    let share = ServerConfig::default().turns_per_address_max as u64;
    for connections in [4, 24] {
        let mut crowd = Crowd::new(ServerConfig::default());
        let mut hostile: Vec<_> = (2..10)
            .flat_map(|host| crowd.connect_all(host, connections))
            .collect();
        let (mut honest, peer) = crowd.connect(10);
        crowd.settle();
        hostile.iter_mut().for_each(|(stream, _)| flood(stream));
        crowd.settle();
        honest.write_all(&nack()).unwrap();
        until(|| crowd.backlog_hint.has_backlog());
        let before = crowd.server.stats().turns;
        crowd.heard.clear();
        crowd.poll();
        let turns = crowd.server.stats().turns - before;
        assert!(crowd.heard.contains(&(peer, true)), "heard in this poll");
        assert_eq!(turns, 8 * share + 1, "each address has its share");
        // The rest is heard in turn.
        let sent = hostile.len() as u64 * FLOOD + 1;
        until(|| {
            crowd.poll();
            crowd.server.stats().messages == sent
        });
    }
}

#[test]
fn idle_connection_is_never_visited() {
    let mut crowd = Crowd::new(ServerConfig::default());
    let idle = crowd.connect_all(2, 40);
    let (mut stream, busy) = crowd.connect(2);
    crowd.settle();
    let turns: Vec<u64> = idle.iter().map(|(_, it)| crowd.turns_of(*it)).collect();
    let before = *crowd.server.stats();
    let begun = crowd.turns_of(busy);
    flood(&mut stream);
    until(|| {
        crowd.poll();
        crowd.server.stats().messages == FLOOD
    });
    let after: Vec<u64> = idle.iter().map(|(_, it)| crowd.turns_of(*it)).collect();
    assert_eq!(turns, after);
    let stats = crowd.server.stats();
    assert_eq!(stats.turns - before.turns, crowd.turns_of(busy) - begun);
    assert_eq!(stats.write_turns, before.write_turns);
}

#[test]
fn connections_of_one_address_take_turns() {
    let share = ServerConfig::default().turns_per_address_max as u64;
    let mut crowd = Crowd::new(ServerConfig::default());
    let mut peers = crowd.connect_all(2, 10);
    crowd.settle();
    peers.iter_mut().for_each(|(stream, _)| flood(stream));
    crowd.settle();
    let ids: Vec<ConnectionId> = peers.iter().map(|(_, id)| *id).collect();
    let begun: Vec<u64> = ids.iter().map(|id| crowd.turns_of(*id)).collect();
    for polls in 1..=20 {
        crowd.poll();
        let turns: Vec<u64> = (ids.iter().zip(&begun))
            .map(|(id, begun)| crowd.turns_of(*id) - begun)
            .collect();
        assert_eq!(turns.iter().sum::<u64>(), polls * share);
        let (least, most) = (turns.iter().min(), turns.iter().max());
        assert!(most.unwrap() - least.unwrap() <= 1, "{turns:?}");
    }
}

#[test]
fn short_messages_use_up_a_turn_as_nacks_do() {
    let config = ServerConfig::default();
    let mut crowd = Crowd::new(config);
    let (mut stream, _) = crowd.connect(2);
    crowd.settle();
    let (nack, leave) = (nack(), frame(&Message::Leave));
    assert!(leave.len() < nack.len());
    let mut in_one_turn = |message: &[u8]| {
        stream.write_all(&message.repeat(200)).unwrap();
        crowd.heard.clear();
        until(|| {
            crowd.poll();
            !crowd.heard.is_empty()
        });
        let count = crowd.heard.len();
        until(|| {
            crowd.poll();
            crowd.heard.len() == 200
        });
        crowd.settle();
        count
    };
    let (nacks, leaves) = (in_one_turn(&nack), in_one_turn(&leave));
    assert!(leaves <= nacks && 2 * leaves > nacks, "{leaves}, {nacks}");
}

#[test]
fn blocked_output_is_visited_once_peer_reads() {
    let mut crowd = Crowd::new(ServerConfig::default());
    let (mut stream, peer) = crowd.connect(2);
    let frames = frame(&Message::Datagram(&[7; 1000])).repeat(1000);
    // The peer does not read until the systems of both sides are full.
    let mut sent = 0;
    while crowd.server.peer(peer).unwrap().backlog_bytes < frames.len() {
        crowd.server.send_frames(peer, &frames).unwrap();
        sent += frames.len();
        (0..100).for_each(|_| crowd.server.flush());
    }
    let before = *crowd.server.stats();
    (0..100).for_each(|_| crowd.server.flush());
    assert_eq!(crowd.server.stats().write_turns, before.write_turns);
    let reading = std::thread::spawn(move || {
        let mut all = vec![0; sent];
        stream.read_exact(&mut all).unwrap();
        (stream, all)
    });
    until(|| {
        crowd.poll();
        crowd.server.peer(peer).unwrap().backlog_bytes == 0
    });
    let (_stream, all) = reading.join().unwrap();
    assert!(all == frames.repeat(sent / frames.len()), "each byte, once");
}

#[test]
fn output_is_written_in_shares_of_addresses() {
    let mut crowd = Crowd::new(ServerConfig {
        turns_per_address_max: 1,
        ..ServerConfig::default()
    });
    let many = crowd.connect_all(2, 40);
    let (_stream, other) = crowd.connect(3);
    crowd.settle();
    for peer in many.iter().map(|(_, id)| *id).chain([other]) {
        (crowd.server)
            .send(peer, ChannelId(4), &Message::Leave)
            .unwrap();
    }
    let before = crowd.server.stats().write_turns;
    crowd.server.flush();
    let mut backlogs = Vec::new();
    (crowd.server).take_backlogs(|peer, bytes| backlogs.push((peer, bytes)));
    assert!(backlogs.contains(&(other, 0)));
    assert_eq!(backlogs.len(), 16 + 1, "only those that were written to");
    (crowd.server).take_backlogs(|peer, _| panic!("{peer:?} was taken before"));
    // A system call counts as 4 KiB, and a turn of writing is 64 KiB.
    assert_eq!(crowd.server.stats().write_turns - before, 16 + 1);
    until(|| {
        crowd.poll();
        let mut backlogs = many.iter().map(|(_, id)| crowd.server.peer(*id).unwrap());
        backlogs.all(|peer| peer.backlog_bytes == 0)
    });
}
