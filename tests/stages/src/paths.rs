//! From a published record to a delivered one: both cores, and the transport between them. Neither clocks
//! nor threads take part, so the cost depends on our code alone.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use tickcast_reliability::delivery::Item;
use tickcast_reliability::publish::Transmit;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::shm::{CopyWriter, ShmFanOut, ShmReceiver};
use tickcast_transport::udp::{
    UdpFanOut, UdpFanOutConfig, UdpReceiveLine, UdpReceiver, UdpReceiverConfig, UdpSendLine,
};
use tickcast_transport::{FanOut, Receive};

use crate::pair::{CHANNEL, FAN_OUT, Pair, RECORDS, geometry};
use crate::rings::SharedRing;
use crate::{Opened, steps};

/// Datagrams of a run: a batch of both transports.
const DATAGRAMS: u64 = 64;
const SOCKET_BYTES: usize = 4 << 20;
/// Limit of polls for an expected datagram. After these, this host has lost it.
const LOOKS_MAX: u32 = 1_000_000;

/// A pair whose datagrams pass through this transport.
struct Joined<F, R> {
    pair: Pair,
    fan_out: F,
    receiver: R,
    /// Datagrams and bytes that `receiver` received without a delivery to the subscriber.
    received: (u64, usize),
    _place: Option<SharedRing>,
}

impl<F: FanOut, R: Receive> Joined<F, R> {
    fn prepare(&mut self) {
        self.pair.pass(Nanos::from_us(10));
        self.pair.look_after();
    }

    /// Carries records one after the other, each in a datagram of its own. Otherwise like
    /// [`path`](Self::path).
    fn path_one(&mut self) -> u64 {
        for _ in 0..DATAGRAMS {
            self.pair.publish();
            self.pair.publisher.flush(self.pair.now, true);
            self.send();
            self.take_until(1);
        }
        DATAGRAMS
    }

    /// Publishes full datagrams.
    fn publish(&mut self) {
        (0..DATAGRAMS * u64::from(RECORDS)).for_each(|_| self.pair.publish());
        self.pair.publisher.flush(self.pair.now, true);
    }

    /// Returns the datagrams that are due, if any.
    fn due(&mut self) -> Option<SequenceRange> {
        match self.pair.publisher.poll_transmit(FAN_OUT)? {
            Transmit::Slots(range) => Some(range),
            Transmit::Heartbeat(_) => None,
        }
    }

    /// Sends the published datagrams. Returns their number.
    fn send(&mut self) -> u64 {
        let before = self.pair.publisher.posted(FAN_OUT);
        while let Some(range) = self.due() {
            let ring = self.pair.publisher.ring();
            let posted = self.fan_out.post(ring, range).expect("it is whole");
            if let Some(last) = posted.last {
                self.pair.publisher.handle_posted(FAN_OUT, last);
            }
            if let Some(last) = self.fan_out.completed() {
                self.pair.publisher.handle_completed(FAN_OUT, last);
            }
        }
        self.pair.publisher.posted(FAN_OUT).since(before)
    }

    /// Receives the sent datagrams without delivering them.
    fn receive(&mut self) -> u64 {
        let (before, now) = (self.received.0, self.pair.now.monotonic);
        let mut looks = 0;
        while self.received.0 - before < DATAGRAMS {
            let received = &mut self.received;
            let polled = self.receiver.poll(now, &mut |datagram| {
                received.0 += 1;
                received.1 += black_box(datagram.bytes).len();
            });
            polled.expect("it is whole");
            looks += 1;
            assert!(looks < LOOKS_MAX, "this host lost a datagram");
        }
        DATAGRAMS
    }

    /// Receives and delivers the sent datagrams.
    fn deliver(&mut self) -> u64 {
        self.take_until(DATAGRAMS * u64::from(RECORDS))
    }

    /// Receives and delivers this many records.
    fn take_until(&mut self, records: u64) -> u64 {
        let now = self.pair.now.monotonic;
        let (subscriber, application) = (&mut self.pair.subscriber, &mut self.pair.application);
        let (before, mut looks) = (application.records, 0);
        while application.records - before < records {
            let polled = self.receiver.poll(now, &mut |received| {
                let on = &mut |item: Item<'_>| application.take(item);
                let (line, bytes) = (received.line, received.bytes);
                let whole = received.whole;
                subscriber.handle_bytes(now, (CHANNEL, line), bytes, whole, on);
            });
            polled.expect("it is whole");
            looks += 1;
            assert!(looks < LOOKS_MAX, "this host lost a datagram");
        }
        application.records - before
    }

    fn path(&mut self) -> u64 {
        self.publish();
        self.send();
        self.deliver()
    }
}

type Udp = Joined<UdpFanOut, UdpReceiver>;

/// Returns a group that most likely only this process uses.
pub(crate) fn group() -> SocketAddrV4 {
    let probe = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = probe.expect("a port is free").port();
    let [a, b, ..] = std::process::id().to_le_bytes();
    SocketAddrV4::new(Ipv4Addr::new(239, 255, a, b), port)
}

/// Checks that runs of datagrams pass over loopback as one buffer. A kernel without that executes other
/// instructions.
pub(crate) fn has_runs() -> Result<(), String> {
    let mut udp = over_udp();
    udp.publish();
    udp.send();
    udp.receive();
    let stats = &udp.fan_out.stats()[0];
    if stats.runs > 0 && stats.runs_refused == 0 && udp.receiver.warnings().is_empty() {
        return Ok(());
    }
    Err("this host's kernel does not send and receive runs of datagrams (GSO, GRO)".to_owned())
}

fn over_udp() -> Udp {
    let (group, interface) = (group(), Interface::Address(Ipv4Addr::LOCALHOST));
    let receiver = UdpReceiver::open(&UdpReceiverConfig {
        lines: vec![UdpReceiveLine {
            group,
            interface: interface.clone(),
            senders: vec![Ipv4Addr::LOCALHOST],
        }],
        datagram_len_max: geometry().slot_len(),
        receive_buffer_bytes: Some(SOCKET_BYTES),
        source_specific: true,
        batch: DATAGRAMS as usize,
        busy_poll_us: None,
        gro: true,
    });
    let fan_out = UdpFanOut::open(&UdpFanOutConfig {
        lines: vec![UdpSendLine { group, interface }],
        ttl: 0,
        send_buffer_bytes: Some(SOCKET_BYTES),
        datagram_len_max: geometry().slot_len(),
        gso: true,
    });
    Joined {
        pair: Pair::new(),
        fan_out: fan_out.expect("loopback sends"),
        receiver: receiver.expect("loopback receives"),
        received: (0, 0),
        _place: None,
    }
}

fn over_shm() -> Joined<ShmFanOut, ShmReceiver> {
    let (place, ring) = SharedRing::new();
    let fan_out = ShmFanOut::open(&ring.memory(), geometry(), CopyWriter::FanOut);
    Joined {
        pair: Pair::over(ring),
        fan_out: fan_out.expect("the ring is there"),
        receiver: place.receiver(),
        received: (0, 0),
        _place: Some(place),
    }
}

/// Sends full datagrams to the kernel, in runs.
pub(crate) fn send() -> Opened {
    fn prepare(udp: &mut Udp) {
        // Drain the datagrams that were sent before.
        if udp.pair.publisher.sealed() > Sequence::NONE {
            udp.receive();
        }
        udp.prepare();
        udp.publish();
    }
    has_runs()?;
    steps(over_udp(), prepare, Udp::send)
}

/// Receives full datagrams from the kernel, in runs.
pub(crate) fn receive() -> Opened {
    fn prepare(udp: &mut Udp) {
        udp.prepare();
        udp.publish();
        udp.send();
    }
    has_runs()?;
    steps(over_udp(), prepare, Udp::receive)
}

/// From published to delivered through both cores, without a transport.
pub(crate) fn cores() -> Opened {
    fn run(pair: &mut Pair) -> u64 {
        let before = pair.application.records;
        (0..DATAGRAMS * u64::from(RECORDS)).for_each(|_| pair.publish());
        pair.publisher.flush(pair.now, true);
        if let Some(Transmit::Slots(range)) = pair.publisher.poll_transmit(FAN_OUT) {
            range.iter().for_each(|sequence| pair.deliver(sequence));
            pair.publisher.handle_posted(FAN_OUT, range.last);
            pair.publisher.handle_completed(FAN_OUT, range.last);
        }
        pair.application.records - before
    }
    fn prepare(pair: &mut Pair) {
        pair.pass(Nanos::from_us(10));
        pair.look_after();
    }
    steps(Pair::new(), prepare, run)
}

/// From published to delivered over UDP multicast.
pub(crate) fn udp() -> Opened {
    has_runs()?;
    steps(over_udp(), Joined::prepare, Joined::path)
}

/// From published to delivered over shared memory.
pub(crate) fn shm() -> Opened {
    steps(over_shm(), Joined::prepare, Joined::path)
}

/// Like [`udp`], but each record is a datagram of its own and is delivered before the next is published.
pub(crate) fn udp_one() -> Opened {
    has_runs()?;
    steps(over_udp(), Joined::prepare, Joined::path_one)
}

/// Like [`shm`], but each record is a datagram of its own and is delivered before the next is published.
pub(crate) fn shm_one() -> Opened {
    steps(over_shm(), Joined::prepare, Joined::path_one)
}
