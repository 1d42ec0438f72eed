//! The page for browsers, and the stream of events that feeds it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::common::{PATIENCE, Publisher, config, group, wait_for};
use serde_json::{Value, json};

const EVENTS: &str = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
/// Streams of one address, and streams in all.
const STREAMS: [usize; 2] = [4, 16];

fn paced() -> Value {
    let input = json!({
        "source": 7, "kind": "simulator", "messages": 1_000_000, "pace": { "messages_per_s": 1000 },
    });
    config(group(), input)
}

/// Returns the head of an answer, and its body.
fn parts(answer: &str) -> (&str, &str) {
    answer.split_once("\r\n\r\n").unwrap()
}

fn status(publisher: &Publisher) -> Value {
    let answer = publisher.get("/status");
    serde_json::from_str(parts(&answer).1).unwrap()
}

/// An event as a client reads it.
#[derive(Debug)]
struct Event {
    name: String,
    data: String,
}

/// A stream of events.
struct Events {
    from: BufReader<TcpStream>,
    head: String,
    /// Bytes of chunks that no event has taken yet.
    unread: String,
}

impl Events {
    /// Requests a stream from this address of loopback.
    fn open(publisher: &Publisher, from: u8) -> Self {
        let to: SocketAddr = publisher.ready["admin"].as_str().unwrap().parse().unwrap();
        let socket = socket2::Socket::new(
            socket2::Domain::IPV4,
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        );
        let socket = socket.unwrap();
        let own = SocketAddr::from(([127, 0, 0, from], 0));
        socket.bind(&own.into()).unwrap();
        socket.connect(&to.into()).unwrap();
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(EVENTS.as_bytes()).unwrap();
        let (mut from, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(from.read_line(&mut head).unwrap(), 0, "{head}");
        }
        let unread = String::new();
        Self { from, head, unread }
    }

    fn is_open(&self) -> bool {
        self.head.starts_with("HTTP/1.1 200")
    }

    /// Returns the next event; `None` at the end of the stream.
    fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.unread.split_once("\n\n") {
                let (name, lines) = event.split_once('\n').unwrap();
                let lines = lines
                    .lines()
                    .map(|line| line.strip_prefix("data: ").unwrap());
                let event = Event {
                    name: name.strip_prefix("event: ").unwrap().into(),
                    data: lines.collect::<Vec<_>>().join("\n"),
                };
                self.unread = rest.into();
                return Some(event);
            }
            self.chunk()?;
        }
    }

    fn chunk(&mut self) -> Option<()> {
        let mut line = String::new();
        if self.from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let len = usize::from_str_radix(line.trim_end(), 16).unwrap();
        let mut bytes = vec![0; len + 2];
        self.from.read_exact(&mut bytes).ok()?;
        bytes.truncate(len);
        self.unread += str::from_utf8(&bytes).unwrap();
        Some(())
    }

    /// Returns the next status.
    fn status(&mut self) -> Value {
        loop {
            let event = self.next().unwrap();
            if event.name == "status" {
                return serde_json::from_str(&event.data).unwrap();
            }
        }
    }
}

fn ends_whole(publisher: Publisher) {
    publisher.terminate();
    let (code, summary) = publisher.finish();
    assert_eq!(code, Some(0), "{summary:#}");
}

#[test]
fn page_is_served_with_strict_headers() {
    let publisher = Publisher::start(&paced());
    let answer = publisher.get("/");
    let (head, body) = parts(&answer);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(body.starts_with("<!doctype html>"), "{body}");
    let policy = head
        .lines()
        .find_map(|it| it.strip_prefix("Content-Security-Policy: "));
    let policy: Vec<_> = policy.unwrap().split("; ").collect();
    for directive in [
        "default-src 'none'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(&directive), "{policy:?}");
    }
    assert!(!head.contains("unsafe") && !head.contains('*'), "{head}");
    for path in ["/", "/status", "/losses", "/metrics", "/readyz", "/nothing"] {
        let answer = publisher.get(path);
        let head = parts(&answer).0;
        for header in [
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
            "Referrer-Policy: no-referrer",
            "Cross-Origin-Resource-Policy: same-origin",
        ] {
            assert!(
                head.lines().any(|it| it == header),
                "{path} {header}: {head}"
            );
        }
        assert!(
            head.contains("Content-Security-Policy: default-src 'none'"),
            "{head}"
        );
    }
    ends_whole(publisher);
}

#[test]
fn page_and_events_are_refused_under_foreign_host() {
    let publisher = Publisher::start(&paced());
    for path in ["/", "/events"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: attacker.example\r\n\r\n");
        let answer = publisher.admin(&request);
        assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
        assert!(!answer.contains("published_records"), "{answer}");
    }
    let head = publisher.admin("HEAD /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    assert!(
        head.contains("\r\nContent-Type: text/event-stream\r\n"),
        "{head}"
    );
    ends_whole(publisher);
}

/// Returns all keys of a document, with those of its lists' entries.
fn keys(of: &Value) -> Vec<String> {
    let mut all = Vec::new();
    match of {
        Value::Object(map) => {
            for (key, value) in map {
                all.push(key.clone());
                all.extend(
                    keys(value)
                        .into_iter()
                        .map(|inner| format!("{key}.{inner}")),
                );
            }
        }
        Value::Array(list) => all.extend(list.iter().flat_map(keys)),
        _ => {}
    }
    all.sort();
    all.dedup();
    all
}

#[test]
fn events_are_the_pages_that_get_answers() {
    let publisher = Publisher::start(&paced());
    // Types of messages are keys that may come later.
    wait_for("records", || {
        (status(&publisher)["published_records"].as_u64()? > 500).then_some(())
    });
    let before = status(&publisher);
    let mut events = Events::open(&publisher, 1);
    assert!(
        events
            .head
            .contains("\r\nContent-Type: text/event-stream\r\n"),
        "{}",
        events.head
    );
    assert!(!events.head.contains("Content-Length"), "{}", events.head);
    let ready = events.next().unwrap();
    assert_eq!((&*ready.name, &*ready.data), ("readyz", "ready"));
    let losses = events.next().unwrap();
    assert_eq!(losses.name, "losses");
    assert_eq!(losses.data, parts(&publisher.get("/losses")).1);
    let first = events.status();
    let after = status(&publisher);
    let without_types = |of: &Value| {
        let mut all = keys(of);
        all.retain(|key| !key.contains("messages."));
        all
    };
    assert_eq!(without_types(&first), without_types(&after));
    let records = [&before, &first, &after].map(|it| it["published_records"].as_u64().unwrap());
    assert!(records.is_sorted(), "{records:?}");
    for key in ["name", "epoch", "ended", "standby"] {
        assert_eq!(first[key], after[key], "{key}");
    }
    // Only what changes comes again: the status, and losses once there is one.
    assert_eq!(events.next().unwrap().name, "status");
    let mut control = publisher.connect();
    let epoch = control.join("<b>risk</b>").channels[0].epoch;
    control.nack(epoch, &[(1 << 40, 1 << 40)]);
    let losses = wait_for("the loss", || {
        events.next().filter(|it| it.name == "losses")
    });
    let losses: Value = serde_json::from_str(&losses.data).unwrap();
    let loss = &losses["losses"][0];
    assert_eq!(loss["subscriber"], "<b>risk</b>");
    wait_for("its fields", || {
        let listed: Value = serde_json::from_str(parts(&publisher.get("/losses")).1).unwrap();
        (keys(&listed) == keys(&losses)).then_some(())
    });
    ends_whole(publisher);
}

#[test]
fn streams_are_limited_by_address_and_in_all() {
    let publisher = Publisher::start(&paced());
    let [of_address, total] = STREAMS;
    let mut open = Vec::new();
    for from in 1..=5 {
        for nth in 0..of_address + 1 {
            let stream = Events::open(&publisher, from);
            let is_within = nth < of_address && open.len() < total;
            assert_eq!(stream.is_open(), is_within, "{from} {nth}: {}", stream.head);
            if is_within {
                open.push(stream);
            } else {
                assert!(stream.head.starts_with("HTTP/1.1 503"), "{}", stream.head);
            }
        }
    }
    assert_eq!(open.len(), total);
    // Other connections displace no stream, and are served beside them.
    for _ in 0..200 {
        assert!(publisher.get("/healthz").starts_with("HTTP/1.1 200"));
    }
    for stream in &mut open {
        let epochs = [stream.status(), stream.status()].map(|it| it["epoch"].clone());
        assert_eq!(epochs[0], epochs[1]);
    }
    drop(open.pop());
    // The publisher notices at the next snapshot.
    let reopened = wait_for("a free place", || {
        let stream = Events::open(&publisher, 9);
        stream.is_open().then_some(stream)
    });
    drop(reopened);
    ends_whole(publisher);
}

#[test]
fn stream_ends_with_its_publisher_and_the_next_one_serves() {
    let publisher = Publisher::start(&paced());
    let mut events = Events::open(&publisher, 1);
    let epoch = events.status()["epoch"].clone();
    let mut config = paced();
    config["admin"] = publisher.ready["admin"].clone();
    ends_whole(publisher);
    while events.next().is_some() {}
    let publisher = Publisher::start(&config);
    let next = Events::open(&publisher, 1).status();
    assert_eq!(next["name"], "test");
    assert!(next["epoch"].as_u64() > epoch.as_u64(), "{next}");
    ends_whole(publisher);
}
