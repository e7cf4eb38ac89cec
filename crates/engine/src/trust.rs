//! The projects whose commands may run: an admin confirms a project with the content of its file.
//! They are one setting, which is changed in the commit whose event names the admin and the
//! project, and passed to the environments, which compare it with the current content when they
//! create an environment.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use overmind_core::record::Name;
use overmind_core::record::kinds::project;
use overmind_core::room::trust::{MAX_TRUSTED, RoomTrust, TrustGiven, TrustedProjects};
use overmind_core::room::{RoomReach, RoomWhen, RoomWish, Rooms};
use overmind_core::row::Role;
use overmind_core::store::{Change, Commit, NewEvent, Store, StoreError, StreamId};
use serde_json::json;

use crate::Engine;
use crate::caller::Caller;
use crate::cortex::projects::each_project;
use crate::error::EngineError;

/// The setting that keeps them.
const DOCUMENT: &str = "projects/trusted";

/// The confirmed projects. Locked while they are changed.
pub(crate) type Trusting = Arc<tokio::sync::Mutex<TrustedProjects>>;

/// Reads the confirmed projects, and passes them to the environments.
pub(crate) async fn load(
    store: &dyn Store,
    rooms: Option<&Arc<dyn Rooms>>,
) -> Result<Trusting, StoreError> {
    let projects = match store.setting_fetch(DOCUMENT.to_owned()).await? {
        Some(document) => serde_json::from_value(document).map_err(|err| StoreError::Other {
            attempt: "reading the confirmed projects".to_owned(),
            detail: err.to_string(),
        })?,
        None => TrustedProjects::new(),
    };
    if let Some(rooms) = rooms {
        rooms.trusted(projects.clone());
    }
    Ok(Arc::new(tokio::sync::Mutex::new(projects)))
}

/// Whether an admin has declared a directory for a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    ForThem,
    /// The Project of this name has the directory, and other callers.
    ForOthers(Name),
    Nowhere,
}

impl Engine {
    /// Whether a Project lets the caller have runs work at `place`, of which no part is a link.
    pub(crate) async fn project_for(
        &self,
        by: &Caller,
        place: &Path,
    ) -> Result<Declared, EngineError> {
        let mut found = Declared::Nowhere;
        let for_them = each_project(&*self.records, Some(by.colony), |record| {
            match project::allows(record, &by.name, place) {
                Some(true) => return Some(Declared::ForThem),
                Some(false) => found = Declared::ForOthers(record.key.name.clone()),
                None => {}
            }
            None
        });
        Ok(for_them.await?.unwrap_or(found))
    }

    /// The directories of the Projects that let the caller have runs work in them, those that hold `place`
    /// first. For an admin: of those for everybody, and of those that hold it.
    pub(crate) async fn projects_of(
        &self,
        by: &Caller,
        place: &Path,
    ) -> Result<Vec<PathBuf>, EngineError> {
        let mut found = Vec::new();
        // A Project of any colony bounds an admin there: runs of others may write to it.
        let colony = if by.is_admin() { None } else { Some(by.colony) };
        each_project(&*self.records, colony, |record| {
            let own = record.key.colony == by.colony;
            let path = project::path_for(record, &by.name).filter(|_| own);
            found.extend(path.or_else(|| {
                let (path, _) = project::read(record).filter(|_| by.is_admin())?;
                place.starts_with(&path).then_some(path)
            }));
            None::<()>
        })
        .await?;
        found.sort_by_key(|path| !place.starts_with(path));
        Ok(found)
    }

    /// The commands in a project's file, and whether they were confirmed.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] when the project or its file cannot be read.
    pub async fn project_trust(
        &self,
        by: &Caller,
        project: &Path,
    ) -> Result<RoomTrust, EngineError> {
        by.require(Role::Admin)?;
        if !project.is_absolute() {
            return Err(EngineError::invalid("project", "project must be an absolute path"));
        }
        if let Some(why) = self.cortex.config.off_limits.refusal(project) {
            return Err(EngineError::invalid("project", why));
        }
        Ok(self.rooms()?.trust_of(project.to_owned(), RoomReach::Any).await?)
    }

    /// Confirms the commands of a project's file: `hash` is that of the content that was read.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] when the file is another one by now, and as [`Self::project_trust`].
    pub async fn project_confirm(
        &self,
        by: &Caller,
        project: &Path,
        hash: &str,
        setup_network: bool,
    ) -> Result<RoomTrust, EngineError> {
        let found = self.project_trust(by, project).await?;
        if found.hash.as_deref() != Some(hash) {
            let message = format!(
                "the .overmind.yml of {} is not the one that was read: read it again with \
                 `overmind trust --show {0}`",
                found.project.display()
            );
            return Err(EngineError::conflict(message));
        }
        let at = self.cortex.clock.now();
        let (hash, who) = (hash.to_owned(), by.name.clone());
        let given = TrustGiven { hash, setup_network, by: who, at };
        let mut trusting = self.trusting.lock().await;
        let mut projects = trusting.clone();
        projects.insert(found.project.clone(), given.clone());
        if projects.len() > MAX_TRUSTED {
            let message = format!(
                "{MAX_TRUSTED} projects are confirmed, which is the limit: revoke one with \
                    `overmind trust --revoke DIR`"
            );
            return Err(EngineError::conflict(message));
        }
        let payload = json!({
            "by": by.name, "project": found.project, "hash": given.hash,
            "setup_network": setup_network, "orders": found.orders,
        });
        self.keep_trusted("project.trusted", payload, &projects).await?;
        *trusting = projects;
        Ok(RoomTrust { given: Some(given), ..found })
    }

    /// Takes back what was confirmed of a project; without any the answer is the same.
    ///
    /// # Errors
    ///
    /// See [`Self::project_trust`]. For a removed project, the path of its top is accepted.
    pub async fn project_revoke(&self, by: &Caller, project: &Path) -> Result<bool, EngineError> {
        by.require(Role::Admin)?;
        let top = match self.project_trust(by, project).await {
            Ok(found) => found.project,
            Err(_) => project.to_owned(),
        };
        let mut trusting = self.trusting.lock().await;
        let mut projects = trusting.clone();
        if projects.remove(&top).is_none() {
            return Ok(false);
        }
        let payload = json!({"by": by.name, "project": top});
        self.keep_trusted("project.revoked", payload, &projects).await?;
        *trusting = projects;
        Ok(true)
    }

    async fn keep_trusted(
        &self,
        kind: &'static str,
        payload: serde_json::Value,
        projects: &TrustedProjects,
    ) -> Result<(), EngineError> {
        let at = self.cortex.clock.now();
        let value = serde_json::to_value(projects)
            .map_err(|_| EngineError::invalid("project", "a project's path is not UTF-8"))?;
        let event = NewEvent { stream: StreamId::System, kind, ts: at, payload };
        let change = Change::SettingPut { key: DOCUMENT.to_owned(), value, at };
        let commit = Commit { guards: vec![], events: vec![event], changes: vec![change] };
        self.cortex.store.commit(commit).await?;
        self.rooms()?.trusted(projects.clone());
        Ok(())
    }

    /// Refuses a session before it is made whose room would be refused for its project's orders. What
    /// cannot be read is left to the room, which tells it.
    pub(crate) async fn may_have_run(
        &self,
        workspace: &str,
        wish: &RoomWish,
    ) -> Result<(), EngineError> {
        let Ok(rooms) = self.rooms() else { return Ok(()) };
        let Ok(found) = rooms.trust_of(workspace.into(), wish.reach.clone()).await else {
            return Ok(());
        };
        let gets_room = found.repository || wish.when == RoomWhen::Always;
        match gets_room && !found.holds() {
            true => Err(EngineError::Untrusted { message: found.refusal() }),
            false => Ok(()),
        }
    }
}
