//! Faults of the network: loss, damage, reordering, partitions, and links that delay what they
//! carry.

use rand::RngExt;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::types::Nanos;

use crate::faults::incident::{Incident, LinkDirection};
use crate::faults::plan::{Plan, ms, pick, us};
use crate::faults::weather::{Affected, Whom};

impl Plan {
    /// Adds the faults of this profile and returns `true`, if it is one of this module.
    pub(super) fn add_network(
        &mut self,
        profile: &'static str,
        (share, many): (f64, u32),
        rng: &mut ChaCha8Rng,
    ) -> bool {
        match profile {
            "iid" => self.weather(Whom::Each, |w| w.drop = share),
            "burst" => {
                let mean = pick(rng, &[3.0, 20.0, 100.0]);
                self.weather(Whom::Each, |w| w.burst = Some((share, mean)));
            }
            "common" => {
                self.weather(Whom::Common, |w| w.drop = share);
                if rng.random_bool(0.5) {
                    self.weather(Whom::Common, |w| w.burst = Some((0.02, 10.0)));
                }
            }
            "only-nacks" => {
                self.weather(Whom::Each, |w| w.drop = share);
                for _ in 0..many {
                    let (whom, at) = (self.whom(rng), self.some_time(rng));
                    let lasts = ms(rng.random_range(1..50));
                    self.spell(at, lasts, Incident::UpStops(whom), Incident::UpPasses(whom));
                }
            }
            "only-repairs" => {
                self.weather(Whom::Common, |w| w.drop = share);
                self.weather(Whom::Each, |w| {
                    (w.what, w.drop) = (Affected::Repairs, 0.7);
                });
                for _ in 0..many {
                    let (whom, at) = (self.whom(rng), self.some_time(rng));
                    let lasts = ms(rng.random_range(1..50));
                    let (stop, pass) = (Incident::DownStops(whom), Incident::DownPasses(whom));
                    self.spell(at, lasts, stop, pass);
                }
                if rng.random_bool(0.4) {
                    // Many receivers repeat their NACKs, because their repairs are lost on every path.
                    self.receivers_at_least(8, rng);
                    self.repair.multicast_repair = true;
                    self.repair.repair_coalesce_us = 2_000;
                    self.weather(Whom::Each, |w| {
                        (w.what, w.drop) = (Affected::Repairs, 0.9);
                    });
                    self.at(ms(12), Incident::DownStops(None));
                }
            }
            "only-heartbeats" => self.weather(Whom::Each, |w| {
                (w.what, w.drop) = (Affected::Heartbeats, 0.9);
            }),
            "only-last" => self.weather(Whom::Each, |w| {
                (w.what, w.drop) = (Affected::Last, 0.8);
            }),
            "duplicate" => self.weather(Whom::Each, |w| w.duplicate = 0.3),
            "reorder" => self.weather(Whom::Each, |w| w.late = Some((0.2, us(500)))),
            "reorder-unbounded" => self.weather(Whom::Each, |w| w.late = Some((0.1, ms(60)))),
            "corrupt" => self.weather(Whom::Each, |w| w.corrupt = share),
            "truncate" => self.weather(Whom::Each, |w| w.truncate = share),
            "delay" => self.weather(Whom::Common, |w| w.late = Some((share, ms(20)))),
            "partition-one-way" => {
                for _ in 0..many {
                    let (whom, at) = (self.whom(rng), self.some_time(rng));
                    let lasts = ms(rng.random_range(5..150));
                    let (stop, pass) = match rng.random_range(0..3) {
                        0 => (Incident::UpStops(whom), Incident::UpPasses(whom)),
                        1 => (Incident::DownStops(whom), Incident::DownPasses(whom)),
                        _ => (Incident::DatagramsStop(whom), Incident::DatagramsPass(whom)),
                    };
                    self.spell(at, lasts, stop, pass);
                }
            }
            "partition-two-way" => {
                let (whom, at) = (self.whom(rng), self.some_time(rng));
                let lasts = ms(rng.random_range(5..150));
                self.isolate(at, lasts, whom);
            }
            "outage" => {
                // One second without the network, at a rate that laps the ring many times.
                self.spacing = us(50);
                (self.faults_until, self.feed_until) = (ms(1_100), ms(1_150));
                let whom = self.whom(rng);
                self.isolate(ms(60), Nanos::from_secs(1), whom);
            }
            "membership" => {
                for _ in 0..many {
                    let (at, of) = (self.some_time(rng), rng.random_range(0..self.receivers));
                    self.at(at, Incident::LoseMembership(of));
                }
            }
            "resets" => {
                self.weather(Whom::Each, |w| w.drop = share);
                for _ in 0..rng.random_range(1..10) {
                    let (at, whom) = (self.some_time(rng), self.whom(rng));
                    self.at(at, Incident::Reset(whom));
                }
            }
            "line-skew" => {
                self.lines = 2;
                self.line_skew = pick(rng, &[us(300), ms(2), ms(20)]);
                self.weather(Whom::Each, |w| (w.line, w.drop) = (Some(0), share));
                self.weather(Whom::Each, |w| w.late = Some((0.2, us(500))));
            }
            "nack-link-breaks" => {
                self.nack_path = true;
                self.weather(Whom::Each, |w| w.drop = share.max(0.02));
                for _ in 0..rng.random_range(1..8) {
                    let (at, whom) = (self.some_time(rng), self.whom(rng));
                    self.at(at, Incident::RcResets(whom));
                }
                for _ in 0..many {
                    let (whom, at) = (self.whom(rng), self.some_time(rng));
                    let lasts = ms(rng.random_range(1..40));
                    self.spell(at, lasts, Incident::RcStops(whom), Incident::RcPasses(whom));
                }
            }
            "swizzle" => self.swizzle(rng),
            _ => return false,
        }
        true
    }

    /// Clogs some links one after the other and releases them in another order.
    fn swizzle(&mut self, rng: &mut ChaCha8Rng) {
        self.weather(Whom::Each, |w| w.drop = 0.01);
        for _ in 0..rng.random_range(1..=2) {
            let mut links = Vec::new();
            for of in 0..self.receivers {
                for link in [
                    LinkDirection::Datagrams,
                    LinkDirection::Up,
                    LinkDirection::Down,
                ] {
                    if rng.random_bool(0.6) {
                        links.push((of, link));
                    }
                }
            }
            links.push((
                rng.random_range(0..self.receivers),
                LinkDirection::Datagrams,
            ));
            let (mut at, step) = (self.some_time(rng), us(rng.random_range(10..3_000)));
            for (of, link) in &links {
                self.at(at, Incident::Clog(*of, *link));
                at = at.after(step);
            }
            links.shuffle(rng);
            for (of, link) in links {
                at = at.after(step);
                self.at(at, Incident::Unclog(of, link));
            }
        }
    }

    fn isolate(&mut self, at: Nanos, lasts: Nanos, whom: Option<usize>) {
        self.spell(at, lasts, Incident::UpStops(whom), Incident::UpPasses(whom));
        let (stop, pass) = (Incident::DownStops(whom), Incident::DownPasses(whom));
        self.spell(at, lasts, stop, pass);
        let (stop, pass) = (Incident::DatagramsStop(whom), Incident::DatagramsPass(whom));
        self.spell(at, lasts, stop, pass);
    }
}
