//! HTTP endpoints; one thread serves a group of them. Each connection carries one request and one answer,
//! within a fixed time and memory. No peer delays another one, or the end.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, HOST, HeaderName, HeaderValue, REFERRER_POLICY, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tickcast_log::{LogLimit, PlainJson};
use tickcast_transport_base::host::clock::{Clock, SystemClock};
use tickcast_transport_base::host::files::FileError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinError, LocalSet, spawn_local, yield_now};
use tokio::time::{Instant, sleep, timeout};

use crate::counters::EndpointCounters;
use crate::events::{AnswerBody, EventStream, SentEvent};
use crate::hosts::Hosts;
use crate::listener::{Client, Connection, EndpointListener, Stream, is_of_one_connection};
use crate::table::{Limits, State, Table};
use crate::token::Token;

/// Interval between two checks for the end, and pause after an error of a listener.
const WAIT: Duration = Duration::from_millis(20);
/// Time limit of a request, and of its answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// Time limit for discarding what a peer sends after its request.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES: usize = 1 << 20;
/// Time limit at the end for requests that are being executed.
const GOODBYE: Duration = Duration::from_millis(500);
/// Length at which a head is refused; hyper accepts no smaller one.
const HEAD_LEN_MAX: usize = 8192;
const HEADERS_MAX: usize = 64;
const BODY_LEN_MAX: usize = 16 << 10;
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Content type of JSON.
pub(crate) const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const EVENTS: &str = "text/event-stream";
/// A browser loads nothing for an answer that is no HTML.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";
/// Headers of every answer: a browser keeps none, guesses no type, and tells nobody where it read it.
const PRIVATE: [(HeaderName, &str); 4] = [
    (CACHE_CONTROL, "no-store"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];
/// Characters of a foreign host name in a log line.
const LOGGED_LEN_MAX: usize = 64;

/// A request that an endpoint accepted.
#[derive(Debug)]
pub struct Asked {
    /// The client that sent it.
    pub client: Client,
    /// Path, without the query.
    pub path: String,
    /// Formats that the client accepts; empty where it does not say.
    pub accept: String,
    /// Body of a `POST`; otherwise empty.
    pub body: Bytes,
}

/// Runs once the answer is written, or can't be.
pub struct OnSent(Option<Box<dyn FnOnce() + Send>>);

impl OnSent {
    /// Returns what runs this.
    pub fn new(run: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(run)))
    }
}

impl Drop for OnSent {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

impl fmt::Debug for OnSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnSent")
    }
}

/// The content of an answer. Clones share the body.
#[derive(Clone, Debug)]
pub struct AnswerPage {
    status: StatusCode,
    kind: &'static str,
    /// `Content-Security-Policy`: the parts that a browser may load and run for it.
    policy: &'static str,
    body: Bytes,
}

impl AnswerPage {
    /// Creates a page in a format of its own.
    pub fn new(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            kind,
            policy: NOTHING,
            body: body.into(),
        }
    }

    /// Creates a page for browsers, which load and run for it what this `Content-Security-Policy` names.
    pub const fn html(body: &'static str, policy: &'static str) -> Self {
        Self {
            status: StatusCode::OK,
            kind: HTML,
            policy,
            body: Bytes::from_static(body.as_bytes()),
        }
    }

    /// Creates a page of plain text.
    pub fn text(status: StatusCode, body: impl Into<String>) -> Self {
        Self::new(status, TEXT, body.into())
    }

    /// Creates a page of JSON.
    pub fn json(status: StatusCode, body: &impl Serialize) -> Self {
        // Serialising can't fail: keys are strings, and all numbers are valid JSON.
        let text = serde_json::to_string(body).unwrap_or_default();
        // A page may be shown on a terminal, and peers choose names in it.
        Self::new(status, JSON, PlainJson(text).to_string())
    }

    /// Returns the body.
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the status.
    pub const fn status(&self) -> StatusCode {
        self.status
    }
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    page: AnswerPage,
    on_sent: Option<OnSent>,
    /// Whether snapshots follow the page's head, instead of its body.
    is_stream: bool,
}

impl Answer {
    /// Runs `on_sent` once the page is written, or can't be.
    pub const fn with(page: AnswerPage, on_sent: OnSent) -> Self {
        Self {
            page,
            on_sent: Some(on_sent),
            is_stream: false,
        }
    }

    /// Sends the handler's snapshots as server-sent events, for as long as the peer reads them.
    pub fn events() -> Self {
        Self {
            page: AnswerPage::new(StatusCode::OK, EVENTS, String::new()),
            on_sent: None,
            is_stream: true,
        }
    }

    /// Returns the page.
    pub const fn page(&self) -> &AnswerPage {
        &self.page
    }
}

impl From<AnswerPage> for Answer {
    fn from(page: AnswerPage) -> Self {
        Self {
            page,
            on_sent: None,
            is_stream: false,
        }
    }
}

/// An answer that may take time.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

/// The requests that an endpoint accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepts {
    /// `GET` and `HEAD`.
    Gets,
    /// `POST` of JSON.
    Posts,
}

/// Answers the requests of an endpoint, on the thread that serves it.
pub trait Handler: Send {
    /// Returns the methods that it accepts.
    fn accepts(&self) -> Accepts;

    /// Answers a request, within a time of its own.
    fn answer(&self, asked: Asked) -> Answering<'_>;

    /// Returns the events of one snapshot of a stream.
    fn snapshot(&self) -> Vec<SentEvent> {
        Vec::new()
    }
}

/// An endpoint.
pub struct Endpoint {
    /// Name for logs.
    pub name: &'static str,
    /// The socket that it listens at.
    pub listener: EndpointListener,
    /// Maximum numbers of its connections.
    pub limits: Limits,
    /// Names under which it may be addressed over TCP.
    pub hosts: Hosts,
    /// Secret that every request over TCP must carry.
    pub token: Option<Token>,
    /// Counts of its connections.
    pub counters: Arc<EndpointCounters>,
    /// Answers its requests.
    pub handler: Box<dyn Handler>,
}

/// The resources of one thread to serve endpoints.
#[derive(Debug)]
pub struct Server(Runtime);

impl Server {
    /// Opens the descriptors for polling. Starts no thread.
    ///
    /// # Errors
    /// Returns the system's error if the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.map(Self)
    }

    /// Listens at a TCP port; with port 0 the system chooses. Also returns the address with that port.
    ///
    /// # Errors
    /// Returns the system's error if the port can't be used or polled.
    pub fn port(&self, address: SocketAddr) -> io::Result<(EndpointListener, SocketAddr)> {
        let _entered = self.0.enter();
        EndpointListener::port(address)
    }

    /// Listens at a Unix socket that only this user and root can open.
    ///
    /// # Errors
    /// Returns [`FileError`] if the path can't be used or polled.
    pub fn socket(&self, path: &Path) -> Result<EndpointListener, FileError> {
        let _entered = self.0.enter();
        EndpointListener::socket(path)
    }

    /// Serves on this thread until `is_over`. Commands that are being executed then have a short time for
    /// their answers.
    ///
    /// # Errors
    /// Returns the panic of the task that accepted an endpoint's connections.
    pub fn run(
        self,
        endpoints: Vec<Endpoint>,
        is_over: impl Fn() -> bool,
    ) -> Result<(), JoinError> {
        LocalSet::new().block_on(&self.0, async {
            let (mut gates, mut acceptors) = (Vec::new(), Vec::new());
            for endpoint in endpoints {
                let (gate, listener) = Gate::of(endpoint);
                acceptors.push(spawn_local(gate.clone().accept_all(listener)));
                gates.push(gate);
            }
            while !is_over() {
                if let Some(ended) = acceptors.iter_mut().find(|it| it.is_finished()) {
                    return ended.await;
                }
                sleep(WAIT).await;
            }
            let until = Instant::now() + GOODBYE;
            while gates.iter().any(|gate| gate.is_executing()) && Instant::now() < until {
                sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        })
    }
}

/// An endpoint with its open connections.
struct Gate {
    name: &'static str,
    hosts: Hosts,
    token: Option<Token>,
    counters: Arc<EndpointCounters>,
    handler: Box<dyn Handler>,
    table: RefCell<Table>,
    tasks: RefCell<BTreeMap<u64, AbortHandle>>,
    /// Origin of the seconds at which streams take snapshots.
    began: Instant,
    /// Limit of the lines about refused requests.
    log: RefCell<LogLimit>,
}

impl Gate {
    fn of(endpoint: Endpoint) -> (Rc<Self>, EndpointListener) {
        let gate = Self {
            name: endpoint.name,
            hosts: endpoint.hosts,
            token: endpoint.token,
            counters: endpoint.counters,
            handler: endpoint.handler,
            table: RefCell::new(Table::new(endpoint.limits)),
            tasks: RefCell::default(),
            began: Instant::now(),
            log: RefCell::new(LogLimit::new(1, 1.0 / 60.0)),
        };
        (Rc::new(gate), endpoint.listener)
    }

    /// Returns whether a command is being executed or answered.
    fn is_executing(&self) -> bool {
        self.handler.accepts() == Accepts::Posts && self.table.borrow().busy() > 0
    }

    async fn accept_all(self: Rc<Self>, listener: EndpointListener) {
        let mut warned = false;
        loop {
            match listener.accept().await {
                Ok(connection) => {
                    warned = false;
                    self.admit(connection);
                    // A request that has arrived is read before the next connection can evict this one.
                    yield_now().await;
                }
                Err(error) if is_of_one_connection(&error) => yield_now().await,
                Err(error) => {
                    if !warned {
                        warned = true;
                        let name = self.name;
                        tracing::warn!(%error, "the {name} can't accept a connection");
                    }
                    sleep(WAIT).await;
                }
            }
        }
    }

    fn admit(self: &Rc<Self>, connection: Connection) {
        let counters = &self.counters;
        counters.endpoint_connections.increment();
        let client = connection.client;
        let admitted =
            (client.is_permitted()).then(|| self.table.borrow_mut().admit(client.peer()));
        let Some(admitted) = admitted.flatten() else {
            return counters.endpoint_refused.increment();
        };
        if let Some((evicted, state)) = admitted.evicted {
            // A connection that was answered is counted already.
            if state != State::Draining {
                counters.endpoint_evicted.increment();
            }
            if let Some(task) = self.tasks.borrow_mut().remove(&evicted) {
                task.abort();
            }
        }
        let place = Place {
            gate: self.clone(),
            id: admitted.id,
        };
        let task = spawn_local(place.serve(connection));
        let task = task.abort_handle();
        self.tasks.borrow_mut().insert(admitted.id, task);
        self.count_open();
    }

    fn count_open(&self) {
        let open = self.table.borrow().open() as u64;
        self.counters.endpoint_open.set(open);
    }

    /// Returns the answer to a request that lacks the token, or names another host. A client without the
    /// token does not learn which names are right.
    fn denial(&self, request: &Request<Incoming>, client: &Client) -> Option<AnswerPage> {
        if let Some(token) = &self.token {
            let given = request.headers().get(AUTHORIZATION);
            if !given.is_some_and(|given| token.is_in(given.as_bytes())) {
                self.log_denial(client, "it lacks the token, or has another one");
                return Some(AnswerPage::text(
                    StatusCode::UNAUTHORIZED,
                    "the request lacks the token; send \"Authorization: Bearer\" with the contents of \
                     commands.token_file\n",
                ));
            }
        }
        // No web page reaches a Unix socket.
        let Client::Remote { local, .. } = client else {
            return None;
        };
        let mut hosts = request.headers().get_all(HOST).iter();
        let (header, second) = (hosts.next(), hosts.next());
        let target = request.uri().authority().map(|it| it.as_str().as_bytes());
        // A browser always sends the header.
        let mut named = header.map(HeaderValue::as_bytes).into_iter().chain(target);
        let is_foreign = |host: &&[u8]| {
            let host = str::from_utf8(host);
            !host.is_ok_and(|host| self.hosts.allow(host, *local))
        };
        let foreign = named
            .find(is_foreign)
            .or(second.map(HeaderValue::as_bytes))?;
        let text = String::from_utf8_lossy(foreign);
        let name: String = text.escape_default().take(LOGGED_LEN_MAX).collect();
        self.log_denial(
            client,
            &format!("it names the host {name}; if that is this host, add it to admin_hosts"),
        );
        Some(AnswerPage::text(
            StatusCode::MISDIRECTED_REQUEST,
            "the request names another host; use this host's name or address, or add the name to \
             admin_hosts\n",
        ))
    }

    /// Counts a refused request, and logs it unless another one was logged within a minute.
    fn log_denial(&self, client: &Client, why: &str) {
        self.counters.endpoint_denied.increment();
        let mut log = self.log.borrow_mut();
        if log.allow_at(SystemClock.now()) {
            let (name, suppressed) = (self.name, log.take_suppressed());
            tracing::warn!(%client, suppressed, "the {name} refused a request: {why}");
        }
    }

    async fn answer(&self, request: Request<Incoming>, at: &Connected) -> Answer {
        if let Some(denial) = self.denial(&request, &at.client) {
            return denial.into();
        }
        let path = request.uri().path().to_owned();
        let accept = request.headers().get(ACCEPT);
        let accept = accept.and_then(|accept| accept.to_str().ok());
        let accept = accept.unwrap_or_default().to_owned();
        let body = match (self.handler.accepts(), request.method()) {
            (Accepts::Gets, &Method::GET | &Method::HEAD) => Bytes::new(),
            (Accepts::Posts, &Method::POST) => match posted(request).await {
                Ok(body) => body,
                Err(wrong) => return wrong.into(),
            },
            (Accepts::Gets, _) => {
                let body = "this port answers GET; a command socket or port takes commands\n";
                return AnswerPage::text(StatusCode::METHOD_NOT_ALLOWED, body).into();
            }
            (Accepts::Posts, _) => {
                let body = "commands are a POST of JSON; the admin port answers GET\n";
                return AnswerPage::text(StatusCode::METHOD_NOT_ALLOWED, body).into();
            }
        };
        at.phase.set(State::Working);
        if self.handler.accepts() == Accepts::Posts {
            self.table.borrow_mut().set(at.id, State::Working);
        }
        let client = at.client;
        let asked = Asked {
            client,
            path,
            accept,
            body,
        };
        self.handler.answer(asked).await
    }

    async fn respond(
        self: &Rc<Self>,
        request: Request<Incoming>,
        at: &Connected,
    ) -> Result<Response<AnswerBody>, Infallible> {
        let is_head = request.method() == Method::HEAD;
        let mut answer = self.answer(request, at).await;
        let is_stream = answer.is_stream && !is_head;
        let state = match is_stream && self.table.borrow_mut().begin_stream(at.id) {
            true => State::Streaming,
            false => State::Writing,
        };
        if is_stream && state != State::Streaming {
            let body = "too many streams are open, from this address or in all; close one\n";
            answer = AnswerPage::text(StatusCode::SERVICE_UNAVAILABLE, body).into();
        }
        at.phase.set(state);
        self.table.borrow_mut().set(at.id, state);
        let Answer { page, on_sent, .. } = answer;
        at.on_sent.replace(on_sent);
        let mut response = Response::new(match state {
            State::Streaming => {
                let gate = self.clone();
                let snapshots = Box::new(move || gate.handler.snapshot());
                let taken = at.taken.clone();
                AnswerBody::Events(EventStream::new(snapshots, self.began, taken))
            }
            _ => AnswerBody::AnswerPage(page.body.into()),
        });
        *response.status_mut() = page.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
        let policy = HeaderValue::from_static(page.policy);
        headers.insert(CONTENT_SECURITY_POLICY, policy);
        for (name, value) in PRIVATE {
            headers.insert(name, HeaderValue::from_static(value));
        }
        match page.status {
            StatusCode::METHOD_NOT_ALLOWED => {
                let allowed = match self.handler.accepts() {
                    Accepts::Gets => "GET, HEAD",
                    Accepts::Posts => "POST",
                };
                headers.insert(ALLOW, HeaderValue::from_static(allowed));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        // hyper omits the length from the answer to HEAD. A stream has none.
        if let Some(len) = response.body().size_hint().exact() {
            response.headers_mut().insert(CONTENT_LENGTH, len.into());
        }
        Ok(response)
    }
}

/// Returns the body of a `POST`, or the answer to a wrong one.
async fn posted(request: Request<Incoming>) -> Result<Bytes, AnswerPage> {
    let wrong = |status: StatusCode, body: &str| Err(AnswerPage::text(status, format!("{body}\n")));
    // A browser can't send this content type across origins without a preflight, so no web page can act
    // behind its user's back.
    let kind = request.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|it| it.to_str().ok()?.split(';').next());
    if !kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case(JSON)) {
        let why = "a command is JSON; send \"Content-Type: application/json\"";
        return wrong(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
    }
    match Limited::new(request.into_body(), BODY_LEN_MAX)
        .collect()
        .await
    {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            wrong(StatusCode::PAYLOAD_TOO_LARGE, "a command is shorter")
        }
        Err(_) => wrong(StatusCode::BAD_REQUEST, "the body is not complete"),
    }
}

/// A connection while it is served.
struct Connected {
    id: u64,
    client: Client,
    phase: Cell<State>,
    /// Pieces of a stream that it took.
    taken: Rc<Cell<u64>>,
    on_sent: RefCell<Option<OnSent>>,
}

impl Connected {
    /// Returns what changes while the peer does its part.
    fn progress(&self) -> (State, u64) {
        (self.phase.get(), self.taken.get())
    }
}

/// The place of a connection in its endpoint's table, given up on drop.
struct Place {
    gate: Rc<Gate>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.table.borrow_mut().remove(self.id);
        self.gate.tasks.borrow_mut().remove(&self.id);
        self.gate.count_open();
    }
}

impl Place {
    async fn serve(self, mut connection: Connection) {
        let is_answered = {
            let at = Connected {
                id: self.id,
                client: connection.client,
                phase: Cell::new(State::Reading),
                taken: Rc::default(),
                on_sent: RefCell::new(None),
            };
            self.exchange(&mut *connection.stream, &at).await
        };
        let counters = &self.gate.counters;
        match is_answered {
            true => counters.endpoint_answered.increment(),
            false => return counters.endpoint_failed.increment(),
        }
        self.gate.table.borrow_mut().set(self.id, State::Draining);
        self.gate.count_open();
        // The connection is closed whether or not the peer closes it first.
        let _ = timeout(LINGER, drain(&mut *connection.stream)).await;
    }

    /// Returns whether a request was answered.
    async fn exchange(&self, stream: &mut dyn Stream, at: &Connected) -> bool {
        let service = service_fn(|request| self.gate.respond(request, at));
        let connection = http1::Builder::new()
            .keep_alive(false)
            .half_close(true)
            .title_case_headers(true)
            .header_read_timeout(None)
            .max_buf_size(HEAD_LEN_MAX)
            .max_headers(HEADERS_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        loop {
            let before = at.progress();
            match timeout(DEADLINE, connection.as_mut()).await {
                Ok(Ok(())) => return at.phase.get() == State::Writing,
                // hyper has answered a malformed request, or the reader of a stream has left.
                Ok(Err(error)) => return error.is_parse() || at.phase.get() == State::Streaming,
                // A stream takes a snapshot each second, unless its reader has not read the one before.
                Err(_) if before.0 == State::Working || before != at.progress() => {}
                Err(_) => return false,
            }
        }
    }
}

/// Discards what the peer still sends, until it closes. Closing with unread data would reset the
/// connection, and the peer might never see the answer.
async fn drain(stream: &mut dyn Stream) -> io::Result<()> {
    stream.shutdown().await?;
    let (mut bytes, mut left) = ([0; 4096], LINGER_BYTES);
    while left > 0 {
        match stream.read(&mut bytes).await? {
            0 => break,
            read => left = left.saturating_sub(read),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use rustix::process::geteuid;
    use tokio::io::{DuplexStream, duplex};

    use super::*;

    /// Bytes between the two sides of a connection.
    const PIPE_LEN: usize = 4096;

    /// Answers each request by a stream of long snapshots, which it counts.
    #[derive(Default)]
    struct Streams(Arc<AtomicU64>);

    impl Handler for Streams {
        fn accepts(&self) -> Accepts {
            Accepts::Gets
        }

        fn answer(&self, _: Asked) -> Answering<'_> {
            Box::pin(ready(Answer::events()))
        }

        fn snapshot(&self) -> Vec<SentEvent> {
            self.0.fetch_add(1, Relaxed);
            vec![SentEvent {
                name: "status",
                body: vec![b'a'; 16 * PIPE_LEN].into(),
                is_repeated: true,
            }]
        }
    }

    /// Runs a test with an endpoint and one connection that has requested a stream.
    fn with_stream<F: Future<Output = ()>>(
        test: impl FnOnce(Rc<Gate>, DuplexStream, Arc<AtomicU64>) -> F,
    ) {
        let server = Server::new().unwrap();
        LocalSet::new().block_on(&server.0, async {
            let (handler, address) = (Streams::default(), SocketAddr::from(([127, 0, 0, 1], 0)));
            let snapshots = handler.0.clone();
            let (gate, _listener) = Gate::of(Endpoint {
                name: "test",
                listener: EndpointListener::port(address).unwrap().0,
                limits: Limits {
                    total: 8,
                    per_peer: 8,
                },
                hosts: Hosts::new(&[]),
                token: None,
                counters: Arc::default(),
                handler: Box::new(handler),
            });
            let (mut near, far) = duplex(PIPE_LEN);
            near.write_all(b"GET /events HTTP/1.1\r\n\r\n")
                .await
                .unwrap();
            gate.admit(Connection {
                stream: Box::new(far),
                client: Client::User(geteuid().as_raw()),
            });
            test(gate, near, snapshots).await;
        });
    }

    #[test]
    fn stream_that_is_not_read_costs_two_snapshots_and_ends() {
        with_stream(|gate, mut near, snapshots| async move {
            near.read_exact(&mut [0; PIPE_LEN / 2]).await.unwrap();
            while gate.counters.endpoint_failed.get() == 0 {
                sleep(WAIT).await;
            }
            assert!(snapshots.load(Relaxed) <= 2, "{snapshots:?}");
            assert!(gate.tasks.borrow().is_empty() && gate.table.borrow().open() == 0);
        });
    }

    #[test]
    fn stream_that_is_read_outlasts_the_deadline_of_answers() {
        with_stream(|gate, mut near, snapshots| async move {
            // Snapshots come once a second, so the last of these is behind that deadline.
            let wanted = 4 * 16 * PIPE_LEN;
            let (mut bytes, mut read) = ([0; PIPE_LEN], 0);
            while read < wanted {
                read += near.read(&mut bytes).await.unwrap();
            }
            assert!(snapshots.load(Relaxed) >= 4);
            drop(near);
            while gate.counters.endpoint_answered.get() == 0 {
                sleep(WAIT).await;
            }
            assert_eq!(gate.counters.endpoint_failed.get(), 0);
        });
    }
}
