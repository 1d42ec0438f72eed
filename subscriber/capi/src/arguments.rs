//! The arguments of C, as far as they can be checked. C is trusted that a text ends, an array is as
//! long as said, a callback can be called, and what is to be filled is there.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

use tickcast_subscriber::{Epoch, InstrumentFilter, Sequence, Start};

use crate::error::Error;

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
            format!("{first:?} with {count} elements"),
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

/// Where in the stream to begin.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum StartAt {
    /// With the first datagram sent after the publisher's welcome. The default.
    Live = 0,
    /// With the oldest that the publisher's ring still holds.
    Oldest = 1,
    /// With the datagram `sequence` of `epoch`; what is gone of it is declared lost.
    Sequence = 2,
}

/// The start that a C caller means.
pub(crate) fn start(at: u32, epoch: u64, sequence: u64) -> Result<Start, Error> {
    const LIVE: u32 = StartAt::Live as u32;
    const OLDEST: u32 = StartAt::Oldest as u32;
    const SEQUENCE: u32 = StartAt::Sequence as u32;
    Ok(match at {
        LIVE => Start::Live,
        OLDEST => Start::Oldest,
        SEQUENCE => Start::At(Epoch(epoch), Sequence(sequence)),
        _ => range("at", at, "a TickcastStartAt")?,
    })
}

/// The filter that passes these symbols.
///
/// # Safety
/// As for [`array`] and [`text`].
pub(crate) unsafe fn symbols(
    symbols: *const *const c_char,
    count: usize,
) -> Result<InstrumentFilter, Error> {
    // SAFETY: as for `array`.
    let all = unsafe { array(symbols, count, "symbols") }?;
    // SAFETY: as for `text`.
    let all = all.iter().map(|symbol| unsafe { text(*symbol, "symbol") });
    let all: Vec<&str> = all.collect::<Result<_, _>>()?;
    Ok(InstrumentFilter::symbols(all))
}

/// The filter that passes these ids.
///
/// # Safety
/// As for [`array`].
pub(crate) unsafe fn ids(ids: *const u32, count: usize) -> Result<InstrumentFilter, Error> {
    // SAFETY: as for `array`.
    let ids = unsafe { array(ids, count, "ids") }?;
    Ok(InstrumentFilter::ids(ids.iter().copied()))
}

/// Whatever the callback is to be given beside the item. The library only passes it on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: it is never followed here; who passes it with a callback to another thread says that the
// callback may use it there. Exercised by `the_same_powers_from_c_as_from_rust`.
unsafe impl Send for Context {}

// SAFETY: likewise. Exercised by `the_same_powers_from_c_as_from_rust`.
unsafe impl Sync for Context {}

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
