//! `attach`: the terminal of a run, in the person's own.
//!
//! The terminal belongs to the run's process, not to its viewers: detaching changes nothing, and a
//! viewer waits for a killed server, because the terminal still exists.

pub mod keys;
pub mod modes;
pub mod tty;

use std::io::IsTerminal as _;
use std::time::Duration;

use overmind_api::{AttachMode, AttachSaid, Run, RunStatus, TerminalSize};
use overmind_client::{Terminal, TerminalNews};
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub use self::keys::{DetachKeys, parse as parse_keys};
use self::tty::Raw;
use super::args::LogsArgs;
use super::args_command::AttachArgs;
use super::context::Context;
use super::exit::{Exit, Failure, Outcome};
use super::remote::Remote;
use super::spoken::Spoken;
use super::{command, session, watch};

/// How long a server that went away is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
const BETWEEN_TRIES: Duration = Duration::from_millis(100);
/// How long the beginning of the detach keys is kept back before it is typed.
const HELD: Duration = Duration::from_millis(400);
/// Lines of a program without a terminal that are shown first.
const SHOWN: u64 = 100;
/// The keys that detach from a terminal that accepts no input: ^C and q.
const LEAVES: [u8; 2] = [0x03, b'q'];

/// Why a person sees the terminal no more.
enum Left {
    /// They left.
    Detached,
    /// The attempt has ended.
    Ended {
        life: u32,
        how: String,
    },
    /// The connection was lost, or the server closed it.
    Lost(String),
    Signal(i32),
}

/// The person, and what they have at hand.
struct Person<'a> {
    cx: &'a Context,
    id: &'a str,
    mode: AttachMode,
    keys: DetachKeys,
    /// The size that the server was sent.
    told: Option<TerminalSize>,
    /// Whether they have a terminal, or only read what it writes.
    has_terminal: bool,
    /// A viewer without a terminal types nothing.
    typed: Option<mpsc::Receiver<Vec<u8>>>,
    signals: Signals,
}

struct Signals {
    resized: Signal,
    /// After a stop, the shell has set the terminal for itself.
    back: Signal,
    ends: [(i32, Signal); 4],
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let end = |number| Ok::<_, std::io::Error>((number, signal(SignalKind::from_raw(number))?));
        let ends =
            [end(libc::SIGINT)?, end(libc::SIGTERM)?, end(libc::SIGHUP)?, end(libc::SIGQUIT)?];
        let back = signal(SignalKind::from_raw(libc::SIGCONT))?;
        Ok(Self { resized: signal(SignalKind::window_change())?, back, ends })
    }

    /// Waits for a signal that ends the program.
    async fn end(ends: &mut [(i32, Signal); 4]) -> i32 {
        let [a, b, c, d] = ends;
        tokio::select! {
            _ = a.1.recv() => a.0,
            _ = b.1.recv() => b.0,
            _ = c.1.recv() => c.0,
            _ = d.1.recv() => d.0,
        }
    }
}

/// # Errors
///
/// Returns an error without a terminal on either side, for an ended run, and if the server does not
/// come back.
pub async fn attach(cx: &Context, args: &AttachArgs) -> Outcome {
    let remote = Remote::connect(cx)?;
    let id = remote.find_run(&args.id).await?;
    let run = remote.run(&id).await?;
    if !session::ended(run.status) && speaks(cx, &remote, &run).await? {
        return follow(cx, &remote, &run).await;
    }
    let has_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !has_terminal && !args.read_only {
        return Err(Failure::usage("`attach` needs a terminal, and standard input is not one")
            .hint(
                "`--read-only` shows the output, `overmind send` sends input, `overmind logs -f` \
                follows the log",
            ));
    }
    let mode = if args.read_only { AttachMode::Read } else { AttachMode::Write };
    // Its first start may be decided, and not made yet.
    let begins = matches!(run.status, RunStatus::Queued | RunStatus::Running)
        && run.process.as_ref().is_none_or(|process| process.life <= 1 && process.pid.is_none())
        && watch::is_of_command(&remote, &run).await?;
    if begins {
        cx.out.note(&format!("{} is about to start", run.name));
        watch::until(cx, &remote, &id, watch::Until::Begun, &mut watch::Place::None).await?;
    }
    // A refusal comes before anything happens to the person's terminal.
    let terminal = match remote.run_attach(&id, mode, size(mode)).await {
        Ok(terminal) => terminal,
        Err(failure) => return Err(refused(&remote, &id, failure).await.of_run(&args.id)),
    };
    let broken = |what: &str, err: &std::io::Error| Failure::failed(format!("{what}: {err}"));
    let mut person = Person {
        cx,
        id: &id,
        mode,
        keys: args.detach_key.clone(),
        told: None,
        has_terminal,
        typed: None,
        signals: Signals::new().map_err(|err| broken("listening for signals", &err))?,
    };
    if has_terminal {
        let typed = tty::typed().map_err(|err| broken("reading what is typed", &err))?;
        person.typed = Some(typed);
    }
    person.stay(terminal).await
}

/// Whether a run's program has no terminal, and says in lines what it does.
async fn speaks(cx: &Context, remote: &Remote, run: &Run) -> Result<bool, Failure> {
    Ok(Spoken::of(cx, remote, run).await?.is_some_and(|spoken| spoken.tells_turns))
}

/// Shows the output of such a program in words, until the run ends.
async fn follow(cx: &Context, remote: &Remote, run: &Run) -> Outcome {
    if cx.out.for_people() {
        cx.out.note(&format!(
            "{name} has no terminal, so this shows its output. To send input: overmind send \
                {name} \"…\". ^C detaches; the run continues",
            name = run.name
        ));
    }
    let args = LogsArgs {
        id: None,
        follow: true,
        tail: Some(SHOWN),
        since: None,
        grep: None,
        raw: false,
        all: false,
    };
    Box::pin(command::logs(cx, remote, run, &args)).await
}

/// The terminal's size, for those that have a say in it.
fn size(mode: AttachMode) -> Option<TerminalSize> {
    match mode {
        AttachMode::Write => tty::size(),
        AttachMode::Read => None,
    }
}

/// A refusal, with what to do about it.
async fn refused(remote: &Remote, id: &str, failure: Failure) -> Failure {
    if failure.exit != Exit::Conflict || failure.hint.is_some() {
        return failure;
    }
    match remote.run(id).await {
        Ok(run) if session::ended(run.status) => {
            failure.hint(format!("its output: overmind logs {}", run.name))
        }
        Ok(run) => failure.hint(format!("its state: overmind info {}", run.name)),
        Err(_) => failure,
    }
}

impl Person<'_> {
    /// Follows attempt after attempt, over restarts of the server, until there is no reason to.
    async fn stay(&mut self, mut terminal: Terminal) -> Outcome {
        loop {
            let entered = || -> std::io::Result<Raw> {
                let raw = Raw::enter()?;
                raw.scroll_away()?;
                Ok(raw)
            };
            let mut raw = match self.has_terminal.then(entered).transpose() {
                Ok(raw) => raw,
                Err(err) => {
                    return Err(Failure::failed(format!("setting the terminal: {err}")));
                }
            };
            let left = loop {
                match self.look(&mut terminal, raw.as_mut()).await? {
                    Left::Lost(why) => match self.again(&why, raw.as_mut()).await? {
                        Ok(again) => terminal = again,
                        Err(left) => break left,
                    },
                    left => break left,
                }
            };
            drop(raw);
            match left {
                Left::Detached => {
                    terminal.close().await;
                    self.cx.out.note(&format!("detached; attach again: {}", self.back()));
                    return Ok(Exit::Done);
                }
                Left::Signal(number) => {
                    terminal.close().await;
                    return Ok(Exit::of_command(128 + number));
                }
                Left::Lost(why) => {
                    let message = format!("the connection was lost: {why}");
                    let hint = format!("the run continues; attach again: {}", self.back());
                    return Err(Failure::new(Exit::Unreachable, message).hint(hint));
                }
                Left::Ended { life, how } => match self.after(life, &how).await? {
                    Next::Terminal(next) => terminal = *next,
                    Next::Over(run) => return Ok(self.over(&run, &how)),
                    Next::Left(exit) => return Ok(exit),
                },
            }
        }
    }

    fn back(&self) -> String {
        let read_only = if self.mode == AttachMode::Read { " --read-only" } else { "" };
        format!("overmind attach{read_only} {}", super::ids::short(self.id))
    }

    fn over(&self, run: &Run, how: &str) -> Exit {
        self.cx.out.note(&format!("{} has ended: {how}", run.name));
        command::exit_of(run)
    }

    /// Shows one connection's terminal, and types into it.
    async fn look(
        &mut self,
        terminal: &mut Terminal,
        mut raw: Option<&mut Raw>,
    ) -> Result<Left, Failure> {
        let mut life = 0;
        let mut held_since: Option<Instant> = None;
        loop {
            let release = held_since.map(|since| since + HELD);
            tokio::select! {
                news = terminal.next() => match news {
                    Ok(Some(TerminalNews::Bytes(bytes))) => match raw.as_deref_mut() {
                        Some(raw) => raw.write(&bytes)?,
                        None => tty::write(&bytes)?,
                    },
                    Ok(Some(TerminalNews::Said(said))) => match said {
                        AttachSaid::Began { life: began, .. } => life = began,
                        AttachSaid::Screen { .. } => {}
                        AttachSaid::Refused { message } => self.say(&message, raw.as_deref_mut())?,
                        AttachSaid::Ended { exit_code, signal, reason } => {
                            let how = match (exit_code, signal) {
                                (Some(code), _) => format!("exit code {code}"),
                                (None, Some(signal)) => format!("signal {signal}"),
                                (None, None) => reason.unwrap_or_else(|| "lost".to_owned()),
                            };
                            return Ok(Left::Ended { life, how });
                        }
                        AttachSaid::Away { reason } => return Ok(Left::Lost(reason)),
                    },
                    Ok(None) => return Ok(Left::Lost("the server closed the connection".to_owned())),
                    Err(err) => return Ok(Left::Lost(err.to_string())),
                },
                typed = next_typed(&mut self.typed) => {
                    let Some(typed) = typed else { return Ok(Left::Detached) };
                    let mut out = Vec::new();
                    let leaves = self.keys.typed(&typed, &mut out);
                    held_since = self.keys.is_held().then(Instant::now);
                    if leaves || self.read_only_leaves(&out) {
                        return Ok(Left::Detached);
                    }
                    if let Some(lost) = self.send(terminal, &out).await {
                        return Ok(lost);
                    }
                }
                () = tokio::time::sleep_until(release.unwrap_or_else(Instant::now)), if release.is_some() => {
                    held_since = None;
                    let out = self.keys.release();
                    if let Some(lost) = self.send(terminal, &out).await {
                        return Ok(lost);
                    }
                }
                _ = self.signals.resized.recv() => if let Some(lost) = self.resize(terminal).await {
                    return Ok(lost);
                },
                _ = self.signals.back.recv() => {
                    if let Some(raw) = raw.as_deref_mut() {
                        raw.again()?;
                    }
                    if let Some(lost) = self.resize(terminal).await {
                        return Ok(lost);
                    }
                }
                number = Signals::end(&mut self.signals.ends) => return Ok(Left::Signal(number)),
            }
        }
    }

    fn read_only_leaves(&self, typed: &[u8]) -> bool {
        self.mode == AttachMode::Read && typed.iter().any(|byte| LEAVES.contains(byte))
    }

    async fn send(&mut self, terminal: &mut Terminal, bytes: &[u8]) -> Option<Left> {
        if bytes.is_empty() || self.mode == AttachMode::Read {
            return None;
        }
        // Word of a new size may come later than the keys that were typed in it.
        if size(self.mode) != self.told
            && let Some(lost) = self.resize(terminal).await
        {
            return Some(lost);
        }
        terminal.write(bytes).await.err().map(|err| Left::Lost(err.to_string()))
    }

    async fn resize(&mut self, terminal: &mut Terminal) -> Option<Left> {
        let size = size(self.mode)?;
        self.told = Some(size);
        terminal.resize(size).await.err().map(|err| Left::Lost(err.to_string()))
    }

    /// Says something of our own on the person's screen.
    fn say(&self, text: &str, raw: Option<&mut Raw>) -> Result<(), Failure> {
        match raw {
            Some(raw) => Ok(raw.write(format!("\r\n[overmind: {text}]\r\n").as_bytes())?),
            None => {
                self.cx.out.note(text);
                Ok(())
            }
        }
    }

    /// Waits for a server that went away, which knows the terminal again when it is back.
    async fn again(
        &mut self,
        why: &str,
        raw: Option<&mut Raw>,
    ) -> Result<Result<Terminal, Left>, Failure> {
        self.say("the connection was lost; trying again", raw)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let (cx, id, mode) = (self.cx, self.id, self.mode);
            let attempt = async {
                // The server may be another one by now, at another place.
                let remote = Remote::connect(cx)?;
                match remote.run_attach(id, mode, size(mode)).await {
                    Ok(terminal) => Ok(Ok(terminal)),
                    Err(failure) if failure.exit == Exit::Conflict => {
                        Ok(Err(remote.run(id).await?))
                    }
                    Err(failure) => Err(failure),
                }
            };
            tokio::select! {
                attempt = attempt => match attempt {
                    Ok(Ok(terminal)) => return Ok(Ok(terminal)),
                    Ok(Err(run)) if session::ended(run.status) => {
                        return Ok(Err(Left::Ended { life: 0, how: ended_so(&run) }));
                    }
                    // It is back and has not found the process again yet, or is not back.
                    Ok(Err(_)) => {}
                    Err(failure) if failure.exit == Exit::Unreachable => {}
                    Err(failure) => return Err(failure),
                },
                left = self.leaves() => return Ok(Err(left)),
            }
            if Instant::now() > until {
                return Ok(Err(Left::Lost(why.to_owned())));
            }
            tokio::select! {
                () = SystemClock.sleep_until(SystemClock.now().after(BETWEEN_TRIES)) => {}
                left = self.leaves() => return Ok(Err(left)),
            }
        }
    }

    /// Waits until the person leaves. Other input meanwhile is dropped.
    async fn leaves(&mut self) -> Left {
        loop {
            tokio::select! {
                typed = next_typed(&mut self.typed) => {
                    let mut out = Vec::new();
                    let Some(typed) = typed else { return Left::Detached };
                    if self.keys.typed(&typed, &mut out) || out.contains(&LEAVES[0]) {
                        return Left::Detached;
                    }
                }
                number = Signals::end(&mut self.signals.ends) => return Left::Signal(number),
            }
        }
    }

    /// The event after an attempt: another attempt, or the end.
    async fn after(&mut self, life: u32, how: &str) -> Result<Next, Failure> {
        let mut away = super::watch::Away::default();
        let mut told = false;
        loop {
            let looked = async {
                let remote = Remote::connect(self.cx)?;
                let run = remote.run(self.id).await?;
                Ok::<_, Failure>((remote, run))
            };
            match looked.await {
                Ok((_, run)) if session::ended(run.status) => return Ok(Next::Over(Box::new(run))),
                Ok((remote, run)) => {
                    away.is_back();
                    let next = run
                        .process
                        .as_ref()
                        .is_some_and(|process| process.pid.is_some() && process.life > life);
                    if next
                        && let Ok(terminal) =
                            remote.run_attach(self.id, self.mode, size(self.mode)).await
                    {
                        return Ok(Next::Terminal(Box::new(terminal)));
                    }
                    let waits = run.process.as_ref().is_some_and(|p| p.restart_at.is_some());
                    if waits && !std::mem::replace(&mut told, true) {
                        let name = &run.name;
                        self.cx.out.note(&format!("{name} ended: {how}; it is started again"));
                    }
                }
                Err(failure) => away.wait(self.cx, Some(failure)).await?,
            }
            tokio::select! {
                () = SystemClock.sleep_until(SystemClock.now().after(BETWEEN_TRIES / 4)) => {}
                number = Signals::end(&mut self.signals.ends) => {
                    return Ok(Next::Left(Exit::of_command(128 + number)));
                }
            }
        }
    }
}

enum Next {
    Terminal(Box<Terminal>),
    Over(Box<Run>),
    Left(Exit),
}

fn ended_so(run: &Run) -> String {
    let process = run.process.as_ref();
    match process.map(|process| (process.exit_code, process.signal)) {
        Some((Some(code), _)) => format!("exit code {code}"),
        Some((None, Some(signal))) => format!("signal {signal}"),
        Some((None, None)) | None => run.status.to_string(),
    }
}

/// The typed input next; pending for ever without a terminal.
async fn next_typed(typed: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match typed {
        Some(typed) => typed.recv().await,
        None => std::future::pending().await,
    }
}
