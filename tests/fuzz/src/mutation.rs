//! A substitute for hosts without a fuzzer: random inputs made from a corpus. The same seed gives the same
//! inputs.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::INPUT_LEN_MAX;

/// Values at which lengths and counts often fail.
const EDGES: [u8; 8] = [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, 0x20];
/// Maximum number of changes to one input.
const CHANGES_MAX: u32 = 6;

/// Generator of inputs from a corpus.
#[derive(Debug)]
pub struct Mutation {
    corpus: Vec<Vec<u8>>,
    random: ChaCha8Rng,
}

impl Mutation {
    /// Creates a generator over these inputs. An empty corpus counts as one empty input.
    #[must_use]
    pub fn new(mut corpus: Vec<Vec<u8>>, seed: u64) -> Self {
        if corpus.is_empty() {
            corpus.push(Vec::new());
        }
        Self {
            corpus,
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Writes the next input into `input`.
    pub fn next_into(&mut self, input: &mut Vec<u8>) {
        input.clear();
        let of = self.random.random_range(0..self.corpus.len());
        input.extend_from_slice(&self.corpus[of]);
        for _ in 0..self.random.random_range(1..=CHANGES_MAX) {
            self.change(input);
        }
        input.truncate(INPUT_LEN_MAX);
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let random = &mut self.random;
        let at = random.random_range(0..=input.len());
        let to = (at + random.random_range(1..=16)).min(input.len());
        match random.random_range(0..9) {
            0 => flip(input, at, 1 << (random.next_u32() % 8)),
            1 => flip(input, at, random.next_u32() as u8),
            2 => set(input, at, EDGES[random.random_range(0..EDGES.len())]),
            3 => {
                let edge = EDGES[random.random_range(0..EDGES.len())];
                input[at..to].fill(edge);
            }
            4 => {
                let more = (random.next_u32() as u8).to_le_bytes();
                input.splice(at..at, more);
            }
            5 => drop(input.drain(at..to)),
            6 => {
                let copy = input[at..to].to_vec();
                let into = random.random_range(0..=input.len());
                input.splice(into..into, copy);
            }
            7 => input.truncate(at),
            _ => {
                let other = &self.corpus[random.random_range(0..self.corpus.len())];
                let from = random.random_range(0..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
        }
    }
}

fn flip(input: &mut [u8], at: usize, bits: u8) {
    if let Some(byte) = input.get_mut(at) {
        *byte ^= bits;
    }
}

fn set(input: &mut [u8], at: usize, value: u8) {
    if let Some(byte) = input.get_mut(at) {
        *byte = value;
    }
}
