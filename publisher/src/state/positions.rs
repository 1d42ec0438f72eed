//! The positions of sources on channels.

use tickcast_reliability::types::{SourceId, SourcePosition};

/// The position of each source on a channel. A source that is not listed has nothing there.
pub(crate) type Positions = Vec<(SourceId, SourcePosition)>;

/// Returns the position of a source on a channel.
pub(crate) fn position_of(
    positions: &[Positions],
    channel: usize,
    source: SourceId,
) -> Option<SourcePosition> {
    let all = positions.get(channel)?.iter();
    all.copied().find(|(id, _)| *id == source).map(|(_, at)| at)
}

/// Returns a position whose ordinal is higher by `ordinals`. A position before the first ordinal becomes
/// the first position.
#[cold]
pub(crate) fn shifted(at: SourcePosition, ordinals: i32) -> SourcePosition {
    match u16::try_from(i32::from(at.ordinal()) + ordinals) {
        Ok(ordinal) => SourcePosition::new(ordinal, at.sequence()),
        Err(_) => SourcePosition::new(0, 0),
    }
}
