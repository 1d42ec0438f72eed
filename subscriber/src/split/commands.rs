//! What is asked of a subscriber on a thread of its own: a bounded queue to that thread, and an
//! answer to each. The thread looks into it where it looks at its connections, takes no lock for
//! it. Nobody waits for it longer than [`LIMIT`]: its closure may be waiting for who asks.

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

/// More than these at once are refused.
const QUEUED_MAX: usize = 16;
/// A command that the thread has not begun by then is taken back.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);
/// Whoever waits looks this often whether the thread is still there.
const LIVENESS_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// What a subscriber's thread can be asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    Rejoin(ChannelId, Start),
    SetFilter(ChannelId, InstrumentFilter),
}

/// Where an answer is waited for.
#[derive(Debug, Default)]
struct Answer {
    outcome: OnceLock<Result<(), CommandError>>,
    is_over: AtomicBool,
    /// [`QUEUED`], and then one of the others for good.
    taken: AtomicU8,
}

const QUEUED: u8 = 0;
/// The thread does it.
const BEGUN: u8 = 1;
/// Who asked does not want it any more.
const TAKEN_BACK: u8 = 2;

impl Answer {
    /// Whether it is ours to decide what becomes of the command.
    fn take(&self, to: u8) -> bool {
        let taken = &self.taken;
        taken.compare_exchange(QUEUED, to, AcqRel, Acquire).is_ok()
    }
}

/// A command on its way. Dropped without an answer it wakes who asked all the same.
#[derive(Debug)]
pub(crate) struct PendingCommand {
    pub(crate) command: Command,
    answer: Arc<Answer>,
    asker: Thread,
}

impl PendingCommand {
    pub(crate) fn answer(self, outcome: Result<(), CommandError>) {
        // Nobody else sets it: a command is answered once.
        let _ = self.answer.outcome.set(outcome);
    }
}

impl Drop for PendingCommand {
    fn drop(&mut self) {
        self.answer.is_over.store(true, Release);
        self.asker.unpark();
    }
}

/// The asking side.
#[derive(Debug)]
pub(crate) struct CommandSender(SyncSender<PendingCommand>);

/// The thread's side.
#[derive(Debug)]
pub(crate) struct CommandReceiver(Receiver<PendingCommand>);

pub(crate) fn command_queue() -> (CommandSender, CommandReceiver) {
    let (sender, receiver) = sync_channel(QUEUED_MAX);
    (CommandSender(sender), CommandReceiver(receiver))
}

impl CommandSender {
    /// Asks that thread, and waits for its answer, at most so long for it to begin.
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
            // Once it has begun, no closure stands between it and the answer.
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
    /// The next command that nobody took back. Nobody ever waits for room in the queue, so this
    /// takes no lock.
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
            // Once all of them are queued there is no room for another; each gets its answer.
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
    fn late_start_is_taken_back_and_begun_is_awaited() {
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
            // Far beyond the limit.
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
    fn who_waits_for_a_thread_that_ends_without_an_answer_is_told() {
        let (commands, receiver) = command_queue();
        let thread = std::thread::spawn(move || {
            // It takes the command along to its end.
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
