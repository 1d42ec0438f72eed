//! Damaged messages: one of unknown type, or not of its type's length, waits for another line's copy.
//!
//! The packet that holds the next message waits where any of its new messages is unknown. Sound packets of
//! other lines take its place. It is delivered all the same once a second one is like it, once every other
//! line has passed the message, or when the wait is over: a venue may have introduced the type.

use super::Arbiter;
use super::protocol::{Listen, Protocol};
use super::queue::Held;
use super::refused::report_fault;
use crate::source::Incident;

/// The reason why a packet of messages that another line brought sound is damaged.
const NOT_KNOWN: &str = "a message is unknown that is known on another line";

impl<P: Protocol> Arbiter<P> {
    /// Returns whether all messages are known, or no other line may bring them better.
    #[inline(always)]
    pub(super) fn are_believed(&self, blocks: P::Blocks<'_>) -> bool {
        !self.may_doubt() || self.are_known(blocks)
    }

    /// Returns whether another line may bring a message better. Without numbers of the venue, no two packets
    /// hold the same message.
    const fn may_doubt(&self) -> bool {
        self.has_several_lines() && !self.is_unnumbered
    }

    /// Returns whether all messages are known.
    #[inline(never)]
    pub(super) fn are_known(&self, mut blocks: P::Blocks<'_>) -> bool {
        blocks.all(|message| self.protocol.is_known(message))
    }

    /// Delivers a packet that has waited for those before it, unless it is in doubt.
    pub(super) fn release(&mut self, held: Held, out: &mut impl Listen<P>) {
        if !self.is_doubtful(&held) {
            return self.release_believed(held, out);
        }
        match self.queue.doubtful.take() {
            None => self.queue.doubtful = Some(held),
            // Two copies of one line may have been damaged at once.
            Some(first) if first.line == held.line && first.end >= held.end => {
                self.queue.doubtful = Some(first);
                self.old(held.line, held.first, self.next, out);
                self.duplicate(held.line, held.end - self.next, None, out);
                self.queue.recycle(held.bytes);
            }
            Some(first) => {
                self.release_believed(first, out);
                self.release_believed(held, out);
            }
        }
    }

    /// Delivers the packet in doubt if other lines brought its unknown messages.
    pub(super) fn settle_doubt(&mut self, out: &mut impl Listen<P>) -> bool {
        let is_settled = |held: &Held| !self.is_doubtful(held);
        if !self.queue.doubtful.as_ref().is_some_and(is_settled) {
            return false;
        }
        self.release_doubtful(out)
    }

    /// Delivers the packet in doubt, if there is one; returns whether there was.
    pub(super) fn release_doubtful(&mut self, out: &mut impl Listen<P>) -> bool {
        let held = self.queue.doubtful.take();
        let is_there = held.is_some();
        if let Some(held) = held {
            self.release_believed(held, out);
        }
        is_there
    }

    /// Returns whether all messages of a packet are known, and not those of another that waits.
    pub(super) fn is_better(&self, blocks: &P::Blocks<'_>, than: &Held) -> bool {
        let other = self.protocol.read(&than.bytes);
        self.may_doubt()
            && self.are_known(blocks.clone())
            && !other.is_ok_and(|(_, other)| self.are_known(other))
    }

    /// Returns whether new messages of a packet are unknown, and another line may bring them.
    fn is_doubtful(&self, held: &Held) -> bool {
        let old = self.next.saturating_sub(held.first) as usize;
        let read = self.protocol.read(&held.bytes);
        let mut new = read.into_iter().flat_map(|(_, blocks)| blocks.skip(old));
        self.may_doubt() && new.any(|message| !self.protocol.is_known(message))
    }

    /// Delivers a packet that has waited, and reports how it differs from what was delivered.
    fn release_believed(&mut self, held: Held, out: &mut impl Listen<P>) {
        if held.first < self.next {
            if let Ok((_, blocks)) = self.protocol.read(&held.bytes) {
                if held.end <= self.next {
                    report_fault(blocks.clone(), out);
                }
                if self.is_worse(&held) {
                    out.incident(Incident::Malformed { reason: NOT_KNOWN });
                } else {
                    self.compare(held.first, &held.bytes, blocks, out);
                }
            }
            self.old(held.line, held.first, held.end.min(self.next), out);
        }
        if held.end > self.next
            && let Ok((head, blocks)) = self.protocol.read(&held.bytes)
        {
            self.remember(held.arrived_at, held.first, &held.bytes);
            let (line, received_at) = (held.line, held.received_at);
            self.deliver(line, held.first, blocks, received_at, head.note, out);
        }
        self.queue.recycle(held.bytes);
    }

    /// Returns whether an old message of a packet is unknown, and not like the one that was delivered.
    fn is_worse(&self, held: &Held) -> bool {
        let old = self.next.saturating_sub(held.first) as usize;
        let Ok((_, blocks)) = self.protocol.read(&held.bytes) else {
            return false;
        };
        let recent = |sequence| self.recent.packet_of(sequence);
        let differing = self.differing(held.first, &held.bytes, blocks.clone().take(old), recent);
        let mut old = blocks.take(old);
        self.may_doubt() && differing > 0 && old.any(|message| !self.protocol.is_known(message))
    }
}
