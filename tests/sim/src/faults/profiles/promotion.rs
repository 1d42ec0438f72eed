//! Promotions of standbys: by a hand-over, after the publisher's death, or forced while it is
//! running.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::types::Nanos;

use crate::faults::incident::Incident;
use crate::faults::plan::{Plan, ms, pick, us};
use crate::faults::weather::Whom;

impl Plan {
    /// Adds promotions and returns `true`, if the profile is one of this module. With keys, an impostor
    /// forges datagrams of every publisher so far, and no check makes allowance for it.
    pub(super) fn add_promotion(
        &mut self,
        profile: &'static str,
        share: f64,
        rng: &mut ChaCha8Rng,
    ) -> bool {
        match profile {
            "promotion" => {}
            "promotion-keys" => self.datagrams_per_key = Some(pick(rng, &[64, 512, 1 << 22])),
            _ => return false,
        }
        self.weather(Whom::Each, |w| w.drop = share);
        self.faults_until = self.faults_until.after(ms(60));
        self.feed_until = self.faults_until.after(ms(40));
        self.standbys = pick(rng, &[1, 1, 2]);
        let others = self.receivers;
        self.receivers_at_least(others + self.standbys, rng);
        for (config, start) in &mut self.subscribers[others..] {
            (config.delivery, config.repair) = (Delivery::Ordered, true);
            (config.window_slots, *start) = (1024, Start::Oldest);
        }
        if rng.random_bool(0.2) {
            // The writer laps the ring while a standby is unreachable, which leaves a hole in its mirror.
            (self.ring_slots, self.spacing) = (pick(rng, &[16, 32]), us(50));
        }
        let mut at = Nanos(rng.random_range(ms(12).0..self.faults_until.0 / 2));
        for round in 0..rng.random_range(1..=2) {
            let standby = others + round % self.standbys;
            self.promote(standby, at, rng);
            at = at.after(ms(rng.random_range(10..60)));
        }
        for _ in 0..rng.random_range(0..=2) {
            let (at, whom) = (self.some_time(rng), self.whom(rng));
            self.at(at, Incident::Reset(whom));
        }
        if self.datagrams_per_key.is_some() {
            (0..rng.random_range(1..=3)).for_each(|_| self.campaign(rng));
        }
        true
    }

    /// Adds one promotion: its cause, and the faults around it.
    fn promote(&mut self, standby: usize, at: Nanos, rng: &mut ChaCha8Rng) {
        if rng.random_bool(0.6) {
            // The mirror lags at the promotion: the last datagrams sent are not in it.
            let lags = us(rng.random_range(200..8_000));
            let from = Nanos(at.0.saturating_sub(lags.0));
            let lasts = lags.after(us(rng.random_range(1..3_000)));
            let whom = Some(standby);
            let (stop, pass) = (Incident::DatagramsStop(whom), Incident::DatagramsPass(whom));
            self.spell(from, lasts, stop, pass);
            self.spell(
                from,
                lasts,
                Incident::DownStops(whom),
                Incident::DownPasses(whom),
            );
        }
        let later = at.after(us(rng.random_range(0..30_000)));
        match rng.random_range(0..6) {
            0 | 1 => self.at(at, Incident::HandOver(standby)),
            2 => self.spell(
                at,
                later.since(at),
                Incident::Kill,
                Incident::Promote(standby),
            ),
            3 => self.spell(
                at,
                later.since(at),
                Incident::PowerCut,
                Incident::Promote(standby),
            ),
            4 => {
                // The old publisher pauses, and resumes after another has taken its place.
                self.at(at, Incident::Pause);
                self.at(later, Incident::Promote(standby));
                self.at(later.after(ms(rng.random_range(1..20))), Incident::Unpause);
            }
            _ => {
                // The old publisher never stopped.
                self.at(at, Incident::Promote(standby));
                self.at(later, Incident::Reset(self.whom(rng)));
                if rng.random_bool(0.5) {
                    self.at(later, Incident::Divert);
                    self.at(later.after(ms(rng.random_range(1..10))), Incident::Divert);
                    self.at(later.after(ms(12)), Incident::Reset(None));
                }
            }
        }
    }
}
