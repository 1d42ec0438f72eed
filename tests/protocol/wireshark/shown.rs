//! Fields as `tshark` shows them, and as our decoder expects them.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

/// The names of a field's values.
pub(super) type Names = BTreeMap<u64, String>;

/// Bytes of a field that `tshark` shows; it cuts off the rest.
const BYTES_SHOWN: usize = 36;

/// A field: its name in filters, and the text behind its title. `None` expects any text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) text: Option<String>,
}

impl Field {
    fn agrees(&self, shown: &Self) -> bool {
        self.name == shown.name && (self.text.is_none() || self.text == shown.text)
    }
}

/// The fields that our decoder expects of a packet, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    pub(super) fields: Vec<Field>,
    /// The names of the values of each field that has some.
    pub(super) names: BTreeMap<String, Names>,
    /// Notes that the dissector must show behind the fields, where our decoder stops. It may show more.
    pub(super) then: Vec<String>,
}

impl Expected {
    pub(super) fn any_text(&mut self, name: &str) {
        let name = name.to_owned();
        self.fields.push(Field { name, text: None });
    }

    pub(super) fn text(&mut self, name: &str, text: impl Display) {
        self.fields.push(Field {
            name: name.to_owned(),
            text: Some(text.to_string()),
        });
    }

    /// Expects a value with an explanation.
    pub(super) fn noted(&mut self, name: &str, value: impl Display, note: impl Display) {
        self.text(name, format!("{value} ({note})"));
    }

    /// Expects a value, and an explanation where there is one.
    pub(super) fn maybe_noted(
        &mut self,
        name: &str,
        value: impl Display,
        note: Option<impl Display>,
    ) {
        match note {
            Some(note) => self.noted(name, value, note),
            None => self.text(name, value),
        }
    }

    /// Expects the name of a value, with the value as it is shown.
    pub(super) fn named(&mut self, name: &str, value: u64, shown: impl Display, names: &Names) {
        let title = names.get(&value).map_or("Unknown", String::as_str);
        self.noted(name, title, shown);
        self.names.insert(name.to_owned(), names.clone());
    }

    /// Expects a bit of a field.
    pub(super) fn flag(&mut self, name: &str, value: bool) {
        self.text(name, if value { "True" } else { "False" });
    }

    /// Expects bytes, unless there are none.
    pub(super) fn bytes(&mut self, name: &str, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut text = String::new();
        for byte in bytes.iter().take(BYTES_SHOWN) {
            write!(text, "{byte:02x}").expect("a String takes everything");
        }
        if bytes.len() > BYTES_SHOWN {
            text.push('…');
        }
        self.text(name, text);
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.fields.extend(other.fields);
        self.names.extend(other.names);
        self.then.extend(other.then);
    }

    /// Panics where `tshark` shows other fields than these.
    pub(super) fn assert_shown(&self, shown: &[Field], of: &dyn Display) {
        let differs = (self.fields.iter().zip(shown)).position(|(here, there)| !here.agrees(there));
        let at = differs.unwrap_or(self.fields.len().min(shown.len()));
        let expected = self.fields.get(at);
        if expected.is_some() || (self.then.is_empty() && at < shown.len()) {
            panic!(
                "{of}: field {at} differs\n expected: {expected:?}\n tshark:   {:?}\n before:   {:?}",
                shown.get(at),
                &self.fields[at.saturating_sub(3)..at]
            );
        }
        for expert in &self.then {
            assert!(
                shown[at..].iter().any(|field| field.name == *expert),
                "{of}: no {expert} among {:?}",
                &shown[at..]
            );
        }
    }
}

/// Returns the words of a variant's name: `TooSlow` becomes "too slow".
pub(super) fn words(variant: &impl std::fmt::Debug) -> String {
    let mut words = String::new();
    for letter in format!("{variant:?}").chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push(' ');
        }
        words.extend(letter.to_lowercase());
    }
    words
}
