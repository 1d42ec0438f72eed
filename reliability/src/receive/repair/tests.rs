use super::*;
use crate::delivery::{Event, LineId, Via};
use crate::receive::confirmed::CONFIRM_WAIT;

const US: u64 = 1_000;
const RETRY: u64 = 50 * US;
const ANSWER: Arrival = Arrival {
    via: Via::Repair,
    path: ArrivalPath::Other,
};

/// A receiver's repair with one line, and what its passes collected.
struct Bench {
    repair: Repair,
    lines: Lines,
    counters: ReceiverCounters,
    requests: RepairRequests,
    /// The end of the window, which begins with sequence 1.
    window_end: u64,
}

impl Bench {
    fn new(change: impl FnOnce(&mut ReceiverConfig)) -> Self {
        let mut config = ReceiverConfig::default();
        change(&mut config);
        Self {
            repair: Repair::new(&config, 7),
            lines: Lines::new(1, Nanos(0)),
            counters: ReceiverCounters::default(),
            requests: RepairRequests::default(),
            window_end: 1_001,
        }
    }

    fn miss(&mut self, first: u64, last: u64, now: u64) -> bool {
        self.miss_of(Origin::Live, first, last, now)
    }

    fn miss_of(&mut self, origin: Origin, first: u64, last: u64, now: u64) -> bool {
        let range = range(first, last);
        (self.repair).note_missing(range, Nanos(now), origin, false, &self.counters)
    }

    /// Runs one pass, while the NACK connection takes requests or does not.
    fn pass(&mut self, now: u64, nack_open: bool) -> PathHealth {
        self.requests.begin(nack_open, None);
        let (window, counters) = (range(1, self.window_end - 1), &self.counters);
        let requests = &mut self.requests;
        (self.repair).due_decisions(Nanos(now), |_| true, requests);
        (self.repair).due_requests(Nanos(now), window, &self.lines, None, counters, requests)
    }

    fn repairs(&mut self, now: u64) -> Vec<SequenceRange> {
        assert_eq!(self.pass(now, false), PathHealth::Answers);
        self.requests.repair.clone()
    }

    fn next_request(&self) -> u64 {
        let window_end = Sequence(self.window_end);
        self.repair.next_request(&self.lines, window_end).0
    }

    fn fill(&mut self, sequence: u64, now: u64, arrival: Arrival) -> Option<GapOutcome> {
        let filled = (self.repair).fill(Sequence(sequence), Nanos(now), arrival, false);
        filled.and_then(|(_, outcome)| outcome)
    }
}

fn range(first: u64, last: u64) -> SequenceRange {
    SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
}

#[test]
fn gap_is_requested_once_until_retry_timeout() {
    let mut bench = Bench::new(|_| {});
    assert_eq!(bench.next_request(), u64::MAX);
    assert!(!bench.miss(5, 8, 100));
    assert!(bench.repair.is_waiting());
    assert_eq!(bench.next_request(), 100);
    assert_eq!(bench.repairs(100), [range(5, 8)]);
    let retry = bench.next_request();
    assert!(retry >= 100 + RETRY * 3 / 4, "{retry}");
    assert_eq!(bench.repairs(retry - 1), []);
    assert_eq!(bench.repairs(retry), [range(5, 8)]);
    assert!(bench.next_request() - retry > retry - 100, "it backs off");
    assert_eq!(bench.counters.nacked_sequences.get(), 8);
    assert_eq!(bench.counters.missing_datagrams.get(), 4);
}

#[test]
fn grace_delays_first_request() {
    let mut bench = Bench::new(|config| config.reorder_grace_us = 3);
    bench.miss(5, 5, 100);
    assert_eq!(bench.repairs(100 + 3 * US - 1), []);
    assert_eq!(bench.repairs(100 + 3 * US), [range(5, 5)]);
}

#[test]
fn gap_waits_for_second_line_or_its_skew() {
    for passes in [false, true] {
        let mut bench = Bench::new(|config| config.line_skew_us = 9);
        bench.lines = Lines::new(2, Nanos(0));
        bench.lines.heard(LineId(0), Sequence(9), Nanos(100));
        bench.miss(5, 8, 100);
        assert_eq!(bench.next_request(), 100 + 9 * US);
        assert_eq!(bench.repairs(200), [], "the other line may bring it");
        if passes {
            bench.lines.heard(LineId(1), Sequence(8), Nanos(300));
            assert_eq!(bench.repairs(300), [range(5, 8)]);
        } else {
            assert_eq!(bench.repairs(100 + 9 * US - 1), []);
            assert_eq!(bench.repairs(100 + 9 * US), [range(5, 8)]);
        }
    }
}

#[test]
fn repair_request_beyond_window_is_deferred() {
    let mut bench = Bench::new(|_| {});
    bench.window_end = 7;
    bench.miss(5, 8, 100);
    assert_eq!(bench.repairs(100), [range(5, 6)]);
    assert!(
        bench.next_request() > 100,
        "the rest lies beyond the window"
    );
    bench.window_end = 9;
    assert_eq!(bench.next_request(), 100);
    assert_eq!(bench.repairs(100), [range(7, 8)]);
}

#[test]
fn unanswered_attempts_exhaust_path() {
    let mut bench = Bench::new(|config| config.nack_attempts = 3);
    bench.miss(5, 5, 100);
    for _ in 0..3 {
        let now = bench.next_request();
        assert_eq!(bench.repairs(now), [range(5, 5)]);
    }
    let now = bench.next_request();
    assert_eq!(bench.pass(now, false), PathHealth::Exhausted);
    assert_eq!(bench.requests.repair, []);
    bench.repair.request_all_again(Nanos(now));
    assert_eq!(bench.repairs(now), [range(5, 5)]);
}

#[test]
fn overdue_nack_link_falls_back_to_repair_connection() {
    let mut bench = Bench::new(|_| {});
    bench.miss(5, 6, 100);
    assert_eq!(bench.pass(100, true), PathHealth::Answers);
    assert_eq!(bench.requests.nack, [range(5, 6)]);
    assert_eq!(bench.requests.nack_overdue, None);
    let retry = bench.next_request();
    assert_eq!(bench.pass(retry, true), PathHealth::Answers);
    assert_eq!(
        (&bench.requests.nack[..], &bench.requests.repair[..]),
        (&[][..], &[range(5, 6)][..])
    );
    assert_eq!(bench.requests.nack_overdue, Some(Nanos(100)));
    assert_eq!(bench.counters.nack_link_timeouts.get(), 2);
    assert_eq!(bench.counters.nack_link_nacked_sequences.get(), 2);
}

#[test]
fn closed_nack_link_leaves_its_requests_at_once() {
    let mut bench = Bench::new(|_| {});
    bench.miss(5, 6, 100);
    assert_eq!(bench.pass(100, true), PathHealth::Answers);
    bench.repair.leave_nack_link(Nanos(200));
    assert_eq!(bench.next_request(), 200);
    assert_eq!(bench.repairs(200), [range(5, 6)]);
    assert_eq!(
        bench.counters.nack_link_timeouts.get(),
        0,
        "it was not late"
    );
}

#[test]
fn answers_below_gap_keep_it_waiting() {
    let mut bench = Bench::new(|_| {});
    bench.miss(3, 3, 90);
    bench.miss(7, 7, 100);
    assert_eq!(bench.repairs(100), [range(3, 3), range(7, 7)]);
    let retry = bench.repair.gaps.iter().last().unwrap().next_request_at.0;
    // The answer of sequence 3 is late, so that of 7 may still come.
    bench.fill(3, retry - 1, ANSWER);
    assert_eq!(bench.repairs(retry), []);
    assert!(bench.next_request() > retry);
    let patient = bench.next_request();
    assert_eq!(bench.repairs(patient), [range(7, 7)]);
    // An answer above it means that its own was lost.
    bench.miss(9, 9, patient);
    assert_eq!(bench.repairs(patient), [range(9, 9)]);
    let retry = bench.repair.gaps.iter().next().unwrap().next_request_at.0;
    bench.fill(9, retry - 1, ANSWER);
    assert_eq!(bench.repairs(retry), [range(7, 7)]);
}

#[test]
fn rtt_sample_is_taken_from_first_timely_answer_only() {
    // A sample of 1 ms makes the next retry timeout about 4 ms; without one it is 1 ms.
    let timeout_after = |attempts: u32, in_time: bool, arrival: Arrival| {
        let mut bench = Bench::new(|_| {});
        bench.miss(5, 5, 100);
        let mut asked = 100;
        for _ in 0..attempts {
            asked = bench.next_request();
            assert_eq!(bench.repairs(asked), [range(5, 5)]);
        }
        let gap = *bench.repair.gaps.iter().next().unwrap();
        let answered = match in_time {
            true => asked + 200 * US,
            false => gap.next_request_at.0 + 1,
        };
        bench.fill(5, answered, arrival);
        bench.miss(6, 6, answered);
        assert_eq!(bench.repairs(answered), [range(6, 6)]);
        bench.next_request() - answered
    };
    let assumed = 1_000 * US * 5 / 4;
    let line = Arrival {
        via: Via::Line(LineId(0)),
        path: ArrivalPath::Other,
    };
    assert!(
        timeout_after(1, true, ANSWER) < 1_000 * US,
        "4 x 200 us, and jitter"
    );
    let unsampled = timeout_after(2, true, ANSWER);
    assert!(
        (750 * US..assumed).contains(&unsampled),
        "Karn's rule: {unsampled}"
    );
    let late = timeout_after(1, false, ANSWER);
    assert!((750 * US..assumed).contains(&late), "no sample: {late}");
    let unrelated = timeout_after(1, true, line);
    assert!((750 * US..assumed).contains(&unrelated), "{unrelated}");
}

#[test]
fn late_answers_of_nack_link_lengthen_its_timeout() {
    let mut bench = Bench::new(|_| {});
    bench.miss(5, 5, 100);
    assert_eq!(bench.pass(100, true), PathHealth::Answers);
    let retry = bench.next_request();
    assert_eq!(bench.pass(retry, true), PathHealth::Answers);
    let before = bench.repair.nack_link.clone();
    let late = Arrival {
        via: Via::Repair,
        path: ArrivalPath::Nack,
    };
    bench.fill(5, retry + 10, late);
    let (mut before, mut after) = (before, bench.repair.nack_link.clone());
    let timeouts = |timer: &mut NackTimer| (0..64).map(|_| timer.retry(1).0).sum::<u64>();
    assert!(timeouts(&mut after) > timeouts(&mut before));
    // One late answer counts for all requests given up before.
    let mut again = bench.repair.nack_link.clone();
    bench.repair.note_late(ArrivalPath::Nack, Nanos(retry + 20));
    let mut same = bench.repair.nack_link.clone();
    assert_eq!(timeouts(&mut same), timeouts(&mut again));
}

#[test]
fn history_waits_for_replay_connection_and_its_room() {
    let mut bench = Bench::new(|config| config.replay_in_flight = 10);
    bench.miss_of(Origin::History, 1, 25, 100);
    assert_eq!(bench.pass(100, false), PathHealth::Answers);
    assert!(bench.requests.replay_wanted && bench.requests.replay.is_empty());
    bench.repair.set_replay(false, true);
    assert_eq!(bench.pass(100, false), PathHealth::Answers);
    assert!(!bench.requests.replay_wanted, "wanted once");
    assert_eq!(bench.next_request(), u64::MAX, "it is being established");
    bench.repair.set_replay(true, false);
    assert_eq!(bench.pass(100, false), PathHealth::Answers);
    assert_eq!(bench.requests.replay, [range(1, 10)]);
    assert_eq!(bench.pass(101, false), PathHealth::Answers);
    assert_eq!(bench.requests.replay, [], "ten are in flight");
    for sequence in 1..=4 {
        assert_eq!(bench.fill(sequence, 102, ANSWER), None);
    }
    assert_eq!(bench.pass(102, false), PathHealth::Answers);
    assert_eq!(bench.requests.replay, [range(11, 14)]);
    bench.repair.request_replay_again(Nanos(103));
    assert_eq!(bench.next_request(), 103);
}

#[test]
fn long_burst_is_replayed_or_given_up() {
    let mut bench = Bench::new(|config| config.burst_max = 4);
    assert!(!bench.miss(5, 9, 100), "ordered delivery waits");
    assert_eq!(bench.pass(100, false), PathHealth::Answers);
    assert!(bench.requests.replay_wanted && bench.requests.repair.is_empty());
    let mut bench = Bench::new(|config| {
        (config.burst_max, config.delivery) = (4, Delivery::Arrival);
    });
    assert!(!bench.miss(5, 8, 100));
    assert!(bench.miss(9, 13, 200), "low latency outweighs the burst");
    assert!(!bench.miss_of(Origin::History, 14, 99, 300));
}

#[test]
fn refused_range_is_postponed_without_counting_attempt() {
    let mut bench = Bench::new(|config| config.nack_attempts = 1);
    bench.miss(5, 8, 100);
    assert_eq!(bench.repairs(100), [range(5, 8)]);
    assert_eq!(bench.repair.refusal_wait(Nanos(1)), Nanos(RETRY));
    let wait = bench.repair.refusal_wait(Nanos(RETRY * 2));
    assert_eq!(wait, Nanos(RETRY * 2));
    bench.repair.note_refused(range(7, 8), Nanos(200));
    bench.repair.postpone(range(5, 8), Nanos(5_000_000));
    assert_eq!(bench.next_request(), 5_000_000);
    assert_eq!(bench.repairs(4_999_999), []);
    assert_eq!(bench.repairs(5_000_000), [range(5, 8)]);
}

/// Everything up to `confirmed` is confirmed; from `lifted_at` on nothing waits for a STATUS.
const fn limit(confirmed: u64, lifted_at: u64) -> LossLimit {
    LossLimit {
        confirmed: Sequence(confirmed),
        lifted_at: Nanos(lifted_at),
        reported: (Nanos(99), Sequence(99)),
    }
}

#[test]
fn gap_is_overdue_at_its_deadline() {
    let within = Delivery::OrderedWithin(Nanos(500));
    let mut bench = Bench::new(|config| config.delivery = within);
    let sure = limit(8, u64::MAX);
    bench.miss_of(Origin::History, 1, 3, 0);
    bench.miss(5, 8, 100);
    let due = bench.repair.next_deadline(&sure);
    assert_eq!(due, Nanos(600), "history has none");
    assert_eq!(bench.repair.overdue(Nanos(599), &sure), None);
    let overdue = bench.repair.overdue(Nanos(600), &sure);
    assert_eq!(overdue, Some((range(5, 8), LossCause::Deadline)));
    assert_eq!(bench.repair.next_confirmation(&sure), Nanos::MAX);
    let mut bench = Bench::new(|_| {});
    bench.miss(5, 8, 100);
    assert_eq!(bench.repair.next_deadline(&sure), Nanos::MAX);
    assert_eq!(bench.repair.overdue(Nanos::MAX, &sure), None);
    let claimed = limit(4, u64::MAX);
    assert_eq!(bench.repair.next_confirmation(&claimed), Nanos::MAX);
}

#[test]
fn claimed_gap_outlives_its_deadline_for_a_while() {
    let within = Delivery::OrderedWithin(Nanos(500));
    let mut bench = Bench::new(|config| config.delivery = within);
    bench.miss(5, 8, 100);
    let deadline = |confirmed, lifted_at| {
        let limit = limit(confirmed, lifted_at);
        let due = bench.repair.next_deadline(&limit);
        let before = bench.repair.overdue(Nanos(due.0 - 1), &limit);
        assert_eq!(before, None);
        let (lost, _) = bench.repair.overdue(due, &limit).expect("it is over");
        (due.0, lost)
    };
    let longest = Nanos(600).after(CONFIRM_WAIT).0;
    assert_eq!(deadline(4, u64::MAX), (longest, range(5, 8)));
    assert_eq!(deadline(4, 0), (600, range(5, 8)), "nobody can confirm");
    assert_eq!(deadline(4, 900), (900, range(5, 8)), "STATUS is overdue");
    assert_eq!(deadline(6, u64::MAX), (600, range(5, 6)), "as far as it is");
    assert_eq!(deadline(8, u64::MAX), (600, range(5, 8)));
}

#[test]
fn claimed_gap_asks_for_status_once_half_its_time_is_over() {
    let within = Delivery::OrderedWithin(Nanos(500));
    let mut bench = Bench::new(|config| config.delivery = within);
    bench.miss(5, 8, 100);
    bench.miss(10, 10, 200);
    let asks_at = |confirmed, (reported_at, heard)| {
        let limit = LossLimit {
            reported: (Nanos(reported_at), Sequence(heard)),
            ..limit(confirmed, u64::MAX)
        };
        bench.repair.next_confirmation(&limit).0
    };
    assert_eq!(asks_at(4, (0, 0)), 350);
    assert_eq!(asks_at(7, (99, 9)), 350, "a part of it is claimed only");
    assert_eq!(asks_at(8, (99, 9)), 450, "confirmed");
    assert_eq!(asks_at(4, (101, 8)), 450, "reported since it was found");
    assert_eq!(asks_at(4, (101, 7)), 350, "before all of it was found");
    assert_eq!(asks_at(4, (201, 10)), u64::MAX);
}

#[test]
fn gap_without_repair_has_deadline_and_no_request() {
    let mut bench = Bench::new(|config| (config.repair, config.unrepaired_wait_us) = (false, 2));
    bench.miss_of(Origin::History, 1, 3, 0);
    bench.repair.contest(Sequence(9));
    assert_eq!(bench.repairs(1_000_000), []);
    assert_eq!(bench.next_request(), u64::MAX);
    let sure = limit(3, u64::MAX);
    assert_eq!(bench.repair.next_deadline(&sure), Nanos(2 * US));
    let overdue = bench.repair.overdue(Nanos(2 * US), &sure);
    assert_eq!(overdue, Some((range(1, 3), LossCause::RepairOff)));
}

#[test]
fn lost_and_superseded_sequences_are_counted_by_origin() {
    let mut bench = Bench::new(|_| {});
    bench.miss_of(Origin::History, 1, 4, 0);
    bench.miss(5, 9, 100);
    let mut lost = Vec::new();
    bench
        .repair
        .lose(range(4, 6), &bench.counters, |part| lost.push(part));
    assert_eq!(lost, [range(4, 4), range(5, 6)]);
    bench.repair.supersede(range(8, 99), &bench.counters);
    bench.repair.count_open(&bench.counters);
    let counters = &bench.counters;
    assert_eq!(
        (counters.missing_lost.get(), counters.replay_lost.get()),
        (2, 1)
    );
    assert_eq!(counters.missing_superseded.get(), 2);
    assert_eq!(
        (counters.missing_open.get(), counters.replay_open.get()),
        (1, 3)
    );
    bench.repair.clear();
    assert!(!bench.repair.is_waiting());
}

#[test]
fn recovered_jump_is_reported_once_with_its_size() {
    let mut bench = Bench::new(|_| {});
    bench.miss(5, 6, 100);
    assert_eq!(bench.fill(6, 150, ANSWER), None);
    let outcome = bench.fill(5, 300, ANSWER).expect("the last one");
    let event = Event::GapRecovered {
        first: Sequence(5),
        sequences: 2,
        took: Nanos(200),
    };
    assert_eq!(outcome.event(Nanos(300)), Some(event));
    bench.miss_of(Origin::History, 8, 8, 300);
    let outcome = bench.fill(8, 400, ANSWER).expect("the only one");
    assert_eq!(outcome.event(Nanos(400)), None, "history is no recovery");
}

#[test]
fn contested_sequences_are_requested_with_gaps() {
    let mut bench = Bench::new(|_| {});
    bench.repair.contest(Sequence(3));
    assert!(bench.repair.is_waiting());
    assert_eq!(bench.next_request(), 0);
    bench.miss(5, 5, 100);
    assert_eq!(bench.repairs(100), [range(3, 3), range(5, 5)]);
    bench.repair.contest(Sequence(4));
    bench.repair.forget_contested_above(Sequence(3));
    bench.repair.decide(Sequence(3));
    assert!(bench.next_request() > 100);
}
