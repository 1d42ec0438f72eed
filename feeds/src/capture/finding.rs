//! Findings: one line for each way in which an input is not as it should be.

use std::borrow::Cow;
use std::fmt;

use tickcast_reliability::types::Nanos;

/// Findings kept; more are counted only.
const KEPT_MAX: usize = 64;

/// One finding. Offsets are in bytes after decompression.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CaptureFinding {
    /// The framing was lost and found again.
    Skipped {
        /// First byte that is no sound record.
        from: u64,
        /// First byte of the next sound record.
        to: u64,
    },
    /// The file ends within a record.
    Truncated {
        /// First byte of that record.
        at: u64,
    },
    /// Bytes follow the last member of a compressed file.
    Trailing {
        /// Their number.
        bytes: u64,
    },
    /// Messages are missing before a login.
    Missing {
        /// Sequence of the first one.
        from: u64,
        /// Sequence of the last one.
        to: u64,
        /// First byte of the login.
        at: u64,
    },
    /// Another file begins within this one.
    AnotherFile {
        /// Its first byte.
        at: u64,
    },
    /// A block has a type that is not registered, or the fields of a packet under another type.
    UnknownBlock {
        /// Its type.
        kind: u32,
        /// First byte of the block.
        at: u64,
    },
    /// Packets name an interface that the section does not describe.
    UnknownInterface {
        /// The interface.
        interface: u32,
        /// Number of the first such block in the file, from 1.
        block: u64,
        /// First byte of that block.
        at: u64,
    },
    /// Packets have a link type that is not read.
    UnknownLink {
        /// The number of the link type.
        link: i32,
        /// First byte of the first such record.
        at: u64,
    },
    /// The stamps have another unit than the file states, and are taken as of that.
    UnitTaken {
        /// Units in a second as the file states them.
        stated: u64,
        /// Units in a second as the stamps show them.
        shown: u64,
    },
    /// A stamp's fraction exceeds a second.
    Fraction {
        /// First byte of the record.
        at: u64,
        /// The fraction, in ns as the file's unit says.
        ns: u64,
    },
    /// Stamps are behind the year 2100, or no number of ns since 1970 in 64 bits.
    Beyond {
        /// First byte of the first such record.
        at: u64,
    },
    /// Frames have no time, or that of 1970, although others have one.
    NoTime {
        /// First byte of the first such record.
        at: u64,
    },
    /// A stamp is more than a minute ahead of the one before.
    Jump {
        /// First byte of the record.
        at: u64,
        /// The distance.
        by: Nanos,
    },
    /// Stamps are more than a second before the one before each of them.
    StepBack {
        /// Their number.
        steps: u64,
        /// First byte of the first such record.
        at: u64,
        /// The longest step.
        by: Nanos,
    },
    /// Stamps in a row are each before the last one, as if the clock ran back.
    Descent {
        /// Their number.
        stamps: u64,
        /// First byte of the first such record.
        at: u64,
    },
    /// Many stamps are more than 100 ms behind the newest one before them.
    Behind {
        /// Their number.
        stamps: u64,
        /// All stamps.
        of: u64,
    },
}

impl CaptureFinding {
    /// Returns whether the finding forbids the verdict "whole".
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        !matches!(
            self,
            Self::AnotherFile { .. }
                | Self::UnitTaken { .. }
                | Self::Beyond { .. }
                | Self::NoTime { .. }
                | Self::Jump { .. }
                | Self::StepBack { .. }
                | Self::Descent { .. }
                | Self::Behind { .. }
        )
    }
}

impl fmt::Display for CaptureFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Skipped { from, to } => write!(
                f,
                "bytes {from} to {to} ({}) are no sound record and were skipped: copy or record \
                 the file again",
                to - from
            ),
            Self::Truncated { at } => write!(
                f,
                "the file is cut off within the record at byte {at}: copy it again"
            ),
            Self::Trailing { bytes } => write!(
                f,
                "{bytes} bytes follow the compressed data and were not read: decompress them apart"
            ),
            Self::Missing { from, to, at } => write!(
                f,
                "messages {from} to {to} ({}) are missing: the login at byte {at} continues \
                 behind them",
                to - from + 1
            ),
            Self::AnotherFile { at } => write!(f, "another file begins at byte {at}"),
            Self::UnknownBlock { kind, at } => write!(
                f,
                "the block at byte {at} has the type {kind:#x}, was skipped, and may be a damaged \
                 packet: copy or record the file again"
            ),
            Self::UnknownInterface {
                interface,
                block,
                at,
            } => write!(
                f,
                "packets of interface {interface}, which the file does not describe, can't be \
                 read; the first is block {block}, at byte {at}: merge the parts with mergecap"
            ),
            Self::UnknownLink { link, at } => write!(
                f,
                "frames of link type {link} are not read; the first is at byte {at}: record as \
                 Ethernet, Linux cooked or raw IP"
            ),
            Self::UnitTaken { stated, shown } => {
                let (stated, shown) = (unit_name(stated), unit_name(shown));
                write!(
                    f,
                    "the file says {stated}, but its stamps hold {shown}: they are taken as {shown}"
                )
            }
            Self::Beyond { at } => write!(
                f,
                "stamps are beyond the year 2100, and no usual unit explains them; the first is at byte {at}"
            ),
            Self::Fraction { at, ns } => write!(
                f,
                "the stamp at byte {at} has a fraction of {ns} ns, more than a second: its time \
                 is wrong"
            ),
            Self::NoTime { at } => write!(
                f,
                "frames have no time (their stamp is 0, in 1970), although others have one; the first \
                 is at byte {at}"
            ),
            Self::Jump { at, by } => write!(
                f,
                "the stamp at byte {at} is {} s ahead of the one before",
                by.0 / 1_000_000_000
            ),
            Self::StepBack { steps, at, by } => write!(
                f,
                "{steps} stamps are more than a second behind the one before, by {} ms at most; the first is \
                 at byte {at}: the clock was set, or files were joined",
                by.0 / 1_000_000
            ),
            Self::Descent { stamps, at } => write!(
                f,
                "{stamps} stamps in a row descend, from byte {at} on: the clock ran back, or the packets are \
                 in the wrong order"
            ),
            Self::Behind { stamps, of } => write!(
                f,
                "{stamps} of {of} stamps are more than 100 ms behind the newest one before them: several \
                 clocks, or packets in the wrong order (reordercap)"
            ),
        }
    }
}

/// Returns the name of a unit of time, by its number in a second.
fn unit_name(per_second: u64) -> Cow<'static, str> {
    match per_second {
        1 => "seconds".into(),
        1_000 => "milliseconds".into(),
        1_000_000 => "microseconds".into(),
        1_000_000_000 => "nanoseconds".into(),
        other => format!("units of 1/{other} s").into(),
    }
}

/// Findings in the order of the file, bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    kept: Vec<CaptureFinding>,
    more: u64,
    is_damage: bool,
}

impl Findings {
    /// Returns the findings kept.
    #[must_use]
    pub fn kept(&self) -> &[CaptureFinding] {
        &self.kept
    }

    /// Returns the number of findings beyond those kept.
    #[must_use]
    pub const fn more(&self) -> u64 {
        self.more
    }

    /// Returns whether any finding forbids the verdict "whole".
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        self.is_damage
    }

    /// Returns the text of each finding that forbids the verdict "whole".
    pub(crate) fn faults(&self) -> Vec<String> {
        let damage = self.kept.iter().filter(|finding| finding.is_damage());
        let mut faults: Vec<_> = damage.map(ToString::to_string).collect();
        if self.more > 0 && self.is_damage {
            faults.push(format!("there are {} more findings", self.more));
        }
        faults
    }

    /// Returns the text of each finding that does not forbid the verdict "whole".
    pub(crate) fn notes(&self) -> Vec<String> {
        let notes = self.kept.iter().filter(|finding| !finding.is_damage());
        notes.map(ToString::to_string).collect()
    }

    /// Adds a finding that stands for all of its kind.
    pub(crate) fn add_once(&mut self, finding: &CaptureFinding) {
        if !self.kept.contains(finding) {
            self.add(finding.clone());
        }
    }

    pub(crate) fn add(&mut self, finding: CaptureFinding) {
        self.is_damage |= finding.is_damage();
        if self.kept.len() < KEPT_MAX {
            self.kept.push(finding);
        } else {
            self.more += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: CaptureFinding = CaptureFinding::AnotherFile { at: 1 };
    const DAMAGE: CaptureFinding = CaptureFinding::Trailing { bytes: 1 };

    fn findings(all: impl IntoIterator<Item = CaptureFinding>) -> Findings {
        let mut findings = Findings::default();
        all.into_iter().for_each(|finding| findings.add(finding));
        findings
    }

    #[test]
    fn damage_is_damage_before_and_behind_a_note() {
        assert!(!findings([NOTE]).is_damage());
        for order in [[NOTE, DAMAGE], [DAMAGE, NOTE]] {
            let findings = findings(order);
            assert!(findings.is_damage());
            let counts = (findings.faults().len(), findings.notes().len());
            assert_eq!(counts, (1, 1));
        }
    }

    #[test]
    fn findings_beyond_the_kept_ones_are_counted() {
        let notes = || std::iter::repeat_n(NOTE, KEPT_MAX);
        let whole = findings(notes());
        assert_eq!((whole.kept().len(), whole.more()), (KEPT_MAX, 0));
        let more = findings(notes().chain([NOTE]));
        assert_eq!((more.more(), more.faults().len()), (1, 0));
        let damaged = findings(notes().chain([NOTE, DAMAGE]));
        assert_eq!((damaged.kept().len(), damaged.more()), (KEPT_MAX, 2));
        assert_eq!(damaged.faults(), ["there are 2 more findings"]);
    }
}
