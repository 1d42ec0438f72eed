//! The threads beside a subscriber: they log, report and serve what it observes, and deliver nothing.

use std::sync::Arc;

use tickcast_hlog::{IntervalLog, IntervalLogging};
use tickcast_http::MetricsPort;
use tickcast_http::hosts::Hosts;
use tickcast_transport::host::periodic_thread::PeriodicThread;

use crate::config::SubscriberBuilder;
use crate::error::SubscribeError;
use crate::observe::reports::{EVERY, Reporter};
use crate::observe::{Monitor, Shared};

/// The threads that were asked for. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct HelperThreads {
    _interval_logging: Option<IntervalLogging>,
    _latency_reporting: Option<PeriodicThread>,
    _metrics_port: Option<MetricsPort>,
}

impl HelperThreads {
    /// Starts the threads that the builder asks for.
    ///
    /// # Errors
    /// Returns [`SubscribeError`] if a thread can't be started, or if the metrics can't be served.
    pub(crate) fn start(
        builder: &SubscriberBuilder,
        interval_log: Option<IntervalLog>,
        shared: &Arc<Shared>,
    ) -> Result<Self, SubscribeError> {
        Ok(Self {
            _interval_logging: start_interval_log(builder, interval_log, shared)?,
            _latency_reporting: start_latency_reports(builder, shared)?,
            _metrics_port: start_metrics_port(builder, shared)?,
        })
    }
}

fn start_interval_log(
    builder: &SubscriberBuilder,
    log: Option<IntervalLog>,
    shared: &Arc<Shared>,
) -> Result<Option<IntervalLogging>, SubscribeError> {
    let (Some((_, interval)), Some(log)) = (&builder.interval_log, log) else {
        return Ok(None);
    };
    let shared = Arc::clone(shared);
    let failures = Arc::clone(&shared.interval_log_failures);
    let totals = move || (shared.latency_series(), shared.clock.offset());
    let started = IntervalLogging::start(log, *interval, failures, totals);
    let of = "interval log";
    (started.map(Some)).map_err(|source| SubscribeError::Thread { of, source })
}

fn start_latency_reports(
    builder: &SubscriberBuilder,
    shared: &Arc<Shared>,
) -> Result<Option<PeriodicThread>, SubscribeError> {
    if !builder.reports_latency() {
        return Ok(None);
    }
    let mut reporter = Reporter::new(Arc::clone(shared));
    let work = move || reporter.report();
    let started = PeriodicThread::start("latency-reports", EVERY, work);
    let of = "latency reports";
    (started.map(Some)).map_err(|source| SubscribeError::Thread { of, source })
}

fn start_metrics_port(
    builder: &SubscriberBuilder,
    shared: &Arc<Shared>,
) -> Result<Option<MetricsPort>, SubscribeError> {
    let Some(address) = builder.metrics_address() else {
        return Ok(None);
    };
    let monitor = Monitor {
        shared: Arc::clone(shared),
    };
    let page = move |format| monitor.metrics_text(format);
    let hosts = Hosts::new(builder.metrics_hosts());
    let port = MetricsPort::open(address, hosts, page);
    let port = port.map_err(|source| SubscribeError::MetricsPort { address, source })?;
    // Nobody else sets it.
    let _ = shared.metrics_address.set(port.address());
    Ok(Some(port))
}
