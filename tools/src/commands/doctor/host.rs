//! Checks of the resources that every tickcast process needs: cores, memory, socket buffers, clock,
//! multicast.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use tickcast_subscriber::Interface;
use tickcast_transport::host::interface::ResolvedInterface;
use tickcast_transport::host::memory_limit::available_bytes;
use tickcast_transport::verbs::ports;

use super::Check;

/// Enough for a publisher and a few subscribers that each spin on a core.
const CORES_ENOUGH: usize = 4;
/// Below this, there is no room for two rings of the default size (92 MiB each).
const MEMORY_MIN_BYTES: u64 = 256 << 20;
/// Size of a receive buffer that a burst at 10 Gbit/s fills in 6 ms.
const BUFFER_ENOUGH_BYTES: u64 = 8 << 20;
/// Time limit for a datagram to a group to come back on the same host.
const PATIENCE: Duration = Duration::from_secs(2);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 255, 250);

/// Runs all checks except those of RDMA devices.
pub(super) fn look(interface: &Interface) -> Vec<Check> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let buffer = |name: &str| number(&format!("/proc/sys/net/core/{name}"));
    vec![
        cores_of(cores),
        memory_of(available_bytes()),
        shared_memory(),
        buffer_of("rmem_max", buffer("rmem_max")),
        buffer_of("wmem_max", buffer("wmem_max")),
        clock_of(fs::read_to_string(clock).unwrap_or_default().trim()),
        multicast(interface),
        rdma(),
    ]
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn cores_of(cores: usize) -> Check {
    if cores >= CORES_ENOUGH {
        return Check::ok(format!("cores: this process may use {cores}"));
    }
    Check::note(
        format!("cores: this process may use {cores}"),
        "threads that share a core wait for each other, which raises the latency",
        "wait by `yield` or `sleep` instead of `spin` (threads.idle, --idle), or use a host with more cores",
    )
}

fn memory_of(available: Option<u64>) -> Check {
    match available {
        None => Check::ok("memory: this system does not report the available memory"),
        Some(bytes) if bytes >= MEMORY_MIN_BYTES => {
            Check::ok(format!("memory: {} MiB are available", bytes >> 20))
        }
        Some(bytes) => Check::finding(
            format!("memory: only {} MiB are available", bytes >> 20),
            "a channel's ring takes slots x slot_len of memory from the start",
            "free memory, or give each channel fewer slots",
        ),
    }
}

fn shared_memory() -> Check {
    match tempfile::tempfile_in("/dev/shm") {
        Ok(_) => Check::ok("shared memory: files can be created in /dev/shm"),
        Err(error) => Check::note(
            format!("shared memory: no file can be created in /dev/shm: {error}"),
            "it holds the rings of subscribers in the publisher's host, flight records, and rings \
             that outlive a publisher",
            "mount a tmpfs there, or use a directory on another one",
        ),
    }
}

fn buffer_of(name: &str, bytes: Option<u64>) -> Check {
    match bytes {
        Some(bytes) if bytes >= BUFFER_ENOUGH_BYTES => {
            Check::ok(format!("socket buffers: net.core.{name} is {bytes}"))
        }
        Some(bytes) => Check::note(
            format!("socket buffers: net.core.{name} is {bytes}"),
            "the kernel grants no larger buffer, and a burst that exceeds it is dropped and \
             repaired",
            format!("sysctl -w net.core.{name}={BUFFER_ENOUGH_BYTES}"),
        ),
        None => Check::ok(format!(
            "socket buffers: this system does not report net.core.{name}"
        )),
    }
}

fn clock_of(source: &str) -> Check {
    match source {
        "tsc" => Check::ok("clock: the kernel's clock source is the processor's counter"),
        "" => Check::ok("clock: this system does not report its clock source"),
        other => Check::note(
            format!("clock: the kernel's clock source is {other}, not the processor's counter"),
            "each reading of the clock is a slower call, and each datagram needs two",
            "find out why in `dmesg | grep -i tsc`; on a virtual machine ask for an invariant TSC",
        ),
    }
}

/// Sends a datagram to a group through an interface, and checks that it comes back.
fn multicast(interface: &Interface) -> Check {
    let why = "publishers send all datagrams to groups, and subscribers join them on an interface";
    let resolved = match interface.resolve() {
        Ok(resolved) => resolved,
        Err(error) => {
            let remedy = "choose one that `ip address` lists (--interface)";
            return Check::finding(format!("multicast: {error}"), why, remedy);
        }
    };
    let name = format!("{} ({})", resolved.name, resolved.address);
    match to_group_and_back(&resolved) {
        Ok(()) => Check::ok(format!(
            "multicast: a datagram to a group and back on {name}"
        )),
        Err(error) => Check::finding(
            format!("multicast: no datagram to a group and back on {name}: {error}"),
            why,
            "is the interface up, with MULTICAST (`ip link show`)? does a firewall drop UDP to 239.0.0.0/8?",
        ),
    }
}

fn to_group_and_back(interface: &ResolvedInterface) -> io::Result<()> {
    let receiver = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    receiver.join_multicast_v4(&GROUP, &interface.address)?;
    receiver.set_read_timeout(Some(PATIENCE))?;
    let sender = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    sender.set_multicast_if_v4(&interface.address)?;
    sender.set_multicast_ttl_v4(0)?;
    let to = SocketAddrV4::new(GROUP, receiver.local_addr()?.port());
    let sent = std::process::id().to_le_bytes();
    sender.send_to(&sent, &to.into())?;
    let mut bytes = [0; 16];
    loop {
        let len = receiver.recv(&mut bytes)?;
        if bytes[..len] == sent {
            return Ok(());
        }
    }
}

fn rdma() -> Check {
    match ports::all().map(|ports| ports.len()) {
        Ok(0) | Err(_) => Check::ok("RDMA: this host has no device; UDP needs none"),
        Ok(count) => Check::ok(format!(
            "RDMA: this host has {count} ports; `tickcast doctor --rdma` checks them"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn host_shortage_is_reported_with_remedy() {
        for (check, verdict) in [
            (cores_of(64), Verdict::Ok),
            (cores_of(1), Verdict::Note),
            (memory_of(Some(1 << 30)), Verdict::Ok),
            (memory_of(Some(1 << 20)), Verdict::Finding),
            (buffer_of("rmem_max", Some(16 << 20)), Verdict::Ok),
            (buffer_of("rmem_max", Some(212_992)), Verdict::Note),
            (clock_of("tsc"), Verdict::Ok),
            (clock_of("hpet"), Verdict::Note),
        ] {
            assert_eq!(check.verdict, verdict, "{check}");
            assert_eq!(check.remedy.is_empty(), verdict == Verdict::Ok, "{check}");
        }
    }
}
