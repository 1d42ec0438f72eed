//! A publisher's run from the opened sockets to the joined threads, alike for the service and for
//! handlers of one's own: what was opened is closed again, and a thread that fails ends all.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crossbeam_channel::Receiver;
use tickcast_reliability::control::RepairOffer;
use tickcast_reliability::publisher_core::PublisherConfig;
use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::ring_layout::RingIdentity;
use tickcast_reliability::units::{ChannelId, Nanos, RecordNumber, Sequence, SourceId};
use tickcast_transport::FanOut;
use tickcast_transport::control::{ControlServer, ShareId};
use tickcast_transport::mapping::SharedMapping;

use crate::admin::Admin;
use crate::channels::{Router, SymbolRules};
use crate::config::{Config, InputConfig, ThreadMode};
use crate::epoch::EpochState;
use crate::error::{ConfigError, PublisherError};
use crate::input::{Input, instrument_base};
use crate::pipeline::{self, Arrival, StopOnFailure, Thread, now, spawn};
use crate::plan::fan_out::Use;
use crate::plan::{ChannelPlan, Plan};
use crate::publish::{ChannelDriver, Publishing, Source};
use crate::repair_service::{RepairService, server_config};
use crate::shared::{ChannelShared, Shared, SourceShared};
use crate::summary::Summary;

type FanOuts = Vec<Box<dyn FanOut>>;

/// Everything that can fail for its config, open; nothing is sent.
pub(crate) struct Opened {
    config: Config,
    rules: SymbolRules,
    epoch: EpochState,
    shared: Arc<Shared>,
    drivers: Vec<ChannelDriver>,
    /// With their places in the config.
    inputs: Vec<(usize, Input)>,
    server: ControlServer,
    repair_offers: Vec<RepairOffer>,
    /// The rings that may be READ.
    shares: Vec<(ChannelId, ShareId)>,
    multicast: Vec<FanOuts>,
    control: SocketAddr,
    admin: Option<Admin>,
}

impl Opened {
    /// Opens sockets, rings, inputs and the next epoch.
    pub(crate) fn open(plan: Plan, stop: Arc<AtomicBool>) -> Result<Self, PublisherError> {
        let config = plan.config;
        let opened_at = now();
        let server = ControlServer::bind(config.control, server_config(&config.repair));
        let listen = |error: std::io::Error| PublisherError::Listen {
            what: "control",
            address: config.control,
            reason: error.to_string(),
        };
        let mut server = server.map_err(listen)?;
        let mut repair_offers = listen_over_verbs(&config, &mut server)?;
        let control = server.local_address().map_err(listen)?;
        let admin = config.admin.map(Admin::bind).transpose()?;
        let sources: Vec<Arc<SourceShared>> = (config.inputs.iter())
            .map(|input| Arc::new(SourceShared::new(input.source())))
            .collect();
        let mut inputs = Vec::new();
        for (index, (input, source)) in config.inputs.iter().zip(&sources).enumerate() {
            let opened = Input::open(input, index, &config.interface, source.clone())?;
            let Some(input) = opened else { continue };
            for warning in input.warnings() {
                tracing::warn!(source = source.source.0, "{warning}");
            }
            inputs.push((index, input));
        }
        let epoch = EpochState::open(config.state_dir.as_deref(), &config.name, opened_at.utc)?;
        let (mut channels, mut drivers, mut multicast) = (Vec::new(), Vec::new(), Vec::new());
        let mut shares = Vec::new();
        for channel in plan.channels {
            let ring = create_ring(&channel, &epoch)?;
            share(
                &mut server,
                &mut repair_offers,
                &mut shares,
                &channel,
                &ring,
            );
            multicast.push(open_fan_outs(&channel, Use::Copies)?);
            let fan_outs = open_fan_outs(&channel, Use::Ring(&ring.memory()))?;
            let publisher = PublisherConfig {
                heartbeat: config.heartbeat,
                fan_out_margin_slots: channel.fan_out_margin_slots,
            };
            let shared = Arc::new(ChannelShared::new(channel, ring.reader()));
            channels.push(shared.clone());
            drivers.push(ChannelDriver::new(
                publisher,
                ring,
                fan_outs,
                config.digest,
                shared,
                opened_at.monotonic,
            ));
        }
        let shared = Shared::new(
            config.name.clone(),
            epoch.epoch(),
            channels,
            sources,
            stop,
            Nanos::from_ms(config.linger_ms),
        );
        Ok(Self {
            config,
            rules: plan.rules,
            epoch,
            shared: Arc::new(shared),
            drivers,
            inputs,
            server,
            repair_offers,
            shares,
            multicast,
            control,
            admin,
        })
    }

    pub(crate) const fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) const fn control_address(&self) -> SocketAddr {
        self.control
    }

    pub(crate) fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Admin::address)
    }

    pub(crate) fn listen_addresses(&self) -> Vec<(SourceId, SocketAddrV4)> {
        let of =
            |(_, input): &(usize, Input)| Some((input.shared().source, input.listen_address()?));
        self.inputs.iter().filter_map(of).collect()
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Starts the threads. Where `arrivals` are given, handlers come by them, and the session does
    /// not end with the inputs. On an error all that was started ends by itself.
    pub(crate) fn start(
        self,
        arrivals: Option<Receiver<Arrival>>,
    ) -> Result<Running, PublisherError> {
        let shared = self.shared.clone();
        let started = self.start_threads(arrivals);
        if started.is_err() {
            shared.shut_down();
        }
        started
    }

    fn start_threads(self, arrivals: Option<Receiver<Arrival>>) -> Result<Running, PublisherError> {
        let sources = self.sources(arrivals.is_some());
        let (config, shared) = (self.config, self.shared);
        let threads = config.threads.clone();
        let mut to = Publishing::new(self.drivers, sources, shared.clone());
        // Before anyone is served, so that every joiner finds the epoch opened.
        let began = now();
        to.event(|at| self.epoch.opened(shared.channels[at].plan.id), began)?;
        to.drive(began)?;
        let service =
            RepairService::new(config.repair, self.server, self.multicast, shared.clone())
                .offering(self.repair_offers, self.shares)
                .banning(config.banned)
                .denying(config.repair_verbs.and_then(|verbs| verbs.denied));
        let guard = StopOnFailure::new(shared.clone());
        let repair = spawn("repair", threads.repair_core, move || {
            let served = service.run();
            guard.of(served)
        })?;
        let admin = match self.admin {
            None => None,
            Some(admin) => {
                let shared = shared.clone();
                Some(spawn("admin", None, move || {
                    admin.run(&shared);
                    Ok(())
                })?)
            }
        };
        let with_inputs = config.end_when_inputs_end && arrivals.is_none();
        let (idle, also) = (threads.idle, shared.clone());
        let inputs: Vec<Input> = self.inputs.into_iter().map(|(_, input)| input).collect();
        let (publish, feeds) = match threads.mode {
            ThreadMode::Inline => {
                let run = move || pipeline::inline(inputs, to, &also, idle, with_inputs);
                (spawn("publish", threads.publish_core, run)?, Vec::new())
            }
            ThreadMode::Threaded => {
                let batches = threads.hop_batches;
                let (hops, feeds) =
                    pipeline::start_feeds(inputs, &shared, batches, idle, threads.feed_core)?;
                let run = move || pipeline::publish(hops, arrivals, to, &also, idle, with_inputs);
                (spawn("publish", threads.publish_core, run)?, feeds)
            }
        };
        Ok(Running {
            epoch: self.epoch,
            shared,
            publish,
            feeds,
            repair,
            admin,
        })
    }

    /// The inputs in their order, then one source for each channel that a handler may publish on.
    fn sources(&self, with_handlers: bool) -> Vec<Source> {
        let place_of = |name: &str| self.config.channels.iter().position(|c| c.name == name);
        let mut all = Vec::new();
        for (index, input) in &self.inputs {
            let own = self.config.inputs[*index].channel().and_then(place_of);
            all.push(Source {
                shared: input.shared().clone(),
                router: match own {
                    Some(channel) => Router::to(channel),
                    None => Router::new(self.rules.clone(), instrument_base(*index)),
                },
                counts: false,
            });
        }
        if with_handlers {
            for (place, channel) in self.config.channels.iter().enumerate() {
                let own = own_source(&self.config, &channel.name).unwrap_or(0);
                all.push(Source {
                    shared: self.shared.sources[own].clone(),
                    router: Router::to(place),
                    counts: true,
                });
            }
        }
        all
    }
}

/// Which input of the config is for handlers on this channel.
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

/// The threads of a publisher.
pub(crate) struct Running {
    epoch: EpochState,
    shared: Arc<Shared>,
    publish: Thread<()>,
    feeds: Vec<Thread<()>>,
    repair: Thread<()>,
    admin: Option<Thread<()>>,
}

impl Running {
    /// Waits until publishing has ended, then ends everything else.
    pub(crate) fn join(self) -> Result<Summary, PublisherError> {
        let shared = self.shared;
        let mut result = join(self.publish, "publish");
        shared.shut_down();
        for feed in self.feeds {
            result = result.and(join(feed, "feed"));
        }
        result = result.and(join(self.repair, "repair"));
        if let Some(admin) = self.admin {
            result = result.and(join(admin, "admin"));
        }
        result?;
        if shared.is_ended() {
            let ended_at = shared.channels.iter().map(|c| (c.plan.id, c.ring.sealed()));
            self.epoch.close(&ended_at.collect::<Vec<_>>())?;
        }
        Ok(Summary::of(&shared))
    }
}

fn join<T>(thread: Thread<T>, name: &'static str) -> Result<T, PublisherError> {
    let panicked = |_| Err(PublisherError::Panicked { thread: name });
    thread.join().unwrap_or_else(panicked)
}

fn open_fan_outs(channel: &ChannelPlan, to: Use<'_>) -> Result<FanOuts, PublisherError> {
    let all = channel.fan_outs.iter();
    all.map(|fan_out| fan_out.open(&channel.name, to)).collect()
}

/// Listens for NACK connections where the config says so; what new joiners are told of it.
fn listen_over_verbs(
    config: &Config,
    server: &mut ControlServer,
) -> Result<Vec<RepairOffer>, PublisherError> {
    let Some(verbs) = &config.repair_verbs else {
        return Ok(Vec::new());
    };
    let interface = verbs.interface.as_ref().unwrap_or(&config.interface);
    let resolved = interface.resolve().map_err(|error| {
        PublisherError::Config(ConfigError::value(
            "repair_verbs.interface",
            interface,
            error,
        ))
    })?;
    let address = SocketAddrV4::new(resolved.address, verbs.port);
    let listening = server.listen_over_verbs(address);
    let address = listening.map_err(|error| PublisherError::Listen {
        what: "repair_verbs",
        address: address.into(),
        reason: error.to_string(),
    })?;
    tracing::info!(%address, read = verbs.read, "connections for repair are taken over verbs");
    if verbs.read && verbs.cursors > 0 {
        share_cursors(server, verbs.cursors);
    }
    Ok(vec![RepairOffer::Verbs {
        address,
        read: verbs.read,
    }])
}

/// Has cursors registered, so that subscribers can say how far they are without a message. Where that
/// fails there are none, which the log says.
fn share_cursors(server: &mut ControlServer, cursors: u16) {
    if let Err(error) = server.share_cursors(cursors.into()) {
        tracing::warn!(
            cursors,
            "subscribers have no cursors, since these can't be registered: {error}; let more memory be \
             locked, or set repair_verbs.cursors to fewer, or 0"
        );
    }
}

/// Has the ring of a channel registered, so that subscribers can be let READ it. Where that fails
/// nothing is offered to be READ, which the log says: NACKs are answered all the same.
fn share(
    server: &mut ControlServer,
    offers: &mut [RepairOffer],
    shares: &mut Vec<(ChannelId, ShareId)>,
    channel: &ChannelPlan,
    ring: &RingWriter,
) {
    for offer in offers {
        let RepairOffer::Verbs { read, .. } = offer else {
            continue;
        };
        if !*read {
            continue;
        }
        match server.share(ring.memory()) {
            Ok(share) => shares.push((channel.id, share)),
            Err(error) => {
                *read = false;
                let name = &channel.name;
                tracing::warn!(
                    channel = name,
                    "no ring is offered to be READ, since this one can't be registered: {error}; \
                     let more memory be locked, or set repair_verbs.read to false"
                );
            }
        }
    }
}

fn create_ring(channel: &ChannelPlan, epoch: &EpochState) -> Result<RingWriter, PublisherError> {
    let memory = SharedMapping::memfd(
        &format!("tickcast-{}", channel.name),
        channel.geometry.bytes(),
    );
    let memory = memory.map_err(|source| PublisherError::Memory {
        channel: channel.name.clone(),
        source,
    })?;
    let identity = RingIdentity {
        channel: channel.id,
        epoch: epoch.epoch(),
        config_hash: channel.config_hash,
        boot_id: boot_id(),
        fan_outs: channel.fan_outs.len() as u8,
        first_sequence: Sequence::FIRST,
        first_record: RecordNumber::FIRST,
    };
    let ring = RingWriter::create(Arc::new(memory), channel.geometry, identity);
    ring.map_err(|source| PublisherError::Ring {
        channel: channel.name.clone(),
        source,
    })
}

/// The host's boot id; zeros where it has none.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tickcast_feeds::source::{Decoder, MessageCounts, Packet, Sink};

    use super::*;

    #[derive(Default)]
    struct Panics(MessageCounts);

    impl Decoder for Panics {
        fn packet(&mut self, _: Packet<'_>, _: &mut dyn Sink) {
            panic!("a decoder with a bug");
        }

        fn counts(&self) -> &MessageCounts {
            &self.0
        }
    }

    #[test]
    fn a_feed_thread_that_panics_ends_the_service_with_an_error() {
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
            matches!(ended, Err(PublisherError::Panicked { thread: t }) if t == thread),
            "{:?}",
            ended.err()
        );
    }
}
