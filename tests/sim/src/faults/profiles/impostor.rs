//! Impostors: forged datagrams with right CRCs, contiguous behind the newest one, walking ahead, far
//! ahead, behind, or alternating with genuine ones.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::types::Nanos;
use tickcast_reliability::wire::Kind;

use crate::faults::incident::{Attack, ForgedFrom, Incident};
use crate::faults::plan::{Mode, Plan, ms, pick, us};
use crate::faults::weather::Whom;

const KINDS: [Kind; 6] = [
    Kind::Data,
    Kind::Data,
    Kind::Data,
    Kind::Event,
    Kind::End,
    Kind::Heartbeat,
];

impl Plan {
    /// Adds an impostor and returns `true`, if the profile is one of this module.
    pub(super) fn add_impostor(
        &mut self,
        profile: &'static str,
        (share, many): (f64, u32),
        rng: &mut ChaCha8Rng,
    ) -> bool {
        match profile {
            "impostor" => {}
            "impostor-loss" | "impostor-keys" | "impostor-deadline" => {
                self.weather(Whom::Each, |w| {
                    (w.drop, w.duplicate, w.late) = (share, share, Some((share, us(500))));
                });
                for _ in 0..rng.random_range(0..=many) {
                    let (at, whom) = (self.some_time(rng), self.whom(rng));
                    self.at(at, Incident::Reset(whom));
                }
            }
            _ => return false,
        }
        self.mode = Mode::Liveness;
        // With keys, no check makes allowance for the impostor.
        match profile {
            "impostor-keys" => self.datagrams_per_key = Some(pick(rng, &[64, 512, 1 << 22])),
            _ => self.impostor = true,
        }
        // A publisher at its peak fills the ring no faster than the repair connection answers.
        self.ring_slots = pick(rng, &[256, 1024]);
        // Another start or number would join later, in the midst of the attacks.
        self.starts_at.fill(None);
        self.incidents
            .retain(|(_, it)| !matches!(it, Incident::Join(_)));
        if profile == "impostor-deadline" {
            self.impatient(rng);
        }
        for _ in 0..rng.random_range(1..=3) {
            self.campaign(rng);
        }
        true
    }

    /// Lets every subscriber give up what does not come in time, and an impostor claim what follows.
    fn impatient(&mut self, rng: &mut ChaCha8Rng) {
        if rng.random_bool(0.5) {
            // STATUS comes after the shortest deadlines.
            self.delay = (us(400), us(410));
        }
        for (config, _) in &mut self.subscribers {
            config.repair = !rng.random_bool(0.1);
            config.delivery = match rng.random_range(0..10) {
                0..7 => Delivery::OrderedWithin(us(rng.random_range(500..4_000))),
                7..9 => Delivery::Arrival,
                _ => Delivery::Ordered,
            };
        }
        let (mut at, kind) = (
            self.some_time(rng),
            pick(rng, &[Kind::Heartbeat, Kind::Data]),
        );
        for _ in 0..rng.random_range(1..20) {
            let from = ForgedFrom::Ahead(rng.random_range(1..32));
            let count = rng.random_range(1..8);
            self.at(at, Incident::Attack(Attack { from, kind, count }));
            at = at.after(Nanos(rng.random_range(0..ms(4).0)));
        }
    }

    /// Adds attacks of one kind, one after the other.
    pub(super) fn campaign(&mut self, rng: &mut ChaCha8Rng) {
        let slots = self.ring_slots;
        let kind = pick(rng, &KINDS);
        let (from, count, every, rounds) = match rng.random_range(0..5) {
            // Contiguous, in one burst.
            0 => (
                ForgedFrom::Next,
                rng.random_range(1..slots * 3),
                ms(10),
                1..4,
            ),
            // Walking ahead for ever.
            1 => (ForgedFrom::Walk, rng.random_range(1..64), us(200), 20..200),
            2 => {
                let ahead = rng.random_range(1..slots * 2);
                (
                    ForgedFrom::Ahead(ahead),
                    rng.random_range(1..8),
                    ms(1),
                    1..20,
                )
            }
            3 => {
                let behind = rng.random_range(0..slots * 2);
                (
                    ForgedFrom::Behind(behind),
                    rng.random_range(1..64),
                    ms(1),
                    1..20,
                )
            }
            // Alternating with genuine ones.
            _ => (ForgedFrom::Next, 1, self.spacing, 20..200),
        };
        let mut at = self.some_time(rng);
        for _ in 0..rng.random_range(rounds) {
            let attack = Attack { from, kind, count };
            self.at(at, Incident::Attack(attack));
            at = at.after(Nanos(rng.random_range(every.0 / 2..every.0 * 2)));
        }
    }
}
