//! The digest of a core's outputs: two runs with the same outputs in the same order have the same
//! digest. For tests, a log of every output as text.

use std::fmt::Write;

use tickcast_reliability::delivery::{Event, Position};
use tickcast_reliability::session::{Action, Path, RemoteRequest};

/// Digest of a core's outputs, with an optional log.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    digest: u64,
    log: Option<String>,
}

impl Outputs {
    /// Continues from the digest of earlier outputs.
    #[must_use]
    pub const fn after(digest: u64) -> Self {
        Self { digest, log: None }
    }

    /// Starts the log: every later output is also kept as text.
    pub fn keep_log(&mut self) {
        self.log.get_or_insert_default();
    }

    /// Returns the log; empty without [`Outputs::keep_log`].
    #[must_use]
    pub fn log(&self) -> &str {
        self.log.as_deref().unwrap_or_default()
    }

    /// Returns the digest of all outputs so far.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the part of the digest that entries carry.
    #[inline]
    pub(super) const fn check(&self) -> u16 {
        (self.digest >> 48) as u16
    }

    /// Adds `count` delivered records, the first of them at position `first`.
    #[inline]
    pub(super) fn records(&mut self, first: &Position, count: usize) {
        // Rotations keep fields with small changes from cancelling each other out.
        let place =
            first.sequence.0 ^ first.record.0.rotate_left(20) ^ first.epoch.0.rotate_left(40);
        let times = first.received_at.0.rotate_left(30) ^ first.missing_for.0.rotate_left(10);
        self.fold(place ^ times ^ (count as u64).rotate_left(56));
        if self.log.is_some() {
            // Debug: only tests and replays compare it.
            self.log_line(format_args!("{first:?} and {count} in all"));
        }
    }

    /// Adds an emitted event and its bytes.
    pub(super) fn event(&mut self, at: &Position, event: &Event, bytes: &[u8]) {
        self.fold(at.sequence.0 ^ at.record.0.rotate_left(32));
        self.bytes(bytes);
        // Debug: only tests and replays compare it.
        self.log_line(format_args!("{at:?} {event:?}"));
    }

    /// Adds frames sent on a path.
    pub(super) fn sent(&mut self, path: Path, frames: &[u8]) {
        self.fold(path as u64);
        self.bytes(frames);
        // Debug: only tests and replays compare it.
        self.log_line(format_args!("{path:?} {frames:?}"));
    }

    /// Adds an action taken from the core.
    pub(super) fn action(&mut self, action: &Action) {
        // The directory is cleared, because a journal does not hold it.
        let mut action = action.clone();
        if let Action::Listen(offer) = &mut action {
            offer.directory.clear();
        }
        // Debug: only tests and replays compare it.
        let words = format!("{action:?}");
        self.bytes(words.as_bytes());
        self.log_line(format_args!("{words}"));
    }

    /// Adds a request for the publisher's memory, taken from the core.
    pub(super) fn request(&mut self, request: &RemoteRequest) {
        // Debug: only tests and replays compare it.
        let words = format!("{request:?}");
        self.bytes(words.as_bytes());
        self.log_line(format_args!("{words}"));
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
        // The FxHash step: cheap and order-sensitive.
        self.digest = (self.digest.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn log_line(&mut self, words: std::fmt::Arguments<'_>) {
        if let Some(log) = &mut self.log {
            // Writing to a String cannot fail.
            let _ = writeln!(log, "{words}");
        }
    }
}
