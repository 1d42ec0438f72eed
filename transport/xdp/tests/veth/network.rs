//! A network of a test's own: a namespace for its thread, with pairs of devices in it. It goes with the
//! thread.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use socket2::SockRef;

/// Addresses of the sending device.
pub const SENDER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The sending device, and the first receiving one.
pub const FROM: &str = "from";
pub const TO: &str = "to0";

/// Moves the test's thread into a namespace, and creates devices `to0`, `to1` and so on there. All receive
/// what `from` sends. Returns `false`, and says so, where the system does not permit that.
#[must_use]
pub fn enter(receivers: usize) -> bool {
    // SAFETY: the call takes a number, and changes only the calling thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        let error = io::Error::last_os_error();
        eprintln!("SKIPPED: this user may create no network namespace: {error}");
        return false;
    }
    if let Err(error) = ip("link set lo up") {
        eprintln!("SKIPPED: no namespace can be set up: {error}");
        return false;
    }
    for name in ["all/accept_local", "default/accept_local"] {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}"), "1").unwrap();
    }
    for name in ["all/rp_filter", "default/rp_filter"] {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}"), "0").unwrap();
    }
    let mut commands = Vec::new();
    if receivers == 1 {
        commands.push(format!("link add {FROM} type veth peer name {TO}"));
    } else {
        commands.push(format!("link add {FROM} type bridge mcast_snooping 0"));
        commands.extend((0..receivers).flat_map(|n| {
            [
                format!("link add port{n} type veth peer name to{n}"),
                format!("link set port{n} up master {FROM}"),
            ]
        }));
    }
    commands.extend([
        format!("addr add {SENDER}/24 dev {FROM}"),
        format!("addr add {STRANGER}/24 dev {FROM}"),
        format!("link set {FROM} up"),
    ]);
    commands.extend((0..receivers).flat_map(|n| {
        [
            format!("addr add 10.77.{}.1/24 dev to{n}", n + 1),
            format!("link set to{n} up"),
        ]
    }));
    ip_all(&commands).unwrap();
    // The kernel drops what a device sends before a thread of its own has noticed that the link is up.
    while !all_are_up() {
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Returns whether every Ethernet device of the thread's namespace can send.
fn all_are_up() -> bool {
    let output = Command::new("ip").args(["-br", "link"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let mut devices = text.lines().filter(|line| !line.starts_with("lo "));
    devices.all(|line| line.split_whitespace().nth(1) == Some("UP"))
}

/// Runs commands of `ip` in the thread's namespace.
fn ip_all(commands: &[String]) -> Result<(), String> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("ip: {error}"))?;
    let mut input = child.stdin.take().unwrap();
    input.write_all(commands.join("\n").as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(told)
}

/// Runs `ip` in the thread's namespace.
pub fn ip(arguments: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    let output = command.args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {arguments}: {told}"))
}

/// A socket that sends to groups from one of the sending device's addresses.
pub struct Sender(UdpSocket);

impl Sender {
    pub fn from(address: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        SockRef::from(&socket).set_multicast_if_v4(&SENDER).unwrap();
        socket.set_multicast_loop_v4(false).unwrap();
        Self(socket)
    }

    pub fn send(&self, group: SocketAddrV4, bytes: &[u8]) {
        let sent = self.0.send_to(bytes, group).unwrap();
        assert_eq!(sent, bytes.len());
    }
}
