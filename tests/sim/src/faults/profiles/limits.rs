//! Faults at limits: of the ring, of budgets, of sequence numbers; and runs with two channels.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::types::Nanos;

use crate::faults::incident::Incident;
use crate::faults::plan::{Plan, ms, pick, us};
use crate::faults::weather::Whom;

impl Plan {
    /// Adds the faults of this profile and returns `true`, if it is one of this module.
    pub(super) fn add_limits(
        &mut self,
        profile: &'static str,
        (share, _): (f64, u32),
        rng: &mut ChaCha8Rng,
    ) -> bool {
        match profile {
            "lapped" => {
                (self.ring_slots, self.spacing) = (pick(rng, &[16, 32]), us(50));
                self.repair.repair_bytes_per_s = 2_000_000;
                self.repair.subscriber_bytes_per_s = 1_000_000;
                self.repair.joiner_bytes_per_s = 1_000_000;
                self.tight_bursts();
                self.weather(Whom::Each, |w| w.burst = Some((0.1, 12.0)));
            }
            "near-2-32" => {
                let near = (1 << 32) - rng.random_range(0..300);
                self.first = (near, near);
                self.weather(Whom::Each, |w| w.drop = share);
            }
            "near-2-64" => {
                let near = u64::MAX - rng.random_range(100..3000);
                self.first = (near, u64::MAX - (1 << 32));
                self.weather(Whom::Each, |w| w.drop = share);
            }
            "tight-budget" => {
                self.weather(Whom::Each, |w| w.drop = share.max(0.15));
                self.repair.repair_bytes_per_s = rng.random_range(150_000..1_500_000);
                self.repair.subscriber_bytes_per_s = self.repair.repair_bytes_per_s / 2;
                self.repair.joiner_bytes_per_s = rng.random_range(150_000..1_500_000);
                self.repair.pending_ranges_max = pick(rng, &[2, 16, 1024]);
                self.settle = Nanos::from_secs(30);
                self.tight_bursts();
            }
            "long-runs" => {
                // Runs about as long as the repair limit, beyond which replay is needed. The ring
                // and the windows hold more than one of these runs.
                (self.ring_slots, self.spacing, self.burst) = (8_192, us(100), 10);
                self.connection_bytes_per_s = 1_000_000_000;
                for (config, _) in &mut self.subscribers {
                    config.window_slots = pick(rng, &[1_024, 4_096]);
                    config.burst_max = pick(rng, &[500, 2_048, 2_048]);
                    config.replay_in_flight = 512;
                }
                self.weather(Whom::Each, |w| w.drop = share.min(0.01));
                for _ in 0..rng.random_range(1..=3) {
                    let (whom, at) = (self.whom(rng), self.some_time(rng));
                    let lasts = us(rng.random_range(5_000..40_000));
                    let (stop, pass) =
                        (Incident::DatagramsStop(whom), Incident::DatagramsPass(whom));
                    self.spell(at, lasts, stop, pass);
                }
            }
            "lapped-mid-copy" => {
                self.ring_slots = pick(rng, &[16, 32, 64]);
                self.lapped_mid_copy = pick(rng, &[0.05, 0.3]);
                self.weather(Whom::Each, |w| w.drop = share.max(0.02));
            }
            "two-channels" => {
                self.channels = 2;
                self.weather(Whom::Each, |w| w.drop = share);
                if rng.random_bool(0.5) {
                    let at = self.some_time(rng);
                    self.spell(
                        at,
                        ms(rng.random_range(0..30)),
                        Incident::Kill,
                        Incident::Start,
                    );
                }
            }
            _ => return false,
        }
        true
    }
}
