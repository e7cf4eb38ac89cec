//! `run_shell`: one command in a sandbox.
//!
//! This tool says what is run and what may be written; how the command is kept apart is the
//! driver's business. The workspace is read-only unless the call asks for `allow_write`; then one
//! directory of it is writable: `write_subdir`, by default `.overmind_runs/<session>`, so that
//! sessions do not meet by accident. The directory is made and resolved here, beneath the
//! workspace; the driver gets its real path without symlinks.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::sandbox::{
    Captured, Exit, Sandbox, SandboxError, SandboxLevel, SandboxRequest, SandboxResult,
};
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use rustix::fs::{Gid, Uid};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::MAX_TEXT_BYTES;
use crate::answer::{Answer, Failure, brief, cut, fields};
use crate::binding::Execution;
use crate::file_labels::{self, FileLabels};
use crate::gateway::{SandboxLookup, Tool};
use crate::schema::{integer, parse};
use crate::workspace::{PathError, Workspace, blocking};

pub(crate) struct RunShell {
    sandboxes: SandboxLookup,
    labels: Arc<FileLabels>,
}

impl std::fmt::Debug for RunShell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunShell").finish_non_exhaustive()
    }
}

#[derive(Debug, Deserialize)]
struct Args {
    command: String,
    #[serde(default = "twenty", deserialize_with = "integer")]
    timeout_s: u64,
    #[serde(default)]
    allow_write: bool,
    #[serde(default)]
    write_subdir: Option<String>,
}

fn twenty() -> u64 {
    20
}

impl RunShell {
    pub(crate) fn new(sandboxes: SandboxLookup, labels: Arc<FileLabels>) -> Self {
        Self { sandboxes, labels }
    }
}

impl Tool for RunShell {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "run_shell".into(),
            description: "Run a shell command (sh) in a sandbox, in the workspace. There is no \
                          network and no terminal, and input is empty. The workspace is read-only \
                          unless allow_write is true, which makes one directory of it writable and \
                          starts the command there; write_subdir chooses the directory (. is the \
                          whole workspace). /tmp is writable but forgotten after the call. A \
                          non-zero exit_code is a result, not a failure of the tool. Long output \
                          is cut: filter it with grep, head or tail."
                .into(),
            schema: json!({
                "type": "object",
                "properties": {
                    "command": {
                        "type": "string", "minLength": 1,
                        "description": "The command, as after sh -lc.",
                    },
                    "timeout_s": {
                        "type": "integer", "minimum": 1, "maximum": 120, "default": 20,
                        "description": "Seconds after which the command is killed.",
                    },
                    "allow_write": {
                        "type": "boolean", "default": false,
                        "description": "Let the command write to write_subdir.",
                    },
                    "write_subdir": {
                        "type": ["string", "null"], "default": null,
                        "description": "Directory to write to, relative to the workspace; . is all \
                                        of it. Created if missing. Default: a directory of this \
                                        session's own.",
                    },
                },
                "required": ["command"],
                "additionalProperties": false,
            }),
            class: EffectClass::Once,
            internal: false,
        }
    }

    fn call<'a>(&'a self, context: &'a ToolContext, args: &'a Value) -> Fut<'a, Answer> {
        Box::pin(async move {
            let args: Args = parse(args)?;
            if args.command.len() > MAX_TEXT_BYTES {
                return Err(Failure::new("size_limit", "command exceeds max size").with_details(
                    json!({"bytes": args.command.len(), "max_bytes": MAX_TEXT_BYTES}),
                ));
            }
            let command = args.command.clone();
            self.run(context, args).await.map_err(|failure| failure.with("command", command))
        })
    }

    fn is_sandboxed(&self) -> bool {
        true
    }

    fn execution(&self, context: &ToolContext, args: &Value) -> Option<Execution> {
        let args: Args = parse(args).ok()?;
        let cwd = args.allow_write.then_some(args.write_subdir).flatten().unwrap_or_default();
        Some(Execution { argv: argv(&args.command), cwd, env: environment(context) })
    }
}

impl RunShell {
    async fn run(&self, context: &ToolContext, args: Args) -> Answer {
        if args.command.contains('\0') {
            return Err(Failure::bad_args("command must not contain a NUL character"));
        }
        let driver = driver(&self.sandboxes, context)?;
        let writable = match args.allow_write {
            true => Some(writable(context, args.write_subdir.as_deref()).await?),
            false => None,
        };
        let request = SandboxRequest {
            argv: argv(&args.command),
            workspace: context.workspace.clone(),
            cwd: writable.clone().unwrap_or_else(|| PathBuf::from(".")),
            writable,
            env: environment(context),
            stdin: Vec::new(),
            timeout: Duration::from_secs(args.timeout_s),
            limits: context.limits,
        };
        let mut done = run(&*driver, &self.labels, request).await?;
        done.insert("command".into(), args.command.into());
        Ok(done)
    }
}

fn argv(command: &str) -> Vec<String> {
    ["sh", "-lc", command].map(String::from).to_vec()
}

/// The driver of the agent's level, and no other.
pub(super) fn driver(
    sandboxes: &SandboxLookup,
    context: &ToolContext,
) -> Result<Arc<dyn Sandbox>, Failure> {
    let level = context.sandbox;
    sandboxes(level).ok_or_else(|| {
        Failure::new(
            "unsupported_backend",
            format!("this hive has no `{}` sandbox; nothing was run", level.as_str()),
        )
        .with_details(json!({"sandbox": level.as_str()}))
    })
}

/// Runs a command, and meanwhile finds out what it may have read.
pub(super) async fn run(
    driver: &dyn Sandbox,
    labels: &Arc<FileLabels>,
    request: SandboxRequest,
) -> Answer {
    let (labels, root) = (Arc::clone(labels), request.workspace.clone());
    let (cwd, timeout) = (request.cwd.to_string_lossy().into_owned(), request.timeout);
    let scan = blocking(move || Ok(labels.in_reach(&root)));
    let (done, labels) = tokio::join!(driver.run(request), scan);
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

/// The whole environment of a command. Nothing of the daemon's own is in it.
pub(super) fn environment(context: &ToolContext) -> Vec<(String, String)> {
    [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/tmp"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
        ("OVERMIND_SESSION", &context.session.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// Makes the directory that the command may write to, and says where it really is.
pub(super) async fn writable(
    context: &ToolContext,
    subdir: Option<&str>,
) -> Result<PathBuf, Failure> {
    let (given, ours) = match subdir {
        Some(subdir) if !subdir.trim().is_empty() => (subdir.to_owned(), false),
        Some(_) | None => (format!(".overmind_runs/{}", context.session), true),
    };
    let give_away = ours && context.sandbox == SandboxLevel::Docker;
    let root = context.workspace.clone();
    blocking(move || {
        let escapes = || {
            Failure::new("bad_config", "write_subdir escapes workspace")
                .with_details(json!({"write_subdir": brief(&given)}))
        };
        let workspace = Workspace::open(&root)?;
        let made = workspace
            .relative(&given)
            // Leading slashes of other absolute paths are dropped: they mean the workspace.
            .or_else(|_| workspace.relative(given.trim_start_matches('/')))
            .and_then(|path| Ok((workspace.make_dir(&path)?, path)));
        match made {
            Ok((dir, _)) => {
                if give_away {
                    give_to_container(&root, &dir);
                }
                workspace.real(&dir).ok_or_else(escapes)
            }
            Err(PathError::Escapes) => Err(escapes()),
            Err(PathError::NotFound { .. } | PathError::NotDirectory { .. }) => {
                Err(Failure::new("bad_config", "write_subdir is not a directory")
                    .with_details(json!({"write_subdir": brief(&given)})))
            }
            Err(err @ PathError::Busy { .. }) => Err(err.into()),
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

/// A daemon that is root runs containers as the workspace's owner, or as nobody where that is
/// root: the session's own directory must be that user's. Where it cannot be given away, the
/// driver refuses the call and says why.
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
    // A shell reports a signal the same way.
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
            return Err(Failure::new("timeout", format!("Command timed out after {timeout_s}s"))
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

/// Puts a stream's kept text into the answer and returns how many bytes of it are missing.
fn put(output: &mut Map<String, Value>, name: &str, captured: &Captured) -> u64 {
    // The driver has cut it already, at the session's own limit; this one always holds.
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
