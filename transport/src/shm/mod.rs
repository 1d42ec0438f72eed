//! Shared memory: subscribers in the publisher's host map its ring and read it themselves.
//!
//! Nothing is sent. Any number of readers can copy a slot that is sealed and counted as sent. The
//! publisher knows none of them. They map the file read-only, so no reader can delay or damage the
//! publisher. Neither side makes a system call or takes a lock for a datagram. The slot's sequence
//! proves a copy whole (docs/PROTOCOL.md §9), so no CRC is computed. A late reader finds in the ring
//! which sequences it no longer holds.
//!
//! Heartbeats and repairs for many subscribers are not in the ring. They lie behind it as *copies*
//! (docs/PROTOCOL.md §9.1).
//!
//! A new epoch is a new file of the same name. The old file stays unchanged for readers that have it
//! mapped. They learn of the new epoch by WELCOME.

mod fan_out;
mod read_only_map;
mod receiver;
mod side_ring;

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use tickcast_reliability::ring::{Geometry, RingError};
use tickcast_reliability::types::Epoch;
use tickcast_transport_base::host::files::FileError;

pub use fan_out::ShmFanOut;
pub use read_only_map::ReadOnlyMapping;
pub use receiver::{ShmReceiver, ShmReceiverConfig};
pub use side_ring::CopyWriter;

/// Returns the bytes that a file has behind a ring of this geometry.
#[must_use]
pub const fn tail_len(geometry: Geometry) -> usize {
    2 * side_ring::area_len(geometry)
}

/// The file with the host's boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Reads the host's boot id.
///
/// # Errors
/// The operating system's error: without a boot id, nobody can detect a restart of the host.
pub fn boot_id() -> io::Result<[u8; 16]> {
    boot_id_of(&std::fs::read_to_string(BOOT_ID)?)
}

fn boot_id_of(text: &str) -> io::Result<[u8; 16]> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(id) if id != 0 && digits.len() == 32 => Ok(id.to_be_bytes()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{BOOT_ID} does not hold 32 hexadecimal digits"),
        )),
    }
}

/// Formats a boot id as in a WELCOME.
#[must_use]
pub fn boot_id_text(boot_id: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(boot_id))
}

/// Reason that a ring in this host can't be shared or read. The host or the configuration is at fault, or
/// the publisher has changed the ring meanwhile.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShmError {
    /// The publisher runs on another host.
    #[error(
        "the publisher runs on another host, or this host was restarted since the publisher's start"
    )]
    OtherHost,
    /// This host's boot id can't be read.
    #[error("this host's boot id can't be read ({source}); is /proc/sys visible here?")]
    BootId {
        /// The operating system's error.
        source: io::Error,
    },
    /// The file can't be mapped.
    #[error(
        "{path} can't be mapped ({source}); is the publisher's /dev/shm visible here, and is this user in the group of the publisher's user?"
    )]
    Map {
        /// The file's path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Another user than the publisher's can change the file.
    #[error(transparent)]
    File(#[from] FileError),
    /// The mapped file is not a ring.
    #[error("{path} holds no ring: {source}")]
    Ring {
        /// The file's path.
        path: PathBuf,
        /// Why it is not a ring.
        source: RingError,
    },
    /// The file is a ring, but not the offered one.
    #[error(
        "{path} holds the ring of epoch {found}, but epoch {expected} was offered; another \
         publisher has replaced the file"
    )]
    Another {
        /// The file's path.
        path: PathBuf,
        /// Epoch of the ring.
        found: Epoch,
        /// The offered epoch.
        expected: Epoch,
    },
    /// The memory has no room behind the ring.
    #[error(
        "the ring's memory has {tail} bytes after the ring, and {needed} are needed; create it \
         with `SharedMapping::fresh` and `shm::tail_len`"
    )]
    NoTail {
        /// The actual size in bytes.
        tail: usize,
        /// The required size in bytes.
        needed: usize,
    },
    /// The copies behind the ring have an unknown layout.
    #[error(
        "the copies after the ring have a layout that this build can't read; upgrade the older side"
    )]
    Layout,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_or_zero_boot_id_is_refused() {
        let text = "01234567-89ab-cdef-0011-223344556677\n";
        let id = boot_id_of(text).unwrap();
        assert_eq!(boot_id_text(id), "0123456789abcdef0011223344556677");
        for wrong in [
            "",
            "\n",
            "0123",
            "00000000-0000-0000-0000-000000000000\n",
            "no id",
        ] {
            let error = boot_id_of(wrong).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{wrong:?}");
        }
        assert!(boot_id().is_ok());
    }
}
