//! The permission matrix: entries from a file, entries from the API, and the result.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use overmind_core::acl::{
    Layer, MAX_ENTRIES, Matrix, Origin, Permissions, PermissionsFile, Verb, Verdict,
};
use overmind_core::conflict::{Conflict, ConflictKind, Stands};
use overmind_core::row::Role;
use overmind_core::store::{Change, Store, StoreError};
use serde_json::{Value, json};

use super::{event, explained};
use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::error::EngineError;

/// The key of the entries from the API: one document with its version.
const DOCUMENT: &str = "mesh/permissions";

/// The current entries.
#[derive(Debug, Default)]
struct Entries {
    file: BTreeMap<String, Permissions>,
    api: BTreeMap<String, Permissions>,
    /// The version of the API's document; 0 before the first.
    version: u64,
    matrix: Arc<Matrix>,
}

#[derive(Debug, Default)]
pub(super) struct Acl {
    entries: RwLock<Entries>,
    /// Locked over read, commit and change: one change at a time.
    turn: tokio::sync::Mutex<()>,
}

/// One effective entry of the matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclEntry {
    pub agent: String,
    pub origin: Origin,
    pub permissions: Permissions,
}

/// An agent's effective permissions, and their sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    pub agent: String,
    /// All of them must allow an action: the agent's own and, for a session, its parents'.
    pub layers: Vec<Layer>,
}

impl Acl {
    fn read<T>(&self, read: impl FnOnce(&Entries) -> T) -> T {
        read(&self.entries.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn write(&self, change: impl FnOnce(&mut Entries)) {
        let mut entries = self.entries.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        change(&mut entries);
        entries.matrix = Arc::new(Matrix::new(&entries.file, &entries.api));
    }

    pub(super) fn matrix(&self) -> Arc<Matrix> {
        self.read(|entries| Arc::clone(&entries.matrix))
    }

    pub(super) async fn load(&self, store: &dyn Store) -> Result<(), StoreError> {
        let Some(document) = store.setting_fetch(DOCUMENT.to_owned()).await? else { return Ok(()) };
        let version = document.get("version").and_then(Value::as_u64).unwrap_or(0);
        let permissions = document.get("permissions").cloned().unwrap_or_default();
        let api = serde_json::from_value(permissions).map_err(|err| StoreError::Other {
            attempt: "reading the permissions of agents".to_owned(),
            detail: err.to_string(),
        })?;
        self.write(|entries| (entries.api, entries.version) = (api, version));
        Ok(())
    }
}

impl Engine {
    /// The current matrix.
    pub fn permissions(&self) -> Arc<Matrix> {
        self.cortex.mesh.acl.matrix()
    }

    /// Replaces the file's entries. An equal file changes nothing.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if the file exceeds a limit, or the store's error; the earlier
    /// entries stay in force.
    pub async fn permissions_loaded(
        &self,
        file: PermissionsFile,
        source: &str,
    ) -> Result<(), EngineError> {
        file.check().map_err(|why| EngineError::invalid("permissions", why))?;
        let acl = &self.cortex.mesh.acl;
        let _turn = acl.turn.lock().await;
        if acl.read(|entries| entries.file == file.permissions) {
            return Ok(());
        }
        let agents: Vec<&String> = file.permissions.keys().take(100).collect();
        let payload =
            json!({"source": source, "agents": agents, "entries": file.permissions.len()});
        let told = explained(event("acl.loaded", self.cortex.clock.now(), payload), vec![], vec![]);
        self.cortex.store.commit(told).await?;
        acl.write(|entries| entries.file = file.permissions);
        Ok(())
    }

    /// All entries by name, and the version of those from the API.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn acl_list(&self, by: &Caller) -> Result<(u64, Vec<AclEntry>), EngineError> {
        by.require(Role::Viewer)?;
        let acl = &self.cortex.mesh.acl;
        let version = acl.read(|entries| entries.version);
        let all = acl.matrix();
        let all = all.entries().map(|(agent, permissions, origin)| AclEntry {
            agent: agent.to_owned(),
            origin,
            permissions: permissions.clone(),
        });
        Ok((version, all.collect()))
    }

    /// Writes an agent's entry, which overrides the file's; `None` removes it, so that the file's
    /// applies again. Returns the document's new version.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if the document's version is not `if_version`.
    pub async fn acl_put(
        &self,
        by: &Caller,
        agent: &str,
        permissions: Option<Permissions>,
        if_version: Option<u64>,
    ) -> Result<u64, EngineError> {
        by.require(Role::Admin)?;
        if agent.trim().is_empty() || agent.chars().count() > 200 {
            return Err(EngineError::invalid("agent", "agent must have 1 to 200 characters"));
        }
        if let Some(permissions) = &permissions {
            permissions.check().map_err(|why| EngineError::invalid("permissions", why))?;
        }
        let acl = &self.cortex.mesh.acl;
        let _turn = acl.turn.lock().await;
        let (mut api, version) = acl.read(|entries| (entries.api.clone(), entries.version));
        if if_version.is_some_and(|wanted| wanted != version) {
            let [expected, found] = [if_version.unwrap_or_default(), version].map(Stands::Version);
            let what = Conflict::new(ConflictKind::Permissions, "permissions", expected, found);
            let message = format!("the permissions stand at version {version}");
            return Err(EngineError::conflict_of(what, message));
        }
        let before = api.get(agent).cloned();
        match &permissions {
            Some(permissions) => api.insert(agent.to_owned(), permissions.clone()),
            None => api.remove(agent),
        };
        if permissions.is_none() && before.is_none() {
            return Err(EngineError::not_found("Entry"));
        }
        if api.len() > MAX_ENTRIES {
            let message = format!("there are {MAX_ENTRIES} entries, which is the most");
            return Err(EngineError::invalid("agent", message));
        }
        if permissions == before {
            return Ok(version);
        }
        let at = self.cortex.clock.now();
        let version = version + 1;
        let payload = json!({
            "by": by.name, "agent": agent, "version": version, "before": before,
            "after": permissions,
        });
        let value = json!({"version": version, "permissions": api});
        let change = Change::SettingPut { key: DOCUMENT.to_owned(), value, at };
        self.cortex
            .store
            .commit(explained(event("acl.changed", at, payload), vec![], vec![change]))
            .await?;
        acl.write(|entries| (entries.api, entries.version) = (api, version));
        Ok(version)
    }

    /// Whether an agent may do something, and by which rule. A session may only ask about itself.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn acl_can(
        &self,
        by: &Caller,
        agent: Option<&str>,
        verb: Verb,
        object: &str,
    ) -> Result<(String, Verdict), EngineError> {
        let (name, line) = self.asked_about(by, agent).await?;
        let matrix = self.permissions();
        let verdict = match verb {
            Verb::Subscribe if object.contains('*') => matrix.may_pattern(&line, verb, object),
            _ => matrix.may_in_line(&line, verb, object),
        };
        Ok((name, verdict))
    }

    /// An agent's effective permissions. A session may only ask about itself.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn acl_effective(
        &self,
        by: &Caller,
        agent: Option<&str>,
    ) -> Result<Effective, EngineError> {
        let (agent, line) = self.asked_about(by, agent).await?;
        let matrix = self.permissions();
        let layers = matrix.layers(&line).into_iter().map(|agent| matrix.layer(agent)).collect();
        Ok(Effective { agent, layers })
    }

    /// A name, and the names whose permissions apply to it. The name need not belong to an agent,
    /// because an entry may exist before its agent.
    async fn asked_about(
        &self,
        by: &Caller,
        agent: Option<&str>,
    ) -> Result<(String, Vec<String>), EngineError> {
        if let Rights::Session { .. } = by.rights {
            let who = self.who(by, agent).await?;
            return Ok((who.name, who.line));
        }
        by.require(Role::Viewer)?;
        let Some(agent) = agent else {
            return Err(EngineError::invalid("agent", "agent must name an agent or a run"));
        };
        if let Ok(session) = agent.parse() {
            let who = self.who_session(session).await?;
            return Ok((who.name, who.line));
        }
        let name = match agent.parse() {
            Ok(id) => self.cortex.agent(id).await?.map(|agent| agent.spec.name.clone()),
            Err(_) => None,
        };
        let name = name.unwrap_or_else(|| agent.to_owned());
        Ok((name.clone(), vec![name]))
    }
}
