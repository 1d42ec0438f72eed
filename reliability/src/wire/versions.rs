//! The wire versions that a side speaks. Two sides agree on the newest version they have in common. A
//! publisher multicasts the oldest version that it speaks (docs/PROTOCOL.md §13).

use std::fmt;

use serde::{Deserialize, Serialize};

use super::WIRE_VERSION;

/// A contiguous range of wire versions.
///
/// ```
/// use tickcast_reliability::wire::WireVersions;
///
/// let both = WireVersions::new(1, 2).unwrap();
/// assert_eq!(both.agreed(&[1]), Some(1), "with a peer that is one older");
/// assert_eq!(both.agreed(&[3, 2, 1]), Some(2), "with one that is newer");
/// assert_eq!(both.agreed(&[3]), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireVersions {
    oldest: u8,
    newest: u8,
}

impl Default for WireVersions {
    /// Returns the versions that this code speaks.
    fn default() -> Self {
        Self {
            oldest: WIRE_VERSION,
            newest: WIRE_VERSION,
        }
    }
}

impl WireVersions {
    /// Returns the versions from `oldest` to `newest`; `None` when the range is empty. Version 0 is invalid.
    #[must_use]
    pub const fn new(oldest: u8, newest: u8) -> Option<Self> {
        match 0 < oldest && oldest <= newest {
            true => Some(Self { oldest, newest }),
            false => None,
        }
    }

    /// Returns whether this version is in the range.
    #[must_use]
    pub const fn has(self, version: u8) -> bool {
        self.oldest <= version && version <= self.newest
    }

    /// Returns each version, newest first, in the order of JOIN.
    #[must_use]
    pub fn all(self) -> Vec<u8> {
        (self.oldest..=self.newest).rev().collect()
    }

    /// Returns the newest version that a peer with these offers also speaks.
    #[must_use]
    pub fn agreed(self, offered: &[u8]) -> Option<u8> {
        offered.iter().copied().filter(|it| self.has(*it)).max()
    }
}

impl fmt::Display for WireVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "{}", self.newest),
            false => write!(f, "{} to {}", self.oldest, self.newest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_negotiation_picks_newest_common_version() {
        let spoken = |oldest, newest| WireVersions::new(oldest, newest).unwrap();
        let agreed = |ours: WireVersions, theirs: WireVersions| ours.agreed(&theirs.all());
        for (ours, theirs, version) in [
            (spoken(1, 1), spoken(1, 1), Some(1)),
            (spoken(1, 2), spoken(1, 1), Some(1)),
            (spoken(1, 2), spoken(2, 3), Some(2)),
            (spoken(1, 3), spoken(1, 2), Some(2)),
            (spoken(2, 3), spoken(1, 1), None),
        ] {
            assert_eq!(agreed(ours, theirs), version, "{ours} and {theirs}");
            assert_eq!(agreed(theirs, ours), version, "{theirs} and {ours}");
        }
        assert_eq!(spoken(1, 2).agreed(&[]), None);
        assert_eq!(spoken(1, 2).agreed(&[0, 200, 1]), Some(1), "in any order");
        assert_eq!(WireVersions::new(0, 1), None);
        assert_eq!(WireVersions::new(2, 1), None);
        assert_eq!(
            (spoken(1, 1).to_string(), spoken(1, 2).to_string()),
            ("1".into(), "1 to 2".into())
        );
        assert_eq!(WireVersions::default().all(), [WIRE_VERSION]);
    }
}
