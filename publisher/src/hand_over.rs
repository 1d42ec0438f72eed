//! The orderly end of a publisher in favour of its standby: it stops sealing, is told when the mirror
//! has everything up to its last, and ends without END. Whatever goes wrong before that, it goes on.
//!
//! The standby asks again and again (`POST /hand-over`): each time is a promise to be there a little
//! longer, and says how far its mirror is. Sealing rests for as long as these come. Once the answer
//! that this publisher ends is written, it does, and not before: a standby that never heard of it
//! finds nobody there any more, and has everything.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tickcast_reliability::units::{ChannelId, Epoch, RecordNumber, Sequence};

use crate::audit;
use crate::shared::Shared;

/// How long sealing rests after the standby was heard last.
const REST_MAX: Duration = Duration::from_secs(2);

/// Where a channel stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Which.
    pub channel: ChannelId,
    /// The last sequence sealed; of a mirror, the last one that is there without a hole.
    pub last: Sequence,
    /// Number of the record after it.
    pub next_record: RecordNumber,
}

/// What a standby asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Its name, under which it has joined as well.
    pub(crate) standby: String,
    /// The epoch that it mirrors.
    pub(crate) epoch: Epoch,
    /// How far.
    #[serde(default)]
    pub(crate) mirrored: Vec<Standing>,
    /// The higher epoch that it has opened already, by force: there is nothing to wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) superseded_by: Option<Epoch>,
}

/// What it is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Nothing is sealed just now; where each channel stands, once that is final.
    Resting {
        /// Empty before it is.
        channels: Vec<Standing>,
    },
    /// The publisher ends, without END.
    Ends {
        /// Where it ended.
        channels: Vec<Standing>,
    },
    /// It goes on.
    Refused {
        /// Why, and what to do.
        why: String,
    },
}

/// What the publish thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Publish on.
    GoOn,
    /// Seal nothing, but send what is sealed, and heartbeats.
    Rest,
    /// End without END.
    End,
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Publishing,
    Resting {
        /// Who asks.
        standby: String,
        until: Instant,
        /// Where all stands, once it is final.
        channels: Vec<Standing>,
    },
    Ended {
        standby: String,
    },
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct HandOver {
    /// Whom it may be handed over to.
    allowed: Vec<String>,
    /// Whether `phase` is another than publishing.
    is_asked: AtomicBool,
    phase: Mutex<Phase>,
}

impl HandOver {
    pub(crate) fn to(allowed: Vec<String>) -> Self {
        Self {
            allowed,
            ..Self::default()
        }
    }

    /// Whether the publish thread has anything to do with it.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Acquire)
    }

    /// Who has taken over.
    pub(crate) fn taken_by(&self) -> Option<String> {
        match &*self.phase() {
            Phase::Ended { standby } => Some(standby.clone()),
            _ => None,
        }
    }

    /// What to do now; `standing` tells where all channels stand, once what is sealed was sent.
    pub(crate) fn step(
        &self,
        now: Instant,
        is_stopping: bool,
        standing: impl FnOnce() -> Option<Vec<Standing>>,
    ) -> Step {
        let mut phase = self.phase();
        match &mut *phase {
            Phase::Publishing => Step::GoOn,
            Phase::Ended { .. } => Step::End,
            Phase::Resting { standby, until, .. } if is_stopping || now >= *until => {
                tracing::warn!(
                    standby,
                    "the standby has not taken over: publishing goes on"
                );
                *phase = Phase::Publishing;
                self.is_asked.store(false, Release);
                Step::GoOn
            }
            Phase::Resting { channels, .. } => {
                if channels.is_empty()
                    && let Some(all) = standing()
                {
                    *channels = all;
                }
                Step::Rest
            }
        }
    }

    /// Answers a standby. Where the answer is [`Answer::Ends`], [`HandOver::end`] must follow once it
    /// is written.
    pub(crate) fn ask(&self, request: &Request, shared: &Shared, now: Instant) -> Answer {
        let refused = |why: String| Answer::Refused { why };
        let name = &request.standby;
        if !self.allowed.contains(name) {
            return refused(format!(
                "this publisher hands over to nobody called {name:?}; name it in hand_over_to"
            ));
        }
        if let Some(epoch) = request.superseded_by {
            if epoch <= shared.epoch {
                return refused(format!("epoch {epoch} is not above {}", shared.epoch));
            }
            let channels = Vec::new();
            return Answer::Ends { channels };
        }
        if request.epoch != shared.epoch {
            return refused(format!(
                "epoch {} is published here, not {}; let the mirror catch up",
                shared.epoch, request.epoch
            ));
        }
        if !is_joined(shared, name) {
            return refused(format!(
                "nobody called {name:?} follows every channel; there is no standby to take over"
            ));
        }
        if shared.is_stopping() {
            return refused("this publisher is ending its session".into());
        }
        let mut phase = self.phase();
        match &mut *phase {
            Phase::Ended { .. } => {
                let channels = Vec::new();
                Answer::Ends { channels }
            }
            Phase::Resting { standby, until, .. } if standby != name && now < *until => {
                refused(format!("{standby:?} is taking over already"))
            }
            Phase::Resting {
                standby,
                until,
                channels,
            } if standby == name => {
                *until = now + REST_MAX;
                let channels = channels.clone();
                if !channels.is_empty() && channels == request.mirrored {
                    Answer::Ends { channels }
                } else {
                    Answer::Resting { channels }
                }
            }
            _ => {
                tracing::info!(
                    standby = name,
                    "a standby takes over: nothing is sealed meanwhile"
                );
                *phase = Phase::Resting {
                    standby: name.clone(),
                    until: now + REST_MAX,
                    channels: Vec::new(),
                };
                self.is_asked.store(true, Release);
                let channels = Vec::new();
                Answer::Resting { channels }
            }
        }
    }

    /// The standby was told that this publisher ends: so it does.
    pub(crate) fn end(&self, request: &Request, shared: &Shared) {
        let standby = request.standby.clone();
        // A word may come twice.
        if self.taken_by().is_some() {
            return;
        }
        match request.superseded_by {
            None => tracing::info!(standby, "handed over: this publisher ends without END"),
            Some(epoch) => tracing::error!(
                standby,
                %epoch,
                "superseded: a standby has opened a higher epoch by force; this publisher ends without END"
            ),
        }
        let what = match request.superseded_by {
            None => "handed_over",
            Some(_) => "superseded",
        };
        audit::say(
            what,
            audit::Of {
                subscriber: Some(&standby),
                ..audit::Of::default()
            },
        );
        *self.phase() = Phase::Ended { standby };
        self.is_asked.store(true, Release);
        shared.abandon();
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether somebody of that name follows every channel, in the epoch that is published.
fn is_joined(shared: &Shared, name: &str) -> bool {
    let subscribers = shared.subscribers();
    let follows = |channel| {
        let mut all = subscribers.iter();
        all.any(|it| it.joined && it.follows && it.name == name && it.channel == channel)
    };
    shared.channels.iter().all(|it| follows(it.plan.id))
}
