//! A standby mirrors the rings of another publisher and receives the same inputs, with its output
//! suppressed. Once promoted, it publishes from the end of the mirrors.
//!
//! ```text
//! publisher ─ multicast, repair ─ mirror thread ─ mirrors ┐
//! input ─ feed thread ─ queue ─ publish thread ─ kept ──────┴ promoted: rings, sealed on
//! ```
//!
//! - `mirror_thread.rs` fills the mirrors.
//! - `backlog.rs` keeps messages that may have to be published again.
//! - `agreement.rs` compares the mirrors with the kept messages.
//! - `command_check.rs` asks the publisher whether it would hand over.
//! - `promote.rs` makes the publisher hand over.
//!
//! In `run`, `promotion.rs` continues from the mirrors, and `standby.rs` is the service of a standby.

pub(crate) mod agreement;
pub(crate) mod backlog;
pub(crate) mod command_check;
pub(crate) mod hand_over;
pub(crate) mod mirror_thread;
mod promote;

use std::sync::{Arc, PoisonError};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};

use crate::repair::audit;
use crate::standby::promote::Notice;
use crate::state::standby::{Phase, Promoted, Reason, StandbyState};

/// Time that a client waits for the publish thread to continue from the mirrors.
const OPENING_MAX: Duration = Duration::from_secs(60);
/// Interval between attempts to notify a superseded publisher.
const SUPERSEDE_EVERY: Duration = Duration::from_secs(1);

impl StandbyState {
    /// Promotes it for `client`, and waits until it publishes. If it was promoted before, returns that
    /// result.
    ///
    /// # Errors
    /// Returns the reason and the remedy as text. It continues as a standby, unless the text says
    /// otherwise.
    pub(crate) fn promote(self: &Arc<Self>, force: bool, client: &str) -> Result<Promoted, String> {
        tracing::info!(client, force, "asked to be promoted");
        let audit = |what, why: Option<&str>| {
            let client = Some(client);
            let none = audit::Of::default();
            audit::write_entry(
                what,
                audit::Of {
                    client,
                    why,
                    ..none
                },
            );
        };
        audit("promotion_requested", force.then_some("by force"));
        let promoted = self.promote_within(OPENING_MAX, force);
        promoted.inspect_err(|why| {
            tracing::warn!(client, "not promoted: {why}");
            audit("promotion_refused", Some(why));
        })
    }

    fn promote_within(self: &Arc<Self>, wait: Duration, force: bool) -> Result<Promoted, String> {
        {
            let mut phase = self.phase();
            match &*phase {
                Phase::Mirroring => *phase = Phase::Asking,
                Phase::Promoted(promoted) => return Ok(promoted.clone()),
                Phase::Failed(why) => return Err(why.clone()),
                _ => return Err("a promotion is in progress".into()),
            }
        }
        let allowed = promote::may_promote(self, force);
        let allowed = allowed.and_then(|reason| Ok((reason, self.superseding(reason)?)));
        let (reason, superseding) = allowed.inspect_err(|_| {
            self.counters.promotions_refused.increment();
            let mut phase = self.phase();
            if matches!(*phase, Phase::Asking) {
                *phase = Phase::Mirroring;
            }
        })?;
        // The publish thread continues from the mirrors, unless it has ended.
        self.order(reason)?;
        let opened = self.outcome(Some(wait));
        let opened =
            opened.ok_or("the promotion is not finished yet; GET /standby reports its result")?;
        if reason == Reason::Forced {
            // The caller gets its answer after the first attempt to notify the publisher.
            let _ = superseding.recv();
        }
        opened
    }

    /// A publisher that did not hand over must be notified that it is superseded, independent of
    /// the opening and of the client. It is notified at once, and again when it returns after a
    /// stop or a partition. The receiver signals the first attempt; it gets nothing if there is
    /// none.
    fn superseding(self: &Arc<Self>, reason: Reason) -> Result<Receiver<()>, String> {
        let (tried, first) = bounded(1);
        if reason == Reason::HandedOver {
            return Ok(first);
        }
        let state = self.clone();
        let thread = Builder::new().name("supersede".into()).spawn(move || {
            let Some(Ok(promoted)) = state.outcome(None) else {
                return;
            };
            let mut notice = Notice::default();
            let mut is_settled = notice.send(&state, &promoted);
            let _ = tried.send(());
            // For as long as there is a promoted publisher.
            let state = {
                let weak = Arc::downgrade(&state);
                drop(state);
                weak
            };
            while !is_settled {
                sleep(SUPERSEDE_EVERY);
                let Some(state) = state.upgrade() else {
                    return;
                };
                is_settled = notice.send(&state, &promoted);
            }
        });
        let thread = thread.map_err(|error| format!("can't start a thread: {error}"));
        thread.map(|_| first)
    }

    /// Waits until it publishes or never will, at most for `wait` if given.
    fn outcome(&self, wait: Option<Duration>) -> Option<Result<Promoted, String>> {
        let until = wait.map(|wait| Instant::now() + wait);
        let mut phase = self.phase();
        loop {
            match &*phase {
                Phase::Promoted(promoted) => return Some(Ok(promoted.clone())),
                Phase::Failed(why) => return Some(Err(why.clone())),
                _ => {}
            }
            phase = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    let waited = self.changed.wait_timeout(phase, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.changed.wait(phase);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    fn order(&self, reason: Reason) -> Result<(), String> {
        let mut phase = self.phase();
        if let Phase::Failed(why) = &*phase {
            return Err(why.clone());
        }
        *phase = Phase::Ordered(reason);
        Ok(())
    }

    /// Returns the reason to publish from now on, once.
    pub(crate) fn ordered(&self) -> Option<Reason> {
        let mut phase = self.phase();
        let Phase::Ordered(reason) = *phase else {
            return None;
        };
        *phase = Phase::Opening;
        Some(reason)
    }

    /// Records that it publishes, or never will.
    pub(crate) fn opened(&self, outcome: Result<Promoted, String>) {
        *self.phase() = match outcome {
            Ok(promoted) => Phase::Promoted(promoted),
            Err(why) => {
                self.counters.promotions_refused.increment();
                Phase::Failed(why)
            }
        };
        self.changed.notify_all();
    }

    /// Records that it publishes nothing any more, and wakes every waiter.
    pub(crate) fn ended(&self) {
        let mut phase = self.phase();
        if !matches!(*phase, Phase::Promoted(_) | Phase::Failed(_)) {
            *phase = Phase::Failed("this standby has ended".into());
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use serde_json::{Value, json};
    use tickcast_reliability::receive::Mirrored;
    use tickcast_reliability::types::{ChannelId, Epoch, RecordNumber, Sequence, SequenceRange};

    use super::*;
    use crate::state::standby_view::ChannelView;

    const CLIENT: &str = "user 0";

    /// Returns a standby that mirrors a channel of a publisher with this command port.
    fn mirroring(commands: &TcpListener) -> Arc<StandbyState> {
        let commands = commands.local_addr().unwrap();
        let config = json!({ "of": "127.0.0.1:9", "commands": commands });
        let config = serde_json::from_value(config).unwrap();
        let state = StandbyState::new("b".into(), config, None, &[]);
        let mirrored = Mirrored {
            epoch: Epoch(5),
            held: SequenceRange::new(Sequence(1), Sequence(7)),
            last: Sequence(7),
            next_record: RecordNumber(9),
            ended: false,
            holes: 0,
        };
        let channel = ChannelView {
            mirrored: Some(mirrored),
            ..ChannelView::new(ChannelId(1), "all")
        };
        state.view().channels.push(channel);
        Arc::new(state)
    }

    fn promoted() -> Promoted {
        Promoted {
            epoch: Epoch(8),
            continues: Epoch(5),
            reason: Reason::Forced,
            channels: Vec::new(),
        }
    }

    /// Returns the next connection, however long it takes.
    fn asked(listener: &TcpListener) -> TcpStream {
        listener.set_nonblocking(true).unwrap();
        let began = Instant::now();
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    return stream;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(began.elapsed() < Duration::from_secs(120), "nobody came");
            sleep(Duration::from_millis(1));
        }
    }

    /// Returns the posted request.
    fn posted(stream: &TcpStream) -> (String, Value) {
        let mut stream = BufReader::new(stream);
        let (mut head, mut line, mut len) = (String::new(), String::new(), 0);
        while stream.read_line(&mut line).unwrap() > 2 {
            if let Some((_, value)) = line.to_lowercase().split_once("content-length:") {
                len = value.trim().parse().unwrap();
            }
            head.push_str(&line);
            line.clear();
        }
        let mut body = vec![0; len];
        stream.read_exact(&mut body).unwrap();
        (head, serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn superseded_publisher_hears_despite_slow_opening() {
        let publisher = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = mirroring(&publisher);
        let why = state.promote_within(Duration::ZERO, true).unwrap_err();
        assert!(why.contains("is not finished yet"), "{why}");
        assert_eq!(state.ordered(), Some(Reason::Forced));
        let again = state.promote_within(Duration::ZERO, true).unwrap_err();
        assert!(again.contains("in progress"), "{again}");
        state.opened(Ok(promoted()));
        let mut stream = asked(&publisher);
        let (head, body) = posted(&stream);
        assert!(head.starts_with("POST /hand-over"), "{head}");
        assert_eq!(
            (&body["epoch"], &body["superseded_by"]),
            (&json!(5), &json!(8))
        );
        write!(stream, "HTTP/1.1 200 OK\r\n\r\n{{}}").unwrap();
        assert_eq!(state.promote(true, CLIENT), Ok(promoted()));
    }

    #[test]
    fn publisher_taken_for_dead_hears_on_return() {
        let publisher = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = mirroring(&publisher);
        let first = state.superseding(Reason::PublisherDead).unwrap();
        state.opened(Ok(promoted()));
        // The publisher accepts the connection and does not answer.
        drop(asked(&publisher));
        assert_eq!(first.recv(), Ok(()));
        assert_eq!(state.counters.notices_refused.get(), 0);
        let answer = |status: &str, text: &str| {
            let mut stream = asked(&publisher);
            let (_, body) = posted(&stream);
            assert_eq!(body["superseded_by"], 8);
            let len = text.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: {len}\r\n\r\n{text}"
            )
            .unwrap();
        };
        // Neither a wrong token nor a foreign host settles it.
        for status in [
            "401 Unauthorized",
            "421 Misdirected Request",
            "404 Not Found",
        ] {
            answer(status, "no");
        }
        let ends = json!({ "state": "ends", "channels": [] }).to_string();
        answer("200 OK", &ends);
        // One notification suffices, so the thread ends and drops its reference.
        let began = Instant::now();
        while Arc::weak_count(&state) > 0 {
            assert!(began.elapsed() < Duration::from_secs(120), "it goes on");
            sleep(Duration::from_millis(1));
        }
        assert_eq!(state.counters.notices_refused.get(), 3);
    }

    #[test]
    fn ended_standby_fails_pending_and_new_promotions() {
        let publisher = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = mirroring(&publisher);
        let first = state.superseding(Reason::Forced).unwrap();
        *state.phase() = Phase::Asking;
        state.ended();
        assert!(first.recv().is_err());
        let why = state.order(Reason::Forced).unwrap_err();
        assert!(why.contains("ended"), "{why}");
        let why = state.promote(false, CLIENT).unwrap_err();
        assert!(why.contains("ended"), "{why}");
    }

    #[test]
    fn standby_failing_to_open_supersedes_no_publisher() {
        let publisher = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = mirroring(&publisher);
        let superseding = state.superseding(Reason::Forced).unwrap();
        state.opened(Err("no".into()));
        assert!(superseding.recv().is_err());
        publisher.set_nonblocking(true).unwrap();
        assert_eq!(
            publisher.accept().unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        assert_eq!(state.promote(true, CLIENT), Err("no".into()));
        assert!(
            state
                .superseding(Reason::HandedOver)
                .unwrap()
                .recv()
                .is_err()
        );
    }
}
