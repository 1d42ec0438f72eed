//! `tickcast accept-rdma` without a device: which host it serves, and what it says. The lab runs it whole.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tickcast_test_support::Running;

use crate::common::{free_address, run, signal, text, tickcast};

/// Options of both sides, with an interface that has no RDMA device.
const LINE: [&str; 4] = ["--a", "lo", "--publisher-bin", "/bin/true"];

/// Starts the side that answers, for the host with this address. Returns it with its own address.
fn answering(from: &str) -> (Running, String) {
    let port = free_address().port().to_string();
    let own = [
        "accept-rdma",
        "--answer",
        "127.0.0.1",
        "--ports",
        &port,
        "--from",
        from,
    ];
    let mut command = tickcast(&[&own[..], &LINE[..]].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = Running::start(&mut command);
    let output = process.child().stdout.as_mut().unwrap();
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).unwrap();
    let address = line.strip_prefix("answering at ").unwrap();
    let (address, _) = address.split_once(';').unwrap();
    (process, address.to_owned())
}

/// Sends bytes. Returns the first line of the answer; empty if the connection ends without one.
fn said_to(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    // The other side may hang up before the end.
    let _ = stream.write_all(bytes);
    let mut line = Vec::new();
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(1)) && byte != *b"\n" {
        line.extend(byte);
    }
    String::from_utf8(line).unwrap()
}

fn hello(address: &str, version: u32) -> Vec<u8> {
    let ports: u16 = address.rsplit_once(':').unwrap().1.parse().unwrap();
    let hello = json!({
        "version": version, "release": env!("CARGO_PKG_VERSION"), "ports": ports,
        "group": "239.255.74.20", "lines": 1,
    });
    format!("{}\n", json!({ "hello": hello })).into_bytes()
}

/// Ends the side that answers. Returns its exit code, and its log.
fn end(mut process: Running) -> (Option<i32>, String) {
    signal(process.child().id(), "TERM");
    let output = process.output();
    (output.status.code(), text(&output.stderr).to_owned())
}

#[test]
fn accept_rdma_serves_only_the_named_host() {
    let (process, address) = answering("127.0.0.2");
    assert_eq!(said_to(&address, &hello(&address, 1)), "");
    let (code, log) = end(process);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("is not the host of --from"), "{log}");
}

#[test]
fn accept_rdma_refuses_what_it_does_not_understand() {
    let (process, address) = answering("127.0.0.1");
    for bytes in [
        &[b'a'; 2 << 20][..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"\"bye\"\n",
        b"{\"order\":\"stop\"}\n",
    ] {
        assert_eq!(said_to(&address, bytes), "");
    }
    let of = |version| -> Value {
        serde_json::from_str(&said_to(&address, &hello(&address, version))).unwrap()
    };
    let newer = of(2);
    assert!(
        newer["refused"].as_str().unwrap().contains("use the same"),
        "{newer}"
    );
    let same = of(1);
    assert!(
        same["refused"].as_str().unwrap().contains("line A over lo"),
        "{same}"
    );
    assert_eq!(end(process).0, Some(1));
}

#[test]
fn accept_rdma_without_a_device_names_the_line() {
    let (process, address) = answering("127.0.0.1");
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let own = [
        "accept-rdma",
        "--peer",
        &address,
        "--report",
        report.to_str().unwrap(),
    ];
    let asked = run(&[&own[..], &LINE[..]].concat());
    let said = text(&asked.stderr);
    assert_eq!(asked.status.code(), Some(1), "{said}");
    assert!(said.contains("line A over lo"), "{said}");
    end(process);
}

#[test]
fn accept_rdma_names_the_steps_for_an_unknown_one() {
    let own = [
        "accept-rdma",
        "--peer",
        "127.0.0.1:1",
        "--report",
        "/nowhere",
        "--only",
        "standby,odd",
    ];
    let asked = run(&[&own[..], &LINE[..]].concat());
    assert_eq!(asked.status.code(), Some(2));
    let said = text(&asked.stderr);
    assert!(
        said.contains("'odd'") && said.contains("repair-read"),
        "{said}"
    );
}
