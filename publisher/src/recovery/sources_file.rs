//! The facts of live sources on disk, for a later publisher that continues the epoch. The file says
//! up to which sequence of each channel it is complete; the rings complete it from there.
//!
//! It needs only to outlive a killed process: after a restart of the host no epoch continues.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use tickcast_feeds::source::FeedSession;
use tickcast_reliability::control::Instrument;
use tickcast_reliability::types::{Epoch, Sequence, SourceId, SourcePosition};
use tickcast_transport::host::files::{DirectoryEntry, Readers};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::PublisherError;
use crate::state::source_memory::{NAMES_MAX, SourceFacts};
use crate::state::thread::{Thread, spawn};
use crate::state::{Shared, SourceShared};

/// Interval between two checks for changes.
const INTERVAL: Duration = Duration::from_millis(20);
/// Interval between two writes of nothing but positions, and before an attempt after an error.
const LONG_INTERVAL: Duration = Duration::from_secs(1);
/// The file is written anew after this part of a ring, so that the ring still completes it.
const RING_PART: u64 = 8;
/// The longest file that is written or read: every name of 8 sources.
const FILE_LEN_MAX: u64 = 64 << 20;
/// The longest symbol of a DBN record.
const SYMBOL_LEN_MAX: usize = 71;

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourcesFile {
    /// The XXH3 hash of the file without it, as a number. Damage must not move a source's place.
    #[serde(default)]
    check: u64,
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
    /// The message before which it ends, once the venue has said so.
    #[serde(default)]
    end_at: Option<u64>,
    /// The latest time at which the venue sent a packet of it; 0 if it stamps none.
    #[serde(default)]
    sent_at: u64,
    /// Each message up to here is sealed, or was for no channel.
    settled: SourcePosition,
    /// Ids and symbols, in the order of naming.
    names: Vec<(u32, String)>,
    /// No id from here on was assigned when the publisher started.
    next_id: u32,
    /// Messages lost in the queue since.
    unnamed: u64,
    /// The first message of the last such loss.
    lost_at: SourcePosition,
    /// Whether more was named than is kept.
    is_full: bool,
}

impl KeptSource {
    fn of(facts: &SourceFacts) -> Self {
        let session = facts.session.map(|(_, session)| session);
        let names = facts.instruments().map(|it| (it.id, it.symbol.clone()));
        Self {
            format: facts.session.map(|(format, _)| format.to_string()),
            session: session.map_or_else(String::new, |it| format!("{:032x}", it.id)),
            ordinal: session.map_or(0, |it| it.ordinal),
            end_at: session.and_then(|it| it.end_at),
            sent_at: facts.sent_at,
            settled: facts.settled,
            names: names.collect(),
            next_id: facts.next_id,
            unnamed: facts.unnamed,
            lost_at: facts.lost_at,
            is_full: facts.is_full,
        }
    }
}

/// The reason why the file gives no facts of a source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum NotKept {
    #[error("its state in {} can't be read: {reason}", .path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("its state in {} is of epoch {found}", .path.display())]
    Epoch { path: PathBuf, found: Epoch },
    #[error(
        "its state was not kept; make the state directory writable. The first start of this version \
         finds none"
    )]
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
        if kept.check != kept.hash() {
            return Err(unreadable("it is damaged: its hash is another".to_owned()));
        }
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
        let (ordinal, end_at) = (kept.ordinal, kept.end_at);
        let session = FeedSession {
            id,
            ordinal,
            end_at,
        };
        let mut facts = SourceFacts::default();
        facts.session = Some((format, session));
        facts.sent_at = kept.sent_at;
        facts.settled = kept.settled;
        facts.next_id = kept.next_id;
        (facts.unnamed, facts.lost_at) = (kept.unnamed, kept.lost_at);
        for (id, symbol) in &kept.names {
            let (id, symbol) = (*id, symbol.clone());
            facts.name(&Instrument { id, symbol });
        }
        Ok(facts)
    }

    /// Returns the hash of everything but the hash.
    fn hash(&self) -> u64 {
        let without = Self {
            check: 0,
            ..self.clone()
        };
        serde_json::to_vec(&without).map_or(0, |bytes| xxh3_64(&bytes))
    }

    /// Returns the bytes of the file, with their hash.
    ///
    /// # Errors
    /// Returns the reason if no later publisher would read them.
    pub(super) fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let checked = Self {
            check: self.hash(),
            ..self.clone()
        };
        let bytes = serde_json::to_vec(&checked)?;
        match bytes.len() as u64 {
            len if len > FILE_LEN_MAX => Err(io::Error::other(format!(
                "the instruments need {len} bytes, and {FILE_LEN_MAX} are allowed"
            ))),
            _ => Ok(bytes),
        }
    }
}

/// Keeps the facts of a publisher's live sources while it runs.
pub(crate) struct SourcesKeeper {
    path: PathBuf,
    shared: Arc<Shared>,
    /// The contents of the file, as far as it is written.
    kept: SourcesFile,
    facts: Vec<(Arc<SourceShared>, SourceFacts)>,
    /// Whether there is news of the facts.
    is_due: bool,
    written_at: Option<Instant>,
    /// The last attempt, if it failed.
    failed_at: Option<Instant>,
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
            is_due: true,
            written_at: None,
            failed_at: None,
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
            while !self.shared.is_shutting_down() {
                if let Some(error) = self.step(Instant::now()) {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "the state of the live sources can't be kept: \
                        a restart opens a new epoch; make the state directory writable");
                }
                sleep(INTERVAL);
            }
            Ok(())
        });
        thread.map(Some)
    }

    /// Keeps the facts, unless the last attempt failed shortly before. Returns the first error in a row.
    fn step(&mut self, now: Instant) -> Option<io::Error> {
        let is_early = |at: Instant| now.duration_since(at) < LONG_INTERVAL;
        if self.failed_at.is_some_and(is_early) {
            return None;
        }
        let error = self.keep().err();
        let had_failed = self.failed_at.is_some();
        self.failed_at = error.is_some().then_some(now);
        error.filter(|_| !had_failed)
    }

    /// Writes the file, if there is news, the rings have moved on, or positions alone have for a while.
    ///
    /// # Errors
    /// Returns the operating system's error; the earlier file is then unchanged.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        let channels = self.shared.channels.iter();
        // Read the sequences first: whatever they cover was named before it was sealed.
        let sealed: Vec<_> = channels
            .map(|it| (it.plan.id.0, it.ring.sealed(), it.ring.geometry().slots()))
            .collect();
        let mut has_moved = false;
        for (source, facts) in &mut self.facts {
            if let Some(memory) = source.memory.get() {
                self.is_due |= memory.update(facts);
                let kept = self.kept.sources.get(&source.source.0);
                has_moved |= kept.is_some_and(|kept| kept.settled < facts.settled);
            }
        }
        self.is_due |= sealed.iter().any(|(channel, sealed, slots)| {
            sealed.since(self.kept.complete_to(*channel)) > slots / RING_PART
        });
        self.is_due |= has_moved
            && (self.written_at).is_none_or(|written_at| written_at.elapsed() >= LONG_INTERVAL);
        if !self.is_due {
            return Ok(());
        }
        let kept = SourcesFile {
            check: 0,
            epoch: self.kept.epoch,
            complete_to: sealed.into_iter().map(|(id, it, _)| (id, it)).collect(),
            sources: (self.facts.iter())
                .map(|(source, facts)| (source.source.0, KeptSource::of(facts)))
                .collect(),
        };
        DirectoryEntry::trusted(&self.path)?.write(&kept.to_bytes()?, Readers::Owner)?;
        self.kept = kept;
        self.is_due = false;
        self.written_at = Some(Instant::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use tickcast_feeds::venues::Format;
    use tickcast_reliability::types::Nanos;

    use super::*;

    const EPOCH: Epoch = Epoch(7);
    const SOURCE: SourceId = SourceId(3);

    fn kept() -> SourcesFile {
        let (id, ordinal) = (u128::MAX - 5, 2);
        let mut facts = SourceFacts::default();
        let end_at = Some(12);
        facts.session = Some((
            Format::IexTp,
            FeedSession {
                id,
                ordinal,
                end_at,
            },
        ));
        facts.sent_at = 77;
        (facts.unnamed, facts.next_id) = (4, 3);
        facts.lost_at = SourcePosition::new(1, 5);
        facts.settled = SourcePosition::new(2, 8);
        for (id, symbol) in [(1, "A"), (2, "BRK.B"), (1, "C")] {
            let symbol = symbol.into();
            facts.name(&Instrument { id, symbol });
        }
        SourcesFile {
            check: 0,
            epoch: EPOCH,
            complete_to: BTreeMap::from([(1, Sequence(9))]),
            sources: BTreeMap::from([(SOURCE.0, KeptSource::of(&facts))]),
        }
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
        let text = kept().to_bytes().unwrap();
        let facts = found(&text).unwrap();
        assert_eq!(KeptSource::of(&facts), kept().sources[&SOURCE.0]);
        let symbols: Vec<_> = facts.instruments().map(|it| (it.id, &*it.symbol)).collect();
        assert_eq!(symbols, [(2, "BRK.B"), (1, "C")]);
    }

    #[test]
    fn failed_write_is_reported_once_and_repeated_each_second() {
        let dir = tempfile::tempdir().unwrap();
        let path = SourcesFile::path(&dir.path().join("later"), "test");
        let stop = Arc::default();
        let shared = Shared::new(
            "test".into(),
            EPOCH,
            Vec::new(),
            Vec::new(),
            stop,
            Nanos::ZERO,
        );
        let mut keeper = SourcesKeeper::new(path.clone(), Arc::new(shared));
        let began = Instant::now();
        let mut step = |ms| keeper.step(began + Duration::from_millis(ms)).is_some();
        assert!(step(0), "there is no such directory");
        assert!(!step(1_000), "it was reported");
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        assert!(!step(1_999) && !path.exists());
        assert!(!step(2_000) && path.exists());
    }

    #[test]
    fn file_that_no_start_would_read_is_not_written() {
        let mut long = kept();
        let name = (1, "\u{1}".repeat(SYMBOL_LEN_MAX));
        let source = long.sources.get_mut(&SOURCE.0).unwrap();
        let len = serde_json::to_vec(&name).unwrap().len() + 1;
        source.names = vec![name; FILE_LEN_MAX as usize / len + 1];
        let error = long.to_bytes().unwrap_err().to_string();
        assert!(error.contains("67108864 are allowed"), "{error}");
        assert!(kept().to_bytes().is_ok());
    }

    #[test]
    fn damaged_file_of_sources_gives_reason_never_facts() {
        let text = kept().to_bytes().unwrap();
        for len in 0..text.len() {
            let found = found(&text[..len]);
            assert!(matches!(found, Err(NotKept::Unreadable { .. })), "{len}");
        }
        // Another digit or letter: the file may still be one, and its place another.
        for at in 0..text.len() {
            for bit in [1, 2] {
                let mut damaged = text.clone();
                damaged[at] ^= bit;
                let found = found(&damaged);
                assert!(
                    matches!(found, Err(NotKept::Unreadable { .. })),
                    "{at}: {found:?}"
                );
            }
        }
        let edited = |edit: fn(&mut SourcesFile)| {
            let mut other = kept();
            edit(&mut other);
            found(&other.to_bytes().unwrap()).unwrap_err()
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
            let found = found(&other.to_bytes().unwrap());
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
            let found = found(&other.to_bytes().unwrap());
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
