//! The HTTP subset of an admin port: one request with a short body, one answer, and the connection
//! closes. Both sides read and write against one deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

const HEAD_LEN_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
/// Maximum length of a request's body.
const BODY_LEN_MAX: usize = 16 << 10;
/// Maximum length of an answer.
const ANSWER_LEN_MAX: u64 = 4 << 20;

/// A connection whose reads and writes share one deadline.
pub(crate) struct Bounded<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl<'a> Bounded<'a> {
    /// Bounds all reads and writes of `stream` by this deadline.
    #[must_use]
    pub(crate) const fn new(stream: &'a TcpStream, until: Instant) -> Self {
        Self { stream, until }
    }

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

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Read a resource.
    Get,
    /// Read the headers of a resource.
    Head,
    /// Perform an action.
    Post,
}

/// A parsed request, or the error status for it.
#[derive(Debug)]
pub struct Asked {
    /// `200 OK` if the request was understood.
    pub status: &'static str,
    /// Method of the request.
    pub method: Method,
    /// Path, without the query after a `?`.
    pub path: String,
    /// Body of a `POST` to a path that accepts one; otherwise empty.
    pub body: Vec<u8>,
}

impl Asked {
    fn wrong(status: &'static str) -> Self {
        Self {
            status,
            method: Method::Get,
            path: String::new(),
            body: Vec::new(),
        }
    }

    /// Reads one request. Reads the body of a `POST` if `takes_post` accepts its path; refuses any other
    /// `POST` unread.
    ///
    /// # Errors
    /// Returns an error if the peer closes the connection within the request, or is too slow.
    pub fn read(from: &mut impl Read, takes_post: fn(&str) -> bool) -> io::Result<Self> {
        let mut bytes = [0; HEAD_LEN_MAX];
        let mut len = 0;
        loop {
            if len == bytes.len() {
                return Ok(Self::wrong("431 Request Header Fields Too Large"));
            }
            len += read_some(from, &mut bytes[len..])?;
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut request = httparse::Request::new(&mut headers);
            let head = match request.parse(&bytes[..len]) {
                Ok(httparse::Status::Partial) => continue,
                Ok(httparse::Status::Complete(head)) => head,
                Err(httparse::Error::TooManyHeaders) => {
                    return Ok(Self::wrong("431 Request Header Fields Too Large"));
                }
                Err(_) => return Ok(Self::wrong("400 Bad Request")),
            };
            let path = request.path.unwrap_or_default();
            let path = path.split(['?', '#']).next().unwrap_or_default().to_owned();
            let method = match request.method.unwrap_or_default() {
                "GET" => Method::Get,
                "HEAD" => Method::Head,
                "POST" if takes_post(&path) => Method::Post,
                _ => return Ok(Self::wrong("405 Method Not Allowed")),
            };
            let mut asked = Self {
                status: "200 OK",
                method,
                path,
                body: Vec::new(),
            };
            if method == Method::Post {
                // A browser can't send this content type across origins without a preflight, so no web page
                // can act behind its user's back.
                if !is_json(request.headers) {
                    return Ok(Self::wrong("415 Unsupported Media Type"));
                }
                let Some(length) = body_length(request.headers) else {
                    return Ok(Self::wrong("411 Length Required"));
                };
                if length > BODY_LEN_MAX {
                    return Ok(Self::wrong("413 Content Too Large"));
                }
                asked.body.extend_from_slice(&bytes[head..len]);
                while asked.body.len() < length {
                    let at = asked.body.len();
                    asked.body.resize(length, 0);
                    let read = read_some(from, &mut asked.body[at..])?;
                    asked.body.truncate(at + read);
                }
                asked.body.truncate(length);
            }
            return Ok(asked);
        }
    }
}

fn read_some(from: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(to) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Returns whether the content type is JSON.
fn is_json(headers: &[httparse::Header<'_>]) -> bool {
    let mut kinds = (headers.iter()).filter(|it| it.name.eq_ignore_ascii_case("content-type"));
    kinds.any(|it| {
        let kind = it.value.split(|byte| *byte == b';').next();
        kind.is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"application/json"))
    })
}

/// Returns the length of a request's body: 0 if no header gives one, `None` if it can't be determined.
fn body_length(headers: &[httparse::Header<'_>]) -> Option<usize> {
    let mut length = Some(0);
    for header in headers {
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return None;
        }
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).ok()?;
            length = text.trim().parse().ok();
        }
    }
    length
}

/// Sends a request to the admin port at `address`: a `POST` if `body` is given, else a `GET`. Waits at
/// most `wait` for the answer. Returns its status and body.
///
/// # Errors
/// Returns an error if no answer arrives in time, or the answer is not HTTP.
pub fn ask(
    address: SocketAddr,
    path: &str,
    body: Option<&str>,
    wait: Duration,
) -> io::Result<(u16, String)> {
    let until = Instant::now() + wait;
    let stream = TcpStream::connect_timeout(&address, wait)?;
    let mut peer = Bounded::new(&stream, until);
    let (method, text) = match body {
        Some(body) => ("POST", body),
        None => ("GET", ""),
    };
    let length = text.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    );
    peer.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    peer.take(ANSWER_LEN_MAX).read_to_end(&mut bytes)?;
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    let no_http = || io::Error::new(ErrorKind::InvalidData, "the answer is not HTTP");
    match answer.parse(&bytes) {
        Ok(httparse::Status::Complete(head)) => {
            let body = String::from_utf8_lossy(&bytes[head..]).into_owned();
            Ok((answer.code.unwrap_or(0), body))
        }
        // The peer closed the connection within its answer.
        Ok(httparse::Status::Partial) => Err(ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(no_http()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

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

    fn read(text: &[u8]) -> io::Result<Asked> {
        Asked::read(&mut Bytes(text), |path| path == "/promote")
    }

    #[test]
    fn head_in_pieces_is_parsed_and_rest_unread() {
        let text = b"HEAD /metrics?x HTTP/1.1\r\nHost: a\r\n\r\nbody";
        let mut bytes = Bytes(text);
        let asked = Asked::read(&mut bytes, |_| false).unwrap();
        assert_eq!((asked.status, &*asked.path), ("200 OK", "/metrics"));
        assert_eq!(asked.method, Method::Head);
        assert_eq!(bytes.0, b"body");
        let cut = read(&text[..30]).map(|asked| asked.status);
        assert_eq!(cut.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        assert!(read(many.as_bytes()).unwrap().status.starts_with("431"));
    }

    #[test]
    fn http_body_is_read_only_as_announced() {
        let post = |path: &str, length: &str, body: &str| {
            let kind = "Content-Type: application/json; charset=utf-8";
            read(format!("POST {path} HTTP/1.1\r\n{kind}\r\n{length}\r\n{body}").as_bytes())
                .unwrap()
        };
        let from_a_page = read(b"POST /promote HTTP/1.1\r\nContent-Type: text/plain\r\n\r\n");
        assert!(from_a_page.unwrap().status.starts_with("415"));
        let asked = post("/promote", "content-length: 4\r\n", "{  }more");
        assert_eq!((asked.method, &*asked.body), (Method::Post, &b"{  }"[..]));
        assert!(post("/promote", "", "").body.is_empty());
        for (path, length, status) in [
            ("/metrics", "Content-Length: 4\r\n", "405"),
            ("/promote", "Content-Length: 99999999\r\n", "413"),
            ("/promote", "Content-Length: -1\r\n", "411"),
            ("/promote", "Transfer-Encoding: chunked\r\n", "411"),
        ] {
            let asked = post(path, length, "");
            assert!(asked.status.starts_with(status), "{}", asked.status);
        }
    }

    #[test]
    fn unread_or_trickling_peer_ends_at_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let soon = || Bounded::new(&stream, Instant::now() + Duration::from_millis(20));
        // More than all buffers of the connection hold.
        let error = soon().write_all(&vec![0; 64 << 20]).unwrap_err();
        let given_up = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
        assert!(given_up.contains(&error.kind()), "{error}");
        let error = soon().read(&mut [0]).unwrap_err();
        assert!(given_up.contains(&error.kind()), "{error}");
        // After the deadline, even available data is not read.
        peer.write_all(b"G").unwrap();
        let error = Bounded::new(&stream, Instant::now()).read(&mut [0]);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn truncated_or_non_http_response_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers = ["", "HTTP/1.1 200 OK\r\nA: b", "SSH-2.0\r\n\r\n"];
        let server = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let asked = Asked::read(&mut stream, |_| true).unwrap();
                assert_eq!(asked.body, b"{}");
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        for kind in [
            ErrorKind::UnexpectedEof,
            ErrorKind::UnexpectedEof,
            ErrorKind::InvalidData,
        ] {
            let asked = ask(address, "/promote", Some("{}"), Duration::from_secs(60));
            assert_eq!(asked.unwrap_err().kind(), kind);
        }
        server.join().unwrap();
    }
}
