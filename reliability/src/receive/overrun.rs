//! What a reader of the publisher's ring in its own host tells the core: datagrams that are known to be
//! whole, and what it came too late for (docs/PROTOCOL.md §9.1).

use crate::delivery::{Deliver, LossCause, Via};
use crate::receive::Receiver;
use crate::receive::gaps::Origin;
use crate::types::{Epoch, Nanos, SequenceRange};
use crate::wire::{CrcVerdict, Datagram};

impl Receiver {
    /// As [`Receiver::handle_bytes`], for bytes that are known to be what was sealed.
    #[inline]
    pub fn handle_whole(&mut self, now: Nanos, via: Via, bytes: &[u8], on: &mut impl Deliver) {
        match Datagram::parse(bytes) {
            Ok(datagram) => self.handle_datagram(now, via, &datagram, CrcVerdict::Good, on),
            // That is told there.
            Err(_) => self.handle_bytes(now, via, bytes, on),
        }
    }

    /// The ring of `epoch` itself showed that `range` was sent, and that it no longer holds it: lost
    /// is what of it nothing else has brought. Nobody need be asked.
    #[cold]
    pub fn handle_overrun(
        &mut self,
        now: Nanos,
        epoch: Epoch,
        range: SequenceRange,
        on: &mut impl Deliver,
    ) {
        if epoch != self.epoch || self.ended() {
            return;
        }
        self.note_sent(range.last, now, Origin::Live);
        self.lose(range, LossCause::Window);
        self.reassembly.advance(&self.counters, on);
        self.handle_timeout(now, on);
    }
}
