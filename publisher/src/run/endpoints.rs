//! The admin thread: it serves the admin port and the command endpoints.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use tickcast_transport::host::files::create_directory;

use crate::admin::commands::{self, CommandHandler};
use crate::admin::{self, Pages};
use crate::config::Config;
use crate::error::PublisherError;
use crate::http::Token;
use crate::http::hosts::Hosts;
use crate::http::listener::Bound;
use crate::http::server::{Endpoint, Handler, Server};
use crate::state::Shared;
use crate::state::command::CommandSender;
use crate::state::thread::{Thread, spawn};

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
    server: Server,
    hosts: Hosts,
    admin: Option<Bound>,
    command_socket: Option<Bound>,
    command_port: Option<(Bound, Token)>,
    addresses: EndpointAddresses,
}

impl Endpoints {
    /// Listens at the ports.
    ///
    /// # Errors
    /// Returns [`PublisherError`] for a port or a token that can't be used.
    pub(crate) fn bind(config: &Config) -> Result<Self, PublisherError> {
        let mut addresses = EndpointAddresses::default();
        let mut admin = None;
        if let Some(address) = config.admin {
            let (bound, address) = listen("admin", address)?;
            (admin, addresses.admin) = (Some(bound), Some(address));
        }
        let mut command_port = None;
        let commands = &config.commands;
        if let (Some(address), Some(file)) = (commands.listen, &commands.token_file) {
            let token = read_token("commands.token_file", file)?;
            let (bound, address) = listen("commands", address)?;
            (command_port, addresses.command_port) = (Some((bound, token)), Some(address));
        }
        let server = Server::new().map_err(|source| PublisherError::System {
            what: "poll the admin port",
            source,
        })?;
        Ok(Self {
            server,
            hosts: Hosts::new(&config.admin_hosts),
            admin,
            command_socket: None,
            command_port,
            addresses,
        })
    }

    /// Listens at the command socket, if the config has one. The caller has locked the state directory.
    ///
    /// # Errors
    /// Returns [`PublisherError::File`] if the path can't be used.
    pub(crate) fn bind_socket(&mut self, config: &Config) -> Result<(), PublisherError> {
        let Some(path) = config.command_socket() else {
            return Ok(());
        };
        if let Some(directory) = config
            .state_dir
            .as_deref()
            .filter(|it| path.starts_with(it))
        {
            create_directory(directory).map_err(PublisherError::File)?;
        }
        let bound = Bound::socket(&path).map_err(PublisherError::File)?;
        (self.command_socket, self.addresses.command_socket) = (Some(bound), Some(path));
        Ok(())
    }

    /// Returns the addresses.
    pub(crate) const fn addresses(&self) -> &EndpointAddresses {
        &self.addresses
    }

    /// Starts the thread, which serves until the publisher shuts down. Returns `None` if there is no
    /// endpoint.
    ///
    /// # Errors
    /// Returns [`PublisherError::System`] if the thread can't be started.
    pub(crate) fn start(
        self,
        shared: &Arc<Shared>,
        commands: CommandSender,
    ) -> Result<Option<Thread<()>>, PublisherError> {
        let pages: Arc<dyn Handler> = Arc::new(Pages::of(shared.clone()));
        let handler: Arc<dyn Handler> = Arc::new(CommandHandler::new(shared.clone(), commands));
        let (hosts, counters) = (self.hosts, &shared.endpoints);
        let endpoint = |name, bound, limits, counters: &Arc<_>, handler: &Arc<_>| Endpoint {
            name,
            bound,
            limits,
            hosts: hosts.clone(),
            token: None,
            counters: Arc::clone(counters),
            handler: Arc::clone(handler),
        };
        let mut all = Vec::new();
        if let Some(bound) = self.command_socket {
            let (limits, counters) = (commands::SOCKET_LIMITS, &counters.command_socket);
            all.push(endpoint(
                "command socket",
                bound,
                limits,
                counters,
                &handler,
            ));
        }
        if let Some((bound, token)) = self.command_port {
            let (limits, counters) = (commands::PORT_LIMITS, &counters.command_port);
            all.push(Endpoint {
                token: Some(token),
                ..endpoint("command port", bound, limits, counters, &handler)
            });
        }
        if let Some(bound) = self.admin {
            let (limits, counters) = (admin::LIMITS, &counters.admin);
            all.push(endpoint("admin port", bound, limits, counters, &pages));
        }
        if all.is_empty() {
            return Ok(None);
        }
        let (server, shared) = (self.server, shared.clone());
        let thread = spawn("admin", None, move || {
            let served = server.run(all, || shared.current().is_shutting_down());
            served.map_err(|source| PublisherError::System {
                what: "poll the admin port",
                source,
            })
        });
        thread.map(Some)
    }
}

fn listen(what: &'static str, address: SocketAddr) -> Result<(Bound, SocketAddr), PublisherError> {
    Bound::port(address).map_err(|error| PublisherError::Listen {
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
