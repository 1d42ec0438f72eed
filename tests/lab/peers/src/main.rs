//! The peers that tickcast is measured beside, in a program of their own. Building the product thus needs
//! neither their libraries nor the compilers that those need. `lab bench` starts this program as it starts
//! its own contenders. All contenders share the code that publishes, checks and times.

mod aeron;
mod count;
mod iceoryx;

#[path = "../../src/bench/protocol.rs"]
mod protocol;
#[path = "../../src/bench/side.rs"]
mod side;

use std::process::ExitCode;

use protocol::{Outcome, Role, Task, Word};
use side::{Carry, Desk};

fn main() -> ExitCode {
    let argument = std::env::args().nth(1).unwrap_or_default();
    if argument == "--stage" {
        let contender = std::env::args().nth(2).unwrap_or_default();
        let counted = count::count(&contender);
        if let Err(failure) = &counted {
            eprintln!("{}", failure.0);
        }
        std::process::exit(if counted.is_ok() { 0 } else { 4 });
    }
    let task: Task = match serde_json::from_str(&argument) {
        Ok(task) => task,
        Err(error) => {
            eprintln!(
                "the task can't be read: {error}; this program is started by `lab bench`"
            );
            return ExitCode::from(2);
        }
    };
    let desk = Desk::open(clock);
    let done = take_part(&desk, &task);
    if let Err(failure) = &done {
        desk.send(&Word::Failed(failure.0.clone()));
    }
    // Exit at once, without waiting for the libraries' own threads and handlers.
    std::process::exit(if done.is_ok() { 0 } else { 4 });
}

fn take_part(desk: &Desk, task: &Task) -> Outcome<()> {
    if let Some(id) = task.core
        && !core_affinity::set_for_current(core_affinity::CoreId { id })
    {
        return Err(format!("can't be pinned to core {id}").into());
    }
    if task.contender == "iceoryx2" {
        return match task.role {
            Role::Send => side::send(desk, task, &mut iceoryx::Sender::open(task, 0)?),
            Role::Receive => side::receive(desk, task, &mut iceoryx::Receiver::open(task, 0)?),
            Role::Ping => {
                let mut sender = iceoryx::Sender::open(task, 0)?;
                let mut receiver = iceoryx::Receiver::open(task, 1)?;
                desk.send(&Word::Ready(String::new()));
                desk.connect(|| Ok(()))?;
                side::ping(desk, task, &mut sender, &mut receiver)
            }
            Role::Echo => {
                let mut sender = iceoryx::Sender::open(task, 1)?;
                let mut receiver = iceoryx::Receiver::open(task, 0)?;
                side::echo(desk, &mut sender, &mut receiver)
            }
        };
    }
    let host = aeron::Host::start(task)?;
    match task.role {
        Role::Send => side::send(desk, task, &mut aeron::Sender::open(&host, task, 0)?),
        Role::Receive => side::receive(desk, task, &mut aeron::Receiver::open(&host, task, 0)?),
        Role::Ping => {
            let mut sender = aeron::Sender::open(&host, task, 0)?;
            let mut receiver = aeron::Receiver::open(&host, task, 1)?;
            desk.send(&Word::Ready(String::new()));
            desk.connect(|| sender.drive())?;
            side::ping(desk, task, &mut sender, &mut receiver)
        }
        Role::Echo => {
            let mut sender = aeron::Sender::open(&host, task, 1)?;
            let mut receiver = aeron::Receiver::open(&host, task, 0)?;
            side::echo(desk, &mut sender, &mut receiver)
        }
    }
}

/// Returns the time of the monotonic clock, which all processes of a host share.
fn clock() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid `timespec` to write to, and this clock always exists. Exercised by
    // `built_peer_is_measured_and_absent_one_is_named`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
