//! The engine with everything behind it, in this process: one step alone.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use overmind_core::agent::AgentLimits;
use overmind_core::ids::SessionId;
use overmind_core::row::{SessionRow, SessionStatus};
use overmind_engine::request::{AgentDraft, SessionDraft};
use overmind_engine::{Caller, Engine, EngineError};
use overmind_node::app::App;
use overmind_node::config::settings;
use overmind_node::config::{Config, Env, Flags};

use super::floors::Floors;
use super::{Figure, Goal, Setting, ms};
use crate::exit::Failure;

/// A second of another's work on the machine moves one round by a third.
pub const ROUNDS: usize = 3;

/// A server on a separate directory, which is reachable only through its socket.
///
/// # Errors
///
/// When it does not start.
pub async fn start_app(dir: &Path) -> Result<App, Failure> {
    start_app_with(dir, Vec::new()).await
}

/// The same with settings: their key, their source and their value.
///
/// # Errors
///
/// When it does not start.
pub async fn start_app_with(
    dir: &Path,
    mut values: Vec<(&'static str, &'static str, String)>,
) -> Result<App, Failure> {
    values.push((settings::LISTEN, "--listen", "none".to_owned()));
    // One for all sessions: left to itself, the server gives each an empty one.
    let work = work(dir);
    std::fs::create_dir_all(&work)
        .map_err(|err| Failure::failed(format!("making {}: {err}", work.display())))?;
    values.push((settings::WORKSPACE, "--workspace", work.to_string_lossy().into_owned()));
    let flags = Flags { data: Some(dir.join("data")), values, ..Flags::default() };
    let config = Config::load(&flags, &Env::default(), dir)?;
    Ok(Box::pin(App::start(config)).await?)
}

/// The directory in which sessions work: outside of the data directory, which no session may see.
fn work(dir: &Path) -> PathBuf {
    dir.join("work")
}

impl From<EngineError> for Failure {
    fn from(err: EngineError) -> Self {
        Self::failed(err.to_string())
    }
}

/// One session alone, step after step.
///
/// # Errors
///
/// Returns an error if the measurement fails.
pub async fn measure(setting: &Setting, floors: &Floors) -> Result<Figure, Failure> {
    let dir = setting.place("engine")?;
    let long = setting.count(400);
    let app = start_app(&dir).await?;
    prepared(&dir, long, &[("long", long)])?;
    agent(app.engine(), "long").await?;
    // Warm: the first session pays for caches and threads.
    many(app.engine(), "long", 1).await?;
    let (figure, _) = alone(app.engine(), "long", floors).await?;
    let _ = app.stop(std::future::pending()).await;
    Ok(figure)
}

/// The same with an app that runs; and the session that was in the middle.
///
/// # Errors
///
/// See [`measure`].
pub async fn alone(
    engine: &Engine,
    name: &str,
    floors: &Floors,
) -> Result<(Figure, SessionRow), Failure> {
    let mut alone = Vec::new();
    for _ in 0..ROUNDS {
        let before = commits(engine);
        let start = Instant::now();
        let row = one(engine, name).await?;
        let took = start.elapsed();
        let dependent = f64::from((row.steps + row.model_calls).max(1));
        alone.push((ms(took) / dependent, (commits(engine) - before).max(1.0) / dependent, row));
    }
    alone.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (step, commits, alone) = alone.swap_remove(ROUNDS / 2);
    let figure = Figure::new("single step", step, "ms")
        .floor("fsync", ms(floors.fsync))
        .goal(Goal::OverFloor(1.0))
        .note(format!(
            "one session alone; {} model calls and {} other steps, each of which waits until \
             the one before it is durable; {commits:.2} commits a step, some of them grouped; \
             the middle of {ROUNDS} rounds",
            alone.model_calls, alone.steps,
        ));
    Ok((figure, alone))
}

/// Commits that sessions have made so far.
fn commits(engine: &Engine) -> f64 {
    let all = engine.metrics();
    let found = all.iter().find(|(name, _, _)| *name == "session_commits");
    found.map_or(0.0, |(_, _, count)| f64::from(u32::try_from(*count).unwrap_or(u32::MAX)))
}

/// Writes the files that agents read, and cassettes of so many turns.
///
/// # Errors
///
/// When they cannot be written.
pub fn prepared(dir: &Path, files: u32, cassettes: &[(&str, u32)]) -> Result<(), Failure> {
    let failed = |err| Failure::failed(format!("writing in {}: {err}", dir.display()));
    for n in 0..files {
        std::fs::write(work(dir).join(format!("f{n}.txt")), "some text\n").map_err(failed)?;
    }
    let place = dir.join("data/cassettes");
    std::fs::create_dir_all(&place).map_err(failed)?;
    for (name, turns) in cassettes {
        let text = cassette(name, *turns);
        std::fs::write(place.join(format!("{name}.json")), text).map_err(failed)?;
    }
    Ok(())
}

/// A cassette that reads another file in each turn: doing the same again would be a stall.
fn cassette(name: &str, turns: u32) -> String {
    let mut text = format!("{{\"name\":\"{name}\",\"turns\":[");
    for n in 0..turns {
        let _ = write!(
            text,
            "{{\"calls\":[{{\"name\":\"read_file\",\"args\":{{\"path\":\"f{n}.txt\"}}}}]}},"
        );
    }
    text + "{\"calls\":[{\"name\":\"final_answer\",\"args\":{\"message\":\"done\"}}]}]}"
}

/// Creates an agent that speaks the cassette of its name.
///
/// # Errors
///
/// The messages of the engine.
pub async fn agent(engine: &Engine, name: &str) -> Result<(), EngineError> {
    let draft = AgentDraft {
        name: name.into(),
        role: "measure".into(),
        model: format!("scripted:{name}"),
        tools_allowed: vec!["read_file".into()],
        limits: Some(AgentLimits { max_steps: 0, max_seconds: 0, ..AgentLimits::default() }),
        ..AgentDraft::default()
    };
    engine.agent_create(&Caller::admin(), draft, None).await?;
    Ok(())
}

/// Runs sessions side by side; their steps in all, and how long it took.
///
/// # Errors
///
/// When one does not succeed.
pub async fn many(engine: &Engine, agent: &str, count: u32) -> Result<(u32, Duration), Failure> {
    let start = Instant::now();
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(begin(engine, agent).await?);
    }
    let mut steps = 0;
    for id in ids {
        steps += end(engine, id).await?.steps;
    }
    Ok((steps, start.elapsed()))
}

async fn one(engine: &Engine, agent: &str) -> Result<SessionRow, Failure> {
    let id = begin(engine, agent).await?;
    end(engine, id).await
}

async fn begin(engine: &Engine, agent: &str) -> Result<SessionId, EngineError> {
    let draft = SessionDraft {
        agent: agent.into(),
        task: "measure".into(),
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
    Ok(engine.session_create(&Caller::admin(), draft).await?.value.id)
}

/// Waits for a session's end; one that did not succeed is no measurement.
async fn end(engine: &Engine, id: SessionId) -> Result<SessionRow, Failure> {
    let mut watch = engine.session_watch(id);
    loop {
        watch.mark_unchanged();
        let row = engine.session_fetch(&Caller::admin(), id).await?;
        match row.status {
            SessionStatus::Succeeded => return Ok(row),
            SessionStatus::Queued | SessionStatus::Running => {}
            SessionStatus::AwaitingInput
            | SessionStatus::AwaitingApproval
            | SessionStatus::Idle
            | SessionStatus::Failed
            | SessionStatus::Canceled => {
                return Err(Failure::failed(format!(
                    "session {id} is {}: {:?}",
                    row.status.as_str(),
                    row.error
                )));
            }
        }
        // Checked only occasionally, because a check at each event would be most of the load.
        let _ = tokio::time::timeout(Duration::from_millis(20), std::future::pending::<()>()).await;
        if watch.has_changed().is_err() {
            continue;
        }
    }
}
