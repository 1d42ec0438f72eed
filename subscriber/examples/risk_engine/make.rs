//! Makes a fills file for a stream without trades of one's own. Prices are near the current mark. Only the
//! seed and the stream determine the fills.

use std::collections::HashSet;

use super::engine::Engine;
use super::input::{Fill, header, line};
use tickcast_subscriber::record::RecordRef;

const PORTFOLIOS: [&str; 4] = ["arbitrage", "hedge", "index", "maker"];

/// Writes fills while a stream passes by.
#[derive(Debug)]
pub(crate) struct Maker {
    /// The content of the file.
    pub(crate) text: String,
    state: u64,
    every: u64,
    begun: HashSet<String>,
}

impl Maker {
    /// Creates a maker of one fill per `every` records on average, and one at every instrument's first mark.
    pub(crate) fn new(seed: u64, every: u64) -> Self {
        Self {
            text: header(),
            state: seed,
            every: every.max(1),
            begun: HashSet::new(),
        }
    }

    /// Adds a fill in the record's instrument at random, after the engine has processed the record.
    pub(crate) fn after(&mut self, record: RecordRef<'_>, number: u64, engine: &Engine) {
        let Some(instrument) = engine.about(record) else {
            return;
        };
        let Some(mark) = instrument.market.mark else {
            return;
        };
        let is_first = !self.begun.contains(&instrument.symbol);
        if is_first {
            self.begun.insert(instrument.symbol.clone());
        } else if self.below(self.every) != 0 {
            return;
        }
        let portfolio = PORTFOLIOS[self.below(4) as usize];
        let size = 1 + self.below(500) as i64;
        let is_sale = self.below(2) == 0;
        // The price is up to a twentieth off the mark, so that gains and losses occur.
        let off = mark / 10_000 * (self.below(1_001) as i64 - 500);
        self.text += &line(&Fill {
            after: number,
            portfolio: portfolio.to_owned(),
            symbol: instrument.symbol.clone(),
            quantity: if is_sale { -size } else { size },
            price: mark.saturating_add(off),
        });
    }

    /// Returns a number below `bound` by SplitMix64, which gives the same numbers everywhere.
    const fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
