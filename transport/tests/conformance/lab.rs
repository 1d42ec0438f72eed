//! Publishers and subscribers in one thread, in rounds. Only rounds advance the clock, so no machine is too
//! slow. All waits are numbers of rounds.

use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;

use tickcast_reliability::types::{Nanos, Now};

use crate::broken::Broken;
use crate::network::{InMemory, Kind, Network, Udp};
use crate::over_shm::OverShm;
use crate::over_xdp::OverXdp;
use crate::publisher::Publisher;
use crate::subscriber::{Subscriber, Wanted};
use crate::verdict::Verdict;

/// Time from one round to the next.
const STEP: Nanos = Nanos::from_us(50);
/// No wait of the suite takes this many rounds: ten seconds of protocol time.
const ROUNDS_MAX: u32 = 200_000;
/// Datagrams between two rounds, if no reader is to be overrun.
const PER_ROUND: u64 = 8;

/// Opens a network with this number of lines.
pub fn open(kind: Kind, lines: usize) -> Rc<dyn Network> {
    match kind {
        Kind::Memory => Rc::new(InMemory::new(lines)),
        Kind::Udp(offload) => Rc::new(Udp::new(lines, offload)),
        Kind::Shm => Rc::new(OverShm::new()),
        Kind::Xdp => Rc::new(OverXdp::new(lines)),
        #[cfg(feature = "rdma")]
        Kind::Verbs(ladder) => Rc::new(crate::over_verbs::OverVerbs::new(lines, ladder)),
    }
}

/// Environment of a case: a transport, and its deliberate fault.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    pub kind: Kind,
    pub broken: Option<Broken>,
}

/// Publishers and subscribers of a case, and their clock.
pub struct Lab {
    bench: Bench,
    now: Nanos,
    /// Address for connections of whichever publisher is running.
    control: SocketAddr,
    pub network: Rc<dyn Network>,
    pub publisher: Option<Publisher>,
    pub subscribers: Vec<Subscriber>,
    starts: u64,
}

impl Lab {
    /// Creates an empty lab on a network with this number of lines.
    pub fn new(bench: Bench, lines: usize) -> Self {
        let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            bench,
            now: Nanos::from_secs(1),
            control: reserved.local_addr().unwrap(),
            network: open(bench.kind, lines),
            publisher: None,
            subscribers: Vec::new(),
            starts: 0,
        }
    }

    /// Creates a lab with a publisher of `slots` slots.
    pub fn with_publisher(bench: Bench, lines: usize, slots: u64) -> Self {
        let mut lab = Self::new(bench, lines);
        lab.publish_from(slots, 1_000);
        lab
    }

    pub fn now(&self) -> Now {
        Now {
            monotonic: self.now,
            utc: Nanos(1_700_000_000_000_000_000 + self.now.0),
        }
    }

    /// Starts a publisher with an empty ring.
    pub fn publish_from(&mut self, slots: u64, epoch: u64) {
        let networks = [Rc::clone(&self.network)];
        self.publish_on(&networks, slots, epoch);
    }

    /// Starts a publisher on all of these networks.
    pub fn publish_on(&mut self, networks: &[Rc<dyn Network>], slots: u64, epoch: u64) {
        let (broken, ring) = (self.bench.broken, (slots, epoch));
        let publisher = Publisher::open(networks, broken, ring, self.control, self.now());
        let publisher = self.publisher.insert(publisher);
        if let Some(repairs) = self.network.repairs() {
            publisher.repair_over_verbs(repairs.at);
        }
    }

    pub fn publisher(&mut self) -> &mut Publisher {
        self.publisher.as_mut().unwrap()
    }

    /// Starts a subscriber. Returns its number.
    pub fn subscribe(&mut self, wanted: Wanted) -> usize {
        let network = Rc::clone(&self.network);
        self.subscribe_by(&network, wanted)
    }

    pub fn subscribe_by(&mut self, network: &Rc<dyn Network>, wanted: Wanted) -> usize {
        self.starts += 1;
        let (broken, seed) = (self.bench.broken, self.starts);
        let subscriber = Subscriber::new(network, broken, wanted, self.control, seed, self.now);
        self.subscribers.push(subscriber);
        self.subscribers.len() - 1
    }

    /// Starts a subscriber and waits until it is welcome and listens. Returns its number.
    pub fn join(&mut self, wanted: Wanted) -> Result<usize, String> {
        let number = self.subscribe(wanted);
        self.all_listen()?;
        Ok(number)
    }

    pub fn all_listen(&mut self) -> Verdict {
        self.until("everybody listens", |lab| {
            lab.subscribers.iter().all(Subscriber::is_listening)
        })
    }

    /// Runs one round of all participants.
    pub fn round(&mut self) {
        self.now = self.now.after(STEP);
        let now = self.now();
        let mut worked = false;
        if let Some(publisher) = &mut self.publisher {
            worked |= publisher.round(now);
        }
        for subscriber in &mut self.subscribers {
            worked |= subscriber.round(now.monotonic);
        }
        if !worked {
            self.network.idle();
        }
    }

    pub fn rounds(&mut self, count: u32) {
        for _ in 0..count {
            self.round();
        }
    }

    /// Runs rounds until `is` returns true.
    pub fn until(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> bool) -> Verdict {
        for _ in 0..ROUNDS_MAX {
            if is(self) {
                return Ok(());
            }
            self.round();
        }
        let seen: Vec<_> = self
            .subscribers
            .iter()
            .map(|s| (&s.core, s.counters()))
            .collect();
        Err(format!("never: {what}; {seen:?}"))
    }

    /// Publishes datagrams of 1 to 16 records, with rounds in between.
    pub fn publish(&mut self, datagrams: u64) {
        for n in 0..datagrams {
            self.publish_at_once(1);
            if n % PER_ROUND == PER_ROUND - 1 {
                self.round();
            }
        }
    }

    /// Publishes datagrams of 1 to 16 records, without rounds in between.
    pub fn publish_at_once(&mut self, datagrams: u64) {
        let now = self.now();
        let publisher = self.publisher();
        for _ in 0..datagrams {
            let records = 1 + publisher.core.sealed().0 * 7 % 16;
            assert!(publisher.publish(records, now), "it fits");
        }
    }

    /// Waits until everything published is sent.
    pub fn sent(&mut self) -> Verdict {
        self.until("all is sent", |lab| lab.publisher().is_sent())
    }

    /// Ends the session, and waits until every subscriber has received all of it.
    pub fn end(&mut self) -> Verdict {
        let now = self.now();
        self.publisher().end(now);
        self.until("everybody reached the end", |lab| {
            lab.publisher().is_sent() && lab.subscribers.iter().all(|s| s.core.ended())
        })?;
        self.until("the publisher knows it", |lab| {
            lab.publisher().repair.all_reached_end()
        })
    }

    /// Checks that all counters balance after the end.
    pub fn account(&mut self) -> Verdict {
        // Let heartbeats and repairs in flight arrive.
        self.publisher().core.stop();
        self.rounds(40);
        let publisher = self.publisher();
        publisher.account()?;
        let records = publisher.records;
        for (number, subscriber) in self.subscribers.iter().enumerate() {
            let account = subscriber.account_to_the_end(records);
            account.map_err(|what| format!("subscriber {number}: {what}"))?;
        }
        Ok(())
    }

    /// Ends the session and checks the counters.
    pub fn close(&mut self) -> Verdict {
        self.end()?;
        self.account()
    }
}
