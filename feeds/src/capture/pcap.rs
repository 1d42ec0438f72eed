//! Reads classic pcap: both byte orders, microsecond and nanosecond stamps.
//!
//! A record is believed only if a sound record, another file or the end follows, because nothing
//! else protects its length. Behind damage, reading continues at the next two sound records in a
//! row. Source: the libpcap savefile format (pcap-savefile(5)).

use pcap_parser::parse_pcap_header;
use tickcast_reliability::types::Nanos;

use super::{RawFrame, Step, begins_file, error::CaptureFault, frame::Link, input::Input};

pub(super) const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;
/// The longest packet that libpcap itself writes.
const PACKET_LEN_MAX: usize = 262_144;
/// A record and the header of the next one.
const LOOK_AHEAD: usize = 2 * RECORD_HEADER_LEN + PACKET_LEN_MAX;
/// Stamps of neighbouring records differ by no more, when a record is searched for.
const NEIGHBOURS_S: u32 = 86_400;
const NS_PER_US: u64 = 1_000;

/// The four magic numbers: micro- and nanoseconds, little- and big-endian.
pub(super) const MAGICS: [[u8; 4]; 4] = [
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0x4d, 0x3c, 0xb2, 0xa1],
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xa1, 0xb2, 0x3c, 0x4d],
];

/// State of the current file.
#[derive(Debug)]
pub(super) struct PcapReader {
    link: Result<Link, i32>,
    is_big_endian: bool,
    fraction_ns: u64,
    /// Whether the stamps are finer than the file's header says.
    is_finer: bool,
    /// Seconds of the last record.
    last_s: Option<u32>,
}

/// Header of a record.
#[derive(Clone, Copy, Debug)]
struct Header {
    seconds: u32,
    fraction: u32,
    captured: usize,
    original: usize,
}

/// Judgement of the record at the start of the window.
enum Judged {
    Sound(Header),
    Cut,
    Damaged,
}

impl PcapReader {
    /// Reads the file header; `None` if the file ends within it.
    pub(super) fn open(input: &mut Input) -> Result<Option<Self>, CaptureFault> {
        if !input.ensure(FILE_HEADER_LEN)? {
            return Ok(None);
        }
        let (_, header) = parse_pcap_header(input.visible())
            .map_err(|_| CaptureFault::Damaged("the pcap file header cannot be read"))?;
        let mut reader = Self {
            link: Link::from_number(header.network).ok_or(header.network.0),
            is_big_endian: header.is_bigendian(),
            fraction_ns: match header.is_nanosecond_precision() {
                true => 1,
                false => NS_PER_US,
            },
            is_finer: false,
            last_s: None,
        };
        input.ensure(FILE_HEADER_LEN + RECORD_HEADER_LEN)?;
        input.take(FILE_HEADER_LEN);
        reader.is_finer =
            reader.fraction_ns == NS_PER_US && reader.holds_nanoseconds(input.visible());
        if reader.is_finer {
            reader.fraction_ns = 1;
        }
        Ok(Some(reader))
    }

    /// Returns the link type, or its number if it is not supported.
    pub(super) const fn link(&self) -> Result<Link, i32> {
        self.link
    }

    /// Returns whether the stamps are nanoseconds although the file says microseconds.
    pub(super) const fn is_finer(&self) -> bool {
        self.is_finer
    }

    /// Reads the next record, or skips to the next sound one.
    pub(super) fn next(&mut self, input: &mut Input) -> Result<Step, CaptureFault> {
        if !input.ensure(RECORD_HEADER_LEN)? {
            return Ok(Step::End);
        }
        let header = match self.judge(input)? {
            Judged::Sound(header) => header,
            Judged::Cut => return Ok(Step::End),
            Judged::Damaged => return self.skip_damage(input),
        };
        self.last_s = Some(header.seconds);
        let fraction = u64::from(header.fraction) * self.fraction_ns;
        input.take(RECORD_HEADER_LEN);
        Ok(Step::Frame(RawFrame {
            link: self.link.map_err(super::NoLink::Type),
            received_at: Nanos::from_secs(u64::from(header.seconds)).after(Nanos(fraction)),
            excess: (fraction >= 1_000_000_000).then_some(fraction),
            bytes: input.take(header.captured),
            is_snapped: header.captured < header.original,
        }))
    }

    fn judge(&self, input: &mut Input) -> Result<Judged, CaptureFault> {
        let Some(header) = self.header(input.visible(), 0) else {
            return Ok(Judged::Cut);
        };
        if !header.is_possible() {
            return Ok(Judged::Damaged);
        }
        let end = RECORD_HEADER_LEN + header.captured;
        let near = Self {
            last_s: self.last_s.or(Some(header.seconds)),
            ..*self
        };
        let is_followed = if input.ensure(end + RECORD_HEADER_LEN)? {
            let visible = input.visible();
            near.is_sound(visible, end) || self.with_last(header.seconds).is_sound(visible, end)
        } else {
            input.visible().len() == end
        };
        if is_followed {
            return Ok(Judged::Sound(header));
        }
        // A wrong length hides sound records within the record; a right one does not.
        let is_whole = input.ensure(end + LOOK_AHEAD)?;
        let visible = input.visible();
        let hidden = near.find(
            visible,
            RECORD_HEADER_LEN..end.min(visible.len()),
            !is_whole,
        );
        Ok(match hidden {
            Some(_) => Judged::Damaged,
            None if visible.len() < end => Judged::Cut,
            None => Judged::Sound(header),
        })
    }

    /// Takes everything up to the next two sound records, the next file or the end.
    fn skip_damage(&self, input: &mut Input) -> Result<Step, CaptureFault> {
        let is_padding = input.skip_damage(LOOK_AHEAD, |b, range, end| self.find(b, range, end))?;
        Ok(Step::damage(is_padding))
    }

    /// Returns where in `range` a file begins, or a sound record that something sound follows.
    fn find(&self, bytes: &[u8], mut range: std::ops::Range<usize>, is_end: bool) -> Option<usize> {
        range.find(|&at| {
            if begins_file(bytes.get(at..).unwrap_or_default()).is_some() {
                return true;
            }
            let Some(header) = self.header(bytes, at).filter(|h| self.is_near(h)) else {
                return false;
            };
            let end = at + RECORD_HEADER_LEN + header.captured;
            self.with_last(header.seconds).is_sound(bytes, end) || (is_end && end == bytes.len())
        })
    }

    /// Returns whether a record near the last one, or another file, begins there.
    fn is_sound(&self, bytes: &[u8], at: usize) -> bool {
        self.header(bytes, at)
            .is_some_and(|header| self.is_near(&header))
            || begins_file(bytes.get(at..).unwrap_or_default()).is_some()
    }

    /// Returns whether a header is consistent, and near the last record in time.
    fn is_near(&self, header: &Header) -> bool {
        let is_near =
            (self.last_s).is_none_or(|last| last.abs_diff(header.seconds) <= NEIGHBOURS_S);
        header.is_possible()
            && header.captured > 0
            && header.captured <= header.original
            && header.original <= PACKET_LEN_MAX
            && header.fraction < 1_000_000_000
            && is_near
    }

    const fn with_last(&self, seconds: u32) -> Self {
        Self {
            last_s: Some(seconds),
            ..*self
        }
    }

    /// Returns whether most of the visible stamps have a fraction beyond a million.
    fn holds_nanoseconds(&self, bytes: &[u8]) -> bool {
        let (mut at, mut records, mut beyond) = (0, 0_u32, 0_u32);
        while let Some(header) = self.header(bytes, at).filter(|h| self.is_near(h)) {
            records += 1;
            beyond += u32::from(header.fraction >= 1_000_000);
            at += RECORD_HEADER_LEN + header.captured;
        }
        beyond > 1 && beyond * 2 > records
    }

    fn header(&self, bytes: &[u8], at: usize) -> Option<Header> {
        let bytes: &[u8; RECORD_HEADER_LEN] = bytes.get(at..)?.first_chunk()?;
        let word = |at: usize| {
            let field = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            if self.is_big_endian {
                u32::from_be_bytes(field)
            } else {
                u32::from_le_bytes(field)
            }
        };
        Some(Header {
            seconds: word(0),
            fraction: word(4),
            captured: word(8) as usize,
            original: word(12) as usize,
        })
    }
}

impl Header {
    /// Returns whether the lengths make sense; a header of zeros is padding.
    const fn is_possible(&self) -> bool {
        let is_zero = self.seconds == 0 && self.captured == 0 && self.original == 0;
        self.captured <= PACKET_LEN_MAX && !is_zero
    }
}
