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

    /// Returns the offset that a line of a log notes; `None` for every other line.
    fn parse(line: &[u8]) -> Option<Self> {
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

/// Returns the offset with the largest possible difference among those that a log notes, or `None`.
#[must_use]
pub fn worst_clock_offset(log: &[u8]) -> Option<ClockOffset> {
    let lines = log.split(|byte| *byte == b'\n');
    lines
        .filter_map(ClockOffset::parse)
        .max_by_key(ClockOffset::limit_ns)
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
        let log = |some: &[ClockOffset]| {
            let lines = some.iter().map(|it| format!("{it}\nTag=a/b,1,1,1,x\n"));
            lines.collect::<String>() + "#[ClockOffset: <b> ns, error 9999 ns]\n#[ClockOffset: 1"
        };
        assert_eq!(worst_clock_offset(log(&all[..2]).as_bytes()), Some(all[1]));
        assert_eq!(worst_clock_offset(log(&all).as_bytes()), Some(all[2]));
        assert_eq!(worst_clock_offset(log(&[]).as_bytes()), None);
        assert_eq!(all[2].limit_ns(), u64::MAX);
    }
}
