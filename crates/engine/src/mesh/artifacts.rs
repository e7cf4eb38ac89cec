//! Artifacts: files that remain after a run, kept by the store and listed in the shared state.
//!
//! The bytes are on disk before the commit that names them, and replaced bytes are removed after
//! it. Each run has one writer at a time, so that the event contains the version of the row, and
//! the entry of the shared state follows the row.

use std::sync::Arc;

use overmind_core::acl::Verb;
use overmind_core::artifact::{
    Artifact, ArtifactContent, ArtifactName, MAX_BYTES, SHARED, check_media_type, media_type_of,
    over_bounds, shared_key,
};
use overmind_core::canary::Canaries;
use overmind_core::ids::{ColonyId, EffectId, SessionId};
use overmind_core::mesh::{ArtifactOf, Key};
use overmind_core::row::Role;
use overmind_core::store::{Change, Commit, Guard, NewEvent, Page, Store, StoreError, StreamId};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::board::BoardWrite;
use super::{Who, denied};
use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::cortex::{Cortex, shutting_down};
use crate::error::EngineError;

/// The number of locks among which runs are distributed for saving.
const TURNS: usize = 256;
/// Maximum number of contents that are processed at once: each needs several times its size in
/// memory.
const SAVING: usize = 4;
/// Maximum number of bytes of text, and of other content, that a tool gets at a time.
const SHOWN_TEXT: usize = 64 << 10;
const SHOWN_BYTES: usize = 48 << 10;
/// Rows that are read at once of a list of which the reader may see only a part.
const ROWS: u32 = 200;
/// How often opening a content is retried while others save new versions.
const TRIES: usize = 3;

#[derive(Debug)]
pub(super) struct Saving {
    turns: Vec<tokio::sync::Mutex<()>>,
    room: Semaphore,
}

impl Default for Saving {
    fn default() -> Self {
        Self {
            turns: std::iter::repeat_with(Default::default).take(TURNS).collect(),
            room: Semaphore::new(SAVING),
        }
    }
}

impl Saving {
    fn turn(&self, session: SessionId) -> &tokio::sync::Mutex<()> {
        // The last bits of an id are random.
        &self.turns[usize::from(session.as_u128().to_be_bytes()[15]) % TURNS]
    }
}

/// A content to save.
#[derive(Clone, Debug, Default)]
pub struct ArtifactDraft {
    pub name: String,
    pub content: Vec<u8>,
    /// Guessed if it is missing.
    pub media_type: Option<String>,
}

/// The result of saving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactSaved {
    pub artifact: Artifact,
    /// The key in the shared state that lists it, or why there is none.
    pub shared: Result<Key, String>,
}

/// An opened artifact.
#[derive(Clone, Debug)]
pub struct ArtifactOpened {
    pub artifact: Artifact,
    pub content: Arc<dyn ArtifactContent>,
}

/// A content in the form in which it is stored.
struct Ready {
    content: Vec<u8>,
    hash: [u8; 32],
    is_text: bool,
    is_masked: bool,
}

fn parsed(name: &str) -> Result<ArtifactName, EngineError> {
    ArtifactName::parse(name).map_err(|why| {
        let shown: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
        EngineError::invalid("name", format!("the name `{shown}` {why}"))
    })
}

fn missing(name: &ArtifactName) -> EngineError {
    EngineError::NotFound { message: format!("Artifact not found: {name}") }
}

fn too_large(bytes: usize) -> EngineError {
    let message = format!("the content has {bytes} bytes; {MAX_BYTES} is the most of one artifact");
    EngineError::invalid("content", message)
}

/// Masks secrets in a text; other content with a secret is refused, because a mask would damage it.
fn ready(
    store: &dyn Store,
    canaries: Option<&Canaries>,
    content: Vec<u8>,
) -> Result<Ready, EngineError> {
    let masked = |text: String| {
        let mut value = Value::String(text);
        store.redact(&mut value);
        if let Some(canaries) = canaries {
            canaries.mask(&mut value);
        }
        match value {
            Value::String(text) => text,
            other => other.to_string(),
        }
    };
    let (content, is_text, is_masked) = match String::from_utf8(content) {
        Ok(text) => {
            let before = blake3::hash(text.as_bytes());
            let text = masked(text);
            let is_masked = blake3::hash(text.as_bytes()) != before;
            (text.into_bytes(), true, is_masked)
        }
        Err(err) => {
            let content = err.into_bytes();
            let text = String::from_utf8_lossy(&content).into_owned();
            let before = blake3::hash(text.as_bytes());
            if blake3::hash(masked(text).as_bytes()) != before {
                let message = "the content is not text and holds what looks like a secret, which \
                    cannot be masked in it: save it without";
                return Err(EngineError::invalid("content", message));
            }
            (content, false, false)
        }
    };
    if content.len() > MAX_BYTES {
        return Err(too_large(content.len()));
    }
    let hash = *blake3::hash(&content).as_bytes();
    Ok(Ready { content, hash, is_text, is_masked })
}

impl Cortex {
    /// One whole save, in the turn of its run.
    async fn artifact_write(
        &self,
        who: &Who,
        row: Artifact,
        content: Vec<u8>,
        is_call: bool,
    ) -> Result<Artifact, EngineError> {
        let (session, file) = (row.session, row.file);
        let before = self.store.artifact_fetch(session, row.name.clone()).await?;
        if let Some(before) = &before
            && before.file == file
        {
            // The same call is repeated.
            return Ok(before.clone());
        }
        let sums = self.store.artifact_sums(session).await?;
        let replaced = before.as_ref().map(|before| before.bytes);
        if let Some(message) = over_bounds(sums, replaced, row.bytes) {
            return Err(EngineError::conflict(message));
        }
        let now = self.clock.now();
        let row = Artifact {
            version: before.as_ref().map_or(0, |before| before.version) + 1,
            created_at: before.as_ref().map_or(now, |before| before.created_at),
            updated_at: now,
            ..row
        };
        let event = NewEvent {
            stream: StreamId::Session(session),
            kind: "artifact.saved",
            ts: now,
            payload: json!({
                "run_id": session, "name": row.name.as_str(), "version": row.version,
                "bytes": row.bytes, "media_type": row.media_type, "blake3": row.blake3(),
                "masked": row.is_masked, "by": who.name, "call_id": is_call.then_some(file),
            }),
        };
        let hold = self.store.artifact_write(session, file, content).await?;
        let commit = Commit {
            guards: vec![Guard::SessionExists { session }],
            events: vec![event],
            changes: vec![Change::ArtifactPut(Box::new(row.clone()))],
        };
        let done = self.store.commit(commit).await;
        drop(hold);
        // This removes files that no row names any more: the earlier version, or one that could not
        // be recorded. If it fails, the next start removes them.
        let unnamed = match &done {
            Ok(_) => before.map(|before| before.file),
            Err(_) => Some(file),
        };
        if let Some(unnamed) = unnamed {
            self.artifact_forget(session, unnamed).await;
        }
        let place = done?.global;
        Ok(Artifact { place, ..row })
    }

    async fn artifact_forget(&self, session: SessionId, file: EffectId) {
        if let Err(err) = self.store.artifact_drop(session, file).await {
            tracing::warn!(error = %err, "the bytes of an artifact stay until the next start");
        }
    }

    /// Lists an artifact in the shared state, if the run's agent may write there.
    async fn artifact_share(&self, who: &Who, agent: &str, row: &Artifact) -> Result<Key, String> {
        let key = shared_key(agent, &row.name)
            .ok_or("no key of the shared state can say the agent's name and the artifact's")?;
        who.in_mesh().map_err(|err| err.to_string())?;
        let verdict = self.mesh.acl.matrix().may_in_line(&who.line, Verb::Write, key.as_str());
        if !verdict.allowed {
            let what = format!("Agent {agent} cannot write {key}");
            return Err(denied(what, &verdict).to_string());
        }
        let value = json!({
            "run": row.session, "name": row.name.as_str(), "size": row.bytes,
            "media_type": row.media_type, "blake3": row.blake3(), "version": row.version,
        });
        let bytes = value.to_string().len();
        let write = BoardWrite { value, effect: Some(row.file), ..BoardWrite::default() };
        let done = self.board_write(who.clone(), key.clone(), bytes, write).await;
        done.map(|_| key).map_err(|err| err.to_string())
    }

    /// Undoes [`Cortex::artifact_share`] for this version.
    async fn artifact_unshare(&self, who: &Who, agent: &str, row: &Artifact) {
        let Some(key) = shared_key(agent, &row.name) else { return };
        let found = self.store.board_fetch(ColonyId::DEFAULT, key.clone()).await;
        let Ok(Some(entry)) = found else { return };
        if entry.effect == Some(row.file) {
            // If it was written since, it is kept.
            let done = self.board_remove(who.clone(), key, Some(entry.version)).await;
            if let Err(err) = done {
                tracing::debug!(error = %err, "the shared state still tells of an artifact");
            }
        }
    }
}

impl Engine {
    /// Saves an artifact of a run; the caller is an operator, or the run itself. An existing name
    /// gets a new version, and the earlier bytes are removed. Secrets in a text are masked before
    /// it is stored.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] for a name, a media type or a content beyond the limits,
    /// [`EngineError::Conflict`] if the run has no space left.
    pub async fn artifact_save(
        &self,
        by: &Caller,
        run: SessionId,
        draft: ArtifactDraft,
    ) -> Result<ArtifactSaved, EngineError> {
        self.artifact_may_save(by, run).await?;
        let owner = self.who_session(run).await?;
        let author = match by.rights {
            Rights::Role(_) | Rights::System(_) => by.name.clone(),
            Rights::Session { .. } => owner.name.clone(),
        };
        self.artifact_save_as(owner, author, run, None, draft).await
    }

    /// Checks whether a caller may save artifacts of a run, before the content is read.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] or [`EngineError::NotFound`].
    pub async fn artifact_may_save(&self, by: &Caller, run: SessionId) -> Result<(), EngineError> {
        by.require_for(Role::Operator, run)?;
        self.session_within(by, run).await?;
        self.find_session(run).await.map(|_| ())
    }

    /// `owner` is the run's identity. `call` saves once, however often it is repeated.
    async fn artifact_save_as(
        &self,
        owner: Who,
        author: String,
        run: SessionId,
        call: Option<EffectId>,
        draft: ArtifactDraft,
    ) -> Result<ArtifactSaved, EngineError> {
        let ArtifactDraft { name, content, media_type } = draft;
        let name = parsed(&name)?;
        if let Some(media_type) = &media_type {
            check_media_type(media_type).map_err(|why| EngineError::invalid("media_type", why))?;
        }
        if content.len() > MAX_BYTES {
            return Err(too_large(content.len()));
        }
        let mut said = json!([name.as_str(), media_type]);
        let as_said = said.clone();
        self.cortex.store.redact(&mut said);
        if said != as_said {
            let message = "the name or the media type holds what looks like a secret";
            return Err(EngineError::invalid("name", message));
        }
        let cortex = Arc::clone(&self.cortex);
        let file = call.unwrap_or_else(|| EffectId::mint(&*cortex.ids));
        self.whole(async move {
            let _room = cortex.mesh.saving.room.acquire().await.map_err(|_| shutting_down())?;
            let canaries = cortex.config.canaries.as_ref().map(|planter| planter.of(run));
            let store = Arc::clone(&cortex.store);
            let look = move || ready(&*store, canaries.as_deref(), content);
            let ready = tokio::task::spawn_blocking(look).await.map_err(|_| shutting_down())??;
            let row = Artifact {
                colony: ColonyId::DEFAULT,
                session: run,
                version: 0,
                file,
                bytes: ready.content.len() as u64,
                media_type: media_type
                    .unwrap_or_else(|| media_type_of(&name, ready.is_text).to_owned()),
                name,
                hash: ready.hash,
                is_text: ready.is_text,
                is_masked: ready.is_masked,
                author: author.clone(),
                created_at: cortex.clock.now(),
                updated_at: cortex.clock.now(),
                place: 0,
            };
            let agent = owner.name.clone();
            let who = owner.in_name_of(author);
            let _turn = cortex.mesh.saving.turn(run).lock().await;
            let artifact = cortex.artifact_write(&who, row, ready.content, call.is_some()).await?;
            let shared = cortex.artifact_share(&who, &agent, &artifact).await;
            Ok(ArtifactSaved { artifact, shared })
        })
        .await
    }

    /// Deletes an artifact, and its entry in the shared state.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`], or [`EngineError::Forbidden`] for callers below operator.
    pub async fn artifact_delete(
        &self,
        by: &Caller,
        run: SessionId,
        name: &str,
    ) -> Result<(), EngineError> {
        by.require(Role::Operator)?;
        self.session_within(by, run).await?;
        self.find_session(run).await?;
        let name = parsed(name)?;
        let owner = self.who_session(run).await?;
        let (cortex, author) = (Arc::clone(&self.cortex), by.name.clone());
        self.whole(async move {
            let _turn = cortex.mesh.saving.turn(run).lock().await;
            let found = cortex.store.artifact_fetch(run, name.clone()).await?;
            let row = found.ok_or_else(|| missing(&name))?;
            let event = NewEvent {
                stream: StreamId::Session(run),
                kind: "artifact.deleted",
                ts: cortex.clock.now(),
                payload: json!({
                    "run_id": run, "name": name.as_str(), "version": row.version,
                    "blake3": row.blake3(), "by": author,
                }),
            };
            let guards = vec![Guard::SessionExists { session: run }];
            let changes = vec![Change::ArtifactDelete { session: run, name }];
            cortex.store.commit(Commit { guards, events: vec![event], changes }).await?;
            cortex.artifact_forget(run, row.file).await;
            let agent = owner.name.clone();
            cortex.artifact_unshare(&owner.in_name_of(author), &agent, &row).await;
            Ok(())
        })
        .await
    }

    /// Artifacts of a run, the last saved first. A run that is not above it gets only those that
    /// the matrix lets it read.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] if the caller can read none.
    pub async fn artifact_list(
        &self,
        by: &Caller,
        run: SessionId,
        page: Page<u64>,
    ) -> Result<Vec<Artifact>, EngineError> {
        if let Some(who) = self.who_reads_shared(by, run).await? {
            return self.artifact_list_of(&who, run, page).await;
        }
        self.find_session(run).await?;
        Ok(self.cortex.store.artifact_list(run, page).await?)
    }

    /// The reader whose access the matrix limits; `None` for the run itself, the runs above it and
    /// viewers, who see everything.
    async fn who_reads_shared(
        &self,
        by: &Caller,
        run: SessionId,
    ) -> Result<Option<Who>, EngineError> {
        match (self.reads(by, Role::Viewer, run).await, &by.rights) {
            (Err(EngineError::NotFound { .. }), Rights::Session { session, .. }) => {
                self.who_session(*session).await.map(Some)
            }
            (reads, _) => reads.map(|()| None),
        }
    }

    /// The artifacts of another's run that `who` may read.
    async fn artifact_list_of(
        &self,
        who: &Who,
        run: SessionId,
        page: Page<u64>,
    ) -> Result<Vec<Artifact>, EngineError> {
        let agent = self.sharer(run).await?;
        let matrix = self.permissions();
        let prefix = format!("{SHARED}{agent}/");
        let verdict = matrix.may_beneath(&who.line, Verb::Read, &prefix);
        let what = || format!("Agent {} cannot read {prefix}", who.name);
        self.permitted(who, Verb::Read, &prefix, verdict, what).await?;
        let (mut found, mut after) = (Vec::new(), page.after);
        loop {
            let rows = Page { limit: ROWS, after };
            let rows = self.cortex.store.artifact_list(run, rows).await?;
            let Some(last) = rows.last() else { return Ok(found) };
            after = Some(last.place);
            for row in rows {
                let key = shared_key(&agent, &row.name);
                let reads = key.is_some_and(|key| {
                    matrix.may_in_line(&who.line, Verb::Read, key.as_str()).allowed
                });
                if reads {
                    found.push(row);
                    if found.len() >= page.limit as usize {
                        return Ok(found);
                    }
                }
            }
        }
    }

    /// Opens an artifact for reading. A run that is not above it needs the permission to read
    /// `artifacts/AGENT/NAME`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`] or [`EngineError::NotFound`].
    pub async fn artifact_open(
        &self,
        by: &Caller,
        run: SessionId,
        name: &str,
    ) -> Result<ArtifactOpened, EngineError> {
        let name = parsed(name)?;
        if let Some(who) = self.who_reads_shared(by, run).await? {
            self.may_read_artifact(&who, run, &name).await?;
        }
        self.find_session(run).await?;
        self.opened(run, &name).await
    }

    /// The agent of a run whose artifacts others may be permitted to read: one of the colony
    /// `default`.
    async fn sharer(&self, run: SessionId) -> Result<String, EngineError> {
        let owner = self.who_session(run).await?;
        match owner.in_mesh() {
            Ok(()) => Ok(owner.name),
            Err(_) => Err(EngineError::not_found("Run")),
        }
    }

    async fn may_read_artifact(
        &self,
        who: &Who,
        run: SessionId,
        name: &ArtifactName,
    ) -> Result<(), EngineError> {
        let agent = self.sharer(run).await?;
        let object = shared_key(&agent, name);
        // An object without a valid key cannot be permitted to others.
        let object =
            object.map_or_else(|| format!("{SHARED}{agent}/{name}"), |key| key.to_string());
        let what = || format!("Agent {} cannot read {object}", who.name);
        if agent.contains('/') {
            return Err(EngineError::Forbidden { message: what() });
        }
        self.permit(who, Verb::Read, &object, what).await
    }

    async fn opened(
        &self,
        run: SessionId,
        name: &ArtifactName,
    ) -> Result<ArtifactOpened, EngineError> {
        let store = &self.cortex.store;
        for _ in 0..TRIES {
            let found = store.artifact_fetch(run, name.clone()).await?;
            let artifact = found.ok_or_else(|| missing(name))?;
            // `None` means that it was just replaced, and there is a newer row.
            if let Some(content) = store.artifact_open(run, artifact.file).await? {
                return Ok(ArtifactOpened { artifact, content });
            }
        }
        Err(EngineError::Store(StoreError::Other {
            attempt: format!("opening artifact `{name}` of {run}"),
            detail: "its bytes are not there; a backup without them was restored, perhaps".into(),
        }))
    }

    // --- as tools of sessions see them

    pub(super) async fn artifact_saved_by_tool(
        &self,
        who: Who,
        run: SessionId,
        effect: EffectId,
        draft: ArtifactDraft,
    ) -> Result<Value, EngineError> {
        let author = who.name.clone();
        let saved = self.artifact_save_as(who, author, run, Some(effect), draft).await?;
        let mut told = told(&saved.artifact);
        told["saved"] = json!(true);
        told["masked"] = json!(saved.artifact.is_masked);
        match saved.shared {
            Ok(key) => told["shared"] = json!(key.as_str()),
            Err(why) => {
                told["shared"] = Value::Null;
                told["not_shared"] = json!(why);
            }
        }
        Ok(told)
    }

    pub(super) async fn artifacts_listed(
        &self,
        who: &Who,
        own: SessionId,
        of: ArtifactOf,
        limit: u32,
        after: Option<String>,
    ) -> Result<Value, EngineError> {
        let limit = limit.clamp(1, 100);
        let run = match of {
            ArtifactOf::Agent(agent) => {
                return self.artifacts_shared(who, &agent, limit, after).await;
            }
            ArtifactOf::Own => own,
            ArtifactOf::Run(run) => run,
        };
        let after = after.map(|text| text.parse::<u64>()).transpose().map_err(|_| {
            EngineError::invalid("after", "after must be the `next` of an earlier answer")
        })?;
        let page = Page { limit, after };
        let rows = if run == own {
            self.cortex.store.artifact_list(run, page).await?
        } else {
            self.artifact_list_of(who, run, page).await?
        };
        let full = rows.len() >= limit as usize;
        let next = rows.last().filter(|_| full).map(|row| row.place.to_string());
        let shown: Vec<Value> = rows.iter().map(told).collect();
        Ok(json!({"run_id": run, "count": shown.len(), "artifacts": shown, "next": next}))
    }

    /// The artifacts that an agent shares, from the shared state.
    async fn artifacts_shared(
        &self,
        who: &Who,
        agent: &str,
        limit: u32,
        after: Option<String>,
    ) -> Result<Value, EngineError> {
        if agent.contains('/') {
            // With a slash it would be another agent's, or the beginning of a name.
            return Err(EngineError::invalid("agent", "agent is a name without slashes"));
        }
        let prefix = format!("{SHARED}{agent}/");
        let found = self.board_list_as(who, &prefix, after, limit).await?;
        let shown: Vec<Value> = found
            .entries
            .iter()
            .map(|entry| {
                let said = |field: &str| entry.value.get(field).cloned().unwrap_or_default();
                json!({
                    "name": entry.key.as_str().strip_prefix(&prefix), "agent": agent,
                    "run_id": said("run"), "version": said("version"), "size": said("size"),
                    "media_type": said("media_type"), "blake3": said("blake3"),
                    "updated_at": entry.updated_at,
                })
            })
            .collect();
        Ok(json!({
            "agent": agent, "count": shown.len(), "artifacts": shown, "next": found.next,
        }))
    }

    pub(super) async fn artifact_read(
        &self,
        who: &Who,
        own: SessionId,
        of: ArtifactOf,
        name: &str,
        (offset, base64): (u64, bool),
    ) -> Result<Value, EngineError> {
        let name = parsed(name)?;
        let run = match of {
            ArtifactOf::Own => own,
            ArtifactOf::Run(run) => run,
            ArtifactOf::Agent(agent) => self.shared_by(who, &agent, &name).await?,
        };
        if run != own {
            self.may_read_artifact(who, run, &name).await?;
        }
        let ArtifactOpened { artifact, content } = self.opened(run, &name).await?;
        let mut told = told(&artifact);
        told["agent"] = json!(self.who_session(run).await?.name);
        if offset > artifact.bytes {
            let message =
                format!("offset is {offset}, and the content has {} bytes", artifact.bytes);
            return Err(EngineError::invalid("offset", message));
        }
        if base64 {
            let part = content.read(offset, SHOWN_BYTES).await?;
            told["offset"] = json!(offset);
            told["next_offset"] = next_offset(&artifact, offset, part.len());
            told["content_base64"] = json!(encoded(&part));
        } else if artifact.is_text {
            let part = content.read(offset, SHOWN_TEXT).await?;
            let (skipped, text) = whole_characters(&part);
            told["offset"] = json!(offset + skipped as u64);
            told["next_offset"] = next_offset(&artifact, offset, skipped + text.len());
            told["content"] = json!(text);
        } else {
            told["binary"] = json!(true);
            told["hint"] = json!("it is not text; with encoding base64 its bytes are shown");
        }
        Ok(told)
    }

    /// The run whose artifact an agent shares under this name.
    async fn shared_by(
        &self,
        who: &Who,
        agent: &str,
        name: &ArtifactName,
    ) -> Result<SessionId, EngineError> {
        let key = shared_key(agent, name).ok_or_else(|| missing(name))?;
        let entry = self.board_get_as(who, key.as_str()).await?;
        let run = entry.value.get("run").and_then(Value::as_str);
        let run: Option<SessionId> = run.and_then(|run| run.parse().ok());
        let run = run.ok_or_else(|| missing(name))?;
        // Others may write there too, so an entry that names another agent's run is ignored.
        if self.who_session(run).await?.name == agent { Ok(run) } else { Err(missing(name)) }
    }
}

fn told(row: &Artifact) -> Value {
    json!({
        "name": row.name.as_str(), "run_id": row.session, "version": row.version,
        "size": row.bytes, "media_type": row.media_type, "blake3": row.blake3(),
        "text": row.is_text, "author": row.author, "updated_at": row.updated_at,
    })
}

fn next_offset(row: &Artifact, offset: u64, read: usize) -> Value {
    let next = offset + read as u64;
    if next < row.bytes { json!(next) } else { Value::Null }
}

fn encoded(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The text in a part of a content, without partial characters at its ends; and the number of bytes
/// of the first one.
fn whole_characters(part: &[u8]) -> (usize, &str) {
    let skipped = part.iter().take_while(|byte| (0x80..0xC0).contains(*byte)).count();
    let rest = &part[skipped..];
    let text = match std::str::from_utf8(rest) {
        Ok(text) => text,
        Err(err) => std::str::from_utf8(&rest[..err.valid_up_to()]).unwrap_or_default(),
    };
    (skipped, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_never_split() {
        let text = "aé☃z".as_bytes();
        assert_eq!(whole_characters(text), (0, "aé☃z"));
        assert_eq!(whole_characters(&text[2..]), (1, "☃z"));
        assert_eq!(whole_characters(&text[..5]), (0, "aé"));
        assert_eq!(whole_characters(&text[4..5]), (1, ""));
        assert_eq!(whole_characters(b""), (0, ""));
    }
}
