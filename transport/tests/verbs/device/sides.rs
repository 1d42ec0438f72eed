//! The two ends of a connection, one of which grants the other access to its memory.

use std::sync::Arc;

use tickcast_reliability::ring::RingMemory;
use tickcast_transport::host::mapping::SharedMapping;
use tickcast_transport::verbs::{
    Completed, CursorEntry, Device, GrantId, Listener, ReadableMemory, RemoteMemory, Stream,
    StreamConfig, StreamEnd,
};

use super::{address, until};

/// Length of the longest READ here, in bytes.
pub(crate) const READ_LEN_MAX: usize = 64 * 1024;

/// Returns the settings of the reading side, with `reads_max` READs in flight.
pub(crate) fn reading(reads_max: u8) -> StreamConfig {
    StreamConfig {
        read_len_max: READ_LEN_MAX,
        ..answering(reads_max)
    }
}

/// Returns the settings of the granting side: small, because there may be many.
pub(crate) fn answering(reads_max: u8) -> StreamConfig {
    StreamConfig {
        buffers: 8,
        buffer_len: 256,
        reads_max,
        // The most. A host that stops a device for half a second breaks no connection then.
        retries: 7,
        ..StreamConfig::default()
    }
}

/// Returns the byte at `at` of [`memory`].
pub(crate) fn byte(at: usize) -> u8 {
    (at * 7 + at / 256) as u8
}

/// Creates memory with known bytes, registered on the accepting side.
pub(crate) fn memory(listener: &Listener, len: usize) -> Arc<ReadableMemory> {
    let mapping = SharedMapping::memfd("granted", len).unwrap();
    for at in 0..len {
        // SAFETY: within the mapping, which nobody else has yet.
        unsafe { mapping.as_ptr().add(at).write(byte(at)) };
    }
    ReadableMemory::register(listener.device(), Arc::new(mapping)).unwrap()
}

/// A completed operation, without borrows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Read(u64, Vec<u8>),
    Swapped(u64, u64),
    Written(u64),
    Failed(u64, StreamEnd),
}

/// The granting and the reading side.
pub(crate) struct Sides {
    pub(crate) owner: Stream,
    pub(crate) reader: Stream,
}

impl Sides {
    /// Connects with four READs in flight.
    pub(crate) fn new(device: &Arc<Device>, listener: &mut Listener) -> Self {
        Self::with(device, listener, &reading(4))
    }

    pub(crate) fn with(
        device: &Arc<Device>,
        listener: &mut Listener,
        config: &StreamConfig,
    ) -> Self {
        let mut reader = Stream::connect(device, listener.address(), config).unwrap();
        let mut owner: Option<Stream> = None;
        until("never connected", || {
            reader.advance();
            if owner.is_none() {
                owner = listener.accept().map(Result::unwrap);
            }
            let owner = owner.as_mut();
            owner.is_some_and(|owner| owner.advance() && owner.is_up()) && reader.is_up()
        });
        let owner = owner.unwrap();
        Self { owner, reader }
    }

    /// Opens a listener that allows four READs in flight per connection, and a device to connect from.
    pub(crate) fn listener() -> (Arc<Device>, Listener) {
        Self::listener_of(4)
    }

    /// Opens a listener like [`Sides::listener`], with `reads_max` READs.
    pub(crate) fn listener_of(reads_max: u8) -> (Arc<Device>, Listener) {
        let device = Device::open(address()).unwrap();
        let listener = Listener::bind(address(), 0, &answering(reads_max)).unwrap();
        (device, listener)
    }

    pub(crate) fn grant(
        &mut self,
        memory: &Arc<ReadableMemory>,
        offset: usize,
        len: usize,
    ) -> (GrantId, RemoteMemory) {
        let grant = self.owner.grant(memory, offset, len).unwrap();
        (grant, self.bound(grant))
    }

    pub(crate) fn grant_cursor(&mut self, entry: &CursorEntry) -> (GrantId, RemoteMemory) {
        let grant = self.owner.grant_cursor(entry).unwrap();
        (grant, self.bound(grant))
    }

    fn bound(&mut self, grant: GrantId) -> RemoteMemory {
        until("never bound", || {
            assert!(self.owner.advance(), "{:?}", self.owner.end());
            self.owner.granted(grant).is_some()
        });
        self.owner.granted(grant).unwrap()
    }

    pub(crate) fn revoke(&mut self, grant: GrantId) {
        let before = self.owner.grants();
        self.owner.revoke(grant).unwrap();
        assert_eq!(self.owner.granted(grant), None);
        until("never revoked", || {
            assert!(self.owner.advance());
            self.owner.grants() < before
        });
    }

    /// Waits for the next completed operation of the reader.
    pub(crate) fn done(&mut self) -> Done {
        let mut done = None;
        until("nothing was done", || {
            done = self
                .reader
                .take_completed()
                .map(|completed| match completed {
                    Completed::Read { tag, bytes } => Done::Read(tag, bytes.to_vec()),
                    Completed::Swapped { tag, old } => Done::Swapped(tag, old),
                    Completed::Written { tag } => Done::Written(tag),
                    Completed::Failed { tag, why } => Done::Failed(tag, why),
                    other => panic!("{other:?}"),
                });
            done.is_some()
        });
        done.unwrap()
    }

    /// Reads the granted part of [`memory`] at `from`, with several READs in flight, and compares it.
    pub(crate) fn reads(&mut self, remote: RemoteMemory, from: usize) {
        let (mut asked, mut read) = (0, Vec::new());
        until("not all was read", || {
            while asked < remote.len {
                let len = (remote.len - asked).min(1 + asked % READ_LEN_MAX);
                if (self.reader.read_remote(remote, asked, len, asked as u64)).is_err() {
                    break;
                }
                asked += len;
            }
            while let Some(completed) = self.reader.take_completed() {
                let Completed::Read { tag, bytes } = completed else {
                    panic!("{completed:?}");
                };
                assert_eq!(tag, read.len() as u64);
                read.extend_from_slice(bytes);
            }
            assert!(self.reader.advance(), "{:?}", self.reader.end());
            read.len() == remote.len
        });
        let wanted: Vec<_> = (from..from + remote.len).map(byte).collect();
        assert!(read == wanted);
    }

    /// Writes progress, and waits until the peer's device has it.
    pub(crate) fn writes(&mut self, remote: RemoteMemory, words: [u64; 8]) {
        let bytes = words.map(u64::to_le_bytes);
        let bytes = bytes.as_flattened();
        self.reader.write_remote(remote, 0, bytes, 1).unwrap();
        assert_eq!(self.done(), Done::Written(1));
    }

    /// Compares and swaps the first word. Returns the old word.
    pub(crate) fn swaps(&mut self, remote: RemoteMemory, expected: u64, new: u64) -> u64 {
        let reader = &mut self.reader;
        reader
            .compare_and_swap(remote, 0, expected, new, 2)
            .unwrap();
        match self.done() {
            Done::Swapped(2, old) => old,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that the operation in flight is refused: it has failed, its connection ended for that reason,
    /// and the peer knows why its device stopped it. Returns the status of the refusal.
    pub(crate) fn ends_refused(self, what: &str) -> u32 {
        let (status, end) = self.ends(what);
        assert_eq!(end, StreamEnd::Violated, "{what}");
        status
    }

    /// Checks the refusal like [`Sides::ends_refused`], after the peer revoked all rights, so that it reports
    /// no violation.
    pub(crate) fn ends_revoked(self, what: &str) -> u32 {
        let (status, end) = self.ends(what);
        assert!(matches!(end, StreamEnd::Broken { .. }), "{what}: {end:?}");
        status
    }

    fn ends(mut self, what: &str) -> (u32, StreamEnd) {
        let status = match self.done() {
            Done::Failed(_, StreamEnd::Refused { status }) => status,
            other => panic!("{what}: {other:?}"),
        };
        assert_eq!(
            self.reader.end(),
            Some(StreamEnd::Refused { status }),
            "{what}"
        );
        assert!(!self.reader.advance(), "{what}");
        until("its other end goes on", || !self.owner.advance());
        drop(self.reader);
        (status, self.owner.end().unwrap())
    }
}
