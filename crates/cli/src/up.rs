//! `overmind up` and `overmind down`: starting and stopping the server's process.
//!
//! `up -d` runs this same program once more in a session of its own. The new process answers on
//! a pipe in one line of JSON, ready or why not, and then lets go of the pipe; so the command
//! returns exactly when the server is ready, and tells its errors as if they were its own.

use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overmind_api::{Run, RunStatus};
use overmind_core::sandbox::SandboxError;
use overmind_engine::Caller;
use overmind_node::app::lock::{Holder, ServerFile, holder};
use overmind_node::app::signals::{Signals, Stop};
use overmind_node::app::{App, failpoints, gate, logs};
use overmind_node::config::{Config, DataDir, PolicyChoice, env};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::args::{DownArgs, UpArgs};
use crate::context::Context;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::table::Tone;
use crate::output::when;
use crate::remote::Remote;
use crate::session;
use crate::show::{self, cell};

/// How long the server may take to say that it is ready, recovery of a large log included.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// The number of runs that are searched for commands that continue.
const MAX_LOOKED_AT: u32 = 10_000;
/// The number of continuing runs that are named.
const NAMED: usize = 3;
/// How long a server that holds the directory may take to answer before it counts as hung, one
/// question, and between two.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
const ONE_QUESTION: Duration = Duration::from_secs(5);
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(50);
/// How long a thread for what blocks waits for more of it.
const IDLE_THREADS: Duration = Duration::from_secs(2);

/// The message of the background process about its start.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Ready(ServerFile),
    Failed { exit: u8, message: String, hint: Option<String> },
}

/// # Errors
///
/// Returns an error if the server could not start.
pub fn up(cx: &Context, args: &UpArgs) -> Outcome {
    if args.detach {
        return detach(cx, args);
    }
    if !args.detached {
        return serve(cx, args, Ready::Person);
    }
    // This is the process behind `up -d`: a session of its own, so that closing the terminal
    // does not reach it.
    let _ = rustix::process::setsid();
    let outcome = serve(cx, args, Ready::Parent);
    if let Err(failure) = &outcome {
        let Failure { exit, message, hint } = failure;
        say(&Said::Failed { exit: exit.code(), message: message.clone(), hint: hint.clone() });
    }
    outcome
}

/// Says it on the pipe and lets go of the pipe.
fn say(said: &Said) {
    use std::io::Write as _;
    let line = serde_json::to_string(said).expect("a plain structure of texts is JSON");
    // The starting process may have ended; the server continues.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
    let _ = std::io::stdout().flush();
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Runs the server in this process until a signal stops it.
fn serve(cx: &Context, args: &UpArgs, ready: Ready) -> Outcome {
    let config = cx.config(Some(args))?;
    let file = config.data.log_file();
    let file = Some(file.as_path()).filter(|_| matches!(ready, Ready::Parent));
    logs::start(&config.log_level, config.log_format, file).map_err(Failure::usage)?;
    if let Some(spec) = cx.env.text(env::FAILPOINTS) {
        failpoints::arm(spec).map_err(Failure::usage)?;
    }
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("overmind")
        // A burst creates dozens of threads for blocking work, each with its own stack.
        .thread_keep_alive(IDLE_THREADS)
        .enable_all()
        .build()
        .map_err(|err| Failure::failed(format!("starting threads: {err}")))?;
    let exit = runtime.block_on(live(cx, config, ready));
    // A blocking task that does not end (a hung disk) must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_secs(1));
    exit
}

/// The receiver of the notification that the server is ready.
#[derive(Clone, Copy, Debug)]
enum Ready {
    /// The one at the terminal, or a script that reads standard output.
    Person,
    /// The process that started this one in the background.
    Parent,
}

async fn live(cx: &Context, config: Config, ready: Ready) -> Outcome {
    // Before anything is opened: a signal during the start must not leave partial state.
    let mut signals = Signals::install()
        .map_err(|err| Failure::failed(format!("watching for signals: {err}")))?;
    let app = tokio::select! {
        started = Box::pin(App::start(config)) => started?,
        () = signals.asked(Stop::Graceful) => return Ok(Exit::Done),
    };
    match ready {
        Ready::Parent => say(&Said::Ready(app.server_file().clone())),
        // One line for a script, at once: it may wait for nothing else.
        Ready::Person if !cx.out.for_people() => {
            cx.out.streamed(&show::to_value(app.server_file()))?
        }
        Ready::Person => {
            ask_passphrase(cx, &app).await;
            let checked = app.check_sandbox().await;
            ready_banner(cx, &app, &checked)?;
        }
    }
    tokio::select! {
        () = signals.asked(Stop::Graceful) => tracing::info!("asked to stop; draining"),
        () = app.ended() => tracing::error!("the server ended by itself"),
        never = overmind_node::app::stay_small() => match never {},
    }
    let left = Box::pin(app.stop(signals.asked(Stop::Now))).await;
    if left > 0 {
        tracing::warn!(left, "interrupted work continues at the next start");
    }
    tracing::info!("stopped");
    Ok(Exit::Done)
}

/// Asks the user at the terminal for the vault's passphrase, if one is missing. Only once: the
/// server starts nevertheless, and `overmind vault unlock` asks again.
async fn ask_passphrase(cx: &Context, app: &App) {
    use std::io::IsTerminal as _;
    let by = Caller::admin();
    let locked = app.engine().vault_status(&by).ok().and_then(|status| status.locked);
    let needs_it = locked.is_some_and(|reason| reason.contains("needs its passphrase"));
    if !needs_it || !std::io::stdin().is_terminal() {
        return;
    }
    // A person takes seconds; the server's other threads continue meanwhile.
    let asked = tokio::task::spawn_blocking(|| crate::asked::ask("Passphrase of the vault", false));
    let Ok(Ok(passphrase)) = asked.await else { return };
    let Ok(passphrase) = overmind_core::vault::Secret::new(passphrase.expose()) else { return };
    if let Err(err) = app.engine().vault_unlock(&by, Some(passphrase)).await {
        cx.out.warn(&err.to_string());
    }
}

/// The text that a person at the terminal sees when the server is ready.
fn ready_banner(
    cx: &Context,
    app: &App,
    sandbox: &Result<(), SandboxError>,
) -> Result<(), Failure> {
    let server = app.server_file();
    show::one(&cx.out, server, &server.pid.to_string(), || {
        let config = app.config();
        let mut lines = vec![(
            "overmind",
            (format!("{} is ready (pid {})", server.version, server.pid), Tone::Good),
        )];
        if let Some(url) = &server.url {
            lines.push(("url", cell(url)));
        }
        if let Some(socket) = &server.socket {
            lines.push(("socket", cell(socket.display().to_string())));
        }
        lines.push(("data", cell(config.data.path().display().to_string())));
        lines.push(("workspace", cell(config.workspace.display().to_string())));
        lines.push(("sandbox", sandbox_line(sandbox)));
        lines.push(("policy", policy_line(&config.policy)));
        lines.push(("models", cell(app.models_line())));
        let vault = app.engine().vault_status(&Caller::admin());
        if let Some(reason) = vault.ok().and_then(|status| status.locked) {
            lines.push(("vault", (format!("locked: {reason}"), Tone::Bad)));
        }
        lines
    })
}

/// The policy that a server of this configuration begins with.
fn policy_line(choice: &PolicyChoice) -> (String, Tone) {
    match choice {
        PolicyChoice::Off { said } => (format!("{} ({said})", gate::OFF), Tone::Bad),
        PolicyChoice::File(file) => cell(file.display().to_string()),
        PolicyChoice::Usual(file) if file.exists() => cell(file.display().to_string()),
        PolicyChoice::Usual(_) => cell("built in"),
    }
}

/// The level that commands get by default, or why they would get none.
fn sandbox_line(checked: &Result<(), SandboxError>) -> (String, Tone) {
    match checked {
        Ok(()) => ("namespace".to_owned(), Tone::Plain),
        Err(err) => (
            format!("namespace is not available: {err}; `overmind doctor` says what to do"),
            Tone::Waits,
        ),
    }
}

fn detach(cx: &Context, args: &UpArgs) -> Outcome {
    // Errors of the configuration are reported here, where the user sees them.
    let config = cx.config(Some(args))?;
    config.data.prepare()?;
    if let PolicyChoice::Off { said } = &config.policy {
        cx.out.warn(&format!("{} ({said})", gate::OFF));
    }
    if let Some((pid, file)) = living(&config.data)? {
        return already(cx, pid, file);
    }
    let log = config.data.log_file();
    let log_file = logs::open_file(&log)
        .map_err(|err| Failure::failed(format!("opening the log {}: {err}", log.display())))?;
    let mut command = again(cx)?;
    command.arg("--detached").args(up_flags(args));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()
        .map_err(|err| Failure::failed(format!("starting the server: {err}")))?;
    let pipe = child.stdout.take().expect("the pipe was asked for");
    let said = first_line(pipe, START_PATIENCE);
    let said = said.and_then(|line| serde_json::from_str(&line).ok());
    match said {
        Some(Said::Ready(server)) => {
            show::one(&cx.out, &server, &server.pid.to_string(), || {
                let at = server
                    .url
                    .clone()
                    .or_else(|| server.socket.as_ref().map(|path| path.display().to_string()));
                vec![
                    ("pid", cell(server.pid.to_string())),
                    ("at", cell(at.unwrap_or_default())),
                    ("log", cell(log.display().to_string())),
                ]
            })?;
            if cx.out.for_people() {
                found(&left(&server, &config.data)).iter().for_each(|line| cx.out.note(line));
            }
            Ok(Exit::Done)
        }
        Some(Said::Failed { exit, message, hint }) => {
            let _ = child.wait();
            let exit = if exit == Exit::Conflict.code() { Exit::Conflict } else { Exit::Failed };
            Err(Failure { exit, message, hint })
        }
        None => {
            let died = child.try_wait().ok().flatten();
            let how = died.map_or("said nothing".to_owned(), |status| format!("ended: {status}"));
            Err(Failure::failed(format!("the server in the background {how}"))
                .hint(format!("its log is {}", log.display())))
        }
    }
}

/// The server that holds the directory, if it runs. One that was just killed holds it, and may be
/// connected to, for a moment more; only an answer tells the two apart.
///
/// # Errors
///
/// [`Exit::Conflict`] for one that neither answers nor ends.
fn living(data: &DataDir) -> Result<Option<(u32, Option<ServerFile>)>, Failure> {
    let until = Instant::now() + ANSWERED_WITHIN;
    loop {
        let Holder::Server { pid, file } = holder(data) else { return Ok(None) };
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // It has ended since, or the next one has not written its number yet.
        let Some(process) = process else {
            if Instant::now() > until {
                return Ok(Some((pid, file)));
            }
            std::thread::sleep(BETWEEN_QUESTIONS);
            continue;
        };
        match &file {
            Some(server) if server.pid == pid && answers(server, data)? => {
                return Ok(Some((pid, file)));
            }
            Some(_) | None => {}
        }
        if gone(&process, BETWEEN_QUESTIONS) {
            continue;
        }
        if Instant::now() > until {
            return match file.filter(|server| server.pid == pid) {
                // It is only just starting.
                None => Ok(Some((pid, None))),
                Some(_) => {
                    let message = format!("the server (pid {pid}) is running but does not answer");
                    let hint = "`overmind down` stops it, by force if necessary; then start it \
                        again";
                    Err(Failure::new(Exit::Conflict, message).hint(hint))
                }
            };
        }
    }
}

/// Whether a server says anything at all.
fn answers(server: &ServerFile, data: &DataDir) -> Result<bool, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|err| Failure::failed(format!("starting threads: {err}")))?;
    let asked = async {
        let remote = Remote::to_server(server, data.path())?;
        remote.status().await
    };
    let said = runtime.block_on(async { tokio::time::timeout(ONE_QUESTION, asked).await });
    Ok(match said {
        Ok(Ok(_)) => true,
        Ok(Err(failure)) => failure.exit != Exit::Unreachable,
        Err(_) => false,
    })
}

fn already(cx: &Context, pid: u32, file: Option<ServerFile>) -> Outcome {
    cx.out.note(&format!("a server already runs (pid {pid})"));
    if let Some(server) = file {
        show::one(&cx.out, &server, &pid.to_string(), || {
            let at = server
                .url
                .clone()
                .or_else(|| server.socket.as_ref().map(|path| path.display().to_string()));
            vec![("pid", cell(pid.to_string())), ("at", cell(at.unwrap_or_default()))]
        })?;
    }
    Ok(Exit::Done)
}

/// This same program, with the same data directory and configuration; the caller adds `up`.
pub fn again(cx: &Context) -> Result<Command, Failure> {
    let program = std::env::current_exe()
        .map_err(|err| Failure::failed(format!("finding this program's own file: {err}")))?;
    let mut command = Command::new(program);
    command.arg("up").arg("--data").arg(cx.data()?.path());
    if let Some(config) = &cx.global.config {
        command.arg("--config").arg(cx.cwd.join(config));
    }
    Ok(command)
}

/// The flags of `up` as they were given.
fn up_flags(args: &UpArgs) -> Vec<String> {
    let given = [
        ("--listen", &args.listen),
        ("--tls-cert", &args.tls_cert),
        ("--tls-key", &args.tls_key),
        ("--workspace", &args.workspace),
        ("--log", &args.log),
        ("--log-format", &args.log_format),
    ];
    given
        .into_iter()
        .filter_map(|(flag, value)| Some([flag.to_owned(), value.clone()?]))
        .flatten()
        .chain(args.accept_loss.then(|| "--accept-loss".to_owned()))
        .chain(args.force.then(|| "--force".to_owned()))
        .collect()
}

/// The first line from a pipe, if it comes in time.
pub fn first_line(pipe: impl std::io::Read + Send + 'static, patience: Duration) -> Option<String> {
    let (told, hear) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(pipe).read_line(&mut line);
        let _ = told.send(read.ok().filter(|bytes| *bytes > 0).map(|_| line));
    });
    hear.recv_timeout(patience).ok().flatten()
}

/// # Errors
///
/// Returns an error if the server could not be stopped.
pub fn down(cx: &Context, args: &DownArgs) -> Outcome {
    let data = cx.data()?;
    let (pid, file) = match holder(&data) {
        Holder::Server { pid, file } => (pid, file),
        Holder::Dead { pid } => {
            cx.out.note(&format!("no server runs: the last one (pid {pid}) was killed"));
            return Ok(Exit::Done);
        }
        Holder::Nobody => {
            cx.out.note(&format!("no server runs on {}", data.path().display()));
            return Ok(Exit::Done);
        }
    };
    let process = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    // The number could belong to another process by now. The descriptor is of one process for
    // good, and that one holds the lock if the lock still names it after the opening.
    let Some(process) = process.filter(|_| runs(&data, pid)) else {
        cx.out.note("the server has just stopped");
        return Ok(Exit::Done);
    };
    let signal = |signal, what: &str| {
        pidfd_send_signal(&process, signal).map_err(|err| {
            Failure::new(Exit::Denied, format!("{what} process {pid}: {err}"))
                .hint("does the server run as another user?")
        })
    };
    let left = file.map(|server| left(&server, &data)).unwrap_or_default();
    let stopped = |cx: &Context, pid: u32, how: &str| stopped(cx, pid, how, &left, &data);
    signal(Signal::TERM, "stopping")?;
    if gone(&process, Duration::from_secs(args.timeout)) {
        return stopped(cx, pid, "stopped");
    }
    cx.out.note(&format!("still working after {} s; interrupting it", args.timeout));
    signal(Signal::TERM, "stopping")?;
    if gone(&process, Duration::from_secs(5)) {
        return stopped(cx, pid, "stopped; interrupted work continues at the next start");
    }
    signal(Signal::KILL, "killing")?;
    if gone(&process, Duration::from_secs(5)) {
        return stopped(cx, pid, "killed; interrupted work continues at the next start");
    }
    Err(Failure::failed(format!("process {pid} does not end, not even by SIGKILL"))
        .hint("the process probably waits for a disk in the kernel"))
}

/// The names of runs that are not over when a server stops.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    /// Their programs outlive the server.
    go_on: Vec<String>,
    /// Those of built-in agents continue at the next start.
    continue_later: Vec<String>,
    /// They wait for a person.
    wait: Vec<String>,
}

/// The runs that are not over; none if the server does not report them.
fn left(server: &ServerFile, data: &DataDir) -> Left {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Left::default() };
    let asked = async {
        let remote = Remote::to_server(server, data.path())?;
        let open: Vec<_> =
            RunStatus::ALL.iter().copied().filter(|status| !session::ended(*status)).collect();
        remote.runs::<Run>(&open, None, MAX_LOOKED_AT).await
    };
    let said = runtime.block_on(async { tokio::time::timeout(ONE_QUESTION, asked).await });
    let Ok(Ok(runs)) = said else { return Left::default() };
    let mut left = Left::default();
    for run in runs {
        let lives = run.process.as_ref().is_some_and(|process| process.pid.is_some());
        match run.status {
            _ if lives => left.go_on.push(run.name),
            RunStatus::Queued | RunStatus::Running => left.continue_later.push(run.name),
            RunStatus::AwaitingInput | RunStatus::AwaitingApproval | RunStatus::Idle => {
                left.wait.push(run.name);
            }
            RunStatus::Succeeded | RunStatus::Failed | RunStatus::Canceled => {}
        }
    }
    left
}

fn stopped(cx: &Context, pid: u32, how: &str, left: &Left, data: &DataDir) -> Outcome {
    let database = overmind_workspace::database::server_of(data.path());
    let value = serde_json::json!({
        "pid": pid, "state": how, "commands": left.go_on, "continue": left.continue_later,
        "postgresql_pid": database,
    });
    show::one(&cx.out, &value, &pid.to_string(), || vec![("server", cell(how))])?;
    if cx.out.for_people() {
        remains(left, database).iter().for_each(|line| cx.out.note(line));
    }
    Ok(Exit::Done)
}

/// Counts runs and names the first ones. The verb for one run, and for several.
fn counted(names: &[String], one: &str, many: &str) -> String {
    let named = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = match names.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let verb = if names.len() == 1 { one } else { many };
    format!("{} {verb}: {named}{more}", when::counted(names.len() as u64, "run"))
}

/// Lines for a person about the runs that a server finds at its start.
fn found(left: &Left) -> Vec<String> {
    let mut lines = Vec::new();
    let working = [left.go_on.as_slice(), &left.continue_later].concat();
    if !working.is_empty() {
        lines.push(counted(&working, "goes on", "go on"));
    }
    if !left.wait.is_empty() {
        let wait = counted(&left.wait, "waits for you", "wait for you");
        lines.push(format!("{wait}; see `overmind ps` and `overmind inbox`"));
    }
    lines
}

/// Lines for a person about what a server leaves. `database`: the process of its
/// PostgreSQL server.
fn remains(left: &Left, database: Option<u32>) -> Vec<String> {
    let mut lines = Vec::new();
    if !left.go_on.is_empty() {
        let runs = counted(&left.go_on, "goes on without it", "go on without it");
        lines.push(format!(
            "{runs}; the next `overmind up` finds them again; to end them: `overmind up -d`, \
             `overmind kill --all`, `overmind down`"
        ));
    }
    if !left.continue_later.is_empty() {
        lines.push(counted(
            &left.continue_later,
            "continues at the next `overmind up`",
            "continue at the next `overmind up`",
        ));
    }
    if let Some(pid) = database {
        lines.push(format!(
            "the PostgreSQL server of its runs goes on too (pid {pid}); to end it: kill -INT {pid}"
        ));
    }
    lines
}

fn runs(data: &DataDir, wanted: u32) -> bool {
    matches!(holder(data), Holder::Server { pid, .. } if pid == wanted)
}

/// Waits until the process has ended, at most this long.
fn gone(process: &OwnedFd, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait = Timespec::try_from(left).ok();
        // A process's descriptor becomes readable when the process ends.
        let mut watched = [PollFd::new(process, PollFlags::IN)];
        match poll(&mut watched, wait.as_ref()) {
            Ok(0) => return false,
            Ok(_) => return true,
            // Interrupted by a signal: wait for the remaining processes.
            Err(_) if left.is_zero() => return false,
            Err(_) => {}
        }
    }
}

/// Whether the directory could hold a unix socket: its path has 107 bytes at most.
pub fn socket_fits(path: &Path) -> bool {
    path.as_os_str().len() <= 107
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopping_the_server_reports_how_many_runs_continue_and_names_three() {
        let names = |count: usize| (0..count).map(|n| format!("r{n}")).collect::<Vec<_>>();
        assert_eq!(remains(&Left::default(), None), Vec::<String>::new());
        let left = Left { go_on: names(1), continue_later: names(5), wait: names(2) };
        let lines = remains(&left, Some(7));
        assert!(lines[0].starts_with("1 run goes on without it: r0; "), "{lines:?}");
        assert_eq!(
            lines[1..],
            [
                "5 runs continue at the next `overmind up`: r0, r1, r2 and 2 more",
                "the PostgreSQL server of its runs goes on too (pid 7); to end it: kill -INT 7",
            ]
        );
        assert_eq!(found(&Left::default()), Vec::<String>::new());
        assert_eq!(
            found(&left),
            [
                "6 runs go on: r0, r0, r1 and 3 more",
                "2 runs wait for you: r0, r1; see `overmind ps` and `overmind inbox`",
            ]
        );
    }
}
