//! Verify, fork, diff: operations on a complete log.

use std::sync::Arc;

use overmind_core::ids::SessionId;
use overmind_core::name;
use overmind_core::queue::Ticket;
use overmind_core::replay::{ReplayError, Replayer};
use overmind_core::room::RoomReach;
use overmind_core::room::history::RoomSnapshot;
use overmind_core::row::{Role, SessionRow, SessionStatus, StepRow};
use overmind_core::session::{ForkOf, Input, ROOM_FORKED, Recorded, Session, Spec, Toolset};
use overmind_core::store::{Change, Commit, EventQuery, Guard, LogEvent, NewEvent, StreamId};
use overmind_core::time::Timestamp;
use serde_json::{Value, json};

use crate::Engine;
use crate::caller::Caller;
use crate::cortex::count;
use crate::error::EngineError;
use crate::request::ForkDraft;
use crate::view::{DiffReport, DiffRow, Divergence, VerifyReport};

/// Events read at a time.
const PAGE: u32 = 2000;
/// Longest part of a session that a fork repeats, in events: it is one commit.
const FORK_EVENTS: usize = 50_000;
/// Longest session that can be compared, in steps.
const DIFF_STEPS: u32 = 10_000;

impl Engine {
    /// Decides the whole session again from its log and compares each decision.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotFound`]. A divergence is not an error: it is in the report.
    pub async fn session_verify(
        &self,
        by: &Caller,
        id: SessionId,
    ) -> Result<VerifyReport, EngineError> {
        self.reads(by, Role::Viewer, id).await?;
        self.find_session(id).await?;
        let mut replayer = Replayer::default();
        let mut toolset = None;
        let mut after = 0;
        let redact = |value: &mut Value| self.cortex.store.redact_record(value);
        let mut report = VerifyReport { session: id, events: 0, decided: 0, divergence: None };
        loop {
            let page = self.page(id, after).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            if toolset.is_none() {
                toolset = self.cortex.toolset_of(&page[0]).await?;
            }
            let find = |_: &str| toolset.clone();
            for event in &page {
                let LogEvent { seq, kind, ts, payload, .. } = event;
                let result = replayer.event(*seq, kind, *ts, payload, Some(&redact), &find);
                (report.events, report.decided) = (replayer.events, replayer.decided);
                if let Err(err) = result {
                    report.divergence = Some(divergence(err));
                    return Ok(report);
                }
            }
            // A long log must not hold up the other tasks of this thread.
            tokio::task::yield_now().await;
        }
        if let Err(err) = replayer.finish(after) {
            report.divergence = Some(divergence(err));
        }
        Ok(report)
    }

    async fn page(&self, id: SessionId, after: u64) -> Result<Vec<LogEvent>, EngineError> {
        let stream = Some(StreamId::Session(id));
        Ok(self.cortex.store.events(EventQuery { stream, after, kinds: &[], limit: PAGE }).await?)
    }

    /// Starts a new session that repeats `id` up to step `at` from the log, and continues on its
    /// own from there. Its environment begins with the files of that step; files in a workspace
    /// without an environment are not restored.
    ///
    /// A step is decided together with the others of its model turn: the fork begins with the
    /// decision that made step `at`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] when there is no such step, or an override means nothing.
    pub async fn session_fork(
        &self,
        by: &Caller,
        id: SessionId,
        fork: ForkDraft,
    ) -> Result<SessionRow, EngineError> {
        by.require(Role::Runs)?;
        self.require_host_of(by, id).await?;
        let source = self.find_session(id).await?;
        if fork.at > source.steps {
            let message = match source.steps {
                0 => "the run has no steps, so it can only be forked at its beginning: at 0"
                    .to_owned(),
                1 => "the run has 1 step: give 0, its beginning, or 1, after that step".to_owned(),
                n => {
                    format!("the run has {n} steps: give 0, its beginning, to {n}, after the last")
                }
            };
            return Err(EngineError::invalid("at", message));
        }
        for (field, value) in [("model", &fork.model), ("prompt", &fork.prompt)] {
            if value.as_ref().is_some_and(|text| text.trim().is_empty()) {
                return Err(EngineError::invalid(
                    field,
                    format!("{field} must be a non-empty string"),
                ));
            }
        }
        if let Some(name) = &fork.name {
            name::check(name).map_err(|why| EngineError::invalid("name", format!("name {why}")))?;
            self.no_secret("name", name)?;
        }
        if let Some(prompt) = &fork.prompt {
            self.as_said("prompt", "the prompt", prompt)?;
        }
        let mut files = None;
        if source.has_worktree() {
            // How many steps it repeats says with which files it begins, and those stand in its first
            // event.
            let steps = self.repeated(by, id, fork.clone(), None).await?.steps();
            let saved = self.files_before(&source, steps).await?;
            files = Some(Files { step: steps, saved });
        }
        let named = fork.name.clone();
        let repeat = self.repeated(by, id, fork, files).await?;
        let (session, mut commit) = repeat.finish()?;
        let colony = session.row().colony;
        commit.guards.extend(named.map(|name| Guard::NameFree { colony, name }));
        self.cortex.admit(session.row(), &mut commit)?;
        // The name may be taken.
        let made = self.cortex.store.commit(commit).await;
        made.map_err(|err| self.cortex.explained(colony, err.into()))?;
        if session.waiting().is_some() {
            self.cortex.inbox_moved();
        }
        count(&self.cortex.counters.created);
        let row = session.row().clone();
        if row.status == SessionStatus::Queued {
            let agent_bound = session.agent().limits.max_concurrent;
            let ticket =
                Ticket { session: row.id, colony: row.colony, agent: row.agent, agent_bound };
            self.cortex.enqueue(ticket, Some(session));
        }
        Ok(row)
    }

    /// The repeated part of a fork.
    async fn repeated(
        &self,
        by: &Caller,
        id: SessionId,
        fork: ForkDraft,
        files: Option<Files>,
    ) -> Result<Repeat, EngineError> {
        let now = self.cortex.clock.now();
        let new = SessionId::mint(&*self.cortex.ids);
        let mut repeat = Repeat::new(id, fork, new, by, now, self.cortex.gate.is_some());
        repeat.files = files;
        repeat.reach = self.reach(by, &self.find_session(id).await?.workspace, true).await?;
        let mut after = 0;
        'log: loop {
            let page = self.page(id, after).await?;
            let Some(last) = page.last() else { break };
            after = last.seq;
            if repeat.toolset.is_none() {
                repeat.toolset = self.cortex.toolset_of(&page[0]).await?;
            }
            for event in &page {
                if !repeat.take(event)? {
                    break 'log;
                }
            }
        }
        Ok(repeat)
    }

    /// Lays two sessions side by side, step by step.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] when one has more than 10,000 steps.
    pub async fn session_diff(
        &self,
        by: &Caller,
        a: SessionId,
        b: SessionId,
    ) -> Result<DiffReport, EngineError> {
        by.require(Role::Viewer)?;
        let (row_a, row_b) = (self.find_session(a).await?, self.find_session(b).await?);
        if row_a.steps.max(row_b.steps) > DIFF_STEPS {
            let message = format!("a run of more than {DIFF_STEPS} steps cannot be compared");
            return Err(EngineError::invalid("", message));
        }
        let (steps_a, steps_b) = (self.all_steps(a).await?, self.all_steps(b).await?);
        let longest = steps_a.len().max(steps_b.len());
        let (mut steps_a, mut steps_b) = (steps_a.into_iter(), steps_b.into_iter());
        let rows: Vec<DiffRow> = (0..longest)
            .map(|idx| {
                let (a, b) = (steps_a.next(), steps_b.next());
                let same = matches!((&a, &b), (Some(a), Some(b)) if same_step(a, b));
                DiffRow { idx: u32::try_from(idx).unwrap_or(u32::MAX), a, b, same }
            })
            .collect();
        let common = rows.iter().take_while(|row| row.same).count();
        let common = u32::try_from(common).unwrap_or(u32::MAX);
        Ok(DiffReport { a: row_a, b: row_b, common, rows })
    }

    async fn all_steps(&self, id: SessionId) -> Result<Vec<StepRow>, EngineError> {
        let mut steps: Vec<StepRow> = Vec::new();
        loop {
            let after = steps.last().map(|step| step.idx);
            let page = self.cortex.store.step_list(id, after, 1000).await?;
            if page.is_empty() {
                return Ok(steps);
            }
            steps.extend(page);
        }
    }
}

/// The files that a fork's room begins with.
struct Files {
    /// The step before which they were so.
    step: u32,
    /// `None`: they were not saved, so it begins as its source began.
    saved: Option<RoomSnapshot>,
}

/// A fork being made: the source's inputs, fed to a session of another name.
struct Repeat {
    source: SessionId,
    fork: ForkDraft,
    id: SessionId,
    by: String,
    now: Timestamp,
    /// Whether its own part is judged.
    gated: bool,
    files: Option<Files>,
    /// The repositories that its project may use, by the rights of the forking caller.
    reach: RoomReach,
    toolset: Option<Arc<Toolset>>,
    session: Option<Session>,
    /// The status before its current end, as long as it is not known to have continued.
    before_end: Option<Box<Session>>,
    /// Events up to there.
    kept: usize,
    events: Vec<NewEvent>,
    steps: std::collections::BTreeMap<u32, StepRow>,
}

impl Repeat {
    fn new(
        source: SessionId,
        fork: ForkDraft,
        id: SessionId,
        by: &Caller,
        now: Timestamp,
        gated: bool,
    ) -> Self {
        let by = by.name.clone();
        let (toolset, session) = (None, None);
        let (events, steps) = (Vec::new(), std::collections::BTreeMap::new());
        let files = None;
        Self {
            source,
            fork,
            id,
            by,
            now,
            gated,
            files,
            reach: RoomReach::default(),
            toolset,
            session,
            before_end: None,
            kept: 0,
            events,
            steps,
        }
    }

    /// Takes the source's next event; false when the fork's point is reached.
    fn take(&mut self, event: &LogEvent) -> Result<bool, EngineError> {
        let recorded = Recorded::decode(&event.kind, &event.payload)
            .map_err(|err| unreadable(self.source, &err.to_string()))?;
        match recorded {
            Recorded::Queued(spec) => self.begin(*spec)?,
            // The point where the source itself left its own source: not this fork's.
            // And what the source's commands ran in is no fact about the fork's.
            Recorded::Input(Input::Forked)
            | Recorded::Decision
            | Recorded::Attested(_)
            | Recorded::RoomAttested(_)
            | Recorded::RoomDone(_)
            | Recorded::RoomChanges(_)
            | Recorded::Observation => {}
            Recorded::Input(input) => return self.input(input),
        }
        Ok(true)
    }

    fn begin(&mut self, spec: Spec) -> Result<(), EngineError> {
        let Some(toolset) = self.toolset.clone() else {
            return Err(unreadable(self.source, "its tool definitions are not stored"));
        };
        if spec.agent.command.is_some() {
            let message = "a run of a command cannot be forked: nothing repeats what it did";
            return Err(EngineError::conflict(message));
        }
        let mut agent = spec.agent;
        if let Some(old) = &spec.fork {
            // A fork of a fork repeats what its source did as the source was in the end.
            let agent = Arc::make_mut(&mut agent);
            if let Some(model) = &old.model {
                agent.model.clone_from(model);
            }
            if let Some(prompt) = &old.prompt {
                agent.role.clone_from(prompt);
            }
        }
        let rules = overmind_core::agent::PolicyKind::Deterministic;
        let becomes = self.fork.model.as_deref().unwrap_or(&agent.model);
        if self.fork.prompt.is_some() && agent.policy.resolve(becomes) == rules {
            let message = "a deterministic agent follows its task, not a prompt";
            return Err(EngineError::invalid("prompt", message));
        }
        let fork = ForkOf {
            from: self.source,
            at: self.fork.at,
            model: self.fork.model.clone(),
            prompt: self.fork.prompt.clone(),
            gated: self.gated,
        };
        let mut room = spec.room;
        if let (Some(room), Some(Files { saved: Some(saved), .. })) = (&mut room, &self.files) {
            // It contains the files that were carried along.
            (room.base, room.carry_changes) = (Some(saved.commit.clone()), false);
        }
        if let Some(room) = &mut room
            && self.reach != RoomReach::Any
        {
            room.reach.clone_from(&self.reach);
        }
        let spec = Spec {
            room,
            run_id: self.id,
            created_by: self.by.clone(),
            agent,
            fork: Some(fork),
            name: self.fork.name.clone().unwrap_or_else(|| name::generate(self.id, 0)),
            // The caller who started the source did not request this one.
            parent: None,
            trace: None,
            ..spec
        };
        let payload = serde_json::to_value(&spec).expect("a spec is plain data");
        self.push("run.queued", payload);
        if let Some(Files { step, saved }) = self.files.take() {
            let payload = json!({
                "run_id": self.id, "from": self.source, "step": step, "snapshot": saved,
            });
            self.push(ROOM_FORKED, payload);
        }
        self.session = Some(Session::begin(spec, toolset, self.now));
        Ok(())
    }

    fn input(&mut self, input: Input) -> Result<bool, EngineError> {
        let Some(session) = self.session.take() else {
            return Err(unreadable(self.source, "it does not begin with `run.queued`"));
        };
        let input = session.adopt(input);
        if session.accepts(&input).is_err() {
            self.session = Some(session);
            return Ok(true);
        }
        let record = session.record(&input);
        let (next, step) = session.clone().step(&input, self.now);
        if next.row().steps > self.fork.at {
            self.session = Some(session);
            return Ok(false);
        }
        // An ended session cannot continue without a further message; neither can a session whose
        // outcome is decided and whose environment is still being released.
        match next.status().is_terminal() || next.is_closing() {
            false => self.before_end = None,
            true if self.before_end.is_none() => {
                (self.before_end, self.kept) = (Some(Box::new(session)), self.events.len());
            }
            true => {}
        }
        self.push(record.0, record.1);
        for decision in step.events {
            self.push(decision.kind, decision.payload);
        }
        for row in step.steps {
            self.steps.insert(row.idx, row);
        }
        if self.events.len() > FORK_EVENTS {
            let message = format!("a fork repeats at most {FORK_EVENTS} events; fork earlier");
            return Err(EngineError::invalid("at", message));
        }
        self.session = Some(next);
        Ok(true)
    }

    fn push(&mut self, kind: &'static str, payload: Value) {
        let stream = StreamId::Session(self.id);
        self.events.push(NewEvent { stream, kind, ts: self.now, payload });
    }

    /// How many steps it repeats.
    fn steps(&self) -> u32 {
        let open = self.before_end.as_deref().or(self.session.as_ref());
        open.map_or(0, |session| session.row().steps)
    }

    fn finish(mut self) -> Result<(Session, Commit), EngineError> {
        let Some(mut session) = self.session.take() else {
            return Err(unreadable(self.source, "its log is empty"));
        };
        if let Some(open) = self.before_end.take() {
            session = *open;
            self.events.truncate(self.kept);
            self.steps.retain(|idx, _| *idx < session.row().steps);
        }
        let (kind, payload) = session.record(&Input::Forked);
        self.push(kind, payload);
        let (session, step) = session.step(&Input::Forked, self.now);
        for decision in step.events {
            self.push(decision.kind, decision.payload);
        }
        let mut changes = vec![Change::SessionInsert(Box::new(session.row().clone()))];
        changes.extend(self.steps.into_values().map(|step| Change::StepPut(Box::new(step))));
        // A fork at a question waits for its own answer.
        changes.extend(session.inbox_item().map(|item| Change::InboxPut(Box::new(item))));
        Ok((session, Commit { guards: Vec::new(), events: self.events, changes }))
    }
}

fn unreadable(id: SessionId, why: &str) -> EngineError {
    EngineError::conflict(format!("run {id} cannot be repeated: {why}"))
}

fn divergence(err: ReplayError) -> Divergence {
    match err {
        ReplayError::Diverged { seq, recorded, decided } => Divergence { seq, recorded, decided },
        ReplayError::Decode { seq, .. }
        | ReplayError::NoBeginning { seq, .. }
        | ReplayError::Refused { seq, .. } => {
            Divergence { seq, recorded: err.to_string(), decided: String::new() }
        }
        ReplayError::NoToolset { .. } => {
            Divergence { seq: 1, recorded: err.to_string(), decided: String::new() }
        }
    }
}

/// Equal actions and results; ids, times and latencies are ignored.
fn same_step(a: &StepRow, b: &StepRow) -> bool {
    let bare = |value: &Value| {
        let mut value = value.clone();
        if let Some(map) = value.as_object_mut() {
            for key in ["latency_ms", "run_id", "agent_id"] {
                map.remove(key);
            }
        }
        value
    };
    a.kind == b.kind
        && bare(&a.input) == bare(&b.input)
        && a.output.as_ref().map(bare) == b.output.as_ref().map(bare)
        && a.error == b.error
}
