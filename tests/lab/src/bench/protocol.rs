//! What the bench and the processes that it measures say to each other: one task as an argument, then
//! JSON lines, orders one way and words the other. Alike for all contenders: programs outside this
//! workspace include this very file.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Bytes of a tick, of every contender: an MBO record's.
pub(crate) const TICK_LEN: usize = 56;

/// What one process is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Whose way of doing it.
    pub(crate) contender: String,
    pub(crate) role: Role,
    pub(crate) load: Load,
    /// The interface to use, by its address.
    pub(crate) interface: Ipv4Addr,
    /// Where ticks go, and where an echo's go.
    pub(crate) groups: [SocketAddrV4; 2],
    /// Among how much the ticks are spread.
    pub(crate) spread: Among,
    /// Bytes of the largest IP packet.
    pub(crate) mtu: usize,
    /// How many receivers there are.
    pub(crate) receivers: usize,
    /// Which of them this is, from 0.
    pub(crate) index: usize,
    /// The core to run on.
    pub(crate) core: Option<usize>,
    /// Where the sender can be joined, for contenders that are joined by an address.
    pub(crate) connect: Option<String>,
    /// What the receiver drops on purpose.
    pub(crate) loss: Option<Loss>,
    /// A folder in memory, for this measurement alone.
    pub(crate) folder: PathBuf,
}

/// Among how much the same ticks are spread: what a system's size costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Among {
    /// Channels, which take ticks in turn.
    pub(crate) channels: u16,
    /// Instruments, which do the same.
    pub(crate) symbols: u32,
    /// Subscribers of each receiving process; it has a tick when all of them have it.
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

/// A process's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// Publishes ticks.
    Send,
    /// Takes and checks them.
    Receive,
    /// Publishes a tick and waits until it is back.
    Ping,
    /// Publishes what it takes.
    Echo,
}

/// What is published.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Load {
    /// As much as the receivers keep up with.
    Flood {
        /// For so long, and this many at most.
        for_ms: u64,
        ticks_max: u64,
        /// Ticks that may be on their way, for contenders without a flow control.
        window: u64,
    },
    /// On a schedule, which does not wait for anyone.
    Paced {
        rate_per_s: u64,
        /// Ticks that are due at the same time.
        burst: u64,
        ticks: u64,
    },
    /// What an exchange would send, decoded by the one who publishes, as much as the receivers keep up
    /// with.
    Feed {
        feed: Feed,
        /// Symbols of a simulated market.
        symbols: u16,
        /// Venue messages, about.
        messages: u64,
        /// Records that may be on their way.
        window: u64,
    },
}

/// Where venue messages come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Feed {
    /// The exchange simulator: ITCH 5.0 in MoldUDP64.
    Simulator,
    /// A capture of IEX TOPS 1.6, over and over.
    Tops16,
}

impl Load {
    /// When a tick is due, in nanoseconds after the first; `number` counts from 1.
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

    /// How many of the first ticks only warm up what is measured.
    pub(crate) const fn warm_up(self) -> u64 {
        match self {
            Self::Flood { .. } | Self::Feed { .. } => 0,
            Self::Paced { ticks, .. } => ticks / 10,
        }
    }
}

/// Datagrams that a receiver drops before it looks at them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Loss {
    pub(crate) rate: f64,
    pub(crate) seed: u64,
}

/// What is told to a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Join the sender at this address (a ping's own receiver).
    Connect(String),
    /// Begin: everyone has joined.
    Go,
    /// So many ticks were published: end when you have them.
    Expect(u64),
    /// Everyone has them: end.
    Finish,
}

/// What a process tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// It can be joined, here if it needs an address.
    Ready(String),
    /// It has joined.
    Joined,
    /// It has published so many ticks.
    Sent(u64),
    /// It has done its part.
    Done(Box<Part>),
    /// It can't.
    Failed(String),
}

/// What a process did, and what that cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// Ticks published, or taken.
    pub(crate) ticks: u64,
    /// Ticks that the contender itself said are lost.
    pub(crate) declared_lost: u64,
    /// Ticks that never came, without a word.
    pub(crate) missing: u64,
    /// Ticks that were not as they were sent, or not in their place.
    pub(crate) wrong: u64,
    /// A second, between the first and the last of the measured ones; of a schedule, of all that came
    /// from its begin on.
    pub(crate) rate_per_s: f64,
    /// From when it was due to when it was taken; of a ping, there and back.
    pub(crate) latency: Option<Latency>,
    /// The same, of those that had been dropped on purpose and came after all.
    pub(crate) recovered: Option<Latency>,
    /// CPU time of all its threads.
    pub(crate) cpu_ns: u64,
    /// The most memory it had resident.
    pub(crate) memory_bytes: u64,
    /// Venue messages a second that decoding alone makes, of who decodes.
    pub(crate) decoded_per_s: Option<f64>,
    /// Venue messages a second on the whole way.
    pub(crate) messages_per_s: Option<f64>,
    /// What else is worth knowing, in words.
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
}

/// One tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tick {
    /// From 1, without gaps.
    pub(crate) number: u64,
    /// When it was due, on the monotonic clock of the host, in nanoseconds.
    pub(crate) at: u64,
}

impl Tick {
    /// What goes with the number, so that a reader sees damage.
    #[inline]
    pub(crate) const fn check(number: u64) -> u64 {
        number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 2
    }

    /// Writes all bytes of a tick, for contenders that carry bytes; nothing where there is no room.
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

    /// Reads one and checks it; `None`: it is damaged.
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

/// Why a process can't do its part.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

/// What comes of a part.
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
    fn a_tick_is_read_back_and_damage_is_seen() {
        let tick = Tick { number: 7, at: 99 };
        let mut bytes = [0; TICK_LEN];
        tick.write(&mut bytes);
        assert_eq!(Tick::read(&bytes), Some(tick));
        assert_eq!(Tick::read(&bytes[..48]), None, "it was cut short");
        bytes[0] ^= 1;
        assert_eq!(Tick::read(&bytes), None, "another number");
    }

    #[test]
    fn the_schedule_waits_for_nobody_and_a_burst_is_due_at_once() {
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
