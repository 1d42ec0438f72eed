//! Staged losses, and the explanations that journals give of them.

mod both_sides;
mod one_record;
