//! The receiving core under a list of operations: an honest publisher, a network that drops, delays and
//! damages its datagrams, READs that return damaged or late, changing epochs, control messages, and time.
//!
//! Publisher and clock are those of `reliability/tests/receiving`. The input chooses the operations.

use tickcast_reliability::control::{FRAME_HEAD_LEN, Message, RepairOffer, Start};
use tickcast_reliability::delivery::{Delivery, LineId, LinkDownReason};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::record::AlignedCopy;
use tickcast_reliability::session::{Path, SubscriberInput};
use tickcast_reliability::types::{Nanos, RecordNumber};
use tickcast_reliability::wire::{CrcVerdict, Datagram};

use crate::bytes::Bytes;
use crate::world::{A, B, CHANNEL, CURSOR, Publisher, World, immediate};

/// Maximum number of operations in a run.
const OPERATIONS_MAX: usize = 300;
/// Maximum number of datagrams that wait for a late delivery.
const DELAYED_MAX: usize = 16;

/// Asserts these invariants for any input:
/// - The core does not panic, and comes to rest.
/// - Each record is delivered once, under its own number and in order.
/// - Gaps = recovered + lost + forgotten + open.
/// - Each datagram is counted, and an unusable one by its reason.
///
/// After the faults stop, and if the publisher never lied:
/// - The subscriber reaches its END.
/// - Delivered + lost = published, for each line of epochs.
pub fn receive_core(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let mut run = Run::new(&mut input);
    for _ in 0..OPERATIONS_MAX {
        let Some(operation) = input.next() else {
            break;
        };
        run.operation(operation, &mut input);
    }
    run.end();
}

struct Run {
    publisher: Publisher,
    world: World,
    /// Whether records are delivered in order, not on arrival.
    ordered: bool,
    delayed: Vec<Vec<u8>>,
    /// The next record number of the furthest publisher on this line of epochs.
    furthest: u64,
    /// Counters at the end of the last epoch without a successor.
    left: Counted,
    /// Whether a message arrived that no honest publisher sends. The losses that it states may be false.
    lied_to: bool,
}

/// A subscriber's counters of a line of epochs.
#[derive(Clone, Copy, Default)]
struct Counted {
    delivered: u64,
    fenced: u64,
    lost: u64,
    of_unknown_size: u64,
}

impl Run {
    fn new(input: &mut Bytes<'_>) -> Self {
        let options = input.byte();
        let first = [1, (1 << 32) - 100, u64::MAX - 2_000, 1 << 16][usize::from(options & 3)];
        let delivery = match options >> 2 & 3 {
            0 | 1 => Delivery::Ordered,
            2 => Delivery::OrderedWithin(Nanos::from_ms(1)),
            _ => Delivery::Arrival,
        };
        let lines = 1 + usize::from(options >> 4 & 1);
        let config = ReceiverConfig {
            delivery,
            repair: options & 0x20 == 0,
            window_slots: 64,
            burst_max: if options & 0x40 == 0 { 100 } else { 4 },
            ..immediate()
        };
        let publisher = Publisher::new(5, first);
        let mut world = World::new(config, Start::Live, lines);
        if options & 0x80 != 0 {
            world.repairs = vec![RepairOffer::Verbs {
                address: std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 7400),
                read: true,
                mirror: false,
            }];
            world.cursor = Some(CURSOR);
            world.give(SubscriberInput::UseNackPath(true));
            world.give(SubscriberInput::UseReadPath(true));
        }
        world.settle(&publisher);
        Self {
            publisher,
            world,
            ordered: delivery != Delivery::Arrival,
            delayed: Vec::new(),
            furthest: 1,
            left: Counted::default(),
            lied_to: false,
        }
    }

    fn operation(&mut self, operation: u8, input: &mut Bytes<'_>) {
        let line = if operation & 0x80 == 0 { A } else { B };
        match operation & 0x1f {
            0..=3 => {
                let bytes = self.publish(operation & 3);
                self.hear(line, &bytes);
            }
            // Lost.
            4..=6 => drop(self.publish(operation & 3)),
            7 if self.delayed.len() < DELAYED_MAX => {
                let bytes = self.publish(1);
                self.delayed.push(bytes);
            }
            7 | 8 if !self.delayed.is_empty() => {
                let bytes = self
                    .delayed
                    .swap_remove(usize::from(input.byte()) % self.delayed.len());
                self.hear(line, &bytes);
            }
            // A repetition of a datagram that this publisher sent some time ago.
            9 => {
                let back = usize::from(input.byte());
                let again = self.publisher.sent.values().rev().nth(back).cloned();
                again.into_iter().for_each(|bytes| self.hear(line, &bytes));
            }
            10 => {
                let mut bytes = self.publish(2);
                let at = usize::from(input.byte()) % bytes.len();
                bytes[at] ^= input.byte();
                self.hear(line, &bytes);
            }
            11 => {
                let bytes = self.publish(2);
                let len = usize::from(input.byte()) % bytes.len();
                self.hear(line, &bytes[..len]);
            }
            12 => self.hear(line, &self.publisher.heartbeat()),
            13 => {
                let (hold_off_us, subscribers) = (input.byte(), input.byte());
                let bytes = self
                    .publisher
                    .heartbeat_with(hold_off_us.into(), subscribers.into());
                self.hear(line, &bytes);
            }
            14 => self.pass(Nanos::from_us(u64::from(input.byte()) + 1)),
            15 => self.pass(Nanos::from_us(u64::from(input.byte()) * 200)),
            16 if !self.lied_to => self.world.answer = !self.world.answer,
            17 => self.world.rc_answers = !self.world.rc_answers,
            18 => {
                self.world.cut(LinkDownReason::Closed);
                self.world.settle(&self.publisher);
            }
            19 => self.world.connectable = !self.world.connectable,
            // The ring moves on.
            20 => {
                let oldest = self.publisher.next.saturating_sub(input.byte().into());
                self.publisher.oldest = self.publisher.oldest.max(oldest);
            }
            21 => self.promote(u64::from(input.byte() % 4)),
            22 => self.restart(),
            // A datagram of another publisher: of an epoch before all others, or of one that is never
            // confirmed.
            23 => {
                let epoch = [2, self.publisher.epoch.0 + 500][usize::from(input.byte() & 1)];
                let mut other = Publisher::new(epoch, self.publisher.next);
                other.next_record = self.publisher.next_record;
                self.hear(line, &other.publish(1));
            }
            24 => {
                let bytes = input.slice(80);
                self.hear(line, bytes);
            }
            25 => self.world.give(SubscriberInput::UnknownSender(CHANNEL)),
            26 => self.lie(input),
            // READs stand still, or go on.
            27 if !self.lied_to => self.world.reads = !self.world.reads,
            // A stalled READ returns with some bytes of its slots changed.
            28 if !self.lied_to && !self.world.read_requests.is_empty() => {
                let request = self.world.read_requests.remove(0);
                let (at, by) = (usize::from(input.byte()) * 64, input.byte());
                let spoil = |bytes: &mut [u8]| {
                    bytes.iter_mut().skip(at).take(64).for_each(|it| *it ^= by);
                };
                self.world.read_done(&self.publisher, &request, spoil);
                self.world.settle(&self.publisher);
                self.check();
            }
            29 if !self.publisher.ended => {
                let bytes = self.publish_end();
                if input.byte() & 1 == 0 {
                    self.hear(line, &bytes);
                }
            }
            _ => self.world.settle(&self.publisher),
        }
    }

    fn publish(&mut self, count: u8) -> Vec<u8> {
        match self.publisher.ended {
            true => self.publisher.heartbeat(),
            false => self.publisher.publish(count.into()),
        }
    }

    /// Publishes END, after publishing again the records that a standby lacked.
    fn publish_end(&mut self) -> Vec<u8> {
        while self.publisher.next_record < self.furthest {
            self.publish(1);
        }
        self.publisher.end()
    }

    fn hear(&mut self, line: LineId, bytes: &[u8]) {
        let of = |run: &Self| {
            let c = run.world.counters();
            [
                &c.received_datagrams,
                &c.malformed_dropped,
                &c.corrupt_dropped,
            ]
            .map(|it| it.get())
        };
        let [received, malformed, corrupt] = of(self);
        self.world.hear(line, bytes);
        let mut aligned = AlignedCopy::default();
        let (is_malformed, is_corrupt) = match Datagram::parse(aligned.of(bytes)) {
            Err(_) => (1, 0),
            Ok(datagram) => (0, u64::from(datagram.verdict() == CrcVerdict::Bad)),
        };
        let counted = [received + 1, malformed + is_malformed, corrupt + is_corrupt];
        assert!(of(self) == counted || self.lied_to, "every datagram counts");
        self.check();
    }

    fn pass(&mut self, span: Nanos) {
        self.world.pass(span, &self.publisher);
        self.check();
    }

    /// Promotes a standby that lacks the last `missing` datagrams. Its epoch continues this one.
    fn promote(&mut self, missing: u64) {
        let epoch = self.publisher.epoch.0 + 1;
        let begun = self.publisher.sent.keys().next();
        let first = begun.copied().unwrap_or(self.publisher.next);
        let newest = self.publisher.next - 1;
        // The standby has its mirror, but at least all available datagrams, and at least one.
        let last = newest
            .saturating_sub(missing)
            .max(self.publisher.oldest)
            .max(first);
        if last > newest || self.publisher.ended {
            return;
        }
        self.furthest = self.furthest.max(self.publisher.next_record);
        self.publisher = self.publisher.promoted(epoch, last);
        self.world.cut(LinkDownReason::Closed);
        self.world.settle(&self.publisher);
        self.check();
    }

    /// Starts a new publisher that knows nothing of the previous one.
    fn restart(&mut self) {
        if self.lied_to {
            return;
        }
        let published = self.publisher.next_record.max(self.furthest) - 1;
        self.furthest = 1;
        self.publisher = Publisher::new(self.publisher.epoch.0 + 1, 1);
        (self.world.answer, self.world.connectable) = (true, true);
        self.delayed.clear();
        self.world.cut(LinkDownReason::Closed);
        let follows = |run: &Self| {
            let receiver = run.world.core.receiver(CHANNEL);
            receiver.is_some_and(|receiver| receiver.epoch() == run.publisher.epoch)
        };
        for _ in 0..100 {
            if follows(self) {
                break;
            }
            self.pass(Nanos::from_ms(100));
        }
        assert!(follows(self), "it follows a publisher that began anew");
        self.line_is_over(published);
        self.left = self.counted();
        self.world.records.clear();
    }

    fn counted(&self) -> Counted {
        let c = self.world.counters();
        Counted {
            delivered: c.delivered_records.get(),
            fenced: c.fenced_records.get(),
            lost: c.lost_records.get(),
            of_unknown_size: c.losses_of_unknown_size.get(),
        }
    }

    /// Asserts that each record of this line of epochs arrived once, in order if required. Delivered and
    /// lost records add up to all published ones, unless a loss of unknown size was declared.
    fn line_is_over(&mut self, published: u64) {
        if !self.ordered {
            self.world.records.sort_unstable();
        }
        let records = &self.world.records;
        assert!(records.windows(2).all(|two| two[0] < two[1]), "each once");
        let (all, left) = (self.counted(), self.left);
        let delivered = all.delivered - left.delivered;
        // Fenced records were delivered, or declared lost.
        let known = delivered + (all.lost - left.lost) - (all.fenced - left.fenced);
        assert!(known <= published || self.lied_to, "{known} of {published}");
        if all.of_unknown_size == left.of_unknown_size && !self.lied_to {
            assert_eq!(known, published, "delivered + lost = published");
        }
    }

    /// Delivers a control message of any kind, with a body from the input.
    fn lie(&mut self, input: &mut Bytes<'_>) {
        let (kind, len) = (input.byte() % 13, usize::from(input.byte()));
        let body = input.slice(len);
        let mut frame = vec![body.len() as u8, 0, 0, 0, kind, 0];
        frame.extend(CHANNEL.0.to_le_bytes());
        assert_eq!(frame.len(), FRAME_HEAD_LEN);
        frame.extend(body);
        if let Ok(Some((_, message, _))) = Message::read(&frame, 1 << 16) {
            (self.lied_to, self.world.answer, self.world.reads) = (true, false, false);
            self.world.tell(Path::Repair, &message);
            self.world.settle(&self.publisher);
            self.check();
        }
    }

    /// Asserts the invariants that hold at any time.
    fn check(&self) {
        let c = self.world.counters();
        assert_eq!(
            c.missing_datagrams.get(),
            c.missing_recovered.get()
                + c.missing_lost.get()
                + c.missing_superseded.get()
                + c.missing_open.get(),
            "gaps = recovered + lost + forgotten + open"
        );
        assert_eq!(
            c.replay_requested.get(),
            c.replay_received.get()
                + c.replay_lost.get()
                + c.replay_superseded.get()
                + c.replay_open.get(),
            "history = received + lost + forgotten + open"
        );
        assert_eq!(
            c.delivered_records.get(),
            self.left.delivered + self.world.records.len() as u64,
            "what is delivered is counted"
        );
        if let [.., before, last] = self.world.records[..]
            && self.ordered
        {
            assert!(before < last, "{last} after {before}");
        }
    }

    /// Stops the faults, and asserts the final invariants.
    fn end(mut self) {
        self.check();
        if !self.lied_to {
            self.world.answer = true;
            self.world.rc_answers = true;
            self.world.connectable = true;
            self.world.reads = true;
            if !self.publisher.ended {
                self.publish_end();
            }
            for _ in 0..100 {
                if self.world.core.ended() {
                    break;
                }
                self.world.hear(A, &self.publisher.heartbeat());
                self.pass(Nanos::from_ms(100));
            }
            assert!(self.world.core.ended(), "everything settles in the end");
            assert_eq!(self.world.counters().missing_open.get(), 0);
        }
        let reported = self.world.losses();
        let known: u64 = reported.iter().filter_map(|loss| loss.records).sum();
        assert_eq!(known, self.world.counters().lost_records.get(), "lost");
        self.line_is_over(self.publisher.next_record - 1);
        if !self.lied_to {
            let position = self
                .world
                .core
                .receiver(CHANNEL)
                .map(|r| r.position().record);
            assert_eq!(position, Some(RecordNumber(self.publisher.next_record)));
        }
    }
}
