//! Scheduler settings of a thread: a short slice, so that it runs as soon as it wakes, even where
//! another thread never sleeps on its core.
//!
//! Since Linux 6.12 (EEVDF) a waking thread preempts the running one only if its *slice* is shorter.
//! Otherwise it waits for the scheduler's tick: milliseconds. A thread may request a slice of
//! 0.1 to 100 ms. A short slice reduces wake-up latency and grants no CPU time. It suits threads that
//! wake often and run for microseconds.

use std::io;

use thiserror::Error;

/// The shortest possible slice, in nanoseconds.
const SLICE_NS: u64 = 100_000;
/// Largest delay of a timer, in nanoseconds. The system's default is 50,000.
const TIMER_SLACK_NS: libc::c_ulong = 1;

/// Reason that a thread can't have a short slice. It keeps its previous slice.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SchedError {
    /// The operating system refused.
    #[error("the kernel refused a short time slice ({0}); does a sandbox forbid sched_setattr?")]
    Refused(io::Error),
    /// The operating system accepted the request and ignored it.
    #[error("this kernel has no time slice per thread; run Linux 6.12 or later")]
    Unknown,
}

/// `struct sched_attr` of sched_setattr(2), in its first version.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The slice, unless the policy is a deadline policy.
    runtime: u64,
    deadline: u64,
    period: u64,
}

impl Attributes {
    /// Returns whether the thread is time-shared, and so has a slice.
    const fn takes_turns(&self) -> bool {
        self.policy == libc::SCHED_OTHER as u32 || self.policy == libc::SCHED_BATCH as u32
    }
}

/// Sets the shortest slice for the calling thread, and timers without slack. Does not change a thread
/// under a real-time policy.
///
/// # Errors
/// [`SchedError`] if the operating system refuses or ignores the request.
pub fn set_short_slice() -> Result<(), SchedError> {
    // SAFETY: this request takes a number, and no address. It can't fail for the calling thread.
    // Exercised by `tests::short_slice_applies_to_calling_thread_only`.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) };
    let mut wanted = attributes()?;
    if !wanted.takes_turns() {
        return Ok(());
    }
    wanted.runtime = SLICE_NS;
    // SAFETY: the kernel reads as many bytes from the address as their first field says, all of the
    // struct. Exercised by `tests::short_slice_applies_to_calling_thread_only`.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) };
    if set != 0 {
        return Err(SchedError::Refused(io::Error::last_os_error()));
    }
    match attributes()?.runtime {
        SLICE_NS => Ok(()),
        _ => Err(SchedError::Unknown),
    }
}

/// Lets the calling thread run on the cores of the process's first thread, by the ordinary scheduler. A
/// helper thread inherits both from the thread that starts it. Without this, it would take turns with a
/// pinned thread that never sleeps, or never run beside one under a real-time policy.
///
/// # Errors
/// [`SchedError::Refused`] if the operating system refuses. The thread then runs as its starter does.
pub fn leave_pinned_core() -> Result<(), SchedError> {
    let refused = || SchedError::Refused(io::Error::last_os_error());
    let ordinary = libc::sched_param { sched_priority: 0 };
    // SAFETY: zero is a set without cores. The kernel writes and reads at most the length that is passed, all
    // of the set, and reads the parameter. Exercised by `tests::helper_leaves_core_of_its_starter`.
    unsafe {
        let mut cores: libc::cpu_set_t = std::mem::zeroed();
        let (first, len) = (libc::getpid(), size_of_val(&cores));
        if libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const ordinary) != 0
            || libc::sched_getaffinity(first, len, &raw mut cores) != 0
            || libc::sched_setaffinity(0, len, &raw const cores) != 0
        {
            return Err(refused());
        }
    }
    Ok(())
}

/// Returns the calling thread's scheduling attributes.
fn attributes() -> Result<Attributes, SchedError> {
    let mut found = Attributes {
        size: size_of::<Attributes>() as u32,
        ..Attributes::default()
    };
    // SAFETY: the kernel writes at most as many bytes as are passed, all of the struct. Exercised by
    // `tests::short_slice_applies_to_calling_thread_only`.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, found.size, 0) };
    if got != 0 {
        return Err(SchedError::Refused(io::Error::last_os_error()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_leaves_core_of_its_starter() {
        let cores = || core_affinity::get_core_ids().unwrap().len();
        let of_first = std::fs::read_to_string("/proc/self/status").unwrap();
        let allowed = of_first
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed:"));
        let starter = std::thread::spawn(move || {
            let first = core_affinity::get_core_ids().unwrap()[0];
            assert!(core_affinity::set_for_current(first));
            assert_eq!(cores(), 1);
            let helper = std::thread::spawn(move || {
                assert_eq!(cores(), 1, "inherited");
                leave_pinned_core().unwrap();
                std::fs::read_to_string("/proc/thread-self/status").unwrap()
            });
            helper.join().unwrap()
        });
        let helper = starter.join().unwrap();
        let of_helper = helper
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed:"));
        assert_eq!(of_helper, allowed, "the first thread of this process");
    }

    #[test]
    fn short_slice_applies_to_calling_thread_only() {
        let before = attributes().unwrap();
        std::thread::spawn(move || match set_short_slice() {
            Ok(()) => {
                let now = attributes().unwrap();
                assert_eq!(now.runtime, SLICE_NS);
                assert_eq!((now.policy, now.nice), (before.policy, before.nice));
                // SAFETY: this request takes no argument. Exercised by this test,
                // `tests::short_slice_applies_to_calling_thread_only`.
                let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
                assert_eq!(slack as libc::c_ulong, TIMER_SLACK_NS);
            }
            Err(error @ SchedError::Unknown) => println!("SKIPPED: {error}"),
            Err(error) => panic!("{error}"),
        })
        .join()
        .unwrap();
        assert_eq!(attributes().unwrap().runtime, before.runtime);
    }
}
