//! The subscriber's smallest example runs unchanged.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use tickcast_test_support::{
    PATIENCE, Publisher, binary, free_group, number, one_channel, signal, simulated,
};

#[test]
fn hello_prints_every_record_and_ends_with_the_session() {
    let publisher = Publisher::start(&one_channel(&[free_group()], simulated(2_000, 20_000, 1)));
    let output = Command::new(binary("examples/hello"))
        .args([&publisher.control.to_string(), "all"])
        .output()
        .expect("hello runs");
    assert!(output.status.success());
    let (_, summary) = publisher.finish();
    let text = String::from_utf8_lossy(&output.stdout);
    let is_record = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    let records = text.lines().filter(is_record).count() as u64;
    assert_eq!(records, number(&summary, "published_records"));
    assert!(text.ends_with("end of session\n"));
}

#[test]
fn hello_example_reports_unknown_channel_with_list() {
    let publisher = Publisher::start(&one_channel(&[free_group()], simulated(2_000, 20_000, 1)));
    let mut hello = Command::new("timeout")
        .arg(PATIENCE.as_secs().to_string())
        .arg(binary("examples/hello"))
        .args([&publisher.control.to_string(), "equitees"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hello runs");
    let mut said = String::new();
    let stderr = hello.stderr.take().expect("a pipe");
    BufReader::new(stderr).read_line(&mut said).expect("text");
    signal(hello.id(), "TERM");
    hello.wait().expect("it ends");
    assert!(said.contains("equitees") && said.contains("all"), "{said}");
}
