//! One broken subscriber changes nobody else's stream, and delays none of it by more than a stated
//! bound: the run is compared with the same one in which the broken subscriber is absent.

use tickcast_reliability::types::Nanos;

use crate::world::World;

/// By how much a record may come later to a subscriber because another one is broken.
pub const DELAY_MAX: Nanos = Nanos::from_us(500);

/// Compares what everyone but the broken subscriber was told, with it and without.
///
/// # Errors
/// Whose stream differs, or which record came too late.
pub(crate) fn compare(with: &World, without: &World) -> Result<(), String> {
    let both = with.subscribers.iter().zip(&without.subscribers);
    for (number, (one, other)) in both.enumerate() {
        if with.plan.broken == Some(number) {
            continue;
        }
        for (one, other) in one.following.iter().zip(&other.following) {
            let channel = one.channel;
            let of = |log: &[(u64, u64, Nanos)]| {
                let records = log.iter().map(|(epoch, record, _)| (*epoch, *record));
                records.collect::<Vec<_>>()
            };
            if of(&one.log) != of(&other.log) || one.stream.losses != other.stream.losses {
                return Err(format!(
                    "subscriber {number} gets another stream on channel {channel} because one is broken: {} records, {} without",
                    one.log.len(),
                    other.log.len()
                ));
            }
            for ((_, record, at), (.., usual)) in one.log.iter().zip(&other.log) {
                if *at > usual.after(DELAY_MAX) {
                    return Err(format!(
                        "subscriber {number} gets record {record} of channel {channel} at {at}, without the broken one at {usual}"
                    ));
                }
            }
        }
    }
    Ok(())
}
