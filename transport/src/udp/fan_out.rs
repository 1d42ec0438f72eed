//! The UDP fan-out: sends every slot on every line, in batches, directly from the ring.
//!
//! A single due datagram is sent without a header. Runs of several datagrams go to the kernel as one
//! buffer (`sendmmsg.rs`), so they cross its stack once. The kernel copies at once, so nothing stays
//! pinned after a post. Each line keeps its own position: a line with a full send buffer waits alone.
//! A line that can't take runs is sent datagram by datagram. After a refused run, the line does so
//! for a while (`gso.rs`).

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd, OwnedFd};

use serde::{Deserialize, Serialize};
use socket2::Socket;
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::types::{Sequence, SequenceRange};

use super::gso::{Runs, cutting_was_refused, segment_max};
use super::sendmmsg::{Gathered, SendBatch};
use super::socket::{
    BufferGrant, Direction, UdpError, UdpWarning, check_group, check_mtu, check_range, describe,
    open_sender, set_buffer,
};
use super::{BATCH_MAX, UDP_LEN_MAX, yes};
use tickcast_transport_base::host::interface::Interface;
use tickcast_transport_base::{FanOut, FanOutError, Posted, SendStats, Slots};

/// One line to send on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpSendLine {
    /// Multicast group and port.
    pub group: SocketAddrV4,
    /// Interface to send from. Its address is the sender's.
    #[serde(default)]
    pub interface: Interface,
}

/// Settings for sending a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpFanOutConfig {
    /// The lines: A, then B if there is one.
    pub lines: Vec<UdpSendLine>,
    /// Number of routers that a datagram may pass. 0, the default, keeps it on this host.
    #[serde(default)]
    pub ttl: u8,
    /// Send buffer to request, in bytes. Without it, the system's default applies.
    #[serde(default)]
    pub send_buffer_bytes: Option<usize>,
    /// Length of the longest datagram, in bytes: the slot size.
    pub datagram_len_max: usize,
    /// Whether to send runs of datagrams as one buffer, if the kernel can cut them (GSO).
    #[serde(default = "yes")]
    pub gso: bool,
}

/// Sends a channel by UDP multicast.
pub struct UdpFanOut {
    lines: Vec<Line>,
    stats: Vec<SendStats>,
    grants: Vec<BufferGrant>,
    warnings: Vec<UdpWarning>,
    batch: SendBatch,
    /// The last sequence that all lines have taken.
    completed: Option<Sequence>,
    datagram_len_max: usize,
}

struct Line {
    socket: Socket,
    /// The last sequence that this line has sent or given up.
    taken: Sequence,
    runs: Runs,
}

/// Progress of a line in a batch.
struct Taken {
    /// Datagrams sent or refused.
    datagrams: usize,
    /// Whether the send buffer is full.
    full: bool,
    /// Whether a run was refused that may pass datagram by datagram.
    uncut: bool,
}

/// The outcome of one system call.
enum Outcome {
    Sent(usize),
    Full,
    /// The network refused the first datagram.
    Refused(i32),
}

impl UdpFanOut {
    /// Opens a socket per line.
    ///
    /// # Errors
    /// [`UdpError`] names the line and the remedy.
    pub fn open(config: &UdpFanOutConfig) -> Result<Self, UdpError> {
        if !(1..=LineId::MAX).contains(&config.lines.len()) {
            return Err(UdpError::Lines {
                lines: config.lines.len(),
            });
        }
        check_range("datagram_len_max", config.datagram_len_max, 1, UDP_LEN_MAX)?;
        let (mut lines, mut grants, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
        let mut stats = Vec::new();
        for line in &config.lines {
            check_group(line.group)?;
            let interface = line.interface.resolve()?;
            let target = describe(line.group, &interface);
            let socket = open_sender(line.group, &interface, config.ttl)?;
            let buffer = set_buffer(&socket, Direction::Send, config.send_buffer_bytes, &target);
            let (grant, warning) = buffer.map_err(|source| UdpError::Io {
                what: "set the send buffer",
                target: target.clone(),
                source,
            })?;
            warnings.extend(warning);
            warnings.extend(check_mtu(&target, config.datagram_len_max, &interface));
            grants.push(grant);
            let mut longest = 0;
            if config.gso {
                let max = config.datagram_len_max;
                let (found, warning) = segment_max(&socket, max, &interface, &target);
                warnings.extend(warning);
                longest = found;
            }
            stats.push(SendStats {
                gso: longest > 0,
                ..SendStats::default()
            });
            lines.push(Line {
                socket,
                taken: Sequence::NONE,
                runs: Runs::new(longest),
            });
        }
        Ok(Self {
            stats,
            lines,
            grants,
            warnings,
            batch: SendBatch::new(),
            completed: None,
            datagram_len_max: config.datagram_len_max,
        })
    }

    /// Returns a fan-out over connected sockets, one per line. Tests use sockets whose queues fill.
    #[doc(hidden)]
    #[must_use]
    pub fn over(sockets: Vec<OwnedFd>, datagram_len_max: usize) -> Self {
        let line = |socket| Line {
            socket: Socket::from(socket),
            taken: Sequence::NONE,
            runs: Runs::new(0),
        };
        Self {
            stats: vec![SendStats::default(); sockets.len()],
            lines: sockets.into_iter().map(line).collect(),
            grants: Vec::new(),
            warnings: Vec::new(),
            batch: SendBatch::new(),
            completed: None,
            datagram_len_max,
        }
    }

    /// Returns the deviations from the configuration.
    #[must_use]
    pub fn warnings(&self) -> &[UdpWarning] {
        &self.warnings
    }

    /// Returns the send buffers, one per line.
    #[must_use]
    pub fn buffers(&self) -> &[BufferGrant] {
        &self.grants
    }

    /// Returns the source addresses, one per line, as a WELCOME lists them for subscribers.
    #[must_use]
    pub fn senders(&self) -> Vec<SocketAddrV4> {
        let of = |line: &Line| line.socket.local_addr().ok()?.as_socket_ipv4();
        self.lines.iter().filter_map(of).collect()
    }

    /// Sends one datagram on the lines that have not taken it. Returns whether a line stalled.
    #[inline]
    fn post_alone(&mut self, slots: &dyn Slots, sequence: Sequence) -> Result<bool, FanOutError> {
        let bytes = slot(slots, sequence, self.datagram_len_max)?;
        let mut stalled = false;
        for (i, line) in self.lines.iter_mut().enumerate() {
            if line.taken >= sequence {
                continue;
            }
            let stats = &mut self.stats[i];
            let alone = send_alone(&line.socket, bytes, stats);
            if alone == Alone::Full {
                stats.stalls += 1;
                stalled = true;
            } else {
                stats.refused += u64::from(alone == Alone::Refused);
                line.taken = sequence;
            }
        }
        Ok(stalled)
    }

    /// Sends several datagrams, as far as each line takes them. Returns whether a line stalled.
    fn post_many(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<bool, FanOutError> {
        let max = self.datagram_len_max;
        let mut stalled = [false; LineId::MAX];
        loop {
            let mut worked = false;
            for (i, line) in self.lines.iter_mut().enumerate() {
                if stalled[i] || line.taken >= range.last {
                    continue;
                }
                worked = true;
                let first = line.taken.next();
                let last = first.plus(BATCH_MAX as u64 - 1).min(range.last);
                let datagrams = SequenceRange { first, last }.iter();
                let datagrams = datagrams.map(|sequence| slot(slots, sequence, max));
                let stats = &mut self.stats[i];
                let longest = line.runs.segment_max(stats.datagrams);
                let adjacent = |from: usize, to: usize| {
                    let [first, last] = [from, to].map(|at| first.plus(at as u64));
                    slots.adjacent(SequenceRange { first, last })
                };
                let mut batch = self.batch.gather(longest, datagrams, adjacent)?;
                let runs = stats.runs;
                let taken = send_all(&line.socket, &mut batch, stats);
                line.taken = line.taken.plus(taken.datagrams as u64);
                stalled[i] = taken.full;
                stats.stalls += u64::from(taken.full);
                if taken.uncut {
                    line.runs.refused(&line.socket, stats);
                } else if stats.runs > runs && !stats.gso {
                    Runs::passed(&line.socket, stats);
                }
            }
            if !worked {
                break;
            }
        }
        Ok(stalled.contains(&true))
    }
}

impl FanOut for UdpFanOut {
    fn post(&mut self, slots: &dyn Slots, range: SequenceRange) -> Result<Posted, FanOutError> {
        // A post that continues where the last one ended finds each line at its own position.
        // Any other post restarts all lines.
        if taken_by_all(&self.lines) != range.first.previous() {
            for line in &mut self.lines {
                line.taken = range.first.previous();
            }
            self.completed = None;
        }
        let stalled = if range.first == range.last {
            self.post_alone(slots, range.first)?
        } else {
            self.post_many(slots, range)?
        };
        let last = Some(taken_by_all(&self.lines)).filter(|last| *last >= range.first);
        self.completed = last.or(self.completed);
        Ok(Posted { last, stalled })
    }

    fn completed(&mut self) -> Option<Sequence> {
        self.completed
    }

    fn send_copy(&mut self, bytes: &[u8]) -> Result<bool, FanOutError> {
        check_len(bytes, self.datagram_len_max)?;
        let mut everywhere = true;
        for (line, stats) in self.lines.iter().zip(&mut self.stats) {
            let alone = send_alone(&line.socket, bytes, stats);
            // Not counted as refused, because no sequence of the stream is missing.
            stats.unpinned_sends_dropped += u64::from(alone != Alone::Sent);
            everywhere &= alone != Alone::Full;
        }
        Ok(everywhere)
    }

    fn reset(&mut self) {
        // The kernel has copies of the datagrams it took: nothing is pinned or needs flushing.
        self.completed = None;
        for line in &mut self.lines {
            line.taken = Sequence::NONE;
        }
    }

    fn datagram_len_max(&self) -> usize {
        self.datagram_len_max
    }

    fn stats(&self) -> &[SendStats] {
        &self.stats
    }
}

fn taken_by_all(lines: &[Line]) -> Sequence {
    lines
        .iter()
        .map(|line| line.taken)
        .min()
        .unwrap_or_default()
}

/// Returns the datagram of a sealed slot.
fn slot(slots: &dyn Slots, sequence: Sequence, len_max: usize) -> Result<&[u8], FanOutError> {
    let slot = slots.slot(sequence);
    let slot = slot.ok_or(FanOutError::NotSealed { sequence })?;
    check_len(slot, len_max).map(|()| slot)
}

fn check_len(bytes: &[u8], max: usize) -> Result<(), FanOutError> {
    let len = bytes.len();
    if len > max {
        return Err(FanOutError::TooLong { len, max });
    }
    Ok(())
}

/// The outcome of one datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alone {
    Sent,
    /// The send buffer is full.
    Full,
    Refused,
}

/// Sends one datagram, for which the kernel needs neither a header nor an address.
#[inline]
fn send_alone(socket: &Socket, bytes: &[u8], stats: &mut SendStats) -> Alone {
    // As in `send_all`: the first error may belong to an earlier datagram.
    for is_last in [false, true] {
        let sent = socket.send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        match outcome(sent) {
            Outcome::Sent(_) => {
                stats.batches += 1;
                stats.datagrams += 1;
                stats.bytes += bytes.len() as u64;
                return Alone::Sent;
            }
            Outcome::Full => return Alone::Full,
            Outcome::Refused(errno) if is_last => stats.last_errno = errno,
            Outcome::Refused(_) => {}
        }
    }
    Alone::Refused
}

/// Sends the batch, up to the first message that does not pass.
fn send_all(socket: &Socket, batch: &mut Gathered<'_>, stats: &mut SendStats) -> Taken {
    let (mut at, mut tried_again) = (0, false);
    let mut taken = Taken {
        datagrams: 0,
        full: false,
        uncut: false,
    };
    while let Some(&next) = batch.messages().get(at) {
        match outcome(batch.send(socket.as_raw_fd(), at)) {
            Outcome::Sent(count) => {
                stats.batches += 1;
                for message in &batch.messages()[at..at + count] {
                    taken.datagrams += message.datagrams;
                    stats.datagrams += message.datagrams as u64;
                    stats.bytes += message.bytes as u64;
                    if message.is_run() {
                        stats.runs += 1;
                        stats.run_datagrams += message.datagrams as u64;
                        stats.padding_bytes += message.padding() as u64;
                    }
                }
                at += count;
                tried_again = false;
            }
            Outcome::Full => {
                taken.full = true;
                break;
            }
            // The error may belong to an earlier datagram and be reported late, so retry once.
            Outcome::Refused(_) if !tried_again => tried_again = true,
            Outcome::Refused(errno) => {
                stats.last_errno = errno;
                if next.is_run() && cutting_was_refused(errno) {
                    taken.uncut = true;
                    break;
                }
                taken.datagrams += next.datagrams;
                stats.refused += next.datagrams as u64;
                at += 1;
                tried_again = false;
            }
        }
    }
    taken
}

fn outcome(result: io::Result<usize>) -> Outcome {
    let source = match result {
        Ok(count) => return Outcome::Sent(count),
        Err(source) => source,
    };
    match source.raw_os_error() {
        // ENOBUFS is not in this list: the interface's queue has dropped the datagram. A retry until it
        // passes would send it to this host's own receivers each time.
        Some(libc::EAGAIN | libc::ENOMEM | libc::EINTR) => Outcome::Full,
        // No error of one line ends the feed: it is counted, and the other lines continue.
        errno => Outcome::Refused(errno.unwrap_or(libc::EIO)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::super::socket::set_option;
    use super::*;

    /// Returns a fan-out over local sockets, whose queues fill. Loopback never fills a send buffer.
    fn fan_out(lines: usize) -> (UdpFanOut, Vec<UnixDatagram>) {
        let pairs = (0..lines).map(|_| UnixDatagram::pair().unwrap());
        let (near, far): (Vec<_>, Vec<_>) = pairs.unzip();
        far.iter()
            .for_each(|socket| socket.set_nonblocking(true).unwrap());
        let near = near.into_iter().map(OwnedFd::from).collect();
        (UdpFanOut::over(near, 64), far)
    }

    /// Slots for every sequence up to 1000. The bytes of a slot are its sequence.
    struct Numbers(Vec<[u8; 8]>);

    impl Numbers {
        fn new() -> Self {
            Self((0..=1000u64).map(u64::to_le_bytes).collect())
        }
    }

    impl Slots for Numbers {
        fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
            self.0.get(sequence.0 as usize).map(<[u8; 8]>::as_slice)
        }
    }

    /// Slots that make runs. The bytes of a slot are its sequence.
    struct Wide(Vec<[u8; 64]>);

    impl Slots for Wide {
        fn slot(&self, sequence: Sequence) -> Option<&[u8]> {
            self.0.get(sequence.0 as usize).map(<[u8; 64]>::as_slice)
        }
    }

    fn drain(socket: &UnixDatagram, into: &mut Vec<u64>) {
        let mut bytes = [0; 8];
        while let Ok(8) = socket.recv(&mut bytes) {
            into.push(u64::from_le_bytes(bytes));
        }
    }

    fn up_to(first: u64, last: u64) -> SequenceRange {
        SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
    }

    #[test]
    fn stalled_line_delays_no_other_and_misses_nothing() {
        let (mut fan_out, far) = fan_out(2);
        let slots = Numbers::new();
        let (mut on_a, mut on_b, mut next) = (Vec::new(), Vec::new(), 1);
        // Line A is read now and then, line B only while nothing else happens.
        while next <= 1000 {
            let posted = fan_out.post(&slots, up_to(next, 1000)).unwrap();
            assert_eq!(posted.stalled, posted.last != Some(Sequence(1000)));
            next = posted.last.map_or(next, |last| last.0 + 1);
            let before = on_a.len();
            drain(&far[0], &mut on_a);
            if on_a.len() == before {
                drain(&far[1], &mut on_b);
            }
        }
        far.iter()
            .zip([&mut on_a, &mut on_b])
            .for_each(|(f, to)| drain(f, to));
        let all: Vec<u64> = (1..=1000).collect();
        assert_eq!((&on_a, &on_b), (&all, &all), "each once, in order");
        assert!(fan_out.stats()[1].stalls > 0);
        assert_eq!(fan_out.completed(), Some(Sequence(1000)));
    }

    #[test]
    fn fan_out_reset_realigns_lines_after_stall() {
        let (mut fan_out, far) = fan_out(2);
        let slots = Numbers::new();
        let (mut on_a, mut on_b) = (Vec::new(), Vec::new());
        while fan_out.send_copy(&[0; 8]).unwrap() {}
        drain(&far[0], &mut on_a);
        let posted = fan_out.post(&slots, up_to(1, 3)).unwrap();
        assert_eq!(
            (posted.last, posted.stalled),
            (None, true),
            "line B is full"
        );
        fan_out.reset();
        drain(&far[0], &mut on_a);
        drain(&far[1], &mut on_b);
        on_a.clear();
        on_b.clear();
        let posted = fan_out.post(&slots, up_to(1, 3)).unwrap();
        assert_eq!(posted.last, Some(Sequence(3)));
        drain(&far[0], &mut on_a);
        drain(&far[1], &mut on_b);
        assert_eq!((on_a, on_b), (vec![1, 2, 3], vec![1, 2, 3]));
    }

    /// Returns a fan-out whose kernel refuses to cut runs, because checksums are off; its receiver; and a
    /// function that turns checksums on again.
    fn uncut() -> (UdpFanOut, std::net::UdpSocket, impl Fn(&UdpFanOut)) {
        let receiver = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_nonblocking(true).unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(receiver.local_addr().unwrap()).unwrap();
        let no_check = |socket: &Socket, value: i32| {
            set_option(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, value).unwrap();
        };
        let (mut fan_out, _) = fan_out(1);
        fan_out.lines[0].socket = socket.into();
        fan_out.lines[0].runs = Runs::new(64);
        fan_out.stats[0].gso = true;
        no_check(&fan_out.lines[0].socket, 1);
        (fan_out, receiver, move |fan_out| {
            no_check(&fan_out.lines[0].socket, 0);
        })
    }

    #[test]
    fn kernel_without_gso_gets_single_datagrams() {
        let (mut fan_out, receiver, _) = uncut();
        let slots = Wide((0..=100).map(|n| [n; 64]).collect());
        for (first, last) in [(1, 1), (2, 90), (91, 100)] {
            let posted = fan_out.post(&slots, up_to(first, last)).unwrap();
            assert_eq!((posted.last, posted.stalled), (Some(Sequence(last)), false));
        }
        let (mut bytes, mut seen) = ([0; 64], Vec::new());
        while let Ok(64) = receiver.recv(&mut bytes) {
            seen.push(bytes[63]);
        }
        assert_eq!(seen, (1..=100).collect::<Vec<_>>());
        let stats = fan_out.stats()[0];
        assert_eq!((stats.datagrams, stats.refused), (100, 0));
        assert_eq!((stats.gso, stats.runs, stats.runs_refused), (false, 0, 1));
        assert_eq!(stats.last_errno, libc::EINVAL);
    }

    #[test]
    fn refused_gso_runs_are_retried_until_accepted() {
        let (mut fan_out, receiver, cut_again) = uncut();
        let slots = Wide(vec![[7; 64]; 1 + 64]);
        let mut bytes = [0; 64];
        // Sends this many datagrams, 64 per post, and returns the line's state.
        let mut send = |fan_out: &mut UdpFanOut, datagrams: u64| {
            for _ in 0..datagrams / 64 {
                fan_out.reset();
                let posted = fan_out.post(&slots, up_to(1, 64)).unwrap();
                assert_eq!(posted.last, Some(Sequence(64)));
                (0..64).for_each(|_| assert_eq!(receiver.recv(&mut bytes).unwrap(), 64));
            }
            let stats = fan_out.stats()[0];
            (stats.gso, stats.runs_refused, stats.runs > 0)
        };
        assert_eq!(send(&mut fan_out, 4096), (false, 1, false));
        assert_eq!(
            send(&mut fan_out, 8192),
            (false, 2, false),
            "tried, in vain"
        );
        cut_again(&fan_out);
        assert_eq!(
            send(&mut fan_out, 64),
            (true, 2, true),
            "they are sent again"
        );
    }

    #[test]
    fn single_datagram_waits_and_is_refused_like_many() {
        let (mut fan_out, mut far) = fan_out(2);
        let slots = Numbers::new();
        let (mut on_a, mut on_b, mut stalls) = (Vec::new(), Vec::new(), 0);
        for next in 1..=999 {
            while fan_out.post(&slots, up_to(next, next)).unwrap().stalled {
                stalls += 1;
                drain(&far[stalls % 2], [&mut on_a, &mut on_b][stalls % 2]);
            }
        }
        (far.iter().zip([&mut on_a, &mut on_b])).for_each(|(from, to)| drain(from, to));
        let all: Vec<u64> = (1..=999).collect();
        assert_eq!((&on_a, &on_b), (&all, &all), "each once, in order");
        assert!(stalls > 0 && fan_out.stats()[0].stalls > 0);
        assert_eq!(fan_out.stats()[0].bytes, 8 * 999);
        drop(far.remove(0));
        let posted = fan_out.post(&slots, up_to(1000, 1000)).unwrap();
        assert_eq!((posted.last, posted.stalled), (Some(Sequence(1000)), false));
        let stats = fan_out.stats();
        assert_eq!((stats[0].refused, stats[0].datagrams), (1, 999));
        assert_eq!((stats[1].refused, stats[1].datagrams), (0, 1000));
    }

    #[test]
    fn failed_socket_is_counted_while_other_line_continues() {
        // A file is no socket: every send fails with ENOTSOCK.
        let file = std::fs::File::open("/dev/null").unwrap();
        let (near, far) = UnixDatagram::pair().unwrap();
        let mut lines = [OwnedFd::from(file), near.into()].map(|it| UdpFanOut::over(vec![it], 64));
        for range in [up_to(1, 1), up_to(2, 5)] {
            for line in &mut lines {
                let posted = line.post(&Numbers::new(), range).unwrap();
                assert_eq!((posted.last, posted.stalled), (Some(range.last), false));
                assert!(line.send_copy(&[0; 8]).unwrap(), "refused is not stalled");
            }
        }
        let [broken, well] = lines.map(|line| line.stats()[0]);
        assert_eq!((broken.refused, broken.datagrams), (5, 0));
        assert_eq!(broken.last_errno, libc::ENOTSOCK);
        assert_eq!((well.refused, well.datagrams), (0, 7));
        drop(far);
    }

    #[test]
    fn refused_send_is_counted_while_other_line_continues() {
        let (mut fan_out, mut far) = fan_out(2);
        drop(far.remove(0));
        let posted = fan_out.post(&Numbers::new(), up_to(1, 5)).unwrap();
        assert_eq!((posted.last, posted.stalled), (Some(Sequence(5)), false));
        let stats = fan_out.stats();
        assert_eq!((stats[0].refused, stats[0].datagrams), (5, 0));
        assert_ne!(stats[0].last_errno, 0);
        assert_eq!(stats[1].datagrams, 5);
        assert!(
            fan_out.send_copy(&[0; 8]).unwrap(),
            "refused is not stalled"
        );
        // A refused heartbeat is not counted as refused: no datagram of the stream is missing.
        let stats = fan_out.stats();
        assert_eq!((stats[0].refused, stats[0].unpinned_sends_dropped), (5, 1));
        assert_eq!((stats[1].refused, stats[1].unpinned_sends_dropped), (0, 0));
    }
}
