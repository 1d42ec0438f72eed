//! A limit for the lines of each call site.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tickcast_reliability::types::Nanos;
use tracing::Metadata;
use tracing::callsite::Identifier;

use super::limit::LogLimit;

/// Lines of one call site at once: as many subscribers may join together.
const BURST: u64 = 400;
/// Lines of one call site sustained.
const PER_SECOND: f64 = 1.0;

/// Bounds the lines of each call site: 400 at once, then one a second. A number of call sites is
/// compiled in, so memory is bounded.
#[derive(Debug, Default)]
pub struct SiteLimits {
    sites: Mutex<HashMap<Identifier, Site>>,
}

#[derive(Debug)]
struct Site {
    metadata: &'static Metadata<'static>,
    limit: LogLimit,
}

/// Lines of one call site that were suppressed since the last report.
#[derive(Clone, Copy, Debug)]
pub struct Suppressed {
    /// The call site.
    pub metadata: &'static Metadata<'static>,
    /// Their number.
    pub lines: u64,
}

impl SiteLimits {
    /// Returns whether a call site may log a line at `now`, on a monotonic clock. Counts the line as
    /// suppressed otherwise.
    pub fn allow(&self, metadata: &'static Metadata<'static>, now: Duration) -> bool {
        let now = Nanos(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let site = sites.entry(metadata.callsite()).or_insert_with(|| Site {
            metadata,
            limit: LogLimit::new(BURST, PER_SECOND),
        });
        site.limit.allow_at(now)
    }

    /// Returns the suppressed lines of each call site since the last call.
    pub fn take_suppressed(&self) -> Vec<Suppressed> {
        let sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
        let suppressed = sites.values().filter_map(|site| {
            let lines = site.limit.take_suppressed();
            let metadata = site.metadata;
            (lines > 0).then_some(Suppressed { metadata, lines })
        });
        suppressed.collect()
    }
}
