//! The format of the policy file, and its errors.

use overmind_core::gate::{Decision, Risk, TouchKind};
use overmind_core::sandbox::SandboxLevel;
use serde::{Deserialize, Serialize};

/// Why a policy cannot be used. It displays as `policy.toml:3:1: …`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name}:{line}:{column}: {message}")]
pub struct PolicyError {
    /// The name of the text, for example its path.
    pub name: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    pub message: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyFile {
    pub(super) version: u32,
    #[serde(default)]
    pub(super) extends: Extends,
    pub(super) default: Option<Decision>,
    pub(super) trifecta: Option<Trifecta>,
    #[serde(default)]
    pub(super) rule: Vec<toml::Spanned<RuleFile>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Extends {
    #[default]
    Builtin,
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Trifecta {
    pub(super) verdict: Decision,
    pub(super) trusted_hosts: Vec<String>,
}

impl Default for Trifecta {
    fn default() -> Self {
        Self { verdict: Decision::Ask, trusted_hosts: Vec::new() }
    }
}

/// One rule. An empty list matches everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleFile {
    pub(super) id: String,
    pub(super) verdict: Decision,
    #[serde(default)]
    pub(super) tools: Vec<String>,
    #[serde(default)]
    pub(super) programs: Vec<String>,
    #[serde(default)]
    pub(super) effects: Vec<EffectName>,
    #[serde(default)]
    pub(super) paths: Vec<String>,
    #[serde(default)]
    pub(super) hosts: Vec<String>,
    #[serde(default)]
    pub(super) agents: Vec<String>,
    #[serde(default)]
    pub(super) colonies: Vec<String>,
    #[serde(default)]
    pub(super) sandbox: Vec<SandboxLevel>,
    pub(super) risk: Option<Risk>,
    /// Whether the rule applies only in the session's own environment, or only elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) room: Option<bool>,
    /// The exact program and arguments.
    #[serde(default)]
    pub(super) argv: Vec<String>,
    /// The only directory in which the program may start, in the form of paths.
    pub(super) cwd: Option<String>,
    /// The exact arguments of the tool as JSON; the order of keys does not matter.
    pub(super) arguments: Option<String>,
    pub(super) reason: Option<String>,
}

/// A kind of touch, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct EffectName(pub(super) Option<TouchKind>);

impl TryFrom<String> for EffectName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match (text.as_str(), TouchKind::parse(&text)) {
            ("none", _) => Ok(Self(None)),
            (_, Some(kind)) => Ok(Self(Some(kind))),
            (_, None) => {
                let known: Vec<&str> = TouchKind::ALL.iter().map(|kind| kind.as_str()).collect();
                Err(format!(
                    "there is no effect `{text}`; the effects are none, {}",
                    known.join(", ")
                ))
            }
        }
    }
}

impl From<EffectName> for String {
    fn from(name: EffectName) -> Self {
        name.0.map_or("none", TouchKind::as_str).to_owned()
    }
}

/// Reads a policy's text.
pub(super) fn read(text: &str, name: &str) -> Result<PolicyFile, PolicyError> {
    let file: PolicyFile = toml::from_str(text).map_err(|err| {
        let at = err.span().map_or(0, |span| span.start);
        problem(text, name, at, err.message())
    })?;
    if file.version != 1 {
        let message = format!("this is version {}, and 1 is what can be read", file.version);
        return Err(problem(text, name, text.find("version").unwrap_or(0), &message));
    }
    Ok(file)
}

pub(super) fn problem(text: &str, name: &str, at: usize, message: &str) -> PolicyError {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    let message = message.lines().collect::<Vec<_>>().join(": ");
    PolicyError { name: name.to_owned(), line, column, message }
}
