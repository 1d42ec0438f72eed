//! Runs the committed corpus through every target, without a fuzzer.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;

use tickcast_fuzz::{Mutation, TARGETS, corpus};

#[test]
fn fuzz_corpus_inputs_pass_their_targets() {
    let mut failed = Vec::new();
    for target in TARGETS {
        for (name, bytes) in corpus::inputs(target.name).unwrap() {
            if catch_unwind(|| target.take(&bytes)).is_err() {
                failed.push(format!("{}/{name}", target.name));
            }
        }
    }
    assert_eq!(failed, [""; 0]);
}

#[test]
fn fuzz_targets_and_small_corpora_match_one_to_one() {
    let mut sum = 0;
    for target in TARGETS {
        let inputs = corpus::inputs(target.name).unwrap();
        assert!(!inputs.is_empty(), "{}", target.name);
        sum += inputs.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
    }
    assert!(sum < 300_000, "{sum} bytes in all");
    let folders = fs::read_dir(corpus::folder("")).unwrap();
    let folders: BTreeSet<_> = folders.map(|it| it.unwrap().file_name()).collect();
    assert_eq!(folders, TARGETS.map(|it| it.name.into()).into());
}

#[test]
fn mutation_is_deterministic_per_seed() {
    let of = |seed| {
        let mut mutation = Mutation::new(vec![b"one of the corpus".to_vec()], seed);
        let mut next = || {
            let mut input = Vec::new();
            mutation.next_into(&mut input);
            input
        };
        (0..100).map(|_| next()).collect::<Vec<_>>()
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    assert!(of(1).iter().collect::<BTreeSet<_>>().len() > 50);
}
