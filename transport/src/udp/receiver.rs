//! The UDP receivers: a channel's, on one line or two, and a feed's live input.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use serde::{Deserialize, Serialize};
use socket2::Socket;
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::Nanos;

use super::busy_poll;
use super::gso::receive_runs;
use super::recvmmsg::{Aside, ReceiveBatch};
use super::socket::{
    BufferGrant, Direction, UdpError, UdpWarning, check_group, check_range, describe,
    open_receiver, set_buffer,
};
use super::{BATCH_MAX, UDP_LEN_MAX, yes};
use tickcast_transport_base::host::interface::Interface;
use tickcast_transport_base::host::membership::Membership;
use tickcast_transport_base::{Receive, ReceiveError, ReceiveStats, Received};

/// One line to receive on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpReceiveLine {
    /// Multicast group and port.
    pub group: SocketAddrV4,
    /// Interface to receive on.
    #[serde(default)]
    pub interface: Interface,
    /// The allowed source addresses. Empty means any.
    #[serde(default)]
    pub senders: Vec<Ipv4Addr>,
}

/// Settings for receiving a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpReceiverConfig {
    /// The lines: A, then B if there is one.
    pub lines: Vec<UdpReceiveLine>,
    /// Length of the longest datagram, in bytes: the slot size. Longer datagrams are dropped and counted.
    pub datagram_len_max: usize,
    /// Receive buffer to request per line, in bytes. Without it, the system's default applies.
    #[serde(default)]
    pub receive_buffer_bytes: Option<usize>,
    /// Whether to join only the known senders' trees. The network then blocks other senders, and they can't
    /// be counted. Without it, their datagrams arrive, are dropped here and counted.
    #[serde(default = "yes")]
    pub source_specific: bool,
    /// Largest number of datagrams per poll and line. A run at the end may exceed it.
    #[serde(default = "batch_default")]
    pub batch: usize,
    /// Time for which a poll asks the device for packets (busy polling), in microseconds; 0: never. Needs
    /// privilege. Without it, the system's default applies.
    #[serde(default)]
    pub busy_poll_us: Option<u32>,
    /// Whether the kernel delivers runs of datagrams as one buffer, if it can (GRO). The receive buffers of
    /// a line then take 2 MiB.
    #[serde(default = "yes")]
    pub gro: bool,
}

/// Settings for the live input of a feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedReceiverConfig {
    /// The address to listen on: a multicast group, or one of this host's addresses (0.0.0.0: all), and the
    /// port. With port 0 the system chooses one (unicast only).
    pub listen: SocketAddrV4,
    /// Interface to join the group on.
    #[serde(default)]
    pub interface: Interface,
    /// The source address, if known.
    #[serde(default)]
    pub source: Option<Ipv4Addr>,
    /// Length of the longest datagram, in bytes. Longer datagrams are dropped and counted.
    #[serde(default = "feed_datagram_default")]
    pub datagram_len_max: usize,
    /// Receive buffer to request, in bytes. Without it, the system's default applies.
    #[serde(default)]
    pub receive_buffer_bytes: Option<usize>,
    /// Largest number of datagrams per poll.
    #[serde(default = "batch_default")]
    pub batch: usize,
    /// Time for which a poll asks the device for packets (busy polling), in microseconds; 0: never. Needs
    /// privilege. Without it, the system's default applies.
    #[serde(default)]
    pub busy_poll_us: Option<u32>,
}

const fn batch_default() -> usize {
    BATCH_MAX
}

const fn feed_datagram_default() -> usize {
    9_000
}

/// Receives a channel by UDP multicast.
pub struct UdpReceiver {
    lines: Vec<Line>,
    stats: Vec<ReceiveStats>,
    fds: Vec<RawFd>,
    grants: Vec<BufferGrant>,
    warnings: Vec<UdpWarning>,
}

impl UdpReceiver {
    /// Opens a socket per line and joins the groups.
    ///
    /// # Errors
    /// [`UdpError`] names the line and the remedy.
    pub fn open(config: &UdpReceiverConfig) -> Result<Self, UdpError> {
        if !(1..=LineId::MAX).contains(&config.lines.len()) {
            return Err(UdpError::Lines {
                lines: config.lines.len(),
            });
        }
        let mut all = Self {
            lines: Vec::new(),
            stats: Vec::new(),
            fds: Vec::new(),
            grants: Vec::new(),
            warnings: Vec::new(),
        };
        for line in &config.lines {
            check_group(line.group)?;
            let (line, grant) = Line::open(
                &Opening {
                    address: line.group,
                    interface: &line.interface,
                    senders: &line.senders,
                    source_specific: config.source_specific,
                    datagram_len_max: config.datagram_len_max,
                    receive_buffer_bytes: config.receive_buffer_bytes,
                    batch: config.batch,
                    busy_poll_us: config.busy_poll_us,
                    gro: config.gro,
                },
                &mut all.warnings,
            )?;
            all.fds.push(line.socket.as_raw_fd());
            all.stats.push(ReceiveStats {
                joins: 1,
                gro: line.gro,
                ..ReceiveStats::default()
            });
            all.lines.push(line);
            all.grants.push(grant);
        }
        Ok(all)
    }

    /// Returns the deviations from the configuration.
    #[must_use]
    pub fn warnings(&self) -> &[UdpWarning] {
        &self.warnings
    }

    /// Returns the receive buffers, one per line.
    #[must_use]
    pub fn buffers(&self) -> &[BufferGrant] {
        &self.grants
    }

    /// Returns group and interface of each line, for messages.
    pub fn targets(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(|line| line.target.as_str())
    }

    fn line(&self, line: LineId) -> Result<&Line, ReceiveError> {
        let lines = self.lines.len();
        let found = self.lines.get(usize::from(line.0));
        found.ok_or(ReceiveError::NoSuchLine { line, lines })
    }
}

impl Receive for UdpReceiver {
    fn poll(
        &mut self,
        now: Nanos,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        let mut received = 0;
        for (i, (line, stats)) in self.lines.iter_mut().zip(&mut self.stats).enumerate() {
            let id = LineId(i as u8);
            received += line.poll(id, stats, &mut |datagram| {
                on(Received {
                    line: id,
                    from: datagram.from,
                    bytes: datagram.bytes,
                    received_at: now,
                    whole: false,
                });
            })?;
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
        self.lines.iter().map(|line| line.socket.as_fd()).collect()
    }

    fn raw_fds(&self) -> &[RawFd] {
        &self.fds
    }

    fn stats(&self) -> &[ReceiveStats] {
        &self.stats
    }
}

/// One datagram of a feed, lent for the length of a call.
#[derive(Clone, Copy, Debug)]
pub struct FeedDatagram<'a> {
    /// Address of the sender.
    pub from: Ipv4Addr,
    /// Bytes of the datagram.
    pub bytes: &'a [u8],
    /// Datagrams that the kernel had dropped since the socket was opened, because no buffer was free.
    pub dropped: u64,
}

/// Receives an exchange feed by UDP, multicast or unicast.
pub struct FeedReceiver {
    line: Line,
    stats: ReceiveStats,
    grant: BufferGrant,
    warnings: Vec<UdpWarning>,
}

impl FeedReceiver {
    /// Opens the socket, and joins the group if the address is one.
    ///
    /// # Errors
    /// [`UdpError`] names the remedy.
    pub fn open(config: &FeedReceiverConfig) -> Result<Self, UdpError> {
        if config.listen.ip().is_multicast() {
            check_group(config.listen)?;
        }
        let senders: Vec<Ipv4Addr> = config.source.into_iter().collect();
        let mut warnings = Vec::new();
        let (line, grant) = Line::open(
            &Opening {
                address: config.listen,
                interface: &config.interface,
                senders: &senders,
                source_specific: true,
                datagram_len_max: config.datagram_len_max,
                receive_buffer_bytes: config.receive_buffer_bytes,
                batch: config.batch,
                busy_poll_us: config.busy_poll_us,
                gro: false,
            },
            &mut warnings,
        )?;
        Ok(Self {
            line,
            stats: ReceiveStats {
                joins: 1,
                ..ReceiveStats::default()
            },
            grant,
            warnings,
        })
    }

    /// Passes the arrived datagrams to `on`, at most a batch, and never blocks. Returns their number.
    ///
    /// # Errors
    /// [`ReceiveError`] if the socket is not usable any more.
    pub fn poll(&mut self, on: &mut dyn FnMut(FeedDatagram<'_>)) -> Result<usize, ReceiveError> {
        self.line.poll(LineId(0), &mut self.stats, on)
    }

    /// Returns the address it listens on, with the port that the system chose.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddrV4> {
        self.line.socket.local_addr().ok()?.as_socket_ipv4()
    }

    /// Returns the counters since opening.
    #[must_use]
    pub const fn stats(&self) -> &ReceiveStats {
        &self.stats
    }

    /// Returns the receive buffer.
    #[must_use]
    pub const fn buffer(&self) -> BufferGrant {
        self.grant
    }

    /// Returns the deviations from the configuration.
    #[must_use]
    pub fn warnings(&self) -> &[UdpWarning] {
        &self.warnings
    }
}

impl AsRawFd for FeedReceiver {
    fn as_raw_fd(&self) -> RawFd {
        self.line.socket.as_raw_fd()
    }
}

struct Opening<'a> {
    address: SocketAddrV4,
    interface: &'a Interface,
    senders: &'a [Ipv4Addr],
    source_specific: bool,
    datagram_len_max: usize,
    receive_buffer_bytes: Option<usize>,
    batch: usize,
    busy_poll_us: Option<u32>,
    gro: bool,
}

/// One socket with its membership and buffers.
struct Line {
    socket: Socket,
    /// Address and interface, for messages.
    target: String,
    /// `None` if the address is unicast.
    membership: Option<Membership>,
    senders: Vec<Ipv4Addr>,
    batch: ReceiveBatch,
    /// Whether the kernel delivers runs.
    gro: bool,
    datagram_len_max: usize,
    /// Space for datagrams of a run that are not aligned.
    aside: Aside,
    /// The kernel's last drop count, modulo 2^32.
    drops: u32,
}

impl Line {
    fn open(
        opening: &Opening<'_>,
        warnings: &mut Vec<UdpWarning>,
    ) -> Result<(Self, BufferGrant), UdpError> {
        check_range("datagram_len_max", opening.datagram_len_max, 1, UDP_LEN_MAX)?;
        check_range("batch", opening.batch, 1, BATCH_MAX)?;
        let interface = opening.interface.resolve()?;
        let target = describe(opening.address, &interface);
        let io = |what: &'static str| {
            let target = target.clone();
            move |source| UdpError::Io {
                what,
                target,
                source,
            }
        };
        let socket = open_receiver(opening.address, &interface)?;
        let asked = opening.receive_buffer_bytes;
        let (grant, warning) = set_buffer(&socket, Direction::Receive, asked, &target)
            .map_err(io("set the receive buffer"))?;
        warnings.extend(warning);
        if let Some(us) = opening.busy_poll_us {
            warnings.extend(busy_poll::request(&socket, us, &target));
        }
        let mut gro = false;
        if opening.gro {
            let (found, warning) = receive_runs(&socket, &target);
            warnings.extend(warning);
            gro = found;
        }
        let membership = opening.address.ip().is_multicast().then(|| Membership {
            group: *opening.address.ip(),
            interface,
            senders: if opening.source_specific {
                opening.senders.to_vec()
            } else {
                Vec::new()
            },
        });
        let line = Self {
            socket,
            target: target.clone(),
            membership,
            senders: opening.senders.to_vec(),
            batch: ReceiveBatch::new(opening.batch, opening.datagram_len_max, gro),
            gro,
            datagram_len_max: opening.datagram_len_max,
            aside: Aside::new(if gro { opening.datagram_len_max } else { 0 }),
            drops: 0,
        };
        line.join().map_err(io("join the group"))?;
        Ok((line, grant))
    }

    fn join(&self) -> std::io::Result<()> {
        self.membership
            .as_ref()
            .map_or(Ok(()), |m| m.join(&self.socket))
    }

    fn leave(&self) -> std::io::Result<()> {
        self.membership
            .as_ref()
            .map_or(Ok(()), |m| m.leave(&self.socket))
    }

    /// Passes arrived datagrams to the caller, at most a batch, and returns their number. Continues if all
    /// datagrams of a call were dropped, because those behind them have arrived too.
    fn poll(
        &mut self,
        id: LineId,
        stats: &mut ReceiveStats,
        on: &mut dyn FnMut(FeedDatagram<'_>),
    ) -> Result<usize, ReceiveError> {
        let mut left = self.batch.batch();
        loop {
            let lot = self.receive(id, stats, on)?;
            left = left.saturating_sub(lot.brought);
            if lot.passed > 0 || !lot.may_be_more || left == 0 {
                return Ok(lot.passed);
            }
        }
    }

    /// Makes one system call.
    fn receive(
        &mut self,
        id: LineId,
        stats: &mut ReceiveStats,
        on: &mut dyn FnMut(FeedDatagram<'_>),
    ) -> Result<Lot, ReceiveError> {
        let count = match self.batch.receive(self.socket.as_raw_fd()) {
            Ok(count) => count,
            Err(source) => {
                self.batch.brought(0, 0);
                return quiet_or_error(id, stats, source);
            }
        };
        stats.batches += 1;
        let (mut brought, mut passed) = (0, 0);
        for i in 0..count {
            let buffer = self.batch.buffer(i);
            let len = buffer.len();
            brought += len;
            if let Some(drops) = buffer.drops {
                stats.buffer_drops += u64::from(drops.wrapping_sub(self.drops));
                self.drops = drops;
            }
            if len > 1 {
                stats.runs += 1;
                stats.run_datagrams += len as u64;
            }
            if buffer.truncated {
                stats.oversize += 1;
                continue;
            }
            if !self.senders.is_empty() && !self.senders.contains(&buffer.from) {
                stats.unknown_senders += len as u64;
                continue;
            }
            for bytes in buffer.datagrams() {
                if bytes.len() > self.datagram_len_max {
                    stats.oversize += 1;
                    continue;
                }
                stats.datagrams += 1;
                stats.bytes += bytes.len() as u64;
                passed += 1;
                on(FeedDatagram {
                    from: buffer.from,
                    bytes: self.aside.aligned(bytes),
                    dropped: stats.buffer_drops,
                });
            }
        }
        Ok(Lot {
            brought,
            passed,
            may_be_more: self.batch.brought(count, brought),
        })
    }
}

/// The outcome of one system call.
#[derive(Default)]
struct Lot {
    /// Datagrams that arrived.
    brought: usize,
    /// Datagrams of these that were passed to the caller.
    passed: usize,
    /// Whether the call filled all requested buffers, so that more may be there.
    may_be_more: bool,
}

fn quiet_or_error(
    line: LineId,
    stats: &mut ReceiveStats,
    source: std::io::Error,
) -> Result<Lot, ReceiveError> {
    match source.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(Lot::default()),
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL) | None => {
            Err(ReceiveError::Io { line, source })
        }
        Some(errno) => {
            stats.transient_errors += 1;
            stats.last_errno = errno;
            Ok(Lot::default())
        }
    }
}
