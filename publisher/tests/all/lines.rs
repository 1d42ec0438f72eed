//! Lines of a fan-out are independent: a line that stops delays no datagram of the other, and returns alone.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use serde_json::json;
use tickcast_publisher::Config;
use tickcast_publisher::internal::{ChannelDriver, ChannelShared, Plan};
use tickcast_reliability::publish::PublisherConfig;
use tickcast_reliability::record::{MboMsg, RType, RecordBatch, RecordHeader};
use tickcast_reliability::ring::{RingIdentity, RingWriter};
use tickcast_reliability::types::{
    Epoch, Nanos, Now, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::Datagram;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::udp::UdpFanOut;
use tickcast_transport::{FanOut, FanOutError, Posted, SendStats, Slots};

const SLOTS: u64 = 1024;
/// A line is reset when it holds all slots but an eighth.
const HELD_MAX: u64 = SLOTS / 8 * 7;

/// A channel with two lines, and a driver that publishes on it.
struct Channel {
    driver: ChannelDriver,
    shared: Arc<ChannelShared>,
    published: u64,
}

const NOW: Now = Now {
    monotonic: Nanos(1),
    utc: Nanos(1),
};

impl Channel {
    fn new(lines: Vec<Box<dyn FanOut>>) -> Self {
        let config = json!({
            "name": "lines", "interface": "lo",
            "channels": [{
                "id": 1, "name": "all", "slot_len": 1024, "slots": SLOTS,
                "peak_datagrams_per_s": 10,
                "fan_out": [{ "transport": "udp", "lines": [
                    { "group": "239.255.90.1:7590" }, { "group": "239.255.90.2:7590" },
                ] }],
            }],
            "inputs": [{ "source": 1, "kind": "simulator", "messages": 10 }],
        });
        let plan = Plan::new(Config::parse(&config.to_string()).unwrap()).unwrap();
        let plan = plan.channels.into_iter().next().unwrap();
        let memory = SharedMapping::memfd("lines", plan.geometry.bytes()).unwrap();
        let identity = RingIdentity {
            channel: plan.id,
            epoch: Epoch(1),
            config_hash: plan.config_hash,
            boot_id: [0; 16],
            fan_outs: lines.len() as u8,
            first_sequence: Sequence::FIRST,
            first_record: RecordNumber::FIRST,
        };
        let ring = RingWriter::create(Arc::new(memory), plan.geometry, identity).unwrap();
        let shared = Arc::new(ChannelShared::new(plan, ring.reader()));
        let config = PublisherConfig::default();
        let driver = ChannelDriver::new(config, ring, lines, false, shared.clone(), NOW.monotonic);
        Self {
            driver,
            shared,
            published: 0,
        }
    }

    /// Publishes a datagram and sends what is due.
    fn publish(&mut self) {
        let mut message = RecordBatch::default();
        message.put(&MboMsg {
            hd: RecordHeader::new::<MboMsg>(RType::Mbo as u8, 2, 7, 0),
            ..MboMsg::default()
        });
        self.published += 1;
        let at = SourcePosition::new(0, self.published);
        let published = self.driver.publish((&message).into(), SourceId(1), at, NOW);
        published.unwrap();
        self.driver.flush(NOW);
        self.driver.drive(NOW).unwrap();
    }

    fn resets(&self) -> u64 {
        self.shared.sender.fan_out_resets.get()
    }

    fn skipped(&self, line: usize) -> u64 {
        self.shared.lines[0][line].line_skipped.get()
    }
}

/// Receives the sequences of all datagrams that wait in a socket.
fn drain(socket: &UnixDatagram, into: &mut Vec<u64>) -> usize {
    let mut bytes = [0; 1024];
    let before = into.len();
    while let Ok(len) = socket.recv(&mut bytes) {
        into.push(Datagram::parse(&bytes[..len]).unwrap().header().sequence.0);
    }
    into.len() - before
}

/// Returns two lines over local sockets, whose queues fill, and their far ends.
fn udp_lines() -> (Vec<Box<dyn FanOut>>, Vec<UnixDatagram>) {
    let (mut near, mut far) = (Vec::<OwnedFd>::new(), Vec::new());
    for _ in 0..2 {
        let (from, to) = UnixDatagram::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        near.push(from.into());
        far.push(to);
    }
    let line = |near: OwnedFd| Box::new(UdpFanOut::over(vec![near], 1024)) as Box<dyn FanOut>;
    (near.into_iter().map(line).collect(), far)
}

#[test]
fn stuck_udp_line_delays_no_datagram_of_the_other() {
    let (lines, far) = udp_lines();
    let mut channel = Channel::new(lines);
    let (mut on_a, mut on_b) = (Vec::new(), Vec::new());
    // Nobody reads line A, through more than three rounds of the ring.
    for n in 1..=4 * SLOTS {
        channel.publish();
        assert_eq!(drain(&far[1], &mut on_b), 1, "B sent {n} at once");
    }
    let (resets, skipped) = (channel.resets(), channel.skipped(0));
    assert!(
        resets > 0 && skipped > 0,
        "{resets} resets, {skipped} skipped"
    );
    // A is read again: it returns by itself, and B still sends each at once.
    for _ in 0..SLOTS {
        drain(&far[0], &mut on_a);
        channel.publish();
        assert_eq!(drain(&far[1], &mut on_b), 1);
    }
    drain(&far[0], &mut on_a);
    assert_eq!(on_b, (1..=5 * SLOTS).collect::<Vec<_>>());
    assert!(on_a.is_sorted(), "A sends in order");
    assert_eq!(on_a.last(), Some(&(5 * SLOTS)), "A sends the newest again");
    assert_eq!(channel.resets(), resets, "A needs no further reset");
    assert_eq!(channel.skipped(0), skipped);
    assert_eq!(
        on_a.len() as u64 + skipped,
        5 * SLOTS,
        "each datagram of A is sent once, or counted"
    );
    assert_eq!(channel.skipped(1), 0);
}

/// A line that a test stops. It takes slots, as a device does, until its queue is full, and keeps them
/// until they complete.
struct Held {
    state: Arc<HeldState>,
    completed: Option<Sequence>,
    stats: [SendStats; 1],
}

#[derive(Default)]
struct HeldState {
    is_stopped: AtomicBool,
    posted: Mutex<Vec<u64>>,
    /// The last sequence posted, and the oldest one pinned; 0: none.
    last: AtomicU64,
    pinned: AtomicU64,
    resets: AtomicU64,
}

const DEPTH: u64 = 100;

impl FanOut for Held {
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError> {
        let mut last = None;
        for sequence in range.iter() {
            let pinned = self.state.pinned.load(Relaxed);
            if pinned != 0 && sequence.0 - pinned >= DEPTH {
                break;
            }
            assert!(slots.slot(sequence).is_some(), "{sequence} is held");
            self.state.posted.lock().unwrap().push(sequence.0);
            self.state.last.store(sequence.0, Relaxed);
            if pinned == 0 {
                self.state.pinned.store(sequence.0, Relaxed);
            }
            last = Some(sequence);
        }
        let stalled = last != Some(range.last);
        Ok(Posted { last, stalled })
    }

    fn completed(&mut self) -> Option<Sequence> {
        if !self.state.is_stopped.load(Relaxed) && self.state.pinned.swap(0, Relaxed) != 0 {
            self.completed = Some(Sequence(self.state.last.load(Relaxed)));
        }
        self.completed
    }

    fn send_copy(&mut self, _: &[u8]) -> Result<bool, FanOutError> {
        Ok(true)
    }

    fn reset(&mut self) {
        self.state.pinned.store(0, Relaxed);
        self.state.resets.fetch_add(1, Relaxed);
        self.completed = None;
    }

    fn datagram_len_max(&self) -> usize {
        1024
    }

    fn stats(&self) -> &[SendStats] {
        &self.stats
    }
}

fn held_lines() -> (Vec<Box<dyn FanOut>>, [Arc<HeldState>; 2]) {
    let states = [(); 2].map(|()| Arc::new(HeldState::default()));
    let line = |state: &Arc<HeldState>| {
        Box::new(Held {
            state: state.clone(),
            completed: None,
            stats: [SendStats::default()],
        }) as Box<dyn FanOut>
    };
    (states.iter().map(line).collect(), states)
}

#[test]
fn line_without_completions_is_torn_down_alone() {
    let (lines, [a, b]) = held_lines();
    let mut channel = Channel::new(lines);
    a.is_stopped.store(true, Relaxed);
    for n in 1..=3 * SLOTS {
        channel.publish();
        assert_eq!(b.last.load(Relaxed), n, "B posts each at once");
        let pinned = a.pinned.load(Relaxed);
        assert!(
            pinned == 0 || n - pinned < SLOTS,
            "{n} was sealed over {pinned}, which A still pins"
        );
        // Once the ring is nearly full, A lets go of it, before the next datagram opens.
        assert!(pinned == 0 || n - pinned <= HELD_MAX, "{n}, {pinned}");
    }
    let resets = a.resets.load(Relaxed);
    assert_eq!((resets, b.resets.load(Relaxed)), (3, 0));
    a.is_stopped.store(false, Relaxed);
    for n in 3 * SLOTS + 1..=4 * SLOTS {
        channel.publish();
        assert_eq!(b.last.load(Relaxed), n);
    }
    assert_eq!(a.last.load(Relaxed), 4 * SLOTS, "A returned by itself");
    assert_eq!(a.resets.load(Relaxed), resets);
    let (of_a, of_b) = (a.posted.lock().unwrap(), b.posted.lock().unwrap());
    assert_eq!(*of_b, (1..=4 * SLOTS).collect::<Vec<_>>());
    assert_eq!(of_a.len() as u64 + channel.skipped(0), 4 * SLOTS);
    assert_eq!((channel.resets(), channel.skipped(1)), (resets, 0));
}

#[test]
fn returning_line_catches_up_in_steps_beside_the_other() {
    let (lines, [a, b]) = held_lines();
    let mut channel = Channel::new(lines);
    a.is_stopped.store(true, Relaxed);
    for _ in 0..HELD_MAX / 2 {
        channel.publish();
    }
    assert_eq!(a.last.load(Relaxed), DEPTH);
    a.is_stopped.store(false, Relaxed);
    channel.publish();
    let mut rounds = 0;
    while a.last.load(Relaxed) < channel.published {
        let before = a.last.load(Relaxed);
        channel.publish();
        assert_eq!(b.last.load(Relaxed), channel.published);
        assert!(
            a.last.load(Relaxed) - before <= 65,
            "A posts the new datagram and one step of its backlog"
        );
        rounds += 1;
    }
    assert!(rounds >= 4, "it takes {rounds} rounds");
    assert_eq!((channel.resets(), channel.skipped(0)), (0, 0));
    assert_eq!(*a.posted.lock().unwrap(), *b.posted.lock().unwrap());
}
