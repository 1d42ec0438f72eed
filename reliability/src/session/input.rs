//! The inputs of a subscriber's core: one variant for each change that comes from outside. The journal
//! writes these variants, and a replay gives them to another core.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Path, ReadLimits};
use crate::control::{Message, RemoteAccess, Start};
use crate::delivery::{LineId, LinkDownReason, LossCause};
use crate::receive::{InboxWanted, Mirror};
use crate::ring::RingMemory;
use crate::types::{ChannelId, Epoch, SequenceRange};
use crate::wire::{CrcVerdict, Datagram};

/// An input of [`SubscriberCore::handle`](super::SubscriberCore::handle).
///
/// Serialization covers the rare inputs, whose journal entry is their serialized form. The variants that
/// are skipped have an entry of their own, or cannot be replayed. They stand last, so that they do not
/// shift the numbers of the others.
///
/// An input borrows its data, so it is small and needs no drop.
#[derive(Debug, Serialize, Deserialize)]
pub enum SubscriberInput<'a> {
    /// Whether the driver can make NACK connections. Counts from the next WELCOME on; `false` without it.
    UseNackPath(bool),
    /// Whether the driver can READ. Counts from the next WELCOME on; `false` without it.
    UseReadPath(bool),
    /// Whether this is a standby whose driver can make inboxes. Counts from the next READ connection on;
    /// `false` without it.
    UseInboxes(bool),
    /// This host has no device for the current NACK offer: it is dropped until the next WELCOME. The others
    /// are tried.
    NackUnusable,
    /// This host has no device for the current READ offer: it is dropped until the next WELCOME. The others
    /// are tried.
    ReadUnusable,
    /// The limits of the READ connection that is being made. Comes before its `Connected`.
    Limits(ReadLimits),
    /// A connection is established.
    Connected(Path),
    /// A connection is over, or could not be established.
    Disconnected(Path, LinkDownReason),
    /// Bytes that are no datagram came on a line.
    Malformed {
        /// The channel of the line.
        channel: ChannelId,
        /// The line.
        line: LineId,
        /// The number of bytes.
        len: u32,
    },
    /// A datagram came from an address that neither WELCOME nor the config names.
    UnknownSender(ChannelId),
    /// The ring in this host no longer holds these sequences, and its reader has not read them. They are
    /// lost unless another path brings them. No effect in another epoch than the ring's.
    Overrun {
        /// The channel of the ring.
        channel: ChannelId,
        /// The epoch of the ring.
        epoch: Epoch,
        /// The sequences that were overwritten.
        range: SequenceRange,
    },
    /// The driver listens to a channel on this number of lines, until the next such input. Without it the
    /// core expects as many lines as the largest fan-out on offer has.
    Listening {
        /// The channel.
        channel: ChannelId,
        /// The number of lines.
        lines: u8,
    },
    /// The application leaves: LEAVE is queued, and missing records are declared lost with this cause.
    Leave(LossCause),
    /// The application begins a channel anew. Its missing records are declared lost, and the repair
    /// connection is built anew, because JOIN says where each channel begins. No effect before the
    /// channel's WELCOME.
    Rejoin {
        /// The channel.
        channel: ChannelId,
        /// Where to begin.
        start: Start,
    },

    /// The time reached [`poll_timeout`](super::SubscriberCore::poll_timeout). Early or repeated calls do
    /// nothing.
    #[serde(skip)]
    Timeout,
    /// The driver is about to send: due requests become frames and READs.
    #[serde(skip)]
    Poll,
    /// A datagram came on a line; [`handle_bytes`](super::SubscriberCore::handle_bytes) parses one.
    #[serde(skip)]
    Datagram {
        /// The channel of the line.
        channel: ChannelId,
        /// The line.
        line: LineId,
        /// The datagram, aligned as records are.
        datagram: &'a Datagram<'a>,
        /// Whether its CRC is right.
        verdict: CrcVerdict,
    },
    /// A control message came.
    #[serde(skip)]
    Message {
        /// The connection.
        path: Path,
        /// The channel that the message names.
        channel: ChannelId,
        /// The message.
        message: &'a Message<'a>,
    },
    /// The remote request of this tag is done and brought these bytes: of a claim the old word. Requests
    /// finish in the order in which they were begun; a failed one ends the connection.
    #[serde(skip)]
    Read {
        /// The tag of the request.
        tag: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Takes the datagram that [`poll_written`](super::SubscriberCore::poll_written) found in this
    /// channel's inbox.
    #[serde(skip)]
    Written(ChannelId),
    /// The inbox of [`Action::Inbox`](super::Action::Inbox) is there, and the publisher is asked to write
    /// to it. No effect when its READ connection is gone.
    #[serde(skip)]
    Inbox {
        /// The channel.
        channel: ChannelId,
        /// The inbox as it was wanted.
        wanted: InboxWanted,
        /// Zeroed memory. The device lets the publisher write its slots ([`InboxWanted::part`]) over the
        /// READ connection of that attempt, and over no other.
        memory: &'a Arc<dyn RingMemory>,
        /// The location of the memory for the publisher.
        access: RemoteAccess,
    },
    /// A mirror takes all records of a channel from now on, which must be delivered in order
    /// ([`Delivery::Ordered`](crate::delivery::Delivery::Ordered)). Comes when
    /// [`Action::Listen`](super::Action::Listen) offers a ring that the current mirror does not fit, before
    /// any other input. The core takes the mirror out, but not before the channel's WELCOME.
    #[serde(skip)]
    Mirror(ChannelId, &'a mut Option<Mirror>),
}

impl<'a> SubscriberInput<'a> {
    /// Returns the input for bytes on a line that are no datagram.
    #[inline]
    #[must_use]
    pub fn malformed(channel: ChannelId, line: LineId, bytes: &[u8]) -> Self {
        Self::Malformed {
            channel,
            line,
            len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        }
    }

    /// Returns the input for a control message that came on `path`.
    #[inline]
    #[must_use]
    pub const fn message(path: Path, channel: ChannelId, message: &'a Message<'a>) -> Self {
        Self::Message {
            path,
            channel,
            message,
        }
    }
}
