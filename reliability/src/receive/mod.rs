//! One channel of a subscriber: takes datagrams from any line and from repair, believes only what
//! the repair connection confirmed, and delivers each sequence once or declares it lost.
//!
//! Four files make it: this one takes things in; `repair.rs` requests the datagrams that are missing
//! and handles the answers; `resolve.rs` declares losses; `join.rs` begins, and `epoch.rs` follows the
//! publisher into another epoch. No I/O, no clock: time and the CRC's verdict are arguments
//! (docs/PROTOCOL.md §5).

mod config;
mod contested;
mod epoch;
mod fast_path;
mod gaps;
mod inbox;
mod join;
mod lines;
mod liveness;
mod mirror;
mod overrun;
mod path;
mod rdma_read;
mod reassembly;
mod repair;
mod replayed_records;
mod resolve;
mod standby;
mod window;

pub use self::config::{ReceiverConfig, ReceiverConfigError, RepairOrder};
pub use self::inbox::{InboxState, InboxWanted};
pub(crate) use self::join::ChannelHealth;
pub use self::join::Welcomed;
pub use self::mirror::{Mirror, MirrorError, MirrorHost, Mirrored, NotPromoted, Promotion};
pub use self::rdma_read::RemoteOp;
pub(crate) use self::rdma_read::{ReadRoom, Readable};
pub use self::repair::{PathHealth, RepairRequests};
pub use self::standby::InboxView;

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::control::NackClass;
use crate::delivery::{
    Deliver, Delivery, Event, Item, LineId, LossCause, Position, StreamState, Via,
};
use crate::planted::{Bug, planted};
use crate::receive::contested::ContestedSequences;
use crate::receive::gaps::{FirstRequest, Gaps, Origin, Rung};
use crate::receive::inbox::Inbox;
use crate::receive::lines::Lines;
use crate::receive::liveness::{Liveness, LivenessChange, LivenessLimits, Silence};
use crate::receive::path::{ArrivalPath, Lateness};
use crate::receive::reassembly::Reassembly;
use crate::receive::repair::answered_by;
use crate::receive::window::{Held, Window};
use crate::ring::Geometry;
use crate::timing::NackTimer;
use crate::types::{
    ChannelId, Epoch, Lineage, Nanos, ReceiverCounters, RecordNumber, Sequence, SequenceRange,
};
use crate::wire::{CrcVerdict, Datagram, Heartbeat, Kind, PublisherState, relay_flags};

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
pub struct Receiver {
    pub(crate) config: ReceiverConfig,
    pub(crate) channel: ChannelId,
    pub(crate) epoch: Epoch,
    /// The earlier epochs that it continues.
    pub(crate) lineage: Lineage,
    /// Slots of the publisher's ring: no honest datagram leaps further.
    pub(crate) slots: u64,
    /// The highest sequence known to have been sent.
    pub(crate) highest_seen: Sequence,
    /// What the publisher said last, over the repair path, that it has sent; and the number of the
    /// record after it.
    pub(crate) confirmed: Option<(Sequence, RecordNumber)>,
    /// Since when the publisher says that it has not sent yet what was heard of, and how far that went.
    pub(crate) refused_ahead_since: Option<(Nanos, Sequence)>,
    /// Whether a datagram leapt so far that the publisher's word on it is awaited.
    pub(crate) leapt: bool,
    pub(crate) gaps: Gaps,
    pub(crate) reassembly: Reassembly,
    pub(crate) lines: Lines,
    pub(crate) liveness: Liveness,
    /// What the application was told of silence; after the end it is told no more.
    pub(crate) silence_told: Silence,
    pub(crate) nack: NackTimer,
    /// Times of asking on the NACK connection; it has no hold-off of its own.
    pub(crate) rc: NackTimer,
    /// Times of READ.
    pub(crate) read: NackTimer,
    /// On which way comes what is taken now.
    pub(crate) path: ArrivalPath,
    /// When a question on the NACK connection last gave way, and when an answer was last found
    /// late: what gave way before was late together with it. The same of READ.
    pub(crate) rc_lateness: Lateness,
    pub(crate) read_lateness: Lateness,
    /// When an answer came last, and for which sequence: to repair, to replay, to repair on the
    /// NACK connection, to READ.
    pub(crate) answered: [Option<(Nanos, Sequence)>; 4],
    /// The publisher's ring, where its shape is possible.
    pub(crate) geometry: Option<Geometry>,
    /// Whether it can be READ.
    pub(crate) readable: Option<Readable>,
    /// Where the publisher writes what it seals, where it does.
    #[serde(skip)]
    pub(crate) inbox: Option<Inbox>,
    /// What is to be READ and can't be yet is looked at again at this time.
    pub(crate) read_wait: Nanos,
    /// Delivering beyond this sequence means being live; `None` when that was told.
    pub(crate) live_after: Option<Sequence>,
    /// What came with two contents and waits to be asked about.
    pub(crate) contested: ContestedSequences,
    /// Whether the repair connection is up.
    pub(crate) link_up: bool,
    /// Whether the application was told that the repair connection is down.
    pub(crate) link_down_told: bool,
    /// Set when the repair connection should be built anew: it has been silent as well.
    pub(crate) link_silent: bool,
    /// Whether replay can be asked for.
    pub(crate) replay: ReplayPath,
    /// When to tell progress next, when that was looked at last, and when it was said.
    pub(crate) progress_at: Nanos,
    pub(crate) progress_looked_at: Nanos,
    pub(crate) progress_said_at: Nanos,
    /// How many of those STATUS has not answered.
    pub(crate) unanswered: u8,
    /// The sequence of END, once the publisher said over the repair path that it was sent.
    pub(crate) end_at: Option<Sequence>,
    /// Whether a datagram said so, which alone ends nothing.
    pub(crate) end_heard: Option<Sequence>,
    /// Where we begin with the oldest, as long as nothing was delivered.
    pub(crate) beginning: Option<Sequence>,
    /// Whether progress was told after END.
    pub(crate) end_told: bool,
    /// Set when the groups should be joined anew.
    pub(crate) rejoin: bool,
    pub(crate) rejoin_at: Nanos,
    /// What happened outside the order of delivery, to be told with the next call.
    pub(crate) events: VecDeque<Event>,
    #[serde(skip)]
    pub(crate) counters: Arc<ReceiverCounters>,
}

/// Where history, and what is too much for repair, is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReplayPath {
    /// Nobody has asked for it.
    Unwanted,
    /// It is being established; until then nothing is asked, and no try is spent.
    Awaited,
    /// It takes questions.
    Open,
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
        let window = Window::new(config.window_slots as usize, slot_len);
        let limits = LivenessLimits {
            stale_min: Nanos::from_us(config.stale_us.into()),
            dead: Nanos::from_us(config.dead_us.into()),
        };
        Self {
            config,
            channel,
            epoch: Epoch::NONE,
            lineage: Lineage::default(),
            slots,
            highest_seen: Sequence::NONE,
            confirmed: None,
            refused_ahead_since: None,
            leapt: false,
            gaps: Gaps::default(),
            reassembly: Reassembly::new(channel, window, config.delivery == Delivery::Arrival),
            lines: Lines::new(lines, now),
            liveness: Liveness::new(limits, now),
            silence_told: Silence::default(),
            nack: NackTimer::new(Nanos::from_us(config.nack_retry_us.into()), seed),
            rc: NackTimer::new(Nanos::from_us(config.nack_retry_us.into()), !seed),
            read: NackTimer::new(
                Nanos::from_us(config.nack_retry_us.into()),
                seed.rotate_left(17),
            ),
            path: ArrivalPath::Other,
            rc_lateness: Lateness::default(),
            read_lateness: Lateness::default(),
            answered: [None; 4],
            geometry: geometry_of(slots, slot_len),
            readable: None,
            inbox: None,
            read_wait: Nanos::ZERO,
            live_after: None,
            contested: ContestedSequences::default(),
            link_up: false,
            link_down_told: false,
            link_silent: false,
            replay: ReplayPath::Unwanted,
            progress_at: now,
            progress_looked_at: Nanos::ZERO,
            progress_said_at: Nanos::ZERO,
            unanswered: 0,
            end_at: None,
            end_heard: None,
            beginning: None,
            end_told: false,
            rejoin: false,
            rejoin_at: now,
            events: VecDeque::with_capacity(64),
            counters,
        }
    }

    /// The channel.
    #[must_use]
    pub const fn channel(&self) -> ChannelId {
        self.channel
    }

    /// The epoch followed.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What has been counted.
    #[must_use]
    pub fn counters(&self) -> &Arc<ReceiverCounters> {
        &self.counters
    }

    /// Whether everything up to END was delivered or declared lost.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.reassembly.ended()
    }

    /// Whether something is missing that an answer of the publisher would bring.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.gaps.is_empty() || !self.contested.is_empty()
    }

    /// How many sequences lie between the last one delivered or declared lost and the newest one
    /// that the publisher is known to have sent.
    #[must_use]
    pub fn lag(&self) -> u64 {
        let newest = self
            .confirmed
            .map_or(self.highest_seen, |(told, _)| told.max(self.highest_seen));
        newest.since(self.reassembly.next().previous())
    }

    /// Where the stream stands now, for events that are no datagram.
    #[must_use]
    pub fn position(&self) -> Position {
        self.reassembly.position()
    }

    /// Whether what was sent before we joined has been delivered or declared lost.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.epoch.0 != 0 && self.live_after.is_none()
    }

    /// The last sequence delivered or declared lost, and the highest heard of.
    #[must_use]
    pub const fn progress(&self) -> (Sequence, Sequence) {
        (self.reassembly.next().previous(), self.highest_seen)
    }

    /// How the channel stands by what this receiver goes by. The events told so far come to the
    /// same ([`StreamState::follow`]), but for `publisher_dead`, which a word of the publisher ends
    /// without an event.
    #[must_use]
    pub fn stream_state(&self) -> StreamState {
        // After the end silence is no news: what was told of it before holds.
        let silence = match self.ended() {
            true => self.silence_told,
            false => self.liveness.silence(),
        };
        StreamState {
            joined: self.epoch != Epoch::NONE,
            live: self.is_live(),
            ended: self.ended(),
            stale: silence.stale,
            publisher_dead: self.liveness.is_dead(),
            multicast_lost: silence.multicast_lost,
            // Nor is it after the end that the connection is gone.
            repair_link_up: self.link_up || (self.ended() && !self.link_down_told),
            lines_down: self.lines.down(),
        }
    }

    /// Takes a datagram, whose structure and CRC were checked, and delivers what can be.
    #[inline]
    pub fn handle_datagram(
        &mut self,
        now: Nanos,
        via: Via,
        datagram: &Datagram<'_>,
        verdict: CrcVerdict,
        on: &mut impl Deliver,
    ) {
        self.counters.received_datagrams.increment();
        self.counters
            .received_bytes
            .add(datagram.bytes().len() as u64);
        if let Via::Line(line) = via
            && verdict == CrcVerdict::Good
            && self.is_fast_path(datagram)
        {
            return self.deliver_fast(now, line, datagram, on);
        }
        self.process(now, via, datagram, verdict, on);
    }

    /// Takes a datagram that does not go the straight way.
    pub(crate) fn process(
        &mut self,
        now: Nanos,
        via: Via,
        datagram: &Datagram<'_>,
        verdict: CrcVerdict,
        on: &mut impl Deliver,
    ) {
        let header = datagram.header();
        let sequence = header.sequence;
        if planted(Bug::EndUnchecked) && header.kind == Kind::End {
            self.end_at = Some(sequence);
        }
        if verdict == CrcVerdict::Bad && !planted(Bug::CrcIgnored) {
            return self.counters.corrupt_dropped.increment();
        }
        if header.channel != self.channel {
            return self.counters.other_channel_dropped.increment();
        }
        let accepted = planted(Bug::OldEpochAccepted) && header.epoch < self.epoch;
        if !self.is_of_our_line(header) && !accepted {
            return self.reject_epoch(header.epoch, now);
        }
        if self.ended() && sequence > self.highest_seen {
            // The publisher itself said that nothing follows: another's, or nobody's.
            return self.counters.sequence_jump_dropped.increment();
        }
        let leap = sequence.since(self.highest_seen.max(self.reassembly.next()));
        if leap > self.leap_max() && !planted(Bug::LeapBelieved) {
            self.counters.sequence_jump_dropped.increment();
            self.leapt = true;
            return self.query_status_soon(now);
        }
        if let Via::Line(line) = via {
            self.heard_on(line, sequence, now);
        }
        if header.kind == Kind::Heartbeat {
            self.process_heartbeat(now, datagram);
        } else {
            self.process_sequenced(now, via, datagram, on);
        }
        self.resolve(now, on);
    }

    /// So many lines carry the channel from now on; nothing changes when as many did before. One
    /// that was down and is none any more is up again, which is told with the next input.
    pub fn handle_lines(&mut self, lines: usize, now: Nanos) {
        if lines.clamp(1, LineId::MAX) != self.lines.count() {
            let changes = self.lines.renew(lines, now);
            changes.for_each(|change| self.note_line(change));
        }
    }

    /// Takes bytes as they came, aligned as records are: checks them, and delivers what can be.
    #[inline]
    pub fn handle_bytes(&mut self, now: Nanos, via: Via, bytes: &[u8], on: &mut impl Deliver) {
        match Datagram::parse(bytes) {
            Ok(datagram) => {
                let verdict = datagram.verdict();
                self.handle_datagram(now, via, &datagram, verdict, on);
            }
            Err(_) => {
                self.counters.received_datagrams.increment();
                self.counters.malformed_dropped.increment();
            }
        }
    }

    /// As [`Receiver::handle_bytes`], for an answer on the NACK connection.
    pub fn handle_nack_answer(&mut self, now: Nanos, bytes: &[u8], on: &mut impl Deliver) {
        self.path = ArrivalPath::Nack;
        self.handle_bytes(now, Via::Repair, bytes, on);
        self.path = ArrivalPath::Other;
    }

    /// Counts a datagram from an address that neither WELCOME nor the config named.
    pub fn handle_stranger(&self) {
        self.counters.received_datagrams.increment();
        self.counters.unknown_sender_dropped.increment();
    }

    /// Tells what happened outside the order of delivery, and declares lost what the clock says.
    /// Calling it early or twice does nothing.
    pub fn handle_timeout(&mut self, now: Nanos, on: &mut impl Deliver) {
        while let Some(change) = self.liveness.check(now) {
            if change == LivenessChange::Dead && self.link_up {
                // A connection that says nothing either is half open: it is built anew first, and
                // dead is only who does not answer then.
                self.link_silent = !self.ended();
                self.liveness.heard_welcome(now);
                continue;
            }
            self.note_liveness(change, now);
            // A standby goes on behind the last one without a hole: what its mirror lacks must not be
            // given up with the publisher.
            if change == LivenessChange::Dead && !self.ended() && self.mirror().is_none() {
                // Nobody is left who could confirm it, and nothing that was heard speaks against it.
                let unconfirmed = self.end_heard.filter(|end| *end == self.highest_seen);
                self.end_at = self.end_at.or(unconfirmed);
                self.lose(ALL, LossCause::PublisherDead);
                self.reassembly.advance(&self.counters, on);
                self.reassembly.give_up_pending(&self.counters, on);
            }
        }
        while let Some(change) = self.lines.check(now, self.line_silence()) {
            self.note_line(change);
        }
        if self.liveness.is_stale() && !self.ended() && now >= self.rejoin_at && self.link_up {
            self.rejoin = !planted(Bug::RejoinForgotten);
            self.rejoin_at = now.after(REJOIN_EVERY);
        }
        self.give_up_overdue(now);
        self.reassembly.advance(&self.counters, on);
        self.resolve(now, on);
    }

    /// When [`Receiver::handle_timeout`] or [`Receiver::due_requests`] has something to do if
    /// nothing comes until then.
    #[must_use]
    pub fn poll_timeout(&self) -> Nanos {
        let lines = self.lines.next_check(self.line_silence());
        let mut at = self.liveness.next_check().min(lines);
        if self.link_up {
            at = at.min(self.progress_at);
            if self.liveness.is_stale() && !self.ended() {
                at = at.min(self.rejoin_at);
            }
        }
        if let Some(wait) = self.patience()
            && let Some(gap) = self.gaps.iter().find(|gap| self.has_deadline(gap))
        {
            at = at.min(gap.found_at.after(wait));
        }
        at.min(self.next_request())
    }

    /// Tells events that wait to be told.
    #[cold]
    pub fn drain_events(&mut self, on: &mut impl Deliver) {
        while let Some(event) = self.events.pop_front() {
            on.item(Item::Event(&self.reassembly.position(), &event));
        }
    }

    /// Whether the groups should be joined anew; tells it once.
    pub const fn take_rejoin(&mut self) -> bool {
        std::mem::replace(&mut self.rejoin, false)
    }

    /// Whether the repair connection should be built anew; tells it once.
    pub const fn take_link_silent(&mut self) -> bool {
        std::mem::replace(&mut self.link_silent, false)
    }

    /// Declares everything that is still open lost: the application leaves, or the publisher is
    /// gone for good.
    pub fn close(&mut self, cause: LossCause, on: &mut impl Deliver) {
        self.lose(ALL, cause);
        self.reassembly.advance(&self.counters, on);
        self.reassembly.give_up_pending(&self.counters, on);
        self.note_open();
        self.drain_events(on);
    }

    fn process_heartbeat(&mut self, now: Nanos, datagram: &Datagram<'_>) {
        let header = datagram.header();
        let Some(heartbeat) = Heartbeat::parse(datagram.payload()) else {
            return self.counters.malformed_dropped.increment();
        };
        self.counters.heartbeats.increment();
        let interval = Nanos::from_us(heartbeat.next_interval_us.into());
        // Bounded, because it comes in a datagram.
        self.liveness.announced(interval.min(INTERVAL_MAX));
        let hold_off = Nanos::from_us(heartbeat.hold_off_us.into());
        self.nack.advise_hold_off(hold_off, heartbeat.subscribers);
        self.note_sent(header.sequence, now, Origin::Live);
        self.reassembly
            .set_anchor(header.sequence.next(), header.first_record);
        if heartbeat.state == PublisherState::Ended && self.end_at.is_none() {
            if planted(Bug::EndedHeartbeatBelieved) {
                self.end_at = Some(header.sequence);
            }
            // A datagram ends nothing: STATUS says whether it is true.
            self.query_status_soon(now);
        }
    }

    fn process_sequenced(
        &mut self,
        now: Nanos,
        via: Via,
        datagram: &Datagram<'_>,
        on: &mut impl Deliver,
    ) {
        let header = datagram.header();
        let sequence = header.sequence;
        let repaired_copy = header.relay & relay_flags::RETRANSMITTED != 0;
        let answers = via == Via::Repair && self.path != ArrivalPath::Written;
        if answers {
            self.counters.repairs_received.increment();
            match self.path {
                ArrivalPath::Nack => self.counters.nack_link_repairs_received.increment(),
                ArrivalPath::Read => self.counters.read_repairs_received.increment(),
                ArrivalPath::Other | ArrivalPath::Written => {}
            }
        } else if via == Via::Repair {
            self.counters.inbox_received.increment();
        } else if repaired_copy {
            self.counters.multicast_repairs_received.increment();
        }
        let mut held = Self::held(now, via, datagram);
        let window_end = self.reassembly.window_end();
        if sequence >= window_end.plus(planted(Bug::WindowOffByOne).into()) {
            if self.config.delivery != Delivery::Arrival {
                self.note_sent(sequence, now, Origin::Live);
                // It is not held, but it tells what all up to it cost.
                let after = header.first_record.plus(header.count.into());
                self.reassembly.set_anchor(sequence.next(), after);
                return self.counters.window_full_dropped.increment();
            }
            // Nothing is held up: what falls out of the window is given up instead.
            self.note_sent(sequence.previous(), now, Origin::Live);
            let last = sequence.minus(self.reassembly.window().span());
            self.lose(
                SequenceRange {
                    first: Sequence(0),
                    last,
                },
                LossCause::Window,
            );
            self.reassembly.advance(&self.counters, on);
        }
        if sequence > self.highest_seen {
            self.note_sent(sequence.previous(), now, Origin::Live);
            self.highest_seen = sequence;
            self.note_inbox_first();
        } else if let Some((gap, resolved)) = self.gaps.fill(sequence) {
            self.note_inbox_first();
            if answers {
                self.answered[answered_by(&gap)] = Some((now, sequence));
            }
            if gap.origin == Origin::Live {
                let times = 1 + u64::from(planted(Bug::RecoveryCountedTwice));
                self.counters.missing_recovered.add(times);
                // At least one nanosecond: zero says that it was never missing.
                held.missing_for = now.since(gap.found_at).max(Nanos(1));
            } else {
                self.counters.replay_received.increment();
            }
            // Later than when it would be asked for again: one of us was stopped meanwhile.
            if gap.rtt_sample_valid
                && !gap.refused
                && now <= gap.next_request_at
                && gap.class == NackClass::Repair
                && (repaired_copy || answers)
            {
                let rtt = now.since(gap.last_request_at);
                match gap.rung {
                    Rung::Nack => self.rc.measured(rtt),
                    Rung::Repair => self.nack.measured(rtt),
                    Rung::Read { again: false } => self.read.measured(rtt),
                    // Whose answer it is nobody knows.
                    Rung::Fallback | Rung::Read { .. } | Rung::Torn { .. } => {}
                }
            }
            let given_up = match self.path {
                ArrivalPath::Read => !matches!(gap.rung, Rung::Read { .. }),
                _ => gap.rung == Rung::Fallback,
            };
            if given_up {
                self.note_late(now);
            }
            self.note_outcome(resolved, now);
        } else if !(planted(Bug::DuplicateDelivered)
            || planted(Bug::SecondLineDelivered) && via == Via::Line(LineId(1)))
        {
            return self.process_duplicate(&held, datagram, on);
        }

        if header.kind == Kind::End {
            if via == Via::Repair {
                self.end_at = Some(sequence);
            } else {
                self.end_heard = Some(sequence);
                self.query_status_soon(now);
            }
        }
        if datagram.bytes().len() > self.reassembly.window().slot_len() {
            // Longer than the slot size of WELCOME: no repair will bring anything else.
            self.counters.malformed_dropped.increment();
            self.reassembly
                .lose(SequenceRange::one(sequence), LossCause::Unreadable);
            self.reassembly.advance(&self.counters, on);
        } else {
            self.reassembly.offer(datagram, held, &self.counters, on);
        }
        let delivered = self.config.delivery == Delivery::Arrival;
        if self
            .beginning
            .is_some_and(|at| delivered || at != self.reassembly.next())
        {
            self.beginning = None;
        }
    }

    /// What came was given up, or had come otherwise: that rung needs more time.
    fn note_late(&mut self, now: Nanos) {
        match self.path {
            ArrivalPath::Nack if self.rc_lateness.is_first_late_reply(now) => self.rc.late(),
            ArrivalPath::Read if self.read_lateness.is_first_late_reply(now) => self.read.late(),
            _ => {}
        }
    }

    /// A datagram that is not missing: a duplicate, one that comes too late, or an impostor's.
    #[cold]
    fn process_duplicate(&mut self, held: &Held, datagram: &Datagram<'_>, on: &mut impl Deliver) {
        let sequence = held.sequence;
        self.note_late(held.received_at);
        let seen = self.reassembly.window().seen(sequence);
        match seen.map(|(seen, delivered)| (*seen, delivered)) {
            Some((seen, delivered)) if seen.crc != held.crc => {
                self.counters.fencing_violations.increment();
                let decided = held.via == Via::Repair;
                if decided && !delivered && !planted(Bug::DecidingCopyIgnored) {
                    self.reassembly.replace_waiting(*held, datagram.bytes());
                } else if !decided {
                    self.contest(sequence);
                }
                let wrong_one_delivered = decided && delivered;
                if wrong_one_delivered {
                    self.counters.fenced_records.add(seen.count.into());
                    self.reassembly
                        .tell_fenced(held, datagram, &self.counters, on);
                }
                self.events.push_back(Event::FencingViolation {
                    sequence,
                    wrong_one_delivered,
                });
            }
            Some(_) => self.counters.duplicates.increment(),
            // Not remembered: declared lost lately, or longer ago than the window remembers.
            None if planted(Bug::LostAndDelivered) => {
                self.reassembly.offer(datagram, *held, &self.counters, on);
            }
            None if sequence.plus(self.reassembly.window().span()) > self.reassembly.next() => {
                self.counters.late_dropped.increment();
            }
            None => self.counters.duplicates.increment(),
        }
        if held.via == Via::Repair {
            self.reassembly.confirm(sequence);
        }
    }

    #[cold]
    fn reject_epoch(&mut self, epoch: Epoch, now: Nanos) {
        if epoch <= self.epoch {
            self.counters.old_epoch_dropped.increment();
        } else {
            self.counters.unknown_epoch_dropped.increment();
            if planted(Bug::StrayEpochBelieved) {
                self.epoch = epoch;
            }
            self.query_status_soon(now);
        }
    }

    /// Notes that everything up to `last` has been sent: what was not heard of is missing.
    pub(crate) fn note_sent(&mut self, last: Sequence, now: Nanos, origin: Origin) {
        if planted(Bug::BackwardJumpBelieved) {
            self.highest_seen = self.highest_seen.min(last);
        }
        let Some(range) = SequenceRange::new(self.highest_seen.next(), last) else {
            return;
        };
        if last <= self.highest_seen {
            return;
        }
        self.highest_seen = last;
        let burst_max = u64::from(self.config.burst_max);
        let too_big = range.len() > burst_max;
        let class = if too_big || origin == Origin::History {
            NackClass::Replay
        } else {
            NackClass::Repair
        };
        if origin == Origin::Live {
            self.counters.missing_datagrams.add(range.len());
            self.counters.gaps.increment();
        } else {
            self.counters.replay_requested.add(range.len());
        }
        let grace = Nanos::from_us(self.config.reorder_grace_us.into());
        let hold_off = self.nack.first();
        let is_scout = self.nack.holds_off() && hold_off == Nanos::ZERO;
        let mut next_request_at = now.after(grace).after(hold_off);
        if planted(Bug::FirstQuestionLate) {
            next_request_at = next_request_at.after(Nanos::from_us(50));
        }
        // What lies beyond the window can't be asked for yet and may be one run.
        let joins = range.first >= self.reassembly.window_end();
        let at = next_request_at;
        let first = FirstRequest { at, is_scout };
        self.gaps.found(range, now, first, class, origin, joins);
        if self.gaps.last_len() > burst_max {
            self.gaps.replay_last();
        }
        if too_big && origin == Origin::Live && !self.config.delivery.waits_for_repair() {
            // Who asked for low latency would rather lose the burst than replay it.
            self.lose(range, LossCause::Burst);
        }
    }

    /// How long a line may be silent while the other is heard.
    fn line_silence(&self) -> Nanos {
        let least = Nanos::from_us(self.config.line_silence_us.into());
        self.liveness.interval().times(3).max(least)
    }

    /// How far a datagram may leap before the repair connection has to confirm it: the ring, or
    /// what would be given up at once.
    fn leap_max(&self) -> u64 {
        match self.config.delivery {
            delivery if delivery.waits_for_repair() => self.slots,
            _ => self.slots.min(self.config.burst_max.into()),
        }
    }
}

/// A ring of another shape than a publisher can make is never READ.
pub(crate) fn geometry_of(slots: u64, slot_len: usize) -> Option<Geometry> {
    let slot_len = u32::try_from(slot_len).ok()?;
    Geometry::new(slot_len, slots).ok()
}

/// Every sequence there is.
pub(crate) const ALL: SequenceRange = SequenceRange {
    first: Sequence(0),
    last: Sequence(u64::MAX),
};
/// The longest interval between heartbeats that is believed: the publisher's own bound.
const INTERVAL_MAX: Nanos = Nanos::from_secs(10);
const REJOIN_EVERY: Nanos = Nanos::from_ms(200);
