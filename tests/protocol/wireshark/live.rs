//! A session of a real publisher and a subscriber that loses datagrams, recorded on the way.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tickcast_subscriber::Subscriber;
use tickcast_subscriber::faults::FaultConfig;
use tickcast_test_support::{
    Follower, Publisher, drive_to_end, free_group, one_channel, simulated,
};

use super::tshark::Tshark;
use super::{CONTROL, Recording};

/// The chunks of one direction of a connection.
type Chunks = Arc<Mutex<Vec<Vec<u8>>>>;

/// Records the datagrams of a group until it is told to stop.
struct Listener {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Vec<u8>>>,
}

impl Listener {
    fn start(group: SocketAddrV4) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        socket.set_reuse_address(true).expect("a shared address");
        socket
            .set_recv_buffer_size(4 << 20)
            .expect("a large buffer");
        socket
            .bind(&SocketAddr::from(group).into())
            .expect("bound to the group");
        let joined = socket.join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST);
        joined.expect("the group is joined");
        let socket = UdpSocket::from(socket);
        let wait = socket.set_read_timeout(Some(Duration::from_millis(20)));
        wait.expect("a time limit");
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = thread::spawn(move || {
            let (mut heard, mut buffer) = (Vec::new(), [0; 9_000]);
            while !over.load(Ordering::Relaxed) {
                if let Ok(len) = socket.recv(&mut buffer) {
                    heard.push(buffer[..len].to_vec());
                }
            }
            heard
        });
        Self { is_over, thread }
    }

    fn finish(self) -> Vec<Vec<u8>> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the listener ends")
    }
}

/// Passes control connections on to a publisher, and records both directions of each.
struct Proxy {
    address: SocketAddr,
    connections: Arc<Mutex<Vec<[Chunks; 2]>>>,
}

impl Proxy {
    fn start(publisher: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let connections: Arc<Mutex<Vec<[Chunks; 2]>>> = Arc::default();
        let list = connections.clone();
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.expect("a connection");
                let far = TcpStream::connect(publisher).expect("the publisher listens");
                let both = [Chunks::default(), Chunks::default()];
                list.lock().expect("no panic").push(both.clone());
                let ends = |stream: &TcpStream| stream.try_clone().expect("a second handle");
                let [up, down] = both;
                let (from, to) = (ends(&near), ends(&far));
                thread::spawn(move || pass(from, to, &up));
                thread::spawn(move || pass(far, near, &down));
            }
        });
        Self {
            address,
            connections,
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, chunks: &Chunks) {
    let mut buffer = [0; 16_000];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        chunks
            .lock()
            .expect("no panic")
            .push(buffer[..len].to_vec());
        if to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// The subscriber loses datagrams, so the connections carry NACKs and repairs.
#[test]
fn dissector_agrees_on_a_live_session() {
    let Some(tshark) = Tshark::find() else { return };
    let group = free_group();
    let listener = Listener::start(group);
    let publisher = Publisher::start(&one_channel(&[group], simulated(1_000, 5_000, 1)));
    let proxy = Proxy::start(publisher.control);
    let faults = FaultConfig {
        seed: 3,
        drop: 0.05,
        ..FaultConfig::default()
    };
    let builder = Subscriber::builder(proxy.address.to_string()).seed(1);
    let mut followers = [Follower::new(
        builder.name("seen").channel("all").faults(faults),
    )];
    drive_to_end(&mut followers);
    drop(followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");

    let mut recording = Recording::default();
    let heard = listener.finish();
    heard
        .iter()
        .for_each(|datagram| recording.datagram(datagram));
    let connections = proxy.connections.lock().expect("no panic");
    for (port, [up, down]) in (40_000..).zip(connections.iter()) {
        for (chunks, from, to) in [(up, port, CONTROL), (down, CONTROL, port)] {
            let chunks = chunks.lock().expect("no panic");
            let lens: Vec<_> = chunks.iter().map(Vec::len).collect();
            recording.stream(from, to, &chunks.concat(), &lens);
        }
    }
    let shown = recording.assert_shown(&tshark);
    let seen = |name: &str| shown.iter().filter(|field| field.name == name).count() as u64;
    // On a busy machine the kernel may drop datagrams before the listener reads them.
    assert!(seen("tickcast.record.number") > 0, "records");
    assert!(seen("tickcast_control.class") > 0, "NACKs");
    assert!(seen("tickcast_control.answered_at") > 0, "STATUS");
    assert!(seen("tickcast.bad_crc") == 0 && seen("tickcast.unreadable") == 0);
}
