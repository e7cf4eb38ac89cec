//! Checks what a compose project asks of the engine, so that its services stay inside of their
//! containers.
//!
//! The engine executes any request as root. So only known keys are accepted, each with values that
//! reach no further than the project's own containers, networks and volumes and the worktree;
//! everything else is refused by name. The output of `docker compose config` is checked, and
//! exactly that is started: [`sealed`]. It contains each `$` twice, so that a later parse makes one
//! of them and replaces no variable. So a path is checked in its later form, and an output with a
//! single `$` is refused. The check is pure, except for resolving paths.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// One refused item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The object, such as `service web` or `network back`.
    of: String,
    key: String,
    why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}` {}", self.of, self.key, self.why)
    }
}

/// Resolves a path of the host that a container sees or a build reads; the error tells why it is no
/// file or directory of the worktree.
pub(crate) type Within<'a> = &'a dyn Fn(&Path) -> Result<(), String>;

/// Keys of a service that only affect its container.
const SERVICE: &[&str] = &[
    "attach",
    "cap_drop",
    "command",
    "cpu_count",
    "cpu_percent",
    "cpu_period",
    "cpu_quota",
    "cpu_shares",
    "cpus",
    "cpuset",
    "depends_on",
    "develop",
    "dns",
    "dns_opt",
    "dns_search",
    "domainname",
    "entrypoint",
    "environment",
    "expose",
    "healthcheck",
    "hostname",
    "image",
    "init",
    "labels",
    "links",
    "mem_limit",
    "mem_reservation",
    "mem_swappiness",
    "memswap_limit",
    "pids_limit",
    "platform",
    "profiles",
    "pull_policy",
    "read_only",
    "restart",
    "scale",
    "shm_size",
    "stdin_open",
    "stop_grace_period",
    "stop_signal",
    "tmpfs",
    "tty",
    "ulimits",
    "user",
    "working_dir",
];
const PORT: &[&str] =
    &["app_protocol", "host_ip", "mode", "name", "protocol", "published", "target"];
const BUILD: &[&str] = &[
    "args",
    "context",
    "dockerfile",
    "dockerfile_inline",
    "labels",
    "no_cache",
    "platforms",
    "pull",
    "shm_size",
    "target",
    "ulimits",
];
const ATTACHED: &[&str] =
    &["aliases", "gw_priority", "ipv4_address", "ipv6_address", "mac_address", "priority"];
const NETWORK: &[&str] = &["attachable", "enable_ipv4", "enable_ipv6", "internal", "labels"];
const RESOURCES: &[&str] = &["cpus", "memory", "pids"];
const OUTSIDE: &str = "reaches beyond the project's own containers";

struct Court<'a> {
    project: &'a str,
    within: Within<'a>,
    refused: Vec<Refusal>,
    shown: Vec<Shown>,
}

/// A file or directory of the host that a container sees.
struct Shown {
    of: String,
    key: String,
    path: PathBuf,
    writable: bool,
}

/// The caller handles the published ports; everything else is checked here.
///
/// # Errors
///
/// All refusals, in the order of the text.
pub(crate) fn judge(config: &Value, project: &str, within: Within<'_>) -> Result<(), Vec<Refusal>> {
    let mut court = Court { project, within, refused: Vec::new(), shown: Vec::new() };
    court.no_variable("", config);
    let nothing = Map::new();
    let top = config.as_object().unwrap_or(&nothing);
    for (key, value) in top.iter().filter(|(key, value)| !key.starts_with("x-") && is_set(value)) {
        let each = value.as_object().unwrap_or(&nothing).iter();
        match key.as_str() {
            "name" | "version" => {}
            "services" => each.for_each(|(name, body)| court.service(name, body)),
            "networks" => each.for_each(|(name, body)| court.network(name, body)),
            "volumes" => each.for_each(|(name, body)| court.volume(name, body)),
            "configs" | "secrets" => each.for_each(|(name, body)| court.file(key, name, body)),
            _ => court.refuse("the project", key, "is not known here"),
        }
    }
    court.none_below_a_writable_one();
    if court.refused.is_empty() { Ok(()) } else { Err(court.refused) }
}

/// A text of the output as a later parse reads it: one `$` for two. `None` if it would replace a
/// variable.
fn as_read(text: &str) -> Option<String> {
    let mut read = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        if next == '$' && rest.next() != Some('$') {
            return None;
        }
        read.push(next);
    }
    Some(read)
}

/// Whether a value is set.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten().filter(|(_, value)| is_set(value))
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn is_shared_with_a_service(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.starts_with("service:"))
}

impl Court<'_> {
    fn refuse(&mut self, of: &str, key: &str, why: impl Into<String>) {
        self.refused.push(Refusal { of: of.to_owned(), key: key.to_owned(), why: why.into() });
    }

    /// Refuses each unknown key.
    fn known(&mut self, of: &str, at: &str, value: &Value, known: &[&str]) {
        for (key, _) in entries(value).filter(|(key, _)| !known.contains(&key.as_str())) {
            self.refuse(of, &format!("{at}.{key}"), OUTSIDE);
        }
    }

    /// Refuses a value of another form than `config` writes, because it cannot be checked.
    fn shape(&mut self, of: &str, key: &str, is_right: bool) -> bool {
        if !is_right {
            self.refuse(of, key, "has a shape that is not known here");
        }
        is_right
    }

    /// The path in its later form, if it is in the worktree.
    fn path(&mut self, of: &str, key: &str, value: &Value) -> Option<PathBuf> {
        let path = value.as_str().and_then(as_read).map(PathBuf::from);
        let Some(path) = path.filter(|path| path.is_absolute()) else {
            self.refuse(of, key, "is not a path in the worktree");
            return None;
        };
        if let Err(why) = (self.within)(&path) {
            self.refuse(of, key, format!("names {}, which {why}", path.display()));
            return None;
        }
        Some(path)
    }

    /// Checks a path that a container sees.
    fn shows(&mut self, of: &str, key: &str, value: &Value, writable: bool) {
        if let Some(path) = self.path(of, key, value) {
            self.shown.push(Shown { of: of.to_owned(), key: key.to_owned(), path, writable });
        }
    }

    /// The engine resolves a path when it starts its container. Another running container may
    /// replace something below a directory that it can write by a link.
    fn none_below_a_writable_one(&mut self) {
        let mut found = Vec::new();
        for below in &self.shown {
            let above = self.shown.iter().find(|above| {
                above.writable && below.path != above.path && below.path.starts_with(&above.path)
            });
            if let Some(above) = above {
                let why = format!(
                    "names {}, which lies in {}: {} may write there, and could put a link in its place; \
                     make that one `read_only`, or mount one of the two alone",
                    below.path.display(),
                    above.path.display(),
                    above.of
                );
                found.push((below.of.clone(), below.key.clone(), why));
            }
        }
        for (of, key, why) in found {
            self.refuse(&of, &key, why);
        }
    }

    /// Refuses each text with a `$` that would be replaced as a variable.
    fn no_variable(&mut self, at: &str, value: &Value) {
        let below =
            |name: &str| if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
        match value {
            Value::String(text) if as_read(text).is_none() => {
                self.refuse("the project", at, "has a single `$`: write `$$` for a plain one");
            }
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(index, item)| {
                    self.no_variable(&below(&index.to_string()), item);
                });
            }
            Value::Object(entries) => {
                entries.iter().for_each(|(name, value)| self.no_variable(&below(name), value));
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn service(&mut self, name: &str, body: &Value) {
        let of = format!("service {name}");
        if !self.shape(&of, "services", body.is_object()) {
            return;
        }
        for (key, value) in entries(body).filter(|(key, _)| !key.starts_with("x-")) {
            let text = value.as_str();
            match key.as_str() {
                key if SERVICE.contains(&key) => {}
                "build" => self.build(&of, value),
                "ports" => self.list(&of, key, value, |court, port| {
                    court.known(&of, "ports", port, PORT);
                }),
                "volumes" => self.list(&of, key, value, |court, volume| {
                    court.mount(&of, volume);
                }),
                "networks" => {
                    if self.shape(&of, key, value.is_object()) {
                        for (_, attached) in entries(value) {
                            self.known(&of, "networks", attached, ATTACHED);
                        }
                    }
                }
                // These are checked where they are declared.
                "configs" | "secrets" => {
                    self.shape(&of, key, items(value).all(|item| item["source"].is_string()));
                }
                "env_file" | "label_file" => {
                    for file in items(value) {
                        let path = if file.is_object() { &file["path"] } else { file };
                        self.path(&of, key, path);
                    }
                    self.shape(&of, key, value.is_array());
                }
                "deploy" => self.deploy(&of, value),
                "extra_hosts" => self.hosts(&of, key, value),
                "network_mode" if text == Some("none") || is_shared_with_a_service(value) => {}
                "ipc" if matches!(text, Some("private" | "shareable" | "none")) => {}
                "ipc" | "pid" if is_shared_with_a_service(value) => {}
                "cgroup" if text == Some("private") => {}
                "security_opt" if items(value).all(is_no_new_privileges) && value.is_array() => {}
                "container_name" => {
                    self.refuse(&of, key, "would be the same for each session: remove it");
                }
                _ => self.refuse(&of, key, OUTSIDE),
            }
        }
    }

    fn list(
        &mut self,
        of: &str,
        key: &str,
        value: &Value,
        mut each: impl FnMut(&mut Self, &Value),
    ) {
        if !self.shape(of, key, items(value).all(Value::is_object) && value.is_array()) {
            return;
        }
        for item in items(value) {
            each(self, item);
        }
    }

    fn build(&mut self, of: &str, value: &Value) {
        if !self.shape(of, "build", value.is_object() && value["context"].is_string()) {
            return;
        }
        for (key, value) in entries(value).filter(|(key, _)| !key.starts_with("x-")) {
            match key.as_str() {
                key if BUILD.contains(&key) => {}
                "extra_hosts" => self.hosts(of, "build.extra_hosts", value),
                "network" if matches!(value.as_str(), Some("none" | "default")) => {}
                "tags" => {
                    self.refuse(of, "build.tags", "would name an image for all of this machine");
                }
                key => self.refuse(of, &format!("build.{key}"), OUTSIDE),
            }
        }
        self.path(of, "build.context", &value["context"]);
        if is_set(&value["dockerfile_inline"]) {
            return;
        }
        let context = Path::new(value["context"].as_str().unwrap_or_default());
        let file = context.join(value["dockerfile"].as_str().unwrap_or("Dockerfile"));
        self.path(of, "build.dockerfile", &json!(file.to_string_lossy()));
    }

    fn mount(&mut self, of: &str, mount: &Value) {
        let known = ["consistency", "read_only", "source", "target", "type"];
        for (key, value) in entries(mount).filter(|(key, _)| !known.contains(&key.as_str())) {
            let fine: &[&str] = match key.as_str() {
                "bind" => &["create_host_path", "selinux"],
                "tmpfs" => &["mode", "size"],
                "volume" => &["nocopy", "subpath"],
                _ => &[],
            };
            let private = |value: &Value| {
                value.as_str().is_some_and(|text| matches!(text, "private" | "rprivate"))
            };
            for (inner, value) in entries(value) {
                let passes = fine.contains(&inner.as_str())
                    || (key == "bind" && inner == "propagation" && private(value));
                if !passes {
                    self.refuse(of, &format!("volumes.{key}.{inner}"), OUTSIDE);
                }
            }
            if fine.is_empty() {
                self.refuse(of, &format!("volumes.{key}"), OUTSIDE);
            }
        }
        match mount["type"].as_str() {
            // The engine reads a name with a slash as a path of the host.
            Some("volume") if mount["source"].as_str().is_some_and(|name| name.contains('/')) => {
                self.refuse(of, "volumes", "names a volume by a path");
            }
            Some("volume" | "tmpfs") => {}
            Some("bind") => {
                let read_only = mount["read_only"].as_bool() == Some(true);
                self.shows(of, "volumes", &mount["source"], !read_only);
            }
            Some(other) => self.refuse(of, "volumes", format!("is of the type {other}")),
            None => self.refuse(of, "volumes", "has no type"),
        }
    }

    fn hosts(&mut self, of: &str, key: &str, value: &Value) {
        let all: Vec<String> = match value {
            Value::Array(items) => items.iter().map(ToString::to_string).collect(),
            other => entries(other).map(|(_, address)| address.to_string()).collect(),
        };
        let local = |text: &String| text.contains("host-gateway") || text.contains("169.254.");
        if all.iter().any(local) || all.is_empty() {
            self.refuse(of, key, "names this machine");
        }
    }

    fn deploy(&mut self, of: &str, value: &Value) {
        for (key, value) in entries(value) {
            match key.as_str() {
                "replicas" | "restart_policy" | "labels" | "update_config" | "rollback_config" => {}
                "mode" if value.as_str() == Some("replicated") => {}
                // These apply only to a swarm, and there is none.
                "placement" | "endpoint_mode" => {}
                "resources" => {
                    self.known(of, "deploy.resources", value, &["limits", "reservations"]);
                    for (kind, value) in entries(value) {
                        self.known(of, &format!("deploy.resources.{kind}"), value, RESOURCES);
                    }
                }
                key => self.refuse(of, &format!("deploy.{key}"), OUTSIDE),
            }
        }
    }

    /// Checks that a network or volume is the project's own, by its name in the engine.
    fn own(&mut self, of: &str, value: &Value) {
        let own = format!("{}_", self.project);
        match value["name"].as_str() {
            Some(name) if name.starts_with(&own) => {}
            None => {}
            Some(_) => self.refuse(of, "name", "would be the same for each session: remove it"),
        }
    }

    fn network(&mut self, name: &str, body: &Value) {
        let of = format!("network {name}");
        self.own(&of, body);
        for (key, value) in entries(body).filter(|(key, _)| !key.starts_with("x-")) {
            match key.as_str() {
                "name" => {}
                key if NETWORK.contains(&key) => {}
                "driver" if matches!(value.as_str(), Some("bridge" | "default")) => {}
                key => self.refuse(&of, key, OUTSIDE),
            }
        }
    }

    fn volume(&mut self, name: &str, body: &Value) {
        let of = format!("volume {name}");
        self.own(&of, body);
        for (key, value) in entries(body).filter(|(key, _)| !key.starts_with("x-")) {
            match key.as_str() {
                "name" | "labels" => {}
                "driver" if value.as_str() == Some("local") => {}
                key => self.refuse(&of, key, OUTSIDE),
            }
        }
    }

    fn file(&mut self, kind: &str, name: &str, body: &Value) {
        let of = format!("{} {name}", kind.trim_end_matches('s'));
        for (key, value) in entries(body).filter(|(key, _)| !key.starts_with("x-")) {
            match key.as_str() {
                "content" | "labels" | "name" => {}
                "file" => self.shows(&of, key, value, false),
                key => self.refuse(&of, key, OUTSIDE),
            }
        }
    }
}

fn is_no_new_privileges(value: &Value) -> bool {
    matches!(
        value.as_str(),
        Some("no-new-privileges" | "no-new-privileges:true" | "no-new-privileges=true")
    )
}

/// The project as it is started: the checked configuration, with these outside ports for each
/// service. A built image has the project's own name, not one of the machine. The engine does not
/// restart a container that sees a part of the worktree, because it would resolve the path again.
pub(crate) fn sealed(mut config: Value, ports: &[(super::ComposePort, u16)]) -> Value {
    let services = config.get_mut("services").and_then(Value::as_object_mut);
    for (name, body) in services.into_iter().flatten() {
        let Some(body) = body.as_object_mut() else { continue };
        let own = ports.iter().filter(|(port, _)| port.service == *name);
        let lines: Vec<Value> = own
            .map(|(port, outside)| {
                json!(format!("127.0.0.1:{outside}:{}/{}", port.target, port.protocol))
            })
            .collect();
        match lines.is_empty() {
            true => drop(body.remove("ports")),
            false => drop(body.insert("ports".to_owned(), Value::Array(lines))),
        }
        if body.get("build").is_some_and(is_set) {
            body.remove("image");
        }
        let bound = |volumes: &Value| items(volumes).any(|mount| mount["type"] == "bind");
        if body.get("volumes").is_some_and(bound) {
            body.remove("restart");
            if let Some(deploy) = body.get_mut("deploy").and_then(Value::as_object_mut) {
                deploy.remove("restart_policy");
            }
        }
    }
    config
}

#[cfg(test)]
mod tests;
