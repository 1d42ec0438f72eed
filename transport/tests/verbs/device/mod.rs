//! Helpers of the tests on a real device: its address, its resources, and waiting.

pub(crate) mod audit;
pub(crate) mod sides;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Returns the address of the device's interface.
pub(crate) fn address() -> Ipv4Addr {
    let address = std::env::var("TICKCAST_RDMA_ADDRESS");
    address.map_or(Ipv4Addr::new(10, 1, 0, 1), |text| text.parse().unwrap())
}

/// Waits until `done` returns true. Panics with `what` if that takes too long.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Returns the number of resources in use, by kind.
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
