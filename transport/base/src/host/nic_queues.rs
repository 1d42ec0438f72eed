//! The number of a network device's receive queues.

use std::io;

use super::nic_requests::{EthtoolCommand, ethtool};

/// The request to read the numbers of queues (`linux/ethtool.h`).
const ETHTOOL_GCHANNELS: u32 = 0x3c;

/// `struct ethtool_channels`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Channels {
    command: u32,
    receive_max: u32,
    send_max: u32,
    other_max: u32,
    combined_max: u32,
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

// SAFETY: the layout is the kernel's, of numbers only. Exercised by
// `tests::loopback_has_one_queue_and_unknown_interfaces_fail`.
unsafe impl EthtoolCommand for Channels {}

/// Returns the number of receive queues that an interface uses. A driver that does not tell has one.
///
/// # Errors
/// Returns the operating system's error if the interface does not exist, or can't be asked.
pub fn receive_queues(interface: &str) -> io::Result<u32> {
    let mut channels = Channels {
        command: ETHTOOL_GCHANNELS,
        ..Channels::default()
    };
    ethtool(interface, &mut channels)?;
    Ok(channels.receive.saturating_add(channels.combined).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_one_queue_and_unknown_interfaces_fail() {
        assert_eq!(receive_queues("lo").unwrap(), 1);
        for name in ["nosuch0", "", "a\0b", "a-name-of-sixteen"] {
            assert!(receive_queues(name).is_err(), "{name:?}");
        }
    }
}
