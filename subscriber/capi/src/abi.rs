//! Whether the header that C was compiled with is this library's.

use std::ffi::c_char;

use crate::error::{Error, status};
use crate::event::Event;
use crate::item::{Item, Position};
use crate::monitor::{ChannelReport, Latency};
use crate::reader::{ReaderReport, Summary};
use crate::record::{
    ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, RecordHeader, StatMsg, StatusMsg,
    SymbolMappingMsg, TradeMsg,
};

/// The interface of this header. Another number is another library file.
pub const ABI_VERSION: u32 = 1;

/// The sizes of all structs, in bytes, as the compiler of the caller has them. tickcast_sizes()
/// fills it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Sizes {
    /// Of this struct.
    pub sizes: u32,
    /// TICKCAST_ABI_VERSION.
    pub abi_version: u32,
    /// Of TickcastItem.
    pub item: u32,
    /// Of TickcastPosition.
    pub position: u32,
    /// Of TickcastEvent.
    pub event: u32,
    /// Of TickcastChannelReport.
    pub channel_report: u32,
    /// Of TickcastReaderReport.
    pub reader_report: u32,
    /// Of TickcastLatency.
    pub latency: u32,
    /// Of TickcastSummary.
    pub summary: u32,
    /// Of TickcastRecordHeader.
    pub record_header: u32,
    /// Of TickcastMboMsg.
    pub mbo: u32,
    /// Of TickcastTradeMsg.
    pub trade: u32,
    /// Of TickcastMbp1Msg.
    pub mbp1: u32,
    /// Of TickcastStatusMsg.
    pub status: u32,
    /// Of TickcastInstrumentDefMsg.
    pub instrument_def: u32,
    /// Of TickcastSymbolMappingMsg.
    pub symbol_mapping: u32,
    /// Of TickcastImbalanceMsg.
    pub imbalance: u32,
    /// Of TickcastStatMsg.
    pub stat: u32,
}

impl Sizes {
    /// Says the first that differs.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let same = |what, theirs: u32, ours: usize| {
            let (theirs, ours) = (theirs.into(), ours as u64);
            if theirs == ours {
                return Ok(());
            }
            Err(Error::Abi { what, theirs, ours })
        };
        // In this order: only these two are known to be there in a header of another version.
        same("sizeof(TickcastSizes)", self.sizes, size_of::<Self>())?;
        same(
            "TICKCAST_ABI_VERSION",
            self.abi_version,
            ABI_VERSION as usize,
        )?;
        for (what, theirs, ours) in [
            ("sizeof(TickcastItem)", self.item, size_of::<Item>()),
            (
                "sizeof(TickcastPosition)",
                self.position,
                size_of::<Position>(),
            ),
            ("sizeof(TickcastEvent)", self.event, size_of::<Event>()),
            (
                "sizeof(TickcastChannelReport)",
                self.channel_report,
                size_of::<ChannelReport>(),
            ),
            (
                "sizeof(TickcastReaderReport)",
                self.reader_report,
                size_of::<ReaderReport>(),
            ),
            (
                "sizeof(TickcastLatency)",
                self.latency,
                size_of::<Latency>(),
            ),
            (
                "sizeof(TickcastSummary)",
                self.summary,
                size_of::<Summary>(),
            ),
            (
                "sizeof(TickcastRecordHeader)",
                self.record_header,
                size_of::<RecordHeader>(),
            ),
            ("sizeof(TickcastMboMsg)", self.mbo, size_of::<MboMsg>()),
            (
                "sizeof(TickcastTradeMsg)",
                self.trade,
                size_of::<TradeMsg>(),
            ),
            ("sizeof(TickcastMbp1Msg)", self.mbp1, size_of::<Mbp1Msg>()),
            (
                "sizeof(TickcastStatusMsg)",
                self.status,
                size_of::<StatusMsg>(),
            ),
            (
                "sizeof(TickcastInstrumentDefMsg)",
                self.instrument_def,
                size_of::<InstrumentDefMsg>(),
            ),
            (
                "sizeof(TickcastSymbolMappingMsg)",
                self.symbol_mapping,
                size_of::<SymbolMappingMsg>(),
            ),
            (
                "sizeof(TickcastImbalanceMsg)",
                self.imbalance,
                size_of::<ImbalanceMsg>(),
            ),
            ("sizeof(TickcastStatMsg)", self.stat, size_of::<StatMsg>()),
        ] {
            same(what, theirs, ours)?;
        }
        Ok(())
    }
}

/// The library's version, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// The library's TICKCAST_ABI_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_abi_version() -> u32 {
    ABI_VERSION
}

/// Whether the caller's structs are the library's: 0, or TICKCAST_STATUS_ABI. tickcast_builder_new
/// does this by itself.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_abi_check(sizes: Option<&Sizes>) -> i32 {
    status(|| sizes.ok_or(Error::Null { what: "sizes" })?.check())
}
