//! Reloads: a running publisher takes over symbols, budgets and log level, or refuses all of a file.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_publisher::internal::http::{EndpointAddress, ask};
use tickcast_reliability::record::SymbolMappingMsg;
use tickcast_reliability::wire::{Datagram, StreamEvent};

use crate::common::{Listener, PATIENCE, Publisher, Said, config, group, wait_for};

/// Returns a config with two channels, a simulator that runs until it is stopped, and a command socket.
fn two_channels(folder: &TempDir) -> Value {
    let input = json!({
        "source": 7, "kind": "simulator", "seed": 3, "symbols": 3, "names": ["AAA", "BBB", "CCC"],
        "pace": { "messages_per_s": 2_000 },
    });
    let mut config = config(group(), input);
    let mut second = config["channels"][0].clone();
    config["channels"][0]["symbols"] = json!(["CCC"]);
    second["id"] = json!(2);
    second["name"] = json!("second");
    second["symbols"] = json!(["*"]);
    second["fan_out"][0]["lines"][0]["group"] = json!(group());
    config["channels"].as_array_mut().unwrap().push(second);
    config["linger_ms"] = json!(0);
    config["commands"] = json!({ "socket": folder.path().join("commands") });
    config
}

fn write(publisher: &Publisher, text: &str) {
    let (path, new) = (publisher.path("config.json"), publisher.path("config.new"));
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

/// Requests a reload over the command socket. Returns the answer.
fn reload(publisher: &Publisher) -> Value {
    let socket = publisher.ready["command_socket"].as_str().unwrap();
    let address = EndpointAddress::Socket(socket.into());
    let (_, answer) = ask(&address, None, "/reload", Some(""), PATIENCE).unwrap();
    serde_json::from_str(&answer).unwrap()
}

/// Returns the JSON of a page.
fn page(publisher: &Publisher, path: &str) -> Value {
    let answer = publisher.get(path);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// Runs `--diff` on the publisher's own file. Returns the exit code, and the lines that are not the same.
fn diff(publisher: &Publisher) -> (Option<i32>, Vec<String>) {
    let admin = publisher.ready["admin"].as_str().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tickcast-publisher"))
        .arg("--config")
        .arg(publisher.path("config.json"))
        .arg(format!("--diff={admin}"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("name: \"test\": same\n"), "{text}{errors}");
    let others = text.lines().filter(|line| !line.ends_with(": same"));
    (
        output.status.code(),
        others.map(ToOwned::to_owned).collect(),
    )
}

fn hang_up(publisher: &Publisher) {
    let id = publisher.id().to_string();
    let status = Command::new("kill").args(["-HUP", &id]).status().unwrap();
    assert!(status.success());
}

/// Waits until the status, which is rendered ten times a second, shows these numbers of reloads.
fn wait_for_counts(publisher: &Publisher, applied: u64, refused: u64) {
    let expected = json!({ "applied": applied, "refused": refused });
    wait_for("the reloads in the status", || {
        (page(publisher, "/status")["reloads"] == expected).then_some(())
    });
}

/// Returns the running config, rendered after this call.
fn running_config(publisher: &Publisher) -> Value {
    // A render serves every request for 100 ms.
    std::thread::sleep(Duration::from_millis(200));
    page(publisher, "/config")
}

#[test]
fn reload_moves_symbols_and_changes_budgets_and_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = two_channels(&folder);
    let publisher = Publisher::start(&config);
    let group = config["channels"][0]["fan_out"][0]["lines"][0]["group"].as_str();
    let mut listener = Listener::new(group.unwrap().parse().unwrap());
    let records = |publisher: &Publisher, channel: usize| {
        let status = page(publisher, "/status");
        status["channels"][channel]["published_records"]
            .as_u64()
            .unwrap()
    };
    wait_for("records on both channels", || {
        (records(&publisher, 0) > 10 && records(&publisher, 1) > 10).then_some(())
    });
    assert_eq!(diff(&publisher), (Some(0), Vec::new()));

    config["channels"][0]["symbols"] = json!(["*"]);
    config["channels"][1]["symbols"] = json!(["AAA"]);
    config["repair"] = json!({ "joiner_bytes_per_s": 5_000_000 });
    config["log"] = json!("debug");
    write(&publisher, &config.to_string());
    let expected = [
        r#"channels[0].symbols: ["CCC"] -> ["*"]: changes on reload"#,
        r#"channels[1].symbols: ["*"] -> ["AAA"]: changes on reload"#,
        r#"log: null -> "debug": changes on reload"#,
        "repair.joiner_bytes_per_s: 312500000 -> 5000000: changes on reload",
    ];
    let expected = expected.map(ToOwned::to_owned).to_vec();
    assert_eq!(diff(&publisher), (Some(1), expected.clone()));
    let before = records(&publisher, 0);
    assert_eq!(
        reload(&publisher),
        json!({ "state": "reloaded", "changed": expected })
    );
    wait_for_counts(&publisher, 1, 0);
    assert_eq!(running_config(&publisher)["log"], "debug");
    assert_eq!(diff(&publisher), (Some(0), Vec::new()));

    // The first channel says what it lacks of BBB, names it, and carries it from there on.
    let (told, named) = wait_for("the instrument on its new channel", || {
        listener.poll();
        let (mut told, mut named) = (None, None);
        for (sequence, bytes) in &listener.datagrams {
            let datagram = Datagram::parse(bytes).unwrap();
            match StreamEvent::parse(datagram.payload()) {
                Some(StreamEvent::SourceLost {
                    messages: 0,
                    instruments,
                    ..
                }) if instruments == [2] => told = Some(*sequence),
                Some(_) => {}
                None => {
                    for record in datagram.records().unwrap() {
                        let mapping = record.get::<SymbolMappingMsg>();
                        let is_of_it = mapping.is_some() && record.header().instrument_id == 2;
                        if is_of_it {
                            named = named.or(Some(*sequence));
                        }
                    }
                }
            }
        }
        Some((told?, named?))
    });
    assert!(told < named, "{told} {named}");
    wait_for("further records", || {
        (records(&publisher, 0) > before + 100).then_some(())
    });
    // A subscriber that joins now finds it in the directory.
    let mut control = publisher.connect();
    let welcome = control.join("late");
    let directory = &welcome.channels[0].directory;
    let symbols: Vec<_> = directory.iter().map(|it| it.symbol.as_str()).collect();
    assert!(
        symbols.contains(&"BBB") && !symbols.contains(&"AAA"),
        "{symbols:?}"
    );
    wait_for("a line of the new level", || {
        let is_there = publisher.log().contains("DEBUG");
        is_there.then_some(())
    });
}

#[test]
fn reload_gives_repair_its_new_budget() {
    const DATAGRAMS: u64 = 40;
    let folder = tempfile::tempdir().unwrap();
    let mut config = two_channels(&folder);
    config["end_when_inputs_end"] = json!(false);
    config["inputs"][0]["messages"] = json!(2_000);
    // A burst of one datagram, and then a byte a second.
    config["repair"] = json!({
        "repair_bytes_per_s": 1, "repair_burst_bytes": 8_968,
        "subscriber_bytes_per_s": 1, "subscriber_burst_bytes": 8_968,
    });
    let publisher = Publisher::start(&config);
    wait_for("datagrams", || {
        let status = page(&publisher, "/status");
        let sealed = status["channels"][0]["sealed_datagrams"].as_u64()?;
        (sealed >= DATAGRAMS).then_some(())
    });
    let mut control = publisher.connect();
    let epoch = control.join("lossy").channels[0].epoch;
    control.nack(epoch, &[(1, DATAGRAMS)]);
    config.as_object_mut().unwrap().remove("repair");
    write(&publisher, &config.to_string());
    assert_eq!(reload(&publisher)["state"], "reloaded");
    let mut repaired = BTreeSet::new();
    while repaired.len() < DATAGRAMS as usize {
        if let Said::Datagram(bytes) = control.next("a repair") {
            repaired.insert(Datagram::parse(&bytes).unwrap().header().sequence);
        }
    }
}

#[test]
fn refused_reload_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = two_channels(&folder);
    let mut publisher = Publisher::start(&config);
    let running = running_config(&publisher);
    let mut other = config.clone();
    other["channels"][0]["symbols"] = json!(["AAA"]);
    other["channels"][0]["slots"] = json!(8_192);
    other["ttl"] = json!(3);
    other["repair"] = json!({ "joiner_bytes_per_s": 5_000_000, "peers_max": 9 });
    let mut third = other["channels"][1].clone();
    third["id"] = json!(3);
    third["name"] = json!("third");
    third["fan_out"][0]["lines"][0]["group"] = json!(group());
    other["channels"].as_array_mut().unwrap().push(third);
    write(&publisher, &other.to_string());
    let answer = reload(&publisher);
    assert_eq!(answer["state"], "refused");
    let why: Vec<&str> = answer["why"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(why.len(), 4, "{why:?}");
    for (line, expected) in why.iter().zip([
        "channels[0].slots: 4096 -> 8192: needs a restart",
        "channels[2]: null -> {",
        "repair.peers_max: 1024 -> 9: needs a restart",
        "ttl: 0 -> 3: needs a restart",
    ]) {
        assert!(line.starts_with(expected), "{line}");
    }
    assert_eq!(running_config(&publisher), running);

    // A file that is no config names its place.
    write(&publisher, "{\n  \"name\": ,\n}");
    let answer = reload(&publisher);
    let why = answer["why"][0].as_str().unwrap();
    let place = format!("{}:2:11: ", publisher.path("config.json").display());
    assert!(why.starts_with(&place), "{why}");
    let mut wrong = config.clone();
    wrong["log"] = json!("tickcast=loud");
    write(&publisher, &wrong.to_string());
    let why = reload(&publisher)["why"][0].to_string();
    assert!(why.contains("log: "), "{why}");
    wait_for_counts(&publisher, 0, 3);
    assert_eq!(running_config(&publisher), running);
    assert!(publisher.is_running());
}

#[test]
fn sighup_reloads_and_reopens_the_audit_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = two_channels(&folder);
    let audit = folder.path().join("audit.jsonl");
    let mut publisher = Publisher::start_with(&config, &["--audit", audit.to_str().unwrap()]);
    config["repair"] = json!({ "joiner_bytes_per_s": 5_000_000 });
    write(&publisher, &config.to_string());
    std::fs::rename(&audit, folder.path().join("audit.1")).unwrap();
    hang_up(&publisher);
    wait_for_counts(&publisher, 1, 0);
    assert_eq!(
        running_config(&publisher)["repair"]["joiner_bytes_per_s"],
        5_000_000
    );
    wait_for("the audit line", || {
        let text = std::fs::read_to_string(&audit).ok()?;
        let line = text.lines().find(|line| line.contains("\"reloaded\""))?;
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["client"], "SIGHUP");
        assert!(
            line["why"].as_str().unwrap().contains("joiner_bytes_per_s"),
            "{line}"
        );
        Some(())
    });
    write(&publisher, "no config");
    hang_up(&publisher);
    wait_for_counts(&publisher, 1, 1);
    let metrics = publisher.get("/metrics");
    for series in [
        "commands_total{command=\"reload\",result=\"applied\"} 1",
        "commands_total{command=\"reload\",result=\"refused\"} 1",
    ] {
        assert!(
            metrics.contains(&format!("\ntickcast_publisher_{series}\n")),
            "{metrics}"
        );
    }
    assert!(publisher.is_running());
}

#[test]
fn log_selected_by_environment_is_not_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = two_channels(&folder);
    let publisher = Publisher::start_in(&config, &[], &[("RUST_LOG", "info")]);
    config["log"] = json!("debug");
    write(&publisher, &config.to_string());
    let answer = reload(&publisher);
    assert_eq!(
        answer["why"],
        json!(["log: RUST_LOG takes its place; restart without RUST_LOG"])
    );
    wait_for_counts(&publisher, 0, 1);
}

#[test]
fn diff_without_publisher_is_unreachable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let run = |config: &Value, diff: &str| {
        std::fs::write(&path, config.to_string()).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_tickcast-publisher"))
            .arg("--config")
            .arg(&path)
            .arg(diff)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), said)
    };
    let mut config = two_channels(&folder);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (code, said) = run(&config, &format!("--diff={address}"));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("shows no running config"), "{said}");
    config["admin"] = Value::Null;
    let (code, said) = run(&config, "--diff");
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("admin: null") && said.contains("--diff=ADDRESS"),
        "{said}"
    );
}
