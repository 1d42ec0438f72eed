//! Parts that `tickcast` and the lab share: exit codes and errors, files, processes, tables.

pub mod exit;
pub mod support;
