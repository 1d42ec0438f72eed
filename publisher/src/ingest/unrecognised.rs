//! Packets that no decoder recognises, for the log: they are reported with what they look like.

use tickcast_feeds::capture::guess::Guess;
use tickcast_feeds::venues::Format;
use tickcast_reliability::types::Nanos;

/// Number of packets that are not recognised until they are reported at once, and the bytes shown of the
/// last. Fewer are reported after [`SILENT`].
const UNRECOGNISED: u64 = 100;
const HEAD_LEN: usize = 24;
/// Time after which a line that hears nothing is reported, and one that hears only such packets.
pub(super) const SILENT: Nanos = Nanos::from_ms(5_000);

/// The packets in a row of which a decoder took nothing.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// The messages that were decoded before them.
    decoded: u64,
    unrecognised: Unrecognised,
}

impl Refused {
    /// Takes a packet without a message for the decoder; returns a report if many came in a row.
    #[cold]
    pub(super) fn packet(
        &mut self,
        decoded: u64,
        known: Option<Format>,
        seen: Seen<'_>,
    ) -> Option<String> {
        if decoded != std::mem::replace(&mut self.decoded, decoded) {
            self.unrecognised = Unrecognised::default();
        }
        let format = Format::detect(seen.payload);
        if (format.is_some() && format == known) || Format::is_heartbeat(seen.payload) {
            return None;
        }
        self.unrecognised.packet(seen)
    }

    /// Returns a report of the packets, [`SILENT`] after the first one, unless there was one.
    #[inline]
    pub(super) fn poll(&mut self, now: Nanos) -> Option<String> {
        self.unrecognised.poll(now)
    }
}

/// A packet that no decoder recognises.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) at: Nanos,
    /// Address and interface of its line.
    pub(super) on: &'a str,
    pub(super) payload: &'a [u8],
}

/// Counts packets that no decoder recognises.
#[derive(Debug, Default)]
pub(super) struct Unrecognised {
    packets: u64,
    /// When the first of them came; `None` before, and once they are reported.
    since: Option<Nanos>,
    /// Line and bytes of the last one.
    on: String,
    payload: Vec<u8>,
}

impl Unrecognised {
    /// Takes a packet. Returns a report of its contents after [`UNRECOGNISED`] packets, unless there was one.
    #[cold]
    pub(super) fn packet(&mut self, seen: Seen<'_>) -> Option<String> {
        self.packets += 1;
        if self.packets == 1 {
            self.since = Some(seen.at);
        }
        // They were reported.
        self.since?;
        seen.on.clone_into(&mut self.on);
        seen.payload.clone_into(&mut self.payload);
        match self.packets >= UNRECOGNISED {
            true => self.report(),
            false => None,
        }
    }

    /// Returns a report of the packets, [`SILENT`] after the first one, unless there was one.
    #[inline]
    pub(super) fn poll(&mut self, now: Nanos) -> Option<String> {
        if now < self.since?.after(SILENT) {
            return None;
        }
        self.report()
    }

    #[cold]
    fn report(&mut self) -> Option<String> {
        self.since = None;
        let payload = &self.payload[..];
        let guess = match (Format::detect(payload), Guess::of_payload(payload)) {
            (Some(format), _) => format!("it is of the format {format}"),
            (None, Some(guess)) => format!("it {guess}"),
            (None, None) => "it looks like no protocol that we know".into(),
        };
        let head = payload.iter().take(HEAD_LEN);
        let head: String = head.map(|byte| format!("{byte:02x}")).collect();
        Some(format!(
            "none of the first {} packets is of a feed that is decoded; the last came from {}, has {} bytes, \
             which begin with {head}, and {guess}. Check the address, or set `format`",
            self.packets,
            self.on,
            payload.len()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: &[u8] = b"SESSION001\0\0\0\0\0\0\0\x01\0\x01\0\x0cS\0\0\0\0\0\0\0\0\0\0O";

    fn seen(at: u64, payload: &[u8]) -> Seen<'_> {
        Seen {
            at: Nanos(at),
            on: "239.1.1.1:5 on interface lo",
            payload,
        }
    }

    #[test]
    fn refused_packets_in_a_row_are_reported_with_what_they_are() {
        let mut refused = Refused::default();
        let known = Some(Format::IexTp);
        let mut reports = |decoded: u64, packets: u64| -> Vec<String> {
            let packets =
                (0..packets).filter_map(|_| refused.packet(decoded, known, seen(0, EVENT)));
            packets.collect()
        };
        assert!(reports(0, UNRECOGNISED - 1).is_empty());
        assert!(reports(1, UNRECOGNISED - 1).is_empty(), "one was decoded");
        let [report] = &reports(1, UNRECOGNISED)[..] else {
            panic!("one report");
        };
        assert!(
            report.contains("of the format moldudp64-itch50"),
            "{report}"
        );
    }

    #[test]
    fn unrecognised_packets_are_reported_with_line_and_head() {
        let mut unrecognised = Unrecognised::default();
        let reports: Vec<_> = (0..2 * UNRECOGNISED)
            .filter_map(|at| unrecognised.packet(seen(at, b"\x16\x03no feed")))
            .collect();
        assert_eq!(reports.len(), 1, "{reports:?}");
        for part in [
            "first 100 packets",
            "from 239.1.1.1:5 on interface lo",
            "9 bytes",
            "16036e6f2066656564",
        ] {
            assert!(reports[0].contains(part), "{part}: {reports:?}");
        }
        assert_eq!(unrecognised.poll(Nanos(u64::MAX)), None, "once");
    }

    #[test]
    fn few_unrecognised_packets_are_reported_after_some_seconds() {
        let mut unrecognised = Unrecognised::default();
        assert_eq!(unrecognised.poll(Nanos(u64::MAX)), None, "there is none");
        assert_eq!(unrecognised.packet(seen(7, b"one")), None);
        assert_eq!(unrecognised.packet(seen(9, b"two")), None);
        assert_eq!(unrecognised.poll(Nanos(SILENT.0 + 6)), None);
        let report = unrecognised.poll(Nanos(SILENT.0 + 7)).unwrap();
        assert!(report.contains("first 2 packets"), "{report}");
        assert!(
            report.contains("3 bytes, which begin with 74776f"),
            "{report}"
        );
        assert_eq!(unrecognised.packet(seen(SILENT.0 + 8, b"three")), None);
        assert_eq!(unrecognised.poll(Nanos(u64::MAX)), None, "once");
    }
}
