//! Faults of hosts and processes: they pause, end, restart, join in numbers, or misbehave.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::Delivery;

use crate::faults::incident::Incident;
use crate::faults::plan::{Mode, Plan, ms, pick, us};
use crate::faults::weather::{Affected, Whom};

impl Plan {
    /// Adds the faults of this profile and returns `true`, if it is one of this module.
    pub(super) fn add_hosts(
        &mut self,
        profile: &'static str,
        (share, many): (f64, u32),
        rng: &mut ChaCha8Rng,
    ) -> bool {
        match profile {
            "one-receiver" => {
                self.receivers_at_least(3, rng);
                self.untouched_from = 1;
                // Room for the history that subscribers miss that have just joined.
                self.ring_slots = 1024;
                for (config, _) in &mut self.subscribers {
                    config.window_slots = 1024;
                }
                // No reordering, so that every gap has an injected fault as its cause.
                self.delay.1 = self.delay.0;
                self.weather(Whom::One(0), |w| w.drop = share.max(0.05));
                let (at, lasts) = (self.some_time(rng), ms(rng.random_range(1..60)));
                self.spell(at, lasts, Incident::Stall(0), Incident::Resume(0));
                let at = self.some_time(rng);
                self.at(at, Incident::Reset(Some(0)));
            }
            "stall" => {
                for _ in 0..many {
                    let (at, lasts) = (self.some_time(rng), ms(rng.random_range(1..120)));
                    let of = rng.random_range(0..self.receivers);
                    self.spell(at, lasts, Incident::Stall(of), Incident::Resume(of));
                }
            }
            "pause" => {
                let (at, lasts) = (self.some_time(rng), ms(rng.random_range(1..150)));
                self.spell(at, lasts, Incident::Pause, Incident::Unpause);
            }
            "restart" | "power-cut" => {
                self.weather(Whom::Each, |w| w.drop = share);
                for _ in 0..rng.random_range(1..=2) {
                    let (at, lasts) = (self.some_time(rng), ms(rng.random_range(0..80)));
                    let end = match profile {
                        "restart" => Incident::Kill,
                        _ => Incident::PowerCut,
                    };
                    self.spell(at, lasts, end, Incident::Start);
                }
            }
            "gone" => {
                self.gone = true;
                self.weather(Whom::Each, |w| w.drop = share);
                let at = self.some_time(rng);
                let end = [Incident::Kill, Incident::PowerCut];
                self.at(at, pick(rng, &end));
            }
            "zombie" => {
                self.weather(Whom::Each, |w| w.drop = share);
                let at = self.some_time(rng);
                self.at(at, Incident::Pause);
                let (starts, back) = (rng.random_range(1..30), rng.random_range(30..60));
                self.at(at.after(ms(starts)), Incident::Start);
                self.at(at.after(ms(back)), Incident::Unpause);
            }
            "two-publishers" => {
                self.weather(Whom::Each, |w| w.drop = share);
                let at = self.some_time(rng);
                self.at(at, Incident::Start);
                for _ in 0..many {
                    let (at, whom) = (self.some_time(rng), self.whom(rng));
                    self.at(at, Incident::Reset(whom));
                    let at = self.some_time(rng);
                    self.at(at, Incident::Divert);
                }
            }
            "clock-step" => {
                self.weather(Whom::Each, |w| w.drop = 0.01);
                for _ in 0..many {
                    let at = self.some_time(rng);
                    let step = rng.random_range(-3_600_000..3_600_000);
                    self.at(at, Incident::ClockStep(step));
                }
            }
            "churn" => {
                self.weather(Whom::Each, |w| w.drop = 0.01);
                for _ in 0..rng.random_range(2..=12) {
                    let (at, lasts) = (self.some_time(rng), ms(rng.random_range(0..60)));
                    let of = rng.random_range(0..self.receivers);
                    let leave = Incident::Leave(of, rng.random_bool(0.5));
                    self.spell(at, lasts, leave, Incident::Join(of));
                }
            }
            "join-storm" => {
                self.receivers_at_least(10, rng);
                self.all_join_first = false;
                self.weather(Whom::Common, |w| w.drop = 0.02);
                let at = self.some_time(rng);
                for of in 0..self.receivers {
                    let spread = us(rng.random_range(0..500));
                    self.at(at.after(spread), Incident::Join(of));
                }
            }
            "fan-out-stall" => {
                let (at, lasts) = (self.some_time(rng), ms(rng.random_range(5..100)));
                let of = rng.random_range(0..self.fan_outs);
                let (stalls, goes_on) = (Incident::FanOutStalls(of), Incident::FanOutGoesOn(of));
                self.spell(at, lasts, stalls, goes_on);
            }
            "fencing" => {
                self.weather(Whom::Each, |w| w.drop = share.min(0.05));
                let at = self.some_time(rng);
                self.at(at, Incident::StartTwin(rng.random_bool(0.5)));
                for _ in 0..many {
                    let (at, whom) = (self.some_time(rng), self.whom(rng));
                    self.at(at, Incident::Reset(whom));
                    let at = self.some_time(rng);
                    self.at(at, Incident::Divert);
                }
            }
            "broken-one" => self.break_one(rng),
            "start-at" => {
                self.weather(Whom::Each, |w| w.drop = 0.01);
                for of in 0..self.receivers {
                    self.begins_at(of, rng);
                }
                if rng.random_bool(0.3) {
                    let at = self.some_time(rng);
                    self.spell(
                        at,
                        ms(rng.random_range(0..10)),
                        Incident::Kill,
                        Incident::Start,
                    );
                }
            }
            _ => return false,
        }
        true
    }

    /// Breaks the first subscriber in every way; the only fault of the others is loss.
    fn break_one(&mut self, rng: &mut ChaCha8Rng) {
        self.receivers_at_least(3, rng);
        (self.broken, self.mode) = (Some(0), Mode::Liveness);
        self.starts_at.fill(None);
        self.incidents.clear();
        self.ring_slots = 1024;
        // The broken subscriber's NACKs saturate this rate as well as a higher one, at a fiftieth of the
        // simulation cost.
        self.connection_bytes_per_s = 20_000_000;
        for (config, start) in &mut self.subscribers {
            (config.window_slots, config.delivery) = (1024, Delivery::Ordered);
            (config.repair, *start) = (true, Start::Live);
        }
        self.delay.1 = self.delay.0;
        for of in 1..self.receivers {
            let share = pick(rng, &[0.0, 0.001, 0.01]);
            // The same loss applies whether the broken subscriber is present or absent.
            self.weather(Whom::One(of), |w| {
                (w.what, w.drop) = (Affected::Fresh, share);
            });
        }
        let share = pick(rng, &[0.1, 0.5]);
        self.weather(Whom::One(0), |w| (w.drop, w.corrupt) = (share, 0.1));
        self.weather(Whom::One(0), |w| (w.what, w.drop) = (Affected::Any, 0.1));
        // The broken subscriber floods, and stops polling for good or for some spells.
        self.at(ms(12), Incident::Flood(0));
        match rng.random_range(0..3) {
            0 => {}
            1 => self.at(ms(20), Incident::Stall(0)),
            _ => {
                for _ in 0..4 {
                    let (at, lasts) = (self.some_time(rng), ms(rng.random_range(1..30)));
                    self.spell(at, lasts, Incident::Stall(0), Incident::Resume(0));
                }
            }
        }
    }
}
