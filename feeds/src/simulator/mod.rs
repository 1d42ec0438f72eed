//! A market for machines without captures: the same seed and config give the same MoldUDP64
//! packets, byte for byte, and behind them stand real books that anyone can compare with.
//!
//! A day runs in stages: directory and opening, a session in which each symbol's orders arrive as
//! a self-exciting process ([`hawkes`]) and are matched by price and time ([`book`]), closing, end
//! of session. Time is simulated; nothing here waits. Once it runs nothing is allocated.

pub mod book;
pub mod config;
mod encode;
pub mod hawkes;
mod market;

use std::{cmp::Reverse, collections::BinaryHeap};

use tickcast_reliability::types::Nanos;

pub use self::config::{Arrivals, Mix, SimulatorConfig, SimulatorError};
use self::{
    book::Book,
    encode::{Outbox, PacketWriter},
    market::Market,
};
use crate::itch::messages::{DeclineLevels, Head, SystemEvent};

/// Between two steps of the opening or the closing.
const STEP_NS: u64 = 1_000;
/// A quiet line carries a heartbeat so often.
const HEARTBEAT_NS: u64 = 1_000_000_000;
const DAY_NS: u64 = 86_400_000_000_000;
/// End-of-session packets, so that the loss of one does not hide the end.
const END_PACKETS: u8 = 3;
const END_PACKET_NS: u64 = 10_000_000;

/// A packet, and when the venue sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedPacket<'a> {
    /// Simulated time since the stream began: the time of its last message. Never decreases.
    pub at: Nanos,
    /// The UDP payload.
    pub payload: &'a [u8],
}

/// Current stage of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// S O, S S, V.
    StartOfDay,
    /// R for every symbol.
    Directory(u16),
    /// H, Y, L, h.
    TradingActions(u16),
    /// The books' first orders.
    Seeds(u16),
    /// I.
    OpeningImbalances(u16),
    /// S Q.
    StartOfMarket,
    /// Q, with its C.
    OpeningCrosses(u16),
    Trading,
    ClosingImbalances(u16),
    /// S M.
    EndOfMarket,
    ClosingCrosses(u16),
    /// S E, S C.
    EndOfDay,
    /// End-of-session packets that are left.
    Ended(u8),
}

/// A simulated venue.
#[derive(Clone, Debug)]
pub struct Simulator {
    market: Market,
    /// When each symbol's next arrival is due.
    arrivals: BinaryHeap<Reverse<(u64, u16)>>,
    stage: Stage,
    now: u64,
    /// When trading ends at the latest.
    close_at: u64,
    duration_ns: u64,
    day_ends_at: u64,
    messages_max: u64,
    coalesce_ns: u64,
    outbox: Outbox,
    writer: PacketWriter,
    /// When the packet in `writer` was begun.
    packet_at: u64,
    sent_at: u64,
    is_finished: bool,
}

impl Simulator {
    /// Sets the market up.
    ///
    /// # Errors
    /// [`SimulatorError`] when the config makes no market.
    pub fn new(config: &SimulatorConfig, seed: u64) -> Result<Self, SimulatorError> {
        config.check()?;
        let begins_at_ns = u64::from(config.begins_at_s) * 1_000_000_000;
        let unless_zero = |n: u64| if n == 0 { u64::MAX } else { n };
        Ok(Self {
            market: Market::new(config, seed),
            arrivals: BinaryHeap::with_capacity(config.symbols.into()),
            stage: Stage::StartOfDay,
            now: 0,
            close_at: u64::MAX,
            duration_ns: unless_zero(config.duration_ms.saturating_mul(1_000_000)),
            day_ends_at: if config.is_endless() {
                u64::MAX
            } else {
                DAY_NS - begins_at_ns
            },
            messages_max: unless_zero(config.messages),
            coalesce_ns: config.coalesce_us.saturating_mul(1_000),
            outbox: Outbox::new(),
            writer: PacketWriter::new(&config.session, config.payload_max),
            packet_at: 0,
            sent_at: 0,
            is_finished: false,
        })
    }

    /// The next packet; `None` after the end of the session.
    #[inline]
    pub fn next_packet(&mut self) -> Option<SimulatedPacket<'_>> {
        if std::mem::take(&mut self.is_finished) {
            self.writer.begin();
        }
        loop {
            if self.writer.is_empty() {
                self.packet_at = self.now;
            }
            if !self.writer.take(&mut self.outbox) {
                return Some(self.finish(self.now));
            }
            let due = self.due();
            if self.writer.is_empty() {
                if matches!(self.stage, Stage::Ended(_)) {
                    return self.end_of_session();
                }
                if due > self.sent_at.saturating_add(HEARTBEAT_NS) {
                    return Some(self.finish(self.sent_at + HEARTBEAT_NS));
                }
            } else if due > self.packet_at.saturating_add(self.coalesce_ns) {
                return Some(self.finish(self.now));
            }
            self.step(due);
        }
    }

    /// The book of a symbol, by stock locate (from 1). It is what the packets so far add up to
    /// whenever [`Simulator::is_settled`].
    #[must_use]
    pub fn book(&self, locate: u16) -> Option<&Book> {
        let index = usize::from(locate).checked_sub(1)?;
        self.market.symbols.get(index).map(|symbol| &symbol.book)
    }

    /// How many symbols there are; their locates are 1 to this.
    #[must_use]
    pub fn symbols(&self) -> u16 {
        self.market.symbols.len() as u16
    }

    /// A symbol's name, padded with spaces.
    #[must_use]
    pub fn name(&self, locate: u16) -> Option<[u8; 8]> {
        let index = usize::from(locate).checked_sub(1)?;
        self.market.symbols.get(index).map(|symbol| symbol.stock)
    }

    /// Whether every message that was made is in a packet that was given out.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.outbox.is_empty() && (self.is_finished || self.writer.is_empty())
    }

    /// How many messages were made so far.
    #[must_use]
    pub const fn messages(&self) -> u64 {
        self.outbox.made()
    }

    fn finish(&mut self, at: u64) -> SimulatedPacket<'_> {
        self.is_finished = true;
        self.sent_at = at.max(self.sent_at);
        SimulatedPacket {
            at: Nanos(self.sent_at),
            payload: self.writer.finish(),
        }
    }

    fn end_of_session(&mut self) -> Option<SimulatedPacket<'_>> {
        let Stage::Ended(left) = self.stage else {
            return None;
        };
        self.stage = Stage::Ended(left.checked_sub(1)?);
        self.sent_at += END_PACKET_NS;
        Some(SimulatedPacket {
            at: Nanos(self.sent_at),
            payload: self.writer.end_of_session(),
        })
    }

    /// When the next step happens.
    #[inline]
    fn due(&self) -> u64 {
        match (self.stage, self.arrivals.peek()) {
            (Stage::Trading, Some(&Reverse((at, _)))) => at.min(self.close_at),
            (Stage::StartOfDay, _) => self.now,
            _ => self.now + STEP_NS,
        }
    }

    /// Lets the next thing happen.
    #[inline]
    fn step(&mut self, now: u64) {
        self.now = now;
        if self.stage != Stage::Trading {
            return self.scripted();
        }
        if now >= self.close_at || self.outbox.made() >= self.messages_max {
            self.stage = Stage::ClosingImbalances(0);
            return;
        }
        if let Some(mut next) = self.arrivals.peek_mut() {
            let Reverse((at, symbol)) = *next;
            self.market.arrival(symbol.into(), now, &mut self.outbox);
            let after = self.market.next_arrival(symbol.into());
            *next = Reverse((at.saturating_add(after), symbol));
        }
    }

    /// A step of the opening or the closing: one stage, for one symbol where it concerns symbols.
    #[cold]
    fn scripted(&mut self) {
        let now = self.now;
        let Self { market, outbox, .. } = self;
        match self.stage {
            Stage::StartOfDay => {
                self.event(b'O');
                self.event(b'S');
                // 7, 13 and 20 % below an index of 5,000.
                let levels = DeclineLevels {
                    head: self.venue_head(),
                    level_1: 465_000_000_000,
                    level_2: 435_000_000_000,
                    level_3: 400_000_000_000,
                };
                self.outbox.push(levels.to_bytes());
            }
            Stage::Directory(n) => market.announce(n.into(), now, outbox),
            Stage::TradingActions(n) => market.open_for_orders(n.into(), now, outbox),
            Stage::Seeds(n) => market.seed_book(n.into(), now, outbox),
            Stage::OpeningImbalances(n) => market.imbalance(n.into(), now, b'O', outbox),
            Stage::StartOfMarket => self.event(b'Q'),
            Stage::OpeningCrosses(n) => {
                market.cross(n.into(), now, b'O', outbox);
                let after = market.next_arrival(n.into());
                self.arrivals.push(Reverse((now.saturating_add(after), n)));
                self.close_at = now.saturating_add(self.duration_ns).min(self.day_ends_at);
            }
            Stage::ClosingImbalances(n) => market.imbalance(n.into(), now, b'C', outbox),
            Stage::EndOfMarket => self.event(b'M'),
            Stage::ClosingCrosses(n) => {
                market.resume(n.into(), now, outbox);
                market.cross(n.into(), now, b'C', outbox);
            }
            Stage::EndOfDay => {
                self.event(b'E');
                self.event(b'C');
            }
            Stage::Trading | Stage::Ended(_) => {}
        }
        self.stage = self.stage_after();
    }

    fn stage_after(&self) -> Stage {
        let each = |n: u16, again: fn(u16) -> Stage, then: Stage| {
            if n + 1 < self.symbols() {
                again(n + 1)
            } else {
                then
            }
        };
        match self.stage {
            Stage::StartOfDay => Stage::Directory(0),
            Stage::Directory(n) => each(n, Stage::Directory, Stage::TradingActions(0)),
            Stage::TradingActions(n) => each(n, Stage::TradingActions, Stage::Seeds(0)),
            Stage::Seeds(n) => each(n, Stage::Seeds, Stage::OpeningImbalances(0)),
            Stage::OpeningImbalances(n) => each(n, Stage::OpeningImbalances, Stage::StartOfMarket),
            Stage::StartOfMarket => Stage::OpeningCrosses(0),
            Stage::OpeningCrosses(n) => each(n, Stage::OpeningCrosses, Stage::Trading),
            Stage::ClosingImbalances(n) => each(n, Stage::ClosingImbalances, Stage::EndOfMarket),
            Stage::EndOfMarket => Stage::ClosingCrosses(0),
            Stage::ClosingCrosses(n) => each(n, Stage::ClosingCrosses, Stage::EndOfDay),
            Stage::EndOfDay => Stage::Ended(END_PACKETS),
            Stage::Trading | Stage::Ended(_) => self.stage,
        }
    }

    fn event(&mut self, event: u8) {
        let head = self.venue_head();
        self.outbox.push(SystemEvent { head, event }.to_bytes());
    }

    /// The head of a message about no symbol.
    const fn venue_head(&self) -> Head {
        Head {
            locate: 0,
            ..self.market.head(0, self.now)
        }
    }
}
