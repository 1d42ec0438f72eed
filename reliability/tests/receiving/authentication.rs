//! Authenticated channels: what no key tagged changes nothing, and keys roll over without a gap.

use tickcast_journal::layout::JOURNAL_LEN_MIN;
use tickcast_journal::{Journal, JournalOrigin, JournalWriter, Journaled, replay};
use tickcast_reliability::control::{Announced, Message, Start, Welcome};
use tickcast_reliability::delivery::{Item, LinkDownReason};
use tickcast_reliability::record::AlignedCopy;
use tickcast_reliability::session::{Path, SubscriberInput};
use tickcast_reliability::types::{Nanos, Sequence};
use tickcast_reliability::wire::authentication::{
    ChannelKeys, Key, NumberedKey, TAGGED_HEADER_LEN,
};
use tickcast_reliability::wire::{Datagram, Header, crc_of, datagram_flags};

use crate::epochs::mirroring;
use crate::world::*;

const PER_KEY: u64 = 8;

/// Returns an authenticated publisher of this epoch. Each has a secret of its own.
fn authenticated(epoch: u64, secret: u8) -> Publisher {
    let mut publisher = Publisher::new(epoch, 1);
    publisher.keys = Some(keys(&publisher, secret));
    publisher
}

fn keys(publisher: &Publisher, secret: u8) -> ChannelKeys {
    ChannelKeys::new(Key::new([secret; 32]), PER_KEY, CHANNEL, publisher.epoch)
}

/// Returns the datagram with the tag of this key.
fn tagged_by(key: &Key, bytes: &[u8]) -> Vec<u8> {
    let datagram = Datagram::parse(bytes).unwrap();
    let header = Header {
        flags: datagram_flags::TAGGED,
        header_len: TAGGED_HEADER_LEN as u16,
        ..*datagram.header()
    };
    let mut rest = key.tag(&header.to_bytes(0), datagram.payload()).to_vec();
    rest.extend(datagram.payload());
    let mut tagged = header.to_bytes(crc_of(&header.to_bytes(0), &rest)).to_vec();
    tagged.extend(rest);
    tagged
}

/// Returns the datagram with the tag that its publisher makes. Its repairs carry it as well.
fn tagged(publisher: &mut Publisher, bytes: &[u8]) -> Vec<u8> {
    let header = *Datagram::parse(bytes).unwrap().header();
    let keys = publisher.keys.as_ref().unwrap();
    let of = keys.key(keys.number_of(header.sequence));
    let tagged = tagged_by(&of.key, bytes);
    if header.kind.is_sequenced() {
        publisher.sent.insert(header.sequence.0, tagged.clone());
    }
    tagged
}

fn publish(publisher: &mut Publisher, count: u16) -> Vec<u8> {
    let bytes = publisher.publish(count);
    tagged(publisher, &bytes)
}

/// Returns the announcement of a key.
fn announced(publisher: &Publisher, number: u64) -> Announced {
    let keys = publisher.keys.as_ref().unwrap();
    Announced {
        epoch: publisher.epoch,
        of: keys.key(number),
    }
}

/// Returns all state of the core, but for the counts of what it received and dropped.
fn state(world: &World) -> String {
    // Debug: only this comparison reads it.
    let state = format!("{:?}", world.core);
    let counts = [
        "received_datagrams",
        "received_bytes",
        "unauthenticated_dropped",
    ];
    counts.iter().fold(state, |state, name| {
        let name = format!(" {name}: Counter(");
        let mut parts = state.split(&name);
        let before = parts.next().unwrap_or_default().to_owned();
        parts.fold(before, |all, part| {
            all + part.trim_start_matches(|it: char| it.is_ascii_digit())
        })
    })
}

#[test]
fn forged_datagrams_change_no_state_of_receiver() {
    let mut publisher = authenticated(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    for _ in 0..3 {
        world.hear(A, &publish(&mut publisher, 2));
    }
    // Datagram 4 is missing, 5 is held.
    let missing = publish(&mut publisher, 1);
    world.hear(A, &publish(&mut publisher, 1));
    assert_eq!(world.records, numbers(1..=6));
    let mut impostor = Publisher::new(5, 4);
    impostor.next_record = 7;
    let other = authenticated(5, 2);
    let mut forged = Vec::new();
    for _ in 0..8 {
        let plain = impostor.publish(1);
        for number in 0..2 {
            let of = other.keys.as_ref().unwrap().key(number);
            forged.push(tagged_by(&of.key, &plain));
        }
        forged.extend([plain, impostor.heartbeat()]);
    }
    forged.push(impostor.end());
    let mut copy = missing.clone();
    // One bit of the payload, and the CRC to it.
    *copy.last_mut().unwrap() ^= 1;
    let (head, rest) = copy.split_first_chunk::<64>().unwrap();
    let crc = crc_of(head, rest).to_le_bytes();
    copy[60..64].copy_from_slice(&crc);
    forged.push(copy);
    let before = state(&world);
    for bytes in &forged {
        world.now = world.now.after(Nanos(1));
        world.hear(A, bytes);
        assert!(
            state(&world) == before,
            "a forged datagram changed something"
        );
    }
    let dropped = world.counters().unauthenticated_dropped.get();
    assert_eq!(dropped, forged.len() as u64);
    assert_eq!(world.counters().fencing_violations.get(), 0);
    world.hear(A, &missing);
    assert_eq!(world.records, numbers(1..=8));
    world.assert_balanced(&publisher, "nothing forged counts");
}

#[test]
fn keys_roll_over_without_a_dropped_datagram() {
    let mut publisher = authenticated(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let keys = publisher.keys.clone().unwrap();
    for nth in 1..=10 * PER_KEY {
        let bytes = publish(&mut publisher, 1);
        if nth % PER_KEY == 2 {
            // The one before is late on line B.
            let number = keys.number_of(publisher.newest()) + 1;
            world.tell(Path::Repair, &Message::Key(announced(&publisher, number)));
        }
        world.hear(A, &bytes);
        if let Some(late) = publisher.sent.get(&(nth.saturating_sub(PER_KEY))) {
            let late = late.clone();
            world.hear(B, &late);
        }
    }
    assert_eq!(world.records, numbers(1..=10 * PER_KEY));
    assert_eq!(world.counters().unauthenticated_dropped.get(), 0);
    assert_eq!(world.counters().missing_datagrams.get(), 0);
    let beat = publisher.heartbeat();
    let beat = tagged(&mut publisher, &beat);
    world.hear(A, &beat);
    assert_eq!(world.counters().heartbeats.get(), 1);
}

#[test]
fn datagrams_of_unannounced_key_are_repaired() {
    let mut publisher = authenticated(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    for _ in 1..=3 * PER_KEY {
        let bytes = publish(&mut publisher, 1);
        world.hear(A, &bytes);
    }
    // The keys 0 and 1 of WELCOME cover the sequences 1 to 15.
    assert_eq!(world.counters().unauthenticated_dropped.get(), 9);
    assert_eq!(world.records, numbers(1..=15));
    world.tell(Path::Repair, &Message::Key(announced(&publisher, 2)));
    world.tell(Path::Repair, &Message::Key(announced(&publisher, 3)));
    world.hear(A, &publish(&mut publisher, 1));
    world.pass(Nanos::from_ms(1), &publisher);
    assert_eq!(
        world.records,
        numbers(1..=25),
        "they came over the connection"
    );
    assert!(world.losses().is_empty());
}

#[test]
fn key_of_another_epoch_or_path_is_not_used() {
    let mut publisher = authenticated(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    let mut wrong = announced(&publisher, 0);
    wrong.of.key = Key::new([9; 32]);
    world.tell(Path::Replay, &Message::Key(wrong.clone()));
    wrong.epoch.0 += 1;
    world.tell(Path::Repair, &Message::Key(wrong.clone()));
    wrong.epoch.0 -= 2;
    world.tell(Path::Repair, &Message::Key(wrong));
    world.hear(A, &publish(&mut publisher, 1));
    assert_eq!(world.records, [1]);
}

#[test]
fn welcome_without_key_is_refused_before_delivery() {
    let publisher = authenticated(5, 1);
    let spoilt: [fn(&mut Welcome); 4] = [
        |welcome| keys_of(welcome).clear(),
        |welcome| keys_of(welcome).retain(|of| of.number == 1),
        |welcome| {
            let of = keys_of(welcome)[0].clone();
            keys_of(welcome).extend([of.clone(), of.clone(), of]);
        },
        |welcome| {
            let offer = welcome.channels[0].authentication.as_mut().unwrap();
            offer.datagrams_per_key = 0;
        },
    ];
    for spoil in spoilt {
        let mut welcome = publisher.welcome(1);
        spoil(&mut welcome);
        let mut world = World::new(immediate(), Start::Live, 1);
        world.give(SubscriberInput::Timeout);
        world.give(SubscriberInput::Connected(Path::Repair));
        world.tell(Path::Repair, &Message::Welcome(welcome));
        assert!(!world.core.is_joined());
        assert!(world.core.receivers().next().is_none());
        assert_eq!(world.counters().welcomes_invalid.get(), 1);
        let actions: Vec<_> = std::iter::from_fn(|| world.core.poll_action()).collect();
        assert!(
            format!("{actions:?}").contains("authenticates channel"),
            "{actions:?}"
        );
    }
}

fn keys_of(welcome: &mut Welcome) -> &mut Vec<NumberedKey> {
    &mut welcome.channels[0].authentication.as_mut().unwrap().keys
}

#[test]
fn authenticated_mirror_follows_multicast_in_an_outage() {
    let mut publisher = authenticated(5, 1);
    let mut alone = mirroring(&publisher);
    alone.link_down(LinkDownReason::Closed);
    for _ in 0..3 {
        alone.later(1_000_000);
        alone.hear(A, &publish(&mut publisher, 1));
    }
    assert_eq!(alone.receiver.mirror().unwrap().mirrored().last.0, 3);
    assert_eq!(alone.counters().sequence_jump_dropped.get(), 0);
}

#[test]
fn keys_stay_when_zombie_is_refused() {
    let mut publisher = authenticated(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publish(&mut publisher, 1));
    world.cut(LinkDownReason::Closed);
    // The second zombie does not authenticate at all.
    for zombie in [authenticated(4, 2), Publisher::new(4, 1)] {
        let refused = world.counters().old_epoch_dropped.get();
        world.pass(Nanos::from_secs(3), &zombie);
        assert!(world.counters().old_epoch_dropped.get() > refused);
        assert!(!world.core.is_joined());
        world.hear(A, &publish(&mut publisher, 1));
    }
    assert_eq!(world.records, [1, 2, 3]);
    assert_eq!(world.counters().unauthenticated_dropped.get(), 0);
}

#[test]
fn restart_and_promotion_bring_new_keys_without_loss() {
    let mut publisher = authenticated(5, 1);
    let mut world = World::joined(immediate(), &publisher);
    world.hear(A, &publish(&mut publisher, 1));
    // The publisher restarts in its epoch, with another secret.
    publisher.keys = Some(keys(&publisher, 2));
    world.hear(A, &publish(&mut publisher, 1));
    assert_eq!(world.counters().unauthenticated_dropped.get(), 1);
    world.cut(LinkDownReason::Closed);
    world.pass(Nanos::from_secs(2), &publisher);
    assert_eq!(world.records, [1, 2], "repaired");
    world.hear(A, &publish(&mut publisher, 1));
    let mut promoted = publisher.promoted(6, 3);
    promoted.keys = Some(keys(&promoted, 3));
    let opened = promoted.sent[&4].clone();
    world.hear(A, &tagged(&mut promoted, &opened));
    assert_eq!(world.counters().unauthenticated_dropped.get(), 2);
    world.cut(LinkDownReason::Closed);
    world.pass(Nanos::from_secs(2), &promoted);
    world.hear(A, &publish(&mut promoted, 2));
    assert_eq!(world.records, [1, 2, 3, 4, 5]);
    assert_eq!(
        world.core.receivers().next().unwrap().progress().0,
        Sequence(5)
    );
    assert!(world.losses().is_empty());
}

/// Returns whether these bytes contain the key, as it is or in hexadecimal digits.
fn contains(bytes: &[u8], key: &Key) -> bool {
    let digits: String = key.bytes().iter().map(|it| format!("{it:02x}")).collect();
    let is_in = |wanted: &[u8]| bytes.windows(wanted.len()).any(|it| it == wanted);
    is_in(key.bytes()) || is_in(digits.as_bytes())
}

#[test]
fn record_of_join_holds_no_key() {
    let publisher = authenticated(5, 1);
    let world = World::new(immediate(), Start::Live, 1);
    let mut core = Journaled::new(world.core);
    let area = Box::new(vec![0; JOURNAL_LEN_MIN]);
    core.keep_journal(JournalWriter::new(area, &JournalOrigin::default()).unwrap());
    let welcome = Message::Welcome(publisher.welcome(1));
    let key = Message::Key(announced(&publisher, 2));
    let inputs = [
        SubscriberInput::Timeout,
        SubscriberInput::Connected(Path::Repair),
        SubscriberInput::message(Path::Repair, CHANNEL, &welcome),
        SubscriberInput::message(Path::Repair, CHANNEL, &key),
    ];
    for input in inputs {
        core.handle(world.now, input, &mut |_: Item<'_>| ());
    }
    let bytes = core.take_journal().unwrap().into_bytes();
    let redacted = "0".repeat(64);
    let is_in = |text: &[u8]| bytes.windows(text.len()).any(|it| it == text);
    assert!(is_in(redacted.as_bytes()), "it holds the WELCOME");
    let of = publisher.keys.as_ref().unwrap();
    for number in 0..=2 {
        assert!(!contains(&bytes, &of.key(number).key), "key {number}");
    }
}

#[test]
fn record_holds_no_key_and_replays() {
    let mut publisher = authenticated(5, 1);
    let of = publisher.keys.clone().unwrap();
    let world = World::new(immediate(), Start::Live, 1);
    let mut core = Journaled::new(world.core);
    // Short, so that later segments begin with the core's state.
    let area = Box::new(vec![0; JOURNAL_LEN_MIN]);
    core.keep_journal(JournalWriter::new(area, &JournalOrigin::default()).unwrap());
    let mut now = world.now;
    let mut delivered = 0;
    let on = &mut |item: Item<'_>| delivered += u64::from(matches!(item, Item::Record(..)));
    core.handle(now, SubscriberInput::Timeout, on);
    core.handle(now, SubscriberInput::Connected(Path::Repair), on);
    let welcome = Message::Welcome(publisher.welcome(1));
    core.handle(
        now,
        SubscriberInput::message(Path::Repair, CHANNEL, &welcome),
        on,
    );
    while core.poll_action().is_some() {}
    let mut aligned = AlignedCopy::default();
    for nth in 1..=20_000 {
        now = now.after(Nanos(1));
        let plain = publisher.publish(1);
        core.handle_bytes(now, (CHANNEL, A), aligned.of(&plain), false, on);
        let genuine = tagged(&mut publisher, &plain);
        core.handle_bytes(now, (CHANNEL, A), aligned.of(&genuine), false, on);
        if nth % 64 == 0 {
            let status = Message::Status(publisher.status());
            let input = SubscriberInput::message(Path::Repair, CHANNEL, &status);
            core.handle(now, input, on);
        }
        if nth % PER_KEY == 1 {
            let number = of.number_of(publisher.newest()) + 1;
            let key = Message::Key(announced(&publisher, number));
            core.handle(
                now,
                SubscriberInput::message(Path::Repair, CHANNEL, &key),
                on,
            );
        }
    }
    assert_eq!(
        core.counters()
            .next()
            .unwrap()
            .unauthenticated_dropped
            .get(),
        20_000
    );
    let end = core.outputs().unwrap().digest();
    let bytes = core.take_journal().unwrap().into_bytes();
    for number in (0..20_000 / PER_KEY).rev().step_by(200) {
        assert!(!contains(&bytes, &of.key(number).key), "key {number}");
    }
    let replayed = replay(&Journal::read(bytes).unwrap(), false, &mut |_: Item<'_>| ());
    assert!(replayed.difference.is_none() && replayed.stopped.is_none());
    let again = replayed.core.unwrap();
    assert_eq!(again.outputs().unwrap().digest(), end);
    let counted = again.counters().next().unwrap().clone();
    assert_eq!(counted.unauthenticated_dropped.get(), 20_000);
    let receiver = again.receivers().next().unwrap();
    assert_eq!(receiver.progress(), (Sequence(20_000), Sequence(20_000)));
    assert_eq!(delivered, 20_000);
}
