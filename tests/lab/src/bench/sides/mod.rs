//! This workspace's own contenders: tickcast over UDP with and without runs of datagrams and over
//! shared memory, and the kernel alone.

mod crowd;
mod feed;
mod floor;
mod tickcast;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tickcast_transport::host::gauges::SharedGauges;
use tickcast_transport::host::pin::{Core, pin_to};

use super::protocol::{Load, Outcome, Role, Task, Word};
use super::side::{self, Desk};
pub(crate) use feed::{has_capture, no_capture};

/// Contenders of this program.
pub(crate) const OWN: [&str; 5] = [
    "tickcast",
    "tickcast-no-gso",
    "tickcast-shm",
    "floor",
    "floor-no-gso",
];

/// Returns the time of the monotonic clock, read in the same way as in the peers' program.
fn clock() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Carries out the task. Returns whether it succeeded, and reports a failure to the bench.
pub(crate) fn run(task: &Task) -> bool {
    let desk = Desk::open(clock);
    let done = take_part(&desk, task);
    if let Err(failure) = &done {
        desk.send(&Word::Failed(failure.0.clone()));
    }
    done.is_ok()
}

fn take_part(desk: &Desk, task: &Task) -> Outcome<()> {
    if let Some(core) = task.core {
        pin_to(Core(core))?;
    }
    if task.contender.starts_with("floor") {
        return floor_part(desk, task);
    }
    match task.role {
        Role::Send => {
            let mut publisher = tickcast::Publisher::open(task, 0)?;
            match task.load {
                Load::Feed { .. } => feed::publish(desk, task.load, &mut publisher),
                _ => side::send(desk, task, &mut publisher),
            }
        }
        Role::Receive => {
            let address = task.connect.as_deref().unwrap_or_default();
            if task.spread.subscribers > 1 {
                let mut crowd = tickcast::Follower::join_crowd(task, address)?;
                return side::receive(desk, task, &mut crowd);
            }
            let mut subscriber = tickcast::Follower::join(task, address)?;
            side::receive(desk, task, &mut subscriber)
        }
        Role::Ping => {
            let mut publisher = tickcast::Publisher::open(task, 0)?;
            desk.send(&Word::Ready(side::Carry::address(&publisher)));
            let address = desk.connect(|| side::Carry::drive(&mut publisher))?;
            let mut subscriber = tickcast::Follower::join(task, &address)?;
            side::ping(desk, task, &mut publisher, &mut subscriber)
        }
        Role::Echo => {
            let mut publisher = tickcast::Publisher::open(task, 1)?;
            let address = task.connect.as_deref().unwrap_or_default();
            let mut subscriber = tickcast::Follower::join(task, address)?;
            side::echo(desk, &mut publisher, &mut subscriber)
        }
    }
}

fn floor_part(desk: &Desk, task: &Task) -> Outcome<()> {
    match task.role {
        Role::Send => side::send(desk, task, &mut floor::Sender::open(task, 0)?),
        Role::Receive => side::receive(desk, task, &mut floor::Receiver::open(task, 0)?),
        Role::Ping => {
            let mut sender = floor::Sender::open(task, 0)?;
            let mut receiver = floor::Receiver::open(task, 1)?;
            desk.send(&Word::Ready(String::new()));
            desk.connect(|| Ok(()))?;
            side::ping(desk, task, &mut sender, &mut receiver)
        }
        Role::Echo => {
            let mut sender = floor::Sender::open(task, 1)?;
            let mut receiver = floor::Receiver::open(task, 0)?;
            side::echo(desk, &mut sender, &mut receiver)
        }
    }
}

/// Opens the gauges of the receivers' progress.
fn gauges(task: &Task) -> Outcome<SharedGauges> {
    Ok(SharedGauges::open(
        &task.folder.join("received"),
        task.receivers,
    )?)
}

/// Requested socket buffer size, for every contender.
const SOCKET_BYTES: usize = 4 << 20;
/// How long a measured session may take to end.
const DRAIN: Duration = Duration::from_millis(100);
