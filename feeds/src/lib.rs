//! Exchange feeds: captures and live packets in, normalised DBN records out.
//!
//! A decoder ([`source::Decoder`]) does no I/O and reads no clock. [`capture`] reads recorded
//! packets, [`venues`] is the table of the feeds we know, [`instruments`] numbers their symbols.
pub mod capture;
pub mod iex;
pub mod instruments;
pub mod itch;
pub mod moldudp64;
pub mod recording;
pub mod simulator;
pub mod source;
pub mod venues;
