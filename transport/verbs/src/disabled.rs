//! Types of a build without the feature `rdma`. They have no values: opening one fails with an error
//! that names the remedy. Callers therefore need no special case.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};

use crate::access::AccessProof;
use crate::config::{VerbsFanOutConfig, VerbsReceiverConfig};
use crate::error::VerbsError;
use tickcast_transport_base::{
    FanOut, FanOutError, Posted, Receive, ReceiveError, ReceiveStats, Received, SendStats, Slots,
};

/// A port of an RDMA device. This build has none.
#[derive(Debug)]
pub enum Device {}

impl Device {
    /// Fails, because this build has no RDMA.
    ///
    /// # Errors
    /// Always [`VerbsError::NotBuilt`].
    pub const fn open(_: Ipv4Addr) -> Result<Arc<Self>, VerbsError> {
        Err(VerbsError::NotBuilt)
    }

    /// Fails, because this build has no RDMA.
    ///
    /// # Errors
    /// Always [`VerbsError::NotBuilt`].
    pub const fn open_active(address: Ipv4Addr) -> Result<Arc<Self>, VerbsError> {
        Self::open(address)
    }

    /// Returns the device's name.
    #[must_use]
    pub const fn name(&self) -> &str {
        match *self {}
    }

    /// Returns the interface's address.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        match *self {}
    }

    /// Returns the port's global identifier (GID).
    #[must_use]
    pub const fn gid(&self) -> Ipv6Addr {
        match *self {}
    }

    /// Returns the port's number.
    #[must_use]
    pub const fn port(&self) -> u8 {
        match *self {}
    }

    /// Returns the bytes that one packet carries.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        match *self {}
    }

    /// Returns whether the port can send and receive.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        match *self {}
    }

    /// Checks that the port can send and receive.
    ///
    /// # Errors
    /// None: there is no device.
    pub const fn check_active(&self) -> Result<(), VerbsError> {
        match *self {}
    }

    /// Checks that a datagram of this length fits into one packet.
    ///
    /// # Errors
    /// None: there is no device.
    pub const fn check_len(&self, _: usize) -> Result<(), VerbsError> {
        match *self {}
    }

    /// Returns the accesses to memory that the device grants and refuses as required.
    #[must_use]
    pub fn prove_access(self: &Arc<Self>) -> AccessProof {
        match **self {}
    }

    /// Checks that the device can bind a window of this length.
    ///
    /// # Errors
    /// None: there is no device.
    pub const fn check_window(&self, _: usize) -> Result<(), VerbsError> {
        match *self {}
    }

    /// Returns the number of datagrams refused because of their Q_Key.
    #[must_use]
    pub const fn wrong_q_keys(&self) -> u64 {
        match *self {}
    }

    /// Returns a counter of the device.
    #[must_use]
    pub const fn hardware_counter(&self, _: &str) -> Option<u64> {
        match *self {}
    }
}

/// Sends a channel by RDMA multicast. This build has none.
pub enum VerbsFanOut {}

impl VerbsFanOut {
    /// Checks the config, then fails.
    ///
    /// # Errors
    /// The first fault of the config, else [`VerbsError::NotBuilt`].
    pub fn open(config: &VerbsFanOutConfig, _: &Arc<dyn RingMemory>) -> Result<Self, VerbsError> {
        Self::for_copies(config)
    }

    /// Checks the config, then fails.
    ///
    /// # Errors
    /// The first fault of the config, else [`VerbsError::NotBuilt`].
    pub fn for_copies(config: &VerbsFanOutConfig) -> Result<Self, VerbsError> {
        config.check().and(Err(VerbsError::NotBuilt))
    }

    /// Returns the device of each line.
    #[must_use]
    pub const fn devices(&self) -> Vec<Arc<Device>> {
        match *self {}
    }
}

impl FanOut for VerbsFanOut {
    fn post(&mut self, _: &dyn Slots, _: SequenceRange) -> Result<Posted, FanOutError> {
        match *self {}
    }

    fn completed(&mut self) -> Option<Sequence> {
        match *self {}
    }

    fn send_copy(&mut self, _: &[u8]) -> Result<bool, FanOutError> {
        match *self {}
    }

    fn reset(&mut self) {
        match *self {}
    }

    fn datagram_len_max(&self) -> usize {
        match *self {}
    }

    fn stats(&self) -> &[SendStats] {
        match *self {}
    }
}

/// Receives a channel by RDMA multicast. This build has none.
pub enum VerbsReceiver {}

impl VerbsReceiver {
    /// Checks the config, then fails.
    ///
    /// # Errors
    /// The first fault of the config, else [`VerbsError::NotBuilt`].
    pub fn open(config: &VerbsReceiverConfig) -> Result<Self, VerbsError> {
        config.check().and(Err(VerbsError::NotBuilt))
    }

    /// Returns the device of each line.
    #[must_use]
    pub const fn devices(&self) -> Vec<Arc<Device>> {
        match *self {}
    }

    /// Returns whether every line is a member of its group.
    #[must_use]
    pub const fn is_joined(&self) -> bool {
        match *self {}
    }
}

impl Receive for VerbsReceiver {
    fn poll(&mut self, _: Nanos, _: &mut dyn FnMut(Received<'_>)) -> Result<usize, ReceiveError> {
        match *self {}
    }

    fn join(&mut self, _: LineId) -> Result<(), ReceiveError> {
        match *self {}
    }

    fn leave(&mut self, _: LineId) -> Result<(), ReceiveError> {
        match *self {}
    }

    fn raw_fds(&self) -> &[RawFd] {
        match *self {}
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match *self {}
    }

    fn stats(&self) -> &[ReceiveStats] {
        match *self {}
    }
}
