//! Unix sockets: their files, and who may connect.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, chmodat, fchmod, renameat, unlinkat};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use rustix::process::geteuid;

use super::entry::DirectoryEntry;
use super::error::FileError;
use super::new_file::{TemporaryName, random_name};

/// Mode of a socket. Only its owner and root can connect.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that listens under a name. Dropping it removes the name.
#[derive(Debug)]
pub struct ListeningSocket {
    listener: UnixListener,
    entry: DirectoryEntry,
    /// Device and inode of the socket's file.
    file: (u64, u64),
}

impl ListeningSocket {
    /// Returns the listener.
    #[must_use]
    pub const fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Returns the path, as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.entry.path()
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        let named = self.entry.named().ok().flatten();
        if named.is_some_and(|named| (named.dev(), named.ino()) == self.file) {
            // A name that stays is replaced by the next listener.
            let _ = unlinkat(self.entry.directory(), self.entry.name(), AtFlags::empty());
        }
    }
}

impl DirectoryEntry {
    /// Listens under this name, with mode 0600. Replaces the socket of a process that has ended.
    ///
    /// # Errors
    /// [`FileError`] if the name belongs to another file, another user or a process that listens, or the
    /// directory can't take the socket.
    pub fn listen(self) -> Result<ListeningSocket, FileError> {
        self.check_unused()?;
        let name = random_name(&self)?;
        let failed = |error| self.failed("listen at", error);
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        );
        let socket = socket.map_err(failed)?;
        // Binding creates the file with the mode of the socket, less the umask.
        fchmod(&socket, MODE).map_err(failed)?;
        let address = SocketAddrUnix::new(self.within_directory(&name)).map_err(failed)?;
        bind(&socket, &address).map_err(failed)?;
        let temporary = TemporaryName::new(self.directory(), name);
        let name = temporary.name();
        chmodat(self.directory(), name, MODE, AtFlags::empty()).map_err(failed)?;
        listen(&socket, BACKLOG).map_err(failed)?;
        renameat(self.directory(), name, self.directory(), self.name()).map_err(failed)?;
        temporary.keep();
        let named = self.named()?;
        let named = named.ok_or_else(|| self.failed("listen at", ErrorKind::NotFound))?;
        Ok(ListeningSocket {
            listener: UnixListener::from(socket),
            file: (named.dev(), named.ino()),
            entry: self,
        })
    }

    /// Connects to the socket of this name.
    ///
    /// # Errors
    /// The system's error.
    pub fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(self.within_directory(self.name()))
    }

    /// Returns a path through the open directory, which is short enough, and which no rename redirects.
    fn within_directory(&self, name: impl AsRef<Path>) -> PathBuf {
        let directory = self.directory().as_raw_fd();
        Path::new("/proc/self/fd")
            .join(directory.to_string())
            .join(name)
    }

    /// Checks that nothing has the name, or a socket of this user at which nobody listens.
    fn check_unused(&self) -> Result<(), FileError> {
        let Some(named) = self.named()? else {
            return Ok(());
        };
        let path = self.path().to_owned();
        if !named.file_type().is_socket() {
            return Err(FileError::NoSocket { path });
        }
        let (owner, user) = (named.uid(), geteuid().as_raw());
        if owner != user {
            return Err(FileError::Owner { path, owner, user });
        }
        match self.connect() {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
            _ => Err(FileError::Listening { path }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::lchown;

    use super::*;

    #[test]
    fn socket_is_for_its_owner_and_replaces_only_a_dead_one() {
        let folder = tempfile::tempdir().unwrap();
        // Longer than the address of a socket may be.
        let directory = folder.path().join("d".repeat(200));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("socket");
        let entry = || DirectoryEntry::trusted(&path).unwrap();
        let first = entry().listen().unwrap();
        assert_eq!(first.path(), path);
        let found = fs::symlink_metadata(&path).unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!(found.mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        let mut client = entry().connect().unwrap();
        client.write_all(b"x").unwrap();
        let (mut accepted, _) = first.listener().accept().unwrap();
        accepted.read_exact(&mut [0]).unwrap();
        let error = entry().listen().unwrap_err();
        assert!(matches!(error, FileError::Listening { .. }), "{error}");
        // The name stays after a process that was killed.
        let dead = first.listener.try_clone().unwrap();
        fs::rename(&path, directory.join("kept")).unwrap();
        drop((first, dead, accepted));
        fs::rename(directory.join("kept"), &path).unwrap();
        let second = entry().listen().unwrap();
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn name_of_other_file_or_user_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let entry = || DirectoryEntry::trusted(&path).unwrap();
        fs::write(&path, b"kept").unwrap();
        let error = entry().listen().unwrap_err();
        assert!(matches!(error, FileError::NoSocket { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        fs::remove_file(&path).unwrap();
        drop(UnixListener::bind(&path).unwrap());
        if lchown(&path, Some(7), None).is_err() {
            println!("SKIPPED: only root can give a socket away");
            return;
        }
        let error = entry().listen().unwrap_err();
        assert!(
            matches!(error, FileError::Owner { owner: 7, .. }),
            "{error}"
        );
    }
}
