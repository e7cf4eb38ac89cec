//! `run_shell`: runs one command in a sandbox.
//!
//! This tool decides what is run and what may be written; the driver isolates the command. The
//! workspace is read-only unless the call sets `allow_write`. Then one directory of it is writable:
//! `write_subdir`, by default `.overmind_runs/<session>`, so that sessions do not collide by
//! accident. The directory is created and resolved here, below the workspace; the driver gets its
//! real path without symlinks.

use std::path::PathBuf;
use std::time::Duration;

use overmind_core::Fut;
use overmind_core::sandbox::SandboxRequest;
use overmind_core::tool::{EffectClass, ToolContext, ToolSpec};
use serde::Deserialize;
use serde_json::{Value, json};

use super::command::{Runner, may_write, writable};
use super::parts;
use crate::MAX_TEXT_BYTES;
use crate::answer::{Answer, Failure};
use crate::binding::Execution;
use crate::gateway::Tool;
use crate::schema::{integer, parse};

#[derive(Debug)]
pub(crate) struct RunShell {
    runner: Runner,
}

#[derive(Debug, Deserialize)]
struct Args {
    command: String,
    #[serde(default = "parts::command_timeout", deserialize_with = "integer")]
    timeout_s: u64,
    #[serde(default)]
    allow_write: Option<bool>,
    #[serde(default)]
    write_subdir: Option<String>,
}

impl RunShell {
    pub(super) fn new(runner: Runner) -> Self {
        Self { runner }
    }
}

impl Tool for RunShell {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "run_shell".into(),
            description: "Run a shell command (sh) in a sandbox, in the workspace. There is no \
                          network but to the services of the workspace's own environment, and no \
                          terminal, and input is empty. In a worktree of the run's own the command \
                          may write to the workspace, unless allow_write is false. Elsewhere the \
                          workspace is read-only unless allow_write is true, which makes one \
                          directory of it writable and starts the command there; write_subdir \
                          chooses the directory (. is the whole workspace). /tmp is writable but forgotten after the call. A \
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
                    "timeout_s": parts::timeout(parts::command_timeout(), "command"),
                    "allow_write": parts::allow_write("command"),
                    "write_subdir": parts::write_subdir(),
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
        let writes = may_write(context, args.allow_write);
        let cwd = writes.then_some(args.write_subdir).flatten().unwrap_or_default();
        Some(Execution { argv: argv(&args.command), cwd, env: self.runner.environment(context) })
    }
}

impl RunShell {
    async fn run(&self, context: &ToolContext, args: Args) -> Answer {
        if args.command.contains('\0') {
            return Err(Failure::bad_args("command must not contain a NUL character"));
        }
        let driver = self.runner.driver(context)?;
        let writable = match may_write(context, args.allow_write) {
            true => Some(writable(context, args.write_subdir.as_deref()).await?),
            false => None,
        };
        let request = SandboxRequest {
            argv: argv(&args.command),
            workspace: context.workspace.clone(),
            cwd: writable.clone().unwrap_or_else(|| PathBuf::from(".")),
            writable,
            env: self.runner.environment(context),
            home: self.runner.home(context),
            stdin: Vec::new(),
            timeout: Duration::from_secs(args.timeout_s),
            limits: context.limits,
        };
        let mut done = self.runner.run(context, &*driver, request).await?;
        done.insert("command".into(), args.command.into());
        Ok(done)
    }
}

fn argv(command: &str) -> Vec<String> {
    ["sh", "-lc", command].map(String::from).to_vec()
}
