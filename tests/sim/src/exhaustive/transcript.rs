//! The datagrams and messages of a small world, each stored once under a number. Messages that
//! differ only in values that merely measure have the same number.

use std::collections::{HashMap, HashSet};

use tickcast_reliability::control::Message;
use tickcast_reliability::types::{ChannelId, Epoch, Sequence};
use tickcast_reliability::wire::Datagram;

use super::{BEGIN, ForgedDatagram};
use crate::faults::forged::forged_datagram;
use crate::faults::plan::CHANNEL;
use crate::truth::Truth;

/// The identity of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The datagram's epoch.
    pub epoch: u64,
    /// The datagram's kind: heartbeats are 3.
    pub kind: u8,
    /// The datagram's sequence.
    pub sequence: u64,
    /// The relay byte.
    pub relay: u8,
    /// A hash of all bytes.
    pub rest: u64,
}

impl Identity {
    /// Returns the identity of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let rest = xxhash_rust::xxh3::xxh3_64(bytes);
        let Ok(datagram) = Datagram::parse(bytes) else {
            return Self {
                epoch: 0,
                kind: 0,
                sequence: 0,
                relay: 0,
                rest,
            };
        };
        let header = datagram.header();
        Self {
            epoch: header.epoch.0,
            kind: header.kind as u8,
            sequence: header.sequence.0,
            relay: header.relay,
            rest,
        }
    }

    /// Returns whether the datagram is a heartbeat.
    #[must_use]
    pub const fn is_heartbeat(&self) -> bool {
        self.kind == 3
    }
}

/// The number of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PacketId(pub u32);

/// The number of a message of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId(pub u32);

impl FrameId {
    /// No message: the publisher closed the connection.
    pub const CLOSED: Self = Self(0);
}

/// The number of a state of the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TruthId(pub u32);

struct Packet {
    identity: Identity,
    words: Vec<u64>,
    len: usize,
}

#[derive(Default)]
struct Frame {
    bytes: Vec<u8>,
    is_join: bool,
    is_welcome: bool,
}

/// The datagrams, messages and truths of a small world.
pub struct Said {
    packets: Vec<Packet>,
    packet_ids: HashMap<Identity, PacketId>,
    forged: HashSet<PacketId>,
    frames: Vec<Frame>,
    frame_ids: HashMap<String, FrameId>,
    truths: Vec<(Vec<usize>, Truth)>,
    truth_ids: HashMap<Vec<usize>, TruthId>,
}

/// Larger than any frame in a small world, in bytes.
const FRAME_MAX: usize = 1 << 20;

impl Default for Said {
    fn default() -> Self {
        Self {
            packets: Vec::new(),
            packet_ids: HashMap::new(),
            forged: HashSet::new(),
            frames: vec![Frame::default()],
            frame_ids: HashMap::new(),
            truths: Vec::new(),
            truth_ids: HashMap::new(),
        }
    }
}

impl Said {
    /// Returns the number of this datagram.
    pub fn packet(&mut self, bytes: &[u8]) -> PacketId {
        let identity = Identity::of(bytes);
        *self.packet_ids.entry(identity).or_insert_with(|| {
            let words = bytes.chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_ne_bytes(word)
            });
            self.packets.push(Packet {
                identity,
                words: words.collect(),
                len: bytes.len(),
            });
            PacketId((self.packets.len() - 1) as u32)
        })
    }

    /// Returns the number of the datagram that an impostor forges in this state of the truth. `None` if it
    /// would precede the first sequence.
    pub fn forged(&mut self, truth: TruthId, forged: ForgedDatagram) -> Option<PacketId> {
        let epoch = Epoch(self.published(truth).len() as u64);
        let ring = self.truth(truth).of(CHANNEL, epoch).first()?;
        let newest = ring.last();
        let sequence = Sequence(newest.0.checked_add_signed(forged.ahead)?);
        if sequence == Sequence::NONE {
            return None;
        }
        // The record follows those published, because one that does not follow is dropped in its turn.
        let record = ring.record_at(sequence);
        let (bytes, _) = forged_datagram(forged.kind, epoch, (sequence, record), BEGIN, 0);
        let id = self.packet(&bytes);
        self.forged.insert(id);
        Some(id)
    }

    /// Returns whether an impostor forged the datagram.
    #[must_use]
    pub fn is_forged(&self, id: PacketId) -> bool {
        self.forged.contains(&id)
    }

    /// Returns the identity of a datagram.
    #[must_use]
    pub fn identity(&self, id: PacketId) -> Identity {
        self.packets[id.0 as usize].identity
    }

    /// Returns the bytes of a datagram, at an aligned address.
    #[must_use]
    pub fn packet_bytes(&self, id: PacketId) -> &[u8] {
        let packet = &self.packets[id.0 as usize];
        &tickcast_reliability::record::words_as_bytes(&packet.words)[..packet.len]
    }

    /// Passes the numbers of these messages to `each`, in order, after `change` has modified them.
    ///
    /// # Errors
    /// A message that is incomplete or invalid.
    pub fn frames(
        &mut self,
        mut bytes: &[u8],
        mut change: impl FnMut(&mut Message<'_>),
        mut each: impl FnMut(FrameId),
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            let (channel, mut message, taken) = read(bytes)?;
            change(&mut message);
            let (is_join, is_welcome) = (
                matches!(message, Message::Join(_)),
                matches!(message, Message::Welcome(_)),
            );
            let id = *self.frame_ids.entry(text(&message)).or_insert_with(|| {
                let mut bytes = Vec::new();
                message.write(channel, &mut bytes);
                self.frames.push(Frame {
                    bytes,
                    is_join,
                    is_welcome,
                });
                FrameId((self.frames.len() - 1) as u32)
            });
            each(id);
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Returns the content of a message.
    ///
    /// # Errors
    /// No error for a message that [`Said::frames`] accepted.
    pub fn message(&self, id: FrameId) -> Result<(ChannelId, Message<'_>), String> {
        let (channel, message, _) = read(&self.frames[id.0 as usize].bytes)?;
        Ok((channel, message))
    }

    /// Returns whether the message is a JOIN.
    #[must_use]
    pub fn is_join(&self, id: FrameId) -> bool {
        self.frames[id.0 as usize].is_join
    }

    /// Returns whether the message is a WELCOME.
    #[must_use]
    pub fn is_welcome(&self, id: FrameId) -> bool {
        self.frames[id.0 as usize].is_welcome
    }

    /// Returns the number of the truth after this many datagrams of each epoch were published, which `make`
    /// makes if it has no number.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn truth_after(
        &mut self,
        published: &[usize],
        make: impl FnOnce() -> Result<Truth, String>,
    ) -> Result<TruthId, String> {
        if let Some(id) = self.truth_ids.get(published) {
            return Ok(*id);
        }
        let id = TruthId(self.truths.len() as u32);
        self.truths.push((published.to_vec(), make()?));
        self.truth_ids.insert(published.to_vec(), id);
        Ok(id)
    }

    /// Returns the truth of this number.
    #[must_use]
    pub fn truth(&self, id: TruthId) -> &Truth {
        &self.truths[id.0 as usize].1
    }

    /// Returns the number of datagrams published in each epoch of this truth.
    #[must_use]
    pub fn published(&self, id: TruthId) -> &[usize] {
        &self.truths[id.0 as usize].0
    }
}

fn read(bytes: &[u8]) -> Result<(ChannelId, Message<'_>, usize), String> {
    let read = Message::read(bytes, FRAME_MAX).map_err(|e| e.to_string())?;
    read.ok_or_else(|| "a message that is not whole".into())
}

/// Returns a message as text, without the publisher's clock in STATUS, which only measures.
fn text(message: &Message<'_>) -> String {
    match message {
        Message::Datagram(bytes) => format!("{:?}", Identity::of(bytes)),
        Message::Progress(p) => {
            let (epoch, sequence, heard) = (p.epoch, p.sequence, p.heard);
            let counted = (p.lost_records, p.read_bytes);
            format!(
                "PROGRESS {epoch} {sequence} {heard} {counted:?} {}",
                p.sent_at
            )
        }
        Message::Status(s) => {
            let (epoch, newest, oldest, ended) = (s.epoch, s.newest, s.oldest, s.ended);
            let (next, echo) = (s.next_record, s.echo);
            format!("STATUS {epoch} {newest} {oldest} {next} {ended} {echo}")
        }
        message => format!("{message:?}"),
    }
}
