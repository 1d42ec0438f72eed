//! Arrivals that excite each other: a Hawkes process with an exponential kernel, drawn exactly.
//!
//! The intensity is μ, plus n·β·e^(−β·age) for every event so far: each event brings n further ones
//! on average (the branching ratio), soon after it (1/β). The mean rate is μ/(1−n). The time to the
//! next event is the sooner of two independent draws, of the base rate and of the decaying
//! excitement (Dassios and Zhao, 2013); nothing is thinned, so every draw gives an event.

use rand::{Rng, RngExt};
use rand_distr::Exp1;

/// One process. Time is in seconds, relative to the last event.
#[derive(Clone, Copy, Debug)]
pub struct Hawkes {
    base_per_s: f64,
    jump_per_s: f64,
    decay_per_s: f64,
    /// Intensity above the base, right after the last event.
    excitement_per_s: f64,
}

impl Hawkes {
    /// A process at rest. `base_per_s` and `decay_per_s` are above 0 and `branching` lies in
    /// [0, 1), as the config's check makes sure.
    #[must_use]
    pub const fn new(base_per_s: f64, branching: f64, decay_per_s: f64) -> Self {
        Self {
            base_per_s,
            jump_per_s: branching * decay_per_s,
            decay_per_s,
            excitement_per_s: 0.0,
        }
    }

    /// Draws the next event: how many seconds after the last one it comes.
    #[inline]
    pub fn next_after_s(&mut self, rng: &mut impl Rng) -> f64 {
        let from_base: f64 = rng.sample::<f64, _>(Exp1) / self.base_per_s;
        let draw: f64 = rng.sample(Exp1);
        // Remaining probability of the excitement; below 0 it decays without an event.
        let left = 1.0 - self.decay_per_s * draw / self.excitement_per_s;
        let after = if left > 0.0 {
            from_base.min(-left.ln() / self.decay_per_s)
        } else {
            from_base
        };
        let faded = self.excitement_per_s * (-self.decay_per_s * after).exp();
        self.excitement_per_s = faded + self.jump_per_s;
        after
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn gaps(seed: u64, branching: f64) -> Vec<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut hawkes = Hawkes::new(100.0, branching, 400.0);
        (0..400_000)
            .map(|_| hawkes.next_after_s(&mut rng))
            .collect()
    }

    /// Variance over mean of squares: 1 for a Poisson process, whose gaps are exponential.
    fn dispersion(gaps: &[f64]) -> f64 {
        let n = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / n;
        gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / n / mean.powi(2)
    }

    #[test]
    fn hawkes_mean_rate_matches_branching_ratio() {
        for (seed, branching) in [(1, 0.0), (2, 0.5), (3, 0.8)] {
            let gaps = gaps(seed, branching);
            let rate = gaps.len() as f64 / gaps.iter().sum::<f64>();
            let expected = 100.0 / (1.0 - branching);
            assert!(
                (rate / expected - 1.0).abs() < 0.03,
                "seed {seed}: {rate} for {expected}"
            );
        }
    }

    #[test]
    fn arrivals_cluster_as_a_poisson_process_does_not() {
        let poisson = dispersion(&gaps(4, 0.0));
        assert!(
            (poisson - 1.0).abs() < 0.02,
            "without branching it is Poisson: {poisson}"
        );
        let excited = dispersion(&gaps(4, 0.7));
        assert!(
            excited > 2.0,
            "gaps vary more than a Poisson process's: {excited}"
        );
    }

    #[test]
    fn counts_over_long_windows_vary_as_theory_says() {
        // For windows much longer than the memory, Var(N)/E(N) tends to 1/(1−n)².
        let (seed, branching) = (5, 0.5);
        let mut counts = vec![0.0_f64; 1];
        let mut at = 0.0;
        for gap in gaps(seed, branching) {
            at += gap;
            counts.resize((at / 0.5) as usize + 1, 0.0);
            *counts.last_mut().unwrap() += 1.0;
        }
        counts.pop();
        let n = counts.len() as f64;
        let mean = counts.iter().sum::<f64>() / n;
        let fano = counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / n / mean;
        assert!((3.4..4.6).contains(&fano), "seed {seed}: {fano} for 4");
    }
}
