//! Measures the gain of runs of datagrams as one buffer (GSO, GRO) over UDP multicast. The contenders
//! take turns in one run, so the result is the ratio between them and does not depend on the machine.
//!
//! `cargo bench -p tickcast-transport --bench udp -- [--veth] [--bare] [--rounds N] [--datagrams N]`
//!
//! One thread seals datagrams of 25 records of 56 bytes and posts them in steps of 64, as a publisher
//! does. Another polls, checks each CRC and reads each record. At most 1024 datagrams are in flight. With
//! `--bare` the datagrams are sealed in advance and only counted on arrival, which measures the transport
//! alone. `--veth` sends from one network namespace to another over a veth pair of MTU 1500 (needs root);
//! otherwise loopback is used.
//!
//! A datagram's cost is the CPU time of the thread in calls that moved datagrams. On the sending side
//! these are `seal` and `post`, including the network stack, whose cost is the sender's. On the receiving
//! side it is `poll`, including all processing of a datagram. Waiting costs nothing here and shows only
//! in the rate.

use std::error::Error;
use std::fs::File;
use std::net::SocketAddrV4;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use tickcast_reliability::record::{MboMsg, RecordBatch, RecordHeader, WireRecord};
use tickcast_reliability::ring::{Geometry, RingIdentity, RingWriter, Seal};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, Nanos, RecordNumber, Sequence, SequenceRange, SourceId,
    SourcePosition,
};
use tickcast_reliability::wire::{CrcVerdict, Datagram, Kind};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::udp::{
    UdpFanOut, UdpFanOutConfig, UdpReceiveLine, UdpReceiver, UdpReceiverConfig, UdpSendLine,
};
use tickcast_transport::{FanOut, Receive};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const SLOT_LEN: u32 = 1472;
const SLOTS: u64 = 4096;
const RECORDS: u64 = 25;
/// Datagrams of a post, as a publisher's.
const STEP: u64 = 64;
/// Datagrams that may be in flight.
const WINDOW: u64 = 1024;
/// A datagram that has not arrived after this time is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// The contenders: name, whether runs are sent, whether they are received.
const CONTENDERS: [(&str, bool, bool); 3] = [
    ("one by one", false, false),
    ("gso alone", true, false),
    ("gso and gro", true, true),
];

struct Options {
    veth: bool,
    bare: bool,
    rounds: usize,
    datagrams: u64,
}

/// One turn of one contender.
#[derive(Clone, Copy, Default)]
struct Turn {
    datagrams_per_s: f64,
    lost: u64,
    seal_ns: f64,
    post_ns: f64,
    poll_ns: f64,
    sends_per_datagram: f64,
    receives_per_datagram: f64,
}

fn main() -> Outcome<()> {
    let options = options()?;
    let ends = if options.veth {
        Ends::namespaces()?
    } else {
        Ends::loopback()
    };
    let mut turns = CONTENDERS.map(|_| Vec::new());
    for round in 0..options.rounds {
        for (turns, contender) in turns.iter_mut().zip(CONTENDERS) {
            let turn = take_turn(&options, &ends, contender)?;
            eprintln!(
                "{}/{} {}: {:.3} M datagrams/s, {} lost",
                round + 1,
                options.rounds,
                contender.0,
                turn.datagrams_per_s / 1e6,
                turn.lost
            );
            turns.push(turn);
        }
    }
    report(&turns);
    Ok(())
}

fn options() -> Outcome<Options> {
    let mut options = Options {
        veth: false,
        bare: false,
        rounds: 5,
        datagrams: 300_000,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number =
            || -> Outcome<u64> { Ok(args.next().ok_or("a number is missing")?.parse()?) };
        match arg.as_str() {
            "--veth" => options.veth = true,
            "--bare" => options.bare = true,
            "--rounds" => options.rounds = number()? as usize,
            "--datagrams" => options.datagrams = number()?.next_multiple_of(STEP),
            // Passed by cargo.
            "--bench" => {}
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    Ok(options)
}

fn report(turns: &[Vec<Turn>; CONTENDERS.len()]) {
    let median = |turns: &[Turn], of: fn(&Turn) -> f64| {
        let mut all: Vec<f64> = turns.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    println!("medians; CPU time per datagram in ns");
    println!(
        "{:<12} {:>10} {:>10} {:>6} {:>7} {:>7} {:>7} {:>8} {:>8} {:>6}",
        "", "Mdgram/s", "Mrecord/s", "ratio", "seal", "post", "poll", "sends", "receives", "lost"
    );
    let first = median(&turns[0], |turn| turn.datagrams_per_s);
    for (turns, (name, ..)) in turns.iter().zip(CONTENDERS) {
        let rate = median(turns, |turn| turn.datagrams_per_s);
        println!(
            "{name:<12} {:>10.3} {:>10.1} {:>6.2} {:>7.0} {:>7.0} {:>7.0} {:>8.4} {:>8.4} {:>6}",
            rate / 1e6,
            rate * RECORDS as f64 / 1e6,
            rate / first,
            median(turns, |turn| turn.seal_ns),
            median(turns, |turn| turn.post_ns),
            median(turns, |turn| turn.poll_ns),
            median(turns, |turn| turn.sends_per_datagram),
            median(turns, |turn| turn.receives_per_datagram),
            turns.iter().map(|turn| turn.lost).sum::<u64>(),
        );
    }
}

/// State shared by both sides of a turn.
#[derive(Default)]
struct Shared {
    received: AtomicU64,
    over: AtomicBool,
}

fn take_turn(options: &Options, ends: &Ends, (_, gso, gro): (&str, bool, bool)) -> Outcome<Turn> {
    let receiver = ends.at(1, |interface| {
        UdpReceiver::open(&UdpReceiverConfig {
            lines: vec![UdpReceiveLine {
                group: group(),
                interface,
                senders: Vec::new(),
            }],
            datagram_len_max: SLOT_LEN as usize,
            receive_buffer_bytes: Some(4 << 20),
            source_specific: false,
            batch: 64,
            busy_poll_us: None,
            gro,
        })
    })?;
    let mut fan_out = ends.at(0, |interface| {
        UdpFanOut::open(&UdpFanOutConfig {
            lines: vec![UdpSendLine {
                group: group(),
                interface,
            }],
            ttl: u8::from(options.veth),
            send_buffer_bytes: Some(4 << 20),
            datagram_len_max: SLOT_LEN as usize,
            gso,
        })
    })?;
    let shared = Arc::new(Shared::default());
    let receiving = thread::spawn({
        let (shared, bare) = (Arc::clone(&shared), options.bare);
        move || receive(receiver, &shared, bare)
    });
    let begun = Instant::now();
    let sent = send(&mut fan_out, options, &shared);
    let took = begun.elapsed();
    shared.over.store(true, Relaxed);
    let (poll_cpu, polls) = receiving.join().map_err(|_| "the receiver panicked")??;
    let (seal_cpu, post_cpu) = sent?;
    let (received, all) = (shared.received.load(Relaxed), options.datagrams);
    let each = |cpu: Duration, count: u64| cpu.as_nanos() as f64 / count as f64;
    Ok(Turn {
        datagrams_per_s: received as f64 / took.as_secs_f64(),
        lost: all - received,
        seal_ns: each(seal_cpu, all),
        post_ns: each(post_cpu, all),
        poll_ns: each(poll_cpu, received),
        sends_per_datagram: fan_out.stats()[0].batches as f64 / all as f64,
        receives_per_datagram: polls as f64 / received as f64,
    })
}

/// Sends all datagrams. Returns the CPU time of sealing them, and of posting them.
fn send(
    fan_out: &mut UdpFanOut,
    options: &Options,
    shared: &Shared,
) -> Outcome<(Duration, Duration)> {
    let mut ring = ring()?;
    let mut records = RecordBatch::with_capacity(SLOT_LEN as usize);
    let (mut seal_cpu, mut post_cpu) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..if options.bare { WINDOW } else { 0 } {
        seal(&mut ring, &mut records)?;
    }
    let (mut sent, mut lost) = (0, 0);
    while sent < options.datagrams {
        wait(shared, sent, &mut lost, WINDOW - STEP);
        let first = if options.bare {
            Sequence(1 + sent % WINDOW)
        } else {
            let begun = cpu_time();
            for _ in 0..STEP {
                seal(&mut ring, &mut records)?;
            }
            seal_cpu += cpu_time() - begun;
            ring.sealed().minus(STEP - 1)
        };
        let begun = cpu_time();
        let last = first.plus(STEP - 1);
        let mut range = SequenceRange { first, last };
        while let Some(taken) = fan_out
            .post(&ring, range)?
            .last
            .or(Some(range.first.previous()))
        {
            if taken == last {
                break;
            }
            range.first = taken.next();
        }
        post_cpu += cpu_time() - begun;
        sent += STEP;
    }
    wait(shared, sent, &mut lost, 0);
    Ok((seal_cpu, post_cpu))
}

/// Waits until at most `in_flight` datagrams are in flight. Datagrams that do not arrive in time are
/// lost.
fn wait(shared: &Shared, sent: u64, lost: &mut u64, in_flight: u64) {
    let (mut seen, mut since) = (u64::MAX, Instant::now());
    loop {
        let received = shared.received.load(Relaxed);
        let out = sent.saturating_sub(received + *lost);
        if out <= in_flight {
            return;
        }
        if received != seen {
            (seen, since) = (received, Instant::now());
        } else if since.elapsed() > LOST_AFTER {
            *lost += out;
            return;
        }
        thread::yield_now();
    }
}

fn seal(ring: &mut RingWriter, records: &mut RecordBatch) -> Outcome<()> {
    let sequence = ring.open()?;
    records.clear();
    for n in 0..RECORDS {
        records.push(&MboMsg {
            hd: RecordHeader::new::<MboMsg>(MboMsg::RTYPE, 1, 1, sequence.0),
            order_id: sequence.0 * RECORDS + n,
            price: 1_000_000_000,
            size: 100,
            ..MboMsg::default()
        })?;
    }
    ring.append(records.bytes())?;
    ring.seal(Seal {
        kind: Kind::Data,
        count: RECORDS as u16,
        source: SourceId(1),
        source_position: SourcePosition(sequence.0),
        sent_at: Nanos(sequence.0),
        flags: 0,
    })?;
    Ok(())
}

/// Receives until the turn ends. Returns the CPU time of polls that returned datagrams, and their number.
fn receive(mut receiver: UdpReceiver, shared: &Shared, bare: bool) -> Outcome<(Duration, u64)> {
    let (mut cpu, mut checksum) = (Duration::ZERO, 0_u64);
    let mut wrong = 0;
    while !shared.over.load(Relaxed) {
        let begun = cpu_time();
        let count = receiver.poll(Nanos(1), &mut |received| {
            if bare {
                return;
            }
            let read = Datagram::parse(received.bytes).ok();
            let read = read.filter(|datagram| datagram.verdict() == CrcVerdict::Good);
            let Some(Ok(records)) = read.map(|datagram| datagram.records()) else {
                wrong += 1;
                return;
            };
            for record in records {
                let order = record.get::<MboMsg>().map_or(0, |order| order.order_id);
                checksum = checksum.wrapping_add(order);
            }
        })?;
        if count > 0 {
            cpu += cpu_time() - begun;
            shared.received.fetch_add(count as u64, Relaxed);
        } else {
            thread::yield_now();
        }
    }
    std::hint::black_box(checksum);
    if wrong > 0 {
        return Err(format!("{wrong} datagrams were not as they were sent").into());
    }
    Ok((cpu, receiver.stats()[0].batches))
}

fn ring() -> Outcome<RingWriter> {
    let geometry = Geometry::new(SLOT_LEN, SLOTS)?;
    let memory = SharedMapping::memfd("bench", geometry.bytes())?;
    let identity = RingIdentity {
        channel: ChannelId(1),
        epoch: Epoch(1),
        config_hash: ConfigHash(1),
        boot_id: [1; 16],
        fan_outs: 1,
        first_sequence: Sequence::FIRST,
        first_record: RecordNumber::FIRST,
    };
    Ok(RingWriter::create(Arc::new(memory), geometry, identity)?)
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec`, which lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn group() -> SocketAddrV4 {
    let pid = std::process::id().to_be_bytes();
    SocketAddrV4::new([239, 253, pid[2], pid[3]].into(), 40_000)
}

/// Ends of the path: the sender's (0), and the receiver's (1).
struct Ends {
    /// Names of network namespaces, which are deleted on drop.
    namespaces: Vec<String>,
}

impl Ends {
    const fn loopback() -> Self {
        Self {
            namespaces: Vec::new(),
        }
    }

    fn namespaces() -> Outcome<Self> {
        let name = |end| format!("tickcast-bench-{}-{end}", std::process::id());
        let ends = Self {
            namespaces: vec![name(0), name(1)],
        };
        let [a, b] = &ends.namespaces[..] else {
            return Err("there are two ends".into());
        };
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        let veth = [
            "link", "add", "veth0", "mtu", "1500", "netns", a, "type", "veth",
        ];
        ip(&[
            &veth[..],
            &["peer", "name", "veth0", "mtu", "1500", "netns", b],
        ]
        .concat())?;
        for (end, address) in [(a, "10.99.0.1/24"), (b, "10.99.0.2/24")] {
            ip(&["-n", end, "addr", "add", address, "dev", "veth0"])?;
            ip(&["-n", end, "link", "set", "veth0", "up"])?;
        }
        Ok(ends)
    }

    /// Opens something at one end. A socket stays in the namespace where it was opened.
    fn at<T, E: Error + Send + Sync + 'static>(
        &self,
        end: usize,
        open: impl FnOnce(Interface) -> Result<T, E>,
    ) -> Outcome<T> {
        let Some(name) = self.namespaces.get(end) else {
            return Ok(open(Interface::default())?);
        };
        let home = File::open("/proc/thread-self/ns/net")?;
        enter(&File::open(format!("/var/run/netns/{name}"))?)?;
        let opened = open(Interface::Name("veth0".into()));
        enter(&home)?;
        Ok(opened?)
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        for name in &self.namespaces {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn enter(namespace: &File) -> Outcome<()> {
    // SAFETY: it takes a descriptor that is open, and touches no memory of ours.
    if unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(())
}

fn ip(args: &[&str]) -> Outcome<()> {
    if Command::new("ip").args(args).status()?.success() {
        return Ok(());
    }
    Err(format!("ip {} failed; --veth needs root", args.join(" ")).into())
}
