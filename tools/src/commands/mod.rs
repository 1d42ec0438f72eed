//! One file (or folder) a verb: what can be typed, and what it does.

pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod inject;
pub(crate) mod inspect;
pub(crate) mod listen;
pub(crate) mod promote;
pub(crate) mod replay;
pub(crate) mod simulate;
