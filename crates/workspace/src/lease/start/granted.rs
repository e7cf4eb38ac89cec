//! Which database servers a project may name.

use super::ServiceError;
use crate::config::Server;
use crate::lease::build::Site;

impl Site<'_> {
    /// That a project names only servers which an admin has granted. The server connects to them, from
    /// where it may reach more than who writes the project's file. Outside of any sandbox the
    /// run itself, which only an admin starts, reaches the same.
    pub(super) fn granted(
        &self,
        server: &Server,
        addresses: &[String],
    ) -> Result<(), ServiceError> {
        if self.confinement.is_none() || !matches!(server, Server::Url(_)) {
            return Ok(());
        }
        let granted = &self.workspace.options.servers;
        let known = |address: &String| granted.iter().any(|one| one.eq_ignore_ascii_case(address));
        match addresses.iter().find(|address| !known(address)) {
            None => Ok(()),
            Some(address) => Err(ServiceError::NotGranted { address: address.clone() }),
        }
    }
}
