//! Files that outlive their process: rings, journals, epochs, summaries, audit trails. Every one of them is
//! opened here, so that another user of the host can neither plant nor replace one.
//!
//! Contents are written under a random name, which nobody can have taken, and get their own name once they
//! are complete. An empty file gets its own name at once, unless anything has that name. A kept file is used
//! only if it is a regular file of this user that nobody else can write. Names are looked up in an opened
//! directory.

mod directory;
mod entry;
mod error;
mod facts;
mod input;
mod limit;
mod output;
mod socket;
mod temporary_name;

pub use directory::{create_directory, open_directory, open_trusted_directory};
pub use entry::{Access, DirectoryEntry, NewFile, Readers};
pub use error::FileError;
pub use input::{is_pipe, open_input, read_at_most};
pub use limit::check_limit;
pub use output::OutputTarget;
pub use socket::ListeningSocket;
