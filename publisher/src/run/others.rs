//! Finds publishers that already send on the groups of a config. Two publishers on one group disturb
//! each other's stream, and subscribers can only drop the datagrams of one.

use std::time::{Duration, Instant};

use tickcast_reliability::wire::{CrcVerdict, Datagram};
use tickcast_transport::Receive;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::udp::{UdpReceiveLine, UdpReceiver, UdpReceiverConfig};

use crate::error::OtherPublisher;
use crate::plan::{FanOutPlan, Plan};

/// An idle publisher sends within this many of its intervals, with a margin.
const INTERVALS: u32 = 3;
/// Minimum time to listen for another publisher.
const LISTEN_MIN: Duration = Duration::from_millis(50);
/// Maximum delay of a start, however rarely another publisher sends.
const LISTEN_MAX: Duration = Duration::from_secs(2);
const POLL_EVERY: Duration = Duration::from_millis(1);
const DATAGRAM_LEN_MAX: usize = 9_000;

/// Listens briefly on every UDP line of the plan, on the line's interface. Returns one publisher
/// for each group that has one. A line that can't be opened for listening is skipped; opening it
/// later reports the error.
///
/// The caller must send nothing of the plan meanwhile.
///
/// ```
/// # use tickcast_publisher::internal::{Plan, find_others};
/// # fn f(plan: &Plan) {
/// let is_alone = find_others(plan).is_empty();
/// # }
/// ```
#[must_use]
pub fn find(plan: &Plan) -> Vec<OtherPublisher> {
    let mut lines = Vec::new();
    for channel in &plan.channels {
        for fan_out in &channel.fan_outs {
            let FanOutPlan::Udp { config, .. } = fan_out else {
                continue;
            };
            for line in &config.lines {
                let receiver = UdpReceiver::open(&UdpReceiverConfig {
                    lines: vec![UdpReceiveLine {
                        group: line.group,
                        interface: line.interface.clone(),
                        senders: Vec::new(),
                    }],
                    datagram_len_max: DATAGRAM_LEN_MAX,
                    receive_buffer_bytes: None,
                    source_specific: false,
                    batch: 32,
                    busy_poll_us: None,
                    gro: false,
                });
                lines.extend(receiver.ok().map(|it| (line.group, &channel.name, it)));
            }
        }
    }
    let idle = Duration::from_micros(plan.config.heartbeat.idle_us);
    let until = Instant::now() + (INTERVALS * idle).clamp(LISTEN_MIN, LISTEN_MAX);
    let mut found = Vec::new();
    while !lines.is_empty() && Instant::now() < until {
        lines.retain_mut(|(group, name, receiver)| {
            let mut other = None;
            let polled = receiver.poll(SystemClock.now(), &mut |received| {
                let datagram = Datagram::parse(received.bytes).ok();
                if let Some(datagram) = datagram.filter(|it| it.verdict() == CrcVerdict::Good) {
                    other = Some(OtherPublisher {
                        group: *group,
                        name: (*name).clone(),
                        sender: received.from,
                        channel: datagram.header().channel,
                        epoch: datagram.header().epoch,
                    });
                }
            });
            let goes_on = polled.is_ok() && other.is_none();
            found.extend(other);
            goes_on
        });
        std::thread::sleep(POLL_EVERY);
    }
    found
}
