//! Live sources that continue after a kill: which instruments they have named, and what the kill left
//! open on each channel.

use tickcast_reliability::control::Instrument;
use tickcast_reliability::types::{Now, SourcePosition};
use tickcast_reliability::wire::{SourceLossReason, StreamEvent};

use crate::error::PublisherError;
use crate::publish::PublishStage;
use crate::state::source_loss::SourceLoss;

/// A live source that continues.
#[derive(Debug)]
pub(crate) struct Restarted<'a> {
    /// Its last position on any channel, or for none.
    pub(crate) last: SourcePosition,
    /// The position on each channel up to which no message is open.
    pub(crate) settled: &'a [SourcePosition],
    /// The instruments that it named.
    pub(crate) instruments: Vec<Instrument>,
    /// Whether its messages refer to orders, which its decoder has lost.
    pub(crate) refers_to_orders: bool,
}

impl PublishStage {
    /// Continues a live source: its instruments keep their channels, and each channel reports the
    /// messages that may have waited there when the publisher was killed. Where orders were lost, the
    /// report comes in any case, because the books begin anew. The source counts the longest loss once.
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
        source.counts.resume(restarted.last);
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
        let (id, last) = (source.shared.source, restarted.last);
        let channels = source.router.of_all(&[]);
        let open = |channel: usize| open_on(restarted.settled[channel], last);
        let longest = channels
            .iter()
            .map(open)
            .max_by_key(|(_, messages)| *messages);
        if let Some((from, messages @ 1..)) = longest {
            let counters = &source.shared.counters;
            counters.source_gaps.increment();
            let known = SourceLoss::gap(from, messages).known_messages();
            counters.source_missing_messages.add(known);
        }
        for channel in channels.iter() {
            let (from, messages) = open(channel);
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
/// the `last` one; `u64::MAX` if unknown. If none waited, the position is that of the last message, so that
/// mirrors which follow the event's position stay behind the next one.
fn open_on(settled: SourcePosition, last: SourcePosition) -> (SourcePosition, u64) {
    if settled >= last {
        (last, 0)
    } else if settled.ordinal() == last.ordinal() {
        let messages = last.sequence() - settled.sequence();
        (settled.plus(1), messages)
    } else {
        // Nothing says how many messages the sessions before had.
        (settled.plus(1), u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_may_wait_begin_behind_channel() {
        let at = SourcePosition::new;
        let last = at(1, 20);
        assert_eq!(open_on(last, last), (last, 0));
        assert_eq!(open_on(at(1, 17), last), (at(1, 18), 3));
        assert_eq!(open_on(at(0, 90), last), (at(0, 91), u64::MAX));
        let nothing = SourcePosition::default();
        assert_eq!(open_on(nothing, at(0, 20)), (at(0, 1), 20));
        assert_eq!(open_on(nothing, last), (at(0, 1), u64::MAX));
    }
}
