//! This host: its clock, cores, memory, files and network interfaces.

pub mod atomic_file;
pub mod clock;
pub mod files;
#[doc(hidden)]
pub mod gauges;
pub mod host_addresses;
pub mod idle;
pub mod interface;
pub mod mapping;
pub mod membership;
pub mod memory_limit;
pub mod nic_queues;
mod nic_requests;
pub mod nic_rings;
pub mod periodic_thread;
pub mod pin;
pub mod private_memory;
pub mod sched;
mod tsc;
