//! A name in an opened directory, and the file that has it.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstatfs, openat, readlinkat, renameat, unlinkat,
};
use rustix::io::Errno;

use super::directory::{open_directory, open_trusted_directory};
use super::error::{FileError, failed};
use super::facts::{Facts, Identity, Owners};
use super::input::read_at_most;
use super::limit::check_limit;
use super::temporary_name::{TemporaryName, random_name};

/// Attempts to find a name that no other process takes or gives up at the same time.
pub(super) const ATTEMPTS: u32 = 8;
/// Flags to create a file whose name nothing has, not even a link.
pub(super) const CREATION: OFlags = OFlags::CREATE
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Bits of a mode by which others than the owner may read.
const READABLE_BY_OTHERS: u32 = 0o044;

/// Users that may read a new file. Nobody but its owner may write it, whatever the umask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// The owner only.
    Owner,
    /// The owner and the members of its group, unless the umask denies them.
    Group,
}

impl Readers {
    pub(super) fn mode(self) -> Mode {
        match self {
            Self::Owner => Mode::from_raw_mode(0o600),
            Self::Group => Mode::from_raw_mode(0o640),
        }
    }
}

/// Use of a kept file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    ReadWrite,
    /// Write at its end.
    Append,
}

impl Access {
    fn flags(self) -> OFlags {
        match self {
            Self::Read => OFlags::RDONLY,
            Self::ReadWrite => OFlags::RDWR,
            Self::Append => OFlags::WRONLY | OFlags::APPEND,
        }
    }
}

/// A name in an opened directory. The file need not exist.
#[derive(Debug)]
pub struct DirectoryEntry {
    directory: File,
    name: OsString,
    path: PathBuf,
}

impl DirectoryEntry {
    /// Opens the directory of a file. The directory may belong to any user, as that of an output does.
    ///
    /// # Errors
    /// [`FileError`] if the path names no file, the directory can't be opened, or every user can rename the
    /// files in it.
    pub fn new(path: &Path) -> Result<Self, FileError> {
        Self::within(path, open_directory)
    }

    /// Opens the directory of a file as [`new`](Self::new) does. Only root and this user can rename the files
    /// in it, beside the members of a group that may write it.
    ///
    /// # Errors
    /// [`FileError`], as of [`new`](Self::new), or if the directory belongs to another user.
    pub fn trusted(path: &Path) -> Result<Self, FileError> {
        Self::within(path, open_trusted_directory)
    }

    fn within(
        path: &Path,
        open_directory: impl FnOnce(&Path) -> Result<File, FileError>,
    ) -> Result<Self, FileError> {
        let Some(name) = path.file_name() else {
            return Err(FileError::NoName {
                path: path.to_owned(),
            });
        };
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        Ok(Self {
            directory: open_directory(parent.unwrap_or(Path::new(".")))?,
            name: name.to_owned(),
            path: path.to_owned(),
        })
    }

    /// Returns the path, as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory.
    #[must_use]
    pub const fn directory(&self) -> &File {
        &self.directory
    }

    /// Returns the name in the directory.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Opens a kept file of this user. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// [`FileError`] if the file is not a regular one, belongs to another user, has further names, can be
    /// written by others, or can't be opened.
    pub fn open(&self, access: Access) -> Result<Option<File>, FileError> {
        self.open_checked(access, Owners::User)
    }

    /// Opens a file for reading that this user, root, or a member of a group of this process shares. Only its
    /// owner can write it.
    ///
    /// # Errors
    /// [`FileError`], as of [`open`](Self::open), or if the file does not exist.
    pub fn open_shared(&self) -> Result<File, FileError> {
        let opened = self.open_checked(Access::Read, Owners::Group)?;
        opened.ok_or_else(|| self.failed("open", ErrorKind::NotFound))
    }

    /// Opens a kept file as [`open`](Self::open) does, or creates an empty one.
    ///
    /// # Errors
    /// [`FileError`], as of [`open`](Self::open), or if the directory can't take the file.
    pub fn open_or_create(&self, access: Access, readers: Readers) -> Result<File, FileError> {
        for _ in 0..ATTEMPTS {
            if let Some(file) = self.open(access)? {
                return Ok(file);
            }
            // If another process created the file meanwhile, it is checked like any other.
            if let Some(file) = self.create_empty(access, readers)? {
                return Ok(file);
            }
        }
        Err(self.failed("open", ErrorKind::NotFound))
    }

    /// Creates an empty file under a random name, readable and writable. Dropping it removes the file.
    ///
    /// # Errors
    /// [`FileError::Io`] if the directory can't take the file.
    pub fn create(&self, readers: Readers) -> Result<NewFile<'_>, FileError> {
        NewFile::create(self, readers)
    }

    /// Replaces the file by one with these bytes. The old or the new file is complete at any time, also after
    /// a power failure.
    ///
    /// # Errors
    /// [`FileError`] if the file can't be written. The old file is then unchanged.
    pub fn write(&self, bytes: &[u8], readers: Readers) -> Result<(), FileError> {
        check_limit(&self.path, bytes.len() as u64)?;
        let new = self.create(readers)?;
        let written = new.file().write_all(bytes);
        written.map_err(|error| self.failed("write", error))?;
        new.replace().map(drop)
    }

    /// Reads a kept file of at most `max` bytes. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// [`FileError`], as of [`open`](Self::open), or if the file is longer.
    pub fn read(&self, max: u64) -> Result<Option<Vec<u8>>, FileError> {
        let Some(file) = self.open(Access::Read)? else {
            return Ok(None);
        };
        read_at_most(&file, &self.path, max).map(Some)
    }

    /// Reads a kept file of at most `max` bytes that only its owner can read.
    ///
    /// # Errors
    /// [`FileError`], as of [`open`](Self::open), or if the file does not exist, is longer, or others can
    /// read it.
    pub fn read_secret(&self, max: u64) -> Result<Vec<u8>, FileError> {
        let file = self.open(Access::Read)?;
        let file = file.ok_or_else(|| self.failed("open", ErrorKind::NotFound))?;
        let found = file.metadata();
        let mode = found.map_err(|error| self.failed("inspect", error))?.mode() & 0o7777;
        if mode & READABLE_BY_OTHERS != 0 {
            return Err(FileError::Secret {
                path: self.path.clone(),
                mode,
            });
        }
        read_at_most(&file, &self.path, max)
    }

    /// Opens an output that is not a regular file, to write at its end. Opening a pipe waits for its reader.
    ///
    /// # Errors
    /// [`FileError::Io`] if it can't be opened.
    pub fn open_in_place(&self) -> Result<File, FileError> {
        let mut flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
        if !self.is_descriptor() {
            // The entry was no link when it was found.
            flags |= OFlags::NOFOLLOW;
        }
        let opened = openat(&self.directory, self.name(), flags, Mode::empty());
        let opened = opened.map_err(|error| self.failed("open", error))?;
        Ok(File::from(opened))
    }

    /// Renames the file to another name of the same file system.
    ///
    /// # Errors
    /// [`FileError::Io`] if it can't be renamed.
    pub fn rename_to(&self, other: &Self) -> Result<(), FileError> {
        let renamed = renameat(&self.directory, self.name(), &other.directory, other.name());
        renamed.map_err(|error| self.failed("rename", error))
    }

    /// Returns whether this file has the name now.
    #[must_use]
    pub fn is_name_of(&self, file: &File) -> bool {
        let (Ok(Some(named)), Ok(file)) = (self.named(), file.metadata()) else {
            return false;
        };
        (named.dev(), named.ino()) == (file.dev(), file.ino())
    }

    /// Removes this file, unless the name belongs to another one by now. A file that can't be removed stays.
    pub fn remove(&self, file: &File) {
        if self.is_name_of(file) {
            let _ = unlinkat(&self.directory, self.name(), AtFlags::empty());
        }
    }

    /// Creates an empty file under its own name. Returns `None` if anything has that name.
    fn create_empty(&self, access: Access, readers: Readers) -> Result<Option<File>, FileError> {
        let flags = access.flags() | CREATION;
        match openat(&self.directory, self.name(), flags, readers.mode()) {
            Ok(file) => {
                let synced = self.directory.sync_all();
                synced.map_err(|error| self.failed("sync", error))?;
                Ok(Some(File::from(file)))
            }
            Err(Errno::EXIST) => Ok(None),
            Err(error) => Err(self.failed("create", error)),
        }
    }

    fn open_checked(&self, access: Access, owners: Owners) -> Result<Option<File>, FileError> {
        let check = |found: &Metadata| {
            let process = Identity::current();
            let process = process.map_err(|error| self.failed("check", error))?;
            Facts::from(found).check(&self.path, owners, &process)
        };
        let Some((named, found)) = self.find()? else {
            return Ok(None);
        };
        // Nothing is opened before its kind is known, because opening a device can have an effect, and a peer
        // may have named the path.
        check(&found)?;
        let Some(file) = self.open_found(&named, access)? else {
            return Ok(None);
        };
        let opened = file.metadata();
        let opened = opened.map_err(|error| self.failed("inspect", error))?;
        check(&opened)?;
        if (opened.dev(), opened.ino()) != (found.dev(), found.ino()) {
            return Err(self.failed("open", io::Error::other("another file has the name by now")));
        }
        Ok(Some(file))
    }

    /// Opens the file that was found. Returns `None` if its name is gone.
    fn open_found(&self, found: &File, access: Access) -> Result<Option<File>, FileError> {
        // Opening a pipe would otherwise wait for its other end.
        let flags = access.flags() | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let descriptor = format!("/proc/self/fd/{}", found.as_raw_fd());
        let opened = match openat(CWD, descriptor, flags, Mode::empty()) {
            // Without /proc, as in a bare chroot, only the name leads to the file. Another file may have the
            // name by now, so the caller compares them.
            Err(Errno::NOENT) => {
                let flags = flags | OFlags::NOFOLLOW;
                openat(&self.directory, self.name(), flags, Mode::empty())
            }
            opened => opened,
        };
        match opened {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("open", error)),
        }
    }

    /// Returns the path that a link leads to.
    pub(super) fn link_target(&self) -> Result<PathBuf, FileError> {
        let target = readlinkat(&self.directory, self.name(), Vec::new());
        let target = target.map_err(|error| self.failed("read", error))?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        Ok(self.path.parent().unwrap_or(Path::new("")).join(target))
    }

    /// Returns whether the name stands for a descriptor of a process, as `/proc/self/fd/1` does. Its link
    /// leads to the open file, which need not have a path.
    pub(super) fn is_descriptor(&self) -> bool {
        fstatfs(&self.directory).is_ok_and(|stat| stat.f_type == PROC_SUPER_MAGIC)
    }

    /// Returns the metadata of the name, without following a link.
    pub(super) fn named(&self) -> Result<Option<Metadata>, FileError> {
        Ok(self.find()?.map(|(_, found)| found))
    }

    /// Returns what has the name, and its metadata, without opening it or following a link.
    fn find(&self) -> Result<Option<(File, Metadata)>, FileError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.directory, self.name(), flags, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                let found = file.metadata();
                let found = found.map_err(|error| self.failed("inspect", error))?;
                Ok(Some((file, found)))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("inspect", error)),
        }
    }

    pub(in crate::host) fn failed(
        &self,
        what: &'static str,
        source: impl Into<io::Error>,
    ) -> FileError {
        failed(what, &self.path, source)
    }
}

/// A new file under a random name. Dropping it removes the file.
#[derive(Debug)]
pub struct NewFile<'a> {
    file: File,
    temporary: TemporaryName<'a>,
    entry: &'a DirectoryEntry,
}

impl<'a> NewFile<'a> {
    /// Creates an empty file beside the entry, readable and writable.
    fn create(entry: &'a DirectoryEntry, readers: Readers) -> Result<Self, FileError> {
        for _ in 0..ATTEMPTS {
            let name = random_name().map_err(|error| entry.failed("name", error))?;
            let flags = OFlags::RDWR | CREATION;
            match openat(entry.directory(), name.as_os_str(), flags, readers.mode()) {
                Ok(file) => {
                    return Ok(Self {
                        file: File::from(file),
                        temporary: TemporaryName::new(entry.directory(), name),
                        entry,
                    });
                }
                Err(Errno::EXIST) => {}
                Err(error) => return Err(entry.failed("create", error)),
            }
        }
        Err(entry.failed("create", Errno::EXIST))
    }

    /// Returns the file.
    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Syncs the file, and gives it the entry's name in place of a previous file.
    ///
    /// # Errors
    /// [`FileError::Io`] if that fails. The previous file is unchanged, unless only the directory could not
    /// be synced.
    pub fn replace(self) -> Result<File, FileError> {
        let Self {
            file,
            temporary,
            entry,
        } = self;
        file.sync_all()
            .map_err(|error| entry.failed("sync", error))?;
        let directory = entry.directory();
        let renamed = renameat(directory, temporary.name(), directory, entry.name());
        renamed.map_err(|error| entry.failed("replace", error))?;
        temporary.keep();
        let synced = directory.sync_all();
        synced.map_err(|error| entry.failed("sync", error))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, mpsc};

    use rustix::fs::{FileType as Kind, mknodat};
    use tempfile::TempDir;

    use super::*;
    use crate::host::files::create_directory;

    fn folder() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        (folder, path)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Writes a file that only its owner can write.
    fn put(path: &Path, bytes: &[u8]) {
        fs::write(path, bytes).unwrap();
        set_mode(path, 0o600);
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    /// Runs `it` in a thread that has this umask alone: the umask of a process is that of all its tests.
    /// Returns `None` where a container denies that.
    fn with_umask<T: Send>(umask: libc::mode_t, it: impl FnOnce() -> T + Send) -> Option<T> {
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                // SAFETY: only numbers are passed; the thread has its own umask from here on.
                let apart = unsafe { libc::unshare(libc::CLONE_FS) };
                (apart == 0).then(|| {
                    // SAFETY: every value is a mask.
                    unsafe { libc::umask(umask) };
                    it()
                })
            });
            run.join().unwrap()
        })
    }

    #[test]
    fn written_file_is_read_up_to_given_length() {
        let (_folder, path) = folder();
        let entry = DirectoryEntry::new(&path).unwrap();
        assert!(entry.read(3).unwrap().is_none());
        entry.write(b"abc", Readers::Group).unwrap();
        assert_eq!(entry.read(3).unwrap().unwrap(), b"abc");
        let error = entry.read(2).unwrap_err();
        assert!(
            matches!(error, FileError::TooLong { max: 2, .. }),
            "{error}"
        );
        entry.write(b"", Readers::Group).unwrap();
        assert_eq!(entry.read(2).unwrap().unwrap(), b"");
    }

    #[test]
    fn new_files_are_writable_by_owner_only_at_any_umask() {
        let (folder, _) = folder();
        if with_umask(0, || ()).is_none() {
            eprintln!("SKIPPED: no thread can have a umask of its own here");
            return;
        }
        for (umask, readers, expected) in [
            (0o000, Readers::Owner, 0o600),
            (0o000, Readers::Group, 0o640),
            (0o022, Readers::Group, 0o640),
            (0o077, Readers::Group, 0o600),
        ] {
            let path = folder.path().join(format!("{umask:o}-{readers:?}"));
            let appended = folder.path().join(format!("{umask:o}-{readers:?}-log"));
            with_umask(umask, || {
                let entry = DirectoryEntry::new(&path).unwrap();
                entry.write(b"x", readers).unwrap();
                let entry = DirectoryEntry::new(&appended).unwrap();
                entry.open_or_create(Access::Append, readers).unwrap();
            })
            .unwrap();
            assert_eq!((mode(&path), mode(&appended)), (expected, expected));
        }
        let made = folder.path().join("made/inside");
        let created = with_umask(0, || create_directory(&made));
        created.unwrap().unwrap();
        assert_eq!(mode(&made), 0o750);
        assert_eq!(mode(made.parent().unwrap()), 0o750);
    }

    #[test]
    fn name_of_other_kind_is_refused_and_unchanged() {
        let (folder, path) = folder();
        let target = folder.path().join("target");
        put(&target, b"mine");
        let refused = |kind: &str| {
            let entry = DirectoryEntry::new(&path).unwrap();
            for access in [Access::Read, Access::ReadWrite, Access::Append] {
                for error in [
                    entry.open(access).unwrap_err(),
                    entry.open_or_create(access, Readers::Owner).unwrap_err(),
                ] {
                    assert!(matches!(error, FileError::Kind { .. }), "{error}");
                    let text = error.to_string();
                    assert!(text.contains(kind) && text.contains("remove it"), "{text}");
                    assert!(text.starts_with(path.to_str().unwrap()), "{text}");
                }
            }
            assert!(entry.read(9).is_err() && entry.open_shared().is_err());
        };
        symlink(&target, &path).unwrap();
        refused("a link");
        assert_eq!(fs::read(&target).unwrap(), b"mine");
        fs::remove_file(&path).unwrap();
        let nowhere = folder.path().join("nowhere");
        symlink(&nowhere, &path).unwrap();
        refused("a link");
        assert!(!nowhere.exists(), "a dangling link creates nothing");
        fs::remove_file(&path).unwrap();
        mknodat(CWD, &path, Kind::Fifo, Readers::Owner.mode(), 0).unwrap();
        refused("a pipe");
        fs::remove_file(&path).unwrap();
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        refused("a socket");
        drop(socket);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        refused("a directory");
        for device in ["/dev/null", "/dev/full"] {
            let device = DirectoryEntry::new(Path::new(device)).unwrap();
            let error = device.open(Access::Read).unwrap_err().to_string();
            assert!(error.contains("a device"), "{error}");
        }
    }

    /// Opening a device can have an effect, and whoever is connected to a pipe notices its reader.
    #[test]
    fn special_file_is_refused_without_being_opened() {
        let (_folder, path) = folder();
        mknodat(CWD, &path, Kind::Fifo, Readers::Owner.mode(), 0).unwrap();
        let all_tried = Arc::new(AtomicBool::new(false));
        let (started, thread) = mpsc::channel();
        let writer = {
            let (path, all_tried) = (path.clone(), all_tried.clone());
            std::thread::spawn(move || {
                started
                    .send(fs::read_link("/proc/thread-self").unwrap())
                    .unwrap();
                // Waits until the pipe has had a reader, even if that is gone again.
                File::options().write(true).open(&path).unwrap();
                all_tried.load(SeqCst)
            })
        };
        let stat = Path::new("/proc").join(thread.recv().unwrap()).join("stat");
        while !fs::read_to_string(&stat).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
        let entry = DirectoryEntry::new(&path).unwrap();
        for error in [
            entry.open(Access::Read).unwrap_err(),
            entry.open(Access::ReadWrite).unwrap_err(),
            entry.open_shared().unwrap_err(),
            entry.read(9).unwrap_err(),
            entry.read_secret(9).unwrap_err(),
        ] {
            assert!(matches!(error, FileError::Kind { .. }), "{error}");
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        all_tried.store(true, SeqCst);
        // Releases the writer if nothing has, without waiting for one.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        drop(openat(CWD, &path, flags, Mode::empty()).unwrap());
        assert!(writer.join().unwrap(), "the pipe had a reader");
    }

    #[test]
    fn file_of_other_user_is_refused_unchanged() {
        let (folder, path) = folder();
        let refused = |entry: &DirectoryEntry| {
            for error in [
                entry.open(Access::Read).unwrap_err(),
                entry.read(9).unwrap_err(),
                entry
                    .open_or_create(Access::Append, Readers::Owner)
                    .unwrap_err(),
            ] {
                assert!(matches!(error, FileError::Owner { .. }), "{error}");
                assert!(error.to_string().contains("chown"), "{error}");
            }
        };
        put(&path, b"");
        if chown(&path, Some(7), Some(7)).is_err() {
            // Only root can give a file away. This one belongs to root.
            refused(&DirectoryEntry::new(Path::new("/etc/passwd")).unwrap());
            return;
        }
        let entry = DirectoryEntry::new(&path).unwrap();
        refused(&entry);
        let error = entry.open_shared().unwrap_err();
        assert!(matches!(error, FileError::Stranger { .. }), "{error}");
        assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o600, vec![]));
        // A link to the other user's file is refused because it is a link.
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        let error = DirectoryEntry::new(&link).unwrap().open(Access::Read);
        assert!(matches!(error, Err(FileError::Kind { .. })), "{error:?}");
        chown(&path, None, Some(0)).unwrap();
        entry.open_shared().unwrap();
    }

    #[test]
    fn file_planted_before_creation_is_not_opened() {
        let (folder, path) = folder();
        let entry = DirectoryEntry::new(&path).unwrap();
        let created = || entry.create_empty(Access::ReadWrite, Readers::Owner);
        let target = folder.path().join("target");
        symlink(&target, &path).unwrap();
        assert!(created().unwrap().is_none());
        assert!(!target.exists(), "a dangling link creates nothing");
        fs::remove_file(&path).unwrap();
        put(&path, b"");
        assert!(created().unwrap().is_none());
        fs::remove_file(&path).unwrap();
        assert!(created().unwrap().is_some());
    }

    #[test]
    fn file_with_second_name_is_refused_unchanged() {
        let (folder, path) = folder();
        let other = folder.path().join("other");
        put(&other, b"mine");
        fs::hard_link(&other, &path).unwrap();
        let entry = DirectoryEntry::new(&path).unwrap();
        for access in [Access::Read, Access::ReadWrite, Access::Append] {
            let error = entry.open_or_create(access, Readers::Owner).unwrap_err();
            assert!(
                matches!(error, FileError::Names { names: 2, .. }),
                "{error}"
            );
            assert!(error.to_string().contains("hard link"), "{error}");
        }
        entry.write(b"new", Readers::Owner).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"mine");
        assert_eq!(entry.read(9).unwrap().unwrap(), b"new");
    }

    #[test]
    fn replaced_link_leaves_its_target_unchanged() {
        let (folder, path) = folder();
        let target = folder.path().join("target");
        put(&target, b"mine");
        symlink(&target, &path).unwrap();
        let entry = DirectoryEntry::new(&path).unwrap();
        entry.write(b"new", Readers::Owner).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"mine");
        assert_eq!(entry.read(9).unwrap().unwrap(), b"new");
    }

    #[test]
    fn file_that_others_can_write_is_refused() {
        let (_folder, path) = folder();
        put(&path, b"x");
        let entry = DirectoryEntry::new(&path).unwrap();
        for (mode, is_used) in [
            (0o600, true),
            (0o644, true),
            (0o660, false),
            (0o620, false),
            (0o602, false),
            (0o666, false),
        ] {
            set_mode(&path, mode);
            for opened in [
                entry.open(Access::ReadWrite).map(drop),
                entry.open_shared().map(drop),
            ] {
                assert_eq!(opened.is_ok(), is_used, "{mode:o}");
                if let Err(error) = opened {
                    let text = error.to_string();
                    assert!(text.contains(&format!("{mode:04o}")), "{text}");
                    assert!(text.contains("chmod go-w"), "{text}");
                }
            }
        }
    }

    #[test]
    fn path_without_name_or_directory_is_refused() {
        for path in ["/", "..", ""] {
            let error = DirectoryEntry::new(Path::new(path)).unwrap_err();
            assert!(matches!(error, FileError::NoName { .. }), "{error}");
        }
        let (folder, _) = folder();
        let lost = folder.path().join("none/kept");
        let error = DirectoryEntry::new(&lost).unwrap_err();
        assert!(matches!(error, FileError::Io { .. }), "{error}");
        let entry = DirectoryEntry::new(&folder.path().join("kept")).unwrap();
        let error = entry.open_shared().unwrap_err().to_string();
        assert!(error.ends_with("check that it exists"), "{error}");
    }

    fn names(folder: &Path) -> Vec<OsString> {
        let all = fs::read_dir(folder).unwrap();
        all.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn new_file_is_unseen_until_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        let entry = DirectoryEntry::new(&path).unwrap();
        let new = entry.create(Readers::Owner).unwrap();
        new.file().write_all(b"one").unwrap();
        assert!(!path.exists() && names(folder.path()).len() == 1);
        let first = new.replace().unwrap();
        assert!(entry.is_name_of(&first));
        assert_eq!(names(folder.path()), ["kept"]);
        drop(entry.create(Readers::Owner).unwrap());
        assert_eq!(names(folder.path()), ["kept"]);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        let second = entry.create(Readers::Owner).unwrap().replace().unwrap();
        assert!(entry.is_name_of(&second) && !entry.is_name_of(&first));
        assert_eq!(fs::read(&path).unwrap(), b"");
        entry.remove(&first);
        assert!(path.exists(), "the name belongs to another file");
        entry.remove(&second);
        assert_eq!(names(folder.path()), [""; 0]);
    }
}
