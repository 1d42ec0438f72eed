//! The audit trail of admissions, ring grants, refusals and bans, with reasons. Each is one
//! [`tracing`] event with the target `audit` and level `INFO`, or `DEBUG` where connections change
//! too often for a log. `tickcast_transport::verbs` logs the rights granted by devices with the
//! same target; `peer` links the events.
//!
//! | `what` | meaning |
//! |---|---|
//! | `joined`, `left` | a subscriber joins or leaves channels, and the reason |
//! | `replay_joined`, `nack_joined`, `read_joined` | further connection, and the one replaced |
//! | `ring_granted`, `cursor_granted` | it may READ the ring of a channel, or write a cursor, from here on |
//! | `ring_refused`, `cursor_refused` | it can't, or no subscriber can at an interface: the device refused, or no right is left to grant |
//! | `listener_refused` | an interface accepts no repair connections over verbs |
//! | `mirror_granted`, `mirror_refused` | what is sealed of a channel is written to a standby's memory from here on, or not, and why |
//! | `turned_away` | the publisher closes a connection because of the peer's action or request, after sending the reason |
//! | `closed` | the publisher closes a connection because it ends, or because the session of the connection is over |
//! | `banned`, `unbanned` | a subscriber may not connect, or may again; `subscriber` is a name or an address |
//! | `handed_over`, `superseded` | a standby has taken over, and this publisher ends |
//! | `hand_over_refused` | a take-over request was refused, and the reason; at most once a second |
//! | `promotion_requested`, `promotion_refused` | a client of a command endpoint requests a promotion, and the reason against it |
//! | `promoted` | this was a standby, and publishes from here on |
//! | `reloaded`, `reload_refused` | a client or a signal requested a reload: each changed setting, or each reason against it |
//! | `denied`, `allowed` | a subscriber may not READ, or be written to, or may again |
//! | `omitted` | entries that the limits of the file left out in the last second, by kind and origin |
//! | `read_denied` | a READ connection gets no rights, or they were revoked before its subscriber learned of them |
//!
//! A further connection of a session is logged under its subscriber's name, whatever name it sends.
//!
//! Fields, where they apply: `subscriber`, `peer` (address and port), `client` (address and port, or user, at
//! a command endpoint), `channel`, `why`.

use std::net::SocketAddr;

use tickcast_reliability::types::ChannelId;
use tracing::Level;

use crate::state::audit_limits::take_omitted;

/// The known fields of an event.
#[derive(Clone, Copy, Default)]
pub(crate) struct Of<'a> {
    pub(crate) subscriber: Option<&'a str>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) client: Option<&'a str>,
    pub(crate) channel: Option<ChannelId>,
    pub(crate) why: Option<&'a str>,
}

/// Logs what the limits of the audit file left out since the last call, if anything.
pub(crate) fn report_omitted() {
    if let Some(omitted) = take_omitted() {
        let why = Some(&*omitted);
        write_entry(
            "omitted",
            Of {
                why,
                ..Of::default()
            },
        );
    }
}

/// Logs an audit event.
pub(crate) fn write_entry(what: &'static str, of: Of<'_>) {
    write_entry_to(true, what, of);
}

/// Logs an audit event, at the level for logs or for the audit trail only.
pub(crate) fn write_entry_to(log: bool, what: &'static str, of: Of<'_>) {
    macro_rules! say {
        ($level:expr) => {
            tracing::event!(
                target: "audit",
                $level,
                what,
                subscriber = of.subscriber,
                peer = of.peer.map(tracing::field::display),
                client = of.client,
                channel = of.channel.map(|channel| channel.0),
                why = of.why,
            )
        };
    }
    match log {
        true => say!(Level::INFO),
        false => say!(Level::DEBUG),
    }
}
