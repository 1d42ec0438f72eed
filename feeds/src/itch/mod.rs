//! Nasdaq TotalView-ITCH 5.0: MoldUDP64 packets or a file's messages in, DBN records out.
//!
//! [`messages`] is the layout, [`normalise`] what each message becomes, [`orders`] the open orders
//! (ITCH refers to them by number), [`clock`] the venue's day.

pub mod clock;
pub mod messages;
pub mod normalise;
pub mod orders;
pub(crate) mod packets;
mod records;

use std::net::Ipv4Addr;

use tickcast_reliability::types::{Nanos, SourcePosition};

pub use self::clock::TradeDate;
use self::{clock::SessionClock, normalise::Normaliser, orders::Orders};
use crate::arbiter::{Arbiter, Lines, Listen};
use crate::moldudp64::MoldUdp64;
use crate::source::{
    Decoder, FeedSession, Incident, LineStats, MessageCounts, Packet, ResumePoint, Sink,
};

/// Facts that an [`ItchDecoder`] needs beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItchSettings {
    /// The day the venue's times belong to.
    pub trade_date: TradeDate,
    /// DBN publisher of the records.
    pub publisher_id: u16,
    /// Orders held at most; 48 to 96 bytes of memory each.
    pub orders_max: usize,
    /// Whether a first packet beyond sequence 1 is a gap rather than a late join.
    pub expect_from_one: bool,
    /// The lines of the source.
    pub lines: Lines,
}

impl Default for ItchSettings {
    fn default() -> Self {
        Self {
            trade_date: TradeDate::default(),
            publisher_id: Normaliser::XNAS_ITCH,
            orders_max: 1 << 23,
            expect_from_one: false,
            lines: Lines::default(),
        }
    }
}

/// MoldUDP64 with the messages of ITCH.
const PROTOCOL: MoldUdp64 = MoldUdp64::new(|message| messages::ItchMessage::read(message).is_ok());

/// Decodes one stream of ITCH 5.0.
#[derive(Clone, Debug)]
pub struct ItchDecoder {
    arbiter: Arbiter<MoldUdp64>,
    normaliser: Normaliser,
    trade_date: TradeDate,
    /// Position behind the last message that came without a packet.
    next: Option<SourcePosition>,
}

impl ItchDecoder {
    /// A decoder that has seen nothing yet.
    #[must_use]
    pub fn new(settings: ItchSettings) -> Self {
        Self {
            arbiter: Arbiter::new(PROTOCOL, settings.lines, settings.expect_from_one),
            normaliser: Normaliser::new(settings.publisher_id, settings.orders_max),
            trade_date: settings.trade_date,
            next: None,
        }
    }

    /// Decodes one message that came without a packet (BinaryFILE: message n has sequence n). A
    /// greater ordinal than before begins another session. A sequence ahead of the next one is a gap.
    #[inline]
    pub fn message(
        &mut self,
        position: SourcePosition,
        received_at: Nanos,
        message: &[u8],
        sink: &mut dyn Sink,
    ) {
        if !self.normaliser.clock.is_set() {
            self.normaliser.clock = SessionClock::new(self.trade_date, received_at);
        }
        let next = self.next.replace(position.plus(1));
        if position.ordinal() != next.map_or(0, SourcePosition::ordinal) {
            let clock = SessionClock::new(self.trade_date, received_at);
            self.normaliser.begin_session(clock);
            sink.incident(Incident::SessionChange { next: position });
        } else if let Some(from) = next.filter(|next| *next < position) {
            let missing = position.sequence() - from.sequence();
            sink.incident(Incident::Gap { from, missing });
        }
        self.normaliser
            .message(position, received_at, message, sink);
    }

    /// The day of the next session, where it is not taken from receive times. Call it before that
    /// session's first packet.
    pub fn set_trade_date(&mut self, trade_date: TradeDate) {
        self.trade_date = trade_date;
    }

    /// The orders that are open.
    #[must_use]
    pub const fn orders(&self) -> &Orders {
        self.normaliser.orders()
    }
}

impl ItchDecoder {
    /// Returns the arbiter, and a listener that makes records of its messages.
    #[inline(always)]
    fn split<'a>(
        &'a mut self,
        sink: &'a mut dyn Sink,
    ) -> (&'a mut Arbiter<MoldUdp64>, Normalising<'a>) {
        let listener = Normalising {
            normaliser: &mut self.normaliser,
            trade_date: self.trade_date,
            received_at: Nanos::ZERO,
            sink,
        };
        (&mut self.arbiter, listener)
    }
}

impl Decoder for ItchDecoder {
    fn line_packet(&mut self, line: usize, now: Nanos, packet: Packet<'_>, sink: &mut dyn Sink) {
        let (arbiter, mut listener) = self.split(sink);
        listener.received_at = packet.received_at;
        arbiter.packet(line, now, packet, &mut listener);
    }

    fn set_sender(&mut self, line: usize, sender: Ipv4Addr) {
        self.arbiter.set_sender(line, sender);
    }

    fn poll(&mut self, now: Nanos, sink: &mut dyn Sink) {
        let (arbiter, mut listener) = self.split(sink);
        arbiter.poll(now, &mut listener);
    }

    fn finish(&mut self, sink: &mut dyn Sink) {
        let (arbiter, mut listener) = self.split(sink);
        arbiter.finish(&mut listener);
    }

    fn unreadable(&mut self, sink: &mut dyn Sink) {
        let from = self.next.unwrap_or_else(|| self.arbiter.next_position());
        // A file counts damage as one message.
        self.next = self.next.map(|next| next.plus(1));
        sink.incident(Incident::Unreadable { from });
    }

    fn resume(&mut self, at: &ResumePoint) {
        self.arbiter.resume(at.session.map(|id| (id, ())), at);
        self.normaliser.resume(&at.instruments);
    }

    fn session(&self) -> Option<FeedSession> {
        let ordinal = self.arbiter.next_position().ordinal();
        let id = self.arbiter.session()?;
        let end_at = self.arbiter.end_at();
        (self.arbiter.is_numbered()).then_some(FeedSession {
            id,
            ordinal,
            end_at,
        })
    }

    fn place(&self) -> Option<ResumePoint> {
        Some(ResumePoint {
            // Ids are the venue's locates, of 16 bits.
            next_id: 1 << 16,
            ..self.arbiter.place()?
        })
    }

    fn newest_sent_at(&self) -> u64 {
        self.arbiter.newest_sent_at()
    }

    fn packets(&self) -> u64 {
        self.arbiter.packets()
    }

    fn line(&self, line: usize) -> LineStats {
        self.arbiter.line(line)
    }

    fn counts(&self) -> &MessageCounts {
        self.normaliser.counts()
    }
}

/// Makes records of messages.
struct Normalising<'a> {
    normaliser: &'a mut Normaliser,
    trade_date: TradeDate,
    received_at: Nanos,
    sink: &'a mut dyn Sink,
}

impl Listen<MoldUdp64> for Normalising<'_> {
    #[inline(always)]
    fn packet(&mut self, received_at: Nanos, (): &()) {
        self.received_at = received_at;
        if !self.normaliser.clock.is_set() {
            self.normaliser.clock = SessionClock::new(self.trade_date, received_at);
        }
    }

    #[inline(always)]
    fn message(&mut self, position: SourcePosition, message: &[u8]) {
        self.normaliser
            .message(position, self.received_at, message, self.sink);
    }

    fn incident(&mut self, incident: Incident) {
        if matches!(
            incident,
            Incident::SessionChange { .. } | Incident::SequenceReset { .. }
        ) {
            // The clock is set by the first packet of the session.
            self.normaliser.begin_session(SessionClock::default());
        }
        self.sink.incident(incident);
    }
}
