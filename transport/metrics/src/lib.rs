//! Metrics in Prometheus' text format and in OpenMetrics: the names of all families, and a page of
//! their values.
//!
//! Counters stay where they are; a [`Page`] reads them once. So no thread that publishes or delivers
//! knows of this crate.
//!
//! Order of modules, top to bottom; each imports only those below it:
//!
//! 1. `page`: families with their series, encoded
//! 2. `labels`: labels whose values are harmless
//! 3. `process`: facts of this process
//! 4. `families`: the table of all names

pub mod families;
mod labels;
mod page;
mod process;

pub use families::{Family, FedBy, Part};
pub use labels::Labels;
pub use page::{Exemplar, Page, PageFormat, TimeBuckets};
