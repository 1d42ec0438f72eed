//! A reader of the publisher's ring in its own host that came too late (docs/PROTOCOL.md §9.1).

use crate::delivery::Item;
use crate::gaps::Origin;
use crate::loss::LossCause;
use crate::receiver::Receiver;
use crate::units::{Epoch, Nanos, SequenceRange};

impl Receiver {
    /// The ring of `epoch` itself showed that `range` was sent, and that it no longer holds it: lost
    /// is what of it nothing else has brought. Nobody need be asked.
    #[cold]
    pub fn handle_overrun(
        &mut self,
        now: Nanos,
        epoch: Epoch,
        range: SequenceRange,
        on: &mut impl FnMut(Item<'_>),
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
