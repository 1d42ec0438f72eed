//! Whether two states of a core are the same: its `Debug` text, in which times are counted from
//! now and what decides nothing is left out, as 128 bits.

use std::fmt::{Debug, Write};

use tickcast_reliability::control::Message;
use tickcast_reliability::units::Nanos;
use xxhash_rust::xxh3::xxh3_128;

use super::driver::read;
use super::receiver::Identity;
use super::world::World;

/// Fields that decide nothing here; the module `small_worlds` says why.
const LEFT_OUT: [&str; 8] = [
    "counters",
    "bucket",
    "heard_at",
    "since",
    "checked_at",
    "silence",
    "received_at",
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
                // Not a time, but that there is none.
                Ok(0) => out.extend_from_slice(b"none"),
                Ok(u64::MAX) | Err(_) => out.extend_from_slice(b"never"),
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

impl World<'_> {
    /// Says that all fingerprints of its parts are known.
    pub fn unchanged(&mut self) {
        self.changed.fill(false);
    }

    /// Its fingerprint. `parts` are those of the state before the last step, or empty.
    pub fn fingerprint(&mut self, printer: &mut Printer, parts: &mut Vec<u128>) -> u128 {
        let fresh = parts.len() != self.receivers.len() + 1;
        parts.resize(self.receivers.len() + 1, 0);
        let publisher = self.receivers.len();
        for (at, part) in parts.iter_mut().enumerate() {
            if !std::mem::take(&mut self.changed[at]) && !fresh {
                continue;
            }
            *part = if at == publisher {
                let p = &self.publisher;
                printer.of(&(&p.core, &p.repair, p.published), self.now)
            } else {
                let r = &self.receivers[at];
                let stream = (r.stream.epoch(), r.stream.next(), r.stream.ended());
                printer.of(
                    &(&r.core, stream, r.attempts, r.started, r.listens),
                    self.now,
                )
            };
        }
        let mut way = Vec::new();
        for receiver in &self.receivers {
            way.push(
                receiver
                    .packets
                    .iter()
                    .map(|p| p.identity)
                    .collect::<Vec<_>>(),
            );
        }
        let mut messages = Vec::new();
        for receiver in &self.receivers {
            for connection in &receiver.connections {
                let connection = connection.as_ref();
                messages.push(connection.map(|c| {
                    (
                        c.peer,
                        c.up.iter().map(|f| frame(f)).collect::<Vec<_>>(),
                        c.down.iter().map(|f| frame(f)).collect::<Vec<_>>(),
                    )
                }));
            }
        }
        printer.of(&(&*parts, way, messages, self.left), self.now)
    }
}

/// What a message says, without what only measures.
fn frame(bytes: &[u8]) -> String {
    match read(bytes) {
        Ok((_, Message::Datagram(bytes))) => format!("{:?}", Identity::of(bytes)),
        Ok((_, Message::Progress(p))) => format!("{} {} {}", p.epoch, p.sequence, p.heard),
        Ok((_, Message::Status(s))) => {
            format!("{} {} {} {}", s.epoch, s.newest, s.oldest, s.ended)
        }
        Ok((_, message)) => format!("{message:?}"),
        Err(_) => "closed".into(),
    }
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
        let one = printer.of(&core(5, 1, 3), Nanos(7));
        assert_eq!(one, printer.of(&core(105, 2, 3), Nanos(107)));
        assert_ne!(one, printer.of(&core(6, 1, 3), Nanos(7)), "a time");
        assert_ne!(one, printer.of(&core(5, 1, 4), Nanos(7)), "a field");
        assert_ne!(printer.of(&core(0, 1, 3), Nanos(7)), one, "no time at all");
    }
}
