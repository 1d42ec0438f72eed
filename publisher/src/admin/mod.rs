//! The admin port: `/metrics` for Prometheus (text format 0.0.4), `/status` as JSON, `/healthz`,
//! `/readyz`, and the standby requests `/standby`, `POST /promote`, `POST /hand-over`. Each client gets one
//! answer within a fixed time and memory, or is closed. No client delays another one, or the
//! publisher's end.

mod metrics;
pub(crate) mod monitor;
mod readiness;
pub mod summary;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::admin::metrics::metrics;
use crate::admin::summary::PublisherSummary;
use crate::error::PublisherError;
use crate::http::{Asked, Bounded, Method};
use crate::state::Shared;
use crate::state::command::{Command, CommandSender};
use crate::state::hand_over;
use crate::state::thread::{self, Thread, spawn};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
/// Interval between two checks for a new connection or the publisher's shutdown.
const WAIT: Duration = Duration::from_millis(20);
/// Shorter interval for a while after a connection: a standby that takes over repeats its request at
/// once, and nothing is sealed until it is answered.
const WAIT_AFTER: Duration = Duration::from_millis(1);
const AFTER: Duration = Duration::from_millis(200);
/// Time limit of a request, and of its answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// Time limit for draining unread data after an answer.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: u64 = 1 << 20;
const CONNECTIONS_MAX: usize = 8;
const OK: &str = "200 OK";
const CONFLICT: &str = "409 Conflict";
const UNAVAILABLE: &str = "503 Service Unavailable";

/// The admin endpoint, listening.
pub(crate) struct Admin {
    listener: TcpListener,
    address: SocketAddr,
}

impl Admin {
    /// Listens at `address`; with port 0 the system chooses.
    ///
    /// # Errors
    /// Returns [`PublisherError::Listen`] if it can't.
    pub(crate) fn bind(address: SocketAddr) -> Result<Self, PublisherError> {
        let open = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        open().map_err(|error: io::Error| PublisherError::Listen {
            what: "admin",
            address,
            reason: error.to_string(),
        })
    }

    /// Returns the address that it listens at.
    #[must_use]
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a thread that answers until the publisher shuts down.
    ///
    /// # Errors
    /// Returns [`PublisherError::System`] if the thread can't be started.
    pub(crate) fn start(
        self,
        shared: &Arc<Shared>,
        commands: CommandSender,
    ) -> Result<Thread<()>, PublisherError> {
        let shared = shared.clone();
        spawn("admin", None, move || {
            self.run(&shared, &commands);
            Ok(())
        })
    }

    /// Answers until the publisher shuts down. Does not wait for connections that are open then;
    /// their threads end at their own deadlines.
    pub(crate) fn run(&self, shared: &Arc<Shared>, commands: &CommandSender) {
        let counters = &shared.admin;
        let mut open: Vec<JoinHandle<io::Result<()>>> = Vec::with_capacity(CONNECTIONS_MAX);
        let mut warned = false;
        let mut came_at = None::<Instant>;
        while !shared.current().is_shutting_down() {
            for done in open.extract_if(.., |thread| thread.is_finished()) {
                if !matches!(done.join(), Ok(Ok(()))) {
                    counters.admin_failed.increment();
                }
            }
            match self.listener.accept() {
                Ok(_) if open.len() >= CONNECTIONS_MAX => counters.admin_refused.increment(),
                Ok((stream, _)) => {
                    warned = false;
                    came_at = Some(Instant::now());
                    counters.admin_connections.increment();
                    let (shared, commands) = (shared.clone(), commands.clone());
                    let thread = Builder::new().name("admin-peer".into());
                    match thread.spawn(move || {
                        answer(&stream, &shared, &commands)?;
                        close(&stream);
                        Ok(())
                    }) {
                        Ok(thread) => open.push(thread),
                        Err(_) => counters.admin_failed.increment(),
                    }
                }
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock && !warned {
                        warned = true;
                        tracing::warn!(%error, "the admin port can't accept a connection");
                    }
                    let is_after = came_at.is_some_and(|at| at.elapsed() < AFTER);
                    sleep(if is_after { WAIT_AFTER } else { WAIT });
                }
            }
        }
    }
}

/// The answer to a request.
struct Answer {
    status: &'static str,
    kind: &'static str,
    body: String,
}

impl Answer {
    const fn text(status: &'static str, body: String) -> Self {
        let kind = TEXT;
        Self { status, kind, body }
    }

    fn json(status: &'static str, body: &impl Serialize) -> Self {
        Self {
            status,
            kind: JSON,
            // Serialising can't fail: keys are strings, and all numbers are valid JSON.
            body: serde_json::to_string(body).unwrap_or_default(),
        }
    }

    /// Returns the answer to a request that is impossible in the current state.
    fn refused(why: &str) -> Self {
        Self::json(CONFLICT, &json!({ "state": "refused", "why": why }))
    }

    fn write(&self, stream: &TcpStream, is_head: bool) -> io::Result<()> {
        let Self { status, kind, body } = self;
        let allow = match status.starts_with("405") {
            true => "Allow: GET, HEAD\r\n",
            false => "",
        };
        let len = body.len();
        let mut text = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{allow}\
             Connection: close\r\n\r\n"
        );
        if !is_head {
            text.push_str(body);
        }
        Bounded::new(stream, Instant::now() + DEADLINE).write_all(text.as_bytes())
    }
}

fn answer(stream: &TcpStream, shared: &Shared, commands: &CommandSender) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let until = Instant::now() + DEADLINE;
    let asked = Asked::read(&mut Bounded::new(stream, until), takes_post)?;
    let is_head = asked.method == Method::Head;
    let answer = match (asked.status, asked.method, &*asked.path) {
        (OK, Method::Post, "/promote") => promote(shared, commands, &asked.body),
        (OK, Method::Post, _) => return hand_over(stream, shared.current(), commands, &asked.body),
        (OK, _, path) => answer_get(shared, path),
        (wrong, ..) => Answer::text(
            wrong,
            "this port answers a short GET, and a POST of JSON to /promote or /hand-over\n".into(),
        ),
    };
    answer.write(stream, is_head)
}

/// Closes the sending side, then waits for the peer to close. Closing with unread data would reset the
/// connection, and the peer might never see the answer.
fn close(stream: &TcpStream) {
    if stream.shutdown(Shutdown::Write).is_ok() {
        let mut left = Bounded::new(stream, Instant::now() + LINGER).take(LINGER_BYTES);
        // The connection is closed whether or not the drain succeeds.
        let _ = io::copy(&mut left, &mut io::sink());
    }
}

/// Returns whether a path accepts `POST`; any other `POST` is refused unread.
fn takes_post(path: &str) -> bool {
    matches!(path, "/promote" | "/hand-over")
}

/// Returns the answer to a `GET`.
fn answer_get(shared: &Shared, path: &str) -> Answer {
    let now = shared.current();
    match (path, &shared.standby) {
        ("/metrics", _) => Answer::text(OK, metrics(now)),
        ("/healthz", _) => Answer::text(OK, "ok\n".into()),
        ("/readyz", _) => match &readiness::reasons(now, thread::now())[..] {
            [] => Answer::text(OK, "ready\n".into()),
            reasons => Answer::text(UNAVAILABLE, reasons.join("\n") + "\n"),
        },
        ("/status", _) => Answer::json(OK, PublisherSummary::of(now).json()),
        ("/standby", Some(standby)) => Answer::json(OK, &standby.json()),
        _ => Answer::text(
            "404 Not Found",
            "try /metrics, /status, /healthz, /readyz, or on a standby /standby\n".into(),
        ),
    }
}

/// Promotes a standby. Returns once the publisher has handed over, or the promotion has failed.
fn promote(shared: &Shared, commands: &CommandSender, body: &[u8]) -> Answer {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        #[serde(default)]
        force: bool,
    }
    let wanted = match body {
        [] => Ok(Wanted::default()),
        body => serde_json::from_slice::<Wanted>(body),
    };
    match (wanted, &shared.standby) {
        (Err(error), _) => {
            let body = format!("{error}; give {{}} or {{\"force\": true}}\n");
            Answer::text("400 Bad Request", body)
        }
        (_, None) => Answer::refused("this publisher is not a standby"),
        (Ok(Wanted { force }), Some(_)) => {
            let (reply, outcome) = bounded(1);
            commands.send(Command::Promote { force, reply });
            match outcome.recv() {
                Ok(Ok(promoted)) => Answer::json(OK, &promoted),
                Ok(Err(why)) => Answer::refused(&why),
                Err(_) => Answer::refused("this standby has ended"),
            }
        }
    }
}

/// Answers the hand-over request of a standby, and notifies the publish thread once the answer ends
/// this publisher.
fn hand_over(
    stream: &TcpStream,
    shared: &Shared,
    commands: &CommandSender,
    body: &[u8],
) -> io::Result<()> {
    let request = match serde_json::from_slice::<hand_over::Request>(body) {
        Ok(request) => request,
        Err(error) => {
            let body = format!(
                "{error}; only a standby sends this request: POST /promote to the standby\n"
            );
            return Answer::text("400 Bad Request", body).write(stream, false);
        }
    };
    let (reply, answer) = bounded(1);
    commands.send(Command::HandOver {
        request: request.clone(),
        reply,
    });
    let answer = answer
        .recv()
        .unwrap_or_else(|_| hand_over::Answer::Refused {
            why: "this publisher is ending its session".into(),
        });
    let status = match &answer {
        hand_over::Answer::Refused { .. } => {
            shared.hand_overs_refused.fetch_add(1, Relaxed);
            CONFLICT
        }
        _ => OK,
    };
    let written = Answer::json(status, &answer).write(stream, false);
    if let hand_over::Answer::Ends { .. } = answer {
        // Also notify if the write failed: the standby may have read the answer, and its mirror is complete.
        commands.send(Command::HandOverAnswered { request });
    }
    written
}
