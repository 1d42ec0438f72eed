//! The thread that fills the mirrors: a subscriber of the mirrored publisher, with a ring for each
//! channel. It ends when the mirrors are taken, or are no longer needed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tickcast_reliability::control::{ChannelOffer, Instrument, Start};
use tickcast_reliability::delivery::{Event, Position};
use tickcast_reliability::receive::{Mirror, MirrorHost, Receiver};
use tickcast_reliability::record::RecordRef;
use tickcast_reliability::types::{ChannelId, Nanos};
use tickcast_subscriber::mirror::{MirrorKeeper, MirrorSubscriber};
use tickcast_subscriber::{ChannelBuilder, Subscriber};
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::shm::boot_id;

use crate::config::{Config, FanOutConfig};
use crate::error::PublisherError;
use crate::plan::ChannelPlan;
use crate::state::hand_over::SessionNumber;
use crate::state::standby::StandbyState;
use crate::state::standby_view::{ChannelView, Head, Mark, Written};

/// Sleep time when there is nothing to do.
const WAIT: Duration = Duration::from_micros(50);
/// Interval between reports under constant load.
const REPORT_EVERY: Nanos = Nanos::from_ms(1);

/// The results of the thread.
pub(crate) struct Left {
    /// The mirrors there are.
    pub(crate) mirrors: BTreeMap<ChannelId, Mirror>,
    /// The instruments that the publisher named to joiners.
    pub(crate) directories: BTreeMap<ChannelId, Vec<Instrument>>,
}

/// The mirrors, and their subscriber.
pub(crate) struct Mirrors {
    mirroring: MirrorSubscriber,
    offers: Offers,
    state: Arc<StandbyState>,
}

/// The publisher's offers, and the mirrors made for them.
struct Offers {
    plans: Vec<ChannelPlan>,
    /// The reason why a channel can't be mirrored, by channel index.
    wrong: Vec<Option<String>>,
    /// The last record mirrored of each source, with its datagram's position.
    marks: Vec<Mark>,
    directories: BTreeMap<ChannelId, Vec<Instrument>>,
}

impl Mirrors {
    /// Creates the subscriber of these channels. The first datagram arrives once it runs.
    ///
    /// # Errors
    /// Returns [`PublisherError::Mirroring`] when the publisher's host is unknown, or the faults
    /// are invalid.
    pub(crate) fn new(
        config: &Config,
        plans: Vec<ChannelPlan>,
        state: Arc<StandbyState>,
    ) -> Result<Self, PublisherError> {
        let standby = &state.config;
        let mut builder = Subscriber::builder(&standby.of).name(&config.name);
        for interface in interfaces(config) {
            builder = builder.interface(interface);
        }
        builder = builder.latency(false);
        #[cfg(feature = "testing")]
        if let Some(faults) = &standby.faults {
            builder = builder.faults(faults.clone());
        }
        for plan in &plans {
            builder = builder.channel(ChannelBuilder::from(plan.id).start(Start::Oldest));
        }
        let mirroring = MirrorSubscriber::new(builder);
        let mirroring = mirroring.map_err(|error| PublisherError::Mirroring {
            of: standby.of.clone(),
            reason: error.to_string(),
        })?;
        Ok(Self {
            mirroring,
            offers: Offers {
                wrong: vec![None; plans.len()],
                marks: Vec::new(),
                plans,
                directories: BTreeMap::new(),
            },
            state,
        })
    }

    /// Fills the mirrors until they are taken, or `is_over` returns `true`.
    pub(crate) fn run(mut self, is_over: impl Fn() -> bool) -> Left {
        let mut report_at = Nanos::ZERO;
        while !self.state.wants_mirrors() && !is_over() {
            let worked = self.mirroring.poll(&mut self.offers).worked();
            let now = SystemClock.now();
            if !worked || now >= report_at {
                report_at = now.after(REPORT_EVERY);
                self.report(now);
            }
            if !worked {
                std::thread::sleep(WAIT);
            }
        }
        self.report(SystemClock.now());
        let ids = self.offers.plans.iter().map(|plan| plan.id);
        let mirroring = &mut self.mirroring;
        let mirrors = ids.filter_map(|id| Some((id, mirroring.take_mirror(id)?)));
        Left {
            mirrors: mirrors.collect(),
            directories: self.offers.directories,
        }
    }

    /// Publishes the status for other threads.
    fn report(&self, now: Nanos) {
        let core = self.mirroring.core();
        let mut view = self.state.view();
        view.link_up = core.is_joined();
        view.session = core.session().map(SessionNumber);
        view.problem = self.mirroring.problem().map(ToString::to_string);
        // Between two polls every datagram is whole: its last record is that of its last message.
        view.marks.clone_from(&self.offers.marks);
        for (index, (channel, plan)) in view.channels.iter_mut().zip(&self.offers.plans).enumerate()
        {
            channel.wrong.clone_from(&self.offers.wrong[index]);
            refresh(channel, core.receiver(plan.id), core.mirror(plan.id), now);
        }
    }
}

/// Returns the interfaces: the publisher's lines are assumed to be on the interfaces of ours.
fn interfaces(config: &Config) -> Vec<Interface> {
    let first = config.channels.first().and_then(|it| it.fan_out.first());
    let lines: Vec<_> = match first {
        Some(FanOutConfig::Udp(udp)) => udp.lines.iter().map(|line| &line.interface).collect(),
        Some(FanOutConfig::Verbs(verbs)) => {
            verbs.lines.iter().map(|line| &line.interface).collect()
        }
        Some(FanOutConfig::Shm(_)) | None => Vec::new(),
    };
    let own = |line: &Option<Interface>| line.clone().unwrap_or_else(|| config.interface.clone());
    lines.into_iter().map(own).collect()
}

/// Updates the status of one channel.
fn refresh(to: &mut ChannelView, receiver: Option<&Receiver>, mirror: Option<&Mirror>, now: Nanos) {
    to.is_heard = receiver.is_some_and(|receiver| {
        let state = receiver.stream_state();
        !state.stale && !state.publisher_dead && !state.ended
    });
    to.lag = receiver.map_or(0, Receiver::lag);
    to.written = receiver.map(Written::of).unwrap_or_default();
    if to.lag == 0 || to.mirrored.is_none() {
        to.whole_at = now;
    }
    to.behind = now.since(to.whole_at);
    to.mirrored = mirror.map(Mirror::mirrored);
    to.positions.clear();
    to.positions
        .extend(mirror.into_iter().flat_map(Mirror::positions));
}

impl MirrorKeeper for Offers {
    fn offered(&mut self, offer: &ChannelOffer, wants_mirror: bool) -> Option<Mirror> {
        let at = self
            .plans
            .iter()
            .position(|plan| plan.id == offer.channel)?;
        self.directories
            .insert(offer.channel, offer.directory.clone());
        let before = self.wrong[at].take();
        let plan = &self.plans[at];
        let made = match offer.config_hash == plan.config_hash {
            true if !wants_mirror => return None,
            true => mirror_for(plan, offer),
            false => Err(format!(
                "the publisher's config of channel {} differs ({} slots of {} bytes there): make \
                 name, symbols, slots and slot_len of both equal, and restart the standby",
                plan.name, offer.slots, offer.slot_len
            )),
        };
        match made {
            Ok(mirror) => {
                tracing::info!(channel = plan.name, epoch = %offer.epoch, "mirroring");
                Some(mirror)
            }
            Err(wrong) => {
                if before.as_ref() != Some(&wrong) {
                    tracing::error!("{wrong}");
                }
                self.wrong[at] = Some(wrong);
                None
            }
        }
    }

    #[inline]
    fn record(&mut self, position: &Position, record: RecordRef<'_>) {
        let mark = Mark {
            source: position.source,
            at: position.source_position,
            head: Head::of(record),
        };
        match self
            .marks
            .iter_mut()
            .find(|known| known.source == mark.source)
        {
            Some(known) => *known = mark,
            None => self.marks.push(mark),
        }
    }

    fn event(&mut self, position: &Position, event: &Event) {
        let channel = position.channel.0;
        match event {
            Event::Lost(loss) => {
                tracing::warn!(
                    channel,
                    "the mirror restarts after a gap that can't be repaired: {loss}"
                );
            }
            Event::EpochChanged { .. }
            | Event::EpochContinued { .. }
            | Event::PublisherDead
            | Event::RepairLinkDown(_)
            | Event::RepairLinkUp
            | Event::EndOfSession => tracing::info!(channel, "mirrored publisher: {event}"),
            _ => tracing::debug!(channel, "mirrored publisher: {event}"),
        }
    }
}

fn mirror_for(plan: &ChannelPlan, offer: &ChannelOffer) -> Result<Mirror, String> {
    let failed =
        |error: String| format!("can't create the mirror of channel {}: {error}", plan.name);
    let geometry = Mirror::geometry_of(offer).map_err(|error| failed(error.to_string()))?;
    let memory = SharedMapping::memfd(&format!("tickcast-{}", plan.name), geometry.bytes());
    let memory = memory.map_err(|error| failed(error.to_string()))?;
    let host = MirrorHost {
        fan_outs: plan.lines().len() as u8,
        boot_id: boot_id().unwrap_or_default(),
        config_hash: plan.config_hash,
    };
    Mirror::create(Arc::new(memory), offer, host).map_err(|error| failed(error.to_string()))
}
