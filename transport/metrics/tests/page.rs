//! Pages as text, in both formats.

use tickcast_metrics::families::{PUBLISHER, STANDBY};
use tickcast_metrics::{Labels, Page, PageFormat};

fn page() -> Page {
    let mut page = Page::default();
    let place = |name| Labels::default().with("channel", name);
    for (name, value) in [("a\"} 1\nb\\", 3), ("c", 4)] {
        let place = place(name);
        page.add(&PUBLISHER, &place, "sealed_bytes", "Bytes.", value);
        page.add(&PUBLISHER, &place, "refused_window", "1.", value + 2);
        page.add(&PUBLISHER, &place, "refused_budget", "2.", value + 4);
    }
    let behind = "Microseconds behind (a gauge).";
    page.add(&STANDBY, &place("c"), "lag_us", behind, 1_500_000);
    page
}

#[test]
fn page_has_each_family_once_with_all_its_series() {
    let text = page().encode(PageFormat::Prometheus);
    let from = text.find("# HELP tickcast_publisher_sealed").unwrap();
    assert_eq!(
        &text[from..],
        r#"# HELP tickcast_publisher_sealed_bytes_total Bytes.
# TYPE tickcast_publisher_sealed_bytes_total counter
tickcast_publisher_sealed_bytes_total{channel="a\"} 1\nb\\"} 3
tickcast_publisher_sealed_bytes_total{channel="c"} 4
# HELP tickcast_publisher_repair_unanswered_sequences_total Sequences refused, by the reason that the subscriber is told, or cancelled with their connection.
# TYPE tickcast_publisher_repair_unanswered_sequences_total counter
tickcast_publisher_repair_unanswered_sequences_total{channel="a\"} 1\nb\\",reason="window"} 5
tickcast_publisher_repair_unanswered_sequences_total{channel="a\"} 1\nb\\",reason="budget"} 7
tickcast_publisher_repair_unanswered_sequences_total{channel="c",reason="window"} 6
tickcast_publisher_repair_unanswered_sequences_total{channel="c",reason="budget"} 8
# HELP tickcast_standby_lag_seconds Seconds behind.
# TYPE tickcast_standby_lag_seconds gauge
tickcast_standby_lag_seconds{channel="c"} 1.5
"#
    );
}

#[test]
fn open_metrics_page_states_units_and_ends() {
    let text = page().encode(PageFormat::OpenMetrics);
    for part in [
        "# TYPE tickcast_build info\ntickcast_build_info{version=\"",
        "# UNIT process_start_time_seconds seconds\nprocess_start_time_seconds ",
        "# TYPE tickcast_publisher_sealed_bytes counter\n# UNIT tickcast_publisher_sealed_bytes bytes\n\
         tickcast_publisher_sealed_bytes_total{",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.ends_with("1.5\n# EOF\n"), "{text}");
}

#[test]
fn format_follows_the_accept_header() {
    let prometheus = "application/openmetrics-text;version=1.0.0,text/plain;q=0.3";
    assert_eq!(PageFormat::accepted(prometheus), PageFormat::OpenMetrics);
    for other in ["", "*/*", "text/plain", "text/html,application/xml"] {
        assert_eq!(PageFormat::accepted(other), PageFormat::Prometheus);
    }
}
