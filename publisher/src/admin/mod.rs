//! The admin port, which only shows: `/metrics` for Prometheus (text format 0.0.4), `/status` as JSON,
//! `/healthz`, `/readyz`, and on a standby `/standby`. Commands have endpoints of their own.

pub(crate) mod commands;
mod metrics;
pub(crate) mod monitor;
mod readiness;
pub mod summary;

use std::future::ready;
use std::sync::Arc;

use hyper::StatusCode;

use crate::admin::metrics::metrics;
use crate::admin::summary::PublisherSummary;
use crate::http::server::{Accepts, Answer, Answering, Asked, Handler};
use crate::http::table::Limits;
use crate::state::{Shared, thread};

/// Connections of the admin port.
pub(crate) const LIMITS: Limits = Limits {
    total: 64,
    per_peer: 16,
};

/// The pages of the admin port.
pub(crate) struct Pages(Arc<Shared>);

impl Pages {
    /// Shows this state, or the state after a promotion.
    pub(crate) const fn of(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    fn page(&self, path: &str) -> Answer {
        let now = self.0.current();
        match (path, &self.0.standby) {
            ("/metrics", _) => Answer::text(StatusCode::OK, metrics(now)),
            ("/healthz", _) => Answer::text(StatusCode::OK, "ok\n".into()),
            ("/readyz", _) => match &readiness::reasons(now, thread::now())[..] {
                [] => Answer::text(StatusCode::OK, "ready\n".into()),
                reasons => Answer::text(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n"),
            },
            ("/status", _) => Answer::json(StatusCode::OK, &PublisherSummary::of(now).json()),
            ("/standby", Some(standby)) => Answer::json(StatusCode::OK, &standby.json()),
            _ => Answer::text(
                StatusCode::NOT_FOUND,
                "try /metrics, /status, /healthz, /readyz, or on a standby /standby\n".into(),
            ),
        }
    }
}

impl Handler for Pages {
    fn accepts(&self) -> Accepts {
        Accepts::Gets
    }

    fn answer(&self, asked: Asked) -> Answering<'_> {
        Box::pin(ready(self.page(&asked.path)))
    }
}
