//! Arbitration: the packets of a source's lines in, each message once and in the venue's order out.
//!
//! An [`Arbiter`] does no I/O, reads no clock and has no thread: each call brings the time. Messages
//! are compared by sequence, so lines may pack them differently.
//!
//! - A packet beyond the next message waits, within [`Holding`]'s limits.
//! - A missing message is lost when every line has passed it, or when the wait is over. A line that
//!   falls silent is not waited for.
//! - A message that was delivered before is a duplicate; a message that was passed over is late.
//! - The first packet may have any sequence: messages before it are no loss, unless
//!   `expect_from_one`.
//! - A source begins with a packet of messages, or with two heartbeats of one session.
//! - Another session, or a sequence far ahead, is followed once it is confirmed.
//! - Sequences are never reused in a session. A venue that restarts its count says so by messages that
//!   continue repeated heartbeats below the next sequence, or by the time at which it sent them. After a
//!   resumption, packets below the next sequence say so once the slower lines can't be the cause.
//! - A session that has ended goes on only where two packets say so.
//! - A session that begins with sequence 0 comes from a converter that numbers nothing. Its packets
//!   are numbered in order of arrival.

mod beginning;
mod candidate;
mod contents;
mod doubt;
mod ended;
mod far;
mod heartbeats;
mod holding;
mod line;
mod message_blocks;
mod observed;
mod packet_format;
mod protocol;
mod queue;
mod ranges;
mod recent;
mod refused;
mod restart;

use std::net::Ipv4Addr;

use tickcast_reliability::types::{Nanos, SourcePosition};

use self::candidate::Candidate;
use self::far::Far;
use self::heartbeats::Heartbeats;
pub use self::holding::{Holding, Lines};
use self::line::Line;
pub use self::message_blocks::MessageBlocks;
pub(crate) use self::packet_format::{MessageNumber, PacketFormat};
pub use self::protocol::{Blocks, Listen, PacketHead, PacketKind, Protocol};
use self::protocol::{count, trails};
use self::queue::{Held, Queue};
use self::ranges::Ranges;
use self::recent::Recent;
use self::refused::{refusal, report_fault, report_gap, unread, with_origin};
use self::restart::{Claim, Restart};
use crate::planted::{ArbiterBug, planted};
use crate::source::{Incident, Packet, PacketOrigin, ResumePoint};

/// Ranges of lost messages remembered at most.
const MISSED_MAX: usize = 4096;

/// Merges the lines of one source.
#[derive(Clone, Debug)]
pub struct Arbiter<P> {
    protocol: P,
    holding: Holding,
    expect_from_one: bool,
    lines: Vec<Line>,
    /// Whether packets under the same numbers are compared.
    compares: bool,
    /// The latest time of a call.
    now: Nanos,
    /// Whether nothing waits and nothing is known to be missing.
    is_plain: bool,
    session: Option<u128>,
    /// The session before, and the next sequence there.
    previous: Option<(u128, u64)>,
    ordinal: u16,
    /// The next sequence to deliver.
    next: u64,
    /// Messages below this sequence have been sent.
    announced: u64,
    /// Messages that were passed over.
    missed: Ranges,
    /// Whether the messages before the first packet are no loss.
    is_joining: bool,
    /// Whether no packet since the [resumption](Self::resume) shows how far the session has come.
    is_resuming: bool,
    /// When the first packet since then came that lies before the next message.
    behind_since: Option<Nanos>,
    /// The message that is missing, and since when.
    gap: Option<(u64, Nanos)>,
    queue: Queue,
    candidate: Option<Candidate>,
    heartbeats: Heartbeats,
    far: Far,
    recent: Recent,
    newest_sent_at: u64,
    /// Packets sent shortly before this time are of the run before, which was left at this sequence.
    run_before: (u64, u64),
    claim: Claim,
    /// Heartbeats of sessions that were not followed when they came, while no session was open.
    other_heartbeats: u64,
    is_unnumbered: bool,
    end_at: Option<u64>,
    has_ended: bool,
}

/// A packet in the arbiter's terms.
#[derive(Clone, Copy)]
struct Arrived<'a> {
    line: usize,
    sender: Option<Ipv4Addr>,
    received_at: Nanos,
    payload: &'a [u8],
}

impl Arrived<'_> {
    /// Returns origin and receive time.
    const fn of_packet(&self) -> (PacketOrigin, Nanos) {
        let origin = PacketOrigin {
            line: self.line as u8,
            sender: self.sender,
        };
        (origin, self.received_at)
    }
}

impl<P: Protocol> Arbiter<P> {
    /// Creates an arbiter that has seen nothing. With `expect_from_one`, messages before the first
    /// packet are lost; without, the source is joined there.
    #[must_use]
    pub fn new(protocol: P, lines: Lines, expect_from_one: bool) -> Self {
        Self {
            protocol,
            holding: lines.holding,
            expect_from_one,
            // Clones of a line would have no memory yet.
            lines: (0..lines.count.max(1)).map(|_| Line::new()).collect(),
            compares: lines.count > 1 || lines.holding.compares_alone,
            now: Nanos::ZERO,
            is_plain: false,
            session: None,
            previous: None,
            ordinal: 0,
            next: 0,
            announced: 0,
            missed: Ranges::new(MISSED_MAX),
            is_joining: false,
            is_resuming: false,
            behind_since: None,
            gap: None,
            queue: Queue::new(lines.holding.packets_max),
            candidate: None,
            heartbeats: Heartbeats::default(),
            far: Far::default(),
            recent: Recent::default(),
            newest_sent_at: 0,
            run_before: (0, 0),
            claim: Claim::default(),
            other_heartbeats: 0,
            is_unnumbered: false,
            end_at: None,
            has_ended: false,
        }
    }

    /// Continues at `next`, before which everything was delivered, in a session with this note. Messages
    /// from there to the first packet are a gap, of unknown size where the session is over by then.
    /// Without a session, the first packet begins another one.
    pub fn resume(&mut self, session: Option<(u128, P::Note)>, at: &ResumePoint) {
        if let Some((session, note)) = session {
            self.protocol.follow(&note);
            self.session = Some(session);
        }
        (self.ordinal, self.next) = (at.next.ordinal(), at.next.sequence());
        (self.end_at, self.newest_sent_at) = (at.end_at, at.sent_at);
        // The venue's own end leaves nothing to be heard of the session.
        self.has_ended = at.is_over();
        self.is_resuming = at.end_at.is_none();
        self.announced = at.end_at.unwrap_or(0);
    }

    /// Takes one packet of a line. Never panics, whatever the bytes.
    #[inline(always)]
    pub fn packet(
        &mut self,
        line: usize,
        now: Nanos,
        packet: Packet<'_>,
        out: &mut impl Listen<P>,
    ) {
        let (head, blocks) = match self.protocol.read(packet.payload) {
            Ok(read) => read,
            Err(incident) => {
                let of_packet = (self.origin(line), packet.received_at);
                self.poll(now, out);
                return out.incident(with_origin(of_packet, incident));
            }
        };
        if head.first > SourcePosition::SEQUENCE_MAX - head.count {
            let reason = "the sequence is beyond 48 bits";
            let incident = Incident::Malformed { reason };
            let of_packet = (self.origin(line), packet.received_at);
            let is_own = self.may_follow(head.session);
            return out.incident(unread(of_packet, incident, is_own));
        }
        self.now = self.now.max(now);
        let line = line.min(self.lines.len() - 1);
        if self.is_plain
            && self.session == Some(head.session)
            && head.first == self.next
            && head.count > 0
            && self.are_believed(blocks.clone())
        {
            self.claim.void();
            self.newest_sent_at = self.newest_sent_at.max(head.sent_at);
            self.heard(line, &head, out);
            self.remember(self.now, head.first, packet.payload);
            return self.deliver(line, head.first, blocks, packet.received_at, head.note, out);
        }
        let arrived = Arrived {
            line,
            sender: self.lines[line].sender,
            received_at: packet.received_at,
            payload: packet.payload,
        };
        self.consider(arrived, head, blocks, out);
    }

    /// Names the sender of a line's next packets, for [`Incident::Foreign`].
    pub fn set_sender(&mut self, line: usize, sender: Ipv4Addr) {
        let line = line.min(self.lines.len() - 1);
        self.lines[line].sender = Some(sender);
    }

    /// Lets time pass: releases what has waited long enough.
    pub fn poll(&mut self, now: Nanos, out: &mut impl Listen<P>) {
        self.now = self.now.max(now);
        if self.is_waiting() {
            self.settle(false, out);
        }
    }

    /// Ends the input: releases everything that waits, and declares what is missing.
    pub fn finish(&mut self, out: &mut impl Listen<P>) {
        if self.session.is_some() && !planted(ArbiterBug::EndForgets) {
            self.confirm_rerun(out);
            self.settle(true, out);
            self.settle_heartbeats(true, out);
            self.drop_behind_end(out);
        }
        for line in &mut self.lines {
            line.owe(self.next);
        }
    }

    #[cold]
    #[inline(never)]
    fn consider(
        &mut self,
        arrived: Arrived<'_>,
        head: PacketHead<P::Note>,
        blocks: P::Blocks<'_>,
        out: &mut impl Listen<P>,
    ) {
        // A false count must not stand for messages that another packet brings.
        let mut walked = blocks.clone();
        let held = count(walked.by_ref());
        // A header without messages says where the session is, which bytes behind it make doubtful.
        if held == 0 && (head.count > 0 || walked.fault().is_some()) {
            self.poll(self.now, out);
            let is_own = self.may_follow(head.session);
            return out.incident(unread(arrived.of_packet(), refusal(blocks), is_own));
        }
        let head = PacketHead {
            count: held,
            ..head
        };
        match self.session {
            Some(session) if session == head.session => self.own(arrived, head, blocks, out),
            Some(_) => self.other_session(arrived, &head, blocks, out),
            None if head.count == 0 => self.early_heartbeat(arrived, head, blocks, out),
            None if self.may_begin(blocks.clone()) => self.begin(arrived, head, blocks, out),
            None => self.refuse(arrived.of_packet(), head.count, refusal(blocks), out),
        }
    }

    /// Begins the source with a packet. Its session's heartbeat before that says where it is joined.
    fn begin(
        &mut self,
        arrived: Arrived<'_>,
        head: PacketHead<P::Note>,
        blocks: P::Blocks<'_>,
        out: &mut impl Listen<P>,
    ) {
        self.protocol.follow(&head.note);
        self.session = Some(head.session);
        if self.is_resuming {
            self.report_unknown_end(out);
            self.begin_run(1);
            out.incident(Incident::SessionChange {
                next: self.next_position(),
            });
        }
        self.is_unnumbered = head.first == 0;
        let is_numbered = !self.expect_from_one && !self.is_unnumbered;
        self.is_joining = is_numbered && !planted(ArbiterBug::JoinIsGap);
        self.next = 1;
        if let Some((line, joined_at)) = self.joined_at(head.session) {
            self.lines[line].stats.packets += 1;
            self.announced = joined_at;
            self.is_joining &= joined_at != 1;
        }
        self.own(arrived, head, blocks, out);
    }

    /// Returns the origin of a line's current packet.
    #[cold]
    fn origin(&self, line: usize) -> PacketOrigin {
        let line = line.min(self.lines.len() - 1);
        PacketOrigin {
            line: line as u8,
            sender: self.lines[line].sender,
        }
    }

    /// Drops a packet that is not taken, and counts its messages.
    fn refuse(
        &mut self,
        of_packet: (PacketOrigin, Nanos),
        messages: u64,
        reason: Incident,
        out: &mut impl Listen<P>,
    ) {
        self.lines[usize::from(of_packet.0.line)].stats.foreign += messages;
        out.incident(with_origin(of_packet, reason));
    }

    /// Takes a packet of the current session.
    fn own(
        &mut self,
        arrived: Arrived<'_>,
        mut head: PacketHead<P::Note>,
        blocks: P::Blocks<'_>,
        out: &mut impl Listen<P>,
    ) {
        if head.first == 0 && self.is_unnumbered {
            head.first = self.next;
        }
        let (began_at, left_at) = self.run_before;
        if trails(head.sent_at, began_at) {
            return self.left_behind(arrived.line, &head, left_at, out);
        }
        if head.first < self.next {
            match self.restarts(arrived, &head, blocks.clone()) {
                Restart::No => {}
                Restart::Perhaps => return self.hold_rerun(arrived, &head, out),
                Restart::Certain => {
                    self.leave_run(arrived.line, &head, out);
                    // That may have accepted a candidate.
                    if self.session != Some(head.session) {
                        return self.other_session(arrived, &head, blocks, out);
                    }
                }
            }
        }
        let (first, end) = (head.first, head.first + head.count);
        if self.has_ended && head.count > 0 && end > self.next {
            return self.hold_behind_end(arrived, &head, out);
        }
        let is_believed = head.count == 0 && planted(ArbiterBug::FarHeartbeatBelieved);
        if self.is_far(first) && !is_believed {
            return self.hold_far(arrived, &head, out);
        }
        let is_news = head.count > 0 && end > self.next;
        if is_news || first >= self.next {
            self.is_resuming = false;
            self.claim.void();
            self.void_rerun(out);
            self.newest_sent_at = self.newest_sent_at.max(head.sent_at);
        }
        self.refute(arrived.line, is_news);
        if is_news {
            self.settle_heartbeats(false, out);
        }
        if end >= self.next {
            let messages = (first, end);
            self.far
                .void(arrived.line, messages, self.now, &self.holding);
        }
        self.heard(arrived.line, &head, out);
        self.lines[arrived.line].mark(first, self.next, self.now);
        if head.count == 0 {
            if !planted(ArbiterBug::HeartbeatIgnored) {
                self.announced = self.announced.max(first);
            }
            self.is_joining &= first > self.next;
            if head.kind == PacketKind::End {
                self.end_at = Some(first);
            }
        } else if end <= self.next || (first < self.next && planted(ArbiterBug::OverlapDropped)) {
            report_fault(blocks.clone(), out);
            self.compare(first, arrived.payload, blocks, out);
            self.old(arrived.line, first, end.min(self.next), out);
        } else if first <= self.next {
            self.is_joining = false;
            if !self.are_believed(blocks.clone()) {
                let held = self.held(arrived, first, end);
                self.release(held, out);
                return self.settle(false, out);
            }
            if first < self.next {
                self.compare(first, arrived.payload, blocks.clone(), out);
                self.old(arrived.line, first, self.next, out);
            }
            self.remember(self.now, first, arrived.payload);
            let (line, received_at) = (arrived.line, arrived.received_at);
            self.deliver(line, first, blocks, received_at, head.note, out);
        } else if let Some(held) = self.queue.covers(first, end)
            && !self.is_better(&blocks, held)
        {
            report_fault(blocks.clone(), out);
            let (at, held) = (held.arrived_at, (held.first, &held.bytes[..]));
            let messages = self.differing(first, arrived.payload, blocks, |_| Some(held));
            self.conflict(messages, out);
            self.duplicate(arrived.line, head.count, Some(at), out);
        } else if !planted(ArbiterBug::EarlyDropped) {
            let held = self.held(arrived, first, end);
            self.queue.insert(held);
        }
        self.settle(false, out);
    }

    fn held(&mut self, arrived: Arrived<'_>, first: u64, end: u64) -> Held {
        Held {
            line: arrived.line,
            sender: arrived.sender,
            first,
            end,
            arrived_at: self.now,
            received_at: arrived.received_at,
            bytes: self.queue.copy(arrived.payload),
        }
    }

    /// Records a packet of the source on a line.
    #[inline(always)]
    fn heard(&mut self, line: usize, head: &PacketHead<P::Note>, out: &mut impl Listen<P>) {
        let end = head.first + head.count;
        let brought = &mut self.lines[line];
        brought.stats.packets += 1;
        if head.count > 0 {
            brought.advance(head.first, end);
        }
        if self.has_several_lines() {
            let end = if head.count > 0 { end } else { 0 };
            self.heard_beside_others(line, end, out);
        }
    }

    /// Records on all lines that one of several sent a packet, with messages up to `end`.
    #[inline(never)]
    fn heard_beside_others(&mut self, line: usize, end: u64, out: &mut impl Listen<P>) {
        if self.lines[line].heard() {
            out.incident(Incident::LineBack { line: line as u8 });
        }
        for (n, other) in self.lines.iter_mut().enumerate() {
            if n != line && other.other_heard(end, self.now, &self.holding) {
                out.incident(Incident::LineStopped { line: n as u8 });
            }
        }
    }

    /// Passes on the new messages of a packet that begins at the next one or before.
    ///
    /// This is the only copy of the listener's code, so that the compiler inlines all of that. The
    /// arguments are in registers.
    #[inline(never)]
    fn deliver(
        &mut self,
        line: usize,
        first: u64,
        mut blocks: P::Blocks<'_>,
        received_at: Nanos,
        note: P::Note,
        out: &mut impl Listen<P>,
    ) {
        let next = self.next;
        let mut sequence = first;
        out.packet(received_at, &note);
        for message in blocks.by_ref() {
            if sequence >= next || planted(ArbiterBug::OverlapDelivered) {
                out.message(SourcePosition::new(self.ordinal, sequence), message);
            }
            sequence += 1;
        }
        self.next = next.max(sequence);
        self.lines[line].stats.first += self.next - next;
        if let Some(reason) = blocks.fault() {
            self.cut(line);
            out.incident(Incident::Malformed { reason });
        }
    }

    /// Corrects a line's place behind a packet that is damaged: the fast path believed the header's count.
    // The function takes no listener: one that escapes to a call is kept in memory for each message.
    #[cold]
    fn cut(&mut self, line: usize) {
        if self.is_plain {
            self.lines[line].cut(self.next);
        }
    }

    const fn has_several_lines(&self) -> bool {
        self.lines.len() != 1
    }

    /// Remembers a packet that brings the next message, to compare the lines.
    #[inline(always)]
    fn remember(&mut self, arrived_at: Nanos, first: u64, packet: &[u8]) {
        if self.compares {
            self.recent.push(self.next, first, arrived_at, packet);
        }
    }

    /// Takes messages that lie before the next one.
    fn old(&mut self, line: usize, first: u64, end: u64, out: &mut impl Listen<P>) {
        let late = match self.missed.take(first, end).messages {
            _ if planted(ArbiterBug::LateIsDuplicate) => 0,
            late => late,
        };
        self.late(line, late, out);
        let at = self.recent.find(first);
        self.duplicate(line, end - first - late, at, out);
    }

    /// Takes a packet of messages that the source has left: those from `left_at` on were passed over.
    fn left_behind(
        &mut self,
        line: usize,
        head: &PacketHead<P::Note>,
        left_at: u64,
        out: &mut impl Listen<P>,
    ) {
        let late = head
            .count
            .min((head.first + head.count).saturating_sub(left_at));
        self.late(line, late, out);
        self.duplicate(line, head.count - late, None, out);
    }

    fn late(&mut self, line: usize, messages: u64, out: &mut impl Listen<P>) {
        if messages > 0 {
            self.lines[line].stats.late += messages;
            out.incident(Incident::Late { messages });
        }
    }

    fn duplicate(
        &mut self,
        line: usize,
        messages: u64,
        first_at: Option<Nanos>,
        out: &mut impl Listen<P>,
    ) {
        if messages == 0 {
            return;
        }
        if planted(ArbiterBug::DuplicateIsFirst) {
            self.lines[line].stats.first += messages;
        } else {
            self.lines[line].stats.duplicates += messages;
        }
        if let Some(at) = first_at {
            self.lines[line].skewed(self.now.since(at));
        }
        out.incident(Incident::Duplicate { messages });
    }

    /// Releases what is due (`is_over`: everything), and goes on far ahead or in another session.
    fn settle(&mut self, is_over: bool, out: &mut impl Listen<P>) {
        self.settle_rerun(out);
        self.release_due(is_over, out);
        self.settle_far(is_over, out);
        self.settle_candidate(is_over, out);
        self.is_plain = self.gap.is_none()
            && self.candidate.is_none()
            && self.heartbeats.is_empty()
            && self.far.is_empty()
            && self.queue.rerun.is_empty()
            && !self.is_joining
            && !self.is_resuming
            && !self.has_ended;
    }

    /// Releases what follows, and closes the gap before it when that is due (`is_over`: at once).
    fn release_due(&mut self, is_over: bool, out: &mut impl Listen<P>) {
        let mut gap: Option<(SourcePosition, u64)> = None;
        loop {
            if let Some(held) = self.queue.pop(self.next) {
                report_gap(&mut gap, out);
                self.release(held, out);
                continue;
            }
            if self.settle_doubt(out) {
                continue;
            }
            let Some(end) = self.gap_end() else {
                self.gap = None;
                break;
            };
            if self.gap.is_none_or(|(next, _)| next != self.next) {
                // The packet behind this gap may have waited behind others.
                let doubtful = self.queue.doubtful.as_ref().map(|held| held.arrived_at);
                let since = doubtful.or(self.queue.front_since()).unwrap_or(self.now);
                self.gap = Some((self.next, since));
            }
            if !is_over && !self.is_closed(end) {
                break;
            }
            if self.queue.doubtful.is_some() {
                report_gap(&mut gap, out);
                self.release_doubtful(out);
                continue;
            }
            if !self.is_joining && !planted(ArbiterBug::GapUnreported) {
                let gap = gap.get_or_insert((self.next_position(), 0));
                gap.1 += end - self.next - u64::from(planted(ArbiterBug::GapOneShort));
            }
            self.is_joining = false;
            self.missed.push(self.next, end, 0);
            self.next = end;
        }
        report_gap(&mut gap, out);
        if !self.has_ended && self.end_at.is_some_and(|end| self.next >= end) {
            self.has_ended = true;
            out.incident(Incident::EndOfSession);
        }
    }

    /// Returns one beyond the messages that are missing now, if any are.
    fn gap_end(&self) -> Option<u64> {
        if self.queue.doubtful.is_some() {
            return Some(self.next + 1);
        }
        let announced = (self.announced > self.next).then_some(self.announced);
        match (self.queue.front(), announced) {
            (Some(held), Some(announced)) => Some(held.min(announced)),
            (held, announced) => held.or(announced),
        }
    }

    /// Returns whether the messages up to `end` are not waited for any more.
    fn is_closed(&mut self, end: u64) -> bool {
        let (now, holding) = (self.now, &self.holding);
        let since = self.gap.map_or(now, |(_, since)| since);
        if self.queue.exceeds(holding.packets_max, holding.bytes_max) {
            return !planted(ArbiterBug::HoldUnbounded);
        }
        if planted(ArbiterBug::WaitsForever) {
            return false;
        }
        if now >= since.after(holding.wait())
            || (self.is_joining && planted(ArbiterBug::JoinedAtOnce))
        {
            return true;
        }
        if planted(ArbiterBug::OneLineSuffices) {
            let mut lines = self.lines.iter();
            return lines.any(|line| line.has_passed(end, now, holding));
        }
        let next = self.next;
        let doubtful = self.queue.doubtful.as_ref().map(|held| held.line);
        self.lines.iter_mut().enumerate().all(|(n, line)| {
            line.forget_marks(next);
            let is_done = doubtful == Some(n) || line.has_passed(end, now, holding);
            is_done || line.lags(now, holding)
        })
    }

    /// Starts to count anew, as a packet says. Messages before it that were taken for old ones are a gap.
    fn restart(&mut self, head: &PacketHead<P::Note>, out: &mut impl Listen<P>) {
        let (left_at, claim) = (self.next, self.claim);
        self.report_unknown_end(out);
        self.drop_far(out);
        self.begin_run(1);
        if head.count == 0 {
            // A heartbeat is the first packet of its run; messages may have overtaken others.
            self.run_before = (head.sent_at, left_at);
        } else if let Some(next) = claim.continued(head.first) {
            self.announced = next;
        }
        let next = self.next_position();
        out.incident(Incident::SequenceReset { next });
    }

    /// Reports that a run which was resumed went on unheard, up to an unknown message.
    fn report_unknown_end(&mut self, out: &mut impl Listen<P>) {
        if std::mem::take(&mut self.is_resuming) {
            let (from, missing) = (self.next_position(), u64::MAX);
            out.incident(Incident::Gap { from, missing });
        }
    }

    /// Goes on with a session that had ended: the end was none.
    fn reopen(&mut self) {
        (self.end_at, self.has_ended) = (None, false);
    }

    /// Begins the source in another session, because none of its messages was delivered yet.
    fn begin_elsewhere(&mut self, session: u128) {
        self.session = Some(session);
        self.announced = 0;
        self.end_at = None;
    }

    /// Starts to count anew at `next`, with another ordinal.
    fn begin_run(&mut self, next: u64) {
        for line in &mut self.lines {
            line.end_session(self.next);
        }
        self.ordinal = self.ordinal.saturating_add(1);
        self.next = next;
        self.announced = 0;
        self.missed.clear();
        self.recent.clear();
        self.gap = None;
        self.run_before = (0, 0);
        self.claim = Claim::default();
        self.is_joining = false;
        self.end_at = None;
        self.has_ended = false;
    }
}
