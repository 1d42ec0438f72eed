//! `lab bench` on loopback, in tiny runs. The tests check that it runs the announced measures, and that
//! its books balance. They check no figures, because the speed of a test run means nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tickcast_test_support::{Running, signal, text, wait_for};

use crate::{lab, run, start};

/// Options of a tiny run that needs no privileges.
const TINY: [&str; 5] = ["bench", "--tiny", "--loopback", "--no-pins", "--quiet"];

/// Runs the bench. Returns its summary, its output and its exit code.
fn bench(args: &[&str]) -> (Value, String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    let (summary, html) = (folder.path().join("a.json"), folder.path().join("a.html"));
    let files = ["--summary", path(&summary), "--html", path(&html)];
    let done = run(&[&TINY[..], &files, args].concat());
    let said = text(&done.stderr).to_owned() + &text(&done.stdout);
    let summary = std::fs::read(&summary).unwrap_or_else(|error| panic!("{error}: {said}"));
    let html = std::fs::read_to_string(&html).expect("a page");
    let summary = serde_json::from_slice(&summary).expect("JSON");
    (summary, html, done.status.code())
}

/// Returns the parent folder of the bench's folders.
fn memory() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        return shm.into();
    }
    std::env::temp_dir()
}

/// Writes a program that plays the peers. `script` handles the task in `$1`, in the shell's language.
fn peers(folder: &Path, script: &str) -> PathBuf {
    let program = folder.join("peers");
    // A process of its own writes the file, because a file that this process has open for writing can't
    // be run.
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod +x \"$0\"",
    ]);
    let written = shell.arg(&program).arg(script).status();
    assert!(written.unwrap().success());
    program
}

/// Returns the words of a peer's process that has finished.
fn part(ticks: u64, declared_lost: u64) -> String {
    format!(
        r#"{{"done":{{"ticks":{ticks},"declared_lost":{declared_lost},"missing":0,"wrong":0,"rate_per_s":1.0,
"cpu_ns":1,"memory_bytes":1,"notes":[]}}}}"#
    )
    .replace('\n', "")
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn rows(summary: &Value) -> Vec<(&str, &Value)> {
    let measures = summary["measures"].as_array().expect("measures");
    measures
        .iter()
        .flat_map(|measure| {
            let id = measure["id"].as_str().expect("its name");
            measure["rows"]
                .as_array()
                .expect("rows")
                .iter()
                .map(move |row| (id, row))
        })
        .collect()
}

/// Returns the row of a contender in one measure.
fn row_of<'a>(rows: &[(&str, &'a Value)], contender: &str) -> &'a Value {
    let row = rows.iter().find(|(_, row)| row["contender"] == contender);
    row.expect("its row").1
}

/// Returns a contender's rate in each round.
fn rates<'a>(rows: &[(&str, &'a Value)], contender: &str) -> &'a [Value] {
    let rates = &row_of(rows, contender)["values"]["rate_per_s"];
    rates.as_array().expect("one a round")
}

/// Asserts that every sent tick arrived or was declared lost, and that none arrived twice.
fn assert_balanced(id: &str, row: &Value) {
    let of = |field: &str| row["books"][field].as_u64().expect("a count");
    let failures = &row["failures"];
    assert_eq!(
        failures.as_array().map(Vec::len),
        Some(0),
        "{id}: {failures}"
    );
    assert!(of("sent") > 0, "{id}: nothing was measured: {row}");
    assert_eq!(
        of("sent"),
        of("delivered") + of("declared_lost"),
        "{id}: {row}"
    );
    assert_eq!((of("missing"), of("wrong")), (0, 0), "{id}: {row}");
    assert_eq!(row["balances"], true, "{id}");
}

#[test]
fn loopback_run_delivers_all_and_names_missing() {
    let only = [
        "--only",
        "throughput-1500-2",
        "--only",
        "latency-100k",
        "--only",
        "rtt",
    ];
    let contenders = [
        "--contender",
        "tickcast",
        "--contender",
        "tickcast-shm",
        "--contender",
        "aeron",
    ];
    let (summary, html, code) = bench(&[&only[..], &contenders].concat());
    let rows = rows(&summary);
    let names: Vec<(&str, &str)> = rows
        .iter()
        .filter(|(_, row)| row["contender"].as_str().unwrap().starts_with("tickcast"))
        .map(|(id, row)| (*id, row["contender"].as_str().unwrap()))
        .collect();
    let expected = [
        ("throughput-1500-2", "tickcast"),
        ("latency-100k", "tickcast"),
        ("rtt", "tickcast"),
        ("host-rtt", "tickcast-shm"),
    ];
    assert_eq!(names, expected);
    for (id, row) in &rows {
        assert_balanced(id, row);
        // Two receivers were sent everything. A schedule has a fixed number of ticks.
        let sent = row["books"]["sent"].as_u64().unwrap();
        match *id {
            "throughput-1500-2" => assert_eq!(sent, 2 * 20_000),
            "latency-100k" => assert_eq!(sent, 2_000),
            // A round trip ends early on a machine that is far too slow for its schedule.
            _ => assert!((1..=400).contains(&sent), "{id}: {sent}"),
        }
    }
    assert_eq!(code, Some(0), "nothing was lost");
    let absent = summary["absent"].as_array().expect("who was missing");
    assert!(
        absent.iter().any(|a| a["contender"] == "floor"),
        "it was not asked for"
    );
    assert_eq!(summary["is_loopback"], true);
    assert!(
        html.contains("<svg") && html.contains("loopback"),
        "plots and the warning"
    );
    let marks = summary["marks"].as_array().expect("marks");
    let unjudged = marks
        .iter()
        .filter(|mark| mark["verdict"] == "not_measured");
    assert!(unjudged.count() > 10, "what was not measured is not judged");
}

#[test]
fn injected_loss_is_repaired_and_timed() {
    let (summary, _, code) = bench(&["--only", "loss-5", "--contender", "tickcast"]);
    let rows = rows(&summary);
    let [(id, row)] = rows[..] else {
        panic!("one row: {rows:?}");
    };
    assert_balanced(id, row);
    let repaired = row["figures"]["lost_p50_ns"]["turns"].as_u64();
    assert_eq!(repaired, Some(1), "5 % of 800 are about 40: {row}");
    assert_eq!(code, Some(0));
}

#[test]
fn ticks_of_many_channels_and_subscribers_all_arrive() {
    for (id, sent) in [
        ("channels-64", 20_000),
        ("symbols-100k", 20_000),
        ("subscribers-8", 20_000),
    ] {
        let (summary, _, code) = bench(&["--only", id]);
        let rows = rows(&summary);
        let [(name, row)] = rows[..] else {
            panic!("one row: {rows:?}");
        };
        assert_eq!((name, code), (id, Some(0)));
        assert_balanced(id, row);
        assert_eq!(row["books"]["sent"].as_u64(), Some(sent), "{id}");
    }
}

#[test]
fn bench_list_shows_measures_of_size_and_contenders() {
    let lines = |args: &[&str]| {
        let done = run(&[&["bench", "--list"], args].concat());
        assert_eq!(done.status.code(), Some(0));
        text(&done.stdout)
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let (full, quick) = (lines(&[]), lines(&["--quick"]));
    let has = |lines: &[String], id: &str| {
        let start = format!("{id}: ");
        lines.iter().any(|line| line.starts_with(&start))
    };
    for id in [
        "throughput-9000-4",
        "latency-500k",
        "loss-1",
        "channels-8",
        "symbols-1k",
        "subscribers-128",
    ] {
        assert!(has(&full, id) && !has(&quick, id), "{id}: {full:#?}");
    }
    for id in [
        "throughput-1500-4",
        "host-rtt",
        "channels-64",
        "subscribers-64",
    ] {
        assert!(has(&full, id) && has(&quick, id), "{id}: {quick:#?}");
    }
    let rtt = full.iter().find(|line| line.starts_with("rtt: ")).unwrap();
    assert!(rtt.ends_with("tickcast, aeron, floor"), "{rtt}");
}

#[test]
fn kernel_floor_is_measured_and_feed_is_decoded() {
    let (summary, ..) = bench(&[
        "--only",
        "throughput-1500-1",
        "--contender",
        "floor",
        "--contender",
        "floor-no-gso",
    ]);
    // A contender without repair may lose ticks, but every tick that arrived was sent.
    let floors = rows(&summary);
    assert_eq!(floors.len(), 2);
    for (id, row) in floors {
        assert!(
            row["failures"].as_array().unwrap().is_empty(),
            "{id}: {row}"
        );
        let of = |field: &str| row["books"][field].as_u64().unwrap();
        assert_eq!((of("sent"), of("wrong")), (20_000, 0));
        assert_eq!(of("sent"), of("delivered") + of("missing"), "{row}");
    }
    let (summary, ..) = bench(&["--only", "feed-simulator", "--contender", "tickcast"]);
    let rows = rows(&summary);
    let [(id, row)] = rows[..] else {
        panic!("one row: {rows:?}");
    };
    assert_balanced(id, row);
    assert!(row["figures"]["messages_per_s"]["median"].as_f64() > Some(0.0));
}

#[test]
fn built_peer_is_measured_and_absent_one_is_named() {
    let beside = Path::new(env!("CARGO_BIN_EXE_lab")).with_file_name("tickcast-bench-peers");
    let args = [
        "--only",
        "throughput-1500-1",
        "--only",
        "host",
        "--only",
        "loss-5",
        "--only",
        "rtt",
    ];
    let peers = [
        "--contender",
        "aeron",
        "--contender",
        "aeron-ipc",
        "--contender",
        "iceoryx2",
    ];
    let (summary, ..) = bench(&[&args[..], &peers].concat());
    let all = rows(&summary);
    if !beside.is_file() {
        eprintln!("SKIPPED: no peers beside this program (make bench-peers)");
        assert!(all.is_empty());
        let why = summary["absent"].to_string();
        assert!(why.contains("make bench-peers"), "{why}");
        return;
    }
    assert_eq!(all.len(), 7);
    for (id, row) in all {
        assert_balanced(id, row);
    }
}

#[test]
fn unknown_measure_is_usage_error_with_list() {
    let done = run(&["bench", "--only", "speed-of-light"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(text(&done.stderr).contains("throughput-1500-1"));
}

/// Returns the verdict of a mark.
fn mark<'a>(summary: &'a Value, measure: &str, figure: &str, theirs: &str) -> &'a Value {
    let mut marks = summary["marks"].as_array().expect("marks").iter();
    let of = |mark: &&Value| {
        (mark["measure"] == measure && mark["figure"] == figure)
            && (mark["ours"] == "tickcast" && mark["theirs"] == theirs)
    };
    marks.find(of).expect("a mark")
}

#[test]
fn mark_with_failing_peer_is_not_safely_measured() {
    let folder = tempfile::tempdir().unwrap();
    let peers = peers(folder.path(), r#"echo '{"failed":"no driver"}'"#);
    let args = [
        "--only",
        "latency-100k",
        "--rounds",
        "2",
        "--peers",
        path(&peers),
    ];
    let (summary, html, _) = bench(&args);
    let mark = mark(&summary, "latency-100k", "p50_ns", "aeron");
    assert_eq!(mark["verdict"], "not_safely_measured", "{mark}");
    assert_eq!(
        (&mark["rounds_judged"], &mark["rounds"]),
        (&0.into(), &2.into())
    );
    let why = "2 of 2 rounds of aeron failed";
    let doubts = mark["doubts"].as_array().unwrap();
    // On a busy machine the noise is a further reason.
    let is_noise = |doubt: &Value| doubt.as_str().unwrap().contains("others were at work");
    let other: Vec<_> = doubts.iter().filter(|doubt| !is_noise(doubt)).collect();
    assert_eq!(other, [why], "{doubts:?}");
    assert!(html.contains(why) && html.contains("<td>0 of 2</td>"));
    let done = run(&[&TINY[..], &args].concat());
    let table = text(&done.stdout);
    assert!(table.contains(why) && table.contains("0 of 2"), "{table}");
    let rows = rows(&summary);
    let rates = |name| rates(&rows, name);
    assert_eq!(rates("aeron"), &[Value::Null, Value::Null]);
    assert!(rates("tickcast").len() == 2 && rates("tickcast").iter().all(Value::is_number));
}

#[test]
fn bench_files_are_written_with_stdout_closed() {
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("a.json");
    let only = ["--only", "host-rtt", "--contender", "tickcast-shm"];
    let files = ["--summary", path(&summary)];
    let mut running = start(&[&TINY[..], &only, &files].concat());
    drop(running.child().stdout.take());
    running.output();
    assert!(summary.is_file());
}

#[test]
fn interrupted_run_reports_and_leaves_nothing() {
    // Under `nohup` a hang-up ends nothing, and test processes inherit that.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:\t"));
    let ignored = u64::from_str_radix(ignored.unwrap(), 16).unwrap();
    let names: &[&str] = if ignored & 1 == 1 {
        &["TERM"]
    } else {
        &["TERM", "HUP"]
    };
    for name in names {
        let folder = tempfile::tempdir().unwrap();
        let (summary, begun) = (folder.path().join("a.json"), folder.path().join("begun"));
        // The peer, whose turn is the second, never writes a word.
        let script = format!("touch '{}'; exec cat", begun.display());
        let peers = peers(folder.path(), &script);
        let only = ["--only", "latency-100k", "--rounds", "3"];
        let files = ["--peers", path(&peers), "--summary", path(&summary)];
        let mut running = start(&[&TINY[..], &only, &files].concat());
        let id = running.child().id();
        wait_for("the peer's turn", || begun.exists().then_some(()));
        signal(id, name);
        let done = running.output();
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains("interrupted"), "{name}: {said}");
        let table = text(&done.stdout);
        assert!(
            table.contains("WARNING: the run was interrupted"),
            "{name}: {table}"
        );
        let summary: Value = serde_json::from_slice(&std::fs::read(&summary).unwrap()).unwrap();
        assert_eq!(summary["is_interrupted"], true);
        let rows = rows(&summary);
        assert_eq!(rates(&rows, "tickcast").len(), 1);
        assert_eq!(
            row_of(&rows, "aeron")["failures"],
            serde_json::json!([]),
            "it was not its fault"
        );
        let mark = mark(&summary, "latency-100k", "p50_ns", "aeron");
        assert_eq!(mark["verdict"], "not_safely_measured", "{mark}");
        let doubts = mark["doubts"].to_string();
        assert!(
            doubts.contains("2 of 3 rounds of tickcast were not taken"),
            "{doubts}"
        );
        assert!(
            doubts.contains("3 of 3 rounds of aeron were not taken"),
            "{doubts}"
        );
        let mine = format!("tickcast-bench-{id}-");
        let left = std::fs::read_dir(memory()).unwrap().flatten();
        let mut left = left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&mine));
        assert!(left.next().is_none(), "{name}");
    }
}

#[test]
fn unavailable_contender_is_usage_error() {
    for (args, who) in [
        (&["--contender", "tickcats"][..], "tickcats"),
        (
            &["--list", "--contender", "tickcast", "--contender", "Aeron"],
            "Aeron",
        ),
        (&["--only", "loss", "--contender", "floor"], "floor"),
    ] {
        let done = run(&[&["bench", "--tiny", "--loopback"], args].concat());
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {said}");
        assert!(
            said.contains(&format!("{who:?}")) && said.contains("aeron-defaults"),
            "{said}"
        );
    }
}

#[test]
fn sent_count_comes_from_sender_not_receiver() {
    let folder = tempfile::tempdir().unwrap();
    // Ten sent, eight received, and the other two are missing without a declaration.
    let script = format!(
        r#"case "$1" in
*'"role":"ping"'*)
    echo '{{"ready":""}}'; read order; echo '"joined"'; read order; echo '{{"sent":10}}'; echo '{}' ;;
*) echo '{{"ready":""}}'; echo '"joined"'; read order; echo '{}' ;;
esac"#,
        part(8, 0),
        part(8, 0)
    );
    let peers = peers(folder.path(), &script);
    let args = ["--only", "rtt", "--contender", "aeron"];
    let (summary, ..) = bench(&[&args[..], &["--peers", path(&peers)]].concat());
    let rows = rows(&summary);
    let [("rtt", row)] = rows[..] else {
        panic!("one row: {rows:?}");
    };
    let books = &row["books"];
    assert_eq!(
        (&books["sent"], &books["delivered"]),
        (&10.into(), &8.into()),
        "{row}"
    );
    assert_eq!(row["balances"], false);
}

#[test]
fn host_without_namespaces_is_no_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["bench", "--tiny", "--quiet", "--only", "latency-100k"];
    let run = |path: &Path| {
        let mut command = lab(&args);
        Running::start(command.env("PATH", path)).output()
    };
    let done = run(folder.path());
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(4), "there is no ip: {said}");
    assert!(said.contains("--loopback"), "what to do: {said}");
    let script =
        "echo 'mount --make-shared /run/netns failed: Operation not permitted' >&2; exit 1";
    let refuses = peers(folder.path(), script);
    std::fs::rename(refuses, folder.path().join("ip")).unwrap();
    let done = run(folder.path());
    let said = text(&done.stderr);
    assert_eq!(done.status.code(), Some(4), "{said}");
    assert!(said.contains("Operation not permitted"), "{said}");
}

/// A namespace that is removed with its test.
struct Namespace(String);

impl Namespace {
    fn add(process: u32) -> Option<Self> {
        let name = format!("tickcast-{process}-left");
        let added = Command::new("ip").args(["netns", "add", &name]).output();
        added.ok()?.status.success().then(|| Self(name))
    }

    fn is_there(&self) -> bool {
        let listed = Command::new("ip").args(["netns", "list"]).output();
        text(&listed.unwrap().stdout)
            .lines()
            .any(|line| line.split(' ').next() == Some(&self.0))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

#[test]
fn run_sweeps_leftovers_of_dead_only() {
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let (dead, living) = (gone.id(), std::process::id());
    let folder = |process: u32| {
        let name = format!("tickcast-bench-{process}-");
        tempfile::Builder::new()
            .prefix(&name)
            .tempdir_in(memory())
            .unwrap()
    };
    let folders = [folder(dead), folder(living)];
    let namespaces = [Namespace::add(dead), Namespace::add(living)];
    bench(&["--only", "host-rtt", "--contender", "tickcast-shm"]);
    assert!(!folders[0].path().exists() && folders[1].path().exists());
    let [Some(dead), Some(living)] = &namespaces else {
        println!("SKIPPED: this host lets us make no namespaces");
        return;
    };
    assert!(!dead.is_there() && living.is_there());
}
