//! The risk engines in Rust and C++ against an offline recomputation (Python, tests/embedding/risk). The
//! recomputation decodes the venue's data itself, without our records or our network.
//!
//! The engines run with and without loss, slowly, and split from their receiver. All must end with the same
//! results, report the same breaches at the same records, and agree after every tick in between.

/// The engine's own modules, whose unit tests run here.
#[path = "../../subscriber/examples/risk_engine/book.rs"]
mod book;
#[path = "../../subscriber/examples/risk_engine/engine.rs"]
#[allow(dead_code, reason = "only the engine's program calls all of it")]
mod engine;
#[path = "../../subscriber/examples/risk_engine/input.rs"]
mod input;
#[path = "../../subscriber/examples/risk_engine/market.rs"]
mod market;
#[path = "../../subscriber/examples/risk_engine/money.rs"]
mod money;
#[path = "../../subscriber/examples/risk_engine/position.rs"]
mod position;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::c_abi::archive;
use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};
use tickcast_test_support::{
    PATIENCE, Publisher, binary, free_group, number, one_channel, verbs_libraries,
};

const SYMBOLS: u16 = 1_200;
const MESSAGES: u64 = 70_000;
const SEED: u64 = 11;

/// Returns limits that are breached now and then, in units of `unit`.
fn limits(unit: u64) -> String {
    let limits = [
        ("instrument,*,exposure", 30),
        ("portfolio,*,gross", 3_000),
        ("portfolio,*,net", 150),
        ("portfolio,*,loss", 5),
        ("portfolio,hedge,net", 50),
    ];
    let header = "subject,name,limit,value\n".to_owned();
    let lines = limits.map(|(limit, value)| format!("{limit},{}\n", value * unit));
    header + &lines.concat()
}

/// A long staleness limit. Silence depends on this machine's load, and would freeze limits.
const CALM: [&str; 2] = ["--stale-us", "60000000"];

/// An input of the publisher, and the same input for the offline recomputation.
struct Case {
    folder: TempDir,
    input: Value,
    feed: &'static str,
    raw: PathBuf,
    /// Minimum number of instruments with a mark.
    marked_min: usize,
    /// Records per fill, and the unit of the limits. Both depend on the market's size.
    one_in: &'static str,
    unit: u64,
}

/// A program and its options.
struct Engine {
    program: PathBuf,
    options: Vec<String>,
}

/// Returns the engine in Rust.
fn rust(files: &[String], more: &[&str]) -> Engine {
    let more = more.iter().chain(&CALM).map(ToString::to_string);
    Engine {
        program: binary("examples/risk_engine"),
        options: files.iter().cloned().chain(more).collect(),
    }
}

/// Returns the engine in C++.
fn cpp(program: &Path, files: &[String], more: &[&str]) -> Engine {
    let more = more.iter().chain(&CALM).map(ToString::to_string);
    Engine {
        program: program.to_owned(),
        options: files.iter().cloned().chain(more).collect(),
    }
}

/// Compiles a C++ program. Returns `None` without a compiler.
fn compile(source: &str, folder: &Path) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let subscriber = root.join("subscriber");
    let program = folder.join("risk_engine_cpp");
    let output = Command::new("c++")
        .args(["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"])
        .args(["-DTICKCAST_TESTING", "-I"])
        .arg(subscriber.join("include"))
        .arg("-I")
        .arg(subscriber.join("examples"))
        .arg(root.join(source))
        .arg("-o")
        .arg(&program)
        .arg(archive())
        .args(verbs_libraries())
        .args(["-lgcc_s", "-lpthread", "-lm", "-ldl"])
        .output();
    let Ok(output) = output else {
        skipped("c++ is not here, so the engine in C++ is not run; `make setup` installs it");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    Some(program)
}

/// The result of one engine.
struct Outcome {
    code: Option<i32>,
    summary: Value,
    alerts: Vec<String>,
}

impl Case {
    fn simulator() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let raw = folder.path().join("packets");
        let config = SimulatorConfig {
            symbols: SYMBOLS,
            messages: MESSAGES,
            depth: 10,
            ..SimulatorConfig::default()
        };
        let mut simulator = Simulator::new(&config, SEED).expect("a market");
        let mut packets = Vec::new();
        while let Some(packet) = simulator.next_packet() {
            packets.extend((packet.payload.len() as u32).to_le_bytes());
            packets.extend(packet.payload);
        }
        std::fs::write(&raw, packets).expect("the packets are written");
        let input = json!({
            "source": 1,
            "kind": "simulator",
            "seed": SEED,
            "symbols": SYMBOLS,
            "messages": MESSAGES,
            "depth": 10,
            "pace": { "messages_per_s": 30_000 },
        });
        Self {
            folder,
            input,
            feed: "itch",
            raw,
            marked_min: 1_000,
            one_in: "20",
            unit: 10_000,
        }
    }

    fn tops16() -> Option<Self> {
        let data = std::env::var_os("TICKCAST_DATA").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data"),
            PathBuf::from,
        );
        let raw = data.join("iex-tops/TOPS16.pcapng.gz");
        if !raw.exists() {
            skipped(&format!(
                "{} is not there; set TICKCAST_DATA",
                raw.display()
            ));
            return None;
        }
        let input = json!({
            "source": 1,
            "kind": "capture",
            "file": raw,
            "pace": { "messages_per_s": 20_000 },
        });
        Some(Self {
            folder: tempfile::tempdir().expect("a folder"),
            input,
            feed: "tops",
            raw,
            // The capture is from an hour in which most quotes are empty.
            marked_min: 20,
            one_in: "4",
            unit: 500,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a publisher, and these engines side by side.
    fn run(&self, engines: &[Engine]) -> (Vec<Outcome>, Value) {
        let mut input = self.input.clone();
        input["wait_for_subscribers"] = engines.len().into();
        let publisher = Publisher::start(&one_channel(&[free_group()], input));
        let run = |(index, engine): (usize, &Engine)| {
            let path = |name: &str| self.path(&format!("{index}.{name}"));
            let create = |name: &str| std::fs::File::create(path(name)).expect("a file");
            let child = Command::new(&engine.program)
                .args(["--publisher", &publisher.control.to_string()])
                .args(["--channel", "all", "--summary"])
                .arg(path("json"))
                .args(&engine.options)
                .stdin(Stdio::null())
                .stdout(create("out"))
                .stderr(create("err"))
                .spawn();
            Running(child.expect("the engine starts"))
        };
        let running: Vec<_> = engines.iter().enumerate().map(run).collect();
        let outcomes = running.into_iter().enumerate().map(|(index, mut running)| {
            let code = running.wait();
            let read = |name: &str| {
                std::fs::read_to_string(self.path(&format!("{index}.{name}"))).unwrap_or_default()
            };
            let lines = read("out");
            let is_alert = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
            Outcome {
                code,
                summary: serde_json::from_str(&read("json"))
                    .unwrap_or_else(|error| panic!("no summary ({error}):\n{}", read("err"))),
                alerts: lines.lines().filter(is_alert).map(str::to_owned).collect(),
            }
        });
        let outcomes = outcomes.collect();
        let (_, summary) = publisher.finish();
        (outcomes, summary)
    }

    /// Writes fills and limits for this input. Returns the options that name these files.
    fn trade(&self) -> Vec<String> {
        let fills = self.path("fills.csv").display().to_string();
        let make = rust(&[], &["--make-fills", &fills, "--one-in", self.one_in]);
        let (made, _) = self.run(&[make]);
        assert_eq!(made[0].code, Some(0));
        // Positions from before the first mark, and positions in an instrument that never gets a mark.
        let made = std::fs::read_to_string(&fills).expect("the fills");
        let first = made.lines().nth(1).and_then(|line| line.split(',').nth(2));
        let first = first.expect("a fill");
        let early = format!(
            "0,hedge,{first},sell,7,12345678901\n3,index,{first},buy,11,10000000001\n\
             0,hedge,NOSUCH,buy,3,50000000000\n9,hedge,NOSUCH,sell,1,60000000000\n"
        );
        std::fs::write(&fills, made + &early).expect("the fills are written");
        let limits = self.path("limits.csv").display().to_string();
        std::fs::write(&limits, self::limits(self.unit)).expect("the limits are written");
        ["--fills".into(), fills, "--limits".into(), limits].into()
    }

    /// Runs the offline recomputation. Returns `None` without Python.
    fn offline(&self) -> Option<Value> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("embedding/risk/offline.py");
        let output = Command::new("python3")
            .arg("-B")
            .arg(script)
            .arg(self.feed)
            .arg(&self.raw)
            .args([self.path("fills.csv"), self.path("limits.csv")])
            .output();
        let Ok(output) = output else {
            skipped("python3 is not here, so nothing is recomputed; `make setup` installs it");
            return None;
        };
        let error = String::from_utf8_lossy(&output.stderr);
        Some(serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{error}")))
    }
}

/// A running engine. It is killed when its test ends.
struct Running(Child);

impl Running {
    fn wait(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("the child can be asked") {
                return status.code();
            }
            assert!(began.elapsed() < PATIENCE, "the engine never ended");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Prints a skip notice to stderr directly, because the test harness captures the output of a passing test.
fn skipped(why: &str) {
    writeln!(std::io::stderr(), "\nSKIPPED: {why}").expect("stderr takes it");
}

/// Asserts that the engine agrees with every result of the offline recomputation. An engine with a silent
/// publisher may report some breaches later, or never.
fn assert_agrees(outcome: &Outcome, offline: &Value) {
    let is_calm = number(&outcome.summary, "silences") == 0;
    let fields = offline.as_object().expect("an object");
    let judged = ["alerts", "breaches", "clears"];
    let fields = fields
        .iter()
        .filter(|(name, _)| !judged.contains(&name.as_str()));
    for (name, expected) in fields {
        let own = &outcome.summary[name];
        match (own.as_array(), expected.as_array()) {
            (Some(own), Some(expected)) => {
                assert_eq!(own.len(), expected.len(), "{name}");
                for (own, expected) in own.iter().zip(expected) {
                    assert_eq!(own, expected, "{name}");
                }
            }
            _ => assert_eq!(own, expected, "{name}"),
        }
    }
    if is_calm {
        assert_eq!(outcome.alerts, alerts(offline));
        assert_eq!(outcome.summary["breaches"], offline["breaches"]);
        assert_eq!(outcome.summary["clears"], offline["clears"]);
    }
}

fn alerts(offline: &Value) -> Vec<&str> {
    let alerts = offline["alerts"].as_array().expect("alerts");
    alerts.iter().filter_map(Value::as_str).collect()
}

/// Asserts that the input is meaningful: many instruments, fills, results, breaches.
fn assert_means_something(offline: &Value, marked_min: usize) {
    let instruments = offline["instruments"].as_array().expect("instruments");
    let is_held = |i: &&Value| i["positions"].as_array().is_some_and(|p| !p.is_empty());
    let marked = instruments
        .iter()
        .filter(is_held)
        .filter(|i| i["mark"].is_string());
    assert!(marked.count() >= marked_min);
    assert!(number(offline, "fills") > 2_000);
    assert!(number(offline, "breaches") > 15 && number(offline, "clears") > 10);
    let portfolios = offline["portfolios"].as_array().expect("portfolios");
    assert_eq!(portfolios.len(), 4);
    for portfolio in portfolios {
        assert_ne!(portfolio["realised"], "0.000000000");
        assert_ne!(portfolio["unrealised"], "0.000000000");
    }
    let alerts = alerts(offline);
    for kind in ["exposure", "gross", "net", "loss"] {
        let kind = format!(" {kind} ");
        assert!(alerts.iter().any(|alert| alert.contains(&kind)), "{kind}");
    }
}

/// Compares engines on a good network, on a bad one, and slow ones with the recomputation.
fn all_agree(case: &Case) {
    let files = case.trade();
    let Some(offline) = case.offline() else {
        return;
    };
    assert_means_something(&offline, case.marked_min);
    let lossy = ["--drop", "0.05", "--seed", "20261120"];
    let slow = [&lossy[..], &["--sleep-us", "5000"]].concat();
    let split = [&slow[..], &["--split"]].concat();
    let mut engines = vec![
        rust(&files, &[]),
        rust(&files, &[&lossy[..], &["--burst", "3"]].concat()),
        rust(&files, &slow),
        rust(&files, &split),
    ];
    if let Some(program) = compile("subscriber/examples/risk_engine.cpp", case.folder.path()) {
        engines.extend([
            cpp(&program, &files, &[]),
            cpp(&program, &files, &slow),
            cpp(&program, &files, &split),
        ]);
    }
    let (outcomes, published) = case.run(&engines);
    assert_eq!(offline["records"], published["published_records"]);
    for (index, outcome) in outcomes.iter().enumerate() {
        println!("{:?}", engines[index].options);
        assert_eq!(outcome.code, Some(0));
        assert_agrees(outcome, &offline);
        assert_eq!(number(&outcome.summary, "unnamed_records"), 0);
        let repaired = number(&outcome.summary, "repaired_datagrams");
        let options = &engines[index].options;
        let is_lossy = options.iter().any(|option| option == "--drop");
        assert!(!is_lossy || repaired > 20, "{repaired} datagrams repaired");
    }
}

#[test]
fn simulated_market_engines_match_offline_result() {
    all_agree(&Case::simulator());
}

#[test]
fn tops16_engines_match_offline_result() {
    if let Some(case) = Case::tops16() {
        all_agree(&case);
    }
}

#[test]
fn cpp_engine_treats_overrun_as_its_events() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = compile("tests/embedding/c_abi/engine.cpp", folder.path()) else {
        return;
    };
    let output = Command::new(program).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn lapped_engines_freeze_and_account_for_all() {
    let mut case = Case::simulator();
    let files = case.trade();
    // The publisher runs at full rate. The engines sleep far too long and have the smallest ring.
    case.input["pace"] = json!({ "messages_per_s": 200_000 });
    let slow = ["--split", "--ring-mib", "1", "--sleep-us", "400000"];
    let slow = [&slow[..], &["--sleep-every", "20000"]].concat();
    let mut engines = vec![rust(&files, &slow)];
    let source = "subscriber/examples/risk_engine.cpp";
    engines.extend(compile(source, case.folder.path()).map(|it| cpp(&it, &files, &slow)));
    let (outcomes, published) = case.run(&engines);
    for Outcome { code, summary, .. } in outcomes {
        assert_eq!(code, Some(1), "loss is exit code 1");
        assert!(number(&summary, "losses") > 0);
        let (records, lost) = (
            number(&summary, "records"),
            number(&summary, "lost_records"),
        );
        assert_eq!(records + lost, number(&published, "published_records"));
        // Order books never become complete again. Instrument names stay known, and every fill is applied.
        assert!(number(&summary, "freezes") > 0);
        assert_eq!(number(&summary, "unnamed_records"), 0);
        let fills = number(&summary, "fills") + number(&summary, "fills_left");
        assert!(
            fills > 2_000 && number(&summary, "fills_left") == 0,
            "{fills}"
        );
    }
}

#[test]
fn unrepaired_loss_freezes_orders_for_good() {
    let case = Case::simulator();
    let files = case.trade();
    let Some(offline) = case.offline() else {
        return;
    };
    let engine = rust(&files, &["--drop", "0.001", "--no-repair"]);
    let (outcomes, published) = case.run(&[engine]);
    let Outcome {
        code,
        summary,
        alerts: reported,
    } = &outcomes[0];
    assert_eq!(*code, Some(1), "loss is exit code 1");
    let (records, lost) = (number(summary, "records"), number(summary, "lost_records"));
    assert_eq!(records + lost, number(&published, "published_records"));
    assert!(lost > 0 && number(summary, "losses") > 0);
    // An order book can't recover from loss, so the engine only reports the breaches from before it.
    let instruments = summary["instruments"].as_array().expect("instruments");
    assert!(instruments.iter().all(|i| i["frozen"] == true));
    let all = alerts(&offline);
    assert!(reported.len() < all.len() && *reported == all[..reported.len()]);
}
