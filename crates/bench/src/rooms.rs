//! Rooms of runs: a worktree that waits, two ports, a database and a process, made and given back.

use std::path::Path;
use std::process::{Command as Program, Stdio};
use std::time::{Duration, Instant};

use overmind_api::{Command, ProjectConfirm, Run, RunCreate, RunStatus, RunStop};
use overmind_cli::exit::Failure;

use super::lives::{AGENT, Place, pause};
use super::{Figure, Goal, Setting, ms, percentile};

/// Files of the repository.
const FILES: u32 = 2200;
const POSTGRES: &str = "version: 1
ports: [PORT, SECOND]
services:
  db: {strategy: database, engine: postgres, template: {sql: [schema.sql]}}
  worker: {strategy: process, command: exec sleep 100000}
env: {DATABASE_URL: '${db.url}'}
";

/// Leaves the figures out where there is no git or no PostgreSQL.
pub(super) async fn measure(
    setting: &Setting,
    leave_out: impl Fn(&str),
) -> Result<Vec<Figure>, Failure> {
    let place = Place::open(setting, "rooms").await?;
    let project = place.dir.join("project");
    if let Err(err) = repository(&project) {
        leave_out(&format!("rooms left out: {}", err.message));
        return Ok(Vec::new());
    }
    trust(&place, &project).await?;
    let rounds = setting.count(9).max(3);
    let mut bare = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        git(&project, &["worktree", "add", "-q", "--detach", "../bare"])?;
        bare.push(began.elapsed());
        git(&project, &["worktree", "remove", "--force", "../bare"])?;
    }
    bare.sort_unstable();
    let (mut made, mut closed) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let began = Instant::now();
        let run = start(&place, &project).await?;
        let alive = until(&place, &run, "a room", |run| {
            run.process.as_ref().is_some_and(|process| process.pid.is_some()) || over(run)
        })
        .await?;
        let took = began.elapsed();
        if over(&alive) {
            let why = alive.error.map(|error| error.to_string()).unwrap_or_default();
            leave_out(&format!("rooms left out: {why}"));
            return Ok(Vec::new());
        }
        let began = Instant::now();
        let kill = RunStop { kill: true, grace: None };
        place.client.run_stop(&run.id.to_string(), kill).await?;
        until(&place, &run, "a room to be given back", over).await?;
        // The first makes the server and the template, and finds no worktree that waits.
        if round > 0 {
            made.push(took);
            closed.push(began.elapsed());
        }
        waiting(&place).await?;
    }
    made.sort_unstable();
    closed.sort_unstable();
    Ok(vec![
        Figure::new("warm room", ms(percentile(&made, 0.5)), "ms")
            .floor("git worktree add", ms(percentile(&bare, 0.5)))
            .goal(Goal::Most(500.0))
            .note(
                "from asking for a run to its running command, in a worktree of 2,200 files that \
                 waited, with two ports, a PostgreSQL database and a process of its own",
            ),
        Figure::new("room given back", ms(percentile(&closed, 0.5)), "ms")
            .goal(Goal::Most(1000.0))
            .note("from the kill to the end that is told, the leak check included"),
    ])
}

/// Confirms what the project's file orders.
async fn trust(place: &Place, project: &Path) -> Result<(), Failure> {
    let project = project.to_string_lossy().into_owned();
    let hash = place.client.project_trust(&project).await?.hash.unwrap_or_default();
    let confirm = ProjectConfirm { project, hash, setup_network: false };
    place.client.project_confirm(&confirm).await?;
    Ok(())
}

fn repository(project: &Path) -> Result<(), Failure> {
    let failed = |err: std::io::Error| Failure::failed(format!("making a repository: {err}"));
    for n in 0..FILES {
        let dir = project.join(format!("d{}", n % 50));
        std::fs::create_dir_all(&dir).map_err(failed)?;
        std::fs::write(dir.join(format!("f{n}.txt")), format!("{n}\n").repeat(100))
            .map_err(failed)?;
    }
    std::fs::write(project.join(".overmind.yml"), POSTGRES).map_err(failed)?;
    let schema = "CREATE TABLE things (id serial PRIMARY KEY, name text);";
    std::fs::write(project.join("schema.sql"), schema).map_err(failed)?;
    git(project, &["init", "-q"])?;
    git(project, &["add", "-A"])?;
    git(project, &["commit", "-qm", "first"])
}

fn git(dir: &Path, args: &[&str]) -> Result<(), Failure> {
    let status = Program::new("git")
        .args(["-c", "user.name=Ann", "-c", "user.email=ann@localhost"])
        .args(args)
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::failed(format!("`git {}` ended with {status}", args.join(" ")))),
        Err(err) => Err(Failure::failed(format!("git: {err}"))),
    }
}

async fn start(place: &Place, project: &Path) -> Result<Run, Failure> {
    let argv = ["sleep", "100000"].map(str::to_owned).into();
    let run = RunCreate {
        agent_id: AGENT.into(),
        command: Some(Command { argv, ..Command::default() }),
        workspace: Some(project.to_string_lossy().into_owned()),
        ..RunCreate::default()
    };
    Ok(place.client.run_create(&run, None).await?)
}

async fn until(
    place: &Place,
    run: &Run,
    what: &str,
    fits: impl Fn(&Run) -> bool,
) -> Result<Run, Failure> {
    let began = Instant::now();
    loop {
        let now = place.client.run_fetch(&run.id.to_string()).await?;
        if fits(&now) {
            return Ok(now);
        }
        place.patient(began, what)?;
        pause().await;
    }
}

fn over(run: &Run) -> bool {
    matches!(run.status, RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled)
}

/// Waits until worktrees are prepared again: nobody starts runs as fast as this does.
async fn waiting(place: &Place) -> Result<(), Failure> {
    let trees = place.data.join("worktrees");
    let ready = || {
        let projects = std::fs::read_dir(&trees).into_iter().flatten().flatten();
        projects
            .filter_map(|project| std::fs::read_dir(project.path().join(".ready")).ok())
            .flat_map(|ready| ready.flatten())
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .count()
    };
    let began = Instant::now();
    let mut since = None;
    loop {
        match ready() >= 2 {
            // Their making is whole when nothing of it moves any more.
            true if since.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(1) => {
                return Ok(());
            }
            true => {}
            false => since = None,
        }
        place.patient(began, "worktrees to wait")?;
        pause().await;
    }
}
