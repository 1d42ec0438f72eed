//! Reads classic pcap: both byte orders, microsecond and nanosecond stamps.
//!
//! Source: the libpcap savefile format (pcap-savefile(5)). The crate `pcap-parser` parses the
//! headers.

use pcap_parser::{LegacyPcapBlock, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};
use tickcast_reliability::types::Nanos;

use super::{RawFrame, error::CaptureFault, frame::Link, input::Input};

const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;
/// The longest packet that libpcap itself writes.
const PACKET_LEN_MAX: usize = 262_144;

/// The four magic numbers: micro- and nanoseconds, little- and big-endian.
pub(super) const MAGICS: [[u8; 4]; 4] = [
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0x4d, 0x3c, 0xb2, 0xa1],
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xa1, 0xb2, 0x3c, 0x4d],
];

/// Facts from the file header.
#[derive(Debug)]
pub(super) struct PcapReader {
    link: Link,
    is_big_endian: bool,
    fraction_ns: u64,
}

impl PcapReader {
    /// Reads the file header; `None` if the file ends within it.
    pub(super) fn open(input: &mut Input) -> Result<Option<Self>, CaptureFault> {
        if !input.ensure(FILE_HEADER_LEN)? {
            return Ok(None);
        }
        let (_, header) = parse_pcap_header(input.visible())
            .map_err(|_| CaptureFault::Damaged("the pcap file header cannot be read"))?;
        let link =
            Link::from_number(header.network).ok_or(CaptureFault::UnknownLink(header.network.0))?;
        input.take(FILE_HEADER_LEN);
        Ok(Some(Self {
            link,
            is_big_endian: header.is_bigendian(),
            fraction_ns: if header.is_nanosecond_precision() {
                1
            } else {
                1_000
            },
        }))
    }

    /// Returns the next frame, or `None` where the file ends, also within a record.
    pub(super) fn next(&mut self, input: &mut Input) -> Result<Option<RawFrame>, CaptureFault> {
        if !input.ensure(RECORD_HEADER_LEN)? {
            return Ok(None);
        }
        let captured_len = self.captured_len(input.visible());
        if captured_len > PACKET_LEN_MAX {
            return Err(CaptureFault::TooLong {
                what: "packet record",
                len: captured_len as u64,
                max: PACKET_LEN_MAX as u64,
            });
        }
        if !input.ensure(RECORD_HEADER_LEN + captured_len)? {
            return Ok(None);
        }
        let record = self.parse(input.visible())?;
        let received_at = Nanos::from_secs(u64::from(record.ts_sec))
            .after(Nanos(u64::from(record.ts_usec) * self.fraction_ns));
        let is_snapped = record.caplen < record.origlen;
        input.take(RECORD_HEADER_LEN);
        Ok(Some(RawFrame {
            link: Some(self.link),
            received_at,
            bytes: input.take(captured_len),
            is_snapped,
        }))
    }

    fn parse<'a>(&self, bytes: &'a [u8]) -> Result<LegacyPcapBlock<'a>, CaptureFault> {
        let parse = if self.is_big_endian {
            parse_pcap_frame_be
        } else {
            parse_pcap_frame
        };
        match parse(bytes) {
            Ok((_, record)) => Ok(record),
            Err(_) => Err(CaptureFault::Damaged("the packet record cannot be read")),
        }
    }

    /// Returns the length before the record is read, so that a hostile length costs no memory.
    fn captured_len(&self, header: &[u8]) -> usize {
        let field = header.get(8..12).and_then(<[u8]>::first_chunk::<4>);
        let field = field.copied().unwrap_or_default();
        let len = if self.is_big_endian {
            u32::from_be_bytes(field)
        } else {
            u32::from_le_bytes(field)
        };
        len as usize
    }
}
