//! The identity of an epoch's inputs, kept with it. Other inputs, other routes, or a replaced
//! capture file would not replay the same messages.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

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

/// The files of each source, in the order of the config.
pub(crate) type Captures = BTreeMap<u16, Vec<CaptureFile>>;

/// Metadata that identifies a file of an input. Its contents are compared with the ring when it is
/// read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CaptureFile {
    len: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl CaptureFile {
    /// Returns the current metadata of a file; `None` when it can't be read.
    fn of(path: &PathBuf) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        Some(Self {
            len: file.len(),
            modified_s: file.mtime(),
            modified_ns: file.mtime_nsec(),
        })
    }
}

impl Inputs {
    /// Returns the current identity of a config's inputs.
    pub(crate) fn of(config: &Config) -> Self {
        let captures = config.inputs.iter().filter_map(|input| match input {
            InputConfig::Capture(capture) => {
                // Opening an unreadable file reports the cause, so skip it here.
                let files = capture.files.iter().map(CaptureFile::of);
                Some((capture.source.0, files.collect::<Option<_>>()?))
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
        let is_other = |(source, files): &(&u16, &Vec<CaptureFile>)| {
            before.get(source).is_some_and(|before| before != *files)
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
