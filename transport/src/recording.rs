//! The file that a subscriber's record is kept in (`tickcast_reliability::recorder`): on tmpfs, so that
//! no disk ever holds up who records, and there for whoever asks after the process was killed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tickcast_reliability::recorder::Area;
use tickcast_reliability::ring::RingMemory;

use crate::mapping::{MappingError, SharedMapping};

/// A record's file, mapped, and owned by this process alone.
#[derive(Debug)]
pub struct RecordFile(SharedMapping);

impl RecordFile {
    /// A file of `len` bytes, rounded up to whole pages. One that has the name already, and whose owner
    /// is gone, is kept under the same name with `.before` behind it: what a process recorded that was
    /// started again at once is what somebody will ask for.
    ///
    /// # Errors
    /// [`MappingError`]; among others where the path is not on tmpfs, or belongs to a process that
    /// runs.
    pub fn create(path: &Path, len: usize) -> Result<Self, MappingError> {
        SharedMapping::check(path)?;
        if let Ok(file) = File::open(path)
            && file.try_lock().is_ok()
            && file.metadata().is_ok_and(|metadata| metadata.len() > 0)
        {
            let renamed = std::fs::rename(path, before(path));
            renamed.map_err(|source| MappingError::Io {
                what: "rename",
                path: path.to_owned(),
                source,
            })?;
        }
        Ok(Self(SharedMapping::file(path, len)?.0))
    }
}

impl Area for RecordFile {
    #[inline]
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `len` bytes of initialised memory that stay where they are until it is
        // dropped; this process alone has the file's lock and nothing else here refers to it, so that the
        // exclusive borrow holds for the bytes too; others read them through the file. Exercised by
        // `tests::what_was_written_is_in_the_file_and_the_one_before_is_kept`.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}

/// The bytes of a record's file, also while it is written: what is overwritten meanwhile is found out
/// when they are read as a record.
///
/// # Errors
/// As for any file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    std::fs::read(path)
}

fn before(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".before");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_in_the_file_and_the_one_before_is_kept() {
        let path = PathBuf::from(format!("/dev/shm/tickcast-record-{}", std::process::id()));
        let mut first = RecordFile::create(&path, 4096).unwrap();
        first.bytes()[7] = 1;
        assert_eq!(read(&path).unwrap()[7], 1);
        let taken = RecordFile::create(&path, 4096).unwrap_err();
        assert!(matches!(taken, MappingError::Locked { .. }), "{taken}");
        drop(first);
        let mut second = RecordFile::create(&path, 8192).unwrap();
        assert_eq!((second.bytes().len(), second.bytes()[7]), (8192, 0));
        assert_eq!(read(&before(&path)).unwrap()[7], 1);
        for path in [&path, &before(&path)] {
            std::fs::remove_file(path).unwrap();
        }
        let disk = RecordFile::create(Path::new("/etc/tickcast-record"), 4096);
        assert!(disk.is_err());
    }
}
