//! SIGINT, SIGTERM and SIGHUP end a command in order: it finishes its work in progress and reports. A
//! second signal ends it at once. Under `nohup`, SIGHUP is ignored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{Exit, ToolError};

/// Whether a signal requested the end.
#[derive(Clone, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Handles the signals from now on.
    ///
    /// # Errors
    /// Returns [`ToolError::Host`] if the system refuses a handler.
    pub fn on_signals() -> Result<Self, ToolError> {
        let asked = Arc::new(AtomicBool::new(false));
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let all = [SIGINT, SIGTERM, SIGHUP];
        for signal in all
            .into_iter()
            .filter(|&it| it != SIGHUP || !ignores(&status, it))
        {
            // The order matters: the first signal finds the flag unset and only sets it.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                Exit::Finding as i32,
                Arc::clone(&asked),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&asked)))
            .map_err(|source| ToolError::Host {
                what: "receive signals",
                source,
            })?;
        }
        Ok(Self(asked))
    }

    /// Returns whether a signal arrived.
    pub fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns whether a process ignores a signal, from its status text.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_ignored_signal_is_detected() {
        let nohup = "Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert!(ignores(nohup, SIGHUP));
        assert!(!ignores(nohup, SIGINT));
        assert!(!ignores("Name:\tx\nSigCgt:\t0000000000000001\n", SIGHUP));
        assert!(!ignores("", SIGHUP));
    }
}
