//! A port that serves metrics of another part of the process.

use std::cell::RefCell;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, JoinHandle};

use hyper::StatusCode;
use tickcast_metrics::PageFormat;
use tickcast_transport_base::host::clock::{Clock, SystemClock};

use crate::hosts::Hosts;
use crate::renders::Renders;
use crate::server::{Accepts, Answer, AnswerPage, Answering, Asked, Endpoint, Handler, Server};
use crate::table::Limits;

/// Connections of the port.
const LIMITS: Limits = Limits {
    total: 16,
    per_peer: 8,
};

/// Serves `GET /metrics` and `GET /healthz` on a thread of its own, until it is dropped.
///
/// ```
/// use tickcast_http::hosts::Hosts;
/// use tickcast_http::{EndpointAddress, MetricsPort, ask};
/// let page = |_format| "up 1\n".to_owned();
/// let port = MetricsPort::open("127.0.0.1:0".parse()?, Hosts::new(&[]), page)?;
/// let wait = std::time::Duration::from_secs(10);
/// let address = EndpointAddress::from(port.address());
/// assert_eq!(ask(&address, None, "/metrics", None, wait)?, (200, "up 1\n".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MetricsPort {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsPort {
    /// Listens at this address under these names; with port 0 the system chooses. `metrics` returns the page
    /// in a format, and runs on the port's thread, at most ten times a second.
    ///
    /// # Errors
    /// Returns the system's error if the address can't be used, or if no thread can be started.
    pub fn open(
        address: SocketAddr,
        hosts: Hosts,
        metrics: impl Fn(PageFormat) -> String + Send + 'static,
    ) -> io::Result<Self> {
        let server = Server::new()?;
        let (listener, address) = server.port(address)?;
        let endpoint = Endpoint {
            name: "metrics port",
            listener,
            limits: LIMITS,
            hosts,
            token: None,
            counters: Arc::default(),
            handler: Box::new(Metrics {
                render: Box::new(metrics),
                renders: RefCell::default(),
            }),
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = Builder::new().name("metrics".into()).spawn(move || {
            if server.run(vec![endpoint], || over.load(Relaxed)).is_err() {
                tracing::error!("the metrics port failed; nobody serves the metrics any more");
            }
        })?;
        Ok(Self {
            address,
            is_over,
            thread: Some(thread),
        })
    }

    /// Returns the address, with the port that the system chose.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsPort {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The pages of the port.
struct Metrics {
    render: Box<dyn Fn(PageFormat) -> String + Send>,
    /// By format.
    renders: RefCell<[Renders; 2]>,
}

impl Metrics {
    fn page(&self, format: PageFormat) -> Option<AnswerPage> {
        let now = SystemClock.now();
        let place = usize::from(format == PageFormat::OpenMetrics);
        self.renders.borrow_mut()[place].get(now, || {
            let text = (self.render)(format);
            Some(AnswerPage::new(StatusCode::OK, format.content_type(), text))
        })
    }
}

impl Handler for Metrics {
    fn accepts(&self) -> Accepts {
        Accepts::Gets
    }

    fn answer(&self, asked: Asked) -> Answering<'_> {
        let page = match &asked.path[..] {
            "/metrics" => self.page(PageFormat::accepted(&asked.accept)),
            "/healthz" => Some(AnswerPage::text(StatusCode::OK, "ok\n")),
            _ => None,
        };
        let page = page.unwrap_or_else(|| {
            AnswerPage::text(StatusCode::NOT_FOUND, "try /metrics or /healthz\n")
        });
        Box::pin(ready(Answer::from(page)))
    }
}
