//! Reads pcapng: any number of sections and interfaces, each with its own byte order, link type, time
//! resolution and offset.
//!
//! A block states its length at both ends, so damage is found at once, and reading continues at
//! the next block whose two lengths agree. Longer blocks that hold no packets are skipped without
//! being held. Source: draft-ietf-opsawg-pcapng. The crate `pcap-parser` parses the blocks. This
//! module computes time resolution and offset from the options itself, because the crate refuses
//! resolutions that are powers of two and always reads offsets as little-endian.

use pcap_parser::{
    Block, InterfaceDescriptionBlock, OptionCode, parse_block_be, parse_block_le,
    traits::PcapNGPacketBlock,
};
use tickcast_reliability::types::Nanos;

use super::units::Unit;
use super::{NoLink, RawFrame, Step, begins_file, error::CaptureFault, frame::Link, input::Input};

/// The type of a section header block, the same in both byte orders.
pub(super) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Type, length, length again.
const BLOCK_LEN_MIN: usize = 12;
const TRAILER_LEN: usize = 4;
/// Four times the longest packet that capture tools write.
const BLOCK_LEN_MAX: usize = 1 << 20;
const INTERFACES_MAX: usize = 1 << 12;
const US_PER_SECOND: u128 = 1_000_000;
/// Bytes of a long block that are searched for another.
const SEARCH_LEN: usize = 1 << 16;

/// State of the current section.
#[derive(Debug, Default)]
pub(super) struct PcapNgReader {
    is_big_endian: bool,
    interfaces: Vec<Interface>,
    /// Blocks read so far.
    blocks: u64,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: Result<Link, i32>,
    unit: Unit,
    offset_s: i64,
    snap_len: u32,
}

/// Type and length of a block, and the byte order that they were read in.
#[derive(Clone, Copy)]
struct Header {
    kind: u32,
    len: usize,
    is_big_endian: bool,
}

impl PcapNgReader {
    /// Returns the number of blocks read so far.
    pub(super) const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Reads the next block, or skips to the next sound one.
    pub(super) fn next(&mut self, input: &mut Input) -> Result<Step, CaptureFault> {
        if !input.ensure(BLOCK_LEN_MIN)? {
            return Ok(Step::End);
        }
        let Some(header) = self.header(input.visible(), 0) else {
            return self.skip_damage(input);
        };
        if header.len > BLOCK_LEN_MAX {
            let is_damaged = header.holds_packet()
                || begins_file(input.visible()).is_some()
                || self.hides_block(input)?;
            return if is_damaged {
                self.skip_damage(input)
            } else {
                self.skip_block(header, input)
            };
        }
        if !input.ensure(header.len)? {
            // A wrong length hides sound blocks; the end of a cut file does not.
            let hidden = self.find(input.visible(), 1..input.visible().len());
            return match hidden {
                Some(_) => self.skip_damage(input),
                None => Ok(Step::End),
            };
        }
        if !header.is_closed(input.visible()) {
            return self.skip_damage(input);
        }
        self.is_big_endian = header.is_big_endian;
        self.blocks += 1;
        let bytes = input.visible().get(..header.len).unwrap_or_default();
        let packet = match header.kind {
            OBSOLETE_PACKET => self.obsolete_packet(bytes),
            _ if header.holds_packet() => self.block(bytes),
            _ if header.is_harmless() && !self.reads_as_packet(bytes) => Parsed::Nothing,
            _ => Parsed::Unknown,
        };
        let block = input.take(header.len);
        Ok(match packet {
            Parsed::Nothing => Step::Structure,
            Parsed::Unknown => Step::UnknownBlock(header.kind),
            Parsed::Unreadable => Step::Unreadable,
            Parsed::Packet(packet) => Step::Frame(RawFrame {
                bytes: (block.start + packet.at)..(block.start + packet.at + packet.len),
                ..packet.frame
            }),
        })
    }

    /// Skips a long block without holding it. Without its length at its end it is damage.
    fn skip_block(&mut self, header: Header, input: &mut Input) -> Result<Step, CaptureFault> {
        if !input.skip((header.len - TRAILER_LEN) as u64)? || !input.ensure(TRAILER_LEN)? {
            return Ok(Step::End);
        }
        if !header.is_trailer(input.visible()) {
            return Ok(Step::Skipped);
        }
        input.take(TRAILER_LEN);
        self.blocks += 1;
        Ok(match header.is_known() {
            true => Step::Structure,
            false => Step::UnknownBlock(header.kind),
        })
    }

    /// Returns whether a sound block begins soon within the block: a wrong length hides those that
    /// follow.
    fn hides_block(&self, input: &mut Input) -> Result<bool, CaptureFault> {
        input.ensure(SEARCH_LEN)?;
        let visible = input.visible();
        let near = &visible[..visible.len().min(SEARCH_LEN)];
        Ok(self.find(near, 1..near.len()).is_some())
    }

    /// Takes everything up to the next sound block, the next file or the end.
    fn skip_damage(&self, input: &mut Input) -> Result<Step, CaptureFault> {
        let is_padding = input.skip_damage(BLOCK_LEN_MAX, |b, range, _| self.find(b, range))?;
        Ok(Step::damage(is_padding))
    }

    /// Returns where in `range` a file or a block begins whose two lengths agree.
    fn find(&self, bytes: &[u8], mut range: std::ops::Range<usize>) -> Option<usize> {
        range.find(|&at| {
            let bytes = bytes.get(at..).unwrap_or_default();
            let is_block = |header: Header| header.is_known() && header.is_closed(bytes);
            begins_file(bytes).is_some() || self.header(bytes, 0).is_some_and(is_block)
        })
    }

    /// Returns type and length of the block that starts there, if they make sense. A section
    /// header states its own byte order.
    fn header(&self, bytes: &[u8], at: usize) -> Option<Header> {
        let word = |offset: usize| -> [u8; 4] {
            let field = bytes.get(at + offset..).and_then(<[u8]>::first_chunk);
            field.copied().unwrap_or_default()
        };
        let is_big_endian = match (word(0), word(8)) {
            (MAGIC, [0x1a, 0x2b, 0x3c, 0x4d]) => true,
            (MAGIC, [0x4d, 0x3c, 0x2b, 0x1a]) => false,
            (MAGIC, _) => return None,
            _ => self.is_big_endian,
        };
        let read = if is_big_endian {
            u32::from_be_bytes
        } else {
            u32::from_le_bytes
        };
        let len = read(word(4)) as usize;
        (len >= BLOCK_LEN_MIN && len.is_multiple_of(4)).then_some(Header {
            kind: read(word(0)),
            len,
            is_big_endian,
        })
    }

    fn block(&mut self, bytes: &[u8]) -> Parsed {
        let parse = if self.is_big_endian {
            parse_block_be
        } else {
            parse_block_le
        };
        let Ok((_, block)) = parse(bytes) else {
            return Parsed::Unreadable;
        };
        match block {
            Block::SectionHeader(_) => self.interfaces.clear(),
            Block::InterfaceDescription(description) => {
                if self.interfaces.len() >= INTERFACES_MAX {
                    return Parsed::Unreadable;
                }
                let interface = self.interface(&description);
                self.interfaces.push(interface);
            }
            Block::EnhancedPacket(packet) => {
                let ticks = (u64::from(packet.ts_high) << 32) | u64::from(packet.ts_low);
                return Parsed::Packet(Packet {
                    at: 28,
                    len: packet.packet_data().len(),
                    frame: self.frame(packet.if_id, ticks, packet.caplen < packet.origlen),
                });
            }
            Block::SimplePacket(packet) => {
                // A simple packet block belongs to the first interface and has only a length, no stamp.
                let interface = self.interfaces.first();
                let snap_len = match interface.map_or(0, |i| i.snap_len) {
                    0 => u32::MAX,
                    n => n,
                };
                let there = bytes.len().saturating_sub(16);
                let len = there.min(packet.origlen.min(snap_len) as usize);
                let frame = self.frame(0, 0, len < packet.origlen as usize);
                return Parsed::Packet(Packet {
                    at: 12,
                    len,
                    frame: RawFrame {
                        received_at: Nanos::ZERO,
                        ..frame
                    },
                });
            }
            _ => {}
        }
        Parsed::Nothing
    }

    /// Returns whether a block of another type holds the fields of a packet: a described interface (4), a
    /// stamp (8), captured and original length (4 each), the bytes, and options.
    fn reads_as_packet(&self, bytes: &[u8]) -> bool {
        const AT: usize = 28;
        let word = |at: usize| self.word(bytes, at) as usize;
        let (captured, original) = (word(20), word(24));
        let Some(room) = bytes.len().checked_sub(AT + TRAILER_LEN) else {
            return false;
        };
        let is_length = captured > 0 && captured <= original && captured <= room;
        is_length && word(8) < self.interfaces.len()
    }

    /// Returns a field of 4 bytes; 0 if it is not there.
    fn word(&self, bytes: &[u8], at: usize) -> u32 {
        let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
        let field = field.copied().unwrap_or_default();
        if self.is_big_endian {
            u32::from_be_bytes(field)
        } else {
            u32::from_le_bytes(field)
        }
    }

    /// Reads an obsolete packet block: interface (2), drops (2), stamp (8), captured and original
    /// length.
    fn obsolete_packet(&mut self, bytes: &[u8]) -> Parsed {
        const AT: usize = 28;
        let word = |at: usize| self.word(bytes, at);
        let interface = if self.is_big_endian {
            word(8) >> 16
        } else {
            word(8) & 0xffff
        };
        let ticks = u64::from(word(12)) << 32 | u64::from(word(16));
        let (captured, original) = (word(20) as usize, word(24) as usize);
        let room = bytes.len().checked_sub(AT + TRAILER_LEN);
        if room.is_none_or(|room| captured > room) {
            return Parsed::Unreadable;
        }
        Parsed::Packet(Packet {
            at: AT,
            len: captured,
            frame: self.frame(interface, ticks, captured < original),
        })
    }

    fn frame(&mut self, interface: u32, ticks: u64, is_snapped: bool) -> RawFrame {
        let mut described = self.interfaces.get_mut(interface as usize);
        if let Some(described) = &mut described {
            described.unit.judge(ticks, described.offset_s);
        }
        RawFrame {
            link: match &described {
                None => Err(NoLink::Interface(interface)),
                Some(described) => described.link.map_err(NoLink::Type),
            },
            received_at: described.as_ref().map_or(Nanos::ZERO, |i| i.time(ticks)),
            other_unit: described.and_then(|i| i.unit.finding()),
            excess: None,
            bytes: 0..0,
            is_snapped,
        }
    }

    fn interface(&self, description: &InterfaceDescriptionBlock<'_>) -> Interface {
        let option = |code: OptionCode| {
            let found = description.options.iter().find(|o| o.code == code);
            found.map(|o| o.value())
        };
        let units_per_second = match option(OptionCode::IfTsresol).and_then(<[u8]>::first) {
            None => US_PER_SECOND,
            Some(&power) if power & 0x80 != 0 => 1_u128 << (power & 0x7f).min(100),
            Some(&power) => 10_u128.pow(u32::from(power).min(30)),
        };
        let offset = option(OptionCode::IfTsoffset).and_then(<[u8]>::first_chunk);
        let offset = offset.copied().unwrap_or_default();
        Interface {
            link: Link::from_number(description.linktype).ok_or(description.linktype.0),
            unit: Unit::stated(units_per_second),
            offset_s: if self.is_big_endian {
                i64::from_be_bytes(offset)
            } else {
                i64::from_le_bytes(offset)
            },
            snap_len: description.snaplen,
        }
    }
}

impl Interface {
    /// Converts a stamp in the interface's units to UTC ns. Saturates; a time before 1970 is 0.
    fn time(&self, ticks: u64) -> Nanos {
        const NS: u128 = 1_000_000_000;
        let units = self.unit.per_second();
        let (seconds, rest) = (u128::from(ticks) / units, u128::from(ticks) % units);
        // At most 2^64 ticks: neither product reaches 2^94.
        let ns = seconds * NS + rest * NS / units;
        let ns = i128::try_from(ns).unwrap_or(i128::MAX);
        let ns = ns.saturating_add(i128::from(self.offset_s) * NS as i128);
        Nanos(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
    }
}

impl Header {
    const fn holds_packet(self) -> bool {
        matches!(
            self.kind,
            SECTION_HEADER
                | INTERFACE_DESCRIPTION
                | OBSOLETE_PACKET
                | SIMPLE_PACKET
                | ENHANCED_PACKET
        )
    }

    /// Returns whether the type is registered; others are neither harmless nor searched for.
    const fn is_known(self) -> bool {
        self.holds_packet() || self.is_harmless()
    }

    /// Returns whether blocks of this type hold no packets: names, statistics, IRIG and ARINC stamps,
    /// journal, secrets, Hone, sysdig, custom blocks, processes of macOS.
    const fn is_harmless(self) -> bool {
        matches!(
            self.kind,
            4 | 5 | 7..=10 | 0x101 | 0x102 | 0x201..=0x221 | 0x0bad | 0x4000_0bad | 0x8000_0001
        )
    }

    /// Returns whether the block is there and ends in its length.
    fn is_closed(self, bytes: &[u8]) -> bool {
        let trailer = bytes.get(self.len - TRAILER_LEN..);
        trailer.is_some_and(|trailer| self.is_trailer(trailer))
    }

    /// Returns whether the bytes begin with the block's length.
    fn is_trailer(self, bytes: &[u8]) -> bool {
        let read = if self.is_big_endian {
            u32::from_be_bytes
        } else {
            u32::from_le_bytes
        };
        let trailer = bytes.first_chunk::<TRAILER_LEN>();
        trailer.is_some_and(|trailer| read(*trailer) as usize == self.len)
    }
}

/// A block as far as packets are concerned.
enum Parsed {
    Nothing,
    /// Perhaps a packet under a damaged type.
    Unknown,
    Unreadable,
    Packet(Packet),
}

/// Position of the packet within a packet block.
struct Packet {
    at: usize,
    len: usize,
    frame: RawFrame,
}
