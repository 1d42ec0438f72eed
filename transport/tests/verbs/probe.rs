//! The probe of a real device, which must be complete: see `main.rs`. The suite `probed` has devices that
//! are not.

use std::sync::Arc;

use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::verbs::{Device, ReadableMemory};

use crate::device::{address, resources, until};

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn device_that_passes_its_probe_offers_all() {
    let device = Device::open(address()).unwrap();
    let before = resources();
    let proof = device.prove_access();
    assert_eq!((proof.read(), proof.cursors()), (Ok(()), Ok(())));
    assert!(device.check_read().is_ok() && device.check_cursors().is_ok());
    let mapping = SharedMapping::memfd("probed ring", 1 << 20).unwrap();
    let memory = ReadableMemory::register(&device, Arc::new(mapping)).unwrap();
    memory.check_grant().unwrap();
    drop(memory);
    // Nothing of the probe is left, and it is not made again.
    until("a leak", || resources() == before);
    assert_eq!(device.prove_access(), proof);
}
