//! Shared code of `run_shell` and `run_command`: the sandbox and its writable directory, the
//! environment, live output, and the result.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overmind_core::canary::Planter;
use overmind_core::gate;
use overmind_core::live::Live;
use overmind_core::sandbox::{
    Captured, Exit, HOME, HomeFile, OutputSink, Sandbox, SandboxError, SandboxLevel,
    SandboxRequest, SandboxResult,
};
use overmind_core::tool::ToolContext;
use overmind_core::trace::TRACEPARENT_VARIABLE;
use rustix::fs::{Gid, Uid};
use serde_json::{Map, Value, json};

use crate::MAX_TEXT_BYTES;
use crate::answer::{Answer, Failure, brief, cut, fields};
use crate::file_labels::{self, FileLabels};
use crate::gateway::{SandboxLookup, driver_for};
use crate::workspace::{PathError, Root, Workspace, blocking};

/// Runs commands for both tools.
#[derive(Clone)]
pub(super) struct Runner {
    sandboxes: SandboxLookup,
    labels: Arc<FileLabels>,
    canaries: Option<Planter>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").finish_non_exhaustive()
    }
}

impl Runner {
    pub(super) fn new(
        sandboxes: SandboxLookup,
        labels: Arc<FileLabels>,
        canaries: Option<Planter>,
    ) -> Self {
        Self { sandboxes, labels, canaries }
    }

    /// The driver of the agent's level; no other is used.
    pub(super) fn driver(&self, context: &ToolContext) -> Result<Arc<dyn Sandbox>, Failure> {
        let level = context.sandbox;
        driver_for(context, &self.sandboxes).ok_or_else(|| {
            Failure::new(
                "unsupported_backend",
                format!("this hive has no `{}` sandbox; nothing was run", level.as_str()),
            )
            .with_details(json!({"sandbox": level.as_str()}))
        })
    }

    /// Runs a command, reports its output, and meanwhile determines which labelled files it may
    /// have read.
    pub(super) async fn run(
        &self,
        context: &ToolContext,
        driver: &dyn Sandbox,
        mut request: SandboxRequest,
    ) -> Answer {
        // It is not part of what a human approves, because it differs with every call.
        if let Some(parent) = context.traceparent {
            request.env.push((TRACEPARENT_VARIABLE.to_owned(), parent.to_string()));
        }
        // No driver is called for a directory that no session may get, also at the level none.
        if let Some(why) = context.off_limits.refusal(&request.workspace) {
            return Err(Failure::new("bad_config", why));
        }
        let (labels, root) = (Arc::clone(&self.labels), Root::of(context));
        let (cwd, timeout) = (request.cwd.to_string_lossy().into_owned(), request.timeout);
        let scan = blocking(move || Ok(labels.in_reach(&root)));
        let command = if context.live.is_heard() {
            let live = context.live.clone();
            let sink: OutputSink =
                Arc::new(move |stream, bytes| live.say(Live::Output { stream, bytes }));
            driver.run_streaming(request, sink)
        } else {
            driver.run(request)
        };
        let (done, labels) = tokio::join!(command, scan);
        let (done, labels) = (done.map_err(refused)?, labels?);
        let marks = file_labels::put(Map::new(), labels, "files of the workspace");
        match report(timeout, &cwd, done) {
            Ok(mut fields) => {
                fields.extend(marks);
                Ok(fields)
            }
            Err(failure) => Err(failure.with_all(marks)),
        }
    }

    /// The whole environment of a command. It contains no variable of the daemon, and a planted
    /// canary.
    pub(super) fn environment(&self, context: &ToolContext) -> Vec<(String, String)> {
        let mut env = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("HOME", HOME),
            ("LANG", "C.UTF-8"),
            ("TERM", "dumb"),
            ("OVERMIND_SESSION", &context.session.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
        if let Some(planter) = &self.canaries {
            env.extend(planter.env(context.session));
        }
        // It is a directory of the host; inside of the sandbox `/tmp` is the command's own.
        let lies_outside = |name: &str| context.sandbox != SandboxLevel::None && name == "TMPDIR";
        let room = context.variables.iter();
        let room: Vec<_> = room
            .filter(|(name, _)| env.iter().all(|(own, _)| own != name) && !lies_outside(name))
            .cloned()
            .collect();
        env.extend(room);
        env
    }

    /// The files in a command's home: planted canaries. At the level `none` the home is the host's,
    /// where nothing is planted.
    pub(super) fn home(&self, context: &ToolContext) -> Vec<HomeFile> {
        match (&self.canaries, context.sandbox) {
            (None, _) | (Some(_), SandboxLevel::None) => Vec::new(),
            (
                Some(planter),
                SandboxLevel::Namespace | SandboxLevel::Docker | SandboxLevel::Microvm,
            ) => planter.home(context.session),
        }
    }
}

/// Whether the run has its own worktree, whose sandbox runs its commands.
fn has_worktree(context: &ToolContext) -> bool {
    context.driver.is_some()
}

/// Whether a call may write to the workspace. If the call does not say, it may do so in the run's
/// own worktree, where changes can be undone.
pub(super) fn may_write(context: &ToolContext, allow_write: Option<bool>) -> bool {
    allow_write.unwrap_or_else(|| has_worktree(context))
}

/// Makes the directory that the command may write to, and returns its real path.
pub(super) async fn writable(
    context: &ToolContext,
    subdir: Option<&str>,
) -> Result<PathBuf, Failure> {
    let (given, ours) = match subdir {
        Some(subdir) if !subdir.trim().is_empty() => (subdir.to_owned(), false),
        Some(_) | None if has_worktree(context) => (".".to_owned(), false),
        Some(_) | None => (gate::scratch_of(context.session), true),
    };
    let give_away = ours && context.sandbox == SandboxLevel::Docker;
    let root = Root::of(context);
    blocking(move || {
        let escapes = || {
            Failure::new("bad_config", "write_subdir escapes workspace")
                .with_details(json!({"write_subdir": brief(&given)}))
        };
        let workspace = Workspace::open(&root)?;
        let made = workspace
            .relative(&given)
            // Leading slashes of other absolute paths are dropped, so these are relative to the
            // workspace.
            .or_else(|_| workspace.relative(given.trim_start_matches('/')))
            .and_then(|path| Ok((workspace.make_dir(&path)?, path)));
        match made {
            Ok((dir, _)) => {
                if give_away {
                    give_to_container(root.path(), &dir);
                }
                workspace.real(&dir).ok_or_else(escapes)
            }
            Err(PathError::Escapes) => Err(escapes()),
            Err(PathError::NotFound { .. } | PathError::NotDirectory { .. }) => {
                Err(Failure::new("bad_config", "write_subdir is not a directory")
                    .with_details(json!({"write_subdir": brief(&given)})))
            }
            Err(
                err @ (PathError::Busy { .. }
                | PathError::Own { .. }
                | PathError::Repository { .. }
                | PathError::Withheld { .. }
                | PathError::NotWithheld { .. }
                | PathError::OffLimits { .. }),
            ) => Err(err.into()),
            Err(
                err @ (PathError::Nul
                | PathError::IsDirectory { .. }
                | PathError::NotRegular { .. }
                | PathError::Changed { .. }
                | PathError::Io { .. }),
            ) => Err(Failure::new("bad_config", format!("write_subdir cannot be used: {err}"))),
        }
    })
    .await
}

/// Changes the owner of the session's own directory for containers. A root daemon runs them as the
/// workspace's owner, or as nobody if that is root. If the owner cannot be changed, the driver
/// refuses the call with the reason.
fn give_to_container(workspace: &Path, dir: &impl AsFd) {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let owner = std::fs::metadata(workspace).map(|found| (found.uid(), found.gid()));
    let (uid, gid) = owner.unwrap_or((NOBODY, NOBODY));
    let or_nobody = |id| if id == 0 { NOBODY } else { id };
    let (uid, gid) = (Uid::from_raw(or_nobody(uid)), Gid::from_raw(or_nobody(gid)));
    if let Err(err) = rustix::fs::fchown(dir, Some(uid), Some(gid)) {
        tracing::warn!(error = %err, "the container's directory keeps its owner");
    }
}

fn refused(err: SandboxError) -> Failure {
    match err {
        SandboxError::Unavailable { code, message, reason, remedy } => {
            Failure::new(&code, message).with_details(json!({"reason": reason, "remedy": remedy}))
        }
        SandboxError::BadConfig { code, message } => Failure::new(&code, message),
        SandboxError::Failed { .. } => Failure::tool_error(err.to_string()),
    }
}

fn report(timeout: Duration, working_dir: &str, done: SandboxResult) -> Answer {
    let mut output = Map::new();
    let dropped =
        (put(&mut output, "stdout", &done.stdout), put(&mut output, "stderr", &done.stderr));
    output.insert("latency_ms".into(), millis(done.elapsed).into());
    output.insert("working_dir".into(), working_dir.into());
    output.insert("sandbox".into(), done.level.as_str().into());
    if dropped != (0, 0) {
        output.insert("dropped_bytes".into(), json!({"stdout": dropped.0, "stderr": dropped.1}));
    }
    if let (SandboxLevel::Docker, Some(line)) = (done.level, done.shown_as) {
        output.insert("docker_cmd".into(), line.into());
    }
    // A shell reports a signal in the same way.
    let (exit_code, signal) = match done.exit {
        Exit::Code(code) => (code, None),
        Exit::Signal(signal) => (signal.saturating_add(128), Some(signal)),
        Exit::TimedOut => {
            let timeout_s = timeout.as_secs();
            let backend = match done.level {
                SandboxLevel::None => "host",
                SandboxLevel::Namespace => "namespace",
                SandboxLevel::Docker => "docker",
                SandboxLevel::Microvm => "microvm",
            };
            let mut message = format!("Command timed out after {timeout_s}s");
            if timeout_s < super::parts::MAX_SECONDS {
                let more = format!("; `timeout_s` can be up to {}", super::parts::MAX_SECONDS);
                message.push_str(&more);
            }
            return Err(Failure::new("timeout", message)
                .with_details(json!({"timeout_s": timeout_s, "backend": backend}))
                .with_all(output));
        }
    };
    let mut all = fields(json!({"ok": exit_code == 0, "exit_code": exit_code}));
    if let Some(signal) = signal {
        all.insert("signal".into(), signal.into());
    }
    all.extend(output);
    Ok(all)
}

/// Adds a stream's kept text to the answer and returns how many bytes are missing.
fn put(output: &mut Map<String, Value>, name: &str, captured: &Captured) -> u64 {
    // The driver has already cut it at the session's limit; this limit always applies.
    let text = cut(&captured.text, MAX_TEXT_BYTES);
    output.insert(name.into(), text.into());
    if captured.truncated || text.len() < captured.text.len() {
        captured.total_bytes.saturating_sub(text.len() as u64).max(1)
    } else {
        0
    }
}

fn millis(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}
