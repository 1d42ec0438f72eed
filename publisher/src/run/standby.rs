//! The service of a standby. Everything that can fail because of its config is open from the start,
//! so a promotion needs little more.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tickcast_reliability::types::{Epoch, Nanos};
use tickcast_transport::control::Reserved;

use crate::admin::summary::{EndError, PublisherSummary};
use crate::config::StandbyConfig;
use crate::error::PublisherError;
use crate::ingest::queue::{QueueReceiver, Taken};
use crate::plan::Plan;
use crate::publish::Source;
use crate::recovery::epoch_file::EpochsBefore;
use crate::run::assemble;
use crate::run::commands::Commands;
use crate::run::endpoints::{EndpointAddresses, Endpoints, read_token};
use crate::run::promotion::{Candidate, Heard, PromotedPublisher};
use crate::run::threads::{self};
use crate::run::{Inputs, join, open_inputs, sources_of};
use crate::standby::agreement::{Comparing, as_heard};
use crate::standby::backlog::{Backlog, channels_of};
use crate::standby::command_check;
use crate::standby::hand_over::HandOver;
use crate::standby::mirror_thread::{Left, Mirrors};
use crate::state::Shared;
use crate::state::command;
use crate::state::positions::Positions;
use crate::state::standby::StandbyState;
use crate::state::thread::{StopOnFailure, Thread, spawn};

/// Batches taken from one source before the next source's turn.
const BATCHES_A_ROUND: usize = 16;

/// A standby with all its resources, not started yet.
pub(crate) struct Standby {
    publisher: Candidate,
    shared: Arc<Shared>,
    sources: Vec<Source>,
    pub(crate) inputs: Inputs,
    mirrors: Mirrors,
    endpoints: Endpoints,
    control: SocketAddr,
}

impl Standby {
    /// Opens sockets and inputs, binds the address for subscribers, and locks the state directory.
    pub(crate) fn open(
        plan: Plan,
        of: StandbyConfig,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, PublisherError> {
        let config = plan.config;
        let listen = |address: SocketAddr, error: std::io::Error| PublisherError::Listen {
            what: "control",
            address,
            reason: error.to_string(),
        };
        let reserved = Reserved::bind(config.control);
        let reserved = reserved.map_err(|error| listen(config.control, error))?;
        let control = reserved.local_address();
        let control = control.map_err(|error| listen(config.control, error))?;
        let mut endpoints = Endpoints::bind(&config)?;
        let token = of.token_file.as_deref();
        let token = token.map(|file| read_token("standby.token_file", file));
        let token = token.transpose()?;
        let epochs = EpochsBefore::read(config.state_dir.as_deref(), &config.name)?;
        endpoints.bind_socket(&config)?;
        let (sources, mut inputs) = open_inputs(&config)?;
        // The feed is received without waiting for subscribers.
        (inputs.iter_mut()).for_each(|(_, input)| input.wait_for_nobody());
        // Test the opens that a promotion repeats on the mirrors, so that a promotion does not fail
        // on them.
        assemble::rehearse(&config, &plan.channels)?;
        let state = StandbyState::new(config.name.clone(), of, token, &plan.channels);
        let state = Arc::new(state);
        let mirrors = Mirrors::new(&config, plan.channels.clone(), state.clone())?;
        let shared = Shared::new(
            config.name.clone(),
            Epoch::NONE,
            Vec::new(),
            sources.clone(),
            stop.clone(),
            Nanos::from_ms(config.linger_ms),
        );
        shared.show_config(&config);
        Ok(Self {
            sources: sources_of(&config, &plan.rules, &inputs),
            shared: Arc::new(shared.of_standby(state.clone())),
            publisher: Candidate {
                config,
                plans: plan.channels,
                epochs,
                control: reserved,
                sources,
                stop,
                state,
            },
            inputs,
            mirrors,
            endpoints,
            control,
        })
    }

    /// Returns the address for subscribers after a promotion.
    pub(crate) const fn control_address(&self) -> SocketAddr {
        self.control
    }

    pub(crate) const fn endpoints(&self) -> &EndpointAddresses {
        self.endpoints.addresses()
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Mirrors, and publishes once promoted, until the session ends or a stop is requested.
    pub(crate) fn run(self) -> Result<PublisherSummary, EndError> {
        let base = self.shared.clone();
        let outcome = self.run_threads();
        // On any error, the threads that poll this state's flags end as well.
        base.shut_down();
        outcome
    }

    fn run_threads(self) -> Result<PublisherSummary, EndError> {
        let base = self.shared;
        let threads = self.publisher.config.threads.clone();
        let (sender, receiver) = command::commands();
        let endpoints = self.endpoints.start(&base, sender, None)?;
        let check = {
            let shared = base.clone();
            command_check::start(&self.publisher.state, move || shared.is_stopping())?
        };
        let mirrors = {
            let (mirrors, shared) = (self.mirrors, base.clone());
            let guard = StopOnFailure::new(base.clone());
            spawn("mirror", None, move || {
                guard.of(Ok(mirrors.run(|| shared.is_stopping())))
            })?
        };
        let inputs = self.inputs.into_iter().map(|(_, input)| input).collect();
        let (batches, idle, core) = (threads.queue_batches, threads.idle, threads.feed_core);
        let (queues, feeds) = threads::start_feeds(inputs, &base, batches, idle, core)?;
        let publish = {
            let (publisher, sources, shared) = (self.publisher, self.sources, base.clone());
            let (guard, state) = (StopOnFailure::new(base.clone()), publisher.state.clone());
            // Before it is promoted it has nothing to hand over.
            let nobody = HandOver::to(Vec::new());
            let commands = Commands::new(receiver, nobody, Some(state.clone()));
            spawn("publish", threads.publish_core, move || {
                let published = publisher.run(&shared, sources, queues, mirrors, commands);
                state.ended();
                guard.of(published)
            })?
        };
        let published = join(publish, "publish");
        base.current().shut_down();
        base.shut_down();
        let (mut result, mut kept) = (Ok(()), Ok(()));
        for feed in feeds {
            result = result.and(join(feed, "feed"));
        }
        let opened = published?;
        if let Some(opened) = opened {
            result = result.and(join(opened.repair, "repair"));
            if let Some(latency) = opened.latency {
                result = result.and(join(latency, "latency"));
            }
            kept = opened.epoch.close_if_ended(&opened.shared);
        }
        result = result.and(endpoints.join());
        if let Some(check) = check {
            result = result.and(join(check, "check"));
        }
        result?;
        PublisherSummary::of(base.current()).unless(kept)
    }
}

impl Candidate {
    /// Keeps received messages that are not mirrored, until they are to be published.
    fn run(
        self,
        base: &Shared,
        mut sources: Vec<Source>,
        queues: Vec<QueueReceiver>,
        mirrors: Thread<Left>,
        mut commands: Commands,
    ) -> Result<Option<PromotedPublisher>, PublisherError> {
        let mut idle = self.config.threads.idle;
        let ids = sources.iter().map(|source| source.shared.source);
        let mut backlog = Backlog::new(ids, self.state.config.keep_messages);
        let mut announced = vec![BTreeMap::new(); self.plans.len()];
        let mut comparing: Vec<Comparing> = sources.iter().map(|_| Comparing::default()).collect();
        let mut mirrored: Vec<Positions> = vec![Vec::new(); self.plans.len()];
        let reason = loop {
            if base.is_stopping() {
                join(mirrors, "mirror")?;
                return Ok(None);
            }
            base.rounds.published();
            commands.poll(base);
            if let Some(reason) = self.state.ordered() {
                break reason;
            }
            let mut worked = false;
            for (index, queue) in queues.iter().enumerate() {
                for _ in 0..BATCHES_A_ROUND {
                    let Taken::Batch(batch) = queue.take() else {
                        break;
                    };
                    worked = true;
                    for item in batch.items() {
                        let router = &mut sources[index].router;
                        let channels = channels_of(router, &item, |it| {
                            for channel in it.channels.iter() {
                                announced[channel].insert(it.instrument.id, it.instrument.clone());
                            }
                        });
                        let evicted = backlog.take(index, &item, channels);
                        self.state.counters.evicted_messages.add(evicted);
                    }
                    queue.give_back(batch);
                }
            }
            self.compare(&sources, &backlog, &mut comparing, &mut mirrored);
            backlog.trim(&mirrored);
            self.state.counters.kept_messages.set(backlog.len() as u64);
            idle.idle(worked);
        };
        let state = self.state.clone();
        self.state.want_mirrors();
        let left = join(mirrors, "mirror")?;
        state.view().close();
        let heard = Heard {
            sources,
            backlog,
            announced,
            agreements: comparing.iter().map(Comparing::agreement).collect(),
        };
        match self.continue_publishing(base, heard, left, reason) {
            Err(error) => {
                state.opened(Err(format!("{error}; this standby ends")));
                Err(error)
            }
            Ok((to, opened)) => {
                state.opened(Ok(opened.promoted.clone()));
                let with_inputs = opened.config.end_when_inputs_end;
                let hand_over = HandOver::to(opened.config.hand_over_to.clone());
                let commands = commands.promoted(hand_over);
                threads::publish(
                    queues,
                    None,
                    to,
                    &opened.shared,
                    commands,
                    idle,
                    with_inputs,
                )?;
                Ok(Some(opened))
            }
        }
    }

    /// Compares mirrored with kept messages. Returns the position of each channel, in local
    /// ordinals.
    fn compare(
        &self,
        sources: &[Source],
        backlog: &Backlog,
        comparing: &mut [Comparing],
        mirrored: &mut [Positions],
    ) {
        let mut view = self.state.view();
        for (index, (source, comparing)) in sources.iter().zip(comparing.iter_mut()).enumerate() {
            let mut marks = view.marks.iter();
            let newest = marks.find(|mark| mark.source == source.shared.source);
            comparing.compare(newest.copied(), |sequence| backlog.find(index, sequence));
        }
        let agreements = sources
            .iter()
            .zip(comparing)
            .map(|(source, comparing)| (source.shared.source, comparing.agreement()));
        view.agreements.clear();
        view.agreements.extend(agreements);
        let view = &*view;
        let of = |source| {
            let found = view.agreements.iter().find(|(id, _)| *id == source);
            found.and_then(|(_, agreement)| agreement.ordinals())
        };
        for (to, channel) in mirrored.iter_mut().zip(&view.channels) {
            *to = as_heard(&channel.positions, of);
        }
    }
}
