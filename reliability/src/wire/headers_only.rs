//! Data datagrams without their records. A core's decisions depend only on the header and on whether the
//! records are readable. So only the header is kept, and a replay substitutes records of the same
//! number and length.

use crate::record::{RecordHeader, record_len};
use crate::wire::{Datagram, HEADER_LEN, Header, Kind};

/// Returns the bytes to keep of a waiting datagram: its header if that suffices, else all of it.
pub fn kept(bytes: &[u8]) -> &[u8] {
    match Datagram::parse(bytes) {
        Ok(datagram) if is_enough(&datagram) && datagram.records().is_ok() => &bytes[..HEADER_LEN],
        _ => bytes,
    }
}

/// Returns whether the header suffices, judging by the kind.
#[inline]
pub const fn is_enough(datagram: &Datagram<'_>) -> bool {
    matches!(datagram.header().kind, Kind::Data)
}

/// Returns the fields of a lone header; `None` when it is invalid.
#[must_use]
pub fn header_of(bytes: &[u8; HEADER_LEN]) -> Option<Header> {
    let mut head = *bytes;
    let payload_len = u16::from_le_bytes([head[54], head[55]]);
    head[54..56].fill(0);
    let header_len = u16::from(head[58]) * 8;
    // Neither payload nor extensions are here.
    head[58] = head[58].min((HEADER_LEN / 8) as u8);
    let header = *Datagram::parse(&head).ok()?.header();
    Some(Header {
        payload_len,
        header_len,
        ..header
    })
}

/// Rebuilds a datagram from its kept bytes, with substitute records.
pub fn whole(kept: &[u8]) -> Vec<u8> {
    whole_as(kept, true)
}

/// Rebuilds a datagram from its kept bytes, with readable or unreadable substitute records.
pub fn whole_as(kept: &[u8], readable: bool) -> Vec<u8> {
    let mut bytes = kept.to_vec();
    let Some(head) = kept.first_chunk::<HEADER_LEN>() else {
        return bytes;
    };
    let word = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let (count, payload) = (usize::from(word(6)), usize::from(word(54)));
    let header = usize::from(head[58]) * 8;
    if kept.len() >= header + payload {
        return bytes;
    }
    bytes.resize(header + payload, 0);
    if !readable {
        return bytes;
    }
    let mut at = header;
    for rtype in records_of(count, payload).unwrap_or_default() {
        let len = record_len(rtype).unwrap_or_default();
        bytes[at] = (len / RecordHeader::LENGTH_MULTIPLIER) as u8;
        bytes[at + 1] = rtype;
        at += len;
    }
    bytes
}

/// Returns types for `count` records with `bytes` bytes in all; `None` when that is impossible.
pub fn records_of(count: usize, bytes: usize) -> Option<Vec<u8>> {
    // All lengths are multiples of 8. Without this check, the search for another length takes long.
    if !bytes.is_multiple_of(8) {
        return None;
    }
    let mut kinds: Vec<(usize, u8)> = (0..=u8::MAX)
        .filter_map(|rtype| Some((record_len(rtype)?, rtype)))
        .collect();
    kinds.sort_unstable_by_key(|kind| std::cmp::Reverse(*kind));
    kinds.dedup_by_key(|(len, _)| *len);
    if let Some((_, rtype)) = (kinds.iter()).find(|(len, _)| len * count == bytes && count > 0) {
        return Some(vec![*rtype; count]);
    }
    let mut chosen = Vec::with_capacity(count);
    fill(&kinds, count, bytes, &mut chosen).then_some(chosen)
}

/// Chooses the remaining records, the longest types first.
fn fill(kinds: &[(usize, u8)], count: usize, bytes: usize, chosen: &mut Vec<u8>) -> bool {
    if count == 0 {
        return bytes == 0;
    }
    let (Some((longest, rtype)), Some((shortest, _))) = (kinds.first(), kinds.last()) else {
        return false;
    };
    if bytes < count * shortest || bytes > count * longest {
        return false;
    }
    let before = chosen.len();
    for times in (0..=count.min(bytes / longest)).rev() {
        chosen.truncate(before);
        chosen.resize(before + times, *rtype);
        if fill(&kinds[1..], count - times, bytes - times * longest, chosen) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTHS: [usize; 7] = [40, 48, 56, 80, 112, 176, 520];

    proptest! {
        #[test]
        fn records_that_can_be_are_found_again_by_number_and_length(
            lengths in proptest::collection::vec(0usize..7, 0..26),
        ) {
            let bytes = lengths.iter().map(|it| LENGTHS[*it]).sum();
            let found = records_of(lengths.len(), bytes).unwrap();
            prop_assert_eq!(found.len(), lengths.len());
            let sum: usize = found.iter().map(|it| record_len(*it).unwrap()).sum();
            prop_assert_eq!(sum, bytes);
        }
    }

    #[test]
    fn record_count_without_matching_length_is_refused() {
        assert_eq!(records_of(1, 41), None);
        assert_eq!(records_of(2, 48), None);
        assert_eq!(records_of(0, 0), Some(Vec::new()));
    }
}
