//! Memory of this host that a peer may reach: windows onto rings and inboxes, and cursors.

pub(crate) mod cursor;
pub(crate) mod window;

pub use cursor::{CURSOR_LEN, CURSOR_WORDS, CursorEntry, CursorTable};
pub use window::{InboxMemory, ReadableMemory, RemoteMemory};
