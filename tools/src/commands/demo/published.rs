//! The publisher's part of the demo's progress.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Returns the number of records published, from the publisher's metrics; `None` if they are not
/// available.
pub(super) fn published_at(admin: SocketAddr) -> Option<u64> {
    const PATIENCE: Duration = Duration::from_millis(200);
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream
        .write_all(b"GET /metrics HTTP/1.0\r\nConnection: close\r\n\r\n")
        .ok()?;
    let mut text = String::new();
    // A timeout may have cut off the text; the part that arrived may suffice.
    let _ = stream.read_to_string(&mut text);
    let of_line = |line: &str| {
        let value = line.strip_prefix("tickcast_publisher_published_records_total{")?;
        value.rsplit_once(' ')?.1.parse::<u64>().ok()
    };
    text.lines().filter_map(of_line).reduce(|all, n| all + n)
}
