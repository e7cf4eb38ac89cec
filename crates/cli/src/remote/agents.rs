//! Agents, as commands name them: found by name or id, and those that exist without being created.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use overmind_api::{Agent, AgentCreate, AgentId};
use overmind_client::Target;
use overmind_node::app::lock::{Holder, holder};

use super::{MAX_SCANNED, Remote};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::ids;

impl Remote {
    /// The PATH that the server was started with; `None` where it is on another machine, or where a
    /// process's environment cannot be read.
    pub fn path_of_server(&self, cx: &Context) -> Option<OsString> {
        let Target::Unix(socket) = self.client.target() else { return None };
        let Holder::Server { pid, file: Some(file) } = holder(&cx.data().ok()?) else {
            return None;
        };
        if file.socket.as_ref() != Some(socket) {
            return None;
        }
        let variables = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let mut variables = variables.split(|byte| *byte == 0);
        let path = variables.find_map(|one| one.strip_prefix(b"PATH="))?;
        Some(OsStr::from_bytes(path).to_owned())
    }

    /// The agent of commands that are given in words.
    pub async fn agent_of_commands(&self) -> Result<Agent, Failure> {
        Ok(self.client.agent_fetch(crate::command::AGENT).await?)
    }

    /// An agent that exists without being created, such as `claude`; `None` for any other name.
    pub async fn built_in(&self, name: &str) -> Result<Option<Agent>, Failure> {
        match crate::command::built_in(name) {
            Some(agent) => self.agent_or(&agent).await.map(Some),
            None => Ok(None),
        }
    }

    /// The agent of this name, created if it does not exist.
    async fn agent_or(&self, agent: &AgentCreate) -> Result<Agent, Failure> {
        match self.client.agent_fetch(&agent.name).await.map_err(Failure::from) {
            Err(failure) if failure.exit == Exit::NotFound => {}
            found => return found,
        }
        match self.client.agent_create(agent, None).await.map_err(Failure::from) {
            // Somebody else has just made it.
            Err(failure) if failure.exit == Exit::Conflict => {
                Ok(self.client.agent_fetch(&agent.name).await?)
            }
            Err(failure) if failure.exit == Exit::Denied && self.own.is_some() => {
                let message =
                    format!("there is no agent `{}` yet, and a run may not create one", agent.name);
                let hint = format!(
                    "outside of the run, `overmind run --agent {}` creates it; `overmind agent list` lists those \
                     that this run may start",
                    agent.name
                );
                Err(Failure::new(Exit::NotFound, message).hint(hint))
            }
            Err(failure) if failure.exit == Exit::Denied => {
                let name = &agent.name;
                let message =
                    format!("there is no agent `{name}` yet, and only an admin may create it");
                let hint =
                    format!("an admin's first run creates it: overmind run --agent {name} …");
                Err(Failure::new(Exit::Denied, message).hint(hint))
            }
            made => made,
        }
    }

    /// An agent by its exact name, its id or a unique part of its id.
    pub async fn find_agent(&self, given: &str) -> Result<Agent, Failure> {
        if given.trim().is_empty() {
            return Err(Failure::usage("the agent's name is blank"));
        }
        let missing = match self.client.agent_fetch(given).await {
            Ok(agent) => return Ok(agent),
            Err(err) => Failure::from(err),
        };
        let scan = missing.exit == Exit::NotFound && ids::plausible(given, AgentId::PREFIX);
        if missing.exit != Exit::NotFound {
            return Err(missing);
        }
        let all = match self.agents(MAX_SCANNED).await {
            // A key that may start runs and not list agents names one by its name.
            Err(failure) if failure.exit == Exit::Denied => {
                return Err(ids::none("agent", given, "overmind agent list"));
            }
            all => all?,
        };
        let fits = |agent: &&Agent| scan && ids::matches(given, &agent.id.to_string());
        let mut found: Vec<Agent> = all.iter().filter(fits).cloned().collect();
        if found.is_empty() {
            let names = all.iter().map(|agent| agent.name.as_str());
            return Err(ids::none_but("agent", given, names, "overmind agent list"));
        }
        let names = found.iter().map(|agent| agent.id.to_string()).collect();
        let id = ids::only("agent", given, names, "overmind agent list")?;
        let at = found.iter().position(|agent| agent.id.to_string() == id);
        Ok(found.swap_remove(at.expect("it is one of them")))
    }
}
