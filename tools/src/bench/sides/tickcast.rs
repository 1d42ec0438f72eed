//! tickcast as its users have it: a publisher with ring, fan-out and repair service, and the
//! subscriber library.

use std::time::Duration;

use serde_json::json;
use tickcast_publisher::inline::InlinePublisher;
use tickcast_publisher::{Config, SourcePosition};
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::record::{MboMsg, RecordBatch, RecordHeader, WireRecord};
use tickcast_subscriber::{Event, Interface, Item, Subscriber, Transport};
use tickcast_transport::gauges::SharedGauges;

use super::{DRAIN, SOCKET_BYTES, gauges};
use crate::bench::protocol::{Load, Outcome, Role, Task, Tick};
use crate::bench::side::{Carry, Take};

const CHANNEL: &str = "all";
/// IP and UDP headers.
const BEFORE: usize = 28;
/// Bytes of the ring, about: what Aeron's three terms take, of 16 MiB each.
const RING_BYTES: usize = 48 << 20;

/// Publishes ticks as MBO records.
pub(super) struct Publisher {
    publisher: Option<InlinePublisher>,
    gauges: SharedGauges,
    receivers: usize,
    record: MboMsg,
}

impl Publisher {
    pub(super) fn open(task: &Task, group: usize) -> Outcome<Self> {
        // A multiple of 64, as the largest that is carried whole.
        let fits = (task.mtu - BEFORE).min(8_960);
        let slot_len = fits / 64 * 64;
        let slots = 1_u64 << (RING_BYTES / slot_len).ilog2();
        let interface = task.interface.to_string();
        let fan_out = if task.contender == "tickcast-shm" {
            json!({ "transport": "shm", "path": task.folder.join(format!("ring-{group}")) })
        } else {
            json!({
                "transport": "udp",
                "lines": [{ "group": task.groups[group] }],
                "send_buffer_bytes": SOCKET_BYTES,
                "gso": task.contender != "tickcast-no-gso",
            })
        };
        let config = json!({
            "name": "bench",
            "control": format!("{interface}:0"),
            "interface": interface,
            "ttl": u8::from(!task.interface.is_loopback()),
            "inputs": [],
            "channels": [{
                "id": 1, "name": CHANNEL, "slot_len": slot_len, "slots": slots,
                // The window keeps a flood within the ring, whatever its rate.
                "peak_datagrams_per_s": slots, "fan_out": [fan_out],
            }],
        });
        let publisher = InlinePublisher::open(Config::parse(&config.to_string())?)?;
        Ok(Self {
            publisher: Some(publisher),
            gauges: gauges(task)?,
            receivers: if task.role == Role::Send {
                task.receivers
            } else {
                1
            },
            record: MboMsg {
                hd: RecordHeader::new::<MboMsg>(MboMsg::RTYPE, 1, 1, 0),
                size: 100,
                ..MboMsg::default()
            },
        })
    }
}

impl Publisher {
    /// Publishes what a venue's message became.
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
        followers.iter().filter(|s| s.follows).count() >= self.receivers
    }

    #[inline]
    fn publish(&mut self, tick: Tick) -> Outcome<bool> {
        let record = &mut self.record;
        record.hd.ts_event = tick.at;
        record.order_id = tick.number;
        record.price = Tick::check(tick.number) as i64;
        record.ts_recv = tick.at;
        record.sequence = tick.number as u32;
        if let Some(publisher) = &mut self.publisher {
            publisher.publish(0, record, SourcePosition::new(0, tick.number));
        }
        Ok(true)
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
            // What was measured is told already.
            let _ = publisher.end_session(DRAIN);
        }
    }
}

/// Follows the channel with the subscriber library and its defaults.
pub(super) struct Follower {
    subscriber: Subscriber,
    gauges: SharedGauges,
    index: usize,
    has_joined: bool,
    /// Whatever comes is counted by its record number.
    is_fed: bool,
}

impl Follower {
    pub(super) fn join(task: &Task, address: &str) -> Outcome<Self> {
        let transport = if task.contender == "tickcast-shm" {
            Transport::Shm
        } else {
            Transport::Udp
        };
        let mut builder = Subscriber::builder(address)
            .name(format!("bench-{}", task.index))
            .channel(CHANNEL)
            .interface(Interface::Address(task.interface))
            .transport(transport)
            .gro(task.contender != "tickcast-no-gso")
            .join_limit(Duration::from_secs(10));
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
            has_joined: false,
            is_fed: matches!(task.load, Load::Feed { .. }),
        })
    }
}

impl Take for Follower {
    fn is_joined(&mut self) -> bool {
        self.has_joined
    }

    #[inline]
    fn poll(&mut self, mut on: impl FnMut(Option<Tick>, bool)) -> Outcome<bool> {
        let (has_joined, is_fed) = (&mut self.has_joined, self.is_fed);
        let polled = self.subscriber.poll(|item| match item {
            Item::Record(position, _) if is_fed => {
                let number = position.record.0;
                on(Some(Tick { number, at: 0 }), position.quality.repaired);
            }
            Item::Record(position, record) => {
                on(tick(record.get::<MboMsg>()), position.quality.repaired);
            }
            Item::Event(_, Event::Joined { .. }) => *has_joined = true,
            Item::Event(..) => {}
        });
        if polled.problem
            && let Some(problem) = self.subscriber.problem()
            && !self.has_joined
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
            let (datagrams, found) = (c.received_datagrams.get(), c.gaps_detected.get());
            let (came, nacks) = (c.gaps_recovered.get(), c.nacks_sent.get());
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
