//! Flight records: runs that are replayed from them, and losses staged one by one.

pub mod replay;
pub mod staged;
pub mod two_sided;
