//! Incidents of packets that are not taken, or not as their header says.

use tickcast_reliability::types::{Nanos, SourcePosition};

use super::protocol::{Blocks, Listen, Protocol};
use crate::source::{Incident, PacketOrigin};

/// The incident of a packet that nothing recognises, without its origin.
pub(super) const FOREIGN: Incident = Incident::foreign("the packet is not of this feed");
/// The incident of a packet far ahead in the session, without its origin.
pub(super) const FAR_AHEAD: Incident =
    Incident::foreign("the packet is far ahead of the stream, and no other one confirms it");
/// The incident of a heartbeat whose session is never followed, without its origin.
pub(super) const UNFOLLOWED: Incident =
    Incident::foreign("the heartbeat is of a session of which no message was taken");

/// The incident of a packet with messages behind the end of its session, without its origin.
pub(super) const BEHIND_END: Incident =
    Incident::foreign("the packet lies behind the end of its session, and no other one follows it");

/// Returns the incident, with the origin and receive time of a foreign packet.
pub(super) const fn with_origin(of_packet: (PacketOrigin, Nanos), incident: Incident) -> Incident {
    let (origin, received_at) = of_packet;
    match incident {
        Incident::Foreign { reason, .. } => Incident::Foreign {
            reason,
            origin,
            received_at,
        },
        other => other,
    }
}

/// Returns the incident of a packet of which nothing can be read, with its origin. Beside a session that is
/// followed, only its own packets are damaged; anybody may have sent another.
#[cold]
pub(super) const fn unread(
    of_packet: (PacketOrigin, Nanos),
    incident: Incident,
    is_own: bool,
) -> Incident {
    let incident = match incident {
        Incident::Malformed { reason } if !is_own => Incident::foreign(reason),
        other => other,
    };
    with_origin(of_packet, incident)
}

/// Returns the incident of a packet that is not taken.
pub(super) fn refusal<'a>(mut blocks: impl Blocks<'a>) -> Incident {
    blocks.by_ref().for_each(drop);
    blocks
        .fault()
        .map_or(FOREIGN, |reason| Incident::Malformed { reason })
}

/// Reports that the bytes of a packet whose messages are all old do not fit its header.
pub(super) fn report_fault<'a, P: Protocol>(mut blocks: impl Blocks<'a>, out: &mut impl Listen<P>) {
    blocks.by_ref().for_each(drop);
    if let Some(reason) = blocks.fault() {
        out.incident(Incident::Malformed { reason });
    }
}

/// Reports a gap that was found and not reported yet.
pub(super) fn report_gap<P: Protocol>(
    gap: &mut Option<(SourcePosition, u64)>,
    out: &mut impl Listen<P>,
) {
    if let Some((from, missing)) = gap.take() {
        out.incident(Incident::Gap { from, missing });
    }
}
