//! The receiver of one channel: takes datagrams from any line and from repair, and the messages of the
//! repair connection. It has no I/O and no clock: time and the verdict on a CRC are arguments
//! (docs/PROTOCOL.md §5).
//!
//! [`Receiver`] composes the stream of sequences ([`EpochStream`]), the lines, the liveness of the
//! publisher, and the memory that is shared by RDMA.

mod bytes;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::control::{
    ChannelOffer, CursorStep, Grant, HeartbeatLimits, MirrorRefusal, Progress, Refused,
    RemoteAccess, Report, Start, Status,
};
use crate::delivery::{Deliver, LineId, LinkDownReason, LossCause, Position, StreamState, Via};
use crate::planted::{Bug, planted};
use crate::receive::config::ReceiverConfig;
use crate::receive::gaps::Origin;
use crate::receive::inbox::{Inbox, InboxView, InboxWanted};
use crate::receive::join::Welcomed;
use crate::receive::lines::{LineChange, Lines};
use crate::receive::liveness::{Liveness, LivenessChange, LivenessLimits};
use crate::receive::mirror::Mirror;
use crate::receive::path::{Arrival, ArrivalPath};
use crate::receive::rdma_read::{ReadSlot, Readable};
use crate::receive::requests::{PathHealth, RepairRequests};
use crate::receive::stream::EpochStream;
use crate::record::AlignedCopy;
use crate::ring::{Geometry, RingMemory};
use crate::types::{ChannelId, Epoch, Nanos, ReceiverCounters, Sequence, SequenceRange};
use crate::wire::authentication::Authentication;
use crate::wire::{CrcVerdict, Datagram, Heartbeat, Kind};

/// The receiver of one channel. It delivers each sequence once or declares it lost, and believes only
/// what the repair connection confirmed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Receiver {
    channel: ChannelId,
    /// The shortest silence of a line that counts, while another line is heard.
    line_silence_min: Nanos,
    /// Interval between reports to our cursor.
    cursor_every: Nanos,
    stream: EpochStream,
    lines: Lines,
    liveness: Liveness,
    /// The publisher's ring, while it can be READ.
    readable: Option<Readable>,
    /// The memory that the publisher writes sealed datagrams to, for a standby.
    #[serde(skip)]
    inbox: Option<Inbox>,
    /// The keys of the epoch that is followed, if the channel is authenticated. No record holds them: the
    /// verdict on a tag is an input.
    #[serde(with = "crate::wire::authentication::redacted")]
    authentication: Option<Authentication>,
    heartbeat_limits: HeartbeatLimits,
}

/// The state of a channel beside its stream, which one receiver leaves to the next. The application
/// knows of it through events, and the next receiver emits the events that end it.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChannelHealth {
    liveness: Liveness,
    lines: Lines,
    link_down_reported: bool,
}

impl Receiver {
    /// A receiver for `channel`, whose publisher has a ring of `slots` slots of `slot_len` bytes
    /// and sends on `lines` lines. It delivers nothing before it is welcomed.
    #[must_use]
    pub fn new(
        config: ReceiverConfig,
        channel: ChannelId,
        (slots, slot_len): (u64, usize),
        lines: usize,
        seed: u64,
        now: Nanos,
        counters: Arc<ReceiverCounters>,
    ) -> Self {
        let limits = LivenessLimits {
            stale_min: Nanos::from_us(config.stale_us.into()),
            dead: Nanos::from_us(config.dead_us.into()),
        };
        let ring = (slots, slot_len);
        Self {
            channel,
            line_silence_min: Nanos::from_us(config.line_silence_us.into()),
            cursor_every: Nanos::from_us(config.cursor_us.into()),
            stream: EpochStream::new(&config, channel, ring, seed, now, counters),
            lines: Lines::new(lines, now),
            liveness: Liveness::new(limits, now),
            readable: None,
            inbox: None,
            authentication: None,
            heartbeat_limits: HeartbeatLimits::default(),
        }
    }

    /// The channel.
    #[must_use]
    pub const fn channel(&self) -> ChannelId {
        self.channel
    }

    /// The epoch that is followed; [`Epoch::NONE`] before the first WELCOME.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.stream.join().epoch()
    }

    /// The counters of the channel.
    #[must_use]
    #[inline]
    pub const fn counters(&self) -> &Arc<ReceiverCounters> {
        self.stream.counters()
    }

    /// Counts in these counters from now on.
    pub(crate) fn set_counters(&mut self, counters: Arc<ReceiverCounters>) {
        self.stream.set_counters(counters);
    }

    /// Returns whether everything up to END was delivered or declared lost.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.stream.ended()
    }

    /// Returns whether something is missing that an answer of the publisher would bring.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.stream.recovery().repair().is_waiting()
    }

    /// Returns how many sequences lie between the last one delivered or declared lost and the newest
    /// one that the publisher is known to have sent.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.stream.lag()
    }

    /// The position of the stream, for events that are no datagram.
    #[must_use]
    pub fn position(&self) -> Position {
        self.stream.recovery().stream().position()
    }

    /// Returns whether everything sent before the join was delivered or declared lost.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.stream.join().is_live()
    }

    /// The last sequence delivered or declared lost, and the highest known to have been sent.
    #[must_use]
    pub const fn progress(&self) -> (Sequence, Sequence) {
        (self.stream.delivered(), self.stream.extent().highest_seen())
    }

    /// The newest sequence that the repair path confirmed, and the last one that multicast may claim now.
    #[must_use]
    pub fn confirmed(&self, now: Nanos) -> (Sequence, Sequence) {
        self.stream.extent().confirmed(now)
    }

    /// The state of the channel as this receiver knows it. The events emitted so far result in the same
    /// state ([`StreamState::follow`]), except `publisher_dead`: a message of the publisher ends that
    /// without an event.
    #[must_use]
    pub fn stream_state(&self) -> StreamState {
        // After the end neither silence nor a lost connection is news: what was reported before holds.
        let ended = self.ended();
        let silence = match ended {
            true => self.liveness.reported(),
            false => self.liveness.silence(),
        };
        let join = self.stream.join();
        StreamState {
            joined: join.epoch() != Epoch::NONE,
            live: join.is_live(),
            ended,
            stale: silence.stale,
            publisher_dead: self.liveness.is_dead(),
            multicast_lost: silence.multicast_lost,
            repair_link_up: join.is_link_up() || (ended && !join.is_link_down_reported()),
            lines_down: self.lines.down(),
        }
    }

    /// Returns what the next receiver of this channel must know.
    #[must_use]
    pub fn health(self) -> ChannelHealth {
        ChannelHealth {
            liveness: self.liveness,
            lines: self.lines,
            link_down_reported: self.stream.join().is_link_down_reported(),
        }
    }

    /// Takes over the health that another receiver of the channel left. Call this before any input.
    pub fn restore_health(&mut self, health: ChannelHealth, now: Nanos) {
        self.liveness.take_over(health.liveness, now);
        self.stream
            .set_link_down_reported(health.link_down_reported);
        let changes = self.lines.take_over(health.lines, now);
        changes.for_each(|change| self.report_line(change));
    }

    /// Takes a datagram whose structure and CRC were checked, and delivers what can be delivered.
    // The fast path is always inlined down to the delivery. Left to itself, the compiler stops inlining
    // when a journal adds a second caller, and each call costs the saving of registers.
    #[inline(always)]
    pub fn handle_datagram(
        &mut self,
        now: Nanos,
        via: Via,
        datagram: &Datagram<'_>,
        verdict: CrcVerdict,
        on: &mut impl Deliver,
    ) {
        self.counters().count_received(datagram.bytes().len());
        if let Via::Line(line) = via
            && verdict == CrcVerdict::Good
            && self.is_fast_path(datagram)
        {
            self.heard_on(line, datagram.header().sequence, now);
            return self.stream.deliver_fast(now, line, datagram, on);
        }
        let path = ArrivalPath::Other;
        self.process(now, Arrival { via, path }, datagram, verdict, on);
    }

    /// Takes a datagram of a repair path. None takes the fast path.
    fn handle_repair(
        &mut self,
        now: Nanos,
        path: ArrivalPath,
        datagram: &Datagram<'_>,
        verdict: CrcVerdict,
        on: &mut dyn Deliver,
    ) {
        self.counters().count_received(datagram.bytes().len());
        let via = Via::Repair;
        self.process(now, Arrival { via, path }, datagram, verdict, on);
    }

    /// Returns whether a datagram of multicast, whose CRC is right, can be delivered at once. Nearly
    /// every datagram can; the fast path does only what [`Receiver::process`] would do for such a one.
    #[inline(always)]
    pub(crate) fn is_fast_path(&self, datagram: &Datagram<'_>) -> bool {
        self.stream.is_fast_path(datagram) && datagram.header().channel == self.channel
    }

    /// Takes a datagram that the fast path does not.
    pub(crate) fn process(
        &mut self,
        now: Nanos,
        arrival: Arrival,
        datagram: &Datagram<'_>,
        verdict: CrcVerdict,
        on: &mut dyn Deliver,
    ) {
        let header = datagram.header();
        if planted(Bug::EndUnchecked) && header.kind == Kind::End {
            self.stream.extent_mut().end_mut().confirm(header.sequence);
        }
        if verdict == CrcVerdict::Bad && !planted(Bug::CrcIgnored) {
            return self.counters().corrupt_dropped.increment();
        }
        if verdict == CrcVerdict::Unauthenticated {
            return self.counters().unauthenticated_dropped.increment();
        }
        if header.channel != self.channel {
            return self.counters().other_channel_dropped.increment();
        }
        if !self.stream.admit(now, arrival.via, header) {
            return;
        }
        if let Via::Line(line) = arrival.via {
            self.heard_on(line, header.sequence, now);
        }
        if header.kind == Kind::Heartbeat {
            self.process_heartbeat(now, datagram);
        } else if matches!(arrival.via, Via::Line(_)) && self.stops_mirror() {
            self.counters().sequence_jump_dropped.increment();
        } else {
            (self.stream).handle_sequenced(now, arrival, datagram, &self.lines, on);
        }
        self.stream.resolve(now, on);
    }

    /// Returns whether a mirror takes nothing by multicast now. With keys nobody else can have sent it.
    fn stops_mirror(&self) -> bool {
        self.authentication.is_none() && self.stream.extent().stops_mirror()
    }

    fn process_heartbeat(&mut self, now: Nanos, datagram: &Datagram<'_>) {
        let Some(heartbeat) = Heartbeat::parse(datagram.payload()) else {
            return self.counters().malformed_dropped.increment();
        };
        self.counters().heartbeats.increment();
        // Anybody can send a heartbeat, so its times count within those of WELCOME.
        let heartbeat = self.heartbeat_limits.limit(heartbeat);
        (self.liveness).announced(Nanos::from_us(heartbeat.next_interval_us.into()));
        self.stream
            .handle_heartbeat(now, datagram.header(), &heartbeat);
    }

    /// Notes that a datagram of the stream came on this line.
    #[inline(always)]
    fn heard_on(&mut self, line: LineId, sequence: Sequence, now: Nanos) {
        if let Some(change) = self.lines.heard(line, sequence, now) {
            self.report_line(change);
        }
        if let Some(change) = self.liveness.heard_multicast(now) {
            self.report_liveness(change, now);
        }
    }

    /// Counts a datagram from an address that neither WELCOME nor the config names.
    pub fn handle_unknown_sender(&self) {
        self.counters().received_datagrams.increment();
        self.counters().unknown_sender_dropped.increment();
    }

    /// The ring of `epoch` itself showed that `range` was sent and that it no longer holds it. Declares
    /// lost what nothing else brought, without a request.
    #[cold]
    pub fn handle_overrun(
        &mut self,
        now: Nanos,
        epoch: Epoch,
        range: SequenceRange,
        on: &mut dyn Deliver,
    ) {
        if epoch != self.epoch() || self.ended() {
            return;
        }
        self.stream.handle_overrun(now, range, on);
        self.handle_timeout(now, on);
    }

    /// Emits queued events, and declares lost what the clock says. Calling it early or twice does
    /// nothing.
    pub fn handle_timeout(&mut self, now: Nanos, on: &mut dyn Deliver) {
        let is_link_up = self.stream.join().is_link_up();
        while let Some(change) = self.liveness.check(now) {
            if change == LivenessChange::Dead && is_link_up {
                // A connection that is silent as well is half open. It is built anew first: only a
                // publisher that does not answer then is dead.
                self.liveness.suspect_link(self.ended(), now);
                continue;
            }
            self.report_liveness(change, now);
            // A standby continues behind the last publisher without a hole, so what its mirror lacks is
            // not given up with that publisher.
            if change == LivenessChange::Dead && !self.ended() && self.mirror().is_none() {
                self.stream.lose_to_dead_publisher(on);
            }
        }
        while let Some(change) = self.lines.check(now, self.line_silence()) {
            self.report_line(change);
        }
        if is_link_up && !self.ended() {
            self.liveness.rejoin_if_due(now);
        }
        self.stream.handle_timeout(now, on);
    }

    /// Returns when [`Receiver::handle_timeout`] or [`Receiver::due_requests`] has something to do if
    /// nothing arrives until then.
    #[must_use]
    pub fn poll_timeout(&self) -> Nanos {
        let lines = self.lines.next_check(self.line_silence());
        let mut at = self.liveness.next_check().min(lines);
        if self.stream.join().is_link_up() && !self.ended() {
            at = at.min(self.liveness.next_rejoin());
        }
        at.min(self.stream.poll_timeout(&self.lines))
    }

    /// How long a line may be silent while another is heard.
    fn line_silence(&self) -> Nanos {
        self.liveness.interval().times(3).max(self.line_silence_min)
    }

    /// Changes the number of lines that carry the channel; nothing changes if it is the same. A line
    /// that was down and is gone is reported as up with the next input.
    pub fn handle_lines(&mut self, lines: usize, now: Nanos) {
        if lines.clamp(1, LineId::MAX) != self.lines.count() {
            let changes = self.lines.renew(lines, now);
            changes.for_each(|change| self.report_line(change));
        }
    }

    #[cold]
    fn report_line(&mut self, change: LineChange) {
        let event = change.report(self.counters());
        self.stream.queue(event);
    }

    #[cold]
    fn report_liveness(&mut self, change: LivenessChange, now: Nanos) {
        // After the end neither silence nor its end is news.
        if self.ended() {
            return;
        }
        if change == LivenessChange::Stale {
            // STATUS says whether the publisher is gone, or only its multicast.
            self.stream.progress_mut().report_at(Nanos::ZERO);
        }
        let (counters, stream) = (Arc::clone(self.counters()), &mut self.stream);
        (self.liveness).report(change, now, &counters, |event| stream.queue(event));
    }

    /// Emits queued events.
    #[cold]
    pub fn drain_events(&mut self, on: &mut dyn Deliver) {
        self.stream.drain_events(on);
    }

    /// Returns once whether the groups should be joined anew.
    pub const fn take_rejoin(&mut self) -> bool {
        self.liveness.take_rejoin()
    }

    /// Returns once whether the repair connection should be built anew.
    pub const fn take_link_silent(&mut self) -> bool {
        self.liveness.take_link_silent()
    }

    /// Declares everything that is open lost: the application leaves, or the publisher is gone for good.
    pub fn close(&mut self, cause: LossCause, on: &mut dyn Deliver) {
        self.stream.close(cause, on);
    }

    /// The repair connection is up, and the publisher offers this. Delivery begins where `start` says if
    /// it has not begun.
    pub fn handle_welcome(
        &mut self,
        now: Nanos,
        offer: &ChannelOffer,
        start: Start,
        on: &mut dyn Deliver,
    ) -> Welcomed {
        let epoch = self.epoch();
        let least = match start {
            Start::At(wanted, _) if epoch == Epoch::NONE => wanted,
            _ => epoch,
        };
        if offer.epoch < least && !planted(Bug::ZombieWelcomed) {
            self.counters().old_epoch_dropped.increment();
            return Welcomed::Zombie;
        }
        let is_forgeable = self.authentication.is_none();
        // Only now: the keys of a publisher that was replaced must not displace those in use.
        self.authentication.clone_from(&offer.authentication);
        self.heartbeat_limits = offer.heartbeats.min(HeartbeatLimits::default());
        self.liveness.heard_welcome(now);
        self.stream.link_is_up(now, offer);
        let welcomed = if epoch == Epoch::NONE {
            self.stream.begin(now, offer, start, on);
            Welcomed::Began
        } else if offer.epoch == epoch {
            let is_stale = self.liveness.is_stale();
            self.stream.resume_epoch(now, offer, is_stale);
            Welcomed::Resumed
        } else if let Some(at) = offer.continues.of(epoch) {
            if self.ended() {
                // No change of liveness was reported since the end.
                self.liveness.restart(now);
            }
            if is_forgeable {
                self.stream.void_unconfirmed(at, on);
            }
            self.stream.continue_epoch(now, offer, at, on);
            Welcomed::Continued
        } else {
            self.end_epoch(now, offer.epoch, on);
            self.stream.follow(now, offer);
            Welcomed::EpochChanged
        };
        if welcomed != Welcomed::Resumed {
            self.lines.restart();
        }
        self.handle_timeout(now, on);
        welcomed
    }

    /// Ends the epoch that is followed: declares lost what is open of it, and reports its end or its
    /// tail, and that the epoch `to` comes next.
    pub fn end_epoch(&mut self, now: Nanos, to: Epoch, on: &mut dyn Deliver) {
        if self.stream.end_epoch(to, on) {
            // No change of liveness was reported since the end.
            self.liveness.restart(now);
        }
    }

    /// The repair connection is down: nothing is requested until it is up again.
    pub fn handle_link_down(&mut self, now: Nanos, reason: LinkDownReason) {
        self.stream.link_is_down(now, reason);
    }

    /// The replay connection is down: its requests are due again.
    pub fn handle_replay_down(&mut self, now: Nanos) {
        self.stream.repair_mut().request_replay_again(now);
    }

    /// The NACK connection is down: its requests are due on the repair connection at once.
    pub fn handle_nack_down(&mut self, now: Nanos) {
        self.stream.repair_mut().leave_nack_link(now);
    }

    /// Sets whether the replay connection takes requests now, or is being established.
    pub(crate) const fn set_replay(&mut self, open: bool, in_progress: bool) {
        self.stream.repair_mut().set_replay(open, in_progress);
    }

    /// Collects all requests that are due into `requests`, marks their gaps as requested, and returns
    /// whether the path still answers.
    pub fn due_requests(&mut self, now: Nanos, requests: &mut RepairRequests) -> PathHealth {
        let readable = self.readable.as_mut();
        (self.stream).due_requests(now, &self.lines, readable, requests)
    }

    /// The publisher refuses a range.
    pub fn handle_refused(&mut self, now: Nanos, refused: &Refused, on: &mut dyn Deliver) {
        self.counters().refusals_received.increment();
        if !planted(Bug::RefusalIgnored) && self.stream.handle_refused(now, refused, on) {
            self.handle_timeout(now, on);
        }
    }

    /// The publisher says how far it is. A STATUS of another epoch is ignored: the caller follows that.
    pub fn handle_status(&mut self, now: Nanos, status: &Status, on: &mut dyn Deliver) {
        if status.epoch != self.epoch() {
            return;
        }
        self.stream.progress_mut().note_status(status.echo);
        let ahead = status.newest > self.stream.extent().highest_seen();
        if let Some(change) = self.liveness.heard_repair(ahead, now) {
            self.report_liveness(change, now);
        }
        let is_stale = self.liveness.is_stale();
        self.stream.handle_status(now, status, is_stale, on);
        self.handle_timeout(now, on);
    }

    /// Notes that something came over the repair connection: the publisher lives.
    pub fn heard_repair(&mut self, now: Nanos) {
        // Never a change: only STATUS says whether multicast is behind.
        let _ = self.liveness.heard_repair(false, now);
    }

    /// Returns whether it is time to report how far we are, and to ask how far the publisher is.
    pub(crate) fn is_progress_due(&self, now: Nanos) -> bool {
        self.stream.is_progress_due(now)
    }

    /// Returns the PROGRESS to send, if it is due. None is due while so many wait for their STATUS that
    /// they would leave repairs no room on the connection.
    pub fn take_progress(&mut self, now: Nanos) -> Option<Progress> {
        match self.is_progress_due(now) {
            true => self.report_progress(now),
            false => None,
        }
    }

    #[cold]
    fn report_progress(&mut self, now: Nanos) -> Option<Progress> {
        let (following, read_bytes) = (self.is_following(), self.read_bytes());
        self.stream.report_progress(now, following, read_bytes)
    }

    /// Returns whether multicast is silent, so that the publisher is asked how far it is.
    pub(crate) const fn is_following(&self) -> bool {
        self.liveness.is_stale() && !self.ended()
    }

    /// Asks the publisher how far it is, soon but not more often than the config allows.
    pub(crate) fn query_status_soon(&mut self, now: Nanos) {
        self.stream.progress_mut().query_soon(now);
    }

    /// The mirror that keeps a copy of everything delivered, if there is one.
    #[must_use]
    pub fn mirror(&self) -> Option<&Mirror> {
        self.stream.recovery().stream().mirror()
    }

    /// Sets the mirror that keeps a copy of everything delivered from now on; returns the one before.
    pub fn set_mirror(&mut self, mirror: Option<Mirror>) -> Option<Mirror> {
        self.stream.recovery_mut().stream_mut().set_mirror(mirror)
    }

    /// The publisher's ring, while it can be READ.
    pub(crate) const fn readable(&self) -> Option<&Readable> {
        self.readable.as_ref()
    }

    /// The shape of the publisher's ring, where a ring can have it.
    pub(crate) const fn geometry(&self) -> Option<Geometry> {
        self.stream.join().geometry()
    }

    /// READs that had to wait are planned again at once: there is room for them.
    pub(crate) const fn plan_reads_again(&mut self) {
        self.stream.repair_mut().plan_reads_again();
    }

    fn read_bytes(&self) -> u64 {
        self.readable.as_ref().map_or(0, Readable::used)
    }

    /// The publisher lets its ring be READ, or more of it. Ignores a grant of another epoch or ring.
    pub(crate) fn handle_grant(&mut self, grant: &Grant) {
        let fits = |ring: &Geometry| ring.bytes() as u64 == grant.ring.len;
        let geometry = self.geometry().filter(fits);
        let Some(geometry) = geometry.filter(|_| grant.epoch == self.epoch()) else {
            return;
        };
        self.plan_reads_again();
        let known = self.readable.as_mut();
        if !known.is_some_and(|known| known.extend(grant)) {
            self.readable = Some(Readable::new(grant, geometry));
            self.counters().read_links_up.increment();
        }
    }

    /// Nothing can be READ any more, and nothing is written to our inbox: what was being READ is due on
    /// the next rung at once.
    pub(crate) fn handle_read_down(&mut self, now: Nanos) {
        self.inbox = None;
        if self.readable.take().is_some() {
            self.counters().read_links_down.increment();
            self.stream.repair_mut().leave_read(now);
        }
    }

    /// A READ of the slots of `range` is done.
    pub(crate) fn handle_read_slots(
        &mut self,
        now: Nanos,
        range: SequenceRange,
        bytes: &[u8],
        aligned: &mut AlignedCopy,
        on: &mut dyn Deliver,
    ) {
        let Some(geometry) = self.readable.as_ref().map(Readable::geometry) else {
            return;
        };
        for (sequence, slot) in range.iter().zip(bytes.chunks_exact(geometry.slot_len())) {
            let (join, channel) = (self.stream.join(), self.channel);
            let slot = ReadSlot::of(aligned.of(slot), sequence, |header| {
                join.is_of_lineage(header) && header.channel == channel
            });
            match slot {
                ReadSlot::Whole(datagram) => {
                    let path = ArrivalPath::Read;
                    self.handle_repair(now, path, &datagram, CrcVerdict::Good, on);
                }
                ReadSlot::Lapped(found) => {
                    self.stream
                        .recovery_mut()
                        .handle_lapped_read(now, found, geometry.slots(), on);
                    self.handle_timeout(now, on);
                }
                ReadSlot::Torn => self.stream.recovery_mut().handle_torn_read(now, sequence),
            }
        }
    }

    /// A READ of the control page is done, which says how far the publisher is without its help.
    pub(crate) fn handle_read_page(&mut self, now: Nanos, page: &[u8], on: &mut dyn Deliver) {
        let (epoch, channel) = (self.epoch(), self.channel);
        let readable = self.readable.as_mut();
        let Some(page) = readable.and_then(|it| it.take_page(page, epoch, channel)) else {
            return;
        };
        self.counters().page_reads.increment();
        let highest = self.stream.extent().highest_seen();
        let ahead = page.sent > highest;
        if (page.is_alive || ahead)
            && let Some(change) = self.liveness.heard_repair(ahead, now)
        {
            self.report_liveness(change, now);
        }
        if page.sent.since(highest) > self.stream.join().slots() {
            // The publisher lives, however far ahead, but STATUS must confirm so high a sequence.
            self.query_status_soon(now);
        } else if ahead && self.liveness.is_stale() {
            self.stream.note_sent(page.sent, now, Origin::Live);
        }
        self.handle_timeout(now, on);
    }

    /// Returns the next step for our cursor, which is in flight from now on.
    pub(crate) fn take_cursor_step(&mut self, now: Nanos) -> Option<CursorStep> {
        let (sequence, heard) = self.progress();
        let report = Report {
            number: 0,
            epoch: self.epoch(),
            sequence,
            heard,
            lost_records: self.counters().lost_records.get(),
            read_bytes: self.read_bytes(),
        };
        Some(self.readable.as_mut()?.cursor_mut()?.step(now, report))
    }

    /// Returns when our cursor is to be claimed or written.
    pub(crate) fn cursor_due(&self) -> Nanos {
        let cursor = self.readable.as_ref().and_then(Readable::cursor);
        cursor.map_or(Nanos::MAX, |cursor| cursor.due_at(self.cursor_every))
    }

    /// The claim of our cursor for this session is done. `old`: the word before, which is another's if
    /// the claim failed.
    pub(crate) fn handle_claimed(&mut self, session: u64, old: u64) {
        let cursor = self.readable.as_mut().and_then(Readable::cursor_mut);
        match cursor.map(|cursor| cursor.claimed(session, old)) {
            Some(true) => self.counters().cursors_claimed.increment(),
            Some(false) => self.counters().cursors_foreign.increment(),
            None => {}
        }
    }

    /// The publisher's device has our report.
    pub(crate) fn handle_reported(&mut self) {
        if let Some(cursor) = self.readable.as_mut().and_then(Readable::cursor_mut) {
            cursor.reported();
            self.counters().cursor_reports.increment();
        }
    }

    /// The inbox that the publisher writes this channel to; `None` where there is none.
    #[must_use]
    pub fn inbox(&self) -> Option<InboxView> {
        self.inbox.as_ref().map(Inbox::view)
    }

    /// Uses this memory as the inbox of the current connection. Returns whether it fits.
    pub(crate) fn set_inbox(
        &mut self,
        memory: Arc<dyn RingMemory>,
        wanted: &InboxWanted,
        access: RemoteAccess,
    ) -> bool {
        let fits = access.len == wanted.part().len() as u64;
        let first = self.stream.extent().highest_seen().max(Sequence::FIRST);
        let inbox = Inbox::new(memory, wanted.geometry, first);
        self.inbox = inbox.ok().filter(|_| fits);
        self.inbox.is_some()
    }

    /// The publisher refuses to write to the inbox.
    pub(crate) fn handle_mirror_refused(&mut self, reason: MirrorRefusal) {
        if let Some(inbox) = &mut self.inbox {
            inbox.refuse(reason);
            self.counters().inboxes_refused.increment();
        }
    }

    /// Looks for a datagram in the inbox that was not taken yet. Returns whether there is one.
    #[inline]
    pub(crate) fn poll_written(&mut self) -> bool {
        let (join, channel) = (self.stream.join(), self.channel);
        let Some(inbox) = &mut self.inbox else {
            return false;
        };
        let polled = inbox.poll(|datagram| {
            let header = datagram.header();
            header.channel == channel && join.is_of_lineage(header)
        });
        polled.count(self.counters());
        polled.found
    }

    /// The bytes of the datagram that was found in the inbox.
    pub(crate) fn written(&self) -> &[u8] {
        self.inbox.as_ref().map_or(&[], Inbox::found)
    }

    /// Takes the datagram that was found in the inbox. It does not show that the publisher lives, and
    /// what it does not bring is requested as ever.
    pub(crate) fn take_written(&mut self, now: Nanos, on: &mut dyn Deliver) {
        // Taken out of its place, because the datagram borrows its buffer.
        let Some(inbox) = self.inbox.take() else {
            return;
        };
        if let Ok(datagram) = Datagram::parse(inbox.found()) {
            self.handle_repair(now, ArrivalPath::Written, &datagram, CrcVerdict::Good, on);
        }
        self.inbox = Some(inbox);
    }
}
