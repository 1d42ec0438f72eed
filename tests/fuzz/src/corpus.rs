//! The committed corpus: its place, and the generator of its first inputs. They come from golden files,
//! example configs, the simulator and small encoders.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tickcast_feeds::simulator::{Simulator, SimulatorConfig};

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the folder of a target's inputs.
#[must_use]
pub fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target)
}

/// Returns the committed inputs of a target with their names, sorted by name.
///
/// # Errors
/// [`io::Error`] if the folder or a file can't be read.
pub fn inputs(target: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder(target))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        found.push((name.into_owned(), fs::read(&path)?));
    }
    found.sort();
    Ok(found)
}

/// Writes the first inputs of every target. Other inputs stay as they are.
///
/// # Errors
/// [`io::Error`] if a file can't be read or written.
pub fn write() -> io::Result<()> {
    golden()?;
    feeds()?;
    captures()?;
    for entry in fs::read_dir(root().join("configs"))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".json") && !name.contains("schema") {
            put("config", &name, &fs::read(&path)?)?;
        }
    }
    receive_core()?;
    hostile_publisher()?;
    mapped()
}

fn put(target: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder(target))?;
    fs::write(folder(target).join(name), bytes)
}

/// Writes datagrams and control messages of tests/golden, and one stream of all control messages.
fn golden() -> io::Result<()> {
    let mut files: Vec<PathBuf> = fs::read_dir(root().join("tests/golden"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    let mut stream = vec![13];
    for path in files
        .iter()
        .filter(|path| path.extension().is_some_and(|it| it == "hex"))
    {
        let text = fs::read_to_string(path)?;
        let hex = text.lines().flat_map(|line| line.split('#').next());
        let bytes = hex.flat_map(str::split_whitespace);
        let bytes = bytes.map(|byte| u8::from_str_radix(byte, 16));
        let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().map_err(io::Error::other)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        match name.split_once('-') {
            Some(("control", name)) => {
                stream.extend(&bytes);
                put("control", name, &[&[255], &bytes[..]].concat())?;
            }
            Some(("datagram", name)) => put("datagram", name, &bytes)?,
            _ => {}
        }
    }
    put("control", "all", &stream)?;
    // DATAGRAMs of the maximum length, and longer.
    let datagram = |len: u32| {
        let mut frame = vec![255];
        frame.extend(len.to_le_bytes());
        frame.extend([5, 0, 7, 0]);
        frame.resize(frame.len() + len as usize, 7);
        frame
    };
    put("control", "longest", &datagram(2048))?;
    put("control", "too-long", &datagram(2049))
}

/// Returns the packets, each after its length, behind a byte of options.
fn packets<'a>(options: u8, packets: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let mut bytes = vec![options];
    for packet in packets {
        bytes.extend((packet.len() as u16).to_le_bytes());
        bytes.extend(packet);
    }
    bytes
}

fn feeds() -> io::Result<()> {
    let config = SimulatorConfig {
        symbols: 3,
        messages: 120,
        depth: 6,
        payload_max: 400,
        ..SimulatorConfig::default()
    };
    let mut market = Simulator::new(&config, 7).map_err(io::Error::other)?;
    let mut sent = Vec::new();
    while let Some(packet) = market.next_packet() {
        sent.push(packet.payload.to_vec());
    }
    let (last, begun) = (sent.len() - 4, &sent[..6]);
    put("itch", "day", &packets(1, &sent))?;
    put("itch", "gap", &packets(0, sent.iter().step_by(2)))?;
    put("itch", "both-lines", &packets(3, begun.iter().chain(begun)))?;
    let messages: Vec<Vec<u8>> = sent.iter().flat_map(|packet| blocks(packet)).collect();
    put("itch", "file", &packets(4, &messages))?;
    put("moldudp64", "begun", &packets(1, begun))?;
    put("moldudp64", "end", &packets(0, &sent[last..]))?;
    let mut session = begun.to_vec();
    session[3][9] = b'2';
    session[4][9] = b'2';
    put("moldudp64", "sessions", &packets(0, &session))?;
    let heartbeat = |sequence: u8| {
        let mut packet = begun[0][..20].to_vec();
        packet[10..18].copy_from_slice(&u64::from(sequence).to_be_bytes());
        packet[18..].fill(0);
        packet
    };
    let insists = [begun[0].clone(), heartbeat(1), heartbeat(1), heartbeat(1)];
    put("moldudp64", "reset", &packets(0, &insists))?;

    // Two lines, then three, of which each lacks and reorders packets.
    for (name, options, lines) in [("two-lines", 0x0d_u8, 2), ("three-lines", 0x16, 3)] {
        let mut bytes = vec![options];
        for n in 0..20_usize {
            for line in (0..lines).filter(|line| (n + 2 * line) % 5 != 0) {
                let packet = &sent[n ^ line & 1];
                bytes.push((line | ((n % 3) << 2)) as u8);
                bytes.extend((packet.len() as u16).to_le_bytes());
                bytes.extend(packet);
            }
        }
        put("moldudp64", name, &bytes)?;
    }

    // Every message type of TOPS and of DEEP, with its length.
    let of_both: [(u8, usize); 11] = [
        (b'S', 10),
        (b'D', 31),
        (b'H', 22),
        (b'I', 18),
        (b'O', 18),
        (b'P', 19),
        (b'E', 18),
        (b'T', 38),
        (b'B', 38),
        (b'X', 26),
        (b'A', 80),
    ];
    let tops = of_both.iter().chain(&[(b'Q', 42)]);
    let deep = of_both.iter().chain(&[(b'8', 30), (b'5', 30)]);
    iex("iex_tops", &tops.copied().collect::<Vec<_>>())?;
    iex("iex_deep", &deep.copied().collect::<Vec<_>>())
}

/// Returns the messages of a MoldUDP64 packet.
fn blocks(packet: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut found) = (&packet[20..], Vec::new());
    while let Some((len, after)) = rest.split_first_chunk::<2>() {
        let (message, after) = after.split_at(u16::from_be_bytes(*len).into());
        found.push(message.to_vec());
        rest = after;
    }
    found
}

/// Returns an IEX-TP segment of messages of these types and lengths.
fn segment(session: u8, first: u64, messages: &[(u8, usize)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (kind, len) in messages {
        payload.extend((*len as u16).to_le_bytes());
        let mut message = vec![0; *len];
        message[0] = *kind;
        let at = len.min(&18);
        message[2..10].copy_from_slice(&1_500_000_000_000_000_000_u64.to_le_bytes());
        message[10..*at].fill(b'Z');
        payload.extend(message);
    }
    let mut bytes = vec![1, 0, 3, 0x80, 1, 0, 0, 0, session, 0, 0, 0x42];
    bytes.extend((payload.len() as u16).to_le_bytes());
    bytes.extend((messages.len() as u16).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(first.to_le_bytes());
    bytes.extend((1_500_000_000_000_000_000 + first).to_le_bytes());
    bytes.extend(payload);
    bytes
}

fn iex(target: &str, types: &[(u8, usize)]) -> io::Result<()> {
    let day = [
        segment(1, 1, &[]),
        segment(1, 1, types),
        segment(1, 1 + types.len() as u64, &types[..3]),
        segment(1, 20, &types[6..]),
    ];
    let turns = [
        segment(1, 5, &types[..2]),
        segment(1, 6, &types[..3]),
        segment(2, 1, &types[4..6]),
        segment(1, 9, &types[..1]),
        segment(2, 1, &[]),
        segment(2, 3, &types[7..9]),
    ];
    // A former defect: beyond the last position, messages shared one position.
    let last = (1 << 48) - 1;
    let end = [
        segment(1, last - 9, &types[..3]),
        segment(1, last - 1, &types[..3]),
    ];
    put(target, "last-position", &packets(0, &end)[1..])?;
    // Packets alone, without the byte of options.
    put(target, "day", &packets(0, &day)[1..])?;
    put(target, "turns", &packets(0, &turns)[1..])
}

/// Returns an Ethernet frame of UDP over IPv4.
fn frame(payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![
        1, 0, 0x5e, 0x57, 0x15, 3, 0, 0x1e, 0x67, 0xf8, 0x82, 0x3a, 8, 0, 0x45, 0,
    ];
    bytes.extend((payload.len() as u16 + 28).to_be_bytes());
    bytes.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 233, 215, 21, 3]);
    bytes.extend([0x28, 0x89, 0x28, 0x8a]);
    bytes.extend((payload.len() as u16 + 8).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let len = (padded as u32 + 12).to_le_bytes();
    let mut bytes = [kind.to_le_bytes(), len].concat();
    bytes.extend(body);
    bytes.resize(8 + padded, 0);
    bytes.extend(len);
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn captures() -> io::Result<()> {
    let frames = [frame(b"one"), frame(b"and two"), frame(&[7; 60])];
    let mut pcap = words(&[0xa1b2_3c4d, 0x0004_0002, 0, 0, 65_535, 1]);
    for (n, frame) in frames.iter().enumerate() {
        let kept = if n == 2 { 70 } else { frame.len() };
        pcap.extend(words(&[1_517_060_400, 5, kept as u32, frame.len() as u32]));
        pcap.extend(&frame[..kept]);
    }
    put("captures", "pcap", &pcap)?;
    let mut section = words(&[0x1a2b_3c4d, 1]);
    section.extend([0xff; 8]);
    let interface = [words(&[1, 0]), vec![9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]].concat();
    let mut pcapng = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
    for frame in &frames {
        let len = frame.len() as u32;
        let body = [words(&[0, 0x0005_0000, 77, len, len]), frame.clone()].concat();
        pcapng.extend(block(6, &body));
    }
    let len = frames[0].len() as u32;
    pcapng.extend(block(3, &[words(&[len]), frames[0].clone()].concat()));
    pcapng.extend(block(0x0bad, &[1, 2, 3, 4]));
    put("captures", "pcapng", &pcapng)?;
    let event = b"\x00\x0cS\0\0\0\0\0\0\0\0\0\0O";
    let file = [&event[..], event, &[0, 0]].concat();
    put("captures", "binary-file", &file)?;
    let bare = [&[0, 0], &event[2..], &[0, 0], &event[2..]].concat();
    put("captures", "binary-file-without-lengths", &bare)?;
    for (name, bytes) in [("pcap-gzip", &pcap), ("binary-file-gzip", &file)] {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(bytes)?;
        put("captures", name, &gzip.finish()?)?;
    }
    Ok(())
}

/// Writes random lists of operations, one for each kind of delivery and of fault.
fn receive_core() -> io::Result<()> {
    let troubles: [(&str, &[u8]); 6] = [
        ("loss", &[0, 1, 2, 3, 4, 5, 12, 14]),
        ("disorder", &[0, 1, 7, 7, 8, 9, 10, 11, 14]),
        ("silence", &[1, 4, 5, 12, 13, 15, 16, 18, 19]),
        ("promotions", &[1, 2, 2, 5, 12, 14, 15, 21]),
        ("restarts", &[1, 2, 3, 5, 12, 14, 20, 22, 23]),
        (
            "all",
            &[
                0, 1, 2, 3, 4, 7, 8, 9, 10, 12, 14, 15, 16, 17, 18, 20, 21, 24, 25, 0x81,
            ],
        ),
    ];
    for (n, (name, operations)) in troubles.into_iter().enumerate() {
        for (options, kind) in [(0x00, "ordered"), (0x59, "within"), (0x8e, "arrival")] {
            let mut random = ChaCha8Rng::seed_from_u64(n as u64);
            let mut bytes = vec![options];
            for _ in 0..60 {
                bytes.push(operations[random.random_range(0..operations.len())]);
                bytes.push(random.random_range(0..=255));
            }
            put("receive_core", &format!("{name}-{kind}"), &bytes)?;
        }
    }
    // The publisher does not answer, and more arrives than the window holds.
    for (options, kind) in [(0x00, "ordered"), (0x0c, "arrival"), (0x80, "reads")] {
        let behind: &[u8] = &[1; 66];
        let bytes = [
            &[options, 27, 16, 4],
            behind,
            &[12, 14, 90, 16, 27, 1, 15, 9],
        ]
        .concat();
        put("receive_core", &format!("full-window-{kind}"), &bytes)?;
    }
    // READs that stand still, return damaged and go on, with END in the middle.
    for (options, kind) in [(0x80, "ordered"), (0x9c, "arrival")] {
        let lost_and_read = [0x1b, 1, 5, 1, 0x1c, 1, 0xff, 5, 5, 2, 0x1b, 0x1d, 0, 14, 90];
        let bytes = [
            &[options],
            &lost_and_read[..],
            &lost_and_read,
            &[22, 1, 5, 1, 14, 9],
        ]
        .concat();
        put("receive_core", &format!("reads-{kind}"), &bytes)?;
    }
    // A former defect: no subscriber followed a standby that went on before the begin of the followed
    // epoch.
    let behind = [0, 1, 1, 1, 1, 21, 0, 21, 2, 1, 15, 9];
    put("receive_core", "promoted-behind", &behind)?;
    // A REFUSED of a missing datagram, which no honest publisher sends.
    let mut bytes = vec![0, 1, 5, 1, 26, 6, 48];
    for word in [5_u64, 2, 2, 3, 3] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([0, 0, 0, 0, 1, 0, 0, 0, 1, 15, 9]);
    put("receive_core", "refused", &bytes)
}

/// Writes runs of operations of which each is well formed. Their numbers are near each other, or extreme.
fn hostile_publisher() -> io::Result<()> {
    let mut random = ChaCha8Rng::seed_from_u64(9);
    // Each run: options, and how often in 16 a number is extreme.
    let runs = [
        ("ordered", 0x00, 0),
        ("ordered-wild", 0x20, 3),
        ("within", 0x0a, 1),
        ("arrival", 0x13, 1),
        ("reads", 0x40, 1),
        ("reads-wild", 0x70, 4),
        ("inboxes", 0xc0, 1),
    ];
    for (name, options, wild) in runs {
        let mut bytes = vec![options];
        let mut newest = 10;
        for n in 0..70 {
            // The first connection is welcomed first, then the others.
            let operation = match n {
                0 => 0,
                1..4 => [0x40, 0x80, 0xc0][n - 1],
                4 | 40 => 5,
                _ => [
                    0, 2, 3, 4, 5, 6, 8, 9, 9, 10, 11, 12, 17, 18, 21, 22, 23, 24, 25,
                ][random.random_range(0..19)],
            };
            bytes.push(operation);
            let mut number = |near: u8| match random.random_range(0..16) < wild {
                true => [random.random_range(3..5), random.random_range(0..=255)],
                false => [0, near],
            };
            newest += 1;
            match operation & 0x1f {
                0 => {
                    let numbers = [newest, 1, 1, newest].map(&mut number);
                    bytes.extend([&[0, 0], numbers.as_flattened(), &[0, 0, 0, 9]].concat());
                }
                2 | 3 => {
                    let numbers = [newest, 1, newest].map(&mut number);
                    bytes.extend([&[0], numbers.as_flattened(), &[0, 0, 1]].concat());
                }
                4 => {
                    let numbers = [newest - 3, newest, 9, newest - 1, newest - 1].map(&mut number);
                    bytes.extend([&[newest, 0], numbers.as_flattened()].concat());
                }
                5 => {
                    let numbers = [1, 1, 200, 1].map(&mut number);
                    bytes.extend([&[0, 0x12], numbers.as_flattened()].concat());
                }
                6 | 8..13 => {
                    let kind = if newest.is_multiple_of(9) { 2 } else { 0x04 };
                    bytes.extend([kind, 0]);
                    if kind == 2 {
                        bytes.extend([0, 9, 0, 9, 0, 9]);
                    }
                    let numbers = [newest, newest].map(&mut number);
                    bytes.extend([&[0], numbers.as_flattened()].concat());
                }
                21 | 22 => bytes.extend([0, 0, 4, 0, 0, 0, newest, 0, newest]),
                23 => bytes.extend([1, 0, newest, 4, 0, 0, 0, newest, 0, newest, 0, 7]),
                25 => {
                    let numbers = [newest, newest + 2].map(&mut number);
                    bytes.extend([numbers.as_flattened(), &[0]].concat());
                }
                17 | 18 => bytes.push(30),
                _ => {}
            }
        }
        put("hostile_publisher", name, &bytes)?;
    }
    Ok(())
}

/// Writes changes of a mapped ring: those of its owner, and those that only damage makes.
fn mapped() -> io::Result<()> {
    put("mapped", "honest", &[12, 0, 0, 2, 2])?;
    put("mapped", "late", &[39, 0, 3, 2, 2, 3, 0, 7, 2])?;
    // The word `sent` and the number of the last copy rise, fall, and are the greatest of all.
    let words = [
        (0, 1, 5),
        (0, 3, 0),
        (7, 3, 0),
        (0x87, 3, 0),
        (7, 0, 200),
        (2, 3, 1),
        (0, 2, 9),
    ];
    let mut bytes = vec![12, 0, 0];
    for (which, how, by) in words {
        bytes.extend([0, which, how, by, 0, 2]);
    }
    put("mapped", "words", &bytes)?;
    // Lengths and sequences of slots and copies.
    let mut bytes = vec![16, 0, 0];
    for word in 0..10 {
        bytes.extend([0, 0x35, 3, word, 0, word, 2]);
    }
    for which in [9, 10, 0x89, 0x8a] {
        bytes.extend([0, which, 3, 0, 1, 2]);
    }
    put("mapped", "slots", &bytes)?;
    // The file is damaged before it is opened.
    for which in 0..9 {
        put(
            "mapped",
            &format!("damaged-{which}"),
            &[20, 1, which, 3, 7, 0, 0, 0, 2, 2],
        )?;
    }
    Ok(())
}
