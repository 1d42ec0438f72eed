//! `tickcast top` and `tickcast loss` against a publisher with two subscribers on a lossy network.

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{ChannelBuilder, ReceiverConfig};
use tickcast_test_support::{
    Follower, Publisher, binary, drive, end, endless, free_address, free_group, number, one_channel,
};

/// Runs a command to its end while the followers receive.
fn run(arguments: &[&str], followers: &mut [Follower]) -> Output {
    let mut child = Command::new(binary("tickcast"))
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut has_ended = || child.try_wait().expect("the child can be asked").is_some();
    drive(followers, |_| has_ended());
    child.wait_with_output().expect("the command ends")
}

fn status(publisher: &Publisher) -> Value {
    let (code, page) = publisher.get("/status");
    assert_eq!(code, 200);
    serde_json::from_str(&page).expect("JSON")
}

fn subscriber<'a>(all: &'a Value, name: &str) -> &'a Value {
    let list = all["subscribers"].as_array().expect("a list");
    let found = list.iter().find(|it| it["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {all}"))
}

fn follower(publisher: &Publisher, name: &str, repair: bool) -> Follower {
    let faults = FaultConfig {
        seed: 7,
        drop: 0.05,
        ..FaultConfig::default()
    };
    let config = ReceiverConfig {
        repair,
        ..ReceiverConfig::default()
    };
    let builder = publisher.subscriber().name(name).faults(faults);
    Follower::new(builder.channel(ChannelBuilder::new("all").config(config)))
}

#[test]
fn top_and_loss_agree_with_the_status_of_a_lossy_run() {
    let publisher = Publisher::start(&one_channel(&[free_group()], endless(20_000, 2)));
    let admin = publisher.admin.expect("an admin port").to_string();
    let mut followers = [
        follower(&publisher, "repairs", true),
        follower(&publisher, "loses", false),
    ];
    drive(&mut followers, |_| {
        let now = status(&publisher);
        let all = now["subscribers"].as_array().expect("a list");
        let lost = all.iter().find(|it| it["name"] == "loses");
        number(&now["channels"][0], "answered") > 20
            && lost.is_some_and(|it| number(it, "lost_records") > 0)
    });

    let before = status(&publisher);
    let top = run(
        &["top", &admin, "--once", "--json", "--wait", "60"],
        &mut followers,
    );
    assert!(top.status.success(), "{top:?}");
    let top: Value = serde_json::from_slice(&top.stdout).expect("JSON");
    // The page that `top` read may be as old as the render before.
    let after = publisher_status_after(&publisher, &mut followers, &top);

    let row = &top["publishers"][0];
    assert_eq!(
        (&row["epoch"], &row["name"]),
        (&before["epoch"], &before["name"])
    );
    assert_eq!(
        (&row["state"], &row["subscribers"]),
        (&"publishing".into(), &2.into())
    );
    let between = |what: &str, shown: &Value, [from, to]: [&Value; 2], key: &str| {
        let shown = shown.as_u64().expect("a number");
        let bounds = number(from, key)..=number(to, key);
        assert!(
            bounds.contains(&shown),
            "{what} {key}: {shown} is not in {bounds:?}"
        );
    };
    between(
        "publisher",
        &row["records"],
        [&before, &after],
        "published_records",
    );
    let channels = [&before["channels"][0], &after["channels"][0]];
    for key in ["sealed", "nacked", "refused_budget"] {
        between("channel", &top["channels"][0][key], channels, key);
    }
    for (nth, line) in top["lines"].as_array().expect("a list").iter().enumerate() {
        let lines = channels.map(|it| &it["lines"][nth]);
        between("line", &line["datagrams"], lines, "datagrams");
    }
    let sources = [&before["sources"][0], &after["sources"][0]];
    between(
        "source",
        &top["sources"][0]["messages"],
        sources,
        "messages_total",
    );
    for name in ["repairs", "loses"] {
        let ends = [&before, &after].map(|it| subscriber(it, name));
        let shown = subscriber(&top, name);
        for key in ["sequence", "lost_records"] {
            between(name, &shown[key], ends, key);
        }
        assert_eq!(shown["channel"], "all");
    }
    assert!(row["records_per_s"].as_f64().expect("a rate") > 0.0);

    let loss = run(&["loss", &admin, "--json", "--wait", "60"], &mut followers);
    assert_eq!(loss.status.code(), Some(1), "one of them loses: {loss:?}");
    let lines = String::from_utf8(loss.stdout).expect("UTF-8");
    let losses: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["loss"].take())
        .collect();
    let of = |name: &str, outcome: &str| {
        let found = losses
            .iter()
            .filter(|it| it["subscriber"] == name && it["outcome"] == outcome);
        found.cloned().collect::<Vec<_>>()
    };
    let repaired = of("repairs", "repaired");
    assert!(!repaired.is_empty(), "{losses:?}");
    for it in &repaired {
        assert!(
            number(it, "answered") > 0 && number(it, "requests") > 0,
            "{it}"
        );
        assert!(it["took_us"].is_u64(), "{it}");
    }
    assert!(of("repairs", "lost").is_empty(), "{losses:?}");
    let lost = of("loses", "lost");
    assert!(!lost.is_empty(), "{losses:?}");
    for it in &lost {
        assert!(
            number(it, "lost_records") > 0 && it["requested"].is_null(),
            "{it}"
        );
    }
    end(&publisher, &mut followers);
}

#[test]
fn latency_of_a_subscriber_is_shown_by_its_publisher() {
    let publisher = Publisher::start(&one_channel(&[free_group()], endless(5_000, 2)));
    let admin = publisher.admin.expect("an admin port").to_string();
    let builder = publisher.subscriber().name("measures").channel("all");
    let silent = publisher.subscriber().name("silent").channel("all");
    let mut followers = [
        Follower::new(builder.latency_reports(true)),
        Follower::new(silent),
    ];
    let delivered = |of: &Value| {
        let mut stages = of["latency"]["stages"].as_array().into_iter().flatten();
        stages
            .find(|it| it["stage"] == "sealed_to_delivered")
            .cloned()
    };
    let mut now = Value::Null;
    drive(&mut followers, |_| {
        now = status(&publisher);
        let all = now["subscribers"].as_array().expect("a list");
        all.len() == 2 && all.iter().any(|it| delivered(it).is_some())
    });
    let shown = delivered(subscriber(&now, "measures")).expect("a stage");
    let spans = ["p50_ns", "p99_ns", "p999_ns", "max_ns"].map(|it| number(&shown, it));
    assert!(spans.is_sorted() && spans[0] > 0, "{shown}");
    assert!(number(&shown, "samples") > 0, "{shown}");
    // Both sides read one clock.
    assert_eq!(shown["supported"], true, "{now}");
    assert!(subscriber(&now, "silent")["latency"].is_null());

    let (code, metrics) = publisher.get("/metrics");
    assert_eq!(code, 200);
    let p99 = metrics.lines().find(|line| {
        line.starts_with("tickcast_publisher_subscriber_latency_seconds{subscriber=\"measures\"")
            && line.contains("stage=\"sealed_to_delivered\",percentile=\"99\"}")
    });
    let p99 = p99.unwrap_or_else(|| panic!("no p99 in {metrics}"));
    let seconds: f64 = (p99.rsplit(' ').next().expect("a value"))
        .parse()
        .expect("a number");
    assert!(seconds > 0.0, "{p99}");
    assert!(!metrics.contains("subscriber_latency_seconds{subscriber=\"silent\""));

    let top = run(
        &["top", &admin, "--once", "--json", "--wait", "60"],
        &mut followers,
    );
    assert!(top.status.success(), "{top:?}");
    let top: Value = serde_json::from_slice(&top.stdout).expect("JSON");
    let shown = delivered(subscriber(&top, "measures")).expect("a stage");
    assert!(number(&shown, "p99_ns") > 0, "{shown}");
    assert!(subscriber(&top, "silent")["latency"].is_null());
    end(&publisher, &mut followers);
}

/// Returns a status that is no older than the sample.
fn publisher_status_after(
    publisher: &Publisher,
    followers: &mut [Follower],
    sample: &Value,
) -> Value {
    let shown = number(&sample["publishers"][0], "records");
    let mut last = Value::Null;
    drive(followers, |_| {
        last = status(publisher);
        number(&last, "published_records") > shown
    });
    last
}

#[test]
fn top_without_any_publisher_exits_as_unreachable() {
    let address = free_address().to_string();
    let top = run(
        &["top", &address, "--once", "--json", "--every", "0.2"],
        &mut [],
    );
    assert_eq!(top.status.code(), Some(3), "{top:?}");
    let rows: Value = serde_json::from_slice(&top.stdout).expect("JSON");
    assert_eq!(rows["publishers"][0]["state"], "unreachable");
    assert!(rows["publishers"][0]["problem"].is_string());
    let loss = run(&["loss", &address], &mut []);
    assert_eq!(loss.status.code(), Some(3), "{loss:?}");
}
