//! Protocol between the bench and the processes that it measures.
//!
//! A process receives one task as an argument. JSON lines follow: orders to the process, words back.
//! All contenders share this protocol: programs outside this workspace include this very file.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Bytes of a tick, for every contender: the size of an MBO record.
pub(crate) const TICK_LEN: usize = 56;

/// The task of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Name of the contender that carries the ticks.
    pub(crate) contender: String,
    pub(crate) role: Role,
    pub(crate) load: Load,
    /// Address of the interface to use.
    pub(crate) interface: Ipv4Addr,
    /// Groups of the ticks and of their echo.
    pub(crate) groups: [SocketAddrV4; 2],
    /// How many channels, instruments and subscribers share the ticks.
    pub(crate) spread: Among,
    /// Bytes of the largest IP packet.
    pub(crate) mtu: usize,
    /// Number of receivers.
    pub(crate) receivers: usize,
    /// Index of this receiver, from 0.
    pub(crate) index: usize,
    /// The core to run on.
    pub(crate) core: Option<usize>,
    /// Address of the sender, for contenders that join by an address.
    pub(crate) connect: Option<String>,
    /// Datagrams that the receiver drops on purpose.
    pub(crate) loss: Option<Loss>,
    /// A folder in memory for this measurement alone.
    pub(crate) folder: PathBuf,
}

/// How many channels, instruments and subscribers share the same ticks: measures the cost of a system's
/// size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Among {
    /// Channels, which take ticks in turn.
    pub(crate) channels: u16,
    /// Instruments, which take ticks in turn.
    pub(crate) symbols: u32,
    /// Subscribers of each receiving process. A tick counts as received when all of them have it.
    pub(crate) subscribers: usize,
}

impl Among {
    /// One of each.
    pub(crate) const ONE: Self = Self {
        channels: 1,
        symbols: 1,
        subscribers: 1,
    };
}

/// The role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Publishes ticks.
    Send,
    /// Receives and checks ticks.
    Receive,
    /// Publishes a tick and waits until it is back.
    Ping,
    /// Publishes every tick that it receives.
    Echo,
}

/// The load that is published.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Load {
    /// As many ticks as the receivers keep up with.
    Flood {
        /// Duration in milliseconds; ends earlier after `ticks_max` ticks.
        for_ms: u64,
        ticks_max: u64,
        /// Maximum number of ticks in flight, for contenders without flow control.
        window: u64,
    },
    /// Ticks on a schedule, which does not wait for receivers.
    Paced {
        rate_per_s: u64,
        /// Ticks that are due at the same time.
        burst: u64,
        ticks: u64,
    },
    /// The packets of an exchange, decoded by the publishing process, as many as the receivers keep up
    /// with.
    Feed {
        feed: Feed,
        /// Symbols of a simulated market.
        symbols: u16,
        /// Approximate number of venue messages.
        messages: u64,
        /// Maximum number of records in flight.
        window: u64,
    },
}

/// Source of the venue messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Feed {
    /// The exchange simulator: ITCH 5.0 in MoldUDP64.
    Simulator,
    /// A capture of IEX TOPS 1.6, repeated.
    Tops16,
}

impl Load {
    /// Returns when a tick is due, in nanoseconds after the first. `number` counts from 1.
    pub(crate) const fn due_ns(self, number: u64) -> u64 {
        match self {
            Self::Flood { .. } | Self::Feed { .. } => 0,
            Self::Paced {
                rate_per_s, burst, ..
            } => {
                let before = (number - 1) / burst * burst;
                before * 1_000_000_000 / rate_per_s
            }
        }
    }

    /// Returns how many of the first ticks are warm-up and not measured.
    pub(crate) const fn warm_up(self) -> u64 {
        match self {
            Self::Flood { .. } | Self::Feed { .. } => 0,
            Self::Paced { ticks, .. } => ticks / 10,
        }
    }
}

/// Random datagram loss, applied by the receiver before it reads a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Loss {
    pub(crate) rate: f64,
    pub(crate) seed: u64,
}

/// A message from the bench to a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Join the sender at this address (a ping's own receiver).
    Connect(String),
    /// Begin: all processes have joined.
    Go,
    /// This many ticks were published: end after receiving them.
    Expect(u64),
    /// All processes have all ticks: end.
    Finish,
}

/// A message from a process to the bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// The sender can be joined, at this address if it needs one.
    Ready(String),
    /// The receiver has joined.
    Joined,
    /// The sender has published this many ticks.
    Sent(u64),
    /// The process has finished its task.
    Done(Box<Part>),
    /// The process has failed.
    Failed(String),
}

/// The result of one process, and its cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Ticks published, or received.
    pub(crate) ticks: u64,
    /// Ticks that the contender declared lost.
    pub(crate) declared_lost: u64,
    /// Ticks that neither arrived nor were declared lost.
    pub(crate) missing: u64,
    /// Ticks that were damaged or out of order.
    pub(crate) wrong: u64,
    /// Ticks a second between the first and the last measured tick. With a schedule: over all received
    /// ticks, from the schedule's begin.
    pub(crate) rate_per_s: f64,
    /// Time from when a tick was due until it was received. For a ping: the round trip.
    pub(crate) latency: Option<Latency>,
    /// Latency of the ticks that were dropped on purpose and arrived as a repair.
    pub(crate) recovered: Option<Latency>,
    /// CPU time of all threads.
    pub(crate) cpu_ns: u64,
    /// Peak resident memory.
    pub(crate) memory_bytes: u64,
    /// Venue messages a second of decoding alone, for a process that decodes.
    pub(crate) decoded_per_s: Option<f64>,
    /// Venue messages a second, end to end.
    pub(crate) messages_per_s: Option<f64>,
    /// Further remarks, as text.
    pub(crate) notes: Vec<String>,
}

/// A distribution of nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
    /// Quantiles for a plot, each with its value.
    pub(crate) curve: Vec<(f64, u64)>,
    /// The whole distribution: values, each with its count.
    #[serde(default)]
    pub(crate) counts: Vec<(u64, u64)>,
}

/// One tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick {
    /// Number of the tick, from 1, without gaps.
    pub(crate) number: u64,
    /// When the tick was due, in nanoseconds on the host's monotonic clock.
    pub(crate) at: u64,
}

impl Tick {
    /// Returns the check value of a number, by which a reader detects damage.
    #[inline]
    pub(crate) const fn check(number: u64) -> u64 {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 2
    }

    /// Writes all bytes of a tick, for contenders that carry bytes. Writes nothing if there is no room.
    #[inline]
    pub(crate) fn write(self, to: &mut [u8]) {
        let Some(to) = to.first_chunk_mut::<TICK_LEN>() else {
            return;
        };
        let words = [
            self.number,
            self.at,
            Self::check(self.number),
            1,
            100,
            self.at,
            0,
        ];
        for (bytes, word) in to.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Reads a tick and checks it. Returns `None` if it is damaged.
    #[inline]
    pub(crate) fn read(from: &[u8]) -> Option<Self> {
        let (words, []) = from.as_chunks::<8>() else {
            return None;
        };
        let words: &[[u8; 8]; TICK_LEN / 8] = words.try_into().ok()?;
        let [number, at, check] = [words[0], words[1], words[2]].map(u64::from_le_bytes);
        (check == Self::check(number)).then_some(Self { number, at })
    }
}

/// The reason why a process failed, as text.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

/// Result of a step of a process.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl<E: fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_round_trips_and_detects_damage() {
        let tick = Tick { number: 7, at: 99 };
        let mut bytes = [0; TICK_LEN];
        tick.write(&mut bytes);
        assert_eq!(Tick::read(&bytes), Some(tick));
        assert_eq!(Tick::read(&bytes[..48]), None, "it was cut short");
        bytes[0] ^= 1;
        assert_eq!(Tick::read(&bytes), None, "another number");
    }

    #[test]
    fn paced_schedule_is_fixed_and_bursts_are_due_at_once() {
        let load = |burst| Load::Paced {
            rate_per_s: 1_000_000,
            burst,
            ticks: 10,
        };
        let due = |burst| [1, 2, 3, 4, 5].map(|number| load(burst).due_ns(number));
        assert_eq!(due(1), [0, 1_000, 2_000, 3_000, 4_000]);
        assert_eq!(due(4), [0, 0, 0, 0, 4_000]);
    }
}
