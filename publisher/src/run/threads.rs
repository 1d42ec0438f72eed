//! The threads between the inputs and the wire: one for each input and one for publishing, or one
//! for all. Handlers in the process have a queue to the same publish thread, which sends heartbeats
//! while they are silent. When the inputs end, or a stop is requested, their remaining messages are
//! published, then END.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::Receiver;
use tickcast_feeds::source::{Incident, Sink};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Now, SourcePosition};
use tickcast_transport::host::idle::Idle;
use tickcast_transport::host::pin::Core;

use crate::error::PublisherError;
use crate::ingest::queue::{Intake, QueueReceiver, QueueSender, SourceItem, Taken, ingest_queue};
use crate::ingest::{Input, Polled};
use crate::publish::PublishStage;
use crate::run::commands::Commands;
use crate::standby::hand_over::Step;
use crate::state::Shared;
use crate::state::hearing::Silence;
use crate::state::source_loss::SourceLoss;
use crate::state::thread::{StopOnFailure, now, spawn};

/// Batches taken from one source before the next source's turn and the next send.
const BATCHES_A_ROUND: usize = 4;
/// Maximum number of batches of a queue with memory from the start (some 15 KiB each).
const READY_MAX: usize = 4_096;

/// The feed threads, and the receivers of their items, in the order of the inputs.
pub(crate) type Feeds = (
    Vec<QueueReceiver>,
    Vec<JoinHandle<Result<(), PublisherError>>>,
);

/// A handler that publishes from now on: its channel, and the receiver of its messages.
pub(crate) type NewHandler = (usize, QueueReceiver);

/// Starts a feed thread for each input, and ends the session if one panics. The receivers give the
/// items, in the order of the inputs.
///
/// # Errors
/// Returns [`PublisherError::System`] if a thread can't be started.
pub(crate) fn start_feeds(
    inputs: Vec<Input>,
    shared: &Arc<Shared>,
    queue_batches: usize,
    idle: Idle,
    core: Option<Core>,
) -> Result<Feeds, PublisherError> {
    let (mut receivers, mut threads) = (Vec::new(), Vec::new());
    for input in inputs {
        let ready = (queue_batches + 1).min(READY_MAX);
        let (sender, receiver) = ingest_queue(queue_batches, ready, input.is_live());
        let (name, shared) = (format!("feed-{}", input.shared().source), shared.clone());
        let guard = StopOnFailure::new(shared.clone());
        threads.push(spawn(&name, core, move || {
            feed(input, sender, &shared, idle);
            guard.of(Ok(()))
        })?);
        receivers.push(receiver);
    }
    Ok((receivers, threads))
}

/// Runs one input until it ends or a stop is requested. An input that fails has ended, with an
/// error that is logged and counted; the others continue.
fn feed(mut input: Input, mut queue: QueueSender, shared: &Shared, mut idle: Idle) {
    let counters = input.shared().clone();
    while !shared.is_stopping() && !queue.is_closed() {
        match input.poll(now(), shared, &mut queue) {
            Ok(Polled::Worked) => queue.offer(),
            Ok(Polled::Idle) => {
                queue.flush();
                idle.idle(false);
            }
            Ok(Polled::Ended) => break,
            Err(error) => {
                tracing::error!(source = counters.source.0, "{error}");
                break;
            }
        }
        counters
            .counters
            .source_overflow_messages
            .set(queue.lost_messages());
    }
    if shared.is_stopping() {
        input.stop(&mut queue);
    }
    counters
        .counters
        .source_overflow_messages
        .set(queue.finish());
    tracing::info!(
        source = counters.source.0,
        messages = counters.counters.source_messages.get(),
        records = counters.counters.source_records.get(),
        "the input has ended"
    );
}

/// An origin of messages to publish.
struct Origin {
    /// Index of the source.
    source: usize,
    queue: QueueReceiver,
    /// A handler does not end by itself: its queue is closed when the session ends.
    is_handler: bool,
    ended: bool,
}

impl Origin {
    /// Publishes some of the waiting items. Returns whether there were any, and whether the origin
    /// has ended.
    fn publish_some(&mut self, to: &mut PublishStage, batches: usize) -> (bool, bool) {
        let mut worked = false;
        for _ in 0..batches {
            match self.queue.take() {
                Taken::Batch(batch) => {
                    worked = true;
                    let now = now();
                    for item in batch.items() {
                        to.take(self.source, &item, now);
                    }
                    self.queue.give_back(batch);
                }
                Taken::Nothing => return (worked, true),
                Taken::Ended => {
                    self.ended = true;
                    to.source_ended(self.source, now());
                    return (worked, true);
                }
            }
        }
        (worked, false)
    }
}

/// Publishes the items of feed threads and of arriving handlers, until the session has ended and
/// every subscriber has it.
///
/// # Errors
/// Returns [`PublisherError`] when a channel or fan-out can't continue.
pub(crate) fn publish(
    queues: Vec<QueueReceiver>,
    new_handlers: Option<Receiver<NewHandler>>,
    mut to: PublishStage,
    shared: &Shared,
    mut commands: Commands,
    mut idle: Idle,
    with_inputs: bool,
) -> Result<(), PublisherError> {
    let feeds = queues.len();
    let mut origins: Vec<Origin> = (queues.into_iter().enumerate())
        .map(|(source, queue)| Origin {
            source,
            queue,
            is_handler: false,
            ended: false,
        })
        .collect();
    let mut is_closing = false;
    loop {
        shared.rounds.published();
        if is_handed_over(&mut to, shared, &mut commands, &mut idle)? {
            return finish(to, shared, commands, idle);
        }
        // Read before the arrivals: a handler that arrives later finds the session ended.
        let is_stopping = shared.is_stopping();
        if let Some(new_handlers) = &new_handlers {
            for (channel, queue) in new_handlers.try_iter() {
                welcome(&mut origins, &mut to, feeds + channel, queue);
            }
        }
        if is_stopping && !is_closing {
            is_closing = true;
            origins
                .iter()
                .filter(|o| o.is_handler)
                .for_each(|o| o.queue.close());
        }
        let mut worked = false;
        let mut drained = true;
        for origin in origins.iter_mut().filter(|origin| !origin.ended) {
            let (some, all) = origin.publish_some(&mut to, BATCHES_A_ROUND);
            worked |= some;
            drained &= all;
        }
        let now = now();
        if drained {
            to.flush(now);
        }
        worked |= to.drive(now)?;
        let all_ended = origins.iter().all(|origin| origin.ended);
        if all_ended && ((with_inputs && new_handlers.is_none()) || is_closing) {
            return finish(to, shared, commands, idle);
        }
        idle.idle(worked);
    }
}

/// Executes commands. Returns whether a standby has taken over. While sealing rests during a
/// hand-over, sealed datagrams and heartbeats still go out.
#[inline]
fn is_handed_over(
    to: &mut PublishStage,
    shared: &Shared,
    commands: &mut Commands,
    idle: &mut Idle,
) -> Result<bool, PublisherError> {
    commands.poll(shared);
    commands.apply_change(to, shared);
    while commands.is_handing_over() {
        shared.rounds.published();
        let now = now();
        to.flush(now);
        to.drive(now)?;
        match commands.step(shared, || to.position()) {
            Step::GoOn => break,
            Step::Rest => idle.idle(false),
            Step::End => return Ok(true),
        }
        commands.poll(shared);
    }
    Ok(false)
}

/// Adds a handler. A previous handler of the channel has left: its messages come first.
#[cold]
fn welcome(origins: &mut Vec<Origin>, to: &mut PublishStage, source: usize, queue: QueueReceiver) {
    for before in origins
        .iter_mut()
        .filter(|o| o.source == source && !o.ended)
    {
        while !before.ended {
            before.publish_some(to, BATCHES_A_ROUND);
        }
    }
    origins.retain(|origin| origin.source != source);
    origins.push(Origin {
        source,
        queue,
        is_handler: true,
        ended: false,
    });
}

/// Feeds and publishes on the calling thread.
///
/// # Errors
/// Returns the errors of [`publish`].
pub(crate) fn inline(
    mut inputs: Vec<Input>,
    mut to: PublishStage,
    shared: &Shared,
    mut commands: Commands,
    mut idle: Idle,
    with_inputs: bool,
) -> Result<(), PublisherError> {
    let mut ended = vec![false; inputs.len()];
    loop {
        shared.rounds.published();
        if is_handed_over(&mut to, shared, &mut commands, &mut idle)? {
            return finish(to, shared, commands, idle);
        }
        let mut worked = false;
        for (index, input) in inputs.iter_mut().enumerate() {
            if ended[index] {
                continue;
            }
            let now = now();
            let mut sink = Direct {
                to: &mut to,
                index,
                now,
            };
            match input.poll(now, shared, &mut sink) {
                Ok(Polled::Worked) => worked = true,
                Ok(Polled::Idle) => {}
                Ok(Polled::Ended) => ended[index] = true,
                Err(error) => {
                    tracing::error!(source = input.shared().source.0, "{error}");
                    ended[index] = true;
                }
            }
            if ended[index] {
                to.source_ended(index, now);
            }
        }
        let now = now();
        to.flush(now);
        worked |= to.drive(now)?;
        let inputs_ended = ended.iter().all(|ended| *ended);
        if shared.is_stopping() || (inputs_ended && with_inputs) {
            return finish(to, shared, commands, idle);
        }
        idle.idle(worked);
    }
}

/// Publishes at once, without a queue.
struct Direct<'a> {
    to: &'a mut PublishStage,
    index: usize,
    now: Now,
}

impl Sink for Direct<'_> {
    #[inline]
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        let item = SourceItem::Message(position, records.into());
        self.to.take(self.index, &item, self.now);
    }

    fn incident(&mut self, incident: Incident) {
        if let Incident::Gap { from, missing } = incident {
            return self.lost(SourceLoss::gap(from, missing));
        }
        self.to
            .take(self.index, &SourceItem::Incident(incident), self.now);
    }
}

impl Intake for Direct<'_> {
    fn lost(&mut self, loss: SourceLoss) {
        self.to.take(self.index, &SourceItem::Lost(&loss), self.now);
    }

    fn silence(&mut self, silence: Silence) {
        self.to
            .take(self.index, &SourceItem::Silence(silence), self.now);
    }
}

/// Ends the session, then sends heartbeats and unsent datagrams until every subscriber has END, or
/// the linger time is over. An abandoned session gets no END: sealed datagrams go out as far as the
/// transports accept them.
pub(crate) fn finish(
    mut to: PublishStage,
    shared: &Shared,
    mut commands: Commands,
    mut idle: Idle,
) -> Result<(), PublisherError> {
    let began = now();
    if shared.is_abandoned() {
        to.show_digests();
        to.stop(began.monotonic);
        return Ok(());
    }
    to.end(began)?;
    to.drive(began)?;
    shared.set_ended();
    tracing::info!("the session has ended; waiting for subscribers to reach its end");
    let until = began.monotonic.after(shared.linger());
    loop {
        shared.rounds.published();
        commands.poll(shared);
        let now = now();
        let worked = to.drive(now)?;
        let all_reached = shared.have_all_reached_end();
        if all_reached || now.monotonic >= until {
            let short = shared.service.subscribers_short_of_end.get();
            if !all_reached && short > 0 {
                tracing::warn!(
                    subscribers = short,
                    "the session is over, and subscribers have not reached its end; raise \
                     linger_ms to wait longer"
                );
            }
            to.stop(now.monotonic);
            return Ok(());
        }
        if !worked && !matches!(idle, Idle::Spin) {
            std::thread::sleep(Duration::from_micros(20));
        }
        idle.idle(worked);
    }
}
