//! The flight recorder: keeps all inputs of a core in a ring of segments that outlives the process, so
//! that a run can be explained and replayed.
//!
//! A [`Journaled`] subscriber's core keeps such a journal, or none; a [`JournaledPublisher`] is a
//! channel's publisher, a [`JournaledServer`] the repair service. A [`Journal`] is a journal as it is
//! read; [`replay()`] and [`replay_publisher()`] run it. The memory is the caller's. It is whole up to the
//! last entry at any moment: an entry counts once the segment's head says so, which is stored after it.
//! No clock, no I/O; while datagrams come, nothing is allocated.
//!
//! The modules from top to bottom; each imports only modules that stand below it:
//!
//! 1. `explain`: the fate of every missing datagram
//! 2. `replay_publisher`: a publisher's record run through its core again
//! 3. `replay`: a subscriber's record run through its core again
//! 4. `subscriber`: the journal of a subscriber's core
//! 5. `journaled`: a core with an optional journal
//! 6. `publisher`: a publisher's core with a journal
//! 7. `server`: the core of repair with a journal
//! 8. `writer`: the writer of a journal
//! 9. `reader`: a journal as it is read
//! 10. `frames`: the requests in recorded frames
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
    Dropped, Emitted, JournalOrigin, JournalSide, Note, Published, SealedBy, Sending, Served,
    Unread,
};
pub use self::outputs::Outputs;
pub use self::publisher::JournaledPublisher;
pub use self::reader::{
    EntryBody, EntryPlace, Journal, JournalEntry, JournalReadError, generation_offsets,
};
pub use self::replay::{Difference, GapCounts, Replayed, Stopped, replay};
pub use self::replay_publisher::replay_publisher;
pub use self::server::JournaledServer;
pub use self::writer::{Area, JournalError, JournalWriter};
pub use tickcast_reliability::wire::headers_only::header_of;
