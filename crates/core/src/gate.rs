//! The port to the policy (`Gate`): decides whether a tool call is allowed, needs a human's
//! approval, or is denied.
//!
//! The engine calls [`Gate::judge`] before a call starts, and records the [`GateVerdict`]. It is an
//! input of the session, so a replay uses the recorded verdict and does not evaluate the policy.
//! [`Binding::hash`] binds a human's approval to exactly what was shown.
//!
//! This module contains the vocabulary and one hash. The implementation of the port parses commands
//! and policy files.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sandbox::SandboxLevel;
pub use crate::tool::Labels;

/// The decision about a call, ordered from lenient to strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    Allow,
    /// A human must decide.
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

/// How much harm a call could do. Calls that were not understood are [`Risk::Critical`].
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

/// A kind of effect of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TouchKind {
    /// Reads a file or directory.
    Read,
    /// Creates or changes a file.
    Write,
    /// Removes a file, or work that cannot be restored.
    Delete,
    /// Communicates with another machine.
    Network,
    /// Runs code of the workspace: its build, its tests, its scripts.
    Project,
    /// Runs other code: from the command line, from a pipe, or from outside the workspace.
    Code,
    /// Becomes another user, or leaves a sandbox.
    Privilege,
    /// Signals or traces other processes.
    Process,
    /// Installs packages, which run code from others.
    Install,
    /// Publishes work: a push, a release.
    Publish,
    /// Sets a variable that changes which programs run later, or what they do.
    Environment,
    /// Remains after the call: timers, login scripts, hooks, services.
    Persistence,
    /// Calls a tool of another program, whose effects are not known here.
    External,
    /// The effect was not understood. The target contains the reason.
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

    /// Returns the kind with this [`TouchKind::as_str`].
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// Returns whether data could leave this machine through it.
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

/// One effect with its target: a path, a host, a variable's name, or a reason.
///
/// Paths in the workspace are relative to it; others are absolute or begin with `~/`. In a target,
/// `…` is a part that is known only when the command runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Touch {
    pub kind: TouchKind,
    pub target: String,
}

/// One program that would run, or one tool that would be called, without its wrappers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// The program's name without directory (`rm`, not `/bin/rm`), or the tool's name.
    pub program: String,
    /// The known arguments, at most 32 with at most 200 characters each.
    pub args: Vec<String>,
    /// The wrappers around it, outermost first: `["sudo", "env"]`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub via: Vec<String>,
    pub touches: Vec<Touch>,
    /// The strictest decision about its effects.
    pub decision: Decision,
}

/// A tool call before it starts.
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
    /// The command's working directory: absolute, or relative to the workspace.
    #[serde(default)]
    pub cwd: String,
    /// The session's own directory, relative to the workspace. Commands that may write start there
    /// unless they name another.
    #[serde(default = "default_scratch")]
    pub scratch: String,
    #[serde(default = "crate::agent::default_sandbox")]
    pub sandbox: SandboxLevel,
    #[serde(default)]
    pub labels: Labels,
    /// Whether the workspace is the session's own environment, in a sandbox that hides secrets.
    /// Effects inside it then concern nobody else.
    #[serde(default)]
    pub room: bool,
}

fn default_workspace() -> String {
    "/workspace".to_owned()
}

fn default_scratch() -> String {
    scratch_of("session")
}

/// Returns the session's own directory in its workspace.
pub fn scratch_of(session: impl fmt::Display) -> String {
    format!(".overmind_runs/{session}")
}

/// A policy's version: the hash of its meaning, which does not depend on its formatting.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyVersion(pub String);

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The origin of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicySource {
    /// There is no file, so the built-in policy applies.
    Builtin,
    /// A file with this path, or another named text.
    File(String),
    /// The operator has switched the policy off: everything is allowed.
    Off,
}

impl PolicySource {
    /// Returns the kind without the file: `builtin`, `file`, `off`.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Builtin => "builtin",
            Self::File(_) => "file",
            Self::Off => "off",
        }
    }

    /// Returns the file's name, if the policy comes from a file.
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
    /// The place where it is written: `policy.toml:12`, `built in`.
    pub place: String,
}

/// The place of the rule in verdicts that do not come from a policy: see [`GateVerdict::misfit`].
pub const SCHEMA_PLACE: &str = "schema";

/// The policy's decision about one call. Recorded with the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateVerdict {
    pub decision: Decision,
    pub rule: RuleRef,
    pub risk: Risk,
    /// The reason in one or two sentences, for the human who is asked or reads the log.
    pub reason: String,
    /// The advice for the model whose call was not allowed: what to do instead. It contains nothing
    /// that helps to get around the policy.
    pub advice: String,
    pub actions: Vec<Action>,
    pub policy: PolicyVersion,
    /// Files to which an approval is bound: scripts that the call runs, files that it reads, and
    /// modules that inline code of an interpreter may import. Their content must not change. A name
    /// that ends in `/` is written or deleted by the call; for it, the resolved location must not
    /// change, so that a directory that is replaced by a link is noticed. Sorted, without
    /// duplicates and patterns, at most 64.
    pub files: Vec<String>,
    /// Group key. Approvals with the same key may be shown together: see [`Gate::group`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl GateVerdict {
    /// Creates the verdict about a call whose arguments do not match the tool's schema. No policy
    /// is evaluated, and nobody can approve the call: its result is `bad_args` with `why`, and the
    /// model may try again.
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

    /// Returns whether it was created by [`GateVerdict::misfit`].
    pub fn is_misfit(&self) -> bool {
        self.rule.place == SCHEMA_PLACE
    }
}

/// Decides about calls. Pure: the same request with the same version gets the same verdict, without
/// waiting for anything.
pub trait Gate: Send + Sync + fmt::Debug {
    fn judge(&self, request: &GateRequest) -> GateVerdict;

    /// Returns the version that the next [`Gate::judge`] uses.
    fn version(&self) -> PolicyVersion;

    /// Returns the origin of that policy.
    fn source(&self) -> PolicySource;

    /// Returns the mistakes of a new policy that was rejected, so that this one still applies.
    fn refused(&self) -> Option<String> {
        None
    }

    /// Returns what an approval has in common with others that a human may answer together. Called
    /// only if a human is asked. `None`: the approval is shown alone.
    fn group(&self, _request: &GateRequest, _verdict: &GateVerdict) -> Option<String> {
        None
    }

    /// Returns the text of the narrowest rules that would have allowed these calls, all of which a
    /// human has approved. It is only a proposal, which a human may add to the policy.
    ///
    /// # Errors
    ///
    /// Returns the reason if there is no such rule.
    fn propose(&self, _approved: &[GateRequest]) -> Result<String, String> {
        Err("this policy proposes no rules".to_owned())
    }
}

/// Everything to which an approval is bound. If a part differs when the call starts, the approval
/// does not apply.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'a> {
    pub tool: &'a str,
    /// The arguments after validation, as the tool gets them.
    pub args: &'a Value,
    /// The argv to execute; empty for a tool that executes nothing.
    pub argv: &'a [String],
    pub cwd: &'a str,
    /// The environment of the command, in any order.
    pub env: &'a [(String, String)],
    /// The path and the content's hash of each file in the verdict, in any order. `None` if the
    /// file does not exist or cannot be read.
    pub files: &'a [(String, Option<String>)],
    pub policy: &'a PolicyVersion,
}

impl Binding<'_> {
    /// Returns the hash of an approval: 64 hexadecimal digits.
    ///
    /// Every part is counted and prefixed by its length, so two different bindings never produce
    /// the same text. Keys of objects are sorted, because their order has no meaning.
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

/// Returns JSON with sorted keys. The parser that made the value limits its depth (128).
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
    fn stricter_decisions_and_higher_risks_compare_greater() {
        assert!(Decision::Allow < Decision::Ask && Decision::Ask < Decision::Deny);
        assert!(Risk::Low < Risk::Medium && Risk::High < Risk::Critical);
        for kind in TouchKind::ALL {
            assert_eq!(TouchKind::parse(kind.as_str()), Some(kind));
        }
    }

    #[test]
    fn every_part_of_a_binding_changes_its_hash_and_parts_cannot_be_confused() {
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
    fn the_order_of_unordered_parts_does_not_change_the_hash() {
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
