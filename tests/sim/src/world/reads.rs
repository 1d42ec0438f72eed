//! READ in virtual time: the publisher's device copies bytes out of the ring without parsing them,
//! whatever its process does meanwhile, and a writer that continues tears them. A connection can
//! READ only the ring and the number of bytes that were granted to it.

use rand::RngExt;
use tickcast_reliability::control::RemoteAccess;
use tickcast_reliability::receive::RemoteOp;
use tickcast_reliability::ring::offset;
use tickcast_reliability::serve::RepairEvent;
use tickcast_reliability::session::{Path, ReadLimits, RemoteRequest, SubscriberInput};
use tickcast_reliability::types::{ChannelId, Nanos, Sequence};
use tickcast_reliability::wire::{CrcVerdict, Datagram};

use crate::network::clock_queue::Event;
use crate::network::reads::{HalfRead, READS};
use crate::network::stream::index_of;
use crate::world::drive_subscriber::Came;
use crate::world::{World, now_of};

/// Interval at which a delayed transfer is retried.
const RETRANSMIT: Nanos = Nanos::from_ms(1);
/// Maximum number of WRITEs in flight.
const WRITES: u32 = 2;
/// Longest time in nanoseconds that a device takes to copy a READ.
const COPYING: u64 = 20_000;

/// Returns the address of a channel's ring. Rings are far apart, so that an address identifies its
/// channel.
const fn ring_at(channel: ChannelId) -> u64 {
    (channel.0 as u64 + 1) << 40
}

fn word(page: &[u8], at: usize) -> u64 {
    let word = page.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

/// Returns the last sequence sent by any fan-out, as a control page shows it.
fn sent(page: &[u8]) -> Sequence {
    let fan_outs = word(page, offset::FAN_OUTS) as usize;
    let sent = (0..fan_outs).map(|at| word(page, offset::SENT + at * 8));
    Sequence(sent.max().unwrap_or(0))
}

impl World {
    /// Returns the limits of a READ connection.
    pub(crate) const fn read_limits(&self) -> ReadLimits {
        ReadLimits {
            reads: READS,
            len_max: self.plan.slot_len * self.plan.read_slots,
            writes: WRITES,
        }
    }

    /// Binds windows for a connection that joined for READ, as the publisher's driver does.
    pub(crate) fn bind(&mut self, index: usize, event: &RepairEvent) -> Result<(), String> {
        let RepairEvent::ReadJoined { peer, channels, .. } = event else {
            return Ok(());
        };
        let Some(&connection) = self.publishers[index].peers.get(peer) else {
            return Ok(());
        };
        let now = now_of(self.now, self.utc);
        for channel in channels {
            let publisher = &mut self.publishers[index];
            let feed = publisher.feed(*channel).ok_or("no such ring")?;
            let ring = RemoteAccess {
                address: ring_at(*channel),
                len: feed.reader.geometry().bytes() as u64,
                key: connection as u32,
            };
            publisher.repair.grant(now, *peer, *channel, ring);
            self.lease(index, *peer, *channel);
        }
        Ok(())
    }

    /// Begins all READs that the core requests, as the subscriber's driver does. Returns whether
    /// there were any.
    pub(crate) fn begin_reads(&mut self, number: usize) -> Result<bool, String> {
        let mut busy = false;
        while let Some(request) = self.subscribers[number].core.poll_remote() {
            busy = true;
            for of in &mut self.subscribers[number].following {
                match request.what {
                    _ if self.plan.impostor || of.disturbed => {}
                    RemoteOp::Slots(range) if of.channel == request.channel => {
                        let found = of.loss_reason.found(range.first);
                        (of.asked.reads(range, found, self.now))
                            .map_err(|what| format!("subscriber {number}: {what}"))?;
                        of.first_nack.asks(range);
                        of.first_nack.begins_read(request.len.into(), self.now);
                    }
                    RemoteOp::Slots(_) | RemoteOp::Page | RemoteOp::Claim(_) => {
                        of.first_nack.begins_read(0, self.now);
                    }
                    RemoteOp::Report(_) => {}
                }
            }
            self.count(match request.what {
                RemoteOp::Slots(_) | RemoteOp::Page => "reads",
                RemoteOp::Claim(_) | RemoteOp::Report(_) => "cursor_writes",
            });
            if let Some(connection) = self.subscribers[number].connections[index_of(Path::Read)] {
                let at = self.now.after(self.plan.delay.0);
                self.connections[connection].reads_begun.push_back(request);
                self.schedule(at, Event::Reads(connection));
            }
        }
        Ok(busy)
    }

    /// Delivers READs to the publisher's device, in order.
    pub(crate) fn reads_arrive(&mut self, connection: usize) -> Result<(), String> {
        let of = &self.connections[connection];
        let (number, index) = (of.subscriber, of.publisher);
        let publisher = &self.publishers[index];
        if !(of.near && of.far && publisher.alive) || publisher.dark {
            return Ok(());
        }
        if self.is_closed(number, Path::Read, 1) {
            self.count("up_held");
            let again = self.now.after(RETRANSMIT);
            self.schedule(again, Event::Reads(connection));
            return Ok(());
        }
        while let Some(request) = self.connections[connection].reads_begun.pop_front() {
            self.read_begins(connection, request)?;
        }
        Ok(())
    }

    fn read_begins(&mut self, connection: usize, request: RemoteRequest) -> Result<(), String> {
        let index = self.connections[connection].publisher;
        let publisher = &mut self.publishers[index];
        let granted = &mut publisher.granted;
        let Some(&grant) = granted.find(connection, &request) else {
            return Err(format!("{request:?} over a connection without a grant"));
        };
        if matches!(request.what, RemoteOp::Claim(_) | RemoteOp::Report(_)) {
            let back = self.cursor_begins(connection, &grant, &request)?;
            return self.rest_follows(connection, request, back);
        }
        let from = request.address.checked_sub(grant.ring.address);
        let end = from.and_then(|at| at.checked_add(request.len.into()));
        if end.is_none_or(|end| end > grant.ring.len) || grant.ring.key != request.key {
            return Err(format!("{request:?} is not within {grant:?}"));
        }
        if let RemoteOp::Slots(range) = request.what {
            let slots = range.len().min(u64::from(self.plan.read_slots));
            if u64::from(request.len) != slots * u64::from(self.plan.slot_len) {
                return Err(format!("{request:?} is not of {} slots", range.len()));
            }
        }
        let channel = request.channel;
        let used = granted.used.entry((connection, channel)).or_default();
        // READs of the control page are small and are not charged.
        if matches!(request.what, RemoteOp::Slots(_)) {
            *used += u64::from(request.len);
        }
        if *used > grant.tokens {
            let tokens = grant.tokens;
            return Err(format!("{used} bytes were READ, granted are {tokens}"));
        }
        let feed = publisher.feed(channel).ok_or("no such ring")?;
        let mut bytes = vec![0; request.len as usize];
        let from = (request.address - grant.ring.address) as usize;
        feed.reader.raw(from, &mut bytes);
        self.tear(index, channel)?;
        self.rest_follows(connection, request, bytes)
    }

    /// Schedules the rest of a request that the device has done in part.
    fn rest_follows(
        &mut self,
        connection: usize,
        request: RemoteRequest,
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        let number = self.connections[connection].subscriber;
        let takes = self.subscribers[number].rng.random_range(0..COPYING);
        let half = HalfRead {
            connection,
            request,
            bytes,
        };
        // Requests complete one after the other, in the order in which they began.
        let of = &mut self.connections[connection];
        of.read_at = self.now.max(of.read_at).after(Nanos(takes));
        let at = of.read_at;
        self.schedule(at, Event::ReadRest(half));
        Ok(())
    }

    /// Sometimes laps the ring before the second half of a READ is copied.
    fn tear(&mut self, index: usize, channel: ChannelId) -> Result<(), String> {
        if !self.comes_round(index) || self.publishers[index].paused {
            return Ok(());
        }
        let mut feeds = self.publishers[index].feeds.iter();
        let Some(at) = feeds.position(|of| of.channel == channel) else {
            return Ok(());
        };
        let mut interruption = self.interrupt(index, at);
        interruption.run();
        self.interrupted(index, at, interruption)
    }

    /// Copies the rest of a READ and sends the bytes back.
    pub(crate) fn read_rest(&mut self, mut half: HalfRead) -> Result<(), String> {
        let of = &self.connections[half.connection];
        let (number, index) = (of.subscriber, of.publisher);
        if !(of.near && of.far && self.publishers[index].alive) {
            return Ok(());
        }
        let publisher = &self.publishers[index];
        let Some(grant) = publisher.granted.find(half.connection, &half.request) else {
            return Ok(());
        };
        match half.request.what {
            RemoteOp::Slots(_) | RemoteOp::Page => {
                let feed = publisher.feed(half.request.channel).ok_or("no such ring")?;
                let from = (half.request.address - grant.ring.address) as usize;
                // Words are copied whole, and either half may be copied last.
                let words = half.bytes.len() / 8;
                let rng = &mut self.subscribers[number].rng;
                let split = rng.random_range(0..=words) * 8;
                let rest = if rng.random_bool(0.5) {
                    split..half.bytes.len()
                } else {
                    0..split
                };
                feed.reader.raw(from + rest.start, &mut half.bytes[rest]);
            }
            RemoteOp::Claim(_) => {}
            RemoteOp::Report(words) => {
                let cursors = &mut self.publishers[index].cursors;
                cursors.finish(half.connection, &half.request, &words)?;
                half.bytes.clear();
            }
        }
        let rng = &mut self.subscribers[number].rng;
        let (least, most) = self.plan.delay;
        let pipe = &self.connections[half.connection].down;
        let jitter = Nanos(rng.random_range(0..=most.0 - least.0));
        // Results arrive in the order in which the READs began.
        let at = self.now.after(least).after(jitter).max(pipe.last_arrival);
        self.connections[half.connection].down.last_arrival = at;
        let done = Event::ReadDone(half.connection, half.request, half.bytes);
        self.schedule(at, done);
        Ok(())
    }

    /// Delivers the result of a READ to the subscriber.
    pub(crate) fn read_done(
        &mut self,
        connection: usize,
        request: RemoteRequest,
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        let of = &mut self.connections[connection];
        if !of.near {
            return Ok(());
        }
        of.reads_done.push_back((request, bytes));
        self.take_reads(connection)
    }

    /// Passes completed READs to the core, as the subscriber's driver does.
    pub(crate) fn take_reads(&mut self, connection: usize) -> Result<(), String> {
        let number = self.connections[connection].subscriber;
        if self.is_closed(number, Path::Read, 2) || self.subscribers[number].stalled {
            if !self.connections[connection].reads_done.is_empty() {
                self.count("down_held");
                let again = self.now.after(RETRANSMIT);
                self.schedule(again, Event::ReadAgain(connection));
            }
            return Ok(());
        }
        while self.connections[connection].near
            && let Some((request, bytes)) = self.connections[connection].reads_done.pop_front()
        {
            if !matches!(request.what, RemoteOp::Report(_)) {
                let now = self.now;
                let following = &mut self.subscribers[number].following;
                following
                    .iter_mut()
                    .for_each(|of| of.first_nack.ends_read(now));
            }
            let found = self.judge_read(number, &request, &bytes);
            self.with_datagrams(number, &found, Came::Answered, |core, now, mut on| {
                core.handle(
                    now,
                    SubscriberInput::Read {
                        tag: request.tag,
                        bytes: &bytes,
                    },
                    &mut on,
                );
            })?;
            while let Some(action) = self.subscribers[number].core.poll_action() {
                self.act(number, &action)?;
            }
        }
        self.pump(number)
    }

    /// Returns the requested datagrams among the slots of a READ. Later datagrams show that the
    /// ring was lapped, which is recorded.
    fn judge_read<'a>(
        &mut self,
        number: usize,
        request: &RemoteRequest,
        bytes: &'a [u8],
    ) -> Vec<&'a [u8]> {
        let wanted = match request.what {
            RemoteOp::Slots(wanted) => wanted,
            RemoteOp::Page => {
                self.judge_page(number, request, bytes);
                return Vec::new();
            }
            RemoteOp::Claim(_) | RemoteOp::Report(_) => return Vec::new(),
        };
        let slots = self.plan.ring_slots;
        let truth = &self.truth;
        let Some(of) = self.subscribers[number].following_mut(request.channel) else {
            return Vec::new();
        };
        of.asked.read(wanted, self.now);
        let followed = of.stream.followed();
        let (mut good, mut torn, mut lapped) = (Vec::new(), 0, 0);
        let each = bytes.chunks_exact(self.plan.slot_len as usize);
        for (wanted, bytes) in wanted.iter().zip(each) {
            let datagram = Datagram::parse(bytes).ok();
            let Some(datagram) = datagram.filter(|it| it.verdict() == CrcVerdict::Good) else {
                torn += 1;
                continue;
            };
            let (mut epoch, found) = (datagram.header().epoch, datagram.header().sequence);
            if truth.descent(request.channel, epoch, followed).is_some() {
                epoch = followed;
            }
            if found > wanted {
                let oldest = Sequence(found.0.saturating_sub(slots) + 1);
                of.loss_reason.lapped(epoch, oldest);
                lapped += 1;
            }
            good.extend((found == wanted).then_some(bytes));
        }
        for (fault, count, among) in [
            ("read_torn", torn, "torn among several"),
            ("read_lapped", lapped, "lapped among several"),
        ] {
            (0..count).for_each(|_| self.count(fault));
            if wanted.len() > 1 {
                self.tally.checked(among, count);
            }
        }
        if wanted.len() > 1 {
            self.tally.checked("slots READ together", wanted.len());
        }
        good
    }

    /// Records the signs of liveness in a control page.
    fn judge_page(&mut self, number: usize, request: &RemoteRequest, bytes: &[u8]) {
        self.count("page_reads");
        let core = &self.subscribers[number].core;
        let heard = core.receiver(request.channel).map(|it| it.progress().1);
        if let Some(of) = self.subscribers[number].following_mut(request.channel) {
            let (beat, sent) = (word(bytes, offset::HEARTBEAT_AT), sent(bytes));
            let before = std::mem::replace(&mut of.page_beat, beat);
            let ahead = heard.is_some_and(|heard| sent > heard);
            if ahead || (before != 0 && beat != before) {
                of.silence.status();
                of.loss_reason.page();
            }
        }
    }
}
