//! One process of a measurement, for every contender.
//!
//! All contenders share the code that publishes on a schedule, and the code that checks and times received
//! ticks. A contender only carries ticks. Programs outside this workspace include this very file.

use std::io::{BufRead, Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use hdrhistogram::Histogram;

use super::protocol::{Latency, Load, Order, Outcome, Part, Task, Tick, Word};

/// The longest latency that the histogram resolves.
pub(crate) const LATENCY_MAX_NS: u64 = 60_000_000_000;
/// How long a receiver waits for published ticks that have not arrived.
const MISSING_AFTER_NS: u64 = 3_000_000_000;
/// How long a process lives after the bench closed its orders.
const ORPHANED_FOR: Duration = Duration::from_millis(1_500);
/// A flood stops waiting for receivers after they make no progress for this long.
const STALLED_AFTER_NS: u64 = 300_000_000;
/// Ticks of a flood that are published before they are sent: 64 datagrams of an MTU of 1500.
const STEP: u64 = 1_600;
/// A process that waits for an answer drives its own stream once in this many idle polls.
const DRIVEN_EVERY: u32 = 16;
/// The rate of a flood is measured from this long after its first tick.
const FLOOD_WARM_UP_NS: u64 = 100_000_000;

/// The publishing side of a contender.
pub(crate) trait Carry {
    /// Returns the address to join; empty if the contender needs none.
    fn address(&self) -> String;
    /// Returns whether all receivers have joined, as far as the contender can see.
    fn is_joined(&mut self) -> bool;
    /// Publishes a tick. Returns `false` if there is no room now.
    fn publish(&mut self, tick: Tick) -> Outcome<bool>;
    /// Publishes up to `count` ticks from `first` on. Returns how many there was room for.
    fn publish_run(&mut self, first: u64, count: u64, at: u64) -> Outcome<u64> {
        one_by_one(self, first, count, at)
    }
    /// Sends the published ticks and does periodic work.
    fn drive(&mut self) -> Outcome<()>;
    /// Returns how far the slowest receiver is, for a contender whose window the bench keeps. `None`: the
    /// contender has its own flow control.
    fn received(&self) -> Option<u64>;
    /// Returns remarks for the report.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// [`Carry::publish_run`] for contenders without a batch interface: publishes tick by tick.
pub(crate) fn one_by_one<C: Carry + ?Sized>(
    carry: &mut C,
    first: u64,
    count: u64,
    at: u64,
) -> Outcome<u64> {
    for taken in 0..count {
        let number = first + taken;
        if !carry.publish(Tick { number, at })? {
            return Ok(taken);
        }
    }
    Ok(count)
}

/// The receiving side of a contender.
pub(crate) trait Take {
    /// Returns whether the receiver gets all ticks published from now on.
    fn is_joined(&mut self) -> bool;
    /// Calls `on` with each received tick and returns whether anything arrived. `None` stands for a damaged
    /// tick. The flag is `true` for a tick that was dropped on purpose and repaired.
    fn poll(&mut self, on: impl FnMut(Option<Tick>, bool)) -> Outcome<bool>;
    /// Reports the receiver's progress to the sender.
    fn received(&mut self, number: u64);
    /// Returns how many ticks the contender declared lost.
    fn declared_lost(&mut self) -> u64 {
        0
    }
    /// Returns remarks for the report.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Returns the time of the monotonic clock that all processes of a host share.
pub(crate) type Clock = fn() -> u64;

/// Connection of this process to the bench.
pub(crate) struct Desk {
    orders: Receiver<Order>,
    pub(crate) go: Arc<AtomicBool>,
    expected: Arc<AtomicU64>,
    pub(crate) finish: Arc<AtomicBool>,
    pub(crate) clock: Clock,
}

impl Desk {
    /// Starts reading orders. The process ends when the bench closes them.
    pub(crate) fn open(clock: Clock) -> Self {
        let (send, orders) = channel();
        let desk = Self {
            orders,
            go: Arc::default(),
            expected: Arc::new(AtomicU64::new(u64::MAX)),
            finish: Arc::default(),
            clock,
        };
        let (go, expected, finish) = (desk.go.clone(), desk.expected.clone(), desk.finish.clone());
        std::thread::spawn(move || {
            for line in stdin().lock().lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(Order::Go) => go.store(true, Relaxed),
                    Ok(Order::Expect(ticks)) => expected.store(ticks, Relaxed),
                    Ok(Order::Finish) => finish.store(true, Relaxed),
                    Ok(order) => drop(send.send(order)),
                    Err(error) => eprintln!("an order that can't be read: {line}: {error}"),
                }
            }
            // The bench has closed the orders. A process that is about to end gets time for it.
            finish.store(true, Relaxed);
            std::thread::sleep(ORPHANED_FOR);
            std::process::exit(0);
        });
        desk
    }

    /// Sends a word to the bench.
    pub(crate) fn send(&self, word: &Word) {
        let text = serde_json::to_string(word).unwrap_or_default();
        let mut out = stdout().lock();
        // A write fails only when the bench is gone, and then the orders end too.
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }

    /// Waits for the address of an echo.
    pub(crate) fn connect(&self, mut meanwhile: impl FnMut() -> Outcome<()>) -> Outcome<String> {
        loop {
            if let Ok(Order::Connect(address)) = self.orders.try_recv() {
                return Ok(address);
            }
            meanwhile()?;
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Publishes the load of the task, then drives the stream until the bench says to finish.
pub(crate) fn send(desk: &Desk, task: &Task, carry: &mut impl Carry) -> Outcome<()> {
    desk.send(&Word::Ready(carry.address()));
    while !desk.go.load(Relaxed) || !carry.is_joined() {
        carry.drive()?;
        std::thread::yield_now();
    }
    let (began, cpu) = ((desk.clock)(), cpu_ns());
    let ticks = match task.load {
        Load::Flood {
            for_ms,
            ticks_max,
            window,
        } => flood(desk, carry, for_ms * 1_000_000, ticks_max, window)?,
        Load::Paced { ticks, .. } => paced(desk, task.load, ticks, carry)?,
        Load::Feed { .. } => return Err("no contender for feeds".into()),
    };
    let (took, cpu) = ((desk.clock)() - began, cpu_ns() - cpu);
    desk.send(&Word::Sent(ticks));
    while !desk.finish.load(Relaxed) {
        carry.drive()?;
        std::thread::yield_now();
    }
    let part = Part {
        ticks,
        rate_per_s: ticks as f64 * 1e9 / took.max(1) as f64,
        cpu_ns: cpu,
        memory_bytes: memory_bytes(),
        notes: carry.notes(),
        ..Part::default()
    };
    desk.send(&Word::Done(Box::new(part)));
    Ok(())
}

/// Publishes as many ticks as the receivers keep up with. Returns that number.
fn flood(
    desk: &Desk,
    carry: &mut impl Carry,
    for_ns: u64,
    ticks_max: u64,
    window: u64,
) -> Outcome<u64> {
    let until = (desk.clock)() + for_ns;
    let (mut sent, mut given_up) = (0, 0);
    let (mut seen, mut since) = (0, 0);
    loop {
        let now = (desk.clock)();
        if now >= until || sent >= ticks_max {
            return Ok(sent);
        }
        let mut room = STEP.min(ticks_max - sent);
        if let Some(received) = carry.received() {
            let in_flight = sent - received.max(given_up).min(sent);
            room = room.min(window.saturating_sub(in_flight));
            if received != seen || room > 0 {
                (seen, since) = (received, now);
            } else if now - since > STALLED_AFTER_NS {
                given_up = sent;
            }
        }
        sent += carry.publish_run(sent + 1, room, now)?;
        carry.drive()?;
    }
}

/// Publishes each tick when it is due, or as soon after as possible. The tick carries its due time.
fn paced(desk: &Desk, load: Load, ticks: u64, carry: &mut impl Carry) -> Outcome<u64> {
    let began = (desk.clock)() + 1_000_000;
    let mut number = 1;
    while number <= ticks {
        let now = (desk.clock)();
        let mut step = 0;
        while number <= ticks && step < STEP {
            let at = began + load.due_ns(number);
            if at > now || !carry.publish(Tick { number, at })? {
                break;
            }
            number += 1;
            step += 1;
        }
        carry.drive()?;
    }
    Ok(ticks)
}

/// Receives and checks ticks until the expected number has arrived or the rest is missing, then reports.
pub(crate) fn receive(desk: &Desk, task: &Task, take: &mut impl Take) -> Outcome<()> {
    while !take.is_joined() {
        take.poll(|_, _| {})?;
        std::thread::yield_now();
    }
    desk.send(&Word::Joined);
    let share_core = task.receivers > 1;
    let mut account = Account::new(task.load)?;
    let (mut cpu, mut waits_from) = (0, 0);
    loop {
        let before = account.taken;
        let came = take.poll(|tick, was_dropped| account.take(tick, was_dropped, desk.clock))?;
        if account.taken != before {
            if before == 0 {
                cpu = cpu_ns();
            }
            take.received(account.last);
            waits_from = (desk.clock)();
            account.mark(waits_from);
        } else if !came {
            let expected = desk.expected.load(Relaxed);
            let now = (desk.clock)();
            if account.last >= expected
                || (expected < u64::MAX && now.saturating_sub(waits_from) > MISSING_AFTER_NS)
            {
                break;
            }
            if expected == u64::MAX {
                waits_from = now;
            }
            if share_core {
                std::thread::yield_now();
            }
        }
    }
    let cpu_ns = cpu_ns() - cpu;
    let mut part = account.part(desk.expected.load(Relaxed), take.declared_lost());
    part.cpu_ns = cpu_ns;
    part.memory_bytes = memory_bytes();
    part.notes = take.notes();
    desk.send(&Word::Done(Box::new(part)));
    Ok(())
}

/// Publishes ticks on their schedule, one at a time, and times the round trip of each.
pub(crate) fn ping(
    desk: &Desk,
    task: &Task,
    carry: &mut impl Carry,
    take: &mut impl Take,
) -> Outcome<()> {
    while !take.is_joined() {
        carry.drive()?;
        take.poll(|_, _| {})?;
        std::thread::yield_now();
    }
    desk.send(&Word::Joined);
    while !desk.go.load(Relaxed) || !carry.is_joined() {
        carry.drive()?;
        take.poll(|_, _| {})?;
        std::thread::yield_now();
    }
    let ticks = match task.load {
        Load::Paced { ticks, .. } => ticks,
        Load::Flood { ticks_max, .. } => ticks_max,
        Load::Feed { messages, .. } => messages,
    };
    let mut account = Account::new(task.load)?;
    let (began, cpu) = ((desk.clock)() + 1_000_000, cpu_ns());
    // On a machine too busy for the schedule, a part of the ticks is enough to show that.
    let until = began + 2 * task.load.due_ns(ticks.max(1)) + 1_000_000_000;
    let mut asked_for = 0;
    for number in 1..=ticks {
        let at = began + task.load.due_ns(number);
        if (desk.clock)() > until {
            break;
        }
        asked_for = number;
        while (desk.clock)() < at {
            carry.drive()?;
        }
        while !carry.publish(Tick { number, at })? {
            carry.drive()?;
        }
        carry.drive()?;
        let asked = (desk.clock)();
        let mut idle = 0_u32;
        while account.last < number {
            if take.poll(|tick, dropped| account.take(tick, dropped, desk.clock))? {
                continue;
            }
            idle += 1;
            if idle.is_multiple_of(DRIVEN_EVERY) {
                carry.drive()?;
                if (desk.clock)() - asked > MISSING_AFTER_NS {
                    break;
                }
            }
        }
    }
    account.mark((desk.clock)());
    let mut part = account.part(asked_for, take.declared_lost());
    part.cpu_ns = cpu_ns() - cpu;
    part.memory_bytes = memory_bytes();
    desk.send(&Word::Sent(asked_for));
    desk.send(&Word::Done(Box::new(part)));
    Ok(())
}

/// Sends back every received tick, until the bench says to finish.
pub(crate) fn echo(desk: &Desk, carry: &mut impl Carry, take: &mut impl Take) -> Outcome<()> {
    desk.send(&Word::Ready(carry.address()));
    let mut joined = false;
    let (mut ticks, mut failure, mut idle) = (0, None, 0);
    while !desk.finish.load(Relaxed) {
        if !joined && take.is_joined() {
            joined = true;
            desk.send(&Word::Joined);
        }
        let came = take.poll(|tick, _| {
            let Some(tick) = tick else { return };
            ticks += 1;
            let sent = loop {
                match carry.publish(tick) {
                    Ok(true) => break carry.drive(),
                    Ok(false) => match carry.drive() {
                        Ok(()) => {}
                        failed => break failed,
                    },
                    Err(error) => break Err(error),
                }
            };
            if let Err(error) = sent {
                failure.get_or_insert(error);
            }
        })?;
        if let Some(failure) = failure.take() {
            return Err(failure);
        }
        idle = if came { 0 } else { idle + 1 };
        if idle == DRIVEN_EVERY {
            idle = 0;
            carry.drive()?;
        }
    }
    let part = Part {
        ticks,
        memory_bytes: memory_bytes(),
        ..Part::default()
    };
    desk.send(&Word::Done(Box::new(part)));
    Ok(())
}

/// A receiver's account of the published ticks.
struct Account {
    load: Load,
    is_timed: bool,
    /// The number of the last tick in order.
    last: u64,
    taken: u64,
    wrong: u64,
    /// Start of a flood's rate measurement: time, and ticks received before.
    from: Option<(u64, u64)>,
    /// When the first tick was published, or the schedule began.
    first: u64,
    /// When the last tick arrived.
    at: u64,
    latency: Histogram<u64>,
    recovered: Histogram<u64>,
}

impl Account {
    fn new(load: Load) -> Outcome<Self> {
        Ok(Self {
            load,
            is_timed: matches!(load, Load::Paced { .. }),
            last: 0,
            taken: 0,
            wrong: 0,
            from: None,
            first: 0,
            at: 0,
            latency: Histogram::new_with_max(LATENCY_MAX_NS, 3)?,
            recovered: Histogram::new_with_max(LATENCY_MAX_NS, 3)?,
        })
    }

    #[inline]
    fn take(&mut self, tick: Option<Tick>, was_dropped: bool, clock: Clock) {
        let Some(tick) = tick else {
            self.wrong += 1;
            return;
        };
        if tick.number <= self.last {
            self.wrong += 1;
            return;
        }
        if self.taken == 0 {
            self.first = tick.at.saturating_sub(self.load.due_ns(tick.number));
        }
        self.last = tick.number;
        self.taken += 1;
        if self.is_timed && tick.number > self.load.warm_up() {
            let ns = clock().saturating_sub(tick.at);
            self.latency.saturating_record(ns);
            if was_dropped {
                self.recovered.saturating_record(ns);
            }
        }
    }

    /// Records when ticks arrived.
    #[inline]
    fn mark(&mut self, now: u64) {
        self.at = now;
        if self.from.is_none() {
            if self.first == 0 {
                self.first = now;
            }
            if now - self.first >= FLOOD_WARM_UP_NS && !self.is_timed {
                self.from = Some((now, self.taken));
            }
        }
    }

    fn part(&self, expected: u64, declared_lost: u64) -> Part {
        // A flood without a warmed-up part is timed from when the first tick was published. A schedule is
        // timed from its begin, so a receiver that is late from the first tick on misses the rate.
        let from = self.from.filter(|(_, before)| *before < self.taken);
        let (from, before) = from.unwrap_or((self.first, 0));
        let took = self.at.saturating_sub(from).max(1);
        let missing = expected
            .saturating_sub(self.taken)
            .saturating_sub(declared_lost);
        Part {
            ticks: self.taken,
            declared_lost,
            missing,
            wrong: self.wrong,
            rate_per_s: (self.taken - before) as f64 * 1e9 / took as f64,
            latency: latency(&self.latency),
            recovered: latency(&self.recovered),
            ..Part::default()
        }
    }
}

fn latency(of: &Histogram<u64>) -> Option<Latency> {
    if of.is_empty() {
        return None;
    }
    let curve = [
        0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995,
        0.9999, 1.0,
    ];
    Some(Latency {
        count: of.len(),
        p50: of.value_at_quantile(0.5),
        p90: of.value_at_quantile(0.9),
        p99: of.value_at_quantile(0.99),
        p999: of.value_at_quantile(0.999),
        max: of.max(),
        curve: curve.map(|q| (q, of.value_at_quantile(q))).to_vec(),
        counts: (of.iter_recorded())
            .map(|it| (it.value_iterated_to(), it.count_at_value()))
            .collect(),
    })
}

/// Returns the CPU time of all threads of this process.
pub(crate) fn cpu_ns() -> u64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let of = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(of).sum()
}

/// Returns the peak resident memory of this process.
pub(crate) fn memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(load: Load, numbers: &[u64]) -> Account {
        let mut account = Account::new(load).expect("histograms");
        for &number in numbers {
            let tick = (number > 0).then_some(Tick { number, at: 1 });
            account.take(tick, number == 7, || 1_001);
        }
        account
    }

    const FLOOD: Load = Load::Flood {
        for_ms: 1,
        ticks_max: 8,
        window: 8,
    };

    #[test]
    fn undelivered_tick_is_missing_unless_declared_lost() {
        let part = account(FLOOD, &[1, 2, 5, 8]).part(8, 3);
        assert_eq!(
            (part.ticks, part.declared_lost, part.missing, part.wrong),
            (4, 3, 1, 0)
        );
    }

    #[test]
    fn repeated_late_or_damaged_tick_counts_for_nothing() {
        let part = account(FLOOD, &[1, 2, 2, 1, 0, 3]).part(4, 0);
        assert_eq!((part.ticks, part.wrong, part.missing), (3, 3, 1));
    }

    #[test]
    fn latency_starts_when_due_and_first_tenth_warms_up() {
        let load = Load::Paced {
            rate_per_s: 1_000,
            burst: 1,
            ticks: 20,
        };
        let numbers: Vec<u64> = (1..=20).collect();
        let part = account(load, &numbers).part(20, 0);
        let latency = part.latency.expect("it was timed");
        assert_eq!(
            (latency.count, latency.p50, latency.max),
            (18, 1_000, 1_000)
        );
        assert_eq!(
            part.recovered.map(|r| r.count),
            Some(1),
            "one had been dropped"
        );
    }

    #[test]
    fn rate_on_schedule_spans_from_schedule_start() {
        let load = Load::Paced {
            rate_per_s: 1_000,
            burst: 1,
            ticks: 20,
        };
        let mut account = Account::new(load).expect("histograms");
        // The first two ticks were lost, and the third is late.
        for number in 3..=20 {
            let at = 1_000_000_000 + load.due_ns(number);
            account.take(Some(Tick { number, at }), false, || 0);
            account.mark(1_000_000_000 + 30_000_000 + number * 1_000_000);
        }
        assert_eq!(
            account.part(20, 0).rate_per_s.round(),
            360.0,
            "18 in 50 milliseconds"
        );
    }

    #[test]
    fn rate_excludes_warm_up_where_there_is_one() {
        let mut all = account(FLOOD, &[1, 2]);
        all.mark(1_000_001);
        assert_eq!(
            all.part(2, 0).rate_per_s.round(),
            2_000.0,
            "2 in a millisecond"
        );
        all.mark(1 + 2 * FLOOD_WARM_UP_NS);
        all.take(Some(Tick { number: 3, at: 1 }), false, || 0);
        all.mark(1 + 3 * FLOOD_WARM_UP_NS);
        assert_eq!(
            all.part(3, 0).rate_per_s.round(),
            10.0,
            "1 in 100 milliseconds"
        );
    }
}
