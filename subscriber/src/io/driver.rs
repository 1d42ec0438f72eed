//! Moves a subscriber along: sockets to core, core to sockets. Decides nothing itself.

use std::collections::BTreeMap;

use tickcast_journal::{JournaledCore, Note};
use tickcast_reliability::control::{ChannelOffer, RejectCode};
use tickcast_reliability::session::Action;
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::ReceiveError;

use super::channel_input::Listening;
use super::connections::Session;
use super::problems::Problems;
use crate::config::{Parts, Repair, SubscriberBuilder};
use crate::dispatch::Sink;
use crate::error::SubscribeError;
use crate::observe::polled::Polled;
use crate::sync::wake::Waker;

/// The connections are looked at this often while nothing is missing; at once when something is.
const SESSION_EVERY: Nanos = Nanos::from_us(100);
/// A group that could not be joined is tried again after this.
const LISTEN_RETRY: Nanos = Nanos::from_secs(1);
/// Nobody polled for so long: that is worth a note in the record.
const STALL: Nanos = Nanos::from_ms(1);

pub(crate) struct Driver {
    pub(crate) builder: SubscriberBuilder,
    pub(crate) core: JournaledCore,
    pub(crate) listening: Vec<Listening>,
    /// What keeps it from working as configured.
    pub(crate) problems: Problems,
    pub(crate) waker: Waker,
    /// Whether the publisher may write to memory of ours: that is looked at with each poll.
    has_inboxes: bool,
    /// Whether the receivers know that somebody waits.
    waited: bool,
    /// When it counts as a problem that nobody has welcomed us.
    join_by: Nanos,
    session: Session,
    /// Offers whose groups could not be joined, and when to try again.
    pending: Vec<(ChannelOffer, Nanos)>,
    session_at: Nanos,
    /// The core's next deadline as of the last look.
    due_at: Nanos,
    /// When it was polled last, where that is recorded.
    polled_at: Nanos,
}

impl Driver {
    pub(crate) fn new(
        builder: SubscriberBuilder,
        Parts {
            settings,
            addresses,
            waker,
            recorder,
        }: Parts,
        now: Nanos,
    ) -> Self {
        let limit = builder.join_limit;
        let limit = limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        let mut core = JournaledCore::new(settings, now);
        if let Some(recorder) = recorder {
            core.record(recorder);
        }
        let verbs = builder.repair == Repair::Auto && Session::HAS_VERBS;
        core.use_nack_path(verbs);
        core.use_read_path(verbs);
        let session = Session::new(addresses, &builder.interfaces);
        Self {
            waker,
            has_inboxes: false,
            waited: false,
            join_by: limit.map_or(Nanos::MAX, |limit| now.after(Nanos(limit))),
            builder,
            core,
            listening: Vec::new(),
            problems: Problems::default(),
            session,
            pending: Vec::new(),
            session_at: now,
            due_at: now,
            polled_at: now,
        }
    }

    /// Has the publisher write what it seals to memory of ours, where both sides can.
    pub(crate) fn use_inboxes(&mut self) {
        self.has_inboxes = self.builder.repair == Repair::Auto && Session::HAS_VERBS;
        self.core.use_inboxes(self.has_inboxes);
    }

    /// Takes what the publisher has written. How many datagrams there were.
    fn take_written(&mut self, now: Nanos, sink: &mut impl Sink) -> usize {
        let mut count = 0;
        while let Some(channel) = self.core.look_for_written() {
            self.core.handle_written(now, channel, sink);
            count += 1;
        }
        count
    }

    #[inline]
    pub(crate) fn poll(&mut self, now: Nanos, sink: &mut impl Sink) -> Polled {
        let mut polled = Polled::default();
        if self.core.recorder().is_some() {
            self.note_stall(now);
        }
        if self.waker.is_used() != self.waited {
            self.waited = self.waker.is_used();
            let waited = self.waited;
            (self.listening.iter_mut()).for_each(|listening| listening.set_waited(waited));
        }
        for listening in &mut self.listening {
            match listening.poll(now, &mut self.core, sink) {
                Ok(count) => {
                    polled.datagrams += count;
                    if count > 0 && !self.problems.receiving.is_empty() {
                        self.problems.receiving.remove(&listening.channel);
                    }
                }
                Err(error) => {
                    failed_to_receive(&mut self.problems.receiving, listening.channel, error);
                }
            }
        }
        if self.has_inboxes {
            polled.datagrams += self.take_written(now, sink);
        }
        let due = now >= self.session_at || now >= self.due_at;
        // Who was woken although no datagram came was woken by a connection or the timer.
        let woken = self.waker.is_used() && polled.datagrams == 0;
        if due || woken || self.core.receivers().any(|receiver| receiver.is_waiting()) {
            polled.messages = self.session.receive(now, &mut self.core, sink);
            self.core.handle_timeout(now, sink);
            // Groups are joined before the publisher is told that we follow.
            self.act(now, sink);
            self.session.transmit(now, &mut self.core, sink);
            self.act(now, sink);
            self.session_at = now.after(SESSION_EVERY);
            self.due_at = self.core.poll_timeout();
            polled.looked = true;
            let denied = self.session.denied();
            self.problems.connecting = denied.map(|errno| SubscribeError::Unconnected {
                source: errno.into(),
            });
            if now >= self.join_by {
                self.judge_joining();
            }
            let watched = self.session.watch(&self.waker);
            let failed = watched.err();
            self.problems.descriptor = failed.map(|source| SubscribeError::Descriptor { source });
        }
        polled
    }

    /// Notes that nobody polled for long, but where somebody waits to be woken.
    fn note_stall(&mut self, now: Nanos) {
        let span = now.since(self.polled_at);
        if span > STALL && !self.waker.is_used() {
            self.core.note(now, Note::Stall(span));
        }
        self.polled_at = now;
    }

    /// Looks at connections and timers with the next poll.
    pub(crate) const fn look_soon(&mut self, now: Nanos) {
        self.session_at = now;
    }

    /// When there is something to do although nothing comes.
    pub(crate) fn due(&self) -> Nanos {
        let pending = self.pending.iter().map(|(_, at)| *at);
        let held_back = self.listening.iter().filter_map(Listening::next_due);
        // What no descriptor tells of any more must not wait for one.
        let input = self.session.holds_input().then_some(Nanos::ZERO);
        let others = pending.chain(held_back).chain(input).chain([self.join_by]);
        others.fold(self.core.poll_timeout(), Nanos::min)
    }

    /// Says that nobody has welcomed us within the limit, once.
    #[cold]
    fn judge_joining(&mut self) {
        self.join_by = Nanos::MAX;
        if self.core.entries().all(|receiver| receiver.is_some()) || self.problems.first().is_some()
        {
            return;
        }
        let error = SubscribeError::NotJoined {
            endpoints: self.builder.publishers.to_string(),
            waited_ms: self.builder.join_limit.unwrap_or_default().as_millis() as u64,
        };
        tracing::error!("{error}");
        self.problems.joining = Some(error);
    }

    /// Sends what the core has to say, now.
    pub(crate) fn transmit(&mut self, now: Nanos, sink: &mut impl Sink) {
        self.session.transmit(now, &mut self.core, sink);
    }

    /// Does what the core wants done.
    #[inline]
    fn act(&mut self, now: Nanos, sink: &mut impl Sink) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Connect(path) => self.session.connect(now, path, &mut self.core, sink),
                Action::Disconnect(path) => self.session.disconnect(path),
                Action::Listen(offer) => {
                    sink.offered(&mut self.core, &offer);
                    let core = &self.core;
                    self.problems.welcomed(|it| core.index_of(it).is_some());
                    self.listen(now, offer);
                }
                Action::Rejoin(channel) => {
                    let listening = self.listening.iter_mut().find(|l| l.channel == channel);
                    match listening.map(Listening::rejoin) {
                        Some(Err(error)) => {
                            failed_to_receive(&mut self.problems.listening, channel, error);
                        }
                        // Of a newer offer it is not known yet.
                        Some(Ok(()))
                            if !self.pending.iter().any(|(it, _)| it.channel == channel) =>
                        {
                            self.problems.listening.remove(&channel);
                        }
                        _ => {}
                    }
                }
                Action::Inbox(channel, wanted) => self.session.make_inbox(channel, wanted),
                Action::Rejected(rejected) if rejected.code == RejectCode::ShuttingDown => {
                    tracing::info!("the publisher is shutting down");
                }
                Action::Rejected(rejected) => {
                    tracing::warn!(code = %rejected.code, "rejected: {}", rejected.text);
                    let (code, text) = (rejected.code, rejected.text);
                    self.problems.joining = Some(SubscribeError::Rejected { code, text });
                }
            }
        }
        while let Some(at) = self.pending.iter().position(|(_, at)| now >= *at) {
            let (offer, _) = self.pending.swap_remove(at);
            self.listen(now, offer);
        }
        for listening in &mut self.listening {
            if let Some(receiver) = self.core.receiver(listening.channel) {
                listening.show(receiver.counters());
            }
            if self.core.recorder().is_some() {
                listening.note(now, &mut self.core);
            }
        }
    }

    #[cold]
    fn listen(&mut self, now: Nanos, offer: ChannelOffer) {
        let Some(at) = self.core.index_of(offer.channel) else {
            return;
        };
        // One that has another number now is listened to under that.
        let core = &self.core;
        self.listening
            .retain(|it| core.index_of(it.channel).is_some());
        let before = self.pending.len();
        self.pending
            .retain(|(pending, _)| pending.channel != offer.channel);
        let channel = &self.builder.channels[at];
        let current = self
            .listening
            .iter()
            .position(|l| l.channel == offer.channel);
        if current.is_some_and(|at| self.listening[at].fits(&self.builder, channel, &offer)) {
            if self.pending.len() < before {
                // What failed was an offer that holds no longer.
                self.problems.listening.remove(&offer.channel);
            }
            return;
        }
        let opened = Listening::open(&self.builder, channel, &offer).and_then(|mut listening| {
            listening.set_waited(self.waited);
            let watched = listening.watch(&self.waker);
            watched.map_err(|source| SubscribeError::Descriptor { source })?;
            Ok(listening)
        });
        match opened {
            Ok(listening) => {
                tracing::info!(channel = %offer.name, epoch = %offer.epoch, "listening");
                self.problems.listens(offer.channel);
                self.core
                    .handle_listening(now, offer.channel, listening.lines());
                match current {
                    Some(at) => self.listening[at] = listening,
                    None => self.listening.push(listening),
                }
            }
            Err(error) => {
                let text = error.to_string();
                let before = self.problems.listening.insert(offer.channel, error);
                // It is tried again and again, and told when it is another reason.
                if before.is_none_or(|before| before.to_string() != text) {
                    tracing::error!(channel = %offer.name, "cannot listen: {text}");
                }
                self.pending.push((offer, now.after(LISTEN_RETRY)));
            }
        }
    }
}

/// Notes a failure that every poll may find again, and that is told in the log once.
#[cold]
fn failed_to_receive(
    problems: &mut BTreeMap<ChannelId, SubscribeError>,
    of: ChannelId,
    source: ReceiveError,
) {
    if !problems.contains_key(&of) {
        tracing::error!(channel = %of, "receiving failed: {source}");
    }
    let channel = of.to_string();
    problems.insert(of, SubscribeError::Receive { channel, source });
}
