//! Checks of clocks: the kernel's source, and the agreement with other hosts.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::super::check::{Check, Fix, Subject};
use crate::commands::tree::Tree;

const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0";
/// Largest error of the clock, in seconds, that latencies between hosts bear: the latency of a datagram
/// within one network is of this size.
const ERROR_MAX_S: f64 = 50e-6;
/// Time limit for chronyd or ptp4l to answer.
const PATIENCE: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_millis(10);
/// Longest answer that is read.
const ANSWER_LEN_MAX: u64 = 4_096;

/// Runs all checks of clocks.
pub(super) fn checks(tree: &Tree) -> Vec<Check> {
    let running = tree.processes();
    let answer = if !tree.is_this_host() {
        None
    } else if running.contains("chronyd") {
        answer_of("chronyc", &["-n", "tracking"])
    } else if running.contains("ptp4l") {
        answer_of("pmc", &["-u", "-b", "0", "GET TIME_STATUS_NP"])
    } else {
        None
    };
    vec![source(tree), agreement(tree, answer.as_deref())]
}

/// Returns whether a word can be the name of a clock source.
fn is_name(word: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    word.starts_with(|first: char| first.is_ascii_alphabetic()) && word.bytes().all(is_of_name)
}

fn source(tree: &Tree) -> Check {
    let id = Subject::ClockSource;
    let current = format!("{CLOCK_SOURCE}/current_clocksource");
    let source = match tree.word(&current) {
        None => return Check::unknown(id, "this system does not report its clock source"),
        // The second one is that of ARM.
        Some(source) if source == "tsc" || source == "arch_sys_counter" => {
            return Check::ok(id, "the kernel's clock source is the processor's counter");
        }
        Some(source) if !is_name(&source) => {
            return Check::unknown(id, "this system does not report its clock source");
        }
        Some(source) => source,
    };
    let available = tree.word(&format!("{CLOCK_SOURCE}/available_clocksource"));
    let has_counter = available.is_some_and(|list| list.split(' ').any(|it| it == "tsc"));
    let check = |remedy: &str| {
        Check::note(
            id,
            format!("the kernel's clock source is {source}, not the processor's counter"),
            "each reading of the clock is a slower call, and each datagram needs two",
            remedy,
        )
    };
    if has_counter {
        return check("").fixed_by([Fix::write(&current, "tsc", &source)]);
    }
    check("find out why in `dmesg | grep -i tsc`; on a virtual machine ask for an invariant TSC")
}

/// Returns the output of a program; `None` if there is no such program, or no answer in time.
fn answer_of(program: &str, args: &[&str]) -> Option<String> {
    let mut asking = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let until = Instant::now() + PATIENCE;
    while matches!(asking.try_wait(), Ok(None)) {
        if Instant::now() >= until {
            // Both fail only if it has ended meanwhile.
            let _ = asking.kill();
            let _ = asking.wait();
            return None;
        }
        std::thread::sleep(POLL_EVERY);
    }
    let mut text = String::new();
    let answer = asking.stdout.take()?;
    answer.take(ANSWER_LEN_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the bound of the clock's error in seconds from chronyd's account: offset, half the delay, and
/// dispersion. `None` if chronyd follows no source.
fn error_bound_s(tracking: &str) -> Option<f64> {
    let field = |name: &str| {
        let mut lines = tracking.lines().filter_map(|line| line.split_once(':'));
        let (_, value) = lines.find(|(key, _)| key.trim() == name)?;
        Some(value.trim())
    };
    let seconds = |name| -> Option<f64> { field(name)?.split(' ').next()?.parse().ok() };
    if field("Leap status")? == "Not synchronised" {
        return None;
    }
    let (offset, delay) = (seconds("System time")?, seconds("Root delay")?);
    let bound = offset.abs() + delay.abs() / 2.0 + seconds("Root dispersion")?.abs();
    bound.is_finite().then_some(bound)
}

/// Returns the offset from the master in seconds from ptp4l's answer. `None` if it has no master.
fn offset_of_master_s(answer: &str) -> Option<f64> {
    let field = |name: &str| {
        let mut lines = answer.lines().map(str::split_ascii_whitespace);
        lines.find_map(|mut words| words.next().filter(|it| *it == name).and(words.next()))
    };
    let offset_ns: f64 = field("master_offset")?.parse().ok()?;
    (field("gmPresent")? == "true" && offset_ns.is_finite()).then_some(offset_ns / 1e9)
}

/// Reports the program that keeps the clock, by the answer of chronyd or ptp4l.
fn agreement(tree: &Tree, answer: Option<&str>) -> Check {
    let id = Subject::ClockSync;
    let running = tree.processes();
    if running.is_empty() {
        return Check::unknown(id, "this system does not report its processes");
    }
    let runs = |name: &str| running.contains(name);
    let clocks = tree.names("/sys/class/ptp").into_iter().map(|clock| {
        let name = tree.word(&format!("/sys/class/ptp/{clock}/clock_name"));
        format!("{clock} ({})", name.unwrap_or_default())
    });
    let clocks: Vec<_> = clocks.collect();
    let devices = match clocks.is_empty() {
        true => "no device has a PTP clock".to_owned(),
        false => format!("PTP clocks: {}", clocks.join(", ")),
    };
    let why =
        "latency between hosts is the difference of their clocks, so it is as wrong as they are";
    if runs("chronyd") {
        let Some(tracking) = answer else {
            return Check::unknown(
                id,
                format!("chronyd runs; `chronyc` does not answer; {devices}"),
            );
        };
        return match error_bound_s(tracking) {
            None => Check::note(
                id,
                format!("chronyd runs and follows no source; {devices}"),
                why,
                "check `chronyc sources`, and the servers in its config",
            ),
            Some(bound) if bound > ERROR_MAX_S => Check::note(
                id,
                format!(
                    "chronyd bounds the error to {:.0} us; {devices}",
                    bound * 1e6
                ),
                why,
                "use a server of the same network with hardware time stamps (hwtimestamp in the \
                 config of chronyd), or PTP",
            ),
            Some(bound) => Check::ok(
                id,
                format!(
                    "chronyd bounds the error to {:.1} us; {devices}",
                    bound * 1e6
                ),
            ),
        };
    }
    if runs("ptp4l") {
        let offset_s = answer.map(offset_of_master_s);
        if let Some(offset_s) = offset_s
            && offset_s.is_none_or(|offset_s| offset_s.abs() > ERROR_MAX_S)
        {
            let found = match offset_s {
                None => format!("ptp4l runs and follows no master; {devices}"),
                Some(offset_s) => format!(
                    "the clock of ptp4l is {:.0} us from its master; {devices}",
                    offset_s * 1e6
                ),
            };
            let remedy = "check its log, and `pmc -u -b 0 'GET TIME_STATUS_NP'`: does the switch \
                          forward PTP, and does the port take hardware time stamps?";
            return Check::note(id, found, why, remedy);
        }
        if runs("phc2sys") || runs("timemaster") {
            let offset = match offset_s.flatten() {
                Some(offset_s) => format!("{:.1} us from its master", offset_s * 1e6),
                None => "its offset can't be read (`pmc` as root)".to_owned(),
            };
            let found = format!("ptp4l and phc2sys run; {offset}; {devices}");
            return Check::ok(id, found);
        }
        return Check::note(
            id,
            format!("ptp4l runs without phc2sys; {devices}"),
            "the clock of the device follows the master, and the system's clock, by which time stamps \
             are taken, follows nothing",
            "run phc2sys beside it, for example `phc2sys -a -r`",
        );
    }
    // The kernel cuts names of processes to 15 bytes.
    if runs("systemd-timesyn") || runs("ntpd") {
        return Check::note(
            id,
            format!("a simple NTP client runs; {devices}"),
            "it keeps the clock within milliseconds, and latencies are microseconds",
            "use chrony or linuxptp in its place",
        );
    }
    let start = Fix::command(
        &["systemctl", "enable", "--now", "chronyd"],
        &["systemctl", "disable", "--now", "chronyd"],
    )
    .or_else_print(
        "chronyd does not start: install chrony or linuxptp, then run this command again",
    );
    Check::note(
        id,
        format!("no program keeps the clock; {devices}"),
        why,
        "install chrony or linuxptp first",
    )
    .fixed_by([start])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::check::Verdict;
    use crate::commands::tree::FakedTree;

    #[test]
    fn clock_source_other_than_the_counter_is_reported() {
        let current = format!("{CLOCK_SOURCE}/current_clocksource");
        let faked = FakedTree::of(&[(&current, "tsc\n")]);
        assert_eq!(source(&faked.tree()).verdict(), Verdict::Ok);
        faked.put(&current, "hpet\n");
        let check = source(&faked.tree());
        assert_eq!(check.verdict(), Verdict::Note);
        assert!(check.commands().is_empty() && check.remedy().contains("dmesg"));
        let available = format!("{CLOCK_SOURCE}/available_clocksource");
        faked.put(&available, "tsc hpet acpi_pm \n");
        let check = source(&faked.tree());
        let fix = &check.commands()[0];
        assert_eq!(fix.run(), format!("echo tsc > {current}"));
        assert_eq!(fix.undo(), format!("echo hpet > {current}"));
        faked.put(&current, "\u{fffd} x\n");
        assert_eq!(source(&faked.tree()).verdict(), Verdict::Unknown);
        let none = FakedTree::of(&[]);
        assert_eq!(source(&none.tree()).verdict(), Verdict::Unknown);
    }

    fn tracking(offset: &str, leap: &str) -> String {
        format!(
            "Reference ID    : C0A80001 (192.168.0.1)\nStratum         : 2\n\
             System time     : {offset} seconds slow of NTP time\n\
             Root delay      : 0.000020000 seconds\nRoot dispersion : 0.000005000 seconds\n\
             Leap status     : {leap}\n"
        )
    }

    #[test]
    fn clock_that_agrees_with_nothing_is_reported() {
        let with = |names: &[&str], tracking: Option<&str>| {
            let faked = FakedTree::of(&[("/sys/class/ptp/ptp0/clock_name", "mlx5\n")]);
            for (id, name) in names.iter().enumerate() {
                faked.put(&format!("/proc/{id}/comm"), format!("{name}\n"));
            }
            agreement(&faked.tree(), tracking)
        };
        let none = with(&["bash"], None);
        assert_eq!(none.verdict(), Verdict::Note);
        assert!(none.found().contains("ptp0 (mlx5)"), "{none}");
        let run = none.commands()[0].run();
        // A fix script goes on where chronyd is not installed.
        let expected = "systemctl enable --now chronyd || echo 'chronyd does not start";
        assert!(run.starts_with(expected), "{run}");
        assert_eq!(with(&["ptp4l"], None).verdict(), Verdict::Note);
        assert_eq!(with(&["ptp4l", "phc2sys"], None).verdict(), Verdict::Ok);
        let ptp = |offset: &str, present: &str| {
            let answer = format!(
                "sending: GET TIME_STATUS_NP\n\t0-0 seq 0 RESPONSE MANAGEMENT TIME_STATUS_NP \n\
                 \t\tmaster_offset     {offset}\n\t\tgmPresent     {present}\n"
            );
            with(&["ptp4l", "phc2sys"], Some(&answer)).verdict()
        };
        assert_eq!(ptp("-23", "true"), Verdict::Ok);
        assert_eq!(ptp("-51000", "true"), Verdict::Note);
        assert_eq!(ptp("0", "false"), Verdict::Note);
        assert_eq!(ptp("inf", "true"), Verdict::Note);
        assert_eq!(with(&["systemd-timesyn"], None).verdict(), Verdict::Note);
        let chrony = |text: &str| with(&["chronyd"], Some(text)).verdict();
        assert_eq!(chrony(&tracking("0.000001501", "Normal")), Verdict::Ok);
        assert_eq!(chrony(&tracking("0.000901501", "Normal")), Verdict::Note);
        let lost = tracking("0.000000000", "Not synchronised");
        assert_eq!(chrony(&lost), Verdict::Note);
        assert_eq!(chrony("506 Cannot talk to daemon"), Verdict::Note);
        assert_eq!(with(&["chronyd"], None).verdict(), Verdict::Unknown);
        let none = FakedTree::of(&[]);
        assert_eq!(agreement(&none.tree(), None).verdict(), Verdict::Unknown);
    }

    #[test]
    fn error_of_the_clock_is_the_sum_of_its_parts() {
        let bound = error_bound_s(&tracking("0.000001000", "Normal")).unwrap();
        assert!((bound - 16e-6).abs() < 1e-12, "{bound}");
        assert_eq!(error_bound_s(&tracking("NaN", "Normal")), None);
    }
}
