//! An address that is taken, and where nobody listens yet: who connects is refused by the operating
//! system at once, and goes on to the next address it knows.

use std::io;
use std::net::SocketAddr;

use mio::net::TcpListener;
use socket2::{Domain, Protocol, Socket, Type};

use super::{ControlServer, ServerConfig};

/// Connections that the operating system takes before they are accepted.
const BACKLOG: i32 = 1024;

/// See the module.
#[derive(Debug)]
pub struct Reserved(Socket);

impl Reserved {
    /// Takes `address`; port 0 lets the system choose.
    ///
    /// # Errors
    /// When the address is taken or not this host's.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        // As for a listener of the standard library: what a process before left behind is no one's.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        Ok(Self(socket))
    }

    /// The address taken.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        let address = self.0.local_addr()?.as_socket();
        address.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Listens from here on.
    ///
    /// # Errors
    /// When somebody else took the address to listen at, as the operating system lets two that
    /// only bind; or when it gives no means to poll.
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
    fn nobody_is_let_in_before_it_listens_and_then_everybody_is() {
        let reserved = Reserved::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = reserved.local_address().unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let server = reserved.listen(ServerConfig::default()).unwrap();
        assert_eq!(server.local_address().unwrap(), address);
        TcpStream::connect(address).unwrap();
    }

    #[test]
    fn an_address_that_somebody_listens_at_is_not_to_be_had() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let error = Reserved::bind(taken.local_addr().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
}
