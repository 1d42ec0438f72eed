//! A live input: packets of a venue from a socket. It also tracks the packets that the kernel
//! dropped before they were read: such a loss is of this host, and no gap of the venue.

use tickcast_feeds::source::{Decoder, Incident, Packet, Sink};
use tickcast_feeds::venues::{Format, Settings};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, Now, SourcePosition};
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{FeedReceiver, FeedReceiverConfig};

use super::{Counting, Polled};
use crate::config::{InputLineConfig, UdpInputConfig};
use crate::error::PublisherError;
use crate::ingest::queue::Intake;
use crate::state::SourceShared;
use crate::state::source_loss::{SourceLoss, Unread};
use crate::state::thread;

/// A gap is reported within this time after the drops that caused it.
const EXPLAINS: Nanos = Nanos::from_ms(100);
/// A read pause of at least this length is reported when packets were dropped.
const PAUSE: Nanos = Nanos::from_ms(1);

/// The open sockets of a venue's lines.
pub(super) struct Live {
    pub(super) lines: Vec<LiveLine>,
    pub(super) decoder: Option<Box<dyn Decoder>>,
    settings: Settings,
    config: UdpInputConfig,
}

/// One line of a live input.
pub(super) struct LiveLine {
    pub(super) receiver: FeedReceiver,
    drops: Drops,
}

impl Live {
    /// Opens a socket for each line.
    pub(super) fn open(
        input: &UdpInputConfig,
        interface: &Interface,
        settings: Settings,
    ) -> Result<Self, PublisherError> {
        let open = |line: &InputLineConfig| -> Result<LiveLine, PublisherError> {
            let receiver = FeedReceiver::open(&FeedReceiverConfig {
                listen: line.listen,
                interface: line.interface.clone().unwrap_or_else(|| interface.clone()),
                source: line.from,
                datagram_len_max: 9_000,
                receive_buffer_bytes: input.receive_buffer_bytes,
                batch: 64,
                busy_poll_us: None,
            });
            let receiver = receiver.map_err(|source| PublisherError::Listening {
                source_id: input.source.0,
                source,
            })?;
            let drops = Drops::default();
            Ok(LiveLine { receiver, drops })
        };
        let settings = Settings {
            lines: input.lines.len(),
            ..settings
        };
        Ok(Self {
            lines: input.lines.iter().map(open).collect::<Result<_, _>>()?,
            decoder: (input.format.of_packets()).map(|format| decoder(format, input, &settings)),
            settings,
            config: input.clone(),
        })
    }

    /// Polls the sockets; the contract is that of [`Input::poll`](super::Input::poll).
    pub(super) fn poll(
        &mut self,
        now: Now,
        shared: &SourceShared,
        sink: &mut dyn Intake,
    ) -> Result<Polled, PublisherError> {
        let counters = &shared.counters;
        let (found, settings, config) = (&mut self.decoder, &self.settings, &self.config);
        let mut all = u64::MAX;
        let mut polled = Polled::Idle;
        for (index, LiveLine { receiver, drops }) in self.lines.iter_mut().enumerate() {
            drops.read(now.monotonic);
            let received = receiver.poll(&mut |datagram| {
                counters.source_packets.increment();
                counters.source_bytes.add(datagram.bytes.len() as u64);
                drops.packet(datagram.dropped, || thread::now().monotonic);
                let mut attributing = Attributing {
                    drops: Some(drops),
                    out: &mut *sink,
                };
                let mut sink = Counting {
                    counters,
                    records_left: &mut all,
                    out: &mut attributing,
                };
                if found.is_none() {
                    let format = Format::detect(datagram.bytes);
                    *found = format.map(|format| decoder(format, config, settings));
                }
                let packet = Packet {
                    received_at: now.utc,
                    payload: datagram.bytes,
                };
                match found {
                    Some(found) => found.line_packet(index, now.monotonic, packet, &mut sink),
                    None => counters.source_unrecognised_packets.increment(),
                }
            });
            let received = received.map_err(|source| PublisherError::Receive {
                source_id: shared.source.0,
                source,
            })?;
            if received > 0 {
                polled = Polled::Worked;
            }
        }
        if let Some(found) = found {
            let drops = self.lines.iter_mut().map(|line| &mut line.drops);
            let mut attributing = Attributing {
                drops: drops.max_by_key(|drops| drops.last_at()),
                out: &mut *sink,
            };
            let mut sink = Counting {
                counters,
                records_left: &mut all,
                out: &mut attributing,
            };
            found.poll(now.monotonic, &mut sink);
        }
        Ok(polled)
    }
}

/// Creates the decoder of a live input.
fn decoder(format: Format, input: &UdpInputConfig, settings: &Settings) -> Box<dyn Decoder> {
    format.decoder(Settings {
        holding: Some(input.holding(format)),
        ..settings.clone()
    })
}

/// Tracks the packets that the kernel dropped before they were read.
#[derive(Debug, Default)]
struct Drops {
    /// Total drops when the current packet arrived.
    counted: u64,
    /// The drops that no gap has been attributed to yet, and when the last of them was seen.
    fresh: u64,
    seen_at: Nanos,
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
        let fresh = dropped - std::mem::replace(&mut self.counted, dropped);
        if fresh > 0 {
            self.fresh += fresh;
            self.read(clock());
            self.seen_at = self.now;
            return;
        }
        if self.fresh > 0 && self.now > self.seen_at.after(EXPLAINS) {
            self.fresh = 0;
        }
        // Packets that queued in the socket are read faster than they arrived.
        if self
            .pause
            .is_some_and(|(over, span)| self.now > over.after(span))
        {
            self.pause = None;
        }
    }

    /// Returns when the last drops were seen.
    const fn last_at(&self) -> Nanos {
        self.seen_at
    }

    /// Takes the drops that explain a gap.
    fn of_gap(&mut self) -> Option<Unread> {
        let packets = std::mem::take(&mut self.fresh);
        (packets > 0).then_some(Unread {
            packets,
            paused: self.pause.map_or(Nanos::ZERO, |(_, span)| span),
        })
    }
}

/// Attributes gaps to the kernel's drops.
struct Attributing<'a> {
    drops: Option<&'a mut Drops>,
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
                let unread = self.drops.as_mut().and_then(|drops| drops.of_gap());
                self.out.lost(SourceLoss::gap(from, missing).unread(unread));
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
