//! The threads between the inputs and the wire: each input has one and publishing another, or one
//! thread does all. When the inputs have ended, or were told to stop, what they told is published
//! to the last message, then END.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use tickcast_feeds::source::{Incident, Sink};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::units::{Nanos, Now, SourcePosition};
use tickcast_transport::clock::{Clock, SystemClock};
use tickcast_transport::idle::Idle;
use tickcast_transport::pin::{Core, pin_to};

use crate::error::PublisherError;
use crate::hop::{HopReceiver, HopSender, Item, Taken, hop};
use crate::input::{Input, Polled};
use crate::publish::Publishing;
use crate::shared::Shared;

/// Batches taken from one source before the others have their turn and what is sealed is sent.
const BATCHES_A_ROUND: usize = 4;

/// The time now, on both clocks.
#[must_use]
pub(crate) fn now() -> Now {
    let clock = SystemClock;
    Now {
        monotonic: clock.now(),
        utc: clock.utc(),
    }
}

/// How a session ends.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    /// Whether it ends when the inputs have.
    pub with_inputs: bool,
    /// How long to wait for subscribers that have not reached END.
    pub linger: Nanos,
}

/// A thread of this publisher, and what came of it.
pub(crate) type Thread<T> = JoinHandle<Result<T, PublisherError>>;

/// The feed threads, and where what they tell comes out, in the order of the inputs.
pub type Feeds = (
    Vec<HopReceiver>,
    Vec<JoinHandle<Result<(), PublisherError>>>,
);

/// Starts a thread of this process under a name, on a core.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    core: Option<Core>,
    run: impl FnOnce() -> Result<T, PublisherError> + Send + 'static,
) -> Result<Thread<T>, PublisherError> {
    let thread = Builder::new().name(name.into()).spawn(move || {
        if let Some(core) = core {
            pin_to(core)?;
        }
        run()
    });
    thread.map_err(|source| PublisherError::System {
        what: "start a thread",
        source,
    })
}

/// Starts a feed thread for each input; what they tell comes out of the receivers, in the order
/// of the inputs.
///
/// # Errors
/// [`PublisherError::System`] when a thread can't be started.
pub fn start_feeds(
    inputs: Vec<Input>,
    shared: &Arc<Shared>,
    hop_batches: usize,
    idle: Idle,
    core: Option<Core>,
) -> Result<Feeds, PublisherError> {
    let (mut receivers, mut threads) = (Vec::new(), Vec::new());
    for input in inputs {
        let (sender, receiver) = hop(hop_batches, input.is_live());
        let (name, shared) = (format!("feed-{}", input.shared().source), shared.clone());
        threads.push(spawn(&name, core, move || {
            feed(input, sender, &shared, idle);
            Ok(())
        })?);
        receivers.push(receiver);
    }
    Ok((receivers, threads))
}

/// Runs one input until it ends or is told to stop. An input that fails has ended, with an error
/// that is logged and counted; the others go on.
fn feed(mut input: Input, mut hop: HopSender, shared: &Shared, mut idle: Idle) {
    let counters = input.shared().clone();
    while !shared.is_stopping() && !hop.is_closed() {
        match input.poll(now(), shared, &mut hop) {
            Ok(Polled::Worked) => hop.offer(),
            Ok(Polled::Idle) => {
                hop.flush();
                idle.idle(false);
            }
            Ok(Polled::Ended) => break,
            Err(error) => {
                tracing::error!(source = counters.source.0, "{error}");
                break;
            }
        }
        counters.counters.source_overflow_messages.set(hop.lost());
    }
    counters.counters.source_overflow_messages.set(hop.finish());
    tracing::info!(
        source = counters.source.0,
        messages = counters.counters.source_messages.get(),
        records = counters.counters.source_records.get(),
        "the input has ended"
    );
}

/// Publishes what the feed threads tell, until the session has ended and everyone has it.
///
/// # Errors
/// [`PublisherError`] when a channel or fan-out can't go on.
pub fn publish(
    receivers: &[HopReceiver],
    mut to: Publishing,
    shared: &Shared,
    mut idle: Idle,
    ending: Ending,
) -> Result<(), PublisherError> {
    let mut ended = vec![false; receivers.len()];
    loop {
        let mut worked = false;
        let mut drained = true;
        for (index, receiver) in receivers.iter().enumerate() {
            if ended[index] {
                continue;
            }
            for turn in 1..=BATCHES_A_ROUND {
                match receiver.take() {
                    Taken::Batch(batch) => {
                        worked = true;
                        let now = now();
                        for item in batch.items() {
                            to.take(index, &item, now);
                        }
                        receiver.give_back(batch);
                        drained &= turn < BATCHES_A_ROUND;
                    }
                    Taken::Nothing => break,
                    Taken::Ended => {
                        ended[index] = true;
                        break;
                    }
                }
            }
        }
        let now = now();
        if drained {
            to.flush(now);
        }
        worked |= to.drive(now)?;
        let inputs_ended = ended.iter().all(|ended| *ended);
        if inputs_ended && (ending.with_inputs || shared.is_stopping()) {
            return finish(to, shared, idle, ending);
        }
        idle.idle(worked);
    }
}

/// Feeds and publishes on the calling thread.
///
/// # Errors
/// As [`publish`].
pub fn inline(
    mut inputs: Vec<Input>,
    mut to: Publishing,
    shared: &Shared,
    mut idle: Idle,
    ending: Ending,
) -> Result<(), PublisherError> {
    let mut ended = vec![false; inputs.len()];
    loop {
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
        }
        let now = now();
        to.flush(now);
        worked |= to.drive(now)?;
        let inputs_ended = ended.iter().all(|ended| *ended);
        if shared.is_stopping() || (inputs_ended && ending.with_inputs) {
            return finish(to, shared, idle, ending);
        }
        idle.idle(worked);
    }
}

/// Publishes at once, without a hop.
struct Direct<'a> {
    to: &'a mut Publishing,
    index: usize,
    now: Now,
}

impl Sink for Direct<'_> {
    #[inline]
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        let item = Item::Message(position, records);
        self.to.take(self.index, &item, self.now);
    }

    fn incident(&mut self, incident: Incident) {
        self.to
            .take(self.index, &Item::Incident(incident), self.now);
    }
}

/// Ends the session, then goes on with heartbeats and what is unsent until every subscriber has
/// END, or the time to linger is over.
fn finish(
    mut to: Publishing,
    shared: &Shared,
    mut idle: Idle,
    ending: Ending,
) -> Result<(), PublisherError> {
    let began = now();
    to.end(began)?;
    to.drive(began)?;
    shared.set_ended();
    tracing::info!("the session has ended; waiting for subscribers to reach its end");
    let until = began.monotonic.after(ending.linger);
    loop {
        let now = now();
        let worked = to.drive(now)?;
        if shared.have_all_reached_end() || now.monotonic >= until {
            to.stop(now.monotonic);
            return Ok(());
        }
        if !worked && !matches!(idle, Idle::Spin) {
            std::thread::sleep(Duration::from_micros(20));
        }
        idle.idle(worked);
    }
}
