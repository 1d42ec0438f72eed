//! Reads a trace of system calls, between the two that mark its beginning and end.

use std::collections::BTreeMap;
use std::path::Path;

/// What a poll calls: it reads from the network, and now and then from the publisher, however
/// little is there. The rest is how a worker was told to idle.
const OF_POLLS: [&str; 4] = ["recvmsg", "recvmmsg", "recvfrom", "clock_nanosleep"];

/// That between its two marks (`getppid`) a program made no system calls per tick but those of
/// receiving, and where it reads a local ring, none at all in the reading thread.
pub(crate) fn assert_calls_are_receiving(trace: &Path, ticks: u64, reads_ring: bool) {
    let trace = std::fs::read_to_string(trace).expect("the trace");
    let lines = trace.lines().filter_map(|line| {
        let (thread, call) = line.split_once(char::is_whitespace)?;
        Some((thread, call.trim_start()))
    });
    let is_mark = |(_, call): &(&str, &str)| call.starts_with("getppid");
    let mut lines = lines.skip_while(|line| !is_mark(line));
    let (marking, _) = lines.next().expect("the first mark");
    let mut counts = BTreeMap::<(bool, &str), u64>::new();
    let mut is_marked = false;
    for line in lines {
        is_marked = is_mark(&line);
        if is_marked {
            break;
        }
        let (thread, call) = line;
        let name = call.split('(').next().unwrap_or_default();
        // The second half of one that another thread interrupted.
        if !name.starts_with('<') {
            *counts.entry((thread == marking, name)).or_default() += 1;
        }
    }
    println!("{counts:?}");
    assert!(is_marked, "the second mark");
    let received = counts.keys().any(|(_, name)| name.ends_with("msg"));
    assert!(received, "it received meanwhile: {counts:?}");
    if reads_ring {
        let of_reader = counts.keys().filter(|(is_reader, _)| *is_reader);
        assert_eq!(of_reader.count(), 0, "the reader calls nothing: {counts:?}");
    }
    let others = counts
        .iter()
        .filter(|((_, name), _)| !OF_POLLS.contains(name));
    let others: u64 = others.map(|(_, count)| count).sum();
    assert!(
        others * 100 < ticks,
        "{others} system calls beside receiving: {counts:?}"
    );
}
