//! The endpoints under hostile clients: each costs a bounded time and a bounded amount of memory, and delays
//! neither other clients nor the publisher's end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::common::{PATIENCE, Publisher, config, group, wait_for};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};
use tempfile::TempDir;

/// Token of the command port.
const TOKEN: &str = "0123456789abcdef";
/// Address of clients that share no address with an attacker.
const HONEST: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

fn publisher() -> Publisher {
    let input = json!({
        "source": 7, "kind": "simulator", "messages": 1_000_000, "pace": { "messages_per_s": 1000 },
    });
    Publisher::start(&config(group(), input))
}

/// Starts a publisher with every endpoint. The folder holds its command socket.
fn commanded() -> (Publisher, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("token"), TOKEN).unwrap();
    std::fs::set_permissions(path("token"), PermissionsExt::from_mode(0o600)).unwrap();
    let input = json!({
        "source": 7, "kind": "simulator", "messages": 1_000_000, "pace": { "messages_per_s": 1000 },
    });
    let mut config = config(group(), input);
    config["commands"] = json!({
        "socket": path("commands"), "listen": "127.0.0.1:0", "token_file": path("token"),
    });
    (Publisher::start(&config), folder)
}

/// Returns the address of an endpoint.
fn address(publisher: &Publisher, endpoint: &str) -> SocketAddr {
    publisher.ready[endpoint].as_str().unwrap().parse().unwrap()
}

/// Returns the answer to a request from this local address.
fn ask_from(from: IpAddr, to: SocketAddr, request: &str) -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.bind(&SocketAddr::new(from, 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    answer_over(TcpStream::from(socket), request)
}

fn answer_over(mut stream: impl Read + Write, request: &str) -> String {
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns a POST of `{}` with further header lines.
fn post(path: &str, headers: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: 2\r\n{headers}\r\n{{}}"
    )
}

fn authorised() -> String {
    post("/promote", &format!("Authorization: Bearer {TOKEN}\r\n"))
}

/// Silent connections to an endpoint; each is renewed once it is closed.
struct Idle {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Idle {
    /// Returns once all of them were connected.
    fn start(to: SocketAddr, count: usize) -> Self {
        let connect = move || {
            let stream = TcpStream::connect(to).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        let mut all: Vec<_> = (0..count).map(|_| connect()).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut renewed = 0;
            while !stopped.load(Ordering::Relaxed) {
                for stream in &mut all {
                    let is_open = matches!(stream.read(&mut [0]),
                        Err(error) if error.kind() == ErrorKind::WouldBlock);
                    if !is_open {
                        *stream = connect();
                        renewed += 1;
                    }
                }
                std::thread::yield_now();
            }
            renewed
        });
        Self { stop, thread }
    }

    /// Returns the number of connections that were renewed.
    fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn connect(publisher: &Publisher) -> TcpStream {
    let stream = TcpStream::connect(publisher.ready["admin"].as_str().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Returns the whole answer, even if the connection is reset after it.
fn ask(publisher: &Publisher, request: &[u8]) -> String {
    let mut stream = connect(publisher);
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    let timed_out = ended.is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
    assert!(!timed_out, "neither answered nor closed");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns the metrics, as soon as a connection is free.
fn metrics(publisher: &Publisher) -> String {
    wait_for("the metrics", || {
        let answer = ask(publisher, b"GET /metrics HTTP/1.1\r\n\r\n");
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    })
}

/// Waits until the metrics show this count of an endpoint. A page may be as old as 100 ms.
fn wait_for_count(publisher: &Publisher, endpoint: &str, name: &str, expected: u64) {
    let found = wait_for("the count", || {
        let found = count(&metrics(publisher), endpoint, name);
        (found >= expected).then_some(found)
    });
    assert_eq!(found, expected, "{endpoint} {name}");
}

/// Returns a count of an endpoint's connections.
fn count(metrics: &str, endpoint: &str, name: &str) -> u64 {
    let (family, result) = match name {
        "denied" => ("requests_denied_total", String::new()),
        "connections" => ("connections_accepted_total", String::new()),
        "open" => ("connections_open", String::new()),
        _ => ("connections_closed_total", format!(",reason=\"{name}\"")),
    };
    let labels = format!("endpoint=\"{endpoint}\"{result}");
    let start = format!("tickcast_publisher_{family}{{{labels}}} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap().parse().unwrap()
}

fn ends_whole(publisher: Publisher) {
    publisher.terminate();
    let (code, summary) = publisher.finish();
    assert_eq!(code, Some(0), "{summary:#}");
    assert_eq!(summary["ended"], true);
}

#[test]
fn announced_body_length_is_ignored_by_admin_port() {
    let mut publisher = publisher();
    for (len, post, get) in [
        ("99999999999", "405", "200"),
        ("18446744073709551615", "431", "431"),
        ("-1", "400", "400"),
        ("1e99", "400", "400"),
    ] {
        let head = format!("POST /metrics HTTP/1.1\r\nContent-Length: {len}\r\n\r\n");
        let answer = ask(&publisher, head.as_bytes());
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {post}")),
            "{len}: {answer}"
        );
        let is_allowed = answer.contains("\r\nAllow: GET, HEAD\r\n");
        assert_eq!(is_allowed, post == "405", "{answer}");
        let answer = ask(&publisher, head.replace("POST", "GET").as_bytes());
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {get}")),
            "{len}: {answer}"
        );
    }
    let chunked = b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n";
    assert!(ask(&publisher, chunked).starts_with("HTTP/1.1 405"));
    assert!(publisher.is_running());
    ends_whole(publisher);
}

#[test]
fn publisher_without_live_source_is_ready() {
    let publisher = publisher();
    let answer = ask(&publisher, b"GET /readyz HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nready\n"), "{answer}");
    ends_whole(publisher);
}

#[test]
fn request_head_over_8_kib_is_refused() {
    let mut publisher = publisher();
    let head = |len: usize| {
        let mut head = b"GET /healthz HTTP/1.1\r\nA: ".to_vec();
        head.resize(len - 4, b'a');
        head.extend(b"\r\n\r\n");
        head
    };
    assert!(ask(&publisher, &head(8192)).starts_with("HTTP/1.1 200"));
    assert!(ask(&publisher, &head(32 << 10)).starts_with("HTTP/1.1 431"));
    let mut endless = connect(&publisher);
    endless.write_all(b"GET / HTTP/1.1\r\nA: ").unwrap();
    wait_for("the end of the connection", || {
        endless.write_all(&[b'a'; 4096]).is_err().then_some(())
    });
    assert!(publisher.is_running());
}

#[test]
fn oversize_request_is_answered_without_reset() {
    let publisher = publisher();
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(20_000));
    for _ in 0..10 {
        let mut stream = connect(&publisher);
        stream.write_all(long.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it is not reset");
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    // A client that keeps sending is cut off.
    let mut endless = connect(&publisher);
    wait_for("the end of the connection", || {
        endless.write_all(&[b'a'; 4096]).is_err().then_some(())
    });
    ends_whole(publisher);
}

#[test]
fn unread_client_delays_neither_others_nor_end() {
    let mut publisher = publisher();
    let many = b"GET /metrics HTTP/1.1\r\n\r\n".repeat(300);
    let mut idle = Vec::new();
    for _ in 0..4 {
        let mut stream = connect(&publisher);
        // The publisher may accept or reset it.
        let _ = stream.write_all(&many);
        idle.push(stream);
    }
    // Clients that send nothing fail at their deadline.
    for _ in 0..5 {
        idle.push(connect(&publisher));
    }
    wait_for("the failures to be counted", || {
        (count(&metrics(&publisher), "admin", "failed") >= 5).then_some(())
    });
    assert!(publisher.is_running());
    // The end must not wait for the open silent connections.
    for _ in 0..8 {
        idle.push(connect(&publisher));
    }
    ends_whole(publisher);
    drop(idle);
}

#[test]
fn admin_connection_serves_one_request_and_closes() {
    let publisher = publisher();
    let twice = b"GET /healthz HTTP/1.1\r\n\r\n".repeat(2);
    let answer = ask(&publisher, &twice);
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{answer}");
    assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    let answer = ask(&publisher, b"HEAD /healthz HTTP/1.1\r\n\r\n");
    assert!(answer.contains("\r\nContent-Length: 3\r\n") && answer.ends_with("\r\n\r\n"));
    for nonsense in [&b"\0\0nonsense\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n"] {
        assert!(ask(&publisher, nonsense).starts_with("HTTP/1.1 400"));
    }
}

#[test]
fn renewed_idle_connections_take_no_place_from_others() {
    for idle in [8, 200] {
        let (publisher, folder) = commanded();
        let (admin, port) = (
            address(&publisher, "admin"),
            address(&publisher, "command_port"),
        );
        let attacks = [admin, port].map(|to| Idle::start(to, idle));
        for _ in 0..20 {
            let shown = ask_from(HONEST, admin, "GET /healthz HTTP/1.1\r\n\r\n");
            assert!(shown.starts_with("HTTP/1.1 200"), "{shown}");
            let done = ask_from(HONEST, port, &authorised());
            assert!(done.starts_with("HTTP/1.1 409"), "{done}");
            let socket = UnixStream::connect(folder.path().join("commands")).unwrap();
            let done = answer_over(socket, &post("/promote", ""));
            assert!(done.contains("not a standby"), "{done}");
        }
        // The attacker's own address is served too, if it sends a request.
        metrics(&publisher);
        let renewed: usize = attacks.map(Idle::stop).iter().sum();
        let metrics = wait_for("the connections to be counted", || {
            let metrics = ask_from(HONEST, admin, "GET /metrics HTTP/1.1\r\n\r\n");
            let open = ["admin", "command_port"].map(|it| count(&metrics, it, "open"));
            // The one that asks is open.
            (open == [1, 0]).then_some(metrics)
        });
        for (endpoint, evicted_min) in [("admin", 16), ("command_port", 8)] {
            let of = |name| count(&metrics, endpoint, name);
            let closed = of("answered") + of("failed") + of("evicted") + of("refused");
            assert_eq!(of("connections"), closed + of("open"), "{metrics}");
            assert_eq!(of("refused"), 0);
            let is_beyond_limit = idle > evicted_min;
            assert_eq!(
                of("evicted") > 0,
                is_beyond_limit,
                "{endpoint} {idle}: {metrics}"
            );
            if is_beyond_limit {
                assert!(of("evicted") >= (idle - evicted_min) as u64, "{metrics}");
            }
        }
        assert!(renewed > 0 || idle == 8, "nobody was evicted");
        ends_whole(publisher);
    }
}

#[test]
fn foreign_host_is_refused_on_every_port() {
    let (publisher, folder) = commanded();
    let (admin, port) = (
        address(&publisher, "admin"),
        address(&publisher, "command_port"),
    );
    for (host, is_own) in [
        ("Host: localhost\r\n", true),
        ("Host: 127.0.0.1:7401\r\n", true),
        ("", true),
        ("Host: attacker.example\r\n", false),
        ("Host: attacker.example:7401\r\n", false),
        ("Host: localhost\r\nHost: attacker.example\r\n", false),
    ] {
        let get = format!("GET /metrics HTTP/1.1\r\n{host}\r\n");
        let command = authorised().replace("Host: localhost\r\n", host);
        for (to, request, own) in [(admin, get, "200"), (port, command, "409")] {
            let answer = ask_from(HONEST, to, &request);
            let expected = if is_own { own } else { "421" };
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {expected}")),
                "{host}: {answer}"
            );
            assert_eq!(answer.contains("published_records"), is_own && to == admin);
        }
    }
    let absolute = "GET http://attacker.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert!(ask_from(HONEST, admin, absolute).starts_with("HTTP/1.1 421"));
    wait_for_count(&publisher, "admin", "denied", 4);
    wait_for_count(&publisher, "command_port", "denied", 3);
    // One line a minute and endpoint names the foreign host, escaped.
    let log = publisher.log();
    assert_eq!(log.matches("refused a request").count(), 2, "{log}");
    assert!(log.contains("it names the host attacker.example"), "{log}");
    // A client without the token does not learn which names are right.
    let command = post("/promote", "").replace("localhost", "attacker.example");
    assert!(ask_from(HONEST, port, &command).starts_with("HTTP/1.1 401"));
    // No browser reaches a Unix socket.
    let socket = UnixStream::connect(folder.path().join("commands")).unwrap();
    let request = post("/promote", "").replace("localhost", "anything");
    assert!(answer_over(socket, &request).starts_with("HTTP/1.1 409"));
    ends_whole(publisher);
}

#[test]
fn admin_port_takes_no_command() {
    let (publisher, _folder) = commanded();
    for path in ["/promote", "/hand-over"] {
        for headers in ["", &*format!("Authorization: Bearer {TOKEN}\r\n")] {
            let answer = ask(&publisher, post(path, headers).as_bytes());
            assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
            assert!(answer.contains("\r\nAllow: GET, HEAD\r\n"), "{answer}");
        }
    }
    ends_whole(publisher);
}

#[test]
fn command_port_needs_the_token() {
    let (publisher, _folder) = commanded();
    let port = address(&publisher, "command_port");
    for (authorization, status) in [
        ("", "401"),
        ("Authorization: Bearer 0123456789abcdeg\r\n", "401"),
        ("Authorization: Bearer 0123456789abcde\r\n", "401"),
        ("Authorization: Basic 0123456789abcdef\r\n", "401"),
        ("Authorization: Bearer 0123456789abcdef\r\n", "409"),
    ] {
        for path in ["/promote", "/nothing"] {
            let answer = ask_from(HONEST, port, &post(path, authorization));
            let status = if status == "409" && path == "/nothing" {
                "404"
            } else {
                status
            };
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status}")),
                "{answer}"
            );
            let challenge = answer.contains("\r\nWww-Authenticate: Bearer\r\n");
            assert_eq!(challenge, status == "401", "{answer}");
        }
    }
    wait_for_count(&publisher, "command_port", "denied", 8);
    let log = publisher.log();
    assert_eq!(log.matches("it lacks the token").count(), 1, "{log}");
    assert!(!log.contains(TOKEN));
    ends_whole(publisher);
}

#[test]
fn command_is_short_json_in_a_post() {
    let (publisher, folder) = commanded();
    let asked = |request: &str| {
        let socket = UnixStream::connect(folder.path().join("commands")).unwrap();
        answer_over(socket, request)
    };
    let command = post("/promote", "");
    for (request, status) in [
        (command.clone(), "409"),
        (command.replace("application/json", "text/plain"), "415"),
        (
            command.replace("Content-Type: application/json\r\n", ""),
            "415",
        ),
        (command.replace("POST", "GET"), "405"),
        (command.replace("{}", "{]"), "400"),
        (
            command.replace("Content-Length: 2", "Content-Length: 0"),
            "409",
        ),
        (
            command.replace("Length: 2", "Length: 16385") + &" ".repeat(16_383),
            "413",
        ),
        (
            command.replace("Content-Length: 2", "Content-Length: x"),
            "400",
        ),
    ] {
        let answer = asked(&request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{request}: {answer}"
        );
    }
    ends_whole(publisher);
}

#[test]
fn command_socket_is_private_and_goes_with_its_publisher() {
    let (publisher, folder) = commanded();
    let path = folder.path().join("commands");
    let found = std::fs::symlink_metadata(&path).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o7777, 0o600);
    ends_whole(publisher);
    assert!(!path.exists());
}

#[test]
fn hand_over_request_needs_a_name_of_the_list() {
    let (publisher, folder) = commanded();
    let socket = UnixStream::connect(folder.path().join("commands")).unwrap();
    let check = post("/check", "").replace("Length: 2", "Length: 15");
    let answer = answer_over(socket, &check.replace("{}", r#"{"standby":"b"}"#));
    assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
    assert!(answer.contains("add the name to hand_over_to"), "{answer}");
    ends_whole(publisher);
}

/// Runs a publisher that does not start. Returns the last line of its log.
fn refused(config: &Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tickcast-publisher"))
        .arg("--config")
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    said.lines().last().unwrap().to_owned()
}

/// Returns the contents of the files in a directory, by name.
fn contents(directory: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let files = std::fs::read_dir(directory).unwrap();
    let files = files.map(|file| file.unwrap());
    let contents = files.map(|file| (file.file_name(), std::fs::read(file.path()).unwrap()));
    contents.collect()
}

#[test]
fn used_command_socket_refuses_the_start_and_costs_no_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let state = tempfile::tempdir().unwrap();
    let path = folder.path().join("commands");
    let input = json!({ "source": 7, "kind": "simulator", "messages": 10 });
    let mut config = config(group(), input);
    config["state_dir"] = json!(state.path());
    config["end_when_inputs_end"] = json!(true);
    let publisher = Publisher::start(&config);
    publisher.terminate();
    assert_eq!(publisher.finish().0, Some(0));
    let before = contents(state.path());
    config["commands"] = json!({ "socket": path });
    let _other = UnixListener::bind(&path).unwrap();
    let said = refused(&config);
    assert!(
        said.contains("commands.socket: a process listens at"),
        "{said}"
    );
    assert_eq!(contents(state.path()), before);
}

#[test]
fn default_command_socket_may_be_missing_beside_a_port() {
    let state = tempfile::tempdir().unwrap();
    let path = |name: &str| state.path().join(name);
    std::fs::write(path("test.commands"), "a file").unwrap();
    std::fs::write(path("token"), TOKEN).unwrap();
    std::fs::set_permissions(path("token"), PermissionsExt::from_mode(0o600)).unwrap();
    let input = json!({
        "source": 7, "kind": "simulator", "messages": 1_000_000, "pace": { "messages_per_s": 1000 },
    });
    let mut config = config(group(), input);
    config["state_dir"] = json!(state.path());
    config["hand_over_to"] = json!(["b"]);
    let said = refused(&config);
    assert!(
        said.contains("commands.socket: ") && said.contains("not a socket"),
        "{said}"
    );
    config["commands"] = json!({ "listen": "127.0.0.1:0", "token_file": path("token") });
    let publisher = Publisher::start(&config);
    assert!(publisher.ready["command_socket"].is_null());
    let log = publisher.log();
    assert!(log.contains("there is no command socket"), "{log}");
    let answer = ask_from(HONEST, address(&publisher, "command_port"), &authorised());
    assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
    ends_whole(publisher);
    config["commands"]["socket"] = json!(path("test.commands"));
    let said = refused(&config);
    assert!(said.contains("not a socket"), "{said}");
}

#[test]
fn hand_over_alone_opens_a_socket_in_state_directory() {
    let state = tempfile::tempdir().unwrap();
    let input = json!({
        "source": 7, "kind": "simulator", "messages": 1_000_000, "pace": { "messages_per_s": 1000 },
    });
    let mut config = config(group(), input);
    config["state_dir"] = json!(state.path());
    let publisher = Publisher::start(&config);
    assert!(publisher.ready["command_socket"].is_null());
    ends_whole(publisher);
    config["hand_over_to"] = json!(["b"]);
    let publisher = Publisher::start(&config);
    let path = state.path().join("test.commands");
    assert_eq!(publisher.ready["command_socket"], json!(path));
    let answer = answer_over(UnixStream::connect(&path).unwrap(), &post("/hand-over", ""));
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    ends_whole(publisher);
}
