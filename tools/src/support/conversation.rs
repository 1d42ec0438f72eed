//! A conversation of two programs over one TCP connection: JSON values, one a line, all bounded.

use std::io::{self, ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tickcast_transport::control::resolve;

use super::plain::{Plain, one_line};
use crate::exit::ToolError;

/// Interval of polling for a request to end.
const LOOK: Duration = Duration::from_millis(500);
/// Time limit for a connection to be accepted.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Longest text of the other side in a report, in characters.
const TEXT_LEN_MAX: usize = 256;

/// The messages of a conversation.
pub trait Speech: Serialize + DeserializeOwned {
    /// Longest line, in bytes.
    const LINE_LEN_MAX: usize;

    /// Returns the message, unless it refuses what this side asked for.
    ///
    /// # Errors
    /// Returns the reason of a refusal.
    fn refusal(self) -> Result<Self, String>;
}

/// Reason why a conversation ends early.
#[derive(Debug, Error)]
pub enum TalkError {
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
    #[error("the other side sent a line of more than {0} bytes")]
    TooLong(usize),
    /// A line is no message.
    #[error("the other side sent no message of this conversation: {}", Plain(.0))]
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
    one_line(text).chars().take(TEXT_LEN_MAX).collect()
}

/// Connects to the host at `peer`, which is `HOST[:PORT]`; `port` applies if none is given. Returns the
/// connection, and the host with its port. `answering` is the command that answers there.
///
/// # Errors
/// Returns [`ToolError::Address`] if the name has no address, and [`ToolError::Unreachable`] if nobody
/// accepts.
pub fn connect(peer: &str, port: u16, answering: &str) -> Result<(TcpStream, String), ToolError> {
    let target = with_port(peer, port);
    let addresses = resolve(&target).map_err(|source| ToolError::Address {
        target: target.clone(),
        source,
    })?;
    let mut reason = "it has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(stream) => return Ok((stream, target)),
            Err(error) => reason = error.to_string(),
        }
    }
    Err(ToolError::Unreachable(format!(
        "{target} can't be reached: {reason}; does `{answering}` run there?"
    )))
}

/// Returns a host with its port. An IPv6 address without brackets is a host alone.
fn with_port(peer: &str, port: u16) -> String {
    let is_port = |port: &str| port.parse::<u16>().is_ok();
    match (peer.parse::<IpAddr>(), peer.rsplit_once(':')) {
        (Ok(address), _) => SocketAddr::new(address, port).to_string(),
        (Err(_), Some((_, port))) if is_port(port) => peer.to_owned(),
        (Err(_), _) => format!("{peer}:{port}"),
    }
}

/// A conversation with a deadline. Every call ends by then.
#[derive(Debug)]
pub struct Conversation<Message> {
    stream: TcpStream,
    until: Instant,
    /// Bytes that arrived and are no whole line yet.
    arrived: Vec<u8>,
    spoken: PhantomData<Message>,
}

impl<Message: Speech> Conversation<Message> {
    /// Starts a conversation that ends within `limit`.
    ///
    /// # Errors
    /// Returns [`TalkError::Io`] if the socket can't be set up.
    pub fn new(stream: TcpStream, limit: Duration) -> Result<Self, TalkError> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            until: Instant::now() + limit,
            arrived: Vec::new(),
            spoken: PhantomData,
        })
    }

    /// Sets the deadline anew, to `limit` from here.
    pub fn extend(&mut self, limit: Duration) {
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
    pub fn send(&mut self, message: &Message) -> Result<(), TalkError> {
        let mut line = serde_json::to_vec(message).map_err(TalkError::NoMessage)?;
        line.push(b'\n');
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(&line).map_err(in_time)
    }

    /// Receives a message.
    ///
    /// # Errors
    /// Returns [`TalkError`] if the connection fails, the deadline passes, or the line is no message.
    pub fn receive(&mut self) -> Result<Message, TalkError> {
        loop {
            if let Some(end) = self.arrived.iter().position(|b| *b == b'\n') {
                let message = serde_json::from_slice(&self.arrived[..end]);
                self.arrived.drain(..=end);
                let message: Message = message.map_err(TalkError::NoMessage)?;
                return message.refusal().map_err(TalkError::Refused);
            }
            if self.arrived.len() > Message::LINE_LEN_MAX {
                return Err(TalkError::TooLong(Message::LINE_LEN_MAX));
            }
            self.stream.set_read_timeout(Some(self.left()?))?;
            let mut bytes = [0; 4_096];
            match self.stream.read(&mut bytes).map_err(in_time)? {
                0 => return Err(TalkError::Closed),
                count => self.arrived.extend_from_slice(&bytes[..count]),
            }
        }
    }
}

impl<Message: Speech> Conversation<Message> {
    /// Receives a message within `limit`. Returns `None` once `is_asked_to_end`, which it polls twice a
    /// second.
    ///
    /// # Errors
    /// Returns the errors of [`Self::receive`].
    pub fn receive_unless(
        &mut self,
        limit: Duration,
        is_asked_to_end: impl Fn() -> bool,
    ) -> Result<Option<Message>, TalkError> {
        let until = Instant::now() + limit;
        loop {
            self.extend(LOOK);
            match self.receive() {
                Err(TalkError::Silent) if is_asked_to_end() => return Ok(None),
                Err(TalkError::Silent) if Instant::now() < until => {}
                received => return received.map(Some),
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

    use serde::Deserialize;
    use tickcast_log::is_control;

    use super::*;

    #[test]
    fn host_without_a_port_has_the_default() {
        for (peer, target) in [
            ("md1", "md1:7410"),
            ("md1:99", "md1:99"),
            ("10.0.0.1", "10.0.0.1:7410"),
            ("10.0.0.1:99", "10.0.0.1:99"),
            ("fd00::1:99", "[fd00::1:99]:7410"),
            ("[fd00::1]:99", "[fd00::1]:99"),
            ("[fd00::1]", "[fd00::1]:7410"),
        ] {
            assert_eq!(with_port(peer, 7_410), target);
        }
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case", deny_unknown_fields)]
    enum Said {
        Number(u64),
        Refused(String),
        Bye,
    }

    impl Speech for Said {
        const LINE_LEN_MAX: usize = 4_096;

        fn refusal(self) -> Result<Self, String> {
            match self {
                Self::Refused(reason) => Err(reason),
                said => Ok(said),
            }
        }
    }

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
        let limit = if bytes.ends_with(b"\n") || bytes.len() > Said::LINE_LEN_MAX {
            Duration::from_secs(60)
        } else {
            Duration::from_millis(200)
        };
        let mut stream = Conversation::<Said>::new(other, limit).unwrap();
        stream.receive().unwrap_err()
    }

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let (one, other) = connected();
        let limit = Duration::from_secs(60);
        let mut one = Conversation::new(one, limit).unwrap();
        let mut other = Conversation::<Said>::new(other, limit).unwrap();
        let all = [Said::Number(u64::MAX), Said::Bye, Said::Number(0)];
        for message in &all {
            one.send(message).unwrap();
        }
        for message in &all {
            assert_eq!(other.receive().unwrap(), *message);
        }
        one.send(&Said::Refused("a\n\u{1b}".into())).unwrap();
        let error = other.receive().unwrap_err().to_string();
        assert_eq!(error, "the other side refused: a  ");
        drop(one);
        assert!(matches!(other.receive(), Err(TalkError::Closed)));
    }

    #[test]
    fn wait_for_a_message_ends_on_request() {
        let (mut one, other) = connected();
        let limit = Duration::from_secs(600);
        let mut other = Conversation::<Said>::new(other, limit).unwrap();
        // The beginning of a line survives the wait.
        one.write_all(b"{\"number\"").unwrap();
        assert!(other.receive_unless(limit, || true).unwrap().is_none());
        one.write_all(b":7}\n").unwrap();
        let received = other.receive_unless(limit, || false).unwrap();
        assert_eq!(received, Some(Said::Number(7)));
        let silent = other.receive_unless(Duration::ZERO, || false);
        assert!(matches!(silent, Err(TalkError::Silent)));
    }

    #[test]
    fn lines_of_a_hostile_peer_are_refused() {
        let long = [b'a'; Said::LINE_LEN_MAX + 4_096];
        assert!(matches!(refused(&long), TalkError::TooLong(4_096)));
        assert!(matches!(refused(b"{"), TalkError::Silent));
        for bytes in [
            &b"\n"[..],
            b"{}\n",
            b"\xff\xfe\n",
            b"{\"number\":-1}\n",
            b"{\"bye\":null,\"number\":1}\n",
            b"{\"number\":[1,{}]}\n",
            b"[[[[[[[[[[[[[[[[[[[[\n",
            "\"a\\n\\u001b[2J\\u009b\\u202e\"\n".as_bytes(),
        ] {
            let error = refused(bytes);
            assert!(matches!(error, TalkError::NoMessage(_)), "{error}");
            let said = error.to_string();
            assert!(!said.contains(is_control), "{said}");
        }
    }
}
