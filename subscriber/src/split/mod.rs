//! A subscriber on its own thread, and the readers of its items.

mod commands;
mod reader;
mod ring;
mod thread;

pub use reader::{Reader, ReaderReport};
pub use thread::Running;
