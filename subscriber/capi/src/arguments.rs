//! Checks of the arguments of C. The caller is trusted where a check is impossible:
//! - A text ends.
//! - An array has its stated length.
//! - A callback can be called.
//! - A struct to fill exists.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

use tickcast_subscriber::{Epoch, InstrumentFilter, Sequence, Start};

use crate::error::Error;

/// Returns a text of the caller.
///
/// # Safety
/// It is null, or it ends with a NUL and does not change while the result is in use.
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

/// Returns an array of the caller. It may be null if `count` is 0.
///
/// # Safety
/// It is null, or it has `count` elements that do not change while the result is in use.
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

/// Writes as much of `text` as fits into `size` bytes, with a final NUL. Returns the full length.
///
/// # Safety
/// `out` is null or has `size` bytes that no other thread uses during the call.
pub(crate) unsafe fn write_text(text: &str, out: *mut c_char, size: usize) -> i64 {
    if !out.is_null() && size > 0 {
        let count = text.floor_char_boundary(size - 1);
        // SAFETY: `count + 1` is at most `size`, and the caller promises that many bytes. `text` is
        // ours and so does not overlap. Exercised by `text_beyond_buffer_is_truncated_with_nul`.
        unsafe {
            out.copy_from_nonoverlapping(text.as_ptr().cast(), count);
            out.add(count).write(0);
        }
    }
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

/// Fills a struct of the caller after checking that its size equals the library's.
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

/// Returns the error for a number outside the allowed values.
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

/// The start of delivery in the stream.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum StartAt {
    /// Starts with the first datagram sent after the publisher's welcome. The default.
    Live = 0,
    /// Starts with the oldest datagram that the publisher's ring still holds.
    Oldest = 1,
    /// Starts with the datagram `sequence` of `epoch`. Datagrams that are gone are declared lost.
    Sequence = 2,
}

/// Returns the start that the arguments of C describe.
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

/// Returns the filter that passes these symbols.
///
/// # Safety
/// The promises of [`array`] and [`text`] must hold.
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

/// Returns the filter that passes these ids.
///
/// # Safety
/// The promises of [`array`] must hold.
pub(crate) unsafe fn ids(ids: *const u32, count: usize) -> Result<InstrumentFilter, Error> {
    // SAFETY: as for `array`.
    let ids = unsafe { array(ids, count, "ids") }?;
    Ok(InstrumentFilter::ids(ids.iter().copied()))
}

/// The caller's argument for its callback. The library only passes it on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) *mut c_void);

// SAFETY: the pointer is never followed here. A caller that passes it with a callback to another thread
// promises that the callback may use it there. Exercised by `c_program_follows_by_poll_split_and_run`.
unsafe impl Send for Context {}

// SAFETY: the pointer is never followed here. Exercised by `c_program_follows_by_poll_split_and_run`.
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
        // SAFETY: as above, each has its stated length or is null.
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
    fn text_beyond_buffer_is_truncated_with_nul() {
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
