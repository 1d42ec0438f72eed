//! A subscriber in virtual time: the shipped core, sockets of finite size, and the events that its
//! application received on each channel.

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
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence};
use tickcast_reliability::wire::Datagram;

use crate::checks::delivery::Stream;
use crate::checks::first_nack::FirstNackCheck;
use crate::checks::impostor::ImpostorCheck;
use crate::checks::join::JoinCheck;
use crate::checks::ladder::Rung;
use crate::checks::loss_reason::LossReasonCheck;
use crate::checks::nack_validity::{Alarm, NackCheck};
use crate::checks::silence::SilenceCheck;
use crate::faults::plan::Plan;
use crate::faults::plan::channels;
use crate::feed::journal::record;
use crate::network::packet::Packet;
use crate::network::reads::READS;

/// Returns the number of READs in flight at once, and the slot length in bytes.
const fn reads_of(plan: &Plan) -> (u32, u32) {
    (if plan.read_path { READS } else { 0 }, plan.slot_len)
}

/// One channel of a subscriber.
pub struct Following {
    /// The channel.
    pub channel: ChannelId,
    /// Settings of the channel.
    pub config: ReceiverConfig,
    /// Start of the channel.
    pub start: Start,
    /// Check on the delivered stream.
    pub stream: Stream,
    /// Check on the delivered stream while an impostor is about.
    pub impostor: ImpostorCheck,
    /// Check on NACKs and READs.
    pub asked: NackCheck,
    /// Check on liveness events.
    pub silence: SilenceCheck,
    /// Check that the channel starts where it should and is reported live when it is.
    pub beginning: JoinCheck,
    /// Check that each loss has a reason.
    pub loss_reason: LossReasonCheck,
    /// Check that gaps are requested, and given up, in time.
    pub first_nack: FirstNackCheck,
    /// Whether an impostor was proven, or a twin is about and a datagram was dropped because its record
    /// number does not follow. From then on requests follow from wrong datagrams and are not checked.
    pub disturbed: bool,
    /// The newest datagram of each line.
    pub newest: [(Epoch, Sequence); 2],
    /// Alarms emitted during the current input.
    pub alarms: Vec<Alarm>,
    /// Whether the kernel is a member of the channel's group, by line.
    pub member: [bool; 2],
    /// Time of the publisher's last heartbeat, as the last READ of its control page showed it.
    pub page_beat: u64,
    /// Sequences that were missing while joining.
    pub gaps_of_joining: u64,
    /// Every record as (epoch, number, time), for runs that are compared with another.
    pub log: Vec<(u64, u64, Nanos)>,
}

impl Following {
    /// Notes a datagram that this line brings, and whether it is older than the core remembers.
    pub fn hears_line(&mut self, line: usize, (epoch, at): (Epoch, Sequence)) {
        let (of, newest) = self.newest[line];
        self.stream.outran_memory |= of == epoch && newest.since(at) > self.asked.memory();
        self.newest[line] = self.newest[line].max((epoch, at));
    }
}

/// A subscriber in virtual time.
pub struct Subscriber {
    /// The subscriber core.
    pub core: Journaled<SubscriberCore>,
    /// The channels, in the order of the core's settings.
    pub following: Vec<Following>,
    /// Generator that decides how its connections and links behave.
    pub rng: ChaCha8Rng,
    /// Generator that decides its losses. It is separate, so that the losses do not depend on other
    /// subscribers.
    pub weather: ChaCha8Rng,
    /// Number of this incarnation.
    pub life: u64,
    /// Whether the process is running.
    pub alive: bool,
    /// Whether the application does not poll.
    pub stalled: bool,
    /// Datagrams buffered for the application.
    pub socket: VecDeque<(u8, Packet)>,
    /// Connections for repair, replay, NACKs and READs.
    pub connections: [Option<usize>; 4],
    /// Number of the last attempt to connect, by path.
    pub attempts: [u64; 4],
    /// Number of slots of the publisher's ring.
    pub ring_slots: u64,
    /// Time of the next wake-up.
    pub wakes_at: Nanos,
    /// Number of consecutive immediate wake-ups without work.
    pub spins: u32,
}

impl Subscriber {
    /// Returns the subscriber of this number and incarnation, with these starts by channel.
    #[must_use]
    pub fn new(plan: &Plan, number: usize, life: u64, starts: &[Start], now: Nanos) -> Self {
        let seed = plan.seed ^ (number as u64) << 32 ^ life;
        let following: Vec<Following> = (channels(plan).zip(starts).enumerate())
            .map(|(index, (channel, &start))| {
                // The second channel takes the settings of the next subscriber, except for a
                // standby.
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
                    impostor: ImpostorCheck::new(channel),
                    asked: NackCheck::new(config, plan.ring_slots),
                    silence: SilenceCheck::new(config),
                    beginning: JoinCheck::new(start),
                    loss_reason: LossReasonCheck::new(config, plan.ring_slots),
                    first_nack: FirstNackCheck::new(config, plan.lines, reads_of(plan)),
                    disturbed: false,
                    newest: [(Epoch::NONE, Sequence::NONE); 2],
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
            ring_slots: plan.ring_slots,
            wakes_at: Nanos::MAX,
            spins: 0,
        }
    }

    /// Passes an input to the core, and each item that the core emits to `told` with its channel.
    pub fn input(
        &mut self,
        f: impl FnOnce(&mut Journaled<SubscriberCore>, &mut dyn FnMut(Item<'_>)),
        mut reported: impl FnMut(&mut Following, &Item<'_>),
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
                reported(of, &item);
            }
        });
    }

    /// Returns the state of one channel.
    pub fn following_mut(&mut self, channel: ChannelId) -> Option<&mut Following> {
        self.following.iter_mut().find(|of| of.channel == channel)
    }

    /// Drops all group memberships of the kernel.
    pub fn lose_membership(&mut self) {
        for of in &mut self.following {
            of.member = [false; 2];
        }
    }

    /// Returns whether the kernel is a member of a channel's group on this line.
    #[must_use]
    pub fn is_member(&self, channel: ChannelId, line: u8) -> bool {
        let of = self.following.iter().find(|of| of.channel == channel);
        of.is_some_and(|of| of.member[usize::from(line)])
    }

    /// Records that a connection went up or down, which resets the counts of requests.
    pub fn reconnected(&mut self, path: Path, now: Nanos) {
        for of in &mut self.following {
            if path == Path::Read {
                of.page_beat = 0;
                of.first_nack.reads_anew(now);
            }
            of.asked.reconnected(path);
        }
    }

    /// Records that the application polls again.
    pub fn awakes(&mut self, now: Nanos) {
        for of in &mut self.following {
            of.asked.pace.awakes(now);
            of.asked.rungs.awakes(now);
            of.first_nack.awakes(now);
        }
    }

    /// Checks frames that the subscriber sends: they are whole, and each request is allowed.
    ///
    /// # Errors
    /// A frame that is not whole, a PROGRESS beyond the settled sequence, or a NACK that a check
    /// rejects.
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
                    // A confirmation is asked for after each eighth of the ring.
                    let confirmed = receiver.map_or(Sequence::NONE, |r| r.confirmed(now).0);
                    let unconfirmed = progress.heard.since(confirmed) > self.ring_slots / 8;
                    if progress.sequence > settled {
                        let said = progress.sequence;
                        return Err(format!("a PROGRESS to {said}, settled is {settled}"));
                    }
                    if let Some(of) = self.following_mut(channel).filter(|it| !it.disturbed) {
                        of.asked.pace.says(now, unconfirmed)?;
                        of.first_nack.says(now);
                    }
                    continue;
                }
                _ => continue,
            };
            let Some(receiver) = self.core.receiver(channel) else {
                return Err(format!("a NACK of channel {channel}"));
            };
            // A loss that is not yet emitted is already behind `progress`.
            let next = receiver.progress().0.next();
            let Some(of) = self.following_mut(channel) else {
                return Err(format!("a NACK of channel {channel}"));
            };
            let followed = of.stream.followed();
            if epoch != followed {
                return Err(format!("a NACK of epoch {epoch} in {followed}"));
            }
            if of.disturbed {
                continue;
            }
            let found = |sequence| of.loss_reason.found(sequence);
            let may_be_lost = |sequence| of.loss_reason.may_be_lost(sequence, now);
            (of.asked).nack(path, (class, &ranges), next, (found, may_be_lost), now)?;
            ranges.iter().for_each(|range| of.first_nack.asks(*range));
        }
        Ok(())
    }

    /// Records a datagram or a refusal that arrives on the NACK connection or another repair path.
    pub fn answers(&mut self, channel: ChannelId, path: Path, message: &Message<'_>, now: Nanos) {
        let epoch = self.core.receiver(channel).map(|receiver| receiver.epoch());
        let Some(of) = self.following_mut(channel) else {
            return;
        };
        let (sequence, late) = match message {
            Message::Refused(refused) => {
                let is_ours = epoch == Some(refused.epoch);
                of.asked.refused(refused, is_ours, now);
                (refused.range.last, false)
            }
            Message::Datagram(bytes) => match Datagram::parse(bytes) {
                Ok(datagram) => {
                    let sequence = datagram.header().sequence;
                    (sequence, !of.asked.awaits(Rung::Nack, sequence))
                }
                Err(_) => return,
            },
            _ => return,
        };
        if path == Path::Nack {
            of.asked.rungs.answers(Rung::Nack, sequence, late, now);
        }
    }
}
