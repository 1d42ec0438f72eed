//! Weather: random faults of each datagram. Faults that happen once are in
//! [`crate::faults::incident`].

use std::collections::BTreeMap;

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::types::Nanos;
use tickcast_reliability::wire::{Datagram, Kind, datagram_flags, relay_flags};

pub use crate::faults::incident::Incident;

/// The receivers that weather affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Every receiver, each independently.
    Each,
    /// All receivers at once: the fault happens before the network forks.
    Common,
    /// This receiver only.
    One(usize),
}

/// The datagrams that weather affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affected {
    /// Every datagram.
    Any,
    /// Datagrams sent for the first time: no heartbeats, no repairs.
    Fresh,
    /// Multicast repairs.
    Repairs,
    /// Heartbeats.
    Heartbeats,
    /// The last datagram of a burst, and END.
    Last,
}

impl Affected {
    /// Returns the name under which a drop of these datagrams is counted.
    const fn dropped(self) -> &'static str {
        match self {
            Self::Any | Self::Fresh => "drop",
            Self::Repairs => "drop_repair",
            Self::Heartbeats => "drop_heartbeat",
            Self::Last => "drop_last",
        }
    }

    fn meets(self, bytes: &[u8]) -> bool {
        if self == Self::Any {
            return true;
        }
        let Ok(datagram) = Datagram::parse(bytes) else {
            return false;
        };
        let header = datagram.header();
        let repaired = header.relay & relay_flags::RETRANSMITTED != 0;
        match self {
            Self::Any => true,
            Self::Fresh => !repaired && header.kind != Kind::Heartbeat,
            Self::Repairs => repaired,
            Self::Heartbeats => header.kind == Kind::Heartbeat,
            Self::Last => {
                let last = header.flags & datagram_flags::LAST_OF_BURST != 0;
                !repaired && (last || header.kind == Kind::End)
            }
        }
    }
}

/// Random loss, damage and reordering.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// The affected receivers.
    pub whom: Whom,
    /// The affected datagrams.
    pub what: Affected,
    /// The affected line; `None` means all lines.
    pub line: Option<u8>,
    /// Share of datagrams dropped, each independently.
    pub drop: f64,
    /// Gilbert-Elliott parameters: long-run share lost, and mean length of a burst.
    pub burst: Option<(f64, f64)>,
    /// Share of datagrams that arrive twice.
    pub duplicate: f64,
    /// Share of datagrams delayed, and the longest additional delay; a delayed datagram may be
    /// overtaken.
    pub late: Option<(f64, Nanos)>,
    /// Share of datagrams with flipped bits.
    pub corrupt: f64,
    /// Share of datagrams truncated.
    pub truncate: f64,
}

impl Weather {
    /// Returns weather without any fault.
    #[must_use]
    pub const fn fair(whom: Whom) -> Self {
        Self {
            whom,
            what: Affected::Any,
            line: None,
            drop: 0.0,
            burst: None,
            duplicate: 0.0,
            late: None,
            corrupt: 0.0,
            truncate: 0.0,
        }
    }
}

/// The damage to a copy of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// No damage.
    None,
    /// Flipped bits.
    Flip {
        /// Index of the first flipped bit.
        first: usize,
        /// Number of flipped bits.
        bits: usize,
    },
    /// Truncated to this many bytes.
    Cut(usize),
}

/// A copy of a datagram that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Additional delay.
    pub late: Nanos,
    /// The damage to the copy.
    pub damage: Damage,
}

/// Number of occurrences of each fault, by name.
pub type FaultCounts = BTreeMap<&'static str, u64>;

/// The state of one piece of weather. Bursts are tracked separately for each path.
pub struct Storm {
    weather: Weather,
    in_burst: Vec<bool>,
}

impl Storm {
    /// Returns weather over this many paths (receiver × line).
    #[must_use]
    pub fn new(weather: Weather, paths: usize) -> Self {
        let in_burst = vec![false; paths.max(1)];
        Self { weather, in_burst }
    }

    /// Returns the affected receivers.
    #[must_use]
    pub const fn whom(&self) -> Whom {
        self.weather.whom
    }

    /// Applies the weather to a datagram on one path. `copies` holds the copies that arrive.
    pub fn meet(
        &mut self,
        path: usize,
        line: u8,
        bytes: &[u8],
        rng: &mut ChaCha8Rng,
        copies: &mut Vec<Copy>,
        counts: &mut FaultCounts,
    ) {
        let weather = &self.weather;
        if weather.line.is_some_and(|wanted| wanted != line) || !weather.what.meets(bytes) {
            return;
        }
        let mut count = |what| *counts.entry(what).or_default() += 1;
        if let Some((loss, mean_len)) = weather.burst {
            let ends = 1.0 / mean_len;
            let begins = ends * loss / (1.0 - loss);
            let bad = &mut self.in_burst[path];
            *bad = if *bad {
                !rng.random_bool(ends)
            } else {
                rng.random_bool(begins)
            };
            if *bad {
                copies.clear();
                return count("burst_drop");
            }
        }
        if weather.drop > 0.0 && rng.random_bool(weather.drop) {
            copies.clear();
            return count(weather.what.dropped());
        }
        if weather.duplicate > 0.0
            && let Some(copy) = copies.first().copied()
            && rng.random_bool(weather.duplicate)
        {
            let late = Nanos(rng.random_range(0..200_000));
            copies.push(Copy { late, ..copy });
            count("duplicate");
        }
        for copy in copies {
            if let Some((share, most)) = weather.late
                && rng.random_bool(share)
            {
                copy.late = copy.late.after(Nanos(rng.random_range(0..=most.0)));
                count("late");
            }
            if weather.corrupt > 0.0 && rng.random_bool(weather.corrupt) {
                copy.damage = Damage::Flip {
                    first: rng.random_range(0..bytes.len() * 8),
                    bits: rng.random_range(1..=3),
                };
                count("corrupt");
            }
            if weather.truncate > 0.0 && rng.random_bool(weather.truncate) {
                copy.damage = Damage::Cut(rng.random_range(0..bytes.len()));
                count("truncate");
            }
        }
    }
}
