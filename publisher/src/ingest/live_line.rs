//! One line of a live input: its socket, the packets that the kernel dropped, and what the log says of it.
//!
//! Beside others, a line that can't be opened costs nothing but itself. It is tried again, and so is one
//! whose interface was made anew.

use std::net::{Ipv4Addr, SocketAddrV4};

use tickcast_reliability::types::Nanos;
use tickcast_transport::ReceiveStats;
use tickcast_transport::host::interface::Interface;
use tickcast_transport::udp::{FeedReceiver, FeedReceiverConfig, UdpError};

use super::unrecognised::SILENT;
use crate::config::{InputLineConfig, UdpInputConfig};
use crate::state::source_loss::Unread;

/// The most packets of one line in a turn.
pub(super) const BATCH: usize = 64;
/// A gap is reported within this time after the drops that caused it.
const EXPLAINS: Nanos = Nanos::from_ms(100);
/// A read pause of at least this length is reported when packets were dropped.
const PAUSE: Nanos = Nanos::from_ms(1);
/// Interval between two attempts to open a line.
const RETRY: Nanos = Nanos::from_ms(5_000);

/// One line of a live input.
pub(super) struct LiveLine {
    pub(super) socket: LineSocket,
    /// The sender that the decoder knows.
    pub(super) sender: Option<Ipv4Addr>,
    pub(super) drops: Drops,
    pub(super) log: LineLog,
}

impl LiveLine {
    /// Opens a line; `interface` is the publisher's. Returns the error of its socket with it.
    pub(super) fn open(
        input: &UdpInputConfig,
        line: &InputLineConfig,
        interface: &Interface,
    ) -> (Self, Result<(), UdpError>) {
        let on = line.interface.as_ref().unwrap_or(interface);
        let mut opened = Self {
            socket: LineSocket::new(receiver_config(input, line, interface)),
            sender: None,
            drops: Drops::default(),
            log: LineLog::new(format!("{} on interface {on}", line.listen)),
        };
        let result = opened.socket.open();
        (opened, result)
    }
}

/// The socket of a line.
pub(super) struct LineSocket {
    config: FeedReceiverConfig,
    receiver: Option<FeedReceiver>,
    /// The index of the interface that it was opened on.
    interface: Option<u32>,
    /// The losses of the sockets before.
    before: ReceiveStats,
    checked_at: Nanos,
}

impl LineSocket {
    fn new(config: FeedReceiverConfig) -> Self {
        Self {
            config,
            receiver: None,
            interface: None,
            before: ReceiveStats::default(),
            checked_at: Nanos::ZERO,
        }
    }

    fn open(&mut self) -> Result<(), UdpError> {
        self.interface = self.present_interface();
        let receiver = FeedReceiver::open(&self.config)?;
        if let Some(left) = self.receiver.replace(receiver) {
            let left = left.stats();
            self.before.buffer_drops += left.buffer_drops;
            self.before.oversize += left.oversize;
            self.before.unknown_senders += left.unknown_senders;
        }
        Ok(())
    }

    fn present_interface(&self) -> Option<u32> {
        self.config.interface.resolve().ok().map(|it| it.index)
    }

    /// Returns the open socket.
    #[inline]
    pub(super) const fn receiver(&mut self) -> Option<&mut FeedReceiver> {
        self.receiver.as_mut()
    }

    /// Opens a socket that is missing, or whose interface is another one by now. Tries once in [`RETRY`];
    /// call it while the line is silent. Returns a report if that changed the line.
    #[cold]
    pub(super) fn check(&mut self, now: Nanos, line: &str) -> Option<String> {
        if now.since(self.checked_at) < RETRY {
            return None;
        }
        self.checked_at = now;
        let present = self.present_interface();
        if self.receiver.is_some() && (present.is_none() || present == self.interface) {
            return None;
        }
        // A line that still can't be opened has been reported.
        self.open().ok()?;
        Some(format!(
            "the line {line} is open: its interface is there again"
        ))
    }

    /// Returns the bound address, with the port that the system chose.
    pub(super) fn local_address(&self) -> Option<SocketAddrV4> {
        self.receiver.as_ref()?.local_address()
    }

    /// Returns the settings that could not be applied as configured.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        let warnings = self.receiver.iter().flat_map(FeedReceiver::warnings);
        warnings.map(ToString::to_string)
    }

    /// Returns a count of losses, of all sockets of the line so far.
    pub(super) fn count(&self, of: impl Fn(&ReceiveStats) -> u64) -> u64 {
        of(&self.before) + self.receiver.as_ref().map_or(0, |it| of(it.stats()))
    }
}

/// Returns the settings of a line's socket; `interface` is the publisher's.
fn receiver_config(
    input: &UdpInputConfig,
    line: &InputLineConfig,
    interface: &Interface,
) -> FeedReceiverConfig {
    FeedReceiverConfig {
        listen: line.listen,
        interface: line.interface.as_ref().unwrap_or(interface).clone(),
        source: line.from,
        datagram_len_max: 9_000,
        receive_buffer_bytes: input.receive_buffer_bytes,
        batch: BATCH,
        busy_poll_us: input.busy_poll_us,
    }
}

/// Tracks the packets that the kernel dropped before they were read.
#[derive(Debug, Default)]
pub(super) struct Drops {
    /// Total drops when the current packet arrived.
    counted: u64,
    /// The drops that no gap has been attributed to yet, and when the last of them was seen.
    fresh: u64,
    seen_at: Nanos,
    now: Nanos,
    /// End and length of the longest pause, until a packet arrives that was received after it.
    pause: Option<(Nanos, Nanos)>,
}

impl Drops {
    /// Records a read of the socket.
    pub(super) fn read(&mut self, now: Nanos) {
        let away = now.since(self.now);
        let longest = self.pause.map_or(PAUSE, |(_, span)| span);
        if away >= longest && self.now > Nanos::ZERO {
            self.pause = Some((now, away));
        }
        self.now = now;
    }

    /// Records a packet and the drops before it. After a drop, the clock is read again, because a
    /// pause during the read would otherwise go unseen.
    #[inline]
    pub(super) fn packet(&mut self, dropped: u64, clock: impl FnOnce() -> Nanos) {
        // A socket that was opened again counts anew.
        let fresh = dropped.saturating_sub(std::mem::replace(&mut self.counted, dropped));
        if fresh > 0 {
            self.fresh += fresh;
            self.read(clock());
            self.seen_at = self.now;
            return;
        }
        if self.fresh > 0 && self.now > self.seen_at.after(EXPLAINS) {
            self.fresh = 0;
        }
        // Packets that queued in the socket are read faster than they arrived.
        if self
            .pause
            .is_some_and(|(over, span)| self.now > over.after(span))
        {
            self.pause = None;
        }
    }

    /// Returns when the last drops were seen.
    pub(super) const fn last_at(&self) -> Nanos {
        self.seen_at
    }

    /// Takes the drops that explain a gap.
    pub(super) fn of_gap(&mut self) -> Option<Unread> {
        let packets = std::mem::take(&mut self.fresh);
        (packets > 0).then_some(Unread {
            packets,
            paused: self.pause.map_or(Nanos::ZERO, |(_, span)| span),
        })
    }
}

/// Detects that a line hears nothing, for the log.
#[derive(Debug)]
pub(super) struct LineLog {
    /// Address and interface of the line, for the log.
    pub(super) line: String,
    heard_at: Option<Nanos>,
    is_reported: bool,
}

impl LineLog {
    pub(super) const fn new(line: String) -> Self {
        Self {
            line,
            heard_at: None,
            is_reported: false,
        }
    }

    /// Returns whether the line is silent, and has been reported so.
    #[inline]
    pub(super) const fn is_reported(&self) -> bool {
        self.is_reported
    }

    /// Returns a report when the silence has lasted for [`SILENT`], and when it is over. `heard` says whether
    /// a packet has arrived since the last call.
    #[inline]
    pub(super) fn poll(&mut self, now: Nanos, heard: bool) -> Option<String> {
        let silent_for = now.since(*self.heard_at.get_or_insert(now));
        if heard {
            self.heard_at = Some(now);
            return std::mem::take(&mut self.is_reported).then(|| self.over(silent_for));
        }
        if silent_for < SILENT || self.is_reported {
            return None;
        }
        self.is_reported = true;
        Some(self.begun())
    }

    #[cold]
    fn begun(&self) -> String {
        format!(
            "no packet has arrived from {} for {} s. Check the address, that the interface is on the venue's \
             network, and that its switch has an IGMP querier",
            self.line,
            SILENT.0 / 1_000_000_000
        )
    }

    #[cold]
    fn over(&self, silent_for: Nanos) -> String {
        format!(
            "packets arrive again from {}, after {} s",
            self.line,
            silent_for.0 / 1_000_000_000
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_line_is_opened_when_its_interface_is_another() {
        let input = serde_json::json!({ "source": 1, "lines": [{ "listen": "127.0.0.1:0" }] });
        let input: UdpInputConfig = serde_json::from_value(input).unwrap();
        let (mut line, opened) = LiveLine::open(&input, &input.lines[0], &"lo".parse().unwrap());
        opened.unwrap();
        let s = |seconds: u64| Nanos::from_ms(seconds * 1_000);
        let port = line.socket.local_address();
        assert_eq!(line.socket.check(s(10), "A"), None, "the same interface");
        line.socket.interface = Some(u32::MAX);
        assert_eq!(line.socket.check(s(14), "A"), None, "too early");
        let report = line.socket.check(s(15), "A").expect("it was made anew");
        assert!(report.starts_with("the line A is open"), "{report}");
        assert_ne!(line.socket.local_address(), port);
        line.socket.receiver = None;
        assert!(
            line.socket.check(s(20), "A").is_some(),
            "it could not be opened before"
        );
        line.socket.receiver = None;
        line.socket.config.interface = "nosuch0".parse().unwrap();
        assert_eq!(line.socket.check(s(25), "A"), None, "still not");
    }

    #[test]
    fn silent_line_is_reported_once_and_when_it_is_over() {
        let s = |seconds: u64| Nanos::from_ms(seconds * 1_000);
        let mut silence = LineLog::new("239.1.1.1:26400 on interface eth7".into());
        assert_eq!(silence.poll(s(100), false), None);
        assert_eq!(silence.poll(s(104), false), None);
        let report = silence.poll(s(105), false).expect("silent for 5 s");
        assert!(
            report.contains("239.1.1.1:26400 on interface eth7"),
            "{report}"
        );
        assert_eq!(silence.poll(s(120), false), None, "reported once");
        let report = silence.poll(s(130), true).expect("it is over");
        assert!(report.contains("after 30 s"), "{report}");
        assert_eq!(silence.poll(s(131), true), None);
        assert_eq!(silence.poll(s(135), false), None);
        assert!(silence.poll(s(136), false).is_some(), "silent again");
    }

    #[test]
    fn socket_settings_of_an_input_reach_its_lines() {
        let input = serde_json::json!({
            "source": 1, "busy_poll_us": 50, "receive_buffer_bytes": 9_000,
            "lines": [{ "listen": "127.0.0.1:0" }, { "listen": "127.0.0.1:0", "interface": "eth7" }],
        });
        let input: UdpInputConfig = serde_json::from_value(input).unwrap();
        let lo = "lo".parse().unwrap();
        for (line, interface) in input.lines.iter().zip(["lo", "eth7"]) {
            let config = receiver_config(&input, line, &lo);
            assert_eq!(config.busy_poll_us, Some(50));
            assert_eq!(config.receive_buffer_bytes, Some(9_000));
            assert_eq!(config.interface.to_string(), interface);
        }
    }

    #[test]
    fn pause_between_clock_read_and_drop_is_counted() {
        let ms = Nanos::from_ms;
        let paused = |stopped: u64| {
            let mut drops = Drops::default();
            drops.read(ms(100));
            drops.read(ms(101));
            drops.packet(0, || panic!("nothing was dropped"));
            // The pause happens before the next reading of the clock.
            drops.packet(9, || ms(101 + stopped));
            drops.of_gap().map(|it| (it.packets, it.paused))
        };
        assert_eq!(paused(145), Some((9, ms(145))));
        assert_eq!(paused(0), Some((9, ms(1))), "what there was before");
    }
}
