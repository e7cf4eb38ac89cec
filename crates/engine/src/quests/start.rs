//! One attempt of a quest becomes a session.

use overmind_core::command::CommandSpec;
use overmind_core::quest::{ATTEMPT, Author, QuestSpec, session_name, start_key};
use overmind_core::record::{Record, Selector};
use overmind_core::row::SessionRow;
use overmind_core::store::{Page, SessionFilter, StoreError};

use super::short;
use crate::Engine;
use crate::error::EngineError;
use crate::request::SessionDraft;

impl Engine {
    /// The session of an attempt, ended or not.
    pub(super) async fn attempt_made(
        &self,
        record: &Record,
        number: u32,
    ) -> Result<Option<SessionRow>, StoreError> {
        let selector = Selector::equals(ATTEMPT, &number.to_string()).map_err(|err| {
            StoreError::Other { attempt: "finding an attempt".into(), detail: err.to_string() }
        })?;
        let owner = Some(record.id);
        let filter = SessionFilter { owner, selector, ..SessionFilter::default() };
        let page = Page { after: None, limit: 1 };
        Ok(self.cortex.store.session_list(filter, page).await?.pop())
    }

    /// Makes the session of an attempt, unless it is there.
    pub(super) async fn attempt_start(
        &self,
        record: &Record,
        spec: &QuestSpec,
        author: Option<&Author>,
        number: u32,
    ) -> Result<(), EngineError> {
        // The key below is forgotten after a while, and is another one for another author.
        if self.attempt_made(record, number).await?.is_some() {
            return Ok(());
        }
        let by = self.author(author).await?;
        let command = spec.command.clone().map(|argv| CommandSpec {
            argv,
            exact: true,
            ..CommandSpec::default()
        });
        let key = start_key(record.id, number);
        let fingerprint = *blake3::hash(key.as_bytes()).as_bytes();
        let draft = SessionDraft {
            agent: spec.agent.clone(),
            task: spec.task.clone(),
            name: Some(session_name(record.key.name.as_str(), number)),
            command,
            sandbox: spec.sandbox,
            workspace: spec.project.clone(),
            conversation: Some(false),
            labels: [(ATTEMPT.to_owned(), number.to_string())].into(),
            owner: Some(record.id),
            idempotency: Some((key, fingerprint)),
            ..SessionDraft::default()
        };
        let unnamed = SessionDraft { name: None, ..draft.clone() };
        let made = match Box::pin(self.session_create(&by, draft)).await {
            // The name may be another session's: then it gets a generated one.
            Err(EngineError::Conflict { .. }) => Box::pin(self.session_create(&by, unnamed)).await,
            made => made,
        };
        match made {
            Ok(_) => Ok(()),
            Err(EngineError::NotFound { .. }) => {
                let agent: String = spec.agent.chars().take(64).collect();
                let hint = "`overmind agent list` shows the agents";
                Err(EngineError::NotFound {
                    message: format!("there is no agent `{agent}`; {hint}"),
                })
            }
            Err(err) => Err(err),
        }
    }
}

/// One word for programs and a sentence for people.
pub(super) fn reason(refused: &EngineError) -> (&'static str, String) {
    let word = match refused {
        EngineError::Invalid { .. } => "Invalid",
        EngineError::Unauthenticated { .. } | EngineError::Forbidden { .. } => "Forbidden",
        EngineError::Untrusted { .. } => "Untrusted",
        EngineError::NotFound { .. } => "NotFound",
        EngineError::Conflict { .. } => "Conflict",
        EngineError::Busy { .. } | EngineError::Unavailable { .. } | EngineError::Store(_) => {
            "Unavailable"
        }
    };
    (word, short(&refused.to_string()))
}
