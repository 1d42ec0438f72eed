//! A receiver of a small world: the shipped core, what is on its way to it and from it, and the
//! check of what its application is told.

use std::collections::VecDeque;
use std::rc::Rc;

use tickcast_reliability::control::ChannelName;
use tickcast_reliability::delivery::{Event, Item, Start};
use tickcast_reliability::link::LinkTimers;
use tickcast_reliability::loss::LossCause;
use tickcast_reliability::peers::PeerId;
use tickcast_reliability::receiver_config::ReceiverConfig;
use tickcast_reliability::subscriber_core::{ChannelWanted, SubscriberCore, SubscriberSettings};
use tickcast_reliability::units::{Nanos, Sequence};
use tickcast_reliability::wire::Datagram;

use super::{Plan, Who};
use crate::balance;
use crate::stream::Stream;
use crate::subscriber::CHANNEL;
use crate::truth::Truth;

/// What a datagram is, without what only measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// Its epoch.
    pub epoch: u64,
    /// Its kind: heartbeats are 3.
    pub kind: u8,
    /// Its sequence.
    pub sequence: u64,
    /// The relay byte.
    pub relay: u8,
    /// A hash of all the rest.
    pub rest: u64,
}

impl Identity {
    /// Of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let Ok(datagram) = Datagram::parse(bytes) else {
            let rest = xxhash_rust::xxh3::xxh3_64(bytes);
            return Self {
                epoch: 0,
                kind: 0,
                sequence: 0,
                relay: 0,
                rest,
            };
        };
        let header = datagram.header();
        let mut rest = bytes.to_vec();
        // The time it was sealed, and the CRC over it.
        rest[40..48].fill(0);
        rest[60..64].fill(0);
        Self {
            epoch: header.epoch.0,
            kind: header.kind as u8,
            sequence: header.sequence.0,
            relay: header.relay,
            rest: xxhash_rust::xxh3::xxh3_64(&rest),
        }
    }

    /// Whether it is a heartbeat.
    #[must_use]
    pub const fn is_heartbeat(&self) -> bool {
        self.kind == 3
    }
}

/// A datagram on its way.
#[derive(Clone, Debug)]
pub struct Packet {
    /// What it is.
    pub identity: Identity,
    words: Rc<[u64]>,
    len: usize,
}

impl Packet {
    /// A copy of these bytes, at an aligned address.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        Self {
            identity: Identity::of(bytes),
            words: words.collect(),
            len: bytes.len(),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &tickcast_reliability::record::words_as_bytes(&self.words)[..self.len]
    }
}

/// A connection: whole messages, in order. An empty one says that the publisher closed it.
#[derive(Debug)]
pub struct Connection {
    /// As the publisher numbers it.
    pub peer: PeerId,
    /// To the publisher.
    pub up: VecDeque<Vec<u8>>,
    /// From the publisher.
    pub down: VecDeque<Vec<u8>>,
}

/// See the module.
pub struct Receiver {
    /// The core.
    pub core: SubscriberCore,
    /// What the application was told.
    pub stream: Stream,
    /// What it was planned to be.
    pub who: Who,
    /// Whether it is there.
    pub started: bool,
    /// Whether it is a member of the group.
    pub listens: bool,
    /// Datagrams on their way to it, as they were sent.
    pub packets: VecDeque<Packet>,
    /// Its connections: repair, replay.
    pub connections: [Option<Connection>; 2],
    /// How often it connected each.
    pub attempts: [u64; 2],
    /// What the publisher had sent when its JOIN arrived.
    pub joined_at: Option<Sequence>,
    causes: Vec<LossCause>,
    /// What it was told, in words, where somebody reads it.
    pub diary: Option<Vec<String>>,
}

impl Receiver {
    /// The receiver of this number.
    #[must_use]
    pub fn new(plan: &Plan, number: usize, now: Nanos) -> Self {
        let who = plan.receivers[number];
        let config = ReceiverConfig {
            delivery: who.delivery,
            window_slots: plan.window_slots,
            // As long as four round trips of unknown length, so that measuring changes nothing.
            nack_retry_us: 1_000,
            stale_us: 4_000,
            dead_us: 1_000_000,
            ..ReceiverConfig::default()
        };
        let settings = SubscriberSettings {
            name: format!("s{number}"),
            channels: vec![ChannelWanted {
                channel: ChannelName::Id(CHANNEL),
                start: who.start,
                config,
                lines: None,
            }],
            link: LinkTimers {
                retry_min: Nanos::from_ms(1),
                retry_max: Nanos::from_ms(4),
                join_timeout: Nanos::from_ms(100),
            },
            seed: 1,
        };
        Self {
            core: SubscriberCore::new(settings, now),
            stream: Stream::new(CHANNEL, who.delivery, who.start),
            who,
            started: false,
            listens: false,
            packets: VecDeque::new(),
            connections: [None, None],
            attempts: [0; 2],
            joined_at: None,
            causes: plan.causes.clone(),
            diary: None,
        }
    }

    /// Gives the core an input, and checks what it tells and counts.
    ///
    /// # Errors
    /// What is untrue.
    pub fn input<T>(
        &mut self,
        truth: &Truth,
        f: impl FnOnce(&mut SubscriberCore, &mut dyn FnMut(Item<'_>)) -> T,
    ) -> Result<T, String> {
        let mut wrong = None;
        let (stream, who, causes) = (&mut self.stream, self.who, &self.causes);
        let (diary, joined_at) = (&mut self.diary, self.joined_at);
        let result = f(&mut self.core, &mut |item| {
            if let Some(diary) = diary {
                diary.push(words(&item));
            }
            let told = stream.take(truth, &item);
            let told = told.and_then(|()| allowed(&item, who, joined_at, causes));
            if let Err(what) = told {
                wrong.get_or_insert(what);
            }
        });
        if let Some(what) = wrong {
            return Err(what);
        }
        for counters in self.core.counters() {
            balance::receiver(counters, &self.stream)?;
        }
        Ok(result)
    }

    /// Puts a datagram on its way. A heartbeat takes the place of an older one.
    pub fn send(&mut self, packet: &Packet) {
        if !self.listens {
            return;
        }
        let identity = packet.identity;
        if identity.is_heartbeat() {
            self.packets
                .retain(|p| !(p.identity.is_heartbeat() && p.identity.epoch == identity.epoch));
        }
        self.packets.push_back(packet.clone());
    }

    /// Sequences that it misses.
    #[must_use]
    pub fn open(&self) -> u64 {
        let open = |c: &std::sync::Arc<tickcast_reliability::counters::ReceiverCounters>| {
            c.gaps_open.get() + c.history_open.get()
        };
        self.core.counters().map(open).sum()
    }
}

/// What the general check of a stream can't know: what this world allows.
fn allowed(
    item: &Item<'_>,
    who: Who,
    joined_at: Option<Sequence>,
    causes: &[LossCause],
) -> Result<(), String> {
    match item {
        Item::Event(_, Event::Lost(loss)) if !causes.contains(&loss.cause) => Err(format!(
            "loss of {} ({:?}), which could be had",
            loss.sequences, loss.cause
        )),
        Item::Event(_, Event::Joined { after }) => {
            let due = match who.start {
                Start::Live => joined_at,
                // The ring begins with 1, and in these worlds never forgets it.
                Start::Oldest if !causes.contains(&LossCause::Window) => Some(Sequence::NONE),
                _ => return Ok(()),
            };
            if due == Some(*after) {
                return Ok(());
            }
            Err(format!("joined after {after}, due is {due:?}"))
        }
        _ => Ok(()),
    }
}

fn words(item: &Item<'_>) -> String {
    match item {
        Item::Record(p, _) => format!("record {} of {}.{}", p.record, p.epoch, p.sequence),
        Item::Event(_, event) => format!("{event:?}"),
    }
}
