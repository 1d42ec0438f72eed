//! A killed publisher continues in its epoch: its rings outlived it, and its inputs can be read
//! again from their beginning. Otherwise a new epoch begins, and the log and the stream give the
//! reason (docs/PROTOCOL.md §9; OPERATIONS).

pub(crate) mod epoch_file;
mod input_identity;
pub(crate) mod live;
pub(crate) mod sources_file;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tickcast_reliability::ring::{RingError, RingIdentity, RingWriter};
use tickcast_reliability::types::{Epoch, FanOutId, Nanos, RecordNumber, Sequence, SourceId};
use tickcast_reliability::wire::{EpochReason, PublisherState};
use tickcast_transport::host::files::create_directory;
use tickcast_transport::host::mapping::{Kept, SharedMapping};
use tickcast_transport::shm::{boot_id, tail_len};

use crate::config::{Config, InputConfig};
use crate::error::PublisherError;
use crate::plan::ChannelPlan;
use crate::recovery::epoch_file::{EpochState, EpochsBefore};
use crate::state::positions::Positions;
use input_identity::Inputs;
use live::{NotResumed, ResumedSource};

/// The rings of a starting publisher, and its epoch.
pub(crate) struct Rings {
    /// The rings and their plans, in the order of the config.
    pub(crate) rings: Vec<(ChannelPlan, RingWriter)>,
    pub(crate) epoch: EpochState,
    /// Sealed positions of the sources on each channel, if the epoch continues.
    pub(crate) sealed: Option<Vec<Positions>>,
    /// The live sources that continue.
    pub(crate) live: Vec<ResumedSource>,
}

/// The reason why an epoch can't continue.
#[derive(Debug, Error)]
enum NotWhole {
    #[error("no ring of channel {0} was kept")]
    Gone(String),
    #[error("the ring file of channel {0} is empty: it was never written, or was truncated")]
    Empty(String),
    #[error(
        "the ring of channel {channel} has {found} bytes, but {needed} are configured: its slots \
         differ, or it was truncated"
    )]
    Length {
        channel: String,
        found: u64,
        needed: usize,
    },
    #[error("the previous session has ended")]
    Ended,
    #[error("the host was rebooted since")]
    Rebooted,
    #[error("the configuration of channel {0} differs from its ring")]
    Configured(String),
    #[error("the configuration of the inputs has changed")]
    Inputs,
    #[error("the capture of source {0} was replaced: its length or modification time has changed")]
    Capture(SourceId),
    #[error("source {0} is live, and can't continue: {1}")]
    Live(SourceId, NotResumed),
    #[error(
        "state_dir does not record epoch {ring} of channel {channel}: its earlier file is missing"
    )]
    Forgotten { channel: String, ring: Epoch },
    #[error("the ring of channel {channel} has epoch {ring}, but state_dir records {kept}")]
    Epoch {
        channel: String,
        ring: Epoch,
        kept: Epoch,
    },
    #[error("channel {channel}: {source}")]
    Ring { channel: String, source: RingError },
}

impl NotWhole {
    /// Returns the epoch of a whole ring, which may be above that of `state_dir`.
    const fn above(&self) -> Epoch {
        match self {
            Self::Epoch { ring, .. } | Self::Forgotten { ring, .. } => *ring,
            _ => Epoch::NONE,
        }
    }

    /// Returns the reason as the stream reports it.
    const fn reason(&self) -> EpochReason {
        match self {
            Self::Gone(_) | Self::Empty(_) => EpochReason::RingGone,
            Self::Length { .. } | Self::Configured(_) | Self::Inputs => EpochReason::Reconfigured,
            Self::Ended => EpochReason::SessionEnded,
            Self::Rebooted => EpochReason::Rebooted,
            Self::Capture(_) => EpochReason::SourceChanged,
            Self::Live(..) => EpochReason::LiveInput,
            Self::Forgotten { .. } | Self::Epoch { .. } => EpochReason::StateGone,
            Self::Ring { .. } => EpochReason::RingDamaged,
        }
    }
}

impl Rings {
    /// Continues with the kept rings, or creates new ones in a new epoch above `before`.
    ///
    /// # Errors
    /// Returns [`PublisherError`] if memory or the state directory is unavailable. If a kept ring
    /// is unavailable, nothing was changed.
    pub(crate) fn open(
        config: &Config,
        plans: Vec<ChannelPlan>,
        before: EpochsBefore,
        utc: Nanos,
    ) -> Result<Self, PublisherError> {
        let before = before.with_inputs(Inputs::of(config));
        let Some(directory) = &config.ring_dir else {
            let nobodys = boot_id().unwrap_or_default();
            return Self::create(config, plans, before, (Epoch::NONE, nobodys), utc);
        };
        let boot_id = boot_id().map_err(|source| PublisherError::System {
            what: "read the host's boot id, which ring_dir needs",
            source,
        })?;
        create_directory(directory).map_err(PublisherError::state)?;
        match kept(config, directory, &plans, &before, boot_id)? {
            Ok((rings, live)) => {
                let sealed = rings.iter().map(|ring| ring.reader().positions());
                let sealed = sealed.collect::<Vec<Positions>>();
                let epoch = before.next_state();
                for (plan, ring) in plans.iter().zip(&rings) {
                    let unsent = (0..plan.lines().len() as u8)
                        .map(|index| ring.sealed().since(ring.sent(FanOutId(index))));
                    tracing::info!(
                        channel = plan.name,
                        epoch = %epoch.epoch(),
                        last = %ring.sealed(),
                        unsent = unsent.max().unwrap_or(0),
                        "continues the previous epoch after the last sealed sequence"
                    );
                }
                Ok(Self {
                    rings: plans.into_iter().zip(rings).collect(),
                    epoch,
                    sealed: Some(sealed),
                    live,
                })
            }
            Err(why) => {
                let is_first = before.last() == Epoch::NONE;
                let mut created = Self::create(config, plans, before, (why.above(), boot_id), utc)?;
                let reason = match why {
                    NotWhole::Gone(_) | NotWhole::Empty(_) if is_first => EpochReason::Fresh,
                    _ => why.reason(),
                };
                created.epoch = created.epoch.because(reason);
                match reason {
                    EpochReason::Fresh => tracing::info!("the first epoch begins: {why}"),
                    EpochReason::SessionEnded => tracing::info!("a new epoch begins: {why}"),
                    _ => tracing::warn!("a new epoch begins: {why}"),
                }
                Ok(created)
            }
        }
    }

    /// Creates rings of a new epoch. The epoch is kept after the rings exist and before anything is
    /// published. A failed start leaves at most empty rings of an unused epoch, and `state_dir` is
    /// never behind a published ring.
    fn create(
        config: &Config,
        plans: Vec<ChannelPlan>,
        before: EpochsBefore,
        (above, boot_id): (Epoch, [u8; 16]),
        utc: Nanos,
    ) -> Result<Self, PublisherError> {
        let epoch = before.next(above, utc);
        // Allocate all memory before the first old ring is overwritten.
        let memories = plans.iter().map(|plan| memory_for(config, plan));
        let memories = memories.collect::<Result<Vec<_>, PublisherError>>()?;
        let rings = plans.into_iter().zip(memories).map(|(plan, memory)| {
            let identity = identity_of(&plan, epoch, boot_id);
            let ring = RingWriter::create(Arc::new(memory), plan.geometry, identity);
            let ring = ring.map_err(|source| PublisherError::Ring {
                channel: plan.name.clone(),
                source,
            })?;
            Ok((plan, ring))
        });
        Ok(Self {
            rings: rings.collect::<Result<_, PublisherError>>()?,
            epoch: before.keep(epoch)?,
            sealed: None,
            live: Vec::new(),
        })
    }
}

/// Rings that outlived their publisher, and the live sources that continue in them.
type KeptRings = (Vec<RingWriter>, Vec<ResumedSource>);

/// Returns the kept rings, if all of them are whole and of the last epoch, and every input can
/// continue.
///
/// # Errors
/// Returns [`PublisherError`] if a ring is in use or unavailable now: it may be whole.
fn kept(
    config: &Config,
    directory: &Path,
    plans: &[ChannelPlan],
    before: &EpochsBefore,
    boot_id: [u8; 16],
) -> Result<Result<KeptRings, NotWhole>, PublisherError> {
    let memories = plans.iter().map(|plan| {
        let kept = SharedMapping::kept(&path_of(directory, config, plan), plan.geometry.bytes());
        kept.map_err(|source| PublisherError::Memory {
            channel: plan.name.clone(),
            source,
        })
    });
    let memories = memories.collect::<Result<Vec<Kept>, PublisherError>>()?;
    if let Err(why) = can_resume(config, before) {
        return Ok(Err(why));
    }
    let rings = plans.iter().zip(memories).map(|(plan, memory)| {
        let memory = match memory {
            Kept::None => return Err(NotWhole::Gone(plan.name.clone())),
            Kept::Length(0) => return Err(NotWhole::Empty(plan.name.clone())),
            Kept::Length(found) => {
                return Err(NotWhole::Length {
                    channel: plan.name.clone(),
                    found,
                    needed: plan.geometry.bytes(),
                });
            }
            Kept::Whole(memory) => memory,
        };
        whole(plan, memory, before, boot_id)
    });
    let rings: Result<Vec<_>, NotWhole> = rings.collect();
    Ok(rings.and_then(|rings| {
        let live = live::resumed(config, &rings);
        let live = live.map_err(|(source, why)| NotWhole::Live(source, why))?;
        Ok((rings, live))
    }))
}

/// Checks that the inputs of the last epoch are the same, and replay their messages or number them.
fn can_resume(config: &Config, before: &EpochsBefore) -> Result<(), NotWhole> {
    if before.last() == Epoch::NONE {
        return Ok(());
    }
    if !before.has_same_inputs() {
        return Err(NotWhole::Inputs);
    }
    if let Some(source) = before.changed_capture() {
        return Err(NotWhole::Capture(source));
    }
    let mut inputs = config.inputs.iter();
    match inputs.find(|it| matches!(it, InputConfig::Records(_))) {
        Some(input) => Err(NotWhole::Live(input.source(), NotResumed::Records)),
        None => Ok(()),
    }
}

/// Returns the ring of a channel, if it is whole and of the last epoch.
fn whole(
    plan: &ChannelPlan,
    memory: SharedMapping,
    before: &EpochsBefore,
    boot_id: [u8; 16],
) -> Result<RingWriter, NotWhole> {
    let channel = || plan.name.clone();
    let damaged = |source| NotWhole::Ring {
        channel: channel(),
        source,
    };
    let control = |word, value| damaged(RingError::Control { word, value });
    let ring = RingWriter::reopen(Arc::new(memory)).map_err(damaged)?;
    let found = *ring.identity();
    if found.boot_id != boot_id {
        return Err(NotWhole::Rebooted);
    }
    let ours = identity_of(plan, found.epoch, boot_id);
    if (found.channel, found.config_hash, found.fan_outs)
        != (ours.channel, ours.config_hash, ours.fan_outs)
        || ring.geometry() != plan.geometry
    {
        return Err(NotWhole::Configured(channel()));
    }
    if found != ours {
        return Err(control("first sequence", found.first_sequence.0));
    }
    if let Some(continued) = ring.lineage().epochs().first() {
        return Err(control("epoch continued", continued.epoch.0));
    }
    match before.last() {
        kept if kept == found.epoch => {}
        Epoch::NONE => {
            return Err(NotWhole::Forgotten {
                channel: channel(),
                ring: found.epoch,
            });
        }
        kept => {
            return Err(NotWhole::Epoch {
                channel: channel(),
                ring: found.epoch,
                kept,
            });
        }
    }
    match ring.reader().state() {
        Some(PublisherState::Live) => Ok(ring),
        Some(PublisherState::Ended) => Err(NotWhole::Ended),
        other => Err(control("state", other.map_or(0, |state| state as u64))),
    }
}

fn memory_for(config: &Config, plan: &ChannelPlan) -> Result<SharedMapping, PublisherError> {
    let len = plan.geometry.bytes();
    let memory = match (plan.shared_at(), &config.ring_dir) {
        (Some(path), _) => SharedMapping::fresh(path, len, tail_len(plan.geometry)),
        (None, Some(at)) => {
            SharedMapping::file(&path_of(at, config, plan), len).map(|(memory, _)| memory)
        }
        (None, None) => SharedMapping::memfd(&format!("tickcast-{}", plan.name), len),
    };
    memory.map_err(|source| PublisherError::Memory {
        channel: plan.name.clone(),
        source,
    })
}

/// Returns the identity of a channel's ring at the start of the epoch.
fn identity_of(plan: &ChannelPlan, epoch: Epoch, boot_id: [u8; 16]) -> RingIdentity {
    RingIdentity {
        channel: plan.id,
        epoch,
        config_hash: plan.config_hash,
        boot_id,
        fan_outs: plan.lines().len() as u8,
        first_sequence: Sequence::FIRST,
        first_record: RecordNumber::FIRST,
    }
}

/// Returns the path of a channel's ring that outlives the publisher.
pub(crate) fn path_of(directory: &Path, config: &Config, plan: &ChannelPlan) -> PathBuf {
    directory.join(format!("{}.{}.ring", config.name, plan.name))
}

#[cfg(test)]
mod tests;
