//! A compose project of the session's own: own name, own ports, own volumes and networks.
//!
//! The project's file is used as it is, under a project name that follows from the session. A
//! second file replaces the published ports of each service by leased ones on the loopback
//! address. That needs the plugin `docker compose` from 2.24 on (`!override`); without it the
//! service is refused with a message that says so.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// The plugin's first version that can replace a list.
const LEAST: (u32, u32) = (2, 24);
/// How long a question to the plugin may take.
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
        "`{service}` is a compose project, and `docker compose` is {found}: {}.{} is the first that \
         can give each session its own ports", LEAST.0, LEAST.1
    )]
    Old { service: String, found: String },
    #[error("`docker compose {what}` for {project}: {why}")]
    Failed { project: String, what: String, why: String },
}

/// A project, under a name that follows from the session.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ComposePlan {
    pub(crate) service: String,
    pub(crate) project: String,
    /// The project's own file.
    pub(crate) file: PathBuf,
    /// Ours, beside the journal.
    pub(crate) ports_file: PathBuf,
    pub(crate) profiles: Vec<String>,
    pub(crate) services: Vec<String>,
}

/// A port of a service of the file: service, port inside, protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ComposePort {
    pub(crate) service: String,
    pub(crate) target: u16,
    pub(crate) protocol: String,
}

impl ComposePort {
    /// As `${name.…}` knows it.
    pub(crate) fn field(&self) -> String {
        format!("{}_{}", self.service, self.target)
    }
}

/// The plugin.
#[derive(Clone, Debug)]
pub(crate) struct Compose {
    /// The docker client program.
    pub(crate) program: PathBuf,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) env: BTreeMap<String, String>,
}

impl Compose {
    fn command(&self, plan: Option<&ComposePlan>) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(socket) = &self.socket {
            command.arg("--host").arg(format!("unix://{}", socket.display()));
        }
        command.arg("compose");
        if let Some(plan) = plan {
            command.arg("--project-name").arg(&plan.project).arg("--file").arg(&plan.file);
            for profile in &plan.profiles {
                command.arg("--profile").arg(profile);
            }
            if let Some(directory) = plan.file.parent() {
                command.arg("--project-directory").arg(directory);
            }
        }
        command.env_clear().envs(&self.env).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Makes sure that the plugin is there and new enough.
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

    /// Every port that the project publishes.
    pub(crate) async fn ports(&self, plan: &ComposePlan) -> Result<Vec<ComposePort>, ComposeError> {
        let text = self.ask(plan, &["config", "--format", "json"]).await?;
        let failed = |why: String| ComposeError::Failed {
            project: plan.project.clone(),
            what: "config".to_owned(),
            why,
        };
        let config: serde_json::Value =
            serde_json::from_str(&text).map_err(|err| failed(format!("its answer: {err}")))?;
        let mut ports = Vec::new();
        for (service, body) in config["services"].as_object().into_iter().flatten() {
            for port in body["ports"].as_array().into_iter().flatten() {
                let target = port["target"].as_u64().and_then(|target| u16::try_from(target).ok());
                let protocol = port["protocol"].as_str().unwrap_or("tcp").to_owned();
                let target = target.ok_or_else(|| failed(format!("a port of `{service}`")))?;
                ports.push(ComposePort { service: service.clone(), target, protocol });
            }
        }
        ports.sort();
        ports.dedup();
        Ok(ports)
    }

    /// Words that start the project and wait until it is ready.
    pub(crate) fn up(&self, plan: &ComposePlan, timeout: Duration) -> Vec<String> {
        let mut command = self.command(Some(plan));
        command.arg("--file").arg(&plan.ports_file);
        command.args(["up", "--detach", "--wait", "--wait-timeout"]);
        command.arg(timeout.as_secs().max(1).to_string()).args(&plan.services);
        let command = command.as_std();
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(OsStr::to_string_lossy).map(std::borrow::Cow::into_owned).collect()
    }

    /// Removes containers, networks and volumes of the project, by its name alone.
    pub(crate) async fn down(&self, plan: &ComposePlan) -> Result<(), ComposeError> {
        let mut plan = plan.clone();
        if !plan.file.exists() {
            // The worktree is gone already; the name is enough to remove by.
            plan.file = plan.ports_file.with_extension("empty.yaml");
            let written = std::fs::write(&plan.file, "services: {}\n");
            written.map_err(|err| ComposeError::Failed {
                project: plan.project.clone(),
                what: "down".to_owned(),
                why: format!("writing {}: {err}", plan.file.display()),
            })?;
        }
        self.ask(&plan, &["down", "--volumes", "--remove-orphans", "--timeout", "5"])
            .await
            .map(drop)
    }

    async fn ask(&self, plan: &ComposePlan, words: &[&str]) -> Result<String, ComposeError> {
        let failed = |why: String| ComposeError::Failed {
            project: plan.project.clone(),
            what: words.join(" "),
            why,
        };
        let asked = self.command(Some(plan)).args(words).output();
        let output = tokio::time::timeout(ASK * 4, asked)
            .await
            .map_err(|_| failed("it took too long".to_owned()))?
            .map_err(|err| failed(err.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The second file: the published ports of each service, replaced.
pub(crate) fn ports_file(ports: &[(ComposePort, u16)]) -> String {
    let mut services: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (port, outside) in ports {
        let line = format!("127.0.0.1:{outside}:{}/{}", port.target, port.protocol);
        services.entry(&port.service).or_default().push(line);
    }
    let mut out = String::from("services:");
    if services.is_empty() {
        out.push_str(" {}");
    }
    out.push('\n');
    for (service, lines) in services {
        let service = serde_json::Value::from(service);
        out.push_str(&format!("  {service}:\n    ports: !override\n"));
        for line in lines {
            out.push_str(&format!("      - \"{line}\"\n"));
        }
    }
    out
}

/// Where the docker client program is.
pub(crate) fn program(path: &str) -> Option<PathBuf> {
    crate::lease::which(path, "docker").or_else(|| {
        let usual = Path::new("/usr/bin/docker");
        usual.is_file().then(|| usual.to_owned())
    })
}
