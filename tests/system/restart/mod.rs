//! Publishers and subscribers that are killed and started again.

mod kept;
mod kill_matrix;
mod live;
mod restarts;
