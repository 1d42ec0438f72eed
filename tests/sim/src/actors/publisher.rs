//! A publisher in virtual time: the shipped cores of publishing and repair over small rings, one
//! per channel, and the state of a process that runs, pauses or is gone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tickcast_journal::JournaledServer;
use tickcast_reliability::control::{FanOutOffer, RepairOffer, UdpLine};
use tickcast_reliability::serve::{ChannelInfo, Destination, PeerId, RepairCore};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Now, RepairServiceCounters, Sequence};

use crate::checks::budgets::BudgetCheck;
use crate::checks::multicast_repair::MulticastRepairCheck;
use crate::checks::refusals::RefusalCheck;
use crate::faults::plan::Plan;
use crate::faults::plan::channels;
use crate::feed::Feed;
use crate::feed::journal;
use crate::network::cursors::Cursors;
use crate::network::reads::Granted;
use crate::truth::Truth;

/// An input to a publisher's process, queued while the process is paused.
#[derive(Clone, Copy, Debug)]
pub enum Arrival {
    /// A connection was accepted.
    Connected(usize),
    /// Bytes arrived on a connection.
    Bytes(usize),
    /// A connection closed.
    Closed(usize),
}

/// A publisher in virtual time.
pub struct PublisherActor {
    /// The feeds, one per channel. A feed is absent only while it runs as an interruption.
    pub feeds: Vec<Feed>,
    /// The repair service.
    pub repair: JournaledServer,
    /// The publisher's epoch.
    pub epoch: Epoch,
    /// Whether the process is running or paused.
    pub alive: bool,
    /// Whether the host is gone, so that no connection to it is reset.
    pub dark: bool,
    /// Whether the process is paused.
    pub paused: bool,
    /// Whether it seals nothing more, because it hands over to a standby.
    pub hands_over: bool,
    /// Whether each fan-out's transport accepts no more datagrams.
    pub stalled: [bool; 2],
    /// Connections by peer.
    pub peers: BTreeMap<PeerId, usize>,
    /// Peers that announced that they leave; they must be removed at once.
    pub left: BTreeSet<PeerId>,
    /// Inputs queued while paused.
    pub waiting: VecDeque<Arrival>,
    /// Time of the next wake-up.
    pub wakes_at: Nanos,
    /// Number of consecutive wake-ups that were due at once.
    pub spins: u32,
    /// Check on budgets, requests and repairs, from outside.
    pub budgets: BudgetCheck,
    /// Check on refusals.
    pub refusals: RefusalCheck,
    /// Check on multicast repairs and STATUS messages.
    pub replies: MulticastRepairCheck,
    /// Granted READs.
    pub granted: Granted,
    /// Cursors that subscribers write.
    pub cursors: Cursors,
}

impl PublisherActor {
    /// Opens `epoch`, on each channel with the given first sequence and record.
    ///
    /// # Errors
    /// Settings of the plan that are impossible.
    pub fn open(
        plan: &Plan,
        epoch: Epoch,
        firsts: &[(u64, u64)],
        truth: &mut Truth,
        now: Now,
    ) -> Result<Self, String> {
        let feeds = channels(plan).zip(firsts).map(|(channel, first)| {
            let nth = truth.open(channel, epoch, (Sequence(first.0), first.1));
            Feed::open(plan, (channel, epoch, nth), *first, now)
        });
        let feeds = feeds.collect::<Result<Vec<_>, _>>()?;
        Ok(Self::with(plan, (epoch, 0), feeds, now))
    }

    /// Returns a publisher of this epoch and process number with these feeds, one per channel.
    #[must_use]
    pub fn with(plan: &Plan, (epoch, life): (Epoch, u64), feeds: Vec<Feed>, now: Now) -> Self {
        let line = UdpLine {
            group: std::net::SocketAddrV4::new(std::net::Ipv4Addr::new(239, 0, 0, 1), 4000),
            sender: std::net::Ipv4Addr::LOCALHOST,
        };
        let offer = FanOutOffer::Udp {
            lines: vec![line; plan.lines.into()],
        };
        let served = feeds.iter().enumerate().map(|(index, feed)| {
            let info = ChannelInfo {
                name: format!("sim-{index}"),
                fan_outs: vec![offer.clone(); plan.fan_outs.into()],
                directory: Vec::new(),
                heartbeat: plan.heartbeat,
            };
            (info, feed.reader.clone(), Arc::clone(&feed.repair))
        });
        let served = served.collect();
        let service: Arc<RepairServiceCounters> = Arc::default();
        let twins = feeds.first().map_or(0, |f| f.nth as u64);
        let seed = plan.seed ^ epoch.0 ^ twins << 50 ^ life << 40;
        let mut secret = [0; 32];
        secret[..8].copy_from_slice(&seed.to_le_bytes());
        let repair = RepairCore::new(plan.repair, "sim".into(), served, service, secret, now);
        let mut repair = JournaledServer::new(repair);
        for feed in &feeds {
            if let Some(keys) = feed.core.ring().keys() {
                repair.authenticate(feed.channel, keys.clone());
            }
        }
        if plan.recorded.is_some() {
            journal::record_repair(&mut repair, now);
        }
        if plan.nack_path || plan.read_path {
            let address = std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 4001);
            repair.set_repair_offers(vec![RepairOffer::Verbs {
                address,
                read: plan.read_path,
                mirror: plan.inboxes,
            }]);
            repair.set_standbys(plan.written_to());
        }
        Self {
            repair,
            refusals: RefusalCheck::new(plan.repair, &feeds, now.monotonic),
            replies: MulticastRepairCheck::new(plan.repair),
            feeds,
            epoch,
            alive: true,
            dark: false,
            paused: false,
            hands_over: false,
            stalled: [false; 2],
            peers: BTreeMap::new(),
            left: BTreeSet::new(),
            waiting: VecDeque::new(),
            wakes_at: Nanos::MAX,
            spins: 0,
            budgets: BudgetCheck::new(&plan.repair),
            granted: Granted::default(),
            cursors: Cursors::default(),
        }
    }

    /// Adds the datagrams that the feeds sealed to the truth.
    ///
    /// # Errors
    /// A record number in the ring that does not follow from the records that the feed made.
    pub fn write_down(&mut self, truth: &mut Truth) -> Result<(), String> {
        for feed in &mut self.feeds {
            let ring = truth.ring_mut(feed.channel, self.epoch, feed.nth);
            let ring = ring.ok_or("no such ring")?;
            for (kind, first_record, count) in feed.journal.drain(..) {
                if first_record != ring.next_record() {
                    let (due, last) = (ring.next_record(), ring.last());
                    return Err(format!("record {first_record} after {last}, {due} is due"));
                }
                ring.seal(kind, count);
            }
            let (reported, made) = (ring.next_record(), feed.number());
            let (whole, last) = (!feed.core.is_open(), ring.last());
            if last != feed.core.sealed() || reported > made || (whole && reported != made) {
                return Err(format!(
                    "{made} is the next record, the ring says {reported} after {last}"
                ));
            }
        }
        Ok(())
    }

    /// Checks repairs that were sent: they equal the sealed datagrams, and the ring is unchanged.
    ///
    /// # Errors
    /// A sequence that was not requested, a datagram or slot that changed, or too many multicast
    /// repairs of one sequence.
    pub fn gave_out(&mut self, destination: Destination, out: &[u8]) -> Result<(), String> {
        let (only, peer) = match destination {
            Destination::Multicast(channel) => (Some(channel), None),
            Destination::Peer(peer) => (None, Some(peer)),
        };
        for feed in &mut self.feeds {
            if only.is_some_and(|only| only != feed.channel) {
                continue;
            }
            for sequence in feed.output.answered(feed.channel, peer, out)? {
                if let Some(slot) = feed.core.slot(sequence) {
                    feed.output.unchanged(slot)?;
                }
                if only.is_some() {
                    feed.output.multicast_again(sequence)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the feed of a channel.
    #[must_use]
    pub fn feed(&self, channel: ChannelId) -> Option<&Feed> {
        self.feeds.iter().find(|feed| feed.channel == channel)
    }

    /// Returns whether all feeds have ended.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.feeds.iter().all(|feed| feed.finished)
    }
}
