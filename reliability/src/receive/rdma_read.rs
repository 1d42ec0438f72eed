//! READ of the publisher's ring: the rung of the repair ladder that costs the publisher's CPU
//! nothing (docs/PROTOCOL.md §6.6).
//!
//! A READ races with whoever writes the ring, so what it brings is believed only when the slot holds
//! the wanted sequence of our epoch and its CRC fits. A slot that was just being written is READ once
//! more; one that holds a later sequence says how far the ring has moved on.

use serde::{Deserialize, Serialize};

use crate::control::{
    CURSOR_LEN, Cursor, CursorStep, Grant, REPORT_OFFSET, REPORT_WORDS, RemoteAccess, Report,
};
use crate::delivery::{Deliver, LossCause, Via};
use crate::planted::{Bug, planted};
use crate::receive::Receiver;
use crate::receive::gaps::{Rung, Visit};
use crate::receive::path::ArrivalPath;
use crate::record::AlignedCopy;
use crate::ring::{CONTROL_PAGE_LEN, Geometry, LAYOUT_VERSION, RING_MAGIC, offset};
use crate::types::{Nanos, RecordNumber, Sequence, SequenceRange};
use crate::wire::{CrcVerdict, Datagram};

/// What is done in the publisher's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteOp {
    /// READ of the slots of these sequences, which stand in a row.
    Slots(SequenceRange),
    /// READ of the head of the control page.
    Page,
    /// The word is compared with 0, and swapped for this if that is what it is: a cursor is claimed.
    /// The word that was there comes back.
    Claim(u64),
    /// These words are written: a report. Nothing comes back.
    Report([u64; REPORT_WORDS]),
}

impl RemoteOp {
    /// Whether it is a WRITE: those have places of their own.
    pub(crate) const fn writes(&self) -> bool {
        matches!(self, Self::Report(_))
    }
}

/// What the READ connection takes now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadRoom {
    /// Further READs at once.
    pub reads: u32,
    /// Bytes of one at most.
    pub len_max: u32,
    /// When the oldest of those under way was begun.
    pub oldest_at: Option<Nanos>,
}

/// A ring that may be READ.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Readable {
    pub(crate) grant: Grant,
    geometry: Geometry,
    /// Bytes of the READs begun since the first grant of this attempt.
    used: u64,
    /// How many bytes could be READ when tokens were granted last.
    span: u64,
    /// Since when there are no tokens for what is missing.
    dry_since: Option<Nanos>,
    /// When the publisher was last seen alive, by its own clock on the control page.
    heartbeat_at: u64,
    /// Our cursor, where there is one.
    pub(crate) cursor: Option<Cursor>,
}

/// What one READ can bring of a gap now.
pub(crate) enum ReadPlan {
    /// So many of its first sequences.
    Slots(u64),
    /// Nothing until this time, unless something happens before.
    Wait(Nanos),
    /// Nothing; ask elsewhere.
    Nothing,
}

impl Readable {
    /// How much of a gap can be READ at once; it is taken from `room`. The first retry of a READ is as
    /// long as room is waited for, that of TCP as long as tokens are.
    pub(crate) fn plan_read(
        &mut self,
        now: Nanos,
        (read_retry, tcp_retry): (Nanos, Nanos),
        range: SequenceRange,
        room: &mut ReadRoom,
    ) -> ReadPlan {
        let slot_len = self.geometry.slot_len() as u64;
        if u64::from(room.len_max) < slot_len {
            return ReadPlan::Nothing;
        }
        let wait_until = |until| match now < until {
            true => ReadPlan::Wait(until),
            false => ReadPlan::Nothing,
        };
        if room.reads == 0 {
            // One that is done makes room, but they are done in order, and the first may be late.
            return wait_until(room.oldest_at.unwrap_or(now).after(read_retry));
        }
        let left = self.left();
        if left < slot_len && !planted(Bug::ReadTokensIgnored) {
            // Who never had any waits for none.
            if self.grant.tokens < slot_len {
                return ReadPlan::Nothing;
            }
            let since = *self.dry_since.get_or_insert(now);
            return wait_until(since.after(tcp_retry));
        }
        self.dry_since = None;
        let mask = self.geometry.slots() - 1;
        let to_the_end = self.geometry.slots() - (range.first.0 & mask);
        let most = u64::from(room.len_max).min(left.max(slot_len)) / slot_len;
        let slots = range.len().min(to_the_end).min(most);
        room.reads -= 1;
        room.oldest_at.get_or_insert(now);
        self.used += slots * slot_len;
        ReadPlan::Slots(slots)
    }

    /// Whether it is time to ask for more tokens: half of what there was is used.
    pub(crate) const fn is_low(&self) -> bool {
        self.span == 0 || self.left() < self.span / 2
    }

    const fn left(&self) -> u64 {
        self.grant.tokens.saturating_sub(self.used)
    }

    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    /// Where this stands in what was granted: slots do not go round the ring. `None` for a cursor where
    /// there is none.
    pub(crate) fn place(&self, what: &RemoteOp) -> Option<RemoteAccess> {
        let cursor = self.cursor.as_ref().map(|cursor| cursor.at);
        let (of, offset, len) = match what {
            RemoteOp::Slots(range) => {
                let offset = self.geometry.slot_offset(range.first) as u64;
                let len = range.len() * self.geometry.slot_len() as u64;
                (self.grant.ring, offset, len)
            }
            RemoteOp::Page => (self.grant.ring, 0, PAGE_READ_LEN),
            RemoteOp::Claim(_) => (cursor?, 0, REPORT_OFFSET),
            RemoteOp::Report(_) => (cursor?, REPORT_OFFSET, CURSOR_LEN as u64 - REPORT_OFFSET),
        };
        Some(RemoteAccess {
            address: of.address + offset,
            len,
            key: of.key,
        })
    }
}

impl Receiver {
    /// The publisher lets its ring be READ, or more of it. What is no ring of ours is not used.
    pub(crate) fn handle_grant(&mut self, grant: &Grant) {
        let fits = |ring: &Geometry| ring.bytes() as u64 == grant.ring.len;
        let ours = self.geometry.filter(fits);
        let Some(geometry) = ours.filter(|_| grant.epoch == self.epoch) else {
            return;
        };
        self.read_wait = Nanos::ZERO;
        match &mut self.readable {
            Some(known) if known.grant.attempt == grant.attempt => {
                known.grant.tokens = known.grant.tokens.max(grant.tokens);
                if known.left() >= geometry.slot_len() as u64 {
                    known.dry_since = None;
                }
                known.span = known.left();
                known.cursor = known.cursor.take().or(grant.cursor.map(Cursor::new));
            }
            readable => {
                *readable = Some(Readable {
                    grant: *grant,
                    geometry,
                    used: 0,
                    span: grant.tokens,
                    dry_since: None,
                    heartbeat_at: 0,
                    cursor: grant.cursor.map(Cursor::new),
                });
                self.counters.read_links_up.increment();
            }
        }
    }

    /// What is to be done with our cursor, which is due: it is under way from here on.
    pub(crate) fn take_cursor_step(&mut self, now: Nanos) -> Option<CursorStep> {
        let (sequence, heard) = self.progress();
        let readable = self.readable.as_mut()?;
        let report = Report {
            number: 0,
            epoch: self.epoch,
            sequence,
            heard,
            lost_records: self.counters.lost_records.get(),
            read_bytes: readable.used,
        };
        Some(readable.cursor.as_mut()?.step(now, report))
    }

    /// When our cursor is to be claimed or written.
    pub(crate) fn cursor_due(&self) -> Nanos {
        let cursor = self.readable.as_ref().and_then(|it| it.cursor.as_ref());
        let every = Nanos::from_us(self.config.cursor_us.into());
        cursor.map_or(Nanos::MAX, |cursor| cursor.due_at(every))
    }

    /// Our cursor was claimed for this session, or it was another's: that is what stood there.
    pub(crate) fn handle_claimed(&mut self, session: u64, old: u64) {
        let cursor = self.readable.as_mut().and_then(|it| it.cursor.as_mut());
        match cursor.map(|cursor| cursor.claimed(session, old)) {
            Some(true) => self.counters.cursors_claimed.increment(),
            Some(false) => self.counters.cursors_foreign.increment(),
            None => {}
        }
    }

    /// The publisher's device has our report.
    pub(crate) fn handle_reported(&mut self) {
        if let Some(cursor) = self.readable.as_mut().and_then(|it| it.cursor.as_mut()) {
            cursor.reported();
            self.counters.cursor_reports.increment();
        }
    }

    /// Nothing can be READ any more: what was on its way is due on the next rung, at once. Nor is
    /// anything written to us.
    pub(crate) fn handle_read_down(&mut self, now: Nanos) {
        self.inbox = None;
        if self.readable.take().is_none() {
            return;
        }
        self.counters.read_links_down.increment();
        self.read_wait = Nanos::ZERO;
        self.leave_rung(now, |rung| {
            matches!(rung, Rung::Read { .. } | Rung::Torn { .. })
        });
    }

    /// A READ of the slots of `range` is done.
    pub(crate) fn handle_read_slots(
        &mut self,
        now: Nanos,
        range: SequenceRange,
        bytes: &[u8],
        aligned: &mut AlignedCopy,
        on: &mut impl Deliver,
    ) {
        let Some(geometry) = self.readable.as_ref().map(|readable| readable.geometry) else {
            return;
        };
        for (sequence, slot) in range.iter().zip(bytes.chunks_exact(geometry.slot_len())) {
            let slot = aligned.of(slot);
            let datagram = Datagram::parse(slot).ok().filter(|datagram| {
                let good = datagram.verdict() == CrcVerdict::Good;
                (good || planted(Bug::TornReadDelivered))
                    && self.is_of_our_line(datagram.header())
                    && datagram.header().channel == self.channel
            });
            let Some(datagram) = datagram else {
                self.read_torn(now, sequence);
                continue;
            };
            let found = datagram.header().sequence;
            if found == sequence || (planted(Bug::LappedReadDelivered) && found > sequence) {
                self.path = ArrivalPath::Read;
                self.handle_datagram(now, Via::Repair, &datagram, CrcVerdict::Good, on);
                self.path = ArrivalPath::Other;
            } else if found > sequence {
                self.read_lapped(now, found, geometry.slots(), on);
            } else {
                self.read_torn(now, sequence);
            }
        }
    }

    /// A slot holds a later sequence: the ring no longer holds what is a whole round before it.
    #[cold]
    fn read_lapped(&mut self, now: Nanos, found: Sequence, slots: u64, on: &mut impl Deliver) {
        let gone = found.minus(slots);
        self.counters.reads_lapped.increment();
        self.reassembly.note_floor(gone.next(), RecordNumber(0));
        if let Some(gone) = SequenceRange::new(Sequence::FIRST, gone) {
            self.lose(gone, LossCause::Window);
        }
        self.reassembly.advance(&self.counters, on);
        self.handle_timeout(now, on);
    }

    /// A slot was being written while it was READ, or is damaged: once more, then elsewhere.
    #[cold]
    fn read_torn(&mut self, now: Nanos, sequence: Sequence) {
        self.counters.reads_torn.increment();
        self.gaps.visit(SequenceRange::one(sequence), |gap| {
            if let Rung::Read { again } = gap.rung
                && gap.attempts > 0
            {
                (gap.rung, gap.next_request_at) = (Rung::Torn { again }, now);
            }
            Visit::Continue
        });
    }

    /// A READ of the control page is done: how far the publisher is, without its help. It is alive
    /// where its heartbeat has moved since the last look.
    pub(crate) fn handle_read_page(&mut self, now: Nanos, page: &[u8], on: &mut impl Deliver) {
        let word = |at: usize| {
            let word = page.get(at..).and_then(|rest| rest.first_chunk::<8>());
            word.map_or(0, |word| u64::from_le_bytes(*word))
        };
        let ours = word(offset::MAGIC) == RING_MAGIC
            && word(offset::LAYOUT) == LAYOUT_VERSION
            && word(offset::EPOCH) == self.epoch.0
            && word(offset::CHANNEL) == u64::from(self.channel.0);
        let Some(readable) = self.readable.as_mut().filter(|_| ours) else {
            return;
        };
        let heartbeat_at = word(offset::HEARTBEAT_AT);
        let before = std::mem::replace(&mut readable.heartbeat_at, heartbeat_at);
        let moved = before != 0 && heartbeat_at != before;
        // Each word is whole, but they are not of one time: none is put beside another.
        let fan_outs = (word(offset::FAN_OUTS) as usize).min(crate::ring::FAN_OUTS_MAX);
        let sent = (0..fan_outs).map(|it| word(offset::SENT + it * 8)).max();
        let sent = Sequence(sent.unwrap_or(0));
        let ahead = sent > self.highest_seen;
        self.counters.page_reads.increment();
        if (moved || ahead)
            && let Some(change) = self.liveness.heard_repair(ahead, now)
        {
            self.note_liveness(change, now);
        }
        if sent.since(self.highest_seen) > self.slots {
            // It lives, however far ahead; what it says of sequences is asked for.
            self.query_status_soon(now);
        } else if ahead && self.liveness.is_stale() {
            self.note_sent(sent, now, crate::receive::gaps::Origin::Live);
        }
        self.handle_timeout(now, on);
    }
}

/// Bytes of the control page that say how far a publisher is.
pub(crate) const PAGE_READ_LEN: u64 = (offset::SENT + crate::ring::FAN_OUTS_MAX * 8) as u64;
const _: () = assert!(PAGE_READ_LEN as usize <= CONTROL_PAGE_LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Epoch;

    #[test]
    fn wait_for_room_or_tokens_ends_after_a_retry() {
        let geometry = Geometry::new(1024, 16).unwrap();
        let len = geometry.bytes() as u64;
        let mut readable = Readable {
            grant: Grant {
                epoch: Epoch(1),
                attempt: 1,
                ring: RemoteAccess {
                    address: 0,
                    len,
                    key: 1,
                },
                tokens: 1024,
                cursor: None,
            },
            geometry,
            used: 1024,
            span: 0,
            dry_since: None,
            heartbeat_at: 0,
            cursor: None,
        };
        let range = SequenceRange::one(Sequence(3));
        let mut wait = |now: u64, reads: u32| {
            let mut room = ReadRoom {
                reads,
                len_max: 4096,
                oldest_at: Some(Nanos(10)),
            };
            let retries = (Nanos(5), Nanos(7));
            match readable.plan_read(Nanos(now), retries, range, &mut room) {
                ReadPlan::Wait(until) => Some(until.0),
                ReadPlan::Nothing => None,
                ReadPlan::Slots(count) => panic!("{count} slots without tokens"),
            }
        };
        assert_eq!(
            [10, 14, 15].map(|now| wait(now, 0)),
            [Some(15), Some(15), None]
        );
        assert_eq!(
            [20, 26, 27].map(|now| wait(now, 1)),
            [Some(27), Some(27), None]
        );
    }
}
