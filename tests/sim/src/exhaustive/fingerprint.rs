//! Fingerprints of core states, which decide whether two states are equal. A fingerprint is a
//! 128-bit hash of the `Debug` text, with times relative to now and without fields that cannot
//! influence behaviour.
//!
//! These fields are left out, only of the struct that is named:
//! - `Recovery.counters`: a core reads a counter only to report it, or to take back what an impostor
//!   made it count. The counters that are read are added beside the core (`receiver.rs`).
//! - `Session.bucket`, `Budgets.repair`, `Budgets.joiners`: credit of repair budgets. Their
//!   bursts exceed all repairs of a small world, so that no repair ever waits for credit.
//! - `Peer.heard_at`: a publisher closes a connection after 2 s without a JOIN or 60 s without a
//!   message, and only few timers of milliseconds fire here.
//! - `Line.heard_at`, `Line.since`, `Lines.checked_at`, `Lines.silence`: silent lines are reported
//!   only with two lines, and small worlds have one.
//! - `Held.received_at`, `Held.missing_for`: times of a buffered or delivered datagram. They go to
//!   the application, which only measures with them. A standby's mirror would check whether the
//!   datagram was missing at all, but small worlds have none.

use std::fmt::{Debug, Write};

use tickcast_reliability::types::Nanos;
use xxhash_rust::xxh3::xxh3_128;

use super::BEGIN;

/// Struct and field of everything left out; the module documentation gives the reasons.
const LEFT_OUT: [(&str, &str); 11] = [
    ("Recovery", "counters"),
    ("Session", "bucket"),
    ("Budgets", "repair"),
    ("Budgets", "joiners"),
    ("Peer", "heard_at"),
    ("Line", "heard_at"),
    ("Line", "since"),
    ("Lines", "checked_at"),
    ("Lines", "silence"),
    ("Held", "received_at"),
    ("Held", "missing_for"),
];
const TIME: &str = "Nanos";

/// Computes fingerprints, with reused buffers.
#[derive(Debug, Default)]
pub struct Printer {
    text: String,
    normal: Vec<u8>,
    /// Whether each entry of [`LEFT_OUT`] was found so far.
    met: [bool; LEFT_OUT.len()],
}

impl Printer {
    /// Returns the fingerprint of a value at this time.
    pub fn of(&mut self, what: &impl Debug, now: Nanos) -> u128 {
        self.text.clear();
        if write!(self.text, "{what:?}").is_err() {
            return 0;
        }
        self.normal.clear();
        normalise(&self.text, now, &mut self.normal, &mut self.met);
        xxh3_128(&self.normal)
    }

    /// Returns the bytes that were hashed last.
    #[cfg(test)]
    pub(super) fn normal(&self) -> &[u8] {
        &self.normal
    }

    /// Returns the entries of [`LEFT_OUT`] that neither this printer nor `other` has found.
    #[cfg(test)]
    pub(super) fn never_met(&self, other: &Self) -> Vec<(&'static str, &'static str)> {
        let met = self.met.iter().zip(other.met).map(|(a, b)| *a || b);
        let all = LEFT_OUT.into_iter().zip(met);
        all.filter_map(|(what, met)| (!met).then_some(what))
            .collect()
    }
}

/// Appends `text` with times relative to `now` and without the fields of [`LEFT_OUT`].
fn normalise(text: &str, now: Nanos, out: &mut Vec<u8>, met: &mut [bool; LEFT_OUT.len()]) {
    let bytes = text.as_bytes();
    // Names of the enclosing structs; maps, sets and lists have no name.
    let mut structs: Vec<&str> = Vec::new();
    let (mut at, mut word) = (0, "");
    while at < bytes.len() {
        let rest = &text[at..];
        let len = word_len(rest.as_bytes());
        if len == 0 {
            match bytes[at] {
                b'{' | b'[' | b'(' => structs.push(word),
                b'}' | b']' | b')' => {
                    structs.pop();
                }
                b'"' => {
                    let len = string_len(rest.as_bytes());
                    out.extend_from_slice(&bytes[at..at + len]);
                    at += len;
                    continue;
                }
                _ => {}
            }
            if bytes[at] != b' ' {
                word = "";
            }
            out.push(bytes[at]);
            at += 1;
            continue;
        }
        word = &rest[..len];
        at += len;
        let left_out = match structs.last() {
            Some(of) if text[at..].starts_with(": ") => {
                LEFT_OUT.iter().position(|what| *what == (*of, word))
            }
            _ => None,
        };
        if let Some(left_out) = left_out {
            met[left_out] = true;
            at += value_len(&bytes[at..]);
        } else if word == TIME && text[at..].starts_with('(') {
            let digits = &text[at + 1..];
            let len = digits.find(')').unwrap_or(0);
            at += 1 + len;
            match digits[..len].parse::<u64>() {
                Ok(u64::MAX) | Err(_) => out.extend_from_slice(b"never"),
                // The clock starts at a larger value, so that this is a span, or no time at all.
                Ok(span) if span < BEGIN.0 / 2 => {
                    out.push(b's');
                    out.extend_from_slice(&span.to_le_bytes());
                }
                Ok(time) => {
                    let span = (time.wrapping_sub(now.0)) as i64;
                    out.extend_from_slice(&span.to_le_bytes());
                }
            }
            at += 1;
        } else {
            out.extend_from_slice(word.as_bytes());
        }
    }
}

/// Returns the length of the name or number at the beginning.
fn word_len(bytes: &[u8]) -> usize {
    let is_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    bytes.iter().take_while(|b| is_word(b)).count()
}

/// Returns the length of the string at the beginning, including both quotation marks.
fn string_len(bytes: &[u8]) -> usize {
    let mut escaped = false;
    let end = bytes.iter().skip(1).position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    end.map_or(bytes.len(), |end| end + 2)
}

/// Returns the length of a value, up to the comma or bracket that ends it.
fn value_len(bytes: &[u8]) -> usize {
    let mut depth = 0;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' if depth == 0 => return at,
            b'}' | b')' | b']' => depth -= 1,
            b',' if depth == 0 => return at,
            _ => {}
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Default)]
    #[expect(dead_code, reason = "only its text is read")]
    struct Recovery {
        name: &'static str,
        at: Nanos,
        counters: (Nanos, [u8; 2]),
        until: Option<Nanos>,
        others: Vec<Other>,
        next: u64,
    }

    /// A struct of which no field is left out, whatever the fields are called.
    #[derive(Clone, Debug, Default)]
    #[expect(dead_code, reason = "only its text is read")]
    struct Other {
        receivers: Vec<Recovery>,
        counters: u8,
        since: u8,
    }

    fn core(at: u64, counter: u8, next: u64) -> Recovery {
        Recovery {
            name: "\\\"} counters: 5",
            at: Nanos(at),
            counters: (Nanos(at), [counter; 2]),
            until: Some(Nanos::MAX),
            others: Vec::new(),
            next,
        }
    }

    #[test]
    fn later_state_differs_only_in_clock_and_counters() {
        let mut printer = Printer::default();
        let (at, now) = (BEGIN.0 + 5, BEGIN.0 + 7);
        let one = printer.of(&core(at, 1, 3), Nanos(now));
        assert_eq!(one, printer.of(&core(at + 9, 2, 3), Nanos(now + 9)));
        assert_ne!(one, printer.of(&core(at + 1, 1, 3), Nanos(now)), "a time");
        assert_ne!(one, printer.of(&core(at, 1, 4), Nanos(now)), "a field");
        assert_ne!(printer.of(&core(0, 1, 3), Nanos(now)), one, "no time");
    }

    #[test]
    fn fingerprint_is_independent_of_absolute_time() {
        let mut printer = Printer::default();
        let one = printer.of(&core(5, 1, 3), BEGIN);
        assert_eq!(one, printer.of(&core(5, 1, 3), Nanos(BEGIN.0 + 1)));
        assert_ne!(one, printer.of(&core(6, 1, 3), BEGIN));
    }

    /// Covers fields in nested lists, and before and after them.
    #[test]
    fn omitted_field_name_counts_in_other_structs() {
        let mut printer = Printer::default();
        let with = |counters: u8, since: u8, inner: u8| Recovery {
            others: vec![Other {
                receivers: vec![core(1, inner, 2)],
                counters,
                since,
            }],
            ..core(1, inner, 2)
        };
        let one = printer.of(&with(1, 1, 1), BEGIN);
        assert_eq!(one, printer.of(&with(1, 1, 2), BEGIN), "it is left out");
        assert_ne!(one, printer.of(&with(2, 1, 1), BEGIN), "another's counters");
        assert_ne!(one, printer.of(&with(1, 2, 1), BEGIN), "not of a line");
        assert_ne!(one, printer.of(&(with(1, 1, 1), 1), BEGIN));
    }

    #[test]
    fn field_name_inside_text_is_not_omitted() {
        let mut printer = Printer::default();
        let one = printer.of(&core(1, 1, 2), BEGIN);
        let name = "\\\"} counters: 6";
        let other = Recovery {
            name,
            ..core(1, 1, 2)
        };
        assert_ne!(one, printer.of(&other, BEGIN));
    }
}
