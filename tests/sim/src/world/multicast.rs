//! Multicast: datagrams that arrive or not, once or twice, whole or damaged, in any order.

use rand::RngExt;
use rand::seq::SliceRandom;
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::record::words_as_bytes;
use tickcast_reliability::types::Nanos;

use crate::faults::weather::{Copy, Damage, Whom};
use crate::network::clock_queue::Event;
use crate::network::packet::{Packet, damaged};
use crate::world::World;
use crate::world::drive_subscriber::Came;

impl World {
    /// Sends a datagram on all lines of a fan-out.
    pub(crate) fn multicast(&mut self, fan_out: u8, packet: &Packet) {
        let (least, most) = self.plan.delay;
        let mut common = Vec::new();
        let mut copies = Vec::new();
        for line in 0..self.plan.lines {
            self.tally.datagrams += 1;
            let left_at = self.left_at(packet.len);
            common.clear();
            common.push(Copy {
                late: Nanos::ZERO,
                damage: Damage::None,
            });
            self.weather(Whom::Common, line.into(), line, packet, &mut common);
            for number in 0..self.subscribers.len() {
                let subscriber = &self.subscribers[number];
                let here = number % usize::from(self.plan.fan_outs) == usize::from(fan_out);
                let member = subscriber.is_member(packet.channel, line);
                if !here || !subscriber.alive || !member {
                    continue;
                }
                if self.cut[number][0] {
                    self.count("partition_drop");
                    continue;
                }
                copies.clear();
                copies.extend_from_slice(&common);
                let path = number * 2 + usize::from(line);
                self.weather(Whom::One(number), path, line, packet, &mut copies);
                for copy in &copies {
                    let rng = &mut self.subscribers[number].rng;
                    let jitter = rng.random_range(0..=most.0 - least.0);
                    let skew = Nanos(self.plan.line_skew.0 * u64::from(line));
                    let takes = least.after(Nanos(jitter)).after(skew).after(copy.late);
                    let packet = damaged(packet, copy.damage);
                    let at = left_at.after(takes);
                    self.schedule(at, Event::Datagram(number, line, packet));
                }
            }
        }
    }

    fn weather(
        &mut self,
        whom: Whom,
        path: usize,
        line: u8,
        packet: &Packet,
        copies: &mut Vec<Copy>,
    ) {
        if !self.weather || self.storms.is_empty() {
            return;
        }
        let bytes = &words_as_bytes(&packet.words)[..packet.len];
        let rng = match whom {
            Whom::One(number) => &mut self.subscribers[number].weather,
            _ => &mut self.rng,
        };
        for storm in &mut self.storms {
            let meets = match storm.whom() {
                Whom::Common => whom == Whom::Common,
                Whom::Each => whom != Whom::Common,
                one => whom == one,
            };
            if meets {
                storm.meet(path, line, bytes, rng, copies, &mut self.faults);
            }
        }
    }

    pub(crate) fn datagram_arrives(
        &mut self,
        number: usize,
        line: u8,
        packet: Packet,
    ) -> Result<(), String> {
        let subscriber = &mut self.subscribers[number];
        if !subscriber.alive || !subscriber.is_member(packet.channel, line) {
            return Ok(());
        }
        if self.clogged[number][0] {
            self.held[number].push((line, packet));
            self.count("datagram_held");
            return Ok(());
        }
        if subscriber.stalled {
            if subscriber.socket.len() < self.plan.socket_datagrams {
                subscriber.socket.push_back((line, packet));
            } else {
                self.count("socket_overflow");
            }
            return Ok(());
        }
        self.hear(number, line, &packet)?;
        self.pump(number)
    }

    /// Releases the datagrams that a clogged link delayed, in any order.
    pub(crate) fn release(&mut self, number: usize) {
        let mut held = std::mem::take(&mut self.held[number]);
        let rng = &mut self.subscribers[number].rng;
        held.shuffle(rng);
        let mut at = self.now;
        for (line, packet) in held {
            at = at.after(Nanos(self.subscribers[number].rng.random_range(0..2_000)));
            self.schedule(at, Event::Datagram(number, line, packet));
        }
    }

    pub(crate) fn hear(&mut self, number: usize, line: u8, packet: &Packet) -> Result<(), String> {
        self.tally.heard += 1;
        let bytes = &words_as_bytes(&packet.words)[..packet.len];
        let channel = packet.channel;
        self.with_datagram(number, (bytes, Came::Line(line)), |core, now, mut on| {
            core.handle_bytes(now, (channel, LineId(line)), bytes, false, &mut on);
        })
    }
}
