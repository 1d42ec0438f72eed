//! Publisher and subscribers on one host, over the publisher's ring alone. All records arrive whichever
//! process is killed, and every loss is reported.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::{Value, json};
use tickcast_subscriber::{Event, LossCause, Transport};
use tickcast_test_support::{
    Follower, PATIENCE, Publisher, binary, channel, drive, drive_to_end, end, endless,
    free_address, free_group, number, one_channel, simulated,
};

/// The user and group ID of another user of the host.
const STRANGER: u32 = 65_534;

/// A path below /dev/shm that no other test uses. Dropping it removes the file.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        Self(format!("/dev/shm/tickcast-test-{}-{name}", std::process::id()).into())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns a config with the ring in this file, and without a network.
fn by_memory(path: &Path, input: Value) -> Value {
    let mut config = one_channel(&[free_group()], input);
    config["channels"][0]["fan_out"] = json!([{ "transport": "shm", "path": path }]);
    config
}

fn follower(publisher: &Publisher, name: &str) -> Follower {
    Follower::new(publisher.subscriber().name(name).channel("all"))
}

fn records(follower: &Follower) -> u64 {
    follower.records.values().sum()
}

fn get_on(followers: &mut [Follower], more: u64) {
    let before: Vec<u64> = followers.iter().map(records).collect();
    drive(followers, |all| {
        let mut all = all.iter().zip(&before);
        all.all(|(follower, before)| records(follower) >= before + more)
    });
}

/// Asserts that nothing was lost, and that the digest is the publisher's. A delayed subscriber may
/// receive STATUS about datagrams that it has not read yet: that counts as a gap, which the ring fills.
fn assert_whole(follower: &Follower, summary: &Value) {
    follower.assert_balanced();
    let c = follower.counters(0);
    assert_eq!(follower.digest(1), channel(summary)["digest"]);
    let published = number(summary, "published_records");
    assert_eq!(c.delivered_records.get(), published);
    assert_eq!((c.missing_lost.get(), c.missing_open.get()), (0, 0));
    assert_eq!(c.kernel_dropped.get(), 0, "it was not overrun");
    assert!(c.heartbeats.get() > 0, "heartbeats come by memory, too");
}

#[test]
fn memory_alone_delivers_all_and_file_goes_with_it() {
    let place = Place::new("alone");
    let publisher = Publisher::start(&by_memory(&place.0, simulated(60_000, 60_000, 3)));
    let mut followers = [1, 2, 3].map(|n| follower(&publisher, &format!("s{n}")));
    drive_to_end(&mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    for follower in &followers {
        assert_whole(follower, &summary);
    }
    assert!(!place.0.exists());
}

#[test]
fn waiting_shm_subscriber_receives_all_records() {
    let place = Place::new("waits");
    let publisher = Publisher::start(&by_memory(&place.0, simulated(5_000, 10_000, 1)));
    let mut one = follower(&publisher, "waits");
    let began = std::time::Instant::now();
    while !one.subscriber.ended() {
        one.subscriber
            .wait(Duration::from_secs(10))
            .expect("it waits");
        while one.poll() {}
        assert!(
            began.elapsed() < PATIENCE,
            "{:?}",
            one.subscriber.channels()
        );
    }
    let mut followers = [one];
    tickcast_test_support::drive_for(&mut followers, Duration::from_millis(20));
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    assert_whole(&followers[0], &summary);
}

#[test]
fn killed_publisher_leaves_whole_files_and_new_epoch() {
    let place = Place::new("killed");
    let mut config = by_memory(&place.0, endless(20_000, 2));
    config["control"] = free_address().to_string().into();
    let mut publisher = Publisher::start(&config);
    let mut followers = [1, 2].map(|n| follower(&publisher, &format!("s{n}")));
    for lives in 1..=3 {
        get_on(&mut followers, 2_000);
        publisher.kill();
        assert!(place.0.exists(), "nobody was there to remove it");
        publisher = Publisher::start(&config);
        drive(&mut followers, |all| {
            all.iter().all(|follower| {
                let changes = follower.events.iter();
                let changes = changes.filter(|e| matches!(e, Event::EpochChanged { .. }));
                changes.count() == lives
            })
        });
    }
    get_on(&mut followers, 2_000);
    end(&publisher, &mut followers);
    publisher.finish();
    for follower in &followers {
        follower.assert_balanced();
        let c = follower.counters(0);
        assert_eq!(c.corrupt_dropped.get() + c.malformed_dropped.get(), 0);
        // The unknown end of a killed publisher's epoch is declared lost, and nothing else.
        let reported = follower.losses.len();
        let all = follower.losses.iter();
        let all = all.filter(|loss| loss.cause == LossCause::Epoch).count();
        assert!(reported >= 3 && all == reported, "{:?}", follower.losses);
        assert_eq!(c.missing_open.get(), 0);
    }
}

/// `tickcast listen` in a process of its own, with a digest.
struct Listener {
    child: Child,
    summary: PathBuf,
}

impl Listener {
    fn start(publisher: &Publisher, folder: &Path, name: &str) -> Self {
        let summary = folder.join(format!("{name}.json"));
        let child = Command::new(binary("tickcast"))
            .args(["listen", "--connect", &publisher.control.to_string()])
            .args(["--channel", "1", "--transport", "shm", "--format", "count"])
            .args(["--name", name, "--digest", "--summary"])
            .arg(&summary)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the listener starts");
        Self { child, summary }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn killed_shm_subscriber_leaves_others_undisturbed() {
    let place = Place::new("readers");
    let folder = tempfile::tempdir().expect("a folder");
    let publisher = Publisher::start(&by_memory(&place.0, endless(20_000, 4)));
    let mut victims = ["v1", "v2"].map(|name| Listener::start(&publisher, folder.path(), name));
    let mut stays = Listener::start(&publisher, folder.path(), "stays");
    let mut followers = [follower(&publisher, "s1")];
    get_on(&mut followers, 2_000);
    for victim in &mut victims {
        victim.child.kill().expect("it runs");
        victim.child.wait().expect("it ends");
        get_on(&mut followers, 2_000);
    }
    end(&publisher, &mut followers);
    let status = stays.child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    let text = std::fs::read_to_string(&stays.summary).expect("a summary");
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    assert_whole(&followers[0], &summary);
    let digest = channel(&summary)["digest"].as_str().expect("a digest");
    assert!(text.contains(digest), "{digest} is not in {text}");
    assert_eq!(number(channel(&summary), "fan_out_resets"), 0);
}

#[test]
fn overrun_shm_subscriber_counts_loss_exactly() {
    let place = Place::new("overrun");
    let mut config = by_memory(&place.0, endless(20_000, 2));
    config["channels"][0]["slots"] = 256.into();
    let publisher = Publisher::start(&config);
    let mut followers = [1, 2].map(|n| follower(&publisher, &format!("s{n}")));
    get_on(&mut followers, 1_000);
    // The second follower is not polled for several rounds of the ring.
    for _ in 0..3 {
        let heard = followers[0].counters(0).received_datagrams.get();
        drive(&mut followers[..1], |all| {
            all[0].counters(0).received_datagrams.get() > heard + 2_000
        });
        get_on(&mut followers, 1_000);
    }
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    // Reported losses stand in the summary, and not in the exit code.
    let mut all = summary["subscribers"].as_array().expect("a list").iter();
    let was_told = all.any(|it| number(it, "lost_records") > 0);
    assert_eq!(summary["subscribers_report_loss"], was_told, "{summary}");
    assert_eq!(status.code(), Some(0));
    let slept = &followers[1];
    slept.assert_balanced();
    let c = slept.counters(0);
    assert!(c.kernel_dropped.get() > 0 && c.missing_lost.get() >= c.kernel_dropped.get());
    let cause = |loss: &tickcast_subscriber::Loss| loss.cause == LossCause::Window;
    assert!(slept.losses.iter().all(cause), "{:?}", slept.losses);
    let lost: u64 = slept.losses.iter().filter_map(|loss| loss.records).sum();
    let published = number(&summary, "published_records");
    assert_eq!(c.delivered_records.get() + lost, published);
}

#[test]
fn shm_ring_in_use_is_refused_to_second_publisher() {
    let place = Place::new("two");
    let config = by_memory(&place.0, endless(20_000, 1));
    let first = Publisher::start(&config);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).expect("the config is written");
    let second = Command::new(binary("tickcast-publisher"))
        .arg("--config")
        .arg(&path)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(2), "{said}");
    assert!(said.contains("belongs to another process"), "{said}");
    let mut followers = [follower(&first, "s1")];
    get_on(&mut followers, 2_000);
    end(&first, &mut followers);
    let (status, summary) = first.finish();
    assert!(status.success(), "{summary}");
    assert_whole(&followers[0], &summary);
}

/// Starts a publisher with this config, which must fail for this reason.
fn assert_refused(config: &Value, reason: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).expect("the config is written");
    let run = Command::new(binary("tickcast-publisher"))
        .arg("--config")
        .arg(&path)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{said}");
    assert!(said.contains(reason), "{said}");
}

#[test]
fn planted_file_at_shm_path_is_refused_unchanged() {
    let (place, target) = (Place::new("planted"), Place::new("target"));
    let refused = |reason: &str| {
        assert_refused(&by_memory(&place.0, endless(20_000, 1)), reason);
        std::fs::remove_file(&place.0).expect("it is still there");
    };
    let rights = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&place.0, mode).expect("it is ours");
    };
    symlink(&target.0, &place.0).expect("a dangling link");
    refused("is a link, not a regular file");
    assert!(!target.0.exists(), "a dangling link creates nothing");
    symlink("/etc/passwd", &place.0).expect("a link");
    refused("is a link, not a regular file");
    std::fs::write(&target.0, b"ours").expect("a file");
    std::fs::hard_link(&target.0, &place.0).expect("a second name");
    refused("is one of 2 names");
    assert_eq!(std::fs::read(&target.0).expect("it stays"), b"ours");
    mknodat(CWD, &place.0, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    refused("is a pipe, not a regular file");
    std::fs::write(&place.0, b"").expect("an empty file");
    rights(0o666);
    refused("others than its owner can write it");
    std::fs::write(&place.0, b"").expect("an empty file");
    rights(0o644);
    if chown(&place.0, Some(STRANGER), Some(STRANGER)).is_err() {
        println!("SKIPPED: only root can give a file away");
        return;
    }
    refused("belongs to user 65534");
    let zero = makedev(1, 5);
    mknodat(CWD, &place.0, FileType::CharacterDevice, Mode::RUSR, zero).expect("a device");
    refused("is a device, not a regular file");
}

#[test]
fn shm_directory_of_strangers_is_refused() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let config = by_memory(&folder.path().join("ring"), endless(20_000, 1));
    let open_to_all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open_to_all).expect("it is ours");
    assert_refused(&config, "set its sticky bit (chmod +t)");
    let sticky = std::fs::Permissions::from_mode(0o1777);
    std::fs::set_permissions(folder.path(), sticky).expect("it is ours");
    if chown(folder.path(), Some(STRANGER), None).is_err() {
        println!("SKIPPED: only root can give a directory away");
        return;
    }
    assert_refused(&config, "who can replace files in it");
}

#[test]
fn stranger_can_neither_read_nor_truncate_mapped_ring() {
    let place = Place::new("attacked");
    let publisher = Publisher::start(&by_memory(&place.0, endless(20_000, 1)));
    let mut followers = [follower(&publisher, "witness")];
    get_on(&mut followers, 1_000);
    let mode = place.0.metadata().expect("the ring").permissions().mode();
    assert_eq!(mode & 0o777 & !0o640, 0, "{mode:o}");
    let as_stranger = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).arg(&place.0);
        command.uid(STRANGER).gid(STRANGER).stdout(Stdio::null());
        command.status()
    };
    for (program, arguments) in [
        ("truncate", &["--size=0"][..]),
        ("head", &["--bytes=1"]),
        ("rm", &["--force"]),
        ("chmod", &["a+w"]),
    ] {
        match as_stranger(program, arguments) {
            Ok(status) => assert!(!status.success(), "{program}"),
            Err(error) => println!("SKIPPED: {program} as another user: {error}"),
        }
    }
    get_on(&mut followers, 20_000);
    end(&publisher, &mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    assert_whole(&followers[0], &summary);
}

#[test]
fn subscriber_unable_to_map_ring_uses_udp() {
    let place = Place::new("network");
    let mut config = one_channel(&[free_group()], simulated(20_000, 20_000, 3));
    let fan_outs = config["channels"][0]["fan_out"].as_array_mut();
    let fan_outs = fan_outs.expect("fan-outs");
    fan_outs.push(json!({ "transport": "shm", "path": place.0 }));
    let publisher = Publisher::start(&config);
    let by = |name: &str, how| {
        let builder = publisher.subscriber().name(name).transport(how);
        Follower::new(builder.channel("all"))
    };
    let mut followers = vec![by("memory", Transport::Shm), by("udp", Transport::Udp)];
    drive(&mut followers, |all| {
        all.iter().all(|follower| follower.subscriber.is_joined())
    });
    // The subscriber can't open the file, as in a container of its own.
    std::fs::remove_file(&place.0).expect("the ring's file");
    followers.push(by("elsewhere", Transport::Auto));
    drive_to_end(&mut followers);
    let (status, summary) = publisher.finish();
    assert!(status.success(), "{summary}");
    for follower in &followers {
        assert_eq!(follower.digest(1), channel(&summary)["digest"]);
    }
    assert_whole(&followers[0], &summary);
}
