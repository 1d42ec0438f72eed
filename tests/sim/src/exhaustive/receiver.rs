//! A receiver of a small world: the shipped core, the driver that does for it what it wants done,
//! and the check of what its application is told.

use tickcast_reliability::control::{ChannelName, Message, Start};
use tickcast_reliability::delivery::{Event, Item, LineId, LinkDownReason, LossCause};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::session::{
    Action, ChannelWanted, LinkTimers, Path, SubscriberCore, SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{Counter, Epoch, Nanos, Sequence};

use super::cores::{Core, Does};
use super::fingerprint::Printer;
use super::transcript::{FrameId, PacketId, Said, TruthId};
use super::world::{Checked, PATHS, from_now};
use super::{BEGIN, Plan, Who};
use crate::checks::counters;
use crate::checks::delivery::Stream;
use crate::faults::plan::CHANNEL;
use crate::network::stream::index_of;
use crate::truth::Truth;

/// What may happen to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReceiverEvent {
    /// Nothing but that it is looked after: it starts, or a timer fires.
    Look,
    /// A datagram arrives.
    Datagram(PacketId),
    /// A message of a connection arrives; of a WELCOME also what the publisher had sent when it
    /// took the JOIN.
    Message(usize, FrameId, Option<Sequence>),
    /// A connection is over.
    Disconnected(usize),
}

/// The same at a time when this had been published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiverInput {
    /// What happens.
    pub event: ReceiverEvent,
    /// What was published.
    pub truth: TruthId,
}

/// What a receiver has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverOutput {
    /// A message goes to the publisher.
    Send(usize, FrameId),
    /// A connection is made, which takes no time.
    Connect(usize),
    /// A connection is closed.
    Disconnect(usize),
    /// It becomes a member of the group.
    Listen,
}

/// What a world must know of a receiver.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverFacts {
    /// When its next timer fires, from now; [`Nanos::MAX`]: never.
    pub due: Nanos,
    /// Where its application stands.
    pub at: (Epoch, Sequence),
    /// Whether it was told the end.
    pub ended: bool,
    /// Sequences that it misses.
    pub open: u64,
}

/// See the module.
pub struct Receiver {
    core: SubscriberCore,
    stream: Stream,
    who: Who,
    number: u64,
    causes: Vec<LossCause>,
    clock: Clock,
}

/// The clock of the last PROGRESS of the connection for repair, and its number, which goes in its place on
/// the way and comes back in STATUS: a core reads no more of it than whether it is the last, and so
/// messages that differ only in when they were said are one.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    number: u64,
    at: Nanos,
}

impl Clock {
    /// A message leaves for the publisher.
    fn leaves(&mut self, message: &mut Message<'_>) {
        if let Message::Progress(progress) = message {
            self.number += 1;
            self.at = std::mem::replace(&mut progress.sent_at, Nanos(self.number));
        }
    }

    /// A message of the publisher arrives.
    fn returns(&mut self, path: Path, message: &mut Message<'_>) {
        match message {
            // PROGRESS is of the connection for repair: that for replay begins nothing anew.
            Message::Welcome(_) if path == Path::Repair => *self = Self::default(),
            Message::Status(status) => {
                let is_last = status.echo == Nanos(self.number);
                status.echo = if is_last { self.at } else { Nanos::ZERO };
            }
            _ => {}
        }
    }
}

/// Rounds of one core at one time that are too many.
const ROUNDS_MAX: u32 = 100;

impl Receiver {
    /// The receiver of this number.
    fn new(plan: &Plan, number: u64) -> Self {
        let who = plan.receivers[number as usize];
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
            core: SubscriberCore::new(settings, BEGIN),
            stream: Stream::new(CHANNEL, who.delivery, who.start),
            who,
            number,
            causes: plan.causes.clone(),
            clock: Clock::default(),
        }
    }

    /// Gives the core an input, and checks what it tells and counts.
    fn input<T>(
        &mut self,
        (truth, joined_at): (&Truth, Option<Sequence>),
        told: &mut Vec<String>,
        f: impl FnOnce(&mut SubscriberCore, &mut dyn FnMut(Item<'_>)) -> T,
    ) -> Result<T, String> {
        let mut wrong = None;
        let (stream, who, causes) = (&mut self.stream, self.who, &self.causes);
        let result = f(&mut self.core, &mut |item: Item<'_>| {
            told.push(words(&item));
            let right = stream.take(truth, &item);
            let right = right.and_then(|()| allowed(&item, who, joined_at, causes));
            if let Err(what) = right {
                wrong.get_or_insert(what);
            }
        });
        if let Some(what) = wrong {
            return Err(what);
        }
        for counters in self.core.counters() {
            counters::receiver(counters, &self.stream)?;
        }
        Ok(result)
    }

    /// Does everything that the core wants done.
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
            let told = &mut does.told;
            self.input(with, told, |core, mut on| {
                core.handle(now, SubscriberInput::Timeout, &mut on)
            })?;
            loop {
                let with = (said.truth(truth), None);
                let Some(path) = self.input(with, &mut does.told, |core, mut on| {
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

    fn begin(plan: &Plan, number: u64) -> Result<Self, String> {
        Ok(Self::new(plan, number))
    }

    fn take(
        &mut self,
        said: &mut Said,
        now: Nanos,
        ReceiverInput { event, truth }: ReceiverInput,
        does: &mut Does<ReceiverOutput>,
    ) -> Checked {
        let (of, told) = (said.truth(truth), &mut does.told);
        match event {
            ReceiverEvent::Look => {}
            ReceiverEvent::Datagram(id) => {
                let bytes = said.packet_bytes(id);
                self.input((of, None), told, |core, mut on| {
                    core.handle(
                        now,
                        SubscriberInput::received(CHANNEL, LineId(0), bytes),
                        &mut on,
                    );
                })?;
            }
            ReceiverEvent::Message(path, id, joined_at) => {
                let (channel, mut message) = said.message(id)?;
                self.clock.returns(PATHS[path], &mut message);
                self.input((of, joined_at), told, |core, mut on| {
                    core.handle(
                        now,
                        SubscriberInput::message(PATHS[path], channel, &message),
                        &mut on,
                    );
                })?;
            }
            ReceiverEvent::Disconnected(path) => {
                self.input((of, None), told, |core, mut on| {
                    core.handle(
                        now,
                        SubscriberInput::Disconnected(PATHS[path], LinkDownReason::Closed),
                        &mut on,
                    );
                })?;
            }
        }
        self.pump(said, now, truth, does)
    }

    fn fingerprint(&self, printer: &mut Printer, now: Nanos) -> u128 {
        // Who it is, and what it may lose, follows from its number. All that it was told is in, and
        // the counters that are held against that and each other; the rest of those equal a total
        // of the stream's.
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
            ];
            all.map(Counter::get)
        });
        let counted: Vec<_> = counted.collect();
        let parts = (self.number, &self.core, self.clock, &self.stream, counted);
        printer.of(&parts, now)
    }

    fn facts(&self, now: Nanos) -> ReceiverFacts {
        ReceiverFacts {
            due: from_now(self.core.poll_timeout(), now),
            at: (self.stream.epoch(), self.stream.next()),
            ended: self.stream.ended(),
            open: open(&self.core),
        }
    }
}

/// Sequences that it misses.
fn open(core: &SubscriberCore) -> u64 {
    let counters = core.counters();
    counters
        .map(|c| c.missing_open.get() + c.replay_open.get())
        .sum()
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

#[cfg(test)]
mod tests {
    use super::super::worlds;
    use super::*;

    /// Its `Debug` has every field.
    #[test]
    fn all_that_an_application_was_told_is_in_the_fingerprint() {
        let mut receiver = Receiver::new(&worlds(false)[0], 0);
        let mut printer = Printer::default();
        let before = receiver.fingerprint(&mut printer, BEGIN);
        receiver.stream.repairs.push((3, 1, 7));
        assert_ne!(receiver.fingerprint(&mut printer, BEGIN), before);
        let told = format!("{:?}", receiver.stream);
        let mut parts = printer.normal().windows(told.len());
        assert!(parts.any(|part| part == told.as_bytes()), "{told}");
    }
}
