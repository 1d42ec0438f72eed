//! Moves data between the sockets and the core. It makes no decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use tickcast_journal::{Journaled, Note};
use tickcast_reliability::control::Start;
use tickcast_reliability::control::{ChannelOffer, RejectCode};
use tickcast_reliability::delivery::{Item, LossCause};
use tickcast_reliability::session::{Action, SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_transport::ReceiveError;

use super::channel_input::ChannelInput;
use super::connections::Connections;
use super::problems::Problems;
use crate::config::{Parts, RepairTransport, SubscriberBuilder, nanos};
use crate::dispatch::Sink;
use crate::error::SubscribeError;
use crate::observe::clock::PublisherClock;
use crate::observe::polled::Polled;
use crate::observe::reports::Reports;
use crate::sync::wake::Waker;

/// The connections are served at this interval while nothing is missing, and with every poll otherwise.
const CONNECTIONS_INTERVAL: Nanos = Nanos::from_us(100);
/// The delay before the next attempt to join a group.
const LISTEN_RETRY: Nanos = Nanos::from_secs(1);
/// An interval between two polls above this limit is written to the journal.
const STALL: Nanos = Nanos::from_ms(1);

pub(crate) struct Driver {
    pub(crate) builder: SubscriberBuilder,
    pub(crate) core: Journaled<SubscriberCore>,
    pub(crate) inputs: Vec<ChannelInput>,
    /// The problems that prevent the subscriber from working as configured.
    pub(crate) problems: Problems,
    pub(crate) waker: Waker,
    /// Whether the publisher may write to our memory, so that each poll checks that memory.
    has_inboxes: bool,
    /// Whether the receivers know that a thread waits.
    waited: bool,
    /// The deadline of the first welcome. After it, a missing welcome is a problem.
    join_by: Nanos,
    connections: Connections,
    /// Offers whose groups could not be joined, each with the time of the next attempt.
    pending: Vec<(ChannelOffer, Nanos)>,
    connections_at: Nanos,
    /// The core's next deadline, as of the last service of the connections.
    due_at: Nanos,
    /// The time of the last poll; maintained only with a journal.
    polled_at: Nanos,
    /// Channels to rejoin with the next poll.
    rejoins: Vec<(ChannelId, Start)>,
}

impl Driver {
    pub(crate) fn new(
        builder: SubscriberBuilder,
        Parts {
            settings,
            addresses,
            waker,
            journal,
            ..
        }: Parts,
        now: Nanos,
    ) -> Self {
        let mut core = Journaled::new(SubscriberCore::new(settings, now));
        if let Some(journal) = journal {
            core.keep_journal(journal);
        }
        let verbs = builder.repair == RepairTransport::Auto && Connections::HAS_VERBS;
        let on = &mut |_: Item<'_>| ();
        core.handle(now, SubscriberInput::UseNackPath(verbs), on);
        core.handle(now, SubscriberInput::UseReadPath(verbs), on);
        let connections = Connections::new(addresses, &builder);
        Self {
            waker,
            has_inboxes: false,
            waited: false,
            join_by: (builder.join_limit).map_or(Nanos::MAX, |limit| now.after(nanos(limit))),
            builder,
            core,
            inputs: Vec::new(),
            problems: Problems::default(),
            connections,
            pending: Vec::new(),
            connections_at: now,
            due_at: now,
            polled_at: now,
            rejoins: Vec::new(),
        }
    }

    /// Returns the offset of the publisher's clock, for other threads too.
    pub(crate) const fn clock(&self) -> &Arc<PublisherClock> {
        self.connections.clock()
    }

    /// Returns the reports of latency, which another thread makes.
    pub(crate) const fn reports(&self) -> &Arc<Reports> {
        self.connections.reports()
    }

    /// Asks the publisher to write its sealed datagrams to our memory, if both sides support that.
    pub(crate) fn use_inboxes(&mut self, now: Nanos) {
        self.has_inboxes = self.builder.repair == RepairTransport::Auto && Connections::HAS_VERBS;
        let inboxes = SubscriberInput::UseInboxes(self.has_inboxes);
        self.core.handle(now, inboxes, &mut |_: Item<'_>| ());
    }

    /// Processes the datagrams that the publisher has written to our memory. Returns their number.
    fn take_written(&mut self, now: Nanos, sink: &mut dyn Sink) -> usize {
        let mut count = 0;
        while let Some(channel) = self.core.poll_written() {
            self.core
                .handle(now, SubscriberInput::Written(channel), sink);
            count += 1;
        }
        count
    }

    /// Receives datagrams, and serves connections and timers if they are due.
    #[inline]
    pub(crate) fn poll(&mut self, now: Nanos, sink: &mut impl Sink) -> Polled {
        let mut polled = Polled::default();
        if !self.rejoins.is_empty() {
            self.begin_rejoins(now, sink);
        }
        if self.core.is_journaled() {
            self.note_stall(now);
        }
        if self.waker.is_used() != self.waited {
            self.waited = self.waker.is_used();
            let waited = self.waited;
            (self.inputs.iter_mut()).for_each(|input| input.set_waited(waited));
        }
        for input in &mut self.inputs {
            match input.poll(now, &mut self.core, sink) {
                Ok(count) => {
                    polled.datagrams += count;
                    if count > 0 && !self.problems.receiving.is_empty() {
                        self.problems.receiving.remove(&input.channel);
                    }
                }
                Err(error) => {
                    failed_to_receive(&mut self.problems.receiving, input.channel, error);
                }
            }
        }
        if self.has_inboxes {
            polled.datagrams += self.take_written(now, sink);
        }
        let due = now >= self.connections_at || now >= self.due_at;
        // A thread that woke without a datagram was woken by a connection or the timer.
        let woken = self.waker.is_used() && polled.datagrams == 0;
        if due || woken || self.core.receivers().any(|receiver| receiver.is_waiting()) {
            polled.messages = self.serve(now, sink);
            polled.served = true;
        }
        polled
    }

    /// Serves connections and timers. Returns the number of messages received.
    fn serve(&mut self, now: Nanos, sink: &mut dyn Sink) -> usize {
        let messages = self.connections.receive(now, &mut self.core, sink);
        self.core.handle(now, SubscriberInput::Timeout, sink);
        // Join the groups before the publisher learns that we follow.
        self.act(now, sink);
        self.connections.transmit(now, &mut self.core, sink);
        self.act(now, sink);
        self.connections_at = now.after(CONNECTIONS_INTERVAL);
        self.due_at = self.core.poll_timeout();
        let denied = self.connections.denied();
        self.problems.connecting = denied.map(|errno| SubscribeError::Unconnected {
            source: errno.into(),
        });
        if now >= self.join_by {
            self.check_join_limit();
        }
        let watched = self.connections.watch(&self.waker);
        let failed = watched.err();
        self.problems.descriptor = failed.map(|source| SubscribeError::Descriptor { source });
        sink.served(&self.core);
        messages
    }

    /// Returns whether a channel is rejoining, or rejoins with the next poll.
    pub(crate) fn is_rejoining(&self, channel: ChannelId) -> bool {
        self.core.index_of(channel).is_none() || self.rejoins.iter().any(|(it, _)| *it == channel)
    }

    /// Rejoins a channel with the next poll. That poll's closure receives the losses that follow from it.
    pub(crate) fn rejoin(&mut self, channel: ChannelId, start: Start) {
        self.rejoins.push((channel, start));
    }

    #[cold]
    fn begin_rejoins(&mut self, now: Nanos, sink: &mut dyn Sink) {
        for (channel, start) in std::mem::take(&mut self.rejoins) {
            self.core
                .handle(now, SubscriberInput::Rejoin { channel, start }, sink);
        }
        // Force this poll to serve connections and timers.
        self.connections_at = now;
    }

    /// Leaves: declares open gaps lost and notifies the publisher.
    pub(crate) fn leave(&mut self, now: Nanos, sink: &mut dyn Sink) {
        self.core
            .handle(now, SubscriberInput::Leave(LossCause::Left), sink);
        self.connections.transmit(now, &mut self.core, sink);
        sink.served(&self.core);
    }

    /// Writes a long interval between polls to the journal, unless a thread waits to be woken.
    fn note_stall(&mut self, now: Nanos) {
        let span = now.since(self.polled_at);
        if span > STALL && !self.waker.is_used() {
            self.core.note(now, Note::Stall(span));
        }
        self.polled_at = now;
    }

    /// Returns the time of the next work that needs no input.
    pub(crate) fn due(&self) -> Nanos {
        if !self.rejoins.is_empty() {
            return Nanos::ZERO;
        }
        let pending = self.pending.iter().map(|(_, at)| *at);
        let held_back = self.inputs.iter().filter_map(ChannelInput::next_due);
        // Buffered input makes no descriptor readable, so it is due at once.
        let input = self.connections.holds_input().then_some(Nanos::ZERO);
        let others = pending.chain(held_back).chain(input).chain([self.join_by]);
        others.fold(self.core.poll_timeout(), Nanos::min)
    }

    /// Sets the problem that no publisher has welcomed us within the limit. Runs once.
    #[cold]
    fn check_join_limit(&mut self) {
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

    /// Executes the actions of the core.
    #[inline]
    fn act(&mut self, now: Nanos, sink: &mut dyn Sink) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Connect(path) => self.connections.connect(now, path, &mut self.core, sink),
                Action::Disconnect(path) => self.connections.disconnect(path),
                Action::Listen(offer) => {
                    sink.offered(now, &mut self.core, &offer);
                    let core = &self.core;
                    self.problems.welcomed(|it| core.index_of(it).is_some());
                    self.listen(now, offer, sink);
                }
                Action::Rejoin(channel) => {
                    let input = self.inputs.iter_mut().find(|l| l.channel == channel);
                    match input.map(ChannelInput::rejoin) {
                        Some(Err(error)) => {
                            failed_to_receive(&mut self.problems.listening, channel, error);
                        }
                        // Success says nothing about a newer offer, which is still pending.
                        Some(Ok(()))
                            if !self.pending.iter().any(|(it, _)| it.channel == channel) =>
                        {
                            self.problems.listening.remove(&channel);
                        }
                        _ => {}
                    }
                }
                Action::Inbox(channel, wanted) => self.connections.make_inbox(channel, wanted),
                Action::Rejected(rejected) if rejected.code == RejectCode::ShuttingDown => {
                    tracing::info!("the publisher is shutting down");
                }
                Action::Rejected(rejected) => {
                    let wait = rejected.wait();
                    let (code, text) = (rejected.code, rejected.text);
                    tracing::warn!(%code, %wait, "rejected: {text:?}");
                    self.problems.joining = Some(SubscribeError::Rejected { code, text });
                }
            }
        }
        while let Some(at) = self.pending.iter().position(|(_, at)| now >= *at) {
            let (offer, _) = self.pending.swap_remove(at);
            self.listen(now, offer, sink);
        }
        for input in &mut self.inputs {
            if let Some(receiver) = self.core.receiver(input.channel) {
                input.show(receiver.counters());
                if let Some(report) = input.lost_multicast(receiver.counters()) {
                    tracing::warn!(channel = %input.channel, "{report}");
                }
            }
            if self.core.is_journaled() {
                input.note(now, &mut self.core);
            }
        }
    }

    #[cold]
    fn listen(&mut self, now: Nanos, offer: ChannelOffer, sink: &mut dyn Sink) {
        let Some(at) = self.core.index_of(offer.channel) else {
            return;
        };
        // Drop inputs of channel numbers that are not followed any more.
        let core = &self.core;
        self.inputs.retain(|it| core.index_of(it.channel).is_some());
        let before = self.pending.len();
        self.pending
            .retain(|(pending, _)| pending.channel != offer.channel);
        let channel = &self.builder.channels[at];
        let via = self.connections.local_address();
        let current = self.inputs.iter().position(|l| l.channel == offer.channel);
        if current.is_some_and(|at| self.inputs[at].fits(&self.builder, channel, &offer, via)) {
            if self.pending.len() < before {
                // The failed offer is obsolete, so its problem is over.
                self.problems.listening.remove(&offer.channel);
            }
            return;
        }
        let exclusive = current.filter(|at| self.inputs[*at].is_exclusive());
        let current = if let Some(at) = exclusive {
            self.inputs.remove(at);
            None
        } else {
            current
        };
        let opened = ChannelInput::open(&self.builder, channel, &offer, via);
        let opened = opened.and_then(|mut input| {
            input.set_waited(self.waited);
            let watched = input.watch(&self.waker);
            watched.map_err(|source| SubscribeError::Descriptor { source })?;
            Ok(input)
        });
        match opened {
            Ok(input) => {
                tracing::info!(channel = %offer.name, epoch = %offer.epoch, "listening");
                self.problems.listens(offer.channel);
                self.core.handle(
                    now,
                    SubscriberInput::Listening {
                        channel: offer.channel,
                        lines: input.lines() as u8,
                    },
                    sink,
                );
                match current {
                    Some(at) => self.inputs[at] = input,
                    None => self.inputs.push(input),
                }
            }
            Err(error) => {
                let text = error.to_string();
                let before = self.problems.listening.insert(offer.channel, error);
                // Each retry may fail again, so log only a new reason.
                if before.is_none_or(|before| before.to_string() != text) {
                    tracing::error!(channel = %offer.name, "can't receive the channel: {text}");
                }
                self.pending.push((offer, now.after(LISTEN_RETRY)));
            }
        }
    }
}

/// Sets the problem of a failed receiver. Every poll may find the failure again, but the log gets one line.
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
