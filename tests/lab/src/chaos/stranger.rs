//! Foreign traffic, until the process is killed:
//!
//! - noise in the publisher's groups;
//! - copies of the publisher's own datagrams, some with flipped bits;
//! - connections that send nothing, half a message, or nonsense.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket};
use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, Socket, Type};

use tickcast_tools::exit::{Exit, ToolError};

/// Maximum number of open connections.
const CONNECTIONS_MAX: usize = 32;
/// A longer datagram needs more than one frame.
const DATAGRAM_MAX: usize = 1_472;

/// Targets of the foreign traffic.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) own: Ipv4Addr,
    pub(crate) groups: Vec<SocketAddrV4>,
    pub(crate) control: SocketAddr,
    pub(crate) seed: u64,
}

/// Sends foreign traffic until it is killed.
///
/// # Errors
/// [`ToolError::Host`] if the sockets can't be opened.
pub(crate) fn run(task: &Task) -> Result<Exit, ToolError> {
    let open = || -> io::Result<Vec<UdpSocket>> {
        task.groups
            .iter()
            .map(|group| member(task.own, *group))
            .collect()
    };
    let sockets = open().map_err(|source| ToolError::Host {
        what: "open a stranger's sockets",
        source,
    })?;
    let mut random = ChaCha8Rng::seed_from_u64(task.seed);
    let mut connections: Vec<TcpStream> = Vec::new();
    let mut bytes = [0; 2_048];
    loop {
        for (socket, group) in sockets.iter().zip(&task.groups) {
            let len = match socket.recv(&mut bytes) {
                // A datagram of the publisher is sent again, whole or damaged.
                Ok(len) => {
                    if random.random_bool(0.5) {
                        bytes[random.random_range(0..len.max(1))] ^= 1 << random.random_range(0..8);
                    }
                    len
                }
                Err(_) => {
                    let len = random.random_range(0..DATAGRAM_MAX);
                    random.fill_bytes(&mut bytes[..len]);
                    len
                }
            };
            // Errors of a network that is down, or of a full queue, do not matter here.
            let _ = socket.send_to(&bytes[..len], group);
        }
        if random.random_bool(0.05) {
            connect(task, &mut random, &mut connections);
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn member(own: Ipv4Addr, group: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::V4(group).into())?;
    socket.join_multicast_v4(group.ip(), &own)?;
    socket.set_multicast_if_v4(&own)?;
    socket.set_multicast_ttl_v4(1)?;
    socket.set_multicast_loop_v4(false)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Opens one more connection, and writes to the open ones.
fn connect(task: &Task, random: &mut ChaCha8Rng, connections: &mut Vec<TcpStream>) {
    if connections.len() >= CONNECTIONS_MAX {
        connections.swap_remove(random.random_range(0..CONNECTIONS_MAX));
    }
    let patience = Duration::from_millis(100);
    if let Ok(stream) = TcpStream::connect_timeout(&task.control, patience) {
        let _ = stream.set_nonblocking(true);
        connections.push(stream);
    }
    let mut nonsense = [0; 64];
    random.fill_bytes(&mut nonsense);
    let words: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x10\0\0\0\x01\0\0\0{\"ver",
        b"",
        &nonsense,
    ];
    for stream in connections {
        // A write to a connection that the publisher closed fails, as intended.
        let _ = stream.write(words[random.random_range(0..words.len())]);
    }
}
