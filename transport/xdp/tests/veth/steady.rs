//! The cost of the steady state: no allocation, and no system call for a datagram.

use std::process::Command;

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Nanos;
use tickcast_transport_base::Receive;

use crate::network::{SENDER, Sender, enter};
use crate::support::{GROUP_A, GROUP_B, config, datagram, open, until};

const DATAGRAMS: u64 = 1_000;
/// Set in the process whose system calls are recorded.
const TRACED: &str = "TICKCAST_XDP_TRACED";

/// Receives waiting datagrams of two lines between two calls of `getppid`. Returns `None` if there is no
/// AF_XDP.
fn receive_waiting() -> Option<u64> {
    let mut config = config(&[GROUP_A, GROUP_B]);
    config.memory_bytes = 32 << 20;
    let mut receiver = open(&config)?;
    let sender = Sender::from(SENDER);
    // Read the kernel's counts, which are due at most once in 100 ms.
    receiver.poll(Nanos::from_secs(1), &mut |_| ()).unwrap();
    for n in 0..DATAGRAMS / 2 {
        sender.send(GROUP_A, &datagram(n, 64));
        sender.send(GROUP_B, &datagram(n, 64));
    }
    let wait = |line, receiver: &tickcast_xdp::XdpReceiver| {
        receiver.frames(LineId(line))[0].waiting >= DATAGRAMS as u32 / 2
    };
    until("all wait", || wait(0, &receiver) && wait(1, &receiver));
    let mut received = 0;
    let counted = allocation_counter::measure(|| {
        let _ = rustix::process::getppid();
        for n in 0..1_000 {
            let now = Nanos::from_secs(1).after(Nanos::from_us(n));
            received += receiver.poll(now, &mut |_| ()).unwrap() as u64;
        }
        let _ = rustix::process::getppid();
    });
    assert_eq!(counted.count_total, 0, "allocations");
    Some(received)
}

#[test]
fn poll_in_steady_state_allocates_nothing() {
    if enter(1)
        && let Some(received) = receive_waiting()
    {
        assert_eq!(received, DATAGRAMS);
    }
}

#[test]
fn poll_in_steady_state_makes_no_system_call() {
    if std::env::var_os(TRACED).is_some() {
        let received = if enter(1) { receive_waiting() } else { None };
        assert_eq!(received.unwrap_or(DATAGRAMS), DATAGRAMS);
        return;
    }
    let mut traced = Command::new("strace");
    traced.args(["-f", "-o", "|cat >&2", "--"]);
    traced.arg(std::env::current_exe().unwrap());
    traced.args([
        "steady::poll_in_steady_state_makes_no_system_call",
        "--exact",
    ]);
    let Ok(output) = traced.env(TRACED, "1").output() else {
        eprintln!("SKIPPED: strace is not here, so system calls are not counted");
        return;
    };
    let trace = String::from_utf8_lossy(&output.stderr);
    if trace.contains("PTRACE") || trace.contains("SKIPPED") {
        eprintln!("SKIPPED: {}", trace.lines().next().unwrap_or_default());
        return;
    }
    assert!(output.status.success(), "{trace}");
    let lines: Vec<_> = trace.lines().collect();
    let marks = lines
        .iter()
        .enumerate()
        .filter(|(_, it)| it.contains("getppid("));
    let marks: Vec<_> = marks.collect();
    let &[(first, of_thread), (last, _)] = &marks[..] else {
        panic!("{} marks", marks.len());
    };
    let thread = of_thread.split(' ').next().unwrap();
    let between = lines[first + 1..last]
        .iter()
        .filter(|it| it.starts_with(thread));
    let between: Vec<_> = between.collect();
    assert!(between.is_empty(), "{between:?}");
}
