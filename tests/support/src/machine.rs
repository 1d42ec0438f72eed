//! A lock for tests that need the machine for themselves.

use std::fs::File;

/// Holds the machine lock until it is dropped.
#[derive(Debug)]
pub struct Exclusive(#[allow(dead_code, reason = "closing it releases the lock")] File);

/// Takes the machine lock. Waits while another test of this machine holds it, in this process or another.
///
/// A test takes the lock as its first step in these cases:
/// - it loads every core;
/// - it measures how long something takes;
/// - it uses fixed addresses.
///
/// Tests without the lock still run beside it, so the test must also pass on a busy machine.
///
/// # Panics
/// If the lock file can't be opened.
#[must_use]
pub fn exclusive() -> Exclusive {
    let path = std::env::temp_dir().join("tickcast-tests.lock");
    // Creation fails if another user owns the file, so opening comes first.
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
