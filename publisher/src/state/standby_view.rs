//! The status of the mirrors, as the mirror thread publishes it.

use serde::Serialize;
use serde_json::{Value, json};
use tickcast_reliability::receive::InboxState;
use tickcast_reliability::receive::InboxView;
use tickcast_reliability::receive::Mirrored;
use tickcast_reliability::receive::Receiver;
use tickcast_reliability::record::{RecordBatch, RecordRef};
use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, RecordNumber, SourceId, SourcePosition,
};

use crate::plan::ChannelPlan;
use crate::state::hand_over::{PublishPosition, SessionNumber};
use crate::state::positions::Positions;

/// The compared part of a record: its instrument and its event time. The receive time differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) rtype: u8,
    pub(crate) instrument: u32,
    pub(crate) ts_event: u64,
}

impl Head {
    pub(crate) fn of(record: RecordRef<'_>) -> Self {
        let header = record.header();
        Self {
            rtype: header.rtype,
            instrument: header.instrument_id,
            ts_event: header.ts_event,
        }
    }

    /// Returns the head of a message's last record.
    pub(crate) fn of_last(message: &RecordBatch) -> Option<Self> {
        message.records().last().map(Self::of)
    }
}

/// The last message of a mirrored datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) source: SourceId,
    /// Position in the publisher's count.
    pub(crate) at: SourcePosition,
    pub(crate) head: Head,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Agreement {
    /// Nothing could be compared yet.
    #[default]
    Unknown,
    /// The messages agree; the publisher's ordinals are higher by `ordinals`.
    Agrees { ordinals: i32 },
    /// The messages differ.
    Differs,
}

impl Agreement {
    /// Returns the difference of the publisher's ordinals, if known.
    pub(crate) const fn ordinals(self) -> Option<i32> {
        match self {
            Self::Agrees { ordinals } => Some(ordinals),
            Self::Unknown | Self::Differs => None,
        }
    }

    /// Returns whether a mirrored position applies to the local source in the session with this
    /// ordinal. Without a comparison, equal ordinals are assumed, and other sessions do not relate.
    pub(crate) const fn relates(self, mirrored: SourcePosition, session: u16) -> bool {
        match self {
            Self::Agrees { .. } => true,
            Self::Unknown => mirrored.ordinal() == session,
            Self::Differs => false,
        }
    }
}

/// The status of all mirrors.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// Whether the publisher's WELCOME arrived, and the connection is up.
    pub(crate) link_up: bool,
    /// Session of the connection, while it is up.
    pub(crate) session: Option<SessionNumber>,
    /// The problem that keeps the mirrors from being filled.
    pub(crate) problem: Option<String>,
    /// Whether the publisher would hear a request to hand over, or the reason against it; `None` while that
    /// is not known.
    pub(crate) commands: Option<Result<(), String>>,
    /// In the order of the config.
    pub(crate) channels: Vec<ChannelView>,
    /// The last message mirrored of each source, for comparison with the local input.
    pub(crate) marks: Vec<Mark>,
    /// Comparison results, in the order of the inputs.
    pub(crate) agreements: Vec<(SourceId, Agreement)>,
}

/// The status of one channel.
#[derive(Debug)]
pub(crate) struct ChannelView {
    pub(crate) id: ChannelId,
    pub(crate) name: String,
    /// The permanent reason for having no mirror.
    pub(crate) wrong: Option<String>,
    /// `None` before the publisher's welcome.
    pub(crate) mirrored: Option<Mirrored>,
    /// Sequences that the publisher sent and the mirror lacks.
    pub(crate) lag: u64,
    /// Time for which the mirror has lacked any.
    pub(crate) behind: Nanos,
    pub(crate) whole_at: Nanos,
    /// Whether the publisher's multicast arrives.
    pub(crate) is_heard: bool,
    /// The publisher's writes to this standby.
    pub(crate) written: Written,
    /// The mirrored position of each source.
    pub(crate) positions: Positions,
}

/// The contents of a channel's inbox; all 0 if there is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    pub(crate) inbox: Option<InboxView>,
    /// Sequences that the publisher sent, and that were not found written.
    pub(crate) lag: u64,
    pub(crate) datagrams: u64,
    pub(crate) first: u64,
    pub(crate) skipped: u64,
    pub(crate) torn: u64,
}

impl Written {
    pub(crate) fn of(receiver: &Receiver) -> Self {
        let (inbox, counters) = (receiver.inbox(), receiver.counters());
        let known = receiver.progress().0.plus(receiver.lag());
        Self {
            inbox,
            lag: inbox.map_or(0, |inbox| known.since(inbox.newest)),
            datagrams: counters.inbox_received.get(),
            first: counters.inbox_first.get(),
            skipped: counters.inbox_skipped.get(),
            torn: counters.inbox_torn.get(),
        }
    }

    /// Returns the newest sequence found.
    pub(crate) fn newest(&self) -> u64 {
        self.inbox.map_or(0, |inbox| inbox.newest.0)
    }

    fn json(&self) -> Value {
        let state = match self.inbox.map(|inbox| inbox.state) {
            None => "none",
            Some(InboxState::Asked) => "asked",
            Some(InboxState::Written) => "written",
            Some(InboxState::Refused(why)) => why.text(),
        };
        json!({
            "state": state,
            "slots": self.inbox.map_or(0, |inbox| inbox.slots),
            "newest": self.newest(),
            "lag_sequences": self.lag,
            "datagrams": self.datagrams,
            "first": self.first,
            "skipped": self.skipped,
            "torn": self.torn,
        })
    }
}

impl View {
    pub(crate) fn new(plans: &[ChannelPlan]) -> Self {
        let channel = |plan: &ChannelPlan| ChannelView::new(plan.id, &plan.name);
        Self {
            channels: plans.iter().map(channel).collect(),
            ..Self::default()
        }
    }

    /// Returns whether any path shows that the publisher is alive.
    pub(crate) fn is_publisher_alive(&self) -> bool {
        self.link_up || self.is_heard()
    }

    /// Returns the reason why the publisher would not hear a request to hand over.
    pub(crate) fn commands_problem(&self) -> Option<&str> {
        self.commands.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Returns whether its multicast arrives.
    pub(crate) fn is_heard(&self) -> bool {
        self.channels.iter().any(|channel| channel.is_heard)
    }

    /// Marks that the publisher is no longer monitored.
    pub(crate) fn close(&mut self) {
        (self.link_up, self.session) = (false, None);
        for channel in &mut self.channels {
            channel.is_heard = false;
            (channel.lag, channel.behind) = (0, Nanos::ZERO);
        }
    }

    /// Returns the epoch that all channels are mirrored in.
    ///
    /// # Errors
    /// Returns the reason as text, if there is none.
    pub(crate) fn epoch(&self) -> Result<Epoch, String> {
        let mut epoch = None;
        for channel in &self.channels {
            if let Some(wrong) = &channel.wrong {
                return Err(wrong.clone());
            }
            let mirrored = channel
                .mirrored
                .filter(|it| it.next_record != RecordNumber(0));
            let Some(mirrored) = mirrored else {
                let name = &channel.name;
                let why = self
                    .problem
                    .as_deref()
                    .unwrap_or("check that the publisher runs");
                return Err(format!("channel {name} is not mirrored yet; {why}"));
            };
            if mirrored.ended {
                let name = &channel.name;
                return Err(format!(
                    "the publisher has ended its session on channel {name}: there is nothing to \
                     continue"
                ));
            }
            if epoch.is_some_and(|epoch| epoch != mirrored.epoch) {
                return Err("the channels are mirrored in different epochs; try again".into());
            }
            epoch = Some(mirrored.epoch);
        }
        epoch.ok_or_else(|| "there is no channel".into())
    }

    /// Returns a source whose local messages differ from the publisher's.
    pub(crate) fn differing(&self) -> Option<SourceId> {
        let mut all = self.agreements.iter();
        let found = all.find(|(_, agreement)| *agreement == Agreement::Differs);
        found.map(|(source, _)| *source)
    }

    /// Returns the mirrored position of each channel.
    pub(crate) fn publish_positions(&self) -> Vec<PublishPosition> {
        let all = self.channels.iter().filter_map(|channel| {
            let mirrored = channel.mirrored?;
            Some(PublishPosition {
                channel: channel.id,
                last: mirrored.last,
                next_record: mirrored.next_record,
            })
        });
        all.collect()
    }
}

impl ChannelView {
    /// Creates a status without information.
    pub(crate) fn new(id: ChannelId, name: &str) -> Self {
        Self {
            id,
            name: name.to_owned(),
            wrong: None,
            mirrored: None,
            lag: 0,
            behind: Nanos::ZERO,
            whole_at: Nanos::ZERO,
            is_heard: false,
            written: Written::default(),
            positions: Positions::new(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        let mirrored = self.mirrored;
        let held = mirrored.and_then(|it| it.held);
        let sources: Vec<_> = (self.positions.iter())
            .map(|(source, at)| json!({ "source": source, "ordinal": at.ordinal(), "sequence": at.sequence() }))
            .collect();
        json!({
            "id": self.id,
            "name": self.name,
            "epoch": mirrored.map(|it| it.epoch),
            "oldest": held.map(|it| it.first),
            "last": mirrored.map(|it| it.last),
            "next_record": mirrored.map(|it| it.next_record),
            "ended": mirrored.is_some_and(|it| it.ended),
            "holes": mirrored.map_or(0, |it| it.holes),
            "lag_sequences": self.lag,
            "lag_us": self.behind.as_us(),
            "heard": self.is_heard,
            "written": self.written.json(),
            "sources": sources,
            "problem": self.wrong,
        })
    }
}
