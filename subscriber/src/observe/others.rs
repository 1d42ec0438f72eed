//! Detects another publisher on a channel's groups. It sends datagrams of an unknown sender, or of an
//! epoch that the channel's publisher does not confirm, and it keeps sending them.

use tickcast_reliability::delivery::Event;
use tickcast_reliability::types::Nanos;
use tickcast_reliability::types::ReceiverCounters;

/// The interval between two comparisons of the counters.
const CHECK_INTERVAL: Nanos = Nanos::from_secs(1);
/// Foreign datagrams come from another publisher if they arrive in each of this many intervals. A restart,
/// a failover and a late datagram cause foreign datagrams for a moment only.
const LOOKS: u32 = 3;
/// The event for the same publisher repeats at this interval.
const REPORT_INTERVAL: Nanos = Nanos::from_secs(60);

/// Foreign datagrams of one channel, over time.
#[derive(Debug, Default)]
pub(crate) struct OtherPublishers {
    check_at: Nanos,
    report_at: Nanos,
    /// The number of foreign datagrams at the last comparison.
    seen: u64,
    /// The number of foreign datagrams before the first interval that contained any.
    before: u64,
    /// The number of consecutive intervals that contained foreign datagrams.
    looks: u32,
}

impl OtherPublishers {
    /// Returns the event that is due. While the connection to the publisher is down, no datagram counts as
    /// foreign, because the publisher may have begun another epoch.
    pub(crate) fn check(
        &mut self,
        now: Nanos,
        counters: &ReceiverCounters,
        is_linked: bool,
    ) -> Option<Event> {
        if now < self.check_at {
            return None;
        }
        self.check_at = now.after(CHECK_INTERVAL);
        let foreign = [
            &counters.unknown_sender_dropped,
            &counters.unknown_epoch_dropped,
            &counters.old_epoch_dropped,
        ];
        let seen = foreign.iter().map(|counter| counter.get()).sum();
        let before = std::mem::replace(&mut self.seen, seen);
        if seen == before || !is_linked {
            self.looks = 0;
            return None;
        }
        if self.looks == 0 {
            self.before = before;
        }
        self.looks = self.looks.saturating_add(1);
        if self.looks < LOOKS || now < self.report_at {
            return None;
        }
        self.report_at = now.after(REPORT_INTERVAL);
        Some(Event::OtherPublisher {
            datagrams: seen - self.before,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the event of each second, given the number of foreign datagrams in it.
    fn events(each_second: &[u64], is_linked: bool) -> Vec<Option<u64>> {
        let (mut others, counters) = (OtherPublishers::default(), ReceiverCounters::default());
        let looks = each_second.iter().zip(1..);
        looks
            .map(|(foreign, second)| {
                counters.unknown_epoch_dropped.add(*foreign);
                let now = Nanos::from_secs(second);
                let event = others.check(now, &counters, is_linked);
                assert_eq!(others.check(now, &counters, is_linked), None, "too early");
                event.map(|event| match event {
                    Event::OtherPublisher { datagrams } => datagrams,
                    other => panic!("{other}"),
                })
            })
            .collect()
    }

    #[test]
    fn datagrams_that_keep_coming_are_another_publisher() {
        assert_eq!(
            events(&[5, 5, 5, 5, 0], true),
            [None, None, Some(15), None, None]
        );
        assert_eq!(
            events(&[500, 500, 0, 500, 500], true),
            [None; 5],
            "two restarts"
        );
        assert_eq!(events(&[5; 5], false), [None; 5], "a link that is down");
        let long = events(&[1; 64], true);
        let at: Vec<_> = (1..)
            .zip(&long)
            .filter(|(_, event)| event.is_some())
            .collect();
        assert_eq!(at, [(3, &Some(3)), (63, &Some(63))]);
    }
}
