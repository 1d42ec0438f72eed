//! A subscriber in virtual time: the shipped core, sockets of finite size, and what its
//! application was told on each channel.

use std::collections::VecDeque;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tickcast_journal::Journaled;
use tickcast_reliability::control::{ChannelName, Message, Start};
use tickcast_reliability::delivery::Item;
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::session::{
    ChannelWanted, Path, SubscriberCore, SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{ChannelId, Nanos, Sequence};
use tickcast_reliability::wire::Datagram;

use crate::checks::delivery::Stream;
use crate::checks::first_nack::FirstNackCheck;
use crate::checks::join::JoinCheck;
use crate::checks::ladder::Rung;
use crate::checks::loss_reason::LossReasonCheck;
use crate::checks::nack_validity::{Alarm, NackCheck};
use crate::checks::silence::SilenceCheck;
use crate::faults::plan::Plan;
use crate::faults::plan::channels;
use crate::feed::flight_record::record;
use crate::network::packet::Packet;
use crate::network::reads::READS;

/// READs at a time, and bytes of a slot.
const fn reads_of(plan: &Plan) -> (u32, u32) {
    (if plan.read_path { READS } else { 0 }, plan.slot_len)
}

/// One channel of a subscriber.
pub struct Following {
    /// Which.
    pub channel: ChannelId,
    /// What it was set to.
    pub config: ReceiverConfig,
    /// Where it began.
    pub start: Start,
    /// What the application was told.
    pub stream: Stream,
    /// What was asked for.
    pub asked: NackCheck,
    /// What the application was told beside the stream.
    pub silence: SilenceCheck,
    /// Whether it began where it should, and was told to be live when it was.
    pub beginning: JoinCheck,
    /// Whether what it was told had a reason.
    pub loss_reason: LossReasonCheck,
    /// Whether what it misses is asked for, and given up, in time.
    pub first_nack: FirstNackCheck,
    /// Alarms told within the input that is going on.
    pub alarms: Vec<Alarm>,
    /// Whether its kernel is a member of the groups, for each line.
    pub member: [bool; 2],
    /// When the publisher last made a heartbeat, as its control page was last READ to say.
    pub page_beat: u64,
    /// Sequences it missed while it joined.
    pub gaps_of_joining: u64,
    /// Every record as (epoch, number, when), where a run is compared with another.
    pub log: Vec<(u64, u64, Nanos)>,
}

/// See the module.
pub struct Subscriber {
    /// The core.
    pub core: Journaled<SubscriberCore>,
    /// Its channels, in the order of the core's settings.
    pub following: Vec<Following>,
    /// Decides how its connections and links behave.
    pub rng: ChaCha8Rng,
    /// Decides what of it is lost: apart, so that the same is lost whatever others do.
    pub weather: ChaCha8Rng,
    /// Which incarnation this is.
    pub life: u64,
    /// Whether it is there at all.
    pub alive: bool,
    /// Whether the application does not poll.
    pub stalled: bool,
    /// Datagrams that wait for the application.
    pub socket: VecDeque<(u8, Packet)>,
    /// Its connections: repair, replay, NACKs, READs.
    pub connections: [Option<usize>; 4],
    /// The number of the latest attempt to connect each.
    pub attempts: [u64; 4],
    /// When it is woken next.
    pub wakes_at: Nanos,
    /// How often in a row it wanted to be woken at once without having anything to do.
    pub spins: u32,
}

impl Subscriber {
    /// The subscriber of this number in this life, which begins each channel as told.
    #[must_use]
    pub fn new(plan: &Plan, number: usize, life: u64, starts: &[Start], now: Nanos) -> Self {
        let seed = plan.seed ^ (number as u64) << 32 ^ life;
        let following: Vec<Following> = (channels(plan).zip(starts).enumerate())
            .map(|(index, (channel, &start))| {
                // The second channel is set like the next subscriber's first, but for a standby.
                let like = match plan.is_standby(number) {
                    true => number,
                    false => number + index,
                };
                let (config, _) = plan.subscribers[like % plan.subscribers.len()];
                Following {
                    channel,
                    config,
                    start,
                    stream: Stream::new(channel, config.delivery, start),
                    asked: NackCheck::new(config, plan.ring_slots),
                    silence: SilenceCheck::new(config),
                    beginning: JoinCheck::new(start),
                    loss_reason: LossReasonCheck::new(config, plan.ring_slots),
                    first_nack: FirstNackCheck::new(config, plan.lines, reads_of(plan)),
                    alarms: Vec::new(),
                    member: [false; 2],
                    page_beat: 0,
                    gaps_of_joining: 0,
                    log: Vec::new(),
                }
            })
            .collect();
        let wanted = following.iter().map(|of| ChannelWanted {
            channel: ChannelName::Id(of.channel),
            start: of.start,
            config: of.config,
            lines: None,
        });
        let settings = SubscriberSettings {
            name: format!("s{number}"),
            channels: wanted.collect(),
            link: plan.link,
            seed,
        };
        let mut core = Journaled::new(SubscriberCore::new(settings, now));
        if let Some(len) = plan.recorded {
            record(&mut core, len);
        }
        let on = &mut |_: Item<'_>| ();
        core.handle(now, SubscriberInput::UseNackPath(plan.nack_path), on);
        core.handle(now, SubscriberInput::UseReadPath(plan.read_path), on);
        let inboxes = plan.inboxes && plan.is_standby(number);
        core.handle(now, SubscriberInput::UseInboxes(inboxes), on);
        Self {
            core,
            following,
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x6e65_7477),
            weather: ChaCha8Rng::seed_from_u64(seed ^ 0x7765_6174),
            life,
            alive: true,
            stalled: false,
            socket: VecDeque::new(),
            connections: [None; 4],
            attempts: [0; 4],
            wakes_at: Nanos::MAX,
            spins: 0,
        }
    }

    /// Gives the core something, and passes on what it tells of which channel.
    pub fn input(
        &mut self,
        f: impl FnOnce(&mut Journaled<SubscriberCore>, &mut dyn FnMut(Item<'_>)),
        mut told: impl FnMut(&mut Following, &Item<'_>),
    ) {
        let Self {
            core, following, ..
        } = self;
        f(core, &mut |item: Item<'_>| {
            let (Item::Record(position, _) | Item::Event(position, _)) = item;
            let of = following
                .iter_mut()
                .find(|of| of.channel == position.channel);
            if let Some(of) = of {
                told(of, &item);
            }
        });
    }

    /// One of its channels.
    pub fn following_mut(&mut self, channel: ChannelId) -> Option<&mut Following> {
        self.following.iter_mut().find(|of| of.channel == channel)
    }

    /// Its kernel is a member of no group any more.
    pub fn lose_membership(&mut self) {
        for of in &mut self.following {
            of.member = [false; 2];
        }
    }

    /// Whether its kernel is a member of a channel's group on this line.
    #[must_use]
    pub fn is_member(&self, channel: ChannelId, line: u8) -> bool {
        let of = self.following.iter().find(|of| of.channel == channel);
        of.is_some_and(|of| of.member[usize::from(line)])
    }

    /// A connection is up or down: counting of questions begins anew.
    pub fn reconnected(&mut self, path: Path, now: Nanos) {
        for of in &mut self.following {
            if path == Path::Read {
                of.page_beat = 0;
                of.first_nack.reads_anew(now);
            }
            of.asked.reconnected(path);
        }
    }

    /// Its application polls again.
    pub fn awakes(&mut self, now: Nanos) {
        for of in &mut self.following {
            of.asked.pace.awakes(now);
            of.asked.rungs.awakes(now);
            of.first_nack.awakes(now);
        }
    }

    /// Checks what it sends: whole frames, and nothing asked for that should not be.
    ///
    /// # Errors
    /// What it should not have sent.
    pub fn check_sent(&mut self, path: Path, mut frames: &[u8], now: Nanos) -> Result<(), String> {
        while !frames.is_empty() {
            let read = Message::read(frames, 1 << 20).map_err(|e| e.to_string())?;
            let (channel, message, taken) = read.ok_or("a frame that is not whole")?;
            frames = &frames[taken..];
            let (class, ranges, epoch) = match message {
                Message::Nack {
                    class,
                    ranges,
                    epoch,
                } => (class, ranges, epoch),
                Message::Progress(progress) => {
                    let receiver = self.core.receiver(channel);
                    let settled = receiver.map_or(Sequence::NONE, |r| r.progress().0);
                    if progress.sequence > settled {
                        let said = progress.sequence;
                        return Err(format!("a PROGRESS to {said}, settled is {settled}"));
                    }
                    if let Some(of) = self.following_mut(channel) {
                        of.asked.pace.says(now)?;
                    }
                    continue;
                }
                _ => continue,
            };
            let Some(receiver) = self.core.receiver(channel) else {
                return Err(format!("a NACK of channel {channel}"));
            };
            // A loss that waits to be told has been passed already.
            let next = receiver.progress().0.next();
            let Some(of) = self.following_mut(channel) else {
                return Err(format!("a NACK of channel {channel}"));
            };
            let followed = of.stream.followed();
            if epoch != followed {
                return Err(format!("a NACK of epoch {epoch} in {followed}"));
            }
            let found = |sequence| of.loss_reason.found(sequence);
            of.asked.nack(path, (class, &ranges), next, found, now)?;
            ranges.iter().for_each(|range| of.first_nack.asks(*range));
        }
        Ok(())
    }

    /// Something comes on a path that questions give way on.
    pub fn answers(&mut self, channel: ChannelId, path: Path, message: &Message<'_>, now: Nanos) {
        let epoch = self.core.receiver(channel).map(|receiver| receiver.epoch());
        let Some(of) = self.following_mut(channel) else {
            return;
        };
        let sequence = match message {
            Message::Refused(refused) => {
                let is_ours = epoch == Some(refused.epoch);
                of.asked.refused(refused, is_ours, now);
                refused.range.last
            }
            Message::Datagram(bytes) => match Datagram::parse(bytes) {
                Ok(datagram) => datagram.header().sequence,
                Err(_) => return,
            },
            _ => return,
        };
        if path == Path::Nack {
            of.asked.rungs.answers(Rung::Nack, sequence, now);
        }
    }
}
