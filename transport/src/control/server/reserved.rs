//! A reserved address that nobody listens on yet. The operating system refuses connections at once, so
//! that a peer tries the next address it knows.

use std::io;
use std::net::SocketAddr;

use mio::net::TcpListener;
use socket2::{Domain, Protocol, Socket, Type};

use super::{ControlServer, ServerConfig};

/// Connections that the operating system queues before they are accepted.
const BACKLOG: i32 = 1024;

/// A reserved address, bound but not listening.
#[derive(Debug)]
pub struct Reserved(Socket);

impl Reserved {
    /// Reserves `address`. With port 0 the system chooses the port.
    ///
    /// # Errors
    /// The operating system's error if the address is in use or not this host's.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        // As for a listener of the standard library: connections left by an earlier process must not
        // block the bind.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        Ok(Self(socket))
    }

    /// Returns the reserved address.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        let address = self.0.local_addr()?.as_socket();
        address.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Starts to listen.
    ///
    /// # Errors
    /// The operating system's error if it provides no means to poll, or if another process listens at the
    /// address. Two processes can bind the address, but only one can listen.
    pub fn listen(self, config: ServerConfig) -> io::Result<ControlServer> {
        self.0.listen(BACKLOG)?;
        ControlServer::listening(TcpListener::from_std(self.0.into()), config)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    #[test]
    fn reserved_address_accepts_only_after_listen() {
        let reserved = Reserved::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = reserved.local_address().unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let server = reserved.listen(ServerConfig::default()).unwrap();
        assert_eq!(server.local_address().unwrap(), address);
        TcpStream::connect(address).unwrap();
    }

    #[test]
    fn reserve_of_address_in_use_is_refused() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let error = Reserved::bind(taken.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
}
