//! Memory windows on a real device: a peer reads what it was granted, through its own connection,
//! until it is revoked. They need a device: see tests/verbs.rs.

#[allow(dead_code, reason = "each test program uses some of it")]
mod device;

use std::sync::Arc;

use tickcast_reliability::ring::RingMemory;
use tickcast_transport::mapping::SharedMapping;
use tickcast_transport::verbs::{
    Device, GrantId, Listener, ReadableMemory, RemoteMemory, Stream, StreamConfig,
};

use self::device::{address, resources, until};

const LEN: usize = 64 * 1024;
const FROM: usize = 8_192;
const GRANTED: usize = 16_384;

fn byte(at: usize) -> u8 {
    (at * 7 + at / 256) as u8
}

fn memory(device: &Arc<Device>) -> Arc<ReadableMemory> {
    let mapping = SharedMapping::memfd("granted", LEN).unwrap();
    for at in 0..LEN {
        // SAFETY: within the mapping, which nobody else has yet.
        unsafe { mapping.as_ptr().add(at).write(byte(at)) };
    }
    ReadableMemory::register(device, Arc::new(mapping)).unwrap()
}

/// Who grants, and who reads.
struct Sides {
    owner: Stream,
    reader: Stream,
}

impl Sides {
    fn new(device: &Arc<Device>, listener: &mut Listener) -> Self {
        let config = StreamConfig::default();
        let mut reader = Stream::connect(device, listener.address(), &config).unwrap();
        let mut owner: Option<Stream> = None;
        until("never connected", || {
            reader.advance();
            if owner.is_none() {
                owner = listener.accept().map(Result::unwrap);
            }
            let owner = owner.as_mut();
            owner.is_some_and(|owner| owner.advance() && owner.is_up()) && reader.is_up()
        });
        Self {
            owner: owner.unwrap(),
            reader,
        }
    }

    fn grant(&mut self, memory: &Arc<ReadableMemory>) -> (GrantId, RemoteMemory) {
        let grant = self.owner.grant(memory, FROM, GRANTED).unwrap();
        until("never bound", || {
            assert!(self.owner.advance());
            self.owner.granted(grant).is_some()
        });
        (grant, self.owner.granted(grant).unwrap())
    }

    fn revoke(&mut self, grant: GrantId) {
        self.owner.revoke(grant).unwrap();
        assert_eq!(self.owner.granted(grant), None);
        until("never revoked", || {
            assert!(self.owner.advance());
            self.owner.grants() == 0
        });
    }

    /// Reads all of it, several at once.
    fn reads(&mut self, remote: RemoteMemory) {
        let (mut asked, mut read) = (0, Vec::new());
        let mut room = [0; 4096];
        until("not all was read", || {
            while asked < remote.len {
                let len = (remote.len - asked).min(1 + asked % 4_096);
                if self.reader.read_remote(remote, asked, len).is_err() {
                    break;
                }
                asked += len;
            }
            while let Some(len) = self.reader.take_read(&mut room) {
                read.extend_from_slice(&room[..len]);
            }
            assert!(self.reader.advance());
            read.len() == remote.len
        });
        let wanted: Vec<_> = (FROM..FROM + GRANTED).map(byte).collect();
        assert!(read == wanted);
    }

    /// Reads what it may not: its connection is gone, and nothing was read.
    fn may_not_read(&mut self, remote: RemoteMemory, offset: usize) {
        self.reader.read_remote(remote, offset, 64).unwrap();
        let mut room = [0; 64];
        until("it goes on", || {
            assert_eq!(self.reader.take_read(&mut room), None, "it was read");
            !self.reader.advance()
        });
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_peer_reads_what_it_was_granted_until_it_is_revoked() {
    let device = Device::open(address()).unwrap();
    let mut listener = Listener::bind(address(), 0, &StreamConfig::default()).unwrap();
    let memory = memory(&device_of(&listener));
    let mut sides = Sides::new(&device, &mut listener);
    let mut other = Sides::new(&device, &mut listener);
    // Used on another thread than the one that made it.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (grant, remote) = sides.grant(&memory);
            assert_eq!(remote.len, GRANTED);
            sides.reads(remote);
            sides.revoke(grant);
            // A second grant has a key of its own; the first one's is of no use any more.
            let (again, fresh) = sides.grant(&memory);
            assert_ne!(fresh.key, remote.key);
            sides.reads(fresh);
            sides.revoke(again);
            assert!(sides.owner.revoke(again).is_err(), "twice");
            sides.may_not_read(fresh, 0);
        });
    });
    // Nobody else was harmed.
    let (_, remote) = other.grant(&memory);
    other.reads(remote);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn a_grant_is_good_for_its_own_memory_and_its_own_connection_alone() {
    let device = Device::open(address()).unwrap();
    let mut listener = Listener::bind(address(), 0, &StreamConfig::default()).unwrap();
    let memory = memory(&device_of(&listener));
    let mut granted = Sides::new(&device, &mut listener);
    let mut stranger = Sides::new(&device, &mut listener);
    let (_, remote) = granted.grant(&memory);
    stranger.may_not_read(remote, 0);
    granted.reads(remote);
    // It pretends that there is more. Soft-RoCE of Linux 6.1 refuses what is beyond the memory, but
    // not what is beyond the window alone.
    let more = RemoteMemory { len: LEN, ..remote };
    granted.may_not_read(more, LEN - FROM);
    for (offset, len) in [(0, 0), (LEN, 1), (1, LEN), (usize::MAX, 2)] {
        let error = granted.owner.grant(&memory, offset, len).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn what_was_granted_is_gone_with_its_connection() {
    let device = Device::open(address()).unwrap();
    let mut listener = Listener::bind(address(), 0, &StreamConfig::default()).unwrap();
    drop(Sides::new(&device, &mut listener));
    let before = resources();
    for _ in 0..3 {
        let memory = memory(&device_of(&listener));
        let mut sides = Sides::new(&device, &mut listener);
        for _ in 0..4 {
            sides.grant(&memory);
        }
        let error = sides.owner.grant(&memory, 0, 64).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "a fifth");
        // The registration can't go before the windows do.
        drop(memory);
        drop(sides);
    }
    until("a leak", || resources() == before);
}

fn device_of(listener: &Listener) -> Arc<Device> {
    Arc::clone(listener.device())
}
