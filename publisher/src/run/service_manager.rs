//! Notifications to the service manager that started this process (sd_notify(3)): ready, alive, stopping.
//! Without a service manager, nothing happens.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use crate::error::PublisherError;
use crate::state::Shared;
use crate::state::thread::spawn;

/// Longest interval between two looks at the session.
const TICK_MAX: Duration = Duration::from_millis(500);
/// Looks within one timeout of the watchdog.
const TICKS_A_TIMEOUT: u32 = 4;

/// The service manager, or nobody.
///
/// ```
/// # use tickcast_publisher::internal::{Service, ServiceManager};
/// # fn f(service: &Service) -> Result<(), tickcast_publisher::PublisherError> {
/// ServiceManager::from_environment().ready("listening", service.shared().clone())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// Whether it expects to hear regularly that this process is alive, and its timeout.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Returns the service manager that the environment names by `NOTIFY_SOCKET`, `WATCHDOG_USEC` and
    /// `WATCHDOG_PID`. Logs a warning if its socket can't be used.
    #[must_use]
    pub fn from_environment() -> Self {
        let of = |name| env::var(name).ok();
        let name = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let socket = name.and_then(|name| {
            let connected = connect(&name);
            let report = |error: &io::Error| {
                tracing::warn!(
                    "the service manager hears nothing, because the socket {name:?} of NOTIFY_SOCKET \
                     can't be used: {error}"
                );
            };
            connected.inspect_err(report).ok()
        });
        let (timeout, process) = (of("WATCHDOG_USEC"), of("WATCHDOG_PID"));
        Self {
            socket,
            watchdog: watchdog(timeout.as_deref(), process.as_deref(), std::process::id()),
        }
    }

    /// Reports that the service is ready. Starts a thread that reports life while the session makes
    /// progress, if the service manager has a watchdog, and that reports the session's end.
    ///
    /// # Errors
    /// Returns [`PublisherError::System`] if the thread can't be started.
    pub fn ready(&self, status: &str, shared: Arc<Shared>) -> Result<(), PublisherError> {
        let Some(socket) = &self.socket else {
            return Ok(());
        };
        let socket = socket
            .try_clone()
            .map_err(|source| PublisherError::System {
                what: "notify the service manager",
                source,
            })?;
        send(&socket, &format!("READY=1\nSTATUS={status}"));
        let has_watchdog = self.watchdog.is_some();
        let timeout = self.watchdog.unwrap_or(Duration::MAX);
        let tick = (timeout / TICKS_A_TIMEOUT).min(TICK_MAX);
        // Nobody joins it: it reports until the process is gone.
        spawn::<()>("watchdog", None, move || {
            let mut watch = Watch::new(has_watchdog);
            loop {
                std::thread::sleep(tick);
                let current = shared.current();
                let is_stopping = current.is_stopping() || current.is_ended();
                if let Some(state) = watch.next(current.rounds.counts(), is_stopping) {
                    send(&socket, state);
                }
            }
        })
        .map(drop)
    }

    /// Reports that the service ends. The thread of [`Self::ready`] reports it earlier if the end takes time,
    /// and a service manager accepts both.
    pub fn stopping(&self) {
        if let Some(socket) = &self.socket {
            send(socket, "STOPPING=1");
        }
    }
}

/// Decides what to report.
#[derive(Debug)]
struct Watch {
    has_watchdog: bool,
    /// Rounds of the publish and the repair thread at the last look.
    seen: (u64, u64),
    is_stopping: bool,
}

impl Watch {
    const fn new(has_watchdog: bool) -> Self {
        Self {
            has_watchdog,
            seen: (0, 0),
            is_stopping: false,
        }
    }

    /// Returns the state to report after these rounds of the publish and the repair thread, if any.
    /// A standby has no repair thread, so its rounds stay 0. A stop is reported once.
    fn next(&mut self, rounds: (u64, u64), is_stopping: bool) -> Option<&'static str> {
        let seen = std::mem::replace(&mut self.seen, rounds);
        if is_stopping && !self.is_stopping {
            self.is_stopping = true;
            return Some("STOPPING=1");
        }
        let (publish, repair) = rounds;
        let progresses = publish != seen.0 && (repair != seen.1 || repair == 0);
        // The service manager limits the time of a stop by itself.
        let is_alive = progresses || self.is_stopping;
        (self.has_watchdog && is_alive).then_some("WATCHDOG=1")
    }
}

/// Returns the timeout of the watchdog, if it watches the process `own`.
fn watchdog(timeout_us: Option<&str>, process: Option<&str>, own: u32) -> Option<Duration> {
    let is_other = process.is_some_and(|process| process.parse::<u32>() != Ok(own));
    let timeout_us: u64 = timeout_us?.parse().ok()?;
    (timeout_us > 0 && !is_other).then(|| Duration::from_micros(timeout_us))
}

/// Connects to a socket: a path, or with a leading `@` an abstract name.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    // A service manager that reads nothing must not hold up a start.
    socket.set_write_timeout(Some(Duration::from_secs(1)))?;
    Ok(socket)
}

fn send(socket: &UnixDatagram, state: &str) {
    if let Err(error) = socket.send(state.as_bytes()) {
        tracing::warn!("the service manager does not take a notification: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_is_fed_only_while_both_threads_progress() {
        let mut watch = Watch::new(true);
        let alive = Some("WATCHDOG=1");
        assert_eq!(watch.next((0, 0), false), None, "nothing has begun");
        assert_eq!(watch.next((5, 1), false), alive);
        assert_eq!(watch.next((9, 2), false), alive);
        assert_eq!(watch.next((9, 3), false), None, "the publish thread hangs");
        assert_eq!(watch.next((10, 3), false), None, "the repair thread hangs");
        assert_eq!(watch.next((11, 4), false), alive);
        // A promoted standby counts from the start again.
        assert_eq!(watch.next((2, 1), false), alive);
    }

    #[test]
    fn watchdog_of_standby_without_repair_is_fed() {
        let mut watch = Watch::new(true);
        assert_eq!(watch.next((5, 0), false), Some("WATCHDOG=1"));
        assert_eq!(watch.next((5, 0), false), None);
    }

    #[test]
    fn stop_is_reported_once_and_then_life() {
        let mut watch = Watch::new(true);
        assert_eq!(watch.next((5, 1), true), Some("STOPPING=1"));
        assert_eq!(watch.next((5, 1), true), Some("WATCHDOG=1"));
        let mut watch = Watch::new(false);
        assert_eq!(watch.next((5, 1), false), None);
        assert_eq!(watch.next((6, 2), true), Some("STOPPING=1"));
        assert_eq!(watch.next((7, 3), true), None);
    }

    #[test]
    fn watchdog_of_another_process_is_ignored() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(watchdog(Some("1000000"), None, 7), second);
        assert_eq!(watchdog(Some("1000000"), Some("7"), 7), second);
        for (timeout, process) in [
            (Some("1000000"), Some("8")),
            (Some("1000000"), Some("")),
            (Some("0"), Some("7")),
            (Some("soon"), Some("7")),
            (None, Some("7")),
        ] {
            assert_eq!(
                watchdog(timeout, process, 7),
                None,
                "{timeout:?} {process:?}"
            );
        }
    }

    #[test]
    fn notification_reaches_path_and_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("tickcast-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        let cases = [
            (UnixDatagram::bind(&path), path.clone().into_os_string()),
            (
                UnixDatagram::bind_addr(&abstract_address),
                format!("@{name}").into(),
            ),
        ];
        for (receiver, name) in cases {
            let (receiver, mut bytes) = (receiver.unwrap(), [0; 64]);
            send(&connect(&name).unwrap(), "READY=1");
            let len = receiver.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..len], b"READY=1");
        }
        assert!(connect(folder.path().join("absent").as_os_str()).is_err());
    }
}
