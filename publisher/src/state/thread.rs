//! The threads of this process: the clock that they share, how one starts, and how one that fails ends
//! the session.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use tickcast_reliability::types::Now;
use tickcast_transport::host::clock::SystemClock;
use tickcast_transport::host::pin::{Core, pin_to};

use crate::error::PublisherError;
use crate::state::Shared;

/// Returns the time on both clocks.
#[must_use]
pub(crate) fn now() -> Now {
    SystemClock.both()
}

/// A thread of this publisher, and its result.
pub(crate) type Thread<T> = JoinHandle<Result<T, PublisherError>>;

/// Starts a thread of this process under a name, on a core.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    core: Option<Core>,
    run: impl FnOnce() -> Result<T, PublisherError> + Send + 'static,
) -> Result<Thread<T>, PublisherError> {
    let thread = Builder::new().name(name.into()).spawn(move || {
        if let Some(core) = core {
            pin_to(core)?;
        }
        run()
    });
    thread.map_err(|source| PublisherError::System {
        what: "start a thread",
        source,
    })
}

/// Ends the session unless the thread that holds it succeeds. A thread fails by an error, by a panic,
/// or because it never starts.
pub(crate) struct StopOnFailure {
    shared: Arc<Shared>,
    has_succeeded: bool,
}

impl StopOnFailure {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            has_succeeded: false,
        }
    }

    pub(crate) fn of<T, E>(mut self, result: Result<T, E>) -> Result<T, E> {
        self.has_succeeded = result.is_ok();
        result
    }
}

impl Drop for StopOnFailure {
    fn drop(&mut self) {
        if !self.has_succeeded {
            tracing::error!("a thread of this publisher has failed, so the session ends");
            self.shared.stop();
        }
    }
}
