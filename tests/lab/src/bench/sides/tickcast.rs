//! tickcast as its users run it: a publisher with ring, fan-out and repair service, and the subscriber
//! library.

use std::net::SocketAddrV4;
use std::time::Duration;

use serde_json::json;
use tickcast_publisher::{Config, InlinePublisher, SourcePosition};
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::record::{
    MboMsg, RecordBatch, RecordHeader, RecordRef, Records, WireRecord,
};
use tickcast_subscriber::{Deliver, Event, Interface, Item, Position, Subscriber, Transport};
use tickcast_transport::host::gauges::SharedGauges;

use super::crowd::Crowd;
use super::{DRAIN, SOCKET_BYTES, gauges};
use crate::bench::protocol::{Among, Load, Outcome, Role, Task, Tick};
use crate::bench::side::{Carry, Take, one_by_one};

/// IP and UDP headers.
const BEFORE: usize = 28;
/// Approximate bytes of the ring: Aeron's three terms of 16 MiB each take the same.
const RING_BYTES: usize = 48 << 20;

/// Maximum number of records that are published together if that many ticks are due: the size of a large
/// venue packet.
const PACKET: usize = 32;

/// Publishes ticks as MBO records.
pub(super) struct Publisher {
    publisher: Option<InlinePublisher>,
    gauges: SharedGauges,
    /// Number of expected followers, counted at each channel.
    followers: usize,
    among: Among,
    /// The channel and the instrument of the next tick.
    channel: u16,
    symbol: u32,
    record: MboMsg,
    /// Ticks that are published together.
    packet: [MboMsg; PACKET],
}

fn channel_name(index: u16) -> String {
    format!("c{index}")
}

impl Publisher {
    pub(super) fn open(task: &Task, group: usize) -> Outcome<Self> {
        // A multiple of 64, and at most the largest size that is carried whole.
        let fits = (task.mtu - BEFORE).min(8_960);
        let slot_len = fits / 64 * 64;
        let among = task.spread;
        let slots = 1_u64 << (RING_BYTES / usize::from(among.channels) / slot_len).ilog2();
        let interface = task.interface.to_string();
        let fan_out = |channel: u16| {
            if task.contender == "tickcast-shm" {
                let path = task.folder.join(format!("ring-{group}-{channel}"));
                return json!({ "transport": "shm", "path": path });
            }
            let to = task.groups[group];
            json!({
                "transport": "udp",
                "lines": [{ "group": SocketAddrV4::new(*to.ip(), to.port() + channel) }],
                "send_buffer_bytes": SOCKET_BYTES,
                "gso": task.contender != "tickcast-no-gso",
            })
        };
        let channel = |index: u16| {
            json!({
                "id": index + 1, "name": channel_name(index), "slot_len": slot_len, "slots": slots,
                // The window keeps a flood within the ring at any rate.
                "peak_datagrams_per_s": slots, "fan_out": [fan_out(index)],
            })
        };
        let channels: Vec<_> = (0..among.channels).map(channel).collect();
        let config = json!({
            "name": "bench",
            "control": format!("{interface}:0"),
            "interface": interface,
            "ttl": u8::from(!task.interface.is_loopback()),
            "inputs": [],
            "channels": channels,
        });
        let publisher = InlinePublisher::open(Config::parse(&config.to_string())?)?;
        Ok(Self {
            publisher: Some(publisher),
            gauges: gauges(task)?,
            followers: usize::from(among.channels)
                * if task.role == Role::Send {
                    task.receivers * among.subscribers
                } else {
                    1
                },
            among,
            channel: 0,
            symbol: 0,
            record: blank(),
            packet: std::array::from_fn(|_| blank()),
        })
    }
}

impl Publisher {
    /// Publishes the records of one venue message.
    #[inline]
    pub(super) fn publish_batch(&mut self, message: &RecordBatch, from: SourcePosition) {
        if let Some(publisher) = &mut self.publisher {
            publisher.publish_batch(0, message, from);
        }
    }
}

impl Carry for Publisher {
    fn address(&self) -> String {
        (self.publisher.as_ref()).map_or_else(String::new, |p| p.control_address().to_string())
    }

    fn is_joined(&mut self) -> bool {
        let Some(publisher) = &self.publisher else {
            return false;
        };
        let monitor = publisher.monitor();
        let followers = monitor.subscribers();
        followers.iter().filter(|s| s.follows).count() >= self.followers
    }

    #[inline]
    fn publish(&mut self, tick: Tick) -> Outcome<bool> {
        fill(&mut self.record, tick, self.symbol);
        if let Some(publisher) = &mut self.publisher {
            let from = SourcePosition::new(0, tick.number);
            publisher.publish(usize::from(self.channel), &self.record, from);
        }
        self.channel = next(self.channel, self.among.channels);
        self.symbol = next(self.symbol, self.among.symbols);
        Ok(true)
    }

    fn publish_run(&mut self, first: u64, count: u64, at: u64) -> Outcome<u64> {
        let only = self.among.channels == 1;
        let publisher = self.publisher.as_mut().filter(|_| only);
        if let Some(mut channel) = publisher.and_then(|publisher| publisher.channel(0)) {
            let mut number = first;
            while number < first + count {
                let due = (first + count - number).min(PACKET as u64);
                let packet = &mut self.packet[..due as usize];
                let position = SourcePosition::new(0, number);
                for record in &mut *packet {
                    fill(record, Tick { number, at }, self.symbol);
                    self.symbol = next(self.symbol, self.among.symbols);
                    number += 1;
                }
                channel.publish_run(packet, position);
            }
            return Ok(count);
        }
        one_by_one(self, first, count, at)
    }

    #[inline]
    fn drive(&mut self) -> Outcome<()> {
        if let Some(publisher) = &mut self.publisher {
            publisher.drive()?;
        }
        Ok(())
    }

    fn received(&self) -> Option<u64> {
        Some(self.gauges.lowest())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(publisher) = self.publisher.take() {
            // The results are already reported, so a failure here does not matter.
            let _ = publisher.end_session(DRAIN);
        }
    }
}

/// Returns a record without the tick's own fields.
fn blank() -> MboMsg {
    MboMsg {
        hd: RecordHeader::new::<MboMsg>(MboMsg::RTYPE, 1, 1, 0),
        size: 100,
        ..MboMsg::default()
    }
}

/// Writes the fields of a tick into a record.
#[inline]
fn fill(record: &mut MboMsg, tick: Tick, symbol: u32) {
    record.hd.ts_event = tick.at;
    record.order_id = tick.number;
    record.price = Tick::check(tick.number) as i64;
    record.ts_recv = tick.at;
    record.sequence = tick.number as u32;
    record.hd.instrument_id = symbol + 1;
}

fn next<N: Copy + PartialOrd + std::ops::Add<Output = N> + From<u8>>(at: N, of: N) -> N {
    let next = at + N::from(1);
    if next < of { next } else { N::from(0) }
}

/// Follows the channels with the subscriber library and its defaults.
pub(super) struct Follower {
    subscriber: Subscriber,
    gauges: SharedGauges,
    index: usize,
    /// Channels that have not joined yet.
    to_join: usize,
    reported: Reported,
}

/// How a delivered record becomes a tick.
enum Reported {
    /// By the number of its tick.
    ByTick,
    /// Any record, by its record number.
    ByRecord,
    /// For several channels, each of which must be in order: by the count of delivered ticks.
    AsItComes {
        last: Vec<u64>,
        count: u64,
        channels: u64,
    },
}

impl Reported {
    #[inline]
    fn tick(&mut self, position: &Position, record: RecordRef<'_>) -> Option<Tick> {
        match self {
            Self::ByTick => tick(record.get::<MboMsg>()),
            Self::ByRecord => {
                let number = position.record.0;
                Some(Tick { number, at: 0 })
            }
            Self::AsItComes {
                last,
                count,
                channels,
            } => {
                let tick = tick(record.get::<MboMsg>())?;
                let last = last.get_mut(usize::from(position.channel.0).checked_sub(1)?)?;
                let is_in_order = tick.number == last.wrapping_add(*channels);
                *last = tick.number;
                *count += 1;
                let number = *count;
                is_in_order.then_some(Tick { number, ..tick })
            }
        }
    }
}

/// Calls `on` with each delivered tick.
struct Telling<'a, F> {
    reported: &'a mut Reported,
    to_join: &'a mut usize,
    on: &'a mut F,
}

impl<F: FnMut(Option<Tick>, bool)> Deliver for Telling<'_, F> {
    #[inline]
    fn item(&mut self, item: Item<'_>) {
        match item {
            Item::Record(position, record) => {
                let tick = self.reported.tick(position, record);
                (self.on)(tick, position.quality.repaired);
            }
            Item::Event(_, Event::Joined { .. }) => *self.to_join = self.to_join.saturating_sub(1),
            Item::Event(..) => {}
        }
    }

    #[inline]
    fn records(&mut self, first: &Position, records: Records<'_>) {
        let run = records.all_of::<MboMsg>();
        let Some(run) = run.filter(|_| matches!(self.reported, Reported::ByTick)) else {
            return self.one_by_one(first, records);
        };
        for record in run {
            (self.on)(tick(Some(record)), first.quality.repaired);
        }
    }
}

impl Follower {
    pub(super) fn join(task: &Task, address: &str) -> Outcome<Self> {
        Self::join_as(task, address, 0)
    }

    /// Joins several subscribers in one process.
    pub(super) fn join_crowd(task: &Task, address: &str) -> Outcome<Crowd<Self>> {
        let members = 0..task.spread.subscribers;
        let all = members.map(|member| Self::join_as(task, address, member));
        Ok(Crowd::of(all.collect::<Outcome<_>>()?))
    }

    fn join_as(task: &Task, address: &str, member: usize) -> Outcome<Self> {
        let channels = task.spread.channels;
        let transport = if task.contender == "tickcast-shm" {
            Transport::Shm
        } else {
            Transport::Udp
        };
        let mut builder = Subscriber::builder(address)
            .name(format!("bench-{}-{member}", task.index))
            .interface(Interface::Address(task.interface))
            .transport(transport)
            .gro(task.contender != "tickcast-no-gso")
            .join_limit(Duration::from_secs(10));
        for index in 0..channels {
            builder = builder.channel(channel_name(index));
        }
        if let Some(loss) = task.loss {
            builder = builder.faults(FaultConfig {
                seed: loss.seed,
                drop: loss.rate,
                ..FaultConfig::default()
            });
        }
        Ok(Self {
            subscriber: builder.build()?,
            gauges: gauges(task)?,
            index: task.index,
            to_join: usize::from(channels),
            reported: match task.load {
                Load::Feed { .. } => Reported::ByRecord,
                _ if channels == 1 => Reported::ByTick,
                // Before its first tick, a channel's last number is that of the tick before.
                _ => Reported::AsItComes {
                    last: (1..=u64::from(channels))
                        .map(|first| first.wrapping_sub(u64::from(channels)))
                        .collect(),
                    count: 0,
                    channels: u64::from(channels),
                },
            },
        })
    }
}

impl Take for Follower {
    fn is_joined(&mut self) -> bool {
        self.to_join == 0
    }

    #[inline]
    fn poll(&mut self, mut on: impl FnMut(Option<Tick>, bool)) -> Outcome<bool> {
        let polled = self.subscriber.poll_batches(&mut Telling {
            reported: &mut self.reported,
            to_join: &mut self.to_join,
            on: &mut on,
        });
        if polled.problem
            && let Some(problem) = self.subscriber.problem()
            && self.to_join > 0
        {
            return Err(problem.into());
        }
        Ok(polled.worked())
    }

    fn received(&mut self, number: u64) {
        self.gauges.set(self.index, number);
    }

    fn declared_lost(&mut self) -> u64 {
        let monitor = self.subscriber.monitor();
        let channels = monitor.channels();
        channels.iter().map(|c| c.counters.lost_records.get()).sum()
    }

    fn notes(&self) -> Vec<String> {
        let monitor = self.subscriber.monitor();
        let of = |channel: &tickcast_subscriber::ChannelReport| {
            let c = &channel.counters;
            let (datagrams, found) = (c.received_datagrams.get(), c.missing_datagrams.get());
            let (came, nacks) = (c.missing_recovered.get(), c.nacks_sent.get());
            format!("{datagrams} datagrams, {found} missing of which {came} came, {nacks} NACKs")
        };
        monitor.channels().iter().map(of).collect()
    }
}

#[inline]
fn tick(record: Option<&MboMsg>) -> Option<Tick> {
    let record = record?;
    let (number, at) = (record.order_id, record.ts_recv);
    (record.price == Tick::check(number) as i64).then_some(Tick { number, at })
}
