//! The floor: a contender that only packs ticks into datagrams and reads them out. It has no order, no
//! repair and no checksum of its own, so it measures the kernel.
//!
//! A datagram is a header of 16 bytes (number of ticks) and as many whole ticks as the MTU allows.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4};

use socket2::{Domain, Protocol, Socket, Type};
use tickcast_transport::host::gauges::SharedGauges;
use tickcast_transport::udp::{UDP_LEN_MAX, raw};

use super::{SOCKET_BYTES, gauges};
use crate::bench::protocol::{Outcome, TICK_LEN, Task, Tick};
use crate::bench::side::{Carry, Take};

const HEADER_LEN: usize = 16;
/// IP and UDP headers.
const BEFORE: usize = 28;
/// Datagrams of a run, limited by the kernel: its maximum of bytes and UDP_MAX_SEGMENTS.
const RUN_MAX: usize = 64;

/// Writes ticks into datagrams.
pub(super) struct Sender {
    socket: Socket,
    gauges: SharedGauges,
    /// Buffer of the run that is being filled.
    bytes: Vec<u8>,
    len: usize,
    /// Bytes of a full datagram.
    datagram_len: usize,
    /// Bytes of one send.
    run_len: usize,
    /// Where the open datagram begins.
    begin: usize,
}

impl Sender {
    pub(super) fn open(task: &Task, group: usize) -> Outcome<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_multicast_if_v4(&task.interface)?;
        socket.set_multicast_ttl_v4(u32::from(!task.interface.is_loopback()))?;
        socket.set_multicast_loop_v4(true)?;
        socket.set_send_buffer_size(SOCKET_BYTES)?;
        socket.connect(&task.groups[group].into())?;
        let ticks = (task.mtu - BEFORE - HEADER_LEN) / TICK_LEN;
        let datagram_len = HEADER_LEN + ticks * TICK_LEN;
        let runs = task.contender == "floor";
        let datagrams = if runs {
            raw::send_runs_of(&socket, datagram_len as u16)?;
            (UDP_LEN_MAX / datagram_len).min(RUN_MAX)
        } else {
            1
        };
        let run_len = datagrams * datagram_len;
        Ok(Self {
            socket,
            gauges: gauges(task)?,
            bytes: vec![0; run_len],
            len: 0,
            datagram_len,
            run_len,
            begin: 0,
        })
    }

    /// Writes the number of ticks into the open datagram. The next datagram begins behind it.
    fn close_datagram(&mut self) {
        let ticks = (self.len - self.begin) / TICK_LEN;
        self.bytes[self.begin..self.begin + 8].copy_from_slice(&(ticks as u64).to_le_bytes());
        self.begin = self.len;
    }

    fn flush(&mut self) -> Outcome<()> {
        if self.len > self.begin {
            self.close_datagram();
        }
        if self.len > 0 {
            self.socket.send(&self.bytes[..self.len])?;
            (self.len, self.begin) = (0, 0);
        }
        Ok(())
    }
}

impl Carry for Sender {
    fn address(&self) -> String {
        String::new()
    }

    fn is_joined(&mut self) -> bool {
        true
    }

    #[inline]
    fn publish(&mut self, tick: Tick) -> Outcome<bool> {
        if self.len == self.begin {
            if self.len == self.run_len {
                self.flush()?;
            }
            self.len += HEADER_LEN;
        }
        tick.write(&mut self.bytes[self.len..]);
        self.len += TICK_LEN;
        if self.len - self.begin == self.datagram_len {
            self.close_datagram();
        }
        Ok(true)
    }

    fn drive(&mut self) -> Outcome<()> {
        self.flush()
    }

    fn received(&self) -> Option<u64> {
        Some(self.gauges.lowest())
    }
}

/// Reads ticks out of datagrams.
pub(super) struct Receiver {
    socket: std::net::UdpSocket,
    bytes: Vec<u8>,
    gauges: SharedGauges,
    index: usize,
}

impl Receiver {
    pub(super) fn open(task: &Task, group: usize) -> Outcome<Self> {
        let group = task.groups[group];
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.set_recv_buffer_size(SOCKET_BYTES)?;
        socket.set_nonblocking(true)?;
        if task.contender == "floor" {
            raw::receive_runs(&socket)?;
        }
        socket.bind(&SocketAddrV4::new(*group.ip(), group.port()).into())?;
        let interface: &Ipv4Addr = &task.interface;
        socket.join_multicast_v4(group.ip(), interface)?;
        Ok(Self {
            socket: socket.into(),
            bytes: vec![0; 1 << 16],
            gauges: gauges(task)?,
            index: task.index,
        })
    }
}

impl Take for Receiver {
    fn is_joined(&mut self) -> bool {
        true
    }

    #[inline]
    fn poll(&mut self, mut on: impl FnMut(Option<Tick>, bool)) -> Outcome<bool> {
        let len = match self.socket.recv(&mut self.bytes) {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // A run is several datagrams back to back.
        let mut rest = &self.bytes[..len];
        while let Some((header, behind)) = rest.split_at_checked(HEADER_LEN) {
            let ticks = header[..8].try_into().map_or(0, u64::from_le_bytes) as usize;
            let Some((ticks, behind)) = behind.split_at_checked(ticks * TICK_LEN) else {
                on(None, false);
                break;
            };
            for tick in ticks.chunks_exact(TICK_LEN) {
                on(Tick::read(tick), false);
            }
            rest = behind;
        }
        Ok(true)
    }

    fn received(&mut self, number: u64) {
        self.gauges.set(self.index, number);
    }
}
