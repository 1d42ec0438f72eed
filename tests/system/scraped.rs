//! Prometheus scrapes a real run: each query of the dashboard and each alert rule finds the series that it
//! names.

use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use regex::Regex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_publisher::internal::http::ask;
use tickcast_subscriber::ChannelBuilder;
use tickcast_test_support::{
    Follower, PATIENCE, Publisher, check_by_promtool, drive, free_address, free_group, one_channel,
};

use crate::metrics::{listening, value};
use crate::standby::pair::{loses, pair, patient, until_it_mirrors};

/// Scrapes of each process before the queries are asked. A rate needs two.
const SCRAPES: f64 = 3.0;

fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../configs")
        .join(name)
}

/// A running Prometheus.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts one that scrapes these processes each second; `None` where it is not installed.
    fn start(jobs: &[(&str, Vec<SocketAddr>)]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let job = |(name, targets): &(&str, Vec<SocketAddr>)| {
            let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
            json!({ "job_name": name, "static_configs": [{ "targets": targets }] })
        };
        // JSON is YAML too.
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [config("alerts.yml").canonicalize().expect("the rules")],
            "scrape_configs": jobs.iter().map(job).collect::<Vec<_>>(),
        });
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config.to_string()).expect("its config");
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut command = Command::new("prometheus");
        command
            .arg(option("config.file", &file))
            .arg(option("storage.tsdb.path", &folder.path().join("data")))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().ok()?;
        let mut log = BufReader::new(child.stderr.take().expect("a pipe"));
        let (mut line, mut said) = (String::new(), String::new());
        let address = loop {
            line.clear();
            let read = log.read_line(&mut line).expect("its log");
            said += &line;
            assert!(read > 0, "Prometheus ended: {said}");
            let listens = line.split_once("msg=\"Listening on\" address=");
            if let Some((_, address)) = listens {
                break address.trim().parse().expect("its address");
            }
        };
        // A full pipe would stop it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Some(Self {
            child,
            address,
            _folder: folder,
        })
    }

    /// Returns the data of an answer; `None` while it starts.
    fn get(&self, path: &str) -> Option<Value> {
        let (status, text) = ask(&self.address.into(), None, path, None, PATIENCE).ok()?;
        let answer: Value = serde_json::from_str(&text).ok()?;
        assert!(status == 200 || status == 503, "{path}: {text}");
        (answer["status"] == "success").then(|| answer["data"].clone())
    }

    /// Returns the series that a query finds now.
    fn query(&self, query: &str) -> Vec<Value> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let found = self.get(&format!("/api/v1/query?query={escaped}"));
        let series = found.and_then(|mut found| found["result"].as_array_mut().map(std::mem::take));
        series.unwrap_or_default()
    }

    /// Returns how often each process was scraped with success.
    fn scrapes(&self) -> Vec<f64> {
        let series = self.query("sum_over_time(up[1h])");
        let count = |series: &Value| series["value"][1].as_str()?.parse().ok();
        series.iter().filter_map(count).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The queries of the dashboard, in the time range of this test.
fn dashboard() -> Vec<String> {
    let text = std::fs::read_to_string(config("grafana.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries = targets.map(|target| target["expr"].as_str().expect("a query").to_owned());
    let variables = dashboard["templating"]["list"].as_array().expect("a list");
    let values = variables.iter().filter_map(|variable| {
        let values = variable["query"].as_str()?.strip_prefix("label_values(")?;
        Some(values.split_once(',')?.0.to_owned())
    });
    let filled = |query: String| {
        let query = query.replace("$__rate_interval", "1h");
        query.replace("$instance", ".*")
    };
    values.chain(queries).map(filled).collect()
}

/// The alert rules without their limits, so that they find series in a healthy run too.
fn rules(prometheus: &Prometheus) -> Vec<String> {
    let groups = prometheus.get("/api/v1/rules").expect("the rules");
    let groups = groups["groups"].as_array().expect("groups").iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().into_iter().flatten());
    let limit = Regex::new(r" (==|>) [0-9.]+").expect("a pattern");
    let unlimited = |rule: &Value| {
        assert_eq!(rule["health"], "ok", "{rule:#}");
        let query = rule["query"].as_str().expect("an expression");
        limit.replace_all(query, "").into_owned()
    };
    rules.map(unlimited).collect()
}

/// A publisher and its standby, a publisher with a live source, and two subscribers: everything that the
/// dashboard shows.
#[test]
fn dashboard_and_alert_queries_find_their_series() {
    let (a, b) = pair(1, |_, _| ());
    let lines = [0; 2].map(|_| json!({ "listen": free_address() }));
    let live = json!({ "source": 9, "kind": "udp", "lines": lines });
    let c = Publisher::start(&one_channel(&[free_group()], live));
    let exporter = listening(&a);
    let services = [&a, &b, &c].map(|it| it.admin.expect("an admin port"));
    let jobs = [
        ("tickcast", services.to_vec()),
        ("tickcast-subscribers", vec![exporter.address]),
    ];
    let Some(prometheus) = Prometheus::start(&jobs) else {
        let said = "SKIPPED: prometheus is not here, so no query of the dashboard and the alerts is \
                    asked; `make setup` installs it";
        writeln!(std::io::stderr(), "\n{said}").expect("stderr");
        return;
    };
    let channel = ChannelBuilder::new("all").config(patient());
    let mut followers = vec![Follower::new(
        a.subscriber().channel(channel).faults(loses(3)),
    )];
    until_it_mirrors(&mut followers, &b);
    drive(&mut followers, |all| {
        all[0].subscriber.is_joined() && a.joined() >= 2 && value(&exporter.page(), "joined") == 1.0
    });
    // From here on every series is there; each process is scraped some times more.
    let before = prometheus.scrapes().into_iter().fold(0.0, f64::max);
    drive(&mut followers, |_| {
        let scrapes = prometheus.scrapes();
        let rules = || {
            prometheus
                .get("/api/v1/rules")
                .is_some_and(|it| are_known(&it))
        };
        // A subscriber reports once a second, of intervals with samples.
        let is_reported = ["latency_supported", "clock_difference_seconds"]
            .iter()
            .all(|name| {
                let reported = format!("max_over_time(tickcast_publisher_subscriber_{name}[1h])");
                !prometheus.query(&reported).is_empty()
            });
        scrapes.len() == 4
            && scrapes.iter().all(|it| *it >= before + SCRAPES)
            && is_reported
            && rules()
    });
    let (dashboard, rules) = (dashboard(), rules(&prometheus));
    assert!(dashboard.len() >= 30 && rules.len() >= 15, "{rules:#?}");
    // A scrape that is late takes its series away for a while.
    let mut empty: Vec<&String> = dashboard.iter().chain(&rules).collect();
    let until = Instant::now() + PATIENCE;
    drive(&mut followers, |_| {
        empty.retain(|it| prometheus.query(it).is_empty());
        assert!(
            empty.is_empty() || Instant::now() < until,
            "these find nothing: {empty:#?}"
        );
        empty.is_empty()
    });
    for service in services {
        let (_, page) = ask(&service.into(), None, "/metrics", None, PATIENCE).expect("a page");
        check_by_promtool(&page);
    }
}

/// Returns whether each rule was evaluated.
fn are_known(rules: &Value) -> bool {
    let text = rules.to_string();
    text.contains("\"health\"") && !text.contains("\"health\":\"unknown\"")
}
