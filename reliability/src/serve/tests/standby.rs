//! WRITEs to standbys.

use super::read_grant::reader;
use super::*;
use crate::control::{MirrorRefusal, Mirroring, RemoteAccess};
use crate::serve::standby::MIRRORS_MAX;
use crate::serve::standby_writes::{MIRROR_WRITES_MAX, MirrorWrite};

const SLOTS: u64 = 64;

fn wish() -> Mirroring {
    Mirroring {
        epoch: EPOCH,
        attempt: 5,
        inbox: RemoteAccess {
            address: 0x7100_0000,
            len: 16 * 1024,
            key: 3,
        },
    }
}

impl Bench {
    /// Returns a subscriber `risk` that may take over, with its READ connection.
    fn mirroring() -> Self {
        let (mut bench, _) = Self::reading(RepairConfig::default());
        bench.core.set_standbys(vec!["risk".into()]);
        bench.events();
        bench
    }

    fn wishes(&mut self, wish: Mirroring) -> Option<MirrorRefusal> {
        self.deliver(0, Message::Mirror(wish));
        let refused = self.take(0).into_iter().find_map(|got| match got {
            Got::MirrorRefused(refused) => Some(refused),
            _ => None,
        });
        let reason = refused.map(|refused| {
            assert_eq!((refused.epoch, refused.attempt), (EPOCH, wish.attempt));
            refused.reason
        });
        let said = RepairEvent::Mirroring {
            peer: PeerId(0),
            name: "risk".into(),
            channel: CHANNEL,
            refused: reason,
        };
        assert_eq!(self.events(), [said]);
        reason
    }

    /// Checks the refusal that the standby and the driver receive unrequested.
    fn refused(&mut self, reason: MirrorRefusal) {
        let refused = MirrorRefused {
            epoch: EPOCH,
            attempt: 5,
            reason,
        };
        assert_eq!(self.take(0), [Got::MirrorRefused(refused)]);
        let said = RepairEvent::Mirroring {
            peer: PeerId(0),
            name: "risk".into(),
            channel: CHANNEL,
            refused: Some(reason),
        };
        assert_eq!(self.events(), [said]);
    }

    fn writes(&mut self) -> Vec<MirrorWrite> {
        let all = std::iter::from_fn(|| {
            let (peer, write) = self.core.poll_write()?;
            assert_eq!(peer, PeerId(1), "the connection for READ");
            Some(write)
        });
        all.collect()
    }
}

#[test]
fn inbox_writes_run_from_newest_as_in_ring() {
    let mut bench = Bench::mirroring();
    bench.publish(3);
    assert_eq!(bench.wishes(wish()), None);
    assert!(bench.core.is_mirrored());
    bench.publish(2);
    let places: Vec<_> = (bench.writes().iter())
        .map(|it| (it.offset, it.len, it.at))
        .collect();
    let len = HEADER_LEN + 56;
    let place = |n: usize| (4096 + n * 1024, len, n * 1024);
    assert_eq!(places, [place(3), place(4), place(5)]);
    assert_eq!(bench.counters.mirror_writes.get(), 3);
    assert_eq!(bench.core.counters.mirrors_begun.get(), 1);
    // The inbox has fewer slots than the ring.
    bench.input(RepairInput::Written(PeerId(1), 3));
    bench.publish(15);
    let last = *bench.writes().last().unwrap();
    assert_eq!((last.offset, last.at), (4096 + 20 * 1024, 4 * 1024));
}

#[test]
fn mirror_writes_in_flight_are_bounded_and_lapped_skipped() {
    let mut bench = Bench::mirroring();
    bench.publish(1);
    assert_eq!(bench.wishes(wish()), None);
    bench.publish(u64::from(MIRROR_WRITES_MAX) + 8);
    assert_eq!(bench.writes().len(), MIRROR_WRITES_MAX as usize);
    bench.publish(2 * SLOTS);
    assert!(bench.writes().is_empty());
    bench.input(RepairInput::Written(PeerId(1), MIRROR_WRITES_MAX));
    let writes = bench.writes();
    let newest = (bench.ring.sealed().0 % SLOTS) as usize;
    assert_eq!(writes.len(), 1, "the newest alone");
    assert_eq!(writes[0].offset, 4096 + newest * 1024);
    let skipped = bench.counters.mirror_writes_skipped.get();
    assert_eq!(skipped, 8 + 2 * SLOTS);
}

#[test]
fn inbox_writes_need_right_and_valid_offer() {
    let mut bench = Bench::mirroring();
    bench.publish(1);
    let with = |change: fn(&mut Mirroring)| {
        let mut changed = wish();
        change(&mut changed);
        changed
    };
    for (attempt, (wrong, reason)) in [
        (with(|it| it.epoch.0 += 1), MirrorRefusal::Epoch),
        (with(|it| it.attempt += 1), MirrorRefusal::Attempt),
        (with(|it| it.inbox.len += 1024), MirrorRefusal::Shape),
        (with(|it| it.inbox.len = 128 * 1024), MirrorRefusal::Shape),
        (with(|it| it.inbox.address = u64::MAX), MirrorRefusal::Shape),
    ]
    .into_iter()
    .enumerate()
    {
        if attempt == 3 {
            // Too many requests for one READ connection.
            bench = Bench::mirroring();
            bench.publish(1);
        }
        assert_eq!(bench.wishes(wrong), Some(reason));
    }
    bench.core.set_standbys(vec!["other".into()]);
    assert_eq!(bench.wishes(wish()), Some(MirrorRefusal::NotAllowed));
    assert!(bench.writes().is_empty() && !bench.core.is_mirrored());
    assert_eq!(bench.core.counters.mirrors_refused.get(), 3);
    assert_eq!(bench.core.counters.mirrors_begun.get(), 0);
}

#[test]
fn mirror_request_flood_closes_peer_without_event_loss() {
    // The requesting standby, `risk`, is listed, or only another one is.
    for (standby, refusal) in [("risk", None), ("other", Some(MirrorRefusal::NotAllowed))] {
        let mut bench = Bench::mirroring();
        bench.core.set_standbys(vec![standby.into()]);
        bench.publish(1);
        for _ in 0..MIRRORS_MAX {
            assert_eq!(bench.wishes(wish()), refusal);
        }
        for _ in 0..100_000 {
            bench.deliver(0, Message::Mirror(wish()));
        }
        let got = bench.take(0);
        assert!(
            matches!(&got[..], [Got::Rejected(reported)] if reported.code == RejectCode::Protocol),
            "{got:?}"
        );
        bench.join(7);
        let events = bench.events();
        let reported = |of: fn(&RepairEvent) -> bool| events.iter().filter(|it| of(it)).count();
        assert_eq!(
            reported(|it| matches!(it, RepairEvent::Mirroring { .. })),
            0
        );
        assert_eq!(reported(|it| matches!(it, RepairEvent::Close { .. })), 2);
        let joined = |it: &RepairEvent| {
            matches!(
                it,
                RepairEvent::Joined {
                    peer: PeerId(7),
                    ..
                }
            )
        };
        assert_eq!(reported(joined), 1);
        assert_eq!(bench.core.counters.protocol_errors.get(), 1);
    }
}

#[test]
fn new_read_connection_resets_the_mirror_request_limit() {
    let (mut bench, session) = Bench::reading(RepairConfig::default());
    bench.core.set_standbys(vec!["other".into()]);
    bench.events();
    for attempt in 6..20 {
        for _ in 0..MIRRORS_MAX {
            assert_eq!(bench.wishes(wish()), Some(MirrorRefusal::NotAllowed));
        }
        bench.connect(attempt, reader(session, attempt));
        bench.events();
    }
    assert_eq!(bench.core.counters.protocol_errors.get(), 0);
}

#[test]
fn mirror_ends_on_disconnect_or_unwritable_peer() {
    let mut bench = Bench::mirroring();
    bench.publish(1);
    assert_eq!(bench.wishes(wish()), None);
    bench.input(RepairInput::Disconnected(PeerId(1)));
    bench.publish(1);
    assert!(bench.writes().is_empty() && !bench.core.is_mirrored());
    assert_eq!(bench.wishes(wish()), Some(MirrorRefusal::Attempt));
    let mut bench = Bench::mirroring();
    bench.publish(1);
    assert_eq!(bench.wishes(wish()), None);
    bench.input(RepairInput::Unwritable(PeerId(1)));
    bench.refused(MirrorRefusal::Impossible);
    assert!(bench.writes().is_empty() && !bench.core.is_mirrored());
}

#[test]
fn denied_mirror_gets_one_refusal_and_no_more_writes() {
    let mut bench = Bench::mirroring();
    bench.publish(1);
    assert_eq!(bench.wishes(wish()), None);
    assert_eq!(bench.writes().len(), 1);
    assert!(!bench.core.deny_writes(PeerId(0)), "none for READ");
    assert!(!bench.core.deny_writes(PeerId(9)), "nobody");
    bench.publish(1);
    assert!(bench.core.deny_writes(PeerId(1)));
    bench.refused(MirrorRefusal::Denied);
    assert!(bench.writes().is_empty() && !bench.core.is_mirrored());
    // An outstanding WRITE completes. The refusal is sent once.
    bench.input(RepairInput::Written(PeerId(1), 1));
    assert!(bench.core.deny_writes(PeerId(1)));
    assert!(bench.take(0).is_empty() && bench.events().is_empty());
    assert_eq!(bench.wishes(wish()), Some(MirrorRefusal::Denied));
    assert!(bench.writes().is_empty());
    assert_eq!(bench.core.counters.mirrors_refused.get(), 2);
}

#[test]
fn denied_before_writing_is_written_on_reconnect() {
    let (mut bench, session) = Bench::reading(RepairConfig::default());
    bench.core.set_standbys(vec!["risk".into()]);
    bench.publish(1);
    assert!(bench.core.deny_writes(PeerId(1)));
    bench.events();
    assert!(bench.take(0).is_empty(), "nothing was wished for");
    assert_eq!(bench.wishes(wish()), Some(MirrorRefusal::Denied));
    bench.input(RepairInput::Disconnected(PeerId(1)));
    bench.connect(2, reader(session, 6));
    bench.events();
    let again = Mirroring {
        attempt: 6,
        ..wish()
    };
    assert_eq!(bench.wishes(again), None);
    let written = bench.core.poll_write();
    assert_eq!(written.map(|(peer, _)| peer), Some(PeerId(2)));
}
