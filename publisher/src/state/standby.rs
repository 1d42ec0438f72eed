//! State shared by the threads of a standby.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};
use tickcast_http::Token;
use tickcast_reliability::types::{Epoch, SourceId};

use crate::config::StandbyConfig;
use crate::plan::ChannelPlan;
use crate::state::hand_over::PublishPosition;
use crate::state::standby_view::{Agreement, ChannelView, View};

tickcast_reliability::counters! {
    /// Counters of a standby.
    pub struct StandbyCounters {
        /// Messages of the inputs kept because they are not mirrored yet (a gauge).
        kept_messages,
        /// Messages evicted to make room; a promotion reports those not mirrored as lost.
        evicted_messages,
        /// Messages published again at the promotion.
        published_again_messages,
        /// Times that a promotion was refused or failed.
        promotions_refused,
        /// Times that the notice of a higher epoch was answered and not taken.
        notices_refused,
    }
}

/// The reason of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reason {
    /// The publisher handed over.
    HandedOver,
    /// The publisher is gone.
    PublisherDead,
    /// A client forced it, even if the publisher is alive.
    Forced,
}

impl Reason {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::HandedOver => "the publisher handed over",
            Self::PublisherDead => "the publisher is gone",
            Self::Forced => "by force",
        }
    }
}

/// The result of a promotion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename = "promoted")]
pub(crate) struct Promoted {
    /// The epoch that was opened.
    pub epoch: Epoch,
    /// The epoch that it continues.
    pub continues: Epoch,
    /// Reason of the promotion.
    pub reason: Reason,
    /// Position of each channel at the promotion.
    pub channels: Vec<PublishPosition>,
}

/// The phase of a standby.
#[derive(Clone, Debug, Default)]
pub(crate) enum Phase {
    /// It mirrors.
    #[default]
    Mirroring,
    /// A promotion was requested, and the publisher is being asked.
    Asking,
    /// The publish thread must continue from the mirrors.
    Ordered(Reason),
    /// The publish thread is continuing from the mirrors.
    Opening,
    Promoted(Promoted),
    /// The publish thread could not continue.
    Failed(String),
}

/// State shared by the threads of a standby.
#[derive(Debug)]
pub(crate) struct StandbyState {
    /// Name of the standby.
    pub(crate) name: String,
    pub(crate) config: StandbyConfig,
    /// Token of the publisher's command port.
    pub(crate) token: Option<Token>,
    /// Counters of the standby.
    pub counters: StandbyCounters,
    view: Mutex<View>,
    phase: Mutex<Phase>,
    /// Notified once the phase is final.
    pub(crate) changed: Condvar,
    /// Whether the mirrors are requested.
    wants_mirrors: AtomicBool,
}

impl StandbyState {
    pub(crate) fn new(
        name: String,
        config: StandbyConfig,
        token: Option<Token>,
        plans: &[ChannelPlan],
    ) -> Self {
        Self {
            name,
            config,
            token,
            counters: StandbyCounters::default(),
            view: Mutex::new(View::new(plans)),
            phase: Mutex::default(),
            changed: Condvar::new(),
            wants_mirrors: AtomicBool::new(false),
        }
    }

    pub(crate) fn want_mirrors(&self) {
        self.wants_mirrors.store(true, Release);
    }

    pub(crate) fn wants_mirrors(&self) -> bool {
        self.wants_mirrors.load(Acquire)
    }

    pub(crate) fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name of its state.
    pub(crate) fn state(&self) -> &'static str {
        match &*self.phase() {
            Phase::Mirroring if self.view().epoch().is_err() => "joining",
            Phase::Mirroring => "mirroring",
            Phase::Asking | Phase::Ordered(_) | Phase::Opening => "promoting",
            Phase::Promoted(_) => "promoted",
            Phase::Failed(_) => "failed",
        }
    }

    /// Returns whether it was promoted, or never will be.
    pub(crate) fn is_promoted(&self) -> bool {
        matches!(&*self.phase(), Phase::Promoted(_) | Phase::Failed(_))
    }

    /// Returns its full status.
    #[must_use]
    pub(crate) fn json(&self) -> Value {
        let state = self.state();
        let (promoted, failed) = match &*self.phase() {
            Phase::Promoted(promoted) => (Some(promoted.clone()), None),
            Phase::Failed(why) => (None, Some(why.clone())),
            _ => (None, None),
        };
        let view = self.view();
        let not_ready = view.epoch().err();
        json!({
            "name": self.name,
            "of": self.config.of,
            "state": state,
            "publisher_alive": view.is_publisher_alive(),
            "problem": failed.or(not_ready).or_else(|| view.problem.clone()),
            "commands_problem": view.commands_problem(),
            "promoted": promoted,
            "kept_messages": self.counters.kept_messages.get(),
            "evicted_messages": self.counters.evicted_messages.get(),
            "sources": view.agreements.iter().map(source_json).collect::<Vec<_>>(),
            "channels": view.channels.iter().map(ChannelView::json).collect::<Vec<_>>(),
        })
    }
}

fn source_json((source, agreement): &(SourceId, Agreement)) -> Value {
    json!({ "source": source, "publisher": agreement })
}
