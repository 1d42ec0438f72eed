//! Measuring tickcast beside a raw floor and beside peers, in one run.
//!
//! | part | contents |
//! |---|---|
//! | [`command`] | the verb: its options and the run as a whole |
//! | [`plan`] | the measures, their contenders and their length |
//! | [`contender`] | one process of a contender, and its orders |
//! | [`turn`] | one turn of one contender at one measure |
//! | [`quiet`] | other load of the machine during a measurement |
//! | [`side`], [`protocol`] | the code of a measured process, shared by all contenders |
//! | [`sides`] | this program's own contenders |
//! | [`statistics`], [`results`], [`marks`] | the results and how they are judged |
//! | [`tables`], [`html`], [`latency_log`] | the presentation of the results |

pub(crate) mod command;
pub(crate) mod contender;
pub(crate) mod html;
pub(crate) mod latency_log;
pub(crate) mod marks;
pub(crate) mod plan;
pub(crate) mod protocol;
pub(crate) mod quiet;
pub(crate) mod report;
mod results;
pub(crate) mod side;
pub(crate) mod sides;
pub(crate) mod statistics;
pub(crate) mod tables;
pub(crate) mod turn;
