//! The input from a channel's groups, over any transport. It knows which senders are accepted, and counts
//! what the transport dropped before this crate received it.

use std::net::{Ipv4Addr, SocketAddr};

use tickcast_journal::{Dropped, Journaled, Note};
use tickcast_reliability::control::ChannelOffer;
use tickcast_reliability::delivery::LineId;
use tickcast_reliability::session::{SubscriberCore, SubscriberInput};
use tickcast_reliability::types::{
    ChannelId, Counter, Nanos, ReceiverCounters, Sequence, SequenceRange,
};
use tickcast_transport::faults::FaultyReceiver;
use tickcast_transport::{Receive, ReceiveError, ReceiveStats};

use super::transport_choice::{Host, TransportChoice};
use crate::config::{ChannelBuilder, SubscriberBuilder, Transport, display};
use crate::dispatch::Sink;
use crate::error::SubscribeError;
use crate::sync::wake::Waker;

/// The maximum wait of a waiting thread when the receiver has no descriptor.
const UNWATCHED_POLL_INTERVAL: Nanos = Nanos::from_us(50);

/// The input from one channel's groups.
pub(crate) struct ChannelInput {
    pub(crate) channel: ChannelId,
    /// The receivable form of the offer, kept for the comparison with a later offer.
    choice: TransportChoice,
    /// The addresses from which each line may be sent.
    senders: Vec<Ipv4Addr>,
    /// Group, interface and sender of each line, for messages.
    targets: Vec<String>,
    taken: Transport,
    receiver: Receiver,
    polled_at: Nanos,
    /// Datagrams of unknown senders that the transport dropped and the core has counted.
    unknown_senders: u64,
    /// Frames that the transport dropped as malformed and the core has counted.
    malformed: u64,
    /// The losses of multicast that were reported; `None` until the counter was read.
    multicast_lost: Option<u64>,
    /// The drops of the transport that are in the journal.
    dropped: Dropped,
    /// The injected faults that are in the journal: per line and log entry, the last sequence written.
    injected: [Vec<Sequence>; LineId::MAX],
}

enum Receiver {
    Plain(Box<dyn Receive>),
    Faulty(Box<FaultyReceiver<Box<dyn Receive>>>),
}

impl ChannelInput {
    /// Joins the groups of `offer`, or the groups that override them. `via` is this host's address of the
    /// connection to the publisher.
    pub(crate) fn open(
        builder: &SubscriberBuilder,
        channel: &ChannelBuilder,
        offer: &ChannelOffer,
        via: Option<SocketAddr>,
    ) -> Result<Self, SubscribeError> {
        let choice = TransportChoice::of(builder, channel, offer, &Host::current(via));
        let opened = choice.open(builder.transport, &display(&channel.channel), offer.newest)?;
        let (transport, why) = (opened.transport, opened.why);
        let lines = opened.senders.len();
        let targets = opened.targets;
        tracing::info!(
            channel = %offer.name,
            lines,
            "receives by {}: {why}; from {}",
            transport.text(),
            targets.join(", ")
        );
        let receiver = match &builder.faults {
            None => Receiver::Plain(opened.receiver),
            Some(faults) => {
                let mut faults = faults.clone();
                // Each channel uses two seeds, one per line, so the next channel's seeds follow.
                faults.seed = faults.seed.wrapping_add(u64::from(offer.channel.0) * 2);
                Receiver::Faulty(Box::new(FaultyReceiver::new(opened.receiver, &faults)?))
            }
        };
        Ok(Self {
            channel: offer.channel,
            choice,
            senders: opened.senders,
            targets,
            taken: transport,
            receiver,
            polled_at: Nanos::ZERO,
            unknown_senders: 0,
            malformed: 0,
            multicast_lost: None,
            dropped: Dropped::default(),
            injected: Default::default(),
        })
    }

    /// Returns whether it must close before another input opens the same groups.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.taken == Transport::Xdp
    }

    /// Returns the number of lines.
    pub(crate) const fn lines(&self) -> usize {
        self.senders.len()
    }

    /// Returns whether `offer` names the groups that this input receives, on the same interfaces.
    pub(crate) fn fits(
        &self,
        builder: &SubscriberBuilder,
        channel: &ChannelBuilder,
        offer: &ChannelOffer,
        via: Option<SocketAddr>,
    ) -> bool {
        TransportChoice::of(builder, channel, offer, &Host::current(via))
            .fits(&self.choice, self.taken)
    }

    /// Passes arrived datagrams to the core. Returns their number.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        now: Nanos,
        core: &mut Journaled<SubscriberCore>,
        sink: &mut impl Sink,
    ) -> Result<usize, ReceiveError> {
        let (channel, senders) = (self.channel, &self.senders);
        let mut deliver = |received: tickcast_transport::Received<'_>| {
            if senders.get(usize::from(received.line.0)) == Some(&received.from) {
                let at = (channel, received.line);
                core.handle_bytes(now, at, received.bytes, received.whole, sink);
            } else {
                core.handle(now, SubscriberInput::UnknownSender(channel), sink);
            }
        };
        let polled = match &mut self.receiver {
            Receiver::Plain(receiver) => receiver.poll(now, &mut deliver),
            Receiver::Faulty(receiver) => receiver.poll(now, &mut deliver),
        };
        if let Some((epoch, range)) = self.receive_mut().take_overrun() {
            let overrun = SubscriberInput::Overrun {
                channel,
                epoch,
                range,
            };
            core.handle(now, overrun, sink);
        }
        self.polled_at = now;
        let stats = self.receive().stats().iter();
        let (unknown_senders, malformed) = stats.fold((0, 0), |(unknown, malformed), line| {
            (unknown + line.unknown_senders, malformed + line.malformed)
        });
        for _ in self.unknown_senders..unknown_senders {
            core.handle(now, SubscriberInput::UnknownSender(channel), sink);
        }
        for _ in self.malformed..malformed {
            let frame = SubscriberInput::malformed(channel, LineId(0), &[]);
            core.handle(now, frame, sink);
        }
        (self.unknown_senders, self.malformed) = (unknown_senders, malformed);
        polled
    }

    /// Adds the sockets to the waker.
    pub(crate) fn watch(&self, waker: &Waker) -> std::io::Result<()> {
        let mut sockets = self.receive().fds().into_iter();
        sockets.try_for_each(|socket| waker.watch(socket, true, false))
    }

    /// Sets whether a thread waits on the receiver's descriptors.
    pub(crate) fn set_waited(&mut self, waited: bool) {
        self.receive_mut().set_waited(waited);
    }

    /// Returns the time of the next poll that no descriptor signals. This concerns receivers without a
    /// descriptor, and injected faults that release a datagram.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        if self.receive().raw_fds().is_empty() {
            return Some(self.polled_at.after(UNWATCHED_POLL_INTERVAL));
        }
        let faulty = self.faulty()?;
        let lines = (0..self.lines()).map(|line| LineId(line as u8));
        lines
            .filter_map(|line| faulty.injector(line)?.next_due())
            .min()
    }

    /// Leaves all groups and joins them again.
    pub(crate) fn rejoin(&mut self) -> Result<(), ReceiveError> {
        for line in 0..self.lines() {
            self.receive_mut().rejoin(LineId(line as u8))?;
        }
        Ok(())
    }

    /// Leaves one line's group until [`ChannelInput::rejoin`], like a network that loses its multicast state.
    #[cfg(feature = "testing")]
    pub(crate) fn leave(&mut self, line: LineId) -> Result<(), ReceiveError> {
        self.receive_mut().leave(line)
    }

    /// Copies the transport's drop counts to the counters.
    pub(crate) fn show(&self, counters: &ReceiverCounters) {
        show(self.receive().stats(), counters);
    }

    /// Returns a report if multicast was lost since the last call.
    pub(crate) fn lost_multicast(&mut self, counters: &ReceiverCounters) -> Option<String> {
        let count = counters.multicast_lost.get();
        let before = self.multicast_lost.replace(count).unwrap_or(count);
        (count > before).then(|| multicast_lost(self.taken, &self.targets))
    }

    /// Writes the drops since the last call to the journal.
    pub(crate) fn note(&mut self, now: Nanos, core: &mut Journaled<SubscriberCore>) {
        let dropped = Dropped {
            buffer: self.sum(|stats| stats.buffer_drops),
            oversize: self.sum(|stats| stats.oversize),
            q_key: self.sum(|stats| stats.wrong_q_keys),
            restarts: self.sum(|stats| stats.restarts),
        };
        if dropped != self.dropped {
            self.dropped = dropped;
            core.note(now, Note::Dropped(self.channel, dropped));
        }
        let Receiver::Faulty(faulty) = &self.receiver else {
            return;
        };
        for (line, noted) in self.injected.iter_mut().enumerate() {
            let line = LineId(line as u8);
            let Some(plan) = faulty.injector(line) else {
                continue;
            };
            for (nth, entry) in plan.log().entries().iter().enumerate() {
                let (first, last) = (entry.sequences.first, entry.sequences.last);
                if noted.len() <= nth {
                    noted.push(first.previous());
                }
                let new = SequenceRange::new(first.max(noted[nth].next()), last);
                if let Some(new) = new.filter(|_| entry.kind.withholds() && noted[nth] < last) {
                    core.note(now, Note::Injected(entry.channel, line, entry.epoch, new));
                }
                noted[nth] = last;
            }
        }
    }

    /// Returns the injected faults per line, or `None` without fault injection.
    pub(crate) fn faulty(&self) -> Option<&FaultyReceiver<Box<dyn Receive>>> {
        match &self.receiver {
            Receiver::Plain(_) => None,
            Receiver::Faulty(faulty) => Some(faulty),
        }
    }

    fn sum(&self, of: fn(&ReceiveStats) -> u64) -> u64 {
        self.receive().stats().iter().map(of).sum()
    }

    fn receive(&self) -> &dyn Receive {
        match &self.receiver {
            Receiver::Plain(receiver) => receiver,
            Receiver::Faulty(receiver) => &**receiver,
        }
    }

    fn receive_mut(&mut self) -> &mut dyn Receive {
        match &mut self.receiver {
            Receiver::Plain(receiver) => receiver,
            Receiver::Faulty(receiver) => &mut **receiver,
        }
    }
}

/// Returns the report of multicast that does not arrive: the groups, their interfaces, and the remedy.
#[cold]
fn multicast_lost(transport: Transport, targets: &[String]) -> String {
    let remedy = match transport {
        Transport::Shm => "Check that the connection's publisher is the one that writes the ring",
        Transport::Verbs => {
            "Check that the interface is on the publisher's network, or choose another. Check that the \
             device's port is active, and that the fabric forwards the group"
        }
        Transport::Xdp => {
            "Check that the interface is on the publisher's network, and that the frames carry no VLAN tag \
             there. Check the switch's IGMP querier, the publisher's `ttl`, and that its datagrams are no \
             longer than the MTU"
        }
        Transport::Udp | Transport::Auto => {
            "Check that the interface is on the publisher's network, or choose another. Check the \
             switch's IGMP querier, the publisher's `ttl`, the firewalls and rp_filter"
        }
    };
    format!(
        "multicast lost: nothing arrives from {}, while the publisher sends. The stream follows over \
         the repair connection. {remedy}",
        targets.join(" and ")
    )
}

/// Copies the transport counters, summed over all lines.
fn show(lines: &[ReceiveStats], counters: &ReceiverCounters) {
    let set = |counter: &Counter, of: fn(&ReceiveStats) -> u64| {
        counter.set(lines.iter().map(of).sum());
    };
    set(&counters.kernel_dropped, |stats| stats.buffer_drops);
    set(&counters.gro_lines, |stats| stats.gro.into());
    set(&counters.gro_runs, |stats| stats.runs);
    set(&counters.gro_datagrams, |stats| stats.run_datagrams);
    set(&counters.oversize_dropped, |stats| stats.oversize);
    set(&counters.q_key_dropped, |stats| stats.wrong_q_keys);
    set(&counters.receive_restarts, |stats| stats.restarts);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_multicast_names_group_and_interface() {
        let targets = ["A", "B"].map(|line| format!("{line} on eth0 (10.1.0.7)"));
        for (transport, remedy) in [
            (Transport::Udp, "IGMP querier"),
            (Transport::Verbs, "port is active"),
            (Transport::Shm, "writes the ring"),
            (Transport::Xdp, "VLAN tag"),
        ] {
            let report = multicast_lost(transport, &targets);
            let groups = "A on eth0 (10.1.0.7) and B on eth0 (10.1.0.7)";
            assert!(report.starts_with("multicast lost: nothing arrives from A"));
            assert!(
                report.contains(groups) && report.contains(remedy),
                "{report}"
            );
        }
    }

    #[test]
    fn line_stats_are_summed_in_channel_counters() {
        let line = |n| ReceiveStats {
            buffer_drops: n,
            oversize: 10 * n,
            wrong_q_keys: 100 * n,
            restarts: 1_000 * n,
            gro: n == 1,
            runs: 10_000 * n,
            run_datagrams: 100_000 * n,
            ..ReceiveStats::default()
        };
        let counters = ReceiverCounters::default();
        show(&[line(1), line(2)], &counters);
        let shown = [
            counters.kernel_dropped.get(),
            counters.oversize_dropped.get(),
            counters.q_key_dropped.get(),
            counters.receive_restarts.get(),
            counters.gro_lines.get(),
            counters.gro_runs.get(),
            counters.gro_datagrams.get(),
        ];
        assert_eq!(shown, [3, 30, 300, 3_000, 1, 30_000, 300_000]);
    }
}
