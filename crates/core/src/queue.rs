//! The queue of sessions: fair, bounded, and equally fast for one and for ten thousand waiting
//! sessions.
//!
//! Colonies take turns; within a colony its agents take turns; within an agent the oldest session
//! runs first. An agent or colony at its limit is skipped at no cost.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::ids::{AgentId, ColonyId, SessionId};

/// Limits of concurrent sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub total: u32,
    pub per_colony: u32,
    /// The limit of agents that set none.
    pub per_agent: u32,
}

/// A session that waits or runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub session: SessionId,
    pub colony: ColonyId,
    pub agent: AgentId,
    /// The agent's own limit; 0 means none.
    pub agent_bound: u32,
}

#[derive(Debug, Default)]
struct Agent {
    waiting: VecDeque<SessionId>,
    running: u32,
    bound: u32,
    /// Whether it is in its colony's round.
    listed: bool,
}

#[derive(Debug, Default)]
struct Colony {
    agents: HashMap<AgentId, Agent>,
    /// Agents with waiting sessions that are below their limit.
    round: VecDeque<AgentId>,
    running: u32,
    listed: bool,
}

/// All waiting sessions, and the numbers of running ones.
#[derive(Debug)]
pub struct FairQueue {
    bounds: Bounds,
    colonies: BTreeMap<ColonyId, Colony>,
    round: VecDeque<ColonyId>,
    running: HashMap<SessionId, Ticket>,
    waiting: HashMap<SessionId, Ticket>,
    /// The own limits of colonies that have one.
    quotas: HashMap<ColonyId, u32>,
}

impl FairQueue {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            colonies: BTreeMap::new(),
            round: VecDeque::new(),
            running: HashMap::new(),
            waiting: HashMap::new(),
            quotas: HashMap::new(),
        }
    }

    /// Sets the own limit of a colony; `None` removes it. The limit of all colonies also applies.
    /// Running sessions continue.
    pub fn set_quota(&mut self, colony: ColonyId, most: Option<u32>) {
        match most {
            Some(most) => drop(self.quotas.insert(colony, most)),
            None => drop(self.quotas.remove(&colony)),
        }
        self.relist(colony);
    }

    /// The number of running sessions of a colony.
    pub fn running_of(&self, colony: ColonyId) -> u32 {
        self.colonies.get(&colony).map_or(0, |colony| colony.running)
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Adds a session at the end of its agent's queue. Does nothing if it waits or runs already.
    pub fn push(&mut self, ticket: Ticket) {
        if self.waiting.contains_key(&ticket.session) || self.running.contains_key(&ticket.session)
        {
            return;
        }
        self.waiting.insert(ticket.session, ticket);
        let bound = self.agent_bound(ticket.agent_bound);
        let colony = self.colonies.entry(ticket.colony).or_default();
        let agent = colony.agents.entry(ticket.agent).or_default();
        agent.bound = bound;
        agent.waiting.push_back(ticket.session);
        self.list(ticket.colony, ticket.agent);
    }

    /// Removes a cancelled session from its queue. Returns whether it was there.
    pub fn remove(&mut self, session: SessionId) -> bool {
        // The line itself is cleaned when its turn comes: searching it would cost its length.
        self.waiting.remove(&session).is_some()
    }

    /// Returns the next session that may run now, and counts it as running.
    pub fn pop(&mut self) -> Option<Ticket> {
        if self.running.len() >= self.bounds.total as usize {
            return None;
        }
        while let Some(colony_id) = self.round.pop_front() {
            let bound = self.colony_bound(colony_id);
            let colony = self.colonies.get_mut(&colony_id).expect("a listed colony exists");
            colony.listed = false;
            if let Some(ticket) = Self::pop_agent(colony, &self.waiting, bound) {
                self.waiting.remove(&ticket.session);
                self.running.insert(ticket.session, ticket);
                self.relist(colony_id);
                return Some(ticket);
            }
        }
        None
    }

    fn pop_agent(
        colony: &mut Colony,
        waiting: &HashMap<SessionId, Ticket>,
        bound: u32,
    ) -> Option<Ticket> {
        if colony.running >= bound {
            return None;
        }
        while let Some(agent_id) = colony.round.pop_front() {
            let agent = colony.agents.get_mut(&agent_id).expect("a listed agent exists");
            agent.listed = false;
            if agent.running >= agent.bound {
                continue;
            }
            let next = std::iter::from_fn(|| agent.waiting.pop_front())
                .find_map(|session| waiting.get(&session).copied());
            if let Some(ticket) = next {
                agent.running += 1;
                colony.running += 1;
                if !agent.waiting.is_empty() && agent.running < agent.bound {
                    agent.listed = true;
                    colony.round.push_back(agent_id);
                }
                return Some(ticket);
            }
            if agent.running == 0 {
                colony.agents.remove(&agent_id);
            }
        }
        None
    }

    /// Claims a place for a session that is about to be created, like [`Self::push`] and
    /// [`Self::pop`] together. Returns true, and counts it as running, if no session waits and no
    /// limit is reached. Otherwise the session must be pushed.
    pub fn claim(&mut self, ticket: Ticket) -> bool {
        let colony = self.colonies.get(&ticket.colony);
        let of_colony = colony.map_or(0, |colony| colony.running);
        let agent = colony.and_then(|colony| colony.agents.get(&ticket.agent));
        let of_agent = agent.map_or(0, |agent| agent.running);
        let room = self.waiting.is_empty()
            && !self.running.contains_key(&ticket.session)
            && self.running.len() < self.bounds.total as usize
            && of_colony < self.colony_bound(ticket.colony)
            && of_agent < self.agent_bound(ticket.agent_bound);
        if room {
            self.run_now(ticket);
        }
        room
    }

    /// Counts a session as running without queueing, because a human resumed it or it was
    /// recovered.
    pub fn run_now(&mut self, ticket: Ticket) {
        if self.running.insert(ticket.session, ticket).is_some() {
            return;
        }
        self.waiting.remove(&ticket.session);
        let bound = self.agent_bound(ticket.agent_bound);
        let colony = self.colonies.entry(ticket.colony).or_default();
        colony.running += 1;
        let agent = colony.agents.entry(ticket.agent).or_default();
        agent.bound = bound;
        agent.running += 1;
    }

    /// Frees the place of a session that ended or waits for a human.
    pub fn finished(&mut self, session: SessionId) {
        let Some(ticket) = self.running.remove(&session) else { return };
        let Some(colony) = self.colonies.get_mut(&ticket.colony) else { return };
        colony.running = colony.running.saturating_sub(1);
        if let Some(agent) = colony.agents.get_mut(&ticket.agent) {
            agent.running = agent.running.saturating_sub(1);
            if agent.running == 0 && agent.waiting.is_empty() && !agent.listed {
                colony.agents.remove(&ticket.agent);
            }
        }
        if colony.agents.is_empty() && !colony.listed {
            self.colonies.remove(&ticket.colony);
            return;
        }
        self.list(ticket.colony, ticket.agent);
        self.relist(ticket.colony);
    }

    fn colony_bound(&self, colony: ColonyId) -> u32 {
        let own = self.quotas.get(&colony).copied();
        own.map_or(self.bounds.per_colony, |own| own.min(self.bounds.per_colony))
    }

    fn agent_bound(&self, own: u32) -> u32 {
        if own == 0 { self.bounds.per_agent } else { own }
    }

    /// Adds an agent to its colony's round, and the colony to the round of colonies, if they have
    /// waiting sessions and are below their limits.
    fn list(&mut self, colony_id: ColonyId, agent_id: AgentId) {
        let Some(colony) = self.colonies.get_mut(&colony_id) else { return };
        if let Some(agent) = colony.agents.get_mut(&agent_id)
            && !agent.listed
            && !agent.waiting.is_empty()
            && agent.running < agent.bound
        {
            agent.listed = true;
            colony.round.push_back(agent_id);
        }
        self.relist(colony_id);
    }

    fn relist(&mut self, colony_id: ColonyId) {
        let bound = self.colony_bound(colony_id);
        let Some(colony) = self.colonies.get_mut(&colony_id) else { return };
        if !colony.listed && !colony.round.is_empty() && colony.running < bound {
            colony.listed = true;
            self.round.push_back(colony_id);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket(session: u128, agent: u128, colony: u128) -> Ticket {
        Ticket {
            session: SessionId::from_u128(session),
            colony: ColonyId::from_u128(colony),
            agent: AgentId::from_u128(agent),
            agent_bound: 0,
        }
    }

    fn queue(total: u32, per_colony: u32, per_agent: u32) -> FairQueue {
        FairQueue::new(Bounds { total, per_colony, per_agent })
    }

    #[test]
    fn a_colony_runs_no_more_than_its_own_quota_and_goes_on_when_it_is_raised() {
        let mut q = queue(100, 100, 100);
        let own = ColonyId::from_u128(2);
        q.set_quota(own, Some(1));
        assert!(q.claim(ticket(1, 1, 2)));
        assert!(!q.claim(ticket(2, 1, 2)), "the quota is reached");
        for n in 2..5 {
            q.push(ticket(n, 1, 2));
        }
        q.push(ticket(9, 2, 1));
        assert_eq!(q.pop().map(|ticket| ticket.colony), Some(ColonyId::from_u128(1)));
        assert_eq!(q.pop(), None);
        assert_eq!(q.running_of(own), 1);
        q.finished(SessionId::from_u128(1));
        assert_eq!(q.pop().map(|ticket| ticket.session), Some(SessionId::from_u128(2)));
        assert_eq!(q.pop(), None);
        q.set_quota(own, Some(2));
        assert_eq!(q.pop().map(|ticket| ticket.session), Some(SessionId::from_u128(3)));
        q.set_quota(own, None);
        assert_eq!(q.pop().map(|ticket| ticket.session), Some(SessionId::from_u128(4)));
    }

    #[test]
    fn a_new_agent_does_not_wait_behind_a_long_queue_of_another_agent() {
        let mut q = queue(100, 100, 4);
        for n in 0..10_000 {
            q.push(ticket(n, 1, 1));
        }
        for _ in 0..4 {
            assert_eq!(q.pop().expect("room").agent, AgentId::from_u128(1));
        }
        assert_eq!(q.pop(), None, "the agent is at its bound");
        q.push(ticket(20_000, 2, 1));
        assert_eq!(q.pop().expect("room").session, SessionId::from_u128(20_000));
    }

    #[test]
    fn agents_and_colonies_take_turns() {
        let mut q = queue(100, 100, 100);
        for n in 0..3 {
            q.push(ticket(n, 1, 1));
            q.push(ticket(10 + n, 2, 1));
            q.push(ticket(20 + n, 3, 2));
        }
        let order: Vec<_> = std::iter::from_fn(|| q.pop()).map(|t| t.session.as_u128()).collect();
        assert_eq!(order, [0, 20, 10, 21, 1, 22, 11, 2, 12]);
    }

    #[test]
    fn a_slot_is_claimed_only_if_a_pushed_session_would_start_at_once() {
        let mut q = queue(4, 3, 2);
        assert!(q.claim(ticket(1, 1, 1)));
        assert!(!q.claim(ticket(1, 1, 1)), "it has one already");
        assert!(q.claim(ticket(2, 1, 1)));
        assert!(!q.claim(ticket(3, 1, 1)), "the agent is at its bound");
        assert!(q.claim(ticket(3, 2, 1)));
        assert!(!q.claim(ticket(4, 3, 1)), "the colony is at its bound");
        q.push(ticket(4, 3, 1));
        assert!(!q.claim(ticket(5, 4, 2)), "somebody waits");
        q.finished(SessionId::from_u128(1));
        assert_eq!(q.pop().expect("its place is free").session.as_u128(), 4);
        assert!(q.claim(ticket(5, 4, 2)));
        assert!(!q.claim(ticket(6, 5, 3)), "all places are taken");
        assert_eq!(q.running(), 4);
    }

    #[test]
    fn a_canceled_session_is_never_dequeued() {
        let mut q = queue(10, 10, 10);
        q.push(ticket(1, 1, 1));
        q.push(ticket(2, 1, 1));
        assert!(q.remove(SessionId::from_u128(1)));
        assert_eq!(q.pop().expect("the other").session.as_u128(), 2);
        assert_eq!(q.pop(), None);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Push(u128),
        Pop,
        Remove(u128),
        Finish(u128),
        RunNow(u128),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..40_u128).prop_map(Op::Push),
            3 => Just(Op::Pop),
            1 => (0..40_u128).prop_map(Op::Remove),
            2 => (0..40_u128).prop_map(Op::Finish),
            1 => (0..40_u128).prop_map(Op::RunNow),
        ]
    }

    proptest! {
        /// Bounds hold, no session is lost, and a waiting session starts if there is a free slot.
        #[test]
        fn no_session_is_lost_and_the_limits_hold(ops in proptest::collection::vec(op(), 0..200)) {
            let mut q = queue(6, 4, 2);
            for op in ops {
                // A session's agent and colony never change in its life.
                match op {
                    Op::Push(s) => q.push(ticket(s, s % 4, s % 2)),
                    Op::Pop => {
                        if let Some(t) = q.pop() {
                            let same = |f: &dyn Fn(&Ticket) -> bool| q.running.values().filter(|t| f(t)).count();
                            // Sessions that were run at once may stand above a bound; a turn never goes there.
                            prop_assert!(q.running.len() <= 6);
                            prop_assert!(same(&|o| o.colony == t.colony) <= 4);
                            prop_assert!(same(&|o| o.agent == t.agent && o.colony == t.colony) <= 2);
                        }
                    }
                    Op::Remove(s) => { q.remove(SessionId::from_u128(s)); }
                    Op::Finish(s) => q.finished(SessionId::from_u128(s)),
                    Op::RunNow(s) => q.run_now(ticket(s, s % 4, s % 2)),
                }
            }
            // Drain: finishing everything lets everybody up in the end.
            let mut left = q.waiting();
            loop {
                while q.pop().is_some() { left -= 1; }
                let running: Vec<_> = q.running.keys().copied().collect();
                if running.is_empty() { break; }
                for session in running { q.finished(session); }
            }
            prop_assert_eq!(left, 0);
            prop_assert_eq!(q.waiting(), 0);
        }
    }
}
