//! Sizes that follow from a measured load, each with its reason.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tickcast_feeds::recording::FeedDestination;
use tickcast_feeds::venues::Format;
use tickcast_reliability::ring::Geometry;
use tickcast_reliability::types::Nanos;

use super::measure::Measured;
use super::peaks::Load;
use tickcast_tools::support::table::{span, thousands};

/// Bytes that the kernel counts against a socket buffer for each packet, beside its contents.
const KERNEL_PER_PACKET: u64 = 768;
/// The fewest slots that a plan gives a ring, and the most: 12 GiB of slots for a standard frame.
const SLOTS: (u64, u64) = (1 << 10, 1 << 23);
/// The defaults that a plan never goes below.
const RECEIVE_BUFFER_MIN: u64 = 2 << 20;
const SUBSCRIBER_BUFFER_MIN: u64 = 4 << 20;
const SEND_BUFFER_MIN: u64 = 1 << 20;
const WINDOW_MIN: u64 = 4_096;
const QUEUE_MIN: u64 = 1_024;
const PEERS_MIN: u64 = 1_024;
/// The least budget of repair or replay, in bytes per second.
const BUDGET_MIN: u64 = 10_000_000;
/// Connections of one subscriber: repair, replay, NACK and READ.
const CONNECTIONS: u64 = 4;
/// One subscriber in this many repairs at the same time as another.
const REPAIRING_AT_ONCE: u64 = 10;
/// The settings of the hot threads' cores.
const CORES: [&str; 3] = [
    "threads.feed_core",
    "threads.publish_core",
    "threads.repair_core",
];
/// Datagrams in 100 us from which a sleeping publish thread adds more delay than the network.
const BUSY_DATAGRAMS: u64 = 2;

/// The load and the network that a plan is made for.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    pub files: Vec<PathBuf>,
    pub rate: f64,
    pub subscribers: u64,
    pub stall: Nanos,
    pub slot_len: u32,
    pub link_bytes_per_s: u64,
    pub lines: u8,
    /// The cores that the caller asks for.
    pub cores: Option<[u16; 3]>,
    /// The isolated cores of this host, in order.
    pub isolated: Vec<u16>,
}

/// One size, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Size {
    /// The setting, as a path in the publisher's config; `subscriber.…` for a subscriber's.
    pub setting: &'static str,
    pub value: u64,
    pub reason: String,
}

/// The sizes of a load, and findings that no size helps against.
#[derive(Debug)]
pub(super) struct Sizing {
    pub sizes: Vec<Size>,
    pub findings: Vec<String>,
}

impl Sizing {
    /// Returns the sizes for a load.
    pub(super) fn of(measured: &Measured, demand: &Demand) -> Self {
        let mut sizing = Self {
            sizes: Vec::new(),
            findings: Vec::new(),
        };
        let most = |window: usize| measured.peaks.get(window).map(super::peaks::Peak::most);
        let [burst, ms, pause, second, stall] =
            [0, 1, 2, 3, 4].map(|window| most(window).unwrap_or_default());
        sizing.ring(stall, second, demand);
        sizing.buffers(ms, pause);
        sizing.repair(second, demand);
        sizing.check_link(ms, second, demand);
        sizing.threads(burst, second, demand);
        if measured.oversize > 0 {
            sizing.findings.push(format!(
                "{} messages are longer than a datagram: raise --slot-len",
                thousands(measured.oversize)
            ));
        }
        sizing
    }

    fn size(&mut self, setting: &'static str, value: u64, reason: String) {
        self.sizes.push(Size {
            setting,
            value,
            reason,
        });
    }

    /// Returns a size by its setting.
    pub(super) fn value(&self, setting: &str) -> u64 {
        let size = self.sizes.iter().find(|size| size.setting == setting);
        size.map_or(0, |size| size.value)
    }

    fn ring(&mut self, stall: Load, second: Load, demand: &Demand) {
        let wanted = stall.datagrams.saturating_mul(2);
        let slots = power_of_two(wanted).clamp(SLOTS.0, SLOTS.1);
        let (held, length) = (thousands(stall.datagrams), span(demand.stall.0));
        self.size(
            "channels[0].slots",
            slots,
            format!(
                "twice the {held} datagrams of the fullest {length}: a subscriber that stands still \
                 that long repairs everything while the feed goes on"
            ),
        );
        if wanted > SLOTS.1 {
            self.findings.push(format!(
                "a stall of {length} needs {} slots, and a plan gives at most {}: a subscriber \
                 that stands still so long loses records; split the feed into channels",
                thousands(wanted),
                thousands(SLOTS.1)
            ));
        }
        self.size(
            "channels[0].peak_datagrams_per_s",
            second.datagrams.max(1),
            "datagrams of the fullest second; gives the seconds that the ring holds".into(),
        );
    }

    fn buffers(&mut self, ms: Load, pause: Load) {
        let kernel = |bytes: u64, packets: u64| bytes + packets.saturating_mul(KERNEL_PER_PACKET);
        let doubled = |bytes: u64| power_of_two(bytes.saturating_mul(2));
        self.size(
            "inputs[0].receive_buffer_bytes",
            doubled(kernel(pause.packet_bytes, pause.packets)).max(RECEIVE_BUFFER_MIN),
            format!(
                "twice the {} packets of the fullest 10 ms, as the kernel counts them: the feed \
                 thread may pause so long",
                thousands(pause.packets)
            ),
        );
        self.size(
            "threads.queue_batches",
            power_of_two(pause.packets).max(QUEUE_MIN),
            "packets of the fullest 10 ms: the publish thread may pause so long".into(),
        );
        self.size(
            "channels[0].fan_out[0].send_buffer_bytes",
            doubled(kernel(ms.datagram_bytes, ms.datagrams)).max(SEND_BUFFER_MIN),
            "twice the datagrams of the fullest millisecond, for a device that pauses".into(),
        );
        self.size(
            "subscriber.receive_buffer_bytes",
            doubled(kernel(pause.datagram_bytes, pause.datagrams)).max(SUBSCRIBER_BUFFER_MIN),
            "twice the datagrams of the fullest 10 ms: a risk engine may pause so long without \
             a repair"
                .into(),
        );
        self.size(
            "subscriber.window_slots",
            power_of_two(pause.datagrams.saturating_mul(2)).clamp(WINDOW_MIN, 1 << 20),
            "twice the datagrams of the fullest 10 ms: they wait while a gap is repaired".into(),
        );
    }

    fn repair(&mut self, second: Load, demand: &Demand) {
        let at_once = demand.subscribers.div_ceil(REPAIRING_AT_ONCE).max(1);
        let feed = second.datagram_bytes.max(1);
        let one = feed.saturating_mul(2).max(BUDGET_MIN);
        let wanted = one.saturating_mul(at_once);
        // The config's check keeps half of the link for fresh data.
        let quarter = demand.link_bytes_per_s / 4;
        let all = wanted.min(quarter).max(1);
        self.size(
            "repair.subscriber_bytes_per_s",
            one.min(all),
            format!(
                "twice the {} bytes of the fullest second: a subscriber repairs a pause in half \
                 its time",
                thousands(feed)
            ),
        );
        let shared = format!(
            "that for {at_once} of {} subscribers at once, at most a quarter of the link",
            thousands(demand.subscribers)
        );
        self.size("repair.repair_bytes_per_s", all, shared.clone());
        self.size("repair.joiner_bytes_per_s", all, shared);
        if wanted > quarter {
            self.findings.push(format!(
                "repair for {at_once} subscribers at once needs {} bytes per second, and a quarter \
                 of the link has {}: they repair more slowly; a faster link helps",
                thousands(wanted),
                thousands(quarter)
            ));
        }
        self.size(
            "repair.peers_max",
            power_of_two(demand.subscribers.saturating_mul(CONNECTIONS)).max(PEERS_MIN),
            format!("{CONNECTIONS} connections for each subscriber"),
        );
    }

    fn check_link(&mut self, ms: Load, second: Load, demand: &Demand) {
        let link = demand.link_bytes_per_s;
        if second.datagram_bytes > link / 2 {
            self.findings.push(format!(
                "the fullest second has {} bytes, more than half of the link's {}: nothing is left \
                 for repair; split the feed over links",
                thousands(second.datagram_bytes),
                thousands(link)
            ));
        }
        let of_ms = link / 1_000;
        if ms.datagram_bytes > of_ms {
            self.findings.push(format!(
                "the fullest millisecond has {} bytes, and the link carries {}: bursts queue in \
                 the device",
                thousands(ms.datagram_bytes),
                thousands(of_ms)
            ));
        }
    }

    /// Gives each hot thread a core, if the caller asks for it or bursts need it.
    fn threads(&mut self, burst: Load, second: Load, demand: &Demand) {
        let is_busy = burst.datagrams >= BUSY_DATAGRAMS;
        let isolated = demand.isolated.first_chunk().filter(|_| is_busy);
        let Some(cores) = demand.cores.as_ref().or(isolated) else {
            if is_busy {
                self.findings.push(format!(
                    "bursts have {} datagrams in 100 us: give the threads cores of their own, with \
                     --cores FEED,PUBLISH,REPAIR; `tickcast doctor` shows isolated ones",
                    thousands(burst.datagrams)
                ));
            }
            return;
        };
        let chosen = match demand.cores {
            Some(_) => "as given",
            None => "isolated on this host",
        };
        let tasks = [
            format!(
                "it decodes {} packets in the fullest 100 us",
                thousands(burst.packets)
            ),
            format!(
                "it sends {} datagrams in the fullest 100 us",
                thousands(burst.datagrams)
            ),
            format!(
                "it answers NACKs of {} subscribers, from a ring of {} datagrams a second",
                thousands(demand.subscribers),
                thousands(second.datagrams)
            ),
        ];
        for ((setting, core), task) in CORES.into_iter().zip(cores).zip(tasks) {
            self.size(
                setting,
                u64::from(*core),
                format!("{chosen}: {task}, and spins"),
            );
        }
    }

    /// Returns whether the hot threads have cores.
    fn is_pinned(&self) -> bool {
        self.sizes.iter().any(|size| CORES.contains(&size.setting))
    }

    /// Returns a publisher's config with these sizes. It listens where the recorded feed was multicast, and
    /// otherwise replays the files.
    pub(super) fn config(&self, measured: &Measured, demand: &Demand) -> Value {
        let reasons: Map<String, Value> = (self.sizes.iter())
            .map(|size| (size.setting.to_owned(), size.reason.clone().into()))
            .collect();
        let groups = ["239.255.7.1:7500", "239.255.8.1:7500"];
        let lines: Vec<_> = groups[..usize::from(demand.lines.clamp(1, 2))]
            .iter()
            .map(|group| json!({ "group": group }))
            .collect();
        let mut threads = json!({
            "mode": "threaded",
            "idle": { "sleep": { "us": 50 } },
            "queue_batches": self.value("threads.queue_batches"),
        });
        if self.is_pinned() {
            threads["idle"] = "spin".into();
            for (setting, field) in
                CORES
                    .into_iter()
                    .zip(["feed_core", "publish_core", "repair_core"])
            {
                threads[field] = self.value(setting).into();
            }
        }
        json!({
            "$schema": "publisher.schema.json",
            "$comment": {
                "text": "Planned from a recording. Set groups, control and interfaces to your own, \
                         and ttl to the number of routers to pass.",
                "reasons": reasons,
            },
            "name": "planned",
            "control": "127.0.0.1:7400",
            "admin": "127.0.0.1:7401",
            "interface": "lo",
            "ttl": 0,
            "channels": [{
                "id": 1,
                "name": "all",
                "symbols": ["*"],
                "slot_len": demand.slot_len,
                "slots": self.value("channels[0].slots"),
                "peak_datagrams_per_s": self.value("channels[0].peak_datagrams_per_s"),
                "fan_out": [{
                    "transport": "udp",
                    "lines": lines,
                    "send_buffer_bytes": self.value("channels[0].fan_out[0].send_buffer_bytes"),
                }],
            }],
            "inputs": [self.input(measured, demand)],
            "threads": threads,
            "repair": {
                "repair_bytes_per_s": self.value("repair.repair_bytes_per_s"),
                "subscriber_bytes_per_s": self.value("repair.subscriber_bytes_per_s"),
                "joiner_bytes_per_s": self.value("repair.joiner_bytes_per_s"),
                "peers_max": self.value("repair.peers_max"),
            },
            "link_bytes_per_s": demand.link_bytes_per_s,
        })
    }

    fn input(&self, measured: &Measured, demand: &Demand) -> Value {
        let format = measured.format.map_or("auto", Format::name);
        match listened(measured) {
            Some(destinations) => {
                let lines: Vec<_> = (destinations.iter())
                    .map(|destination| json!({ "listen": destination.address }))
                    .collect();
                json!({
                    "source": 1,
                    "kind": "udp",
                    "lines": lines,
                    "format": format,
                    "receive_buffer_bytes": self.value("inputs[0].receive_buffer_bytes"),
                })
            }
            None => json!({
                "source": 1,
                "kind": "capture",
                "file": demand.files,
                "pace": { "times": demand.rate },
                "wait_for_subscribers": 1,
            }),
        }
    }
}

/// Returns the groups of a feed, each once; `None` if it was not IPv4 multicast.
pub(super) fn listened(measured: &Measured) -> Option<Vec<FeedDestination>> {
    let lines = &measured.feed.as_ref()?.lines;
    let mut destinations: Vec<FeedDestination> = Vec::new();
    for line in lines {
        let address = line.destination.address;
        if !address.is_ipv4() || !address.ip().is_multicast() {
            return None;
        }
        if destinations.iter().all(|it| it.address != address) {
            destinations.push(line.destination);
        }
    }
    (!destinations.is_empty()).then_some(destinations)
}

/// Returns the next power of two, at most 2^62.
fn power_of_two(n: u64) -> u64 {
    n.min(1 << 62).next_power_of_two()
}

/// Returns the longest slot that fits a link's MTU behind IPv4 and UDP.
pub(super) const fn slot_len_of(mtu: u32) -> u32 {
    let payload = mtu.saturating_sub(28) / 64 * 64;
    match payload {
        0..Geometry::SLOT_LEN_MIN => Geometry::SLOT_LEN_MIN,
        Geometry::SLOT_LEN_MIN..=Geometry::SLOT_LEN_MAX => payload,
        _ => Geometry::SLOT_LEN_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_busy_feed_get_isolated_cores() {
        let cores = |datagrams, cores, isolated: &[u16]| {
            let mut sizing = Sizing {
                sizes: Vec::new(),
                findings: Vec::new(),
            };
            let demand = Demand {
                files: Vec::new(),
                rate: 1.0,
                subscribers: 1,
                stall: Nanos::from_ms(1),
                slot_len: 1_472,
                link_bytes_per_s: 1,
                lines: 1,
                cores,
                isolated: isolated.to_vec(),
            };
            let burst = Load {
                datagrams,
                ..Load::default()
            };
            sizing.threads(burst, burst, &demand);
            let values = sizing.sizes.iter().map(|it| it.value).collect::<Vec<_>>();
            (values, sizing.findings.len())
        };
        assert_eq!(cores(2, None, &[4, 5, 6, 7]), (vec![4, 5, 6], 0));
        assert_eq!(cores(2, None, &[4, 5]), (vec![], 1));
        assert_eq!(cores(1, None, &[4, 5, 6]), (vec![], 0));
        assert_eq!(cores(1, Some([1, 2, 3]), &[4, 5, 6]), (vec![1, 2, 3], 0));
    }
}
