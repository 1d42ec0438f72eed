//! Checks that a standby may be promoted: the publisher hands over, is gone, or is overridden by
//! force.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tickcast_http::{EndpointAddress, ask};

use crate::state::hand_over::{Answer, Check, Checked, Request};
use crate::state::standby::{Promoted, Reason, StandbyState};

/// Interval between requests to the publisher while its last datagrams arrive.
const ASK_EVERY: Duration = Duration::from_millis(5);
/// Timeout of one request.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Time for which datagrams of an unreachable publisher may still arrive: multicast in flight, or a
/// dead connection that is not detected yet.
const HEARD_MAX: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Interval between log lines about one refusal of a notice.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The reason why the publisher's command endpoint gives no answer to a request.
#[derive(Debug, Error)]
enum AskError {
    /// Nothing answers there.
    #[error("{0}; {1}")]
    Unreachable(io::Error, &'static str),
    /// The endpoint, or another process, answers something else.
    #[error("{0}")]
    Denied(String),
}

/// Returns the reason for the promotion, or the reason against it.
pub(super) fn may_promote(state: &StandbyState, force: bool) -> Result<Reason, String> {
    state.view().epoch()?;
    let differing = state.view().differing();
    match &state.config.commands {
        _ if force => Ok(Reason::Forced),
        _ if let Some(source) = differing => Err(format!(
            "source {source} delivers other messages here than the publisher publishes (other \
             instruments, or another session): restart the standby before a session begins. A \
             forced promotion reports its messages as lost"
        )),
        Some(commands) => have_handed_over(state, commands),
        None if is_gone(state) => Ok(Reason::PublisherDead),
        None => Err(
            "the publisher is alive, but standby.commands is not set, so it can't be asked to \
             hand over: give the publisher commands.listen and commands.token_file, and the standby \
             standby.commands and standby.token_file; or stop the publisher, or promote by force"
                .into(),
        ),
    }
}

/// Makes the publisher stop sealing, and end when the mirrors have everything.
fn have_handed_over(state: &StandbyState, commands: &EndpointAddress) -> Result<Reason, String> {
    let until = Instant::now() + Duration::from_millis(state.config.hand_over_ms);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(format!(
                "the mirrors did not catch up within {} ms, and the publisher continues; check \
                 the lag, or promote by force",
                state.config.hand_over_ms
            ));
        }
        // A session that has ended meanwhile does not mean that the publisher is gone.
        state.view().epoch()?;
        match request(state, commands, left.min(ANSWER_MAX)) {
            Ok(Answer::Ends { .. }) => return Ok(Reason::HandedOver),
            Ok(Answer::Refused { why }) => {
                return Err(format!(
                    "the publisher refused to hand over and continues: {why}"
                ));
            }
            Ok(Answer::Resting { .. }) => sleep(ASK_EVERY),
            Err(_) if is_gone(state) => return Ok(Reason::PublisherDead),
            Err(why) => {
                return Err(format!(
                    "the publisher is alive, but can't be asked to hand over at {commands}: {why}; \
                     or stop it, or promote by force"
                ));
            }
        }
    }
}

/// Asks the publisher whether it would hear a request to hand over.
///
/// # Errors
/// Returns the reason against it, and the remedy.
pub(super) fn check(state: &StandbyState, commands: &EndpointAddress) -> Result<(), String> {
    let standby = state.name.clone();
    match send(state, commands, "/check", &Check { standby }, ANSWER_MAX) {
        Ok(Checked::Accepted) => Ok(()),
        Ok(Checked::Refused { why }) => Err(why),
        Err(why) => Err(why.to_string()),
    }
}

fn request(
    state: &StandbyState,
    commands: &EndpointAddress,
    wait: Duration,
) -> Result<Answer, AskError> {
    let request = {
        let view = state.view();
        Request {
            standby: state.name.clone(),
            session: view.session,
            epoch: view.epoch().map_err(AskError::Denied)?,
            mirrored: view.publish_positions(),
            superseded_by: None,
        }
    };
    send(state, commands, "/hand-over", &request, wait)
}

fn send<A: DeserializeOwned>(
    state: &StandbyState,
    commands: &EndpointAddress,
    path: &str,
    request: &impl Serialize,
    wait: Duration,
) -> Result<A, AskError> {
    // Serialising can't fail: keys are strings, and all numbers are valid JSON.
    let body = serde_json::to_string(request).unwrap_or_default();
    let remedy = match commands {
        EndpointAddress::Port(_) => "check the publisher's commands.listen",
        EndpointAddress::Socket(_) => {
            "check that the publisher listens at that path, and runs as the same user"
        }
    };
    let asked = ask(commands, state.token.as_ref(), path, Some(&body), wait);
    let (status, answer) = asked.map_err(|error| AskError::Unreachable(error, remedy))?;
    Err(AskError::Denied(match status {
        401 => "the publisher refuses the token; make the contents of standby.token_file equal to \
                its commands.token_file"
            .into(),
        421 => format!(
            "the publisher takes {commands} for another host; add that address to its admin_hosts"
        ),
        _ => match serde_json::from_str(&answer) {
            Ok(answer) => return Ok(answer),
            Err(_) => {
                format!("the answer {status} does not come from a publisher's commands: {answer:?}")
            }
        },
    }))
}

/// Returns whether the publisher is silent on every path.
fn is_gone(state: &StandbyState) -> bool {
    let began = Instant::now();
    loop {
        let (is_alive, is_heard) = {
            let view = state.view();
            (view.is_publisher_alive(), view.is_heard())
        };
        let patience = if is_heard { HEARD_MAX } else { SILENCE_MAX };
        if !is_alive || began.elapsed() >= patience {
            return !is_alive;
        }
        sleep(ASK_EVERY);
    }
}

/// A notice to a publisher that may be alive: a higher epoch was opened. Until the publisher is notified it
/// may continue, and its subscribers stay with it.
#[derive(Debug, Default)]
pub(super) struct Notice {
    is_sent: bool,
    /// The last answer that was logged, and when.
    logged: Option<(String, Instant)>,
}

impl Notice {
    /// Sends the notice, again or for the first time. Returns whether it is settled.
    pub(super) fn send(&mut self, state: &StandbyState, promoted: &Promoted) -> bool {
        let Some(commands) = &state.config.commands else {
            return true;
        };
        let request = Request {
            standby: state.name.clone(),
            session: None,
            epoch: promoted.continues,
            mirrored: promoted.channels.clone(),
            superseded_by: Some(promoted.epoch),
        };
        let is_first = !std::mem::replace(&mut self.is_sent, true);
        match send(state, commands, "/hand-over", &request, ANSWER_MAX) {
            Ok(Answer::Ends { .. }) => {
                tracing::warn!("the publisher was notified that it is superseded, and stops");
                return true;
            }
            Ok(Answer::Refused { why }) => {
                tracing::error!(
                    "the process at {commands} was notified that it is superseded, but refuses to \
                     end: {why}; if it publishes, stop it"
                );
                return true;
            }
            Err(AskError::Denied(why)) => {
                state.counters.notices_refused.increment();
                if self.is_news(&why, Instant::now()) {
                    tracing::error!(
                        "the process at {commands} does not take the notice that it is superseded: \
                         {why}; if it publishes, stop it"
                    );
                }
            }
            Ok(Answer::Resting { .. }) | Err(AskError::Unreachable(..)) => {
                if is_first && promoted.reason == Reason::Forced {
                    tracing::warn!(
                        "the superseded publisher can't be reached, and will be notified when it \
                         returns; make sure that it has stopped"
                    );
                }
            }
        }
        false
    }

    /// Returns whether this answer is to be logged: it is another one, or was logged a minute ago.
    fn is_news(&mut self, why: &str, now: Instant) -> bool {
        let is_logged = |(logged, at): &(String, Instant)| logged == why && now < *at + LOG_EVERY;
        let is_news = !self.logged.as_ref().is_some_and(is_logged);
        if is_news {
            self.logged = Some((why.into(), now));
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_notice_is_logged_once_a_minute_and_when_it_changes() {
        let (mut notice, began) = (Notice::default(), Instant::now());
        let mut logged = |from: u64, why: &str| {
            let seconds = (from..from + 120).map(Duration::from_secs);
            seconds
                .filter(|it| notice.is_news(why, began + *it))
                .count()
        };
        assert_eq!(logged(0, "the token"), 2);
        assert_eq!(logged(120, "the host"), 2);
    }
}
