//! Datagrams of exact lengths through a group, without the layers above.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use tickcast_subscriber::Interface;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::verbs::{
    VerbsFanOut, VerbsFanOutConfig, VerbsReceiveLine, VerbsReceiver, VerbsReceiverConfig,
    VerbsSendLine, VerbsSender,
};
use tickcast_transport::{FanOut, Receive};

use super::order::{Arrived, DATAGRAMS_MAX, NotDone, Volley};

/// Time limit for joining a group.
const JOIN_MAX: Duration = Duration::from_secs(20);
/// Time after the last datagram in which another copy may come.
const QUIET: Duration = Duration::from_millis(300);
/// Time for which a missing datagram may be late.
const LATE_MAX: Duration = Duration::from_secs(5);
/// Time limit for sending all datagrams.
const SEND_MAX: Duration = Duration::from_secs(60);
/// Datagrams between two pauses of a sender, so that no queue on the way overflows.
const BURST: u32 = 32;
const PAUSE: Duration = Duration::from_millis(1);
/// Time for a device to send what is in its queue, on a slow host too.
const DRAIN: Duration = Duration::from_millis(300);
const Q_KEY: u32 = 0x6163_6365;

fn failed(error: impl std::fmt::Display) -> NotDone {
    NotDone::Failed(error.to_string())
}

/// Writes the datagram of a number: the number, then bytes that follow from it.
fn write(number: u64, bytes: &mut [u8]) {
    let mut state = number ^ 0x9E37_79B9_7F4A_7C15;
    let (head, tail) = bytes.split_at_mut(8);
    head.copy_from_slice(&number.to_le_bytes());
    for byte in tail {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
}

/// Counts datagrams of one length.
struct Tally {
    expected: Vec<u8>,
    next: u64,
    count: u64,
    arrived: Arrived,
}

impl Tally {
    fn new(volley: Volley) -> Self {
        Self {
            expected: vec![0; volley.len as usize],
            next: 0,
            count: volley.count.into(),
            arrived: Arrived::default(),
        }
    }

    fn is_full(&self) -> bool {
        let arrived = &self.arrived;
        arrived.whole + arrived.damaged + arrived.out_of_order >= self.count
    }

    fn take(&mut self, bytes: &[u8]) {
        let number = bytes
            .first_chunk()
            .map_or(u64::MAX, |it| u64::from_le_bytes(*it));
        write(number, &mut self.expected);
        if number >= self.count || bytes != self.expected {
            self.arrived.damaged += 1;
        } else if number < self.next {
            self.arrived.out_of_order += 1;
        } else {
            self.next = number + 1;
            self.arrived.whole += 1;
        }
    }
}

/// A receiver of one volley, joined.
pub(super) struct Receiving {
    receiver: VerbsReceiver,
    tally: Tally,
}

impl Receiving {
    /// Joins the group of a volley.
    ///
    /// # Errors
    /// Returns [`NotDone::Failed`] if the device or the group can't be used.
    pub(super) fn open(
        group: Ipv4Addr,
        interface: Ipv4Addr,
        volley: Volley,
        (address, gid): (Ipv4Addr, Ipv6Addr),
    ) -> Result<Self, NotDone> {
        let receiver = VerbsReceiver::open(&VerbsReceiverConfig {
            lines: vec![VerbsReceiveLine {
                group,
                interface: Interface::Address(interface),
                senders: vec![VerbsSender { address, gid }],
            }],
            datagram_len_max: volley.len as usize,
            q_key: Q_KEY,
            depth: DATAGRAMS_MAX,
            batch: 64,
            waitable: false,
        });
        let mut opened = Self {
            receiver: receiver.map_err(failed)?,
            tally: Tally::new(volley),
        };
        let until = Instant::now() + JOIN_MAX;
        while !opened.receiver.is_joined() {
            opened.poll()?;
            if Instant::now() >= until {
                return Err(failed(format_args!(
                    "{group} was not joined within {JOIN_MAX:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(opened)
    }

    fn poll(&mut self) -> Result<bool, NotDone> {
        let tally = &mut self.tally;
        let mut any = false;
        let polled = self.receiver.poll(SystemClock.now(), &mut |received| {
            any = true;
            tally.take(received.bytes);
        });
        polled.map_err(failed).map(|_| any)
    }

    /// Returns the counts once all came, and no copy after them. Missing datagrams have 5 s.
    ///
    /// # Errors
    /// Returns [`NotDone::Failed`] if the device fails.
    pub(super) fn count(mut self) -> Result<Arrived, NotDone> {
        let mut heard_at = Instant::now();
        while heard_at.elapsed()
            < if self.tally.is_full() {
                QUIET
            } else {
                LATE_MAX
            }
        {
            match self.poll()? {
                true => heard_at = Instant::now(),
                false => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(self.tally.arrived)
    }
}

/// Sends a volley. Returns the number of datagrams that the device took.
///
/// # Errors
/// Returns [`NotDone::Failed`] if the device or the group can't be used.
pub(super) fn send(
    group: Ipv4Addr,
    interface: Ipv4Addr,
    volley: Volley,
    inline_bytes: u32,
) -> Result<u32, NotDone> {
    let interface = Interface::Address(interface);
    let mut sender = VerbsFanOut::for_copies(&VerbsFanOutConfig {
        lines: vec![VerbsSendLine { group, interface }],
        datagram_len_max: volley.len as usize,
        q_key: Q_KEY,
        traffic_class: 0,
        service_level: None,
        send_depth: 128,
        signal_every: 16,
        inline_bytes,
        pace: None,
    })
    .map_err(failed)?;
    let until = Instant::now() + SEND_MAX;
    let mut bytes = vec![0; volley.len as usize];
    let mut sent = 0;
    while sent < volley.count && Instant::now() < until {
        write(sent.into(), &mut bytes);
        if sender.send_copy(&bytes).map_err(failed)? {
            sent += 1;
        }
        if sent % BURST == 0 {
            std::thread::sleep(PAUSE);
        }
    }
    // A device drops what is still queued when its queue ends.
    std::thread::sleep(DRAIN);
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::super::order::Line;
    use super::*;

    #[test]
    fn tally_tells_whole_damaged_and_late_datagrams_apart() {
        let mut tally = Tally::new(Volley {
            line: Line::A,
            len: 64,
            count: 4,
        });
        let datagram = |number| {
            let mut bytes = [0; 64];
            write(number, &mut bytes);
            bytes
        };
        for number in [0, 1, 3, 2, 3] {
            tally.take(&datagram(number));
        }
        let mut damaged = datagram(3);
        damaged[63] ^= 1;
        tally.take(&damaged);
        tally.take(&datagram(4));
        tally.take(&datagram(2)[..63]);
        let expected = Arrived {
            whole: 3,
            damaged: 3,
            out_of_order: 2,
        };
        assert_eq!(tally.arrived, expected);
    }

    #[test]
    fn datagrams_of_two_numbers_differ_in_every_part() {
        let (mut one, mut other) = ([0; 1_024], [0; 1_024]);
        write(1, &mut one);
        write(2, &mut other);
        let differ = |part: std::ops::Range<usize>| one[part.clone()] != other[part];
        assert!(differ(0..8) && differ(8..64) && differ(512..1_024));
    }
}
