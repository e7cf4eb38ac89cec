//! Limits the database servers that a project may name.

use super::ServiceError;
use crate::config::Server;
use crate::lease::build::Site;

impl Site<'_> {
    /// Checks that a project names only servers that an admin has granted. The server connects to
    /// them, and may reach more than the author of the project's file. Outside of any sandbox, the
    /// run itself, which only an admin starts, can reach the same.
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
