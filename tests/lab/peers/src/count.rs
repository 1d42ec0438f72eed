//! A peer's part in `counts --peer`: ticks go from its publisher to its subscriber in steps, on one thread.
//! No thread waits, so each counted instruction is a cost of carrying ticks.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use crate::aeron::{Host, Receiver, Sender};
use crate::protocol::{Among, Load, Outcome, Role, Task, Tick};
use crate::side::{Carry, Take};

/// Ticks that are published before they are sent: 64 of tickcast's datagrams.
const STEP: u64 = 1_600;
const WARM_UP_STEPS: usize = 16;
const COUNTED_STEPS: usize = 16;

/// Both sides, as in the bench: each has a driver of its own.
struct Peers {
    sender: Sender,
    receiver: Receiver,
    sent: u64,
    received: u64,
}

impl Peers {
    fn step(&mut self) -> Outcome<u64> {
        let until = self.sent + STEP;
        while self.received < until {
            while self.sent < until {
                let tick = Tick {
                    number: self.sent + 1,
                    at: 0,
                };
                if !self.sender.publish(tick)? {
                    break;
                }
                self.sent += 1;
            }
            self.sender.drive()?;
            let received = &mut self.received;
            self.receiver.poll(|tick, _| {
                *received += u64::from(tick.is_some_and(|tick| tick.number == *received + 1));
            })?;
        }
        Ok(STEP)
    }
}

/// Carries ticks with this contender, and prints their number.
pub(crate) fn count(contender: &str) -> Outcome<()> {
    let port = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
    let [a, b, ..] = std::process::id().to_le_bytes();
    // Aeron needs an odd data address.
    let group = SocketAddrV4::new(Ipv4Addr::new(239, 255, a, b | 1), port);
    let folder = std::env::temp_dir().join(format!("tickcast-count-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let task = |role| Task {
        contender: contender.to_owned(),
        role,
        load: Load::Flood {
            for_ms: 0,
            ticks_max: 0,
            window: 0,
        },
        interface: Ipv4Addr::LOCALHOST,
        groups: [group; 2],
        spread: Among::ONE,
        mtu: 1_500,
        receivers: 1,
        index: 0,
        core: None,
        connect: None,
        loss: None,
        folder: folder.clone(),
    };
    let (send, receive) = (task(Role::Send), task(Role::Receive));
    let hosts = (Host::start(&send)?, Host::start(&receive)?);
    let mut receiver = Receiver::open(&hosts.1, &receive, 0)?;
    let mut sender = Sender::open(&hosts.0, &send, 0)?;
    while !sender.is_joined() || !receiver.is_joined() {
        sender.drive()?;
        receiver.poll(|_, _| ())?;
    }
    let mut peers = Peers {
        sender,
        receiver,
        sent: 0,
        received: 0,
    };
    for _ in 0..WARM_UP_STEPS {
        peers.step()?;
    }
    let mut ticks = 0;
    for _ in 0..COUNTED_STEPS {
        ticks += measured(&mut peers)?;
    }
    println!("{ticks}");
    let _ = std::fs::remove_dir_all(folder);
    Ok(())
}

/// Carries the ticks. Callgrind counts instructions in here only.
#[inline(never)]
fn measured(peers: &mut Peers) -> Outcome<u64> {
    peers.step()
}
