//! Exchange feeds: captures and live packets in, normalised DBN records out.
//!
//! A decoder ([`source::Decoder`]) does no I/O and reads no clock. [`arbiter`] merges the lines of a
//! source, [`capture`] reads recorded packets, [`venues`] is the table of the feeds we know,
//! [`instruments`] numbers their symbols.
pub mod arbiter;
pub mod capture;
pub mod iex;
pub mod instruments;
pub mod itch;
pub mod moldudp64;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
pub mod recording;
pub mod simulator;
pub mod source;
pub mod venues;
