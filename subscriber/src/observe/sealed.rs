//! The latency of a publisher, up to the sealed datagram.

use tickcast_hlog::Series;
use tickcast_reliability::delivery::{Position, Quality, Via};
use tickcast_reliability::record::Records;
use tickcast_reliability::types::{ChannelId, Nanos, RecordNumber};
use tickcast_reliability::wire::Header;

use super::latency::{LatencyRecorder, Stage};

/// The histograms of one channel's stages before the network. A publisher's follower of the ring records
/// them, by the same rules as a subscriber.
#[derive(Debug, Default)]
pub struct SealedLatency(LatencyRecorder);

impl SealedLatency {
    /// The stages with samples.
    pub const STAGES: [Stage; 2] = [Stage::EventToReceived, Stage::ReceivedToSealed];

    /// Records all records of a sealed datagram.
    pub fn record(&self, header: &Header, records: Records<'_>) {
        let position = Position {
            channel: ChannelId(0),
            epoch: header.epoch,
            sequence: header.sequence,
            record: RecordNumber(0),
            via: Via::Repair,
            quality: Quality::default(),
            source: header.source,
            source_position: header.source_position,
            sent_at: header.sent_at,
            received_at: Nanos::ZERO,
            missing_for: Nanos::ZERO,
        };
        self.0.all_stamped(&position, records);
    }

    /// Returns the series of an interval log.
    #[must_use]
    pub fn series(&self, channel: &str) -> Vec<Series> {
        self.0.snapshot().into_series(channel).collect()
    }
}
