//! The verbs: one file or folder for each, with its options and its implementation.

pub(crate) mod accept_rdma;
mod command_request;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod inject;
pub(crate) mod inspect;
pub(crate) mod listen;
pub(crate) mod loss;
pub(crate) mod manual;
pub(crate) mod plan;
pub(crate) mod promote;
pub(crate) mod reload;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod simulate;
pub(crate) mod top;
mod tree;
