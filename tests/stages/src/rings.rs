//! Writing to the ring and reading from it.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

use tickcast_reliability::publish::Sequencer;
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::ring::{RingReader, RingWriter, Seal};
use tickcast_reliability::types::{Sequence, SourcePosition};
use tickcast_reliability::wire::Kind;
use tickcast_transport::Receive;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::shm::{ShmReceiver, ShmReceiverConfig, boot_id, tail_len};

use crate::pair::{
    CHANNEL, EPOCH, FAN_OUT, LINE, RECORDS, SOURCE, TAGGED_RECORDS, UTC, geometry, records, ring,
    ring_in, tagged_ring,
};
use crate::{Opened, steps};

/// Datagrams of a run.
const DATAGRAMS: u64 = 64;

struct Packing {
    sequencer: Sequencer,
    message: RecordBatch,
    position: u64,
}

impl Packing {
    fn new() -> Self {
        Self {
            sequencer: Sequencer::new(ring(0), Arc::default()),
            message: records(1),
            position: 0,
        }
    }

    /// Frees all slots.
    fn free(&mut self) {
        let sealed = self.sequencer.sealed();
        self.sequencer.set_completed(sealed);
    }

    fn publish(&mut self) {
        self.position += 1;
        let position = SourcePosition::new(0, self.position);
        let published = self
            .sequencer
            .publish(black_box(&self.message), SOURCE, position, UTC);
        assert!(published.is_ok(), "there is room");
    }
}

/// Packs messages of one record until datagrams are full, and seals them.
pub(crate) fn pack_full() -> Opened {
    fn run(packing: &mut Packing) -> u64 {
        let records = DATAGRAMS * u64::from(RECORDS);
        for _ in 0..records {
            packing.publish();
        }
        records
    }
    steps(Packing::new(), Packing::free, run)
}

/// Packs and seals a datagram for each record.
pub(crate) fn pack_one() -> Opened {
    fn run(packing: &mut Packing) -> u64 {
        for _ in 0..DATAGRAMS {
            packing.publish();
            black_box(packing.sequencer.flush(UTC, true));
        }
        DATAGRAMS
    }
    steps(Packing::new(), Packing::free, run)
}

/// Writes and seals a full datagram from existing records.
pub(crate) fn seal(ring: &mut RingWriter, payload: &[u8], count: u16) -> Sequence {
    ring.open().expect("sequences are left");
    ring.append(payload).expect("it fits");
    let seal = Seal {
        kind: Kind::Data,
        count,
        source: SOURCE,
        source_position: SourcePosition(9),
        sent_at: UTC,
        flags: 0,
    };
    ring.seal(seal).expect("it is open")
}

/// Writes and seals a full datagram.
pub(crate) fn write() -> Opened {
    fn run((ring, records): &mut (RingWriter, RecordBatch)) -> u64 {
        for _ in 0..DATAGRAMS {
            black_box(seal(ring, black_box(records.bytes()), RECORDS));
        }
        DATAGRAMS
    }
    steps((ring(0), records(RECORDS)), |_| (), run)
}

/// Writes and seals a full datagram with a tag.
pub(crate) fn write_tagged() -> Opened {
    fn run((ring, records): &mut (RingWriter, RecordBatch)) -> u64 {
        for _ in 0..DATAGRAMS {
            black_box(seal(ring, black_box(records.bytes()), TAGGED_RECORDS));
        }
        DATAGRAMS
    }
    steps((tagged_ring(), records(TAGGED_RECORDS)), |_| (), run)
}

/// Copies a full datagram out of the ring.
pub(crate) fn read() -> Opened {
    struct Reading {
        reader: RingReader,
        buffer: Vec<u64>,
    }
    fn run(reading: &mut Reading) -> u64 {
        for sequence in 1..=DATAGRAMS {
            let copied = reading.reader.copy(Sequence(sequence), &mut reading.buffer);
            assert!(black_box(copied).is_ok(), "it is held");
            black_box(&reading.buffer);
        }
        DATAGRAMS
    }
    let (mut ring, records) = (ring(0), records(RECORDS));
    for _ in 0..DATAGRAMS {
        seal(&mut ring, records.bytes(), RECORDS);
    }
    let buffer = vec![0; geometry().slot_len() / 8];
    let reader = ring.reader();
    steps(Reading { reader, buffer }, |_| (), run)
}

/// A ring in a file of shared memory. Dropping it removes the file.
pub(crate) struct SharedRing {
    pub(crate) path: PathBuf,
    _folder: tempfile::TempDir,
}

impl SharedRing {
    pub(crate) fn new() -> (Self, RingWriter) {
        let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm can be written");
        let path = folder.path().join("ring");
        let geometry = geometry();
        let memory = SharedMapping::fresh(&path, geometry.bytes(), tail_len(geometry));
        let ring = ring_in(Arc::new(memory.expect("there is memory")), 1);
        let place = Self {
            path,
            _folder: folder,
        };
        (place, ring)
    }

    /// Returns a subscriber's side of the ring.
    pub(crate) fn receiver(&self) -> ShmReceiver {
        let config = ShmReceiverConfig {
            path: self.path.clone(),
            fan_out: FAN_OUT,
            boot_id: boot_id().expect("a boot id"),
            channel: CHANNEL,
            epoch: EPOCH,
            geometry: geometry(),
        };
        let mut receiver = ShmReceiver::open(&config, Sequence::NONE).expect("the ring is there");
        receiver.join(LINE).expect("it has one line");
        receiver
    }
}

/// Reads a full datagram like a subscriber on the publisher's host.
pub(crate) fn read_shared() -> Opened {
    struct Shared {
        receiver: ShmReceiver,
        ring: RingWriter,
        records: RecordBatch,
        bytes: usize,
        _place: SharedRing,
    }
    fn prepare(shared: &mut Shared) {
        for _ in 0..DATAGRAMS {
            let sequence = seal(&mut shared.ring, shared.records.bytes(), RECORDS);
            shared.ring.set_sent(FAN_OUT, sequence);
        }
    }
    fn run(shared: &mut Shared) -> u64 {
        let Shared {
            receiver, bytes, ..
        } = shared;
        let polled = receiver.poll(UTC, &mut |received| {
            *bytes += black_box(received.bytes).len();
        });
        polled.expect("the ring is whole") as u64
    }
    let (place, ring) = SharedRing::new();
    let shared = Shared {
        receiver: place.receiver(),
        ring,
        records: records(RECORDS),
        bytes: 0,
        _place: place,
    };
    steps(shared, prepare, run)
}
