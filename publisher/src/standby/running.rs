//! The service of a standby: what can fail for its config is open from the start, and what a promotion
//! needs beyond that is little.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tickcast_reliability::mirror::Promotion;
use tickcast_reliability::units::{Epoch, Nanos};
use tickcast_reliability::wire::StreamEvent;
use tickcast_transport::control::Reserved;

use super::agreement::{Agreement, Comparing, as_heard};
use super::keeping::{Kept, Positions, channels_of};
use super::mirrors::{Left, Mirrors};
use super::{Promoted, Reason, StandbyState};
use crate::admin::Admin;
use crate::audit;
use crate::building::{Channels, open_fan_outs};
use crate::config::{Config, StandbyConfig};
use crate::epoch::{EpochState, EpochsBefore};
use crate::error::PublisherError;
use crate::hand_over::{HandOver, Standing};
use crate::hop::{HopReceiver, Taken};
use crate::pipeline::{self, StopOnFailure, Thread, now, spawn};
use crate::plan::fan_out::Use;
use crate::plan::{ChannelPlan, Plan};
use crate::publish::{Publishing, Source};
use crate::repair_service::server_config;
use crate::session::{Inputs, join, open_inputs, sources_of};
use crate::shared::{Shared, SourceShared};
use crate::summary::Summary;

/// Batches taken from one source before the others have their turn.
const BATCHES_A_ROUND: usize = 16;
/// Kept messages that are published before what is sealed is sent.
const KEPT_A_ROUND: usize = 256;

/// A standby that has everything it needs, and has not begun.
pub(crate) struct Standby {
    publisher: NotYet,
    shared: Arc<Shared>,
    sources: Vec<Source>,
    pub(crate) inputs: Inputs,
    mirrors: Mirrors,
    admin: Admin,
    control: SocketAddr,
}

/// What it takes to publish.
struct NotYet {
    config: Config,
    plans: Vec<ChannelPlan>,
    epochs: EpochsBefore,
    control: Reserved,
    sources: Vec<Arc<SourceShared>>,
    stop: Arc<AtomicBool>,
    state: Arc<StandbyState>,
}

/// What was promoted, and runs.
struct Opened {
    shared: Arc<Shared>,
    epoch: EpochState,
    repair: Thread<()>,
}

impl Standby {
    /// Opens sockets and inputs, takes the address for subscribers, and holds the state directory.
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
        // The plan has seen to it that there is one.
        let admin = Admin::bind(config.admin.unwrap_or_else(|| ([127, 0, 0, 1], 0).into()))?;
        let epochs = EpochsBefore::read(config.state_dir.as_deref(), &config.name)?;
        let (sources, mut inputs) = open_inputs(&config)?;
        // The feed is heard whether or not anybody follows here.
        (inputs.iter_mut()).for_each(|(_, input)| input.wait_for_nobody());
        for plan in &plan.channels {
            // Only to see that they can be had: they are opened again on what is mirrored.
            open_fan_outs(plan, Use::Copies)?;
        }
        let state = Arc::new(StandbyState::new(config.name.clone(), of, &plan.channels));
        let mirrors = Mirrors::new(&config, plan.channels.clone(), state.clone())?;
        let shared = Shared::new(
            config.name.clone(),
            Epoch::NONE,
            Vec::new(),
            sources.clone(),
            stop.clone(),
            Nanos::from_ms(config.linger_ms),
        );
        Ok(Self {
            sources: sources_of(&config, &plan.rules, &inputs),
            shared: Arc::new(shared.with(HandOver::default(), Some(state.clone()))),
            publisher: NotYet {
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
            admin,
            control,
        })
    }

    /// Where subscribers will connect.
    pub(crate) const fn control_address(&self) -> SocketAddr {
        self.control
    }

    pub(crate) const fn admin_address(&self) -> SocketAddr {
        self.admin.address()
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Mirrors, and publishes once it is promoted, until the session ends or it is told to stop.
    pub(crate) fn run(self) -> Result<Summary, PublisherError> {
        let base = self.shared.clone();
        let outcome = self.run_threads();
        // Whatever went wrong: the threads that look at this one's flags end as well.
        base.shut_down();
        outcome
    }

    fn run_threads(self) -> Result<Summary, PublisherError> {
        let base = self.shared;
        let threads = self.publisher.config.threads.clone();
        let admin = self.admin.start(&base)?;
        let mirrors = {
            let (mirrors, shared) = (self.mirrors, base.clone());
            let guard = StopOnFailure::new(base.clone());
            spawn("mirror", None, move || {
                guard.of(Ok(mirrors.run(|| shared.is_stopping())))
            })?
        };
        let inputs = self.inputs.into_iter().map(|(_, input)| input).collect();
        let (batches, idle, core) = (threads.hop_batches, threads.idle, threads.feed_core);
        let (hops, feeds) = pipeline::start_feeds(inputs, &base, batches, idle, core)?;
        let publish = {
            let (publisher, sources, shared) = (self.publisher, self.sources, base.clone());
            let guard = StopOnFailure::new(base.clone());
            spawn("publish", threads.publish_core, move || {
                guard.of(publisher.hear_and_publish(&shared, sources, hops, mirrors))
            })?
        };
        let published = join(publish, "publish");
        base.current().shut_down();
        base.shut_down();
        let mut result = Ok(());
        for feed in feeds {
            result = result.and(join(feed, "feed"));
        }
        let opened = published?;
        if let Some(opened) = opened {
            result = result.and(join(opened.repair, "repair"));
            result = result.and(opened.epoch.close_if_ended(&opened.shared));
        }
        result.and(join(admin, "admin"))?;
        Ok(Summary::of(base.current()))
    }
}

impl NotYet {
    /// Keeps what is heard and not mirrored, until it is to be published.
    fn hear_and_publish(
        self,
        base: &Shared,
        mut sources: Vec<Source>,
        hops: Vec<HopReceiver>,
        mirrors: Thread<Left>,
    ) -> Result<Option<Opened>, PublisherError> {
        let mut idle = self.config.threads.idle;
        let ids = sources.iter().map(|source| source.shared.source);
        let mut kept = Kept::new(ids, self.state.config.keep_messages);
        let mut announced = vec![Vec::new(); self.plans.len()];
        let mut comparing: Vec<Comparing> = sources.iter().map(|_| Comparing::default()).collect();
        let mut mirrored: Vec<Positions> = vec![Vec::new(); self.plans.len()];
        let reason = loop {
            if base.is_stopping() {
                join(mirrors, "mirror")?;
                return Ok(None);
            }
            if let Some(reason) = self.state.ordered() {
                break reason;
            }
            let mut worked = false;
            for (index, hop) in hops.iter().enumerate() {
                for _ in 0..BATCHES_A_ROUND {
                    let Taken::Batch(batch) = hop.take() else {
                        break;
                    };
                    worked = true;
                    for item in batch.items() {
                        let router = &mut sources[index].router;
                        let channels = channels_of(router, &item, |it| {
                            for channel in it.channels.iter() {
                                announced[channel].push(it.instrument.clone());
                            }
                        });
                        let pushed = kept.take(index, &item, channels);
                        self.state.counters.pushed_out_messages.add(pushed);
                    }
                    hop.give_back(batch);
                }
            }
            self.compare(&sources, &kept, &mut comparing, &mut mirrored);
            kept.trim(&mirrored);
            self.state.counters.kept_messages.set(kept.len() as u64);
            idle.idle(worked);
        };
        let state = self.state.clone();
        self.state.want_mirrors();
        let left = join(mirrors, "mirror")?;
        for (index, (source, comparing)) in sources.iter_mut().zip(&comparing).enumerate() {
            match comparing.agreement() {
                Agreement::Agrees { ordinals } => source.ordinals = ordinals,
                Agreement::Differs => kept.forget(index),
                Agreement::Unknown => tracing::warn!(
                    source = source.shared.source.0,
                    "nothing that was heard of this source could be compared with what is mirrored of it"
                ),
            }
        }
        let opened = self.go_on(base, sources, left, kept, announced, reason);
        match opened {
            Err(error) => {
                state.opened(Err(format!("{error}; this standby ends")));
                Err(error)
            }
            Ok((opened, to, config, promoted)) => {
                state.opened(Ok(promoted));
                let shared = opened.shared.clone();
                let with_inputs = config.end_when_inputs_end;
                pipeline::publish(hops, None, to, &shared, idle, with_inputs)?;
                Ok(Some(opened))
            }
        }
    }

    /// Compares what is mirrored with what is kept, and says how far each channel is, as positions
    /// are counted here.
    fn compare(
        &self,
        sources: &[Source],
        kept: &Kept,
        comparing: &mut [Comparing],
        mirrored: &mut [Positions],
    ) {
        let mut view = self.state.view();
        for (index, (source, comparing)) in sources.iter().zip(comparing.iter_mut()).enumerate() {
            let mut marks = view.marks.iter();
            let newest = marks.find(|mark| mark.source == source.shared.source);
            comparing.look(newest.copied(), |sequence| kept.find(index, sequence));
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
            found.map_or(Agreement::Unknown, |(_, agreement)| *agreement)
        };
        for (to, channel) in mirrored.iter_mut().zip(&view.channels) {
            *to = as_heard(&channel.positions, of);
        }
    }

    /// Opens the new epoch on the mirrors, and publishes what was kept.
    #[expect(
        clippy::type_complexity,
        reason = "what one promotion makes, for one caller"
    )]
    fn go_on(
        self,
        base: &Shared,
        sources: Vec<Source>,
        mut left: Left,
        kept: Kept,
        announced: Vec<Vec<tickcast_reliability::control::Instrument>>,
        reason: Reason,
    ) -> Result<(Opened, Publishing, Config, Promoted), PublisherError> {
        let began = now();
        let state = self.state;
        let mirrors = (self.plans.iter()).filter_map(|plan| left.mirrors.remove(&plan.id));
        let mirrors: Vec<_> = mirrors.collect();
        if mirrors.len() != self.plans.len() {
            return Err(PublisherError::Mirroring {
                of: state.config.of.clone(),
                reason: "a mirror was given up meanwhile".into(),
            });
        }
        let mirrored = mirrors.iter().map(|mirror| mirror.mirrored());
        let continues = mirrored.map(|it| it.epoch).max().unwrap_or(Epoch::NONE);
        let epoch = self.epochs.open(continues, began.utc)?;
        let (mut rings, mut events, mut standings) = (Vec::new(), Vec::new(), Vec::new());
        let mut positions: Vec<Positions> = Vec::new();
        for (plan, mirror) in self.plans.into_iter().zip(mirrors) {
            let at = mirror.mirrored();
            positions.push(mirror.positions().collect());
            standings.push(Standing {
                channel: plan.id,
                last: at.last,
                next_record: at.next_record,
            });
            let promotion = mirror.promote(epoch.epoch());
            let Promotion { ring, opened } =
                promotion.map_err(|refused| PublisherError::Promotion {
                    channel: plan.name.clone(),
                    source: refused.error,
                })?;
            events.push(opened);
            rings.push((plan, ring));
        }
        let config = self.config;
        let server = self.control.listen(server_config(&config.repair));
        let server = server.map_err(|error| PublisherError::Listen {
            what: "control",
            address: config.control,
            reason: error.to_string(),
        })?;
        let channels = Channels::open(&config, rings, server, began)?;
        for (channel, announced) in channels.shared.iter().zip(announced) {
            let named = left
                .directories
                .remove(&channel.plan.id)
                .unwrap_or_default();
            let mut directory = channel.directory();
            named
                .into_iter()
                .chain(announced)
                .for_each(|it| directory.put(it));
        }
        let mut shared = Shared::new(
            config.name.clone(),
            epoch.epoch(),
            channels.shared.clone(),
            self.sources,
            self.stop,
            Nanos::from_ms(config.linger_ms),
        );
        shared.admin = base.admin.clone();
        let hand_over = HandOver::to(config.hand_over_to.clone());
        let shared = Arc::new(shared.with(hand_over, Some(state.clone())));
        let (drivers, serving) = channels.split();
        // As they are counted here; what could not be compared is taken to count alike.
        let of = |source| {
            let found = sources.iter().find(|it| it.shared.source == source);
            Agreement::Agrees {
                ordinals: found.map_or(0, |source| source.ordinals),
            }
        };
        let heard: Vec<_> = positions.iter().map(|at| as_heard(at, of)).collect();
        let entries = kept.into_entries(&heard);
        let mut to = Publishing::new(drivers, sources, shared.clone()).resuming(positions);
        // Before anyone is served, so that every joiner finds the epoch opened.
        let opened = |at: usize| -> StreamEvent { events[at].clone() };
        to.event(opened, began)?;
        to.drive(began)?;
        base.promote(shared.clone());
        let repair = serving.start(&config, &shared)?;
        let before: u64 = published(&shared);
        for (n, (source, entry)) in entries.enumerate() {
            let now = now();
            to.take_kept(source, &entry, now);
            if n % KEPT_A_ROUND == KEPT_A_ROUND - 1 {
                to.drive(now)?;
            }
        }
        let counters = &state.counters;
        counters
            .published_again_messages
            .set(published(&shared) - before);
        counters
            .suppressed_messages
            .set(to.suppressed().unwrap_or(0));
        counters.kept_messages.set(0);
        let promoted = Promoted {
            epoch: epoch.epoch(),
            continues,
            reason,
            channels: standings,
        };
        let why = Some(reason.text());
        audit::say(
            "promoted",
            audit::Of {
                why,
                ..audit::Of::default()
            },
        );
        tracing::warn!(
            epoch = %promoted.epoch,
            continues = %promoted.continues,
            published_again = counters.published_again_messages.get(),
            "promoted: {}; this publishes from here on",
            reason.text()
        );
        let opened = Opened {
            shared,
            epoch,
            repair,
        };
        Ok((opened, to, config, promoted))
    }
}

/// Messages published on all channels.
fn published(shared: &Shared) -> u64 {
    let all = shared.channels.iter();
    all.map(|channel| channel.sender.published_messages.get())
        .sum()
}
