//! What can go wrong when a subscriber is set up; whoever configured it is at fault, or the host.

use std::io;

use thiserror::Error;
use tickcast_reliability::control::RejectCode;
use tickcast_reliability::receiver_config::ReceiverConfigError;
use tickcast_transport::ReceiveError;
use tickcast_transport::faults::FaultConfigError;
use tickcast_transport::udp::{InterfaceError, UdpError};

/// Why a subscriber can't be built, or can't go on as it was configured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// No channel was named.
    #[error("a subscriber needs a channel: call `.channel(name)` on the builder")]
    NoChannel,
    /// A name that is too long or empty.
    #[error("the name {name:?} must have 1 to 64 bytes")]
    Name {
        /// The name.
        name: String,
    },
    /// The publisher's address can't be looked up.
    #[error("the publisher {endpoint:?} can't be looked up: {source}; give host:port")]
    Endpoint {
        /// What was given.
        endpoint: String,
        /// What the name service says.
        source: io::Error,
    },
    /// Settings of a channel that do not fit each other.
    #[error("channel {channel}: {source}")]
    Config {
        /// Which channel.
        channel: String,
        /// What does not fit.
        source: ReceiverConfigError,
    },
    /// Fault settings that make no sense.
    #[error("faults: {0}")]
    Faults(#[from] FaultConfigError),
    /// An interface that this host does not have.
    #[error("interface {interface}: {source}")]
    Interface {
        /// As it was given.
        interface: String,
        /// What is wrong with it.
        source: InterfaceError,
    },
    /// The publisher offers no transport that this subscriber can use.
    #[error("channel {channel}: the publisher offers no transport that this build can use")]
    NoTransport {
        /// Which channel.
        channel: String,
    },
    /// The groups can't be joined.
    #[error("channel {channel}: {source}")]
    Udp {
        /// Which channel.
        channel: String,
        /// Why not.
        source: UdpError,
    },
    /// A receiver failed.
    #[error("channel {channel}: {source}")]
    Receive {
        /// Which channel.
        channel: String,
        /// How.
        source: ReceiveError,
    },
    /// The publisher rejected the JOIN.
    #[error("the publisher rejected us ({code:?}): {text}")]
    Rejected {
        /// For programs.
        code: RejectCode,
        /// In its words.
        text: String,
    },
}
