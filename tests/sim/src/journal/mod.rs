//! Journals: runs that are replayed from their records, and staged losses.

pub mod replay;
pub mod staged;
pub mod two_sided;
