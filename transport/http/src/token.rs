//! The secret that authorises commands over TCP.

use std::fmt;
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;
use thiserror::Error;
use tickcast_transport_base::host::files::{DirectoryEntry, FileError};

/// Minimum length of a token, in bytes.
const LEN_MIN: usize = 16;
/// Maximum length of a token and of its file, in bytes.
const LEN_MAX: usize = 1024;

/// The secret that authorises commands over TCP. It is sent as `Authorization: Bearer`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Reason that a file gives no token.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file can't be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file holds something else.
    #[error(
        "{} holds no token; write at least {LEN_MIN} visible ASCII characters on one line, for \
         example by: openssl rand -hex 32",
        .path.display()
    )]
    Shape {
        /// Path of the file.
        path: PathBuf,
    },
}

impl Token {
    /// Reads the token from a file that only this user can read.
    ///
    /// # Errors
    /// [`TokenError`] with the reason and the remedy.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let bytes = DirectoryEntry::trusted(path)?.read_secret(LEN_MAX as u64)?;
        let text = str::from_utf8(&bytes).ok().map(str::trim_end);
        let is_token =
            |text: &&str| text.len() >= LEN_MIN && text.bytes().all(|byte| byte.is_ascii_graphic());
        let token = text.filter(is_token).map(|text| Self(text.to_owned()));
        token.ok_or_else(|| TokenError::Shape {
            path: path.to_owned(),
        })
    }

    /// Returns the value of an `Authorization` header that carries the token.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Returns whether the value of an `Authorization` header carries the token. The time depends neither on
    /// the first byte that differs nor on the token's length.
    #[must_use]
    pub(crate) fn is_in(&self, header: &[u8]) -> bool {
        let Some((scheme, given)) = header.split_at_checked(7) else {
            return false;
        };
        let (Some(given), Some(own)) = (padded(given.trim_ascii()), padded(self.0.as_bytes()))
        else {
            return false;
        };
        scheme.eq_ignore_ascii_case(b"bearer ") && given.ct_eq(&own).into()
    }
}

/// Returns the text at the maximum length of a token, or `None` if it is longer. No token contains a zero.
fn padded(text: &[u8]) -> Option<[u8; LEN_MAX]> {
    let mut padded = [0; LEN_MAX];
    padded.get_mut(..text.len())?.copy_from_slice(text);
    Some(padded)
}

impl fmt::Debug for Token {
    /// Hides the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn token_is_read_only_from_own_secret_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(matches!(Token::read(&path), Err(TokenError::File(_))));
        for (text, mode, reason) in [
            ("0123456789abcdef\n", 0o600, None),
            ("0123456789abcdef", 0o400, None),
            (
                "0123456789abcdef",
                0o640,
                Some("others than its owner can read it"),
            ),
            (
                "0123456789abcdef",
                0o604,
                Some("others than its owner can read it"),
            ),
            (
                "0123456789abcdef",
                0o620,
                Some("others than its owner can write it"),
            ),
            ("0123456789abcde\n", 0o600, Some("holds no token")),
            ("", 0o600, Some("holds no token")),
            ("0123456789 abcdef", 0o600, Some("holds no token")),
            ("0123456789abcdef\nx", 0o600, Some("holds no token")),
            ("0123456789abcdé", 0o600, Some("holds no token")),
            (&"a".repeat(1025), 0o600, Some("more than 1024 bytes")),
        ] {
            write(&path, text).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match (Token::read(&path), reason) {
                (Ok(token), None) => assert_eq!(token.header(), "Bearer 0123456789abcdef"),
                (Err(error), Some(reason)) => {
                    let error = error.to_string();
                    assert!(error.contains(reason), "{text:?} {mode:o}: {error}");
                }
                (read, _) => panic!("{text:?} {mode:o}: {read:?}"),
            }
            set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }
        write(&path, "0123456789abcdef").unwrap();
        if chown(&path, Some(7), None).is_err() {
            println!("SKIPPED: only root can give a file away");
            return;
        }
        let error = Token::read(&path).unwrap_err().to_string();
        assert!(error.contains("belongs to user 7"), "{error}");
    }

    #[test]
    fn header_carries_token_only_whole() {
        let token = Token("0123456789abcdef".into());
        assert_eq!(format!("{token:?}"), "Token");
        for (header, is_right) in [
            ("Bearer 0123456789abcdef", true),
            ("bearer  0123456789abcdef ", true),
            ("Bearer 0123456789abcdeg", false),
            ("Bearer 0123456789abcde", false),
            ("Bearer 0123456789abcdef0", false),
            (&*format!("Bearer {}", "0".repeat(LEN_MAX + 1)), false),
            ("Bearer ", false),
            ("Basic 0123456789abcdef", false),
            ("0123456789abcdef", false),
            ("", false),
        ] {
            assert_eq!(token.is_in(header.as_bytes()), is_right, "{header:?}");
        }
    }
}
