//! One request to an endpoint, and its answer.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use tickcast_transport_base::host::files::DirectoryEntry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

use crate::address::EndpointAddress;
use crate::server::JSON;
use crate::token::Token;

/// Maximum length of an answer.
const ANSWER_LEN_MAX: usize = 4 << 20;
/// Interval between attempts to connect to a socket at which too many connections wait.
const RETRY: Duration = Duration::from_millis(5);

/// Sends a request to the endpoint at `address`: a `POST` if `body` is given, else a `GET`. Waits at most
/// `wait` for the answer. Returns its status and body.
///
/// # Errors
/// Returns an error if no answer arrives in time, or the answer is not HTTP.
pub fn ask(
    address: &EndpointAddress,
    token: Option<&Token>,
    path: &str,
    body: Option<&str>,
    wait: Duration,
) -> io::Result<(u16, String)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let request = request(address, token, path, body)?;
    runtime.block_on(async {
        let answer = timeout(wait, async {
            match address {
                EndpointAddress::Port(address) => {
                    exchange(TcpStream::connect(address).await?, request).await
                }
                EndpointAddress::Socket(path) => exchange(connect(path).await?, request).await,
            }
        });
        answer
            .await
            .unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    })
}

/// Connects to a Unix socket, as soon as its process accepts connections.
async fn connect(path: &Path) -> io::Result<UnixStream> {
    let entry = DirectoryEntry::new(path)?;
    loop {
        match entry.connect() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => sleep(RETRY).await,
            connected => return UnixStream::from_std(connected?),
        }
    }
}

fn request(
    address: &EndpointAddress,
    token: Option<&Token>,
    path: &str,
    body: Option<&str>,
) -> io::Result<Request<Full<Bytes>>> {
    let host = match address {
        EndpointAddress::Port(address) => address.to_string(),
        EndpointAddress::Socket(_) => "localhost".into(),
    };
    let method = body.map_or(Method::GET, |_| Method::POST);
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, host)
        .header(CONNECTION, "close")
        .header(CONTENT_TYPE, JSON);
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, token.header());
    }
    let body = body.unwrap_or_default().to_owned();
    let request = request.body(Full::from(body));
    request.map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Full<Bytes>>,
) -> io::Result<(u16, String)> {
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(failed)?;
    let driver = tokio::spawn(connection);
    let answer = async {
        let answer = sender.send_request(request).await.map_err(failed)?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER_LEN_MAX);
        let body = body.collect().await.map_err(not_whole)?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    };
    let answer = answer.await;
    driver.abort();
    answer
}

fn failed(error: hyper::Error) -> io::Error {
    let kind = if error.is_parse() {
        ErrorKind::InvalidData
    } else if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
        ErrorKind::UnexpectedEof
    } else {
        ErrorKind::Other
    };
    // The cause is more specific than the error, where there is one.
    let cause = error.source().and_then(|it| it.downcast_ref::<io::Error>());
    match cause {
        Some(cause) => io::Error::new(cause.kind(), cause.to_string()),
        None => io::Error::new(kind, error),
    }
}

fn not_whole(error: Box<dyn Error + Send + Sync>) -> io::Error {
    match error.downcast::<hyper::Error>() {
        Ok(error) => failed(*error),
        Err(error) if error.is::<LengthLimitError>() => {
            let text = format!("the answer has more than {ANSWER_LEN_MAX} bytes");
            io::Error::new(ErrorKind::InvalidData, text)
        }
        Err(error) => io::Error::new(ErrorKind::InvalidData, error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Longer than any step of a test, so that a hang becomes a failure.
    const PATIENCE: Duration = Duration::from_secs(600);

    #[test]
    fn truncated_or_non_http_response_is_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().into();
        let answers = [
            "",
            "HTTP/1.1 200 OK\r\nA: b",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n{}",
        ];
        let server = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n{}") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    asked.push(byte[0]);
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let asked = || ask(&address, None, "/promote", Some("{}"), PATIENCE);
        for kind in [
            ErrorKind::UnexpectedEof,
            ErrorKind::UnexpectedEof,
            ErrorKind::UnexpectedEof,
            ErrorKind::InvalidData,
        ] {
            let error = asked().unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
        assert_eq!(asked().unwrap(), (200, "{}".into()));
        server.join().unwrap();
    }

    /// Answers one request with `head`, and then with `again` until nobody reads. Returns the error of the
    /// request.
    fn endless(head: &str, again: &[u8], wait: Duration) -> io::Error {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().into();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                // An answer before its question would be another error.
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    // The client may have given up.
                    if stream.read_exact(&mut byte).is_err() {
                        return;
                    }
                    asked.extend(byte);
                }
                let _ = stream.write_all(head.as_bytes());
                while stream.write_all(again).is_ok() {}
            });
            ask(&address, None, "/", None, wait).unwrap_err()
        })
    }

    #[test]
    fn endless_answer_is_an_error_in_bounded_memory() {
        let head = "HTTP/1.1 200 OK\r\n";
        let body = endless(&format!("{head}\r\n"), &[b'x'; 9_999], PATIENCE);
        assert!(
            body.to_string().contains("more than 4194304 bytes"),
            "{body}"
        );
        for (head, again) in [
            (head, &b"a: b\r\n"[..]),
            (head, b"x"),
            ("HTTP/1.1 200 ", b"x"),
        ] {
            let error = endless(head, &again.repeat(9_999), PATIENCE);
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        }
        // Each of these is whole, and none is the answer.
        let wait = Duration::from_millis(20);
        let more = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(999);
        let error = endless("", &more, wait);
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }

    #[test]
    fn silent_endpoint_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().into();
        let asked = ask(&address, None, "/", None, Duration::from_millis(20));
        assert_eq!(asked.unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn socket_with_full_backlog_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let entry = DirectoryEntry::new(&path).unwrap();
        let _stopped = DirectoryEntry::new(&path).unwrap().listen().unwrap();
        let waiting: Vec<_> = std::iter::from_fn(|| entry.connect().ok()).collect();
        assert!(!waiting.is_empty());
        let asked = ask(
            &EndpointAddress::Socket(path),
            None,
            "/",
            None,
            Duration::from_millis(20),
        );
        assert_eq!(asked.unwrap_err().kind(), ErrorKind::TimedOut);
    }
}
