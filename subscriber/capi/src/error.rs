//! Errors for C: a code below zero, and a text that the calling thread can get.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use thiserror::Error;
use tickcast_subscriber::{
    ChannelError, CommandError, FilterError, JoinError, SpawnError, SubscribeError,
};

/// The status of a call. Some calls return a number of their own on success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// The call succeeded.
    Ok = 0,
    /// An argument is null, not UTF-8, or out of range.
    Argument = -1,
    /// Header and library do not match: a struct has another size in the library.
    Abi = -2,
    /// The pointer is no handle, or a handle of another kind.
    Handle = -3,
    /// The handle was freed, or its object is gone: left, built, split, joined or ended.
    Freed = -4,
    /// Another thread uses the handle, or the caller is a callback of a call on it or of its thread.
    Busy = -5,
    /// The description in the builder is invalid.
    Config = -6,
    /// There is no such channel, symbol, counter or number.
    Unknown = -7,
    /// A call of the operating system failed.
    System = -8,
    /// The library panicked: please report it. The handle can only be freed.
    Panicked = -9,
    /// The callback stopped the call, or the library's thread on which it runs.
    Stopped = -10,
    /// The callback of an earlier call stopped it: the handle delivers nothing more.
    Poisoned = -11,
}

/// An error of a call from C.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A null pointer.
    #[error("`{what}` is NULL")]
    Null {
        /// The name of the argument.
        what: &'static str,
    },
    /// A text that is not UTF-8.
    #[error("`{what}` is not UTF-8: {text:?}")]
    Text {
        /// The name of the argument.
        what: &'static str,
        /// The text, with replacements for invalid bytes.
        text: String,
    },
    /// A number outside its range.
    #[error("`{what}` can't be {value}: {expected}")]
    Range {
        /// The name of the argument.
        what: &'static str,
        /// The value as given.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// A setting of the builder was invalid. Its own call has returned the error already.
    #[error("{text}")]
    Setting {
        /// The status that the call returned.
        status: Status,
        /// The text of the error.
        text: String,
    },
    /// A setting of a channel before any channel was added.
    #[error("the builder has no channel: call tickcast_builder_channel first")]
    NoChannelYet,
    /// A struct of another size, or another version of the interface.
    #[error(
        "{what} is {theirs} in the header of this program, and {ours} in the library: compile \
         with the tickcast.h of the library"
    )]
    Abi {
        /// The name of the struct or version.
        what: &'static str,
        /// The value in C.
        theirs: u64,
        /// The value in the library.
        ours: u64,
    },
    /// A pointer that no function of the library returned.
    #[error("`{expected}` is not a handle of this library")]
    NoHandle {
        /// The expected kind of handle.
        expected: &'static str,
    },
    /// A handle of another kind.
    #[error("the handle is a {found}, and a {expected} is needed")]
    OtherKind {
        /// The kind of the handle.
        found: &'static str,
        /// The expected kind of handle.
        expected: &'static str,
    },
    /// A handle whose object is gone.
    #[error("the {expected} was freed, or was consumed by a call that ends it")]
    Freed {
        /// The expected kind of handle.
        expected: &'static str,
    },
    /// The handle is in use by another thread.
    #[error("another thread uses the {expected}: call it from one thread at a time")]
    InUse {
        /// The kind of the handle.
        expected: &'static str,
    },
    /// The handle is in use by the call that runs the current callback.
    #[error("a callback can't use the {expected} that called it: wait until that call returns")]
    WithinItself {
        /// The kind of the handle.
        expected: &'static str,
    },
    /// The table of handles is full.
    #[error("the process has {count} handles, the maximum: free some")]
    TooMany {
        /// The number of handles.
        count: usize,
    },
    /// The description is invalid.
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
    /// No such channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// No such filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A thread of the library rejected a command.
    #[error(transparent)]
    Command(CommandError),
    /// No thread could be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// There is nothing with that name or number.
    #[error("{what} {name:?} does not exist: {known}")]
    Unknown {
        /// The kind of thing.
        what: &'static str,
        /// The name as given.
        name: String,
        /// A text that lists the known ones.
        known: String,
    },
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(std::io::Error),
    /// A callback stopped its call.
    #[error(
        "the callback requested the end; items that it had not received are lost, and were not \
         reported to the publisher"
    )]
    Stopped,
    /// The callback of an earlier call stopped it.
    #[error(
        "an earlier callback requested the end, and nothing more is delivered: free this \
         subscriber, and build another"
    )]
    Poisoned,
    /// A log callback is set already.
    #[error("another callback receives the log lines until this process ends")]
    LogIsSet,
    /// The library panicked.
    #[error("the library failed internally; please report it: {message}")]
    Panicked {
        /// The message of the panic.
        message: String,
    },
}

impl Error {
    /// Returns the status code of the error.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::Setting { status, .. } => *status,
            Self::Null { .. } | Self::Text { .. } | Self::Range { .. } => Status::Argument,
            Self::Abi { .. } => Status::Abi,
            Self::NoHandle { .. } | Self::OtherKind { .. } | Self::TooMany { .. } => Status::Handle,
            Self::Freed { .. } => Status::Freed,
            Self::InUse { .. } | Self::WithinItself { .. } | Self::LogIsSet => Status::Busy,
            Self::Poisoned
            | Self::Subscribe(SubscribeError::Poisoned)
            | Self::Channel(ChannelError::Poisoned)
            | Self::Filter(FilterError::Channel(ChannelError::Poisoned))
            | Self::Spawn(SpawnError::Poisoned) => Status::Poisoned,
            Self::NoChannelYet | Self::Subscribe(_) => Status::Config,
            Self::Spawn(SpawnError::Size { .. }) => Status::Argument,
            Self::Channel(ChannelError::Rejoining { .. }) => Status::Busy,
            Self::Channel(_) | Self::Filter(_) | Self::Unknown { .. } => Status::Unknown,
            Self::Command(CommandError::Ended) => Status::Freed,
            Self::Command(_) => Status::Busy,
            Self::Spawn(_) | Self::Wait(_) => Status::System,
            Self::Stopped => Status::Stopped,
            Self::Panicked { .. } => Status::Panicked,
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        match error.downcast() {
            Ok(error) => Self::Subscribe(error),
            Err(error) => Self::Wait(error),
        }
    }
}

impl From<CommandError> for Error {
    fn from(error: CommandError) -> Self {
        match error {
            CommandError::Channel(error) => Self::Channel(error),
            CommandError::Filter(error) => Self::Filter(error),
            error => Self::Command(error),
        }
    }
}

/// The panic payload of a callback that stops. It passes through the subscriber and poisons it.
#[derive(Debug)]
pub(crate) struct Stop;

/// The panic message of `Stop` at the end of a thread.
pub(crate) const STOPPED: &str = "stopped by its callback";

impl From<JoinError> for Error {
    fn from(error: JoinError) -> Self {
        let message = match error {
            JoinError::Panicked(panicked) => panicked.message,
            _ => return Self::Command(CommandError::OwnThread),
        };
        if message == STOPPED {
            Self::Stopped
        } else {
            Self::Panicked { message }
        }
    }
}

thread_local! {
    static LAST: RefCell<Option<(Status, CString)>> = const { RefCell::new(None) };
}

fn keep(error: &Error) -> Status {
    // Replace NULs, which only a text of the other side can contain.
    let text = error.to_string().replace('\0', " ");
    let last = CString::new(text).ok().map(|text| (error.status(), text));
    // Ignore a failure, because a thread that is ending makes no more calls.
    let _ = LAST.try_with(|it| it.replace(last));
    error.status()
}

/// Runs a call from C. An error or a panic becomes the thread's last error.
fn caught<R>(call: impl FnOnce() -> Result<R, Error>) -> Result<R, Status> {
    // A panic poisons the lock of its handle, so no later call uses inconsistent state.
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        Err(Error::Panicked {
            message: message_of(&*panic),
        })
    });
    outcome.map_err(|error| keep(&error))
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a value that is not text").to_owned()
}

/// Runs a call that returns a number, or a status below zero.
pub(crate) fn number<N: From<i32>>(call: impl FnOnce() -> Result<N, Error>) -> N {
    caught(call).unwrap_or_else(|status| N::from(status as i32))
}

/// Runs a call that returns only its status.
pub(crate) fn status(call: impl FnOnce() -> Result<(), Error>) -> i32 {
    number(|| call().map(|()| 0))
}

/// Runs a call that returns a handle, or null.
pub(crate) fn handle<H>(call: impl FnOnce() -> Result<*mut H, Error>) -> *mut H {
    caught(call).unwrap_or(std::ptr::null_mut())
}

/// Returns the error text of this thread's last failed call. It is valid until the next failed call, and
/// empty when no call has failed.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_last_error() -> *const c_char {
    let last = LAST.try_with(|it| it.borrow().as_ref().map(|(_, text)| text.as_ptr()));
    last.ok().flatten().unwrap_or(c"".as_ptr())
}

/// Returns the TickcastStatus of this thread's last failed call, for functions that return a handle.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_last_status() -> i32 {
    let last = LAST.try_with(|it| it.borrow().as_ref().map(|(status, _)| *status));
    last.ok().flatten().unwrap_or(Status::Ok) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_text() -> String {
        LAST.with(|it| it.borrow().as_ref().map(|(_, text)| text.clone()))
            .and_then(|text| text.into_string().ok())
            .unwrap_or_default()
    }

    #[test]
    fn panic_at_c_boundary_sets_last_error() {
        assert_eq!(tickcast_last_status(), 0);
        let code: i32 = number(|| panic!("of its own {}", "accord"));
        assert_eq!((code, tickcast_last_status()), (-9, -9));
        assert!(last_text().ends_with("please report it: of its own accord"));
        let none: *mut u8 = handle(|| Err(Error::NoChannelYet));
        assert!(none.is_null());
        assert_eq!(tickcast_last_status(), Status::Config as i32);
        assert_eq!(status(|| Ok(())), 0);
        assert_eq!(
            tickcast_last_status(),
            Status::Config as i32,
            "success forgets nothing"
        );
        let elsewhere = std::thread::spawn(|| tickcast_last_status()).join();
        assert_eq!(elsewhere.ok(), Some(0), "each thread has its own");
    }
}
