//! Asynchronous events of a device: its port or its addresses changed, or it failed. Also the counters
//! that cost a call to read. One thread for each open device takes all of these, so that polling
//! threads only read a number in memory.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use crate::device::{leave_pinned_core, sys};
use crate::error::VerbsError;

/// Interval between reads of the counters, in milliseconds.
const COUNTERS_EVERY_MS: i32 = 1_000;
/// Number of counter reads after an event that count as a change again. Consequences of an event, such
/// as the end of a membership, reach the ids only later.
const ECHOES: u32 = 5;

/// Counters of a port, as of the last read.
#[derive(Debug, Default)]
pub(crate) struct PortCounters {
    /// Datagrams without a posted buffer. `None` if the device does not count them.
    dropped: AtomicU64,
    /// Datagrams with another Q_Key.
    wrong: AtomicU64,
    /// Whether the port can send and receive.
    is_active: AtomicBool,
}

/// Value of a counter that the device lacks.
const ABSENT: u64 = u64::MAX;

impl PortCounters {
    pub(crate) fn set(&self, is_active: bool, dropped: Option<u64>, wrong: u64) {
        let dropped = dropped.unwrap_or(ABSENT);
        self.is_active.store(is_active, Ordering::Relaxed);
        self.dropped.store(dropped, Ordering::Relaxed);
        self.wrong.store(wrong, Ordering::Relaxed);
    }

    pub(crate) fn dropped(&self) -> Option<u64> {
        Some(self.dropped.load(Ordering::Relaxed)).filter(|dropped| *dropped != ABSENT)
    }

    pub(crate) fn wrong(&self) -> u64 {
        self.wrong.load(Ordering::Relaxed)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }
}

/// Reads a port's counters into their place.
type Look = Box<dyn Fn(&PortCounters) + Send>;

/// State shared between the thread and its readers.
#[derive(Default)]
struct Shared {
    changes: AtomicU64,
    activations: AtomicU64,
    has_failed: AtomicBool,
    /// Counters to read, until their owner drops them.
    refreshes: Mutex<Vec<(Weak<PortCounters>, Look)>>,
}

/// The thread of one open device.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    /// Closed to end the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Watched devices by the address of their context, of which a process has one per device.
static WATCHED: Mutex<Vec<(usize, Weak<Watch>)>> = Mutex::new(Vec::new());

impl Watch {
    /// Returns the watch of a device. The first caller starts it.
    ///
    /// # Safety
    /// The context stays open for as long as the watch lives.
    pub(crate) unsafe fn of(context: *mut sys::ibv_context) -> Result<Arc<Self>, VerbsError> {
        let mut watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|(_, watch)| watch.strong_count() > 0);
        let known = watched.iter().find(|(at, _)| *at == context.addr());
        if let Some(watch) = known.and_then(|(_, watch)| watch.upgrade()) {
            return Ok(watch);
        }
        // SAFETY: the caller keeps the context open, and so its descriptor.
        // Exercised by `verbs::datagrams::removed_interface_address_restarts_its_line`.
        let fd = unsafe {
            let fd = (*context).async_fd;
            let flags = libc::fcntl(fd, libc::F_GETFL);
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
            fd
        };
        let failed = |source| VerbsError::Call {
            what: "watch a device",
            source,
        };
        let (stopped, stop) = io::pipe().map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let device = Watched {
            context: context.expose_provenance(),
            fd,
            stopped,
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new().name("verbs-watch".into());
        let thread = thread.spawn(move || device.run()).map_err(failed)?;
        let watch = Arc::new(Self {
            shared,
            stop: Some(stop),
            thread: Some(thread),
        });
        watched.push((context.addr(), Arc::downgrade(&watch)));
        Ok(watch)
    }

    /// Reads counters now and periodically, for as long as they live.
    pub(crate) fn count(
        &self,
        counters: &Arc<PortCounters>,
        refresh: impl Fn(&PortCounters) + Send + 'static,
    ) {
        refresh(counters);
        let mut refreshes = (self.shared.refreshes.lock()).unwrap_or_else(PoisonError::into_inner);
        refreshes.push((Arc::downgrade(counters), Box::new(refresh)));
    }

    /// Returns the change count. It grows whenever something changes that a queue or its route to a group
    /// may depend on.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.shared.changes.load(Ordering::Acquire)
    }

    /// Returns how often a port of the device went up. A switch may have forgotten the groups behind it.
    pub(crate) fn activations(&self) -> u64 {
        self.shared.activations.load(Ordering::Acquire)
    }

    /// Returns whether the device failed for good.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct Watched {
    /// The context. The watch ends the thread before the context is closed.
    context: usize,
    fd: RawFd,
    stopped: PipeReader,
    shared: Arc<Shared>,
}

impl Watched {
    fn run(&self) {
        leave_pinned_core();
        let mut echoes = 0;
        loop {
            let of = |fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            let mut fds = [of(self.stopped.as_raw_fd()), of(self.fd)];
            // SAFETY: two of them, that live through the call.
            // Exercised by `verbs::datagrams::removed_interface_address_restarts_its_line`.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, COUNTERS_EVERY_MS) };
            if fds[0].revents != 0 {
                return;
            }
            if fds[1].revents & libc::POLLIN != 0 {
                while let Some(event) = self.take() {
                    if concerns_lines(event) {
                        echoes = ECHOES;
                        self.shared.changes.fetch_add(1, Ordering::Release);
                    }
                }
            } else if fds[1].revents != 0 {
                // The device was removed, so no more events can come.
                self.shared.has_failed.store(true, Ordering::Release);
                self.shared.changes.fetch_add(1, Ordering::Release);
                return;
            }
            if ready <= 0 {
                self.refresh();
                if echoes > 0 {
                    echoes -= 1;
                    self.shared.changes.fetch_add(1, Ordering::Release);
                }
            }
        }
    }

    /// Takes one event, if there is one. Returns its type.
    fn take(&self) -> Option<u32> {
        let mut event = sys::AsyncEvent::default();
        let context = std::ptr::with_exposed_provenance_mut(self.context);
        // SAFETY: the context is open for as long as this thread runs; an event is acknowledged at
        // once, and the object it names is not accessed. Exercised by
        // `verbs::datagrams::removed_interface_address_restarts_its_line`.
        unsafe {
            if sys::ibv_get_async_event(context, &raw mut event) != 0 {
                return None;
            }
            sys::ibv_ack_async_event(&raw mut event);
        }
        tracing::debug!(event = event.event_type, "a device reported an event");
        match event.event_type {
            sys::EVENT_DEVICE_FATAL => self.shared.has_failed.store(true, Ordering::Release),
            sys::EVENT_PORT_ACTIVE => {
                self.shared.activations.fetch_add(1, Ordering::Release);
            }
            _ => {}
        }
        Some(event.event_type)
    }

    fn refresh(&self) {
        let mut refreshes = (self.shared.refreshes.lock()).unwrap_or_else(PoisonError::into_inner);
        refreshes.retain(|(counters, refresh)| {
            let counters = counters.upgrade();
            if let Some(counters) = &counters {
                refresh(counters);
            }
            counters.is_some()
        });
    }
}

/// Returns whether an event may concern a queue of datagrams or its route to a group. The others concern one
/// connection, and every subscriber that comes, goes or breaks its rights causes some. A check by each
/// line costs system calls, so they cause none.
const fn concerns_lines(event: u32) -> bool {
    matches!(
        event,
        sys::EVENT_CQ_ERR
            | sys::EVENT_QP_FATAL
            | sys::EVENT_DEVICE_FATAL
            | sys::EVENT_PORT_ACTIVE
            | sys::EVENT_PORT_ERR
            | sys::EVENT_LID_CHANGE
            | sys::EVENT_PKEY_CHANGE
            | sys::EVENT_SM_CHANGE
            | sys::EVENT_CLIENT_REREGISTER
            | sys::EVENT_GID_CHANGE
    )
}

#[cfg(test)]
mod tests {
    use super::concerns_lines;

    #[test]
    fn events_of_connections_concern_no_line() {
        // In the order of `ibv_event_type`, from CQ_ERR to WQ_FATAL.
        let concerning: Vec<u32> = (0..=19).filter(|event| concerns_lines(*event)).collect();
        assert_eq!(concerning, [0, 1, 8, 9, 10, 11, 12, 13, 17, 18]);
        assert!(!concerns_lines(u32::MAX), "unknown to this version");
    }
}
