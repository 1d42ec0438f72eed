//! Messages on their way into MoldUDP64 packets, in memory that is used again and again.

use crate::moldudp64::{END_OF_SESSION, HEADER_LEN, MoldHeader, Session};

/// Messages that were made but are in no packet yet, each behind its length.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    blocks: Vec<u8>,
    taken: usize,
    made: u64,
}

impl Outbox {
    /// An empty one with room for what any event of the market says.
    pub(super) fn new() -> Self {
        Self {
            blocks: Vec::with_capacity(1_024),
            taken: 0,
            made: 0,
        }
    }

    /// Appends a message.
    #[inline]
    pub(super) fn push<const N: usize>(&mut self, message: [u8; N]) {
        if self.is_empty() {
            self.blocks.clear();
            self.taken = 0;
        }
        self.blocks.extend_from_slice(&(N as u16).to_be_bytes());
        self.blocks.extend_from_slice(&message);
        self.made += 1;
    }

    /// Whether all messages are in packets.
    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.taken == self.blocks.len()
    }

    /// How many messages were ever made.
    pub(super) const fn made(&self) -> u64 {
        self.made
    }

    /// The next message with its length.
    #[inline]
    fn block(&self) -> Option<&[u8]> {
        let rest = self.blocks.get(self.taken..)?;
        let len = rest.first_chunk::<2>()?;
        rest.get(..2 + usize::from(u16::from_be_bytes(*len)))
    }
}

/// Fills one packet after the other.
#[derive(Clone, Debug)]
pub(super) struct PacketWriter {
    session: Session,
    /// Sequence of the packet's first message.
    sequence: u64,
    count: u16,
    packet: Vec<u8>,
    payload_max: usize,
}

impl PacketWriter {
    pub(super) fn new(session: &str, payload_max: u16) -> Self {
        let mut name = [b' '; 10];
        for (to, &byte) in name.iter_mut().zip(session.as_bytes()) {
            *to = byte;
        }
        let payload_max = usize::from(payload_max);
        let mut packet = Vec::with_capacity(payload_max);
        packet.resize(HEADER_LEN, 0);
        Self {
            session: name,
            sequence: 1,
            count: 0,
            packet,
            payload_max,
        }
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes messages over until the outbox is empty (true) or the packet is full (false).
    #[inline]
    pub(super) fn take(&mut self, outbox: &mut Outbox) -> bool {
        while let Some(block) = outbox.block() {
            if self.packet.len() + block.len() > self.payload_max {
                return false;
            }
            self.packet.extend_from_slice(block);
            self.count += 1;
            outbox.taken += block.len();
        }
        true
    }

    /// The packet's bytes; without messages it is a heartbeat. The next packet begins with
    /// [`PacketWriter::begin`].
    pub(super) fn finish(&mut self) -> &[u8] {
        self.finish_as(self.count)
    }

    /// The bytes of an end-of-session packet.
    pub(super) fn end_of_session(&mut self) -> &[u8] {
        self.finish_as(END_OF_SESSION)
    }

    fn finish_as(&mut self, count: u16) -> &[u8] {
        let header = MoldHeader {
            session: self.session,
            sequence: self.sequence,
            count,
        };
        self.packet[..HEADER_LEN].copy_from_slice(&header.to_bytes());
        &self.packet
    }

    /// Starts over behind the messages of the packet that was finished.
    pub(super) fn begin(&mut self) {
        self.sequence += u64::from(self.count);
        self.count = 0;
        self.packet.truncate(HEADER_LEN);
    }
}
