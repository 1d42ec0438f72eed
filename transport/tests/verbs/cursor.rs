//! Cursors on a real device: each peer claims and writes its own entry, the CPU reads it, and an entry
//! is returned when nobody can write it any more. The tests need a device: see `main.rs`.

use std::io::ErrorKind;

use tickcast_transport::verbs::{
    CURSOR_LEN, CURSOR_WORDS, CursorTable, RemoteMemory, StreamConfig, VerbsError, WRITES_MAX,
};

use crate::device::audit::{audited, names};
use crate::device::sides::{Done, Sides, memory};
use crate::device::{resources, until};

/// Rights as `ibv_access_flags` has them.
const READ: u32 = 4;
const WRITE_AND_ATOMIC: u32 = 2 | 8;

/// Entries of the largest table here.
const MANY: usize = 64;

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn remote_cursor_writes_become_visible_to_owner() {
    let (device, mut listener) = Sides::listener();
    let table = CursorTable::register(listener.device(), 2).unwrap();
    let (entry, neighbour) = (table.lease().unwrap(), table.lease().unwrap());
    let mut sides = Sides::new(&device, &mut listener);
    let (_, remote) = sides.grant_cursor(&entry);
    assert_eq!(remote.len, CURSOR_LEN);
    for round in 1..50 {
        let words = std::array::from_fn(|word| round << 32 | word as u64);
        sides.writes(remote, words);
        // The WRITE is in memory once a READ over the same connection is done.
        sides.reader.read_remote(remote, 0, CURSOR_LEN, 3).unwrap();
        let bytes = words.map(u64::to_le_bytes).as_flattened().to_vec();
        assert_eq!(sides.done(), Done::Read(3, bytes));
        assert_eq!(entry.load_all(), words);
        // A WRITE of one word alone.
        let word = round.to_le_bytes();
        sides.reader.write_remote(remote, 24, &word, 4).unwrap();
        assert_eq!(sides.done(), Done::Written(4));
        until("never seen", || entry.load(3) == round);
        assert_eq!((entry.load(2), entry.load(4)), (words[2], words[4]));
    }
    assert_eq!(neighbour.load_all(), [0; CURSOR_WORDS]);
    // A few WRITEs in flight, which take no place of a READ.
    for tag in 0..WRITES_MAX {
        let word = u64::from(tag).to_le_bytes();
        sides
            .reader
            .write_remote(remote, 0, &word, tag.into())
            .unwrap();
    }
    let error = sides.reader.write_remote(remote, 0, b"1", 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    sides.reader.read_remote(remote, 0, 8, 9).unwrap();
    for tag in 0..WRITES_MAX {
        assert_eq!(sides.done(), Done::Written(tag.into()));
    }
    let last = u64::from(WRITES_MAX - 1).to_le_bytes();
    assert_eq!(sides.done(), Done::Read(9, last.to_vec()));
    let long = [0; CURSOR_LEN + 1];
    for (offset, len) in [(0, 0), (0, 65), (1, 64), (64, 1), (usize::MAX, 2)] {
        let bytes = &long[..len];
        let error = sides
            .reader
            .write_remote(remote, offset, bytes, 0)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn compare_and_swap_returns_old_value_and_claims_once() {
    let (device, mut listener) = Sides::listener();
    let table = CursorTable::register(listener.device(), 1).unwrap();
    let entry = table.lease().unwrap();
    let mut sides = Sides::new(&device, &mut listener);
    let (_, remote) = sides.grant_cursor(&entry);
    assert_eq!(sides.swaps(remote, 0, 0x1122_3344_5566_7788), 0);
    assert_eq!(entry.load(0), 0x1122_3344_5566_7788);
    assert_eq!(
        sides.swaps(remote, 0, 9),
        0x1122_3344_5566_7788,
        "claimed already"
    );
    assert_eq!(entry.load(0), 0x1122_3344_5566_7788);
    assert_eq!(
        sides.swaps(remote, 0x1122_3344_5566_7788, 9),
        0x1122_3344_5566_7788
    );
    assert_eq!(entry.load(0), 9);
    // Several in flight: one of them wins. They take the places of READs.
    for tag in 0..4 {
        (sides.reader)
            .compare_and_swap(remote, 8, 0, 100 + tag, tag)
            .unwrap();
    }
    let error = sides
        .reader
        .compare_and_swap(remote, 8, 0, 1, 9)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    for tag in 0..4 {
        let old = if tag == 0 { 0 } else { 100 };
        assert_eq!(sides.done(), Done::Swapped(tag, old));
    }
    for offset in [4, 57, 64] {
        let error = sides
            .reader
            .compare_and_swap(remote, offset, 0, 1, 0)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn cursor_entry_is_granted_to_one_peer_only() {
    let (device, mut listener) = Sides::listener();
    let table = CursorTable::register(listener.device(), 2).unwrap();
    let entries = [table.lease().unwrap(), table.lease().unwrap()];
    assert!(table.lease().is_none() && table.free() == 0);
    let mut sides = entries
        .each_ref()
        .map(|_| Sides::new(&device, &mut listener));
    let remotes: Vec<_> = (sides.iter_mut().zip(&entries))
        .map(|(sides, entry)| sides.grant_cursor(entry).1)
        .collect();
    // An entry that was granted before can't be granted again, even on the same lease.
    for entry in &entries {
        let error = sides[0].owner.grant_cursor(entry).unwrap_err();
        assert!(error.to_string().contains("granted before"), "{error}");
    }
    // They race, and each wins its own entry.
    std::thread::scope(|scope| {
        for (name, (sides, remote)) in (1..).zip(sides.iter_mut().zip(&remotes)) {
            scope.spawn(move || {
                assert_eq!(sides.swaps(*remote, 0, name), 0);
                for round in 0..100 {
                    sides.writes(*remote, [name, round, name, round, 0, 0, 0, name]);
                }
            });
        }
    });
    for (name, entry) in (1..).zip(&entries) {
        until("not seen", || {
            entry.load_all() == [name, 99, name, 99, 0, 0, 0, name]
        });
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn entry_returns_when_its_queue_pair_is_gone() {
    let (device, mut listener) = Sides::listener();
    let table = CursorTable::register(listener.device(), 1).unwrap();
    let lines = audited(|| {
        for round in 0..4 {
            let entry = table.lease().unwrap();
            assert_eq!(entry.load_all(), [0; CURSOR_WORDS], "of an owner before");
            let mut sides = Sides::new(&device, &mut listener);
            let (grant, remote) = sides.grant_cursor(&entry);
            assert_eq!(sides.swaps(remote, 0, 7), 0);
            sides.writes(remote, [7; 8]);
            // The owner may drop the lease, revoke it, and see its peer disconnect.
            let kept = (round % 2 == 0).then_some(entry);
            assert!(table.lease().is_none());
            if round > 1 {
                sides.revoke(grant);
                assert!(table.lease().is_none(), "revoked, but its queue pair lives");
            }
            let Sides { mut owner, reader } = sides;
            drop(reader);
            until("it goes on", || !owner.advance());
            assert!(table.lease().is_none(), "over, but its queue pair lives");
            drop(owner);
            if let Some(kept) = kept {
                assert_eq!(kept.load(7), 7, "as it was left");
                assert!(table.lease().is_none(), "somebody still reads it");
            }
            assert_eq!(table.free(), 1);
        }
    });
    // In every round the queue pair was destroyed before its entry was returned.
    let names = names(&lines);
    let mut rounds = names.split(|name| *name == "cursor_leased");
    assert_eq!(rounds.next(), Some(&[][..]));
    let mut count = 0;
    for round in rounds {
        let of = |wanted| round.iter().position(|name| *name == wanted);
        let last = round
            .iter()
            .rposition(|name| *name == "queue_pair_destroyed");
        assert!(
            of("window_bound") < last && last < of("cursor_returned"),
            "{round:?}"
        );
        let freed = of("window_revoked").or(of("window_freed"));
        assert!(freed.is_some() && freed < last, "{round:?}");
        count += 1;
    }
    assert_eq!(count, 4);
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn returned_cursor_entry_gets_no_late_writes() {
    let (device, mut listener) = Sides::listener();
    let table = CursorTable::register(listener.device(), 1).unwrap();
    for round in 0..10 {
        let mut sides = Sides::new(&device, &mut listener);
        let (_, remote) = sides.grant_cursor(&table.lease().unwrap());
        let Sides { owner, mut reader } = sides;
        std::thread::scope(|scope| {
            // It writes for as long as it can.
            scope.spawn(move || {
                while reader.end().is_none() {
                    let _ = reader.write_remote(remote, 0, &[0xff; CURSOR_LEN], 0);
                    let _ = reader.take_completed();
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(5));
            drop(owner);
            let entry = table.lease().unwrap();
            for _ in 0..2_000 {
                assert_eq!(entry.load_all(), [0; CURSOR_WORDS], "round {round}");
            }
        });
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn queue_pair_access_matches_grants() {
    let (device, mut listener) = Sides::listener();
    let memory = memory(&listener, 4096);
    let table = CursorTable::register(listener.device(), 2).unwrap();
    let plain = Sides::with(&device, &mut listener, &StreamConfig::default());
    assert_eq!(
        (plain.owner.allowed(), plain.reader.allowed()),
        (Some(0), Some(0))
    );
    let mut sides = Sides::new(&device, &mut listener);
    assert_eq!(sides.owner.allowed(), Some(0), "before anything is granted");
    sides.grant(&memory, 0, 4096);
    assert_eq!(sides.owner.allowed(), Some(READ));
    sides.grant_cursor(&table.lease().unwrap());
    assert_eq!(sides.owner.allowed(), Some(READ | WRITE_AND_ATOMIC));
    assert_eq!(sides.reader.allowed(), Some(0), "it only reads");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn cursor_table_of_invalid_size_is_refused() {
    let (_device, listener) = Sides::listener();
    for entries in [0, 4_097, usize::MAX] {
        let error = CursorTable::register(listener.device(), entries).err();
        assert!(matches!(error, Some(VerbsError::Range { .. })), "{error:?}");
    }
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn audit_log_records_access_without_keys() {
    let (device, mut listener) = Sides::listener();
    let mut keys: Vec<RemoteMemory> = Vec::new();
    let lines = audited(|| {
        let memory = memory(&listener, 4096);
        let table = CursorTable::register(listener.device(), 1).unwrap();
        let entry = table.lease().unwrap();
        let mut sides = Sides::new(&device, &mut listener);
        let (grant, remote) = sides.grant(&memory, 0, 4096);
        let (_, cursor) = sides.grant_cursor(&entry);
        keys.extend([remote, cursor]);
        sides.reads(remote, 0);
        sides.writes(cursor, [1; 8]);
        sides.revoke(grant);
        sides.reader.read_remote(remote, 0, 8, 0).unwrap();
        sides.ends_refused("a revoked key");
    });
    let of_the_peer: Vec<_> = names(&lines);
    let wanted = [
        "cursor_leased",
        "connection_accepted",
        "connection_up",
        "connection_up",
        "window_bound",
        "window_bound",
        "window_revoked",
        "access_refused",
        "access_violation",
        "connection_closed",
        "queue_pair_destroyed",
        "connection_closed",
        "window_freed",
        "queue_pair_destroyed",
        "cursor_returned",
    ];
    assert_eq!(of_the_peer, wanted, "{lines:#?}");
    let line = |name: &str| lines.iter().find(|line| line.contains(name)).unwrap();
    let bound = line("what=window_bound");
    for part in [
        "device=rxe",
        "peer=10.",
        "bytes=4096",
        "access=remote_read ",
        "key=",
    ] {
        assert!(bound.contains(part), "{bound}");
    }
    assert!(
        line("what=access_refused").contains("completion 10"),
        "why it ended"
    );
    // No registration ever has a remote right, and every registration is removed again.
    let (mut on, mut off) = (0, 0);
    for line in &lines {
        on += u32::from(line.contains("what=memory_registered"));
        off += u32::from(line.contains("what=memory_deregistered"));
        assert!(
            !line.contains("what=memory") || !line.contains("remote"),
            "{line}"
        );
        for RemoteMemory { key, .. } in &keys {
            assert!(
                !line.contains(&format!("{key:x}")),
                "{line} gives away {key:x}"
            );
            assert!(!line.contains(&key.to_string()), "{line} gives away {key}");
        }
    }
    assert!(on > 6 && on == off, "{on} registered, {off} deregistered");
}

#[test]
#[ignore = "needs an RDMA device: make test-rdma"]
fn sixty_four_peers_come_and_go_and_no_entry_is_lost() {
    let rounds = if std::env::var_os("TICKCAST_LAB_LONG").is_some() {
        100
    } else {
        10
    };
    let (device, mut listener) = Sides::listener();
    let table = CursorTable::register(listener.device(), MANY).unwrap();
    drop(Sides::new(&device, &mut listener));
    let before = resources();
    let mut name = 0;
    let mut join = |live: &mut Vec<_>| {
        let entry = table.lease().unwrap();
        let mut sides = Sides::new(&device, &mut listener);
        let (_, remote) = sides.grant_cursor(&entry);
        name += 1;
        assert_eq!(
            sides.swaps(remote, 0, name),
            0,
            "somebody else has entry {}",
            entry.number()
        );
        live.push((name, entry, sides, remote));
    };
    let mut live = Vec::new();
    while live.len() < MANY {
        join(&mut live);
    }
    assert!(table.lease().is_none());
    for round in 0..rounds {
        // Some connections end from either side, and new ones are made.
        for gone in 0..4 {
            let (_, entry, sides, _) = live.remove((round * 31 + gone * 17) % live.len());
            let Sides { mut owner, reader } = sides;
            if gone % 2 == 0 {
                drop(reader);
                until("it goes on", || !owner.advance());
                drop((entry, owner));
            } else {
                drop(owner);
                drop((entry, reader));
            }
        }
        assert_eq!(table.free(), MANY - live.len());
        while live.len() < MANY {
            join(&mut live);
        }
        for (name, _, sides, remote) in &mut live {
            sides.writes(*remote, [*name, round as u64, 0, 0, 0, 0, 0, !*name]);
        }
        for (name, entry, ..) in &live {
            let words = [*name, round as u64, 0, 0, 0, 0, 0, !*name];
            until("not seen", || entry.load_all() == words);
        }
    }
    drop(live);
    assert_eq!(table.free(), MANY);
    until("a leak", || resources() == before);
}
