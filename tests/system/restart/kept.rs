//! A publisher whose rings and address survive it, and a reader of its ring file.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_reliability::record::words_as_bytes;
use tickcast_reliability::ring::{CONTROL_PAGE_LEN, offset};
use tickcast_reliability::wire::{CrcVerdict, Datagram, HEADER_LEN, SEQUENCE_OFFSET};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use tickcast_test_support::{Publisher, endless, free_address, free_group, one_channel};

/// Number of words that a half-written slot holds behind its header: a part of a record.
const RECORD_WORDS: usize = 3;

/// A key serves this many datagrams, so that several are used in a test.
pub(crate) const PER_KEY: u64 = 2_048;

/// Returns the config with its channel authenticated.
pub(crate) fn authenticated(mut config: Value) -> Value {
    config["channels"][0]["authentication"] = true.into();
    config["channels"][0]["datagrams_per_key"] = json!(PER_KEY);
    config
}

/// A publisher's config that keeps its rings and its address.
pub struct Kept {
    pub config: Value,
    /// On tmpfs, with the ring of channel "all".
    rings: TempDir,
    state: TempDir,
}

impl Kept {
    pub fn new(messages_per_s: u64, followers: u32) -> Self {
        Self::fed(endless(messages_per_s, followers))
    }

    /// Returns a config with this input.
    pub fn fed(input: Value) -> Self {
        let rings = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
        let state = tempfile::tempdir().expect("a folder");
        let mut config = one_channel(&[free_group()], input);
        config["control"] = json!(free_address());
        config["ring_dir"] = json!(rings.path());
        config["state_dir"] = json!(state.path());
        Self {
            config,
            rings,
            state,
        }
    }

    pub fn start(&self) -> Publisher {
        Publisher::start(&self.config)
    }

    pub fn ring(&self) -> PathBuf {
        self.rings.path().join("test.all.ring")
    }

    /// Returns the file in which a publisher notes that something did not come again.
    pub fn not_again(&self) -> PathBuf {
        self.state.path().join("test.epoch.not-again")
    }

    /// Returns the file in which a publisher keeps the state of its live sources.
    pub fn sources(&self) -> PathBuf {
        self.state.path().join("test.sources.json")
    }

    /// Starts a publisher. Returns it with its log and its epoch.
    pub fn started(&self) -> (Publisher, String, u64) {
        let publisher = self.start();
        let log = publisher.log();
        let epoch = log.split("epoch=").nth(1).expect("the log names the epoch");
        let digits: String = epoch.chars().take_while(char::is_ascii_digit).collect();
        let epoch = digits.parse().expect("a number");
        (publisher, log, epoch)
    }
}

/// The datagrams of a ring that has not wrapped yet, read from its file.
pub struct Sealed {
    pub epoch: u64,
    /// Datagrams from sequence 1 on.
    pub slots: Vec<Vec<u8>>,
    /// Number and hash of each of their records, in order.
    pub records: Vec<(u64, u64)>,
    /// Digest of all their records, as publishers and subscribers compute it.
    pub digest: String,
}

/// A ring as a file.
struct Ring(File);

impl Ring {
    fn words(&self, at: usize, count: usize) -> Vec<u64> {
        let mut bytes = vec![0; count * 8];
        let read = self.0.read_exact_at(&mut bytes, at as u64);
        read.expect("the ring is read");
        let words = bytes.chunks_exact(8).map(|word| word.try_into());
        words
            .map(|word| u64::from_ne_bytes(word.expect("8 bytes")))
            .collect()
    }

    fn word(&self, at: usize) -> u64 {
        self.words(at, 1)[0]
    }

    /// Returns the words of this sequence's slot. The ring must not have wrapped.
    fn slot(&self, sequence: u64) -> Vec<u64> {
        let len = self.word(offset::SLOT_LEN) as usize;
        self.words(self.slot_at(sequence), len / 8)
    }

    /// Returns the offset of this sequence's slot in the file.
    fn slot_at(&self, sequence: u64) -> usize {
        CONTROL_PAGE_LEN + sequence as usize * self.word(offset::SLOT_LEN) as usize
    }
}

impl Kept {
    fn file(&self) -> Ring {
        Ring(File::open(self.ring()).expect("the ring is there"))
    }

    /// Writes records without a header into the slot after the last complete one, as a publisher does that
    /// is killed within a slot. Does nothing when that slot is half written already. The publisher must be
    /// stopped or gone.
    pub fn half_write_next_slot(&self) {
        let ring = self.file();
        let complete = |sequence| ring.slot(sequence)[SEQUENCE_OFFSET / 8] == sequence;
        let sealed = ring.word(offset::SEALED);
        let next = if complete(sealed + 1) {
            sealed + 2
        } else {
            sealed + 1
        };
        if ring.slot(next).iter().all(|word| *word == 0) {
            let written = &ring.slot(sealed)[HEADER_LEN / 8..][..RECORD_WORDS];
            let at = ring.slot_at(next) + HEADER_LEN;
            let file = File::options().write(true).open(self.ring());
            let write = |file: File| file.write_all_at(words_as_bytes(written), at as u64);
            file.and_then(write).expect("the slot is written");
        }
        assert!(ring.slot(next).iter().any(|word| *word != 0));
        assert!(!complete(next));
    }

    /// Returns the contents of the ring. The publisher must be stopped or gone.
    pub fn sealed(&self) -> Sealed {
        let ring = self.file();
        let last = ring.word(offset::SEALED);
        assert!(last < ring.word(offset::SLOTS), "it has not come round");
        let mut sealed = Sealed {
            epoch: ring.word(offset::EPOCH),
            slots: Vec::new(),
            records: Vec::new(),
            digest: String::new(),
        };
        let mut digest = Xxh3::new();
        // A complete datagram is sealed, even if the control page does not say so yet.
        for sequence in 1..=last + 1 {
            let words = ring.slot(sequence);
            if sequence > last && words[SEQUENCE_OFFSET / 8] != sequence {
                break;
            }
            let datagram = Datagram::parse(words_as_bytes(&words)).expect("a datagram");
            assert_eq!(datagram.verdict(), CrcVerdict::Good, "{sequence}");
            assert_eq!(datagram.header().sequence.0, sequence);
            let numbers = datagram.header().first_record.0..;
            for (number, record) in numbers.zip(datagram.records().expect("whole records")) {
                sealed.records.push((number, xxh3_64(record.as_ref())));
                digest.update(record.as_ref());
            }
            sealed.slots.push(datagram.bytes().to_vec());
        }
        sealed.digest = format!("{:032x}", digest.digest128());
        sealed
    }
}
