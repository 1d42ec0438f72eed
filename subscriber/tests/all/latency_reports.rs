//! Reports of latency go to a publisher that takes them, and to no other.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_PUBLISHER, ChannelOffer, FanOutOffer, HeartbeatLimits, LatencyReport, Message,
    Status, UdpLine, Welcome,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, Lineage, Nanos, RecordNumber, Sequence,
};
use tickcast_subscriber::Subscriber;

/// Longer than it takes to make two reports.
const LONG: Duration = Duration::from_millis(2_500);
const CHANNEL: ChannelId = ChannelId(4);

/// Returns a WELCOME of a publisher that sends nothing.
fn welcome(latency: bool) -> Vec<u8> {
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    let line = UdpLine {
        group: SocketAddrV4::new(Ipv4Addr::new(239, 255, 77, 3), port),
        sender: Ipv4Addr::LOCALHOST,
    };
    let offer = ChannelOffer {
        authentication: None,
        channel: CHANNEL,
        name: "all".into(),
        epoch: Epoch(7),
        newest: Sequence(0),
        oldest: Sequence(1),
        oldest_record: RecordNumber(1),
        next_record: RecordNumber(1),
        slot_len: 1_472,
        slots: 64,
        config_hash: ConfigHash(0),
        ended: false,
        fan_outs: vec![FanOutOffer::Udp { lines: vec![line] }],
        directory: Vec::new(),
        continues: Lineage::default(),
        history: None,
        heartbeats: HeartbeatLimits::default(),
    };
    let welcome = Message::Welcome(Welcome {
        latency,
        wire_version: 1,
        publisher: "p".into(),
        session: 1,
        channels: vec![offer],
        repairs: Vec::new(),
    });
    let mut bytes = Vec::new();
    welcome.write(ChannelId(0), &mut bytes);
    bytes
}

/// Returns the STATUS that answers a PROGRESS of this time.
fn status(echo: Nanos) -> Vec<u8> {
    let status = Message::Status(Status {
        epoch: Epoch(7),
        newest: Sequence(0),
        oldest: Sequence(1),
        next_record: RecordNumber(1),
        echo,
        answered_at: Nanos(0),
        ended: false,
    });
    let mut bytes = Vec::new();
    status.write(CHANNEL, &mut bytes);
    bytes
}

/// The messages of a subscriber on its repair connection.
#[derive(Default)]
struct Heard {
    stream: Option<TcpStream>,
    bytes: Vec<u8>,
    progresses: usize,
    last_progress: Option<Instant>,
    first_progress: Option<Instant>,
    reports: Vec<(ChannelId, LatencyReport)>,
}

impl Heard {
    /// Returns whether PROGRESS has come for so long that reports would have come beside it.
    fn has_lasted(&self) -> bool {
        let ends = self.last_progress.zip(self.first_progress);
        ends.is_some_and(|(last, first)| last.duration_since(first) >= LONG)
    }

    /// Reads what has arrived. A JOIN is answered by `welcome`.
    fn poll(&mut self, welcome: &[u8]) {
        let Some(stream) = &mut self.stream else {
            return;
        };
        let mut part = [0; 4096];
        match stream.read(&mut part) {
            Ok(len) => self.bytes.extend(&part[..len]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        while let Some((channel, message, len)) =
            Message::read(&self.bytes, BODY_LEN_MAX_TO_PUBLISHER).unwrap()
        {
            match message {
                Message::Join(_) => stream.write_all(welcome).unwrap(),
                Message::Progress(progress) => {
                    self.progresses += 1;
                    self.last_progress = Some(Instant::now());
                    self.first_progress = self.first_progress.or(self.last_progress);
                    stream.write_all(&status(progress.sent_at)).unwrap();
                }
                Message::Latency(report) => self.reports.push((channel, *report)),
                other => panic!("{other:?}"),
            }
            self.bytes.drain(..len);
        }
    }
}

/// Follows a publisher until `is_enough`, and returns what it heard.
fn heard(takes: bool, reports: bool, is_enough: impl Fn(&Heard) -> bool) -> Heard {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let builder = Subscriber::builder(address).channel("all");
    let mut subscriber = builder.latency_reports(reports).build().unwrap();
    let (welcome, mut heard) = (welcome(takes), Heard::default());
    while !is_enough(&heard) {
        subscriber.poll(|_| ());
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            assert!(heard.stream.replace(stream).is_none(), "one connection");
        }
        heard.poll(&welcome);
        std::thread::yield_now();
    }
    heard
}

#[test]
fn publisher_that_takes_no_latency_receives_none() {
    let heard = heard(false, true, Heard::has_lasted);
    assert_eq!(heard.reports, []);
}

#[test]
fn subscriber_without_reports_sends_none() {
    let heard = heard(true, false, Heard::has_lasted);
    assert_eq!(heard.reports, []);
}

#[test]
fn reports_come_beside_progress_once_a_second() {
    let heard = heard(true, true, |it| it.reports.len() >= 2);
    // Both stand in one host, so that the clocks are one.
    for (channel, report) in &heard.reports {
        assert_eq!(*channel, CHANNEL);
        assert!(report.is_possible(), "{report:?}");
        assert_eq!(report.clock_limit, Some(Nanos::ZERO), "{report:?}");
    }
    assert!(heard.reports[0].1.interval >= Nanos::from_secs(1));
    assert!(heard.progresses >= 2);
}
