//! Checks that the header that C was compiled with matches this library.

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

/// The ABI version of this header. Each version has its own library file.
pub const ABI_VERSION: u32 = 1;

/// The sizes of all structs in bytes, as the caller's compiler lays them out. tickcast_sizes()
/// fills it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Sizes {
    /// The size of this struct.
    pub sizes: u32,
    /// TICKCAST_ABI_VERSION.
    pub abi_version: u32,
    /// The size of TickcastItem.
    pub item: u32,
    /// The size of TickcastPosition.
    pub position: u32,
    /// The size of TickcastEvent.
    pub event: u32,
    /// The size of TickcastChannelReport.
    pub channel_report: u32,
    /// The size of TickcastReaderReport.
    pub reader_report: u32,
    /// The size of TickcastLatency.
    pub latency: u32,
    /// The size of TickcastSummary.
    pub summary: u32,
    /// The size of TickcastRecordHeader.
    pub record_header: u32,
    /// The size of TickcastMboMsg.
    pub mbo: u32,
    /// The size of TickcastTradeMsg.
    pub trade: u32,
    /// The size of TickcastMbp1Msg.
    pub mbp1: u32,
    /// The size of TickcastStatusMsg.
    pub status: u32,
    /// The size of TickcastInstrumentDefMsg.
    pub instrument_def: u32,
    /// The size of TickcastSymbolMappingMsg.
    pub symbol_mapping: u32,
    /// The size of TickcastImbalanceMsg.
    pub imbalance: u32,
    /// The size of TickcastStatMsg.
    pub stat: u32,
}

impl Sizes {
    /// Returns an error that names the first difference, if there is one.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let same = |what, theirs: u32, ours: usize| {
            let (theirs, ours) = (theirs.into(), ours as u64);
            if theirs == ours {
                return Ok(());
            }
            Err(Error::Abi { what, theirs, ours })
        };
        // Check these two first, because a header of another version may lack the other fields.
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

/// Returns the library's version, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Returns the library's TICKCAST_ABI_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_abi_version() -> u32 {
    ABI_VERSION
}

/// Checks that the caller's structs match the library's. Returns 0 or TICKCAST_STATUS_ABI.
/// tickcast_builder_new includes this check.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_abi_check(sizes: Option<&Sizes>) -> i32 {
    status(|| sizes.ok_or(Error::Null { what: "sizes" })?.check())
}
