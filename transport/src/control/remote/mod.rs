//! One-sided access over a control connection: what a publisher shares, and what a subscriber READs.

mod inbox;
mod read;
pub(in crate::control) mod share;

pub use inbox::InboxGrant;
pub use share::ShareId;
