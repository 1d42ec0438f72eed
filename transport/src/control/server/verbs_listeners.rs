//! The listeners over RDMA verbs, and the devices that they listen on.

use std::io;
use std::net::SocketAddrV4;
use std::sync::Arc;

use mio::Registry;
#[cfg(feature = "rdma")]
use mio::{Interest, unix::SourceFd};
use tickcast_reliability::ring::RingMemory;

#[cfg(feature = "rdma")]
use super::VERBS_LISTENER;
use super::shares::ListenerNumber;
use crate::control::carrier::{Cursors, Shared};
#[cfg(feature = "rdma")]
use crate::control::carrier::{answering_config, verbs_error};
#[cfg(feature = "rdma")]
use tickcast_verbs::{Listener, ReadableMemory};

/// The listeners, in the order of their numbers.
#[derive(Default)]
pub(super) struct VerbsListeners {
    #[cfg(feature = "rdma")]
    listeners: Vec<Listener>,
}

#[cfg(feature = "rdma")]
impl VerbsListeners {
    /// Adds a listener, whose events are reported as [`VERBS_LISTENER`]. Returns its address.
    pub(super) fn listen(
        &mut self,
        address: SocketAddrV4,
        registry: &Registry,
    ) -> io::Result<SocketAddrV4> {
        use std::os::fd::AsRawFd;

        let listener = Listener::bind(*address.ip(), address.port(), &answering_config());
        let listener = listener.map_err(verbs_error)?;
        let descriptor = listener.as_raw_fd();
        registry.register(
            &mut SourceFd(&descriptor),
            VERBS_LISTENER,
            Interest::READABLE,
        )?;
        let address = listener.address();
        self.listeners.push(listener);
        Ok(address)
    }

    /// Returns the number of listeners.
    pub(super) const fn len(&self) -> usize {
        self.listeners.len()
    }

    /// Returns all listeners.
    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Listener> {
        self.listeners.iter_mut()
    }

    fn at(&self, address: SocketAddrV4) -> io::Result<(ListenerNumber, &Listener)> {
        let mut listeners = self.listeners.iter().enumerate();
        let found = listeners.find(|(_, listener)| listener.address() == address);
        let (number, listener) = found.ok_or_else(|| {
            let text = format!("nothing listens at {address} over verbs; listen there first");
            io::Error::new(io::ErrorKind::Unsupported, text)
        })?;
        Ok((ListenerNumber(number), listener))
    }

    /// Registers memory with the device that listens at this address, which must pass its probe.
    pub(super) fn register(
        &self,
        memory: Arc<dyn RingMemory>,
        at: SocketAddrV4,
    ) -> io::Result<(ListenerNumber, Shared)> {
        let (number, listener) = self.at(at)?;
        let shared = ReadableMemory::register(listener.device(), memory);
        let shared = shared.and_then(|shared| shared.check_grant().map(|()| shared));
        Ok((number, shared.map_err(verbs_error)?))
    }

    /// Registers cursors with the device that listens at this address, which must pass its probe.
    pub(super) fn register_cursors(
        &self,
        entries: usize,
        at: SocketAddrV4,
    ) -> io::Result<(ListenerNumber, Cursors)> {
        let (number, listener) = self.at(at)?;
        let proven = listener.device().check_cursors();
        let cursors = proven.and_then(|()| Cursors::register(listener.device(), entries));
        Ok((number, cursors.map_err(verbs_error)?))
    }
}

/// Without RDMA there is no listener.
#[cfg(not(feature = "rdma"))]
impl VerbsListeners {
    pub(super) fn listen(&mut self, _: SocketAddrV4, _: &Registry) -> io::Result<SocketAddrV4> {
        Err(crate::control::carrier::no_verbs())
    }

    pub(super) fn register(
        &self,
        _: Arc<dyn RingMemory>,
        _: SocketAddrV4,
    ) -> io::Result<(ListenerNumber, Shared)> {
        Err(crate::control::carrier::no_verbs())
    }

    pub(super) fn register_cursors(
        &self,
        _: usize,
        _: SocketAddrV4,
    ) -> io::Result<(ListenerNumber, Cursors)> {
        Err(crate::control::carrier::no_verbs())
    }
}
