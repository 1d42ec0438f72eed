//! Peers that request more than they were granted, on a real device. Each is refused, its own connection
//! ends, and no other peer is affected. The tests need a device and may upset Soft-RoCE: run them alone.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Instant;

use tickcast_reliability::control::{
    ChannelName, Join, JoinChannel, Message, Progress, Purpose, RemoteAccess, RepairOffer, Start,
};
use tickcast_reliability::receive::RemoteOp;
use tickcast_reliability::session::RemoteRequest;
use tickcast_reliability::types::{ChannelId, Epoch, Nanos, Sequence, SequenceRange};
use tickcast_transport::control::{ClientConfig, ClientEvent, ControlClient};
use tickcast_transport::verbs::{
    CURSOR_LEN, CursorEntry, CursorTable, Device, Listener, ReadableMemory, RemoteMemory,
};

use crate::device::audit::audited;
use crate::device::sides::{Done, Sides, memory};
use crate::device::until;

const LEN: usize = 16 * 1024;
/// Start of the part that the peers are granted.
const FROM: usize = 4096;
const GRANTED: usize = 8192;

/// Statuses of a request that the peer's memory, or its queue pair, does not allow.
const REM_ACCESS: u32 = 10;
const REM_INVALID: u32 = 9;

/// A publisher's memory, and an innocent peer of it.
struct House {
    device: Arc<Device>,
    listener: Listener,
    memory: Arc<ReadableMemory>,
    table: CursorTable,
    innocent: Sides,
    entry: CursorEntry,
    remote: RemoteMemory,
    cursor: RemoteMemory,
    round: u64,
}

/// A peer with a grant, with or without a cursor.
struct Offender {
    sides: Sides,
    remote: RemoteMemory,
    cursor: Option<RemoteMemory>,
}

impl House {
    fn new() -> Self {
        let (device, mut listener) = Sides::listener();
        let memory = memory(&listener, LEN);
        let table = CursorTable::register(listener.device(), 3).unwrap();
        // Its entry lies between other entries.
        let (first, entry) = (table.lease().unwrap(), table.lease().unwrap());
        drop(first);
        let mut innocent = Sides::new(&device, &mut listener);
        let (_, remote) = innocent.grant(&memory, FROM, GRANTED);
        let (_, cursor) = innocent.grant_cursor(&entry);
        Self {
            device,
            listener,
            memory,
            table,
            innocent,
            entry,
            remote,
            cursor,
            round: 0,
        }
    }

    fn offender(&mut self, with_cursor: bool) -> Offender {
        let mut sides = Sides::new(&self.device, &mut self.listener);
        let (_, remote) = sides.grant(&self.memory, FROM, GRANTED);
        let lease = with_cursor.then(|| self.table.lease().unwrap());
        let cursor = lease.map(|entry| sides.grant_cursor(&entry).1);
        Offender {
            sides,
            remote,
            cursor,
        }
    }

    /// Checks that the innocent peer reads, writes and swaps as before, and finds its own data.
    fn goes_on(&mut self) {
        self.innocent.reads(self.remote, FROM);
        let before = self.entry.load_all();
        assert_eq!(before, [self.round; 8], "somebody wrote into its entry");
        self.round += 1;
        let (round, cursor) = (self.round, self.cursor);
        assert_eq!(self.innocent.swaps(cursor, round - 1, round), round - 1);
        self.innocent.writes(cursor, [round; 8]);
        until("not seen", || self.entry.load_all() == [round; 8]);
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn access_beyond_grant_closes_only_its_connection() {
    type Offence = fn(&House, &mut Offender);
    let offences: [(&str, bool, &[u32], Offence); 12] = [
        ("a READ beyond the memory", false, &[REM_ACCESS], |_, by| {
            let all = RemoteMemory {
                len: LEN,
                ..by.remote
            };
            by.sides.reader.read_remote(all, LEN - FROM, 64, 1).unwrap();
        }),
        ("a READ across its end", false, &[REM_ACCESS], |_, by| {
            let all = RemoteMemory {
                len: LEN,
                ..by.remote
            };
            by.sides
                .reader
                .read_remote(all, LEN - FROM - 32, 64, 1)
                .unwrap();
        }),
        ("a READ in front of it", false, &[REM_ACCESS], |_, by| {
            let address = by.remote.address - FROM as u64 - 64;
            let before = RemoteMemory {
                address,
                ..by.remote
            };
            by.sides.reader.read_remote(before, 0, 64, 1).unwrap();
        }),
        (
            "a WRITE where it may READ",
            false,
            &[REM_INVALID, REM_ACCESS],
            |_, by| {
                by.sides
                    .reader
                    .write_remote(by.remote, 0, &[0xee; 64], 1)
                    .unwrap();
            },
        ),
        (
            "such a WRITE of one with a cursor",
            true,
            &[REM_ACCESS],
            |_, by| {
                by.sides
                    .reader
                    .write_remote(by.remote, 0, &[0xee; 64], 1)
                    .unwrap();
            },
        ),
        ("a swap where it may READ", true, &[REM_ACCESS], |_, by| {
            by.sides
                .reader
                .compare_and_swap(by.remote, 0, 0, 1, 1)
                .unwrap();
        }),
        (
            "a WRITE into another's entry by its own key",
            true,
            &[REM_ACCESS],
            |house, by| {
                let key = by.cursor.unwrap().key;
                let other = RemoteMemory {
                    key,
                    ..house.cursor
                };
                by.sides
                    .reader
                    .write_remote(other, 0, &[0xee; 64], 1)
                    .unwrap();
            },
        ),
        ("a WRITE beyond its entry", true, &[REM_ACCESS], |_, by| {
            let own = by.cursor.unwrap();
            let more = RemoteMemory {
                len: 2 * CURSOR_LEN,
                ..own
            };
            by.sides
                .reader
                .write_remote(more, 32, &[0xee; 64], 1)
                .unwrap();
        }),
        (
            "a WRITE by another's key",
            true,
            &[REM_ACCESS],
            |house, by| {
                by.sides
                    .reader
                    .write_remote(house.cursor, 0, &[0xee; 64], 1)
                    .unwrap();
            },
        ),
        (
            "a swap by another's key",
            true,
            &[REM_ACCESS],
            |house, by| {
                by.sides
                    .reader
                    .compare_and_swap(house.cursor, 0, 0, 1, 1)
                    .unwrap();
            },
        ),
        (
            "a READ by another's key",
            false,
            &[REM_ACCESS],
            |house, by| {
                by.sides.reader.read_remote(house.remote, 0, 64, 1).unwrap();
            },
        ),
        (
            "a READ by a key that it guesses",
            false,
            &[REM_ACCESS],
            |_, by| {
                let key = by.remote.key.wrapping_add(1);
                let guessed = RemoteMemory { key, ..by.remote };
                by.sides.reader.read_remote(guessed, 0, 64, 1).unwrap();
            },
        ),
    ];
    let mut house = House::new();
    house.goes_on();
    for (what, with_cursor, statuses, offence) in offences {
        let mut by = house.offender(with_cursor);
        let lines = audited(|| {
            offence(&house, &mut by);
            let status = by.sides.ends_refused(what);
            assert!(statuses.contains(&status), "{what}: {status}");
            println!("{what}: refused with {status}");
        });
        for end in ["access_refused", "access_violation"] {
            let end = format!("what={end} device={} peer=10.", house.device.name());
            let reported = lines.iter().filter(|line| line.starts_with(&end));
            assert_eq!(reported.count(), 1, "{what}: {end}: {lines:#?}");
        }
        house.goes_on();
    }
    assert_eq!(house.table.free(), 2);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn whatever_was_under_way_fails_with_what_is_refused() {
    let mut house = House::new();
    let Offender {
        mut sides, remote, ..
    } = house.offender(false);
    let revoked = {
        let (grant, other) = sides.grant(&house.memory, 0, FROM);
        sides.revoke(grant);
        other
    };
    sides.reader.read_remote(remote, 0, 8192, 0).unwrap();
    sides.reader.read_remote(revoked, 0, 64, 1).unwrap();
    sides.reader.read_remote(remote, 0, 64, 2).unwrap();
    sides.reader.read_remote(remote, 0, 64, 3).unwrap();
    assert!(matches!(sides.done(), Done::Read(0, _)), "it came before");
    for wanted in 1..4 {
        let Done::Failed(tag, why) = sides.done() else {
            panic!("READ {wanted} is done");
        };
        assert_eq!(tag, wanted);
        assert_eq!(why.to_string().matches("completion 10").count(), 1, "{why}");
    }
    assert_eq!(
        (sides.reader.under_way(), sides.reader.take_completed()),
        (0, None)
    );
    house.goes_on();
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn soft_roce_alone_allows_beyond_window_in_memory() {
    let mut house = House::new();
    let Offender {
        mut sides, remote, ..
    } = house.offender(false);
    let more = RemoteMemory {
        len: LEN - FROM,
        ..remote
    };
    sides.reader.read_remote(more, GRANTED, 64, 1).unwrap();
    match sides.done() {
        // Linux 6.1's rxe checks the bounds of the registration only: for that reason every entry of a
        // table has its own registration.
        Done::Read(1, _) => assert!(house.device.name().starts_with("rxe")),
        Done::Failed(1, why) => println!("{why}"),
        other => panic!("{other:?}"),
    }
    house.goes_on();
}

/// Messages of a publisher to one of its subscribers.
#[derive(Default)]
struct Said {
    /// State of a connection: up, welcomed, over.
    up: bool,
    session: Option<u64>,
    over: bool,
    offer: Option<SocketAddrV4>,
    ring: Option<RemoteAccess>,
    epoch: Epoch,
    answered: bool,
}

impl Said {
    /// Polls one of its connections.
    fn poll(&mut self, client: &mut ControlClient, now: Nanos) {
        client.poll(now, |event| match event {
            ClientEvent::Connected(_) => self.up = true,
            ClientEvent::Disconnected(_) => self.over = true,
            ClientEvent::Frame(_, Message::Welcome(welcome)) => {
                self.session = Some(welcome.session);
                self.offer = welcome.repairs.iter().find_map(|offer| match offer {
                    RepairOffer::Verbs { address, .. } => Some(*address),
                    RepairOffer::Unknown => None,
                });
            }
            ClientEvent::Frame(_, Message::Grant(grant)) => {
                (self.ring, self.epoch) = (Some(grant.ring), grant.epoch);
            }
            ClientEvent::Frame(_, Message::Status(_)) => self.answered = true,
            ClientEvent::Frame(..) => {}
        });
    }
}

/// Needs a publisher in another process, which the suite checks afterwards.
#[test]
#[ignore = "needs an RDMA device and a publisher: make test-rdma"]
fn subscriber_reading_beyond_grant_is_cut_off() {
    let Ok(control) = std::env::var("TICKCAST_CONTROL") else {
        println!("SKIPPED: TICKCAST_CONTROL names no publisher");
        return;
    };
    let since = Instant::now();
    let now = || Nanos(since.elapsed().as_nanos() as u64);
    let config = ClientConfig {
        connect_timeout: Nanos::from_secs(20),
        ..ClientConfig::default()
    };
    let join = |purpose, channels| {
        Message::Join(Join {
            authentication: true,
            name: "intruder".into(),
            wire_versions: vec![1],
            purpose,
            channels,
        })
    };
    let mut client = ControlClient::new(vec![control.parse().unwrap()], config);
    client.connect(now()).unwrap();
    let mut said = Said::default();
    until("it is not there", || {
        said.poll(&mut client, now());
        said.up
    });
    let channel = JoinChannel {
        channel: ChannelName::Name("equities".into()),
        start: Start::Live,
        confirmed_epoch: Epoch::NONE,
    };
    let wish = join(Purpose::Repair, vec![channel]);
    client.send(ChannelId(0), &wish).unwrap();
    until("it does not let it in", || {
        said.poll(&mut client, now());
        said.session.is_some()
    });
    let at = SocketAddr::V4(said.offer.unwrap());
    let mut reads = ControlClient::for_reads(vec![at], config);
    reads.connect(now()).unwrap();
    let mut read = Said::default();
    until("no READ connection", || {
        read.poll(&mut reads, now());
        read.up
    });
    let session = said.session.unwrap();
    let wish = join(
        Purpose::Read {
            session,
            attempt: 1,
        },
        vec![],
    );
    reads.send(ChannelId(0), &wish).unwrap();
    until("it grants nothing", || {
        said.poll(&mut client, now());
        read.poll(&mut reads, now());
        said.ring.is_some()
    });
    let ring = said.ring.unwrap();
    let mut asked = |tag, offset: u64| {
        let request = RemoteRequest {
            channel: ChannelId(1),
            what: RemoteOp::Slots(SequenceRange::one(Sequence(1))),
            address: ring.address + offset,
            key: ring.key,
            len: 64,
            tag,
        };
        reads.begin_remote(&request).unwrap();
        until("no READ is done", || {
            let done = reads.take_remote(|done, _| assert_eq!(done, tag));
            read.poll(&mut reads, now());
            done > 0 || read.over
        });
        read.over
    };
    assert!(!asked(1, ring.len - 64), "that was granted");
    assert!(asked(2, ring.len), "what is behind the ring was READ");
    // Its other connection continues.
    let progress = Progress {
        epoch: said.epoch,
        sequence: Sequence(0),
        lost_records: 0,
        heard: Sequence(0),
        sent_at: now(),
        read_bytes: 64,
    };
    client
        .send(ChannelId(1), &Message::Progress(progress))
        .unwrap();
    until("it is not answered", || {
        said.poll(&mut client, now());
        assert!(!said.over);
        said.answered
    });
}
