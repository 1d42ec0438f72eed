//! Banning while the publisher runs: a banned subscriber is cut off at once, gets the reason, and may
//! return when the ban ends. Others do not notice, and the audit file records it.

use tickcast_subscriber::Event;
use tickcast_test_support::{
    Follower, Publisher, channel, drive, end, endless, free_group, one_channel,
};

#[test]
fn clean_end_is_audited_as_an_end() {
    let config = one_channel(&[free_group()], endless(5_000, 2));
    let mut publisher = Publisher::start(&config);
    let named = |name: &str| Follower::new(publisher.subscriber().channel("all").name(name));
    let mut followers = [named("risk-1"), named("risk-2")];
    drive(&mut followers, |all| {
        all.iter().all(|it| !it.records.is_empty())
    });
    // The first leaves before the publisher ends, the second stays.
    let [first, second] = followers;
    let mut second = [second];
    first.subscriber.leave();
    drive(&mut second, |_| !publisher.audited("left").is_empty());
    publisher.terminate();
    drive(&mut second, |_| !publisher.is_running());
    assert!(publisher.ended().success());
    assert_eq!(
        publisher.audited("turned_away"),
        Vec::<serde_json::Value>::new()
    );
    let left = publisher.audited("left");
    let why = |name: &str| {
        let line = left.iter().find(|line| line["subscriber"] == name);
        line.map(|line| line["why"].clone())
    };
    assert_eq!(
        why("risk-1"),
        Some("the subscriber sent LEAVE".into()),
        "{left:?}"
    );
    assert_eq!(why("risk-2"), Some("the publisher ends".into()), "{left:?}");
    assert!(!publisher.audited("closed").is_empty());
}

#[test]
fn denied_peer_is_cut_off_until_allowed() {
    let folder = tempfile::tempdir().expect("a folder");
    let banned = folder.path().join("banned");
    let mut config = one_channel(&[free_group()], endless(5_000, 2));
    config["banned"] = banned.display().to_string().into();
    let publisher = Publisher::start(&config);
    let named = |name: &str| Follower::new(publisher.subscriber().channel("all").name(name));
    let mut followers = [named("risk-1"), named("risk-2")];
    drive(&mut followers, |all| {
        all.iter()
            .all(|it| it.records.values().sum::<u64>() > 1_000)
    });
    let down = |follower: &Follower| follower.saw(|it| matches!(it, Event::RepairLinkDown(_)));
    assert!(!down(&followers[0]));
    std::fs::write(&banned, "risk-1 left the desk # for a test\n").expect("written");
    drive(&mut followers, |all| down(&all[0]));
    drive(&mut followers, |all| {
        let problem = all[0].subscriber.problem();
        problem.is_some_and(|it| {
            it.to_string()
                .contains("the publisher banned this peer: left the desk")
        })
    });
    let [ban] = &publisher.audited("banned")[..] else {
        panic!("{:?}", publisher.audited("banned"));
    };
    assert_eq!(
        (&ban["subscriber"], &ban["why"]),
        (&"risk-1".into(), &"left the desk".into())
    );
    drive(&mut followers, |_| {
        !publisher.audited("turned_away").is_empty()
    });
    let away = publisher.audited("turned_away");
    for line in away {
        assert_eq!(line["subscriber"], "risk-1", "{line}");
        let peer = line["peer"].as_str().expect("an address");
        assert!(peer.starts_with("127.0.0.1:"), "{line}");
        assert_eq!(
            line["why"], "the publisher banned this peer: left the desk",
            "{line}"
        );
    }
    // The ban ends.
    std::fs::remove_file(&banned).expect("it is gone");
    drive(&mut followers, |all| {
        all[0].saw(|it| *it == Event::RepairLinkUp)
    });
    assert_eq!(publisher.audited("unbanned").len(), 1);
    drive(&mut followers, |_| publisher.audited("joined").len() > 2);
    let joined = publisher.audited("joined");
    let of = |name: &str| joined.iter().filter(|it| it["subscriber"] == name).count();
    assert_eq!((of("risk-1"), of("risk-2")), (2, 1));
    assert!(joined.iter().all(|it| it["channel"] == 1));
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    for follower in &followers {
        follower.assert_balanced();
        assert_eq!(follower.digest(1), channel(&summary)["digest"]);
    }
    assert!(!down(&followers[1]), "others hear nothing of it");
}
