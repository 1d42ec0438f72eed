//! The threads of the endpoints: one serves the admin port, and another one the command endpoints, so that
//! no page delays a command.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crossbeam_channel::Sender;
use serde::Serialize;
use tickcast_http::Token;
use tickcast_http::counters::EndpointCounters;
use tickcast_http::hosts::Hosts;
use tickcast_http::listener::EndpointListener;
use tickcast_http::server::{Endpoint, Handler, Server};
use tickcast_http::table::Limits;
use tickcast_transport::host::files::create_directory;

use crate::admin::commands::{self, CommandHandler};
use crate::admin::pages::{self, Pages};
use crate::config::Config;
use crate::error::PublisherError;
use crate::run::join;
use crate::state::Shared;
use crate::state::command::{CommandSender, ReloadRequest};
use crate::state::thread::{StopOnFailure, Thread, spawn};

/// Addresses of the endpoints that there are.
///
/// ```
/// # use tickcast_publisher::internal::Service;
/// # fn f(service: &Service) {
/// if let Some(address) = service.endpoints().admin {
///     println!("metrics at http://{address}/metrics");
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EndpointAddresses {
    /// The admin port.
    pub admin: Option<SocketAddr>,
    /// The command socket.
    pub command_socket: Option<PathBuf>,
    /// The command port.
    pub command_port: Option<SocketAddr>,
}

/// The endpoints, listening.
pub(crate) struct Endpoints {
    hosts: Hosts,
    pages: Server,
    admin: Option<EndpointListener>,
    commands: Server,
    command_socket: Option<EndpointListener>,
    command_port: Option<(EndpointListener, Token)>,
    /// Names of the standbys that may take over.
    hand_over_to: Vec<String>,
    addresses: EndpointAddresses,
}

impl Endpoints {
    /// Listens at the ports.
    ///
    /// # Errors
    /// Returns [`PublisherError`] for a port or a token that can't be used.
    pub(crate) fn bind(config: &Config) -> Result<Self, PublisherError> {
        let server = || {
            Server::new().map_err(|source| PublisherError::System {
                what: "poll the admin port and the command endpoints",
                source,
            })
        };
        let (pages, commands) = (server()?, server()?);
        let mut addresses = EndpointAddresses::default();
        let mut admin = None;
        if let Some(address) = config.admin {
            let (listener, address) = listen(&pages, "admin", address)?;
            (admin, addresses.admin) = (Some(listener), Some(address));
        }
        let mut command_port = None;
        if let (Some(address), Some(file)) = (config.commands.listen, &config.commands.token_file) {
            let token = read_token("commands.token_file", file)?;
            let (listener, address) = listen(&commands, "commands", address)?;
            (command_port, addresses.command_port) = (Some((listener, token)), Some(address));
        }
        Ok(Self {
            hosts: Hosts::new(&config.admin_hosts),
            pages,
            admin,
            commands,
            command_socket: None,
            command_port,
            hand_over_to: config.hand_over_to.clone(),
            addresses,
        })
    }

    /// Listens at the command socket, if the config has one. The caller has locked the state directory.
    ///
    /// # Errors
    /// Returns [`PublisherError::CommandSocket`] if the path can't be used, unless it is the default one
    /// and a command port serves.
    pub(crate) fn bind_socket(&mut self, config: &Config) -> Result<(), PublisherError> {
        let Some(path) = config.command_socket() else {
            return Ok(());
        };
        let state_dir = config.state_dir.as_deref();
        let listening = match state_dir.filter(|it| path.starts_with(it)) {
            Some(directory) => create_directory(directory),
            None => Ok(()),
        };
        match listening.and_then(|()| self.commands.socket(&path)) {
            Ok(listener) => {
                (self.command_socket, self.addresses.command_socket) = (Some(listener), Some(path));
            }
            Err(error) if config.commands.socket.is_none() && self.command_port.is_some() => {
                tracing::warn!(
                    "there is no command socket, but a command port: {error}; commands.socket \
                     names another path"
                );
            }
            Err(source) => return Err(PublisherError::CommandSocket { source }),
        }
        Ok(())
    }

    /// Returns the addresses.
    pub(crate) const fn addresses(&self) -> &EndpointAddresses {
        &self.addresses
    }

    /// Starts the threads, which serve until the publisher shuts down. There are none without endpoints.
    ///
    /// # Errors
    /// Returns [`PublisherError::System`] if a thread can't be started.
    pub(crate) fn start(
        self,
        shared: &Arc<Shared>,
        commands: CommandSender,
        reloads: Option<Sender<ReloadRequest>>,
    ) -> Result<EndpointThreads, PublisherError> {
        let hosts = self.hosts;
        let endpoint =
            |name, listener, limits, counters: &Arc<EndpointCounters>, handler| Endpoint {
                name,
                listener,
                limits,
                hosts: hosts.clone(),
                token: None,
                counters: counters.clone(),
                handler,
            };
        let counters = &shared.endpoints;
        let pages = self.admin.map(|listener| {
            let handler: Box<dyn Handler> = Box::new(Pages::of(shared.clone()));
            endpoint(
                "admin port",
                listener,
                pages::LIMITS,
                &counters.admin,
                handler,
            )
        });
        let handler = CommandHandler::new(shared.clone(), commands, self.hand_over_to, reloads);
        let command = |name, listener, limits: Limits, counters| {
            endpoint(name, listener, limits, counters, Box::new(handler.clone()))
        };
        let socket = self.command_socket.map(|listener| {
            let (limits, counters) = (commands::SOCKET_LIMITS, &counters.command_socket);
            command("command socket", listener, limits, counters)
        });
        let port = self.command_port.map(|(listener, token)| {
            let (limits, counters) = (commands::PORT_LIMITS, &counters.command_port);
            let token = Some(token);
            Endpoint {
                token,
                ..command("command port", listener, limits, counters)
            }
        });
        let commands = socket.into_iter().chain(port).collect();
        let threads = [
            serve("admin", self.pages, pages.into_iter().collect(), shared)?,
            serve("commands", self.commands, commands, shared)?,
        ];
        Ok(EndpointThreads(threads.into_iter().flatten().collect()))
    }
}

/// Starts a thread that serves these endpoints, if there are any. If it fails, the session ends.
fn serve(
    name: &'static str,
    server: Server,
    endpoints: Vec<Endpoint>,
    shared: &Arc<Shared>,
) -> Result<Option<(&'static str, Thread<()>)>, PublisherError> {
    if endpoints.is_empty() {
        return Ok(None);
    }
    let (shared, guard) = (shared.clone(), StopOnFailure::new(shared.clone()));
    let thread = spawn(name, None, move || {
        let served = server.run(endpoints, || shared.current().is_shutting_down());
        guard.of(served.map_err(|_| PublisherError::Panicked { thread: name }))
    })?;
    Ok(Some((name, thread)))
}

/// The threads of the endpoints, with their names.
pub(crate) struct EndpointThreads(Vec<(&'static str, Thread<()>)>);

impl EndpointThreads {
    /// Waits until all of them have ended.
    ///
    /// # Errors
    /// Returns the error of the first one that failed.
    pub(crate) fn join(self) -> Result<(), PublisherError> {
        let ended = self.0.into_iter().map(|(name, thread)| join(thread, name));
        ended.fold(Ok(()), Result::and)
    }
}

fn listen(
    server: &Server,
    what: &'static str,
    address: SocketAddr,
) -> Result<(EndpointListener, SocketAddr), PublisherError> {
    let listening = server.port(address);
    listening.map_err(|error| PublisherError::Listen {
        what,
        address,
        reason: error.to_string(),
    })
}

/// Reads the token in the file that the config names at `at`.
///
/// # Errors
/// Returns [`PublisherError::Token`] with the reason.
pub(crate) fn read_token(at: &'static str, file: &Path) -> Result<Token, PublisherError> {
    Token::read(file).map_err(|source| PublisherError::Token { at, source })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::unix::fs::PermissionsExt;
    use std::thread::{sleep, spawn};
    use std::time::Duration;

    use serde_json::json;
    use tickcast_reliability::types::{Epoch, Nanos};

    use super::*;
    use crate::state::command::commands;
    use tickcast_http::ask;

    /// Longer than any step of a test, so that a hang becomes a failure.
    const PATIENCE: Duration = Duration::from_secs(600);

    #[test]
    fn page_in_work_delays_no_command() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "0123456789abcdef").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let config = json!({ "name": "a", "admin": "127.0.0.1:0", "hand_over_to": ["b"],
            "commands": { "listen": "127.0.0.1:0", "token_file": file },
            "inputs": [{ "source": 7, "kind": "simulator" }],
            "channels": [{ "id": 1, "name": "all", "fan_out": [{ "transport": "udp",
                "lines": [{ "group": "239.255.78.1:7799" }] }] }] });
        let config = Config::parse(&config.to_string()).unwrap();
        let endpoints = Endpoints::bind(&config).unwrap();
        let (admin, port) = (endpoints.addresses.admin, endpoints.addresses.command_port);
        let (none, stop) = ((Vec::new(), Vec::new()), Arc::default());
        let shared = Shared::new("a".into(), Epoch(5), none.0, none.1, stop, Nanos::ZERO);
        let shared = Arc::new(shared);
        let (sender, _receiver) = commands();
        let threads = endpoints.start(&shared, sender, None).unwrap();
        let token = read_token("commands.token_file", &file).unwrap();
        let asked = spawn({
            let shared = shared.clone();
            move || {
                // The status can't be rendered meanwhile.
                let subscribers = shared.subscribers();
                let mut page = TcpStream::connect(admin.unwrap()).unwrap();
                page.write_all(b"GET /status HTTP/1.1\r\n\r\n").unwrap();
                while shared.endpoints.admin.endpoint_connections.get() == 0 {
                    sleep(Duration::from_millis(1));
                }
                let body = Some(r#"{ "standby": "b" }"#);
                let port = port.unwrap().into();
                let answers: Vec<_> = (0..20)
                    .map(|_| ask(&port, Some(&token), "/check", body, PATIENCE).unwrap())
                    .collect();
                drop(subscribers);
                answers
            }
        });
        let accepted = (200, r#"{"state":"accepted"}"#.to_owned());
        assert_eq!(asked.join().unwrap(), vec![accepted; 20]);
        shared.shut_down();
        threads.join().unwrap();
    }
}
