//! The NACK ranges in the frames that a subscriber sent, as far as a journal keeps those frames.

use tickcast_reliability::control::{BODY_LEN_MAX_TO_PUBLISHER, Message, read_cut_nack};
use tickcast_reliability::types::{ChannelId, Epoch, SequenceRange};

/// The NACKs parsed from one `Sent` entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedRanges {
    /// Channel, epoch and ranges of each NACK.
    pub nacks: Vec<(ChannelId, Epoch, Vec<SequenceRange>)>,
    /// Whether the entry lacks some of the sent bytes, which may have held more NACKs.
    pub is_cut: bool,
}

impl RequestedRanges {
    /// Parses the frames of an entry. Stops at the first frame that is cut off or invalid.
    #[must_use]
    pub fn of(mut frames: &[u8]) -> Self {
        // A subscriber that sends nothing makes no entry, so an empty one lost its frames.
        let mut asked = Self {
            nacks: Vec::new(),
            is_cut: frames.is_empty(),
        };
        while !frames.is_empty() {
            let Ok(Some((channel, message, len))) =
                Message::read(frames, BODY_LEN_MAX_TO_PUBLISHER)
            else {
                asked.is_cut = true;
                asked.nacks.extend(read_cut_nack(frames));
                break;
            };
            if let Message::Nack { epoch, ranges, .. } = message {
                asked.nacks.push((channel, epoch, ranges));
            }
            frames = &frames[len..];
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickcast_reliability::control::{NackClass, write_nack};
    use tickcast_reliability::types::Sequence;

    #[test]
    fn cut_nack_yields_its_complete_ranges() {
        let range = |nth: u64| SequenceRange::new(Sequence(4 * nth), Sequence(4 * nth + 1));
        let ranges: Vec<_> = (1..=3).filter_map(range).collect();
        let (channel, epoch) = (ChannelId(7), Epoch(100));
        let mut frames = Vec::new();
        Message::Leave.write(channel, &mut frames);
        let before = frames.len();
        write_nack(channel, epoch, NackClass::Repair, &ranges, &mut frames);
        for len in 0..=frames.len() {
            let asked = RequestedRanges::of(&frames[..len]);
            let whole = len.saturating_sub(before + 24) / 16;
            let read: Vec<_> = asked.nacks.iter().flat_map(|it| it.2.clone()).collect();
            assert_eq!(read, ranges[..whole], "of {len} bytes");
            let of = |it: &(ChannelId, Epoch, _)| (it.0, it.1) == (channel, epoch);
            assert!(asked.nacks.iter().all(of));
            // A cut between two frames is not detectable. The journal never cuts there.
            assert_eq!(asked.is_cut, len != before && len != frames.len());
        }
    }
}
