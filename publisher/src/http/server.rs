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

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderValue, WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tickcast_log::LogLimit;
use tickcast_transport::host::clock::{Clock, SystemClock};
use tickcast_transport::host::files::FileError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinError, LocalSet, spawn_local, yield_now};
use tokio::time::{Instant, sleep, timeout};

use crate::http::JSON;
use crate::http::counters::EndpointCounters;
use crate::http::hosts::Hosts;
use crate::http::listener::{Client, Connection, Listener, Stream, is_of_one_connection};
use crate::http::table::{Limits, State, Table};
use crate::http::token::Token;

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
/// Characters of a foreign host name in a log line.
const LOGGED_LEN_MAX: usize = 64;

/// A request that an endpoint accepted.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The client that sent it.
    pub(crate) client: Client,
    /// Path, without the query.
    pub(crate) path: String,
    /// Formats that the client accepts; empty where it does not say.
    pub(crate) accept: String,
    /// Body of a `POST`; otherwise empty.
    pub(crate) body: Bytes,
}

/// Runs once the answer is written, or can't be.
pub(crate) struct OnSent(Option<Box<dyn FnOnce() + Send>>);

impl OnSent {
    pub(crate) fn new(run: impl FnOnce() + Send + 'static) -> Self {
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
pub(crate) struct Page {
    status: StatusCode,
    kind: &'static str,
    body: Bytes,
}

impl Page {
    /// Creates a page of text in a format of its own.
    pub(crate) fn new(status: StatusCode, kind: &'static str, body: String) -> Self {
        let body = body.into();
        Self { status, kind, body }
    }

    /// Creates a page of plain text.
    pub(crate) fn text(status: StatusCode, body: impl Into<String>) -> Self {
        Self::new(status, TEXT, body.into())
    }

    /// Creates a page of JSON.
    pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Self {
        Self {
            status,
            kind: JSON,
            // Serialising can't fail: keys are strings, and all numbers are valid JSON.
            body: serde_json::to_vec(body).unwrap_or_default().into(),
        }
    }

    /// Returns the body.
    pub(crate) const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Returns the status.
    #[cfg(test)]
    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    page: Page,
    on_sent: Option<OnSent>,
}

impl Answer {
    /// Runs `on_sent` once the page is written, or can't be.
    pub(crate) const fn with(page: Page, on_sent: OnSent) -> Self {
        let on_sent = Some(on_sent);
        Self { page, on_sent }
    }

    /// Returns the page.
    #[cfg(test)]
    pub(crate) const fn page(&self) -> &Page {
        &self.page
    }
}

impl From<Page> for Answer {
    fn from(page: Page) -> Self {
        let on_sent = None;
        Self { page, on_sent }
    }
}

/// An answer that may take time.
pub(crate) type Answering<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

/// The requests that an endpoint accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepts {
    /// `GET` and `HEAD`.
    Gets,
    /// `POST` of JSON.
    Posts,
}

/// Answers the requests of an endpoint, on the thread that serves it.
pub(crate) trait Handler: Send {
    /// Returns the methods that it accepts.
    fn accepts(&self) -> Accepts;

    /// Answers a request, within a time of its own.
    fn answer(&self, asked: Asked) -> Answering<'_>;
}

/// An endpoint.
pub(crate) struct Endpoint {
    /// Name for logs.
    pub(crate) name: &'static str,
    pub(crate) listener: Listener,
    pub(crate) limits: Limits,
    /// Names under which it may be addressed over TCP.
    pub(crate) hosts: Hosts,
    /// Secret that every request over TCP must carry.
    pub(crate) token: Option<Token>,
    pub(crate) counters: Arc<EndpointCounters>,
    pub(crate) handler: Box<dyn Handler>,
}

/// The resources of one thread to serve endpoints.
#[derive(Debug)]
pub(crate) struct Server(Runtime);

impl Server {
    /// Opens the descriptors for polling. Starts no thread.
    ///
    /// # Errors
    /// Returns the system's error if the process has no descriptors left.
    pub(crate) fn new() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.map(Self)
    }

    /// Listens at a TCP port; with port 0 the system chooses. Also returns the address with that port.
    ///
    /// # Errors
    /// Returns the system's error if the port can't be used or polled.
    pub(crate) fn port(&self, address: SocketAddr) -> io::Result<(Listener, SocketAddr)> {
        let _entered = self.0.enter();
        Listener::port(address)
    }

    /// Listens at a Unix socket that only this user and root can open.
    ///
    /// # Errors
    /// Returns [`FileError`] if the path can't be used or polled.
    pub(crate) fn socket(&self, path: &Path) -> Result<Listener, FileError> {
        let _entered = self.0.enter();
        Listener::socket(path)
    }

    /// Serves on this thread until `is_over`. Commands that are being executed then have a short time for
    /// their answers.
    ///
    /// # Errors
    /// Returns the panic of the task that accepted an endpoint's connections.
    pub(crate) fn run(
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
    /// Limit of the lines about refused requests.
    log: RefCell<LogLimit>,
}

impl Gate {
    fn of(endpoint: Endpoint) -> (Rc<Self>, Listener) {
        let gate = Self {
            name: endpoint.name,
            hosts: endpoint.hosts,
            token: endpoint.token,
            counters: endpoint.counters,
            handler: endpoint.handler,
            table: RefCell::new(Table::new(endpoint.limits)),
            tasks: RefCell::default(),
            log: RefCell::new(LogLimit::new(1, 1.0 / 60.0)),
        };
        (Rc::new(gate), endpoint.listener)
    }

    /// Returns whether a command is being executed or answered.
    fn is_executing(&self) -> bool {
        self.handler.accepts() == Accepts::Posts && self.table.borrow().busy() > 0
    }

    async fn accept_all(self: Rc<Self>, listener: Listener) {
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
    fn denial(&self, request: &Request<Incoming>, client: &Client) -> Option<Page> {
        if let Some(token) = &self.token {
            let given = request.headers().get(AUTHORIZATION);
            if !given.is_some_and(|given| token.is_in(given.as_bytes())) {
                self.log_denial(client, "it lacks the token, or has another one");
                return Some(Page::text(
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
        Some(Page::text(
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
                return Page::text(StatusCode::METHOD_NOT_ALLOWED, body).into();
            }
            (Accepts::Posts, _) => {
                let body = "commands are a POST of JSON; the admin port answers GET\n";
                return Page::text(StatusCode::METHOD_NOT_ALLOWED, body).into();
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
        &self,
        request: Request<Incoming>,
        at: &Connected,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let Answer { page, on_sent } = self.answer(request, at).await;
        at.phase.set(State::Writing);
        self.table.borrow_mut().set(at.id, State::Writing);
        at.on_sent.replace(on_sent);
        let mut response = Response::new(Full::from(page.body));
        *response.status_mut() = page.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
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
        // hyper omits the length from the answer to HEAD.
        let len = response.body().size_hint().exact().unwrap_or_default();
        response.headers_mut().insert(CONTENT_LENGTH, len.into());
        Ok(response)
    }
}

/// Returns the body of a `POST`, or the answer to a wrong one.
async fn posted(request: Request<Incoming>) -> Result<Bytes, Page> {
    let wrong = |status: StatusCode, body: &str| Err(Page::text(status, format!("{body}\n")));
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
    on_sent: RefCell<Option<OnSent>>,
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
            let before = at.phase.get();
            match timeout(DEADLINE, connection.as_mut()).await {
                Ok(Ok(())) => return at.phase.get() == State::Writing,
                // hyper has answered a malformed request.
                Ok(Err(error)) => return error.is_parse(),
                Err(_) if before == State::Working || before != at.phase.get() => {}
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
