//! Memory that threads of a subscriber share, and how they wake each other.

pub(crate) mod atomics;
pub(crate) mod notify;
pub(crate) mod position_words;
pub(crate) mod seqlock;
pub(crate) mod wake;
