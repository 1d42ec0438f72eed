//! The one-sided operations of a connection: grants to the peer, and READs and WRITEs in its memory.

pub(crate) mod grant;
pub(crate) mod read;
pub(crate) mod read_buffers;
pub(crate) mod write;
