//! The result of a case.

use std::fmt::Debug;

/// Result of a case: `Err` describes the fault.
pub type Verdict = Result<(), String>;

/// Checks for equality. The error shows both values.
pub fn equal<T: PartialEq + Debug>(what: &str, left: T, right: T) -> Verdict {
    if left == right {
        return Ok(());
    }
    Err(format!("{what}: {left:?} is not {right:?}"))
}

pub fn check(holds: bool, what: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(what()) }
}
