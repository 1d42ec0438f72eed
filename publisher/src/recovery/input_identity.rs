//! The identity of an epoch's inputs, kept with it. Other inputs, other routes, or a replaced
//! capture file would not replay the same messages.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickcast_reliability::types::SourceId;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{Config, InputConfig};

/// Settings that do not change an input's messages.
const HOW_FAST: [&str; 2] = ["pace", "wait_for_subscribers"];

/// The identity of a config's inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// Hash of the config and the routes, if requested.
    pub(crate) hash: Option<u64>,
    /// Capture files, by source number.
    pub(crate) captures: Captures,
}

pub(crate) type Captures = BTreeMap<u16, CaptureFile>;

/// Metadata that identifies the files of an input. Their contents are compared with the ring when
/// they are read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CaptureFile {
    len: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl Inputs {
    /// Returns the current identity of a config's inputs.
    pub(crate) fn of(config: &Config) -> Self {
        let captures = config.inputs.iter().filter_map(|input| match input {
            InputConfig::Capture(capture) => {
                // Opening an unreadable file reports the cause, so skip it here.
                let mut known_by = CaptureFile::default();
                for path in &capture.files {
                    let file = std::fs::metadata(path).ok()?;
                    known_by.len += file.len();
                    known_by.modified_s = known_by.modified_s.max(file.mtime());
                    known_by.modified_ns = known_by.modified_ns.max(file.mtime_nsec());
                }
                Some((capture.source.0, known_by))
            }
            _ => None,
        });
        Self {
            hash: Some(hash(config)),
            captures: captures.collect(),
        }
    }

    /// Returns the source whose capture file has changed; both must be of one config.
    pub(crate) fn changed_since(&self, before: &Captures) -> Option<SourceId> {
        // A file without a kept identity, as from an earlier version, counts as unchanged.
        let is_other = |(source, file): &(&u16, &CaptureFile)| {
            before.get(source).is_some_and(|before| before != *file)
        };
        let changed = self.captures.iter().find(is_other);
        changed.map(|(source, _)| SourceId(*source))
    }
}

/// Returns a hash of the inputs and their routes.
fn hash(config: &Config) -> u64 {
    let symbols: Vec<_> = (config.channels.iter())
        .map(|channel| (&channel.name, &channel.symbols))
        .collect();
    let inputs = config.inputs.iter().map(|input| {
        let mut input = json!(input);
        if let Value::Object(fields) = &mut input {
            HOW_FAST
                .iter()
                .for_each(|field| drop(fields.remove(*field)));
        }
        input
    });
    let all = json!([inputs.collect::<Vec<_>>(), symbols]);
    xxh3_64(all.to_string().as_bytes())
}
