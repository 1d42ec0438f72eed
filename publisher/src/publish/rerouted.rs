//! A change of the channels' symbols while the publisher runs: instruments move to other channels.

use tickcast_reliability::control::Instrument;
use tickcast_reliability::record::{RecordBatch, RecordSlice, SymbolMappingMsg, WireRecord};
use tickcast_reliability::types::Now;
use tickcast_reliability::wire::{SourceLossReason, StreamEvent};

use crate::error::PublisherError;
use crate::plan::routing::{SymbolRules, mapping};
use crate::publish::PublishStage;
use crate::state::positions::shifted;

impl PublishStage {
    /// Routes all later messages by these rules. Each channel that an instrument comes to reports that it
    /// lacks the instrument's earlier messages, and names the instrument.
    ///
    /// # Errors
    /// Returns the reason if the sources still replay messages of before a restart. Nothing changes then.
    #[cold]
    pub(crate) fn reroute(&mut self, rules: &SymbolRules, now: Now) -> Result<(), String> {
        if self.resumed.is_some() {
            return Err(
                "the inputs still replay what was published before the restart; try again later"
                    .into(),
            );
        }
        for index in 0..self.sources.len() {
            let mut moved = vec![Vec::new(); self.drivers.len()];
            self.sources[index].router.reroute(rules, |announced| {
                for channel in announced.channels.iter() {
                    moved[channel].push(announced.instrument.clone());
                }
            });
            for (channel, instruments) in moved.iter().enumerate() {
                if let Err(error) = self.welcome(index, channel, instruments, now) {
                    // The next round returns it, and the session ends.
                    self.failure.get_or_insert(error);
                }
            }
        }
        self.resolve_direct_routes();
        Ok(())
    }

    /// Introduces instruments of a source on a channel, at the position of the source's last message:
    /// everything before it was published on other channels.
    fn welcome(
        &mut self,
        index: usize,
        channel: usize,
        instruments: &[Instrument],
        now: Now,
    ) -> Result<(), PublisherError> {
        let source = &self.sources[index];
        let (id, at) = (
            source.shared.source,
            shifted(source.counts.last, source.ordinals),
        );
        let driver = &mut self.drivers[channel];
        for some in instruments.chunks(StreamEvent::INSTRUMENTS_MAX) {
            let lost = StreamEvent::SourceLost {
                source: id,
                reason: SourceLossReason::Gap,
                from: at,
                messages: 0,
                instruments: some.iter().map(|it| it.id).collect(),
            };
            driver.event(&lost, now)?;
        }
        let at_a_time = (driver.ring().payload_max() / SymbolMappingMsg::LEN).max(1);
        let mut message = RecordBatch::default();
        for some in instruments.chunks(at_a_time) {
            message.clear();
            for instrument in some {
                // locks: where a command moves an instrument, which no tick does.
                let mut directory = self.shared.channels[channel].directory();
                directory.put(instrument.clone());
                message.put(&mapping(instrument, id));
            }
            driver.publish(RecordSlice::from(&message), id, at, now)?;
        }
        Ok(())
    }
}
