//! The orders of the asking host, and the answers of either host.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tickcast_tools::support::conversation::Speech;

/// Version of the conversation. Hosts of different versions refuse each other.
pub(super) const VERSION: u32 = 1;
/// Most subscribers of one order.
const SUBSCRIBERS_MAX: u16 = 512;
/// Most records of one order.
const RECORDS_MAX: u64 = 1 << 32;
/// Most datagrams of one order. A receiver posts as many buffers.
pub(super) const DATAGRAMS_MAX: u32 = 4_096;
/// Longest time for which an order stops subscribers.
const PAUSE_MAX_MS: u64 = 60_000;
/// Longest time for which an order takes a link down.
const BREAK_MAX_MS: u64 = 10_000;
/// Longest time for which an order waits for records.
const WAIT_MAX_S: u64 = 3_600;

/// One of two networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    A,
    B,
}

impl Line {
    /// Returns the letter.
    pub(super) const fn letter(self) -> char {
        match self {
            Self::A => 'A',
            Self::B => 'B',
        }
    }
}

/// The way of repair that a publisher offers beside TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Repair {
    Read,
    Nack,
    Tcp,
}

/// A publisher to start, with a simulated market.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Publication {
    /// Number of lines: 1 or 2.
    pub(super) lines: u8,
    pub(super) repair: Repair,
    /// Messages a second; `None`: as fast as possible.
    pub(super) rate: Option<u64>,
    pub(super) records: u64,
    /// Whether slots are as long as packets, in place of 1,024 bytes.
    pub(super) is_long: bool,
    /// Number of subscribers to wait for.
    pub(super) wait_for: u16,
    /// Whether it mirrors the publisher of the other host, to take over from it.
    pub(super) is_standby: bool,
}

/// Subscribers to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listening {
    pub(super) subscribers: u16,
    pub(super) lines: u8,
    pub(super) repair: Repair,
    /// Receive buffers for each line.
    pub(super) depth: u32,
    /// Whether the subscribers poll without pause between two records.
    pub(super) is_eager: bool,
}

/// Datagrams of one length on one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Volley {
    pub(super) line: Line,
    pub(super) len: u32,
    pub(super) count: u32,
}

/// An action of one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Order {
    /// Name the host and its devices.
    Facts,
    /// Read all counters of the devices.
    Counters,
    /// Probe which accesses to memory the device of a line grants and refuses.
    Prove(Line),
    /// Receive datagrams from this sender from here on.
    Receive(Volley, Ipv4Addr, Ipv6Addr),
    /// Send datagrams.
    Send(Volley),
    /// End receiving.
    Count,
    /// Start a publisher.
    Publish(Publication),
    /// Wait until the publisher has ended, for so many seconds; then end its session.
    EndPublisher(u64),
    /// Kill the publisher.
    KillPublisher,
    /// Promote the standby.
    Promote,
    /// Start subscribers.
    Listen(Listening),
    /// Wait until each subscriber has delivered so many records more, for so many seconds.
    Await(u64, u64),
    /// Wait until each subscriber can repair this way, for so many seconds.
    AwaitRepair(Repair, u64),
    /// Stop all subscribers for so many milliseconds.
    Pause(u64),
    /// Wait for the end of the subscribers, for so many seconds; then end them.
    Heard(u64),
    /// Count, for each subscriber, how often a line fell silent.
    LinesDown,
    /// Kill everything of a step that still runs.
    Stop,
    /// Take the interface of a line down for so many milliseconds.
    BreakLink(Line, u64),
    /// Serve one `ib_send_lat` on line A.
    ServeLatency,
    /// Measure with `ib_send_lat` against the server at this address. Only the asking host does.
    MeasureLatency(Ipv4Addr),
    /// Count the publishers so far, and the accesses beyond a grant that they noted.
    Violations,
}

impl Order {
    /// Checks an order of another host against the bounds of this one.
    ///
    /// # Errors
    /// Returns the reason, if it is beyond them.
    pub(super) fn check(&self) -> Result<(), NotDone> {
        let is_within = match self {
            Self::Receive(volley, ..) | Self::Send(volley) => {
                (16..=4_096).contains(&volley.len) && (1..=DATAGRAMS_MAX).contains(&volley.count)
            }
            Self::Publish(it) => {
                (1..=2).contains(&it.lines)
                    && it.rate.is_none_or(|rate| rate > 0)
                    && (1..=RECORDS_MAX).contains(&it.records)
                    && it.wait_for <= SUBSCRIBERS_MAX + 1
            }
            Self::Listen(it) => {
                (1..=2).contains(&it.lines)
                    && (1..=SUBSCRIBERS_MAX).contains(&it.subscribers)
                    && (32..=32_768).contains(&it.depth)
            }
            Self::Pause(ms) => *ms <= PAUSE_MAX_MS,
            Self::BreakLink(_, ms) => *ms <= BREAK_MAX_MS,
            Self::Await(_, s)
            | Self::AwaitRepair(_, s)
            | Self::Heard(s)
            | Self::EndPublisher(s) => *s <= WAIT_MAX_S,
            _ => true,
        };
        match is_within {
            true => Ok(()),
            false => Err(NotDone::Failed("an order beyond this host's bounds".into())),
        }
    }

    /// Returns the longest time that the order takes.
    pub(super) const fn time_max(&self) -> Duration {
        let s = match self {
            Self::Await(_, s)
            | Self::AwaitRepair(_, s)
            | Self::Heard(s)
            | Self::EndPublisher(s) => *s,
            Self::Pause(ms) | Self::BreakLink(_, ms) => *ms / 1_000,
            _ => 0,
        };
        Duration::from_secs(s.saturating_add(400))
    }
}

/// The device of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LineFacts {
    pub(super) line: Line,
    pub(super) interface: String,
    pub(super) address: Ipv4Addr,
    pub(super) gid: Ipv6Addr,
    /// Index of the identifier in the port's table.
    pub(super) gid_index: Option<u32>,
    pub(super) device: String,
    pub(super) port: u8,
    /// Longest datagram of a packet, in bytes.
    pub(super) mtu: u32,
    pub(super) is_ethernet: bool,
    /// Whether a driver imitates the device, so speed says nothing.
    pub(super) is_software: bool,
    /// Further facts, by name.
    pub(super) more: BTreeMap<String, String>,
}

/// A host, and its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostFacts {
    pub(super) name: String,
    /// Facts of the host as a whole, by name.
    pub(super) more: BTreeMap<String, String>,
    pub(super) lines: Vec<LineFacts>,
    /// Whether the host may break its links.
    pub(super) may_break_links: bool,
}

impl HostFacts {
    /// Returns the device of a line.
    pub(super) fn line(&self, line: Line) -> Option<&LineFacts> {
        self.lines.iter().find(|it| it.line == line)
    }
}

/// Received datagrams of one length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arrived {
    /// Datagrams with the right bytes, each counted once.
    pub(super) whole: u64,
    /// Datagrams with other bytes.
    pub(super) damaged: u64,
    /// Datagrams that came after a later one, or again.
    pub(super) out_of_order: u64,
}

/// The result of a publisher.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Published {
    pub(super) records: u64,
    pub(super) digest: String,
}

/// The result of a subscriber.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Heard {
    pub(super) records: u64,
    pub(super) digest: String,
    pub(super) lost: u64,
    pub(super) missing: u64,
    pub(super) recovered: u64,
    /// Datagrams repaired by READ.
    pub(super) by_read: u64,
    /// Datagrams repaired over a NACK connection by verbs.
    pub(super) by_nack: u64,
    /// From the sealed datagram to delivery, in nanoseconds.
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    /// Largest error of a latency by the difference of both hosts' clocks; `None`: not known.
    pub(super) clock_error_ns: Option<u64>,
    /// Datagrams repaired on any path.
    pub(super) repaired: u64,
    /// Times that one line fell silent while another was heard.
    pub(super) line_down: u64,
    /// Times that all lines fell silent while the publisher went on.
    pub(super) multicast_lost: u64,
}

/// The result of an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Answer {
    Done,
    Facts(HostFacts),
    Counters(BTreeMap<String, u64>),
    /// Defects of READ and of cursors; `None`: granted and refused as required.
    Proof(Option<String>, Option<String>),
    Sent(u32),
    Arrived(Arrived),
    Published(Published),
    Heard(Vec<Heard>),
    /// Counts of subscribers, in order.
    LinesDown(Vec<u64>),
    /// Publishers, and accesses beyond a grant.
    Violations(u64, u64),
    /// Typical one-way latency, in nanoseconds.
    Latency(u64),
}

/// Reason why an order was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "snake_case")]
pub(super) enum NotDone {
    /// This host lacks something that the order needs.
    #[error("{0}")]
    Unavailable(String),
    /// It was tried and failed.
    #[error("{0}")]
    Failed(String),
    /// The other host does not answer any more.
    #[error("the other host is gone: {0}")]
    Gone(String),
}

/// Introduction of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hello {
    pub(super) version: u32,
    /// Release of the program.
    pub(super) release: String,
    /// First of the ports that the run uses on both hosts.
    pub(super) ports: u16,
    /// First of the groups that the run uses.
    pub(super) group: Ipv4Addr,
    /// Number of lines.
    pub(super) lines: u8,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Message {
    Hello(Hello),
    /// The answering side ends the conversation, with the reason.
    Refused(String),
    Order(Order),
    Answer(Result<Answer, NotDone>),
    /// The end of the run.
    Bye,
}

impl Speech for Message {
    const LINE_LEN_MAX: usize = 1 << 20;

    fn refusal(self) -> Result<Self, String> {
        match self {
            Self::Refused(reason) => Err(reason),
            message => Ok(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_beyond_the_bounds_are_refused() {
        let volley = |len, count| Volley {
            line: Line::A,
            len,
            count,
        };
        let listening = Listening {
            subscribers: 512,
            lines: 2,
            repair: Repair::Read,
            depth: 32,
            is_eager: false,
        };
        let publication = Publication {
            lines: 2,
            repair: Repair::Tcp,
            rate: None,
            records: RECORDS_MAX,
            wait_for: 513,
            is_standby: false,
            is_long: false,
        };
        for order in [
            Order::Send(volley(16, 1)),
            Order::Send(volley(4_096, DATAGRAMS_MAX)),
            Order::Listen(listening.clone()),
            Order::Publish(publication.clone()),
            Order::Pause(PAUSE_MAX_MS),
            Order::Await(u64::MAX, WAIT_MAX_S),
        ] {
            assert_eq!(order.check(), Ok(()), "{order:?}");
        }
        let listen = |change: fn(&mut Listening)| {
            let mut it = listening.clone();
            change(&mut it);
            Order::Listen(it)
        };
        let publish = |change: fn(&mut Publication)| {
            let mut it = publication.clone();
            change(&mut it);
            Order::Publish(it)
        };
        for order in [
            Order::Send(volley(15, 1)),
            Order::Send(volley(4_097, 1)),
            Order::Receive(volley(64, 0), Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST),
            Order::Send(volley(64, DATAGRAMS_MAX + 1)),
            listen(|it| it.subscribers = 0),
            listen(|it| it.subscribers = 513),
            listen(|it| it.lines = 3),
            listen(|it| it.depth = 31),
            publish(|it| it.lines = 0),
            publish(|it| it.rate = Some(0)),
            publish(|it| it.records = 0),
            publish(|it| it.wait_for = 514),
            Order::Pause(PAUSE_MAX_MS + 1),
            Order::BreakLink(Line::A, BREAK_MAX_MS + 1),
            Order::Heard(WAIT_MAX_S + 1),
            Order::EndPublisher(u64::MAX),
        ] {
            assert!(order.check().is_err(), "{order:?}");
        }
    }
}
