//! Common parts of the command line's tests: running it with a time limit, bare multicast sockets, and
//! groups for one test only.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tickcast_test_support::program;
pub(crate) use tickcast_test_support::{
    Running, free_address, publisher_bin, signal, text, wait_for,
};

/// Returns the command that runs the binary under test with these arguments.
pub(crate) fn tickcast(args: &[&str]) -> Command {
    program(env!("CARGO_BIN_EXE_tickcast"), args)
}

/// Starts the binary under test.
pub(crate) fn start(args: &[&str]) -> Running {
    Running::start(&mut tickcast(args))
}

/// Runs the binary under test to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    start(args).output()
}

/// Waits for a JSON file, and returns its value.
pub(crate) fn json_at(path: &Path) -> serde_json::Value {
    wait_for(&path.display().to_string(), || {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    })
}

/// Returns a group that no other test uses, with a free port.
pub(crate) fn group() -> SocketAddrV4 {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let port = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let (high, low) = (
        (std::process::id() % 250) as u8,
        NEXT.fetch_add(1, Ordering::Relaxed),
    );
    SocketAddrV4::new(Ipv4Addr::new(239, 255, high, low), port)
}

/// Returns a bare socket that receives a group on loopback.
pub(crate) fn listener(group: SocketAddrV4) -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_recv_buffer_size(4 << 20).unwrap();
    socket.bind(&group.into()).unwrap();
    socket
        .join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST)
        .unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    socket.into()
}

/// Returns a bare socket that sends to a group on loopback.
pub(crate) fn speaker(group: SocketAddrV4) -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket
        .bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into())
        .unwrap();
    socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    socket.set_multicast_ttl_v4(0).unwrap();
    socket.connect(&group.into()).unwrap();
    socket.into()
}

/// Returns the path of recorded data that is not in the repository. If it is missing, prints a message
/// and returns `None`.
pub(crate) fn data(name: &str) -> Option<PathBuf> {
    let root = std::env::var_os("TICKCAST_DATA").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
        PathBuf::from,
    );
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!(
        "SKIPPED: there is no {}; set TICKCAST_DATA to run this test",
        path.display()
    );
    None
}

/// Returns a simulator input that does not end.
fn endless_market(messages_per_s: u32) -> serde_json::Value {
    serde_json::json!({
        "source": 1, "kind": "simulator", "symbols": 20, "messages": u32::MAX,
        "pace": {"messages_per_s": messages_per_s},
    })
}

/// Returns a live input on a free port of this host.
fn live_input(receive_buffer_bytes: u32) -> serde_json::Value {
    serde_json::json!({
        "source": 1, "kind": "udp", "lines": [{ "listen": "127.0.0.1:0" }],
        "receive_buffer_bytes": receive_buffer_bytes,
    })
}

fn config(
    control: &str,
    input: &serde_json::Value,
    slots: u32,
    records: Option<&Path>,
    fan_out: &serde_json::Value,
) -> serde_json::Value {
    serde_json::json!({
        "name": "test",
        "control": control,
        "admin": "127.0.0.1:0",
        "channels": [{
            "id": 7, "name": "all", "slots": slots, "peak_datagrams_per_s": 4_000,
            "fan_out": [fan_out],
        }],
        "inputs": [input],
        // Room for a whole recording, however long the publish thread waits for a core.
        "threads": {"queue_batches": 1 << 14},
        "digest": true,
        "linger_ms": 30_000,
        "journal": records.map(|it| serde_json::json!({"directory": it, "mib": 16})),
    })
}

/// A running publisher of one channel, `all`, with a simulated market.
pub(crate) struct Publisher {
    folder: tempfile::TempDir,
    running: Running,
    pub(crate) control: String,
    admin: String,
    pub(crate) group: SocketAddrV4,
    /// Address of the live input; empty for the simulator.
    pub(crate) input: String,
}

impl Publisher {
    /// Publishes this many records, once this many subscribers have joined.
    pub(crate) fn start(records: u64, wait_for_subscribers: u32) -> Self {
        Self::start_at("127.0.0.1:0", records, wait_for_subscribers)
    }

    /// Publishes like [`Self::start`], at a known control address.
    pub(crate) fn start_at(control: &str, records: u64, wait_for_subscribers: u32) -> Self {
        let simulator = serde_json::json!({
            "source": 1, "kind": "simulator", "symbols": 20, "messages": 4 * records,
            "records_max": records, "pace": {"messages_per_s": 10_000},
            "wait_for_subscribers": wait_for_subscribers,
        });
        Self::of(control, &simulator)
    }

    /// Publishes a simulated market until it is stopped. Its ring holds the first seconds.
    pub(crate) fn endless() -> Self {
        let simulator = endless_market(5_000);
        Self::with("127.0.0.1:0", &simulator, 1 << 16, None)
    }

    /// Publishes like [`Self::endless`], with journals in this directory.
    pub(crate) fn recorded(directory: &Path) -> Self {
        let simulator = endless_market(5_000);
        Self::with("127.0.0.1:0", &simulator, 1 << 16, Some(directory))
    }

    /// Returns the process ID.
    pub(crate) fn id(&mut self) -> u32 {
        self.running.child().id()
    }

    /// Publishes the packets that arrive at a port of this host, until it is stopped.
    pub(crate) fn live() -> Self {
        let udp = live_input(4 << 20);
        // The ring holds all that a slow host may delay.
        Self::with("127.0.0.1:0", &udp, 1 << 16, None)
    }

    /// Publishes like [`Self::live`] with a small socket buffer, and journals in this directory.
    pub(crate) fn live_recorded(directory: &Path) -> Self {
        let udp = live_input(1 << 16);
        Self::with("127.0.0.1:0", &udp, 4_096, Some(directory))
    }

    /// Publishes a simulated market through an interface that passes a tenth of it, in a separate network,
    /// with journals in this directory. If no such network can be created, prints a message and
    /// returns `None`.
    pub(crate) fn on_a_slow_link(directory: &Path) -> Option<Self> {
        const LINK: &str = "ip link set lo up && ip link add veth0 type veth peer name veth1 \
             && ip address add 10.99.0.1/24 dev veth0 && ip link set veth0 up && ip link set veth1 up \
             && tc qdisc add dev veth0 root tbf rate 500kbit burst 5kb limit 20kb";
        let within = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(["--net", "sh", "-c", script]);
            command
        };
        let tried = within(LINK).output();
        if !tried.is_ok_and(|it| it.status.success()) {
            eprintln!("SKIPPED: no network of one's own with a queue can be made here");
            return None;
        }
        let mut command = within(&format!("{LINK} && exec \"$0\" \"$@\""));
        command.arg(publisher_bin());
        let simulator = endless_market(10_000);
        let line = serde_json::json!({ "group": group(), "interface": "veth0" });
        let fan_out = serde_json::json!({"transport": "udp", "lines": [line]});
        let config = config(
            "127.0.0.1:0",
            &simulator,
            1 << 16,
            Some(directory),
            &fan_out,
        );
        Some(Self::run(command, &config, group()))
    }

    fn of(control: &str, input: &serde_json::Value) -> Self {
        Self::with(control, input, 4_096, None)
    }

    fn with(control: &str, input: &serde_json::Value, slots: u32, records: Option<&Path>) -> Self {
        let group = group();
        let fan_out = serde_json::json!({"transport": "udp", "lines": [{"group": group}]});
        let config = config(control, input, slots, records, &fan_out);
        Self::run(Command::new(publisher_bin()), &config, group)
    }

    fn run(mut command: Command, config: &serde_json::Value, group: SocketAddrV4) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("config.json"), config.to_string()).unwrap();
        for (option, name) in [
            ("--config", "config.json"),
            ("--summary", "summary.json"),
            ("--ready-file", "ready.json"),
        ] {
            command.arg(option).arg(path(name));
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut running = Running::start(&mut command);
        let ready = wait_for("the publisher", || {
            let ended = running.child().try_wait().unwrap();
            assert!(ended.is_none(), "it ended before it was ready: {ended:?}");
            serde_json::from_slice::<serde_json::Value>(&std::fs::read(path("ready.json")).ok()?)
                .ok()
        });
        let control = ready["control"].as_str().unwrap().to_owned();
        let input = ready["inputs"][0]["listen"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        Self {
            folder,
            running,
            admin: ready["admin"].as_str().unwrap().to_owned(),
            control,
            group,
            input,
        }
    }

    /// Returns the current status.
    pub(crate) fn status(&self) -> serde_json::Value {
        let mut asked = TcpStream::connect(&self.admin).unwrap();
        asked.write_all(b"GET /status HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        asked.read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }

    /// Requests the end of the session.
    pub(crate) fn end(&mut self) {
        signal(self.running.child().id(), "TERM");
    }

    /// Waits for the end, and returns the summary.
    pub(crate) fn summary(self) -> serde_json::Value {
        self.running.output();
        json_at(&self.folder.path().join("summary.json"))
    }
}
