//! The fate of READs when no packet reaches the peer any more. The tests need two hosts of the lab's
//! bridge (suite `lost`), because packets between processes on one device are never lost.

use std::process::Command;

use tickcast_transport::verbs::{Device, Listener, StreamConfig, StreamEnd};

use crate::device::address;
use crate::device::sides::{Done, Sides, memory, reading};

const LEN: usize = 64 * 1024;

/// Drops all packets to the other host, until this is dropped.
struct Cut;

impl Cut {
    fn new() -> Self {
        tc("add", &["netem", "loss", "100%"]);
        Self
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        tc("del", &[]);
    }
}

fn tc(what: &str, how: &[&str]) {
    let mut command = Command::new("tc");
    command.args(["qdisc", what, "dev", "p2", "root"]).args(how);
    assert!(command.status().unwrap().success());
}

#[test]
#[ignore = "needs two hosts of the lab: make test-rdma"]
fn reads_of_a_peer_that_answers_no_more_fail_as_lost() {
    let config = StreamConfig {
        // 1.3 s, which is longer than a slow host stops a device.
        ack_timeout: 16,
        retries: 4,
        ..reading(4)
    };
    let device = Device::open(address()).unwrap();
    let other = std::env::var("TICKCAST_RDMA_PEER").unwrap();
    let mut listener = Listener::bind(other.parse().unwrap(), 0, &config).unwrap();
    let memory = memory(&listener, LEN);
    for _ in 0..2 {
        let mut sides = Sides::with(&device, &mut listener, &config);
        let (_, remote) = sides.grant(&memory, 0, LEN);
        sides.reads(remote, 0);
        let cut = Cut::new();
        for tag in 0..3 {
            sides.reader.read_remote(remote, 0, 4096, tag).unwrap();
        }
        for wanted in 0..3 {
            let Done::Failed(tag, StreamEnd::Lost { status: 12 }) = sides.done() else {
                panic!("READ {wanted} came from nowhere, or failed for another reason");
            };
            assert_eq!(tag, wanted);
        }
        assert_eq!(sides.reader.end(), Some(StreamEnd::Lost { status: 12 }));
        // Once packets arrive again, the peer can connect again.
        drop(cut);
    }
}
