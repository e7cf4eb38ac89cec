//! The pages of resources: a table with the columns of the kind, and one resource.

use overmind_api::{Event, KindView, Resource, ResourceOwned, Timestamp, kind_of, ritual_ticks};
use serde_json::{Map, Value, json};

use crate::parts::{Pill, Tone};
use crate::when::When;
use crate::{FleetPanel, LogRow, clean, yaml};

/// Longest document that is shown, in characters.
const MOST: usize = 64_000;

/// A kind in the list of kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindRow {
    pub title: String,
    pub link: String,
    /// Other names of the kind, separated by commas.
    pub words: String,
    /// For a read-only kind: the commands that change its objects.
    pub changed_by: Option<String>,
}

impl KindRow {
    pub fn new(kind: &KindView) -> Self {
        Self {
            title: clean::line(&kind.kind).into_owned(),
            link: format!("/resources/{}", kind.name),
            words: clean::line(
                &[vec![kind.plural.clone()], kind.aliases.clone()].concat().join(", "),
            )
            .into_owned(),
            changed_by: kind.changed_by.as_deref().map(|by| clean::line(by).into_owned()),
        }
    }
}

/// The page `/resources/{kind}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceTable {
    pub kind: KindRow,
    /// The columns between name and age.
    pub columns: Vec<String>,
    pub rows: Vec<ResourceRow>,
}

/// A resource in the table of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRow {
    pub name: String,
    pub cells: Vec<String>,
    pub created: When,
}

impl ResourceRow {
    /// Returns the name for people.
    pub fn shown(&self) -> String {
        clean::line(&self.name).into_owned()
    }
}

impl ResourceTable {
    pub fn new(kind: &KindView, resources: &[Resource], now: Timestamp) -> Self {
        let known = kind_of(&kind.name).ok();
        let columns = known.map(|known| known.columns).unwrap_or_default();
        let columns: Vec<_> = columns.iter().filter(|column| !column.is_wide).collect();
        let rows = resources.iter().map(|one| {
            let record = one.to_record();
            let cells = columns.iter().map(|column| {
                let text = record.as_ref().map(|record| (column.cell)(record, now));
                clean::cut(&clean::line(&text.unwrap_or_default()), 120).into_owned()
            });
            ResourceRow {
                name: one.metadata.name.clone(),
                cells: cells.collect(),
                created: When::new(one.metadata.creation_timestamp, now),
            }
        });
        let name = |text: &str| {
            let mut chars = text.chars();
            let first = chars.next().map(|c| c.to_string()).unwrap_or_default();
            first + &chars.as_str().to_lowercase()
        };
        Self {
            rows: rows.collect(),
            columns: columns.iter().map(|column| name(column.name)).collect(),
            kind: KindRow::new(kind),
        }
    }
}

/// A condition of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionRow {
    pub kind: String,
    pub pill: Pill,
    pub reason: String,
    pub message: String,
    pub since: Option<When>,
}

/// An object that a resource owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRow {
    pub kind: String,
    pub name: String,
    pub link: String,
    pub phase: String,
    pub created: When,
}

/// The schedule of a resource that creates others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recurring {
    pub paused: bool,
    /// The next times, relative and exact.
    pub next: Vec<When>,
}

/// The page `/resources/{kind}/{name}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourcePage {
    pub kind: String,
    /// The path `/resources/{kind}`.
    pub table: String,
    pub name: String,
    pub desired: String,
    pub actual: String,
    pub conditions: Vec<ConditionRow>,
    pub owned: Vec<OwnedRow>,
    pub events: Vec<LogRow>,
    /// Labels as `key=value`.
    pub labels: Vec<String>,
    pub generation: u64,
    pub created: When,
    pub deleting: bool,
    /// The document that a person edits.
    pub document: String,
    /// For a read-only kind: the commands that change its objects.
    pub changed_by: Option<String>,
    pub recurring: Option<Recurring>,
    /// The panel of a fleet; `None` until [`with_packs`](Self::with_packs) is called.
    pub fleet: Option<FleetPanel>,
}

impl ResourcePage {
    pub fn new(
        kind: &KindView,
        one: &Resource,
        owned: &[ResourceOwned],
        events: &[Event],
        now: Timestamp,
    ) -> Self {
        let mut actual = one.status.clone();
        let conditions = actual.as_object_mut().and_then(|fields| fields.remove("conditions"));
        let conditions = conditions.unwrap_or_default();
        let meta = &one.metadata;
        let labels = meta.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let ritual = kind.name == "ritual";
        let recurring = ritual.then(|| Recurring {
            paused: one.spec.get("suspend").and_then(Value::as_bool).unwrap_or(false),
            next: ritual_ticks(&one.spec, now, 5).iter().map(|at| When::until(*at, now)).collect(),
        });
        Self {
            kind: clean::line(&one.kind).into_owned(),
            table: format!("/resources/{}", kind.name),
            name: clean::line(&meta.name).into_owned(),
            desired: shown(&one.spec),
            actual: shown(&actual),
            conditions: conditions
                .as_array()
                .into_iter()
                .flatten()
                .map(|one| condition(one, now))
                .collect(),
            owned: owned.iter().map(|one| OwnedRow::new(one, now)).collect(),
            events: events.iter().rev().take(100).map(|event| LogRow::new(event, now)).collect(),
            labels: labels.map(|text| clean::line(&text).into_owned()).collect(),
            generation: meta.generation,
            created: When::new(meta.creation_timestamp, now),
            deleting: meta.deletion_timestamp.is_some(),
            document: document(one),
            changed_by: KindRow::new(kind).changed_by,
            recurring,
            fleet: None,
        }
    }

    /// Adds the panel of a fleet. `packs`: the packs that it owns.
    #[must_use]
    pub fn with_packs(mut self, fleet: &Resource, packs: &[Resource], now: Timestamp) -> Self {
        self.fleet = Some(FleetPanel::new(fleet, packs, now));
        self
    }
}

/// Returns a value as YAML, without control characters.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        value => clean::cut(&clean::block(yaml::to_string(value).trim_end()), MOST).into_owned(),
    }
}

/// Returns the editable document of a resource. It contains the version, so that two people cannot
/// overwrite each other's changes.
fn document(one: &Resource) -> String {
    let meta = &one.metadata;
    let mut of = Map::new();
    of.insert("name".to_owned(), json!(meta.name));
    if !meta.labels.is_empty() {
        of.insert("labels".to_owned(), json!(meta.labels));
    }
    if !meta.annotations.is_empty() {
        of.insert("annotations".to_owned(), json!(meta.annotations));
    }
    if let Some(version) = &meta.resource_version {
        of.insert("resourceVersion".to_owned(), json!(version));
    }
    let parts = [
        json!({"apiVersion": one.api_version}),
        json!({"kind": one.kind}),
        json!({"metadata": of}),
        json!({"spec": one.spec}),
    ];
    parts.iter().map(yaml::to_string).collect()
}

fn condition(one: &Value, now: Timestamp) -> ConditionRow {
    let text = |key: &str| {
        let text = one.get(key).and_then(Value::as_str).unwrap_or_default();
        clean::cut(&clean::line(text), 400).into_owned()
    };
    let since = ["lastTransition", "lastTransitionTime"].iter().find_map(|key| one.get(key));
    let since = since.and_then(|at| serde_json::from_value::<Timestamp>(at.clone()).ok());
    let kind = text("type");
    let bad = ["Failed", "Degraded", "Stalled"].iter().any(|word| kind.contains(word));
    let pill = match (text("status").as_str(), bad) {
        ("True", true) => Pill::new(Tone::Bad, "✕", "yes"),
        ("True", false) => Pill::new(Tone::Good, "✓", "yes"),
        ("False", _) => Pill::new(Tone::Flat, "○", "no"),
        _ => Pill::new(Tone::Ask, "?", "unknown"),
    };
    ConditionRow {
        kind,
        pill,
        reason: text("reason"),
        message: text("message"),
        since: since.map(|at| When::new(at, now)),
    }
}

fn plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

impl OwnedRow {
    fn new(one: &ResourceOwned, now: Timestamp) -> Self {
        let link = match one.kind.as_str() {
            "Session" => format!("/runs/{}", one.uid),
            // Names of records are of small letters, digits, hyphens and dots.
            kind if plain(kind) && plain(&one.name) => {
                format!("/resources/{}/{}", kind.to_ascii_lowercase(), one.name)
            }
            _ => "/resources".to_owned(),
        };
        Self {
            kind: clean::line(&one.kind).into_owned(),
            name: clean::line(&one.name).into_owned(),
            link,
            phase: clean::line(one.phase.as_deref().unwrap_or_default()).into_owned(),
            created: When::new(one.creation_timestamp, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents;

    fn ritual(suspend: bool) -> Resource {
        serde_json::from_value(json!({
            "apiVersion": "overmind/v1", "kind": "Ritual",
            "metadata": {"name": "daily", "colony": "default", "generation": 2, "resourceVersion": "7",
                "uid": "rec_00000000000000000000000000000001", "labels": {"a": "b"},
                "creationTimestamp": "2026-11-25T16:00:00+00:00"},
            "spec": {"schedule": "0 9 * * *", "suspend": suspend,
                "template": {"agent": "sh", "task": "x: \u{1b}[2J"}},
            "status": {"runs": 3, "conditions": [
                {"type": "Failed", "status": "True", "reason": "R", "message": "m\u{7}",
                    "lastTransition": "2026-11-25T16:00:00+00:00"}]},
        }))
        .unwrap()
    }

    #[test]
    fn the_page_of_a_kind_is_generated_from_its_definition() {
        let now: Timestamp = "2026-11-25T17:00:00+00:00".parse().unwrap();
        let kind = KindView::from(kind_of("ritual").unwrap());
        let table = ResourceTable::new(&kind, &[ritual(false)], now);
        assert_eq!(table.columns.len(), table.rows[0].cells.len());
        assert!(table.columns.iter().any(|name| name == "Schedule"), "{:?}", table.columns);
        let page = ResourcePage::new(&kind, &ritual(false), &[], &[], now);
        let next = page.recurring.unwrap().next;
        assert_eq!(next.len(), 5);
        assert_eq!(
            (next[0].ago.as_str(), next[0].exact.as_str()),
            ("in 16 h", "2026-11-26 09:00:00 UTC")
        );
        assert_eq!(page.conditions[0].message, "m\\u{7}");
        assert_eq!((page.conditions[0].pill.tone, page.actual.as_str()), (Tone::Bad, "runs: 3"));
        assert!(!page.desired.contains('\u{1b}') && !page.document.contains('\u{1b}'));
        // The edited document equals the stored one.
        let (read, wrong) = documents::parse("d", &page.document, &mut 100_000);
        assert_eq!(wrong, []);
        assert_eq!(read[0].value["spec"], ritual(false).spec);
        assert_eq!(read[0].value["metadata"]["resourceVersion"], "7");
        let page = ResourcePage::new(&kind, &ritual(true), &[], &[], now);
        assert_eq!(page.recurring, Some(Recurring { paused: true, next: vec![] }));
    }
}
