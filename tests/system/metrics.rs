//! Metrics of a subscriber in a real run: they equal its counters, and Prometheus' own checker accepts them.

use std::io::Write as _;
use std::process::{Command, Stdio};

use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{PageFormat, Stage};
use tickcast_test_support::{
    Follower, Publisher, drive_to_end, free_group, one_channel, simulated,
};

/// Returns the value of a series of the channel `all`, with further labels.
fn value(page: &str, name: &str, labels: &str) -> f64 {
    let series = format!("tickcast_subscriber_{name}{{channel=\"all\"{labels}}} ");
    let found = page.lines().find_map(|line| line.strip_prefix(&*series));
    let found = found.unwrap_or_else(|| panic!("no {series}in {page}"));
    found.parse().expect("a number")
}

/// Checks a page with promtool, where it is installed.
fn check(page: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let piped = promtool.stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut checker) = piped.spawn() else {
        let said =
            "SKIPPED: promtool is not here, so the page is not checked; `make setup` installs it";
        writeln!(std::io::stderr(), "\n{said}").expect("stderr");
        return;
    };
    let mut input = checker.stdin.take().expect("a pipe");
    input.write_all(page.as_bytes()).expect("it reads");
    drop(input);
    let said = checker.wait_with_output().expect("its verdict");
    let text = [said.stdout, said.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(said.status.success() && text.is_empty(), "{text}\n{page}");
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
        value(&before.metrics_text(PageFormat::Prometheus), "epoch", ""),
        0.0,
        "every series exists from the start"
    );
    drive_to_end(&mut followers);
    let follower = &followers[0];
    let page = before.metrics_text(PageFormat::Prometheus);
    check(&page);
    let counters = follower.counters(0);
    for (name, labels, counter) in [
        ("delivered_records_total", "", &counters.delivered_records),
        ("received_bytes_total", "", &counters.received_bytes),
        (
            "missing_settled_datagrams_total",
            ",outcome=\"recovered\"",
            &counters.missing_recovered,
        ),
        (
            "dropped_datagrams_total",
            ",reason=\"duplicate\"",
            &counters.duplicates,
        ),
        ("repaired_datagrams_total", "", &counters.repairs_received),
    ] {
        assert_eq!(value(&page, name, labels), counter.get() as f64, "{name}");
    }
    assert!(counters.missing_recovered.get() > 0, "something was lost");
    assert_eq!(value(&page, "ended", ""), 1.0);
    let channel = follower.subscriber.channels()[0].channel.expect("joined");
    let latency = follower.subscriber.latency(channel).expect("measured");
    for stage in Stage::ALL {
        let labels = format!(",stage=\"{}\"", stage.name());
        let count = value(&page, "latency_seconds_count", &labels);
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
}
