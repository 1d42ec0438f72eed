//! Live sources that continue after a kill: which instruments they have named, and what the kill left
//! open on each channel.

use tickcast_reliability::control::Instrument;
use tickcast_reliability::types::{Now, SourcePosition};
use tickcast_reliability::wire::{SourceLossReason, StreamEvent};

use crate::error::PublisherError;
use crate::publish::PublishStage;

/// A live source that continues.
#[derive(Debug)]
pub(crate) struct Restarted<'a> {
    /// Its last position on each channel; `None` where nothing of it was sealed.
    pub(crate) sealed: &'a [Option<SourcePosition>],
    /// The instruments that it named.
    pub(crate) instruments: Vec<Instrument>,
    /// Whether its messages refer to orders, which its decoder has lost.
    pub(crate) refers_to_orders: bool,
}

impl PublishStage {
    /// Continues a live source: its instruments keep their channels, and each channel reports the
    /// messages that may have waited there when the publisher was killed. Where orders were lost, the
    /// report comes in any case, because the books begin anew.
    ///
    /// # Errors
    /// Returns the errors of [`ChannelDriver::event`](super::ChannelDriver::event).
    pub(crate) fn restart(
        &mut self,
        index: usize,
        restarted: &Restarted<'_>,
        now: Now,
    ) -> Result<(), PublisherError> {
        let shared = self.shared.clone();
        let source = &mut self.sources[index];
        let mut named = vec![Vec::new(); self.drivers.len()];
        for instrument in &restarted.instruments {
            let id = instrument.id;
            source.router.learn(instrument.clone(), &mut |announced| {
                for channel in announced.channels.iter() {
                    named[channel].push(id);
                    let channel = &shared.channels[channel];
                    // locks: before anything is published.
                    channel.directory().put(announced.instrument.clone());
                }
            });
        }
        let id = source.shared.source;
        let Some(last) = restarted.sealed.iter().flatten().max().copied() else {
            return Ok(());
        };
        for channel in source.router.of_all(&[]).iter() {
            let (from, messages) = open_on(restarted.sealed[channel], last);
            if messages == 0 && !restarted.refers_to_orders {
                continue;
            }
            // A message that waited may have named further instruments.
            let mut instruments = std::mem::take(&mut named[channel]);
            if messages > 0 || instruments.len() > StreamEvent::INSTRUMENTS_MAX {
                instruments.clear();
            }
            let event = StreamEvent::SourceLost {
                source: id,
                reason: SourceLossReason::Gap,
                from,
                messages,
                instruments,
            };
            self.drivers[channel].event(&event, now)?;
        }
        tracing::warn!(
            source = id.0,
            %last,
            instruments = restarted.instruments.len(),
            order_books_begin_anew = restarted.refers_to_orders,
            "the live source continues after its last sealed message; messages since then that do \
             not come again are reported as lost"
        );
        Ok(())
    }
}

/// Returns the first message of a source that may have waited on a channel, and the number of them, up to
/// the `last` one that was sealed on any channel; `u64::MAX` if unknown. If none waited, the position is that
/// of the last message, so that mirrors which follow the event's position stay behind the next one.
fn open_on(sealed: Option<SourcePosition>, last: SourcePosition) -> (SourcePosition, u64) {
    match sealed {
        Some(sealed) if sealed == last => (last, 0),
        Some(sealed) if sealed.ordinal() == last.ordinal() => {
            let messages = last.sequence().saturating_sub(sealed.sequence());
            (sealed.plus(1), messages)
        }
        // Behind a session change, or before the first message on this channel, nothing says where
        // they begin. A position beyond `last` would count as sealed at the next restart.
        Some(sealed) => (sealed.plus(1), u64::MAX),
        None => (last, u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_may_wait_begin_behind_channel() {
        let at = SourcePosition::new;
        let last = at(1, 20);
        assert_eq!(open_on(Some(last), last), (last, 0));
        assert_eq!(open_on(Some(at(1, 17)), last), (at(1, 18), 3));
        assert_eq!(open_on(Some(at(0, 90)), last), (at(0, 91), u64::MAX));
        assert_eq!(open_on(None, last), (last, u64::MAX));
    }
}
