//! A publisher and its standby as processes, and subscribers in this process that know both.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::thread::JoinHandle;

use serde_json::{Value, json};
use tickcast_publisher::internal::http::ask;
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{ChannelBuilder, Event, ReceiverConfig, Subscriber};

use tickcast_test_support::{
    Follower, PATIENCE, Publisher, channel, drive, endless, free_group, number, one_channel,
};

/// Messages a second of the feed of publisher and standby.
pub const RATE: u64 = 5_000;

pub fn loses(seed: u64) -> FaultConfig {
    dropping(seed, 0.02)
}

pub fn dropping(seed: u64, drop: f64) -> FaultConfig {
    FaultConfig {
        seed,
        drop,
        ..FaultConfig::default()
    }
}

/// Returns the config of a publisher that begins with `followers` subscribers and may hand over to "b".
pub fn publisher(followers: u32) -> Value {
    let mut config = one_channel(&[free_group()], endless(RATE, followers));
    config["name"] = "a".into();
    config["hand_over_to"] = json!(["b"]);
    config
}

/// Returns the config of a standby for the running publisher with this config.
pub fn standby_of(running: &Publisher, config: &Value) -> Value {
    let mut config = config.clone();
    config["name"] = "b".into();
    // Long enough for a slow machine.
    config["standby"] = json!({ "of": running.control, "commands": running.command_socket, "hand_over_ms": 100_000 });
    // Its own socket lies in its own folder.
    config["commands"] = Value::Null;
    config
}

/// Starts a publisher and its standby, after `change` has edited the publisher's config and the standby's
/// differences.
pub fn pair(followers: u32, change: impl FnOnce(&mut Value, &mut Value)) -> (Publisher, Publisher) {
    let mut first = publisher(followers + 1);
    let mut second = json!({});
    change(&mut first, &mut second);
    let a = Publisher::start(&first);
    let mut config = standby_of(&a, &first);
    for (key, value) in second.as_object().expect("an object") {
        match (config[key].as_object_mut(), value.as_object()) {
            (Some(to), Some(from)) => to.extend(from.clone()),
            _ => config[key] = value.clone(),
        }
    }
    let b = Publisher::start(&config);
    (a, b)
}

/// Returns a config that does not give up gaps during a promotion, however long it takes.
pub fn patient() -> ReceiverConfig {
    ReceiverConfig {
        dead_us: 600_000_000,
        ..ReceiverConfig::default()
    }
}

/// Starts followers that know both publishers, each with its faults.
pub fn following(a: &Publisher, b: &Publisher, faults: &[Option<FaultConfig>]) -> Vec<Follower> {
    let follower = |(n, faults): (usize, &Option<FaultConfig>)| {
        let builder = Subscriber::builder([a.control.to_string(), b.control.to_string()])
            .name(format!("s{n}"))
            .seed(n as u64)
            .channel(ChannelBuilder::new("all").config(patient()));
        Follower::new(match faults {
            Some(faults) => builder.faults(faults.clone()),
            None => builder,
        })
    };
    faults.iter().enumerate().map(follower).collect()
}

pub fn records(follower: &Follower) -> u64 {
    follower.records.values().sum()
}

/// Polls until each follower has `more` records more.
pub fn get_on(followers: &mut [Follower], more: u64) {
    let before: Vec<u64> = followers.iter().map(records).collect();
    drive(followers, |all| {
        let mut all = all.iter().zip(&before);
        all.all(|(follower, before)| records(follower) >= before + more)
    });
}

/// Returns a standby's own status.
pub fn reported(standby: &Publisher) -> Value {
    let (status, text) = standby.get("/standby");
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

/// Polls until the standby has a mirror.
pub fn until_it_mirrors(followers: &mut [Follower], standby: &Publisher) {
    drive(followers, |_| reported(standby)["state"] == "mirroring");
}

/// Promotes the standby while polling. Returns the HTTP status and the answer.
pub fn promote(followers: &mut [Follower], standby: &Publisher, force: bool) -> (u16, Value) {
    promote_while(followers, standby, force, |_| ())
}

/// Promotes the standby while polling, and calls `look` with the followers all the time. Returns the HTTP
/// status and the answer.
pub fn promote_while(
    followers: &mut [Follower],
    standby: &Publisher,
    force: bool,
    mut look: impl FnMut(&[Follower]),
) -> (u16, Value) {
    let commands = standby.commands();
    let body = json!({ "force": force }).to_string();
    let asked: JoinHandle<(u16, String)> = std::thread::spawn(move || {
        let answer = ask(&commands, None, "/promote", Some(&body), PATIENCE);
        answer.expect("the standby answers")
    });
    drive(followers, |all| {
        look(all);
        asked.is_finished()
    });
    let (status, text) = asked.join().expect("it was asked");
    (status, serde_json::from_str(&text).expect("JSON"))
}

/// Requests a promotion that the standby must refuse, while polling. Returns the reason.
pub fn refusal(followers: &mut [Follower], standby: &Publisher, force: bool) -> String {
    let (status, refused) = promote(followers, standby, force);
    assert_eq!(status, 409, "{refused}");
    refused["why"].as_str().expect("a reason").to_owned()
}

/// Returns the digest of a single publisher after `records` records of the same feed.
pub fn undisturbed(records: u64) -> Value {
    let mut input = endless(RATE, 0);
    input["pace"] = "max".into();
    input["records_max"] = records.into();
    let mut config = one_channel(&[free_group()], input);
    config["linger_ms"] = 0.into();
    let (status, summary) = Publisher::start(&config).finish();
    assert!(status.success(), "{summary}");
    assert_eq!(number(&summary, "published_records"), records);
    channel(&summary)["digest"].clone()
}

/// Asserts that each follower has every record once, in order, and without loss.
pub fn assert_whole(followers: &[Follower]) {
    let expected = undisturbed(records(&followers[0]));
    for follower in followers {
        follower.assert_balanced();
        assert!(follower.losses.is_empty(), "{:?}", follower.losses);
        assert_eq!(follower.digest(1), expected, "the digest of one publisher");
        let continued = |event: &Event| matches!(event, Event::EpochContinued { .. });
        assert!(follower.saw(continued), "{:?}", follower.events);
        assert!(!follower.saw(|event| matches!(event, Event::EpochChanged { .. })));
    }
}
