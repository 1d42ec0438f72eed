//! A subscriber's core under a publisher that follows no rule: any WELCOME, any control message on any
//! connection, any datagram, any bytes from a READ or in an inbox, at any time.

use std::ops::ControlFlow;
use std::sync::Arc;

use tickcast_reliability::control::{
    BODY_LEN_MAX_TO_SUBSCRIBER, CURSOR_LEN, ChannelName, Grant, Message, RefusalReason, Refused,
    RejectCode, Rejected, RemoteAccess, Start, Status,
};
use tickcast_reliability::delivery::{Delivery, Event, Item, LineId, LinkDownReason, LossCause};
use tickcast_reliability::receive::{InboxWanted, ReceiverConfig};
use tickcast_reliability::record::AlignedCopy;
use tickcast_reliability::ring::{Geometry, HeapMemory, RingMemory};
use tickcast_reliability::session::{
    Action, ChannelWanted, LinkTimers, Path, ReadLimits, RemoteRequest, SubscriberCore,
    SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Counter, Epoch, Nanos, ReceiverCounters, RecordNumber, Sequence,
    SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{
    Header, Heartbeat, Kind, PublisherState, SourceLossReason, StreamEvent, crc_of,
};

use crate::bytes::Bytes;

const CHANNEL: ChannelId = ChannelId(7);
const PATHS: [Path; 4] = [Path::Repair, Path::Replay, Path::Nack, Path::Read];
/// Maximum number of operations in a run.
const OPERATIONS_MAX: usize = 400;
/// Maximum number of rounds until the core rests at one time. Each round polls it until nothing comes.
const ROUNDS_MAX: usize = 200;
/// Maximum number of bytes that the core sends at one time. A NACK of all ranges has 4 KiB.
const SENT_MAX: usize = 1 << 20;
/// Maximum length of a READ that is answered, so that an input costs no more than its own work.
const READ_LEN_MAX: usize = 1 << 20;
/// Maximum length of an inbox that is made, and the number of inboxes.
const INBOX_LEN_MAX: usize = 4 << 20;
const INBOXES_MAX: usize = 4;
/// Maximum number of datagrams that polls of an inbox bring at one time.
const POLLS_MAX: usize = 1 << 14;

/// Asserts these invariants for any input:
/// - The core does not panic, and comes to rest at each time after bounded work and output.
/// - Its next time-out lies ahead, so that its driver does not spin.
/// - After a REJECTED it is due within the longest wait, whatever the publisher announced.
/// - Gaps = recovered + lost + superseded + open, and the same for history.
/// - Each delivered record and each lost one is counted once.
pub fn hostile_publisher(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let mut run = Run::new(input.byte());
    for _ in 0..OPERATIONS_MAX {
        let Some(operation) = input.next() else {
            break;
        };
        run.operation(operation, &mut input);
        run.settle();
        run.check();
    }
    run.leave();
}

struct Run {
    core: SubscriberCore,
    now: Nanos,
    aligned: AlignedCopy,
    heard: Heard,
    /// READs and reports that the core has begun.
    requests: Vec<RemoteRequest>,
    /// Inboxes that the core wants, and how many were made.
    inboxes: Vec<InboxWanted>,
    inboxes_made: usize,
    /// A number that the next ones are near.
    near: u64,
    epoch: u64,
}

/// Everything that the application heard.
#[derive(Default)]
struct Heard {
    records: u64,
    lost: u64,
}

impl Run {
    fn new(options: u8) -> Self {
        let delivery = match options & 3 {
            0 | 1 => Delivery::Ordered,
            2 => Delivery::OrderedWithin(Nanos::from_ms(1)),
            _ => Delivery::Arrival,
        };
        let config = ReceiverConfig {
            delivery,
            window_slots: 64,
            repair: options & 4 == 0,
            burst_max: if options & 8 == 0 { 100 } else { 4 },
            ..ReceiverConfig::default()
        };
        let wanted = ChannelWanted {
            channel: ChannelName::Id(CHANNEL),
            start: match options >> 4 & 3 {
                0 | 1 => Start::Live,
                2 => Start::Oldest,
                _ => Start::At(Epoch(5), Sequence(3)),
            },
            config,
            lines: None,
        };
        let settings = SubscriberSettings {
            name: "s".into(),
            channels: vec![wanted],
            link: LinkTimers::default(),
            seed: 1,
        };
        let now = Nanos::from_secs(1);
        let mut run = Self {
            core: SubscriberCore::new(settings, now),
            now,
            aligned: AlignedCopy::default(),
            heard: Heard::default(),
            requests: Vec::new(),
            inboxes: Vec::new(),
            inboxes_made: 0,
            near: 0,
            epoch: 5,
        };
        if options & 0x40 != 0 {
            run.give(SubscriberInput::UseNackPath(true));
            run.give(SubscriberInput::UseReadPath(true));
            run.give(SubscriberInput::UseInboxes(options & 0x80 != 0));
        }
        run.settle();
        run
    }

    fn operation(&mut self, operation: u8, input: &mut Bytes<'_>) {
        let path = PATHS[usize::from(operation >> 6)];
        let line = LineId(operation >> 6 & 1);
        match operation & 0x1f {
            0 | 1 => self.welcome(path, input),
            2 | 3 => self.status(path, input),
            4 => self.refused(path, input),
            5 => self.grant(path, input),
            6 | 7 => {
                let bytes = self.datagram(input);
                self.send(path, &Message::Datagram(&bytes));
            }
            8..=13 => {
                let bytes = self.datagram(input);
                self.hear(line, &bytes, operation & 0x20 != 0);
            }
            14 => {
                let len = usize::from(input.byte());
                let bytes = input.slice(len);
                self.hear(line, bytes, operation & 0x20 != 0);
            }
            15 | 16 => self.frame(path, input),
            17 => self.pass(Nanos::from_us(u64::from(input.byte()))),
            18 => self.pass(Nanos::from_ms(u64::from(input.byte()) * 10)),
            19 => self.give(SubscriberInput::Connected(path)),
            20 => self.give(SubscriberInput::Disconnected(path, LinkDownReason::Closed)),
            21 | 22 => self.read_done(input),
            23 => self.make_inbox(input),
            24 => self.poll_inbox(),
            25 => {
                let range = self.range(input);
                let epoch = Epoch(self.epoch(input));
                self.give(SubscriberInput::Overrun {
                    channel: CHANNEL,
                    epoch,
                    range,
                });
            }
            26 => {
                let start = Start::At(Epoch(self.epoch(input)), Sequence(self.number(input)));
                self.give(SubscriberInput::Rejoin {
                    channel: CHANNEL,
                    start,
                });
            }
            27 => {
                let lines = input.byte();
                self.give(SubscriberInput::Listening {
                    channel: CHANNEL,
                    lines,
                });
            }
            28 => self.give(SubscriberInput::UnknownSender(CHANNEL)),
            29 => {
                let limits = ReadLimits {
                    reads: input.byte().into(),
                    len_max: self.number(input) as u32,
                    writes: input.byte().into(),
                };
                self.give(SubscriberInput::Limits(limits));
            }
            30 => self.rejected(path, input),
            _ => self.pass(Nanos::from_us(50)),
        }
    }

    /// Returns a number that hostile peers like: small, near the last one, around a power of two, or among
    /// the greatest of all.
    fn number(&mut self, input: &mut Bytes<'_>) -> u64 {
        let (how, by) = (input.byte(), u64::from(input.byte()));
        self.near = match how % 6 {
            0 => by,
            1 => self.near.wrapping_add(by),
            2 => self.near.wrapping_sub(by),
            3 => (1_u64 << (by % 64)).wrapping_sub(u64::from(how >> 4 & 1)),
            4 => u64::MAX - by,
            _ => self.near,
        };
        self.near
    }

    /// Returns the current epoch, or now and then another.
    fn epoch(&mut self, input: &mut Bytes<'_>) -> u64 {
        match input.byte() {
            0..0xe0 => self.epoch,
            by @ 0xe0..0xf8 => {
                self.epoch = self.epoch.wrapping_add(u64::from(by & 7));
                self.epoch
            }
            by => [0, u64::MAX, 4][usize::from(by) % 3],
        }
    }

    fn range(&mut self, input: &mut Bytes<'_>) -> SequenceRange {
        let (first, last) = (self.number(input), self.number(input));
        let (first, last) = (first.min(last), first.max(last));
        SequenceRange::new(Sequence(first), Sequence(last))
            .unwrap_or(SequenceRange::one(Sequence(1)))
    }

    /// Sends a WELCOME whose fields come from the input. It is written as text, so that it holds what no
    /// type of this build can.
    fn welcome(&mut self, path: Path, input: &mut Bytes<'_>) {
        let shape = input.byte();
        let epoch = self.epoch(input);
        let [newest, oldest, oldest_record, next_record] = [(); 4].map(|()| self.number(input));
        let slot_len = match shape & 3 {
            0 | 1 => 1472,
            2 => 65_536,
            _ => self.number(input),
        };
        let slots = match shape >> 2 & 3 {
            0 | 1 => 1024,
            _ => self.number(input),
        };
        let ended = shape & 0x10 != 0;
        let mut continues = Vec::new();
        for _ in 0..input.byte() % 4 {
            let [epoch, last, next_record] = [(); 3].map(|()| self.number(input));
            continues.push(format!(
                r#"{{"epoch":{epoch},"last":{last},"next_record":{next_record}}}"#
            ));
        }
        let history = match shape & 0x20 {
            0 => String::new(),
            _ => {
                let [oldest, record] = [(); 2].map(|()| self.number(input));
                format!(r#","history":{{"oldest":{oldest},"oldest_record":{record}}}"#)
            }
        };
        let fan_outs = match shape >> 6 {
            0 => String::new(),
            1 => {
                let line = r#"{"group":"239.0.0.1:1","sender":"127.0.0.1"}"#;
                let lines = vec![line; usize::from(input.byte())].join(",");
                format!(r#"{{"transport":"udp","lines":[{lines}]}}"#)
            }
            2 => format!(
                r#"{{"transport":"shm","path":"/proc/self/mem","fan_out":{},"boot_id":"x"}}"#,
                input.byte()
            ),
            _ => r#"{"transport":"x"}"#.into(),
        };
        let channels = match path {
            Path::Repair => format!(
                r#"{{"channel":{},"name":"c","epoch":{epoch},"newest":{newest},"oldest":{oldest},"oldest_record":{oldest_record},"next_record":{next_record},"slot_len":{slot_len},"slots":{slots},"config_hash":0,"ended":{ended},"fan_outs":[{fan_outs}],"continues":[{}]{history}}}"#,
                if input.byte() == 0xff { 8 } else { CHANNEL.0 },
                continues.join(","),
            ),
            _ => String::new(),
        };
        let session = self.number(input);
        let repairs = r#"{"transport":"verbs","address":"127.0.0.1:1","read":true,"mirror":true}"#;
        let body = format!(
            r#"{{"wire_version":1,"publisher":"p","session":{session},"channels":[{channels}],"repairs":[{repairs}]}}"#
        );
        let mut frame = (body.len() as u32).to_le_bytes().to_vec();
        frame.extend([2, 0, 0, 0]);
        frame.extend(body.as_bytes());
        // A number that no field of its type can have ends the connection, as a driver does.
        match Message::read(&frame, BODY_LEN_MAX_TO_SUBSCRIBER) {
            Ok(Some((_, message, _))) => {
                self.give(SubscriberInput::message(path, ChannelId(0), &message));
            }
            _ => self.give(SubscriberInput::Disconnected(
                path,
                LinkDownReason::Protocol,
            )),
        }
    }

    fn status(&mut self, path: Path, input: &mut Bytes<'_>) {
        let epoch = Epoch(self.epoch(input));
        let [newest, oldest, next_record] = [(); 3].map(|()| self.number(input));
        let flags = input.byte();
        let status = Status {
            epoch,
            newest: Sequence(newest),
            oldest: Sequence(oldest),
            next_record: RecordNumber(next_record),
            echo: match flags & 2 {
                0 => self.now,
                _ => Nanos(self.number(input)),
            },
            answered_at: Nanos(self.number(input)),
            ended: flags & 1 != 0,
        };
        self.send(path, &Message::Status(status));
    }

    fn refused(&mut self, path: Path, input: &mut Bytes<'_>) {
        let reasons = [
            RefusalReason::Window,
            RefusalReason::Ahead,
            RefusalReason::Budget,
            RefusalReason::TooSlow,
            RefusalReason::Epoch,
            RefusalReason::Malformed,
        ];
        let reason = reasons[usize::from(input.byte()) % reasons.len()];
        let (epoch, range) = (Epoch(self.epoch(input)), self.range(input));
        let [retry_after_us, oldest, record] = [(); 3].map(|()| self.number(input));
        let refused = Refused {
            epoch,
            range,
            reason,
            retry_after_us: retry_after_us as u32,
            oldest: Sequence(oldest),
            oldest_record: RecordNumber(record),
        };
        self.send(path, &Message::Refused(refused));
    }

    fn rejected(&mut self, path: Path, input: &mut Bytes<'_>) {
        let rejected = Rejected {
            code: RejectCode::TooMany,
            text: String::new(),
            retry_after_ms: self.number(input),
        };
        self.send(path, &Message::Rejected(rejected));
        self.settle();
        let due = self.core.poll_timeout();
        let most = self.now.after(Nanos::from_ms(Rejected::WAIT_MAX_MS));
        assert!(
            due <= most || self.core.ended(),
            "a rejection silences the core from {} until {due}",
            self.now
        );
    }

    fn grant(&mut self, path: Path, input: &mut Bytes<'_>) {
        let (epoch, flags) = (Epoch(self.epoch(input)), input.byte());
        let access = |address, len| RemoteAccess {
            address,
            len,
            key: 1,
        };
        let [address, len, tokens, cursor] = [(); 4].map(|()| self.number(input));
        let ring = Geometry::new(1472, 1024).map_or(0, |it| it.bytes() as u64);
        let grant = Grant {
            epoch,
            attempt: u64::from(flags >> 4),
            ring: access(address, if flags & 1 == 0 { ring } else { len }),
            tokens,
            cursor: (flags & 2 != 0).then_some(access(cursor, CURSOR_LEN as u64)),
        };
        self.send(path, &Message::Grant(grant));
    }

    /// Sends a frame of any type with any body.
    fn frame(&mut self, path: Path, input: &mut Bytes<'_>) {
        let (kind, len) = (input.byte() % 13, usize::from(input.byte()));
        let body = input.slice(len);
        let mut frame = vec![body.len() as u8, 0, 0, 0, kind, 0];
        frame.extend(CHANNEL.0.to_le_bytes());
        frame.extend(body);
        if let Ok(Some((channel, message, _))) = Message::read(&frame, 1 << 16) {
            self.give(SubscriberInput::message(path, channel, &message));
        }
    }

    /// Returns a datagram with a right CRC. Everything else in it may be false.
    fn datagram(&mut self, input: &mut Bytes<'_>) -> Vec<u8> {
        let (shape, claims) = (input.byte(), input.byte());
        let kind = [Kind::Data, Kind::Event, Kind::Heartbeat, Kind::End][usize::from(shape & 3)];
        let mut payload = Vec::new();
        match kind {
            Kind::Data => {
                // Records of 56 bytes, as many as the header counts unless it lies.
                for _ in 0..shape >> 2 & 7 {
                    let mut record = [0; 56];
                    (record[0], record[1]) = (14, 0xa0);
                    payload.extend(record);
                }
            }
            Kind::Event => {
                let lost = StreamEvent::SourceLost {
                    source: SourceId(1),
                    reason: SourceLossReason::Gap,
                    from: SourcePosition(self.number(input)),
                    messages: self.number(input),
                    instruments: vec![1; usize::from(input.byte())],
                };
                lost.write(&mut payload);
            }
            Kind::Heartbeat => {
                let heartbeat = Heartbeat {
                    next_interval_us: self.number(input) as u32,
                    hold_off_us: self.number(input) as u32,
                    subscribers: self.number(input) as u32,
                    state: [
                        PublisherState::Live,
                        PublisherState::Ended,
                        PublisherState::Standby,
                    ][usize::from(shape >> 2) % 3],
                    config_hash: ConfigHash(0),
                };
                payload.extend(heartbeat.to_bytes());
            }
            Kind::End => {}
        }
        let epoch = Epoch(self.epoch(input));
        let [sequence, first_record] = [(); 2].map(|()| self.number(input));
        let count = payload.len() / 56;
        let header = Header {
            kind,
            channel: CHANNEL,
            count: match claims & 0xc0 {
                0xc0 => self.number(input) as u16,
                _ if kind == Kind::Data => count as u16,
                _ => 0,
            },
            epoch,
            sequence: Sequence(sequence),
            first_record: RecordNumber(first_record),
            source_position: SourcePosition(sequence),
            sent_at: Nanos(sequence),
            retained: match claims & 0x30 {
                0x30 => self.number(input) as u32,
                _ => 16,
            },
            source: SourceId(1),
            payload_len: payload.len() as u16,
            flags: 0,
            header_len: 64,
            relay: claims & 0x8f,
        };
        let crc = crc_of(&header.to_bytes(0), &payload);
        let mut bytes = header.to_bytes(crc).to_vec();
        bytes.extend(payload);
        bytes
    }

    /// Completes the oldest READ or report with any bytes of the right length, or now and then of another.
    fn read_done(&mut self, input: &mut Bytes<'_>) {
        if self.requests.is_empty() {
            return;
        }
        let request = self.requests.remove(0);
        let (how, fill) = (input.byte(), input.byte());
        let len = match how & 7 {
            7 => usize::from(fill),
            _ => request.len as usize,
        };
        let mut bytes = vec![fill; len.min(READ_LEN_MAX)];
        let with = if how & 8 == 0 {
            self.datagram(input)
        } else {
            let len = usize::from(input.byte());
            input.slice(len).to_vec()
        };
        bytes.iter_mut().zip(with).for_each(|(to, from)| *to = from);
        self.give(SubscriberInput::Read {
            tag: request.tag,
            bytes: &bytes,
        });
    }

    /// Makes the inbox that the core wants, with datagrams or any bytes in some of its slots, as its device
    /// lets the publisher write them.
    fn make_inbox(&mut self, input: &mut Bytes<'_>) {
        let Some(wanted) = self.inboxes.pop() else {
            return;
        };
        let geometry = wanted.geometry;
        if geometry.bytes() > INBOX_LEN_MAX || self.inboxes_made == INBOXES_MAX {
            return;
        }
        self.inboxes_made += 1;
        let mut bytes = vec![0; geometry.bytes()];
        for _ in 0..input.byte() % 8 {
            let at = geometry.slot_offset(Sequence(self.number(input)));
            let datagram = self.datagram(input);
            let slot = &mut bytes[at..at + geometry.slot_len()];
            slot.iter_mut()
                .zip(datagram)
                .for_each(|(to, from)| *to = from);
        }
        let memory: Arc<dyn RingMemory> = Arc::new(HeapMemory::left_behind(&bytes, || {}));
        let access = RemoteAccess {
            address: self.number(input),
            len: geometry.bytes() as u64,
            key: 3,
        };
        self.give(SubscriberInput::Inbox {
            channel: CHANNEL,
            wanted,
            memory: &memory,
            access,
        });
    }

    /// Polls the inboxes. Each poll brings one datagram at most.
    fn poll_inbox(&mut self) {
        for _ in 0..POLLS_MAX {
            let Some(channel) = self.core.poll_written() else {
                return;
            };
            self.give(SubscriberInput::Written(channel));
        }
        panic!("an inbox of {INBOX_LEN_MAX} bytes holds less than {POLLS_MAX} datagrams");
    }

    fn send(&mut self, path: Path, message: &Message<'_>) {
        self.give(SubscriberInput::message(path, CHANNEL, message));
    }

    fn hear(&mut self, line: LineId, bytes: &[u8], whole: bool) {
        let (core, now, heard) = (&mut self.core, self.now, &mut self.heard);
        let on = &mut |item: Item<'_>| heard.take(&item);
        core.handle_bytes(now, (CHANNEL, line), self.aligned.of(bytes), whole, on);
    }

    fn give(&mut self, input: SubscriberInput<'_>) {
        let heard = &mut self.heard;
        self.core
            .handle(self.now, input, &mut |item: Item<'_>| heard.take(&item));
    }

    fn pass(&mut self, span: Nanos) {
        self.now = self.now.after(span);
    }

    /// Polls the core until nothing comes. Connections are made at once.
    fn settle(&mut self) {
        let mut sent = 0;
        let rests = (0..ROUNDS_MAX).any(|_| self.round(&mut sent).is_break());
        assert!(rests, "the core comes to rest");
        assert!(sent <= SENT_MAX, "{sent} bytes are sent at one time");
        let due = self.core.poll_timeout();
        assert!(
            due > self.now,
            "a time-out at {due} is not after {}",
            self.now
        );
    }

    fn round(&mut self, sent: &mut usize) -> ControlFlow<()> {
        let mut busy = false;
        self.give(SubscriberInput::Timeout);
        let mut out = Vec::new();
        loop {
            self.give(SubscriberInput::Poll);
            if self.core.poll_transmit(&mut out).is_none() {
                break;
            }
            busy = true;
            assert!(out.len() <= SENT_MAX, "{} bytes in one round", out.len());
        }
        *sent += out.len();
        while let Some(action) = self.core.poll_action() {
            busy = true;
            match action {
                Action::Connect(path) => self.give(SubscriberInput::Connected(path)),
                Action::Inbox(_, wanted) => self.inboxes.push(wanted),
                Action::Disconnect(_)
                | Action::Rejoin(_)
                | Action::Listen(_)
                | Action::Rejected(_) => {}
            }
        }
        while let Some(request) = self.core.poll_remote() {
            busy = true;
            self.requests.push(request);
        }
        match busy {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }

    fn counters(&self) -> &ReceiverCounters {
        self.core.counters().next().expect("one channel")
    }

    /// Asserts the relations that hold at any time.
    fn check(&self) {
        let c = self.counters();
        // A publisher may claim more than a counter holds. Such a counter stays at its maximum.
        let is_sum = |total: &Counter, parts: [&Counter; 4]| {
            let parts = parts.into_iter().map(Counter::get);
            [u64::MAX, parts.fold(0, u64::saturating_add)].contains(&total.get())
        };
        let gaps = [
            &c.missing_recovered,
            &c.missing_lost,
            &c.missing_superseded,
            &c.missing_open,
        ];
        assert!(
            is_sum(&c.missing_datagrams, gaps),
            "gaps = recovered + lost + superseded + open: {c:?}"
        );
        let history = [
            &c.replay_received,
            &c.replay_lost,
            &c.replay_superseded,
            &c.replay_open,
        ];
        assert!(
            is_sum(&c.replay_requested, history),
            "history = received + lost + superseded + open: {c:?}"
        );
        assert_eq!(c.delivered_records.get(), self.heard.records, "delivered");
        assert_eq!(c.lost_records.get(), self.heard.lost, "lost");
    }

    /// Leaves: everything that is open is declared lost.
    fn leave(mut self) {
        self.give(SubscriberInput::Leave(LossCause::Left));
        self.check();
        assert_eq!(self.counters().missing_open.get(), 0, "nothing stays open");
    }
}

impl Heard {
    fn take(&mut self, item: &Item<'_>) {
        match item {
            Item::Record(..) => self.records += 1,
            Item::Event(_, Event::Lost(loss)) => {
                self.lost = self.lost.saturating_add(loss.records.unwrap_or(0));
            }
            Item::Event(
                _,
                Event::LossCorrected {
                    reported, records, ..
                },
            ) => {
                let more = records.saturating_sub(*reported);
                self.lost = self.lost.saturating_add(more);
            }
            Item::Event(..) => {}
        }
    }
}
