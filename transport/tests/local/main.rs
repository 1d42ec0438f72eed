//! Each part of the crate on this host alone: no device, no other machine.

mod control;
mod faults;
mod killed_writer;
mod memory;
mod shm;
mod udp;
