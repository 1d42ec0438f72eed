//! Summaries side by side: each value of a JSON file by its path.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::text::{LETTERS, escaped};
use crate::support::table::thousands;

/// Most rows of the table. A summary of a program has some hundred values.
const ROWS_MAX: usize = 2_000;

/// The values of a summary: the path of each, such as `channels[0].lost_records`, and its number or word.
#[derive(Debug)]
pub(super) struct Totals {
    name: String,
    values: BTreeMap<String, Value>,
}

impl Totals {
    /// Returns the values of a summary.
    pub(super) fn of(name: String, summary: &Value) -> Self {
        let mut values = BTreeMap::new();
        collect(String::new(), summary, &mut values);
        Self { name, values }
    }
}

/// Adds all values below a path.
fn collect(path: String, value: &Value, values: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                collect(format!("{path}{dot}{name}"), value, values);
            }
        }
        Value::Array(items) => {
            for (nth, value) in items.iter().enumerate() {
                collect(format!("{path}[{nth}]"), value, values);
            }
        }
        value => {
            values.insert(path, value.clone());
        }
    }
}

/// Adds a table of all summaries. With two, a column has the change of each number.
pub(super) fn add_summaries(out: &mut String, all: &[Totals]) {
    out.push_str("<h1>Summaries</h1>\n<p>");
    for (letter, totals) in LETTERS.iter().zip(all) {
        let _ = writeln!(out, "{letter}: {}<br>", escaped(&totals.name));
    }
    out.push_str("</p>\n<div class=\"scroll\" tabindex=\"0\"><table><tr><th>value</th>");
    for (letter, _) in LETTERS.iter().zip(all) {
        let _ = write!(out, "<th>{letter}</th>");
    }
    if all.len() == 2 {
        out.push_str("<th>B − A</th>");
    }
    out.push_str("</tr>\n");
    let mut paths: Vec<&String> = all.iter().flat_map(|it| it.values.keys()).collect();
    paths.sort_unstable();
    paths.dedup();
    for path in paths.iter().take(ROWS_MAX) {
        let values: Vec<_> = all.iter().map(|it| it.values.get(*path)).collect();
        let _ = write!(out, "<tr><td>{}</td>", escaped(path));
        for value in &values {
            let _ = write!(
                out,
                "<td>{}</td>",
                escaped(&value.map_or_else(String::new, shown))
            );
        }
        if let [a, b] = values[..] {
            let change = a.zip(b).and_then(|(a, b)| change(a, b));
            let _ = write!(out, "<td>{}</td>", change.unwrap_or_default());
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
    if let more @ 1.. = paths.len().saturating_sub(ROWS_MAX) {
        let _ = writeln!(
            out,
            "<p>{} more values are not shown.</p>",
            thousands(more as u64)
        );
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number
            .as_u64()
            .map_or_else(|| number.to_string(), thousands),
        value => value.to_string(),
    }
}

/// Returns how far a number has moved; `None` if a value is none.
fn change(a: &Value, b: &Value) -> Option<String> {
    if let (Some(a), Some(b)) = (a.as_u64(), b.as_u64()) {
        let sign = if b < a { "−" } else { "+" };
        return Some(match a == b {
            true => "0".to_owned(),
            false => format!("{sign}{}", thousands(a.abs_diff(b))),
        });
    }
    Some(format!("{:+}", b.as_f64()? - a.as_f64()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(all: &[Value]) -> String {
        let totals = |(nth, it): (usize, &Value)| Totals::of(format!("<{nth}>"), it);
        let mut out = String::new();
        add_summaries(
            &mut out,
            &all.iter().enumerate().map(totals).collect::<Vec<_>>(),
        );
        out
    }

    #[test]
    fn values_stand_in_one_row_by_path() {
        let a =
            json!({ "channels": [{ "name": "<all>", "lost": 1_000 }], "gone": true, "rate": 1.5 });
        let b =
            json!({ "channels": [{ "name": "<all>", "lost": 3_500 }], "more": null, "rate": 1.0 });
        let page = page(&[a, b]);
        for row in [
            "<td>channels[0].lost</td><td>1,000</td><td>3,500</td><td>+2,500</td>",
            "<td>channels[0].name</td><td>&lt;all&gt;</td><td>&lt;all&gt;</td><td></td>",
            "<td>gone</td><td>true</td><td></td><td></td>",
            "<td>more</td><td></td><td>null</td><td></td>",
            "<td>rate</td><td>1.5</td><td>1.0</td><td>-0.5</td>",
            "A: &lt;0&gt;",
        ] {
            assert!(page.contains(row), "{row} in {page}");
        }
    }

    #[test]
    fn change_has_its_sign_only_between_numbers() {
        let change = |a: u64, b: u64| change(&json!(a), &json!(b)).unwrap();
        assert_eq!(change(5, 5), "0");
        assert_eq!(change(u64::MAX, 0), "−18,446,744,073,709,551,615");
        assert_eq!(super::change(&json!("a"), &json!(1)), None);
    }

    #[test]
    fn rows_beyond_the_most_are_counted() {
        let wide: Vec<u64> = (0..ROWS_MAX as u64 + 7).collect();
        let page = page(&[json!(wide)]);
        assert_eq!(page.matches("<tr><td>").count(), ROWS_MAX);
        assert!(page.contains("<p>7 more values are not shown.</p>"));
        assert!(!page.contains("B − A"));
    }
}
