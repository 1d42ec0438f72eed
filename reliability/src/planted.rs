//! Deliberate bugs, which prove that the simulation finds bugs. A release build has none: without the
//! feature `planted-bugs` nobody can plant one, [`planted`] is `false`, and the compiler removes the
//! checks.
//!
//! The simulation lists where it finds each bug, and within how many seeds (tests/sim/src/planted.rs).

/// A plausible mistake. Each variant says what is wrong, and which section of docs/PROTOCOL.md it
/// violates.
#[cfg_attr(not(feature = "planted-bugs"), expect(unreachable_pub))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A datagram from a READ is accepted although its CRC is wrong (§6.6).
    TornReadDelivered,
    /// A READ slot with a later sequence is accepted as the wanted one, and no loss is detected (§6.6).
    LappedReadDelivered,
    /// A datagram in a standby's inbox is accepted although its CRC is wrong (§6.8).
    TornWriteTaken,
    /// READs continue when the tokens are used up (§6.6).
    ReadTokensIgnored,
    /// The window holds two datagrams more than it has slots (§5).
    WindowOverfilled,
    /// A known sequence counts as new after a jump backwards (§5.2).
    BackwardJumpBelieved,
    /// A datagram many rings ahead is accepted without confirmation by the repair path (§5.2).
    JumpBelieved,
    /// A STATUS that contradicts what was delivered has no effect (§5.5).
    ImpostorIgnored,
    /// An unreadable datagram of multicast takes the place of the publisher's own (§5.2).
    UnreadableTaken,
    /// A datagram with a wrong CRC is accepted (§3).
    CrcIgnored,
    /// A datagram of an authenticated channel is accepted whatever its tag (§3.3).
    TagIgnored,
    /// The CRC covers the relay byte, so that it differs in a repaired copy (§3).
    RelayByteCovered,
    /// The repair sets the relay byte in the slot instead of in its copy (§6.3).
    RelayByteInSlot,
    /// The slot's version is not checked again after the copy (§6.3).
    TornSlotAnswered,
    /// A NACK that was pending while the ring wrapped is answered with the slot's present content (§6.3).
    WrongSlotAnswered,
    /// A datagram of an outdated epoch is accepted (§5.2).
    OldEpochAccepted,
    /// A datagram of a higher epoch is accepted without confirmation by the repair path (§5.2, §5.6).
    StrayEpochBelieved,
    /// The WELCOME of a publisher with an outdated epoch is accepted (§5.1).
    ZombieWelcomed,
    /// The lost tail of an outdated epoch is not reported (§5.6).
    EpochTailForgotten,
    /// No heartbeat is sent (§4.1).
    HeartbeatForgotten,
    /// A heartbeat is sent before the sealed datagrams, and counts them as sent (§4.1).
    HeartbeatSaysSealed,
    /// A heartbeat delayed by a pause is never sent, nor is any after it (§4.1).
    TimerDeadAfterPause,
    /// A heartbeat's `retained` is one datagram too large (§3).
    RetainedGoesBack,
    /// A gap is requested only once (§5.4).
    NackNeverRetried,
    /// A gap is requested again at once, and attempts are not counted (§5.4).
    NackStorm,
    /// An unanswered NACK on the NACK connection is repeated there instead of on the next path (§5.4).
    RungNeverFallsBack,
    /// A NACK on a NACK connection is answered on the repair connection (§6.3).
    AnsweredElsewhere,
    /// A gap is requested before the other line has passed it (§5.3).
    LineSkewIgnored,
    /// A refusal has no effect (§6.3).
    RefusalIgnored,
    /// Some NACKs are refused for lack of budget although there is budget (§6.3).
    RefusedWithoutReason,
    /// A multicast answers all later NACKs for its sequence for ever (§6.3).
    MulticastAnswersForever,
    /// A unicast to one asker also answers the other askers (§6.3).
    UnicastAnswersOthers,
    /// A single asker is answered by multicast (§6.3).
    MulticastForOne,
    /// A multicast also answers pending NACKs for the next sequence (§6.3).
    NextAnsweredAsWell,
    /// STATUS reports a shorter available range than the ring holds (§6.2).
    StatusOfAShorterRing,
    /// Heartbeats stay at the first interval for ever (§4.1).
    HeartbeatsNeverRarer,
    /// A scout of a large group READs instead of sending a NACK at once (§5.4).
    ScoutsRead,
    /// Multicast repairs are not counted (§10).
    MulticastRepairUncounted,
    /// Pending NACKs of a closed connection are not counted (§10).
    AbandonedUncounted,
    /// Repairs are sent although the budget is used up (§6.4).
    BudgetIgnored,
    /// Repairs to a subscriber are not charged to its budget (§6.4).
    SubscriberBudgetForgotten,
    /// Replay is charged to no budget (§6.4).
    JoinersUncharged,
    /// END cannot be repaired (§4.3).
    EndNotRepaired,
    /// A datagram of kind END is accepted whatever its CRC and its epoch (§4.3, §5.2).
    EndUnchecked,
    /// A heartbeat with the ended state ends the session without STATUS (§4.3).
    EndedHeartbeatBelieved,
    /// The end of the session is emitted at every occasion (§4.3).
    EndEmittedTwice,
    /// A joiner gets the datagram before its announced start (§5.1).
    LateJoinRepeatsOne,
    /// A joiner misses the first datagram after its announced start (§5.1).
    LateJoinSkipsOne,
    /// A joiner begins three datagrams after its requested start, and announces that start (§5.1).
    BeginsFurtherOn,
    /// A joiner emits Live before its history is delivered (§5.1).
    LiveToldTooSoon,
    /// A reported loss is one record short (§8).
    LossOneRecordShort,
    /// Of two adjacent losses only the first is reported (§8).
    SecondLossSwallowed,
    /// A loss names the wrong cause (§8).
    WrongCause,
    /// A datagram that was declared lost is delivered when it arrives after all (§5.2).
    LostAndDelivered,
    /// A gap that is filled counts twice (§10).
    RecoveryCountedTwice,
    /// A filled gap is reported twice (§7).
    RecoveryToldTwice,
    /// A second copy is delivered (§5.2).
    DuplicateDelivered,
    /// The copy of the second line is also delivered (§5.3).
    SecondLineDelivered,
    /// PROGRESS counts the awaited datagram as settled (§6.2).
    ProgressAhead,
    /// STATUS is applied before the datagrams in our own socket were read (§5.5).
    StatusOvertakesSocket,
    /// A gap outlives its deadline (§7).
    DeadlineForgotten,
    /// A gap is given up ten deadlines after it was found (§7).
    DeadlineStretched,
    /// A gap that only multicast claims is given up at its deadline (§5.5).
    DeadlineUnconfirmed,
    /// No STATUS is requested before the deadline of a gap that only multicast claims (§5.5).
    DeadlineNotAsked,
    /// A gap that only multicast claims waits for its confirmation for ever (§5.5).
    DeadlineNotLifted,
    /// The first NACK for a gap is sent 50 us too late (§5.4).
    FirstQuestionLate,
    /// A dead publisher is awaited for ever (§5.5).
    DeadNeverTold,
    /// A connection that could not be established is not retried (§6.1).
    ReconnectForgotten,
    /// The retry of an unanswered NACK is sent after fifty times the correct interval (§5.4).
    RetryTooSlow,
    /// An unanswered NACK is retried at the same interval for ever (§5.4).
    BackOffForgotten,
    /// Multicast groups are not rejoined, however long they are silent (§5.5).
    RejoinForgotten,
    /// Every receiver of a large group sends its first NACK at once (§5.4).
    HoldOffIgnored,
    /// A sequence is multicast again without limit (§6.3).
    MulticastWithoutCap,
    /// Every unconfirmed datagram triggers a request for STATUS (§5.5).
    StatusWithoutLimit,
    /// The first copy is delivered even when the repair path's copy differs (§5.2).
    DecidingCopyIgnored,
    /// The end of a silence is not emitted (§5.5).
    RecoveredNotEmitted,
    /// A cursor with words of two reports is accepted (§6.7).
    TornCursorBelieved,
    /// A mirror keeps the relay byte of the received copy (§5.7).
    RelayByteMirrored,
    /// Records delivered from the dead part of a continued epoch are delivered again (§5.7).
    RepeatedRecordsDelivered,
    /// A subscriber forgets the gaps of an epoch when another epoch continues it (§5.7).
    HistoryOfOldEpochForgotten,
}

/// Returns whether this bug is planted.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}

/// Returns whether the ring wrapped during this copy of a slot with `words` words.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn torn(_: &mut [u64], _: usize) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
pub use switch::{plant, tear};
#[cfg(feature = "planted-bugs")]
pub(crate) use switch::{planted, torn};

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::Bug;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
        static COPIES: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }

    /// Plants a bug in all code that this thread runs from now on, in place of the previous one. `None`
    /// plants no bug.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Simulates a fault that otherwise needs threads: in every `every`-th copy of a slot from now on, the
    /// ring wraps; 0 for never.
    pub fn tear(every: u32) {
        COPIES.set((0, every));
    }

    /// Returns whether the ring wrapped during this copy, and overwrites its second half if so.
    pub(crate) fn torn(copy: &mut [u64], words: usize) -> bool {
        let (copies, every) = COPIES.get();
        COPIES.set((copies.wrapping_add(1), every));
        let torn = every > 0 && copies % every == every - 1;
        let second_half = copy.iter_mut().take(words).skip(words / 2);
        for word in second_half.filter(|_| torn) {
            *word = !*word;
        }
        torn
    }

    /// Returns whether this bug is planted.
    #[inline]
    pub(crate) fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}
