//! The JSON schema of a config, generated from the types and their documentation.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tickcast_feeds::capture::PacketTime;

use crate::config::Config;

/// The name of a publisher, a channel or a standby.
pub(super) const NAME_PATTERN: &str = "^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$";
/// A day, as `2019-01-30`.
pub(super) const DATE_PATTERN: &str = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$";

/// Returns the schema of a config.
#[must_use]
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|it| it.inline_subschemas = true);
    let settings = settings.with_transform(RecursiveTransform(describe));
    settings
        .into_generator()
        .into_root_schema_for::<Config>()
        .to_value()
}

/// Limits a description to the text before the example, on one line.
fn describe(schema: &mut Schema) {
    let Some(Value::String(text)) = schema.get_mut("description") else {
        return;
    };
    let (words, _) = text.split_once("```").unwrap_or((text, ""));
    *text = words.split_whitespace().collect::<Vec<_>>().join(" ");
}

/// Returns the schema of an object with the fields of its default, whose values have the same types.
pub(super) fn of_default<T: Default + Serialize>(_: &mut SchemaGenerator) -> Schema {
    let default = json!(T::default());
    json_schema!({ "type": "object", "properties": properties(&default) })
}

fn properties(default: &Value) -> Map<String, Value> {
    let fields = default.as_object().into_iter().flatten();
    let property = |(name, default): (&String, &Value)| {
        let mut property = match default {
            Value::Object(_) => json!({ "type": "object", "additionalProperties": false,
                "properties": properties(default) }),
            Value::Array(_) => json!({ "type": "array", "items": { "type": "string" } }),
            Value::Number(number) if number.is_u64() => json!({ "type": "integer", "minimum": 0 }),
            Value::Number(_) => json!({ "type": "number" }),
            _ => json!({ "type": "string" }),
        };
        property["default"] = default.clone();
        (name.clone(), property)
    };
    fields.map(property).collect()
}

/// Returns the schema of the origins of times.
pub(super) fn packet_times(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": PacketTime::ALL.map(PacketTime::name) })
}
