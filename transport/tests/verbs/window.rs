//! Memory windows on a real device: a peer reads the memory it was granted, through its own connection,
//! until the grant is revoked. The tests need a device: see `main.rs`.

use std::sync::Arc;

use tickcast_reliability::ring::RingMemory;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::verbs::{
    Device, GRANTS_MAX, InboxMemory, Listener, RemoteMemory, StreamConfig,
};

use crate::device::sides::{Sides, answering, byte, memory, reading};
use crate::device::{address, resources, until};

const LEN: usize = 64 * 1024;
const FROM: usize = 8_192;
const GRANTED: usize = 16_384;

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn granted_memory_is_readable_until_revoked() {
    let (device, mut listener) = Sides::listener();
    let memory = memory(&listener, LEN);
    let mut sides = Sides::new(&device, &mut listener);
    let mut other = Sides::new(&device, &mut listener);
    let (_, others) = other.grant(&memory, 0, LEN);
    // Used on another thread than the one that made it.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (grant, remote) = sides.grant(&memory, FROM, GRANTED);
            assert_eq!(remote.len, GRANTED);
            sides.reads(remote, FROM);
            sides.revoke(grant);
            // A second grant has a key of its own, and the first key is not valid any more.
            let (again, fresh) = sides.grant(&memory, FROM, GRANTED);
            assert_ne!(fresh.key, remote.key);
            sides.reads(fresh, FROM);
            sides.revoke(again);
            assert!(sides.owner.revoke(again).is_err(), "twice");
            sides.reader.read_remote(fresh, 0, 64, 0).unwrap();
            assert_eq!(
                sides.ends_refused("a revoked key"),
                10,
                "IBV_WC_REM_ACCESS_ERR"
            );
        });
    });
    // No other peer is affected.
    other.reads(others, 0);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn peers_rights_end_at_once_and_only_theirs() {
    let (device, mut listener) = Sides::listener();
    let memory = memory(&listener, LEN);
    let mut sides = Sides::new(&device, &mut listener);
    let mut other = Sides::new(&device, &mut listener);
    let (_, others) = other.grant(&memory, 0, LEN);
    let (_, first) = sides.grant(&memory, FROM, GRANTED);
    sides.reads(first, FROM);
    // One grant is bound, and one is in flight.
    let late = sides.owner.grant(&memory, 0, LEN).unwrap();
    sides.owner.revoke_all("left the desk").unwrap();
    until("what was granted is taken back", || {
        sides.owner.advance();
        sides.owner.grants() == 0
    });
    assert_eq!(sides.owner.granted(late), None);
    let error = sides.owner.grant(&memory, 0, LEN).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(sides.owner.is_up(), "bytes still pass");
    sides.reader.read_remote(first, 0, 64, 0).unwrap();
    let status = sides.ends_revoked("a right that was taken back");
    assert_eq!(status, 10, "IBV_WC_REM_ACCESS_ERR");
    other.reads(others, 0);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn grant_outside_registered_memory_is_refused() {
    let (device, mut listener) = Sides::listener();
    let mut sides = Sides::new(&device, &mut listener);
    let all = memory(&listener, LEN);
    for (offset, len) in [(0, 0), (LEN, 1), (1, LEN), (usize::MAX, 2)] {
        let error = sides.owner.grant(&all, offset, len).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
    // Memory registered elsewhere can't be granted: the accepting side's memory is not the reader's.
    let error = sides.reader.grant(&all, 0, LEN).unwrap_err();
    assert!(error.to_string().contains("not registered with"), "{error}");
    let (_, remote) = sides.grant(&all, FROM, GRANTED);
    sides.reads(remote, FROM);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn grant_on_byte_stream_connection_is_refused() {
    let (device, mut listener) = Sides::listener();
    let memory = memory(&listener, LEN);
    let mut sides = Sides::with(&device, &mut listener, &StreamConfig::default());
    let error = sides.owner.grant(&memory, 0, LEN).unwrap_err();
    assert!(error.to_string().contains("can't answer READs"), "{error}");
    assert_eq!(sides.owner.allowed(), Some(0));
    assert_eq!(sides.reader.allowed(), Some(0));
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn grants_are_freed_with_their_connection() {
    let (device, mut listener) = Sides::listener();
    drop(Sides::new(&device, &mut listener));
    let before = resources();
    for _ in 0..3 {
        let memory = memory(&listener, LEN);
        let mut sides = Sides::new(&device, &mut listener);
        for _ in 0..GRANTS_MAX {
            sides.grant(&memory, FROM, GRANTED);
        }
        let error = sides.owner.grant(&memory, 0, 64).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "one more");
        // The registration outlives its windows.
        drop(memory);
        drop(sides);
    }
    until("a leak", || resources() == before);
}

/// WRITEs of one side in flight.
const WRITES: u32 = 4;

/// Connects a standby, and a publisher that may write.
fn writing() -> (Arc<Device>, Listener, Sides) {
    let device = Device::open(address()).unwrap();
    let config = StreamConfig {
        writes_max: WRITES,
        ..answering(4)
    };
    let mut listener = Listener::bind(address(), 0, &config).unwrap();
    let sides = Sides::with(&device, &mut listener, &reading(4));
    (device, listener, sides)
}

/// Creates an inbox behind the first page of some memory, granted by the connecting side.
fn inbox(device: &Arc<Device>, sides: &mut Sides) -> (Arc<SharedMapping>, RemoteMemory) {
    let mapping = Arc::new(SharedMapping::memfd("inbox", LEN).unwrap());
    let inbox = InboxMemory::register(device, mapping.clone(), 4096..4096 + GRANTED).unwrap();
    let grant = sides.reader.grant_inbox(&inbox).unwrap();
    until("never bound", || {
        assert!(sides.reader.advance(), "{:?}", sides.reader.end());
        sides.reader.granted(grant).is_some()
    });
    (mapping, sides.reader.granted(grant).unwrap())
}

fn bytes_of(mapping: &SharedMapping) -> Vec<u8> {
    // SAFETY: within the mapping, which no device writes any more: the WRITEs are done.
    let all = unsafe { std::slice::from_raw_parts(mapping.as_ptr(), LEN) };
    all.to_vec()
}

fn all_written(sides: &mut Sides, wanted: u32) {
    let mut written = 0;
    until("never written", || {
        sides.owner.advance();
        written += sides.owner.take_written();
        written == wanted
    });
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn remote_writes_land_only_inside_inbox() {
    let (device, listener, mut sides) = writing();
    let source = memory(&listener, LEN);
    let (mapping, remote) = inbox(&device, &mut sides);
    assert_eq!(remote.len, GRANTED);
    let write = 2;
    assert_eq!(
        sides.reader.allowed(),
        Some(write),
        "IBV_ACCESS_REMOTE_WRITE"
    );
    assert_eq!(sides.owner.allowed(), Some(0));
    for slot in 0..WRITES as usize {
        let piece = (FROM + slot * 1024, 1000);
        (sides.owner)
            .write_from(&source, piece, remote, slot * 1024)
            .unwrap();
    }
    let error = (sides.owner)
        .write_from(&source, (0, 64), remote, 0)
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "one more");
    all_written(&mut sides, WRITES);
    let found = bytes_of(&mapping);
    for (at, found) in found.iter().enumerate() {
        let slot = at.wrapping_sub(4096);
        let is_written = at >= 4096 && slot < WRITES as usize * 1024 && slot % 1024 < 1000;
        let expected = if is_written { byte(FROM + slot) } else { 0 };
        assert_eq!(*found, expected, "at {at}");
    }
    // A WRITE from outside the memory, or to outside the inbox, is refused.
    for (piece, at) in [((LEN - 1, 2), 0), ((0, 64), GRANTED - 63), ((0, 0), 0)] {
        let error = sides
            .owner
            .write_from(&source, piece, remote, at)
            .unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn inbox_is_bounded_by_grant_and_connection() {
    let (device, mut listener, mut sides) = writing();
    let source = memory(&listener, LEN);
    let before = resources();
    let mut other = Sides::with(&device, &mut listener, &reading(4));
    let (_mapping, remote) = inbox(&device, &mut other);
    // A key of another connection is not valid for this one.
    sides.owner.write_from(&source, (0, 64), remote, 0).unwrap();
    until("another's key was good", || !sides.owner.advance());
    other.owner.write_from(&source, (0, 64), remote, 0).unwrap();
    all_written(&mut other, 1);
    drop((other, sides));
    until("a leak", || {
        let now = resources();
        now.iter().zip(&before).all(|(now, before)| now <= before)
    });
}
