//! The atomics of a ring. The slot protocol (`slot.rs`) takes its atomics from here alone, so that a test
//! can substitute a model checker's (`tests/protocol/interleavings.rs`).

pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
