//! `tshark` with the dissector, apart from the user's own settings.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;

use regex::Regex;
use tempfile::TempDir;
use tickcast_test_support::{program, text};

use super::capture::Capture;
use super::shown::{Field, Names};

/// `tshark` with a folder for its settings, which holds the dissector.
pub(super) struct Tshark(TempDir);

impl Tshark {
    /// Returns `tshark`. Where it is not installed, prints a notice and returns `None`.
    pub(super) fn find() -> Option<Self> {
        let found = program("tshark", &["--version"]).output();
        if !found.is_ok_and(|output| output.status.success()) {
            // Write to stderr directly, because the test harness captures the output of a passing test.
            let said = "SKIPPED: tshark is not here, so tools/wireshark/tickcast.lua is not checked; \
                        `make setup` installs it";
            writeln!(std::io::stderr(), "\n{said}").expect("stderr takes it");
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/wireshark/tickcast.lua");
        let folder = tempfile::tempdir().expect("a folder for the test");
        std::fs::create_dir(folder.path().join("plugins")).expect("a folder for the dissector");
        let copy = folder.path().join("plugins/tickcast.lua");
        std::fs::copy(&script, copy).unwrap_or_else(|e| panic!("{}: {e}", script.display()));
        Some(Self(folder))
    }

    /// Returns what `tshark` prints. Panics if it fails or the dissector does.
    fn output(&self, arguments: &[&str]) -> String {
        let mut tshark = program("tshark", arguments);
        tshark.env("WIRESHARK_CONFIG_DIR", self.0.path());
        let output = tshark.output().expect("tshark runs");
        let (shown, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{errors}");
        for printed in [&shown, &errors] {
            let error = printed.lines().find(|line| line.contains("Lua Error: "));
            assert_eq!(error, None, "the dissector failed");
        }
        shown
    }

    /// Returns the fields of our protocols in each packet, in order.
    pub(super) fn read(&self, capture: &Capture, options: &[&str]) -> Vec<Vec<Field>> {
        let path = self.0.path().join("capture.pcap");
        std::fs::write(&path, capture.bytes()).expect("the capture is written");
        let path = path.to_str().expect("a path in UTF-8");
        let pdml = self.output(&[options, &["-r", path, "-T", "pdml"]].concat());
        let packets: Vec<_> = pdml.split("<packet>").skip(1).map(fields).collect();
        assert_eq!(packets.len(), capture.packets(), "packets");
        packets
    }

    /// Returns the names of all fields that the dissector has.
    pub(super) fn fields(&self) -> BTreeSet<String> {
        let all = self.output(&["-G", "fields"]);
        let names = all.lines().filter_map(|line| {
            let mut columns = line.split('\t');
            (columns.next()? == "F").then(|| columns.nth(1)).flatten()
        });
        names
            .filter(|it| is_ours(it))
            .map(ToOwned::to_owned)
            .collect()
    }

    /// Returns the names that the dissector has for the values of fields.
    pub(super) fn names(&self) -> BTreeMap<String, Names> {
        let all = self.output(&["-G", "values"]);
        let mut found: BTreeMap<String, Names> = BTreeMap::new();
        for line in all.lines() {
            let columns: Vec<_> = line.split('\t').collect();
            if let [kind, field, value, name] = columns[..]
                && kind.starts_with('V')
                && is_ours(field)
            {
                let names = found.entry(field.to_owned()).or_default();
                names.insert(number(value), name.to_owned());
            }
        }
        found
    }
}

/// Returns a value: a character in quotes, or a decimal or hexadecimal number.
fn number(value: &str) -> u64 {
    let character = value.strip_prefix('\'').and_then(|it| it.chars().next());
    let hexadecimal = value
        .strip_prefix("0x")
        .map(|it| u64::from_str_radix(it, 16));
    match (character, hexadecimal) {
        (Some(character), _) => character.into(),
        (_, Some(number)) => number.expect("a hexadecimal number"),
        _ => value.parse().expect("a number"),
    }
}

fn is_ours(name: &str) -> bool {
    let proto = name.split('.').next();
    proto.is_some_and(|proto| ["tickcast", "tickcast_control"].contains(&proto))
}

/// Returns our fields in a packet of PDML. The paths of a JSON body are sorted.
fn fields(packet: &str) -> Vec<Field> {
    let element = Regex::new(r#"<(?:field|proto) name="([^"]*)" showname="([^"]*)""#);
    let element = element.expect("a valid pattern");
    let mut fields: Vec<Field> = Vec::new();
    for found in element.captures_iter(packet) {
        let (name, shown) = (&found[1], unescaped(&found[2]));
        // A note of the group "Malformed" has this name too, without a colon.
        let overrun = name == "_ws.malformed" && shown.contains(':');
        assert!(!overrun, "bytes beyond the end were read: {shown}");
        if is_ours(name) || name == "json.path_with_value" {
            let title = format!("{}: ", name.rsplit('.').next().unwrap_or(name));
            let text = shown.split_once(&title).map(|(_, text)| text.to_owned());
            fields.push(Field {
                name: name.to_owned(),
                text: Some(text.unwrap_or(shown)),
            });
        }
    }
    sort_json(&mut fields);
    fields
}

/// Sorts the paths of each JSON body, because our types do not keep the order of members.
pub(super) fn sort_json(fields: &mut [Field]) {
    let bodies =
        fields.chunk_by_mut(|a, b| a.name.starts_with("json") == b.name.starts_with("json"));
    for body in bodies.filter(|body| body[0].name.starts_with("json")) {
        body.sort_unstable();
    }
}

fn unescaped(text: &str) -> String {
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#x27;", "'"),
        ("&amp;", "&"),
    ];
    let replace =
        |text: String, (entity, character): &(&str, &str)| text.replace(entity, character);
    entities.iter().fold(text.to_owned(), replace)
}
