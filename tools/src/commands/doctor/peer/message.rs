//! The messages of two doctors.

use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};
use tickcast_tools::support::conversation::Speech;

use super::counters::Counters;

/// Version of the conversation. Doctors of different versions refuse each other.
pub(super) const VERSION: u32 = 1;

/// Introduction of a doctor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hello {
    /// Version of the conversation.
    pub(super) version: u32,
    /// The group that the datagrams go to.
    pub(super) group: SocketAddrV4,
    /// Number of this run, which its datagrams carry.
    pub(super) run: u64,
    /// Name of the sender's interface.
    pub(super) interface: String,
    /// Longest packet of that interface, in bytes; 0 if unknown.
    pub(super) mtu: u64,
}

/// One message. The asking side opens each step, and the answering side replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Message {
    /// The introduction of either side.
    Hello(Hello),
    /// The answering side ends the conversation, with the reason.
    Refused(String),
    /// Count datagrams of this many bytes.
    Receive(usize),
    /// The answering side counts from here on.
    Receiving,
    /// The asking side has sent its datagrams.
    Sent,
    /// The counted datagrams, and the changes of the counters meanwhile.
    Arrived(u64, Counters),
    /// Send datagrams of this many bytes.
    Send(usize),
    /// The datagrams that the kernel took, and the changes of the counters meanwhile.
    HaveSent(u64, Counters),
    /// The end of the run.
    Bye,
}

impl Speech for Message {
    const LINE_LEN_MAX: usize = 4_096;

    fn refusal(self) -> Result<Self, String> {
        match self {
            Self::Refused(reason) => Err(reason),
            message => Ok(message),
        }
    }
}
