//! The body of an answer: a page, or server-sent events, which repeat pages once a second.

use std::cell::Cell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// Interval between two snapshots of a stream.
const EVERY: Duration = Duration::from_secs(1);

/// An event of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentEvent {
    /// Name of the event.
    pub name: &'static str,
    /// Text of the event. Clones share it.
    pub body: Bytes,
    /// Whether each snapshot sends it; otherwise only one that differs from the one sent last.
    pub is_repeated: bool,
}

impl SentEvent {
    /// Adds the event as it is sent. A body of one line, like JSON, is not copied.
    fn put(&self, to: &mut VecDeque<Bytes>) {
        let name = self.name;
        let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
        if !self.body.iter().any(is_break) {
            to.push_back(format!("event: {name}\ndata: ").into());
            to.push_back(self.body.clone());
            return to.push_back(Bytes::from_static(b"\n\n"));
        }
        let mut text = format!("event: {name}\n").into_bytes();
        let lines = self.body.split(is_break);
        for line in lines.filter(|line| !line.is_empty()) {
            text.extend_from_slice(b"data: ");
            text.extend_from_slice(line);
            text.push(b'\n');
        }
        text.push(b'\n');
        to.push_back(text.into());
    }
}

/// Returns the events of a snapshot.
pub(crate) type Snapshots = Box<dyn Fn() -> Vec<SentEvent>>;

/// A stream of snapshots. It takes one when the peer has read the one before, so a slow peer skips some.
pub(crate) struct EventStream {
    snapshots: Snapshots,
    /// Streams of one origin take their snapshots together, and share the bytes.
    origin: Instant,
    due: Pin<Box<Sleep>>,
    /// The events of the last snapshot.
    last: Vec<SentEvent>,
    unsent: VecDeque<Bytes>,
    taken: Rc<Cell<u64>>,
}

impl EventStream {
    /// Begins with a snapshot now; further ones follow in whole seconds since `origin`. Counts in `taken`
    /// the pieces that the connection took.
    pub(crate) fn new(snapshots: Snapshots, origin: Instant, taken: Rc<Cell<u64>>) -> Self {
        Self {
            snapshots,
            origin,
            due: Box::pin(sleep_until(origin)),
            last: Vec::new(),
            unsent: VecDeque::new(),
            taken,
        }
    }

    fn take_snapshot(&mut self) {
        let events = (self.snapshots)();
        for event in &events {
            if event.is_repeated || !self.last.contains(event) {
                event.put(&mut self.unsent);
            }
        }
        // The new bodies replace equal old ones, which no reader needs any more.
        self.last = events;
        let passed = self.origin.elapsed().as_secs();
        let next =
            self.origin + EVERY.saturating_mul(u32::try_from(passed + 1).unwrap_or(u32::MAX));
        self.due.as_mut().reset(next);
    }
}

/// The body of an answer.
pub(crate) enum AnswerBody {
    AnswerPage(Full<Bytes>),
    Events(EventStream),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let stream = match self.get_mut() {
            Self::AnswerPage(page) => return Pin::new(page).poll_frame(cx),
            Self::Events(stream) => stream,
        };
        while stream.unsent.is_empty() {
            ready!(stream.due.as_mut().poll(cx));
            stream.take_snapshot();
        }
        stream.taken.set(stream.taken.get() + 1);
        let piece = stream.unsent.pop_front();
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::AnswerPage(page) => page.size_hint(),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(name: &'static str, body: &'static str) -> String {
        let mut pieces = VecDeque::new();
        let body = Bytes::from_static(body.as_bytes());
        let is_repeated = false;
        SentEvent {
            name,
            body,
            is_repeated,
        }
        .put(&mut pieces);
        let bytes = pieces.iter().flatten().copied().collect();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn event_has_one_data_line_for_each_line_of_text() {
        assert_eq!(sent("status", "{}"), "event: status\ndata: {}\n\n");
        let expected = "event: readyz\ndata: a\ndata: event: b\ndata: c\n\n";
        assert_eq!(sent("readyz", "a\nevent: b\rc\n"), expected);
    }

    #[test]
    fn event_of_one_line_shares_its_body() {
        let (mut pieces, body) = (VecDeque::new(), Bytes::from(vec![b'a'; 9]));
        let event = SentEvent {
            name: "status",
            body,
            is_repeated: true,
        };
        event.put(&mut pieces);
        assert_eq!(pieces[1].as_ptr(), event.body.as_ptr());
    }
}
