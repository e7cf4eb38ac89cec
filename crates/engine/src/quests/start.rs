//! Starts a session for one attempt of a quest.

use std::collections::BTreeMap;

use overmind_core::command::{CommandKind, CommandSpec};
use overmind_core::conflict::ConflictKind;
use overmind_core::quest::{ATTEMPT, Author, QuestSpec, session_name, start_key};
use overmind_core::record::{Record, Selector};
use overmind_core::row::SessionRow;
use overmind_core::store::{Page, SessionFilter, StoreError};

use super::author::lent_less;
use super::short;
use crate::Engine;
use crate::error::EngineError;
use crate::request::SessionDraft;

/// A session that will be made for a record.
pub(crate) struct Begin<'a> {
    /// The part of the spec for one session.
    pub(crate) spec: &'a QuestSpec,
    /// A number that no other session of the record has.
    pub(crate) number: u32,
    /// The name, if it is free.
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The kind of its own command, if it has one.
    pub(crate) kind: CommandKind,
    /// Whether it becomes idle after its answer instead of ending; `None` means the program's
    /// default.
    pub(crate) conversation: Option<bool>,
    /// Whether a taken name is a conflict, instead of a reason for another name.
    pub(crate) named_so: bool,
}

impl Engine {
    /// The session of an attempt, ended or not.
    pub(crate) async fn attempt_made(
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

    /// Makes the session of an attempt, unless it exists.
    pub(super) async fn attempt_start(
        &self,
        record: &Record,
        spec: &QuestSpec,
        author: Option<&Author>,
        number: u32,
    ) -> Result<(), EngineError> {
        let name = session_name(record.key.name.as_str(), number);
        let as_is = Begin {
            spec,
            number,
            name,
            labels: BTreeMap::new(),
            kind: CommandKind::default(),
            conversation: Some(false),
            named_so: false,
        };
        self.owned_start(record, author, as_is).await
    }

    /// Makes a session that a record owns, unless it exists.
    pub(crate) async fn owned_start(
        &self,
        record: &Record,
        author: Option<&Author>,
        begin: Begin<'_>,
    ) -> Result<(), EngineError> {
        let Begin { spec, number, name, mut labels, kind, conversation, named_so } = begin;
        // The idempotency key below is only kept for some time, and differs between authors.
        if self.attempt_made(record, number).await?.is_some() {
            return Ok(());
        }
        let by = self.author(author, record.key.colony).await?;
        let command = spec.command.clone().map(|argv| CommandSpec {
            argv,
            exact: true,
            kind,
            ..CommandSpec::default()
        });
        let key = start_key(record.id, number);
        labels.insert(ATTEMPT.to_owned(), number.to_string());
        let fingerprint = *blake3::hash(key.as_bytes()).as_bytes();
        let draft = SessionDraft {
            agent: spec.agent.clone(),
            task: spec.task.clone(),
            name: Some(name),
            command,
            sandbox: spec.sandbox,
            workspace: spec.project.clone(),
            contexts: spec.contexts.clone(),
            claims: spec.claims.clone(),
            conversation,
            labels,
            owner: Some(record.id),
            idempotency: Some((key, fingerprint)),
            ..SessionDraft::default()
        };
        let unnamed = SessionDraft { name: None, ..draft.clone() };
        let made = match Box::pin(self.session_create(&by, draft)).await {
            // If another session has the name, a generated one is used.
            Err(err) if !named_so && err.is_conflict_of(ConflictKind::SessionName) => {
                Box::pin(self.session_create(&by, unnamed)).await
            }
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
            Err(EngineError::Forbidden { message }) => {
                let agent = self.find_agent(&by, &spec.agent).await.ok();
                let why = agent.and_then(|agent| lent_less(&by, &agent));
                // It comes first, because only the first part of a long message is kept.
                let message = why.map_or(message.clone(), |why| format!("{why}. {message}"));
                Err(EngineError::Forbidden { message })
            }
            Err(err) => Err(err),
        }
    }
}

/// A code for programs and a sentence for people.
pub(crate) fn reason(refused: &EngineError) -> (&'static str, String) {
    let word = match refused {
        EngineError::Invalid { .. } => "Invalid",
        EngineError::Unauthenticated { .. } | EngineError::Forbidden { .. } => "Forbidden",
        EngineError::Untrusted { .. } => "Untrusted",
        EngineError::NotFound { .. } => "NotFound",
        err if err.is_conflict_of(ConflictKind::Quota) => "QuotaReached",
        EngineError::Conflict { .. } => "Conflict",
        EngineError::Busy { .. } | EngineError::Unavailable { .. } | EngineError::Store(_) => {
            "Unavailable"
        }
    };
    (word, short(&refused.to_string()))
}
