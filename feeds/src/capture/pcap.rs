//! Reads classic pcap: both byte orders, microsecond and nanosecond stamps.
//!
//! A record is believed only if a sound record, another file or the end follows, because nothing
//! else protects its length. Behind damage, reading continues at the next [`CHAIN`] sound records in
//! a row, which are searched for from just behind the damaged header on. Only a record that another
//! one confirms sets the time to which later ones are compared. Source: the libpcap savefile format
//! (pcap-savefile(5)).

use pcap_parser::parse_pcap_header;
use tickcast_reliability::types::Nanos;

use super::units::{Fractions, Unit};
use super::{RawFrame, Step, begins_file, error::CaptureFault, frame::Link, input::Input};

pub(super) const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;
/// The longest packet that libpcap itself writes.
const PACKET_LEN_MAX: usize = 262_144;
/// Consistent headers in a row that make a record certain, the first one near the last record in
/// time.
const CHAIN: u32 = 3;
/// The same if one of them is at another time: a capture may be paused for days.
const CHAIN_ELSEWHEN: u32 = 6;
/// The weight, in headers, of a chain that ends where the input ends, or where another file begins.
const END_WEIGHT: u32 = 4;
/// The longest chain.
const LOOK_AHEAD: usize = CHAIN_ELSEWHEN as usize * (RECORD_HEADER_LEN + PACKET_LEN_MAX);
/// Bytes behind a doubtful record that are searched for the record after the next.
const NEXT_LEN: usize = 1 << 14;
/// Stamps of neighbouring records differ by no more, when a record is searched for.
const NEIGHBOURS_S: u32 = 86_400;
const NS_PER_S: u64 = 1_000_000_000;
const US_PER_S: u64 = 1_000_000;
/// Bytes that are read ahead at most where the first stamps may have another unit than the file states.
const UNIT_LEN_MAX: usize = 1 << 24;

/// The four magic numbers: micro- and nanoseconds, little- and big-endian.
pub(super) const MAGICS: [[u8; 4]; 4] = [
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0x4d, 0x3c, 0xb2, 0xa1],
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xa1, 0xb2, 0x3c, 0x4d],
];

/// State of the current file.
#[derive(Clone, Copy, Debug)]
pub(super) struct PcapReader {
    link: Result<Link, i32>,
    is_big_endian: bool,
    /// Unit of the fractions.
    unit: Unit,
    /// Seconds of the last record that another one confirms.
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
        let stated = match header.is_nanosecond_precision() {
            true => NS_PER_S,
            false => US_PER_S,
        };
        let mut reader = Self {
            link: Link::from_number(header.network).ok_or(header.network.0),
            is_big_endian: header.is_bigendian(),
            unit: Unit::stated(stated.into()),
            last_s: None,
        };
        input.ensure(FILE_HEADER_LEN + RECORD_HEADER_LEN)?;
        input.take(FILE_HEADER_LEN);
        if let Some(shown) = reader.unit_shown(input, stated)? {
            reader.unit.show(shown);
        }
        Ok(Some(reader))
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
        if self.confirms_time(&header, input.visible()) {
            self.last_s = Some(header.seconds);
        }
        let fraction = u64::from(header.fraction) * (NS_PER_S / self.unit.per_second() as u64);
        input.take(RECORD_HEADER_LEN);
        Ok(Step::Frame(RawFrame {
            link: self.link.map_err(super::NoLink::Type),
            received_at: Nanos::from_secs(u64::from(header.seconds)).after(Nanos(fraction)),
            other_unit: self.unit.finding(),
            excess: (fraction >= NS_PER_S).then_some(fraction),
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
        let is_last = !input.ensure(end + RECORD_HEADER_LEN)? && input.visible().len() == end;
        if is_last && header.captured > 0 {
            return Ok(Judged::Sound(header));
        }
        let is_near = self.is_near(&header);
        let of_header = self.with_last(header.seconds);
        let is_followed =
            self.is_sound(input.visible(), end) || of_header.is_sound(input.visible(), end);
        if is_near && is_followed {
            return Ok(Judged::Sound(header));
        }
        // A wrong length hides sound records within the record, or ends before the true end of the
        // packet. A right one is followed by sound records, or by one damaged record.
        let is_whole = !input.ensure(end + NEXT_LEN + LOOK_AHEAD)?;
        let visible = input.visible();
        let search = RECORD_HEADER_LEN..(end + NEXT_LEN).min(visible.len());
        let found = self.find(visible, search, is_whole);
        let unsnapped = RECORD_HEADER_LEN + header.original;
        let is_short = header.captured < header.original
            && (found == Some(unsnapped) || (is_whole && visible.len() == unsnapped));
        if found.is_some_and(|at| at < end) || is_short {
            return Ok(Judged::Damaged);
        }
        if visible.len() < end {
            return Ok(Judged::Cut);
        }
        let is_of_same_time = match found.and_then(|at| self.header(visible, at)) {
            Some(later) => found == Some(end) || of_header.is_near(&later),
            None => true,
        };
        let is_credible = is_near || (header.is_consistent() && is_of_same_time);
        Ok(match is_credible || found == Some(end) {
            true => Judged::Sound(header),
            false => Judged::Damaged,
        })
    }

    /// Returns whether the time of a sound record serves to judge later ones.
    fn confirms_time(&self, header: &Header, bytes: &[u8]) -> bool {
        let is_followed = || {
            let next = self.header(bytes, RECORD_HEADER_LEN + header.captured);
            next.is_some_and(|next| self.with_last(header.seconds).is_near(&next))
        };
        (self.last_s.is_some() && self.is_near(header)) || is_followed()
    }

    /// Takes everything up to the next chain of sound records, the next file or the end.
    fn skip_damage(&self, input: &mut Input) -> Result<Step, CaptureFault> {
        let is_padding = input.skip_damage(LOOK_AHEAD, |b, range, end| self.find(b, range, end))?;
        Ok(Step::damage(is_padding))
    }

    /// Returns where in `range` a file begins, or a chain of sound records.
    fn find(&self, bytes: &[u8], mut range: std::ops::Range<usize>, is_end: bool) -> Option<usize> {
        range.find(|&at| self.begins_chain(bytes, at, is_end))
    }

    /// Returns whether consistent records follow one another from there on, each near the one before
    /// in time, but for one pause: so many that no other bytes are likely to look like them.
    fn begins_chain(&self, bytes: &[u8], mut at: usize, is_end: bool) -> bool {
        let (mut reader, mut found) = (*self, 0);
        let mut wanted = CHAIN;
        while found < wanted {
            if begins_file(bytes.get(at..).unwrap_or_default()).is_some() {
                return found + END_WEIGHT >= wanted;
            }
            if is_end && at == bytes.len() {
                return found > 0 && found + END_WEIGHT >= wanted;
            }
            let Some(header) = self.header(bytes, at) else {
                // The input may be cut within the last record.
                return is_end && found > 0 && found + 1 >= wanted;
            };
            if reader.last_s.is_none() || !reader.is_near(&header) {
                if wanted == CHAIN_ELSEWHEN || !header.is_consistent() {
                    return false;
                }
                wanted = CHAIN_ELSEWHEN;
            }
            reader.last_s = Some(header.seconds);
            at += RECORD_HEADER_LEN + header.captured;
            found += 1;
        }
        true
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
        header.is_consistent() && is_near
    }

    const fn with_last(&self, seconds: u32) -> Self {
        Self {
            last_s: Some(seconds),
            ..*self
        }
    }

    /// Returns another unit of the fractions than the one stated, if the first stamps show it. Reads ahead
    /// only while nearly all fractions are as small as in a coarser unit.
    fn unit_shown(&self, input: &mut Input, stated: u64) -> Result<Option<u64>, CaptureFault> {
        let (mut at, mut fractions) = (0, Fractions::default());
        loop {
            let header = self.header(input.visible(), at).filter(|h| self.is_near(h));
            if let Some(header) = header {
                fractions.add(header.seconds, header.fraction);
                at += RECORD_HEADER_LEN + header.captured;
            }
            let has_header = input.visible().len() >= at + RECORD_HEADER_LEN;
            let is_damaged = header.is_none() && has_header;
            if is_damaged || (!has_header && !fractions.is_open(stated)) {
                break;
            }
            if !has_header && (at > UNIT_LEN_MAX || !input.ensure(at + RECORD_HEADER_LEN)?) {
                break;
            }
        }
        Ok(fractions.unit(stated))
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

    /// Returns whether the header is one that a capture tool writes for a packet.
    const fn is_consistent(&self) -> bool {
        self.captured > 0
            && self.captured <= self.original
            && self.original <= PACKET_LEN_MAX
            && self.fraction < 1_000_000_000
    }
}
