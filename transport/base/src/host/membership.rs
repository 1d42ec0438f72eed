//! Membership of multicast groups (IGMP): joins and leaves on one interface, for all senders or for some.

use std::io;
use std::net::Ipv4Addr;

use socket2::{InterfaceIndexOrAddress, Socket};

use super::interface::ResolvedInterface;

/// A group that a socket may join on an interface.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The group.
    pub group: Ipv4Addr,
    /// The interface to receive on.
    pub interface: ResolvedInterface,
    /// The senders to join for. Empty means any.
    pub senders: Vec<Ipv4Addr>,
}

impl Membership {
    /// Joins the group with this socket. Does nothing if it is already a member.
    ///
    /// # Errors
    /// The operating system's error, for example without the interface.
    pub fn join(&self, socket: &Socket) -> io::Result<()> {
        if self.senders.is_empty() {
            let interface = InterfaceIndexOrAddress::Index(self.interface.index);
            return already(socket.join_multicast_v4_n(&self.group, &interface));
        }
        for sender in &self.senders {
            already(socket.join_ssm_v4(sender, &self.group, &self.interface.address))?;
        }
        Ok(())
    }

    /// Leaves the group with this socket. Does nothing if it is no member.
    ///
    /// # Errors
    /// The operating system's error, for example without the interface.
    pub fn leave(&self, socket: &Socket) -> io::Result<()> {
        if self.senders.is_empty() {
            let interface = InterfaceIndexOrAddress::Index(self.interface.index);
            return already(socket.leave_multicast_v4_n(&self.group, &interface));
        }
        for sender in &self.senders {
            let left = socket.leave_ssm_v4(sender, &self.group, &self.interface.address);
            // The kernel's error when no membership of the group exists.
            let unknown = |e: &io::Error| e.raw_os_error() == Some(libc::EINVAL);
            if !left.as_ref().is_err_and(unknown) {
                already(left)?;
            }
        }
        Ok(())
    }
}

fn already(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL)
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}
