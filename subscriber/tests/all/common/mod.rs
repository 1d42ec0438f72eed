//! A publisher in a thread of the test: the shipped cores over loopback sockets. The test decides what it
//! publishes, and when.

#![allow(unreachable_pub, reason = "private module of a test")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tickcast_reliability::control::{FanOutOffer, Instrument, UdpLine};
use tickcast_reliability::publish::{HeartbeatConfig, PublisherConfig, PublisherCore, Transmit};
use tickcast_reliability::record::{
    Action, BidAskPair, HasRType, MboMsg, Mbp1Msg, RecordBatch, RecordHeader, StatusAction,
    StatusMsg, SymbolMappingMsg, TradeMsg, WireRecord,
};
use tickcast_reliability::ring::{Geometry, HeapMemory, RingIdentity, RingWriter};
use tickcast_reliability::serve::{
    ChannelInfo, Destination, PeerId, RepairConfig, RepairCore, RepairEvent, RepairInput,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, FanOutId, Now, PeerOrigin, RecordNumber, Sequence, SourceId,
    SourcePosition,
};
use tickcast_subscriber::{
    Event, Item, Polled, Position, SourceLossReason, StreamEvent, Subscriber, SubscriberBuilder,
};
use tickcast_transport::FanOut;
use tickcast_transport::control::{ConnectionId, ControlServer, ServerConfig, ServerEvent};
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{UdpFanOut, UdpFanOutConfig, UdpSendLine};

/// A time limit that turns a hang into a failure. No wait in these tests takes this long.
pub const PATIENCE: Duration = Duration::from_secs(600);
pub const CHANNEL: ChannelId = ChannelId(1);
const FAN_OUT: FanOutId = FanOutId(0);

pub fn free_group() -> SocketAddrV4 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    let group = Ipv4Addr::new(239, 254, (pid % 251) as u8, (1 + n % 250) as u8);
    let port = 20_000 + ((pid.wrapping_mul(31) + n * 7) % 30_000) as u16;
    SocketAddrV4::new(group, port)
}

type Job = Box<dyn FnOnce(&mut Service) + Send>;

/// A publisher of one channel, "all", number 1.
pub struct Publisher {
    jobs: Sender<Job>,
    thread: Option<JoinHandle<()>>,
    pub control: SocketAddr,
}

impl Publisher {
    pub fn start() -> Self {
        Self::listing(&[])
    }

    /// Starts a publisher whose WELCOME lists these instruments.
    pub fn listing(directory: &[(u32, &str)]) -> Self {
        let directory = directory.iter().map(|(id, symbol)| Instrument {
            id: *id,
            symbol: (*symbol).into(),
        });
        let directory: Vec<Instrument> = directory.collect();
        Self::serving(|server| Service::new(server, directory))
    }

    /// Starts a publisher that offers more transports than UDP multicast, which comes first.
    pub fn offering(more: Vec<FanOutOffer>) -> Self {
        Self::serving(|server| {
            let mut service = Service::new(server, Vec::new());
            service.offers.extend(more);
            (service.core, service.repair) = cores("all", CHANNEL, 1, &service.offers, &[]);
            service
        })
    }

    fn serving(service: impl FnOnce(ControlServer) -> Service) -> Self {
        let server = ControlServer::bind("127.0.0.1:0".parse().unwrap(), ServerConfig::default());
        let server = server.unwrap();
        let control = server.local_address().unwrap();
        let (jobs, inbox) = channel();
        let service = service(server);
        let thread = std::thread::spawn(move || service.run(&inbox));
        Self {
            jobs,
            thread: Some(thread),
            control,
        }
    }

    pub fn subscriber(&self) -> SubscriberBuilder {
        Subscriber::builder(self.control.to_string()).seed(1)
    }

    /// Runs a job in the publisher's thread and waits for its end.
    pub fn with(&self, job: impl FnOnce(&mut Service) + Send + 'static) {
        let (done, wait) = channel();
        let job = Box::new(move |service: &mut Service| {
            job(service);
            let _ = done.send(());
        });
        self.jobs.send(job).unwrap();
        wait.recv_timeout(PATIENCE)
            .expect("the publisher does its work");
    }

    /// Publishes records, each as its own message.
    pub fn publish<R: WireRecord + Clone + Send + 'static>(&self, records: Vec<R>) {
        self.with(move |service| {
            let mut batch = RecordBatch::default();
            for record in &records {
                batch.clear();
                batch.put(record);
                service.publish(&batch);
            }
            service.flush();
        });
    }

    /// Publishes quotes of `instruments` instruments in turn, numbered by their bid size.
    pub fn quotes(&self, instruments: u32, numbers: std::ops::Range<u32>) {
        for start in numbers.clone().step_by(500) {
            let end = numbers.end.min(start + 500);
            let quotes = (start..end)
                .map(|n| quote(1 + n % instruments, n))
                .collect();
            self.publish(quotes);
        }
    }

    /// Publishes a loss of this many messages of instrument 1 at the source.
    pub fn lose_at_source(&self, messages: u64) {
        self.with(move |service| {
            let lost = StreamEvent::SourceLost {
                source: SourceId(1),
                reason: SourceLossReason::Gap,
                from: SourcePosition::new(0, 1),
                messages,
                instruments: vec![1],
            };
            service.core.event(&lost, now()).unwrap();
            service.send();
        });
    }

    pub fn end(&self) {
        self.with(|service| {
            service.core.end(now()).unwrap();
            service.send();
        });
    }

    /// Continues in another epoch with an empty ring. All connections break.
    pub fn new_epoch(&self) {
        self.with(Service::new_epoch);
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        let (jobs, _) = channel();
        drop(std::mem::replace(&mut self.jobs, jobs));
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "the publisher panicked"
            );
        }
    }
}

/// The state of the publisher's thread.
pub struct Service {
    pub core: PublisherCore,
    repair: RepairCore,
    server: ControlServer,
    fan_out: UdpFanOut,
    offers: Vec<FanOutOffer>,
    peers: BTreeMap<ConnectionId, PeerId>,
    last_peer: u64,
    epoch: u64,
    position: u64,
    directory: Vec<Instrument>,
    /// The channel's name, from the next epoch on.
    pub name: &'static str,
    /// The channel's number, from the next epoch on.
    pub channel: ChannelId,
    /// Whether datagrams are sent by multicast.
    pub is_heard: bool,
    /// Whether the repair connection answers.
    pub answers: bool,
}

pub fn now() -> Now {
    Now {
        monotonic: SystemClock.now(),
        utc: SystemClock.utc(),
    }
}

fn cores(
    name: &str,
    channel: ChannelId,
    epoch: u64,
    offers: &[FanOutOffer],
    directory: &[Instrument],
) -> (PublisherCore, RepairCore) {
    let geometry = Geometry::new(1472, 1 << 14).unwrap();
    let identity = RingIdentity {
        channel,
        epoch: Epoch(epoch),
        config_hash: ConfigHash(0),
        boot_id: [0; 16],
        fan_outs: 1,
        first_sequence: Sequence::FIRST,
        first_record: RecordNumber::FIRST,
    };
    let ring = RingWriter::create(Arc::new(HeapMemory::new(geometry)), geometry, identity).unwrap();
    let info = ChannelInfo {
        name: name.into(),
        fan_outs: offers.to_vec(),
        directory: directory.to_vec(),
        heartbeat: HeartbeatConfig::default(),
    };
    let channels = vec![(info, ring.reader(), Arc::default())];
    let config = RepairConfig::default();
    let repair = RepairCore::new(
        config,
        "test".into(),
        channels,
        Arc::default(),
        [epoch as u8; 32],
        now(),
    );
    let started_at = SystemClock.now();
    let core = PublisherCore::new(PublisherConfig::default(), ring, Arc::default(), started_at);
    (core, repair)
}

impl Service {
    fn new(server: ControlServer, directory: Vec<Instrument>) -> Self {
        let group = free_group();
        let line = UdpSendLine {
            group,
            interface: Interface::default(),
        };
        let config = UdpFanOutConfig {
            lines: vec![line],
            ttl: 0,
            send_buffer_bytes: None,
            datagram_len_max: 1472,
            gso: true,
        };
        let fan_out = UdpFanOut::open(&config).unwrap();
        let offers = vec![FanOutOffer::Udp {
            lines: vec![UdpLine {
                group,
                sender: *fan_out.senders()[0].ip(),
            }],
        }];
        let (core, repair) = cores("all", CHANNEL, 1, &offers, &directory);
        Self {
            core,
            repair,
            server,
            fan_out,
            offers,
            peers: BTreeMap::new(),
            last_peer: 0,
            epoch: 1,
            position: 0,
            directory,
            name: "all",
            channel: CHANNEL,
            is_heard: true,
            answers: true,
        }
    }

    /// Lists other instruments, from the next epoch on.
    pub fn list(&mut self, directory: &[(u32, &str)]) {
        let all = directory.iter().map(|(id, symbol)| Instrument {
            id: *id,
            symbol: (*symbol).into(),
        });
        self.directory = all.collect();
    }

    pub fn connections(&self) -> usize {
        self.peers.len()
    }

    fn run(mut self, inbox: &Receiver<Job>) {
        loop {
            match inbox.try_recv() {
                Ok(job) => job(&mut self),
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
            }
            self.serve(Duration::from_micros(200));
        }
    }

    pub fn publish(&mut self, batch: &RecordBatch) {
        self.position += 1;
        let position = SourcePosition::new(0, self.position);
        let published = self.core.publish(batch, SourceId(1), position, now());
        published.expect("the ring has room");
        if self.core.ring().room() < 256 {
            self.send();
        }
    }

    pub fn flush(&mut self) {
        self.core.flush(now(), true);
        self.send();
    }

    pub fn send(&mut self) {
        while let Some(transmit) = self.core.poll_transmit(FAN_OUT) {
            match transmit {
                Transmit::Slots(range) if !self.is_heard => {
                    self.core.handle_posted(FAN_OUT, range.last);
                    self.core.handle_completed(FAN_OUT, range.last);
                }
                Transmit::Heartbeat(_) if !self.is_heard => {}
                Transmit::Slots(range) => {
                    let posted = self.fan_out.post(self.core.ring(), range).unwrap();
                    let Some(last) = posted.last else { break };
                    self.core.handle_posted(FAN_OUT, last);
                    self.core.handle_completed(FAN_OUT, last);
                }
                Transmit::Heartbeat(bytes) => {
                    self.fan_out.send_copy(&bytes).unwrap();
                }
            }
        }
        let _ = self.fan_out.completed();
    }

    fn serve(&mut self, wait: Duration) {
        let Self {
            repair,
            peers,
            last_peer,
            ..
        } = self;
        let polled = self.server.poll(Some(wait), |event| match event {
            ServerEvent::Connected(connection, address, carrier) => {
                *last_peer += 1;
                peers.insert(connection, PeerId(*last_peer));
                let origin = PeerOrigin::of(address.ip());
                repair.handle(
                    now(),
                    RepairInput::Connected(PeerId(*last_peer), carrier, origin),
                );
            }
            ServerEvent::Frame(connection, channel, message) => {
                if let Some(peer) = peers.get(&connection) {
                    repair.handle(now(), RepairInput::Message(*peer, channel, &message));
                }
            }
            ServerEvent::Closed(connection, _) => {
                if let Some(peer) = peers.remove(&connection) {
                    repair.handle(now(), RepairInput::Disconnected(peer));
                }
            }
            _ => {}
        });
        polled.unwrap();
        let now = now();
        self.core.handle_timeout(now);
        self.send();
        self.repair.handle(now, RepairInput::Timeout);
        let mut out = Vec::new();
        while self.answers
            && let Some(destination) = self.repair.poll_transmit(now, &mut out)
        {
            match destination {
                Destination::Peer(peer) => {
                    if let Some((connection, _)) = self.peers.iter().find(|(_, p)| **p == peer) {
                        let _ = self.server.send_frames(*connection, &out);
                    }
                }
                Destination::Multicast(_) if !self.is_heard => {}
                Destination::Multicast(_) => {
                    self.fan_out.send_copy(&out).unwrap();
                }
            }
            out.clear();
        }
        self.server.flush();
        while let Some(event) = self.repair.poll() {
            if let RepairEvent::Close { peer, .. } = event
                && let Some((connection, _)) = self.peers.iter().find(|(_, p)| **p == peer)
            {
                self.server.close(*connection, None);
            }
        }
    }

    fn new_epoch(&mut self) {
        self.epoch += 1;
        (self.core, self.repair) = cores(
            self.name,
            self.channel,
            self.epoch,
            &self.offers,
            &self.directory,
        );
        for connection in std::mem::take(&mut self.peers).into_keys() {
            self.server.close(connection, None);
        }
    }
}

fn header<R: HasRType + WireRecord>(instrument: u32) -> RecordHeader {
    RecordHeader::new::<R>(R::RTYPE, 1, instrument, 1_000)
}

/// Returns a quote that is identified by its bid size.
pub fn quote(instrument: u32, number: u32) -> Mbp1Msg {
    Mbp1Msg {
        hd: header::<Mbp1Msg>(instrument),
        action: Action::Modify as _,
        levels: [BidAskPair {
            bid_sz: number,
            ..BidAskPair::default()
        }],
        ..Mbp1Msg::default()
    }
}

pub fn trade(instrument: u32, number: u32) -> TradeMsg {
    TradeMsg {
        hd: header::<TradeMsg>(instrument),
        size: number,
        action: Action::Trade as _,
        ..TradeMsg::default()
    }
}

pub fn order(instrument: u32, number: u32) -> MboMsg {
    MboMsg {
        hd: header::<MboMsg>(instrument),
        order_id: number.into(),
        ..MboMsg::default()
    }
}

pub fn status(instrument: u32, action: StatusAction) -> StatusMsg {
    StatusMsg {
        hd: header::<StatusMsg>(instrument),
        action: action as u16,
        ..StatusMsg::default()
    }
}

pub fn mapping(instrument: u32, symbol: &str) -> SymbolMappingMsg {
    let mut mapping = SymbolMappingMsg {
        hd: header::<SymbolMappingMsg>(instrument),
        ..SymbolMappingMsg::default()
    };
    for (to, from) in mapping.stype_in_symbol.iter_mut().zip(symbol.bytes()) {
        *to = from as _;
    }
    mapping
}

/// The items that an application received.
#[derive(Default)]
pub struct Seen {
    /// The instrument and number (bid size, trade size or order id) of each record.
    pub records: Vec<(Position, u32, u32)>,
    pub events: Vec<(Position, Event)>,
}

/// Drops an item.
pub fn ignore(_: Item<'_>) {}

impl Seen {
    /// Returns a closure for `poll`. The tests share it, since each closure compiles the receiving side anew.
    pub fn taker(&mut self) -> impl FnMut(Item<'_>) {
        |item| self.take(item)
    }

    pub fn take(&mut self, item: Item<'_>) {
        match item {
            Item::Record(position, record) => {
                let number = if let Some(quote) = record.get::<Mbp1Msg>() {
                    quote.levels[0].bid_sz
                } else if let Some(trade) = record.get::<TradeMsg>() {
                    trade.size
                } else if let Some(order) = record.get::<MboMsg>() {
                    order.order_id as u32
                } else {
                    0
                };
                let instrument = record.header().instrument_id;
                self.records.push((*position, instrument, number));
            }
            Item::Event(position, event) => self.events.push((*position, event.clone())),
        }
    }

    pub fn saw(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.events.iter().any(|(_, event)| wanted(event))
    }

    pub fn numbers(&self) -> Vec<u32> {
        self.records.iter().map(|(_, _, number)| *number).collect()
    }

    /// Returns the last number of each instrument.
    pub fn last(&self) -> BTreeMap<u32, u32> {
        let all = self
            .records
            .iter()
            .map(|(_, instrument, number)| (*instrument, *number));
        all.collect()
    }

    pub fn lost_records(&self) -> u64 {
        let losses = self.events.iter().filter_map(|(_, event)| match event {
            Event::Lost(loss) => loss.records,
            _ => None,
        });
        losses.sum()
    }
}

/// Polls until `done`.
pub fn poll_until(
    subscriber: &mut Subscriber,
    seen: &mut Seen,
    mut done: impl FnMut(&Subscriber, &Seen) -> bool,
) -> Polled {
    let began = Instant::now();
    loop {
        let polled = subscriber.poll(seen.taker());
        if done(subscriber, seen) {
            return polled;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "it never came to that: {:?}, problem {:?}",
            subscriber.channels(),
            subscriber.problem()
        );
        if !polled.worked() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Waits until a condition holds.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what} never happened");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns a subscriber that has joined and follows the stream.
pub fn joined(builder: SubscriberBuilder, seen: &mut Seen) -> Subscriber {
    let mut subscriber = builder.build().unwrap();
    poll_until(&mut subscriber, seen, |_, seen| {
        seen.saw(|event| matches!(event, Event::Joined { .. }))
    });
    // The group is joined with the same poll. Wait until the publisher knows it too.
    poll_until(&mut subscriber, seen, |subscriber, _| {
        subscriber.is_joined()
    });
    subscriber
}

/// Returns a core that this process may run on.
pub fn core() -> tickcast_subscriber::Core {
    let ids = core_affinity::get_core_ids().unwrap_or_default();
    tickcast_subscriber::Core(ids.first().map_or(0, |id| id.id))
}
