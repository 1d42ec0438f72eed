//! Numbers shared by processes of a host in a file on tmpfs. One process sets a gauge and any can read
//! it, without a system call. Measurements use this where a sender must know the progress of its
//! receivers and the wire must not carry it.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use super::files::{Access, DirectoryEntry, Readers};

/// Bytes per gauge, so that gauges do not share cache lines.
const APART: usize = 128;

/// A mapped file of gauges.
#[derive(Debug)]
pub struct SharedGauges {
    map: MmapRaw,
    count: usize,
}

impl SharedGauges {
    /// Opens the file, or creates it with all gauges zero. All processes must pass the same `count`.
    ///
    /// # Errors
    /// The operating system's error, or an error if the file has another length.
    pub fn open(path: &Path, count: usize) -> io::Result<Self> {
        let entry = DirectoryEntry::trusted(path)?;
        let file = entry.open_or_create(Access::ReadWrite, Readers::Owner)?;
        let len = count.max(1) * APART;
        match file.metadata()?.len() {
            0 => file.set_len(len as u64)?,
            there if there == len as u64 => {}
            there => {
                return Err(io::Error::other(format!(
                    "{} has {there} bytes, not the {len} of {count} gauges; remove it",
                    path.display()
                )));
            }
        }
        let map = MmapOptions::new().len(len).map_raw(&file)?;
        Ok(Self { map, count })
    }

    /// Returns the number of gauges.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns the value of gauge `index`. 0 if there is no such gauge.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> u64 {
        self.gauge(index)
            .map_or(0, |gauge| gauge.load(Ordering::Acquire))
    }

    /// Sets gauge `index` to `value`. Does nothing if there is no such gauge.
    #[inline]
    pub fn set(&self, index: usize, value: u64) {
        if let Some(gauge) = self.gauge(index) {
            gauge.store(value, Ordering::Release);
        }
    }

    /// Returns the lowest value of all gauges.
    #[inline]
    #[must_use]
    pub fn lowest(&self) -> u64 {
        (0..self.count).map(|i| self.get(i)).min().unwrap_or(0)
    }

    #[inline]
    fn gauge(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.count {
            return None;
        }
        // SAFETY: the mapping is page-aligned, has `APART` bytes for each of `count` gauges, and
        // lives as long as `self`; every process touches them as atomics only. Truncating the file
        // kills the processes that measure, no other. Exercised by
        // `tests::gauge_set_in_one_mapping_is_read_in_another`.
        Some(unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(index * APART).cast()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauge_set_in_one_mapping_is_read_in_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gauges");
        let one = SharedGauges::open(&path, 3).unwrap();
        let other = SharedGauges::open(&path, 3).unwrap();
        for (index, value) in [(0, 7), (1, u64::MAX), (2, 5), (3, 1)] {
            one.set(index, value);
        }
        let read: Vec<u64> = (0..4).map(|index| other.get(index)).collect();
        assert_eq!(read, [7, u64::MAX, 5, 0], "there is no fourth");
        assert_eq!(other.lowest(), 5);
        let error = SharedGauges::open(&path, 4).unwrap_err();
        assert!(error.to_string().contains("remove it"), "{error}");
    }
}
