//! The subscriber's core: the connections to the publisher, and one [`Receiver`] per channel. It
//! only routes; every rule lives in the file that is named after it.
//!
//! Five verbs, as with any sans-I/O core: `handle_*` takes an input (and delivers through the
//! closure), `poll_action` and `poll_transmit` give what the driver must do, `poll_timeout` says
//! when [`SubscriberCore::handle_timeout`] is due. After any input, poll until nothing comes.

mod mirror;
mod nack_link;
mod rdma_read;
mod read_link;
mod repair;
mod snapshot;
mod standby;
mod welcome;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::control::{
    ChannelName, ChannelOffer, Join, JoinChannel, Message, Purpose, Rejected, RepairOffer, Start,
};
use crate::delivery::{Deliver, LineId, LinkDownReason, LossCause, Via};
pub use crate::receive::RemoteOp;
use crate::receive::{
    ChannelHealth, InboxWanted, Receiver, ReceiverConfig, RepairOrder, RepairRequests,
};
use crate::record::AlignedCopy;
use crate::session::nack_link::NackLink;
use crate::session::read_link::ReadLink;
pub use crate::session::read_link::{ReadLimits, RemoteRequest};
use crate::timing::Link;
pub use crate::timing::LinkTimers;
use crate::types::{ChannelId, Epoch, Nanos, ReceiverCounters, SequenceRange};
use crate::wire::{CrcVerdict, Datagram, WireVersions};

/// The connections to a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Path {
    /// JOIN, NACKs, progress.
    Repair,
    /// History, so that no repair waits behind it.
    Replay,
    /// NACKs of class repair, where the publisher offers a faster way than TCP
    /// ([`SubscriberCore::nack_offer`]). What it does not answer in time is asked for on `Repair`.
    Nack,
    /// READs of the publisher's rings ([`SubscriberCore::poll_remote`]), where it offers them. What is
    /// not READ in time is asked for on the rungs below.
    Read,
}

impl Path {
    /// The path of this number, as `as` gives it.
    #[must_use]
    pub fn from_index(index: u8) -> Option<Self> {
        PATHS.into_iter().find(|path| *path as u8 == index)
    }
}

/// In the order in which they are looked after.
const PATHS: [Path; 4] = [Path::Repair, Path::Read, Path::Nack, Path::Replay];

/// A channel to follow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChannelWanted {
    /// Which.
    #[serde(with = "crate::types::as_json")]
    pub channel: ChannelName,
    /// From where.
    pub start: Start,
    /// How.
    pub config: ReceiverConfig,
    /// How many lines the driver listens on, where that is not what the publisher offers.
    pub lines: Option<usize>,
}

/// What a core follows, and as whom.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubscriberSettings {
    /// For the publisher's logs and metrics.
    pub name: String,
    /// The channels.
    pub channels: Vec<ChannelWanted>,
    /// Times of the connections.
    pub link: LinkTimers,
    /// Decides everything random.
    pub seed: u64,
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Begin to connect; answer with `handle_connected` or `handle_disconnected`.
    Connect(Path),
    /// Close the connection; no answer is expected.
    Disconnect(Path),
    /// Listen to this channel from now on, by one of its fan-outs. Comes again with each WELCOME,
    /// and may then differ.
    Listen(#[serde(with = "crate::types::as_json")] ChannelOffer),
    /// Leave the channel's groups and join them anew.
    Rejoin(ChannelId),
    /// Make an inbox for the channel; answer with [`SubscriberCore::handle_inbox`], if it can be made.
    Inbox(ChannelId, InboxWanted),
    /// The publisher rejected our JOIN; it is tried again unless `retry_after_ms` is 0.
    Rejected(#[serde(with = "crate::types::as_json")] Rejected),
}

/// A replay connection that nothing uses is closed after this.
const REPLAY_IDLE: Nanos = Nanos::from_secs(2);
/// After this many failed attempts history is asked for on the repair connection.
const REPLAY_ATTEMPTS_MAX: u32 = 3;

#[derive(Serialize, Deserialize)]
pub(crate) struct Entry {
    wanted: ChannelWanted,
    #[serde(with = "crate::session::snapshot::counters")]
    pub(crate) counters: Arc<ReceiverCounters>,
    pub(crate) receiver: Option<Receiver>,
    /// Of the receiver before, while there is none.
    health: Option<ChannelHealth>,
    /// On how many lines the driver listens, once it said so.
    listening: Option<usize>,
}

/// See the module.
#[derive(Serialize, Deserialize)]
pub struct SubscriberCore {
    name: String,
    seed: u64,
    pub(crate) entries: Vec<Entry>,
    /// Which of them asks first.
    turn: usize,
    repair: Link,
    replay: Link,
    replay_failures: u32,
    replay_used_at: Nanos,
    nack: NackLink,
    read: ReadLink,
    /// Whether the publisher is to write what it seals to memory of ours.
    inboxes: bool,
    session: u64,
    actions: VecDeque<Action>,
    /// Frames that wait for their connection to be taken by the driver.
    out_repair: Vec<u8>,
    out_replay: Vec<u8>,
    /// The wire versions that it speaks.
    #[serde(skip)]
    versions: WireVersions,
    #[serde(skip)]
    requests: RepairRequests,
    #[serde(skip)]
    aligned: AlignedCopy,
}

impl fmt::Debug for SubscriberCore {
    /// All that decides what it does next, but its settings and what waits to be taken.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standings = (self.entries.iter()).map(|entry| (&entry.health, entry.listening));
        f.debug_struct("SubscriberCore")
            .field("receivers", &self.entries().collect::<Vec<_>>())
            .field("standings", &standings.collect::<Vec<_>>())
            .field("repair", &self.repair)
            .field("replay", &self.replay)
            .field("replay_failures", &self.replay_failures)
            .field("replay_used_at", &self.replay_used_at)
            .field("nack", &self.nack)
            .field("read", &self.read)
            .field("session", &self.session)
            .field("out_repair", &self.out_repair)
            .field("out_replay", &self.out_replay)
            .finish_non_exhaustive()
    }
}

impl SubscriberCore {
    /// A core that will connect as soon as it is polled.
    #[must_use]
    pub fn new(settings: SubscriberSettings, now: Nanos) -> Self {
        let entries = settings.channels.into_iter().map(|wanted| Entry {
            wanted,
            counters: Arc::default(),
            receiver: None,
            health: None,
            listening: None,
        });
        let mut core = Self {
            name: settings.name,
            seed: settings.seed,
            entries: entries.collect(),
            turn: 0,
            repair: Link::new(settings.link, settings.seed),
            replay: Link::new(settings.link, settings.seed ^ u64::MAX),
            replay_failures: 0,
            replay_used_at: now,
            nack: NackLink::new(settings.link, settings.seed.rotate_left(32)),
            read: ReadLink::new(settings.link, settings.seed.rotate_left(48)),
            inboxes: false,
            session: 0,
            actions: VecDeque::new(),
            out_repair: Vec::new(),
            out_replay: Vec::new(),
            versions: WireVersions::default(),
            requests: RepairRequests::default(),
            aligned: AlignedCopy::default(),
        };
        core.repair.want(now);
        core
    }

    /// Tells whether the driver can make a NACK connection where the publisher offers one; counts
    /// from the next WELCOME on. Without this call none is made.
    pub const fn use_nack_path(&mut self, usable: bool) {
        self.nack.set_usable(usable);
    }

    /// Where to connect for [`Path::Nack`].
    #[must_use]
    pub const fn nack_offer(&self) -> Option<RepairOffer> {
        self.nack.offer()
    }

    /// There is no way to make a NACK connection from here, and trying again would not help: none
    /// is made before the next WELCOME.
    pub fn handle_nack_unusable(&mut self, now: Nanos) {
        self.stop_nack(now);
    }

    /// Bytes that came by multicast on a line of `channel`, from an address that was announced.
    /// They must be aligned as records are: what is not can't be read, and counts as such.
    #[inline]
    pub fn handle_received(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        line: LineId,
        bytes: &[u8],
        on: &mut impl Deliver,
    ) {
        let Some(receiver) = self.receiver_mut(channel) else {
            return;
        };
        receiver.handle_bytes(now, Via::Line(line), bytes, on);
    }

    /// As [`SubscriberCore::handle_received`], for bytes that are known to be what was sealed: a copy
    /// from the publisher's ring in this host's memory, whose CRC need not be computed again.
    #[inline]
    pub fn handle_whole(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        line: LineId,
        bytes: &[u8],
        on: &mut impl Deliver,
    ) {
        if let Some(receiver) = self.receiver_mut(channel) {
            receiver.handle_whole(now, Via::Line(line), bytes, on);
        }
    }

    /// The reader of a channel's ring was overrun: the ring no longer holds these sequences, which it
    /// had not handed over. They are lost, but for those that came by another way; nothing happens
    /// where another epoch is followed than the ring's.
    pub fn handle_overrun(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        (epoch, range): (Epoch, SequenceRange),
        on: &mut impl Deliver,
    ) {
        if let Some(receiver) = self.receiver_mut(channel) {
            receiver.handle_overrun(now, epoch, range, on);
        }
    }

    /// As [`SubscriberCore::handle_received`], with the verdict as an input: how a recorded run is
    /// fed to the core again.
    #[inline]
    pub fn handle_datagram(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        via: Via,
        datagram: &Datagram<'_>,
        verdict: CrcVerdict,
        on: &mut impl Deliver,
    ) {
        if let Some(receiver) = self.receiver_mut(channel) {
            receiver.handle_datagram(now, via, datagram, verdict, on);
        }
    }

    /// A datagram came from an address that neither WELCOME nor the config names.
    pub fn handle_stranger(&mut self, channel: ChannelId) {
        if let Some(receiver) = self.receiver_mut(channel) {
            receiver.handle_stranger();
        }
    }

    /// A connection is established.
    pub fn handle_connected(&mut self, now: Nanos, path: Path) {
        let (link, _) = self.link_mut(path);
        if !link.connected(now) {
            if !link.is_connected() {
                // Of an attempt that was given up meanwhile.
                self.actions.push_back(Action::Disconnect(path));
            }
            return;
        }
        let purpose = match path {
            Path::Repair => Purpose::Repair,
            Path::Replay => Purpose::Replay {
                session: self.session,
            },
            Path::Nack => Purpose::Nack {
                session: self.session,
            },
            Path::Read => Purpose::Read {
                session: self.session,
                attempt: self.read.next_attempt(),
            },
        };
        let channels = match path {
            Path::Repair => self.entries.iter().map(Entry::join).collect(),
            Path::Replay | Path::Nack | Path::Read => Vec::new(),
        };
        let join = Message::Join(Join {
            name: self.name.clone(),
            wire_versions: self.versions.all(),
            purpose,
            channels,
        });
        // Before whatever waits already.
        let (_, out) = self.link_mut(path);
        let waiting = std::mem::take(out);
        join.write(ChannelId(0), out);
        out.extend(waiting);
    }

    /// A connection could not be established, or is over.
    pub fn handle_disconnected(
        &mut self,
        now: Nanos,
        path: Path,
        reason: LinkDownReason,
        on: &mut impl Deliver,
    ) {
        let (link, out) = self.link_mut(path);
        let was_up = link.is_up();
        link.failed(now);
        out.clear();
        match path {
            Path::Repair => {
                for receiver in self.entries.iter_mut().filter_map(|e| e.receiver.as_mut()) {
                    receiver.handle_link_down(reason);
                    receiver.drain_events(on);
                }
                // The session is over with its connection, and so is all that belongs to it.
                self.stop_nack(now);
                self.stop_read(now);
                if self.replay.is_wanted() {
                    self.replay.stop();
                    self.out_replay.clear();
                    self.actions.push_back(Action::Disconnect(Path::Replay));
                }
            }
            Path::Nack if was_up => self.nack_down(now),
            Path::Nack => {}
            Path::Read => self.read_down(now),
            Path::Replay => {
                self.replay_failures += 1;
                for receiver in self.entries.iter_mut().filter_map(|e| e.receiver.as_mut()) {
                    receiver.handle_replay_down(now);
                }
            }
        }
    }

    /// A control message came.
    pub fn handle_message(
        &mut self,
        now: Nanos,
        path: Path,
        channel: ChannelId,
        message: &Message<'_>,
        on: &mut impl Deliver,
    ) {
        let (link, _) = self.link_mut(path);
        if !link.is_connected() {
            // Of a connection that was given up meanwhile.
            return;
        }
        if let Some(receiver) = self.receiver_mut(channel) {
            receiver.heard_repair(now);
        }
        match message {
            Message::Welcome(welcome) if path == Path::Repair => self.welcomed(now, welcome, on),
            Message::Welcome(_) if path == Path::Nack => {
                self.nack.up();
                for entry in &self.entries {
                    entry.counters.nack_links_up.increment();
                }
            }
            // What may be READ, GRANT says.
            Message::Welcome(_) if path == Path::Read => {
                self.read.link.up();
                self.want_inboxes();
            }
            Message::Welcome(_) => {
                self.replay.up();
                self.replay.settled();
                self.replay_used_at = now;
                self.replay_failures = 0;
            }
            Message::Rejected(rejected) => {
                let wait = Nanos::from_ms(rejected.retry_after_ms);
                let (link, _) = self.link_mut(path);
                link.rejected(now, wait);
                self.actions.push_back(Action::Disconnect(path));
                if path == Path::Repair {
                    self.actions.push_back(Action::Rejected(rejected.clone()));
                }
                self.handle_disconnected(now, path, LinkDownReason::Rejected, on);
            }
            Message::Datagram(bytes) => {
                let mut aligned = std::mem::take(&mut self.aligned);
                if path == Path::Nack {
                    self.nack.answered();
                }
                if let Some(receiver) = self.receiver_mut(channel) {
                    // Within a stream of frames it stands at any address.
                    let bytes = aligned.of(bytes);
                    if path == Path::Nack {
                        receiver.handle_nack_answer(now, bytes, on);
                    } else {
                        receiver.handle_bytes(now, Via::Repair, bytes, on);
                    }
                }
                self.aligned = aligned;
                if path == Path::Replay {
                    self.replay_used_at = now;
                }
            }
            Message::Refused(refused) => {
                if path == Path::Nack {
                    self.nack.answered();
                }
                if let Some(receiver) = self.receiver_mut(channel) {
                    receiver.handle_refused(now, refused, on);
                }
            }
            Message::Status(status) => {
                let Some(receiver) = self.receiver_mut(channel) else {
                    return;
                };
                let epoch = receiver.epoch();
                if status.epoch == epoch {
                    receiver.handle_status(now, status, on);
                    self.repair.settled();
                } else if status.epoch > epoch {
                    // Its WELCOME says all that has changed with the epoch.
                    self.break_off(now, Path::Repair, LinkDownReason::Closed, on);
                }
            }
            Message::Grant(grant) => {
                // One of a connection before is of no use.
                if self.read.is_current(grant.attempt)
                    && let Some(receiver) = self.receiver_mut(channel)
                {
                    receiver.handle_grant(grant);
                }
            }
            Message::MirrorRefused(refused) => self.mirror_refused(channel, refused),
            // These are ours to send; a peer that sends them is no publisher.
            Message::Join(_)
            | Message::Nack { .. }
            | Message::Progress(_)
            | Message::Mirror(_)
            | Message::Leave => {
                self.break_off(now, path, LinkDownReason::Protocol, on);
            }
        }
    }

    /// The clock reached [`SubscriberCore::poll_timeout`]. Calling it early or twice is harmless.
    pub fn handle_timeout(&mut self, now: Nanos, on: &mut impl Deliver) {
        for path in PATHS {
            let (link, _) = self.link_mut(path);
            if link.is_late(now) {
                self.break_off(now, path, LinkDownReason::Unreachable, on);
            }
            let (link, _) = self.link_mut(path);
            if link.start_if_due(now) {
                self.actions.push_back(Action::Connect(path));
            }
        }
        if self.replay.is_up() && now.since(self.replay_used_at) > REPLAY_IDLE {
            self.replay.stop();
            self.actions.push_back(Action::Disconnect(Path::Replay));
        }
        if self.read.is_stuck(now) {
            self.break_off(now, Path::Read, LinkDownReason::Unanswered, on);
        }
        let mut silent = false;
        for receiver in self
            .entries
            .iter_mut()
            .filter_map(|entry| entry.receiver.as_mut())
        {
            receiver.handle_timeout(now, on);
            if receiver.take_rejoin() {
                self.actions.push_back(Action::Rejoin(receiver.channel()));
            }
            silent |= receiver.take_link_silent();
        }
        if silent && self.repair.is_up() {
            self.break_off(now, Path::Repair, LinkDownReason::Unanswered, on);
        }
    }

    /// When something is to be done if nothing comes until then.
    #[must_use]
    pub fn poll_timeout(&self) -> Nanos {
        let rc = self.nack.next_due().min(self.read.next_due());
        let further = self.replay.next_due().min(rc);
        let links = self.repair.next_due().min(further);
        let idle = if self.replay.is_up() {
            self.replay_used_at.after(REPLAY_IDLE).after(Nanos(1))
        } else {
            Nanos::MAX
        };
        let receivers = self
            .entries
            .iter()
            .filter_map(|entry| entry.receiver.as_ref());
        // What waits for room waits for an answer.
        let has_cursor_room = self.read.has_cursor_room();
        receivers
            .map(|receiver| match has_cursor_room {
                true => receiver.poll_timeout().min(receiver.cursor_due()),
                false => receiver.poll_timeout(),
            })
            .fold(links.min(idle), Nanos::min)
    }

    /// The next thing the driver must do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Appends frames to send to `out` and tells on which connection; `None` when there is nothing.
    pub fn poll_transmit(
        &mut self,
        now: Nanos,
        out: &mut Vec<u8>,
        on: &mut impl Deliver,
    ) -> Option<Path> {
        self.ask(now, on);
        for path in PATHS {
            let (link, waiting) = self.link_mut(path);
            if link.is_connected() && !waiting.is_empty() {
                out.append(waiting);
                return Some(path);
            }
        }
        None
    }

    /// Says good-bye: LEAVE is queued, and what is still open is declared lost with `cause`.
    pub fn leave(&mut self, cause: LossCause, on: &mut impl Deliver) {
        for receiver in self
            .entries
            .iter_mut()
            .filter_map(|entry| entry.receiver.as_mut())
        {
            receiver.close(cause, on);
        }
        Message::Leave.write(ChannelId(0), &mut self.out_repair);
    }

    /// Begins a channel anew at `start`: what is open of it is declared lost (`left`), and the
    /// repair connection is built anew, because its JOIN says where each channel begins. `false`
    /// when there is no such channel, or it has not been welcomed.
    pub fn rejoin(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        start: Start,
        on: &mut impl Deliver,
    ) -> bool {
        let Some(at) = self.index_of(channel) else {
            return false;
        };
        let entry = &mut self.entries[at];
        entry.wanted.start = start;
        if let Some(mut receiver) = entry.receiver.take() {
            // Nothing is told of this channel until it is welcomed again, which may be never.
            receiver.handle_link_down(LinkDownReason::Rejoining);
            receiver.close(LossCause::Left, on);
            entry.health = Some(receiver.health());
        }
        if self.repair.is_connected() {
            self.break_off(now, Path::Repair, LinkDownReason::Rejoining, on);
        }
        true
    }

    /// The receivers of all channels that have been welcomed.
    pub fn receivers(&self) -> impl Iterator<Item = &Receiver> {
        self.entries
            .iter()
            .filter_map(|entry| entry.receiver.as_ref())
    }

    /// Every channel wanted, in the order of the settings; `None` before its welcome.
    pub fn entries(&self) -> impl Iterator<Item = Option<&Receiver>> {
        self.entries.iter().map(|entry| entry.receiver.as_ref())
    }

    /// The receiver of a channel that has been welcomed.
    #[must_use]
    pub fn receiver(&self, channel: ChannelId) -> Option<&Receiver> {
        self.receivers()
            .find(|receiver| receiver.channel() == channel)
    }

    /// The application listens to a channel on so many lines: of several fan-outs on offer it took
    /// one. Holds until it is said anew; without this call as many are expected as the largest has.
    pub fn handle_listening(&mut self, now: Nanos, channel: ChannelId, lines: usize) {
        let Some(at) = self.index_of(channel) else {
            return;
        };
        let entry = &mut self.entries[at];
        entry.listening = Some(lines);
        if let Some(receiver) = &mut entry.receiver {
            receiver.handle_lines(lines, now);
        }
    }

    /// Which of the settings' channels this is.
    #[must_use]
    pub fn index_of(&self, channel: ChannelId) -> Option<usize> {
        self.entries()
            .position(|r| r.is_some_and(|receiver| receiver.channel() == channel))
    }

    /// The counters of each channel wanted, in the order of the settings.
    pub fn counters(&self) -> impl Iterator<Item = &Arc<ReceiverCounters>> {
        self.entries.iter().map(|entry| &entry.counters)
    }

    /// Whether every channel has delivered END.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.entries
            .iter()
            .all(|entry| entry.receiver.as_ref().is_some_and(Receiver::ended))
    }

    /// Whether the repair connection is up.
    #[must_use]
    pub const fn is_joined(&self) -> bool {
        self.repair.is_up()
    }

    /// Whether the NACK connection is up.
    #[must_use]
    pub const fn is_nack_up(&self) -> bool {
        self.nack.link.is_up()
    }

    /// Ends the NACK connection for as long as nobody offers it again.
    fn stop_nack(&mut self, now: Nanos) {
        let was_up = self.nack.link.is_up();
        if self.nack.stop() {
            self.actions.push_back(Action::Disconnect(Path::Nack));
        }
        if was_up {
            self.nack_down(now);
        }
    }

    /// The NACK connection was up and is no longer: the next rung is asked, at once.
    fn nack_down(&mut self, now: Nanos) {
        for entry in &mut self.entries {
            entry.counters.nack_links_down.increment();
            if let Some(receiver) = &mut entry.receiver {
                receiver.handle_nack_down(now);
            }
        }
    }

    /// Whether a rung is on the ladder of a channel.
    fn wants(&self, rung: impl Fn(RepairOrder) -> bool) -> bool {
        let mut ladders = self.entries.iter().map(|entry| entry.wanted.config.ladder);
        ladders.any(rung)
    }

    /// Gives a connection up from our side.
    fn break_off(&mut self, now: Nanos, path: Path, reason: LinkDownReason, on: &mut impl Deliver) {
        self.actions.push_back(Action::Disconnect(path));
        self.handle_disconnected(now, path, reason, on);
    }

    #[inline]
    pub(crate) fn receiver_mut(&mut self, channel: ChannelId) -> Option<&mut Receiver> {
        let mut receivers = self
            .entries
            .iter_mut()
            .filter_map(|entry| entry.receiver.as_mut());
        receivers.find(|receiver| receiver.channel() == channel)
    }

    const fn link_mut(&mut self, path: Path) -> (&mut Link, &mut Vec<u8>) {
        match path {
            Path::Repair => (&mut self.repair, &mut self.out_repair),
            Path::Replay => (&mut self.replay, &mut self.out_replay),
            Path::Nack => (&mut self.nack.link, &mut self.nack.out),
            Path::Read => (&mut self.read.link.link, &mut self.read.link.out),
        }
    }
}

impl Entry {
    /// What JOIN asks for: where we are if we have begun, else where we want to begin.
    fn join(&self) -> JoinChannel {
        let channel = self.wanted.channel.clone();
        match &self.receiver {
            Some(receiver) => JoinChannel {
                channel,
                start: Start::At(receiver.epoch(), receiver.progress().0.next()),
                confirmed_epoch: receiver.epoch(),
            },
            None => JoinChannel {
                channel,
                start: self.wanted.start,
                confirmed_epoch: Epoch::NONE,
            },
        }
    }
}
