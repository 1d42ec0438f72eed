//! The library's log lines for C, through one callback per process.

use std::ffi::{CString, c_char, c_void};
use std::fmt::Debug;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use tickcast_log::{Escaping, SiteLimits, Suppressed};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::arguments::{Context, range};
use crate::error::{Error, status};

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LogLevel {
    /// A failure that needs a person.
    Error = 1,
    /// A problem that the library works around.
    Warn = 2,
    /// A state changed: connections, transports, lines.
    Info = 3,
    /// Details of decisions.
    Debug = 4,
    /// Everything.
    Trace = 5,
}

/// Receives every log line: a TickcastLogLevel, the module, and the line. The texts are valid during the
/// call. Any thread of the library may call it, and several may at once. It must neither throw nor
/// call the library.
pub type OnLog = Option<
    unsafe extern "C-unwind" fn(
        context: *mut c_void,
        level: u32,
        target: *const c_char,
        line: *const c_char,
    ),
>;

/// Passes log lines to the callback.
struct ToCallback {
    on: unsafe extern "C-unwind" fn(*mut c_void, u32, *const c_char, *const c_char),
    context: Context,
    most: LevelFilter,
    spans: AtomicU64,
    began: Instant,
    limits: SiteLimits,
}

fn level(level: u32) -> Result<LevelFilter, Error> {
    const ALL: [(LogLevel, LevelFilter); 5] = [
        (LogLevel::Error, LevelFilter::ERROR),
        (LogLevel::Warn, LevelFilter::WARN),
        (LogLevel::Info, LevelFilter::INFO),
        (LogLevel::Debug, LevelFilter::DEBUG),
        (LogLevel::Trace, LevelFilter::TRACE),
    ];
    let found = ALL.into_iter().find(|(code, _)| *code as u32 == level);
    found.map_or_else(
        || range("level", level, "a TickcastLogLevel"),
        |(_, filter)| Ok(filter),
    )
}

const fn code(level: Level) -> LogLevel {
    match level {
        Level::ERROR => LogLevel::Error,
        Level::WARN => LogLevel::Warn,
        Level::INFO => LogLevel::Info,
        Level::DEBUG => LogLevel::Debug,
        Level::TRACE => LogLevel::Trace,
    }
}

/// A line under construction: the message, and the fields after it.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = match field.name() {
            "message" => &mut self.message,
            name => {
                self.fields += &format!(" {name}=");
                &mut self.fields
            }
        };
        // Debug: `Visit` provides other values in no other form. A `String` takes everything.
        let _ = Escaping::write(text, format_args!("{value:?}"));
    }
}

impl ToCallback {
    fn write(&self, metadata: &Metadata<'_>, text: String) {
        let text = text.replace('\0', " ");
        let texts = (CString::new(metadata.target()), CString::new(text));
        if let (Ok(target), Ok(text)) = texts {
            let level = code(*metadata.level()) as u32;
            // SAFETY: the caller promised that the callback can be called with this context, by any
            // thread, for the life of the process. The texts live until it returns. Exercised by
            // `c_program_follows_by_poll_split_and_run`.
            unsafe { (self.on)(self.context.0, level, target.as_ptr(), text.as_ptr()) };
        }
    }
}

impl Subscriber for ToCallback {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.most
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }

    fn event(&self, event: &Event<'_>) {
        if !self.limits.allow(event.metadata(), self.began.elapsed()) {
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        self.write(event.metadata(), line.message + &line.fields);
        // The library has no thread of its own for the sums: they come with the next line.
        for Suppressed { metadata, lines } in self.limits.take_suppressed() {
            let place = (
                metadata.file().unwrap_or_default(),
                metadata.line().unwrap_or_default(),
            );
            let text = format!(
                "{lines} log lines of {}:{} came too fast and were suppressed",
                place.0, place.1
            );
            self.write(metadata, text);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Relaxed).max(1))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Sets the callback of log lines up to this TickcastLogLevel, until the process ends. Without a callback
/// the library logs nothing. Returns TICKCAST_STATUS_BUSY when a callback is set already.
///
/// ```c
/// if (tickcast_set_log_callback(TICKCAST_LOG_LEVEL_INFO, on_log, NULL) < 0)
///     puts(tickcast_last_error());
/// ```
///
/// # Safety
/// `on` can be called with `context` by any thread until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tickcast_set_log_callback(
    log_level: u32,
    on: OnLog,
    context: *mut c_void,
) -> i32 {
    status(|| {
        let subscriber = ToCallback {
            on: on.ok_or(Error::Null { what: "on" })?,
            context: Context(context),
            most: level(log_level)?,
            spans: AtomicU64::new(1),
            began: Instant::now(),
            limits: SiteLimits::default(),
        };
        tracing::subscriber::set_global_default(subscriber).map_err(|_| Error::LogIsSet)
    })
}
