//! A publisher before its first datagram and a subscriber that has joined it, for tests that carry
//! datagrams from one to the other by hand.

use std::sync::Arc;

use tickcast_journal::{JournalWriter, Journaled};
use tickcast_reliability::control::{
    ChannelName, ChannelOffer, HeartbeatLimits, Message, Start, Welcome,
};
use tickcast_reliability::delivery::Item;
use tickcast_reliability::publish::{PublisherConfig, PublisherCore};
use tickcast_reliability::receive::ReceiverConfig;
use tickcast_reliability::ring::{Geometry, HeapMemory, RingIdentity, RingWriter};
use tickcast_reliability::session::{
    Action, ChannelWanted, LinkTimers, Path, SubscriberCore, SubscriberInput, SubscriberSettings,
};
use tickcast_reliability::types::{
    ChannelId, ConfigHash, Epoch, FanOutId, Lineage, Nanos, RecordNumber, Sequence,
};

/// The only channel.
pub(crate) const CHANNEL: ChannelId = ChannelId(1);
/// The only fan-out of [`CHANNEL`].
pub(crate) const FAN_OUT: FanOutId = FanOutId(0);
const EPOCH: Epoch = Epoch(5);
const CONFIG_HASH: ConfigHash = ConfigHash(3);

/// Returns a publisher that writes a ring of this geometry.
pub(crate) fn publisher(geometry: Geometry) -> PublisherCore {
    let identity = RingIdentity {
        channel: CHANNEL,
        epoch: EPOCH,
        config_hash: CONFIG_HASH,
        boot_id: [7; 16],
        fan_outs: 1,
        first_sequence: Sequence(1),
        first_record: RecordNumber(1),
    };
    let memory = Arc::new(HeapMemory::new(geometry));
    let ring = RingWriter::create(memory, geometry, identity).expect("a ring");
    PublisherCore::new(PublisherConfig::default(), ring, Arc::default(), Nanos(0))
}

/// Returns a subscriber of that publisher, which keeps a record from the start if `journal` is given.
pub(crate) fn subscriber(
    geometry: Geometry,
    journal: Option<JournalWriter>,
) -> Journaled<SubscriberCore> {
    let wanted = ChannelWanted {
        channel: ChannelName::Id(CHANNEL),
        start: Start::Live,
        config: ReceiverConfig::default(),
        lines: Some(1),
    };
    let settings = SubscriberSettings {
        name: "s".into(),
        channels: vec![wanted],
        link: LinkTimers::default(),
        seed: 1,
    };
    let mut core = Journaled::new(SubscriberCore::new(settings, Nanos(0)));
    if let Some(journal) = journal {
        core.keep_journal(journal);
    }
    let on = &mut |_: Item<'_>| {};
    core.handle(Nanos(0), SubscriberInput::Timeout, on);
    assert_eq!(core.poll_action(), Some(Action::Connect(Path::Repair)));
    core.handle(
        Nanos(0),
        SubscriberInput::Connected(Path::Repair),
        &mut |_: Item<'_>| (),
    );
    let offer = ChannelOffer {
        authentication: None,
        channel: CHANNEL,
        name: "c".into(),
        epoch: EPOCH,
        newest: Sequence(0),
        oldest: Sequence(1),
        oldest_record: RecordNumber(1),
        next_record: RecordNumber(1),
        slot_len: geometry.slot_len() as u32,
        slots: geometry.slots(),
        config_hash: CONFIG_HASH,
        ended: false,
        fan_outs: vec![],
        directory: vec![],
        continues: Lineage::default(),
        history: None,
        heartbeats: HeartbeatLimits::default(),
    };
    let welcome = Message::Welcome(Welcome {
        latency: false,
        wire_version: 1,
        publisher: "p".into(),
        session: 1,
        repairs: vec![],
        channels: vec![offer],
    });
    core.handle(
        Nanos(0),
        SubscriberInput::message(Path::Repair, CHANNEL, &welcome),
        on,
    );
    while core.poll_action().is_some() {}
    core
}
