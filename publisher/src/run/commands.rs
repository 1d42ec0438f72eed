//! The commands of operators and standbys, executed by the publish thread.

use std::sync::Arc;
use std::thread::Builder;
use std::time::Instant;

use crossbeam_channel::bounded;

use crate::publish::PublishStage;
use crate::standby::hand_over::{HandOver, Step};
use crate::state::Shared;
use crate::state::command::{Command, CommandReceiver, ReplyTo};
use crate::state::hand_over::{Answer, PublishPosition};
use crate::state::reload::Change;
use crate::state::standby::StandbyState;
use crate::state::thread::now;

/// The commands, and the state of the hand-over and the promotion.
pub(crate) struct Commands {
    receiver: CommandReceiver,
    hand_over: HandOver,
    standby: Option<Arc<StandbyState>>,
    /// A change that waits for [`Self::apply_change`].
    change: Option<(Change, ReplyTo<Result<(), String>>)>,
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
            change: None,
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

    /// Applies the change that waits, if any.
    #[inline]
    pub(crate) fn apply_change(&mut self, to: &mut PublishStage, shared: &Shared) {
        if let Some((change, reply)) = self.change.take() {
            reply.send(apply(change, to, shared));
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
            Command::HandOver {
                request,
                client,
                reply,
            } => {
                let now = Instant::now();
                // The standby has given up, so it would not end the rest.
                if reply.is_late(now) {
                    return;
                }
                let answer = self.hand_over.ask(&request, shared, now);
                if let Answer::Refused { why } = &answer {
                    self.hand_over.refused(&request, &client, why, now);
                }
                reply.send(answer);
            }
            Command::HandOverAnswered { request } => self.hand_over.end(&request, shared),
            Command::Change { reply, .. } if reply.is_late(Instant::now()) => {}
            Command::Change { change, reply } => self.change = Some((change, reply)),
            Command::Promote { reply, .. } if reply.is_late(Instant::now()) => {}
            Command::Promote {
                force,
                client,
                reply,
            } => {
                let Some(standby) = self.standby.clone() else {
                    return reply.send(Err("this publisher is not a standby".into()));
                };
                // On its own thread, because it polls the publisher repeatedly and waits for this
                // thread. It gets the reply once it runs, so that a failed start can use it.
                let (give, given) = bounded::<ReplyTo<_>>(1);
                let thread = Builder::new().name("promote".into()).spawn(move || {
                    if let Ok(reply) = given.recv() {
                        reply.send(standby.promote(force, &client));
                    }
                });
                match thread {
                    Ok(_) => drop(give.send(reply)),
                    Err(error) => {
                        tracing::warn!("not promoted: can't start a thread: {error}");
                        reply.send(Err(format!("can't start a thread: {error}")));
                    }
                }
            }
        }
    }
}

/// Applies a change, or nothing of it.
#[cold]
fn apply(change: Change, to: &mut PublishStage, shared: &Shared) -> Result<(), String> {
    if let Some(rules) = &change.rules {
        to.reroute(rules, now())?;
    }
    if let Some(budgets) = change.budgets {
        shared.set_budgets(budgets);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use crossbeam_channel::unbounded;
    use tickcast_reliability::types::{Epoch, Nanos, PeerOrigin};

    use super::*;
    use crate::state::command::commands;
    use crate::state::hand_over::{Request, SessionNumber};

    #[test]
    fn request_of_a_client_that_gave_up_pauses_nothing() {
        let (none, stop) = ((Vec::new(), Vec::new()), Arc::default());
        let shared = Shared::new("a".into(), Epoch(5), none.0, none.1, stop, Nanos::ZERO);
        let session = Some(SessionNumber(7));
        let origin = PeerOrigin::V4(Ipv4Addr::LOCALHOST);
        (shared.subscribers()).join((1, origin), session, "b", &[]);
        let (sender, receiver) = commands();
        let mut commands = Commands::new(receiver, HandOver::to(vec!["b".into()]), None);
        let (answered, answers) = unbounded();
        let mut pauses = |wait| {
            let answered = answered.clone();
            let take = move |answer| answered.send(answer).unwrap();
            sender.send(Command::HandOver {
                request: Request {
                    standby: "b".into(),
                    session,
                    epoch: Epoch(5),
                    mirrored: Vec::new(),
                    superseded_by: None,
                },
                client: "user 0".into(),
                reply: ReplyTo::new(Instant::now() + wait, take),
            });
            commands.poll(&shared);
            commands.is_handing_over()
        };
        assert!(!pauses(Duration::ZERO));
        assert!(answers.is_empty());
        assert!(pauses(Duration::from_secs(600)));
        assert_eq!(answers.len(), 1);
    }
}
