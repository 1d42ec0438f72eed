//! A file of another process, mapped for reading by polls and never written.

use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use memmap2::{MmapOptions, MmapRaw};
use tickcast_reliability::ring::{CONTROL_PAGE_LEN, Geometry, RingError, RingMemory, RingReader};
use tickcast_transport_base::host::files::{DirectoryEntry, FileError};

use super::{ShmError, tail_len};

/// A ring's file, mapped read-only. A store to it would end only this process.
#[derive(Debug)]
pub struct ReadOnlyMapping {
    map: MmapRaw,
    ring: usize,
}

impl ReadOnlyMapping {
    /// Maps the file of a ring of this geometry, all of its pages at once. Only the file's owner can write it
    /// or make it shorter: this user, root, or a user who shares it with a group of this process.
    ///
    /// # Errors
    /// [`ShmError::Map`] if the file can't be mapped or is too short, [`ShmError::File`] if it belongs to
    /// another user, others than its owner can write it, or it is no regular file.
    pub fn open(path: &Path, geometry: Geometry) -> Result<Self, ShmError> {
        let failed = |source| ShmError::Map {
            path: PathBuf::from(path),
            source,
        };
        let refused = |text: String| Err(failed(io::Error::other(text)));
        let opened = DirectoryEntry::new(path).and_then(|entry| entry.open_shared());
        let file = opened.map_err(|error| match error {
            FileError::Io { source, .. } => failed(source),
            error => ShmError::File(error),
        })?;
        let metadata = file.metadata().map_err(failed)?;
        let needed = geometry.bytes() + tail_len(geometry);
        let len = metadata.len();
        if len < needed as u64 {
            return refused(format!(
                "it has {len} bytes, a ring of its geometry has {needed}"
            ));
        }
        // A file that is no such ring costs one page, however long it is.
        let mut page = [0; CONTROL_PAGE_LEN];
        file.read_exact_at(&mut page, 0).map_err(failed)?;
        let no_ring = |source| ShmError::Ring {
            path: PathBuf::from(path),
            source,
        };
        let (found, _) = RingReader::head_of(&page).map_err(no_ring)?;
        if found.bytes() > geometry.bytes() {
            return Err(no_ring(RingError::TooSmall {
                needed: found.bytes(),
                len: geometry.bytes(),
            }));
        }
        // Huge pages must be mapped whole.
        let page = usize::try_from(metadata.blksize()).unwrap_or(1).max(1);
        let map = MmapOptions::new()
            .len(needed.next_multiple_of(page))
            .populate()
            .map_raw_read_only(&file)
            .map_err(failed)?;
        Ok(Self {
            map,
            ring: geometry.bytes(),
        })
    }
}

// SAFETY: the mapping stays at one address, page-aligned, until it is dropped; its bytes are
// initialised, because its owner reserves all of them before it announces the file, and never
// makes it shorter. Nothing here writes them, nor could. Exercised by
// `tests/local/shm.rs::shm_reader_mapping_is_read_only` and the conformance suite.
unsafe impl RingMemory for ReadOnlyMapping {
    fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.ring
    }

    fn tail(&self) -> usize {
        self.map.len() - self.ring
    }
}
