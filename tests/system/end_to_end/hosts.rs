//! Publisher and subscribers on two hosts: a network namespace each, with devices between them.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tickcast_test_support::network::{Neighbour, OwnNetwork, own_network, own_network_of_root};
use tickcast_test_support::{
    Publisher, Running, binary, channel, endless, free_group, number, one_channel, test_name,
    wait_for,
};

/// `tickcast listen` on the neighbour.
struct Listener {
    process: Running,
    name: &'static str,
}

impl Listener {
    fn start(
        host: &Neighbour,
        publisher: &Publisher,
        folder: &Path,
        name: &'static str,
        also: &[&str],
    ) -> Self {
        let log = File::create(folder.join(name)).expect("the log is created");
        let mut command = host.command(binary("tickcast"));
        command
            .args(["listen", "--connect", &publisher.control.to_string()])
            .args(["--channel", "all", "--format", "count", "--digest"])
            .args(["--name", name, "--summary"])
            .arg(folder.join(name).with_extension("json"))
            .args(also)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        Self {
            process: Running::start(&mut command),
            name,
        }
    }

    /// Waits for the end, and returns the summary of the channel.
    fn summary(&mut self, folder: &Path) -> Value {
        let status = self.process.child().wait().expect("it ends");
        let log = std::fs::read_to_string(folder.join(self.name)).expect("a log");
        assert!(status.success(), "{status}: {log}");
        let summary = folder.join(self.name).with_extension("json");
        let summary = std::fs::read_to_string(summary).expect("a summary");
        let summary: Value = serde_json::from_str(&summary).expect("JSON");
        summary["channels"][0].clone()
    }
}

#[test]
fn subscriber_on_another_host_receives_by_multicast() {
    let name = test_name(
        module_path!(),
        "subscriber_on_another_host_receives_by_multicast",
    );
    match own_network(&name) {
        OwnNetwork::Ran => return,
        OwnNetwork::Inside => {}
        OwnNetwork::Denied => {
            eprintln!("SKIPPED: no network of a test's own can be made here");
            return;
        }
    }
    let Some(host) = Neighbour::new() else {
        eprintln!("SKIPPED: there are no pairs of network devices here");
        return;
    };
    let group = free_group();
    let mut config = one_channel(&[group], endless(2_000, 2));
    config["control"] = json!(format!("{}:0", Neighbour::OURS));
    config["interface"] = json!(Neighbour::OURS.to_string());
    config["ttl"] = json!(1);
    let publisher = Publisher::start(&config);
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut default = Listener::start(&host, &publisher, folder, "default", &[]);
    let loopback = ["--interface", "lo"];
    let mut astray = Listener::start(&host, &publisher, folder, "astray", &loopback);
    let report = wait_for("the report of lost multicast", || {
        let log = std::fs::read_to_string(folder.join("astray")).ok()?;
        let report = log
            .lines()
            .find(|line| line.contains("multicast lost: nothing"));
        report.map(str::to_owned)
    });
    let target = format!("{group} on lo (127.0.0.1) from {}", Neighbour::OURS);
    assert!(report.contains(&target), "{report}");
    assert!(report.contains("interface is on the publisher's network"));
    wait_for("1,000 records", || {
        let (_, status) = publisher.get("/status");
        let status: Value = serde_json::from_str(&status).expect("JSON");
        (number(&status, "published_records") >= 1_000).then_some(())
    });
    publisher.terminate();
    let [default, astray] = [&mut default, &mut astray].map(|it| it.summary(folder));
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    for listener in [&default, &astray] {
        assert_eq!(listener["digest"], channel(&summary)["digest"]);
    }
    let [by_default, by_loopback] = [&default, &astray].map(|listener| {
        [
            "received_datagrams",
            "repairs_received",
            "multicast_lost",
            "delivered_datagrams",
        ]
        .map(|name| number(&listener["counters"], name))
    });
    // On a stalled machine repairs overtake multicast, so their share shows nothing.
    let [received, repaired, _, delivered] = by_default;
    assert!(received >= delivered && received > repaired, "{default}");
    let [received, repaired, lost, delivered] = by_loopback;
    assert!(repaired >= delivered, "{astray}");
    assert_eq!(received, repaired, "{astray}");
    assert!(lost > 0, "{astray}");
}

#[test]
fn subscriber_on_another_host_receives_by_af_xdp() {
    let name = test_name(
        module_path!(),
        "subscriber_on_another_host_receives_by_af_xdp",
    );
    match own_network_of_root(&name) {
        OwnNetwork::Ran => return,
        OwnNetwork::Inside => {}
        OwnNetwork::Denied => {
            eprintln!("SKIPPED: no network with root's own rights can be made here");
            return;
        }
    }
    let Some(host) = Neighbour::new() else {
        eprintln!("SKIPPED: there are no pairs of network devices here");
        return;
    };
    let groups = [free_group(), free_group()];
    let mut config = one_channel(&groups, endless(2_000, 1));
    config["control"] = json!(format!("{}:0", Neighbour::OURS));
    config["interface"] = json!(Neighbour::OURS.to_string());
    config["ttl"] = json!(1);
    let publisher = Publisher::start(&config);
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let by_xdp = ["--transport", "xdp"];
    let mut first = Listener::start(&host, &publisher, folder, "first", &by_xdp);
    let told = |name: &str, words: &str| {
        let log = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        log.lines().find(|it| it.contains(words)).map(str::to_owned)
    };
    let refused = wait_for("the program, or an error", || {
        let device = host.command("ip").args(["link", "show", "veth1"]).output();
        let device = device.expect("it starts").stdout;
        let is_tapped = String::from_utf8_lossy(&device).contains("prog/xdp");
        let refused = told("first", "can't receive the channel");
        (is_tapped || refused.is_some()).then_some(refused)
    });
    if let Some(refused) = refused {
        let is_here = !refused.contains("CAP_BPF") && !refused.contains("CONFIG_XDP_SOCKETS");
        assert!(!is_here, "{refused}");
        eprintln!("SKIPPED: no AF_XDP here: {refused}");
        return;
    }
    // The interface has its process, and another one may use UDP.
    let mut late = Listener::start(&host, &publisher, folder, "late", &by_xdp);
    wait_for("the refusal of a second process", || {
        told("late", "has an XDP program or an AF_XDP socket already")
    });
    late.process.child().kill().expect("it runs");
    wait_for("1,000 records", || {
        let (_, status) = publisher.get("/status");
        let status: Value = serde_json::from_str(&status).expect("JSON");
        (number(&status, "published_records") >= 1_000).then_some(())
    });
    publisher.terminate();
    let listener = first.summary(folder);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    assert_eq!(listener["digest"], channel(&summary)["digest"]);
    let count = |name| number(&listener["counters"], name);
    // Both lines bring each datagram.
    assert!(count("duplicates") > 0, "{listener}");
    assert!(
        count("received_datagrams") > count("repairs_received"),
        "{listener}"
    );
    assert_eq!(count("malformed_dropped"), 0, "{listener}");
}
