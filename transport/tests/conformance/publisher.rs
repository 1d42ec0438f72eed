//! A publisher as shipped, except for its threads: the cores of publishing and repair over one
//! ring, any fan-outs, and control over TCP (and verbs).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tickcast_reliability::control::{FanOutOffer, RepairOffer, UdpLine};
use tickcast_reliability::publish::{
    HeartbeatConfig, PublishError, PublisherConfig, PublisherCore, PublisherEvent, Transmit,
};
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::ring::{Geometry, RingIdentity, RingWriter};
use tickcast_reliability::serve::{
    ChannelInfo, Destination, PeerId, RepairConfig, RepairCore, RepairEvent, RepairInput,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, FanOutId, Now, PeerOrigin, RecordNumber, RepairCounters,
    RepairServiceCounters, SenderCounters, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_transport::FanOut;
use tickcast_transport::control::{
    ConnectionId, ControlServer, ServerConfig, ServerEvent, ShareId,
};
use tickcast_transport::host::mapping::SharedMapping;

use crate::broken::{self, Broken};
use crate::contract::Kept;
use crate::network::{Network, SLOT_LEN};
use crate::verdict::equal;

/// The one channel.
pub const CHANNEL: ChannelId = ChannelId(7);
/// Largest number of datagrams posted at a time.
const POST_MAX: u64 = 64;

/// Returns the record of a number. Records differ in every number and epoch.
pub fn record(epoch: Epoch, number: u64) -> MboMsg {
    MboMsg {
        order_id: number,
        price: (number ^ epoch.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64,
        ts_recv: epoch.0,
        ..MboMsg::default()
    }
}

/// Creates a core over an empty ring of this epoch that begins with `first`.
pub fn core(
    slots: u64,
    (channel, epoch, first): (ChannelId, Epoch, u64),
    fan_outs: u8,
    memory: impl FnOnce(Geometry) -> Option<SharedMapping>,
    now: Now,
) -> (PublisherCore, Arc<SenderCounters>) {
    let geometry = Geometry::new(SLOT_LEN as u32, slots).unwrap();
    let identity = RingIdentity {
        channel,
        epoch,
        config_hash: ConfigHash(1),
        boot_id: [1; 16],
        fan_outs,
        first_sequence: Sequence(first),
        first_record: RecordNumber(1),
    };
    let anywhere = || SharedMapping::memfd("conformance", geometry.bytes()).unwrap();
    let memory = memory(geometry).unwrap_or_else(anywhere);
    let ring = RingWriter::create(Arc::new(memory), geometry, identity).unwrap();
    let counters = Arc::default();
    let config = PublisherConfig::default();
    let core = PublisherCore::new(config, ring, Arc::clone(&counters), now.monotonic);
    (core, counters)
}

/// A fan-out of the ring, and the gate in front of it.
pub struct Way {
    pub fan_out: Kept,
    network: Rc<dyn Network>,
    shut: Arc<AtomicBool>,
    stopped: bool,
}

impl Way {
    /// Stops the sends: below the fan-out if its transport supports that, else in front of it.
    pub fn stall(&mut self, stalled: bool) {
        self.stopped = stalled;
        if !self.network.stall(stalled) {
            self.shut.store(stalled, Relaxed);
        }
    }
}

/// A publisher: cores, ring, fan-outs and control.
pub struct Publisher {
    pub core: PublisherCore,
    pub repair: RepairCore,
    pub ways: Vec<Way>,
    pub epoch: Epoch,
    pub sender: Arc<SenderCounters>,
    pub repaired: Arc<RepairCounters>,
    pub service: Arc<RepairServiceCounters>,
    /// Records published.
    pub records: u64,
    pub server: ControlServer,
    /// The ring, if it can be READ.
    shared: Option<ShareId>,
    by_connection: BTreeMap<ConnectionId, PeerId>,
    last_peer: u64,
    position: u64,
    batch: RecordBatch,
    out: Vec<u8>,
}

impl Publisher {
    /// Opens `epoch` over a ring of `slots` slots, which is sent on all of `networks`.
    pub fn open(
        networks: &[Rc<dyn Network>],
        broken: Option<Broken>,
        (slots, epoch): (u64, u64),
        control: SocketAddr,
        now: Now,
    ) -> Self {
        let epoch = Epoch(epoch);
        let fan_outs = networks.len() as u8;
        let memory = |of| networks.iter().find_map(|network| network.memory(of));
        let (core, sender) = core(slots, (CHANNEL, epoch, 1), fan_outs, memory, now);
        let ways = networks.iter().map(|network| {
            let fan_out = network.fan_out(&core.ring().memory());
            let shut = Arc::new(AtomicBool::new(false));
            Way {
                fan_out: Kept::new(broken::fan_out(broken, fan_out), Arc::clone(&shut)),
                network: Rc::clone(network),
                shut,
                stopped: false,
            }
        });
        let ways = ways.collect();
        // Subscribers of the suite know the addresses; the offer states only the number of lines.
        let line = UdpLine {
            group: SocketAddrV4::new(Ipv4Addr::new(239, 0, 0, 1), 4000),
            sender: Ipv4Addr::LOCALHOST,
        };
        let offers = networks.iter().map(|network| FanOutOffer::Udp {
            lines: vec![line; network.lines()],
        });
        let info = ChannelInfo {
            name: "conformance".into(),
            fan_outs: offers.collect(),
            directory: Vec::new(),
            heartbeat: HeartbeatConfig::default(),
        };
        let repaired: Arc<RepairCounters> = Arc::default();
        let service: Arc<RepairServiceCounters> = Arc::default();
        let channels = vec![(info, core.ring().reader(), Arc::clone(&repaired))];
        let config = RepairConfig::default();
        let name = "conformance".into();
        let (secret, counted) = ([epoch.0 as u8; 32], Arc::clone(&service));
        let repair = RepairCore::new(config, name, channels, counted, secret, now);
        Self {
            core,
            repair,
            ways,
            epoch,
            sender,
            repaired,
            service,
            records: 0,
            server: ControlServer::bind(control, ServerConfig::default()).unwrap(),
            shared: None,
            by_connection: BTreeMap::new(),
            last_peer: 0,
            position: 0,
            batch: RecordBatch::default(),
            out: Vec::new(),
        }
    }

    /// Turns on repairs over verbs: accepts NACK connections, and lets every peer READ the ring and write
    /// a cursor.
    pub fn repair_over_verbs(&mut self, at: Ipv4Addr) {
        let address = SocketAddrV4::new(at, 0);
        let address = self.server.listen_over_verbs(address).unwrap();
        let (ring, memory) = (self.server.create_share(), self.core.ring().memory());
        self.server.share(ring, memory, address).unwrap();
        self.shared = Some(ring);
        self.server.share_cursors(16, address).unwrap();
        let offer = RepairOffer::Verbs {
            address,
            read: true,
            mirror: false,
        };
        self.repair.set_repair_offers(vec![offer]);
    }

    /// Returns the address for connections.
    pub fn control(&self) -> SocketAddr {
        self.server.local_address().unwrap()
    }

    /// Publishes one message of `records` records and seals it. Returns whether it fits a datagram.
    pub fn publish(&mut self, records: u64, now: Now) -> bool {
        self.batch.clear();
        for number in self.records + 1..=self.records + records {
            self.batch.put(&record(self.epoch, number));
        }
        self.position += 1;
        let position = SourcePosition::new(0, self.position);
        let result = self.core.publish(&self.batch, SourceId(1), position, now);
        self.core.flush(now, true);
        self.reset_fan_outs();
        match result {
            Ok(()) => self.records += records,
            Err(PublishError::TooLarge { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        result.is_ok()
    }

    /// Ends the session.
    pub fn end(&mut self, now: Now) {
        self.core.end(now).unwrap();
        self.reset_fan_outs();
    }

    fn reset_fan_outs(&mut self) {
        while let Some(event) = self.core.poll() {
            if let PublisherEvent::FanOutReset { fan_out, .. } = event {
                self.ways[usize::from(fan_out.0)].fan_out.reset();
            }
        }
    }

    /// Returns whether all fan-outs have sent and completed everything.
    pub fn is_sent(&self) -> bool {
        let sealed = self.core.sealed();
        (0..self.ways.len()).all(|way| {
            self.core.posted(FanOutId(way as u8)) == sealed && self.ways[way].fan_out.is_done()
        })
    }

    /// Runs one round. Returns whether there was anything to do.
    pub fn round(&mut self, now: Now) -> bool {
        let mut worked = self.receive(now);
        for (connection, _, words) in self.server.cursors() {
            let peer = self.by_connection[&connection];
            self.repair.handle_cursor(now, peer, CHANNEL, &words);
        }
        self.repair.handle(now, RepairInput::Timeout);
        worked |= self.answer(now);
        while let Some(event) = self.repair.poll() {
            match event {
                RepairEvent::Close { peer, .. } => {
                    if let Some(connection) = self.connection(peer) {
                        self.server.close(connection, None);
                    }
                }
                RepairEvent::ReadJoined { peer, .. } => {
                    if let (Some(connection), Some(ring)) = (self.connection(peer), self.shared) {
                        self.server.grant(connection, ring).unwrap();
                        self.server.grant_cursor(connection, ring).unwrap();
                    }
                }
                _ => {}
            }
        }
        let (subscribers, hold_off_us) = self.repair.group(CHANNEL);
        self.core.set_group(subscribers, hold_off_us);
        self.core.handle_timeout(now);
        self.reset_fan_outs();
        for way in 0..self.ways.len() {
            worked |= self.transmit(way);
        }
        worked
    }

    fn transmit(&mut self, way: usize) -> bool {
        let id = FanOutId(way as u8);
        let fan_out = &mut self.ways[way].fan_out;
        let mut worked = false;
        while let Some(transmit) = self.core.poll_transmit(id) {
            match transmit {
                Transmit::Slots(all) => {
                    let last = all.last.min(all.first.plus(POST_MAX - 1));
                    let range = SequenceRange { last, ..all };
                    let posted = fan_out.post(self.core.ring(), range).unwrap();
                    if let Some(last) = posted.last {
                        self.core.handle_posted(id, last);
                        worked = true;
                    }
                    if posted.last != Some(range.last) {
                        break;
                    }
                }
                Transmit::Heartbeat(bytes) => {
                    fan_out.send_copy(&bytes).unwrap();
                }
            }
        }
        if let Some(completed) = fan_out.completed() {
            self.core.handle_completed(id, completed);
        }
        worked
    }

    fn receive(&mut self, now: Now) -> bool {
        let mut worked = false;
        let (core, peers, last) = (
            &mut self.repair,
            &mut self.by_connection,
            &mut self.last_peer,
        );
        let polled = self.server.poll(Some(Duration::ZERO), |event| {
            worked = true;
            match event {
                ServerEvent::Connected(connection, address, carrier) => {
                    *last += 1;
                    peers.insert(connection, PeerId(*last));
                    let origin = PeerOrigin::of(address.ip());
                    core.handle(now, RepairInput::Connected(PeerId(*last), carrier, origin));
                }
                ServerEvent::Unconfirmed(connection, bytes) => {
                    core.handle(now, RepairInput::InFlight(peers[&connection], bytes));
                }
                ServerEvent::Frame(connection, channel, message) => {
                    core.handle(
                        now,
                        RepairInput::Message(peers[&connection], channel, &message),
                    );
                }
                ServerEvent::Closed(connection, reason) => {
                    let Some(peer) = peers.remove(&connection) else {
                        return;
                    };
                    if let tickcast_transport::control::CloseReason::Protocol(error) = &reason {
                        core.handle(now, RepairInput::Malformed(peer, &error.to_string()));
                    }
                    core.handle(now, RepairInput::Disconnected(peer));
                }
                ServerEvent::Granted(connection, _, access) => {
                    core.grant(now, peers[&connection], CHANNEL, access);
                }
                ServerEvent::CursorGranted(connection, _, access) => {
                    core.grant_cursor(peers[&connection], CHANNEL, access);
                }
                ServerEvent::CursorRefused(..) | ServerEvent::JoinOverdue(_) => {}
            }
        });
        polled.unwrap();
        worked
    }

    fn answer(&mut self, now: Now) -> bool {
        let mut worked = false;
        loop {
            self.out.clear();
            let Some(destination) = self.repair.poll_transmit(now, &mut self.out) else {
                break;
            };
            worked = true;
            match destination {
                Destination::Peer(peer) => {
                    let Some(connection) = self.connection(peer) else {
                        continue;
                    };
                    if self.server.send_frames(connection, &self.out).is_err() {
                        self.server.close(connection, None);
                    }
                }
                Destination::Multicast(_) => {
                    for way in &mut self.ways {
                        way.fan_out.send_copy(&self.out).unwrap();
                    }
                }
            }
        }
        self.server.flush();
        for (connection, info) in self.server.peers() {
            if let Some(peer) = self.by_connection.get(&connection) {
                self.repair
                    .handle(now, RepairInput::Backlog(*peer, info.backlog_bytes));
            }
        }
        worked
    }

    fn connection(&self, peer: PeerId) -> Option<ConnectionId> {
        let mut all = self.by_connection.iter();
        all.find(|(_, of)| **of == peer)
            .map(|(connection, _)| *connection)
    }

    /// Checks that its counters balance, with each other and with those of its fan-outs. Everything must have
    /// been sent.
    pub fn account(&self) -> Result<(), String> {
        let c = &self.repaired;
        let settled = c.answered.get()
            + c.answered_by_multicast.get()
            + c.refused_window.get()
            + c.refused_ahead.get()
            + c.refused_budget.get()
            + c.refused_too_slow.get()
            + c.refused_epoch.get()
            + c.refused_malformed.get()
            + c.repairs_cancelled.get()
            + c.pending.get();
        equal("sequences nacked, and settled", c.nacked.get(), settled)?;
        let s = &self.sender;
        equal("records published", s.published_records.get(), self.records)?;
        equal(
            "datagrams sent and skipped, and sealed for each fan-out",
            s.sent_datagrams.get() + s.skipped_datagrams.get(),
            s.sealed_datagrams.get() * self.ways.len() as u64,
        )?;
        for (index, way) in self.ways.iter().enumerate() {
            let account = way.fan_out.account();
            account.map_err(|what| format!("fan-out {index}: {what}"))?;
        }
        Ok(())
    }
}
