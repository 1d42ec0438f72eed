//! What the tests on a real device have in common: where it is, what it holds, and waiting.

pub(crate) mod audit;
pub(crate) mod sides;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The address of the device's interface.
pub(crate) fn address() -> Ipv4Addr {
    let address = std::env::var("TICKCAST_RDMA_ADDRESS");
    address.map_or(Ipv4Addr::new(10, 1, 0, 1), |text| text.parse().unwrap())
}

/// Waits until it is done; `what` is said if that takes too long.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// How many of each kind of its resources are in use.
pub(crate) fn resources() -> Vec<usize> {
    ["qp", "mr", "cq", "pd", "cm_id"]
        .iter()
        .map(|kind| {
            let out = std::process::Command::new("rdma")
                .args(["resource", "show", kind])
                .output();
            let out = out.unwrap().stdout;
            String::from_utf8_lossy(&out).lines().count()
        })
        .collect()
}
