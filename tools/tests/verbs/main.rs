//! The verbs of `tickcast`, run as programs.

mod cli;
mod common;
mod demo;
mod explain;
mod inject;
mod listen;
mod replay;
