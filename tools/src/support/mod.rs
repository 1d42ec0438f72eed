//! Parts that the verbs and the lab share.

pub mod args;
pub mod conversation;
pub mod digest;
pub mod faults;
pub mod files;
pub mod output;
pub mod packets;
pub mod plain;
pub mod processes;
pub mod progress;
pub mod send;
pub mod signals;
pub mod table;
pub mod watched;
