//! One suite over every transport. A fan-out and a receiver promise the same for all of them, so the same
//! cases run over each. Both sides use the shipped cores, and control runs over TCP. `network.rs` states the
//! differences, `cases.rs` and `hostile.rs` the guarantees. Deliberately broken transports (`broken.rs`)
//! must fail, which tests the suite itself.
//!
//! The cases over verbs need a device: `make test-rdma` runs them in its virtual machine. Those over XDP need
//! the right to create a network namespace, and say so without it.

#![allow(
    unreachable_pub,
    reason = "what the modules of one test share is public to it"
)]

mod broken;
mod cases;
mod contract;
mod hostile;
mod lab;
mod network;
mod over_shm;
#[cfg(feature = "rdma")]
mod over_verbs;
mod over_xdp;
mod publisher;
mod subscriber;
mod verdict;
#[path = "../../xdp/tests/veth/network.rs"]
#[allow(dead_code, reason = "the suite has senders of its own")]
mod veth;

use broken::Broken;
use lab::Bench;
use network::Kind;
use verdict::Verdict;

fn run(kind: Kind, case: fn(Bench) -> Verdict) {
    let bench = Bench { kind, broken: None };
    if let Err(what) = case(bench) {
        panic!("{kind:?}: {what}");
    }
}

/// Every case over verbs, with repairs on the rungs of this ladder.
macro_rules! over_verbs_and_repaired_by {
    ($name:ident: $ladder:ident, $($file:ident::$case:ident,)+) => {
        #[cfg(feature = "rdma")]
        mod $name {
            use tickcast_reliability::receive::RepairOrder;

            $(#[test]
            #[ignore = "SKIPPED, needs an RDMA device: make test-rdma"]
            fn $case() {
                crate::run(crate::Kind::Verbs(RepairOrder::$ladder), crate::$file::$case);
            })+
        }
    };
}

/// Every case over UDP, with runs as one buffer on the sending side (GSO) and the receiving side (GRO).
macro_rules! over_udp {
    ($name:ident: $gso:literal, $gro:literal, $($file:ident::$case:ident,)+) => {
        mod $name {
            use crate::network::Offload;

            $(#[test] fn $case() {
                let offload = Offload { gso: $gso, gro: $gro };
                crate::run(crate::Kind::Udp(offload), crate::$file::$case);
            })+
        }
    };
}

/// Every case over every transport, and over verbs with every ladder.
macro_rules! over_every_transport {
    ($($file:ident::$case:ident,)+) => {
        mod memory {
            $(#[test] fn $case() {
                crate::run(crate::Kind::Memory, crate::$file::$case);
            })+
        }

        over_udp! {
            udp: true, true, $($file::$case,)+
        }
        over_udp! {
            udp_of_runs_sent: true, false, $($file::$case,)+
        }
        over_udp! {
            udp_of_runs_received: false, true, $($file::$case,)+
        }
        over_udp! {
            udp_one_by_one: false, false, $($file::$case,)+
        }

        mod shm {
            $(#[test] fn $case() {
                crate::run(crate::Kind::Shm, crate::$file::$case);
            })+
        }

        mod xdp {
            $(#[test] fn $case() {
                if crate::over_xdp::is_here() {
                    crate::run(crate::Kind::Xdp, crate::$file::$case);
                }
            })+
        }

        over_verbs_and_repaired_by! {
            nack: Nack, $($file::$case,)+
        }
        over_verbs_and_repaired_by! {
            read: Read, $($file::$case,)+
        }
        over_verbs_and_repaired_by! {
            read_then_nack: ReadThenNack, $($file::$case,)+
        }
    };
}

over_every_transport! {
    cases::everything_arrives_once_and_in_order,
    cases::exactly_what_was_lost_is_repaired,
    cases::under_loss_disorder_and_damage_all_of_it_comes,
    cases::repairs_come_by_the_fastest_way_there_is,
    cases::a_subscriber_that_starts_first_finds_whoever_comes,
    cases::a_late_joiner_gets_the_history_once,
    cases::a_ring_that_has_moved_on_gives_what_it_holds,
    cases::a_slow_reader_is_repaired_and_holds_nobody_up,
    cases::a_reader_that_is_lapped_is_told_exactly_what_it_lost,
    cases::sends_that_stall_lose_nothing,
    cases::nothing_is_sent_that_was_overwritten_while_it_was_posted,
    cases::a_subscriber_that_restarts_goes_on_where_it_was,
    cases::a_publisher_that_restarts_is_followed_into_its_epoch,
    cases::what_is_too_long_is_told_and_passed_by,
    cases::fan_outs_of_different_kinds_do_not_hold_each_other_up,
    cases::of_two_lines_one_is_enough,
    hostile::foreign_datagrams_are_dropped_and_counted,
    hostile::hostile_connections_harm_nobody_else,
}

/// Checks that the case detects the fault, with an error that contains `words`.
fn noticed(kind: Kind, broken: Broken, case: fn(Bench) -> Verdict, words: &str) {
    let bench = Bench {
        kind,
        broken: Some(broken),
    };
    match case(bench) {
        Ok(()) => panic!("{kind:?}: nobody noticed: {broken:?}"),
        Err(what) => assert!(what.contains(words), "{kind:?}: {broken:?}: {what}"),
    }
}

#[test]
fn conformance_suite_detects_broken_transports() {
    let case = cases::everything_arrives_once_and_in_order;
    for kind in [Kind::Memory, Kind::UDP] {
        for (broken, words) in [
            (Broken::Skips, "datagrams of a line, and sealed"),
            (Broken::SendsAnother, "out of order: Some([49, 49])"),
            (Broken::SendsTwice, "out of order: Some([50, 50])"),
            (Broken::HandsOverTwice, "out of order"),
            (Broken::Truncates, "datagrams of a line, and sealed"),
            (Broken::Swaps, "out of order"),
            (Broken::Flips, "gaps"),
            (Broken::Mistakes, "gaps"),
        ] {
            noticed(kind, broken, case, words);
        }
    }
}

#[test]
fn suite_detects_reader_that_breaks_its_promise() {
    let case = cases::everything_arrives_once_and_in_order;
    for (broken, words) in [
        (Broken::HandsOverTwice, "out of order"),
        (Broken::Truncates, "datagrams of a line, and sealed"),
        (Broken::Swaps, "out of order"),
        (Broken::Mistakes, "gaps"),
    ] {
        noticed(Kind::Shm, broken, case, words);
    }
}

#[test]
fn conformance_suite_detects_early_slot_completion() {
    let case = cases::nothing_is_sent_that_was_overwritten_while_it_was_posted;
    noticed(Kind::Memory, Broken::CompletesEarly, case, "out of order");
}
