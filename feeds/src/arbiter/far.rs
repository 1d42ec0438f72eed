//! Packets far ahead in the current session, the first of an input too: they wait until another one
//! near them shows that the source goes on there.
//!
//! Time alone confirms nothing, because a stray packet may come in a pause. A packet that continues
//! the old position on the same line voids those that wait; once the slower lines are no reason for
//! it, one on any line does. Voided packets are dropped after that time, and all with the end of the
//! input. A packet that the stream comes near to before it is voided waits like any early one.

use tickcast_reliability::types::Nanos;

use super::protocol::{Listen, PacketHead, Protocol};
use super::queue::{Held, UNDECIDED_MAX};
use super::refused::FAR_AHEAD;
use super::{Arbiter, Arrived, Holding};
use crate::planted::{ArbiterBug, planted};

/// A sequence that many messages beyond everything known is far: as many as the packets that live
/// lines reorder. A true jump that far costs a wait for one more packet.
const FAR: u64 = 256;

/// The packets far ahead, in order of arrival.
#[derive(Clone, Debug, Default)]
pub(super) struct Far {
    packets: Vec<Held>,
    /// The first so many are voided.
    voided: usize,
    /// Whether two packets are near each other, one of them not voided.
    is_confirmed: bool,
}

impl Far {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns whether another packet of the same stream waits that is not voided.
    fn confirms(&self, held: &Held) -> bool {
        let is_copy = |it: &Held| {
            let is_same = (it.first, it.line) == (held.first, held.line);
            is_same && (held.end > held.first || it.arrived_at == held.arrived_at)
        };
        let mut packets = self.packets.iter().skip(self.voided);
        packets.any(|it| !is_copy(it) && is_near(held, it.first, it.end))
    }

    /// Voids all packets, if a packet of the messages `first..end` that continues the old position does so.
    pub(super) fn void(
        &mut self,
        line: usize,
        (first, end): (u64, u64),
        now: Nanos,
        holding: &Holding,
    ) {
        let open = &self.packets[self.voided..];
        let is_due = open.first().is_some_and(|it| is_over(it, now, holding));
        let came_on = self.packets.iter().any(|it| it.line == line);
        // A packet near a far one follows it, or was overtaken by it.
        if (came_on || is_due) && !open.iter().any(|it| is_near(it, first, end)) {
            self.voided = self.packets.len();
            self.is_confirmed = false;
        }
    }

    /// Takes a packet that is not voided, and not far any more.
    fn take_near(&mut self, lowest_far: u64) -> Option<Held> {
        let mut open = self.packets.iter().skip(self.voided);
        let at = self.voided + open.position(|it| it.first < lowest_far)?;
        Some(self.packets.remove(at))
    }

    /// Takes the voided packets whose time is over.
    fn take_voided(&mut self, now: Nanos, holding: &Holding) -> Vec<Held> {
        let voided = self.packets[..self.voided].iter();
        let due = voided.take_while(|it| is_over(it, now, holding)).count();
        self.voided -= due;
        self.packets.drain(..due).collect()
    }
}

impl<P: Protocol> Arbiter<P> {
    /// Returns whether a sequence of the current session is far beyond everything known.
    pub(super) fn is_far(&self, first: u64) -> bool {
        first >= self.lowest_far() && !planted(ArbiterBug::JumpBelieved)
    }

    fn lowest_far(&self) -> u64 {
        let known = self.next.max(self.announced).max(self.queue.end());
        known.saturating_add(FAR)
    }

    /// Holds a packet of the current session that lies far ahead.
    pub(super) fn hold_far(
        &mut self,
        arrived: Arrived<'_>,
        head: &PacketHead<P::Note>,
        out: &mut impl Listen<P>,
    ) {
        let held = self.held(arrived, head.first, head.first + head.count);
        self.far.is_confirmed |= self.far.confirms(&held);
        self.far.packets.push(held);
        if self.far.packets.len() > UNDECIDED_MAX {
            // The newest one may be confirmed by the next.
            self.far.voided = self.far.voided.saturating_sub(1);
            let oldest = self.far.packets.remove(0);
            self.drop_held(oldest, FAR_AHEAD, out);
        }
        self.settle(false, out);
    }

    /// Goes on at packets far ahead, or drops them, if that is due.
    pub(super) fn settle_far(&mut self, is_end: bool, out: &mut impl Listen<P>) {
        if self.far.is_empty() {
            return;
        }
        if let Some(held) = self.far.take_near(self.lowest_far()) {
            // That settles again.
            return self.take_held(held, out);
        }
        let is_nothing_else = self.is_joining && self.queue.is_empty();
        // The only packet of an input is its stream.
        let is_only = is_end && is_nothing_else && self.far.packets.len() == 1;
        if self.far.is_confirmed || is_only || self.holding.stragglers() == Nanos::ZERO {
            self.go_far(out);
            self.settle(is_end, out);
        } else if is_end {
            self.drop_far(out);
        } else {
            for held in self.far.take_voided(self.now, &self.holding) {
                self.drop_held(held, FAR_AHEAD, out);
            }
        }
    }

    /// Drops all packets far ahead, and one behind the end.
    pub(super) fn drop_far(&mut self, out: &mut impl Listen<P>) {
        self.drop_behind_end(out);
        for held in std::mem::take(&mut self.far).packets {
            self.drop_held(held, FAR_AHEAD, out);
        }
    }

    /// Goes on at the newest packet far ahead and those near it, and drops the others. Where the source
    /// begins, other lines may be far from there.
    fn go_far(&mut self, out: &mut impl Listen<P>) {
        let Far {
            packets, voided, ..
        } = std::mem::take(&mut self.far);
        let Some(newest) = packets.last() else { return };
        let (mut first, mut end) = (newest.first, newest.end);
        for it in packets.iter().rev() {
            if is_near(it, first, end) {
                (first, end) = (first.min(it.first), end.max(it.end));
            }
        }
        let goes_on = |it: &Held| it.first >= first && it.end <= end;
        let lines: Vec<_> = (packets.iter().filter(|it| goes_on(it)))
            .map(|it| it.line)
            .collect();
        let mut nth = 0;
        let (mut taken, dropped): (Vec<_>, Vec<_>) = packets.into_iter().partition(|it| {
            nth += 1;
            let is_open = nth > voided && self.is_joining;
            goes_on(it) || (is_open && !lines.contains(&it.line))
        });
        for held in dropped {
            self.drop_held(held, FAR_AHEAD, out);
        }
        // In this order, each packet is near what is known by then, or waits again.
        taken.sort_unstable_by_key(|it| it.first);
        self.announced = self.announced.max(first);
        for held in taken {
            self.take_held(held, out);
        }
    }
}

/// Returns whether a packet has waited for longer than the slower lines may lag.
fn is_over(held: &Held, now: Nanos, holding: &Holding) -> bool {
    now >= held.arrived_at.after(holding.stragglers())
}

/// Returns whether a packet lies near the messages `first..end`.
const fn is_near(held: &Held, first: u64, end: u64) -> bool {
    held.first < end.saturating_add(FAR) && first < held.end.saturating_add(FAR)
}
