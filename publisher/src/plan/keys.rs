//! The keys of an authenticated channel: how many datagrams each serves.

use crate::config::ChannelConfig;
use crate::error::ConfigError;

/// The least number of datagrams that one key may serve.
const DATAGRAMS_MIN: u64 = 1_024;
/// A key that serves less time at the peak may come later than the datagrams that it authenticates: the
/// publisher announces it within 100 ms after the key before came into use.
const SERVES_MIN_S: f64 = 1.0;

/// Returns the number of datagrams that one key authenticates; `None` when the channel is not
/// authenticated. Warns of keys that may come late.
///
/// # Errors
/// [`ConfigError`] if the number is too small for any channel.
pub(super) fn datagrams_per_key(
    channel: &ChannelConfig,
    at: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<u64>, ConfigError> {
    let datagrams = channel.datagrams_per_key;
    if datagrams < DATAGRAMS_MIN {
        let remedy = "it must be at least 1024, so that a key can be announced before its use";
        let at = format!("{at}.datagrams_per_key");
        return Err(ConfigError::value(at, datagrams, remedy));
    }
    if !channel.authentication {
        return Ok(None);
    }
    let peak = channel.peak_datagrams_per_s as f64;
    let serves_s = datagrams as f64 / peak;
    if serves_s < SERVES_MIN_S {
        warnings.push(format!(
            "channel {}: a key serves {serves_s:.2} s at {peak} datagrams/s, less than \
             {SERVES_MIN_S:.2} s, so it may come after the datagrams that it authenticates: set \
             datagrams_per_key to {} or more",
            channel.name,
            channel.peak_datagrams_per_s.next_power_of_two()
        ));
    }
    Ok(Some(datagrams))
}
