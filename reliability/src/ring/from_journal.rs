//! A ring's state in a journal: its numbers, and the headers of unsent datagrams. That is all the
//! writer's decisions depend on; the records themselves decide nothing.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{HeapMemory, RingWriter, slot, words_of};
use crate::ring::layout::{FAN_OUTS_MAX, Geometry, RingIdentity, offset};
use crate::types::{ChannelId, ConfigHash, Epoch, RecordNumber, Sequence};
use crate::wire::authentication::Key;
use crate::wire::{HEADER_LEN, SEQUENCE_OFFSET};

/// Maximum size of a rebuilt ring, because a damaged record may ask for any.
const BYTES_MAX: usize = 4 << 30;

/// The recorded state of a ring.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RingState {
    slot_len: u32,
    slots: u64,
    channel: ChannelId,
    epoch: Epoch,
    config_hash: ConfigHash,
    fan_outs: u8,
    first_sequence: Sequence,
    first_record: RecordNumber,
    sealed: Sequence,
    oldest: Sequence,
    next_record: RecordNumber,
    /// Whether the channel is authenticated. Its keys are in no record, and no decision depends on them.
    is_authenticated: bool,
    /// The headers of the last sequences sealed.
    headers: Vec<Vec<u8>>,
}

impl RingWriter {
    /// Returns the ring's state, with the headers from `from` on.
    pub(crate) fn state(&self, from: Sequence) -> RingState {
        let (identity, geometry) = (&self.identity, self.geometry());
        let held = from.max(self.oldest).0..=self.sealed.0;
        let headers = held.filter_map(|sequence| self.slot(Sequence(sequence))?.get(..HEADER_LEN));
        RingState {
            slot_len: geometry.slot_len() as u32,
            slots: geometry.slots(),
            channel: identity.channel,
            epoch: identity.epoch,
            config_hash: identity.config_hash,
            fan_outs: identity.fan_outs,
            first_sequence: identity.first_sequence,
            first_record: identity.first_record,
            sealed: self.sealed,
            oldest: self.oldest,
            next_record: self.next_record,
            is_authenticated: self.tagger.is_some(),
            headers: headers.map(<[u8]>::to_vec).collect(),
        }
    }

    /// Returns a ring on the heap in this state; `None` when the state is impossible.
    pub(crate) fn rebuild(state: &RingState) -> Option<Self> {
        let geometry = Geometry::new(state.slot_len, state.slots).ok()?;
        let possible = geometry.bytes() <= BYTES_MAX
            && usize::from(state.fan_outs) <= FAN_OUTS_MAX
            && state.headers.iter().all(|it| it.len() == HEADER_LEN);
        if !possible {
            return None;
        }
        let identity = RingIdentity {
            channel: state.channel,
            epoch: state.epoch,
            config_hash: state.config_hash,
            boot_id: [0; 16],
            fan_outs: state.fan_outs,
            first_sequence: state.first_sequence,
            first_record: state.first_record,
        };
        let memory = Arc::new(HeapMemory::new(geometry));
        let mut ring = Self::create(memory, geometry, identity).ok()?;
        (ring.sealed, ring.oldest, ring.next_record) =
            (state.sealed, state.oldest, state.next_record);
        for (offset, value) in [
            (offset::SEALED, state.sealed.0),
            (offset::OLDEST, state.oldest.0),
            (offset::NEXT_RECORD, state.next_record.0),
        ] {
            ring.words.store(offset, value);
        }
        if state.is_authenticated {
            ring.authenticate(Key::REDACTED, u64::MAX);
        }
        for header in &state.headers {
            let sequence = header[SEQUENCE_OFFSET..].first_chunk()?;
            let sequence = Sequence(u64::from_le_bytes(*sequence));
            let slot = ring.words.slot_mut(sequence);
            slot::put_around(slot, words_of(header));
            slot::seal(slot, sequence.0);
        }
        Some(ring)
    }
}
