//! Reads pcapng: any number of sections and interfaces, each with its own byte order, link type, time
//! resolution and offset.
//!
//! Only packet and interface blocks are held in memory; other blocks are skipped at any length.
//! Source: draft-ietf-opsawg-pcapng. The crate `pcap-parser` parses the blocks. This module computes
//! time resolution and offset from the options itself, because the crate refuses resolutions that
//! are powers of two and always reads offsets as little-endian.

use pcap_parser::{
    Block, InterfaceDescriptionBlock, OptionCode, parse_block_be, parse_block_le,
    traits::PcapNGPacketBlock,
};
use tickcast_reliability::types::Nanos;

use super::{RawFrame, error::CaptureFault, frame::Link, input::Input};

/// The type of a section header block, the same in both byte orders.
pub(super) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Type, length, length again.
const BLOCK_LEN_MIN: usize = 12;
/// Four times the longest packet that capture tools write.
const BLOCK_LEN_MAX: usize = 1 << 20;
const INTERFACES_MAX: usize = 1 << 12;

/// State of the current section.
#[derive(Debug, Default)]
pub(super) struct PcapNgReader {
    is_big_endian: bool,
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: Option<Link>,
    units_per_second: u128,
    offset_s: i64,
    snap_len: u32,
}

impl PcapNgReader {
    /// Returns the next frame, or `None` where the file ends, also within a block.
    pub(super) fn next(&mut self, input: &mut Input) -> Result<Option<RawFrame>, CaptureFault> {
        loop {
            if !input.ensure(BLOCK_LEN_MIN)? {
                return Ok(None);
            }
            let (kind, len) = self.block_header(input.visible())?;
            if len < BLOCK_LEN_MIN || !len.is_multiple_of(4) {
                return Err(CaptureFault::Damaged("the block's length makes no sense"));
            }
            match kind {
                SECTION_HEADER | INTERFACE_DESCRIPTION | SIMPLE_PACKET | ENHANCED_PACKET => {}
                OBSOLETE_PACKET => {
                    if !input.skip(len as u64)? {
                        return Ok(None);
                    }
                    let bytes = input.take(0);
                    return Ok(Some(RawFrame::unreadable(bytes)));
                }
                _ => {
                    if !input.skip(len as u64)? {
                        return Ok(None);
                    }
                    continue;
                }
            }
            if len > BLOCK_LEN_MAX {
                return Err(CaptureFault::TooLong {
                    what: "block",
                    len: len as u64,
                    max: BLOCK_LEN_MAX as u64,
                });
            }
            if !input.ensure(len)? {
                return Ok(None);
            }
            let packet = self.block(input.visible().get(..len).unwrap_or_default())?;
            let block = input.take(len);
            if let Some(packet) = packet {
                return Ok(Some(RawFrame {
                    bytes: (block.start + packet.at)..(block.start + packet.at + packet.len),
                    ..packet.frame
                }));
            }
        }
    }

    /// Returns type and length of the block that starts here. A section header also sets the byte order.
    fn block_header(&mut self, bytes: &[u8]) -> Result<(u32, usize), CaptureFault> {
        let word = |at: usize| -> [u8; 4] {
            let field = bytes.get(at..).and_then(<[u8]>::first_chunk);
            field.copied().unwrap_or_default()
        };
        if word(0) == MAGIC {
            self.is_big_endian = match word(8) {
                [0x1a, 0x2b, 0x3c, 0x4d] => true,
                [0x4d, 0x3c, 0x2b, 0x1a] => false,
                _ => return Err(CaptureFault::Damaged("the section has no byte order mark")),
            };
        }
        let read = if self.is_big_endian {
            u32::from_be_bytes
        } else {
            u32::from_le_bytes
        };
        Ok((read(word(0)), read(word(4)) as usize))
    }

    fn block(&mut self, bytes: &[u8]) -> Result<Option<Packet>, CaptureFault> {
        let parse = if self.is_big_endian {
            parse_block_be
        } else {
            parse_block_le
        };
        let Ok((_, block)) = parse(bytes) else {
            return Err(CaptureFault::Damaged("the block cannot be read"));
        };
        match block {
            Block::SectionHeader(_) => self.interfaces.clear(),
            Block::InterfaceDescription(description) => {
                if self.interfaces.len() >= INTERFACES_MAX {
                    return Err(CaptureFault::Damaged("the section has too many interfaces"));
                }
                let interface = self.interface(&description);
                self.interfaces.push(interface);
            }
            Block::EnhancedPacket(packet) => {
                let interface = self.interfaces.get(packet.if_id as usize);
                let ticks = (u64::from(packet.ts_high) << 32) | u64::from(packet.ts_low);
                let len = packet.packet_data().len();
                return Ok(Some(Packet {
                    at: 28,
                    len,
                    frame: RawFrame {
                        link: interface.and_then(|i| i.link),
                        received_at: interface.map_or(Nanos::ZERO, |i| i.time(ticks)),
                        bytes: 0..0,
                        is_snapped: packet.caplen < packet.origlen,
                    },
                }));
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
                return Ok(Some(Packet {
                    at: 12,
                    len,
                    frame: RawFrame {
                        link: interface.and_then(|i| i.link),
                        received_at: Nanos::ZERO,
                        bytes: 0..0,
                        is_snapped: len < packet.origlen as usize,
                    },
                }));
            }
            _ => {}
        }
        Ok(None)
    }

    fn interface(&self, description: &InterfaceDescriptionBlock<'_>) -> Interface {
        let option = |code: OptionCode| {
            let found = description.options.iter().find(|o| o.code == code);
            found.map(|o| o.value())
        };
        let units_per_second = match option(OptionCode::IfTsresol).and_then(<[u8]>::first) {
            None => 1_000_000,
            Some(&power) if power & 0x80 != 0 => 1_u128 << (power & 0x7f).min(100),
            Some(&power) => 10_u128.pow(u32::from(power).min(30)),
        };
        let offset = option(OptionCode::IfTsoffset).and_then(<[u8]>::first_chunk);
        let offset = offset.copied().unwrap_or_default();
        Interface {
            link: Link::from_number(description.linktype),
            units_per_second,
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
        let (seconds, rest) = (
            u128::from(ticks) / self.units_per_second,
            u128::from(ticks) % self.units_per_second,
        );
        // At most 2^64 ticks: neither product reaches 2^94.
        let ns = seconds * NS + rest * NS / self.units_per_second;
        let ns = i128::try_from(ns).unwrap_or(i128::MAX);
        let ns = ns.saturating_add(i128::from(self.offset_s) * NS as i128);
        Nanos(u64::try_from(ns.max(0)).unwrap_or(u64::MAX))
    }
}

/// Position of the packet within a packet block.
struct Packet {
    at: usize,
    len: usize,
    frame: RawFrame,
}
