//! The verbs of `tickcast`, run as programs.

mod accept_rdma;
mod cli;
mod common;
mod demo;
mod doctor;
mod explain;
mod hostile;
mod inject;
mod inspect;
mod listen;
mod plan;
mod replay;
