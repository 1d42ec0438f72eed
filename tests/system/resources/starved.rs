//! A host that denies a process a resource for a while or for good: descriptors, room on a file system, the
//! processor, or the right time of day. The process reports it, others go on, and the process catches up.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tickcast_reliability::types::Nanos;
use tickcast_sim::faults::incident::Incident;
use tickcast_sim::faults::plan::Mode;
use tickcast_sim::faults::plan::Plan;
use tickcast_sim::report::Outcome;
use tickcast_sim::trace::Trace;
use tickcast_sim::world::run;
use tickcast_subscriber::Event;
use tickcast_test_support::{
    Follower, Publisher, binary, channel, drive, end, endless, free_group, one_channel, signal,
};

/// Starts a publisher, and a subscriber that has followed it for a while.
fn under_way() -> (Publisher, Vec<Follower>) {
    let publisher = Publisher::start(&one_channel(&[free_group()], endless(5_000, 1)));
    let mut followers = vec![Follower::new(publisher.subscriber().channel("all"))];
    get_on(&mut followers, 500);
    (publisher, followers)
}

/// Polls until the first follower has `more` records more.
fn get_on(followers: &mut [Follower], more: u64) {
    let records = |all: &[Follower]| all[0].records.values().sum::<u64>();
    let least = records(followers) + more;
    drive(followers, |all| records(all) >= least);
}

/// Limits a process's descriptors to numbers below `below`.
fn allow_descriptors(pid: u32, below: u64) {
    let args = [format!("--pid={pid}"), format!("--nofile={below}:")];
    let status = Command::new("prlimit").args(args).status();
    assert!(status.is_ok_and(|status| status.success()), "prlimit");
}

/// Returns the number of a process's next descriptor.
fn next_descriptor(pid: u32) -> u64 {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it is there");
    let numbers = open
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let numbers: Vec<u64> = numbers.collect();
    (0..).find(|n| !numbers.contains(n)).expect("there is one")
}

#[test]
fn publisher_without_descriptors_recovers() {
    let (publisher, mut followers) = under_way();
    allow_descriptors(publisher.id(), next_descriptor(publisher.id()));
    std::thread::scope(|scope| {
        // The system accepts both connections, but the publisher has no descriptor for them.
        let asked = scope.spawn(|| publisher.get("/metrics"));
        followers.push(Follower::new(publisher.subscriber().channel("all")));
        drive(&mut followers, |_| {
            publisher
                .log()
                .contains("the admin port can't accept a connection")
        });
        drive(&mut followers, |_| {
            let log = publisher.log();
            log.contains("the control port can't accept a connection")
                && log.contains("LimitNOFILE=")
        });
        get_on(&mut followers, 500);
        assert!(!asked.is_finished());
        assert!(followers[1].records.is_empty(), "it is not taken");
        allow_descriptors(publisher.id(), 1_024);
        get_on(&mut followers, 1);
        drive(&mut followers, |all| !all[1].records.is_empty());
        drive(&mut followers, |_| asked.is_finished());
        let (status, _) = asked.join().expect("no panic");
        assert_eq!(status, 200);
    });
    let metrics = publisher.metrics_now();
    let refused = |line: &str| {
        line.contains("connections_closed_total{endpoint=\"control\",reason=\"refused\"}")
    };
    let refused = metrics.lines().find(|line| refused(line));
    assert!(
        refused.is_some_and(|line| !line.ends_with(" 0")),
        "{metrics}"
    );
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    followers.iter().for_each(Follower::assert_balanced);
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
    assert!(followers.iter().all(|follower| follower.losses.is_empty()));
}

#[test]
fn subscriber_without_descriptors_names_failure() {
    let (publisher, mut followers) = under_way();
    let listen = |descriptors: u32, limit: &str| {
        Command::new("prlimit")
            .arg(format!("--nofile={descriptors}"))
            .arg(binary("tickcast"))
            .args(["listen", "--channel", "all", "--records", "50"])
            .args(["--join-timeout", limit, "--connect"])
            .arg(publisher.control.to_string())
            .output()
            .expect("prlimit runs")
    };
    // Three limits beyond the standard streams:
    // - One descriptor: the process can't wait for anything.
    // - Two descriptors: none is left for a connection.
    // - Enough for a connection: it follows over TCP, and reports that it can't list the interfaces.
    for (descriptors, what, limit, code) in [
        (
            4,
            "can't open a descriptor to wait on: Too many open files",
            "60",
            2,
        ),
        (
            5,
            "can't open a descriptor for a connection to the publisher: Too many open files",
            "1",
            1,
        ),
        (
            7,
            "channel all: the host's interfaces can't be listed: Too many open files",
            "60",
            1,
        ),
    ] {
        let output = listen(descriptors, limit);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(what), "with {descriptors}: {said}");
        assert_eq!(output.status.code(), Some(code), "{said}");
    }
    end(&publisher, &mut followers);
    let (_, summary) = publisher.finish();
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
}

/// A publisher that is stopped, like one whose control group has used up its share of the processor.
#[test]
fn paused_publisher_is_reported_and_nothing_lost() {
    let (publisher, mut followers) = under_way();
    for _ in 0..3 {
        let count = |all: &[Follower], wanted: &Event| {
            all[0]
                .events
                .iter()
                .filter(|event| *event == wanted)
                .count()
        };
        let (stale, fresh) = (
            count(&followers, &Event::Stale),
            count(&followers, &Event::Recovered),
        );
        signal(publisher.id(), "STOP");
        drive(&mut followers, |all| count(all, &Event::Stale) > stale);
        signal(publisher.id(), "CONT");
        drive(&mut followers, |all| count(all, &Event::Recovered) > fresh);
        get_on(&mut followers, 100);
    }
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success());
    followers[0].assert_balanced();
    assert!(followers[0].losses.is_empty());
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
}

/// Starts a publisher in namespaces of its own, with a file system of `bytes` at `small`. Returns `None`
/// if the host does not allow that.
fn with_a_small_file_system(
    small: &Path,
    bytes: u64,
    before: &str,
    config: &Value,
    also: &[&str],
) -> Option<Output> {
    let can = Command::new("unshare").args(["-rm", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: there can be no file system of a test's own here");
        return None;
    }
    let file = small.with_file_name("config.json");
    std::fs::write(&file, config.to_string()).expect("the config is written");
    let script =
        r#"mount -t tmpfs -o size="$2" tmpfs "$1" && cd "$1" && eval "$3" && shift 3 && exec "$@""#;
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", script, "sh"])
        .args([
            small.as_os_str(),
            bytes.to_string().as_ref(),
            before.as_ref(),
        ])
        .arg(binary("tickcast-publisher"))
        .arg("--config")
        .arg(file)
        .args(also)
        .output();
    Some(output.expect("unshare runs"))
}

#[test]
fn full_file_system_is_reported_before_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let small = folder.path().join("small");
    std::fs::create_dir(&small).expect("a folder");
    let elsewhere = folder.path().join("state");
    let config = |rings: Option<&Path>, state: &Path| {
        let mut config = one_channel(&[free_group()], endless(1_000, 0));
        config["state_dir"] = json!(state);
        if let Some(rings) = rings {
            config["ring_dir"] = json!(rings);
        }
        config
    };
    let fill = "head -c 16384 /dev/zero > fill";
    for (bytes, before, config, said) in [
        (
            1 << 20,
            ":",
            config(Some(&small.join("rings")), &elsewhere),
            [
                "test.all.ring can't have",
                "enlarge the file system, or configure fewer slots for the ring",
            ],
        ),
        (
            16_384,
            fill,
            config(None, &small.join("state")),
            [
                "state_dir: can't write",
                "No space left on device (os error 28); free space on its file system",
            ],
        ),
    ] {
        let Some(output) = with_a_small_file_system(&small, bytes, before, &config, &[]) else {
            return;
        };
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{log}");
        for said in said {
            assert!(log.contains(said), "{log}");
        }
    }
}

#[test]
fn check_names_file_system_without_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let small = folder.path().join("small");
    std::fs::create_dir(&small).expect("a folder");
    let mut config = one_channel(&[free_group()], endless(1_000, 0));
    config["channels"][0]["slots"] = json!(1024);
    config["journal"] = json!({ "directory": small.join("records"), "mib": 2 });
    config["state_dir"] = json!(folder.path().join("state"));
    config["ring_dir"] = json!(small.join("rings"));
    // A ring of 1.5 MiB and two journals.
    for (mib, is_told) in [(4, true), (8, false)] {
        let checked = with_a_small_file_system(&small, mib << 20, ":", &config, &["--check"]);
        let Some(output) = checked else {
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        let reported = format!(
            "{}: its file system has {} bytes left",
            small.display(),
            mib << 20
        );
        assert_eq!(said.contains(&reported), is_told, "{said}");
    }
}

#[test]
fn clock_steps_of_hours_change_no_delivery() {
    let ms = Nanos::from_ms;
    const HOUR_MS: i64 = 3_600_000;
    for seed in 0..20 {
        let run_with = |steps: &[(Nanos, i64)]| {
            let mut plan = Plan::of(seed, Some("iid"), None);
            plan.mode = Mode::Liveness;
            let steps = steps.iter().map(|(at, by)| (*at, Incident::ClockStep(*by)));
            plan.incidents.extend(steps);
            plan.incidents.sort_by_key(|(at, _)| *at);
            run(plan, Trace::default(), None)
        };
        let still = run_with(&[]);
        let stepped = run_with(&[
            (ms(7), 6 * HOUR_MS),
            (ms(15), -12 * HOUR_MS),
            (ms(30), 24 * HOUR_MS),
            (ms(45), -18 * HOUR_MS),
        ]);
        assert_eq!(stepped.violation, None, "seed {seed}");
        assert_eq!(stepped.faults.get("clock_step"), Some(&4), "seed {seed}");
        // Only timestamps may differ. NACKs and their number must be equal too.
        let of = |outcome: &Outcome| {
            let t = &outcome.tally;
            let stream = (
                t.published,
                t.sealed,
                t.records,
                t.gaps,
                t.recovered,
                t.history,
            );
            let repair = (t.asked, t.nacked, t.answered, t.refused, t.repairs.clone());
            (stream, repair, t.unrecoverable.clone())
        };
        assert_eq!(of(&stepped), of(&still), "seed {seed}");
    }
}
