//! The command endpoints: `POST /promote` promotes a standby, and `POST /hand-over` is a standby's request.
//! A Unix socket serves this host, and a TCP port with a token serves others. Each has connections of its
//! own, so that no peer of another endpoint takes their place.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hyper::StatusCode;
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot;

use crate::http::server::{Accepts, Answer, Answering, Asked, Handler, OnSent};
use crate::http::table::Limits;
use crate::state::Shared;
use crate::state::command::{Command, CommandSender, ReplyTo};
use crate::state::hand_over;

/// Connections of the command socket. All come from one user or root.
pub(crate) const SOCKET_LIMITS: Limits = Limits {
    total: 16,
    per_peer: 16,
};
/// Connections of the command port.
pub(crate) const PORT_LIMITS: Limits = Limits {
    total: 32,
    per_peer: 8,
};

/// Passes commands to the publish thread, and its replies to the peers.
pub(crate) struct CommandHandler {
    shared: Arc<Shared>,
    commands: CommandSender,
}

impl CommandHandler {
    /// Passes commands to the thread at the other end of `commands`.
    pub(crate) const fn new(shared: Arc<Shared>, commands: CommandSender) -> Self {
        Self { shared, commands }
    }

    async fn carry_out(&self, asked: Asked) -> Answer {
        match &*asked.path {
            "/promote" => self.promote(&asked.body).await,
            "/hand-over" => self.hand_over(&asked.body).await,
            _ => Answer::text(
                StatusCode::NOT_FOUND,
                "there is /promote, and for standbys /hand-over\n".into(),
            ),
        }
    }

    /// Promotes a standby. Returns once the publisher has handed over, or the promotion has failed.
    async fn promote(&self, body: &Bytes) -> Answer {
        #[derive(Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Wanted {
            #[serde(default)]
            force: bool,
        }
        let wanted = match &body[..] {
            [] => Ok(Wanted::default()),
            body => serde_json::from_slice::<Wanted>(body),
        };
        let force = match wanted {
            Ok(wanted) => wanted.force,
            Err(error) => {
                let body = format!("{error}; give {{}} or {{\"force\": true}}\n");
                return Answer::text(StatusCode::BAD_REQUEST, body);
            }
        };
        if self.shared.standby.is_none() {
            return refused("this publisher is not a standby");
        }
        let (sender, outcome) = oneshot::channel();
        // The peer may have left meanwhile.
        let reply = ReplyTo::new(move |outcome| drop(sender.send(outcome)));
        self.commands.send(Command::Promote { force, reply });
        match outcome.await {
            Ok(Ok(promoted)) => Answer::json(StatusCode::OK, &promoted),
            Ok(Err(why)) => refused(&why),
            Err(_) => refused("this standby has ended"),
        }
    }

    /// Answers the hand-over request of a standby, and notifies the publish thread once the answer ends
    /// this publisher.
    async fn hand_over(&self, body: &Bytes) -> Answer {
        let request = match serde_json::from_slice::<hand_over::Request>(body) {
            Ok(request) => request,
            Err(error) => {
                let body = format!(
                    "{error}; only a standby sends this request: POST /promote to the standby\n"
                );
                return Answer::text(StatusCode::BAD_REQUEST, body);
            }
        };
        let (sender, replied) = oneshot::channel();
        let (commands, ended) = (self.commands.clone(), request.clone());
        let reply = ReplyTo::new(move |answer: hand_over::Answer| {
            let ends = matches!(answer, hand_over::Answer::Ends { .. });
            // The publisher ends also if the answer can't be written: the standby may have read it, and its
            // mirror is complete.
            let on_sent = OnSent::new(move || {
                if ends {
                    commands.send(Command::HandOverAnswered { request: ended });
                }
            });
            drop(sender.send((answer, on_sent)));
        });
        self.commands.send(Command::HandOver { request, reply });
        let Ok((answer, on_sent)) = replied.await else {
            return self.not_handed_over(&hand_over::Answer::Refused {
                why: "this publisher is ending its session".into(),
            });
        };
        match answer {
            hand_over::Answer::Refused { .. } => self.not_handed_over(&answer),
            _ => Answer::json(StatusCode::OK, &answer).on_sent(on_sent),
        }
    }

    fn not_handed_over(&self, answer: &hand_over::Answer) -> Answer {
        let shared = self.shared.current();
        shared.hand_overs_refused.fetch_add(1, Relaxed);
        Answer::json(StatusCode::CONFLICT, answer)
    }
}

impl Handler for CommandHandler {
    fn accepts(&self) -> Accepts {
        Accepts::Posts
    }

    fn answer(&self, asked: Asked) -> Answering<'_> {
        Box::pin(self.carry_out(asked))
    }
}

/// Returns the answer to a request that is impossible in the current state.
fn refused(why: &str) -> Answer {
    Answer::json(
        StatusCode::CONFLICT,
        &json!({ "state": "refused", "why": why }),
    )
}
