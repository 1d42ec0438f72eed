//! One seed's world: what the venue sends, and what arrives of it on which line and when.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_feeds::arbiter::Holding;
use tickcast_reliability::types::Nanos;

pub(crate) const fn us(us: u64) -> Nanos {
    Nanos::from_us(us)
}

/// The kind of a packet on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketKind {
    /// Messages `first..end` of a session.
    Messages(u16, u64, u64),
    /// A heartbeat of a session that names the next sequence, or its end.
    Next(u16, u64, bool),
    /// Bytes or a session that do not belong here.
    Foreign,
}

#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Nanos,
    pub(crate) line: usize,
    pub(crate) what: PacketKind,
    pub(crate) payload: Vec<u8>,
}

/// The time for which no process listens, because one was killed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) from: Nanos,
    pub(crate) to: Nanos,
}

/// One seed's world.
pub(crate) struct LinesWorld {
    pub(crate) holding: Holding,
    pub(crate) lines: usize,
    /// Whether nothing exceeds the limits, so that all that arrives is in time.
    pub(crate) is_calm: bool,
    /// Sessions of different names; in a restarted world, runs of one session.
    pub(crate) sessions: u16,
    pub(crate) outage: Option<Outage>,
    /// Whether the venue counts anew in the same session during the outage.
    pub(crate) is_restarted: bool,
    /// When each line dies, if it does.
    pub(crate) deaths: Vec<Option<Nanos>>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) ends_at: Nanos,
}

pub(crate) fn content(session: u16, sequence: u64) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&session.to_be_bytes());
    bytes[2..].copy_from_slice(&sequence.to_be_bytes());
    bytes
}

fn mold(session: &[u8; 10], first: u64, count: u16) -> Vec<u8> {
    let mut bytes = session.to_vec();
    bytes.extend(first.to_be_bytes());
    bytes.extend(count.to_be_bytes());
    bytes
}

fn messages(name: &[u8; 10], session: u16, first: u64, end: u64) -> Vec<u8> {
    let mut bytes = mold(name, first, (end - first) as u16);
    for sequence in first..end {
        bytes.extend(10_u16.to_be_bytes());
        bytes.extend(content(session, sequence));
    }
    bytes
}

impl LinesWorld {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let is_calm = !seed.is_multiple_of(4);
        let holding = Holding {
            stopped_us: 60_000,
            session_us: 100_000,
            packets_max: if is_calm { 4096 } else { 12 },
            ..Holding::live(600, 6_000)
        };
        let lines = rng.random_range(1..=3);
        let jitter = match (is_calm, rng.random_range(0..3)) {
            (_, 0) => 1,
            (true, _) => 500,
            (false, _) => 5_000,
        };
        let lag = if is_calm { 3_000 } else { 12_000 };
        // A generator of its own leaves the other worlds as they are.
        let mut fate = ChaCha8Rng::seed_from_u64(!seed);
        let is_killed = fate.random_bool(0.3);
        let is_restarted = is_killed && fate.random_bool(0.5);
        let has_second = (rng.random_bool(0.3) && !is_killed) || is_restarted;
        let sessions = 1 + u16::from(has_second);
        // The process that is killed has begun by then.
        let last = rng.random_range(100..400_u64) + if is_killed { 200 } else { 0 };
        let begin = if rng.random_bool(0.3) {
            rng.random_range(2..10_000)
        } else {
            1
        };
        // A restarted count is found only below the one before.
        let begin = if is_restarted { begin + 5_000 } else { begin };
        // The venue: when each message is ready.
        let mut ready: Vec<(u16, u64, Nanos)> = Vec::new();
        let mut at = us(1_000_000);
        for session in 0..sessions {
            let begin = if session == 0 { begin } else { 1 };
            // It is found while it lasts: this one has no pauses, and goes on for long enough.
            let is_second_run = is_restarted && session == 1;
            let last = last + if is_second_run { 1_200 } else { 0 };
            for sequence in begin..begin + last {
                let step = match rng.random_range(0..60) {
                    0 if !is_second_run => 20_000,
                    _ => rng.random_range(20..200),
                };
                at = at.after(us(step));
                ready.push((session, sequence, at));
            }
            at = at.after(us(if is_calm || is_restarted { 40_000 } else { 100 }));
        }
        let outage = is_killed.then(|| {
            let from = ready[fate.random_range(200..300)].2;
            let restart = ready.iter().find(|it| it.0 == 1 && is_restarted);
            let begins = restart.map_or(from.after(us(25_000)), |it| it.2);
            let to = begins.after(us(fate.random_range(0..20_000)));
            Outage { from, to }
        });
        let mut world = Self {
            holding,
            lines,
            is_calm,
            sessions,
            outage,
            is_restarted,
            deaths: Vec::new(),
            arrivals: Vec::new(),
            ends_at: at.after(us(100_000)),
        };
        for line in 0..lines {
            world.line(line, &ready, jitter, lag, &mut rng);
        }
        world.strangers(&ready, &mut rng);
        world.far_stray(&ready, &mut fate);
        world.arrivals.sort_by_key(|arrival| arrival.at);
        if let Some(Outage { from, to }) = outage {
            (world.arrivals).retain(|arrival| !(from..to).contains(&arrival.at));
        }
        if rng.random_bool(0.2) && !is_killed {
            // The input ends in the middle of it.
            world.arrivals.truncate(world.arrivals.len() * 3 / 4);
            world.ends_at = Nanos::ZERO;
        }
        world
    }

    /// Returns the name of a session on the wire.
    fn name(&self, session: u16) -> [u8; 10] {
        let mut name = *b"SESSION000";
        name[9] += if self.is_restarted { 0 } else { session as u8 };
        name
    }

    /// Adds the packets of one line.
    fn line(
        &mut self,
        line: usize,
        ready: &[(u16, u64, Nanos)],
        jitter: u64,
        lag: u64,
        rng: &mut ChaCha8Rng,
    ) {
        let base = us(rng.random_range(0..lag));
        let loss = [0.0, 0.02, 0.2][rng.random_range(0..3)];
        let doubled = [0.0, 0.05][rng.random_range(0..2)];
        let pack = rng.random_range(1..=4_usize);
        let dies = self.lines > 1 && line > 0 && rng.random_bool(0.2);
        let dies = dies.then(|| ready[rng.random_range(0..ready.len())].2);
        self.deaths.push(dies);
        let mut packets: Vec<(Nanos, PacketKind, Vec<u8>)> = Vec::new();
        let mut from = 0;
        while from < ready.len() {
            let mut to = from + 1;
            let wanted = rng.random_range(1..=pack);
            while to < ready.len()
                && to - from < wanted
                && ready[to].0 == ready[from].0
                && ready[to].2.since(ready[to - 1].2) < us(1_000)
            {
                to += 1;
            }
            let (session, first, _) = ready[from];
            let (_, last, at) = ready[to - 1];
            let what = PacketKind::Messages(session, first, last + 1);
            let name = self.name(session);
            packets.push((at, what, messages(&name, session, first, last + 1)));
            let is_last = ready.get(to).is_none_or(|next| next.0 != session);
            if is_last {
                for n in 1..=3 {
                    let at = at.after(us(if self.is_calm { 8_000 * n } else { 20 * n }));
                    let count = if n == 3 { 0xFFFF } else { 0 };
                    let payload = mold(&name, last + 1, count);
                    packets.push((at, PacketKind::Next(session, last + 1, n == 3), payload));
                }
            }
            from = to;
        }
        let mut lost_in_a_row = 0;
        for (at, what, payload) in packets {
            let is_lost = rng.random_bool(loss) && (lost_in_a_row < 4 || !self.is_calm);
            lost_in_a_row = if is_lost { lost_in_a_row + 1 } else { 0 };
            if is_lost || dies.is_some_and(|dies| at >= dies) {
                continue;
            }
            let copies = 1 + usize::from(rng.random_bool(doubled));
            for _ in 0..copies {
                self.arrivals.push(Arrival {
                    at: at.after(base).after(us(rng.random_range(0..jitter))),
                    line,
                    what,
                    payload: payload.clone(),
                });
            }
        }
    }

    /// Adds packets that do not belong to the feed.
    fn strangers(&mut self, ready: &[(u16, u64, Nanos)], rng: &mut ChaCha8Rng) {
        // A source may begin with any packet; these come once it has begun.
        let begun = self
            .arrivals
            .iter()
            .map(|it| it.at)
            .min()
            .unwrap_or_default();
        let begun = begun.after(us(14_000));
        let mut first_session = ready.iter().rev().filter(|it| it.0 == 0);
        let ends = first_session.nth(30).map(|it| it.2);
        let begin = rng.random_range(0..4);
        // Two alike would confirm each other.
        for kind in begin..rng.random_range(begin..=4) {
            let (session, sequence, at) = ready[rng.random_range(20..80)];
            let payload = match kind {
                0 => (0..rng.random_range(0..80)).map(|_| rng.random()).collect(),
                1 => b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01".to_vec(),
                2 => messages(b"SESSION007", 7, sequence, sequence + 1),
                // The sequence is damaged.
                _ => {
                    let first = sequence + (1 << 40);
                    messages(&self.name(session), session, first, first + 1)
                }
            };
            let at = at.max(begun);
            if ends.is_some_and(|ends| at >= ends) {
                continue;
            }
            self.arrivals.push(Arrival {
                at,
                line: rng.random_range(0..self.lines),
                what: PacketKind::Foreign,
                payload,
            });
        }
    }

    /// Adds one packet or heartbeat of the session that claims a position far ahead.
    fn far_stray(&mut self, ready: &[(u16, u64, Nanos)], fate: &mut ChaCha8Rng) {
        let begun = self.arrivals.iter().map(|it| it.at).min();
        let (session, sequence, at) = ready[fate.random_range(0..ready.len())];
        let first = sequence + fate.random_range(1_000..100_000);
        let name = self.name(session);
        let payload = match fate.random_bool(0.5) {
            true => mold(&name, first, 0),
            false => messages(&name, session, first, first + 1),
        };
        // The other session is not current yet, or not any more.
        if self.sessions > 1 || fate.random_bool(0.3) {
            return;
        }
        let at = at
            .max(begun.unwrap_or_default())
            .after(us(fate.random_range(0..1_000)));
        let line = fate.random_range(0..self.lines);
        self.arrivals.push(Arrival {
            at,
            line,
            what: PacketKind::Foreign,
            payload,
        });
    }

    /// Returns the longest time for which other lines were heard between two packets of a line.
    pub(crate) fn silence(&self, line: usize) -> Nanos {
        let (mut since, mut longest) = (None, Nanos::ZERO);
        for arrival in self
            .arrivals
            .iter()
            .filter(|it| it.what != PacketKind::Foreign)
        {
            if arrival.line == line {
                since = None;
            } else {
                let since = *since.get_or_insert(arrival.at);
                longest = longest.max(arrival.at.since(since));
            }
        }
        longest
    }
}
