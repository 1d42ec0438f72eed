//! Trouble that nobody may notice: what one line loses the other brings, an application that is
//! busy for a moment misses nothing, and a forger's datagrams change nothing.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tickcast_reliability::control::Start;
use tickcast_reliability::delivery::Delivery;
use tickcast_reliability::types::{
    ConfigHash, Epoch, Nanos, RecordNumber, Sequence, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{HEADER_LEN, Header, Heartbeat, Kind, PublisherState, crc_of};

use crate::faults::{Weather, Whom};
use crate::incident::Incident;
use crate::multicast::packet;
use crate::profiles::Plan;
use crate::subscriber::CHANNEL;
use crate::world::World;

/// A datagram that no publisher sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// An END whose CRC is wrong.
    BrokenEnd,
    /// An END of an epoch that nobody opened.
    StrayEnd,
    /// A heartbeat of this epoch that says that it has ended.
    EndedHeartbeat,
    /// A datagram of this epoch, many rings ahead.
    Leap,
}

const FORGERIES: [Forgery; 4] = [
    Forgery::BrokenEnd,
    Forgery::StrayEnd,
    Forgery::EndedHeartbeat,
    Forgery::Leap,
];

impl Plan {
    /// Adds one of these troubles.
    pub(crate) fn add_quiet(&mut self, profile: &str, rng: &mut ChaCha8Rng) {
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

    /// Nothing overtakes, there is room enough, and everyone follows live and in order.
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

impl World {
    /// Someone on the network sends this to everyone.
    pub(crate) fn forge(&mut self, forgery: Forgery) {
        let publisher = &self.publishers[self.endpoint];
        let (core, epoch) = (&publisher.feeds[0].core, publisher.epoch);
        let sealed = core.sealed();
        let far = sealed.plus(core.ring().geometry().slots() * 4);
        let (kind, epoch, sequence) = match forgery {
            Forgery::BrokenEnd => (Kind::End, epoch, sealed),
            Forgery::StrayEnd => (Kind::End, Epoch(epoch.0 + 1_000_000), sealed),
            Forgery::EndedHeartbeat => (Kind::Heartbeat, epoch, sealed),
            Forgery::Leap => (Kind::Event, epoch, far),
        };
        let body = Heartbeat {
            next_interval_us: 100,
            hold_off_us: 0,
            subscribers: 1,
            state: PublisherState::Ended,
            config_hash: ConfigHash(1),
        };
        let body: &[u8] = match kind {
            Kind::Heartbeat => &body.to_bytes(),
            _ => &[],
        };
        let header = Header {
            kind,
            channel: CHANNEL,
            count: 0,
            epoch,
            sequence,
            first_record: RecordNumber(0),
            source_position: SourcePosition(0),
            sent_at: Nanos::ZERO,
            retained: 1,
            source: SourceId(0),
            payload_len: body.len() as u16,
            flags: 0,
            header_len: HEADER_LEN as u16,
            relay: 0,
        };
        let crc = crc_of(&header.to_bytes(0), body);
        let wrong = u32::from(forgery == Forgery::BrokenEnd);
        let mut bytes = header.to_bytes(crc ^ wrong).to_vec();
        bytes.extend_from_slice(body);
        if sequence == Sequence::NONE {
            return;
        }
        for fan_out in 0..self.plan.fan_outs {
            self.multicast(fan_out, &packet(CHANNEL, &bytes));
        }
    }
}
