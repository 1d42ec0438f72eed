//! A publisher made of a list of datagrams, and a subscriber's core with a clock of its own: shared by
//! the tests of receiving.

use std::collections::BTreeMap;

use tickcast_reliability::control::{
    CURSOR_LEN, CURSOR_WORDS, ChannelName, ChannelOffer, CursorState, FanOutOffer, Grant,
    HeartbeatLimits, History, Message, Mirroring, Purpose, REPORT_OFFSET, RefusalReason, Refused,
    RemoteAccess, RepairOffer, Start, Status, Welcome,
};
use tickcast_reliability::delivery::{Event, Item, LineId, LinkDownReason, Loss, LossCause, Via};
use tickcast_reliability::receive::{
    InboxWanted, PathHealth, Receiver, ReceiverConfig, RemoteOp, RepairRequests, Welcomed,
};
use tickcast_reliability::record::{AlignedCopy, MboMsg, RecordBatch};
use tickcast_reliability::ring::{Geometry, LAYOUT_VERSION, RING_MAGIC, offset};
use tickcast_reliability::session::{
    Action, ChannelWanted, LinkTimers, Path, ReadLimits, RemoteRequest, SubscriberCore,
    SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Continued, Epoch, Lineage, Nanos, ReceiverCounters, RecordNumber,
    Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::authentication::ChannelKeys;
use tickcast_reliability::wire::{
    Datagram, EpochReason, Header, Heartbeat, Kind, PublisherState, RELAY_OFFSET, StreamEvent,
    crc_of, relay_flags,
};

pub(crate) const CHANNEL: ChannelId = ChannelId(7);
/// Geometry of the publisher's ring, its address in the device, and its access key.
pub(crate) const SLOT_LEN: usize = 1472;
pub(crate) const SLOTS: u64 = 1024;
pub(crate) const RING_AT: u64 = 0x7000_0000_0000;
pub(crate) const KEY: u32 = 0xabcd_ef01;
/// Location of the cursor, if there is one.
pub(crate) const CURSOR: RemoteAccess = RemoteAccess {
    address: 0x7000_1000_0040,
    len: CURSOR_LEN as u64,
    key: 0x1234_5602,
};
pub(crate) const A: LineId = LineId(0);
pub(crate) const B: LineId = LineId(1);

/// A publisher made of its sent datagrams.
pub(crate) struct Publisher {
    pub(crate) epoch: Epoch,
    pub(crate) sent: BTreeMap<u64, Vec<u8>>,
    pub(crate) next: u64,
    pub(crate) next_record: u64,
    /// The oldest sequence that it still repairs.
    pub(crate) oldest: u64,
    pub(crate) ended: bool,
    /// Time of the last heartbeat in its control page.
    pub(crate) beat_at: u64,
    /// The epochs that its own epoch continues.
    pub(crate) lineage: Lineage,
    /// Its keys, if it authenticates the channel.
    pub(crate) keys: Option<ChannelKeys>,
    /// The longest times that its WELCOME allows heartbeats.
    pub(crate) heartbeats: HeartbeatLimits,
}

/// Returns an impostor's datagram with the numbers of this one and another content.
pub(crate) fn forged(bytes: &[u8]) -> Vec<u8> {
    let mut aligned = AlignedCopy::default();
    let datagram = Datagram::parse(aligned.of(bytes)).expect("a datagram");
    let header = Header {
        sent_at: Nanos(2),
        ..*datagram.header()
    };
    Publisher::seal(&header, datagram.payload())
}

impl Publisher {
    pub(crate) fn new(epoch: u64, first: u64) -> Self {
        let (sent, epoch) = (BTreeMap::new(), Epoch(epoch));
        Self {
            epoch,
            sent,
            next: first,
            next_record: 1,
            oldest: first,
            ended: false,
            beat_at: 1,
            lineage: Lineage::default(),
            keys: None,
            heartbeats: HeartbeatLimits::default(),
        }
    }

    /// Returns a promoted standby that mirrored this publisher up to `last` and has announced that.
    pub(crate) fn promoted(&self, epoch: u64, last: u64) -> Self {
        let mut next = Self::new(epoch, last + 1);
        next.sent = self.sent.clone();
        let beyond = next.sent.split_off(&(last + 1));
        let first_of = |bytes: &Vec<u8>| u64::from_le_bytes(bytes[24..32].try_into().unwrap());
        next.next_record = beyond.values().next().map_or(self.next_record, first_of);
        next.oldest = self.oldest;
        let before = Continued {
            epoch: self.epoch,
            last: Sequence(last),
            next_record: RecordNumber(next.next_record),
            complete: false,
        };
        next.lineage = self.lineage.continued(before).0;
        let opened = StreamEvent::EpochOpened {
            reason: EpochReason::Promotion,
            previous: self.epoch,
            previous_last: Sequence(last),
        };
        let mut body = Vec::new();
        opened.write(&mut body);
        let bytes = Self::seal(&next.header(Kind::Event, 0, body.len()), &body);
        next.took(bytes, 0);
        next
    }

    pub(crate) fn header(&self, kind: Kind, count: u16, payload_len: usize) -> Header {
        let sequence = if kind == Kind::Heartbeat {
            self.next - 1
        } else {
            self.next
        };
        Header {
            kind,
            channel: CHANNEL,
            count,
            epoch: self.epoch,
            sequence: Sequence(sequence),
            first_record: RecordNumber(self.next_record),
            source_position: SourcePosition(sequence),
            sent_at: Nanos(1),
            retained: u32::try_from(sequence + 1 - self.oldest).unwrap(),
            source: SourceId(1),
            payload_len: u16::try_from(payload_len).unwrap(),
            flags: 0,
            header_len: 64,
            relay: 0,
        }
    }

    pub(crate) fn seal(header: &Header, payload: &[u8]) -> Vec<u8> {
        let crc = crc_of(&header.to_bytes(0), payload);
        let mut bytes = header.to_bytes(crc).to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    /// Sends `count` records in one datagram. Each carries its own number.
    pub(crate) fn publish(&mut self, count: u16) -> Vec<u8> {
        let mut batch = RecordBatch::default();
        for n in 0..u64::from(count) {
            batch.put(&MboMsg {
                order_id: self.next_record + n,
                ..MboMsg::default()
            });
        }
        let bytes = Self::seal(
            &self.header(Kind::Data, count, batch.bytes().len()),
            batch.bytes(),
        );
        self.took(bytes.clone(), count)
    }

    pub(crate) fn end(&mut self) -> Vec<u8> {
        self.ended = true;
        let bytes = Self::seal(&self.header(Kind::End, 0, 0), &[]);
        self.took(bytes, 0)
    }

    pub(crate) fn took(&mut self, bytes: Vec<u8>, count: u16) -> Vec<u8> {
        self.sent.insert(self.next, bytes.clone());
        self.next += 1;
        self.next_record += u64::from(count);
        bytes
    }

    pub(crate) fn heartbeat(&self) -> Vec<u8> {
        self.heartbeat_with(0, 1)
    }

    /// Returns a heartbeat that advises a hold-off for a group of this many subscribers.
    pub(crate) fn heartbeat_with(&self, hold_off_us: u32, subscribers: u32) -> Vec<u8> {
        let body = Heartbeat {
            next_interval_us: 1_000,
            hold_off_us,
            subscribers,
            state: if self.ended {
                PublisherState::Ended
            } else {
                PublisherState::Live
            },
            config_hash: ConfigHash(0),
        };
        Self::seal(
            &self.header(Kind::Heartbeat, 0, Heartbeat::LEN),
            &body.to_bytes(),
        )
    }

    /// Returns a heartbeat for a channel of this number.
    pub(crate) fn beat_of(&self, channel: ChannelId) -> Vec<u8> {
        let bytes = self.heartbeat();
        let header = Header {
            channel,
            ..self.header(Kind::Heartbeat, 0, Heartbeat::LEN)
        };
        Self::seal(&header, &bytes[64..])
    }

    /// Returns the bytes of its ring: control page and slots.
    pub(crate) fn ring(&self) -> Vec<u8> {
        let geometry = Geometry::new(SLOT_LEN as u32, SLOTS).unwrap();
        let mut ring = vec![0; geometry.bytes()];
        let words = [
            (offset::MAGIC, RING_MAGIC),
            (offset::LAYOUT, LAYOUT_VERSION),
            (offset::CHANNEL, CHANNEL.0.into()),
            (offset::EPOCH, self.epoch.0),
            (offset::FAN_OUTS, 1),
            (offset::HEARTBEAT_AT, self.beat_at),
            (offset::SENT, self.next - 1),
        ];
        for (at, word) in words {
            ring[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        for (sequence, bytes) in &self.sent {
            let at = geometry.slot_offset(Sequence(*sequence));
            ring[at..at + bytes.len()].copy_from_slice(bytes);
        }
        ring
    }

    pub(crate) fn newest(&self) -> Sequence {
        Sequence(self.next - 1)
    }

    pub(crate) fn oldest_record(&self) -> RecordNumber {
        let oldest = self.sent.get(&self.oldest);
        oldest.map_or(RecordNumber(self.next_record), |bytes| {
            RecordNumber(u64::from_le_bytes(bytes[24..32].try_into().unwrap()))
        })
    }

    /// Returns a refusal of this range.
    pub(crate) fn refused(
        &self,
        range: SequenceRange,
        reason: RefusalReason,
        retry_after_us: u32,
    ) -> Refused {
        Refused {
            epoch: self.epoch,
            range,
            reason,
            retry_after_us,
            oldest: Sequence(self.oldest),
            oldest_record: self.oldest_record(),
        }
    }

    /// Returns the WELCOME of a further connection.
    pub(crate) fn further_welcome(&self) -> Welcome {
        Welcome {
            channels: vec![],
            ..self.welcome(1)
        }
    }

    pub(crate) fn welcome(&self, lines: usize) -> Welcome {
        let line = tickcast_reliability::control::UdpLine {
            group: "239.0.0.1:1".parse().unwrap(),
            sender: "127.0.0.1".parse().unwrap(),
        };
        let (first, first_record) = self.lineage.begins();
        let (oldest, oldest_record) = (Sequence(self.oldest), self.oldest_record());
        let is_older = !self.lineage.is_empty() && oldest < first;
        Welcome {
            latency: false,
            wire_version: 1,
            publisher: "p".into(),
            session: 9,
            repairs: vec![],
            channels: vec![ChannelOffer {
                authentication: self.keys.as_ref().map(|it| it.offer(self.newest())),
                channel: CHANNEL,
                name: "c".into(),
                epoch: self.epoch,
                newest: self.newest(),
                oldest: if is_older { first } else { oldest },
                oldest_record: match is_older {
                    true => first_record,
                    false => oldest_record,
                },
                next_record: RecordNumber(self.next_record),
                slot_len: SLOT_LEN as u32,
                slots: SLOTS,
                config_hash: ConfigHash(0),
                ended: self.ended,
                fan_outs: vec![FanOutOffer::Udp {
                    lines: vec![line; lines],
                }],
                directory: vec![],
                continues: self.lineage.clone(),
                history: is_older.then_some(History {
                    oldest,
                    oldest_record,
                }),
                heartbeats: self.heartbeats,
            }],
        }
    }

    pub(crate) fn status(&self) -> Status {
        Status {
            epoch: self.epoch,
            newest: self.newest(),
            oldest: Sequence(self.oldest),
            next_record: RecordNumber(self.next_record),
            echo: Nanos(0),
            answered_at: Nanos(0),
            ended: self.ended,
        }
    }
}

/// A subscriber's core with all of its output, and the clock.
pub(crate) struct World {
    pub(crate) core: SubscriberCore,
    pub(crate) now: Nanos,
    pub(crate) records: Vec<u64>,
    pub(crate) events: Vec<Event>,
    pub(crate) nacks: Vec<SequenceRange>,
    pub(crate) progresses: usize,
    /// READ bytes in the last PROGRESS.
    pub(crate) read_bytes: u64,
    pub(crate) rejoins: usize,
    pub(crate) disconnects: usize,
    pub(crate) lines: usize,
    pub(crate) answer: bool,
    pub(crate) connectable: bool,
    /// Repair offers in WELCOME beside TCP, and whether that connection answers.
    pub(crate) repairs: Vec<RepairOffer>,
    pub(crate) rc_answers: bool,
    /// The offers for which there is no device, and those where nothing answers an attempt.
    pub(crate) without_device: Vec<RepairOffer>,
    pub(crate) unreachable: Vec<RepairOffer>,
    /// READs in flight, and whether they are completed at once.
    pub(crate) read_requests: Vec<RemoteRequest>,
    pub(crate) reads: bool,
    /// Limits of the READ connection.
    pub(crate) limits: ReadLimits,
    /// Tokens granted to a READ connection; 0 for no grant.
    pub(crate) tokens: u64,
    /// The cursor in the grant, and its words.
    pub(crate) cursor: Option<RemoteAccess>,
    pub(crate) cursor_words: [u64; CURSOR_WORDS],
    /// Every NACK with its connection, every attempt to connect with its time, every connection given up.
    pub(crate) asked_on: Vec<(Path, SequenceRange)>,
    pub(crate) connects: Vec<(Path, Nanos)>,
    pub(crate) given_up: Vec<Path>,
    pub(crate) joins: Vec<Purpose>,
    /// Inboxes requested from the driver, and the MIRRORs sent for those that were made.
    pub(crate) inboxes: Vec<InboxWanted>,
    pub(crate) wishes: Vec<Mirroring>,
}

impl World {
    pub(crate) fn new(config: ReceiverConfig, start: Start, lines: usize) -> Self {
        let settings = SubscriberSettings {
            name: "s".into(),
            channels: vec![ChannelWanted {
                channel: ChannelName::Id(CHANNEL),
                start,
                config,
                lines: None,
            }],
            link: LinkTimers::default(),
            seed: 1,
        };
        let now = Nanos::from_secs(1);
        Self {
            core: SubscriberCore::new(settings, now),
            now,
            records: vec![],
            events: vec![],
            nacks: vec![],
            progresses: 0,
            read_bytes: 0,
            rejoins: 0,
            disconnects: 0,
            lines,
            answer: true,
            connectable: true,
            repairs: vec![],
            rc_answers: true,
            without_device: vec![],
            unreachable: vec![],
            read_requests: vec![],
            reads: true,
            limits: ReadLimits {
                reads: 4,
                len_max: 4 * SLOT_LEN as u32,
                writes: 2,
            },
            tokens: 1 << 20,
            cursor: None,
            cursor_words: [0; CURSOR_WORDS],
            asked_on: vec![],
            connects: vec![],
            given_up: vec![],
            joins: vec![],
            inboxes: vec![],
            wishes: vec![],
        }
    }

    pub(crate) fn joined(config: ReceiverConfig, publisher: &Publisher) -> Self {
        let mut world = Self::new(config, Start::Live, 1);
        world.settle(publisher);
        world
    }

    pub(crate) fn counters(&self) -> &ReceiverCounters {
        self.core.counters().next().unwrap()
    }

    pub(crate) fn input(
        &mut self,
        f: impl FnOnce(&mut SubscriberCore, Nanos, &mut dyn FnMut(Item<'_>)),
    ) {
        let Self {
            core,
            now,
            records,
            events,
            ..
        } = self;
        f(core, *now, &mut |item: Item<'_>| match item {
            Item::Record(position, record) => {
                let order_id = record.get::<MboMsg>().unwrap().order_id;
                assert_eq!(
                    position.record,
                    RecordNumber(order_id),
                    "a record is misnumbered"
                );
                records.push(order_id);
            }
            Item::Event(_, event) => events.push(event.clone()),
        });
    }

    /// Gives the core an input.
    pub(crate) fn give(&mut self, input: SubscriberInput<'_>) {
        self.input(|core, now, mut on| core.handle(now, input, &mut on));
    }

    pub(crate) fn hear(&mut self, line: LineId, bytes: &[u8]) {
        let mut aligned = AlignedCopy::default();
        let bytes = aligned.of(bytes);
        self.input(|core, now, mut on| {
            core.handle_bytes(now, (CHANNEL, line), bytes, false, &mut on);
        });
    }

    /// Runs the core until it has no more output at this time, with the publisher answering at once.
    pub(crate) fn settle(&mut self, publisher: &Publisher) {
        for _ in 0..10_000 {
            let mut busy = false;
            self.give(SubscriberInput::Timeout);
            let mut out = Vec::new();
            loop {
                self.give(SubscriberInput::Poll);
                let path = self.core.poll_transmit(&mut out);
                let Some(path) = path else { break };
                busy = true;
                self.answer(publisher, path, &std::mem::take(&mut out));
            }
            while let Some(action) = self.core.poll_action() {
                busy = true;
                if let Action::Connect(path) = action {
                    self.connects.push((path, self.now));
                }
                if let Action::Disconnect(path) = action {
                    self.given_up.push(path);
                }
                let offer = match action {
                    Action::Connect(Path::Nack) => self.core.nack_offer(),
                    Action::Connect(Path::Read) => self.core.read_offer(),
                    _ => None,
                };
                let is_in = |all: &[RepairOffer]| offer.is_some_and(|offer| all.contains(&offer));
                match action {
                    Action::Connect(path) if is_in(&self.without_device) => {
                        self.give(match path {
                            Path::Nack => SubscriberInput::NackUnusable,
                            _ => SubscriberInput::ReadUnusable,
                        });
                    }
                    Action::Connect(path) if self.connectable && !is_in(&self.unreachable) => {
                        self.give(SubscriberInput::Limits(self.limits));
                        self.give(SubscriberInput::Connected(path));
                    }
                    Action::Connect(path) => {
                        let down = LinkDownReason::Unreachable;
                        self.give(SubscriberInput::Disconnected(path, down));
                    }
                    Action::Disconnect(_) => self.disconnects += 1,
                    Action::Rejoin(_) => self.rejoins += 1,
                    Action::Inbox(_, wanted) => self.inboxes.push(wanted),
                    Action::Listen(_) | Action::Rejected(_) => {}
                }
            }
            while let Some(request) = self.core.poll_remote() {
                busy = true;
                self.read_requests.push(request);
            }
            for request in self.read_requests.split_off(0) {
                busy |= self.reads;
                match self.reads {
                    true => self.read_done(publisher, &request, |_| ()),
                    false => self.read_requests.push(request),
                }
            }
            if !busy {
                return;
            }
        }
        panic!("the core never comes to rest");
    }

    pub(crate) fn answer(&mut self, publisher: &Publisher, path: Path, mut frames: &[u8]) {
        while let Some((_, message, taken)) = Message::read(frames, 1 << 20).unwrap() {
            frames = &frames[taken..];
            match message {
                Message::Join(join) => {
                    self.joins.push(join.purpose);
                    let mut welcome = publisher.welcome(self.lines);
                    welcome.session = 9 + self.connects.len() as u64;
                    if path == Path::Repair {
                        welcome.repairs.clone_from(&self.repairs);
                    } else {
                        welcome.channels.clear();
                    }
                    self.tell(path, &Message::Welcome(welcome));
                    if let Purpose::Read { attempt, .. } = join.purpose
                        && self.tokens > 0
                    {
                        self.grant(publisher, attempt, self.tokens);
                    }
                }
                Message::Progress(progress) => {
                    self.progresses += 1;
                    self.read_bytes = progress.read_bytes;
                    if self.answer {
                        self.tell(path, &Message::Status(publisher.status()));
                    }
                }
                Message::Nack { epoch, ranges, .. } => {
                    for range in ranges {
                        self.nacks.push(range);
                        self.asked_on.push((path, range));
                        if self.answer && (self.rc_answers || path != Path::Nack) {
                            self.answer_nack(publisher, path, epoch, range);
                        }
                    }
                }
                Message::Mirror(wish) => self.wishes.push(wish),
                Message::Leave => {}
                other => panic!("a subscriber sent {other:?}"),
            }
        }
    }

    /// Completes a READ with the content of the publisher's ring, after `spoil` may have changed it.
    pub(crate) fn read_done(
        &mut self,
        publisher: &Publisher,
        request: &RemoteRequest,
        spoil: impl FnOnce(&mut [u8]),
    ) {
        if matches!(request.what, RemoteOp::Claim(_) | RemoteOp::Report(_)) {
            return self.cursor_done(request);
        }
        assert_eq!(request.key, KEY);
        let ring = publisher.ring();
        let from = (request.address - RING_AT) as usize;
        let mut bytes = ring[from..from + request.len as usize].to_vec();
        spoil(&mut bytes);
        let tag = request.tag;
        self.give(SubscriberInput::Read { tag, bytes: &bytes });
    }

    /// Completes an operation on the cursor as the publisher's device would.
    fn cursor_done(&mut self, request: &RemoteRequest) {
        assert_eq!(request.key, CURSOR.key);
        let old = self.cursor_words[0];
        let back = match request.what {
            RemoteOp::Claim(session) => {
                assert_eq!((request.address, request.len), (CURSOR.address, 8));
                if old == 0 {
                    self.cursor_words[0] = session;
                }
                old.to_le_bytes().to_vec()
            }
            RemoteOp::Report(words) => {
                let at = CURSOR.address + REPORT_OFFSET;
                assert_eq!((request.address, request.len), (at, 56));
                self.cursor_words[1..].copy_from_slice(&words);
                vec![]
            }
            RemoteOp::Slots(_) | RemoteOp::Page => unreachable!("no cursor"),
        };
        let tag = request.tag;
        self.give(SubscriberInput::Read { tag, bytes: &back });
    }

    /// Returns the content of the cursor.
    pub(crate) fn cursor_state(&self) -> CursorState {
        CursorState::of(&self.cursor_words)
    }

    pub(crate) fn grant(&mut self, publisher: &Publisher, attempt: u64, tokens: u64) {
        let (len, address) = (publisher.ring().len() as u64, RING_AT);
        let key = KEY;
        let grant = Grant {
            epoch: publisher.epoch,
            attempt,
            ring: RemoteAccess { address, len, key },
            tokens,
            cursor: self.cursor,
        };
        self.tell(Path::Repair, &Message::Grant(grant));
    }

    pub(crate) fn answer_nack(
        &mut self,
        publisher: &Publisher,
        path: Path,
        epoch: Epoch,
        range: SequenceRange,
    ) {
        let refuse = |range, reason| Message::Refused(publisher.refused(range, reason, 100));
        if epoch != publisher.epoch {
            return self.tell(path, &refuse(range, RefusalReason::Epoch));
        }
        let gone = SequenceRange::new(Sequence(1), Sequence(publisher.oldest).previous());
        if let Some(gone) = gone.and_then(|gone| gone.intersection(range)) {
            self.tell(path, &refuse(gone, RefusalReason::Window));
        }
        for sequence in range.iter().filter(|s| s.0 >= publisher.oldest) {
            let mut copy = publisher.sent[&sequence.0].clone();
            copy[RELAY_OFFSET] |= relay_flags::RETRANSMITTED;
            self.tell(path, &Message::Datagram(&copy));
        }
    }

    pub(crate) fn tell(&mut self, path: Path, message: &Message<'_>) {
        self.give(SubscriberInput::message(path, CHANNEL, message));
    }

    pub(crate) fn pass(&mut self, span: Nanos, publisher: &Publisher) {
        let until = self.now.after(span);
        while self.now < until {
            let due = self
                .core
                .poll_timeout()
                .max(self.now.after(Nanos::from_us(1)));
            self.now = due.min(until);
            self.settle(publisher);
        }
    }

    pub(crate) fn cut(&mut self, reason: LinkDownReason) {
        self.give(SubscriberInput::Disconnected(Path::Repair, reason));
    }

    pub(crate) fn losses(&self) -> Vec<Loss> {
        let loss = |event: &Event| match event {
            Event::Lost(loss) => Some(*loss),
            _ => None,
        };
        self.events.iter().filter_map(loss).collect()
    }

    pub(crate) fn saw(&self, wanted: &Event) -> bool {
        self.events.contains(wanted)
    }

    /// Checks the relations between counters that hold after every run.
    pub(crate) fn assert_balanced(&self, publisher: &Publisher, context: &str) {
        let c = self.counters();
        assert_eq!(
            c.missing_datagrams.get(),
            c.missing_recovered.get()
                + c.missing_lost.get()
                + c.missing_superseded.get()
                + c.missing_open.get(),
            "gaps = recovered + lost + forgotten + open; {context}"
        );
        assert_eq!(
            c.replay_requested.get(),
            c.replay_received.get()
                + c.replay_lost.get()
                + c.replay_superseded.get()
                + c.replay_open.get(),
            "history = received + lost + forgotten + open; {context}"
        );
        assert!(
            self.records.windows(2).all(|w| w[0] < w[1]),
            "strictly increasing; {context}"
        );
        assert_eq!(
            c.delivered_records.get(),
            self.records.len() as u64,
            "{context}"
        );
        if c.missing_open.get() == 0 && c.losses_of_unknown_size.get() == 0 {
            assert_eq!(
                c.delivered_records.get() + c.lost_records.get() - c.fenced_records.get(),
                publisher.next_record - 1,
                "delivered + lost = published; {context}"
            );
        }
    }
}

pub(crate) fn numbers(range: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    range.collect()
}

pub(crate) fn immediate() -> ReceiverConfig {
    ReceiverConfig {
        burst_max: 100,
        ..ReceiverConfig::default()
    }
}

/// A receiver without the core around it, at times chosen by the test.
pub(crate) struct Alone {
    pub(crate) receiver: Receiver,
    pub(crate) now: Nanos,
    pub(crate) records: Vec<u64>,
    pub(crate) events: Vec<Event>,
}

impl Alone {
    /// Returns a receiver after the WELCOME of `publisher` and its first PROGRESS.
    pub(crate) fn welcomed(
        config: ReceiverConfig,
        publisher: &Publisher,
        start: Start,
        lines: usize,
    ) -> Self {
        let now = Nanos::from_secs(1);
        let counters = Default::default();
        let receiver = Receiver::new(config, CHANNEL, (1024, 1472), lines, 1, now, counters);
        let mut alone = Self {
            receiver,
            now,
            records: vec![],
            events: vec![],
        };
        alone.welcome(&publisher.welcome(lines), start);
        assert!(alone.receiver.take_progress(now).is_some());
        alone
    }

    /// Establishes the repair connection with this WELCOME.
    pub(crate) fn welcome(&mut self, welcome: &Welcome, start: Start) -> Welcomed {
        let mut welcomed = None;
        self.input(|r, now, mut on| {
            welcomed = Some(r.handle_welcome(now, &welcome.channels[0], start, &mut on));
        });
        welcomed.unwrap()
    }

    pub(crate) fn input(&mut self, f: impl FnOnce(&mut Receiver, Nanos, &mut dyn FnMut(Item<'_>))) {
        let (records, events) = (&mut self.records, &mut self.events);
        f(
            &mut self.receiver,
            self.now,
            &mut |item: Item<'_>| match item {
                Item::Record(position, _) => records.push(position.record.0),
                Item::Event(_, event) => events.push(event.clone()),
            },
        );
    }

    pub(crate) fn take(&mut self, via: Via, bytes: &[u8]) {
        let mut aligned = AlignedCopy::default();
        let bytes = aligned.of(bytes);
        self.input(|r, now, mut on| r.handle_bytes(now, via, bytes, &mut on));
    }

    pub(crate) fn hear(&mut self, line: LineId, bytes: &[u8]) {
        self.take(Via::Line(line), bytes);
    }

    /// Passes the publisher's answer to a NACK over the repair connection.
    pub(crate) fn answer(&mut self, bytes: &[u8]) {
        self.take(Via::Repair, &again(bytes));
    }

    pub(crate) fn refuse(
        &mut self,
        publisher: &Publisher,
        range: (u64, u64),
        reason: RefusalReason,
        retry_after_us: u32,
    ) {
        let refused = publisher.refused(run(range.0, range.1), reason, retry_after_us);
        self.input(|r, now, mut on| r.handle_refused(now, &refused, &mut on));
    }

    pub(crate) fn status(&mut self, status: &Status) {
        self.input(|r, now, mut on| r.handle_status(now, status, &mut on));
    }

    /// Advances the clock to `now`.
    pub(crate) fn at(&mut self, now: Nanos) {
        self.now = now;
        self.input(|r, now, mut on| r.handle_timeout(now, &mut on));
    }

    pub(crate) fn later(&mut self, us: u64) {
        self.at(self.now.after(Nanos::from_us(us)));
    }

    /// The repair connection breaks.
    pub(crate) fn link_down(&mut self, reason: LinkDownReason) {
        self.receiver.handle_link_down(self.now, reason);
    }

    /// Returns the ranges of the repair NACKs due at this time.
    pub(crate) fn asks(&mut self) -> Vec<SequenceRange> {
        let mut asks = RepairRequests::default();
        let health = self.receiver.due_requests(self.now, &mut asks);
        assert_eq!(health, PathHealth::Answers);
        assert!(asks.replay.is_empty());
        asks.repair
    }

    /// Returns the time until the receiver's next timer.
    pub(crate) fn due(&self) -> Nanos {
        self.receiver.poll_timeout().since(self.now)
    }

    pub(crate) fn counters(&self) -> &ReceiverCounters {
        self.receiver.counters()
    }

    pub(crate) fn losses(&self) -> Vec<(u64, u64, Option<u64>, LossCause)> {
        let of = |event: &Event| match event {
            Event::Lost(l) => Some((l.sequences.first.0, l.sequences.last.0, l.records, l.cause)),
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }
}

/// Returns a config in which only NACKs have timers within the next seconds.
pub(crate) fn quiet() -> ReceiverConfig {
    ReceiverConfig {
        stale_us: 50_000_000,
        dead_us: 4_000_000_000,
        progress_us: 10_000_000,
        line_silence_us: 60_000_000,
        ..immediate()
    }
}

pub(crate) fn run(first: u64, last: u64) -> SequenceRange {
    SequenceRange::new(Sequence(first), Sequence(last)).unwrap()
}

/// Returns a datagram with the relay byte of a repair.
pub(crate) fn again(bytes: &[u8]) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    copy[RELAY_OFFSET] |= relay_flags::RETRANSMITTED;
    copy
}
