//! Pins the calling thread to a core, or says which cores there are.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Number of a core, as the operating system counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Core(pub usize);

/// Why a thread can't be pinned. The configuration or the host's limits are at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PinError {
    /// This process may not run on that core.
    #[error(
        // Debug: a list of numbers.
        "core {core} is not available to this process, which may use {available:?}; choose one of these or widen its cpuset"
    )]
    NotAvailable {
        /// Which was asked for.
        core: usize,
        /// Which there are.
        available: Vec<usize>,
    },
    /// The operating system refused.
    #[error(
        "the operating system refused to pin this thread to core {core}; does a sandbox forbid sched_setaffinity?"
    )]
    Refused {
        /// Which was asked for.
        core: usize,
    },
}

/// Pins the calling thread to `core`. Call it before the thread touches its memory, so that the
/// memory is that core's.
///
/// # Errors
/// [`PinError`]; the thread then runs where it ran before.
pub fn pin_to(core: Core) -> Result<(), PinError> {
    if core_affinity::set_for_current(find(core)?) {
        Ok(())
    } else {
        Err(PinError::Refused { core: core.0 })
    }
}

/// Whether the calling thread may run on `core`; changes nothing.
///
/// # Errors
/// [`PinError::NotAvailable`].
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
    fn a_core_that_is_not_there_is_refused_with_those_that_are() {
        // A thread of its own: the pin must not outlive the test.
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
