//! A publisher's run from the opened sockets to the joined threads, for the service and for
//! handlers in the process. A thread that fails ends all others, and every resource is closed.

mod assemble;
pub(crate) mod command_line;
pub(crate) mod commands;
pub(crate) mod comparison;
pub(crate) mod endpoints;
pub(crate) mod others;
pub(crate) mod preflight;
mod promotion;
pub(crate) mod reload;
pub(crate) mod service;
pub(crate) mod service_manager;
mod standby;
pub(crate) mod threads;
pub(crate) mod yield_to_repair;

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::Receiver;
use tickcast_reliability::types::{Nanos, SourceId};
use tickcast_transport::control::{BacklogHint, ControlServer};
use tickcast_transport::host::files::is_pipe;

use crate::admin::latency_log;
use crate::admin::summary::{EndError, PublisherSummary};
use crate::config::{CaptureConfig, Config, InputConfig, ThreadMode};
use crate::error::PublisherError;
use crate::ingest::{Input, instrument_base};
use crate::plan::routing::{Router, SymbolRules};
use crate::plan::{Plan, why_no_digest};
use crate::publish::restarted::Restarted;
use crate::publish::{PublishStage, REPLAY_MISMATCH, Source, SourceCounts};
use crate::recovery::Rings;
use crate::recovery::epoch_file::{EpochState, EpochsBefore};
use crate::recovery::live::ResumedSource;
use crate::recovery::sources_file::{SourcesFile, SourcesKeeper};
use crate::repair::server_config;
use crate::run::assemble::{Channels, Serving};
use crate::run::commands::Commands;
use crate::run::endpoints::{EndpointAddresses, EndpointThreads, Endpoints};
use crate::run::preflight::preflight_for_handlers;
use crate::run::reload::{ReloadHooks, Reloads};
use crate::run::threads::NewHandler;
use crate::standby::hand_over::HandOver;
use crate::state::command;
use crate::state::positions::{Positions, position_of};
use crate::state::source_memory::{SourceFacts, SourceMemory};
use crate::state::thread::{Thread, now, spawn};
use crate::state::{PublishedBefore, Shared, SourceShared};

/// Open inputs, with their places in the config.
pub(crate) type Inputs = Vec<(usize, Input)>;

/// Every resource that can fail because of its config, open; nothing is sent.
pub(crate) struct Opened {
    config: Config,
    rules: SymbolRules,
    epoch: EpochState,
    shared: Arc<Shared>,
    channels: Channels,
    /// Sealed positions of the inputs on each channel, if the epoch continues.
    sealed: Option<Vec<Positions>>,
    /// Live sources that continue.
    live: Vec<ResumedSource>,
    inputs: Inputs,
    control: SocketAddr,
    endpoints: Endpoints,
    reloads: Option<Reloads>,
}

impl Opened {
    /// Opens all that a config needs for a publisher whose handlers run in this process, and logs warnings.
    pub(crate) fn for_handlers(config: Config) -> Result<Self, PublisherError> {
        let plan = preflight_for_handlers(config)?;
        for warning in &plan.warnings {
            tracing::warn!("{warning}");
        }
        Self::open(plan, Arc::default())
    }

    /// Opens sockets, rings, inputs and the next epoch.
    pub(crate) fn open(plan: Plan, stop: Arc<AtomicBool>) -> Result<Self, PublisherError> {
        let config = plan.config;
        let opened_at = now();
        let server = ControlServer::bind(config.control, server_config(&config));
        let listen = |error: std::io::Error| PublisherError::Listen {
            what: "control",
            address: config.control,
            reason: error.to_string(),
        };
        let server = server.map_err(listen)?;
        let control = server.local_address().map_err(listen)?;
        let mut endpoints = Endpoints::bind(&config)?;
        let (sources, mut inputs) = open_inputs(&config)?;
        // The state directory is locked first, and the rings change last: a start that fails costs no epoch.
        let epochs = EpochsBefore::read(config.state_dir.as_deref(), &config.name)?;
        endpoints.bind_socket(&config)?;
        let Rings {
            rings,
            epoch,
            sealed,
            live,
        } = Rings::open(&config, plan.channels, epochs, opened_at.utc)?;
        let channels = Channels::open(&config, rings, server, opened_at)?;
        let sealed = sealed.map(|sealed| resume(sealed, &config, &channels, &mut inputs));
        resume_live(&live, &config, &mut inputs);
        let shared = Shared::new(
            config.name.clone(),
            epoch.epoch(),
            channels.shared.clone(),
            sources,
            stop,
            Nanos::from_ms(config.linger_ms),
        );
        shared.show_config(&config);
        Ok(Self {
            rules: plan.rules,
            reloads: None,
            epoch,
            shared: Arc::new(shared),
            channels,
            sealed,
            live,
            inputs,
            control,
            endpoints,
            config,
        })
    }

    /// Reloads the config's file on request.
    pub(crate) fn reloading(self, hooks: ReloadHooks) -> Self {
        let reloads = Some(Reloads::new(hooks));
        Self { reloads, ..self }
    }

    pub(crate) const fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) const fn control_address(&self) -> SocketAddr {
        self.control
    }

    pub(crate) const fn endpoints(&self) -> &EndpointAddresses {
        self.endpoints.addresses()
    }

    pub(crate) fn listen_addresses(&self) -> Vec<(SourceId, SocketAddrV4)> {
        listen_addresses(&self.inputs)
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the number of open inputs.
    pub(crate) const fn inputs_len(&self) -> usize {
        self.inputs.len()
    }

    /// Starts the threads. With `arrivals`, handlers arrive through it, and the session does not
    /// end with the inputs. On an error, every started thread ends by itself.
    pub(crate) fn start(
        self,
        new_handlers: Option<Receiver<NewHandler>>,
    ) -> Result<Running, PublisherError> {
        let shared = self.shared.clone();
        let started = self.start_threads(new_handlers);
        if started.is_err() {
            shared.shut_down();
        }
        started
    }

    fn start_threads(
        mut self,
        new_handlers: Option<Receiver<NewHandler>>,
    ) -> Result<Running, PublisherError> {
        let reloads = self.reloads.take();
        let (parts, to, serving) = self.into_parts(new_handlers.is_some())?;
        let repair = serving.start(&parts.config, &parts.shared)?;
        let (sender, receiver) = command::commands();
        let requests = reloads.as_ref().map(Reloads::requests);
        let endpoints = parts
            .endpoints
            .start(&parts.shared, sender.clone(), requests)?;
        let reloads = reloads
            .map(|it| it.start(parts.config.clone(), parts.shared.clone(), sender))
            .transpose()?;
        let (config, shared) = (parts.config, parts.shared);
        let sources = keep_sources(&config, &shared)?;
        let latency = latency_log::start(&config, &shared)?;
        let hand_over = HandOver::to(config.hand_over_to);
        let commands = Commands::new(receiver, hand_over, None);
        let threads = config.threads;
        let with_inputs = config.end_when_inputs_end && new_handlers.is_none();
        let (idle, also) = (threads.idle, shared.clone());
        let inputs: Vec<Input> = parts.inputs.into_iter().map(|(_, input)| input).collect();
        let (publish, feeds) = match threads.mode {
            ThreadMode::Inline => {
                let run = move || threads::inline(inputs, to, &also, commands, idle, with_inputs);
                (spawn("publish", threads.publish_core, run)?, Vec::new())
            }
            ThreadMode::Threaded => {
                let batches = threads.queue_batches;
                let (queues, feeds) =
                    threads::start_feeds(inputs, &shared, batches, idle, threads.feed_core)?;
                let run = move || {
                    threads::publish(queues, new_handlers, to, &also, commands, idle, with_inputs)
                };
                (spawn("publish", threads.publish_core, run)?, feeds)
            }
        };
        Ok(Running {
            publish,
            feeds,
            served: Served {
                epoch: parts.epoch,
                shared,
                repair,
                endpoints,
                sources,
                latency,
                reloads,
            },
        })
    }

    /// Starts all threads except the publish thread, which is the caller's; the config's inputs are
    /// not read. Also returns the hint that subscribers wait, if their thread may share its core.
    pub(crate) fn serve(
        self,
    ) -> Result<(PublishStage, Served, Commands, Option<BacklogHint>), PublisherError> {
        let shared = self.shared.clone();
        let start = || {
            let (parts, to, mut serving) = self.into_parts(true)?;
            let backlog_hint = serving.backlog_hint(&parts.config)?;
            let repair = serving.start(&parts.config, &parts.shared)?;
            let (sender, receiver) = command::commands();
            let endpoints = parts.endpoints.start(&parts.shared, sender, None)?;
            let (config, epoch, shared) = (parts.config, parts.epoch, parts.shared);
            let latency = latency_log::start(&config, &shared)?;
            let hand_over = HandOver::without_rest(config.hand_over_to);
            let commands = Commands::new(receiver, hand_over, None);
            let served = Served {
                epoch,
                shared,
                repair,
                endpoints,
                sources: None,
                latency,
                reloads: None,
            };
            Ok((to, served, commands, backlog_hint))
        };
        start().inspect_err(|_| shared.shut_down())
    }

    /// Returns the publishing and the serving part, for a test that drives them itself.
    #[cfg(test)]
    pub(crate) fn inline(
        self,
    ) -> Result<(PublishStage, crate::repair::RepairService), PublisherError> {
        let (parts, to, serving) = self.into_parts(true)?;
        Ok((to, serving.service(&parts.config, &parts.shared)?))
    }

    /// Splits into publishing, serving, and the rest. The epoch is opened before serving, so that
    /// every joiner finds it open.
    fn into_parts(
        self,
        with_handlers: bool,
    ) -> Result<(Parts, PublishStage, Serving), PublisherError> {
        let sources = self.sources(with_handlers);
        let (drivers, serving) = self.channels.split();
        let mut to = PublishStage::new(drivers, sources, self.shared.clone());
        let began = now();
        if let Some(sealed) = self.sealed {
            let (channels, mismatch) = (&self.config.channels, self.epoch.mismatch());
            let kept = mismatch.is_kept().then_some(REPLAY_MISMATCH);
            let why = |at: usize| kept.or_else(|| why_no_digest(&self.config, &channels[at].name));
            to = to.replaying(sealed, mismatch, why);
        }
        // A publisher that was killed before sealing anything has not announced its epoch yet.
        let opened = |at: usize| {
            let channel = &self.shared.channels[at];
            let is_empty = channel.ring.sealed() < channel.ring.identity().first_sequence;
            is_empty.then(|| self.epoch.opened(channel.plan.id))
        };
        to.event(opened, began)?;
        for live in &self.live {
            let place = self.inputs.iter().position(|(at, _)| *at == live.input);
            let restarted = Restarted {
                last: live.last,
                settled: &live.settled,
                instruments: live.facts.instruments().cloned().collect(),
                refers_to_orders: live.format.refers_to_orders(),
            };
            if let Some(index) = place {
                to.restart(index, &restarted, began)?;
            }
        }
        to.drive(began)?;
        let parts = Parts {
            config: self.config,
            epoch: self.epoch,
            shared: self.shared,
            inputs: self.inputs,
            endpoints: self.endpoints,
        };
        Ok((parts, to, serving))
    }

    /// Returns the inputs in order, then one source for each channel that a handler may publish on.
    fn sources(&self, with_handlers: bool) -> Vec<Source> {
        let mut all = sources_of(&self.config, &self.rules, &self.inputs);
        if with_handlers {
            for (place, channel) in self.config.channels.iter().enumerate() {
                let own = own_source(&self.config, &channel.name).unwrap_or(0);
                all.push(Source {
                    shared: self.shared.sources[own].clone(),
                    router: Router::to(place),
                    counts_here: true,
                    ordinals: 0,
                    counts: SourceCounts::default(),
                });
            }
        }
        all
    }
}

/// Skips messages up to `sealed` when inputs replay from their beginning, without their pacing.
/// Handlers resume by themselves. Returns the skipped positions of each channel.
fn resume(
    mut sealed: Vec<Positions>,
    config: &Config,
    channels: &Channels,
    inputs: &mut Inputs,
) -> Vec<Positions> {
    for (channel, sealed) in channels.shared.iter().zip(&sealed) {
        // This is the only place that sets them.
        let _ = channel.resumed.set(sealed.clone());
        let (last, first) = (channel.ring.sealed(), channel.ring.identity().first_record);
        let next = channel.ring.next_record_after(last).unwrap_or(first);
        let _ = channel.before.set(PublishedBefore {
            sealed: last,
            published_records: next.since(first),
        });
    }
    let is_replayed = |source: &SourceId| {
        let input = config.inputs.iter().find(|it| it.source() == *source);
        input.is_some_and(InputConfig::is_replayed)
    };
    (sealed.iter_mut()).for_each(|of| of.retain(|(source, _)| is_replayed(source)));
    for (_, input) in inputs {
        let source = input.shared().source;
        let places = (0..sealed.len()).filter_map(|at| position_of(&sealed, at, source));
        if let Some(last) = places.max() {
            input.go_on_behind(last);
        }
    }
    sealed
}

/// Starts to keep the state of the live sources, if their epoch can continue.
fn keep_sources(
    config: &Config,
    shared: &Arc<Shared>,
) -> Result<Option<Thread<()>>, PublisherError> {
    let Some(directory) = config
        .state_dir
        .as_deref()
        .filter(|_| config.ring_dir.is_some())
    else {
        return Ok(None);
    };
    let path = SourcesFile::path(directory, &config.name);
    SourcesKeeper::new(path, shared.clone()).start()
}

/// Lets live inputs continue where they can, and remembers what a later publisher needs for that.
fn resume_live(live: &[ResumedSource], config: &Config, inputs: &mut Inputs) {
    for (index, input) in inputs {
        if config.ring_dir.is_none() || !matches!(config.inputs[*index], InputConfig::Udp(_)) {
            continue;
        }
        let mut facts = SourceFacts::default();
        if let Some(live) = live.iter().find(|live| live.input == *index) {
            input.resume(live.format, &live.at);
            facts.clone_from(&live.facts);
        }
        // This is the only place that sets it.
        let _ = input.shared().memory.set(SourceMemory::new(facts));
    }
}

/// Opens the inputs of a config; a kind that only names a source has nothing to open.
///
/// # Errors
/// Returns [`PublisherError`] with the source and the cause, if an input can't be opened.
pub(crate) fn open_inputs(
    config: &Config,
) -> Result<(Vec<Arc<SourceShared>>, Inputs), PublisherError> {
    let (mut sources, mut inputs) = (Vec::new(), Vec::new());
    for (index, input_config) in config.inputs.iter().enumerate() {
        if let InputConfig::Capture(CaptureConfig { source, files, .. }) = input_config {
            for pipe in files.iter().filter(|file| is_pipe(file)) {
                let pipe = pipe.display();
                tracing::info!(source = source.0, %pipe, "waiting for the pipe's writer");
            }
        }
        let Some(input) = Input::open(input_config, index, &config.interface)? else {
            sources.push(Arc::new(SourceShared::new(input_config.source(), 0)));
            continue;
        };
        for warning in input.warnings() {
            tracing::warn!(source = input_config.source().0, "{warning}");
        }
        sources.push(input.shared().clone());
        inputs.push((index, input));
    }
    Ok((sources, inputs))
}

/// Returns the sources of open inputs, in order.
pub(crate) fn sources_of(config: &Config, rules: &SymbolRules, inputs: &Inputs) -> Vec<Source> {
    let place_of = |name: &str| config.channels.iter().position(|c| c.name == name);
    let source = |(index, input): &(usize, Input)| {
        let own = config.inputs[*index].channel().and_then(place_of);
        Source {
            shared: input.shared().clone(),
            router: match own {
                Some(channel) => Router::to(channel),
                None => Router::new(rules.clone(), instrument_base(*index)),
            },
            counts_here: false,
            ordinals: 0,
            counts: SourceCounts::default(),
        }
    };
    inputs.iter().map(source).collect()
}

/// Returns the addresses of the live inputs.
pub(crate) fn listen_addresses(inputs: &Inputs) -> Vec<(SourceId, SocketAddrV4)> {
    let of = |(_, input): &(usize, Input)| {
        let source = input.shared().source;
        let addresses = input.listen_addresses().into_iter();
        addresses.map(move |address| (source, address))
    };
    inputs.iter().flat_map(of).collect()
}

/// Returns the index of the config's input for handlers on this channel.
pub(crate) fn own_source(config: &Config, channel: &str) -> Option<usize> {
    let own = |wanted: Option<&str>| {
        let is_it = |input: &InputConfig| match input {
            InputConfig::Own(own) => own.channel.as_deref() == wanted,
            _ => false,
        };
        config.inputs.iter().position(is_it)
    };
    own(Some(channel)).or_else(|| own(None))
}

/// The parts of an opened publisher that neither publish nor repair.
struct Parts {
    config: Config,
    epoch: EpochState,
    shared: Arc<Shared>,
    inputs: Inputs,
    endpoints: Endpoints,
}

/// The threads of a publisher.
pub(crate) struct Running {
    publish: Thread<()>,
    feeds: Vec<Thread<()>>,
    served: Served,
}

impl Running {
    /// Waits until publishing has ended, then ends everything else.
    pub(crate) fn join(self) -> Result<PublisherSummary, EndError> {
        let mut result = join(self.publish, "publish");
        self.served.shared.shut_down();
        for feed in self.feeds {
            result = result.and(join(feed, "feed"));
        }
        self.served.end(result)
    }
}

/// The threads that serve subscribers and admin clients.
pub(crate) struct Served {
    epoch: EpochState,
    shared: Arc<Shared>,
    repair: Thread<()>,
    endpoints: EndpointThreads,
    /// The thread that keeps the state of live sources.
    sources: Option<Thread<()>>,
    /// The thread that keeps the latency log.
    latency: Option<Thread<()>>,
    /// The thread of reloads.
    reloads: Option<Thread<()>>,
}

impl Served {
    /// Ends them, once publishing has ended with this result.
    pub(crate) fn end(
        self,
        published: Result<(), PublisherError>,
    ) -> Result<PublisherSummary, EndError> {
        self.shared.shut_down();
        let mut result = published.and(join(self.repair, "repair"));
        result = result.and(self.endpoints.join());
        if let Some(sources) = self.sources {
            result = result.and(join(sources, "sources"));
        }
        if let Some(latency) = self.latency {
            result = result.and(join(latency, "latency"));
        }
        if let Some(reloads) = self.reloads {
            result = result.and(join(reloads, "reload"));
        }
        result?;
        let kept = self.epoch.close_if_ended(&self.shared);
        PublisherSummary::of(&self.shared).unless(kept)
    }
}

pub(crate) fn join<T>(thread: Thread<T>, name: &'static str) -> Result<T, PublisherError> {
    let panicked = |_| Err(PublisherError::Panicked { thread: name });
    thread.join().unwrap_or_else(panicked)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::{Duration, Instant};

    use tickcast_feeds::instruments::{Symbol, mapping};
    use tickcast_feeds::source::{
        Decoder, FeedSession, LineStats, MessageCounts, Packet, ResumePoint, Sink,
    };
    use tickcast_feeds::venues::Format;
    use tickcast_reliability::record::{MboMsg, RecordBatch, words_as_bytes};
    use tickcast_reliability::types::{Epoch, Sequence, SourcePosition};
    use tickcast_reliability::wire::{Datagram, EpochReason, StreamEvent};

    use super::*;
    use crate::ingest::queue::SourceItem;
    use crate::state::hearing::Silence;

    #[derive(Default)]
    struct Panics(MessageCounts);

    impl Decoder for Panics {
        fn line_packet(&mut self, _: usize, _: Nanos, _: Packet<'_>, _: &mut dyn Sink) {
            panic!("a decoder with a bug");
        }

        fn set_sender(&mut self, _: usize, _: Ipv4Addr) {}

        fn poll(&mut self, _: Nanos, _: &mut dyn Sink) {}

        fn finish(&mut self, _: &mut dyn Sink) {}

        fn unreadable(&mut self, _: &mut dyn Sink) {}

        fn resume(&mut self, _: &ResumePoint) {}

        fn session(&self) -> Option<FeedSession> {
            None
        }

        fn place(&self) -> Option<ResumePoint> {
            None
        }

        fn newest_sent_at(&self) -> u64 {
            0
        }

        fn packets(&self) -> u64 {
            0
        }

        fn line(&self, _: usize) -> LineStats {
            LineStats::default()
        }

        fn counts(&self) -> &MessageCounts {
            &self.0
        }
    }

    #[test]
    fn unreported_epoch_is_reported_at_next_start() {
        let rings = tempfile::tempdir_in("/dev/shm").unwrap();
        let state = tempfile::tempdir().unwrap();
        let config = serde_json::json!({ "name": "test", "control": "127.0.0.1:0", "interface": "lo",
            "ring_dir": rings.path(), "state_dir": state.path(),
            "inputs": [{ "source": 7, "kind": "simulator" }],
            "channels": [{ "id": 1, "name": "all", "slots": 4096, "fan_out": [{ "transport": "udp",
                "lines": [{ "group": "239.255.78.1:7799" }] }] }] });
        let open = || {
            let plan = Plan::new(Config::parse(&config.to_string()).unwrap()).unwrap();
            Opened::open(plan, Arc::default()).unwrap()
        };
        // Two epochs. In each, a publisher is killed once its rings exist, and another one later.
        let mut previous = Epoch::NONE;
        for reason in [EpochReason::Fresh, EpochReason::Restart] {
            let killed = open();
            let epoch = killed.epoch.epoch();
            drop(killed);
            for sealed in [0, 1] {
                let opened = open();
                assert_eq!(opened.epoch.epoch(), epoch);
                let ring = opened.shared().channels[0].ring.clone();
                assert_eq!(ring.sealed(), Sequence(sealed));
                drop(opened.into_parts(false).unwrap());
                assert_eq!(ring.sealed(), Sequence(1), "told, and once");
                let mut slot = vec![0_u64; ring.geometry().slot_len() / 8];
                let len = ring.copy(Sequence(1), &mut slot).unwrap();
                let datagram = Datagram::parse(&words_as_bytes(&slot)[..len]).unwrap();
                let expected = StreamEvent::EpochOpened {
                    reason,
                    previous,
                    previous_last: Sequence::NONE,
                };
                assert_eq!(StreamEvent::parse(datagram.payload()), Some(expected));
            }
            previous = epoch;
            std::fs::remove_file(rings.path().join("test.all.ring")).unwrap();
        }
    }

    #[test]
    fn changed_replay_is_reported_before_what_follows() {
        // Position, order id, and number of records: 100 records do not fit a datagram.
        type Given = (u64, u64, usize);
        // Replayed items, later items, whether it is stopped, reported losses, and the digest reason.
        type Case<'a> = (
            &'a [Given],
            Option<Given>,
            bool,
            &'a [&'a str],
            Option<&'a str>,
        );
        let published: [Given; 3] = [(1, 1, 1), (2, 2, 100), (3, 3, 1)];
        let give = |to: &mut PublishStage, given: &[Given]| {
            for (sequence, order_id, records) in given {
                let mut message = RecordBatch::default();
                (0..*records).for_each(|_| {
                    message.put(&MboMsg {
                        order_id: *order_id,
                        ..MboMsg::default()
                    });
                });
                let item =
                    SourceItem::Message(SourcePosition::new(0, *sequence), (&message).into());
                to.take(0, &item, now());
            }
            to.flush(now());
        };
        let (same, next) = (&published[..], (4, 4, 1));
        let (altered, shorter) = ([(1, 1, 1), (2, 2, 100), (3, 9, 1)], &published[..2]);
        let stopped =
            Some("the replay was stopped before it reached the end of the published messages");
        let differs = Some(REPLAY_MISMATCH);
        let cases: [Case<'_>; 8] = [
            (same, Some(next), false, &["4"], None),
            (same, None, false, &[], None),
            (&altered, Some(next), false, &["lost", "4"], differs),
            (&altered, None, false, &["lost"], differs),
            (shorter, None, false, &["lost"], differs),
            // A stopped source does not know its later messages.
            (shorter, None, true, &[], stopped),
            (&[], None, true, &[], stopped),
            (same, None, true, &[], None),
        ];
        for (given, beyond, is_stopped, expected, why) in cases {
            let (rings, state) = (
                tempfile::tempdir_in("/dev/shm").unwrap(),
                tempfile::tempdir().unwrap(),
            );
            let config = serde_json::json!({ "name": "test", "control": "127.0.0.1:0", "interface": "lo",
                "ring_dir": rings.path(), "state_dir": state.path(), "digest": true,
                "inputs": [{ "source": 7, "kind": "simulator" }],
                "channels": [{ "id": 1, "name": "all", "slots": 64, "fan_out": [{ "transport": "udp",
                    "lines": [{ "group": "239.255.78.1:7799" }] }] }] });
            let open = || {
                let plan = Plan::new(Config::parse(&config.to_string()).unwrap()).unwrap();
                Opened::open(plan, Arc::default()).unwrap()
            };
            let (mut to, _service) = open().inline().unwrap();
            give(&mut to, &published);
            drop((to, _service));
            let opened = open();
            let (shared, sealed) = (opened.shared().clone(), opened.sealed.clone());
            let last = shared.channels[0].ring.sealed();
            assert!(sealed.is_some(), "it goes on");
            let (mut to, _service) = opened.inline().unwrap();
            give(&mut to, given);
            beyond.iter().for_each(|next| give(&mut to, &[*next]));
            if is_stopped {
                shared.stop();
            }
            to.source_ended(0, now());
            let mut reported = Vec::new();
            shared.channels[0].ring.each_held(|datagram| {
                let header = datagram.header();
                if header.sequence > last {
                    reported.push(match StreamEvent::parse(datagram.payload()) {
                        Some(StreamEvent::SourceLost {
                            messages: u64::MAX, ..
                        }) => "lost".to_owned(),
                        _ => header.source_position.sequence().to_string(),
                    });
                }
            });
            assert_eq!(reported, expected, "{given:?}, then {beyond:?}");
            to.end(now()).unwrap();
            let digest = shared.channels[0].digest().expect("one, or why not");
            assert_eq!(digest.err(), why, "{given:?}, then {beyond:?}");
        }
    }

    #[test]
    fn killed_live_source_reports_what_waited_on_each_channel() {
        for (format, name) in [
            (Format::MoldUdp64Itch50, "moldudp64-itch50"),
            (Format::IexTp, "iex-tp"),
        ] {
            let rings = tempfile::tempdir_in("/dev/shm").unwrap();
            let state = tempfile::tempdir().unwrap();
            let channel = |id: u16, symbols: &str| {
                serde_json::json!({ "id": id, "name": format!("c{id}"), "slots": 64,
                    "symbols": [symbols], "fan_out": [{ "transport": "udp",
                    "lines": [{ "group": format!("239.255.78.{id}:7799") }] }] })
            };
            let config = serde_json::json!({ "name": "test", "control": "127.0.0.1:0", "interface": "lo",
                "ring_dir": rings.path(), "state_dir": state.path(),
                "inputs": [{ "source": 7, "kind": "udp", "format": name,
                    "lines": [{ "listen": "127.0.0.1:0" }] }],
                "channels": [channel(1, "A*"), channel(2, "B*")] });
            // Starts a publisher, which publishes messages (sequence, id, new symbol), and is killed.
            // Returns its epoch, the next sequence of its decoder, what it sealed on each channel, and the
            // messages that its source counts as missing. Its state is kept before the messages, and
            // after if `is_kept`.
            let live = |messages: &[(u64, u32, Option<&[u8; 8]>)], is_kept: bool| {
                let plan = Plan::new(Config::parse(&config.to_string()).unwrap()).unwrap();
                let opened = Opened::open(plan, Arc::default()).unwrap();
                let (shared, epoch) = (opened.shared().clone(), opened.epoch.epoch());
                let next = opened.live.first().map(|live| live.at.next.sequence());
                let sealed = [0, 1].map(|at: usize| shared.channels[at].ring.sealed());
                let (mut to, _service) = opened.inline().unwrap();
                let memory = shared.sources[0].memory.get().unwrap();
                memory.follow(
                    format,
                    Some(FeedSession {
                        id: 5,
                        ordinal: 0,
                        end_at: None,
                    }),
                );
                let path = SourcesFile::path(state.path(), "test");
                let keep = || SourcesKeeper::new(path.clone(), shared.clone()).keep();
                keep().unwrap();
                for (sequence, id, symbol) in messages {
                    let mut message = RecordBatch::default();
                    match symbol {
                        Some(symbol) => message.put(&mapping(Symbol(**symbol), *id, 1, 0)),
                        None => {
                            let mut record = MboMsg::default();
                            record.hd.instrument_id = *id;
                            message.put(&record);
                        }
                    }
                    let at = SourcePosition::new(0, *sequence);
                    to.take(0, &SourceItem::Message(at, (&message).into()), now());
                }
                to.flush(now());
                if is_kept {
                    keep().unwrap();
                }
                let reported = [0, 1].map(|at: usize| {
                    let mut reported = Vec::new();
                    let ring = &shared.channels[at].ring;
                    ring.each_held_after(sealed[at], |datagram| {
                        reported.push(match StreamEvent::parse(datagram.payload()) {
                            Some(StreamEvent::SourceLost {
                                from,
                                messages,
                                instruments,
                                ..
                            }) => format!("lost {messages} from {from} of {instruments:?}"),
                            Some(_) => "opened".into(),
                            None => datagram.header().source_position.to_string(),
                        });
                    });
                    reported.join(", ")
                });
                let missing = shared.sources[0].counters.source_missing_messages.get();
                (epoch, next, reported, missing)
            };
            let named = [
                (1, 1, Some(b"A       ")),
                (2, 2, Some(b"B       ")),
                (3, 3, Some(b"AA      ")),
            ];
            let (epoch, next, reported, missing) = live(&named, false);
            assert_eq!(
                (next, reported, missing),
                (None, ["opened, 0:3", "opened, 0:2"].map(String::from), 0)
            );
            // Message 3 may have waited on channel 2. Its instruments keep their channels.
            let is_itch = format.refers_to_orders();
            let orders = |event: &str, then: &str| match (is_itch, then) {
                (true, "") => event.to_owned(),
                (true, then) => format!("{event}, {then}"),
                (false, then) => then.to_owned(),
            };
            let first = orders("lost 0 from 0:3 of [1, 3]", "");
            let second = "lost 1 from 0:3 of [], 0:4".to_owned();
            let life = live(&[(4, 2, None)], false);
            assert_eq!(life, (epoch, Some(4), [first, second], 1));
            let first = "lost 1 from 0:4 of []".to_owned();
            let second = orders("lost 0 from 0:4 of [2]", "");
            assert_eq!(live(&[], false), (epoch, Some(5), [first, second], 1));
            // Nothing has come since.
            let first = orders("lost 0 from 0:4 of [1, 3]", "");
            let second = orders("lost 0 from 0:4 of [2]", "0:5");
            let unrouted = (6, 9, Some(b"C       "));
            let life = live(&[(5, 2, None), unrouted], true);
            assert_eq!(life, (epoch, Some(5), [first, second], 0));
            // The state says that nothing waited up to message 6, which was for no channel.
            let first = orders("lost 0 from 0:6 of [1, 3]", "");
            let second = orders("lost 0 from 0:6 of [2]", "");
            assert_eq!(live(&[], false), (epoch, Some(7), [first, second], 0));
        }
    }

    #[test]
    fn silence_stands_among_messages_and_moves_no_position() {
        let config = r#"{ "name": "test", "control": "127.0.0.1:0", "interface": "lo",
            "inputs": [{ "source": 7, "kind": "udp", "lines": [{ "listen": "127.0.0.1:0" }] }],
            "channels": [{ "id": 1, "name": "all", "slots": 64, "fan_out": [{ "transport": "udp",
                "lines": [{ "group": "239.255.78.1:7799" }] }] }] }"#;
        let plan = Plan::new(Config::parse(config).unwrap()).unwrap();
        let opened = Opened::open(plan, Arc::default()).unwrap();
        let shared = opened.shared().clone();
        let (mut to, _service) = opened.inline().unwrap();
        let since = Nanos(99);
        let hearing = shared.sources[0].hearing().expect("it is live");
        let mut message = RecordBatch::default();
        message.put(&MboMsg::default());
        let give = |to: &mut PublishStage, sequence| {
            let at = SourcePosition::new(0, sequence);
            to.take(0, &SourceItem::Message(at, (&message).into()), now());
        };
        give(&mut to, 1);
        let begun = Silence::Begun { since };
        to.take(0, &SourceItem::Silence(begun), now());
        to.take(0, &SourceItem::Silence(Silence::Over { since }), now());
        give(&mut to, 2);
        // As after a promotion, in either state.
        to.report_silences(now());
        hearing.set(begun);
        to.report_silences(now());
        let mut reported = Vec::new();
        shared.channels[0].ring.each_held(|datagram| {
            let header = datagram.header();
            reported.push(match StreamEvent::parse(datagram.payload()) {
                Some(StreamEvent::SourceSilent { since, .. }) => format!("silent {}", since.0),
                Some(StreamEvent::SourceBack { since, .. }) => format!("back {}", since.0),
                Some(_) => "opened".into(),
                None => header.source_position.sequence().to_string(),
            });
            let is_silence = reported.last().is_some_and(|it| it.contains(' '));
            assert!(!is_silence || header.source.0 == 7);
            assert!(!is_silence || header.source_position == SourcePosition::default());
        });
        let expected = [
            "opened",
            "1",
            "silent 99",
            "back 99",
            "2",
            "back 0",
            "silent 99",
        ];
        assert_eq!(reported, expected);
    }

    #[test]
    fn feed_thread_panic_ends_service_with_error() {
        let config = r#"{ "name": "test", "control": "127.0.0.1:0", "interface": "lo", "linger_ms": 0,
            "end_when_inputs_end": false,
            "inputs": [{ "source": 7, "kind": "simulator", "seed": 3, "symbols": 20, "messages": 100 }],
            "channels": [{ "id": 1, "name": "all", "slots": 4096, "fan_out": [{ "transport": "udp",
                "lines": [{ "group": "239.255.78.1:7799" }] }] }] }"#;
        let plan = Plan::new(Config::parse(config).unwrap()).unwrap();
        let mut opened = Opened::open(plan, Arc::default()).unwrap();
        opened.inputs[0].1.decode_with(Box::<Panics>::default());
        let shared = opened.shared().clone();
        let running = opened.start(None).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !shared.is_stopping() {
            assert!(
                Instant::now() < until,
                "the service goes on without its feed"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = running.join();
        let thread = "feed";
        assert!(
            matches!(ended, Err(EndError::Failed(PublisherError::Panicked { thread: t })) if t == thread),
            "{:?}",
            ended.err()
        );
    }
}
