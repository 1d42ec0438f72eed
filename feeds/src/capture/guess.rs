//! Guesses: formats that are recognised by sight but not read, each with a remedy.

use std::fmt;

use crate::itch::messages::message_len;

/// A format that is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each variant is named by its text")]
pub enum Guess {
    Xz,
    Bzip2,
    Lz4,
    Zip,
    SevenZip,
    Gzip,
    Zstd,
    Lzma,
    Compress,
    Tar,
    ModifiedPcap,
    Snoop,
    Erf,
    NetMon,
    Dbn,
    Itch41,
    MoldUdp64,
    MoldBeats,
    PaddedMold,
    SoupBinTcp,
    SoupRejected,
    DeepPlus,
    IexTp,
    CmeMdp3,
    CboePitch,
    NyseXdp,
    NyseUltra,
}

impl Guess {
    /// Guesses the format of a file from its first bytes.
    #[must_use]
    pub fn of_file(head: &[u8]) -> Option<Self> {
        const MAGICS: [(&[u8], Guess); 17] = [
            (b"\xfd7zXZ\0", Guess::Xz),
            (b"BZh", Guess::Bzip2),
            (b"\x04\x22\x4d\x18", Guess::Lz4),
            (b"\x02\x21\x4c\x18", Guess::Lz4),
            (b"PK\x03\x04", Guess::Zip),
            // An empty archive, and the first of several parts.
            (b"PK\x05\x06", Guess::Zip),
            (b"PK\x07\x08", Guess::Zip),
            (b"7z\xbc\xaf\x27\x1c", Guess::SevenZip),
            (b"snoop\0\0\0", Guess::Snoop),
            (b"DBN", Guess::Dbn),
            (b"\x1f\x8b", Guess::Gzip),
            (b"\x28\xb5\x2f\xfd", Guess::Zstd),
            (b"\x34\xcd\xb2\xa1", Guess::ModifiedPcap),
            (b"\xa1\xb2\xcd\x34", Guess::ModifiedPcap),
            (b"\x5d\0\0", Guess::Lzma),
            (b"\x1f\x9d", Guess::Compress),
            (b"GMBU", Guess::NetMon),
        ];
        let magic = MAGICS.iter().find(|(magic, _)| head.starts_with(magic));
        magic
            .map(|(_, guess)| *guess)
            .or_else(|| is_tar(head).then_some(Self::Tar))
            .or_else(|| is_erf(head).then_some(Self::Erf))
            .or_else(|| is_rejection(head).then_some(Self::SoupRejected))
            .or_else(|| (is_itch_41(head) || is_soup_of_41(head)).then_some(Self::Itch41))
    }

    /// Guesses the protocol of a UDP payload that no decoder recognises.
    #[must_use]
    pub fn of_payload(payload: &[u8]) -> Option<Self> {
        iex_tp(payload)
            .or_else(|| mold(payload))
            .or_else(|| is_soup(payload).then_some(Self::SoupBinTcp))
            .or_else(|| is_mdp3(payload).then_some(Self::CmeMdp3))
            .or_else(|| is_pitch(payload).then_some(Self::CboePitch))
            .or_else(|| is_xdp(payload).then_some(Self::NyseXdp))
            .or_else(|| is_ultra(payload).then_some(Self::NyseUltra))
    }
}

impl fmt::Display for Guess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Xz => "looks like xz: decompress it with unxz",
            Self::Bzip2 => "looks like bzip2: decompress it with bunzip2",
            Self::Lz4 => "looks like lz4: decompress it with unlz4",
            Self::Zip => "looks like zip: unpack it with unzip",
            Self::SevenZip => "looks like 7z: unpack it with 7z x",
            Self::Gzip => {
                "looks like gzip within a compressed file: decompress it once with gunzip"
            }
            Self::Zstd => {
                "looks like zstd within a compressed file: decompress it once with unzstd"
            }
            Self::Lzma => "looks like lzma: decompress it with unlzma",
            Self::Compress => "looks like compress (.Z): decompress it with gunzip",
            Self::Tar => "looks like tar: unpack it with tar -x",
            Self::ModifiedPcap => "looks like a modified pcap: convert it with editcap -F pcap",
            Self::Snoop => "looks like a snoop capture: convert it with editcap -F pcap",
            Self::Erf => "looks like an ERF capture: convert it with editcap -F nsecpcap",
            Self::NetMon => "looks like a Network Monitor capture: convert it with editcap -F pcap",
            Self::Dbn => "looks like DBN records: it holds no packets of a venue",
            Self::Itch41 => "looks like ITCH 4.1: only ITCH 5.0 is decoded",
            Self::MoldUdp64 => {
                "looks like MoldUDP64 with messages that are not ITCH 5.0: no decoder knows them"
            }
            Self::MoldBeats => {
                "looks like heartbeats of MoldUDP64, without messages: record while the venue sends some"
            }
            Self::PaddedMold => {
                "looks like ITCH 5.0 in MoldUDP64 with other bytes behind each packet: name its format and \
                 its destination"
            }
            Self::SoupBinTcp => "looks like SoupBinTCP: record it as a file of its own",
            Self::SoupRejected => {
                "looks like SoupBinTCP whose login was rejected: it holds no messages; log in with the \
                 right name and session, and record it again"
            }
            Self::DeepPlus => {
                "looks like IEX DEEP+ (protocol 0x8005): only TOPS and DEEP are decoded"
            }
            Self::IexTp => "looks like IEX-TP of a protocol that is not TOPS or DEEP",
            Self::CmeMdp3 => "looks like CME MDP 3.0 (SBE): no decoder knows it",
            Self::CboePitch => "looks like Cboe PITCH: no decoder knows it",
            Self::NyseXdp => "looks like NYSE XDP or Pillar: no decoder knows it",
            Self::NyseUltra => "looks like NYSE OpenBook Ultra: no decoder knows it",
        })
    }
}

fn u16_le(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*field))
}

fn u16_be(bytes: &[u8], at: usize) -> Option<u16> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*field))
}

fn u32_le(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*field))
}

/// A tar header has its magic behind name, mode, owner, size, times and link.
fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// An ERF record: stamp (8), type, flags, record length (big-endian), loss, wire length. Types are
/// small, and the second record must look like the first.
fn is_erf(head: &[u8]) -> bool {
    let record = |at: usize| -> Option<(u32, usize)> {
        let seconds = u32_le(head, at + 4)?;
        let kind = head.get(at + 8)? & 0x7f;
        let len = usize::from(u16_be(head, at + 10)?);
        let is_sound = (1..=48).contains(&kind) && len >= 16 && seconds > 500_000_000;
        is_sound.then_some((seconds, len))
    };
    record(0).is_some_and(|(first, len)| {
        record(len).is_some_and(|(second, _)| second.abs_diff(first) < 3_600)
    })
}

fn iex_tp(payload: &[u8]) -> Option<Guess> {
    let is_header = payload.len() >= 40 && payload.starts_with(&[1, 0]);
    let len = usize::from(u16_le(payload, 12)?);
    if !is_header || payload.len() != 40 + len {
        return None;
    }
    match u16_le(payload, 2)? {
        0x8002..=0x8004 => None,
        0x8005 => Some(Guess::DeepPlus),
        0x8000..=0x80ff => Some(Guess::IexTp),
        _ => None,
    }
}

/// Blocks that fit from end to end. ITCH 4.1 has messages of 5 bytes for the seconds, and its add
/// order is 30 bytes long. Behind messages of ITCH 5.0 there may be others.
fn mold(payload: &[u8]) -> Option<Guess> {
    let count = u16_be(payload, 18)?;
    let mut blocks = payload.get(20..)?;
    let (mut is_41, mut is_50) = (false, true);
    let mut seen = 0_u16;
    while seen < count
        && let Some((len, rest)) = blocks.split_first_chunk::<2>()
    {
        let len = usize::from(u16::from_be_bytes(*len));
        let (message, rest) = rest.split_at_checked(len)?;
        let kind = *message.first()?;
        is_41 |= is_of_41(kind, len);
        is_50 &= message_len(kind) == Some(len);
        seen = seen.checked_add(1)?;
        blocks = rest;
    }
    let name = payload.get(..10)?;
    let is_named = name.iter().all(|c| c.is_ascii_graphic() || *c == b' ');
    // The count of an end of session.
    if matches!(count, 0 | u16::MAX) {
        return (is_named && payload.len() == 20).then_some(Guess::MoldBeats);
    }
    if seen == 0 || seen != count || !is_named {
        return None;
    }
    match blocks {
        [] if is_41 => Some(Guess::Itch41),
        [] => Some(Guess::MoldUdp64),
        _ => is_50.then_some(Guess::PaddedMold),
    }
}

/// Packets of SoupBinTCP that fit from end to end, one of them with an ITCH message.
fn is_soup(payload: &[u8]) -> bool {
    let mut rest = payload;
    let mut has_message = false;
    while let Some((len, behind)) = rest.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes(*len));
        let Some((packet, behind)) = behind.split_at_checked(len) else {
            return false;
        };
        has_message |= match packet {
            [b'S' | b'U', kind, ..] => message_len(*kind) == Some(len - 1),
            [b'A' | b'H' | b'J' | b'O' | b'R' | b'Z' | b'+', ..] => false,
            _ => return false,
        };
        rest = behind;
    }
    has_message && rest.is_empty()
}

/// Returns whether a type has a length that only ITCH 4.1 gives it.
const fn is_of_41(kind: u8, len: usize) -> bool {
    matches!(
        (kind, len),
        (b'T', 5) | (b'A', 30) | (b'E', 25) | (b'D', 13)
    )
}

/// BinaryFILE of ITCH 4.1: the first messages are short and begin with capital letters, behind their lengths.
fn is_itch_41(head: &[u8]) -> bool {
    const MESSAGES: usize = 8;
    let mut rest = head;
    let mut of_41 = 0;
    for messages in 0..MESSAGES {
        let Some((len, behind)) = rest.split_first_chunk::<2>() else {
            return rest.is_empty() && messages > 1 && of_41 > 0;
        };
        let len = usize::from(u16::from_be_bytes(*len));
        let Some((message, behind)) = behind.split_at_checked(len) else {
            return false;
        };
        match message.first() {
            Some(kind) if kind.is_ascii_uppercase() && len < 64 => {
                of_41 += usize::from(is_of_41(*kind, len));
            }
            _ => return false,
        }
        rest = behind;
    }
    of_41 > 0
}

/// SoupBinTCP whose only packet rejects the login: its reason is A (name) or S (session).
fn is_rejection(head: &[u8]) -> bool {
    matches!(head, [0, 2, b'J', b'A' | b'S'])
}

/// SoupBinTCP of ITCH 4.1: one of the first messages has a length that only that gives its type, and none one
/// of ITCH 5.0.
pub(super) fn is_soup_of_41(head: &[u8]) -> bool {
    const PACKETS: usize = 64;
    let mut rest = head;
    let mut is_41 = false;
    for _ in 0..PACKETS {
        let Some((len, behind)) = rest.split_first_chunk::<2>() else {
            break;
        };
        let Some((packet, behind)) = behind.split_at_checked(u16::from_be_bytes(*len).into())
        else {
            break;
        };
        match packet {
            [b'S', kind, ..] if message_len(*kind) == Some(packet.len() - 1) => return false,
            [b'S', kind, ..] => is_41 |= is_of_41(*kind, packet.len() - 1),
            [b'A' | b'H' | b'R' | b'O' | b'Z' | b'+', ..] => {}
            _ => return false,
        }
        rest = behind;
    }
    is_41
}

/// Sequence (4), sending time (8), then messages: size, block length, template, schema 1.
fn is_mdp3(payload: &[u8]) -> bool {
    let sent_at = payload.get(4..12).and_then(<[u8]>::first_chunk);
    let seconds = sent_at.map_or(0, |t| u64::from_le_bytes(*t) / 1_000_000_000);
    let size = u16_le(payload, 12).map_or(0, usize::from);
    (1_000_000_000..5_000_000_000).contains(&seconds)
        && (10..=payload.len() - 12).contains(&size)
        && u16_le(payload, 18) == Some(1)
}

/// A unit header of 8 bytes whose length is the packet's; each message begins with its length.
fn is_pitch(payload: &[u8]) -> bool {
    let mut at = 8;
    let mut count = 0;
    while let Some(&len) = payload.get(at) {
        if len < 2 {
            return false;
        }
        at += usize::from(len);
        count += 1;
    }
    u16_le(payload, 0).map(usize::from) == Some(payload.len())
        && payload.get(2) == Some(&(count as u8))
        && at == payload.len()
}

/// A packet header of 16 bytes whose length is the packet's, in either byte order; each message
/// begins with its length.
fn is_xdp(payload: &[u8]) -> bool {
    let fits = |u16_at: fn(&[u8], usize) -> Option<u16>| {
        let mut at = 16;
        let mut count = 0;
        while let Some(len) = u16_at(payload, at) {
            if len < 4 {
                return false;
            }
            at += usize::from(len);
            count += 1;
        }
        u16_at(payload, 0).map(usize::from) == Some(payload.len())
            && payload.get(3) == Some(&(count as u8))
            && at == payload.len()
    };
    fits(u16_le) || fits(u16_be)
}

/// NYSE before XDP, big-endian: the length of the rest (2), type (2), sequence (4), ms since midnight (4),
/// product, whether it is a retransmission, number of bodies, link.
fn is_ultra(payload: &[u8]) -> bool {
    const MS_PER_DAY: u32 = 86_400_000;
    let Some(
        &[
            l0,
            l1,
            k0,
            k1,
            _,
            _,
            _,
            _,
            t0,
            t1,
            t2,
            t3,
            _,
            again,
            bodies,
            link,
        ],
    ) = payload.first_chunk::<16>()
    else {
        return false;
    };
    let [len, kind] = [[l0, l1], [k0, k1]].map(u16::from_be_bytes);
    // Reset, heartbeat, requests and their answers; full and delta updates.
    let is_known = matches!(
        (kind, bodies),
        (1 | 2 | 5 | 10 | 20..=24, _) | (230 | 231, 1..)
    );
    usize::from(len) + 2 == payload.len()
        && is_known
        && u32::from_be_bytes([t0, t1, t2, t3]) < MS_PER_DAY
        && (1..=8).contains(&again)
        && link <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_formats_are_named_by_first_bytes() {
        for (head, guess) in [
            (&b"\xfd7zXZ\0rest"[..], Guess::Xz),
            (b"BZh91AY", Guess::Bzip2),
            (b"\x04\x22\x4d\x18zzz", Guess::Lz4),
            (b"\x02\x21\x4c\x18zzz", Guess::Lz4),
            (b"PK\x05\x06zzz", Guess::Zip),
            (b"\0\x02JS", Guess::SoupRejected),
            (b"PK\x03\x04zzz", Guess::Zip),
            (b"7z\xbc\xaf\x27\x1czzz", Guess::SevenZip),
            (b"DBN\x03zzz", Guess::Dbn),
            (b"snoop\0\0\0\0\0\0\x02", Guess::Snoop),
            (b"\x5d\0\0\x80\0zzz", Guess::Lzma),
            (b"\x1f\x9d\x90zzz", Guess::Compress),
            (b"GMBU\0\x02zzz", Guess::NetMon),
        ] {
            assert_eq!(Guess::of_file(head), Some(guess));
        }
        assert_eq!(Guess::of_file(b"nothing that is known"), None);
        let record = |second: u8| {
            let mut record = vec![0, 0, 0, 0, second, 0, 0, 0x5f, 2, 4, 0, 32, 0, 0, 0, 14];
            record.resize(32, 0);
            record
        };
        let erf = [record(1), record(2)].concat();
        assert_eq!(Guess::of_file(&erf), Some(Guess::Erf));
        assert_eq!(
            Guess::of_file(&erf[..32]),
            None,
            "one record proves nothing"
        );
    }

    #[test]
    fn bytes_behind_each_packet_of_mold_are_named() {
        let packet = |count: u8, kind: u8, behind: &[u8]| {
            let head = [&b"SESSION001\0\0\0\0\0\0\0\x01\0"[..], &[count]].concat();
            let block = [&[0, 12, kind][..], &[0; 10], b"O"].concat();
            [&head[..], &block, behind].concat()
        };
        let of = |count, kind, behind: &[u8]| Guess::of_payload(&packet(count, kind, behind));
        for behind in [&b"\0\0"[..], b"x", &[7; 20]] {
            assert_eq!(of(1, b'S', behind), Some(Guess::PaddedMold), "{behind:?}");
            assert_eq!(of(1, b'z', behind), None, "not ITCH");
            assert_eq!(of(2, b'S', behind), None, "a message is missing");
        }
        assert_eq!(of(1, b'z', b""), Some(Guess::MoldUdp64));
        let text = Guess::PaddedMold.to_string();
        assert!(text.contains("behind each packet"), "{text}");
    }

    #[test]
    fn binary_file_of_itch_41_is_named() {
        let message = |kind: u8, len: usize| {
            let mut message = vec![0, len as u8, kind];
            message.resize(2 + len, 0);
            message
        };
        let seconds = message(b'T', 5);
        let event = message(b'S', 6);
        for (bytes, is_41) in [
            ([&seconds[..], &event].concat(), true),
            (seconds.repeat(9), true),
            ([&event[..], &event, &message(b'A', 30)].concat(), true),
            ([&event[..], &event].concat(), false),
            (seconds.clone(), false),
            ([&seconds[..], &message(b'?', 5)].concat(), false),
            ([&seconds[..], &seconds[..4]].concat(), false),
            ([&seconds[..], &message(b'S', 64)].concat(), false),
        ] {
            let guess = is_41.then_some(Guess::Itch41);
            assert_eq!(Guess::of_file(&bytes), guess, "{bytes:02x?}");
        }
    }

    #[test]
    fn packets_of_soupbintcp_are_named() {
        let packet = |kind: u8, body: &[u8]| {
            let len = (body.len() as u16 + 1).to_be_bytes();
            [&len[..], &[kind], body].concat()
        };
        let event = packet(b'S', b"S\0\0\0\0\0\0\0\0\0\0O");
        let heartbeat = packet(b'H', b"");
        for (bytes, is_soup) in [
            (event.clone(), true),
            (packet(b'U', b"S\0\0\0\0\0\0\0\0\0\0O"), true),
            ([&heartbeat[..], &event, &heartbeat].concat(), true),
            (heartbeat.clone(), false),
            (packet(b'S', b"S\0\0\0\0\0\0\0\0\0O"), false),
            (packet(b'X', b""), false),
            ([&event[..], &packet(b'X', b"")].concat(), false),
            ([&event[..], b"\0"].concat(), false),
            (event[..event.len() - 1].to_vec(), false),
            ([&event[..], &[0, 0]].concat(), false),
        ] {
            let guess = is_soup.then_some(Guess::SoupBinTcp);
            assert_eq!(Guess::of_payload(&bytes), guess, "{bytes:02x?}");
        }
    }

    #[test]
    fn short_and_random_payloads_give_no_guess() {
        for len in 0..64 {
            assert_eq!(Guess::of_payload(&vec![0; len]), None, "{len}");
            assert_eq!(Guess::of_payload(&vec![0xff; len]), None, "{len}");
        }
    }

    #[test]
    fn erf_records_have_bounded_types_lengths_and_times() {
        let record = |seconds: u32, kind: u8, len: u16| {
            let mut record = vec![0xcc; 4];
            record.extend(seconds.to_le_bytes());
            record.extend([kind, 4]);
            record.extend(len.to_be_bytes());
            record.resize(len.into(), 0xcc);
            record
        };
        let is_erf = |first: (u32, u8, u16), second: (u32, u8, u16)| {
            let records = [first, second].map(|(s, kind, len)| record(s, kind, len));
            Guess::of_file(&records.concat()) == Some(Guess::Erf)
        };
        let (now, sound) = (1_700_000_000, (1_700_000_000, 2, 32));
        for (other, expected) in [
            ((now, 0, 32), false),
            ((now, 1, 32), true),
            ((now, 48, 32), true),
            ((now, 49, 32), false),
            ((now, 0x80 | 48, 32), true),
            ((now, 2, 15), false),
            ((now, 2, 16), true),
            ((now, 2, 300), true),
            ((now - 3_600, 2, 32), false),
            ((now - 3_599, 2, 32), true),
            ((now + 3_599, 2, 32), true),
            ((now + 3_600, 2, 32), false),
        ] {
            assert_eq!(is_erf(other, sound), expected, "{other:?} first");
            assert_eq!(is_erf(sound, other), expected, "{other:?} second");
        }
        for (seconds, expected) in [(500_000_000, false), (500_000_001, true)] {
            assert_eq!(is_erf((seconds, 2, 32), (seconds, 2, 32)), expected);
        }
    }

    #[test]
    fn iex_tp_of_other_protocols_is_named() {
        let segment = |protocol: u16, len: u16, payload: usize| {
            let mut bytes = vec![1, 0];
            bytes.extend(protocol.to_le_bytes());
            bytes.extend([0; 8]);
            bytes.extend(len.to_le_bytes());
            bytes.resize(40 + payload, 0);
            bytes
        };
        for (protocol, guess) in [
            (0x7fff, None),
            (0x8000, Some(Guess::IexTp)),
            (0x8001, Some(Guess::IexTp)),
            (0x8002, None),
            (0x8004, None),
            (0x8005, Some(Guess::DeepPlus)),
            (0x8006, Some(Guess::IexTp)),
            (0x80ff, Some(Guess::IexTp)),
            (0x8100, None),
        ] {
            for len in [0_u16, 7] {
                let bytes = segment(protocol, len, len.into());
                assert_eq!(Guess::of_payload(&bytes), guess, "{protocol:#x}");
            }
        }
        assert_eq!(Guess::of_payload(&segment(0x8005, 7, 6)), None);
        assert_eq!(Guess::of_payload(&segment(0x8005, 7, 8)), None);
        let mut version = segment(0x8005, 0, 0);
        version[0] = 2;
        assert_eq!(Guess::of_payload(&version), None);
    }

    fn mold(name: &[u8; 10], count: u16, messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = name.to_vec();
        bytes.extend(7_u64.to_be_bytes());
        bytes.extend(count.to_be_bytes());
        for message in messages {
            bytes.extend((message.len() as u16).to_be_bytes());
            bytes.extend(message);
        }
        bytes
    }

    #[test]
    fn mold_packets_are_named_by_their_messages() {
        let message = |kind: u8, len: usize| {
            let mut message = vec![b' '; len];
            message[0] = kind;
            message
        };
        for (kind, len) in [(b'T', 5), (b'A', 30), (b'E', 25), (b'D', 13)] {
            let other = message(b'z', 4);
            for (len, guess) in [(len, Guess::Itch41), (len + 1, Guess::MoldUdp64)] {
                let messages = [other.clone(), message(kind, len), other.clone()];
                let bytes = mold(b"SESSION  1", 3, &messages);
                assert_eq!(Guess::of_payload(&bytes), Some(guess), "{kind} of {len}");
            }
        }
        let two = [message(b'z', 4), message(b'z', 9)];
        for (bytes, case) in [
            (
                mold(b"SESSION  1", 0, &two),
                "messages that are not announced",
            ),
            (mold(b"SESSION \t1", 0, &[]), "a heartbeat of no name"),
            (mold(b"SESSION  1", 1, &two), "one too many"),
            (mold(b"SESSION  1", 3, &two), "one too few"),
            (mold(b"SESSION \t1", 2, &two), "no name"),
            ([&mold(b"SESSION  1", 2, &two)[..], b"x"].concat(), "a rest"),
        ] {
            assert_eq!(Guess::of_payload(&bytes), None, "{case}");
        }
    }

    #[test]
    fn mold_packets_without_messages_are_named() {
        for count in [0, u16::MAX] {
            let bytes = mold(b"SESSION  1", count, &[]);
            assert_eq!(Guess::of_payload(&bytes), Some(Guess::MoldBeats));
            assert_eq!(Guess::of_payload(&bytes[..19]), None);
            assert_eq!(Guess::of_payload(&[&bytes[..], b"\0"].concat()), None);
        }
    }

    #[test]
    fn ultra_packets_fit_their_length_and_time() {
        let ultra = |len: u16, kind: u16, ms: u32, again: u8, bodies: u8, link: u8| {
            let mut bytes = [len, kind].map(u16::to_be_bytes).concat();
            bytes.extend([0, 0, 0, 7]);
            bytes.extend(ms.to_be_bytes());
            bytes.extend([12, again, bodies, link]);
            bytes.resize(20, 0);
            Guess::of_payload(&bytes) == Some(Guess::NyseUltra)
        };
        for (len, kind, ms, again, bodies, link, expected) in [
            (18, 230, 1, 1, 1, 0, true),
            (18, 231, 86_399_999, 8, 9, 1, true),
            (18, 2, 1, 1, 0, 0, true),
            (19, 230, 1, 1, 1, 0, false),
            (18, 232, 1, 1, 1, 0, false),
            (18, 230, 86_400_000, 1, 1, 0, false),
            (18, 230, 1, 0, 1, 0, false),
            (18, 230, 1, 9, 1, 0, false),
            (18, 230, 1, 1, 0, 0, false),
            (18, 230, 1, 1, 1, 2, false),
        ] {
            let found = ultra(len, kind, ms, again, bodies, link);
            assert_eq!(found, expected, "{len} {kind} {ms} {again} {bodies} {link}");
        }
    }

    #[test]
    fn mdp3_packets_have_bounded_times_and_sizes() {
        let mdp3 = |sent_at: u64, size: u16, schema: u16| {
            let mut bytes = vec![7, 0, 0, 0];
            bytes.extend(sent_at.to_le_bytes());
            bytes.extend(size.to_le_bytes());
            bytes.extend([11, 0, 46, 0]);
            bytes.extend(schema.to_le_bytes());
            bytes.resize(62, 0);
            Guess::of_payload(&bytes) == Some(Guess::CmeMdp3)
        };
        let now = 1_700_000_000_000_000_000;
        for (sent_at, size, schema, expected) in [
            (999_999_999_999_999_999, 50, 1, false),
            (1_000_000_000_000_000_000, 50, 1, true),
            (4_999_999_999_999_999_999, 50, 1, true),
            (5_000_000_000_000_000_000, 50, 1, false),
            (now, 9, 1, false),
            (now, 10, 1, true),
            (now, 50, 1, true),
            (now, 51, 1, false),
            (now, 50, 0, false),
            (now, 50, 2, false),
        ] {
            assert_eq!(mdp3(sent_at, size, schema), expected, "{sent_at} {size}");
        }
    }

    #[test]
    fn pitch_packets_fit_their_length_and_count() {
        let pitch = |len: u16, count: u8, messages: &[u8]| {
            let mut bytes = len.to_le_bytes().to_vec();
            bytes.extend([count, 1, 7, 0, 0, 0]);
            bytes.extend(messages);
            Guess::of_payload(&bytes) == Some(Guess::CboePitch)
        };
        let two = [2, 0x97, 3, 0x20, 0];
        assert!(pitch(13, 2, &two));
        assert!(pitch(8, 0, &[]), "a heartbeat");
        for (len, count, messages, case) in [
            (12, 2, &two[..], "length"),
            (13, 3, &two, "count"),
            (13, 2, &[2, 0x97, 4, 0x20, 0], "last message"),
            (9, 1, &[1], "a message of one byte"),
        ] {
            assert!(!pitch(len, count, messages), "{case}");
        }
    }

    #[test]
    fn xdp_packets_fit_their_length_and_count() {
        let xdp =
            |order: fn(u16) -> [u8; 2], len: u16, count: u8, messages: &[u16], rest: &[u8]| {
                let mut bytes = order(len).to_vec();
                bytes.extend([11, count]);
                bytes.resize(16, 0xff);
                for len in messages {
                    bytes.extend(order(*len));
                    bytes.resize(bytes.len() + usize::from(*len).saturating_sub(2), 0xff);
                }
                bytes.extend(rest);
                Guess::of_payload(&bytes) == Some(Guess::NyseXdp)
            };
        for order in [u16::to_le_bytes, u16::to_be_bytes] {
            assert!(xdp(order, 25, 2, &[4, 5], &[]));
            assert!(xdp(order, 16, 0, &[], &[]), "a heartbeat");
            assert!(!xdp(order, 24, 2, &[4, 5], &[]), "length");
            assert!(!xdp(order, 25, 1, &[4, 5], &[]), "count");
            assert!(!xdp(order, 26, 2, &[4, 5], b"x"), "a rest");
            assert!(!xdp(order, 19, 1, &[3], &[]), "a short message");
        }
    }

    #[test]
    fn guess_text_names_format_and_remedy() {
        for (guess, name) in [
            (Guess::Xz, "unxz"),
            (Guess::Itch41, "ITCH 4.1"),
            (Guess::NyseXdp, "XDP"),
        ] {
            assert!(guess.to_string().contains(name));
        }
    }
}
