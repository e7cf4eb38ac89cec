//! Provides a command's surroundings: variables of its environment, and directories that
//! the server has made for its session.

use overmind_core::bus::Assignment;
use overmind_core::command::Launch;
use overmind_core::enclosure::Lent;
use overmind_core::ids::SessionId;

use super::Lives;
use crate::hive::rooms::Given;

impl Lives {
    /// The additional variables for a session's commands, and the directories that the server has
    /// made for them.
    pub(super) async fn around(
        &self,
        assignment: &Assignment,
        launch: &Launch,
    ) -> Result<(Vec<(String, String)>, Vec<Lent>), String> {
        let mut variables = self.of_room(assignment.session, launch).await?;
        let given = self.given(assignment).await?;
        variables.extend(given.variables);
        Ok((variables, given.lent))
    }

    async fn of_room(
        &self,
        session: SessionId,
        launch: &Launch,
    ) -> Result<Vec<(String, String)>, String> {
        match (&launch.directory, &self.stays) {
            (None, _) => Ok(Vec::new()),
            (Some(_), None) => Err("this server makes no rooms, and it had one".to_owned()),
            (Some(_), Some(stays)) => {
                stays.environment(session).await.map_err(|err| format!("its room: {err}"))
            }
        }
    }

    async fn given(&self, assignment: &Assignment) -> Result<Given, String> {
        let is_empty = assignment.files.is_empty() && assignment.claims.is_empty();
        match &self.stays {
            Some(stays) => stays.given(assignment).await.map_err(|err| err.to_string()),
            None if is_empty => Ok(Given::default()),
            None => Err("this server gives runs no files and no memory claims".to_owned()),
        }
    }
}
