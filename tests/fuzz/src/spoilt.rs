//! Rings and records that a publisher and a subscriber leave in memory, and the damage that an input does.

use tickcast_journal::layout::{JOURNAL_LEN_MIN, JournalOrigin, JournalSide};
use tickcast_journal::{JournalWriter, JournaledPublisher};
use tickcast_reliability::delivery::{Item, LineId};
use tickcast_reliability::publish::{PublisherCore, Transmit};
use tickcast_reliability::record::{MboMsg, RecordBatch};
use tickcast_reliability::ring::Geometry;
use tickcast_reliability::session::SubscriberInput;
use tickcast_reliability::types::{Epoch, Nanos, Now, Sequence, SourceId, SourcePosition};
use tickcast_reliability::wire::{EpochReason, StreamEvent};

use crate::bytes::Bytes;
use crate::pair::{self, CHANNEL, FAN_OUT};

/// Returns the bytes with the input's damage: changed bits, bytes and words at any place, or a cut end.
pub(crate) fn spoilt(whole: &[u8], input: &mut Bytes<'_>) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    while let Some(how) = input.next() {
        let at = u32::from_le_bytes([input.byte(), input.byte(), input.byte(), 0]) as usize;
        let at = at % whole.len();
        let with = input.byte();
        match how % 5 {
            0 => bytes[at] ^= 1 << (with & 7),
            1 => bytes[at] = with,
            2 => fill(&mut bytes, at / 8 * 8, u64::from(with)),
            3 => fill(&mut bytes, at / 8 * 8, u64::MAX - u64::from(with)),
            _ if with < 16 => bytes[at..].fill(0),
            _ => {}
        }
    }
    bytes
}

fn fill(bytes: &mut [u8], at: usize, word: u64) {
    let bytes = bytes[at..].iter_mut().zip(word.to_le_bytes());
    bytes.for_each(|(byte, of)| *byte = of);
}

/// Returns a publisher that writes the smallest ring, before its first datagram.
pub(crate) fn publisher() -> PublisherCore {
    pair::publisher(geometry())
}

/// Returns the shape of that ring.
pub(crate) fn geometry() -> Geometry {
    Geometry::new(Geometry::SLOT_LEN_MIN, Geometry::SLOTS_MIN).expect("the least is possible")
}

/// Returns the used part of a publisher's and a subscriber's journal. The subscriber followed the
/// publisher, lost some datagrams, and asked for them.
pub(crate) fn records() -> [Vec<u8>; 2] {
    let mut publisher = JournaledPublisher::new(publisher());
    publisher.keep_journal(journal(JournalSide::Publisher));
    let mut subscriber = pair::subscriber(geometry(), Some(journal(JournalSide::Subscriber)));
    let on = &mut |_: Item<'_>| {};
    let mut batch = RecordBatch::default();
    batch.put(&MboMsg::default());
    let mut asked = Vec::new();
    for n in 1..=40 {
        let now = now(n);
        let message = SourcePosition::new(0, n);
        let published = publisher.publish(&batch, SourceId(1), message, now);
        published.expect("it fits");
        publisher.flush(now, true);
        if n == 30 {
            let opened = StreamEvent::EpochOpened {
                reason: EpochReason::Restart,
                previous: Epoch(4),
                previous_last: Sequence(9),
            };
            publisher.event(&opened, now).expect("it is sealed");
        }
        publisher.handle_timeout(now);
        while let Some(transmit) = publisher.poll_transmit(FAN_OUT) {
            match transmit {
                Transmit::Slots(range) => {
                    for sequence in range.iter().filter(|it| it.0 % 7 != 3) {
                        let bytes = publisher.slot(sequence).expect("it is sealed");
                        subscriber.handle_bytes(
                            now.monotonic,
                            (CHANNEL, LineId(0)),
                            bytes,
                            false,
                            on,
                        );
                    }
                    publisher.handle_posted(FAN_OUT, range.last);
                }
                Transmit::Heartbeat(bytes) => {
                    subscriber.handle_bytes(now.monotonic, (CHANNEL, LineId(0)), &bytes, false, on);
                }
            }
        }
        subscriber.handle(now.monotonic, SubscriberInput::Timeout, on);
        loop {
            subscriber.handle(now.monotonic, SubscriberInput::Poll, on);
            if subscriber.poll_transmit(&mut asked).is_none() {
                break;
            }
        }
    }
    publisher.end(now(41)).expect("the end");
    let of = |journal: Option<Box<JournalWriter>>| {
        journal.map_or_else(Vec::new, |journal| used(&journal.into_bytes()))
    };
    [of(publisher.take_journal()), of(subscriber.take_journal())]
}

fn now(n: u64) -> Now {
    let (monotonic, utc) = (Nanos::from_us(50 * n), Nanos::from_secs(n));
    Now { monotonic, utc }
}

fn journal(side: JournalSide) -> JournalWriter {
    let origin = JournalOrigin {
        name: "fuzzed".into(),
        side,
        ..JournalOrigin::default()
    };
    JournalWriter::new(Box::new(vec![0; JOURNAL_LEN_MIN]), &origin).expect("a record")
}

/// Returns the head of a record and the used part of its first segment, as the only segment
/// (docs/decisions/0011).
fn used(bytes: &[u8]) -> Vec<u8> {
    const HEAD_LEN: usize = 4096;
    let word = |at: usize| bytes[at..at + 8].iter().rev();
    let word = |at| word(at).fold(0, |sum, byte| sum << 8 | u64::from(*byte)) as usize;
    let committed = word(HEAD_LEN + 8).next_multiple_of(64);
    let mut bytes = bytes[..HEAD_LEN + committed].to_vec();
    bytes[12..16].copy_from_slice(&1_u32.to_le_bytes());
    bytes[16..24].copy_from_slice(&(committed as u64).to_le_bytes());
    bytes
}
