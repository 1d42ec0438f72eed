//! Bytes that arrive: their structure, their CRC, and on a line of an authenticated channel their tag
//! (docs/PROTOCOL.md §3).

use super::Receiver;
use crate::control::Announced;
use crate::delivery::{Deliver, Via};
use crate::receive::path::ArrivalPath;
use crate::types::Nanos;
use crate::wire::{CrcVerdict, Datagram};

impl Receiver {
    /// Takes bytes as they arrived, aligned as records are: checks them, and delivers what can be
    /// delivered.
    #[inline(always)]
    pub fn handle_bytes(&mut self, now: Nanos, via: Via, bytes: &[u8], on: &mut impl Deliver) {
        match Datagram::checked(bytes, false) {
            Ok((_, CrcVerdict::Good)) if !self.admits(bytes) => self.count_unauthenticated(bytes),
            Ok((datagram, verdict)) => self.handle_datagram(now, via, &datagram, verdict, on),
            Err(_) => self.counters().count_malformed(),
        }
    }

    /// Returns whether the channel is authenticated.
    pub(crate) const fn is_authenticated(&self) -> bool {
        self.authentication.is_some()
    }

    /// Returns whether one of the channel's keys made the tag of a datagram that came on a line, where the
    /// channel is authenticated.
    #[inline]
    pub(crate) fn admits(&self, bytes: &[u8]) -> bool {
        match &self.authentication {
            None => true,
            Some(keys) => Datagram::parse(bytes).is_ok_and(|datagram| keys.admits(&datagram)),
        }
    }

    #[cold]
    fn count_unauthenticated(&self, bytes: &[u8]) {
        self.counters().count_received(bytes.len());
        self.counters().unauthenticated_dropped.increment();
    }

    /// A key was announced, of the epoch that is followed or of another.
    pub(crate) fn handle_key(&mut self, announced: &Announced) {
        let is_ours = announced.epoch == self.epoch();
        if let Some(keys) = self.authentication.as_mut().filter(|_| is_ours) {
            keys.add(&announced.of);
        }
    }

    /// Takes bytes that arrived on a connection, as [`Receiver::handle_bytes`] does.
    pub(crate) fn handle_answer(
        &mut self,
        now: Nanos,
        path: ArrivalPath,
        bytes: &[u8],
        on: &mut dyn Deliver,
    ) {
        match Datagram::checked(bytes, false) {
            Ok((datagram, verdict)) => self.handle_repair(now, path, &datagram, verdict, on),
            Err(_) => self.counters().count_malformed(),
        }
    }
}
