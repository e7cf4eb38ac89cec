//! The load on one daemon: clients that create, a human that answers, a meddler, a watcher.
//!
//! Each part continues until the daemon does not answer any more.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::time::Duration;

use overmind_api::{
    AgentPatch, ApprovalAnswer, ForkRequest, InboxAnswer, InboxDecision, InboxId, ListQuery, Run,
    RunListQuery, RunStatus, Verdict,
};
use overmind_client::{Client, ClientError, Page};
use overmind_core::ids::SessionId;

use super::agents::make_workspace;
use super::daemon::{Places, leftovers, pause};
use super::ledger::{Ledger, Order, was_done};
use super::rng::Rng;

/// The number of concurrent runs, and of those that make the write-ahead log grow.
const LIVE: usize = 24;
const LIVE_FAT: usize = 60;
/// The number of changes among twenty actions of the meddler.
const MEDDLING: u64 = 5;
/// Agents whose runs are forked.
const FORKED: &[&str] = &["marker", "eager", "frank", "careful", "chatty"];

/// The state that outlives every daemon of one crash test.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) places: Places,
    /// In every command, so that remains of a killed daemon are recognised.
    pub(crate) tag: String,
    pub(crate) rng: RefCell<Rng>,
    pub(crate) ledger: RefCell<Ledger>,
    /// Process numbers of the daemons that were killed: also their process groups.
    pub(crate) killed: RefCell<Vec<u32>>,
    /// The number of commands that are known to have left no process.
    pub(crate) rested: Cell<usize>,
}

/// The number of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appetite {
    Usual,
    /// Large texts, to fill the write-ahead log.
    Fat,
    /// No new requests: existing runs are brought to an end.
    Settle,
}

impl World {
    fn one_in(&self, n: u64) -> bool {
        self.rng.borrow_mut().one_in(n)
    }

    /// Loads the daemon until it has ended.
    pub(crate) async fn load(&self, client: &Client, appetite: Appetite) {
        self.ledger.borrow_mut().all_idle();
        let creators = async {
            tokio::join!(
                self.create(client, appetite),
                self.create(client, appetite),
                self.create(client, appetite),
            )
        };
        let (.., human, meddler, watcher) = tokio::join!(
            creators,
            self.human(client),
            self.meddle(client, appetite),
            self.watch(client)
        );
        for part in [human, meddler, watcher] {
            if let Err(err) = part {
                self.note(&err);
            }
        }
    }

    /// Permitted requests succeed, are refused because of the run's state, or get no answer.
    fn note(&self, err: &ClientError) {
        let fine = match err {
            ClientError::Connect { .. } | ClientError::Broken { .. } => true,
            // A drain refuses requests, and an ended run accepts no orders.
            ClientError::Refused(problem) => matches!(problem.status, 409 | 503),
            ClientError::Tls { .. }
            | ClientError::Timeout { .. }
            | ClientError::Foreign { .. }
            | ClientError::Unreadable { .. }
            | ClientError::Argument { .. } => false,
        };
        if !fine {
            self.ledger.borrow_mut().contradictions.push(format!("an answer was: {err:?}"));
        }
    }

    /// Waits for an answer that shows a run, and remembers it.
    async fn shows(
        &self,
        request: impl Future<Output = Result<Run, ClientError>>,
    ) -> Result<Run, ClientError> {
        let sent = self.ledger.borrow().now();
        let run = request.await?;
        self.ledger.borrow_mut().observe(&run, sent);
        Ok(run)
    }

    async fn list(&self, client: &Client, query: &RunListQuery) -> Result<Page<Run>, ClientError> {
        let sent = self.ledger.borrow().now();
        let page = client.run_list(query).await?;
        for run in &page.items {
            self.ledger.borrow_mut().observe(run, sent);
        }
        Ok(page)
    }

    async fn create(&self, client: &Client, appetite: Appetite) {
        let room = if appetite == Appetite::Fat { LIVE_FAT } else { LIVE };
        loop {
            let pending = self.ledger.borrow_mut().take_pending();
            let full = self.ledger.borrow().live().len() >= room;
            let plan = match pending {
                Some(plan) => plan,
                None if full || appetite == Appetite::Settle => {
                    if appetite == Appetite::Settle && self.ledger.borrow().pending.is_empty() {
                        return;
                    }
                    pause(Duration::from_millis(3)).await;
                    continue;
                }
                None => {
                    let (mut ledger, mut rng) = (self.ledger.borrow_mut(), self.rng.borrow_mut());
                    let work = self.places.workspaces();
                    let plan = ledger.plan(&mut rng, appetite == Appetite::Fat, &self.tag, &work);
                    make_workspace(&self.places.workspace(plan));
                    plan
                }
            };
            let (request, key) = {
                let ledger = self.ledger.borrow();
                (ledger.plans[plan].request.clone(), ledger.plans[plan].key.clone())
            };
            match self.shows(client.run_create(&request, Some(&key))).await {
                Ok(run) => self.ledger.borrow_mut().acknowledge(plan, &run),
                Err(err) => {
                    self.note(&err);
                    self.ledger.borrow_mut().give_back(plan);
                    pause(Duration::from_millis(10)).await;
                }
            }
        }
    }

    /// Answers whatever a run waits for.
    pub(crate) async fn human(&self, client: &Client) -> Result<(), ClientError> {
        loop {
            for status in [RunStatus::AwaitingInput, RunStatus::AwaitingApproval] {
                let query =
                    RunListQuery { status: vec![status], limit: Some(100), ..Default::default() };
                for run in self.list(client, &query).await?.items {
                    match self.answer(client, &run).await {
                        Err(err) if err.status() == Some(409) => {}
                        other => other?,
                    }
                }
            }
            pause(Duration::from_millis(4)).await;
        }
    }

    async fn answer(&self, client: &Client, run: &Run) -> Result<(), ClientError> {
        let (id, prompt) = (run.id.to_string(), run.prompt.as_deref().unwrap_or_default());
        if let Some(approval) = run.approval_id {
            let approve = !self.one_in(8);
            let decision = if approve { Verdict::Approve } else { Verdict::Deny };
            let reason = (!approve).then(|| "no".to_owned());
            if self.one_in(2) {
                // The same from the other side: both close one item.
                let item = InboxId::from_u128(approval.as_u128()).to_string();
                let decision = if approve { InboxDecision::Approve } else { InboxDecision::Deny };
                client
                    .inbox_answer(
                        &item,
                        &InboxAnswer { decision, message: None, reason, raise: None },
                    )
                    .await?;
                return self.done(run, Order::Decide { approval, approve }, "approval");
            }
            let answer = ApprovalAnswer { decision, reason };
            let run = self.shows(client.run_decide(&id, &approval.to_string(), &answer)).await?;
            return self.done(&run, Order::Decide { approval, approve }, "approval");
        }
        if prompt.starts_with("The model could not be reached") {
            if self.one_in(3) {
                let run = self.shows(client.run_cancel(&id)).await?;
                return self.done(&run, Order::Cancel, "model");
            }
            return self.say(client, run, "again", "model").await;
        }
        if !prompt.starts_with("The node stopped while") {
            return self.say(client, run, "as you like", "question").await;
        }
        if !self.at_rest() {
            return Ok(());
        }
        if self.one_in(15) {
            return self.say(client, run, "nobody knows", "unknown").await;
        }
        let done = was_done(prompt, run.id, std::path::Path::new(&run.workspace));
        self.say(client, run, if done == Some(true) { "done" } else { "retry" }, "unknown").await
    }

    /// Whether all that earlier daemons began has ended. A command outlives its daemon by the
    /// moment that its sandbox needs to notice; who looks earlier sees a world in motion.
    fn at_rest(&self) -> bool {
        let killed = self.killed.borrow();
        if self.rested.get() < killed.len() && leftovers(&killed, None).is_empty() {
            self.rested.set(killed.len());
        }
        self.rested.get() == killed.len()
    }

    async fn say(
        &self,
        client: &Client,
        run: &Run,
        message: &str,
        why: &'static str,
    ) -> Result<(), ClientError> {
        let run = self.shows(client.run_input(&run.id.to_string(), message)).await?;
        self.done(&run, Order::Answer(message.into()), why)
    }

    fn done(&self, run: &Run, order: Order, why: &'static str) -> Result<(), ClientError> {
        let mut ledger = self.ledger.borrow_mut();
        ledger.orders.push((run.id, order));
        *ledger.answers.entry(why).or_default() += 1;
        Ok(())
    }

    /// Cancels, answers what was not asked, forks, and reads. In the end it only reads: a run that
    /// is stuck must not be helped out by a cancellation.
    async fn meddle(&self, client: &Client, appetite: Appetite) -> Result<(), ClientError> {
        loop {
            let wait = self.rng.borrow_mut().millis(5, 30);
            pause(wait).await;
            let live = self.ledger.borrow().live();
            if live.is_empty() {
                continue;
            }
            let id = *self.rng.borrow_mut().pick(&live);
            let least = if appetite == Appetite::Settle { MEDDLING } else { 0 };
            let what = least + self.rng.borrow_mut().below(20 - least);
            match self.meddle_with(client, id, what).await {
                Err(err) if err.status() == Some(409) => {}
                other => other?,
            }
        }
    }

    /// A run to fork, and how many steps it had when it was last seen. Those whose files are
    /// compared in the end are not forked: a fork works in the same directory.
    fn worth_a_fork(&self) -> Option<(SessionId, u32)> {
        let ledger = self.ledger.borrow();
        let plain: Vec<_> = ledger
            .acknowledged
            .iter()
            .filter(|(plan, _)| FORKED.contains(&ledger.plans[**plan].request.agent_id.as_str()))
            .filter_map(|(_, id)| Some((*id, ledger.shown.get(id)?.steps)))
            .collect();
        (!plain.is_empty()).then(|| *self.rng.borrow_mut().pick(&plain))
    }

    async fn meddle_with(
        &self,
        client: &Client,
        id: SessionId,
        what: u64,
    ) -> Result<(), ClientError> {
        let run = id.to_string();
        match what {
            0 | 1 => {
                let run = self.shows(client.run_cancel(&run)).await?;
                self.done(&run, Order::Cancel, "meddling")?;
            }
            2 => {
                let words = "never mind";
                let run = self.shows(client.run_input(&run, words)).await?;
                self.done(&run, Order::Answer(words.into()), "meddling")?;
            }
            3 => {
                let Some((source, steps)) = self.worth_a_fork() else { return Ok(()) };
                let at = self.rng.borrow_mut().below(u64::from(steps) + 1);
                let fork = ForkRequest {
                    at: u32::try_from(at).expect("few steps"),
                    ..ForkRequest::default()
                };
                let fork = self.shows(client.run_fork(&source.to_string(), &fork)).await?;
                self.ledger.borrow_mut().forks.insert(fork.id, source);
            }
            4 => {
                let role = Some(format!("A worker, seen by {id}."));
                let patch = AgentPatch { role, ..AgentPatch::default() };
                client.agent_patch("frank", &patch, None).await?;
            }
            5 => drop(client.run_events(&run, &ListQuery::default()).await?),
            6..=8 => drop(client.run_steps(&run, &ListQuery::default()).await?),
            9..=11 => drop(client.run_verify(&run).await?),
            12 => drop(client.audit_verify().await?),
            _ => drop(self.shows(client.run_fetch(&run)).await?),
        }
        Ok(())
    }

    /// Looks at every run that the server has; false when it does not answer.
    pub(crate) async fn find_all(&self, client: &Client) -> bool {
        let read = async {
            let query = RunListQuery { limit: Some(50), ..RunListQuery::default() };
            let mut page = self.list(client, &query).await?;
            loop {
                let sent = self.ledger.borrow().now();
                let Some(next) = client.page_next(&page).await? else { break };
                page = next;
                for run in &page.items {
                    self.ledger.borrow_mut().observe(run, sent);
                }
            }
            Ok::<_, ClientError>(())
        };
        match Box::pin(read).await {
            Ok(()) => true,
            Err(err) => {
                self.note(&err);
                false
            }
        }
    }

    /// Checks the state of the running runs.
    async fn watch(&self, client: &Client) -> Result<(), ClientError> {
        loop {
            let live = self.ledger.borrow().live();
            for id in live {
                self.shows(client.run_fetch(&id.to_string())).await?;
            }
            pause(Duration::from_millis(5)).await;
        }
    }
}
