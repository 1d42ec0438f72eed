//! The event log of a run: one line per event, hashed incrementally. Two runs with equal hashes had
//! the same events.

use std::collections::VecDeque;
use std::io::{BufWriter, Write};

use tickcast_reliability::delivery::LossCause;
use tickcast_reliability::delivery::{Event as Reported, Item};
use tickcast_reliability::types::Nanos;

/// Number of the last lines that are kept, to be shown beside a violation.
const RECENT: usize = 60;

#[derive(Clone, Copy, Debug)]
struct Line {
    at: Nanos,
    what: &'static str,
    who: usize,
    a: u64,
    b: u64,
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (us, ns) = (self.at.0 / 1_000, self.at.0 % 1_000);
        let Self {
            what, who, a, b, ..
        } = self;
        write!(f, "{us}.{ns:03} {what} {who} {a} {b}")
    }
}

/// The event log of one run.
pub struct Trace {
    hash: u64,
    lines: u64,
    recent: VecDeque<Line>,
    out: Option<BufWriter<Box<dyn Write>>>,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            lines: 0,
            recent: VecDeque::with_capacity(RECENT),
            out: None,
        }
    }
}

impl Trace {
    /// Returns a log that is also written to `out`, one line per event: time in µs, event, actor, two
    /// numbers.
    #[must_use]
    pub fn to(out: Box<dyn Write>) -> Self {
        Self {
            out: Some(BufWriter::new(out)),
            ..Self::default()
        }
    }

    /// Appends an event of actor `who`, with two numbers.
    #[inline]
    pub fn note(&mut self, at: Nanos, what: &'static str, who: usize, a: u64, b: u64) {
        let mut hash = self.hash;
        for byte in what.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        for word in [at.0, who as u64, a, b] {
            hash = (hash ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
        }
        self.hash = hash;
        self.lines += 1;
        let line = Line {
            at,
            what,
            who,
            a,
            b,
        };
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
        if let Some(out) = &mut self.out {
            // A failed write is visible in the length of the log; the run goes on.
            let _ = writeln!(out, "{line}");
        }
    }

    /// Returns the hash of all lines so far.
    #[must_use]
    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of lines so far.
    #[must_use]
    pub const fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns the last lines, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<String> {
        self.recent.iter().map(Line::to_string).collect()
    }
}

/// Appends an item that was delivered to an application to the event log.
pub(crate) fn note_item(trace: &mut Trace, now: Nanos, number: usize, item: &Item<'_>) {
    match item {
        Item::Record(position, _) => {
            trace.note(
                now,
                "record",
                number,
                position.sequence.0,
                position.record.0,
            );
        }
        Item::Event(position, event) => {
            let (what, a, b) = match event {
                Reported::Joined { after } => ("joined", after.0, position.epoch.0),
                Reported::Live => ("live", position.sequence.0, 0),
                Reported::GapRecovered {
                    first, sequences, ..
                } => ("recovered", first.0, *sequences),
                Reported::Lost(loss) => ("lost", loss.sequences.first.0, loss.sequences.last.0),
                Reported::Stream(_) => ("event", position.sequence.0, 0),
                Reported::EpochChanged { from, to } => ("epoch", from.0, to.0),
                Reported::EpochContinued { to, last, .. } => ("continued", to.0, last.0),
                Reported::EndOfSession => ("end", position.sequence.0, 0),
                Reported::Stale => ("stale", 0, 0),
                Reported::Recovered => ("recovered", 0, 0),
                Reported::PublisherDead => ("dead", 0, 0),
                Reported::LineDown(line) => ("line-down", line.0.into(), 0),
                Reported::LineUp(line) => ("line-up", line.0.into(), 0),
                Reported::RepairLinkUp => ("link-up", 0, 0),
                Reported::RepairLinkDown(_) => ("link-down", 0, 0),
                Reported::MulticastLost => ("multicast-lost", 0, 0),
                Reported::MulticastRestored => ("multicast-restored", 0, 0),
                Reported::FencingViolation { sequence, .. } => ("fencing", sequence.0, 0),
                Reported::RolledBack { after, records } => ("rolled-back", after.0, *records),
                Reported::LossCorrected {
                    sequences, records, ..
                } => ("loss-corrected", sequences.first.0, *records),
                _ => ("told", 0, 0),
            };
            trace.note(now, what, number, a, b);
            match event {
                Reported::Lost(loss) => {
                    let cause = LossCause::ALL.iter().position(|of| *of == loss.cause);
                    let cause = cause.map_or(u64::MAX, |at| at as u64);
                    let records = loss.records.unwrap_or(u64::MAX);
                    trace.note(now, "lost-for", number, cause, records);
                }
                Reported::GapRecovered { took, .. } => trace.note(now, "took", number, took.0, 0),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::delivery::{Loss, Position, Quality, Via};
    use tickcast_reliability::types::{
        ChannelId, Epoch, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
    };

    fn hash_of(event: &Reported) -> u64 {
        let position = Position {
            channel: ChannelId(7),
            epoch: Epoch(1),
            sequence: Sequence(5),
            record: RecordNumber(9),
            via: Via::Repair,
            quality: Quality::default(),
            source: SourceId(0),
            source_position: SourcePosition(0),
            sent_at: Nanos::ZERO,
            received_at: Nanos::ZERO,
            missing_for: Nanos::ZERO,
        };
        let mut trace = Trace::default();
        note_item(&mut trace, Nanos::ZERO, 0, &Item::Event(&position, event));
        trace.hash()
    }

    #[test]
    fn runs_with_other_causes_or_times_differ_in_log() {
        let lost = |cause, records| {
            hash_of(&Reported::Lost(Loss {
                sequences: SequenceRange::one(Sequence(5)),
                records,
                cause,
            }))
        };
        let took = |took| {
            hash_of(&Reported::GapRecovered {
                first: Sequence(5),
                sequences: 1,
                took: Nanos(took),
            })
        };
        assert_eq!(
            lost(LossCause::Window, Some(3)),
            lost(LossCause::Window, Some(3))
        );
        assert_ne!(
            lost(LossCause::Window, Some(3)),
            lost(LossCause::Burst, Some(3))
        );
        assert_ne!(
            lost(LossCause::Window, Some(3)),
            lost(LossCause::Window, Some(4))
        );
        assert_ne!(
            lost(LossCause::Window, Some(3)),
            lost(LossCause::Window, None)
        );
        assert_ne!(took(5), took(6));
    }
}
