//! Faults without any effect on subscribers: the other line delivers the datagrams that one line
//! loses, a briefly busy application misses nothing, and forged datagrams change nothing.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::types::Nanos;

use crate::faults::incident::{Forgery, Incident};
use crate::faults::plan::Plan;
use crate::faults::weather::{Weather, Whom};

const FORGERIES: [Forgery; 4] = [
    Forgery::BrokenEnd,
    Forgery::StrayEnd,
    Forgery::EndedHeartbeat,
    Forgery::Leap,
];

impl Plan {
    /// Adds the faults of this profile.
    pub(super) fn add_quiet(&mut self, profile: &str, rng: &mut ChaCha8Rng) {
        match profile {
            "one-line" => {
                (self.lines, self.unasked) = (2, true);
                self.alike();
                let mut weather = Weather::fair(Whom::Each);
                (weather.line, weather.drop) = (Some(0), 0.05);
                self.weather.push(weather);
            }
            "busy-reader" => {
                self.untouched_from = 0;
                self.socket_datagrams = 10_000;
                self.alike();
                let mut at = Nanos::from_ms(12);
                while at < self.faults_until {
                    let lasts = Nanos(rng.random_range(1_000_000..3_000_000));
                    let of = rng.random_range(0..self.receivers);
                    self.incidents.push((at, Incident::Stall(of)));
                    self.incidents.push((at.after(lasts), Incident::Resume(of)));
                    at = at.after(lasts).after(Nanos::from_us(500));
                }
            }
            _ => {
                for _ in 0..20 {
                    let at = Nanos(rng.random_range(5_000_000..self.faults_until.0));
                    let forgery = FORGERIES[rng.random_range(0..FORGERIES.len())];
                    self.incidents.push((at, Incident::Forge(forgery)));
                }
            }
        }
    }

    /// Removes reordering, makes room enough, and makes every subscriber start live and in order.
    fn alike(&mut self) {
        (self.ring_slots, self.delay.1) = (1024, self.delay.0);
        self.line_skew = Nanos::from_us(30);
        self.starts_at.fill(None);
        self.incidents.clear();
        for (config, start) in &mut self.subscribers {
            *start = Start::Live;
            (config.delivery, config.repair) = (Delivery::Ordered, true);
            (config.window_slots, config.line_skew_us) = (1024, 500);
            config.progress_us = 1_000;
        }
    }
}
