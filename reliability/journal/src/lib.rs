//! The flight recorder: everything that a core is given, kept in a ring of segments that outlives the
//! process, so that what happened can be explained and run through the core again.
//!
//! A [`JournaledCore`] is a subscriber's core that keeps such a record, or does not; a
//! [`JournaledPublisher`] is that of a channel's publisher, a [`JournaledServer`] that of repair. A
//! [`Journal`] is the record as it is read; [`replay()`] and [`replay_publisher()`] run it. The memory is
//! the caller's, and what is in it is whole up to the last entry at any moment: an entry counts once the
//! segment's head says so, which is stored after it.
//! No clock, no I/O; while datagrams come, nothing is allocated.
//!
//! The modules from top to bottom; each imports only modules that stand below it:
//!
//! 1. `explain`: the fate of every missing datagram
//! 2. `replay_publisher`: a publisher's record run through its core again
//! 3. `replay`: a subscriber's record run through its core again
//! 4. `subscriber`: a subscriber's core with a record
//! 5. `publisher`: a publisher's core with a record
//! 6. `server`: the core of repair with a record
//! 7. `writer`: the writer of a journal
//! 8. `reader`: a record as it is read
//! 9. `frames`: the requests in recorded frames
//! 10. `outputs`: the digest of a core's outputs
//! 11. `layout`: the bytes of a record

pub mod explain;
mod frames;
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
pub use self::layout::{
    Dropped, Emitted, JournalInput, JournalOrigin, JournalSide, Note, Published, SealedBy, Sending,
    Served, Unread,
};
pub use self::outputs::Outputs;
pub use self::publisher::JournaledPublisher;
pub use self::reader::{
    EntryBody, EntryPlace, Journal, JournalEntry, JournalReadError, generation_offsets,
};
pub use self::replay::{Difference, GapCounts, Replayed, Stopped, replay};
pub use self::replay_publisher::replay_publisher;
pub use self::server::JournaledServer;
pub use self::subscriber::JournaledCore;
pub use self::writer::{Area, JournalError, JournalWriter};
pub use tickcast_reliability::wire::headers_only::header_of;
