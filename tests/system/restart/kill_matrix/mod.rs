//! The kill matrix: each cell kills a publisher, a subscriber or both at one moment of the protocol.
//!
//! Each cell runs once in virtual time over the network in memory, and once with processes over UDP. The
//! delivered and the lost sequences together are the sealed ones. Nothing repeats or changes its order, and
//! each surviving process has the publisher's digest. READ over verbs runs in the lab: the suites `killed`,
//! `many` and `promoted` kill subscribers during a READ, `lost` and `promoted` the publisher that serves it.

mod gate;
mod memory;
mod udp;
mod victim;

use tickcast_sim::faults::kill::KillVictim;
use tickcast_sim::faults::kill::Moment;

macro_rules! cells {
    ($($(#[$comment:meta])* fn $name:ident: $who:ident, $moment:ident;)*) => {
        mod in_memory {
            use tickcast_sim::faults::kill::Moment;
            use tickcast_sim::faults::kill::KillVictim;

            use super::memory;

            $(#[test]
            fn $name() {
                memory::cell(KillVictim::$who, Moment::$moment);
            })*
        }

        mod over_udp {
            use tickcast_sim::faults::kill::Moment;
            use tickcast_sim::faults::kill::KillVictim;

            use super::udp;

            $(#[test]
            fn $name() {
                udp::cell(KillVictim::$who, Moment::$moment);
            })*
        }
    };
}

cells! {
    fn publisher_killed_before_join_loses_nothing: Publisher, BeforeJoin;
    fn publisher_killed_during_join_loses_nothing: Publisher, DuringJoin;
    fn publisher_killed_before_repair_repairs_after_restart: Publisher, MidGap;
    fn publisher_killed_within_slot_writes_it_again: Publisher, HalfSlot;
    fn publisher_killed_at_end_restarts_in_new_epoch: Publisher, AtEnd;
    fn subscriber_killed_before_join_loses_nothing: Subscriber, BeforeJoin;
    fn subscriber_killed_during_join_loses_nothing: Subscriber, DuringJoin;
    fn subscriber_killed_in_gap_continues_before_it: Subscriber, MidGap;
    fn subscriber_killed_within_slot_continues: Subscriber, HalfSlot;
    fn subscriber_killed_at_end_sees_it_after_restart: Subscriber, AtEnd;
    fn both_killed_before_join_lose_nothing: Both, BeforeJoin;
    fn both_killed_during_join_lose_nothing: Both, DuringJoin;
    fn both_killed_in_gap_lose_nothing: Both, MidGap;
    fn both_killed_within_slot_lose_nothing: Both, HalfSlot;
    fn both_killed_at_end_restart_in_new_epoch: Both, AtEnd;
}

#[test]
fn processes_killed_during_read_lose_nothing() {
    for who in [
        KillVictim::Publisher,
        KillVictim::Subscriber,
        KillVictim::Both,
    ] {
        memory::cell(who, Moment::MidRead);
    }
}
