//! Reliable connections on a real device: bytes arrive in order and whole, and an end is seen by
//! both. They need a device: see tests/verbs.rs.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use tickcast_transport::verbs::{Device, Listener, Stream, StreamConfig};

fn address() -> Ipv4Addr {
    let address = std::env::var("TICKCAST_RDMA_ADDRESS");
    address.map_or(Ipv4Addr::new(10, 1, 0, 1), |text| text.parse().unwrap())
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn pair(listener: &mut Listener, config: &StreamConfig) -> (Stream, Stream) {
    let device = Device::open(address()).unwrap();
    let mut near = Stream::connect(&device, listener.address(), config).unwrap();
    let mut far = None;
    until("never connected", || {
        near.advance();
        if far.is_none() {
            far = listener.accept().map(Result::unwrap);
        }
        far.as_mut().is_some_and(|far| far.advance() && far.is_up()) && near.is_up()
    });
    (near, far.unwrap())
}

/// Bytes that a stream of this seed carries.
fn bytes(seed: u64, count: usize) -> Vec<u8> {
    (0..count as u64)
        .map(|n| (n.wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9) >> 13) as u8)
        .collect()
}

/// Writes all while reading all, on both sides.
fn exchange(near: &mut Stream, far: &mut Stream, count: usize) {
    let sent = [bytes(3, count), bytes(8, count)];
    let mut written = [0, 0];
    let mut read = [Vec::new(), Vec::new()];
    until("not everything came", || {
        let mut room = [0; 3_000];
        for (side, stream) in [&mut *near, &mut *far].into_iter().enumerate() {
            let rest = &sent[side][written[side]..];
            // Of odd lengths, some larger than a buffer.
            let some = &rest[..rest.len().min(1 + written[side] % 9_001)];
            if !some.is_empty() {
                match stream.write(some) {
                    Ok(count) => written[side] += count,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
                }
            }
            match stream.read(&mut room) {
                Ok(count) => read[1 - side].extend_from_slice(&room[..count]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
            }
        }
        read.iter().all(|read| read.len() >= count)
    });
    assert!(read == sent);
}

fn resources() -> Vec<usize> {
    ["qp", "mr", "cq", "pd", "cm_id"]
        .iter()
        .map(|kind| {
            let out = std::process::Command::new("rdma")
                .args(["resource", "show", kind])
                .output();
            String::from_utf8_lossy(&out.unwrap().stdout)
                .lines()
                .count()
        })
        .collect()
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_stream_carries_bytes_both_ways() {
    let config = StreamConfig::default();
    let mut listener = Listener::bind(address(), 0, &config).unwrap();
    let (mut near, mut far) = pair(&mut listener, &config);
    // Used on another thread than the one that made them.
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&mut near, &mut far, 2_000_000));
    });
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn an_end_is_seen_by_the_other_side_behind_what_was_sent_before() {
    let config = StreamConfig::default();
    let mut listener = Listener::bind(address(), 0, &config).unwrap();
    let (mut near, mut far) = pair(&mut listener, &config);
    assert_eq!(near.write(b"last words").unwrap(), 10);
    let mut room = [0; 64];
    until("nothing came", || matches!(far.read(&mut room), Ok(10)));
    assert_eq!(&room[..10], b"last words");
    drop(near);
    until("no end", || match far.read(&mut room) {
        Ok(0) => true,
        Ok(count) => panic!("{count} bytes from nowhere"),
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    });
    assert!(far.write(b"anyone?").is_err());
    assert!(!far.advance());
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn where_nobody_listens_no_connection_comes_up_and_nothing_blocks() {
    let device = Device::open(address()).unwrap();
    let nobody = SocketAddrV4::new(address(), 9);
    let mut near = Stream::connect(&device, nobody, &StreamConfig::default()).unwrap();
    until("still hoping", || !near.advance());
    assert!(!near.is_up());
    assert_ne!(near.write(b"x").unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_peer_that_does_not_read_stops_only_its_own_stream() {
    let config = StreamConfig {
        buffers: 8,
        ..StreamConfig::default()
    };
    let mut listener = Listener::bind(address(), 0, &config).unwrap();
    let (mut near, mut idle) = pair(&mut listener, &config);
    let (mut other_near, mut other_far) = pair(&mut listener, &config);
    let mut accepted = 0;
    loop {
        match near.write(&[7; 4096]) {
            Ok(count) => accepted += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                break;
            }
        }
        assert!(accepted <= 8 * 4096, "bounded by its buffers");
    }
    exchange(&mut other_near, &mut other_far, 100_000);
    // Far longer than the device's patience: nothing was sent that had no buffer.
    std::thread::sleep(Duration::from_secs(1));
    assert!(near.advance() && near.is_up());
    let mut room = [0; 4096];
    let mut read = 0;
    until("not all came", || {
        near.advance();
        read += idle.read(&mut room).unwrap_or(0);
        read == accepted
    });
    exchange(&mut near, &mut idle, 100_000);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn what_connections_hold_is_gone_with_them() {
    let config = StreamConfig::default();
    let mut listener = Listener::bind(address(), 0, &config).unwrap();
    drop(pair(&mut listener, &config));
    let before = resources();
    for _ in 0..5 {
        let (mut near, mut far) = pair(&mut listener, &config);
        exchange(&mut near, &mut far, 10_000);
    }
    until("a leak", || resources() == before);
}
