//! Declared things on the wire: one envelope for every kind, as users of kubectl know it.

mod manifest;
mod shown;

use std::collections::BTreeMap;

use overmind_core::ids::RecordId;
use overmind_core::record::{self, KindInfo, Record};
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use manifest::{Manifest, RESOURCE_API_VERSION};

/// A declared thing.
///
/// Field names are those of Kubernetes. A client sends the same document to change it; of
/// `metadata` it needs `name` alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    #[cfg_attr(feature = "openapi", schema(example = "overmind/v1"))]
    pub api_version: String,
    #[cfg_attr(feature = "openapi", schema(example = "Context"))]
    pub kind: String,
    pub metadata: ResourceMeta,
    /// What is wanted; `GET /api/kinds` has the JSON Schema of each kind.
    pub spec: Value,
    /// What was observed; `conditions` in it is a list.
    #[serde(default)]
    pub status: Value,
}

/// What every resource has, whatever its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceMeta {
    #[cfg_attr(feature = "openapi", schema(example = "greeting"))]
    pub name: String,
    #[cfg_attr(feature = "openapi", schema(example = "default"))]
    pub colony: String,
    /// Of this resource alone: a later one of the same name has another.
    pub uid: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Grows by one with every change of the spec, from 1.
    pub generation: u64,
    /// Changes with every write. Send it back to change only what you have read. Absent from what a
    /// dry run would create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub creation_timestamp: Timestamp,
    /// Since when it is being deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub deletion_timestamp: Option<Timestamp>,
}

/// What a resource exists for: it goes when that does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OwnerReference {
    /// Of another resource, or the id of a run.
    pub uid: String,
}

impl Resource {
    /// How a record looks from outside.
    pub fn of(record: Record) -> Self {
        let Record { id, key, generation, labels, annotations, owner, spec, status, .. } = record;
        let owner = owner.map(|owner| OwnerReference { uid: owner.to_string() });
        Self {
            api_version: RESOURCE_API_VERSION.to_owned(),
            kind: kind_title(key.kind.as_str()),
            metadata: ResourceMeta {
                name: key.name.as_str().to_owned(),
                colony: overmind_core::ids::ColonyId::DEFAULT_NAME.to_owned(),
                uid: id.to_string(),
                labels,
                annotations,
                generation,
                resource_version: (record.changed > 0).then(|| record.changed.to_string()),
                owner_references: owner.into_iter().collect(),
                finalizers: record.finalizers,
                creation_timestamp: record.created_at,
                deletion_timestamp: record.deleting,
            },
            spec,
            status,
        }
    }

    /// The record that it shows, for columns of its kind. `None`: it is of another version of the
    /// program. What the wire does not say is empty.
    pub fn to_record(&self) -> Option<Record> {
        let kind = kind_of(&self.kind).ok()?;
        let key = record::RecordKey {
            kind: record::Kind::parse(kind.name).ok()?,
            colony: overmind_core::ids::ColonyId::DEFAULT,
            // And what is only shown may have a name that no record can have.
            name: record::Name::parse(&self.metadata.name)
                .or_else(|_| record::Name::parse("shown"))
                .ok()?,
        };
        let version = self.metadata.resource_version.as_deref().and_then(|text| text.parse().ok());
        Some(Record {
            // What is only shown has an id of another sort.
            id: self.metadata.uid.parse().unwrap_or(RecordId::from_u128(0)),
            key,
            version: 0,
            generation: self.metadata.generation,
            labels: self.metadata.labels.clone(),
            annotations: self.metadata.annotations.clone(),
            owner: self.metadata.owner_references.first().and_then(|owner| owner.uid.parse().ok()),
            spec: self.spec.clone(),
            status: self.status.clone(),
            terms: Vec::new(),
            due: None,
            expires_at: None,
            deleting: self.metadata.deletion_timestamp,
            finalizers: self.metadata.finalizers.clone(),
            created_at: self.metadata.creation_timestamp,
            updated_at: self.metadata.creation_timestamp,
            written_by: String::new(),
            changed: version.unwrap_or(0),
        })
    }

    /// `context/greeting`.
    pub fn reference(&self) -> String {
        format!("{}/{}", self.kind.to_ascii_lowercase(), self.metadata.name)
    }
}

/// A kind as documents spell it: `Context` for `context`.
pub fn kind_title(name: &str) -> String {
    let mut title = String::with_capacity(name.len());
    for part in name.split('-') {
        let mut chars = part.chars();
        title.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        title.push_str(chars.as_str());
    }
    title
}

/// What a server knows of a kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct KindView {
    /// Singular, as in paths: `context`.
    pub name: String,
    pub plural: String,
    /// Other words for it.
    pub aliases: Vec<String>,
    /// As documents spell it: `Context`.
    pub kind: String,
    pub api_version: String,
    /// JSON Schema of `spec`.
    pub schema: Value,
    /// Of a kind that is only shown: the commands that change what it shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
}

impl From<&KindInfo> for KindView {
    fn from(info: &KindInfo) -> Self {
        Self {
            name: info.name.to_owned(),
            plural: info.plural.to_owned(),
            aliases: info.aliases.iter().map(|&word| word.to_owned()).collect(),
            kind: kind_title(info.name),
            api_version: RESOURCE_API_VERSION.to_owned(),
            schema: (info.schema)(),
            changed_by: info.changed_by.map(str::to_owned),
        }
    }
}

/// Creates or changes resources, all of them or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ResourceApply {
    /// At most 5,000, each as [`Resource`]; what the server fills in is ignored.
    pub documents: Vec<Value>,
    /// Checks everything and writes nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// In the same commit, deletes what has the labels of this selector and no owner, and is in no
    /// document. Left out: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "app=web"))]
    pub prune: Option<String>,
}

/// What became of one document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceApplied {
    /// `created`, `configured` or `unchanged`.
    pub outcome: String,
    pub resource: Resource,
}

/// The answer to an apply: one for each document, in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourcesApplied {
    pub results: Vec<ResourceApplied>,
    /// What `prune` deleted, or would delete, as it was. What finalizers hold is marked, and goes with
    /// the last of them.
    #[serde(default)]
    pub pruned: Vec<Resource>,
}

/// What became of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceDeleted {
    /// Whether it is gone. Otherwise finalizers hold it, or what it owns does.
    pub gone: bool,
}

/// A resource that is gone, or no longer matches what is watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceGone {
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

/// All that matched have been sent; what follows happens now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceSnapshot {
    /// Where to watch from.
    pub resource_version: String,
}

/// Something that exists for a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceOwned {
    /// As documents spell it: `Session`.
    pub kind: String,
    pub name: String,
    pub uid: String,
    /// In one word, where its kind has such: `running`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub creation_timestamp: Timestamp,
}

/// Which resources of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct ResourceListQuery {
    /// 1..=1000, 100 when absent.
    pub limit: Option<u32>,
    /// From the `Link` header of the page before.
    pub cursor: Option<String>,
    /// A label selector: `app=web,tier!=gold,env in (a, b),!old`.
    pub selector: Option<String>,
    /// Only what exists for this resource or run: its uid.
    pub owner: Option<String>,
}

/// How to delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct ResourceDeleteQuery {
    /// What becomes of what it owns: `background` (goes after it, the default), `foreground` (goes
    /// before it) or `orphan` (stays).
    pub cascade: Option<String>,
    /// Only if it is at this resource version.
    pub resource_version: Option<u64>,
}

/// The next ticks of a ritual's spec after `now`, at most `count`; none while it is suspended or when
/// the spec cannot be read.
pub fn ritual_ticks(spec: &Value, now: Timestamp, count: usize) -> Vec<Timestamp> {
    let Ok(spec) = overmind_core::ritual::RitualSpec::read(spec) else { return Vec::new() };
    if spec.suspend {
        return Vec::new();
    }
    let first = spec.schedule.next(now);
    std::iter::successors(first, |last| spec.schedule.next(*last)).take(count).collect()
}

/// The kind that a word names, of those this program knows.
///
/// # Errors
///
/// [`record::kind::UnknownKind`].
pub fn kind_of(word: &str) -> Result<&'static KindInfo, record::kind::UnknownKind> {
    record::kind::find(record::KINDS, word)
}
