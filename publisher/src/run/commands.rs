//! The commands of operators and standbys, executed by the publish thread.

use std::sync::Arc;
use std::thread::Builder;
use std::time::Instant;

use crate::standby::hand_over::{HandOver, Step};
use crate::state::Shared;
use crate::state::command::{Command, CommandReceiver};
use crate::state::hand_over::{Answer, PublishPosition};
use crate::state::standby::StandbyState;

/// The commands, and the state of the hand-over and the promotion.
pub(crate) struct Commands {
    receiver: CommandReceiver,
    hand_over: HandOver,
    standby: Option<Arc<StandbyState>>,
}

impl Commands {
    /// Takes the commands for a publisher that hands over under `hand_over`, and for `standby` if
    /// it is one.
    pub(crate) const fn new(
        receiver: CommandReceiver,
        hand_over: HandOver,
        standby: Option<Arc<StandbyState>>,
    ) -> Self {
        Self {
            receiver,
            hand_over,
            standby,
        }
    }

    /// Returns the same commands for a standby that publishes from here on.
    pub(crate) fn promoted(self, hand_over: HandOver) -> Self {
        Self { hand_over, ..self }
    }

    /// Executes the waiting commands. Never waits itself.
    #[inline]
    pub(crate) fn poll(&mut self, shared: &Shared) {
        while let Some(command) = self.receiver.take() {
            self.carry_out(command, shared);
        }
    }

    /// Returns whether a standby is taking over, or has taken over.
    #[inline]
    pub(crate) const fn is_handing_over(&self) -> bool {
        self.hand_over.is_asked()
    }

    /// Advances the hand-over, as [`HandOver::step`] does.
    pub(crate) fn step(
        &mut self,
        shared: &Shared,
        position: impl FnOnce() -> Option<Vec<PublishPosition>>,
    ) -> Step {
        (self.hand_over).step(Instant::now(), shared.is_stopping(), position)
    }

    #[cold]
    fn carry_out(&mut self, command: Command, shared: &Shared) {
        match command {
            Command::HandOver { request, reply } => {
                let now = Instant::now();
                let answer = self.hand_over.ask(&request, shared, now);
                if let Answer::Refused { why } = &answer {
                    self.hand_over.refused(&request, why, now);
                }
                reply.send(answer);
            }
            Command::HandOverAnswered { request } => self.hand_over.end(&request, shared),
            Command::Promote { force, reply } => {
                let Some(standby) = self.standby.clone() else {
                    return reply.send(Err("this publisher is not a standby".into()));
                };
                // On its own thread, because it polls the publisher repeatedly and waits for this
                // thread.
                let thread = Builder::new().name("promote".into()).spawn(move || {
                    reply.send(standby.promote(force));
                });
                if let Err(error) = thread {
                    tracing::warn!("not promoted: can't start a thread: {error}");
                }
            }
        }
    }
}
