//! Options that several programs share, and parsers of option values.

use std::time::Duration;

use clap::Args;
use tickcast_log::program::LogFormat;
use tickcast_transport::host::idle::Idle;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::prelude::*;

use crate::exit::ToolError;

/// The log on stderr.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Log filter: error, warn, info, debug, trace, or filters as in RUST_LOG.
    #[arg(long, global = true, default_value = "warn")]
    log: String,
    /// Format of log lines.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

impl LogArgs {
    /// Starts logging.
    ///
    /// # Errors
    /// Returns [`ToolError`] if the log's thread can't be started.
    pub fn start(&self) -> Result<(), ToolError> {
        let log = tickcast_log::program::stderr(EnvFilter::new(&self.log), self.log_format);
        let log = log.map_err(|source| ToolError::Host {
            what: "start the thread of the log",
            source,
        })?;
        tracing_subscriber::registry().with(log).init();
        Ok(())
    }
}

/// Parses a number from 0 to 1.
pub fn probability(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number"))?;
    // The range excludes NaN.
    if (0.0..=1.0).contains(&number) {
        return Ok(number);
    }
    Err("a probability is between 0 and 1; 0.01 is one in a hundred".into())
}

/// Parses a number above 0.
pub fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && f64::is_finite(number) => Ok(number),
        _ => Err(format!("{text:?} is not a number above 0")),
    }
}

/// Parses a number of seconds, with or without a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(number).map_err(|_| "a span of time is 0 or more seconds".into())
}

/// Parses `spin`, `yield` or `sleep:MICROSECONDS`.
pub fn idle(text: &str) -> Result<Idle, String> {
    let unknown =
        || format!("{text:?} is not a wait mode; give spin, yield, or sleep:MICROSECONDS");
    match (text, text.strip_prefix("sleep:")) {
        ("spin", _) => Ok(Idle::Spin),
        ("yield", _) => Ok(Idle::Yield),
        (_, Some(us)) => us
            .parse()
            .map(|us| Idle::Sleep { us })
            .map_err(|_| unknown()),
        _ => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_within_0_and_1() {
        assert_eq!(probability("0.25"), Ok(0.25));
        for wrong in ["-0.1", "1.5", "NaN", "1%"] {
            assert!(probability(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn idling_is_read_by_name() {
        assert_eq!(idle("spin"), Ok(Idle::Spin));
        assert_eq!(idle("yield"), Ok(Idle::Yield));
        assert_eq!(idle("sleep:50"), Ok(Idle::Sleep { us: 50 }));
        for wrong in ["sleep", "sleep:", "sleep:-1", "nap"] {
            assert!(idle(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_may_have_a_fraction_but_no_sign() {
        assert_eq!(seconds("2.5"), Ok(Duration::from_millis(2_500)));
        for wrong in ["-1", "NaN", "inf", "2s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
