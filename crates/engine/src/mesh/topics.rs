//! Topics: subscriptions, and publishing.

use std::sync::Arc;

use overmind_core::acl::Verb;
use overmind_core::ids::{AgentId, ColonyId, EffectId, LetterId, SubscriptionId};
use overmind_core::mesh::{
    Letter, LetterMark, MAX_SUBSCRIPTIONS, MAX_SUBSCRIPTIONS_IN_ALL, MAX_WAITING, Priority,
    Subscription, TopicPattern, check_topic,
};
use overmind_core::row::Role;
use overmind_core::store::{Change, StoreError};
use serde_json::{Value, json};

use super::{Who, event, explained};
use crate::Engine;
use crate::caller::{Caller, Rights};
use crate::cortex::lock;
use crate::error::EngineError;

/// The result of publishing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    pub id: Option<LetterId>,
    /// The number of agents that get a message.
    pub notified: u32,
    /// Agents that would get one but whose mailboxes are full.
    pub full: Vec<String>,
}

fn pattern(text: &str) -> Result<TopicPattern, EngineError> {
    TopicPattern::parse(text)
        .map_err(|why| EngineError::invalid("topic", format!("the topic {why}")))
}

impl Engine {
    /// Publishes to a topic: one message for each agent with a matching subscription, durable when
    /// this returns.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`]; [`EngineError::Invalid`] for an invalid topic.
    pub async fn topic_publish(
        &self,
        by: &Caller,
        given: Option<&str>,
        topic: &str,
        payload: Value,
    ) -> Result<Published, EngineError> {
        let who = self.who(by, given).await?;
        self.topic_publish_as(&who, topic, payload, None).await
    }

    pub(super) async fn topic_publish_as(
        &self,
        who: &Who,
        topic: &str,
        mut payload: Value,
        effect: Option<EffectId>,
    ) -> Result<Published, EngineError> {
        check_topic(topic)
            .map_err(|why| EngineError::invalid("topic", format!("the topic {why}")))?;
        let what = || format!("Agent {} cannot publish to {topic}", who.name);
        self.permit(who, Verb::Publish, topic, what).await?;
        let bytes = self.cortex.measured("payload", &mut payload)?;
        let matrix = self.permissions();
        let mut wanted: Vec<AgentId> = {
            let all = lock(&self.cortex.mesh.subscriptions);
            // Current permissions apply, because they may have changed since the subscription.
            let fits = |one: &&Arc<Subscription>| {
                one.pattern.matches(topic)
                    && matrix.may_in_line(&one.line, Verb::Subscribe, topic).allowed
            };
            all.values().filter(fits).map(|one| one.agent).collect()
        };
        // The map is ordered by agent.
        wanted.dedup();
        let now = self.cortex.clock.now();
        let id = match effect {
            Some(effect) => LetterId::from_u128(effect.as_u128()),
            None => LetterId::mint(&*self.cortex.ids),
        };
        let (mut reserved, mut full, mut changes) = (Vec::new(), Vec::new(), Vec::new());
        for agent in wanted {
            let mailbox = self.cortex.mesh.mail.of(agent);
            let again =
                effect.is_some() && self.cortex.store.letter_fetch(agent, id).await?.is_some();
            if again {
                continue;
            }
            if !mailbox.reserve() {
                let name = self.cortex.agent(agent).await?;
                full.push(name.map_or_else(|| agent.to_string(), |agent| agent.spec.name.clone()));
                continue;
            }
            changes.push(Change::LetterInsert(Box::new(Letter {
                id,
                colony: ColonyId::DEFAULT,
                to: agent,
                from: who.name.clone(),
                topic: Some(topic.to_owned()),
                kind: "event".to_owned(),
                payload: payload.clone(),
                workflow: None,
                reply_to: None,
                priority: Priority::Normal,
                sent_at: now,
                expires_at: None,
                mark: LetterMark::fresh(now),
                place: 0,
            })));
            reserved.push((agent, mailbox));
        }
        let notified = u32::try_from(reserved.len()).unwrap_or(u32::MAX);
        let told = json!({
            "id": id, "topic": topic, "by": who.name, "run_id": who.session, "bytes": bytes,
            "notified": notified, "full": full,
        });
        let commit = explained(event("topic.published", now, told), vec![], changes);
        let cortex = Arc::clone(&self.cortex);
        self.whole(async move {
            let done = cortex.store.commit(commit).await;
            for (agent, mailbox) in reserved {
                if done.is_ok() {
                    mailbox.ring();
                    cortex.mesh.post.poke(agent);
                } else {
                    mailbox.release(1);
                }
            }
            done.map(drop).map_err(EngineError::from)
        })
        .await?;
        if !full.is_empty() {
            tracing::warn!(topic, ?full, "mailboxes with {MAX_WAITING} letters take no event");
        }
        Ok(Published { id: Some(id), notified, full })
    }

    /// Subscribes an agent to topics: the caller's own or, with a role, any. A repeated
    /// subscription has no effect.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`]; [`EngineError::Conflict`] if it has too many.
    pub async fn topic_subscribe(
        &self,
        by: &Caller,
        agent: Option<&str>,
        topic: &str,
    ) -> Result<Arc<Subscription>, EngineError> {
        let (who, agent) = self.mailbox_of(by, agent, Role::Operator).await?;
        self.topic_subscribe_as(&who, agent, topic).await
    }

    pub(super) async fn topic_subscribe_as(
        &self,
        who: &Who,
        agent: AgentId,
        topic: &str,
    ) -> Result<Arc<Subscription>, EngineError> {
        let pattern = pattern(topic)?;
        // A key cannot give another agent more than that agent may have.
        let line = match who.agent {
            Some(_) => who.line.clone(),
            None => {
                let agent = self.cortex.agent(agent).await?;
                vec![agent.ok_or_else(|| EngineError::not_found("Agent"))?.spec.name.clone()]
            }
        };
        let verdict = self.permissions().may_pattern(&line, Verb::Subscribe, pattern.as_str());
        let what = || {
            format!(
                "Agent {} cannot subscribe to {pattern}",
                line.first().map_or("", String::as_str)
            )
        };
        if who.agent.is_none() && !verdict.allowed {
            return Err(super::denied(what(), &verdict));
        }
        self.permitted(who, Verb::Subscribe, pattern.as_str(), verdict, what).await?;
        let key = (agent, pattern.to_string());
        {
            let all = lock(&self.cortex.mesh.subscriptions);
            if let Some(there) = all.get(&key).filter(|there| there.line == line) {
                return Ok(Arc::clone(there));
            }
            let own = all.keys().filter(|(of, _)| *of == agent).count();
            if own >= MAX_SUBSCRIPTIONS || all.len() >= MAX_SUBSCRIPTIONS_IN_ALL {
                let message = format!(
                    "there are {own} subscriptions of this agent and {} in all; {MAX_SUBSCRIPTIONS} \
                     and {MAX_SUBSCRIPTIONS_IN_ALL} are the most",
                    all.len()
                );
                return Err(EngineError::conflict(message));
            }
        }
        let now = self.cortex.clock.now();
        let subscription = Arc::new(Subscription {
            id: SubscriptionId::mint(&*self.cortex.ids),
            colony: ColonyId::DEFAULT,
            agent,
            pattern,
            line,
            created_at: now,
            created_by: who.name.clone(),
        });
        let payload = json!({
            "agent_id": agent, "topic": subscription.pattern.as_str(), "by": who.name,
            "run_id": who.session,
        });
        let change = Change::SubscriptionPut(Box::new(Subscription::clone(&subscription)));
        let commit = explained(event("topic.subscribed", now, payload), vec![], vec![change]);
        let (cortex, kept) = (Arc::clone(&self.cortex), Arc::clone(&subscription));
        self.whole(async move {
            cortex.store.commit(commit).await?;
            lock(&cortex.mesh.subscriptions).insert(key, kept);
            Ok(())
        })
        .await?;
        Ok(subscription)
    }

    /// Removes a subscription. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// The same as for [`Engine::topic_subscribe`].
    pub async fn topic_unsubscribe(
        &self,
        by: &Caller,
        agent: Option<&str>,
        topic: &str,
    ) -> Result<bool, EngineError> {
        let (who, agent) = self.mailbox_of(by, agent, Role::Operator).await?;
        self.topic_unsubscribe_as(&who, agent, topic).await
    }

    pub(super) async fn topic_unsubscribe_as(
        &self,
        who: &Who,
        agent: AgentId,
        topic: &str,
    ) -> Result<bool, EngineError> {
        let key = (agent, pattern(topic)?.to_string());
        let found = lock(&self.cortex.mesh.subscriptions).get(&key).cloned();
        let Some(found) = found else { return Ok(false) };
        let payload = json!({
            "agent_id": agent, "topic": key.1, "by": who.name, "run_id": who.session,
        });
        let told = event("topic.unsubscribed", self.cortex.clock.now(), payload);
        let commit = explained(told, vec![], vec![Change::SubscriptionDelete(found.id)]);
        let cortex = Arc::clone(&self.cortex);
        self.whole(async move {
            cortex.store.commit(commit).await.map_err(|err: StoreError| EngineError::from(err))?;
            lock(&cortex.mesh.subscriptions).remove(&key);
            Ok(())
        })
        .await?;
        Ok(true)
    }

    /// Subscriptions of one agent or, with a role, of all.
    ///
    /// # Errors
    ///
    /// [`EngineError::Forbidden`].
    pub async fn topic_subscriptions(
        &self,
        by: &Caller,
        agent: Option<&str>,
    ) -> Result<Vec<Arc<Subscription>>, EngineError> {
        let only = match (&by.rights, agent) {
            (Rights::Role(_), None) => {
                by.require(Role::Viewer)?;
                None
            }
            _ => Some(self.mailbox_of(by, agent, Role::Viewer).await?.1),
        };
        let all = lock(&self.cortex.mesh.subscriptions);
        let wanted = all.values().filter(|one| only.is_none_or(|agent| one.agent == agent));
        Ok(wanted.cloned().collect())
    }
}
