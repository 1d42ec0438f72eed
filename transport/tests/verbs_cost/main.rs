//! The cost of a datagram in user space on a real device: instructions, system calls, allocations.
//!
//! The program runs itself and steps through its marked parts, one instruction at a time
//! (`verbs_cost/tracer.rs`), so the counts are exact and equal in every run. They do not include the
//! kernel. docs/RDMA.md has the table that they are compared with. The tests need a device (see
//! tests/verbs/main.rs) and an optimised build, because other counts mean nothing.

#![cfg(target_arch = "x86_64")]

mod tracer;

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::verbs::{
    Device, VerbsFanOut, VerbsFanOutConfig, VerbsReceiveLine, VerbsReceiver, VerbsReceiverConfig,
    VerbsSendLine, VerbsSender,
};
use tickcast_transport::{FanOut, Receive, Slots};

use self::tracer::{Cost, mark};

/// Returns the address of the device's interface.
fn address() -> Ipv4Addr {
    let address = std::env::var("TICKCAST_RDMA_ADDRESS");
    address.map_or(Ipv4Addr::new(10, 1, 0, 1), |text| text.parse().unwrap())
}

const SLOT_LEN: usize = 1024;
const SLOTS: u64 = 1024;
/// Set in the environment of the traced program.
const TRACED: &str = "TICKCAST_VERBS_COST_TRACED";

/// A measured case: `at_once` datagrams of `len` bytes, `rounds` times. Each has two parts: post and
/// completion (the case's number times two), and receive (that plus one).
struct Case {
    name: &'static str,
    at_once: u64,
    rounds: u64,
    len: usize,
}

const CASES: [Case; 4] = [
    Case {
        name: "one, within the request",
        at_once: 1,
        rounds: 8,
        len: 128,
    },
    Case {
        name: "one, from the ring",
        at_once: 1,
        rounds: 8,
        len: SLOT_LEN,
    },
    Case {
        name: "16 at once, within the request",
        at_once: 16,
        rounds: 1,
        len: 128,
    },
    Case {
        name: "16 at once, from the ring",
        at_once: 16,
        rounds: 1,
        len: SLOT_LEN,
    },
];

/// A ring of zeros, with the case's slot length.
struct Zeros {
    memory: Arc<dyn RingMemory>,
    len: usize,
}

impl Slots for Zeros {
    fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        let at = (sequence.0 % SLOTS) as usize * SLOT_LEN;
        // SAFETY: within the mapping, which nobody writes.
        Some(unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(at), self.len) })
    }
}

/// A fan-out and a receiver on one device.
struct Pair {
    fan_out: VerbsFanOut,
    receiver: VerbsReceiver,
    device: Arc<Device>,
    slots: Zeros,
    next: u64,
}

impl Pair {
    fn open() -> Self {
        let group = Ipv4Addr::new(239, 9, 200, 1);
        let memory: Arc<dyn RingMemory> =
            Arc::new(SharedMapping::memfd("ring", SLOT_LEN * SLOTS as usize).unwrap());
        let fan_out = VerbsFanOutConfig {
            lines: vec![VerbsSendLine {
                group,
                interface: Interface::Address(address()),
            }],
            datagram_len_max: SLOT_LEN,
            q_key: 0x1234_5678,
            traffic_class: 0,
            service_level: None,
            send_depth: 256,
            signal_every: 8,
            inline_bytes: 200,
            pace: None,
        };
        let receiver = VerbsReceiverConfig {
            lines: vec![VerbsReceiveLine {
                group,
                interface: Interface::Address(address()),
                senders: vec![VerbsSender {
                    address: address(),
                    gid: address().to_ipv6_mapped(),
                }],
            }],
            datagram_len_max: SLOT_LEN,
            q_key: 0x1234_5678,
            depth: 256,
            batch: 64,
            // Like a receiver that polls all the time.
            waitable: false,
        };
        let mut receiver = VerbsReceiver::open(&receiver).unwrap();
        let begun = Instant::now();
        while !receiver.is_joined() {
            receiver.poll(Nanos(7), &mut |_| {}).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(120), "never joined");
            std::thread::sleep(Duration::from_millis(1));
        }
        let fan_out = VerbsFanOut::open(&fan_out, &memory).unwrap();
        Self {
            device: Arc::clone(&fan_out.devices()[0]),
            fan_out,
            receiver,
            slots: Zeros {
                memory,
                len: SLOT_LEN,
            },
            next: 1,
        }
    }

    /// Runs one round of a case. Calls `around` with each measured part and its number.
    fn round(&mut self, number: u64, case: &Case, around: &mut dyn FnMut(u64, &mut dyn FnMut())) {
        self.slots.len = case.len;
        let last = Sequence(self.next + case.at_once - 1);
        let range = SequenceRange::new(Sequence(self.next), last).unwrap();
        self.next += case.at_once;
        let before = self.arrived();
        around(number * 2, &mut || {
            let posted = self.fan_out.post(&self.slots, range).unwrap();
            assert_eq!(posted.last, Some(last));
        });
        // Wait until all datagrams have arrived, so that no poll finds only a part of them.
        let begun = Instant::now();
        while self.arrived() < before + case.at_once {
            assert!(begun.elapsed() < Duration::from_secs(120), "lost");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(3));
        around(number * 2, &mut || {
            self.fan_out.completed();
        });
        let mut bytes = 0;
        around(number * 2 + 1, &mut || {
            let taken = self.receiver.poll(Nanos(7), &mut |received| {
                bytes += received.bytes.len();
            });
            assert_eq!(taken.unwrap(), case.at_once as usize);
        });
        assert_eq!(bytes, case.len * case.at_once as usize);
    }

    /// Returns the number of packets that the device has received.
    fn arrived(&self) -> u64 {
        self.device.hardware_counter("rcvd_pkts").unwrap()
    }
}

/// Runs as the traced program. One-time work is done first; allocations are counted separately.
fn be_traced() {
    let mut pair = Pair::open();
    for (number, case) in (0..).zip(&CASES) {
        pair.round(number, case, &mut |_, part| part());
    }
    for (number, case) in (0..).zip(&CASES) {
        for _ in 0..case.rounds {
            pair.round(number, case, &mut |_, part| {
                let counted = allocation_counter::measure(part);
                assert_eq!(counted.count_total, 0, "{}: it allocates", case.name);
            });
        }
    }
    // Proves that allocations are counted.
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![0u8; 64])));
    assert_eq!(counted.count_total, 1);
    tracer::begin();
    for (number, case) in (0..).zip(&CASES) {
        for _ in 0..case.rounds {
            pair.round(number, case, &mut |part_number, part| {
                mark(part_number);
                part();
                mark(part_number);
            });
        }
    }
    // Proves that the tracer counts: a system call of our own.
    mark(PROOF);
    std::thread::yield_now();
    mark(PROOF);
}

/// The part that deliberately makes a system call of its own.
const PROOF: u64 = CASES.len() as u64 * 2;

/// Runs the program and steps through it.
fn measure() -> Vec<Cost> {
    let mut program = Command::new(std::env::current_exe().unwrap());
    let name = "datagram_costs_match_table_without_system_calls";
    program.args([name, "--exact", "--ignored", "--nocapture", "-q"]);
    tracer::trace(program.env(TRACED, "1"), PROOF as usize + 1)
}

/// Returns the instructions per datagram that the row of the table in docs/RDMA.md allows.
fn committed(row: &str) -> Option<[f64; 3]> {
    let text = include_str!("../../../docs/RDMA.md");
    let line = text.lines().find_map(|line| {
        let rest = line.strip_prefix("| ")?.strip_prefix(row)?;
        rest.strip_prefix(" | ")
    })?;
    let mut cells = line.split('|').map(|cell| cell.trim().parse());
    Some(std::array::from_fn(|_| cells.next().unwrap().unwrap()))
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn datagram_costs_match_table_without_system_calls() {
    if std::env::var(TRACED).is_ok() {
        return be_traced();
    }
    let (first, second) = (measure(), measure());
    assert_eq!(first[PROOF as usize].own_calls, 1, "a call was overlooked");
    let mut wrong = Vec::new();
    for (number, case) in CASES.iter().enumerate() {
        for (part, what) in ["send", "receive"].into_iter().enumerate() {
            let row = format!("{what} {}", case.name);
            let datagrams = (case.at_once * case.rounds) as f64;
            let at = number * 2 + part;
            let per = |cost: &Cost| cost.instructions().map(|n| n as f64 / datagrams);
            let (found, again) = (per(&first[at]), per(&second[at]));
            let calls = first[at].library_calls as f64 / datagrams;
            let [own, library, libc] = found;
            println!("| {row} | {own:.1} | {library:.1} | {libc:.1} | {calls:.3} |");
            // Soft-RoCE needs a call for each post. No other call is made, and none to receive.
            let doorbell = (part == 0).then_some(libc::SYS_write as u64);
            if first[at]
                .library_call
                .is_some_and(|call| Some(call) != doorbell)
            {
                wrong.push(format!("{row}: an unknown call: {:?}", first[at]));
            }
            if first[at].own_calls + second[at].own_calls > 0 {
                wrong.push(format!("{row}: a system call of our own: {:?}", first[at]));
            }
            if !close(found, again, 1.01) || !close(again, found, 1.01) {
                wrong.push(format!("{row}: {again:?} when measured again"));
            }
            match committed(&row) {
                // The other two parts depend on the host, by its versions of rdma-core and the C library.
                Some(bound) if own <= bound[0] * 1.03 => {}
                bound => wrong.push(format!("{row}: {found:?}, where {bound:?} is allowed")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns whether no count differs from the other by more than this factor.
fn close(one: [f64; 3], other: [f64; 3], factor: f64) -> bool {
    one.iter()
        .zip(other)
        .all(|(one, other)| *one <= other * factor)
}
