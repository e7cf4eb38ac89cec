//! Provides a command's surroundings: variables of its environment, and files of its session's
//! contexts.

use std::path::PathBuf;

use overmind_core::bus::Assignment;
use overmind_core::command::Launch;
use overmind_core::ids::SessionId;
use overmind_core::session::given::FILES_VARIABLE;

use super::Lives;

impl Lives {
    /// The additional variables for a session's commands, and the directory of files that they may
    /// read.
    pub(super) async fn around(
        &self,
        assignment: &Assignment,
        launch: &Launch,
    ) -> Result<(Vec<(String, String)>, Option<PathBuf>), String> {
        let mut variables = self.of_room(assignment.session, launch).await?;
        let lent = self.lent(assignment).await?;
        if let Some(directory) = &lent {
            variables.push((FILES_VARIABLE.to_owned(), directory.display().to_string()));
        }
        Ok((variables, lent))
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

    async fn lent(&self, assignment: &Assignment) -> Result<Option<PathBuf>, String> {
        match &self.stays {
            Some(stays) => stays.lent(assignment).await.map_err(|err| err.to_string()),
            None if assignment.files.is_empty() => Ok(None),
            None => Err("this server gives no files, and its contexts have some".to_owned()),
        }
    }
}
