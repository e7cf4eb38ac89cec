//! The contents of contexts: variables for a session's commands, files, and parts of its prompt.
//! They are copied into the session's spec when it is created. So a later change of a context does
//! not change any session, and a replay decides with the same contents.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Spec;
use super::claims::{self, GivenClaim};
use crate::agent::AgentSpec;
use crate::policy::prompt;
use crate::sandbox::SandboxLevel;

/// Maximum number of contexts of one session.
pub const MAX_CONTEXTS: usize = 16;
/// Maximum number of bytes of all contexts of a session together, and of files.
pub const MAX_BYTES: usize = 256 << 10;
pub const MAX_FILES: usize = 256;
/// Maximum number of bytes of all prompt parts together. They are one argument of Claude Code or
/// Codex, where a character may take two bytes, and the system allows 128 KiB.
pub const MAX_PROMPT: usize = 60 << 10;
/// Maximum number of bytes of one value. A variable with its name may have 128 KiB.
pub const MAX_VALUE: usize = 120 << 10;
/// Longest path of a file, in bytes.
pub const MAX_PATH: usize = 253;
/// Variables that a context cannot set, because they decide which programs run.
const KEPT: [&str; 6] = ["HOME", "IFS", "PATH", "SHELL", "TERM", "TMPDIR"];
const KEPT_BEGINNINGS: [&str; 3] = ["GIT_", "LD_", "OVERMIND_"];

/// The variable that contains the parts of the prompt, for commands.
pub const PROMPT_VARIABLE: &str = "OVERMIND_PROMPT";
/// The variable that contains the directory of the files. The files of each context are in a
/// subdirectory with its name.
pub const FILES_VARIABLE: &str = "OVERMIND_CONTEXT_FILES";

/// A context as it was when the session was created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenContext {
    pub name: String,
    pub generation: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prompt: String,
    /// The contents of the files, by path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
}

impl GivenContext {
    /// Returns the part that cannot be used, with its path in the context's spec.
    pub fn mistake(&self) -> Option<String> {
        for (name, value) in &self.values {
            if let Err(why) = check_variable(name) {
                return Some(format!("the value `{name}` {why}"));
            }
            if value.len() > MAX_VALUE {
                return Some(format!("the value `{name}` is longer than {} KiB", MAX_VALUE >> 10));
            }
            if value.contains('\0') {
                return Some(format!("the value `{name}` has a NUL, which no variable can have"));
            }
        }
        let odd = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
        if self.prompt.contains(odd) {
            return Some("`prompt` has a control character; only line ends are allowed".into());
        }
        clash(&self.files)
            .map(|path| format!("the file `{path}` is also the directory of another file"))
    }

    /// Returns the size of all contents in bytes.
    pub fn bytes(&self) -> usize {
        let texts = self.values.iter().chain(&self.files);
        self.prompt.len() + texts.map(|(name, text)| name.len() + text.len()).sum::<usize>()
    }
}

/// Returns why a file of a context cannot have this path.
pub fn path_mistake(path: &str) -> Option<&'static str> {
    let part = |part: &str| !matches!(part, "" | "." | "..");
    let odd = |c: char| c.is_control() || c == '\\';
    let sound = path.len() <= MAX_PATH && path.split('/').all(part) && !path.contains(odd);
    (!sound).then_some("must have a relative path of at most 253 bytes, without `..`")
}

/// Returns a path that is both a file and a directory of another file.
fn clash(files: &BTreeMap<String, String>) -> Option<&str> {
    files.keys().map(String::as_str).find(|path| {
        let beneath = format!("{path}/");
        files.range(beneath.clone()..).next().is_some_and(|(next, _)| next.starts_with(&beneath))
    })
}

/// Returns the files of a session as (path below its directory, contents).
pub fn files(given: &[GivenContext]) -> Vec<(String, String)> {
    let of = |context: &GivenContext| {
        let name = context.name.clone();
        let named = context.files.clone().into_iter();
        named.map(move |(path, text)| (format!("{name}/{path}"), text))
    };
    // If a context is named twice, its files are listed once.
    let all: BTreeMap<String, String> = given.iter().flat_map(of).collect();
    all.into_iter().collect()
}

/// Checks that a value of a context can be a variable of this name.
///
/// # Errors
///
/// Returns the reason, as words that follow the name.
pub fn check_variable(name: &str) -> Result<(), &'static str> {
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') || !name.chars().all(letter)
    {
        return Err("is not a variable name: use letters, digits and `_`");
    }
    if KEPT.contains(&name) || KEPT_BEGINNINGS.iter().any(|of| name.starts_with(of)) {
        return Err("controls which programs run, so a context cannot set it");
    }
    Ok(())
}

/// Returns the variables for commands. Variables of a later context override those of an earlier
/// one.
pub fn variables(given: &[GivenContext]) -> Vec<(String, String)> {
    let mut all = BTreeMap::new();
    for context in given {
        let named = context.values.iter().filter(|(name, _)| check_variable(name).is_ok());
        all.extend(named.map(|(name, value)| (name.clone(), value.clone())));
    }
    let prompt = prompts(given);
    if !prompt.is_empty() {
        all.insert(PROMPT_VARIABLE.to_owned(), prompt);
    }
    all.into_iter().collect()
}

/// Returns everything that a session's model is told beyond its role: the prompts of its contexts,
/// and its memory claims.
pub fn instructions(given: &[GivenContext], claims: &[GivenClaim]) -> String {
    let parts = [prompts(given), claims::prompt(claims)];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n\n")
}

/// Returns the parts of the prompt in the order of the contexts, and a list of the files.
pub fn prompts(given: &[GivenContext]) -> String {
    let mut all = String::new();
    for context in given.iter().filter(|context| !context.prompt.trim().is_empty()) {
        let between = if all.is_empty() { "" } else { "\n\n" };
        let _ = write!(all, "{between}{}", context.prompt.trim());
    }
    let files = files(given);
    if !files.is_empty() {
        let between = if all.is_empty() { "" } else { "\n\n" };
        let _ = write!(all, "{between}Files for you to read are in ${FILES_VARIABLE}:");
        for (path, _) in files {
            let _ = write!(all, "\n{path}");
        }
    }
    all
}

/// Returns the system prompt: the agent's role, the prompts of the session's contexts, and its
/// memory claims.
pub(super) fn system(agent: &AgentSpec, spec: &Spec) -> Arc<str> {
    let mut system = prompt::system(agent, agent.sandbox != SandboxLevel::None);
    let said = instructions(&spec.contexts, &spec.claims);
    if !said.is_empty() {
        system.push_str("\n\n");
        system.push_str(&said);
    }
    system.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(name: &str, value: &str, prompt: &str) -> GivenContext {
        let values = [("LANG".to_owned(), value.to_owned()), ("LD_PRELOAD".into(), "x".into())];
        GivenContext {
            name: name.into(),
            generation: 1,
            values: values.into(),
            prompt: prompt.into(),
            files: BTreeMap::new(),
        }
    }

    #[test]
    fn context_files_are_in_a_directory_of_their_context_and_listed_in_the_prompt() {
        let file = |path: &str| (path.to_owned(), "text".to_owned());
        let mut one = context("a", "en", "Be brief.");
        one.files = [file("x/y.md"), file("x.md")].into();
        let mut two = context("b", "en", "");
        two.values.clear();
        two.files = [file("x.md")].into();
        let given = [one.clone(), two, one.clone()];
        let paths: Vec<_> = files(&given).into_iter().map(|(path, _)| path).collect();
        assert_eq!(paths, ["a/x.md", "a/x/y.md", "b/x.md"]);
        let said = prompts(&given);
        assert!(said.starts_with("Be brief."), "{said}");
        let list = "in $OVERMIND_CONTEXT_FILES:\na/x.md\na/x/y.md\nb/x.md";
        assert!(said.ends_with(list), "{said}");

        one.values.clear();
        assert_eq!(one.mistake(), None);
        let wrong = |context: GivenContext| context.mistake().unwrap();
        let clashing = [file("x"), file("x-y"), file("x/y.md")].into();
        assert!(wrong(GivenContext { files: clashing, ..one.clone() }).contains("`x` is also"));
        let nul = [("A".to_owned(), "a\0".to_owned())].into();
        assert!(wrong(GivenContext { values: nul, ..one.clone() }).contains("NUL"));
        let bell = "\u{7}".to_owned();
        assert!(wrong(GivenContext { prompt: bell, ..one.clone() }).contains("control"));
        let long = [("A".to_owned(), "a".repeat(MAX_VALUE + 1))].into();
        assert!(wrong(GivenContext { values: long, ..one }).contains("longer than 120 KiB"));
    }

    #[test]
    fn a_later_context_overrides_earlier_ones_and_none_changes_the_program() {
        let given = [
            context("a", "en", " Be brief.\n"),
            context("b", "de", ""),
            context("c", "fr", "Say why."),
        ];
        let all = variables(&given);
        let named =
            |name: &str| all.iter().find(|(known, _)| known == name).map(|(_, v)| v.as_str());
        assert_eq!(named("LANG"), Some("fr"));
        assert_eq!(named("LD_PRELOAD"), None);
        assert_eq!(named(PROMPT_VARIABLE), Some("Be brief.\n\nSay why."));
        for bad in ["", "1A", "A-B", "PATH", "GIT_DIR", "OVERMIND_TOKEN"] {
            assert!(check_variable(bad).is_err(), "{bad}");
        }
    }
}
