//! The bytes of a record: a head, then segments; a segment is a head, a snapshot and entries
//! (docs/decisions/0011-a-record-is-inputs-and-snapshots.md). Little-endian.

use serde::{Deserialize, Serialize};

use tickcast_reliability::delivery::{Event, LineId};
use tickcast_reliability::serve::PeerId;
use tickcast_reliability::types::{
    ChannelId, Epoch, FanOutId, Nanos, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::StreamEvent;

/// First bytes of a record.
pub const RECORD_MAGIC: [u8; 8] = *b"TCFLIGHT";
/// The layout that this code writes and reads.
pub const RECORD_VERSION: u32 = 1;
/// Length of the file's head, in bytes.
pub const FILE_HEAD_LEN: usize = 4096;
/// Into so many segments the rest is divided.
pub const SEGMENTS: usize = 8;
/// Length of a segment's head, in bytes.
pub(super) const SEGMENT_HEAD_LEN: usize = 64;
/// The least length of a record, in bytes.
pub const RECORD_LEN_MIN: usize = FILE_HEAD_LEN + SEGMENTS * (128 << 10);

/// Where the words of a segment's head stand.
pub(super) mod segment {
    /// Which segment of the run this is, from 1 on; 0 while it is none.
    pub(crate) const GENERATION: usize = 0;
    /// Where its entries end: all before this is whole.
    pub(crate) const COMMITTED: usize = 8;
    /// When its first input came.
    pub(crate) const FIRST_AT: usize = 16;
    /// The digest of all outputs before it.
    pub(crate) const DIGEST: usize = 24;
    /// Length of the snapshot; 0: there is none.
    pub(crate) const SNAPSHOT_LEN: usize = 32;
    /// How many inputs came before it.
    pub(crate) const INPUTS: usize = 40;
    /// CRC32C of the snapshot.
    pub(crate) const SNAPSHOT_CRC: usize = 48;
}

/// Who recorded, and how its clock stands to that of others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalOrigin {
    /// What the process calls itself.
    pub name: String,
    /// Its number.
    pub process: u32,
    /// The boot that protocol time counts from.
    pub boot_id: String,
    /// Protocol time when it began, and the time of day (UTC) at the same moment.
    pub began: Nanos,
    /// See `began`.
    pub began_utc: Nanos,
    /// The build that recorded, which is the one to replay with.
    pub build: String,
    /// Whose core it is. The last field: what follows the head's content is zeros, so that a record of
    /// before there were publishers' reads as what it is.
    pub side: JournalSide,
}

/// Whose core is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum JournalSide {
    /// A subscriber's, all its channels.
    #[default]
    Subscriber,
    /// A publisher's, one channel.
    Publisher,
    /// A publisher's repair service, all its channels.
    Repair,
}

/// What an entry is; the first of its eight bytes. The second is `a`, then 16 bits `b`, then the
/// nanoseconds since the entry before. Those that have a body of any length go on with that length
/// (u32) and 4 bytes of nothing; bodies are padded to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum EntryKind {
    /// A data datagram on a line: `a` is [`of_line`], `b` the channel; 64 bytes, its header.
    Data = 1,
    /// Another datagram on a line, whole.
    Other = 2,
    /// The input `Timeout`: `b` is a part of the digest of all outputs before it.
    Timeout = 3,
    /// The input `Poll`: `b` as for `Timeout`.
    Poll = 4,
    /// Frames were given, on path `a`; as many of their bytes as there was room for.
    Sent = 5,
    /// The input `Message`, on path `a`: its frame; `b` as for `Timeout`.
    Message = 6,
    /// The input `Read`: a tag, and bytes; `b` as for `Timeout`.
    Read = 7,
    /// Another `SubscriberInput` in its serialized form: `b` as for `Timeout`.
    Input = 8,
    /// An action was taken from the core: `b` as for `Timeout`, with it.
    Action = 9,
    /// A remote request was taken from the core: `b` as for `Timeout`, with it.
    Request = 10,
    /// A [`Emitted`].
    Told = 11,
    /// A [`Note`].
    Note = 12,
    /// The time of what follows, in full: eight bytes.
    Time = 13,
    /// A publisher sealed a datagram: `a` is a [`SealedBy`]; 64 bytes, its header.
    Sealed = 14,
    /// A message began a datagram, and nothing was open: `a` is 1 where something is now.
    Begun = 15,
    /// The publisher's clock was told, and a heartbeat was due: the time of day.
    Due = 16,
    /// Fan-out `a` handed to its transport what is sealed up to a sequence.
    Posted = 17,
    /// The transport of fan-out `a` is done with what it was handed up to a sequence.
    Completed = 18,
    /// Fan-out `a` was given a heartbeat: all of it.
    Beat = 19,
    /// A [`Published`].
    Published = 20,
    /// A `PublisherEvent` was taken.
    Happened = 21,
    /// A peer's control message came to the repair service for channel `b`: its number, and a frame.
    Heard = 22,
    /// The repair service gave a peer a frame for channel `b`: its number, and the frame.
    Said = 23,
    /// It gave a peer, or all where `a` is 1, a datagram of channel `b` again: the peer's number, and
    /// the header.
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
        Self::Told,
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

/// Bits of `a` of a datagram.
pub(super) mod of_line {
    /// Line B.
    pub(crate) const B: u8 = 1;
    /// Its CRC did not fit.
    pub(crate) const BAD: u8 = 2;
}

/// What the core told beside records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emitted {
    /// Of which channel.
    pub channel: ChannelId,
    /// Where the stream stood.
    pub epoch: Epoch,
    /// The last sequence delivered or declared lost.
    pub sequence: Sequence,
    /// What.
    pub event: Event,
}

/// What happened around the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Note {
    /// Nobody had polled for so long.
    Stall(Nanos),
    /// The transport's counts of a channel, which went up.
    Dropped(ChannelId, Dropped),
    /// Datagrams that came on a line, and that an injected fault dropped or held back.
    Injected(ChannelId, LineId, Epoch, SequenceRange),
    /// The application did not take so many items of its local ring before they were overwritten.
    Overrun(ChannelId, u64),
    /// What a line of a publisher's fan-out counted, which went up.
    Sending(FanOutId, LineId, Sending),
    /// What was lost of a source, which is told next, may have been dropped in the publisher's host.
    Unread(SourceId, Unread),
}

/// Packets that came to an input's socket, and were dropped before they were read: the venue's, or a
/// stranger's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// Packets that the kernel dropped for want of a buffer since it last told of any.
    pub packets: u64,
    /// For how long nobody had read before; zero where that was no pause worth a word.
    pub paused: Nanos,
}

/// What a line of a fan-out could not send, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sending {
    /// Times the send queue was full; what waited then went later.
    pub stalls: u64,
    /// Datagrams of the stream that the network refused, and that were not sent on this line.
    pub refused: u64,
    /// Copies, of heartbeats and repairs, that found no room or were refused.
    pub unpinned_sends_dropped: u64,
    /// Datagrams that a device or a reset gave back unsent.
    pub flushed: u64,
    /// The last error number that the operating system gave, 0 for none.
    pub errno: i32,
}

/// What brought a publisher to seal a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum SealedBy {
    /// An input that has an entry of its own before this.
    Told = 0,
    /// It was told to, with more to come.
    Flush = 1,
    /// It was told to, and nothing more was waiting.
    FlushLast = 2,
    /// A message that did not fit, with which the next datagram begins.
    Message = 3,
    /// A message that began no other.
    MessageAlone = 4,
}

impl SealedBy {
    pub(super) const ALL: [Self; 5] = [
        Self::Told,
        Self::Flush,
        Self::FlushLast,
        Self::Message,
        Self::MessageAlone,
    ];
}

/// What a publisher's core was given beside messages and what its fan-outs did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Published {
    /// An event of the stream, at this time of day.
    Event(StreamEvent, Nanos),
    /// A message larger than a datagram.
    TooLarge {
        /// Whose.
        source: SourceId,
        /// Where it stood.
        position: SourcePosition,
        /// Its records.
        records: u32,
        /// Their bytes.
        bytes: u32,
        /// Of which instruments, each once; as many as an event can name, and one more.
        instruments: Vec<u32>,
        /// The time of day.
        utc: Nanos,
    },
    /// The session ended, at this time of day.
    End(Nanos),
    /// No heartbeats from here on.
    Stop,
    /// How many subscribers there are, and how long they wait before a first NACK.
    Group(u32, u32),
}

/// What happened to the connections of a repair service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Served {
    /// A connection was accepted.
    Connected(PeerId),
    /// A connection is gone.
    Disconnected(PeerId),
    /// It sent bytes that are no message, and what is wrong with them.
    Broken(PeerId, String),
    /// A subscriber, by name, joined channels.
    Joined(PeerId, String, Vec<ChannelId>),
    /// It is gone; whether it had said so.
    Left(PeerId, String, bool),
    /// It was turned away, and what it was told.
    TurnedAway(PeerId, String),
    /// It is so many datagrams behind on a channel.
    Slow(PeerId, String, ChannelId, u64),
}

/// What datagrams of a channel came to before anybody saw them, all lines together, since its
/// sockets were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// Dropped by the kernel or the device for want of a buffer.
    pub buffer: u64,
    /// Longer than a slot.
    pub oversize: u64,
    /// Refused by the device for their Q_Key.
    pub q_key: u64,
    /// Times that the receive queue was started anew.
    pub restarts: u64,
}
