//! Reports of subscribers in their cursors.

use super::read_grant::{poor, reader};
use super::*;
use crate::control::{CURSOR_WORDS, RemoteAccess, Report};

const CURSOR: RemoteAccess = RemoteAccess {
    address: 0x9_0040,
    len: 64,
    key: 9,
};

/// Returns the cursor of a subscriber that has settled this sequence.
fn report(session: u64, number: u64, sequence: u64, read_bytes: u64) -> [u64; CURSOR_WORDS] {
    let report = Report {
        number,
        epoch: EPOCH,
        sequence: Sequence(sequence),
        heard: Sequence(sequence + 1),
        lost_records: 3,
        read_bytes,
    };
    let mut words = [session; CURSOR_WORDS];
    words[1..].copy_from_slice(&report.words(session));
    words
}

impl Bench {
    /// Returns a subscriber (peer 0) whose READ connection (peer 1) has a granted ring and cursor.
    fn with_cursor(config: RepairConfig) -> (Self, u64) {
        let (mut bench, session) = Self::reading(config);
        bench.grant(1);
        assert!(bench.core.grant_cursor(PeerId(1), CHANNEL, CURSOR));
        (bench, session)
    }

    fn poll(&mut self, words: &[u64; CURSOR_WORDS]) -> Option<Progress> {
        let reported = self.core.handle_cursor(self.now, PeerId(1), CHANNEL, words);
        reported.map(|(owner, progress)| {
            assert_eq!(owner, PeerId(0));
            progress
        })
    }
}

#[test]
fn cursor_is_granted_only_to_the_holder_of_a_ring_grant() {
    let (mut bench, session) = Bench::reading(RepairConfig::default());
    let grant = |bench: &mut Bench, peer| bench.core.grant_cursor(PeerId(peer), CHANNEL, CURSOR);
    assert!(!grant(&mut bench, 1), "there is no ring yet");
    bench.grant(1);
    bench.drain();
    assert!(!grant(&mut bench, 0) && !grant(&mut bench, 7));
    let other = ChannelId(CHANNEL.0 + 1);
    assert!(!bench.core.grant_cursor(PeerId(1), other, CURSOR));
    assert!(grant(&mut bench, 1));
    let got = bench.take(0);
    let [Got::Grant(reported)] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!((reported.cursor, reported.attempt), (Some(CURSOR), 5));
    assert_eq!(bench.core.counters.cursor_grants.get(), 1);
    // From then on, the GRANT contains the cursor beside the tokens.
    let more = bench.poll(&report(session, 1, 0, 1 << 16));
    assert!(more.is_some());
    let got = bench.take(0);
    assert!(matches!(&got[..], [Got::Grant(reported)] if reported.cursor == Some(CURSOR)));
}

#[test]
fn cursor_report_counts_as_progress_without_an_answer() {
    let (mut bench, session) = Bench::with_cursor(RepairConfig::default());
    bench.publish(40);
    bench.drain();
    bench.events();
    let known = bench.poll(&report(session, 1, 7, 0)).unwrap();
    assert_eq!((known.sequence, known.heard), (Sequence(7), Sequence(8)));
    assert_eq!(known.lost_records, 3);
    assert!(matches!(
        &bench.events()[..],
        [RepairEvent::SlowSubscriber { behind: 33, .. }]
    ));
    assert_eq!(bench.drain().len(), 0, "nothing is answered");
    // The same report again, and an older one.
    assert_eq!(bench.poll(&report(session, 1, 7, 0)), None);
    assert!(bench.poll(&report(session, 4, 30, 0)).is_some());
    assert_eq!(bench.poll(&report(session, 3, 40, 0)), None);
    let counters = &bench.counters;
    let of = (counters.cursor_reports.get(), counters.cursor_ignored.get());
    assert_eq!(of, (2, 1));
    // PROGRESS was ahead of the cursor.
    bench.deliver(0, Message::Progress(progress(35)));
    assert_eq!(bench.poll(&report(session, 5, 33, 0)), None);
    assert!(bench.poll(&report(session, 6, 36, 0)).is_some());
    assert_eq!(bench.counters.cursor_reports.get(), 4);
}

#[test]
fn older_cursor_report_lowers_no_status() {
    let (mut bench, session) = Bench::with_cursor(RepairConfig::default());
    bench.publish(40);
    bench.drain();
    // It arrived before the publisher noted it as sent.
    bench.ring.open().unwrap();
    bench.seal_unsent(Kind::End, 0);
    let heard = Progress {
        heard: Sequence(41),
        ..progress(35)
    };
    bench.deliver(0, Message::Progress(heard));
    assert!(bench.poll(&report(session, 1, 35, 0)).is_some());
    let got = bench.take(0);
    assert!(
        matches!(&got[..], [Got::Status(it)] if it.newest == Sequence(41)),
        "{got:?}"
    );
}

#[test]
fn torn_or_foreign_cursor_report_is_counted_and_ignored() {
    let (mut bench, session) = Bench::with_cursor(RepairConfig::default());
    assert_eq!(bench.poll(&[0; CURSOR_WORDS]), None);
    let mut torn = report(session, 1, 9, 0);
    torn[3] = 8;
    assert_eq!(bench.poll(&torn), None);
    assert_eq!(bench.poll(&report(session + 1, 1, 9, 0)), None);
    let counters = &bench.counters;
    let of = (counters.cursor_torn.get(), counters.cursor_ignored.get());
    assert_eq!((of, counters.cursor_reports.get()), ((1, 1), 0));
    assert!(bench.poll(&report(session, 1, 9, 0)).is_some());
    bench.input(RepairInput::Disconnected(PeerId(1)));
    assert_eq!(bench.poll(&report(session, 2, 9, 0)), None, "it is gone");
    // The reports of the next connection restart.
    bench.connect(2, reader(session, 6));
    bench.grant(2);
    let (now, words) = (bench.now, report(session, 1, 9, 0));
    assert!(bench.core.grant_cursor(PeerId(2), CHANNEL, CURSOR));
    let known = bench.core.handle_cursor(now, PeerId(2), CHANNEL, &words);
    assert!(known.is_some());
}

#[test]
fn tokens_are_renewed_by_a_report_as_by_progress() {
    let (mut bench, session) = Bench::with_cursor(poor());
    let before = bench.tokens().unwrap();
    assert!(bench.poll(&report(session, 1, 0, before / 2)).is_some());
    assert_eq!(bench.tokens(), None, "half is left");
    assert!(bench.poll(&report(session, 2, 0, before / 2 + 1)).is_some());
    assert_eq!(bench.tokens(), Some(before + before / 2 + 1));
}
