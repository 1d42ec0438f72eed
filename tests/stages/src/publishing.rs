//! Publishing through a channel's core as its driver does: messages in, sealed datagrams out in lots,
//! with and without a journal.

use std::hint::black_box;
use std::sync::Arc;

use tickcast_journal::{JournalOrigin, JournalSide, JournalWriter, JournaledPublisher};
use tickcast_reliability::publish::{PublisherConfig, PublisherCore, Transmit};
use tickcast_reliability::record::RecordBatch;
use tickcast_reliability::types::{Nanos, Now, SourcePosition};

use crate::pair::{FAN_OUT, RECORDS, SOURCE, UTC, records, ring};
use crate::{Opened, steps};

/// Datagrams of a lot, which a driver sends at a time. A run has as many lots as [`LOTS`].
const LOT: u64 = 64;
const LOTS: u64 = 4;

struct Publishing {
    publisher: JournaledPublisher,
    message: RecordBatch,
    position: u64,
    now: Now,
}

impl Publishing {
    fn new(is_journaled: bool) -> Self {
        let now = Now {
            monotonic: Nanos::from_secs(100),
            utc: UTC,
        };
        let config = PublisherConfig::default();
        let core = PublisherCore::new(config, ring(1), Arc::default(), now.monotonic);
        let mut publisher = JournaledPublisher::new(core);
        if is_journaled {
            let origin = JournalOrigin {
                began: now.monotonic,
                side: JournalSide::Publisher,
                ..JournalOrigin::default()
            };
            let area = Box::new(vec![0; 64 << 20]);
            publisher.keep_journal(JournalWriter::new(area, &origin).expect("there is room"));
        }
        Self {
            publisher,
            message: records(1),
            position: 0,
            now,
        }
    }

    fn publish(&mut self) {
        self.position += 1;
        let position = SourcePosition::new(0, self.position);
        let message = black_box(&self.message);
        let published = self.publisher.publish(message, SOURCE, position, self.now);
        assert!(published.is_ok(), "there is room");
        while black_box(self.publisher.poll()).is_some() {}
    }

    /// Does a driver's work after each lot.
    fn drive(&mut self) {
        self.now.monotonic = self.now.monotonic.after(Nanos(1_000));
        self.publisher.flush(self.now, true);
        self.publisher.set_group(1, 0);
        self.publisher.handle_timeout(self.now);
        while let Some(transmit) = self.publisher.poll_transmit(FAN_OUT) {
            if let Transmit::Slots(range) = black_box(transmit) {
                self.publisher.handle_posted(FAN_OUT, range.last);
                self.publisher.handle_completed(FAN_OUT, range.last);
            }
        }
    }

    fn run(&mut self, records: u16, lot: u64) -> u64 {
        for _ in 0..LOTS * LOT / lot {
            for _ in 0..lot * u64::from(records) {
                self.publish();
            }
            self.drive();
        }
        LOTS * LOT * u64::from(records)
    }
}

/// Full datagrams, a lot at a time.
pub(crate) fn full() -> Opened {
    steps(Publishing::new(false), |_| (), |it| it.run(RECORDS, LOT))
}

/// Like [`full`], with a journal.
pub(crate) fn journaled_full() -> Opened {
    steps(Publishing::new(true), |_| (), |it| it.run(RECORDS, LOT))
}

/// One datagram per record, sent as soon as the record is published.
pub(crate) fn one() -> Opened {
    steps(Publishing::new(false), |_| (), |it| it.run(1, 1))
}

/// Like [`one`], with a journal.
pub(crate) fn journaled_one() -> Opened {
    steps(Publishing::new(true), |_| (), |it| it.run(1, 1))
}
