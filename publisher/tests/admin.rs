//! The admin port under hostile clients: each costs a bounded time and a bounded amount of memory,
//! and delays neither other clients nor the publisher's end.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use common::{PATIENCE, Publisher, config, group, wait_for};
use serde_json::json;

fn publisher() -> Publisher {
    let input = json!({
        "source": 7, "kind": "simulator", "messages": 1_000_000, "pace": { "messages_per_s": 1000 },
    });
    Publisher::start(&config(group(), input))
}

fn connect(publisher: &Publisher) -> TcpStream {
    let stream = TcpStream::connect(publisher.ready["admin"].as_str().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Returns the whole answer, even if the connection is reset after it.
fn ask(publisher: &Publisher, request: &[u8]) -> String {
    let mut stream = connect(publisher);
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    let timed_out = ended.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!timed_out, "neither answered nor closed");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns the metrics, as soon as a connection is free.
fn metrics(publisher: &Publisher) -> String {
    wait_for("the metrics", || {
        let answer = ask(publisher, b"GET /metrics HTTP/1.1\r\n\r\n");
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    })
}

fn series(metrics: &str, name: &str) -> u64 {
    let start = format!("tickcast_publisher_{name} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap().parse().unwrap()
}

fn ends_whole(publisher: Publisher) {
    publisher.terminate();
    let (code, summary) = publisher.finish();
    assert_eq!(code, Some(0), "{summary:#}");
    assert_eq!(summary["ended"], true);
}

#[test]
fn announced_body_length_is_ignored_by_admin_port() {
    let mut publisher = publisher();
    for len in ["99999999999", "18446744073709551615", "-1", "1e99"] {
        let head = format!("POST /metrics HTTP/1.1\r\nContent-Length: {len}\r\n\r\n");
        let answer = ask(&publisher, head.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 405"), "{len}: {answer}");
        assert!(answer.contains("\r\nAllow: GET, HEAD\r\n"), "{answer}");
        let head = head.replace("POST", "GET");
        assert!(ask(&publisher, head.as_bytes()).starts_with("HTTP/1.1 200"));
    }
    let chunked = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n";
    assert!(ask(&publisher, chunked).starts_with("HTTP/1.1 405"));
    assert!(publisher.is_running());
    ends_whole(publisher);
}

#[test]
fn publisher_without_live_source_is_ready() {
    let publisher = publisher();
    let answer = ask(&publisher, b"GET /readyz HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nready\n"), "{answer}");
    ends_whole(publisher);
}

#[test]
fn request_head_over_8_kib_is_refused() {
    let mut publisher = publisher();
    let head = |len: usize| {
        let mut head = b"GET /healthz HTTP/1.1\r\nA: ".to_vec();
        head.resize(len - 4, b'a');
        head.extend(b"\r\n\r\n");
        head
    };
    assert!(ask(&publisher, &head(8192)).starts_with("HTTP/1.1 200"));
    assert!(ask(&publisher, &head(8193)).starts_with("HTTP/1.1 431"));
    let mut endless = connect(&publisher);
    endless.write_all(b"GET / HTTP/1.1\r\nA: ").unwrap();
    wait_for("the end of the connection", || {
        endless.write_all(&[b'a'; 4096]).is_err().then_some(())
    });
    assert!(publisher.is_running());
}

#[test]
fn oversize_request_is_answered_without_reset() {
    let publisher = publisher();
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(20_000));
    for _ in 0..10 {
        let mut stream = connect(&publisher);
        stream.write_all(long.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is not reset");
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    // A client that keeps sending is cut off.
    let mut endless = connect(&publisher);
    wait_for("the end of the connection", || {
        endless.write_all(&[b'a'; 4096]).is_err().then_some(())
    });
    ends_whole(publisher);
}

#[test]
fn unread_client_delays_neither_others_nor_end() {
    let mut publisher = publisher();
    let many = b"GET /metrics HTTP/1.1\r\n\r\n".repeat(300);
    let mut idle = Vec::new();
    for _ in 0..4 {
        let mut stream = connect(&publisher);
        // The publisher may accept or reset it.
        let _ = stream.write_all(&many);
        idle.push(stream);
    }
    metrics(&publisher);
    // Opens more silent connections than the limit; those beyond it are closed at once.
    wait_for("a refusal and failures to be counted", || {
        for _ in 0..20 {
            idle.push(connect(&publisher));
        }
        let metrics = metrics(&publisher);
        let refused = series(&metrics, "admin_refused");
        (series(&metrics, "admin_failed") >= 8 && refused >= 1).then_some(())
    });
    assert!(publisher.is_running());
    // The end must not wait for the open silent connections.
    for _ in 0..8 {
        idle.push(connect(&publisher));
    }
    ends_whole(publisher);
    drop(idle);
}

#[test]
fn admin_connection_serves_one_request_and_closes() {
    let publisher = publisher();
    let twice = b"GET /healthz HTTP/1.1\r\n\r\n".repeat(2);
    let answer = ask(&publisher, &twice);
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    let answer = ask(&publisher, b"HEAD /healthz HTTP/1.1\r\n\r\n");
    assert!(answer.contains("\r\nContent-Length: 3\r\n") && answer.ends_with("\r\n\r\n"));
    for nonsense in [&b"\0\0nonsense\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n"] {
        assert!(ask(&publisher, nonsense).starts_with("HTTP/1.1 400"));
    }
}
