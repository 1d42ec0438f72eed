//! The bytes of a journal: a file head, then segments. A segment is a head, a snapshot and entries
//! (docs/decisions/0011-a-record-is-inputs-and-snapshots.md). All words are little-endian.

use serde::{Deserialize, Serialize};

use tickcast_reliability::delivery::{Event, LineId};
use tickcast_reliability::serve::PeerId;
use tickcast_reliability::types::{
    ChannelId, Epoch, FanOutId, Nanos, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::StreamEvent;

/// The first bytes of a journal.
pub const RECORD_MAGIC: [u8; 8] = *b"TCFLIGHT";
/// The layout version that this code writes and reads.
pub const RECORD_VERSION: u32 = 1;
/// Length of the file head, in bytes.
pub const FILE_HEAD_LEN: usize = 4096;
/// Number of segments after the file head.
pub const SEGMENTS: usize = 8;
/// Length of a segment head, in bytes.
pub(super) const SEGMENT_HEAD_LEN: usize = 64;
/// Least length of a journal, in bytes.
pub const JOURNAL_LEN_MIN: usize = FILE_HEAD_LEN + SEGMENTS * (128 << 10);

/// Byte offsets of the words of a segment head.
pub(super) mod segment {
    /// Number of this segment within the run, from 1 on; 0 while the segment is unused.
    pub(crate) const GENERATION: usize = 0;
    /// End of the committed entries: every entry before this offset is complete.
    pub(crate) const COMMITTED: usize = 8;
    /// Time of the segment's first input.
    pub(crate) const FIRST_AT: usize = 16;
    /// Digest of all outputs before this segment.
    pub(crate) const DIGEST: usize = 24;
    /// Length of the snapshot in bytes; 0 when there is no snapshot.
    pub(crate) const SNAPSHOT_LEN: usize = 32;
    /// Number of inputs before this segment.
    pub(crate) const INPUTS: usize = 40;
    /// CRC32C of the snapshot.
    pub(crate) const SNAPSHOT_CRC: usize = 48;
}

/// The process that keeps the journal and how its clock relates to the time of day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalOrigin {
    /// Name of the process.
    pub name: String,
    /// Process id.
    pub process: u32,
    /// The boot that protocol time counts from.
    pub boot_id: String,
    /// Protocol time when recording began.
    pub began: Nanos,
    /// Time of day (UTC) at the moment `began`.
    pub began_utc: Nanos,
    /// The build that recorded. A replay needs the same build.
    pub build: String,
    /// The side whose core is recorded. This is the last field: the head is zero-filled after its content,
    /// so a journal older than publisher journals reads as a subscriber's.
    pub side: JournalSide,
}

/// The kind of core that a journal holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JournalSide {
    /// A subscriber's core with all its channels.
    #[default]
    Subscriber,
    /// A publisher's core with one channel.
    Publisher,
    /// A publisher's repair service with all its channels.
    Repair,
}

/// Kind of an entry: the first of its eight head bytes. The second byte is `a`, then come 16 bits `b`,
/// then the nanoseconds since the entry before (u32). An entry with a body of variable length continues
/// with that length (u32) and 4 zero bytes. Bodies are padded to 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum EntryKind {
    /// A data datagram on a line: `a` holds the [`of_line`] bits, `b` the channel; the body is its 64-byte
    /// header.
    Data = 1,
    /// A datagram of another kind on a line, whole.
    Other = 2,
    /// The input `Timeout`: `b` is a part of the digest of all outputs before it.
    Timeout = 3,
    /// The input `Poll`: `b` as for `Timeout`.
    Poll = 4,
    /// Frames sent on path `a`, truncated to the room that is left.
    Sent = 5,
    /// The input `Message`, received on path `a`, as a frame: `b` as for `Timeout`.
    Message = 6,
    /// The input `Read`: a tag, and bytes; `b` as for `Timeout`.
    Read = 7,
    /// Another `SubscriberInput` in its serialized form: `b` as for `Timeout`.
    Input = 8,
    /// An action taken from the core: `b` is the digest part including this action.
    Action = 9,
    /// A request for the publisher's memory, taken from the core: `b` is the digest part including it.
    Request = 10,
    /// An [`Emitted`].
    Event = 11,
    /// A [`Note`].
    Note = 12,
    /// The full time of the next entry: eight bytes.
    Time = 13,
    /// A publisher sealed a datagram: `a` is a [`SealedBy`]; the body is its 64-byte header.
    Sealed = 14,
    /// A message arrived while no datagram was open: `a` is 1 when one is open now.
    Begun = 15,
    /// A poll of the publisher's core when a heartbeat was due: the time of day.
    Due = 16,
    /// Fan-out `a` posted all sealed datagrams up to a sequence to its transport.
    Posted = 17,
    /// The transport of fan-out `a` completed all posted datagrams up to a sequence.
    Completed = 18,
    /// A heartbeat sent on fan-out `a`, without its tag.
    Beat = 19,
    /// A [`Published`].
    Published = 20,
    /// A `PublisherEvent` taken from the core.
    Happened = 21,
    /// A peer's control message to the repair service for channel `b`: the peer's number, and a frame.
    Heard = 22,
    /// A frame from the repair service to a peer for channel `b`: the peer's number, and the frame.
    Said = 23,
    /// A datagram of channel `b` repaired to one peer, or to all where `a` is 1: the peer's number, and the
    /// datagram's header.
    Repaired = 24,
    /// A [`Served`].
    Served = 25,
    /// An input that the journal does not hold: nothing after it can be replayed.
    Unrecorded = 26,
}

impl EntryKind {
    pub(super) const ALL: [Self; 26] = [
        Self::Data,
        Self::Other,
        Self::Timeout,
        Self::Poll,
        Self::Sent,
        Self::Message,
        Self::Read,
        Self::Input,
        Self::Action,
        Self::Request,
        Self::Event,
        Self::Note,
        Self::Time,
        Self::Sealed,
        Self::Begun,
        Self::Due,
        Self::Posted,
        Self::Completed,
        Self::Beat,
        Self::Published,
        Self::Happened,
        Self::Heard,
        Self::Said,
        Self::Repaired,
        Self::Served,
        Self::Unrecorded,
    ];
}

/// Bits of `a` in a datagram entry.
pub(super) mod of_line {
    /// The datagram arrived on line B.
    pub(crate) const B: u8 = 1;
    /// The datagram's CRC did not match.
    pub(crate) const BAD: u8 = 2;
    /// The datagram's records were invalid. This is noted once the core has not delivered them.
    pub(crate) const UNREADABLE: u8 = 4;
    /// The datagram carried no tag of a known key.
    pub(crate) const UNAUTHENTICATED: u8 = 8;
}

/// An event that the core emitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emitted {
    /// Channel of the event.
    pub channel: ChannelId,
    /// Epoch of the stream at the event.
    pub epoch: Epoch,
    /// The last sequence delivered or declared lost.
    pub sequence: Sequence,
    /// The event.
    pub event: Event,
}

/// Observations around the core that are not inputs of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Note {
    /// The application did not poll, or the publish thread did not run, for this long.
    Stall(Nanos),
    /// The transport's drop counts of a channel, after an increase.
    Dropped(ChannelId, Dropped),
    /// Datagrams that arrived on a line and were dropped or held back by an injected fault.
    Injected(ChannelId, LineId, Epoch, SequenceRange),
    /// Number of items overwritten in the application's local ring before the application took them.
    Overrun(ChannelId, u64),
    /// The send counts of one line of a fan-out, after an increase.
    Sending(FanOutId, LineId, Sending),
    /// The source's next reported loss may be due to drops in the publisher's host.
    Unread(SourceId, Unread),
}

/// Packets dropped at an input's socket before they were read. They may be the venue's or come from
/// an unrelated sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// Packets that the kernel dropped for lack of a buffer since its last report.
    pub packets: u64,
    /// How long the socket was not read before; zero when the pause was negligible.
    pub paused: Nanos,
}

/// Send failures of one line of a fan-out, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// Times the send queue was full. The waiting datagrams were sent later.
    pub stalls: u64,
    /// Datagrams of the stream that the network refused and that were not sent on this line.
    pub refused: u64,
    /// Heartbeat and repair copies that found no room or were refused.
    pub unpinned_sends_dropped: u64,
    /// Datagrams that a device or a reset returned unsent.
    pub flushed: u64,
    /// The last error number of the operating system, 0 for none.
    pub errno: i32,
}

/// Why a publisher sealed a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum SealedBy {
    /// An input with its own entry before this one.
    Input = 0,
    /// A flush while more messages were waiting.
    Flush = 1,
    /// A flush with no more messages waiting.
    FlushLast = 2,
    /// A message that did not fit, and that begins the next datagram.
    Message = 3,
    /// A message that begins no other datagram.
    MessageAlone = 4,
}

impl SealedBy {
    pub(super) const ALL: [Self; 5] = [
        Self::Input,
        Self::Flush,
        Self::FlushLast,
        Self::Message,
        Self::MessageAlone,
    ];
}

/// Inputs of a publisher's core other than messages and fan-out progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Published {
    /// An event of the stream, with its time of day.
    Event(StreamEvent, Nanos),
    /// A message larger than a datagram.
    TooLarge {
        /// Source of the message.
        source: SourceId,
        /// Position of the message in the source.
        position: SourcePosition,
        /// Number of its records.
        records: u32,
        /// Number of their bytes.
        bytes: u32,
        /// Its instruments, each once; at most one more than an event can name.
        instruments: Vec<u32>,
        /// The time of day.
        utc: Nanos,
    },
    /// End of the session, with its time of day.
    End(Nanos),
    /// Heartbeats stop.
    Stop,
    /// Number of subscribers, and their wait before a first NACK.
    Group(u32, u32),
}

/// Connection events of a repair service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Served {
    /// A connection was accepted.
    Connected(PeerId),
    /// A connection ended.
    Disconnected(PeerId),
    /// A peer sent an invalid message, with the error.
    Broken(PeerId, String),
    /// A subscriber, by name, joined channels.
    Joined(PeerId, String, Vec<ChannelId>),
    /// A subscriber left; `true` when it had announced it.
    Left(PeerId, String, bool),
    /// A subscriber was rejected, with the reason sent to it.
    TurnedAway(PeerId, String),
    /// A subscriber lags on a channel by this many datagrams.
    Slow(PeerId, String, ChannelId, u64),
    /// The service closed a connection because the publisher or the session ended, with the reason sent.
    Closed(PeerId, String),
}

/// Datagrams of a channel dropped before the receiver read them: all lines together, since the channel's
/// sockets were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Dropped by the kernel or the device for lack of a buffer.
    pub buffer: u64,
    /// Longer than a slot.
    pub oversize: u64,
    /// Refused by the device for their Q_Key.
    pub q_key: u64,
    /// Restarts of the receive queue.
    pub restarts: u64,
}
