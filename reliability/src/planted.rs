//! Deliberate bugs, to show that the simulation finds them. A build for use has none: without the
//! feature `planted-bugs` nobody can plant one, [`planted`] is `false`, and the compiler drops
//! what asks it.
//!
//! Where each is found, and within how many seeds, stands beside the simulation
//! (tests/sim/src/planted.rs).

/// A mistake that somebody might make. Each says what is wrong, and which rule of
/// docs/PROTOCOL.md it breaks.
#[cfg_attr(not(feature = "planted-bugs"), expect(unreachable_pub))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// What a READ brought is taken although its CRC does not fit (§6.6).
    TornReadDelivered,
    /// A slot that holds a later sequence is taken for the one wanted, and nothing is lost (§6.6).
    LappedReadDelivered,
    /// What a publisher wrote to a standby is taken although its CRC does not fit (§6.8).
    TornWriteTaken,
    /// READs go on when the tokens are used up (§6.6).
    ReadTokensIgnored,
    /// The window takes one datagram more than it has slots (§5).
    WindowOffByOne,
    /// A sequence is taken for new although everything up to it was heard of (§5.2).
    BackwardJumpBelieved,
    /// A datagram many rings ahead is believed without the repair path's word (§5.2).
    LeapBelieved,
    /// A datagram whose CRC is wrong is taken (§3).
    CrcIgnored,
    /// The CRC covers the relay byte, so that a repaired copy has another one (§3).
    RelayByteCovered,
    /// The repair marks the slot instead of its copy of it (§6.3).
    RelayByteInSlot,
    /// The copy of a slot is not checked again after it was made (§6.3).
    TornSlotAnswered,
    /// A question that waited while the ring came round is answered with what the slot holds now
    /// (§6.3).
    WrongSlotAnswered,
    /// A datagram of an epoch that is over is taken (§5.2).
    OldEpochAccepted,
    /// A datagram of a higher epoch is followed without the repair path's word (§5.2, §5.6).
    StrayEpochBelieved,
    /// The WELCOME of a publisher whose epoch is over is followed (§5.1).
    ZombieWelcomed,
    /// The lost tail of an epoch that is over is not told (§5.6).
    EpochTailForgotten,
    /// No heartbeat is sent (§4.1).
    HeartbeatForgotten,
    /// A heartbeat goes before the datagrams that are sealed, and counts them as sent (§4.1).
    HeartbeatSaysSealed,
    /// A heartbeat that a pause made late is never sent, nor any after it (§4.1).
    TimerDeadAfterPause,
    /// A heartbeat says that the ring holds one datagram more than it does (§3).
    RetainedGoesBack,
    /// A gap is asked for once (§5.4).
    NackNeverRetried,
    /// A gap is asked for again at once, and no question counts as a try (§5.4).
    NackStorm,
    /// What the NACK connection does not answer is asked for there again (§5.4).
    RungNeverGivesWay,
    /// What is asked for on a NACK connection is answered on the repair connection (§6.3).
    AnsweredElsewhere,
    /// A gap is asked for before the other line has passed it (§5.3).
    LineSkewIgnored,
    /// A refusal changes nothing (§6.3).
    RefusalIgnored,
    /// Now and then a budget is said to be used up that is not (§6.3).
    RefusedWithoutReason,
    /// An answer by multicast satisfies all who ask, for ever (§6.3).
    MulticastAnswersForever,
    /// What one was sent satisfies the others who ask for it (§6.3).
    UnicastAnswersOthers,
    /// One who asks is answered by multicast (§6.3).
    MulticastForOne,
    /// A multicast satisfies who waits for the sequence after it, too (§6.3).
    NextAnsweredAsWell,
    /// STATUS says that less can be had than can (§6.2).
    StatusOfAShorterRing,
    /// Heartbeats come at the first interval for ever (§4.1).
    HeartbeatsNeverRarer,
    /// Who is to ask at once in a large group READs instead (§5.4).
    ScoutsRead,
    /// What is sent by multicast in answer is not counted (§10).
    MulticastRepairUncounted,
    /// Questions that a connection leaves behind are not counted (§10).
    AbandonedUncounted,
    /// Repair is sent although its budget is used up (§6.4).
    BudgetIgnored,
    /// What one subscriber gets is not charged to it (§6.4).
    SubscriberBudgetForgotten,
    /// Replay is charged to nobody (§6.4).
    JoinersUncharged,
    /// END can't be asked for (§4.3).
    EndNotRepaired,
    /// A datagram that looks like an END is one, whatever its CRC and its epoch (§4.3, §5.2).
    EndUnchecked,
    /// A heartbeat that says so ends the session without STATUS (§4.3).
    EndedHeartbeatBelieved,
    /// The end is told whenever there is a reason (§4.3).
    EndToldTwice,
    /// Who joins gets the datagram that it was told to come after (§5.1).
    LateJoinRepeatsOne,
    /// Who joins misses the first datagram that it was told to get (§5.1).
    LateJoinSkipsOne,
    /// Who joins begins three datagrams further on than it wanted, and is told so (§5.1).
    BeginsFurtherOn,
    /// Who joins is told to be live before its history came (§5.1).
    LiveToldTooSoon,
    /// A loss is declared one record short (§8).
    LossOneRecordShort,
    /// Of two losses next to each other only the first is told (§8).
    SecondLossSwallowed,
    /// A loss names the wrong cause (§8).
    WrongCause,
    /// What was declared lost is delivered when it comes after all (§5.2).
    LostAndDelivered,
    /// A gap that is filled counts twice (§10).
    RecoveryCountedTwice,
    /// A gap that is filled is told twice (§7).
    RecoveryToldTwice,
    /// A second copy is delivered (§5.2).
    DuplicateDelivered,
    /// The second line's copy is delivered as well (§5.3).
    SecondLineDelivered,
    /// PROGRESS counts the datagram that is waited for as settled (§6.2).
    ProgressAhead,
    /// STATUS is believed before the datagrams in our own socket were read (§5.5).
    StatusOvertakesSocket,
    /// A gap outlives its deadline (§7).
    DeadlineForgotten,
    /// A gap is given up ten deadlines after it was found (§7).
    DeadlineStretched,
    /// A gap is asked for the first time 50 us too late (§5.4).
    FirstQuestionLate,
    /// A dead publisher is waited for (§5.5).
    DeadNeverTold,
    /// A connection that could not be established is not tried again (§6.1).
    ReconnectForgotten,
    /// What is not answered is asked for again fifty times later than it should be (§5.4).
    RetryTooSlow,
    /// What is not answered is asked for again at the same interval for ever (§5.4).
    BackOffForgotten,
    /// The groups are not joined anew, however long they are silent (§5.5).
    RejoinForgotten,
    /// Whoever misses something in a large group asks at once (§5.4).
    HoldOffIgnored,
    /// A sequence is sent to the group however often it was before (§6.3).
    MulticastWithoutCap,
    /// Every datagram that is doubted makes it ask for STATUS (§5.5).
    StatusWithoutLimit,
    /// The copy that came first is delivered, whatever the repair path's says (§5.2).
    DecidingCopyIgnored,
    /// That a silence is over is not told (§5.5).
    FreshForgotten,
    /// Words of two reports in a cursor are believed (§6.7).
    TornCursorBelieved,
    /// A mirror keeps the relay byte of the copy that came (§5.7).
    RelayByteMirrored,
    /// What the dead line of an epoch delivered is delivered again (§5.7).
    RepeatedRecordsDelivered,
    /// Who follows an epoch that is continued forgets what it misses of it (§5.7).
    HistoryOfOldEpochForgotten,
}

/// Whether this bug is planted.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub(crate) const fn planted(_: Bug) -> bool {
    false
}

/// Whether the ring came round while this copy of a slot, of so many words, was made.
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

    /// Plants a bug in everything that this thread runs from now on, instead of the one before;
    /// `None`: no bug.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// No bug, but a fault that only threads would bring about: during every so many copies of a
    /// slot the ring comes round; 0: never. Counts from now on.
    pub fn tear(every: u32) {
        COPIES.set((0, every));
    }

    /// Whether the ring came round while this copy was made: its end is then another datagram's.
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

    /// Whether this bug is planted.
    #[inline]
    pub(crate) fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }
}
