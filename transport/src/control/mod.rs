//! The control connection: whole frames in, whole frames out, without blocking. Over TCP, and
//! additional connections over RDMA verbs if both sides support them.
//!
//! [`ControlServer`] is the publisher's side, [`ControlClient`] the subscriber's. Both read
//! [`Message`]s as `tickcast_reliability::control` frames them. Both bound the memory for a peer in either
//! direction, and both drop a peer that sends an invalid message.

mod carrier;
mod client;
mod server;

use std::io::{self, Read, Write};

use thiserror::Error;
use tickcast_reliability::control::{ControlError, FRAME_HEAD_LEN, Message};
use tickcast_reliability::types::ChannelId;

pub use client::{ClientConfig, ClientEvent, ControlClient, InboxGrant, resolve};
pub use server::{
    BacklogHint, ConnectionId, ControlServer, PeerInfo, Reserved, ServerConfig, ServerEvent,
    ServerStats, ShareId, Waker,
};

/// Whether this build supports connections over RDMA verbs (feature `rdma`).
pub const HAS_VERBS: bool = cfg!(feature = "rdma");

/// Reason why a connection ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer closed it.
    #[error("the peer closed the connection")]
    ByPeer,
    /// This side closed it.
    #[error("this process closed the connection")]
    ByUs,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Protocol(#[from] ControlError),
    /// The peer requested an access to this side's memory that was not granted, and the device stopped the
    /// connection.
    #[error("the peer requested access that it was not granted: {0}")]
    Violation(io::Error),
    /// The network or the operating system gave up on it.
    #[error("the connection failed: {0}")]
    Io(io::Error),
    /// It could not be established.
    #[error("can't connect: {0}; is a publisher listening there?")]
    Unreachable(io::Error),
    /// It was not established in time.
    #[error("no answer to the connection attempt in time; check for a firewall")]
    Timeout,
}

/// Reason why a message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The peer does not read: its queue has reached the bound.
    #[error("{backlog} bytes are queued for a peer that does not read them; the maximum is {max}")]
    Full {
        /// Bytes queued.
        backlog: usize,
        /// The bound.
        max: usize,
    },
    /// There is no connection.
    #[error("not connected")]
    NotConnected,
}

/// Least cost of a message, in bytes, about the length of a NACK of one range. A shorter message costs the
/// reader as much time.
const MESSAGE_COST_MIN: usize = 48;

/// Bytes received and not yet parsed as messages.
struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    body_len_max: usize,
}

/// The outcome of one round of reading.
enum Filled {
    /// Nothing more to read now.
    Drained,
    /// All available room was filled; there may be more.
    More,
    /// Less than the available room: TCP has nothing more now, unless the connection ends here.
    Short,
    /// The peer has finished sending.
    End,
}

impl Inbox {
    const LEN_MIN: usize = 16 * 1024;
    /// A buffer that grew beyond this length for one long message is released.
    const LEN_KEPT: usize = 256 * 1024;

    fn new(body_len_max: usize) -> Self {
        Self {
            bytes: vec![0; Self::LEN_MIN],
            start: 0,
            end: 0,
            body_len_max,
        }
    }

    fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Reads once. The buffer grows with received bytes, never with an announced length.
    fn fill(&mut self, from: &mut impl Read) -> io::Result<Filled> {
        if self.start == self.end {
            self.clear();
            if self.bytes.len() > Self::LEN_KEPT {
                self.bytes = vec![0; Self::LEN_MIN];
            }
        }
        if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.bytes.len() {
                let len = (self.bytes.len() * 2).min(FRAME_HEAD_LEN + self.body_len_max);
                self.bytes.resize(len.max(self.end + 1), 0);
            }
        }
        loop {
            match from.read(&mut self.bytes[self.end..]) {
                Ok(0) => return Ok(Filled::End),
                Ok(count) => {
                    self.end += count;
                    let is_short = self.end < self.bytes.len();
                    return Ok(if is_short {
                        Filled::Short
                    } else {
                        Filled::More
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Filled::Drained);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes every whole message to `on`. Returns their number.
    fn messages(
        &mut self,
        mut on: impl FnMut(ChannelId, Message<'_>),
    ) -> Result<usize, ControlError> {
        self.messages_within(usize::MAX, &mut 0, |channel, message| {
            on(channel, message);
            0
        })
    }

    /// Passes whole messages to `on` until `cost` has reached `turn`. A message costs its length, and the
    /// work in bytes that `on` returns. Returns their number. If `cost` is below `turn` then, no whole
    /// message remains.
    fn messages_within(
        &mut self,
        turn: usize,
        cost: &mut usize,
        mut on: impl FnMut(ChannelId, Message<'_>) -> usize,
    ) -> Result<usize, ControlError> {
        let mut count = 0;
        while *cost < turn
            && let Some((channel, message, len)) =
                Message::read(&self.bytes[self.start..self.end], self.body_len_max)?
        {
            let work = on(channel, message);
            self.start += len;
            *cost = cost.saturating_add(work.saturating_add(len.max(MESSAGE_COST_MIN)));
            count += 1;
        }
        Ok(count)
    }
}

/// Frames that wait to be written.
#[derive(Default)]
struct Outbox {
    bytes: Vec<u8>,
    start: usize,
}

impl Outbox {
    /// Bytes of memory kept for reuse. Without this bound, one slow peer would hold more for good.
    const LEN_KEPT: usize = 32 * 1024;

    const fn backlog(&self) -> usize {
        self.bytes.len() - self.start
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.start = 0;
    }

    /// Queues a whole frame, or none of it.
    fn push(
        &mut self,
        channel: ChannelId,
        message: &Message<'_>,
        max: usize,
    ) -> Result<(), SendError> {
        self.make_room();
        let before = self.bytes.len();
        message.write(channel, &mut self.bytes);
        if self.backlog() > max {
            self.bytes.truncate(before);
            let backlog = self.backlog();
            return Err(SendError::Full { backlog, max });
        }
        Ok(())
    }

    /// Queues whole frames, or none of them.
    fn push_frames(&mut self, frames: &[u8], max: usize) -> Result<(), SendError> {
        let backlog = self.backlog();
        if backlog + frames.len() > max {
            return Err(SendError::Full { backlog, max });
        }
        self.make_room();
        self.bytes.extend_from_slice(frames);
        Ok(())
    }

    fn make_room(&mut self) {
        if self.start > 0 && self.start >= self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// Writes at most `max` bytes, and no more than the connection accepts. Returns whether it accepts more.
    fn write(&mut self, to: &mut impl Write, max: usize) -> io::Result<bool> {
        let end = self.bytes.len().min(self.start.saturating_add(max));
        while self.start < end {
            match to.write(&self.bytes[self.start..end]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.start += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.backlog() == 0 {
            self.clear();
            self.bytes.shrink_to(Self::LEN_KEPT);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outbox_writes_at_most_the_given_bytes() {
        let (mut outbox, mut to) = (Outbox::default(), Vec::new());
        outbox.push_frames(b"five+five", usize::MAX).unwrap();
        for (max, expected) in [(5, "five+"), (0, "five+"), (usize::MAX, "five+five")] {
            assert!(outbox.write(&mut to, max).unwrap(), "a vector never blocks");
            assert_eq!(to, expected.as_bytes());
        }
        assert_eq!((outbox.backlog(), outbox.start), (0, 0));
    }
}
