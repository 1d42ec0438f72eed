//! Guesses: formats that are recognised by sight but not read, each with a remedy.

use std::fmt;

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
    Snoop,
    Erf,
    Dbn,
    Itch41,
    MoldUdp64,
    SoupBinTcp,
    DeepPlus,
    IexTp,
    CmeMdp3,
    CboePitch,
    NyseXdp,
}

impl Guess {
    /// Guesses the format of a file from its first bytes.
    #[must_use]
    pub fn of_file(head: &[u8]) -> Option<Self> {
        const MAGICS: [(&[u8], Guess); 7] = [
            (b"\xfd7zXZ\0", Guess::Xz),
            (b"BZh", Guess::Bzip2),
            (b"\x04\x22\x4d\x18", Guess::Lz4),
            (b"PK\x03\x04", Guess::Zip),
            (b"7z\xbc\xaf\x27\x1c", Guess::SevenZip),
            (b"snoop\0\0\0", Guess::Snoop),
            (b"DBN", Guess::Dbn),
        ];
        let magic = MAGICS.iter().find(|(magic, _)| head.starts_with(magic));
        magic
            .map(|(_, guess)| *guess)
            .or_else(|| is_erf(head).then_some(Self::Erf))
    }

    /// Guesses the protocol of a UDP payload that no decoder recognises.
    #[must_use]
    pub fn of_payload(payload: &[u8]) -> Option<Self> {
        iex_tp(payload)
            .or_else(|| mold(payload))
            .or_else(|| is_mdp3(payload).then_some(Self::CmeMdp3))
            .or_else(|| is_pitch(payload).then_some(Self::CboePitch))
            .or_else(|| is_xdp(payload).then_some(Self::NyseXdp))
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
            Self::Snoop => "looks like a snoop capture: convert it with editcap -F pcap",
            Self::Erf => "looks like an ERF capture: convert it with editcap -F nsecpcap",
            Self::Dbn => "looks like DBN records: it holds no packets of a venue",
            Self::Itch41 => "looks like ITCH 4.1 in MoldUDP64: only ITCH 5.0 is decoded",
            Self::MoldUdp64 => {
                "looks like MoldUDP64 with messages that are not ITCH 5.0: no decoder knows them"
            }
            Self::SoupBinTcp => "looks like SoupBinTCP: record it as a file of its own",
            Self::DeepPlus => {
                "looks like IEX DEEP+ (protocol 0x8005): only TOPS and DEEP are decoded"
            }
            Self::IexTp => "looks like IEX-TP of a protocol that is not TOPS or DEEP",
            Self::CmeMdp3 => "looks like CME MDP 3.0 (SBE): no decoder knows it",
            Self::CboePitch => "looks like Cboe PITCH: no decoder knows it",
            Self::NyseXdp => "looks like NYSE XDP or Pillar: no decoder knows it",
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
/// order is 30 bytes long.
fn mold(payload: &[u8]) -> Option<Guess> {
    let count = u16_be(payload, 18)?;
    let mut blocks = payload.get(20..)?;
    let mut is_41 = false;
    let mut seen = 0_u16;
    while let Some((len, rest)) = blocks.split_first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes(*len));
        let (message, rest) = rest.split_at_checked(len)?;
        is_41 |= matches!(
            (message.first(), len),
            (Some(b'T'), 5) | (Some(b'A'), 30) | (Some(b'E'), 25) | (Some(b'D'), 13)
        );
        seen = seen.checked_add(1)?;
        blocks = rest;
    }
    let name = payload.get(..10)?;
    let is_named = name.iter().all(|c| c.is_ascii_graphic() || *c == b' ');
    if seen == 0 || seen != count || !blocks.is_empty() || !is_named {
        return None;
    }
    Some(if is_41 {
        Guess::Itch41
    } else {
        Guess::MoldUdp64
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_formats_are_named_by_first_bytes() {
        for (head, guess) in [
            (&b"\xfd7zXZ\0rest"[..], Guess::Xz),
            (b"BZh91AY", Guess::Bzip2),
            (b"\x04\x22\x4d\x18zzz", Guess::Lz4),
            (b"PK\x03\x04zzz", Guess::Zip),
            (b"snoop\0\0\0\0\0\0\x02", Guess::Snoop),
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
    fn short_and_random_payloads_give_no_guess() {
        for len in 0..64 {
            assert_eq!(Guess::of_payload(&vec![0; len]), None, "{len}");
            assert_eq!(Guess::of_payload(&vec![0xff; len]), None, "{len}");
        }
    }
}
