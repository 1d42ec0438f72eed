//! A receiver of a small world: the shipped core, the driver that performs its actions, and the
//! check of the items for its application.

use tickcast_reliability::control::{ChannelName, Message, Start};
use tickcast_reliability::delivery::{Event, Item, LineId, LinkDownReason, LossCause};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::session::{
    Action, ChannelWanted, LinkTimers, Path, SubscriberCore, SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{Counter, Epoch, Nanos, Sequence};
use tickcast_reliability::wire::Datagram;

use super::core::{Checked, Core, Does, PATHS, from_now};
use super::fingerprint::Printer;
use super::transcript::{FrameId, PacketId, Said, TruthId};
use super::{BEGIN, ReceiverPlan, SmallPlan};
use crate::checks::counters;
use crate::checks::delivery::Stream;
use crate::checks::impostor::ImpostorCheck;
use crate::faults::plan::CHANNEL;
use crate::network::stream::index_of;
use crate::truth::Truth;

/// Inputs of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiverEvent {
    /// A poll only: the receiver starts, or a timer fires.
    Look,
    /// A datagram arrives.
    Datagram(PacketId),
    /// A message of a connection arrives. With a WELCOME comes the last sequence sent when the
    /// publisher received the JOIN.
    Message(usize, FrameId, Option<Sequence>),
    /// A connection closes.
    Disconnected(usize),
}

/// An input together with the datagrams published so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiverInput {
    /// The input.
    pub event: ReceiverEvent,
    /// The datagrams published so far.
    pub truth: TruthId,
}

/// Outputs of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverOutput {
    /// A message sent to the publisher.
    Send(usize, FrameId),
    /// A connection is opened, which takes no time.
    Connect(usize),
    /// A connection is closed.
    Disconnect(usize),
    /// The receiver joins the group.
    Listen,
}

/// The part of a receiver's state that a world needs.
#[derive(Clone, Debug)]
pub struct ReceiverFacts {
    /// Time from now until its next timer; [`Nanos::MAX`] means never.
    pub due: Nanos,
    /// Position of its application in the stream.
    pub at: (Epoch, Sequence),
    /// Whether the end was delivered.
    pub ended: bool,
    /// Number of missing sequences.
    pub open: u64,
    /// Result of the account of the whole session after its end, where an impostor is about.
    pub account: Result<(), String>,
}

/// A receiver of a small world.
pub struct Receiver {
    core: SubscriberCore,
    items: Items,
    account: Result<(), String>,
    who: ReceiverPlan,
    number: u64,
    causes: Vec<LossCause>,
    clock: Clock,
}

/// The check of the items for the application.
#[derive(Debug)]
enum Items {
    Published(Box<Stream>),
    Attacked(Box<ImpostorCheck>),
}

impl Items {
    fn take(&mut self, truth: &Truth, item: &Item<'_>) -> Checked {
        match self {
            Self::Published(stream) => stream.take(truth, item),
            Self::Attacked(check) => check.take(truth, item),
        }
    }

    /// Records that a copy of a datagram arrived: over a connection, where it `decides`.
    fn hears(&mut self, bytes: &[u8], forged: bool, decides: bool) {
        if let Self::Attacked(check) = self
            && let Ok(datagram) = Datagram::parse(bytes)
            && datagram.header().kind.is_sequenced()
        {
            check.hears(datagram.header().sequence, forged, decides);
        }
    }
}

/// The clocks of the last PROGRESS on the repair connection and of those without a response, each with
/// its number. The number replaces the clock in flight and returns in STATUS, so that messages that
/// differ only in their time become equal.
#[derive(Debug, Default)]
struct Clock {
    number: u64,
    sent: Vec<(u64, Nanos)>,
}

impl Clock {
    /// Replaces the clock in a message to the publisher.
    fn leaves(&mut self, message: &mut Message<'_>) {
        if let Message::Progress(progress) = message {
            self.number += 1;
            let at = std::mem::replace(&mut progress.sent_at, Nanos(self.number));
            self.sent.push((self.number, at));
        }
    }

    /// Restores the clock in a message of the publisher.
    fn returns(&mut self, path: Path, message: &mut Message<'_>) {
        match message {
            // PROGRESS is sent on the repair connection, so that a WELCOME for replay resets
            // nothing.
            Message::Welcome(_) if path == Path::Repair => *self = Self::default(),
            Message::Status(status) => {
                // Responses come in the order of the requests.
                self.sent.retain(|(number, _)| *number >= status.echo.0);
                status.echo = self.sent.first().map_or(Nanos::ZERO, |(_, at)| *at);
            }
            _ => {}
        }
    }
}

/// Number of rounds of one core at one time that is a violation.
const ROUNDS_MAX: u32 = 100;

impl Receiver {
    /// Returns the receiver of this number.
    fn new(plan: &SmallPlan, number: u64) -> Self {
        let who = plan.receivers[number as usize];
        let config = ReceiverConfig {
            delivery: who.delivery,
            window_slots: plan.window_slots,
            // Equal to four default round trips, so that measuring has no effect.
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
            core: SubscriberCore::new(settings, BEGIN),
            items: match plan.forged.is_empty() {
                true => Items::Published(Stream::new(CHANNEL, who.delivery, who.start).into()),
                false => Items::Attacked(ImpostorCheck::new(CHANNEL).into()),
            },
            account: Ok(()),
            who,
            number,
            causes: plan.causes.clone(),
            clock: Clock::default(),
        }
    }

    /// Passes an input to the core, and checks the items and counters that it emits.
    fn input<T>(
        &mut self,
        (truth, joined_at): (&Truth, Option<Sequence>),
        reported: &mut Vec<String>,
        f: impl FnOnce(&mut SubscriberCore, &mut dyn FnMut(Item<'_>)) -> T,
    ) -> Result<T, String> {
        let mut wrong = None;
        let (items, who, causes) = (&mut self.items, self.who, &self.causes);
        let result = f(&mut self.core, &mut |item: Item<'_>| {
            reported.push(words(&item));
            let right = items.take(truth, &item);
            let right = right.and_then(|()| allowed(&item, who, joined_at, causes));
            if let Err(what) = right {
                wrong.get_or_insert(what);
            }
        });
        if let Some(what) = wrong {
            return Err(what);
        }
        if let Items::Published(stream) = &self.items {
            for counters in self.core.counters() {
                counters::receiver(counters, stream)?;
            }
        }
        Ok(result)
    }

    /// Checks that nothing was given up that only multicast claims, where an impostor is about.
    fn check_given_up(&mut self, now: Nanos) -> Checked {
        let Items::Attacked(check) = &mut self.items else {
            return Ok(());
        };
        let Some(receiver) = self.core.receiver(CHANNEL) else {
            return Ok(());
        };
        let ((_, heard), (newest, limit)) = (receiver.progress(), receiver.confirmed(now));
        let can_confirm = self.core.is_joined() && limit < Sequence(u64::MAX);
        check.input_over(newest, can_confirm, heard)
    }

    /// Checks the account of the whole session once it has ended, where an impostor is about.
    fn account(&mut self, truth: &Truth) {
        if let Items::Attacked(check) = &self.items
            && check.ended()
            && let Some(receiver) = self.core.receiver(CHANNEL)
            && let Some(ring) = truth.of(CHANNEL, receiver.epoch()).first()
        {
            self.account = check.settle(ring, receiver.counters()).map(|_| ());
        }
    }

    /// Performs all actions that the core requests.
    fn pump(
        &mut self,
        said: &mut Said,
        now: Nanos,
        truth: TruthId,
        does: &mut Does<ReceiverOutput>,
    ) -> Checked {
        let mut bytes = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let mut busy = false;
            let with = (said.truth(truth), None);
            let reported = &mut does.reported;
            self.input(with, reported, |core, mut on| {
                core.handle(now, SubscriberInput::Timeout, &mut on);
            })?;
            loop {
                let with = (said.truth(truth), None);
                let Some(path) = self.input(with, &mut does.reported, |core, mut on| {
                    core.handle(now, SubscriberInput::Poll, &mut on);
                    core.poll_transmit(&mut bytes)
                })?
                else {
                    break;
                };
                busy = true;
                let (path, out) = (index_of(path), &mut does.outputs);
                let clock = &mut self.clock;
                let send = |id| out.push(ReceiverOutput::Send(path, id));
                said.frames(&bytes, |message| clock.leaves(message), send)?;
                bytes.clear();
            }
            while let Some(action) = self.core.poll_action() {
                busy = true;
                does.outputs.push(match action {
                    Action::Connect(path) => {
                        self.core.handle(
                            now,
                            SubscriberInput::Connected(path),
                            &mut |_: Item<'_>| (),
                        );
                        ReceiverOutput::Connect(index_of(path))
                    }
                    Action::Disconnect(path) => ReceiverOutput::Disconnect(index_of(path)),
                    Action::Listen(_) | Action::Rejoin(_) | Action::Inbox(..) => {
                        ReceiverOutput::Listen
                    }
                    Action::Rejected(rejected) => {
                        return Err(format!("{} was rejected: {}", self.number, rejected.text));
                    }
                });
            }
            if !busy {
                return Ok(());
            }
        }
        Err(format!("receiver {} is busy without end", self.number))
    }
}

impl Core for Receiver {
    type Input = ReceiverInput;
    type Output = ReceiverOutput;
    type Facts = ReceiverFacts;

    fn begin(plan: &SmallPlan, number: u64) -> Result<Self, String> {
        Ok(Self::new(plan, number))
    }

    fn take(
        &mut self,
        said: &mut Said,
        now: Nanos,
        ReceiverInput { event, truth }: ReceiverInput,
        does: &mut Does<ReceiverOutput>,
    ) -> Checked {
        let (of, reported) = (said.truth(truth), &mut does.reported);
        match event {
            ReceiverEvent::Look => {}
            ReceiverEvent::Datagram(id) => {
                let bytes = said.packet_bytes(id);
                self.items.hears(bytes, said.is_forged(id), false);
                self.input((of, None), reported, |core, mut on| {
                    core.handle_bytes(now, (CHANNEL, LineId(0)), bytes, false, &mut on);
                })?;
            }
            ReceiverEvent::Message(path, id, joined_at) => {
                let (channel, mut message) = said.message(id)?;
                self.clock.returns(PATHS[path], &mut message);
                if let Message::Datagram(bytes) = &message {
                    self.items.hears(bytes, false, true);
                }
                self.input((of, joined_at), reported, |core, mut on| {
                    core.handle(
                        now,
                        SubscriberInput::message(PATHS[path], channel, &message),
                        &mut on,
                    );
                })?;
                if let (Items::Attacked(check), Message::Status(_)) = (&mut self.items, &message) {
                    let proofs = self.core.counters().map(|it| it.impostors.get()).sum();
                    check.hears_status(proofs);
                }
            }
            ReceiverEvent::Disconnected(path) => {
                self.input((of, None), reported, |core, mut on| {
                    core.handle(
                        now,
                        SubscriberInput::Disconnected(PATHS[path], LinkDownReason::Closed),
                        &mut on,
                    );
                })?;
            }
        }
        self.pump(said, now, truth, does)?;
        self.check_given_up(now)?;
        self.account(said.truth(truth));
        Ok(())
    }

    fn fingerprint(&self, printer: &mut Printer, now: Nanos) -> u128 {
        // The number decides the receiver's settings and its permitted losses. The fingerprint
        // includes all items emitted, and the counters that are compared with them and with each
        // other, or that a core takes back. Each other counter equals a total of the stream.
        let counted = self.core.counters().map(|c| {
            let all = [
                &c.missing_datagrams,
                &c.missing_recovered,
                &c.missing_lost,
                &c.missing_superseded,
                &c.missing_open,
                &c.replay_requested,
                &c.replay_received,
                &c.replay_lost,
                &c.replay_superseded,
                &c.replay_open,
                &c.delivered_records,
                &c.lost_records,
                &c.fenced_records,
                &c.source_messages_lost,
            ];
            all.map(Counter::get)
        });
        let counted: Vec<_> = counted.collect();
        let checks = (&self.items, &self.account, counted);
        printer.of(&(self.number, &self.core, &self.clock, checks), now)
    }

    fn facts(&self, now: Nanos) -> ReceiverFacts {
        let receiver = self.core.receiver(CHANNEL);
        let (at, ended) = match &self.items {
            Items::Published(stream) => ((stream.epoch(), stream.next()), stream.ended()),
            Items::Attacked(check) => {
                let at = receiver.map(|it| (it.epoch(), it.progress().0.next()));
                (at.unwrap_or((Epoch::NONE, Sequence::NONE)), check.ended())
            }
        };
        ReceiverFacts {
            due: from_now(self.core.poll_timeout(), now),
            at,
            ended,
            open: open(&self.core),
            account: self.account.clone(),
        }
    }
}

/// Returns the number of missing sequences.
fn open(core: &SubscriberCore) -> u64 {
    let counters = core.counters();
    counters
        .map(|c| c.missing_open.get() + c.replay_open.get())
        .sum()
}

/// Checks the rules of this world, which the general check of a stream does not know.
fn allowed(
    item: &Item<'_>,
    who: ReceiverPlan,
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
                // The ring begins with sequence 1, and in these worlds it never drops it.
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

#[cfg(test)]
mod tests {
    use super::super::worlds;
    use super::*;

    /// Relies on the `Debug` text of the stream, which has every field.
    #[test]
    fn fingerprint_covers_all_delivered_to_application() {
        let mut receiver = Receiver::new(&worlds(false)[0], 0);
        let mut printer = Printer::default();
        let before = receiver.fingerprint(&mut printer, BEGIN);
        let Items::Published(stream) = &mut receiver.items else {
            panic!("no impostor is about");
        };
        stream.repairs.push((3, 1, 7));
        let reported = format!("{stream:?}");
        assert_ne!(receiver.fingerprint(&mut printer, BEGIN), before);
        let mut parts = printer.normal().windows(reported.len());
        assert!(parts.any(|part| part == reported.as_bytes()), "{reported}");
    }
}
