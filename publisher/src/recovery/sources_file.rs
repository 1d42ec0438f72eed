//! The facts of live sources on disk, for a later publisher that continues the epoch. The file says
//! up to which sequence of each channel it is complete; the rings complete it from there.
//!
//! It needs only to outlive a killed process: after a restart of the host no epoch continues.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tickcast_feeds::source::FeedSession;
use tickcast_reliability::control::Instrument;
use tickcast_reliability::types::{Epoch, Sequence, SourceId};
use tickcast_transport::host::files::{DirectoryEntry, Readers};

use crate::error::PublisherError;
use crate::state::source_memory::{NAMES_MAX, SourceFacts};
use crate::state::thread::{Thread, spawn};
use crate::state::{Shared, SourceShared};

/// Interval between two checks for changes.
const INTERVAL: Duration = Duration::from_millis(20);
/// The file is written anew after this part of a ring, so that the ring still completes it.
const RING_PART: u64 = 8;
/// The longest file that is read: every name of 8 sources.
const FILE_LEN_MAX: u64 = 64 << 20;
/// The longest symbol of a DBN record.
const SYMBOL_LEN_MAX: usize = 71;

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourcesFile {
    /// The epoch of the ids and ordinals.
    epoch: Epoch,
    /// The last sequence of each channel of which everything is here.
    complete_to: BTreeMap<u16, Sequence>,
    /// The sources, by number.
    sources: BTreeMap<u16, KeptSource>,
}

/// One source in the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct KeptSource {
    /// The name of its format, once it is known.
    format: Option<String>,
    /// Its session, 32 hexadecimal digits.
    session: String,
    ordinal: u16,
    /// Ids and symbols, in the order of naming.
    names: Vec<(u32, String)>,
    unnamed: u64,
    /// Whether more was named than is kept.
    is_full: bool,
}

/// The reason why the file gives no facts of a source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotKept {
    #[error("its state in {} can't be read: {reason}", .path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("its state in {} is of epoch {found}", .path.display())]
    Epoch { path: PathBuf, found: Epoch },
    #[error("its state was not kept")]
    Missing,
    #[error("its session was not kept, or the venue numbers nothing")]
    Session,
    #[error("it named more than {NAMES_MAX} instruments")]
    Names,
}

impl SourcesFile {
    /// Returns the path of a publisher's file.
    pub(crate) fn path(state_dir: &Path, name: &str) -> PathBuf {
        state_dir.join(format!("{name}.sources.json"))
    }

    /// Reads the file of an epoch.
    ///
    /// # Errors
    /// Returns [`NotKept`] if it is missing, damaged, or of another epoch.
    pub(crate) fn read(path: &Path, epoch: Epoch) -> Result<Self, NotKept> {
        let unreadable = |reason: String| NotKept::Unreadable {
            path: path.to_owned(),
            reason,
        };
        let read = DirectoryEntry::trusted(path).and_then(|entry| entry.read(FILE_LEN_MAX));
        let text = read.map_err(|error| unreadable(error.to_string()))?;
        let text = text.ok_or(NotKept::Missing)?;
        let kept: Self =
            serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()))?;
        if kept.epoch != epoch {
            let (path, found) = (path.to_owned(), kept.epoch);
            return Err(NotKept::Epoch { path, found });
        }
        Ok(kept)
    }

    /// Returns the last sequence of a channel of which everything is here.
    pub(crate) fn complete_to(&self, channel: u16) -> Sequence {
        self.complete_to.get(&channel).copied().unwrap_or_default()
    }

    /// Returns the facts of a source.
    ///
    /// # Errors
    /// Returns [`NotKept`] if they are missing or impossible.
    pub(crate) fn facts(&self, source: SourceId) -> Result<SourceFacts, NotKept> {
        let kept = self.sources.get(&source.0).ok_or(NotKept::Missing)?;
        let format = kept.format.as_deref().and_then(|name| name.parse().ok());
        let id = u128::from_str_radix(&kept.session, 16).ok();
        let (Some(format), Some(id)) = (format, id) else {
            return Err(NotKept::Session);
        };
        let is_possible = |name: &(u32, String)| name.0 > 0 && name.1.len() <= SYMBOL_LEN_MAX;
        if kept.is_full || kept.names.len() > NAMES_MAX || !kept.names.iter().all(is_possible) {
            return Err(NotKept::Names);
        }
        let ordinal = kept.ordinal;
        let mut facts = SourceFacts::default();
        facts.session = Some((format, FeedSession { id, ordinal }));
        facts.unnamed = kept.unnamed;
        for (id, symbol) in &kept.names {
            let (id, symbol) = (*id, symbol.clone());
            facts.name(&Instrument { id, symbol });
        }
        Ok(facts)
    }

    fn set(&mut self, source: SourceId, facts: &SourceFacts) {
        let session = facts.session.map(|(_, session)| session);
        let kept = self.sources.entry(source.0).or_default();
        kept.format = facts.session.map(|(format, _)| format.to_string());
        kept.session = session.map_or_else(String::new, |it| format!("{:032x}", it.id));
        kept.ordinal = session.map_or(0, |it| it.ordinal);
        let new = facts.names.iter().skip(kept.names.len());
        kept.names.extend(new.map(|it| (it.id, it.symbol.clone())));
        (kept.unnamed, kept.is_full) = (facts.unnamed, facts.is_full);
    }
}

/// Keeps the facts of a publisher's live sources while it runs.
pub(crate) struct SourcesKeeper {
    path: PathBuf,
    shared: Arc<Shared>,
    kept: SourcesFile,
    facts: Vec<(Arc<SourceShared>, SourceFacts)>,
    is_written: bool,
}

impl SourcesKeeper {
    /// Creates the keeper of the sources that have a memory.
    pub(crate) fn new(path: PathBuf, shared: Arc<Shared>) -> Self {
        let remembered = shared.sources.iter().filter(|it| it.memory.get().is_some());
        Self {
            path,
            kept: SourcesFile {
                epoch: shared.epoch,
                ..SourcesFile::default()
            },
            facts: remembered
                .map(|it| (it.clone(), SourceFacts::default()))
                .collect(),
            shared,
            is_written: false,
        }
    }

    /// Starts the thread that keeps them, if there are any. It has no other work, because a slow
    /// disk holds it up.
    ///
    /// # Errors
    /// Returns [`PublisherError::System`] if the thread can't be started.
    pub(crate) fn start(mut self) -> Result<Option<Thread<()>>, PublisherError> {
        if self.facts.is_empty() {
            return Ok(None);
        }
        let thread = spawn("sources", None, move || {
            let mut has_failed = false;
            while !self.shared.is_shutting_down() {
                match self.keep() {
                    Ok(()) => has_failed = false,
                    Err(error) if !has_failed => {
                        has_failed = true;
                        let path = self.path.display();
                        tracing::warn!(%path, %error, "the state of the live sources can't be kept: \
                            a restart opens a new epoch; make the state directory writable");
                    }
                    Err(_) => {}
                }
                sleep(INTERVAL);
            }
            Ok(())
        });
        thread.map(Some)
    }

    /// Writes the file, if there is news or the rings have moved on.
    ///
    /// # Errors
    /// Returns the operating system's error; the earlier file is then unchanged.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        let channels = self.shared.channels.iter();
        // Read the sequences first: whatever they cover was named before it was sealed.
        let sealed: Vec<_> = channels
            .map(|it| (it.plan.id.0, it.ring.sealed(), it.ring.geometry().slots()))
            .collect();
        let mut is_due = !self.is_written;
        for (source, facts) in &mut self.facts {
            if let Some(memory) = source.memory.get()
                && memory.update(facts)
            {
                self.kept.set(source.source, facts);
                is_due = true;
            }
        }
        is_due |= sealed.iter().any(|(channel, sealed, slots)| {
            sealed.since(self.kept.complete_to(*channel)) > slots / RING_PART
        });
        if !is_due {
            return Ok(());
        }
        self.is_written = false;
        self.kept.complete_to = sealed.into_iter().map(|(id, it, _)| (id, it)).collect();
        let text = serde_json::to_vec(&self.kept)?;
        DirectoryEntry::trusted(&self.path)?.write(&text, Readers::Owner)?;
        self.is_written = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use tickcast_feeds::venues::Format;

    use super::*;

    const EPOCH: Epoch = Epoch(7);
    const SOURCE: SourceId = SourceId(3);

    fn kept() -> SourcesFile {
        let (id, ordinal) = (u128::MAX - 5, 2);
        let mut facts = SourceFacts::default();
        facts.session = Some((Format::IexTp, FeedSession { id, ordinal }));
        facts.unnamed = 4;
        for (id, symbol) in [(1, "A"), (2, "BRK.B"), (1, "C")] {
            let symbol = symbol.into();
            facts.name(&Instrument { id, symbol });
        }
        let mut kept = SourcesFile {
            epoch: EPOCH,
            complete_to: BTreeMap::from([(1, Sequence(9))]),
            ..SourcesFile::default()
        };
        kept.set(SOURCE, &facts);
        kept
    }

    /// Returns the facts that a file with these bytes gives.
    fn found(bytes: &[u8]) -> Result<SourceFacts, NotKept> {
        let dir = tempfile::tempdir().unwrap();
        let path = SourcesFile::path(dir.path(), "test");
        std::fs::write(&path, bytes).unwrap();
        SourcesFile::read(&path, EPOCH)?.facts(SOURCE)
    }

    #[test]
    fn kept_facts_return_from_file() {
        let text = serde_json::to_vec(&kept()).unwrap();
        let facts = found(&text).unwrap();
        let mut again = kept();
        again.sources.clear();
        again.set(SOURCE, &facts);
        assert_eq!(again, kept());
        let symbols: Vec<_> = facts.instruments().map(|it| (it.id, &*it.symbol)).collect();
        assert_eq!(symbols, [(2, "BRK.B"), (1, "C")]);
    }

    #[test]
    fn damaged_file_of_sources_gives_reason_never_facts() {
        let text = serde_json::to_vec(&kept()).unwrap();
        for len in 0..text.len() {
            let found = found(&text[..len]);
            assert!(matches!(found, Err(NotKept::Unreadable { .. })), "{len}");
        }
        let edited = |edit: fn(&mut SourcesFile)| {
            let mut other = kept();
            edit(&mut other);
            found(&serde_json::to_vec(&other).unwrap()).unwrap_err()
        };
        assert!(matches!(
            edited(|it| it.epoch = Epoch(6)),
            NotKept::Epoch {
                found: Epoch(6),
                ..
            }
        ));
        assert_eq!(edited(|it| it.sources.clear()), NotKept::Missing);
        for spoil in [
            (|it| it.format = None) as fn(&mut KeptSource),
            |it| it.format = Some("other".into()),
            |it| it.session = "x".into(),
            |it| it.session = "1".repeat(40),
        ] {
            let mut other = kept();
            spoil(other.sources.get_mut(&SOURCE.0).unwrap());
            let found = found(&serde_json::to_vec(&other).unwrap());
            assert_eq!(found, Err(NotKept::Session));
        }
        for spoil in [
            (|it| it.is_full = true) as fn(&mut KeptSource),
            |it| it.names.push((0, "A".into())),
            |it| it.names.push((9, "A".repeat(SYMBOL_LEN_MAX + 1))),
            |it| it.names = vec![(1, "A".into()); NAMES_MAX + 1],
        ] {
            let mut other = kept();
            spoil(other.sources.get_mut(&SOURCE.0).unwrap());
            let found = found(&serde_json::to_vec(&other).unwrap());
            assert_eq!(found, Err(NotKept::Names));
        }
    }

    #[test]
    fn overlong_or_shared_file_of_sources_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = SourcesFile::path(dir.path(), "test");
        let refused = |because: &str| {
            let Err(NotKept::Unreadable { reason, .. }) = SourcesFile::read(&path, EPOCH) else {
                panic!("it is read");
            };
            assert!(reason.contains(because), "{reason}");
        };
        let file = File::create(&path).unwrap();
        file.set_len(FILE_LEN_MAX + 1).unwrap();
        refused("more than 67108864 bytes");
        file.set_len(FILE_LEN_MAX).unwrap();
        refused("expected value");
        file.set_permissions(Permissions::from_mode(0o666)).unwrap();
        refused("chmod go-w");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        refused("a link");
    }
}
