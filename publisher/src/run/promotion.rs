//! A promotion opens the new epoch on the mirrors; its first event names the epoch it continues.
//! Messages that the mirrors lack are published before anything new.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tickcast_reliability::control::Instrument;
use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::types::{Epoch, Nanos};
use tickcast_reliability::wire::StreamEvent;
use tickcast_transport::control::Reserved;

use crate::admin::latency_log;
use crate::config::Config;
use crate::error::PublisherError;
use crate::plan::ChannelPlan;
use crate::publish::{PublishStage, Source};
use crate::recovery::epoch_file::{EpochState, EpochsBefore};
use crate::repair::audit;
use crate::repair::server_config;
use crate::run::assemble::Channels;
use crate::standby::agreement::as_heard;
use crate::standby::backlog::Backlog;
use crate::standby::mirror_thread::Left;
use crate::state::hand_over::PublishPosition;
use crate::state::positions::Positions;
use crate::state::standby::{Promoted, Reason, StandbyState};
use crate::state::standby_view::Agreement;
use crate::state::thread::{Thread, now};
use crate::state::{Shared, SourceShared};

/// Kept messages that are published between two sends.
const KEPT_A_ROUND: usize = 256;

/// The parts needed to publish.
pub(crate) struct Candidate {
    pub(crate) config: Config,
    pub(crate) plans: Vec<ChannelPlan>,
    pub(crate) epochs: EpochsBefore,
    pub(crate) control: Reserved,
    pub(crate) sources: Vec<Arc<SourceShared>>,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) state: Arc<StandbyState>,
}

/// Input received until the promotion.
pub(crate) struct Heard {
    pub(crate) sources: Vec<Source>,
    pub(crate) backlog: Backlog,
    /// The instruments that were announced, by channel.
    pub(crate) announced: Vec<BTreeMap<u32, Instrument>>,
    /// Results of comparing the sources with their mirrored messages, in the sources' order.
    pub(crate) agreements: Vec<Agreement>,
}

impl Heard {
    /// Removes the mirrored positions and kept messages that the sources' agreements make unusable.
    fn relate(&mut self, mirrored: &mut [Positions]) {
        let sources = self.sources.iter_mut().zip(&self.agreements);
        for (index, (source, agreement)) in sources.enumerate() {
            let (id, session) = (source.shared.source, self.backlog.ordinal(index));
            source.ordinals = agreement.ordinals().unwrap_or(0);
            for of in &mut *mirrored {
                of.retain(|(other, at)| *other != id || agreement.relates(*at, session));
            }
            match agreement {
                Agreement::Agrees { .. } => {}
                Agreement::Differs => self.backlog.forget(index),
                Agreement::Unknown => tracing::warn!(
                    source = id.0,
                    "no received message of this source could be compared with the mirror"
                ),
            }
        }
    }
}

/// The promoted publisher, running.
pub(crate) struct PromotedPublisher {
    pub(crate) shared: Arc<Shared>,
    pub(crate) epoch: EpochState,
    pub(crate) repair: Thread<()>,
    /// The thread that keeps the latency log.
    pub(crate) latency: Option<Thread<()>>,
    pub(crate) config: Config,
    pub(crate) promoted: Promoted,
}

/// The new epoch, and the position of each channel in it.
struct Continued {
    epoch: EpochState,
    /// The previous epoch.
    continues: Epoch,
    rings: Vec<(ChannelPlan, RingWriter)>,
    /// First event of each channel.
    opened: Vec<StreamEvent>,
    publish_positions: Vec<PublishPosition>,
    /// Positions of the sources on each channel.
    positions: Vec<Positions>,
}

impl Candidate {
    /// Opens the new epoch on the mirrors, and publishes the kept messages. Returns the publishing
    /// and the serving parts.
    ///
    /// # Errors
    /// Returns [`PublisherError`] if a resource is missing. This standby can't continue then.
    pub(crate) fn continue_publishing(
        self,
        base: &Shared,
        mut heard: Heard,
        mut left: Left,
        reason: Reason,
    ) -> Result<(PublishStage, PromotedPublisher), PublisherError> {
        let (began, config, state) = (now(), self.config, self.state);
        let complete = reason == Reason::HandedOver;
        let opens = (self.epochs, began.utc);
        let mut continued = Continued::from_mirrors(self.plans, &mut left, opens, complete)?;
        heard.relate(&mut continued.positions);
        let server = self.control.listen(server_config(&config));
        let server = server.map_err(|error| PublisherError::Listen {
            what: "control",
            address: config.control,
            reason: error.to_string(),
        })?;
        let channels = Channels::open(&config, continued.rings, server, began)?;
        for (channel, announced) in channels.shared.iter().zip(heard.announced) {
            let named = left.directories.remove(&channel.plan.id);
            let mut directory = channel.directory();
            let all = named
                .unwrap_or_default()
                .into_iter()
                .chain(announced.into_values());
            all.for_each(|instrument| directory.put(instrument));
        }
        let mut shared = Shared::new(
            config.name.clone(),
            continued.epoch.epoch(),
            channels.shared.clone(),
            self.sources,
            self.stop,
            Nanos::from_ms(config.linger_ms),
        );
        shared.endpoints = base.endpoints.clone();
        shared.show_config(&config);
        let shared = Arc::new(shared.of_standby(state.clone()));
        let (drivers, serving) = channels.split();
        let positions = continued.positions;
        let entries = heard
            .backlog
            .into_entries(&as_counted_here(&positions, &heard.sources));
        let mut to = PublishStage::new(drivers, heard.sources, shared.clone()).resuming(positions);
        // Before serving, so that every joiner finds the epoch open.
        to.event(|at| Some(continued.opened[at].clone()), began)?;
        to.report_silences(began);
        to.drive(began)?;
        base.promote(shared.clone());
        let repair = serving.start(&config, &shared)?;
        let latency = latency_log::start(&config, &shared)?;
        let before = published(&shared);
        for (n, (source, entry)) in entries.enumerate() {
            let now = now();
            to.take_backlog(source, &entry, now);
            if n % KEPT_A_ROUND == KEPT_A_ROUND - 1 {
                to.drive(now)?;
            }
        }
        // Messages in open slots count as published once they are sealed.
        to.flush(now());
        let again = published(&shared) - before;
        state.counters.published_again_messages.set(again);
        state.counters.kept_messages.set(0);
        let promoted = Promoted {
            epoch: continued.epoch.epoch(),
            continues: continued.continues,
            reason,
            channels: continued.publish_positions,
        };
        let opened = PromotedPublisher {
            shared,
            epoch: continued.epoch,
            repair,
            latency,
            config,
            promoted,
        };
        opened.log(again);
        Ok((to, opened))
    }
}

impl PromotedPublisher {
    /// Logs the promotion.
    fn log(&self, published_again: u64) {
        let promoted = &self.promoted;
        let why = promoted.reason.text();
        audit::write_entry(
            "promoted",
            audit::Of {
                why: Some(why),
                ..audit::Of::default()
            },
        );
        let (epoch, continues) = (promoted.epoch, promoted.continues);
        tracing::warn!(
            %epoch,
            %continues,
            published_again,
            "promoted: {why}; this process publishes from now on"
        );
    }
}

impl Continued {
    /// Promotes every mirror, under an epoch that was kept before. `complete`: the publisher handed over.
    fn from_mirrors(
        plans: Vec<ChannelPlan>,
        left: &mut Left,
        (epochs, utc): (EpochsBefore, Nanos),
        complete: bool,
    ) -> Result<Self, PublisherError> {
        let mut mirrors = Vec::new();
        for plan in plans {
            let mirror = left.mirrors.remove(&plan.id);
            let mirror = mirror.ok_or_else(|| PublisherError::Mirroring {
                of: plan.name.clone(),
                reason: "its mirror was dropped during the promotion; start the standby again"
                    .into(),
            })?;
            mirrors.push((plan, mirror));
        }
        let epochs_before = mirrors.iter().map(|(_, mirror)| mirror.mirrored().epoch);
        let continues = epochs_before.max().unwrap_or(Epoch::NONE);
        let mut continued = Self {
            epoch: epochs.open(continues, utc)?,
            continues,
            rings: Vec::new(),
            opened: Vec::new(),
            publish_positions: Vec::new(),
            positions: Vec::new(),
        };
        for (plan, mirror) in mirrors {
            let at = mirror.mirrored();
            continued.positions.push(mirror.positions().collect());
            continued.publish_positions.push(PublishPosition {
                channel: plan.id,
                last: at.last,
                next_record: at.next_record,
            });
            let promotion = mirror.promote(continued.epoch.epoch(), complete);
            let promotion = promotion.map_err(|refused| PublisherError::Promotion {
                channel: plan.name.clone(),
                source: refused.error,
            })?;
            continued.opened.push(promotion.opened);
            continued.rings.push((plan, promotion.ring));
        }
        Ok(continued)
    }
}

/// Converts positions to the ordinals of these sources.
fn as_counted_here(positions: &[Positions], sources: &[Source]) -> Vec<Positions> {
    let of = |source| {
        let found = sources.iter().find(|it| it.shared.source == source);
        Some(found.map_or(0, |source| source.ordinals))
    };
    positions.iter().map(|at| as_heard(at, of)).collect()
}

/// Returns the number of messages published on all channels.
fn published(shared: &Shared) -> u64 {
    let all = shared.channels.iter();
    all.map(|channel| channel.sender.published_messages.get())
        .sum()
}
