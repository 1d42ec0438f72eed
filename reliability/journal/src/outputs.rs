//! What came out of a core, as one number: two runs that gave the same outputs in the same order have
//! the same digest. Beside it, for tests, every output in words.

use std::fmt::Write;

use tickcast_reliability::delivery::{Event, Position};
use tickcast_reliability::session::{Action, Path, RemoteRequest};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    digest: u64,
    log: Option<String>,
}

impl Outputs {
    /// After outputs with this digest.
    #[must_use]
    pub const fn after(digest: u64) -> Self {
        Self { digest, log: None }
    }

    /// From now on every output is kept in words as well.
    pub fn keep_log(&mut self) {
        self.log.get_or_insert_default();
    }

    /// What was kept; empty without [`Outputs::keep_log`].
    #[must_use]
    pub fn log(&self) -> &str {
        self.log.as_deref().unwrap_or_default()
    }

    /// The digest of all so far.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// The part of it that entries carry.
    #[inline]
    pub(super) const fn check(&self) -> u16 {
        (self.digest >> 48) as u16
    }

    /// So many records were delivered, the first of them at this position.
    #[inline]
    pub(super) fn records(&mut self, first: &Position, count: usize) {
        // Whatever of these changes by little changes bits of its own.
        let place =
            first.sequence.0 ^ first.record.0.rotate_left(20) ^ first.epoch.0.rotate_left(40);
        let times = first.received_at.0.rotate_left(30) ^ first.missing_for.0.rotate_left(10);
        self.fold(place ^ times ^ (count as u64).rotate_left(56));
        if self.log.is_some() {
            // Debug: compared by tests and by replays, and shown to nobody else.
            self.say(format_args!("{first:?} and {count} in all"));
        }
    }

    /// An event was told, these bytes of it.
    pub(super) fn event(&mut self, at: &Position, event: &Event, bytes: &[u8]) {
        self.fold(at.sequence.0 ^ at.record.0.rotate_left(32));
        self.bytes(bytes);
        // Debug: compared by tests and by replays, and shown to nobody else.
        self.say(format_args!("{at:?} {event:?}"));
    }

    /// Frames were given for a path.
    pub(super) fn sent(&mut self, path: Path, frames: &[u8]) {
        self.fold(path as u64);
        self.bytes(frames);
        // Debug: compared by tests and by replays, and shown to nobody else.
        self.say(format_args!("{path:?} {frames:?}"));
    }

    /// An action was taken.
    pub(super) fn action(&mut self, action: &Action) {
        // A directory is for the application alone, and a record does not hold it.
        let mut action = action.clone();
        if let Action::Listen(offer) = &mut action {
            offer.directory.clear();
        }
        // Debug: compared by tests and by replays, and shown to nobody else.
        let words = format!("{action:?}");
        self.bytes(words.as_bytes());
        self.say(format_args!("{words}"));
    }

    /// A request for the publisher's memory was taken.
    pub(super) fn request(&mut self, request: &RemoteRequest) {
        // Debug: compared by tests and by replays, and shown to nobody else.
        let words = format!("{request:?}");
        self.bytes(words.as_bytes());
        self.say(format_args!("{words}"));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.fold(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.fold(u64::from_le_bytes(word));
        }
    }

    #[inline]
    const fn fold(&mut self, word: u64) {
        // The step of FxHash: what counts is that it is cheap and that order matters.
        self.digest = (self.digest.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn say(&mut self, words: std::fmt::Arguments<'_>) {
        if let Some(log) = &mut self.log {
            // A String takes everything.
            let _ = writeln!(log, "{words}");
        }
    }
}
