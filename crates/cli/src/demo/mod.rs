//! `overmind demo`: an agent fixes a failing test; its server is killed in the middle with SIGKILL;
//! a new server continues from the last durable step; the log proves it.
//!
//! Nothing is acted but the model's words, and not even those with a real model: the repository,
//! its test, the server, the sandbox, the kill, the log and the proofs are real. It leaves
//! nothing behind unless asked to.

pub mod daemon;
mod project;
mod stage;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use overmind_api::{
    AgentCreate, AgentLimits, OnUnknown, RoomAction, RoomDone, Run, RunCreate, RunStatus,
};
use overmind_api::{SandboxLevel, StepType, Timeline, TimelineData};
use overmind_core::sandbox::{self as port, SandboxRequest};
use overmind_node::config::env;

use crate::args_more::{DemoArgs, spelled};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{clean, when};
use crate::remote::{Item, Remote};
use crate::session;
use crate::story::{self, Story};
use daemon::{Daemon, Setup};
use project::{Project, SCRIPT, TEST};
use stage::Stage;

const TASK: &str = "A test of this project fails. Find out why, fix the code (not the test), and \
                    make sure that all tests pass.";
const ROLE: &str = "You fix failing tests. Look before you touch, run the tests with \
                    `sh test.sh`, change as little as possible, run them again, and end with \
                    final_answer: what was wrong and what you changed.";
const TOOLS: &[&str] = &["list_files", "read_file", "edit_file", "run_shell"];
/// The demo ends without questions: its policy asks nobody. The built-in policy applies below it.
const POLICY: &str = include_str!("policy.toml");
/// The exit code after `^C`, as shells have it.
const INTERRUPTED: i32 = 130;
/// Longest that the agent may take; a real model needs a while.
const PATIENCE: Duration = Duration::from_secs(300);

/// The model of this demo.
#[derive(Clone, Debug)]
struct Mind {
    model: String,
    scripted: bool,
    env: Vec<(&'static str, String)>,
}

/// # Errors
///
/// The error; a demo that did not show all that it promises fails.
pub(crate) async fn run(cx: &Context, args: &DemoArgs) -> Outcome {
    let began = Instant::now();
    let mut stage = Stage::new(&cx.out, args.fast);
    let mind = mind(cx, args);
    let sandbox = port::SandboxLevel::parse(&spelled(args.sandbox))
        .expect("the words of the flag are those of the port");
    let driver = driver(sandbox);
    can_run(&*driver, sandbox).await?;
    if let Some(url) = &args.base_url {
        someone_answers(url)?;
    }

    let home = tempfile::Builder::new()
        .prefix("overmind-demo-")
        .tempdir()
        .map_err(|err| Failure::failed(format!("making a directory for the demo: {err}")))?;
    let place = home.path().to_owned();
    let telling = Box::pin(tell(cx, args, &mut stage, &mind, &*driver, &place));
    let told = tokio::select! {
        biased;
        told = telling => told,
        // The server ends with the demo.
        _ = tokio::signal::ctrl_c() => return Ok(interrupted(cx, home, args.keep)),
    };
    match told {
        Ok(daemon) => {
            stage.scene("That was it").await?;
            stage.good(&format!(
                "A fixed repository, a survived kill, and a log that proves both: {}",
                when::precise(began.elapsed())
            ))?;
            if args.keep {
                let kept = home.keep();
                daemon.leave();
                stage.say("The server still runs. Look around:")?;
                for command in ["ps --all", "logs", "events", "down"] {
                    stage.aside(&format!("overmind --data {}/data {command}", kept.display()))?;
                }
                stage.aside(&format!("git -C {}/slug log --stat", kept.display()))?;
            } else {
                stage.say("The same on a project of yours:")?;
                for command in [
                    "overmind up -d",
                    "overmind init                 # proposes an agent, with a model that a key is set for",
                    "overmind agent create --name coder --model gpt-5.5 \\",
                    "    --tools run_shell,read_file,write_file,edit_file,list_files",
                    "overmind run coder \"fix the failing test\"",
                    "overmind work RUN             # what it did; `overmind done RUN --merge` takes it over",
                ] {
                    stage.aside(command)?;
                }
            }
            Ok(Exit::Done)
        }
        Err(mut failure) => {
            if args.keep {
                let kept = home.keep();
                failure.hint.get_or_insert(format!("everything is kept in {}", kept.display()));
            } else {
                failure
                    .hint
                    .get_or_insert("`overmind demo --keep` keeps the directory and its log".into());
            }
            Err(failure)
        }
    }
}

/// After `^C`: nothing is left, or a message says where it is.
fn interrupted(cx: &Context, home: tempfile::TempDir, keep: bool) -> Exit {
    let place = home.path().to_owned();
    let left = if keep {
        format!("everything is kept in {}", home.keep().display())
    } else {
        match home.close() {
            Ok(()) => "its server and its directory are gone".to_owned(),
            Err(err) => format!("{} stays: {err}", place.display()),
        }
    };
    cx.out.note(&format!("\nstopped; {left}"));
    Exit::of_command(INTERRUPTED)
}

/// The model to use: the one of the flags, otherwise one whose key is set, otherwise the script.
fn mind(cx: &Context, args: &DemoArgs) -> Mind {
    let scripted = |model: &str| Mind { model: model.into(), scripted: true, env: Vec::new() };
    let real = |model: &str| Mind { model: model.into(), scripted: false, env: Vec::new() };
    if let Some(model) = &args.model {
        let mut mind = real(model);
        if let Some(url) = &args.base_url {
            mind.env.push((env::MODEL_BASE_URL, url.clone()));
            if let Some(key) = cx.env.text(env::MODEL_API_KEY) {
                mind.env.push((env::MODEL_API_KEY, key.to_owned()));
            }
        }
        return mind;
    }
    if args.scripted {
        return scripted("scripted:demo");
    }
    // The keys themselves reach the server by the environment that it inherits.
    if cx.env.text(env::OPENAI_API_KEY).is_some() {
        return real("gpt-5-mini");
    }
    if cx.env.text(env::ANTHROPIC_API_KEY).is_some() {
        return real("claude-sonnet-4-5");
    }
    scripted("scripted:demo")
}

fn driver(level: port::SandboxLevel) -> Arc<dyn port::Sandbox> {
    overmind_sandbox::Sandboxes::new(Default::default(), Default::default(), Default::default())
        .get(level)
}

/// Refuses to continue without the requested sandbox; never uses a weaker one silently.
async fn can_run(driver: &dyn port::Sandbox, level: port::SandboxLevel) -> Result<(), Failure> {
    let Err(err) = driver.check().await else { return Ok(()) };
    let mut hint = String::new();
    if let port::SandboxError::Unavailable { remedy, .. } = &err {
        hint = format!("{remedy}; or ");
    }
    let failure =
        Failure::failed(format!("the {} sandbox is not available here: {err}", level.as_str()));
    Err(failure.hint(format!(
        "{hint}`overmind demo --sandbox none` runs the agent's commands without isolation"
    )))
}

/// Checks whether a model server listens: retries would hide a missing one for long.
fn someone_answers(url: &str) -> Result<(), Failure> {
    use std::net::ToSocketAddrs as _;
    let (tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => {
            return Err(Failure::usage(format!("`{url}` does not begin with http:// or https://")));
        }
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let port = if tls { 443 } else { 80 };
    let at = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
    let connect = || -> std::io::Result<()> {
        let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
        for address in at.to_socket_addrs()? {
            match std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
                Ok(_) => return Ok(()),
                Err(err) => last = err,
            }
        }
        Err(last)
    };
    connect().map_err(|err| {
        Failure::failed(format!("nobody answers at {url}: {err}"))
            .hint("start the model server, or give another --base-url")
    })
}

async fn tell(
    cx: &Context,
    args: &DemoArgs,
    stage: &mut Stage<'_>,
    mind: &Mind,
    driver: &dyn port::Sandbox,
    home: &Path,
) -> Result<Daemon, Failure> {
    let disk = |what: &str, err: std::io::Error| Failure::failed(format!("{what}: {err}"));
    stage.scene("A repository with a failing test").await?;
    let path = home.join("slug");
    let project = Project::create(&path).map_err(|err| disk("writing the project", err))?;
    let git = if project.git { "git repository" } else { "directory (there is no git here)" };
    stage.say(&format!("A small {git}: {}", path.display()))?;
    stage.aside(&format!("$ {TEST}"))?;
    let before = run_tests(driver, &path).await?;
    stage.show(&failing_lines(&before.1))?;
    if before.0 {
        return Err(Failure::failed("the tests pass already: the demo has nothing to show"));
    }

    stage.scene("A server for agents").await?;
    let data = home.join("data");
    let setup = prepare(&data, mind, &path, args.fast)?;
    let daemon = Daemon::start(&data, &setup)?;
    stage.say(&format!("overmind up: pid {}, its log in {}", daemon.pid(), data.display()))?;
    let level = match driver.level() {
        port::SandboxLevel::None => "none: commands run as you, without isolation",
        port::SandboxLevel::Namespace => {
            "namespace: own user, mounts, processes and network; no network out, no keys, no home"
        }
        port::SandboxLevel::Docker => "docker: a hardened container without network",
        port::SandboxLevel::Microvm => "microvm: a virtual machine without network",
    };
    stage.say(&format!("sandbox {level}"))?;
    stage.say(
        "policy  built in, and what it would ask about is denied: nobody is here to be asked",
    )?;
    let thinks = if mind.scripted {
        "scripted: a real agent with a model that reads from a script; no key needed".to_owned()
    } else {
        clean::line(&mind.model).into_owned()
    };
    stage.say(&format!("model   {thinks}"))?;

    stage.scene("An agent is given the task").await?;
    let remote = Remote::to_server(&daemon.server, &data)?;
    let run = start_run(&remote, mind, driver.level(), &path).await?;
    stage.say(&format!("“{TASK}”"))?;
    stage.pause(600).await;
    let daemon = follow(cx, args, stage, daemon, &remote, &run, &data, &setup).await?;
    let run = remote.run(&run.id.to_string()).await?;
    succeeded(&run)?;

    stage.scene("What has changed").await?;
    if run.room.as_ref().is_some_and(|room| room.worktree.is_some()) {
        // The agent worked on its own branch: its changes are shown, and then merged.
        let id = run.id.to_string();
        stage.aside(&format!("$ overmind work {}", run.name))?;
        stage.diff(&remote.run_work(&id).await?.diff)?;
        stage.aside(&format!("$ overmind done {} --merge", run.name))?;
        let merge = RoomDone::of(RoomAction::Merge);
        let merged = remote.run_done(&id, &merge).await?;
        stage.say(&clean::line(&merged.decision.said))?;
    } else {
        stage.diff(&project.diff().map_err(|err| disk("comparing the project", err))?)?;
    }
    stage.aside(&format!("$ {TEST}"))?;
    let after = run_tests(driver, &path).await?;
    stage.show(after.1.lines().last().unwrap_or_default())?;
    if !after.0 {
        return Err(Failure::failed("the agent says that it is done, and the tests still fail"));
    }
    stage.good("The test passes; we ran it ourselves, outside the agent.")?;

    stage.scene("What it took").await?;
    stage.say(&bill(&run, mind))?;

    stage.scene("What the log proves").await?;
    let verified = remote.verify(&run.id.to_string()).await?;
    if let Some(difference) = &verified.divergence {
        return Err(Failure::failed(format!("the replay differs at event {}", difference.seq)));
    }
    stage.good(&format!(
        "replay --verify: {} events read, {} decisions made again, each one the same",
        verified.events, verified.decided
    ))?;
    let audit = remote.audit().await?;
    if let Some(finding) = audit.findings.first() {
        return Err(Failure::failed(format!("the audit found: {}", finding.message)));
    }
    stage.good(&format!(
        "audit verify: {} events in {} chains, no byte changed",
        audit.events, audit.streams
    ))?;
    Ok(daemon)
}

/// Writes what the server needs to know before it starts.
fn prepare(data: &Path, mind: &Mind, project: &Path, fast: bool) -> Result<Setup, Failure> {
    use std::os::unix::fs::DirBuilderExt as _;
    let failed = |err| Failure::failed(format!("preparing {}: {err}", data.display()));
    let cassettes = data.join("cassettes");
    let make = |path: &Path| std::fs::DirBuilder::new().mode(0o700).create(path);
    make(data).and_then(|()| make(&cassettes)).map_err(failed)?;
    std::fs::write(cassettes.join("demo.json"), script(fast)).map_err(failed)?;
    std::fs::write(data.join("policy.toml"), POLICY).map_err(failed)?;
    let workspace = project.to_string_lossy().into_owned();
    let args = ["--listen", "none", "--workspace", &workspace];
    let args = args.map(str::to_owned).to_vec();
    Ok(Setup { program: None, args, env: mind.env.clone() })
}

/// The script; without pauses where it should go fast.
fn script(fast: bool) -> String {
    if !fast {
        return SCRIPT.to_owned();
    }
    let mut script: serde_json::Value =
        serde_json::from_str(SCRIPT).expect("the script is JSON: a test reads it");
    for turn in script["turns"].as_array_mut().into_iter().flatten() {
        turn["delay_ms"] = 10.into();
    }
    script.to_string()
}

async fn start_run(
    remote: &Remote,
    mind: &Mind,
    level: port::SandboxLevel,
    project: &Path,
) -> Result<Run, Failure> {
    let agent = remote
        .agent_create(&AgentCreate {
            name: "mender".into(),
            role: ROLE.into(),
            model: mind.model.clone(),
            tools_allowed: TOOLS.iter().map(|tool| (*tool).to_owned()).collect(),
            sandbox: Some(SandboxLevel::from(level)),
            limits: Some(AgentLimits { max_steps: 30, max_seconds: 240, ..AgentLimits::default() }),
            // A test run may be done twice: after a kill it simply is.
            on_unknown: Some(OnUnknown::Retry),
            ..AgentCreate::default()
        })
        .await?;
    let draft = RunCreate {
        agent_id: agent.id.to_string(),
        task: TASK.into(),
        workspace: Some(project.to_string_lossy().into_owned()),
        ..RunCreate::default()
    };
    remote.run_create(&draft, None).await
}

/// Shows the run as it happens; kills the server once in the middle and starts it again.
#[expect(clippy::too_many_arguments, reason = "the props of one scene, used nowhere else")]
async fn follow(
    cx: &Context,
    args: &DemoArgs,
    stage: &mut Stage<'_>,
    mut daemon: Daemon,
    remote: &Remote,
    run: &Run,
    data: &Path,
    setup: &Setup,
) -> Result<Daemon, Failure> {
    let id = run.id.to_string();
    let mut story = Story::new(cx.out.colour, cx.out.verbose);
    let mut place: Option<String> = None;
    let mut may_kill = !args.no_crash;
    let began = Instant::now();
    loop {
        let mut stream = remote.replay(&id, true, place.as_deref()).await?;
        let killed = loop {
            let next =
                tokio::time::timeout(PATIENCE.saturating_sub(began.elapsed()), stream.next());
            let Ok(next) = next.await else {
                return Err(Failure::failed(format!(
                    "the agent was not done after {} s",
                    PATIENCE.as_secs()
                )));
            };
            match next? {
                Some(Item::Entry { id: at, entry }) => {
                    let text = story.tell(&entry);
                    for line in text.lines() {
                        stage.say(line)?;
                    }
                    place = at.or(place);
                    if may_kill && runs_a_command(&entry) {
                        break true;
                    }
                }
                Some(Item::Done) => return Ok(daemon),
                None => break false,
            }
        };
        if !killed {
            return Err(Failure::failed("the server ended its stream before the run was over"));
        }
        may_kill = false;
        drop(stream);
        daemon = kill_and_start(stage, daemon, data, setup).await?;
    }
}

/// A command of the agent has begun and has no result yet: the worst moment to die.
fn runs_a_command(entry: &Timeline) -> bool {
    match &entry.data {
        TimelineData::Step(step) => {
            step.kind == StepType::Tool
                && step.finished_at.is_none()
                && step.input_json.to_string().contains("sh test.sh")
        }
        TimelineData::Event(_) | TimelineData::ToolCall(_) | TimelineData::ModelCall(_) => false,
    }
}

async fn kill_and_start(
    stage: &mut Stage<'_>,
    daemon: Daemon,
    data: &Path,
    setup: &Setup,
) -> Result<Daemon, Failure> {
    let pid = daemon.pid();
    stage.scene("And in the middle of it, the server dies").await?;
    stage.bad(&format!("kill -9 {pid}   (the test is running; nothing is cleaned up)"))?;
    daemon.kill().map_err(|err| Failure::failed(format!("killing the server: {err}")))?;
    stage.pause(900).await;
    let began = Instant::now();
    let daemon = Daemon::start(data, setup)?;
    stage.say(&format!(
        "overmind up: pid {}, ready after {}",
        daemon.pid(),
        when::precise(began.elapsed())
    ))?;
    stage.good("The run goes on from its last durable step:")?;
    Ok(daemon)
}

fn succeeded(run: &Run) -> Result<(), Failure> {
    match run.status {
        RunStatus::Succeeded => Ok(()),
        RunStatus::Failed
        | RunStatus::Canceled
        | RunStatus::Queued
        | RunStatus::Running
        | RunStatus::AwaitingInput
        | RunStatus::AwaitingApproval
        | RunStatus::Idle => {
            let why = run.error.as_ref().map(story::error_text);
            let why =
                why.or_else(|| run.prompt.clone()).unwrap_or_else(|| "no reason given".into());
            Err(Failure::failed(format!(
                "the run is {}: {}",
                session::state(run.status),
                clean::line(&why)
            )))
        }
    }
}

fn bill(run: &Run, mind: &Mind) -> String {
    let usage = &run.usage;
    let cost = match session::cost(run) {
        _ if mind.scripted => "no cost: the words were scripted".to_owned(),
        Some(cost) => cost,
        None => "cost unknown: this model has no price in the catalogue".to_owned(),
    };
    let took = match (run.started_at, run.finished_at) {
        (Some(start), Some(end)) => when::precise(end.since(start)),
        _ => "?".to_owned(),
    };
    format!(
        "{} steps, {} model calls, {} tokens in ({} from the cache), {} out, {took}; {cost}",
        run.step_count,
        run.model_call_count,
        when::thousands(usage.input_tokens),
        when::thousands(usage.cached_input_tokens),
        when::thousands(usage.output_tokens),
    )
}

/// Runs the project's tests in the agent's own kind of sandbox: whether they pass, and what
/// they wrote.
async fn run_tests(driver: &dyn port::Sandbox, project: &Path) -> Result<(bool, String), Failure> {
    let request = SandboxRequest {
        argv: ["sh", "-c", TEST].map(str::to_owned).to_vec(),
        workspace: project.to_owned(),
        writable: None,
        cwd: PathBuf::from("."),
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        home: Vec::new(),
        stdin: Vec::new(),
        timeout: Duration::from_secs(20),
        limits: port::SandboxLimits::default(),
    };
    let result = driver
        .run(request)
        .await
        .map_err(|err| Failure::failed(format!("running the project's tests: {err}")))?;
    let passed = result.exit == port::Exit::Code(0);
    Ok((passed, result.stdout.text + &result.stderr.text))
}

/// The lines of a test run that speak of failure.
fn failing_lines(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("ok"));
    lines.map(|line| format!("{}\n", clean::line(line))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fast_script_has_the_same_text_without_pauses() {
        let (slow, fast) = (script(false), script(true));
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let (slow, mut fast) = (read(&slow), read(&fast));
        let turns = slow["turns"].as_array().unwrap().clone();
        for (n, turn) in turns.iter().enumerate() {
            assert_eq!(fast["turns"][n]["delay_ms"], 10);
            fast["turns"][n]["delay_ms"] = turn["delay_ms"].clone();
        }
        assert_eq!(fast, slow);
    }

    #[test]
    fn the_demo_script_is_a_valid_cassette() {
        let cassette = overmind_llm::Cassette::parse("demo", SCRIPT.as_bytes()).unwrap();
        assert_eq!((cassette.name(), cassette.turns().len()), ("demo", 7));
    }
}
