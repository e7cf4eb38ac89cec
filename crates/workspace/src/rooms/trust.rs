//! Which projects' orders may be run: those that an admin confirmed, with the content of their file that
//! was confirmed. The engine keeps them; here they are held against what is there.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use overmind_core::room::trust::{RoomTrust, TrustedProjects};
use overmind_core::room::{RoomError, RoomErrorKind, RoomReach};

use super::project::{self, Ground, Project};
use super::{LocalRooms, say};
use crate::opener::Own;

/// The confirmed projects; clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Trusted(Arc<RwLock<TrustedProjects>>);

impl Trusted {
    pub(super) fn set(&self, projects: TrustedProjects) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = projects;
    }

    /// The commands of a project, and the confirmed ones.
    fn of(&self, found: &Project, repository: bool) -> RoomTrust {
        let trusted = self.0.read().unwrap_or_else(PoisonError::into_inner);
        RoomTrust {
            project: found.top.clone(),
            repository,
            hash: found.hash.clone(),
            orders: found.config.orders(),
            borrows: found.lenders.clone(),
            given: trusted.get(&found.top).cloned(),
        }
    }

    /// Whether `setup` of the project has the host's network.
    ///
    /// # Errors
    ///
    /// [`RoomErrorKind::Untrusted`] when it orders what was not confirmed.
    pub(super) fn check(&self, found: &Project) -> Result<bool, RoomError> {
        let trust = self.of(found, true);
        if !trust.holds() {
            return Err(RoomError::new(RoomErrorKind::Untrusted, trust.refusal()));
        }
        Ok(trust.confirmed().is_some_and(|given| given.setup_network))
    }
}

impl LocalRooms {
    pub(super) async fn look_at(
        &self,
        project: PathBuf,
        reach: RoomReach,
    ) -> Result<RoomTrust, RoomError> {
        let (trusted, own) = (self.trusted.clone(), Own::of(&self.options.off_limits));
        let (at, bounds) = (project.clone(), reach.clone());
        let looked = tokio::task::spawn_blocking(move || match project::ground(&at, &bounds)? {
            // Without an environment, nothing is opened or created.
            Ground::Directory => Ok(Some(trusted.of(&project::read_directory(&at, own)?, false))),
            Ground::Repository => Ok(None),
        });
        if let Some(found) = looked.await.map_err(|err| say::failed(err.to_string()))?? {
            return Ok(found);
        }
        let (core, trusted) = (self.core().await?, self.trusted.clone());
        let looked = tokio::task::spawn_blocking(move || {
            Ok(trusted.of(&project::read(core.maker.trees(), &project, &reach, None)?, true))
        });
        looked.await.map_err(|err| say::failed(err.to_string()))?
    }
}
