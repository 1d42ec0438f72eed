//! Lengths of a network device's rings: the packets that it can hold between two polls of the driver.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// The request to read the lengths (`linux/ethtool.h`).
const ETHTOOL_GRINGPARAM: u32 = 0x10;

/// Lengths of a device's rings, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicRings {
    /// Length of each receive ring.
    pub receive: u32,
    /// Length of each send ring.
    pub send: u32,
    /// Largest possible receive ring.
    pub receive_max: u32,
    /// Largest possible send ring.
    pub send_max: u32,
}

/// `struct ethtool_ringparam`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Parameters {
    command: u32,
    receive_max: u32,
    receive_mini_max: u32,
    receive_jumbo_max: u32,
    send_max: u32,
    receive: u32,
    receive_mini: u32,
    receive_jumbo: u32,
    send: u32,
}

impl NicRings {
    /// Asks the driver of an interface. Returns `None` if the device has no rings, as loopback.
    ///
    /// # Errors
    /// Returns the operating system's error if the interface does not exist, or can't be asked.
    pub fn of(interface: &str) -> io::Result<Option<Self>> {
        let mut name = [0; libc::IFNAMSIZ];
        // The last byte stays zero, because the kernel expects a C string.
        if interface.len() >= name.len() || interface.bytes().any(|b| b == 0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in name.iter_mut().zip(interface.bytes()) {
            *to = from as libc::c_char;
        }
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut parameters = Parameters {
            command: ETHTOOL_GRINGPARAM,
            ..Parameters::default()
        };
        let mut request = libc::ifreq {
            ifr_name: name,
            ifr_ifru: libc::__c_anonymous_ifr_ifru {
                ifru_data: (&raw mut parameters).cast(),
            },
        };
        // SAFETY: SIOCETHTOOL takes an `ifreq` whose data is the struct of its command: the kernel reads and
        // writes `Parameters`, which has that layout and outlives the call. Exercised by
        // `tests::loopback_has_no_rings_and_unknown_interfaces_fail`.
        let asked =
            unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
        if asked == 0 {
            return Ok(Some(Self {
                receive: parameters.receive,
                send: parameters.send,
                receive_max: parameters.receive_max,
                send_max: parameters.send_max,
            }));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => Ok(None),
            _ => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_rings_and_unknown_interfaces_fail() {
        assert_eq!(NicRings::of("lo").unwrap(), None);
        for name in ["nosuch0", "", "a\0b", "a-name-of-sixteen"] {
            assert!(NicRings::of(name).is_err(), "{name:?}");
        }
        // No device reports a ring beyond its maximum.
        for entry in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if let Ok(Some(rings)) = NicRings::of(&name) {
                assert!(
                    (1..=rings.receive_max).contains(&rings.receive),
                    "{rings:?}"
                );
            }
        }
    }
}
