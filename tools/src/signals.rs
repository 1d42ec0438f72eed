//! SIGINT and SIGTERM end a command in order: it finishes what it holds and reports. A second one
//! ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::{CommandError, Exit};

/// Whether somebody asked us to end.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens to the signals from now on.
    ///
    /// # Errors
    /// [`CommandError::Host`] when the system does not let us.
    pub(crate) fn on_signals() -> Result<Self, CommandError> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag unset and only sets it.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                Exit::Finding as i32,
                Arc::clone(&asked),
            )
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&asked)))
            .map_err(|source| CommandError::Host {
                what: "listen to signals",
                source,
            })?;
        }
        Ok(Self(asked))
    }

    /// Whether a signal came.
    pub(crate) fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
