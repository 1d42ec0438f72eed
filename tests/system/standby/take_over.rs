//! A standby beside a publisher, as processes. It takes over, orderly or after a death, and every
//! subscriber gets every record once, as from a single publisher.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::restart::kept::authenticated;

use super::pair::{
    RATE, assert_whole, following, get_on, loses, pair, patient, promote, publisher, refusal,
    reported, standby_of, until_it_mirrors,
};
use serde_json::{Value, json};
use tickcast_reliability::control::ChannelOffer;
use tickcast_reliability::receive::Mirror;
use tickcast_reliability::record::RecordRef;
use tickcast_subscriber::faults::FaultConfig;
use tickcast_subscriber::mirror::{MirrorKeeper, MirrorSubscriber};
use tickcast_subscriber::{
    ChannelBuilder, ChannelId, Event, LossCause, Position, Start, StreamEvent, Subscriber,
};
use tickcast_test_support::{
    Follower, Publisher, binary, channel, drive, drive_for, end, endless, free_group, number,
    one_channel, signal,
};

/// A user without rights.
const STRANGER: u32 = 65_534;

fn hand_over(mirror: Option<FaultConfig>, faults: &[Option<FaultConfig>]) {
    let (a, b) = pair(faults.len() as u32, |_, second| {
        second["standby"] = json!({ "faults": mirror });
    });
    let mut followers = following(&a, &b, faults);
    get_on(&mut followers, 5_000);
    until_it_mirrors(&mut followers, &b);
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!(status, 200, "{promoted}\n{}\n{}", a.log(), b.log());
    assert_eq!(promoted["reason"], "handed_over");
    drive(&mut followers, |_| !a.audited("handed_over").is_empty());
    let [handed] = &a.audited("handed_over")[..] else {
        panic!("{:?}", a.audited("handed_over"));
    };
    assert_eq!(handed["subscriber"], "b");
    let (ended, summary) = a.finish();
    assert!(ended.success(), "{summary}");
    assert_eq!(
        (&summary["ended"], &summary["handed_over_to"]),
        (&json!(false), &json!("b"))
    );
    assert_eq!(
        promoted["channels"][0]["last"],
        channel(&summary)["sealed"],
        "the mirror had all that was sealed"
    );
    drive(&mut followers, |_| reported(&b)["state"] == "promoted");
    get_on(&mut followers, 5_000);
    end(&b, &mut followers);
    let (ended, summary) = b.finish();
    assert!(ended.success(), "{summary}");
    assert_eq!(channel(&summary)["epoch"], promoted["epoch"]);
    assert_whole(&followers);
    for follower in &followers {
        let repeated = |event: &Event| match event {
            Event::EpochContinued { repeated, .. } => *repeated,
            _ => 0,
        };
        let repeated: u64 = follower.events.iter().map(repeated).sum();
        assert_eq!(repeated, 0, "nothing was sent that the mirror had not");
    }
}

#[test]
fn hand_over_under_load_delivers_once() {
    hand_over(None, &[None, None]);
}

#[test]
fn hand_over_at_two_percent_loss_delivers_once() {
    hand_over(Some(loses(9)), &[Some(loses(1)), None, Some(loses(2))]);
}

#[test]
fn authenticated_channel_is_handed_over_without_loss() {
    let (a, b) = pair(2, |first, _| *first = authenticated(first.take()));
    let mut followers = following(&a, &b, &[Some(loses(1)), None]);
    get_on(&mut followers, 5_000);
    until_it_mirrors(&mut followers, &b);
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!(status, 200, "{promoted}\n{}\n{}", a.log(), b.log());
    let (ended, summary) = a.finish();
    assert!(ended.success(), "{summary}");
    get_on(&mut followers, 5_000);
    end(&b, &mut followers);
    let (ended, summary) = b.finish();
    assert!(ended.success(), "{summary}");
    assert_whole(&followers);
}

/// Kills the first publisher of a pair that its standby mirrors, and promotes that. Nothing is lost.
fn assert_standby_replaces_killed((mut a, b): (Publisher, Publisher)) {
    let mut followers = following(&a, &b, &[Some(loses(1)), None]);
    get_on(&mut followers, 5_000);
    until_it_mirrors(&mut followers, &b);
    a.kill();
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!(status, 200, "{promoted}\n{}", b.log());
    assert_eq!(promoted["reason"], "publisher_dead");
    get_on(&mut followers, 5_000);
    end(&b, &mut followers);
    let (ended, summary) = b.finish();
    assert!(ended.success(), "{summary}");
    assert_whole(&followers);
}

#[test]
fn standby_replaces_killed_publisher_exactly() {
    assert_standby_replaces_killed(pair(2, |_, second| {
        second["standby"] = json!({ "faults": loses(9) });
    }));
}

#[test]
fn authenticated_standby_replaces_killed_publisher() {
    assert_standby_replaces_killed(pair(2, |first, _| *first = authenticated(first.take())));
}

#[test]
fn forced_promotion_beside_live_publisher_is_followed() {
    let (mut a, b) = pair(1, |first, _| first["hand_over_to"] = json!([]));
    let mut followers = following(&a, &b, &[None]);
    get_on(&mut followers, 2_000);
    until_it_mirrors(&mut followers, &b);
    let why = refusal(&mut followers, &b, false);
    assert!(why.contains("hand_over_to"), "{why}");
    let (status, promoted) = promote(&mut followers, &b, true);
    assert_eq!(status, 200, "{promoted}\n{}", b.log());
    assert_eq!(promoted["reason"], "forced");
    // The first publisher does not know, and none of its subscribers accepts the standby's datagrams.
    get_on(&mut followers, 6_000);
    assert!(!followers[0].saw(|event| matches!(event, Event::EpochContinued { .. })));
    a.kill();
    drive(&mut followers, |all| {
        all[0].saw(|event| matches!(event, Event::EpochContinued { .. }))
    });
    get_on(&mut followers, 5_000);
    end(&b, &mut followers);
    assert_whole(&followers);
    let repeated = followers[0].events.iter().find_map(|event| match event {
        Event::EpochContinued { repeated, .. } => Some(*repeated),
        _ => None,
    });
    assert!(repeated.is_some_and(|n| n > 0), "{repeated:?}");
}

#[test]
fn forced_supersession_moves_subscribers_over() {
    let (a, b) = pair(1, |_, _| {});
    let mut followers = following(&a, &b, &[None]);
    get_on(&mut followers, 2_000);
    until_it_mirrors(&mut followers, &b);
    let (status, promoted) = promote(&mut followers, &b, true);
    assert_eq!(status, 200, "{promoted}");
    let (ended, summary) = a.finish();
    assert!(ended.success());
    assert_eq!(summary["handed_over_to"], "b");
    get_on(&mut followers, 2_000);
    end(&b, &mut followers);
    assert_whole(&followers);
}

#[test]
fn stopped_publisher_taken_for_dead_ends_on_return() {
    let (a, b) = pair(1, |_, _| {});
    // A follower that gives up a silent publisher by itself: its connection stays up.
    let both = [a.control.to_string(), b.control.to_string()];
    let follower = Subscriber::builder(both).channel(ChannelBuilder::new("all"));
    let mut followers = vec![Follower::new(follower)];
    get_on(&mut followers, 2_000);
    until_it_mirrors(&mut followers, &b);
    signal(a.id(), "STOP");
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!(status, 200, "{promoted}\n{}", b.log());
    assert_eq!(promoted["reason"], "publisher_dead");
    drive(&mut followers, |all| {
        all[0].saw(|event| matches!(event, Event::EpochContinued { .. }))
    });
    get_on(&mut followers, 2_000);
    signal(a.id(), "CONT");
    drive(&mut followers, |_| !a.audited("superseded").is_empty());
    let (ended, summary) = a.finish();
    assert!(ended.success(), "{summary}");
    assert_eq!(
        (&summary["ended"], &summary["handed_over_to"]),
        (&json!(false), &json!("b"))
    );
    get_on(&mut followers, 2_000);
    end(&b, &mut followers);
    assert_whole(&followers);
}

#[test]
fn channels_of_one_input_continue_at_own_mirror() {
    sharing_an_input(|_| (), Publisher::kill, "publisher_dead");
}

#[test]
fn handover_to_reversed_channel_order_succeeds() {
    sharing_an_input(|channels| channels.reverse(), |_| (), "handed_over");
}

/// Two channels of one input, listed by the standby in `order`. The standby is promoted after `happens`.
fn sharing_an_input(
    order: impl FnOnce(&mut Vec<Value>),
    happens: impl FnOnce(&mut Publisher),
    reason: &str,
) {
    let (mut a, b) = pair(1, |first, second| {
        first["channels"][0]["symbols"] = json!(["AAAA", "AAAB", "AAAC", "AAAD"]);
        let mut rest = first["channels"][0].clone();
        rest["id"] = 2.into();
        rest["name"] = "rest".into();
        rest["symbols"] = json!(["*"]);
        rest["fan_out"][0]["lines"][0]["group"] = json!(free_group());
        let channels = first["channels"].as_array_mut().expect("a list");
        channels.push(rest);
        let mut listed = channels.clone();
        order(&mut listed);
        second["channels"] = listed.into();
    });
    let builder = Subscriber::builder([a.control.to_string(), b.control.to_string()]).seed(1);
    let channel = |name: &str| ChannelBuilder::new(name).config(patient());
    let builder = builder.channel(channel("all")).channel(channel("rest"));
    let mut followers = vec![Follower::new(builder.faults(loses(3)))];
    get_on(&mut followers, 5_000);
    until_it_mirrors(&mut followers, &b);
    happens(&mut a);
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!(status, 200, "{promoted}\n{}", b.log());
    assert_eq!(promoted["reason"], reason);
    get_on(&mut followers, 5_000);
    end(&b, &mut followers);
    let (ended, summary) = b.finish();
    assert!(ended.success(), "{summary}");
    let follower = &followers[0];
    follower.assert_balanced();
    assert!(follower.losses.is_empty(), "{:?}", follower.losses);
    // One of the two publishers published every record of the standby's input.
    let mut input = endless(RATE, 0);
    input["pace"] = "max".into();
    input["records_max"] = summary["sources"][0]["records"].clone();
    let mut config = one_channel(&[free_group()], input);
    config["linger_ms"] = 0.into();
    config["channels"] = json!([]);
    for (n, symbols) in [json!(["AAAA", "AAAB", "AAAC", "AAAD"]), json!(["*"])]
        .iter()
        .enumerate()
    {
        let lines = json!([{ "group": free_group() }]);
        config["channels"]
            .as_array_mut()
            .expect("a list")
            .push(json!({
                "id": n + 1, "name": format!("c{n}"), "symbols": symbols, "slots": 1_024,
                "fan_out": [{ "transport": "udp", "lines": lines }],
            }));
    }
    let (_, expected) = Publisher::start(&config).finish();
    for n in [0, 1] {
        let digest = &expected["channels"][usize::from(n)]["digest"];
        assert_eq!(&json!(follower.digest(n + 1)), digest, "channel {}", n + 1);
        assert!(number(&expected["channels"][usize::from(n)], "published_records") > 500);
    }
}

#[test]
fn standby_with_late_feed_repeats_nothing() {
    let (mut a, b) = pair(1, |first, second| {
        second["inputs"] = first["inputs"].clone();
        second["inputs"][0]["pace"] = json!({ "messages_per_s": RATE / 2 });
    });
    let mut followers = following(&a, &b, &[None]);
    // Independent of the standby's lead at the beginning.
    let heard = |b: &Publisher| {
        let metrics = b.metrics();
        let series = "tickcast_publisher_source_messages_total{source=\"1\"} ";
        let value = metrics.lines().find_map(|line| line.strip_prefix(series));
        value.map_or(0, |value| value.parse::<u64>().expect("a number"))
    };
    drive(&mut followers, |_| {
        let reported = reported(&b);
        let sources = &reported["channels"][0]["sources"];
        let mirrored = sources[0]["sequence"].as_u64().unwrap_or(0);
        reported["state"] == "mirroring" && mirrored > heard(&b) + 1_000
    });
    a.kill();
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!(status, 200, "{promoted}\n{}", b.log());
    get_on(&mut followers, 2_000);
    end(&b, &mut followers);
    assert_whole(&followers);
}

#[test]
fn second_standby_follows_and_takes_over() {
    let first = publisher(3);
    let a = Publisher::start(&first);
    let config = standby_of(&a, &first);
    let mut b = Publisher::start(&config);
    let mut config = standby_of(&b, &config);
    config["name"] = "c".into();
    config["standby"]["of"] = format!("{},{}", a.control, b.control).into();
    let c = Publisher::start(&config);
    let addresses = [&a, &b, &c].map(|publisher| publisher.control.to_string());
    let builder = Subscriber::builder(addresses).seed(1).faults(loses(4));
    let channel = ChannelBuilder::new("all").config(patient());
    let mut followers = vec![Follower::new(builder.channel(channel))];
    get_on(&mut followers, 2_000);
    for standby in [&b, &c] {
        until_it_mirrors(&mut followers, standby);
    }
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!((status, &promoted["reason"]), (200, &json!("handed_over")));
    get_on(&mut followers, 2_000);
    drive(&mut followers, |_| {
        reported(&c)["channels"][0]["epoch"] == promoted["epoch"]
    });
    b.kill();
    let (status, again) = promote(&mut followers, &c, false);
    assert_eq!(status, 200, "{again}\n{}", c.log());
    assert_eq!(again["continues"], promoted["epoch"]);
    get_on(&mut followers, 2_000);
    end(&c, &mut followers);
    assert_whole(&followers);
    let continued = |event: &&Event| matches!(event, Event::EpochContinued { .. });
    assert_eq!(followers[0].events.iter().filter(continued).count(), 2);
}

#[test]
fn hand_over_without_standby_keeps_publishing() {
    let a = Publisher::start(&publisher(1));
    let mut followers = vec![Follower::new(a.subscriber().name("s").channel("all"))];
    get_on(&mut followers, 1_000);
    let epoch = followers[0].subscriber.channels()[0].epoch;
    let request = |standby: &str| json!({ "standby": standby, "epoch": epoch }).to_string();
    for (body, status, reason) in [
        (request("b"), 409, "no standby can take over"),
        (request("c"), 409, "add the name to hand_over_to"),
        (request("s"), 409, "add the name to hand_over_to"),
        ("{}".into(), 400, "POST /promote to the standby"),
        ("".into(), 400, "POST /promote to the standby"),
    ] {
        let (reported, text) = a.command("/hand-over", &body);
        assert_eq!(reported, status, "{body}: {text}");
        assert!(text.contains(reason), "{body}: {text}");
    }
    let (status, text) = a.command("/promote", "{}");
    assert_eq!(status, 409, "{text}");
    assert!(text.contains("not a standby"), "{text}");
    assert_eq!(a.get("/standby").0, 404);
    // Audited at most once a second, but counted each time.
    let refused = a.audited("hand_over_refused");
    assert!((1..=3).contains(&refused.len()), "{refused:?}");
    assert_eq!(refused[0]["subscriber"], "b");
    let why = refused[0]["why"].as_str().expect("a reason");
    assert!(why.contains("no standby can take over"), "{why}");
    // The publisher continues without interruption.
    get_on(&mut followers, 1_000);
    end(&a, &mut followers);
    let (ended, summary) = a.finish();
    assert!(ended.success());
    assert_eq!(summary["handed_over_to"], Value::Null);
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
}

/// Keeps no mirror.
struct NoMirror;

impl MirrorKeeper for NoMirror {
    fn offered(&mut self, _: &ChannelOffer, _: bool) -> Option<Mirror> {
        None
    }

    fn record(&mut self, _: &Position, _: RecordRef<'_>) {}

    fn event(&mut self, _: &Position, _: &Event) {}
}

#[test]
fn impostor_of_standby_is_refused_beside_the_genuine_one() {
    let (a, b) = pair(2, |_, _| {});
    let mut followers = following(&a, &b, &[None]);
    // It joins under the standby's name, follows every channel, and may send commands.
    followers.push(Follower::new(a.subscriber().name("b").channel("all")));
    get_on(&mut followers, 1_000);
    until_it_mirrors(&mut followers, &b);
    let epoch = followers[0].subscriber.channels()[0].epoch;
    for session in [json!(null), json!(0), json!(1), json!(u64::MAX)] {
        let request = json!({ "standby": "b", "epoch": epoch, "session": session });
        let (status, text) = a.command("/hand-over", &request.to_string());
        assert_eq!(status, 409, "{text}");
        assert!(text.contains("does not come from"), "{text}");
    }
    get_on(&mut followers, 1_000);
    let refused = "tickcast_publisher_commands_total{command=\"hand_over\",result=\"refused\"} 4";
    let metrics = a.metrics_now();
    assert!(metrics.contains(refused), "{metrics}");
    followers.pop();
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!(status, 200, "{promoted}\n{}\n{}", a.log(), b.log());
    assert_eq!(promoted["reason"], "handed_over");
    get_on(&mut followers, 1_000);
    end(&b, &mut followers);
    assert_whole(&followers);
}

#[test]
fn standby_on_another_host_hands_over_with_token_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let token_file = |name: &str, token: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, token).expect("the token is written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its mode");
        path
    };
    let mut first = publisher(1);
    first["commands"] = json!({
        "listen": "127.0.0.1:0", "token_file": token_file("a", "the-token-of-publisher-a\n"),
    });
    let a = Publisher::start(&first);
    let mut second = standby_of(&a, &first);
    let mut followers = vec![Follower::new(a.subscriber().name("s").channel("all"))];
    get_on(&mut followers, 1_000);
    let mut start = |followers: &mut Vec<Follower>, token: &str| {
        second["standby"]["commands"] = json!(a.command_port);
        second["standby"]["token_file"] = json!(token_file("b", token));
        let b = Publisher::start(&second);
        until_it_mirrors(followers, &b);
        b
    };
    let mut wrong = start(&mut followers, "the-token-of-publisher-b");
    // That is known before the promotion.
    drive(&mut followers, |_| {
        let problem = &reported(&wrong)["commands_problem"];
        problem
            .as_str()
            .is_some_and(|it| it.contains("refuses the token"))
    });
    let (ready, why) = wrong.get("/readyz");
    assert_eq!(ready, 503, "{why}");
    assert!(why.contains("the publisher would not hand over"), "{why}");
    let refused = "tickcast_standby_commands_refused 1";
    let metrics = wrong.metrics_now();
    assert!(metrics.contains(refused), "{metrics}");
    let why = refusal(&mut followers, &wrong, false);
    assert!(why.contains("refuses the token"), "{why}");
    let refused = wrong.audited("promotion_refused");
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(
        refused[0]["client"]
            .as_str()
            .is_some_and(|it| it.starts_with("user "))
    );
    get_on(&mut followers, 1_000);
    // The check and the promotion.
    drive(&mut followers, |_| {
        a.metric("requests_denied_total{endpoint=\"command_port\"}") >= 2
    });
    wrong.kill();
    let b = start(&mut followers, "the-token-of-publisher-a");
    drive(&mut followers, |_| b.get("/readyz").0 == 200);
    assert_eq!(reported(&b)["commands_problem"], Value::Null);
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!(status, 200, "{promoted}\n{}\n{}", a.log(), b.log());
    assert_eq!(promoted["reason"], "handed_over");
    let (ended, summary) = a.finish();
    assert!(ended.success(), "{summary}");
    assert_eq!(summary["handed_over_to"], "b");
}

#[test]
fn command_socket_serves_its_user_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("its mode");
    };
    mode(folder.path(), 0o755);
    let path = folder.path().join("commands");
    let mut config = publisher(0);
    config["commands"] = json!({ "socket": path });
    let a = Publisher::start(&config);
    let run = |is_stranger: bool| {
        let mut command = Command::new(binary("tickcast"));
        command.args(["promote", "--standby"]).arg(&path);
        if is_stranger {
            command.uid(STRANGER).gid(STRANGER);
        }
        command.output().expect("the command runs")
    };
    assert_eq!(run(false).status.code(), Some(1), "it is no standby");
    if std::fs::metadata(folder.path()).expect("the folder").uid() != 0 {
        println!("SKIPPED: only root can run a process of another user");
        return;
    }
    let refused = |said: &str| {
        let output = run(true);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(3), "{error}");
        assert!(error.contains(said), "{error}");
    };
    refused("Permission denied");
    // The peer's user is checked as well, should the mode be changed.
    mode(&path, 0o666);
    refused("gave no answer");
    let metrics = a.metrics_now();
    for (name, count) in [("refused", 1), ("answered", 1), ("failed", 0)] {
        let labels = format!("endpoint=\"command_socket\",reason=\"{name}\"");
        let series = format!("connections_closed_total{{{labels}}} {count}");
        assert!(metrics.contains(&series), "{series}: {metrics}");
    }
}

#[test]
fn standby_death_in_take_over_keeps_publisher() {
    let a = Publisher::start(&publisher(1));
    let mut followers = vec![Follower::new(a.subscriber().name("s").channel("all"))];
    get_on(&mut followers, 1_000);
    // This standby requests a take-over once, and is never heard of again.
    let builder = a.subscriber().name("b");
    let channel_1 = ChannelBuilder::from(ChannelId(1)).start(Start::Oldest);
    let mut standby = MirrorSubscriber::new(builder.channel(channel_1)).expect("a subscriber");
    drive(&mut followers, |all| {
        standby.poll(&mut NoMirror);
        let epoch = all[0].subscriber.channels()[0].epoch;
        let session = standby.core().session();
        let request = json!({ "standby": "b", "epoch": epoch, "session": session }).to_string();
        let (status, text) = a.command("/hand-over", &request);
        assert!(status == 409 || text.contains("resting"), "{text}");
        status == 200
    });
    drop(standby);
    get_on(&mut followers, 30_000);
    end(&a, &mut followers);
    let (ended, summary) = a.finish();
    assert!(ended.success());
    assert_eq!(summary["ended"], true);
    assert_eq!(followers[0].digest(1), channel(&summary)["digest"]);
    assert!(followers[0].losses.is_empty());
}

#[test]
fn empty_or_changed_standby_is_never_promoted() {
    let mut config = publisher(1);
    let a = Publisher::start(&config);
    let mut followers = vec![Follower::new(a.subscriber().name("s").channel("all"))];
    get_on(&mut followers, 1_000);
    // Another ring size, and thus other positions in the ring.
    let mut other = standby_of(&a, &config);
    other["channels"][0]["slots"] = 4_096.into();
    let b = Publisher::start(&other);
    drive(&mut followers, |_| {
        reported(&b)["channels"][0]["problem"].is_string()
    });
    for force in [false, true] {
        let why = refusal(&mut followers, &b, force);
        assert!(why.contains("65536 slots"), "{why}");
    }
    // A standby whose publisher never existed.
    config["standby"] = json!({ "of": "127.0.0.1:9" });
    config["name"] = "c".into();
    let c = Publisher::start(&config);
    let why = refusal(&mut followers, &c, true);
    assert!(why.contains("channel all is not mirrored yet"), "{why}");
    assert_eq!(reported(&c)["state"], "joining");
    for standby in [b, c] {
        standby.terminate();
        let (ended, _) = standby.finish();
        assert!(ended.success(), "it was asked to end");
    }
    end(&a, &mut followers);
}

#[test]
fn mute_standby_waits_for_publishers_death() {
    let (mut a, b) = pair(1, |_, second| {
        second["standby"] = json!({ "commands": null });
    });
    let mut followers = following(&a, &b, &[None]);
    get_on(&mut followers, 1_000);
    until_it_mirrors(&mut followers, &b);
    let why = refusal(&mut followers, &b, false);
    assert!(why.contains("standby.commands"), "{why}");
    a.kill();
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!(
        (status, &promoted["reason"]),
        (200, &json!("publisher_dead"))
    );
    let (_, again) = promote(&mut followers, &b, true);
    assert_eq!(again, promoted, "what was done is told again");
    get_on(&mut followers, 1_000);
    end(&b, &mut followers);
    assert_whole(&followers);
}

#[test]
fn messages_evicted_by_standby_are_source_loss() {
    // The standby's feed runs far ahead of the publisher's sealed datagrams, and it keeps few messages.
    let messages = 50_000;
    let (mut a, b) = pair(1, |first, second| {
        first["inputs"][0]["messages"] = messages.into();
        first["inputs"][0]["pace"] = json!({ "messages_per_s": 500 });
        first["end_when_inputs_end"] = false.into();
        second["inputs"] = first["inputs"].clone();
        second["inputs"][0]["pace"] = "max".into();
        second["standby"] = json!({ "keep_messages": 100 });
    });
    let mut followers = following(&a, &b, &[None]);
    drive(&mut followers, |_| {
        number(&reported(&b), "evicted_messages") > 1_000
    });
    get_on(&mut followers, 100);
    until_it_mirrors(&mut followers, &b);
    drive(&mut followers, |_| {
        b.metrics()
            .contains("tickcast_publisher_source_ended{source=\"1\"} 1")
    });
    a.kill();
    let (status, promoted) = promote(&mut followers, &b, false);
    assert_eq!(status, 200, "{promoted}");
    // Without a subscriber it would end at once.
    drive(&mut followers, |all| {
        all[0].saw(|event| matches!(event, Event::EpochContinued { .. }))
    });
    end(&b, &mut followers);
    let (ended, summary) = b.finish();
    assert_eq!(ended.code(), Some(1), "a loss: {summary}");
    let follower = &followers[0];
    let lost = follower.events.iter().find_map(|event| match event {
        Event::Stream(StreamEvent::SourceLost { messages, from, .. }) => Some((*messages, *from)),
        _ => None,
    });
    let (lost, from) = lost.unwrap_or_else(|| {
        panic!("no loss was told: {:?}\n{summary:#}", follower.events);
    });
    assert!(lost > 1_000 && from.sequence() > 1, "{lost} from {from}");
    assert_eq!(number(channel(&summary), "source_messages_lost"), lost);
    assert_eq!(number(channel(&summary), "published_messages"), 100);
}

#[test]
fn promote_exit_code_reports_the_outcome() {
    let (a, b) = pair(1, |_, _| {});
    let mut followers = following(&a, &b, &[None]);
    get_on(&mut followers, 1_000);
    until_it_mirrors(&mut followers, &b);
    let mut run = |arguments: &[&str]| {
        let mut command = Command::new(binary("tickcast"));
        let command = command.arg("promote").args(arguments);
        let child = command.stdout(std::process::Stdio::piped()).spawn();
        let mut child = child.expect("the command starts");
        drive(&mut followers, |_| {
            child.try_wait().expect("it can be asked").is_some()
        });
        let output = child.wait_with_output().expect("its output");
        let text = String::from_utf8(output.stdout).expect("text");
        (output.status.code(), text)
    };
    let commands = |publisher: &Publisher| publisher.commands().to_string();
    let (code, text) = run(&["--standby", &commands(&a)]);
    assert_eq!(code, Some(1), "no standby: {text}");
    assert_eq!(run(&["--standby", "127.0.0.1:9"]).0, Some(3), "nobody");
    assert_eq!(
        run(&["--standby", "no address"]).0,
        Some(2),
        "a wrong address"
    );
    let control = b.control.to_string();
    assert_eq!(
        run(&["--standby", &control]).0,
        Some(3),
        "nobody listens there"
    );
    let (code, text) = run(&["--standby", &commands(&b)]);
    assert_eq!(code, Some(0), "{text}\n{}", b.log());
    assert!(
        text.starts_with("promoted, its publisher handed over: epoch"),
        "{text}"
    );
    let (code, text) = run(&["--standby", &commands(&b), "--json"]);
    assert_eq!(code, Some(0));
    let reported: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(reported["state"], "promoted");
    a.finish();
    get_on(&mut followers, 1_000);
    end(&b, &mut followers);
    let audited = b.audited("promoted");
    assert_eq!(audited.len(), 1, "{audited:?}");
    assert_whole(&followers);
}

#[test]
fn standby_series_exist_from_start_and_follow() {
    let mut config = publisher(1);
    config["name"] = "b".into();
    config["standby"] = json!({ "of": "127.0.0.1:9" });
    let b = Publisher::start(&config);
    let metrics = b.metrics();
    for series in [
        "tickcast_standby_mirroring 0",
        "tickcast_standby_promoted 0",
        "tickcast_standby_publisher_alive 0",
        "tickcast_standby_mirrored_sequence{channel=\"all\"} 0",
        "tickcast_standby_lag_sequences{channel=\"all\"} 0",
        "tickcast_standby_lag_seconds{channel=\"all\"} 0",
        "tickcast_standby_holes_total{channel=\"all\"} 0",
        "tickcast_standby_promotions_refused_total 0",
    ] {
        assert!(metrics.contains(series), "{series} is not in\n{metrics}");
    }
    drop(b);
    let (a, b) = pair(1, |_, _| {});
    let mut followers = following(&a, &b, &[None]);
    get_on(&mut followers, 1_000);
    drive(&mut followers, |_| {
        let reported = reported(&b);
        reported["publisher_alive"] == true && number(&reported["channels"][0], "last") > 100
    });
    assert!(b.metrics_now().contains("tickcast_standby_mirroring 1"));
    drive_for(&mut followers, Duration::from_millis(20));
    let lost = |loss: &tickcast_subscriber::Loss| loss.cause == LossCause::Window;
    assert!(!followers[0].losses.iter().any(lost));
}
