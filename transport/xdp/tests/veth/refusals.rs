//! Configurations and hosts that AF_XDP can't serve: each error names the interface and the remedy.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tickcast_reliability::types::Nanos;
use tickcast_transport_base::Receive;
use tickcast_xdp::{XdpError, XdpReceiver, XdpReceiverConfig};

use crate::network::{TO, enter, ip};
use crate::support::{GROUP_A, GROUP_B, PATIENCE, config, open};

/// Set in the process that tries an interface which its parent has tapped.
const SECOND: &str = "TICKCAST_XDP_SECOND";

#[track_caller]
fn refused(config: &XdpReceiverConfig, words: &[&str]) -> XdpError {
    let Err(error) = XdpReceiver::open(config) else {
        panic!("it opened");
    };
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    error
}

#[test]
fn second_process_on_an_interface_is_refused() {
    if std::env::var_os(SECOND).is_some() {
        let words = ["interface to0", "has an XDP program", "transport udp"];
        let error = refused(&config(&[GROUP_B]), &words);
        assert!(matches!(error, XdpError::Occupied { .. }));
        return;
    }
    if !enter(1) {
        return;
    }
    let Some(_first) = open(&config(&[GROUP_A])) else {
        return;
    };
    let mut second = Command::new(std::env::current_exe().unwrap());
    second.args([
        "refusals::second_process_on_an_interface_is_refused",
        "--exact",
    ]);
    let output = second.env(SECOND, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
fn group_with_a_receiver_is_refused_until_it_closes() {
    if !enter(1) {
        return;
    }
    let Some(first) = open(&config(&[GROUP_A])) else {
        return;
    };
    let error = refused(&config(&[GROUP_A]), &["239.255.7.1:7500", "interface to0"]);
    assert!(matches!(error, XdpError::GroupTaken { .. }));
    let error = refused(&config(&[GROUP_B, GROUP_B]), &["239.255.7.2:7501"]);
    assert!(matches!(error, XdpError::GroupTaken { .. }));
    drop(first);
    open(&config(&[GROUP_A])).unwrap();
}

#[test]
fn lines_beyond_the_frames_are_refused() {
    if !enter(1) {
        return;
    }
    let mut config = config(&[GROUP_A]);
    config.memory_bytes = 1 << 20;
    let mut all = Vec::new();
    let error = loop {
        match XdpReceiver::open(&config) {
            Ok(receiver) => all.push(receiver),
            Err(XdpError::Forbidden { .. } | XdpError::Unsupported { .. }) => {
                eprintln!("SKIPPED: no AF_XDP here");
                return;
            }
            Err(error) => break error,
        }
        let port = config.lines[0].group.port();
        config.lines[0].group.set_port(port + 1);
    };
    assert!(matches!(error, XdpError::Full { .. }), "{error}");
    assert!(error.to_string().contains("memory_bytes"), "{error}");
    let promised: u32 = all
        .iter()
        .flat_map(|receiver| receiver.grants())
        .map(|grant| grant.frames)
        .sum();
    assert!(all.len() >= 2 && promised <= 512, "{promised}");
    all.pop();
    XdpReceiver::open(&config).unwrap();
}

#[test]
fn interfaces_that_can_not_serve_are_refused() {
    if !enter(1) {
        return;
    }
    let on = |interface: &str| {
        let mut config = config(&[GROUP_A]);
        config.lines[0].interface = interface.parse().unwrap();
        config
    };
    refused(&on("nosuch0"), &["nosuch0", "this host has", "to0"]);
    refused(&on("lo"), &["interface lo", "transport shm"]);
    let mut long = on(TO);
    long.datagram_len_max = 1_473;
    let words = ["interface to0", "MTU of 1500", "1472 bytes or less"];
    refused(&long, &words);
    // The driver refuses its own mode for such an MTU, and no frame holds such a datagram.
    ip("link set from mtu 9000").unwrap();
    ip("link set to0 mtu 9000").unwrap();
    long.datagram_len_max = 4_000;
    let error = match XdpReceiver::open(&long) {
        Err(XdpError::Forbidden { .. } | XdpError::Unsupported { .. }) => return,
        Err(error) => error,
        Ok(_) => panic!("it opened"),
    };
    assert!(
        matches!(error, XdpError::TooLong { fits: 3_776, .. }),
        "{error}"
    );
}

#[test]
fn process_without_rights_is_refused_with_the_remedy() {
    if !enter(1) || open(&config(&[GROUP_A])).is_none() {
        return;
    }
    // SAFETY: the call takes numbers. By this way it changes the user of the calling thread alone.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
    assert_eq!(result, 0);
    let words = ["interface to0", "CAP_NET_RAW", "CAP_NET_ADMIN", "CAP_BPF"];
    let error = refused(&config(&[GROUP_A]), &words);
    assert!(matches!(error, XdpError::Forbidden { .. }));
}

#[test]
fn removed_interface_is_an_error_of_its_line() {
    if !enter(1) {
        return;
    }
    let Some(mut receiver) = open(&config(&[GROUP_A])) else {
        return;
    };
    ip("link del from").unwrap();
    let mut now = Nanos::from_secs(1);
    let begun = Instant::now();
    let error = loop {
        now = now.after(Nanos::from_us(10_000));
        match receiver.poll(now, &mut |_| ()) {
            Ok(count) => assert_eq!(count, 0),
            Err(error) => break error,
        }
        assert!(begun.elapsed() < PATIENCE, "it goes on");
        thread::sleep(Duration::from_millis(1));
    };
    assert!(
        error.to_string().contains("line A can't receive"),
        "{error}"
    );
}
