//! The admin port: `/metrics` for Prometheus (text format 0.0.4), `/status` as JSON, `/healthz`.
//! Whoever asks gets one answer within a fixed time and a fixed amount of memory, or is closed: no
//! client holds up another one, nor the publisher's end.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

use crate::error::PublisherError;
use crate::metrics::metrics;
use crate::shared::Shared;
use crate::summary::Summary;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
/// Between looks at whether somebody connects or the publisher shuts down.
const WAIT: Duration = Duration::from_millis(20);
/// All that a connection may take, from its first byte to the last of its answer.
const DEADLINE: Duration = Duration::from_secs(2);
const CONNECTIONS_MAX: usize = 8;
const HEAD_LEN_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;

tickcast_reliability::counters! {
    /// What came of connections to the admin port; written by its thread alone.
    pub struct AdminCounters {
        /// Connections to the admin port that were taken.
        admin_connections,
        /// Connections to the admin port closed at once, because as many as allowed were open.
        admin_refused,
        /// Connections to the admin port that got no whole answer in time.
        admin_failed,
    }
}

/// The admin endpoint, listening.
pub struct Admin {
    listener: TcpListener,
    address: SocketAddr,
}

impl Admin {
    /// Listens at `address`; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`PublisherError::Listen`].
    pub fn bind(address: SocketAddr) -> Result<Self, PublisherError> {
        let open = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        open().map_err(|error: io::Error| PublisherError::Listen {
            what: "admin",
            address,
            reason: error.to_string(),
        })
    }

    /// The address it listens at.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until the publisher shuts down. Does not wait for connections that are open then;
    /// their threads end by their own deadline.
    pub fn run(&self, shared: &Arc<Shared>) {
        let counters = &shared.admin;
        let mut open: Vec<JoinHandle<io::Result<()>>> = Vec::with_capacity(CONNECTIONS_MAX);
        let mut warned = false;
        while !shared.is_shutting_down() {
            for done in open.extract_if(.., |thread| thread.is_finished()) {
                if !matches!(done.join(), Ok(Ok(()))) {
                    counters.admin_failed.increment();
                }
            }
            match self.listener.accept() {
                Ok(_) if open.len() >= CONNECTIONS_MAX => counters.admin_refused.increment(),
                Ok((stream, _)) => {
                    warned = false;
                    counters.admin_connections.increment();
                    let shared = shared.clone();
                    let thread = Builder::new().name("admin-peer".into());
                    match thread.spawn(move || answer(&stream, &shared)) {
                        Ok(thread) => open.push(thread),
                        Err(_) => counters.admin_failed.increment(),
                    }
                }
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock && !warned {
                        warned = true;
                        tracing::warn!(%error, "the admin port could not take a connection");
                    }
                    sleep(WAIT);
                }
            }
        }
    }
}

/// A connection of which every read and write ends by one deadline.
struct Bounded<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Bounded<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (!left.is_zero())
            .then_some(left)
            .ok_or_else(|| ErrorKind::TimedOut.into())
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(bytes)
    }
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is asked for, or the status that says why nobody knows.
struct Asked {
    status: &'static str,
    path: String,
    is_head: bool,
}

impl Asked {
    fn wrong(status: &'static str) -> Self {
        Self {
            status,
            path: String::new(),
            is_head: false,
        }
    }

    /// Reads one request's head and nothing after it: a body is nobody's business here.
    fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; HEAD_LEN_MAX];
        let mut len = 0;
        loop {
            if len == bytes.len() {
                return Ok(Self::wrong("431 Request Header Fields Too Large"));
            }
            match from.read(&mut bytes[len..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => len += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut request = httparse::Request::new(&mut headers);
            match request.parse(&bytes[..len]) {
                Ok(httparse::Status::Partial) => {}
                Ok(httparse::Status::Complete(_)) => {
                    let method = request.method.unwrap_or_default();
                    if !matches!(method, "GET" | "HEAD") {
                        return Ok(Self::wrong("405 Method Not Allowed"));
                    }
                    let path = request.path.unwrap_or_default();
                    let path = path.split(['?', '#']).next().unwrap_or_default();
                    return Ok(Self {
                        status: "200 OK",
                        path: path.to_owned(),
                        is_head: method == "HEAD",
                    });
                }
                Err(httparse::Error::TooManyHeaders) => {
                    return Ok(Self::wrong("431 Request Header Fields Too Large"));
                }
                Err(_) => return Ok(Self::wrong("400 Bad Request")),
            }
        }
    }
}

fn answer(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let until = Instant::now() + DEADLINE;
    let mut peer = Bounded { stream, until };
    let asked = Asked::read(&mut peer)?;
    let (status, kind, body) = match (asked.status, &*asked.path) {
        (ok @ "200 OK", "/metrics") => (ok, TEXT, metrics(shared)),
        (ok @ "200 OK", "/healthz") => (ok, TEXT, "ok\n".to_owned()),
        (ok @ "200 OK", "/status") => (ok, JSON, Summary::of(shared).json().to_string()),
        ("200 OK", _) => {
            let body = "try /metrics, /status or /healthz\n".to_owned();
            ("404 Not Found", TEXT, body)
        }
        (wrong, _) => (
            wrong,
            TEXT,
            "only a short GET is answered here\n".to_owned(),
        ),
    };
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let len = body.len();
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{allow}\
         Connection: close\r\n\r\n"
    );
    if !asked.is_head {
        answer.push_str(&body);
    }
    peer.write_all(answer.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time, as a network may.
    struct Bytes<'a>(&'a [u8]);

    impl Read for Bytes<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let n = self.0.len().min(1).min(to.len());
            to[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn a_head_in_pieces_is_understood_and_what_follows_it_is_not_read() {
        let text = b"HEAD /metrics?x HTTP/1.1\r\nHost: a\r\n\r\nbody";
        let mut bytes = Bytes(text);
        let asked = Asked::read(&mut bytes).unwrap();
        assert_eq!((asked.status, &*asked.path), ("200 OK", "/metrics"));
        assert!(asked.is_head);
        assert_eq!(bytes.0, b"body");
        let cut = Asked::read(&mut Bytes(&text[..30])).map(|asked| asked.status);
        assert_eq!(cut.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        let many = Asked::read(&mut Bytes(many.as_bytes())).unwrap();
        assert!(many.status.starts_with("431"));
    }

    #[test]
    fn a_peer_that_does_not_read_or_trickles_is_given_up_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let soon = || Bounded {
            stream: &stream,
            until: Instant::now() + Duration::from_millis(20),
        };
        // More than all buffers on the way hold.
        let error = soon().write_all(&vec![0; 64 << 20]).unwrap_err();
        let given_up = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
        assert!(given_up.contains(&error.kind()), "{error}");
        let error = soon().read(&mut [0]).unwrap_err();
        assert!(given_up.contains(&error.kind()), "{error}");
        // Not even what is there is taken when the time is over.
        peer.write_all(b"G").unwrap();
        let until = Instant::now();
        let stream = &stream;
        let error = Bounded { stream, until }.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
