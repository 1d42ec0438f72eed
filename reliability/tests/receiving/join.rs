//! How a subscriber's core connects, starts and continues: every frame and action that it emits, one
//! input at a time.

use tickcast_reliability::control::{
    ChannelName, ChannelOffer, FanOutOffer, Join, Message, NackClass, Purpose, RefusalReason,
    RejectCode, Rejected, Start, Welcome,
};
use tickcast_reliability::delivery::{Event, Item, LineId, LinkDownReason, LossCause, StreamState};
use tickcast_reliability::receive::{ReceiverConfig, Welcomed};
use tickcast_reliability::record::AlignedCopy;
use tickcast_reliability::session::{
    Action, ChannelWanted, LinkTimers, Path, SubscriberCore, SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::{CrcVerdict, Datagram};

use crate::world::*;

const SECOND: ChannelId = ChannelId(8);

/// A core driven by hand, with its output since the last check.
struct Hand {
    core: SubscriberCore,
    now: Nanos,
    events: Vec<Event>,
    records: Vec<u64>,
    state: StreamState,
}

impl Hand {
    fn new(starts: &[(ChannelId, Start)]) -> Self {
        Self::with(quiet(), starts)
    }

    fn with(config: ReceiverConfig, starts: &[(ChannelId, Start)]) -> Self {
        let wanted = |&(channel, start): &(ChannelId, Start)| ChannelWanted {
            channel: ChannelName::Id(channel),
            start,
            config,
            lines: None,
        };
        let settings = SubscriberSettings {
            name: "s".into(),
            channels: starts.iter().map(wanted).collect(),
            link: LinkTimers::default(),
            seed: 1,
        };
        let now = Nanos::from_secs(1);
        let core = SubscriberCore::new(settings, now);
        let (events, records) = (vec![], vec![]);
        Self {
            core,
            now,
            events,
            records,
            state: StreamState::default(),
        }
    }

    /// Returns a core that follows `publisher` from `start` over an established repair connection.
    fn joined(publisher: &Publisher, start: Start) -> Self {
        Self::new(&[(CHANNEL, start)]).join(publisher)
    }

    fn join(self, publisher: &Publisher) -> Self {
        let mut hand = self;
        assert_eq!(hand.clock(), [Action::Connect(Path::Repair)]);
        hand.connected(Path::Repair);
        hand.sent();
        hand.tell(Path::Repair, &Message::Welcome(publisher.welcome(1)));
        assert!(hand.core.is_joined());
        assert!(matches!(hand.actions()[..], [Action::Listen(_)]));
        hand
    }

    /// Passes an input to the core. Checks that the state of the first channel according to its events equals
    /// that of its receiver.
    fn input(&mut self, f: impl FnOnce(&mut SubscriberCore, Nanos, &mut dyn FnMut(Item<'_>))) {
        let (events, records) = (&mut self.events, &mut self.records);
        let state = &mut self.state;
        f(&mut self.core, self.now, &mut |item: Item<'_>| match item {
            Item::Record(position, _) => records.push(position.record.0),
            Item::Event(position, event) => {
                events.push(event.clone());
                if position.channel == CHANNEL {
                    state.follow(event);
                }
            }
        });
        if let Some(receiver) = self.core.receiver(CHANNEL) {
            let publisher_dead = state.publisher_dead;
            let stands = receiver.stream_state();
            assert_eq!(
                *state,
                StreamState {
                    publisher_dead,
                    ..stands
                }
            );
        }
    }

    /// Returns the events since the last call.
    fn reported(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    fn cut(&mut self) {
        let down = LinkDownReason::Closed;
        self.give(SubscriberInput::Disconnected(Path::Repair, down));
    }

    /// Rebuilds the repair connection and passes this WELCOME.
    fn welcomed_again(&mut self, welcome: Welcome) {
        while self.later(20) != [Action::Connect(Path::Repair)] {}
        self.connected(Path::Repair);
        self.tell(Path::Repair, &Message::Welcome(welcome));
        assert!(self.core.is_joined());
        self.actions();
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.core.poll_action()).collect()
    }

    /// Polls the core at the current time and returns its actions.
    fn clock(&mut self) -> Vec<Action> {
        self.give(SubscriberInput::Timeout);
        self.actions()
    }

    fn later(&mut self, ms: u64) -> Vec<Action> {
        self.now = self.now.after(Nanos::from_ms(ms));
        self.clock()
    }

    /// Gives the core an input.
    fn give(&mut self, input: SubscriberInput<'_>) {
        self.input(|core, now, mut on| core.handle(now, input, &mut on));
    }

    fn connected(&mut self, path: Path) {
        self.give(SubscriberInput::Connected(path));
    }

    fn tell(&mut self, path: Path, message: &Message<'_>) {
        self.give(SubscriberInput::message(path, CHANNEL, message));
    }

    fn hear_on(&mut self, channel: ChannelId, line: LineId, bytes: &[u8]) {
        self.input(|core, now, mut on| {
            core.handle_bytes(now, (channel, line), bytes, false, &mut on);
        });
    }

    fn hear(&mut self, bytes: &[u8]) {
        let mut aligned = AlignedCopy::default();
        let bytes = aligned.of(bytes);
        self.hear_on(CHANNEL, A, bytes);
    }

    /// Returns the frames sent now, except PROGRESS.
    fn sent(&mut self) -> Vec<(Path, ChannelId, Message<'static>)> {
        let mut sent = Vec::new();
        let mut out = Vec::new();
        loop {
            self.give(SubscriberInput::Poll);
            let path = self.core.poll_transmit(&mut out);
            let Some(path) = path else { return sent };
            let mut frames = &std::mem::take(&mut out)[..];
            while let Some((channel, message, taken)) = Message::read(frames, 1 << 20).unwrap() {
                frames = &frames[taken..];
                let message = match message {
                    Message::Join(join) => Message::Join(join),
                    Message::Leave => Message::Leave,
                    Message::Nack {
                        epoch,
                        class,
                        ranges,
                    } => Message::Nack {
                        epoch,
                        class,
                        ranges,
                    },
                    Message::Progress(_) => continue,
                    other => panic!("a subscriber sent {other:?}"),
                };
                sent.push((path, channel, message));
            }
        }
    }

    fn nacks(&mut self) -> Vec<(Path, NackClass, Vec<SequenceRange>)> {
        let of = |(path, _, message)| match message {
            Message::Nack { class, ranges, .. } => (path, class, ranges),
            other => panic!("{other:?}"),
        };
        self.sent().into_iter().map(of).collect()
    }

    fn downs(&self) -> Vec<LinkDownReason> {
        let of = |event: &Event| match event {
            Event::RepairLinkDown(reason) => Some(*reason),
            _ => None,
        };
        self.events.iter().filter_map(of).collect()
    }
}

fn join(hand: &mut Hand) -> Join {
    match hand.sent().remove(0).2 {
        Message::Join(join) => join,
        other => panic!("{other:?}"),
    }
}

/// Returns a publisher's offer for the second channel.
fn offer_of_second(publisher: &Publisher) -> ChannelOffer {
    let mut offer = publisher.welcome(1).channels.remove(0);
    (offer.channel, offer.name) = (SECOND, "d".into());
    offer
}

#[test]
fn zombie_welcome_rejoins_and_silence_starts_at_join() {
    let (stale_us, dead_us) = (30_000, 5_000_000);
    let config = ReceiverConfig {
        stale_us,
        dead_us,
        ..quiet()
    };
    let start = Start::At(Epoch(9), Sequence(3));
    let mut hand = Hand::with(config, &[(CHANNEL, start)]);
    hand.clock();
    hand.connected(Path::Repair);
    assert_eq!(join(&mut hand).channels[0].start, start);
    hand.tell(
        Path::Repair,
        &Message::Welcome(Publisher::new(5, 1).welcome(1)),
    );
    assert!(!hand.core.is_joined());
    hand.actions();
    while hand.later(20) != [Action::Connect(Path::Repair)] {}
    hand.later(40);
    hand.connected(Path::Repair);
    let again = join(&mut hand);
    assert_eq!(again.channels[0].start, start);
    assert_eq!(again.channels[0].confirmed_epoch, Epoch::NONE);
    assert!(!hand.reported().contains(&Event::Stale), "nobody listened");
    hand.tell(
        Path::Repair,
        &Message::Welcome(Publisher::new(9, 1).welcome(1)),
    );
    assert!(hand.core.is_joined());
    hand.later(29);
    assert!(!hand.reported().contains(&Event::Stale));
    hand.later(1);
    assert!(hand.reported().contains(&Event::Stale));
}

#[test]
fn join_carries_its_start_and_rejoin_its_position() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = Hand::new(&[(CHANNEL, Start::Oldest)]);
    assert_eq!(hand.core.poll_timeout(), hand.now);
    assert_eq!(hand.clock(), [Action::Connect(Path::Repair)]);
    assert!(hand.sent().is_empty() && hand.clock().is_empty());
    hand.connected(Path::Repair);
    let first = join(&mut hand);
    assert_eq!((&first.name[..], &first.wire_versions[..]), ("s", &[1][..]));
    assert_eq!(first.purpose, Purpose::Repair);
    assert_eq!(first.channels[0].start, Start::Oldest);
    assert_eq!(first.channels[0].confirmed_epoch, Epoch::NONE);
    hand.tell(Path::Repair, &Message::Welcome(publisher.welcome(1)));
    hand.actions();
    hand.hear(&publisher.publish(1));
    hand.give(SubscriberInput::Disconnected(
        Path::Repair,
        LinkDownReason::Closed,
    ));
    assert_eq!(hand.downs(), [LinkDownReason::Closed]);
    assert!(!hand.core.is_joined());
    assert_eq!(hand.later(20), [Action::Connect(Path::Repair)]);
    hand.connected(Path::Repair);
    let again = join(&mut hand);
    assert_eq!(again.channels[0].start, Start::At(Epoch(5), Sequence(2)));
    assert_eq!(again.channels[0].confirmed_epoch, Epoch(5));
}

#[test]
fn connection_attempt_times_out_and_is_retried() {
    let mut hand = Hand::new(&[(CHANNEL, Start::Live)]);
    hand.clock();
    assert_eq!(
        hand.core.poll_timeout(),
        hand.now.after(Nanos::from_secs(2))
    );
    assert_eq!(hand.later(1_999), []);
    assert_eq!(hand.later(1), [Action::Disconnect(Path::Repair)]);
    hand.connected(Path::Repair);
    let stale = [Action::Disconnect(Path::Repair)];
    assert_eq!(hand.actions(), stale, "of an attempt that was given up");
    assert_eq!(hand.later(20), [Action::Connect(Path::Repair)]);
    hand.connected(Path::Repair);
    hand.connected(Path::Repair);
    assert_eq!(
        (hand.sent().len(), hand.actions()),
        (1, vec![]),
        "said once"
    );
    assert_eq!(hand.later(2_000), [Action::Disconnect(Path::Repair)]);
}

#[test]
fn invalid_welcome_closes_the_connection() {
    let publisher = Publisher::new(5, 1);
    type Change = fn(&mut Welcome);
    let cases: [Change; 7] = [
        |w| w.wire_version = 2,
        |w| w.channels[0].epoch = Epoch::NONE,
        |w| w.channels.clear(),
        |w| w.channels.push(w.channels[0].clone()),
        |w| w.channels[0].slot_len = 63,
        |w| w.channels[0].slot_len = 65_537,
        |w| w.channels[0].slots = 0,
    ];
    for (n, change) in cases.into_iter().enumerate() {
        let mut hand = Hand::new(&[(CHANNEL, Start::Live)]);
        hand.clock();
        hand.connected(Path::Repair);
        let mut welcome = publisher.welcome(1);
        change(&mut welcome);
        hand.tell(Path::Repair, &Message::Welcome(welcome));
        assert_eq!(hand.actions(), [Action::Disconnect(Path::Repair)], "{n}");
        assert!(!hand.core.is_joined() && hand.core.receiver(CHANNEL).is_none());
        assert!(hand.events.is_empty());
    }
    for slot_len in [64, 65_536] {
        let mut hand = Hand::new(&[(CHANNEL, Start::Live)]);
        hand.clock();
        hand.connected(Path::Repair);
        let mut welcome = publisher.welcome(1);
        welcome.channels[0].slot_len = slot_len;
        hand.tell(Path::Repair, &Message::Welcome(welcome));
        assert!(hand.core.is_joined());
    }
}

#[test]
fn rejection_is_reported_and_its_retry_delay_kept() {
    let publisher = Publisher::new(5, 1);
    let mut hand = Hand::new(&[(CHANNEL, Start::Live)]);
    hand.clock();
    hand.connected(Path::Repair);
    let rejected = Rejected {
        code: RejectCode::TooMany,
        text: "full".into(),
        retry_after_ms: 5_000,
    };
    hand.tell(Path::Repair, &Message::Rejected(rejected.clone()));
    let expected = [Action::Disconnect(Path::Repair), Action::Rejected(rejected)];
    assert_eq!(hand.actions(), expected);
    assert_eq!(hand.later(4_999), []);
    assert_eq!(hand.later(1), [Action::Connect(Path::Repair)]);
    // Messages of a closed connection are ignored.
    hand.tell(Path::Repair, &Message::Welcome(publisher.welcome(1)));
    assert!(!hand.core.is_joined());
}

/// A process that holds the port of a dead publisher for a moment must not silence a subscriber for ever.
#[test]
fn rejection_with_endless_wait_is_tried_again_after_8_s() {
    let mut hand = Hand::new(&[(CHANNEL, Start::Live)]);
    hand.clock();
    hand.connected(Path::Repair);
    let rejected = Rejected {
        code: RejectCode::TooMany,
        text: "full".into(),
        retry_after_ms: u64::MAX,
    };
    hand.tell(Path::Repair, &Message::Rejected(rejected));
    hand.actions();
    assert_eq!(hand.later(7_999), []);
    assert_eq!(hand.later(1), [Action::Connect(Path::Repair)]);
}

#[test]
fn subscriber_message_from_publisher_is_a_protocol_error() {
    let publisher = Publisher::new(5, 1);
    for wrong in [
        Message::Leave,
        Message::Nack {
            epoch: Epoch(5),
            class: NackClass::Repair,
            ranges: vec![],
        },
    ] {
        let mut hand = Hand::joined(&publisher, Start::Live);
        hand.tell(Path::Repair, &wrong);
        assert_eq!(hand.actions(), [Action::Disconnect(Path::Repair)]);
        assert_eq!(hand.downs(), [LinkDownReason::Protocol]);
    }
}

#[test]
fn status_of_higher_epoch_rejoins_lower_is_ignored() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = Hand::joined(&publisher, Start::Live);
    for _ in 0..2 {
        let lower = Publisher::new(4, 9).status();
        hand.tell(Path::Repair, &Message::Status(lower));
    }
    assert!(hand.actions().is_empty() && hand.core.is_joined());
    hand.tell(
        Path::Repair,
        &Message::Status(Publisher::new(6, 1).status()),
    );
    assert_eq!(hand.actions(), [Action::Disconnect(Path::Repair)]);
    assert_eq!(hand.downs(), [LinkDownReason::Closed]);
    // A STATUS of the current epoch reaches the receiver.
    let mut hand = Hand::joined(&publisher, Start::Live);
    publisher.publish(1);
    for _ in 0..2 {
        hand.tell(Path::Repair, &Message::Status(publisher.status()));
    }
    assert_eq!(
        hand.nacks(),
        [(Path::Repair, NackClass::Repair, vec![run(1, 1)])]
    );
}

#[test]
fn channels_have_separate_receivers() {
    let first = Publisher::new(5, 1);
    let second = Publisher::new(6, 1);
    let mut hand = Hand::new(&[(CHANNEL, Start::Live), (SECOND, Start::Live)]);
    hand.clock();
    hand.connected(Path::Repair);
    assert!(hand.core.entries().all(|entry| entry.is_none()));
    assert_eq!(hand.core.index_of(CHANNEL), None);
    let mut welcome = first.welcome(1);
    welcome.channels.push(offer_of_second(&second));
    hand.tell(Path::Repair, &Message::Welcome(welcome));
    let listens = hand.actions();
    let channels: Vec<_> = listens
        .iter()
        .map(|action| match action {
            Action::Listen(offer) => offer.channel,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(channels, [CHANNEL, SECOND]);
    for (index, channel, epoch) in [(0, CHANNEL, 5), (1, SECOND, 6)] {
        let receiver = hand.core.receiver(channel).unwrap();
        assert_eq!(
            (receiver.channel(), receiver.epoch()),
            (channel, Epoch(epoch))
        );
        assert_eq!(hand.core.index_of(channel), Some(index));
    }
    assert!(hand.core.receiver(ChannelId(9)).is_none());
    assert_eq!(hand.core.receivers().count(), 2);
    hand.give(SubscriberInput::UnknownSender(SECOND));
    hand.give(SubscriberInput::UnknownSender(ChannelId(9)));
    let strangers: Vec<_> = hand
        .core
        .counters()
        .map(|c| c.unknown_sender_dropped.get())
        .collect();
    assert_eq!(strangers, [0, 1]);
    let received: Vec<_> = hand
        .core
        .counters()
        .map(|c| c.received_datagrams.get())
        .collect();
    assert_eq!(received, [0, 1]);
}

#[test]
fn session_ends_only_after_all_channels_ended() {
    let mut ended = Publisher::new(5, 1);
    ended.end();
    let mut hand = Hand::new(&[(CHANNEL, Start::Live), (SECOND, Start::Live)]);
    assert!(!hand.core.ended());
    hand.clock();
    hand.connected(Path::Repair);
    let mut welcome = ended.welcome(1);
    welcome
        .channels
        .push(offer_of_second(&Publisher::new(5, 1)));
    hand.tell(Path::Repair, &Message::Welcome(welcome));
    hand.tell(Path::Repair, &Message::Status(ended.status()));
    assert!(!hand.core.ended(), "the other has not");
    assert!(hand.core.receiver(CHANNEL).unwrap().ended());
}

#[test]
fn nack_ranges_beyond_message_limit_are_split() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = Hand::joined(&publisher, Start::Live);
    hand.sent();
    for n in 0..601 {
        let bytes = publisher.publish(1);
        if n % 2 == 0 {
            hand.hear(&bytes);
        }
        if n == 300 {
            hand.tell(Path::Repair, &Message::Status(publisher.status()));
        }
    }
    let asked: Vec<_> = hand.nacks().into_iter().map(|n| n.2.len()).collect();
    assert_eq!(asked, [256, 44]);
    assert_eq!(hand.core.counters().next().unwrap().nacks_sent.get(), 2);
}

#[test]
fn replay_uses_own_connection_closed_when_idle() {
    let mut publisher = Publisher::new(5, 1);
    (0..20).for_each(|_| drop(publisher.publish(1)));
    let mut hand = Hand::joined(&publisher, Start::Oldest);
    assert_eq!(hand.sent(), [], "not before it is there");
    assert_eq!(hand.actions(), [Action::Connect(Path::Replay)]);
    assert_eq!(
        (hand.sent(), hand.actions()),
        (vec![], vec![]),
        "asked for once"
    );
    hand.connected(Path::Replay);
    let sent = hand.sent();
    let [(Path::Replay, ChannelId(0), Message::Join(join))] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert_eq!(
        (join.purpose, join.channels.len()),
        (Purpose::Replay { session: 9 }, 0)
    );
    let welcome = publisher.further_welcome();
    hand.tell(Path::Replay, &Message::Welcome(welcome));
    assert_eq!(
        hand.nacks(),
        [(Path::Replay, NackClass::Replay, vec![run(1, 20)])]
    );
    let retry = hand.core.poll_timeout().since(hand.now);
    let first_wait = Nanos::from_us(750)..=Nanos::from_us(1_250);
    assert!(
        first_wait.contains(&retry),
        "it may have to be asked again: {retry}"
    );
    for bytes in publisher.sent.values() {
        hand.tell(Path::Replay, &Message::Datagram(&again(bytes)));
    }
    assert_eq!(hand.records, numbers(1..=20));
    assert!(hand.core.is_joined());
    // Two seconds after its last use.
    let idle = hand.now.after(Nanos::from_secs(2));
    assert_eq!(hand.core.poll_timeout(), idle.after(Nanos(1)));
    assert_eq!(hand.later(2_000), []);
    assert_eq!(hand.later(1), [Action::Disconnect(Path::Replay)]);
    assert!(hand.core.poll_timeout() > hand.now.after(Nanos::from_secs(1)));
    assert_eq!(hand.later(3_000), []);
}

#[test]
fn answering_replay_is_not_idle_broken_one_retries() {
    let mut publisher = Publisher::new(5, 1);
    (0..20).for_each(|_| drop(publisher.publish(1)));
    let mut hand = Hand::joined(&publisher, Start::Oldest);
    hand.sent();
    hand.actions();
    hand.connected(Path::Replay);
    let welcome = publisher.further_welcome();
    hand.tell(Path::Replay, &Message::Welcome(welcome.clone()));
    hand.sent();
    hand.now = hand.now.after(Nanos::from_ms(1_500));
    hand.tell(
        Path::Replay,
        &Message::Datagram(&again(&publisher.sent[&1])),
    );
    assert_eq!(hand.later(1_000), [], "used a second ago");
    hand.sent();
    hand.give(SubscriberInput::Disconnected(
        Path::Replay,
        LinkDownReason::Closed,
    ));
    assert_eq!(hand.downs(), [], "the repair connection is there");
    assert_eq!(hand.sent(), []);
    let reconnect = hand.later(20);
    assert_eq!(reconnect, [Action::Connect(Path::Replay)]);
    hand.connected(Path::Replay);
    hand.tell(Path::Replay, &Message::Welcome(welcome));
    let sent = hand.sent();
    assert!(
        matches!(&sent[..], [_, (Path::Replay, CHANNEL, Message::Nack { ranges, .. })]
            if *ranges == [run(2, 20)]),
        "{sent:?}"
    );
    // The session ends with the repair connection, and its replay with it.
    hand.give(SubscriberInput::Disconnected(
        Path::Repair,
        LinkDownReason::Closed,
    ));
    assert_eq!(hand.actions(), [Action::Disconnect(Path::Replay)]);
}

#[test]
fn replay_falls_back_to_repair_after_failed_connections() {
    let mut publisher = Publisher::new(5, 1);
    (0..20).for_each(|_| drop(publisher.publish(1)));
    let mut hand = Hand::joined(&publisher, Start::Oldest);
    hand.sent();
    let mut actions = hand.actions();
    for attempt in 1..=3 {
        assert_eq!(actions, [Action::Connect(Path::Replay)], "{attempt}");
        hand.give(SubscriberInput::Disconnected(
            Path::Replay,
            LinkDownReason::Unreachable,
        ));
        if attempt < 3 {
            assert_eq!(hand.sent(), []);
            actions = hand.later(100);
        }
    }
    assert_eq!(
        hand.nacks(),
        [(Path::Repair, NackClass::Replay, vec![run(1, 20)])]
    );
}

#[test]
fn refusal_is_routed_to_its_channel() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = Hand::joined(&publisher, Start::Live);
    hand.hear(&publisher.publish(1));
    publisher.publish(2);
    hand.hear(&publisher.publish(1));
    assert_eq!(hand.nacks().len(), 1);
    let refused = publisher.refused(run(2, 2), RefusalReason::TooSlow, 0);
    hand.tell(Path::Repair, &Message::Refused(refused));
    assert_eq!(hand.records, [1, 4]);
}

#[test]
fn leave_is_sent_and_open_gap_is_declared_lost() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = Hand::joined(&publisher, Start::Live);
    hand.hear(&publisher.publish(1));
    publisher.publish(2);
    hand.hear(&publisher.publish(1));
    hand.sent();
    hand.give(SubscriberInput::Leave(LossCause::Left));
    assert_eq!(hand.sent(), [(Path::Repair, ChannelId(0), Message::Leave)]);
    let lost = hand.events.iter().find_map(|event| match event {
        Event::Lost(loss) => Some((loss.sequences, loss.records, loss.cause)),
        _ => None,
    });
    assert_eq!(lost, Some((run(2, 2), Some(2), LossCause::Left)));
    assert_eq!(hand.records, [1, 4]);
}

#[test]
fn name_moved_to_other_number_is_other_space() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = Hand::joined(&publisher, Start::Live);
    hand.hear(&publisher.publish(1));
    publisher.publish(2);
    hand.hear(&publisher.publish(1));
    hand.give(SubscriberInput::Disconnected(
        Path::Repair,
        LinkDownReason::Closed,
    ));
    hand.later(20);
    hand.connected(Path::Repair);
    let mut other = Publisher::new(3, 1);
    other.publish(1);
    let mut welcome = other.welcome(1);
    welcome.channels = vec![offer_of_second(&other)];
    hand.events.clear();
    hand.tell(Path::Repair, &Message::Welcome(welcome));
    assert!(hand.core.receiver(CHANNEL).is_none());
    assert_eq!(hand.core.receiver(SECOND).unwrap().epoch(), Epoch(3));
    assert!(matches!(hand.events[0], Event::Lost(loss) if loss.cause == LossCause::Epoch));
    assert!(
        hand.events.contains(&Event::Joined { after: Sequence(0) }),
        "from its oldest"
    );
}

/// Returns a config with silence after 5 ms, on one line or two.
fn restless() -> ReceiverConfig {
    ReceiverConfig {
        stale_us: 5_000,
        line_silence_us: 5_000,
        dead_us: 100_000,
        ..quiet()
    }
}

fn restless_on(lines: usize, publisher: &Publisher) -> Hand {
    let mut hand = Hand::with(restless(), &[(CHANNEL, Start::Live)]);
    hand.clock();
    hand.connected(Path::Repair);
    hand.tell(Path::Repair, &Message::Welcome(publisher.welcome(lines)));
    hand.sent();
    hand.actions();
    hand
}

#[test]
fn reported_silence_ends_with_next_epochs_datagram() {
    let fresh = |events: &[Event]| events.iter().filter(|e| **e == Event::Recovered).count();
    for (reported, by_multicast) in [(true, false), (true, true), (false, true)] {
        let mut publisher = Publisher::new(5, 1);
        let mut hand = restless_on(1, &publisher);
        hand.hear(&publisher.publish(1));
        let end = publisher.end();
        if reported {
            hand.later(6);
        }
        assert_eq!(hand.reported().contains(&Event::Stale), reported);
        // END arrives over TCP, and then multicast causes no events.
        hand.tell(Path::Repair, &Message::Datagram(&again(&end)));
        assert!(hand.reported().contains(&Event::EndOfSession));
        if by_multicast {
            hand.hear(&publisher.heartbeat());
        } else {
            hand.later(6);
        }
        hand.cut();
        assert_eq!(hand.reported(), [], "after the end it is no news");
        let mut next = Publisher::new(6, 1);
        hand.welcomed_again(next.welcome(1));
        assert_eq!(fresh(&hand.reported()), 0, "nothing was heard yet");
        hand.hear(&next.publish(1));
        assert_eq!(fresh(&hand.reported()), usize::from(reported));
        assert!(!hand.state.stale);
        hand.hear(&next.publish(1));
        assert_eq!(hand.reported(), []);
        assert!(hand.later(6).is_empty() && hand.reported() == [Event::Stale]);
    }
}

#[test]
fn unconfirmed_end_leaves_silence_to_next_epoch() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = restless_on(1, &publisher);
    hand.hear(&publisher.publish(1));
    hand.hear(&publisher.end());
    hand.cut();
    hand.reported();
    while !hand.state.ended {
        // The publisher is unreachable.
        if hand.later(20) == [Action::Connect(Path::Repair)] {
            hand.cut();
        }
    }
    assert_eq!(
        hand.reported(),
        [Event::Stale, Event::PublisherDead, Event::EndOfSession]
    );
    let mut next = Publisher::new(6, 1);
    hand.welcomed_again(next.welcome(1));
    assert!(hand.reported().contains(&Event::RepairLinkUp) && hand.state.stale);
    hand.hear(&next.publish(1));
    assert_eq!(hand.reported(), [Event::Recovered]);
}

#[test]
fn rejoin_keeps_stream_state_and_reports_its_recovery() {
    // Rejoin on request, or because the channel has another number.
    for moves in [false, true] {
        let mut publisher = Publisher::new(5, 1);
        let mut hand = restless_on(2, &publisher);
        hand.hear(&publisher.publish(1));
        hand.later(3);
        hand.hear(&publisher.heartbeat());
        hand.later(3);
        assert!(hand.reported().contains(&Event::LineDown(LineId(1))));
        hand.later(6);
        publisher.publish(1);
        hand.tell(Path::Repair, &Message::Status(publisher.status()));
        assert_eq!(hand.reported(), [Event::Stale, Event::MulticastLost]);
        hand.cut();
        let mut welcome = publisher.welcome(2);
        if moves {
            welcome.channels[0].channel = SECOND;
        } else {
            let start = Start::Oldest;
            hand.give(SubscriberInput::Rejoin {
                channel: CHANNEL,
                start,
            });
        }
        hand.reported();
        hand.welcomed_again(welcome);
        let reported = hand.reported();
        assert!(reported.contains(&Event::Joined { after: Sequence(0) }));
        assert!(reported.contains(&Event::RepairLinkUp), "{reported:?}");
        assert!(
            !reported.contains(&Event::Recovered) && hand.state.stale,
            "nothing was heard"
        );
        let channel = if moves { SECOND } else { CHANNEL };
        let stands = |hand: &Hand| hand.core.receiver(channel).unwrap().stream_state();
        let before = stands(&hand);
        assert!(before.stale && before.multicast_lost && before.repair_link_up);
        assert_eq!(before.lines_down, [false, true]);
        let beat = publisher.beat_of(channel);
        for line in [A, B] {
            let mut aligned = AlignedCopy::default();
            let bytes = aligned.of(&beat);
            hand.hear_on(channel, line, bytes);
        }
        assert_eq!(
            hand.reported(),
            [Event::MulticastRestored, Event::Recovered, Event::LineUp(B)]
        );
        let after = stands(&hand);
        assert!(!after.stale && !after.multicast_lost && after.lines_down == [false; 2]);
    }
}

#[test]
fn listened_line_count_survives_welcome_and_rejoin() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = restless_on(2, &publisher);
    hand.give(SubscriberInput::Listening {
        channel: CHANNEL,
        lines: 1,
    });
    hand.hear(&publisher.publish(1));
    for rejoins in [false, true] {
        hand.cut();
        if rejoins {
            hand.give(SubscriberInput::Rejoin {
                channel: CHANNEL,
                start: Start::Live,
            });
        }
        hand.welcomed_again(publisher.welcome(2));
        hand.sent();
        publisher.publish(1);
        hand.hear(&publisher.publish(1));
        assert_eq!(hand.nacks().len(), 1, "no other line could bring it");
        hand.reported();
        for _ in 0..4 {
            hand.later(3);
            hand.hear(&publisher.heartbeat());
        }
        assert_eq!(hand.reported(), [], "no line is missing");
    }
}

#[test]
fn removed_line_that_was_down_is_reported_up() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = restless_on(2, &publisher);
    hand.hear(&publisher.publish(1));
    hand.later(3);
    hand.hear(&publisher.heartbeat());
    hand.later(3);
    assert!(hand.reported().contains(&Event::LineDown(B)));
    let listening = SubscriberInput::Listening {
        channel: CHANNEL,
        lines: 1,
    };
    // Not by `give`: the core emits the change with the next timeout.
    (hand.core).handle(hand.now, listening, &mut |_: Item<'_>| ());
    hand.clock();
    assert_eq!(hand.reported(), [Event::LineUp(B)]);
}

#[test]
fn followed_lines_match_the_offered_fan_out() {
    // A gap of line A waits for line B only if there is a line B.
    let waits = |fan_outs: Vec<FanOutOffer>| {
        let mut publisher = Publisher::new(5, 1);
        let mut hand = Hand::new(&[(CHANNEL, Start::Live)]);
        hand.clock();
        hand.connected(Path::Repair);
        let mut welcome = publisher.welcome(1);
        welcome.channels[0].fan_outs = fan_outs;
        hand.tell(Path::Repair, &Message::Welcome(welcome));
        hand.sent();
        publisher.publish(1);
        hand.hear(&publisher.publish(1));
        hand.nacks().is_empty()
    };
    let udp = |lines| match &Publisher::new(5, 1).welcome(lines).channels[0].fan_outs[0] {
        FanOutOffer::Udp { lines } => FanOutOffer::Udp {
            lines: lines.clone(),
        },
        other => panic!("{other:?}"),
    };
    assert!(waits(vec![udp(2)]) && waits(vec![FanOutOffer::Unknown, udp(2)]));
    assert!(!waits(vec![udp(1)]) && !waits(vec![FanOutOffer::Unknown]) && !waits(vec![]));
    assert_eq!(LineId::MAX, 2);
}

#[test]
fn fewer_lines_than_fan_out_wait_for_none_missing() {
    let asks = |lines: u8| {
        let mut publisher = Publisher::new(5, 1);
        let mut hand = Hand::new(&[(CHANNEL, Start::Live)]);
        hand.clock();
        hand.connected(Path::Repair);
        hand.tell(Path::Repair, &Message::Welcome(publisher.welcome(2)));
        hand.give(SubscriberInput::Listening {
            channel: CHANNEL,
            lines,
        });
        hand.sent();
        publisher.publish(1);
        hand.hear(&publisher.publish(1));
        !hand.nacks().is_empty()
    };
    assert!(asks(1), "it took a fan-out of one line");
    assert!(!asks(2), "line B may still bring it");
}

#[test]
fn start_at_sequence_declares_loss_of_known_size_exactly() {
    let mut publisher = Publisher::new(5, 1);
    (0..20).for_each(|_| drop(publisher.publish(3)));
    let begun = |publisher: &Publisher, epoch, sequence| {
        let start = Start::At(Epoch(epoch), Sequence(sequence));
        let mut alone = Alone::welcomed(quiet(), publisher, start, 1);
        alone.receiver.close(LossCause::Left, &mut |_: Item<'_>| {});
        let counters = alone.counters();
        let lost = (
            counters.lost_records.get(),
            counters.losses_of_unknown_size.get(),
        );
        (alone.events[0].clone(), lost)
    };
    let joined = |after| Event::Joined {
        after: Sequence(after),
    };
    assert_eq!(begun(&publisher, 5, 0), (joined(0), (60, 0)), "all of it");
    assert_eq!(begun(&publisher, 5, 1), (joined(0), (60, 0)));
    assert_eq!(
        begun(&publisher, 5, 11),
        (joined(10), (0, 1)),
        "nobody told us"
    );
    assert_eq!(begun(&publisher, 5, 21), (joined(20), (0, 0)));
    assert_eq!(
        begun(&publisher, 5, 99),
        (joined(20), (0, 0)),
        "not sent yet"
    );
    publisher.oldest = 11;
    assert_eq!(begun(&publisher, 5, 11), (joined(10), (30, 0)));
    let start = Start::At(Epoch(4), Sequence(7));
    let alone = Alone::welcomed(quiet(), &publisher, start, 1);
    assert_eq!(alone.losses(), [(7, u64::MAX, None, LossCause::Epoch)]);
    let changed = Event::EpochChanged {
        from: Epoch(4),
        to: Epoch(5),
    };
    assert_eq!(alone.events[1..3], [changed, joined(10)]);
    assert_eq!(alone.counters().replay_requested.get(), 10);
    let live = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    assert_eq!(live.events, [joined(20), Event::Live]);
    assert_eq!(live.counters().epochs.get(), 1);
}

#[test]
fn welcome_resumes_changes_epoch_or_is_zombie() {
    let mut old = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &old, Start::Live, 1);
    alone.hear(A, &old.publish(2));
    old.publish(2);
    let welcome = |alone: &mut Alone, publisher: &Publisher| {
        alone.events.clear();
        alone.welcome(&publisher.welcome(1), Start::Live)
    };
    assert_eq!(welcome(&mut alone, &Publisher::new(4, 1)), Welcomed::Zombie);
    assert!(alone.events.is_empty());
    assert_eq!(alone.counters().old_epoch_dropped.get(), 1);
    alone.link_down(LinkDownReason::Closed);
    alone.link_down(LinkDownReason::Closed);
    assert_eq!(alone.counters().repair_links_down.get(), 1);
    assert_eq!(welcome(&mut alone, &old), Welcomed::Resumed);
    assert!(alone.events.contains(&Event::RepairLinkUp));
    assert_eq!(alone.asks(), [], "its word counts when it is told again");
    assert_eq!(welcome(&mut alone, &old), Welcomed::Resumed);
    assert_eq!(alone.asks(), [run(2, 2)]);
    assert_eq!(alone.counters().repair_links_up.get(), 3);
    // A new epoch starts at its first sequence. Records that its ring no longer holds are reported exactly.
    let mut new = Publisher::new(6, 1);
    (0..9).for_each(|_| drop(new.publish(2)));
    new.oldest = 4;
    alone.hear(A, &Publisher::new(5, 3_000).publish(1));
    assert_eq!(welcome(&mut alone, &new), Welcomed::EpochChanged);
    let tail = (3, u64::MAX, None, LossCause::Epoch);
    assert_eq!(
        alone.losses(),
        [(2, 2, Some(2), LossCause::Epoch), tail][..]
    );
    assert_eq!(alone.receiver.progress(), (Sequence(3), Sequence(9)));
    assert_eq!(alone.counters().replay_requested.get(), 9);
    let sent: Vec<_> = new.sent.values().skip(3).cloned().collect();
    alone.records.clear();
    for bytes in &sent {
        alone.answer(bytes);
    }
    let window = (1, 3, Some(6), LossCause::Window);
    assert_eq!(alone.losses().last(), Some(&window));
    assert_eq!(alone.records, numbers(7..=18));
    assert!(alone.events.contains(&Event::Live));
    let mut status = new.status();
    new.publish(1);
    status = tickcast_reliability::control::Status {
        newest: new.newest(),
        ..status
    };
    alone.status(&status);
    assert_eq!(alone.asks(), [], "what the old epoch told counts no more");
}

#[test]
fn longer_slots_of_another_epoch_are_made_room_for() {
    let old = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &old, Start::Live, 1);
    let mut new = Publisher::new(6, 1);
    let mut offer = new.welcome(1).channels.remove(0);
    offer.slot_len = 4_096;
    alone.input(|r, now, mut on| {
        r.handle_welcome(now, &offer, Start::Live, &mut on);
    });
    let first = new.publish(1);
    alone.hear(A, &new.publish(60));
    alone.hear(A, &first);
    assert_eq!(alone.records, numbers(1..=61));
    assert_eq!(alone.counters().malformed_dropped.get(), 0);
}

#[test]
fn another_number_of_lines_is_followed_from_a_fresh_start() {
    let mut publisher = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &publisher, Start::Live, 1);
    let gap = |alone: &mut Alone, publisher: &mut Publisher| {
        publisher.publish(1);
        alone.hear(A, &publisher.publish(1));
        alone.asks().len()
    };
    assert_eq!(gap(&mut alone, &mut publisher), 1);
    alone.receiver.handle_lines(2, alone.now);
    assert_eq!(gap(&mut alone, &mut publisher), 0, "it waits for the other");
    let passed = publisher.publish(1);
    alone.hear(B, &passed);
    alone.receiver.handle_lines(2, alone.now);
    alone.receiver.handle_lines(9, alone.now);
    assert_eq!(alone.asks().len(), 1, "nothing changed: both had passed it");
    alone.receiver.handle_lines(0, alone.now);
    assert_eq!(gap(&mut alone, &mut publisher), 1);
}

#[test]
fn crc_verdict_passed_as_input_is_trusted() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = Hand::joined(&publisher, Start::Live);
    let mut aligned = AlignedCopy::default();
    for verdict in [CrcVerdict::Bad, CrcVerdict::Good] {
        let bytes = publisher.publish(1);
        publisher.next = 2;
        publisher.next_record = 2;
        let datagram = Datagram::parse(aligned.of(&bytes)).unwrap();
        hand.input(|core, now, mut on| {
            let input = SubscriberInput::Datagram {
                channel: CHANNEL,
                line: A,
                datagram: &datagram,
                verdict,
            };
            core.handle(now, input, &mut on);
        });
        if verdict == CrcVerdict::Bad {
            assert!(hand.records.is_empty());
            (publisher.next, publisher.next_record) = (1, 1);
        }
    }
    assert_eq!(hand.records, [1]);
    let counters = hand.core.counters().next().unwrap();
    assert_eq!(counters.corrupt_dropped.get(), 1);
    assert_eq!(counters.received_datagrams.get(), 2);
    let len = publisher.sent[&1].len() as u64;
    assert_eq!(counters.received_bytes.get(), 2 * len);
}

#[test]
fn silent_connection_is_rebuilt() {
    let publisher = Publisher::new(5, 1);
    let mut hand = Hand::joined(&publisher, Start::Live);
    let stale = hand.later(50_000);
    assert_eq!(stale, []);
    assert_eq!(hand.events.last(), Some(&Event::Stale));
    assert_eq!(hand.later(200), [Action::Rejoin(CHANNEL)]);
    let silent = hand.later(4_000_000 - 50_200);
    assert_eq!(
        silent,
        [Action::Rejoin(CHANNEL), Action::Disconnect(Path::Repair)]
    );
    assert_eq!(hand.downs(), [LinkDownReason::Unanswered]);
    let dead = hand.later(4_000_000);
    assert_eq!(dead, [Action::Connect(Path::Repair)]);
    assert!(hand.events.contains(&Event::PublisherDead));
}

#[test]
fn questions_that_are_never_answered_break_the_connection_off() {
    let mut publisher = Publisher::new(5, 1);
    let mut hand = Hand::joined(&publisher, Start::Live);
    publisher.publish(1);
    hand.hear(&publisher.publish(1));
    let mut asked = 0;
    while hand.core.is_joined() {
        asked += hand.nacks().len();
        hand.now = hand.core.poll_timeout().max(hand.now.after(Nanos(1)));
    }
    assert_eq!(asked, 8);
    assert_eq!(hand.actions(), [Action::Disconnect(Path::Repair)]);
    assert_eq!(hand.downs(), [LinkDownReason::Unanswered]);
}

#[test]
fn useful_connection_is_rebuilt_at_once_others_later() {
    let publisher = Publisher::new(5, 1);
    let mut waits = Vec::new();
    for useful in [false, true] {
        let mut hand = Hand::joined(&publisher, Start::Live);
        for _ in 0..8 {
            if useful {
                hand.tell(Path::Repair, &Message::Status(publisher.status()));
            }
            hand.give(SubscriberInput::Disconnected(
                Path::Repair,
                LinkDownReason::Closed,
            ));
            let down = hand.now;
            while hand.later(1) != [Action::Connect(Path::Repair)] {}
            waits.push(hand.now.since(down));
            hand.connected(Path::Repair);
            hand.tell(Path::Repair, &Message::Welcome(publisher.welcome(1)));
            hand.actions();
        }
    }
    let least_of_late = waits[6..8].iter().min().unwrap();
    assert!(*least_of_late >= Nanos::from_ms(320), "{waits:?}");
    assert!(
        waits[8..].iter().all(|wait| *wait <= Nanos::from_ms(16)),
        "{waits:?}"
    );
}

#[test]
fn broken_replay_requests_move_to_next_connection() {
    let mut publisher = Publisher::new(5, 1);
    (0..20).for_each(|_| drop(publisher.publish(1)));
    let patient = ReceiverConfig {
        nack_retry_us: 10_000_000,
        ..quiet()
    };
    let mut hand = Hand::with(patient, &[(CHANNEL, Start::Oldest)]).join(&publisher);
    hand.sent();
    hand.actions();
    let welcome = publisher.further_welcome();
    for _ in 0..2 {
        hand.connected(Path::Replay);
        hand.tell(Path::Replay, &Message::Welcome(welcome.clone()));
        let asked = hand.sent().into_iter().any(|(path, _, message)| {
            path == Path::Replay && matches!(message, Message::Nack { .. })
        });
        assert!(asked);
        hand.give(SubscriberInput::Disconnected(
            Path::Replay,
            LinkDownReason::Closed,
        ));
        assert_eq!(hand.later(100), [Action::Connect(Path::Replay)]);
    }
}

#[test]
fn ended_epoch_leaves_no_lost_tail() {
    let mut old = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &old, Start::Live, 1);
    let end = old.end();
    alone.hear(A, &end);
    alone.status(&old.status());
    assert!(alone.receiver.ended());
    alone.welcome(&Publisher::new(6, 1).welcome(1), Start::Live);
    let changed = Event::EpochChanged {
        from: Epoch(5),
        to: Epoch(6),
    };
    assert!(alone.events.contains(&changed) && alone.losses().is_empty());
    assert!(!alone.receiver.ended(), "the next one has only begun");
}

#[test]
fn confirmed_epoch_end_has_no_tail_despite_gaps() {
    let mut old = Publisher::new(5, 1);
    let mut alone = Alone::welcomed(quiet(), &old, Start::Live, 1);
    old.publish(2);
    alone.hear(A, &old.publish(1));
    let end = old.end();
    alone.hear(A, &end);
    alone.status(&old.status());
    assert!(!alone.receiver.ended(), "sequence 1 may still come");
    alone.welcome(&Publisher::new(6, 1).welcome(1), Start::Live);
    assert_eq!(alone.losses(), [(1, 1, Some(2), LossCause::Epoch)]);
    let place = |wanted: &Event| alone.events.iter().position(|event| event == wanted);
    let changed = Event::EpochChanged {
        from: Epoch(5),
        to: Epoch(6),
    };
    assert!(place(&Event::EndOfSession).is_some_and(|end| Some(end) < place(&changed)));
    assert!(!alone.receiver.ended(), "the next one has only begun");
}

#[test]
fn replay_in_flight_is_capped_at_its_limit() {
    let mut publisher = Publisher::new(5, 1);
    (0..20).for_each(|_| drop(publisher.publish(1)));
    let few = ReceiverConfig {
        replay_in_flight: 8,
        ..quiet()
    };
    let mut hand = Hand::with(few, &[(CHANNEL, Start::Oldest)]).join(&publisher);
    hand.sent();
    hand.actions();
    hand.connected(Path::Replay);
    let welcome = publisher.further_welcome();
    hand.sent();
    hand.tell(Path::Replay, &Message::Welcome(welcome));
    let replay = |range| vec![(Path::Replay, NackClass::Replay, vec![range])];
    assert_eq!(hand.nacks(), replay(run(1, 8)));
    assert_eq!(hand.nacks(), []);
    let retry = hand.core.poll_timeout().since(hand.now);
    let first_wait = Nanos::from_us(750)..=Nanos::from_us(1_250);
    assert!(first_wait.contains(&retry), "those may be lost: {retry}");
    for (answered, next) in [
        (1..=3, run(9, 11)),
        (4..=4, run(12, 12)),
        (5..=12, run(13, 20)),
    ] {
        for sequence in answered {
            let bytes = again(&publisher.sent[&sequence]);
            hand.tell(Path::Replay, &Message::Datagram(&bytes));
        }
        assert_eq!(hand.nacks(), replay(next));
    }
}

#[test]
fn unconfirmed_end_starts_lost_tail_if_nothing_follows() {
    for goes_on in [false, true] {
        let mut old = Publisher::new(5, 1);
        let mut alone = Alone::welcomed(quiet(), &old, Start::Live, 1);
        let first = old.publish(1);
        alone.hear(A, &first);
        let end = old.end();
        alone.hear(A, &end);
        if goes_on {
            // That END was forged, because the stream continues beyond it.
            alone.hear(A, &old.publish(1));
        }
        alone.welcome(&Publisher::new(6, 1).welcome(1), Start::Live);
        let first_lost = if goes_on { 4 } else { 2 };
        let tail = (first_lost, u64::MAX, None, LossCause::Epoch);
        assert_eq!(alone.losses(), [tail]);
        assert!(!alone.events.contains(&Event::EndOfSession));
    }
}

#[test]
fn older_epoch_start_never_returns_to_older() {
    let start = Start::At(Epoch(5), Sequence(1));
    let mut alone = Alone::welcomed(quiet(), &Publisher::new(5, 1), start, 1);
    for (epoch, expected) in [
        (7, Welcomed::EpochChanged),
        (6, Welcomed::Zombie),
        (7, Welcomed::Resumed),
    ] {
        let welcome = Publisher::new(epoch, 1).welcome(1);
        assert_eq!(alone.welcome(&welcome, start), expected);
    }
    assert_eq!(alone.receiver.epoch(), Epoch(7));
}

#[test]
fn replay_limit_covers_all_split_runs_together() {
    let mut publisher = Publisher::new(5, 1);
    (0..20).for_each(|_| drop(publisher.publish(1)));
    let few = ReceiverConfig {
        replay_in_flight: 8,
        ..quiet()
    };
    let mut hand = Hand::with(few, &[(CHANNEL, Start::Oldest)]).join(&publisher);
    hand.sent();
    hand.actions();
    hand.connected(Path::Replay);
    hand.sent();
    // A multicast repair for another subscriber splits the gap.
    hand.hear(&again(&publisher.sent[&4]));
    let welcome = publisher.further_welcome();
    hand.tell(Path::Replay, &Message::Welcome(welcome));
    let both = vec![run(1, 3), run(5, 9)];
    assert_eq!(hand.nacks(), [(Path::Replay, NackClass::Replay, both)]);
    assert_eq!(hand.nacks(), []);
}
