//! The journal: it keeps every input of a core in a ring of segments that outlives the process.
//! From the journal, `explain` finds why datagrams were missing, and a replay runs the core again.
//!
//! - [`Journaled`]: a core with an optional journal, such as a subscriber's.
//! - [`JournaledPublisher`]: the core of a channel's publisher with an optional journal.
//! - [`JournaledServer`]: the core of a repair service with an optional journal.
//! - [`Journal`]: a journal opened for reading; [`replay()`] and [`replay_publisher()`] run it.
//!
//! The caller owns the memory. The journal in it is complete up to the last entry at any moment, because
//! the segment head that commits an entry is stored after the entry.
//! No clock, no I/O. Recording a datagram allocates nothing.
//!
//! The modules from top to bottom; each imports only modules that stand below it:
//!
//! 1. `explain`: the fate of every missing datagram
//! 2. `replay_publisher`: replay of a publisher's journal through its core
//! 3. `replay`: replay of a subscriber's journal through its core
//! 4. `subscriber`: the journal of a subscriber's core
//! 5. `journaled`: a core with an optional journal
//! 6. `publisher`: a publisher's core with a journal
//! 7. `server`: the core of a repair service with a journal
//! 8. `writer`: the writer of a journal
//! 9. `reader`: the reader of a journal
//! 10. `frames`: the NACKs in recorded frames
//! 11. `outputs`: the digest of a core's outputs
//! 12. `layout`: the bytes of a journal

pub mod explain;
mod frames;
mod journaled;
pub mod layout;
mod outputs;
mod publisher;
pub mod reader;
pub mod replay;
mod replay_publisher;
mod server;
mod subscriber;
mod writer;

pub use self::frames::RequestedRanges;
pub use self::journaled::Journaled;
pub use self::layout::{
    Dropped, Emitted, FILE_HEAD_LEN, JournalOrigin, JournalSide, Note, Published, SealedBy,
    Sending, Served, Unread,
};
pub use self::outputs::Outputs;
pub use self::publisher::JournaledPublisher;
pub use self::reader::{
    EntryBody, EntryPlace, Journal, JournalEntry, JournalReadError, generation_offsets,
    segments_len,
};
pub use self::replay::{Difference, GapCounts, Replayed, Stopped, replay};
pub use self::replay_publisher::replay_publisher;
pub use self::server::JournaledServer;
pub use self::writer::{Area, JournalError, JournalWriter};
pub use tickcast_reliability::wire::headers_only::header_of;
