//! Incidents of packets that are not taken.

use tickcast_reliability::types::Nanos;

use crate::source::{Incident, PacketOrigin};

/// The incident of a packet that nothing recognises, without its origin.
pub(super) const FOREIGN: Incident = Incident::Foreign {
    reason: "the packet is not of this feed",
    origin: PacketOrigin {
        line: 0,
        sender: None,
    },
    received_at: Nanos::ZERO,
};

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
