//! A file of whole lines. It outlives its process, and a later one continues it.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tickcast_transport_base::host::files::{
    Access, DirectoryEntry, FileError, OutputTarget, Readers, check_limit,
};

/// A file that lines are appended to. A failed append leaves no part of a line in a regular file.
#[derive(Debug)]
pub(crate) struct LineFile {
    path: PathBuf,
    file: File,
    /// The name of a regular file; a stream has none that could be moved away.
    entry: Option<DirectoryEntry>,
}

impl LineFile {
    /// Opens a file of this user, or creates it. Removes an incomplete last line, left by a killed process.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let (file, entry) = match OutputTarget::find(path)? {
            OutputTarget::Stream(entry) => (entry.open_in_place()?, None),
            OutputTarget::File(entry) => {
                let whole = entry.open_or_create(Access::ReadWrite, Readers::Group)?;
                remove_torn_line(&whole).map_err(|source| FileError::Io {
                    what: "repair the end of",
                    path: path.to_owned(),
                    source,
                })?;
                let file = entry.open_or_create(Access::Append, Readers::Group)?;
                (file, Some(entry))
            }
        };
        Ok(Self {
            path: path.to_owned(),
            file,
            entry,
        })
    }

    /// Returns whether this is a device or a pipe, which can't be repaired.
    pub(crate) const fn is_stream(&self) -> bool {
        self.entry.is_none()
    }

    /// Returns whether the file still has its name: it was neither removed nor moved away.
    pub(crate) fn has_its_name(&self) -> bool {
        (self.entry.as_ref()).is_none_or(|entry| entry.is_name_of(&self.file))
    }

    /// Appends whole lines.
    ///
    /// # Errors
    /// Returns the operating system's error. A regular file is then as it was.
    pub(crate) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.is_stream() {
            return self.file.write_all(lines);
        }
        let before = self.file.metadata()?.len();
        check_limit(&self.path, before.saturating_add(lines.len() as u64))?;
        let written = self.file.write_all(lines);
        if written.is_err() {
            self.file.set_len(before)?;
        }
        written
    }
}

/// Bytes read at once from the end of a file.
const BLOCK: usize = 64 << 10;

/// Shortens a file to the end of its last whole line.
fn remove_torn_line(file: &File) -> io::Result<()> {
    let len = file.metadata()?.len();
    let (mut end, mut block) = (len, vec![0; BLOCK]);
    while end > 0 {
        let start = end.saturating_sub(BLOCK as u64);
        let block = &mut block[..(end - start) as usize];
        file.read_exact_at(block, start)?;
        if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
            end = start + at as u64 + 1;
            break;
        }
        end = start;
    }
    if end < len {
        file.set_len(end)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn torn_last_line_is_removed_when_the_file_continues() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let long = "x".repeat(3 * BLOCK);
        for (left, whole) in [
            ("", ""),
            ("one\n", "one\n"),
            ("one\ntwo", "one\n"),
            ("torn", ""),
            (&format!("one\n{long}"), "one\n"),
            (&format!("{long}\n"), &format!("{long}\n")),
        ] {
            fs::write(&path, left).unwrap();
            let mut file = LineFile::open(&path).unwrap();
            file.append(b"next\n").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{whole}next\n"));
        }
    }

    #[test]
    fn line_file_is_for_owner_and_group_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        drop(LineFile::open(&path).unwrap());
        // The umask may deny the group.
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert!([0o640, 0o600].contains(&mode), "{mode:o}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let error = LineFile::open(&path).unwrap_err();
        assert!(matches!(error, FileError::Mode { .. }), "{error}");
    }

    #[test]
    fn moved_file_no_longer_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let file = LineFile::open(&path).unwrap();
        assert!(file.has_its_name());
        fs::rename(&path, folder.path().join("log.1")).unwrap();
        assert!(!file.has_its_name());
        symlink("/dev/full", &path).unwrap();
        let mut full = LineFile::open(&path).unwrap();
        assert!(full.has_its_name());
        assert!(full.append(b"lost\n").is_err());
    }
}
