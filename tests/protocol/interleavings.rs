//! The small protocols by which a subscriber's threads share memory, in every interleaving and every
//! memory order that the language allows. A model checker runs the shipped files with its own atomics
//! instead of the standard library's. Rings and cells are tiny here, because the protocols do not depend
//! on sizes.

#[allow(dead_code, unreachable_pub, reason = "what the files name")]
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    /// A futex like the kernel's: comparing the word and falling asleep are one step.
    pub(crate) mod futex {
        use std::time::Duration;

        use loom::sync::atomic::{AtomicU32, Ordering::SeqCst};
        use loom::sync::{Condvar, Mutex};

        loom::lazy_static! {
            static ref SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
        }

        /// Never times out, so that the checker finds a sleeper that is never woken as a deadlock.
        pub(crate) fn wait(word: &AtomicU32, value: u32, _: Duration) {
            let guard = SLEEPERS.0.lock().unwrap();
            if word.load(SeqCst) == value {
                drop(SLEEPERS.1.wait(guard).unwrap());
            }
        }

        pub(crate) fn wake_all(_: &AtomicU32) {
            drop(SLEEPERS.0.lock().unwrap());
            SLEEPERS.1.notify_all();
        }
    }
}

mod wake {
    pub(crate) use tickcast_subscriber::Wake;
}

#[allow(dead_code, reason = "what only the subscriber's own tests look at")]
#[path = "../../subscriber/src/sync/notify.rs"]
mod notify;
#[path = "../../subscriber/src/sync/seqlock.rs"]
mod seqlock;
#[allow(unreachable_pub, reason = "transports use it, too")]
#[path = "../../reliability/src/ring/slot.rs"]
mod slot;
#[path = "../../subscriber/src/split/ring/words.rs"]
mod words;

use std::panic::catch_unwind;
use std::process::Command;
use std::time::Duration;

use atomics::{AtomicBool, AtomicU64, Ordering, fence};
use loom::sync::Arc;
use loom::thread;
use notify::Notifier;
use tickcast_subscriber::Wake;
use words::Words;

/// Runs all interleavings, with at most `preemptions_max` forced thread switches.
fn in_every_order(preemptions_max: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions_max);
    builder.check(model);
}

/// Words of an entry in the model's ring; the second word follows from the first.
const ENTRY: u64 = 2;

fn write_entry(words: &Words, number: u64) {
    let at = number * ENTRY;
    words.claim(at + ENTRY);
    words.put(at, &[number, number * 10]);
    words.commit(at + ENTRY);
}

/// Reads entries and checks that each is whole or gone. Returns how many were read, and missed.
fn read_entries(words: &Words, looks: usize) -> (u64, u64) {
    let (mut at, mut read, mut missed) = (0, 0, 0);
    for _ in 0..looks {
        let committed = words.committed();
        if committed == at {
            continue;
        }
        let mut entry = [0; ENTRY as usize];
        match words.copy(at, &mut entry) {
            Some(()) => {
                assert_eq!(entry, [at / ENTRY, at / ENTRY * 10], "a torn entry");
                (at, read) = (at + ENTRY, read + 1);
            }
            None => {
                assert!(committed + words.len() > at);
                (at, missed) = (at + ENTRY, missed + 1);
            }
        }
    }
    (read, missed)
}

#[test]
fn local_ring_reads_are_whole_beside_running_writer() {
    in_every_order(3, || {
        // Room for two entries: the third takes the place of the first.
        let words = Arc::new(Words::new(2 * ENTRY as usize).unwrap());
        let writing = Arc::clone(&words);
        let writer = thread::spawn(move || {
            (0..3).for_each(|number| write_entry(&writing, number));
            writing.close();
        });
        let (read, missed) = read_entries(&words, 2);
        assert!(read + missed <= 3);
        writer.join().unwrap();
        // After the writer has ended, the ring's entries can be read, and overwritten ones can't.
        assert!(words.is_closed());
        let mut entry = [0; ENTRY as usize];
        assert_eq!(words.copy(0, &mut entry), None);
        assert_eq!(words.copy(2 * ENTRY, &mut entry), Some(()));
        assert_eq!(entry, [2, 20]);
    });
}

#[test]
fn closed_ring_shows_all_committed_entries() {
    in_every_order(3, || {
        let words = Arc::new(Words::new(2 * ENTRY as usize).unwrap());
        let writing = Arc::clone(&words);
        let writer = thread::spawn(move || {
            write_entry(&writing, 0);
            writing.close();
        });
        if words.is_closed() {
            assert_eq!(words.committed(), ENTRY);
        }
        writer.join().unwrap();
    });
}

#[test]
fn cell_is_read_whole_with_its_version() {
    in_every_order(3, || {
        let cell: Arc<Vec<AtomicU64>> = Arc::new((0..3).map(|_| AtomicU64::new(0)).collect());
        let writing = Arc::clone(&cell);
        let writer = thread::spawn(move || {
            for n in 1..=2 {
                seqlock::write(&writing, [n, n * 10].into_iter());
            }
        });
        let (mut seen, mut content) = (0, [0; 2]);
        for _ in 0..2 {
            if let Some(version) = seqlock::copy(&cell, &mut content, seen) {
                assert!(version > seen);
                let n = version / 2;
                assert_eq!(content, [n, n * 10], "a torn cell");
                seen = version;
            }
        }
        writer.join().unwrap();
        let last = seqlock::copy(&cell, &mut content, seen);
        assert!(last == Some(4) || seen == 4);
        assert_eq!(content, [2, 20]);
    });
}

#[test]
fn waiter_never_misses_a_notification() {
    in_every_order(3, || {
        let shared = Arc::new((Notifier::new(), AtomicBool::new(false)));
        let ringing = Arc::clone(&shared);
        let ringer = thread::spawn(move || {
            ringing.1.store(true, Ordering::Release);
            ringing.0.notify();
        });
        let (notifier, is_there) = &*shared;
        let wake = notifier.wait(Duration::MAX, || is_there.load(Ordering::Acquire));
        assert_eq!(wake, Wake::Ready);
        ringer.join().unwrap();
    });
}

/// A ring of two slots of four words, and the words of its control page that readers use, written and
/// read as in docs/PROTOCOL.md §9.
struct Ring {
    slots: [Vec<AtomicU64>; 2],
    oldest: AtomicU64,
    sent: AtomicU64,
}

/// Result of a copy.
#[derive(Debug, PartialEq)]
enum Copied {
    Whole,
    Lapped,
    NotYet,
}

impl Ring {
    fn new() -> Self {
        Self {
            slots: std::array::from_fn(|_| (0..4).map(|_| AtomicU64::new(0)).collect()),
            oldest: AtomicU64::new(1),
            sent: AtomicU64::new(0),
        }
    }

    fn slot(&self, sequence: u64) -> &[AtomicU64] {
        &self.slots[sequence as usize % 2]
    }

    fn open(&self, sequence: u64) {
        if sequence > 2 {
            self.oldest.store(sequence - 1, Ordering::Release);
        }
        slot::open(self.slot(sequence));
        slot::put_words(&self.slot(sequence)[3..], &[sequence * 10]);
    }

    fn seal(&self, sequence: u64) {
        let head = self.slot(sequence).first_chunk::<2>().unwrap();
        slot::put_header(head, [sequence, sequence + 1]);
        slot::seal(self.slot(sequence), sequence);
    }

    fn send(&self, sequence: u64) {
        self.open(sequence);
        self.seal(sequence);
        self.sent.store(sequence, Ordering::Release);
    }

    fn copy(&self, sequence: u64) -> Copied {
        if self.sent.load(Ordering::Acquire) < sequence {
            return Copied::NotYet;
        }
        let slot = self.slot(sequence);
        if slot::version_before(slot) != sequence {
            // It was sent, so it was overwritten. A reader that sees that also sees where to continue.
            assert!(self.oldest.load(Ordering::Acquire) > sequence);
            return Copied::Lapped;
        }
        let mut words = [0; 4];
        slot::copy(slot, 0, &mut words);
        if slot::version_after(slot) != sequence {
            return Copied::Lapped;
        }
        let whole = [sequence, sequence + 1, sequence, sequence * 10];
        assert_eq!(words, whole, "a torn slot");
        Copied::Whole
    }
}

#[test]
fn ring_reads_are_whole_or_overrun() {
    in_every_order(3, || {
        let ring = Arc::new(Ring::new());
        let writing = Arc::clone(&ring);
        let writer = thread::spawn(move || (1..=3).for_each(|n| writing.send(n)));
        let (mut next, mut lapped) = (1, 0);
        for _ in 0..3 {
            match ring.copy(next) {
                Copied::NotYet => continue,
                Copied::Whole => {}
                Copied::Lapped => lapped += 1,
            }
            next += 1;
        }
        assert!(lapped <= 1, "one slot is overwritten");
        writer.join().unwrap();
        // After the writer has ended, the ring's slots can be read, and overwritten ones can't.
        let copied = [1, 2, 3, 4].map(|sequence| ring.copy(sequence));
        let (whole, not_yet) = (Copied::Whole, Copied::NotYet);
        assert_eq!(copied, [Copied::Lapped, Copied::Whole, whole, not_yet]);
    });
}

#[test]
fn slot_left_open_by_dead_writer_reads_as_lapped() {
    in_every_order(3, || {
        let ring = Arc::new(Ring::new());
        let writing = Arc::clone(&ring);
        let writer = thread::spawn(move || {
            writing.send(1);
            writing.send(2);
            // The writer is killed here.
            writing.open(3);
        });
        let copied = ring.copy(1);
        writer.join().unwrap();
        assert_eq!(ring.copy(1), Copied::Lapped, "though it was {copied:?}");
        assert_eq!(
            (ring.copy(2), ring.copy(3)),
            (Copied::Whole, Copied::NotYet)
        );
    });
}

#[test]
fn slot_version_alone_guarantees_whole_copy() {
    in_every_order(3, || {
        let ring = Arc::new(Ring::new());
        let writing = Arc::clone(&ring);
        let writer = thread::spawn(move || [1, 3].into_iter().for_each(|n| writing.send(n)));
        let slot = ring.slot(1);
        let version = slot::version_before(slot);
        let mut words = [0; 4];
        slot::copy(slot, 0, &mut words);
        if version != 0 && slot::version_after(slot) == version {
            assert_eq!(words, [version, version + 1, version, version * 10]);
        }
        writer.join().unwrap();
    });
}

/// Returns whether the checker finds a torn copy while `write` overwrites a slot.
fn while_written_over(write: fn(&[AtomicU64]), version_after: fn(&[AtomicU64]) -> u64) -> bool {
    let found = catch_unwind(move || {
        in_every_order(3, move || {
            let ring = Arc::new(Ring::new());
            ring.send(1);
            let writing = Arc::clone(&ring);
            let writer = thread::spawn(move || write(writing.slot(3)));
            let slot = ring.slot(1);
            let mut words = [0; 4];
            if slot::version_before(slot) == 1 {
                slot::copy(slot, 0, &mut words);
                if version_after(slot) == 1 {
                    assert_eq!(words, [1, 2, 1, 10], "a torn slot");
                }
            }
            writer.join().unwrap();
        });
    });
    found.is_err()
}

fn write_the_third(slot: &[AtomicU64]) {
    slot::put(&slot[3..], [30].into_iter());
    slot::put_around(slot, [3, 4]);
    slot::seal(slot, 3);
}

#[test]
fn unguarded_checker_finds_torn_slot() {
    let shipped = |slot: &[AtomicU64]| {
        slot::open(slot);
        write_the_third(slot);
    };
    assert!(!while_written_over(shipped, slot::version_after));
    let never_opened = |slot: &[AtomicU64]| write_the_third(slot);
    assert!(while_written_over(never_opened, slot::version_after));
    let without_a_fence = |slot: &[AtomicU64]| {
        slot[slot::VERSION].store(0, Ordering::Release);
        write_the_third(slot);
    };
    assert!(while_written_over(without_a_fence, slot::version_after));
    let reads_without = |slot: &[AtomicU64]| slot[slot::VERSION].load(Ordering::Relaxed);
    assert!(while_written_over(shipped, reads_without));
}

/// Checks that the checker finds the defects that these files guard against. Each case leaves one guard
/// out.
#[test]
fn checker_detects_missing_claim_or_fence() {
    let torn = catch_unwind(|| {
        in_every_order(3, || {
            let words = Arc::new(Words::new(ENTRY as usize).unwrap());
            let writing = Arc::clone(&words);
            write_entry(&words, 0);
            // Overwrites the entry without a claim.
            let writer = thread::spawn(move || writing.put(ENTRY, &[1, 10]));
            let mut entry = [0; ENTRY as usize];
            if words.copy(0, &mut entry).is_some() {
                assert_eq!(entry, [0, 0]);
            }
            writer.join().unwrap();
        });
    });
    assert!(torn.is_err(), "a ring without claims is torn");
    let torn = catch_unwind(|| {
        in_every_order(3, || {
            let cell: Arc<Vec<AtomicU64>> = Arc::new((0..3).map(|_| AtomicU64::new(0)).collect());
            seqlock::write(&cell, [1, 10].into_iter());
            let writing = Arc::clone(&cell);
            let writer = thread::spawn(move || {
                // The version is right, but the fence before the words is missing.
                writing[0].store(3, Ordering::Relaxed);
                writing[1].store(2, Ordering::Relaxed);
                writing[2].store(20, Ordering::Relaxed);
                writing[0].store(4, Ordering::Release);
            });
            let mut content = [0; 2];
            if seqlock::copy(&cell, &mut content, 0).is_some() {
                assert_eq!(content[0] * 10, content[1]);
            }
            writer.join().unwrap();
        });
    });
    assert!(torn.is_err(), "a cell without a fence is torn");
}

/// The program of the next test. It runs as a process, because its deadlock ends the checker.
#[test]
#[ignore = "it must fail; the next test runs it"]
fn notification_before_store_deadlocks() {
    in_every_order(3, || {
        let shared = Arc::new((Notifier::new(), AtomicBool::new(false)));
        let ringing = Arc::clone(&shared);
        let ringer = thread::spawn(move || {
            ringing.0.notify();
            fence(Ordering::SeqCst);
            ringing.1.store(true, Ordering::Release);
        });
        let (notifier, is_there) = &*shared;
        notifier.wait(Duration::MAX, || is_there.load(Ordering::Acquire));
        ringer.join().unwrap();
    });
}

#[test]
fn checker_detects_lost_wakeup() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "notification_before_store_deadlocks",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("deadlock"),
        "{said}"
    );
}
