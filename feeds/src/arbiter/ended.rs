//! Messages behind the end of their session: the number of a packet is damaged, or the end was none.
//!
//! A packet with such messages waits. Another one shows that the venue goes on; copies of the first on its
//! line do not. Alone, the packet is dropped with the session.

use super::protocol::{Listen, PacketHead, Protocol};
use super::refused::BEHIND_END;
use super::{Arbiter, Arrived};

impl<P: Protocol> Arbiter<P> {
    /// Holds a packet with messages behind the end of the session, or goes on with those that wait.
    #[cold]
    pub(super) fn hold_behind_end(
        &mut self,
        arrived: Arrived<'_>,
        head: &PacketHead<P::Note>,
        out: &mut impl Listen<P>,
    ) {
        let held = self.held(arrived, head.first, head.first + head.count);
        let mut waiting = self.queue.behind_end.iter();
        if waiting.any(|it| (it.first, it.line) == (held.first, held.line)) {
            return self.drop_held(held, BEHIND_END, out);
        }
        self.queue.behind_end.push(held);
        if self.queue.behind_end.len() > 1 {
            self.reopen();
            for held in std::mem::take(&mut self.queue.behind_end) {
                self.take_held(held, out);
            }
        }
    }

    /// Drops the packet that waits.
    pub(super) fn drop_behind_end(&mut self, out: &mut impl Listen<P>) {
        for held in std::mem::take(&mut self.queue.behind_end) {
            self.drop_held(held, BEHIND_END, out);
        }
    }
}
