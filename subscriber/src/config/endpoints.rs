//! Addresses of publishers: one `host:port` or several, tried in turn.

use std::net::SocketAddr;

use tickcast_transport::control::resolve;

use crate::error::SubscribeError;

/// One or more publishers of the same channels, each as `host:port`. They are tried in turn until
/// one welcomes us, and again when it is gone. Streams of two publishers are never mixed: a publisher
/// is accepted only if its epoch is at least the followed one.
///
/// ```
/// use tickcast_subscriber::Endpoints;
///
/// let one: Endpoints = "md1:7400".into();
/// let two: Endpoints = "md1:7400,md2:7400".into();
/// assert_eq!(two, Endpoints::from(["md1:7400", "md2:7400"]));
/// assert_eq!(two, Endpoints::from(vec!["md1:7400".to_string(), "md2:7400".to_string()]));
/// assert_eq!((one.iter().count(), two.to_string().as_str()), (1, "md1:7400,md2:7400"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints(Vec<String>);

impl Endpoints {
    /// Returns every endpoint, in the order in which they are tried.
    ///
    /// ```
    /// # use tickcast_subscriber::Endpoints;
    /// let both = Endpoints::from("md1:7400,md2:7400");
    /// assert_eq!(both.iter().collect::<Vec<_>>(), ["md1:7400", "md2:7400"]);
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Resolves all endpoints. An unknown one is logged and omitted if at least one other is known.
    pub(crate) fn resolve(&self) -> Result<Vec<SocketAddr>, SubscribeError> {
        let (mut addresses, mut failed) = (Vec::new(), None);
        for endpoint in self.iter() {
            match resolve(endpoint) {
                Ok(found) => addresses.extend(found),
                Err(source) => {
                    let endpoint = endpoint.to_owned();
                    let error = SubscribeError::Endpoint { endpoint, source };
                    tracing::warn!("{error}");
                    failed.get_or_insert(error);
                }
            }
        }
        match failed {
            Some(error) if addresses.is_empty() => Err(error),
            _ if addresses.is_empty() => Err(SubscribeError::NoEndpoint),
            _ => Ok(addresses),
        }
    }

    fn of<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Self {
        let mut all = Vec::new();
        for text in texts {
            let parts = text.as_ref().split(',').map(str::trim);
            all.extend(parts.filter(|part| !part.is_empty()).map(str::to_owned));
        }
        Self(all)
    }
}

impl std::fmt::Display for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

impl From<&str> for Endpoints {
    fn from(text: &str) -> Self {
        Self::of([text])
    }
}

impl From<String> for Endpoints {
    fn from(text: String) -> Self {
        Self::of([text])
    }
}

impl From<&String> for Endpoints {
    fn from(text: &String) -> Self {
        Self::of([text])
    }
}

impl<T: AsRef<str>, const N: usize> From<[T; N]> for Endpoints {
    fn from(texts: [T; N]) -> Self {
        Self::of(texts)
    }
}

impl<T: AsRef<str>> From<&[T]> for Endpoints {
    fn from(texts: &[T]) -> Self {
        Self::of(texts)
    }
}

impl<T: AsRef<str>> From<Vec<T>> for Endpoints {
    fn from(texts: Vec<T>) -> Self {
        Self::of(texts)
    }
}
