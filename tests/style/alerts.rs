//! The alert rules and the dashboard use metrics and labels that exist, and OPERATIONS.md has a paragraph
//! on each alert. Where `promtool` is installed, it runs the tests of the rules.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::metrics::families::{FedBy, PARTS};
use crate::source::{pattern, root};

const RULES: &str = "configs/alerts.yml";
const TESTS: &str = "configs/alerts.test.yml";
const DASHBOARD: &str = "configs/grafana.json";
const RUNBOOK: &str = "docs/OPERATIONS.md";

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path));
    text.unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The first capture of each match.
fn all(regex: &str, text: &str) -> Vec<String> {
    let found = pattern(regex);
    let found = found.captures_iter(text);
    found.map(|found| found[1].to_owned()).collect()
}

/// Metrics of an expression that no table has, and values of labels that no counter has.
fn unknown(expression: &str) -> Vec<String> {
    let mut found = Vec::new();
    let metric = pattern(r"\b(tickcast_\w+)(?:\{([^}]*)\})?");
    let matcher = pattern(r#"(\w+)(=~?)"([^"]*)""#);
    let metrics = metric.captures_iter(expression);
    for metric in metrics.filter(|metric| &metric[1] != "tickcast_build_info") {
        let family = PARTS.iter().find_map(|part| {
            let name = metric[1].strip_prefix(part.prefix)?;
            let mut families = part.families.iter();
            families.find(|family| match family.feed {
                FedBy::Histograms(_) => name.strip_suffix("_bucket") == Some(family.name),
                _ => family.name == name,
            })
        });
        let Some(family) = family else {
            found.push(metric[1].to_owned());
            continue;
        };
        let FedBy::By { counters, .. } = family.feed else {
            continue;
        };
        let known: Vec<_> = counters.iter().flat_map(|(_, labels)| *labels).collect();
        let labels = metric.get(2).map_or("", |labels| labels.as_str());
        for matcher in matcher.captures_iter(labels) {
            let label = &matcher[1];
            // Another label is that of a place, and so are the further endpoints.
            if label == "endpoint" || known.iter().all(|(known, _)| *known != label) {
                continue;
            }
            let is_value = |value: &&str| known.contains(&&(label, *value));
            let wrong = matcher[3].split('|').filter(|value| !is_value(value));
            found.extend(wrong.map(|value| format!("{}: {label}={value}", family.name)));
        }
    }
    found
}

#[test]
fn alerts_use_known_metrics_have_paragraphs_and_tests() {
    let (rules, tests, runbook) = (read(RULES), read(TESTS), read(RUNBOOK));
    let alerts = all(r"(?m)^ +- alert: (\w+)$", &rules);
    let expressions = all(r"(?m)^ +expr: '(.*)'$", &rules);
    assert!(alerts.len() >= 15 && alerts.len() == expressions.len());
    let wrong: Vec<String> = expressions.iter().flat_map(|it| unknown(it)).collect();
    assert_eq!(wrong, Vec::<String>::new(), "{RULES}");
    for alert in &alerts {
        let link = format!("runbook: {RUNBOOK}#{}\n", alert.to_lowercase());
        assert!(rules.contains(&link), "{alert} has no link");
        let heading = format!("\n#### {alert}\n\n");
        let paragraph = runbook.split_once(&heading).map(|(_, rest)| rest);
        let first = paragraph.and_then(|it| it.lines().next());
        let is_text = first.is_some_and(|it| it.len() > 40 && !it.starts_with('#'));
        assert!(is_text, "{alert} has no paragraph in {RUNBOOK}");
        for name in [format!("{alert} fires"), format!("{alert} is quiet")] {
            assert!(tests.contains(&format!("name: {name}\n")), "{name}");
        }
    }
    let known: BTreeSet<&String> = alerts.iter().collect();
    let described = all(r"(?m)^#### (Tickcast\w+)$", &runbook);
    assert!(described.iter().all(|alert| known.contains(alert)));
}

#[test]
fn unknown_metrics_and_values_of_labels_are_found() {
    let known =
        "rate(tickcast_publisher_repair_unanswered_sequences_total{reason=~\"window|budget\"}[1m])";
    assert_eq!(unknown(known), Vec::<String>::new());
    assert_eq!(unknown(&known.replace("budget", "bribe")).len(), 1);
    assert_eq!(unknown(&known.replace("_total", "")).len(), 1);
    assert_eq!(
        unknown("tickcast_standby_lag_us > 5"),
        ["tickcast_standby_lag_us"]
    );
}

/// The queries of the dashboard.
fn queries() -> Vec<String> {
    let found = all(r#"(?m)^ +"expr": "(.*)",$"#, &read(DASHBOARD));
    found.iter().map(|it| it.replace("\\\"", "\"")).collect()
}

#[test]
fn dashboard_queries_use_known_metrics() {
    let queries = queries();
    let panels = all(r#"(?m)^ +"type": "(timeseries|stat)",$"#, &read(DASHBOARD));
    assert!(queries.len() >= panels.len() && panels.len() >= 20);
    let wrong: Vec<String> = queries.iter().flat_map(|it| unknown(it)).collect();
    assert_eq!(wrong, Vec::<String>::new(), "{DASHBOARD}");
    let of_tickcast = |query: &String| query.contains("tickcast_") || query.contains("process_");
    assert!(queries.iter().all(of_tickcast), "{queries:#?}");
}

#[test]
fn alert_rules_pass_their_tests_by_promtool() {
    // As rules, the queries of the dashboard are checked too.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard.yml");
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (n, query) in queries().iter().enumerate() {
        let query = query
            .replace("$__rate_interval", "1m")
            .replace("$instance", ".*");
        rules += &format!("      - record: query_{n}\n        expr: '{query}'\n");
    }
    std::fs::write(&file, rules).unwrap();
    let run = |arguments: &[&str]| {
        let mut promtool = Command::new("promtool");
        promtool.current_dir(root().join("configs")).args(arguments);
        promtool.output()
    };
    let Ok(checked) = run(&["check", "rules", "alerts.yml"]) else {
        // To stderr itself: the test harness captures the output of a passing test.
        let said = "SKIPPED: promtool is not here, so the alert rules are not tested; `make setup` installs it";
        writeln!(std::io::stderr(), "\n{said}").unwrap();
        return;
    };
    let tested = run(&["test", "rules", "alerts.test.yml"]).unwrap();
    let queried = run(&["check", "rules", file.to_str().unwrap()]).unwrap();
    for output in [checked, tested, queried] {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{said}");
    }
}
