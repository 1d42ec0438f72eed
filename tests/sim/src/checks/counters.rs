//! Checks on relations between counters that hold at every moment.

use tickcast_reliability::types::{ReceiverCounters, RepairCounters};

use crate::checks::delivery::Stream;
use crate::checks::nack_validity::NackCheck;

fn equal(left: (&str, u64), right: (&str, u64)) -> Result<(), String> {
    if left.1 == right.1 {
        return Ok(());
    }
    Err(format!(
        "{} is {}, {} is {}",
        left.0, left.1, right.0, right.1
    ))
}

/// Checks a subscriber's counters against each other and against the events that its application
/// received.
///
/// # Errors
/// A relation that does not hold.
pub fn receiver(c: &ReceiverCounters, stream: &Stream) -> Result<(), String> {
    let settled = c.missing_recovered.get() + c.missing_lost.get();
    let gaps = settled + c.missing_superseded.get() + c.missing_open.get();
    equal(
        ("missing_datagrams", c.missing_datagrams.get()),
        ("recovered + lost + superseded + open", gaps),
    )?;
    // A run is reported once all of it is settled, unless its last part was lost.
    let all_told = c.missing_lost.get() + c.missing_superseded.get() + c.missing_open.get() == 0;
    if all_told || stream.recovered > c.missing_recovered.get() {
        equal(
            ("missing_recovered", c.missing_recovered.get()),
            ("sequences reported recovered", stream.recovered),
        )?;
    }
    let settled = c.replay_received.get() + c.replay_lost.get();
    let history = settled + c.replay_superseded.get() + c.replay_open.get();
    equal(
        ("replay_requested", c.replay_requested.get()),
        ("received + lost + superseded + open", history),
    )?;
    equal(
        ("delivered_records", c.delivered_records.get()),
        ("records told", stream.records),
    )?;
    equal(
        ("lost_records", c.lost_records.get()),
        ("records told lost", stream.lost_records),
    )?;
    equal(
        ("loss_events", c.loss_events.get()),
        ("losses told", stream.losses),
    )?;
    equal(
        ("losses_of_unknown_size", c.losses_of_unknown_size.get()),
        ("told", stream.losses_of_unknown_size),
    )
}

/// Checks the counters of the repair service against each other.
///
/// # Errors
/// A relation that does not hold.
pub fn repair(c: &RepairCounters) -> Result<(), String> {
    let settled = c.answered.get()
        + c.answered_by_multicast.get()
        + c.refused_window.get()
        + c.refused_ahead.get()
        + c.refused_budget.get()
        + c.refused_too_slow.get()
        + c.refused_epoch.get()
        + c.refused_malformed.get()
        + c.repairs_cancelled.get()
        + c.pending.get();
    equal(
        ("nacked", c.nacked.get()),
        ("answered + refused + repairs_cancelled + pending", settled),
    )
}

/// Checks a subscriber's NACK counters against the NACKs that it sent, when no message waits to be
/// sent.
///
/// # Errors
/// A relation that does not hold.
pub fn asked(c: &ReceiverCounters, asked: &NackCheck) -> Result<(), String> {
    for (part, whole) in [
        (
            ("nack_link_nacks_sent", c.nack_link_nacks_sent.get()),
            ("nacks_sent", c.nacks_sent.get()),
        ),
        (
            (
                "nack_link_nacked_sequences",
                c.nack_link_nacked_sequences.get(),
            ),
            ("nacked_sequences", c.nacked_sequences.get()),
        ),
        (
            ("nack_link_timeouts", c.nack_link_timeouts.get()),
            (
                "nack_link_nacked_sequences",
                c.nack_link_nacked_sequences.get(),
            ),
        ),
        (
            (
                "nack_link_repairs_received",
                c.nack_link_repairs_received.get(),
            ),
            ("repairs_received", c.repairs_received.get()),
        ),
        (
            ("NACKs sent on the NACK connection", asked.asked_on_nack),
            ("nack_link_nacks_sent", c.nack_link_nacks_sent.get()),
        ),
    ] {
        if part.1 > whole.1 {
            return Err(format!(
                "{} is {}, {} is {}",
                part.0, part.1, whole.0, whole.1
            ));
        }
    }
    // NACKs that were not sent before their connection closed were counted as well.
    if c.nacks_sent.get() < asked.asked.0 || c.nacked_sequences.get() < asked.asked.1 {
        return Err(format!(
            "{} NACKs for {} sequences are counted, {:?} were sent",
            c.nacks_sent.get(),
            c.nacked_sequences.get(),
            asked.asked
        ));
    }
    Ok(())
}
