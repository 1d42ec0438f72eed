//! Deliberate bugs, to show that the simulation of lines finds them. A build for use has none:
//! without the feature `planted-bugs`, [`planted`] is `false`, and the compiler drops the rest.

/// A mistake that somebody might make in arbitration.
#[cfg_attr(not(feature = "planted-bugs"), expect(unreachable_pub))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArbiterBug {
    /// An early packet is dropped instead of held.
    EarlyDropped,
    /// Early packets are released in the order of arrival.
    ReleasedByArrival,
    /// A message that two packets share is delivered from each.
    OverlapDelivered,
    /// A packet that begins with an old message is old altogether.
    OverlapDropped,
    /// A gap is reported one message short.
    GapOneShort,
    /// A gap is closed without a report.
    GapUnreported,
    /// Messages before the first packet are reported as lost.
    JoinIsGap,
    /// The source begins with the first packet, whatever comes just after.
    JoinedAtOnce,
    /// A late message counts as a duplicate.
    LateIsDuplicate,
    /// A gap is declared when one line has passed it.
    OneLineSuffices,
    /// A wait has no end.
    WaitsForever,
    /// A line that fell silent is waited for.
    SilentLineAwaited,
    /// A stopped line is not reported.
    StopUnreported,
    /// A heartbeat does not announce what was sent.
    HeartbeatIgnored,
    /// The first packet of another session ends the current one.
    SessionBelieved,
    /// The packets that led to a new session are dropped.
    SessionPacketsDropped,
    /// The session that was left is forgotten.
    PreviousForgotten,
    /// A sequence far ahead is believed at once.
    JumpBelieved,
    /// A heartbeat far ahead is believed at once.
    FarHeartbeatBelieved,
    /// More packets are held than allowed.
    HoldUnbounded,
    /// The end of the input leaves early packets held.
    EndForgets,
    /// A reordered message counts as missing on its line.
    ReorderedIsMissing,
    /// A duplicate counts as first.
    DuplicateIsFirst,
    /// After a resumption, a restarted count passes for old messages.
    ResumeSwallows,
}

#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn planted(_: ArbiterBug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
pub use switch::plant;
#[cfg(feature = "planted-bugs")]
pub(crate) use switch::planted;

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::ArbiterBug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<ArbiterBug>> = const { Cell::new(None) };
    }

    /// Plants a bug in everything that this thread runs from now on; `None`: no bug.
    pub fn plant(bug: Option<ArbiterBug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn planted(bug: ArbiterBug) -> bool {
        PLANTED.get() == Some(bug)
    }
}
