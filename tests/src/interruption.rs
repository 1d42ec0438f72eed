//! The writer goes on in the middle of a copy: a reader that has taken the first half of a slot
//! finds the second half of it written over, or half written.
//!
//! The memory of simulated rings calls [`interrupt`] in the middle of every copy. While nothing is
//! armed that does nothing; the simulation arms it with the feed of a channel, which then
//! publishes as much as is needed to come round.

use std::cell::RefCell;

use tickcast_reliability::types::Now;

use crate::feed::Feed;

/// What the writer does between the two halves of a copy.
pub(crate) struct Interruption {
    /// The feed that goes on.
    pub(crate) feed: Feed,
    /// Messages that it publishes.
    pub(crate) messages: u64,
    /// The time.
    pub(crate) now: Now,
    /// Copies that were interrupted.
    pub(crate) happened: u64,
    /// What went wrong.
    pub(crate) result: Result<(), String>,
}

thread_local! {
    static ARMED: RefCell<Option<Interruption>> = const { RefCell::new(None) };
}

/// Runs `copies` with the writer going on in the middle of the first copy it makes.
pub(crate) fn during<T>(armed: Interruption, copies: impl FnOnce() -> T) -> (Interruption, T) {
    let mut armed = armed;
    ARMED.with_borrow_mut(|slot| *slot = Some(armed));
    let result = copies();
    // invariant: only this function takes it out.
    armed = ARMED
        .with_borrow_mut(Option::take)
        .unwrap_or_else(|| unreachable!("nothing else takes it"));
    (armed, result)
}

/// Called by memory in the middle of a copy.
pub(crate) fn interrupt() {
    ARMED.with_borrow_mut(|slot| {
        if let Some(armed) = slot
            && armed.happened == 0
        {
            armed.run();
        }
    });
}

impl Interruption {
    /// The writer goes on now.
    pub(crate) fn run(&mut self) {
        self.happened += 1;
        self.result = self.go_on();
    }

    fn go_on(&mut self) -> Result<(), String> {
        for _ in 0..self.messages {
            if !self.feed.finished {
                // Without a flush: the last slot stays open, half written.
                self.feed.message(self.now)?;
            }
        }
        Ok(())
    }
}
