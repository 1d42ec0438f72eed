//! The protocol: its bytes, its versions, and its behaviour in virtual time.

mod explain;
mod golden;
mod grid;
mod python;
mod replays;
mod simulation;
mod small_worlds;
mod stranger;
mod versions;
mod wireshark;
