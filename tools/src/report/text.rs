//! Names and texts on a page.

/// The names of the logs, and of the summaries, of one page.
pub(super) const LETTERS: [&str; 8] = ["A", "B", "C", "D", "E", "F", "G", "H"];

/// Returns text for a page, in which no character of it begins a tag or ends an attribute.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
