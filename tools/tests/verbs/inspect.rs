//! An inspection reports each line of a feed, and its exit code is the verdict.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use crate::common::{Running, data, run, signal, text, tickcast, wait_for};
use serde_json::{Value, json};

#[test]
fn lines_of_one_feed_are_reported_and_their_union_is_whole() {
    let Some(path) = data("intake/14_ab_lines_B_late_3_packets.pcap") else {
        return;
    };
    let path = path.display().to_string();
    let inspect = |options: &[&str]| {
        let done = run(&[&["inspect", &path, "--json"], options].concat());
        let said = text(&done.stderr);
        let summary: Value = serde_json::from_slice(&done.stdout).expect(&said);
        (done.status.code(), summary)
    };
    let (code, both) = inspect(&[]);
    assert_eq!(code, Some(0), "{both:#}");
    let feed = &both["feeds"][0];
    assert_eq!(
        (&feed["messages"], &feed["duplicates"]),
        (&json!(42), &json!(38))
    );
    let lines = [("239.1.2.3:26400", 4), ("239.1.3.3:26400", 0)];
    for (line, (destination, missing)) in lines.into_iter().enumerate() {
        let line = &feed["lines"][line];
        assert_eq!(line["destination"], destination);
        assert_eq!(
            (&line["file"], &line["missing"]),
            (&json!(0), &json!(missing))
        );
    }
    let (code, one) = inspect(&["--only", "239.1.2.3:26400"]);
    assert_eq!(code, Some(1), "{one:#}");
    assert_eq!(
        (&one["whole"], &one["feeds"][0]["missing"]),
        (&json!(false), &json!(4))
    );
    let faults = one["faults"].to_string();
    assert!(faults.contains("4 messages are missing"), "{faults}");
}

#[test]
fn pipe_and_standard_input_give_the_result_of_the_file() {
    let Some(path) = data("intake/01_eth_us.pcap") else {
        return;
    };
    let result = |done: &Output| {
        let said = text(&done.stderr);
        let summary: Value = serde_json::from_slice(&done.stdout).expect(&said);
        (done.status.code(), summary["feeds"].clone())
    };
    let of_file = result(&run(&["inspect", &path.display().to_string(), "--json"]));
    assert_eq!(of_file.0, Some(0), "{:#}", of_file.1);
    assert_eq!(of_file.1[0]["messages"], json!(42));

    let piped = Command::new(env!("CARGO_BIN_EXE_tickcast"))
        .args(["inspect", "-", "--json"])
        .stdin(File::open(&path).unwrap())
        .output();
    assert_eq!(result(&piped.unwrap()), of_file);

    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("day.pcap");
    let made = Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let writer = std::thread::spawn({
        let fifo = fifo.clone();
        move || std::fs::write(fifo, std::fs::read(path).unwrap())
    });
    let read = run(&["inspect", &fifo.display().to_string(), "--json"]);
    writer.join().unwrap().unwrap();
    assert_eq!(result(&read), of_file);
}

#[test]
fn empty_file_is_a_finding_and_no_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.pcap");
    File::create(&path).unwrap();
    let path = path.display().to_string();
    for command in [
        &["inspect", &path][..],
        &["replay", &path, "--to", "127.0.0.1:9"],
    ] {
        let done = run(command);
        let said = text(&done.stderr);
        assert_eq!(done.status.code(), Some(1), "{said}");
        assert!(
            said.contains("is empty") && said.lines().count() == 1,
            "{said}"
        );
    }
}

/// Nobody ever writes into the pipe: the command names what it waits for, and a signal ends it.
#[test]
fn wait_for_the_writer_of_a_pipe_is_told_and_ends_by_signal() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("day.pcap");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let pipe = pipe.to_str().unwrap();
    for command in [
        &["inspect", pipe][..],
        &["replay", pipe, "--to", "127.0.0.1:9", "--quiet"],
    ] {
        let said = folder.path().join("said");
        let errors = File::create(&said).unwrap();
        let mut waiting = Running::start(tickcast(command).stderr(errors));
        let expected = format!("waiting for the writer of the pipe {pipe}\n");
        wait_for("the line that names the pipe", || {
            (std::fs::read_to_string(&said).unwrap() == expected).then_some(())
        });
        // A parent in the background of a shell may ignore the interrupt, and so would the command.
        signal(waiting.child().id(), "TERM");
        let ended = waiting.output().status;
        assert_eq!(
            (ended.code(), ended.signal()),
            (None, Some(15)),
            "{command:?}"
        );
    }
}
