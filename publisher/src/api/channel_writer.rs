//! One channel, written by one handler: what is published is handed to the publish thread without
//! ever waiting, and what finds no room is told, to the caller and in the stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tickcast_feeds::instruments::text;
use tickcast_reliability::control::Instrument;
use tickcast_reliability::record::{
    RType, RecordBatch, RecordError, RecordHeader, SType, SymbolMappingMsg, WireRecord,
};
use tickcast_reliability::types::{SourceId, SourcePosition};
use tickcast_reliability::wire::HEADER_LEN;

use crate::admin::monitor::Monitor;
use crate::error::WriteError;
use crate::ingest::queue::{Intake, QueueSender};
use crate::state::source_loss::SourceLoss;
use crate::state::{ChannelShared, Shared};

/// How long all waits of one [`ChannelWriter::set_directory`] may take together.
const DIRECTORY_WAIT: Duration = Duration::from_secs(10);
/// No publisher runs for so long: a year.
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
/// A message is copied and handed over at once; no call waits, allocates in steady state, locks or
/// makes a system call, [`set_directory`](Self::set_directory) excepted. It goes out when the
/// publish thread takes it (`threads.idle` says how that one waits), packed with what was handed
/// over meanwhile.
///
/// # How it can fail
/// Every method says in its result what became of the message ([`WriteError`]). A lost message is
/// counted once, told in the stream once, and never held back from the messages behind it: go on.
/// A record that is not what its header says is no message of the source: it is refused, and
/// neither published nor counted nor told.
///
/// # Dropping it
/// What was published goes out, what was lost is told; heartbeats and repair go on. The session
/// goes on too: [`crate::Publisher::channel`] gives another writer.
pub struct ChannelWriter {
    queue: QueueSender,
    message: RecordBatch,
    shared: Arc<Shared>,
    channel: Arc<ChannelShared>,
    source: SourceId,
    last: SourcePosition,
    len_max: usize,
    /// Says to the publisher that there is a writer.
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
        Self {
            queue,
            message: RecordBatch::default(),
            len_max: channel.plan.geometry.slot_len() - HEADER_LEN,
            shared,
            channel,
            source,
            last: SourcePosition::default(),
            _alive: alive,
        }
    }

    /// Publishes one record that is one message of the source, at the source's position: session
    /// ordinal and the venue's own sequence, which do not go back.
    ///
    /// # Errors
    /// [`WriteError`]: it is lost, and told so in the stream; or it was refused for its header, of
    /// which the stream knows nothing; or the session has ended.
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

    /// Publishes the records that one message of the source became: they stay together in one
    /// datagram. All concern the instrument of the first one.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish).
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

    /// As [`publish_all`](Self::publish_all), for records of several kinds. An empty batch only
    /// moves the source's position, for messages that are nobody's business.
    ///
    /// # Errors
    /// As for [`publish`](Self::publish).
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
            // The publish thread tells so in the stream.
            Some(true) if message.bytes().len() > len_max => Err(WriteError::TooLarge {
                len: message.bytes().len(),
                max: len_max,
            }),
            Some(true) => Ok(()),
        }
    }

    /// Has everything published so far sealed and sent, though more may follow at once. Without
    /// it, a message waits for nothing but the messages before it; where no room is left it does
    /// nothing.
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

    /// Tells subscribers, in order with what was published, that messages of the source never
    /// reached this handler: books may be wrong. It is counted, and never lost itself: without room
    /// it is told as soon as there is, together with others of its reason.
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
        let told = self.queue.while_open(|queue| {
            queue.lost(loss);
            queue.flush();
        });
        told.filter(|()| !self.queue.is_closed())
            .ok_or(WriteError::Ended)
    }

    /// Names the instruments of this channel, so that subscribers can use symbols: those that join
    /// find them in their welcome, those that have joined are told in the stream (one
    /// [`SymbolMappingMsg`] each, as many as fit a datagram in one message, at the position of the
    /// last message). Ids that were named before
    /// get their new symbol. An [`InstrumentDefMsg`] or [`SymbolMappingMsg`] that is published
    /// names its instrument too. An id means one instrument in all channels of a publisher: give
    /// none of them an id that stands for something else in another.
    ///
    /// This one call may wait, where there are many names: until the publish thread has taken those
    /// before them, up to 10 seconds in all. Name what is known before the market opens.
    ///
    /// # Errors
    /// [`WriteError::DirectoryIncomplete`] when that time is over; the welcome has all names all the
    /// same. Else as for [`publish`](Self::publish).
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

    /// As [`set_directory`](Self::set_directory), with a limit of one's own to all its waits
    /// together; zero never waits.
    ///
    /// # Errors
    /// As for [`set_directory`](Self::set_directory). What was not told can be set again.
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
        // locks: where instruments are named, which no tick does.
        let mut directory = self.channel.directory();
        for instrument in instruments {
            directory.put(instrument.clone());
        }
        drop(directory);
        let (from, until) = (self.last, end_of(wait, Instant::now()));
        let at_a_time = (self.len_max / SymbolMappingMsg::LEN).max(1);
        let mut sent = 0;
        for some in instruments.chunks(at_a_time) {
            // What waits is kept short: the memory of a batch is never given back.
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

    /// Names one instrument; as [`set_directory`](Self::set_directory), also in what it fails of.
    ///
    /// # Errors
    /// As for [`set_directory`](Self::set_directory).
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

    /// Where the source should be taken up after a restart: the position of the last message of it that
    /// is sealed on this channel, where the publisher goes on in the epoch of before (`ring_dir`). `None`
    /// in an epoch of its own, which continues nothing: the handler begins with its live stream. What a
    /// handler publishes again is published again; only it knows.
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

    /// Counters and subscribers, for other threads to look at.
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError, quote, trade};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// println!("{} subscribers", channel.monitor().subscribers().len());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        Monitor::new(self.shared.clone())
    }

    /// The number that subscribers see as the source of its messages.
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

    /// The channel's name.
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

    /// Messages of this writer that found no room so far.
    ///
    /// ```
    /// # use tickcast_publisher::{ChannelWriter, SourcePosition, WriteError, quote, trade};
    /// # fn f(channel: &mut ChannelWriter) -> Result<(), WriteError> {
    /// if channel.lost_messages() > 0 {
    ///     eprintln!("the publish thread could not keep up");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn lost_messages(&self) -> u64 {
        self.queue.lost_messages()
    }
}

/// When a wait is over. One that no clock can tell the end of is as good as for ever.
fn end_of(wait: Duration, now: Instant) -> Instant {
    now.checked_add(wait).unwrap_or(now + FOREVER)
}

#[cold]
fn refused(source: RecordError) -> WriteError {
    WriteError::Record { source }
}

/// The record that tells which symbol an id stands for.
fn mapping(instrument: &Instrument, source: SourceId) -> SymbolMappingMsg {
    let Instrument { id, symbol } = instrument;
    SymbolMappingMsg {
        hd: RecordHeader::new::<SymbolMappingMsg>(RType::SymbolMapping as u8, source.0, *id, 0),
        stype_in: SType::RawSymbol as u8,
        stype_in_symbol: text(symbol.as_bytes()),
        stype_out: SType::InstrumentId as u8,
        stype_out_symbol: text(id.to_string().as_bytes()),
        ..SymbolMappingMsg::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_beyond_all_clocks_is_no_short_one() {
        let now = Instant::now();
        assert_eq!(end_of(Duration::ZERO, now), now);
        assert_eq!(end_of(DIRECTORY_WAIT, now), now + DIRECTORY_WAIT);
        assert!(end_of(Duration::MAX, now) > now + 1_000 * DIRECTORY_WAIT);
    }
}
