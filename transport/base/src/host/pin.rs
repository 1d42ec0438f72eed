//! Pins the calling thread to a core. The error lists the cores that are available.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Number of a core, as the operating system counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Core(pub usize);

/// Reason that a thread can't be pinned. The configuration or the host's limits are at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PinError {
    /// This process may not run on that core.
    #[error(
        // Debug: a list of numbers.
        "core {core} is not available to this process, which may use {available:?}; choose one of these or widen its cpuset"
    )]
    NotAvailable {
        /// The requested core.
        core: usize,
        /// The available cores.
        available: Vec<usize>,
    },
    /// The operating system refused.
    #[error(
        "the operating system refused to pin this thread to core {core}; does a sandbox forbid sched_setaffinity?"
    )]
    Refused {
        /// The requested core.
        core: usize,
    },
}

/// Pins the calling thread to `core`. Call it before the thread touches its memory, so that the memory
/// is local to that core.
///
/// # Errors
/// [`PinError`] if the core is not available or the operating system refuses. The thread then runs where
/// it ran before.
pub fn pin_to(core: Core) -> Result<(), PinError> {
    if core_affinity::set_for_current(find(core)?) {
        Ok(())
    } else {
        Err(PinError::Refused { core: core.0 })
    }
}

/// Checks whether the calling thread may run on `core`. Changes nothing.
///
/// # Errors
/// [`PinError::NotAvailable`] if it may not.
pub fn check(core: Core) -> Result<(), PinError> {
    find(core).map(|_| ())
}

fn find(core: Core) -> Result<core_affinity::CoreId, PinError> {
    let available = core_affinity::get_core_ids().unwrap_or_default();
    let found = available.iter().find(|id| id.id == core.0).copied();
    found.ok_or_else(|| PinError::NotAvailable {
        core: core.0,
        available: available.iter().map(|id| id.id).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_core_error_lists_available_cores() {
        // Runs in its own thread, so that the pin does not outlive the test.
        std::thread::spawn(|| {
            let Err(PinError::NotAvailable { core, available }) = pin_to(Core(1 << 20)) else {
                panic!("there is no such core")
            };
            assert_eq!(core, 1 << 20);
            assert!(check(Core(1 << 20)).is_err());
            assert_eq!(check(Core(available[0])), Ok(()));
            assert_eq!(pin_to(Core(available[0])), Ok(()));
        })
        .join()
        .unwrap();
    }
}
