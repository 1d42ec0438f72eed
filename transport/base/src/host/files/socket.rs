//! Unix sockets: their files, and who may connect.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, chmodat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;

use super::entry::DirectoryEntry;
use super::error::FileError;
use super::temporary_name::{TemporaryName, random_name};

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
        let name = random_name().map_err(|error| self.failed("name", error))?;
        let failed = |error| self.failed("listen at", error);
        let socket = new_socket().map_err(failed)?;
        let address = SocketAddrUnix::new(self.within_directory(&name)).map_err(failed)?;
        bind(&socket, &address).map_err(failed)?;
        let temporary = TemporaryName::new(self.directory(), name);
        let name = temporary.name();
        // The umask gave the file its mode. Nobody can connect before the socket listens.
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

    /// Connects to the socket of this name, without waiting. The stream does not block.
    ///
    /// # Errors
    /// The system's error; [`ErrorKind::WouldBlock`] while the most connections wait to be accepted.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let socket = new_socket()?;
        let address = SocketAddrUnix::new(self.within_directory(self.name()))?;
        connect(&socket, &address)?;
        Ok(UnixStream::from(socket))
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
        match self.connect().map_err(|error| (error.kind(), error)) {
            // The process has ended, or has removed its socket meanwhile.
            Err((ErrorKind::ConnectionRefused | ErrorKind::NotFound, _)) => Ok(()),
            Ok(_) | Err((ErrorKind::WouldBlock, _)) => Err(FileError::Listening { path }),
            Err((_, error)) => Err(self.failed("connect to", error)),
        }
    }
}

/// Returns a socket that does not block.
fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read, Write};
    use std::os::unix::fs::lchown;
    use std::os::unix::net::UnixDatagram;

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
    fn stopped_process_with_full_backlog_blocks_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let entry = || DirectoryEntry::trusted(&path).unwrap();
        let _stopped = entry().listen().unwrap();
        let mut waiting = Vec::new();
        let full = loop {
            match entry().connect() {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 10_000, "the system sets no limit");
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock, "{full}");
        let error = entry().listen().unwrap_err();
        assert!(matches!(error, FileError::Listening { .. }), "{error}");
    }

    #[test]
    fn socket_of_other_type_is_reported_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _datagrams = UnixDatagram::bind(&path).unwrap();
        let error = DirectoryEntry::trusted(&path)
            .unwrap()
            .listen()
            .unwrap_err();
        assert!(
            error.to_string().starts_with("can't connect to "),
            "{error}"
        );
        assert!(path.exists());
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
