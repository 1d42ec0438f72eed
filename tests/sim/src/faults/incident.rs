//! Incidents: faults that happen once, at a time that the plan decides.

use tickcast_reliability::wire::Kind;

/// A datagram that was not sent by any publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// An END with a wrong CRC.
    BrokenEnd,
    /// An END of an epoch that was never opened.
    StrayEnd,
    /// A heartbeat of the current epoch that claims that the epoch has ended.
    EndedHeartbeat,
    /// A datagram of the current epoch, many rings ahead of the last sequence sealed.
    Leap,
}

/// Where an impostor's datagrams begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgedFrom {
    /// Behind the newest sequence sealed.
    Next,
    /// Behind the last one that was forged, or the newest one sealed.
    Walk,
    /// This far beyond the newest sequence.
    Ahead(u64),
    /// This far before it.
    Behind(u64),
}

/// ForgedFrom datagrams of the current epoch, contiguous, with right CRCs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attack {
    /// Where they begin.
    pub from: ForgedFrom,
    /// Their kind.
    pub kind: Kind,
    /// Their number.
    pub count: u64,
}

/// One of a subscriber's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDirection {
    /// Multicast datagrams to the subscriber.
    Datagrams,
    /// Messages from the subscriber to its publisher.
    Up,
    /// Messages from the publisher to the subscriber.
    Down,
}

/// A fault or recovery that happens once. `None` for a receiver means all receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// Datagrams no longer reach a receiver.
    DatagramsStop(Option<usize>),
    /// Datagrams reach the receiver again.
    DatagramsPass(Option<usize>),
    /// Messages from a subscriber no longer reach its publisher.
    UpStops(Option<usize>),
    /// Messages from the subscriber reach its publisher again.
    UpPasses(Option<usize>),
    /// Messages from the publisher no longer reach a subscriber.
    DownStops(Option<usize>),
    /// Messages from the publisher reach the subscriber again.
    DownPasses(Option<usize>),
    /// A link delays everything that it carries.
    Clog(usize, LinkDirection),
    /// The link releases everything that it delayed, in any order.
    Unclog(usize, LinkDirection),
    /// A subscriber's connections are reset.
    Reset(Option<usize>),
    /// A subscriber's NACK connection breaks, while its TCP connections stay.
    RcResets(Option<usize>),
    /// A subscriber's NACK connection carries nothing, without an error on either side.
    RcStops(Option<usize>),
    /// The NACK connection carries messages again.
    RcPasses(Option<usize>),
    /// The subscriber's application stops polling.
    Stall(usize),
    /// The application polls again.
    Resume(usize),
    /// The subscriber sends NACKs for arbitrary sequences from now on.
    Flood(usize),
    /// The subscriber loses its membership of a group, without an error.
    LoseMembership(usize),
    /// A subscriber leaves: in order when `true`, or by disappearing when `false`.
    Leave(usize, bool),
    /// A subscriber joins, possibly again.
    Join(usize),
    /// The publisher pauses: all of its threads stop.
    Pause,
    /// The publisher resumes.
    Unpause,
    /// The publisher's process ends, and the kernel resets its connections.
    Kill,
    /// The publisher's host disappears, without a reset of its connections.
    PowerCut,
    /// A publisher opens a new epoch and takes the address.
    Start,
    /// A publisher opens the epoch of another one: from its beginning when `false`, further on when
    /// `true`.
    StartTwin(bool),
    /// The publisher hands over to this standby: it ends only once the standby has everything.
    HandOver(usize),
    /// This standby is promoted with the content of its mirror and takes the address.
    Promote(usize),
    /// The address now leads to another publisher that is alive.
    Divert,
    /// A forged datagram is sent.
    Forge(Forgery),
    /// An impostor sends forged datagrams with right CRCs.
    Attack(Attack),
    /// UTC jumps by this many milliseconds.
    ClockStep(i64),
    /// A fan-out's transport accepts no more datagrams.
    FanOutStalls(u8),
    /// The fan-out's transport accepts datagrams again.
    FanOutGoesOn(u8),
}

impl Incident {
    /// Returns the name used in event logs and fault counts, and the number of the actor concerned.
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
            Self::Unpause => ("unpause", 0),
            Self::Kill => ("kill", 0),
            Self::PowerCut => ("power_cut", 0),
            Self::Start => ("restart", 0),
            Self::StartTwin(_) => ("start_twin", 0),
            Self::HandOver(number) => ("hand_over", number),
            Self::Promote(number) => ("promote", number),
            Self::Divert => ("divert", 0),
            Self::Forge(_) => ("forge", 0),
            Self::Attack(_) => ("attack", 0),
            Self::ClockStep(_) => ("clock_step", 0),
            Self::FanOutStalls(of) => ("fan_out_stalls", of as usize),
            Self::FanOutGoesOn(of) => ("fan_out_goes_on", of as usize),
        }
    }
}
