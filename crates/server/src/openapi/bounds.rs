//! Parts of the document besides the types and handlers: bounds that are checked by hand, and not
//! by the type of a field.
//!
//! They stand in one file, `bounds.json`: `document` is merged into the document as RFC 7396 has
//! it, `params` into the schema of each parameter, by operation (`*` is any) and name. Numbers of
//! Rust without a sign get the formats and maxima of their width: utoipa calls them `int32` and
//! `int64`, which their largest values are not.

use serde_json::{Map, Value, json};

const BOUNDS: &str = include_str!("bounds.json");

/// Adds the bounds to the document.
///
/// # Panics
///
/// When a bound is of something that is not in the document: it was renamed.
pub(super) fn state(document: &mut Value) {
    agents_in_either_form(document);
    runs_in_either_form(document);
    log_in_either_form(document);
    events_of_streams(document);
    let bounds: Value = serde_json::from_str(BOUNDS).expect("bounds.json is JSON");
    unsigned(document);
    for name in object(&bounds["document"]["components"]["schemas"]).keys() {
        let known = document["components"]["schemas"].get(name);
        assert!(known.is_some(), "there is no schema {name}");
    }
    merge(document, &bounds["document"]);
    let by_operation = object(&bounds["params"]);
    let mut used = Vec::new();
    let items = document["paths"].as_object_mut().expect("a document has paths");
    for operation in items.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut) {
        let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
        let Some(params) = operation.get_mut("parameters").and_then(Value::as_array_mut) else {
            continue;
        };
        for param in params {
            let name = param["name"].as_str().unwrap_or_default().to_owned();
            for which in ["*", id.as_str()] {
                if let Some(more) = by_operation.get(which).and_then(|of| of.get(&name)) {
                    merge(&mut param["schema"], more);
                    used.push((which.to_owned(), name.clone()));
                }
            }
        }
    }
    for (operation, names) in by_operation {
        for name in object(names).keys() {
            let found = used.iter().any(|(which, used)| which == operation && used == name);
            assert!(found, "{operation} has no parameter {name}");
        }
    }
}

/// Says of whole numbers from 0 on how large they may be.
fn unsigned(value: &mut Value) {
    if let Some(number) = value.as_object_mut() {
        let wide = match number.get("format").and_then(Value::as_str) {
            Some("int32") => Some(("uint32", u64::from(u32::MAX))),
            Some("int64") => Some(("uint64", u64::MAX)),
            Some(_) | None => None,
        };
        let from = number.get("minimum").and_then(Value::as_f64);
        if let (Some((format, most)), Some(true)) = (wide, from.map(|from| from >= 0.0)) {
            number.insert("format".to_owned(), format.into());
            number.entry("maximum").or_insert(most.into());
        }
        number.values_mut().for_each(unsigned);
    } else if let Some(list) = value.as_array_mut() {
        list.iter_mut().for_each(unsigned);
    }
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().expect("bounds.json holds objects")
}

/// A merge patch of RFC 7396: objects are merged, `null` removes, everything else replaces.
fn merge(to: &mut Value, more: &Value) {
    let (Some(to), Some(more)) = (to.as_object_mut(), more.as_object()) else {
        *to = more.clone();
        return;
    };
    for (key, value) in more {
        if value.is_null() {
            to.shift_remove(key);
        } else {
            merge(to.entry(key).or_insert(Value::Null), value);
        }
    }
}
/// `GET /mesh/agents` answers with a list in place of the map when `details=true`.
fn agents_in_either_form(document: &mut Value) {
    let at = "/paths/~1mesh~1agents/get/responses/200/content/application~1json/schema";
    if let Some(schema) = document.pointer_mut(at) {
        let list = json!({"type": "array", "items": {"$ref": "#/components/schemas/MeshAgent"}});
        *schema = json!({"oneOf": [schema.take(), list]});
    }
}

/// `GET /api/runs` answers with less of each when `view=basic`.
fn runs_in_either_form(document: &mut Value) {
    let at = "/paths/~1api~1runs/get/responses/200/content/application~1json/schema/items";
    if let Some(schema) = document.pointer_mut(at) {
        let basic = json!({"$ref": "#/components/schemas/RunBasic"});
        *schema = json!({"anyOf": [schema.take(), basic]});
    }
}

/// `GET /api/runs/{id}/log` answers with an object a line when `format=ndjson`.
fn log_in_either_form(document: &mut Value) {
    let at = "/paths/~1api~1runs~1{id}~1log/get/responses/200/content";
    if let Some(content) = document.pointer_mut(at).and_then(Value::as_object_mut) {
        content.insert("application/x-ndjson".to_owned(), json!({}));
    }
}

/// A stream returns one event after another: the text of each is JSON of the type that the handler
/// names.
fn events_of_streams(document: &mut Value) {
    let paths = document["paths"].as_object_mut().expect("a document has paths");
    for operation in paths.values_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut) {
        let Some(responses) = operation["responses"].as_object_mut() else { continue };
        for response in responses.values_mut() {
            let at = "/content/text~1event-stream/schema";
            let Some(schema) = response.pointer_mut(at) else { continue };
            let text = "One event of the stream; `data` is JSON";
            *schema = json!({
                "type": "object",
                "description": text,
                "properties": {
                    "id": {"type": "string"},
                    "event": {"type": "string"},
                    "data": {"type": "string", "contentMediaType": "application/json"},
                },
            });
        }
    }
}
