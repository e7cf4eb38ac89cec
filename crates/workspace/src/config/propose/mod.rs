//! Proposes a first `.overmind.yml` from a project's existing files.
//!
//! It reads `compose.yaml`, `Procfile`, `devcontainer.json`, `.env.example` and `package.json`, and
//! writes a commented text for a person to read, change and keep. It runs nothing. A comment lists
//! what it could not carry over. [`Config::parse`](super::Config::parse) always accepts the text.

mod earlier;
mod files;
mod write;

use std::path::Path;

use files::{Compose, ComposeEntry, Engine};

use super::yaml;
use crate::opener::{self, Own};

/// Some editors write it at the beginning of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';
/// The largest file that is read.
const LARGEST: u64 = 1 << 20;

/// The files of a project on which a proposal is based; `None` for missing ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The project's `.overmind.yml`; if it is in the earlier dialect, it is converted.
    pub own: Option<String>,
    pub compose: Option<String>,
    pub procfile: Option<String>,
    pub devcontainer: Option<String>,
    pub env_example: Option<String>,
    pub package_json: Option<String>,
    /// Names of files at the project's top, whose existence is a hint.
    pub names: Vec<String>,
}

/// A text for `.overmind.yml`, with notes for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    pub text: String,
    /// The parts that could not be read or converted.
    pub notes: Vec<String>,
}

/// The data from which the text is written.
#[derive(Debug, Default)]
struct Draft {
    services: Vec<DraftService>,
    setup: Vec<String>,
    ports: Vec<String>,
    /// The range of ports; the default if absent.
    range: Option<String>,
    env: Vec<(String, String)>,
    directories: Vec<(&'static str, &'static str)>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct DraftService {
    name: String,
    /// The file in which it was found.
    from: &'static str,
    kind: DraftKind,
    depends_on: Vec<String>,
}

#[derive(Debug)]
enum DraftKind {
    Process { command: String, port: bool },
    Container(ComposeEntry),
    Database(Engine),
}

/// Converts a file of the earlier dialect; `None` if it is no such file.
pub(super) fn earlier(root: &yaml::Node) -> Option<Proposal> {
    let draft = earlier::draft(root)?;
    Some(Proposal { text: write::text(&draft), notes: draft.notes })
}

impl Sources {
    /// Reads the existing files; an unreadable file counts as missing.
    pub fn read(project: &Path) -> Self {
        let first = |names: &[&str]| {
            names.iter().find_map(|name| {
                let text = opener::text(project, Path::new(name), LARGEST, &Own::default());
                let text = String::from_utf8(text.ok()??).ok()?;
                Some(match text.strip_prefix(BYTE_ORDER_MARK) {
                    Some(text) => text.to_owned(),
                    None => text,
                })
            })
        };
        let listed = std::fs::read_dir(project).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            listed.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        Self {
            own: first(&[super::FILE]),
            compose: first(&[
                "compose.yaml",
                "compose.yml",
                "docker-compose.yaml",
                "docker-compose.yml",
            ]),
            procfile: first(&["Procfile.dev", "Procfile"]),
            devcontainer: first(&[".devcontainer/devcontainer.json", ".devcontainer.json"]),
            env_example: first(&[".env.example", ".env.sample", ".env.template"]),
            package_json: first(&["package.json"]),
            names,
        }
    }

    /// The proposal, which depends only on the sources.
    pub fn propose(&self) -> Proposal {
        let own = self.own.as_deref().and_then(|text| yaml::parse(text).ok());
        if let Some(proposal) = own.as_ref().and_then(earlier) {
            return proposal;
        }
        let mut draft = Draft::default();
        let compose = self.compose(&mut draft);
        self.procfile(&mut draft);
        self.package(&mut draft);
        self.devcontainer(&mut draft);
        self.tools(&mut draft);
        let known = self.env_example(&mut draft, &compose);
        draft.usual_variables(&known);
        let there: Vec<String> = draft.services.iter().map(|one| one.name.clone()).collect();
        for service in &mut draft.services {
            service.depends_on.retain(|name| there.contains(name));
        }
        Proposal { text: write::text(&draft), notes: draft.notes }
    }

    fn compose(&self, draft: &mut Draft) -> Compose {
        let Some(text) = &self.compose else { return Compose::default() };
        let compose = match files::compose(text) {
            Ok(compose) => compose,
            Err(why) => {
                draft.notes.push(format!("the compose file could not be read: {why}"));
                return Compose::default();
            }
        };
        draft.notes.extend(compose.notes.iter().cloned());
        for entry in &compose.services {
            let kind = match entry.engine {
                Some(engine) => DraftKind::Database(engine),
                None if entry.image.is_some() => DraftKind::Container(entry.clone()),
                None => {
                    draft.notes.push(format!(
                        "`{}` of the compose file is built from source: give it a `command` as a \
                         process, or an image as a container",
                        entry.name
                    ));
                    continue;
                }
            };
            draft.services.push(DraftService {
                name: entry.name.clone(),
                from: "the compose file",
                kind,
                depends_on: entry.depends_on.clone(),
            });
        }
        compose
    }

    fn procfile(&self, draft: &mut Draft) {
        let Some(text) = &self.procfile else { return };
        let backing: Vec<String> = draft.services.iter().map(|one| one.name.clone()).collect();
        for line in text.lines() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, command)) = line.split_once(':') else { continue };
            let (name, command) = (name.trim(), command.trim());
            if name == "release" {
                draft.setup.push(command.to_owned());
            } else if crate::env::template::is_name(name) && !command.is_empty() {
                draft.add_process(name, command, name == "web", "the Procfile", backing.clone());
            }
        }
    }

    fn package(&self, draft: &mut Draft) {
        let Some(text) = &self.package_json else { return };
        let package: serde_json::Value = match serde_json::from_str(text) {
            Ok(package) => package,
            Err(err) => {
                draft.notes.push(format!("package.json could not be read: {err}"));
                return;
            }
        };
        let has = |name: &str| self.names.iter().any(|known| known == name);
        let (tool, install) = if has("pnpm-lock.yaml") {
            ("pnpm", "pnpm install --frozen-lockfile")
        } else if has("yarn.lock") {
            ("yarn", "yarn install --frozen-lockfile")
        } else if has("bun.lock") || has("bun.lockb") {
            ("bun", "bun install --frozen-lockfile")
        } else if has("package-lock.json") {
            ("npm", "npm ci")
        } else {
            ("npm", "npm install")
        };
        draft.setup.insert(0, install.to_owned());
        draft.directories.push(("node_modules", "copy"));
        let process = |one: &DraftService| matches!(one.kind, DraftKind::Process { .. });
        if draft.services.iter().any(process) {
            return;
        }
        let script = ["dev", "start", "serve"]
            .into_iter()
            .find(|name| package["scripts"][*name].is_string());
        if let Some(script) = script {
            let backing: Vec<String> = draft.services.iter().map(|one| one.name.clone()).collect();
            let command = format!("{tool} run {script}");
            draft.add_process("web", &command, true, "package.json", backing);
        }
    }

    fn devcontainer(&self, draft: &mut Draft) {
        let Some(text) = &self.devcontainer else { return };
        match files::devcontainer(text) {
            Ok(found) => {
                for command in found.commands {
                    if !draft.setup.contains(&command) {
                        draft.setup.push(command);
                    }
                }
                let listens =
                    |one: &DraftService| matches!(one.kind, DraftKind::Process { port: true, .. });
                if !found.ports.is_empty() && !draft.services.iter().any(listens) {
                    draft.ports.push("PORT".to_owned());
                    draft.notes.push(format!(
                        "devcontainer.json forwards {}: let the application listen on $PORT",
                        found.ports.join(", ")
                    ));
                }
                if found.image {
                    draft.notes.push(
                        "devcontainer.json names an image: commands run on the machine itself, or \
                         in the sandbox that `isolation` names"
                            .to_owned(),
                    );
                }
            }
            Err(why) => draft.notes.push(format!("devcontainer.json could not be read: {why}")),
        }
    }

    /// Adds hints that other files at the top give about tools and their directories.
    fn tools(&self, draft: &mut Draft) {
        /// A file, the command that it needs, and a directory with its strategy.
        type Tool = (&'static str, &'static str, Option<(&'static str, &'static str)>);
        const TOOLS: &[Tool] = &[
            ("Gemfile.lock", "bundle install", None),
            ("uv.lock", "uv sync", Some((".venv", "skip"))),
            ("poetry.lock", "poetry install", None),
            ("composer.lock", "composer install", Some(("vendor", "copy"))),
            ("mix.lock", "mix deps.get", Some(("deps", "copy"))),
        ];
        for (file, command, directory) in TOOLS {
            if self.names.iter().any(|name| name == file) {
                let command = (*command).to_owned();
                if !draft.setup.contains(&command) {
                    draft.setup.insert(0, command);
                }
                draft.directories.extend(directory.iter());
            }
        }
        if self.names.iter().any(|name| name == "Cargo.toml") {
            draft.directories.push(("target", "skip"));
        }
    }

    /// Carries over the variables of the example file. Returns the names of all its variables.
    fn env_example(&self, draft: &mut Draft, compose: &Compose) -> Vec<String> {
        let Some(text) = &self.env_example else { return Vec::new() };
        let (mut left, mut known) = (Vec::new(), Vec::new());
        for (name, value) in files::env_example(text) {
            known.push(name.clone());
            match draft.carried(&name, &value, compose) {
                Some(template) => draft.env.push((name, template)),
                None if name == "PORT" => {}
                None => left.push(name),
            }
        }
        if !left.is_empty() {
            draft.notes.push(format!(
                "from .env.example, left to the project's own .env, which is copied: {}",
                left.join(", ")
            ));
        }
        known
    }
}

impl Draft {
    fn add_process(
        &mut self,
        name: &str,
        command: &str,
        port: bool,
        from: &'static str,
        depends_on: Vec<String>,
    ) {
        if self.services.iter().any(|one| one.name == name) {
            self.notes.push(format!("`{name}` is in several files; only the first one is used"));
            return;
        }
        let kind = DraftKind::Process { command: command.to_owned(), port };
        self.services.push(DraftService { name: name.to_owned(), from, kind, depends_on });
    }

    /// Gives each database a variable with its URL, so that commands find it: `DATABASE_URL`,
    /// `REDIS_URL`, or if that name is used, `NAME_URL` with the name of the service. A database that
    /// has a variable already gets no other. `known` are the names that the project itself uses.
    fn usual_variables(&mut self, known: &[String]) {
        for service in &self.services {
            let DraftKind::Database(engine) = service.kind else { continue };
            let field = format!("${{{}.", service.name);
            if self.env.iter().any(|(_, value)| value.contains(&field)) {
                continue;
            }
            let usual = match engine {
                Engine::Postgres => "DATABASE_URL",
                Engine::Redis => "REDIS_URL",
            };
            let upper =
                |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
            let own = service.name.chars().map(upper).collect::<String>() + "_URL";
            let free = |name: &String| {
                crate::env::template::is_name(name)
                    && !known.contains(name)
                    && self.env.iter().all(|(taken, _)| taken != name)
            };
            if let Some(name) = [usual.to_owned(), own].into_iter().find(free) {
                self.env.push((name, format!("{field}url}}")));
            }
        }
    }

    /// The template for an example's value, if that refers to one of our services.
    fn carried(&self, name: &str, value: &str, compose: &Compose) -> Option<String> {
        let engine = |wanted: Engine| {
            self.services
                .iter()
                .find(|one| matches!(one.kind, DraftKind::Database(e) if e == wanted))
        };
        let scheme = value.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("postgres" | "postgresql") => {
                return engine(Engine::Postgres).map(|one| format!("${{{}.url}}", one.name));
            }
            Some("redis") => {
                return engine(Engine::Redis).map(|one| format!("${{{}.url}}", one.name));
            }
            Some(_) | None => {}
        }
        match name {
            "PGHOST" | "DB_HOST" | "POSTGRES_HOST" => {
                return engine(Engine::Postgres).map(|one| format!("${{{}.host}}", one.name));
            }
            "PGPORT" | "DB_PORT" | "POSTGRES_PORT" => {
                return engine(Engine::Postgres).map(|one| format!("${{{}.port}}", one.name));
            }
            "PGUSER" | "DB_USER" | "POSTGRES_USER" => {
                return engine(Engine::Postgres).map(|one| format!("${{{}.user}}", one.name));
            }
            "PGPASSWORD" | "DB_PASSWORD" | "POSTGRES_PASSWORD" => {
                return engine(Engine::Postgres).map(|one| format!("${{{}.password}}", one.name));
            }
            "PGDATABASE" | "DB_NAME" | "POSTGRES_DB" => {
                return engine(Engine::Postgres).map(|one| format!("${{{}.name}}", one.name));
            }
            _ => {}
        }
        // In `http://localhost:9200` it is the published port of one of our containers.
        for host in ["localhost:", "127.0.0.1:"] {
            let Some((before, after)) = value.split_once(host) else { continue };
            let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
            let port: u16 = after[..digits].parse().ok()?;
            let found = compose.services.iter().find_map(|entry| {
                let published = entry.ports.iter().find(|p| p.published == Some(port))?;
                let ours = self.services.iter().any(|one| {
                    one.name == entry.name && matches!(one.kind, DraftKind::Container(_))
                });
                ours.then(|| format!("{}.{}", entry.name, published.name))
            });
            let (before, rest) = (before.replace('$', "$$"), after[digits..].replace('$', "$$"));
            return found.map(|port| format!("{before}127.0.0.1:${{{port}}}{rest}"));
        }
        None
    }
}
