//! Text from outside, in lines that people read.

use std::fmt;

use tickcast_log::Escaping;

/// Text of a peer, a feed or a file. Control characters are escaped and a long text is cut, so it neither
/// forges a line nor controls a terminal.
#[derive(Clone, Copy, Debug)]
pub struct Plain<T>(pub T);

impl<T: fmt::Display> fmt::Display for Plain<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Escaping::write(f, format_args!("{}", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_stays_in_its_line() {
        let text = Plain("a\nERROR forged\r\x1b[2J\u{202e}é").to_string();
        assert_eq!(text, r"a\nERROR forged\r\u{1b}[2J\u{202e}é");
        assert!(Plain("x".repeat(1 << 20)).to_string().len() < 2_048);
    }
}
