//! With whose rights a quest starts sessions.
//!
//! The status keeps who wrote the spec last, and their role then. It is written in the commit that
//! writes the spec, and a document cannot say it. A change of labels alone changes no author: who
//! puts a label on a quest does not lend it their rights.

use overmind_core::agent::Agent;
use overmind_core::fleet;
use overmind_core::quest::{Author, FINALIZER};
use overmind_core::record::decide::Put;
use overmind_core::record::kinds::fleet::{FLEET, LINEAGE, SENTINEL};
use overmind_core::record::kinds::quest::QUEST;
use overmind_core::record::rows::RecordChange;
use overmind_core::record::{KindInfo, Record};
use overmind_core::row::Role;
use overmind_core::store::Page;
use serde_json::{Value, json};

use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::error::EngineError;

/// Kinds that keep their author: those whose reconcilers start sessions, and contexts, which say what is
/// in the environment of a command.
const KINDS: &[&str] = &["context", "fleet", "lineage", "quest", "ritual", "sentinel"];

/// The finalizers that a record gets: quests and fleets always have the one of their reconciler.
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

/// Keeps in a record who has written its spec.
pub(crate) fn authored(by: &Caller, found: Option<&Record>, mut put: Put) -> Put {
    let same = found.is_some_and(|found| found.generation == put.record.generation);
    let Rights::Role(role) = by.rights else { return put };
    if same || !KINDS.contains(&put.record.key.kind.as_str()) {
        return put;
    }
    let set = |status: &mut Value| {
        let author = json!(Author { name: by.name.clone(), role });
        if let Some(fields) = status.as_object_mut() {
            fields.insert("author".to_owned(), author);
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

/// The role of who wrote the agent last. Of agents that nobody is known to have written it is the
/// lowest role that may write one.
fn writer(agent: &Agent) -> Role {
    agent.author.as_ref().map_or(Role::Operator, |author| author.role)
}

/// Who a record starts sessions of this agent as: the author of its spec, with no more rights than
/// who wrote the agent last. A spec names its agent by name, and whoever may write agents can put
/// another one under that name.
pub(crate) fn lent(by: &Caller, agent: &Agent) -> Caller {
    let rights = match by.rights {
        Rights::Role(role) => Rights::Role(role.min(writer(agent))),
        Rights::Session { session, epoch } => Rights::Session { session, epoch },
    };
    Caller { rights, ..by.clone() }
}

/// What to add to a refusal, where the agent's writer is why.
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

/// Whether an admin wrote the spec of this record last.
pub(crate) fn is_of_an_admin(record: &Record) -> bool {
    let author = record.status.get("author").cloned().unwrap_or_default();
    serde_json::from_value(author).is_ok_and(|author: Author| author.role == Role::Admin)
}

impl Engine {
    /// The author as a caller, as far as they may do now what they might do then.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] when nobody is known, or their key was revoked.
    pub(crate) async fn author(&self, author: Option<&Author>) -> Result<Caller, EngineError> {
        let Some(author) = author else {
            let message = "it is not known who wrote the spec: apply it again".to_owned();
            return Err(EngineError::Forbidden { message });
        };
        let admin = Caller::admin();
        if author.name == admin.name && author.role == Role::Admin {
            // No key can have this name.
            return Ok(admin);
        }
        let mut after = None;
        loop {
            let page = Page { after, limit: 500 };
            let keys = self.cortex.store.api_key_list(page).await?;
            let Some(last) = keys.last() else { break };
            after = Some(last.id);
            let found = keys.iter().find(|k| k.name == author.name && k.revoked_at.is_none());
            if let Some(key) = found {
                let role = key.role.min(author.role);
                return Ok(Caller::new(author.name.clone(), Rights::Role(role)));
            }
        }
        let message = format!(
            "the key `{}` of who wrote the spec is revoked: somebody who may run it has to write it \
             again",
            author.name
        );
        Err(EngineError::Forbidden { message })
    }
}
