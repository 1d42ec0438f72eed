//! Lengths of a network device's rings: the packets that it can hold between two polls of the driver.

use std::io;

use super::nic_requests::{EthtoolCommand, ethtool};

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

// SAFETY: the layout is the kernel's, of numbers only. Exercised by
// `tests::loopback_has_no_rings_and_unknown_interfaces_fail`.
unsafe impl EthtoolCommand for Parameters {}

impl NicRings {
    /// Asks the driver of an interface. Returns `None` if the device has no rings, as loopback.
    ///
    /// # Errors
    /// Returns the operating system's error if the interface does not exist, or can't be asked.
    pub fn of(interface: &str) -> io::Result<Option<Self>> {
        let mut parameters = Parameters {
            command: ETHTOOL_GRINGPARAM,
            ..Parameters::default()
        };
        let is_told = ethtool(interface, &mut parameters)?;
        Ok(is_told.then_some(Self {
            receive: parameters.receive,
            send: parameters.send,
            receive_max: parameters.receive_max,
            send_max: parameters.send_max,
        }))
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
