//! The account of an input: each frame and each byte has one reason, so the sums are the file's.

use std::fmt;

/// The four classes of the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Part of the feed: delivered, or a true duplicate.
    Used,
    /// Known to carry no feed.
    Harmless,
    /// Of another protocol, destination or feed.
    Foreign,
    /// Lost: unreadable, cut off or skipped.
    Damaged,
}

impl Class {
    /// All classes, best first.
    pub const ALL: [Self; 4] = [Self::Used, Self::Harmless, Self::Foreign, Self::Damaged];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Used => "used",
            Self::Harmless => "harmless",
            Self::Foreign => "foreign",
            Self::Damaged => "damaged",
        })
    }
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $class:ident, $text:literal;)+) => {
        /// Reasons of the account's rows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Reason {
            /// All reasons, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the class of the verdict.
            #[must_use]
            pub const fn class(self) -> Class {
                match self {
                    $(Self::$name => Class::$class,)+
                }
            }

            /// Returns the text of the table.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

reasons! {
    /// Whole UDP datagrams, or messages of a file.
    Datagram = Used, "datagrams or messages of the feed";
    /// Messages that a file repeats after a login.
    Repeated = Used, "messages that came again";
    /// File headers and blocks without packets.
    Structure = Harmless, "headers and blocks of the file";
    /// Zeros that pad the file.
    Padding = Harmless, "zeros that pad the file";
    /// ARP, in either direction.
    Arp = Harmless, "ARP";
    /// IGMP, MLD and the other ICMPv6.
    GroupControl = Harmless, "IGMP and ICMP";
    /// LLDP, LACP, spanning tree, pause, and other control of one link.
    LinkControl = Harmless, "link control (LLDP, LACP, spanning tree)";
    /// PIM, OSPF, EIGRP, VRRP.
    Routing = Harmless, "routing (PIM, OSPF, VRRP)";
    /// PTP and other clock protocols of the link.
    Clock = Harmless, "clock synchronisation (PTP, NTP)";
    /// Fragments of packets that are complete.
    RepeatedFragment = Harmless, "fragments that came again";
    /// TCP segments.
    Tcp = Foreign, "TCP";
    /// UDP to a destination that is not the feed's.
    OtherDestination = Foreign, "UDP to other destinations";
    /// UDP to the feed's destination that is not of the feed.
    OtherFeed = Foreign, "UDP to the feed's destination that is not of it";
    /// IP protocols that may carry a feed.
    OtherProtocol = Damaged, "IP protocols that are not read";
    /// EtherTypes that may carry a feed.
    OtherEtherType = Damaged, "EtherTypes that are not read";
    /// Packets of the feed that no decoder can read.
    Unreadable = Damaged, "packets of the feed that can't be read";
    /// Datagrams that the capture cut off.
    Snapped = Damaged, "datagrams cut off by the capture";
    /// Headers that contradict each other.
    Malformed = Damaged, "frames with contradictory headers";
    /// Fragments whose packet is incomplete.
    Fragment = Damaged, "fragments of incomplete packets";
    /// Fragments of one packet that overlap with different bytes, or have two ends.
    Contradiction = Damaged, "fragments that contradict each other";
    /// Fragments whose packet has a wrong UDP checksum.
    Checksum = Damaged, "fragments of packets with a wrong checksum";
    /// A link type that is not read.
    UnknownLink = Damaged, "frames of a link type that is not read";
    /// A pcapng interface that the file does not describe.
    UnknownInterface = Damaged, "frames of an interface that is not described";
    /// Bytes between sound records.
    Skipped = Damaged, "bytes that are no sound record";
    /// The end of a file that was cut off.
    Truncated = Damaged, "a record cut off at the end";
    /// Bytes behind the last member of a compressed file.
    Trailing = Damaged, "bytes behind the compressed data";
}

/// Frames and bytes of one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Frames; messages of a file that has no frames.
    pub frames: u64,
    /// Bytes with the headers of their records, after decompression.
    pub bytes: u64,
}

/// Frames and bytes by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    rows: [Row; Reason::ALL.len()],
}

impl Account {
    /// Returns the row of one reason.
    #[must_use]
    pub const fn of(&self, reason: Reason) -> Row {
        self.rows[reason as usize]
    }

    /// Returns the sum of a class.
    #[must_use]
    pub fn class(&self, class: Class) -> Row {
        self.sum(|reason| reason.class() == class)
    }

    /// Returns the sum of all rows: the file's frames and bytes.
    #[must_use]
    pub fn total(&self) -> Row {
        self.sum(|_| true)
    }

    /// Returns the rows that are not empty.
    pub fn rows(&self) -> impl Iterator<Item = (Reason, Row)> + '_ {
        let rows = Reason::ALL.iter().copied().zip(self.rows);
        rows.filter(|(_, row)| *row != Row::default())
    }

    /// Adds another input's account.
    pub fn merge(&mut self, other: &Self) {
        for (row, more) in self.rows.iter_mut().zip(&other.rows) {
            row.frames += more.frames;
            row.bytes += more.bytes;
        }
    }

    /// Moves one frame to another reason.
    pub(crate) const fn move_frames(&mut self, from: Reason, to: Reason, row: Row) {
        let (taken, given) = (from as usize, to as usize);
        self.rows[taken].frames = self.rows[taken].frames.saturating_sub(row.frames);
        self.rows[taken].bytes = self.rows[taken].bytes.saturating_sub(row.bytes);
        self.rows[given].frames += row.frames;
        self.rows[given].bytes += row.bytes;
    }

    pub(crate) const fn add(&mut self, reason: Reason, frames: u64, bytes: u64) {
        let row = &mut self.rows[reason as usize];
        row.frames += frames;
        row.bytes += bytes;
    }

    fn sum(&self, of: impl Fn(Reason) -> bool) -> Row {
        let rows = self.rows().filter(|(reason, _)| of(*reason));
        rows.fold(Row::default(), |sum, (_, row)| Row {
            frames: sum.frames + row.frames,
            bytes: sum.bytes + row.bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn row(frames: u64, bytes: u64) -> Row {
        Row { frames, bytes }
    }

    #[test]
    fn account_sums_rows_by_class_and_in_total() {
        let mut account = Account::default();
        assert_eq!(account.rows().count(), 0);
        account.add(Reason::Datagram, 2, 100);
        account.add(Reason::Repeated, 1, 50);
        account.add(Reason::Padding, 0, 7);
        account.add(Reason::Datagram, 1, 60);
        let rows: Vec<_> = account.rows().collect();
        let datagrams = (Reason::Datagram, row(3, 160));
        let repeated = (Reason::Repeated, row(1, 50));
        assert_eq!(rows, [datagrams, repeated, (Reason::Padding, row(0, 7))]);
        assert_eq!(account.class(Class::Used), row(4, 210));
        assert_eq!(account.class(Class::Harmless), row(0, 7));
        assert_eq!(account.class(Class::Damaged), row(0, 0));
        assert_eq!(account.total(), row(4, 217));
    }

    #[test]
    fn accounts_merge_and_frames_move_without_a_change_of_sum() {
        let mut account = Account::default();
        account.add(Reason::Fragment, 3, 90);
        let mut other = Account::default();
        other.add(Reason::Fragment, 2, 20);
        other.add(Reason::Arp, 1, 42);
        account.merge(&other);
        assert_eq!(account.of(Reason::Fragment), row(5, 110));
        account.move_frames(Reason::Fragment, Reason::Datagram, row(2, 50));
        assert_eq!(account.of(Reason::Fragment), row(3, 60));
        assert_eq!(account.of(Reason::Datagram), row(2, 50));
        assert_eq!(account.total(), row(6, 152));
    }
}
