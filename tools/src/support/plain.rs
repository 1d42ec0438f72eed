//! Text from outside, in lines that people read.

use std::fmt;

use tickcast_log::{Escaping, is_control};

/// Text of a peer, a feed or a file. Control characters are escaped and a long text is cut, so it neither
/// forges a line nor controls a terminal.
#[derive(Clone, Copy, Debug)]
pub struct Plain<T>(pub T);

impl<T: fmt::Display> fmt::Display for Plain<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaping::write(f, format_args!("{}", self.0))
    }
}

/// Returns text with spaces in place of control characters.
#[must_use]
pub fn one_line(text: &str) -> String {
    let blank = |c: char| if is_control(c) { ' ' } else { c };
    text.chars().map(blank).collect()
}

/// Returns the first `most` items, separated by commas, and how many more there are.
#[must_use]
pub fn listed(items: impl ExactSizeIterator<Item = String>, most: usize) -> String {
    let more = match items.len().saturating_sub(most) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    items.take(most).collect::<Vec<_>>().join(", ") + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_list_ends_with_the_number_left_out() {
        let of = |count: u8| listed((0..count).map(|it| it.to_string()), 3);
        assert_eq!([0, 1, 3].map(of), ["", "0", "0, 1, 2"]);
        assert_eq!(of(5), "0, 1, 2 and 2 more");
    }

    #[test]
    fn text_from_outside_stays_in_its_line() {
        let text = Plain("a\nERROR forged\r\x1b[2J\u{202e}é").to_string();
        assert_eq!(text, r"a\nERROR forged\r\u{1b}[2J\u{202e}é");
        assert!(Plain("x".repeat(1 << 20)).to_string().len() < 2_048);
    }
}
