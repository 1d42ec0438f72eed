//! An inspection reports each line of a feed, and its exit code is the verdict.

use crate::common::{data, run, text};
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
