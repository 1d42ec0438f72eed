//! Checks of a system call trace between two mark calls.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// System calls of polling. A poll reads from the network, and now and then from the publisher, even if
/// nothing has arrived. The last one is how a worker idles.
const OF_POLLS: [&str; 4] = ["recvmsg", "recvmmsg", "recvfrom", "clock_nanosleep"];
/// The system call that marks begin and end of the counted part.
const MARK: &str = "getppid";
/// The system call by which a thread waits for a taken lock, and wakes other waiting threads.
const OF_LOCKS: &str = "futex";

/// Number of calls, by name of the system call.
pub type Counts<'a> = BTreeMap<&'a str, u64>;

/// Returns the calls of a trace in order, each as thread and name.
fn calls(trace: &str) -> impl Iterator<Item = (&str, &str)> {
    trace.lines().filter_map(|line| {
        let (thread, call) = line.split_once(char::is_whitespace)?;
        let name = call.trim_start().split('(').next()?;
        // The second half of a call that another thread interrupted.
        (!name.starts_with('<')).then_some((thread, name))
    })
}

/// Checks that strace is installed, and that this host permits it to trace.
///
/// # Errors
/// The reason why system calls can't be counted here.
pub fn strace_works() -> Result<(), String> {
    let tried = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "true"])
        .output();
    let why = match tried {
        Ok(done) if done.status.success() => return Ok(()),
        Ok(done) => format!("strace can't trace here: {}", crate::text(&done.stderr)),
        Err(_) => "strace is not here; `make setup` installs it".to_owned(),
    };
    Err(format!("system calls are not counted: {why}"))
}

/// Runs `traced` until it succeeds, and panics with all errors after ten failed runs. A machine that
/// stops a program for a while causes gaps, and repairing them takes system calls.
pub fn once(mut traced: impl FnMut() -> Result<(), String>) {
    let mut found = Vec::new();
    while let Err(wrong) = traced() {
        found.push(wrong);
        assert!(found.len() < 10, "{found:#?}");
    }
}

/// Checks the system calls between the two marks (`getppid`) of a traced program.
///
/// # Errors
/// - Calls other than those of receiving reach 1 % of `ticks`.
/// - A thread waited for a lock.
/// - `reads_ring` is set, and the reading thread made any call.
pub fn calls_are_receiving(trace: &Path, ticks: u64, reads_ring: bool) -> Result<(), String> {
    let trace = std::fs::read_to_string(trace).expect("the trace");
    let mut calls = calls(&trace).skip_while(|(_, name)| *name != MARK);
    let (marking, _) = calls.next().expect("the first mark");
    let mut counts = BTreeMap::<(bool, &str), u64>::new();
    let mut is_marked = false;
    for (thread, name) in calls {
        is_marked = name == MARK;
        if is_marked {
            break;
        }
        *counts.entry((thread == marking, name)).or_default() += 1;
    }
    println!("{counts:?}");
    assert!(is_marked, "the second mark");
    let received = counts.keys().any(|(_, name)| name.ends_with("msg"));
    assert!(received, "it received meanwhile: {counts:?}");
    if reads_ring && counts.keys().any(|(is_reader, _)| *is_reader) {
        return Err(format!("the reader calls the system: {counts:?}"));
    }
    if counts.keys().any(|(_, name)| *name == OF_LOCKS) {
        return Err(format!("a lock is waited for: {counts:?}"));
    }
    let others = counts
        .iter()
        .filter(|((_, name), _)| !OF_POLLS.contains(name));
    let others: u64 = others.map(|(_, count)| count).sum();
    match others * 100 < ticks {
        true => Ok(()),
        false => Err(format!("{others} calls beside receiving: {counts:?}")),
    }
}

/// Returns the counts of the threads that called the mark, in the order of their first marks.
///
/// # Errors
/// - A thread made more than one system call per `for_each` datagrams between its two marks.
/// - A thread waited for a lock.
pub fn calls_are_few(
    trace: &str,
    datagrams: u64,
    for_each: u64,
) -> Result<Vec<Counts<'_>>, String> {
    let (mut order, mut open, mut done) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for (thread, name) in calls(trace) {
        if name != MARK {
            if let Some(counts) = open.get_mut(thread) {
                *Counts::entry(counts, name).or_default() += 1;
            }
        } else if let Some(counts) = open.remove(thread) {
            done.insert(thread, counts);
        } else {
            order.push(thread);
            open.insert(thread, Counts::new());
        }
    }
    let counts = order
        .iter()
        .map(|thread| done.remove(thread).expect("its second mark"));
    let counts: Vec<Counts<'_>> = counts.collect();
    println!("{datagrams} datagrams: {counts:?}");
    for counts in &counts {
        if counts.contains_key(OF_LOCKS) {
            return Err(format!("a lock is waited for: {counts:?}"));
        }
        let all: u64 = counts.values().sum();
        if all * for_each > datagrams {
            return Err(format!("{all} for {datagrams} datagrams: {counts:?}"));
        }
    }
    Ok(counts)
}
