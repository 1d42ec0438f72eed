//! READs for repair on a real device: several at once, in order, lent without a copy, and failed with
//! their connection. They need a device: see `main.rs`.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tickcast_reliability::ring::RingMemory;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::verbs::{
    Completed, Device, Listener, ReadableMemory, Stream, StreamConfig, StreamEnd,
};

use crate::device::sides::{Done, READ_LEN_MAX, Sides, answering, byte, memory, reading};
use crate::device::{address, until};

/// Length of a slot, and of the memory, in bytes.
const SLOT: usize = 1024;
const LEN: usize = 1024 * 1024;

/// Stops a thread when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn several_reads_at_once_bring_what_was_granted_in_order() {
    let (device, mut listener) = Sides::listener();
    let memory = memory(&listener, LEN);
    let mut sides = Sides::new(&device, &mut listener);
    let (_, remote) = sides.grant(&memory, 0, LEN);
    assert_eq!(sides.reader.reads_depth(), 4);
    // Adjacent slots, many in one READ.
    for round in 0..LEN / (4 * READ_LEN_MAX) {
        let from = |read| (round * 4 + read) * READ_LEN_MAX;
        for read in 0..4 {
            let (at, tag) = (from(read), read as u64);
            sides
                .reader
                .read_remote(remote, at, READ_LEN_MAX, tag)
                .unwrap();
        }
        let error = sides.reader.read_remote(remote, 0, SLOT, 9).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        assert_eq!(sides.reader.under_way(), 4);
        for read in 0..4 {
            let wanted = Done::Read(read as u64, bytes(from(read), READ_LEN_MAX));
            assert!(sides.done() == wanted, "READ {read} of round {round}");
        }
    }
    // Any length arrives at an address that casts to records need.
    for (offset, len) in [(0, 1), (3, 64), (LEN - 1, 1), (7 * SLOT, 3 * SLOT)] {
        sides.reader.read_remote(remote, offset, len, 7).unwrap();
        until("nothing came", || match sides.reader.take_completed() {
            Some(Completed::Read {
                tag: 7,
                bytes: read,
            }) => {
                assert!(read.as_ptr().addr().is_multiple_of(64));
                assert_eq!(read, bytes(offset, len));
                true
            }
            other => other.is_some_and(|other| panic!("{other:?}")),
        });
    }
    for (offset, len) in [(0, 0), (LEN, 1), (0, READ_LEN_MAX + 1), (usize::MAX, 2)] {
        let error = sides
            .reader
            .read_remote(remote, offset, len, 0)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(
        (sides.reader.under_way(), sides.reader.take_completed()),
        (0, None)
    );
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn read_depth_is_minimum_of_both_sides() {
    let device = Device::open(address()).unwrap();
    for (asks, answers, agreed) in [(8, 3, 3), (2, 16, 2), (5, 5, 5), (128, 128, 128)] {
        let mut listener = Listener::bind(address(), 0, &answering(answers)).unwrap();
        let memory = memory(&listener, LEN);
        let mut sides = Sides::with(&device, &mut listener, &reading(asks));
        let agreed = agreed.min(u32::from(device.own_reads_max()));
        assert_eq!(sides.reader.reads_depth(), agreed);
        assert_eq!(sides.owner.reads_depth(), 0, "it only answers");
        let (_, remote) = sides.grant(&memory, 0, LEN);
        for read in 0..agreed as usize {
            sides
                .reader
                .read_remote(remote, read * 64, 64, read as u64)
                .unwrap();
        }
        let error = sides.reader.read_remote(remote, 0, 64, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{asks} and {answers}");
        for read in 0..agreed as usize {
            assert_eq!(sides.done(), Done::Read(read as u64, bytes(read * 64, 64)));
        }
    }
    // If one side allows no READs, a READ fails at once.
    let remote = tickcast_transport::verbs::RemoteMemory {
        address: 0,
        key: 0,
        len: 64,
    };
    for (asks, answers) in [(0, 4), (4, 0)] {
        let mut listener = Listener::bind(address(), 0, &answering(answers)).unwrap();
        let mut sides = Sides::with(&device, &mut listener, &reading(asks));
        assert_eq!(sides.reader.reads_depth(), 0);
        let error = sides.reader.read_remote(remote, 0, 64, 0).unwrap_err();
        assert!(
            error.to_string().contains("can't READ over the connection"),
            "{error}"
        );
        let error = sides.reader.write_remote(remote, 0, b"1", 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn completed_read_keeps_its_slot_until_taken() {
    let (device, mut listener) = Sides::listener();
    let memory = memory(&listener, LEN);
    let mut sides = Sides::with(&device, &mut listener, &reading(2));
    let (_, remote) = sides.grant(&memory, 0, LEN);
    let read = |sides: &mut Sides, slot: usize| {
        (sides.reader).read_remote(remote, slot * SLOT, SLOT, slot as u64)
    };
    let slot = |slot: usize| Done::Read(slot as u64, bytes(slot * SLOT, SLOT));
    read(&mut sides, 0).unwrap();
    read(&mut sides, 1).unwrap();
    for next in 2..40 {
        // Done, but not taken: they keep their places.
        assert_eq!(
            read(&mut sides, next).unwrap_err().kind(),
            ErrorKind::WouldBlock
        );
        assert!(sides.done() == slot(next - 2));
        read(&mut sides, next).unwrap();
        // The newer READ completes before the older one is taken.
        std::thread::sleep(std::time::Duration::from_millis(3));
        assert!(sides.reader.advance());
    }
    assert!(sides.done() == slot(38));
    assert!(sides.done() == slot(39));
}

/// Returns whether any number from `from` to `to` has this byte at this place, because even a word may be
/// torn.
fn may_hold(byte: u8, at: usize, from: u64, to: u64) -> bool {
    let (from, to) = (from >> (8 * at), to >> (8 * at));
    u64::from(byte.wrapping_sub(from as u8)) <= to - from
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn slot_overwritten_in_read_is_torn_never_invented() {
    const WORDS: usize = 4096 / 8;
    const READS: u64 = 1_000;
    let (device, mut listener) = Sides::listener();
    let mapping = Arc::new(SharedMapping::memfd("overwritten", WORDS * 8).unwrap());
    let shared = Arc::clone(&mapping) as Arc<dyn RingMemory>;
    let memory = ReadableMemory::register(listener.device(), shared).unwrap();
    let mut sides = Sides::new(&device, &mut listener);
    let (_, remote) = sides.grant(&memory, 0, WORDS * 8);
    let (stop, newest) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut torn, mut ordered) = (0, 0);
    std::thread::scope(|scope| {
        // Stops the writer even if an assertion fails.
        let _stop = Stop(&stop);
        scope.spawn(|| {
            for value in 1.. {
                newest.store(value, Ordering::SeqCst);
                for word in 0..WORDS {
                    // SAFETY: within the mapping, aligned, and reached by atomic words alone.
                    let at =
                        unsafe { AtomicU64::from_ptr(mapping.as_ptr().cast::<u64>().add(word)) };
                    at.store(value, Ordering::Relaxed);
                }
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let (mut asked, mut taken) = (0, 0);
        let mut oldest = VecDeque::new();
        until("not all was read", || {
            while asked < READS {
                let before = newest.load(Ordering::SeqCst).saturating_sub(1);
                let read = &mut sides.reader;
                if read.read_remote(remote, 0, WORDS * 8, asked).is_err() {
                    break;
                }
                oldest.push_back(before);
                asked += 1;
            }
            while let Some(completed) = sides.reader.take_completed() {
                let Completed::Read { tag, bytes } = completed else {
                    panic!("{completed:?}");
                };
                assert_eq!(tag, taken);
                taken += 1;
                let (words, _) = bytes.as_chunks::<8>();
                let words = words.iter().map(|word| u64::from_le_bytes(*word));
                let (least, most) = (words.clone().min().unwrap(), words.clone().max().unwrap());
                let (from, to) = (oldest.pop_front().unwrap(), newest.load(Ordering::SeqCst));
                for word in words.clone() {
                    let bytes = word.to_le_bytes();
                    let known = (0..8).all(|at| may_hold(bytes[at], at, from, to));
                    assert!(
                        known,
                        "{word:#x} has bytes that nobody wrote: {from:#x}..{to:#x}"
                    );
                }
                torn += u32::from(least != most);
                ordered += u32::from(least != most && words.is_sorted_by(|a, b| a >= b));
            }
            taken == READS
        });
    });
    println!("{torn} of {READS} READs are torn; {ordered} of those as if words had come in order");
    assert_eq!(sides.reader.end(), None);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn in_flight_reads_of_closed_peer_fail_or_complete() {
    let (device, mut listener) = Sides::listener();
    let memory = memory(&listener, LEN);
    let mut all_failed = 0;
    for _ in 0..5 {
        let mut sides = Sides::new(&device, &mut listener);
        let (_, remote) = sides.grant(&memory, 0, LEN);
        sides.reads(remote, 0);
        let Sides { owner, mut reader } = sides;
        let (mut tag, mut next, mut failed) = (0, 0, Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                drop(owner);
            });
            // The maximum number is in flight until the peer no longer answers.
            until("it goes on", || {
                while reader.read_remote(remote, 0, READ_LEN_MAX, tag).is_ok() {
                    tag += 1;
                }
                while let Some(completed) = reader.take_completed() {
                    match completed {
                        Completed::Read { tag, .. } if failed.is_empty() => assert_eq!(tag, next),
                        Completed::Failed { tag, why } => {
                            assert_eq!(tag, next);
                            failed.push(why);
                        }
                        other => panic!("{other:?}"),
                    }
                    next += 1;
                }
                reader.end().is_some() && next == tag
            });
        });
        assert_eq!(reader.under_way(), 0);
        let why = reader.end().unwrap();
        assert!(
            failed.iter().all(|failed| *failed == why),
            "{failed:?} {why:?}"
        );
        assert!(
            matches!(why, StreamEnd::Closed | StreamEnd::Lost { .. }),
            "{why:?}"
        );
        println!("{} of {tag} READs failed: {why}", failed.len());
        all_failed += failed.len();
        let error = reader.read_remote(remote, 0, 64, 0).unwrap_err();
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "{error}");
    }
    assert!(all_failed > 0, "some are under way whenever it goes");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn reads_and_bytes_share_a_connection() {
    use std::io::{Read as _, Write as _};
    let (device, mut listener) = Sides::listener();
    let memory = memory(&listener, LEN);
    let mut sides = Sides::new(&device, &mut listener);
    let (_, remote) = sides.grant(&memory, 0, LEN);
    for round in 0..50 {
        sides
            .reader
            .read_remote(remote, round * SLOT, SLOT, 1)
            .unwrap();
        sides.reader.write_all(&[round as u8; 200]).unwrap();
        assert!(sides.done() == Done::Read(1, bytes(round * SLOT, SLOT)));
        let mut room = [0; 256];
        until("no bytes came", || {
            matches!(sides.owner.read(&mut room), Ok(200))
        });
        assert_eq!(room[..200], [round as u8; 200]);
        // Return credit.
        sides.owner.advance();
        sides.reader.advance();
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn reading_in_a_steady_state_allocates_nothing() {
    let (device, mut listener) = Sides::listener();
    let memory = memory(&listener, LEN);
    let mut sides = Sides::new(&device, &mut listener);
    let (_, remote) = sides.grant(&memory, 0, LEN);
    sides.reads(remote, 0);
    let read = |reader: &mut Stream| {
        let mut taken = 0;
        for tag in 0..200 {
            while reader.read_remote(remote, 0, SLOT, tag).is_err() {
                taken += usize::from(reader.take_completed().is_some());
            }
        }
        while taken < 200 {
            taken += usize::from(reader.take_completed().is_some());
        }
    };
    let allocated = allocation_counter::measure(|| read(&mut sides.reader));
    assert_eq!(allocated.count_total, 0);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn connect_with_unsupported_read_limits_is_refused() {
    let device = Device::open(address()).unwrap();
    let to = std::net::SocketAddrV4::new(address(), 9);
    for (reads_max, read_len_max) in [(129, 64), (4, 100), (4, 32 << 20)] {
        let config = StreamConfig {
            reads_max,
            read_len_max,
            ..StreamConfig::default()
        };
        assert!(Stream::connect(&device, to, &config).is_err());
    }
}
