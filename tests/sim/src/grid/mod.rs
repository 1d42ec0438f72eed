//! The cost and duration of repair for every kind of loss, rate, group size and repair mode. The
//! table has the same bytes on every run and machine, and is kept in `tests/golden/grid.md`.
//!
//! Each row is one run of the simulation with default settings of publisher and subscribers, on a
//! network with a round trip of 10 us, as `rtt_us` says. Loss also affects heartbeats and multicast
//! repairs. TCP loses nothing. Rows are left out where unicast repairs to a thousand receivers
//! exceed the repair budget many times over. [`broken`] returns the rules that must hold whatever
//! the figures are.

mod rules;
mod table;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tickcast_reliability::control::Start;
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::serve::RepairConfig;
use tickcast_reliability::types::Nanos;

use crate::faults::incident::Incident;
use crate::faults::plan::Mode;
use crate::faults::plan::Plan;
use crate::faults::weather::{Weather, Whom};
use crate::report::Tally;
use crate::trace::Trace;
use crate::world::run;

pub use rules::broken;
pub use table::{difference, table};

/// The kind of loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// No loss.
    None,
    /// All receivers miss the same datagrams.
    Common,
    /// Only one receiver misses datagrams.
    One,
    /// Each receiver misses datagrams independently.
    Each,
    /// Each receiver misses datagrams independently, in bursts (Gilbert-Elliott) of 10 on average.
    Burst,
    /// All receivers miss one run that takes a fifth of the time.
    Run,
    /// All receivers miss one run that takes half the time of a faster feed: nearly `burst_max`
    /// sequences, before any receiver considers the publisher silent.
    Long,
}

/// The parameters of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Kind of loss.
    pub loss: Loss,
    /// Share of datagrams lost, in thousandths.
    pub per_mille: u32,
    /// Number of subscribers.
    pub receivers: usize,
    /// Whether the publisher advises a hold-off and repairs by multicast the sequences that many
    /// miss.
    pub multicast: bool,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct GridRow {
    /// Parameters of the row.
    pub cell: Cell,
    /// Counters of the run.
    pub tally: Tally,
    /// The violation, if any.
    pub violation: Option<String>,
}

/// Group sizes.
const RECEIVERS: [usize; 4] = [1, 10, 100, 1_000];
/// Loss rates, each with a duration of the feed that is long enough for some loss.
const RATES: [(u32, Nanos); 6] = [
    (0, Nanos::from_ms(10)),
    (1, Nanos::from_ms(100)),
    (10, Nanos::from_ms(40)),
    (50, Nanos::from_ms(15)),
    (200, Nanos::from_ms(20)),
    (LONG_PER_MILLE, Nanos::from_us(37_500)),
];
/// Start of the feed; all subscribers have joined by then.
const BEGINS: Nanos = Nanos::from_ms(10);
/// Seed of the feed and of the random faults.
const SEED: u64 = 7;
const ONE_WAY: Nanos = Nanos::from_us(5);
const BURST_LEN: f64 = 10.0;
/// Share of the feed that a run of loss takes, in thousandths.
const RUN_PER_MILLE: u32 = 200;
/// Share of the feed that a long run of loss takes, in thousandths.
const LONG_PER_MILLE: u32 = 500;

/// Returns every cell with at most this many receivers, in the order of the table.
#[must_use]
pub fn cells(receivers_max: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    let all = [
        Loss::None,
        Loss::Common,
        Loss::One,
        Loss::Each,
        Loss::Burst,
        Loss::Run,
        Loss::Long,
    ];
    for loss in all {
        let rates = RATES.iter().map(|(per_mille, _)| *per_mille);
        for per_mille in rates.filter(|rate| loss.has(*rate)) {
            for receivers in RECEIVERS.into_iter().filter(|n| *n <= receivers_max) {
                let pair = [false, true].map(|multicast| Cell {
                    loss,
                    per_mille,
                    receivers,
                    multicast,
                });
                cells.extend(pair.into_iter().filter(|cell| !cell.is_hopeless()));
            }
        }
    }
    cells
}

/// Returns all cells but the largest groups, of which one in four stays, chosen by the seed.
#[must_use]
pub fn sample(seed: u64) -> Vec<Cell> {
    let mut cells = cells(usize::MAX);
    let mut turn = seed;
    cells.retain(|cell| {
        let is_large = cell.receivers == RECEIVERS[RECEIVERS.len() - 1];
        turn = turn.wrapping_add(is_large.into());
        !is_large || turn.is_multiple_of(4)
    });
    cells
}

/// Runs these cells on all cores and calls `done` after each. Returns the rows in the order of the
/// cells.
#[must_use]
pub fn measure(cells: &[Cell], done: &(dyn Fn(usize) + Sync)) -> Vec<GridRow> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // The largest cells run first, so that no thread is left with one at the end.
    let mut order: Vec<usize> = (0..cells.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(cells[*at].receivers));
    let work = || {
        let mine = std::iter::from_fn(|| order.get(next.fetch_add(1, Relaxed)).copied());
        mine.map(|at| {
            let row = cells[at].run();
            done(finished.fetch_add(1, Relaxed) + 1);
            (at, row)
        })
        .collect::<Vec<_>>()
    };
    let mut rows: Vec<(usize, GridRow)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined
            .flat_map(|rows| rows.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    rows.sort_by_key(|(at, _)| *at);
    rows.into_iter().map(|(_, row)| row).collect()
}

impl Loss {
    fn has(self, per_mille: u32) -> bool {
        match self {
            Self::None => per_mille == 0,
            Self::Run => per_mille == RUN_PER_MILLE,
            Self::Long => per_mille == LONG_PER_MILLE,
            Self::Common | Self::One | Self::Each | Self::Burst => {
                (1..LONG_PER_MILLE).contains(&per_mille)
            }
        }
    }
}

impl Cell {
    const fn is_hopeless(self) -> bool {
        let many_lose = !matches!(self.loss, Loss::None | Loss::One);
        match self.loss {
            Loss::Long => self.receivers > if self.multicast { 100 } else { 10 },
            _ => many_lose && !self.multicast && self.receivers >= 1_000 && self.per_mille >= 50,
        }
    }

    /// Runs the cell.
    #[must_use]
    pub fn run(self) -> GridRow {
        let outcome = run(self.plan(), Trace::default(), None);
        GridRow {
            cell: self,
            tally: outcome.tally,
            violation: outcome.violation,
        }
    }

    fn plan(self) -> Plan {
        let feeds = RATES.iter().find(|(rate, _)| *rate == self.per_mille);
        let lasts = feeds.map_or(Nanos::ZERO, |(_, lasts)| *lasts);
        let until = BEGINS.after(lasts);
        let share = f64::from(self.per_mille) / 1_000.0;
        let weather = |whom, burst| Weather {
            drop: if burst { 0.0 } else { share },
            burst: burst.then_some((share, BURST_LEN)),
            ..Weather::fair(whom)
        };
        let one_run = |after: u64| {
            let begins = BEGINS.after(Nanos(after));
            let ends = begins.after(Nanos(lasts.0 / 1_000 * u64::from(self.per_mille)));
            vec![
                (begins, Incident::DatagramsStop(None)),
                (ends, Incident::DatagramsPass(None)),
            ]
        };
        let config = ReceiverConfig {
            // Small windows, because a thousand receivers must fit in memory.
            window_slots: match self.loss {
                Loss::Long => 4_096,
                _ => 512,
            },
            ..ReceiverConfig::default()
        };
        Plan {
            mode: Mode::Liveness,
            lines: 1,
            fan_outs: 1,
            ring_slots: 8_192,
            slot_len: 1_024,
            spacing: match self.loss {
                Loss::Long => Nanos::from_us(20),
                _ => Nanos::from_us(100),
            },
            burst: 10,
            feed_from: BEGINS,
            faults_until: until,
            feed_until: until,
            delay: (ONE_WAY, ONE_WAY),
            connection_bytes_per_s: 1_000_000_000,
            weather: match self.loss {
                Loss::None | Loss::Run | Loss::Long => Vec::new(),
                Loss::Common => vec![weather(Whom::Common, false)],
                Loss::One => vec![weather(Whom::One(0), false)],
                Loss::Each => vec![weather(Whom::Each, false)],
                Loss::Burst => vec![weather(Whom::Each, true)],
            },
            incidents: match self.loss {
                Loss::Run => one_run(lasts.0 / 2),
                Loss::Long => one_run(lasts.0 / 4),
                _ => Vec::new(),
            },
            subscribers: vec![(config, Start::Live); self.receivers],
            repair: RepairConfig {
                peers_max: self.receivers * 4 + 16,
                multicast_repair: self.multicast,
                ..RepairConfig::default()
            },
            heartbeat: Default::default(),
            settle: Nanos::from_secs(3),
            channels: 1,
            starts_at: vec![None; self.receivers],
            lapped_mid_copy: 0.0,
            nack_path: false,
            read_path: false,
            ..Plan::of(SEED, Some("calm"), Some(self.receivers))
        }
    }
}
