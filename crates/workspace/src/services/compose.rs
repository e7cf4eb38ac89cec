//! Runs a compose project for one session: with its own name, ports, volumes and networks.
//!
//! The plugin's output for the project's file ([`Compose::config`]) is checked, and exactly the
//! checked text is started, under a project name that is derived from the session and with leased
//! ports on the loopback address: the project's file is not read again. The files that the plugin
//! reads for that are checked before it is called ([`named`]).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use judge::Refusal;

pub(crate) mod judge;
pub(crate) mod named;

/// The oldest supported version of the plugin: it writes all relevant values completely.
const LEAST: (u32, u32) = (2, 24);
/// The time limit of a query to the plugin.
const ASK: Duration = Duration::from_secs(30);

/// Why a compose project could not be started or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ComposeError {
    #[error(
        "`{service}` is a compose project, and `docker compose` is not installed ({why}): install \
         Docker's compose plugin {}.{} or newer", LEAST.0, LEAST.1
    )]
    Missing { service: String, why: String },
    #[error(
        "`{service}` is a compose project, and `docker compose` is {found}: Overmind needs \
         version {}.{} or newer", LEAST.0, LEAST.1
    )]
    Old { service: String, found: String },
    #[error("`docker compose {what}` for {project}: {why}")]
    Failed { project: String, what: String, why: String },
    #[error(
        "the compose project `{service}` is refused, and nothing of it was started: {what}. A service may \
         use only resources inside its own containers; see \"Compose\" in docs/overmind-yml.md"
    )]
    Refused { service: String, what: String },
}

impl ComposeError {
    pub(crate) fn refused(service: &str, all: &[Refusal]) -> Self {
        let what: Vec<String> = all.iter().map(ToString::to_string).collect();
        Self::Refused { service: service.to_owned(), what: what.join("; ") }
    }
}

/// Variables that a program reads for itself, which a session's variables must not set.
const ITS_OWN: &[&str] = &["LD_", "DOCKER_", "COMPOSE_", "BUILDX_", "BUILDKIT_", "GIT_", "SSH_"];

/// A project, under a name that is derived from the session.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ComposePlan {
    pub(crate) service: String,
    pub(crate) project: String,
    /// The project's own file.
    pub(crate) file: PathBuf,
    /// Our file beside the journal, which is started. In leases of earlier versions it contains
    /// only the ports.
    pub(crate) ports_file: PathBuf,
    pub(crate) profiles: Vec<String>,
    pub(crate) services: Vec<String>,
}

/// A port of a service in the file: service, port inside, protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ComposePort {
    pub(crate) service: String,
    pub(crate) target: u16,
    pub(crate) protocol: String,
}

impl ComposePort {
    /// The name of its field in `${name.…}`.
    pub(crate) fn field(&self) -> String {
        format!("{}_{}", self.service, self.target)
    }
}

/// Access to the plugin.
#[derive(Clone, Debug)]
pub(crate) struct Compose {
    /// The docker client program.
    pub(crate) program: PathBuf,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) env: BTreeMap<String, String>,
}

impl Compose {
    fn command(&self, plan: Option<(&ComposePlan, &Path)>) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(socket) = &self.socket {
            command.arg("--host").arg(format!("unix://{}", socket.display()));
        }
        command.arg("compose");
        if let Some((plan, file)) = plan {
            command.arg("--project-name").arg(&plan.project).arg("--file").arg(file);
            for profile in &plan.profiles {
                command.arg("--profile").arg(profile);
            }
            if let Some(directory) = file.parent() {
                command.arg("--project-directory").arg(directory);
            }
            // A `.env` would also set the plugin's own variables.
            command.args(["--env-file", "/dev/null"]);
        }
        command.env_clear().envs(&self.env).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Checks that the plugin exists and is new enough.
    pub(crate) async fn check(&self, service: &str) -> Result<(), ComposeError> {
        let missing = |why: String| ComposeError::Missing { service: service.to_owned(), why };
        let asked = self.command(None).args(["version", "--short"]).output();
        let output = tokio::time::timeout(ASK, asked)
            .await
            .map_err(|_| missing("it did not answer".to_owned()))?
            .map_err(|err| missing(format!("{}: {err}", self.program.display())))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).lines().next().map(ToOwned::to_owned);
            return Err(missing(why.unwrap_or_else(|| output.status.to_string())));
        }
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let mut numbers = found.trim_start_matches('v').split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= LEAST => Ok(()),
            _ => Err(ComposeError::Old { service: service.to_owned(), found }),
        }
    }

    /// The resolved configuration of the project, with these variables.
    pub(crate) async fn config(
        &self,
        plan: &ComposePlan,
        env: &BTreeMap<String, String>,
    ) -> Result<Value, ComposeError> {
        let mut command = self.command(Some((plan, &plan.file)));
        let own = |name: &String| ITS_OWN.iter().any(|own| name.starts_with(own));
        command.envs(env.iter().filter(|(name, _)| !own(name))).envs(&self.env);
        let text = ask(plan, command, &["config", "--format", "json"]).await?;
        let config = serde_json::from_str(&text);
        config.map_err(|err| failed(plan, "config", format!("its answer: {err}")))
    }

    /// The arguments that start the project and wait until it is ready.
    pub(crate) fn up(&self, plan: &ComposePlan, timeout: Duration) -> Vec<String> {
        let mut command = self.command(Some((plan, &plan.ports_file)));
        command.args(["up", "--detach", "--wait", "--wait-timeout"]);
        command.arg(timeout.as_secs().max(1).to_string()).args(&plan.services);
        let command = command.as_std();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(OsStr::to_string_lossy).map(std::borrow::Cow::into_owned).collect()
    }

    /// Removes containers, networks and volumes of the project, by its name alone.
    pub(crate) async fn down(&self, plan: &ComposePlan) -> Result<(), ComposeError> {
        let mut file = plan.ports_file.clone();
        if file.extension() != Some(OsStr::new(SEALED)) || !file.exists() {
            // The name is enough for the removal.
            file.set_extension("empty.yaml");
            let written = std::fs::write(&file, "services: {}\n");
            written.map_err(|err| {
                failed(plan, "down", format!("writing {}: {err}", file.display()))
            })?;
        }
        let words = ["down", "--volumes", "--remove-orphans", "--timeout", "5"];
        ask(plan, self.command(Some((plan, &file))), &words).await.map(drop)
    }
}

/// The extension of the file that is started.
pub(crate) const SEALED: &str = "json";

fn failed(plan: &ComposePlan, what: &str, why: String) -> ComposeError {
    ComposeError::Failed { project: plan.project.clone(), what: what.to_owned(), why }
}

async fn ask(
    plan: &ComposePlan,
    mut command: Command,
    words: &[&str],
) -> Result<String, ComposeError> {
    let failed = |why: String| failed(plan, &words.join(" "), why);
    let output = tokio::time::timeout(ASK * 4, command.args(words).output())
        .await
        .map_err(|_| failed("it took too long".to_owned()))?
        .map_err(|err| failed(err.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Every port that the project publishes.
pub(crate) fn ports(plan: &ComposePlan, config: &Value) -> Result<Vec<ComposePort>, ComposeError> {
    let mut ports = Vec::new();
    for (service, body) in config["services"].as_object().into_iter().flatten() {
        for port in body["ports"].as_array().into_iter().flatten() {
            let target = port["target"].as_u64().and_then(|target| u16::try_from(target).ok());
            let protocol = port["protocol"].as_str().unwrap_or("tcp").to_owned();
            let target =
                target.ok_or_else(|| failed(plan, "config", format!("a port of `{service}`")))?;
            ports.push(ComposePort { service: service.clone(), target, protocol });
        }
    }
    ports.sort();
    ports.dedup();
    Ok(ports)
}

/// The path of the docker client program.
pub(crate) fn program(path: &str) -> Option<PathBuf> {
    crate::lease::which(path, "docker").or_else(|| {
        let usual = Path::new("/usr/bin/docker");
        usual.is_file().then(|| usual.to_owned())
    })
}
