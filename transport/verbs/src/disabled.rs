//! What there is without the feature `rdma`: types that have no values, since opening one fails and
//! says what to do. Whoever holds one needs no cases of his own.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::ring::RingMemory;
use tickcast_reliability::types::{Nanos, Sequence, SequenceRange};

use crate::config::{VerbsFanOutConfig, VerbsReceiverConfig};
use crate::error::VerbsError;
use tickcast_transport_base::{
    FanOut, FanOutError, Posted, Receive, ReceiveError, ReceiveStats, Received, SendStats, Slots,
};

/// A port of an RDMA device. There is none in this build.
#[derive(Debug)]
pub enum Device {}

impl Device {
    /// # Errors
    /// Always [`VerbsError::NotBuilt`].
    pub const fn open(_: Ipv4Addr) -> Result<Arc<Self>, VerbsError> {
        Err(VerbsError::NotBuilt)
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &str {
        match *self {}
    }

    /// The interface's address.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        match *self {}
    }

    /// The port's identifier.
    #[must_use]
    pub const fn gid(&self) -> Ipv6Addr {
        match *self {}
    }

    /// The port's number.
    #[must_use]
    pub const fn port(&self) -> u8 {
        match *self {}
    }

    /// Bytes that one packet carries.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        match *self {}
    }

    /// Datagrams refused for their Q_Key.
    #[must_use]
    pub const fn wrong_q_keys(&self) -> u64 {
        match *self {}
    }

    /// A counter of the device.
    #[must_use]
    pub const fn hardware_counter(&self, _: &str) -> Option<u64> {
        match *self {}
    }
}

/// Sends a channel by RDMA multicast. There is none in this build.
pub enum VerbsFanOut {}

impl VerbsFanOut {
    /// # Errors
    /// What is wrong with the config, or [`VerbsError::NotBuilt`].
    pub fn open(config: &VerbsFanOutConfig, _: &Arc<dyn RingMemory>) -> Result<Self, VerbsError> {
        Self::for_copies(config)
    }

    /// # Errors
    /// As for [`VerbsFanOut::open`].
    pub fn for_copies(config: &VerbsFanOutConfig) -> Result<Self, VerbsError> {
        config.check().and(Err(VerbsError::NotBuilt))
    }

    /// The device of each line.
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

/// Receives a channel by RDMA multicast. There is none in this build.
pub enum VerbsReceiver {}

impl VerbsReceiver {
    /// # Errors
    /// What is wrong with the config, or [`VerbsError::NotBuilt`].
    pub fn open(config: &VerbsReceiverConfig) -> Result<Self, VerbsError> {
        config.check().and(Err(VerbsError::NotBuilt))
    }

    /// The device of each line.
    #[must_use]
    pub const fn devices(&self) -> Vec<Arc<Device>> {
        match *self {}
    }

    /// Whether every line is a member of its group.
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
