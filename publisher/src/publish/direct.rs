//! Publishing for a handler that sends record after record on one channel. The route is resolved
//! once, so a record costs little more than its copy into the datagram.

use tickcast_reliability::record::{RecordBatch, WireRecord, names_instruments};
use tickcast_reliability::types::{Now, SourceId, SourcePosition};

use crate::error::PublisherError;
use crate::publish::channel::ChannelDriver;
use crate::publish::{PublishStage, SourceCounts};

/// One channel of an [`InlinePublisher`](crate::InlinePublisher), borrowed while nothing else uses
/// it.
///
/// ```
/// use tickcast_publisher::InlinePublisher;
/// use tickcast_publisher::{Config, SourcePosition, trade};
///
/// # let config = Config::parse(
/// #     r#"{ "name": "mine", "control": "127.0.0.1:0", "inputs": [], "channels": [{
/// #         "id": 1, "name": "all", "slots": 1024,
/// #         "fan_out": [{ "transport": "udp", "lines": [{ "group": "239.255.90.2:7592" }] }] }] }"#,
/// # )?;
/// let mut publisher = InlinePublisher::open(config)?;
/// if let Some(mut channel) = publisher.channel(0) {
///     for number in 1..=3 {
///         channel.publish(&trade(7, 101_500_000_000, 200), SourcePosition::new(0, number));
///     }
/// }
/// publisher.drive()?;
/// # assert_eq!(publisher.end_session(std::time::Duration::ZERO)?.published_records(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct InlineChannel<'a> {
    driver: &'a mut ChannelDriver,
    source: SourceId,
    counts: &'a mut SourceCounts,
    /// Messages taken but not yet counted in the shared counters.
    records: u64,
    failure: &'a mut Option<PublisherError>,
    message: &'a mut RecordBatch,
    now: Now,
}

impl PublishStage {
    /// Returns the direct route of a source's messages, if none of them needs a lookup or a filter.
    pub(crate) fn direct<'a>(
        &'a mut self,
        source: usize,
        message: &'a mut RecordBatch,
        now: Now,
    ) -> Option<InlineChannel<'a>> {
        let (drivers, sources, failure) = self.parts();
        let counts = &mut sources.get_mut(source)?.counts;
        let (channel, source) = counts.direct()?;
        Some(InlineChannel {
            driver: drivers.get_mut(channel)?,
            source,
            counts,
            records: 0,
            failure,
            message,
            now,
        })
    }
}

impl InlineChannel<'_> {
    /// Publishes a record on this channel, like
    /// [`InlinePublisher::publish`](crate::InlinePublisher::publish). A record that gives an
    /// instrument its symbol does not compile here; publish it with that method.
    ///
    /// ```
    /// # use tickcast_publisher::{InlineChannel, SourcePosition, trade};
    /// # fn f(channel: &mut InlineChannel<'_>) {
    /// channel.publish(&trade(7, 101_500_000_000, 200), SourcePosition::new(0, 4_711));
    /// # }
    /// ```
    #[inline]
    pub fn publish<R: WireRecord>(&mut self, record: &R, from: SourcePosition) {
        const {
            assert!(
                !names_instruments(R::RTYPE),
                "use InlinePublisher::publish for a record that names an instrument"
            );
        };
        self.records += 1;
        if !(self.driver).put_record(record, self.source, from, self.now) {
            self.publish_message(record, from);
        }
    }

    /// Publishes records that are one message each, like [`publish`](Self::publish). The first is
    /// at this position of its source, the others directly after it.
    ///
    /// The run goes out with the next [`drive`](crate::InlinePublisher::drive). Datagrams that are
    /// full before that carry the time of the last one as their send time (`sent_at`).
    ///
    /// Keep a run shorter than the ring. In a longer run, a fan-out skips the datagrams that it
    /// could not send before they were overwritten. These are counted (`skipped_datagrams`,
    /// `fan_out_resets`) and logged. Receivers request them, and get those that the ring still
    /// holds.
    ///
    /// ```
    /// # use tickcast_publisher::InlineChannel;
    /// # use tickcast_publisher::{SourcePosition, trade};
    /// # fn f(channel: &mut InlineChannel<'_>) {
    /// let fills = [trade(7, 101_500_000_000, 200), trade(7, 101_520_000_000, 50)];
    /// channel.publish_run(&fills, SourcePosition::new(0, 4_711));
    /// # }
    /// ```
    #[inline]
    pub fn publish_run<R: WireRecord>(&mut self, records: &[R], first: SourcePosition) {
        const {
            assert!(
                !names_instruments(R::RTYPE),
                "use InlinePublisher::publish for a record that names an instrument"
            );
        };
        self.records += records.len() as u64;
        let (mut left, mut first) = (records, first);
        loop {
            let put = (self.driver).put_run(left, self.source, first, self.now);
            let [next, rest @ ..] = &left[put..] else {
                return;
            };
            first = first.plus(put as u64);
            self.publish_message(next, first);
            (left, first) = (rest, first.plus(1));
        }
    }

    /// Publishes a record as a message, to return the error, or to record it.
    #[cold]
    fn publish_message<R: WireRecord>(&mut self, record: &R, from: SourcePosition) {
        self.message.clear();
        self.message.put(record);
        let published = (self.driver).publish((&*self.message).into(), self.source, from, self.now);
        if let Err(error) = published {
            self.failure.get_or_insert(error);
        }
    }
}

impl Drop for InlineChannel<'_> {
    fn drop(&mut self) {
        self.counts.took(self.records, self.records);
    }
}
