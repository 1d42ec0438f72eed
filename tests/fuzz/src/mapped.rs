//! A mapped ring whose owner writes any word at any time: the file as it was found, and while it is read.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use tickcast_reliability::delivery::{Item, LineId};
use tickcast_reliability::ring::{CONTROL_PAGE_LEN, Geometry, offset};
use tickcast_reliability::session::SubscriberInput;
use tickcast_reliability::types::{Epoch, Nanos, Sequence};
use tickcast_transport::Receive;
use tickcast_transport::shm::{ShmReceiver, ShmReceiverConfig, boot_id, tail_len};

use crate::bytes::Bytes;
use crate::pair::{self, CHANNEL, FAN_OUT};
use crate::ring::left_behind;
use crate::spoilt::geometry;

/// Maximum number of operations on a mapping.
const OPERATIONS_MAX: usize = 200;
/// Maximum number of datagrams that one poll returns: a batch of the ring, and both areas of copies.
const POLLED_MAX: usize = 64 + 2 * 64;
/// Number of copies in an area behind the ring, and the length of an area's head and of an entry's.
const COPIES: u64 = 64;
const HEAD_LEN: usize = 64;

/// Asserts these invariants, whatever stands in the file and whenever it changes:
/// - Opening gives an error with a text, or a receiver.
/// - A poll returns after at most one batch and one round of copies, none longer than a slot.
/// - Datagrams polled = datagrams counted, and their bytes too.
/// - An overrun is a range that lies ahead of the previous ones.
/// - A subscriber that is fed everything does not panic.
pub fn mapped(bytes: &[u8]) {
    let mut input = Bytes(bytes);
    let file = MappedFile::new();
    file.write(&whole(u64::from(input.byte() % 40)));
    for _ in 0..input.byte() % 8 {
        file.change(&mut input);
    }
    let config = ShmReceiverConfig {
        path: file.path.clone(),
        fan_out: FAN_OUT,
        boot_id: boot_id().expect("a host has one"),
        channel: CHANNEL,
        epoch: Epoch(5),
        geometry: geometry(),
    };
    let after = Sequence(u64::from(input.byte()));
    let receiver = match ShmReceiver::open(&config, after) {
        Ok(receiver) => receiver,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut run = Run::new(receiver);
    for _ in 0..OPERATIONS_MAX {
        let Some(operation) = input.next() else {
            break;
        };
        match operation % 4 {
            0 | 1 => file.change(&mut input),
            2 => run.poll(),
            _ => run.poll_rarely(operation),
        }
    }
    run.poll();
}

struct Run {
    receiver: ShmReceiver,
    subscriber: tickcast_journal::Journaled<tickcast_reliability::session::SubscriberCore>,
    polled: u64,
    bytes: u64,
    /// The last sequence of the last overrun.
    overrun: Sequence,
    now: Nanos,
}

impl Run {
    fn new(receiver: ShmReceiver) -> Self {
        Self {
            receiver,
            subscriber: pair::subscriber(geometry(), None),
            polled: 0,
            bytes: 0,
            overrun: Sequence(0),
            now: Nanos::from_secs(1),
        }
    }

    fn poll(&mut self) {
        self.now = self.now.after(Nanos::from_us(20));
        let (now, subscriber) = (self.now, &mut self.subscriber);
        let (mut polled, mut bytes) = (0, 0);
        let on = &mut |_: Item<'_>| {};
        let returned = self.receiver.poll(now, &mut |received| {
            assert!(received.bytes.len() <= geometry().slot_len());
            polled += 1;
            bytes += received.bytes.len() as u64;
            subscriber.handle_bytes(
                now,
                (CHANNEL, LineId(0)),
                received.bytes,
                received.whole,
                on,
            );
        });
        assert_eq!(returned.ok(), Some(polled), "all that is polled is counted");
        assert!(polled <= POLLED_MAX, "{polled} datagrams in one poll");
        (self.polled, self.bytes) = (self.polled + polled as u64, self.bytes + bytes);
        let stats = &self.receiver.stats()[0];
        assert_eq!((stats.datagrams, stats.bytes), (self.polled, self.bytes));
        if let Some((epoch, range)) = self.receiver.take_overrun() {
            assert!(range.first > self.overrun, "{range} after {}", self.overrun);
            self.overrun = range.last;
            let channel = CHANNEL;
            let overrun = SubscriberInput::Overrun {
                channel,
                epoch,
                range,
            };
            self.subscriber.handle(now, overrun, on);
        }
        self.subscriber.handle(now, SubscriberInput::Timeout, on);
        self.subscriber.handle(now, SubscriberInput::Poll, on);
        self.subscriber.poll_transmit(&mut Vec::new());
    }

    /// Leaves the line, joins it, or lets time pass.
    fn poll_rarely(&mut self, operation: u8) {
        let line = LineId(0);
        match operation >> 2 & 3 {
            0 => self.receiver.leave(line).expect("it has this line"),
            1 => self.receiver.join(line).expect("it has this line"),
            2 => self.now = self.now.after(Nanos::from_ms(100)),
            _ => self.poll(),
        }
    }
}

/// The one file of this process. It is written anew for each input.
struct MappedFile {
    path: PathBuf,
    file: File,
}

/// Whether the file was made by this process.
static MADE: Mutex<bool> = Mutex::new(false);

impl MappedFile {
    fn new() -> Self {
        let name = format!("tickcast-fuzz-mapped-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let file = match *made {
            true => options.open(&path),
            false => options.create_new(true).open(&path),
        };
        *made = true;
        let file = file.expect("a file for the ring");
        Self { path, file }
    }

    fn write(&self, bytes: &[u8]) {
        self.file.set_len(bytes.len() as u64).expect("it has room");
        self.file.write_all_at(bytes, 0).expect("it has room");
    }

    /// Writes a word: one that readers follow, one of a slot, or any.
    fn change(&self, input: &mut Bytes<'_>) {
        let (which, how, by) = (input.byte(), input.byte(), u64::from(input.byte()));
        let (ring, tail) = (geometry().bytes(), tail_len(geometry()));
        let slot = |n: u8| geometry().slot_offset(Sequence(n.into()));
        let area = ring + usize::from(which >> 7) * tail / 2;
        let entry = area + HEAD_LEN + usize::from(input.byte() % 64) * (tail / 2 - HEAD_LEN) / 64;
        let at = match which & 0x0f {
            0 => offset::SENT,
            1 => offset::SEALED,
            2 => offset::OLDEST,
            3 => offset::EPOCH,
            4 => offset::SLOTS,
            5 | 6 => slot(which >> 4) + usize::from(input.byte() % 10) * 8,
            7 => area,
            8 => area + 8,
            9 => entry,
            10 => entry + 16,
            _ => {
                let at = u32::from_le_bytes([input.byte(), input.byte(), input.byte(), 0]);
                at as usize % (ring + tail) / 8 * 8
            }
        };
        let mut old = [0; 8];
        self.file
            .read_exact_at(&mut old, at as u64)
            .expect("it is there");
        let old = u64::from_le_bytes(old);
        let word = match how % 6 {
            0 => by,
            1 => old.wrapping_add(by),
            2 => old.wrapping_sub(by),
            3 => u64::MAX - by,
            4 => 1 << (by % 64),
            _ => old ^ (1 << (by % 64)),
        };
        let word = word.to_le_bytes();
        self.file
            .write_all_at(&word, at as u64)
            .expect("it is there");
    }
}

/// Returns a ring with `count` datagrams that were sent, and areas of copies with one copy each.
fn whole(count: u64) -> Vec<u8> {
    let geometry: Geometry = geometry();
    let mut bytes = left_behind(count);
    assert!(bytes.len() > CONTROL_PAGE_LEN);
    put(&mut bytes, offset::SENT, count);
    let newest = geometry.slot_offset(Sequence(count));
    let copy = bytes[newest..newest + geometry.slot_len()].to_vec();
    bytes.resize(bytes.len() + tail_len(geometry), 0);
    for area in 0..2 {
        let at = geometry.bytes() + area * tail_len(geometry) / 2;
        put(&mut bytes, at, 1);
        put(
            &mut bytes,
            at + 8,
            (COPIES << 32) | geometry.slot_len() as u64,
        );
        let entry = at + HEAD_LEN + HEAD_LEN + geometry.slot_len();
        put(&mut bytes, entry, copy.len() as u64);
        put(&mut bytes, entry + 16, 1);
        let to = entry + HEAD_LEN;
        bytes[to..to + copy.len()].copy_from_slice(&copy);
    }
    bytes
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}
