//! The self-test: a publisher and two subscribers in this process, over one device. One subscriber
//! drops datagrams on purpose and repairs them over a reliable connection of the device. Both must
//! receive exactly the published records, in order.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use tickcast_publisher::Config;
use tickcast_publisher::internal::{Service, preflight};
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{ChannelBuilder, Interface, Item, Start, Subscriber, Transport};

use super::check::{Check, Subject};
use tickcast_tools::support::digest::Digest;

const CHANNEL: &str = "selftest";
/// Share of datagrams that the second subscriber drops.
const LOSS: f64 = 0.05;
/// Time limit beyond the duration that the rate implies.
const PATIENCE: Duration = Duration::from_secs(300);

/// The result of the self-test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct SelfTest {
    /// The address of the device.
    pub(super) address: Ipv4Addr,
    published_records: u64,
    digest: String,
    subscribers: Vec<Received>,
}

/// The results of one subscriber.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Received {
    records: u64,
    digest: String,
    missing_datagrams: u64,
    missing_recovered: u64,
    /// Datagrams repaired over a reliable connection of the device.
    repaired_over_verbs: u64,
    lost_records: u64,
    /// Records whose number is not above that of the record before.
    out_of_order: u64,
}

impl SelfTest {
    /// Returns the problems of the run; empty if there is none.
    fn wrong(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (it, who) in self.subscribers.iter().zip(["without loss", "with loss"]) {
            if it.digest != self.digest || it.records != self.published_records {
                all.push(format!(
                    "the subscriber {who} has {} records of {}, digest {} instead of {}",
                    it.records, self.published_records, it.digest, self.digest
                ));
            }
            if it.out_of_order > 0 {
                all.push(format!("{} of them out of order", it.out_of_order));
            }
        }
        let repaired = self.subscribers.last().map_or(0, |it| it.missing_recovered);
        if self.published_records == 0 || repaired == 0 {
            all.push("nothing was repaired, so repair was not tested; publish more".into());
        }
        let last = self.subscribers.last();
        if last.is_none_or(|it| it.repaired_over_verbs == 0) {
            all.push("nothing was repaired over a reliable connection of the device".into());
        }
        all
    }

    pub(super) fn check(&self) -> Check {
        let of = |at: usize| self.subscribers.get(at).cloned().unwrap_or_default();
        let wrong = self.wrong();
        if !wrong.is_empty() {
            return Check::error(
                Subject::RdmaSelftest,
                format!("over {}: {}", self.address, wrong.join("; ")),
                "data published over this device does not arrive completely",
                "check the counters of the port and the switch (docs/RDMA.md), and run this again \
                 with --log debug",
            );
        }
        let found = format!(
            "over {}: {} records to two subscribers, equal digests; {} gaps without loss, {} of {} repaired with {} % dropped, {} of them over reliable connections",
            self.address,
            self.published_records,
            of(0).missing_datagrams,
            of(1).missing_recovered,
            of(1).missing_datagrams,
            LOSS * 100.0,
            of(1).repaired_over_verbs
        );
        Check::ok(Subject::RdmaSelftest, found)
    }
}

/// A running subscriber.
struct Listener {
    subscriber: Subscriber,
    digest: Digest,
    got: Received,
    last: (u64, u64),
}

impl Listener {
    fn new(connect: &str, address: Ipv4Addr, loss: f64) -> Result<Self, String> {
        let builder = Subscriber::builder(connect)
            .name(format!("selftest-{loss}"))
            .interface(Interface::Address(address))
            .transport(Transport::Verbs)
            .faults(FaultConfig {
                seed: 1,
                drop: loss,
                ..FaultConfig::default()
            })
            .channel(ChannelBuilder::new(CHANNEL).start(Start::Oldest));
        Ok(Self {
            subscriber: builder.build().map_err(|error| error.to_string())?,
            digest: Digest::default(),
            got: Received::default(),
            last: (0, 0),
        })
    }

    fn poll(&mut self) -> bool {
        let (digest, got, last) = (&mut self.digest, &mut self.got, &mut self.last);
        let polled = self.subscriber.poll(|item| {
            if let Item::Record(at, record) = item {
                let place = (at.epoch.0, at.record.0);
                got.out_of_order += u64::from(place <= *last);
                *last = place;
                got.records += 1;
                digest.add(record);
            }
        });
        polled.worked()
    }

    fn leave(mut self) -> Received {
        let left = self.subscriber.leave();
        let counters = left.channels.first().map(|channel| &channel.counters);
        if let Some(counters) = counters {
            self.got.missing_datagrams = counters.missing_datagrams.get();
            self.got.missing_recovered = counters.missing_recovered.get();
            let read = counters.read_repairs_received.get();
            self.got.repaired_over_verbs = counters.nack_link_repairs_received.get() + read;
        }
        self.got.lost_records = left.lost_records();
        self.got.digest = self.digest.to_hex();
        self.got
    }
}

/// Publishes `records` over the device at `address`, and compares what the subscribers received.
///
/// # Errors
/// Returns the reason as text if the test could not be completed.
pub(super) fn run(address: Ipv4Addr, records: u64, rate: u64) -> Result<SelfTest, String> {
    let config = Config::parse(&config(address, records, rate).to_string());
    let plan = config.and_then(preflight).map_err(|e| e.to_string())?;
    let stop = Arc::new(AtomicBool::new(false));
    let service = Service::open(plan, stop.clone()).map_err(|e| e.to_string())?;
    let connect = service.control_address().to_string();
    let publisher = std::thread::spawn(move || service.run());
    let mut listeners = Vec::new();
    let mut listened = Ok(());
    for loss in [0.0, LOSS] {
        match Listener::new(&connect, address, loss) {
            Ok(listener) => listeners.push(listener),
            Err(reason) => listened = Err(reason),
        }
    }
    if listened.is_ok() {
        let patience = PATIENCE + Duration::from_secs(records / rate);
        listened = follow(&mut listeners, patience);
    }
    stop.store(true, Ordering::Release);
    let ended = publisher.join();
    let subscribers = listeners.into_iter().map(Listener::leave).collect();
    listened?;
    let summary = ended
        .map_err(|_| "the publisher panicked".to_owned())?
        .map_err(|error| error.to_string())?;
    let digest = &summary.json()["channels"][0]["digest"];
    Ok(SelfTest {
        address,
        published_records: summary.published_records(),
        digest: digest.as_str().unwrap_or_default().to_owned(),
        subscribers,
    })
}

/// Polls all subscribers until each has reached the end of the session.
fn follow(listeners: &mut [Listener], patience: Duration) -> Result<(), String> {
    let until = Instant::now() + patience;
    while !listeners.iter().all(|it| it.subscriber.ended()) {
        let mut worked = false;
        for listener in &mut *listeners {
            worked |= listener.poll();
            if let Some(problem) = listener.subscriber.problem() {
                return Err(problem.to_string());
            }
        }
        if Instant::now() >= until {
            let got: Vec<_> = (listeners.iter())
                .map(|it| it.got.records.to_string())
                .collect();
            return Err(format!(
                "the session did not end within {} s; records so far: {}",
                patience.as_secs(),
                got.join(", ")
            ));
        }
        if !worked {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    // Keep polling, so that the last reports reach the publisher.
    let until = Instant::now() + Duration::from_millis(250);
    while Instant::now() < until {
        for listener in &mut *listeners {
            listener.poll();
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

fn config(address: Ipv4Addr, records: u64, rate: u64) -> Value {
    let pid = std::process::id();
    let group = Ipv4Addr::new(239, 253, (pid >> 8) as u8, pid as u8);
    json!({
        "name": "selftest",
        "control": format!("{address}:0"),
        "interface": address,
        "repair_verbs": { "interfaces": [address] },
        "digest": true,
        "linger_ms": 10_000,
        "channels": [{
            "id": 1,
            "name": CHANNEL,
            "slot_len": 1024,
            "slots": 16_384,
            "peak_datagrams_per_s": 10_000,
            "fan_out": [{ "transport": "verbs", "lines": [{ "group": group }] }],
        }],
        "inputs": [{
            "source": 1,
            "kind": "simulator",
            "seed": 1,
            "symbols": 50,
            "pace": { "messages_per_s": rate },
            "wait_for_subscribers": 2,
            "records_max": records,
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selftest_passes_only_if_complete_and_repaired() {
        let received = |gaps| Received {
            records: 7,
            digest: "a".into(),
            missing_datagrams: gaps,
            missing_recovered: gaps,
            repaired_over_verbs: gaps,
            ..Received::default()
        };
        let sound = SelfTest {
            address: Ipv4Addr::LOCALHOST,
            published_records: 7,
            digest: "a".into(),
            subscribers: vec![received(0), received(2)],
        };
        assert_eq!(sound.wrong(), [""; 0]);
        let with = |change: fn(&mut SelfTest)| {
            let mut changed = sound.clone();
            change(&mut changed);
            changed.wrong().join("; ")
        };
        assert!(with(|it| it.digest = "b".into()).contains("digest a instead of b"));
        assert!(with(|it| it.subscribers[0].records = 6).contains("6 records of 7"));
        assert!(with(|it| it.subscribers[1].out_of_order = 1).contains("out of order"));
        assert!(with(|it| it.subscribers[1].missing_recovered = 0).contains("not tested"));
        let over_tcp = with(|it| it.subscribers[1].repaired_over_verbs = 0);
        assert!(over_tcp.contains("over a reliable connection"));
    }
}
