//! The atomics that a ring is shared by. The protocol of its slots is a file that names them from
//! here and nothing else, so that a test can put a model checker's in their place
//! (`tests/protocol/interleavings.rs`).

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
