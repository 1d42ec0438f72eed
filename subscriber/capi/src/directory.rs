//! Symbols and instrument ids at the time of the copy. A callback may use the copy, because it is separate
//! from the subscriber that calls the callback.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

use tickcast_subscriber as rust;

use crate::arguments::text;
use crate::error::{Error, handle, number, status};
use crate::handle::{Handle, Kind, free, shared};

/// A copy of the known symbols and ids. All threads can use it at once.
pub struct Directory(());

impl Handle for Directory {
    type Behind = Symbols;
    const KIND: Kind = Kind::Directory;
}

/// The value behind a directory handle: one sorted list for each direction.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    by_id: Vec<(u32, CString)>,
    directory: rust::Directory,
}

impl Symbols {
    pub(crate) fn new(monitor: &rust::Monitor) -> Self {
        let directory = monitor.directory();
        let channels = monitor.channels().into_iter().filter_map(|it| it.channel);
        let known = channels.filter_map(|id| directory.channel(id));
        let all = known.flat_map(|instruments| instruments.iter());
        // A venue's symbol contains no NUL, so none is omitted.
        let all = all.filter_map(|(id, symbol)| Some((id, CString::new(symbol).ok()?)));
        let mut by_id: Vec<_> = all.collect();
        by_id.sort();
        by_id.dedup_by_key(|(id, _)| *id);
        Self { by_id, directory }
    }
}

/// Returns the number of instruments.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_directory_len(directory: *const Directory) -> i32 {
    number(|| shared(directory, |it| it.by_id.len() as i32))
}

/// Gets the id of a symbol, as the venue spells it.
///
/// # Safety
/// `symbol` is NULL or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_directory_id(
    directory: *const Directory,
    symbol: *const c_char,
    out: Option<&mut MaybeUninit<u32>>,
) -> i32 {
    status(|| {
        // SAFETY: as for `text`.
        let symbol = unsafe { text(symbol, "symbol") }?;
        let out = out.ok_or(Error::Null { what: "out" })?;
        let (id, len) = shared(directory, |it| (it.directory.id(symbol), it.by_id.len()))?;
        out.write(id.ok_or_else(|| Error::Unknown {
            what: "symbol",
            name: symbol.to_owned(),
            known: format!("{len} are known"),
        })?);
        Ok(())
    })
}

/// Returns the symbol of an id, or NULL when it is not known. It is valid as long as the directory.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_directory_symbol(directory: *const Directory, id: u32) -> *const c_char {
    handle(|| {
        let symbol = shared(directory, |it| {
            let at = it.by_id.binary_search_by_key(&id, |(id, _)| *id).ok()?;
            Some(it.by_id[at].1.as_ptr().cast_mut())
        })?;
        symbol.ok_or_else(|| Error::Unknown {
            what: "instrument",
            name: id.to_string(),
            known: "the publisher has not announced it".into(),
        })
    })
}

/// Returns the symbol of instrument `index`, in order of id, and writes the id. Returns NULL beyond the
/// last one. The symbol is valid as long as the directory.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_directory_at(
    directory: *const Directory,
    index: usize,
    out: Option<&mut MaybeUninit<u32>>,
) -> *const c_char {
    handle(|| {
        let out = out.ok_or(Error::Null { what: "out" })?;
        let found = shared(directory, |it| {
            let (id, symbol) = it.by_id.get(index)?;
            Some((*id, symbol.as_ptr().cast_mut()))
        })?;
        let (id, symbol) = found.ok_or_else(|| Error::Unknown {
            what: "instrument",
            name: index.to_string(),
            known: "indices go from 0 to below tickcast_directory_len".into(),
        })?;
        out.write(id);
        Ok(symbol)
    })
}

/// Frees a directory and the symbols that it returned. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_directory_free(directory: *mut Directory) -> i32 {
    status(|| free(directory))
}
