//! Reads a document strictly, and reports every mistake with its path.

use std::collections::BTreeMap;

use overmind_core::record::kinds::{not_a, unknown_fields};
use overmind_core::record::{FieldError, Kind, KindInfo, Name, Owner, OwnerWish};
use serde_json::{Map, Value};

use super::kind_of;

/// `apiVersion` of every document.
pub const RESOURCE_API_VERSION: &str = "overmind/v1";

/// A name that the paths of the API use for something else.
const RESERVED: &str = "watch";

const FIELDS: &[&str] = &["apiVersion", "kind", "metadata", "spec", "status"];
const METADATA: &[&str] = &[
    "annotations",
    "colony",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "labels",
    "name",
    "ownerReferences",
    "resourceVersion",
    "uid",
];

/// The content of a document. `status` and fields that the server sets are not read.
#[derive(Clone, Debug)]
pub struct Manifest {
    pub info: &'static KindInfo,
    pub name: Name,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub finalizers: Option<Vec<String>>,
    pub owner: Option<OwnerWish>,
    pub resource_version: Option<u64>,
    /// The name of the colony, if the document has one.
    pub colony: Option<String>,
    /// The spec, an object. The kind checks it later.
    pub spec: Value,
}

impl Manifest {
    /// Reads the envelope of a document, without its spec.
    ///
    /// # Errors
    ///
    /// Returns every mistake with its path in the document, including those of the spec if the kind
    /// is known.
    pub fn read(document: &Value) -> Result<Self, Vec<FieldError>> {
        let Some(fields) = document.as_object() else {
            return Err(vec![FieldError::new(
                "document",
                "must be a mapping with apiVersion, kind, metadata and spec",
            )]);
        };
        let mut reader = Reader { wrong: Vec::new() };
        reader.unknown("", fields, FIELDS);
        reader.version(fields);
        let info = reader.kind(fields);
        let empty = Map::new();
        let metadata = match fields.get("metadata") {
            Some(Value::Object(metadata)) => metadata,
            Some(other) => {
                reader.wrong.push(not_a("metadata", "a mapping", other));
                &empty
            }
            None => {
                reader.wrong.push(FieldError::new("metadata.name", "is required"));
                &empty
            }
        };
        reader.unknown("metadata", metadata, METADATA);
        let name = reader.name(metadata, fields.contains_key("metadata"));
        let colony = reader.colony(metadata);
        let labels = reader.texts(metadata, "labels");
        let annotations = reader.texts(metadata, "annotations");
        let finalizers = reader.finalizers(metadata);
        let owner = reader.owner(metadata);
        let resource_version = reader.resource_version(metadata);
        let spec = match fields.get("spec") {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(spec) => spec.clone(),
        };
        match (info, name) {
            (Some(info), Some(name)) if reader.wrong.is_empty() => Ok(Self {
                info,
                name,
                labels,
                annotations,
                finalizers,
                owner,
                resource_version,
                colony,
                spec,
            }),
            (info, _) => {
                use overmind_core::record::bounds::{check_annotations, check_body, check_labels};
                reader.wrong.extend(check_labels(&labels));
                reader.wrong.extend(check_annotations(&annotations));
                let shape = check_body("spec", &spec);
                let sound = shape.is_empty();
                reader.wrong.extend(shape);
                if let Some(info) = info.filter(|_| sound) {
                    reader.wrong.extend((info.check)(&spec));
                }
                Err(reader.wrong)
            }
        }
    }
}

struct Reader {
    wrong: Vec<FieldError>,
}

impl Reader {
    fn refuse(&mut self, at: &str, problem: impl Into<String>) {
        self.wrong.push(FieldError::new(at, problem));
    }

    fn unknown(&mut self, at: &str, fields: &Map<String, Value>, known: &[&str]) {
        let found = unknown_fields(if at.is_empty() { "a document" } else { at }, fields, known);
        self.wrong.extend(found.into_iter().map(|mut error| {
            if let Some(path) = error.path.strip_prefix("a document.") {
                error.path = path.to_owned();
            }
            error
        }));
    }

    fn version(&mut self, fields: &Map<String, Value>) {
        match fields.get("apiVersion") {
            None => self.refuse("apiVersion", format!("is required: {RESOURCE_API_VERSION}")),
            Some(Value::String(version)) if version == RESOURCE_API_VERSION => {}
            Some(_) => self.refuse("apiVersion", format!("must be {RESOURCE_API_VERSION}")),
        }
    }

    fn kind(&mut self, fields: &Map<String, Value>) -> Option<&'static KindInfo> {
        match fields.get("kind") {
            None => self.refuse("kind", "is required"),
            Some(Value::String(word)) => match kind_of(word) {
                Ok(info) => return Some(info),
                Err(unknown) => {
                    let error = FieldError::new(
                        "kind",
                        format!("is `{}`, which is not a kind", unknown.given),
                    );
                    self.wrong.push(match unknown.meant {
                        Some(meant) => {
                            error.hint(format!("did you mean `{}`?", super::kind_title(meant)))
                        }
                        None => error.hint("`overmind api-resources` lists all kinds"),
                    });
                }
            },
            Some(other) => self.wrong.push(not_a("kind", "a text", other)),
        }
        None
    }

    fn name(&mut self, metadata: &Map<String, Value>, told: bool) -> Option<Name> {
        match metadata.get("name") {
            None if told => self.refuse("metadata.name", "is required"),
            None => {}
            Some(Value::String(name)) if name == RESERVED => {
                self.refuse("metadata.name", "must not be `watch`: the API uses that word");
            }
            Some(Value::String(name)) => match Name::parse(name) {
                Ok(name) => return Some(name),
                Err(err) => self.refuse("metadata.name", err.0),
            },
            Some(other) => self.wrong.push(not_a("metadata.name", "a text", other)),
        }
        None
    }

    fn colony(&mut self, metadata: &Map<String, Value>) -> Option<String> {
        match metadata.get("colony") {
            None => {}
            Some(Value::String(name)) => match Name::parse(name) {
                Ok(_) => return Some(name.clone()),
                Err(err) => self.refuse("metadata.colony", err.0),
            },
            Some(other) => self.wrong.push(not_a("metadata.colony", "a text", other)),
        }
        None
    }

    fn texts(&mut self, metadata: &Map<String, Value>, field: &str) -> BTreeMap<String, String> {
        let at = format!("metadata.{field}");
        let mut texts = BTreeMap::new();
        match metadata.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::Object(found)) => {
                for (key, value) in found {
                    match value.as_str() {
                        Some(text) => drop(texts.insert(key.clone(), text.to_owned())),
                        None => self.wrong.push(not_a(&format!("{at}.{key}"), "a text", value)),
                    }
                }
            }
            Some(other) => self.wrong.push(not_a(&at, "a mapping", other)),
        }
        texts
    }

    fn finalizers(&mut self, metadata: &Map<String, Value>) -> Option<Vec<String>> {
        let at = "metadata.finalizers";
        let list = match metadata.get("finalizers")? {
            Value::Array(list) => list,
            Value::Null => return Some(Vec::new()),
            other => {
                self.wrong.push(not_a(at, "a list of texts", other));
                return None;
            }
        };
        let texts = list.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
        if texts.is_none() {
            self.refuse(at, "must be a list of texts");
        }
        Some(texts?.into_iter().map(str::to_owned).collect())
    }

    fn owner(&mut self, metadata: &Map<String, Value>) -> Option<OwnerWish> {
        let at = "metadata.ownerReferences";
        let found = metadata.get("ownerReferences")?;
        let Some([reference]) = found.as_array().map(Vec::as_slice) else {
            if found.as_array().is_none_or(|list| !list.is_empty()) {
                self.refuse(at, "must be a list of one owner");
            }
            return None;
        };
        let fields = reference.as_object().cloned().unwrap_or_default();
        self.unknown(&format!("{at}[0]"), &fields, &["kind", "name", "uid"]);
        if let Some(uid) = fields.get("uid") {
            for field in ["kind", "name"].into_iter().filter(|field| fields.contains_key(*field)) {
                self.refuse(&format!("{at}[0].{field}"), "must be left out beside `uid`");
            }
            return match uid.as_str().map(str::parse::<Owner>) {
                Some(Ok(owner)) => Some(OwnerWish::Is(owner)),
                Some(Err(err)) => {
                    self.refuse(&format!("{at}[0].uid"), format!("is no uid: {err}"));
                    None
                }
                None => {
                    self.wrong.push(not_a(&format!("{at}[0].uid"), "a text", uid));
                    None
                }
            };
        }
        let text = |field: &str| fields.get(field).and_then(Value::as_str);
        let (Some(kind), Some(name)) = (text("kind"), text("name")) else {
            self.refuse(&format!("{at}[0]"), "must have a `uid`, or `kind` and `name`");
            return None;
        };
        let kind = match kind_of(kind) {
            Ok(info) if info.changed_by.is_none() => Kind::parse(info.name).ok(),
            Ok(info) => {
                let problem = format!("is {}, which is only shown: name its `uid`", info.name);
                self.refuse(&format!("{at}[0].kind"), problem);
                None
            }
            Err(unknown) => {
                self.refuse(&format!("{at}[0].kind"), format!("is wrong: {unknown}"));
                None
            }
        };
        match Name::parse(name) {
            Ok(name) => Some(OwnerWish::Named(kind?, name)),
            Err(err) => {
                self.refuse(&format!("{at}[0].name"), err.to_string());
                None
            }
        }
    }

    fn resource_version(&mut self, metadata: &Map<String, Value>) -> Option<u64> {
        let version = match metadata.get("resourceVersion")? {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64(),
        };
        if version.is_none() {
            self.refuse("metadata.resourceVersion", "must be the one that was read");
        }
        version
    }
}

#[cfg(test)]
mod tests {
    use overmind_core::ids::RecordId;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_needs_a_name_and_server_fields_are_ignored() {
        let read = Manifest::read(&json!({
            "apiVersion": "overmind/v1", "kind": "Context",
            "metadata": {"name": "a", "labels": {"x": "y"}, "resourceVersion": "7", "uid": "?",
                "generation": 3, "creationTimestamp": "?", "colony": "default"},
            "spec": {"prompt": "p"}, "status": {"any": 1},
        }));
        let read = read.unwrap();
        assert_eq!((read.info.name, read.name.as_str()), ("context", "a"));
        assert_eq!(read.resource_version, Some(7));
        assert_eq!(read.spec, json!({"prompt": "p"}));
    }

    #[test]
    fn an_owner_is_named_by_its_uid_or_by_kind_and_name() {
        let read = |owner: Value| {
            let read = Manifest::read(&json!({
                "apiVersion": "overmind/v1", "kind": "Context", "spec": {"prompt": "p"},
                "metadata": {"name": "a", "ownerReferences": [owner]},
            }));
            read.map(|read| read.owner).map_err(|wrong| wrong[0].to_string())
        };
        let uid = &RecordId::from_u128(7).to_string();
        let by_uid = Owner::Record(RecordId::from_u128(7));
        assert_eq!(read(json!({"uid": uid})), Ok(Some(OwnerWish::Is(by_uid))));
        let (kind, name) = (Kind::parse("fleet").unwrap(), Name::parse("web").unwrap());
        let named = read(json!({"kind": "Fleet", "name": "web"}));
        assert_eq!(named, Ok(Some(OwnerWish::Named(kind, name))));
        for (owner, want) in [
            (json!({}), "[0] must have a `uid`, or `kind` and `name`"),
            (json!({"kind": "Fleet"}), "[0] must have a `uid`, or `kind` and `name`"),
            (json!({"uid": uid, "kind": "Fleet"}), "[0].kind must be left out beside `uid`"),
            (json!({"uid": 7}), "[0].uid must be a text"),
            (json!({"kind": "Flet", "name": "web"}), "[0].kind is wrong: "),
            (json!({"kind": "Session", "name": "web"}), "[0].kind is session, which is only shown"),
            (json!({"kind": "Fleet", "name": "W"}), "[0].name may have small letters"),
        ] {
            let wrong = read(owner.clone()).unwrap_err();
            assert!(wrong.contains(&format!("metadata.ownerReferences{want}")), "{owner}: {wrong}");
        }
    }

    #[test]
    fn all_mistakes_of_a_document_are_reported_together() {
        let wrong = Manifest::read(&json!({
            "apiVersion": "v1", "kind": "Contxt", "metdata": {},
            "metadata": {"name": "A/b", "lables": {}, "colony": "X", "labels": {"a": 1}},
            "spec": {"promt": "p"},
        }));
        let all: Vec<String> = wrong.unwrap_err().iter().map(ToString::to_string).collect();
        for want in [
            "apiVersion must be overmind/v1",
            "kind is `Contxt`, which is not a kind; did you mean `Context`?",
            "metdata is not a field; did you mean `metadata`?",
            "metadata.name may have small letters, digits, hyphens and dots, not `A` at position 1",
            "metadata.lables is not a field; did you mean `labels`?",
            "metadata.colony may have small letters, digits, hyphens and dots, not `X` at position 1",
            "metadata.labels.a must be a text, not a number; put it in quotes",
        ] {
            assert!(all.iter().any(|one| one == want), "{want}\n{all:#?}");
        }
        assert_eq!(all.len(), 7, "{all:#?}");
        for odd in
            [json!(null), json!([]), json!("x"), json!({}), json!({"metadata": 3, "spec": 1})]
        {
            assert!(Manifest::read(&odd).is_err(), "{odd}");
        }
        let typo = json!({"apiVersion": "overmind/v1", "kind": "ctx", "metadata": {"name": "watch"},
            "spec": {"promt": "p"}});
        let all = Manifest::read(&typo).unwrap_err();
        assert_eq!(all.len(), 2, "those of the spec too: {all:?}");
    }
}
