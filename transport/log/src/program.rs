//! The log of a program on standard error.

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::FilterExt;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::{Context, Filter, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::escape::Escaping;
use super::site_limits::SiteLimits;

/// Interval of the sums of suppressed lines.
const SUMS_EVERY: Duration = Duration::from_secs(1);

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Returns the log on standard error as a layer, and starts the thread that reports the sums of
/// suppressed lines. Colours are for terminals.
///
/// # Errors
/// That of the system when the thread can't be started.
pub fn stderr<S, F>(filter: F, format: LogFormat) -> io::Result<impl Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    F: Filter<S> + Send + Sync + 'static,
{
    let limits = Arc::new(SiteLimits::default());
    let sums = limits.clone();
    let thread = std::thread::Builder::new().name("log".into());
    thread.spawn(move || {
        loop {
            std::thread::sleep(SUMS_EVERY);
            report_suppressed(&sums);
        }
    })?;
    Ok(layer(
        filter,
        format,
        limits,
        io::stderr,
        io::stderr().is_terminal(),
    ))
}

/// Logs the sum of each call site with suppressed lines.
fn report_suppressed(limits: &SiteLimits) {
    for suppressed in limits.take_suppressed() {
        let metadata = suppressed.metadata;
        tracing::warn!(
            lines = suppressed.lines,
            module = metadata.target(),
            file = metadata.file(),
            line = metadata.line(),
            "log lines of one kind come too fast, and some were suppressed"
        );
    }
}

fn layer<S, F, W>(
    filter: F,
    format: LogFormat,
    limits: Arc<SiteLimits>,
    writer: W,
    is_terminal: bool,
) -> impl Layer<S> + Send + Sync
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    F: Filter<S> + Send + Sync + 'static,
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(is_terminal)
        .with_writer(writer)
        .fmt_fields(TextFields);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.event_format(JsonLines).boxed(),
    };
    lines.with_filter(filter.and(Limited {
        limits,
        began: Instant::now(),
    }))
}

/// Lets the lines pass that their call site may log.
struct Limited {
    limits: Arc<SiteLimits>,
    began: Instant,
}

impl<S> Filter<S> for Limited {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // The sums have one call site for all others, so it is not limited.
        metadata.target() == module_path!() || self.limits.allow(metadata, self.began.elapsed())
    }
}

/// Fields of a line of text: the message, then `name=value`.
struct TextFields;

impl<'w> FormatFields<'w> for TextFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut text = Text {
            writer,
            is_first: true,
            result: Ok(()),
        };
        fields.record(&mut text);
        text.result
    }
}

struct Text<'w> {
    writer: Writer<'w>,
    is_first: bool,
    result: fmt::Result,
}

impl Text<'_> {
    fn put(&mut self, field: &Field, value: fmt::Arguments<'_>) -> fmt::Result {
        if !std::mem::take(&mut self.is_first) {
            self.writer.write_char(' ')?;
        }
        if field.name() != "message" {
            write!(self.writer, "{}=", field.name())?;
        }
        Escaping::write(&mut self.writer, value)
    }
}

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_ok() {
            // Debug: a `Visit` has no other form of a value. A string stands in quotes.
            self.result = self.put(field, format_args!("{value:?}"));
        }
    }
}

/// One JSON object per line: time, level, fields and module.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = Json::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let line = json!({
            "timestamp": time,
            "level": metadata.level().as_str(),
            "fields": fields.0,
            "target": metadata.target(),
        });
        writeln!(writer, "{line}")
    }
}

#[derive(Default)]
struct Json(Map<String, Value>);

impl Json {
    fn text(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let mut text = String::new();
        // A string takes everything.
        if Escaping::write(&mut text, value).is_ok() {
            self.0.insert(field.name().into(), text.into());
        }
    }
}

impl Visit for Json {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Debug: a `Visit` has no other form of a value.
        self.text(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().into(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().into(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Mutex;

    use tracing_subscriber::EnvFilter;
    use tracing_subscriber::prelude::*;

    use super::*;

    /// Collects what is written.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines that `run` logs, and the limits.
    fn logged(format: LogFormat, run: impl Fn()) -> (Vec<String>, Arc<SiteLimits>) {
        let written = Written::default();
        let to = written.clone();
        let limits = Arc::new(SiteLimits::default());
        let filter = EnvFilter::new("info");
        let layer = layer(filter, format, limits.clone(), move || to.clone(), false);
        let log = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(log, || {
            run();
            report_suppressed(&limits);
        });
        let bytes = std::mem::take(&mut *written.0.lock().unwrap());
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{text:?}");
        (text.lines().map(ToOwned::to_owned).collect(), limits)
    }

    const FORGED: &str = "a\nERROR forged\x1b[31m";

    fn hostile() {
        tracing::info!(name = FORGED, shown = %FORGED, count = 3, "a name is {FORGED}");
        tracing::debug!("below the level");
    }

    #[test]
    fn text_line_escapes_what_a_peer_chose() {
        let (lines, _) = logged(LogFormat::Text, hostile);
        let [line] = &lines[..] else {
            panic!("one line: {lines:?}");
        };
        assert!(!line.contains('\x1b'), "{line}");
        let escaped = r"a\nERROR forged\u{1b}[31m";
        for part in [
            &format!("a name is {escaped}"),
            &format!("name=\"{escaped}\""),
            &format!("shown={escaped}"),
            "count=3",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn json_line_escapes_what_a_peer_chose() {
        let (lines, _) = logged(LogFormat::Json, hostile);
        let [line] = &lines[..] else {
            panic!("one line: {lines:?}");
        };
        let line: Value = serde_json::from_str(line).unwrap();
        let escaped = r"a\nERROR forged\u{1b}[31m";
        let fields = json!({
            "message": format!("a name is {escaped}"), "name": escaped, "shown": escaped, "count": 3,
        });
        assert_eq!(line["fields"], fields);
        assert_eq!(
            (&line["level"], &line["target"]),
            (&json!("INFO"), &json!(module_path!()))
        );
        assert!(line["timestamp"].as_str().unwrap().starts_with("20"));
    }

    #[test]
    fn flood_is_cut_and_its_sum_reported() {
        const LINES: u64 = 5_000;
        let (lines, limits) = logged(LogFormat::Json, || {
            for peer in 0..LINES {
                tracing::warn!(peer, "refused");
            }
            tracing::warn!("of another kind");
        });
        let lines: Vec<Value> = lines
            .iter()
            .map(|it| serde_json::from_str(it).unwrap())
            .collect();
        let count = |text: &str| {
            lines
                .iter()
                .filter(|it| it["fields"]["message"] == text)
                .count()
        };
        assert_eq!(count("of another kind"), 1);
        let logged = count("refused") as u64;
        // A slow machine earns some more lines meanwhile.
        assert!((400..LINES).contains(&logged), "{logged} lines");
        let sum = &lines.last().unwrap()["fields"];
        assert_eq!(
            sum["lines"],
            LINES - logged,
            "each line is logged or counted"
        );
        assert_eq!(
            (&sum["module"], &sum["file"]),
            (&json!(module_path!()), &json!(file!()))
        );
        assert!(limits.take_suppressed().is_empty(), "reported once");
    }
}
