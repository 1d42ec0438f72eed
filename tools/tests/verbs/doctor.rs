//! `tickcast doctor`: findings against a config, the script that fixes them, and multicast between two hosts.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tickcast_test_support::network::{Neighbour, OwnNetwork, own_network};
use tickcast_test_support::test_name;

use crate::common::{Publisher, Running, group, run, text, tickcast};

/// The stages where multicast may stop, in the reports of both directions.
const SENDER: [&str; 3] = ["peer-sender-interface"; 3];
const RECEIVER: [&str; 3] = ["peer-receiver-interface"; 3];
const IP: [&str; 3] = ["peer-receiver-ip"; 3];
const PASSES: [&str; 3] = ["peer"; 3];

/// Writes a config for this group, with further settings.
fn config(folder: &Path, group: SocketAddrV4, settings: Value) -> PathBuf {
    let mut config = json!({
        "name": "a", "control": "127.0.0.1:0",
        "channels": [{
            "id": 1, "name": "all", "slots": 1024, "peak_datagrams_per_s": 500,
            "fan_out": [{ "transport": "udp", "lines": [{ "group": group }] }],
        }],
        "inputs": [{ "source": 1, "kind": "simulator", "symbols": 20, "messages": 100 }],
    });
    for (key, value) in settings.as_object().unwrap() {
        config[key] = value.clone();
    }
    let path = folder.join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// Returns exit code and report of a doctor.
fn report(args: &[&str]) -> (Option<i32>, Value) {
    let done = run(&[&["doctor", "--json"], args].concat());
    let said = text(&done.stderr);
    let report = serde_json::from_slice(&done.stdout).expect(&said);
    (done.status.code(), report)
}

/// Returns the verdicts of a subject.
fn verdicts<'a>(report: &'a Value, id: &str) -> Vec<&'a str> {
    let checks = report["checks"].as_array().unwrap().iter();
    let own = checks.filter(|check| check["id"] == id);
    own.map(|check| check["verdict"].as_str().unwrap())
        .collect()
}

#[test]
fn doctor_compares_host_with_config() {
    let folder = tempfile::tempdir().unwrap();
    let path = config(folder.path(), group(), json!({}));
    let path = path.to_str().unwrap();
    let (_, sound) = report(&["--config", path]);
    assert_eq!(verdicts(&sound, "config"), ["ok"], "{sound:#}");
    // The host under this test may lack memory, or another publisher may use its loopback.
    for id in ["groups-in-use", "interface", "multicast", "memory"] {
        assert_eq!(verdicts(&sound, id).len(), 1, "{id}: {sound:#}");
    }
    let impossible = json!({ "threads": { "idle": "spin", "feed_core": 9_999 } });
    let path = config(folder.path(), group(), impossible);
    let path = path.to_str().unwrap();
    let (code, report) = report(&["--config", path]);
    assert_eq!(code, Some(1), "{report:#}");
    for id in ["config", "cores"] {
        assert_eq!(verdicts(&report, id), ["error"], "{id}: {report:#}");
    }
    let missing = run(&["doctor", "--config", "/nonexistent/config.json"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("/nonexistent/config.json"));
}

#[test]
fn doctor_reports_another_publisher_on_the_groups() {
    let mut publisher = Publisher::endless();
    let folder = tempfile::tempdir().unwrap();
    let path = config(folder.path(), publisher.group, json!({}));
    // A try listens for some heartbeats only, and a publisher on a busy machine may miss these.
    let args = ["--config", path.to_str().unwrap()];
    let mut tries = (0..30).map(|_| report(&args));
    let found = tries.find(|(_, report)| verdicts(report, "groups-in-use") == ["error"]);
    publisher.end();
    let (code, report) = found.expect("the publisher is heard");
    assert_eq!(code, Some(1), "{report:#}");
}

#[test]
fn fix_script_of_this_host_is_valid_for_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let settings = json!({ "threads": { "idle": "spin", "feed_core": 0, "publish_core": 0 } });
    let path = config(folder.path(), group(), settings);
    let args = ["doctor", "--fix-script", "--config", path.to_str().unwrap()];
    let done = run(&args);
    let script = text(&done.stdout);
    assert!(script.starts_with("#!/bin/sh\n"), "{script}");
    assert!(
        script.contains("\nset -eu\n") && script.contains("\n# cores: "),
        "{script}"
    );
    let mut shell = Command::new("sh")
        .args(["-n", "-s"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(&done.stdout).unwrap();
    assert!(shell.wait().unwrap().success(), "{script}");
}

/// A doctor that answers.
struct Answering {
    process: Running,
    address: String,
}

impl Answering {
    /// Starts it, and waits for the line that names its address.
    fn start(command: &mut Command) -> Self {
        let mut process = Running::start(command.stdout(Stdio::piped()));
        let output = process.child().stdout.as_mut().unwrap();
        let mut line = String::new();
        // It says no more before a run ends, so nothing is lost with this reader.
        BufReader::new(output).read_line(&mut line).unwrap();
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(words[..2], ["answering", "at"], "{line}");
        let address = words[2].to_owned();
        Self { process, address }
    }

    /// Waits for its end. Returns the exit code.
    fn end(self) -> Option<i32> {
        self.process.output().status.code()
    }
}

#[test]
fn doctors_exchange_multicast_among_strangers() {
    let group = group().to_string();
    let options = ["--ttl", "0", "--group", &group];
    let answer = [&["doctor", "--answer", "127.0.0.1:0"], &options[..]].concat();
    let answering = Answering::start(&mut tickcast(&answer));
    let hello = json!({ "hello": {
        "version": 1, "group": group, "run": 1, "interface": "lo", "mtu": 0,
    } });
    for bytes in [
        vec![b'a'; 1 << 20],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        format!("{hello}\n{{\"receive\":7}}\n").into_bytes(),
        format!("{hello}\n{}", "{\"send\":64}\n".repeat(1_000)).into_bytes(),
        b"{\"hello\":".to_vec(),
    ] {
        let mut stranger = TcpStream::connect(&answering.address).unwrap();
        // The doctor may hang up before the end.
        let _ = stranger.write_all(&bytes);
    }
    let peer = [&["--peer", &answering.address], &options[..]].concat();
    let (code, report) = report(&peer);
    assert_eq!(verdicts(&report, "peer"), ["ok"; 6], "{report:#}");
    assert_eq!(report["passages"][5]["arrived"], 10, "{report:#}");
    assert_eq!((code, answering.end()), (Some(0), Some(0)));
    let nobody = run(&["doctor", "--peer", "127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(3));
    assert!(text(&nobody.stderr).contains("--answer"));
}

/// Runs shell commands of a test.
fn shell(mut command: Command, script: &str) {
    let status = command.args(["-ec", script]).status();
    assert!(status.unwrap().success(), "{script}");
}

/// Two hosts, between which a test puts defects: this process's network, and a neighbour's.
struct Hosts(Neighbour);

impl Hosts {
    /// Returns the hosts inside the network of the named test; `None` if there is nothing more to do.
    fn of(test: &str) -> Option<Self> {
        match own_network(&test_name(module_path!(), test)) {
            OwnNetwork::Ran => return None,
            OwnNetwork::Inside => {}
            OwnNetwork::Denied => {
                eprintln!("SKIPPED: no network of a test's own can be made here");
                return None;
            }
        }
        let neighbour = Neighbour::new();
        if neighbour.is_none() {
            eprintln!("SKIPPED: there are no pairs of network devices here");
        }
        neighbour.map(Self)
    }

    fn here(&self, script: &str) {
        shell(Command::new("sh"), script);
    }

    fn there(&self, script: &str) {
        shell(self.0.command("sh"), script);
    }

    /// Asks the neighbour. Returns the subjects of all results, first those of this host's datagrams, and the
    /// report.
    fn ask(&self, options: &[&str]) -> (Vec<String>, Value) {
        let mut command = self.0.command(env!("CARGO_BIN_EXE_tickcast"));
        let answering = Answering::start(command.args(["doctor", "--answer", "10.99.0.2:0"]));
        let peer = [&["--peer", &answering.address], options].concat();
        let (code, report) = report(&peer);
        assert_eq!(answering.end(), Some(0), "{report:#}");
        let checks = report["checks"].as_array().unwrap().iter();
        let ids: Vec<_> = checks
            .map(|it| it["id"].as_str().unwrap().to_owned())
            .collect();
        let errors = report["counts"]["error"].as_u64().unwrap();
        assert_eq!(code, Some(i32::from(errors > 0)), "{report:#}");
        (ids, report)
    }
}

/// Returns the remedy of a result.
fn remedy(report: &Value, at: usize) -> &str {
    report["checks"][at]["do"].as_str().unwrap()
}

#[test]
fn doctor_names_stage_where_multicast_stops() {
    let Some(hosts) = Hosts::of("doctor_names_stage_where_multicast_stops") else {
        return;
    };
    let (ids, report) = hosts.ask(&[]);
    assert_eq!(ids, ["peer"; 6], "{report:#}");
    let (ids, report) = hosts.ask(&["--ttl", "0"]);
    assert_eq!(ids, [SENDER, PASSES].concat(), "{report:#}");
    // The neighbour has no route to this source, and then drops it.
    hosts.here("ip address add 10.98.0.1/32 dev veth0");
    hosts.there("echo 1 >/proc/sys/net/ipv4/conf/veth1/rp_filter");
    let (ids, report) = hosts.ask(&["--interface", "10.98.0.1"]);
    assert_eq!(ids[..3], IP, "{report:#}");
    let says = remedy(&report, 0);
    assert!(says.contains("rp_filter=2"), "{says}");
    hosts.there("echo 0 >/proc/sys/net/ipv4/conf/veth1/rp_filter");
    // A pair of devices drops what the other end does not take.
    hosts.there("ip link set veth1 mtu 1000");
    let (ids, report) = hosts.ask(&[]);
    assert_eq!(ids[..3], [PASSES[0], SENDER[0], SENDER[0]], "{report:#}");
    let says = remedy(&report, 1);
    assert!(says.starts_with("shorter datagrams pass"), "{says}");
}

#[test]
fn doctor_on_a_wrong_interface_says_so_for_both_ways() {
    let Some(hosts) = Hosts::of("doctor_on_a_wrong_interface_says_so_for_both_ways") else {
        return;
    };
    // The cable of this interface ends at no host.
    hosts.here(
        "ip link add veth8 type veth peer name veth9; ip address add 10.97.0.1/24 dev veth8; \
         ip link set veth8 up; ip link set veth9 up",
    );
    let (ids, report) = hosts.ask(&["--interface", "veth8"]);
    assert_eq!(ids, [RECEIVER, RECEIVER].concat(), "{report:#}");
    for (at, interface) in [(0, "veth1"), (3, "veth8")] {
        let says = remedy(&report, at);
        let asks = format!("is {interface} the right interface");
        assert!(says.contains(&asks), "{says}");
    }
}

/// A route neither leads datagrams elsewhere nor rejects them, because the doctor names the interface, as
/// publishers and subscribers do.
#[test]
fn doctor_without_a_route_to_groups_still_passes() {
    let Some(hosts) = Hosts::of("doctor_without_a_route_to_groups_still_passes") else {
        return;
    };
    for route in ["unreachable", "blackhole", "prohibit"] {
        let add = format!("ip route add {route} 239.0.0.0/8");
        hosts.here(&add);
        hosts.there(&add);
        let (ids, report) = hosts.ask(&[]);
        assert_eq!(ids, ["peer"; 6], "{route}: {report:#}");
        let remove = format!("ip route del {route} 239.0.0.0/8");
        hosts.here(&remove);
        hosts.there(&remove);
    }
}

/// A switch that floods no groups stands between the hosts, and has no membership: it snoops without a
/// querier. The test puts it into the neighbour, in front of its interface.
#[test]
fn doctor_behind_a_snooping_switch_blames_the_way() {
    let Some(hosts) = Hosts::of("doctor_behind_a_snooping_switch_blames_the_way") else {
        return;
    };
    let mut bridge = hosts.0.command("ip");
    bridge.args("link add br0 type bridge mcast_snooping 1".split(' '));
    if !bridge.status().unwrap().success() {
        eprintln!("SKIPPED: there are no bridges here");
        return;
    }
    hosts.there(
        "ip address flush dev veth1; ip link add veth2 type veth peer name veth3; \
         ip link set veth1 master br0; ip link set veth2 master br0; \
         ip link set br0 up; ip link set veth2 up; ip link set veth3 up; \
         ip address add 10.99.0.2/24 dev veth3",
    );
    let (ids, report) = hosts.ask(&[]);
    assert_eq!(ids, ["peer"; 6], "{report:#}");
    hosts.there("ip link set veth2 type bridge_slave mcast_flood off");
    let (ids, report) = hosts.ask(&[]);
    assert_eq!(ids, [RECEIVER, PASSES].concat(), "{report:#}");
    let says = remedy(&report, 0);
    assert!(says.contains("snoop IGMP without a querier"), "{says}");
    let passage = &report["passages"][0];
    assert_eq!(passage["sent"], 10, "{passage:#}");
    assert_eq!(passage["arrived"], 0, "{passage:#}");
}

#[test]
fn doctor_of_a_subscriber_checks_the_published_groups() {
    let folder = tempfile::tempdir().unwrap();
    // A publisher on this host would refuse both.
    let settings = json!({
        "threads": { "idle": "spin", "feed_core": 9_999 },
        "inputs": [{ "source": 1, "kind": "capture", "file": "/nonexistent.pcap" }],
    });
    let path = config(folder.path(), group(), settings);
    let path = path.to_str().unwrap();
    let (code, of_publisher) = report(&["--config", path]);
    assert_eq!(code, Some(1), "{of_publisher:#}");
    let (code, report) = report(&["--config", path, "--role", "subscriber"]);
    let checks = report["checks"].as_array().unwrap();
    // The host under this test may have errors of its own.
    let errs = checks.iter().any(|check| check["verdict"] == "error");
    assert_eq!(code, Some(i32::from(errs)), "{report:#}");
    for id in ["interface", "multicast"] {
        assert_eq!(verdicts(&report, id).len(), 1, "{id}: {report:#}");
    }
    for id in ["config", "cores"] {
        assert!(
            !verdicts(&report, id).contains(&"error"),
            "{id}: {report:#}"
        );
    }
    assert!(verdicts(&report, "config").is_empty());
    let usage = run(&["doctor", "--role", "subscriber"]);
    assert_eq!(usage.status.code(), Some(2));
}
