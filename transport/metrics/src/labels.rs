//! Labels of a series.

use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabel, EncodeLabelSet, LabelSetEncoder};
use tickcast_log::is_control;

use crate::families::OwnLabels;

/// Maximum length of a label's value, in characters.
const VALUE_MAX: usize = 512;

/// Labels of a series, cheap to clone. No value controls a terminal, and each is bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Arc<[(&'static str, String)]>);

impl Labels {
    /// Returns these labels and one more.
    #[must_use]
    pub fn with(&self, name: &'static str, value: impl std::fmt::Display) -> Self {
        let more = (name, harmless(&value.to_string()));
        Self(self.0.iter().cloned().chain([more]).collect())
    }
}

/// Labels of a family's one series: those of its place, and those that tell its counters apart.
pub(crate) struct SeriesLabels<'a> {
    pub(crate) place: &'a Labels,
    pub(crate) own: OwnLabels,
}

impl EncodeLabelSet for SeriesLabels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> std::fmt::Result {
        for (name, value) in &*self.place.0 {
            (*name, value.as_str()).encode(encoder.encode_label())?;
        }
        for label in self.own {
            label.encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

/// Returns the text without control characters, and truncated. Quotes and backslashes are the encoder's.
fn harmless(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for (place, c) in value.chars().enumerate() {
        if place == VALUE_MAX {
            text.push('…');
            break;
        }
        // The formats have no escape for these, so the value itself has a backslash.
        if is_control(c) && c != '\n' {
            text.extend(c.escape_default());
        } else {
            text.push(c);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_length_of_a_value_are_bounded() {
        assert_eq!(harmless("\x1b[2J\r\u{202e}é"), r"\u{1b}[2J\r\u{202e}é");
        assert_eq!(harmless(&"é".repeat(999)), "é".repeat(VALUE_MAX) + "…");
        assert_eq!(harmless("plain \"text\"\n"), "plain \"text\"\n");
    }
}
