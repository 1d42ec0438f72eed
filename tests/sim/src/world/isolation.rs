//! Isolation: one broken subscriber does not change the stream of any other, and delays it by no
//! more than a stated bound. The run is compared with one in which the broken subscriber is absent.

use tickcast_reliability::types::Nanos;

use crate::world::World;

/// Longest additional delay of a record because another subscriber is broken.
pub const DELAY_MAX: Nanos = Nanos::from_us(500);

/// Compares the streams of all but the broken subscriber in runs with and without it.
///
/// # Errors
/// A stream that differs, or a record that is delayed by more than [`DELAY_MAX`].
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
