//! What the inputs of an epoch are, kept beside it: others, the same ones in other places, or a capture that
//! is another file by now would not tell again what was told.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickcast_reliability::types::SourceId;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{Config, InputConfig};

/// What does not change what an input tells.
const HOW_FAST: [&str; 2] = ["pace", "wait_for_subscribers"];

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// Of their config, and of where their messages go; where anybody asked for it.
    pub(crate) hash: Option<u64>,
    /// By the number of their source.
    pub(crate) captures: Captures,
}

pub(crate) type Captures = BTreeMap<u16, CaptureFile>;

/// By what a file is known. What it holds is held against the ring when it is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CaptureFile {
    len: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl Inputs {
    /// Those of a config, as they are now.
    pub(crate) fn of(config: &Config) -> Self {
        let captures = config.inputs.iter().filter_map(|input| match input {
            InputConfig::Capture(capture) => {
                // One that can't be looked at can't be opened, which says why.
                let file = std::fs::metadata(&capture.file).ok()?;
                let known_by = CaptureFile {
                    len: file.len(),
                    modified_s: file.mtime(),
                    modified_ns: file.mtime_nsec(),
                };
                Some((capture.source.0, known_by))
            }
            _ => None,
        });
        Self {
            hash: Some(hash(config)),
            captures: captures.collect(),
        }
    }

    /// Whose capture is no longer the file that it was; both are of one config.
    pub(crate) fn changed_since(&self, before: &Captures) -> Option<SourceId> {
        // What was not kept, as by an earlier version, is not known to be another.
        let is_other = |(source, file): &(&u16, &CaptureFile)| {
            before.get(source).is_some_and(|before| before != *file)
        };
        let changed = self.captures.iter().find(is_other);
        changed.map(|(source, _)| SourceId(*source))
    }
}

/// The inputs and where their messages go, as a number.
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
