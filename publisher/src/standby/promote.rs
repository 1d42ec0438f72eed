//! Checks that a standby may be promoted: the publisher hands over, is gone, or is overridden by
//! force.

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::http;
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
    match state.config.admin {
        _ if force => Ok(Reason::Forced),
        _ if let Some(source) = differing => Err(format!(
            "source {source} delivers other messages here than the publisher publishes (other \
             instruments, or another session): restart the standby before a session begins. A \
             forced promotion reports its messages as lost"
        )),
        Some(admin) => have_handed_over(state, admin),
        None if is_gone(state) => Ok(Reason::PublisherDead),
        None => Err(
            "the publisher is alive, but standby.admin is not set, so it can't be asked to hand \
             over: set standby.admin, stop the publisher, or promote by force"
                .into(),
        ),
    }
}

/// Makes the publisher stop sealing, and end when the mirrors have everything.
fn have_handed_over(state: &StandbyState, admin: SocketAddr) -> Result<Reason, String> {
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
        match ask(state, admin, left.min(ANSWER_MAX)) {
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
                    "the publisher is alive, but can't be asked to hand over at {admin}: {why}; \
                     stop it, or promote by force"
                ));
            }
        }
    }
}

fn ask(state: &StandbyState, admin: SocketAddr, wait: Duration) -> Result<Answer, String> {
    let request = {
        let view = state.view();
        Request {
            standby: state.name.clone(),
            epoch: view.epoch()?,
            mirrored: view.publish_positions(),
            superseded_by: None,
        }
    };
    say(admin, &request, wait)
}

fn say(admin: SocketAddr, request: &Request, wait: Duration) -> Result<Answer, String> {
    let body = serde_json::to_string(request).map_err(|error| error.to_string())?;
    let asked = http::ask(admin, "/hand-over", Some(&body), wait);
    let (_, answer) = asked.map_err(|error| error.to_string())?;
    serde_json::from_str(&answer)
        .map_err(|_| format!("the answer does not come from a publisher: {answer:?}"))
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
    let Some(admin) = state.config.admin else {
        return true;
    };
    let request = Request {
        standby: state.name.clone(),
        epoch: promoted.continues,
        mirrored: promoted.channels.clone(),
        superseded_by: Some(promoted.epoch),
    };
    match say(admin, &request, ANSWER_MAX) {
        Ok(Answer::Ends { .. }) => {
            tracing::warn!("the publisher was notified that it is superseded, and stops");
            true
        }
        Ok(Answer::Refused { why }) => {
            tracing::error!(
                "the process at {admin} was notified that it is superseded, but refuses to end: \
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
