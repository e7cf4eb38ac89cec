//! Reads the files on which a proposal is based. It is lenient, because they belong to other tools.

use crate::config::yaml::{Node, Value, parse};
use crate::env::template::is_name;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Postgres,
    Redis,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Compose {
    pub(super) services: Vec<ComposeEntry>,
    pub(super) notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ComposeEntry {
    pub(super) name: String,
    pub(super) image: Option<String>,
    /// The engine, if the image is a plain database that Overmind can provide itself.
    pub(super) engine: Option<Engine>,
    pub(super) command: Option<Vec<String>>,
    pub(super) env: Vec<(String, String)>,
    pub(super) ports: Vec<ComposePort>,
    pub(super) volumes: Vec<String>,
    pub(super) mounts: Vec<(String, String)>,
    pub(super) depends_on: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ComposePort {
    pub(super) name: String,
    pub(super) published: Option<u16>,
    pub(super) target: u16,
}

pub(super) fn compose(text: &str) -> Result<Compose, String> {
    let root = parse(text).map_err(|err| format!("line {}: {}", err.at.line, err.why))?;
    let mut compose = Compose::default();
    let Some(services) = root.get("services") else {
        return Err("it has no `services`".to_owned());
    };
    for (name, _, node) in services.entries() {
        if !is_name(name) || ["session", "ports", "self", "env"].contains(&name) {
            compose.notes.push(format!("the compose service `{name}` cannot keep its name"));
            continue;
        }
        let entry = entry(name, node, &mut compose.notes);
        compose.services.push(entry);
    }
    Ok(compose)
}

/// The engine of an image that is a plain database.
pub(super) fn engine_of(image: &str) -> Option<Engine> {
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.split([':', '@']).next().unwrap_or(last) {
        "postgres" | "postgresql" => Some(Engine::Postgres),
        "redis" | "valkey" => Some(Engine::Redis),
        _ => None,
    }
}

fn entry(name: &str, node: &Node, notes: &mut Vec<String>) -> ComposeEntry {
    let image = node.get("image").and_then(Node::text).map(interpolated);
    let engine = image.as_deref().and_then(engine_of);
    let command = node.get("command").filter(|node| !node.is_null());
    let command = command.and_then(|command| match command.text() {
        Some(line) => {
            let words = shlex::split(&interpolated(line));
            if words.is_none() {
                notes
                    .push(format!("the command of `{name}` has a quote without its end: left out"));
            }
            words
        }
        None => Some(command.items().iter().filter_map(Node::text).map(interpolated).collect()),
    });
    notes.extend(left_out(name, node));
    let mut ports: Vec<ComposePort> = Vec::new();
    for port in node.get("ports").map(Node::items).unwrap_or_default() {
        match published(port) {
            Some((from, target)) => {
                let name = match ports.is_empty() {
                    true => "port".to_owned(),
                    false => format!("port_{target}"),
                };
                ports.push(ComposePort { name, published: from, target });
            }
            None => {
                notes.push(format!("a port of `{name}` could not be read: ranges and variables"))
            }
        }
    }
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for volume in node.get("volumes").map(Node::items).unwrap_or_default() {
        let (source, target) = match volume.text() {
            Some(text) => {
                let mut parts = text.split(':');
                match (parts.next(), parts.next()) {
                    (Some(source), Some(target)) => (source.to_owned(), target.to_owned()),
                    (Some(target), None) => (String::new(), target.to_owned()),
                    (None, _) => continue,
                }
            }
            None => {
                let text =
                    |key: &str| volume.get(key).and_then(Node::text).unwrap_or_default().to_owned();
                (text("source"), text("target"))
            }
        };
        if !target.starts_with('/') {
            continue;
        }
        match source.strip_prefix("./") {
            Some(path) if !path.is_empty() && !path.split('/').any(|part| part == "..") => {
                mounts.push((path.to_owned(), target));
            }
            Some(_) => notes.push(format!("`{name}` mounts `{source}`: left out")),
            None if source.starts_with(['/', '.', '~', '$']) => {
                notes.push(format!("`{name}` mounts `{source}` of the machine: left out"));
            }
            None => volumes.push(target),
        }
    }
    let depends_on = node.get("depends_on").map_or_else(Vec::new, |depends| match &depends.value {
        Value::List(items) => items.iter().filter_map(Node::text).map(ToOwned::to_owned).collect(),
        Value::Map(_) | Value::Scalar { .. } => {
            depends.entries().into_iter().map(|(name, _, _)| name.to_owned()).collect()
        }
    });
    ComposeEntry {
        name: name.to_owned(),
        image,
        engine,
        command,
        env: environment(name, node, notes),
        ports,
        volumes,
        mounts,
        depends_on,
    }
}

/// Fields of a compose service that are carried over.
const CARRIED: [&str; 7] =
    ["build", "command", "depends_on", "environment", "image", "ports", "volumes"];
/// Fields without a meaning for a service of one run.
const WITHOUT_MEANING: [&str; 6] =
    ["container_name", "labels", "logging", "networks", "profiles", "restart"];

/// Names the fields of a compose service that a proposal does not contain.
fn left_out(name: &str, node: &Node) -> Option<String> {
    let fields = node.entries().into_iter().map(|(field, _, _)| field);
    let other = |field: &&str| {
        !CARRIED.contains(field) && !WITHOUT_MEANING.contains(field) && !field.starts_with("x-")
    };
    let fields: Vec<String> = fields.filter(other).map(|field| format!("`{field}`")).collect();
    (!fields.is_empty()).then(|| format!("`{name}` has {}: left out", fields.join(", ")))
}

/// The variables of a compose service. Those without a value, and those whose names are none for a
/// shell, become notes.
fn environment(service: &str, node: &Node, notes: &mut Vec<String>) -> Vec<(String, String)> {
    let Some(environment) = node.get("environment") else { return Vec::new() };
    let pairs: Vec<(String, Option<String>)> = match &environment.value {
        Value::List(items) => {
            let pair = |text: &str| match text.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(interpolated(value))),
                None => (text.to_owned(), None),
            };
            items.iter().filter_map(Node::text).map(pair).collect()
        }
        Value::Map(_) | Value::Scalar { .. } => environment
            .entries()
            .into_iter()
            .map(|(name, _, value)| {
                let text = Some(value).filter(|value| !value.is_null());
                (name.to_owned(), text.map(|text| interpolated(text.text().unwrap_or_default())))
            })
            .collect(),
    };
    let (mut known, mut odd, mut unset) = (Vec::new(), Vec::new(), Vec::new());
    for (name, value) in pairs {
        match value {
            _ if !crate::env::dotenv::is_variable(&name) => odd.push(format!("`{name}`")),
            None => unset.push(format!("`{name}`")),
            Some(value) => known.push((name, value)),
        }
    }
    if !odd.is_empty() {
        let odd = odd.join(", ");
        notes.push(format!(
            "`{service}` has variables with names that no shell has: {odd}: left out"
        ));
    }
    if !unset.is_empty() {
        let unset = unset.join(", ");
        notes.push(format!(
            "`{service}` takes variables from the machine: {unset}; give them values in `env`"
        ));
    }
    known
}

/// Parses `8080:80`, `127.0.0.1:8080:80/tcp`, `80`, or the long form.
fn published(node: &Node) -> Option<(Option<u16>, u16)> {
    match node.text() {
        Some(text) => {
            let text = interpolated(text);
            let text = text.split('/').next()?;
            let mut parts = text.rsplit(':');
            let target = parts.next()?.parse().ok()?;
            let from = parts.next().map(str::parse::<u16>);
            match from {
                Some(Ok(from)) => Some((Some(from), target)),
                Some(Err(_)) => None,
                None => Some((None, target)),
            }
        }
        None => {
            let target = node.get("target")?.text()?.parse().ok()?;
            let from = node.get("published").and_then(Node::text).and_then(|p| p.parse().ok());
            Some((from, target))
        }
    }
}

/// A compose value with its variables replaced by their defaults or by nothing.
pub(super) fn interpolated(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((inside, after)) =
            after.strip_prefix('{').and_then(|after| after.split_once('}'))
        {
            let default = inside.split_once(":-").or_else(|| inside.split_once('-'));
            out.push_str(default.map_or("", |(_, default)| default));
            rest = after;
        } else {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            rest = &after[end.unwrap_or(after.len())..];
        }
    }
    out.push_str(rest);
    out
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Devcontainer {
    pub(super) commands: Vec<String>,
    pub(super) ports: Vec<String>,
    pub(super) image: bool,
}

pub(super) fn devcontainer(text: &str) -> Result<Devcontainer, String> {
    let json: serde_json::Value =
        serde_json::from_str(&without_comments(text)).map_err(|err| err.to_string())?;
    let mut found = Devcontainer {
        image: ["image", "build", "dockerFile", "dockerComposeFile"]
            .iter()
            .any(|key| json.get(key).is_some()),
        ..Devcontainer::default()
    };
    for key in ["onCreateCommand", "updateContentCommand", "postCreateCommand"] {
        match json.get(key) {
            Some(serde_json::Value::String(line)) => found.commands.push(line.clone()),
            Some(serde_json::Value::Array(words)) => found.commands.push(shell_words(words)),
            Some(serde_json::Value::Object(named)) => {
                found.commands.extend(named.values().filter_map(|value| match value {
                    serde_json::Value::String(line) => Some(line.clone()),
                    serde_json::Value::Array(words) => Some(shell_words(words)),
                    _ => None,
                }));
            }
            Some(_) | None => {}
        }
    }
    found.commands.retain(|command| !command.trim().is_empty());
    if let Some(ports) = json.get("forwardPorts").and_then(serde_json::Value::as_array) {
        found.ports = ports.iter().map(|port| port.to_string().replace('"', "")).collect();
    }
    Ok(found)
}

/// Joins words to one line for a shell.
fn shell_words(words: &[serde_json::Value]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+,=".contains(c);
    let word = |word: &str| {
        if !word.is_empty() && word.chars().all(plain) {
            word.to_owned()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    let words: Vec<String> = words.iter().filter_map(|w| w.as_str()).map(word).collect();
    words.join(" ")
}

/// Converts JSON with comments and trailing commas to JSON.
fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if quoted => {
                out.push(c);
                out.extend(chars.next());
            }
            '"' => {
                quoted = !quoted;
                out.push(c);
            }
            '/' if !quoted && chars.peek() == Some(&'/') => {
                for c in chars.by_ref() {
                    if c == '\n' {
                        out.push('\n');
                        break;
                    }
                }
            }
            '/' if !quoted && chars.peek() == Some(&'*') => {
                chars.next();
                let mut star = false;
                for c in chars.by_ref() {
                    if star && c == '/' {
                        break;
                    }
                    star = c == '*';
                }
            }
            '}' | ']' if !quoted => {
                // This is a comma directly before an end, with only space between.
                let kept = out.trim_end().len();
                if out[..kept].ends_with(',') {
                    out.truncate(kept - 1);
                }
                out.push(c);
            }
            other => out.push(other),
        }
    }
    out
}

/// Name and value of each line, without quotes.
pub(super) fn env_example(text: &str) -> Vec<(String, String)> {
    let line = |line: &str| {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = line.split_once('=')?;
        let (name, value) = (name.trim(), value.trim());
        if !crate::env::dotenv::is_variable(name) {
            return None;
        }
        let quoted = |quote: char| {
            value
                .strip_prefix(quote)
                .and_then(|rest| rest.split_once(quote))
                .map(|(inside, _)| inside)
        };
        let bare = value.split(" #").next().unwrap_or(value).trim();
        let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(bare);
        Some((name.to_owned(), value.to_owned()))
    };
    text.lines().filter(|text| !text.trim_start().starts_with('#')).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_removed_from_json() {
        let text = "{ // a\n \"a\": \"// not /* one */ \\\" }\", /* b\n */ \"c\": [1, 2,\n ],\n}";
        let json: serde_json::Value = serde_json::from_str(&without_comments(text)).unwrap();
        assert_eq!(json, serde_json::json!({"a": "// not /* one */ \" }", "c": [1, 2]}));
    }

    #[test]
    fn compose_variables_become_their_defaults() {
        assert_eq!(interpolated("${PORT:-8080}:80"), "8080:80");
        assert_eq!(interpolated("a${X}b$Y-c$$d"), "ab-c$d");
    }
}
