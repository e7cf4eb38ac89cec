//! The mesh: shared state, messages, topics, permissions.

use hyper::Method;
use overmind_api::{
    Acl, AclChanged, AclEffective, AgentMessage, BlackboardChange, BlackboardEntry,
    BlackboardHistory, BlackboardListQuery, BlackboardPutQuery, Can, CanQuery, Letter, LetterDone,
    LetterIds, LetterListQuery, LetterReceive, MeshAgent, MeshEvent, MessageReceived, Okay,
    Permissions, Published, Register, Registered, SpawnDone, SpawnRequest, SubscribeQuery,
    Subscribed, Subscription, Unsubscribed,
};
use serde_json::Value;

use crate::calls::Client;
use crate::connection::{Call, Patience};
use crate::error::ClientError;
use crate::page::{Page, TargetPath};
use crate::stream::{From, Message, Reader, Said, Stream};

fn key_path(key: &str) -> Result<TargetPath, ClientError> {
    key_below("/mesh/blackboard", key)
}

fn key_below(path: &str, key: &str) -> Result<TargetPath, ClientError> {
    if key.is_empty() {
        return Err(ClientError::Argument { what: "the key", why: "it is empty" });
    }
    Ok(key.split('/').fold(TargetPath::new(path), TargetPath::segment))
}

fn acl_path(agent: &str) -> Result<TargetPath, ClientError> {
    if agent.is_empty() {
        return Err(ClientError::Argument { what: "the agent", why: "it is empty" });
    }
    Ok(TargetPath::new("/mesh/permissions").segment(agent))
}

impl Client {
    /// Returns entries sorted by key.
    pub async fn board_list(
        &self,
        query: &BlackboardListQuery,
    ) -> Result<Page<BlackboardEntry>, ClientError> {
        let path = TargetPath::new("/mesh/blackboard")
            .query("prefix", query.prefix.as_ref())
            .query("agent_id", query.agent_id.as_ref())
            .query("limit", query.limit)
            .query("cursor", query.cursor.as_ref());
        self.page(path).await
    }

    pub async fn board_fetch(&self, key: &str) -> Result<BlackboardEntry, ClientError> {
        self.get(key_path(key)?.as_str()).await
    }

    /// Returns the newest changes of a key, newest first.
    pub async fn board_history(&self, key: &str) -> Result<BlackboardHistory, ClientError> {
        self.get(key_below("/mesh/history", key)?.as_str()).await
    }

    pub async fn board_put(
        &self,
        key: &str,
        value: &Value,
        query: &BlackboardPutQuery,
    ) -> Result<BlackboardEntry, ClientError> {
        let path = key_path(key)?
            .query("agent_id", query.agent_id.as_ref())
            .query("ttl", query.ttl)
            .query("workflow_id", query.workflow_id.as_ref())
            .query("version", query.version);
        self.send(Method::PUT, path.as_str(), value, None, Patience::Quick).await
    }

    pub async fn board_delete(&self, key: &str, version: Option<u64>) -> Result<Okay, ClientError> {
        self.act(Method::DELETE, key_path(key)?.query("version", version).as_str()).await
    }

    /// Streams new changes of keys that begin with `prefix`. Reconnects automatically, up to
    /// `max_resumes` times in a row.
    pub async fn board_watch(
        &self,
        prefix: &str,
        max_resumes: u32,
    ) -> Result<BoardWatch, ClientError> {
        let from = From {
            attempt: "watching the shared state".to_owned(),
            target: TargetPath::new("/mesh/watch")
                .query("prefix", Some(prefix))
                .as_str()
                .to_owned(),
            last: None,
            max_resumes,
            ends: false,
        };
        Ok(BoardWatch(Stream::open(self.clone(), from, Changes).await?))
    }

    pub async fn message_send(
        &self,
        message: &AgentMessage,
    ) -> Result<MessageReceived, ClientError> {
        self.post("/mesh/message", message).await
    }

    pub async fn message_list(&self, query: &LetterListQuery) -> Result<Page<Letter>, ClientError> {
        let path = TargetPath::new("/mesh/messages")
            .query("agent_id", query.agent_id.as_ref())
            .query("dead", query.dead)
            .query("limit", query.limit)
            .query("cursor", query.cursor.as_ref());
        self.page(path).await
    }

    pub async fn message_receive(&self, wish: &LetterReceive) -> Result<Vec<Letter>, ClientError> {
        self.send(Method::POST, "/mesh/messages/receive", wish, None, Patience::Long).await
    }

    pub async fn message_ack(&self, ids: &LetterIds) -> Result<LetterDone, ClientError> {
        self.post("/mesh/messages/ack", ids).await
    }

    pub async fn message_requeue(&self, ids: &LetterIds) -> Result<LetterDone, ClientError> {
        self.post("/mesh/messages/requeue", ids).await
    }

    pub async fn topic_publish(&self, event: &MeshEvent) -> Result<Published, ClientError> {
        self.post("/mesh/publish", event).await
    }

    pub async fn topic_subscribe(&self, wish: &SubscribeQuery) -> Result<Subscribed, ClientError> {
        self.act(Method::POST, subscription(wish).as_str()).await
    }

    pub async fn topic_unsubscribe(
        &self,
        wish: &SubscribeQuery,
    ) -> Result<Unsubscribed, ClientError> {
        self.act(Method::DELETE, subscription(wish).as_str()).await
    }

    pub async fn topic_list(&self, agent: Option<&str>) -> Result<Vec<Subscription>, ClientError> {
        self.get(TargetPath::new("/mesh/subscriptions").query("agent_id", agent).as_str()).await
    }

    pub async fn mesh_register(&self, wish: &Register) -> Result<Registered, ClientError> {
        self.post("/mesh/register", wish).await
    }

    pub async fn mesh_agents(&self) -> Result<Vec<MeshAgent>, ClientError> {
        self.get("/mesh/agents?details=true").await
    }

    pub async fn mesh_spawn(&self, wish: &SpawnRequest) -> Result<SpawnDone, ClientError> {
        self.post("/mesh/spawn", wish).await
    }

    /// Sends one MCP message to a run's own endpoint. The answer may be a JSON-RPC error.
    pub async fn mcp_message(&self, message: &Value) -> Result<Value, ClientError> {
        let body = message.to_string().into_bytes().into();
        let call = Call {
            method: Method::POST,
            target: "/mcp",
            headers: vec![],
            body: Some(body),
            patience: Patience::Long,
            also_fine: &[400, 404],
        };
        let answer = Box::pin(self.connections().call(call)).await?;
        serde_json::from_slice(&answer.body).map_err(|err| ClientError::Unreadable {
            attempt: answer.attempt,
            why: err.to_string(),
        })
    }

    pub async fn acl_list(&self) -> Result<Acl, ClientError> {
        self.get("/mesh/permissions").await
    }

    pub async fn acl_effective(&self, agent: &str) -> Result<AclEffective, ClientError> {
        self.get(acl_path(agent)?.as_str()).await
    }

    pub async fn acl_put(
        &self,
        agent: &str,
        permissions: &Permissions,
        if_version: Option<u64>,
    ) -> Result<AclChanged, ClientError> {
        let header = if_version.map(|version| (hyper::header::IF_MATCH, format!("\"{version}\"")));
        self.send(Method::PUT, acl_path(agent)?.as_str(), permissions, header, Patience::Quick)
            .await
    }

    pub async fn acl_delete(&self, agent: &str) -> Result<AclChanged, ClientError> {
        self.act(Method::DELETE, acl_path(agent)?.as_str()).await
    }

    pub async fn acl_can(&self, query: &CanQuery) -> Result<Can, ClientError> {
        let path = TargetPath::new("/mesh/can")
            .query("agent", query.agent.as_ref())
            .query("verb", Some(&query.verb))
            .query("object", Some(&query.object));
        self.get(path.as_str()).await
    }
}

fn subscription(wish: &SubscribeQuery) -> TargetPath {
    TargetPath::new("/mesh/subscribe")
        .query("topic", Some(&wish.topic))
        .query("agent_id", wish.agent_id.as_ref())
}

/// Streams changes of the shared state. Reconnects automatically.
#[derive(Debug)]
pub struct BoardWatch(Stream<Changes>);

#[derive(Debug)]
struct Changes;

impl Reader for Changes {
    type Item = BlackboardChange;

    fn read(&self, message: Message) -> Result<Said<BlackboardChange>, serde_json::Error> {
        match message.event {
            None => serde_json::from_str(&message.data).map(Said::Item),
            Some(_) => Ok(Said::Unknown),
        }
    }
}

impl BoardWatch {
    /// Returns the next change; `None` only after an error.
    ///
    /// # Errors
    ///
    /// [`ClientError`] if the stream broke and could not be resumed. It is then over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing: the next call continues.
    pub async fn next(&mut self) -> Option<Result<BlackboardChange, ClientError>> {
        self.0.next().await
    }
}
