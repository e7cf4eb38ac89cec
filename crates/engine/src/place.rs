//! The directory of a session, the callers who may choose it, and the repositories that it may use.

use std::path::{Component, Path, PathBuf};

use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::room::{RoomReach, RoomWish};
use overmind_core::row::SessionRow;

use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::error::EngineError;
use crate::trust::Declared;

/// Maximum number of directories whose repositories a session may use.
const ROOTS: usize = 100;

/// A path without links, also if its end does not exist yet. An unreadable path stays unchanged,
/// and is refused when it is opened.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    let missing = |above: &Path| path.strip_prefix(above).map(Path::to_owned).unwrap_or_default();
    let found = path.ancestors().find_map(|above| {
        let real = above.canonicalize().ok()?;
        let missing = missing(above);
        // Joining nothing would leave a slash at the end.
        Some(if missing.as_os_str().is_empty() { real } else { real.join(missing) })
    });
    found.unwrap_or_else(|| path.to_owned())
}

/// The directory in which a session works.
pub(crate) struct Place {
    pub(crate) workspace: String,
    /// Whether the caller set the directory: only then an environment is created for it.
    pub(crate) project: bool,
    /// The repositories that it may use.
    pub(crate) reach: RoomReach,
}

impl Engine {
    /// The directory of a session. A child works in the project of its parent if that has an
    /// environment, in its own environment; a session without a project gets the server's
    /// directory, or an empty one.
    pub(crate) async fn place(
        &self,
        by: &Caller,
        id: SessionId,
        wanted: Option<&str>,
        parent: Option<&SessionRow>,
    ) -> Result<Place, EngineError> {
        if let Some(row) = parent
            && (row.room.is_some() || by.child_of == Some(row.id))
            && wanted.map_or(row.room.is_some(), |wanted| {
                wanted == row.workspace || resolved(wanted.as_ref()) == Path::new(&row.workspace)
            })
        {
            // Whoever names a parent is not let into its project by that; the parent itself is in it,
            // as long as the Project is there.
            match by.child_of == Some(row.id) {
                true => self.still_has_place(row).await?,
                false => drop(self.workspace(by, Some(&row.workspace)).await?),
            }
            let (workspace, project) = (row.workspace.clone(), true);
            let reach = self.reach_beside(by, row).await?;
            return Ok(Place { workspace, project, reach });
        }
        let config = &self.cortex.config;
        let workspace = match wanted {
            None if config.is_private(by.colony) => {
                let own = resolved(&config.workspace).join(id.to_string());
                own.to_string_lossy().into_owned()
            }
            None | Some(_) => self.workspace(by, wanted).await?,
        };
        let reach = self.reach(by, &workspace, wanted.is_some()).await?;
        Ok(Place { workspace, project: wanted.is_some(), reach })
    }

    /// The repositories that a run may use that works in the project of its parent.
    async fn reach_beside(
        &self,
        by: &Caller,
        parent: &SessionRow,
    ) -> Result<RoomReach, EngineError> {
        let room = self.spec_of(parent.id).await?.room;
        let is_child = by.child_of == Some(parent.id);
        match room {
            // The parent writes to its worktree and not to its project, so the child may use the same.
            Some(room) if is_child && parent.has_worktree() => Ok(room.reach),
            // An admin's run gets no more access than the other caller's run beside which it is started.
            Some(RoomWish { reach, .. })
                if !is_child && by.is_admin() && reach != RoomReach::Any =>
            {
                Ok(reach)
            }
            Some(_) | None => self.reach(by, &parent.workspace, true).await,
        }
    }

    /// The repositories that a run in this workspace may use.
    ///
    /// Runs of other callers may write to a declared Project, now or later, so it bounds all callers,
    /// also admins. They also write to the server's own workspace, which bounds everybody but an admin
    /// who names a directory there. A run's own directory has no repository.
    pub(crate) async fn reach(
        &self,
        by: &Caller,
        workspace: &str,
        is_named: bool,
    ) -> Result<RoomReach, EngineError> {
        let (home, place) = (resolved(&self.cortex.config.workspace), Path::new(workspace));
        let mut roots = self.projects_of(by, place).await?;
        let is_shared = roots.first().is_some_and(|root| place.starts_with(root));
        let is_person = matches!(by.rights, Rights::Role(_)) && by.child_of.is_none();
        if by.is_admin() && is_person && is_named && !is_shared {
            return Ok(RoomReach::Any);
        }
        let is_a_runs = |beneath: &Path| {
            let first = beneath.iter().next().and_then(|first| first.to_str());
            first.is_some_and(|first| first.parse::<SessionId>().is_ok())
        };
        let above = match place.strip_prefix(&home) {
            Ok(beneath) if is_a_runs(beneath) => return Ok(RoomReach::Nothing),
            Ok(_) => false,
            Err(_) if (by.is_admin() || by.on_host) && !is_shared => return Ok(RoomReach::Any),
            Err(_) => true,
        };
        match above {
            false => roots.insert(0, home),
            // A child of a run that works in a directory itself.
            true if !is_shared => roots.insert(0, place.to_owned()),
            true => {}
        }
        roots.truncate(ROOTS);
        Ok(RoomReach::Within { roots, above })
    }

    /// The directory that a session is started for, without links: what is judged is what is used
    /// afterwards. Callers below admin name one in the server's workspace or in a project that an admin
    /// has declared for them: naming `/` would hand the agent everything that the server can read.
    pub(crate) async fn workspace(
        &self,
        by: &Caller,
        wanted: Option<&str>,
    ) -> Result<String, EngineError> {
        let home = resolved(&self.cortex.config.workspace);
        let may_be_given = |path: &Path| match self.cortex.config.off_limits.refusal(path) {
            None => Ok(()),
            Some(why) => Err(EngineError::invalid("workspace", why)),
        };
        let Some(wanted) = wanted else {
            may_be_given(&home)?;
            return Ok(home.to_string_lossy().into_owned());
        };
        let path = Path::new(wanted);
        let plain =
            path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !path.is_absolute() || !plain || wanted.contains('\0') {
            let message = "workspace must be an absolute path without `..`";
            return Err(EngineError::invalid("workspace", message));
        }
        let real = resolved(path);
        let admin = by.is_admin();
        let in_home = match real.strip_prefix(&home) {
            Ok(beneath) => self.is_nobody_elses(by, beneath).await?,
            Err(_) => false,
        };
        if !admin && !in_home {
            let what_to_do = match self.project_for(by, &real).await? {
                Declared::ForThem => None,
                Declared::ForOthers(project) => Some(format!(
                    "Project {project} has it for others: an admin can add `{}` to its `callers`",
                    by.name
                )),
                Declared::Nowhere => Some(
                    "an admin can declare it for others: a Project with this path (`overmind explain \
                     project`)"
                        .to_owned(),
                ),
            };
            if let Some(what_to_do) = what_to_do {
                let home = home.display();
                let message =
                    format!("only an admin may use a workspace outside {home}; {what_to_do}");
                return Err(EngineError::Forbidden { message });
            }
        }
        may_be_given(&real)?;
        let text = real.into_os_string().into_string();
        text.map_err(|_| EngineError::invalid("workspace", "leads to a path that is not UTF-8"))
    }

    /// Refuses to run a program with what only an admin gives, secrets or a part of the host, on files
    /// that the caller may have put there: a `Makefile` says what `make` does. Files of a project that an
    /// admin has declared are not the caller's, and an empty directory has none. What a run may start is
    /// for the permissions of its agent to say.
    pub(crate) async fn brings_no_files(
        &self,
        by: &Caller,
        id: SessionId,
        agent: &str,
        workspace: &str,
    ) -> Result<(), EngineError> {
        let config = &self.cortex.config;
        let home = resolved(&config.workspace);
        let place = Path::new(workspace);
        let is_empty = place == home.join(id.to_string()) || (!config.private && place == home);
        if by.is_admin() || by.on_host || by.child_of.is_some() || is_empty {
            return Ok(());
        }
        if self.project_for(by, place).await? == Declared::ForThem {
            return Ok(());
        }
        let message = format!(
            "agent {agent} is given secrets or a part of the host: callers below admin may run it in a \
             project that an admin has declared, or without a workspace, and not on files of their own \
             in {workspace}"
        );
        Err(EngineError::Forbidden { message })
    }

    /// Whether this directory in the server's workspace does not belong to another run: each run
    /// without a project has its own there. Everything else there
    /// belongs to the colony `default` alone.
    async fn is_nobody_elses(&self, by: &Caller, beneath: &Path) -> Result<bool, EngineError> {
        let first = beneath.iter().next().and_then(|first| first.to_str());
        let Some(run) = first.and_then(|first| first.parse::<SessionId>().ok()) else {
            return Ok(by.colony == ColonyId::DEFAULT);
        };
        let row = self.cortex.store.session_fetch(run).await?;
        Ok(row.is_some_and(|row| row.created_by == by.name && row.colony == by.colony))
    }
}
