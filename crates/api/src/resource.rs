//! Resources of the API: one envelope for every kind, in the form that users of kubectl know.

mod manifest;
mod shown;

use std::collections::BTreeMap;

use overmind_core::ids::RecordId;
use overmind_core::record::{self, KindInfo, Record};
use overmind_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use manifest::{Manifest, RESOURCE_API_VERSION};

/// The header with the name of the colony that a request is for, or `*`: lists contain every colony
/// that the caller may reach. Without it, the colony is the key's own, or `default`.
pub const COLONY_HEADER: &str = "overmind-colony";

/// A resource: an object that the user declares or the server shows.
///
/// The field names are those of Kubernetes. To change a resource, a client sends the same document;
/// in `metadata` only `name` is required.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    #[cfg_attr(feature = "openapi", schema(example = "overmind/v1"))]
    pub api_version: String,
    #[cfg_attr(feature = "openapi", schema(example = "Context"))]
    pub kind: String,
    pub metadata: ResourceMeta,
    /// The desired state. `GET /api/kinds` returns the JSON Schema of each kind.
    pub spec: Value,
    /// The observed state; its `conditions` are a list.
    #[serde(default)]
    pub status: Value,
}

/// The metadata, the same for all kinds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceMeta {
    #[cfg_attr(feature = "openapi", schema(example = "greeting"))]
    pub name: String,
    #[cfg_attr(feature = "openapi", schema(example = "default"))]
    pub colony: String,
    /// Unique id. A later resource of the same name has another uid.
    pub uid: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Starts at 1 and increases by one with every change of the spec.
    pub generation: u64,
    /// Changes with every write. Send it back to change only the version that you have read.
    /// Omitted from a resource that a dry run would create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub creation_timestamp: Timestamp,
    /// Time at which deletion was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub deletion_timestamp: Option<Timestamp>,
}

/// The owner of a resource. When the owner is deleted, the resource is deleted too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OwnerReference {
    /// The uid of another resource, or the id of a run.
    pub uid: String,
}

impl Resource {
    /// Converts a record to its form in the API. `colony` is the name of its colony.
    pub fn of(record: Record, colony: String) -> Self {
        let Record { id, key, generation, labels, annotations, owner, spec, status, .. } = record;
        let owner = owner.map(|owner| OwnerReference { uid: owner.to_string() });
        Self {
            api_version: RESOURCE_API_VERSION.to_owned(),
            kind: kind_title(key.kind.as_str()),
            metadata: ResourceMeta {
                name: key.name.as_str().to_owned(),
                colony,
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

    /// Converts back to a record, for the columns of its kind. Fields that the API does not return
    /// are empty. `None` if another version of the program wrote it.
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

    /// Returns the reference, such as `context/greeting`.
    pub fn reference(&self) -> String {
        format!("{}/{}", self.kind.to_ascii_lowercase(), self.metadata.name)
    }
}

/// Returns a kind as documents spell it: `Context` for `context`.
pub fn kind_title(name: &str) -> String {
    let mut title = String::with_capacity(name.len());
    for part in name.split('-') {
        let mut chars = part.chars();
        title.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        title.push_str(chars.as_str());
    }
    title
}

/// A kind of resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct KindView {
    /// The name in paths, singular: `context`.
    pub name: String,
    pub plural: String,
    /// Other names of the kind.
    pub aliases: Vec<String>,
    /// The name in documents: `Context`.
    pub kind: String,
    pub api_version: String,
    /// JSON Schema of `spec`.
    pub schema: Value,
    /// For a kind that cannot be applied: the commands that change it.
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

/// Creates or changes resources. Either all documents are applied or none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ResourceApply {
    /// At most 5,000 documents, each a [`Resource`]. Fields that the server sets are ignored.
    pub documents: Vec<Value>,
    /// Checks everything and writes nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// A label selector. Deletes, in the same commit, the matching resources that are in no
    /// document and have no owner. By default, nothing is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(example = "app=web"))]
    pub prune: Option<String>,
}

/// The result for one document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceApplied {
    /// The result: `created`, `configured` or `unchanged`.
    pub outcome: String,
    pub resource: Resource,
}

/// The answer to an apply, with one result for each document, in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourcesApplied {
    pub results: Vec<ResourceApplied>,
    /// The resources that `prune` deleted or would delete, as they were before. A resource with
    /// finalizers is only marked, and is removed with the last finalizer.
    #[serde(default)]
    pub pruned: Vec<Resource>,
}

/// The result of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResourceDeleted {
    /// Whether the resource is removed. Otherwise its finalizers or the resources that it owns
    /// delay the removal.
    pub gone: bool,
}

/// A resource that was removed, or that no longer matches the watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceGone {
    pub kind: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

/// Ends the initial list of a watch: all matching resources have been sent, and changes follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceSnapshot {
    /// The resource version from which to watch.
    pub resource_version: String,
}

/// An object that a resource owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResourceOwned {
    /// The kind as documents spell it: `Session`.
    pub kind: String,
    pub name: String,
    pub uid: String,
    /// The phase, if its kind has one: `running`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub creation_timestamp: Timestamp,
}

/// The query of a list of resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct ResourceListQuery {
    /// Maximum number of resources to return, 1 to 1000. Default: 100.
    pub limit: Option<u32>,
    /// The cursor from the `Link` header of the previous page.
    pub cursor: Option<String>,
    /// A label selector: `app=web,tier!=gold,env in (a, b),!old`.
    pub selector: Option<String>,
    /// Returns only objects that this resource or run owns: its uid.
    pub owner: Option<String>,
}

/// The query of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
pub struct ResourceDeleteQuery {
    /// How owned objects are deleted: `background` (after the owner, the default), `foreground`
    /// (before the owner) or `orphan` (not at all).
    pub cascade: Option<String>,
    /// Deletes only if the resource has this version.
    pub resource_version: Option<u64>,
}

/// Returns the next ticks of a ritual's spec after `now`, at most `count`. Empty if the ritual is
/// suspended or its spec cannot be read.
pub fn ritual_ticks(spec: &Value, now: Timestamp, count: usize) -> Vec<Timestamp> {
    let Ok(spec) = overmind_core::ritual::RitualSpec::read(spec) else { return Vec::new() };
    if spec.suspend {
        return Vec::new();
    }
    let first = spec.schedule.next(now);
    std::iter::successors(first, |last| spec.schedule.next(*last)).take(count).collect()
}

/// Returns the kind for a name or alias that this program knows.
///
/// # Errors
///
/// [`record::kind::UnknownKind`] if there is no such kind.
pub fn kind_of(word: &str) -> Result<&'static KindInfo, record::kind::UnknownKind> {
    record::kind::find(record::KINDS, word)
}
