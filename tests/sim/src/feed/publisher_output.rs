//! Checks on a publisher's output: slots never change, every copy equals the sealed datagram,
//! repairs answer a NACK, and heartbeats are sent when announced and never claim more than was
//! sent.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use tickcast_reliability::control::{BODY_LEN_MAX_TO_SUBSCRIBER, Message};
use tickcast_reliability::publish::HeartbeatConfig;
use tickcast_reliability::serve::PeerId;
use tickcast_reliability::types::{ChannelId, Nanos, Sequence, SequenceRange};
use tickcast_reliability::wire::{Datagram, Heartbeat, Kind, RELAY_OFFSET, relay_flags};

type Checked = Result<(), String>;

/// Tolerance for a late timer: the world wakes no actor twice within a microsecond.
const SLACK: Nanos = Nanos(2_000);
/// Maximum number of multicast repairs of one sequence.
const MULTICASTS_MAX: u32 = 3;
/// Number of sealed datagrams whose hashes are kept.
const SEALED_MAX: usize = 4096;

/// The output of one fan-out so far.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The last sequence sent or skipped.
    sent: Sequence,
    /// The highest floor of the ring that was sent.
    floor: u64,
    /// Deadline of the next datagram.
    due: Nanos,
    /// Time at which the last slot was sent, and the number of heartbeats since then.
    slot_at: Nanos,
    heartbeats: u64,
}

/// Check on a publisher's output on one channel.
#[derive(Debug)]
pub struct OutputCheck {
    heartbeats: HeartbeatConfig,
    fan_outs: Vec<Seen>,
    /// Hashes of sealed datagrams; the last one belongs to `sealed`.
    hashes: VecDeque<u64>,
    sealed: Sequence,
    /// Runs of sequences that each peer requested, by their first sequence.
    asked: BTreeMap<PeerId, BTreeMap<u64, u64>>,
    /// Number of multicast repairs of each sequence.
    multicasts: BTreeMap<u64, u32>,
}

fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl OutputCheck {
    /// Returns the check of a publisher whose first sequence is `first`, with this many fan-outs
    /// and heartbeats at these intervals.
    #[must_use]
    pub fn new(first: Sequence, fan_outs: u8, heartbeats: HeartbeatConfig) -> Self {
        let seen = Seen {
            sent: first.previous(),
            floor: first.0,
            due: Nanos::MAX,
            slot_at: Nanos::ZERO,
            heartbeats: 0,
        };
        Self {
            heartbeats,
            fan_outs: vec![seen; fan_outs.into()],
            hashes: VecDeque::new(),
            sealed: first.previous(),
            asked: BTreeMap::new(),
            multicasts: BTreeMap::new(),
        }
    }

    /// Continues in a ring with these datagrams, which another publisher sealed and sent. Without
    /// any, this equals [`OutputCheck::new`].
    #[must_use]
    pub fn going_on<'a>(self, held: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut it = self;
        for bytes in held {
            it.sealed(bytes);
            for seen in &mut it.fan_outs {
                seen.sent = it.sealed;
            }
        }
        it
    }

    /// Makes this fan-out continue after `sent`, the last sequence sent before.
    pub fn goes_on_behind(&mut self, fan_out: usize, sent: Sequence) {
        self.fan_outs[fan_out].sent = sent;
    }

    /// Records that the next datagram was sealed.
    pub fn sealed(&mut self, bytes: &[u8]) {
        self.sealed = self.sealed.next();
        self.hashes.push_back(hash_of(bytes));
        if self.hashes.len() > SEALED_MAX {
            self.hashes.pop_front();
        }
    }

    /// Records the sequences that a peer requests.
    pub fn asked(&mut self, peer: PeerId, message: &Message<'_>) {
        let Message::Nack { ranges, .. } = message else {
            return;
        };
        let of = self.asked.entry(peer).or_default();
        for range in ranges {
            let (mut first, mut last) = (range.first.0, range.last.0);
            // Runs are disjoint: the runs that this one overlaps are merged into it.
            while let Some((&f, &l)) = of.range(..=last).next_back().filter(|(_, l)| **l >= first) {
                (first, last) = (first.min(f), last.max(l));
                of.remove(&f);
            }
            of.insert(first, last);
        }
    }

    /// Records that a fan-out was torn down; the sequences that it skipped count as sent.
    pub fn skipped(&mut self, fan_out: usize, skipped: Option<SequenceRange>, now: Nanos) {
        // The fan-out restarts, and so do its heartbeat deadlines.
        let due = now.after(Nanos::from_us(self.heartbeats.first_us));
        let seen = &mut self.fan_outs[fan_out];
        seen.due = seen.due.max(due);
        (seen.slot_at, seen.heartbeats) = (now, 0);
        if let Some(range) = skipped {
            self.fan_outs[fan_out].sent = range.last;
        }
    }

    /// Checks a slot that a fan-out sends.
    ///
    /// # Errors
    /// A datagram that differs from the sealed one, is out of order, or claims a lower floor.
    pub fn slot(&mut self, fan_out: usize, bytes: &[u8], now: Nanos) -> Checked {
        let sequence = self.as_sealed(bytes, 0)?;
        let due = now.after(Nanos::from_us(self.heartbeats.first_us));
        self.sent(fan_out, bytes, due)?;
        let seen = &mut self.fan_outs[fan_out];
        if sequence != seen.sent.next() {
            let sent = seen.sent;
            return Err(format!("sequence {sequence} is sent after {sent}"));
        }
        seen.sent = sequence;
        (seen.slot_at, seen.heartbeats) = (now, 0);
        Ok(())
    }

    /// Checks a heartbeat that a fan-out sends.
    ///
    /// # Errors
    /// - A heartbeat that can't be parsed.
    /// - A heartbeat that names another sequence than the last one sent.
    /// - A heartbeat that claims a lower floor.
    /// - More heartbeats than are due.
    pub fn heartbeat(&mut self, fan_out: usize, bytes: &[u8], now: Nanos) -> Checked {
        let datagram = Datagram::parse(bytes).map_err(|e| e.to_string())?;
        let body = Heartbeat::parse(datagram.payload()).ok_or("a heartbeat that can't be read")?;
        let due = now.after(Nanos::from_us(body.next_interval_us.into()));
        self.sent(fan_out, bytes, due)?;
        let (said, sent) = (datagram.header().sequence, self.fan_outs[fan_out].sent);
        if said != sent {
            return Err(format!("a heartbeat says {said}, {sent} was sent"));
        }
        let seen = &mut self.fan_outs[fan_out];
        seen.heartbeats += 1;
        let (silent, count) = (now.since(seen.slot_at), seen.heartbeats);
        let most = self.heartbeats_within(silent);
        if count > most {
            return Err(format!(
                "{count} heartbeats within {silent} after the last datagram, {most} are due"
            ));
        }
        Ok(())
    }

    /// Returns the maximum number of heartbeats in this time after a datagram: those at doubling
    /// intervals plus the ambient ones. Two more, one of each kind, may have been due before a
    /// stalled fan-out sent the datagram.
    fn heartbeats_within(&self, silent: Nanos) -> u64 {
        let of = self.heartbeats;
        let (mut count, mut interval_us) = (3 + silent.0 / 1_000 / of.ambient_us, of.first_us);
        let mut left_us = silent.0.div_ceil(1_000);
        if left_us >= interval_us {
            (count, left_us) = (count + 1, left_us - interval_us);
        }
        while left_us >= interval_us {
            left_us -= interval_us;
            count += 1;
            interval_us = interval_us.saturating_mul(2).min(of.idle_us);
        }
        count
    }

    /// Counts a multicast repair of a sequence.
    ///
    /// # Errors
    /// A sequence that was repaired by multicast more than three times.
    pub fn multicast_again(&mut self, sequence: Sequence) -> Checked {
        let times = self.multicasts.entry(sequence.0).or_default();
        *times += 1;
        if *times > MULTICASTS_MAX {
            return Err(format!(
                "sequence {sequence} is repaired by {times} multicasts"
            ));
        }
        Ok(())
    }

    /// Checks that no fan-out is late whose transport accepts datagrams, at the end of a turn.
    ///
    /// # Errors
    /// A heartbeat that was not sent by its deadline.
    pub fn on_time(&self, stalled: &[bool], now: Nanos) -> Checked {
        for (seen, _) in (self.fan_outs.iter().zip(stalled)).filter(|(_, stalled)| !**stalled) {
            if seen.due.after(SLACK) < now {
                return Err(format!("a heartbeat was due at {}, it is {now}", seen.due));
            }
        }
        Ok(())
    }

    /// Checks repairs on this channel, sent to a peer or to the group. Returns the sequences of
    /// their datagrams.
    ///
    /// # Errors
    /// A sequence that was not requested, or a datagram that differs from the sealed one.
    pub fn answered(
        &self,
        channel: ChannelId,
        peer: Option<PeerId>,
        bytes: &[u8],
    ) -> Result<Vec<Sequence>, String> {
        let mut sequences = Vec::new();
        let Some(peer) = peer else {
            let sequence = self.as_sealed(bytes, relay_flags::RETRANSMITTED)?;
            if !self.asked.values().any(|of| has(of, sequence)) {
                return Err(format!("sequence {sequence} is repaired for nobody"));
            }
            return Ok(vec![sequence]);
        };
        let mut frames = bytes;
        while let Some((of, message, taken)) =
            Message::read(frames, BODY_LEN_MAX_TO_SUBSCRIBER).map_err(|e| e.to_string())?
        {
            if let Message::Datagram(bytes) = message
                && of == channel
            {
                let sequence = self.as_sealed(bytes, relay_flags::RETRANSMITTED)?;
                if !self.asked.get(&peer).is_some_and(|of| has(of, sequence)) {
                    return Err(format!(
                        "{peer:?} gets {sequence}, which it never asked for"
                    ));
                }
                sequences.push(sequence);
            }
            frames = &frames[taken..];
        }
        Ok(sequences)
    }

    /// Checks that a slot of the ring is unchanged after it was read.
    ///
    /// # Errors
    /// A slot that differs from the sealed datagram.
    pub fn unchanged(&self, slot: &[u8]) -> Checked {
        self.as_sealed(slot, 0).map(|_| ())
    }

    /// Checks that these bytes equal the datagram sealed under their sequence, apart from the relay
    /// byte.
    fn as_sealed(&self, bytes: &[u8], relay: u8) -> Result<Sequence, String> {
        let datagram = Datagram::parse(bytes).map_err(|e| e.to_string())?;
        let header = datagram.header();
        let sequence = header.sequence;
        if header.relay != relay {
            let found = header.relay;
            return Err(format!(
                "sequence {sequence} has relay byte {found}, not {relay}"
            ));
        }
        let mut plain = datagram.bytes().to_vec();
        plain[RELAY_OFFSET] = 0;
        let back = self.sealed.since(sequence);
        let at = (self.hashes.len() as u64).checked_sub(back + 1);
        let known = at.and_then(|at| self.hashes.get(at as usize));
        if known.is_some_and(|known| *known != hash_of(&plain)) || sequence > self.sealed {
            return Err(format!("sequence {sequence} is not what was sealed"));
        }
        Ok(sequence)
    }

    fn sent(&mut self, fan_out: usize, bytes: &[u8], due: Nanos) -> Checked {
        let datagram = Datagram::parse(bytes).map_err(|e| e.to_string())?;
        let header = datagram.header();
        let seen = &mut self.fan_outs[fan_out];
        seen.due = due;
        let floor = header.sequence.0.wrapping_add(1) - u64::from(header.retained);
        if header.kind == Kind::Heartbeat && header.sequence == Sequence::NONE {
            return Ok(());
        }
        if floor < seen.floor {
            return Err(format!(
                "{:?} {} says that the ring holds {floor}, before it was {}",
                header.kind, header.sequence, seen.floor
            ));
        }
        seen.floor = floor;
        Ok(())
    }
}

fn has(runs: &BTreeMap<u64, u64>, sequence: Sequence) -> bool {
    let below = runs.range(..=sequence.0).next_back();
    below.is_some_and(|(_, last)| *last >= sequence.0)
}
