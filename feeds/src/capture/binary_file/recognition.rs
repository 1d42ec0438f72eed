//! Recognises a file of ITCH 5.0 messages, of which the first may be wrong.

use std::io;

use super::framing::{Framing, PREFIX_LEN, SOUND_LEN};
use crate::capture::guess::{self, Guess};
use crate::capture::{input::Input, pcap, pcapng};

/// Bytes in which a row of sound messages begins behind a wrong one.
const WRONG_MAX: usize = PREFIX_LEN + 128;
/// Bytes that decide about such a row.
const ROW_LEN: usize = WRONG_MAX + Framing::ROW_MIN * 128;

/// Returns the framing of a file of messages. Its first unit decides if a sound one follows, otherwise a
/// row of sound messages, unless the file begins like one of another format.
pub(in crate::capture) fn recognise(input: &mut Input) -> io::Result<Option<Framing>> {
    input.ensure(SOUND_LEN)?;
    let first = Framing::of(input.visible());
    if first == Some(Framing::SoupBinTcp) && guess::is_soup_of_41(input.visible()) {
        return Ok(None);
    }
    if is_of_another_format(input.visible()) {
        return Ok(first);
    }
    if let Some(framing) = first
        && is_confirmed(framing, input)?
    {
        return Ok(first);
    }
    let is_end = !input.ensure(ROW_LEN)?;
    let visible = input.visible();
    if is_end && *visible == [0; PREFIX_LEN] {
        return Ok(Some(Framing::Lengths));
    }
    // A message in SoupBinTCP may look like a longer one behind its length, so that framing comes first.
    let framings = [Framing::SoupBinTcp, Framing::Lengths, Framing::Types];
    let mut framings = framings.into_iter();
    let of_row = framings.find(|framing| {
        (1..WRONG_MAX).any(|at| framing.is_row(visible.get(at..).unwrap_or_default(), is_end))
    });
    // Text may be arbitrary bytes.
    let is_text = visible.get(PREFIX_LEN) == Some(&b'+');
    Ok(of_row.or(first.filter(|_| !is_text)))
}

/// Returns whether a sound unit follows the first unit, and no SoupBinTCP packet does.
fn is_confirmed(framing: Framing, input: &mut Input) -> io::Result<bool> {
    let Some(unit) = framing.unit(input.visible(), 0) else {
        return Ok(false);
    };
    let end = unit.len();
    input.ensure(end + SOUND_LEN)?;
    let visible = input.visible();
    let is_soup = framing != Framing::SoupBinTcp && Framing::SoupBinTcp.is_sound(visible, end);
    Ok(framing.is_sound(visible, end) && !is_soup)
}

/// Returns whether the bytes have a magic number, or the version or byte order that follows it in a capture.
fn is_of_another_format(head: &[u8]) -> bool {
    let is_magic = |magic: &[u8; 4]| *magic == pcapng::MAGIC || pcap::MAGICS.contains(magic);
    head.first_chunk().is_some_and(is_magic)
        || matches!(head.get(4..8), Some([2, 0, 4, 0] | [0, 2, 0, 4]))
        || matches!(
            head.get(8..12),
            Some([0x1a, 0x2b, 0x3c, 0x4d] | [0x4d, 0x3c, 0x2b, 0x1a])
        )
        || Guess::of_file(head).is_some_and(|guess| guess != Guess::Itch41)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A system event. Its code is no type, so that shifted bytes are no message.
    const EVENT: &[u8] = b"\x00\x0cS\0\0\0\0\0\0\0\0\0\0M";

    fn framing_of(bytes: &[u8]) -> Option<Framing> {
        let mut input = Input::new(Cursor::new(bytes.to_vec())).unwrap();
        recognise(&mut input).unwrap()
    }

    fn sequenced() -> Vec<u8> {
        [b"\x00\x0dS", &EVENT[2..]].concat()
    }

    fn without_length() -> Vec<u8> {
        [&[0, 0], &EVENT[2..]].concat()
    }

    #[test]
    fn first_message_decides_if_a_sound_one_or_the_end_follows() {
        for (unit, framing) in [
            (EVENT.to_vec(), Framing::Lengths),
            (sequenced(), Framing::SoupBinTcp),
            (without_length(), Framing::Types),
        ] {
            for count in [1, 2, 99] {
                assert_eq!(framing_of(&unit.repeat(count)), Some(framing), "{count}");
            }
            assert_eq!(framing_of(&unit[..5]), Some(framing), "cut off");
        }
    }

    #[test]
    fn row_of_messages_decides_behind_a_wrong_one() {
        let long = [b"\0\x32F", &[0; 49][..]].concat();
        for (unit, framing) in [
            (EVENT.to_vec(), Framing::Lengths),
            (long, Framing::Lengths),
            (sequenced(), Framing::SoupBinTcp),
            (without_length(), Framing::Types),
        ] {
            for rest in [4, 63, 64, 999] {
                let whole = unit.repeat(rest + 1);
                for at in 0..4 {
                    for byte in 0..=255 {
                        let mut bytes = whole.clone();
                        bytes[at] = byte;
                        let found = framing_of(&bytes);
                        assert_eq!(found, Some(framing), "{at} {byte} {rest} {unit:02x?}");
                    }
                }
            }
        }
    }

    #[test]
    fn heartbeats_and_login_belong_to_a_row() {
        let login = [&b"\0\x1fASESSION001"[..], &[b' '; 19], b"1"].concat();
        let beaten = [&sequenced()[..], b"\0\x01H"].concat();
        let row = [b"\0\x01?", &login[..], &beaten.repeat(4), b"\0\x01Z"].concat();
        assert_eq!(framing_of(&row), Some(Framing::SoupBinTcp));
        let login_only = [b"\0\x01?", &login[..], &b"\0\x01H".repeat(9)].concat();
        assert_eq!(framing_of(&login_only), None);
    }

    #[test]
    fn few_messages_behind_other_bytes_are_no_file_of_messages() {
        let row = |other: &[u8], messages, end: &[u8]| {
            framing_of(&[other, &EVENT.repeat(messages), end].concat()).is_some()
        };
        let other = b"other bytes";
        for end in [&b""[..], &[0; 2], &[0; 99], &EVENT[..6], b"\0\x0c", b"S"] {
            assert!(!row(other, 2, end), "{end:?}");
            assert!(row(other, 4, end), "{end:?}");
        }
        assert!(!row(other, 3, b""));
        assert!(!row(other, 63, b"no message"));
        // A packet of messages within a file of another format.
        assert!(!row(other, 63, &[0xff; 9_000]));
        assert!(!row(other, 63, &[0; 9_000]), "zeros do not end the file");
        assert!(row(other, 64, &[0xff; 9_000]));
        assert!(row(&[b'x'; WRONG_MAX - 1], 99, b""));
        assert!(!row(&[b'x'; WRONG_MAX], 99, b""));
    }

    #[test]
    fn row_behind_the_head_of_another_format_is_no_file_of_messages() {
        let mut heads = vec![
            [&[0xff; 4][..], &[2, 0, 4, 0]].concat(),
            [&[0xff; 4][..], &[0, 2, 0, 4]].concat(),
            [&[0xff; 8][..], &[0x1a, 0x2b, 0x3c, 0x4d]].concat(),
            [&[0xff; 8][..], &[0x4d, 0x3c, 0x2b, 0x1a]].concat(),
            pcapng::MAGIC.to_vec(),
            b"snoop\0\0\0".to_vec(),
            b"DBN".to_vec(),
        ];
        heads.extend(pcap::MAGICS.map(|magic| magic.to_vec()));
        for head in heads {
            let bytes = [&head[..], &EVENT.repeat(99)].concat();
            assert_eq!(framing_of(&bytes), None, "{head:02x?}");
            assert_eq!(framing_of(&head), None, "{head:02x?}");
        }
    }

    #[test]
    fn random_bytes_are_no_file_of_messages() {
        let mut seed = 1_u64;
        for _ in 0..1_000 {
            let random = (0..999).map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 33) as u8
            });
            let bytes: Vec<u8> = std::iter::once(0xff).chain(random).collect();
            assert_eq!(framing_of(&bytes), None, "{bytes:02x?}");
        }
    }

    #[test]
    fn end_mark_alone_is_a_file_of_messages() {
        assert_eq!(framing_of(&[0, 0]), Some(Framing::Lengths));
        for other in [&[][..], &[0], &[0, 0, 0], &[0; 99], &[0, 1]] {
            assert_eq!(framing_of(other), None, "{other:?}");
        }
    }
}
