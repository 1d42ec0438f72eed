//! When a live source was heard, and its silences as the stream reports them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use tickcast_reliability::types::{Nanos, SourceId};
use tickcast_reliability::wire::StreamEvent;

/// A change between silence and hearing of a live source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// Nothing has arrived of the source for too long.
    Begun {
        /// When it was heard last, UTC; when the publisher began to listen, if it never was.
        since: Nanos,
    },
    /// The source is heard again.
    Over {
        /// When it was heard last before the silence, UTC; 0 if unknown.
        since: Nanos,
    },
}

impl Silence {
    /// Returns the event that reports it in the stream, for all instruments of the source.
    pub(crate) fn event(self, source: SourceId) -> StreamEvent {
        let instruments = Vec::new();
        match self {
            Self::Begun { since } => StreamEvent::SourceSilent {
                source,
                since,
                instruments,
            },
            Self::Over { since } => StreamEvent::SourceBack {
                source,
                since,
                instruments,
            },
        }
    }
}

/// When a live source and its lines were heard last. Its feed thread writes it, any thread reads it.
#[derive(Debug)]
pub(crate) struct Hearing {
    /// By the monotonic clock, in nanoseconds.
    source: AtomicU64,
    lines: Vec<AtomicU64>,
    /// Since when it has been silent, UTC; [`HEARD`] while it is heard.
    silent_since: AtomicU64,
}

const HEARD: u64 = u64::MAX;

impl Hearing {
    /// Creates the state of a source with these lines, which begins to be listened to at `now`.
    pub(crate) fn new(lines: usize, now: Nanos) -> Self {
        Self {
            source: AtomicU64::new(now.0),
            lines: (0..lines).map(|_| AtomicU64::new(now.0)).collect(),
            silent_since: AtomicU64::new(HEARD),
        }
    }

    /// Records a packet of the source.
    pub(crate) fn heard(&self, now: Nanos) {
        self.source.store(now.0, Relaxed);
    }

    /// Records a packet on a line.
    pub(crate) fn line_heard(&self, line: usize, now: Nanos) {
        if let Some(heard) = self.lines.get(line) {
            heard.store(now.0, Relaxed);
        }
    }

    /// Records that the source fell silent, or is heard again.
    pub(crate) fn set(&self, silence: Silence) {
        let since = match silence {
            Silence::Begun { since } => since.0,
            Silence::Over { .. } => HEARD,
        };
        self.silent_since.store(since, Relaxed);
    }

    /// Returns since when the source has been silent, UTC; `None` while it is heard.
    pub(crate) fn silent_since(&self) -> Option<Nanos> {
        let since = self.silent_since.load(Relaxed);
        (since != HEARD).then_some(Nanos(since))
    }

    /// Returns the time since the last packet of the source.
    pub(crate) fn age(&self, now: Nanos) -> Nanos {
        now.since(Nanos(self.source.load(Relaxed)))
    }

    /// Returns the time since the last packet on each line.
    pub(crate) fn line_ages(&self, now: Nanos) -> impl Iterator<Item = Nanos> + '_ {
        let heard = self.lines.iter().map(|heard| Nanos(heard.load(Relaxed)));
        heard.map(move |heard| now.since(heard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_and_lines_age_on_their_own() {
        let s = Nanos::from_secs;
        let hearing = Hearing::new(2, s(10));
        hearing.line_heard(1, s(11));
        hearing.heard(s(12));
        hearing.line_heard(2, s(13));
        assert_eq!(hearing.age(s(15)), s(3));
        assert_eq!(hearing.line_ages(s(15)).collect::<Vec<_>>(), [s(5), s(4)]);
        assert_eq!(hearing.age(s(11)), Nanos::ZERO, "read by a thread behind");
    }

    #[test]
    fn silence_is_held_until_it_is_over() {
        let hearing = Hearing::new(1, Nanos::ZERO);
        assert_eq!(hearing.silent_since(), None);
        let since = Nanos(7);
        hearing.set(Silence::Begun { since });
        assert_eq!(hearing.silent_since(), Some(since));
        hearing.set(Silence::Over { since });
        assert_eq!(hearing.silent_since(), None);
    }
}
