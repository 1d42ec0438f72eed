//! The socket that an endpoint listens at.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use rustix::process::geteuid;
use tickcast_transport::host::files::{DirectoryEntry, FileError, ListeningSocket};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use crate::http::table::Peer;

/// A connection's stream.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

/// A connection.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) peer: Peer,
    /// Address at which the peer found this endpoint; `None` over a Unix socket.
    pub(crate) local: Option<IpAddr>,
}

impl Connection {
    /// Returns whether the peer may send requests. Over a Unix socket that is this user and root.
    pub(crate) fn is_permitted(&self) -> bool {
        match self.peer {
            Peer::Address(_) => true,
            Peer::User(user) => user == 0 || user == geteuid().as_raw(),
        }
    }
}

/// A listening socket, before any thread accepts its connections.
#[derive(Debug)]
pub(crate) enum Bound {
    Port(std::net::TcpListener),
    /// The socket file is removed on drop.
    Socket(ListeningSocket),
}

impl Bound {
    /// Listens at a TCP port; with port 0 the system chooses. Also returns the address with that port.
    pub(crate) fn port(address: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((Self::Port(listener), address))
    }

    /// Listens at a Unix socket that only this user and root can open.
    pub(crate) fn socket(path: &Path) -> Result<Self, FileError> {
        let listening = DirectoryEntry::trusted(path)?.listen()?;
        Ok(Self::Socket(listening))
    }
}

/// A socket whose connections the current runtime accepts.
pub(crate) enum Accepting {
    Port(TcpListener),
    Socket(
        UnixListener,
        #[expect(dead_code, reason = "its file is removed on drop")] ListeningSocket,
    ),
}

impl Accepting {
    /// Registers a socket with the current runtime.
    pub(crate) fn new(bound: Bound) -> io::Result<Self> {
        Ok(match bound {
            Bound::Port(listener) => Self::Port(TcpListener::from_std(listener)?),
            Bound::Socket(socket) => {
                let listener = socket.listener().try_clone()?;
                listener.set_nonblocking(true)?;
                Self::Socket(UnixListener::from_std(listener)?, socket)
            }
        })
    }

    pub(crate) async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Port(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok(Connection {
                    // Without its own address, the request would count as one from the socket.
                    local: Some(stream.local_addr()?.ip()),
                    stream: Box::new(stream),
                    peer: Peer::at(address.ip()),
                })
            }
            Self::Socket(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok(Connection {
                    peer: Peer::User(stream.peer_cred()?.uid()),
                    stream: Box::new(stream),
                    local: None,
                })
            }
        }
    }
}
