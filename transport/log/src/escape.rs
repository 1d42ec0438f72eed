//! Values without control characters.

use std::fmt::{self, Write};

/// Bytes of one value, after escaping; the rest is counted.
const VALUE_LEN_MAX: usize = 1_024;

/// Writes one value of a log line: control characters are escaped, and the rest behind 1,024 bytes is
/// left out. Call [`end`](Self::end) behind the value.
pub struct Escaping<'a> {
    out: &'a mut dyn Write,
    written: usize,
    /// Characters left out.
    omitted: usize,
}

impl<'a> Escaping<'a> {
    /// Begins a value.
    pub fn new(out: &'a mut dyn Write) -> Self {
        Self {
            out,
            written: 0,
            omitted: 0,
        }
    }

    /// Writes a whole value.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(out: &'a mut dyn Write, value: fmt::Arguments<'_>) -> fmt::Result {
        let mut escaping = Self::new(out);
        escaping.write_fmt(value)?;
        escaping.end()
    }

    /// Ends the value: states how many characters were left out.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn end(self) -> fmt::Result {
        match self.omitted {
            0 => Ok(()),
            omitted => write!(self.out, "… ({omitted} more characters)"),
        }
    }
}

impl Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            // The longest escape has 8 bytes.
            if self.omitted > 0 || self.written + 8 > VALUE_LEN_MAX {
                self.omitted += 1;
            } else if is_control(c) {
                self.written += 8;
                write!(self.out, "{}", c.escape_default())?;
            } else {
                self.written += c.len_utf8();
                self.out.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Text of several lines and any length. Control characters but ends of lines are escaped.
#[derive(Clone, Copy, Debug)]
pub struct PlainLines<T>(pub T);

impl<T: fmt::Display> fmt::Display for PlainLines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let escape = |out: &mut dyn Write, c: char| write!(out, "{}", c.escape_default());
        write!(Replacing { out: f, escape }, "{}", self.0)
    }
}

/// JSON text of any length. Control characters become escapes of JSON, so its value is unchanged. Outside of
/// strings, JSON has none but ends of lines.
#[derive(Clone, Copy, Debug)]
pub struct PlainJson<T>(pub T);

impl<T: fmt::Display> fmt::Display for PlainJson<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // All control characters have at most 16 bits.
        let escape = |out: &mut dyn Write, c: char| write!(out, "\\u{:04x}", u32::from(c));
        write!(Replacing { out: f, escape }, "{}", self.0)
    }
}

/// Writes text, and replaces each control character but ends of lines.
struct Replacing<'a, Escape> {
    out: &'a mut dyn Write,
    escape: Escape,
}

impl<Escape: FnMut(&mut dyn Write, char) -> fmt::Result> Write for Replacing<'_, Escape> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        let is_replaced = |c: char| c != '\n' && is_control(c);
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_replaced(*c)) {
            self.out.write_str(&rest[..at])?;
            (self.escape)(self.out, c)?;
            rest = &rest[at + c.len_utf8()..];
        }
        self.out.write_str(rest)
    }
}

/// Returns whether a character moves the cursor, ends a line, or changes the direction of text.
#[must_use]
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        let mut out = String::new();
        Escaping::write(&mut out, format_args!("{text}")).unwrap();
        out
    }

    #[test]
    fn text_without_control_characters_is_unchanged() {
        for text in ["", "plain text", "Übergrößenträger 株", "a\\b \"c\" 'd'"] {
            assert_eq!(escaped(text), text);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        for (text, expected) in [
            ("a\nb", "a\\nb"),
            ("a\r\tb", "a\\r\\tb"),
            ("\x1b[2J", "\\u{1b}[2J"),
            ("\0\x7f\u{9b}31m", "\\u{0}\\u{7f}\\u{9b}31m"),
            ("\u{202e}cba", "\\u{202e}cba"),
            ("\u{2028}\u{feff}", "\\u{2028}\\u{feff}"),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }

    #[test]
    fn lines_and_json_keep_their_ends_of_lines_alone() {
        let text = "a\r\nb\u{9b}2J\u{202e}ü\n";
        let lines = PlainLines(text).to_string();
        assert_eq!(lines, "a\\r\nb\\u{9b}2J\\u{202e}ü\n");
        assert_eq!(PlainLines("x".repeat(9_999)).to_string().len(), 9_999);
        let value = serde_json::json!({ "a\u{9b}": text, "b": ["\x1b\x7f\u{feff}", 1] });
        for json in [format!("{value}"), format!("{value:#}")] {
            let json = PlainJson(json).to_string();
            assert!(!json.contains(|c| c != '\n' && is_control(c)), "{json}");
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(&json).unwrap(),
                value
            );
        }
    }

    #[test]
    fn long_value_is_truncated_and_counted() {
        let whole = "x".repeat(VALUE_LEN_MAX - 8);
        assert_eq!(escaped(&whole), whole);
        for text in [
            "\x1b".repeat(100_000),
            "ü".repeat(100_000),
            "x".repeat(100_000),
        ] {
            let escaped = escaped(&text);
            assert!(
                escaped.len() <= VALUE_LEN_MAX + 32,
                "{} bytes",
                escaped.len()
            );
            assert!(escaped.ends_with(" more characters)"), "{escaped}");
        }
    }
}
