//! Turns between tests that need the machine for themselves.

use std::fs::File;

/// Holds the machine until it is dropped.
#[derive(Debug)]
pub struct Exclusive(#[allow(dead_code, reason = "closing it releases the lock")] File);

/// Waits until no other test of this machine holds it, in this process or in another, and takes it.
///
/// A test takes its turn first thing if it loads every core, measures how long something takes, or uses
/// addresses that are fixed. Other tests run beside it, so it must still pass on a machine that is busy.
///
/// # Panics
/// If the lock file can't be opened.
#[must_use]
pub fn exclusive() -> Exclusive {
    let path = std::env::temp_dir().join("tickcast-tests.lock");
    // Another user may have created it.
    let file = File::open(&path).or_else(|_| File::create(&path)).unwrap();
    // Each call opens the file anew, so the lock also excludes other threads of this process.
    file.lock().unwrap();
    Exclusive(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_held_by_one_test_is_refused_to_another() {
        let held = exclusive();
        let second = File::open(std::env::temp_dir().join("tickcast-tests.lock")).unwrap();
        assert!(second.try_lock().is_err());
        drop(held);
    }
}
