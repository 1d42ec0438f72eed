//! The writer of one channel, for one handler. A write never waits: the message goes to the publish
//! thread, or the queue is full and both the caller and the stream receive an error.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tickcast_reliability::control::Instrument;
use tickcast_reliability::record::{RecordBatch, RecordError, SymbolMappingMsg, WireRecord};
use tickcast_reliability::types::{SourceId, SourcePosition};
use tickcast_reliability::wire::HEADER_LEN;
use tickcast_reliability::wire::authentication::TAGGED_HEADER_LEN;

use crate::admin::monitor::PublisherMonitor;
use crate::error::WriteError;
use crate::ingest::queue::{Intake, QueueSender};
use crate::plan::routing::mapping;
use crate::state::source_loss::SourceLoss;
use crate::state::{ChannelShared, Shared};

/// The limit for all waits of one [`ChannelWriter::set_directory`] together.
const DIRECTORY_WAIT: Duration = Duration::from_secs(10);
/// A year, which is longer than a publisher runs.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The one writer of a channel, for one thread at a time: it can be moved to another thread, not
/// cloned, and its methods need it exclusively, so two threads can't publish on one channel by
/// mistake.
///
/// ```compile_fail
/// fn two_writers(channel: tickcast_publisher::ChannelWriter) {
///     let second = channel.clone();
/// }
/// ```
///
/// # How it publishes
/// A message is copied into the queue at once. No call waits, allocates in steady state, locks or makes
/// a system call, except [`set_directory`](Self::set_directory). The publish thread takes the message
/// (`threads.idle` sets how that thread waits) and packs it with the messages queued meanwhile.
///
/// # How it can fail
/// Every method returns the fate of the message ([`WriteError`]). A lost message is counted once and
/// reported once in the stream. It delays no later message, so continue. A record that contradicts its
/// header is no message of the source: it is refused, and neither published, counted nor reported.
///
/// # Dropping it
/// Published messages are sent and losses are reported; heartbeats and repair continue. The session
/// continues too: [`crate::Publisher::channel`] returns another writer.
pub struct ChannelWriter {
    queue: QueueSender,
    message: RecordBatch,
    shared: Arc<Shared>,
    channel: Arc<ChannelShared>,
    source: SourceId,
    last: SourcePosition,
    len_max: usize,
    /// Marks the channel as having a writer.
    _alive: Arc<()>,
}

impl ChannelWriter {
    pub(crate) fn new(
        queue: QueueSender,
        shared: Arc<Shared>,
        place: usize,
        source: SourceId,
        alive: Arc<()>,
    ) -> Self {
        let channel = shared.channels[place].clone();
        let header_len = match channel.plan.datagrams_per_key {
            Some(_) => TAGGED_HEADER_LEN,
            None => HEADER_LEN,
        };
        Self {
            queue,
            message: RecordBatch::default(),
            len_max: channel.plan.geometry.slot_len() - header_len,
            shared,
            channel,
            source,
            last: SourcePosition::default(),
            _alive: alive,
        }
    }

    /// Publishes one record that is one message of the source, at the source's position: session
    /// ordinal and the venue's own sequence. Positions never decrease.
    ///
    /// # Errors
    /// [`WriteError`] in three cases:
    /// - the message is lost, and the stream reports it;
    /// - the record contradicts its header and is refused, which the stream does not report;
    /// - the session has ended.
    ///
    /// # Examples
    /// ```no_run
    /// # use tickcast_publisher::record::TradeMsg;
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError};
    /// # fn on_trade(channel: &mut ChannelWriter, trade: &TradeMsg, venue_sequence: u64) {
    /// match channel.publish(trade, SourcePosition::new(0, venue_sequence)) {
    ///     Ok(()) => {}
    ///     // Counted, and subscribers are told: nothing to be done but to log it rarely.
    ///     Err(WriteError::Overflow) => {}
    ///     Err(error) => eprintln!("{error}"),
    /// }
    /// # }
    /// ```
    #[inline]
    pub fn publish<R: WireRecord>(
        &mut self,
        record: &R,
        from: SourcePosition,
    ) -> Result<(), WriteError> {
        self.message.clear();
        self.message.push(record).map_err(refused)?;
        self.publish_own(from)
    }

    /// Publishes the records of one message of the source. They stay together in one datagram, and all
    /// concern the instrument of the first one.
    ///
    /// # Errors
    /// The errors of [`publish`](Self::publish).
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError, quote, trade};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// let both = [trade(7, 101_500_000_000, 200), trade(7, 101_510_000_000, 100)];
    /// channel.publish_all(&both, SourcePosition::new(0, 9))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn publish_all<R: WireRecord>(
        &mut self,
        records: &[R],
        from: SourcePosition,
    ) -> Result<(), WriteError> {
        self.message.clear();
        for record in records {
            self.message.push(record).map_err(refused)?;
        }
        self.publish_own(from)
    }

    /// Publishes the records of one message, as [`publish_all`](Self::publish_all) does, for records of
    /// several kinds. An empty batch only moves the source's position, for messages without records.
    ///
    /// # Errors
    /// The errors of [`publish`](Self::publish).
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, quote, record::RecordBatch, trade};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut message = RecordBatch::default();
    /// message.push(&trade(7, 101_500_000_000, 200))?;
    /// message.push(&quote(7, (101_490_000_000, 300), (101_510_000_000, 100)))?;
    /// channel.publish_batch(&message, SourcePosition::new(0, 9))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn publish_batch(
        &mut self,
        message: &RecordBatch,
        from: SourcePosition,
    ) -> Result<(), WriteError> {
        self.message.copy_from(message);
        self.publish_own(from)
    }

    #[inline]
    fn publish_own(&mut self, from: SourcePosition) -> Result<(), WriteError> {
        let (message, len_max) = (&self.message, self.len_max);
        let taken = self.queue.while_open(|queue| {
            let taken = queue.push(from, message);
            queue.flush();
            taken
        });
        if self.queue.is_closed() {
            return Err(WriteError::Ended);
        }
        self.last = from;
        match taken {
            None => Err(WriteError::Ended),
            Some(false) => Err(WriteError::Overflow),
            // The publish thread reports it in the stream.
            Some(true) if message.bytes().len() > len_max => Err(WriteError::TooLarge {
                len: message.bytes().len(),
                max: len_max,
            }),
            Some(true) => Ok(()),
        }
    }

    /// Requests that everything published so far is sealed and sent, although more may follow at once.
    /// Without a flush, a message waits only for the messages before it. Does nothing when the queue is
    /// full.
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError, quote, trade};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// channel.publish(&trade(7, 101_500_000_000, 200), SourcePosition::new(0, 9))?;
    /// channel.flush();
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(&mut self) {
        self.queue.while_open(QueueSender::push_flush);
    }

    /// Reports to subscribers, in order with the published messages, that messages of the source never
    /// reached this handler, so that books may be wrong. The report is counted and never lost: when the
    /// queue is full, it follows as soon as there is room, merged with others of the same reason.
    ///
    /// # Errors
    /// [`WriteError::Ended`].
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourceLoss, SourcePosition, WriteError};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// channel.source_lost(SourceLoss::gap(SourcePosition::new(0, 8), 3))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn source_lost(&mut self, loss: SourceLoss) -> Result<(), WriteError> {
        let reported = self.queue.while_open(|queue| {
            queue.lost(loss);
            queue.flush();
        });
        reported
            .filter(|()| !self.queue.is_closed())
            .ok_or(WriteError::Ended)
    }

    /// Names the instruments of this channel, so that subscribers can use symbols. Later joiners find the
    /// names in their welcome. Subscribers that have joined receive them in the stream: one
    /// [`SymbolMappingMsg`] each, as many as fit a datagram in one message, at the position of the last
    /// message. A known id takes its new symbol. A published [`InstrumentDefMsg`] or
    /// [`SymbolMappingMsg`] names its instrument too. An id means the same instrument in all channels of
    /// a publisher.
    ///
    /// This call may wait when there are many names: until the publish thread has taken the earlier
    /// ones, up to 10 seconds in all. Name the known instruments before the market opens.
    ///
    /// # Errors
    /// [`WriteError::DirectoryIncomplete`] when that time is over; the welcome still has all names.
    /// Otherwise the errors of [`publish`](Self::publish).
    ///
    /// [`InstrumentDefMsg`]: tickcast_reliability::record::InstrumentDefMsg
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, Instrument, WriteError};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// let named = [(1, "AAPL"), (2, "MSFT")];
    /// channel.set_directory(&named.map(|(id, symbol)| Instrument { id, symbol: symbol.into() }))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_directory(&mut self, instruments: &[Instrument]) -> Result<(), WriteError> {
        self.set_directory_within(instruments, DIRECTORY_WAIT)
    }

    /// Names the instruments, as [`set_directory`](Self::set_directory) does, within `wait` for all waits
    /// together. Zero never waits.
    ///
    /// # Errors
    /// The errors of [`set_directory`](Self::set_directory). Set the names again that were not sent.
    ///
    /// # Examples
    /// ```no_run
    /// # use std::time::Duration;
    /// # use tickcast_publisher::{ChannelWriter, Instrument, WriteError};
    /// # fn f(channel: &mut ChannelWriter, names: &[Instrument]) -> Result<(), WriteError> {
    /// match channel.set_directory_within(names, Duration::ZERO) {
    ///     Err(WriteError::DirectoryIncomplete { sent, .. }) => channel.set_directory(&names[sent..]),
    ///     outcome => outcome,
    /// }
    /// # }
    /// ```
    pub fn set_directory_within(
        &mut self,
        instruments: &[Instrument],
        wait: Duration,
    ) -> Result<(), WriteError> {
        // locks: only when instruments are named, which no tick does.
        let mut directory = self.channel.directory();
        for instrument in instruments {
            directory.put(instrument.clone());
        }
        drop(directory);
        let (from, until) = (self.last, end_of(wait, Instant::now()));
        let at_a_time = (self.len_max / SymbolMappingMsg::LEN).max(1);
        let mut sent = 0;
        for some in instruments.chunks(at_a_time) {
            // Keep the queue short, because the memory of a batch is never released.
            if !self.queue.wait_for_room(until) {
                let all = instruments.len();
                return Err(WriteError::DirectoryIncomplete { sent, all });
            }
            self.message.clear();
            for instrument in some {
                self.message.put(&mapping(instrument, self.source));
            }
            self.publish_own(from)?;
            sent += some.len();
        }
        Ok(())
    }

    /// Names one instrument, as [`set_directory`](Self::set_directory) does.
    ///
    /// # Errors
    /// The errors of [`set_directory`](Self::set_directory).
    ///
    /// # Examples
    /// ```no_run
    /// # fn f(channel: &mut tickcast_publisher::ChannelWriter) -> Result<(), Box<dyn std::error::Error>> {
    /// channel.name_instrument(7, "AAPL")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn name_instrument(&mut self, id: u32, symbol: &str) -> Result<(), WriteError> {
        let symbol = symbol.to_owned();
        self.set_directory(&[Instrument { id, symbol }])
    }

    /// Returns the position after which the source continues after a restart: that of its last message
    /// sealed on this channel, if the publisher continues its epoch (`ring_dir`). Returns `None` in a new
    /// epoch, where the handler begins with its live stream. Messages that a handler publishes again
    /// reach subscribers again.
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError, quote, trade};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// let next = channel.resume_from().map_or(1, |last| last.sequence() + 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn resume_from(&self) -> Option<SourcePosition> {
        let mut all = self.channel.resumed.get()?.iter();
        all.find(|(source, _)| *source == self.source)
            .map(|(_, at)| *at)
    }

    /// Returns a monitor of counters and subscribers for other threads.
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError, quote, trade};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// println!("{} subscribers", channel.monitor().subscribers().len());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn monitor(&self) -> PublisherMonitor {
        PublisherMonitor::new(self.shared.clone())
    }

    /// Returns the source id that subscribers see on the messages.
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError, quote, trade};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// println!("source {}", channel.source());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn source(&self) -> SourceId {
        self.source
    }

    /// Returns the channel's name.
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError, quote, trade};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// println!("{}", channel.name());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.channel.plan.name
    }

    /// Returns the number of messages of this writer that were lost because the queue was full.
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError, quote, trade};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// if channel.lost_messages() > 0 {
    ///     eprintln!("the publish thread can't keep up");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn lost_messages(&self) -> u64 {
        self.queue.lost_messages()
    }
}

/// Returns the end of a wait. A wait beyond the range of the clock counts as endless.
fn end_of(wait: Duration, now: Instant) -> Instant {
    now.checked_add(wait).unwrap_or(now + FOREVER)
}

#[cold]
fn refused(source: RecordError) -> WriteError {
    WriteError::Record { source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_of_maximum_wait_does_not_overflow() {
        let now = Instant::now();
        assert_eq!(end_of(Duration::ZERO, now), now);
        assert_eq!(end_of(DIRECTORY_WAIT, now), now + DIRECTORY_WAIT);
        assert!(end_of(Duration::MAX, now) > now + 1_000 * DIRECTORY_WAIT);
    }
}
