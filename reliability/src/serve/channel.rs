//! The repair service's view of one channel: the available part of its ring, and its live rate.

use std::fmt;
use std::sync::Arc;

use crate::control::{
    ChannelOffer, FRAME_HEAD_LEN, FanOutOffer, HeartbeatLimits, History, Instrument, RefusalReason,
    Refused, Status,
};
use crate::planted::{Bug, planted};
use crate::publish::HeartbeatConfig;
use crate::ring::RingReader;
use crate::serve::coalesce::RepairLog;
use crate::serve::config::RepairConfig;
use crate::serve::peer_channels::PeerChannel;
use crate::types::{
    ChannelId, Epoch, Nanos, Now, RecordNumber, RepairCounters, Sequence, SequenceRange,
};
use crate::wire::PublisherState;
use crate::wire::authentication::{ChannelKeys, NumberedKey};

/// Shortest time of a measurement of the live rate.
const MEASURE_EVERY: Nanos = Nanos::from_ms(100);

/// A channel's name, and all the ways to receive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelInfo {
    /// Its name.
    pub name: String,
    /// All the ways to receive it.
    pub fan_outs: Vec<FanOutOffer>,
    /// The instruments known so far.
    pub directory: Vec<Instrument>,
    /// The intervals of its heartbeats.
    pub heartbeat: HeartbeatConfig,
}

/// The state of a ring at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The last sequence sent on all fan-outs. Every receiver can be told to expect it.
    pub(crate) newest: Sequence,
    /// The last sequence sent on any fan-out: its receivers may miss it. Sealed but unsent datagrams are
    /// never served, so that a NACK ahead of the stream gains nothing.
    pub(crate) askable: Sequence,
    /// The oldest available sequence; `newest + 1` when there is none.
    pub(crate) oldest: Sequence,
    pub(crate) oldest_record: RecordNumber,
    pub(crate) next_record: RecordNumber,
    pub(crate) ended: bool,
}

pub(crate) struct Channel {
    pub(crate) id: ChannelId,
    pub(crate) epoch: Epoch,
    pub(crate) info: ChannelInfo,
    pub(crate) ring: RingReader,
    pub(crate) counters: Arc<RepairCounters>,
    pub(crate) log: RepairLog,
    heartbeats: HeartbeatLimits,
    pub(crate) subscribers: u32,
    pending: u64,
    measured_at: Nanos,
    measured: Sequence,
    live_bytes_per_s: Option<u64>,
    /// The keys of an authenticated channel, and the number of the last one that joiners and subscribers
    /// were given.
    pub(crate) keys: Option<(ChannelKeys, u64)>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("epoch", &self.epoch)
            .field("view", &self.view())
            .field("log", &self.log)
            .field("subscribers", &self.subscribers)
            .field("pending", &self.pending)
            .field("measured_at", &self.measured_at)
            .field("measured", &self.measured)
            .field("live_bytes_per_s", &self.live_bytes_per_s)
            .finish_non_exhaustive()
    }
}

impl Channel {
    pub(crate) fn new(
        config: &RepairConfig,
        info: ChannelInfo,
        ring: RingReader,
        counters: Arc<RepairCounters>,
        now: Nanos,
    ) -> Self {
        Self {
            id: ring.identity().channel,
            epoch: ring.identity().epoch,
            heartbeats: HeartbeatLimits {
                interval_max_us: u32::try_from(info.heartbeat.ambient_us).unwrap_or(u32::MAX),
                hold_off_max_us: RepairLog::hold_off_max_us(config),
            },
            info,
            measured: ring.sealed(),
            ring,
            counters,
            log: RepairLog::new(config),
            subscribers: 0,
            pending: 0,
            measured_at: now,
            live_bytes_per_s: None,
            keys: None,
        }
    }

    /// Returns the oldest sequence that is served.
    pub(crate) fn floor(&self) -> Sequence {
        self.ring.floor()
    }

    pub(crate) fn view(&self) -> View {
        // Read the state first: once it is ended, `sealed` is END.
        let ended = self.ring.state() == Some(PublisherState::Ended);
        let askable = self.ring.sent_by_any();
        let mut newest = self.ring.sent_by_all();
        let floor = self.floor();
        // A fan-out is torn down before it lags so far that the ring overwrites what it sent.
        newest = newest.max(floor.previous());
        let next_record = self.ring.next_record_after(newest);
        let next_record = next_record.unwrap_or(RecordNumber(0));
        let oldest = floor.min(newest.next());
        let oldest_record = if oldest > newest {
            next_record
        } else {
            (self.ring.first_record_of(oldest)).unwrap_or(RecordNumber(0))
        };
        View {
            newest,
            askable: askable.max(newest),
            oldest,
            oldest_record,
            next_record,
            ended: ended && newest == self.ring.sealed(),
        }
    }

    /// Returns the keys to announce: those up to the next one that no subscriber was given yet.
    pub(crate) fn keys_to_announce(&mut self) -> Vec<NumberedKey> {
        let newest = self.view().newest;
        let Some((keys, given)) = &mut self.keys else {
            return Vec::new();
        };
        let next = keys.number_of(newest).saturating_add(1);
        // Of several at once, all but the last two are over already.
        let first = given.saturating_add(1).max(next.saturating_sub(1));
        *given = next.max(*given);
        (first..=next).map(|number| keys.key(number)).collect()
    }

    pub(crate) fn offer(&self) -> ChannelOffer {
        let view = self.view();
        let geometry = self.ring.geometry();
        // A receiver without support for continued epochs gets the current epoch alone.
        let (first, first_record) = self.ring.lineage().begins();
        let is_older = view.oldest < first;
        let history = is_older.then_some(History {
            oldest: view.oldest,
            oldest_record: view.oldest_record,
        });
        let (oldest, oldest_record) = match is_older {
            true => (first, first_record),
            false => (view.oldest, view.oldest_record),
        };
        ChannelOffer {
            channel: self.id,
            name: self.info.name.clone(),
            epoch: self.epoch,
            newest: view.newest,
            oldest,
            oldest_record,
            next_record: view.next_record,
            slot_len: geometry.slot_len() as u32,
            slots: geometry.slots(),
            config_hash: self.ring.identity().config_hash,
            ended: view.ended,
            fan_outs: self.info.fan_outs.clone(),
            directory: self.info.directory.clone(),
            continues: self.ring.lineage().clone(),
            history,
            authentication: self.keys.as_ref().map(|(keys, _)| keys.offer(view.newest)),
            heartbeats: self.heartbeats,
        }
    }

    /// Returns the STATUS for a peer that had heard everything up to `heard` when it asked. A datagram
    /// may arrive before it is noted as sent, but never before it is sealed.
    pub(crate) fn status(&self, heard: Sequence, echo: Nanos, now: Now) -> Status {
        let view = self.view();
        let newest = heard.min(self.ring.sealed()).max(view.newest);
        let next_record = match newest == view.newest {
            true => Some(view.next_record),
            false => self.ring.next_record_after(newest),
        };
        Status {
            epoch: self.epoch,
            newest,
            oldest: view
                .oldest
                .plus(3 * u64::from(planted(Bug::StatusOfAShorterRing))),
            next_record: next_record.unwrap_or(RecordNumber(0)),
            echo,
            answered_at: now.utc,
            ended: view.ended,
        }
    }

    pub(crate) fn refusal(
        &self,
        range: SequenceRange,
        reason: RefusalReason,
        retry_after_us: u64,
    ) -> Refused {
        let view = self.view();
        Refused {
            epoch: self.epoch,
            range,
            reason,
            retry_after_us: u32::try_from(retry_after_us).unwrap_or(u32::MAX),
            oldest: view.oldest,
            oldest_record: view.oldest_record,
        }
    }

    /// Removes from the queue of a connection what multicasts have answered since the last call, so that a
    /// later NACK counts anew. Returns the number of multicasts compared.
    ///
    /// A multicast itself visits no connection: each finds its answers when it has a turn or asks again. So
    /// the work of a turn does not grow with the number of connections that wait.
    pub(crate) fn catch_up(&mut self, of: &mut PeerChannel) -> usize {
        let seen = std::mem::replace(&mut of.multicasts_seen, self.log.multicasts());
        if seen == of.multicasts_seen || of.repair.is_empty() {
            return 0;
        }
        let (mut compared, mut answered) = (0, 0);
        for sequence in self.log.multicasts_after(seen) {
            compared += 1;
            answered += u64::from(of.repair.remove(sequence));
        }
        self.count_answered_by_multicast(answered);
        compared
    }

    /// Counts pending sequences that a multicast has answered.
    pub(crate) fn count_answered_by_multicast(&mut self, sequences: u64) {
        self.drop_pending(sequences);
        self.counters.answered_by_multicast.add(sequences);
    }

    /// Counts refused sequences of a NACK.
    pub(crate) fn count_refused(&self, reason: RefusalReason, sequences: u64) {
        let counters = &self.counters;
        match reason {
            RefusalReason::Window => &counters.refused_window,
            RefusalReason::Ahead => &counters.refused_ahead,
            RefusalReason::Budget => &counters.refused_budget,
            RefusalReason::TooSlow => &counters.refused_too_slow,
            RefusalReason::Epoch => &counters.refused_epoch,
            RefusalReason::Malformed => &counters.refused_malformed,
        }
        .add(sequences);
    }

    pub(crate) fn add_pending(&mut self, sequences: u64) {
        self.pending = self.pending.saturating_add(sequences);
        self.counters.pending.set(self.pending);
    }

    pub(crate) fn drop_pending(&mut self, sequences: u64) {
        self.pending = self.pending.saturating_sub(sequences);
        self.counters.pending.set(self.pending);
    }

    /// Returns whether a joiner that replays `bytes_per_s` can never get `wanted` sequences up to `last`
    /// before the ring overwrites them.
    ///
    /// The ring overwrites `last` once `room = last + servable slots − sealed` further datagrams
    /// are sealed. The joiner needs the time of `wanted` datagrams at its rate `J`. With the live
    /// stream at `L`, and half of it again in reserve, `1.5 × L × wanted / J` are sealed
    /// meanwhile. The joiner is too slow when that is more than `room`. Datagram sizes cancel out, so
    /// both rates are in bytes. From the oldest slot of a full ring on, `wanted = room`, and
    /// `J < 1.5 × L` remains.
    pub(crate) fn is_too_slow(&self, bytes_per_s: u64, wanted: u64, last: Sequence) -> bool {
        let live = u128::from(self.live_bytes_per_s.unwrap_or(0));
        let safe = self.ring.geometry().slots() - self.ring.geometry().guard();
        let room = last.plus(safe).since(self.ring.sealed());
        live * 3 * u128::from(wanted) > 2 * u128::from(bytes_per_s) * u128::from(room)
    }

    /// Measures the live rate: the datagrams sealed since the last measurement, by the length of the latest
    /// ones. A measurement takes at least [`MEASURE_EVERY`], because a burst right after the start would
    /// count as the rate of the stream. Its weight grows with its time: 1/4 after that interval.
    pub(crate) fn measure(&mut self, now: Nanos) {
        let elapsed = now.since(self.measured_at);
        if elapsed < MEASURE_EVERY {
            return;
        }
        let sealed = self.ring.sealed();
        let latest = sealed.minus(15).max(self.ring.oldest());
        let lens = SequenceRange::new(latest, sealed).map_or((0, 0), |range| {
            (range.iter().filter_map(|s| self.ring.len_of(s)))
                .fold((0u64, 0u64), |(n, sum), len| (n + 1, sum + len as u64))
        });
        let mean = lens.1 / lens.0.max(1) + FRAME_HEAD_LEN as u64;
        let bytes = u128::from(sealed.since(self.measured)) * u128::from(mean);
        let rate = bytes * 1_000_000_000 / u128::from(elapsed.0);
        self.live_bytes_per_s = Some(match self.live_bytes_per_s {
            None => u64::try_from(rate).unwrap_or(u64::MAX),
            Some(before) => {
                let (new, old) = (u128::from(elapsed.0), u128::from(3 * MEASURE_EVERY.0));
                let smoothed = rate
                    .saturating_mul(new)
                    .saturating_add(u128::from(before) * old);
                u64::try_from(smoothed / (new + old)).unwrap_or(u64::MAX)
            }
        });
        (self.measured, self.measured_at) = (sealed, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Geometry, HeapMemory, RingIdentity, RingWriter, Seal};
    use crate::types::{ConfigHash, FanOutId, SourceId, SourcePosition};
    use crate::wire::Kind;

    fn channel(slots: u64) -> (RingWriter, Channel) {
        let geometry = Geometry::new(1024, slots).unwrap();
        let identity = RingIdentity {
            channel: ChannelId(4),
            epoch: Epoch(9),
            config_hash: ConfigHash(3),
            boot_id: [0; 16],
            fan_outs: 1,
            first_sequence: Sequence(1),
            first_record: RecordNumber(1),
        };
        let memory = Arc::new(HeapMemory::new(geometry));
        let ring = RingWriter::create(memory, geometry, identity).unwrap();
        let info = ChannelInfo {
            name: "c".into(),
            fan_outs: vec![],
            directory: vec![],
            heartbeat: HeartbeatConfig::default(),
        };
        let config = RepairConfig::default();
        let channel = Channel::new(&config, info, ring.reader(), Arc::default(), Nanos(1_000));
        (ring, channel)
    }

    /// Seals and sends `count` datagrams of `len` bytes of payload.
    fn publish(ring: &mut RingWriter, count: u64, len: usize) {
        for _ in 0..count {
            ring.open().unwrap();
            ring.append(&vec![0; len]).unwrap();
            let seal = Seal {
                kind: Kind::Data,
                count: 2,
                source: SourceId(1),
                source_position: SourcePosition(0),
                sent_at: Nanos(0),
                flags: 0,
            };
            let sequence = ring.seal(seal).unwrap();
            ring.set_sent(FanOutId(0), sequence);
        }
    }

    #[test]
    fn live_rate_is_smoothed_by_quarter_over_whole_frames() {
        let (mut ring, mut channel) = channel(64);
        let at = |ms| Nanos(1_000).after(Nanos::from_ms(ms));
        channel.measure(at(0));
        assert_eq!(channel.live_bytes_per_s, None, "no time has passed");
        // 64 bytes of header, 128 of payload, 8 of frame: 200 bytes each.
        publish(&mut ring, 50, 128);
        channel.measure(at(100));
        assert_eq!(channel.live_bytes_per_s, Some(100_000));
        publish(&mut ring, 10, 128);
        channel.measure(at(200));
        assert_eq!(channel.live_bytes_per_s, Some(75_000 + 5_000));
        channel.measure(at(200));
        channel.measure(at(300));
        assert_eq!(channel.live_bytes_per_s, Some(60_000), "nothing was sealed");
        // The length is averaged over the latest sixteen.
        publish(&mut ring, 5, 128);
        publish(&mut ring, 16, 328);
        channel.measure(at(400));
        assert_eq!(channel.live_bytes_per_s, Some(45_000 + 210 * 400 / 4));
    }

    #[test]
    fn offer_limits_the_times_of_heartbeats() {
        let (_ring, channel) = channel(64);
        let config = HeartbeatConfig::default();
        let limits = channel.offer().heartbeats;
        assert_eq!(u64::from(limits.interval_max_us), config.ambient_us);
        let crowded = RepairConfig::default().hold_off_us(u32::MAX) << 4;
        assert_eq!(limits.hold_off_max_us, crowded, "doubled four times");
    }

    #[test]
    fn short_burst_at_start_is_no_live_rate() {
        let (mut ring, mut channel) = channel(64);
        let at = |ms| Nanos(1_000).after(Nanos::from_ms(ms));
        publish(&mut ring, 50, 128);
        channel.measure(at(1));
        assert_eq!(channel.live_bytes_per_s, None, "50 in 1 ms are no 10 MB/s");
        channel.measure(at(100));
        assert_eq!(channel.live_bytes_per_s, Some(100_000));
    }

    #[test]
    fn measurement_weighs_as_much_as_its_time() {
        let (mut ring, mut channel) = channel(64);
        let at = |ms| Nanos(1_000).after(Nanos::from_ms(ms));
        publish(&mut ring, 60, 128);
        channel.measure(at(100));
        assert_eq!(channel.live_bytes_per_s, Some(120_000));
        // After 2.7 s of silence, a tenth of the estimate is left.
        channel.measure(at(2_800));
        assert_eq!(channel.live_bytes_per_s, Some(12_000));
    }

    #[test]
    fn replay_is_too_slow_at_half_as_much_sealed_again() {
        let (mut ring, mut channel) = channel(64);
        assert!(!channel.is_too_slow(1, 1_000, Sequence(1)), "nothing lives");
        publish(&mut ring, 100, 128);
        channel.live_bytes_per_s = Some(1_000);
        // 48 of 64 slots are served: room for 48 more before sequence 100 is overwritten.
        for (bytes_per_s, wanted, last, slow) in [
            (1_500, 48, 100, false),
            (1_499, 48, 100, true),
            (1_500, 49, 100, true),
            (1_500, 38, 90, false),
            (1_500, 39, 90, true),
            (3_000, 76, 90, false),
            (3_000, 77, 90, true),
        ] {
            let last = Sequence(last);
            assert_eq!(
                channel.is_too_slow(bytes_per_s, wanted, last),
                slow,
                "{wanted}"
            );
        }
    }

    #[test]
    fn channel_view_reports_sent_and_retained_ranges() {
        let (mut ring, channel) = channel(64);
        let view = channel.view();
        assert_eq!(
            (view.newest, view.askable, view.oldest),
            (Sequence(0), Sequence(0), Sequence(1))
        );
        assert_eq!(
            (view.oldest_record, view.next_record),
            (RecordNumber(1), RecordNumber(1))
        );
        publish(&mut ring, 1, 8);
        let view = channel.view();
        assert_eq!((view.newest, view.oldest), (Sequence(1), Sequence(1)));
        assert_eq!(
            (view.oldest_record, view.next_record),
            (RecordNumber(1), RecordNumber(3)),
            "the only one that it holds"
        );
        publish(&mut ring, 99, 8);
        let view = channel.view();
        assert_eq!((view.newest, view.oldest), (Sequence(100), Sequence(53)));
        assert_eq!(
            (view.oldest_record, view.next_record),
            (RecordNumber(105), RecordNumber(201))
        );
        ring.set_sent(FanOutId(0), Sequence(20));
        let view = channel.view();
        assert_eq!(
            view.newest,
            Sequence(52),
            "what the ring forgot counts as sent"
        );
        assert_eq!((view.askable, view.oldest), (Sequence(52), Sequence(53)));
        assert_eq!(view.oldest_record, view.next_record);
        ring.set_state(PublisherState::Ended);
        assert!(!channel.view().ended, "END is not sent yet");
        ring.set_sent(FanOutId(0), Sequence(100));
        assert!(channel.view().ended);
        let refusal = channel.refusal(
            SequenceRange::one(Sequence(1)),
            RefusalReason::Window,
            1 << 40,
        );
        assert_eq!(
            (refusal.retry_after_us, refusal.oldest),
            (u32::MAX, Sequence(53))
        );
    }
}
