//! How far two hosts' clocks differ, as an interval log notes it.

use std::fmt;

/// The difference of the clocks that stamp the begin and the end of a latency. Its true value lies within
/// the error around the offset.
///
/// ```
/// use tickcast_hlog::ClockOffset;
/// let offset = ClockOffset { offset_ns: -2_000, error_ns: 500 };
/// assert_eq!(offset.limit_ns(), 2_500);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// The publisher's clock minus this host's, in nanoseconds.
    pub offset_ns: i64,
    /// The largest error of the offset: half a round trip, and 0 on one host.
    pub error_ns: u64,
}

const BEGIN: &str = "#[ClockOffset: ";
const MIDDLE: &str = " ns, error ";
const END: &str = " ns]";

impl ClockOffset {
    /// Returns the largest possible difference of the clocks. They can't support a latency below it.
    #[must_use]
    pub const fn limit_ns(&self) -> u64 {
        self.offset_ns.unsigned_abs().saturating_add(self.error_ns)
    }

    /// Returns the one of two offsets with the larger possible difference.
    pub(crate) fn worse(self, other: Self) -> Self {
        std::cmp::max_by_key(other, self, Self::limit_ns)
    }

    /// Returns the offset that a line of a log notes; `None` for every other line.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let inner = line.strip_prefix(BEGIN.as_bytes())?;
        let inner = std::str::from_utf8(inner).ok()?.strip_suffix(END)?;
        let (offset, error) = inner.split_once(MIDDLE)?;
        Some(Self {
            offset_ns: offset.parse().ok()?,
            error_ns: error.parse().ok()?,
        })
    }
}

impl fmt::Display for ClockOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offset_ns,
            error_ns,
        } = self;
        write!(f, "{BEGIN}{offset_ns}{MIDDLE}{error_ns}{END}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_offset_of_a_log_counts_and_damaged_ones_do_not() {
        let of = |offset_ns, error_ns| ClockOffset {
            offset_ns,
            error_ns,
        };
        let all = [of(5, 5), of(-30, 10), of(i64::MIN, u64::MAX)];
        for offset in all {
            let line = offset.to_string();
            assert_eq!(ClockOffset::parse(line.as_bytes()), Some(offset));
        }
        for line in ["#[ClockOffset: <b> ns, error 9999 ns]", "#[ClockOffset: 1"] {
            assert_eq!(ClockOffset::parse(line.as_bytes()), None);
        }
        assert_eq!(all[0].worse(all[1]), all[1]);
        assert_eq!(all[2].worse(all[1]), all[2]);
        assert_eq!(all[2].limit_ns(), u64::MAX);
    }
}
