//! The file of a subscriber's journal (`tickcast_journal`). It lies on tmpfs, so no disk blocks the
//! writer, and it remains readable after the process was killed.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tickcast_journal::{
    Area, FILE_HEAD_LEN, Journal, JournalReadError, generation_offsets, segments_len,
};
use tickcast_reliability::ring::RingMemory;

use tickcast_transport_base::host::files::{Access, DirectoryEntry, FileError, open_input};
use tickcast_transport_base::host::mapping::{MappingError, SharedMapping};
use tickcast_transport_base::host::memory_limit::available_bytes;

/// A journal's file, mapped, and owned by this process alone.
#[derive(Debug)]
pub struct JournalFile(SharedMapping);

impl JournalFile {
    /// Creates a file of `len` bytes, rounded up to whole pages. Renames an existing file whose owner is gone
    /// to the same name with `.before`, because the journal of a process before a restart may still be
    /// needed. A journal that heard no sender is not kept, because repeated failed starts would replace
    /// the useful one.
    ///
    /// # Errors
    /// [`MappingError`], for example if the path is not on tmpfs, or belongs to a running process.
    pub fn create(path: &Path, len: usize) -> Result<Self, MappingError> {
        SharedMapping::check(path)?;
        let entry = DirectoryEntry::trusted(path)?;
        if let Some(file) = entry.open(Access::Read)?
            && file.try_lock().is_ok()
            && file.metadata().is_ok_and(|metadata| metadata.len() > 0)
            && is_of_use(&file)
        {
            entry.rename_to(&DirectoryEntry::trusted(&before(path))?)?;
        }
        let made = SharedMapping::file(path, len);
        made.map(|(mapping, _)| Self(mapping))
            .map_err(|error| error.with_advice("configure fewer MiB for the journal"))
    }
}

impl Area for JournalFile {
    #[inline]
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes of initialised memory that stay where they are until it is
        // dropped; this process alone has the file's lock and nothing else here refers to it, so that the
        // exclusive borrow holds for the bytes too; others read them through the file. Exercised by
        // `tests::new_journal_file_keeps_previous_one`.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}

/// Returns the bytes of a journal's file, also while it is written. Bytes that are overwritten during the
/// read are left out. Takes at most the memory that this process can still have.
///
/// # Errors
/// The operating system's error, or an error if the path is a device or a pipe, or the journal is larger than
/// the memory.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_input(path).map_err(|error| match error {
        FileError::Io { source, .. } => source,
        _ => {
            let what = "it is not a regular file; copy the journal into one";
            io::Error::new(io::ErrorKind::InvalidInput, what)
        }
    })?;
    read_changing(&file, || ())
}

fn read_changing(file: &File, meanwhile: impl FnOnce()) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(FILE_HEAD_LEN as u64).read_to_end(&mut bytes)?;
    // Everything beyond the segments is the rest of a page, and a file that is no journal has none.
    let len = (segments_len(&bytes)).min(file.metadata()?.len());
    check_memory(len, available_bytes())?;
    file.take(len).read_to_end(&mut bytes)?;
    meanwhile();
    let offsets: Vec<_> = generation_offsets(&bytes).collect();
    for offset in offsets {
        let mut now = [0; 8];
        file.read_exact_at(&mut now, offset as u64)?;
        let read = &mut bytes[offset..offset + now.len()];
        if *read != now {
            read.fill(0);
        }
    }
    Ok(bytes)
}

/// Refuses a journal that the memory does not hold, because reading it would make the kernel kill a process.
fn check_memory(len: u64, available: Option<u64>) -> io::Result<()> {
    match available {
        Some(available) if len > available => {
            let what = format!(
                "its head announces {len} bytes, and this host has memory for {available} more; free \
                 memory, or read the journal on another host"
            );
            Err(io::Error::new(io::ErrorKind::OutOfMemory, what))
        }
        _ => Ok(()),
    }
}

/// Returns whether a file is worth keeping: a journal that heard a sender, or unknown contents.
fn is_of_use(file: &File) -> bool {
    match read_changing(file, || ()).map(Journal::read) {
        Ok(Ok(journal)) => journal.has_heard_anybody(),
        Ok(Err(JournalReadError::Empty)) => false,
        _ => true,
    }
}

/// Returns the path to which a journal is renamed when another takes its name.
#[must_use]
pub fn before(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".before");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a file whose lock was just released. A process that another test starts meanwhile holds copies
    /// of this one's locks for an instant, between its fork and its exec.
    fn create_once_free(path: &Path, len: usize) -> JournalFile {
        for _ in 0..10_000 {
            match JournalFile::create(path, len) {
                Err(MappingError::Locked { .. }) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                created => return created.unwrap(),
            }
        }
        panic!("{} stays locked", path.display());
    }

    #[test]
    fn new_journal_file_keeps_previous_one() {
        let path = PathBuf::from(format!("/dev/shm/tickcast-journal-{}", std::process::id()));
        let mut first = JournalFile::create(&path, 4096).unwrap();
        first.bytes()[7] = 1;
        assert_eq!(read(&path).unwrap()[7], 1);
        let taken = JournalFile::create(&path, 4096).unwrap_err();
        assert!(matches!(taken, MappingError::Locked { .. }), "{taken}");
        drop(first);
        let mut second = create_once_free(&path, 8192);
        assert_eq!((second.bytes().len(), second.bytes()[7]), (8192, 0));
        assert_eq!(read(&before(&path)).unwrap()[7], 1);
        for path in [&path, &before(&path)] {
            std::fs::remove_file(path).unwrap();
        }
        let disk = JournalFile::create(Path::new("/etc/tickcast-journal"), 4096);
        assert!(disk.is_err());
    }

    #[test]
    fn journal_without_memory_is_refused_without_file() {
        if available_bytes().is_none() {
            println!("SKIPPED: this system tells nothing of its memory");
            return;
        }
        let name = format!("/dev/shm/tickcast-no-journal-{}", std::process::id());
        let error = JournalFile::create(Path::new(&name), 1 << 50).unwrap_err();
        let reported = error.to_string();
        assert!(reported.contains("configure fewer MiB"), "{reported}");
        assert!(!reported.contains("ring"), "{reported}");
        assert!(!Path::new(&name).exists());
    }

    #[test]
    fn segment_overwritten_during_journal_read_is_omitted() {
        let (segments, segment_len) = (8_u64, 4096_u64);
        let mut journal = vec![1_u8; 4096 + (segments * segment_len) as usize];
        journal[..8].copy_from_slice(b"TCFLIGHT");
        journal[8..16].copy_from_slice(&(1 | segments << 32).to_le_bytes());
        journal[16..24].copy_from_slice(&segment_len.to_le_bytes());
        let path = std::env::temp_dir().join(format!("tickcast-read-{}", std::process::id()));
        std::fs::write(&path, &journal).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let third = 4096 + 2 * segment_len;
        let read = read_changing(&file, || {
            file.write_all_at(&99_u64.to_le_bytes(), third).unwrap();
        });
        journal[third as usize..][..8].fill(0);
        assert!(read.unwrap() == journal);
    }

    /// Returns what is read of a sparse file of 1 TiB with this head.
    fn read_sparse(name: &str, head: &[u8]) -> io::Result<Vec<u8>> {
        let path = std::env::temp_dir().join(format!("tickcast-{name}-{}", std::process::id()));
        std::fs::write(&path, head).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        read_changing(&file, || ())
    }

    #[test]
    fn huge_file_without_a_journal_costs_its_head_only() {
        let bytes = read_sparse("no-journal", b"").unwrap();
        assert_eq!(bytes.len(), FILE_HEAD_LEN);
    }

    #[test]
    fn journal_larger_than_the_memory_is_refused() {
        if available_bytes().is_none() {
            println!("SKIPPED: this system tells nothing of its memory");
            return;
        }
        let (head, segment_len) = ([1_u32, 8].map(u32::to_le_bytes), 1_u64 << 36);
        let head = [&b"TCFLIGHT"[..], &head.concat(), &segment_len.to_le_bytes()].concat();
        let error = read_sparse("huge-journal", &head).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{error}");
        assert!(check_memory(5, Some(4)).is_err() && check_memory(4, Some(4)).is_ok());
    }

    #[test]
    fn journal_path_not_regular_file_is_refused() {
        let pipe = std::env::temp_dir().join(format!("tickcast-pipe-{}", std::process::id()));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for path in [Path::new("/dev/zero"), &pipe] {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
        std::fs::remove_file(&pipe).unwrap();
    }
}
