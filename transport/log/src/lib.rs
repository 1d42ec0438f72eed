//! The log layer of every program and of the C library: no text from outside can forge a line or
//! control a terminal, and no peer can fill the disk.
//!
//! - [`Escaping`] escapes control characters of each value, and truncates it. Text of a peer stands
//!   in quotes besides.
//! - [`SiteLimits`] bounds the lines of each call site, and sums up the suppressed ones.
//! - `program` starts the log of a program with both.
//!
//! Order of modules, top to bottom; each imports only those below it:
//!
//! 1. `program`: the log on standard error
//! 2. `site_limits`: a limit for each call site
//! 3. `limit`: a burst of lines, then a rate
//! 4. `escape`: values without control characters

mod escape;
mod limit;
#[cfg(feature = "program")]
pub mod program;
mod site_limits;

pub use escape::{Escaping, PlainJson, PlainLines, is_control};
pub use limit::LogLimit;
pub use site_limits::{SiteLimits, Suppressed};
