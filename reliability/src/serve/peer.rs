//! The connections of the repair service: their purpose, their channels and their output. Each holds a
//! bounded amount of memory, whatever its peer does.

use crate::control::{Join, NAME_LEN_MAX, Purpose, RejectCode, Rejected};
use crate::serve::lane::Lane;
use crate::serve::output::Output;
use crate::serve::peer_channels::{PeerChannel, PeerChannels};
use crate::serve::peer_id::PeerId;
use crate::serve::standby_writes::MirrorWriter;
use crate::types::{ChannelId, Nanos, PeerOrigin};
use crate::wire::WireVersions;

/// Maximum number of channels in one JOIN.
pub(super) const JOIN_CHANNELS_MAX: usize = 256;
/// Minimum interval between two reports that the same peer is slow.
const SLOW_EVERY: Nanos = Nanos::from_secs(1);
/// Maximum number of reports of latency in a second, for each channel. A subscriber sends one, but a
/// connection that stood still may bring many at once.
const REPORTS_MAX: usize = 64;

/// The transport of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// TCP, or any other plain byte stream.
    Tcp,
    /// A reliable connection of RDMA verbs, over which memory can be READ.
    Verbs,
}

/// The purpose and state of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// No JOIN was received yet.
    Connecting,
    /// The peer follows channels.
    Subscriber {
        session: u64,
        replay: Option<PeerId>,
        nack: Option<PeerId>,
        read: Option<PeerId>,
    },
    /// Replays history for this session.
    Replay { session: u64 },
    /// Repairs gaps for this session.
    Nack { session: u64 },
    /// READs rings for this session, in this attempt of the subscriber.
    Read { session: u64, attempt: u64 },
    /// The connection closes once this rejection is sent.
    Closing(Rejected),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The origin of its session; before it has one, its own.
    origin: PeerOrigin,
    /// The connection that owns its session; before it has one, and afterwards, itself.
    owner: PeerId,
    role: Role,
    carrier: Carrier,
    name: String,
    pub(super) channels: PeerChannels,
    /// Whether the connection waits for its turn, for each [`Lane`].
    waits: [bool; 3],
    pub(super) output: Output,
    heard_at: Nanos,
    /// Time before which the peer is not reported as slow.
    slow_at: Nanos,
    /// The beginning of the current second of its reports of latency, and their number.
    reports: (Nanos, usize),
    /// The WRITEs over the connection; for READ connections only.
    pub(super) writes: MirrorWriter,
}

impl Peer {
    pub(crate) fn new(id: PeerId, now: Nanos, carrier: Carrier, origin: PeerOrigin) -> Self {
        Self {
            origin,
            owner: id,
            role: Role::Connecting,
            carrier,
            name: String::new(),
            channels: PeerChannels::default(),
            waits: [false; 3],
            output: Output::default(),
            heard_at: now,
            slow_at: Nanos::ZERO,
            reports: (Nanos::ZERO, 0),
            writes: MirrorWriter::default(),
        }
    }

    /// Gives the connection its role in a session, and its channels, each with its index in the core.
    pub(crate) fn join(
        &mut self,
        role: Role,
        owner: PeerId,
        name: String,
        channels: impl Iterator<Item = (ChannelId, usize)>,
    ) {
        self.role = role;
        self.owner = owner;
        self.name = name;
        self.channels = PeerChannels::new(channels);
    }

    /// Ends the connection's role, and returns it with the state of the channels. `id` is the connection.
    pub(crate) fn resign(&mut self, id: PeerId) -> (Role, Vec<PeerChannel>) {
        self.owner = id;
        let role = std::mem::replace(&mut self.role, Role::Connecting);
        (role, std::mem::take(&mut self.channels).into_all())
    }

    /// Counts a report of latency. Returns whether there are more of them than a subscriber sends.
    pub(crate) fn floods_reports(&mut self, now: Nanos) -> bool {
        if now.since(self.reports.0) >= Nanos::from_secs(1) {
            self.reports = (now, 0);
        }
        self.reports.1 += 1;
        self.reports.1 > REPORTS_MAX * self.channels.len()
    }

    /// Closes the connection once its output is sent, which ends with this rejection.
    pub(crate) fn close(&mut self, reason: Rejected) {
        self.role = Role::Closing(reason);
    }

    /// Moves the connection to the origin of its session, and returns the origin before.
    pub(crate) const fn move_to(&mut self, origin: PeerOrigin) -> PeerOrigin {
        std::mem::replace(&mut self.origin, origin)
    }

    pub(crate) const fn origin(&self) -> PeerOrigin {
        self.origin
    }

    pub(crate) const fn owner(&self) -> PeerId {
        self.owner
    }

    pub(crate) const fn role(&self) -> &Role {
        &self.role
    }

    pub(crate) const fn carrier(&self) -> Carrier {
        self.carrier
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Records that the peer sent a message.
    pub(crate) const fn heard(&mut self, now: Nanos) {
        self.heard_at = now;
    }

    /// Returns the time since the peer's last message.
    pub(crate) fn silence(&self, now: Nanos) -> Nanos {
        now.since(self.heard_at)
    }

    /// Returns whether the connection joined for repair and so represents its subscriber.
    pub(crate) const fn is_subscriber(&self) -> bool {
        matches!(self.role, Role::Subscriber { .. })
    }

    /// Records that the peer is so many datagrams behind on a channel with this many slots. Returns whether
    /// it is to be reported as slow: when it comes to be more than half a ring behind, and not again before
    /// it is at most a quarter behind.
    pub(crate) fn comes_to_be_slow(
        &mut self,
        at: usize,
        behind: u64,
        slots: u64,
        now: Nanos,
    ) -> bool {
        let of = &mut self.channels[at];
        if of.slow {
            of.slow = behind > slots / 4;
            return false;
        }
        // A slow peer that may not be reported yet is still slow at its next PROGRESS.
        of.slow = behind > slots / 2 && now >= self.slow_at;
        if of.slow {
            self.slow_at = now.after(SLOW_EVERY);
        }
        of.slow
    }

    /// Returns whether it is a subscriber that has reached the end of all its channels.
    pub(crate) fn has_reached_end(&self) -> bool {
        self.is_subscriber() && self.channels.have_ended()
    }

    /// Returns whether the connection must be given a place in the order of turns: it may have output of this
    /// kind, and did not wait. It waits from now on.
    pub(crate) fn begins_to_wait(&mut self, lane: Lane) -> bool {
        self.has_work(lane) && !std::mem::replace(&mut self.waits[lane as usize], true)
    }

    /// Records that the connection's turn has come.
    pub(crate) const fn end_wait(&mut self, lane: Lane) {
        self.waits[lane as usize] = false;
    }

    fn has_work(&self, lane: Lane) -> bool {
        lane == Lane::Answers && !self.output.answers.is_empty() || self.channels.is_due(lane)
    }

    /// Returns the slot for a subscriber's further connection of this kind.
    pub(crate) const fn further(&mut self, of: &Role) -> Option<&mut Option<PeerId>> {
        match (&mut self.role, of) {
            (Role::Subscriber { replay, .. }, Role::Replay { .. }) => Some(replay),
            (Role::Subscriber { nack, .. }, Role::Nack { .. }) => Some(nack),
            (Role::Subscriber { read, .. }, Role::Read { .. }) => Some(read),
            _ => None,
        }
    }

    /// Returns the session, if the peer has joined.
    pub(crate) const fn session(&self) -> Option<u64> {
        match self.role {
            Role::Subscriber { session, .. }
            | Role::Replay { session }
            | Role::Nack { session }
            | Role::Read { session, .. } => Some(session),
            Role::Connecting | Role::Closing(_) => None,
        }
    }

    /// Returns the session and attempt of a READ connection.
    pub(crate) const fn reads(&self) -> Option<(u64, u64)> {
        match self.role {
            Role::Read { session, attempt } => Some((session, attempt)),
            _ => None,
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.role, Role::Closing(_))
    }
}

/// Returns a rejection that a retry cannot fix.
pub(crate) fn rejected(code: RejectCode, text: impl Into<String>) -> Rejected {
    Rejected {
        code,
        text: text.into(),
        retry_after_ms: 0,
    }
}

/// Checks every part of a JOIN that does not depend on the publisher's state, and returns the agreed
/// wire version.
pub(crate) fn check_join(join: &Join, spoken: WireVersions) -> Result<u8, Rejected> {
    let protocol = |text: String| Err(rejected(RejectCode::Protocol, text));
    let Some(agreed) = spoken.agreed(&join.wire_versions) else {
        let read = join.wire_versions.iter().take(16).map(ToString::to_string);
        let read = read.collect::<Vec<_>>().join(", ");
        let text = format!(
            "this publisher speaks wire version {spoken}, the subscriber reads [{read}]; upgrade the older side"
        );
        return Err(rejected(RejectCode::WireVersion, text));
    };
    if join.name.len() > NAME_LEN_MAX {
        return protocol(format!(
            "the subscriber's name has {} bytes, at most {NAME_LEN_MAX} are allowed",
            join.name.len()
        ));
    }
    match join.purpose {
        Purpose::Replay { .. } | Purpose::Nack { .. } | Purpose::Read { .. }
            if !join.channels.is_empty() =>
        {
            protocol(
                "a further connection must name no channels; it uses those of its session".into(),
            )
        }
        Purpose::Repair if join.channels.is_empty() => {
            protocol("the JOIN names no channel; name at least one".into())
        }
        _ if join.channels.len() > JOIN_CHANNELS_MAX => protocol(format!(
            "the JOIN names {} channels, at most {JOIN_CHANNELS_MAX} are allowed",
            join.channels.len()
        )),
        _ => Ok(agreed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ChannelName, JoinChannel, Message, Start};
    use crate::types::{ChannelId, Epoch};
    use crate::wire::WIRE_VERSION;

    fn join(purpose: Purpose, channels: usize) -> Join {
        let channel = JoinChannel {
            channel: ChannelName::Id(ChannelId(1)),
            start: Start::Live,
            confirmed_epoch: Epoch::NONE,
        };
        Join {
            authentication: true,
            name: "x".repeat(NAME_LEN_MAX),
            wire_versions: vec![WIRE_VERSION],
            purpose,
            channels: vec![channel; channels],
        }
    }

    #[test]
    fn join_channel_count_is_checked_by_purpose() {
        let refused = |join: Join| {
            check_join(&join, WireVersions::default())
                .err()
                .map(|r| r.code)
        };
        let replay = Purpose::Replay { session: 1 };
        assert_eq!(refused(join(Purpose::Repair, 1)), None);
        assert_eq!(refused(join(Purpose::Repair, JOIN_CHANNELS_MAX)), None);
        assert_eq!(refused(join(replay, 0)), None);
        let nack = Purpose::Nack { session: 1 };
        assert_eq!(refused(join(nack, 0)), None);
        for wrong in [
            join(Purpose::Repair, 0),
            join(Purpose::Repair, JOIN_CHANNELS_MAX + 1),
            join(replay, 1),
            join(nack, 1),
            Join {
                authentication: true,
                name: "x".repeat(NAME_LEN_MAX + 1),
                ..join(replay, 0)
            },
        ] {
            assert_eq!(refused(wrong), Some(RejectCode::Protocol));
        }
        let old = Join {
            authentication: true,
            wire_versions: vec![WIRE_VERSION + 1],
            ..join(replay, 0)
        };
        assert_eq!(refused(old), Some(RejectCode::WireVersion));
    }

    #[test]
    fn peer_with_due_output_has_work_of_its_lane() {
        let origin = PeerOrigin::V4(std::net::Ipv4Addr::LOCALHOST);
        let mut peer = Peer::new(PeerId(1), Nanos::ZERO, Carrier::Tcp, origin);
        let begins = |peer: &mut Peer| Lane::ALL.map(|lane| peer.begins_to_wait(lane));
        assert_eq!(begins(&mut peer), [false; 3]);
        peer.output.answers.push(ChannelId(9), &Message::Leave);
        assert_eq!(begins(&mut peer), [true, false, false]);
        assert_eq!(begins(&mut peer), [false; 3], "it waits already");
        for lane in Lane::ALL {
            peer.end_wait(lane);
        }
        peer.output.take(0, &mut Vec::new());
        let role = Role::Replay { session: 1 };
        let channels = [(ChannelId(9), 3), (ChannelId(7), 4)];
        peer.join(role.clone(), PeerId(2), "risk".into(), channels.into_iter());
        assert_eq!(begins(&mut peer), [false; 3]);
        peer.channels.push_due(Lane::Replay, 0);
        assert_eq!(begins(&mut peer), [false, false, true]);
        peer.end_wait(Lane::Replay);
        let (before, channels) = peer.resign(PeerId(1));
        assert_eq!((before, channels.len()), (role, 2));
        assert_eq!(begins(&mut peer), [false; 3]);
        assert_eq!((peer.owner(), peer.is_closing()), (PeerId(1), false));
        peer.close(rejected(RejectCode::Overflow, "so"));
        assert!(peer.is_closing());
    }

    #[test]
    fn slow_peer_is_reported_once_until_it_catches_up() {
        let origin = PeerOrigin::V4(std::net::Ipv4Addr::LOCALHOST);
        let mut peer = Peer::new(PeerId(1), Nanos::ZERO, Carrier::Tcp, origin);
        let role = Role::Replay { session: 1 };
        peer.join(
            role,
            PeerId(1),
            "risk".into(),
            [(ChannelId(9), 0)].into_iter(),
        );
        let mut slow = |behind, ms| peer.comes_to_be_slow(0, behind, 64, Nanos::from_ms(ms));
        let reports = [
            slow(32, 1),
            slow(33, 1),
            slow(60, 2_000),
            slow(16, 2_000),
            slow(33, 2_000),
            slow(16, 2_001),
            slow(33, 2_002),
            slow(33, 3_000),
        ];
        let expected = [false, true, false, false, true, false, false, true];
        assert_eq!(reports, expected);
    }
}
