//! Authenticated channels: who may join, and how keys roll over.

use super::*;
use crate::wire::authentication::{ChannelKeys, Key};

const PER_KEY: u64 = 10;

/// Returns a bench whose channel is authenticated, and its keys.
fn authenticated() -> (Bench, ChannelKeys) {
    let mut bench = Bench::new(RepairConfig::default(), 64, 1);
    bench.ring.authenticate(Key::new([7; 32]), PER_KEY);
    let keys = bench.ring.keys().unwrap().clone();
    bench.core.authenticate(CHANNEL, keys.clone());
    (bench, keys)
}

/// Returns the numbers of the keys that a peer was sent, after checking each key.
fn numbers(got: &[Got], keys: &ChannelKeys) -> Vec<u64> {
    let announced = got.iter().filter_map(|got| match got {
        Got::Key(announced) => Some(announced),
        _ => None,
    });
    let numbers = announced.map(|it| {
        assert_eq!((it.epoch, &it.of), (EPOCH, &keys.key(it.of.number)));
        it.of.number
    });
    numbers.collect()
}

#[test]
fn peer_without_authentication_is_rejected() {
    let (mut bench, _) = authenticated();
    let join = Join {
        authentication: false,
        ..join("equities")
    };
    let got = bench.connect(1, join);
    let [Got::Rejected(rejected)] = &got[..] else {
        panic!("{got:?}");
    };
    assert_eq!(rejected.code, RejectCode::Authentication);
    assert!(rejected.text.contains("equities"), "{}", rejected.text);
}

#[test]
fn welcome_holds_keys_around_newest() {
    let (mut bench, keys) = authenticated();
    bench.publish(25);
    let welcome = bench.join(1);
    let offer = welcome.channels[0].authentication.as_ref().unwrap();
    assert_eq!(offer.datagrams_per_key, PER_KEY);
    let of = [1, 2, 3].map(|number| keys.key(number));
    assert_eq!(offer.keys, of, "the one before, the present one, the next");
}

#[test]
fn keys_are_each_announced_before_their_use() {
    let (mut bench, keys) = authenticated();
    for peer in [1, 2] {
        bench.join(peer);
    }
    let mut announced = Vec::new();
    for _ in 0..10 {
        bench.publish(5);
        bench.pass(100_000);
        bench.input(RepairInput::Timeout);
        let got = bench.drain();
        let of = |peer| {
            let of = got.iter().filter(|(to, _)| *to == Some(peer));
            numbers(&of.map(|(_, got)| got.clone()).collect::<Vec<_>>(), &keys)
        };
        assert_eq!(of(1), of(2));
        announced.extend(of(1));
        let newest = keys.number_of(bench.ring.sealed());
        assert!(announced.last().copied().unwrap_or(1) > newest);
    }
    assert_eq!(announced, [2, 3, 4, 5, 6], "each once");
}

#[test]
fn jump_over_several_keys_announces_last_two() {
    let (mut bench, keys) = authenticated();
    bench.join(1);
    bench.publish(62);
    bench.pass(100_000);
    bench.input(RepairInput::Timeout);
    let got: Vec<Got> = bench.drain().into_iter().map(|(_, got)| got).collect();
    assert_eq!(numbers(&got, &keys), [6, 7]);
}

#[test]
fn repaired_datagram_is_the_one_that_was_sealed() {
    let (mut bench, keys) = authenticated();
    bench.join(1);
    bench.publish(12);
    for sequence in [9, 10] {
        let slot = bench.ring.slot(Sequence(sequence)).unwrap();
        let datagram = Datagram::parse(slot).unwrap();
        assert_eq!(datagram.verdict(), CrcVerdict::Good);
        assert!(
            keys.key(sequence / PER_KEY).key.made(&datagram),
            "{sequence}"
        );
        let mut sent_again = slot.to_vec();
        sent_again[59] |= 0x80;
        let again = Datagram::parse(&sent_again).unwrap();
        assert_eq!(again.verdict(), CrcVerdict::Good);
        assert!(keys.key(sequence / PER_KEY).key.made(&again));
    }
}
