//! A publisher that was killed goes on where it stood, in the same epoch: its rings outlived it, and its
//! inputs can be read again from their beginning. Where any of that does not hold, a new epoch begins, and
//! the log says why (docs/PROTOCOL.md §9; OPERATIONS).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tickcast_reliability::ring::RingWriter;
use tickcast_reliability::ring_layout::{RingError, RingIdentity};
use tickcast_reliability::units::{Epoch, FanOutId, Nanos, RecordNumber, Sequence, SourceId};
use tickcast_reliability::wire::PublisherState;
use tickcast_transport::mapping::{Found, SharedMapping};
use tickcast_transport::shm::{boot_id, tail_len};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{Config, InputConfig};
use crate::epoch::{EpochState, EpochsBefore};
use crate::error::PublisherError;
use crate::plan::ChannelPlan;
use crate::standby::keeping::Positions;

/// The rings of a publisher that begins, and the epoch that it publishes in.
pub(crate) struct Rings {
    /// With what they are for, in the order of the config.
    pub(crate) rings: Vec<(ChannelPlan, RingWriter)>,
    pub(crate) epoch: EpochState,
    /// How far the sources are sealed on each channel, where the epoch is that of before.
    pub(crate) sealed: Option<Vec<Positions>>,
}

/// Why an epoch can't be gone on with.
#[derive(Debug, Error)]
enum NotWhole {
    #[error("no ring of channel {0} was kept")]
    Gone(String),
    #[error("the session of before was ended")]
    Ended,
    #[error("the host was started anew since")]
    Rebooted,
    #[error("channel {0} is configured otherwise than its ring")]
    Configured(String),
    #[error("the inputs are configured otherwise than before")]
    Inputs,
    #[error("source {0} is heard live: what it told meanwhile, and what its decoder knew, is gone")]
    Live(SourceId),
    #[error("the ring of channel {channel} is of epoch {ring}, and the last one kept is {kept}")]
    Epoch {
        channel: String,
        ring: Epoch,
        kept: Epoch,
    },
    #[error("channel {channel}: {source}")]
    Ring { channel: String, source: RingError },
    #[error("channel {channel}: {reason}")]
    Memory { channel: String, reason: String },
}

impl Rings {
    /// Goes on with the rings that were kept, or makes new ones in a new epoch.
    ///
    /// # Errors
    /// [`PublisherError`]: memory or a state directory that can't be had.
    pub(crate) fn open(
        config: &Config,
        plans: Vec<ChannelPlan>,
        utc: Nanos,
    ) -> Result<Self, PublisherError> {
        let before = EpochsBefore::read(config.state_dir.as_deref(), &config.name)?;
        let before = before.with_inputs(inputs_hash(config));
        let Some(directory) = &config.ring_dir else {
            return Self::create(config, plans, before, utc);
        };
        std::fs::create_dir_all(directory).map_err(|source| PublisherError::State {
            what: "create",
            path: directory.clone(),
            source,
        })?;
        match kept(config, directory, &plans, &before) {
            Ok(rings) => {
                let sealed = rings.iter().map(|ring| ring.reader().positions());
                let sealed = sealed.collect::<Vec<Positions>>();
                let epoch = before.go_on();
                for (plan, ring) in plans.iter().zip(&rings) {
                    let unsent = (0..plan.fan_outs.len() as u8)
                        .map(|index| ring.sealed().since(ring.sent(FanOutId(index))));
                    tracing::info!(
                        channel = plan.name,
                        epoch = %epoch.epoch(),
                        last = %ring.sealed(),
                        unsent = unsent.max().unwrap_or(0),
                        "goes on in the epoch of before, behind what was sealed"
                    );
                }
                Ok(Self {
                    rings: plans.into_iter().zip(rings).collect(),
                    epoch,
                    sealed: Some(sealed),
                })
            }
            Err(why) => {
                match why {
                    NotWhole::Ended => tracing::info!("a new epoch begins: {why}"),
                    _ if before.last() == Epoch::NONE => {
                        tracing::info!("the first epoch begins: {why}");
                    }
                    _ => tracing::warn!("a new epoch begins: {why}"),
                }
                Self::create(config, plans, before, utc)
            }
        }
    }

    fn create(
        config: &Config,
        plans: Vec<ChannelPlan>,
        before: EpochsBefore,
        utc: Nanos,
    ) -> Result<Self, PublisherError> {
        let epoch = before.open(Epoch::NONE, utc)?;
        let rings = plans.into_iter().map(|plan| {
            let path = config
                .ring_dir
                .as_deref()
                .map(|at| path_of(at, config, &plan));
            let ring = create_ring(&plan, path.as_deref(), epoch.epoch())?;
            Ok((plan, ring))
        });
        Ok(Self {
            rings: rings.collect::<Result<_, PublisherError>>()?,
            epoch,
            sealed: None,
        })
    }
}

/// The rings that were kept, if all of them are whole and those of the last epoch.
fn kept(
    config: &Config,
    directory: &Path,
    plans: &[ChannelPlan],
    before: &EpochsBefore,
) -> Result<Vec<RingWriter>, NotWhole> {
    if !before.has_same_inputs() && before.last() != Epoch::NONE {
        return Err(NotWhole::Inputs);
    }
    let live = config
        .inputs
        .iter()
        .find(|input| matches!(input, InputConfig::Udp(_)));
    if let Some(input) = live {
        return Err(NotWhole::Live(input.source()));
    }
    let rings = plans.iter().map(|plan| {
        let ring = kept_ring(plan, &path_of(directory, config, plan))?;
        let identity = ring.identity();
        if identity.boot_id != boot_id() {
            return Err(NotWhole::Rebooted);
        }
        if (identity.channel, identity.config_hash) != (plan.id, plan.config_hash)
            || usize::from(identity.fan_outs) != plan.fan_outs.len()
        {
            return Err(NotWhole::Configured(plan.name.clone()));
        }
        match ring.reader().state() {
            Some(PublisherState::Live) => {}
            _ => return Err(NotWhole::Ended),
        }
        if identity.epoch != before.last() {
            return Err(NotWhole::Epoch {
                channel: plan.name.clone(),
                ring: identity.epoch,
                kept: before.last(),
            });
        }
        Ok(ring)
    });
    rings.collect()
}

fn kept_ring(plan: &ChannelPlan, path: &Path) -> Result<RingWriter, NotWhole> {
    let channel = || plan.name.clone();
    let (memory, found) =
        SharedMapping::file(path, plan.geometry.bytes()).map_err(|error| NotWhole::Memory {
            channel: channel(),
            reason: error.to_string(),
        })?;
    if found == Found::Fresh {
        return Err(NotWhole::Gone(channel()));
    }
    match RingWriter::reopen(Arc::new(memory)) {
        Ok(ring) if ring.geometry() == plan.geometry => Ok(ring),
        Ok(_) => Err(NotWhole::Configured(channel())),
        Err(RingError::Magic { .. }) => Err(NotWhole::Gone(channel())),
        Err(source) => Err(NotWhole::Ring {
            channel: channel(),
            source,
        }),
    }
}

fn create_ring(
    plan: &ChannelPlan,
    path: Option<&Path>,
    epoch: Epoch,
) -> Result<RingWriter, PublisherError> {
    let len = plan.geometry.bytes();
    let memory = match (plan.shared_at(), path) {
        (Some(path), _) => SharedMapping::fresh(path, len, tail_len(plan.geometry)),
        (None, Some(path)) => SharedMapping::file(path, len).map(|(memory, _)| memory),
        (None, None) => SharedMapping::memfd(&format!("tickcast-{}", plan.name), len),
    };
    let memory = memory.map_err(|source| PublisherError::Memory {
        channel: plan.name.clone(),
        source,
    })?;
    let identity = RingIdentity {
        channel: plan.id,
        epoch,
        config_hash: plan.config_hash,
        boot_id: boot_id(),
        fan_outs: plan.fan_outs.len() as u8,
        first_sequence: Sequence::FIRST,
        first_record: RecordNumber::FIRST,
    };
    let ring = RingWriter::create(Arc::new(memory), plan.geometry, identity);
    ring.map_err(|source| PublisherError::Ring {
        channel: plan.name.clone(),
        source,
    })
}

/// Where the ring of a channel is kept.
fn path_of(directory: &Path, config: &Config, plan: &ChannelPlan) -> PathBuf {
    directory.join(format!("{}.{}.ring", config.name, plan.name))
}

/// What the inputs are and where their messages go, as a number: other inputs, or the same ones in other
/// places, would not tell again what was told.
fn inputs_hash(config: &Config) -> u64 {
    let symbols: Vec<_> = config
        .channels
        .iter()
        .map(|c| (&c.name, &c.symbols))
        .collect();
    let all = serde_json::json!([config.inputs, symbols]);
    xxh3_64(all.to_string().as_bytes())
}
