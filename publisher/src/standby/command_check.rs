//! Asks the publisher regularly whether it would hear a request to hand over. A wrong token, name or address
//! is then known before the promotion.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tickcast_http::EndpointAddress;

use crate::error::PublisherError;
use crate::standby::promote;
use crate::state::standby::StandbyState;
use crate::state::thread::{Thread, spawn};

/// Interval between two checks, and the shorter one after a failed check.
const EVERY: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(5);
/// Interval between two looks whether the standby ends.
const WAIT: Duration = Duration::from_millis(20);

/// Starts the thread that checks, until `is_over` or the standby is promoted. Returns `None` if the config
/// names no command endpoint.
///
/// # Errors
/// Returns [`PublisherError::System`] if the thread can't be started.
pub(crate) fn start(
    state: &Arc<StandbyState>,
    is_over: impl Fn() -> bool + Send + 'static,
) -> Result<Option<Thread<()>>, PublisherError> {
    let Some(commands) = state.config.commands.clone() else {
        return Ok(None);
    };
    let state = state.clone();
    let thread = spawn("check", None, move || {
        let mut due = Instant::now();
        while !is_over() && !state.is_promoted() {
            if Instant::now() >= due {
                let wait = if check(&state, &commands) {
                    EVERY
                } else {
                    AGAIN
                };
                due = Instant::now() + wait;
            }
            sleep(WAIT);
        }
        Ok(())
    });
    thread.map(Some)
}

/// Returns whether the publisher would hear a request. If it is not heard of, the check shows nothing.
fn check(state: &StandbyState, commands: &EndpointAddress) -> bool {
    let checked = promote::check(state, commands);
    let mut view = state.view();
    let is_accepted = checked.is_ok();
    if !is_accepted && !view.is_publisher_alive() {
        view.commands = None;
        return false;
    }
    if view.commands.as_ref() != Some(&checked) {
        match &checked {
            Ok(()) => tracing::info!("the publisher would hand over: {commands} takes requests"),
            Err(why) => tracing::warn!(
                "the publisher would not hand over, because {commands} refuses requests: {why}"
            ),
        }
    }
    view.commands = Some(checked);
    is_accepted
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;

    /// Returns the answer of a publisher to a check.
    fn checked(is_alive: bool, status: &str, text: &str) -> (bool, Option<Result<(), String>>) {
        let publisher = TcpListener::bind("127.0.0.1:0").unwrap();
        let commands = publisher.local_addr().unwrap();
        let config = json!({ "of": "127.0.0.1:9", "commands": commands });
        let config = serde_json::from_value(config).unwrap();
        let state = StandbyState::new("b".into(), config, None, &[]);
        state.view().link_up = is_alive;
        let len = text.len();
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\n\r\n{text}");
        let server = std::thread::spawn(move || {
            let (mut stream, _) = publisher.accept().unwrap();
            let (mut asked, mut bytes) = (Vec::new(), [0; 1024]);
            while !asked.ends_with(br#"{"standby":"b"}"#) {
                let len = stream.read(&mut bytes).unwrap();
                asked.extend(&bytes[..len]);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            assert!(asked.starts_with(b"POST /check "));
        });
        let is_accepted = check(&state, &commands.into());
        server.join().unwrap();
        let commands = state.view().commands.clone();
        (is_accepted, commands)
    }

    #[test]
    fn refused_check_is_shown_while_the_publisher_lives() {
        let accepted = checked(true, "200 OK", r#"{"state":"accepted"}"#);
        assert_eq!(accepted, (true, Some(Ok(()))));
        for (status, text, why) in [
            ("401 Unauthorized", "no", "refuses the token"),
            ("421 Misdirected Request", "no", "admin_hosts"),
            ("404 Not Found", "no", "the answer 404"),
            (
                "409 Conflict",
                r#"{"state":"refused","why":"add b"}"#,
                "add b",
            ),
        ] {
            let (is_accepted, commands) = checked(true, status, text);
            assert!(!is_accepted);
            let problem = commands.unwrap().unwrap_err();
            assert!(problem.contains(why), "{problem}");
            assert_eq!(checked(false, status, text), (false, None));
        }
    }
}
