//! Outputs that the user of this process chose: regular files, devices and pipes.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::geteuid;

use super::entry::DirectoryEntry;
use super::error::{FileError, failed};

/// Links followed to an output.
const LINKS_MAX: u32 = 8;

/// An output that the user of this process chose.
#[derive(Debug)]
pub enum OutputTarget {
    /// A regular file, which need not exist yet.
    File(DirectoryEntry),
    /// A device or a pipe, written in place.
    Stream(DirectoryEntry),
}

impl OutputTarget {
    /// Finds an output. Follows links, but only those that root or this user made: another user's link could
    /// lead to any file of this one.
    ///
    /// # Errors
    /// [`FileError`] if a directory can't be used, or a link or pipe belongs to another user than this one
    /// and root.
    pub fn find(path: &Path) -> Result<Self, FileError> {
        let mut entry = DirectoryEntry::new(path)?;
        for _ in 0..LINKS_MAX {
            let Some(found) = entry.named()? else {
                return Ok(Self::File(entry));
            };
            let kind = found.file_type();
            if kind.is_file() {
                return Ok(Self::File(entry));
            }
            let user = geteuid().as_raw();
            // Only root can make a device, whoever owns it.
            let is_made_by_anybody = kind.is_symlink() || kind.is_fifo();
            if is_made_by_anybody && ![0, user].contains(&found.uid()) {
                return Err(FileError::Owner {
                    path: entry.path().to_owned(),
                    owner: found.uid(),
                    user,
                });
            }
            if !kind.is_symlink() || entry.is_descriptor() {
                return Ok(Self::Stream(entry));
            }
            entry = DirectoryEntry::new(&entry.link_target()?)?;
        }
        Err(failed("follow", path, Errno::LOOP))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn output_is_found_through_own_links() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output");
        let found = || match OutputTarget::find(&path).unwrap() {
            OutputTarget::File(entry) => entry.path().to_owned(),
            OutputTarget::Stream(entry) => panic!("{entry:?}"),
        };
        assert_eq!(found(), path);
        fs::write(&path, b"").unwrap();
        assert_eq!(found(), path);
        fs::remove_file(&path).unwrap();
        let between = folder.path().join("between");
        symlink("between", &path).unwrap();
        symlink(folder.path().join("target"), &between).unwrap();
        assert_eq!(found(), folder.path().join("target"));
        fs::remove_file(&between).unwrap();
        symlink(&path, &between).unwrap();
        let error = OutputTarget::find(&path).unwrap_err();
        assert!(matches!(error, FileError::Io { .. }), "{error}");
        let output = File::create(folder.path().join("open")).unwrap();
        let descriptor = format!("/proc/self/fd/{}", output.as_raw_fd());
        for path in ["/dev/null", &descriptor] {
            let OutputTarget::Stream(entry) = OutputTarget::find(Path::new(path)).unwrap() else {
                panic!("{path} is no regular file");
            };
            entry.open_in_place().unwrap().write_all(b"x").unwrap();
        }
        assert_eq!(output.metadata().unwrap().len(), 1);
    }

    #[test]
    fn link_of_other_user_to_output_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("output");
        symlink(folder.path().join("target"), &path).unwrap();
        if lchown(&path, Some(7), None).is_err() {
            println!("SKIPPED: only root can give a link away");
            return;
        }
        let error = OutputTarget::find(&path).unwrap_err();
        assert!(
            matches!(error, FileError::Owner { owner: 7, .. }),
            "{error}"
        );
    }
}
