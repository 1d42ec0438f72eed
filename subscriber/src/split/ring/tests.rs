//! Tests of the local ring: every record is read or counted in an overrun, and no record is ever torn.

use super::cursor::{Cursor, Entry};
use super::writer::Writer;
use super::*;
use crate::observe::totals::Totals;
use tickcast_reliability::delivery::{
    Event, LineId, Loss, LossCause, Overrun, Position, Quality, StreamState, Via,
};
use tickcast_reliability::record::{InstrumentDefMsg, MboMsg, RecordRef};
use tickcast_reliability::types::{
    ChannelId, Epoch, Nanos, RecordNumber, Sequence, SequenceRange, SourceId, SourcePosition,
};
use tickcast_reliability::wire::{SourceLossReason, StreamEvent};

fn position(channel: u16, epoch: u64, record: u64) -> Position {
    Position {
        channel: ChannelId(channel),
        epoch: Epoch(epoch),
        sequence: Sequence(1 + record / 25),
        record: RecordNumber(record),
        via: Via::Repair,
        quality: Quality::default(),
        source: SourceId(1),
        source_position: SourcePosition(record / 25),
        sent_at: Nanos(1),
        received_at: Nanos(2),
        missing_for: Nanos(0),
    }
}

/// Writes a record whose content follows from its number.
fn write(writer: &mut Writer, channel: usize, epoch: u64, number: u64) {
    let mbo = MboMsg {
        order_id: number,
        price: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64,
        ..MboMsg::default()
    };
    let position = position(channel as u16, epoch, number);
    writer.record(channel, &position, RecordRef::from(&mbo));
}

fn lost(writer: &mut Writer, channel: usize, epoch: u64, at: u64, records: Option<u64>) {
    let sequences = SequenceRange::one(Sequence(at));
    let cause = LossCause::Window;
    let loss = Loss {
        sequences,
        records,
        cause,
    };
    let position = position(channel as u16, epoch, at);
    writer.event(channel, &position, &Event::Lost(loss));
}

/// The result of a reader.
#[derive(Debug, Default)]
struct Read {
    records: Vec<(usize, u64, u64)>,
    events: Vec<(usize, Event)>,
    overruns: Vec<(usize, Overrun)>,
    lapped: u64,
}

impl Read {
    fn all(&mut self, cursor: &mut Cursor) {
        while self.one(cursor) {}
    }

    fn one(&mut self, cursor: &mut Cursor) -> bool {
        match cursor.next() {
            None => return false,
            Some(Entry::Records(channel, mut position, count)) => {
                let records = cursor.records(count).unwrap().map(|record| {
                    let mbo = record.get::<MboMsg>().unwrap();
                    (mbo.order_id, mbo.price)
                });
                for (order_id, price) in records.collect::<Vec<_>>() {
                    let expected = order_id.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64;
                    assert_eq!((order_id, price), (position.record.0, expected));
                    self.records
                        .push((channel, position.epoch.0, position.record.0));
                    cursor.totals_mut(channel).record(&position);
                    position.record = position.record.plus(1);
                }
            }
            Some(Entry::Event(channel, position, event)) => {
                cursor.totals_mut(channel).event(&position, &event);
                self.events.push((channel, event));
            }
            Some(Entry::Overrun(channel, position, overrun)) => {
                assert_eq!(position.place(), overrun.to);
                self.overruns.push((channel, overrun));
            }
            Some(Entry::Lapped) => self.lapped += 1,
            Some(Entry::Changed(..)) => {}
        }
        true
    }

    fn sum(&self, channel: usize, of: impl Fn(&Overrun) -> u64) -> u64 {
        let of_it = self.overruns.iter().filter(|(it, _)| *it == channel);
        of_it.map(|(_, overrun)| of(overrun)).sum()
    }

    fn records_of(&self, channel: usize) -> u64 {
        self.records
            .iter()
            .filter(|(it, ..)| *it == channel)
            .count() as u64
    }
}

#[test]
fn ring_reader_keeping_up_reads_all_in_order() {
    let (mut writer, mut cursor) = Writer::new(SIZE_MIN, [Totals::default(); 2].into());
    let mut read = Read::default();
    let mut expected = Vec::new();
    for number in 1..=200_000 {
        let channel = usize::from(number % 3 == 0);
        write(&mut writer, channel, 5, number);
        expected.push((channel, 5, number));
        if number % 1_000 == 0 {
            lost(&mut writer, channel, 5, number, Some(1));
            writer.flush();
            read.all(&mut cursor);
        }
    }
    assert_eq!(read.records, expected);
    assert_eq!(
        (read.events.len(), read.overruns.len(), read.lapped),
        (200, 0, 0)
    );
}

#[test]
fn record_run_of_one_datagram_is_one_ring_entry() {
    let (mut writer, mut cursor) = Writer::new(SIZE_MIN, [Totals::default(); 1].into());
    // These records are of one datagram, with a hole where a filter excluded one.
    for number in [25, 26, 28, 29, 50] {
        write(&mut writer, 0, 5, number);
    }
    assert!(!cursor.is_ready() || cursor.next().is_some());
    writer.flush();
    let mut counts = Vec::new();
    while let Some(entry) = cursor.next() {
        let Entry::Records(_, position, count) = entry else {
            panic!("{entry:?}")
        };
        counts.push((position.record.0, count));
        for n in 0..u64::from(count) {
            let mut at = position;
            at.record = at.record.plus(n);
            cursor.totals_mut(0).record(&at);
        }
    }
    assert_eq!(counts.last(), Some(&(50, 1)));
    let definition = InstrumentDefMsg::default();
    writer.record(0, &position(0, 5, 51), RecordRef::from(&definition));
    drop(writer);
    assert_eq!(
        cursor.next(),
        Some(Entry::Records(0, position(0, 5, 51), 1))
    );
    let read = cursor.records(1).unwrap().next().unwrap();
    assert_eq!(read.as_ref(), AsRef::<[u8]>::as_ref(&definition));
    assert!(cursor.ring().is_closed() && !cursor.is_ready());
}

#[test]
fn lapped_reader_learns_exact_miss_of_each_channel() {
    let (mut writer, mut cursor) = Writer::new(SIZE_MIN, [Totals::default(); 3].into());
    let mut read = Read::default();
    let (mut written, mut events) = ([0u64; 3], [0u64; 3]);
    let mut lost_records = 0;
    for (round, epoch) in [5u64, 6, 9].into_iter().enumerate() {
        for number in 1..=60_000 {
            let channel = usize::from(number % 4 == 0);
            write(&mut writer, channel, epoch, number);
            written[channel] += 1;
            if number % 10_000 == 0 {
                let records = (number != 30_000).then_some(7);
                lost(&mut writer, channel, epoch, number, records);
                events[channel] += 1;
                lost_records += records.unwrap_or(0);
            }
            if number == 40 && round == 0 {
                writer.flush();
                read.all(&mut cursor);
                assert_eq!(read.records.len(), 40);
            }
        }
        writer.flush();
    }
    let before = read.records.len();
    read.all(&mut cursor);
    assert_eq!(read.lapped, 1);
    for channel in 0..3 {
        let records = read.records_of(channel) + read.sum(channel, |it| it.records);
        assert_eq!(records, written[channel], "channel {channel}");
        let read_events = read.events.iter().filter(|(it, _)| *it == channel).count() as u64;
        let reported = read_events + read.sum(channel, |it| it.events);
        assert_eq!(reported, events[channel], "channel {channel}");
    }
    assert_eq!(read.overruns.len(), 2, "nothing was written of channel 2");
    let (_, overrun) = read.overruns[0];
    assert_eq!((overrun.from.epoch, overrun.to.epoch), (Epoch(5), Epoch(9)));
    assert_eq!(overrun.from.record, RecordNumber(40));
    let seen_lost = read.events.iter().map(|(_, event)| match event {
        Event::Lost(loss) => loss.records.unwrap_or(0),
        other => panic!("{other}"),
    });
    let reported: u64 = (0..2)
        .map(|channel| read.sum(channel, |it| it.lost_records))
        .sum();
    assert_eq!(reported + seen_lost.sum::<u64>(), lost_records);
    let unknown = |it: &Overrun| it.losses_of_unknown_size;
    let of_each = (read.sum(0, unknown), read.sum(1, unknown));
    assert_eq!(of_each, (0, 3), "one of each epoch");
    // The items after the overruns are without a hole, from the places that the overruns state.
    let mut next = [
        read.overruns[0].1.to.record.0,
        read.overruns[1].1.to.record.0,
    ];
    for (channel, epoch, record) in &read.records[before..] {
        assert!(*record >= next[*channel], "{record} of {channel}");
        assert_eq!(*epoch, 9);
        next[*channel] = record + 1;
    }
    assert_eq!(read.records.last(), Some(&(1, 9, 60_000)));
}

#[test]
fn lapped_reader_learns_state_of_each_channel() {
    let (mut writer, mut cursor) = Writer::new(SIZE_MIN, [Totals::default(); 3].into());
    let emit = |writer: &mut Writer, channel: u16, epoch, event: Event| {
        let position = position(channel, epoch, 1);
        writer.event(channel.into(), &position, &event);
    };
    let joined = || Event::Joined { after: Sequence(0) };
    for channel in 0..3 {
        emit(&mut writer, channel, 5, joined());
        emit(&mut writer, channel, 5, Event::Live);
    }
    emit(&mut writer, 2, 5, Event::Stale);
    writer.flush();
    let mut read = Read::default();
    read.all(&mut cursor);
    let (from, to) = (Epoch(5), Epoch(6));
    emit(&mut writer, 0, 5, Event::Stale);
    emit(&mut writer, 0, 5, Event::LineDown(LineId(1)));
    emit(&mut writer, 0, 5, Event::EpochChanged { from, to });
    emit(&mut writer, 1, 5, Event::EndOfSession);
    let lost = StreamEvent::SourceLost {
        source: SourceId(1),
        reason: SourceLossReason::Gap,
        from: SourcePosition(1),
        messages: 1,
        instruments: Vec::new(),
    };
    emit(&mut writer, 1, 5, Event::Stream(lost));
    let fenced = Event::FencingViolation {
        sequence: Sequence(1),
        wrong_one_delivered: false,
    };
    emit(&mut writer, 1, 5, fenced);
    // Write only to channel 0, far more than the ring holds, and nothing to channel 2.
    for number in 1..=60_000 {
        write(&mut writer, 0, 6, number);
    }
    writer.flush();
    read.all(&mut cursor);
    assert_eq!(read.overruns.len(), 2, "{:?}", read.overruns);
    let overrun = |channel| {
        let mut all = read.overruns.iter();
        all.find(|(it, _)| *it == channel).unwrap().1
    };
    let (first, second) = (overrun(0), overrun(1));
    let up = StreamState {
        joined: true,
        repair_link_up: true,
        ..StreamState::default()
    };
    let (stale, lines_down) = (true, [false, true]);
    assert_eq!(
        first.state,
        StreamState {
            stale,
            lines_down,
            ..up
        }
    );
    assert_eq!((first.to.epoch, first.epoch_changes), (Epoch(6), 1));
    assert_eq!((first.events, first.source_losses), (3, 0));
    let (live, ended) = (true, true);
    assert_eq!(second.state, StreamState { live, ended, ..up });
    let counts = (
        second.epoch_changes,
        second.source_losses,
        second.fencing_violations,
    );
    assert_eq!((second.events, second.records, counts), (3, 0, (0, 1, 1)));
    // The overrun does not include events that the reader had read itself.
    assert!(cursor.totals()[2].state.stale && cursor.totals()[2].state.live);
    // A reader that continues from there ends with the same state as one that read everything.
    emit(&mut writer, 0, 6, Event::Recovered);
    writer.flush();
    read.all(&mut cursor);
    assert_eq!(cursor.totals()[0].state, StreamState { lines_down, ..up });
}

#[test]
fn new_epoch_counts_before_its_first_datagram() {
    let (mut writer, mut cursor) = Writer::new(SIZE_MIN, [Totals::default(); 1].into());
    write(&mut writer, 0, 5, 1);
    writer.flush();
    let mut read = Read::default();
    read.all(&mut cursor);
    let (from, to) = (Epoch(5), Epoch(6));
    for number in 1..=60_000 {
        write(&mut writer, 0, 5, number);
    }
    let position = position(0, 5, 60_001);
    writer.event(0, &position, &Event::EpochChanged { from, to });
    // Write losses without records, up to the next checkpoint and beyond.
    for _ in 0..20_000 {
        lost(&mut writer, 0, 6, 1, Some(0));
    }
    writer.flush();
    read.all(&mut cursor);
    let (_, overrun) = read.overruns[0];
    assert_eq!((overrun.from.epoch, overrun.to.epoch), (from, to));
}

#[test]
fn readers_at_any_speed_see_whole_entries_and_balance() {
    const RECORDS: u64 = 400_000;
    let (mut writer, cursor) = Writer::new(SIZE_MIN, [Totals::default(); 2].into());
    let readers: Vec<_> = [0u64, 300, 5_000]
        .into_iter()
        .map(|pause| {
            let mut cursor = cursor.clone();
            std::thread::spawn(move || {
                let mut read = Read::default();
                let mut spins = 0;
                loop {
                    let closed = cursor.ring().is_closed();
                    if !read.one(&mut cursor) && closed {
                        return read;
                    }
                    for _ in 0..pause {
                        spins += 1;
                        std::hint::black_box(spins);
                    }
                }
            })
        })
        .collect();
    for number in 1..=RECORDS {
        write(&mut writer, usize::from(number % 5 == 0), 1, number);
        if number % 1_000 == 0 {
            lost(&mut writer, 0, 1, number, None);
            writer.flush();
        }
        if number % 20_000 == 0 {
            std::thread::yield_now();
        }
    }
    drop(writer);
    for reader in readers {
        let read = reader.join().unwrap();
        let reported = |channel| read.records_of(channel) + read.sum(channel, |it| it.records);
        assert_eq!((reported(0), reported(1)), (RECORDS / 5 * 4, RECORDS / 5));
        let events = read.events.len() as u64 + read.sum(0, |it| it.events);
        assert_eq!(events, RECORDS / 1_000);
        let order = read.records.windows(2).all(|pair| pair[0].2 < pair[1].2);
        assert!(order, "records come in order");
    }
}

#[test]
fn writing_and_reading_allocate_nothing() {
    let (mut writer, mut cursor) = Writer::new(SIZE_MIN, [Totals::default(); 1].into());
    let mut count = 0;
    let counted = allocation_counter::measure(|| {
        for number in 1..=50_000 {
            write(&mut writer, 0, 1, number);
            writer.flush();
            while let Some(entry) = cursor.next() {
                if let Entry::Records(_, mut at, records) = entry {
                    for _ in 0..records {
                        cursor.totals_mut(0).record(&at);
                        at.record = at.record.plus(1);
                        count += 1;
                    }
                }
            }
        }
    });
    assert_eq!((count, counted.count_total), (50_000, 0), "{counted:?}");
}

#[test]
fn waiter_is_woken_only_for_news() {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::time::Duration;

    let (mut writer, cursor) = Writer::new(SIZE_MIN, [Totals::default()].into());
    let looks = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            cursor.ring().notifier.wait(Duration::from_secs(3600), || {
                looks.fetch_add(1, SeqCst);
                cursor.is_ready()
            })
        });
        // The second check comes after the reader is counted as waiting.
        while looks.load(SeqCst) < 2 {
            std::thread::yield_now();
        }
        for _ in 0..100 {
            writer.flush();
        }
        // Assert only after no thread waits any more, because a failing test must still end.
        let for_nothing = cursor.ring().notifier.notifications();
        write(&mut writer, 0, 1, 1);
        writer.flush();
        assert_eq!(waiting.join().unwrap(), crate::sync::wake::Wake::Ready);
        assert_eq!(for_nothing, 0, "there is nothing to wake for");
        assert_eq!(cursor.ring().notifier.notifications(), 1);
    });
}

#[test]
fn ring_beyond_available_memory_is_refused() {
    // This is more memory than any machine has.
    assert!(Words::new(1 << 59).is_none());
    assert_eq!(Words::new(1 << 4).map(|words| words.len()), Some(1 << 4));
}
