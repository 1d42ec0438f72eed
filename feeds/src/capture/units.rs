//! The units of time stamps: stamps show another one than their file states.
//!
//! A stamp of pcapng counts units since 1970, so a wrong unit makes it implausible: before 1990, behind
//! 2100, or beyond 64 bits of ns. A stamp of pcap has whole seconds, so a coarser unit only shows by
//! fractions that never come near a second.

use tickcast_reliability::types::Nanos;

use super::finding::CaptureFinding;

const NS_PER_S: u64 = 1_000_000_000;
/// Units that capture tools write, by their number in a second. Whole seconds are none: they look like the
/// microseconds since a machine's start.
const UNITS: [u64; 3] = [1_000, 1_000_000, NS_PER_S];
/// 1990 and 2100, in seconds since 1970. The ratio is below 1000, so two units of [`UNITS`] never agree.
const PLAUSIBLE_S: std::ops::Range<i128> = 631_152_000..4_102_444_800;
/// Stamps in several seconds that show a coarser unit.
const STAMPS_MIN: u32 = 8;
const SECONDS_MIN: u32 = 3;

/// The unit of some stamps, in parts of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Units in a second as the file states them.
    stated: u128,
    /// Units in a second as the stamps show them, if those are others.
    shown: Option<u64>,
    /// Whether a stamp was plausible as stated.
    is_confirmed: bool,
}

impl Unit {
    /// Returns the unit that a file states.
    pub(super) const fn stated(per_second: u128) -> Self {
        Self {
            stated: per_second,
            shown: None,
            is_confirmed: false,
        }
    }

    /// Takes the unit that stamps show, instead of the one stated.
    pub(super) const fn show(&mut self, per_second: u64) {
        self.shown = Some(per_second);
    }

    /// Judges a stamp of units since 1970, shifted by some seconds. Until one is plausible as stated, the
    /// only other unit that makes one plausible is taken.
    pub(super) fn judge(&mut self, ticks: u64, offset_s: i64) {
        if self.is_confirmed || ticks == 0 {
            return;
        }
        let is_plausible = |per_second: u128| {
            let seconds = (u128::from(ticks) / per_second) as i128 + i128::from(offset_s);
            PLAUSIBLE_S.contains(&seconds)
        };
        self.is_confirmed = is_plausible(self.stated);
        let other = UNITS.into_iter().find(|unit| is_plausible((*unit).into()));
        self.shown = match self.is_confirmed {
            true => None,
            false => self.shown.or(other),
        };
    }

    /// Returns the units in a second that count.
    pub(super) fn per_second(&self) -> u128 {
        self.shown.map_or(self.stated, u128::from)
    }

    /// Returns the finding of another unit than the file states.
    pub(super) fn finding(&self) -> Option<CaptureFinding> {
        let shown = self.shown?;
        Some(CaptureFinding::UnitTaken {
            stated: u64::try_from(self.stated).unwrap_or(u64::MAX),
            shown,
        })
    }
}

/// Returns whether a time is behind 2100, or saturated.
pub(super) fn is_beyond(at: Nanos) -> bool {
    i128::from(at.0 / NS_PER_S) >= PLAUSIBLE_S.end
}

/// Stamps of whole seconds and a fraction, of a file that may have another unit of the fraction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fractions {
    stamps: u32,
    /// Changes of the second.
    seconds: u32,
    last_s: Option<u32>,
    /// Stamps of a fraction from each unit on, and the lowest and highest one below the unit.
    beyond: [u32; UNITS.len()],
    below: [Option<(u32, u32)>; UNITS.len()],
}

impl Fractions {
    /// Adds a stamp.
    pub(super) fn add(&mut self, seconds: u32, fraction: u32) {
        self.stamps += 1;
        self.seconds += u32::from(self.last_s.replace(seconds) != Some(seconds));
        let units = self.beyond.iter_mut().zip(&mut self.below).zip(UNITS);
        for ((beyond, below), unit) in units {
            if u64::from(fraction) >= unit {
                *beyond += 1;
            } else {
                let (low, high) = below.unwrap_or((fraction, fraction));
                *below = Some((low.min(fraction), high.max(fraction)));
            }
        }
    }

    /// Returns the only unit that the stamps allow, if it is not the stated one: a finer one where most
    /// fractions exceed a second, a coarser one where nearly all lie within and are spread over it.
    pub(super) fn unit(&self, stated: u64) -> Option<u64> {
        let is_finer =
            |index: usize| self.beyond[index] > 1 && self.beyond[index] * 2 > self.stamps;
        let is_coarser = |index: usize, unit: u64| {
            let spread = self.below[index].map_or(0, |(low, high)| high - low);
            self.stamps >= STAMPS_MIN
                && self.seconds >= SECONDS_MIN
                && self.is_within(index)
                && u64::from(spread) * 2 >= unit
        };
        let mut units = UNITS.into_iter().enumerate();
        let own = units.clone().find(|(_, unit)| *unit == stated)?.0;
        match is_finer(own) {
            true => units.find(|(index, unit)| *unit > stated && !is_finer(*index)),
            false => units.find(|(index, unit)| *unit < stated && is_coarser(*index, *unit)),
        }
        .map(|(_, unit)| unit)
    }

    /// Returns whether further stamps may show a coarser unit.
    pub(super) fn is_open(&self, stated: u64) -> bool {
        let mut coarser = (0..UNITS.len()).filter(|index| UNITS[*index] < stated);
        let is_many = self.stamps >= STAMPS_MIN && self.seconds >= SECONDS_MIN;
        !is_many && coarser.any(|index| self.is_within(index))
    }

    /// Returns whether nearly all fractions are below a unit. Some may be damaged.
    const fn is_within(&self, index: usize) -> bool {
        self.beyond[index] * 8 <= self.stamps
    }
}
