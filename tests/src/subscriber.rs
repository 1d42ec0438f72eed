//! A subscriber in virtual time: the shipped core, a socket of finite size, and what its
//! application was told.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tickcast_reliability::control::{ChannelName, Message};
use tickcast_reliability::delivery::{Item, Start};
use tickcast_reliability::receiver_config::ReceiverConfig;
use tickcast_reliability::subscriber_core::{
    ChannelWanted, Path, SubscriberCore, SubscriberSettings,
};
use tickcast_reliability::units::{ChannelId, Nanos};

use crate::profiles::Plan;
use crate::stream::Stream;

/// The channel of every run.
pub const CHANNEL: ChannelId = ChannelId(7);

/// A datagram on its way.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Its bytes, at an aligned address.
    pub words: Rc<[u64]>,
    /// How many bytes.
    pub len: usize,
}

/// Questions for one run of sequences since the connection was established.
type Asked = BTreeMap<u64, u32>;

/// See the module.
pub struct Subscriber {
    /// The core.
    pub core: SubscriberCore,
    /// What it was set to.
    pub config: ReceiverConfig,
    /// What the application was told.
    pub stream: Stream,
    /// Which incarnation this is.
    pub life: u64,
    /// Whether it is there at all.
    pub alive: bool,
    /// Whether the application does not poll.
    pub stalled: bool,
    /// Whether its kernel is a member of the groups, for each line.
    pub member: [bool; 2],
    /// Datagrams that wait for the application.
    pub socket: VecDeque<(u8, Packet)>,
    /// Its connections: repair, replay.
    pub connections: [Option<usize>; 2],
    /// The number of the latest attempt to connect each.
    pub attempts: [u64; 2],
    /// When it is woken next.
    pub wakes_at: Nanos,
    /// How often in a row it wanted to be woken at once without having anything to do.
    pub spins: u32,
    /// Sequences it missed while it joined.
    pub gaps_of_joining: u64,
    asked: Asked,
}

/// Index of a path.
#[must_use]
pub const fn index_of(path: Path) -> usize {
    match path {
        Path::Repair => 0,
        Path::Replay => 1,
    }
}

impl Subscriber {
    /// The subscriber of this number, as planned.
    #[must_use]
    pub fn new(plan: &Plan, number: usize, life: u64, now: Nanos) -> Self {
        let (config, start) = plan.subscribers[number % plan.subscribers.len()];
        Self::with(plan, number, life, (config, start), now)
    }

    fn with(
        plan: &Plan,
        number: usize,
        life: u64,
        (config, start): (ReceiverConfig, Start),
        now: Nanos,
    ) -> Self {
        let settings = SubscriberSettings {
            name: format!("s{number}"),
            channels: vec![ChannelWanted {
                channel: ChannelName::Id(CHANNEL),
                start,
                config,
                lines: None,
            }],
            link: plan.link,
            seed: plan.seed ^ (number as u64) << 32 ^ life,
        };
        Self {
            core: SubscriberCore::new(settings, now),
            config,
            stream: Stream::new(config.delivery),
            life,
            alive: true,
            stalled: false,
            member: [false; 2],
            socket: VecDeque::new(),
            connections: [None; 2],
            attempts: [0; 2],
            wakes_at: Nanos::MAX,
            spins: 0,
            gaps_of_joining: 0,
            asked: Asked::new(),
        }
    }

    /// Gives the core something, and passes on what it tells.
    pub fn input(
        &mut self,
        f: impl FnOnce(&mut SubscriberCore, &mut dyn FnMut(Item<'_>)),
        mut told: impl FnMut(&mut Stream, &Item<'_>),
    ) {
        let Self { core, stream, .. } = self;
        f(core, &mut |item| told(stream, &item));
    }

    /// A connection is up: counting of questions begins anew.
    pub fn connected(&mut self) {
        self.asked.clear();
    }

    /// Checks what it sends: nothing is asked for that was delivered, nothing too often.
    ///
    /// # Errors
    /// What it should not have asked.
    pub fn check_sent(&mut self, mut frames: &[u8]) -> Result<(), String> {
        while !frames.is_empty() {
            let read = Message::read(frames, 1 << 20).map_err(|e| e.to_string())?;
            let (_, message, taken) = read.ok_or("a frame that is not whole")?;
            frames = &frames[taken..];
            let Message::Nack { ranges, epoch, .. } = message else {
                continue;
            };
            if epoch != self.stream.epoch() {
                return Err(format!(
                    "a NACK of epoch {epoch} in {}",
                    self.stream.epoch()
                ));
            }
            let c = self.core.counters().next();
            let doubts = c.map_or(0, |c| c.fencing_violations.get());
            for range in ranges {
                if range.first < self.stream.next() && doubts == 0 {
                    let next = self.stream.next();
                    return Err(format!("a NACK for {range}, delivered up to {next}"));
                }
                // Long runs are asked for in parts that change: their first is enough.
                let asked = self.asked.entry(range.first.0).or_default();
                *asked += 1;
                if *asked > self.config.nack_tries + 1 {
                    return Err(format!("{asked} NACKs for {range} on one connection"));
                }
            }
        }
        Ok(())
    }

    /// The publisher answered something of these sequences: a refusal is no try that failed.
    pub fn refused(&mut self, first: u64, last: u64) {
        let refused: Vec<u64> = self.asked.range(first..=last).map(|(s, _)| *s).collect();
        for sequence in refused {
            self.asked.remove(&sequence);
        }
    }
}
