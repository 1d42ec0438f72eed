//! The conversation of two doctors over one TCP connection: JSON objects, one a line, all bounded.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tickcast_tools::support::plain::Plain;

use super::counters::Counters;

/// Version of the conversation. Doctors of different versions refuse each other.
pub(super) const VERSION: u32 = 1;
/// Longest line, in bytes.
const LINE_LEN_MAX: usize = 4_096;
/// Longest text of the other side in a report, in characters.
const TEXT_LEN_MAX: usize = 256;

/// Introduction of a doctor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hello {
    /// Version of the conversation.
    pub(super) version: u32,
    /// The group that the datagrams go to.
    pub(super) group: SocketAddrV4,
    /// Number of this run, which its datagrams carry.
    pub(super) run: u64,
    /// Name of the sender's interface.
    pub(super) interface: String,
    /// Longest packet of that interface, in bytes; 0 if unknown.
    pub(super) mtu: u64,
}

/// One message. The asking side opens each step, and the answering side replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Message {
    /// The introduction of either side.
    Hello(Hello),
    /// The answering side ends the conversation, with the reason.
    Refused(String),
    /// Count datagrams of this many bytes.
    Receive(usize),
    /// The answering side counts from here on.
    Receiving,
    /// The asking side has sent its datagrams.
    Sent,
    /// The counted datagrams, and the changes of the counters meanwhile.
    Arrived(u64, Counters),
    /// Send datagrams of this many bytes.
    Send(usize),
    /// The datagrams that the kernel took, and the changes of the counters meanwhile.
    HaveSent(u64, Counters),
    /// The end of the run.
    Bye,
}

/// Reason why a conversation ends early.
#[derive(Debug, Error)]
pub(super) enum TalkError {
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The other side closed the connection.
    #[error("the other side closed the connection")]
    Closed,
    /// Nothing arrived in time.
    #[error("the other side did not answer in time")]
    Silent,
    /// A line is too long.
    #[error("the other side sent a line of more than {LINE_LEN_MAX} bytes")]
    TooLong,
    /// A line is no message.
    #[error("the other side sent no message of a doctor: {}", Plain(.0))]
    NoMessage(serde_json::Error),
    /// A message does not belong here.
    #[error("the other side sent another message than {0}")]
    Unexpected(&'static str),
    /// The other side refuses.
    #[error("the other side refused: {}", shortened(.0))]
    Refused(String),
}

/// Returns a text of the other side, cut and without control characters.
fn shortened(text: &str) -> String {
    super::super::check::one_line(text)
        .chars()
        .take(TEXT_LEN_MAX)
        .collect()
}

/// A conversation with a deadline. Every call ends by then.
pub(super) struct PeerStream {
    stream: TcpStream,
    until: Instant,
    /// Bytes that arrived and are no whole line yet.
    arrived: Vec<u8>,
}

impl PeerStream {
    /// Starts a conversation that ends within `limit`.
    ///
    /// # Errors
    /// Returns [`TalkError::Io`] if the socket can't be set up.
    pub(super) fn new(stream: TcpStream, limit: Duration) -> Result<Self, TalkError> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            until: Instant::now() + limit,
            arrived: Vec::new(),
        })
    }

    /// Sets the deadline anew, to `limit` from here.
    pub(super) fn extend(&mut self, limit: Duration) {
        self.until = Instant::now() + limit;
    }

    /// Returns the time left, at least a millisecond, because a socket takes no limit of zero.
    fn left(&self) -> Result<Duration, TalkError> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(TalkError::Silent);
        }
        Ok(left.max(Duration::from_millis(1)))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// Returns [`TalkError`] if the connection fails or the deadline passes.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), TalkError> {
        let mut line = serde_json::to_vec(message).map_err(TalkError::NoMessage)?;
        line.push(b'\n');
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(&line).map_err(in_time)
    }

    /// Receives a message.
    ///
    /// # Errors
    /// Returns [`TalkError`] if the connection fails, the deadline passes, or the line is no message.
    pub(super) fn receive(&mut self) -> Result<Message, TalkError> {
        loop {
            if let Some(end) = self.arrived.iter().position(|b| *b == b'\n') {
                let message = serde_json::from_slice(&self.arrived[..end]);
                self.arrived.drain(..=end);
                return match message.map_err(TalkError::NoMessage)? {
                    Message::Refused(reason) => Err(TalkError::Refused(reason)),
                    message => Ok(message),
                };
            }
            if self.arrived.len() > LINE_LEN_MAX {
                return Err(TalkError::TooLong);
            }
            self.stream.set_read_timeout(Some(self.left()?))?;
            let mut bytes = [0; 1_024];
            match self.stream.read(&mut bytes).map_err(in_time)? {
                0 => return Err(TalkError::Closed),
                count => self.arrived.extend_from_slice(&bytes[..count]),
            }
        }
    }
}

/// Returns the error of a read or write. A timeout has two names.
fn in_time(error: io::Error) -> TalkError {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => TalkError::Silent,
        _ => TalkError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns both ends of a connection.
    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// Returns the error of receiving these bytes.
    fn refused(bytes: &[u8]) -> TalkError {
        let (mut one, other) = connected();
        one.write_all(bytes).unwrap();
        let mut stream = PeerStream::new(other, Duration::from_millis(200)).unwrap();
        stream.receive().unwrap_err()
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let (one, other) = connected();
        let limit = Duration::from_secs(60);
        let (mut one, mut other) = (
            PeerStream::new(one, limit).unwrap(),
            PeerStream::new(other, limit).unwrap(),
        );
        let hello = Message::Hello(Hello {
            version: VERSION,
            group: "239.255.74.10:7410".parse().unwrap(),
            run: u64::MAX,
            interface: "eth0".into(),
            mtu: 1500,
        });
        let arrived = Message::Arrived(7, Counters::default());
        let all = [
            hello,
            Message::Receive(1472),
            Message::Receiving,
            arrived,
            Message::Bye,
        ];
        for message in &all {
            one.send(message).unwrap();
        }
        for message in &all {
            assert_eq!(other.receive().unwrap(), *message);
        }
        one.send(&Message::Refused("a\n\u{1b}".into())).unwrap();
        let error = other.receive().unwrap_err().to_string();
        assert_eq!(error, "the other side refused: a  ");
        drop(one);
        assert!(matches!(other.receive(), Err(TalkError::Closed)));
    }

    #[test]
    fn lines_of_a_hostile_peer_are_refused() {
        let long = [b'a'; LINE_LEN_MAX + 1_024];
        assert!(matches!(refused(&long), TalkError::TooLong));
        assert!(matches!(refused(b"{"), TalkError::Silent));
        for bytes in [
            &b"\n"[..],
            b"{}\n",
            b"\xff\xfe\n",
            b"{\"receive\":-1}\n",
            b"{\"bye\":null,\"sent\":null}\n",
            b"{\"arrived\":[1,{}]}\n",
            b"[[[[[[[[[[[[[[[[[[[[\n",
            "\"a\\n\\u001b[2J\\u009b\\u202e\"\n".as_bytes(),
        ] {
            let error = refused(bytes);
            assert!(matches!(error, TalkError::NoMessage(_)), "{error}");
            let said = error.to_string();
            assert!(!said.contains(tickcast_log::is_control), "{said}");
        }
    }
}
