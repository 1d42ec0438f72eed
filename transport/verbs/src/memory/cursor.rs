//! Cursors: 64 bytes for each subscriber, which it claims and writes itself, one-sided, and which the
//! CPU here reads.
//!
//! Each entry is a registration of its own without any remote right. So no peer can reach a
//! neighbour's entry, even on a device that checks the registration's bounds instead of the window's.
//! An entry is leased once and granted to one connection. It comes back only when the lease's holder
//! and the queue pair that it was granted through are both gone. A leased entry is zero.
//!
//! The device's atomic operations are atomic among themselves, not with those of a CPU. So the CPU
//! only reads an entry, and writes zeroes to it only while nobody else can write.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use tickcast_reliability::control::{CURSOR_LEN, CURSOR_WORDS};
use tickcast_reliability::ring::RingMemory;

use crate::audit::{self, AuditEvent};
use crate::device::Device;
use crate::device::region::Region;
use crate::error::{VerbsError, check_range};
use crate::memory::window::{Bindable, CURSOR};
use tickcast_transport_base::host::mapping::SharedMapping;

/// Largest number of entries of one table.
const ENTRIES_MAX: u64 = 4_096;

/// Entries that subscribers write their progress to, one each.
pub struct CursorTable(Arc<Table>);

struct Table {
    /// Entries by number. Declared before the memory, so that the registrations are dropped first.
    entries: Vec<Arc<Bindable>>,
    /// Numbers of the free entries; the last is leased next.
    free: Mutex<Vec<usize>>,
    leased: AtomicU64,
    returned: AtomicU64,
    memory: Arc<SharedMapping>,
}

impl CursorTable {
    /// Allocates and registers 1 to 4096 entries.
    ///
    /// # Errors
    /// - [`VerbsError::NoAtomics`] if the device has no atomic operations
    /// - [`VerbsError::Memlock`] if no more memory can be pinned
    /// - [`VerbsError::Range`] if the number is out of range
    pub fn register(device: &Arc<Device>, entries: usize) -> Result<Self, VerbsError> {
        check_range("cursor entries", entries as u64, 1, ENTRIES_MAX)?;
        device.check_atomics()?;
        let memory = SharedMapping::memfd("cursors", entries * CURSOR_LEN);
        let memory = memory.map(Arc::new).map_err(|error| VerbsError::Call {
            what: "allocate cursors",
            source: std::io::Error::other(error),
        })?;
        let region = |entry| {
            let part = entry * CURSOR_LEN..(entry + 1) * CURSOR_LEN;
            let memory = Arc::clone(&memory) as Arc<dyn RingMemory>;
            Region::bindable_to_write(device, memory, part, CURSOR).map(Bindable::new)
        };
        Ok(Self(Arc::new(Table {
            entries: (0..entries).map(region).collect::<Result<_, _>>()?,
            free: Mutex::new((0..entries).rev().collect()),
            leased: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            memory,
        })))
    }

    /// Leases a free entry, all zero. `None` if there is none.
    #[must_use]
    pub fn lease(&self) -> Option<CursorEntry> {
        let number = self.0.free().pop()?;
        self.0.leased.fetch_add(1, Ordering::Relaxed);
        let lease = Lease {
            number,
            is_granted: AtomicBool::new(false),
            table: Arc::clone(&self.0),
        };
        lease.audit(AuditEvent::CursorLeased);
        Some(CursorEntry(Arc::new(lease)))
    }

    /// Returns the number of free entries.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.free().len()
    }

    /// Returns the number of leased entries.
    #[must_use]
    pub fn live(&self) -> usize {
        self.0.entries.len() - self.free()
    }

    /// Returns the total number of leases, and how many of them ended.
    #[must_use]
    pub fn leases(&self) -> (u64, u64) {
        let counts = [&self.0.leased, &self.0.returned];
        counts.map(|count| count.load(Ordering::Relaxed)).into()
    }
}

impl Table {
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn word(&self, entry: usize, word: usize) -> &AtomicU64 {
        assert!(
            entry < self.entries.len() && word < CURSOR_WORDS,
            "a word of an entry"
        );
        // SAFETY: within the mapping, which lives as long as the table and begins with a page. No CPU
        // reaches it but through here, by atomic words; its reader checks what a device writes. Exercised by
        // `verbs::cursor::remote_cursor_writes_become_visible_to_owner`.
        unsafe {
            let at = self.memory.as_ptr().add(entry * CURSOR_LEN).cast::<u64>();
            AtomicU64::from_ptr(at.add(word))
        }
    }
}

/// A lease of one entry. The entry is free again once both this value and the connection that it was
/// granted to (`Stream::grant_cursor`) are dropped.
pub struct CursorEntry(Arc<Lease>);

impl CursorEntry {
    /// Returns the entry's number in its table.
    #[must_use]
    pub fn number(&self) -> usize {
        self.0.number
    }

    /// Loads word 0 to 7. The value is not older than the last one reported to the peer as complete. While
    /// the peer writes, the word may be torn, and words may be of different times.
    ///
    /// # Panics
    /// If `word` is larger than 7.
    #[must_use]
    #[inline]
    pub fn load(&self, word: usize) -> u64 {
        self.0
            .table
            .word(self.0.number, word)
            .load(Ordering::Acquire)
    }

    /// Loads all words, from the first to the last.
    #[must_use]
    pub fn load_all(&self) -> [u64; CURSOR_WORDS] {
        std::array::from_fn(|word| self.load(word))
    }

    pub(crate) const fn lease(&self) -> &Arc<Lease> {
        &self.0
    }
}

impl fmt::Debug for CursorEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut of = f.debug_struct("CursorEntry");
        of.field("number", &self.number());
        of.field("words", &self.load_all()).finish()
    }
}

/// Keeps an entry from being leased again. The connection that it was granted to drops its share
/// after its queue pair.
pub(crate) struct Lease {
    number: usize,
    is_granted: AtomicBool,
    table: Arc<Table>,
}

impl Lease {
    /// Returns the registration that the entry's windows are bound to.
    pub(crate) fn bindable(&self) -> &Arc<Bindable> {
        &self.table.entries[self.number]
    }

    /// Returns whether this is the first connection that the entry is granted to.
    pub(crate) fn grant_once(&self) -> bool {
        !self.is_granted.swap(true, Ordering::Relaxed)
    }

    fn audit(&self, what: AuditEvent) {
        let which = format_args!("entry {}", self.number);
        let of = audit::Of {
            device: self.bindable().device().name(),
            bytes: Some(CURSOR_LEN),
            why: Some(&which),
            ..audit::Of::default()
        };
        audit::write_entry(what, of);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        for word in 0..CURSOR_WORDS {
            self.table
                .word(self.number, word)
                .store(0, Ordering::Relaxed);
        }
        self.audit(AuditEvent::CursorReturned);
        self.table.returned.fetch_add(1, Ordering::Relaxed);
        // The next owner sees the zeroes, because they are written before the lock is released.
        self.table.free().push(self.number);
    }
}
