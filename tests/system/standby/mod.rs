//! A publisher and its standby.

mod pair;
mod promotions;
mod sessions;
mod take_over;
