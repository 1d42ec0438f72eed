//! Control frames over reliable connections on a real device: the same server and client as over TCP. A
//! peer that misbehaves affects only itself. The tests need a device: see `main.rs`.

mod deaf;

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tickcast_reliability::control::{Message, NackClass};
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};
use tickcast_transport::control::{
    ClientConfig, ClientEvent, CloseReason, ConnectionId, ControlClient, ControlServer, SendError,
    ServerConfig, ServerEvent, ShareId,
};
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::verbs::{Device, Stream, StreamConfig};

use self::deaf::Deaf;
use crate::device::sides::reading;
use crate::device::{address, resources, until};

const CHANNEL: ChannelId = ChannelId(4);

fn now() -> Nanos {
    SystemClock.now()
}

/// Opens a server over TCP and verbs, and returns its verbs address.
fn server(config: ServerConfig) -> (ControlServer, SocketAddrV4) {
    let mut server = ControlServer::bind("127.0.0.1:0".parse().unwrap(), config).unwrap();
    let at = server.listen_over_verbs(SocketAddrV4::new(address(), 0));
    (server, at.unwrap())
}

/// Returns the contents of the datagram of this sequence.
fn datagram(sequence: u64) -> Vec<u8> {
    let len = 100 + sequence as usize * 37 % 8_800;
    (0..len)
        .map(|n| (n as u64 * 31 + sequence * 7) as u8)
        .collect()
}

fn nack(first: u64, last: u64) -> Message<'static> {
    Message::Nack {
        epoch: Epoch(7),
        class: NackClass::Repair,
        ranges: vec![SequenceRange::new(Sequence(first), Sequence(last)).unwrap()],
    }
}

/// Answers every NACK with its datagrams, as far as a peer reads them, and records closed peers with the
/// reason.
#[derive(Default)]
struct Serving {
    connected: Vec<(ConnectionId, SocketAddr)>,
    closed: Vec<(ConnectionId, CloseReason)>,
    owed: Vec<(ConnectionId, u64)>,
    overdue: usize,
    cursors: Vec<ConnectionId>,
}

impl Serving {
    fn round(&mut self, server: &mut ControlServer) {
        let polled = server.poll(Some(Duration::from_micros(200)), |event| match event {
            ServerEvent::Connected(peer, from, _) => self.connected.push((peer, from)),
            ServerEvent::Frame(peer, channel, Message::Nack { ranges, .. }) => {
                assert_eq!(channel, CHANNEL);
                let all = ranges.iter().flat_map(|range| range.iter());
                self.owed.extend(all.map(|sequence| (peer, sequence.0)));
            }
            ServerEvent::Frame(_, _, message) => panic!("{message:?}"),
            ServerEvent::JoinOverdue(_) => self.overdue += 1,
            ServerEvent::Granted(..) | ServerEvent::Unconfirmed(..) => {}
            ServerEvent::CursorGranted(peer, ..) => self.cursors.push(peer),
            ServerEvent::CursorRefused(_, _, error) => panic!("{error}"),
            ServerEvent::Closed(peer, reason) => self.closed.push((peer, reason)),
        });
        polled.unwrap();
        let mut full = Vec::new();
        self.owed.retain(|(peer, sequence)| {
            if full.contains(peer) {
                return true;
            }
            let sent = server.send(*peer, CHANNEL, &Message::Datagram(&datagram(*sequence)));
            let waits = matches!(sent, Err(SendError::Full { .. }));
            full.extend(waits.then_some(*peer));
            waits
        });
        server.flush();
    }
}

/// A client that connects, and the messages it received.
struct Client {
    client: ControlClient,
    connected: bool,
    closed: Option<CloseReason>,
    came: Vec<Vec<u8>>,
}

impl Client {
    fn to(at: SocketAddrV4) -> Self {
        let config = ClientConfig {
            connect_timeout: Nanos::from_secs(60),
            ..ClientConfig::default()
        };
        let mut client = ControlClient::over_verbs(vec![at.into()], config);
        client.connect(now()).unwrap();
        Self {
            client,
            connected: false,
            closed: None,
            came: Vec::new(),
        }
    }

    fn round(&mut self) {
        self.client.poll(now(), |event| match event {
            ClientEvent::Connected(_) => self.connected = true,
            ClientEvent::Frame(channel, Message::Datagram(bytes)) => {
                assert_eq!(channel, CHANNEL);
                self.came.push(bytes.to_vec());
            }
            ClientEvent::Frame(_, message) => panic!("{message:?}"),
            ClientEvent::Disconnected(reason) => self.closed = Some(reason),
        });
    }

    fn connected(server: &mut ControlServer, serving: &mut Serving, at: SocketAddrV4) -> Self {
        let mut client = Self::to(at);
        until("it never connected", || {
            serving.round(server);
            client.round();
            client.connected
        });
        client
    }

    /// Requests a run of datagrams and checks every byte.
    fn asks(&mut self, server: &mut ControlServer, serving: &mut Serving, first: u64, last: u64) {
        self.came.clear();
        self.client.send(CHANNEL, &nack(first, last)).unwrap();
        until("not everything came", || {
            serving.round(server);
            self.round();
            self.came.len() as u64 > last - first
        });
        let wanted: Vec<Vec<u8>> = (first..=last).map(datagram).collect();
        assert!(self.came == wanted, "{first}..{last}");
    }
}

/// Opens a bare stream to the server that writes and reads arbitrary bytes.
fn stranger(
    server: &mut ControlServer,
    serving: &mut Serving,
    at: SocketAddrV4,
    config: &StreamConfig,
) -> (Stream, ConnectionId) {
    let device = Device::open(address()).unwrap();
    let before = serving.connected.len();
    let mut stream = Stream::connect(&device, at, config).unwrap();
    until("it never connected", || {
        serving.round(server);
        stream.advance();
        stream.is_up() && serving.connected.len() > before
    });

    (stream, serving.connected[before].0)
}

/// Requests a cursor for a peer that sends nothing. Retries until the server's device has reported the
/// connection, which may be after the peer knows of it.
fn grant_cursor(
    server: &mut ControlServer,
    serving: &mut Serving,
    peer: ConnectionId,
    ring: ShareId,
) {
    once_up(server, serving, |server| server.grant_cursor(peer, ring));
}

fn once_up(
    server: &mut ControlServer,
    serving: &mut Serving,
    mut grant: impl FnMut(&mut ControlServer) -> std::io::Result<()>,
) {
    until("its connection is not up on this side", || {
        serving.round(server);
        match grant(server) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            done => {
                done.unwrap();
                true
            }
        }
    });
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn nack_over_verbs_is_answered_with_requested_bytes() {
    let (mut server, at) = server(ServerConfig::default());
    let mut serving = Serving::default();
    let mut client = Client::connected(&mut server, &mut serving, at);
    let (_, from) = serving.connected[0];
    assert_eq!(from.ip(), address(), "who it is");
    client.asks(&mut server, &mut serving, 1, 1);
    client.asks(&mut server, &mut serving, 2, 1_500);
    for n in 1..200 {
        client.asks(&mut server, &mut serving, n, n + 2);
    }
    let stats = *server.stats();
    assert_eq!((stats.accepted, stats.accepted_over_verbs), (1, 1));
    assert_eq!((stats.protocol_errors, stats.broken), (0, 0));
    assert!(serving.closed.is_empty());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn nonsense_ends_its_own_connection_alone() {
    let (mut server, at) = server(ServerConfig::default());
    let mut serving = Serving::default();
    let mut honest = Client::connected(&mut server, &mut serving, at);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 9_000]] {
        let config = StreamConfig::default();
        let (mut stream, peer) = stranger(&mut server, &mut serving, at, &config);
        let mut rest = garbage;
        while !rest.is_empty() {
            rest = &rest[stream.write(rest).unwrap()..];
        }
        until("it was believed", || {
            serving.round(&mut server);
            serving.closed.iter().any(|(closed, _)| *closed == peer)
        });
        let (_, reason) = serving.closed.last().unwrap();
        assert!(matches!(reason, CloseReason::Protocol(_)), "{reason}");
        until("it never heard", || !stream.advance());
        honest.asks(&mut server, &mut serving, 5, 40);
    }
    assert_eq!(server.stats().protocol_errors, 2);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn non_reading_peer_has_bounded_backlog() {
    let (mut server, at) = server(ServerConfig {
        backlog_bytes_max: 300_000,
        linger: Duration::from_millis(100),
        ..ServerConfig::default()
    });
    let mut serving = Serving::default();
    let mut honest = Client::connected(&mut server, &mut serving, at);
    let config = StreamConfig::default();
    let (stream, peer) = stranger(&mut server, &mut serving, at, &config);
    let full = (0..10_000).find_map(|n| {
        let sent = server.send(peer, CHANNEL, &Message::Datagram(&datagram(n)));
        server.flush();
        sent.err()
    });
    assert!(matches!(full, Some(SendError::Full { backlog, .. }) if backlog <= 300_000));
    assert_eq!(server.stats().overflows, 1);
    // The device would have given up long before; nothing was sent that it has no buffer for.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        honest.asks(&mut server, &mut serving, 1, 20);
    }
    assert!(serving.closed.is_empty(), "{:?}", serving.closed);
    server.close(peer, None);
    until("it stays", || {
        serving.round(&mut server);
        !serving.closed.is_empty()
    });
    assert_eq!(serving.closed[0].0, peer);
    honest.asks(&mut server, &mut serving, 1, 200);
    drop(stream);
}

/// Checks a peer that has fewer buffers than it announces, with an honest one beside it. Its own connection
/// breaks with a completion of one of these statuses and is counted, and no other peer is affected.
fn breaks_its_own_connection_alone(liar: impl Fn(SocketAddrV4) -> Deaf, statuses: &[u32]) {
    let (mut server, at) = server(ServerConfig::default());
    let mut serving = Serving::default();
    let mut honest = Client::connected(&mut server, &mut serving, at);
    let mut liar = liar(at);
    until("it never connected", || {
        serving.round(&mut server);
        liar.advance();
        liar.is_up && serving.connected.len() > 1
    });
    let peer = serving.connected[1].0;
    let before = server.stats().broken;
    let long = datagram(100);
    assert!(long.len() > 256);
    server
        .send(peer, CHANNEL, &Message::Datagram(&long))
        .unwrap();
    server.flush();
    // The server's device retries as often as configured, while other peers are served.
    until("it is still there", || {
        honest.asks(&mut server, &mut serving, 1, 20);
        !serving.closed.is_empty()
    });
    let [(closed, reason)] = &serving.closed[..] else {
        panic!("{:?}", serving.closed);
    };
    assert_eq!(*closed, peer);
    let said = |status: &u32| {
        reason
            .to_string()
            .contains(&format!("completion {status})"))
    };
    assert!(matches!(reason, CloseReason::Io(_)), "{reason}");
    assert!(statuses.iter().any(said), "{reason}");
    assert_eq!(server.stats().broken, before + 1);
    honest.asks(&mut server, &mut serving, 1, 200);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn peer_without_receives_breaks_only_its_connection() {
    // The receiver was not ready, and retries are exceeded.
    breaks_its_own_connection_alone(Deaf::new, &[13]);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn peer_with_short_buffers_breaks_only_its_own() {
    // The request is invalid at the peer, or can't be done there.
    breaks_its_own_connection_alone(Deaf::with_short_buffers, &[9, 11]);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn excess_connections_are_refused_before_allocation() {
    let (mut server, at) = server(ServerConfig {
        verbs_connections_max: 1,
        ..ServerConfig::default()
    });
    let mut serving = Serving::default();
    let mut first = Client::connected(&mut server, &mut serving, at);
    let mut second = Client::to(at);
    until("nobody told it", || {
        serving.round(&mut server);
        second.round();
        second.closed.is_some()
    });
    assert!(
        matches!(second.closed, Some(CloseReason::Unreachable(_))),
        "{:?}",
        second.closed
    );
    assert_eq!(
        (server.stats().turned_away, serving.connected.len()),
        (1, 1)
    );
    first.asks(&mut server, &mut serving, 1, 10);
    drop(first);
    until("it is still counted", || {
        serving.round(&mut server);
        serving.closed.len() == 1
    });
    Client::connected(&mut server, &mut serving, at);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn verbs_client_reconnects_to_restarted_server() {
    let (mut server, at) = server(ServerConfig::default());
    let mut serving = Serving::default();
    let mut client = Client::connected(&mut server, &mut serving, at);
    client.asks(&mut server, &mut serving, 1, 50);
    drop(server);
    until("it never noticed", || {
        client.round();
        client.closed.is_some()
    });
    assert!(client.client.is_idle());
    // Nobody listens: the attempt fails with an event, and nothing blocks.
    (client.closed, client.connected) = (None, false);
    client.client.connect(now()).unwrap();
    until("it still hopes", || {
        client.round();
        client.closed.is_some()
    });
    assert!(matches!(client.closed, Some(CloseReason::Unreachable(_))));
    let mut server =
        ControlServer::bind("127.0.0.1:0".parse().unwrap(), ServerConfig::default()).unwrap();
    assert_eq!(server.listen_over_verbs(at).unwrap(), at);
    let mut serving = Serving::default();
    (client.closed, client.connected) = (None, false);
    client.client.connect(now()).unwrap();
    until("it never came again", || {
        serving.round(&mut server);
        client.round();
        client.connected
    });
    client.asks(&mut server, &mut serving, 1, 50);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn verbs_control_descriptors_wake_sleeping_peer() {
    use std::os::fd::AsRawFd;
    let (mut server, at) = server(ServerConfig::default());
    let waker = server.waker();
    let serving = std::thread::spawn(move || {
        let mut serving = Serving::default();
        let begun = Instant::now();
        while serving.closed.is_empty() && begun.elapsed() < Duration::from_secs(120) {
            // The server sleeps until something arrives.
            let polled = server.poll(Some(Duration::from_secs(30)), |event| match event {
                ServerEvent::Frame(peer, _, Message::Nack { ranges, .. }) => {
                    let all = ranges.iter().flat_map(|range| range.iter());
                    serving.owed.extend(all.map(|sequence| (peer, sequence.0)));
                }
                ServerEvent::Closed(peer, reason) => serving.closed.push((peer, reason)),
                _ => {}
            });
            polled.unwrap();
            for (peer, sequence) in serving.owed.drain(..) {
                let message = datagram(sequence);
                server
                    .send(peer, CHANNEL, &Message::Datagram(&message))
                    .unwrap();
            }
            server.flush();
        }
        serving.closed.len()
    });
    let mut client = Client::to(at);
    let mut rounds = 0;
    let mut wanted = 0;
    let begun = Instant::now();
    while client.came.len() < 300 {
        client.round();
        if client.connected && client.came.len() == wanted && wanted < 300 {
            wanted += 1;
            let ask = nack(wanted as u64, wanted as u64);
            client.client.send(CHANNEL, &ask).unwrap();
            client.client.flush();
        }
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "{} came",
            client.came.len()
        );
        if client.client.holds_input() || client.came.len() == 300 {
            continue;
        }
        let mut polls: Vec<libc::pollfd> = (client.client.descriptors().iter().flatten())
            .map(|fd| libc::pollfd {
                fd: fd.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        // SAFETY: `polls` has as many `pollfd` as are passed, which live through the call. Exercised by
        // `verbs::control::verbs_control_descriptors_wake_sleeping_peer`.
        let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as u64, 60_000) };
        assert!(ready > 0, "nobody woke it: {} came", client.came.len());
        rounds += 1;
    }
    assert!(rounds > 0);
    drop(client);
    waker.wake().unwrap();
    assert_eq!(serving.join().unwrap(), 1);
}

/// Runs in the process that is killed during its work; not a test of its own.
#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn victim() {
    let Ok(at) = std::env::var("TICKCAST_VICTIM_OF") else {
        return;
    };
    let mut client = Client::to(at.parse().unwrap());
    loop {
        client.round();
        if client.connected && client.client.backlog() == 0 {
            let _ = client.client.send(CHANNEL, &nack(1, 3));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn killed_verbs_peer_releases_server_resources() {
    let (mut server, at) = server(ServerConfig::default());
    let mut serving = Serving::default();
    let mut honest = Client::connected(&mut server, &mut serving, at);
    honest.asks(&mut server, &mut serving, 1, 20);
    let before = resources();
    for _ in 0..3 {
        let (connected, closed) = (serving.connected.len(), serving.closed.len());
        let mut victim = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "control::victim"])
            .env("TICKCAST_VICTIM_OF", at.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        until("it never came", || {
            serving.round(&mut server);
            serving.connected.len() > connected
        });
        for _ in 0..20 {
            serving.round(&mut server);
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
        until("its connection stays", || {
            serving.round(&mut server);
            serving.closed.len() > closed
        });
        until("it left something behind", || {
            serving.round(&mut server);
            resources() == before
        });
        honest.asks(&mut server, &mut serving, 1, 20);
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn leaving_cursor_waiter_passes_it_on() {
    let (mut server, at) = server(ServerConfig::default());
    let memory = SharedMapping::memfd("ring", 4_096).unwrap();
    let ring = server.create_share();
    server.share(ring, Arc::new(memory), at).unwrap();
    server.share_cursors(1, at).unwrap();
    let mut serving = Serving::default();
    let config = reading(4);
    let (holder, first) = stranger(&mut server, &mut serving, at, &config);
    grant_cursor(&mut server, &mut serving, first, ring);
    for n in 1..=20 {
        let (stream, peer) = stranger(&mut server, &mut serving, at, &config);
        grant_cursor(&mut server, &mut serving, peer, ring);
        assert_eq!(server.awaiting_cursors(), 1, "{n}");
        drop(stream);
        until("its connection stays", || {
            serving.round(&mut server);
            serving.closed.len() == n
        });
        assert_eq!(server.awaiting_cursors(), 0, "{n}");
    }
    let (_waiting, last) = stranger(&mut server, &mut serving, at, &config);
    once_up(&mut server, &mut serving, |server| server.grant(last, ring));
    grant_cursor(&mut server, &mut serving, last, ring);
    drop(holder);
    until("it gets none", || {
        serving.round(&mut server);
        serving.cursors.len() == 2
    });
    assert_eq!(serving.cursors, [first, last]);
    assert_eq!(server.awaiting_cursors(), 0);
    assert_eq!(serving.closed.last().map(|(peer, _)| *peer), Some(first));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn memory_and_cursors_belong_to_their_listener() {
    let (mut server, at) = server(ServerConfig::default());
    let other = SocketAddrV4::new(address(), 0);
    let other = server.listen_over_verbs(other).unwrap();
    assert_ne!(at, other);
    let memory = SharedMapping::memfd("ring", 4_096).unwrap();
    let memory: Arc<dyn RingMemory> = Arc::new(memory);
    let [here, there, everywhere] = [(); 3].map(|()| server.create_share());
    for (ring, at) in [
        (here, at),
        (there, other),
        (everywhere, at),
        (everywhere, other),
    ] {
        server.share(ring, Arc::clone(&memory), at).unwrap();
    }
    let nowhere = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7410);
    let missing = server.share(here, memory, nowhere).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Unsupported);
    for at in [at, other] {
        server.share_cursors(1, at).unwrap();
    }

    let mut serving = Serving::default();
    let config = reading(4);
    let (_first, near) = stranger(&mut server, &mut serving, at, &config);
    let (_second, far) = stranger(&mut server, &mut serving, other, &config);
    for (peer, own, foreign) in [(near, here, there), (far, there, here)] {
        for ring in [own, everywhere] {
            once_up(&mut server, &mut serving, |server| server.grant(peer, ring));
        }
        let refused = server.grant(peer, foreign).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound, "{refused}");
        grant_cursor(&mut server, &mut serving, peer, everywhere);
    }
    until("a cursor is not granted", || {
        serving.round(&mut server);
        serving.cursors.len() == 2
    });
    // Both are taken, so the next peer of each listener waits, and gets that of its own listener.
    let (_third, waiter) = stranger(&mut server, &mut serving, other, &config);
    once_up(&mut server, &mut serving, |server| {
        server.grant(waiter, everywhere)
    });
    grant_cursor(&mut server, &mut serving, waiter, everywhere);
    assert_eq!(server.awaiting_cursors(), 1);
    server.close(near, None);
    until("its connection stays", || {
        serving.round(&mut server);
        serving.closed.len() == 1
    });
    assert_eq!(server.awaiting_cursors(), 1, "a cursor of another listener");
    server.close(far, None);
    until("a returned cursor is not granted", || {
        serving.round(&mut server);
        serving.cursors.len() == 3
    });
    assert_eq!(serving.cursors, [near, far, waiter]);
    assert_eq!(server.awaiting_cursors(), 0);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn connect_without_rdma_device_is_refused() {
    let nowhere = "127.0.0.1:7410".parse().unwrap();
    let mut client = ControlClient::over_verbs(vec![nowhere], ClientConfig::default());
    match client.connect(now()) {
        Err(CloseReason::Unreachable(error)) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        other => panic!("{other:?}"),
    }
    assert!(client.is_idle());
}
