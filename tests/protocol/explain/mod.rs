//! Staged losses, and the explanations that flight records give of them.

mod both_sides;
mod one_record;
