//! What a reader of the publisher's ring in its own host tells the core: datagrams that are known to be
//! whole, and what it came too late for (docs/PROTOCOL.md §9.1).

use crate::delivery::{Deliver, LineId, Via};
use crate::gaps::Origin;
use crate::loss::LossCause;
use crate::receiver::Receiver;
use crate::subscriber_core::SubscriberCore;
use crate::units::{ChannelId, Epoch, Nanos, SequenceRange};
use crate::wire::{CrcVerdict, Datagram};

impl SubscriberCore {
    /// As [`SubscriberCore::handle_received`], for bytes that are known to be what was sealed: a copy
    /// from the publisher's ring in this host's memory, whose CRC need not be computed again.
    #[inline]
    pub fn handle_whole(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        line: LineId,
        bytes: &[u8],
        on: &mut impl Deliver,
    ) {
        if let Some(receiver) = self.receiver_mut(channel) {
            receiver.handle_whole(now, Via::Line(line), bytes, on);
        }
    }

    /// The reader of a channel's ring was overrun: the ring no longer holds these sequences, which it
    /// had not handed over. They are lost, but for those that came by another way; nothing happens
    /// where another epoch is followed than the ring's.
    pub fn handle_overrun(
        &mut self,
        now: Nanos,
        channel: ChannelId,
        (epoch, range): (Epoch, SequenceRange),
        on: &mut impl Deliver,
    ) {
        if let Some(receiver) = self.receiver_mut(channel) {
            receiver.handle_overrun(now, epoch, range, on);
        }
    }
}

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
        self.note_heard(range.last, now, Origin::Live);
        self.lose(range, LossCause::Window);
        self.order.advance(&self.counters, on);
        self.handle_timeout(now, on);
    }
}
