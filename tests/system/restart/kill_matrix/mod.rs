//! Kills of each process at each moment of the protocol. Each cell runs once in virtual time over a
//! network in memory. It also runs once with processes over UDP, which are killed once they have reached
//! the moment.
//!
//! Delivered and declared lost records together equal the sealed ones. No record comes twice or out of
//! order, and a process that was not killed has the publisher's digest.
//!
//! (For the middle of a READ over verbs: the lab's suites `killed`, `many` and `promoted` kill
//! subscribers that READ, and `lost` and `promoted` kill the publisher that is READ from.)

mod gate;
mod memory;
mod udp;
mod victim;

use tickcast_sim::faults::kill::Moment;
use tickcast_sim::faults::kill::Who;

macro_rules! cells {
    ($($(#[$comment:meta])* fn $name:ident: $who:ident, $moment:ident;)*) => {
        mod in_memory {
            use tickcast_sim::faults::kill::Moment;
use tickcast_sim::faults::kill::Who;

            use super::memory;

            $(#[test]
            fn $name() {
                memory::cell(Who::$who, Moment::$moment);
            })*
        }

        mod over_udp {
            use tickcast_sim::faults::kill::Moment;
use tickcast_sim::faults::kill::Who;

            use super::udp;

            $(#[test]
            fn $name() {
                udp::cell(Who::$who, Moment::$moment);
            })*
        }
    };
}

cells! {
    fn a_publisher_that_is_killed_before_a_join_reaches_it_loses_nothing: Publisher, BeforeJoin;
    fn a_publisher_that_is_killed_during_a_join_loses_nothing: Publisher, DuringJoin;
    fn a_publisher_that_is_killed_before_it_repairs_a_gap_repairs_it_later: Publisher, MidGap;
    fn a_publisher_that_is_killed_within_a_slot_writes_it_anew: Publisher, HalfSlot;
    fn a_publisher_that_is_killed_at_the_end_is_told_apart_from_the_next: Publisher, AtEnd;
    fn a_subscriber_that_is_killed_before_it_joined_has_everything_the_next_time: Subscriber, BeforeJoin;
    fn a_subscriber_that_is_killed_during_its_join_has_everything_the_next_time: Subscriber, DuringJoin;
    fn a_subscriber_that_is_killed_in_mid_gap_goes_on_before_it: Subscriber, MidGap;
    fn a_subscriber_that_is_killed_while_a_slot_is_written_goes_on: Subscriber, HalfSlot;
    fn a_subscriber_that_is_killed_at_the_end_hears_of_it_the_next_time: Subscriber, AtEnd;
    fn both_killed_before_a_join_lose_nothing: Both, BeforeJoin;
    fn both_killed_during_a_join_lose_nothing: Both, DuringJoin;
    fn both_killed_in_mid_gap_lose_nothing: Both, MidGap;
    fn both_killed_while_a_slot_is_written_lose_nothing: Both, HalfSlot;
    fn both_killed_at_the_end_are_told_apart_from_the_next: Both, AtEnd;
}

#[test]
fn whoever_is_killed_in_mid_read_nothing_is_lost() {
    for who in [Who::Publisher, Who::Subscriber, Who::Both] {
        memory::cell(who, Moment::MidRead);
    }
}
