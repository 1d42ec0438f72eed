//! Measuring tickcast beside a raw floor and beside peers, in one run.
//!
//! | part | is |
//! |---|---|
//! | [`command`] | the verb: its options and the run as a whole |
//! | [`plan`] | what is measured, with whom, for how long |
//! | [`contender`] | one process of a contender, and the orders it gets |
//! | [`turn`] | one turn of one contender at one measure |
//! | [`quiet`] | what else the machine did meanwhile |
//! | [`side`], [`protocol`] | what such a process does: the same code for everyone |
//! | [`sides`] | this program's own contenders |
//! | [`statistics`], [`results`], [`marks`] | what came of it |
//! | [`tables`], [`html`] | how it is shown |

pub(crate) mod command;
pub(crate) mod contender;
pub(crate) mod html;
pub(crate) mod marks;
pub(crate) mod plan;
pub(crate) mod protocol;
pub(crate) mod quiet;
pub(crate) mod results;
pub(crate) mod side;
pub(crate) mod sides;
pub(crate) mod statistics;
pub(crate) mod tables;
pub(crate) mod turn;
