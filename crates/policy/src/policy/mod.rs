//! The policy language: rules over tools, programs, effects, paths and hosts, and the verdict.
//!
//! The order of rules does not matter: of all rules that match a touch the strictest decides, and
//! of all touches the strictest verdict. So an added rule never loosens a `deny` or an `ask`, no
//! rule can hide another, and two files can be joined. An exception to a `deny` is therefore not
//! possible as a separate rule; it must be in the rule itself. See
//! docs/decisions/0007-policy-and-shell-analysis.md.

mod file;
mod judge;
mod rule;

use overmind_core::gate::{Decision, PolicySource, PolicyVersion};

pub use self::file::PolicyError;
use self::file::{Extends, Trifecta, problem, read};
use self::rule::Rule;
use crate::glob::Glob;

/// The place that is reported for every rule of the built-in policy.
pub(crate) const BUILT_IN: &str = "built in";
const BUILTIN: &str = include_str!("builtin.toml");
/// Allows everything, also unknown actions. It is a normal policy, so the log shows for each call
/// that nothing was judged.
const OFF: &str = include_str!("off.toml");
/// The analyser's version, raised whenever it understands a command differently: an approval from
/// an earlier version is then not valid.
const ANALYSER: u32 = 4;
const MAX_RULES: usize = 1000;

/// A policy that is ready to judge.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Vec<Rule>,
    default: Decision,
    trifecta: Decision,
    trusted: Vec<Glob>,
    version: PolicyVersion,
    source: PolicySource,
    text: String,
}

impl Default for Policy {
    /// The built-in policy, which applies if there is no file.
    fn default() -> Self {
        let parsed = Self::parse(BUILTIN, BUILT_IN).expect("the built-in policy is tested");
        Self { source: PolicySource::Builtin, ..parsed }
    }
}

impl Policy {
    /// A policy that allows everything. It must be selected explicitly and is never a fallback.
    pub fn off() -> Self {
        let parsed = Self::parse(OFF, "switched off").expect("the policy that is off is tested");
        Self { source: PolicySource::Off, ..parsed }
    }

    /// Reads a policy. `name` is the name of the text in errors and rules, for example its path.
    ///
    /// # Errors
    ///
    /// [`PolicyError`], with line and column: invalid TOML, an unknown key, a bad pattern, a
    /// repeated id.
    pub fn parse(text: &str, name: &str) -> Result<Self, PolicyError> {
        let file = read(text, name)?;
        let mut rules = Vec::new();
        let mut trifecta = file.trifecta.clone();
        let mut default = file.default;
        if file.extends == Extends::Builtin {
            let builtin = read(BUILTIN, BUILT_IN)?;
            trifecta = trifecta.or(builtin.trifecta);
            default = default.or(builtin.default);
            for spanned in builtin.rule {
                let made = Rule::new(spanned.get_ref().clone(), BUILT_IN.to_owned());
                rules.push(
                    made.map_err(|why| problem(BUILTIN, BUILT_IN, spanned.span().start, &why))?,
                );
            }
        }
        for spanned in file.rule {
            let at = spanned.span().start;
            let wrong = |why: String| problem(text, name, at, &why);
            let line = problem(text, name, at, "").line;
            let ours = text == BUILTIN || text == OFF;
            let place = if ours { name.to_owned() } else { format!("{name}:{line}") };
            let rule = Rule::new(spanned.into_inner(), place).map_err(wrong)?;
            if rules.iter().any(|other: &Rule| other.file.id == rule.file.id) {
                return Err(wrong(format!("there are two rules `{}`", rule.file.id)));
            }
            rules.push(rule);
        }
        if rules.len() > MAX_RULES {
            return Err(problem(text, name, 0, "a policy has at most 1000 rules"));
        }
        let trifecta = trifecta.unwrap_or_default();
        let globs: Result<Vec<Glob>, String> =
            trifecta.trusted_hosts.iter().map(|host| Glob::new(host)).collect();
        let trusted = globs
            .map_err(|why| problem(text, name, text.find("trusted_hosts").unwrap_or(0), &why))?;
        let default = default.unwrap_or(Decision::Ask);
        let version = version(&rules, default, &trifecta);
        Ok(Self {
            rules,
            default,
            trifecta: trifecta.verdict,
            trusted,
            version,
            source: PolicySource::File(name.to_owned()),
            text: text.to_owned(),
        })
    }

    /// The hash of the policy's meaning: comments, order and layout do not change it.
    pub fn version(&self) -> &PolicyVersion {
        &self.version
    }

    /// The source of the policy.
    pub fn source(&self) -> &PolicySource {
        &self.source
    }

    /// The text that was read; for the built-in policy its own text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn version(rules: &[Rule], default: Decision, trifecta: &Trifecta) -> PolicyVersion {
    let mut lines: Vec<String> = rules
        .iter()
        .map(|rule| serde_json::to_string(&rule.file).expect("a rule is strings and lists"))
        .collect();
    lines.sort();
    lines.push(serde_json::to_string(trifecta).expect("a verdict and a list of hosts"));
    lines.push(format!("{default} {ANALYSER}"));
    let mut hash = blake3::Hasher::new_derive_key("overmind 2026 policy version v1");
    for line in lines {
        hash.update(&(line.len() as u64).to_be_bytes()).update(line.as_bytes());
    }
    PolicyVersion(hash.finalize().to_hex()[..32].to_owned())
}
