//! The answers of a connection that cost no budget, encoded and not yet passed to the driver.

use crate::control::{Message, frame_len};
use crate::types::ChannelId;

/// Bytes of memory kept for reuse. Without this bound, a WELCOME with a long directory would hold more.
const LEN_KEPT: usize = 16 << 10;

/// Whole frames in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    frames: Vec<u8>,
    /// Bytes of `frames` that were taken.
    start: usize,
}

impl Outbox {
    /// Returns the number of bytes that wait.
    pub(crate) const fn len(&self) -> usize {
        self.frames.len() - self.start
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a message, and returns its length in bytes.
    pub(crate) fn push(&mut self, channel: ChannelId, message: &Message<'_>) -> usize {
        let before = self.frames.len();
        message.write(channel, &mut self.frames);
        self.frames.len() - before
    }

    /// Removes the last message, which has this length.
    pub(crate) fn undo(&mut self, len: usize) {
        self.frames.truncate(self.frames.len() - len);
    }

    /// Moves the first message to `out`, and those after it as far as all have at most `most` bytes. Returns
    /// the number of bytes moved.
    pub(crate) fn take(&mut self, most: usize, out: &mut Vec<u8>) -> usize {
        let waiting = &self.frames[self.start..];
        let mut taken = 0;
        while let Some(len) = frame_len(&waiting[taken..])
            && (taken == 0 || taken + len <= most)
        {
            taken += len;
        }
        out.extend_from_slice(&waiting[..taken]);
        self.start += taken;
        // Bytes that were taken are freed once they are the larger part, so each byte moves once at most.
        if self.is_empty() || (self.start >= LEN_KEPT && self.start * 2 >= self.frames.len()) {
            self.frames.drain(..self.start);
            self.frames.shrink_to(LEN_KEPT);
            self.start = 0;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbox_that_never_empties_frees_what_was_taken() {
        let (mut outbox, mut out) = (Outbox::default(), Vec::new());
        let message = Message::Datagram(&[7; 1_000]);
        (0..50).for_each(|_| drop(outbox.push(ChannelId(1), &message)));
        for _ in 0..1_000 {
            outbox.push(ChannelId(1), &message);
            outbox.take(1_008, &mut out);
            assert_eq!(outbox.len(), 50 * 1_008);
            assert!(outbox.frames.capacity() <= 256 << 10);
        }
    }

    #[test]
    fn outbox_gives_whole_frames_up_to_the_bound() {
        let (mut outbox, mut out) = (Outbox::default(), Vec::new());
        assert_eq!((outbox.take(9, &mut out), outbox.is_empty()), (0, true));
        let long = Message::Datagram(&[7; 40_000]);
        assert_eq!(outbox.push(ChannelId(1), &Message::Leave), 8);
        assert_eq!(outbox.push(ChannelId(1), &Message::Leave), 8);
        assert_eq!(outbox.push(ChannelId(1), &long), 40_008);
        assert_eq!(outbox.push(ChannelId(1), &Message::Leave), 8);
        outbox.undo(8);
        assert_eq!(outbox.len(), 40_024);
        let taken: Vec<usize> = [15, 16, 16, 16]
            .map(|most| outbox.take(most, &mut out))
            .into();
        assert_eq!(taken, [8, 8, 40_008, 0]);
        assert_eq!(out.len(), 40_024);
        assert!(outbox.is_empty() && outbox.frames.capacity() <= LEN_KEPT);
        outbox.push(ChannelId(1), &Message::Leave);
        assert_eq!(outbox.take(1, &mut out), 8);
    }
}
