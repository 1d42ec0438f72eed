//! Collects the events of the audit trail, in order.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Returns the events emitted while `act` ran on this thread, one per line: `name=value` for each field.
pub(crate) fn audited(act: impl FnOnce()) -> Vec<String> {
    let lines = Arc::default();
    tracing::subscriber::with_default(Trail(Arc::clone(&lines)), act);
    std::mem::take(&mut *lines.lock().unwrap())
}

/// Returns the names of the events, without those of memory.
pub(crate) fn names(lines: &[String]) -> Vec<&str> {
    let names = lines.iter().map(|line| {
        let name = line.strip_prefix("what=").unwrap();
        name.split(' ').next().unwrap()
    });
    names.filter(|name| !name.starts_with("memory")).collect()
}

struct Trail(Arc<Mutex<Vec<String>>>);

impl Subscriber for Trail {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "audit"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0.trim_end().to_owned());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.0, "{field}={value} ").unwrap();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}
