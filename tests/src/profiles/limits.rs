//! Where something comes to an end: room in the ring, budgets, numbers; and more than one channel.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::units::Nanos;

use crate::faults::Whom;
use crate::incident::Incident;
use crate::plan::{Plan, ms, pick, us};

impl Plan {
    /// Adds the trouble of this profile, if it is one of these.
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
