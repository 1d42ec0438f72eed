//! Lines: one publisher's ring on one network or two (docs/PROTOCOL.md §5.3).
//!
//! The first copy of a sequence wins. A gap is requested when every *live* line has passed it, or
//! when the skew bound is over. A silent line is down and delays nothing.

use serde::{Deserialize, Serialize};

use crate::delivery::{Event, LineId};
use crate::types::{Nanos, ReceiverCounters, Sequence};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Line {
    heard_at: Nanos,
    /// Since when the line has been heard without a long silence.
    since: Nanos,
    highest: Sequence,
    up: bool,
}

/// A line that changed its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineChange {
    /// Silent while another line is heard.
    Down(LineId),
    /// Heard again.
    Up(LineId),
}

impl LineChange {
    /// Returns the event of the change, and counts it.
    #[cold]
    pub(crate) fn report(self, counters: &ReceiverCounters) -> Event {
        match self {
            Self::Down(line) => {
                counters.line_down.increment();
                Event::LineDown(line)
            }
            Self::Up(line) => Event::LineUp(line),
        }
    }
}

/// All lines of a channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Lines {
    lines: [Line; LineId::MAX],
    count: usize,
    /// When [`Lines::check`] ran last, and with which silence.
    checked_at: Nanos,
    silence: Nanos,
    /// When the silence last became shorter, and its value before.
    shorter_at: Nanos,
    silence_before: Nanos,
}

impl Lines {
    /// `count` lines, one or two, that all count as up from `now` on.
    #[must_use]
    pub(crate) fn new(count: usize, now: Nanos) -> Self {
        let line = Line {
            heard_at: now,
            since: now,
            highest: Sequence::NONE,
            up: true,
        };
        Self {
            lines: [line; LineId::MAX],
            count: count.clamp(1, LineId::MAX),
            checked_at: now,
            silence: Nanos::MAX,
            shorter_at: now,
            silence_before: Nanos::MAX,
        }
    }

    /// The number of lines.
    #[must_use]
    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Notes that `line` carried a datagram or heartbeat up to `sequence`. Returns a change if the
    /// line had been down.
    #[inline(always)]
    pub(crate) fn heard(
        &mut self,
        line: LineId,
        sequence: Sequence,
        now: Nanos,
    ) -> Option<LineChange> {
        let entry = self.lines[..self.count].get_mut(usize::from(line.0))?;
        if now.since(entry.heard_at) >= self.silence {
            entry.since = now;
        }
        entry.heard_at = now;
        entry.highest = entry.highest.max(sequence);
        let was_down = !std::mem::replace(&mut entry.up, true);
        was_down.then_some(LineChange::Up(line))
    }

    /// The highest sequence that came on `line`.
    #[must_use]
    pub(crate) fn highest(&self, line: LineId) -> Sequence {
        let line = self.lines[..self.count].get(usize::from(line.0));
        line.map_or(Sequence::NONE, |it| it.highest)
    }

    /// Returns whether every live line has passed `sequence`, so that no copy of it can be in flight.
    #[must_use]
    pub(crate) fn all_passed(&self, sequence: Sequence) -> bool {
        self.lines[..self.count]
            .iter()
            .all(|line| !line.up || line.highest >= sequence)
    }

    /// Takes lines down that were silent for `silence` while another was heard all the time. A line
    /// that has just come back after a common silence proves nothing about the other yet. Returns at
    /// most one change; call again until there is none.
    pub(crate) fn check(&mut self, now: Nanos, silence: Nanos) -> Option<LineChange> {
        self.checked_at = now;
        if silence < self.silence {
            (self.shorter_at, self.silence_before) = match self.silence {
                Nanos::MAX => (self.shorter_at, Nanos::MAX),
                before => (now, before),
            };
        }
        self.silence = silence;
        let mut heard = self.lines[..self.count].iter();
        let witness = |line: &Line| {
            now.since(line.heard_at) < silence && now.since(line.since) >= Nanos(silence.0 / 4)
        };
        if self.count < 2 || !heard.any(witness) {
            return None;
        }
        let down = |line: &Line| line.up && now >= self.down_at(line, silence);
        let id = self.lines[..self.count].iter().position(down)?;
        self.lines[id].up = false;
        Some(LineChange::Down(LineId(id as u8)))
    }

    /// When a line that is not heard counts as down. A shorter interval counts only from its
    /// announcement on, because the announcement may still be in flight on this line.
    fn down_at(&self, line: &Line, silence: Nanos) -> Nanos {
        let by_now = line.heard_at.max(self.shorter_at).after(silence);
        let by_before = line.heard_at.after(silence.max(self.silence_before));
        by_now.min(by_before)
    }

    /// Returns when [`Lines::check`] may take a line down if the line stays silent until then.
    #[must_use]
    pub(crate) fn next_check(&self, silence: Nanos) -> Nanos {
        if self.count < 2 {
            return Nanos::MAX;
        }
        let live = self.lines[..self.count].iter().filter(|line| line.up);
        let witness = live.clone().max_by_key(|line| line.heard_at);
        let quiet = live.min_by_key(|line| line.heard_at);
        let (Some(witness), Some(quiet)) = (witness, quiet) else {
            return Nanos::MAX;
        };
        // Lines heard at the same time are equally silent. Where the last check found both silent,
        // neither is blamed before one is heard again.
        let all_silent = self.checked_at.since(witness.heard_at) >= silence;
        if quiet.heard_at == witness.heard_at || all_silent {
            return Nanos::MAX;
        }
        let attested = witness.since.after(Nanos(silence.0 / 4));
        self.down_at(quiet, silence).max(attested)
    }

    /// Starts over with `count` lines; lines that were down stay down until they are heard. Returns
    /// a change for each line that was down and is gone, or is now the only one.
    pub(crate) fn renew(
        &mut self,
        count: usize,
        now: Nanos,
    ) -> impl Iterator<Item = LineChange> + use<> {
        let before = std::mem::replace(self, Self::new(count, now));
        let stay = if self.count > 1 { self.count } else { 0 };
        for (line, before) in self.lines[..stay].iter_mut().zip(&before.lines) {
            line.up = before.up;
        }
        let forgotten = (0..before.count).skip(stay);
        forgotten
            .filter(move |id| !before.lines[*id].up)
            .map(|id| LineChange::Up(LineId(id as u8)))
    }

    /// Returns which lines are down.
    #[must_use]
    pub(crate) fn down(&self) -> [bool; LineId::MAX] {
        self.lines.map(|line| !line.up)
    }

    /// Takes over the state of `before`, the lines of another receiver of the channel, so that the
    /// application hears when a line is up again. Returns the changes as [`Lines::renew`] does.
    pub(crate) fn take_over(
        &mut self,
        before: Self,
        now: Nanos,
    ) -> impl Iterator<Item = LineChange> + use<> {
        let count = self.count;
        *self = before;
        self.renew(count, now)
    }

    /// Forgets which sequences each line has passed, at a change of epoch.
    pub(crate) fn restart(&mut self) {
        for line in &mut self.lines {
            line.highest = Sequence::NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LineId = LineId(0);
    const B: LineId = LineId(1);

    #[test]
    fn lines_silent_together_are_judged_when_one_returns() {
        let mut lines = Lines::new(2, Nanos(0));
        lines.heard(A, Sequence(1), Nanos(10));
        lines.heard(B, Sequence(1), Nanos(12));
        assert_eq!(lines.next_check(Nanos(100)), Nanos(110));
        // The application was away meanwhile.
        assert_eq!(lines.check(Nanos(500), Nanos(100)), None);
        assert_eq!(lines.next_check(Nanos(100)), Nanos::MAX);
        lines.heard(B, Sequence(2), Nanos(501));
        assert_eq!(
            lines.next_check(Nanos(100)),
            Nanos(526),
            "a moment after its return"
        );
        assert_eq!(lines.check(Nanos(525), Nanos(100)), None);
        lines.heard(B, Sequence(3), Nanos(520));
        let down = lines.check(Nanos(526), Nanos(100));
        assert_eq!(down, Some(LineChange::Down(A)));
    }

    #[test]
    fn shorter_interval_of_one_line_blames_no_other() {
        let mut lines = Lines::new(2, Nanos(0));
        lines.heard(A, Sequence(1), Nanos(10));
        lines.heard(B, Sequence(1), Nanos(12));
        assert_eq!(lines.check(Nanos(12), Nanos(300)), None);
        lines.heard(A, Sequence(2), Nanos(150));
        assert_eq!(lines.check(Nanos(150), Nanos(100)), None, "B is on its way");
        assert_eq!(lines.next_check(Nanos(100)), Nanos(250));
        lines.heard(A, Sequence(3), Nanos(240));
        assert_eq!(lines.check(Nanos(249), Nanos(100)), None);
        let down = lines.check(Nanos(250), Nanos(100));
        assert_eq!(down, Some(LineChange::Down(B)));
    }

    #[test]
    fn line_down_is_not_postponed_by_changing_interval() {
        let mut lines = Lines::new(2, Nanos(0));
        lines.heard(A, Sequence(1), Nanos(10));
        let mut down = None;
        for at in (20..400).step_by(10) {
            lines.heard(A, Sequence(at), Nanos(at));
            let silence = if at % 20 == 0 { 300 } else { 100 };
            down = down.or(lines
                .check(Nanos(at), Nanos(silence))
                .map(|change| (at, change)));
        }
        assert_eq!(down, Some((300, LineChange::Down(B))));
    }

    #[test]
    fn gap_waits_for_slower_live_line() {
        let mut lines = Lines::new(2, Nanos(0));
        assert_eq!(lines.heard(A, Sequence(10), Nanos(1)), None);
        assert!(!lines.all_passed(Sequence(9)));
        lines.heard(B, Sequence(9), Nanos(2));
        assert!(lines.all_passed(Sequence(9)));
        assert!(!lines.all_passed(Sequence(10)));
    }

    #[test]
    fn silent_line_goes_down_once_and_blocks_no_gap() {
        let mut lines = Lines::new(2, Nanos(0));
        lines.heard(A, Sequence(10), Nanos(90));
        assert_eq!(lines.check(Nanos(99), Nanos(100)), None);
        assert_eq!(
            lines.check(Nanos(100), Nanos(100)),
            Some(LineChange::Down(B))
        );
        assert_eq!(lines.check(Nanos(101), Nanos(100)), None);
        assert!(lines.all_passed(Sequence(10)));
        assert_eq!(
            lines.heard(B, Sequence(3), Nanos(110)),
            Some(LineChange::Up(B))
        );
        assert!(!lines.all_passed(Sequence(10)));
    }

    #[test]
    fn line_stays_up_while_all_lines_are_silent() {
        let mut lines = Lines::new(2, Nanos(0));
        assert_eq!(lines.check(Nanos(500), Nanos(100)), None);
        let mut one = Lines::new(1, Nanos(0));
        one.heard(A, Sequence(1), Nanos(1));
        assert_eq!(one.check(Nanos(5), Nanos(1)), None);
    }

    #[test]
    fn next_check_is_due_when_quieter_line_would_go_down() {
        let mut lines = Lines::new(2, Nanos(0));
        assert_eq!(lines.next_check(Nanos(100)), Nanos::MAX);
        lines.heard(A, Sequence(1), Nanos(50));
        assert_eq!(lines.next_check(Nanos(100)), Nanos(100));
        assert_eq!(
            lines.check(Nanos(100), Nanos(100)),
            Some(LineChange::Down(B))
        );
        assert_eq!(lines.next_check(Nanos(100)), Nanos::MAX);
    }

    #[test]
    fn unannounced_line_is_ignored() {
        let mut lines = Lines::new(1, Nanos(0));
        assert_eq!(lines.heard(B, Sequence(7), Nanos(1)), None);
        assert!(!lines.all_passed(Sequence(7)));
    }

    #[test]
    fn line_count_is_clamped_to_one_or_two() {
        let counts = [0, 1, 2, 9].map(|count| Lines::new(count, Nanos(0)).count());
        assert_eq!(counts, [1, 1, 2, 2]);
    }

    #[test]
    fn renewed_lines_stay_down_and_sole_line_is_up() {
        let renewed = |down: LineId, count: usize| {
            let mut lines = Lines::new(2, Nanos(0));
            lines.heard(LineId(1 - down.0), Sequence(10), Nanos(90));
            let change = lines.check(Nanos(100), Nanos(100));
            assert_eq!(change, Some(LineChange::Down(down)));
            let reported: Vec<_> = lines.renew(count, Nanos(200)).collect();
            (
                reported,
                lines.down(),
                lines.heard(down, Sequence(1), Nanos(201)),
            )
        };
        for line in [A, B] {
            let up = LineChange::Up(line);
            let down = [line == A, line == B];
            assert_eq!(renewed(line, 2), (vec![], down, Some(up)));
            assert_eq!(renewed(line, 1), (vec![up], [false; 2], None));
        }
    }

    #[test]
    fn another_epoch_forgets_what_was_passed() {
        let mut lines = Lines::new(2, Nanos(0));
        lines.heard(A, Sequence(10), Nanos(1));
        lines.heard(B, Sequence(10), Nanos(1));
        lines.heard(B, Sequence(4), Nanos(2));
        assert!(lines.all_passed(Sequence(10)), "the highest counts");
        lines.restart();
        assert!(!lines.all_passed(Sequence(1)));
    }

    #[test]
    fn line_down_after_total_silence_waits_quarter_interval() {
        let silence = Nanos(100);
        let mut lines = Lines::new(2, Nanos(0));
        assert_eq!(lines.check(Nanos(0), silence), None);
        // Both were silent for exactly as long as it takes; then one is heard.
        lines.heard(A, Sequence(1), Nanos(100));
        assert_eq!(lines.next_check(silence), Nanos(125));
        assert_eq!(lines.check(Nanos(124), silence), None);
        assert_eq!(lines.check(Nanos(125), silence), Some(LineChange::Down(B)));
        // A line that came back sooner had never been silent.
        let mut lines = Lines::new(2, Nanos(0));
        assert_eq!(lines.check(Nanos(0), silence), None);
        lines.heard(A, Sequence(1), Nanos(99));
        assert_eq!(lines.next_check(silence), Nanos(100));
        assert_eq!(lines.check(Nanos(100), silence), Some(LineChange::Down(B)));
    }

    #[test]
    fn line_down_requires_recently_heard_other_line() {
        let silence = Nanos(100);
        let mut lines = Lines::new(2, Nanos(0));
        lines.heard(A, Sequence(1), Nanos(50));
        assert_eq!(lines.check(Nanos(150), silence), None);
        assert_eq!(
            lines.next_check(silence),
            Nanos::MAX,
            "until one is heard again"
        );
        let mut lines = Lines::new(2, Nanos(0));
        lines.heard(A, Sequence(1), Nanos(50));
        assert_eq!(lines.check(Nanos(149), silence), Some(LineChange::Down(B)));
    }
}
