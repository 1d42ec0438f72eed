//! The receiver: a channel's datagrams on one line or two, straight from the driver's frames.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use socket2::{Domain, Protocol, Socket, Type};
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Nanos;

use crate::config::{XdpReceiveLine, XdpReceiverConfig};
use crate::error::{XdpError, XdpWarning};
use crate::frame;
use crate::steering::XdpMode;
use crate::tap::{Lease, Tap};
use tickcast_transport_base::host::membership::Membership;
use tickcast_transport_base::{Receive, ReceiveError, ReceiveStats, Received};

/// Time between two questions for the kernel's counts, which each cost a system call. A ring that was full
/// asks at once.
const COUNTS_INTERVAL: Nanos = Nanos::from_us(100_000);

/// How a line receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpGrant {
    /// Group and interface.
    pub target: String,
    /// The part of the kernel that runs the program.
    pub mode: XdpMode,
    /// Whether the driver writes directly into the frames.
    pub zero_copy: bool,
    /// Receive queues of the interface.
    pub queues: usize,
    /// Datagrams that may wait, per queue.
    pub frames: u32,
}

/// Where the frames of one receive queue are. The kernel holds the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpFrames {
    /// All frames of the queue.
    pub total: u32,
    /// Places of the frames that wait for the kernel.
    pub free: Vec<u64>,
    /// Frames that wait for this line.
    pub waiting: u32,
    /// Frames that this line has taken and not given back.
    pub taken: usize,
}

/// Receives a channel's UDP multicast by AF_XDP.
pub struct XdpReceiver {
    lines: Vec<Line>,
    stats: Vec<ReceiveStats>,
    fds: Vec<RawFd>,
    warnings: Vec<XdpWarning>,
}

impl XdpReceiver {
    /// Taps the interface of each line, and joins the groups.
    ///
    /// # Errors
    /// [`XdpError`] names the interface and the remedy.
    pub fn open(config: &XdpReceiverConfig) -> Result<Self, XdpError> {
        config.check()?;
        let mut all = Self {
            lines: Vec::new(),
            stats: Vec::new(),
            fds: Vec::new(),
            warnings: Vec::new(),
        };
        for of in &config.lines {
            let line = Line::open(of, config, &mut all.warnings)?;
            let sockets = line.lease.ports().iter().map(|port| port.socket());
            all.fds.extend(sockets.map(AsRawFd::as_raw_fd));
            all.stats.push(ReceiveStats {
                joins: 1,
                ..ReceiveStats::default()
            });
            all.lines.push(line);
        }
        Ok(all)
    }

    /// Returns the deviations from the configuration.
    #[must_use]
    pub fn warnings(&self) -> &[XdpWarning] {
        &self.warnings
    }

    /// Returns how each line receives.
    pub fn grants(&self) -> impl Iterator<Item = XdpGrant> {
        self.lines.iter().map(Line::grant)
    }

    /// Returns group and interface of each line, for messages.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(|line| line.target.as_str())
    }

    /// Returns where the frames of a line's interface are, per receive queue. It allocates, and is exact
    /// while nothing arrives.
    #[must_use]
    pub fn frames(&self, line: LineId) -> Vec<XdpFrames> {
        let line = self.lines.get(usize::from(line.0));
        line.map_or_else(Vec::new, Line::frames)
    }

    fn line(&self, line: LineId) -> Result<&Line, ReceiveError> {
        let lines = self.lines.len();
        let found = self.lines.get(usize::from(line.0));
        found.ok_or(ReceiveError::NoSuchLine { line, lines })
    }
}

impl Receive for XdpReceiver {
    fn poll(
        &mut self,
        now: Nanos,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        let mut received = 0;
        for (i, (line, stats)) in self.lines.iter_mut().zip(&mut self.stats).enumerate() {
            received += line.poll(LineId(i as u8), now, stats, on)?;
        }
        Ok(received)
    }

    fn join(&mut self, line: LineId) -> Result<(), ReceiveError> {
        let it = self.line(line)?;
        it.join()
            .map_err(|source| ReceiveError::Membership { line, source })?;
        self.stats[usize::from(line.0)].joins += 1;
        Ok(())
    }

    fn leave(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.line(line)?
            .leave()
            .map_err(|source| ReceiveError::Membership { line, source })
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let ports = self.lines.iter().flat_map(|line| line.lease.ports());
        ports.map(|port| port.socket().as_fd()).collect()
    }

    fn raw_fds(&self) -> &[RawFd] {
        &self.fds
    }

    fn stats(&self) -> &[ReceiveStats] {
        &self.stats
    }
}

/// One group at one interface.
struct Line {
    lease: Lease,
    /// Holds the membership. Nothing is read from it.
    socket: Socket,
    membership: Membership,
    group: SocketAddrV4,
    /// Group and interface, for messages.
    target: String,
    senders: Vec<Ipv4Addr>,
    datagram_len_max: usize,
    batch: usize,
    /// The receive queue that the next poll begins with, so that a busy one does not starve the others.
    first_queue: usize,
    /// When the kernel's counts were read.
    counted_at: Nanos,
    aside: Aside,
}

impl Line {
    fn open(
        of: &XdpReceiveLine,
        config: &XdpReceiverConfig,
        warnings: &mut Vec<XdpWarning>,
    ) -> Result<Self, XdpError> {
        let interface = of.interface.resolve()?;
        let target = format!("{} on {} ({})", of.group, interface.name, interface.address);
        let tap = Tap::of(&interface, config.datagram_len_max, config.memory_bytes)?;
        let asked = config.frames(tap.frame_len());
        let lease = Lease::open(tap, of.group, asked)?;
        let tap = lease.tap();
        let new = tap.warning().filter(|it| !warnings.contains(it));
        warnings.extend(new);
        if lease.frames() < asked {
            warnings.push(XdpWarning::Frames {
                target: target.clone(),
                asked,
                granted: lease.frames(),
                total: tap.frames(),
            });
        }
        let io = |what| {
            let name = interface.name.clone();
            move |source| XdpError::of(&name, what, source)
        };
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))
            .map_err(io("open a socket for the membership"))?;
        let joined_for = if config.source_specific {
            of.senders.clone()
        } else {
            Vec::new()
        };
        let line = Self {
            socket,
            membership: Membership {
                group: *of.group.ip(),
                interface: interface.clone(),
                senders: joined_for,
            },
            group: of.group,
            target,
            senders: of.senders.clone(),
            datagram_len_max: config.datagram_len_max,
            batch: config.batch,
            first_queue: 0,
            counted_at: Nanos(0),
            aside: Aside::new(config.datagram_len_max),
            lease,
        };
        line.join().map_err(io("join the group"))?;
        Ok(line)
    }

    /// Steers before joining, so that no datagram of the group passes by.
    fn join(&self) -> std::io::Result<()> {
        self.lease.steer()?;
        self.membership.join(&self.socket)
    }

    fn leave(&self) -> std::io::Result<()> {
        self.lease.unsteer()?;
        self.membership.leave(&self.socket)
    }

    /// Passes arrived datagrams to the caller, at most a batch, and returns their number.
    fn poll(
        &mut self,
        id: LineId,
        now: Nanos,
        stats: &mut ReceiveStats,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        let before = stats.datagrams;
        let (ports, queues) = self.lease.ports_mut();
        let (mut arrived, mut was_full) = (0, false);
        for n in 0..ports.len() {
            let at = (self.first_queue + n) % ports.len();
            let taken = ports[at].take(&queues[at], self.batch - arrived, |bytes| {
                let Some(datagram) = frame::parse(bytes, self.group) else {
                    stats.malformed += 1;
                    return;
                };
                if !self.senders.is_empty() && !self.senders.contains(&datagram.from) {
                    stats.unknown_senders += 1;
                    return;
                }
                if datagram.bytes.len() > self.datagram_len_max {
                    stats.oversize += 1;
                    return;
                }
                stats.datagrams += 1;
                stats.bytes += datagram.bytes.len() as u64;
                on(Received {
                    line: id,
                    from: datagram.from,
                    bytes: self.aside.aligned(datagram.bytes),
                    received_at: now,
                    whole: false,
                });
            });
            arrived += taken.frames;
            was_full |= taken.was_full;
            stats.malformed += taken.invalid as u64;
            if arrived == self.batch {
                break;
            }
        }
        if ports.len() > 1 {
            self.first_queue = (self.first_queue + 1) % ports.len();
        }
        stats.batches += u64::from(arrived > 0);
        if was_full || now.0.saturating_sub(self.counted_at.0) >= COUNTS_INTERVAL.0 {
            self.counted_at = now;
            self.count(id, stats)?;
        }
        Ok((stats.datagrams - before) as usize)
    }

    /// Adds the kernel's counts of drops, and checks that the sockets live.
    #[cold]
    fn count(&mut self, line: LineId, stats: &mut ReceiveStats) -> Result<(), ReceiveError> {
        let (ports, _) = self.lease.ports_mut();
        for port in ports {
            let counted = port.take_drops().and_then(|new| {
                stats.buffer_drops += new;
                port.check()
            });
            counted.map_err(|source| ReceiveError::Io { line, source })?;
        }
        Ok(())
    }

    fn grant(&self) -> XdpGrant {
        let tap = self.lease.tap();
        XdpGrant {
            target: self.target.clone(),
            mode: tap.mode(),
            zero_copy: tap.is_zero_copy(),
            queues: tap.queues().len(),
            frames: self.lease.frames(),
        }
    }

    fn frames(&self) -> Vec<XdpFrames> {
        let ports = self.lease.ports().iter();
        let of_queue = ports.zip(self.lease.tap().queues()).map(|(port, queue)| {
            let (waiting, taken) = port.holds();
            XdpFrames {
                total: queue.frames(),
                free: queue.filled(),
                waiting,
                taken,
            }
        });
        of_queue.collect()
    }
}

/// Space for a datagram that a driver wrote to an unaligned place.
struct Aside(Vec<u64>);

impl Aside {
    fn new(len_max: usize) -> Self {
        Self(vec![0; len_max.div_ceil(8)])
    }

    /// Returns the same bytes, aligned to 8. Both modes of the kernel write to aligned places.
    #[inline]
    fn aligned<'a>(&'a mut self, bytes: &'a [u8]) -> &'a [u8] {
        if bytes.as_ptr().addr().is_multiple_of(8) {
            return bytes;
        }
        for (to, from) in self.0.iter_mut().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..from.len()].copy_from_slice(from);
            *to = u64::from_ne_bytes(word);
        }
        // SAFETY: the words hold at least `bytes.len()` bytes, because callers pass at most `len_max`, and
        // every byte of a number is initialised. Exercised by
        // `tests::unaligned_datagram_is_copied_to_an_aligned_place`.
        let copied =
            unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>(), self.0.len() * 8) };
        &copied[..bytes.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_datagram_is_copied_to_an_aligned_place() {
        let words: Vec<u64> = (0..4).map(|n| 0x0101_0101_0101_0101 * n).collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut aside = Aside::new(23);
        for len in 0..=23 {
            for at in 0..=bytes.len() - len {
                let found = aside.aligned(&bytes[at..at + len]);
                assert_eq!(found, &bytes[at..at + len]);
                assert!(found.as_ptr().addr().is_multiple_of(8));
            }
        }
    }
}
