//! Determines the rights with which a quest starts sessions.
//!
//! The status contains the spec's last author with the role at that time. It is written in the
//! commit that writes the spec, and a document cannot set it. A change of labels alone does not
//! change the author: a caller that labels a quest does not give it their rights. Scaling a fleet,
//! pausing a ritual or running it now does not change the author either: the template, which
//! determines what is started, belongs to another author.

use overmind_core::agent::Agent;
use overmind_core::fleet;
use overmind_core::ids::ColonyId;
use overmind_core::quest::{Author, FINALIZER};
use overmind_core::record::decide::Put;
use overmind_core::record::kinds::context::CONTEXT;
use overmind_core::record::kinds::fleet::{FLEET, LINEAGE, PACK, SENTINEL};
use overmind_core::record::kinds::quest::QUEST;
use overmind_core::record::rows::RecordChange;
use overmind_core::record::{KindInfo, Record};
use overmind_core::row::Role;
use serde_json::{Value, json};

use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::error::EngineError;

/// Kinds that store their author: those whose reconcilers start sessions, and contexts, which
/// determine a command's variables.
const KINDS: &[&str] = &["context", "fleet", "lineage", "quest", "ritual", "sentinel"];

/// Whether runs exist for records of a kind.
pub(crate) fn starts_runs(kind: &str) -> bool {
    kind != CONTEXT.name && (KINDS.contains(&kind) || kind == PACK.name)
}

/// The finalizers of a new record: quests and fleets always have that of their reconciler.
pub(crate) fn held(
    info: &KindInfo,
    found: Option<&Record>,
    wished: Option<Vec<String>>,
) -> Option<Vec<String>> {
    let is_new = found.is_none_or(|found| found.deleting.is_none());
    let finalizer = match info.name {
        name if name == QUEST.name => FINALIZER,
        name if [FLEET.name, LINEAGE.name, SENTINEL.name].contains(&name) => fleet::FINALIZER,
        _ => return wished,
    };
    if !is_new {
        return wished;
    }
    let kept = || found.map(|found| found.finalizers.clone()).unwrap_or_default();
    let mut all = wished.unwrap_or_else(kept);
    if !all.iter().any(|one| one == finalizer) {
        all.push(finalizer.to_owned());
    }
    Some(all)
}

/// Fields that determine how many and when, but not what.
const STEERING: &[&str] = &[
    "backoff",
    "completions",
    "deadline",
    "parallelism",
    "paused",
    "replicas",
    "retries",
    "suspend",
    "ttl",
];
/// The field in a template that causes a restart of everything.
const RESTARTED: &str = "restartedAt";

/// The part of a spec that determines what is started: its template, or everything except number
/// and time.
fn started(spec: &Value) -> Value {
    let mut started = spec.get("template").unwrap_or(spec).clone();
    if let Some(fields) = started.as_object_mut() {
        fields.retain(|field, _| !STEERING.contains(&field.as_str()) && field != RESTARTED);
    }
    started
}

fn author_of(record: &Record) -> Option<Author> {
    serde_json::from_value(record.status.get("author").cloned()?).ok()
}

/// Sets the author of a record: the caller, or somebody with fewer rights who has written what the
/// record starts. That is the existing author if it starts the same, and the author of the owner if
/// it is made from the owner's template. `earlier` are revisions of its template, to which it may
/// return.
pub(crate) fn authored(
    by: &Caller,
    found: Option<&Record>,
    owner: Option<&Record>,
    earlier: &[Record],
    put: Put,
) -> Put {
    let same = found.is_some_and(|found| found.generation == put.record.generation);
    let Some(role) = by.role() else { return put };
    if same || !KINDS.contains(&put.record.key.kind.as_str()) {
        return put;
    }
    let new = started(&put.record.spec);
    let before = found.into_iter().chain(earlier).filter(|one| started(&one.spec) == new);
    let weaker = before.chain(owner).filter_map(author_of);
    let writer = Author { name: by.name.clone(), role };
    let author = weaker.fold(writer, |one, other| if other.role < one.role { other } else { one });
    kept_author(put, Some(&author))
}

/// Writes an author into the status of a record.
pub(crate) fn kept_author(mut put: Put, author: Option<&Author>) -> Put {
    let set = |status: &mut Value| {
        if let Some(fields) = status.as_object_mut() {
            fields.insert("author".to_owned(), json!(author));
        }
    };
    set(&mut put.record.status);
    if let Some(write) = &mut put.write
        && let RecordChange::Put(record) = &mut write.change
    {
        set(&mut record.status);
    }
    put
}

/// The role of the agent's last author. For an agent without a known author it is the lowest role
/// that may write one.
fn writer(agent: &Agent) -> Role {
    agent.author.as_ref().map_or(Role::Operator, |author| author.role)
}

/// The caller as which a record starts sessions of this agent: the author of its spec, with no more
/// rights than the agent's last author. A spec refers to its agent by name, and whoever may write
/// agents can replace the agent of that name.
pub(crate) fn lent(by: &Caller, agent: &Agent) -> Caller {
    let rights = match by.role() {
        Some(role) => Rights::Role(role.min(writer(agent))),
        None => by.rights.clone(),
    };
    Caller { rights, ..by.clone() }
}

/// The addition to a refusal if the agent's author is the reason.
pub(crate) fn lent_less(by: &Caller, agent: &Agent) -> Option<String> {
    if lent(by, agent).rights == by.rights {
        return None;
    }
    let name: String = agent.spec.name.chars().take(64).collect();
    let who = match &agent.author {
        Some(author) => {
            format!("was last written by `{}` ({})", author.name, author.role.as_str())
        }
        None => "was written before it was recorded by whom".to_owned(),
    };
    Some(format!(
        "agent `{name}` {who}, so its runs get no more rights here: have {} write it again \
         (`overmind agent edit`)",
        by.name
    ))
}

/// Whether an admin wrote this record's spec last.
pub(crate) fn is_of_an_admin(record: &Record) -> bool {
    author_of(record).is_some_and(|author| author.role == Role::Admin)
}

impl Engine {
    /// The author as a caller in the record's colony, with the rights that they had then and still
    /// have.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] if no author is known, or the author's key was revoked.
    pub(crate) async fn author(
        &self,
        author: Option<&Author>,
        colony: ColonyId,
    ) -> Result<Caller, EngineError> {
        let Some(author) = author else {
            let message = "the author of the spec is unknown: apply it again".to_owned();
            return Err(EngineError::Forbidden { message });
        };
        let admin = Caller::admin();
        if author.name == admin.name && author.role == Role::Admin {
            // No key can have this name.
            return Ok(admin.within(colony));
        }
        if let Some(key) = self.key_named(&author.name).await? {
            let role = key.role.min(author.role);
            if key.colony != ColonyId::DEFAULT && key.colony != colony {
                let message = format!("the key `{}` belongs to another colony", author.name);
                return Err(EngineError::Forbidden { message });
            }
            return Ok(Caller::new(author.name.clone(), Rights::Role(role)).within(colony));
        }
        let message = format!(
            "the key `{}` that wrote the spec is revoked: a caller who may run it must apply it \
                again",
            author.name
        );
        Err(EngineError::Forbidden { message })
    }
}
