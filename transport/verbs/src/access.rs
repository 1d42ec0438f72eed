//! The proof of a device's access control: which accesses to memory a probe found to work, and to be refused,
//! as the protocol requires. It decides what peers are offered, and needs no device.

use std::fmt;

use thiserror::Error;

/// A step of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessStep {
    /// Registers memory for windows.
    Register,
    /// Connects the device to itself.
    Connect,
    /// Binds a window to a queue pair.
    Bind,
    /// READs through the window.
    Read,
    /// Revokes the window.
    Revoke,
    /// READs with the revoked key, which must be refused.
    ReadRevoked,
    /// READs past the end of a window, which must be refused.
    ReadBeyond,
    /// Compares and swaps a word of a cursor.
    Swap,
    /// WRITEs a cursor.
    Write,
    /// Compares and swaps a word of the next cursor, which must be refused.
    SwapBeyond,
}

/// Steps that prove READ: a window and its revocation on one connection, its end on another.
const READ: [AccessStep; 9] = [
    AccessStep::Register,
    AccessStep::Connect,
    AccessStep::Bind,
    AccessStep::Read,
    AccessStep::Revoke,
    AccessStep::ReadRevoked,
    AccessStep::Connect,
    AccessStep::Bind,
    AccessStep::ReadBeyond,
];
/// Steps that prove cursors.
const CURSORS: [AccessStep; 6] = [
    AccessStep::Register,
    AccessStep::Connect,
    AccessStep::Bind,
    AccessStep::Swap,
    AccessStep::Write,
    AccessStep::SwapBeyond,
];

impl AccessStep {
    /// Returns whether the device must refuse the access.
    const fn must_be_refused(self) -> bool {
        matches!(
            self,
            Self::ReadRevoked | Self::ReadBeyond | Self::SwapBeyond
        )
    }
}

impl fmt::Display for AccessStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Register => "registering memory for windows",
            Self::Connect => "a connection of the device to itself",
            Self::Bind => "binding a window",
            Self::Read => "a READ through a window",
            Self::Revoke => "revoking a window",
            Self::ReadRevoked => "a READ with a revoked key",
            Self::ReadBeyond => "a READ past the end of a window",
            Self::Swap => "compare-and-swap in a cursor",
            Self::Write => "a WRITE to a cursor",
            Self::SwapBeyond => "compare-and-swap in another's cursor",
        })
    }
}

/// The observed result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// It was done, and the bytes are right.
    Done,
    /// It was done, and the bytes are wrong.
    WrongBytes,
    /// The device refused the access.
    Refused,
    /// It failed for another reason, or did not end in time.
    Failed(String),
}

/// A step whose result is not the required one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{step} {}", found(*.step, .observed))]
pub struct AccessDefect {
    step: AccessStep,
    observed: Observed,
}

fn found(step: AccessStep, observed: &Observed) -> String {
    match observed {
        Observed::WrongBytes if !step.must_be_refused() => "brings wrong bytes".into(),
        // A step that had to be done is no defect when it is.
        Observed::Done | Observed::WrongBytes => {
            "is not refused, so the device does not protect memory".into()
        }
        Observed::Refused => "is refused".into(),
        Observed::Failed(why) => format!("fails: {why}"),
    }
}

impl AccessDefect {
    /// Returns the step.
    #[must_use]
    pub const fn step(&self) -> AccessStep {
        self.step
    }

    /// Returns whether the defect is the device's. Without a connection nothing was tried, and another
    /// attempt may succeed.
    #[must_use]
    pub const fn is_conclusive(&self) -> bool {
        !matches!(self.step, AccessStep::Register | AccessStep::Connect)
    }
}

/// The accesses that a device was proven to grant and to refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessProof {
    read: Result<(), AccessDefect>,
    cursors: Result<(), AccessDefect>,
}

impl AccessProof {
    /// Judges the steps of both probes, in order. A probe ends with its first defect.
    #[must_use]
    pub fn of(read: &[Observed], cursors: &[Observed]) -> Self {
        let read = judge(&READ, read);
        // A subscriber gets a cursor only with a ring, and the same keys protect both.
        let cursors = read.clone().and_then(|()| judge(&CURSORS, cursors));
        Self { read, cursors }
    }

    /// Returns whether peers may be offered READ.
    ///
    /// # Errors
    /// The first defect, if not.
    pub const fn read(&self) -> Result<(), &AccessDefect> {
        match &self.read {
            Ok(()) => Ok(()),
            Err(defect) => Err(defect),
        }
    }

    /// Returns whether peers may be offered cursors.
    ///
    /// # Errors
    /// The first defect, if not.
    pub const fn cursors(&self) -> Result<(), &AccessDefect> {
        match &self.cursors {
            Ok(()) => Ok(()),
            Err(defect) => Err(defect),
        }
    }

    /// Returns whether another probe of the device would find the same.
    #[must_use]
    pub fn is_conclusive(&self) -> bool {
        let of = |it: &Result<(), AccessDefect>| {
            it.as_ref().err().is_none_or(AccessDefect::is_conclusive)
        };
        of(&self.read) && of(&self.cursors)
    }
}

/// Returns the first defect: a step without its required result, or one that was not tried.
fn judge(steps: &[AccessStep], observed: &[Observed]) -> Result<(), AccessDefect> {
    for (at, &step) in steps.iter().enumerate() {
        let required = match step.must_be_refused() {
            true => Observed::Refused,
            false => Observed::Done,
        };
        let observed = observed.get(at).cloned();
        let observed = observed.unwrap_or_else(|| Observed::Failed("it was not tried".into()));
        if observed != required {
            return Err(AccessDefect { step, observed });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the required results of a probe.
    fn sound(steps: &[AccessStep]) -> Vec<Observed> {
        let required = |step: &AccessStep| match step.must_be_refused() {
            true => Observed::Refused,
            false => Observed::Done,
        };
        steps.iter().map(required).collect()
    }

    #[test]
    fn sound_device_offers_read_and_cursors() {
        let proof = AccessProof::of(&sound(&READ), &sound(&CURSORS));
        assert_eq!((proof.read(), proof.cursors()), (Ok(()), Ok(())));
        assert!(proof.is_conclusive());
        // The steps that must fail are as many as the ways past a window.
        let refused = READ
            .iter()
            .chain(&CURSORS)
            .filter(|it| it.must_be_refused());
        assert_eq!(refused.count(), 3);
    }

    #[test]
    fn defect_of_any_read_step_withholds_both() {
        let wrong = [
            Observed::Done,
            Observed::WrongBytes,
            Observed::Refused,
            Observed::Failed("status 6".into()),
        ];
        for (at, &step) in READ.iter().enumerate() {
            for observed in &wrong {
                let mut read = sound(&READ);
                let is_required = read[at] == *observed;
                read[at] = observed.clone();
                let proof = AccessProof::of(&read, &sound(&CURSORS));
                assert_eq!(proof.read().is_ok(), is_required, "{step}: {observed:?}");
                assert_eq!(proof.cursors().is_ok(), is_required, "{step}: {observed:?}");
                if let Err(defect) = proof.read() {
                    assert_eq!(defect.step(), step);
                    assert_eq!(proof.cursors(), Err(defect));
                }
            }
        }
    }

    #[test]
    fn defect_of_a_cursor_step_withholds_cursors_alone() {
        for (at, &step) in CURSORS.iter().enumerate() {
            let mut cursors = sound(&CURSORS);
            cursors[at] = Observed::WrongBytes;
            let proof = AccessProof::of(&sound(&READ), &cursors);
            assert_eq!(proof.read(), Ok(()), "{step}");
            assert_eq!(proof.cursors().unwrap_err().step(), step);
        }
    }

    #[test]
    fn step_that_was_not_tried_proves_nothing() {
        for (tried, step) in READ.iter().enumerate() {
            let proof = AccessProof::of(&sound(&READ)[..tried], &[]);
            assert_eq!(proof.read().unwrap_err().step(), *step);
        }
        assert!(AccessProof::of(&sound(&READ), &[]).cursors().is_err());
    }

    #[test]
    fn only_failures_before_the_first_window_may_pass() {
        let of = |at: usize| {
            let mut read = sound(&READ);
            read[at] = Observed::Failed("down".into());
            AccessProof::of(&read, &[])
        };
        let conclusive: Vec<_> = (0..READ.len()).map(|at| of(at).is_conclusive()).collect();
        let expected = [false, false, true, true, true, true, false, true, true];
        assert_eq!(conclusive, expected);
    }

    #[test]
    fn defects_name_the_step_and_the_finding() {
        let of = |step, observed| AccessDefect { step, observed }.to_string();
        assert_eq!(
            of(AccessStep::Bind, Observed::Failed("errno 95".into())),
            "binding a window fails: errno 95"
        );
        assert_eq!(
            of(AccessStep::ReadRevoked, Observed::Done),
            "a READ with a revoked key is not refused, so the device does not protect memory"
        );
        assert_eq!(
            of(AccessStep::Read, Observed::WrongBytes),
            "a READ through a window brings wrong bytes"
        );
        assert_eq!(
            of(AccessStep::Swap, Observed::Refused),
            "compare-and-swap in a cursor is refused"
        );
    }
}
