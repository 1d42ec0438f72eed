//! The socket that an endpoint listens at, and its clients.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_user_timeout;
use rustix::process::geteuid;
use tickcast_transport_base::host::files::{DirectoryEntry, FileError, ListeningSocket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::table::Peer;

/// Errors that end one connection before it is accepted. They pass while the listener works.
const OF_ONE_CONNECTION: [Errno; 12] = [
    Errno::CONNABORTED,
    Errno::CONNRESET,
    Errno::HOSTDOWN,
    Errno::HOSTUNREACH,
    Errno::NETDOWN,
    Errno::NETUNREACH,
    Errno::NONET,
    Errno::NOPROTOOPT,
    Errno::OPNOTSUPP,
    Errno::PERM,
    Errno::PROTO,
    Errno::TIMEDOUT,
];

/// Milliseconds after which the system ends a connection whose peer takes nothing of what was sent.
const UNREAD_MAX_MS: u32 = 10_000;

/// A connection's stream.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// The client of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// It connected over TCP.
    Remote {
        /// Its address.
        address: SocketAddr,
        /// Address at which it found this endpoint.
        local: IpAddr,
    },
    /// A process of this user connected to a Unix socket.
    User(u32),
}

impl Client {
    /// Returns the peer whose connections count together.
    pub(crate) const fn peer(&self) -> Peer {
        match self {
            Self::Remote { address, .. } => Peer::at(address.ip()),
            Self::User(user) => Peer::User(*user),
        }
    }

    /// Returns whether the client may send requests. Over a Unix socket that is this user and root.
    pub(crate) fn is_permitted(&self) -> bool {
        match self {
            Self::Remote { .. } => true,
            Self::User(user) => *user == 0 || *user == geteuid().as_raw(),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remote { address, .. } => address.fmt(f),
            Self::User(user) => write!(f, "user {user}"),
        }
    }
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) client: Client,
}

/// A socket whose connections a runtime accepts.
pub struct EndpointListener(Kind);

enum Kind {
    Port(TcpListener),
    Socket(
        UnixListener,
        #[expect(dead_code, reason = "its file is removed on drop")] ListeningSocket,
    ),
}

impl EndpointListener {
    /// Listens at a TCP port within the current runtime; with port 0 the system chooses. Also returns the
    /// address with that port.
    pub fn port(address: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((Self(Kind::Port(TcpListener::from_std(listener)?)), address))
    }

    /// Listens within the current runtime at a Unix socket that only this user and root can open.
    pub fn socket(path: &Path) -> Result<Self, FileError> {
        let socket = DirectoryEntry::trusted(path)?.listen()?;
        let listener = socket.listener().try_clone();
        let listener = listener.and_then(UnixListener::from_std);
        match listener {
            Ok(listener) => Ok(Self(Kind::Socket(listener, socket))),
            Err(source) => Err(FileError::Io {
                what: "poll",
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Returns the next connection.
    pub(crate) async fn accept(&self) -> io::Result<Connection> {
        match &self.0 {
            Kind::Port(listener) => {
                let (stream, address) = listener.accept().await?;
                let local = stream.local_addr()?.ip();
                // Without it, only the system's own patience is longer.
                let _ = set_tcp_user_timeout(&stream, UNREAD_MAX_MS);
                Ok(Connection {
                    stream: Box::new(stream),
                    client: Client::Remote { address, local },
                })
            }
            Kind::Socket(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok(Connection {
                    client: Client::User(stream.peer_cred()?.uid()),
                    stream: Box::new(stream),
                })
            }
        }
    }
}

/// Returns whether an error of `accept` concerns one connection, so that the next one can be accepted at
/// once.
pub(crate) fn is_of_one_connection(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    (OF_ONE_CONNECTION.iter()).any(|errno| Some(errno.raw_os_error()) == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_connection_does_not_pause_its_listener() {
        for (errno, is_of_one) in [
            (Errno::CONNABORTED, true),
            (Errno::CONNRESET, true),
            (Errno::PROTO, true),
            (Errno::MFILE, false),
            (Errno::NFILE, false),
            (Errno::NOBUFS, false),
            (Errno::NOMEM, false),
            (Errno::INVAL, false),
        ] {
            let error = io::Error::from(errno);
            assert_eq!(is_of_one_connection(&error), is_of_one, "{error}");
        }
        assert!(!is_of_one_connection(&io::ErrorKind::Other.into()));
    }
}
