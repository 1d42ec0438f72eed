//! A publisher process under test, and a subscriber that is a bare socket.
#![allow(unreachable_pub, reason = "private module of a test")]

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};
use tempfile::TempDir;
use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_SUBSCRIBER, ChannelName, Join, JoinChannel, Message, NackClass, Progress,
    Purpose, Welcome,
};
use tickcast_reliability::record::AlignedCopy;
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::{CrcVerdict, Datagram, Header, Heartbeat, Kind, PublisherState};

/// Longer than any step of a test, so that a hang becomes a failure.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Calls `ready` until it returns a value.
pub fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < until, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns a group and port that no other test uses.
pub fn group() -> SocketAddrV4 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let id = std::process::id();
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    let group = Ipv4Addr::new(
        239,
        255,
        (id % 251) as u8,
        ((id / 251 + u32::from(n)) % 251) as u8,
    );
    SocketAddrV4::new(group, port)
}

/// Returns a config with one channel on `group`.
pub fn config(group: SocketAddrV4, input: Value) -> Value {
    json!({
        "name": "test",
        "control": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "interface": "lo",
        "digest": true,
        "channels": [{
            "id": 1, "name": "all", "slots": 4096,
            "fan_out": [{ "transport": "udp", "lines": [{ "group": group }] }],
        }],
        "inputs": [input],
        "linger_ms": 30_000,
    })
}

/// A publisher process; it is killed when dropped.
pub struct Publisher {
    child: Child,
    dir: TempDir,
    pub ready: Value,
}

impl Publisher {
    pub fn start(config: &Value) -> Self {
        Self::start_with(config, &[])
    }

    /// Starts the publisher with further arguments.
    pub fn start_with(config: &Value, arguments: &[&str]) -> Self {
        Self::start_in(config, arguments, &[])
    }

    /// Starts the publisher with further arguments and variables of its environment.
    pub fn start_in(config: &Value, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("config.json"), config.to_string()).unwrap();
        let log = std::fs::File::create(path("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_tickcast-publisher"))
            .arg("--config")
            .arg(path("config.json"))
            .arg("--ready-file")
            .arg(path("ready.json"))
            .arg("--summary")
            .arg(path("summary.json"))
            .args(arguments)
            .env_remove("RUST_LOG")
            .envs(variables.iter().copied())
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        let mut publisher = Self {
            child,
            dir,
            ready: Value::Null,
        };
        publisher.ready = wait_for("the ready file", || {
            if let Some(status) = publisher.child.try_wait().unwrap() {
                panic!("the publisher exited with {status}: {}", publisher.log());
            }
            let text = std::fs::read_to_string(publisher.dir.path().join("ready.json")).ok()?;
            Some(serde_json::from_str(&text).unwrap())
        });
        publisher
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub fn connect(&self) -> Control {
        Control::to(self.ready["control"].as_str().unwrap())
    }

    pub fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end. Returns exit code and summary.
    pub fn finish(mut self) -> (Option<i32>, Value) {
        let status = wait_for("the publisher's end", || self.child.try_wait().unwrap());
        let summary = std::fs::read_to_string(self.path("summary.json")).unwrap_or_default();
        (
            status.code(),
            serde_json::from_str(&summary).unwrap_or(Value::Null),
        )
    }

    /// Sends raw bytes to the admin port and returns the whole answer.
    pub fn admin(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.ready["admin"].as_str().unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub fn get(&self, path: &str) -> String {
        self.admin(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ))
    }

    /// Waits until the publisher has read this number of packets of its only source. A sender that does not
    /// wait overruns the socket of a publisher that waits for a core.
    pub fn wait_until_read(&self, packets: u64) {
        wait_for("the packets to be read", || {
            let metrics = self.get("/metrics");
            let series = "tickcast_publisher_source_received_packets_total{";
            let line = metrics.lines().find(|line| line.starts_with(series))?;
            let read: u64 = line.rsplit(' ').next()?.parse().ok()?;
            (read >= packets).then_some(())
        });
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The contents of one frame.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    Welcome(Box<Welcome>),
    Datagram(Vec<u8>),
    Refused(SequenceRange),
    Rejected(String),
    Status { newest: Sequence, ended: bool },
}

/// A control connection.
pub struct Control {
    stream: TcpStream,
    inbox: Vec<u8>,
    pub closed: bool,
}

impl Control {
    pub fn to(address: impl ToSocketAddrs) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(5)))
            .unwrap();
        Self {
            stream,
            inbox: Vec::new(),
            closed: false,
        }
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn send(&mut self, channel: u16, message: &Message<'_>) {
        let mut bytes = Vec::new();
        message.write(ChannelId(channel), &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    pub fn join(&mut self, name: &str) -> Welcome {
        self.send_join(name);
        match self.next("WELCOME") {
            Said::Welcome(welcome) => *welcome,
            other => panic!("a WELCOME, not {other:?}"),
        }
    }

    pub fn send_join(&mut self, name: &str) {
        self.send(
            0,
            &Message::Join(Join {
                authentication: true,
                name: name.into(),
                wire_versions: vec![1],
                purpose: Purpose::Repair,
                channels: vec![JoinChannel {
                    channel: ChannelName::Name("all".into()),
                    start: Default::default(),
                    confirmed_epoch: Epoch::NONE,
                }],
            }),
        );
    }

    pub fn nack(&mut self, epoch: Epoch, ranges: &[(u64, u64)]) {
        let ranges = ranges.iter().map(|(first, last)| SequenceRange {
            first: Sequence(*first),
            last: Sequence(*last),
        });
        let message = Message::Nack {
            epoch,
            class: NackClass::Repair,
            ranges: ranges.collect(),
        };
        self.send(1, &message);
    }

    pub fn progress(&mut self, epoch: Epoch, sequence: Sequence, lost_records: u64) {
        self.send(
            1,
            &Message::Progress(Progress {
                epoch,
                sequence,
                lost_records,
                heard: sequence,
                sent_at: Nanos(1),
                read_bytes: 0,
            }),
        );
    }

    /// Returns the publisher's next message.
    pub fn next(&mut self, what: &str) -> Said {
        wait_for(what, || {
            let said = self.poll();
            assert!(said.is_some() || !self.closed, "closed before {what}");
            said
        })
    }

    /// Returns a message, if one has arrived.
    pub fn poll(&mut self) -> Option<Said> {
        loop {
            if let Some((_, message, len)) =
                Message::read(&self.inbox, BODY_LEN_MAX_TO_SUBSCRIBER).unwrap()
            {
                let said = match message {
                    Message::Welcome(welcome) => Said::Welcome(Box::new(welcome)),
                    Message::Datagram(bytes) => Said::Datagram(bytes.to_vec()),
                    Message::Refused(refused) => Said::Refused(refused.range),
                    Message::Rejected(rejected) => Said::Rejected(rejected.text),
                    Message::Status(status) => Said::Status {
                        newest: status.newest,
                        ended: status.ended,
                    },
                    other => panic!("publishers do not say {other:?}"),
                };
                self.inbox.drain(..len);
                return Some(said);
            }
            let mut buffer = [0; 65536];
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    self.closed = true;
                    return None;
                }
                Ok(len) => self.inbox.extend(&buffer[..len]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return None;
                }
                Err(_) => {
                    self.closed = true;
                    return None;
                }
            }
        }
    }
}

/// Receives one group, and keeps every sequenced datagram.
pub struct Listener {
    socket: UdpSocket,
    pub datagrams: BTreeMap<u64, Vec<u8>>,
    pub heartbeats: u64,
    pub last_heartbeat: Option<Header>,
    pub state: Option<PublisherState>,
}

impl Listener {
    pub fn new(group: SocketAddrV4) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        socket.set_reuse_address(true).unwrap();
        let _ = socket.set_recv_buffer_size(8 << 20);
        socket.bind(&group.into()).unwrap();
        socket
            .join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST)
            .unwrap();
        let socket: UdpSocket = socket.into();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            datagrams: BTreeMap::new(),
            heartbeats: 0,
            last_heartbeat: None,
            state: None,
        }
    }

    /// Takes the datagrams that have arrived.
    pub fn poll(&mut self) {
        let mut buffer = [0; 10_000];
        while let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            assert_eq!(from.ip(), Ipv4Addr::LOCALHOST);
            let datagram = Datagram::parse(&buffer[..len]).unwrap();
            assert_eq!(datagram.verdict(), CrcVerdict::Good);
            let header = datagram.header();
            assert_eq!(header.channel, ChannelId(1));
            if header.kind.is_sequenced() {
                let bytes = datagram.bytes().to_vec();
                self.datagrams.entry(header.sequence.0).or_insert(bytes);
            } else {
                self.heartbeats += 1;
                self.last_heartbeat = Some(*header);
                let body = Heartbeat::parse(datagram.payload());
                self.state = body.map(|heartbeat| heartbeat.state);
            }
        }
    }

    /// Returns the missing sequences below the highest one received.
    pub fn missing(&self) -> Vec<u64> {
        let last = self.datagrams.keys().next_back().copied().unwrap_or(0);
        (1..=last)
            .filter(|s| !self.datagrams.contains_key(s))
            .collect()
    }

    /// Returns the header of a datagram.
    pub fn header(&self, sequence: u64) -> Header {
        *Datagram::parse(&self.datagrams[&sequence])
            .unwrap()
            .header()
    }

    /// Returns the records' bytes of all data datagrams in order, and the number of records.
    pub fn records(&self) -> (Vec<u8>, u64) {
        let (mut bytes, mut count) = (Vec::new(), 0);
        let mut aligned = AlignedCopy::default();
        for datagram in self.datagrams.values() {
            let datagram = Datagram::parse(aligned.of(datagram)).unwrap();
            if datagram.header().kind != Kind::Data {
                continue;
            }
            bytes.extend(datagram.records().unwrap().bytes());
            count += u64::from(datagram.header().count);
        }
        (bytes, count)
    }
}

/// Receives everything up to END, and requests the datagrams that multicast lost.
pub fn to_the_end(listener: &mut Listener, control: &mut Control, epoch: Epoch) {
    // END may be lost too; the heartbeats after it show that.
    let last = wait_for("END", || {
        listener.poll();
        let ended = listener.state == Some(PublisherState::Ended);
        ended.then_some(listener.last_heartbeat?.sequence.0)
    });
    for sequence in 1..=last {
        if listener.datagrams.contains_key(&sequence) {
            continue;
        }
        control.nack(epoch, &[(sequence, sequence)]);
        let bytes = loop {
            match control.next("a repair") {
                Said::Datagram(bytes) => break bytes,
                Said::Status { .. } => {}
                other => panic!("a repair of {sequence}, not {other:?}"),
            }
        };
        listener.datagrams.insert(sequence, bytes);
    }
    control.progress(epoch, Sequence(last), 0);
}

/// Returns a counter of a summary.
pub fn count(of: &Value, name: &str) -> u64 {
    of[name]
        .as_u64()
        .unwrap_or_else(|| panic!("{name} in {of:#}"))
}

/// Asserts that an input accounts for this many messages on its lines, of this many that the venue
/// numbered: published, duplicate, late, and lost.
pub fn assert_messages(source: &Value, on_lines: u64, numbered: u64) {
    let [published, duplicate, late, missing] =
        ["messages_total", "duplicates", "late", "missing_messages"].map(|it| count(source, it));
    assert_eq!(published + duplicate + late, on_lines, "{source:#}");
    assert_eq!(published + missing, numbered, "{source:#}");
}
