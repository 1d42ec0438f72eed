//! A publisher and its standby.

pub(crate) mod pair;
mod promotions;
mod sessions;
mod take_over;
