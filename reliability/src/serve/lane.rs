//! The kinds of output of the repair service.

/// The kinds of output. They take turns too, so that none of them starves another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Output that costs no budget: WELCOME, REFUSED, STATUS, REJECTED.
    Answers,
    /// Repairs.
    Repair,
    /// Replay of history.
    Replay,
}

impl Lane {
    pub(super) const ALL: [Self; 3] = [Self::Answers, Self::Repair, Self::Replay];

    pub(super) const fn next(self) -> Self {
        match self {
            Self::Answers => Self::Repair,
            Self::Repair => Self::Replay,
            Self::Replay => Self::Answers,
        }
    }
}
