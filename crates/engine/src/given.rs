//! The contexts and memory claims of a new session: they are read when it is made, and copied into
//! it.

use std::collections::BTreeMap;

use overmind_core::agent::AgentSpec;
use overmind_core::record::Name;
use overmind_core::record::kinds::context::CONTEXT;
use overmind_core::record::kinds::memory_claim::{ClaimSpec, MEMORY_CLAIM};
use overmind_core::sandbox::SandboxLevel;
use overmind_core::session::claims::{self, GivenClaim};
use overmind_core::session::given::{self, GivenContext};
use serde_json::Value;

use crate::error::EngineError;
use crate::{Caller, Engine, quests};

impl Engine {
    /// The current contexts with these names, and the name of one that no admin wrote.
    pub(crate) async fn contexts_given(
        &self,
        by: &Caller,
        names: &[String],
    ) -> Result<(Vec<GivenContext>, Option<String>), EngineError> {
        if names.len() > given::MAX_CONTEXTS {
            let text = format!("has {}; {} is the most", names.len(), given::MAX_CONTEXTS);
            return Err(wrong(text));
        }
        let (mut all, mut bytes, mut foreign) = (Vec::new(), 0, None);
        for name in names {
            let parsed = Name::parse(name).map_err(|why| wrong(format!("`{name}`: {why}")))?;
            let record = self.record_fetch(by, &CONTEXT, &parsed).await?;
            if !quests::is_of_an_admin(&record) {
                foreign = Some(name.clone());
            }
            let context = GivenContext {
                name: name.clone(),
                generation: record.generation,
                values: texts(&record.spec, "values"),
                prompt: text(record.spec.get("prompt").unwrap_or(&Value::Null)),
                files: texts(&record.spec, "files"),
            };
            if let Some(mistake) = context.mistake() {
                return Err(wrong(format!("context {name}: {mistake}")));
            }
            bytes += context.bytes();
            all.push(context);
        }
        if bytes > given::MAX_BYTES {
            return Err(wrong(format!("are more than {} KiB together", given::MAX_BYTES >> 10)));
        }
        let files = given::files(&all).len();
        if files > given::MAX_FILES {
            let text = format!("have {files} files together; {} is the most", given::MAX_FILES);
            return Err(wrong(text));
        }
        if given::prompts(&all).len() > given::MAX_PROMPT {
            let most = given::MAX_PROMPT >> 10;
            let text = format!(
                "contain more than {most} KiB of prompts and file names: put long texts into \
                    `files`, and name them in `prompt`"
            );
            return Err(wrong(text));
        }
        Ok((all, foreign))
    }
}

impl Engine {
    /// The current memory claims with these names.
    pub(crate) async fn claims_given(
        &self,
        by: &Caller,
        wanted: &[String],
    ) -> Result<Vec<GivenClaim>, EngineError> {
        let wrong = |text: String| EngineError::invalid("memory_claims", text);
        if wanted.len() > claims::MAX_CLAIMS {
            let most = claims::MAX_CLAIMS;
            return Err(wrong(format!("has {}; {most} is the most", wanted.len())));
        }
        let mut all = Vec::new();
        for text in wanted {
            let shown: String = text.chars().take(64).collect();
            let (name, reads) =
                claims::parse(text).map_err(|why| wrong(format!("`{shown}`: {why}")))?;
            let record = match self.record_fetch(by, &MEMORY_CLAIM, &name).await {
                Err(EngineError::NotFound { .. }) => {
                    let message = format!(
                        "there is no memory claim `{name}`: `overmind get memoryclaims` lists them, \
                         `overmind apply` makes one"
                    );
                    return Err(EngineError::NotFound { message });
                }
                found => found?,
            };
            let ClaimSpec { directory, collection, read_only } = ClaimSpec::of(&record.spec);
            all.push(GivenClaim {
                name: name.to_string(),
                generation: record.generation,
                read_only: read_only || reads,
                directory,
                collection,
            });
        }
        match claims::mistake(&all) {
            Some(why) => Err(wrong(why)),
            None => Ok(all),
        }
    }
}

/// Checks that an agent's sandbox can show the directories of memory claims as they are claimed.
///
/// # Errors
///
/// Fails if it shows only its workspace, or could not keep a directory read-only.
pub(crate) fn check_claimed(agent: &AgentSpec, claims: &[GivenClaim]) -> Result<(), EngineError> {
    let level = agent.sandbox;
    let shows = |claim: &&GivenClaim| match level {
        SandboxLevel::Namespace => true,
        SandboxLevel::None => !claim.read_only,
        SandboxLevel::Docker | SandboxLevel::Microvm => false,
    };
    let Some(claim) = claims.iter().filter(|claim| claim.directory).find(|claim| !shows(claim))
    else {
        return Ok(());
    };
    let name = &claim.name;
    let message = match level {
        SandboxLevel::None => format!(
            "without a sandbox, nothing keeps the directory of `{name}` read-only: use the level \
             `namespace`"
        ),
        level => format!(
            "the directory of `{name}` is not shown in a sandbox of the level `{}`: use the level \
             `namespace`, or a claim with `directory: false`",
            level.as_str()
        ),
    };
    Err(EngineError::invalid("memory_claims", message))
}

/// Checks that an agent's sandbox can show the files.
///
/// # Errors
///
/// Fails if it shows only its workspace.
pub(crate) fn check_shown(agent: &AgentSpec, contexts: &[GivenContext]) -> Result<(), EngineError> {
    match agent.sandbox {
        SandboxLevel::None | SandboxLevel::Namespace => Ok(()),
        SandboxLevel::Docker | SandboxLevel::Microvm => {
            match contexts.iter().find(|context| !context.files.is_empty()) {
                None => Ok(()),
                Some(context) => Err(wrong(format!(
                    "context {} has files, which a sandbox of the level `{}` does not show: use the \
                     level `namespace`, or a context without files",
                    context.name,
                    agent.sandbox.as_str()
                ))),
            }
        }
    }
}

fn wrong(text: String) -> EngineError {
    EngineError::invalid("contexts", text)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(spec: &Value, field: &str) -> BTreeMap<String, String> {
    let entries = spec.get(field).and_then(Value::as_object).into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), text(value))).collect()
}
