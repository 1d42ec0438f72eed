//! Processes in namespaces of their own, and everything that may happen to them: what is published must
//! be delivered or declared lost, to the record, whatever happens.
//!
//! | part | is |
//! |---|---|
//! | [`command`] | the verb: its options and the run as a whole |
//! | [`schedule`] | what happens when, from a seed |
//! | [`stage`] | the network, the file system and the processes it happens to |
//! | [`side`] | a subscriber process |
//! | [`ledger`] | what such a process was given, on file before it can be killed |
//! | [`stranger`] | traffic that has nothing to do with us |
//! | [`memory`] | how much memory processes hold |
//! | [`verdict`] | whether it all adds up |

pub(crate) mod command;
pub(crate) mod ledger;
pub(crate) mod memory;
pub(crate) mod schedule;
pub(crate) mod side;
pub(crate) mod stage;
pub(crate) mod stranger;
pub(crate) mod verdict;
