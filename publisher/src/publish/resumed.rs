//! Messages that the channels already have when they continue from mirrors or kept rings.

use tickcast_reliability::types::{SourceId, SourcePosition};

use crate::state::positions::Positions;

/// The positions of the sources in the mirrors when the channels continued. Messages up to these
/// positions are not published again.
pub(crate) struct Resumed {
    /// For each channel, the sources that have not passed their mirrored position.
    mirrored: Vec<Positions>,
}

impl Resumed {
    /// Creates the state before any message.
    #[must_use]
    pub(crate) const fn new(mirrored: Vec<Positions>) -> Self {
        Self { mirrored }
    }

    /// Returns whether a channel already has the source's message at this position.
    pub(crate) fn has(&mut self, channel: usize, source: SourceId, at: SourcePosition) -> bool {
        let Some(all) = self.mirrored.get_mut(channel) else {
            return false;
        };
        let Some(index) = all.iter().position(|(id, _)| *id == source) else {
            return false;
        };
        let has = at <= all[index].1;
        if !has {
            // Positions of a source never step back.
            all.swap_remove(index);
        }
        has
    }

    /// Returns whether every source has passed its mirrored position.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        self.mirrored.iter().all(Vec::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SourceId = SourceId(1);
    const B: SourceId = SourceId(2);

    fn at(sequence: u64) -> SourcePosition {
        SourcePosition::new(0, sequence)
    }

    #[test]
    fn mirrored_is_not_republished_and_rest_unqueried() {
        let mut resumed = Resumed::new(vec![vec![(A, at(5)), (B, at(2))], vec![(A, at(3))]]);
        assert!(resumed.has(0, A, at(4)) && resumed.has(0, A, at(5)));
        assert!(
            !resumed.has(1, B, at(1)),
            "nothing of it was mirrored there"
        );
        for (channel, source, sequence) in [(0, A, 6), (0, B, 9), (1, A, 4)] {
            assert!(!resumed.is_over());
            assert!(!resumed.has(channel, source, at(sequence)));
        }
        assert!(resumed.is_over());
    }
}
