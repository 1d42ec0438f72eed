//! Publishers and subscribers that are killed and started again.

pub(crate) mod kept;
mod kill_matrix;
mod live;
mod restarts;
