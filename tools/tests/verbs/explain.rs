//! Journals of killed processes show where each datagram was lost, and can be replayed.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Publisher, run, signal, start, text, wait_for};
use serde_json::Value;
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};

/// A path on tmpfs that nothing else uses; the file is removed after the test.
struct Record(PathBuf);

impl Record {
    fn new(name: &str) -> Self {
        Self(format!("/dev/shm/tickcast-{name}-{}", std::process::id()).into())
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_file(format!("{}.before", self.0.display()));
    }
}

fn explained(options: &[&str], file: &Path) -> (Value, Option<i32>) {
    let file = file.to_str().unwrap();
    let done = run(&[&["explain", file, "--json"], options].concat());
    let reported = serde_json::from_slice(&done.stdout);
    (
        reported.unwrap_or_else(|_| panic!("{}", text(&done.stderr))),
        done.status.code(),
    )
}

#[test]
fn killed_listeners_journal_names_every_injected_loss() {
    let mut publisher = Publisher::endless();
    let record = Record::new("killed");
    let to = format!("{}:32", record.path());
    let control = publisher.control.clone();
    let mut listener = start(&[
        "listen",
        "--connect",
        &control,
        "--channel",
        "all",
        "--journal",
        &to,
        "--drop",
        "0.02",
        "--seed",
        "5",
        "--format",
        "count",
    ]);
    let mut first = None;
    wait_for("some losses", || {
        let status = publisher.status();
        let sequence = status["subscribers"][0]["sequence"].as_u64()?;
        // It may have joined late.
        (sequence > *first.get_or_insert(sequence) + 2_000).then_some(())
    });
    signal(listener.child().id(), "KILL");
    drop(listener);
    publisher.end();
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("losses.html");
    let done = run(&["explain", record.path(), "--report", page.to_str().unwrap()]);
    let written = std::fs::read_to_string(&page).unwrap();
    for line in text(&done.stdout).lines() {
        let line = line.replace('&', "&amp;").replace('<', "&lt;");
        let line = line.replace('>', "&gt;").replace('"', "&quot;");
        assert!(written.contains(&line), "no {line} in {written}");
    }
    assert!(written.contains("<h1>Losses</h1>") && !written.contains("<svg"));
    let (reported, code) = explained(&["--replay"], &record.0);
    assert_eq!(code, Some(0), "all of it came after all: {reported}");
    assert_eq!(
        (&reported["whole"], &reported["replay"]["identical"]),
        (&true.into(), &true.into())
    );
    assert!(reported["replay"]["inputs"].as_u64().unwrap() > 2_000);
    let findings = reported["explanation"]["findings"].as_array().unwrap();
    let injected = |it: &&Value| it["origin"]["injected"] == 0;
    let by_fault = findings.iter().filter(injected).count();
    assert!(by_fault > 10, "{by_fault} of {}", findings.len());
    // Losses of the machine itself are not attributed to the injected faults.
    let others = findings.len() - by_fault;
    assert!(
        others * 5 < by_fault,
        "{others} others beside {by_fault}: {reported}"
    );
    // Check the text output, for all gaps and for one.
    let words = text(&run(&["explain", record.path()]).stdout);
    assert!(words.contains("an injected fault dropped them on line A in this host"));
    assert!(words.contains("the findings add up to the same"), "{words}");
    let gap = text(&run(&["explain", record.path(), "--gap", "1"]).stdout);
    assert!(
        gap.contains("events around the gap:") && gap.contains("requested"),
        "{gap}"
    );
    let nothing = run(&["explain", record.path(), "--at", "2001-01-01T00:00:00Z"]);
    assert_eq!(
        nothing.status.code(),
        Some(2),
        "that is before this host was started"
    );
    let reported = text(&nothing.stdout);
    assert!(
        reported.contains("the journal does not cover this time: it runs from"),
        "{reported}"
    );
    assert_eq!(
        reported.lines().count(),
        2,
        "and nothing of what was missing: {reported}"
    );
}

#[test]
fn existing_journal_is_kept_and_open_one_refused() {
    let mut publisher = Publisher::endless();
    let record = Record::new("kept");
    let to = format!("{}:4", record.path());
    let control = publisher.control.clone();
    let args = [
        "listen",
        "--connect",
        &control,
        "--channel",
        "all",
        "--journal",
        &to,
        "--format",
        "count",
    ];
    let mut first = start(&args);
    wait_for("the record", || {
        let reported = run(&["explain", record.path(), "--json"]);
        (reported.status.code() == Some(0)).then_some(())
    });
    let second = run(&args);
    assert_eq!(second.status.code(), Some(2), "{}", text(&second.stderr));
    assert!(text(&second.stderr).contains("belongs to another process"));
    signal(first.child().id(), "KILL");
    drop(first);
    let third = run(&[&args[..], &["--records", "5"]].concat());
    assert_eq!(third.status.code(), Some(0), "{}", text(&third.stderr));
    for file in [
        record.path().to_owned(),
        format!("{}.before", record.path()),
    ] {
        let (reported, _) = explained(&[], Path::new(&file));
        assert!(reported["origin"]["process"].as_u64().unwrap() > 0);
    }
    publisher.end();
}

#[test]
fn killed_publisher_leaves_explainable_journal() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut publisher = Publisher::recorded(folder.path());
    let heard = folder.path().join("heard.journal");
    let to = format!("{}:16", heard.display());
    let control = publisher.control.clone();
    let mut listener = start(&[
        "listen",
        "--connect",
        &control,
        "--channel",
        "all",
        "--journal",
        &to,
        "--drop",
        "0.02",
        "--seed",
        "5",
        "--format",
        "count",
    ]);
    let mut first = None;
    wait_for("some losses", || {
        let status = publisher.status();
        let sequence = status["subscribers"][0]["sequence"].as_u64()?;
        // It may have joined late.
        (sequence > *first.get_or_insert(sequence) + 1_000).then_some(())
    });
    signal(publisher.id(), "KILL");
    signal(listener.child().id(), "KILL");
    drop((listener, publisher));
    let file = |name: &str| folder.path().join(name);
    let (sent, code) = explained(&["--replay"], &file("test.7.journal"));
    assert_eq!(code, Some(0), "{sent}");
    assert_eq!(sent["replay"]["identical"], true, "{sent}");
    assert!(sent["explanation"]["totals"]["sealed"].as_u64().unwrap() > 1_000);
    let (served, _) = explained(&[], &file("test.repair.journal"));
    let serving = &served["explanation"]["serving"];
    assert_eq!(serving["joined"], 1, "{served}");
    assert!(serving["given"].as_u64().unwrap() > 0, "{served}");
    // All records together as text, for all gaps and for the first repaired one.
    let files = ["heard.journal", "test.7.journal", "test.repair.journal"].map(file);
    let files = files.each_ref().map(|it| it.to_str().unwrap());
    let words = text(&run(&[&["explain"], &files[..]].concat()).stdout);
    assert!(words.contains("sent to the network"), "{words}");
    assert!(
        words.contains("an injected fault dropped them on line A"),
        "{words}"
    );
    let reported: Value =
        serde_json::from_slice(&run(&["explain", "--json", files[0]]).stdout).unwrap();
    let findings = reported["explanation"]["findings"].as_array().unwrap();
    let repaired = findings.iter().find(|it| it["fate"]["came"] == "repair");
    let gap = repaired.unwrap()["gap"].to_string();
    let around = [&["explain", "--gap", &gap], &files[..]].concat();
    let around = text(&run(&around).stdout);
    for said in ["test.7  sealed: data", "requests", "repair to peer"] {
        assert!(around.contains(said), "no {said:?} in {around}");
    }
    // A restarted publisher keeps the earlier record.
    let mut again = Publisher::recorded(folder.path());
    let (before, _) = explained(&[], &file("test.7.journal.before"));
    assert_eq!(
        before["explanation"]["totals"]["sealed"],
        sent["explanation"]["totals"]["sealed"]
    );
    again.end();
}

#[test]
fn stalled_publishers_socket_drops_differ_from_venue() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut publisher = Publisher::live_recorded(folder.path());
    let market = SimulatorConfig {
        symbols: 5,
        messages: 1 << 20,
        ..SimulatorConfig::default()
    };
    let mut simulator = Simulator::new(&market, 1).unwrap();
    let feed = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (listen, id) = (publisher.input.clone(), publisher.id());
    let mut send = |count: u64, pause: Duration| {
        for _ in 0..count {
            let packet = simulator.next_packet().unwrap();
            if pause < Duration::MAX {
                feed.send_to(packet.payload, &listen).unwrap();
                std::thread::sleep(pause);
            }
        }
    };
    let paced = Duration::from_micros(200);
    send(20, paced);
    // Withhold one packet, which makes a gap of the venue.
    send(1, Duration::MAX);
    send(20, paced);
    let file = folder.path().join("test.7.journal");
    let findings = || explained(&[], &file).0["explanation"]["findings"].clone();
    wait_for("the venue's gap", || {
        (findings().as_array()?.len() == 1).then_some(())
    });
    let last = wait_for("the loss", || {
        signal(id, "STOP");
        send(4_000, Duration::ZERO);
        std::thread::sleep(Duration::from_millis(100));
        signal(id, "CONT");
        // The input may be interrupted once more before it finds the gap. Then it is stopped again.
        send(20, paced);
        let findings = findings();
        let stopped = |it: &&Value| it["stalled_for"].as_u64() >= Some(100_000_000);
        findings.as_array()?.iter().find(stopped).cloned()
    });
    publisher.end();
    assert!(last["buffer_drops"].as_u64().unwrap() > 0, "{last}");
    assert_eq!(last["origin"], "input_stall", "{last}");
    assert!(
        last["stalled_for"].as_u64().unwrap() >= 100_000_000,
        "{last}"
    );
    assert_eq!(findings()[0]["origin"], "source_line");
    let words = text(&run(&["explain", file.to_str().unwrap()]).stdout);
    assert!(
        words.contains("in the publisher's host, in the socket of its input"),
        "{words}"
    );
    assert!(
        words.contains("before the publisher: the venue's lines had a gap"),
        "{words}"
    );
}

#[test]
fn own_interface_drop_differs_from_wire() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let Some(mut publisher) = Publisher::on_a_slow_link(folder.path()) else {
        return;
    };
    let file = folder.path().join("test.7.journal");
    let refused = wait_for("a loss", || {
        let reported = explained(&[], &file).0;
        let findings = reported["explanation"]["findings"].as_array()?;
        let refused = |it: &&Value| it["origin"]["send_refused"] == 0;
        findings.iter().find(refused).cloned()
    });
    assert!(refused["buffer_drops"].as_u64().unwrap() > 0, "{refused}");
    signal(publisher.id(), "KILL");
    let words = text(&run(&["explain", file.to_str().unwrap()]).stdout);
    assert!(
        words.contains("the network refused datagrams on line A"),
        "{words}"
    );
}

#[test]
fn invalid_journal_is_refused_with_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other");
    for (bytes, words) in [
        (vec![7; 100], "is not a journal"),
        (vec![7; 100_000], "is not a journal"),
        (
            [&b"TCFLIGHT\x09\0\0\0"[..], &[0; 8000]].concat(),
            "layout 9",
        ),
        (
            [
                &b"TCFLIGHT\x01\0\0\0\x08\0\0\0\0\0\0\x01\0\0\0\0"[..],
                &[0; 8000],
            ]
            .concat(),
            "is damaged",
        ),
        (
            [&b"TCFLIGHT\x01\0\0\0"[..], &[0; 8000]].concat(),
            "is damaged",
        ),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let done = run(&["explain", path.to_str().unwrap()]);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    }
    let gone = run(&["explain", "/dev/shm/tickcast-no-such-record"]);
    assert_eq!(gone.status.code(), Some(2));
    let disk = run(&[
        "listen",
        "--connect",
        "127.0.0.1:1",
        "--channel",
        "a",
        "--journal",
        "/etc/x",
    ]);
    assert_eq!(disk.status.code(), Some(2), "{}", text(&disk.stderr));
    let little = run(&[
        "listen",
        "--connect",
        "127.0.0.1:1",
        "--channel",
        "a",
        "--journal",
        "/x:1",
    ]);
    assert!(text(&little.stderr).contains("give 2 to 65536"));
}
