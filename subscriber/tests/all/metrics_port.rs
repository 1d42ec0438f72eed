//! The metrics of a subscriber on a port of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use tickcast_subscriber::{SubscribeError, Subscriber, SubscriberBuilder};

fn builder() -> SubscriberBuilder {
    // Nobody listens there, and it need not.
    Subscriber::builder("127.0.0.1:9").channel("all")
}

/// Returns the answer to a request for this path under this name.
fn get(address: SocketAddr, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn own_port_serves_metrics_until_the_drop() {
    let any = "127.0.0.1:0".parse().unwrap();
    let builder = builder().metrics_host("risk-1.example");
    let subscriber = builder.metrics_listen(any).build().unwrap();
    let address = subscriber.monitor().metrics_address().unwrap();
    // The port answers while nobody polls the subscriber.
    for host in ["localhost", "127.0.0.1", "risk-1.example"] {
        let page = get(address, "/metrics", host);
        assert!(page.starts_with("HTTP/1.1 200"), "{host}: {page}");
        assert!(page.contains("\ntickcast_subscriber_joined 0\n"), "{page}");
    }
    assert!(get(address, "/healthz", "localhost").ends_with("ok\n"));
    // A web page whose name leads here gets nothing.
    let refused = get(address, "/metrics", "evil.example");
    assert!(!refused.starts_with("HTTP/1.1 200"), "{refused}");
    assert!(!refused.contains("tickcast_subscriber_joined"), "{refused}");
    drop(subscriber);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn port_in_use_is_an_error_with_its_address() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = taken.local_addr().unwrap();
    let error = builder().metrics_listen(busy).build().unwrap_err();
    assert!(error.to_string().contains(&busy.to_string()), "{error}");
    assert!(matches!(error, SubscribeError::MetricsPort { address, .. } if address == busy));
}

#[test]
fn subscriber_without_port_has_no_address() {
    let subscriber = builder().build().unwrap();
    assert_eq!(subscriber.monitor().metrics_address(), None);
}
