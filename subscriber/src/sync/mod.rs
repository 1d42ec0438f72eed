//! Memory that a subscriber's threads share, and the way they wake each other.

pub(crate) mod atomics;
pub(crate) mod notify;
pub(crate) mod position_words;
pub(crate) mod seqlock;
pub(crate) mod wake;
