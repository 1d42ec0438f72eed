//! Commands for a subscriber's thread: a bounded queue to the thread, and an answer to each command. The
//! thread checks the queue when it serves its connections, and takes no lock for it. A caller waits at
//! most [`LIMIT`] for the start of its command, because the closure may be waiting for the caller.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use tickcast_reliability::control::Start;
use tickcast_reliability::types::ChannelId;

use crate::config::filter::InstrumentFilter;
use crate::error::CommandError;

/// The maximum number of queued commands. Further ones are rejected.
const QUEUED_MAX: usize = 16;
/// A command that the thread has not begun within this limit is withdrawn.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);
/// A waiting caller checks at this interval whether the thread still runs.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A command to a subscriber's thread.
#[derive(Debug)]
pub(crate) enum Command {
    Rejoin(ChannelId, Start),
    SetFilter(ChannelId, InstrumentFilter),
}

/// The state of a command that its caller waits for.
#[derive(Debug, Default)]
struct Answer {
    outcome: OnceLock<Result<(), CommandError>>,
    is_over: AtomicBool,
    /// [`QUEUED`] at first, then finally [`BEGUN`] or [`TAKEN_BACK`].
    taken: AtomicU8,
}

const QUEUED: u8 = 0;
/// The thread executes the command.
const BEGUN: u8 = 1;
/// The caller has withdrawn the command.
const TAKEN_BACK: u8 = 2;

impl Answer {
    /// Moves a queued command to the state `to`. Returns whether this call made the move.
    fn take(&self, to: u8) -> bool {
        let taken = &self.taken;
        taken.compare_exchange(QUEUED, to, AcqRel, Acquire).is_ok()
    }
}

/// A command in the queue. Dropping it without an answer also wakes the caller.
#[derive(Debug)]
pub(crate) struct PendingCommand {
    pub(crate) command: Command,
    answer: Arc<Answer>,
    asker: Thread,
}

impl PendingCommand {
    pub(crate) fn answer(self, outcome: Result<(), CommandError>) {
        // This can't fail, because a command is answered once.
        let _ = self.answer.outcome.set(outcome);
    }
}

impl Drop for PendingCommand {
    fn drop(&mut self) {
        self.answer.is_over.store(true, Release);
        self.asker.unpark();
    }
}

/// The sender of the callers.
#[derive(Debug)]
pub(crate) struct CommandSender(SyncSender<PendingCommand>);

/// The receiver of the thread.
#[derive(Debug)]
pub(crate) struct CommandReceiver(Receiver<PendingCommand>);

pub(crate) fn command_queue() -> (CommandSender, CommandReceiver) {
    let (sender, receiver) = sync_channel(QUEUED_MAX);
    (CommandSender(sender), CommandReceiver(receiver))
}

impl CommandSender {
    /// Sends a command to the thread and waits for its answer. The thread has `limit` to begin it.
    pub(crate) fn ask<T>(
        &self,
        thread: &JoinHandle<T>,
        command: Command,
        limit: Duration,
    ) -> Result<(), CommandError> {
        let asker = std::thread::current();
        if thread.thread().id() == asker.id() {
            return Err(CommandError::OwnThread);
        }
        let answer = Arc::new(Answer::default());
        let asked = PendingCommand {
            command,
            answer: Arc::clone(&answer),
            asker,
        };
        match self.0.try_send(asked) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(CommandError::Busy { queued: QUEUED_MAX }),
            Err(TrySendError::Disconnected(_)) => return Err(CommandError::Ended),
        }
        let began = Instant::now();
        while !answer.is_over.load(Acquire) && !thread.is_finished() {
            // A command that has begun is answered soon, because no closure runs before the answer.
            if began.elapsed() >= limit && answer.take(TAKEN_BACK) {
                return Err(CommandError::Late { limit });
            }
            std::thread::park_timeout(LIVENESS_CHECK_INTERVAL.min(limit));
        }
        let outcome = answer.outcome.get().cloned();
        outcome.unwrap_or(Err(CommandError::Ended))
    }
}

impl CommandReceiver {
    /// Returns the next command that was not withdrawn. Takes no lock, because no caller ever waits for room
    /// in the queue.
    #[inline]
    pub(crate) fn next(&self) -> Option<PendingCommand> {
        loop {
            let asked = self.0.try_recv().ok()?;
            if asked.answer.take(BEGUN) {
                return Some(asked);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_and_gone_thread_are_errors() {
        let (commands, receiver) = command_queue();
        let (stop, stopped) = sync_channel::<()>(0);
        let thread = std::thread::spawn(move || stopped.recv());
        let rejoin = || Command::Rejoin(ChannelId(1), Start::Live);
        std::thread::scope(|scope| {
            let ask = || commands.ask(&thread, rejoin(), Duration::MAX);
            let waiting: Vec<_> = (0..QUEUED_MAX).map(|_| scope.spawn(ask)).collect();
            // The queue is full once all of them are in it. Each of these still gets its answer.
            let full = loop {
                if let Err(error @ CommandError::Busy { .. }) = commands
                    .0
                    .try_send(PendingCommand {
                        command: rejoin(),
                        answer: Arc::default(),
                        asker: std::thread::current(),
                    })
                    .map_err(|error| match error {
                        TrySendError::Full(_) => CommandError::Busy { queued: QUEUED_MAX },
                        TrySendError::Disconnected(_) => CommandError::Ended,
                    })
                {
                    break error;
                }
                std::thread::yield_now();
            };
            assert!(full.to_string().contains("16"), "{full}");
            let mut answered = 0;
            while waiting.iter().any(|it| !it.is_finished()) {
                if let Some(asked) = receiver.next() {
                    answered += 1;
                    asked.answer(Ok(()));
                }
            }
            assert!(answered >= QUEUED_MAX - 1);
            drop(receiver);
            assert_eq!(ask(), Err(CommandError::Ended));
        });
        drop(stop);
        let _ = thread.join();
    }

    #[test]
    fn late_command_is_withdrawn_started_one_awaited() {
        let (commands, receiver) = command_queue();
        let (begin, began) = sync_channel::<CommandReceiver>(0);
        let thread = std::thread::spawn(move || {
            let receiver = began.recv().unwrap();
            let asked = loop {
                match receiver.next() {
                    Some(asked) => break asked,
                    None => std::thread::yield_now(),
                }
            };
            // Wait far beyond the limit.
            std::thread::sleep(5 * LIVENESS_CHECK_INTERVAL);
            asked.answer(Ok(()));
        });
        let rejoin = || Command::Rejoin(ChannelId(1), Start::Live);
        let late = commands.ask(&thread, rejoin(), Duration::ZERO);
        let limit = Duration::ZERO;
        assert_eq!(late, Err(CommandError::Late { limit }));
        assert!(receiver.next().is_none(), "it was taken back");
        begin.send(receiver).unwrap();
        let mut outcome = late;
        while matches!(outcome, Err(CommandError::Late { .. })) {
            outcome = commands.ask(&thread, rejoin(), LIVENESS_CHECK_INTERVAL);
        }
        assert_eq!(outcome, Ok(()));
        thread.join().unwrap();
    }

    #[test]
    fn command_to_ended_worker_fails_with_ended() {
        let (commands, receiver) = command_queue();
        let thread = std::thread::spawn(move || {
            // The receiver ends with this command still pending.
            let taken = loop {
                if let Some(asked) = receiver.next() {
                    break asked;
                }
            };
            drop(taken);
        });
        let rejoin = Command::Rejoin(ChannelId(1), Start::Live);
        let asked = commands.ask(&thread, rejoin, Duration::MAX);
        assert_eq!(asked, Err(CommandError::Ended));
    }
}
