//! Whether two states of a core are the same: its `Debug` text, in which times are counted from
//! now and what decides nothing is left out, as 128 bits.

use std::fmt::{Debug, Write};

use tickcast_reliability::units::Nanos;
use xxhash_rust::xxh3::xxh3_128;

use super::BEGIN;

/// Fields that decide nothing here; the module `small_worlds` says why.
const LEFT_OUT: [&str; 9] = [
    "counters",
    "bucket",
    "heard_at",
    "since",
    "checked_at",
    "silence",
    "received_at",
    "sent_at",
    "missing_for",
];
/// Fields of [`tickcast_reliability::budget::TokenBucket`], of which a core may hold several.
const BUDGET: &str = "TokenBucket";
const TIME: &str = "Nanos(";

/// Reused memory.
#[derive(Debug, Default)]
pub struct Printer {
    text: String,
    normal: Vec<u8>,
}

impl Printer {
    /// The fingerprint of something at this time.
    pub fn of(&mut self, what: &impl Debug, now: Nanos) -> u128 {
        self.text.clear();
        if write!(self.text, "{what:?}").is_err() {
            return 0;
        }
        self.normal.clear();
        normalise(&self.text, now, &mut self.normal);
        xxh3_128(&self.normal)
    }
}

/// Appends `text` with times counted from `now` and without the fields of [`LEFT_OUT`].
fn normalise(text: &str, now: Nanos, out: &mut Vec<u8>) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &text[at..];
        let boundary = at > 0 && matches!(bytes[at - 1], b' ');
        if boundary && rest.starts_with(|c: char| c.is_ascii_lowercase()) {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_');
            let name = &rest[..end.unwrap_or(rest.len())];
            at += name.len();
            if LEFT_OUT.contains(&name) && text[at..].starts_with(": ") {
                at += value_len(&bytes[at..]);
            } else {
                out.extend_from_slice(name.as_bytes());
            }
        } else if let Some(digits) = rest.strip_prefix(TIME) {
            let len = digits.find(')').unwrap_or(0);
            at += TIME.len() + len;
            match digits[..len].parse::<u64>() {
                Ok(u64::MAX) | Err(_) => out.extend_from_slice(b"never"),
                // Not a time, but that there is none, or a span: the clock begins later.
                Ok(span) if span < BEGIN.0 / 2 => {
                    out.push(b's');
                    out.extend_from_slice(&span.to_le_bytes());
                }
                Ok(time) => {
                    let span = (time.wrapping_sub(now.0)) as i64;
                    out.extend_from_slice(&span.to_le_bytes());
                }
            }
        } else if rest.starts_with(BUDGET) {
            at += BUDGET.len() + value_len(&bytes[at + BUDGET.len()..]);
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
}

/// Length of a value, up to the comma or bracket that ends it.
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

    #[derive(Debug)]
    #[expect(dead_code, reason = "only its text is read")]
    struct Core {
        at: Nanos,
        counters: (Nanos, [u8; 2]),
        until: Option<Nanos>,
        next: u64,
    }

    fn core(at: u64, counter: u8, next: u64) -> Core {
        Core {
            at: Nanos(at),
            counters: (Nanos(at), [counter; 2]),
            until: Some(Nanos::MAX),
            next,
        }
    }

    #[test]
    fn a_later_state_is_the_same_if_only_the_clock_and_counters_moved() {
        let mut printer = Printer::default();
        let (at, now) = (BEGIN.0 + 5, BEGIN.0 + 7);
        let one = printer.of(&core(at, 1, 3), Nanos(now));
        assert_eq!(one, printer.of(&core(at + 9, 2, 3), Nanos(now + 9)));
        assert_ne!(one, printer.of(&core(at + 1, 1, 3), Nanos(now)), "a time");
        assert_ne!(one, printer.of(&core(at, 1, 4), Nanos(now)), "a field");
        assert_ne!(printer.of(&core(0, 1, 3), Nanos(now)), one, "no time");
    }

    #[test]
    fn a_span_is_the_same_at_any_time() {
        let mut printer = Printer::default();
        let one = printer.of(&core(5, 1, 3), BEGIN);
        assert_eq!(one, printer.of(&core(5, 1, 3), Nanos(BEGIN.0 + 1)));
        assert_ne!(one, printer.of(&core(6, 1, 3), BEGIN));
    }
}
