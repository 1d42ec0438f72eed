//! Errors as C gets them: a code below zero, and a text that its thread can ask for.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use thiserror::Error;
use tickcast_subscriber::{
    ChannelError, CommandError, FilterError, JoinError, SpawnError, SubscribeError,
};

/// What a call came to, where that is not a number of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// It was done.
    Ok = 0,
    /// An argument is null, no UTF-8, or out of range.
    Argument = -1,
    /// Header and library do not fit: a struct has another size than the library's.
    Abi = -2,
    /// That is no handle, or one of another kind.
    Handle = -3,
    /// The handle was freed, or what it stood for is gone: left, built, split, joined or ended.
    Freed = -4,
    /// Another thread uses the handle, or this is a callback of a call on it or of its thread.
    Busy = -5,
    /// The builder describes what can't be.
    Config = -6,
    /// No such channel, symbol, counter or number.
    Unknown = -7,
    /// The operating system refused.
    System = -8,
    /// The library failed within: please report it. The handle can only be freed.
    Panicked = -9,
    /// The callback asked the call, or the thread of ours that it runs on, to end.
    Stopped = -10,
    /// The callback of an earlier call asked it to end: the handle hands over nothing any more.
    Poisoned = -11,
}

/// What went wrong in a call from C.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A null pointer.
    #[error("`{what}` is NULL")]
    Null {
        /// The argument.
        what: &'static str,
    },
    /// A text that is none.
    #[error("`{what}` is not UTF-8: {text:?}")]
    Text {
        /// The argument.
        what: &'static str,
        /// Read as well as it can be.
        text: String,
    },
    /// A number that means nothing.
    #[error("`{what}` can't be {value}: {expected}")]
    Range {
        /// The argument.
        what: &'static str,
        /// As given.
        value: String,
        /// What it can be.
        expected: &'static str,
    },
    /// A setting of a builder was wrong, as its call has said already.
    #[error("{text}")]
    Setting {
        /// What that call gave.
        status: Status,
        /// In words.
        text: String,
    },
    /// A channel's setting where there is no channel.
    #[error("no channel was added yet: call tickcast_builder_channel first")]
    NoChannelYet,
    /// A struct of another size, or another version of the interface.
    #[error(
        "{what} is {theirs} in the header that this was compiled with, and {ours} in the library: \
         compile with the tickcast.h that came with the library"
    )]
    Abi {
        /// Which one.
        what: &'static str,
        /// In C.
        theirs: u64,
        /// Here.
        ours: u64,
    },
    /// A pointer that no function of ours gave.
    #[error("`{expected}` is no handle that this library gave")]
    NoHandle {
        /// The argument.
        expected: &'static str,
    },
    /// A handle of another kind.
    #[error("that handle is a {found}, and a {expected} is needed")]
    OtherKind {
        /// What it is.
        found: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A handle whose thing is gone.
    #[error("that {expected} was freed, or was used up by a call that ends it")]
    Freed {
        /// What it was taken for.
        expected: &'static str,
    },
    /// In use.
    #[error("another thread uses that {expected}: one at a time may")]
    InUse {
        /// What it is.
        expected: &'static str,
    },
    /// In use by the call that we are in.
    #[error("a callback may not use the {expected} that calls it: wait until that call returns")]
    WithinItself {
        /// What it is.
        expected: &'static str,
    },
    /// More handles than anybody needs.
    #[error("there are {count} handles already: free some")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// The description makes no sense.
    #[error(transparent)]
    Subscribe(#[from] SubscribeError),
    /// No such channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// No such filter.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A thread of ours did not do what it was asked.
    #[error(transparent)]
    Command(CommandError),
    /// No thread.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// There is nothing of that name or number.
    #[error("there is no {what} {name:?}: {known}")]
    Unknown {
        /// What was looked for.
        what: &'static str,
        /// As given.
        name: String,
        /// What there is.
        known: String,
    },
    /// Waiting failed.
    #[error("waiting failed: {0}")]
    Wait(std::io::Error),
    /// A callback did not want to go on.
    #[error(
        "the callback asked to end; what it was not given is gone, and the publisher was not told"
    )]
    Stopped,
    /// The callback of an earlier call did not want to go on.
    #[error(
        "an earlier callback asked to end: nothing more is handed over; free this, and build another"
    )]
    Poisoned,
    /// A second callback for log lines.
    #[error("log lines go to another callback already, until this process ends")]
    LogIsSet,
    /// We failed.
    #[error("the library failed within, please report it: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
}

impl Error {
    /// Its code.
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

/// The callback's wish to stop, as it passes through the subscriber: as a panic, which poisons it.
#[derive(Debug)]
pub(crate) struct Stop;

/// What `Stop` reads as at the end of a thread of ours.
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
    // A text never holds a NUL but where the other side wrote one.
    let text = error.to_string().replace('\0', " ");
    let last = CString::new(text).ok().map(|text| (error.status(), text));
    // A thread that is ending has nobody left to ask.
    let _ = LAST.try_with(|it| it.replace(last));
    error.status()
}

/// Runs a call from C; an error and a panic become texts to ask for.
fn caught<R>(call: impl FnOnce() -> Result<R, Error>) -> Result<R, Status> {
    // What a panic leaves behind is the handle's to judge, whose lock is poisoned then.
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
    text.unwrap_or("a value that is no text").to_owned()
}

/// A call that gives a number, or below zero a status.
pub(crate) fn number<N: From<i32>>(call: impl FnOnce() -> Result<N, Error>) -> N {
    caught(call).unwrap_or_else(|status| N::from(status as i32))
}

/// A call that gives nothing but its status.
pub(crate) fn status(call: impl FnOnce() -> Result<(), Error>) -> i32 {
    number(|| call().map(|()| 0))
}

/// A call that gives a handle, or null.
pub(crate) fn handle<H>(call: impl FnOnce() -> Result<*mut H, Error>) -> *mut H {
    caught(call).unwrap_or(std::ptr::null_mut())
}

/// What was wrong with the last call of this thread that failed, in words, until the next one that
/// fails. Empty when none has.
#[unsafe(no_mangle)]
pub extern "C" fn tickcast_last_error() -> *const c_char {
    let last = LAST.try_with(|it| it.borrow().as_ref().map(|(_, text)| text.as_ptr()));
    last.ok().flatten().unwrap_or(c"".as_ptr())
}

/// The TickcastStatus of that call: what a function that gives a handle can't say itself.
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
    fn a_panic_ends_at_the_border_and_leaves_its_words() {
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
