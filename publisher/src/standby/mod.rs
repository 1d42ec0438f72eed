//! A standby: it mirrors the rings of another publisher, hears the same inputs with its output
//! suppressed, and publishes on from where the mirrors end once it is promoted.
//!
//! ```text
//! publisher ─ multicast, repair ─ mirror thread ─ mirrors ┐
//! input ─ feed thread ─ hop ─ publish thread ─ kept ──────┴ promoted: rings, sealed on
//! ```
//!
//! `mirror_thread.rs` fills the rings, `backlog.rs` keeps messages that may have to be published again,
//! `agreement.rs` compares the two, and `promote.rs` has the publisher hand over. In `run`, `promotion.rs`
//! goes on from the mirrors, and `standby.rs` is the service that does all this.

pub(crate) mod agreement;
pub(crate) mod backlog;
pub(crate) mod hand_over;
pub(crate) mod mirror_thread;
mod promote;
pub(crate) mod status;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use serde::Serialize;
use serde_json::{Value, json};
use tickcast_reliability::types::{Epoch, SourceId};

use crate::config::StandbyConfig;
use crate::plan::ChannelPlan;
use crate::standby::hand_over::Standing;
use agreement::Agreement;
use status::View;

/// How long whoever asks waits for the publish thread to go on from the mirrors.
const OPENING_MAX: Duration = Duration::from_secs(60);
/// Between two attempts to tell a publisher that it is superseded.
const SUPERSEDE_EVERY: Duration = Duration::from_secs(1);

tickcast_reliability::counters! {
    /// What came of being a standby.
    pub struct StandbyCounters {
        /// Messages of the inputs kept because they are not mirrored yet (a gauge).
        kept_messages,
        /// Messages evicted to make room; a promotion reports those not mirrored as lost.
        pushed_out_messages,
        /// Messages published again at the promotion.
        published_again_messages,
        /// Times that a promotion was refused or failed.
        promotions_refused,
    }
}

tickcast_reliability::counters! {
    /// A standby as it stands.
    struct StandbyMetrics {
        /// 1 if it mirrors every channel and could be promoted (a gauge).
        mirroring,
        /// 1 if it was promoted and publishes (a gauge).
        promoted,
        /// 1 if anything is heard of the mirrored publisher (a gauge).
        publisher_alive,
        /// Source that sends here what the publisher does not publish; 0 for none (a gauge).
        differing_source,
    }
}

tickcast_reliability::counters! {
    /// The mirror of one channel.
    struct MirrorMetrics {
        /// Sequence mirrored last without a hole (a gauge).
        mirrored_sequence,
        /// Sequences sent and not mirrored yet (a gauge).
        lag_sequences,
        /// Microseconds for which something has been missing in the mirror (a gauge).
        lag_us,
        /// Sequence that the publisher wrote here last by RDMA; 0 for none (a gauge).
        written_sequence,
        /// Sequences sent and not found written here; 0 where nothing is written (a gauge).
        written_lag_sequences,
        /// Datagrams that the publisher wrote here, found whole.
        written_datagrams,
        /// Datagrams written here that arrived before any other path.
        written_first_datagrams,
        /// Sequences not written, or overwritten before they were read; they arrive on another path.
        written_skipped_sequences,
        /// Slots found half written, or never holding a whole datagram.
        inbox_torn,
        /// Times that a mirror began anew because a missing datagram could not be had.
        holes,
    }
}

/// Why a standby was promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// The publisher handed over.
    HandedOver,
    /// The publisher is gone.
    PublisherDead,
    /// Somebody wanted it, whatever the publisher does.
    Forced,
}

impl Reason {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::HandedOver => "the publisher handed over",
            Self::PublisherDead => "the publisher is gone",
            Self::Forced => "by force",
        }
    }
}

/// What a promotion came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename = "promoted")]
pub(crate) struct Promoted {
    /// The epoch that was opened.
    pub epoch: Epoch,
    /// The one that it continues.
    pub continues: Epoch,
    /// Why.
    pub reason: Reason,
    /// Where each channel stood.
    pub channels: Vec<Standing>,
}

/// Where it is on the way.
#[derive(Clone, Debug, Default)]
enum Phase {
    /// It mirrors.
    #[default]
    Mirroring,
    /// Somebody wants it promoted, and the publisher is being asked.
    Asking,
    /// The publish thread is to go on from the mirrors.
    Ordered(Reason),
    /// It does.
    Opening,
    Promoted(Promoted),
    /// It could not.
    Failed(String),
}

/// What the threads of a standby share.
#[derive(Debug)]
pub(crate) struct StandbyState {
    /// Its own name.
    pub(crate) name: String,
    pub(crate) config: StandbyConfig,
    /// What was counted.
    pub counters: StandbyCounters,
    view: Mutex<View>,
    phase: Mutex<Phase>,
    changed: Condvar,
    /// Whether the mirrors are to be given out.
    wants_mirrors: AtomicBool,
}

impl StandbyState {
    pub(crate) fn new(name: String, config: StandbyConfig, plans: &[ChannelPlan]) -> Self {
        Self {
            name,
            config,
            counters: StandbyCounters::default(),
            view: Mutex::new(View::new(plans)),
            phase: Mutex::default(),
            changed: Condvar::new(),
            wants_mirrors: AtomicBool::new(false),
        }
    }

    /// Promotes it, and waits until it publishes. One that was promoted already says what came of it.
    ///
    /// # Errors
    /// Why not, and what to do, in words; it goes on as a standby, unless it says otherwise.
    pub(crate) fn promote(self: &Arc<Self>, force: bool) -> Result<Promoted, String> {
        self.promote_within(OPENING_MAX, force)
    }

    fn promote_within(self: &Arc<Self>, wait: Duration, force: bool) -> Result<Promoted, String> {
        {
            let mut phase = self.phase();
            match &*phase {
                Phase::Mirroring => *phase = Phase::Asking,
                Phase::Promoted(promoted) => return Ok(promoted.clone()),
                Phase::Failed(why) => return Err(why.clone()),
                _ => return Err("a promotion is under way".into()),
            }
        }
        tracing::info!(force, "asked to be promoted");
        let allowed = promote::may_promote(self, force);
        let allowed = allowed.and_then(|reason| Ok((reason, self.superseding(reason)?)));
        let (reason, superseding) = allowed.inspect_err(|why| {
            tracing::warn!("not promoted: {why}");
            self.counters.promotions_refused.increment();
            let mut phase = self.phase();
            if matches!(*phase, Phase::Asking) {
                *phase = Phase::Mirroring;
            }
        })?;
        // The publish thread goes on from the mirrors, unless it has ended.
        self.order(reason)?;
        let opened = self.outcome(Some(wait));
        let opened = opened.ok_or("it takes long; GET /standby says what came of it")?;
        if reason == Reason::Forced {
            // Whoever asked knows that the publisher was told, or not reached.
            let _ = superseding.recv();
        }
        opened
    }

    /// A publisher that did not hand over must be told that it is superseded, however long the opening
    /// takes, and whether or not anybody still waits for it: at once, and when it is back if it was
    /// stopped, or cut off. The first attempt is told of; nothing comes where there is none.
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
            let mut is_settled = promote::supersede(&state, &promoted, true);
            let _ = tried.send(());
            // For as long as there is one that took over.
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
                is_settled = promote::supersede(&state, &promoted, false);
            }
        });
        let thread = thread.map_err(|error| format!("no thread can be started: {error}"));
        thread.map(|_| first)
    }

    /// Waits until it publishes or never will, at most for so long where that is given.
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

    /// Why it is to publish from now on, once.
    pub(crate) fn ordered(&self) -> Option<Reason> {
        let mut phase = self.phase();
        let Phase::Ordered(reason) = *phase else {
            return None;
        };
        *phase = Phase::Opening;
        Some(reason)
    }

    /// It publishes, or never will.
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

    /// It publishes nothing any more, and never will if it never did: nobody waits for that.
    pub(crate) fn ended(&self) {
        let mut phase = self.phase();
        if !matches!(*phase, Phase::Promoted(_) | Phase::Failed(_)) {
            *phase = Phase::Failed("this standby has ended".into());
            self.changed.notify_all();
        }
    }

    pub(crate) fn want_mirrors(&self) {
        self.wants_mirrors.store(true, Release);
    }

    fn wants_mirrors(&self) -> bool {
        self.wants_mirrors.load(Acquire)
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state's name.
    fn state(&self) -> &'static str {
        match &*self.phase() {
            Phase::Mirroring if self.view().epoch().is_err() => "joining",
            Phase::Mirroring => "mirroring",
            Phase::Asking | Phase::Ordered(_) | Phase::Opening => "promoting",
            Phase::Promoted(_) => "promoted",
            Phase::Failed(_) => "failed",
        }
    }

    /// All there is to say of it.
    #[must_use]
    pub(crate) fn json(&self) -> Value {
        let state = self.state();
        let (promoted, failed) = match &*self.phase() {
            Phase::Promoted(promoted) => (Some(promoted.clone()), None),
            Phase::Failed(why) => (None, Some(why.clone())),
            _ => (None, None),
        };
        let view = self.view();
        let not_ready = view.epoch().err();
        json!({
            "name": self.name,
            "of": self.config.of,
            "state": state,
            "publisher_alive": view.is_publisher_alive(),
            "problem": failed.or(not_ready).or_else(|| view.problem.clone()),
            "promoted": promoted,
            "kept_messages": self.counters.kept_messages.get(),
            "pushed_out_messages": self.counters.pushed_out_messages.get(),
            "sources": view.agreements.iter().map(source_json).collect::<Vec<_>>(),
            "channels": view.channels.iter().map(status::ChannelView::json).collect::<Vec<_>>(),
        })
    }

    /// Every metric: name, help, channel where it is of one, value.
    pub(crate) fn each_metric(
        &self,
        mut on: impl FnMut(&'static str, &'static str, Option<&str>, u64),
    ) {
        let state = self.state();
        let view = self.view();
        let standby = StandbyMetrics::default();
        standby.mirroring.set((state == "mirroring").into());
        standby.promoted.set((state == "promoted").into());
        standby
            .publisher_alive
            .set(view.is_publisher_alive().into());
        let differing = view.differing().map_or(0, |source| source.0.into());
        standby.differing_source.set(differing);
        standby.each(|name, help, value| on(name, help, None, value));
        self.counters
            .each(|name, help, value| on(name, help, None, value));
        for channel in &view.channels {
            let (mirrored, written) = (channel.mirrored, channel.written);
            let mirror = MirrorMetrics::default();
            mirror
                .mirrored_sequence
                .set(mirrored.map_or(0, |it| it.last.0));
            mirror.lag_sequences.set(channel.lag);
            mirror.lag_us.set(channel.behind.as_us());
            mirror.written_sequence.set(written.newest());
            mirror.written_lag_sequences.set(written.lag);
            mirror.written_datagrams.set(written.datagrams);
            mirror.written_first_datagrams.set(written.first);
            mirror.written_skipped_sequences.set(written.skipped);
            mirror.inbox_torn.set(written.torn);
            mirror.holes.set(mirrored.map_or(0, |it| it.holes));
            mirror.each(|name, help, value| on(name, help, Some(&channel.name), value));
        }
    }
}

fn source_json((source, agreement): &(SourceId, Agreement)) -> Value {
    json!({ "source": source, "publisher": agreement })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use tickcast_reliability::receive::Mirrored;
    use tickcast_reliability::types::{ChannelId, RecordNumber, Sequence, SequenceRange};

    use super::*;
    use crate::standby::status::ChannelView;

    /// One that mirrors a channel, of a publisher whose admin port is there.
    fn mirroring(admin: &TcpListener) -> Arc<StandbyState> {
        let admin = admin.local_addr().unwrap();
        let config = json!({ "of": "127.0.0.1:9", "admin": admin });
        let config = serde_json::from_value(config).unwrap();
        let state = StandbyState::new("b".into(), config, &[]);
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

    /// The next connection, however long that takes.
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

    /// What was posted.
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
    fn a_publisher_hears_that_it_is_superseded_however_long_the_opening_took() {
        let publisher = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = mirroring(&publisher);
        let why = state.promote_within(Duration::ZERO, true).unwrap_err();
        assert!(why.contains("it takes long"), "{why}");
        assert_eq!(state.ordered(), Some(Reason::Forced));
        let again = state.promote_within(Duration::ZERO, true).unwrap_err();
        assert!(again.contains("under way"), "{again}");
        state.opened(Ok(promoted()));
        let mut stream = asked(&publisher);
        let (head, body) = posted(&stream);
        assert!(head.starts_with("POST /hand-over"), "{head}");
        assert_eq!(
            (&body["epoch"], &body["superseded_by"]),
            (&json!(5), &json!(8))
        );
        write!(stream, "HTTP/1.1 200 OK\r\n\r\n{{}}").unwrap();
        assert_eq!(state.promote(true), Ok(promoted()));
    }

    #[test]
    fn a_publisher_that_was_taken_for_dead_hears_of_it_when_it_is_back() {
        let publisher = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = mirroring(&publisher);
        let first = state.superseding(Reason::PublisherDead).unwrap();
        state.opened(Ok(promoted()));
        // It takes the question, and says nothing.
        drop(asked(&publisher));
        assert_eq!(first.recv(), Ok(()));
        let mut stream = asked(&publisher);
        let (_, body) = posted(&stream);
        assert_eq!(body["superseded_by"], 8);
        let ends = json!({ "state": "ends", "channels": [] }).to_string();
        let len = ends.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{ends}"
        )
        .unwrap();
        drop(stream);
        // Told once is enough: the thread has let go of what it holds.
        let began = Instant::now();
        while Arc::weak_count(&state) > 0 {
            assert!(began.elapsed() < Duration::from_secs(120), "it goes on");
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn nobody_waits_for_a_standby_that_has_ended() {
        let publisher = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = mirroring(&publisher);
        let first = state.superseding(Reason::Forced).unwrap();
        *state.phase() = Phase::Asking;
        state.ended();
        assert!(first.recv().is_err());
        let why = state.order(Reason::Forced).unwrap_err();
        assert!(why.contains("ended"), "{why}");
        let why = state.promote(false).unwrap_err();
        assert!(why.contains("ended"), "{why}");
    }

    #[test]
    fn nobody_is_superseded_by_a_standby_that_could_not_open() {
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
        assert_eq!(state.promote(true), Err("no".into()));
        assert!(
            state
                .superseding(Reason::HandedOver)
                .unwrap()
                .recv()
                .is_err()
        );
    }
}
