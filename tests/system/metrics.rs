//! Metrics of a subscriber in a real run: they equal its counters, and Prometheus' own checker accepts them.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use tickcast_publisher::internal::http::ask;

use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{PageFormat, Stage};
use tickcast_test_support::{
    Follower, PATIENCE, Publisher, Running, binary, check_by_promtool, drive_to_end, endless,
    free_group, one_channel, program, signal, simulated, text, wait_for,
};

/// Returns the value of a series, by its name and labels behind the prefix of subscribers.
pub(crate) fn value(page: &str, series: &str) -> f64 {
    let series = format!("tickcast_subscriber_{series} ");
    let found = page.lines().find_map(|line| line.strip_prefix(&*series));
    let found = found.unwrap_or_else(|| panic!("no {series}in {page}"));
    found.parse().expect("a number")
}

/// Returns the value of a series of the channel `all`, with further labels.
fn of_channel(page: &str, name: &str, labels: &str) -> f64 {
    value(page, &format!("{name}{{channel=\"all\"{labels}}}"))
}

/// A running `tickcast listen` that serves its metrics.
pub(crate) struct Exporter {
    process: Running,
    pub(crate) address: SocketAddr,
}

impl Exporter {
    /// Returns the answer of its port.
    fn get(&self, path: &str) -> (u16, String) {
        ask(&self.address.into(), None, path, None, PATIENCE).expect("an answer")
    }

    /// Returns the page of its metrics.
    pub(crate) fn page(&self) -> String {
        self.get("/metrics").1
    }
}

/// Starts `tickcast listen --metrics` on the channel `all`.
pub(crate) fn listening(publisher: &Publisher) -> Exporter {
    let control = publisher.control.to_string();
    let mut command = listener(&control, "127.0.0.1:0");
    let mut process = Running::start(command.stdout(Stdio::null()));
    let stderr = process.child().stderr.take().expect("a pipe");
    let mut line = String::new();
    let mut log = BufReader::new(stderr);
    log.read_line(&mut line).expect("its first line");
    let address = line.trim().strip_prefix("metrics at http://");
    let address = address.and_then(|it| it.strip_suffix("/metrics")?.parse().ok());
    let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
    // A full pipe would stop it.
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    Exporter { process, address }
}

fn listener(control: &str, metrics: &str) -> Command {
    let connect = ["listen", "--connect", control, "--channel", "all"];
    let output = [
        "--format",
        "count",
        "--every",
        "3600",
        "--join-timeout",
        "600",
    ];
    let metrics = ["--metrics", metrics];
    program(
        binary("tickcast"),
        &[&connect[..], &output, &metrics].concat(),
    )
}

#[test]
fn subscriber_metrics_equal_its_counters_and_pass_promtool() {
    let publisher = Publisher::start(&one_channel(&[free_group()], simulated(20_000, 20_000, 1)));
    let faults = FaultConfig {
        seed: 5,
        drop: 0.02,
        ..FaultConfig::default()
    };
    let mut followers = vec![Follower::new(
        publisher.subscriber().channel("all").faults(faults),
    )];
    let before = followers[0].subscriber.monitor();
    assert_eq!(
        of_channel(&before.metrics_text(PageFormat::Prometheus), "epoch", ""),
        0.0,
        "every series exists from the start"
    );
    drive_to_end(&mut followers);
    let follower = &followers[0];
    let page = before.metrics_text(PageFormat::Prometheus);
    check_by_promtool(&page);
    let counters = follower.counters(0);
    for (name, labels, counter) in [
        ("delivered_records_total", "", &counters.delivered_records),
        ("received_bytes_total", "", &counters.received_bytes),
        (
            "missing_settled_datagrams_total",
            ",since=\"gap\",outcome=\"recovered\"",
            &counters.missing_recovered,
        ),
        (
            "dropped_datagrams_total",
            ",reason=\"duplicate\"",
            &counters.duplicates,
        ),
        (
            "repaired_datagrams_total",
            ",path=\"unicast\"",
            &counters.repairs_received,
        ),
    ] {
        assert_eq!(
            of_channel(&page, name, labels),
            counter.get() as f64,
            "{name}"
        );
    }
    assert!(counters.missing_recovered.get() > 0, "something was lost");
    assert_eq!(of_channel(&page, "ended", ""), 1.0);
    let channel = follower.subscriber.channels()[0].channel.expect("joined");
    let latency = follower.subscriber.latency(channel).expect("measured");
    for stage in Stage::ALL {
        let labels = format!(",stage=\"{}\"", stage.name());
        let count = of_channel(&page, "latency_seconds_count", &labels);
        assert_eq!(count, latency.stage(stage).len() as f64, "{labels}");
    }
    // Both sides are on one host, so their clocks are one.
    assert!(
        page.contains("\ntickcast_subscriber_clock_difference_seconds 0"),
        "{page}"
    );
    let open = before.metrics_text(PageFormat::OpenMetrics);
    assert!(open.ends_with("\n# EOF\n"), "{open}");
    assert!(open.contains("\n# TYPE tickcast_subscriber_latency_seconds histogram\n"));
    // The exemplar names a datagram of this epoch that was repaired.
    let repaired = open.lines().filter(|line| line.contains(" # {epoch=\""));
    let repaired: Vec<&str> = repaired.collect();
    let [bucket, counter] = &repaired[..] else {
        panic!("{repaired:?}")
    };
    assert!(bucket.contains("_latency_seconds_bucket{") && bucket.contains("stage=\"repair\""));
    assert!(counter.starts_with("tickcast_subscriber_missing_settled_datagrams_total{"));
    let epoch = of_channel(&page, "epoch", "");
    let last = of_channel(&page, "delivered_sequence", "");
    for line in repaired {
        let (_, exemplar) = line.split_once(" # {epoch=\"").expect("an exemplar");
        let (of, sequence) = exemplar.split_once("\",sequence=\"").expect("a sequence");
        let (sequence, _) = sequence.split_once('"').expect("its end");
        let sequence: f64 = sequence.parse().expect("a number");
        assert_eq!(of.parse::<f64>().expect("a number"), epoch);
        assert!((1.0..=last).contains(&sequence), "{line}");
    }
}

/// Its own port serves a listener's metrics, in both formats, to anybody who scrapes them.
#[test]
fn listener_serves_its_metrics_on_its_own_port() {
    let publisher = Publisher::start(&one_channel(&[free_group()], endless(2_000, 1)));
    let mut exporter = listening(&publisher);
    let delivered = || of_channel(&exporter.page(), "delivered_records_total", "");
    let before = wait_for("records", || {
        let delivered = delivered();
        (delivered > 0.0).then_some(delivered)
    });
    wait_for("more records", || (delivered() > before).then_some(()));
    let page = exporter.page();
    check_by_promtool(&page);
    assert_eq!(value(&page, "joined"), 1.0);
    assert_eq!(exporter.get("/healthz"), (200, "ok\n".to_owned()));
    assert_eq!(exporter.get("/status").0, 404);
    let busy = exporter.address.to_string();
    let refused = Running::start(&mut listener(&publisher.control.to_string(), &busy)).output();
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("can't listen at {busy}")), "{said}");
    signal(exporter.process.child().id(), "TERM");
    let ended = exporter.process.output();
    assert_eq!(ended.status.code(), Some(0));
    TcpListener::bind(exporter.address).expect("the port is free again");
}
