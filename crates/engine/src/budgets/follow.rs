//! Limits that follow the definition of an agent or a colony.

use overmind_core::agent::{Agent, AgentBudget};
use overmind_core::budget::{Limit, Scope, Source};
use overmind_core::ids::{ColonyId, LimitId};

use super::Budgets;
use crate::error::EngineError;

impl Budgets {
    /// Sets the limit of an agent to that of its definition.
    pub(crate) async fn follow(&self, agent: &Agent, by: &str) -> Result<(), EngineError> {
        self.follow_scope(Scope::Agent(agent.id), agent.spec.budget.as_ref(), by).await
    }

    /// Sets the limit of a colony to that of its definition.
    pub(crate) async fn follow_colony(
        &self,
        colony: ColonyId,
        wanted: Option<&AgentBudget>,
        by: &str,
    ) -> Result<(), EngineError> {
        self.follow_scope(Scope::Colony(colony), wanted, by).await
    }

    /// What a colony has spent in the present window of its definition's limit, in millionths of a
    /// dollar.
    pub(crate) fn spent_in(&self, colony: ColonyId) -> Option<u64> {
        let (scope, now) = (Scope::Colony(colony), self.0.clock.now());
        let ledger = self.ledger();
        let of_colony = |limit: &&Limit| limit.scope == scope && limit.source == Source::Definition;
        let limit = ledger.limits().find(of_colony)?;
        Some(ledger.window(scope, limit.period, now).spent.microusd)
    }

    async fn follow_scope(
        &self,
        scope: Scope,
        wanted: Option<&AgentBudget>,
        by: &str,
    ) -> Result<(), EngineError> {
        let now = self.0.clock.now();
        let declared: Vec<Limit> = {
            let ledger = self.ledger();
            let of_scope =
                |limit: &&Limit| limit.scope == scope && limit.source == Source::Definition;
            ledger.limits().filter(of_scope).cloned().collect()
        };
        for old in &declared {
            let stays = wanted.is_some_and(|new| (new.per, new.soft) == (old.period, old.soft));
            if !stays {
                self.remove_limit(old.id, by).await?;
            }
        }
        let Some(wanted) = wanted else { return Ok(()) };
        let id = LimitId::of(scope, wanted.per, wanted.soft);
        let known = declared.into_iter().find(|limit| limit.id == id);
        let same = known.as_ref().is_some_and(|known| {
            (known.microusd, known.tokens, known.unknown_price)
                == (wanted.microusd, wanted.tokens, wanted.unknown_price)
        });
        if same {
            return Ok(());
        }
        let limit = Limit {
            id,
            scope,
            period: wanted.per,
            soft: wanted.soft,
            microusd: wanted.microusd,
            tokens: wanted.tokens,
            unknown_price: wanted.unknown_price,
            source: Source::Definition,
            extra: known.as_ref().and_then(|known| known.extra),
            by: by.to_owned(),
            created_at: known.map_or(now, |known| known.created_at),
            updated_at: now,
        };
        self.put_limit(limit, "budget.limit_set", by, Vec::new()).await
    }
}
