//! Commands from the command endpoints to the publish thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::state::hand_over::{Answer, Request};
use crate::state::reload::Change;
use crate::state::standby::Promoted;

/// Takes the reply to a command. Dropped without a reply if the publish thread has ended.
pub(crate) struct ReplyTo<T> {
    take: Box<dyn FnOnce(T) + Send>,
    until: Instant,
}

impl<T> ReplyTo<T> {
    /// Passes the reply to this function, which must not wait. The client waits for it until `until`.
    pub(crate) fn new(until: Instant, take: impl FnOnce(T) + Send + 'static) -> Self {
        let take = Box::new(take);
        Self { take, until }
    }

    /// Returns whether the client has given up.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Sends the reply.
    pub(crate) fn send(self, reply: T) {
        (self.take)(reply);
    }
}

impl<T> fmt::Debug for ReplyTo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReplyTo")
    }
}

/// A client's request to read the config's file again.
pub(crate) struct ReloadRequest {
    /// The client, for logs.
    pub(crate) client: String,
    /// Takes a line for each setting: those that were applied, or those because of which nothing was.
    pub(crate) reply: ReplyTo<Result<Vec<String>, Vec<String>>>,
}

/// One command. Its sender waits for the reply; a reply that never comes means that the publish thread
/// has ended, or has no time.
pub(crate) enum Command {
    /// A standby wants to take over.
    HandOver {
        /// The standby's request.
        request: Request,
        /// The client that sent it, for logs.
        client: String,
        /// Takes the answer for the standby.
        reply: ReplyTo<Answer>,
    },
    /// [`Answer::Ends`] was written to the standby, or can't be.
    HandOverAnswered {
        /// The request that was answered.
        request: Request,
    },
    /// The thread of reloads changes settings.
    Change {
        /// The new settings.
        change: Change,
        /// Takes the outcome, or the reason for which nothing changed.
        reply: ReplyTo<Result<(), String>>,
    },
    /// A client requests the promotion of this standby.
    Promote {
        /// Whether to promote it even if the publisher is alive.
        force: bool,
        /// The client that sent it, for logs.
        client: String,
        /// Takes the outcome, or the reason against it.
        reply: ReplyTo<Result<Promoted, String>>,
    },
}

/// Makes a channel for commands. The command endpoints bound the number of waiting commands: each of their
/// connections waits for its own reply.
pub(crate) fn commands() -> (CommandSender, CommandReceiver) {
    let (sender, receiver) = unbounded();
    let waiting = Arc::new(AtomicBool::new(false));
    let sender = CommandSender {
        sender,
        waiting: waiting.clone(),
    };
    (sender, CommandReceiver { receiver, waiting })
}

/// The command endpoints' end.
#[derive(Clone)]
pub(crate) struct CommandSender {
    sender: Sender<Command>,
    waiting: Arc<AtomicBool>,
}

impl CommandSender {
    /// Sends a command. If no thread takes commands any more, it is dropped with its reply.
    pub(crate) fn send(&self, command: Command) {
        if self.sender.send(command).is_ok() {
            self.waiting.store(true, Release);
        }
    }
}

/// The publish thread's end.
pub(crate) struct CommandReceiver {
    receiver: Receiver<Command>,
    /// Whether commands may wait; a publishing thread needs one load to check.
    waiting: Arc<AtomicBool>,
}

impl CommandReceiver {
    /// Takes the next command, without waiting.
    #[inline]
    pub(crate) fn take(&self) -> Option<Command> {
        if self.waiting.load(Relaxed) {
            return self.take_waiting();
        }
        None
    }

    #[cold]
    fn take_waiting(&self) -> Option<Command> {
        // Clear the flag before reading: a command sent from here on sets it again.
        self.waiting.swap(false, AcqRel);
        let command = self.receiver.try_recv().ok()?;
        // Another command may follow.
        self.waiting.store(true, Relaxed);
        Some(command)
    }
}
