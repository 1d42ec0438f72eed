//! Medians and spread over the turns of a contender.

use serde::Serialize;

/// The median of some values, and their spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Number of values.
    pub(crate) turns: usize,
}

impl Spread {
    /// Returns the spread of some values; `None` without values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (&low, &high) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Self {
            median,
            low,
            high,
            turns: values.len(),
        })
    }
}

/// Returns the ratios of two contenders. Each turn is compared with the other's turn of the same round,
/// because a slowdown of the machine affects both.
pub(crate) fn ratio(ours: &[Option<f64>], theirs: &[Option<f64>]) -> Option<Spread> {
    let rounds = ours.iter().zip(theirs);
    let both = rounds.filter_map(|(ours, theirs)| Some(((*ours)?, (*theirs)?)));
    Spread::of(
        both.filter(|(_, theirs)| *theirs > 0.0)
            .map(|(ours, theirs)| ours / theirs),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_middle_value_or_mean_of_two() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        let odd = of(&[9.0, 1.0, 2.0]).unwrap();
        assert_eq!(
            (odd.median, odd.low, odd.high, odd.turns),
            (2.0, 1.0, 9.0, 3)
        );
        assert_eq!(of(&[4.0, 1.0, 2.0, 9.0]).unwrap().median, 3.0);
        assert_eq!(of(&[]), None);
        assert_eq!(
            of(&[f64::NAN, 5.0]).unwrap().turns,
            1,
            "no value is not one"
        );
    }

    #[test]
    fn ratio_is_computed_within_each_round() {
        // The machine was half as fast in the second round: that is no spread of the ratio.
        let ours = [Some(8.0), Some(4.0), None, Some(8.0)];
        let theirs = [Some(2.0), Some(1.0), Some(2.0), Some(0.0)];
        let ratio = ratio(&ours, &theirs).unwrap();
        assert_eq!(
            (ratio.median, ratio.low, ratio.high, ratio.turns),
            (4.0, 4.0, 4.0, 2)
        );
        assert_eq!(super::ratio(&ours, &[]), None);
    }
}
