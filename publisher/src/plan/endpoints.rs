//! Checks of the admin port and the command endpoints.

use std::fmt;
use std::net::SocketAddr;

use tickcast_http::hosts::Host;

use crate::config::Config;
use crate::error::ConfigError;

/// Checks the addresses of the endpoints, and who may use them.
///
/// # Errors
/// Returns [`ConfigError`] with the place and the remedy.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let wrong = |at: &str, value: &dyn fmt::Display, remedy: &str| {
        Err(ConfigError::value(at, value, remedy))
    };
    let is_same = |a: SocketAddr, b: SocketAddr| a == b && a.port() != 0;
    if config.admin.is_some_and(|it| is_same(it, config.control)) {
        let remedy = "control and admin need a port each";
        return wrong("admin", &config.control, remedy);
    }
    for (index, name) in config.admin_hosts.iter().enumerate() {
        if Host::parse(name).is_none() {
            let remedy = "give a host name or an address, without a port or a star";
            return wrong(
                &format!("admin_hosts[{index}]"),
                &format!("{name:?}"),
                remedy,
            );
        }
    }
    let commands = &config.commands;
    let Some(listen) = commands.listen else {
        return match &commands.token_file {
            None => Ok(()),
            Some(path) => wrong(
                "commands.token_file",
                &path.display(),
                "it has no effect without commands.listen; a command socket needs no token",
            ),
        };
    };
    if is_same(listen, config.control) || config.admin.is_some_and(|it| is_same(it, listen)) {
        let remedy = "control, admin and commands need a port each";
        return wrong("commands.listen", &listen, remedy);
    }
    if commands.token_file.is_none() {
        let remedy = "a command port needs a token; set commands.token_file";
        return wrong("commands.listen", &listen, remedy);
    }
    Ok(())
}
