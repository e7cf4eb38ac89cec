//! All evidence of the checker: log and rows as the store's port returns them, and the outside
//! world as the harness saw it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use overmind_core::ids::{ColonyId, SessionId};
use overmind_core::inbox::{InboxFilter, InboxItem};
use overmind_core::memory::MemoryItem;
use overmind_core::replay::Replayer;
use overmind_core::row::{SessionRow, SessionStatus, StepRow};
use overmind_core::session::Toolset;
use overmind_core::store::{AuditReport, EventQuery, LogEvent, MemoryScope, Page, Store, StreamId};
use overmind_core::time::Timestamp;
use overmind_store::{Options, Sqlite};
use serde_json::Value;

use super::agents::MARKS;
use super::daemon::Places;
use super::ledger::Ledger;

/// The directory with the bytes of artifacts, one subdirectory per run.
const ARTIFACTS: &str = "overmind.db.artifacts";
/// The other files that a data directory may contain; everything else is litter.
const KNOWN_FILES: &[&str] = &[
    "admin.token",
    "checkpoint.key",
    "keyed.json",
    "overmind.db",
    ARTIFACTS,
    "overmind.db-shm",
    "overmind.db-wal",
    "overmind.db.lock",
    "overmind.db.witness",
    "overmind.pid",
    // Empty: no run of the test is a command.
    "processes",
    "token.key",
];
/// And files that only a killed daemon may leave in it.
const OF_THE_KILLED: &[&str] =
    &["agents.sock", "overmind.sock", "server.json", "checkpoint.key.new"];

/// One event, its payload read.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) log: LogEvent,
    pub(crate) value: Value,
}

impl Event {
    pub(crate) fn kind(&self) -> &str {
        &self.log.kind
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.value.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.value.get(key).and_then(Value::as_u64)
    }
}

/// One session: its row, its steps, its log, and the state that a replay of the log reaches.
#[derive(Clone, Debug)]
pub(crate) struct Story {
    pub(crate) row: SessionRow,
    pub(crate) steps: Vec<StepRow>,
    pub(crate) events: Vec<Event>,
    pub(crate) inbox: Vec<InboxItem>,
    pub(crate) replayed: Result<(SessionRow, Vec<StepRow>), String>,
}

impl Story {
    /// Its original spec: the first event's payload.
    pub(crate) fn spec(&self) -> &Value {
        self.events.first().map_or(&Value::Null, |event| &event.value)
    }

    pub(crate) fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Event> {
        self.events.iter().filter(move |event| event.kind() == kind)
    }

    /// The position at which its own part begins, if it is a fork: earlier events were repeated.
    pub(crate) fn own_from(&self) -> u64 {
        self.of_kind("run.forked").next().map_or(0, |event| event.log.seq)
    }

    /// Whether a step had its end before the fork: it was not done, only repeated.
    pub(crate) fn is_repeated(&self, step: &StepRow) -> bool {
        let (own, id) = (self.own_from(), step.id.to_string());
        self.of_kind("step.finished").any(|end| end.log.seq < own && end.text("step_id") == id)
    }

    /// The tool calls that the session itself requested.
    pub(crate) fn tool_events(&self) -> impl Iterator<Item = &Event> {
        self.events
            .iter()
            .filter(|event| matches!(event.kind(), "tool.called" | "tool.denied"))
            .filter(|event| event.number("effect").is_some())
    }
}

/// The world outside of the store.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    /// All runs should have ended.
    pub(crate) settled: bool,
    pub(crate) ledger: Ledger,
    /// The number of occurrences of each mark.
    pub(crate) marks: BTreeMap<String, u32>,
    /// Each run's workspace: path beneath it → content.
    pub(crate) files: BTreeMap<usize, BTreeMap<PathBuf, String>>,
    /// The messages of daemons about themselves that no daemon should have to write.
    pub(crate) complaints: Vec<String>,
    pub(crate) processes: Vec<String>,
    /// Files in the data directory that do not belong there.
    pub(crate) litter: Vec<String>,
    /// Locks that are still held.
    pub(crate) locks: Vec<String>,
}

impl Outside {
    pub(crate) fn look(
        places: &Places,
        ledger: Ledger,
        processes: Vec<String>,
        settled: bool,
    ) -> Self {
        let mut files = BTreeMap::new();
        let mut marks: BTreeMap<String, u32> = BTreeMap::new();
        for plan in &ledger.plans {
            let mut found = BTreeMap::new();
            let root = places.workspace(plan.number);
            gather(&root, &root, &mut found);
            for line in found.get(Path::new(MARKS)).map_or("", String::as_str).lines() {
                *marks.entry(line.to_owned()).or_default() += 1;
            }
            files.insert(plan.number, found);
        }
        let log = std::fs::read_to_string(places.log()).unwrap_or_default();
        let bad = |line: &&str| line.contains("\"level\":\"ERROR\"") || line.contains("panicked");
        let (litter, locks) = data_directory(&places.data(), settled);
        let complaints = log.lines().filter(bad).map(str::to_owned).collect();
        Self { settled, ledger, marks, files, complaints, processes, litter, locks }
    }
}

fn gather(root: &Path, dir: &Path, found: &mut BTreeMap<PathBuf, String>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            gather(root, &path, found);
        } else {
            let text = std::fs::read(&path).expect("a file of a workspace can be read");
            let inside = path.strip_prefix(root).expect("it was found beneath it");
            found.insert(inside.to_owned(), String::from_utf8_lossy(&text).into_owned());
        }
    }
}

/// Unexpected files in the data directory; locks that are still held.
pub(crate) fn data_directory(data: &Path, settled: bool) -> (Vec<String>, Vec<String>) {
    let (mut litter, mut locks) = (Vec::new(), Vec::new());
    let entries = std::fs::read_dir(data).into_iter().flatten();
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let allowed = KNOWN_FILES.contains(&name.as_str())
            || (!settled && OF_THE_KILLED.contains(&name.as_str()));
        // A killed daemon may leave drafts; the next start removes them.
        if !allowed && settled {
            litter.push(name.clone());
        }
        if name == ARTIFACTS {
            if settled {
                litter.extend(parts(&entry.path()));
            }
            continue;
        }
        let inside = std::fs::read_dir(entry.path()).into_iter().flatten();
        let inside = inside.filter_map(Result::ok);
        let inside = inside.map(|inside| inside.file_name().to_string_lossy().into_owned());
        litter.extend(inside.into_iter().map(|inside| format!("{name}/{inside}")));
        let locked = |path: &Path| {
            let file = OpenOptions::new().read(true).write(true).open(path);
            file.is_ok_and(|file: File| file.try_lock().is_err())
        };
        if matches!(name.as_str(), "overmind.pid" | "overmind.db.lock") && locked(&entry.path()) {
            locks.push(name);
        }
    }
    (litter, locks)
}

/// Files of artifacts that are not whole.
fn parts(dir: &Path) -> Vec<String> {
    let below = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    below(dir)
        .flat_map(|run| below(&run.path()).collect::<Vec<_>>())
        .map(|file| file.path().display().to_string())
        .filter(|path| path.ends_with(".part"))
        .collect()
}

/// All that there is to check.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub(crate) outside: Outside,
    pub(crate) stories: BTreeMap<SessionId, Story>,
    /// Global numbers of all events, in the order of the log.
    pub(crate) globals: Vec<u64>,
    pub(crate) memory: Vec<MemoryItem>,
    pub(crate) agents: Vec<String>,
    pub(crate) audit: Result<AuditReport, String>,
    /// The copy that was read. Manipulated copies are made from it.
    pub(crate) copy: Rc<tempfile::TempDir>,
}

impl Evidence {
    /// The same log and rows beside another world.
    pub(crate) fn with(&self, outside: Outside) -> Self {
        Self {
            outside,
            stories: self.stories.clone(),
            globals: self.globals.clone(),
            memory: self.memory.clone(),
            agents: self.agents.clone(),
            audit: self.audit.clone(),
            copy: Rc::clone(&self.copy),
        }
    }

    /// Reads a copy of a store.
    pub(crate) async fn read(copy: tempfile::TempDir, outside: Outside) -> Self {
        let store = Sqlite::open(Options::new(copy.path().join("overmind.db")))
            .unwrap_or_else(|err| panic!("the copied store does not open: {err}"));
        let audit = store.audit().await.map_err(|err| err.to_string());
        let mut events: BTreeMap<SessionId, Vec<Event>> = BTreeMap::new();
        let mut globals = Vec::new();
        loop {
            let after = globals.last().copied().unwrap_or(0);
            let query = EventQuery { stream: None, after, kinds: &[], limit: 5000 };
            let page = store.events(query).await.expect("events are readable");
            if page.is_empty() {
                break;
            }
            for log in page {
                globals.push(log.global);
                if let StreamId::Session(session) = log.stream {
                    let value = log.value();
                    events.entry(session).or_default().push(Event { log, value });
                }
            }
        }
        let mut items: Vec<InboxItem> = Vec::new();
        loop {
            let page = Page { limit: 500, after: items.last().map(InboxItem::cursor) };
            let page = store.inbox_list(InboxFilter::default(), page).await;
            let page = page.expect("the inbox is readable");
            if page.is_empty() {
                break;
            }
            items.extend(page);
        }
        let mut inbox: BTreeMap<SessionId, Vec<InboxItem>> = BTreeMap::new();
        for item in items {
            if let Some(session) = item.session {
                inbox.entry(session).or_default().push(item);
            }
        }
        let mut stories = BTreeMap::new();
        for status in SessionStatus::ALL {
            let mut after = None;
            loop {
                let page = store.session_scan(status, after, 500).await.expect("rows are readable");
                let Some(last) = page.last() else { break };
                after = Some(last.id);
                for row in page {
                    let steps = store.step_list(row.id, None, 1000).await.expect("readable steps");
                    let events = events.remove(&row.id).unwrap_or_default();
                    let replayed = replay(&store, &events).await;
                    let inbox = inbox.remove(&row.id).unwrap_or_default();
                    stories.insert(row.id, Story { row, steps, events, inbox, replayed });
                }
            }
        }
        let mut memory: Vec<MemoryItem> = Vec::new();
        loop {
            let page = Page { limit: 500, after: memory.last().map(|item| item.id) };
            let scope = MemoryScope::new(ColonyId::DEFAULT, None, Timestamp::default());
            let page = store.memory_list(MemoryScope { history: true, ..scope }, page).await;
            let page = page.expect("memory is readable");
            if page.is_empty() {
                break;
            }
            memory.extend(page);
        }
        let agents = store.agent_list(Page { limit: 1000, after: None }).await;
        let agents = agents.expect("agents are readable");
        let agents = agents.into_iter().map(|agent| agent.spec.name).collect();
        store.close().await.expect("the copied store closes");
        Self { outside, stories, globals, memory, agents, audit, copy: Rc::new(copy) }
    }
}

/// Decides the session again from its log, comparing each decision.
async fn replay(store: &Sqlite, events: &[Event]) -> Result<(SessionRow, Vec<StepRow>), String> {
    let hash = events.first().map_or("", |event| event.text("toolset"));
    let setting = store.setting_fetch(format!("toolset/{hash}")).await;
    let toolset = setting.map_err(|err| err.to_string())?;
    let toolset = toolset.as_ref().and_then(Toolset::from_value).map(Arc::new);
    let find = |_: &str| toolset.clone();
    let redact = |value: &mut Value| store.redact(value);
    let (mut replayer, mut steps) = (Replayer::default(), BTreeMap::new());
    let mut last = 0;
    for Event { log, .. } in events {
        last = log.seq;
        replayer
            .event(log.seq, &log.kind, log.ts, &log.payload, Some(&redact), &find)
            .map_err(|err| err.to_string())?;
        for step in replayer.last_steps() {
            steps.insert(step.idx, step.clone());
        }
    }
    let session = replayer.finish(last).map_err(|err| err.to_string())?;
    let session = session.ok_or("its log is empty")?;
    Ok((session.row().clone(), steps.into_values().collect()))
}
