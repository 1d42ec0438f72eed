//! The lines of a source: loss, reorder, skew, duplicates, other packing, death of a line, a change of
//! session, foreign and damaged packets. They drive the shipped arbiter, which is killed in some seeds:
//! another one continues its session, whose count the venue may have restarted.
//!
//! After every step: positions are contiguous with the reported gaps, so each message is delivered
//! or reported once and in order; nothing whose predecessors are all there waits; nothing waits
//! longer than the limits. At the end: everything that arrived in time was delivered, late is what
//! came after its place, and the lines' counts balance.

use std::collections::{BTreeMap, BTreeSet};

use tickcast_feeds::arbiter::{Arbiter, Lines, Listen};
use tickcast_feeds::moldudp64::MoldUdp64;
use tickcast_feeds::source::{Incident, Packet, ResumePoint};
use tickcast_reliability::types::{Nanos, SourcePosition};

use crate::world::{Arrival, LinesWorld, Outage, PacketKind, content, us};

/// Time between two polls.
const POLL: Nanos = Nanos::from_us(500);
/// A packet that many messages ahead announces nothing before another one confirms it.
const FAR: u64 = 256;

/// Checks what the arbiter returns, as it does.
#[derive(Default)]
struct Checks {
    session: u16,
    /// The next position, once the first is known.
    next: Option<SourcePosition>,
    delivered: BTreeSet<(u16, u64)>,
    lost: BTreeSet<(u16, u64)>,
    late: u64,
    foreign: u64,
    stopped: BTreeSet<u8>,
    /// Whether the count restarts in an outage, and whether the end of its run was reported.
    may_restart: bool,
    is_restarted: bool,
    is_run_over: bool,
    fault: Option<String>,
}

impl Checks {
    fn fail(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
    }

    fn follow(&mut self, position: SourcePosition, messages: u64) {
        if self.next.is_some_and(|next| next != position) {
            self.fail(format!("{position} where {:?} stands", self.next));
        }
        let after = position.sequence() + messages;
        self.next = Some(SourcePosition::new(position.ordinal(), after));
    }
}

impl Listen<MoldUdp64> for Checks {
    fn packet(&mut self, _: Nanos, (): &()) {}

    fn message(&mut self, position: SourcePosition, message: &[u8]) {
        self.follow(position, 1);
        let place = (self.session, position.sequence());
        if message != content(place.0, place.1) {
            self.fail(format!("another message at {position}"));
        }
        self.delivered.insert(place);
    }

    fn incident(&mut self, incident: Incident) {
        match incident {
            Incident::Gap {
                from,
                missing: u64::MAX,
            } if self.may_restart => {
                self.follow(from, 0);
                self.is_run_over = true;
            }
            Incident::Gap { from, missing } => {
                if missing == 0 || missing > 100_000 {
                    return self.fail(format!("a gap of {missing}"));
                }
                if self.next.is_none() {
                    self.fail("a gap before the first message".into());
                }
                self.follow(from, missing);
                let all = from.sequence()..from.sequence() + missing;
                self.lost
                    .extend(all.map(|sequence| (self.session, sequence)));
            }
            Incident::SessionChange { next } => {
                // The slower line's last packets may bring the session before back, where it was.
                self.session = match next.sequence() {
                    1 => self.session + 1,
                    _ => 1 - self.session.min(1),
                };
                self.next = Some(next);
            }
            Incident::SequenceReset { next } if self.is_run_over => {
                self.is_run_over = false;
                self.may_restart = false;
                self.session += 1;
                self.next = Some(next);
            }
            Incident::SequenceReset { .. } => self.fail("a reset".into()),
            // Messages of a restarted count pass for old ones until that is found.
            Incident::Conflicting { .. } if !self.is_restarted => {
                self.fail("a conflict between lines that bring the same".into());
            }
            Incident::Late { messages } => self.late += messages,
            Incident::Foreign { .. } | Incident::Malformed { .. } => self.foreign += 1,
            Incident::LineStopped { line } => {
                self.stopped.insert(line);
            }
            _ => {}
        }
    }
}

/// The packets so far, by the simulation's own account.
#[derive(Default)]
struct Arrived {
    /// Messages on any line.
    all: BTreeSet<(u16, u64)>,
    /// The first arrival of each message.
    at: BTreeMap<(u16, u64), Nanos>,
    /// Messages of each line.
    lines: BTreeMap<usize, BTreeSet<(u16, u64)>>,
    /// Copies of messages on each line.
    copies: BTreeMap<usize, u64>,
    /// One beyond what is known to have been sent in each session.
    known: BTreeMap<u16, u64>,
    /// The line and place of a packet far ahead that nothing has confirmed.
    far: Option<(usize, u16, u64)>,
}

impl Arrived {
    /// Notes that all before `end` has been sent in a session, by a packet that begins at `first`.
    fn know(&mut self, now: Nanos, line: usize, session: u16, first: u64, end: u64) {
        let known = self.known.entry(session).or_default();
        let far = (line, session, first);
        let is_confirmed = self
            .far
            .is_some_and(|it| it.1 == session && (it != far || end == first));
        if first >= *known + FAR && !is_confirmed {
            self.far = Some(far);
            return;
        }
        if self.far.take().is_some() {
            // A candidate's packets wait from its acceptance on.
            let waiting = self.at.range_mut((session, *known)..);
            waiting.for_each(|(_, at)| *at = now);
        }
        *known = end.max(*known);
    }

    /// Forgets the messages of a session from `next` on, because the process that had them was killed.
    fn die(&mut self, session: u16, next: u64) {
        self.all.retain(|message| *message < (session, next));
        self.at.retain(|message, _| *message < (session, next));
        self.known.insert(session, next);
        self.copies.clear();
    }

    /// Forgets the messages of a run that passed for old ones: all that came before this packet.
    fn swallow(&mut self, run: u16, before: &Arrival) {
        let (first, end) = match before.what {
            PacketKind::Messages(_, first, end) => (first, end),
            PacketKind::Next(_, next, _) => (next, next),
            PacketKind::Foreign => return,
        };
        let is_kept = |(of, sequence): &(u16, u64)| *of != run || (first..end).contains(sequence);
        self.all.retain(is_kept);
        self.at.retain(|message, _| is_kept(message));
        self.known.insert(run, end);
    }
}

/// Runs a seed.
///
/// # Errors
/// The first broken invariant, with its time.
pub(crate) fn run(seed: u64) -> Result<(), String> {
    let world = LinesWorld::new(seed);
    let lines = Lines {
        count: world.lines,
        holding: world.holding,
    };
    let begin = || Arbiter::new(MoldUdp64::new(|message| message.len() == 10), lines, false);
    let mut arbiter = begin();
    // Messages that the killed arbiter delivered.
    let mut before = 0;
    let mut outage = world.outage;
    let mut checks = Checks {
        may_restart: world.is_restarted,
        is_restarted: world.is_restarted,
        ..Checks::default()
    };
    let mut arrived = Arrived::default();
    let mut now = us(1_000_000);
    let mut waits: Option<(Option<SourcePosition>, Nanos)> = None;
    let polls_after = world.ends_at;
    let mut arrivals = world.arrivals.iter().peekable();
    while now < polls_after || arrivals.peek().is_some() {
        if let Some(Outage { to, .. }) = outage.take_if(|it| it.from <= now) {
            let killed = std::mem::replace(&mut arbiter, begin());
            before = first(&world, &killed);
            if let (Some(session), Some(next)) = (killed.session(), checks.next) {
                let at = ResumePoint {
                    next,
                    end_at: killed.end_at(),
                    ..ResumePoint::default()
                };
                arbiter.resume(Some((session, ())), &at);
                arrived.die(checks.session, next.sequence());
            }
            waits = None;
            now = to;
        }
        let next_poll = now.after(POLL);
        match arrivals.next_if(|arrival| arrival.at <= next_poll) {
            Some(arrival) => {
                now = now.max(arrival.at);
                note(&mut arrived, arrival, now);
                let packet = Packet {
                    received_at: now,
                    payload: &arrival.payload,
                };
                let run = checks.session;
                arbiter.packet(arrival.line, now, packet, &mut checks);
                if world.is_restarted && checks.session != run {
                    arrived.swallow(checks.session, arrival);
                }
            }
            None => {
                now = next_poll;
                arbiter.poll(now, &mut checks);
            }
        }
        step(&world, &arbiter, &mut checks, &arrived, now, &mut waits);
        if let Some(fault) = checks.fault {
            return Err(format!("at {now}: {fault}"));
        }
    }
    arbiter.finish(&mut checks);
    if checks.fault.is_none() {
        at_the_end(&world, &arbiter, before, &mut checks, &arrived);
    }
    checks
        .fault
        .map_or(Ok(()), |fault| Err(format!("at the end: {fault}")))
}

fn note(arrived: &mut Arrived, arrival: &Arrival, now: Nanos) {
    match arrival.what {
        PacketKind::Messages(session, first, end) => {
            for sequence in first..end {
                arrived.all.insert((session, sequence));
                arrived.at.entry((session, sequence)).or_insert(now);
                let line = arrived.lines.entry(arrival.line).or_default();
                line.insert((session, sequence));
                *arrived.copies.entry(arrival.line).or_default() += 1;
            }
            arrived.know(now, arrival.line, session, first, end);
        }
        // The heartbeat of a session that no message has opened announces nothing yet.
        PacketKind::Next(session, next, _) => arrived.know(now, arrival.line, session, next, next),
        PacketKind::Foreign => {}
    }
}

/// Checks the invariants of every step.
fn step(
    world: &LinesWorld,
    arbiter: &Arbiter<MoldUdp64>,
    checks: &mut Checks,
    arrived: &Arrived,
    now: Nanos,
    waits: &mut Option<(Option<SourcePosition>, Nanos)>,
) {
    if arbiter.held_packets() > world.holding.packets_max as usize {
        checks.fail("more is held than allowed".into());
    }
    let Some(next) = checks.next else { return };
    let place = (checks.session, next.sequence());
    if arrived.all.contains(&place) {
        return checks.fail(format!("{next} is there and not delivered"));
    }
    let is_waiting = arrived
        .known
        .get(&checks.session)
        .is_some_and(|known| *known > place.1);
    if !is_waiting {
        *waits = None;
        return;
    }
    let since = match waits {
        Some((position, since)) if *position == Some(next) => *since,
        _ => {
            *waits = Some((Some(next), now));
            now
        }
    };
    let limit = us(world.holding.skew_us.into());
    let waited = now.since(since);
    // A heartbeat of a session that waits for its return announces nothing.
    let is_certain = world.is_calm || world.sessions == 1;
    if is_certain && waited > limit.after(POLL).after(us(1_000)) {
        checks.fail(format!("{next} is awaited for {waited}"));
    }
    // Another session's packets wait from its acceptance on.
    let ahead = arrived.at.range(place..).next();
    if world.sessions == 1
        && arrived.far.is_none()
        && let Some((message, at)) = ahead
        && now > at.after(limit).after(POLL).after(us(1_000))
    {
        checks.fail(format!("{message:?} waits since {at}"));
    }
    // Only the first line is left, and its reorder is known.
    let left = world.deaths.iter().filter(|dies| dies.is_none()).count();
    // A new process learns of the deaths before it.
    let begun = world.outage.iter().map(|it| &it.to);
    let dead_since = world.deaths.iter().flatten().chain(begun).max();
    let is_over = dead_since.is_some_and(|dead| now > dead.after(us(120_000)));
    if world.is_calm && left == 1 && is_over && waited > us(3_000) {
        checks.fail(format!("{next} waits {waited} for a line that stopped"));
    }
}

/// Returns the number of messages that an arbiter delivered.
fn first(world: &LinesWorld, arbiter: &Arbiter<MoldUdp64>) -> u64 {
    (0..world.lines).map(|line| arbiter.line(line).first).sum()
}

fn at_the_end(
    world: &LinesWorld,
    arbiter: &Arbiter<MoldUdp64>,
    before: u64,
    checks: &mut Checks,
    arrived: &Arrived,
) {
    if arbiter.held_packets() > 0 {
        return checks.fail("packets are still held".into());
    }
    let stats: Vec<_> = (0..world.lines).map(|line| arbiter.line(line)).collect();
    if world.is_restarted && checks.may_restart {
        checks.fail("the restarted count passed for old messages".into());
    }
    let first = before + first(world, arbiter);
    if first != checks.delivered.len() as u64 {
        checks.fail(format!("{first} messages came first"));
    }
    if world.sessions == 1 || world.is_calm {
        for (line, stats) in stats.iter().enumerate() {
            let copies = arrived.copies.get(&line).copied().unwrap_or_default();
            if stats.first + stats.duplicates + stats.late != copies {
                checks.fail(format!("line {line}: {copies} copies are {stats:?}"));
            }
        }
    }
    if world.sessions == 1 {
        let late = arrived.all.difference(&checks.delivered).count() as u64;
        if checks.late != late {
            checks.fail(format!(
                "{} messages were late instead of {late}",
                checks.late
            ));
        }
    }
    if !world.is_calm {
        return;
    }
    if checks.delivered != arrived.all {
        let left_out: Vec<_> = arrived.all.difference(&checks.delivered).take(5).collect();
        checks.fail(format!("in time and not delivered: {left_out:?}"));
    }
    let Some(begin) = arrived.all.first().copied() else {
        return;
    };
    let mut lost = BTreeSet::new();
    for (session, known) in &arrived.known {
        let from = if *session == begin.0 { begin.1 } else { 1 };
        let all = (from..*known).map(|sequence| (*session, sequence));
        lost.extend(all.filter(|place| !arrived.all.contains(place)));
    }
    if checks.lost != lost {
        checks.fail(format!(
            "{} messages reported lost, not {}",
            checks.lost.len(),
            lost.len()
        ));
    }
    if world.outage.is_some() {
        return;
    }
    for line in 0..world.lines {
        let reported = checks.stopped.contains(&(line as u8));
        let silent = world.silence(line);
        if reported != (silent >= us(60_000)) && !(us(55_000)..us(75_000)).contains(&silent) {
            checks.fail(format!(
                "line {line} was silent for {silent}, and its stop told: {reported}"
            ));
        }
    }
    if world.sessions == 1 {
        for (line, all) in &arrived.lines {
            let (Some(from), Some(next)) = (all.first(), checks.next) else {
                continue;
            };
            let sent = (from.1..next.sequence())
                .filter(|it| !all.contains(&(0, *it)))
                .count();
            let missing = stats[*line].missing;
            if missing != sent as u64 {
                checks.fail(format!("line {line} left out {missing}, not {sent}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_seeds_keep_every_invariant() {
        let failed: Vec<_> = (0..400).filter_map(|seed| run(seed).err()).collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
