//! The port to policy: is a tool call allowed, must a human be asked, is it denied?
//!
//! The engine calls [`Gate::judge`] before a call begins. The [`GateVerdict`] is recorded: it is an
//! input of the session machine, so a replay reads what was judged then and never judges again.
//! A human's approval is bound by [`Binding::hash`] to exactly what was shown.
//!
//! This module holds words and one hash. How a command is understood and what a policy file
//! says is the business of whoever fills the port.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sandbox::SandboxLevel;
pub use crate::tool::Labels;

/// What may happen with a call. Ordered: the later is the stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Allow,
    /// A human decides.
    Ask,
    Deny,
}

impl Decision {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How much harm a call could do. What is not understood is [`Risk::Critical`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Risk {
    Low,
    Medium,
    High,
    Critical,
}

impl Risk {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

impl fmt::Display for Risk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One way in which an action touches the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TouchKind {
    /// Reads a file or directory.
    Read,
    /// Creates or changes a file.
    Write,
    /// Removes a file, or work that nothing brings back.
    Delete,
    /// Speaks to another machine.
    Network,
    /// Runs code that is in the workspace: its build, its tests, its scripts.
    Project,
    /// Runs code from anywhere else: given on the command line, from a pipe, from outside.
    Code,
    /// Becomes another user, or leaves a confinement.
    Privilege,
    /// Signals or traces other processes.
    Process,
    /// Installs packages, which run code of others.
    Install,
    /// Sends work away: a push, a release.
    Publish,
    /// Changes what later programs are or do, by a variable.
    Environment,
    /// Stays after the call: timers, login scripts, hooks, services.
    Persistence,
    /// Calls a tool that another program provides; what it does is not known here.
    External,
    /// Was not understood. The target says why.
    Unknown,
}

impl TouchKind {
    pub const ALL: [Self; 14] = [
        Self::Read,
        Self::Write,
        Self::Delete,
        Self::Network,
        Self::Project,
        Self::Code,
        Self::Privilege,
        Self::Process,
        Self::Install,
        Self::Publish,
        Self::Environment,
        Self::Persistence,
        Self::External,
        Self::Unknown,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Delete => "delete",
            Self::Network => "network",
            Self::Project => "project",
            Self::Code => "code",
            Self::Privilege => "privilege",
            Self::Process => "process",
            Self::Install => "install",
            Self::Publish => "publish",
            Self::Environment => "environment",
            Self::Persistence => "persistence",
            Self::External => "external",
            Self::Unknown => "unknown",
        }
    }

    /// The kind that [`TouchKind::as_str`] spells.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// Whether data could leave this machine by it.
    pub const fn is_egress(self) -> bool {
        match self {
            Self::Network
            | Self::Code
            | Self::Install
            | Self::Publish
            | Self::External
            | Self::Unknown => true,
            Self::Read
            | Self::Write
            | Self::Delete
            | Self::Project
            | Self::Privilege
            | Self::Process
            | Self::Environment
            | Self::Persistence => false,
        }
    }
}

impl fmt::Display for TouchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One touch and what it is about: a path, a host, a variable's name, or a reason.
///
/// A path in the workspace is relative to it; others are absolute or begin with `~/`. `…` in a
/// target is a part that only the running command knows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Touch {
    pub kind: TouchKind,
    pub target: String,
}

/// One program that would run, or one tool that would be called, after all wrappers are taken off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// The program's plain name (`rm`, not `/bin/rm`), or the tool's.
    pub program: String,
    /// Its arguments as far as they are known; at most 32 of at most 200 characters are kept.
    pub args: Vec<String>,
    /// The wrappers it was found in, outermost first: `["sudo", "env"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
    pub touches: Vec<Touch>,
    /// The strictest verdict over its touches.
    pub decision: Decision,
}

/// One tool call before it begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateRequest {
    /// The colony's name.
    #[serde(default)]
    pub colony: String,
    /// The agent's name.
    #[serde(default)]
    pub agent: String,
    pub tool: String,
    #[serde(default)]
    pub args: Value,
    /// The workspace's root as the command sees it: `/workspace` in a sandbox. Absolute.
    #[serde(default = "default_workspace")]
    pub workspace: String,
    /// Where the command starts: absolute, or relative to the workspace.
    #[serde(default)]
    pub cwd: String,
    /// The session's own directory, relative to the workspace: commands that may write start
    /// there unless they name another.
    #[serde(default = "default_scratch")]
    pub scratch: String,
    #[serde(default = "crate::agent::default_sandbox")]
    pub sandbox: SandboxLevel,
    #[serde(default)]
    pub labels: Labels,
    /// Whether the workspace is a room of the session's own, in a sandbox that withholds secrets:
    /// what stays in there is nobody else's.
    #[serde(default)]
    pub room: bool,
}

fn default_workspace() -> String {
    "/workspace".to_owned()
}

fn default_scratch() -> String {
    scratch_of("session")
}

/// The directory of a session's own in its workspace.
pub fn scratch_of(session: impl fmt::Display) -> String {
    format!(".overmind_runs/{session}")
}

/// A policy's version: the hash of what it means, not of how it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyVersion(pub String);

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicySource {
    /// No file is there: the policy of the program itself.
    Builtin,
    /// The file's path, or what else its text was called.
    File(String),
    /// Switched off by whoever runs the server: everything is allowed.
    Off,
}

impl PolicySource {
    /// The kind alone: `builtin`, `file`, `off`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::File(_) => "file",
            Self::Off => "off",
        }
    }

    /// The file's name, of one that comes from a file.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::File(name) => Some(name),
            Self::Builtin | Self::Off => None,
        }
    }
}

/// The rule that decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleRef {
    pub id: String,
    /// Where it stands, for a human: `policy.toml:12`, `built in`.
    pub place: String,
}

/// The place of the rule of a verdict that is no policy's: see [`GateVerdict::misfit`].
pub const SCHEMA_PLACE: &str = "schema";

/// What a policy says about one call. Recorded with the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateVerdict {
    pub decision: Decision,
    pub rule: RuleRef,
    pub risk: Risk,
    /// For the human who is asked, or who reads the log. One or two sentences.
    pub reason: String,
    /// For the model whose call was not allowed: what to do instead, nothing about the policy
    /// that helps to get around it.
    pub advice: String,
    pub actions: Vec<Action>,
    pub policy: PolicyVersion,
    /// Files that the call names and whose content an approval is bound to: scripts it runs and
    /// files it reads, and what inline code of an interpreter may import. A name that ends in `/` is
    /// what the call writes or deletes: not its content counts but where it leads, so that a directory
    /// that becomes a link is noticed. Sorted, each once, at most 64, without patterns.
    pub files: Vec<String>,
    /// What a human is asked about this call may be shown with others of the same key: see
    /// [`Gate::group`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl GateVerdict {
    /// The verdict about a call whose arguments do not fit the tool's schema. No policy is asked and
    /// nobody can agree to it: the call answers `bad_args` with `why`, and its model may try again.
    pub fn misfit(tool: &str, why: String, policy: PolicyVersion) -> Self {
        Self {
            decision: Decision::Deny,
            rule: RuleRef { id: tool.to_owned(), place: SCHEMA_PLACE.to_owned() },
            risk: Risk::Low,
            reason: "the arguments do not fit the tool's schema".to_owned(),
            advice: why,
            actions: Vec::new(),
            policy,
            files: Vec::new(),
            group: None,
        }
    }

    /// Whether it is [`GateVerdict::misfit`].
    pub fn is_misfit(&self) -> bool {
        self.rule.place == SCHEMA_PLACE
    }
}

/// Judges calls. Pure: the same request under the same version gets the same verdict, and no
/// verdict waits for anything.
pub trait Gate: Send + Sync + fmt::Debug {
    fn judge(&self, request: &GateRequest) -> GateVerdict;

    /// The version that the next [`Gate::judge`] uses.
    fn version(&self) -> PolicyVersion;

    /// Where the policy of that version comes from.
    fn source(&self) -> PolicySource;

    /// What is wrong with a policy that was to take this one's place, and does not hold therefore.
    fn refused(&self) -> Option<String> {
        None
    }

    /// What calls have in common that a human may be shown, and may answer, together. Asked for
    /// only when a human is. `None`: each stands alone.
    fn group(&self, _request: &GateRequest, _verdict: &GateVerdict) -> Option<String> {
        None
    }

    /// The text of the narrowest rules that would have allowed these calls, all of which a human
    /// has approved. Proposed only: a human puts it into the policy, or does not.
    ///
    /// # Errors
    ///
    /// In words, why no rule stands for them.
    fn propose(&self, _approved: &[GateRequest]) -> Result<String, String> {
        Err("this policy proposes no rules".to_owned())
    }
}

/// Everything that an approval is bound to. If any of it differs when the call begins, the human
/// approved something else.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    pub tool: &'a str,
    /// The arguments as the tool gets them, after validation.
    pub args: &'a Value,
    /// The argv that will be executed; empty for a tool that executes nothing.
    pub argv: &'a [String],
    pub cwd: &'a str,
    /// The environment of the command. Their order means nothing.
    pub env: &'a [(String, String)],
    /// Of each file that the verdict names, its path and the hash of its content; `None` when it
    /// was not there or could not be read. Their order means nothing.
    pub files: &'a [(String, Option<String>)],
    pub policy: &'a PolicyVersion,
}

impl Binding<'_> {
    /// The hash that an approval carries: 64 hexadecimal digits.
    ///
    /// Every part is counted and prefixed by its length, so no two different bindings have the
    /// same text. Keys of objects are sorted: the order in which a model wrote them is no
    /// difference.
    pub fn hash(&self) -> String {
        let mut hash = blake3::Hasher::new_derive_key("overmind 2026 approval binding v1");
        let mut text = |part: &str| {
            hash.update(&(part.len() as u64).to_be_bytes()).update(part.as_bytes());
        };
        text(self.tool);
        text(&canonical(self.args));
        text(&self.argv.len().to_string());
        self.argv.iter().for_each(|arg| text(arg));
        text(self.cwd);
        let mut env: Vec<_> = self.env.iter().collect();
        env.sort();
        text(&env.len().to_string());
        for (name, value) in env {
            text(name);
            text(value);
        }
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort();
        text(&files.len().to_string());
        for (path, content) in files {
            text(path);
            text(if content.is_some() { "+" } else { "-" });
            text(content.as_deref().unwrap_or_default());
        }
        text(&self.policy.0);
        hash.finalize().to_hex().to_string()
    }
}

/// JSON with sorted keys. Depth is bounded by the parser that made the value (128).
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<_> = map.iter().collect();
            keys.sort_by_key(|(key, _)| *key);
            let fields: Vec<String> = keys
                .into_iter()
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), canonical(value)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_stricter_decision_and_the_higher_risk_are_the_greater() {
        assert!(Decision::Allow < Decision::Ask && Decision::Ask < Decision::Deny);
        assert!(Risk::Low < Risk::Medium && Risk::High < Risk::Critical);
        for kind in TouchKind::ALL {
            assert_eq!(TouchKind::parse(kind.as_str()), Some(kind));
        }
    }

    #[test]
    fn every_part_of_a_binding_changes_its_hash_and_no_two_parts_mix() {
        let policy = PolicyVersion("p1".into());
        let args = json!({"command": "sh a.sh", "timeout_s": 3});
        let argv = ["sh".to_owned(), "-lc".to_owned(), "sh a.sh".to_owned()];
        let env = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())];
        let files = [("a.sh".to_owned(), Some("00".to_owned())), ("b".to_owned(), None)];
        let base = Binding {
            tool: "run_shell",
            args: &args,
            argv: &argv,
            cwd: "/workspace",
            env: &env,
            files: &files,
            policy: &policy,
        };
        let other_args = json!({"command": "sh b.sh", "timeout_s": 3});
        let other_argv = ["sh".to_owned(), "-lcsh".to_owned(), " a.sh".to_owned()];
        let other_env = [("A".to_owned(), "12".to_owned()), ("B".to_owned(), String::new())];
        let changed = [("a.sh".to_owned(), Some("01".to_owned())), ("b".to_owned(), None)];
        let emptied =
            [("a.sh".to_owned(), Some("00".to_owned())), ("b".to_owned(), Some(String::new()))];
        let newer = PolicyVersion("p2".into());
        let all = [
            base.hash(),
            Binding { tool: "run_shel", ..base }.hash(),
            Binding { args: &other_args, ..base }.hash(),
            Binding { argv: &other_argv, ..base }.hash(),
            Binding { argv: &[], ..base }.hash(),
            Binding { cwd: "/workspace/a", ..base }.hash(),
            Binding { env: &other_env, ..base }.hash(),
            Binding { env: &[], ..base }.hash(),
            Binding { files: &changed, ..base }.hash(),
            Binding { files: &emptied, ..base }.hash(),
            Binding { files: &[], ..base }.hash(),
            Binding { policy: &newer, ..base }.hash(),
        ];
        for (n, hash) in all.iter().enumerate() {
            assert_eq!(hash.len(), 64);
            assert!(!all[..n].contains(hash), "variant {n} has the hash of another");
        }
    }

    #[test]
    fn an_order_that_means_nothing_does_not_change_the_hash() {
        let policy = PolicyVersion("p".into());
        let one = json!({"a": {"x": 1, "y": [2, {"q": 1, "p": 2}]}, "b": 2});
        let two = json!({"b": 2, "a": {"y": [2, {"p": 2, "q": 1}], "x": 1}});
        let env = [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "2".to_owned())];
        let back = [env[1].clone(), env[0].clone()];
        let bind = |args, env| Binding {
            tool: "t",
            args,
            argv: &[],
            cwd: "",
            env,
            files: &[],
            policy: &policy,
        };
        assert_eq!(bind(&one, &env).hash(), bind(&two, &back).hash());
        let swapped = json!({"a": {"x": 1, "y": [{"q": 1, "p": 2}, 2]}, "b": 2});
        assert_ne!(bind(&one, &env).hash(), bind(&swapped, &env).hash());
    }
}
