//! The cost of running a command isolated from the host.
//!
//! Calls are made one after the other with a pause in between, like calls of an agent: without a
//! pause, the next init would not be ready, and the kernel would move processes between groups
//! faster than after a pause.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overmind_core::sandbox::{Exit, Sandbox, SandboxError, SandboxLimits, SandboxRequest};
use overmind_core::time::Clock as _;
use overmind_node::app::clock::SystemClock;
use overmind_sandbox::{Namespace, Options};

use super::{Figure, Goal, Setting, ms, percentile};
use crate::exit::Failure;

/// Between two calls.
pub const PAUSE: Duration = Duration::from_millis(50);
/// The name that a floor bears in tables.
const BARE: &str = "unshare --user --pid --fork true";

/// Why a level is not given, in one line.
pub fn reason(err: &SandboxError) -> String {
    match err {
        SandboxError::Unavailable { message, reason, .. } => format!("{message} ({reason})"),
        other => other.to_string(),
    }
}

impl From<SandboxError> for Failure {
    fn from(err: SandboxError) -> Self {
        Self::failed(reason(&err))
    }
}

/// A call of `true`.
pub fn request(workspace: &Path) -> SandboxRequest {
    SandboxRequest {
        argv: vec!["/bin/true".to_owned()],
        workspace: workspace.to_owned(),
        writable: None,
        cwd: PathBuf::new(),
        env: Vec::new(),
        home: Vec::new(),
        stdin: Vec::new(),
        timeout: Duration::from_secs(300),
        limits: SandboxLimits::default(),
    }
}

/// How long one call takes.
///
/// # Errors
///
/// When it does not succeed.
pub async fn call(driver: &dyn Sandbox, place: &Path) -> Result<Duration, Failure> {
    let begun = Instant::now();
    let result = driver.run(request(place)).await?;
    let took = begun.elapsed();
    match result.exit {
        Exit::Code(0) => Ok(took),
        other => Err(Failure::failed(format!(
            "`true` at the level {} ended with {other:?}: {}",
            driver.level().as_str(),
            result.stderr.text.trim()
        ))),
    }
}

/// Waits.
pub async fn pause(time: Duration) {
    SystemClock.sleep_until(SystemClock.now().after(time)).await;
}

/// Times of calls, ascending, with `ready` awaited before each.
///
/// # Errors
///
/// When one does not succeed.
pub async fn calls(
    driver: &dyn Sandbox,
    place: &Path,
    rounds: u32,
    ready: impl Fn() -> bool,
) -> Result<Vec<Duration>, Failure> {
    let mut took = Vec::new();
    // The first call includes the cost of resources that are kept afterwards.
    for round in 0..=rounds {
        let one = call(driver, place).await?;
        if round > 0 {
            took.push(one);
        }
        pause(PAUSE).await;
        let patience = Instant::now();
        while !ready() && patience.elapsed() < Duration::from_secs(30) {
            pause(Duration::from_millis(5)).await;
        }
    }
    took.sort_unstable();
    Ok(took)
}

/// The level namespace, without and with inits that wait.
///
/// # Errors
///
/// Returns an error if the measurement fails. An unavailable level is no error: `note` gets a line.
pub async fn namespace(
    setting: &Setting,
    options: &Options,
    place: &Path,
    note: &impl Fn(&str),
) -> Result<Vec<Figure>, Failure> {
    let rounds = setting.count(200);
    let cold = Options { waiting: 0, ..options.clone() };
    let driver = Namespace::new(cold);
    match driver.attest().await {
        Ok(_) => {}
        Err(err) => {
            note(&format!("namespace left out: {}", reason(&err)));
            return Ok(Vec::new());
        }
    }
    let floor = bare(rounds).await?;
    let cold = calls(&driver, place, rounds, || true).await?;
    let keeping = Namespace::new(Options { waiting: options.waiting.max(1), ..options.clone() });
    let warm = calls(&keeping, place, rounds, || keeping.warmth().waiting > 0).await?;
    let served = keeping.warmth().served;
    keeping.settled();
    let with_floor = |figure: Figure| match floor {
        Some(floor) => figure.floor(BARE, ms(floor)),
        None => figure.note("there is no `unshare` here to compare with"),
    };
    let p50 = ms(percentile(&warm, 0.5));
    Ok(vec![
        Figure::new("namespace call p50", p50, "ms").goal(Goal::Most(10.0)).note(format!(
            "`true` in an init that waited ({served} of {} calls); these and the floor's {} ms apart",
            rounds + 1,
            PAUSE.as_millis()
        )),
        with_floor(Figure::new("namespace call p50, by floor", p50, "ms"))
            .goal(Goal::TimesFloor(3.0)),
        Figure::new("namespace call p99", ms(percentile(&warm, 0.99)), "ms"),
        with_floor(Figure::new("namespace call without waiting", ms(percentile(&cold, 0.5)), "ms")),
    ])
}

/// A bare process in a process namespace of its own, in the middle, at the pace of our calls: one
/// that follows at once on another finds all caches warm. `None` without `unshare`.
async fn bare(rounds: u32) -> Result<Option<Duration>, Failure> {
    let mut took = Vec::new();
    for _ in 0..rounds {
        let mut command = Command::new("unshare");
        command.args(["--user", "--pid", "--fork", "/bin/true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        match command.status() {
            Ok(status) if status.success() => took.push(begun.elapsed()),
            Ok(_) => return Ok(None),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(err) => return Err(Failure::failed(format!("starting unshare: {err}"))),
        }
        pause(PAUSE).await;
    }
    took.sort_unstable();
    Ok(Some(percentile(&took, 0.5)))
}
