//! The subscriber's smallest example runs as it stands.

mod common;

use std::process::Command;

use common::{Publisher, binary, free_group, number, one_channel, simulated};

#[test]
fn hello_prints_every_record_and_ends_with_the_session() {
    let publisher = Publisher::start(&one_channel(&[free_group()], simulated(2_000, 20_000, 1)));
    let output = Command::new(binary("examples/hello"))
        .arg(publisher.control.to_string())
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
