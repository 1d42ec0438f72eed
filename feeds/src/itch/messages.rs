//! Every ITCH 5.0 message as a plain value: read from at least its known bytes, never past them,
//! and written back to the same bytes.
//!
//! The table below is the layout (offset and width of each field, big-endian), in the order of the
//! TotalView-ITCH 5.0 specification; the code for both directions is made from it. Values are not
//! judged here. A longer message than known is read up to what is known, because venues append.

use thiserror::Error;

/// A symbol: 8 ASCII characters, padded with spaces on the right.
pub type Stock = [u8; 8];

/// Why bytes are not a message. The venue, or whoever cut them, is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// There are no bytes at all.
    #[error("an empty block is not an ITCH message")]
    Empty,
    /// Fewer bytes than the type has in ITCH 5.0.
    #[error("ITCH message {kind:#04x} needs {needed} bytes but has {found}")]
    Short {
        /// Its type byte.
        kind: u8,
        /// Bytes of the type.
        needed: usize,
        /// Bytes there are.
        found: usize,
    },
    /// No type of ITCH 5.0.
    #[error("ITCH 5.0 has no message type {kind:#04x}")]
    Unknown {
        /// The type byte.
        kind: u8,
    },
}

/// The head of every message, after its type byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Index of the stock, of the day; 0 where no stock applies.
    pub locate: u16,
    /// The venue's own tracking number.
    pub tracking: u16,
    /// Nanoseconds since midnight, Eastern; 48 bits.
    pub timestamp: u64,
}

/// A field's type on the wire.
trait Field: Copy {
    fn read<const N: usize>(bytes: &[u8; N], at: usize) -> Self;
    fn write<const N: usize>(self, bytes: &mut [u8; N], at: usize);
}

macro_rules! integer_fields {
    ($($int:ty),+) => {$(
        impl Field for $int {
            #[inline(always)]
            fn read<const N: usize>(bytes: &[u8; N], at: usize) -> Self {
                Self::from_be_bytes(<[u8; size_of::<Self>()]>::read(bytes, at))
            }
            #[inline(always)]
            fn write<const N: usize>(self, bytes: &mut [u8; N], at: usize) {
                self.to_be_bytes().write(bytes, at);
            }
        }
    )+};
}
integer_fields!(u8, u16, u32, u64);

impl<const L: usize> Field for [u8; L] {
    #[inline(always)]
    fn read<const N: usize>(bytes: &[u8; N], at: usize) -> Self {
        let mut field = [0; L];
        field.copy_from_slice(&bytes[at..at + L]);
        field
    }
    #[inline(always)]
    fn write<const N: usize>(self, bytes: &mut [u8; N], at: usize) {
        bytes[at..at + L].copy_from_slice(&self);
    }
}

impl Head {
    #[inline(always)]
    fn read<const N: usize>(bytes: &[u8; N]) -> Self {
        let high = u64::from(u16::read(bytes, 5));
        let low = u64::from(u32::read(bytes, 7));
        Self {
            locate: Field::read(bytes, 1),
            tracking: Field::read(bytes, 3),
            timestamp: high << 32 | low,
        }
    }

    #[inline(always)]
    fn write<const N: usize>(self, bytes: &mut [u8; N]) {
        self.locate.write(bytes, 1);
        self.tracking.write(bytes, 3);
        ((self.timestamp >> 32) as u16).write(bytes, 5);
        (self.timestamp as u32).write(bytes, 7);
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $kind:literal, $len:literal bytes {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $at:literal,)*
    })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub struct $name {
                /// Locate, tracking number, time.
                pub head: Head,
                $($(#[$field_doc])* pub $field: $type,)*
            }

            impl $name {
                /// The type byte.
                pub const KIND: u8 = $kind;
                /// Bytes of the message in ITCH 5.0.
                pub const LEN: usize = $len;

                /// Reads the message; the type byte is not looked at.
                #[inline(always)]
                #[must_use]
                pub fn read(bytes: &[u8; $len]) -> Self {
                    $(const { assert!($at >= 11 && $at + size_of::<$type>() <= $len) };)*
                    Self {
                        head: Head::read(bytes),
                        $($field: Field::read(bytes, $at),)*
                    }
                }

                /// The message's bytes.
                #[inline(always)]
                #[must_use]
                pub fn to_bytes(&self) -> [u8; $len] {
                    // Reserved bytes are spaces, as the venue sends them.
                    let mut bytes = [b' '; $len];
                    bytes[0] = $kind;
                    self.head.write(&mut bytes);
                    $(self.$field.write(&mut bytes, $at);)*
                    bytes
                }
            }
        )+

        /// Any message of ITCH 5.0.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ItchMessage {
            $($(#[$doc])* $name($name),)+
        }

        impl ItchMessage {
            /// Locate, tracking number, time.
            #[inline(always)]
            #[must_use]
            pub const fn head(&self) -> Head {
                match self {
                    $(Self::$name(m) => m.head,)*
                }
            }

            /// Reads one message; bytes beyond the known ones are ignored.
            ///
            /// # Errors
            /// [`ParseError`] when there are too few bytes, or the type is not known.
            #[inline(always)]
            pub fn read(bytes: &[u8]) -> Result<Self, ParseError> {
                let Some(&kind) = bytes.first() else {
                    return Err(ParseError::Empty);
                };
                match kind {
                    $($kind => match bytes.first_chunk::<$len>() {
                        Some(chunk) => Ok(Self::$name($name::read(chunk))),
                        None => Err(ParseError::Short { kind, needed: $len, found: bytes.len() }),
                    },)+
                    _ => Err(ParseError::Unknown { kind }),
                }
            }
        }

        /// Bytes of a message by its type byte, or `None` for a type that ITCH 5.0 has not.
        #[must_use]
        pub const fn message_len(kind: u8) -> Option<usize> {
            match kind {
                $($kind => Some($len),)+
                _ => None,
            }
        }
    };
}

messages! {
    /// An event of the whole venue.
    SystemEvent = b'S', 12 bytes {
        /// O, S, Q, M, E, C: start of messages, system, market; end of market, system, messages.
        event: u8 = 11,
    }
    /// A stock of the day.
    StockDirectory = b'R', 39 bytes {
        /// Symbol.
        stock: Stock = 11,
        /// Listing market and tier.
        market_category: u8 = 19,
        /// Financial status indicator.
        financial_status: u8 = 20,
        /// Shares of a round lot.
        round_lot_size: u32 = 21,
        /// Y when only round lots trade.
        round_lots_only: u8 = 25,
        /// Issue classification code.
        classification: u8 = 26,
        /// Issue sub-type code.
        sub_type: [u8; 2] = 27,
        /// P production, T test.
        authenticity: u8 = 29,
        /// Short sale threshold Y/N/space.
        short_sale_threshold: u8 = 30,
        /// IPO flag.
        ipo_flag: u8 = 31,
        /// LULD tier.
        luld_tier: u8 = 32,
        /// Exchange-traded product Y/N/space.
        etp_flag: u8 = 33,
        /// Leverage factor of an ETP.
        etp_leverage: u32 = 34,
        /// Y for an inverse ETP.
        inverse: u8 = 38,
    }
    /// Trading state of a stock.
    TradingAction = b'H', 25 bytes {
        /// Symbol.
        stock: Stock = 11,
        /// H halted, P paused, Q quotation only, T trading.
        state: u8 = 19,
        /// Reason code, padded with spaces.
        reason: [u8; 4] = 21,
    }
    /// Short sale restriction of a stock.
    RegSho = b'Y', 20 bytes {
        /// Symbol.
        stock: Stock = 11,
        /// 0 none, 1 in effect since today, 2 still in effect.
        action: u8 = 19,
    }
    /// A market participant's standing in a stock.
    ParticipantPosition = b'L', 26 bytes {
        /// Participant.
        mpid: [u8; 4] = 11,
        /// Symbol.
        stock: Stock = 15,
        /// Y for a primary market maker.
        primary: u8 = 23,
        /// Market maker mode.
        mode: u8 = 24,
        /// Participant state.
        state: u8 = 25,
    }
    /// Market-wide circuit breaker levels of the day, 8 implied decimals.
    DeclineLevels = b'V', 35 bytes {
        /// Level 1.
        level_1: u64 = 11,
        /// Level 2.
        level_2: u64 = 19,
        /// Level 3.
        level_3: u64 = 27,
    }
    /// A market-wide circuit breaker level was breached.
    DeclineStatus = b'W', 12 bytes {
        /// 1, 2 or 3.
        level: u8 = 11,
    }
    /// IPO quoting period.
    IpoQuoting = b'K', 28 bytes {
        /// Symbol.
        stock: Stock = 11,
        /// Seconds since midnight; 0 when cancelled.
        release_time_s: u32 = 19,
        /// A anticipated, C cancelled or postponed.
        qualifier: u8 = 23,
        /// 4 implied decimals.
        price: u32 = 24,
    }
    /// Price collars of an auction that ends a LULD pause, 4 implied decimals.
    AuctionCollar = b'J', 35 bytes {
        /// Symbol.
        stock: Stock = 11,
        /// Reference price.
        reference: u32 = 19,
        /// Upper collar.
        upper: u32 = 23,
        /// Lower collar.
        lower: u32 = 27,
        /// How often the auction was extended.
        extensions: u32 = 31,
    }
    /// Operational halt of one market.
    OperationalHalt = b'h', 21 bytes {
        /// Symbol.
        stock: Stock = 11,
        /// Q Nasdaq, B Nasdaq Texas, X PSX.
        market: u8 = 19,
        /// H halted, T resumed.
        action: u8 = 20,
    }
    /// A new order.
    AddOrder = b'A', 36 bytes {
        /// Order reference, unique in the day.
        reference: u64 = 11,
        /// B or S.
        side: u8 = 19,
        /// Shares.
        shares: u32 = 20,
        /// Symbol.
        stock: Stock = 24,
        /// 4 implied decimals.
        price: u32 = 32,
    }
    /// A new order with attribution.
    AddOrderMpid = b'F', 40 bytes {
        /// Order reference, unique in the day.
        reference: u64 = 11,
        /// B or S.
        side: u8 = 19,
        /// Shares.
        shares: u32 = 20,
        /// Symbol.
        stock: Stock = 24,
        /// 4 implied decimals.
        price: u32 = 32,
        /// MPID of the participant that entered the order.
        mpid: [u8; 4] = 36,
    }
    /// An order was executed at its own price.
    OrderExecuted = b'E', 31 bytes {
        /// Order reference.
        reference: u64 = 11,
        /// Shares executed.
        shares: u32 = 19,
        /// Match number.
        match_number: u64 = 23,
    }
    /// An order was executed at another price.
    OrderExecutedPrice = b'C', 36 bytes {
        /// Order reference.
        reference: u64 = 11,
        /// Shares executed.
        shares: u32 = 19,
        /// Match number.
        match_number: u64 = 23,
        /// N when a later bulk print counts it.
        printable: u8 = 31,
        /// 4 implied decimals.
        price: u32 = 32,
    }
    /// Part of an order was cancelled.
    OrderCancel = b'X', 23 bytes {
        /// Order reference.
        reference: u64 = 11,
        /// Shares to take off.
        shares: u32 = 19,
    }
    /// An order is gone.
    OrderDelete = b'D', 19 bytes {
        /// Order reference.
        reference: u64 = 11,
    }
    /// An order was replaced, side and stock staying.
    OrderReplace = b'U', 35 bytes {
        /// The order that goes.
        reference: u64 = 11,
        /// The order that comes.
        new_reference: u64 = 19,
        /// Its shares.
        shares: u32 = 27,
        /// Its price, 4 implied decimals.
        price: u32 = 31,
    }
    /// A trade against an order that was not displayed.
    Trade = b'P', 44 bytes {
        /// 0 since 2010.
        reference: u64 = 11,
        /// Always B since 2014.
        side: u8 = 19,
        /// Shares.
        shares: u32 = 20,
        /// Symbol.
        stock: Stock = 24,
        /// 4 implied decimals.
        price: u32 = 32,
        /// Match number.
        match_number: u64 = 36,
    }
    /// The bulk print of a cross.
    CrossTrade = b'Q', 40 bytes {
        /// Shares; may be 0.
        shares: u64 = 11,
        /// Symbol.
        stock: Stock = 19,
        /// 4 implied decimals.
        price: u32 = 27,
        /// Match number.
        match_number: u64 = 31,
        /// O opening, C closing, H halt or IPO.
        cross_type: u8 = 39,
    }
    /// A trade was broken.
    BrokenTrade = b'B', 19 bytes {
        /// The trade's match number.
        match_number: u64 = 11,
    }
    /// Net order imbalance before a cross.
    Imbalance = b'I', 50 bytes {
        /// Shares that would match at the reference price.
        paired: u64 = 11,
        /// Shares that would not.
        imbalance: u64 = 19,
        /// B, S, N none, O too few orders, P paused.
        direction: u8 = 27,
        /// Symbol.
        stock: Stock = 28,
        /// Clearing price of the cross orders alone, 4 implied decimals.
        far_price: u32 = 36,
        /// Clearing price with the continuous book.
        near_price: u32 = 40,
        /// Reference price.
        reference_price: u32 = 44,
        /// O opening, C closing, H halt or IPO, A extended.
        cross_type: u8 = 48,
        /// How far the near price is away.
        variation: u8 = 49,
    }
    /// Retail price improvement interest.
    RetailInterest = b'N', 20 bytes {
        /// Symbol.
        stock: Stock = 11,
        /// B, S, A both, N none.
        interest: u8 = 19,
    }
    /// Price discovery of a direct listing with capital raise, 4 implied decimals.
    DirectListing = b'O', 48 bytes {
        /// Symbol.
        stock: Stock = 11,
        /// Y when it may be released.
        eligible: u8 = 19,
        /// Lowest price allowed.
        min_price: u32 = 20,
        /// Highest price allowed.
        max_price: u32 = 24,
        /// Near execution price.
        near_price: u32 = 28,
        /// When that was set, nanoseconds since midnight.
        near_time: u64 = 32,
        /// Lower collar.
        lower: u32 = 40,
        /// Upper collar.
        upper: u32 = 44,
    }
}
