//! One-sided access over a control connection: memory that a publisher shares and a subscriber READs.

mod inbox;
mod read;
pub(in crate::control) mod share;

pub use inbox::InboxGrant;
pub use share::ShareId;
