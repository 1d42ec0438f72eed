//! Memory for rings: zeroed, page-aligned, shared, and backed by memory. Disk-backed files are refused,
//! because their write-back would stall the publisher.
//!
//! A file outlives its process: the next process that opens it finds the bytes unchanged. Only one
//! process at a time owns a file. The lock ends with the mapping.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memmap2::{MmapOptions, MmapRaw};
use thiserror::Error;
use tickcast_reliability::ring::RingMemory;

use super::files::{
    Access, DirectoryEntry, FileError, Readers, check_limit, open_directory, open_trusted_directory,
};
use super::memory_limit::available_bytes;

/// Reason that memory can't be mapped. The configuration or the host is at fault.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MappingError {
    /// The length is 0 or too large.
    #[error("a mapping can't have {len} bytes; its length must be between 1 and {max}")]
    Length {
        /// The requested length, in bytes.
        len: usize,
        /// The largest length, in bytes.
        max: usize,
    },
    /// The path lies on a file system that writes to a disk.
    #[error(
        "{path} lies on a file system of type {kind:#x}, not on tmpfs or hugetlbfs; choose a path below /dev/shm or a hugetlbfs mount, or leave it out"
    )]
    Disk {
        /// The path.
        path: PathBuf,
        /// The file system's magic number.
        kind: i64,
    },
    /// Another process owns the file.
    #[error("{path} belongs to another process; is a publisher running with the same path?")]
    Locked {
        /// The path.
        path: PathBuf,
    },
    /// This host, or a control group of this process, has not enough memory left.
    #[error(
        "{path} needs {needed} bytes of memory, and {available} bytes are available to this process; {smaller}, free memory, or widen the memory limit"
    )]
    NotEnough {
        /// The path.
        path: PathBuf,
        /// Additional bytes that the file needs.
        needed: u64,
        /// Bytes available.
        available: u64,
        /// Advice on how to need less.
        smaller: &'static str,
    },
    /// The operating system refused the memory.
    #[error(
        "{path} can't have {len} bytes: {source}; free memory, enlarge the file system, or {smaller}"
    )]
    NoRoom {
        /// The path.
        path: PathBuf,
        /// The requested length, in bytes.
        len: usize,
        /// The operating system's error.
        source: io::Error,
        /// Advice on how to need less.
        smaller: &'static str,
    },
    /// The file can't be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A call failed.
    #[error("can't {what} {path}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The file's path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl MappingError {
    /// Replaces the advice on how to need less memory.
    #[must_use]
    pub const fn with_advice(mut self, advice: &'static str) -> Self {
        if let Self::NotEnough { smaller, .. } | Self::NoRoom { smaller, .. } = &mut self {
            *smaller = advice;
        }
        self
    }
}

/// State of a file's bytes when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The file is new, or had another length and was replaced: all zero.
    Fresh,
    /// The file existed with the requested length: the bytes are as its last owner left them.
    Kept,
}

/// The contents that a file keeps for the next owner.
#[derive(Debug)]
pub enum Kept {
    /// The file does not exist.
    None,
    /// The file has this length in bytes, which is not the requested one. 0 if it is empty.
    Length(u64),
    /// The bytes as the file's last owner left them.
    Whole(SharedMapping),
}

/// A shared mapping, readable and writable, until it is dropped.
#[derive(Debug)]
pub struct SharedMapping {
    map: MmapRaw,
    /// Length of the ring, in bytes. The mapping may continue with its tail.
    len: usize,
    /// Name of the file, if it is removed with the mapping.
    removed: Option<DirectoryEntry>,
    /// Keeps the lock, and keeps the memory of a memfd reachable through its descriptor.
    file: File,
}

const LEN_MAX: usize = isize::MAX as usize / 2;
/// Advice on how a ring needs less memory.
const FEWER_SLOTS: &str = "configure fewer slots for the ring";

impl SharedMapping {
    /// Maps unnamed memory, freed with the last process that has its descriptor. `name` shows in `/proc`.
    ///
    /// # Errors
    /// [`MappingError`] if the length is invalid or the memory can't be had.
    pub fn memfd(name: &str, len: usize) -> Result<Self, MappingError> {
        check_len(len)?;
        let path = PathBuf::from(format!("memfd:{name}"));
        // A zero in the name only shortens it.
        let text: Vec<u8> = name
            .bytes()
            .take_while(|b| *b != 0)
            .take(200)
            .chain([0])
            .collect();
        // SAFETY: `text` ends with a zero and lives through the call; the descriptor returned is
        // nobody else's. Exercised by `tests::memory_without_a_name_is_zeroed_and_page_aligned`.
        let file = unsafe {
            let fd = libc::memfd_create(text.as_ptr().cast(), libc::MFD_CLOEXEC);
            (fd >= 0).then(|| File::from_raw_fd(fd))
        };
        let file = file.ok_or_else(|| io_error("create", &path, io::Error::last_os_error()))?;
        Self::map(file, &path, len, len)
    }

    /// Maps a file on tmpfs or hugetlbfs, created if necessary and owned by this process alone. Only this
    /// user can read it. On hugetlbfs the length is rounded up to whole pages.
    ///
    /// A file of another length is not resized but replaced by a new one. A process that has the old file
    /// mapped keeps it, and is not killed by vanishing pages.
    ///
    /// # Errors
    /// [`MappingError`] if another process or user owns the file, others can write it, the path is not on
    /// tmpfs or hugetlbfs, or the memory can't be had.
    pub fn file(path: &Path, len: usize) -> Result<(Self, Found), MappingError> {
        check_len(len)?;
        let entry = DirectoryEntry::trusted(path)?;
        let len = len.next_multiple_of(page_of(&entry)?);
        let file = open_locked(&entry)?;
        let metadata = file.metadata().map_err(|e| io_error("inspect", path, e))?;
        let (file, found) = match metadata.len() {
            0 => (file, Found::Fresh),
            there if there == len as u64 => (file, Found::Kept),
            // The old file stays locked until the new one has its name.
            _ => (replace(&entry, Readers::Owner)?, Found::Fresh),
        };
        let mapping = match found {
            Found::Fresh => Self::map_new(file, &entry, len, len)?,
            Found::Kept => Self::map(file, path, len, len)?,
        };
        Ok((mapping, found))
    }

    /// Returns the contents that a file keeps for its next owner. Creates and replaces nothing.
    ///
    /// # Errors
    /// [`MappingError`] if another process or user owns the file, others can write it, or it can't be mapped
    /// now. The file is unchanged.
    pub fn kept(path: &Path, len: usize) -> Result<Kept, MappingError> {
        check_len(len)?;
        let entry = DirectoryEntry::trusted(path)?;
        let len = len.next_multiple_of(page_of(&entry)?);
        let Some(file) = locked(&entry, || entry.open(Access::ReadWrite))? else {
            return Ok(Kept::None);
        };
        let metadata = file.metadata().map_err(|e| io_error("inspect", path, e))?;
        match metadata.len() {
            there if there == len as u64 => Self::map(file, path, len, len).map(Kept::Whole),
            there => Ok(Kept::Length(there)),
        }
    }

    /// Creates a zeroed file on tmpfs or hugetlbfs, owned by this process alone, for a ring of `len` bytes
    /// and a tail of at least `tail`. Removes a previous file of that name that nobody owns; a process that
    /// has it mapped keeps it unchanged. The group of this user may read the new file. It is removed with the
    /// mapping, but stays if the process is killed.
    ///
    /// # Errors
    /// [`MappingError`] if another process or user owns the file, others can write it, the path is not on
    /// tmpfs or hugetlbfs, or the memory can't be had.
    pub fn fresh(path: &Path, len: usize, tail: usize) -> Result<Self, MappingError> {
        let whole = len.saturating_add(tail);
        check_len(len.min(whole))?;
        check_len(whole)?;
        let entry = DirectoryEntry::trusted(path)?;
        let whole = whole.next_multiple_of(page_of(&entry)?);
        // The lock of the name stays until the new file has it. An empty file is replaced too, because its
        // mode may not let the group read it.
        let _old = open_locked(&entry)?;
        let file = replace(&entry, Readers::Group)?;
        let mut mapping = Self::map_new(file, &entry, whole, len)?;
        mapping.removed = Some(entry);
        Ok(mapping)
    }

    /// Checks whether a file of this path would lie in memory, in a directory where other users can't replace
    /// it.
    ///
    /// # Errors
    /// [`MappingError`] with the reason.
    pub fn check(path: &Path) -> Result<(), MappingError> {
        page_of(&DirectoryEntry::trusted(path)?).map(drop)
    }

    /// Checks whether files in this directory would lie in memory, and other users can't replace them. For a
    /// directory that does not exist yet, checks the one that it would be created in.
    ///
    /// # Errors
    /// [`MappingError`] with the reason and the directory.
    pub fn check_directory(directory: &Path) -> Result<(), MappingError> {
        let there = directory.ancestors().find(|path| path.is_dir());
        let there = there.unwrap_or(Path::new("."));
        let opened = if there == directory {
            open_trusted_directory(there)?
        } else {
            open_directory(there)?
        };
        memory_backed(&opened, there).map(drop)
    }

    /// Maps an empty file like [`map`](Self::map), and removes it if its memory can't be had.
    fn map_new(
        file: File,
        entry: &DirectoryEntry,
        len: usize,
        ring: usize,
    ) -> Result<Self, MappingError> {
        let path = entry.path();
        // Keep the lock until the file is removed, so that no process takes it meanwhile.
        let held = file.try_clone().map_err(|e| io_error("lock", path, e))?;
        Self::map(file, path, len, ring).inspect_err(|_| entry.remove(&held))
    }

    /// Maps `len` bytes, of which the first `ring` are the ring.
    fn map(file: File, path: &Path, len: usize, ring: usize) -> Result<Self, MappingError> {
        check_memory(&file, path, len)?;
        check_limit(path, len as u64)?;
        // Reserved at once, because a store into a page that can't be had would kill the process.
        // SAFETY: only numbers are passed. Exercised by
        // `tests::more_memory_than_there_is_is_refused_and_not_fatal`.
        let reserved = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len as libc::off_t) };
        if reserved != 0 {
            return Err(MappingError::NoRoom {
                path: path.to_owned(),
                len,
                source: io::Error::last_os_error(),
                smaller: FEWER_SLOTS,
            });
        }
        let map = MmapOptions::new().len(len).map_raw(&file);
        let map = map.map_err(|e| io_error("map", path, e))?;
        Ok(Self {
            map,
            len: ring,
            removed: None,
            file,
        })
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // If removal fails, the next owner replaces the file.
        if let Some(entry) = &self.removed {
            entry.remove(&self.file);
        }
    }
}

impl AsRawFd for SharedMapping {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

// SAFETY: the mapping stays at one address, page-aligned, of `len` and `tail` bytes that `fallocate` backed
// with memory (zeroed by the kernel), until it is dropped; the lock on a file keeps other writers
// out, and a memfd has none. No reference into it is ever made here. Exercised by
// `tests::mapped_file_keeps_bytes_for_next_owner`.
unsafe impl RingMemory for SharedMapping {
    fn as_ptr(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn tail(&self) -> usize {
        self.map.len() - self.len
    }
}

const fn check_len(len: usize) -> Result<(), MappingError> {
    if len == 0 || len > LEN_MAX {
        return Err(MappingError::Length { len, max: LEN_MAX });
    }
    Ok(())
}

/// Refuses a length that the host does not have. Otherwise the operating system would grant it and later
/// kill a process. Huge pages are exempt, because they are a separate pool that refuses by itself.
fn check_memory(file: &File, path: &Path, len: usize) -> Result<(), MappingError> {
    if memory_backed(file, path)? != 1 {
        return Ok(());
    }
    let metadata = file.metadata().map_err(|e| io_error("inspect", path, e))?;
    let needed = (len as u64).saturating_sub(metadata.blocks().saturating_mul(512));
    match available_bytes() {
        Some(available) if needed > available => Err(MappingError::NotEnough {
            path: path.to_owned(),
            needed,
            available,
            smaller: FEWER_SLOTS,
        }),
        _ => Ok(()),
    }
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> MappingError {
    MappingError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Returns the page size of the file system that a file would lie on.
fn page_of(entry: &DirectoryEntry) -> Result<usize, MappingError> {
    memory_backed(entry.directory(), entry.path())
}

/// Replaces the file of that name by a new one, which is locked before it has the name. The caller holds the
/// old one's lock.
fn replace(entry: &DirectoryEntry, readers: Readers) -> Result<File, MappingError> {
    let new = entry.create(readers)?;
    lock(new.file(), entry.path())?;
    Ok(new.replace()?)
}

/// Opens or creates a file, and locks the one that has the name then.
fn open_locked(entry: &DirectoryEntry) -> Result<File, MappingError> {
    let open = || {
        let opened = entry.open_or_create(Access::ReadWrite, Readers::Owner);
        opened.map(Some)
    };
    let missing = || io_error("open", entry.path(), io::ErrorKind::NotFound.into());
    locked(entry, open)?.ok_or_else(missing)
}

/// Opens a file and locks it. Repeats this if the owner replaced the file between the two steps, so that the
/// locked file is the one that has the name.
fn locked(
    entry: &DirectoryEntry,
    open: impl Fn() -> Result<Option<File>, FileError>,
) -> Result<Option<File>, MappingError> {
    for _ in 0..8 {
        let Some(file) = open()? else {
            return Ok(None);
        };
        lock(&file, entry.path())?;
        if entry.is_name_of(&file) {
            return Ok(Some(file));
        }
    }
    // Replaced repeatedly, so another process uses it.
    Err(MappingError::Locked {
        path: entry.path().to_owned(),
    })
}

fn lock(file: &File, path: &Path) -> Result<(), MappingError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => MappingError::Locked {
            path: path.to_owned(),
        },
        TryLockError::Error(source) => io_error("lock", path, source),
    })
}

/// Returns the page size of the file system that `directory` lies on, if it is backed by memory.
fn memory_backed(directory: &File, path: &Path) -> Result<usize, MappingError> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `stat` is room for one `statfs`, for which zero bytes are a value, so it is
    // initialised whatever the call does. Exercised by
    // `tests::mapping_path_outside_memory_is_refused`.
    let (result, stat) = unsafe {
        let result = libc::fstatfs(directory.as_raw_fd(), stat.as_mut_ptr());
        (result, stat.assume_init())
    };
    if result != 0 {
        return Err(io_error("inspect", path, io::Error::last_os_error()));
    }
    let kind = stat.f_type;
    if kind == libc::HUGETLBFS_MAGIC {
        return Ok((stat.f_bsize as usize).max(1));
    }
    if kind == libc::TMPFS_MAGIC {
        return Ok(1);
    }
    Err(MappingError::Disk {
        path: path.to_owned(),
        kind,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn bytes(mapping: &SharedMapping) -> Vec<u8> {
        // SAFETY: the test is the only one to use the mapping, and makes no reference to it.
        (0..mapping.len())
            .map(|i| unsafe { mapping.as_ptr().add(i).read() })
            .collect()
    }

    fn in_memory(name: &str) -> PathBuf {
        Path::new("/dev/shm").join(format!("tickcast-test-{}-{name}", std::process::id()))
    }

    #[test]
    fn memory_without_a_name_is_zeroed_and_page_aligned() {
        let mapping = SharedMapping::memfd("ring", 10_000).unwrap();
        assert_eq!((mapping.as_ptr().addr() % 4096, mapping.len()), (0, 10_000));
        assert!(bytes(&mapping).iter().all(|b| *b == 0));
    }

    #[test]
    fn ring_file_is_writable_by_owner_only() {
        let path = in_memory("rights");
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o777;
        let made = SharedMapping::file(&path, 8192).unwrap();
        assert_eq!(mode(), 0o600);
        drop(made);
        // The previous file does not determine the mode. The umask may deny the group.
        let _shared = SharedMapping::fresh(&path, 8192, 0).unwrap();
        assert!([0o640, 0o600].contains(&mode()), "{:o}", mode());
    }

    #[test]
    fn planted_ring_file_is_refused_unchanged() {
        let (path, target) = (in_memory("planted"), in_memory("target"));
        let refused = || {
            for refused in [
                SharedMapping::file(&path, 8192).map(drop),
                SharedMapping::fresh(&path, 8192, 0).map(drop),
                SharedMapping::kept(&path, 8192).map(drop),
            ] {
                let error = refused.unwrap_err();
                assert!(matches!(error, MappingError::File(_)), "{error}");
            }
        };
        std::os::unix::fs::symlink(&target, &path).unwrap();
        refused();
        assert!(!target.exists(), "a dangling link creates nothing");
        std::fs::remove_file(&path).unwrap();
        for bytes in [&[0_u8; 0][..], &[1; 8192]] {
            std::fs::write(&path, bytes).unwrap();
            let writable = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions(&path, writable).unwrap();
            refused();
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn kept_ring_is_found_and_nothing_replaced() {
        let path = in_memory("found");
        let kept = |len| SharedMapping::kept(&path, len);
        assert!(matches!(kept(8192), Ok(Kept::None)) && !path.exists());
        let (first, _) = SharedMapping::file(&path, 8192).unwrap();
        assert!(matches!(kept(8192), Err(MappingError::Locked { .. })));
        assert!(matches!(kept(4096), Err(MappingError::Locked { .. })));
        // SAFETY: within the mapping, which nobody else uses.
        unsafe { first.as_ptr().add(8191).write(7) };
        drop(first);
        assert!(matches!(kept(4096), Ok(Kept::Length(8192))));
        let Ok(Kept::Whole(found)) = kept(8192) else {
            panic!("it is there")
        };
        assert_eq!(bytes(&found)[8191], 7);
        drop(found);
        std::fs::write(&path, b"").unwrap();
        assert!(matches!(kept(8192), Ok(Kept::Length(0))));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn mapped_file_keeps_bytes_for_next_owner() {
        let path = in_memory("kept");
        let (first, found) = SharedMapping::file(&path, 8192).unwrap();
        assert_eq!(found, Found::Fresh);
        // SAFETY: within the mapping, which nobody else uses.
        unsafe { first.as_ptr().add(8191).write(7) };
        drop(first);
        let (second, found) = SharedMapping::file(&path, 8192).unwrap();
        assert_eq!((found, bytes(&second)[8191]), (Found::Kept, 7));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn mapped_file_refuses_second_owner() {
        let path = in_memory("owned");
        let (_first, _) = SharedMapping::file(&path, 4096).unwrap();
        let second = SharedMapping::file(&path, 4096);
        assert!(matches!(second, Err(MappingError::Locked { .. })));
        // A request for another length does not take the file away either.
        let third = SharedMapping::file(&path, 8192);
        assert!(matches!(third, Err(MappingError::Locked { .. })));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn mapped_file_of_other_length_is_replaced() {
        let path = in_memory("replaced");
        let (old, _) = SharedMapping::file(&path, 8192).unwrap();
        // A separate open file, as another process would have: a mapping shares its descriptor's lock.
        let file = File::open(&path).unwrap();
        let reader = MmapOptions::new().len(8192).map_raw_read_only(&file);
        let reader = reader.unwrap();
        // SAFETY: within the mapping, which nobody writes at the same time.
        unsafe { old.as_ptr().add(5000).write(9) };
        drop(old);
        let (new, found) = SharedMapping::file(&path, 4096).unwrap();
        assert_eq!((found, new.len()), (Found::Fresh, 4096));
        assert!(bytes(&new).iter().all(|b| *b == 0));
        // SAFETY: the old file's pages live as long as the reader's mapping.
        assert_eq!(unsafe { reader.as_ptr().add(5000).read() }, 9);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn mapping_path_outside_memory_is_refused() {
        // /proc and /sys are neither disks nor memory for a ring, and they always exist.
        for path in ["/proc/tickcast-ring", "/sys/tickcast-ring"] {
            let error = SharedMapping::file(Path::new(path), 4096).unwrap_err();
            assert!(matches!(error, MappingError::Disk { .. }), "{error}");
            assert!(error.to_string().contains("/dev/shm"));
        }
    }

    #[test]
    fn disk_directory_error_names_existing_parent() {
        for (given, named) in [("/proc/no/such", "/proc"), ("/proc", "/proc")] {
            let error = SharedMapping::check_directory(Path::new(given)).unwrap_err();
            let reported = error.to_string();
            assert!(
                reported.starts_with(&format!("{named} lies on")),
                "{reported}"
            );
        }
        let later = Path::new("/dev/shm/tickcast-not-there/nor-this");
        SharedMapping::check_directory(later).unwrap();
        assert!(!later.exists(), "it only looks");
    }

    #[test]
    fn more_memory_than_there_is_is_refused_and_not_fatal() {
        if available_bytes().is_none() {
            println!("SKIPPED: this system tells nothing of its memory");
            return;
        }
        let path = in_memory("huge");
        let file = SharedMapping::file(&path, 1 << 50).unwrap_err();
        assert!(!path.exists(), "no empty file is left behind");
        assert!(SharedMapping::fresh(&path, 1 << 50, 0).is_err() && !path.exists());
        let memory = SharedMapping::memfd("huge", 1 << 50).unwrap_err();
        for error in [file, memory] {
            let MappingError::NotEnough {
                needed, available, ..
            } = error
            else {
                panic!("refused for another reason: {error}")
            };
            assert!(needed == 1 << 50 && available < needed, "{error}");
            let text = error.to_string();
            let said = [&needed.to_string(), &available.to_string(), "fewer slots"];
            assert!(said.iter().all(|part| text.contains(*part)), "{text}");
        }
        assert!(matches!(
            SharedMapping::memfd("none", 0),
            Err(MappingError::Length { .. })
        ));
    }
}
