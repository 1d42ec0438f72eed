//! Audit events for a security review of this host's devices: which memory they may use, which peer
//! could reach a part of it and until when, and which peers were refused. Each is one [`tracing`]
//! event with the target `audit` and level `INFO`. READs, WRITEs and SENDs emit no event.
//!
//! | `what` | meaning |
//! |---|---|
//! | `memory_registered` | a device may use some memory of this process from now on |
//! | `memory_deregistered` | the device may not use that memory any more |
//! | `window_bound` | one peer may reach a part of some memory, with these rights |
//! | `window_revoked` | the peer may not reach it any more; its device has confirmed this |
//! | `window_freed` | a window that was not revoked was freed with its connection |
//! | `cursor_leased` | an entry of a cursor table has an owner |
//! | `cursor_returned` | the entry has no owner any more, is zero, and may be leased again |
//! | `connection_accepted` | a peer's request to connect was accepted |
//! | `connection_up` | a connection carries bytes |
//! | `connection_closed` | a connection ended on this side |
//! | `queue_pair_destroyed` | the peer can't reach this host through this queue pair any more |
//! | `peer_refused` | a peer's request to connect was refused |
//! | `access_refused` | a peer's device refused an access of this side to its memory |
//! | `access_violation` | this side's device stopped a connection because its peer exceeded its rights |
//! | `access_probed` | a device was probed for the accesses that it grants and refuses; `why` names a defect |
//!
//! Fields, where they apply: `device`, `peer` (address and port), `memory` (what is in it), `bytes`,
//! `access` (the rights, by name), `key` (the upper 24 bits: enough to correlate events, and
//! not a usable key), `why`.

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddrV4;

thread_local! {
    /// Whether this thread's entries are omitted.
    static OMITTED: Cell<bool> = const { Cell::new(false) };
}

/// Kind of an audit event.
#[derive(Clone, Copy)]
pub(crate) enum AuditEvent {
    MemoryRegistered,
    MemoryDeregistered,
    WindowBound,
    WindowRevoked,
    WindowFreed,
    CursorLeased,
    CursorReturned,
    ConnectionAccepted,
    ConnectionUp,
    ConnectionClosed,
    QueuePairDestroyed,
    PeerRefused,
    AccessRefused,
    AccessViolation,
    AccessProbed,
}

impl AuditEvent {
    const fn name(self) -> &'static str {
        match self {
            Self::MemoryRegistered => "memory_registered",
            Self::MemoryDeregistered => "memory_deregistered",
            Self::WindowBound => "window_bound",
            Self::WindowRevoked => "window_revoked",
            Self::WindowFreed => "window_freed",
            Self::CursorLeased => "cursor_leased",
            Self::CursorReturned => "cursor_returned",
            Self::ConnectionAccepted => "connection_accepted",
            Self::ConnectionUp => "connection_up",
            Self::ConnectionClosed => "connection_closed",
            Self::QueuePairDestroyed => "queue_pair_destroyed",
            Self::PeerRefused => "peer_refused",
            Self::AccessRefused => "access_refused",
            Self::AccessViolation => "access_violation",
            Self::AccessProbed => "access_probed",
        }
    }
}

/// Fields of an audit event.
#[derive(Clone, Copy, Default)]
pub(crate) struct Of<'a> {
    pub(crate) device: &'a str,
    pub(crate) peer: Option<SocketAddrV4>,
    /// Kind of memory.
    pub(crate) memory: Option<&'static str>,
    pub(crate) bytes: Option<usize>,
    /// `ibv_access_flags`.
    pub(crate) access: Option<u32>,
    /// The whole key. Only its upper 24 bits are logged.
    pub(crate) key: Option<u32>,
    pub(crate) why: Option<&'a dyn fmt::Display>,
}

/// Runs `probe` without the audit events that it causes on this thread. They are no accesses of peers.
pub(crate) fn omitting<T>(probe: impl FnOnce() -> T) -> T {
    // A subscriber of `tracing` for this thread alone would not do: an event that is seen first without a
    // subscriber stays without one.
    let before = OMITTED.replace(true);
    let result = probe();
    OMITTED.set(before);
    result
}

/// Emits an audit event.
pub(crate) fn write_entry(what: AuditEvent, of: Of<'_>) {
    if OMITTED.get() {
        return;
    }
    tracing::info!(
        target: "audit",
        what = what.name(),
        device = of.device,
        peer = of.peer.map(display),
        memory = of.memory,
        bytes = of.bytes,
        access = of.access.map(|flags| display(Access(flags))),
        key = of.key.map(|key| display(Key(key))),
        why = of.why.map(display),
    );
}

/// Displays access rights by name.
struct Access(u32);

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(u32, &str); 5] = [
            (1, "local_write"),
            (2, "remote_write"),
            (4, "remote_read"),
            (8, "remote_atomic"),
            (16, "bind"),
        ];
        let mut between = "";
        for (_, name) in NAMES.iter().filter(|(flag, _)| self.0 & flag != 0) {
            write!(f, "{between}{name}")?;
            between = "+";
        }
        // Without flags, the device may still read the memory registered with it.
        f.write_str(if self.0 == 0 { "local_read" } else { "" })
    }
}

/// Displays a key without its lowest byte, so that the output is not a usable key.
struct Key(u32);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}..", self.0 >> 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_named_and_keys_are_not_given_away() {
        assert_eq!(Access(0).to_string(), "local_read");
        assert_eq!(Access(17).to_string(), "local_write+bind");
        assert_eq!(
            Access(14).to_string(),
            "remote_write+remote_read+remote_atomic"
        );
        assert_eq!(Key(0x0012_34ab).to_string(), "001234..");
    }
}
