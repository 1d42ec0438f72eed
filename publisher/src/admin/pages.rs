//! The pages of the admin port: `/` for browsers, `/metrics` for Prometheus (text format 0.0.4, or
//! OpenMetrics where the request accepts it), `/status`, `/losses` and `/config` as JSON, `/healthz`,
//! `/readyz`, and on a standby `/standby`. `/events` repeats some of them as server-sent events, for the page
//! at `/`.
//!
//! Strangers decide how many subscribers a page lists and how often it is requested. So each page is rendered
//! at most ten times a second, and all its readers share the bytes.

use std::cell::RefCell;
use std::future::ready;
use std::sync::Arc;

use hyper::StatusCode;
use tickcast_http::Renders;
use tickcast_http::events::SentEvent;
use tickcast_http::server::{Accepts, Answer, AnswerPage, Answering, Asked, Handler};
use tickcast_http::table::Limits;
use tickcast_metrics::PageFormat;
use tickcast_reliability::types::Now;

use crate::admin::metrics::metrics;
use crate::admin::readiness;
use crate::admin::summary::PublisherSummary;
use crate::state::{Shared, thread};

/// Connections of the admin port.
pub(crate) const LIMITS: Limits = Limits {
    total: 64,
    per_peer: 16,
};

/// The page for browsers. It loads nothing but `/events`.
const BROWSERS: &str = include_str!("page.html");
/// Allows the page its own style and script, by their SHA-256.
const POLICY: &str = "default-src 'none'; style-src 'sha256-vo/UnlIhV1hYS4rZFhb2BFrWStVOzPNyFAhh38xEJew='; script-src 'sha256-7lIwBYfoC/uDWOBlRrNv1+wV6wC7auFNmAE9IR8akoc='; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The pages whose bodies are events, and whether each snapshot sends them. The last one comes when the
/// others are known.
const EVENTS: [(&str, bool); 3] = [("/readyz", false), ("/losses", false), ("/status", true)];

/// The path of a page, and how it is rendered; `None` if this publisher has no such page.
type Rendering = (&'static str, fn(&Shared, Now) -> Option<AnswerPage>);

/// Stands for the metrics in OpenMetrics. No path of a request equals it.
const OPEN_METRICS: &str = "OpenMetrics";

const PAGES: [Rendering; 8] = [
    ("/metrics", |shared, _| {
        Some(metrics_page(shared, PageFormat::Prometheus))
    }),
    (OPEN_METRICS, |shared, _| {
        Some(metrics_page(shared, PageFormat::OpenMetrics))
    }),
    ("/status", |shared, _| {
        let summary = PublisherSummary::of(shared.current());
        Some(AnswerPage::json(StatusCode::OK, summary.json()))
    }),
    ("/losses", |shared, _| {
        Some(AnswerPage::json(
            StatusCode::OK,
            &losses_of(shared.current()),
        ))
    }),
    ("/config", |shared, _| {
        let config = shared.current().config();
        (!config.is_null()).then(|| AnswerPage::json(StatusCode::OK, &config))
    }),
    ("/standby", |shared, _| {
        let standby = shared.standby.as_ref()?;
        Some(AnswerPage::json(StatusCode::OK, &standby.json()))
    }),
    ("/readyz", |shared, now| {
        Some(match &readiness::reasons(shared.current(), now)[..] {
            [] => AnswerPage::text(StatusCode::OK, "ready\n"),
            reasons => AnswerPage::text(StatusCode::SERVICE_UNAVAILABLE, reasons.join("\n") + "\n"),
        })
    }),
    ("/healthz", |_, _| {
        Some(AnswerPage::text(StatusCode::OK, "ok\n"))
    }),
];

fn metrics_page(shared: &Shared, format: PageFormat) -> AnswerPage {
    let text = metrics(shared.current(), format).encode(format);
    AnswerPage::new(StatusCode::OK, format.content_type(), text)
}

fn losses_of(shared: &Shared) -> serde_json::Value {
    // The repair thread waits for this lock, so it is released before anything is formatted.
    let losses = shared.losses().list();
    serde_json::json!({ "name": shared.name, "epoch": shared.epoch, "losses": losses })
}

/// The pages of a publisher.
pub(crate) struct Pages {
    shared: Arc<Shared>,
    renders: RefCell<[Renders; PAGES.len()]>,
}

impl Pages {
    /// Shows this state, or the state after a promotion.
    pub(crate) fn of(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            renders: RefCell::default(),
        }
    }

    fn page(&self, path: &str, now: Now) -> AnswerPage {
        if path == "/" {
            return AnswerPage::html(BROWSERS, POLICY);
        }
        let place = PAGES.iter().position(|(known, _)| *known == path);
        let page = place.and_then(|place| {
            let (_, render) = PAGES[place];
            self.renders.borrow_mut()[place].get(now.monotonic, || render(&self.shared, now))
        });
        page.unwrap_or_else(|| {
            let text = "try / in a browser, /metrics, /status, /losses, /config, /events, /healthz, /readyz, \
                        or on a standby /standby\n";
            AnswerPage::text(StatusCode::NOT_FOUND, text)
        })
    }
}

impl Handler for Pages {
    fn accepts(&self) -> Accepts {
        Accepts::Gets
    }

    fn answer(&self, asked: Asked) -> Answering<'_> {
        let path = match &asked.path[..] {
            "/events" => return Box::pin(ready(Answer::events())),
            "/metrics" if PageFormat::accepted(&asked.accept) == PageFormat::OpenMetrics => {
                OPEN_METRICS
            }
            path => path,
        };
        Box::pin(ready(Answer::from(self.page(path, thread::now()))))
    }

    fn snapshot(&self) -> Vec<SentEvent> {
        let now = thread::now();
        let event = |(path, is_repeated): (&'static str, bool)| SentEvent {
            name: &path[1..],
            body: self.page(path, now).body().clone(),
            is_repeated,
        };
        EVENTS.map(event).into()
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use sha2::{Digest, Sha256};
    use tickcast_reliability::types::{Epoch, Nanos};

    use super::*;

    /// Returns the contents of the only element of this name.
    fn element<'a>(page: &'a str, name: &str) -> &'a str {
        let (_, rest) = page.split_once(&format!("\n<{name}")).unwrap();
        let (_, rest) = rest.split_once('>').unwrap();
        let (content, rest) = rest.split_once(&format!("</{name}>")).unwrap();
        assert!(!rest.contains(&format!("<{name}")), "a second {name}");
        content
    }

    #[test]
    fn browsers_page_may_run_its_own_script_and_style_alone() {
        for name in ["style", "script"] {
            let hash = Sha256::digest(element(BROWSERS, name));
            let source = format!("{name}-src 'sha256-{}'", BASE64_STANDARD.encode(hash));
            assert!(POLICY.contains(&source), "POLICY needs {source}");
        }
        assert!(BROWSERS.len() <= 50 << 10);
        for foreign in [
            "https://",
            "src=",
            "@import",
            "url(",
            " style=",
            " onclick",
            "innerHTML",
            "eval(",
        ] {
            assert!(!BROWSERS.contains(foreign), "{foreign}");
        }
    }

    fn pages() -> Pages {
        let none = (Vec::new(), Vec::new());
        let shared = Shared::new(
            "a".into(),
            Epoch(5),
            none.0,
            none.1,
            Arc::default(),
            Nanos::ZERO,
        );
        Pages::of(Arc::new(shared))
    }

    #[test]
    fn snapshot_shares_the_bytes_of_its_pages() {
        let pages = pages();
        for event in pages.snapshot() {
            let path = format!("/{}", event.name);
            // At no time is a page too old.
            let page = pages.page(&path, Now::default());
            assert_eq!(event.body.as_ptr(), page.body().as_ptr(), "{path}");
            assert_eq!(event.is_repeated, event.name == "status");
        }
    }

    #[test]
    fn readers_share_the_bytes_of_a_page() {
        let pages = pages();
        let now = thread::now();
        for path in ["/metrics", "/status", "/losses", "/readyz"] {
            let (first, second) = (pages.page(path, now), pages.page(path, now));
            assert_eq!(first.status(), StatusCode::OK);
            assert_eq!(first.body().as_ptr(), second.body().as_ptr());
        }
        for path in ["/standby", "/page", "/nothing"] {
            assert_eq!(pages.page(path, now).status(), StatusCode::NOT_FOUND);
        }
    }
}
