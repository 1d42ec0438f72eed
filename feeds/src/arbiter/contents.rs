//! The contents of messages that several packets hold: lines of one feed bring the same ones.

use super::Arbiter;
use super::protocol::{Listen, Protocol};
use crate::source::Incident;

impl<P: Protocol> Arbiter<P> {
    /// Reports old messages of a packet that are not those which were delivered, as far as these are
    /// remembered.
    pub(super) fn compare(
        &self,
        first: u64,
        packet: &[u8],
        blocks: P::Blocks<'_>,
        out: &mut impl Listen<P>,
    ) {
        if self.compares {
            let old = blocks.take(self.next.saturating_sub(first) as usize);
            let recent = |sequence| self.recent.packet_of(sequence);
            self.conflict(self.differing(first, packet, old, recent), out);
        }
    }

    /// Returns the number of messages from `first` on that differ from those which other packets have
    /// in their place. `other` returns the packet that would hold a message, and its first one.
    pub(super) fn differing<'a, 'b>(
        &self,
        first: u64,
        packet: &[u8],
        messages: impl Iterator<Item = &'a [u8]>,
        other: impl Fn(u64) -> Option<(u64, &'b [u8])>,
    ) -> u64 {
        // Most lines pack alike.
        if other(first) == Some((first, packet)) {
            return 0;
        }
        let mut differing = 0;
        let mut known: Option<P::Blocks<'b>> = None;
        for (sequence, message) in (first..).zip(messages) {
            let mut it = known.as_mut().and_then(Iterator::next);
            if it.is_none() {
                // That packet is over.
                known = other(sequence).and_then(|(from, packet)| {
                    let mut blocks = self.protocol.read(packet).ok()?.1;
                    it = blocks.nth(sequence.checked_sub(from)? as usize);
                    Some(blocks)
                });
            }
            differing += u64::from(it.is_some_and(|it| it != message));
        }
        differing
    }

    pub(super) fn conflict(&self, messages: u64, out: &mut impl Listen<P>) {
        if self.compares && messages > 0 {
            out.incident(Incident::Conflicting { messages });
        }
    }
}
