//! Reasons why a connection ended, one for each remedy.

use std::io;

use thiserror::Error;

use crate::device::sys::ibv_wc_status as status;

/// Reason why a connection ended. The numbers are those of the device and of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamEnd {
    /// One side closed it.
    #[error("one side closed it")]
    Closed,
    /// The peer's device refused an access to its memory: the key is wrong, revoked or another
    /// connection's, or the range or the right was not granted. Retrying with the same grant does not help.
    #[error(
        "the peer's device refused an access to its memory (completion {status}); request a new grant"
    )]
    Refused {
        /// `ibv_wc_status`.
        status: u32,
    },
    /// This side's device stopped the connection, not because of this side's requests: the peer requested
    /// an access that was not granted. Devices do not report which access.
    #[error(
        "this side's device stopped it because the peer requested an access that was not granted; identify the peer"
    )]
    Violated,
    /// The peer does not answer: it is gone, cut off, or does not read.
    #[error("the peer stopped answering (completion {status}); connect again")]
    Lost {
        /// `ibv_wc_status`.
        status: u32,
    },
    /// The connection never came up, or the connection manager lost it.
    #[error(
        "it can't be established or kept (event {event}); check that the peer is up and listening"
    )]
    Unconnected {
        /// `rdma_cm_event_type`.
        event: u32,
    },
    /// Another failure, on this side or by a peer that breaks the protocol.
    #[error("it failed (completion {status}); connect again")]
    Broken {
        /// `ibv_wc_status`; 0 if no completion reported one.
        status: u32,
    },
}

/// Status of the operations in flight when a connection ends for another reason.
const FLUSHED: StreamEnd = StreamEnd::Broken {
    status: status::IBV_WC_WR_FLUSH_ERR,
};

impl StreamEnd {
    /// Converts the status of a failed completion. `is_one_sided` is true for a READ, a WRITE or a swap.
    pub(crate) const fn of_completion(status: u32, is_one_sided: bool) -> Self {
        match status {
            status::IBV_WC_REM_ACCESS_ERR | status::IBV_WC_REM_INV_REQ_ERR if is_one_sided => {
                Self::Refused { status }
            }
            status::IBV_WC_RETRY_EXC_ERR | status::IBV_WC_RNR_RETRY_EXC_ERR => {
                Self::Lost { status }
            }
            _ => Self::Broken { status },
        }
    }

    /// Returns whether this reason is more precise than `before`. The cause may be reported after its
    /// consequence.
    pub(crate) fn explains(self, before: Self) -> bool {
        match before {
            FLUSHED => self != FLUSHED,
            Self::Closed => matches!(self, Self::Refused { .. }),
            // This side's own request caused the stop after all.
            Self::Violated => matches!(self, Self::Refused { .. } | Self::Lost { .. }),
            _ => false,
        }
    }

    /// Returns whether this is only the consequence of another reason.
    pub(crate) fn is_consequence(self) -> bool {
        self == FLUSHED
    }

    /// Converts the reason to an error of a connection over `device`.
    pub(crate) fn on(self, device: &str) -> io::Error {
        let kind = match self {
            Self::Closed => io::ErrorKind::ConnectionAborted,
            Self::Refused { .. } => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, format!("the connection over {device} ended: {self}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_key_and_lost_peer_differ_under_flush() {
        let of = |status| StreamEnd::of_completion(status, true);
        let (flushed, refused, lost) = (of(5), of(10), of(12));
        assert_eq!(refused, StreamEnd::Refused { status: 10 });
        assert_eq!(of(9), StreamEnd::Refused { status: 9 });
        // A SEND that is too long does not touch granted memory.
        let sent = StreamEnd::of_completion(9, false);
        assert_eq!(sent, StreamEnd::Broken { status: 9 });
        assert_eq!(lost, StreamEnd::Lost { status: 12 });
        assert_eq!(flushed, StreamEnd::Broken { status: 5 });
        for reported in [refused, lost, StreamEnd::Closed] {
            assert!(reported.explains(flushed) && !flushed.explains(reported));
        }
        assert!(refused.explains(StreamEnd::Closed) && !lost.explains(StreamEnd::Closed));
        assert!(!lost.explains(refused) && !refused.explains(lost));
        // A side that was itself refused, or whose peer does not answer, has no violation to report.
        let violated = StreamEnd::Violated;
        assert!(violated.explains(flushed) && flushed.is_consequence());
        assert!(refused.explains(violated) && lost.explains(violated));
        assert!(!flushed.explains(violated) && !StreamEnd::Closed.explains(violated));
        assert!(!violated.explains(violated) && !violated.explains(StreamEnd::Closed));
        assert!(!violated.is_consequence() && !refused.is_consequence());
        let error = refused.on("rxe0");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(
            error
                .to_string()
                .contains("rxe0 ended: the peer's device refused")
        );
    }
}
