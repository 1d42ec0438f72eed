//! Fault injection into processes in network namespaces. Every published record must be delivered
//! or declared lost, whatever happens.
//!
//! | part | contents |
//! |---|---|
//! | [`command`] | the verb: its options and the run as a whole |
//! | [`schedule`] | the faults and their times, from a seed |
//! | [`stage`] | the network, the file system and the processes under test |
//! | [`side`] | a subscriber process |
//! | [`ledger`] | a subscriber's account of its records, on file before it can be killed |
//! | [`stranger`] | foreign traffic |
//! | [`verdict`] | whether every record is accounted for |

pub(crate) mod command;
pub(crate) mod ledger;
pub(crate) mod schedule;
pub(crate) mod side;
pub(crate) mod stage;
pub(crate) mod stranger;
pub(crate) mod verdict;
