//! How long subscribers get no records while a standby takes over, orderly or after `kill -9`, with and
//! without loss. The times are printed and never judged, because they depend on the machine. The tests
//! check that a promotion loses nothing and delivers nothing twice. `make promotions ROUNDS=20` runs
//! longer than a test run.

use std::time::{Duration, Instant};

use super::pair::{
    assert_whole, dropping, following, get_on, pair, promote_while, until_it_mirrors,
};
use tickcast_subscriber::{Event, Position};
use tickcast_test_support::{Follower, drive, end};

/// Share of lost datagrams at each subscriber, in the runs with loss.
const DROP: f64 = 0.01;
const FOLLOWERS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    HandedOver,
    Killed,
}

/// The time of each follower's last record, and its longest time without records until one of the next
/// epoch came. The new publisher may still deliver records of the old epoch.
#[derive(Default)]
struct Watch {
    last: [Option<(Position, Option<Instant>)>; FOLLOWERS],
    gaps: [(Duration, bool); FOLLOWERS],
}

impl Watch {
    fn look(&mut self, followers: &[Follower]) {
        let each = self.last.iter_mut().zip(&mut self.gaps);
        for (follower, (last, (longest, is_over))) in followers.iter().zip(each) {
            let Some(at) = follower.last(1) else {
                continue;
            };
            match *last {
                Some((before, _)) if before == at => continue,
                Some((before, Some(given_at))) if !*is_over => {
                    *longest = given_at.elapsed().max(*longest);
                    *is_over = before.epoch != at.epoch;
                }
                _ => {}
            }
            // A record from before the first look has no known time.
            let given_at = last.is_some().then(Instant::now);
            *last = Some((at, given_at));
        }
    }

    /// Returns the longest gap of all followers, once each has a record of the next epoch.
    fn black_out(&self) -> Option<Duration> {
        let are_over = self.gaps.iter().all(|(_, is_over)| *is_over);
        let longest = self.gaps.iter().map(|(longest, _)| *longest).max();
        longest.filter(|_| are_over)
    }
}

/// Times of a round.
struct Round {
    black_out: Duration,
    /// From the request of the promotion to its answer.
    command: Duration,
    /// Records that were published again, and not delivered twice.
    repeated: u64,
}

/// Runs one promotion under load. `seed` also decides the followers' losses.
fn round(how: How, drop: f64, seed: u64) -> Round {
    let (mut a, b) = pair(FOLLOWERS as u32, |_, _| {});
    let faults: Vec<_> = (0..FOLLOWERS as u64)
        .map(|n| (drop > 0.0).then(|| dropping(100 * seed + n, drop)))
        .collect();
    let mut followers = following(&a, &b, &faults);
    get_on(&mut followers, 2_000);
    until_it_mirrors(&mut followers, &b);
    let mut watch = Watch::default();
    let began = Instant::now();
    drive(&mut followers, |all| {
        watch.look(all);
        (watch.last.iter()).all(|last| last.is_some_and(|(_, given_at)| given_at.is_some()))
    });
    let before = Instant::now();
    if how == How::Killed {
        a.kill();
    }
    let (status, promoted) = promote_while(&mut followers, &b, false, |all| watch.look(all));
    let command = before.elapsed();
    assert_eq!(status, 200, "{promoted}\n{}", b.log());
    let reason = match how {
        How::HandedOver => "handed_over",
        How::Killed => "publisher_dead",
    };
    assert_eq!(promoted["reason"], reason);
    drive(&mut followers, |all| {
        watch.look(all);
        watch.black_out().is_some()
    });
    let black_out = watch.black_out().expect("it is over");
    assert!(black_out <= began.elapsed(), "it lies within the round");
    get_on(&mut followers, 2_000);
    end(&b, &mut followers);
    let (ended, summary) = b.finish();
    assert!(ended.success(), "{summary}");
    assert_whole(&followers);
    let events = followers.iter().flat_map(|follower| &follower.events);
    let repeated = events.map(|event| match event {
        Event::EpochContinued { repeated, .. } => *repeated,
        _ => 0,
    });
    Round {
        black_out,
        command,
        repeated: repeated.sum(),
    }
}

/// Returns the shortest, median and longest time, in milliseconds.
fn reported(mut all: Vec<Duration>) -> String {
    all.sort_unstable();
    let ms = |span: Duration| format!("{:.1}", span.as_secs_f64() * 1_000.0);
    let (first, last) = (all[0], all[all.len() - 1]);
    let median = (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2;
    [first, median, last].map(ms).join(" / ")
}

fn rounds(how: How, drop: f64) {
    let rounds = std::env::var("TICKCAST_ROUNDS").ok();
    let rounds = rounds.map_or(2, |text| text.parse().expect("TICKCAST_ROUNDS is a number"));
    assert!(rounds > 0, "TICKCAST_ROUNDS is at least 1");
    let name = match how {
        How::HandedOver => "hand-over",
        How::Killed => "kill -9",
    };
    let name = format!("{name}, {} % lost", drop * 100.0);
    let (mut black_outs, mut commands, mut repeated) = (Vec::new(), Vec::new(), 0);
    for seed in 1..=rounds {
        let round = round(how, drop, seed);
        println!(
            "{name}: round {seed} of {rounds}: nothing for {:?}, the command took {:?}, {} records repeated",
            round.black_out, round.command, round.repeated
        );
        black_outs.push(round.black_out);
        commands.push(round.command);
        repeated += round.repeated;
    }
    println!(
        "{name}: {rounds} promotions, nothing lost or twice; ms without a record (shortest / median / longest): {}; \
         the command: {}; {repeated} records repeated in all",
        reported(black_outs),
        reported(commands)
    );
}

#[test]
fn handover_loses_nothing_and_reports_its_duration() {
    let _turn = tickcast_test_support::machine::exclusive();
    rounds(How::HandedOver, 0.0);
}

#[test]
fn hand_over_to_lossy_subscribers_loses_nothing() {
    let _turn = tickcast_test_support::machine::exclusive();
    rounds(How::HandedOver, DROP);
}

#[test]
fn promotion_after_kill_loses_nothing_timed() {
    let _turn = tickcast_test_support::machine::exclusive();
    rounds(How::Killed, 0.0);
}

#[test]
fn promotion_after_kill_with_loss_loses_nothing() {
    let _turn = tickcast_test_support::machine::exclusive();
    rounds(How::Killed, DROP);
}
