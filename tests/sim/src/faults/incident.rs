//! What happens once, at a time that the plan decides.

/// A datagram that no publisher sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// An END whose CRC is wrong.
    BrokenEnd,
    /// An END of an epoch that nobody opened.
    StrayEnd,
    /// A heartbeat of this epoch that says that it has ended.
    EndedHeartbeat,
    /// A datagram of this epoch, many rings ahead.
    Leap,
}

/// A part of what connects a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// What is multicast to it.
    Datagrams,
    /// What it says to its publisher.
    Up,
    /// What the publisher says to it.
    Down,
}

/// Something that happens once. `None` for a receiver means all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// No datagram passes to a receiver.
    DatagramsStop(Option<usize>),
    /// They pass again.
    DatagramsPass(Option<usize>),
    /// What a subscriber says does not reach its publisher.
    UpStops(Option<usize>),
    /// It does again.
    UpPasses(Option<usize>),
    /// What the publisher says does not reach a subscriber.
    DownStops(Option<usize>),
    /// It does again.
    DownPasses(Option<usize>),
    /// A link holds what it carries.
    Clog(usize, Link),
    /// It lets go of it, in any order.
    Unclog(usize, Link),
    /// Its connections are reset.
    Reset(Option<usize>),
    /// Its NACK connection breaks, while TCP stays.
    RcResets(Option<usize>),
    /// Nothing passes on its NACK connection, and nobody says so.
    RcStops(Option<usize>),
    /// It does again.
    RcPasses(Option<usize>),
    /// The application does not poll.
    Stall(usize),
    /// It polls again.
    Resume(usize),
    /// From now on NACKs for anything and everything come from it.
    Flood(usize),
    /// Its membership of a group is gone and nobody says so.
    LoseMembership(usize),
    /// A subscriber goes; on purpose, or not.
    Leave(usize, bool),
    /// It comes (again).
    Join(usize),
    /// The publisher stops for a while (all of its threads).
    Pause,
    /// It goes on.
    GoOn,
    /// The process ends; the kernel resets its connections.
    Kill,
    /// The host is gone; nobody says so.
    PowerCut,
    /// A publisher opens a new epoch and takes the address.
    Start,
    /// A publisher opens the epoch that another one has, from its beginning or further on.
    StartTwin(bool),
    /// The publisher hands over to this standby: it ends when that has everything, and not before.
    HandOver(usize),
    /// This standby is promoted, with what its mirror has; it takes the address.
    Promote(usize),
    /// The address leads to another publisher that is alive.
    Divert,
    /// Someone sends a datagram that no publisher sent.
    Forge(Forgery),
    /// UTC jumps by this many milliseconds.
    ClockStep(i64),
    /// A fan-out's transport takes no more.
    FanOutStalls(u8),
    /// It does again.
    FanOutGoesOn(u8),
}

impl Incident {
    /// What it is called in event logs and among the faults, and whom it concerns.
    #[must_use]
    pub const fn name(self) -> (&'static str, usize) {
        const fn who(whom: Option<usize>) -> usize {
            match whom {
                Some(number) => number,
                None => usize::MAX,
            }
        }
        match self {
            Self::DatagramsStop(whom) => ("datagrams_stop", who(whom)),
            Self::DatagramsPass(whom) => ("datagrams_pass", who(whom)),
            Self::UpStops(whom) => ("up_stops", who(whom)),
            Self::UpPasses(whom) => ("up_passes", who(whom)),
            Self::DownStops(whom) => ("down_stops", who(whom)),
            Self::DownPasses(whom) => ("down_passes", who(whom)),
            Self::Clog(number, _) => ("clog", number),
            Self::Unclog(number, _) => ("unclog", number),
            Self::Reset(whom) => ("reset", who(whom)),
            Self::RcResets(whom) => ("rc_resets", who(whom)),
            Self::RcStops(whom) => ("rc_stops", who(whom)),
            Self::RcPasses(whom) => ("rc_passes", who(whom)),
            Self::Stall(number) => ("stall", number),
            Self::Resume(number) => ("resume", number),
            Self::Flood(number) => ("flood", number),
            Self::LoseMembership(number) => ("lose_membership", number),
            Self::Leave(number, _) => ("leave", number),
            Self::Join(number) => ("join", number),
            Self::Pause => ("pause", 0),
            Self::GoOn => ("go_on", 0),
            Self::Kill => ("kill", 0),
            Self::PowerCut => ("power_cut", 0),
            Self::Start => ("restart", 0),
            Self::StartTwin(_) => ("start_twin", 0),
            Self::HandOver(number) => ("hand_over", number),
            Self::Promote(number) => ("promote", number),
            Self::Divert => ("divert", 0),
            Self::Forge(_) => ("forge", 0),
            Self::ClockStep(_) => ("clock_step", 0),
            Self::FanOutStalls(of) => ("fan_out_stalls", of as usize),
            Self::FanOutGoesOn(of) => ("fan_out_goes_on", of as usize),
        }
    }
}
