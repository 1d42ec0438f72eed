//! Reliable connections on a real device: bytes arrive in order and whole, and both sides see an end.
//! The tests need a device: see `main.rs`.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use tickcast_transport::verbs::{Device, Listener, Stream, StreamConfig, VerbsError};

use crate::device::{address, resources, until};

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

/// Returns the bytes of a stream with this seed.
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
            // Odd lengths, some larger than a buffer.
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

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn verbs_stream_carries_bytes_both_ways() {
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
fn stream_end_follows_last_sent_bytes() {
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
fn connect_without_listener_fails_without_blocking() {
    let device = Device::open(address()).unwrap();
    let nobody = SocketAddrV4::new(address(), 9);
    let mut near = Stream::connect(&device, nobody, &StreamConfig::default()).unwrap();
    until("still hoping", || !near.advance());
    assert!(!near.is_up());
    assert_ne!(near.write(b"x").unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn unread_stream_blocks_only_its_own_writer() {
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
    // Far longer than the device retries: nothing was sent that had no buffer.
    std::thread::sleep(Duration::from_secs(1));
    assert!(near.advance() && near.is_up());
    assert_eq!(near.write(b"").unwrap(), 0, "nothing takes no buffer");
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
fn dropped_connections_free_rdma_resources() {
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

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn flushed_bytes_arrive_after_sender_is_dropped() {
    let config = StreamConfig::default();
    let mut listener = Listener::bind(address(), 0, &config).unwrap();
    for round in 0..5 {
        let (mut near, mut far) = pair(&mut listener, &config);
        let sent = bytes(round, 100 * 4096);
        let mut written = 0;
        while written < sent.len() {
            written += near.write(&sent[written..]).unwrap();
        }
        let busy = |error: std::io::Error| {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        };
        until("never flushed", || near.flush().map_err(busy).is_ok());
        drop(near);
        let mut read = Vec::new();
        let mut room = [0; 3_000];
        until("not everything came", || {
            match far.read(&mut room) {
                Ok(count) => read.extend_from_slice(&room[..count]),
                Err(error) => busy(error),
            }
            read.len() >= sent.len()
        });
        assert!(read == sent);
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn bytes_received_before_connection_up_are_kept() {
    let config = StreamConfig {
        buffers: 8,
        ..StreamConfig::default()
    };
    let device = Device::open(address()).unwrap();
    let mut listener = Listener::bind(address(), 0, &config).unwrap();
    let mut early = 0;
    for round in 0..20 {
        let mut near = Stream::connect(&device, listener.address(), &config).unwrap();
        let mut far = None;
        // Only one side is advanced, and writes as soon as it may.
        until("never connected", || {
            near.advance();
            if far.is_none() {
                far = listener.accept().map(Result::unwrap);
            }
            near.is_up()
        });
        let mut far = far.unwrap();
        let sent = bytes(round, 40 * 4096);
        let (mut written, mut read) = (0, Vec::new());
        let mut room = [0; 4096];
        until("stuck", || {
            while let Ok(count) = near.write(&sent[written..]) {
                written += count;
                if count == 0 {
                    break;
                }
            }
            if let Ok(count) = far.read(&mut room) {
                early += u32::from(!far.is_up());
                read.extend_from_slice(&room[..count]);
            }
            near.advance();
            read.len() == sent.len()
        });
        assert!(read == sent);
    }
    println!("{early} reads before a connection was up");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn sides_with_unequal_buffers_understand_each_other() {
    let small = StreamConfig {
        buffer_len: 1024,
        buffers: 8,
        ..StreamConfig::default()
    };
    let large = StreamConfig::default();
    for [listening, connecting] in [[&small, &large], [&large, &small]] {
        let mut listener = Listener::bind(address(), 0, listening).unwrap();
        let (mut near, mut far) = pair(&mut listener, connecting);
        exchange(&mut near, &mut far, 200_000);
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn unanswered_verbs_connection_times_out() {
    let config = StreamConfig {
        connect_ms: 300,
        ..StreamConfig::default()
    };
    let listener = Listener::bind(address(), 0, &config).unwrap();
    let device = Device::open(address()).unwrap();
    let mut near = Stream::connect(&device, listener.address(), &config).unwrap();
    until("still hoping", || !near.advance());
    let error = near.write(b"x").unwrap_err();
    assert_ne!(error.kind(), ErrorKind::WouldBlock, "{error}");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn connections_that_are_not_up_yet_are_bounded() {
    let config = StreamConfig {
        buffers: 8,
        buffer_len: 256,
        // An emulated machine may be slow.
        connect_ms: 60_000,
        resolve_ms: 30_000,
        ..StreamConfig::default()
    };
    let device = Device::open(address()).unwrap();
    let mut listener = Listener::bind(address(), 0, &config).unwrap();
    let mut near: Vec<_> = (0..80)
        .map(|_| Stream::connect(&device, listener.address(), &config).unwrap())
        .collect();
    let (mut far, mut refused, mut reported) = (Vec::new(), 0, 0);
    until("not all were answered", || {
        // Nobody advances the accepted connections.
        match listener.accept() {
            Some(Err(VerbsError::Crowded)) => reported += 1,
            accepted => far.extend(accepted.map(Result::unwrap)),
        }
        for stream in &mut near {
            stream.advance();
        }
        let before = near.len();
        near.retain_mut(Stream::advance);
        refused += before - near.len();
        near.iter().all(Stream::is_up)
    });
    assert_eq!((far.len(), near.len(), refused, reported), (64, 64, 16, 16));
    // Once they are up, others can connect.
    until("not all are up", || {
        far.iter_mut()
            .all(|stream| stream.advance() && stream.is_up())
    });
    let (mut one, mut other) = pair(&mut listener, &config);
    exchange(&mut one, &mut other, 1_000);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn for_a_peer_that_gave_up_nothing_is_made() {
    let config = StreamConfig::default();
    let device = Device::open(address()).unwrap();
    let mut listener = Listener::bind(address(), 0, &config).unwrap();
    let (mut near, mut far) = pair(&mut listener, &config);
    let before = resources();
    let mut impatient: Vec<_> = (0..5)
        .map(|_| Stream::connect(&device, listener.address(), &config).unwrap())
        .collect();
    // Their requests wait at the listener, which is not polled.
    let came = Instant::now() + Duration::from_secs(3);
    until("no time passes", || {
        impatient.iter_mut().for_each(|stream| {
            stream.advance();
        });
        Instant::now() >= came
    });
    drop(impatient);
    let mut gave_up = 0;
    let mut one = Stream::connect(&device, listener.address(), &config).unwrap();
    let mut other = None;
    until("who still waits has no turn", || {
        one.advance();
        match listener.accept() {
            Some(Err(VerbsError::GaveUp)) => gave_up += 1,
            Some(accepted) => other = Some(accepted.unwrap()),
            None => {}
        }
        other
            .as_mut()
            .is_some_and(|other: &mut Stream| other.advance() && other.is_up())
            && one.is_up()
    });
    assert_eq!(gave_up, 5);
    let mut other = other.unwrap();
    exchange(&mut one, &mut other, 1_000);
    exchange(&mut near, &mut far, 1_000);
    drop((one, other));
    until("a leak", || resources() == before);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn foreign_rdma_client_is_refused_without_leak() {
    let config = StreamConfig::default();
    let mut listener = Listener::bind(address(), 0, &config).unwrap();
    let (mut near, mut far) = pair(&mut listener, &config);
    let before = resources();
    let to = listener.address();
    let mut stranger = std::process::Command::new("rping")
        .args(["-c", "-C", "1", "-a"])
        .args([to.ip().to_string(), "-p".into(), to.port().to_string()])
        .spawn()
        .unwrap();
    until("nobody came", || match listener.accept() {
        Some(Err(VerbsError::Stranger)) => true,
        Some(other) => panic!("{:?}", other.err()),
        None => false,
    });
    until("still there", || stranger.try_wait().unwrap().is_some());
    exchange(&mut near, &mut far, 10_000);
    until("a leak", || resources() == before);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn stream_carries_class_of_connecting_side_both_ways() {
    let mut listener = Listener::bind(address(), 0, &StreamConfig::default()).unwrap();
    for class in [0xb8, 0x28, 0] {
        let connecting = StreamConfig {
            traffic_class: class,
            ..StreamConfig::default()
        };
        let (near, far) = pair(&mut listener, &connecting);
        assert_eq!(near.traffic_class(), Some(class));
        assert_eq!(far.traffic_class(), Some(class), "the accepting side");
    }
}
