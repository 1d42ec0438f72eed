//! A control connection in memory: whole frames over two bounded queues, with a handle to cut it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_PUBLISHER, BODY_LEN_MAX_TO_SUBSCRIBER, ControlError, Message,
};
use tickcast_reliability::types::ChannelId;

use crate::control::SendError;

/// An event of one poll of one end.
#[derive(Debug, PartialEq, Eq)]
pub enum LinkEvent<'a> {
    /// The connection is up: at the start, and after each restore.
    Connected,
    /// A message, valid within the call.
    Frame(ChannelId, Message<'a>),
    /// The connection is down, and messages in flight are lost. Holds the peer's error if it sent an invalid
    /// message.
    Disconnected(Option<ControlError>),
}

/// The connection itself, for the test to cut and restore. Clones are handles on the same connection.
#[derive(Clone)]
pub struct Link(Arc<Mutex<Wire>>);

struct Wire {
    /// Queues to the publisher and to the subscriber.
    queues: [Vec<u8>; 2],
    bytes_max: usize,
    up: bool,
    /// Number of times the connection came up, so that an end notices a cut that was restored at once.
    round: u64,
}

/// One end of a connection. Its calls never block.
pub struct LinkEnd {
    link: Link,
    /// Index of the queue it reads; it writes the other.
    reads: usize,
    body_len_max: usize,
    /// The round in which this end last was connected.
    known: Option<u64>,
    /// Buffer for the delivery in progress, kept to reuse its memory.
    taken: Vec<u8>,
}

/// Creates a connection that is up: handle, publisher's end, subscriber's end. At most `bytes_max`
/// bytes wait in each direction.
#[must_use]
pub fn link(bytes_max: usize) -> (Link, LinkEnd, LinkEnd) {
    let link = Link(Arc::new(Mutex::new(Wire {
        queues: [Vec::new(), Vec::new()],
        bytes_max,
        up: true,
        round: 1,
    })));
    let end = |reads, body_len_max| LinkEnd {
        link: link.clone(),
        reads,
        body_len_max,
        known: None,
        taken: Vec::new(),
    };
    let publisher = end(0, BODY_LEN_MAX_TO_PUBLISHER);
    let subscriber = end(1, BODY_LEN_MAX_TO_SUBSCRIBER);
    (link, publisher, subscriber)
}

impl Link {
    /// Cuts the connection: both ends learn of it, and messages in flight are lost.
    pub fn cut(&self) {
        let mut wire = self.wire();
        wire.up = false;
        wire.queues.iter_mut().for_each(Vec::clear);
    }

    /// Connects both ends again.
    pub fn restore(&self) {
        let mut wire = self.wire();
        wire.up = true;
        wire.round += 1;
        wire.queues.iter_mut().for_each(Vec::clear);
    }

    /// Queues bytes for the publisher as if the subscriber had sent them.
    pub fn forge_to_publisher(&self, bytes: &[u8]) {
        self.wire().queues[0].extend_from_slice(bytes);
    }

    fn wire(&self) -> MutexGuard<'_, Wire> {
        // The state is consistent between any two statements that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkEnd {
    /// Passes events and messages to `on`. Returns the number of messages. Never blocks.
    pub fn poll(&mut self, mut on: impl FnMut(LinkEvent<'_>)) -> usize {
        let (up, round) = {
            let mut wire = self.link.wire();
            if wire.up && self.known.is_none_or(|known| known == wire.round) {
                self.taken.append(&mut wire.queues[self.reads]);
            }
            (wire.up, wire.round)
        };
        if self.known.is_some_and(|known| !up || known != round) {
            self.known = None;
            self.taken.clear();
            on(LinkEvent::Disconnected(None));
            return 0;
        }
        if !up {
            return 0;
        }
        if self.known.is_none() {
            self.known = Some(round);
            on(LinkEvent::Connected);
        }
        let (mut start, mut count) = (0, 0);
        loop {
            match Message::read(&self.taken[start..], self.body_len_max) {
                Ok(Some((channel, message, len))) => {
                    on(LinkEvent::Frame(channel, message));
                    start += len;
                    count += 1;
                }
                Ok(None) => break,
                Err(error) => {
                    self.link.cut();
                    self.known = None;
                    self.taken.clear();
                    on(LinkEvent::Disconnected(Some(error)));
                    return count;
                }
            }
        }
        self.taken.drain(..start);
        count
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`SendError`] if the queue is full or the end is not connected. Nothing was sent then.
    pub fn send(&mut self, channel: ChannelId, message: &Message<'_>) -> Result<(), SendError> {
        let mut wire = self.link.wire();
        if !wire.up || self.known != Some(wire.round) {
            return Err(SendError::NotConnected);
        }
        let max = wire.bytes_max;
        let queue = &mut wire.queues[1 - self.reads];
        let backlog = queue.len();
        message.write(channel, queue);
        if queue.len() > max {
            queue.truncate(backlog);
            return Err(SendError::Full { backlog, max });
        }
        Ok(())
    }

    /// Returns whether this end is connected, as of its last poll.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.known.is_some()
    }
}
