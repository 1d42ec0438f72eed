//! Cursors: 64 bytes for each subscriber, which it claims and writes itself, one-sided, and which the
//! CPU here reads.
//!
//! Each entry is a registration of its own, without any remote right: even a device that looks at a
//! registration's bounds alone, and not at its window's, lets nobody into a neighbour's. An entry is
//! leased once, granted to one connection, and comes back only when both are gone: whoever holds the
//! lease, and the queue pair that the entry was granted through. What is leased is zero.
//!
//! The device's atomic operations are atomic among themselves, not with those of a CPU. So the CPU
//! only reads, but for the zeroes, which it writes while nobody else can.

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

/// Entries that one table has at most.
const ENTRIES_MAX: u64 = 4_096;

/// Entries that subscribers write their progress to, each its own.
pub struct CursorTable(Arc<Table>);

struct Table {
    /// By number. Registrations go before the memory.
    entries: Vec<Arc<Bindable>>,
    /// Numbers of entries that nobody has; the last is leased next.
    free: Mutex<Vec<usize>>,
    leased: AtomicU64,
    returned: AtomicU64,
    memory: Arc<SharedMapping>,
}

impl CursorTable {
    /// Makes and registers so many entries, 1 to 4096.
    ///
    /// # Errors
    /// [`VerbsError::NoAtomics`] where the device has none, [`VerbsError::Memlock`] where no more may
    /// be pinned, [`VerbsError::Range`].
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

    /// An entry that nobody has, all zero; `None` while there is none.
    #[must_use]
    pub fn lease(&self) -> Option<CursorEntry> {
        let number = self.0.free().pop()?;
        self.0.leased.fetch_add(1, Ordering::Relaxed);
        let lease = Lease {
            number,
            is_granted: AtomicBool::new(false),
            table: Arc::clone(&self.0),
        };
        lease.say(AuditEvent::CursorLeased);
        Some(CursorEntry(Arc::new(lease)))
    }

    /// Entries that nobody has.
    #[must_use]
    pub fn free(&self) -> usize {
        self.0.free().len()
    }

    /// Entries that somebody has.
    #[must_use]
    pub fn live(&self) -> usize {
        self.0.entries.len() - self.free()
    }

    /// Leases there ever were, and those of them that are over.
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
        // reaches it but through here, by atomic words; what a device writes, its reader checks. Exercised by
        // `verbs::cursor::the_cpu_sees_the_progress_that_a_peer_writes`.
        unsafe {
            let at = self.memory.as_ptr().add(entry * CURSOR_LEN).cast::<u64>();
            AtomicU64::from_ptr(at.add(word))
        }
    }
}

/// A lease of one entry. The entry comes back when this value is dropped and so is the connection that
/// it was granted to (`Stream::grant_cursor`), whichever is the later.
pub struct CursorEntry(Arc<Lease>);

impl CursorEntry {
    /// Which entry of its table it is.
    #[must_use]
    pub fn number(&self) -> usize {
        self.0.number
    }

    /// One word of it, 0 to 7: not older than what its peer was told of. While its peer writes, its bytes,
    /// like the other words, may be of different times.
    ///
    /// # Panics
    /// Where there is no such word.
    #[must_use]
    #[inline]
    pub fn load(&self, word: usize) -> u64 {
        self.0
            .table
            .word(self.0.number, word)
            .load(Ordering::Acquire)
    }

    /// All words, from the first to the last.
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

/// What keeps an entry from being leased again. A connection that it was granted to keeps it behind
/// its queue pair.
pub(crate) struct Lease {
    number: usize,
    is_granted: AtomicBool,
    table: Arc<Table>,
}

impl Lease {
    /// What its windows are bound to.
    pub(crate) fn bindable(&self) -> &Arc<Bindable> {
        &self.table.entries[self.number]
    }

    /// Whether this is the first connection that it is granted to.
    pub(crate) fn grant_once(&self) -> bool {
        !self.is_granted.swap(true, Ordering::Relaxed)
    }

    fn say(&self, what: AuditEvent) {
        let which = format_args!("entry {}", self.number);
        let of = audit::Of {
            device: self.bindable().device().name(),
            bytes: Some(CURSOR_LEN),
            why: Some(&which),
            ..audit::Of::default()
        };
        audit::say(what, of);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        for word in 0..CURSOR_WORDS {
            self.table
                .word(self.number, word)
                .store(0, Ordering::Relaxed);
        }
        self.say(AuditEvent::CursorReturned);
        self.table.returned.fetch_add(1, Ordering::Relaxed);
        // Whoever leases it next sees the zeroes: they come before the lock is released.
        self.table.free().push(self.number);
    }
}
