//! Whether two samples differ by more than chance: the test of Mann and Whitney.

/// The probability below which a difference counts as one, over all comparisons of a page.
pub(crate) const SIGNIFICANCE: f64 = 0.01;
/// Fewer values on a side say nothing.
pub(crate) const VALUES_MIN: usize = 8;

/// The outcome of a comparison of B with A.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// A side has too few values.
    TooFew,
    /// The difference may be chance, with this probability.
    Noise(f64),
    /// B is lower, and the probability of chance is this.
    Lower(f64),
    /// B is higher, and the probability of chance is this.
    Higher(f64),
}

/// Compares two samples. Of `comparisons` on one page, all together err with the significance
/// (Bonferroni).
pub(crate) fn verdict(a: &[u64], b: &[u64], comparisons: usize) -> Verdict {
    if a.len().min(b.len()) < VALUES_MIN {
        return Verdict::TooFew;
    }
    let (z, p) = mann_whitney(a, b);
    match p * comparisons.max(1) as f64 {
        corrected if corrected >= SIGNIFICANCE => Verdict::Noise(p),
        _ if z > 0.0 => Verdict::Higher(p),
        _ => Verdict::Lower(p),
    }
}

/// Returns the standardised rank sum of `b` against `a`, and its two-sided probability: normal approximation
/// with correction for ties and continuity.
fn mann_whitney(a: &[u64], b: &[u64]) -> (f64, f64) {
    let mut all: Vec<(u64, bool)> = a.iter().map(|it| (*it, false)).collect();
    all.extend(b.iter().map(|it| (*it, true)));
    all.sort_unstable();
    let (n, of_a, of_b) = (all.len() as f64, a.len() as f64, b.len() as f64);
    let (mut ranks_of_b, mut ties, mut before) = (0.0, 0.0, 0);
    for equal in all.chunk_by(|one, next| one.0 == next.0) {
        let count = equal.len() as f64;
        let rank = before as f64 + (count + 1.0) / 2.0;
        ranks_of_b += rank * equal.iter().filter(|it| it.1).count() as f64;
        ties += count.powi(3) - count;
        before += equal.len();
    }
    let u = ranks_of_b - of_b * (of_b + 1.0) / 2.0;
    let off = u - of_a * of_b / 2.0;
    let variance = of_a * of_b / 12.0 * ((n + 1.0) - ties / (n * (n - 1.0)));
    if variance <= 0.0 {
        return (0.0, 1.0);
    }
    let z = off.signum() * (off.abs() - 0.5).max(0.0) / variance.sqrt();
    (z, (2.0 * upper_tail(z.abs())).min(1.0))
}

/// Returns the probability that a standard normal value is above `z`, at least 0. The relative error is below
/// 1.2e-7 (Numerical Recipes, `erfcc`).
fn upper_tail(z: f64) -> f64 {
    const TERMS: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let x = z / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * x);
    let sum = TERMS.iter().fold(0.0, |sum, term| sum * t + term);
    0.5 * t * (-x * x + sum).exp()
}

/// Returns the median; 0 for an empty sample.
pub(crate) fn median(values: &[u64]) -> u64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    match values.len() {
        0 => 0,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_of_the_normal_distribution_is_that_of_tables() {
        for (z, expected) in [
            (0.0, 0.5),
            (1.0, 0.158_655_254),
            (1.959_964, 0.025),
            (2.575_829, 0.005),
            (4.0, 3.167_124e-5),
            (6.0, 9.865_877e-10),
        ] {
            let found = upper_tail(z);
            assert!((found / expected - 1.0).abs() < 1e-5, "{z}: {found}");
        }
    }

    /// The expected values are those of `scipy.stats.mannwhitneyu` with `method="asymptotic"`.
    #[test]
    fn rank_test_has_the_probabilities_of_another_implementation() {
        let a = [19, 22, 16, 29, 24];
        let b = [20, 11, 17, 12];
        let (z, p) = mann_whitney(&a, &b);
        assert!(z < 0.0 && (p - 0.111_346_886_533).abs() < 1e-6, "{z} {p}");
        let a = [1, 2, 2, 3, 3, 3, 4, 5];
        let b = [3, 3, 4, 4, 5, 6, 6, 7];
        let (z, p) = mann_whitney(&a, &b);
        assert!(z > 0.0 && (p - 0.024_412_519_075).abs() < 1e-6, "{z} {p}");
    }

    #[test]
    fn shift_beyond_the_spread_is_a_difference_and_noise_is_none() {
        let a: Vec<u64> = (0..20).map(|n| 1_000 + 7 * (n % 5)).collect();
        let b: Vec<u64> = a.iter().map(|it| it + 100).collect();
        assert!(matches!(verdict(&a, &b, 4), Verdict::Higher(p) if p < 1e-6));
        assert!(matches!(verdict(&b, &a, 4), Verdict::Lower(p) if p < 1e-6));
        assert!(matches!(verdict(&a, &a, 4), Verdict::Noise(p) if p > 0.999));
        assert_eq!(verdict(&[5; 20], &[5; 20], 1), Verdict::Noise(1.0));
        assert_eq!(verdict(&a[..7], &b, 4), Verdict::TooFew);
        // A weak difference stands alone, and not among a hundred comparisons.
        let c: Vec<u64> = a.iter().map(|it| it + 12).collect();
        assert!(matches!(verdict(&a, &c, 1), Verdict::Higher(_)));
        assert!(matches!(verdict(&a, &c, 100), Verdict::Noise(_)));
    }

    #[test]
    fn median_lies_between_the_middle_values() {
        assert_eq!(
            [
                median(&[]),
                median(&[3]),
                median(&[9, 1]),
                median(&[9, 1, 2])
            ],
            [0, 3, 5, 2]
        );
    }
}
