//! The system's two clocks, read by the processor's time-stamp counter. One instruction yields both,
//! while a read of each system clock takes several times as long.
//!
//! The counter is used only while the kernel itself keeps time by it, because then it counts evenly on
//! all cores. Every ten seconds the kernel is asked again. If it changed to another source, this module
//! stops using the counter for good.
//!
//! A *line* converts counts to time: a start and a rate. The first reader more than a millisecond after
//! the last sample of the system's clocks samples them again and computes the next line. So the times
//! differ from the system's clocks by nanoseconds only. Protocol time never steps back: if a line ran
//! ahead of the system's clock, the next line has a lower rate.
//!
//! Two lines lie in memory shared by all threads. One is in use. The holder of the lock computes the
//! other, which then replaces it. No thread waits for another. If the line in use has expired and the
//! next is not ready, a reader returns the system's time, but none earlier than the line's, and records
//! it. Recording advances the turn, so that no line is published without regard to the times returned.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, fence};

use tickcast_reliability::types::Nanos;

/// Interval between samples of the system's clocks, in nanoseconds.
const LINE_NS: u64 = 1_000_000;
/// Number of such intervals for which a line is followed at most while no thread can replace it.
const LINES_MAX: u64 = 16;
/// Shortest span to compute the rate from, in nanoseconds. The counter is not used before.
const RATE_NS: u64 = 20_000_000;
/// Longest span to compute the rate from, in nanoseconds, because the system's clock is steered.
const RATE_NS_MAX: u64 = 1_000_000_000;
/// A clock has jumped if its error exceeds this time plus this part of the elapsed time.
const LEAP_NS: u64 = 20_000;
const LEAP_DIVISOR: u64 = 1_000;
/// A sample of the clocks that took longer was interrupted, and is discarded.
const LOOK_NS: u64 = 3_000;
/// Largest reduction of a line's rate, as a part of it.
const SLEW_DIVISOR: u64 = 10;
/// Lead of the first line over the system's clock: more than the error of a sample.
const LEAD_NS: u64 = LOOK_NS / 2;
/// Interval after which the kernel is asked again whether it keeps time by the counter.
const ASK_NS: u64 = 10_000_000_000;
/// Fractional bits of a rate.
const SHIFT: u32 = 32;

/// A reading of both clocks, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Both {
    pub(crate) monotonic: u64,
    pub(crate) utc: u64,
}

/// A sample: both clocks at one count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    count: u64,
    at: Both,
}

/// A linear function from counts to both clocks, valid until the next sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Line {
    from: Reading,
    /// Nanoseconds of protocol time per count, with `SHIFT` fractional bits.
    rate: u64,
    /// Number of counts for which the line is valid.
    counts: u64,
}

/// The words of a line in memory.
type Words = [AtomicU64; 5];

/// The outcome of a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Fresh(Both),
    /// The line has expired: its time all the same, and its turn.
    Stale(Both, u64),
    /// There is no line yet.
    Nothing,
}

/// The lines of a process, and the state to compute them.
struct Lines {
    lines: [Words; 2],
    /// Grows by one with each line, and by two with each time returned beside a line. Its lowest bit is
    /// the index of the line in use. 0 before the first line.
    turn: AtomicU64,
    /// Whether a thread computes a line.
    lock: AtomicBool,
    /// Start of the rate's span, and the rate. Only the holder of the lock touches it.
    first: Words,
    /// The latest protocol time returned beside a line.
    recorded: AtomicU64,
}

impl Lines {
    const fn new() -> Self {
        Self {
            lines: [const { [const { AtomicU64::new(0) }; 5] }; 2],
            turn: AtomicU64::new(0),
            lock: AtomicBool::new(false),
            first: [const { AtomicU64::new(0) }; 5],
            recorded: AtomicU64::new(0),
        }
    }

    #[inline]
    fn read(&self, count: impl Fn() -> u64) -> Read {
        loop {
            let turn = self.turn.load(Acquire);
            if turn == 0 {
                return Read::Nothing;
            }
            let line = Line::load(&self.lines[turn as usize & 1]);
            fence(Acquire);
            if self.turn.load(Relaxed) != turn {
                continue;
            }
            let count = count();
            return if line.since(count) <= line.counts && !line.is_far_ahead_of(count) {
                Read::Fresh(line.at(line.since(count)))
            } else {
                Read::Stale(line.said_until(count), turn)
            };
        }
    }

    /// Records a time to return beside the line of `turn`. Returns `false` if another line was published,
    /// and then the time must not be returned.
    #[cold]
    fn record(&self, turn: u64, monotonic: u64) -> bool {
        // Before the turn grows, so that the thread that computes a line in the next turn sees this time.
        self.recorded.fetch_max(monotonic, Relaxed);
        (self.turn)
            .compare_exchange(turn, turn + 2, Release, Relaxed)
            .is_ok()
    }

    /// Publishes the next line, computed from the latest recorded time. Computes it again if another time was
    /// recorded meanwhile.
    fn put(&self, draw: impl Fn(u64) -> Line) {
        loop {
            let turn = self.turn.load(Acquire);
            let line = draw(self.recorded.load(Relaxed));
            line.store(&self.lines[(turn + 1) as usize & 1]);
            let put = (self.turn).compare_exchange(turn, turn + 1, Release, Relaxed);
            if put.is_ok() {
                return;
            }
        }
    }

    /// Returns the line in use. The holder of the lock can rely on it.
    fn in_use(&self) -> Option<Line> {
        let turn = self.turn.load(Acquire);
        (turn > 0).then(|| Line::load(&self.lines[turn as usize & 1]))
    }

    /// Samples the clocks and publishes the next line, unless another thread does.
    #[cold]
    fn draw(&self, reading: impl FnOnce() -> Option<Reading>) {
        if self.lock.swap(true, Acquire) {
            return;
        }
        if let Some(now) = reading() {
            let before = self.in_use();
            let mut first = Line::load(&self.first);
            let span = now.at.monotonic.saturating_sub(first.from.at.monotonic);
            if first.from.count == 0 || (first.rate == 0 && span > RATE_NS_MAX) {
                first.from = now;
            } else if first.rate > 0 && before.is_some_and(|it| it.is_left(first.rate, now)) {
                // The rate may have been wrong from the start. Until there is a new one, readers use
                // the system's clocks.
                (first.from, first.rate) = (now, 0);
            }
            first.rate = first.rate_until(now);
            if first.rate > 0 {
                self.put(|recorded| Line::drawn(first.rate, before, recorded, now));
            }
            if now.at.monotonic.saturating_sub(first.from.at.monotonic) > RATE_NS_MAX {
                first.from = now;
            }
            first.store(&self.first);
        }
        self.lock.store(false, Release);
    }

    /// Stops publishing lines, and records the latest time that readers may have read off the last one.
    /// Returns `false` if another thread holds the lock.
    #[cold]
    fn leave(&self, count: impl FnOnce() -> u64) -> bool {
        // The lock is never released.
        if self.lock.swap(true, Acquire) {
            return false;
        }
        if let Some(line) = self.in_use() {
            let said = line.said_until(count()).monotonic;
            // Other threads may have read the line up to its end.
            let end = line.at(line.counts).monotonic;
            self.recorded.fetch_max(said.max(end), Relaxed);
        }
        true
    }
}

impl Line {
    fn load(words: &Words) -> Self {
        let [count, monotonic, utc, rate, counts] = words.each_ref().map(|word| word.load(Relaxed));
        Self {
            from: Reading {
                count,
                at: Both { monotonic, utc },
            },
            rate,
            counts,
        }
    }

    fn store(&self, words: &Words) {
        let Both { monotonic, utc } = self.from.at;
        let all = [self.from.count, monotonic, utc, self.rate, self.counts];
        // After the change of `turn` that freed these words, so that a late reader notices the change.
        fence(Release);
        for (word, value) in words.iter().zip(all) {
            word.store(value, Relaxed);
        }
    }

    /// Returns the counts since the line's start. 0 on a core that is slightly behind.
    #[inline]
    const fn since(&self, count: u64) -> u64 {
        let since = count.wrapping_sub(self.from.count);
        if since > u64::MAX / 2 { 0 } else { since }
    }

    /// Returns whether the counter is so far behind that it was reset. Cores never differ by that much.
    #[inline]
    const fn is_far_ahead_of(&self, count: u64) -> bool {
        let behind = self.from.count.wrapping_sub(count);
        behind <= u64::MAX / 2 && behind > self.counts
    }

    #[inline]
    const fn at(&self, since: u64) -> Both {
        let ns = ((since as u128 * self.rate as u128) >> SHIFT) as u64;
        Both {
            monotonic: self.from.at.monotonic.saturating_add(ns),
            utc: self.from.at.utc.saturating_add(ns),
        }
    }

    /// Returns the rate from the line's start until `now`, or its own rate if that span is too short.
    fn rate_until(&self, now: Reading) -> u64 {
        let span = now.at.monotonic.saturating_sub(self.from.at.monotonic);
        let counts = self.since(now.count);
        if span < RATE_NS || counts == 0 {
            return self.rate;
        }
        u64::try_from((u128::from(span) << SHIFT) / u128::from(counts)).unwrap_or(self.rate)
    }

    /// Returns whether a clock or the counter jumped since the start, for example during suspension. A rate
    /// computed across a jump is wrong.
    const fn is_left(&self, rate: u64, now: Reading) -> bool {
        let on = Self { rate, ..*self }.at(self.since(now.count)).monotonic;
        let passed = on - self.from.at.monotonic;
        on.abs_diff(now.at.monotonic) > LEAP_NS + passed / LEAP_DIVISOR
    }

    /// Computes the line from `now` on that follows `before`.
    fn drawn(rate: u64, before: Option<Self>, recorded: u64, now: Reading) -> Self {
        let counts = ((u128::from(LINE_NS) << SHIFT) / u128::from(rate.max(1))) as u64;
        let mut drawn = Self {
            from: now,
            rate,
            counts,
        };
        // The first line starts slightly ahead of any time that the system's clock has returned.
        let said = before.map_or(now.at.monotonic + LEAD_NS, |it| {
            it.said_until(now.count).monotonic
        });
        let said = said.max(recorded);
        let ahead = said.saturating_sub(now.at.monotonic);
        if ahead > 0 {
            // The lead is made up within this line, or within as many lines as it takes.
            let slow = LINE_NS - ahead.min(LINE_NS / SLEW_DIVISOR);
            drawn.from.at.monotonic = said;
            drawn.rate = (u128::from(rate) * u128::from(slow) / u128::from(LINE_NS)) as u64;
        }
        drawn
    }

    /// Returns the latest time that the line can have returned at this count.
    const fn said_until(&self, count: u64) -> Both {
        let (since, most) = (self.since(count), self.counts.saturating_mul(LINES_MAX));
        self.at(if since < most { since } else { most })
    }
}

/// The clocks to read, and whether the counter may be used.
trait Source {
    fn count(&self) -> u64;

    fn system(&self, clock: libc::clockid_t) -> u64;

    /// Returns whether the kernel keeps time by the counter. It does so only while all cores agree on it.
    fn is_kept(&self) -> bool;
}

/// The clocks of a process.
struct Clocks {
    lines: Lines,
    /// State of the counter: one of the values below.
    used: AtomicU8,
    /// Protocol time when the kernel was last asked whether it keeps time by the counter.
    asked: AtomicU64,
}

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
/// Not used any more, but the system's clock may still be behind a time returned by the counter.
const LEFT: u8 = 2;
const NO: u8 = 3;

static CLOCKS: Clocks = Clocks::new();

/// Returns both clocks. `None` if the caller must read the system's clocks itself.
#[inline]
pub(crate) fn both() -> Option<Both> {
    CLOCKS.both(&Machine)
}

impl Clocks {
    const fn new() -> Self {
        Self {
            lines: Lines::new(),
            used: AtomicU8::new(UNKNOWN),
            asked: AtomicU64::new(0),
        }
    }

    #[inline]
    fn both(&self, source: &impl Source) -> Option<Both> {
        if self.used.load(Relaxed) == YES
            && let Read::Fresh(both) = self.lines.read(|| source.count())
        {
            return Some(both);
        }
        self.otherwise(source)
    }

    #[cold]
    fn otherwise(&self, source: &impl Source) -> Option<Both> {
        match self.used.load(Acquire) {
            YES if self.is_kept_still(source) => {}
            UNKNOWN => {
                let used = if source.is_kept() { YES } else { NO };
                self.asked
                    .store(source.system(libc::CLOCK_MONOTONIC), Relaxed);
                self.used.store(used, Relaxed);
                return None;
            }
            NO => return None,
            _ => return self.beside(source),
        }
        self.lines.draw(|| read_clocks(source));
        loop {
            match self.lines.read(|| source.count()) {
                Read::Fresh(both) => return Some(both),
                // The thread that computes the next line was interrupted.
                Read::Stale(both, turn) => {
                    let both = system(source, both.monotonic);
                    if self.lines.record(turn, both.monotonic) {
                        return Some(both);
                    }
                }
                Read::Nothing => return None,
            }
        }
    }

    /// Returns whether the counter may still be used. Asks the kernel once per interval, and stops using the
    /// counter if the kernel has.
    fn is_kept_still(&self, source: &impl Source) -> bool {
        let (now, asked) = (
            source.system(libc::CLOCK_MONOTONIC),
            self.asked.load(Relaxed),
        );
        if now.saturating_sub(asked) < ASK_NS {
            return true;
        }
        // The second caller uses the first caller's answer.
        let is_first = (self.asked)
            .compare_exchange(asked, now, Relaxed, Relaxed)
            .is_ok();
        if !is_first || source.is_kept() {
            return true;
        }
        if !self.lines.leave(|| source.count()) {
            self.asked.store(asked, Relaxed);
            return true;
        }
        self.used.store(LEFT, Release);
        tracing::warn!(
            "the kernel stopped using the processor's counter as its clock (current_clocksource is not tsc): this process now reads the kernel's clocks, which takes longer"
        );
        false
    }

    /// Returns the recorded time while the system's clock is behind it, after the counter was abandoned.
    /// Afterwards returns `None`.
    fn beside(&self, source: &impl Source) -> Option<Both> {
        let recorded = self.lines.recorded.load(Relaxed);
        if source.system(libc::CLOCK_MONOTONIC) < recorded {
            return Some(system(source, recorded));
        }
        self.used.store(NO, Relaxed);
        None
    }
}

/// Returns the system's clocks, with protocol time no earlier than `recorded`.
fn system(source: &impl Source, recorded: u64) -> Both {
    Both {
        monotonic: source.system(libc::CLOCK_MONOTONIC).max(recorded),
        utc: source.system(libc::CLOCK_REALTIME),
    }
}

/// Returns the time of the operating system's clock.
pub(super) fn system_clock(clock: libc::clockid_t) -> Nanos {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid `timespec` to write to. Both clocks always exist, and on failure
    // it would stay zero. Exercised by
    // `host::clock::tests::protocol_time_goes_forward_and_utc_is_this_century`.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Nanos::from_secs(time.tv_sec as u64).after(Nanos(time.tv_nsec as u64))
}

/// This machine's counter and kernel.
struct Machine;

impl Source for Machine {
    #[inline]
    fn count(&self) -> u64 {
        count()
    }

    fn system(&self, clock: libc::clockid_t) -> u64 {
        system_clock(clock).0
    }

    fn is_kept(&self) -> bool {
        const CURRENT: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        // Opened once, by the first caller. Later calls may come from any thread.
        static KERNEL: OnceLock<Kernel> = OnceLock::new();
        let kernel = || KERNEL.get_or_init(|| Kernel::open(Path::new(CURRENT)));
        cfg!(target_arch = "x86_64") && kernel().keeps_time_by_the_counter()
    }
}

/// The file that names the kernel's clock source. `None` if it can't be read; the counter is then not
/// used.
struct Kernel(Option<File>);

impl Kernel {
    fn open(path: &Path) -> Self {
        Self(File::open(path).ok())
    }

    /// Reads the clock source: one system call, no allocation.
    fn keeps_time_by_the_counter(&self) -> bool {
        let mut name = [0; 16];
        let len = self.0.as_ref().map(|file| file.read_at(&mut name, 0));
        matches!(len, Some(Ok(len)) if name[..len].trim_ascii() == b"tsc")
    }
}

/// Samples both clocks at one count. `None` if the sample was interrupted.
fn read_clocks(source: &impl Source) -> Option<Reading> {
    (0..3).find_map(|_| {
        // Starts before the count is read, so that an interruption invalidates the sample.
        let first = source.system(libc::CLOCK_MONOTONIC);
        let before = source.count();
        let began = source.system(libc::CLOCK_MONOTONIC);
        let middle = source.count();
        let utc = source.system(libc::CLOCK_REALTIME);
        let monotonic = source.system(libc::CLOCK_MONOTONIC);
        let took = monotonic.checked_sub(began)?;
        let at = Both {
            monotonic: began,
            // Corrected to the moment when the other clock was read.
            utc: utc.saturating_sub(took / 2),
        };
        let count = before + (middle.checked_sub(before)?) / 2;
        let in_all = monotonic.saturating_sub(first);
        (in_all <= LOOK_NS).then_some(Reading { count, at })
    })
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn count() -> u64 {
    // SAFETY: every x86-64 processor has the instruction. A system that forbids it does not keep time
    // by it. Exercised by `tests::tsc_clock_agrees_with_system_clock`.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
const fn count() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns a sample with a counter of 3 counts per nanosecond, and clocks that are off by `off`.
    fn at(ns: u64, off: i64) -> Reading {
        let clock = |base: u64| (base + ns).saturating_add_signed(off);
        Reading {
            count: 7_000 + 3 * ns,
            at: Both {
                monotonic: clock(1_000_000),
                utc: clock(5_000_000_000),
            },
        }
    }

    fn read(lines: &Lines, ns: u64) -> Read {
        lines.read(|| at(ns, 0).count)
    }

    fn started() -> Lines {
        let lines = Lines::new();
        lines.draw(|| Some(at(0, 0)));
        lines.draw(|| Some(at(RATE_NS, 0)));
        lines
    }

    #[test]
    fn tsc_clock_reads_nothing_before_rate_is_known() {
        let lines = Lines::new();
        for ns in [0, RATE_NS / 2, RATE_NS - 1] {
            lines.draw(|| Some(at(ns, 0)));
            assert_eq!(read(&lines, ns), Read::Nothing);
        }
        lines.draw(|| None);
        assert_eq!(read(&lines, RATE_NS), Read::Nothing, "interrupted");
        lines.draw(|| Some(at(RATE_NS, 0)));
        let Read::Fresh(both) = read(&lines, RATE_NS) else {
            panic!("it was just drawn")
        };
        assert_eq!(both.monotonic, at(RATE_NS, 0).at.monotonic + LEAD_NS);
        assert_eq!(both.utc, at(RATE_NS, 0).at.utc);
    }

    #[test]
    fn tsc_line_turns_stale_then_stops_advancing() {
        let lines = started();
        let near = |read: Read, ns: u64| {
            let (Read::Fresh(both) | Read::Stale(both, _)) = read else {
                panic!("there is a line")
            };
            assert!(both.monotonic.abs_diff(at(ns, 0).at.monotonic) <= LEAD_NS);
            assert!(both.utc.abs_diff(at(ns, 0).at.utc) <= 2 * LEAD_NS);
        };
        for ns in [0, 1, 1_000, LINE_NS - 2] {
            let found = read(&lines, RATE_NS + ns);
            assert!(matches!(found, Read::Fresh(_)));
            near(found, RATE_NS + ns);
        }
        let late = read(&lines, RATE_NS + LINE_NS + 1_000);
        assert!(matches!(late, Read::Stale(..)));
        near(late, RATE_NS + LINE_NS + 1_000);
        // As after a suspension, before any thread has sampled the clocks.
        let (far, farther) = (read(&lines, u64::MAX / 16), read(&lines, u64::MAX / 8));
        assert_eq!(far, farther);
        let Read::Stale(both, _) = far else {
            panic!("it is too old")
        };
        let most = at(RATE_NS + LINES_MAX * LINE_NS, 0).at.monotonic;
        assert!(both.monotonic <= most && both.monotonic > most - LINE_NS);
        // A core that is slightly behind.
        near(read(&lines, RATE_NS - 5), RATE_NS);
    }

    #[test]
    fn protocol_time_never_steps_back_and_comes_back_to_the_systems() {
        let lines = started();
        let last = Cell::new(0);
        let observe = |ns: u64, off: i64| {
            for part in 0..=100 {
                let both = match read(&lines, ns - LINE_NS + LINE_NS * part / 100) {
                    Read::Fresh(both) | Read::Stale(both, _) => both,
                    Read::Nothing => panic!("there is a line"),
                };
                assert!(both.monotonic >= last.get(), "at {ns}");
                last.set(both.monotonic);
            }
            lines.draw(|| Some(at(ns, off)));
        };
        // The system's clock falls back by 3 us against the counter, then jumps ahead by 2 ms.
        let mut ns = RATE_NS + LINE_NS;
        // Then the rate is computed anew, which takes its time.
        let jumped = std::iter::repeat_n(2_000_000, 2 + (RATE_NS / LINE_NS) as usize);
        for off in [0, 0, -3_000, -3_000, -3_000].into_iter().chain(jumped) {
            observe(ns, off);
            ns += LINE_NS;
        }
        let Read::Fresh(both) = read(&lines, ns - LINE_NS) else {
            panic!("it was just drawn")
        };
        let error = both
            .monotonic
            .abs_diff(at(ns - LINE_NS, 2_000_000).at.monotonic);
        assert!(error <= 1, "{error} ns");
    }

    #[test]
    fn tsc_counter_reset_starts_new_line() {
        let lines = started();
        assert!(matches!(lines.read(|| 5), Read::Stale(..)));
        let anew = |ns: u64| Reading {
            count: 3 * ns,
            ..at(2 * RATE_NS + ns, 0)
        };
        for ms in 0..=2 * RATE_NS / LINE_NS {
            lines.draw(|| Some(anew(ms * LINE_NS)));
        }
        let now = anew(2 * RATE_NS);
        let Read::Fresh(both) = lines.read(|| now.count) else {
            panic!("it was just drawn")
        };
        assert!(both.monotonic.abs_diff(now.at.monotonic) <= LEAD_NS);
    }

    #[test]
    fn wrong_initial_tsc_rate_is_corrected() {
        let lines = Lines::new();
        lines.draw(|| Some(at(0, 0)));
        lines.draw(|| Some(at(RATE_NS, RATE_NS as i64 / 20)));
        for ms in 1..=4 * RATE_NS / LINE_NS {
            lines.draw(|| Some(at(RATE_NS + ms * LINE_NS, 0)));
        }
        // At the end of a line, where a wrong rate shows.
        let ns = 5 * RATE_NS + LINE_NS - 2;
        let Read::Fresh(both) = read(&lines, ns) else {
            panic!("it was just drawn")
        };
        assert!(both.monotonic.abs_diff(at(ns, 0).at.monotonic) <= LEAD_NS);
    }

    #[test]
    fn utc_follows_a_step_back_at_once() {
        let lines = started();
        let mut stepped = at(RATE_NS + LINE_NS, 0);
        stepped.at.utc -= 1_000_000_000;
        lines.draw(|| Some(stepped));
        assert_eq!(read(&lines, RATE_NS + LINE_NS), Read::Fresh(stepped.at));
    }

    #[test]
    fn concurrent_tsc_line_update_is_skipped() {
        let lines = started();
        lines.draw(|| {
            lines.draw(|| unreachable!("one at a time"));
            Some(at(RATE_NS + LINE_NS, 0))
        });
        let found = read(&lines, RATE_NS + LINE_NS);
        assert_eq!(found, Read::Fresh(at(RATE_NS + LINE_NS, 0).at));
    }

    #[test]
    fn time_read_while_line_drawn_is_not_undercut() {
        let lines = started();
        let late = RATE_NS + 2 * LINE_NS;
        let Read::Stale(_, turn) = read(&lines, late) else {
            panic!("it is too old")
        };
        // The system's clock is slightly ahead of the line, because the rate is never exact.
        let recorded = at(late, 40).at.monotonic;
        let drawn = Cell::new(0);
        lines.put(|from| {
            if drawn.replace(drawn.get() + 1) == 0 {
                assert!(lines.record(turn, recorded), "the old line is still in use");
            }
            Line::drawn((1 << SHIFT) / 3, lines.in_use(), from, at(late, 0))
        });
        assert_eq!(drawn.get(), 2, "anew");
        let Read::Fresh(both) = read(&lines, late) else {
            panic!("it was just drawn")
        };
        assert_eq!(both.monotonic, recorded);
        assert!(!lines.record(turn, recorded), "another took its place");
    }

    #[test]
    fn kernel_clocksource_is_reread_from_open_file() {
        let path = std::env::temp_dir().join(format!("tickcast-clock-{}", std::process::id()));
        std::fs::write(&path, "tsc\n").unwrap();
        let kernel = Kernel::open(&path);
        let written = File::options().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for (name, is_kept) in [("tsc", true), ("hpet", false), ("tsc", true), ("", false)] {
            written.set_len(0).unwrap();
            written.write_all_at(name.as_bytes(), 0).unwrap();
            assert_eq!(kernel.keeps_time_by_the_counter(), is_kept, "{name:?}");
        }
        assert!(!Kernel::open(&path).keeps_time_by_the_counter(), "no file");
    }

    /// A machine with its own elapsed time, whose kernel keeps time by the counter or not.
    struct Fake {
        ns: Cell<u64>,
        kept: Cell<bool>,
        asked: Cell<u32>,
    }

    impl Source for Fake {
        fn count(&self) -> u64 {
            at(self.ns.get(), 0).count
        }

        fn system(&self, clock: libc::clockid_t) -> u64 {
            let Both { monotonic, utc } = at(self.ns.get(), 0).at;
            match clock {
                libc::CLOCK_MONOTONIC => monotonic,
                _ => utc,
            }
        }

        fn is_kept(&self) -> bool {
            self.asked.set(self.asked.get() + 1);
            self.kept.get()
        }
    }

    #[test]
    fn withdrawn_counter_does_not_turn_time_back() {
        let (clocks, mut last) = (Clocks::new(), 0);
        let machine = Fake {
            ns: Cell::new(0),
            kept: Cell::new(true),
            asked: Cell::new(0),
        };
        // Reads twice per line for `span`, and returns whether the last read used the counter.
        let mut read_for = |span: u64| {
            let until = machine.ns.get() + span;
            let mut by = None;
            while machine.ns.get() < until {
                machine.ns.set(machine.ns.get() + LINE_NS / 2);
                by = clocks.both(&machine);
                let now = by.map_or(machine.system(libc::CLOCK_MONOTONIC), |both| both.monotonic);
                assert!(now >= last, "at {}", machine.ns.get());
                last = now;
            }
            by.is_some()
        };
        assert!(read_for(2 * RATE_NS));
        machine.kept.set(false);
        assert!(read_for(ASK_NS - 3 * RATE_NS), "it was asked not long ago");
        assert_eq!(machine.asked.get(), 1);
        assert!(!read_for(2 * RATE_NS), "the system's clocks are read");
        machine.kept.set(true);
        assert!(!read_for(2 * ASK_NS), "for good");
        assert_eq!(machine.asked.get(), 2);
    }

    #[test]
    fn abandoned_counter_stops_until_system_catches_up() {
        let (clocks, lines) = (Clocks::new(), started());
        let machine = Fake {
            ns: Cell::new(RATE_NS + 10),
            kept: Cell::new(false),
            asked: Cell::new(0),
        };
        let Read::Fresh(said) = read(&lines, machine.ns.get()) else {
            panic!("it was just drawn")
        };
        assert!(
            said.monotonic > machine.system(libc::CLOCK_MONOTONIC),
            "it leads"
        );
        assert!(lines.leave(|| machine.count()));
        assert!(!lines.leave(|| machine.count()), "once");
        let clocks = Clocks {
            lines,
            used: AtomicU8::new(LEFT),
            ..clocks
        };
        for ns in [RATE_NS + 20, RATE_NS + LINE_NS - 1_000] {
            machine.ns.set(ns);
            let both = clocks.both(&machine).expect("the system is behind");
            assert!(both.monotonic >= said.monotonic);
            assert_eq!(both.utc, at(ns, 0).at.utc);
        }
        machine.ns.set(RATE_NS + LINE_NS + LEAD_NS);
        assert_eq!(clocks.both(&machine), None);
    }

    #[test]
    fn tsc_clock_agrees_with_system_clock() {
        if !Machine.is_kept() {
            return println!("SKIPPED: the kernel does not keep time by the counter");
        }
        let system = || Machine.system(libc::CLOCK_MONOTONIC);
        let until = system() + 2 * RATE_NS;
        let (mut found, mut last) = (0, 0);
        while system() < until || found < 1_000 {
            let before = system();
            let Some(both) = both() else { continue };
            let after = system();
            // The time lies between both reads of the system's clocks, within the error of a line.
            assert!(both.monotonic + 100_000 >= before && both.monotonic <= after + 100_000);
            assert!(both.monotonic >= last);
            (found, last) = (found + 1, both.monotonic);
        }
    }
}
