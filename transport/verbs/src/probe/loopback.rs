//! A connection of a device to itself: one side grants, the other accesses.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::access::Observed;
use crate::connection::{Completed, GrantId, Listener, Stream, StreamConfig, StreamEnd};
use crate::device::Device;
use crate::error::VerbsError;
use crate::memory::cursor::CursorEntry;
use crate::memory::window::{ReadableMemory, RemoteMemory};

/// Time limit of each step.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between polls.
const POLL_EVERY: Duration = Duration::from_micros(50);
/// Length of the longest READ, in bytes.
const READ_LEN_MAX: usize = 64;

/// Both ends of a connection.
pub(super) struct Loopback {
    owner: Stream,
    reader: Stream,
}

impl Loopback {
    /// Connects the device to itself.
    pub(super) fn connect(device: &Arc<Device>) -> Result<Self, String> {
        device.check_active().map_err(|error| error.to_string())?;
        let config = StreamConfig {
            buffers: 8,
            buffer_len: 256,
            reads_max: 1,
            read_len_max: READ_LEN_MAX,
            connect_ms: PATIENCE.as_millis() as u32,
            // The most. One lost connection would withhold the access for the life of the process.
            retries: 7,
            ..StreamConfig::default()
        };
        let text = |error: VerbsError| error.to_string();
        let mut listener = Listener::on(Arc::clone(device), 0, &config).map_err(text)?;
        let mut reader = Stream::connect(device, listener.address(), &config).map_err(text)?;
        let mut owner: Option<Stream> = None;
        within(|| {
            if !reader.advance() {
                return Some(Err(why(&reader)));
            }
            if owner.is_none()
                && let Some(Ok(accepted)) = listener.accept()
                && *accepted.peer_address().ip() == device.address()
            {
                owner = Some(accepted);
            }
            let granting = owner.as_mut()?;
            if !granting.advance() {
                return Some(Err(why(granting)));
            }
            (granting.is_up() && reader.is_up()).then_some(Ok(()))
        })?;
        let owner = owner.ok_or_else(too_late)?;
        Ok(Self { owner, reader })
    }

    /// Lets the other side READ all of some memory. Returns once the window is bound.
    pub(super) fn grant(
        &mut self,
        memory: &Arc<ReadableMemory>,
    ) -> Result<(GrantId, RemoteMemory), String> {
        let granted = self.owner.grant(memory, 0, memory.len());
        self.bound(granted)
    }

    /// Lets the other side write a cursor. Returns once the window is bound.
    pub(super) fn grant_cursor(&mut self, entry: &CursorEntry) -> Result<RemoteMemory, String> {
        let granted = self.owner.grant_cursor(entry);
        self.bound(granted).map(|(_, remote)| remote)
    }

    fn bound(&mut self, granted: io::Result<GrantId>) -> Result<(GrantId, RemoteMemory), String> {
        let grant = granted.map_err(|error| error.to_string())?;
        let owner = &mut self.owner;
        within(|| {
            if !owner.advance() {
                return Some(Err(why(owner)));
            }
            owner.granted(grant).map(|remote| Ok((grant, remote)))
        })
    }

    /// Revokes a grant. Returns once the device has done so.
    pub(super) fn revoke(&mut self, grant: GrantId) -> Result<(), String> {
        let owner = &mut self.owner;
        owner.revoke(grant).map_err(|error| error.to_string())?;
        within(|| {
            if !owner.advance() {
                return Some(Err(why(owner)));
            }
            (owner.grants() == 0).then_some(Ok(()))
        })
    }

    /// READs at `offset` of granted memory, also past its end, and compares.
    pub(super) fn read(
        &mut self,
        remote: RemoteMemory,
        offset: usize,
        expected: &[u8],
    ) -> Observed {
        let wider = widened(remote, offset + expected.len());
        let begun = self.reader.read_remote(wider, offset, expected.len(), 0);
        self.done(
            begun,
            |done| matches!(done, Completed::Read { bytes, .. } if *bytes == expected),
        )
    }

    /// Swaps 0 for `new` at `offset` of a cursor, also past its end.
    pub(super) fn swap(&mut self, remote: RemoteMemory, offset: usize, new: u64) -> Observed {
        let wider = widened(remote, offset + size_of::<u64>());
        let begun = (self.reader).compare_and_swap(wider, offset, 0, new.to_le(), 0);
        self.done(begun, |done| {
            matches!(done, Completed::Swapped { old: 0, .. })
        })
    }

    /// WRITEs a cursor from its start.
    pub(super) fn write(&mut self, remote: RemoteMemory, bytes: &[u8]) -> Observed {
        let begun = self.reader.write_remote(remote, 0, bytes, 0);
        self.done(begun, |done| matches!(done, Completed::Written { .. }))
    }

    /// Waits for the operation in flight.
    fn done(
        &mut self,
        begun: io::Result<()>,
        is_right: impl Fn(&Completed<'_>) -> bool,
    ) -> Observed {
        if let Err(error) = begun {
            return Observed::Failed(error.to_string());
        }
        let Self { owner, reader } = self;
        let observed = within(|| {
            // Its device answers without it, but its end may be reported late.
            owner.advance();
            reader.take_completed().map(|done| {
                Ok(match done {
                    Completed::Failed {
                        why: StreamEnd::Refused { .. },
                        ..
                    } => Observed::Refused,
                    Completed::Failed { why, .. } => Observed::Failed(why.to_string()),
                    done if is_right(&done) => Observed::Done,
                    _ => Observed::WrongBytes,
                })
            })
        });
        observed.unwrap_or_else(Observed::Failed)
    }
}

/// Returns granted memory as a peer that exceeds its rights would have it.
fn widened(remote: RemoteMemory, len: usize) -> RemoteMemory {
    RemoteMemory {
        len: remote.len.max(len),
        ..remote
    }
}

fn why(stream: &Stream) -> String {
    let end = stream.end();
    end.map_or_else(too_late, |end| end.to_string())
}

fn too_late() -> String {
    format!("no answer within {} s", PATIENCE.as_secs())
}

/// Calls `step` until it returns something, at most for [`PATIENCE`].
fn within<T>(mut step: impl FnMut() -> Option<Result<T, String>>) -> Result<T, String> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(result) = step() {
            return result;
        }
        if Instant::now() >= until {
            return Err(too_late());
        }
        std::thread::sleep(POLL_EVERY);
    }
}
