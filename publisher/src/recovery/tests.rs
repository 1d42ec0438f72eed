//! Decides by the files alone whether an epoch continues; nothing is sent.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use tickcast_feeds::instruments::{Symbol, mapping};
use tickcast_reliability::record::{RecordBatch, RecordSlice};
use tickcast_reliability::ring::{CONTROL_PAGE_LEN, Checkpoint, Seal, offset};
use tickcast_reliability::types::{ChannelId, SourcePosition};
use tickcast_reliability::wire::{Kind, SourceLossReason, StreamEvent};

use super::*;
use crate::plan::Plan;
use crate::recovery::sources_file::SourcesFile;

/// The files that outlive a publisher.
struct Left {
    config: Value,
    rings: TempDir,
    state: TempDir,
}

impl Left {
    fn fed(inputs: Value) -> Self {
        let rings = tempfile::tempdir_in("/dev/shm").unwrap();
        let state = tempfile::tempdir().unwrap();
        let channel = |id: u16, name: &str| {
            let group = format!("239.255.78.{id}:7799");
            json!({ "id": id, "name": name, "slots": 64,
                "fan_out": [{ "transport": "udp", "lines": [{ "group": group }] }] })
        };
        let config = json!({ "name": "test", "control": "127.0.0.1:0", "interface": "lo",
            "ring_dir": rings.path(), "state_dir": state.path(), "inputs": inputs,
            "channels": [channel(1, "all"), channel(2, "rest")] });
        let mut left = Self {
            config,
            rings,
            state,
        };
        left.config["channels"][0]["symbols"] = json!(["A*"]);
        left.config["channels"][1]["symbols"] = json!(["*"]);
        left
    }

    /// Creates the files of a publisher with a simulator.
    fn new() -> Self {
        Self::fed(json!([{ "source": 1, "kind": "simulator" }]))
    }

    fn plan(&self) -> Plan {
        Plan::for_handlers(Config::parse(&self.config.to_string()).unwrap()).unwrap()
    }

    fn open(&self) -> Result<Rings, PublisherError> {
        let plan = self.plan();
        let before = EpochsBefore::read(plan.config.state_dir.as_deref(), "test")?;
        Rings::open(&plan.config, plan.channels, before, Nanos::from_us(1_000))
    }

    /// Publishes this many datagrams on each channel, as a publisher that is then killed. Returns its
    /// epoch.
    fn publish(&self, datagrams: u64) -> Epoch {
        let mut opened = self.open().unwrap();
        for (_, ring) in &mut opened.rings {
            for n in 1..=datagrams {
                seal(ring, Kind::Data, n);
            }
        }
        opened.epoch.epoch()
    }

    /// Returns the state that a starting publisher finds.
    fn found(&self) -> Result<Result<KeptRings, NotWhole>, PublisherError> {
        let plan = self.plan();
        let config = plan.config;
        let before = EpochsBefore::read(Some(self.state.path()), "test")?;
        let before = before.with_inputs(Inputs::of(&config));
        let boot_id = boot_id().unwrap();
        kept(&config, self.rings.path(), &plan.channels, &before, boot_id)
    }

    /// Returns the reason for a new epoch; empty if the epoch continues.
    fn why(&self) -> String {
        let found = self.found().unwrap();
        found.err().map_or(String::new(), |why| why.to_string())
    }

    /// Returns the reason for a new epoch as the stream reports it.
    fn reason(&self) -> Option<EpochReason> {
        self.found().unwrap().err().map(|why| why.reason())
    }

    fn ring(&self) -> PathBuf {
        self.rings.path().join("test.all.ring")
    }

    fn state(&self) -> PathBuf {
        self.state.path().join("test.epoch.json")
    }
}

fn seal(ring: &mut RingWriter, kind: Kind, position: u64) {
    seal_payload(ring, kind, position, &[7; 56]);
}

fn seal_payload(ring: &mut RingWriter, kind: Kind, position: u64, payload: &[u8]) {
    let (source, position) = (SourceId(1), SourcePosition::new(0, position));
    ring.open().unwrap();
    ring.append(payload).unwrap();
    ring.seal(Seal {
        kind,
        count: 1,
        source,
        source_position: position,
        sent_at: Nanos(11),
        flags: 0,
    })
    .unwrap();
    let checkpoint = Checkpoint {
        source,
        position,
        session: [0; 16],
    };
    assert!(kind == Kind::Event || ring.set_checkpoint(checkpoint));
}

/// Seals a message that names an instrument.
fn seal_name(ring: &mut RingWriter, position: u64, id: u32, symbol: [u8; 8]) {
    let mut named = RecordBatch::default();
    named.put(&mapping(Symbol(symbol), id, 1, 0));
    seal_payload(
        ring,
        Kind::Data,
        position,
        RecordSlice::from(&named).bytes(),
    );
}

#[test]
fn damaged_control_page_continues_only_if_unchanged() {
    for datagrams in [3, 64, 200] {
        let left = Left::new();
        left.publish(datagrams);
        let whole = fs::read(left.ring()).unwrap();
        let goes_on = || {
            let rings = left.found().unwrap();
            rings.map(|(rings, _)| {
                let (ring, reader) = (&rings[0], rings[0].reader());
                assert!(ring.lineage().is_empty());
                (
                    ring.sealed(),
                    ring.oldest(),
                    ring.next_record(),
                    reader.positions(),
                )
            })
        };
        let before = goes_on().unwrap();
        let mut refused = Vec::new();
        for at in (0..CONTROL_PAGE_LEN).step_by(8) {
            for value in [0, 1, 1 << 63, u64::MAX] {
                let mut bytes = whole.clone();
                bytes[at..at + 8].copy_from_slice(&u64::to_le_bytes(value));
                fs::write(left.ring(), bytes).unwrap();
                match goes_on() {
                    Ok(after) => assert_eq!(after, before, "{value:#x} at {at}"),
                    Err(why) => refused.push((at, why.to_string())),
                }
            }
        }
        for word in [
            offset::OLDEST,
            offset::SEALED,
            offset::FIRST_SEQUENCE,
            offset::FIRST_RECORD,
            offset::LINEAGE,
            offset::STATE,
            offset::CHECKPOINTS + 8,
        ] {
            let why = refused.iter().find(|(at, _)| *at == word);
            let (_, why) = why.unwrap_or_else(|| panic!("{word} can be anything"));
            assert!(
                why.contains("damaged") || why.contains("can't have"),
                "{why}"
            );
        }
    }
}

#[test]
fn epoch_continues_only_with_repeatable_inputs() {
    let simulator = json!({ "source": 1, "kind": "simulator" });
    let own = json!({ "source": 2, "kind": "own" });
    for (other, why) in [
        (own.clone(), ""),
        (
            json!({ "source": 3, "kind": "udp", "lines": [{ "listen": "127.0.0.1:0" }] }),
            "",
        ),
        (
            json!({ "source": 4, "kind": "records", "socket": "/run/md.sock", "channel": "all" }),
            "source 4 is live, and can't continue: its messages since the stop have no numbers",
        ),
    ] {
        let left = Left::fed(json!([simulator, own, other]));
        let left = match other == own {
            true => Left::fed(json!([simulator, own])),
            false => left,
        };
        let first = left.publish(3);
        assert_eq!(left.why(), why);
        let next = left.open().unwrap();
        assert_eq!(next.sealed.is_some(), why.is_empty(), "{why}");
        assert_eq!(next.epoch.epoch() == first, why.is_empty(), "{why}");
        if let StreamEvent::EpochOpened { reason, .. } = next.epoch.opened(ChannelId(1)) {
            assert_eq!(reason == EpochReason::LiveInput, !why.is_empty(), "{why}");
        }
    }
}

#[test]
fn start_without_kept_ring_fails_unchanged() {
    let left = Left::new();
    let epoch = left.publish(3);
    let state = fs::read(left.state()).unwrap();
    let fails = || match left.open() {
        Err(PublisherError::Memory { channel, .. }) => assert_eq!(channel, "all"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it starts"),
    };
    // Another publisher holds the ring.
    let len = fs::metadata(left.ring()).unwrap().len();
    let (held, _) = SharedMapping::file(&left.ring(), len as usize).unwrap();
    fails();
    // A ring of another length does not replace it either.
    let mut other = Left::new();
    other.config["ring_dir"] = left.config["ring_dir"].clone();
    other.config["channels"][0]["slots"] = json!(128);
    assert!(matches!(other.open(), Err(PublisherError::Memory { .. })));
    assert!(!other.state().exists(), "an epoch was kept");
    drop(held);
    // The ring file can't be opened.
    let aside = left.rings.path().join("aside");
    fs::rename(left.ring(), &aside).unwrap();
    fs::create_dir(left.ring()).unwrap();
    fails();
    fs::remove_dir(left.ring()).unwrap();
    fs::rename(&aside, left.ring()).unwrap();
    assert_eq!(fs::read(left.state()).unwrap(), state);
    let next = left.open().unwrap();
    assert!(next.sealed.is_some());
    assert_eq!(next.epoch.epoch(), epoch);
}

#[test]
fn epoch_is_never_reused_after_lost_or_stale_state() {
    let mut left = Left::new();
    let first = left.publish(3);
    left.config["inputs"][0]["seed"] = json!(9);
    let state = fs::read(left.state()).unwrap();
    // No file can replace a directory, so the new state can't be kept.
    let plan = left.plan();
    let before = EpochsBefore::read(Some(left.state.path()), "test").unwrap();
    let before = before.with_inputs(Inputs::of(&plan.config));
    let last = left.state.path().join("last");
    fs::rename(left.state(), &last).unwrap();
    fs::create_dir(left.state()).unwrap();
    let above = (Epoch::NONE, boot_id().unwrap());
    let utc = Nanos::from_us(1_000);
    let created = Rings::create(&plan.config, plan.channels, before, above, utc);
    assert!(matches!(created, Err(PublisherError::State { .. })));
    fs::remove_dir(left.state()).unwrap();
    fs::rename(&last, left.state()).unwrap();
    let second = left.publish(3);
    assert!(second > first);
    assert_eq!(left.why(), "");
    // A state that is behind its rings, as from a backup, is detected, and their epoch is not reused.
    fs::write(left.state(), state).unwrap();
    left.config["inputs"][0]
        .as_object_mut()
        .unwrap()
        .remove("seed");
    let why = format!("has epoch {second}, but state_dir records {first}");
    assert!(left.why().contains(&why), "{}", left.why());
    let third = left.publish(3);
    assert!(third > second);
    fs::remove_file(left.state()).unwrap();
    let why = format!("state_dir does not record epoch {third} of channel all");
    assert!(left.why().contains(&why), "{}", left.why());
    assert!(left.publish(3) > third);
}

#[test]
fn unusable_ring_is_reported_with_its_reason() {
    let left = Left::new();
    assert_eq!(left.why(), "no ring of channel all was kept");
    left.publish(3);
    assert_eq!(left.why(), "");
    let whole = fs::read(left.ring()).unwrap();
    type Spoil<'a> = &'a dyn Fn(&mut Left);
    let spoilt: [(Spoil<'_>, &str, EpochReason); 8] = [
        (
            &|left| fs::remove_file(left.ring()).unwrap(),
            "no ring of channel all was kept",
            EpochReason::RingGone,
        ),
        (
            &|left| fs::write(left.ring(), b"").unwrap(),
            "the ring file of channel all is empty",
            EpochReason::RingGone,
        ),
        (
            &|left| fs::write(left.ring(), &whole[..10_000]).unwrap(),
            "the ring of channel all has 10000 bytes, but 98304 are configured",
            EpochReason::Reconfigured,
        ),
        (
            &|left| left.config["channels"][0]["slots"] = json!(128),
            "the ring of channel all has 98304 bytes, but 192512 are configured",
            EpochReason::Reconfigured,
        ),
        (
            &|left| fs::write(left.ring(), vec![0x5a; whole.len()]).unwrap(),
            "channel all: the memory starts with 0x5a5a5a5a5a5a5a5a, not with the magic of a ring",
            EpochReason::RingDamaged,
        ),
        (
            &|left| left.config["channels"][0]["id"] = json!(3),
            "the configuration of channel all differs from its ring",
            EpochReason::Reconfigured,
        ),
        (
            &|left| left.config["inputs"][0]["seed"] = json!(9),
            "the configuration of the inputs has changed",
            EpochReason::Reconfigured,
        ),
        (
            &|left| drop(fs::remove_file(left.state())),
            "state_dir does not record epoch 1000 of channel all: its earlier file is missing",
            EpochReason::StateGone,
        ),
    ];
    let config = left.config.clone();
    let mut left = left;
    for (spoil, why, reason) in spoilt {
        spoil(&mut left);
        assert!(left.why().starts_with(why), "{} is not {why}", left.why());
        assert_eq!(left.reason(), Some(reason), "{why}");
        fs::write(left.ring(), &whole).unwrap();
        left.config = config.clone();
    }
}

#[test]
fn input_speed_keeps_epoch_other_file_opens_new() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("day");
    fs::write(&file, b"a day").unwrap();
    let capture = json!({ "source": 1, "kind": "capture", "file": file });
    let simulator = json!({ "source": 2, "kind": "simulator" });
    let mut left = Left::fed(json!([capture, simulator]));
    left.publish(3);
    for input in [0, 1] {
        left.config["inputs"][input]["pace"] = json!("max");
        left.config["inputs"][input]["wait_for_subscribers"] = json!(3);
        assert_eq!(left.why(), "");
    }
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    let dated = |modified| {
        let opened = fs::OpenOptions::new().write(true).open(&file).unwrap();
        opened.set_modified(modified).unwrap();
    };
    for (bytes, later_s) in [("a da", 0), ("a day and more", 0), ("A DAY", 1)] {
        fs::write(&file, bytes).unwrap();
        dated(modified + std::time::Duration::from_secs(later_s));
        let why = "the capture of source 1 was replaced";
        assert!(left.why().starts_with(why), "{}", left.why());
        assert_eq!(left.reason(), Some(EpochReason::SourceChanged));
    }
    fs::write(&file, b"a day").unwrap();
    dated(modified);
    assert_eq!(left.why(), "");
    // An earlier version kept no file identity; only the replayed messages can show a difference then.
    let state = fs::read_to_string(left.state()).unwrap();
    let mut earlier: Value = serde_json::from_str(&state).unwrap();
    earlier.as_object_mut().unwrap().remove("captures");
    fs::write(left.state(), earlier.to_string()).unwrap();
    assert_eq!(left.why(), "");
    fs::write(left.state(), state).unwrap();
    // The next start keeps the identity.
    fs::write(&file, b"another day").unwrap();
    let second = left.publish(3);
    assert_eq!(left.why(), "");
    assert_eq!(left.open().unwrap().epoch.epoch(), second);
}

#[test]
fn end_datagram_in_ring_marks_session_ended() {
    let left = Left::new();
    let mut opened = left.open().unwrap();
    // The publisher is killed before the state file records the end.
    for (_, ring) in &mut opened.rings {
        seal(ring, Kind::End, 0);
    }
    drop(opened);
    assert_eq!(left.why(), "the previous session has ended");
    assert_eq!(left.reason(), Some(EpochReason::SessionEnded));
}

/// Returns the files of a publisher with a live source 1, and the contents of its file of sources. The
/// state is complete up to sequence 2 of both channels.
fn live() -> (Left, Value) {
    live_of("auto")
}

/// Returns the same of an input with this configured format.
fn live_of(format: &str) -> (Left, Value) {
    let lines = json!([{ "listen": "127.0.0.1:0" }]);
    let left = Left::fed(json!([{ "source": 1, "kind": "udp", "format": format, "lines": lines }]));
    let epoch = left.publish(3);
    let source = json!({ "format": "iex-tp", "session": "2a", "ordinal": 0,
        "settled": 0, "names": [[1, "A"], [3, "C"]], "next_id": 0, "unnamed": 0, "lost_at": 0,
        "is_full": false });
    let file =
        json!({ "epoch": epoch, "complete_to": { "1": 2, "2": 2 }, "sources": { "1": source } });
    (left, file)
}

impl Left {
    /// Writes the file with its hash, if it can be one.
    fn write_sources(&self, file: &Value) {
        let read: Result<SourcesFile, _> = serde_json::from_value(file.clone());
        let bytes = read.map_or_else(|_| file.to_string().into(), |it| it.to_bytes().unwrap());
        fs::write(self.sources(), bytes).unwrap();
    }

    fn sources(&self) -> PathBuf {
        self.state.path().join("test.sources.json")
    }
}

#[test]
fn live_source_continues_only_with_whole_state() {
    let (left, file) = live();
    assert!(
        left.why().contains("its state was not kept"),
        "{}",
        left.why()
    );
    assert_eq!(left.reason(), Some(EpochReason::LiveInput));
    left.write_sources(&file);
    assert_eq!(left.why(), "");
    for (at, value, why) in [
        ("/epoch", json!(7), "is of epoch 7"),
        ("/complete_to", json!(-1), "can't be read"),
        ("/sources", json!({}), "its state was not kept"),
        ("/sources/1/format", json!(null), "its session was not kept"),
        ("/sources/1/is_full", json!(true), "it named more than"),
        (
            "/sources/1/names",
            json!([[1_000_000, "A"]]),
            "no instrument ids are left",
        ),
        (
            "/sources/1/ordinal",
            json!(1),
            "is of session 1, but its last message of session 0",
        ),
    ] {
        let mut other = file.clone();
        *other.pointer_mut(at).unwrap() = value;
        left.write_sources(&other);
        assert!(
            left.why()
                .starts_with("source 1 is live, and can't continue: ")
        );
        assert!(left.why().contains(why), "{} is not {why}", left.why());
        assert_eq!(left.reason(), Some(EpochReason::LiveInput));
    }
    let text = file.to_string();
    fs::write(left.sources(), &text[..text.len() - 1]).unwrap();
    assert!(left.why().contains("can't be read"), "{}", left.why());
}

#[test]
fn live_source_continues_only_in_configured_format() {
    for (configured, why) in [("auto", ""), ("iex-tp", ""), ("moldudp64-itch50", "iex-tp")] {
        let (left, file) = live_of(configured);
        left.write_sources(&file);
        let is_why = match why {
            "" => left.why().is_empty(),
            why => left.why().ends_with(&format!(
                "its state is of {why}, another format than configured"
            )),
        };
        assert!(is_why, "{configured}: {}", left.why());
    }
}

#[test]
fn ring_completes_kept_state_of_live_source() {
    let (left, file) = live();
    left.write_sources(&file);
    let (rings, _) = left.found().unwrap().unwrap();
    let mut rings = rings.into_iter();
    let (mut all, rest) = (rings.next().unwrap(), rings.next().unwrap());
    seal_name(&mut all, 4, 5, *b"NEW     ");
    let mut lost = Vec::new();
    StreamEvent::SourceLost {
        source: SourceId(1),
        reason: SourceLossReason::Overflow,
        from: SourcePosition::new(0, 5),
        messages: 10,
        instruments: Vec::new(),
    }
    .write(&mut lost);
    seal_payload(&mut all, Kind::Event, 5, &lost);
    drop((all, rest));
    let (_, live) = left.found().unwrap().unwrap();
    let [live] = &live[..] else {
        panic!("{live:?}")
    };
    let next = SourcePosition::new(0, 15);
    assert_eq!((live.input, live.at.next), (0, next), "behind the loss");
    assert_eq!(live.at.session, Some(0x2a));
    let ids: Vec<_> = live.at.instruments.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [1, 3, 5]);
    assert_eq!(
        live.at.next_id, 16,
        "10 lost messages may have named instruments"
    );
    let at = |sequence| SourcePosition::new(0, sequence);
    assert_eq!(live.settled, [at(14), at(3)]);
    assert_eq!(live.last, at(14));
}

#[test]
fn facts_of_several_rings_are_taken_in_order_and_once() {
    let (left, mut file) = live();
    left.write_sources(&file);
    let (rings, _) = left.found().unwrap().unwrap();
    let mut rings = rings.into_iter();
    let (mut all, mut rest) = (rings.next().unwrap(), rings.next().unwrap());
    seal_name(&mut all, 9, 5, *b"NEW     ");
    seal_name(&mut rest, 8, 5, *b"OLD     ");
    let mut lost = Vec::new();
    StreamEvent::SourceLost {
        source: SourceId(1),
        reason: SourceLossReason::Overflow,
        from: SourcePosition::new(0, 10),
        messages: 10,
        instruments: Vec::new(),
    }
    .write(&mut lost);
    seal_payload(&mut all, Kind::Event, 10, &lost);
    seal_payload(&mut rest, Kind::Event, 10, &lost);
    drop((all, rest));
    let live = || left.found().unwrap().unwrap().1.remove(0);
    let first = live();
    assert_eq!(
        first.at.instruments.last(),
        Some(&(5, Symbol(*b"NEW     ")))
    );
    assert_eq!(first.at.next_id, 16, "10 messages, on two channels");
    // The file may contain the loss that the ring reports, or the ids that a start skipped for it.
    let source = &mut file["sources"]["1"];
    (source["unnamed"], source["lost_at"]) = (json!(10), json!(10));
    left.write_sources(&file);
    assert_eq!(live().at.next_id, 16);
    let source = &mut file["sources"]["1"];
    (source["unnamed"], source["next_id"]) = (json!(0), json!(16));
    left.write_sources(&file);
    let again = live();
    assert_eq!(again.at.next_id, 16, "no ids are skipped for it again");
    assert_eq!((again.facts.next_id, again.facts.unnamed), (16, 0));
}

#[test]
fn live_source_continues_behind_messages_for_no_channel() {
    let (left, mut file) = live();
    let at = |sequence| SourcePosition::new(0, sequence);
    for (settled, next) in [(0, 4), (2, 4), (900, 901)] {
        file["sources"]["1"]["settled"] = json!(settled);
        left.write_sources(&file);
        let live = left.found().unwrap().unwrap().1.remove(0);
        assert_eq!(live.at.next, at(next));
        assert_eq!(live.settled, [at(next - 1); 2]);
    }
}

#[test]
fn ring_that_moved_on_from_kept_state_opens_new_epoch() {
    let (left, mut file) = live();
    left.write_sources(&file);
    let (rings, _) = left.found().unwrap().unwrap();
    for mut ring in rings {
        (4..=100).for_each(|n| seal(&mut ring, Kind::Data, n));
    }
    let why = "the ring of channel all has overwritten what its state lacks";
    assert!(left.why().ends_with(why), "{}", left.why());
    // One behind the oldest datagram is enough.
    for (complete_to, is_enough) in [(35, false), (36, true)] {
        file["complete_to"] = json!({ "1": complete_to, "2": complete_to });
        left.write_sources(&file);
        assert_eq!(left.why().is_empty(), is_enough, "{}", left.why());
    }
}
