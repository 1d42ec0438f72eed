//! A subscriber's core: its connections to the publisher, and one [`Receiver`] for each channel. It
//! only routes; every rule stands in the file that is named after it.
//!
//! The core does no I/O. [`SubscriberCore::handle`] takes an input and delivers to the closure.
//! `poll_action`, `poll_transmit` and `poll_remote` return work for the driver. `poll_timeout` says when
//! [`SubscriberInput::Timeout`] is due. After any input, poll until nothing comes.

mod entries;
mod input;
mod link;
mod mirror;
mod nack_link;
mod read_link;
mod remote_operations;
mod replay_link;
mod requester;
mod snapshot;
mod standby;
mod welcome;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::control::{
    ChannelName, ChannelOffer, Join, Message, Purpose, Rejected, RepairOffer, Start,
};
use crate::delivery::{Deliver, LineId, LinkDownReason, LossCause, Via};
pub use crate::receive::RemoteOp;
use crate::receive::{
    ArrivalPath, InboxWanted, Receiver, ReceiverConfig, RepairOrder, RepairRequests,
};
use crate::record::AlignedCopy;
use crate::session::entries::{Entries, Entry};
pub use crate::session::input::SubscriberInput;
use crate::session::link::Link;
pub use crate::session::link::LinkTimers;
use crate::session::nack_link::NackLink;
use crate::session::read_link::ReadLink;
pub use crate::session::read_link::{ReadLimits, RemoteRequest};
use crate::session::replay_link::ReplayLink;
use crate::types::{ChannelId, Nanos, ReceiverCounters};
use crate::wire::{CrcVerdict, Datagram, WireError, WireVersions};

/// A connection to the publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Path {
    /// Carries JOIN, NACKs and progress.
    Repair,
    /// Carries history, so that no repair waits behind it.
    Replay,
    /// Carries NACKs of class repair, where the publisher offers a faster way than TCP
    /// ([`SubscriberCore::nack_offer`]). Unanswered requests move to `Repair`.
    Nack,
    /// Carries READs of the publisher's rings ([`SubscriberCore::poll_remote`]), where it offers them.
    /// Unanswered requests move to the next rungs.
    Read,
}

/// All paths, in the order in which they are served.
const PATHS: [Path; 4] = [Path::Repair, Path::Read, Path::Nack, Path::Replay];

/// A channel to follow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChannelWanted {
    /// The channel.
    #[serde(with = "crate::types::as_json")]
    pub channel: ChannelName,
    /// The start position.
    pub start: Start,
    /// The settings of its receiver.
    pub config: ReceiverConfig,
    /// The number of lines that the driver listens on, if it differs from the publisher's offer.
    pub lines: Option<usize>,
}

/// The settings of a core.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubscriberSettings {
    /// The name in the publisher's logs and metrics.
    pub name: String,
    /// The channels to follow.
    pub channels: Vec<ChannelWanted>,
    /// The times of the connections.
    pub link: LinkTimers,
    /// The seed of all random choices.
    pub seed: u64,
}

/// Work for the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Begin to connect. Answer with [`SubscriberInput::Connected`] or [`SubscriberInput::Disconnected`].
    Connect(Path),
    /// Close the connection. No answer is expected.
    Disconnect(Path),
    /// Listen to this channel from now on, by one of its fan-outs. Each WELCOME brings it again, and its
    /// offer may then differ.
    Listen(#[serde(with = "crate::types::as_json")] ChannelOffer),
    /// Leave the channel's groups and join them anew.
    Rejoin(ChannelId),
    /// Make an inbox for the channel, and answer with [`SubscriberInput::Inbox`] if it can be made.
    Inbox(ChannelId, InboxWanted),
    /// The publisher rejected our JOIN. The core tries again after [`Rejected::wait`], or after the longest
    /// back-off where that is 0.
    Rejected(#[serde(with = "crate::types::as_json")] Rejected),
}

/// A subscriber's core: routes inputs to the receivers of its channels.
#[derive(Serialize, Deserialize)]
pub struct SubscriberCore {
    name: String,
    seed: u64,
    entries: Entries,
    repair: Link,
    replay: ReplayLink,
    nack: NackLink,
    read: ReadLink,
    /// Whether the driver can make inboxes for the publisher to write to.
    inboxes: bool,
    session: u64,
    actions: VecDeque<Action>,
    /// The wire versions that this subscriber speaks.
    #[serde(skip)]
    versions: WireVersions,
    /// Whether any channel is authenticated.
    is_authenticated: bool,
    #[serde(skip)]
    requests: RepairRequests,
    #[serde(skip)]
    aligned: AlignedCopy,
}

impl fmt::Debug for SubscriberCore {
    /// Prints all state that decides what the core does next, without its settings and queued output.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standings = self.entries.iter().map(Entry::standing);
        f.debug_struct("SubscriberCore")
            .field("receivers", &self.entries().collect::<Vec<_>>())
            .field("standings", &standings.collect::<Vec<_>>())
            .field("repair", &self.repair)
            .field("replay", &self.replay)
            .field("nack", &self.nack)
            .field("read", &self.read)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl SubscriberCore {
    /// Returns a core that begins to connect at the first `Timeout`.
    #[must_use]
    pub fn new(settings: SubscriberSettings, now: Nanos) -> Self {
        let mut core = Self {
            name: settings.name,
            seed: settings.seed,
            entries: Entries::new(settings.channels),
            repair: Link::new(settings.link, settings.seed),
            replay: ReplayLink::new(settings.link, settings.seed ^ u64::MAX, now),
            nack: NackLink::new(settings.link, settings.seed.rotate_left(32)),
            read: ReadLink::new(settings.link, settings.seed.rotate_left(48)),
            inboxes: false,
            session: 0,
            actions: VecDeque::new(),
            versions: WireVersions::default(),
            is_authenticated: false,
            requests: RepairRequests::default(),
            aligned: AlignedCopy::default(),
        };
        core.repair.want(now);
        core
    }

    /// Sets the wire versions that this core speaks, instead of the versions of this code.
    pub const fn set_wire_versions(&mut self, versions: WireVersions) {
        self.versions = versions;
    }

    /// Handles an input, and delivers to `on`. After any input, poll until nothing comes.
    pub fn handle(&mut self, now: Nanos, input: SubscriberInput<'_>, mut on: &mut dyn Deliver) {
        match input {
            SubscriberInput::Datagram {
                channel,
                line,
                datagram,
                verdict,
            } => {
                self.handle_datagram(now, (channel, line), datagram, verdict, &mut on);
            }
            SubscriberInput::Timeout => self.handle_timeout(now, on),
            SubscriberInput::Poll => self.ask(now, on),
            SubscriberInput::Message {
                path,
                channel,
                message,
            } => self.handle_message(now, path, channel, message, on),
            SubscriberInput::Read { tag, bytes } => self.handle_read(now, tag, bytes, on),
            SubscriberInput::Written(channel) => {
                if let Some(receiver) = self.receiver_mut(channel) {
                    receiver.take_written(now, on);
                }
            }
            SubscriberInput::Connected(path) => self.handle_connected(now, path),
            SubscriberInput::Disconnected(path, reason) => {
                self.handle_disconnected(now, path, reason, on);
            }
            SubscriberInput::UseNackPath(usable) => self.nack.set_usable(usable),
            SubscriberInput::UseReadPath(usable) => self.read.link.set_usable(usable),
            SubscriberInput::UseInboxes(usable) => self.inboxes = usable,
            SubscriberInput::NackUnusable => self.drop_offer(now, Path::Nack),
            SubscriberInput::ReadUnusable => self.drop_offer(now, Path::Read),
            SubscriberInput::Limits(limits) => self.read.set_limits(limits),
            SubscriberInput::Malformed { channel, .. } => self.handle_malformed(channel),
            SubscriberInput::UnknownSender(channel) => {
                if let Some(receiver) = self.receiver_mut(channel) {
                    receiver.handle_unknown_sender();
                }
            }
            SubscriberInput::Overrun {
                channel,
                epoch,
                range,
            } => {
                if let Some(receiver) = self.receiver_mut(channel) {
                    receiver.handle_overrun(now, epoch, range, on);
                }
            }
            SubscriberInput::Listening { channel, lines } => {
                if let Some(entry) = self.entries.of(channel) {
                    entry.listens(lines.into(), now);
                }
            }
            SubscriberInput::Leave(cause) => self.leave(cause, on),
            SubscriberInput::Rejoin { channel, start } => self.rejoin(now, channel, start, on),
            SubscriberInput::Inbox {
                channel,
                wanted,
                memory,
                access,
            } => self.handle_inbox(channel, &wanted, Arc::clone(memory), access),
            SubscriberInput::Mirror(channel, mirror) => {
                if let Some(receiver) = self.receiver_mut(channel) {
                    receiver.set_mirror(mirror.take());
                }
            }
        }
    }

    /// Handles bytes that came on a line from an announced address. `whole` says that they are a copy from
    /// the publisher's ring in this host's memory, whose CRC need not be checked again. Records in bytes
    /// that are not aligned as records are cannot be read, and count as such.
    #[inline(always)]
    pub fn handle_bytes(
        &mut self,
        now: Nanos,
        (channel, line): (ChannelId, LineId),
        bytes: &[u8],
        whole: bool,
        on: &mut impl Deliver,
    ) {
        match self.checked(channel, bytes, whole) {
            Ok((datagram, verdict)) => {
                self.handle_datagram(now, (channel, line), &datagram, verdict, on);
            }
            Err(_) => self.handle(now, SubscriberInput::malformed(channel, line, bytes), on),
        }
    }

    /// Parses bytes that came on a line of this channel, and returns the verdict on their CRC and their tag.
    /// Neither is computed for `whole` bytes, which are known to be exactly what was sealed.
    ///
    /// # Errors
    /// [`WireError`] under the conditions of [`Datagram::parse`].
    #[inline(always)]
    pub fn checked<'a>(
        &self,
        channel: ChannelId,
        bytes: &'a [u8],
        whole: bool,
    ) -> Result<(Datagram<'a>, CrcVerdict), WireError> {
        let (datagram, mut verdict) = Datagram::checked(bytes, whole)?;
        if self.is_authenticated && !whole && verdict == CrcVerdict::Good {
            verdict = self.verdict_on_tag(channel, bytes);
        }
        Ok((datagram, verdict))
    }

    // It parses the bytes again, so that the header of the caller stays in registers.
    #[cold]
    #[inline(never)]
    fn verdict_on_tag(&self, channel: ChannelId, bytes: &[u8]) -> CrcVerdict {
        match self.receiver(channel).is_none_or(|it| it.admits(bytes)) {
            true => CrcVerdict::Good,
            false => CrcVerdict::Unauthenticated,
        }
    }

    /// Handles [`SubscriberInput::Datagram`] like [`handle`](Self::handle). It is compiled for each kind of
    /// delivery, because nearly all inputs are such datagrams.
    #[inline(always)]
    pub fn handle_datagram(
        &mut self,
        now: Nanos,
        (channel, line): (ChannelId, LineId),
        datagram: &Datagram<'_>,
        verdict: CrcVerdict,
        on: &mut impl Deliver,
    ) {
        if let Some(receiver) = self.receiver_mut(channel) {
            receiver.handle_datagram(now, Via::Line(line), datagram, verdict, on);
        }
    }

    /// Counts bytes that are no datagram.
    #[cold]
    fn handle_malformed(&mut self, channel: ChannelId) {
        if let Some(entry) = self.entries.of(channel) {
            entry.counters().count_malformed();
        }
    }

    /// Returns the offer to connect to for [`Path::Nack`].
    #[must_use]
    pub fn nack_offer(&self) -> Option<RepairOffer> {
        self.nack.offer()
    }

    fn handle_connected(&mut self, now: Nanos, path: Path) {
        let link = self.link_mut(path);
        if !link.connected(now) {
            if !link.is_connected() {
                // The core gave this attempt up meanwhile.
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
            authentication: true,
        });
        self.link_mut(path).join(&join);
    }

    fn handle_disconnected(
        &mut self,
        now: Nanos,
        path: Path,
        reason: LinkDownReason,
        on: &mut dyn Deliver,
    ) {
        let link = self.link_mut(path);
        let (was_up, was_begun) = (link.is_up(), link.is_begun());
        link.failed(now);
        match path {
            Path::Repair => {
                for receiver in self.entries.receivers_mut() {
                    receiver.handle_link_down(now, reason);
                    receiver.drain_events(on);
                }
                // The session ends with its connection, and so do the other connections of that session.
                self.stop_offered(now, Path::Nack);
                self.stop_offered(now, Path::Read);
                if self.replay.link_mut().stop() {
                    self.actions.push_back(Action::Disconnect(Path::Replay));
                }
            }
            Path::Nack | Path::Read => {
                // An event may come late, after the session or an earlier event ended the connection.
                if was_begun && let Some(link) = self.offered_mut(path) {
                    link.next_offer(was_up);
                }
                self.offered_down(now, path, was_up);
            }
            Path::Replay => {
                self.replay.failed();
                for receiver in self.entries.receivers_mut() {
                    receiver.handle_replay_down(now);
                }
            }
        }
    }

    fn handle_message(
        &mut self,
        now: Nanos,
        path: Path,
        channel: ChannelId,
        message: &Message<'_>,
        on: &mut dyn Deliver,
    ) {
        if !self.link_mut(path).is_connected() {
            // The core gave this connection up meanwhile.
            return;
        }
        if let Some(receiver) = self.receiver_mut(channel) {
            receiver.heard_repair(now);
        }
        match message {
            Message::Welcome(welcome) if path == Path::Repair => self.welcomed(now, welcome, on),
            Message::Welcome(_) if path == Path::Nack => {
                self.nack.up();
                for counters in self.counters() {
                    counters.nack_links_up.increment();
                }
            }
            // GRANT says which memory may be READ.
            Message::Welcome(_) if path == Path::Read => {
                self.read.link.up();
                self.want_inboxes();
            }
            Message::Welcome(_) => self.replay.up(now),
            Message::Rejected(rejected) => {
                self.link_mut(path).rejected(now, rejected);
                self.actions.push_back(Action::Disconnect(path));
                if path == Path::Repair {
                    self.actions.push_back(Action::Rejected(rejected.clone()));
                }
                self.handle_disconnected(now, path, LinkDownReason::Rejected, on);
            }
            Message::Datagram(bytes) => {
                let mut aligned = std::mem::take(&mut self.aligned);
                let mut arrived_by = ArrivalPath::Other;
                if path == Path::Nack {
                    self.nack.answered();
                    arrived_by = ArrivalPath::Nack;
                }
                if let Some(receiver) = self.receiver_mut(channel) {
                    // A datagram inside a stream of frames has no alignment.
                    receiver.handle_answer(now, arrived_by, aligned.of(bytes), on);
                }
                self.aligned = aligned;
                if path == Path::Replay {
                    self.replay.use_link(now);
                }
            }
            Message::Key(announced) if path == Path::Repair => {
                if let Some(receiver) = self.receiver_mut(channel) {
                    receiver.handle_key(announced);
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
                    // The WELCOME of a new connection carries all that has changed with the epoch.
                    self.break_off(now, Path::Repair, LinkDownReason::Closed, on);
                }
            }
            Message::Grant(grant) => {
                // A grant of an earlier connection is of no use.
                if self.read.is_current(grant.attempt)
                    && let Some(receiver) = self.receiver_mut(channel)
                {
                    receiver.handle_grant(grant);
                }
            }
            Message::MirrorRefused(refused) => self.mirror_refused(channel, refused),
            // A key that comes another way than its WELCOME serves no purpose.
            Message::Key(_) => {}
            // Only subscribers send these, so the peer is no publisher.
            Message::Join(_)
            | Message::Nack { .. }
            | Message::Progress(_)
            | Message::Mirror(_)
            | Message::Latency(_)
            | Message::Leave => {
                self.break_off(now, path, LinkDownReason::Protocol, on);
            }
        }
    }

    fn handle_timeout(&mut self, now: Nanos, on: &mut dyn Deliver) {
        for path in PATHS {
            if self.link_mut(path).is_late(now) {
                self.break_off(now, path, LinkDownReason::Unreachable, on);
            }
            if self.link_mut(path).start_if_due(now) {
                self.actions.push_back(Action::Connect(path));
            }
        }
        if self.replay.stop_if_idle(now) {
            self.actions.push_back(Action::Disconnect(Path::Replay));
        }
        if self.read.is_stuck(now) {
            self.break_off(now, Path::Read, LinkDownReason::Unanswered, on);
        }
        let mut silent = false;
        for receiver in self.entries.receivers_mut() {
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

    /// Returns the time at which [`SubscriberInput::Timeout`] is due if no other input comes.
    #[must_use]
    pub fn poll_timeout(&self) -> Nanos {
        let links = (self.repair.next_due()).min(self.replay.next_due());
        let rdma = (self.nack.link.next_due()).min(self.read.next_due());
        // A cursor report that waits for room waits for an answer, not for a time.
        let has_cursor_room = self.read.has_cursor_room();
        self.receivers()
            .map(|receiver| match has_cursor_room {
                true => receiver.poll_timeout().min(receiver.cursor_due()),
                false => receiver.poll_timeout(),
            })
            .fold(links.min(rdma), Nanos::min)
    }

    /// Returns the next action for the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Appends queued frames to `out` and returns the connection to send them on, or `None` when nothing
    /// waits. [`SubscriberInput::Poll`] queues the requests that are due; give it before each call.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<Path> {
        let mut paths = PATHS.into_iter();
        paths.find(|path| self.link_mut(*path).take_frames(out))
    }

    fn leave(&mut self, cause: LossCause, on: &mut dyn Deliver) {
        for receiver in self.entries.receivers_mut() {
            receiver.close(cause, on);
        }
        Message::Leave.write(ChannelId(0), self.repair.frames());
    }

    fn rejoin(&mut self, now: Nanos, channel: ChannelId, start: Start, on: &mut dyn Deliver) {
        let Some(entry) = self.entries.of(channel) else {
            return;
        };
        entry.rejoin(now, start, on);
        if self.repair.is_connected() {
            self.break_off(now, Path::Repair, LinkDownReason::Rejoining, on);
        }
    }

    /// Returns the receivers of all channels that have been welcomed.
    pub fn receivers(&self) -> impl Iterator<Item = &Receiver> {
        self.entries.receivers()
    }

    /// Returns all channels in the order of the settings; `None` before a channel's WELCOME.
    pub fn entries(&self) -> impl Iterator<Item = Option<&Receiver>> {
        self.entries.iter().map(Entry::receiver)
    }

    /// Returns the receiver of a channel that has been welcomed.
    #[must_use]
    pub fn receiver(&self, channel: ChannelId) -> Option<&Receiver> {
        self.receivers()
            .find(|receiver| receiver.channel() == channel)
    }

    /// Returns the index of this channel in the settings; `None` before its WELCOME.
    #[must_use]
    pub fn index_of(&self, channel: ChannelId) -> Option<usize> {
        self.entries()
            .position(|r| r.is_some_and(|receiver| receiver.channel() == channel))
    }

    /// Returns the counters of all channels in the order of the settings.
    pub fn counters(&self) -> impl Iterator<Item = &Arc<ReceiverCounters>> {
        self.entries.iter().map(Entry::counters)
    }

    /// Returns whether every channel has delivered END.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.entries().all(|it| it.is_some_and(Receiver::ended))
    }

    /// Returns whether the repair connection is up.
    #[must_use]
    pub const fn is_joined(&self) -> bool {
        self.repair.is_up()
    }

    /// Returns the number of the session, while the repair connection is up. Only the publisher and this
    /// subscriber know it.
    #[must_use]
    pub fn session(&self) -> Option<u64> {
        self.is_joined().then_some(self.session)
    }

    /// Returns whether the NACK connection is up.
    #[must_use]
    pub const fn is_nack_up(&self) -> bool {
        self.nack.link.is_up()
    }

    /// Drops the offer that this connection is for, because the driver has no device for it. Connects to the
    /// next offer, if any is left.
    fn drop_offer(&mut self, now: Nanos, path: Path) {
        let is_next = self.offered_mut(path).is_some_and(NackLink::drop_offer);
        self.stop_offered(now, path);
        if let Some(link) = self.offered_mut(path) {
            link.want_if(now, is_next);
        }
    }

    /// Ends the NACK or READ connection until the publisher offers one again.
    fn stop_offered(&mut self, now: Nanos, path: Path) {
        let link = self.link_mut(path);
        let was_up = link.is_up();
        if link.stop() {
            self.actions.push_back(Action::Disconnect(path));
        }
        self.offered_down(now, path, was_up);
    }

    /// Moves the requests of a NACK or READ connection that ended to the next rung at once.
    fn offered_down(&mut self, now: Nanos, path: Path, was_up: bool) {
        match path {
            Path::Nack if was_up => self.nack_down(now),
            Path::Read => self.read_down(now),
            Path::Nack | Path::Repair | Path::Replay => {}
        }
    }

    /// Moves the requests of a NACK connection that was up to the next rung at once.
    fn nack_down(&mut self, now: Nanos) {
        for entry in self.entries.iter_mut() {
            entry.counters().nack_links_down.increment();
            if let Some(receiver) = entry.receiver_mut() {
                receiver.handle_nack_down(now);
            }
        }
    }

    /// Returns whether any channel has this rung in its repair order.
    fn wants(&self, rung: impl Fn(RepairOrder) -> bool) -> bool {
        let mut ladders = self.entries.iter().map(|entry| entry.config().ladder);
        ladders.any(rung)
    }

    /// Closes a connection from our side.
    fn break_off(&mut self, now: Nanos, path: Path, reason: LinkDownReason, on: &mut dyn Deliver) {
        self.actions.push_back(Action::Disconnect(path));
        self.handle_disconnected(now, path, reason, on);
    }

    #[inline]
    pub(crate) fn receiver_mut(&mut self, channel: ChannelId) -> Option<&mut Receiver> {
        self.entries.receiver_mut(channel)
    }

    /// Returns the connection to a repair offer of the publisher; `None` for the paths over TCP.
    const fn offered_mut(&mut self, path: Path) -> Option<&mut NackLink> {
        match path {
            Path::Nack => Some(&mut self.nack),
            Path::Read => Some(&mut self.read.link),
            Path::Repair | Path::Replay => None,
        }
    }

    const fn link_mut(&mut self, path: Path) -> &mut Link {
        match path {
            Path::Repair => &mut self.repair,
            Path::Replay => self.replay.link_mut(),
            Path::Nack => &mut self.nack.link,
            Path::Read => &mut self.read.link.link,
        }
    }
}
