//! The Wireshark dissector (tools/wireshark/tickcast.lua) against our decoder: `tshark` reads recorded
//! sessions, and every field that it shows equals the one that our decoder reads.
//!
//! The expectations follow the decoder's types with exhaustive patterns. The names of numbers are found by
//! showing every number to the decoder. So a new field, type or reason fails here until the dissector has it.

mod capture;
mod control;
mod datagram;
mod live;
mod names;
mod records;
mod sealed;
mod session;
mod shown;
mod tshark;

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use tickcast_reliability::control::{BODY_LEN_MAX_TO_PUBLISHER, ControlError, Message};
use tickcast_reliability::record::record_len;
use tickcast_reliability::wire::{Datagram, HEADER_LEN, crc_of};

use self::capture::Capture;
use self::session::Gaps;
use self::shown::{Expected, Field, Names};
use self::tshark::Tshark;

/// The publisher's port, which the dissector knows.
const CONTROL: u16 = 7_400;
/// Lengths of segments, so that frames are cut in their heads and bodies, and some share a segment.
const ODD: [usize; 9] = [3, 1, 16, 81, 18, 700, 5, 1, 211];

/// A capture, and what `tshark` must show of it.
#[derive(Default)]
struct Recording {
    capture: Capture,
    /// Expected fields of runs of packets.
    expected: Vec<(std::ops::Range<usize>, Expected)>,
    gaps: Gaps,
}

impl Recording {
    fn datagram(&mut self, bytes: &[u8]) {
        let expected = self.gaps.expected(bytes);
        let packet = self.capture.datagram(bytes);
        self.expected.push((packet..packet + 1, expected));
    }

    fn stream(&mut self, from: u16, to: u16, bytes: &[u8], lens: &[usize]) {
        let packets = self.capture.stream(from, to, bytes, lens);
        self.expected.push((packets, control::expected(bytes)));
    }

    /// Adds a segment of which `tshark` must show this note.
    fn bad_segment(&mut self, from: u16, to: u16, bytes: &[u8], expert: &str) {
        let packet = self.capture.segment(from, to, bytes);
        let mut expected = Expected::default();
        expected.any_text("tickcast_control");
        expected.then.push(expert.to_owned());
        self.expected.push((packet..packet + 1, expected));
    }

    /// Compares the capture with what `tshark` shows of it, and returns all that it shows.
    fn assert_shown(&self, tshark: &Tshark) -> Vec<Field> {
        let shown = tshark.read(&self.capture, &[]);
        for (packets, expected) in &self.expected {
            let of = format!("packets {packets:?}");
            expected.assert_shown(&shown[packets.clone()].concat(), &of);
        }
        shown.concat()
    }
}

/// Returns a recording of a whole session, with all fields and notes that the dissector has.
fn session() -> Recording {
    let mut recording = Recording::default();
    let mut good = session::datagrams();
    let lost = good.remove(5);
    for bytes in good.iter().chain(&session::unusual_datagrams()) {
        recording.datagram(bytes);
    }
    let cut = datagram::expected(&lost, 80);
    let packet = recording.capture.cut_datagram(&lost, 80);
    recording.expected.push((packet..packet + 1, cut));

    let (up, down) = (session::to_publisher(), session::to_subscriber());
    recording.stream(40_001, CONTROL, &up, &ODD);
    recording.stream(CONTROL, 40_001, &down, &ODD);
    recording.stream(40_002, CONTROL, &up, &[60_000]);
    recording.stream(CONTROL, 40_002, &down, &[60_000]);
    // On another port, the first frame tells.
    recording.stream(40_003, 9_999, &up, &[100, 7]);
    recording.stream(9_999, 40_003, &down, &[100, 7]);
    for (n, frame) in session::bad_frames().iter().enumerate() {
        let read = Message::read(frame, BODY_LEN_MAX_TO_PUBLISHER);
        assert!(read.is_err(), "bad frame {n}: {read:?}");
        let expert = match read {
            Err(ControlError::Body { .. }) => "tickcast_control.bad_message",
            _ => "tickcast_control.bad_frame",
        };
        recording.bad_segment(41_000 + n as u16, CONTROL, frame, expert);
    }
    let status = session::frame(8, &[0; 60]);
    recording.stream(CONTROL, 42_000, &status, &[100]);
    let packet = recording.capture.cut_segment(CONTROL, 42_001, &status, 50);
    let mut expected = Expected::default();
    expected.any_text("tickcast_control");
    expected.bytes("tickcast_control.unreadable", &status[..50]);
    expected.any_text("tickcast_control.cut");
    recording.expected.push((packet..packet + 1, expected));
    recording
}

#[test]
fn dissector_shows_every_field_as_decoded() {
    let Some(tshark) = Tshark::find() else { return };
    let recording = session();
    let shown = recording.assert_shown(&tshark);
    let shown: BTreeSet<_> = shown.into_iter().map(|field| field.name).collect();
    let missing: Vec<_> = tshark
        .fields()
        .into_iter()
        .filter(|name| !shown.contains(name))
        .collect();
    assert!(missing.is_empty(), "the session lacks {missing:?}");
}

#[test]
fn dissector_names_every_number_the_decoder_knows() {
    let Some(tshark) = Tshark::find() else { return };
    let mut known: BTreeMap<String, Names> = BTreeMap::new();
    for (_, expected) in session().expected {
        known.extend(expected.names);
    }
    let on_the_wire = (0..=u8::MAX).filter(|rtype| record_len(*rtype).is_some());
    assert!(on_the_wire.map(u64::from).eq(records::types().into_keys()));
    let shown = tshark.names();
    for (field, names) in &known {
        assert_eq!(shown.get(field), Some(names), "{field}");
    }
    let fields = |names: &BTreeMap<String, Names>| names.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(fields(&shown), fields(&known));
}

#[test]
fn dissector_skips_the_crc_on_request() {
    let Some(tshark) = Tshark::find() else { return };
    let mut capture = Capture::default();
    let mut bytes = session::datagrams().swap_remove(0);
    bytes[60] ^= 1;
    capture.datagram(&bytes);
    for (options, notes) in [(&[][..], 1), (&["-o", "tickcast.check_crc:FALSE"][..], 0)] {
        let shown = tshark.read(&capture, options).concat();
        let found = shown
            .iter()
            .filter(|field| field.name == "tickcast.bad_crc");
        assert_eq!(found.count(), notes, "{options:?}");
    }
}

#[test]
fn dissector_follows_the_ports_of_its_preference() {
    let Some(tshark) = Tshark::find() else { return };
    let progress = session::frame(7, &[0; 48]);
    for (port, ports, is_shown) in [
        (CONTROL, "7400", true),
        (CONTROL, "7401-7403", false),
        (7_402, "7401-7403", true),
        (CONTROL, "", false),
    ] {
        let mut capture = Capture::default();
        capture.segment(40_001, port, &progress);
        let option = format!("tickcast_control.ports:{ports}");
        let shown = tshark.read(&capture, &["-o", &option]).concat();
        assert_eq!(!shown.is_empty(), is_shown, "port {port} and {ports:?}");
    }
}

/// Returns one of the inputs with damage: changed bits, bytes and lengths, and a cut or longer end.
fn damaged(inputs: &[Vec<u8>], random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut below = |n: usize| random.next_u32() as usize % n;
    let mut bytes = inputs[below(inputs.len())].clone();
    for _ in 0..below(4) {
        let at = below(bytes.len());
        match below(5) {
            0 => bytes[at] ^= 1 << below(8),
            1 => bytes[at] = below(256) as u8,
            2 => bytes.truncate(at.max(1)),
            3 => bytes.extend(vec![below(256) as u8; below(40)]),
            // The head decides most.
            _ => bytes[at % 8] = below(16) as u8,
        }
    }
    bytes
}

#[test]
fn dissector_survives_damaged_datagrams() {
    let Some(tshark) = Tshark::find() else { return };
    let seed = 7;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let inputs = [session::datagrams(), session::unusual_datagrams()].concat();
    let mut recording = Recording::default();
    // From here on, whatever comes on this line is dissected.
    recording.datagram(&inputs[0]);
    for n in 0..400 {
        let mut bytes = damaged(&inputs, &mut random);
        // With the right CRC, the damage reaches the bodies.
        if n % 2 == 0
            && let Ok(datagram) = Datagram::parse(&bytes)
        {
            let len = datagram.bytes().len();
            let (head, rest) = bytes[..len]
                .split_first_chunk::<HEADER_LEN>()
                .expect("a header");
            let crc = crc_of(head, rest);
            bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        }
        recording.datagram(&bytes);
    }
    println!("seed {seed}");
    recording.assert_shown(&tshark);
}

#[test]
fn dissector_survives_damaged_control_streams() {
    let Some(tshark) = Tshark::find() else { return };
    let seed = 11;
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut inputs = session::bad_frames();
    inputs.extend(control::frames_of(&session::to_publisher()));
    inputs.extend(control::frames_of(&session::to_subscriber()));
    let mut recording = Recording::default();
    for n in 0..200 {
        let (subscriber, bytes) = (20_000 + n, damaged(&inputs, &mut random));
        let lens = [1 + random.next_u32() as usize % 40, 1, 1_400];
        recording.capture.stream(subscriber, CONTROL, &bytes, &lens);
        let random: Vec<u8> = (0..random.next_u32() % 90)
            .map(|_| random.next_u32() as u8)
            .collect();
        recording
            .capture
            .stream(CONTROL, subscriber, &random, &lens);
    }
    println!("seed {seed}");
    recording.assert_shown(&tshark);
}
