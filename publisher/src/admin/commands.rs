//! The command endpoints: `POST /promote` promotes a standby, and `POST /reload` reads the config again.
//! `POST /hand-over` is a standby's request, and `POST /check` asks whether it would be heard. A Unix socket
//! serves this host, and a TCP port with a token serves others. Each has connections of its own, so that no
//! peer of another endpoint takes their place.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use hyper::StatusCode;
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::json;
use tickcast_http::server::{Accepts, Answer, AnswerPage, Answering, Asked, Handler, OnSent};
use tickcast_http::table::Limits;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::state::Shared;
use crate::state::command::{Command, CommandSender, ReloadRequest, ReplyTo};
use crate::state::hand_over::{self, Check, Checked};

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
/// Time limit of a hand-over request, which is that of the standby. A publisher on its handler's thread takes
/// requests only while the handler publishes.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);
/// Time limit of a reload.
const RELOAD_MAX: Duration = Duration::from_secs(30);
/// Time limit of a promotion, without the time for the hand-over.
const PROMOTION_MAX: Duration = Duration::from_secs(75);

/// Passes commands to the publish thread, and its replies to the peers.
#[derive(Clone)]
pub(crate) struct CommandHandler {
    shared: Arc<Shared>,
    commands: CommandSender,
    /// Names of the standbys that may take over.
    hand_over_to: Vec<String>,
    hand_over_max: Duration,
    /// The thread of reloads; `None` for a publisher whose config can't change.
    reloads: Option<Sender<ReloadRequest>>,
}

impl CommandHandler {
    /// Passes commands to the thread at the other end of `commands`. Standbys of these names may take over.
    pub(crate) const fn new(
        shared: Arc<Shared>,
        commands: CommandSender,
        hand_over_to: Vec<String>,
        reloads: Option<Sender<ReloadRequest>>,
    ) -> Self {
        Self {
            reloads,
            shared,
            commands,
            hand_over_to,
            hand_over_max: HAND_OVER_MAX,
        }
    }

    async fn carry_out(&self, asked: Asked) -> Answer {
        let client = asked.client.to_string();
        match &*asked.path {
            "/promote" => self.promote(&asked.body, client).await.into(),
            "/reload" => self.reload(client).await.into(),
            "/hand-over" => self.hand_over(&asked.body, client).await,
            "/check" => self.check(&asked.body).into(),
            _ => {
                let text =
                    "there is /promote and /reload, and for standbys /hand-over and /check\n";
                AnswerPage::text(StatusCode::NOT_FOUND, text).into()
            }
        }
    }

    /// Promotes a standby. Returns once the publisher has handed over, or the promotion has failed.
    async fn promote(&self, body: &Bytes, client: String) -> AnswerPage {
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
                return AnswerPage::text(StatusCode::BAD_REQUEST, body);
            }
        };
        let Some(standby) = &self.shared.standby else {
            return refused("this publisher is not a standby");
        };
        let max = PROMOTION_MAX + Duration::from_millis(standby.config.hand_over_ms);
        let (sender, outcome) = oneshot::channel();
        // The peer may have left meanwhile.
        let take = move |outcome| drop(sender.send(outcome));
        self.commands.send(Command::Promote {
            force,
            client,
            reply: ReplyTo::new(Instant::now() + max, take),
        });
        match timeout(max, outcome).await {
            Ok(Ok(Ok(promoted))) => AnswerPage::json(StatusCode::OK, &promoted),
            Ok(Ok(Err(why))) => refused(&why),
            Ok(Err(_)) => refused("this standby has ended"),
            Err(_) => refused("the promotion is not finished yet; GET /standby reports its result"),
        }
    }

    /// Lets the thread of reloads read the config again. Returns once everything is applied, or refused.
    async fn reload(&self, client: String) -> AnswerPage {
        let Some(reloads) = self
            .reloads
            .as_ref()
            .filter(|_| self.shared.standby.is_none())
        else {
            return refused("a standby or a program's own publisher reads its config at its start");
        };
        let (sender, outcome) = oneshot::channel();
        let take = move |outcome| drop(sender.send(outcome));
        let reply = ReplyTo::new(Instant::now() + RELOAD_MAX, take);
        // A thread that has ended drops the request with its reply.
        drop(reloads.send(ReloadRequest { client, reply }));
        match timeout(RELOAD_MAX, outcome).await {
            Ok(Ok(Ok(changed))) => {
                let answer = json!({ "state": "reloaded", "changed": changed });
                AnswerPage::json(StatusCode::OK, &answer)
            }
            Ok(Ok(Err(why))) => {
                let answer = json!({ "state": "refused", "why": why });
                AnswerPage::json(StatusCode::CONFLICT, &answer)
            }
            Ok(Err(_)) => refused("this publisher is ending its session"),
            Err(_) => refused("the reload is not finished yet; the log reports its result"),
        }
    }

    /// Answers the hand-over request of a standby, and notifies the publish thread once the answer ends
    /// this publisher.
    async fn hand_over(&self, body: &Bytes, client: String) -> Answer {
        let request = match serde_json::from_slice::<hand_over::Request>(body) {
            Ok(request) => request,
            Err(error) => {
                let body = format!(
                    "{error}; only a standby sends this request: POST /promote to the standby\n"
                );
                return AnswerPage::text(StatusCode::BAD_REQUEST, body).into();
            }
        };
        let (sender, replied) = oneshot::channel();
        let (commands, ended) = (self.commands.clone(), request.clone());
        let take = move |answer: hand_over::Answer| {
            let ends = matches!(answer, hand_over::Answer::Ends { .. });
            // The publisher ends also if the answer can't be written: the standby may have read it, and its
            // mirror is complete.
            let on_sent = OnSent::new(move || {
                if ends {
                    commands.send(Command::HandOverAnswered { request: ended });
                }
            });
            drop(sender.send((answer, on_sent)));
        };
        self.commands.send(Command::HandOver {
            request,
            client,
            reply: ReplyTo::new(Instant::now() + self.hand_over_max, take),
        });
        let (answer, on_sent) = match timeout(self.hand_over_max, replied).await {
            Ok(Ok(replied)) => replied,
            Ok(Err(_)) if self.shared.current().is_stopping() => {
                let why = "this publisher is ending its session".into();
                return self.not_handed_over(&hand_over::Answer::Refused { why });
            }
            // This refuses nothing: the publish thread may be carrying out the request, and end.
            Ok(Err(_)) | Err(_) => {
                let text = "the publish thread gave no answer in time: a handler may hold it\n";
                return AnswerPage::text(StatusCode::SERVICE_UNAVAILABLE, text).into();
            }
        };
        match answer {
            hand_over::Answer::Refused { .. } => self.not_handed_over(&answer),
            _ => Answer::with(AnswerPage::json(StatusCode::OK, &answer), on_sent),
        }
    }

    /// Answers whether a hand-over request of this standby would be heard. Its token was right.
    fn check(&self, body: &Bytes) -> AnswerPage {
        match serde_json::from_slice::<Check>(body) {
            Ok(check) if self.hand_over_to.contains(&check.standby) => {
                AnswerPage::json(StatusCode::OK, &Checked::Accepted)
            }
            Ok(check) => {
                let why = hand_over::not_allowed(&check.standby);
                AnswerPage::json(StatusCode::CONFLICT, &Checked::Refused { why })
            }
            Err(error) => {
                let text = format!("{error}; only a standby sends this request\n");
                AnswerPage::text(StatusCode::BAD_REQUEST, text)
            }
        }
    }

    fn not_handed_over(&self, answer: &hand_over::Answer) -> Answer {
        let shared = self.shared.current();
        shared.hand_overs_refused.fetch_add(1, Relaxed);
        AnswerPage::json(StatusCode::CONFLICT, answer).into()
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
fn refused(why: &str) -> AnswerPage {
    AnswerPage::json(
        StatusCode::CONFLICT,
        &json!({ "state": "refused", "why": why }),
    )
}

#[cfg(test)]
mod tests {
    use tickcast_reliability::types::{Epoch, Nanos};
    use tokio::runtime::Builder;

    use super::*;
    use crate::state::command::{CommandReceiver, commands};
    use tickcast_http::listener::Client;

    fn handler() -> (CommandHandler, CommandReceiver) {
        let (none, stop) = ((Vec::new(), Vec::new()), Arc::default());
        let shared = Shared::new("a".into(), Epoch(5), none.0, none.1, stop, Nanos::ZERO);
        let (sender, receiver) = commands();
        let mut handler = CommandHandler::new(Arc::new(shared), sender, vec!["b".into()], None);
        handler.hand_over_max = Duration::from_millis(10);
        (handler, receiver)
    }

    fn answer(handler: &CommandHandler, path: &str, body: &str) -> (StatusCode, String) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let asked = Asked {
            client: Client::User(0),
            path: path.into(),
            accept: String::new(),
            body: Bytes::from(body.to_owned()),
        };
        let answer = runtime.block_on(handler.carry_out(asked));
        let body = String::from_utf8(answer.page().body().to_vec()).unwrap();
        (answer.page().status(), body)
    }

    #[test]
    fn idle_publish_thread_holds_no_request() {
        let (handler, receiver) = handler();
        let request = r#"{ "standby": "b", "epoch": 5 }"#;
        for _ in 0..20 {
            let (status, body) = answer(&handler, "/hand-over", request);
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
        }
        // The thread passes over what nobody waits for, once it works again.
        let mut late = 0;
        while let Some(Command::HandOver { reply, .. }) = receiver.take() {
            late += u32::from(reply.is_late(Instant::now()));
        }
        assert_eq!(late, 20);
        assert_eq!(handler.shared.hand_overs_refused.load(Relaxed), 0);
    }

    #[test]
    fn check_accepts_only_standbys_of_the_list() {
        let (handler, receiver) = handler();
        let accepted = answer(&handler, "/check", r#"{ "standby": "b" }"#);
        assert_eq!(accepted, (StatusCode::OK, r#"{"state":"accepted"}"#.into()));
        let (status, body) = answer(&handler, "/check", r#"{ "standby": "c" }"#);
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(body.contains("hand_over_to"), "{body}");
        let (status, _) = answer(&handler, "/check", "{}");
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(receiver.take().is_none(), "the publish thread is not asked");
    }
}
