//! A publisher and its standby, as processes, with subscribers in this one that know both.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::thread::JoinHandle;

use serde_json::{Value, json};
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::{ChannelBuilder, Event, ReceiverConfig, Subscriber};

use tickcast_test_support::{
    Follower, PATIENCE, Publisher, channel, drive, endless, free_group, number, one_channel,
};

/// Messages a second of the feed that publisher and standby hear.
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

/// A publisher that begins when so many follow it, and may hand over to "b".
pub fn publisher(followers: u32) -> Value {
    let mut config = one_channel(&[free_group()], endless(RATE, followers));
    config["name"] = "a".into();
    config["hand_over_to"] = json!(["b"]);
    config
}

/// The standby of a publisher with this config that runs.
pub fn standby_of(running: &Publisher, config: &Value) -> Value {
    let mut config = config.clone();
    config["name"] = "b".into();
    // Whatever it takes on a slow machine.
    config["standby"] =
        json!({ "of": running.control, "admin": running.admin, "hand_over_ms": 100_000 });
    config
}

/// Publisher, standby, and what the standby's config was.
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

/// Whatever a promotion takes, nobody gives up what it misses before.
pub fn patient() -> ReceiverConfig {
    ReceiverConfig {
        dead_us: 600_000_000,
        ..ReceiverConfig::default()
    }
}

/// Followers that know both, each with its faults.
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

/// Polls until each has so many records more.
pub fn get_on(followers: &mut [Follower], more: u64) {
    let before: Vec<u64> = followers.iter().map(records).collect();
    drive(followers, |all| {
        let mut all = all.iter().zip(&before);
        all.all(|(follower, before)| records(follower) >= before + more)
    });
}

/// What a standby says of itself.
pub fn told(standby: &Publisher) -> Value {
    let (status, text) = standby.ask("/standby", None);
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

/// Polls until the standby has a mirror.
pub fn until_it_mirrors(followers: &mut [Follower], standby: &Publisher) {
    drive(followers, |_| told(standby)["state"] == "mirroring");
}

/// Polls while somebody has the standby promoted: what that came to.
pub fn promote(followers: &mut [Follower], standby: &Publisher, force: bool) -> (u16, Value) {
    promote_while(followers, standby, force, |_| ())
}

/// The same, looking at the followers all the while.
pub fn promote_while(
    followers: &mut [Follower],
    standby: &Publisher,
    force: bool,
    mut look: impl FnMut(&[Follower]),
) -> (u16, Value) {
    let admin = standby.admin.expect("an admin port");
    let body = json!({ "force": force }).to_string();
    let asked: JoinHandle<(u16, String)> = std::thread::spawn(move || {
        let answer =
            tickcast_publisher::internal::http::ask(admin, "/promote", Some(&body), PATIENCE);
        answer.expect("the standby answers")
    });
    drive(followers, |all| {
        look(all);
        asked.is_finished()
    });
    let (status, text) = asked.join().expect("it was asked");
    (status, serde_json::from_str(&text).expect("JSON"))
}

/// Polls while a standby refuses to be promoted: why it does.
pub fn refusal(followers: &mut [Follower], standby: &Publisher, force: bool) -> String {
    let (status, refused) = promote(followers, standby, force);
    assert_eq!(status, 409, "{refused}");
    refused["why"].as_str().expect("a reason").to_owned()
}

/// The digest that one publisher alone has after so many records of the same feed.
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

/// Everybody has every record once, in order, and lost nothing.
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
