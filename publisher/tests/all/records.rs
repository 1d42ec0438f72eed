//! Records of another process over a Unix socket: complete messages are published in order, all others
//! are reported, and the writer is never blocked.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::common::{Control, Listener, PATIENCE, Publisher, config, group, to_the_end, wait_for};
use serde_json::{Value, json};
use tickcast_publisher::record::{AlignedCopy, RType, RecordHeader, TradeMsg};
use tickcast_reliability::types::{Epoch, SourcePosition};
use tickcast_reliability::wire::{Datagram, Kind, SourceLossReason, StreamEvent};

const MESSAGE: u16 = 1;
const LOST: u16 = 2;
const END: u16 = 3;
const SESSION: u16 = 4;

fn frame(what: u16, sequence: u64, count: u16, messages: u64) -> Vec<u8> {
    let mut bytes = vec![6, 0xf0];
    for short in [count, what, 0] {
        bytes.extend(short.to_le_bytes());
    }
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(messages.to_le_bytes());
    bytes
}

fn trade(size: u32) -> Vec<u8> {
    let trade = TradeMsg {
        hd: RecordHeader::new::<TradeMsg>(RType::Mbp0 as u8, 1, 7, 0),
        size,
        ..TradeMsg::default()
    };
    let bytes: &[u8] = trade.as_ref();
    bytes.to_vec()
}

struct Setting {
    folder: tempfile::TempDir,
    publisher: Publisher,
    listener: Listener,
    control: Control,
    epoch: Epoch,
}

impl Setting {
    fn new(change: impl FnOnce(&mut Value)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let group = group();
        let socket = folder.path().join("records.sock");
        let mut config = config(
            group,
            json!({ "source": 3, "kind": "records", "socket": socket }),
        );
        config["linger_ms"] = json!(20_000);
        change(&mut config);
        let listener = Listener::new(group);
        let publisher = Publisher::start(&config);
        let mut control = publisher.connect();
        let epoch = control.join("bare").channels[0].epoch;
        Self {
            publisher,
            listener,
            control,
            epoch,
            folder,
        }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("records.sock")
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Waits for the end. Returns the exit code, the received trades and losses in order, and the summary.
    fn finish(mut self) -> (Option<i32>, Vec<Reported>, Value) {
        to_the_end(&mut self.listener, &mut self.control, self.epoch);
        let reported = reported(&self.listener);
        let socket = self.socket();
        let (code, summary) = self.publisher.finish();
        assert!(!socket.exists(), "the socket is removed");
        (code, reported, summary)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Reported {
    /// Position of the datagram's last message, and the trades' sizes.
    Trades(SourcePosition, Vec<u32>),
    Lost(SourceLossReason, SourcePosition, u64),
}

fn reported(listener: &Listener) -> Vec<Reported> {
    let mut aligned = AlignedCopy::default();
    let of = |bytes: &Vec<u8>| {
        let datagram = Datagram::parse(aligned.of(bytes)).unwrap();
        let header = *datagram.header();
        match (header.kind, StreamEvent::parse(datagram.payload())) {
            (Kind::Data, _) => {
                let records = datagram.records().unwrap();
                let sizes = records.map(|r| r.get::<TradeMsg>().unwrap().size);
                Some(Reported::Trades(header.source_position, sizes.collect()))
            }
            (
                Kind::Event,
                Some(StreamEvent::SourceLost {
                    reason,
                    from,
                    messages,
                    ..
                }),
            ) => Some(Reported::Lost(reason, from, messages)),
            _ => None,
        }
    };
    listener.datagrams.values().filter_map(of).collect()
}

fn sizes(reported: &[Reported]) -> Vec<u32> {
    let of = |reported: &Reported| match reported {
        Reported::Trades(_, sizes) => sizes.clone(),
        Reported::Lost(..) => Vec::new(),
    };
    reported.iter().flat_map(of).collect()
}

fn losses(reported: &[Reported]) -> Vec<Reported> {
    let is_lost = |reported: &&Reported| matches!(reported, Reported::Lost(..));
    reported.iter().filter(is_lost).cloned().collect()
}

const fn at(ordinal: u16, sequence: u64) -> SourcePosition {
    SourcePosition::new(ordinal, sequence)
}

#[test]
fn records_arrive_as_messages_however_cut() {
    let setting = Setting::new(|_| {});
    let mut bytes = Vec::new();
    bytes.extend(trade(1));
    bytes.extend(trade(2));
    bytes.extend(frame(MESSAGE, 10, 2, 0));
    bytes.extend([trade(3), trade(4)].concat());
    bytes.extend(frame(LOST, 11, 0, 4));
    bytes.extend(trade(5));
    bytes.extend(frame(SESSION, 100, 0, 0));
    bytes.extend(trade(6));
    bytes.extend(frame(END, 0, 0, 0));
    let mut writer = setting.connect();
    for piece in bytes.chunks(7) {
        writer.write_all(piece).unwrap();
    }
    let (code, reported, summary) = setting.finish();
    assert_eq!(code, Some(1), "a gap is a finding: {summary:#}");
    assert_eq!(sizes(&reported), [1, 2, 3, 4, 5, 6]);
    let lost = Reported::Lost(SourceLossReason::Gap, at(0, 11), 4);
    let place = reported
        .iter()
        .position(|t| *t == lost)
        .expect("the gap is told");
    assert_eq!(sizes(&reported[..place]), [1, 2, 3, 4], "in its place");
    let Some(Reported::Trades(last, _)) = reported.last() else {
        panic!("{reported:?}")
    };
    assert_eq!(*last, at(1, 100));
    let source = &summary["source"];
    assert_eq!(source["records"], 6);
    assert_eq!(source["messages_total"], 5);
    assert_eq!(source["session_changes"], 1);
    assert_eq!(source["bytes"], bytes.len());
    assert_eq!(source["missing_messages"], 4);
    assert_eq!(source["ended"], 1);
}

#[test]
fn socket_is_private_and_replaces_stale_one() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("records.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists(), "a stale one");
    let change = |config: &mut Value| config["inputs"][0]["socket"] = json!(socket);
    let setting = Setting::new(change);
    let mode = socket.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!folder.path().join("records.sock.new").exists());

    // A second publisher does not take the socket over.
    let mut other = config(
        group(),
        json!({ "source": 3, "kind": "records", "socket": socket }),
    );
    other["admin"] = Value::Null;
    let path = folder.path().join("other.json");
    std::fs::write(&path, other.to_string()).unwrap();
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_tickcast-publisher"))
        .arg("--config")
        .arg(&path)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("records.sock") && said.contains("no other process"),
        "{said}"
    );

    let mut writer = UnixStream::connect(&socket).unwrap();
    writer
        .write_all(&[trade(1), frame(END, 0, 0, 0)].concat())
        .unwrap();
    drop(setting.control);
    let (code, summary) = setting.publisher.finish();
    assert_eq!(code, Some(0), "{summary:#}");
    assert!(!socket.exists(), "removed at the end");
}

#[test]
fn second_writer_is_refused_and_first_continues() {
    let setting = Setting::new(|_| {});
    let mut first = setting.connect();
    first.write_all(&trade(1)).unwrap();
    let mut second = setting.connect();
    // A writer that keeps writing until it is refused can still read the reason.
    let much = trade(99).repeat(2_000);
    while second.write_all(&much).is_ok() {}
    let mut said = String::new();
    second.read_to_string(&mut said).unwrap();
    assert!(
        said.starts_with("refused: ") && said.contains("has a writer"),
        "{said}"
    );
    first
        .write_all(&[trade(2), frame(END, 0, 0, 0)].concat())
        .unwrap();
    let (code, reported, summary) = setting.finish();
    assert_eq!(code, Some(0), "{summary:#}");
    assert_eq!(sizes(&reported), [1, 2]);
    assert_eq!(summary["source"]["refused_connections"], 1);
    assert_eq!(summary["source"]["connections"], 1);
}

#[test]
fn returning_writer_is_new_session_and_cut_reported() {
    let setting = Setting::new(|_| {});
    for n in 1..=20 {
        // The writer is gone before the next one comes, without a closing frame.
        let mut writer = setting.connect();
        let whole = [trade(n), frame(MESSAGE, 5, 2, 0), trade(1000 + n)].concat();
        writer.write_all(&whole).unwrap();
        drop(writer);
        std::thread::sleep(Duration::from_millis(u64::from(n % 3)));
    }
    setting.connect().write_all(&frame(END, 0, 0, 0)).unwrap();
    let (code, reported, summary) = setting.finish();
    assert_eq!(code, Some(1));
    assert_eq!(
        sizes(&reported),
        (1..=20).collect::<Vec<_>>(),
        "half a message is none"
    );
    let lost = |n: u16| Reported::Lost(SourceLossReason::Malformed, at(n, 5), 1);
    assert_eq!(losses(&reported), (0..20).map(lost).collect::<Vec<_>>());
    assert_eq!(summary["source"]["session_changes"], 20);
    assert_eq!(summary["source"]["malformed"], 20);
    assert_eq!(summary["source"]["connections"], 21);
    assert_eq!(summary["source"]["refused_connections"], 0);
}

#[test]
fn unreadable_frame_closes_connection_with_reason() {
    let setting = Setting::new(|_| {});
    let mut version_4 = trade(1);
    version_4[0] = 13;
    let two = frame(MESSAGE, 3, 2, 0);
    const LAST: u64 = SourcePosition::SEQUENCE_MAX;
    let cases: [(Vec<u8>, &str); 11] = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "unknown type or length"),
        (version_4, "unknown type or length"),
        (vec![0; 64], "unknown type or length"),
        (
            [two.clone(), trade(9), two.clone()].concat(),
            "a frame within",
        ),
        (
            [two, trade(8), trade(7), frame(MESSAGE, 3, 1, 0)].concat(),
            "steps back",
        ),
        (frame(9, 1, 0, 0), "unknown kind"),
        (frame(MESSAGE, 1, 0, 0), "without content"),
        (
            [frame(MESSAGE, 1, 999, 0), trade(6).repeat(200)].concat(),
            "longer than any datagram",
        ),
        (
            [frame(LOST, 1, 0, u64::MAX - 2), trade(6)].concat(),
            "lost messages beyond",
        ),
        (frame(LOST, LAST, 0, 2), "lost messages beyond"),
        (
            [frame(MESSAGE, LAST, 1, 0), trade(4), trade(6)].concat(),
            "after the last source sequence",
        ),
    ];
    for (bytes, reason) in &cases {
        let mut writer = setting.connect();
        writer.write_all(bytes).unwrap();
        let mut said = String::new();
        writer.read_to_string(&mut said).unwrap();
        assert!(
            said.starts_with("refused: ") && said.contains(reason),
            "{said}"
        );
    }
    let mut writer = setting.connect();
    writer
        .write_all(&[trade(5), frame(END, 0, 0, 0)].concat())
        .unwrap();
    let (code, reported, summary) = setting.finish();
    assert_eq!(code, Some(1));
    assert_eq!(sizes(&reported), [8, 7, 4, 5]);
    let lost = losses(&reported);
    assert_eq!(lost.len(), cases.len(), "{lost:?}");
    for (n, lost) in (0..).zip(lost) {
        let Reported::Lost(SourceLossReason::Malformed, from, u64::MAX) = lost else {
            panic!("{lost:?}")
        };
        assert_eq!(from.ordinal(), n);
    }
    assert_eq!(summary["source"]["malformed"], cases.len());
    assert_eq!(summary["source"]["refused_connections"], cases.len());
}

fn flood(config: impl FnOnce(&mut Value)) -> (Vec<Reported>, Value) {
    const TRADES: u32 = 200_000;
    let setting = Setting::new(config);
    let mut writer = setting.connect();
    let bytes: Vec<u8> = (1..=TRADES).flat_map(trade).collect();
    // Writing completes even if nothing waits for the published records.
    writer.write_all(&bytes).unwrap();
    writer.write_all(&frame(END, 0, 0, 0)).unwrap();
    let (code, reported, summary) = setting.finish();
    let of = |name: &str| summary["source"][name].as_u64().unwrap();
    assert_eq!(
        of("messages_total"),
        u64::from(TRADES),
        "the service always reads"
    );
    let mut next = 1;
    for reported in &reported {
        match reported {
            Reported::Trades(_, sizes) => {
                for size in sizes {
                    assert_eq!(
                        u64::from(*size),
                        next,
                        "in order, and no gap that is not told"
                    );
                    next += 1;
                }
            }
            Reported::Lost(SourceLossReason::Overflow, from, messages) => {
                assert_eq!(from.sequence(), next);
                next += messages;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(next, u64::from(TRADES) + 1);
    let overflow = of("overflow_messages");
    assert_eq!(
        overflow + summary["published_records"].as_u64().unwrap(),
        u64::from(TRADES)
    );
    assert_eq!(code, Some(i32::from(overflow > 0)));
    (reported, summary)
}

#[test]
fn full_queue_loss_is_exact_and_never_blocks_writer() {
    let (reported, summary) = flood(|config| {
        config["threads"] = json!({ "queue_batches": 2, "idle": { "sleep": { "us": 5_000 } } });
        config["channels"][0]["slots"] = json!(65_536);
    });
    assert!(!losses(&reported).is_empty(), "{summary:#}");
}

#[test]
fn inline_mode_accepts_records_without_loss() {
    let (reported, _) = flood(|config| {
        config["threads"] = json!({ "mode": "inline" });
        config["channels"][0]["slots"] = json!(65_536);
    });
    assert!(losses(&reported).is_empty(), "nothing stands between");
}

#[test]
fn sigterm_removes_records_socket_and_exits_cleanly() {
    let setting = Setting::new(|config| config["end_when_inputs_end"] = json!(false));
    let mut writer = setting.connect();
    writer.write_all(&trade(1)).unwrap();
    let mut listener = setting.listener;
    wait_for("the trade", || {
        listener.poll();
        (listener.records().1 == 1).then_some(())
    });
    drop(setting.control);
    setting.publisher.terminate();
    let (code, summary) = setting.publisher.finish();
    assert_eq!(code, Some(0), "{summary:#}");
    assert!(!Path::new(&setting.folder.path().join("records.sock")).exists());
}
