//! The border to C: whether its header is this library's, and the few things that C is trusted
//! with. A text ends, an array is as long as said, a callback can be called, and what is to be
//! filled is there.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

use crate::error::{Error, status};
use crate::event::Event;
use crate::item::{Item, Position};
use crate::monitor::{ChannelReport, Latency};
use crate::reader::ReaderReport;
use crate::record::{
    ImbalanceMsg, InstrumentDefMsg, MboMsg, Mbp1Msg, RecordHeader, StatMsg, StatusMsg,
    SymbolMappingMsg, TradeMsg,
};
use crate::subscriber::Summary;

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

/// A text of the caller's.
///
/// # Safety
/// It is null, or ends with a NUL and stays as it is for as long as the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &'static str) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(Error::Null { what });
    }
    // SAFETY: not null, and the caller promises the rest. Exercised by
    // `texts_and_arrays_of_the_caller_are_read_and_checked`.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::Text {
        what,
        text: text.to_string_lossy().into_owned(),
    })
}

/// An array of the caller's; null is fine where it is empty.
///
/// # Safety
/// It is null, or has so many elements that stay as they are for as long as the result is used.
pub(crate) unsafe fn array<'a, T>(
    first: *const T,
    count: usize,
    what: &'static str,
) -> Result<&'a [T], Error> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() {
        return Err(Error::Null { what });
    }
    if !first.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        let (value, expected) = (
            format!("{first:p} with {count} elements"),
            "an aligned array",
        );
        return Err(Error::Range {
            what,
            value,
            expected,
        });
    }
    // SAFETY: aligned, no longer than memory, and the caller promises the rest. Exercised by
    // `texts_and_arrays_of_the_caller_are_read_and_checked`.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Writes as much of `text` as fits into `size` bytes, a NUL behind it; its length in full.
///
/// # Safety
/// `out` is null or has `size` bytes that nobody else uses now.
pub(crate) unsafe fn write_text(text: &str, out: *mut c_char, size: usize) -> i64 {
    if !out.is_null() && size > 0 {
        let count = text.floor_char_boundary(size - 1);
        // SAFETY: `count + 1` is at most `size`, and the caller promises so many bytes; `text` is
        // ours and so does not overlap. Exercised by `a_text_that_does_not_fit_is_cut_and_ends`.
        unsafe {
            out.copy_from_nonoverlapping(text.as_ptr().cast(), count);
            out.add(count).write(0);
        }
    }
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

/// Fills a struct of the caller's, once it is known that both mean the same one.
pub(crate) fn fill<T>(
    out: Option<&mut MaybeUninit<T>>,
    size: usize,
    what: &'static str,
    value: impl FnOnce() -> Result<T, Error>,
) -> Result<(), Error> {
    if size != size_of::<T>() {
        let (theirs, ours) = (size as u64, size_of::<T>() as u64);
        return Err(Error::Abi { what, theirs, ours });
    }
    out.ok_or(Error::Null { what })?.write(value()?);
    Ok(())
}

/// A number that C must give as one of a few.
pub(crate) fn range<T>(
    what: &'static str,
    value: impl ToString,
    expected: &'static str,
) -> Result<T, Error> {
    let value = value.to_string();
    Err(Error::Range {
        what,
        value,
        expected,
    })
}

/// Whatever the callback is to be given beside the item. The library only passes it on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: it is never followed here; who passes it with a callback to another thread says that the
// callback may use it there. Exercised by `the_same_powers_from_c_as_from_rust`.
unsafe impl Send for Context {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_arrays_of_the_caller_are_read_and_checked() {
        let wrong = [b'a', 0xff, 0];
        // SAFETY: as for `CStr::from_ptr` above: these end with a NUL, or are null.
        let texts = unsafe {
            [
                text(c"AAPL".as_ptr(), "t"),
                text(std::ptr::null(), "t"),
                text(wrong.as_ptr().cast(), "t"),
            ]
        };
        assert!(matches!(texts[0], Ok("AAPL")));
        assert!(matches!(texts[1], Err(Error::Null { what: "t" })));
        assert!(matches!(texts[2], Err(Error::Text { .. })));
        let ids = [1_u32, 2];
        // SAFETY: as above, each as long as said or null.
        let arrays = unsafe {
            [
                array(ids.as_ptr(), 2, "ids"),
                array(std::ptr::null(), 0, "ids"),
                array(std::ptr::null(), 1, "ids"),
                array(ids.as_ptr(), usize::MAX, "ids"),
            ]
        };
        assert!(matches!(arrays[0], Ok([1, 2])) && matches!(arrays[1], Ok([])));
        assert!(matches!(arrays[2], Err(Error::Null { .. })));
        assert!(matches!(arrays[3], Err(Error::Range { .. })));
    }

    #[test]
    fn a_text_that_does_not_fit_is_cut_and_ends() {
        for (size, expected) in [(9, "Zürich"), (4, "Zü"), (3, "Z"), (1, ""), (0, "?")] {
            let mut out = [b'?', b'?', 0, b'?', b'?', b'?', b'?', b'?', b'?'];
            if size == 0 {
                out[1] = 0;
            }
            // SAFETY: as for `write_text`: `out` has `size` bytes.
            let len = unsafe { write_text("Zürich", out.as_mut_ptr().cast(), size) };
            let written = CStr::from_bytes_until_nul(&out).unwrap();
            assert_eq!((len, written.to_str()), (7, Ok(expected)), "{size}");
        }
    }
}
