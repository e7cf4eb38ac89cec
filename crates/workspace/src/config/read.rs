//! Converts the tree of values to types, key by key.

use std::path::{Component, PathBuf};
use std::time::Duration;

use overmind_core::sandbox::SandboxLevel;

use super::reader::{Fields, Reader};
use super::services::service;
use super::yaml::{Node, Value};
use super::{CommandLine, Config, DirectoryStrategy, EnvFile, Hook, OnFailure};
use crate::env::dotenv::is_variable;
use crate::env::template::{Template, is_name};

const TOP: &[&str] = &[
    "version",
    "worktree",
    "ports",
    "services",
    "env",
    "env_file",
    "setup",
    "teardown",
    "isolation",
    "pool",
    "secrets",
];

pub(super) fn config(reader: &mut Reader, node: &Node) -> Config {
    let mut config = Config::default();
    if node.is_null() {
        return config;
    }
    let Some(top) = reader.fields(node, "", TOP) else { return config };
    match top.get("version") {
        Some((version, _)) if version.text() == Some("1") => {}
        Some((version, path)) => {
            reader.hinted(
                version.at,
                &path,
                "is not a version that this program reads",
                "write `version: 1`, or use a newer Overmind",
            );
        }
        None => reader.hinted(top.at, "", "has no version", "begin the file with `version: 1`"),
    }
    worktree(reader, &top, &mut config);
    if let Some((node, path)) = top.get("services") {
        for (name, at, node, path) in reader.pairs(node, &path) {
            if !is_name(name) || ["session", "ports", "self", "env"].contains(&name) {
                reader.hinted(
                    at,
                    &path,
                    "is not a name for a service",
                    "letters, digits, `-` and `_`; not `session`, `ports`, `self` or `env`",
                );
                continue;
            }
            config.services.extend(service(reader, name, node, &path));
        }
    }
    ports(reader, &top, &mut config);
    if let Some((node, path)) = top.get("env") {
        config.env = variables(reader, node, &path);
    }
    if let Some((node, path)) = top.get("env_file") {
        config.env_file = path_beneath(reader, node, &path).map(|path| EnvFile { path });
    }
    config.setup = hooks(reader, &top, "setup", Duration::from_secs(900), OnFailure::Block);
    config.teardown = hooks(reader, &top, "teardown", Duration::from_secs(120), OnFailure::Warn);
    if let Some((node, path)) = top.get("isolation")
        && let Some(fields) = reader.fields(node, &path, &["sandbox", "tmp"])
    {
        const LEVELS: [SandboxLevel; 4] = [
            SandboxLevel::None,
            SandboxLevel::Namespace,
            SandboxLevel::Docker,
            SandboxLevel::Microvm,
        ];
        let levels = LEVELS.map(|level| (level.as_str(), level));
        if let Some((node, path)) = fields.get("sandbox") {
            config.isolation.sandbox = reader.choice(node, &path, &levels);
        }
        if let Some((node, path)) = fields.get("tmp") {
            config.isolation.tmp = reader.truth(node, &path).unwrap_or(true);
        }
    }
    if let Some((node, path)) = top.get("pool")
        && let Some(fields) = reader.fields(node, &path, &["size", "refresh"])
    {
        if let Some((node, path)) = fields.get("size") {
            let size = reader.number(node, &path, 0, 64).unwrap_or(0);
            config.pool.size = u32::try_from(size).unwrap_or(0);
        }
        if let Some(refresh) = duration(reader, &fields, "refresh") {
            config.pool.refresh = refresh;
        }
    }
    if let Some((node, path)) = top.get("secrets") {
        config.secrets = reader.words(node, &path);
    }
    config
}

fn worktree(reader: &mut Reader, top: &Fields<'_>, config: &mut Config) {
    const KEYS: &[&str] =
        &["base", "branch_prefix", "include", "include_file", "directories", "submodules"];
    let Some((node, path)) = top.get("worktree") else { return };
    let Some(fields) = reader.fields(node, &path, KEYS) else { return };
    let worktree = &mut config.worktree;
    if let Some((node, path)) = fields.get("base") {
        worktree.base = reader.word(node, &path).filter(|base| {
            // A word with a leading dash would be an option of the program that gets it.
            let fine = !base.starts_with('-');
            if !fine {
                reader.problem(node.at, &path, "a revision does not begin with `-`");
            }
            fine
        });
    }
    if let Some((node, path)) = fields.get("branch_prefix")
        && let Some(prefix) = reader.word(node, &path)
    {
        let fine = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
        if !prefix.chars().all(fine)
            || prefix.starts_with(['/', '-', '.'])
            || prefix.contains("..")
            || prefix.contains("//")
        {
            reader.problem(node.at, &path, "cannot begin the name of a branch");
        }
        worktree.branch_prefix = prefix;
    }
    if let Some((node, path)) = fields.get("include") {
        worktree.include = reader.words(node, &path);
    }
    if let Some((node, path)) = fields.get("include_file")
        && let Some(file) = path_beneath(reader, node, &path)
    {
        worktree.include_file = file.to_string_lossy().into_owned();
    }
    if let Some((node, path)) = fields.get("directories") {
        const STRATEGIES: &[(&str, DirectoryStrategy)] = &[
            ("share", DirectoryStrategy::Share),
            ("reflink", DirectoryStrategy::Reflink),
            ("copy", DirectoryStrategy::Copy),
            ("skip", DirectoryStrategy::Skip),
        ];
        for (name, at, node, path) in reader.pairs(node, &path) {
            if beneath(name).is_none() {
                reader.problem(at, &path, "is not a path beneath the project");
            }
            if let Some(strategy) = reader.choice(node, &path, STRATEGIES) {
                worktree.directories.insert(name.trim_end_matches('/').to_owned(), strategy);
            }
        }
    }
    if let Some((node, path)) = fields.get("submodules") {
        worktree.submodules = reader.truth(node, &path).unwrap_or(true);
    }
}

fn ports(reader: &mut Reader, top: &Fields<'_>, config: &mut Config) {
    let mut declared = None;
    if let Some((node, path)) = top.get("ports") {
        if matches!(node.value, Value::Map(_)) {
            let Some(fields) = reader.fields(node, &path, &["range", "names"]) else { return };
            if let Some((node, path)) = fields.get("range")
                && let Some(range) = range(reader, node, &path)
            {
                config.ports.range = range;
            }
            if let Some((node, path)) = fields.get("names") {
                declared = Some((node, path));
            }
        } else {
            declared = Some((node, path));
        }
    }
    config.ports.names = match declared {
        Some((node, path)) => {
            let names = reader.words(node, &path);
            for (n, name) in names.iter().enumerate() {
                if !is_variable(name) {
                    reader.problem(
                        node.at,
                        &path,
                        format!("`{name}` cannot be the name of a variable"),
                    );
                }
                if names[..n].contains(name) {
                    reader.problem(node.at, &path, format!("`{name}` is listed twice"));
                }
            }
            names
        }
        // Almost every project needs a port to listen on.
        None if config.services.iter().all(|service| service.ports().is_empty()) => {
            vec!["PORT".to_owned()]
        }
        None => Vec::new(),
    };
}

fn range(reader: &mut Reader, node: &Node, path: &str) -> Option<std::ops::RangeInclusive<u16>> {
    let ends = node.text().and_then(|text| {
        let (low, high) = text.split_once('-')?;
        Some((low.trim().parse::<u16>().ok()?, high.trim().parse::<u16>().ok()?))
    });
    match ends {
        Some((low, high)) if low >= 1024 && low <= high => Some(low..=high),
        Some(_) | None => {
            reader.hinted(
                node.at,
                path,
                "wants two ports from 1024 to 65535",
                "for example `20000-29999`",
            );
            None
        }
    }
}

fn hooks(
    reader: &mut Reader,
    top: &Fields<'_>,
    key: &str,
    timeout: Duration,
    on_failure: OnFailure,
) -> Vec<Hook> {
    let Some((node, path)) = top.get(key) else { return Vec::new() };
    let one = |reader: &mut Reader, node: &Node, path: &str| {
        if node.text().is_some() {
            let command = command(reader, node, path)?;
            let name = command.shown();
            return Some(Hook { name, command, cwd: None, timeout, on_failure });
        }
        const KEYS: &[&str] = &["name", "command", "cwd", "timeout", "on_failure"];
        const POLICIES: &[(&str, OnFailure)] =
            &[("block", OnFailure::Block), ("warn", OnFailure::Warn)];
        let fields = reader.fields(node, path, KEYS)?;
        let command = required_command(reader, &fields)?;
        let name = fields.get("name").and_then(|(node, path)| reader.word(node, &path));
        let policy = fields.get("on_failure");
        Some(Hook {
            name: name.unwrap_or_else(|| command.shown()),
            command,
            cwd: optional_path(reader, &fields, "cwd"),
            timeout: duration(reader, &fields, "timeout").unwrap_or(timeout),
            on_failure: policy
                .and_then(|(node, path)| reader.choice(node, &path, POLICIES))
                .unwrap_or(on_failure),
        })
    };
    match &node.value {
        Value::List(items) => {
            let numbered = items.iter().enumerate();
            numbered.filter_map(|(n, item)| one(reader, item, &format!("{path}[{n}]"))).collect()
        }
        Value::Scalar { .. } | Value::Map(_) => one(reader, node, &path).into_iter().collect(),
    }
}

pub(super) fn required_command(reader: &mut Reader, fields: &Fields<'_>) -> Option<CommandLine> {
    match fields.get("command") {
        Some((node, path)) => command(reader, node, &path),
        None => {
            reader.problem(fields.at, &fields.path, "needs a `command`");
            None
        }
    }
}

pub(super) fn command(reader: &mut Reader, node: &Node, path: &str) -> Option<CommandLine> {
    if node.text().is_some() {
        return reader.word(node, path).map(CommandLine::Shell);
    }
    let words = reader.words(node, path);
    if words.is_empty() {
        reader.problem(node.at, path, "must be a shell command line or a list of words");
        return None;
    }
    let parse = |word: &String| match Template::parse(word) {
        Ok(template) => Some(template),
        Err(err) => {
            reader.problem(node.at, path, err.to_string());
            None
        }
    };
    words.iter().map(parse).collect::<Option<Vec<_>>>().map(CommandLine::Words)
}

pub(super) fn variables(reader: &mut Reader, node: &Node, path: &str) -> Vec<(String, Template)> {
    let mut found = Vec::new();
    for (name, at, node, path) in reader.pairs(node, path) {
        if !is_variable(name) {
            reader.problem(at, &path, "cannot be the name of a variable");
        } else if name.starts_with("OVERMIND_") {
            reader.problem(at, &path, "names that begin with OVERMIND_ are set by Overmind");
        }
        // A key without a value is an empty variable, as in other files of variables.
        let text = if node.is_null() { Some(String::new()) } else { reader.text(node, &path) };
        let Some(text) = text else { continue };
        match Template::parse(&text) {
            Ok(template) => found.push((name.to_owned(), template)),
            Err(err) => reader.problem(node.at, &path, err.to_string()),
        }
    }
    found
}

pub(super) fn check_port_names<'a>(
    reader: &mut Reader,
    node: &Node,
    path: &str,
    names: impl Iterator<Item = &'a str>,
) {
    let mut seen: Vec<&str> = Vec::new();
    for name in names {
        if !is_name(name) || (name != "port" && ["host", "url"].contains(&name)) {
            reader.hinted(
                node.at,
                path,
                format!("`{name}` cannot be the name of a port"),
                "letters, digits, `-` and `_`; not `host` or `url`",
            );
        }
        if seen.contains(&name) {
            reader.problem(node.at, path, format!("`{name}` is listed twice"));
        }
        seen.push(name);
    }
}

pub(super) fn duration(reader: &mut Reader, fields: &Fields<'_>, key: &str) -> Option<Duration> {
    let (node, path) = fields.get(key)?;
    reader.duration(node, &path)
}

pub(super) fn optional_path(
    reader: &mut Reader,
    fields: &Fields<'_>,
    key: &str,
) -> Option<PathBuf> {
    let (node, path) = fields.get(key)?;
    path_beneath(reader, node, &path)
}

pub(super) fn path_beneath(reader: &mut Reader, node: &Node, path: &str) -> Option<PathBuf> {
    let text = reader.word(node, path)?;
    let found = beneath(&text);
    if found.is_none() {
        reader.hinted(
            node.at,
            path,
            format!("`{text}` is not a path beneath the worktree"),
            "a relative path without `..`, and not in `.git`",
        );
    }
    found
}

/// The path without `.` parts, if it stays below its start and out of `.git`.
pub(super) fn beneath(text: &str) -> Option<PathBuf> {
    let mut path = PathBuf::new();
    for part in PathBuf::from(text).components() {
        match part {
            Component::Normal(part) if part.eq_ignore_ascii_case(".git") => return None,
            Component::Normal(part) => path.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!path.as_os_str().is_empty()).then_some(path)
}
