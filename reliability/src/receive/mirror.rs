//! A mirror: a ring that holds another publisher's datagrams in the same slots, so that a standby
//! can continue where that publisher ends (docs/PROTOCOL.md §5.7).
//!
//! A mirror takes the datagrams that a receiver delivers, in order
//! ([`crate::session::SubscriberInput::Mirror`]). So it holds only confirmed and repaired ones, and
//! never a hole. Where the receiver declares a loss, the mirror begins anew behind it. Nothing else
//! writes the ring, and only the standby reads it until it is promoted.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::control::ChannelOffer;
use crate::ring::{Geometry, RingError, RingIdentity, RingMemory, RingWriter};
use crate::types::{
    ChannelId, ConfigHash, Continued, Epoch, Lineage, RecordNumber, Sequence, SequenceRange,
    SourceId, SourcePosition,
};
use crate::wire::{Datagram, EpochReason, Header, Kind, PublisherState, StreamEvent};

/// The settings of the standby's own host, independent of the mirrored publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorHost {
    /// Fan-outs that the ring will feed once it is promoted.
    pub fan_outs: u8,
    /// The boot id of this host.
    pub boot_id: [u8; 16],
    /// The hash of the standby's own config of the channel.
    pub config_hash: ConfigHash,
}

/// The effect of a datagram on the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The datagram follows the last one.
    Taken,
    /// The datagram is the only one: those before it can't be had.
    BeganAnew,
    /// The datagram was there.
    Duplicate,
    /// The datagram was not taken: another channel or epoch, no sequence, or longer than a slot.
    Refused,
}

/// How far a mirror is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirrored {
    /// The epoch that is mirrored.
    pub epoch: Epoch,
    /// The sequences that are held; `None` if there are none.
    pub held: Option<SequenceRange>,
    /// The last sequence without a hole; if nothing is held, the one before the first.
    pub last: Sequence,
    /// The number of the record after it; 0: unknown.
    pub next_record: RecordNumber,
    /// Whether the last one is END of the epoch that is mirrored.
    pub ended: bool,
    /// How often the mirror began anew behind a hole.
    pub holes: u64,
}

/// A mirror that became a publisher's ring.
pub struct Promotion {
    /// The ring, which seals under the new epoch and serves the held datagrams as they are.
    pub ring: RingWriter,
    /// The event to publish first, with the sequence after the last one mirrored.
    pub opened: StreamEvent,
}

/// A mirror that could not be promoted and is unchanged.
#[derive(Debug)]
pub struct NotPromoted {
    /// The mirror.
    pub mirror: Box<Mirror>,
    /// The reason.
    pub error: MirrorError,
}

/// The reason why a mirror cannot be made or promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MirrorError {
    /// No ring has the shape on offer.
    #[error("the publisher's ring can't be mirrored: {0}")]
    Ring(#[from] RingError),
    /// The new epoch is not above the one that was mirrored.
    #[error("epoch {epoch} can't continue epoch {mirrored}; a promotion opens a higher one")]
    Epoch {
        /// The new epoch.
        epoch: Epoch,
        /// The mirrored epoch.
        mirrored: Epoch,
    },
    /// Nothing was mirrored yet, and the number of the next record is not known.
    #[error("no slot of channel {channel} was mirrored yet; open a fresh epoch instead")]
    Empty {
        /// The channel.
        channel: ChannelId,
    },
}

/// How far a source is in the mirror, and the datagram that says so.
#[derive(Clone, Copy, Debug)]
struct Source {
    source: SourceId,
    position: SourcePosition,
    at: Sequence,
}

/// A ring that holds another publisher's datagrams in the same slots.
pub struct Mirror {
    ring: RingWriter,
    sources: Vec<Source>,
    ended: bool,
    holes: u64,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror")
            .field("mirrored", &self.mirrored())
            .field("lineage", self.ring.lineage())
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}

impl Mirror {
    /// Returns the shape that memory for a mirror of this offer must have: the publisher's own, whatever
    /// the standby's config says.
    ///
    /// # Errors
    /// [`MirrorError::Ring`] if no ring has this shape.
    pub fn geometry_of(offer: &ChannelOffer) -> Result<Geometry, MirrorError> {
        let geometry = Geometry::new(offer.slot_len, offer.slots);
        geometry.map_err(|wrong| MirrorError::Ring(wrong.into()))
    }

    /// An empty mirror of the publisher that made this offer, which begins with its oldest datagram.
    /// Nothing else may use the memory.
    ///
    /// # Errors
    /// [`MirrorError::Ring`] if the offer or the memory does not fit a ring.
    pub fn create(
        memory: Arc<dyn RingMemory>,
        offer: &ChannelOffer,
        host: MirrorHost,
    ) -> Result<Self, MirrorError> {
        let (first_sequence, first_record) = offer.oldest_of_all();
        let identity = RingIdentity {
            channel: offer.channel,
            epoch: offer.epoch,
            config_hash: host.config_hash,
            boot_id: host.boot_id,
            fan_outs: host.fan_outs,
            first_sequence,
            first_record,
        };
        let ring = RingWriter::create(memory, Self::geometry_of(offer)?, identity)?;
        let mut mirror = Self {
            ring,
            sources: Vec::new(),
            ended: false,
            holes: 0,
        };
        mirror.follow(offer.epoch, offer.continues.clone());
        Ok(mirror)
    }

    /// The channel that is mirrored.
    #[must_use]
    pub const fn channel(&self) -> ChannelId {
        self.ring.identity().channel
    }

    /// Returns whether this offer's datagrams can be held in the same slots.
    #[must_use]
    pub fn fits(&self, offer: &ChannelOffer) -> bool {
        let same = Self::geometry_of(offer) == Ok(self.ring.geometry());
        same && offer.channel == self.ring.identity().channel
    }

    /// Takes a checked datagram: the one after the last, or a later one if those between can't be had any
    /// more.
    pub fn put(&mut self, datagram: &Datagram<'_>) -> Put {
        let header = datagram.header();
        let (sequence, identity) = (header.sequence, self.ring.identity());
        let epoch = self.ring.lineage().epoch_of(identity.epoch, sequence);
        let fits = datagram.bytes().len() <= self.ring.geometry().slot_len();
        if header.channel != identity.channel
            || header.epoch != epoch
            || !header.kind.is_sequenced()
            || !fits
        {
            return Put::Refused;
        }
        // An END of an earlier epoch ended nothing, because this epoch continues behind it.
        let ends = header.kind == Kind::End && epoch == identity.epoch;
        let next = self.ring.sealed().next();
        if sequence < next {
            return Put::Duplicate;
        }
        let is_empty = self.held().is_none();
        let follows = sequence == next && (!is_empty || header.first_record == self.next_record());
        if !follows {
            self.ring.begin_anew(sequence, header.first_record);
            self.holes += u64::from(!is_empty);
        }
        if self.ring.take(datagram).is_err() {
            return Put::Refused;
        }
        self.ended = ends;
        if let Some(seen) = Source::of(header) {
            self.note_source(seen);
        }
        match follows {
            true => Put::Taken,
            false => Put::BeganAnew,
        }
    }

    /// Replaces a datagram that was taken with another content by the publisher's own copy.
    pub(crate) fn replace(&mut self, datagram: &Datagram<'_>) {
        let (header, sealed) = (datagram.header(), self.ring.sealed());
        // A datagram too long for a slot was not taken before.
        if self.ring.replace(datagram).is_err() || header.sequence > sealed {
            return;
        }
        if header.sequence == sealed {
            self.ended = header.kind == Kind::End && header.epoch == self.ring.identity().epoch;
        }
        // The other content may have claimed a position that its source never had.
        self.read_sources(|it| it.at == header.sequence);
        if let Some(seen) = Source::of(header) {
            let known = self.sources.iter().find(|it| it.source == seen.source);
            if known.is_none_or(|known| known.at <= seen.at) {
                self.note_source(seen);
            }
        }
    }

    /// Returns how far the mirror is.
    #[must_use]
    pub fn mirrored(&self) -> Mirrored {
        Mirrored {
            epoch: self.ring.identity().epoch,
            held: self.held(),
            last: self.ring.sealed(),
            next_record: self.next_record(),
            ended: self.ended,
            holes: self.holes,
        }
    }

    /// Returns how far each mirrored source is, by its last datagram. Sources without a datagram are left
    /// out.
    pub fn positions(&self) -> impl Iterator<Item = (SourceId, SourcePosition)> {
        self.sources.iter().map(|it| (it.source, it.position))
    }

    /// The epochs that the mirrored one continues.
    #[must_use]
    pub const fn lineage(&self) -> &Lineage {
        self.ring.lineage()
    }

    /// Mirrors another epoch from now on, from its first datagram; it does not continue the one before.
    pub(crate) fn begin_anew(&mut self, epoch: Epoch, lineage: Lineage, next: Sequence) {
        self.ring.begin_anew(next, RecordNumber(0));
        self.sources.clear();
        self.ended = false;
        self.follow(epoch, lineage);
    }

    /// Another publisher's epoch continues the mirrored one: datagrams beyond the place where it does are
    /// sealed anew.
    pub(crate) fn continue_epoch(&mut self, epoch: Epoch, lineage: Lineage, at: Continued) {
        self.cut(at.last, at.next_record);
        // An END behind which the new epoch continues ended the epoch before, not this one.
        self.ended = false;
        self.follow(epoch, lineage);
    }

    /// Forgets every datagram beyond `last`, because an impostor sent it. The record `next_record` follows
    /// `last`.
    pub(crate) fn cut(&mut self, last: Sequence, next_record: RecordNumber) {
        if last < self.ring.sealed() {
            self.ring.cut(last, next_record);
            self.read_sources(|it| it.at > last);
            self.ended = false;
        }
    }

    /// Makes the mirror a publisher's ring that seals under this epoch. The epoch must have been stored
    /// before. `complete`: the mirrored publisher handed over, so it sealed nothing beyond the mirror.
    ///
    /// # Errors
    /// [`MirrorError::Epoch`] and [`MirrorError::Empty`]; the error returns the mirror.
    pub fn promote(mut self, epoch: Epoch, complete: bool) -> Result<Promotion, NotPromoted> {
        let Mirrored {
            epoch: mirrored,
            last,
            next_record,
            ..
        } = self.mirrored();
        let channel = self.ring.identity().channel;
        let error = if epoch <= mirrored {
            Some(MirrorError::Epoch { epoch, mirrored })
        } else if next_record == RecordNumber(0) {
            Some(MirrorError::Empty { channel })
        } else {
            None
        };
        if let Some(error) = error {
            let mirror = Box::new(self);
            return Err(NotPromoted { mirror, error });
        }
        let before = Continued {
            epoch: mirrored,
            last,
            next_record,
            complete,
        };
        let (lineage, forgotten) = self.ring.lineage().continued(before);
        self.ring
            .set_epoch(epoch, lineage, forgotten, PublisherState::Live);
        Ok(Promotion {
            ring: self.ring,
            opened: StreamEvent::EpochOpened {
                reason: EpochReason::Promotion,
                previous: mirrored,
                previous_last: last,
            },
        })
    }

    fn held(&self) -> Option<SequenceRange> {
        SequenceRange::new(self.ring.oldest(), self.ring.sealed())
    }

    const fn next_record(&self) -> RecordNumber {
        self.ring.next_record()
    }

    fn follow(&mut self, epoch: Epoch, lineage: Lineage) {
        self.ring
            .set_epoch(epoch, lineage, None, PublisherState::Standby);
    }

    fn note_source(&mut self, seen: Source) {
        match self.sources.iter_mut().find(|it| it.source == seen.source) {
            Some(known) => *known = seen,
            None => self.sources.push(seen),
        }
    }

    /// Forgets these positions of sources, and reads them from the slots.
    fn read_sources(&mut self, is_gone: impl Fn(&Source) -> bool) {
        let (gone, kept): (Vec<_>, Vec<_>) = self.sources.iter().partition(|it| is_gone(it));
        self.sources = kept;
        for gone in gone {
            let held = self.held().into_iter().flat_map(SequenceRange::iter);
            let seen = held.filter_map(|at| {
                let header = *Datagram::parse(self.ring.slot(at)?).ok()?.header();
                Source::of(&header).filter(|seen| seen.source == gone.source)
            });
            let latest = seen.last();
            self.sources.extend(latest);
        }
    }
}

impl Source {
    /// Returns how far a source is with this datagram: its records, or its loss.
    fn of(header: &Header) -> Option<Self> {
        let of_source = match header.kind {
            Kind::Data => true,
            // An event without a source has no position.
            Kind::Event => header.source_position != SourcePosition::default(),
            _ => false,
        };
        of_source.then_some(Self {
            source: header.source,
            position: header.source_position,
            at: header.sequence,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::HeartbeatLimits;
    use crate::publish::{PublisherConfig, PublisherCore};
    use crate::record::{AlignedCopy, MboMsg, RecordBatch};
    use crate::ring::{HeapMemory, RingReader};
    use crate::types::{Nanos, Now};
    use crate::wire::{CrcVerdict, RELAY_OFFSET, SourceLossReason, relay_flags};

    const HOST: MirrorHost = MirrorHost {
        fan_outs: 2,
        boot_id: [7; 16],
        config_hash: ConfigHash(11),
    };

    fn geometry() -> Geometry {
        Geometry::new(1024, 16).unwrap()
    }

    fn offer(epoch: u64, oldest: u64, oldest_record: u64) -> ChannelOffer {
        ChannelOffer {
            authentication: None,
            channel: ChannelId(3),
            name: "c".into(),
            epoch: Epoch(epoch),
            newest: Sequence(oldest),
            oldest: Sequence(oldest),
            oldest_record: RecordNumber(oldest_record),
            next_record: RecordNumber(oldest_record),
            slot_len: 1024,
            slots: 16,
            config_hash: ConfigHash(5),
            ended: false,
            fan_outs: vec![],
            directory: vec![],
            continues: Lineage::default(),
            history: None,
            heartbeats: HeartbeatLimits::default(),
        }
    }

    fn mirror_of(offer: &ChannelOffer) -> (Mirror, Arc<HeapMemory>) {
        let memory = Arc::new(HeapMemory::new(geometry()));
        let kept = memory.clone();
        // The test looks at the memory as another process would.
        let identity = RingIdentity {
            channel: offer.channel,
            epoch: offer.epoch,
            config_hash: HOST.config_hash,
            boot_id: HOST.boot_id,
            fan_outs: HOST.fan_outs,
            first_sequence: offer.oldest_of_all().0,
            first_record: offer.oldest_of_all().1,
        };
        let ring = RingWriter::create_in(memory, geometry(), identity).unwrap();
        let mut mirror = Mirror {
            ring,
            sources: Vec::new(),
            ended: false,
            holes: 0,
        };
        mirror.follow(offer.epoch, offer.continues.clone());
        (mirror, kept)
    }

    /// A publisher from this sequence and record on.
    fn publisher(epoch: u64, first: u64, first_record: u64) -> PublisherCore {
        let identity = RingIdentity {
            channel: ChannelId(3),
            epoch: Epoch(epoch),
            config_hash: ConfigHash(5),
            boot_id: [1; 16],
            fan_outs: 1,
            first_sequence: Sequence(first),
            first_record: RecordNumber(first_record),
        };
        let memory = Arc::new(HeapMemory::new(geometry()));
        let ring = RingWriter::create(memory, geometry(), identity).unwrap();
        core(ring)
    }

    fn core(ring: RingWriter) -> PublisherCore {
        let now = Nanos::ZERO;
        PublisherCore::new(PublisherConfig::default(), ring, Arc::default(), now)
    }

    /// Publishes a datagram of so many records of this source, whose position is then `at`.
    fn publish(core: &mut PublisherCore, source: u16, at: u64, records: usize) -> Sequence {
        let mut batch = RecordBatch::default();
        (0..records).for_each(|_| batch.put(&MboMsg::default()));
        let position = SourcePosition::new(0, at);
        let now = Now::default();
        core.publish(&batch, SourceId(source), position, now)
            .unwrap();
        core.flush(now, true);
        core.sealed()
    }

    fn copy(core: &PublisherCore, sequence: u64, relay: u8) -> Vec<u8> {
        let mut bytes = core.slot(Sequence(sequence)).unwrap().to_vec();
        bytes[RELAY_OFFSET] = relay;
        bytes
    }

    fn header(bytes: &[u8]) -> Header {
        let mut aligned = AlignedCopy::default();
        *Datagram::parse(aligned.of(bytes)).unwrap().header()
    }

    fn put(mirror: &mut Mirror, bytes: &[u8]) -> Put {
        let mut aligned = AlignedCopy::default();
        mirror.put(&Datagram::parse(aligned.of(bytes)).unwrap())
    }

    fn range(first: u64, last: u64) -> Option<SequenceRange> {
        SequenceRange::new(Sequence(first), Sequence(last))
    }

    #[test]
    fn mirror_holds_same_bytes_without_relay_byte() {
        let (mut mirror, memory) = mirror_of(&offer(5, 1, 1));
        let mut publisher = publisher(5, 1, 1);
        for n in 1..=20 {
            publish(&mut publisher, 1, n, 2);
            let relay = relay_flags::RETRANSMITTED | 1;
            assert_eq!(put(&mut mirror, &copy(&publisher, n, relay)), Put::Taken);
            assert_eq!(put(&mut mirror, &copy(&publisher, n, 0)), Put::Duplicate);
        }
        for n in 5..=20 {
            let sealed = publisher.slot(Sequence(n)).unwrap();
            assert_eq!(mirror.ring.slot(Sequence(n)), Some(sealed));
        }
        let mirrored = mirror.mirrored();
        assert_eq!(mirrored.held, range(5, 20));
        assert_eq!(
            (mirrored.last, mirrored.next_record),
            (Sequence(20), RecordNumber(41))
        );
        assert_eq!((mirrored.holes, mirrored.ended), (0, false));
        let reader = RingReader::attach(memory).unwrap();
        assert_eq!(reader.state(), Some(PublisherState::Standby));
        assert_eq!(reader.verify(), Ok(range(5, 20)));
        assert_eq!(reader.first_record_of(Sequence(20)), Some(RecordNumber(39)));
    }

    #[test]
    fn mirror_restarts_at_datagram_after_hole() {
        let (mut mirror, memory) = mirror_of(&offer(5, 1, 0));
        let mut publisher = publisher(5, 1, 1);
        (1..=9).for_each(|n| {
            publish(&mut publisher, 1, n, 3);
        });
        assert_eq!(mirror.mirrored().next_record, RecordNumber(0));
        // The number of the first record was not known: no hole.
        assert_eq!(put(&mut mirror, &copy(&publisher, 1, 0)), Put::BeganAnew);
        assert_eq!(put(&mut mirror, &copy(&publisher, 2, 0)), Put::Taken);
        assert_eq!(mirror.mirrored().holes, 0);
        assert_eq!(put(&mut mirror, &copy(&publisher, 6, 0)), Put::BeganAnew);
        assert_eq!(put(&mut mirror, &copy(&publisher, 4, 0)), Put::Duplicate);
        assert_eq!(put(&mut mirror, &copy(&publisher, 7, 0)), Put::Taken);
        let mirrored = mirror.mirrored();
        assert_eq!((mirrored.held, mirrored.holes), (range(6, 7), 1));
        assert_eq!(mirrored.next_record, RecordNumber(22));
        let reader = RingReader::attach(memory).unwrap();
        assert_eq!(reader.verify(), Ok(range(6, 7)));
        assert!(reader.copy(Sequence(2), &mut [0; 128]).is_err());
        assert_eq!(
            reader.next_record_after(Sequence(5)),
            Some(RecordNumber(16))
        );
    }

    #[test]
    fn promoted_mirror_seals_and_keeps_earlier_slots() {
        let (mut mirror, memory) = mirror_of(&offer(5, 1, 1));
        let mut before = publisher(5, 1, 1);
        for n in 1..=3 {
            publish(&mut before, 1, n, 2);
            put(&mut mirror, &copy(&before, n, 0x80));
        }
        let NotPromoted { mirror, error } = mirror.promote(Epoch(5), false).err().unwrap();
        assert_eq!(
            error.to_string(),
            "epoch 5 can't continue epoch 5; a promotion opens a higher one"
        );
        let Promotion { ring, opened } = mirror.promote(Epoch(9), true).ok().unwrap();
        let mut after = core(ring);
        assert_eq!(after.sealed(), Sequence(3));
        let now = Now::default();
        assert_eq!(after.event(&opened, now), Ok(Sequence(4)));
        assert_eq!(publish(&mut after, 1, 4, 1), Sequence(5));
        let header = |s: u64| {
            let bytes = after.slot(Sequence(s)).unwrap();
            let datagram = Datagram::parse(bytes).unwrap();
            assert_eq!(datagram.verdict(), CrcVerdict::Good);
            (
                datagram.header().epoch.0,
                datagram.header().first_record.0,
                datagram.header().retained,
            )
        };
        assert_eq!([3, 4, 5].map(header), [(5, 5, 3), (9, 7, 4), (9, 7, 5)]);
        let reader = RingReader::attach(memory).unwrap();
        assert_eq!(reader.verify(), Ok(range(1, 5)), "each under its own epoch");
        assert_eq!(reader.identity().epoch, Epoch(9));
        assert_eq!(reader.state(), Some(PublisherState::Live));
        assert_eq!(reader.sent_by_all(), Sequence(3), "nothing is sent again");
        let continued = Continued {
            epoch: Epoch(5),
            last: Sequence(3),
            next_record: RecordNumber(7),
            complete: true,
        };
        assert_eq!(reader.lineage().epochs(), [continued]);
        assert_eq!(reader.lineage(), after.ring().reader().lineage());
    }

    #[test]
    fn empty_mirror_is_promoted_only_with_known_record() {
        let (mirror, _) = mirror_of(&offer(5, 1, 1));
        let Promotion { ring, .. } = mirror.promote(Epoch(6), false).ok().unwrap();
        assert_eq!(
            ring.lineage().begins(),
            (Sequence(1), RecordNumber(1)),
            "it begins where nothing was"
        );
        let (mirror, _) = mirror_of(&offer(5, 40, 0));
        let error = mirror.promote(Epoch(6), false).err().unwrap().error;
        assert_eq!(
            error.to_string(),
            "no slot of channel 3 was mirrored yet; open a fresh epoch instead"
        );
    }

    #[test]
    fn mirror_position_advances_to_reported_source_loss() {
        let (mut mirror, _) = mirror_of(&offer(5, 1, 1));
        let mut of = publisher(5, 1, 1);
        publish(&mut of, 1, 10, 2);
        let now = Now::default();
        for event in [
            StreamEvent::SourceLost {
                source: SourceId(1),
                reason: SourceLossReason::Gap,
                from: SourcePosition::new(0, 11),
                messages: 3,
                instruments: Vec::new(),
            },
            StreamEvent::SourceSilent {
                source: SourceId(1),
                since: Nanos(9),
                instruments: Vec::new(),
            },
            StreamEvent::EpochOpened {
                reason: EpochReason::Restart,
                previous: Epoch(4),
                previous_last: Sequence(9),
            },
        ] {
            of.event(&event, now).unwrap();
        }
        for n in 1..=4 {
            assert_eq!(put(&mut mirror, &copy(&of, n, 0)), Put::Taken);
        }
        let positions: Vec<_> = mirror.positions().collect();
        assert_eq!(positions, [(SourceId(1), SourcePosition::new(0, 11))]);
    }

    #[test]
    fn replaced_datagram_restores_positions_and_end() {
        let positions = |mirror: &Mirror| {
            let mut all: Vec<_> = mirror.positions().map(|(s, at)| (s.0, at.0)).collect();
            all.sort_unstable();
            all
        };
        let replace = |mirror: &mut Mirror, bytes: &[u8]| {
            let mut aligned = AlignedCopy::default();
            mirror.replace(&Datagram::parse(aligned.of(bytes)).unwrap());
        };
        // The forged datagram is of a source that was mirrored, of one that nobody has, or END.
        for forged_of in [Some((1, 1 << 47)), Some((9, 1)), None] {
            let (mut mirror, _) = mirror_of(&offer(5, 1, 1));
            let [mut genuine, mut forged] = [publisher(5, 1, 1), publisher(5, 1, 1)];
            for (n, source, at) in [(1, 1, 10), (2, 2, 50), (3, 1, 11)] {
                publish(&mut genuine, source, at, 1);
                publish(&mut forged, source, at, 1);
                put(&mut mirror, &copy(&genuine, n, 0));
            }
            publish(&mut genuine, 2, 51, 1);
            match forged_of {
                Some((source, at)) => drop(publish(&mut forged, source, at, 1)),
                None => drop(forged.end(Now::default()).unwrap()),
            }
            assert_eq!(put(&mut mirror, &copy(&forged, 4, 0)), Put::Taken);
            assert_eq!(mirror.mirrored().ended, forged_of.is_none());
            replace(&mut mirror, &copy(&genuine, 4, 0));
            assert_eq!(positions(&mirror), [(1, 11), (2, 51)]);
            assert!(!mirror.mirrored().ended);
            // A datagram before the last one takes no position back.
            replace(&mut mirror, &copy(&genuine, 2, 0));
            assert_eq!(positions(&mirror), [(1, 11), (2, 51)]);
        }
    }

    #[test]
    fn continued_epoch_is_cut_at_its_place_with_sources() {
        let (mut mirror, memory) = mirror_of(&offer(5, 1, 1));
        let mut before = publisher(5, 1, 1);
        for (n, source, at) in [(1, 1, 10), (2, 2, 50), (3, 1, 11), (4, 3, 70), (5, 1, 12)] {
            publish(&mut before, source, at, 2);
            put(&mut mirror, &copy(&before, n, 0));
        }
        let positions = |mirror: &Mirror| {
            let mut all: Vec<_> = mirror.positions().map(|(s, at)| (s.0, at.0)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(positions(&mirror), [(1, 12), (2, 50), (3, 70)]);
        let at = Continued {
            epoch: Epoch(5),
            last: Sequence(3),
            next_record: RecordNumber(7),
            complete: false,
        };
        let lineage = Lineage::from(vec![at]);
        mirror.continue_epoch(Epoch(8), lineage.clone(), at);
        assert_eq!(positions(&mirror), [(1, 11), (2, 50)]);
        let mirrored = mirror.mirrored();
        assert_eq!((mirrored.epoch, mirrored.held), (Epoch(8), range(1, 3)));
        assert_eq!(mirrored.next_record, RecordNumber(7));
        assert_eq!(put(&mut mirror, &copy(&before, 4, 0)), Put::Refused);
        let mut after = publisher(8, 4, 7);
        publish(&mut after, 1, 12, 1);
        assert_eq!(put(&mut mirror, &copy(&after, 4, 0)), Put::Taken);
        let reader = RingReader::attach(memory).unwrap();
        assert_eq!(reader.verify(), Ok(range(1, 4)));
        // Not of this line: all begins anew.
        mirror.begin_anew(Epoch(20), Lineage::default(), Sequence(1));
        assert_eq!(positions(&mirror), []);
        assert_eq!(mirror.mirrored().held, None);
        let mut other = publisher(20, 1, 1);
        publish(&mut other, 1, 1, 1);
        assert_eq!(put(&mut mirror, &copy(&other, 1, 0)), Put::BeganAnew);
        assert_eq!(mirror.mirrored().holes, 0);
    }

    #[test]
    fn end_ends_mirrored_epoch_and_no_successor() {
        let at = |last| Continued {
            epoch: Epoch(5),
            last: Sequence(last),
            next_record: RecordNumber(2),
            complete: false,
        };
        let mut before = publisher(5, 1, 1);
        publish(&mut before, 1, 1, 1);
        before.end(Now::default()).unwrap();
        let put_both = |mirror: &mut Mirror| {
            put(mirror, &copy(&before, 1, 0));
            assert!(!mirror.mirrored().ended);
            put(mirror, &copy(&before, 2, 0));
        };
        // Continued behind the END, or instead of it: before anything of the new epoch is there.
        for last in [2, 1] {
            let (mut mirror, _) = mirror_of(&offer(5, 1, 1));
            put_both(&mut mirror);
            assert!(mirror.mirrored().ended);
            mirror.continue_epoch(Epoch(8), Lineage::from(vec![at(last)]), at(last));
            assert!(!mirror.mirrored().ended, "continued behind {last}");
            let mut after = publisher(8, last + 1, 2);
            after.end(Now::default()).unwrap();
            put(&mut mirror, &copy(&after, last + 1, 0));
            assert!(mirror.mirrored().ended, "by its own END");
        }
        // In the history of one that was continued before it was mirrored.
        let mut offer = offer(8, 1, 1);
        offer.continues = Lineage::from(vec![at(2)]);
        let (mut mirror, _) = mirror_of(&offer);
        put_both(&mut mirror);
        assert!(!mirror.mirrored().ended);
        let Promotion { opened, .. } = mirror.promote(Epoch(9), true).ok().unwrap();
        let expected = StreamEvent::EpochOpened {
            reason: EpochReason::Promotion,
            previous: Epoch(8),
            previous_last: Sequence(2),
        };
        assert_eq!(opened, expected);
    }

    #[test]
    fn mirror_cut_before_oldest_slot_is_empty() {
        for last in [6, 14] {
            let (mut mirror, memory) = mirror_of(&offer(5, 1, 1));
            let mut before = publisher(5, 1, 1);
            for n in 1..=30 {
                publish(&mut before, 1, n, 1);
                put(&mut mirror, &copy(&before, n, 0));
            }
            assert_eq!(mirror.mirrored().held, range(15, 30));
            let at = Continued {
                epoch: Epoch(5),
                last: Sequence(last),
                next_record: RecordNumber(last + 1),
                complete: false,
            };
            mirror.continue_epoch(Epoch(8), Lineage::from(vec![at]), at);
            let mirrored = mirror.mirrored();
            assert_eq!((mirrored.held, mirrored.last), (None, Sequence(last)));
            assert_eq!(mirrored.next_record, RecordNumber(last + 1));
            assert_eq!(mirror.positions().count(), 0);
            let reader = RingReader::attach(memory).unwrap();
            let next = reader.next_record_after(Sequence(last));
            assert_eq!(next, Some(RecordNumber(last + 1)));
        }
    }

    #[test]
    fn mirror_slot_is_replaced_by_publisher_copy() {
        let (mut mirror, memory) = mirror_of(&offer(5, 1, 1));
        let (mut own, mut twin) = (publisher(5, 1, 1), publisher(5, 1, 1));
        publish(&mut own, 1, 1, 2);
        publish(&mut twin, 1, 1, 3);
        put(&mut mirror, &copy(&twin, 1, 0));
        let mut aligned = AlignedCopy::default();
        let bytes = copy(&own, 1, 0x80);
        mirror.replace(&Datagram::parse(aligned.of(&bytes)).unwrap());
        assert_eq!(
            mirror.ring.slot(Sequence(1)),
            own.slot(Sequence(1)),
            "without the relay byte"
        );
        assert_eq!(mirror.mirrored().next_record, RecordNumber(3));
        let reader = RingReader::attach(memory).unwrap();
        assert_eq!(reader.verify(), Ok(range(1, 1)));
    }

    #[test]
    fn mirror_refuses_foreign_heartbeat_and_oversized_datagram() {
        let (mut mirror, _) = mirror_of(&offer(5, 1, 1));
        let mut of_epoch_4 = publisher(4, 1, 1);
        publish(&mut of_epoch_4, 1, 1, 1);
        assert_eq!(put(&mut mirror, &copy(&of_epoch_4, 1, 0)), Put::Refused);
        let mut of_epoch_5 = publisher(5, 1, 1);
        publish(&mut of_epoch_5, 1, 1, 1);
        let bytes = copy(&of_epoch_5, 1, 0);
        let mut of_channel_4 = header(&bytes);
        of_channel_4.channel = ChannelId(4);
        let mut heartbeat = header(&bytes);
        heartbeat.kind = Kind::Heartbeat;
        let mut too_long = header(&bytes);
        too_long.payload_len = 1024 - 64 + 1;
        for wrong in [of_channel_4, heartbeat, too_long] {
            let mut bytes = wrong.to_bytes(0).to_vec();
            bytes.resize(wrong.datagram_len(), 0);
            assert_eq!(put(&mut mirror, &bytes), Put::Refused, "{wrong:?}");
        }
        assert_eq!(mirror.mirrored().held, None);
        assert_eq!(put(&mut mirror, &bytes), Put::Taken);
        let mut offer = offer(5, 1, 1);
        assert!(mirror.fits(&offer));
        offer.channel = ChannelId(4);
        assert!(!mirror.fits(&offer));
        offer.channel = ChannelId(3);
        offer.slot_len = 1472;
        assert!(!mirror.fits(&offer));
        offer.slots = 3;
        let error = Mirror::geometry_of(&offer).unwrap_err().to_string();
        assert!(error.contains("slots is 3"), "{error}");
        let memory = Arc::new(HeapMemory::new(geometry()));
        assert!(Mirror::create(memory, &offer, HOST).is_err());
    }
}
