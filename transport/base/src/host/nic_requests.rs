//! The requests that the kernel answers about one interface: its MTU, and the commands of ethtool.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// A struct of a command of ethtool, which starts with the command's number.
///
/// # Safety
/// The type is `repr(C)`, has the layout that the kernel expects for the command that its first field holds,
/// and every bit pattern is valid for it.
pub(super) unsafe trait EthtoolCommand {}

/// Runs a command of ethtool that only reads. Returns `false` if the driver does not have it.
pub(super) fn ethtool<T: EthtoolCommand>(interface: &str, command: &mut T) -> io::Result<bool> {
    let mut request = libc::ifreq {
        ifr_name: name_of(interface)?,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: (&raw mut *command).cast(),
        },
    };
    // SAFETY: SIOCETHTOOL takes an `ifreq` whose data is the struct of its command. `T` has that layout, as
    // its trait promises, and outlives the call. Exercised by
    // `nic_rings::tests::loopback_has_no_rings_and_unknown_interfaces_fail`.
    let asked = unsafe { ask(libc::SIOCETHTOOL, &mut request) };
    match asked {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the length of the longest IP packet that the interface carries, in bytes.
pub(super) fn mtu(interface: &str) -> io::Result<usize> {
    let mut request = libc::ifreq {
        ifr_name: name_of(interface)?,
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_mtu: 0 },
    };
    // SAFETY: SIOCGIFMTU reads the name and writes `ifru_mtu`, which any number is valid for. Exercised by
    // `interface::tests::loopback_is_found_by_name_and_address`.
    let mtu = unsafe {
        ask(libc::SIOCGIFMTU, &mut request)?;
        request.ifr_ifru.ifru_mtu
    };
    usize::try_from(mtu).map_err(io::Error::other)
}

/// # Safety
/// The union of `request` is as `number` requires.
unsafe fn ask(number: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: as above; the caller vouches for the union, and the socket is open.
    if unsafe { libc::ioctl(socket.as_raw_fd(), number as _, &raw mut *request) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn name_of(interface: &str) -> io::Result<[libc::c_char; libc::IFNAMSIZ]> {
    let mut name = [0; libc::IFNAMSIZ];
    // The last byte stays zero, because the kernel expects a C string.
    if interface.len() >= name.len() || interface.bytes().any(|b| b == 0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(name)
}
