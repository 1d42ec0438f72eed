//! The subscriber's side: copies slots out of the ring that the publisher counts as sent, in order.

use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::record::words_as_bytes;
use tickcast_reliability::ring::{CopyError, Geometry, RingMemory, RingReader};
use tickcast_reliability::types::{ChannelId, Epoch, FanOutId, Nanos, Sequence, SequenceRange};

use super::read_only_map::ReadOnlyMapping;
use super::side_ring::{CopyWriter, SideRingReader};
use super::{ShmError, boot_id};
use tickcast_transport_base::{Receive, ReceiveError, ReceiveStats, Received};

/// Largest number of datagrams per poll.
const BATCH: usize = 64;

/// The ring to read, as offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShmReceiverConfig {
    /// The file of the ring.
    pub path: PathBuf,
    /// The fan-out whose `sent` the receiver follows.
    pub fan_out: FanOutId,
    /// The boot id of the publisher's host.
    pub boot_id: [u8; 16],
    /// The ring's channel.
    pub channel: ChannelId,
    /// The ring's epoch.
    pub epoch: Epoch,
    /// The ring's geometry.
    pub geometry: Geometry,
}

/// Reads a channel from the publisher's ring. It has one line, and no descriptor: it is polled.
pub struct ShmReceiver {
    ring: RingReader,
    fan_out: FanOutId,
    /// The next sequence to return.
    next: Sequence,
    joined: bool,
    overrun: Option<SequenceRange>,
    side_rings: [SideRingReader; 2],
    buffer: Vec<u64>,
    stats: [ReceiveStats; 1],
}

impl ShmReceiver {
    /// Source address reported for datagrams from this host's memory.
    pub const SENDER: Ipv4Addr = Ipv4Addr::LOCALHOST;

    /// Maps the offered ring. Reading starts behind `after`.
    ///
    /// # Errors
    /// [`ShmError`] with the reason.
    pub fn open(config: &ShmReceiverConfig, after: Sequence) -> Result<Self, ShmError> {
        let ours = boot_id().map_err(|source| ShmError::BootId { source })?;
        if config.boot_id != ours {
            return Err(ShmError::OtherHost);
        }
        let path = || config.path.clone();
        let memory = ReadOnlyMapping::open(&config.path, config.geometry)?;
        let memory: Arc<dyn RingMemory> = Arc::new(memory);
        let ring = RingReader::attach(Arc::clone(&memory));
        let ring = ring.map_err(|source| ShmError::Ring {
            path: path(),
            source,
        })?;
        let found = ring.identity();
        if (found.epoch, found.channel) != (config.epoch, config.channel)
            || ring.geometry() != config.geometry
        {
            return Err(ShmError::Another {
                path: path(),
                found: found.epoch,
                expected: config.epoch,
            });
        }
        let open = |side| SideRingReader::open(&memory, config.geometry, side);
        Ok(Self {
            fan_out: config.fan_out,
            next: after.next(),
            joined: true,
            overrun: None,
            side_rings: [open(CopyWriter::FanOut)?, open(CopyWriter::Repairs)?],
            buffer: vec![0; config.geometry.slot_len() / size_of::<u64>()],
            stats: [ReceiveStats {
                joins: 1,
                ..ReceiveStats::default()
            }],
            ring,
        })
    }

    /// Handles a next sequence that the ring no longer holds: continues at a sequence that it holds long
    /// enough to be copied.
    #[cold]
    fn fall_behind(&mut self) {
        let sent = self.ring.sent(self.fan_out);
        let resumed = self.ring.floor().min(sent.next()).max(self.next.next());
        let lost = SequenceRange::new(self.next, resumed.previous());
        self.stats[0].buffer_drops += lost.map_or(0, SequenceRange::len);
        self.next = resumed;
        self.overrun = lost;
    }

    fn check(line: LineId) -> Result<(), ReceiveError> {
        if line == LineId(0) {
            return Ok(());
        }
        Err(ReceiveError::NoSuchLine { line, lines: 1 })
    }
}

impl Receive for ShmReceiver {
    fn poll(
        &mut self,
        now: Nanos,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        if !self.joined {
            return Ok(0);
        }
        let mut deliver = |bytes: &[u8], whole| {
            on(Received {
                line: LineId(0),
                from: Self::SENDER,
                bytes,
                received_at: now,
                whole,
            });
        };
        // Read first, so that all slots sent before a heartbeat are visible when the heartbeat is read.
        let last = [self.side_rings[0].last(), self.side_rings[1].last()];
        let sent = self.ring.sent(self.fan_out);
        let (mut polled, mut count, mut bytes) = (0, 0, 0);
        while self.next <= sent && polled < BATCH {
            polled += 1;
            match self.ring.copy(self.next, &mut self.buffer) {
                Ok(len) => {
                    deliver(&words_as_bytes(&self.buffer)[..len], true);
                    self.next = self.next.next();
                    count += 1;
                    bytes += len;
                }
                Err(CopyError::Lapped { .. }) => {
                    self.fall_behind();
                    break;
                }
                // The memory is damaged: the sequence is requested from the publisher, like any gap.
                Err(CopyError::Damaged { .. }) => {
                    self.stats[0].oversize += 1;
                    self.next = self.next.next();
                }
                // Also the case if a sequence counts as sent that was never sealed.
                Err(_) => break,
            }
        }
        if self.next > sent && self.overrun.is_none() {
            for (side_ring, last) in self.side_rings.iter_mut().zip(last) {
                count += side_ring.read(last, &mut self.buffer, |copy| {
                    bytes += copy.len();
                    deliver(copy, false);
                });
            }
        }
        let stats = &mut self.stats[0];
        stats.datagrams += count as u64;
        stats.bytes += bytes as u64;
        stats.batches += u64::from(count > 0);
        Ok(count)
    }

    fn join(&mut self, line: LineId) -> Result<(), ReceiveError> {
        Self::check(line)?;
        if !self.joined {
            // As on a network, datagrams sent before the join are lost.
            self.next = self.next.max(self.ring.sent(self.fan_out).next());
            self.side_rings.iter_mut().for_each(SideRingReader::skip);
            self.joined = true;
        }
        self.stats[0].joins += 1;
        Ok(())
    }

    fn leave(&mut self, line: LineId) -> Result<(), ReceiveError> {
        Self::check(line)?;
        self.joined = false;
        Ok(())
    }

    fn rejoin(&mut self, line: LineId) -> Result<(), ReceiveError> {
        // There is no membership to lose, and leaving would lose datagrams.
        self.join(line)
    }

    fn raw_fds(&self) -> &[RawFd] {
        &[]
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn take_overrun(&mut self) -> Option<(Epoch, SequenceRange)> {
        let range = self.overrun.take()?;
        Some((self.ring.identity().epoch, range))
    }

    fn stats(&self) -> &[ReceiveStats] {
        &self.stats
    }
}
