//! The files of banned subscribers and of subscribers that may not READ. The repair service polls
//! each file. A banned subscriber is disconnected at once and refused from then on. A subscriber
//! that may not READ continues with NACKs, and is not written to. Removal from the file restores
//! the right.
//!
//! Each line has a subscriber's name or an IP address, then the reason, which the subscriber
//! receives. Text after a `#` is a comment. A subscriber chooses its own name; an address is harder
//! to change.

use std::fs::Metadata;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tickcast_reliability::types::Nanos;
use tickcast_transport::host::files::open_input;

use crate::repair::audit;

/// Interval between polls of the file.
const REFRESH_EVERY: Nanos = Nanos::from_ms(250);
/// A file longer than this is not read.
const FILE_LEN_MAX: u64 = 1 << 20;

/// A denied name or address.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Denial {
    who: String,
    address: Option<IpAddr>,
    why: String,
}

/// Audit words for an entry that appears in a file, and for one that disappears.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words(&'static str, &'static str);

/// The file, and its last contents.
#[derive(Debug)]
pub(crate) struct DenyList {
    words: Words,
    path: Option<PathBuf>,
    refresh_at: Nanos,
    seen: Option<Seen>,
    all: Vec<Denial>,
    warned: bool,
}

/// Metadata that changes when a file is written.
type Seen = (u64, u64, i64, i64);

impl DenyList {
    /// The ban list.
    pub(crate) const BANNED: Words = Words("banned", "unbanned");
    /// The list for READ.
    pub(crate) const DENIED: Words = Words("denied", "allowed");

    /// Creates the list from this file; without one nobody is denied.
    pub(crate) const fn new(words: Words, path: Option<PathBuf>) -> Self {
        Self {
            words,
            path,
            refresh_at: Nanos::ZERO,
            seen: None,
            all: Vec::new(),
            warned: false,
        }
    }

    /// Polls the file at intervals. Returns whether its contents changed.
    pub(crate) fn refresh(&mut self, now: Nanos) -> bool {
        let Some(path) = self.path.as_ref().filter(|_| now >= self.refresh_at) else {
            return false;
        };
        self.refresh_at = now.after(REFRESH_EVERY);
        let read = match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((None, String::new())),
            Err(error) => Err(error),
            Ok(about) if self.seen == Some(seen(&about)) => return false,
            Ok(about) => read_whole(path).map(|text| (Some(seen(&about)), text)),
        };
        match read {
            Ok((seen, text)) => {
                (self.seen, self.warned) = (seen, false);
                self.take(&text)
            }
            Err(error) => {
                // Earlier bans stay in force.
                if !std::mem::replace(&mut self.warned, true) {
                    tracing::warn!(
                        "{}: {} can't be read: {error}; the earlier entries stay in force; fix \
                         the file or its permissions",
                        self.words.0,
                        path.display()
                    );
                }
                false
            }
        }
    }

    pub(crate) fn take(&mut self, text: &str) -> bool {
        let before = std::mem::replace(&mut self.all, parse(text));
        for denial in self.all.iter().filter(|denial| !before.contains(denial)) {
            audit::write_entry(
                self.words.0,
                audit::Of {
                    subscriber: Some(&denial.who),
                    why: Some(&denial.why),
                    ..audit::Of::default()
                },
            );
        }
        let left = |denial: &&Denial| self.all.iter().all(|it| it.who != denial.who);
        for denial in before.iter().filter(left) {
            audit::write_entry(
                self.words.1,
                audit::Of {
                    subscriber: Some(&denial.who),
                    ..audit::Of::default()
                },
            );
        }
        self.all != before
    }

    /// Returns the reason why this name or address is denied.
    pub(crate) fn reason(&self, name: &str, address: SocketAddr) -> Option<&str> {
        let address = address.ip().to_canonical();
        let mut all = self.all.iter();
        let denial = all.find(|denial| match denial.address {
            Some(banned) => banned == address,
            None => denial.who == name,
        })?;
        Some(&denial.why)
    }
}

fn seen(about: &Metadata) -> Seen {
    (about.ino(), about.len(), about.mtime(), about.mtime_nsec())
}

fn read_whole(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let len = open_input(path)?
        .take(FILE_LEN_MAX + 1)
        .read_to_string(&mut text)?;
    if len as u64 > FILE_LEN_MAX {
        return Err(io::Error::other(format!(
            "it has more than {FILE_LEN_MAX} bytes"
        )));
    }
    Ok(text)
}

fn parse(text: &str) -> Vec<Denial> {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    let denial = |line: &str| {
        let (who, why) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        Denial {
            who: who.to_owned(),
            address: who.parse().ok().map(|it: IpAddr| it.to_canonical()),
            why: match why.trim() {
                "" => "no reason was given".to_owned(),
                why => why.to_owned(),
            },
        }
    };
    lines.filter(|line| !line.is_empty()).map(denial).collect()
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    const NOW: Nanos = Nanos::from_secs(1);

    fn at(address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), 7400)
    }

    #[test]
    fn deny_list_parses_names_addresses_and_reasons() {
        let mut bans = DenyList::new(DenyList::BANNED, None);
        let text = "# who\n\nrisk-1  left the desk # 2026\n10.0.0.7\n2001:db8::1 a stranger\n";
        assert!(bans.take(text));
        assert_eq!(bans.reason("risk-1", at("10.0.0.1")), Some("left the desk"));
        assert_eq!(
            bans.reason("risk-2", at("10.0.0.7")),
            Some("no reason was given")
        );
        assert_eq!(
            bans.reason("x", at("::ffff:10.0.0.7")),
            Some("no reason was given")
        );
        assert_eq!(bans.reason("x", at("2001:db8::1")), Some("a stranger"));
        assert_eq!(bans.reason("risk-2", at("10.0.0.1")), None);
        assert_eq!(bans.reason("10.0.0.7", at("10.0.0.1")), None, "no name");
        assert!(!bans.take(text), "nothing has changed");
        assert!(bans.take("risk-1 left the desk"));
        assert_eq!(bans.reason("risk-2", at("10.0.0.7")), None);
    }

    #[test]
    fn file_counts_when_changed_and_unreadable_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("banned");
        let mut bans = DenyList::new(DenyList::BANNED, Some(path.clone()));
        assert!(!bans.refresh(NOW), "there is none");
        std::fs::write(&path, "risk-1 why").unwrap();
        assert!(!bans.refresh(NOW), "not yet");
        let later = NOW.after(REFRESH_EVERY);
        assert!(bans.refresh(later) && !bans.refresh(later.after(REFRESH_EVERY)));
        assert_eq!(bans.reason("risk-1", at("::1")), Some("why"));
        std::fs::write(&path, "a".repeat(FILE_LEN_MAX as usize + 1)).unwrap();
        let later = later.after(Nanos::from_secs(1));
        assert!(!bans.refresh(later), "too long");
        assert!(bans.reason("risk-1", at("::1")).is_some(), "it stays");
        std::fs::remove_file(&path).unwrap();
        let pipe = mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
        pipe.unwrap();
        let later = later.after(Nanos::from_secs(1));
        assert!(
            !bans.refresh(later),
            "a pipe is neither read nor waited for"
        );
        assert!(bans.reason("risk-1", at("::1")).is_some(), "it stays");
        std::fs::remove_file(&path).unwrap();
        assert!(bans.refresh(later.after(REFRESH_EVERY)));
        assert_eq!(bans.reason("risk-1", at("::1")), None);
        assert!(!DenyList::new(DenyList::DENIED, None).refresh(NOW));
    }
}
