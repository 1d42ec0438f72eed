//! The settings of two configs, side by side, and how a running publisher takes over each.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};
use tickcast_log::{Escaping, PlainJson};
use tickcast_reliability::serve::RepairConfig;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::Config;

/// Stands for a setting that one config lacks.
const ABSENT: Value = Value::Null;
/// Settings that a reload applies beside the [`RepairConfig::BUDGETS`]. Only checks and readers use the last
/// four.
const RELOADED: [&str; 5] = [
    "log",
    "link_bytes_per_s",
    "subscribers",
    "$comment",
    "$schema",
];

/// A setting of a running publisher, and of a config file.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its JSON path.
    pub path: String,
    running: Value,
    file: Value,
    is_reloaded: bool,
}

impl Setting {
    /// Returns whether the file has the running value.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.running == self.file
    }

    /// Returns whether a reload takes over the file's value.
    #[must_use]
    pub const fn is_reloaded(&self) -> bool {
        self.is_reloaded
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            running,
            file,
            is_reloaded,
        } = self;
        // The names and values of another publisher may be anything.
        Escaping::write(f, format_args!("{path}"))?;
        let [running, file] = [running, file].map(PlainJson);
        if self.is_same() {
            return write!(f, ": {running}: same");
        }
        let how = match is_reloaded {
            true => "changes on reload",
            false => "needs a restart",
        };
        write!(f, ": {running} -> {file}: {how}")
    }
}

/// Returns a config as others may see it: with all defaults, and with hashes of the paths of secrets.
pub(crate) fn shown(config: &Config) -> Value {
    let mut json = config.to_json();
    for owner in ["commands", "standby"] {
        if let Some(Value::String(path)) = json[owner].get_mut("token_file") {
            *path = format!("hidden {:016x}", xxh3_64(path.as_bytes()));
        }
    }
    json
}

/// Compares all settings of two configs as [`shown`] gives them.
pub(crate) fn compare(running: &Value, file: &Value) -> Vec<Setting> {
    let mut settings = Vec::new();
    let hands_over = (running["hand_over_to"].as_array()).is_some_and(|names| !names.is_empty());
    add(&mut settings, String::new(), running, file);
    for setting in &mut settings {
        let path = setting.path.as_str();
        // A standby checks the symbols when it connects, and would keep the old ones.
        let is_of_symbols = path.starts_with("channels[") && path.ends_with("].symbols");
        let is_listed = |of: &str| {
            let rest = path.strip_prefix(of);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let is_budget = (path.strip_prefix("repair."))
            .is_some_and(|name| RepairConfig::BUDGETS.contains(&name));
        setting.is_reloaded =
            is_budget || RELOADED.iter().any(|it| is_listed(it)) || is_of_symbols && !hands_over;
    }
    settings
}

fn add(settings: &mut Vec<Setting>, path: String, running: &Value, file: &Value) {
    match (running, file) {
        (Value::Object(running), Value::Object(file)) => {
            let keys: BTreeSet<_> = running.keys().chain(file.keys()).collect();
            for key in keys {
                let path = match &path[..] {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or(ABSENT);
                add(settings, path, &of(running), &of(file));
            }
        }
        (Value::Array(running), Value::Array(file))
            if running.iter().chain(file).any(Value::is_object) =>
        {
            for index in 0..running.len().max(file.len()) {
                let of = |list: &[Value]| list.get(index).cloned().unwrap_or(ABSENT);
                let path = format!("{path}[{index}]");
                add(settings, path, &of(running), &of(file));
            }
        }
        _ => settings.push(Setting {
            path,
            running: running.clone(),
            file: file.clone(),
            is_reloaded: false,
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_same_reloaded_or_for_a_restart() {
        let running = json!({ "name": "a", "ttl": 1, "log": null, "hand_over_to": [],
            "repair": { "joiner_bytes_per_s": 1, "peers_max": 2 },
            "channels": [{ "id": 1, "symbols": ["A*", "B"] }, { "id": 2 }] });
        let mut file = running.clone();
        file["log"] = json!("debug");
        file["repair"] = json!({ "joiner_bytes_per_s": 9, "peers_max": 9 });
        file["channels"] = json!([{ "id": 1, "symbols": ["A*"] }]);
        file["ttl"] = json!(2);
        let lines = |running: &Value| -> Vec<String> {
            let all = compare(running, &file);
            all.iter().map(ToString::to_string).collect()
        };
        let expected = [
            "channels[0].id: 1: same",
            "channels[0].symbols: [\"A*\",\"B\"] -> [\"A*\"]: changes on reload",
            "channels[1]: {\"id\":2} -> null: needs a restart",
            "hand_over_to: []: same",
            "log: null -> \"debug\": changes on reload",
            "name: \"a\": same",
            "repair.joiner_bytes_per_s: 1 -> 9: changes on reload",
            "repair.peers_max: 2 -> 9: needs a restart",
            "ttl: 1 -> 2: needs a restart",
        ];
        assert_eq!(lines(&running), expected);
        let mut mirrored = running;
        mirrored["hand_over_to"] = json!(["b"]);
        let with_standby = &lines(&mirrored)[1];
        assert!(with_standby.ends_with("needs a restart"), "{with_standby}");
    }

    #[test]
    fn hostile_setting_of_running_publisher_stays_in_its_line() {
        let hostile = "a\nb\u{1b}[2J\u{9b}\u{202e}";
        let running = json!({ hostile: hostile, "b": [{ hostile: 1 }] });
        for setting in compare(&running, &json!({ "b": [{}] })) {
            let line = setting.to_string();
            assert!(!line.contains(tickcast_log::is_control), "{line}");
        }
    }

    #[test]
    fn paths_of_secrets_are_hidden_and_still_compared() {
        let of = |token: &str| {
            let config = json!({ "name": "a", "inputs": [], "channels": [],
                "standby": { "of": "b:1", "token_file": token },
                "commands": { "listen": "127.0.0.1:0", "token_file": token } });
            shown(&Config::parse(&config.to_string()).unwrap())
        };
        let (one, other) = (of("/etc/secret-one"), of("/etc/secret-two"));
        assert!(!one.to_string().contains("secret"), "{one}");
        let is_different = |it: &Setting| !it.is_same();
        let differing: Vec<_> = compare(&one, &other)
            .into_iter()
            .filter(is_different)
            .collect();
        let paths: Vec<_> = differing.iter().map(|it| &it.path[..]).collect();
        assert_eq!(paths, ["commands.token_file", "standby.token_file"]);
        assert!(
            compare(&one, &of("/etc/secret-one"))
                .iter()
                .all(Setting::is_same)
        );
    }
}
