//! A live input: packets of a venue from a socket. It also tracks the packets that the kernel
//! dropped before they were read: such a loss is of this host, and no gap of the venue.

use tickcast_feeds::source::{Decoder, Incident, Packet, Sink};
use tickcast_feeds::venues::{Format, Settings};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, Now, SourcePosition};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{FeedReceiver, FeedReceiverConfig};

use super::{Counting, Polled};
use crate::config::UdpInputConfig;
use crate::error::PublisherError;
use crate::ingest::queue::Intake;
use crate::state::SourceShared;
use crate::state::source_loss::{SourceLoss, Unread};
use crate::state::thread;

/// A read pause of at least this length is reported when packets were dropped.
const PAUSE: Nanos = Nanos::from_ms(1);

/// An open socket for a venue's packets.
pub(super) struct Live {
    pub(super) receiver: FeedReceiver,
    pub(super) decoder: Option<Box<dyn Decoder>>,
    settings: Settings,
    drops: Drops,
}

impl Live {
    /// Opens the socket at the configured address.
    pub(super) fn open(
        input: &UdpInputConfig,
        interface: &Interface,
        settings: Settings,
    ) -> Result<Self, PublisherError> {
        let receiver = FeedReceiver::open(&FeedReceiverConfig {
            listen: input.listen,
            interface: input.interface.clone().unwrap_or_else(|| interface.clone()),
            source: input.from,
            datagram_len_max: 9_000,
            receive_buffer_bytes: input.receive_buffer_bytes,
            batch: 64,
            busy_poll_us: None,
        });
        let receiver = receiver.map_err(|source| PublisherError::Listening {
            source_id: input.source.0,
            source,
        })?;
        Ok(Self {
            receiver,
            decoder: input
                .format
                .of_packets()
                .map(|f| f.decoder(settings.clone())),
            settings,
            drops: Drops::default(),
        })
    }

    /// Polls the socket; the contract is that of [`Input::poll`](super::Input::poll).
    pub(super) fn poll(
        &mut self,
        now: Now,
        shared: &SourceShared,
        sink: &mut dyn Intake,
    ) -> Result<Polled, PublisherError> {
        let counters = &shared.counters;
        let (decoder, settings, drops) = (&mut self.decoder, &self.settings, &mut self.drops);
        drops.read(now.monotonic);
        let mut all = u64::MAX;
        let received = self.receiver.poll(&mut |datagram| {
            counters.source_packets.increment();
            counters.source_bytes.add(datagram.bytes.len() as u64);
            drops.packet(datagram.dropped, || thread::now().monotonic);
            let mut attributing = Attributing {
                drops,
                out: &mut *sink,
            };
            let mut sink = Counting {
                counters,
                records_left: &mut all,
                out: &mut attributing,
            };
            if decoder.is_none() {
                let found = Format::detect(datagram.bytes);
                *decoder = found.map(|format| format.decoder(settings.clone()));
            }
            match decoder {
                Some(decoder) => decoder.packet(
                    Packet {
                        received_at: now.utc,
                        payload: datagram.bytes,
                    },
                    &mut sink,
                ),
                None => counters.source_unrecognised_packets.increment(),
            }
        });
        match received {
            Ok(0) => Ok(Polled::Idle),
            Ok(_) => Ok(Polled::Worked),
            Err(source) => Err(PublisherError::Receive {
                source_id: shared.source.0,
                source,
            }),
        }
    }
}

/// Tracks the packets that the kernel dropped before they were read.
#[derive(Debug, Default)]
struct Drops {
    /// Total drops when the current packet arrived, and the drops just before it.
    counted: u64,
    fresh: u64,
    now: Nanos,
    /// End and length of the longest pause, until a packet arrives that was received after it.
    pause: Option<(Nanos, Nanos)>,
}

impl Drops {
    /// Records a read of the socket.
    fn read(&mut self, now: Nanos) {
        let away = now.since(self.now);
        let longest = self.pause.map_or(PAUSE, |(_, span)| span);
        if away >= longest && self.now > Nanos::ZERO {
            self.pause = Some((now, away));
        }
        self.now = now;
    }

    /// Records a packet and the drops before it. After a drop, the clock is read again, because a
    /// pause during the read would otherwise go unseen.
    #[inline]
    fn packet(&mut self, dropped: u64, clock: impl FnOnce() -> Nanos) {
        self.fresh = dropped - std::mem::replace(&mut self.counted, dropped);
        if self.fresh > 0 {
            return self.read(clock());
        }
        // Packets that queued in the socket are read faster than they arrived.
        if self
            .pause
            .is_some_and(|(over, span)| self.now > over.after(span))
        {
            self.pause = None;
        }
    }

    /// Returns the drops that explain a gap before the current packet.
    fn of_gap(&self) -> Option<Unread> {
        (self.fresh > 0).then_some(Unread {
            packets: self.fresh,
            paused: self.pause.map_or(Nanos::ZERO, |(_, span)| span),
        })
    }
}

/// Attributes gaps to the kernel's drops.
struct Attributing<'a> {
    drops: &'a Drops,
    out: &'a mut dyn Intake,
}

impl Intake for Attributing<'_> {
    fn lost(&mut self, loss: SourceLoss) {
        self.out.lost(loss);
    }
}

impl Sink for Attributing<'_> {
    #[inline]
    fn message(&mut self, position: SourcePosition, records: &RecordBatch) {
        self.out.message(position, records);
    }

    fn incident(&mut self, incident: Incident) {
        match incident {
            Incident::Gap { from, missing } => {
                let loss = SourceLoss::gap(from, missing).unread(self.drops.of_gap());
                self.out.lost(loss);
            }
            incident => self.out.incident(incident),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_between_clock_read_and_drop_is_counted() {
        let ms = Nanos::from_ms;
        let paused = |stopped: u64| {
            let mut drops = Drops::default();
            drops.read(ms(100));
            drops.read(ms(101));
            drops.packet(0, || panic!("nothing was dropped"));
            // The pause happens before the next reading of the clock.
            drops.packet(9, || ms(101 + stopped));
            drops.of_gap().map(|it| (it.packets, it.paused))
        };
        assert_eq!(paused(145), Some((9, ms(145))));
        assert_eq!(paused(0), Some((9, ms(1))), "what there was before");
    }
}
