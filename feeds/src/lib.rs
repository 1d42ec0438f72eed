//! Exchange feeds: captures and live packets in, normalised DBN records out.
//!
//! A decoder ([`source::Decoder`]) does no I/O and reads no clock.
//!
//! Order of folders, top to bottom; each imports only those below it:
//!
//! 1. `recording`: the feeds of recorded files and their lines, merged by time, and the verdict on them
//! 2. `venues`: the table of the feeds we know
//! 3. `capture`: recorded packets and messages, and an account of everything else in their files
//! 4. `simulator`: a simulated market, as packets of ITCH
//! 5. `itch`: Nasdaq TotalView-ITCH
//! 6. `iex`: IEX-TP with TOPS and DEEP
//! 7. `moldudp64`: the packets of ITCH
//! 8. `arbiter`: the lines of a source, merged before its decoder
//! 9. `planted`: bugs that tests of the arbiter switch on
//! 10. `source`: the interface of decoders
//! 11. `instruments`: the numbers of symbols

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
