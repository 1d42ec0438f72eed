//! A destination of a feed as a configuration or command names it.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::venues::Format;

/// One destination that is wanted, as `GROUP:PORT`, or `GROUP:PORT#CHANNEL` for one IEX channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FeedDestination {
    /// Group or host, and port.
    pub address: SocketAddr,
    /// The channel of IEX-TP; `None`: all.
    pub channel: Option<u32>,
}

impl FeedDestination {
    /// Returns whether a packet to an address is wanted.
    #[must_use]
    pub fn takes(&self, address: SocketAddr, payload: &[u8]) -> bool {
        let is_of_channel = self
            .channel
            .is_none_or(|wanted| Format::channels(payload).any(|channel| channel == wanted));
        self.address == address && is_of_channel
    }
}

/// A text that names no destination. The caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is no destination: write GROUP:PORT, or GROUP:PORT#CHANNEL")]
pub struct NotADestination {
    /// The text as given.
    pub text: String,
}

impl FromStr for FeedDestination {
    type Err = NotADestination;

    fn from_str(text: &str) -> Result<Self, NotADestination> {
        let wrong = || NotADestination { text: text.into() };
        let (address, channel) = match text.split_once('#') {
            None => (text, None),
            Some((address, channel)) => (address, Some(channel.parse().map_err(|_| wrong())?)),
        };
        let address = address.parse().map_err(|_| wrong())?;
        Ok(Self { address, channel })
    }
}

impl TryFrom<String> for FeedDestination {
    type Error = NotADestination;

    fn try_from(text: String) -> Result<Self, NotADestination> {
        text.parse()
    }
}

impl From<FeedDestination> for String {
    fn from(destination: FeedDestination) -> Self {
        destination.to_string()
    }
}

impl fmt::Display for FeedDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        match self.channel {
            Some(channel) => write!(f, "#{channel}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_is_written_as_it_is_read() {
        for text in ["239.1.2.3:26400", "239.1.2.3:26400#2", "[ff02::9]:1"] {
            assert_eq!(text.parse::<FeedDestination>().unwrap().to_string(), text);
        }
        for text in ["239.1.2.3", "239.1.2.3:1#x", "#1", ""] {
            assert!(text.parse::<FeedDestination>().is_err(), "{text}");
        }
    }
}
