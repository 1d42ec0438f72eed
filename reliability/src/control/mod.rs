//! Control messages: JOIN, NACK and their answers. They always start over TCP (docs/PROTOCOL.md §6).
//!
//! A frame is an 8-byte head and a body. Messages that are exchanged once per connection (JOIN, WELCOME,
//! REJECTED) are JSON, so that both sides can add fields. Messages that are exchanged under loss are
//! binary.

mod announced;
mod cursor;
mod heartbeats;
mod latency;
mod nack;
mod rejected;
mod standby;

pub use self::announced::Announced;
pub use self::cursor::{
    CURSOR_LEN, CURSOR_WORDS, CursorState, REPORT_OFFSET, REPORT_WORDS, Report,
};
pub(crate) use self::cursor::{Cursor, CursorStep, NUMBER_WORD};

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

pub use self::heartbeats::HeartbeatLimits;
pub use self::latency::{LATENCY_STAGES, LATENCY_WORDS, LatencyReport, StageLatency};
pub use self::nack::{NackAnswer, nack_answers, read_cut_nack, write_nack};
use self::nack::{nack_body, read_nack};
pub use self::rejected::{RejectCode, Rejected};
pub use self::standby::{MirrorRefusal, MirrorRefused, Mirroring};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::types::{
    ChannelId, ConfigHash, Epoch, Lineage, Nanos, RecordNumber, Sequence, SequenceRange,
};
use crate::wire::authentication::Authentication;

/// The start position of a subscriber in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// The first datagram sent after the publisher's WELCOME.
    #[default]
    Live,
    /// The oldest datagram that the publisher's ring still holds.
    Oldest,
    /// This datagram. The part that the ring no longer holds is declared lost.
    At(Epoch, Sequence),
}

/// Length of a frame's head: body length u32, type u8, reserved u8, channel u16.
pub const FRAME_HEAD_LEN: usize = 8;
/// Maximum body length that a publisher accepts, in bytes.
pub const BODY_LEN_MAX_TO_PUBLISHER: usize = 64 * 1024;
/// Maximum body length that a subscriber accepts, in bytes: a WELCOME with the directory of a whole
/// exchange.
pub const BODY_LEN_MAX_TO_SUBSCRIBER: usize = 16 * 1024 * 1024;
/// Maximum number of ranges in one NACK.
pub const NACK_RANGES_MAX: usize = 256;
/// Maximum number of repair offers of one WELCOME that a subscriber uses, from the first one on. A publisher
/// has few devices.
pub const REPAIR_OFFERS_MAX: usize = 16;
/// Maximum length of the name of a subscriber or channel, in bytes.
pub const NAME_LEN_MAX: usize = 64;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Joins channels, and repairs gaps.
    Repair,
    /// Replays history for the subscriber with this session number, within the joiners' budget. Its repairs
    /// therefore never wait behind the replay.
    Replay {
        /// The session number in WELCOME.
        session: u64,
    },
    /// Repairs gaps for the subscriber with this session number, over one of the [`RepairOffer`]s, within
    /// that subscriber's budget.
    Nack {
        /// The session number in WELCOME.
        session: u64,
    },
    /// READs the rings of the channels that the subscriber with this session number follows, once a GRANT
    /// for this attempt gives the location. It carries nothing else after WELCOME.
    Read {
        /// The session number in WELCOME.
        session: u64,
        /// The subscriber's number of the connection attempt, different each time.
        attempt: u64,
    },
}

/// The number or name of a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ChannelName {
    /// The number.
    Id(ChannelId),
    /// The name.
    Name(String),
}

/// A channel that a subscriber wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinChannel {
    /// The channel.
    pub channel: ChannelName,
    /// The start position.
    #[serde(default)]
    pub start: Start,
    /// The highest epoch that a publisher confirmed to the subscriber. A claim, which is only counted.
    #[serde(default)]
    pub confirmed_epoch: Epoch,
}

/// JOIN: the first message of a connection, from the subscriber.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The subscriber's name, for logs and metrics, at most [`NAME_LEN_MAX`] bytes.
    pub name: String,
    /// The wire versions that it reads.
    pub wire_versions: Vec<u8>,
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// The channels that it wants; empty for a replay or NACK connection.
    #[serde(default)]
    pub channels: Vec<JoinChannel>,
    /// Whether it checks the tags of authenticated channels. Nobody else may join one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub authentication: bool,
}

/// One line of a UDP fan-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpLine {
    /// Multicast group and port.
    pub group: SocketAddrV4,
    /// The address of the sender. Datagrams from other addresses are dropped.
    pub sender: Ipv4Addr,
}

/// A line of RDMA multicast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbsLine {
    /// Multicast group.
    pub group: Ipv4Addr,
    /// The address of the sending interface.
    pub sender: Ipv4Addr,
    /// The global identifier (GID) of that port, which its packets carry.
    pub gid: Ipv6Addr,
}

/// One way to receive a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "transport", rename_all = "snake_case")]
pub enum FanOutOffer {
    /// UDP multicast, on one line or two.
    Udp {
        /// Line A, then line B if there is one.
        lines: Vec<UdpLine>,
    },
    /// RDMA multicast, on one line or two.
    Verbs {
        /// Line A, then line B if there is one.
        lines: Vec<VerbsLine>,
        /// The Q_Key of its datagrams.
        q_key: u32,
    },
    /// The ring itself, for subscribers in the publisher's host.
    Shm {
        /// Path of the ring's file.
        path: String,
        /// The fan-out whose `sent` word its readers follow.
        fan_out: u8,
        /// The host's boot id, 32 hexadecimal digits.
        boot_id: String,
    },
    /// An unknown variant.
    #[serde(other)]
    Unknown,
}

/// An instrument's number and symbol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instrument {
    /// The number, as in the records' headers.
    pub id: u32,
    /// The symbol, as the venue spells it.
    pub symbol: String,
}

/// The publisher's offer for one channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelOffer {
    /// The channel's number.
    pub channel: ChannelId,
    /// The channel's name.
    pub name: String,
    /// The current epoch.
    pub epoch: Epoch,
    /// The last sequence sent; 0 before the first.
    pub newest: Sequence,
    /// The oldest available sequence of this epoch; `newest + 1` when there is none.
    pub oldest: Sequence,
    /// Number of the first record in `oldest`, or of the next record when there is none.
    pub oldest_record: RecordNumber,
    /// Number of the record after the last one sent.
    pub next_record: RecordNumber,
    /// Length of a slot in bytes, the maximum length of a datagram.
    pub slot_len: u32,
    /// Number of slots of the ring.
    pub slots: u64,
    /// Hash of the channel's config.
    pub config_hash: ConfigHash,
    /// Whether END has been sent.
    pub ended: bool,
    /// All the ways to receive it.
    pub fan_outs: Vec<FanOutOffer>,
    /// The instruments known so far.
    #[serde(default)]
    pub directory: Vec<Instrument>,
    /// The earlier epochs that this one continues.
    #[serde(default, skip_serializing_if = "Lineage::is_empty")]
    pub continues: Lineage,
    /// The available history of those epochs; `None` when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// The authentication of its datagrams; `None` when it is not authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication: Option<Authentication>,
    /// The longest times that its heartbeats announce.
    #[serde(default, skip_serializing_if = "HeartbeatLimits::is_default")]
    pub heartbeats: HeartbeatLimits,
}

/// The available history of the epochs that an epoch continues: every sequence from `oldest` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The oldest available sequence.
    pub oldest: Sequence,
    /// Number of the first record in it.
    pub oldest_record: RecordNumber,
}

impl ChannelOffer {
    /// Replaces the keys, for a copy that others may read.
    pub fn redact(&mut self) {
        self.authentication
            .iter_mut()
            .for_each(Authentication::redact);
    }

    /// Returns whether a receiver can check its datagrams, or need not.
    pub(crate) fn has_keys(&self) -> bool {
        (self.authentication.as_ref()).is_none_or(|it| it.is_usable(self.newest))
    }

    /// Returns the oldest available sequence of this epoch or one that it continues, and the number of its
    /// first record.
    #[must_use]
    pub fn oldest_of_all(&self) -> (Sequence, RecordNumber) {
        let history = self.history.filter(|it| it.oldest < self.oldest);
        history.map_or((self.oldest, self.oldest_record), |it| {
            (it.oldest, it.oldest_record)
        })
    }
}

/// A further path for repairs: an address for NACK connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "transport", rename_all = "snake_case")]
pub enum RepairOffer {
    /// A reliable connection over RDMA verbs, established with rdma_cm.
    Verbs {
        /// Address of the listener.
        address: SocketAddrV4,
        /// Whether it also accepts READ connections.
        #[serde(default, skip_serializing_if = "is_false")]
        read: bool,
        /// Whether a standby can request WRITEs of sealed datagrams there.
        #[serde(default, skip_serializing_if = "is_false")]
        mirror: bool,
    },
    /// An unknown variant.
    #[serde(other)]
    Unknown,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// WELCOME: the answer to a JOIN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The agreed wire version.
    pub wire_version: u8,
    /// The publisher's name.
    pub publisher: String,
    /// The session number, which identifies this subscriber on its further connections.
    pub session: u64,
    /// The requested channels, in that order; empty for a replay or NACK connection.
    pub channels: Vec<ChannelOffer>,
    /// The addresses for NACK connections, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repairs: Vec<RepairOffer>,
    /// Whether the publisher takes LATENCY on this connection.
    #[serde(default, skip_serializing_if = "is_false")]
    pub latency: bool,
}

/// The reason why sequences of a NACK are not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum RefusalReason {
    /// The ring no longer holds them. `oldest` is the oldest sequence that it holds.
    Window = 1,
    /// They have not been sent yet.
    Ahead = 2,
    /// A budget is used up. Retry after `retry_after_us`.
    Budget = 3,
    /// Replay is slower than 1.5 times the live stream: it would never end.
    TooSlow = 4,
    /// The NACK names an epoch that is not the channel's.
    Epoch = 5,
    /// The range is invalid.
    Malformed = 6,
}

impl RefusalReason {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Window),
            2 => Some(Self::Ahead),
            3 => Some(Self::Budget),
            4 => Some(Self::TooSlow),
            5 => Some(Self::Epoch),
            6 => Some(Self::Malformed),
            _ => None,
        }
    }
}

/// REFUSED: these sequences are not sent, with the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The channel's epoch.
    pub epoch: Epoch,
    /// The sequences refused.
    pub range: SequenceRange,
    /// The reason.
    pub reason: RefusalReason,
    /// The delay after which another NACK makes sense.
    pub retry_after_us: u32,
    /// The oldest available sequence.
    pub oldest: Sequence,
    /// Number of the first record in it, so that the loss is known exactly; 0 when unknown.
    pub oldest_record: RecordNumber,
}

impl Refused {
    /// The longest wait that a subscriber keeps, in microseconds. Without this bound, a REFUSED could keep a
    /// subscriber from requesting a gap for 71 minutes.
    pub const WAIT_MAX_US: u32 = 1_000_000;

    /// Returns how long a subscriber waits before it requests again: `retry_after_us`, at most
    /// [`WAIT_MAX_US`](Self::WAIT_MAX_US) (docs/PROTOCOL.md §6.3).
    #[must_use]
    pub fn wait(&self) -> Nanos {
        Nanos::from_us(self.retry_after_us.min(Self::WAIT_MAX_US).into())
    }
}

/// The budget of a NACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum NackClass {
    /// Gaps of the live stream.
    Repair = 1,
    /// History for a joiner or a subscriber that fell behind.
    Replay = 2,
}

/// PROGRESS: the subscriber's position, sent every 100 ms and at END. It also asks for STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The epoch that the subscriber follows.
    pub epoch: Epoch,
    /// The last sequence delivered or declared lost.
    pub sequence: Sequence,
    /// Records declared lost so far.
    pub lost_records: u64,
    /// The highest known sequence.
    pub heard: Sequence,
    /// The subscriber's clock when this was sent. STATUS echoes it; it has no other use.
    pub sent_at: Nanos,
    /// Bytes of the READs begun so far under the present grant.
    pub read_bytes: u64,
}

/// The location of publisher memory that one connection alone can access: the device refuses others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteAccess {
    /// Its start address, in the device's address space.
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The access key of the device.
    pub key: u32,
}

/// GRANT: allows READ of a channel's ring, over one connection and up to a number of bytes. Another GRANT
/// for that attempt renews the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The epoch of the ring.
    pub epoch: Epoch,
    /// The attempt of the connection that it is valid for.
    pub attempt: u64,
    /// The ring, from its control page on.
    pub ring: RemoteAccess,
    /// Bytes that may be READ, counted from the first GRANT of this attempt.
    pub tokens: u64,
    /// The subscriber's own cursor, once there is one.
    pub cursor: Option<RemoteAccess>,
}

/// STATUS: the publisher's state of a channel, in answer to PROGRESS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The channel's epoch.
    pub epoch: Epoch,
    /// The last sequence sent.
    pub newest: Sequence,
    /// The oldest available sequence.
    pub oldest: Sequence,
    /// Number of the record after the last one sent.
    pub next_record: RecordNumber,
    /// `sent_at` of the PROGRESS that this answers.
    pub echo: Nanos,
    /// The publisher's clock (UTC) when it answered: clock offset and round trip follow.
    pub answered_at: Nanos,
    /// Whether END has been sent.
    pub ended: bool,
}

/// A message to or from a publisher. Its frame also names the channel, 0 for the whole connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// From the subscriber: the first message.
    Join(Join),
    /// From the publisher: the first message.
    Welcome(Welcome),
    /// From the publisher: the last message.
    Rejected(Rejected),
    /// From the subscriber: a request to resend these sequences.
    Nack {
        /// The epoch of the sequences.
        epoch: Epoch,
        /// The budget it draws on.
        class: NackClass,
        /// At most [`NACK_RANGES_MAX`] ranges, ascending.
        ranges: Vec<SequenceRange>,
    },
    /// From the publisher: a datagram, with RETRANSMITTED set in its relay byte.
    Datagram(&'a [u8]),
    /// From the publisher: these sequences are not sent.
    Refused(Refused),
    /// From the subscriber: its position.
    Progress(Progress),
    /// From the publisher: its state of a channel.
    Status(Status),
    /// From the subscriber: it leaves on purpose.
    Leave,
    /// From the publisher: the location for READ.
    Grant(Grant),
    /// From a standby: the location for WRITEs of sealed datagrams.
    Mirror(Mirroring),
    /// From the publisher: it does not WRITE there.
    MirrorRefused(MirrorRefused),
    /// From the publisher: a key of an authenticated channel, ahead of its use.
    Key(Announced),
    /// From the subscriber: the latency of its last interval.
    Latency(Box<LatencyReport>),
}

/// The reason why bytes are not a control message. The peer is at fault; the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ControlError {
    /// A body longer than the limit.
    #[error(
        "a control message announces a body of {len} bytes, at most {max} are allowed here; check that the peer runs tickcast"
    )]
    TooLong {
        /// Length in the frame's head.
        len: usize,
        /// Maximum length.
        max: usize,
    },
    /// A type this version does not know.
    #[error("a control message has the unknown type {kind}; the peer may run a later version")]
    Type {
        /// The type byte.
        kind: u8,
    },
    /// A body that does not match its type.
    #[error("the body of a {message} message can't be read: {reason}")]
    Body {
        /// The name of the message.
        message: &'static str,
        /// The error.
        reason: String,
    },
}

const JOIN: u8 = 1;
const WELCOME: u8 = 2;
const REJECTED: u8 = 3;
const NACK: u8 = 4;
const DATAGRAM: u8 = 5;
const REFUSED: u8 = 6;
const PROGRESS: u8 = 7;
const STATUS: u8 = 8;
const LEAVE: u8 = 9;
const GRANT: u8 = 10;
const MIRROR: u8 = 11;
const MIRROR_REFUSED: u8 = 12;
const KEY: u8 = 13;
const LATENCY: u8 = 14;

impl<'a> Message<'a> {
    /// Appends the message as a frame to `out`.
    pub fn write(&self, channel: ChannelId, out: &mut Vec<u8>) {
        let start = out.len();
        let kind = match self {
            Self::Join(_) => JOIN,
            Self::Welcome(_) => WELCOME,
            Self::Rejected(_) => REJECTED,
            Self::Nack { .. } => NACK,
            Self::Datagram(_) => DATAGRAM,
            Self::Refused(_) => REFUSED,
            Self::Progress(_) => PROGRESS,
            Self::Status(_) => STATUS,
            Self::Leave => LEAVE,
            Self::Grant(_) => GRANT,
            Self::Mirror(_) => MIRROR,
            Self::MirrorRefused(_) => MIRROR_REFUSED,
            Self::Key(_) => KEY,
            Self::Latency(_) => LATENCY,
        };
        begin(kind, channel, out);
        match self {
            Self::Join(join) => json(join, out),
            Self::Welcome(welcome) => json(welcome, out),
            Self::Rejected(rejected) => json(rejected, out),
            Self::Nack {
                epoch,
                class,
                ranges,
            } => nack_body(*epoch, *class, ranges, out),
            Self::Datagram(bytes) => out.extend_from_slice(bytes),
            Self::Refused(refused) => {
                out.extend(refused.epoch.0.to_le_bytes());
                out.extend(refused.range.first.0.to_le_bytes());
                out.extend(refused.range.last.0.to_le_bytes());
                out.extend(refused.oldest.0.to_le_bytes());
                out.extend(refused.oldest_record.0.to_le_bytes());
                out.extend(refused.retry_after_us.to_le_bytes());
                out.extend([refused.reason as u8, 0, 0, 0]);
            }
            Self::Progress(progress) => {
                out.extend(progress.epoch.0.to_le_bytes());
                out.extend(progress.sequence.0.to_le_bytes());
                out.extend(progress.lost_records.to_le_bytes());
                out.extend(progress.heard.0.to_le_bytes());
                out.extend(progress.sent_at.0.to_le_bytes());
                out.extend(progress.read_bytes.to_le_bytes());
            }
            Self::Status(status) => {
                out.extend(status.epoch.0.to_le_bytes());
                out.extend(status.newest.0.to_le_bytes());
                out.extend(status.oldest.0.to_le_bytes());
                out.extend(status.next_record.0.to_le_bytes());
                out.extend(status.echo.0.to_le_bytes());
                out.extend(status.answered_at.0.to_le_bytes());
                out.extend([u8::from(status.ended), 0, 0, 0, 0, 0, 0, 0]);
            }
            Self::Leave => {}
            Self::Grant(grant) => {
                out.extend(grant.epoch.0.to_le_bytes());
                out.extend(grant.attempt.to_le_bytes());
                out.extend(grant.ring.address.to_le_bytes());
                out.extend(grant.ring.len.to_le_bytes());
                out.extend(grant.tokens.to_le_bytes());
                out.extend(grant.ring.key.to_le_bytes());
                out.extend([0; 4]);
                let cursor = grant.cursor.unwrap_or(RemoteAccess {
                    address: 0,
                    len: 0,
                    key: 0,
                });
                out.extend(cursor.address.to_le_bytes());
                out.extend(cursor.len.to_le_bytes());
                out.extend(cursor.key.to_le_bytes());
                out.extend([0; 4]);
            }
            Self::Mirror(mirroring) => mirroring.write(out),
            Self::MirrorRefused(refused) => refused.write(out),
            Self::Key(announced) => announced.write(out),
            Self::Latency(report) => report.write(out),
        }
        end(start, out);
    }

    /// Reads the first whole frame of `bytes`. Returns the message, its channel and the frame's length in
    /// bytes; `None` when more bytes are needed. Only the known part of a longer body is read, so that later
    /// versions can append fields.
    ///
    /// # Errors
    /// [`ControlError`], after which the connection is unusable.
    pub fn read(
        bytes: &'a [u8],
        body_len_max: usize,
    ) -> Result<Option<(ChannelId, Self, usize)>, ControlError> {
        let Some((head, rest)) = bytes.split_first_chunk::<FRAME_HEAD_LEN>() else {
            return Ok(None);
        };
        let len = body_len(head);
        let (kind, channel) = (head[4], ChannelId(u16::from_le_bytes([head[6], head[7]])));
        if !(JOIN..=LATENCY).contains(&kind) {
            return Err(ControlError::Type { kind });
        }
        if len > body_len_max {
            return Err(ControlError::TooLong {
                len,
                max: body_len_max,
            });
        }
        let Some(body) = rest.get(..len) else {
            return Ok(None);
        };
        let message = match kind {
            JOIN => Self::Join(parse_json("JOIN", body)?),
            WELCOME => Self::Welcome(parse_json("WELCOME", body)?),
            REJECTED => {
                let mut rejected: Rejected = parse_json("REJECTED", body)?;
                let len = rejected.text.floor_char_boundary(Rejected::TEXT_LEN_MAX);
                rejected.text.truncate(len);
                Self::Rejected(rejected)
            }
            NACK => read_nack(body)?,
            DATAGRAM => Self::Datagram(body),
            REFUSED => {
                let mut fields = Fields::new("REFUSED", body, 48)?;
                let epoch = Epoch(fields.u64());
                let (first, last) = (Sequence(fields.u64()), Sequence(fields.u64()));
                let (oldest, oldest_record) = (Sequence(fields.u64()), RecordNumber(fields.u64()));
                let tail = fields.u64();
                Self::Refused(Refused {
                    epoch,
                    range: SequenceRange::new(first, last)
                        .ok_or_else(|| bad("REFUSED", "its range is empty"))?,
                    reason: RefusalReason::from_byte((tail >> 32) as u8)
                        .ok_or_else(|| bad("REFUSED", "its reason is unknown"))?,
                    retry_after_us: tail as u32,
                    oldest,
                    oldest_record,
                })
            }
            PROGRESS => {
                let mut fields = Fields::new("PROGRESS", body, 40)?;
                Self::Progress(Progress {
                    epoch: Epoch(fields.u64()),
                    sequence: Sequence(fields.u64()),
                    lost_records: fields.u64(),
                    heard: Sequence(fields.u64()),
                    sent_at: Nanos(fields.u64()),
                    // A peer without READ omits this field.
                    read_bytes: fields.u64(),
                })
            }
            STATUS => {
                let mut fields = Fields::new("STATUS", body, 56)?;
                Self::Status(Status {
                    epoch: Epoch(fields.u64()),
                    newest: Sequence(fields.u64()),
                    oldest: Sequence(fields.u64()),
                    next_record: RecordNumber(fields.u64()),
                    echo: Nanos(fields.u64()),
                    answered_at: Nanos(fields.u64()),
                    ended: fields.u64() & 1 == 1,
                })
            }
            GRANT => {
                let mut fields = Fields::new("GRANT", body, 48)?;
                let (epoch, attempt) = (Epoch(fields.u64()), fields.u64());
                let (address, len) = (fields.u64(), fields.u64());
                let tokens = fields.u64();
                let key = fields.u64() as u32;
                let ring = RemoteAccess { address, len, key };
                // A publisher without cursors omits these fields.
                let (address, len) = (fields.u64(), fields.u64());
                let key = fields.u64() as u32;
                let cursor = RemoteAccess { address, len, key };
                Self::Grant(Grant {
                    epoch,
                    attempt,
                    ring,
                    tokens,
                    cursor: (len == CURSOR_LEN as u64).then_some(cursor),
                })
            }
            MIRROR => Self::Mirror(Mirroring::read(body)?),
            MIRROR_REFUSED => Self::MirrorRefused(MirrorRefused::read(body)?),
            KEY => Self::Key(Announced::read(body)?),
            LATENCY => Self::Latency(Box::new(LatencyReport::read(body)?)),
            _ => Self::Leave,
        };
        Ok(Some((channel, message, FRAME_HEAD_LEN + len)))
    }
}

/// Returns the length of the first frame of `bytes` that this side has written, its head included. `None`
/// without a head.
pub(crate) fn frame_len(bytes: &[u8]) -> Option<usize> {
    Some(FRAME_HEAD_LEN + body_len(bytes.first_chunk()?))
}

const fn body_len(head: &[u8; FRAME_HEAD_LEN]) -> usize {
    u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize
}

fn bad(message: &'static str, reason: impl Into<String>) -> ControlError {
    ControlError::Body {
        message,
        reason: reason.into(),
    }
}

fn json(value: &impl Serialize, out: &mut Vec<u8>) {
    // Our own types with string keys always serialise, and a Vec takes every byte.
    serde_json::to_writer(out, value).unwrap_or_default();
}

fn parse_json<T: for<'de> Deserialize<'de>>(
    message: &'static str,
    body: &[u8],
) -> Result<T, ControlError> {
    serde_json::from_slice(body).map_err(|error| bad(message, error.to_string()))
}

/// Begins a frame; its length is filled in at the end.
fn begin(kind: u8, channel: ChannelId, out: &mut Vec<u8>) {
    out.extend([0, 0, 0, 0, kind, 0]);
    out.extend(channel.0.to_le_bytes());
}

fn end(start: usize, out: &mut [u8]) {
    let len = (out.len() - start - FRAME_HEAD_LEN) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

/// Reads little-endian words from a body whose length was checked.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn new(message: &'static str, body: &'a [u8], needed: usize) -> Result<Self, ControlError> {
        if body.len() < needed {
            return Err(bad(
                message,
                format!("{} bytes, {needed} are needed", body.len()),
            ));
        }
        Ok(Self(body))
    }

    fn u64(&mut self) -> u64 {
        let Some((word, rest)) = self.0.split_first_chunk::<8>() else {
            return 0;
        };
        self.0 = rest;
        u64::from_le_bytes(*word)
    }

    const fn left(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests;
