//! The text of a config, and the places of its values: file, line and column.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::error::{ConfigError, ConfigPlace};

/// The text that a config was read from. It does not affect equality, because equal configs may come from
/// two files.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigText {
    file: Option<PathBuf>,
    text: Arc<str>,
}

impl ConfigText {
    pub(super) fn new(file: Option<&Path>, text: &str) -> Self {
        Self {
            file: file.map(Path::to_owned),
            text: text.into(),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the file, if the text comes from one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns the error with its place: the value at its path, or the innermost part that the text has.
    pub(crate) fn locate(&self, error: ConfigError) -> ConfigError {
        let (ConfigError::Shape { at, .. } | ConfigError::Value { at, .. }) = &error else {
            return error;
        };
        let (value, _) = self.value_at(at);
        let offset = value.as_ptr().addr() - self.text.as_ptr().addr();
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        self.placed(line, column, error)
    }

    /// Returns the error of a parser that stopped at a path.
    pub(super) fn shape(&self, at: String, error: &serde_json::Error) -> ConfigError {
        let (line, column) = (error.line(), error.column());
        let reason = error.to_string();
        let position = format!(" at line {line} column {column}");
        let mut reason = reason.strip_suffix(&position).unwrap_or(&reason).to_owned();
        if !error.is_data() {
            return self.placed(line, column, ConfigError::Shape { at, reason });
        }
        let mut at = at;
        // Parts of a config with a kind add the rest of the path to the reason.
        if let Some((rest, inner)) = reason.split_once(": ") {
            let joined = format!("{at}.{rest}");
            if self.value_at(&joined).1 {
                (at, reason) = (joined, inner.to_owned());
            }
        }
        // The parser's error text gives no remedy: it does not explain that host names are no addresses.
        if reason.contains("socket address syntax") {
            reason += "; give an address and a port, for example 127.0.0.1:7400";
        }
        self.locate(ConfigError::Shape { at, reason })
    }

    fn placed(&self, line: usize, column: usize, error: ConfigError) -> ConfigError {
        let place = ConfigPlace {
            file: self.file.clone(),
            line,
            column,
        };
        let error = Box::new(error);
        ConfigError::Placed { place, error }
    }

    /// Returns the text from the value at a path such as `channels[2].slots` on, and whether the text has
    /// that value. Without it, returns the text of the innermost part.
    fn value_at(&self, path: &str) -> (&str, bool) {
        let mut value = self.text.trim_start();
        for key in path.split(['.', '[']).filter(|key| !key.is_empty()) {
            let inner = match key.strip_suffix(']') {
                Some(index) => element(value, index),
                None => member(value, key),
            };
            let Some(inner) = inner else {
                return (value, false);
            };
            value = inner;
        }
        (value, true)
    }
}

impl PartialEq for ConfigText {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

fn element<'a>(array: &'a str, index: &str) -> Option<&'a str> {
    let elements: Vec<&RawValue> = serde_json::from_str(array).ok()?;
    let element = elements.get(index.parse::<usize>().ok()?)?;
    Some(element.get())
}

fn member<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    let members: BTreeMap<Cow<'a, str>, &RawValue> = serde_json::from_str(object).ok()?;
    members.get(key).map(|value| value.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_placed_at_its_value_or_the_innermost_part() {
        let text = "\n{ \"ä\": 1, \"b\":\n   [0, {\"c d\": [ 7,\n\t{\"e\\u0066\": null} ]}] }";
        let text = ConfigText::new(Some("/a b.json".as_ref()), text);
        for (at, line, column) in [
            (".", 2, 1),
            ("ä", 2, 8),
            ("b", 3, 4),
            ("b[1]", 3, 8),
            ("b[1].c d", 3, 16),
            ("b[1].c d[1].ef", 4, 14),
            // Beyond the text.
            ("b[2]", 3, 4),
            ("b[x].y", 3, 4),
            ("b[1].c d[0].z", 3, 18),
            ("nothing[3]", 2, 1),
        ] {
            let error = text.locate(ConfigError::value(at, 1, "no"));
            let expected = format!("/a b.json:{line}:{column}: ");
            assert!(error.to_string().starts_with(&expected), "{at}: {error}");
        }
    }
}
