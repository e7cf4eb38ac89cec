//! Agents that are commands, as callers see them: their log, what they use, what is typed.

use std::sync::Arc;
use std::time::Duration;

use overmind_core::ids::SessionId;
use overmind_core::process::provider::launch;
use overmind_core::process::{
    Activity, LogQuery, LogReader, NoteKind, ProcessError, ProcessKey, Processes, Usage,
};
use overmind_core::row::{Role, SessionRow};
use overmind_core::store::{Commit, Guard, NewEvent, StreamId};
use serde_json::json;

use crate::Engine;
use crate::caller::Caller;
use crate::error::EngineError;

/// Longest text that is sent at once, in bytes.
const SEND_BYTES: usize = 200_000;
/// How long a program may take to read what is sent.
const TYPING: Duration = Duration::from_secs(10);

impl From<ProcessError> for EngineError {
    fn from(err: ProcessError) -> Self {
        let message = err.to_string();
        match err {
            ProcessError::Pattern { .. } => Self::invalid("grep", message),
            ProcessError::NotAlive(_) => Self::conflict("Run has no process now"),
            ProcessError::AlreadyLive { .. }
            | ProcessError::Stale { .. }
            | ProcessError::InputFull { .. }
            | ProcessError::InputRefused { .. }
            | ProcessError::ReadOnly(_) => Self::conflict(message),
            ProcessError::NoTerminal(_) => Self::conflict("Run has no terminal"),
            ProcessError::Refused { .. }
            | ProcessError::Keeper { .. }
            | ProcessError::Protocol { .. }
            | ProcessError::Directory { .. }
            | ProcessError::Log { .. } => Self::Unavailable { message },
        }
    }
}

impl Engine {
    pub(crate) fn processes(&self) -> Result<&Arc<dyn Processes>, EngineError> {
        let message = "this server runs no commands";
        self.processes.as_ref().ok_or_else(|| EngineError::Unavailable { message: message.into() })
    }

    /// The life that goes on now.
    pub(crate) async fn alive(
        &self,
        id: SessionId,
    ) -> Result<(SessionRow, ProcessKey), EngineError> {
        let row = self.find_session(id).await?;
        let life = row.command.as_ref().filter(|command| command.pid.is_some());
        let Some(epoch) = life.map(|command| command.life) else {
            let why = match (&row.command, &row.room) {
                (None, None) => "Run has no command",
                // Without a life so far: its room is being made.
                (Some(_), _) | (None, Some(_)) => "Run has no process now",
            };
            return Err(EngineError::conflict(why));
        };
        Ok((row, ProcessKey { session: id, epoch }))
    }

    /// Reads what a run's command has written, over all its lives. A run without a command has
    /// an empty log.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`]; [`EngineError::Invalid`] for a pattern that is none.
    pub async fn session_log(
        &self,
        by: &Caller,
        id: SessionId,
        query: LogQuery,
    ) -> Result<Box<dyn LogReader>, EngineError> {
        self.reads(by, Role::Viewer, id).await?;
        self.find_session(id).await?;
        Ok(self.processes()?.log(id, query).await?)
    }

    /// Writes to the input of a run's command, in the encoding of its provider's protocol if it
    /// speaks one, marks the log as a person's word, and records who did. `raw` sends the bytes as
    /// they are, without a line end; of a `secret` neither the log nor the event has the text.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] when it has no process now, its input is closed, or it does not
    /// read within ten seconds: the message says how much was taken.
    pub async fn session_send(
        &self,
        by: &Caller,
        id: SessionId,
        text: String,
        raw: bool,
        secret: bool,
    ) -> Result<SessionRow, EngineError> {
        self.orders(by, Role::Runs, id).await?;
        self.require_host_of(by, id).await?;
        if text.is_empty() && raw {
            return Err(EngineError::invalid("text", "text must not be empty"));
        }
        if text.len() > SEND_BYTES {
            let message = format!("text must have at most {SEND_BYTES} bytes");
            return Err(EngineError::invalid("text", message));
        }
        let (row, key) = self.alive(id).await?;
        let processes = self.processes()?;
        let shown = if secret {
            "(a secret)".to_owned()
        } else {
            let mut shown = serde_json::Value::String(text.clone());
            self.cortex.store.redact(&mut shown);
            shown.as_str().unwrap_or_default().to_owned()
        };
        processes.note(id, NoteKind::Human, shown.clone()).await?;
        let bytes = match raw {
            true => text,
            false => launch::input(self.cortex.speaks(id).await?, &text),
        };
        let bytes = bytes.into_bytes();
        let size = bytes.len();
        processes.write(key, bytes, TYPING).await?;
        let event = NewEvent {
            stream: StreamId::Session(id),
            kind: "input.sent",
            ts: self.cortex.clock.now(),
            payload: json!({
                "run_id": id, "life": key.epoch, "by": by.name, "text": shown, "bytes": (!secret).then_some(size),
            }),
        };
        let guards = vec![Guard::SessionExists { session: id }];
        self.cortex.store.commit(Commit { guards, events: vec![event], changes: vec![] }).await?;
        Ok(row)
    }

    /// What a run's processes use now.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] when it has no process now.
    pub async fn session_usage(
        &self,
        by: &Caller,
        id: SessionId,
    ) -> Result<(Usage, Activity), EngineError> {
        self.reads(by, Role::Viewer, id).await?;
        let (_, key) = self.alive(id).await?;
        let processes = self.processes()?;
        let usage = processes.usage(key).await?;
        let activity = processes
            .activity(key)
            .ok_or_else(|| EngineError::from(ProcessError::NotAlive(key)))?;
        Ok((usage, activity))
    }
}
