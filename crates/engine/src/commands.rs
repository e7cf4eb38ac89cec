//! Command agents as callers see them: their log, their resource usage, their input.

use std::sync::Arc;
use std::time::Duration;

use overmind_core::agent::AgentStatus;
use overmind_core::ids::SessionId;
use overmind_core::process::provider::launch;
use overmind_core::process::{
    Activity, LogQuery, LogReader, NoteKind, ProcessError, ProcessKey, Processes, Usage,
};
use overmind_core::row::{Role, SessionRow, SessionStatus};
use overmind_core::store::{Commit, Guard, NameFilter, NewEvent, Page, SessionFilter, StreamId};
use serde_json::json;

use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::cortex::Order;
use crate::error::EngineError;
use crate::sessions::open_statuses;

/// Longest text that is sent at once, in bytes.
const SEND_BYTES: usize = 200_000;
/// How long a program may take to read sent text.
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

    /// The process that runs now. After a start of the server, this waits until the processes of the
    /// earlier server have been searched for.
    pub(crate) async fn alive(
        &self,
        id: SessionId,
    ) -> Result<(SessionRow, ProcessKey), EngineError> {
        let row = self.find_session(id).await?;
        let life = row.command.as_ref().filter(|command| command.pid.is_some());
        let Some(epoch) = life.map(|command| command.life) else {
            let why = match (&row.command, &row.room) {
                (None, None) => "Run has no command",
                // There is no process yet: its environment is being made.
                (Some(_), _) | (None, Some(_)) => "Run has no process now",
            };
            return Err(EngineError::conflict(why));
        };
        if let Some(lives) = &self.lives {
            lives.looked().await;
        }
        Ok((row, ProcessKey { session: id, epoch }))
    }

    /// Reads the output of a run's command, from all of its processes. A run without a command has
    /// an empty log.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`]; [`EngineError::Invalid`] for an invalid pattern.
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

    /// Sends a text to a run. A run that is idle or has ended continues with it. A run whose model
    /// is working gets it before its next turn, and a program that does one thing at a time (Claude
    /// Code, Codex) gets it after its turn. If the run asks something, the text is the answer.
    ///
    /// For a running command the text is written to its input, in its provider's protocol if it has
    /// one, marked in the log as written by a person, and recorded. `raw` sends the bytes
    /// unchanged, without a line end; the text of a `secret` is neither in the log nor in the
    /// event.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if it cannot take the text: it waits for an approval; or it is a
    /// command without a conversation that has no process now, whose input is closed, or that does
    /// not read within ten seconds (the message tells how much was accepted).
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
        if matches!(by.rights, Rights::Session { .. }) {
            self.still_has_place(&self.find_session(id).await?).await?;
        }
        if text.is_empty() && raw {
            return Err(EngineError::invalid("text", "text must not be empty"));
        }
        if text.len() > SEND_BYTES {
            let message = format!("text must have at most {SEND_BYTES} bytes");
            return Err(EngineError::invalid("text", message));
        }
        if let Some(order) = self.told(by, id, &text, raw || secret).await? {
            // Before the attempt that it starts, so that the log has it in this order.
            Box::pin(self.note_told(by, id, &text)).await;
            return self.cortex.order(id, order).await;
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

    /// Writes a person's message to the log of a run's program, if it has one.
    async fn note_told(&self, by: &Caller, id: SessionId, text: &str) {
        let Ok(processes) = self.processes() else { return };
        let row = self.find_session(id).await;
        if !row.is_ok_and(|row| row.command.is_some()) {
            return;
        }
        let mut shown = serde_json::Value::String(format!("{}: {text}", by.name));
        self.cortex.store.redact(&mut shown);
        let shown = shown.as_str().unwrap_or_default().to_owned();
        if let Err(err) = processes.note(id, NoteKind::Human, shown).await {
            tracing::debug!(session = %id, error = %err, "what it was told is not in its log");
        }
    }

    /// The order for a run whose conversation takes `text`; `None` if its command's input does.
    async fn told(
        &self,
        by: &Caller,
        id: SessionId,
        text: &str,
        bytes: bool,
    ) -> Result<Option<Order>, EngineError> {
        use SessionStatus::{AwaitingApproval, AwaitingInput, Idle, Queued, Running};
        let row = self.find_session(id).await?;
        let alive = row.command.as_ref().is_some_and(|command| command.pid.is_some());
        let works = matches!(row.status, Queued | Running);
        if !bytes && works && self.hears_later(&row).await? {
            self.can_be_told(text)?;
            return Ok(Some(Order::Tell { message: text.to_owned(), by: by.name.clone() }));
        }
        if bytes || (alive && row.status != Idle) {
            return Ok(None);
        }
        let (message, by) = (text.to_owned(), by.name.clone());
        let agent = self.cortex.agent(row.agent).await?;
        // Before its first process the row does not show a command.
        let is_command = row.command.is_some()
            || agent.as_ref().is_some_and(|agent| agent.spec.command.is_some());
        match row.status {
            Idle => {}
            status if status.is_terminal() => self.may_go_on(&row).await?,
            _ if is_command => return Ok(None),
            AwaitingInput => {
                self.can_be_told(&message)?;
                return Ok(Some(Order::Answer { item: None, message, by }));
            }
            AwaitingApproval => {
                let message = format!(
                    "{0} waits for an approval: `overmind approve {0}` or `overmind deny {0}`",
                    row.name
                );
                return Err(EngineError::conflict(message));
            }
            Queued
            | Running
            | SessionStatus::Succeeded
            | SessionStatus::Failed
            | SessionStatus::Canceled => {}
        }
        self.can_be_told(&message)?;
        Ok(Some(Order::Tell { message, by }))
    }

    /// Refuses to continue an ended run if its agent was removed, or its name now belongs to
    /// another agent.
    pub(crate) async fn may_go_on(&self, row: &SessionRow) -> Result<(), EngineError> {
        let agent = self.cortex.agent(row.agent).await?;
        if agent.is_none_or(|agent| agent.status != AgentStatus::Active) {
            let message = "Run has ended, and its agent is disabled or removed";
            return Err(EngineError::conflict(message));
        }
        self.has_name(row).await
    }

    /// Whether its program gets texts after its turn.
    async fn hears_later(&self, row: &SessionRow) -> Result<bool, EngineError> {
        let spec = self.spec_of(row.id).await?;
        Ok(spec.agent.command.as_ref().is_some_and(launch::hears_later))
    }

    /// Refuses to continue a run whose name another run has now.
    async fn has_name(&self, row: &SessionRow) -> Result<(), EngineError> {
        let filter = SessionFilter {
            colony: Some(row.colony),
            name: Some(NameFilter::Is(row.name.clone())),
            statuses: open_statuses(),
            ..SessionFilter::default()
        };
        let page = Page { after: None, limit: 1 };
        match self.cortex.store.session_list(filter, page).await?.pop() {
            None => Ok(()),
            Some(other) => {
                let message = format!(
                    "Run has ended, and {} has the name {} now: end that run first",
                    other.id, row.name
                );
                Err(EngineError::conflict(message))
            }
        }
    }

    /// The resources that a run's processes use now.
    ///
    /// # Errors
    ///
    /// [`EngineError::Conflict`] if it has no process now.
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
