//! Messages of TOPS 1.5/1.6 and DEEP 1.0 as the wire holds them: a whole message or a named
//! refusal, never a read beyond the message's end.
//!
//! A message may be longer than its layout here (the venue appends fields), never shorter.
//! Little-endian; prices have 4 implied decimals, times are ns since 1970, UTC.
//! Source: IEX TOPS 1.6 and DEEP 1.0 specifications.

use crate::instruments::Symbol;

/// Why a message was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageError {
    /// It has no bytes at all.
    Empty,
    /// It is shorter than its type's layout.
    Short {
        /// Its type byte.
        kind: u8,
    },
    /// Its type is not one of TOPS or DEEP.
    Unknown {
        /// Its type byte.
        kind: u8,
    },
}

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each variant is documented at the type it holds"
)]
pub enum IexMessage {
    SystemEvent(SystemEvent),
    SecurityDirectory(SecurityDirectory),
    TradingStatus(TradingStatus),
    RetailLiquidity(RetailLiquidity),
    OperationalHalt(OperationalHalt),
    ShortSale(ShortSale),
    SecurityEvent(SecurityEvent),
    Quote(Quote),
    Trade(Trade),
    TradeBreak(Trade),
    OfficialPrice(OfficialPrice),
    Auction(Auction),
    Buy(PriceLevel),
    Sell(PriceLevel),
}

impl IexMessage {
    /// Reads the message that fills `bytes`.
    ///
    /// # Errors
    /// [`MessageError`] says why it is none; its neighbours can be read nevertheless.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        let &kind = bytes.first().ok_or(MessageError::Empty)?;
        let message = match kind {
            b'8' => PriceLevel::read(bytes).map(Self::Buy),
            b'5' => PriceLevel::read(bytes).map(Self::Sell),
            b'Q' => Quote::read(bytes).map(Self::Quote),
            b'T' => Trade::read(bytes).map(Self::Trade),
            b'B' => Trade::read(bytes).map(Self::TradeBreak),
            b'S' => SystemEvent::read(bytes).map(Self::SystemEvent),
            b'D' => SecurityDirectory::read(bytes).map(Self::SecurityDirectory),
            b'H' => TradingStatus::read(bytes).map(Self::TradingStatus),
            b'I' => RetailLiquidity::read(bytes).map(Self::RetailLiquidity),
            b'O' => OperationalHalt::read(bytes).map(Self::OperationalHalt),
            b'P' => ShortSale::read(bytes).map(Self::ShortSale),
            b'E' => SecurityEvent::read(bytes).map(Self::SecurityEvent),
            b'X' => OfficialPrice::read(bytes).map(Self::OfficialPrice),
            b'A' => Auction::read(bytes).map(Self::Auction),
            _ => return Err(MessageError::Unknown { kind }),
        };
        message.ok_or(MessageError::Short { kind })
    }

    /// When the venue says it happened (ns since 1970, UTC), and to which symbol; `None` means
    /// the whole venue.
    #[inline(always)]
    #[must_use]
    pub const fn about(&self) -> (u64, Option<Symbol>) {
        match self {
            Self::SystemEvent(m) => (m.time, None),
            Self::SecurityDirectory(m) => (m.time, Some(m.symbol)),
            Self::TradingStatus(m) => (m.time, Some(m.symbol)),
            Self::RetailLiquidity(m) => (m.time, Some(m.symbol)),
            Self::OperationalHalt(m) => (m.time, Some(m.symbol)),
            Self::ShortSale(m) => (m.time, Some(m.symbol)),
            Self::SecurityEvent(m) => (m.time, Some(m.symbol)),
            Self::Quote(m) => (m.time, Some(m.symbol)),
            Self::Trade(m) | Self::TradeBreak(m) => (m.time, Some(m.symbol)),
            Self::OfficialPrice(m) => (m.time, Some(m.symbol)),
            Self::Auction(m) => (m.time, Some(m.symbol)),
            Self::Buy(m) | Self::Sell(m) => (m.time, Some(m.symbol)),
        }
    }
}

/// One layout per message: length, then field, type and offset. Byte 0 is the type.
macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident[$len:literal] {
        $($(#[$field_doc:meta])* $field:ident: $ty:ty = $at:literal,)+
    })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)+
        }

        // A field that reached beyond its message would be refused here, at compile time.
        $(const _: [u8; $len - $at - size_of::<$ty>()] = [0; $len - $at - size_of::<$ty>()];)+

        impl $name {
            #[inline(always)]
            pub(super) fn read(bytes: &[u8]) -> Option<Self> {
                let bytes = bytes.first_chunk::<$len>()?;
                Some(Self { $($field: Field::at(bytes, $at),)+ })
            }
        }
    )+};
}

layouts! {
    /// `S`: the venue's day goes on to another phase.
    SystemEvent[10] {
        /// `O` start of messages, `S` start of system hours, `R` start of regular hours, `M` end
        /// of regular hours, `E` end of system hours, `C` end of messages.
        event: u8 = 1,
        /// Time of the event.
        time: u64 = 2,
    }
    /// `D`: a security that can be traded today.
    SecurityDirectory[31] {
        /// 0x80 test security, 0x40 when-issued, 0x20 exchange-traded product.
        flags: u8 = 1,
        /// Time of the message.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
        /// Shares in a round lot.
        round_lot: u32 = 18,
        /// The previous official close, adjusted for corporate actions.
        adjusted_close: i64 = 22,
        /// Limit-up limit-down tier: 0 none, 1, 2.
        luld_tier: u8 = 30,
    }
    /// `H`: whether a security trades.
    TradingStatus[22] {
        /// `H` halted, `O` order acceptance, `P` paused with order acceptance, `T` trading.
        status: u8 = 1,
        /// Time of the change.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
        /// Why, ASCII, padded with spaces.
        reason: [u8; 4] = 18,
    }
    /// `I`: retail interest.
    RetailLiquidity[18] {
        /// Space none, `A` buy, `B` sell, `C` both.
        indicator: u8 = 1,
        /// Time of the change.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
    }
    /// `O`: whether the venue itself has halted a security.
    OperationalHalt[18] {
        /// `O` halted on this venue, `N` not halted.
        status: u8 = 1,
        /// Time of the change.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
    }
    /// `P`: whether short sales are restricted.
    ShortSale[19] {
        /// 1 when the restriction is in effect.
        in_effect: u8 = 1,
        /// Time of the change.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
        /// Space, `A` activated, `C` continued, `D` deactivated, `N` not available.
        detail: u8 = 18,
    }
    /// `E`: a security's opening or closing process is complete.
    SecurityEvent[18] {
        /// `O` opening, `C` closing process complete.
        event: u8 = 1,
        /// Time of the event.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
    }
    /// `Q`: the venue's best bid and offer.
    Quote[42] {
        /// 0x80 halted or unavailable, 0x40 outside regular hours.
        flags: u8 = 1,
        /// Time of the change.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
        /// Shares bid; 0 when there is no bid.
        bid_size: u32 = 18,
        /// Best bid.
        bid_price: i64 = 22,
        /// Best offer.
        ask_price: i64 = 30,
        /// Shares offered; 0 when there is no offer.
        ask_size: u32 = 38,
    }
    /// `T` and `B`: a trade, and a trade that is void.
    Trade[38] {
        /// 0x80 intermarket sweep, 0x40 extended hours, 0x20 odd lot, 0x10 trade-through exempt,
        /// 0x08 single-price cross.
        sale_condition: u8 = 1,
        /// Time of the trade or of the break.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
        /// Shares.
        size: u32 = 18,
        /// Price.
        price: i64 = 22,
        /// The venue's number of the trade.
        trade_id: i64 = 30,
    }
    /// `X`: an official price.
    OfficialPrice[26] {
        /// `Q` opening, `M` closing.
        kind: u8 = 1,
        /// Time of the message.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
        /// The price.
        price: i64 = 18,
    }
    /// `A`: what an auction would give now.
    Auction[80] {
        /// `O` opening, `C` closing, `I` IPO, `H` halt, `V` volatility.
        kind: u8 = 1,
        /// Time of the message.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
        /// Shares paired at the reference price.
        paired: u32 = 18,
        /// Reference price.
        reference: i64 = 22,
        /// Clearing price of all eligible orders.
        indicative_clearing: i64 = 30,
        /// Shares not paired at the reference price.
        imbalance: u32 = 38,
        /// `B` buy, `S` sell, `N` none.
        imbalance_side: u8 = 42,
        /// How often the auction was extended.
        extensions: u8 = 43,
        /// Planned time of the auction, seconds since 1970, UTC.
        scheduled_s: u32 = 44,
        /// Clearing price of the orders on the auction book.
        book_clearing: i64 = 48,
        /// Reference price of the collar.
        collar_reference: i64 = 56,
        /// Lower end of the collar.
        collar_lower: i64 = 64,
        /// Upper end of the collar.
        collar_upper: i64 = 72,
    }
    /// `8` and `5`: a price level of the bid and of the ask side has changed.
    PriceLevel[30] {
        /// 1 when the book's change is complete, 0 when more of it follows.
        event_flags: u8 = 1,
        /// Time of the change.
        time: u64 = 2,
        /// The security.
        symbol: Symbol = 10,
        /// Shares at the level now; 0 when it is gone.
        size: u32 = 18,
        /// The level's price.
        price: i64 = 22,
    }
}

/// A field's value from its bytes. Offsets are constants that the layouts check.
trait Field {
    fn at(bytes: &[u8], at: usize) -> Self;
}

impl<const N: usize> Field for [u8; N] {
    #[inline(always)]
    fn at(bytes: &[u8], at: usize) -> Self {
        let mut field = [0; N];
        field.copy_from_slice(&bytes[at..at + N]);
        field
    }
}

macro_rules! fields {
    ($($ty:ty = $from:expr;)+) => {$(
        impl Field for $ty {
            #[inline(always)]
            fn at(bytes: &[u8], at: usize) -> Self {
                $from(Field::at(bytes, at))
            }
        }
    )+};
}

fields! {
    u8 = u8::from_le_bytes;
    u32 = u32::from_le_bytes;
    u64 = u64::from_le_bytes;
    i64 = i64::from_le_bytes;
    Symbol = Symbol;
}
