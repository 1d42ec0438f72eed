//! Cases with hostile peers, and with another publisher on the same groups.

use std::io::Write;
use std::net::TcpStream;

use tickcast_reliability::control::{
    ChannelName, Join, JoinChannel, Message, NackClass, Purpose, Start,
};
use tickcast_reliability::types::{ChannelId, Epoch, Sequence, SequenceRange};
use tickcast_reliability::wire::WIRE_VERSION;
use tickcast_transport::{FanOut, Receive};

use crate::lab::{Bench, Lab};
use crate::publisher::{self, CHANNEL};
use crate::subscriber::Wanted;
use crate::verdict::{Verdict, equal};

/// How often each datagram is sent.
const TIMES: u64 = 10;

/// Returns a valid datagram as another publisher would seal it.
fn foreign(lab: &Lab, channel: ChannelId, epoch: u64, first: u64) -> Vec<u8> {
    let ring = (channel, Epoch(epoch), first);
    let (mut core, _) = publisher::core(16, ring, 0, |_| None, lab.now());
    let mut batch = tickcast_reliability::record::RecordBatch::default();
    batch.put(&publisher::record(Epoch(epoch), 1));
    let at = tickcast_reliability::types::SourcePosition::new(0, 1);
    let source = tickcast_reliability::types::SourceId(1);
    core.publish(&batch, source, at, lab.now()).unwrap();
    core.flush(lab.now(), true);
    core.slot(Sequence(first)).unwrap().to_vec()
}

fn send(lab: &mut Lab, through: &mut dyn FanOut, bytes: &[u8]) -> Verdict {
    for _ in 0..TIMES {
        let sent = through.send_copy(bytes).map_err(|e| e.to_string())?;
        equal("it is sent", sent, true)?;
        through.completed();
        lab.publish(8);
    }
    Ok(())
}

pub fn foreign_datagrams_are_dropped_and_counted(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, 2048);
    lab.join(Wanted::default())?;
    lab.publish(20);
    lab.sent()?;
    let own = lab.publisher().core.slot(Sequence(9)).map(<[u8]>::to_vec);
    let own = own.ok_or("nine are sealed")?;
    let mut flipped = own.clone();
    flipped[70] ^= 4;
    let mut intruder = lab.network.intruder();
    let sends = [
        vec![0x5a; 200],
        own[..own.len() - 8].to_vec(),
        flipped,
        foreign(&lab, ChannelId(8), 1_000, 21),
        foreign(&lab, CHANNEL, 5_000, 1),
        foreign(&lab, CHANNEL, 999, 21),
        foreign(&lab, CHANNEL, 1_000, 1_000_000),
    ];
    for bytes in &sends {
        send(&mut lab, &mut *intruder, bytes)?;
    }
    let stranger = lab.network.stranger();
    let unknown_senders = if stranger.is_some() { TIMES } else { 0 };
    if let Some(mut stranger) = stranger {
        send(&mut lab, &mut *stranger, &own)?;
    }
    lab.close()?;
    let subscriber = &lab.subscribers[0];
    let c = subscriber.counters();
    equal("malformed", c.malformed_dropped.get(), 2 * TIMES)?;
    equal("corrupt", c.corrupt_dropped.get(), TIMES)?;
    equal("other channel", c.other_channel_dropped.get(), TIMES)?;
    equal("unknown epoch", c.unknown_epoch_dropped.get(), TIMES)?;
    equal("old epoch", c.old_epoch_dropped.get(), TIMES)?;
    equal("jumps", c.sequence_jump_dropped.get(), TIMES)?;
    equal(
        "unknown_senders",
        c.unknown_sender_dropped.get(),
        unknown_senders,
    )?;
    if lab.network.keeps_strangers_out() {
        let stats = subscriber
            .receiver
            .as_ref()
            .map(|r| r.stats()[0].unknown_senders);
        equal("kept out", stats, Some(unknown_senders))?;
    }
    // After a jump it requests everything up to the publisher's sequence, which may be further than the
    // datagrams that have arrived.
    equal("gaps", c.missing_datagrams.get(), c.missing_recovered.get())?;
    equal("epochs", c.epochs.get(), 1)?;
    equal("losses", subscriber.heard.losses.as_slice(), &[])?;
    equal("first record", subscriber.heard.first, Some(1))
}

fn joins(epoch: u64) -> Message<'static> {
    Message::Join(Join {
        authentication: true,
        name: "hostile".into(),
        wire_versions: vec![WIRE_VERSION],
        purpose: Purpose::Repair,
        channels: vec![JoinChannel {
            channel: ChannelName::Id(CHANNEL),
            start: Start::Live,
            confirmed_epoch: Epoch(epoch),
        }],
    })
}

fn asks(epoch: u64, first: u64, last: u64) -> Message<'static> {
    Message::Nack {
        epoch: Epoch(epoch),
        class: NackClass::Repair,
        ranges: vec![SequenceRange {
            first: Sequence(first),
            last: Sequence(last),
        }],
    }
}

fn says(lab: &mut Lab, frames: &[Message<'_>]) -> TcpStream {
    let mut stream = TcpStream::connect(lab.publisher().control()).unwrap();
    let mut bytes = Vec::new();
    for frame in frames {
        frame.write(CHANNEL, &mut bytes);
    }
    stream.write_all(&bytes).unwrap();
    stream
}

pub fn hostile_connections_harm_nobody_else(bench: Bench) -> Verdict {
    let mut lab = Lab::with_publisher(bench, 1, 2048);
    lab.join(Wanted::default())?;
    lab.publish(50);
    let garbage = |lab: &mut Lab, bytes: &[u8]| {
        let mut stream = TcpStream::connect(lab.publisher().control()).unwrap();
        stream.write_all(bytes).unwrap();
        lab.publish(20);
        stream
    };
    let mut streams = vec![
        garbage(&mut lab, b"GET / HTTP/1.1\r\n\r\n"),
        garbage(&mut lab, &[0xff; 4096]),
        // Sends nothing, and then half a message.
        garbage(&mut lab, &[16, 0, 0, 0, 1]),
    ];
    for frames in [
        // No JOIN first; a foreign epoch; ranges that are invalid or far away; and everything, by a peer
        // that reads none of it.
        vec![asks(1_000, 1, 5)],
        vec![joins(9_000), Message::Leave],
        vec![joins(0), asks(1_000, 1 << 40, 1 << 41), asks(9_000, 1, 5)],
        vec![
            joins(0),
            asks(1_000, u64::MAX - 1, u64::MAX),
            asks(1_000, 5, 6),
        ],
        (0..2)
            .map(|n| if n == 0 { joins(0) } else { asks(1_000, 1, 40) })
            .collect(),
    ] {
        streams.push(says(&mut lab, &frames));
        lab.publish(40);
    }
    lab.until("the nonsense was noticed", |lab| {
        let publisher = lab.publisher();
        publisher.service.protocol_errors.get() >= 2
            && publisher.repaired.higher_epoch_claims.get() == 1
            && publisher.repaired.refused_epoch.get() > 0
            && publisher.repaired.refused_ahead.get() > 0
    })?;
    drop(streams);
    lab.publish(100);
    lab.close()?;
    let c = lab.subscribers[0].counters();
    equal("gaps", c.missing_datagrams.get(), 0)?;
    equal("links down", c.repair_links_down.get(), 0)?;
    let arrived = lab.subscribers[0].arrived(0).len() as u64;
    equal("all arrived", arrived, lab.publisher().core.sealed().0)
}
