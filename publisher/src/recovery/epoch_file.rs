//! Every start opens an epoch above all earlier ones: at least one above the last kept, and at
//! least the wall clock's microseconds. With a state directory, the epoch is on disk before
//! anything is published under it (docs/PROTOCOL.md, the trust rule).

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SourceId};
use tickcast_reliability::wire::{EpochReason, StreamEvent};
use tickcast_transport::host::files::{Access, DirectoryEntry, Readers, create_directory};

use crate::error::PublisherError;
use crate::publish::replay_check::ReplayMismatch;
use crate::recovery::input_identity::{Captures, Inputs};
use crate::state::Shared;

/// Largest state file, in bytes.
const STATE_LEN_MAX: u64 = 16 << 20;

/// Contents of the state file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    epoch: Epoch,
    /// The last sequence of each channel, if the epoch ended properly.
    #[serde(default)]
    ended_at: BTreeMap<u16, Sequence>,
    /// Hash of the inputs that it was opened for.
    #[serde(default)]
    inputs: Option<u64>,
    /// Identities of their capture files.
    #[serde(default)]
    captures: Captures,
    /// The previous epoch, announced with it.
    #[serde(default)]
    before: Before,
}

/// The previous epoch's part of an epoch's first datagram.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Before {
    epoch: Epoch,
    /// Last sequences, as in [`State::ended_at`].
    ended_at: BTreeMap<u16, Sequence>,
}

/// The epoch of this run, and what is known of the one before.
#[derive(Debug)]
pub(crate) struct EpochState {
    epoch: Epoch,
    before: Before,
    store: Option<Store>,
    inputs: Inputs,
    /// Reason of its opening, if more is known than that there was an epoch before.
    because: Option<EpochReason>,
}

#[derive(Debug)]
struct Store {
    entry: DirectoryEntry,
    /// Lock, held while this publisher runs.
    _lock: File,
}

/// The earlier epochs, held for a publisher that may open another: a standby.
#[derive(Debug)]
pub(crate) struct EpochsBefore {
    before: State,
    store: Option<Store>,
    inputs: Inputs,
}

impl EpochsBefore {
    /// Reads the state of publisher `name` in `directory`, if one is given.
    ///
    /// # Errors
    /// Returns [`PublisherError`] if the state can't be read or locked: a publisher that could
    /// reuse an epoch must not start.
    pub(crate) fn read(directory: Option<&Path>, name: &str) -> Result<Self, PublisherError> {
        let store = match directory {
            Some(directory) => Some(Store::open(directory, name)?),
            None => None,
        };
        let before = match &store {
            Some(store) => store.read()?,
            None => State::default(),
        };
        if before.epoch.0 == u64::MAX {
            let path = store.map(|store| store.entry.path().to_owned());
            let path = path.unwrap_or_default();
            let reason = "its epoch is the highest possible one".into();
            return Err(PublisherError::StateDamaged { path, reason });
        }
        Ok(Self {
            before,
            store,
            inputs: Inputs::default(),
        })
    }

    /// Sets the inputs of the next epoch.
    #[must_use]
    pub(crate) fn with_inputs(mut self, inputs: Inputs) -> Self {
        self.inputs = inputs;
        self
    }

    /// Returns the last epoch kept.
    pub(crate) const fn last(&self) -> Epoch {
        self.before.epoch
    }

    /// Returns whether the last epoch was opened for the same inputs.
    pub(crate) fn has_same_inputs(&self) -> bool {
        self.inputs.hash.is_some() && self.before.inputs == self.inputs.hash
    }

    /// Returns the source whose capture file changed since the last epoch was opened for the same
    /// inputs.
    pub(crate) fn changed_capture(&self) -> Option<SourceId> {
        self.inputs.changed_since(&self.before.captures)
    }

    /// Continues the last epoch kept.
    pub(crate) fn next_state(self) -> EpochState {
        EpochState {
            epoch: self.before.epoch,
            inputs: self.inputs,
            before: self.before.before,
            store: self.store,
            because: None,
        }
    }

    /// Returns an epoch above all kept ones and above `above`. It is not reserved until it is kept.
    pub(crate) fn next(&self, above: Epoch, utc: Nanos) -> Epoch {
        let last = self.before.epoch.max(above).0;
        Epoch(last.saturating_add(1).max(utc.as_us()))
    }

    /// Opens an epoch above all kept ones and above `above`, and keeps it.
    ///
    /// # Errors
    /// Returns [`PublisherError`] if it can't be kept.
    pub(crate) fn open(self, above: Epoch, utc: Nanos) -> Result<EpochState, PublisherError> {
        let epoch = self.next(above, utc);
        self.keep(epoch)
    }

    /// Keeps the [next](Self::next) epoch: from here on it may be published in.
    ///
    /// # Errors
    /// Returns [`PublisherError`] if it can't be kept.
    pub(crate) fn keep(self, epoch: Epoch) -> Result<EpochState, PublisherError> {
        let opened = EpochState {
            epoch,
            before: Before {
                epoch: self.before.epoch,
                ended_at: self.before.ended_at,
            },
            store: self.store,
            inputs: self.inputs,
            because: None,
        };
        opened.close(&[])?;
        Ok(opened)
    }
}

impl EpochState {
    /// Returns the epoch.
    #[must_use]
    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Sets the reason of the epoch.
    #[must_use]
    pub(crate) const fn because(mut self, reason: EpochReason) -> Self {
        self.because = Some(reason);
        self
    }

    /// Returns the event of a channel's first datagram.
    #[must_use]
    pub(crate) fn opened(&self, channel: ChannelId) -> StreamEvent {
        let previous = self.before.epoch;
        StreamEvent::EpochOpened {
            reason: self.because.unwrap_or(if previous == Epoch::NONE {
                EpochReason::Fresh
            } else {
                EpochReason::Restart
            }),
            previous,
            previous_last: self
                .before
                .ended_at
                .get(&channel.0)
                .copied()
                .unwrap_or_default(),
        }
    }

    /// Returns the file that records a replay mismatch of this epoch.
    pub(crate) fn mismatch(&self) -> ReplayMismatch {
        let path = self
            .store
            .as_ref()
            .map(|store| store.entry.path().with_extension("not-again"));
        ReplayMismatch {
            path,
            epoch: self.epoch,
        }
    }

    /// Closes the epoch like [`EpochState::close`], if the session has ended.
    ///
    /// # Errors
    /// [`PublisherError::State`].
    pub(crate) fn close_if_ended(&self, shared: &Shared) -> Result<(), PublisherError> {
        if !shared.is_ended() {
            return Ok(());
        }
        let ended_at = shared.channels.iter().map(|c| (c.plan.id, c.ring.sealed()));
        self.close(&ended_at.collect::<Vec<_>>())
    }

    /// Keeps the end of each channel, for the next epoch's announcement.
    ///
    /// # Errors
    /// [`PublisherError::State`].
    pub(crate) fn close(&self, ended_at: &[(ChannelId, Sequence)]) -> Result<(), PublisherError> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        store.keep(&State {
            epoch: self.epoch,
            ended_at: ended_at
                .iter()
                .map(|(channel, last)| (channel.0, *last))
                .collect(),
            inputs: self.inputs.hash,
            captures: self.inputs.captures.clone(),
            before: self.before.clone(),
        })
    }
}

impl Store {
    fn open(directory: &Path, name: &str) -> Result<Self, PublisherError> {
        create_directory(directory).map_err(PublisherError::state)?;
        let lock_path = directory.join(format!("{name}.lock"));
        let lock = DirectoryEntry::trusted(&lock_path)
            .and_then(|entry| entry.open_or_create(Access::ReadWrite, Readers::Owner));
        let lock = lock.map_err(PublisherError::state)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(PublisherError::StateLocked { path: lock_path });
            }
            Err(TryLockError::Error(source)) => {
                return Err(PublisherError::State {
                    what: "lock",
                    path: lock_path,
                    source,
                });
            }
        }
        let entry = DirectoryEntry::trusted(&directory.join(format!("{name}.epoch.json")));
        Ok(Self {
            entry: entry.map_err(PublisherError::state)?,
            _lock: lock,
        })
    }

    fn read(&self) -> Result<State, PublisherError> {
        let text = self.entry.read(STATE_LEN_MAX);
        let Some(text) = text.map_err(PublisherError::state)? else {
            return Ok(State::default());
        };
        serde_json::from_slice(&text).map_err(|error| PublisherError::StateDamaged {
            path: self.entry.path().to_owned(),
            reason: error.to_string(),
        })
    }

    /// Replaces the state file. A complete file exists at any time, also after a power failure.
    fn keep(&self, kept: &State) -> Result<(), PublisherError> {
        let mut text = serde_json::to_vec(kept).map_err(|error| PublisherError::State {
            what: "write",
            path: self.entry.path().to_owned(),
            source: io::Error::from(error),
        })?;
        text.push(b'\n');
        let written = self.entry.write(&text, Readers::Owner);
        written.map_err(PublisherError::state)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use rustix::io::Errno;
    use tickcast_transport::host::files::FileError;

    use super::*;

    const C: ChannelId = ChannelId(1);

    fn open(directory: &Path, us: u64) -> Result<EpochState, PublisherError> {
        EpochsBefore::read(Some(directory), "a")?.open(Epoch::NONE, Nanos::from_us(us))
    }

    #[test]
    fn epochs_rise_even_when_the_clock_steps_back() {
        let dir = tempfile::tempdir().unwrap();
        let open = |us| open(dir.path(), us).unwrap();
        let first = open(1_000);
        assert_eq!(first.epoch(), Epoch(1_000));
        let fresh = StreamEvent::EpochOpened {
            reason: EpochReason::Fresh,
            previous: Epoch::NONE,
            previous_last: Sequence::NONE,
        };
        assert_eq!(first.opened(C), fresh);
        first.close(&[(C, Sequence(7))]).unwrap();
        drop(first);
        let second = open(10);
        assert_eq!(second.epoch(), Epoch(1_001));
        let restart = StreamEvent::EpochOpened {
            reason: EpochReason::Restart,
            previous: Epoch(1_000),
            previous_last: Sequence(7),
        };
        assert_eq!(second.opened(C), restart);
        drop(second);
        // A publisher that continues in the epoch announces the same event.
        let second = EpochsBefore::read(Some(dir.path()), "a")
            .unwrap()
            .next_state();
        assert_eq!((second.epoch(), second.opened(C)), (Epoch(1_001), restart));
        drop(second);
        // A mirrored epoch counts as an earlier one.
        let before = EpochsBefore::read(Some(dir.path()), "a").unwrap();
        let above = before.open(Epoch(2_000), Nanos::ZERO).unwrap();
        assert_eq!(above.epoch(), Epoch(2_001));
        drop(above);
        let third = open(5_000);
        assert_eq!(third.epoch(), Epoch(5_000));
        let StreamEvent::EpochOpened { previous_last, .. } = third.opened(C) else {
            panic!("an epoch event")
        };
        assert_eq!(previous_last, Sequence::NONE, "the second was never closed");
    }

    #[test]
    fn state_that_is_damaged_or_in_use_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = || open(dir.path(), 0);
        let held = open().unwrap();
        assert!(matches!(open(), Err(PublisherError::StateLocked { .. })));
        drop(held);
        for damaged in [
            &b"{\"epoch\": -1}"[..],
            b"",
            b"\xff\xfe\x00",
            b"{\"ep\xffoch\": 1}",
        ] {
            std::fs::write(dir.path().join("a.epoch.json"), damaged).unwrap();
            assert!(matches!(open(), Err(PublisherError::StateDamaged { .. })));
        }
    }

    #[test]
    fn state_that_others_determine_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.epoch.json");
        let refused = || {
            let error = open(dir.path(), 0).unwrap_err();
            assert!(matches!(error, PublisherError::File(_)), "{error}");
            assert_eq!(error.exit_code(), 2);
        };
        drop(open(dir.path(), 0).unwrap());
        for name in ["a.epoch.json", "a.lock"] {
            let mode = std::fs::metadata(dir.path().join(name)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let all = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(&path, all).unwrap();
        refused();
        std::fs::remove_file(&path).unwrap();
        // An endless device would fill the memory.
        symlink("/dev/zero", &path).unwrap();
        refused();
        std::fs::remove_file(&path).unwrap();
        let large = File::create(&path).unwrap();
        large.set_len(STATE_LEN_MAX + 1).unwrap();
        refused();
        std::fs::remove_file(&path).unwrap();
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open_to_all).unwrap();
        refused();
    }

    #[test]
    fn unkept_state_remedy_follows_the_fault() {
        let said = |errno: Errno| {
            let error = FileError::Io {
                what: "write",
                path: "/s/a.epoch.json".into(),
                source: io::Error::from_raw_os_error(errno.raw_os_error()),
            };
            PublisherError::state(error).to_string()
        };
        for (errno, remedy) in [
            (Errno::NOSPC, "; free space on its file system"),
            (Errno::DQUOT, "; free space on its file system"),
            (
                Errno::ACCESS,
                "; check that its directory exists and is writable",
            ),
        ] {
            let said = said(errno);
            assert!(said.ends_with(remedy), "{said}");
        }
    }
}
