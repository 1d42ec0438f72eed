//! A damaged journal: its entries are explained, and replayed through the core.

use std::sync::OnceLock;

use tickcast_journal::explain::explain;
use tickcast_journal::{Journal, replay, replay_publisher};
use tickcast_reliability::delivery::Item;

use crate::bytes::Bytes;
use crate::spoilt::{records, spoilt};

/// Asserts that a journal gives an error with a text, or all of these:
/// - entries up to the first damaged one, which is reported last;
/// - an explanation of the entries;
/// - a replay that ends, no later than the entries do.
pub fn journal(bytes: &[u8]) {
    static WHOLE: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let mut input = Bytes(bytes);
    let which = usize::from(input.byte());
    let whole = &WHOLE.get_or_init(records)[which & 1];
    let untouched = input.0.is_empty();
    let recording = match Journal::read(spoilt(whole, &mut input)) {
        Ok(recording) => recording,
        Err(error) => {
            assert!(!untouched && !error.to_string().is_empty());
            return;
        }
    };
    let entries: Vec<_> = recording.entries().collect();
    let damaged = entries.iter().position(Result::is_err);
    assert!(
        damaged.is_none_or(|at| at + 1 == entries.len()),
        "nothing follows an error"
    );
    let inputs = entries.iter().flatten().filter(|it| it.what.is_input());
    let inputs = inputs.count() as u64;
    let explained = explain(std::slice::from_ref(&recording));
    assert_eq!(explained.len(), 1);
    let (ran, difference) = if which & 1 == 0 {
        let replayed = replay_publisher(&recording);
        (replayed.inputs, replayed.difference)
    } else {
        let replayed = replay(&recording, false, &mut |_: Item<'_>| ());
        (replayed.inputs, replayed.difference)
    };
    assert!(ran <= inputs, "{ran} inputs of {inputs} were run");
    if untouched {
        assert!(
            inputs > 40 && ran == inputs && difference.is_none(),
            "{difference:?}"
        );
    }
}
