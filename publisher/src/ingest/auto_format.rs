//! The format of an input whose config leaves it to detection, until its feed is established.
//!
//! The first packet that shows a format decides. It may be a stranger's, so packets of messages of another
//! format wait. Some in a row, without any of the decoder's own between them, change the format. Heartbeats
//! change nothing, because they bring nothing that could be lost.

use tickcast_feeds::venues::Format;

/// Packets of messages in a row of another format, after which an input follows it; and packets of its own,
/// after which nothing changes the format any more.
pub(super) const CONFIRMING: usize = 3;

/// A packet, and the number of its line.
pub(super) type LinePacket = (usize, Vec<u8>);

/// The choice of a format.
#[derive(Debug)]
pub(super) struct AutoFormat {
    is_open: bool,
    /// Whether the decoder continues a source of an earlier publisher. One packet confirms its format.
    is_resumed: bool,
    /// Another format, and its packets that wait.
    other: Option<Format>,
    waiting: Vec<LinePacket>,
}

impl AutoFormat {
    /// Returns a choice that is open if the config names no format.
    pub(super) const fn new(is_open: bool) -> Self {
        Self {
            is_open,
            is_resumed: false,
            other: None,
            waiting: Vec::new(),
        }
    }

    /// Continues with the format of an earlier publisher.
    pub(super) const fn resume(&mut self) {
        self.is_resumed = true;
    }

    /// Returns whether the format may still change.
    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Takes a packet if it is of another format than the decoder's. It waits, and the decoder does not see
    /// it.
    pub(super) fn takes(&mut self, known: Option<Format>, line: usize, packet: &[u8]) -> bool {
        let format = Format::detect(packet).filter(|it| Some(*it) != known);
        if format.is_none() || Format::is_heartbeat(packet) {
            return false;
        }
        let is_other = self.other.is_some_and(|it| Some(it) != format);
        if is_other || self.waiting.len() == CONFIRMING {
            return false;
        }
        self.other = format;
        self.waiting.push((line, packet.to_vec()));
        true
    }

    /// Takes the other format and its packets, once they are enough. Its decoder is new to the source.
    pub(super) fn change(&mut self) -> Option<(Format, Vec<LinePacket>)> {
        let format = self.other.filter(|_| self.waiting.len() == CONFIRMING)?;
        self.is_resumed = false;
        Some((format, self.give_up()))
    }

    /// Records a packet of the decoder's own; `packets` and `messages` are its counts. Returns the packets
    /// that waited: they are of another feed.
    pub(super) fn confirm(&mut self, packets: u64, messages: u64) -> Vec<LinePacket> {
        let is_established = packets >= CONFIRMING as u64 && messages > 0;
        self.is_open = !(self.is_resumed || is_established);
        self.give_up()
    }

    /// Returns the packets that wait, because no more follow.
    pub(super) fn give_up(&mut self) -> Vec<LinePacket> {
        self.other = None;
        std::mem::take(&mut self.waiting)
    }
}
