//! A subscriber as shipped, except for its threads: the core over any receiver behind seeded
//! faults, connections over TCP (and verbs), and an application that checks every record.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tickcast_reliability::control::{ChannelName, RepairOffer, Start};
use tickcast_reliability::delivery::{Event, Item, LineId, LinkDownReason, Loss};
use tickcast_reliability::receive::{ReceiverConfig, RepairOrder};
use tickcast_reliability::session::{
    Action, ChannelWanted, LinkTimers, Path, SubscriberCore, SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{Epoch, Nanos, ReceiverCounters, Sequence};
use tickcast_transport::Receive;
use tickcast_transport::control::{ClientConfig, ClientEvent, ControlClient};
use tickcast_transport::faults::{FaultConfig, FaultyReceiver};

use crate::broken::{self, Broken};
use crate::contract::Tapped;
use crate::network::{BUFFERS, Network, SLOT_LEN};
use crate::publisher::{CHANNEL, record};
use crate::verdict::equal;

const PATHS: [Path; 4] = [Path::Repair, Path::Read, Path::Nack, Path::Replay];

/// Settings of a subscriber of the suite.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub start: Start,
    pub config: ReceiverConfig,
    pub faults: FaultConfig,
    /// Whether it has few buffers.
    pub slow: bool,
    /// Length of the longest datagram it has room for, in bytes.
    pub len_max: usize,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            start: Start::Live,
            config: ReceiverConfig::default(),
            faults: FaultConfig::default(),
            slow: false,
            len_max: SLOT_LEN,
        }
    }
}

/// Returns the rungs of repairs besides TCP, if any.
pub fn ladder(network: &dyn Network) -> Option<RepairOrder> {
    network.repairs().map(|it| it.ladder)
}

/// Events of the application, each record checked on arrival.
#[derive(Default)]
pub struct Heard {
    pub epoch: Epoch,
    /// The first record of this epoch, and the next one expected.
    pub first: Option<u64>,
    pub next: u64,
    /// The last datagram that contained a record.
    pub sequence: Sequence,
    pub records: u64,
    pub lost_records: u64,
    pub losses: Vec<Loss>,
    pub events: Vec<Event>,
    wrong: Option<String>,
}

impl Heard {
    fn item(&mut self, item: Item<'_>) {
        match item {
            Item::Record(position, found) => {
                let number = position.record.0;
                if position.epoch != self.epoch {
                    (self.epoch, self.first) = (position.epoch, None);
                }
                if self.first.is_none() {
                    (self.first, self.next) = (Some(number), number);
                }
                let wanted = record(position.epoch, number);
                let whole: &[u8] = wanted.as_ref();
                if number != self.next || found.as_ref() != whole || position.channel != CHANNEL {
                    let (epoch, next) = (position.epoch, self.next);
                    self.wrong.get_or_insert_with(|| {
                        format!("record {number} of epoch {epoch} where {next} was due: {found:?}")
                    });
                }
                self.next = number + 1;
                self.sequence = position.sequence;
                self.records += 1;
            }
            Item::Event(position, event) => {
                if let Event::Lost(loss) = event {
                    let records = loss.records.unwrap_or(0);
                    self.lost_records += records;
                    if self.first.is_some() && position.epoch == self.epoch {
                        self.next += records;
                    }
                    self.losses.push(*loss);
                }
                self.events.push(event.clone());
            }
        }
    }

    pub fn count(&self, of: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| of(event)).count()
    }
}

/// A subscriber: core, receiver, connections and application.
pub struct Subscriber {
    pub core: SubscriberCore,
    pub heard: Heard,
    pub network: Rc<dyn Network>,
    pub receiver: Option<FaultyReceiver<Tapped>>,
    /// The epoch of the last offer.
    listens_to: Epoch,
    wanted: Wanted,
    broken: Option<Broken>,
    clients: [ControlClient; 4],
    unknown_senders: u64,
    /// Datagrams given to the core.
    taken: u64,
    frames: Vec<u8>,
    /// Whether its application does not poll.
    pub asleep: bool,
}

impl Subscriber {
    pub fn new(
        network: &Rc<dyn Network>,
        broken: Option<Broken>,
        mut wanted: Wanted,
        publisher: SocketAddr,
        seed: u64,
        now: Nanos,
    ) -> Self {
        let ladder = ladder(&**network);
        if let Some(ladder) = ladder {
            wanted.config.ladder = ladder;
            // Long enough that no retry occurs, and no stream is stale, while a slow host stops its device.
            wanted.config.nack_retry_us = 100_000;
            wanted.config.stale_us = 300_000;
        }
        let settings = SubscriberSettings {
            name: format!("s{seed}"),
            channels: vec![ChannelWanted {
                channel: ChannelName::Id(CHANNEL),
                start: wanted.start,
                config: wanted.config,
                lines: None,
            }],
            link: LinkTimers::default(),
            seed,
        };
        let mut core = SubscriberCore::new(settings, now);
        let on = &mut |_: Item<'_>| ();
        core.handle(now, SubscriberInput::UseNackPath(ladder.is_some()), on);
        core.handle(now, SubscriberInput::UseReadPath(ladder.is_some()), on);
        let client = || ControlClient::new(vec![publisher], ClientConfig::default());
        let nack = ControlClient::over_verbs(Vec::new(), ClientConfig::default());
        let read = ControlClient::for_reads(Vec::new(), ClientConfig::default());
        Self {
            core,
            heard: Heard::default(),
            network: Rc::clone(network),
            receiver: None,
            listens_to: Epoch::NONE,
            wanted,
            broken,
            clients: [client(), client(), nack, read],
            unknown_senders: 0,
            taken: 0,
            frames: Vec::new(),
            asleep: false,
        }
    }

    pub fn counters(&self) -> &Arc<ReceiverCounters> {
        self.core.counters().next().unwrap()
    }

    /// Returns whether it is welcome, is a member of the groups, and has all configured repair paths.
    pub fn is_listening(&self) -> bool {
        let ladder = ladder(&*self.network);
        let c = self.counters();
        let nacks = ladder.is_none_or(|it| !it.nacks() || self.core.is_nack_up());
        let reads = ladder.is_none_or(|it| !it.reads() || c.read_links_up.get() > 0);
        self.core.is_joined() && self.receiver.is_some() && nacks && reads
    }

    /// Returns the first transmissions of a line, in order of arrival.
    pub fn arrived(&self, line: usize) -> &[u64] {
        let tapped = self.receiver.as_ref().map(FaultyReceiver::inner);
        tapped.map_or(&[], |tapped| &tapped.first_sent[line])
    }

    /// Runs one round. Returns whether there was anything to do.
    pub fn round(&mut self, now: Nanos) -> bool {
        if self.asleep {
            return false;
        }
        let mut worked = self.listen(now);
        worked |= self.converse(now);
        let heard = &mut self.heard;
        self.core
            .handle(now, SubscriberInput::Timeout, &mut |item: Item<'_>| {
                heard.item(item);
            });
        worked |= self.act(now);
        worked |= self.send(now);
        worked | self.act(now)
    }

    fn listen(&mut self, now: Nanos) -> bool {
        let Some(receiver) = &mut self.receiver else {
            return false;
        };
        let (core, heard, taken) = (&mut self.core, &mut self.heard, &mut self.taken);
        let sender = self.network.sender();
        let polled = receiver.poll(now, &mut |received| {
            if received.from == sender {
                *taken += 1;
                let on = &mut |item: Item<'_>| heard.item(item);
                let at = (CHANNEL, received.line);
                core.handle_bytes(now, at, received.bytes, received.whole, on);
            } else {
                core.handle(
                    now,
                    SubscriberInput::UnknownSender(CHANNEL),
                    &mut |_: Item<'_>| (),
                );
            }
        });
        if let Some((epoch, range)) = receiver.take_overrun() {
            let overrun = SubscriberInput::Overrun {
                channel: CHANNEL,
                epoch,
                range,
            };
            core.handle(now, overrun, &mut |item: Item<'_>| {
                heard.item(item);
            });
        }
        let unknown_senders = receiver.stats().iter().map(|s| s.unknown_senders).sum();
        for _ in self.unknown_senders..unknown_senders {
            core.handle(
                now,
                SubscriberInput::UnknownSender(CHANNEL),
                &mut |_: Item<'_>| (),
            );
        }
        self.unknown_senders = unknown_senders;
        polled.unwrap() > 0
    }

    fn converse(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        for path in PATHS {
            let (core, heard) = (&mut self.core, &mut self.heard);
            let count = self.clients[path as usize].poll(now, |event| match event {
                ClientEvent::Connected(_) => {
                    core.handle(now, SubscriberInput::Connected(path), &mut |_: Item<'_>| ());
                }
                ClientEvent::Frame(channel, message) => {
                    let on = &mut |item: Item<'_>| heard.item(item);
                    core.handle(now, SubscriberInput::message(path, channel, &message), on);
                }
                ClientEvent::Disconnected(_) => {
                    let reason = LinkDownReason::Closed;
                    core.handle(
                        now,
                        SubscriberInput::Disconnected(path, reason),
                        &mut |item: Item<'_>| {
                            heard.item(item);
                        },
                    );
                }
            });
            worked |= count > 0;
        }
        let (core, heard) = (&mut self.core, &mut self.heard);
        let read = &mut self.clients[Path::Read as usize];
        let done = read.take_remote(|tag, bytes| {
            core.handle(
                now,
                SubscriberInput::Read { tag, bytes },
                &mut |item: Item<'_>| heard.item(item),
            );
        });
        core.handle(
            now,
            SubscriberInput::Limits(read.read_limits()),
            &mut |_: Item<'_>| (),
        );
        worked | (done > 0)
    }

    fn act(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        while let Some(action) = self.core.poll_action() {
            worked = true;
            match action {
                Action::Connect(path) => self.connect(now, path),
                Action::Disconnect(path) => self.clients[path as usize].disconnect(),
                Action::Listen(offer) => {
                    let other = self.listens_to != offer.epoch && self.network.is_of_one_epoch();
                    self.listens_to = offer.epoch;
                    if self.receiver.is_none() || other {
                        let buffers = if self.wanted.slow { BUFFERS } else { 1024 };
                        let len_max = self.wanted.len_max;
                        let receiver = self.network.receiver_of(buffers, len_max, &offer);
                        let receiver = Tapped::new(broken::receive(self.broken, receiver));
                        self.receiver =
                            Some(FaultyReceiver::new(receiver, &self.wanted.faults).unwrap());
                    }
                    let lines = self.network.lines();
                    self.core.handle(
                        now,
                        SubscriberInput::Listening {
                            channel: CHANNEL,
                            lines: lines as u8,
                        },
                        &mut |_: Item<'_>| (),
                    );
                }
                Action::Rejoin(_) => {
                    for line in 0..self.network.lines() {
                        if let Some(receiver) = &mut self.receiver {
                            receiver.rejoin(LineId(line as u8)).unwrap();
                        }
                    }
                }
                Action::Rejected(_) | Action::Inbox(..) => {}
            }
        }
        worked
    }

    fn connect(&mut self, now: Nanos, path: Path) {
        let offer = match path {
            Path::Nack => self.core.nack_offer(),
            Path::Read => self.core.read_offer(),
            Path::Repair | Path::Replay => None,
        };
        if let Some(RepairOffer::Verbs { address, .. }) = offer {
            self.clients[path as usize].set_addresses(vec![SocketAddr::V4(address)]);
        }
        if self.clients[path as usize].connect(now).is_err() {
            let (reason, heard) = (LinkDownReason::Unreachable, &mut self.heard);
            self.core.handle(
                now,
                SubscriberInput::Disconnected(path, reason),
                &mut |item: Item<'_>| heard.item(item),
            );
        }
    }

    fn send(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        loop {
            let heard = &mut self.heard;
            self.frames.clear();
            let on = &mut |item: Item<'_>| heard.item(item);
            self.core.handle(now, SubscriberInput::Poll, on);
            let Some(path) = self.core.poll_transmit(&mut self.frames) else {
                return worked | self.begin_remote(now);
            };
            worked = true;
            let client = &mut self.clients[path as usize];
            if client.send_frames(&self.frames).is_err() && client.is_connected() {
                client.disconnect();
                let reason = LinkDownReason::Closed;
                (self.core).handle(
                    now,
                    SubscriberInput::Disconnected(path, reason),
                    &mut |i: Item<'_>| heard.item(i),
                );
            } else {
                client.flush();
            }
        }
    }

    fn begin_remote(&mut self, now: Nanos) -> bool {
        let mut worked = false;
        while let Some(request) = self.core.poll_remote() {
            worked = true;
            let (read, heard) = (&mut self.clients[Path::Read as usize], &mut self.heard);
            if read.begin_remote(&request).is_err() {
                read.disconnect();
                let reason = LinkDownReason::Closed;
                (self.core).handle(
                    now,
                    SubscriberInput::Disconnected(Path::Read, reason),
                    &mut |item: Item<'_>| {
                        heard.item(item);
                    },
                );
            }
        }
        worked
    }

    /// Checks that all events were correct and that its counters balance: with each other, with the
    /// application's events and with those of its transport.
    pub fn account(&self) -> Result<(), String> {
        let heard = &self.heard;
        if let Some(wrong) = &heard.wrong {
            return Err(wrong.clone());
        }
        let c = self.counters();
        let gaps = c.missing_recovered.get() + c.missing_lost.get() + c.missing_open.get();
        equal(
            "gaps detected, and settled",
            c.missing_datagrams.get(),
            gaps,
        )?;
        let history = c.replay_received.get() + c.replay_lost.get() + c.replay_open.get();
        equal(
            "history wanted, and settled",
            c.replay_requested.get(),
            history,
        )?;
        equal("records", c.delivered_records.get(), heard.records)?;
        equal("records lost", c.lost_records.get(), heard.lost_records)?;
        equal("losses", c.loss_events.get(), heard.losses.len() as u64)?;
        equal("records fenced", c.fenced_records.get(), 0)?;
        let came = self.taken + c.repairs_received.get() + c.unknown_sender_dropped.get();
        equal("datagrams received", c.received_datagrams.get(), came)?;
        let tapped = self.receiver.as_ref().map(FaultyReceiver::inner);
        tapped.map_or(Ok(()), Tapped::account)
    }

    /// Checks the counters like [`Subscriber::account`], for a subscriber that followed an epoch to its END
    /// with `records` records: delivered and lost records are all from where it began.
    pub fn account_to_the_end(&self, records: u64) -> Result<(), String> {
        self.account()?;
        equal("the next record", self.heard.next, records + 1)?;
        equal("gaps open", self.counters().missing_open.get(), 0)?;
        let ends = self.heard.count(|event| *event == Event::EndOfSession);
        equal("ends told", ends as u64, 1)
    }
}
