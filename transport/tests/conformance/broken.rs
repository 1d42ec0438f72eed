//! Transports that break one promise each. The suite must detect each, so these test the suite itself.

use std::os::fd::{BorrowedFd, RawFd};

use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::{Epoch, Nanos, Sequence, SequenceRange};
use tickcast_transport::{
    FanOut, FanOutError, Posted, Receive, ReceiveError, ReceiveStats, Received, SendStats, Slots,
};

/// The broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The fan-out reports a slot as taken and does not send it.
    Skips,
    /// The fan-out sends the previous slot in place of one.
    SendsAnother,
    /// The fan-out reports slots as completed that it has only taken.
    CompletesEarly,
    /// The fan-out sends a slot twice.
    SendsTwice,
    /// The receiver delivers a datagram twice.
    HandsOverTwice,
    /// The receiver truncates a datagram.
    Truncates,
    /// The receiver delivers a datagram after its successor.
    Swaps,
    /// The receiver flips a bit.
    Flips,
    /// The receiver reports another line or another source address.
    Mistakes,
}

/// Number of datagrams from one fault to the next.
const EVERY: u64 = 50;

/// Wraps a fan-out with the fault, if it is one of the fan-out.
pub fn fan_out(broken: Option<Broken>, inner: Box<dyn FanOut>) -> Box<dyn FanOut> {
    use Broken::{CompletesEarly, SendsAnother, SendsTwice, Skips};
    match broken {
        Some(how @ (Skips | SendsAnother | CompletesEarly | SendsTwice)) => {
            Box::new(BrokenFanOut {
                inner,
                how,
                taken: None,
            })
        }
        _ => inner,
    }
}

/// Wraps a receiver with the fault, if it is one of the receiver.
pub fn receive(broken: Option<Broken>, inner: Box<dyn Receive>) -> Box<dyn Receive> {
    use Broken::{Flips, HandsOverTwice, Mistakes, Swaps, Truncates};
    match broken {
        Some(how @ (HandsOverTwice | Truncates | Swaps | Flips | Mistakes)) => {
            Box::new(BrokenReceiver {
                inner,
                how,
                count: 0,
                held: None,
            })
        }
        _ => inner,
    }
}

struct BrokenFanOut {
    inner: Box<dyn FanOut>,
    how: Broken,
    taken: Option<Sequence>,
}

struct Another<'a>(&'a dyn Slots);

impl Slots for Another<'_> {
    fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
        self.0.slot(sequence.previous())
    }
}

impl BrokenFanOut {
    fn post_one(&mut self, slots: &dyn Slots, sequence: Sequence) -> Result<Posted, FanOutError> {
        let one = SequenceRange::one(sequence);
        if !sequence.0.is_multiple_of(EVERY) {
            return self.inner.post(slots, one);
        }
        match self.how {
            Broken::Skips => Ok(Posted {
                last: Some(sequence),
                stalled: false,
            }),
            Broken::SendsAnother => self.inner.post(&Another(slots), one),
            Broken::SendsTwice => {
                self.inner.post(slots, one)?;
                self.inner.post(slots, one)
            }
            _ => self.inner.post(slots, one),
        }
    }
}

impl FanOut for BrokenFanOut {
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError> {
        let mut last = None;
        for sequence in range.iter() {
            let posted = self.post_one(slots, sequence)?;
            if posted.last.is_none() {
                return Ok(Posted {
                    last,
                    stalled: true,
                });
            }
            last = posted.last;
            self.taken = last;
        }
        Ok(Posted {
            last,
            stalled: false,
        })
    }

    fn completed(&mut self) -> Option<Sequence> {
        let completed = self.inner.completed();
        match self.how {
            Broken::CompletesEarly => self.taken,
            _ => completed,
        }
    }

    fn send_copy(&mut self, bytes: &[u8]) -> Result<bool, FanOutError> {
        self.inner.send_copy(bytes)
    }

    fn reset(&mut self) {
        self.taken = None;
        self.inner.reset();
    }

    fn datagram_len_max(&self) -> usize {
        self.inner.datagram_len_max()
    }

    fn stats(&self) -> &[SendStats] {
        self.inner.stats()
    }
}

struct BrokenReceiver {
    inner: Box<dyn Receive>,
    how: Broken,
    count: u64,
    /// A copy at an aligned address, and its length.
    held: Option<(Vec<u64>, usize)>,
}

fn copied(bytes: &[u8]) -> (Vec<u64>, usize) {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    });
    (words.collect(), bytes.len())
}

fn bytes_of((words, len): &(Vec<u64>, usize)) -> &[u8] {
    &tickcast_reliability::record::words_as_bytes(words)[..*len]
}

impl Receive for BrokenReceiver {
    fn poll(
        &mut self,
        now: Nanos,
        on: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, ReceiveError> {
        let (how, count, held) = (self.how, &mut self.count, &mut self.held);
        self.inner.poll(now, &mut |received| {
            *count += 1;
            let due = count.is_multiple_of(EVERY);
            let len = received.bytes.len();
            let bytes = received.bytes;
            match how {
                Broken::HandsOverTwice if due => {
                    on(received);
                    on(received);
                }
                Broken::Truncates if due => on(Received {
                    bytes: &bytes[..len - 8],
                    ..received
                }),
                Broken::Flips if due => {
                    let mut copy = copied(bytes);
                    copy.0[len / 16] ^= 1;
                    on(Received {
                        bytes: bytes_of(&copy),
                        ..received
                    });
                }
                Broken::Mistakes if due => on(Received {
                    from: std::net::Ipv4Addr::new(10, 9, 9, 9),
                    ..received
                }),
                Broken::Swaps if due => *held = Some(copied(bytes)),
                _ => {
                    on(received);
                    if let Some(held) = held.take() {
                        on(Received {
                            bytes: bytes_of(&held),
                            ..received
                        });
                    }
                }
            }
        })
    }

    fn join(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.inner.join(line)
    }

    fn leave(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.inner.leave(line)
    }

    fn take_overrun(&mut self) -> Option<(Epoch, SequenceRange)> {
        self.inner.take_overrun()
    }

    fn raw_fds(&self) -> &[RawFd] {
        self.inner.raw_fds()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.fds()
    }

    fn stats(&self) -> &[ReceiveStats] {
        self.inner.stats()
    }
}
