//! Judges whether a live source is silent, by the heartbeats of its venue.

use tickcast_feeds::venues::Format;
use tickcast_reliability::types::{Nanos, Now};

use crate::state::hearing::Silence;

/// A silence that lasts is reported again after this time, for subscribers that joined meanwhile. So is its
/// end, for those that were overrun.
const REPEAT: Nanos = Nanos::from_secs(10);
/// How often the end of a silence is repeated.
const END_REPEATS: u8 = 2;

/// Judges the silence of one source. It reads no clock, and packets of other feeds do not count.
#[derive(Debug)]
pub(super) struct SilenceJudge {
    /// A source that is not heard for this long is silent.
    limit: Nanos,
    /// When the source was heard last, or listening began.
    heard: Now,
    /// Packets of the source until then.
    packets: u64,
    reported: Reported,
}

/// The last report of the source in the stream.
#[derive(Clone, Copy, Debug)]
enum Reported {
    /// It is heard.
    Heard,
    /// It is silent, or heard: an earlier publisher reported it.
    Unknown,
    /// It is silent.
    Silent {
        since: Nanos,
        /// When that was reported last, by the monotonic clock.
        at: Nanos,
    },
    /// It is heard again.
    Back {
        /// The beginning of the silence.
        since: Nanos,
        at: Nanos,
        /// How often that is still repeated.
        repeats: u8,
    },
}

impl SilenceJudge {
    /// Begins to listen at `now` to a source of this format; `None`: it is not known yet.
    pub(super) fn new(format: Option<Format>, now: Now) -> Self {
        let intervals = Format::ALL.map(Format::heartbeat_interval);
        let longest = intervals.into_iter().max().unwrap_or(Nanos::ZERO);
        let interval = format.map_or(longest, Format::heartbeat_interval);
        Self {
            limit: limit(interval),
            heard: now,
            packets: 0,
            reported: Reported::Heard,
        }
    }

    /// Continues the reports of an earlier publisher. If they ended in a silence, the first packet ends it.
    pub(super) const fn resume(&mut self) {
        self.reported = Reported::Unknown;
    }

    /// Judges by this format from now on.
    pub(super) const fn set_format(&mut self, format: Format) {
        self.limit = limit(format.heartbeat_interval());
    }

    /// Takes the number of packets of the source so far. Returns whether it was heard since the last call.
    #[inline]
    pub(super) const fn hear(&mut self, now: Now, packets: u64) -> bool {
        let is_heard = packets != self.packets;
        if is_heard {
            self.packets = packets;
            self.heard = now;
        }
        is_heard
    }

    /// Returns what to report, again and again until it [is reported](Self::set_reported). A silence that
    /// lasts is repeated, and its end a few times. None begins after the venue has ended its session.
    #[inline]
    pub(super) fn change(&self, now: Nanos, is_session_over: bool) -> Option<Silence> {
        let is_silent = now.since(self.heard.monotonic) >= self.limit;
        match self.reported {
            Reported::Heard | Reported::Unknown | Reported::Back { .. }
                if is_silent && !is_session_over =>
            {
                let since = self.heard.utc;
                Some(Silence::Begun { since })
            }
            Reported::Unknown if self.packets > 0 => self.end(),
            Reported::Silent { .. } if !is_silent => self.end(),
            Reported::Silent { since, at } if now >= at.after(REPEAT) => {
                Some(Silence::Begun { since })
            }
            Reported::Back { since, at, .. } if now >= at.after(REPEAT) => {
                Some(Silence::Over { since })
            }
            _ => None,
        }
    }

    /// Records that the stream reports this since `now`.
    pub(super) const fn set_reported(&mut self, change: Silence, now: Nanos) {
        self.reported = match (change, self.reported) {
            (Silence::Begun { since }, _) => Reported::Silent { since, at: now },
            (Silence::Over { .. }, Reported::Back { repeats: 0 | 1, .. }) => Reported::Heard,
            (Silence::Over { since }, before) => Reported::Back {
                since,
                at: now,
                repeats: match before {
                    Reported::Back { repeats, .. } => repeats - 1,
                    _ => END_REPEATS,
                },
            },
        };
    }

    /// Returns whether this judge has reported silence.
    pub(super) const fn is_reported(&self) -> bool {
        matches!(self.reported, Reported::Silent { .. })
    }

    /// Returns whether the stream may report silence, so that a packet brings its [end](Self::end).
    #[inline]
    pub(super) const fn may_end(&self) -> bool {
        matches!(self.reported, Reported::Unknown | Reported::Silent { .. })
    }

    /// Returns the end of the silence that the stream reports, if it may.
    pub(super) const fn end(&self) -> Option<Silence> {
        match self.reported {
            Reported::Heard | Reported::Back { .. } => None,
            Reported::Unknown => Some(Silence::Over { since: Nanos::ZERO }),
            Reported::Silent { since, .. } => Some(Silence::Over { since }),
        }
    }
}

/// Returns the longest pause of a venue with this heartbeat interval: three of its heartbeats, and half an
/// interval to arrive.
const fn limit(interval: Nanos) -> Nanos {
    Nanos(interval.0.saturating_mul(7) / 2)
}

#[cfg(test)]
mod tests {
    use tickcast_feeds::source::{Incident, Packet, Sink};
    use tickcast_feeds::venues::Settings;
    use tickcast_reliability::record::RecordBatch;
    use tickcast_reliability::types::SourcePosition;

    use super::*;

    const UTC: u64 = 1_700_000_000_000_000_000;

    fn at(ms: u64) -> Now {
        Now {
            monotonic: Nanos::from_ms(ms),
            utc: Nanos(UTC).after(Nanos::from_ms(ms)),
        }
    }

    /// Lets a judge see `packets` at a time; returns the change, which the stream reports.
    fn step(judge: &mut SilenceJudge, ms: u64, packets: u64) -> Option<Silence> {
        judge.hear(at(ms), packets);
        let change = judge.change(at(ms).monotonic, false);
        if let Some(change) = change {
            judge.set_reported(change, at(ms).monotonic);
        }
        change
    }

    #[test]
    fn silence_is_reported_once_and_its_end_once() {
        let mut judge = SilenceJudge::new(Some(Format::MoldUdp64Itch50), at(0));
        assert_eq!(step(&mut judge, 1_000, 5), None);
        assert_eq!(
            step(&mut judge, 4_499, 5),
            None,
            "three heartbeats and a half"
        );
        let since = at(1_000).utc;
        assert_eq!(step(&mut judge, 4_500, 5), Some(Silence::Begun { since }));
        assert_eq!(step(&mut judge, 8_000, 5), None);
        assert_eq!(step(&mut judge, 8_001, 6), Some(Silence::Over { since }));
        assert_eq!(step(&mut judge, 8_002, 6), None);
        let since = at(8_001).utc;
        assert_eq!(step(&mut judge, 11_501, 6), Some(Silence::Begun { since }));
    }

    #[test]
    fn lasting_silence_is_repeated_with_its_beginning() {
        let mut judge = SilenceJudge::new(None, at(0));
        let begun = Some(Silence::Begun { since: at(0).utc });
        let reports: Vec<_> = (0..=30_000)
            .filter(|ms| {
                step(&mut judge, *ms, 0)
                    .inspect(|it| assert_eq!(Some(*it), begun))
                    .is_some()
            })
            .collect();
        assert_eq!(reports, [3_500, 13_500, 23_500]);
    }

    #[test]
    fn end_of_silence_is_repeated_twice() {
        let mut judge = SilenceJudge::new(None, at(0));
        let since = at(0).utc;
        let reports: Vec<_> = (0..=50_000)
            .filter_map(|ms| {
                // Packets come again from 4 s on, except for a while after 35 s.
                let packets = if (4_000..35_000).contains(&ms) { ms } else { 0 };
                Some((ms, step(&mut judge, ms, packets)?))
            })
            .collect();
        let over = Silence::Over { since };
        let expected = [(4_000, over), (14_000, over), (24_000, over)];
        assert_eq!(reports[0], (3_500, Silence::Begun { since }));
        assert_eq!(reports[1..4], expected);
        assert!(matches!(reports[4], (38_500, Silence::Begun { .. })));
    }

    #[test]
    fn source_never_heard_is_silent_since_listening_began() {
        for format in [None, Some(Format::IexTp)] {
            let mut judge = SilenceJudge::new(format, at(100));
            assert_eq!(step(&mut judge, 3_599, 0), None);
            let since = at(100).utc;
            assert_eq!(step(&mut judge, 3_600, 0), Some(Silence::Begun { since }));
        }
    }

    struct Nobody;

    impl Sink for Nobody {
        fn message(&mut self, _: SourcePosition, _: &RecordBatch) {}

        fn incident(&mut self, _: Incident) {}
    }

    #[test]
    fn foreign_packets_do_not_end_a_silence() {
        let mut decoder = Format::MoldUdp64Itch50.decoder(Settings::default());
        let mut judge = SilenceJudge::new(Some(Format::MoldUdp64Itch50), at(0));
        let mut hear = |ms: u64, payload: &[u8]| {
            let received_at = at(ms).monotonic;
            let packet = Packet {
                received_at,
                payload,
            };
            decoder.line_packet(0, received_at, packet, &mut Nobody);
            judge.hear(at(ms), decoder.packets())
        };
        let heartbeat = b"SESSION001\0\0\0\0\0\0\0\x02\0\0";
        let system_event = b"SESSION001\0\0\0\0\0\0\0\x01\0\x01\0\x0cS\0\0\0\0\0\0\0\0\0\0O";
        assert!(hear(1, system_event));
        assert!(!hear(
            2,
            b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03com\0\0\x01\0\x01"
        ));
        assert!(!hear(3, b"too short"));
        assert!(hear(4, heartbeat), "a heartbeat is enough");
    }

    #[test]
    fn change_is_repeated_until_it_is_reported() {
        let mut judge = SilenceJudge::new(None, at(0));
        let begun = Silence::Begun { since: at(0).utc };
        assert_eq!(judge.change(at(9_000).monotonic, false), Some(begun));
        assert_eq!(judge.change(at(9_001).monotonic, false), Some(begun));
        judge.set_reported(begun, at(9_001).monotonic);
        let over = Silence::Over { since: at(0).utc };
        assert_eq!((judge.is_reported(), judge.end()), (true, Some(over)));
        assert!(judge.hear(at(9_002), 1) && !judge.hear(at(9_003), 1));
        for ms in [9_004, 9_005] {
            assert_eq!(judge.change(at(ms).monotonic, false), Some(over));
        }
        judge.set_reported(over, at(9_005).monotonic);
        assert_eq!((judge.is_reported(), judge.end()), (false, None));
    }

    #[test]
    fn first_packet_ends_silence_that_earlier_publisher_reported() {
        let resumed = || {
            let mut judge = SilenceJudge::new(Some(Format::IexTp), at(0));
            judge.resume();
            judge
        };
        let over = Some(Silence::Over { since: Nanos::ZERO });
        let mut judge = resumed();
        assert_eq!((judge.may_end(), judge.is_reported()), (true, false));
        assert_eq!(step(&mut judge, 3_499, 0), None, "nothing was heard");
        assert_eq!(step(&mut judge, 3_499, 1), over);
        assert!(!judge.may_end());
        assert_eq!(step(&mut judge, 3_500, 2), None);
        let since = at(0).utc;
        let mut judge = resumed();
        assert_eq!(step(&mut judge, 3_500, 0), Some(Silence::Begun { since }));
        assert_eq!(step(&mut judge, 3_501, 1), Some(Silence::Over { since }));
    }

    #[test]
    fn silence_after_the_session_ended_is_not_reported() {
        let mut judge = SilenceJudge::new(None, at(0));
        judge.hear(at(1_000), 1);
        assert_eq!(judge.change(at(99_000).monotonic, true), None);
        let begun = Silence::Begun { since: at(0).utc };
        judge.set_reported(begun, at(1_000).monotonic);
        let over = Silence::Over { since: at(0).utc };
        assert_eq!(judge.change(at(1_001).monotonic, true), Some(over));
    }
}
