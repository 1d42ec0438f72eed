//! Interval logs of a real run: the publisher's and the listener's add up to the delivered records, agree
//! with each other, and are read by HdrHistogram's readers in other languages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_hlog::{Interval, each_interval, read_intervals};
use tickcast_subscriber::Histogram;
use tickcast_test_support::{
    Publisher, binary, endless, free_group, number, one_channel, program, simulated, wait_for,
};

/// A run to its end: the logs, and the summary of the listener.
struct Run {
    /// Keep the logs, and the journal, which must lie on tmpfs.
    _folders: [TempDir; 2],
    publisher: PathBuf,
    listener: PathBuf,
    journal: PathBuf,
    summary: Value,
}

/// Publishes messages to a listener that logs an interval each 100 ms, and loses and repairs some.
fn run(messages: u64, messages_per_s: u64) -> Run {
    let folder = tempfile::tempdir().expect("a folder");
    let on_tmpfs = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let journal = on_tmpfs.path().join("listener.journal");
    let path = |name: &str| folder.path().join(name);
    let (of_publisher, of_listener) = (path("publisher.hlog"), path("listener.hlog"));
    let mut input = simulated(messages, messages_per_s, 1);
    // The histograms reach one hour, so the market begins half an hour ago. A simulated day has 86,000 s: in
    // its last minutes, the market begins a little earlier.
    let ago = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(30);
    let begins = ago.in_tz("America/New_York");
    let begins = begins.expect("the venue's time zone");
    let midnight = begins.start_of_day().expect("a midnight");
    let second = (begins.timestamp() - midnight.timestamp()).get_seconds();
    input["trade_date"] = begins.date().to_string().into();
    input["begins_at_s"] = second.min(85_999).into();
    let mut config = one_channel(&[free_group()], input);
    config["latency_log"] = json!({ "path": of_publisher, "interval_ms": 100 });
    let publisher = Publisher::start(&config);
    let control = publisher.control.to_string();
    let listened = Command::new(binary("tickcast"))
        .args(["listen", "--connect", &control, "--channel", "all"])
        .args(["--from", "oldest", "--format", "count", "--drop", "0.02"])
        .args(["--hlog-interval-s", "0.1", "--hlog"])
        .arg(&of_listener)
        .arg("--summary")
        .arg(path("summary.json"))
        .arg("--journal")
        .arg(&journal)
        .output()
        .expect("the listener runs");
    assert!(listened.status.success(), "{listened:?}");
    let (status, _) = publisher.finish();
    assert!(status.success());
    let summary = std::fs::read(path("summary.json")).expect("a summary");
    Run {
        summary: serde_json::from_slice(&summary).expect("JSON"),
        publisher: of_publisher,
        listener: of_listener,
        journal,
        _folders: [folder, on_tmpfs],
    }
}

fn intervals(path: &Path) -> Vec<Interval> {
    let bytes = std::fs::read(path).expect("the log is there");
    assert_eq!(bytes.last(), Some(&b'\n'), "the log ends with a line");
    read_intervals(&bytes).expect("a log")
}

/// Returns the sum of all intervals of each tag.
fn sums(intervals: &[Interval]) -> BTreeMap<&str, Histogram<u64>> {
    let mut sums = BTreeMap::<_, Histogram<u64>>::new();
    for interval in intervals {
        let sum = sums.entry(interval.tag.as_str());
        let sum = sum.or_insert_with(|| Histogram::new_from(&interval.samples));
        sum.add(&interval.samples).expect("equal bounds");
    }
    sums
}

#[test]
fn interval_logs_add_up_to_the_delivered_records() {
    let run = run(30_000, 15_000);
    let of_listener = intervals(&run.listener);
    let of_publisher = intervals(&run.publisher);
    for log in [&of_listener, &of_publisher] {
        let begins: Vec<_> = log.iter().map(|it| it.begin).collect();
        assert!(begins.is_sorted(), "intervals are in order of time");
        assert_ne!(
            begins.first(),
            begins.last(),
            "a run of 2 s has several intervals"
        );
    }
    let clock = ["clock_offset_ns", "clock_error_ns"].map(|key| number(&run.summary, key));
    assert_eq!(clock, [0, 0], "both sides read the clock of one host");
    let text = std::fs::read(&run.listener).expect("the log is there");
    let noted = each_interval(&*text, |_| ()).expect("a log");
    let noted = noted.map(|it| it.limit_ns());
    assert_eq!(noted, Some(0), "the log notes the offset");
    let (listened, published) = (sums(&of_listener), sums(&of_publisher));
    let count = |tag: &str| listened.get(tag).map_or(0, Histogram::len);
    let delivered = number(&run.summary, "delivered_records");
    assert!(delivered > 30_000 && number(&run.summary, "lost_records") == 0);
    assert_eq!(
        count("all/sealed_to_delivered") + count("all/replayed"),
        delivered
    );
    assert!(count("all/repair") > 0 && count("all/received_to_sealed") > 0);
    for (tag, key) in [
        ("all/sealed_to_delivered", "latency_ns"),
        ("all/replayed", "replayed_ns"),
        ("all/repair", "repair_ns"),
    ] {
        let said = &run.summary[key];
        assert_eq!(count(tag), number(said, "count"), "{key}");
        let Some(sum) = listened.get(tag) else {
            continue;
        };
        let found = [0.5, 0.99, 0.999].map(|quantile| sum.value_at_quantile(quantile));
        let expected = ["p50", "p99", "p999"].map(|name| number(said, name));
        assert_eq!(found, expected, "{key}");
        assert_eq!(sum.max(), number(said, "max"), "{key}");
    }
    // Both sides measure the stages before the network by the same stamps.
    assert_eq!(
        published.keys().copied().collect::<Vec<_>>(),
        ["all/event_to_received", "all/received_to_sealed"]
    );
    for (tag, sum) in &published {
        assert_eq!(listened.get(tag), Some(sum), "{tag}");
    }
}

/// A killed listener leaves whole lines, and the next one continues the log.
#[test]
fn killed_listener_leaves_whole_lines_that_the_next_continues() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("listener.hlog");
    let mut config = one_channel(&[free_group()], endless(20_000, 1));
    config["linger_ms"] = json!(0);
    let publisher = Publisher::start(&config);
    let control = publisher.control.to_string();
    let arguments = [
        "listen",
        "--connect",
        &control,
        "--channel",
        "all",
        "--format",
        "count",
        "--hlog-interval-s",
        "0.1",
        "--hlog",
        log.to_str().expect("UTF-8"),
    ];
    let lines =
        || std::fs::read(&log).map_or(0, |text| text.iter().filter(|b| **b == b'\n').count());
    let mut last = 0;
    for _ in 0..2 {
        let mut listener = program(binary("tickcast"), &arguments)
            .spawn()
            .expect("it starts");
        wait_for("an interval", || (lines() > last + 8).then_some(()));
        listener.kill().expect("it is killed");
        listener.wait().expect("it ended");
        let found = read_intervals(&std::fs::read(&log).expect("the log is there"));
        assert!(found.expect("a log").len() > 2);
        last = lines();
    }
    let text = std::fs::read_to_string(&log).expect("text");
    assert_eq!(
        text.matches("#[Histogram log format version 1.3]").count(),
        2
    );
    publisher.terminate();
    assert!(publisher.finish().0.success());
}

/// A package of another language that reads interval logs.
struct Reader {
    /// Prints the installed reader's view of a log.
    command: &'static str,
    script: &'static str,
    /// The variable that names the folder of packages.
    variable: &'static str,
    packages: PathBuf,
    /// Installs the package into that folder.
    install: Vec<String>,
}

impl Reader {
    fn run(&self, log: &Path) -> Option<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("system/interval_logs");
        let output = Command::new(self.command)
            .arg(folder.join(self.script))
            .arg(log)
            .env(self.variable, &self.packages)
            .output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).expect("UTF-8"))
    }

    /// Returns the lines that the reader prints. Installs it if it is missing.
    fn read(&self, log: &Path) -> Option<Vec<Value>> {
        let printed = self.run(log).or_else(|| {
            let (installer, arguments) = self.install.split_first()?;
            let installed = Command::new(installer).args(arguments).output();
            let is_installed = installed.is_ok_and(|it| it.status.success());
            is_installed.then(|| self.run(log))?
        })?;
        let lines = printed.lines().map(serde_json::from_str);
        Some(lines.map(|line| line.expect("JSON")).collect())
    }
}

fn readers() -> [(&'static str, Reader); 2] {
    let exe = std::env::current_exe().expect("a test has a path");
    let target = exe
        .ancestors()
        .nth(3)
        .expect("target/<profile>/deps/<test>");
    let (python, js) = (
        target.join("interval-logs/python"),
        target.join("interval-logs/js"),
    );
    let words = |text: &str, folder: &Path, package: &str| {
        let words = text.split(' ').map(str::to_owned);
        let rest = [folder.display().to_string(), package.to_owned()];
        words.chain(rest).collect::<Vec<_>>()
    };
    // Compiled packages only: a machine without compilers for Python skips this.
    let pip = "timeout 60 python3 -m pip install --quiet --disable-pip-version-check --retries 0 \
               --timeout 10 --only-binary :all: --target";
    let npm = "timeout 60 npm install --silent --no-audit --no-fund --prefix";
    [
        (
            "hdrhistogram (PyPI)",
            Reader {
                command: "python3",
                script: "read.py",
                variable: "PYTHONPATH",
                install: words(pip, &python, "hdrhistogram==0.10.3"),
                packages: python,
            },
        ),
        (
            "hdr-histogram-js (npm)",
            Reader {
                command: "node",
                script: "read.js",
                variable: "NODE_PATH",
                install: words(npm, &js, "hdr-histogram-js@3.0.1"),
                packages: js.join("node_modules"),
            },
        ),
    ]
}

#[test]
fn readers_of_other_languages_agree_on_interval_logs() {
    let run = run(10_000, 20_000);
    for (name, reader) in readers() {
        for log in [&run.listener, &run.publisher] {
            let Some(found) = reader.read(log) else {
                println!("SKIPPED: {name} is not installed and can't be had");
                eprintln!("SKIPPED: {name} is not installed and can't be had");
                continue;
            };
            let expected = intervals(log);
            assert_eq!(found.len(), expected.len(), "{name}");
            for (found, expected) in found.iter().zip(&expected) {
                agrees(name, found, expected);
            }
            println!(
                "{name} reads {} intervals of {}",
                found.len(),
                log.display()
            );
        }
    }
}

/// Checks a line that another reader printed.
fn agrees(name: &str, found: &Value, expected: &Interval) {
    let Interval {
        tag,
        begin,
        length,
        samples,
    } = expected;
    let whole = |of: &str| {
        found[of]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {of} of {found}"))
    };
    assert_eq!(found["tag"], **tag, "{name}");
    assert_eq!(u128::from(whole("begin_ms")), begin.as_millis(), "{name}");
    assert_eq!(
        u128::from(whole("end_ms")),
        (*begin + *length).as_millis(),
        "{name}"
    );
    assert_eq!(whole("count"), samples.len(), "{name}");
    assert_eq!(
        samples.highest_equivalent(whole("max")),
        samples.max(),
        "{name}"
    );
    if samples.min() > 0 {
        assert_eq!(
            samples.lowest_equivalent(whole("min")),
            samples.min(),
            "{name}"
        );
    }
    let ranks = [0.5, 0.99, 0.999];
    let quantiles = found["quantiles"].as_array().expect("quantiles");
    assert_eq!(quantiles.len(), ranks.len(), "{name}");
    for (rank, quantile) in ranks.into_iter().zip(quantiles) {
        // Readers differ in how they round the rank, so a neighbour's value is right too.
        let one = 1.0 / samples.len() as f64;
        let [below, above] = [rank - one, rank + one];
        let bounds = [below, above].map(|q| samples.value_at_quantile(q.clamp(0.0, 1.0)));
        let quantile = quantile.as_u64().expect("a whole number");
        assert!(
            (bounds[0]..=bounds[1]).contains(&quantile),
            "{name}: {rank}: {found}, {bounds:?}"
        );
    }
}

#[test]
fn report_page_has_the_percentiles_of_both_logs() {
    let run = run(10_000, 10_000);
    let page = run.listener.with_file_name("report.html");
    let report = |logs: &[&Path]| {
        let mut command = Command::new(binary("tickcast"));
        command.arg("report").args(logs).arg("--out").arg(&page);
        command.output().expect("it runs")
    };
    let written = report(&[&run.publisher, &run.listener]);
    assert_eq!(written.status.code(), Some(0));
    let text = std::fs::read_to_string(&page).expect("a page");
    let plots = text.matches("<svg").count();
    let said = format!("wrote {}: 2 logs, {plots} plots\n", page.display());
    assert_eq!(String::from_utf8_lossy(&written.stderr), said);
    assert!(written.stdout.is_empty());
    let (of_publisher, of_listener) = (intervals(&run.publisher), intervals(&run.listener));
    for (letter, log) in [("A", &of_publisher), ("B", &of_listener)] {
        for (tag, sum) in sums(log) {
            let heading = format!("<h2>{tag}</h2>");
            let section = text.split(&heading).nth(1).expect(tag);
            let row = section
                .split(&format!("<tr><td>{letter}</td>"))
                .nth(1)
                .expect(tag);
            let row = row.split("</tr>").next().expect("a row");
            for quantile in [0.5, 0.9, 0.99, 0.999, 0.9999] {
                let cell = format!("<td data-ns=\"{}\">", sum.value_at_quantile(quantile));
                assert!(
                    row.contains(&cell),
                    "{tag} of {letter}: {cell} is not in {row}"
                );
            }
        }
    }
    let received = text.split("<h2>all/received_to_sealed</h2>").nth(1);
    let received = received.and_then(|it| it.split("<table>").next());
    for percentile in ["p50: ", "p99: "] {
        let verdicts = received.expect("a section").matches(percentile).count();
        assert_eq!(verdicts, 1, "{percentile}");
    }
    let beside = |name: &str| run.publisher.with_file_name(name);
    let [summary, text] = ["summary.json", "text"].map(beside);
    let journal = run.journal.clone();
    let written = report(&[&journal, &summary, &run.listener]);
    assert_eq!(written.status.code(), Some(0), "{written:?}");
    let said = String::from_utf8_lossy(&written.stderr);
    assert!(said.contains(": 1 log, 1 summary, 1 journal, "), "{said}");
    let page_text = std::fs::read_to_string(&page).expect("a page");
    let lost = "<td>channels[0].lost_records</td><td>0</td>";
    assert!(page_text.contains(lost), "{page_text}");
    let explained = Command::new(binary("tickcast"))
        .arg("explain")
        .arg(&journal)
        .output();
    let explained = explained.expect("it runs").stdout;
    let account = page_text
        .split("<pre tabindex=\"0\">")
        .nth(1)
        .expect("an account");
    let account = account
        .split("</pre>")
        .next()
        .expect("its end")
        .replace("&gt;", ">")
        .replace("&lt;", "<")
        .replace("&quot;", "\"")
        .replace("&amp;", "&");
    assert_eq!(account, String::from_utf8_lossy(&explained).trim_end());
    std::fs::write(&text, "a text").expect("a file");
    for files in [
        &[&*beside("none.hlog")][..],
        &[&text],
        &[&summary, &summary, &summary],
        &[&journal, &journal],
    ] {
        let refused = report(files);
        assert_eq!(refused.status.code(), Some(2), "{files:?}");
    }
}
