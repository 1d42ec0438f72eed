//! The settings of a standby, and of the standbys that may take over.

use std::fmt;

use super::check_name;
use tickcast_http::EndpointAddress;

use crate::config::{Config, ThreadMode};
use crate::error::ConfigError;

/// Warns of settings without effect, or with a risk.
///
/// # Errors
/// [`ConfigError`] if a setting of the standby, or a name in `hand_over_to`, is invalid.
pub(super) fn check(config: &Config, warnings: &mut Vec<String>) -> Result<(), ConfigError> {
    for (index, name) in config.hand_over_to.iter().enumerate() {
        check_name(&format!("hand_over_to[{index}]"), name)?;
    }
    let takes_commands = config.command_socket().is_some() || config.commands.listen.is_some();
    if !config.hand_over_to.is_empty() && !takes_commands {
        warnings.push(
            "hand_over_to has no effect without commands, because standbys send their requests to \
             it: set commands.listen and commands.token_file, or for a standby on this host \
             commands.socket"
                .into(),
        );
    }
    let Some(standby) = &config.standby else {
        return Ok(());
    };
    let wrong = |at: &str, value: &dyn fmt::Display, remedy: &str| {
        Err(ConfigError::value(at, value, remedy))
    };
    if standby.of.trim().is_empty() {
        let remedy = "name the publisher's host:port";
        return wrong("standby.of", &"\"\"", remedy);
    }
    if config.command_socket().is_none() {
        return wrong(
            "commands.socket",
            &"null",
            "a standby is promoted over its command socket; give a path, or set state_dir",
        );
    }
    if let Some(EndpointAddress::Port(address)) = standby.commands
        && standby.token_file.is_none()
    {
        return wrong(
            "standby.commands",
            &address,
            "a command port needs a token; set standby.token_file, or give the path of the \
             publisher's command socket on this host",
        );
    }
    if config.threads.mode == ThreadMode::Inline {
        let remedy = "a standby reads its inputs on separate threads; use \"threaded\"";
        return wrong("threads.mode", &"\"inline\"", remedy);
    }
    if !(1..=1 << 30).contains(&standby.keep_messages) {
        let remedy = "it must be from 1 to 1073741824";
        return wrong("standby.keep_messages", &standby.keep_messages, remedy);
    }
    if !(100..=600_000).contains(&standby.hand_over_ms) {
        let remedy = "it must be from 100 to 600000 (ten minutes)";
        return wrong("standby.hand_over_ms", &standby.hand_over_ms, remedy);
    }
    #[cfg(feature = "testing")]
    if let Some(Err(error)) = standby.faults.as_ref().map(|faults| faults.check()) {
        return Err(ConfigError::value("standby.faults", "the faults", error));
    }
    let mut fed = vec![0; config.channels.len()];
    for input in &config.inputs {
        for (count, channel) in fed.iter_mut().zip(&config.channels) {
            *count += usize::from(input.channel().is_none_or(|own| own == channel.name));
        }
    }
    let several = fed.iter().zip(&config.channels).find(|(fed, _)| **fed > 1);
    if let Some((_, channel)) = several {
        warnings.push(format!(
            "channel {}: several inputs feed it, and two publishers merge them in different \
             orders. When the publisher dies, subscribers that were ahead of the mirror can miss \
             records of one input and receive others twice: give each input its own channel",
            channel.name
        ));
    }
    if standby.commands.is_none() {
        warnings.push(
            "standby.commands is null, so the publisher can't be asked to hand over: only its \
             failure, or a forced promotion, promotes this standby"
                .into(),
        );
    }
    Ok(())
}
