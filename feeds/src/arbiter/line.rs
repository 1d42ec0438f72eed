//! One line of a source: its statistics, and how far it has come.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use tickcast_reliability::types::Nanos;

use super::holding::Holding;
use super::ranges::{Ranges, Taken};
use crate::planted::{ArbiterBug, planted};
use crate::source::{LineStats, SKEW_BUCKETS};

/// Gaps of one line remembered at most.
const GAPS_MAX: usize = 1024;
/// Packets beyond a missing message that are remembered for one line at most.
const MARKS_MAX: usize = 1024;
/// A line that is silent for so many waits is not waited for: a shorter silence may be a loss of
/// its own, and a pause of the market.
const SILENT_WAITS: u64 = 4;

/// A packet that lies beyond a missing message.
#[derive(Clone, Copy, Debug)]
struct Mark {
    first: u64,
    at: Nanos,
    /// The line's packets until then.
    packets: u64,
}

/// The state of one line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) stats: LineStats,
    /// The sender of the next packets, if known.
    pub(super) sender: Option<Ipv4Addr>,
    /// The lowest sequence that it sent in this session.
    begin: u64,
    /// One beyond the highest sequence that it sent in this session; 0: none yet.
    next: u64,
    gaps: Ranges,
    missing_before: u64,
    /// Packets beyond a missing message, ascending by sequence and by time.
    marks: VecDeque<Mark>,
    /// Since when another line has been ahead, and this one silent.
    behind_since: Option<Nanos>,
    /// Since when another line has been heard, and this one not.
    silent_since: Option<Nanos>,
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            stats: LineStats::default(),
            sender: None,
            begin: 0,
            next: 0,
            gaps: Ranges::new(GAPS_MAX),
            missing_before: 0,
            marks: VecDeque::with_capacity(MARKS_MAX),
            behind_since: None,
            silent_since: None,
        }
    }

    /// Records that one of several lines sent a packet; returns whether it had stopped.
    #[inline]
    pub(super) fn heard(&mut self) -> bool {
        self.behind_since = None;
        self.silent_since = None;
        std::mem::take(&mut self.stats.is_stopped)
    }

    /// Records that another line sent a packet, with messages up to `end`; returns whether this line
    /// has stopped just now.
    #[inline]
    pub(super) fn other_heard(&mut self, end: u64, now: Nanos, holding: &Holding) -> bool {
        if self.behind_since.is_none() && self.next < end {
            self.behind_since = Some(now);
        }
        let since = *self.silent_since.get_or_insert(now);
        let stops = !self.stats.is_stopped
            && !planted(ArbiterBug::StopUnreported)
            && now >= since.after(holding.stopped());
        self.stats.is_stopped |= stops;
        stops
    }

    /// Records the messages `first..end` of a packet.
    #[inline(always)]
    pub(super) fn advance(&mut self, first: u64, end: u64) {
        if first == self.next {
            self.next = end;
        } else {
            self.step(first, end);
        }
    }

    #[cold]
    fn step(&mut self, first: u64, end: u64) {
        if self.next == 0 {
            (self.begin, self.next) = (first, end);
            return;
        }
        if first < self.begin {
            // The line began with reordered packets.
            if end < self.begin {
                self.gaps.push_front(end, self.begin, self.stats.packets);
            }
            self.begin = first;
        }
        if first > self.next {
            self.gaps.push(self.next, first, self.stats.packets);
        } else {
            let taken = match planted(ArbiterBug::ReorderedIsMissing) {
                true => Taken::default(),
                false => self.gaps.take(first, end),
            };
            if taken.messages > 0 {
                let depth = self.stats.packets - taken.tag;
                self.stats.reorder_depth = self.stats.reorder_depth.max(depth);
            }
        }
        self.next = self.next.max(end);
    }

    /// Returns whether it sent a message with this sequence or a higher one in this session.
    pub(super) const fn is_beyond(&self, sequence: u64) -> bool {
        self.next > sequence
    }

    /// Takes back messages from `end` on, which a packet's header counted and its bytes lack.
    pub(super) fn cut(&mut self, end: u64) {
        self.next = self.next.min(end);
    }

    /// Records that the line has come to `first`, while a message before it may be missing.
    pub(super) fn mark(&mut self, first: u64, next: u64, now: Nanos) {
        // The line had come further, and still brings what lies before: its time counts from now.
        let mut beyond = None;
        while self.marks.back().is_some_and(|mark| mark.first > first) {
            beyond = beyond.or(self.marks.pop_back());
        }
        let is_known = self.marks.back().is_some_and(|mark| mark.first == first);
        if first > next && !is_known {
            self.push_mark(first, now);
        }
        if let Some(beyond) = beyond {
            self.push_mark(beyond.first, now);
        }
    }

    fn push_mark(&mut self, first: u64, now: Nanos) {
        if self.marks.len() == MARKS_MAX {
            self.marks.pop_front();
        }
        self.marks.push_back(Mark {
            first,
            at: now,
            packets: self.stats.packets,
        });
    }

    /// Forgets the packets that lie before the next message.
    pub(super) fn forget_marks(&mut self, next: u64) {
        while self.marks.front().is_some_and(|mark| mark.first <= next) {
            self.marks.pop_front();
        }
    }

    /// Returns whether nothing before `end` is to be expected of the line any more.
    pub(super) fn has_passed(&self, end: u64, now: Nanos, holding: &Holding) -> bool {
        let reached = self.marks.iter().find(|mark| mark.first >= end);
        reached.is_some_and(|mark| {
            now >= mark.at.after(holding.reorder())
                || self.stats.packets - mark.packets >= holding.reorder_packets.into()
        })
    }

    /// Returns whether the line has been silent for too long, while another is ahead of it.
    pub(super) fn lags(&self, now: Nanos, holding: &Holding) -> bool {
        self.behind_since
            .is_some_and(|since| now >= since.after(Nanos(SILENT_WAITS * holding.wait().0)))
            && !planted(ArbiterBug::SilentLineAwaited)
    }

    /// Returns the messages of the session that the line left out so far.
    pub(super) const fn missing(&self) -> u64 {
        self.missing_before + self.gaps.messages()
    }

    /// Records that nothing more below `end` will come on this line.
    pub(super) fn owe(&mut self, end: u64) {
        if self.next > 0 && self.next < end {
            self.missing_before += end - self.next;
            self.next = end;
        }
    }

    /// Starts a new session; nothing more of the one before, which ended at `end`, will come.
    pub(super) fn end_session(&mut self, end: u64) {
        self.owe(end);
        self.missing_before += self.gaps.messages();
        self.gaps.clear();
        self.marks.clear();
        self.next = 0;
    }

    /// Records that a packet came `skew` after the first copy of its first message.
    pub(super) fn skewed(&mut self, skew: Nanos) {
        let bucket = (u64::BITS - (skew.0 / 1000).leading_zeros()) as usize;
        self.stats.skew[bucket.min(SKEW_BUCKETS - 1)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDING: Holding = Holding {
        reorder_packets: 3,
        ..Holding::live(100, 500)
    };

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    #[test]
    fn silent_line_stops_once_and_returns_once() {
        let mut line = Line::new();
        let stopped_us = u64::from(HOLDING.stopped_us);
        assert!(!line.other_heard(2, us(1), &HOLDING), "silent since now");
        assert!(!line.other_heard(3, us(stopped_us), &HOLDING));
        assert!(line.other_heard(3, us(stopped_us + 1), &HOLDING));
        assert!(line.stats.is_stopped);
        assert!(!line.other_heard(3, us(stopped_us + 2), &HOLDING), "once");
        assert!(line.heard() && !line.stats.is_stopped);
        assert!(!line.heard());
        let again = us(stopped_us + 3);
        assert!(!line.other_heard(4, again, &HOLDING), "silent anew");
    }

    #[test]
    fn line_behind_another_lags_after_four_waits() {
        let mut line = Line::new();
        line.advance(1, 5);
        line.other_heard(5, us(10), &HOLDING);
        assert!(!line.lags(us(1_000_000), &HOLDING), "it is as far");
        line.other_heard(6, us(10), &HOLDING);
        assert!(!line.lags(us(10 + 4 * 500 - 1), &HOLDING));
        assert!(line.lags(us(10 + 4 * 500), &HOLDING));
        line.heard();
        assert!(!line.lags(us(1_000_000), &HOLDING));
    }

    #[test]
    fn later_packet_passes_a_message_by_time_or_count() {
        let mut line = Line::new();
        line.mark(5, 5, us(0));
        assert!(
            !line.has_passed(5, us(9_999), &HOLDING),
            "nothing is missing"
        );
        line.mark(10, 5, us(0));
        assert!(!line.has_passed(10, us(99), &HOLDING));
        assert!(line.has_passed(10, us(100), &HOLDING));
        assert!(!line.has_passed(11, us(100), &HOLDING), "beyond the mark");
        line.stats.packets = 2;
        assert!(!line.has_passed(10, us(99), &HOLDING));
        line.stats.packets = 3;
        assert!(line.has_passed(10, us(99), &HOLDING));
        line.forget_marks(9);
        assert!(line.has_passed(10, us(100), &HOLDING));
        line.forget_marks(10);
        assert!(!line.has_passed(10, us(100), &HOLDING));
    }

    #[test]
    fn reordered_packet_restarts_the_time_of_later_ones() {
        let mut line = Line::new();
        line.mark(20, 5, us(0));
        line.mark(20, 5, us(50));
        assert_eq!(line.marks.len(), 1, "the first copy counts");
        line.mark(10, 5, us(80));
        assert!(!line.has_passed(20, us(179), &HOLDING));
        assert!(line.has_passed(20, us(180), &HOLDING));
        assert!(line.has_passed(10, us(180), &HOLDING));
        for first in 0..2 * MARKS_MAX as u64 {
            line.mark(30 + first, 5, us(90));
        }
        assert_eq!(line.marks.len(), MARKS_MAX);
    }

    #[test]
    fn gaps_are_missing_until_a_packet_fills_them() {
        let mut line = Line::new();
        line.advance(10, 20);
        line.stats.packets = 1;
        line.advance(12, 15);
        assert_eq!(line.stats.reorder_depth, 0, "a copy is not reordered");
        line.advance(30, 40);
        assert_eq!(line.missing(), 10);
        line.stats.packets = 4;
        line.advance(20, 25);
        assert_eq!((line.missing(), line.stats.reorder_depth), (5, 3));
        line.advance(5, 8);
        assert_eq!(line.missing(), 7, "it began with reordered packets");
        line.advance(8, 12);
        assert_eq!(line.missing(), 5);
        line.cut(38);
        line.owe(42);
        assert_eq!(line.missing(), 9);
        line.end_session(50);
        assert_eq!(line.missing(), 17);
        line.owe(60);
        assert_eq!(line.missing(), 17, "nothing of the new session came");
    }

    #[test]
    fn skews_are_counted_by_powers_of_two_us() {
        let mut line = Line::new();
        for (ns, bucket) in [
            (999, 0),
            (1_000, 1),
            (3_999, 2),
            (u64::MAX, SKEW_BUCKETS - 1),
        ] {
            line.skewed(Nanos(ns));
            assert_eq!(std::mem::take(&mut line.stats.skew[bucket]), 1, "{ns} ns");
        }
        assert_eq!(line.stats.skew, [0; SKEW_BUCKETS]);
    }
}
