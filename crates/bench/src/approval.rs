//! The delay between a person's approval and the continuation of a session.

use std::path::Path;
use std::time::{Duration, Instant};

use overmind_api::{InboxAnswer, InboxDecision, TimelineData};
use overmind_cli::exit::Failure;
use overmind_client::{Client, ReplayItem, ReplayOptions, Target};
use overmind_core::inbox::InboxState;
use overmind_core::row::SessionStatus;
use overmind_core::store::Page;
use overmind_engine::request::{AgentDraft, InboxQuery, SessionDraft};
use overmind_engine::{Caller, Engine};
use overmind_node::config::{DataDir, Env};

use super::floors::Floors;
use super::{Figure, Goal, Setting, ms};

/// Approvals, one after the other; half of them warm up.
const APPROVALS: u32 = 40;

/// Over the unix socket, like a person's command: from sending the approval to reading the start of
/// the approved step from the run's stream.
pub(super) async fn measure(
    setting: &Setting,
    floors: &Floors,
    dir: &Path,
    engine: &Engine,
) -> Result<Figure, Failure> {
    let data = DataDir::locate(Some(&dir.join("data")), &Env::default(), dir)?;
    let target: Target = format!("unix:{}", dir.join("data/overmind.sock").display())
        .parse()
        .map_err(|err: overmind_client::TargetError| Failure::failed(err.to_string()))?;
    let token = data.admin_token()?;
    let client = Client::connect(target, Some(token.expose()))?;
    let draft = AgentDraft {
        name: "careful".into(),
        role: "measure".into(),
        model: "deterministic".into(),
        tools_allowed: vec!["read_file".into()],
        approvals: Some(vec!["read_file".into()]),
        ..AgentDraft::default()
    };
    engine.agent_create(&Caller::admin(), draft, None).await?;
    let count = setting.count(APPROVALS).max(10);
    let mut took = Vec::new();
    for n in 0..count {
        let one = one(engine, &client).await?;
        if n >= count / 2 {
            took.push(one);
        }
    }
    took.sort();
    let median = took.get(took.len() / 2).copied().unwrap_or_default();
    let slowest = took.last().copied().unwrap_or_default();
    Ok(Figure::new("approval to resumed session", ms(median), "ms")
        .floor("fsync", ms(floors.fsync))
        .goal(Goal::Most(50.0))
        .note(format!(
            "median of {}, slowest {:.1} ms: from sending the approval over the socket to reading \
             the start of the tool's step from the run's stream; the session had no task and was \
             read back from its log",
            took.len(),
            ms(slowest)
        )))
}

async fn one(engine: &Engine, client: &Client) -> Result<Duration, Failure> {
    let by = Caller::admin();
    let draft = SessionDraft {
        agent: "careful".into(),
        task: "read: f0.txt".into(),
        name: None,
        parent: None,
        command: None,
        sandbox: None,
        room: None,
        step_limit: None,
        workspace: None,
        conversation: None,
        idempotency: None,
        ..SessionDraft::default()
    };
    let run = engine.session_create(&by, draft).await?.value.id;
    let mut watch = engine.session_watch(run);
    let item = loop {
        watch.mark_unchanged();
        let (state, session) = (Some(InboxState::Open), Some(run));
        let query = InboxQuery { state, session, ..InboxQuery::default() };
        let page = Page { limit: 1, after: None };
        if let Some(item) = engine.inbox_list(&by, query, page).await?.pop() {
            break item;
        }
        let status = engine.session_fetch(&by, run).await?.status;
        if status.is_terminal() {
            let text = format!("session {run} is {} and asked nothing", status.as_str());
            return Err(Failure::failed(text));
        }
        // Bounded, for the look may have come between two changes.
        let _ = tokio::time::timeout(Duration::from_millis(20), watch.changed()).await;
    };
    // Existing events are read first, so that the clock measures only new ones.
    let options = ReplayOptions { follow: true, after: None, max_resumes: 0 };
    let mut stream = client.run_replay(&run.to_string(), options).await?;
    while let Some(next) = stream.next().await {
        if let ReplayItem::Entry { entry, .. } = next?
            && let TimelineData::Event(event) = &entry.data
            && event.kind == "approval.requested"
        {
            break;
        }
    }
    let decision = InboxDecision::Approve;
    let answer = InboxAnswer { decision, message: None, reason: None, raise: None };
    let id = item.id.to_string();
    let start = Instant::now();
    let resumed = async {
        while let Some(next) = stream.next().await {
            if let ReplayItem::Entry { entry, .. } = next?
                && let TimelineData::Event(event) = &entry.data
                && event.kind == "step.started"
            {
                return Ok(start.elapsed());
            }
        }
        Err(Failure::failed(format!("session {run} never went on")))
    };
    let answered = async { client.inbox_answer(&id, &answer).await.map_err(Failure::from) };
    let (took, _) = tokio::try_join!(resumed, answered)?;
    loop {
        watch.mark_unchanged();
        let status = engine.session_fetch(&by, run).await?.status;
        if status.is_terminal() {
            break;
        }
        if status != SessionStatus::Running {
            let text = format!("session {run} is {} after its approval", status.as_str());
            return Err(Failure::failed(text));
        }
        let _ = tokio::time::timeout(Duration::from_millis(20), watch.changed()).await;
    }
    Ok(took)
}
