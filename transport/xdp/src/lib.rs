//! AF_XDP: a channel's UDP multicast, taken from the driver before the kernel's network stack.
//!
//! Senders need nothing: they send UDP. A program at the interface redirects the datagrams of known groups
//! to sockets of this process, and passes everything else to the kernel. A datagram lies in a frame that the
//! driver wrote, and is lent from there. docs/decisions/0062 has the reasons.
//!
//! Order of folders, top to bottom; each imports only those below it:
//!
//! 1. `receiver`: [`XdpReceiver`], a channel on one line or two
//! 2. `tap`: an interface as this process taps it, shared by all lines there
//! 3. `config`: plain values
//! 4. `error`: [`XdpError`] and [`XdpWarning`]
//! 5. `steering`: the program, its maps and its attachment
//! 6. `socket`: AF_XDP sockets and their rings
//! 7. `frame`: Ethernet, IPv4 and UDP headers
//! 8. `bpf`: the `bpf()` system call

mod bpf;
mod config;
mod error;
mod frame;
mod receiver;
mod socket;
mod steering;
mod tap;

pub use config::{XdpReceiveLine, XdpReceiverConfig, memory_default};
pub use error::{XdpError, XdpWarning};
pub use receiver::{XdpFrames, XdpGrant, XdpReceiver};
pub use steering::XdpMode;
