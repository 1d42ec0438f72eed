//! A subscriber on a thread of its own, and readers of what it receives.

mod commands;
mod reader;
mod ring;
mod thread;

pub use reader::{Reader, ReaderReport};
pub use thread::Running;
