//! The mesh as the tools of sessions see it.

use std::sync::Arc;
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::ids::{EffectId, SessionId};
use overmind_core::mesh::{BoardEntry, Mesh, MeshAct, MeshError};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::artifacts::ArtifactDraft;
use super::board::BoardWrite;
use super::letters::LetterDraft;
use super::postmaster::told;
use crate::Engine;
use crate::cortex::lock;
use crate::error::EngineError;

/// Maximum number of characters of a value that a list shows.
const PREVIEW: usize = 200;

#[derive(Clone, Debug, Default)]
enum Bound {
    /// The engine is not started yet: calls wait for it.
    #[default]
    Not,
    To(Box<Engine>),
    Closed,
}

/// Connects the tools, which are made first, to the engine. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MeshDoor(Arc<watch::Sender<Bound>>);

impl MeshDoor {
    /// From now on calls are executed; earlier ones waited.
    pub fn open(&self, engine: Engine) {
        self.0.send_replace(Bound::To(Box::new(engine)));
    }

    /// Releases the engine. Calls are refused from now on.
    pub fn close(&self) {
        self.0.send_replace(Bound::Closed);
    }

    pub(crate) async fn engine(&self) -> Result<Engine, MeshError> {
        let closed = || MeshError::Unavailable("the server is shutting down".to_owned());
        let mut bound = self.0.subscribe();
        let bound = bound.wait_for(|bound| !matches!(bound, Bound::Not)).await;
        match &*bound.map_err(|_| closed())? {
            Bound::To(engine) => Ok(Engine::clone(engine)),
            Bound::Not | Bound::Closed => Err(closed()),
        }
    }
}

impl From<EngineError> for MeshError {
    fn from(err: EngineError) -> Self {
        let message = err.to_string();
        match err {
            EngineError::Invalid { .. } => Self::Invalid(message),
            EngineError::Forbidden { .. }
            | EngineError::Unauthenticated { .. }
            | EngineError::Untrusted { .. } => Self::Denied(message),
            EngineError::NotFound { .. } => Self::NotFound(message),
            EngineError::Conflict { .. } => Self::Conflict(message),
            EngineError::Busy { .. } | EngineError::Unavailable { .. } => {
                Self::Unavailable(message)
            }
            EngineError::Store(err) if err.is_transient() => Self::Unavailable(message),
            EngineError::Store(_) => Self::Failed(message),
        }
    }
}

impl Mesh for MeshDoor {
    fn act(
        &self,
        session: SessionId,
        effect: EffectId,
        act: MeshAct,
    ) -> Fut<'_, Result<Value, MeshError>> {
        Box::pin(async move {
            let engine = self.engine().await?;
            Ok(Box::pin(engine.mesh_act(session, effect, act)).await?)
        })
    }
}

impl Engine {
    /// Does something for a session; the result has the fields of a tool's result.
    async fn mesh_act(
        &self,
        session: SessionId,
        effect: EffectId,
        act: MeshAct,
    ) -> Result<Value, EngineError> {
        let seated = lock(&self.cortex.mesh.seats).get(&session).cloned();
        let who = match &seated {
            Some(key) => self.who(key, None).await?,
            None => self.who_session(session).await?,
        };
        match &act {
            MeshAct::Spawn(_)
            | MeshAct::Ask { .. }
            | MeshAct::Answer { .. }
            | MeshAct::SaveArtifact { .. }
            | MeshAct::ListArtifacts { .. }
            | MeshAct::ReadArtifact { .. }
            | MeshAct::CostLeft => {}
            MeshAct::Read { .. }
            | MeshAct::Write { .. }
            | MeshAct::Delete { .. }
            | MeshAct::List { .. }
            | MeshAct::Publish { .. }
            | MeshAct::Subscribe { .. }
            | MeshAct::Unsubscribe { .. }
            | MeshAct::Send { .. }
            | MeshAct::Receive { .. }
            | MeshAct::Acknowledge { .. }
            | MeshAct::Agents
            | MeshAct::History { .. } => who.in_mesh()?,
        }
        match act {
            MeshAct::Read { key } => match self.board_get_as(&who, &key).await {
                Ok(entry) => Ok(json!({
                    "key": key, "exists": true, "value": entry.value, "version": entry.version,
                    "written_by": entry.written_by, "updated_at": entry.updated_at,
                })),
                Err(EngineError::NotFound { .. }) => {
                    Ok(json!({"key": key, "exists": false, "value": null, "version": 0}))
                }
                Err(err) => Err(err),
            },
            MeshAct::Write { key, value, ttl, version } => {
                let write =
                    BoardWrite { value, ttl, workflow: None, version, effect: Some(effect) };
                let entry = self.board_put_as(who, &key, write).await?;
                Ok(json!({"key": key, "written": true, "version": entry.version}))
            }
            MeshAct::Delete { key, version } => {
                self.board_delete_as(who, &key, version).await?;
                Ok(json!({"key": key, "deleted": true}))
            }
            MeshAct::List { prefix, limit, after } => {
                let found = self.board_list_as(&who, &prefix, after, limit.clamp(1, 100)).await?;
                let entries: Vec<Value> = found.entries.iter().map(previewed).collect();
                Ok(json!({
                    "prefix": prefix, "count": entries.len(), "entries": entries,
                    "next": found.next,
                }))
            }
            MeshAct::Publish { topic, payload } => {
                let done = self.topic_publish_as(&who, &topic, payload, Some(effect)).await?;
                Ok(json!({
                    "published": true, "topic": topic, "id": done.id,
                    "subscribers_notified": done.notified, "full": done.full,
                }))
            }
            MeshAct::Subscribe { pattern } => {
                self.topic_subscribe_as(&who, who.agent()?, &pattern).await?;
                Ok(json!({"subscribed": true, "topic": pattern}))
            }
            MeshAct::Unsubscribe { pattern } => {
                let was = self.topic_unsubscribe_as(&who, who.agent()?, &pattern).await?;
                Ok(json!({"unsubscribed": was, "topic": pattern}))
            }
            MeshAct::Send { to, kind, payload, reply_to } => {
                let draft = LetterDraft {
                    to,
                    kind,
                    payload,
                    reply_to,
                    effect: Some(effect),
                    ..LetterDraft::default()
                };
                let sent = self.letter_send_as(&who, draft).await?;
                Ok(json!({"sent": true, "id": sent.id, "to": sent.to}))
            }
            MeshAct::Receive { limit, wait_seconds } => {
                let wait = Duration::from_secs(wait_seconds.min(30));
                let holder = (Some(effect), Some(session));
                let letters = self.receive(who.agent()?, &who.name, holder, limit, wait).await?;
                let letters: Vec<Value> = letters.iter().map(told).collect();
                Ok(json!({"count": letters.len(), "messages": letters}))
            }
            MeshAct::Acknowledge { ids } => {
                let done = self.acknowledge_all(who.agent()?, who.name, ids).await?;
                Ok(json!({"acknowledged": done}))
            }
            MeshAct::Agents => {
                let agents = self.mesh_agents_all().await?;
                let shown: Vec<Value> = agents
                    .iter()
                    .map(|agent| json!({"name": agent.name, "capabilities": agent.capabilities}))
                    .collect();
                Ok(json!({"count": shown.len(), "agents": shown}))
            }
            MeshAct::Spawn(wish) => {
                let done = self.spawn_as(&who, wish, Some(effect)).await?;
                Ok(json!({
                    "spawned": true, "agent_id": done.agent, "role": done.role,
                    "run_id": done.session.id, "name": done.session.name,
                    "spawned_by": done.spawned_by, "ttl": done.ttl,
                }))
            }
            MeshAct::Ask { question, wait_seconds } => {
                let wait = Duration::from_secs(wait_seconds.min(30));
                self.ask_people(session, effect, &question, wait).await
            }
            MeshAct::Answer { question, wait_seconds } => {
                let wait = Duration::from_secs(wait_seconds.min(30));
                self.read_answer(session, question, wait).await
            }
            MeshAct::SaveArtifact { name, content, media_type } => {
                let draft = ArtifactDraft { name, content, media_type };
                self.artifact_saved_by_tool(who, session, effect, draft).await
            }
            MeshAct::ListArtifacts { of, limit, after } => {
                self.artifacts_listed(&who, session, of, limit, after).await
            }
            MeshAct::ReadArtifact { of, name, offset, base64 } => {
                self.artifact_read(&who, session, of, &name, (offset, base64)).await
            }
            MeshAct::CostLeft => self.cost_left(session).await,
            MeshAct::History { agent } => {
                let (name, role, logs) = self.mesh_history_as(&who, &agent).await?;
                Ok(json!({"agent_id": name, "role": role, "logs": logs}))
            }
        }
    }
}

fn previewed(entry: &BoardEntry) -> Value {
    let text = entry.value.to_string();
    let mut shown: String = text.chars().take(PREVIEW).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    json!({
        "key": entry.key.as_str(), "version": entry.version, "written_by": entry.written_by,
        "updated_at": entry.updated_at, "value_preview": shown,
    })
}
