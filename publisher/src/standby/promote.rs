//! Checks that a standby may be promoted: the publisher hands over, is gone, or is overridden by
//! force.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::http::{EndpointAddress, ask};
use crate::state::hand_over::{Answer, Request};
use crate::state::standby::{Promoted, Reason, StandbyState};

/// Interval between requests to the publisher while its last datagrams arrive.
const ASK_EVERY: Duration = Duration::from_millis(5);
/// Timeout of one request.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Time for which datagrams of an unreachable publisher may still arrive: multicast in flight, or a
/// dead connection that is not detected yet.
const HEARD_MAX: Duration = Duration::from_secs(5);
const SILENCE_MAX: Duration = Duration::from_secs(10);

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
                     check the publisher's commands.listen and commands.token_file, stop it, or \
                     promote by force"
                ));
            }
        }
    }
}

fn request(
    state: &StandbyState,
    commands: &EndpointAddress,
    wait: Duration,
) -> Result<Answer, String> {
    let request = {
        let view = state.view();
        Request {
            standby: state.name.clone(),
            session: view.session,
            epoch: view.epoch()?,
            mirrored: view.publish_positions(),
            superseded_by: None,
        }
    };
    send(state, commands, &request, wait)
}

fn send(
    state: &StandbyState,
    commands: &EndpointAddress,
    request: &Request,
    wait: Duration,
) -> Result<Answer, String> {
    let body = serde_json::to_string(request).map_err(|error| error.to_string())?;
    let token = state.token.as_ref();
    let asked = ask(commands, token, "/hand-over", Some(&body), wait);
    match asked.map_err(|error| error.to_string())? {
        (401, _) => Err(
            "the publisher refuses the token; make the contents of standby.token_file equal to its \
             commands.token_file"
                .into(),
        ),
        (status, answer) => serde_json::from_str(&answer).map_err(|_| {
            format!("the answer {status} does not come from a publisher's commands: {answer:?}")
        }),
    }
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

/// Notifies a publisher that may be alive that a higher epoch was opened. Returns whether that is
/// settled. Until it is notified it may continue, and its subscribers stay with it.
pub(super) fn supersede(state: &StandbyState, promoted: &Promoted, is_first: bool) -> bool {
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
    match send(state, commands, &request, ANSWER_MAX) {
        Ok(Answer::Ends { .. }) => {
            tracing::warn!("the publisher was notified that it is superseded, and stops");
            true
        }
        Ok(Answer::Refused { why }) => {
            tracing::error!(
                "the process at {commands} was notified that it is superseded, but refuses to end: \
                 {why}; if it publishes, stop it"
            );
            true
        }
        Ok(Answer::Resting { .. }) | Err(_) => {
            if is_first && promoted.reason == Reason::Forced {
                tracing::warn!(
                    "the superseded publisher can't be reached, and will be notified when it \
                     returns; make sure that it has stopped"
                );
            }
            false
        }
    }
}
