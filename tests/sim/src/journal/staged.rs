//! A recorded subscriber's core without a network. A test passes it datagrams and messages, leaves
//! out any of them, and checks the explanation of the record.

use tickcast_journal::explain::Explanation;
use tickcast_journal::layout::JOURNAL_LEN_MIN;
use tickcast_journal::{Journal, JournalOrigin, JournalWriter, Journaled, Note, replay};
use tickcast_reliability::control::{
    ChannelName, ChannelOffer, FanOutOffer, HeartbeatLimits, Message, RefusalReason, Refused,
    Start, Status, UdpLine, Welcome,
};
use tickcast_reliability::delivery::{Item, LineId};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::record::{MboMsg, RecordBatch, RecordHeader};
use tickcast_reliability::session::{
    Action, ChannelWanted, LinkTimers, Path, SubscriberCore, SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, Lineage, Nanos, RecordNumber, Sequence, SequenceRange, SourceId,
    SourcePosition,
};
use tickcast_reliability::wire::{
    Header, Heartbeat, Kind, PublisherState, StreamEvent, crc_of, relay_flags,
};

/// The followed channel.
pub const CHANNEL: ChannelId = ChannelId(7);
/// The first epoch of the channel.
pub const EPOCH: Epoch = Epoch(100);
/// The last sequence sent before the subscriber joins.
pub const JOINED_AFTER: u64 = 10;
const BEGAN: Nanos = Nanos::from_secs(1);

/// A recorded subscriber's core that a test drives.
pub struct JournalStage {
    core: Journaled<SubscriberCore>,
    now: Nanos,
    /// Number of items delivered.
    pub delivered: u64,
}

impl JournalStage {
    /// Returns a subscriber that has joined live and listens on this many lines.
    #[must_use]
    pub fn new(config: ReceiverConfig, lines: usize) -> Self {
        Self::starting(config, lines, Start::Live)
    }

    /// Returns a subscriber that has joined at `start` and listens on this many lines.
    #[must_use]
    pub fn starting(config: ReceiverConfig, lines: usize, start: Start) -> Self {
        Self::in_host(config, lines, start, "")
    }

    /// Returns a subscriber that has joined at `start`, in the host with this boot id.
    #[must_use]
    pub fn in_host(config: ReceiverConfig, lines: usize, start: Start, boot_id: &str) -> Self {
        Self::recorded((config, lines, start), boot_id, 16 << 20)
    }

    /// Returns a subscriber that has joined live, with a record so short that it is soon
    /// overwritten.
    #[must_use]
    pub fn in_little_room(config: ReceiverConfig, lines: usize) -> Self {
        Self::recorded((config, lines, Start::Live), "", JOURNAL_LEN_MIN)
    }

    fn recorded(
        (config, lines, start): (ReceiverConfig, usize, Start),
        boot_id: &str,
        len: usize,
    ) -> Self {
        let wanted = ChannelWanted {
            channel: ChannelName::Id(CHANNEL),
            start,
            config,
            lines: None,
        };
        let settings = SubscriberSettings {
            name: "staged".into(),
            channels: vec![wanted],
            link: LinkTimers::default(),
            seed: 1,
        };
        let mut core = Journaled::new(SubscriberCore::new(settings, BEGAN));
        let origin = JournalOrigin {
            began: BEGAN,
            boot_id: boot_id.into(),
            ..JournalOrigin::default()
        };
        let journal = JournalWriter::new(Box::new(vec![0; len]), &origin);
        core.keep_journal(journal.unwrap_or_else(|error| panic!("{error}")));
        let mut stage = Self {
            core,
            now: BEGAN,
            delivered: 0,
        };
        stage.pass_us(1);
        stage.welcome(EPOCH, JOINED_AFTER, 1);
        stage.core.handle(
            stage.now,
            SubscriberInput::Listening {
                channel: CHANNEL,
                lines: lines as u8,
            },
            &mut |_: Item<'_>| (),
        );
        stage
    }

    /// Passes a WELCOME with these newest and oldest sequences to the core.
    pub fn welcome(&mut self, epoch: Epoch, newest: u64, oldest: u64) {
        let offer = ChannelOffer {
            authentication: None,
            channel: CHANNEL,
            name: "staged".into(),
            epoch,
            newest: Sequence(newest),
            oldest: Sequence(oldest),
            oldest_record: RecordNumber(oldest),
            next_record: RecordNumber(newest + 1),
            slot_len: 1472,
            slots: 1 << 16,
            config_hash: ConfigHash(1),
            ended: false,
            fan_outs: vec![FanOutOffer::Udp {
                lines: Vec::<UdpLine>::new(),
            }],
            directory: Vec::new(),
            continues: Lineage::default(),
            history: None,
            heartbeats: HeartbeatLimits::default(),
        };
        let welcome = Welcome {
            latency: false,
            wire_version: 1,
            publisher: "staged".into(),
            session: 1,
            channels: vec![offer],
            repairs: Vec::new(),
        };
        self.message(&Message::Welcome(welcome));
        self.settle();
    }

    /// Returns the current time.
    #[must_use]
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Passes a control message of the repair connection to the core.
    pub fn message(&mut self, message: &Message<'_>) {
        let (now, delivered) = (self.now, &mut self.delivered);
        let mut on = |_: Item<'_>| *delivered += 1;
        (self.core).handle(
            now,
            SubscriberInput::message(Path::Repair, CHANNEL, message),
            &mut on,
        );
    }

    /// Breaks the repair connection; the core reconnects when its timer fires.
    pub fn disconnect(&mut self) {
        use tickcast_reliability::delivery::LinkDownReason::Closed;
        let mut on = |_: Item<'_>| ();
        (self.core).handle(
            self.now,
            SubscriberInput::Disconnected(Path::Repair, Closed),
            &mut on,
        );
    }

    /// Passes these bytes to the core as a datagram on a line.
    pub fn bytes(&mut self, line: u8, bytes: &[u8]) {
        let (now, delivered) = (self.now, &mut self.delivered);
        let mut on = |_: Item<'_>| *delivered += 1;
        let mut aligned = RecordBatchCopy::default();
        (self.core).handle_bytes(
            now,
            (CHANNEL, LineId(line)),
            aligned.of(bytes),
            false,
            &mut on,
        );
    }

    /// Passes datagrams of these sequences to the core on a line, one every 10 microseconds.
    pub fn hear(&mut self, line: u8, sequences: std::ops::RangeInclusive<u64>) {
        for sequence in sequences {
            self.bytes(line, &data(EPOCH, sequence, 0));
            self.pass_us(10);
        }
    }

    /// Passes datagrams of these sequences to the core as repairs on the repair connection.
    pub fn repair(&mut self, sequences: std::ops::RangeInclusive<u64>) {
        for sequence in sequences {
            let bytes = data(EPOCH, sequence, relay_flags::RETRANSMITTED);
            self.message(&Message::Datagram(&bytes));
        }
        self.settle();
    }

    /// Passes a refusal of these sequences to the core.
    pub fn refuse(&mut self, first: u64, last: u64, reason: RefusalReason, oldest: u64) {
        let range = SequenceRange::new(Sequence(first), Sequence(last));
        self.message(&Message::Refused(Refused {
            epoch: EPOCH,
            range: range.unwrap_or(SequenceRange::one(Sequence(first))),
            reason,
            retry_after_us: 0,
            oldest: Sequence(oldest),
            oldest_record: RecordNumber(oldest),
        }));
        self.settle();
    }

    /// Passes a STATUS with this newest sequence to the core.
    pub fn status(&mut self, newest: u64) {
        self.message(&Message::Status(Status {
            epoch: EPOCH,
            newest: Sequence(newest),
            oldest: Sequence(1),
            next_record: RecordNumber(newest + 1),
            echo: Nanos::ZERO,
            answered_at: Nanos::ZERO,
            ended: false,
        }));
        self.settle();
    }

    /// Records a note about the environment of the core.
    pub fn note(&mut self, note: Note) {
        self.core.note(self.now, note);
    }

    /// Reports to the core that the reader of the ring in this host was overrun.
    pub fn overrun(&mut self, first: u64, last: u64) {
        let range = SequenceRange::new(Sequence(first), Sequence(last));
        if let Some(range) = range {
            let mut on = |_: Item<'_>| ();
            let overrun = SubscriberInput::Overrun {
                channel: CHANNEL,
                epoch: EPOCH,
                range,
            };
            self.core.handle(self.now, overrun, &mut on);
        }
        self.settle();
    }

    /// Advances the clock, and polls the core at the end.
    pub fn pass_us(&mut self, us: u64) {
        self.now = self.now.after(Nanos::from_us(us));
        self.settle();
    }

    /// Advances the clock, and polls the core whenever a timer is due.
    pub fn wait_ms(&mut self, ms: u64) {
        let until = self.now.after(Nanos::from_ms(ms));
        while self.now < until {
            let due = self.core.poll_timeout().min(until);
            self.now = due.max(self.now.after(Nanos::from_us(50)));
            self.settle();
        }
    }

    /// Performs the actions that the core requests.
    fn settle(&mut self) {
        let (now, mut out) = (self.now, Vec::new());
        let delivered = &mut self.delivered;
        let mut on = |_: Item<'_>| *delivered += 1;
        for _ in 0..100 {
            self.core.handle(now, SubscriberInput::Timeout, &mut on);
            let mut busy = false;
            loop {
                self.core.handle(now, SubscriberInput::Poll, &mut on);
                if self.core.poll_transmit(&mut out).is_none() {
                    break;
                }
                out.clear();
                busy = true;
            }
            while let Some(action) = self.core.poll_action() {
                busy = true;
                if let Action::Connect(path) = action {
                    self.core
                        .handle(now, SubscriberInput::Connected(path), &mut |_: Item<'_>| ());
                }
            }
            if !busy {
                break;
            }
        }
    }

    /// Returns the value of a counter of the core.
    #[must_use]
    pub fn counted(&self, name: &str) -> u64 {
        let mut found = 0;
        for counters in self.core.counters() {
            counters.each(|it, _, value| found += if it == name { value } else { 0 });
        }
        found
    }

    /// Ends the stage and returns the record, after checking that its replay produces the same
    /// outputs.
    #[must_use]
    pub fn record(mut self) -> Journal {
        let Some(journal) = self.core.take_journal() else {
            panic!("it is recorded");
        };
        let digest = journal.outputs().digest();
        let recording = Journal::read(journal.into_bytes());
        let recording = recording.unwrap_or_else(|error| panic!("{error}"));
        let replayed = replay(&recording, false, &mut |_: Item<'_>| ());
        assert_eq!((replayed.difference, replayed.stopped), (None, None));
        let again = replayed.core.and_then(|it| Some(it.outputs()?.digest()));
        assert_eq!(again, Some(digest));
        recording
    }

    /// Ends the stage and returns the bytes of the record.
    #[must_use]
    pub fn bytes_of_record(mut self) -> Vec<u8> {
        let journal = self.core.take_journal();
        journal.map_or_else(Vec::new, |it| it.into_bytes())
    }

    /// Ends the stage and returns the explanation of the record, after checking its sums against
    /// the core's counters.
    #[must_use]
    pub fn explain(self) -> Explanation {
        let names = [
            "missing_datagrams",
            "missing_recovered",
            "missing_lost",
            "missing_open",
        ];
        let counted = names.map(|name| self.counted(name));
        let events = self.counted("loss_events");
        let recording = self.record();
        let mut explained = tickcast_journal::explain::explain(&[recording]);
        let explained = explained.remove(0);
        let it = &explained.totals;
        let totals = [it.missing, it.came, it.lost, it.open];
        assert_eq!(totals, counted, "{names:?}: {explained:#?}");
        assert_eq!(it.loss_events, events);
        explained
    }
}

/// Returns a datagram with one record.
#[must_use]
pub fn data(epoch: Epoch, sequence: u64, relay: u8) -> Vec<u8> {
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg {
        hd: RecordHeader::new::<MboMsg>(0xa0, 1, 2, 3),
        order_id: sequence,
        ..MboMsg::default()
    });
    datagram(Kind::Data, epoch, (sequence, 1), batch.bytes(), relay)
}

/// Returns a datagram with an event of the stream.
#[must_use]
pub fn event(sequence: u64, event: &StreamEvent) -> Vec<u8> {
    let mut body = Vec::new();
    event.write(&mut body);
    datagram(Kind::Event, EPOCH, (sequence, 0), &body, 0)
}

/// Returns a heartbeat that announces `newest` as the last sequence sent.
#[must_use]
pub fn heartbeat(newest: u64) -> Vec<u8> {
    let body = Heartbeat {
        next_interval_us: 10_000,
        hold_off_us: 0,
        subscribers: 1,
        state: PublisherState::Live,
        config_hash: ConfigHash(1),
    };
    datagram(Kind::Heartbeat, EPOCH, (newest, 0), &body.to_bytes(), 0)
}

/// Returns a sealed datagram of any kind.
#[must_use]
pub fn datagram(
    kind: Kind,
    epoch: Epoch,
    (sequence, count): (u64, u16),
    payload: &[u8],
    relay: u8,
) -> Vec<u8> {
    let next = u64::from(kind == Kind::Heartbeat);
    let header = Header {
        kind,
        channel: CHANNEL,
        count,
        epoch,
        sequence: Sequence(sequence),
        first_record: RecordNumber(sequence + next),
        source_position: SourcePosition(sequence),
        sent_at: Nanos(sequence),
        retained: 1,
        source: SourceId(1),
        payload_len: payload.len() as u16,
        flags: 0,
        header_len: 64,
        relay,
    };
    let crc = crc_of(&header.to_bytes(0), payload);
    let mut bytes = header.to_bytes(crc).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

type RecordBatchCopy = tickcast_reliability::record::AlignedCopy;
