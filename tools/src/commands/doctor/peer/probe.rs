//! Test datagrams: their form, and one end that sends and counts them.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use tickcast_subscriber::Interface;
use tickcast_tools::exit::ToolError;
use tickcast_tools::support::send::Sender;
use tickcast_transport::Receive;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::host::interface::ResolvedInterface;
use tickcast_transport::udp::{UdpReceiveLine, UdpReceiver, UdpReceiverConfig};

use super::super::host::Tree;
use super::counters::Counters;

/// Lengths of the datagrams: a small one, the longest of a standard frame, and the longest of a jumbo frame.
pub(super) const LENGTHS: [usize; 3] = [64, 1_472, 8_972];
/// Datagrams of each length and direction: few enough for the smallest usual socket buffer.
pub(super) const COUNT: u64 = 10;
/// Interval between datagrams, so that a burst is no reason for loss.
const INTERVAL: Duration = Duration::from_millis(1);
/// Time for datagrams to arrive after the last was sent.
const SETTLE: Duration = Duration::from_millis(500);
const POLL_EVERY: Duration = Duration::from_millis(1);
const MAGIC: [u8; 8] = *b"tickdoct";
const DATAGRAM_LEN_MAX: usize = 9_000;
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// The side of a host in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Asking,
    Answering,
}

impl Side {
    /// Returns the mark of the datagrams that this side sends.
    const fn mark(self) -> u8 {
        match self {
            Self::Asking => 1,
            Self::Answering => 2,
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Asking => Self::Answering,
            Self::Answering => Self::Asking,
        }
    }
}

/// Returns a datagram of a run. `len` is at least 21.
fn datagram(run: u64, side: Side, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    bytes.extend(MAGIC);
    bytes.extend(run.to_le_bytes());
    bytes.push(side.mark());
    bytes.extend(number.to_le_bytes());
    bytes.resize(len, 0);
    bytes
}

/// Returns the number of a datagram of this run, side and length.
fn number(bytes: &[u8], run: u64, side: Side, len: usize) -> Option<u32> {
    let number = bytes.get(17..21)?.first_chunk()?;
    let number = u32::from_le_bytes(*number);
    (bytes == datagram(run, side, number, len)).then_some(number)
}

/// One end of a run: a sender to the group, and a receiver of it.
pub(super) struct End {
    sender: Sender,
    receiver: UdpReceiver,
    interface: ResolvedInterface,
    tree: Tree,
    run: u64,
    side: Side,
}

impl End {
    /// Joins the group on an interface, and opens a sender to it.
    ///
    /// # Errors
    /// Returns [`ToolError`] if the group or interface can't be used.
    pub(super) fn open(
        group: SocketAddrV4,
        interface: &Interface,
        ttl: u8,
        run: u64,
        side: Side,
    ) -> Result<Self, ToolError> {
        let resolved = interface.resolve();
        let resolved = resolved.map_err(|error| ToolError::Usage(error.to_string()))?;
        let receiver = UdpReceiver::open(&UdpReceiverConfig {
            lines: vec![UdpReceiveLine {
                group,
                interface: interface.clone(),
                senders: Vec::new(),
            }],
            datagram_len_max: DATAGRAM_LEN_MAX,
            receive_buffer_bytes: Some(RECEIVE_BUFFER_BYTES),
            source_specific: false,
            batch: 32,
            busy_poll_us: None,
            gro: false,
        })?;
        Ok(Self {
            sender: Sender::to_group(group, interface, ttl)?,
            receiver,
            interface: resolved,
            tree: Tree::of_this_host(),
            run,
            side,
        })
    }

    /// Returns the interface.
    pub(super) const fn interface(&self) -> &ResolvedInterface {
        &self.interface
    }

    /// Reads the counters.
    pub(super) fn counters(&self) -> Counters {
        Counters::read(&self.tree, &self.interface.name)
    }

    /// Sends datagrams of one length. Returns the number that the kernel took, and the changes of the
    /// counters.
    ///
    /// # Errors
    /// Returns [`ToolError`] if sending can't go on.
    pub(super) fn send(&mut self, len: usize) -> Result<(u64, Counters), ToolError> {
        let (before, refused) = (self.counters(), self.sender.refused());
        for number in 0..COUNT as u32 {
            let bytes = datagram(self.run, self.side, number, len);
            self.sender.send(&bytes)?;
            std::thread::sleep(INTERVAL);
        }
        let refused = self.sender.refused() - refused;
        let sent = COUNT.saturating_sub(refused);
        Ok((sent, self.counters().since(&before)))
    }

    /// Drops the datagrams that have arrived so far.
    ///
    /// # Errors
    /// Returns [`ToolError`] if receiving can't go on.
    pub(super) fn forget(&mut self) -> Result<(), ToolError> {
        // A flood of others must not keep this from ending.
        for _ in 0..COUNT {
            if self.receiver.poll(SystemClock.now(), &mut |_| {})? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Counts the other side's datagrams of one length, until all have arrived or nothing more is expected.
    ///
    /// # Errors
    /// Returns [`ToolError`] if receiving can't go on.
    pub(super) fn count(&mut self, len: usize) -> Result<u64, ToolError> {
        let until = Instant::now() + SETTLE;
        let mut seen = [false; COUNT as usize];
        let (run, side) = (self.run, self.side.other());
        loop {
            self.receiver.poll(SystemClock.now(), &mut |received| {
                let number = number(received.bytes, run, side, len);
                if let Some(seen) = number.and_then(|number| seen.get_mut(number as usize)) {
                    *seen = true;
                }
            })?;
            let count = seen.iter().filter(|it| **it).count() as u64;
            if count == COUNT || Instant::now() >= until {
                return Ok(count);
            }
            std::thread::sleep(POLL_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagram_counts_only_for_its_run_side_and_length() {
        for len in LENGTHS {
            let bytes = datagram(7, Side::Asking, 3, len);
            assert_eq!(bytes.len(), len);
            assert_eq!(number(&bytes, 7, Side::Asking, len), Some(3));
            assert_eq!(number(&bytes, 8, Side::Asking, len), None);
            assert_eq!(number(&bytes, 7, Side::Answering, len), None);
            assert_eq!(number(&bytes, 7, Side::Asking, len + 1), None);
            assert_eq!(number(&bytes[..20], 7, Side::Asking, 20), None);
            let mut damaged = bytes;
            damaged[len - 1] = 1;
            assert_eq!(number(&damaged, 7, Side::Asking, len), None);
        }
    }
}
