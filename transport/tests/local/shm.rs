//! Shared memory: every read is whole or fails, overruns are reported exactly, and a process killed at any
//! moment leaves no partial state to others.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tickcast_reliability::ring::{Geometry, RingIdentity, RingMemory, RingWriter, Seal};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, FanOutId, Nanos, RecordNumber, Sequence, SequenceRange, SourceId,
    SourcePosition,
};
use tickcast_reliability::wire::{CrcVerdict, Datagram, Kind};
use tickcast_transport::host::files::FileError;
use tickcast_transport::host::mapping::{MappingError, SharedMapping};
use tickcast_transport::shm::{
    CopyWriter, ReadOnlyMapping, ShmError, ShmFanOut, ShmReceiver, ShmReceiverConfig, boot_id,
    tail_len,
};
use tickcast_transport::{FanOut, Receive};

const SLOTS: u64 = 256;
const CHANNEL: ChannelId = ChannelId(3);
const FAN_OUT: FanOutId = FanOutId(0);

fn geometry() -> Geometry {
    Geometry::new(1024, SLOTS).unwrap()
}

/// A path that no other test uses. The file is removed on drop.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Relaxed);
        Self(format!("/dev/shm/tickcast-shm-{}-{n}", std::process::id()).into())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A ring of this epoch in a file, and its fan-out.
struct Ring {
    writer: RingWriter,
    fan_out: ShmFanOut,
}

/// Maps a file whose lock may just have been released. A process that another test starts meanwhile holds
/// copies of this one's locks for an instant, between its fork and its exec.
fn fresh_once_free(path: &Path) -> SharedMapping {
    for _ in 0..10_000 {
        match SharedMapping::fresh(path, geometry().bytes(), tail_len(geometry())) {
            Err(MappingError::Locked { .. }) => std::thread::sleep(Duration::from_millis(1)),
            mapped => return mapped.unwrap(),
        }
    }
    panic!("{} stays locked", path.display());
}

impl Ring {
    fn new(path: &Path, epoch: u64) -> Self {
        let memory = fresh_once_free(path);
        let identity = RingIdentity {
            channel: CHANNEL,
            epoch: Epoch(epoch),
            config_hash: ConfigHash(7),
            boot_id: boot_id().unwrap(),
            fan_outs: 1,
            first_sequence: Sequence::FIRST,
            first_record: RecordNumber::FIRST,
        };
        let writer = RingWriter::create(Arc::new(memory), geometry(), identity).unwrap();
        let fan_out = ShmFanOut::open(&writer.memory(), geometry(), CopyWriter::FanOut).unwrap();
        Self { writer, fan_out }
    }

    /// Seals a datagram with its sequence in every word, and with a length that depends on it.
    fn seal(&mut self) -> Sequence {
        let sequence = self.writer.open().unwrap();
        let words = 1 + sequence.0 as usize % 120;
        let bytes: Vec<u8> = sequence.0.to_ne_bytes().repeat(words);
        self.writer.append(&bytes).unwrap();
        let seal = Seal {
            kind: Kind::Data,
            count: 1,
            source: SourceId(1),
            source_position: SourcePosition(9),
            sent_at: Nanos(11),
            flags: 0,
        };
        self.writer.seal(seal).unwrap()
    }

    fn send(&mut self, datagrams: u64) {
        for _ in 0..datagrams {
            let sequence = self.seal();
            let posted = self
                .fan_out
                .post(&self.writer, SequenceRange::one(sequence));
            assert_eq!(posted.unwrap().last, Some(sequence));
            self.writer.set_sent(FAN_OUT, sequence);
        }
    }
}

fn config(path: &Path, epoch: u64) -> ShmReceiverConfig {
    ShmReceiverConfig {
        path: path.to_owned(),
        fan_out: FAN_OUT,
        boot_id: boot_id().unwrap(),
        channel: CHANNEL,
        epoch: Epoch(epoch),
        geometry: geometry(),
    }
}

fn reader(path: &Path, epoch: u64) -> ShmReceiver {
    ShmReceiver::open(&config(path, epoch), Sequence::NONE).unwrap()
}

/// Polls once. Returns the sequences from the ring, each checked, and the copies.
fn poll(receiver: &mut ShmReceiver) -> (Vec<u64>, Vec<Vec<u8>>) {
    let (mut sequences, mut copies) = (Vec::new(), Vec::new());
    let polled = receiver.poll(Nanos(1), &mut |received| {
        assert_eq!(received.bytes.as_ptr().addr() % 8, 0);
        if !received.whole {
            return copies.push(received.bytes.to_vec());
        }
        let datagram = Datagram::parse(received.bytes).unwrap();
        let sequence = datagram.header().sequence.0;
        assert_eq!(datagram.verdict(), CrcVerdict::Good, "{sequence}");
        let mut words = datagram.payload().chunks(8);
        assert!(words.all(|word| word == sequence.to_ne_bytes()));
        sequences.push(sequence);
    });
    assert_eq!(polled.unwrap(), sequences.len() + copies.len());
    (sequences, copies)
}

/// Polls until nothing more arrives. Returns the sequences, and the reported overruns.
fn drain(receiver: &mut ShmReceiver) -> (Vec<u64>, Vec<SequenceRange>) {
    let (mut all, mut overruns) = (Vec::new(), Vec::new());
    loop {
        let (sequences, _) = poll(receiver);
        let overrun = receiver.take_overrun();
        if sequences.is_empty() && overrun.is_none() {
            return (all, overruns);
        }
        all.extend(sequences);
        overruns.extend(overrun.map(|(_, range)| range));
    }
}

#[test]
fn sealed_is_served_only_once_sent() {
    let place = Place::new();
    let mut ring = Ring::new(&place.0, 5);
    let mut receiver = reader(&place.0, 5);
    ring.send(3);
    ring.seal();
    assert_eq!(poll(&mut receiver).0, [1, 2, 3]);
    assert_eq!(poll(&mut receiver).0, [0; 0]);
    ring.writer.set_sent(FAN_OUT, Sequence(4));
    assert_eq!(poll(&mut receiver).0, [4]);
    let stats = receiver.stats()[0];
    assert_eq!(
        (stats.datagrams, stats.batches, stats.buffer_drops),
        (4, 2, 0)
    );
    let mut later = ShmReceiver::open(&config(&place.0, 5), Sequence(2)).unwrap();
    assert_eq!(poll(&mut later).0, [3, 4]);
}

#[test]
fn shm_reader_overrun_reports_exact_missed_range() {
    let place = Place::new();
    let mut ring = Ring::new(&place.0, 5);
    let mut receiver = reader(&place.0, 5);
    ring.send(10);
    assert_eq!(poll(&mut receiver).0.len(), 10);
    // The reader misses a whole ring.
    ring.send(SLOTS);
    let (all, overruns) = drain(&mut receiver);
    assert_eq!((all.len() as u64, overruns), (SLOTS, vec![]));
    for more in [SLOTS + 1, 5 * SLOTS, 1_000_000] {
        let before = ring.writer.sealed();
        ring.send(more);
        let (all, overruns) = drain(&mut receiver);
        let [overrun] = overruns[..] else {
            panic!("{overruns:?}")
        };
        assert_eq!(overrun.first, before.next(), "what came before had come");
        // It continues above the slots that are about to be overwritten, and misses nothing there.
        let oldest = ring.writer.oldest().plus(geometry().guard());
        assert_eq!(overrun.last.next(), oldest);
        let rest: Vec<u64> = (oldest.0..=ring.writer.sealed().0).collect();
        assert_eq!(all, rest);
    }
    let reported = receiver.stats()[0].buffer_drops;
    assert_eq!(
        reported + receiver.stats()[0].datagrams,
        ring.writer.sealed().0
    );
}

#[test]
fn lapped_reader_gets_whole_datagrams_and_account() {
    let place = Place::new();
    let mut ring = Ring::new(&place.0, 5);
    let mut receiver = reader(&place.0, 5);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut next, mut overruns, mut read) = (1, 0, 0_u64);
            while overruns < 10 || read < 20_000 {
                if read / 1_000 > overruns {
                    // Long enough for the writer to complete a lap.
                    std::thread::sleep(Duration::from_millis(1));
                }
                for sequence in poll(&mut receiver).0 {
                    assert_eq!(sequence, next);
                    (next, read) = (next + 1, read + 1);
                }
                if let Some((epoch, range)) = receiver.take_overrun() {
                    assert_eq!((epoch, range.first.0), (Epoch(5), next));
                    (next, overruns) = (range.last.0 + 1, overruns + 1);
                }
            }
            stop.store(true, Relaxed);
        });
        while !stop.load(Relaxed) && !reading.is_finished() {
            ring.send(1);
        }
        reading.join().unwrap();
    });
}

#[test]
fn copies_follow_earlier_sends_and_newest_stay() {
    let place = Place::new();
    let mut ring = Ring::new(&place.0, 5);
    let memory = ring.writer.memory();
    let mut repairs = ShmFanOut::open(&memory, geometry(), CopyWriter::Repairs).unwrap();
    ring.fan_out.send_copy(&[1; 9]).unwrap();
    let mut receiver = reader(&place.0, 5);
    // More than one poll takes: until all of it is through, no heartbeat reports the last sequence.
    ring.send(100);
    ring.fan_out.send_copy(&[2; 9]).unwrap();
    repairs.send_copy(&[3; 1024]).unwrap();
    let (sequences, copies) = poll(&mut receiver);
    assert_eq!((sequences.len(), copies.len()), (64, 0));
    let (sequences, copies) = poll(&mut receiver);
    assert_eq!(sequences.last(), Some(&100));
    assert_eq!(copies, [vec![2; 9], vec![3; 1024]]);
    // The same holds after an overrun, until the overrun is reported.
    ring.send(2 * SLOTS);
    ring.fan_out.send_copy(&[4; 9]).unwrap();
    assert_eq!(poll(&mut receiver), (vec![], vec![]));
    assert!(receiver.take_overrun().is_some());
    drain(&mut receiver);
    for n in 0..200_u8 {
        ring.fan_out.send_copy(&[n; 88]).unwrap();
    }
    let (_, copies) = poll(&mut receiver);
    let newest: Vec<Vec<u8>> = (136..200).map(|n| vec![n; 88]).collect();
    assert_eq!(copies, newest);
    let long = ring.fan_out.send_copy(&[0; 1032]);
    assert!(long.unwrap_err().to_string().contains("1032 bytes"));
}

#[test]
fn impossible_copy_number_neither_spins_nor_deafens() {
    let place = Place::new();
    let mut ring = Ring::new(&place.0, 5);
    let mut receiver = reader(&place.0, 5);
    // The number of the last copy is the first word behind the ring.
    let file = std::fs::OpenOptions::new().write(true).open(&place.0);
    let file = file.unwrap();
    let last_at = geometry().bytes() as u64;
    for (written, impossible) in (1_u64..).zip([u64::MAX, u64::MAX - 1, 1 << 63, 1_000]) {
        ring.fan_out.send_copy(&[1; 9]).unwrap();
        assert_eq!(poll(&mut receiver).1, [[1; 9]], "{impossible}");
        file.write_all_at(&impossible.to_le_bytes(), last_at)
            .unwrap();
        assert!(poll(&mut receiver).1.len() <= 64);
        assert_eq!(poll(&mut receiver).1.len(), 0);
        file.write_all_at(&written.to_le_bytes(), last_at).unwrap();
        poll(&mut receiver);
    }
}

#[test]
fn copies_reach_a_reader_on_another_thread_whole() {
    let place = Place::new();
    let mut ring = Ring::new(&place.0, 5);
    let mut receiver = reader(&place.0, 5);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut count = 0;
            while count < 20_000 {
                for copy in poll(&mut receiver).1 {
                    assert!(copy.iter().all(|byte| *byte == copy[0]));
                    assert_eq!(copy.len(), 500 + usize::from(copy[0]));
                    count += 1;
                }
            }
            stop.store(true, Relaxed);
        });
        let mut n = 0_u8;
        while !stop.load(Relaxed) && !reading.is_finished() {
            n = n.wrapping_add(1);
            let copy = vec![n; 500 + usize::from(n)];
            ring.fan_out.send_copy(&copy).unwrap();
        }
        reading.join().unwrap();
    });
}

#[test]
fn shm_receiver_skips_slots_sent_after_leave() {
    use tickcast_reliability::delivery::LineId;
    let place = Place::new();
    let mut ring = Ring::new(&place.0, 5);
    let mut receiver = reader(&place.0, 5);
    receiver.leave(LineId(0)).unwrap();
    ring.send(3);
    assert_eq!(poll(&mut receiver).0, [0; 0]);
    receiver.rejoin(LineId(0)).unwrap();
    ring.send(2);
    // A receiver that never left loses nothing by joining again.
    ring.send(1);
    receiver.rejoin(LineId(0)).unwrap();
    assert_eq!(poll(&mut receiver).0, [4, 5, 6]);
    assert!(receiver.join(LineId(1)).is_err());
}

#[test]
fn shm_reader_mapping_is_read_only() {
    let place = Place::new();
    let _ring = Ring::new(&place.0, 5);
    let mapping = ReadOnlyMapping::open(&place.0, geometry()).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = format!("{:x}-", mapping.as_ptr().addr());
    let line = maps.lines().find(|line| line.starts_with(&start)).unwrap();
    assert!(line.contains(" r--s "), "{line}");
}

#[test]
fn shm_ring_differing_from_offer_is_refused() {
    let place = Place::new();
    let open = |config: &ShmReceiverConfig| ShmReceiver::open(config, Sequence::NONE).err();
    let none = open(&config(&place.0, 5));
    assert!(matches!(none, Some(ShmError::Map { .. })));
    let ring = Ring::new(&place.0, 5);
    let mut elsewhere = config(&place.0, 5);
    elsewhere.boot_id[0] ^= 1;
    assert!(matches!(open(&elsewhere), Some(ShmError::OtherHost)));
    let other = open(&config(&place.0, 6)).unwrap().to_string();
    assert!(
        other.contains("epoch 5") && other.contains("epoch 6"),
        "{other}"
    );
    let mut large = config(&place.0, 5);
    large.geometry = Geometry::new(1024, 2 * SLOTS).unwrap();
    assert!(
        matches!(open(&large), Some(ShmError::Map { .. })),
        "too short"
    );
    let mut small = config(&place.0, 5);
    small.geometry = Geometry::new(1024, SLOTS / 2).unwrap();
    assert!(
        matches!(open(&small), Some(ShmError::Ring { .. })),
        "too long"
    );
    drop(ring);
    assert!(!place.0.exists(), "the file goes with its publisher");
    std::fs::write(&place.0, vec![0; geometry().bytes() + tail_len(geometry())]).unwrap();
    let zeros = open(&config(&place.0, 5));
    assert!(matches!(zeros, Some(ShmError::Ring { .. })));
    // Memory without room for copies is refused too.
    let memory = SharedMapping::memfd("short", geometry().bytes()).unwrap();
    let memory: Arc<dyn RingMemory> = Arc::new(memory);
    let short = ShmFanOut::open(&memory, geometry(), CopyWriter::FanOut);
    assert!(matches!(short, Err(ShmError::NoTail { tail: 0, .. })));
}

#[test]
fn huge_file_without_a_ring_costs_one_page() {
    let place = Place::new();
    let file = std::fs::File::create_new(&place.0).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
        .unwrap();
    let mut huge = config(&place.0, 5);
    huge.geometry = Geometry::new(8_960, 1 << 20).unwrap();
    let len = huge.geometry.bytes() + tail_len(huge.geometry);
    file.set_len(len as u64).unwrap();
    let opened = ShmReceiver::open(&huge, Sequence::NONE);
    assert!(matches!(opened.err(), Some(ShmError::Ring { .. })));
    // A mapping that is populated would fill the holes of the file.
    assert!(file.metadata().unwrap().blocks() <= 8);
}

#[test]
fn ring_of_stranger_is_not_mapped() {
    let place = Place::new();
    let ring = Ring::new(&place.0, 5);
    let open = || ShmReceiver::open(&config(&place.0, 5), Sequence::NONE);
    let mode = |mode| {
        std::fs::set_permissions(&place.0, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open().unwrap();
    mode(0o666);
    let error = open().err().unwrap();
    assert!(
        matches!(error, ShmError::File(FileError::Mode { .. })),
        "{error}"
    );
    mode(0o644);
    if chown(&place.0, Some(65_534), Some(65_534)).is_err() {
        println!("SKIPPED: only root can give a file away");
        return;
    }
    let error = open().err().unwrap();
    assert!(
        matches!(error, ShmError::File(FileError::Stranger { .. })),
        "{error}"
    );
    // A member of the group trusts the publisher.
    chown(&place.0, None, Some(0)).unwrap();
    open().unwrap();
    drop(ring);
}

#[test]
fn next_epoch_has_own_file_and_old_stays() {
    let place = Place::new();
    let mut old = Ring::new(&place.0, 5);
    let mut receiver = reader(&place.0, 5);
    old.send(40);
    let fresh = || SharedMapping::fresh(&place.0, 4096, 0);
    assert!(matches!(fresh(), Err(MappingError::Locked { .. })));
    // Simulates a killed process: the file stays behind, without a lock.
    let left = Place::new();
    std::fs::hard_link(&place.0, &left.0).unwrap();
    drop(old);
    std::fs::rename(&left.0, &place.0).unwrap();
    let mut new = Ring::new(&place.0, 6);
    new.send(7);
    assert_eq!(poll(&mut receiver).0.len(), 40, "what the old one had sent");
    assert_eq!(poll(&mut receiver).0, [0; 0]);
    assert_eq!(poll(&mut reader(&place.0, 6)).0.len(), 7);
}

/// A process of this test that runs one of the `#[ignore]`d tests until it is killed.
struct Other(Child);

impl Other {
    fn start(name: &str, path: &Path) -> Self {
        let test = format!("shm::{name}");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", &test, "--nocapture"])
            .env("TICKCAST_TEST_RING", path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines
            .map_while(Result::ok)
            .any(|line| line.contains("READY"));
        assert!(ready, "{name} ended before it was ready");
        Self(child)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ready_until_killed() -> ! {
    println!("READY");
    loop {
        std::thread::park();
    }
}

fn path_given() -> PathBuf {
    std::env::var_os("TICKCAST_TEST_RING").unwrap().into()
}

#[test]
#[ignore = "a process of the next test"]
fn writes_half_a_slot_over_an_old_one() {
    let mut ring = Ring::new(&path_given(), 5);
    ring.send(SLOTS + 4);
    // Half of sequence 5's slot is overwritten.
    ring.writer.open().unwrap();
    ring.writer.append(&[0xaa; 400]).unwrap();
    ready_until_killed();
}

#[test]
fn half_slot_of_killed_publisher_is_never_delivered() {
    let place = Place::new();
    let mut other = Other::start("writes_half_a_slot_over_an_old_one", &place.0);
    let mut receiver = ShmReceiver::open(&config(&place.0, 5), Sequence(4)).unwrap();
    other.kill();
    // The partial write is in the slot of sequence 5.
    let mapping = ReadOnlyMapping::open(&place.0, geometry()).unwrap();
    let at = geometry().slot_offset(Sequence(5)) + 64;
    // SAFETY: within the mapping, which nobody writes any more.
    assert_eq!(unsafe { mapping.as_ptr().add(at).read() }, 0xaa);
    let (all, overruns) = drain(&mut receiver);
    let gone = 4 + geometry().guard();
    let rest: Vec<u64> = (gone + 1..=SLOTS + 4).collect();
    assert_eq!(all, rest);
    assert_eq!(
        overruns,
        [SequenceRange::new(Sequence(5), Sequence(gone)).unwrap()]
    );
    // The next publisher takes the name, and readers are not confused.
    let mut next = Ring::new(&place.0, 6);
    next.send(2);
    assert_eq!(drain(&mut receiver), (vec![], vec![]));
    assert_eq!(poll(&mut reader(&place.0, 6)).0, [1, 2]);
}

#[test]
#[ignore = "a process of the next test"]
fn reads_until_it_is_killed() {
    let mut receiver = reader(&path_given(), 5);
    println!("READY");
    loop {
        poll(&mut receiver);
        receiver.take_overrun();
    }
}

#[test]
fn killed_shm_reader_does_not_stall_writer() {
    let place = Place::new();
    let mut ring = Ring::new(&place.0, 5);
    let mut receiver = reader(&place.0, 5);
    let mut next = 1;
    for _ in 0..3 {
        let mut other = Other::start("reads_until_it_is_killed", &place.0);
        for round in 0..2_000 {
            ring.send(1 + round % 7);
            for sequence in drain(&mut receiver).0 {
                assert_eq!(sequence, next);
                next += 1;
            }
            if round == 1_000 {
                other.kill();
            }
        }
    }
    assert_eq!(next, ring.writer.sealed().0 + 1);
    let stats = ring.fan_out.stats()[0];
    assert_eq!((stats.datagrams, stats.stalls), (ring.writer.sealed().0, 0));
}
