//! The protocol of tickcast, without I/O, clock or threads.
//!
//! The folders from top to bottom; each imports only folders that stand below it:
//!
//! 1. `session`: a subscriber: its connections, and one [`receive::Receiver`] for each channel
//! 2. `serve`: the publisher's repair side: admission, NACKs, budgets, answers
//! 3. `publish`: the publisher's send side: sequencer, heartbeats, fan-outs
//! 4. `receive`: one channel of a subscriber: window, gaps, repair, delivery in order
//! 5. `ring`: the ring of sealed datagrams: layout, slot, writer, reader, recovery
//! 6. `delivery`: the records and events that an application receives
//! 7. `timing`: round-trip times, back-off
//! 8. `control`: the control messages as bytes
//! 9. `wire`: the datagram as bytes
//! 10. `record`: DBN records and their one checked cast
//! 11. `types`: epochs, sequences, times, lineage, counters
//! 12. `planted`: deliberate bugs, which only the simulation's build can enable
//!
//! The crate `tickcast-journal` records the inputs of these cores and replays them.

pub mod control;
pub mod delivery;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
#[cfg(feature = "planted-bugs")]
pub mod planted;
pub mod publish;
pub mod receive;
pub mod record;
pub mod ring;
pub mod serve;
pub mod session;
mod timing;
pub mod types;
pub mod wire;
