//! Parts that `tickcast` and the lab share: exit codes and errors, reports, files, processes, tables.

pub mod exit;
pub mod report;
pub mod support;
